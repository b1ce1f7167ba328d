"""Which sequence numbers of which front end are there, and until when everything is: arithmetic over ranges.

Blocks of one incarnation of a front end lie end to end from 0 on. What is covered is kept as few ranges, so duplicates,
gaps and completeness cost a look at block headers, never at rows. Pure.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from quaymaster_pipeline.usage.ended import Ended, EndedIncarnations

State = Literal["new", "duplicate", "overlap"]


class IncarnationId(NamedTuple):
    """Which incarnation of which front end."""

    front_end: str
    number: int


class BlockRange(NamedTuple):
    """What a block's header says of its place and time. Sequences are half open, times microseconds since 1970."""

    owner: IncarnationId
    seq_lo: int
    seq_hi: int
    sha256: bytes
    low_watermark_us: int
    sealed: IncarnationId | None = None
    seal_end: int | None = None


class CoverageLine(NamedTuple):
    """What came of an incarnation. `ranges`: begin and end of each range in turn; `watermarks`: a sequence, and the
    time (microseconds) before which all up to it is there, in turn."""

    front_end: str
    number: int
    ranges: list[int]
    watermarks: list[int]
    is_sealed: bool
    seal_end: int | None

    @property
    def owner(self) -> IncarnationId:
        """Whose it is."""
        return IncarnationId(self.front_end, self.number)


class Gap(NamedTuple):
    """Sequences that are missing, half open. `to` is None where the end is not known yet."""

    owner: IncarnationId
    seq_lo: int
    seq_hi: int


@dataclass(slots=True)
class _Ranges:
    """Disjoint half-open ranges in order, as two parallel lists."""

    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)

    def overlaps(self, low: int, high: int) -> bool:
        at = bisect.bisect_right(self.highs, low)
        return low < high and at < len(self.lows) and self.lows[at] < high

    def add(self, low: int, high: int) -> None:
        if low >= high:
            return
        # All ranges that touch [low, high) become one with it.
        first = bisect.bisect_left(self.highs, low)
        last = bisect.bisect_right(self.lows, high)
        if first < last:
            low, high = min(low, self.lows[first]), max(high, self.highs[last - 1])
        self.lows[first:last] = [low]
        self.highs[first:last] = [high]

    @property
    def prefix_end(self) -> int:
        """The first sequence from 0 on that is missing."""
        return self.highs[0] if self.lows and self.lows[0] == 0 else 0


@dataclass(slots=True)
class _Progress:
    """An incarnation as far as it is known."""

    ranges: _Ranges = field(default_factory=_Ranges)
    watermarks: list[tuple[int, int]] = field(default_factory=list)
    """(seq_hi, low watermark) of blocks beyond the prefix, and of the last one in it."""
    is_sealed: bool = False
    seal_end: int | None = None

    @property
    def is_complete(self) -> bool:
        """Nothing more comes, and all is there; where the end is not known (the spool was lost), what came is all."""
        if not self.is_sealed:
            return False
        end = max(self.ranges.highs, default=0) if self.seal_end is None else self.seal_end
        return self.ranges.prefix_end >= end

    @property
    def has_gaps(self) -> bool:
        """Whether sequences are missing between what came, or before the seal."""
        lows, highs = self.ranges.lows, self.ranges.highs
        end = highs[-1] if highs else 0
        return len(lows) > 1 or bool(lows and lows[0] > 0) or (self.seal_end or 0) > end

    @property
    def ended(self) -> Ended | None:
        """The same in three numbers; None unless it ended, all of it came, and no more is to be said."""
        end = self.ranges.prefix_end
        if not self.is_complete or self.has_gaps or self.seal_end not in (None, end):
            return None
        heard = self.watermarks[0] if self.watermarks else None
        if len(self.watermarks) > 1 or (heard is not None and (heard[0] != end or heard[1] < 0)):
            return None
        return Ended(end, None if heard is None else heard[1], self.seal_end is not None)

    @classmethod
    def of_ended(cls, ended: Ended) -> _Progress:
        """Return what `ended` was made of."""
        ranges = _Ranges([0], [ended.end]) if ended.end else _Ranges()
        watermarks = [] if ended.heard_us is None else [(ended.end, ended.heard_us)]
        return cls(ranges, watermarks, True, ended.end if ended.is_end_known else None)

    @property
    def watermark_us(self) -> int:
        """Everything older than this is there; 0 when nothing is known."""
        end = self.ranges.prefix_end
        return max((low_us for seq_hi, low_us in self.watermarks if seq_hi <= end), default=0)


class Coverage:
    """What came of every front end's incarnations.

    Most of them are sealed and complete, and packed. Which are not is kept up, so a question about these alone costs
    the same whatever the history.
    """

    def __init__(self, ended: EndedIncarnations | None = None) -> None:
        self.ended = ended or EndedIncarnations()
        self._incarnations: dict[IncarnationId, _Progress] = {}
        """All that are not among those that ended."""
        self._open: set[IncarnationId] = set()
        self._gapped: set[IncarnationId] = set()

    def copy(self) -> Coverage:
        """Return another one that has the same, for another thread to add to."""
        made = Coverage(self.ended.copy())
        made._incarnations = {
            owner: _Progress(
                _Ranges(progress.ranges.lows.copy(), progress.ranges.highs.copy()),
                progress.watermarks.copy(),
                progress.is_sealed,
                progress.seal_end,
            )
            for owner, progress in self._incarnations.items()
        }
        made._open, made._gapped = self._open.copy(), self._gapped.copy()
        return made

    def overlaps(self, block: BlockRange) -> bool:
        """Return whether any sequence of the block came before."""
        progress = self._progress_of(block.owner)
        return progress is not None and progress.ranges.overlaps(block.seq_lo, block.seq_hi)

    def covers(self, block: BlockRange) -> bool:
        """Return whether all sequences of the block came before, and it has some."""
        ranges = self.ranges_of(block.owner)
        return any(low <= block.seq_lo < block.seq_hi <= high for low, high in ranges)

    def add(self, block: BlockRange) -> None:
        """Take a block as there. The same again changes nothing."""
        progress = self._unpacked(block.owner)
        progress.ranges.add(block.seq_lo, block.seq_hi)
        progress.watermarks.append((block.seq_hi, block.low_watermark_us))
        end = progress.ranges.prefix_end
        reached = [low_us for seq_hi, low_us in progress.watermarks if seq_hi <= end]
        if len(reached) > 1:
            beyond = [pair for pair in progress.watermarks if pair[0] > end]
            progress.watermarks = [(end, max(reached)), *beyond]
        if block.sealed is not None:
            sealed = self._unpacked(block.sealed)
            # Others may have said that the end is not known, before or after who did know.
            if block.seal_end is not None or not sealed.is_sealed:
                sealed.seal_end = block.seal_end
            sealed.is_sealed = True
            if block.sealed != block.owner:
                self._look_at(block.sealed, sealed)
        self._look_at(block.owner, progress)

    def _progress_of(self, owner: IncarnationId) -> _Progress | None:
        """Return an incarnation to look at; None if nothing came of it."""
        progress = self._incarnations.get(owner)
        if progress is None and (ended := self.ended.get(*owner)) is not None:
            return _Progress.of_ended(ended)
        return progress

    def _unpacked(self, owner: IncarnationId) -> _Progress:
        """Return an incarnation to change, a new one if nothing came of it; `_look_at` follows."""
        progress = self._incarnations.get(owner)
        if progress is None:
            ended = self.ended.pop(*owner)
            progress = _Progress() if ended is None else _Progress.of_ended(ended)
            self._incarnations[owner] = progress
        return progress

    def _look_at(self, owner: IncarnationId, progress: _Progress) -> None:
        """Keep up which incarnations are open, which have gaps, and which have ended."""
        for owners, is_one in ((self._open, not progress.is_complete), (self._gapped, progress.has_gaps)):
            if is_one:
                owners.add(owner)
            else:
                owners.discard(owner)
        if (ended := progress.ended) is not None:
            del self._incarnations[owner]
            self.ended.put(*owner, ended)

    def ranges_of(self, owner: IncarnationId) -> list[tuple[int, int]]:
        """Return what came of an incarnation: disjoint half-open ranges, in order."""
        progress = self._progress_of(owner)
        return [] if progress is None else list(zip(progress.ranges.lows, progress.ranges.highs, strict=True))

    def heard_us(self, owner: IncarnationId) -> int:
        """Return the latest low watermark that came of an incarnation; 0 when none did."""
        progress = self._progress_of(owner)
        return 0 if progress is None else max((low_us for _, low_us in progress.watermarks), default=0)

    def lines(self) -> Iterator[CoverageLine]:
        """Yield all that is known, an incarnation at a time."""
        ended = (
            _line_of(IncarnationId(front_end, number), _Progress.of_ended(one))
            for front_end, number, one in self.ended.items()
        )
        yield from heapq.merge(ended, self.lines_of_others(), key=lambda line: line.owner)

    def lines_of_others(self) -> Iterator[CoverageLine]:
        """Yield all that is known of incarnations that are not among those that `ended`."""
        for owner, progress in sorted(self._incarnations.items(), key=lambda item: item[0]):
            yield _line_of(owner, progress)

    @classmethod
    def of_lines(cls, lines: Iterable[CoverageLine], ended: EndedIncarnations | None = None) -> Coverage:
        """Return what `lines` was made of, or `lines_of_others` and `ended`."""
        coverage = cls(ended)
        for front_end, number, ranges, watermarks, is_sealed, seal_end in lines:
            owner = IncarnationId(front_end, number)
            progress = coverage._incarnations[owner] = _Progress(
                _Ranges(ranges[::2], ranges[1::2]),
                list(zip(watermarks[::2], watermarks[1::2], strict=True)),
                is_sealed,
                seal_end,
            )
            coverage._look_at(owner, progress)
        return coverage

    def gaps(self) -> list[Gap]:
        """Return what is missing between what came, and before the seals."""
        found = []
        for owner in sorted(self._gapped):
            progress, expected = self._incarnations[owner], 0
            for low, high in zip(progress.ranges.lows, progress.ranges.highs, strict=True):
                if low > expected:
                    found.append(Gap(owner, expected, low))
                expected = high
            if progress.seal_end is not None and progress.seal_end > expected:
                found.append(Gap(owner, expected, progress.seal_end))
        return found

    def open_incarnations(self) -> list[IncarnationId]:
        """Return the incarnations of which more may come."""
        return sorted(self._open)

    def closed_until_us(self) -> int | None:
        """Return the time before which nothing is missing and nothing comes any more.

        None when no front end is known, or all are sealed and complete: then that is true of all times.
        """
        return min((self._incarnations[owner].watermark_us for owner in self._open), default=None)


def _line_of(owner: IncarnationId, progress: _Progress) -> CoverageLine:
    return CoverageLine(
        *owner,
        [end for pair in zip(progress.ranges.lows, progress.ranges.highs, strict=True) for end in pair],
        [number for pair in progress.watermarks for number in pair],
        progress.is_sealed,
        progress.seal_end,
    )


def judge_blocks(
    coverage: Coverage,
    blocks: Iterable[BlockRange],
    known_digests: Iterable[tuple[IncarnationId, int, bytes]],
) -> list[State]:
    """Return what each block is, in the order that they came, and add them to the coverage.

    `known_digests` are (owner, seq_lo, SHA-256) of blocks that came before, at least of those that may come again.
    A block without sequences (a sign of life, a seal) is new: taking it twice does no harm.
    """
    digests = set(known_digests)
    states: list[State] = []
    for block in blocks:
        key = (block.owner, block.seq_lo, block.sha256)
        if key in digests:
            states.append("duplicate")
        elif coverage.overlaps(block):
            states.append("overlap")
        else:
            states.append("new")
        digests.add(key)
        coverage.add(block)
    return states

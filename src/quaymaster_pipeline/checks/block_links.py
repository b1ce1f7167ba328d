"""Whether the blocks of a front end are a chain: each has the hash of the one before it, and sequences lie end to end.

    block 7 ──sha256──▶ previous of block 8 ──sha256──▶ previous of block 9 (seal: 9 ends at sequence 412)

What is not broken, but told:

- A *gap*: sequences that never came. The block behind it names one that is nowhere.
- A *branch*: two blocks go on from the same one, or have the same sequences: a front end's disk was copied, or came
  back. There may be more than one end, so links and ends of such an incarnation prove nothing.

Pure, over headers; a front end at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quaymaster.protocol.usage.usage_records import NO_HASH
from quaymaster_pipeline.checks.usage_breaks import UsageBreak
from quaymaster_pipeline.usage.sequences import (
    BlockRange,
    Coverage,
    CoverageLine,
    Gap,
    IncarnationId,
    State,
    judge_blocks,
)
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, COVERAGE

DAMAGED_IN_SPOOL: Final = "damaged"
"""The `dropped_reason` of a block that stands for some that could not be read any more: the next one names those."""
LOST: Final = "lost"


class ChainedBlock(NamedTuple):
    """The header of a block, and where it is."""

    batch_id: int
    log_partition: int
    log_offset: int
    block: BlockRange
    previous: bytes
    dropped: int
    dropped_reason: str | None
    seal_reason: str | None

    @property
    def place(self) -> tuple[int, int]:
        """Its partition and offset."""
        return self.log_partition, self.log_offset

    @property
    def is_lost_seal(self) -> bool:
        """Whether it only says that an incarnation was lost: it lies in the chain of another one, or in none."""
        return self.seal_reason == LOST


class ChainHead(NamedTuple):
    """A block that later ones may name: whose it is and where it ends, or what it only stands for."""

    owner: IncarnationId
    seq_hi: int
    is_lost_seal: bool
    is_repaired: bool

    @classmethod
    def of(cls, one: ChainedBlock) -> ChainHead:
        """Return that of a block."""
        is_repaired = one.dropped_reason == DAMAGED_IN_SPOOL
        return cls(one.block.owner, one.block.seq_hi, one.is_lost_seal, is_repaired)


@dataclass(frozen=True, slots=True)
class ExpiredChain:
    """What is known of the blocks of a front end that have expired, all of which came before those that have not."""

    lines: Sequence[CoverageLine] = ()
    branched: frozenset[IncarnationId] = frozenset()
    lost: frozenset[IncarnationId] = frozenset()
    blocks: Mapping[IncarnationId, int] = field(default_factory=dict)
    dropped: Mapping[IncarnationId, int] = field(default_factory=dict)
    heads: Mapping[bytes, ChainHead] = field(default_factory=dict)


NOTHING_EXPIRED: Final = ExpiredChain()
HEADS_MAX: Final = 16
"""So many heads of an incarnation are kept: it has one, and one more for each gap."""


@dataclass(slots=True)
class FrontEndChain:
    """What was found of one front end. `unlinked`: blocks that name one before them that is not there.

    `firsts` are its blocks by their hash, each once; `coverage` is what came of it, also of blocks that have expired.
    """

    breaks: list[UsageBreak] = field(default_factory=list)
    unlinked: list[UsageBreak] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    branched: set[IncarnationId] = field(default_factory=set)
    states: dict[tuple[int, int], State] = field(default_factory=dict)
    firsts: dict[bytes, ChainedBlock] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    incarnations: int = 0
    dropped: int = 0


def judge_chain(
    blocks: Iterable[ChainedBlock],
    passed: Mapping[int, Sequence[Sequence[int]]],
    expired: ExpiredChain = NOTHING_EXPIRED,
    marks: Mapping[tuple[int, int], BlockMark] | None = None,
) -> FrontEndChain:
    """Return what is wrong with the blocks of a front end. `passed`: offsets, by partition, that the queue had lost.

    Of a block that covers what has expired only its mark tells whether it is the same again, so that is believed.
    """
    chain = FrontEndChain(coverage=Coverage.of_lines(expired.lines))
    came = sorted(blocks, key=lambda one: one[:3])
    repeated = _judge_states(chain, came, expired, marks or {})
    for one in came:
        if one.place not in repeated:
            chain.firsts.setdefault(one.block.sha256, one)
    firsts = chain.firsts
    chain.gaps = chain.coverage.gaps()
    chain.dropped = sum(one.dropped for one in firsts.values()) + sum(expired.dropped.values())
    chain.branched = {one.block.owner for one in firsts.values() if chain.states[one.place] == "overlap"}
    named = Counter(one.previous for one in firsts.values() if one.previous != NO_HASH)
    chain.branched |= {one.block.owner for one in firsts.values() if named[one.previous] > 1}
    chain.branched |= expired.branched
    lines = list(chain.coverage.lines())
    chain.incarnations = len(lines)
    for line in lines:
        owner = line.owner
        if owner in chain.branched or line.seal_end is None or max(line.ranges, default=0) <= line.seal_end:
            continue
        reason = f"records from it on were put in: the incarnation was sealed at {line.seal_end}"
        chain.breaks.append(UsageBreak(BLOCKS.name, reason, *owner, line.seal_end))
    _judge_links(chain, expired, _first_after(came, passed))
    return chain


def _judge_states(
    chain: FrontEndChain,
    came: Sequence[ChainedBlock],
    expired: ExpiredChain,
    marks: Mapping[tuple[int, int], BlockMark],
) -> set[tuple[int, int]]:
    """Say what each block is, and return the places of those that repeat one that has expired."""
    states = judge_blocks(chain.coverage, (one.block for one in came), ())
    chain.states = {one.place: state for one, state in zip(came, states, strict=True)}
    if not expired.lines:
        return set()
    before = Coverage.of_lines(expired.lines)
    repeated = set()
    for one in came:
        block, mark = one.block, marks.get(one.place)
        may_repeat = before.overlaps(block) if block.seq_lo < block.seq_hi else block.owner in expired.blocks
        if may_repeat and mark is not None and mark.state == "duplicate":
            chain.states[one.place] = "duplicate"
            repeated.add(one.place)
        elif before.covers(block):
            repeated.add(one.place)
    return repeated


def expired_chain(
    chain: FrontEndChain, blocks: Iterable[ChainedBlock], before: ExpiredChain = NOTHING_EXPIRED
) -> ExpiredChain:
    """Return what stays known of a front end when all `blocks`, which were judged as this chain, expire, too."""
    came = list(chain.firsts.values())
    named = {one.previous for one in came}
    heads = dict(before.heads) | {digest: ChainHead.of(one) for digest, one in chain.firsts.items()}
    by_owner: defaultdict[IncarnationId, list[tuple[int, bytes]]] = defaultdict(list)
    for digest in heads.keys() - named:
        by_owner[heads[digest].owner].append((heads[digest].seq_hi, digest))
    kept = {digest for mine in by_owner.values() for _, digest in sorted(mine)[-HEADS_MAX:]}
    counts, dropped = Counter(before.blocks), Counter(before.dropped)
    counts.update(one.block.owner for one in blocks)
    for one in came:
        dropped[one.block.owner] += one.dropped
    lost = {one.block.sealed for one in came if one.is_lost_seal and one.block.sealed is not None}
    return ExpiredChain(
        list(chain.coverage.lines()),
        frozenset(chain.branched),
        before.lost | lost,
        counts,
        dropped,
        {digest: heads[digest] for digest in sorted(kept)},
    )


def _first_after(
    came: Iterable[ChainedBlock], passed: Mapping[int, Sequence[Sequence[int]]]
) -> set[tuple[int, int]]:
    """Return the places of the front end's first blocks behind what the queue had lost: theirs may be among that."""
    found: dict[tuple[int, int], int] = {}
    for one in came:
        for _, end in passed.get(one.log_partition, ()):
            if one.log_offset >= end:
                key = one.log_partition, end
                found[key] = min(found.get(key, one.log_offset), one.log_offset)
    return {(partition, offset) for (partition, _), offset in found.items()}


def _judge_links(chain: FrontEndChain, expired: ExpiredChain, excused: set[tuple[int, int]]) -> None:
    firsts = chain.firsts
    heads = dict(expired.heads) | {digest: ChainHead.of(one) for digest, one in firsts.items()}
    ends = {
        (one.block.owner, one.block.seq_hi) for one in firsts.values() if one.block.seq_lo < one.block.seq_hi
    }
    ends |= {(head.owner, head.seq_hi) for head in expired.heads.values()}
    repaired = {(head.owner, head.seq_hi) for head in heads.values() if head.is_repaired}
    expired_ends = {line.owner: max(line.ranges, default=0) for line in expired.lines}
    for head in expired.heads.values():  # a sign of life may lie beyond a gap
        expired_ends[head.owner] = max(expired_ends.get(head.owner, 0), head.seq_hi)
    begun = Counter(line.owner for line in expired.lines if line.ranges[:1] == [0])
    for one in firsts.values():
        owner, seq_lo = one.block.owner, one.block.seq_lo
        before = heads.get(one.previous)
        is_begin = before is None or before.owner != owner
        # Without sequences it may be one again that has expired, and nothing tells that.
        may_repeat = seq_lo == one.block.seq_hi and seq_lo <= expired_ends.get(owner, -1)
        if owner in chain.branched or one.is_lost_seal or may_repeat:
            continue
        if seq_lo == 0 and is_begin and not (before is not None and before.is_lost_seal):
            begun[owner] += 1
            if begun[owner] == 1:
                continue
        if before is not None:
            if before.owner == owner and before.seq_hi != seq_lo:
                chain.breaks.append(
                    _at(one, f"it begins at {seq_lo}; the block before it ends at {before.seq_hi}")
                )
            elif before.owner != owner and not before.is_lost_seal:
                chain.breaks.append(_at(one, f"it goes on from a block of incarnation {before.owner.number}"))
        elif one.previous == NO_HASH:
            chain.breaks.append(_at(one, "it names no block before it, and is not the first one"))
        elif not (
            one.place in excused
            or (seq_lo > 0 and (owner, seq_lo) not in ends)
            or (owner, seq_lo) in repaired
        ):
            reason = "the block before it is missing or was changed: it names another hash"
            chain.unlinked.append(_at(one, reason))


def _at(one: ChainedBlock, reason: str) -> UsageBreak:
    return UsageBreak(BLOCKS.name, reason, *one.block.owner, one.block.seq_lo, *one.place)


class BlockMark(NamedTuple):
    """What ops.block_marks says of a block."""

    state: str
    front_end: str | None
    epoch: int | None
    seq_lo: int | None
    seq_hi: int | None


def judge_marks(
    blocks: Iterable[ChainedBlock],
    states: Mapping[tuple[int, int], State],
    marks: Mapping[tuple[int, int], BlockMark],
) -> Iterator[UsageBreak]:
    """Yield blocks that are marked otherwise than they must be, and marks of blocks that are not there."""
    left = dict(marks)
    for one in blocks:
        mark = left.pop(one.place, None)
        state, block = states[one.place], one.block
        marked = "new" if mark is None else mark.state
        # What has no sequences is judged only along with others of its incarnation.
        is_free = block.seq_lo == block.seq_hi and state == "duplicate" and mark is None
        if marked != state and not is_free:
            yield _marked(one.place, block.owner, block.seq_lo, f"it is marked {marked}; it is {state}")
        elif mark is not None and mark[1:] != (*block.owner, block.seq_lo, block.seq_hi):
            yield _marked(one.place, block.owner, block.seq_lo, "its mark has other columns than the block")
    for place, mark in left.items():
        owner = IncarnationId(mark.front_end or "", mark.epoch or 0)
        yield _marked(place, owner, mark.seq_lo or 0, f"{BLOCKS.name} has no such block")


def _marked(place: tuple[int, int], owner: IncarnationId, sequence: int, reason: str) -> UsageBreak:
    return UsageBreak(BLOCK_MARKS.name, reason, *owner, sequence, *place)


def judge_coverage(
    blocks: Iterable[ChainedBlock],
    saved: Iterable[CoverageLine],
    branched: set[IncarnationId],
    expired: ExpiredChain = NOTHING_EXPIRED,
) -> Iterator[UsageBreak]:
    """Yield where ops.coverage says that more or less had come of a front end than these blocks and expired ones."""
    coverage = Coverage.of_lines(expired.lines)
    for one in sorted(blocks, key=lambda one: one[:3]):
        coverage.add(one.block)
    came = {line.owner: line for line in coverage.lines()}
    known = {line.owner: line for line in saved}
    for owner in sorted(came.keys() | known.keys()):
        here, there = _ends(came.get(owner)), _ends(known.get(owner))
        if owner in branched:
            here, there = here[:2], there[:2]
        if here != there:
            reason = f"{BLOCKS.name} has sequences {_spans(here[0])}, and had {_spans(there[0])}"
            if here[0] == there[0]:
                reason = f"by {BLOCKS.name} its end is {here[1:]}, and was {there[1:]}"
            yield UsageBreak(COVERAGE.name, reason, *owner, _first_difference(here[0], there[0]))


def _ends(line: CoverageLine | None) -> tuple[Any, ...]:
    return ((), False, None) if line is None else (tuple(line.ranges), line.is_sealed, line.seal_end)


def _spans(ranges: Sequence[int]) -> str:
    pairs = [f"{low} to {high}" for low, high in zip(ranges[::2], ranges[1::2], strict=True)]
    return ", ".join(pairs[:3]) + (", ..." if len(pairs) > 3 else "") if pairs else "none"


def _first_difference(here: Sequence[int], there: Sequence[int]) -> int:
    """Return the first sequence at which two lists of ranges part."""
    for pair in itertools.zip_longest(here, there):
        if pair[0] != pair[1]:
            return min(end for end in pair if end is not None)
    return 0

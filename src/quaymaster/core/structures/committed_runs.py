"""Which sequence numbers the places of committed messages became, until these messages are gone.

    tail      ── 4,096 at a time ──▶ packed          a row for each run, in the order of places
      ▲                                 ▲
      └── places behind all packed ones └── places before: they stay out of it, in `late`

There is a row for each stage, and it has a time and a first number of its own, whatever its neighbours have: places of
two stages are never side by side. So rows are not joined, but packed: as differences, which are small and much alike.
Of a stream that commits one stage a second a row takes 3 bytes. Unpacked ones take 32: the newest, and those of stages
that were committed long after others of higher numbers.

What a row says ends by rule (`drop`), not when its bytes are freed: where rows lie is no part of the state.

    packed:  places, sequences, times, counts, delays, as u64[rows] each; zlib of these, by bytes of the same weight.
             A place or time is the difference to the one before, a sequence to the end of the row before (of the first
             row: to 0); the differences of sequences and times have their sign in the lowest bit
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

PACKED_ROWS: Final = 4_096
UNPACKED_KEPT: Final = 3
"""So many packed stretches stay unpacked: a walk through a journal asks for places side by side."""

_ROW_BYTES: Final = 32
_PACKED_BYTES: Final = 300
"""What a packed stretch takes in memory besides."""
_COMPRESSION_LEVEL: Final = 6
_ROWS_IN_PIECE: Final = 32_768


class Run(NamedTuple):
    """Messages of a committed stage: their first place and sequence number, how many, and what they were sent with."""

    place: int
    sequence: int
    length: int
    sent_ms: int
    delay_ms: int


class PackedRuns(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A stretch of rows, and what is asked without unpacking it. The order of the fields is a format."""

    place: int
    end_place: int
    """Behind the last one in it."""
    end: int
    """Behind the highest sequence number in it."""
    last_ms: int
    rows: int
    data: bytes


class RunsState(msgspec.Struct, array_like=True, tag=4):
    """Rows of a snapshot that are not packed, and what all are dropped by. The order of the fields is a format."""

    columns: tuple[bytes, bytes, bytes, bytes, bytes]
    head: int = 0
    before_ms: int = 0


class _Rows:
    """Runs in columns, in the order of their places."""

    __slots__ = ("counts", "delays", "places", "sequences", "times")

    def __init__(self) -> None:
        self.places = array("Q")
        self.sequences = array("Q")
        self.times = array("Q")
        self.counts = array("I")
        self.delays = array("I")

    @property
    def columns(self) -> tuple[array[int], ...]:
        return self.places, self.sequences, self.times, self.counts, self.delays

    def __iter__(self) -> Iterator[Run]:
        for place, sequence, sent_ms, length, delay_ms in zip(*self.columns, strict=True):
            yield Run(place, sequence, length, sent_ms, delay_ms)

    def insert(self, run: Run) -> None:
        at = bisect_right(self.places, run.place)
        self.places.insert(at, run.place)
        self.sequences.insert(at, run.sequence)
        self.times.insert(at, run.sent_ms)
        self.counts.insert(at, run.length)
        self.delays.insert(at, run.delay_ms)

    def find(self, place: int) -> Run | None:
        """Return the run that a place is in."""
        at = bisect_right(self.places, place) - 1
        if at < 0 or place >= self.places[at] + self.counts[at]:
            return None
        return Run(self.places[at], self.sequences[at], self.counts[at], self.times[at], self.delays[at])

    def gone(self, head: int, before_ms: int) -> int:
        """Return how many rows in front are dropped."""
        count = 0
        while (
            count < len(self.places)
            and self.sequences[count] + self.counts[count] <= head
            and self.times[count] <= before_ms
        ):
            count += 1
        return count

    def cut(self, count: int) -> None:
        """Remove rows in front."""
        for column in self.columns:
            del column[:count]


class CommittedRuns:
    """The runs of one partition. Another thread may ask while this changes."""

    __slots__ = (
        "_before_ms",
        "_changes",
        "_head",
        "_late",
        "_packed",
        "_packed_below",
        "_packed_bytes",
        "_packed_places",
        "_packed_rows",
        "_tail",
        "_unpacked",
    )

    def __init__(self) -> None:
        self._tail = _Rows()
        self._late = _Rows()
        self._packed: list[PackedRuns] = []
        self._packed_places = array("Q")
        """The first place of each."""
        self._packed_below = 0
        """Places from here on belong to the tail."""
        self._packed_rows = 0
        self._packed_bytes = 0
        self._unpacked: tuple[tuple[PackedRuns, _Rows], ...] = ()
        """The stretches unpacked last, the newest first. Always another tuple, for another thread takes it, too."""
        self._head = 0
        self._before_ms = 0
        self._changes = 0
        """Odd while it changes."""

    def __len__(self) -> int:
        """Return how many rows there are, with such as are dropped and still lie among others."""
        return self._packed_rows + len(self._tail.places) + len(self._late.places)

    @property
    def size_bytes(self) -> int:
        """How much memory all of it takes."""
        return self._packed_bytes + _ROW_BYTES * (len(self._tail.places) + len(self._late.places))

    def add(self, run: Run) -> None:
        """Messages have their numbers."""
        tail = self._tail
        self._changes += 1
        (tail if run.place >= self._packed_below else self._late).insert(run)
        self._changes += 1
        if len(tail.places) >= 2 * PACKED_ROWS:
            self._pack()

    def find(self, place: int) -> Run | None:
        """Return the run of one message: where it has its own number. None: it has none, or is long gone."""
        while True:
            changes = self._changes
            try:
                found = self._look_up(place)
            except IndexError:
                found = None  # there are fewer by now
            if changes == self._changes and not changes & 1:
                break
        if found is None or self._is_dropped(found):
            return None
        return Run(place, found.sequence + place - found.place, 1, found.sent_ms, found.delay_ms)

    def _is_dropped(self, run: Run) -> bool:
        return run.sequence + run.length <= self._head and run.sent_ms <= self._before_ms

    def _look_up(self, place: int) -> Run | None:
        if place >= self._packed_below:
            return self._tail.find(place)
        at = bisect_right(self._packed_places, place) - 1
        found = self._unpack(self._packed[at]).find(place) if at >= 0 else None
        return found if found is not None else self._late.find(place)

    def _unpack(self, packed: PackedRuns) -> _Rows:
        known = self._unpacked
        for each, rows in known:
            if each is packed:
                return rows
        rows = _unpack_rows(packed)
        self._unpacked = ((packed, rows), *known[: UNPACKED_KEPT - 1])
        return rows

    def drop(self, head: int, before_ms: int) -> None:
        """Forget runs whose messages are below `head`, and which were sent up to a time. Neither ever falls."""
        self._head = head = max(head, self._head)
        self._before_ms = before_ms = max(before_ms, self._before_ms)
        gone = 0
        while (
            gone < len(self._packed)
            and self._packed[gone].end <= head
            and self._packed[gone].last_ms <= before_ms
        ):
            gone += 1
        tail, late = self._tail.gone(head, before_ms), self._late.gone(head, before_ms)
        if gone or tail or late:
            self._changes += 1
            for packed in self._packed[:gone]:
                self._packed_rows -= packed.rows
                self._packed_bytes -= len(packed.data) + _PACKED_BYTES
            del self._packed[:gone], self._packed_places[:gone]
            self._tail.cut(tail)
            self._late.cut(late)
            self._changes += 1
        if gone:
            self._unpacked = ()

    def _pack(self) -> None:
        """Pack the older half of the tail."""
        tail = self._tail
        # It takes milliseconds, and so comes before the change: threads that ask meanwhile would wait, busily.
        packed = _pack_rows(list(islice(tail, PACKED_ROWS)))
        self._changes += 1
        self._append(packed)
        tail.cut(PACKED_ROWS)
        self._changes += 1

    def _append(self, packed: PackedRuns) -> None:
        self._packed.append(packed)
        self._packed_places.append(packed.place)
        self._packed_rows += packed.rows
        self._packed_bytes += len(packed.data) + _PACKED_BYTES
        self._packed_below = packed.end_place

    def state(self) -> Iterator[PackedRuns | RunsState]:
        """Return everything as it is now, for a snapshot, in pieces. What is packed is not copied."""
        columns = [late + tail for late, tail in zip(self._late.columns, self._tail.columns, strict=True)]
        return self._pieces(self._packed[:], columns, self._head, self._before_ms)

    @staticmethod
    def _pieces(
        packed: list[PackedRuns], columns: list[array[int]], head: int, before_ms: int
    ) -> Iterator[PackedRuns | RunsState]:
        yield from packed
        # Also without rows of its own: it says which of the packed ones are dropped.
        for at in range(0, max(1, len(columns[0])), _ROWS_IN_PIECE):
            places, sequences, times, counts, delays = (
                column[at : at + _ROWS_IN_PIECE].tobytes() for column in columns
            )
            yield RunsState((places, sequences, times, counts, delays), head, before_ms)

    def load(self, state: PackedRuns | RunsState) -> None:
        """Add a part of what `state` gave, in its order."""
        if isinstance(state, PackedRuns):
            self._append(state)
            return
        rows = _Rows()
        for column, data in zip(rows.columns, state.columns, strict=True):
            column.frombytes(data)
        for run in rows:
            self.add(run)
        self.drop(state.head, state.before_ms)

    def content(self) -> list[Run]:
        """Return what a hash of the state is taken of: all runs, in the order of their places."""
        packed = chain.from_iterable(map(_unpack_rows, self._packed))
        return sorted(run for run in chain(packed, self._late, self._tail) if not self._is_dropped(run))


def _pack_rows(runs: list[Run]) -> PackedRuns:
    places, sequences, times, counts, delays = (array("Q") for _ in range(5))
    place = end = sent_ms = 0
    for run in runs:
        places.append(run.place - place)
        sequences.append(_with_sign_low(run.sequence - end))
        times.append(_with_sign_low(run.sent_ms - sent_ms))
        counts.append(run.length)
        delays.append(run.delay_ms)
        place, end, sent_ms = run.place, run.sequence + run.length, run.sent_ms
    data = b"".join(
        column.tobytes()[weight::8]
        for column in (places, sequences, times, counts, delays)
        for weight in range(8)
    )
    return PackedRuns(
        runs[0].place,
        place + runs[-1].length,
        max(run.sequence + run.length for run in runs),
        max(run.sent_ms for run in runs),
        len(runs),
        zlib.compress(data, _COMPRESSION_LEVEL),
    )


def _unpack_rows(packed: PackedRuns) -> _Rows:
    count = packed.rows
    data = zlib.decompress(packed.data)
    assert len(data) == 5 * 8 * count, f"{len(data)} bytes are not {count} packed runs"
    columns: list[array[int]] = []
    for start in range(0, len(data), 8 * count):
        column = bytearray(8 * count)
        for weight in range(8):
            at = start + weight * count
            column[weight::8] = data[at : at + count]
        columns.append(array("Q", bytes(column)))
    rows = _Rows()
    place = end = sent_ms = 0
    for place_step, sequence_step, time_step, length in zip(*columns[:4], strict=True):
        place += place_step
        sequence = end + _of_sign_low(sequence_step)
        sent_ms += _of_sign_low(time_step)
        end = sequence + length
        rows.places.append(place)
        rows.sequences.append(sequence)
        rows.times.append(sent_ms)
    rows.counts.extend(columns[3].tolist())
    rows.delays.extend(columns[4].tolist())
    return rows


def _with_sign_low(difference: int) -> int:
    return difference << 1 if difference >= 0 else ~(difference << 1)


def _of_sign_low(value: int) -> int:
    return value >> 1 if not value & 1 else ~(value >> 1)

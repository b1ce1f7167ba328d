"""Where each message of a partition lies in the journal: sequence number -> record offset, send time, group.

Dense and positional: the newest entries are packed columns in memory; older ones go, 4,096 at a time, into chunks
kept by a `ChunkKeeper` (a file in a broker, a dict in tests), of which the few last used stay in memory. So a
queued message costs no memory, whatever the backlog.

    chunk:  version u8 · has_groups u8 · reserved u16 · count u32 · first sequence u64
            offsets u64[count] · times u64[count] · groups u64[count] (only with groups)
    time:   send time in ms << 15 | own or queue delay in whole 50 ms slots

A delay is whole slots, or such that it ends where a slot ends: both are found again from the whole slots in it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from quaymaster.core.structures.timers import SLOT_MS

CHUNK_ENTRIES = 4_096
TAIL_ENTRIES_MAX = 2 * CHUNK_ENTRIES
CHUNKS_CACHED = 3
RUN_STEP_ENTRIES = 16
"""Of a run so many entries are compared first, then twice as many each time."""

CHUNK_VERSION = 1

_NEVER = 1 << 64
"""Above every sequence number."""
_NO_OFFSET = (1 << 64) - 1
_DELAY_BITS = 15
_DELAY_MASK = (1 << _DELAY_BITS) - 1
_CHUNK_HEAD = struct.Struct("<BBHIQ")
_STATE_HEAD = struct.Struct("<BBHIQQ")
_CHUNK_REF = struct.Struct("<QQ")


class ChunkKeeper(Protocol):
    """Keeps chunks by number. A freed one may still be read by a snapshot that names it; the keeper sees to that."""

    def write(self, tag: bytes, data: bytes) -> int | None:
        """Store a chunk; return the number to read it by, None when there is no room now."""
        ...

    def read(self, number: int, tag: bytes) -> bytes:
        """Return a chunk's bytes."""
        ...

    def free(self, number: int) -> None:
        """The live state no longer needs the chunk."""
        ...


class MemoryChunks:
    """The in-memory twin of a chunk file."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytes] = {}
        self._next = 0

    def write(self, tag: bytes, data: bytes) -> int:
        self._next += 1
        self._chunks[self._next] = data
        return self._next

    def read(self, number: int, tag: bytes) -> bytes:
        return self._chunks[number]

    def free(self, number: int) -> None:
        """Kept: a snapshot may name it."""


_NO_CHUNKS = MemoryChunks()
"""Of an index that is not attached yet."""


class IndexEntry(NamedTuple):
    """What the index knows of one message. `due_ms` is when its delay ends."""

    offset: int
    sent_ms: int
    due_ms: int
    group: int


class SentRun(NamedTuple):
    """Messages that were sent at once, at consecutive offsets. `delays_ms`: that of each, where they differ."""

    offset: int
    length: int
    sent_ms: int
    delay_ms: int
    groups: array[int] | None = None
    delays_ms: Sequence[int] | None = None


class NoRoomForChunk(Exception):
    """A rebuilt chunk finds no room; what was lost stays lost."""


class _Columns:
    __slots__ = ("first", "groups", "offsets", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.offsets = array("Q")
        self.times = array("Q")
        self.groups: array[int] | None = None

    def head(self, count: int) -> _Columns:
        """Return a copy of the first `count` entries."""
        head = _Columns(self.first)
        head.offsets = self.offsets[:count]
        head.times = self.times[:count]
        if self.groups is not None:
            head.groups = self.groups[:count]
        return head

    def cut(self, count: int) -> None:
        """Drop the first `count` entries."""
        del self.offsets[:count], self.times[:count]
        if self.groups is not None:
            del self.groups[:count]
        self.first += count

    def to_bytes(self) -> bytes:
        groups = self.groups
        head = _CHUNK_HEAD.pack(CHUNK_VERSION, groups is not None, 0, len(self.offsets), self.first)
        return b"".join(
            (
                head,
                self.offsets.tobytes(),
                self.times.tobytes(),
                groups.tobytes() if groups is not None else b"",
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> _Columns:
        version, has_groups, _, count, first = _CHUNK_HEAD.unpack_from(data)
        assert version == CHUNK_VERSION, f"index chunk version {version} is not known"
        columns = cls(first)
        at, size = _CHUNK_HEAD.size, 8 * count
        columns.offsets.frombytes(data[at : at + size])
        columns.times.frombytes(data[at + size : at + 2 * size])
        if has_groups:
            columns.groups = array("Q")
            columns.groups.frombytes(data[at + 2 * size : at + 3 * size])
        return columns


class SequenceIndex:
    """The index of one partition. Sequence numbers are appended densely from `next_sequence`."""

    __slots__ = ("_cache", "_chunks", "_keeper", "_tag", "_tail", "has_groups", "next_sequence")

    def __init__(self, keeper: ChunkKeeper, tag: bytes, first: int = 1) -> None:
        self._keeper = keeper
        self._tag = tag
        self._tail = _Columns(first)
        self._chunks: OrderedDict[int, int] = OrderedDict()  # chunk's first sequence -> the keeper's number
        self._cache: OrderedDict[int, _Columns] = OrderedDict()
        self.next_sequence = first
        """The sequence number the next entry gets."""
        self.has_groups = False
        """Whether any message ever had a group."""

    def append(self, offset: int, sent_ms: int, delay_ms: int, group: int) -> None:
        """Add the entry of the next sequence number."""
        tail = self._tail
        if group:
            if tail.groups is None:
                tail.groups = array("Q", bytes(8 * len(tail.offsets)))
                self.has_groups = True
            tail.groups.append(group)
        elif tail.groups is not None:
            tail.groups.append(0)
        tail.offsets.append(offset)
        tail.times.append(sent_ms << _DELAY_BITS | delay_ms // SLOT_MS)
        self.next_sequence += 1
        if len(tail.offsets) >= TAIL_ENTRIES_MAX:
            self._close()

    def append_run(self, run: SentRun) -> None:
        """Add the entries of the next sequence numbers."""
        offset, count, sent_ms, delay_ms, groups, delays_ms = run
        if delays_ms is None:
            times = array("Q", (sent_ms << _DELAY_BITS | delay_ms // SLOT_MS,)) * count
        else:
            packed = {each_ms: sent_ms << _DELAY_BITS | each_ms // SLOT_MS for each_ms in set(delays_ms)}
            times = array("Q", map(packed.__getitem__, delays_ms))
        done = 0
        while done < count:
            tail = self._tail
            some = min(count - done, max(1, TAIL_ENTRIES_MAX - len(tail.offsets)))
            if groups is not None:
                if tail.groups is None:
                    tail.groups = array("Q", bytes(8 * len(tail.offsets)))
                    self.has_groups = True
                tail.groups.extend(groups[done : done + some])
            elif tail.groups is not None:
                tail.groups.frombytes(bytes(8 * some))
            tail.offsets.extend(range(offset + done, offset + done + some))
            tail.times.extend(times[done : done + some])
            self.next_sequence += some
            done += some
            if len(tail.offsets) >= TAIL_ENTRIES_MAX:
                self._close()

    def entry(self, sequence: int) -> IndexEntry:
        """Return the entry of a sequence number that was appended and not dropped."""
        columns = self._tail
        if sequence < columns.first:
            columns = self._load(sequence)
        at = sequence - columns.first
        packed = columns.times[at]
        sent_ms = packed >> _DELAY_BITS
        delay = packed & _DELAY_MASK
        due_ms = -(-(sent_ms + delay * SLOT_MS) // SLOT_MS) * SLOT_MS if delay else sent_ms
        return IndexEntry(
            columns.offsets[at], sent_ms, due_ms, columns.groups[at] if columns.groups is not None else 0
        )

    def offset_and_sent_ms(self, sequence: int) -> tuple[int, int]:
        """Return where the message's record is and when it was sent."""
        columns = self._tail
        if sequence < columns.first:
            columns = self._load(sequence)
        at = sequence - columns.first
        return columns.offsets[at], columns.times[at] >> _DELAY_BITS

    def sent_ms(self, sequence: int) -> int:
        """Return when the message was sent."""
        columns = self._tail
        if sequence < columns.first:
            columns = self._load(sequence)
        return columns.times[sequence - columns.first] >> _DELAY_BITS

    def due_ms(self, sequence: int) -> int:
        """Return when the delay that the message was sent with ends."""
        columns = self._tail
        if sequence < columns.first:
            columns = self._load(sequence)
        packed = columns.times[sequence - columns.first]
        delay = packed & _DELAY_MASK
        return (
            -(-((packed >> _DELAY_BITS) + delay * SLOT_MS) // SLOT_MS) * SLOT_MS
            if delay
            else packed >> _DELAY_BITS
        )

    def group(self, sequence: int) -> int:
        """Return the hash of the message's group, 0 without one."""
        columns = self._tail
        if sequence < columns.first:
            columns = self._load(sequence)
        return columns.groups[sequence - columns.first] if columns.groups is not None else 0

    def groups_in(self, start: int, stop: int) -> set[int]:
        """Return the hashes of the groups that messages of [start, stop) have."""
        found: set[int] = set()
        while start < stop:
            columns = self._tail if start >= self._tail.first else self._load(start)
            at = start - columns.first
            if columns.groups is not None:
                found.update(columns.groups[at : at + stop - start])
            start = columns.first + len(columns.offsets)
        found.discard(0)
        return found

    def groups_of(self, start: int, stop: int) -> Iterator[tuple[int, array[int]]]:
        """Yield the groups of [start, stop) in packed runs, each with the sequence it begins at."""
        while start < stop:
            columns = self._tail if start >= self._tail.first else self._load(start)
            at = start - columns.first
            end = min(len(columns.offsets), at + stop - start)
            assert columns.groups is not None, "groups are looked for where messages have them"
            yield start, columns.groups[at:end]
            start = columns.first + end

    def end_of_group_run(self, start: int, stop: int, group: int) -> int:
        """Return the first sequence in [start, stop) of another group, or `stop`; at most the end of a chunk.

        Whole stretches are compared at once, so a long run costs little more than a short one.
        """
        columns = self._tail if start >= self._tail.first else self._load(start)
        groups = columns.groups
        assert groups is not None, "runs are looked for where messages have groups"
        low = start - columns.first
        end = min(stop - columns.first, len(groups))
        step = RUN_STEP_ENTRIES
        one = array("Q", (group,)).tobytes()
        while low < end:
            high = min(low + step, end)
            if groups[low:high].tobytes() == one * (high - low):
                low = high
                step *= 2
            elif high - low == 1:
                break
            else:
                end = high
                step = max(1, (high - low) // 2)
        return columns.first + low

    def offsets(self, start: int, stop: int) -> Iterator[array[int]]:
        """Yield the record offsets of [start, stop) in packed runs."""
        while start < stop:
            columns = self._tail if start >= self._tail.first else self._load(start)
            at = start - columns.first
            run = columns.offsets[at : at + stop - start]
            if not run:
                return
            yield run
            start += len(run)

    def offsets_and_times(self, start: int, stop: int) -> Iterator[tuple[array[int], list[int]]]:
        """Yield the record offsets of [start, stop) and when each was sent, in runs."""
        while start < stop:
            columns = self._tail if start >= self._tail.first else self._load(start)
            at = start - columns.first
            end = at + stop - start
            run = columns.offsets[at:end]
            if not run:
                return
            yield run, [packed >> _DELAY_BITS for packed in columns.times[at:end]]
            start += len(run)

    def first_sent_after(self, start: int, stop: int, time_ms: int) -> int:
        """Return the first sequence in [start, stop) sent after `time_ms`, or `stop`.

        Send times must not fall from one sequence to the next.
        """
        return (
            bisect_left(range(start, stop), True, key=lambda sequence: self.sent_ms(sequence) > time_ms)
            + start
        )

    def drop_below(self, sequence: int) -> None:
        """Forget the entries below; whole chunks are given back to the keeper."""
        while self._chunks:
            first = next(iter(self._chunks))
            if first + CHUNK_ENTRIES > sequence:
                break
            self._keeper.free(self._chunks.pop(first))
            self._cache.pop(first, None)
        tail = self._tail
        done = sequence - tail.first
        if done > 0 and (done >= CHUNK_ENTRIES or done == len(tail.offsets)):
            tail.cut(min(done, len(tail.offsets)))

    def clear(self) -> None:
        """Forget every entry (the queue is gone)."""
        for number in self._chunks.values():
            self._keeper.free(number)
        self._chunks.clear()
        self._cache.clear()
        self._tail = _Columns(self.next_sequence)

    def chunk_numbers(self) -> list[int]:
        """Return the keeper's numbers of all chunks in use."""
        return list(self._chunks.values())

    @property
    def first_in_chunks(self) -> int:
        """The first sequence number that lies in a chunk, or in the tail when there are no chunks."""
        return next(iter(self._chunks), self._tail.first)

    def lost_chunks(self, lost: type[Exception]) -> list[int]:
        """Read every chunk; return the first sequences of those the keeper raises `lost` for."""
        found: list[int] = []
        for first, number in self._chunks.items():
            try:
                self._keeper.read(number, self._chunk_tag(first))
            except lost:
                found.append(first)
        return found

    def replace_chunk(self, first: int, columns: _Columns) -> None:
        """Put a rebuilt chunk in the place of a lost one; NoRoomForChunk when the keeper cannot take it."""
        number = self._keeper.write(self._chunk_tag(first), columns.to_bytes())
        if number is None:
            raise NoRoomForChunk(first)
        self._keeper.free(self._chunks[first])
        self._chunks[first] = number
        self._cache.pop(first, None)

    def to_bytes(self) -> bytes:
        """Return chunk references and the tail, for a snapshot."""
        refs = b"".join(_CHUNK_REF.pack(first, number) for first, number in self._chunks.items())
        head = _STATE_HEAD.pack(CHUNK_VERSION, self.has_groups, 0, len(self._chunks), self.next_sequence, 0)
        return head + refs + self._tail.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, keeper: ChunkKeeper, tag: bytes) -> SequenceIndex:
        """Rebuild from `to_bytes`."""
        _, has_groups, _, count, next_sequence, _ = _STATE_HEAD.unpack_from(data)
        index = cls(keeper, tag, next_sequence)
        index.has_groups = bool(has_groups)
        at = _STATE_HEAD.size
        for _ in range(count):
            first, number = _CHUNK_REF.unpack_from(data, at)
            index._chunks[first] = number
            at += _CHUNK_REF.size
        index._tail = _Columns.from_bytes(data[at:])
        return index

    def _chunk_tag(self, first: int) -> bytes:
        """Return what a chunk is asked for by: an older snapshot must not take a slot's new tenant for its own."""
        return b"%b@%d" % (self._tag, first)

    def _close(self) -> None:
        head = self._tail.head(CHUNK_ENTRIES)
        number = self._keeper.write(self._chunk_tag(head.first), head.to_bytes())
        if number is None:
            return  # it stays in memory until a later append finds room
        self._tail.cut(CHUNK_ENTRIES)
        self._chunks[head.first] = number
        self._remember(head)

    def _load(self, sequence: int) -> _Columns:
        for columns in reversed(self._cache.values()):
            if columns.first <= sequence < columns.first + CHUNK_ENTRIES:
                return columns
        first = self._chunk_of(sequence)
        columns = _Columns.from_bytes(self._keeper.read(self._chunks[first], self._chunk_tag(first)))
        self._remember(columns)
        return columns

    def _chunk_of(self, sequence: int) -> int:
        """Return the first sequence of the chunk that holds `sequence`. Chunks follow one another without a gap."""
        anchor = next(iter(self._chunks), sequence + 1)
        first = sequence - (sequence - anchor) % CHUNK_ENTRIES
        assert first in self._chunks, f"sequence {sequence} has no index entry"
        return first

    def _remember(self, columns: _Columns) -> None:
        cache = self._cache
        cache[columns.first] = columns
        cache.move_to_end(columns.first)
        while len(cache) > CHUNKS_CACHED:
            cache.popitem(last=False)


class GroupIndex(SequenceIndex):
    """What a consumer group has of its log's index: the same entries, in the same memory, up to an end of its own.

    It is one of a snapshot when the log's may be of another moment, before it (`attach`) or behind it. Entries that the
    log dropped are gone here, too: callers keep above the log's head.
    """

    __slots__ = ()

    def __init__(self, next_sequence: int = 1) -> None:
        super().__init__(_NO_CHUNKS, b"", next_sequence)

    def attach(self, log: SequenceIndex) -> None:
        """Read the entries of this index from now on; the chunks that were last used are remembered here."""
        self._keeper, self._tag = log._keeper, log._tag
        self._tail, self._chunks = log._tail, log._chunks
        self.has_groups = self.has_groups or log.has_groups

    def append(self, offset: int, sent_ms: int, delay_ms: int, group: int) -> None:
        """The log has one more entry (or had it already)."""
        self.next_sequence += 1
        if group:
            self.has_groups = True

    def append_run(self, run: SentRun) -> None:
        """The log has so many more entries."""
        self.next_sequence += run.length
        if run.groups is not None:
            self.has_groups = True

    def drop_below(self, sequence: int) -> None:
        """The entries are the log's."""

    def clear(self) -> None:
        """The entries are the log's."""

    def chunk_numbers(self) -> list[int]:
        """Return none: they are the log's."""
        return []

    def lost_chunks(self, lost: type[Exception]) -> list[int]:
        """Return none: they are the log's."""
        return []

    def to_bytes(self) -> bytes:
        """Return how far it goes, for a snapshot."""
        return _STATE_HEAD.pack(CHUNK_VERSION, self.has_groups, 0, 0, self.next_sequence, 0)

    @classmethod
    def of_bytes(cls, data: bytes) -> GroupIndex:
        """Rebuild from `to_bytes`; to be attached."""
        _, has_groups, _, _, next_sequence, _ = _STATE_HEAD.unpack(data)
        index = cls(next_sequence)
        index.has_groups = bool(has_groups)
        return index


class IndexRebuild:
    """Rebuilds lost chunks from one look at the records of a partition, in the order of their sequence numbers.

    It needs the memory of one chunk, and writes each as soon as a later record is met; then `finish`. A sequence
    without a record is of a gone message. It gets the send time of the one before (in front of all records, of the
    one behind), because send times are searched by halves. Its group is the one in `groups`: a message that is gone
    now may be waiting in the snapshot that the rebuild is for, and is taken out of its group by a later record.
    """

    __slots__ = ("_columns", "_first", "_firsts", "_groups", "_index", "_stop")

    def __init__(
        self, index: SequenceIndex, firsts: Sequence[int], groups: Mapping[int, int] | None = None
    ) -> None:
        self._index = index
        self._groups = groups or {}
        self._firsts = sorted(firsts, reverse=True)
        self._begin()

    def wants(self, sequence: int) -> bool:
        """Return whether the entry of `sequence` is lost; chunks wholly below it are written (NoRoomForChunk)."""
        while sequence >= self._stop:
            self._write()
        return sequence >= self._first

    def fill(self, sequence: int, entry: IndexEntry) -> None:
        """Put in an entry that is wanted."""
        columns, at = self._columns, sequence - self._first
        columns.offsets[at] = entry.offset
        columns.times[at] = entry.sent_ms << _DELAY_BITS | (entry.due_ms - entry.sent_ms) // SLOT_MS
        self._fill_group(at, entry.group)

    def finish(self) -> None:
        """Write the chunks that are left; NoRoomForChunk as in `wants`."""
        while self._first < _NEVER:
            self._write()

    def _begin(self) -> None:
        """Continue with the next lost chunk, if there is one."""
        self._first = self._firsts.pop() if self._firsts else _NEVER
        self._stop = self._first + CHUNK_ENTRIES
        self._columns = _Columns(self._first)
        if self._first < _NEVER:
            self._columns.offsets = array("Q", b"\xff" * (8 * CHUNK_ENTRIES))
            self._columns.times = array("Q", bytes(8 * CHUNK_ENTRIES))

    def _write(self) -> None:
        self._fill_gaps()
        self._index.replace_chunk(self._first, self._columns)
        self._begin()

    def _fill_group(self, at: int, group: int) -> None:
        columns = self._columns
        if group:
            if columns.groups is None:
                columns.groups = array("Q", bytes(8 * CHUNK_ENTRIES))
            columns.groups[at] = group

    def _fill_gaps(self) -> None:
        """Chunks follow one another, and lost ones below are rebuilt already: the one before can be asked."""
        offsets, times = self._columns.offsets, self._columns.times
        if self._first > self._index.first_in_chunks:
            sent_ms = self._index.sent_ms(self._first - 1)
        else:
            sent_ms = next((time for time in times if time), 0) >> _DELAY_BITS
        for at, offset in enumerate(offsets):
            if offset == _NO_OFFSET:
                offsets[at] = 0
                times[at] = sent_ms << _DELAY_BITS
                self._fill_group(at, self._groups.get(self._first + at, 0))
            else:
                sent_ms = times[at] >> _DELAY_BITS


class ScatteredRebuild:
    """An `IndexRebuild` for records in any order: it keeps 40 bytes of each message that is wanted until `finish`."""

    __slots__ = ("_firsts", "_found", "_rebuild")

    def __init__(
        self, index: SequenceIndex, firsts: Sequence[int], groups: Mapping[int, int] | None = None
    ) -> None:
        self._rebuild = IndexRebuild(index, firsts, groups)
        self._firsts = frozenset(firsts)
        self._found = tuple(array("Q") for _ in range(5))

    def wants(self, sequence: int) -> bool:
        """Return whether the entry of `sequence` is lost."""
        anchor = next(iter(self._firsts))  # chunks follow one another
        return sequence - (sequence - anchor) % CHUNK_ENTRIES in self._firsts

    def fill(self, sequence: int, entry: IndexEntry) -> None:
        """Put in an entry that is wanted."""
        for column, number in zip(self._found, (sequence, *entry), strict=True):
            column.append(number)

    def finish(self) -> None:
        """Write the chunks; NoRoomForChunk when they cannot be kept."""
        sequences, *entry = self._found
        for at in sorted(range(len(sequences)), key=sequences.__getitem__):
            is_wanted = self._rebuild.wants(sequences[at])  # it writes what is below
            assert is_wanted, "what is not wanted was not filled in"
            self._rebuild.fill(sequences[at], IndexEntry(*(column[at] for column in entry)))
        self._rebuild.finish()

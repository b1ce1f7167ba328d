"""Which ids were seen within a window of time, at about 37 bytes an id: deduplication ids and retried sends.

Entries lie in slots of packed columns, oldest slot first. A full slot is sorted once and never changes: it is one
piece of bytes, which goes into every snapshot as it is. A roaring bitmap of the hashes' top 20 bits answers almost
every "not seen" without looking further; more bits would give each entry a container of its own, of 60 bytes. Whole
slots leave when their newest entry is older than the window; entries are compared with the window one by one.

A window may have a thousand slots, and to ask each would cost more than the rest of a send. A *union* knows the top
26 bits of 256 full slots' hashes, and what is not in it is in none of them:

    slots:   ▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢ ▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢▢ ▢▢▢▢▢▢  ▢ filling
    unions:  └──── first ───┘ └──── second ──┘ none yet: each is asked

Ids may come by the hundred thousand at once, with a commit. To sort them into slots takes tens of milliseconds. So
they wait in a *backlog*, where they are found too, and go into slots some at a time: with each question, and in steps
between requests.

    slot:  count u64 · hash high half u64[] (sorted when full) · low half u64[] · offset u64[] · time u64[]
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from pyroaring import BitMap

ID_BYTES = 16
SLOT_ENTRIES = 4_096
FILTER_BITS = 20
UNION_BITS = 26
UNION_SLOTS = 256
UNION_SLOTS_MIN = 16
"""With fewer there is no union: it would take as much memory as they."""
DIGESTED_AT_ONCE = 1_024
"""So many ids of the backlog go into slots in one step: at most one slot is closed."""
_HALVES = struct.Struct("<QQ")
_SLOT_HEAD = struct.Struct("<Q")


class _OpenSlot:
    """The slot that is being filled. Every send adds to it, few are looked up: the filter follows when asked."""

    __slots__ = ("_in_filter", "filter", "identities", "newest_ms", "offsets", "times")

    def __init__(self) -> None:
        self.identities = bytearray()
        self.offsets = array("Q")
        self.times = array("Q")
        self.filter = BitMap()
        self._in_filter = 0
        self.newest_ms = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def complete_filter(self) -> None:
        """Let the filter know all entries."""
        if self._in_filter < len(self.offsets):
            added = array("Q", self.identities[self._in_filter * ID_BYTES :])[::2]
            self.filter.update([high >> 64 - FILTER_BITS for high in added])
            self._in_filter = len(self.offsets)

    def find(self, identity: bytes, since_ms: int) -> int | None:
        """Return the newest offset of the id no older than `since_ms`, or None."""
        found: int | None = None
        found_ms = since_ms
        at = self.identities.find(identity)
        while at >= 0:
            entry, rest = divmod(at, ID_BYTES)
            if not rest and self.times[entry] >= found_ms:
                found, found_ms = self.offsets[entry], self.times[entry]
            at = self.identities.find(identity, at + 1)
        return found

    def rows(self) -> list[tuple[int, bytes, int]]:
        """Return (time, id, offset) of each entry."""
        return [
            (self.times[at], bytes(self.identities[at * ID_BYTES : (at + 1) * ID_BYTES]), self.offsets[at])
            for at in range(len(self.offsets))
        ]

    def closed(self) -> _ClosedSlot:
        """Return the same entries, sorted."""
        self.complete_filter()
        columns = self._columns()
        order = sorted(range(len(self)), key=columns[0].__getitem__)
        packed = _packed([array("Q", [column[at] for at in order]) for column in columns])
        return _ClosedSlot(packed, self.filter, self.newest_ms)

    def to_bytes(self) -> bytes:
        return _packed(self._columns())

    def _columns(self) -> list[array[int]]:
        halves = array("Q", self.identities)
        return [halves[::2], halves[1::2], self.offsets, self.times]

    @classmethod
    def from_bytes(cls, data: bytes) -> _OpenSlot:
        slot = cls()
        size = (len(data) - _SLOT_HEAD.size) // 4
        halves = array("Q", bytes(2 * size))
        for at, half in enumerate((slice(0, None, 2), slice(1, None, 2))):
            start = _SLOT_HEAD.size + at * size
            halves[half] = array("Q", data[start : start + size])
        slot.identities = bytearray(halves)
        for at, column in enumerate((slot.offsets, slot.times), 2):
            start = _SLOT_HEAD.size + at * size
            column.frombytes(data[start : start + size])
        slot.newest_ms = max(slot.times)
        return slot


class _ClosedSlot:
    """A full slot: views into its bytes."""

    __slots__ = ("_packed", "filter", "high", "low", "newest_ms", "offsets", "times")

    def __init__(self, packed: bytes, seen: BitMap, newest_ms: int) -> None:
        columns = memoryview(packed)[_SLOT_HEAD.size :].cast("Q")
        count = len(columns) // 4
        self._packed = packed
        self.high = columns[:count]
        self.low = columns[count : 2 * count]
        self.offsets = columns[2 * count : 3 * count]
        self.times = columns[3 * count :]
        self.filter = seen
        self.filter.run_optimize()
        self.newest_ms = newest_ms

    @classmethod
    def from_bytes(cls, packed: bytes) -> _ClosedSlot:
        columns = memoryview(packed)[_SLOT_HEAD.size :].cast("Q")
        count = len(columns) // 4
        return cls(packed, _filter_of(packed, count, FILTER_BITS), max(columns[3 * count :]))

    def __len__(self) -> int:
        return len(self.high)

    def find(self, identity: bytes, since_ms: int) -> int | None:
        """Return the newest offset of the id no older than `since_ms`, or None."""
        high, low = _HALVES.unpack(identity)
        column = self.high
        found: int | None = None
        found_ms = since_ms
        at = bisect_left(column, high)
        while at < len(column) and column[at] == high:
            if self.low[at] == low and self.times[at] >= found_ms:
                found, found_ms = self.offsets[at], self.times[at]
            at += 1
        return found

    def rows(self) -> list[tuple[int, bytes, int]]:
        """Return (time, id, offset) of each entry."""
        return [
            (self.times[at], _HALVES.pack(self.high[at], self.low[at]), self.offsets[at])
            for at in range(len(self.high))
        ]

    def union_filter(self) -> BitMap:
        """Return what a union has to know of the ids."""
        return _filter_of(self._packed, len(self), UNION_BITS)

    def to_bytes(self) -> bytes:
        """Return the bytes it consists of: nothing is copied."""
        return self._packed


def top_of(identity: bytes) -> int:
    """Return the first UNION_BITS of an id, as `RecentIds.tops` has them."""
    return int.from_bytes(identity[:8], "little") >> 64 - UNION_BITS


def _packed(columns: list[array[int]]) -> bytes:
    return _SLOT_HEAD.pack(len(columns[0])) + b"".join(column.tobytes() for column in columns)


def _filter_of(packed: bytes, count: int, bits: int) -> BitMap:
    """Return the first bits of each id's high half in the bytes of a full slot.

    All are shifted at once, as one large number; one by one takes twenty times as long.
    """
    uppers = array("I", packed[_SLOT_HEAD.size : _SLOT_HEAD.size + 8 * count])[1::2]
    kept = int.from_bytes(((1 << bits) - 1).to_bytes(4, "little") * count, "little")
    shifted = int.from_bytes(uppers.tobytes(), "little") >> 32 - bits & kept
    return BitMap(array("I", shifted.to_bytes(4 * count, "little")))


class _Waiting(NamedTuple):
    """Ids of the backlog, one behind the other, of records at consecutive offsets."""

    identities: bytes
    offset: int
    time_ms: int

    def find(self, identity: bytes, first: int) -> int | None:
        """Return the offset of an id, if it is among those from a place on."""
        at = self.identities.rfind(identity, first * ID_BYTES)
        while at >= 0 and at % ID_BYTES:
            at = self.identities.rfind(identity, first * ID_BYTES, at + ID_BYTES - 1)
        return self.offset + at // ID_BYTES if at >= 0 else None


class RecentIds:
    """16-byte ids -> the offset of the record that used them, for `window_ms` of record time.

    With `entries_max` the oldest slots go when there are more entries, whatever their age.
    """

    __slots__ = (
        "_backlog",
        "_begin",
        "_digested",
        "_left_union",
        "_slots",
        "_unions",
        "entries_max",
        "window_ms",
    )

    def __init__(self, window_ms: int, entries_max: int | None = None) -> None:
        self.window_ms = window_ms
        self.entries_max = entries_max
        self._slots: list[_OpenSlot | _ClosedSlot] = []  # an empty deque has 600 bytes
        self._unions: tuple[BitMap, ...] = ()
        self._left_union = 0
        """How many slots of the first union are gone."""
        self._backlog: list[_Waiting] = []
        self._digested = 0
        """How many ids of the first of the backlog are in slots already."""
        self._begin: int | None = None
        """No offset that was noted is below this; None while there is none."""

    def __len__(self) -> int:
        waiting = sum(len(run.identities) // ID_BYTES for run in self._backlog) - self._digested
        return sum(len(slot) for slot in self._slots) + waiting

    def add(self, identity: bytes, offset: int, time_ms: int) -> None:
        """Remember an id from `time_ms` on, and forget what is past the window."""
        if self._begin is None:
            self._begin = offset
        if self._backlog and self.digest(DIGESTED_AT_ONCE):
            self._backlog.append(_Waiting(identity, offset, time_ms))
            return
        slots = self._slots
        slot = slots[-1] if slots else None
        if type(slot) is not _OpenSlot:
            slot = self._begun(time_ms)
        slot.identities += identity
        slot.offsets.append(offset)
        slot.times.append(time_ms)
        slot.newest_ms = time_ms
        if len(slot.offsets) >= SLOT_ENTRIES:
            self._close(slot)

    def add_run(self, identities: bytes, offset: int, time_ms: int) -> None:
        """Remember ids that follow one another, used by records at consecutive offsets."""
        if self._begin is None:
            self._begin = offset
        self._backlog.append(_Waiting(identities, offset, time_ms))

    def digest(self, entries_max: int) -> bool:
        """Put so many ids of the backlog into slots, or all there are; return whether there are more."""
        while entries_max > 0 and self._backlog:
            run, start = self._backlog[0], self._digested
            stop = min(len(run.identities) // ID_BYTES, start + entries_max)
            self._put(run.identities[start * ID_BYTES : stop * ID_BYTES], run.offset + start, run.time_ms)
            entries_max -= stop - start
            self._digested = stop
            if stop * ID_BYTES == len(run.identities):
                del self._backlog[0]
                self._digested = 0
        return bool(self._backlog)

    def digesting(self) -> Iterator[None]:
        """Put all of the backlog into slots, some with each step."""
        while self.digest(DIGESTED_AT_ONCE):
            yield

    def _put(self, identities: bytes, offset: int, time_ms: int) -> None:
        done, count = 0, len(identities) // ID_BYTES
        while done < count:
            slot = self._slots[-1] if self._slots else None
            if type(slot) is not _OpenSlot:
                slot = self._begun(time_ms)
            some = min(count - done, SLOT_ENTRIES - len(slot.offsets))
            slot.identities += identities[done * ID_BYTES : (done + some) * ID_BYTES]
            slot.offsets.extend(range(offset + done, offset + done + some))
            slot.times.extend(array("Q", (time_ms,)) * some)
            slot.newest_ms = time_ms
            done += some
            if len(slot.offsets) >= SLOT_ENTRIES:
                self._close(slot)

    def _begun(self, time_ms: int) -> _OpenSlot:
        slots = self._slots
        slot = _OpenSlot()
        slots.append(slot)
        while slots[0].newest_ms and slots[0].newest_ms <= time_ms - self.window_ms:
            self._drop_oldest()
        while self.entries_max is not None and len(slots) * SLOT_ENTRIES > self.entries_max + SLOT_ENTRIES:
            self._drop_oldest()
        return slot

    def _close(self, slot: _OpenSlot) -> None:
        self._slots[-1] = closed = slot.closed()
        self._unite(closed)

    def may_know_below(self, offset: int) -> bool:
        """Tell whether an id may have been noted for an offset below this one. Takes no look at any."""
        return self._begin is not None and self._begin < offset

    def known_tops(self, now_ms: int) -> BitMap:
        """Return the top bits of all ids within the window, for `has_any`; there is no backlog."""
        assert not self._backlog, "what waits in a backlog is in no filter"
        filters: list[BitMap] = []
        for slot in reversed(self._slots):
            if slot.newest_ms <= now_ms - self.window_ms:
                break
            if type(slot) is _OpenSlot:
                slot.complete_filter()
            filters.append(slot.filter)
        return BitMap.union(*filters) if filters else BitMap()

    def tops(self) -> BitMap | None:
        """Return `top_of` each id that is known, and of some that are forgotten; None while there is a backlog."""
        if self._backlog:
            return None
        filters = [*self._unions]
        in_unions = len(self._unions) * UNION_SLOTS - self._left_union
        for place, slot in enumerate(self._slots):
            if type(slot) is _OpenSlot:
                filters.append(BitMap([high >> 64 - UNION_BITS for high in array("Q", slot.identities)[::2]]))
            elif type(slot) is _ClosedSlot and place >= in_unions:
                filters.append(slot.union_filter())
        return BitMap.union(*filters) if filters else BitMap()

    def has_any(self, identities: bytes, known_tops: BitMap, now_ms: int) -> bool:
        """Tell whether one of the ids, which follow one another, was noted less than a window ago.

        The filters, which `known_tops` joins, answer for most of them at once.
        """
        tops = [high >> 64 - FILTER_BITS for high in array("Q", identities)[::2]]
        common = BitMap(tops) & known_tops
        return bool(common) and any(
            self.find(identities[at * ID_BYTES : (at + 1) * ID_BYTES], now_ms) is not None
            for at, top in enumerate(tops)
            if top in common
        )

    def find(self, identity: bytes, now_ms: int) -> int | None:
        """Return the offset noted for the id less than a window ago, or None. The newest one counts."""
        since_ms = now_ms - self.window_ms + 1
        if self._backlog and self.digest(DIGESTED_AT_ONCE):
            for at in range(len(self._backlog) - 1, -1, -1):
                run = self._backlog[at]
                waiting = run.find(identity, 0 if at else self._digested) if run.time_ms >= since_ms else None
                if waiting is not None:
                    return waiting
        high = _HALVES.unpack(identity)[0]
        slots = self._slots
        full = len(slots)
        if slots and type(slots[-1]) is _OpenSlot:
            slots[-1].complete_filter()
            full -= 1
        stop = len(slots)
        for number in range(len(self._unions), -1, -1):
            start = min(max(0, number * UNION_SLOTS - self._left_union), full)
            # Behind what the last union has are those that are in none: each of them is asked.
            if number == len(self._unions) or high >> 64 - UNION_BITS in self._unions[number]:
                offset = _find_in(slots[start:stop], identity, high, since_ms)
                if offset is not None:
                    return offset
            stop = start
        return None

    def entries(self, now_ms: int) -> list[tuple[int, bytes, int]]:
        """Return (time, id, offset) of all within the window, in a canonical order."""
        since_ms = now_ms - self.window_ms + 1
        self.digest(len(self))
        return sorted(row for slot in self._slots for row in slot.rows() if row[0] >= since_ms)

    def pieces(self) -> list[bytes]:
        """Return the entries for a snapshot, as pieces that follow one another; only the newest is made now.

        Of a backlog all are made: who has time digests that before, in steps.
        """
        self.digest(len(self))
        return [slot.to_bytes() for slot in self._slots]

    @classmethod
    def from_bytes(cls, data: bytes, window_ms: int, entries_max: int | None = None) -> RecentIds:
        """Rebuild from the joined `pieces`; the filters are made again."""
        result = cls(window_ms, entries_max)
        result._begin = 0 if data else None
        at = 0
        while at < len(data):
            (length,) = _SLOT_HEAD.unpack_from(data, at)
            end = at + _SLOT_HEAD.size + 4 * 8 * length
            packed = data[at:end]
            if length >= SLOT_ENTRIES:
                closed = _ClosedSlot.from_bytes(packed)
                result._slots.append(closed)
                result._unite(closed)
            else:
                result._slots.append(_OpenSlot.from_bytes(packed))
            at = end
        return result

    def _unite(self, slot: _ClosedSlot) -> None:
        """Let the union of the newest slot, which is this one, know its ids; begin one when there are enough."""
        number, place = divmod(len(self._slots) - 1 + self._left_union, UNION_SLOTS)
        if number < len(self._unions):
            self._unions[number].update(slot.union_filter())
        elif place == UNION_SLOTS_MIN - 1:
            begun = self._slots[-UNION_SLOTS_MIN:]
            filters = [slot.union_filter() for slot in begun if type(slot) is _ClosedSlot]
            self._unions = (*self._unions, BitMap.union(*filters))

    def _drop_oldest(self) -> None:
        """Let go of the oldest slot, which is full: there is always one behind it."""
        del self._slots[0]
        self._left_union += 1
        if self._left_union == UNION_SLOTS:
            self._left_union = 0
            self._unions = self._unions[1:]


def _find_in(slots: list[_OpenSlot | _ClosedSlot], identity: bytes, high: int, since_ms: int) -> int | None:
    """Return the newest offset of the id in these slots, oldest first, no older than `since_ms`; or None."""
    top = high >> 64 - FILTER_BITS
    for slot in reversed(slots):
        if slot.newest_ms < since_ms:
            break
        if top in slot.filter:
            offset = slot.find(identity, since_ms)
            if offset is not None:
                return offset
    return None

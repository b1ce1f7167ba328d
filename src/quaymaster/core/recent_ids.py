"""Which ids were seen within a window of time, at about 30 bytes an id: deduplication ids and retried sends.

Entries lie in slots of packed columns, oldest slot first. A full slot is sorted once and never changes: it is one
piece of bytes, which goes into every snapshot as it is. A roaring bitmap of the hashes' top 20 bits answers almost
every "not seen" without looking further; more bits would give each entry a container of its own, of 60 bytes. Whole
slots leave when their newest entry is older than the window; entries are compared with the window one by one.

    slot:  count u64 · hash high half u64[] (sorted when full) · low half u64[] · offset u64[] · time u64[]
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left

from pyroaring import BitMap

ID_BYTES = 16
SLOT_ENTRIES = 4_096
FILTER_SHIFT = 64 - 20
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
            self.filter.update([high >> FILTER_SHIFT for high in added])
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

    def sealed(self) -> _SealedSlot:
        """Return the same entries, sorted."""
        self.complete_filter()
        columns = self._columns()
        order = sorted(range(len(self)), key=columns[0].__getitem__)
        packed = _packed([array("Q", [column[at] for at in order]) for column in columns])
        return _SealedSlot(packed, self.filter, self.newest_ms)

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


class _SealedSlot:
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
    def from_bytes(cls, packed: bytes) -> _SealedSlot:
        columns = memoryview(packed)[_SLOT_HEAD.size :].cast("Q")
        count = len(columns) // 4
        seen = BitMap([high >> FILTER_SHIFT for high in columns[:count]])
        return cls(packed, seen, max(columns[3 * count :]))

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

    def to_bytes(self) -> bytes:
        """Return the bytes it consists of: nothing is copied."""
        return self._packed


def _packed(columns: list[array[int]]) -> bytes:
    return _SLOT_HEAD.pack(len(columns[0])) + b"".join(column.tobytes() for column in columns)


class RecentIds:
    """16-byte ids -> the offset of the record that used them, for `window_ms` of record time.

    With `entries_max` the oldest slots go when there are more entries, whatever their age.
    """

    __slots__ = ("_slots", "entries_max", "window_ms")

    def __init__(self, window_ms: int, entries_max: int | None = None) -> None:
        self.window_ms = window_ms
        self.entries_max = entries_max
        self._slots: list[_OpenSlot | _SealedSlot] = []  # few, and an empty deque has 600 bytes

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots)

    def add(self, identity: bytes, offset: int, time_ms: int) -> None:
        """Remember an id from `time_ms` on, and forget what is past the window."""
        slots = self._slots
        slot = slots[-1] if slots else None
        if type(slot) is not _OpenSlot:
            slot = _OpenSlot()
            slots.append(slot)
            self.forget(time_ms)
            while (
                self.entries_max is not None and len(slots) * SLOT_ENTRIES > self.entries_max + SLOT_ENTRIES
            ):
                del slots[0]
        slot.identities += identity
        slot.offsets.append(offset)
        slot.times.append(time_ms)
        slot.newest_ms = time_ms
        if len(slot.offsets) >= SLOT_ENTRIES:
            slots[-1] = slot.sealed()

    def find(self, identity: bytes, now_ms: int) -> int | None:
        """Return the offset noted for the id less than a window ago, or None. The newest one counts."""
        top = _HALVES.unpack(identity)[0] >> FILTER_SHIFT
        since_ms = now_ms - self.window_ms + 1
        slots = self._slots
        if slots and type(slots[-1]) is _OpenSlot:
            slots[-1].complete_filter()
        for slot in reversed(slots):
            if slot.newest_ms < since_ms:
                break
            if top in slot.filter:
                offset = slot.find(identity, since_ms)
                if offset is not None:
                    return offset
        return None

    def forget(self, now_ms: int) -> None:
        """Drop the slots that are wholly past the window."""
        slots = self._slots
        while slots and slots[0].newest_ms and slots[0].newest_ms <= now_ms - self.window_ms:
            del slots[0]

    def entries(self, now_ms: int) -> list[tuple[int, bytes, int]]:
        """Return (time, id, offset) of all within the window, in a canonical order."""
        since_ms = now_ms - self.window_ms + 1
        return sorted(row for slot in self._slots for row in slot.rows() if row[0] >= since_ms)

    def pieces(self) -> list[bytes]:
        """Return the entries for a snapshot, as pieces that follow one another; only the newest is made now."""
        return [slot.to_bytes() for slot in self._slots]

    @classmethod
    def from_bytes(cls, data: bytes, window_ms: int, entries_max: int | None = None) -> RecentIds:
        """Rebuild from the joined `pieces`; the filters are made anew."""
        result = cls(window_ms, entries_max)
        at = 0
        while at < len(data):
            (length,) = _SLOT_HEAD.unpack_from(data, at)
            end = at + _SLOT_HEAD.size + 4 * 8 * length
            packed = data[at:end]
            kind = _SealedSlot if length >= SLOT_ENTRIES else _OpenSlot
            result._slots.append(kind.from_bytes(packed))
            at = end
        return result

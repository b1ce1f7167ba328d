"""Deduplication ids of windows that are longer than records are sure to be kept, each with the message it stands for.

The ids are `RecentIds`, whose values are numbers of entries. What an entry says lies beside them, in the order in which
they came, and leaves a block at a time once all of it is past the window:

    block:  4,096 x (time u64 · message id 16 · sequence u64)

A block that is full never changes: it is one piece of bytes, which goes into every snapshot as it is. An id takes about
70 bytes. None is forgotten early: who adds one asks first how many there are (`live`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from pyroaring import BitMap

from quaymaster.core.structures.ids.recent_ids import SLOT_ENTRIES, RecentIds

_COLUMNS: Final = 4
_BLOCK_BYTES: Final = 8 * _COLUMNS * SLOT_ENTRIES
_MESSAGE_ID = struct.Struct("<QQ")
_BASE = struct.Struct("<Q")


class KeptMessage(NamedTuple):
    """The message that an id stands for."""

    sequence: int
    message_id: bytes


class KeptIds:
    """16-byte ids -> the message that was stored with each, for `window_ms` of record time."""

    __slots__ = ("_base", "_full", "_ids", "_open")

    def __init__(self, window_ms: int) -> None:
        self._ids = RecentIds(window_ms)
        self._base = 0
        """The number of the first entry that is there."""
        self._full: list[memoryview[int]] = []
        self._open = array("Q")

    @property
    def window_ms(self) -> int:
        """For how long an id is known."""
        return self._ids.window_ms

    def set_window(self, window_ms: int) -> None:
        """Know ids for so long from now on; of those that had run out, the ones that are still here are known again."""
        self._ids.window_ms = window_ms

    def add(self, identity: bytes, message: KeptMessage, time_ms: int) -> None:
        """A message was stored with this id."""
        number = self._end
        self._open.extend((time_ms, *_MESSAGE_ID.unpack(message.message_id), message.sequence))
        self._ids.add(identity, number, time_ms)
        if len(self._open) == _COLUMNS * SLOT_ENTRIES:
            self._full.append(memoryview(self._open.tobytes()).cast("Q"))
            self._open = array("Q")
            self._drop(time_ms)

    def find(self, identity: bytes, now_ms: int) -> KeptMessage | None:
        """Return the message that was stored with the id less than a window ago, or None."""
        number = self._ids.find(identity, now_ms)
        if number is None or number < self._base:
            return None
        at, row = divmod(number - self._base, SLOT_ENTRIES)
        _, high, low, sequence = self._block(at)[_COLUMNS * row : _COLUMNS * row + _COLUMNS]
        return KeptMessage(sequence, _MESSAGE_ID.pack(high, low))

    def live(self, now_ms: int) -> int:
        """Return how many ids are within the window."""
        since_ms = now_ms - self.window_ms
        at = bisect_right(self._full, since_ms, key=lambda block: block[-_COLUMNS])
        block = self._block(at)
        gone = bisect_right(range(0, len(block), _COLUMNS), since_ms, key=block.__getitem__)
        return self._end - self._base - at * SLOT_ENTRIES - gone

    def tops(self) -> BitMap:
        """Return the first bits of all ids that are known, as `RecentIds.tops` does."""
        tops = self._ids.tops()
        assert tops is not None, "ids that are kept come one by one"
        return tops

    def content(self, now_ms: int) -> list[tuple[int, bytes, KeptMessage | None]]:
        """Return (time, id, message) of all within the window, in a canonical order."""
        return [
            (time_ms, identity, self.find(identity, now_ms))
            for time_ms, identity, _ in self._ids.entries(now_ms)
        ]

    def id_pieces(self) -> list[bytes]:
        """Return what a snapshot says of the ids."""
        return self._ids.pieces()

    def message_pieces(self) -> list[bytes]:
        """Return what a snapshot says of their messages."""
        return [_BASE.pack(self._base), *(bytes(block.obj) for block in self._full), self._open.tobytes()]

    @classmethod
    def from_bytes(cls, ids: bytes, messages: bytes, window_ms: int) -> KeptIds:
        """Rebuild from the joined pieces."""
        found = cls(window_ms)
        found._ids = RecentIds.from_bytes(ids, window_ms)
        (found._base,) = _BASE.unpack_from(messages)
        at = _BASE.size
        while len(messages) - at >= _BLOCK_BYTES:
            found._full.append(memoryview(messages[at : at + _BLOCK_BYTES]).cast("Q"))
            at += _BLOCK_BYTES
        found._open.frombytes(messages[at:])
        return found

    @property
    def _end(self) -> int:
        """The number that the next entry gets."""
        return self._base + len(self._full) * SLOT_ENTRIES + len(self._open) // _COLUMNS

    def _block(self, at: int) -> memoryview[int] | array[int]:
        return self._full[at] if at < len(self._full) else self._open

    def _drop(self, time_ms: int) -> None:
        """Let go of blocks that are past the window."""
        full = self._full
        while full and full[0][-_COLUMNS] <= time_ms - self.window_ms:
            del full[0]
            self._base += SLOT_ENTRIES

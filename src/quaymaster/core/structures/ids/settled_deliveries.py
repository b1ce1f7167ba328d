"""Which deliveries finished their messages lately: a consumer that asks again is told so, and every other one is not.

A delivery is (sequence, delivery count, resets): counts begin again with each reset of the partition. Its id is a hash
of that, because `RecentIds` wants ids whose first bits differ.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from quaymaster.core.structures.ids.recent_ids import RecentIds

SETTLED_WINDOW_MS: Final = 300_000
SETTLED_IDS_MAX: Final = 1_000_000
BY_DELETE: Final = 0
"""What finished a message: a delete. Anything else is a 64-bit hash of what did."""

_DELIVERY = struct.Struct("<QIQ")


class SettledDeliveries:
    """The deliveries that finished their messages within the window; the oldest go where there are too many."""

    __slots__ = ("_ids",)

    def __init__(self, entries_max: int = SETTLED_IDS_MAX) -> None:
        self._ids = RecentIds(SETTLED_WINDOW_MS, entries_max)

    def note(
        self, sequence: int, delivery_count: int, resets: int, time_ms: int, *, by: int = BY_DELETE
    ) -> None:
        """A delivery finished its message; `by` says what did."""
        self._ids.add(_id_of(sequence, delivery_count, resets), by, time_ms)

    def find(self, sequence: int, delivery_count: int, resets: int, now_ms: int) -> int | None:
        """Return what finished the message by this delivery within the window, None if it did not."""
        return self._ids.find(_id_of(sequence, delivery_count, resets), now_ms)

    def content(self, now_ms: int) -> list[tuple[int, bytes, int]]:
        """Return all within the window, in a canonical order."""
        return self._ids.entries(now_ms)

    def pieces(self) -> list[bytes]:
        """Return what a snapshot says of them."""
        return self._ids.pieces()

    @classmethod
    def from_bytes(cls, data: bytes, entries_max: int = SETTLED_IDS_MAX) -> SettledDeliveries:
        """Rebuild from the joined `pieces`."""
        found = cls(entries_max)
        found._ids = RecentIds.from_bytes(data, SETTLED_WINDOW_MS, entries_max)
        return found


def _id_of(sequence: int, delivery_count: int, resets: int) -> bytes:
    return xxhash.xxh3_128_digest(_DELIVERY.pack(sequence, delivery_count, resets))

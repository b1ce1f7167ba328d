"""Which ids came within the last seconds, at one byte for each of a fixed number of places, however many come.

    id ── 19 bits ──▶ place:  the second, modulo 255, in which an id of this place came last; 0: none did

An id that came is always known. Few others are taken for one: those of a place where another came, and of a place that
was marked a multiple of 255 s ago. So it says for which ids it is worth to look, and nothing else.
"""

from __future__ import annotations

from typing import Final

MARKED_S: Final = 10
"""An id is known for at least so long."""
PLACE_BITS: Final = 19
_PLACES: Final = 1 << PLACE_BITS
_CYCLE_S: Final = 255


class RecentMarks:
    """Marks of 16-byte hashes. It takes 512 KiB from the first mark on."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = bytearray()

    def mark(self, identity: bytes, now_ms: int) -> bool:
        """Mark an id; return whether it may have been marked within the last `MARKED_S` seconds."""
        seconds = self._seconds
        if not seconds:
            seconds = self._seconds = bytearray(_PLACES)
        place = int.from_bytes(identity[:4]) & _PLACES - 1
        now = now_ms // 1000 % _CYCLE_S + 1
        before = seconds[place]
        seconds[place] = now
        return before != 0 and (now - before) % _CYCLE_S <= MARKED_S

"""Some of many events in each second, so that no key takes the room of others.

    event of a key ──▶ fewer than events_max in this second, fewer of its key than the key's part? ──▶ taken
                                                                                          no ──▶ left out

A key's part is events_max divided by the keys of this second or of the last, whichever are more, and by two at
least: what one key alone asks for leaves half for those that come later in the second.
"""

from __future__ import annotations

from typing import Final

KEYS_MAX: Final = 1_024
"""So many keys of a second are known; events of others are left out."""


class FairWindow:
    """Takes up to `events_max` events in each second. Times are milliseconds of any clock that does not jump."""

    __slots__ = ("_before", "_counts", "_events_max", "_second", "_taken")

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._second = 0
        self._taken = 0
        self._counts: dict[str, int] = {}
        """How many were taken of each key that had events in this second."""
        self._before = 0
        """How many keys had events in the last second."""

    def takes(self, key: str, now_ms: float) -> bool:
        """Count an event, and return whether it is taken."""
        second = int(now_ms // 1000)
        if second != self._second:
            self._before = len(self._counts) if second == self._second + 1 else 0
            self._second, self._taken, self._counts = second, 0, {}
        counts = self._counts
        count = counts.get(key)
        if count is None:
            if len(counts) >= KEYS_MAX:
                return False
            count = counts[key] = 0
        part = max(1, self._events_max // max(2, len(counts), self._before))
        if self._taken >= self._events_max or count >= part:
            return False
        counts[key] = count + 1
        self._taken += 1
        return True

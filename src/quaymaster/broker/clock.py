"""Queue time: the wall clock, carried by the monotonic one, and what a jump of it holds up.

Stamps never go back (`core/journal` sees to that); between two looks at the wall clock they advance with the
monotonic one, so a step of the wall clock changes nothing at once. A start that finds the wall clock more than an
hour ahead of the journal's last stamp, and a jump that large while running, hold expiry back: a machine that boots
in 2099 deletes nothing. Expiry goes on when an operator says that the clock is right, or by itself when queue time
and wall clock have agreed for an hour (a server that was switched off overnight).
"""

from __future__ import annotations

import time
from collections.abc import Callable

JUMP_MS = 3_600_000
HOLD_MS = 3_600_000


class QueueClock:
    """Milliseconds since 1970 that pass evenly. `last_stamp_ms` is the journal's, 0 when it is empty."""

    def __init__(
        self,
        *,
        last_stamp_ms: int,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._offset_ms = max(last_stamp_ms, wall_ms()) - monotonic_ms()
        self._held_since_ms: int | None = None
        if last_stamp_ms and abs(wall_ms() - last_stamp_ms) > JUMP_MS:
            self._held_since_ms = monotonic_ms()

    @property
    def expiry_is_held(self) -> bool:
        """Whether messages must not expire, because the clock may be wrong."""
        return self._held_since_ms is not None

    def time_ms(self) -> int:
        """Return the present queue time."""
        return self._offset_ms + self._monotonic_ms()

    def ahead_of_wall_ms(self) -> int:
        """Return how far queue time is ahead of the wall clock (negative: behind)."""
        return self.time_ms() - self._wall_ms()

    def follow_wall(self) -> None:
        """Take up small differences to the wall clock (its discipline); hold expiry while they are large."""
        ahead_ms = self.ahead_of_wall_ms()
        if abs(ahead_ms) > JUMP_MS:
            self._held_since_ms = self._monotonic_ms()
            return
        if ahead_ms < 0:
            self._offset_ms -= ahead_ms
        if self._held_since_ms is not None and self._monotonic_ms() - self._held_since_ms > HOLD_MS:
            self._held_since_ms = None

    def release_expiry(self) -> None:
        """An operator says that the wall clock is right: follow it, and let messages expire again."""
        self._offset_ms = max(self._offset_ms, self._wall_ms() - self._monotonic_ms())
        self._held_since_ms = None

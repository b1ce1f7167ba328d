"""The clocks of a host, read for the queue time of a replica of a journal; see `core/replication/queue_time`."""

from __future__ import annotations

import time
from collections.abc import Callable

from quaymaster.core.replication.queue_time import QueueTime

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ms() -> int:
    """Return the time of a clock that does not jump, and goes on while the machine is suspended."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def wall_ms() -> int:
    """Return the milliseconds since 1970, as this host believes."""
    return time.time_ns() // 1_000_000


class QueueClock:
    """Queue time as this host reads it. `last_stamp_ms` is the journal's, 0 when it is empty."""

    def __init__(
        self,
        *,
        last_stamp_ms: int,
        wall_ms: Callable[[], int] = wall_ms,
        monotonic_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self.queue_time = QueueTime(last_stamp_ms, monotonic_ms())
        self.queue_time.note_wall(wall_ms(), monotonic_ms())

    @property
    def expiry_is_held(self) -> bool:
        """Whether messages must not expire, because a clock may be wrong."""
        return self.queue_time.expiry_is_held

    @property
    def gap_ms(self) -> int:
        """How far wall clocks were ahead of queue time at the last look (negative: behind)."""
        return self.queue_time.gap_ms

    @property
    def stepped_ms(self) -> int:
        """How far queue time stepped when this replica was elected last."""
        return self.queue_time.stepped_ms

    def time_ms(self) -> int:
        """Return the present queue time."""
        return self.queue_time.at(self._monotonic_ms())

    def follow_wall(self) -> None:
        """Look at the wall clock; approach it, or hold expiry when it is far."""
        now_ms = self._monotonic_ms()
        self.queue_time.note_wall(self._wall_ms(), now_ms)
        self.queue_time.follow(now_ms)

    def accept(self) -> None:
        """An operator says that the wall clocks are right: follow them, and let messages expire again."""
        now_ms = self._monotonic_ms()
        self.queue_time.note_wall(self._wall_ms(), now_ms)
        self.queue_time.accept(now_ms)

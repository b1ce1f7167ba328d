"""How long the event loop was held: a timer that notes how late it comes.

While the loop is held by one piece of work, everybody waits. A tick is due every few milliseconds; how late it is
says how long the loop did nothing else. A wait for a processor that other processes had (the system counts it) is
none of ours and taken off; what stays are our own work, and our own waits for a lock or the disk.

    busy ──20 ticks with little to do──▶ idle (ten times fewer ticks) ──a tick with much to do──▶ busy

A pause shorter than a tick's interval may be seen in part only. On an idle loop that interval is long, but then the
processor time used since the last tick is that of the pause, and counts as such.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from quaymaster.monitoring.metrics import Histogram, Sample

PAUSE_MIN_S: Final = 0.001
"""What is shorter is no pause."""

IDLE_SHARE: Final = 0.1
IDLE_AFTER_TICKS: Final = 20
IDLE_SLOWER: Final = 10
"""How many times longer a tick's interval is on an idle loop."""

WINDOW_S: Final = 60
"""The longest pause that is shown is that of the last minute."""

RUN_DELAY_FILE: Final = "/proc/thread-self/schedstat"
"""Linux: nanoseconds run, nanoseconds waited for a processor, times run."""


class Pause(NamedTuple):
    """One pause. `own_s`: `wall_s` without the wait for a processor; `cpu_s`: processor time of the loop's thread."""

    at_s: float
    own_s: float
    wall_s: float
    cpu_s: float


class Pauses:
    """What the ticks found: a histogram of all, and the longest in each of the last seconds.

    Of a second the longest own time is kept, and the most processor time, which may be another pause's: on a crowded
    machine a pause is long when a thread of ours that has the interpreter's lock has no processor.
    """

    def __init__(self) -> None:
        self.durations = Histogram()
        self._longest: deque[Pause] = deque()

    def note(self, pause: Pause) -> None:
        """Count a pause."""
        self.durations.observe(pause.own_s)
        longest = self._longest
        if not longest or int(longest[-1].at_s) != int(pause.at_s):
            longest.append(pause)
        else:
            other = longest[-1]
            longer = pause if pause.own_s > other.own_s else other
            longest[-1] = longer._replace(cpu_s=max(pause.cpu_s, other.cpu_s))
        self._forget(pause.at_s)

    def longest(self, now_s: float) -> list[Pause]:
        """Return the longest pause of each second of the last minute that had one, oldest first."""
        self._forget(now_s)
        return list(self._longest)

    def samples(self, now_s: float) -> Iterable[Sample]:
        """Return the longest pause of the last minute, and the most processor time of one."""
        pauses = self.longest(now_s)
        longest = max(pauses, key=lambda pause: pause.own_s, default=Pause(0, 0, 0, 0))
        cpu_s = max((pause.cpu_s for pause in pauses), default=0.0)
        for part, seconds in (("own", longest.own_s), ("wall", longest.wall_s), ("cpu", cpu_s)):
            yield Sample("quaymaster_event_loop_longest_pause_seconds", seconds, (part,))

    def _forget(self, now_s: float) -> None:
        while self._longest and self._longest[0].at_s < now_s - WINDOW_S:
            self._longest.popleft()


class TickInterval:
    """How long until the next tick: often while the loop has work, seldom while it has none."""

    def __init__(self, busy_s: float) -> None:
        self._busy_s = busy_s
        self._calm_ticks = 0

    @property
    def is_idle(self) -> bool:
        """Whether the loop has had little to do for a while."""
        return self._calm_ticks >= IDLE_AFTER_TICKS

    def next_s(self, gap_s: float, cpu_s: float) -> float:
        """Return the next interval, when `cpu_s` of the `gap_s` since the last tick were used."""
        self._calm_ticks = self._calm_ticks + 1 if cpu_s < IDLE_SHARE * gap_s else 0
        return self._busy_s * IDLE_SLOWER if self.is_idle else self._busy_s


def measure_pause(
    *, at_s: float, interval_s: float, gap_s: float, cpu_s: float, delay_s: float, was_idle: bool
) -> Pause | None:
    """Return what a tick says that came `gap_s` after the last one and was due after `interval_s`; None: no pause.

    Since the last tick the thread used `cpu_s` and waited `delay_s` for a processor.
    """
    late_s = gap_s - interval_s
    own_s = late_s - delay_s
    if was_idle:
        own_s = max(own_s, cpu_s)
    if own_s < PAUSE_MIN_S:
        return None
    return Pause(at_s, own_s, max(late_s, own_s), min(cpu_s, own_s))


class LoopWatch:
    """Ticks on the running loop from `start` to `stop`."""

    def __init__(self, interval_s: float) -> None:
        self.pauses = Pauses()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._interval = TickInterval(interval_s)
        self._interval_s = interval_s
        self._was_idle = False
        self._at_s = self._cpu_s = self._delay_s = 0.0
        self._run_delay: int | None = None
        with suppress(OSError):  # not Linux, or not told
            self._run_delay = os.open(RUN_DELAY_FILE, os.O_RDONLY | os.O_CLOEXEC)

    def start(self) -> None:
        """Begin to tick."""
        self._at_s, self._cpu_s, self._delay_s = time.monotonic(), time.thread_time(), self._delayed_s()
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._run_delay is not None:
            os.close(self._run_delay)
            self._run_delay = None

    def samples(self) -> Iterable[Sample]:
        """Return the longest pause of the last minute, for `Metrics.add_source`."""
        return self.pauses.samples(time.monotonic())

    def longest(self) -> list[Pause]:
        """Return the longest pause of each second of the last minute that had one, oldest first."""
        return self.pauses.longest(time.monotonic())

    def _tick(self) -> None:
        now_s, cpu_s, delay_s = time.monotonic(), time.thread_time(), self._delayed_s()
        gap_s, used_s = now_s - self._at_s, cpu_s - self._cpu_s
        pause = measure_pause(
            at_s=now_s,
            interval_s=self._interval_s,
            gap_s=gap_s,
            cpu_s=used_s,
            delay_s=delay_s - self._delay_s,
            was_idle=self._was_idle,
        )
        if pause is not None:
            self.pauses.note(pause)
        self._at_s, self._cpu_s, self._delay_s = now_s, cpu_s, delay_s
        self._interval_s = self._interval.next_s(gap_s, used_s)
        self._was_idle = self._interval.is_idle
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def _delayed_s(self) -> float:
        """Return how long this thread has waited for a processor since it began; 0 where that is not known."""
        if self._run_delay is None:
            return 0.0
        return int(os.pread(self._run_delay, 64, 0).split()[1]) / 1e9

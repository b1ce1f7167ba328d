"""What a simulated cell runs on: one heap of events, a random source for each concern, clocks that lie, a story.

Nothing waits and nothing runs beside anything else, so a run depends on its seed alone. Times are whole microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

MS = 1_000
SECOND = 1_000_000
START_MS = 1_700_000_000_000
"""The wall clock when a run begins."""


class Violation(AssertionError):
    """An invariant does not hold; `offset` is the journal's, where one is concerned."""

    def __init__(self, invariant: str, message: str, offset: int | None = None) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.offset = offset
        self._message = message

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str, int | None]]:
        """Let it go from one process to another whole."""
        return Violation, (self.invariant, self._message, self.offset)


class Story:
    """What happened, in order. Kept only when a run is repeated to be read: a line costs more than an event."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, int, str, str, tuple[int, int] | None]] = []

    def tell(self, number: int, now_us: int, who: str, what: str, offsets: tuple[int, int] | None) -> None:
        """Note an event; `offsets` is the stretch of the journal it is about."""
        self.lines.append((number, now_us, who, what, offsets))

    def render(self, last: int, offset: int | None) -> str:
        """Return the last lines, and before them every line that is about an offset."""
        first = max(0, len(self.lines) - last)
        about = [
            line
            for line in self.lines[:first]
            if offset is not None and line[4] is not None and line[4][0] <= offset < line[4][1]
        ]
        rendered = [_render(line) for line in self.lines[first:]]
        if about:
            heading = [f"about offset {offset}:", *map(_render, about), f"the last {last} events:"]
            return "\n".join(heading + rendered)
        return "\n".join(rendered)


def _render(line: tuple[int, int, str, str, tuple[int, int] | None]) -> str:
    number, now_us, who, what, _ = line
    return f"{number:8d} {now_us / SECOND:11.6f} s  {who:<10} {what}"


class Kernel:
    """The heap of events. `count` is the number of the event that is happening."""

    def __init__(self, seed: int, *, story: Story | None = None) -> None:
        self.seed = seed
        self.now_us = 0
        self.count = 0
        self.story = story
        self.faults: Counter[str] = Counter()
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._added = 0

    def random_for(self, concern: str) -> Random:
        """Return a source of its own for each concern, so that a change to one leaves the others as they were."""
        return Random(f"{self.seed}/{concern}")

    def at(self, time_us: int, act: Callable[..., None], *arguments: Any) -> None:
        """Let something happen at a time."""
        self._added += 1
        heappush(self._heap, (time_us, self._added, act, arguments))

    def after(self, delay_us: int, act: Callable[..., None], *arguments: Any) -> None:
        """Let something happen after a while."""
        self._added += 1
        heappush(self._heap, (self.now_us + delay_us, self._added, act, arguments))

    def run_until(self, end_us: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Let everything happen up to a time, or until `is_done`, which is asked now and then; return whether it is."""
        heap = self._heap
        next_look_us = self.now_us
        while heap and heap[0][0] <= end_us:
            time_us, _, act, arguments = heappop(heap)
            self.now_us = time_us
            self.count += 1
            act(*arguments)
            if is_done is not None and time_us >= next_look_us:
                if is_done():
                    return True
                next_look_us = time_us + 100 * MS
        self.now_us = max(self.now_us, end_us)
        return is_done is not None and is_done()

    def tell(self, who: str, what: str, offsets: tuple[int, int] | None = None) -> None:
        """Note what happened, where a story is wanted. Ask `story` first where making `what` costs something."""
        if self.story is not None:
            self.story.tell(self.count, self.now_us, who, what, offsets)

    def fault(self, name: str) -> None:
        """Count a fault that was injected."""
        self.faults[name] += 1


class Clock:
    """A node's two clocks: one that only advances (at its own rate), and a wall clock that may jump."""

    def __init__(self, kernel: Kernel, *, offset_ms: int = 0, rate: float = 1.0) -> None:
        self._kernel = kernel
        self.offset_ms = offset_ms
        self.rate = rate

    def monotonic_ms(self) -> int:
        """Milliseconds since the run began, as this node counts them."""
        return int(self._kernel.now_us * self.rate) // MS

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as this node believes."""
        return START_MS + self.offset_ms + int(self._kernel.now_us * self.rate) // MS

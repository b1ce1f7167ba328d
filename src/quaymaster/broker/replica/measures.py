"""What the host of a replica counts for those who watch it: commands by their result, turns, commits.

On the path of every command: keep each call well under a microsecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

from quaymaster.monitoring.metrics import Histogram

OK: Final = "OK"
EMPTY: Final = "empty"
"""The result of a receive that found no message."""


class Measures:
    """Belongs to the event loop's thread. The counters only grow."""

    __slots__ = ("_clock", "_done", "_failed", "_written", "commits", "empty_receives", "turns")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._done: dict[type, int] = {}
        self._failed: dict[tuple[type, type], int] = {}
        self.empty_receives = 0
        self.turns = Histogram()
        """How long turns took that decided commands."""
        self.commits = Histogram()
        """From the end of a batch's decisions to its commit."""
        self._written: deque[tuple[int, float]] = deque()
        """Batches of this leader that are not committed: where each ends, and since when it is on its way."""

    def answered(self, kind: type, answer: object) -> None:
        """A command of this kind was answered."""
        if isinstance(answer, Exception):
            key = kind, type(answer)
            self._failed[key] = self._failed.get(key, 0) + 1
            return
        try:
            self._done[kind] += 1
        except KeyError:
            self._done[kind] = 1

    def commands(self) -> Iterator[tuple[str, str, int]]:
        """Yield command, result and how many there were. Results are OK, `empty`, or the class of an error."""
        for kind, number in self._done.items():
            yield kind.__name__, OK, number
        for (kind, error), number in self._failed.items():
            yield kind.__name__, error.__name__, number
        yield "Receive", EMPTY, self.empty_receives

    def wrote(self, end: int) -> None:
        """A leader's batch that ends there is on its way."""
        self._written.append((end, self._clock()))

    def committed(self, commit: int) -> None:
        """All below it is committed."""
        written = self._written
        if written and written[0][0] <= commit:
            now_s = self._clock()
            while written and written[0][0] <= commit:
                self.commits.observe(now_s - written.popleft()[1])

    def deposed(self) -> None:
        """It leads no longer: what is on its way is up to others."""
        self._written.clear()

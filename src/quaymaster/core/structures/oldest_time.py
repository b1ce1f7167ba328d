"""The earliest of very many times, which come and go: to the second, at the price of one heap of distinct seconds."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

STALE_MAX: Final = 1_000
"""So many seconds that nothing has any more are kept in the heap, besides those that something has."""


class OldestTime:
    """Times in whole seconds; each may be there several times."""

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []

    def add(self, second: int) -> None:
        """There is one more of a time."""
        count = self._counts.get(second, 0)
        self._counts[second] = count + 1
        if not count:
            heappush(self._heap, second)
            if len(self._heap) > 2 * len(self._counts) + STALE_MAX:
                self._heap = sorted(self._counts)

    def remove(self, second: int) -> None:
        """There is one less of a time that was added."""
        count = self._counts[second] - 1
        if count:
            self._counts[second] = count
        else:
            del self._counts[second]

    def first(self) -> int | None:
        """Return the earliest, None when there is none."""
        heap, counts = self._heap, self._counts
        while heap and heap[0] not in counts:
            heappop(heap)
        return heap[0] if heap else None

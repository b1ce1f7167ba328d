"""Work of several flows that is more than fits in one turn: deficit round robin by size, each flow in its own order.

    add ──▶ the flow's queue ──▶ its turn: a quantum more to spend ──▶ taken while the next one costs no more than that

Every item is moved once, and a turn costs what it takes: it does not matter how much waits behind.

Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin", 1995.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Flow(Generic[T]):
    __slots__ = ("deficit", "items")

    def __init__(self) -> None:
        self.deficit = 0
        self.items: deque[tuple[int, T]] = deque()


class FairTurns(Generic[T]):
    """Items that wait, by flow. A flow may take `quantum` more in each of its turns."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._flows: dict[Hashable, _Flow[T]] = {}
        """Those with items, in the order of their turns."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, flow: Hashable, cost: int, item: T) -> None:
        """Let an item wait behind those of its flow."""
        found = self._flows.get(flow)
        if found is None:
            found = self._flows[flow] = _Flow()
        found.items.append((cost, item))
        self._count += 1

    def take(self, count_max: int, cost_max: int) -> list[T]:
        """Return the items of a turn, at least one if any waits: so many at most, and until they cost so much."""
        taken: list[T] = []
        cost_taken = 0
        while self._count and len(taken) < count_max and cost_taken < cost_max:
            name, flow = next(iter(self._flows.items()))
            flow.deficit += self._quantum
            items = flow.items
            while items and items[0][0] <= flow.deficit and len(taken) < count_max and cost_taken < cost_max:
                cost, item = items.popleft()
                flow.deficit -= cost
                cost_taken += cost
                self._count -= 1
                taken.append(item)
            # A flow that waits for nothing saves nothing up.
            del self._flows[name]
            if items:
                self._flows[name] = flow
        return taken

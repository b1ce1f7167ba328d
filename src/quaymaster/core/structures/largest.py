"""Which of many things has most of something, known at once however many there are; their numbers change by one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class Largest(Generic[Thing]):
    """Things by how many each has. One that has none is not kept."""

    __slots__ = ("_most", "_with")

    def __init__(self) -> None:
        self._with: dict[int, dict[Thing, None]] = {}
        """Which things have so many."""
        self._most = 0

    def count(self, thing: Thing, before: int, now: int) -> None:
        """Note that a thing had so many, and has one more or one less."""
        assert abs(now - before) == 1, "the next that has most has one less at most"
        if before:
            del self._with[before][thing]
            if not self._with[before]:
                del self._with[before]
        if now:
            self._with.setdefault(now, {})[thing] = None
        if now > self._most or (before == self._most and before not in self._with):
            self._most = now

    def find(self) -> Thing | None:
        """Return what has most, of several the one that has had so many for longest; None while nothing has any."""
        return next(iter(self._with[self._most])) if self._most else None

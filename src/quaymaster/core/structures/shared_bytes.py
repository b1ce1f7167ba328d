"""A bound on bytes for several who keep what they could do without: who has most forgets first.

add ──more than bytes_max──▶ who added, if it has more than its part, else the largest, forgets its oldest ──▶ …
"""

from __future__ import annotations

from typing import Protocol


class Keeper(Protocol):
    """One of those who share."""

    size_bytes: int

    def forget_oldest(self) -> bool:
        """Forget the oldest that can be forgotten, and say so by `drop`; false when there is none."""


class SharedBytes:
    """So many bytes for all who joined. One who keeps nothing any more leaves."""

    __slots__ = ("_keepers", "bytes_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._keepers: list[Keeper] = []

    def join(self, keeper: Keeper) -> None:
        """Let another one share."""
        self._keepers.append(keeper)

    def leave(self, keeper: Keeper) -> None:
        """What one has kept counts no longer."""
        self._keepers.remove(keeper)
        self.used -= keeper.size_bytes

    def without(self, keeper: Keeper) -> SharedBytes:
        """Let one leave, and return memory of its own, in which it keeps nothing more."""
        self.leave(keeper)
        alone = SharedBytes(0)
        alone.join(keeper)
        alone.used = keeper.size_bytes
        return alone

    def add(self, keeper: Keeper, size: int) -> None:
        """Say that one keeps so much more, which it counts already; the most may be forgotten for it."""
        self.used += size
        while self.used > self.bytes_max:
            has_more = keeper.size_bytes * len(self._keepers) > self.bytes_max
            largest = keeper if has_more else max(self._keepers, key=_size_of)
            if not largest.forget_oldest():
                return  # it may keep one thing that is larger than its part

    def drop(self, size: int) -> None:
        """Say that so much is not kept any more."""
        self.used -= size


def _size_of(keeper: Keeper) -> int:
    return keeper.size_bytes

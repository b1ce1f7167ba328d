"""When messages come back or come due: a wheel of 50 ms slots.

Due times are rounded up to the slot's end when they are decided and stored so, hence nothing is ever early, and
what happens at a time does not depend on how often the wheel was turned.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from quaymaster.core.sequences import SequenceSet

SLOT_MS = 50


def round_up_to_slot_ms(time_ms: int) -> int:
    """Return the first slot end at or after `time_ms`."""
    return -(-time_ms // SLOT_MS) * SLOT_MS


class TimerWheel:
    """Sequence numbers by due time. An entry may be stale: the owner compares what it finds with its own row."""

    __slots__ = ("_due_times", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, SequenceSet] = {}
        self._due_times: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, sequence: int, due_ms: int) -> None:
        """Note that something about `sequence` is due at `due_ms` (a slot end)."""
        slot = self._slots.get(due_ms)
        if slot is None:
            slot = self._slots[due_ms] = SequenceSet()
            heappush(self._due_times, due_ms)
        slot.add(sequence)

    def discard(self, sequence: int, due_ms: int) -> None:
        """Forget the entry, if it is there."""
        slot = self._slots.get(due_ms)
        if slot is not None:
            slot.discard(sequence)

    def next_due_ms(self) -> int | None:
        """Return the earliest due time with an entry, or None."""
        while self._due_times:
            due_ms = self._due_times[0]
            if self._slots[due_ms]:
                return due_ms
            del self._slots[heappop(self._due_times)]
        return None

    def is_due(self, now_ms: int) -> bool:
        """Return whether `take_due` has anything to give (or to clear away)."""
        return bool(self._due_times) and self._due_times[0] <= now_ms

    def take_due(self, now_ms: int) -> SequenceSet | None:
        """Remove and return the earliest slot that is due, or None; call again for the next."""
        while self._due_times and self._due_times[0] <= now_ms:
            slot = self._slots.pop(heappop(self._due_times))
            if slot:
                return slot
        return None

    def slots(self) -> list[tuple[int, SequenceSet]]:
        """Return what is in the wheel, by due time."""
        return sorted((due_ms, slot) for due_ms, slot in self._slots.items() if slot)

    def load(self, slots: list[tuple[int, SequenceSet]]) -> None:
        """Fill an empty wheel with what `slots` gave."""
        self._slots = dict(slots)
        self._due_times = list(self._slots)
        heapify(self._due_times)

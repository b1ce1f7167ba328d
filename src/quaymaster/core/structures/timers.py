"""When messages come back or come due: a wheel of slots, most of 50 ms.

Due times are rounded up to the slot's end when they are decided and stored so, hence nothing is ever early, and
what happens at a time does not depend on how often the wheel was turned. Visibility timeouts of FIFO queues are
not rounded: their slots are of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from pyroaring import BitMap64

from quaymaster.core.structures.sequences import SequenceSet

SLOT_MS = 50
SLOTS_AT_A_TIME = 256
STALE_TIMES_MAX = 64
"""So many due times without an entry are kept, besides one for each slot, before they are cleared away."""


def round_up_to_slot_ms(time_ms: int) -> int:
    """Return the first slot end at or after `time_ms`."""
    return -(-time_ms // SLOT_MS) * SLOT_MS


_NOTHING: dict[int, SequenceSet] = {}
"""No slot is frozen. Shared by all wheels that never were, and never added to."""


class WorkLeft:
    """How many entries may still be worked off before others get their turn."""

    __slots__ = ("entries",)

    def __init__(self, entries: int) -> None:
        self.entries = entries


class TimerWheel:
    """Sequence numbers by due time. An entry may be stale: the owner compares what it finds with its own row."""

    __slots__ = ("_due_times", "_frozen", "_slots", "_thawed")

    def __init__(self) -> None:
        self._slots: dict[int, SequenceSet] = {}
        self._due_times: list[int] = []
        self._frozen: dict[int, SequenceSet] = _NOTHING
        self._thawed: list[tuple[int, bytes]] | None = None

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, sequence: int, due_ms: int) -> None:
        """Note that something about `sequence` is due at `due_ms` (of most timers a slot end)."""
        self._opened(due_ms).add(sequence)

    def add_all(self, sequences: Sequence[int], due_ms: int) -> None:
        """Note the same about several sequences, in ascending order."""
        self._opened(due_ms).update(BitMap64(sequences))

    def _opened(self, due_ms: int) -> SequenceSet:
        slot = self._slots.get(due_ms)
        if slot is None:
            slot = self._slots[due_ms] = SequenceSet()
            heappush(self._due_times, due_ms)
        elif due_ms in self._frozen:
            self._thaw(due_ms)
        return slot

    def discard(self, sequence: int, due_ms: int) -> None:
        """Forget the entry, if it is there."""
        slot = self._slots.get(due_ms)
        if slot is None:
            return
        if due_ms in self._frozen:
            self._thaw(due_ms)
        slot.discard(sequence)
        if not slot:
            # Its time stays in the heap; when those outnumber the slots, the heap is rebuilt.
            del self._slots[due_ms]
            if len(self._due_times) > 2 * len(self._slots) + STALE_TIMES_MAX:
                self._due_times = list(self._slots)
                heapify(self._due_times)

    def next_due_ms(self) -> int | None:
        """Return the earliest due time with an entry, or None."""
        while self._due_times:
            if self._due_times[0] in self._slots:
                return self._due_times[0]
            heappop(self._due_times)
        return None

    def take_due(self, now_ms: int) -> tuple[int, SequenceSet] | None:
        """Remove and return due time and entries of the earliest slot that is due, or None; call again."""
        while self._due_times and self._due_times[0] <= now_ms:
            due_ms = heappop(self._due_times)
            slot = self._slots.pop(due_ms, None)
            if slot is not None:
                return due_ms, slot
        return None

    def is_due(self, now_ms: int) -> bool:
        """Return whether `take_due` may find something."""
        return bool(self._due_times) and self._due_times[0] <= now_ms

    def take_some_due(self, now_ms: int, left: WorkLeft | None) -> tuple[int, Iterable[int]] | None:
        """Return what `take_due` does, but at most as many entries as are left; the others stay due."""
        if left is None:
            return self.take_due(now_ms)
        if left.entries <= 0 or (due := self.take_due(now_ms)) is None:
            return None
        due_ms, slot = due
        if len(slot) > left.entries:
            if due_ms in self._frozen:
                self._thaw(due_ms)
            some = list(islice(slot, left.entries))
            slot.discard_below(some[-1] + 1)
            self._slots[due_ms] = slot
            heappush(self._due_times, due_ms)
            left.entries = 0
            return due_ms, some
        left.entries -= len(slot)
        return due

    def freeze(self) -> Iterator[list[tuple[int, bytes]]]:
        """Return what is in the wheel now, some slots at a time, while it turns. One at a time is under way.

        A slot that is still to be given is turned into bytes before it changes.
        """
        thawed: list[tuple[int, bytes]] = []
        self._frozen, self._thawed = dict(self._slots), thawed
        return self._give(self._frozen, thawed)

    def load(self, slots: list[tuple[int, bytes]]) -> list[SequenceSet]:
        """Put in what `freeze` gave; return the slots."""
        loaded = {due_ms: SequenceSet.from_bytes(data) for due_ms, data in slots}
        self._slots.update(loaded)
        self._due_times = list(self._slots)
        heapify(self._due_times)
        return list(loaded.values())

    @staticmethod
    def _give(
        frozen: dict[int, SequenceSet], thawed: list[tuple[int, bytes]]
    ) -> Iterator[list[tuple[int, bytes]]]:
        while frozen or thawed:
            some = [thawed.pop() for _ in range(min(SLOTS_AT_A_TIME, len(thawed)))]
            while frozen and len(some) < SLOTS_AT_A_TIME:
                due_ms, slot = frozen.popitem()
                some.append((due_ms, slot.to_bytes()))
            yield some

    def _thaw(self, due_ms: int) -> None:
        assert self._thawed is not None, "a wheel that has frozen slots was frozen"
        self._thawed.append((due_ms, self._frozen.pop(due_ms).to_bytes()))

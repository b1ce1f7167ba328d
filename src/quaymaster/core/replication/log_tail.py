"""The end of a replica's log, in memory: where its batches end, their chain values, and the newest batches whole.

    ── committed, on disk ──┤ start      (end, epoch, chain) of each batch      end ├
                                                      ├─ bytes of the newest ─┤

Below the start every replica's log is the same, so nothing needs to be compared there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.records import Batch

TRIMMED_TOGETHER = 256
"""So many batches at least are forgotten at once: taking them off the front of a list costs its length."""


class Position(NamedTuple):
    """Where a batch ends: the next offset, the batch's epoch, the chain value up to there."""

    end: int
    epoch: int
    chain: int


LOG_START = Position(0, 0, 0)


class LogTail:
    """Positions from `start` to the log's end, and as many of the newest batches as `memory` has bytes for.

    All logs of a process may share the memory.
    """

    def __init__(self, start: Position, positions: Iterable[Position] = (), *, memory: SharedBytes) -> None:
        self._start = start
        self._ends: list[int] = []
        self._positions: list[Position] = []
        self._batches: list[Batch | None] = []
        self._memory = memory
        memory.join(self)
        self.size_bytes = 0
        """How many bytes of batches are kept."""
        self._first_kept = 0
        """Index of the first batch whose bytes are kept."""
        for position in positions:
            self._ends.append(position.end)
            self._positions.append(position)
            self._batches.append(None)
        self._first_kept = len(self._batches)

    @property
    def start(self) -> Position:
        """Below it nothing is known here."""
        return self._start

    @property
    def end(self) -> Position:
        """The position of the log's last batch."""
        return self._positions[-1] if self._positions else self._start

    def position_at(self, end: int) -> Position | None:
        """Return the position of the batch that ends there, None when none does, or not that we know."""
        if end == self._start.end:
            return self._start
        index = bisect_left(self._ends, end)
        if index < len(self._ends) and self._ends[index] == end:
            return self._positions[index]
        return None

    def append(self, batch: Batch) -> None:
        """Take a batch at the end."""
        assert batch.base_offset == self.end.end, (
            f"a batch at {batch.base_offset} does not follow the log's end at {self.end.end}"
        )
        self._ends.append(batch.next_offset)
        self._positions.append(Position(batch.next_offset, batch.epoch, batch.chain))
        self._batches.append(batch)
        self.size_bytes += len(batch.data)
        self._memory.add(self, len(batch.data))

    def forget_oldest(self) -> bool:
        """See `Keeper`."""
        assert self._first_kept < len(self._batches), "who keeps nothing is not the largest"
        self._forget_bytes(self._first_kept)
        self._first_kept += 1
        return True

    def close(self) -> None:
        """Leave the memory to the other logs; what still comes is not kept."""
        self._memory = self._memory.without(self)

    def truncate(self, end: int) -> None:
        """Cut everything behind the batch that ends at `end`."""
        assert self.position_at(end) is not None, f"no batch is known to end at {end}"
        count = bisect_left(self._ends, end) + 1 if end != self._start.end else 0
        for index in range(max(count, self._first_kept), len(self._batches)):
            self._forget_bytes(index)
        del self._ends[count:], self._positions[count:], self._batches[count:]
        self._first_kept = min(self._first_kept, count)

    def trim(self, end: int) -> None:
        """Forget what ends below `end` (a batch's end), but for the bytes of the newest batches."""
        count = min(bisect_left(self._ends, end), self._first_kept)
        if count < TRIMMED_TOGETHER:
            return
        self._start = self._positions[count - 1]
        del self._ends[:count], self._positions[:count], self._batches[:count]
        self._first_kept -= count

    def read(self, start: int, bytes_max: int) -> list[Batch] | None:
        """Return batches from `start` (a batch's end) on: at least one, if there is one, and up to so many bytes.

        None when their bytes are not kept: they are on disk.
        """
        index = 0 if start == self._start.end else bisect_left(self._ends, start) + 1
        if index < self._first_kept:
            return None
        found: list[Batch] = []
        size = 0
        for at in range(index, len(self._batches)):
            batch = self._batches[at]
            assert batch is not None, "the bytes of the newest batches are kept"
            size += len(batch.data)
            if found and size > bytes_max:
                break
            found.append(batch)
        return found

    def _forget_bytes(self, index: int) -> None:
        batch = self._batches[index]
        assert batch is not None, "the bytes of the newest batches are kept"
        self.size_bytes -= len(batch.data)
        self._memory.drop(len(batch.data))
        self._batches[index] = None

"""The simulated disk of one replica, at the level of the log, and what a crash leaves of it.

    append ──write──▶ written ──fsync──▶ durable        a crash keeps any part of what is only written
                                                        what was cut off may be found behind it again

One writer works on what is queued, in order, as the product's does: all writes that wait, then one fsync.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import NamedTuple

from quaymaster.core.replication.effects import LogOperation, Truncate, Write
from quaymaster.core.values.records import (
    HOLDING_TYPES,
    Batch,
    RecordRow,
    decode_header,
    follows_chain,
    iterate_rows,
)
from sim.kernel import MS, Kernel, Violation


@dataclass(slots=True)
class DiskFaults:
    """How slow and how bad the disks are, as drawn for a run."""

    write_us: tuple[int, int] = (20, 100)
    fsync_us: tuple[int, int] = (300, 2 * MS)
    slow: float = 0.0
    """Chance of an fsync that takes up to `slow_us`."""
    slow_us: int = 400 * MS
    has_stale: bool = True
    """Whether cut-off bytes may come back in a crash."""


@dataclass(slots=True)
class Snapshot:
    """The queues at an offset, as bytes."""

    base_offset: int
    chain: int
    epoch: int
    last_time_ms: int
    blobs: list[tuple[bytes, bytes]]


class Kept(NamedTuple):
    """A message's record below the log's start, where segments may be compacted."""

    row: RecordRow
    payload: bytes


class LogDisk:
    """One storage: its batches, the highest promise, the snapshot. It outlives the processes that use it."""

    checks_chain = True
    """Whether a batch found in recovery must have the chain value of the one before it."""

    def __init__(self, storage_id: str, random: Random) -> None:
        self.storage_id = storage_id
        self.promised = 0
        self.commit_hint = 0
        self.snapshot: Snapshot | None = None
        self.start_offset = 0
        self.start_chain = 0
        self.start_epoch = 0
        self.batches: list[Batch] = []
        self.ends: list[int] = []
        self.fsynced_end = 0
        self.is_tainted = False
        self.most_promised = 0
        """The highest promise that was ever durable here: the judge's memory, not the disk's."""
        self.kept: dict[int, Kept] = {}
        """Messages' records below the log's start, by offset, as far as they were not compacted away."""
        self._stale: dict[int, tuple[int, Batch]] = {}
        self._random = random

    @property
    def end(self) -> int:
        """Where the written log ends."""
        return self.ends[-1] if self.ends else self.start_offset

    @property
    def end_chain(self) -> int:
        """The chain value there."""
        return self.batches[-1].chain if self.batches else self.start_chain

    @property
    def end_epoch(self) -> int:
        """The epoch of the last batch."""
        return self.batches[-1].epoch if self.batches else self.start_epoch

    def write(self, batch: Batch) -> None:
        """Append a batch, not durable yet."""
        if batch.base_offset != self.end:
            raise Violation(
                "disk", f"a batch at {batch.base_offset} is written behind the end at {self.end}", self.end
            )
        if batch.epoch < self.end_epoch or (self.checks_chain and not follows_chain(batch, self.end_chain)):
            raise Violation(
                "I26", f"a batch at {batch.base_offset} does not continue the log", batch.base_offset
            )
        self.batches.append(batch)
        self.ends.append(batch.next_offset)

    def truncate(self, end: int) -> None:
        """Cut off what is behind `end`, a batch's end. The bytes may come back in a crash."""
        if end < self.start_offset:
            raise Violation("I5", f"the log is cut at {end}, below its start at {self.start_offset}", end)
        keep = bisect_right(self.ends, end)
        if (self.ends[keep - 1] if keep else self.start_offset) != end:
            raise Violation("disk", f"the log is cut at {end}, inside a batch", end)
        chain = self.batches[keep - 1].chain if keep else self.start_chain
        for batch in self.batches[keep:]:
            self._stale[batch.base_offset] = chain, batch
            chain = batch.chain
        del self.batches[keep:], self.ends[keep:]
        self.fsynced_end = min(self.fsynced_end, end)

    def fsync(self, end: int) -> None:
        """Make what was written below `end` durable."""
        self.fsynced_end = max(self.fsynced_end, min(end, self.end))
        if self._stale:
            self._stale = {base: stale for base, stale in self._stale.items() if base >= self.fsynced_end}

    def recover(self) -> None:
        """Make what a start finds durable: it is taken for that from now on."""
        for before, batch in pairwise(self.batches):
            if batch.epoch < before.epoch:
                raise Violation(
                    "I26", f"a start finds epoch {batch.epoch} behind epoch {before.epoch}", batch.base_offset
                )
        self.fsync(self.end)

    def promise(self, epoch: int) -> None:
        """Make a promise durable."""
        self.promised = max(self.promised, epoch)
        self.most_promised = max(self.most_promised, epoch)

    def crash(self, *, has_stale: bool) -> None:
        """Lose any part of what is not durable; find what was cut off behind the rest, if its chain fits."""
        first = bisect_right(self.ends, self.fsynced_end)
        keep = self._random.randint(first, len(self.ends))
        fitting = [count for count in range(max(first, 1), keep) if self.ends[count - 1] in self._stale]
        if fitting and self._random.random() < 0.5:
            keep = self._random.choice(fitting)
        del self.batches[keep:], self.ends[keep:]
        while has_stale and (found := self._stale.get(self.end)) is not None:
            previous_chain, batch = found
            if self.checks_chain and previous_chain != self.end_chain:
                break
            self.batches.append(batch)
            self.ends.append(batch.next_offset)
        self._stale = {base: stale for base, stale in self._stale.items() if base >= self.end}
        self.fsynced_end = self.end

    def drop_below(self, offset: int) -> None:
        """Forget whole batches below an offset that a snapshot covers."""
        count = bisect_right(self.ends, offset)
        if count:
            for batch in self.batches[:count]:
                self.kept.update(_messages_of(batch))
            last = self.batches[count - 1]
            self.start_offset, self.start_chain, self.start_epoch = last.next_offset, last.chain, last.epoch
            del self.batches[:count], self.ends[:count]

    def kept_below(self, offset: int) -> dict[int, Kept]:
        """Return the messages' records below an offset, of the log and from before it."""
        kept = dict(self.kept)
        for batch in self.batches:
            if batch.base_offset >= offset:
                break
            kept.update(_messages_of(batch))
        return kept

    def durable_behind(self, offset: int) -> list[Batch]:
        """Return the durable batches behind an offset where one ends."""
        return self.batches[bisect_right(self.ends, offset) : bisect_right(self.ends, self.fsynced_end)]

    def install(self, snapshot: Snapshot, kept: dict[int, Kept], batches: list[Batch]) -> None:
        """Take a snapshot from elsewhere, the records it needs and the log behind it, in place of what was here."""
        self.kept = dict(kept)
        self.snapshot = snapshot
        self.start_offset, self.start_chain = snapshot.base_offset, snapshot.chain
        self.start_epoch = snapshot.epoch
        self.batches, self._stale = list(batches), {}
        self.ends = [batch.next_offset for batch in batches]
        self.fsynced_end = self.end

    def chain_at(self, end: int) -> int | None:
        """Return the chain value where a batch ends, None when none ends there."""
        index = bisect_right(self.ends, end) - 1
        if index >= 0 and self.ends[index] == end:
            return self.batches[index].chain
        return self.start_chain if end == self.start_offset else None

    def batch_at(self, offset: int) -> Batch | None:
        """Return the batch that has an offset, None when it is not in the log (any more)."""
        index = bisect_right(self.ends, offset)
        if index == len(self.ends) or self.batches[index].base_offset > offset:
            return None
        return self.batches[index]

    def read(self, start: int, count_max: int) -> list[Batch] | None:
        """Return batches from `start`, the end of one, on; None when that is below the log's start."""
        if start < self.start_offset:
            return None
        index = bisect_right(self.ends, start)
        return self.batches[index : index + count_max]


def _messages_of(batch: Batch) -> Iterator[tuple[int, Kept]]:
    data = batch.data
    for row in iterate_rows(data, decode_header(data)):
        if row.type in HOLDING_TYPES:
            yield row.offset, Kept(row, data[row.position : row.position + row.length])


class LogWriter:
    """The writer of one process: it carries out log operations in their order, and reports.

    It says after how many truncations its ends hold: what was cut since has other bytes in its place, not durable yet.
    """

    def __init__(
        self,
        kernel: Kernel,
        disk: LogDisk,
        faults: DiskFaults,
        *,
        on_progress: Callable[[int, int, int], None],
        on_promised: Callable[[int], None],
        on_failed: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.is_stopped = False
        self.fails_next_fsync = False
        self.stalled_until_us = 0
        self.truncations = 0
        self._kernel = kernel
        self._faults = faults
        self._random = kernel.random_for(f"writer {disk.storage_id} {kernel.now_us}").random
        self._queue: deque[LogOperation] = deque()
        self._is_working = False
        self._on_progress = on_progress
        self._on_promised = on_promised
        self._on_failed = on_failed

    def carry_out(self, operations: list[LogOperation]) -> None:
        """Queue operations."""
        self._queue.extend(operations)
        if not self._is_working and not self.is_stopped:
            self._is_working = True
            self._kernel.after(self._between(self._faults.write_us), self._write)

    def stop(self) -> None:
        """The process is gone: nothing of what is queued happens any more."""
        self.is_stopped = True
        self._queue.clear()

    def _between(self, bounds: tuple[int, int]) -> int:
        low, high = bounds
        return low + int(self._random() * (high - low))

    def _write(self) -> None:
        """Write what is queued, up to a promise, which comes after the fsync of what is before it."""
        if self.is_stopped:
            return
        disk, queue = self.disk, self._queue
        promise: int | None = None
        while queue and promise is None:
            operation = queue.popleft()
            if isinstance(operation, Write):
                for batch in operation.batches:
                    disk.write(batch)
            elif isinstance(operation, Truncate):
                disk.truncate(operation.end)
                self.truncations += 1
            else:
                promise = operation.epoch
        took_us = self._between(self._faults.fsync_us)
        if self._faults.slow and self._random() < self._faults.slow:
            took_us += int(self._random() * self._faults.slow_us)
        took_us = max(took_us, self.stalled_until_us - self._kernel.now_us)
        self._kernel.after(took_us, self._fsync, disk.end, promise)
        self._report()

    def _fsync(self, end: int, promise: int | None) -> None:
        if self.is_stopped:
            return
        if self.fails_next_fsync:
            self.stop()
            self._on_failed()
            return
        self.disk.fsync(end)
        self._report()
        if promise is not None and not self.is_stopped:
            self.disk.promise(promise)
            self._on_promised(promise)
        self._is_working = False
        if self._queue:
            self.carry_out([])

    def _report(self) -> None:
        self._on_progress(self.disk.end, self.disk.fsynced_end, self.truncations)

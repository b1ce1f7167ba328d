"""Which partitions of a journal have changed, for those who watch them: told in pages, at the price of what changed.

    change ─▶ touched ──settle──┬─▶ log (core/structures/touch_log) ──page after a position──▶ rows
                                │      ▲                                                        │
                                │      └──── due: a timeout or delay is over, with no change ───┘
                                └─▶ sums of all partitions

A replica that follows keeps this, too: the next leader has nothing to look through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_counts import noisy_groups_of
from quaymaster.core.partition.partition_totals import PartitionTotals
from quaymaster.core.structures.message_sums import NO_SHARE, MessageSums, Share
from quaymaster.core.structures.timers import WorkLeft
from quaymaster.core.structures.touch_log import TouchLog
from quaymaster.core.values.queue_metrics import GonePartition, QueueMetricsRow

TOUCHED_MAX: Final = 1_000
"""So many partitions are left unsettled between turns: what changes again and again is settled once."""
SETTLED_AT_A_TIME: Final = 1_000
"""So many more than that are settled in a turn: it takes some milliseconds."""
DUE_PER_PAGE_MAX: Final = 1_000
"""How many timeouts and delays that are over are worked off for a page of rows."""


NO_TOTALS: Final = PartitionTotals(0)
"""Of a partition of which a leader has counted nothing. Never changed."""


class TouchedRows(NamedTuple):
    """Rows after a position, and where to go on. `has_more`: there is more behind it."""

    rows: list[QueueMetricsRow]
    gone: list[GonePartition]
    position: int
    has_more: bool


class TouchedPartitions:
    """Of one journal. `is_unfinished` tells whether a partition is between two states, and says nothing."""

    __slots__ = ("_due", "_due_keys", "_is_unfinished", "_partitions", "log", "sums", "touched")

    def __init__(
        self, partitions: Mapping[int, Partition], is_unfinished: Callable[[Partition], bool]
    ) -> None:
        self._partitions = partitions
        self._is_unfinished = is_unfinished
        self.touched: set[int] = set()
        """The keys of partitions that changed since they were settled; `Partition.note_touch` adds to it."""
        self.log = TouchLog()
        self.sums = MessageSums()
        self._due: list[tuple[int, int]] = []
        """When partitions that were told of change by time alone, and their keys."""
        self._due_keys: set[int] = set()

    def take(self, partition: Partition) -> None:
        """There is one more partition."""
        partition.touched_keys = self.touched
        partition.is_touched = True
        self.touched.add(partition.key)

    def drop(self, partition: Partition) -> None:
        """A partition is gone."""
        partition.touched_keys = None
        self.touched.discard(partition.key)
        self.log.drop(partition.key)
        self.sums.replace(partition.share, NO_SHARE)

    def settle_excess(self, now_ms: int) -> None:
        """Settle what is more than TOUCHED_MAX, or some of it; call at the end of each turn that leaves so many."""
        self.settle(min(len(self.touched) - TOUCHED_MAX, SETTLED_AT_A_TIME), now_ms)

    def settle(self, count_max: int, now_ms: int) -> bool:
        """Put up to `count_max` partitions that changed into log and sums; return whether more are left."""
        touched = self.touched
        later: list[int] = []
        while touched and count_max > 0:
            count_max -= 1
            key = touched.pop()
            partition = self._partitions[key]
            if self._is_unfinished(partition):
                later.append(key)
                continue
            partition.is_touched = False
            self.log.touch(key)
            share = share_of(partition, now_ms)
            if share != partition.share:
                self.sums.replace(partition.share, share)
                partition.share = share
        is_left = bool(touched)
        touched.update(later)
        return is_left

    def page(self, position: int, count_max: int, journal_id: int, epoch: int, now_ms: int) -> TouchedRows:
        """Return up to `count_max` partitions that were touched at a position or after it, as they are now."""
        self._advance_due(now_ms, count_max)
        is_left = self.settle(2 * count_max, now_ms)
        keys, position = self.log.after(position, count_max)
        rows = self.rows(keys, journal_id, epoch, now_ms)
        there = self._partitions
        gone = [GonePartition(key >> 16, key & 0xFFFF, journal_id) for key in keys if key not in there]
        return TouchedRows(rows, gone, position, is_left or position < self.log.end)

    def rows(self, keys: Iterable[int], journal_id: int, epoch: int, now_ms: int) -> list[QueueMetricsRow]:
        """Return the rows of partitions by their keys, as they are now; of those that are not there none."""
        left = WorkLeft(DUE_PER_PAGE_MAX)
        find, is_unfinished = self._partitions.get, self._is_unfinished
        rows: list[QueueMetricsRow] = []
        for key in keys:
            partition = find(key)
            if partition is None:
                continue
            if is_unfinished(partition):
                partition.note_touch()  # for the next page
                continue
            if not partition.alive:
                rows.append(row_of(partition, journal_id, epoch, 0, 0, 0))
                continue
            if partition.is_behind(now_ms):
                partition.advance(now_ms, left)
            in_flight, delayed = partition.hidden(now_ms)
            noisy = noisy_groups_of(partition, now_ms)
            rows.append(row_of(partition, journal_id, epoch, in_flight, delayed, noisy))
            if in_flight or delayed:
                self._note_due(partition, key)
        return rows

    def _note_due(self, partition: Partition, key: int) -> None:
        """Tell of a partition again when time alone has changed it."""
        due_ms = partition.next_change_ms()
        if due_ms is not None and key not in self._due_keys:
            self._due_keys.add(key)
            heappush(self._due, (due_ms, key))

    def _advance_due(self, now_ms: int, count_max: int) -> None:
        """Bring up to now what was told of before time changed it: it is told of again by the page that follows."""
        due, left = self._due, WorkLeft(DUE_PER_PAGE_MAX)
        while due and due[0][0] <= now_ms and count_max > 0:
            count_max -= 1
            _, key = heappop(due)
            self._due_keys.discard(key)
            partition = self._partitions.get(key)
            if partition is not None and not self._is_unfinished(partition):
                partition.advance(now_ms, left)
                partition.note_touch()


def share_of(partition: Partition, now_ms: int) -> Share:
    """Return a partition's part in the sums, as of its last change."""
    staged = partition.staged.messages if partition.staged is not None else 0
    alive = partition.alive
    if not alive:
        return Share(staged=staged) if staged else NO_SHARE
    if partition.sizes is not None:  # a log's groups have what waits
        return Share(staged=staged, kept=alive)
    in_flight, delayed = partition.hidden(now_ms)
    visible = max(0, alive - in_flight - delayed)
    kept = alive if partition.log is None else 0
    return Share(visible, in_flight, delayed, staged, partition.oldest_sent_ms // 1_000, kept)


def row_of(
    partition: Partition, journal_id: int, epoch: int, in_flight: int, delayed: int, noisy_groups: int
) -> QueueMetricsRow:
    """Return what those who watch queues are told of a partition by the leader of an epoch."""
    alive = partition.alive
    totals = partition.totals
    if totals is None or totals.epoch != epoch:
        totals = NO_TOTALS
    return QueueMetricsRow(
        partition.definition.queue_id,
        partition.number,
        journal_id,
        epoch,
        max(0, alive - in_flight - delayed),
        in_flight,
        delayed,
        partition.order.groups_in_flight,
        partition.oldest_sent_ms if alive else 0,
        partition.sends,
        totals.sent_bytes,
        totals.received,
        totals.empty_receives,
        partition.deletions,
        totals.duplicate,
        totals.dead_lettered,
        totals.expired,
        totals.wait_ms,
        partition.counted_from,
        noisy_groups,
    )

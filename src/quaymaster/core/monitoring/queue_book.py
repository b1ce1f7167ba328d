"""All queues as their leaders told them last, and the minutes that follow from it.

    page of a leader ──take──▶ newest rows; counts of the open minute, or of minutes that are closed (a gap)
    end of a minute ──close──▶ minutes of all queues that were active in the last six hours

A partition that was never seen counts from 0 if its journal was listed whole before, or its queue is young: it is new.
Otherwise it is only new to this book, and counts from what it has. A value is as old as the last page of its journal's
leader, for what did not change is not told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from quaymaster.core.monitoring.minutes import (
    GAUGES,
    NO_COUNTS,
    Counts,
    Minute,
    add_counts,
    counters_of,
    increase,
    minute_of,
    spread,
)
from quaymaster.core.values.queue_metrics import QueueMetricsPage, QueueMetricsRow, decode_cursor

STALE_MS: Final = 15_000
"""What was not told for so long is not known any more."""
ACTIVE_MS: Final = 6 * 3_600_000
"""A queue that has no message and was not touched for so long has no minutes, as in CloudWatch."""
YOUNG_MS: Final = ACTIVE_MS
_UNKNOWN_GAUGES: Final = (None,) * len(GAUGES)


class BookedQueue:
    """One queue. `rows` are its partitions, as told last; `counts`: of the open minute, None: nothing was counted.

    `totals` is all that was ever counted here: it only grows, whatever leaders do.
    """

    __slots__ = ("counts", "queue_id", "rows", "totals", "touched_ms")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.rows: tuple[QueueMetricsRow, ...] = ()
        self.touched_ms = 0
        self.counts: Counts | None = None
        self.totals = NO_COUNTS

    def row(self, partition: int) -> QueueMetricsRow | None:
        """Return a partition as it was told last."""
        return next((row for row in self.rows if row.partition == partition), None)

    @property
    def has_messages(self) -> bool:
        """Whether it has any, as far as is known."""
        return any(row.visible or row.in_flight or row.delayed for row in self.rows)

    @property
    def oldest_sent_ms(self) -> int:
        """When its oldest message was sent; 0: it has none."""
        return min((row.oldest_sent_ms for row in self.rows if row.oldest_sent_ms), default=0)


class QueueBook:
    """`created_ms` tells when a queue was created, None where that is not known."""

    def __init__(self, created_ms: Callable[[int], int | None]) -> None:
        self._created_ms = created_ms
        self.queues: dict[int, BookedQueue] = {}
        self.seen_ms: dict[int, int] = {}
        """When the leader of each journal told of it last."""
        self._listed: set[int] = set()
        """Journals that were told whole."""
        self._late: dict[tuple[int, int], Counts] = {}
        """Counts of minutes that are closed, by minute and queue."""
        self.changed: set[tuple[int, int]] = set()
        """Queue and partition of rows that changed, or went, since the last minute was closed."""
        self.recent: dict[int, Counts] = {}
        """What queues counted between two rows of a partition; a look at it begins a new one."""

    def restore(self, rows: Iterable[QueueMetricsRow], seen_ms: dict[int, int]) -> None:
        """Begin with what an earlier book had when it closed its last minute."""
        for row in rows:
            queue = self._queue(row.queue_id)
            queue.rows = (*queue.rows, row)
        self.seen_ms.update(seen_ms)
        self._listed.update(seen_ms)

    def take(self, page: QueueMetricsPage, at_ms: int) -> set[int]:
        """Take what a leader told when it was asked at this moment; return the queues of which it told news."""
        told: set[int] = set()
        for row in page.rows:
            if self._take_row(row, at_ms):
                told.add(row.queue_id)
        for gone in page.gone:
            queue = self.queues.get(gone.queue_id)
            known = None if queue is None else queue.row(gone.partition)
            if queue is not None and known is not None and known.journal == gone.journal:
                queue.rows = tuple(row for row in queue.rows if row is not known)
                self.changed.add((gone.queue_id, gone.partition))
                told.add(gone.queue_id)
        if not page.has_more:
            for journal in decode_cursor(page.cursor):
                self.seen_ms[journal] = max(at_ms, self.seen_ms.get(journal, 0))
                self._listed.add(journal)
        return told

    def _take_row(self, row: QueueMetricsRow, at_ms: int) -> bool:
        queue = self._queue(row.queue_id)
        before = queue.row(row.partition)
        if before is not None and (before.epoch > row.epoch or before == row):
            return False  # a leader of before, or nothing new
        since_ms = self.seen_ms.get(row.journal, at_ms)
        counts = self._counts(before, row, at_ms)
        if before is None and row.journal not in self._listed:
            since_ms = self._created_ms(row.queue_id) or at_ms
        queue.rows = (*(other for other in queue.rows if other is not before), row)
        if counts != NO_COUNTS or (before is not None and _gauges_of(before) != _gauges_of(row)):
            queue.touched_ms = at_ms
        self.changed.add((row.queue_id, row.partition))
        if counts != NO_COUNTS:
            queue.totals = add_counts(queue.totals, counts)
            if before is not None:
                self.recent[row.queue_id] = add_counts(self.recent.get(row.queue_id, NO_COUNTS), counts)
            self._count(queue, counts, min(since_ms, at_ms - 1), at_ms)
        return True

    def _counts(self, before: QueueMetricsRow | None, row: QueueMetricsRow, at_ms: int) -> Counts:
        if before is not None:
            return increase(before, row)
        if row.journal in self._listed:
            return counters_of(row)
        created_ms = self._created_ms(row.queue_id)
        is_young = created_ms is not None and created_ms > at_ms - YOUNG_MS
        return counters_of(row) if is_young else NO_COUNTS

    def _count(self, queue: BookedQueue, counts: Counts, since_ms: int, at_ms: int) -> None:
        open_s = minute_of(at_ms)
        for at_s, part in spread(counts, since_ms, at_ms):
            if at_s == open_s:
                queue.counts = part if queue.counts is None else add_counts(queue.counts, part)
            elif part != NO_COUNTS:
                key = (at_s, queue.queue_id)
                self._late[key] = add_counts(self._late.get(key, NO_COUNTS), part)

    def value_ms(self, queue: BookedQueue) -> int | None:
        """Return how old the values of a queue are: the time of the oldest; None: nothing is known."""
        times = [self.seen_ms.get(row.journal) for row in queue.rows]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def close(self, at_s: int) -> Iterator[Minute]:
        """Yield the minute that began then, of each active queue, and what was found out about earlier ones.

        The rows are then those of which a `restore` goes on. Queues without partitions are forgotten.
        """
        end_ms = (at_s + 60) * 1000
        late, self._late = self._late, {}
        for (minute_s, queue_id), part in late.items():
            yield Minute(queue_id, minute_s, (*_UNKNOWN_GAUGES, *part))
        for queue in list(self.queues.values()):
            counts, queue.counts = queue.counts, None
            if counts is not None or queue.has_messages or queue.touched_ms > end_ms - ACTIVE_MS:
                gauges = self._gauges(queue, end_ms)
                if gauges is not None:
                    yield Minute(queue.queue_id, at_s, (*gauges, *(counts or NO_COUNTS)))
                elif counts is not None:
                    yield Minute(queue.queue_id, at_s, (*_UNKNOWN_GAUGES, *counts))
            if not queue.rows:
                del self.queues[queue.queue_id]

    def _gauges(self, queue: BookedQueue, end_ms: int) -> tuple[int, ...] | None:
        value_ms = self.value_ms(queue)
        if value_ms is None or value_ms < end_ms - STALE_MS:
            return None
        rows, oldest_ms = queue.rows, queue.oldest_sent_ms
        return (
            sum(row.visible for row in rows),
            sum(row.in_flight for row in rows),
            sum(row.delayed for row in rows),
            sum(row.groups_in_flight for row in rows),
            max(0, end_ms - oldest_ms) // 1000 if oldest_ms else 0,
        )

    def _queue(self, queue_id: int) -> BookedQueue:
        queue = self.queues.get(queue_id)
        if queue is None:
            queue = self.queues[queue_id] = BookedQueue(queue_id)
        return queue


def _gauges_of(row: QueueMetricsRow) -> tuple[int, ...]:
    return row.visible, row.in_flight, row.delayed, row.groups_in_flight, row.oldest_sent_ms

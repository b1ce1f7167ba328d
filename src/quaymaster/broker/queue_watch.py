"""What a process tells of the queues that it leads to those who watch them: pages of rows, and not too often.

request, cursor {journal: epoch, position} ─▶ journals led here, in turns ─▶ rows, cursor
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final

from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.core.values.errors import InternalFailure, Overloaded
from quaymaster.core.values.queue_metrics import (
    PAGE_ROWS_MAX,
    WATCHED_QUEUES_MAX,
    GonePartition,
    JournalCursor,
    QueueMetricsPage,
    QueueMetricsRequest,
    QueueMetricsRow,
    decode_cursor,
    encode_cursor,
)

PAGE_EVERY_S: Final = 0.1
"""Pages are made at most so often, for all who ask together."""
LOOP_SHARE_MAX: Final = 0.02
"""And so seldom that they take no more than this of the loop's time: a full page has some milliseconds of work."""
WAIT_MAX_S: Final = 2.0
"""Who would have to wait longer for a page is refused."""

NO_CURSOR: Final = JournalCursor(0, 0)


class QueueWatch:
    """Answers for the journals of one process, those that it leads. Use within one event loop."""

    def __init__(
        self,
        leader: str,
        journals: Callable[[], Iterable[JournalService]],
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`leader` is the name of this process in its answers."""
        self._clock = clock
        self._leader = leader
        self._journals = journals
        self._free_at_s = 0.0
        self._turn = 0

    async def ask(self, request: QueueMetricsRequest) -> QueueMetricsPage:
        """Return a page, once it is this caller's turn.

        Raises:
            Overloaded: too many ask.
            InternalFailure: too many queues are asked for by name.
        """
        if request.queue_ids is not None and len(request.queue_ids) > WATCHED_QUEUES_MAX:
            raise InternalFailure(f"At most {WATCHED_QUEUES_MAX} queues can be asked for at once.")
        now_s = asyncio.get_running_loop().time()
        wait_s = self._free_at_s - now_s
        if wait_s > WAIT_MAX_S:
            raise Overloaded("Too many ask for metrics of queues.")
        self._free_at_s = max(now_s, self._free_at_s) + PAGE_EVERY_S
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        began_s = self._clock()
        page = self.page(request)
        self._free_at_s += max(0.0, (self._clock() - began_s) / LOOP_SHARE_MAX - PAGE_EVERY_S)
        return page

    def page(self, request: QueueMetricsRequest) -> QueueMetricsPage:
        """Return a page, now."""
        hosts = [journal.host for journal in self._journals() if journal.host.replica.is_leading]
        if request.queue_ids is not None:
            return QueueMetricsPage(self._leader, _rows_of(hosts, request.queue_ids))
        return self._page_since(hosts, decode_cursor(request.since))

    def _page_since(self, hosts: list[ReplicaHost], cursors: dict[int, JournalCursor]) -> QueueMetricsPage:
        rows: list[QueueMetricsRow] = []
        gone: list[GonePartition] = []
        reached: dict[int, JournalCursor] = {}
        has_more = False
        self._turn += 1
        first = self._turn % len(hosts) if hosts else 0
        for host in hosts[first:] + hosts[:first]:  # a busy journal does not keep others out
            number, epoch = host.files.journal_id, host.replica.epoch
            cursor = cursors.get(number, NO_CURSOR)
            position = cursor.position if cursor.epoch == epoch else 0
            found = host.replica.queues.changes.page(
                position, PAGE_ROWS_MAX - len(rows) - len(gone), number, epoch, host.clock.time_ms()
            )
            rows += found.rows
            gone += found.gone
            reached[number] = JournalCursor(epoch, found.position)
            has_more = has_more or found.has_more
        return QueueMetricsPage(self._leader, rows, encode_cursor(reached), gone, has_more)


def _rows_of(hosts: Iterable[ReplicaHost], queue_ids: Iterable[int]) -> list[QueueMetricsRow]:
    """Return the rows of some queues' partitions, of all the journals."""
    rows: list[QueueMetricsRow] = []
    for host in hosts:
        queues = host.replica.queues
        keys = [
            partition.key
            for queue_id in queue_ids
            if queue_id in queues.definitions
            for partition in queues.partitions_of(queue_id)
        ]
        rows += queues.changes.rows(keys, host.files.journal_id, host.replica.epoch, host.clock.time_ms())
    return rows

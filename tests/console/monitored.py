"""A monitor of queues on leaders that tests make up, with a clock of its own and a real history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from harness.waiting import PATIENCE_S

from quaymaster.console.known_queues import KnownQueues
from quaymaster.console.queue_monitor import QueueMonitor
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import Unreachable
from quaymaster.core.values.queue_metrics import (
    JournalCursor,
    QueueMetricsPage,
    QueueMetricsRequest,
    QueueMetricsRow,
    decode_cursor,
    encode_cursor,
)
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    encode_queue_definition,
)
from quaymaster.history.files import HistoryFiles
from quaymaster.history.history import History

ACCOUNT = "000000000000"
CUSTOMER = "111111111111"
NOON_S = 1_800_000_000 // 86_400 * 86_400 + 43_200
NOON_MS = NOON_S * 1000
OLD_MS = NOON_MS - 90 * 86_400_000
PREFIX = "/queues/"
GIB = 1024**3


def definition(queue_id: int, name: str, *, account: str = ACCOUNT, **attributes: str) -> QueueDefinition:
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    placement = (PartitionPlacement(0, 0),)
    return QueueDefinition(queue_id, account, name, "active", 1, OLD_MS, OLD_MS, attributes, {}, 1, placement)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0.001)


class Leaders:
    """Leaders of one journal each, by address. `rows` are what they have; `silent` do not answer."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[tuple[int, int], QueueMetricsRow]] = {"b1": {}}
        self.silent: set[str] = set()
        self.asked: list[QueueMetricsRequest] = []
        self._told: dict[str, dict[tuple[int, int], QueueMetricsRow]] = {}
        self.page_rows = 1_000

    def set(self, row: QueueMetricsRow, leader: str = "b1") -> None:
        self.rows.setdefault(leader, {})[row.queue_id, row.partition] = row

    def leaders(self) -> list[str]:
        return list(self.rows)

    async def ask(self, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
        self.asked.append(request)
        if leader in self.silent:
            raise Unreachable("silent")
        rows = self.rows[leader]
        if request.queue_ids is not None:
            return QueueMetricsPage(
                leader, [row for row in rows.values() if row.queue_id in request.queue_ids]
            )
        journal = list(self.rows).index(leader)
        if not decode_cursor(request.since):
            self._told[leader] = {}
        told = self._told[leader]
        new = [row for key, row in rows.items() if told.get(key) != row]
        page = new[: self.page_rows]
        told.update({(row.queue_id, row.partition): row for row in page})
        cursor = encode_cursor({journal: JournalCursor(1, 1 + len(told))})
        return QueueMetricsPage(leader, page, cursor, has_more=len(new) > len(page))

    async def close(self) -> None:
        pass


class Monitored:
    """A monitor, and what it stands on. `now_ms` is its clock."""

    def __init__(self, store: MemoryCoordination, files: HistoryFiles) -> None:
        self.store = store
        self.files = files
        self.leaders = Leaders()
        self.now_ms = NOON_MS
        self.queues = KnownQueues(store, PREFIX)
        self.monitor = QueueMonitor(self.leaders, self.queues, History(files), now_ms=lambda: self.now_ms)

    async def put(self, queue: QueueDefinition) -> None:
        key = f"{PREFIX}{queue.account_id}/{queue.name}"
        await self.store.transaction([], [Put(key, encode_queue_definition(queue))])

    async def look(self, at_ms: int) -> None:
        """Let the clock be so late, and ask all leaders."""
        self.now_ms = at_ms
        await self.monitor.look(at_ms)


@asynccontextmanager
async def monitored(
    directory: Path,
    *queues: QueueDefinition,
    store: MemoryCoordination | None = None,
    now_ms: int = NOON_MS,
) -> AsyncIterator[Monitored]:
    """Give a monitor that asks only when a test says so."""
    store = store or MemoryCoordination()
    found = Monitored(store, HistoryFiles(directory, bytes_max=GIB))
    for queue in queues:
        await found.put(queue)
    found.now_ms = now_ms
    await found.queues.start()
    await found.monitor.start()
    try:
        yield found
    finally:
        await found.monitor.close()
        await found.queues.close()

"""Has partitions of queues split, moved and merged: asks metadata nodes, which carry it out.

    what the manager sees ──▶ core/cell/partition_trends ──▶ core/cell/partition_plans ──▶ ChangePartitions
    tables of busy queues, FindQueues every LOOK_MS ──▲                                     one after the other

Only the manager that acts does so. It begins with nothing each time, so that it leaves all queues alone for a while.
A request names the table that it was planned for: a node refuses it when somebody else changed the queue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from quaymaster.core.cell.cell import Action, CellSeen
from quaymaster.core.cell.partition_plans import (
    MergePartitions,
    MovePartition,
    PlannedChange,
    SplitPartition,
    plan_partitions,
)
from quaymaster.core.cell.partition_trends import PartitionTrends
from quaymaster.core.values.errors import CallerError, ConnectionLost, NotNow, Timeout
from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, decode_queue_definition
from quaymaster.net.routing.metadata_client import MetadataClient
from quaymaster.protocol.rpc.metadata_messages import (
    QUEUES_FOUND_MAX,
    ChangedQueue,
    ChangePartitions,
    FindQueues,
    QueueList,
)
from quaymaster.protocol.sqs.internal_queues import is_internal

LOOK_MS: Final = 10_000
"""How often tables are asked for."""
FIND_MS: Final = 5_000
CHANGE_MS: Final = 30_000


class QueueNodes(Protocol):
    """Metadata nodes as a manager needs them. Every call may raise `NotNow` or `CallerError`."""

    async def find(self, queue_ids: Sequence[int]) -> list[QueueDefinition]:
        """Return those of some queues that there are."""

    async def change(self, request: ChangePartitions) -> QueueDefinition:
        """Begin a change, and return the queue with its new partitions. Timeout, ConnectionLost: it may have begun."""


class RPCQueueNodes:
    """Metadata nodes behind the RPC."""

    def __init__(self, client: MetadataClient) -> None:
        self.client = client

    async def find(self, queue_ids: Sequence[int]) -> list[QueueDefinition]:
        """See `QueueNodes`."""
        found = await self.client.ask(FindQueues(list(queue_ids)), QueueList, deadline_ms=FIND_MS)
        return [_read(data) for data in found.definitions]

    async def change(self, request: ChangePartitions) -> QueueDefinition:
        """See `QueueNodes`."""
        changed = await self.client.ask(request, ChangedQueue, deadline_ms=CHANGE_MS, is_repeatable=False)
        assert changed.definition is not None, "only a creation is answered without a queue"
        return _read(changed.definition)


def _read(data: bytes) -> QueueDefinition:
    try:
        return decode_queue_definition(data)
    except UnknownFormat as error:
        raise NotNow(f"Metadata nodes are newer than this manager: {error}") from None


class PartitionManager:
    """One of a manager's tasks. `problems`: what an operator should know, as of the last plan."""

    def __init__(
        self,
        nodes: QueueNodes,
        see: Callable[[], CellSeen | None],
        note: Callable[[Action | PlannedChange, str, str | None], None],
    ) -> None:
        """`see` gives what the manager sees, None while another one acts; `note` hears what came of each change."""
        self.problems: tuple[str, ...] = ()
        self._nodes = nodes
        self._see = see
        self._note = note
        self._trends = PartitionTrends()
        self._looked_ms: int | None = None
        self._are_tables_known = False

    async def run(self, interval_s: float) -> None:
        """Look, plan and ask, for ever."""
        while True:
            await self.step()
            await asyncio.sleep(interval_s)

    async def step(self) -> None:
        """Take what is seen now, and ask for what follows."""
        seen = self._see()
        if seen is None:
            self._trends, self._looked_ms, self.problems = PartitionTrends(), None, ()
            return
        if self._looked_ms is None or seen.now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = seen.now_ms
            await self._look(seen)
        planned = plan_partitions(self._trends.take(seen))
        if self._are_tables_known:
            self.problems = planned.problems
            for change in planned.changes:
                await self._ask(change)

    async def _look(self, seen: CellSeen) -> None:
        """Ask for the tables of queues with load; while that fails, nothing is changed."""
        wanted = self._trends.wanted(seen, QUEUES_FOUND_MAX)
        try:
            found = await self._nodes.find(wanted) if wanted else []
        except (NotNow, CallerError) as error:
            self._are_tables_known = False
            self.problems = (
                f"partitions of queues are left alone, metadata nodes do not tell of them: {error}",
            )
            return
        self._are_tables_known = True
        ours = [queue for queue in found if not is_internal(queue.account_id, queue.name)]
        self._trends.know(wanted, ours, seen.now_ms)

    async def _ask(self, change: PlannedChange) -> None:
        """Ask for a change, if it is still this manager's turn; whatever comes of it, its queue then rests."""
        seen = self._see()
        if seen is None:
            return
        result, reason = "done", None
        self._trends.rest(change.queue_id, seen.now_ms)
        try:
            changed = await self._nodes.change(request_of(change, self._trends.table(change.queue_id)))
        except (Timeout, ConnectionLost) as error:
            result, reason = "unknown", str(error)
        except (NotNow, CallerError) as error:
            result, reason = "failed", str(error)
        else:
            self._trends.know_one(changed, seen.now_ms)
        self._note(change, result, reason)


def request_of(change: PlannedChange, definition: QueueDefinition) -> ChangePartitions:
    """Return what to ask a metadata node for."""
    asked = ChangePartitions(
        definition.account_id,
        definition.name,
        "move",
        queue_id=definition.queue_id,
        table_version=definition.table_version,
    )
    match change:
        case SplitPartition():
            return replace(
                asked,
                kind="split",
                into=2,
                partitions=[change.partition],
                journals=list(change.journals),
                key=change.key,
            )
        case MovePartition():
            return replace(asked, partitions=[change.partition], journals=[change.journal])
        case MergePartitions():
            return replace(asked, kind="merge", partitions=list(change.partitions), journals=[change.journal])

"""What operators do with the partitions of queues: look at them, split, merge and move them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from quaymaster.core.values.commands.messages import CountMessages, QueueCounts
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from quaymaster.core.values.errors import NotNow, QueueDoesNotExist, UnsupportedOperation
from quaymaster.core.values.partition_tables import in_state, parents_of_new
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.protocol.admin import queues as shapes
from quaymaster.protocol.rpc.metadata_messages import ChangePartitions, PartitionChange

ANSWER_S: Final = 5.0
"""How long the journal of one partition has to answer; what it would have said is null then."""


class PartitionMetadata(Protocol):
    """Where queues are found and changed."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...


class PartitionAdmin:
    """The admin API's requests about partitions."""

    def __init__(self, broker: BrokerClient, metadata: PartitionMetadata) -> None:
        self._broker = broker
        self._metadata = metadata

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListPartitions": AdminRoute(self._list),
            "SplitQueue": AdminRoute(self._split),
            "MergeQueue": AdminRoute(self._merge),
            "MoveQueue": AdminRoute(self._move),
            "CancelQueueChange": AdminRoute(self._cancel),
            "GiveUpPartition": AdminRoute(self._give_up),
        }

    async def _list(self, call: AdminCall, given: shapes.QueueRequest) -> shapes.PartitionList:
        # As the store has it now: what is asked next is about a change that another front end may have begun.
        await self._metadata.queues.refresh(self._queue(call, given.name))
        queue = self._queue(call, given.name)
        views = await asyncio.gather(*(self._view(queue, entry) for entry in queue.partitions))
        return shapes.PartitionList(
            name=queue.name,
            table_version=queue.table_version,
            given_up=queue.given_up or None,
            partitions=views,
        )

    async def _view(self, queue: QueueDefinition, entry: PartitionPlacement) -> shapes.PartitionView:
        messages: int | None = None
        sends: int | None = None
        sealed_for_ms: int | None = None
        match entry.state:
            case "new":
                messages = sends = 0
            case "drained":
                messages, sends = 0, entry.sends
            case "open":
                counted = await self._ask(CountMessages(queue.queue_id, entry.number))
                if isinstance(counted, QueueCounts):
                    messages = counted.visible + counted.in_flight + counted.delayed
                    sends = counted.sends
            case _:
                told = await self._ask(AskPartition(queue.queue_id, entry.number))
                if isinstance(told, PartitionOutcome):
                    sealed_for_ms, messages, sends = told.sealed_for_ms, told.messages, told.sends
        return shapes.PartitionView(
            number=entry.number,
            state=entry.state,
            journal=entry.journal_id,
            first_key=f"{entry.first_key:016x}",
            last_key=f"{entry.last_key:016x}",
            sealed_for_ms=sealed_for_ms,
            messages=messages,
            sends=sends,
        )

    async def _ask(self, command: CountMessages | AskPartition) -> object | None:
        """Return what a journal says of a partition, None when it does not answer now, or does not know it yet."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await ask(self._broker, command)
        except (NotNow, TimeoutError, QueueDoesNotExist):
            return None

    async def _split(self, call: AdminCall, given: shapes.SplitRequest) -> shapes.BegunChange:
        return await self._change(call, given.name, "split", _listed(given.partition), into=given.into)

    async def _merge(self, call: AdminCall, given: shapes.MergeRequest) -> shapes.BegunChange:
        return await self._change(call, given.name, "merge", given.partitions or [])

    async def _move(self, call: AdminCall, given: shapes.MoveRequest) -> shapes.BegunChange:
        partitions, journals = _listed(given.partition), _listed(given.journal)
        return await self._change(call, given.name, "move", partitions, journals=journals)

    async def _cancel(self, call: AdminCall, given: shapes.QueueRequest) -> shapes.BegunChange:
        return await self._change(call, given.name, "cancel", [])

    async def _give_up(self, call: AdminCall, given: shapes.GiveUpRequest) -> shapes.BegunChange:
        return await self._change(call, given.name, "give up", [given.partition])

    async def _change(
        self,
        call: AdminCall,
        name: str,
        kind: PartitionChange,
        partitions: list[int],
        *,
        into: int = 0,
        journals: list[int] | None = None,
    ) -> shapes.BegunChange:
        queue = self._queue(call, name)
        if queue.group_of:
            raise UnsupportedOperation("A consumer group has the partitions of its queue.")
        changed = await self._metadata.queues.change(
            ChangePartitions(
                queue.account_id,
                queue.name,
                kind,
                into,
                partitions,
                journals or [],
                queue_id=queue.queue_id,
            )
        )
        return shapes.BegunChange(
            name=changed.name,
            table_version=changed.table_version,
            parents=[entry.number for entry in parents_of_new(changed)],
            children=[entry.number for entry in in_state(changed, "new")],
        )

    def _queue(self, call: AdminCall, name: str) -> QueueDefinition:
        queue = self._metadata.find_queue(call.owner, name)
        if queue is None:
            raise QueueDoesNotExist
        return queue


def _listed(number: int | None) -> list[int]:
    return [] if number is None else [number]

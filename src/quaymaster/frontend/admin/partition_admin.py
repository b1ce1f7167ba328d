"""What operators do with the partitions of queues: look at them, split, merge and move them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.commands import AskPartition, CountMessages, PartitionOutcome, QueueCounts
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    NotNow,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.core.values.partition_tables import LISTED_MAX, in_state, parents_of_new
from quaymaster.core.values.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.net.routing.broker_client import BrokerClient, ask
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

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what it answers, by method and path."""
        return {
            ("GET", "queues", "*", "partitions"): AdminRoute(self._list, looks_at=Operation.LIST_PARTITIONS),
            ("POST", "queues", "*", "split"): AdminRoute(self._split, "SplitQueue"),
            ("POST", "queues", "*", "merge"): AdminRoute(self._merge, "MergeQueue"),
            ("POST", "queues", "*", "move"): AdminRoute(self._move, "MoveQueue"),
            ("POST", "queues", "*", "cancel-change"): AdminRoute(self._cancel, "CancelQueueChange"),
        }

    async def _list(self, call: AdminCall) -> Mapping[str, Any]:
        # As the store has it now: what is asked next is about a change that another front end may have begun.
        await self._metadata.queues.refresh(self._queue(call))
        queue = self._queue(call)
        rows = await asyncio.gather(*(self._row(queue, entry) for entry in queue.partitions))
        return {
            "name": queue.name,
            "table_version": queue.table_version,
            "given_up": queue.given_up or None,
            "partitions": rows,
        }

    async def _row(self, queue: QueueDefinition, entry: PartitionPlacement) -> dict[str, Any]:
        row: dict[str, Any] = {
            "number": entry.number,
            "state": entry.state,
            "journal": entry.journal_id,
            "first_key": f"{entry.first_key:016x}",
            "last_key": f"{entry.last_key:016x}",
            "sealed_for_ms": None,
        }
        match entry.state:
            case "new":
                return row | {"messages": 0, "sends": 0}
            case "drained":
                return row | {"messages": 0, "sends": entry.sends}
            case "open":
                counted = await self._ask(CountMessages(queue.queue_id, entry.number))
                if isinstance(counted, QueueCounts):
                    messages = counted.visible + counted.in_flight + counted.delayed
                    return row | {"messages": messages, "sends": counted.sends}
            case _:
                told = await self._ask(AskPartition(queue.queue_id, entry.number))
                if isinstance(told, PartitionOutcome):
                    row["sealed_for_ms"] = told.sealed_for_ms
                    return row | {"messages": told.messages, "sends": told.sends}
        return row | {"messages": None, "sends": None}

    async def _ask(self, command: CountMessages | AskPartition) -> object | None:
        """Return what a journal says of a partition, None when it does not answer now, or does not know it yet."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await ask(self._broker, command)
        except (NotNow, TimeoutError, QueueDoesNotExist):
            return None

    async def _split(self, call: AdminCall) -> Mapping[str, Any]:
        partitions = [] if call.fields.get("partition") is None else [call.integer("partition")]
        return await self._change(call, "split", partitions, into=call.integer("into"))

    async def _merge(self, call: AdminCall) -> Mapping[str, Any]:
        partitions = call.fields.get("partitions") or []
        are_numbers = isinstance(partitions, list) and all(type(number) is int for number in partitions)
        if not are_numbers or len(partitions) > LISTED_MAX or any(number < 0 for number in partitions):
            raise InvalidParameterValue.of(
                "partitions", partitions, "Must be a list of numbers of partitions."
            )
        return await self._change(call, "merge", partitions)

    async def _move(self, call: AdminCall) -> Mapping[str, Any]:
        partitions = [] if call.fields.get("partition") is None else [call.integer("partition")]
        journals = [] if call.fields.get("journal") is None else [call.integer("journal")]
        return await self._change(call, "move", partitions, journals=journals)

    async def _cancel(self, call: AdminCall) -> Mapping[str, Any]:
        return await self._change(call, "cancel", [])

    async def _change(
        self,
        call: AdminCall,
        kind: PartitionChange,
        partitions: list[int],
        *,
        into: int = 0,
        journals: list[int] | None = None,
    ) -> Mapping[str, Any]:
        queue = self._queue(call)
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
        return {
            "name": changed.name,
            "table_version": changed.table_version,
            "parents": [entry.number for entry in parents_of_new(changed)],
            "children": [entry.number for entry in in_state(changed, "new")],
        }

    def _queue(self, call: AdminCall) -> QueueDefinition:
        queue = self._metadata.find_queue(call.owner, call.name)
        if queue is None:
            raise QueueDoesNotExist
        return queue

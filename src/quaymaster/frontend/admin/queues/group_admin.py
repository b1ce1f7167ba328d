"""What operators do with consumer groups of log-retained queues: list, create, reset, set an offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from quaymaster.core.values.commands.logs import ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import CountMessages, QueueCounts
from quaymaster.core.values.errors import QueueDoesNotExist, UnsupportedOperation
from quaymaster.core.values.partition_tables import described_partitions
from quaymaster.core.values.queues.attributes import Durability
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.logs.log_ends import LogEnds
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.protocol.admin import queues as shapes
from quaymaster.protocol.rpc.metadata_messages import CreateGroup, ListGroups


class KnowsQueues(Protocol):
    """Where queues are found and changed."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...


class GroupAdmin:
    """The admin API's actions on groups. `name` is a queue's, or `<queue>@<group>`."""

    def __init__(self, broker: BrokerClient, metadata: KnowsQueues) -> None:
        self._broker = broker
        self._ends = LogEnds(broker)
        self._metadata = metadata

    async def list_groups(self, account_id: str, name: str) -> list[shapes.GroupView]:
        """Return a log's groups and where each stands."""
        log = self._log(account_id, name)
        rows: list[shapes.GroupView] = []
        token: str | None = None
        while True:
            page = await self._metadata.queues.list_page(ListGroups(account_id, name, 1_000, token))
            rows += [await self._row(log, group) for group in page.queues]
            token = page.next_token
            if token is None:
                return rows

    async def create_group(self, account_id: str, name: str, start: str) -> shapes.GroupView:
        """Create a group, or find it, and return where it stands. `start` empty: as the queue says."""
        group = await self._metadata.queues.change(CreateGroup(account_id, name, start))
        return await self._row(self._log(account_id, split_group(name)[0]), group)

    async def reset(self, account_id: str, name: str, start: str) -> shapes.GroupView:
        """Let a group begin anew, and return where it then stands."""
        log, group = self._group(account_id, name)
        await ask(self._broker, ResetGroup(group.queue_id, start))
        return await self._row(log, group)

    async def set_offset(self, account_id: str, name: str, partition: int, offset: int) -> shapes.GroupView:
        """Consume everything below an offset, and return where the group then stands."""
        log, group = self._group(account_id, name)
        await ask(self._broker, SetGroupOffset(group.queue_id, partition, offset))
        return await self._row(log, group)

    async def _row(self, log: QueueDefinition, group: QueueDefinition) -> shapes.GroupView:
        counts = await ask(self._broker, CountMessages(group.queue_id))
        assert isinstance(counts, QueueCounts), "a CountMessages is answered by QueueCounts"
        entries = described_partitions(log)
        bounds = await self._ends.of(log, entries)
        consumed = await self._ends.of(group, entries)
        partitions = [
            shapes.GroupPartition(
                partition=entry.number, start=kept.earliest, end=kept.end, offset=done.earliest
            )
            for entry, kept, done in zip(entries, bounds, consumed, strict=True)
        ]
        return shapes.GroupView(
            group=split_group(group.name)[1],
            queue=log.name,
            queue_id=group.queue_id,
            created_ms=group.created_ms,
            partitions=partitions,
            in_flight=counts.in_flight,
            lag=counts.visible + counts.in_flight + counts.delayed,
            **traffic_of(group, counts),
        )

    def _log(self, account_id: str, name: str) -> QueueDefinition:
        log = self._metadata.find_queue(account_id, name)
        if log is None:
            raise QueueDoesNotExist
        if not log.is_log:
            raise UnsupportedOperation(
                f"The queue {name} has no consumer groups: its RetentionMode is not Log."
            )
        return log

    def _group(self, account_id: str, name: str) -> tuple[QueueDefinition, QueueDefinition]:
        log = self._log(account_id, split_group(name)[0])
        group = self._metadata.find_queue(account_id, name)
        if group is None or group.group_of != log.queue_id:
            raise QueueDoesNotExist
        return log, group


def traffic_of(definition: QueueDefinition, counts: QueueCounts) -> dict[str, Any]:
    """Return what went through a queue since there is one, as its journal has it: for comparisons with usage.

    Where `counted_from` is not 0, it was counted from that offset of the journal on only. `is_durable`: what was
    acknowledged cannot be lost.
    """
    return {
        "sends": counts.sends,
        "deletions": counts.deletions,
        "counted_from": counts.counted_from,
        "is_durable": definition.durability == Durability.SYNC,
    }

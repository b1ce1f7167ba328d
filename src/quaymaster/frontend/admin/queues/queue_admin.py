"""What operators do with queues, their messages and their consumer groups: routes of the admin API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

import msgspec

from quaymaster.core.values.commands.messages import Peek, PeekedMessage, PeekOutcome, QueueCounts
from quaymaster.core.values.errors import CallerError, InvalidParameterValue, QueueDoesNotExist
from quaymaster.core.values.messages import UnknownMessageFormat, decode_message, prefix_bytes
from quaymaster.core.values.partition_tables import read_partitions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import group_name
from quaymaster.frontend.actions.message_actions import uuid_text
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.admin.queues.group_admin import GroupAdmin, traffic_of
from quaymaster.frontend.admin.queues.queue_figures import QueueFigures
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.net.routing.queue_metrics_client import QueueMetricsClient
from quaymaster.protocol.admin import queues as shapes
from quaymaster.protocol.rpc.metadata_messages import DeleteQueue, ListQueues

PEEK_PER_COMMAND: Final = 16
"""Messages asked of the broker together: of 1 MiB each they still take little memory."""
PEEK_BYTES_MAX: Final = 8 << 20
"""Bytes of messages in one answer, as JSON; more than the largest message takes."""


class QueueMetadata(Protocol):
    """What is asked of the metadata service about queues."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...


class QueueAdmin:
    """Answers requests about queues. `cipher` opens messages."""

    def __init__(
        self,
        broker: BrokerClient,
        metadata: QueueMetadata,
        cipher: MessageCipher,
        queue_metrics: QueueMetricsClient | None = None,
    ) -> None:
        """`queue_metrics` tells of many queues at once; without it each is asked for by itself."""
        self._figures = QueueFigures(broker, queue_metrics)
        self._broker = broker
        self._queues = metadata.queues
        self._find_queue = metadata.find_queue
        self._cipher = cipher
        self._groups = GroupAdmin(broker, metadata)

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListQueues": AdminRoute(self._list_queues),
            "DeleteQueue": AdminRoute(self._delete_queue),
            "PeekMessages": AdminRoute(self._peek),
            "ListConsumerGroups": AdminRoute(self._list_groups),
            "CreateConsumerGroup": AdminRoute(self._create_group),
            "ResetConsumerGroup": AdminRoute(self._reset_group),
            "SetConsumerGroupOffset": AdminRoute(self._set_group_offset),
        }

    async def _list_queues(self, call: AdminCall, given: shapes.ListQueuesAdminRequest) -> shapes.QueueList:
        request = ListQueues(call.owner, given.prefix, given.limit, given.next_token or None)
        page = await self._queues.list_page(request)
        counted = await self._figures.counts(page.queues)
        views = [
            _queue_view(definition, counts)
            for definition, counts in zip(page.queues, counted, strict=True)
            if counts is not None
        ]
        return shapes.QueueList(queues=views, next_token=page.next_token)

    async def _delete_queue(self, call: AdminCall, given: shapes.QueueRequest) -> shapes.DeletedQueue:
        definition = self._queue(call, given.name)
        await self._queues.change(
            DeleteQueue(definition.account_id, definition.name, queue_id=definition.queue_id)
        )
        return shapes.DeletedQueue(name=definition.name)

    async def _peek(self, call: AdminCall, given: shapes.PeekRequest) -> shapes.PeekAnswer:
        definition = self._queue(call, given.name)
        at = given.from_
        firsts = {entry.number: entry.first_sequence for entry in read_partitions(definition)}
        number = min(firsts) if given.partition is None else given.partition
        if number not in firsts:
            raise InvalidParameterValue.of(
                "partition", number, "The queue has no such partition with messages."
            )
        rows: list[msgspec.Raw] = []
        left_bytes = PEEK_BYTES_MAX
        while len(rows) < given.count:
            wanted = min(given.count - len(rows), PEEK_PER_COMMAND)
            outcome = await ask(self._broker, Peek(definition.queue_id, number, at, wanted))
            assert isinstance(outcome, PeekOutcome), "a Peek is answered by a PeekOutcome"
            for message in outcome.messages:
                row = msgspec.json.encode(self._message_view(message))
                left_bytes -= len(row)
                if left_bytes < 0 and rows:
                    return _peeked(definition, rows, number, message.sequence)
                rows.append(msgspec.Raw(row))
            at = outcome.next_sequence
            if not at:
                younger = [other for other in firsts if other > number]
                if not younger:
                    return _peeked(definition, rows, number, 0)
                number = min(younger)
                at = firsts[number]
        return _peeked(definition, rows, number, at)

    def _message_view(self, message: PeekedMessage) -> shapes.PeekedView:
        view = shapes.PeekedView(
            message_id=None,
            sequence=message.sequence,
            state=message.state,
            delivery_count=message.delivery_count,
            first_receive_ms=message.first_receive_ms,
            sent_ms=message.sent_ms,
            body=None,
        )
        try:
            stored = decode_message(message.payload, prefix_bytes(message.flags))
            message_id = uuid_text(stored.message_id)
            content = self._cipher.open_stored(stored)
        except (
            MessageDamaged,
            UnknownMessageFormat,
            CallerError,
        ) as error:  # or its queue's key cannot be used
            return msgspec.structs.replace(view, damage=str(error))
        return msgspec.structs.replace(
            view,
            message_id=str(message_id),
            body=content.body,
            attributes={
                name: shapes.PeekedAttribute(type=data_type, value=value)
                for name, data_type, value in content.attributes
            },
            sender_id=content.sender_id,
            group_id=content.group_id,
            dedup_id=content.dedup_id,
            trace_header=content.trace_header,
            dead_letter_source_arn=stored.dead_letter_source_arn,
        )

    async def _list_groups(self, call: AdminCall, given: shapes.QueueRequest) -> shapes.GroupList:
        groups = await self._groups.list_groups(call.owner, given.name)
        return shapes.GroupList(name=given.name, groups=groups)

    async def _create_group(self, call: AdminCall, given: shapes.CreateGroupRequest) -> shapes.GroupView:
        name = group_name(given.name, given.group)
        return await self._groups.create_group(call.owner, name, given.start)

    async def _reset_group(self, call: AdminCall, given: shapes.ResetGroupRequest) -> shapes.GroupView:
        return await self._groups.reset(call.owner, given.name, given.start)

    async def _set_group_offset(
        self, call: AdminCall, given: shapes.SetGroupOffsetRequest
    ) -> shapes.GroupView:
        return await self._groups.set_offset(call.owner, given.name, given.partition, given.offset)

    def _queue(self, call: AdminCall, name: str) -> QueueDefinition:
        definition = self._find_queue(call.owner, name)
        if definition is None:
            raise QueueDoesNotExist
        return definition


def _peeked(
    definition: QueueDefinition, rows: list[msgspec.Raw], number: int, sequence: int
) -> shapes.PeekAnswer:
    """Return a page of messages. `next_partition`, where there are several: which one `next_sequence` is of."""
    messages = cast(list[shapes.PeekedView], rows)  # which are encoded: they were measured
    return shapes.PeekAnswer(
        name=definition.name,
        messages=messages,
        next_sequence=sequence,
        next_partition=number if len(definition.partitions) > 1 else msgspec.UNSET,
    )


def _queue_view(definition: QueueDefinition, counts: QueueCounts) -> shapes.QueueView:
    return shapes.QueueView(
        name=definition.name,
        account_id=definition.account_id,
        queue_id=definition.queue_id,
        created_ms=definition.created_ms,
        visible=counts.visible,
        in_flight=counts.in_flight,
        delayed=counts.delayed,
        oldest_sent_ms=counts.oldest_sent_ms,
        noisy_groups=counts.noisy_groups,
        is_log=definition.is_log,
        **traffic_of(definition, counts),
    )

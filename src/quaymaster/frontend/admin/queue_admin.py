"""What operators do with queues, their messages and their consumer groups: routes of the admin API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.commands import CountMessages, Peek, PeekedMessage, PeekOutcome, QueueCounts
from quaymaster.core.values.errors import CallerError, InvalidParameterValue, QueueDoesNotExist
from quaymaster.core.values.messages import UnknownMessageFormat, decode_message, prefix_bytes
from quaymaster.core.values.partition_tables import NUMBERS_MAX, read_partitions
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.core.values.queue_names import group_name
from quaymaster.frontend.actions.message_actions import uuid_text
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.admin.admin_calls import PAGE_MAX, AdminCall, AdminRoute
from quaymaster.frontend.admin.group_admin import GroupAdmin, traffic_of
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.protocol.rpc.metadata_messages import DeleteQueue, ListQueues

PAGE_DEFAULT: Final = 100
PEEK_DEFAULT: Final = 10
PEEK_MAX: Final = 1_000
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

    def __init__(self, broker: BrokerClient, metadata: QueueMetadata, cipher: MessageCipher) -> None:
        self._broker = broker
        self._queues = metadata.queues
        self._find_queue = metadata.find_queue
        self._cipher = cipher
        self._groups = GroupAdmin(broker, metadata)

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what answers each request, as `Admin` has them."""
        return {
            ("GET", "queues"): AdminRoute(self._list_queues, looks_at=Operation.LIST_QUEUES),
            ("DELETE", "queues", "*"): AdminRoute(self._delete_queue, "DeleteQueue"),
            ("GET", "queues", "*", "messages"): AdminRoute(self._peek, "PeekMessages"),
            ("GET", "queues", "*", "groups"): AdminRoute(
                self._list_groups, looks_at=Operation.LIST_CONSUMER_GROUPS
            ),
            ("POST", "queues", "*", "groups"): AdminRoute(self._create_group, "CreateConsumerGroup"),
            ("POST", "queues", "*", "reset"): AdminRoute(self._reset_group, "ResetConsumerGroup"),
            ("POST", "queues", "*", "offset"): AdminRoute(self._set_group_offset, "SetConsumerGroupOffset"),
        }

    async def _list_queues(self, call: AdminCall) -> Mapping[str, Any]:
        request = ListQueues(
            call.owner,
            call.query.get("prefix", ""),
            call.number("limit", PAGE_DEFAULT, largest=PAGE_MAX),
            call.query.get("next_token") or None,
        )
        page = await self._queues.list_page(request)
        rows = []
        for definition in page.queues:
            try:
                counts = await ask(self._broker, CountMessages(definition.queue_id))
            except QueueDoesNotExist:
                continue  # deleted since it was listed
            assert isinstance(counts, QueueCounts), "a CountMessages is answered by QueueCounts"
            rows.append(_queue_row(definition, counts))
        return {"queues": rows, "next_token": page.next_token}

    async def _delete_queue(self, call: AdminCall) -> Mapping[str, Any]:
        definition = self._queue(call)
        await self._queues.change(
            DeleteQueue(definition.account_id, definition.name, queue_id=definition.queue_id)
        )
        return {"name": definition.name, "deleted": True}

    async def _peek(self, call: AdminCall) -> Mapping[str, Any]:
        definition = self._queue(call)
        count = call.number("count", PEEK_DEFAULT, largest=PEEK_MAX)
        at = call.number("from", 0, largest=2**63, smallest=0)
        firsts = {entry.number: entry.first_sequence for entry in read_partitions(definition)}
        number = call.number("partition", min(firsts), largest=NUMBERS_MAX, smallest=0)
        if number not in firsts:
            raise InvalidParameterValue.of(
                "partition", number, "The queue has no such partition with messages."
            )
        rows: list[msgspec.Raw] = []
        left_bytes = PEEK_BYTES_MAX
        while len(rows) < count:
            wanted = min(count - len(rows), PEEK_PER_COMMAND)
            outcome = await ask(self._broker, Peek(definition.queue_id, number, at, wanted))
            assert isinstance(outcome, PeekOutcome), "a Peek is answered by a PeekOutcome"
            for message in outcome.messages:
                row = msgspec.json.encode(self._message_row(message), enc_hook=str)
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

    def _message_row(self, message: PeekedMessage) -> dict[str, Any]:
        row: dict[str, Any] = {
            "sequence": message.sequence,
            "state": message.state,
            "delivery_count": message.delivery_count,
            "first_receive_ms": message.first_receive_ms,
            "sent_ms": message.sent_ms,
        }
        try:
            stored = decode_message(message.payload, prefix_bytes(message.flags))
            row["message_id"] = uuid_text(stored.message_id)
            content = self._cipher.open_stored(stored)
        except (
            MessageDamaged,
            UnknownMessageFormat,
            CallerError,
        ) as error:  # or its queue's key cannot be used
            return {"message_id": None, **row, "body": None, "damage": str(error)}
        attributes = {
            name: {"type": data_type, "value": value} for name, data_type, value in content.attributes
        }
        return row | {
            "body": content.body,
            "attributes": attributes,
            "sender_id": content.sender_id,
            "group_id": content.group_id,
            "dedup_id": content.dedup_id,
            "trace_header": content.trace_header,
            "dead_letter_source_arn": stored.dead_letter_source_arn,
        }

    async def _list_groups(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        return {"name": call.name, "groups": await self._groups.list_groups(account_id, call.name)}

    async def _create_group(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        name = group_name(call.name, call.text("group"))
        return await self._groups.create_group(account_id, name, call.text("start", ""))

    async def _reset_group(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        return await self._groups.reset(account_id, call.name, call.text("start"))

    async def _set_group_offset(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.owner
        offset, partition = call.integer("offset"), call.integer("partition", 0)
        return await self._groups.set_offset(account_id, call.name, partition, offset)

    def _queue(self, call: AdminCall) -> QueueDefinition:
        definition = self._find_queue(call.owner, call.name)
        if definition is None:
            raise QueueDoesNotExist
        return definition


def _peeked(
    definition: QueueDefinition, rows: list[msgspec.Raw], number: int, sequence: int
) -> Mapping[str, Any]:
    """Return a page of messages. `next_partition`, where there are several: which one `next_sequence` is of."""
    page: dict[str, Any] = {"name": definition.name, "messages": rows, "next_sequence": sequence}
    if len(definition.partitions) > 1:
        page["next_partition"] = number
    return page


def _queue_row(definition: QueueDefinition, counts: QueueCounts) -> dict[str, Any]:
    return {
        "name": definition.name,
        "account_id": definition.account_id,
        "queue_id": definition.queue_id,
        "created_ms": definition.created_ms,
        "visible": counts.visible,
        "in_flight": counts.in_flight,
        "delayed": counts.delayed,
        "oldest_sent_ms": counts.oldest_sent_ms,
        "noisy_groups": counts.noisy_groups,
        "is_log": definition.is_log,
        **traffic_of(definition, counts),
    }

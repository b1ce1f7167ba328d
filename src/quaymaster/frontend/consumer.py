"""A consumer inside of the server: it receives, deletes and hides messages by the commands that clients' requests make.

    find ──▶ receive ──▶ delete, hide
      └──▶ wait: a parked Watch for each partition, which takes nothing

What it does is in the name of the queue's owner: nothing is judged or limited here. Of a log-retained queue it consumes
through the consumer group PUSH_GROUP, which it makes if need be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from quaymaster.core.push.calls import Deleted, PushedMessage
from quaymaster.core.values.commands.messages import (
    Delivery,
    Elsewhere,
    EntriesOutcome,
    Receipt,
    Receive,
    ReceiveOutcome,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown, Timeout
from quaymaster.core.values.messages import UnknownMessageFormat, decode_message, prefix_bytes
from quaymaster.core.values.partition_tables import read_partitions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, group_definition
from quaymaster.core.values.queues.queue_names import group_name
from quaymaster.frontend.actions.message_actions import (
    entries_command,
    hex_or_none,
    partition_of,
    system_attributes,
    uuid_text,
)
from quaymaster.frontend.partitions.partitioned_broker import PartitionedBroker, SubmittedCommand
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged
from quaymaster.messaging.lent_keys import LendsKeys
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.actions.validation import SYSTEM_ATTRIBUTE_NAMES
from quaymaster.protocol.rpc.metadata_messages import CreateGroup, QueueChange
from quaymaster.protocol.sqs.receipts import ParsedHandle, ReceiptHandles

PUSH_GROUP: Final = "push"
"""Whose messages a log-retained queue's are that are pushed."""
log = logging.getLogger(__name__)


class KnownQueues(Protocol):
    """The part of the metadata service that has queues."""

    async def refresh(self, definition: QueueDefinition) -> None: ...

    async def change(self, request: QueueChange) -> QueueDefinition: ...


class KnownRows(Protocol):
    """The part of the metadata service that a consumer asks."""

    @property
    def queues(self) -> KnownQueues: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def receipt_handles(self) -> ReceiptHandles: ...

    @property
    def data_key(self) -> Callable[[int], bytes]: ...

    @property
    def queue_keys(self) -> LendsKeys: ...


class ReceivedMessage(PushedMessage, frozen=True, gc=False):
    """A message with the delivery that its handle names."""

    parsed: ParsedHandle = ParsedHandle(0, 0, Receipt(0, 0, 0))


class Consumer:
    """Consumes queues of any account. One per process, made after a fork: it has a cipher of its own.

    All methods raise NotNow where the outcome is unknown, and CallerError where the broker or a key service refuses.
    """

    def __init__(
        self,
        broker: PartitionedBroker,
        tables: PartitionTables,
        metadata: KnownRows,
        metrics: Metrics,
        *,
        timeout_s: float,
    ) -> None:
        self._broker = broker
        self._tables = tables
        self._metadata = metadata
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._cipher = MessageCipher(metadata.data_key, lender=metadata.queue_keys)

    async def find(self, account_id: str, name: str) -> QueueDefinition | None:
        """Return an active queue of a name, None where there is none."""
        return await when_known(partial(self._metadata.find_queue, account_id, name))

    async def refresh(self, queue: QueueDefinition) -> None:
        """Have `find` show a queue as it is now."""
        await self._metadata.queues.refresh(queue)

    async def consumed(self, queue: QueueDefinition) -> QueueDefinition:
        """Return what a queue is consumed through: itself, of a log its group."""
        if not queue.is_log:
            return queue
        name = group_name(queue.name, PUSH_GROUP)
        group = await self.find(queue.account_id, name)
        if group is None or group.group_of != queue.queue_id:
            group = await self._metadata.queues.change(
                CreateGroup(queue.account_id, name, log_id=queue.queue_id)
            )
        return group_definition(group, queue)

    async def receive(self, queue: QueueDefinition, count: int, hidden_ms: int) -> list[PushedMessage]:
        """Return up to `count` (1-10) messages of what is consumed; none is normal. They are hidden for so long."""
        await when_known(partial(self._cipher.check_receive, queue))
        number = partition_of(queue)
        command = Receive(queue.queue_id, number, count, hidden_ms, table_version=queue.table_version)
        outcome = await self._ask(command)
        assert isinstance(outcome, ReceiveOutcome), "a Receive is answered by a ReceiveOutcome"
        if not outcome.deliveries:
            self._metrics.empty_receives += 1
            return []
        self._metrics.messages_received += len(outcome.deliveries)
        number = number if outcome.partition < 0 else outcome.partition
        found: list[PushedMessage] = []
        for delivery in outcome.deliveries:
            try:
                try:
                    message = self._open(queue, number, outcome.epoch, delivery)
                except NotYetKnown:  # seldom: its data key has to be asked for
                    message = await when_known(partial(self._open, queue, number, outcome.epoch, delivery))
                found.append(message)
            except (MessageDamaged, UnknownMessageFormat, CallerError, NotNow) as error:
                # It stays hidden, and the others are not kept from being called; its redrive policy takes it away. In
                # FIFO queues they may be of its group, and wait like it.
                log_event(
                    log,
                    logging.ERROR,
                    "message could not be read",
                    queue=queue.name,
                    queue_id=queue.queue_id,
                    sequence=delivery.sequence,
                    reason=str(error),
                )
                if queue.is_fifo:
                    break
        return found

    async def delete(self, queue: QueueDefinition, messages: Sequence[PushedMessage]) -> Deleted:
        """Delete messages that were received; what is gone already, or is somebody else's by now, is left alone."""
        deleted = await self._change(queue, messages, None)
        self._metrics.messages_deleted += deleted.messages
        return deleted

    async def hide(
        self, queue: QueueDefinition, messages: Sequence[PushedMessage], timeouts_ms: Sequence[int]
    ) -> None:
        """Hide messages that were received for other times, from now on."""
        await self._change(queue, messages, timeouts_ms)

    async def wait(self, queue: QueueDefinition, wait_ms: int) -> bool:
        """Return true as soon as a queue may have a message to hand out, false if it had none for `wait_ms`."""
        known_as = self._tables.find(queue.queue_id) or queue
        numbers = [entry.number for entry in read_partitions(known_as)]
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        left = set(numbers)

        def reply(number: int, outcome: Outcome | Exception) -> None:
            left.discard(number)
            if isinstance(outcome, Elsewhere):
                self._tables.meet(outcome.definition)
            if answered.done():
                return
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            elif not isinstance(outcome, WatchOutcome) or outcome.has_messages:
                answered.set_result(True)
            elif not left:
                answered.set_result(False)

        watches = [
            self._broker.submit(
                Watch(queue.queue_id, number, wait_ms, known_as.table_version), partial(reply, number)
            )
            for number in numbers
        ]
        try:
            async with asyncio.timeout(wait_ms / 1_000 + self._timeout_s):
                return await answered
        except TimeoutError:
            raise Timeout from None
        finally:
            for watch in watches:
                watch.cancel()

    async def _change(
        self,
        queue: QueueDefinition,
        messages: Sequence[PushedMessage],
        timeouts_ms: Sequence[int] | None,
    ) -> Deleted:
        """Carry out a Delete, or with times a ChangeVisibility; return of how many messages it was done."""
        parsed: list[ParsedHandle] = []
        for message in messages:
            assert isinstance(message, ReceivedMessage), "it was received here"
            parsed.append(message.parsed)
        command = entries_command(queue, parsed, None if timeouts_ms is None else list(timeouts_ms))
        outcome = await self._ask(command)
        assert isinstance(outcome, EntriesOutcome), "entries are answered by an EntriesOutcome"
        unknown = next((error for error in outcome.errors if isinstance(error, NotNow)), None)
        if unknown is not None:
            raise unknown
        return Deleted(sum(error is None for error in outcome.errors), outcome.gone)

    async def _ask(self, command: SubmittedCommand) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._broker.ask(command)
        except TimeoutError:
            raise Timeout from None

    def _open(self, queue: QueueDefinition, number: int, epoch: int, delivery: Delivery) -> ReceivedMessage:
        stored = decode_message(delivery.payload, prefix_bytes(delivery.flags))
        content = self._cipher.open_stored(stored)
        sequence, delivery_count = delivery.sequence, delivery.delivery_count
        message_id = uuid_text(stored.message_id)
        is_origin = stored.origin_message_id == stored.message_id
        return ReceivedMessage(
            message_id=message_id,
            origin_id=message_id if is_origin else uuid_text(stored.origin_message_id),
            receipt_handle=self._metadata.receipt_handles.mint(
                queue.queue_id, number, sequence, epoch, delivery_count
            ),
            body=content.body,
            body_md5=content.body_md5.hex(),
            sent_ms=delivery.sent_ms,
            delivery_count=delivery_count,
            group_id=content.group_id,
            attributes=tuple(content.attributes),
            attributes_md5=hex_or_none(content.attributes_md5),
            system=system_attributes(SYSTEM_ATTRIBUTE_NAMES, queue, delivery, stored, content),
            parsed=ParsedHandle(number, 0, Receipt(sequence, epoch, delivery_count)),
        )

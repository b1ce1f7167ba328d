"""Sending, receiving, deleting, hiding: the actions that every consumer and producer lives by.

    SendMessage      validate ─▶ MD5s ─▶ hashes ─▶ encrypt ─▶ Send ─▶ ids
    ReceiveMessage   Receive (parked for a long poll) ─▶ open ─▶ choose attributes ─▶ mint handles
    DeleteMessage    parse handle ─▶ Delete

Everything here runs as a callback on the loop's thread and costs no task. An entry of a batch fails alone
wherever the service lets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from quaymaster.core.spread.entries import HandledEntries
from quaymaster.core.spread.parts import SEVERAL
from quaymaster.core.values.commands.messages import (
    QUEUE_DEFAULT,
    RECEIPT_HANDLE_PLACEHOLDER,
    ChangeVisibility,
    Delete,
    Delivery,
    EntriesOutcome,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    SendResult,
)
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import CallerError, InvalidParameterValue, NotNow, ReceiptHandleIsInvalid
from quaymaster.core.values.messages import (
    MessageContent,
    StoredMessage,
    UnknownMessageFormat,
    decode_message,
    hash_attempt,
    prefix_bytes,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.message_preparation import MessagePreparation, Prepared, SentMessage
from quaymaster.frontend.call import Call
from quaymaster.frontend.partitions.partitioned_broker import SubmittedCommand
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged
from quaymaster.monitoring.logs import log_event
from quaymaster.monitoring.metrics import Metrics
from quaymaster.protocol.actions import message_rules, validation
from quaymaster.protocol.actions.completion_rules import COMPLETES
from quaymaster.protocol.sqs import shapes
from quaymaster.protocol.sqs.checksums import attributes_md5
from quaymaster.protocol.sqs.errors import batch_error_entry
from quaymaster.protocol.sqs.receipts import ParsedHandle, ReceiptHandles
from quaymaster.protocol.sqs.shapes import MessageAttributeValue

SEQUENCE_NUMBER_BASE: Final = 18_849_496_460_467_696_128
"""A SequenceNumber is this, where SQS's begin, plus the message's sequence in its partition: 20 digits, increasing.

It may be raised, never lowered: numbers that were told before must stay smaller than those of later messages.
"""

log = logging.getLogger(__name__)


def uuid_text(message_id: bytes) -> str:
    """Return a message id as clients see it."""
    digits = message_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def hex_or_none(digest: bytes | None) -> str | None:
    """Return a sum as clients see it; None where there is none."""
    return None if digest is None else digest.hex()


def sequence_number_text(sequence: int) -> str:
    """Return the SequenceNumber of a FIFO message: 20 digits, larger for later messages of the queue."""
    return str(SEQUENCE_NUMBER_BASE + sequence)


RenderSent = Callable[
    [Call, QueueDefinition, list[Prepared], list[shapes.BatchResultErrorEntry], Outcome],
    shapes.SendMessageBatchResult,
]
"""Answers a batch, of which some entries may have failed before anything was sent."""


class SendsCompletions(Protocol):
    """Sends messages that complete others: `completion_actions`."""

    def send_one(self, call: Call, given: shapes.SendMessageRequest) -> None: ...

    def send_batch(
        self,
        call: Call,
        given: shapes.SendMessageBatchRequest,
        render_sent: RenderSent,
    ) -> None: ...


class MessageActions:
    """The handlers of the actions on messages."""

    def __init__(
        self,
        preparation: MessagePreparation,
        cipher: MessageCipher,
        handles: ReceiptHandles,
        metrics: Metrics,
        completions: SendsCompletions,
    ) -> None:
        self._completions = completions
        self._preparation = preparation
        self._cipher = cipher
        self._handles = handles
        self._metrics = metrics

    # Sending

    def send_message(self, call: Call, given: shapes.SendMessageRequest) -> None:
        """Store one message."""
        if given.MessageAttributes and COMPLETES in given.MessageAttributes:
            self._completions.send_one(call, given)
            return
        definition = call.resolved
        checked = message_rules.check_send(given, definition)
        call.payload_bytes = checked.size_bytes
        (prepared,) = self._preparation.prepare(call, definition, [("", given, checked)])

        def render(outcome: Outcome) -> shapes.SendMessageResult:
            assert isinstance(outcome, SendOutcome), "a Send is answered by a SendOutcome"
            (result,) = self._counted(call, outcome)
            return shapes.SendMessageResult(
                MD5OfMessageBody=prepared.body_md5.hex(),
                MD5OfMessageAttributes=hex_or_none(prepared.attributes_md5),
                MD5OfMessageSystemAttributes=hex_or_none(prepared.system_attributes_md5),
                MessageId=uuid_text(result.message_id),
                SequenceNumber=sequence_number_text(result.sequence) if definition.is_fifo else None,
            )

        call.submit(Send(definition.queue_id, partition_of(definition), [prepared.message]), render)

    def send_message_batch(self, call: Call, given: shapes.SendMessageBatchRequest) -> None:
        """Store up to ten messages; what is wrong with one fails it alone, where the service lets it."""
        definition = call.resolved
        entries = given.Entries
        for entry in entries:
            if entry.MessageAttributes and COMPLETES in entry.MessageAttributes:
                self._completions.send_batch(call, given, self._render_sent)
                return
        validation.check_batch_entries(entries, "SendMessageBatchRequestEntry")
        checked = message_rules.check_send_batch(entries, definition)
        valid: list[SentMessage] = []
        failed: list[shapes.BatchResultErrorEntry] = []
        payload_bytes = 0
        for entry, result in zip(entries, checked, strict=True):
            if isinstance(result, CallerError):
                failed.append(batch_error_entry(entry.Id, result))
            else:
                valid.append((entry.Id, entry, result))
                payload_bytes += result.size_bytes
        # Set, not added to: a data key that must be asked for brings it here again.
        call.payload_bytes = payload_bytes
        if not valid:
            call.succeed(shapes.SendMessageBatchResult(Failed=failed))
            return
        ready = self._preparation.prepare(call, definition, valid)

        def render(outcome: Outcome) -> shapes.SendMessageBatchResult:
            return self._render_sent(call, definition, ready, failed, outcome)

        messages = [prepared.message for prepared in ready]
        call.submit(Send(definition.queue_id, partition_of(definition), messages), render)

    def _render_sent(
        self,
        call: Call,
        definition: QueueDefinition,
        stored: list[Prepared],
        failed: list[shapes.BatchResultErrorEntry],
        outcome: Outcome,
    ) -> shapes.SendMessageBatchResult:
        assert isinstance(outcome, SendOutcome), "a Send is answered by a SendOutcome"
        if outcome.errors:
            stored, outcome = _without_failed(stored, outcome, failed)
        is_fifo = definition.is_fifo
        successful = [
            shapes.SendMessageBatchResultEntry(
                Id=prepared.entry_id,
                MessageId=uuid_text(result.message_id),
                MD5OfMessageBody=prepared.body_md5.hex(),
                MD5OfMessageAttributes=hex_or_none(prepared.attributes_md5),
                MD5OfMessageSystemAttributes=hex_or_none(prepared.system_attributes_md5),
                SequenceNumber=sequence_number_text(result.sequence) if is_fifo else None,
            )
            for prepared, result in zip(stored, self._counted(call, outcome), strict=True)
        ]
        return shapes.SendMessageBatchResult(Successful=successful, Failed=failed)

    def _counted(self, call: Call, outcome: SendOutcome) -> list[SendResult]:
        results = outcome.results
        metrics = self._metrics
        call.message_count = len(results)
        for result in results:
            if result.duplicate:
                metrics.messages_duplicate += 1
                call.duplicate_count += 1
            else:
                metrics.messages_sent += 1
        return results

    # Receiving

    def receive_message(self, call: Call, given: shapes.ReceiveMessageRequest) -> None:
        """Hand out up to ten messages; wait for the first if asked to and there is a place to wait."""
        definition = call.resolved
        asked = validation.check_receive(given)
        self._cipher.check_receive(definition)
        wait_ms = definition.receive_wait_ms if asked.wait_ms is None else asked.wait_ms
        loads = call.calls.loads
        if wait_ms and not loads.has_place_for_poll(loads.of(call.principal.account_id)):
            wait_ms = 0
        attempt = None
        if asked.attempt_id is not None and definition.is_fifo and not definition.is_at_most_once:
            attempt = hash_attempt(asked.attempt_id)
        timeout_ms = asked.visibility_timeout_ms
        partition = partition_of(definition)
        command = Receive(
            definition.queue_id,
            partition,
            asked.count_max,
            QUEUE_DEFAULT if timeout_ms is None else timeout_ms,
            wait_ms,
            attempt,
            definition.table_version,
            takes_for_good=definition.is_at_most_once,
            attempt_id="" if attempt is None else asked.attempt_id or "",
        )

        def render(outcome: Outcome) -> shapes.ReceiveMessageResult:
            assert isinstance(outcome, ReceiveOutcome), "a Receive is answered by a ReceiveOutcome"
            deliveries = outcome.deliveries
            if not deliveries:
                self._metrics.empty_receives += 1
                return _NOTHING_RECEIVED
            self._metrics.messages_received += len(deliveries)
            messages: list[shapes.Message] = []
            payload_bytes = 0
            unusable: CallerError | None = None
            number = partition if outcome.partition < 0 else outcome.partition
            trace_headers: list[str] | None = None if call.calls.traces is None else []
            for delivery in deliveries:
                try:
                    opened = self._open(call, definition, delivery)
                except CallerError as error:  # the key of an earlier day, which is another one
                    unusable = error
                    continue
                if opened is None:
                    continue
                stored, content = opened
                handle = self._handles.mint(
                    definition.queue_id, number, delivery.sequence, outcome.epoch, delivery.delivery_count
                )
                message = _render_message(asked, definition, delivery, stored, content, handle)
                messages.append(message)
                if trace_headers is not None and content.trace_header is not None:
                    trace_headers.append(content.trace_header)
                payload_bytes += message_rules.text_bytes(content.body)
                if message.MessageAttributes:
                    payload_bytes += message_rules.attributes_bytes(message.MessageAttributes)
            if unusable is not None and not messages:
                raise unusable
            call.message_count, call.payload_bytes = len(messages), payload_bytes
            if trace_headers:
                call.trace_headers = tuple(trace_headers)
            return shapes.ReceiveMessageResult(messages)

        if wait_ms:
            call.submit_poll(command, render, wait_ms)
        else:
            call.submit(command, render)

    def _open(
        self, call: Call, definition: QueueDefinition, delivery: Delivery
    ) -> tuple[StoredMessage, MessageContent] | None:
        """Return a delivery's message, or None if it cannot be read: it then stays hidden until its timeout.

        One damaged message must not keep its queue's others from being received; after enough receives its
        redrive policy takes it away.
        """
        try:
            stored = decode_message(delivery.payload, prefix_bytes(delivery.flags))
            return stored, self._cipher.open_stored(stored)
        except (MessageDamaged, UnknownMessageFormat) as error:
            log_event(
                log,
                logging.ERROR,
                "message could not be read",
                queue=definition.name,
                queue_id=definition.queue_id,
                sequence=delivery.sequence,
                reason=str(error),
                request=call.request_id,
            )
            return None

    # Deleting

    def delete_message(self, call: Call, given: shapes.DeleteMessageRequest) -> None:
        """Delete one message by the handle of a delivery of it."""
        definition = call.resolved
        handle = given.ReceiptHandle
        parsed = self._handles.parse(handle, definition.queue_id)

        def render(outcome: Outcome) -> None:
            assert isinstance(outcome, EntriesOutcome), "a Delete is answered by an EntriesOutcome"
            (error,) = outcome.errors
            if error is not None:
                raise quoting(error, handle)
            self._metrics.messages_deleted += 1
            call.message_count, call.duplicate_count = 1, outcome.gone

        call.submit(entries_command(definition, [parsed]), render)

    def delete_message_batch(self, call: Call, given: shapes.DeleteMessageBatchRequest) -> None:
        """Delete up to ten messages; a bad handle fails only its entry."""
        definition = call.resolved
        entries = given.Entries
        validation.check_batch_entries(entries, "DeleteMessageBatchRequestEntry")
        ready: list[shapes.DeleteMessageBatchRequestEntry] = []
        parsed: list[ParsedHandle] = []
        failed: list[shapes.BatchResultErrorEntry] = []
        for entry in entries:
            try:
                parsed.append(self._handles.parse(entry.ReceiptHandle, definition.queue_id))
            except ReceiptHandleIsInvalid as error:
                failed.append(batch_error_entry(entry.Id, error))
            else:
                ready.append(entry)
        if not ready:
            call.succeed(shapes.DeleteMessageBatchResult(Failed=failed))
            return

        def render(outcome: Outcome) -> shapes.DeleteMessageBatchResult:
            assert isinstance(outcome, EntriesOutcome), "a Delete is answered by an EntriesOutcome"
            successful: list[shapes.DeleteMessageBatchResultEntry] = []
            for entry, error in zip(ready, outcome.errors, strict=True):
                if error is None:
                    successful.append(shapes.DeleteMessageBatchResultEntry(entry.Id))
                else:
                    failed.append(batch_error_entry(entry.Id, quoting(error, entry.ReceiptHandle)))
            self._metrics.messages_deleted += len(successful)
            call.message_count, call.duplicate_count = len(successful), outcome.gone
            return shapes.DeleteMessageBatchResult(successful, failed)

        call.submit(entries_command(definition, parsed), render)

    # Hiding

    def change_message_visibility(self, call: Call, given: shapes.ChangeMessageVisibilityRequest) -> None:
        """Hide one message for a new time from now on."""
        definition = call.resolved
        timeout_ms = validation.check_visibility_timeout(given.VisibilityTimeout)
        handle = given.ReceiptHandle
        parsed = self._handles.parse(handle, definition.queue_id)

        def render(outcome: Outcome) -> None:
            assert isinstance(outcome, EntriesOutcome), "a ChangeVisibility is answered by an EntriesOutcome"
            (error,) = outcome.errors
            if error is not None:
                raise quoting(error, handle)
            call.message_count = 1

        call.submit(entries_command(definition, [parsed], [timeout_ms]), render)

    def change_message_visibility_batch(
        self, call: Call, given: shapes.ChangeMessageVisibilityBatchRequest
    ) -> None:
        """Hide up to ten messages, each for its own time; what is wrong with one fails it alone."""
        definition = call.resolved
        entries = given.Entries
        validation.check_batch_entries(entries, "ChangeMessageVisibilityBatchRequestEntry")
        ready: list[shapes.ChangeMessageVisibilityBatchRequestEntry] = []
        parsed: list[ParsedHandle] = []
        timeouts_ms: list[int] = []
        failed: list[shapes.BatchResultErrorEntry] = []
        for entry in entries:
            timeout_ms = validation.check_change_entry(entry)
            if isinstance(timeout_ms, CallerError):
                failed.append(batch_error_entry(entry.Id, timeout_ms))
                continue
            try:
                parsed.append(self._handles.parse(entry.ReceiptHandle, definition.queue_id))
            except ReceiptHandleIsInvalid as error:
                failed.append(batch_error_entry(entry.Id, error))
            else:
                ready.append(entry)
                timeouts_ms.append(timeout_ms)
        if not ready:
            call.succeed(shapes.ChangeMessageVisibilityBatchResult(Failed=failed))
            return

        def render(outcome: Outcome) -> shapes.ChangeMessageVisibilityBatchResult:
            assert isinstance(outcome, EntriesOutcome), "a ChangeVisibility is answered by an EntriesOutcome"
            successful: list[shapes.ChangeMessageVisibilityBatchResultEntry] = []
            for entry, error in zip(ready, outcome.errors, strict=True):
                if error is None:
                    successful.append(shapes.ChangeMessageVisibilityBatchResultEntry(entry.Id))
                else:
                    failed.append(batch_error_entry(entry.Id, quoting(error, entry.ReceiptHandle)))
            call.message_count = len(successful)
            return shapes.ChangeMessageVisibilityBatchResult(successful, failed)

        call.submit(entries_command(definition, parsed, timeouts_ms), render)


_NOTHING_RECEIVED: Final = shapes.ReceiveMessageResult()


def partition_of(definition: QueueDefinition) -> int:
    """Return the partition that requests for a queue go to; SEVERAL where there is not one alone."""
    partitions = definition.partitions
    return partitions[0].number if len(partitions) == 1 else SEVERAL


def entries_command(
    definition: QueueDefinition, parsed: list[ParsedHandle], timeouts_ms: list[int] | None = None
) -> SubmittedCommand:
    """Return the command about these deliveries: a Delete, or with timeouts a ChangeVisibility."""
    queue_id = definition.queue_id
    number = partition_of(definition)
    receipts = [handle.receipt for handle in parsed]
    for handle in parsed:
        if handle.partition != number:
            numbers = [handle.partition for handle in parsed]
            return HandledEntries(queue_id, numbers, receipts, timeouts_ms)
    if timeouts_ms is None:
        return Delete(queue_id, number, receipts)
    return ChangeVisibility(queue_id, number, receipts, timeouts_ms)


def _without_failed(
    ready: list[Prepared], outcome: SendOutcome, failed: list[shapes.BatchResultErrorEntry]
) -> tuple[list[Prepared], SendOutcome]:
    """Return the messages that were stored, and their results; the others are added to `failed`."""
    stored: list[Prepared] = []
    results: list[SendResult] = []
    for prepared, result, error in zip(ready, outcome.results, outcome.errors, strict=True):
        if error is None:
            stored.append(prepared)
            results.append(result)
        else:
            assert isinstance(error, CallerError | NotNow), f"a broker answers with no such error: {error!r}"
            failed.append(batch_error_entry(prepared.entry_id, error))
    return stored, SendOutcome(results)


def quoting(error: Exception, handle: str) -> CallerError | NotNow:
    """Return an error of the broker with the receipt handle it is about filled in."""
    assert isinstance(error, CallerError | NotNow), f"a broker answers with no such error: {error!r}"
    if isinstance(error, InvalidParameterValue) and RECEIPT_HANDLE_PLACEHOLDER in error.message:
        return InvalidParameterValue(error.message.replace(RECEIPT_HANDLE_PLACEHOLDER, handle))
    return error


def attribute_values(content: MessageContent) -> dict[str, MessageAttributeValue]:
    """Return a message's attributes as they were sent."""
    return {
        name: MessageAttributeValue(data_type, BinaryValue=value)
        if isinstance(value, bytes)
        else MessageAttributeValue(data_type, value)
        for name, data_type, value in content.attributes
    }


def system_attributes(
    asked: frozenset[str],
    definition: QueueDefinition,
    delivery: Delivery,
    stored: StoredMessage,
    content: MessageContent,
) -> dict[str, str]:
    """Return those of the asked system attributes that the message has."""
    values: dict[str, str] = {}
    if "SenderId" in asked:
        values["SenderId"] = content.sender_id
    if "SentTimestamp" in asked:
        values["SentTimestamp"] = str(delivery.sent_ms)
    if "ApproximateReceiveCount" in asked:
        values["ApproximateReceiveCount"] = str(delivery.delivery_count)
    if "ApproximateFirstReceiveTimestamp" in asked:
        values["ApproximateFirstReceiveTimestamp"] = str(delivery.first_receive_ms)
    if content.group_id is not None and "MessageGroupId" in asked:
        values["MessageGroupId"] = content.group_id
    if definition.has_dedup_ids and content.dedup_id is not None and "MessageDeduplicationId" in asked:
        values["MessageDeduplicationId"] = content.dedup_id
    if definition.is_fifo and "SequenceNumber" in asked:
        values["SequenceNumber"] = sequence_number_text(delivery.sequence)
    if content.trace_header is not None and "AWSTraceHeader" in asked:
        values["AWSTraceHeader"] = content.trace_header
    if stored.dead_letter_source_arn is not None and "DeadLetterQueueSourceArn" in asked:
        values["DeadLetterQueueSourceArn"] = stored.dead_letter_source_arn
    if "OriginMessageId" in asked:
        values["OriginMessageId"] = uuid_text(stored.origin_message_id)
    return values


def _render_message(
    asked: validation.ReceiveRequest,
    definition: QueueDefinition,
    delivery: Delivery,
    stored: StoredMessage,
    content: MessageContent,
    handle: str,
) -> shapes.Message:
    attributes: dict[str, MessageAttributeValue] | None = None
    attributes_sum: str | None = None
    if content.attributes and not asked.message_attributes.takes_nothing:
        every = attribute_values(content)
        selected = asked.message_attributes.select(every)
        if selected:
            attributes = selected
            # Clients check the sum over what they got, so it is not that of the whole message.
            if len(selected) == len(every) and content.attributes_md5 is not None:
                attributes_sum = content.attributes_md5.hex()
            else:
                attributes_sum = attributes_md5(selected).hex()
    names = asked.system_attributes
    return shapes.Message(
        uuid_text(stored.message_id),
        handle,
        content.body_md5.hex(),
        content.body,
        (system_attributes(names, definition, delivery, stored, content) or None) if names else None,
        attributes_sum,
        attributes,
    )

"""Completions: messages are sent together with the deletion of others, both or neither.

    CompleteMessages       handles of one queue, messages to several
    SendMessage            one message, one handle: its attribute Quaymaster.Completes
    SendMessageBatch       messages with the same handle are one completion; the others are sent as always

Everything here runs as a callback on the loop's thread, as `message_actions` does. A completion that is asked for again
has the same digest and the same message ids, so its answer is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from quaymaster.core.spread.sends import key_of
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, Output
from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import CallerError, InvalidParameterValue, NotNow
from quaymaster.core.values.partition_tables import taking
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.message_actions import (
    RenderSent,
    hex_or_none,
    partition_of,
    quoting,
    uuid_text,
)
from quaymaster.frontend.actions.message_preparation import MessagePreparation, Prepared, SentMessage
from quaymaster.frontend.addresses import Addresses
from quaymaster.frontend.call import Call
from quaymaster.frontend.partitions.partitioned_broker import SeveralCommands, SeveralOutcomes
from quaymaster.monitoring.metrics import Metrics
from quaymaster.protocol.actions import completion_rules, completion_shapes, message_rules, validation
from quaymaster.protocol.actions.message_rules import AnySend, CheckedMessage
from quaymaster.protocol.actions.table import COMPLETE_MESSAGES
from quaymaster.protocol.sqs import shapes
from quaymaster.protocol.sqs.checksums import attributes_md5
from quaymaster.protocol.sqs.errors import batch_error_entry
from quaymaster.protocol.sqs.receipts import ReceiptHandles

SentOutput = tuple[AnySend, QueueDefinition, CheckedMessage]
"""What was sent, its queue, its body in UTF-8 and its size."""
Entry = shapes.SendMessageBatchRequestEntry


class _Batch:
    """The entries of a batch: those that complete nothing, those that do by their handles, and what is wrong."""

    def __init__(self, entries: Sequence[Entry], definition: QueueDefinition) -> None:
        self.ordinary: list[SentMessage] = []
        self.by_handle: dict[str, list[tuple[str, Entry, CheckedMessage]]] = {}
        self.failed: list[shapes.BatchResultErrorEntry] = []
        self.payload_bytes = 0
        self.has_ordinary = False
        handles: list[str | CallerError | None] = []
        for entry in entries:
            try:
                handles.append(completion_rules.handle_of(entry))
            except CallerError as error:
                handles.append(error)
        stored = [completion_rules.without_handle(entry) for entry in entries]
        spoilt: dict[str, None] = {}
        for entry, handle, checked in zip(
            stored, handles, message_rules.check_send_batch(stored, definition), strict=True
        ):
            self.has_ordinary = self.has_ordinary or handle is None
            if isinstance(handle, CallerError):
                self.failed.append(batch_error_entry(entry.Id, handle))
            elif isinstance(checked, CallerError):
                self.failed.append(batch_error_entry(entry.Id, checked))
                if handle is not None:
                    spoilt[handle] = None
            elif handle is None:
                self.ordinary.append((entry.Id, entry, checked))
                self.payload_bytes += checked.size_bytes
            else:
                self.by_handle.setdefault(handle, []).append((entry.Id, entry, checked))
                self.payload_bytes += checked.size_bytes
        for handle in spoilt:
            for entry_id, _, _ in self.by_handle.pop(handle, ()):
                self.failed.append(batch_error_entry(entry_id, InvalidParameterValue(_NOT_ALONE)))


_NOT_ALONE = "Another message of the batch that completes the same receipt handle cannot be sent."


class CompletionActions:
    """The handlers of completions."""

    def __init__(
        self,
        preparation: MessagePreparation,
        handles: ReceiptHandles,
        addresses: Addresses,
        metrics: Metrics,
    ) -> None:
        self._preparation = preparation
        self._handles = handles
        self._addresses = addresses
        self._metrics = metrics

    def complete_messages(self, call: Call, given: completion_shapes.CompleteMessagesRequest) -> None:
        """Delete up to ten messages and send up to a hundred others, or do nothing."""
        completion_rules.check_completion(given)
        sent: list[SentOutput] = [
            (message, target, completion_rules.check_output(number, message, target))
            for number, (message, target) in enumerate(zip(given.Messages, call.others, strict=True))
        ]
        call.payload_bytes = sum(checked.size_bytes for _, _, checked in sent)
        completion_rules.check_size(call.payload_bytes)
        command, ready = self._completion(call, call.resolved, given.ReceiptHandles, sent)

        def render(outcome: Outcome) -> completion_shapes.CompleteMessagesResult:
            self._count(call, command, _done(outcome, given.ReceiptHandles))
            return completion_shapes.CompleteMessagesResult(
                [
                    completion_shapes.CompleteMessagesResultEntry(
                        uuid_text(prepared.message.message_id),
                        prepared.body_md5.hex(),
                        hex_or_none(prepared.attributes_md5),
                        hex_or_none(prepared.system_attributes_md5),
                    )
                    for prepared in ready
                ]
            )

        call.submit(command, render)

    def send_one(self, call: Call, given: shapes.SendMessageRequest) -> None:
        """Send a message that completes another."""
        handle = completion_rules.handle_of(given)
        assert handle is not None, "it has the attribute"
        message = completion_rules.without_handle(given)
        checked = message_rules.check_send(message, call.resolved)
        call.payload_bytes = checked.size_bytes
        call.recorded_as = COMPLETE_MESSAGES
        source = self._source_of(call, handle)
        command, (prepared,) = self._completion(call, source, [handle], [(message, call.resolved, checked)])

        def render(outcome: Outcome) -> shapes.SendMessageResult:
            self._count(call, command, _done(outcome, [handle]))
            return shapes.SendMessageResult(
                MD5OfMessageBody=prepared.body_md5.hex(),
                MD5OfMessageAttributes=_sum_of_sent(given),
                MD5OfMessageSystemAttributes=hex_or_none(prepared.system_attributes_md5),
                MessageId=uuid_text(prepared.message.message_id),
            )

        call.submit(command, render)

    def send_batch(self, call: Call, given: shapes.SendMessageBatchRequest, render_sent: RenderSent) -> None:
        """Send up to ten messages, some of which complete others: those with one handle together, or none of them.

        `render_sent` makes the answer of those that complete nothing.
        """
        definition, entries = call.resolved, given.Entries
        validation.check_batch_entries(entries, "SendMessageBatchRequestEntry")
        batch = _Batch(entries, definition)
        call.payload_bytes = batch.payload_bytes
        commands: list[Command] = []
        ordinary: list[Prepared] = []
        if batch.ordinary:
            ordinary = self._preparation.prepare(call, definition, batch.ordinary)
            messages = [prepared.message for prepared in ordinary]
            commands.append(Send(definition.queue_id, partition_of(definition), messages))
        units: list[tuple[str, Complete, list[Prepared]]] = []
        for handle, sent in batch.by_handle.items():
            try:
                source = self._source_of(call, handle)
                outputs: list[SentOutput] = [(entry, definition, checked) for _, entry, checked in sent]
                units.append((handle, *self._completion(call, source, [handle], outputs)))
            except CallerError as error:
                batch.failed += [batch_error_entry(entry_id, error) for entry_id, _, _ in sent]
        commands += [command for _, command, _ in units]
        if not batch.has_ordinary:
            call.recorded_as = COMPLETE_MESSAGES
        if not commands:
            call.succeed(shapes.SendMessageBatchResult(Failed=batch.failed))
            return
        sums = {entry.Id: _sum_of_sent(entry) for entry in entries}

        def successful(entry_id: str, prepared: Prepared) -> shapes.SendMessageBatchResultEntry:
            return shapes.SendMessageBatchResultEntry(
                Id=entry_id,
                MessageId=uuid_text(prepared.message.message_id),
                MD5OfMessageBody=prepared.body_md5.hex(),
                MD5OfMessageAttributes=sums[entry_id],
                MD5OfMessageSystemAttributes=hex_or_none(prepared.system_attributes_md5),
            )

        def render(several: object) -> shapes.SendMessageBatchResult:
            assert isinstance(several, SeveralOutcomes), "several commands have several outcomes"
            outcomes = iter(several.outcomes)
            result = shapes.SendMessageBatchResult(Failed=batch.failed)
            if ordinary:
                sent_outcome = next(outcomes)
                if isinstance(sent_outcome, CallerError | NotNow):
                    batch.failed += [batch_error_entry(one.entry_id, sent_outcome) for one in ordinary]
                else:
                    assert not isinstance(sent_outcome, Exception), "a broker answers with no other errors"
                    result = render_sent(call, definition, ordinary, batch.failed, sent_outcome)
            for handle, command, ready in units:
                sent = batch.by_handle[handle]
                try:
                    self._count(
                        call, command, _done(next(outcomes), [handle]), is_alone=not batch.has_ordinary
                    )
                except (CallerError, NotNow) as error:
                    batch.failed += [batch_error_entry(entry_id, error) for entry_id, _, _ in sent]
                else:
                    ids = [entry_id for entry_id, _, _ in sent]
                    result.Successful.extend(map(successful, ids, ready))
            return result

        call.submit(SeveralCommands(commands), render)

    def _source_of(self, call: Call, handle: str) -> QueueDefinition:
        """Return the queue that a handle is of; ReceiptHandleIsInvalid if it is not genuine."""
        queue_id = self._handles.queue_of(handle)
        return next(source for source in call.others if source.queue_id == queue_id)

    def _completion(
        self, call: Call, source: QueueDefinition, handles: Sequence[str], sent: Sequence[SentOutput]
    ) -> tuple[Complete, list[Prepared]]:
        """Return the command of a completion, and the messages it sends."""
        parsed = [self._handles.parse(handle, source.queue_id) for handle in handles]
        if len({handle.partition for handle in parsed}) > 1:
            raise InvalidParameterValue("ReceiptHandles must be of messages of one partition of the queue.")
        identity = completion_rules.CompletionId(handles)
        ready: list[Prepared] = []
        outputs: list[Output] = []
        for number, (message, target, checked) in enumerate(sent):
            message_id = identity.message_id(number)
            prepared = self._preparation.prepare_output(call, target, message, checked, message_id)
            identity.add(target.queue_id, message, prepared.body_md5, prepared.attributes_md5)
            ready.append(prepared)
            outputs.append(self._output(target, prepared))
        receipts = [handle.receipt for handle in parsed]
        return Complete(source.queue_id, parsed[0].partition, receipts, outputs, identity.digest()), ready

    def _output(self, target: QueueDefinition, prepared: Prepared) -> Output:
        new = prepared.message
        key = key_of(target, new, new)
        entry = taking(target, key)[0]
        return Output(
            target.queue_id,
            entry.number,
            entry.journal_id,
            key,
            self._addresses.arn(target),
            new.payload,
            new.flags,
            new.delay_ms,
        )

    def _count(
        self, call: Call, command: Complete, outcome: CompleteOutcome, *, is_alone: bool = True
    ) -> None:
        """Count what was done; with `is_alone` the request's record has no other messages."""
        count = len(command.outputs)
        if is_alone:
            call.message_count += count
            call.duplicate_count += count if outcome.was_done else 0
        if outcome.was_done:
            self._metrics.messages_duplicate += count
        else:
            self._metrics.messages_sent += count
            self._metrics.messages_deleted += len(command.receipts)


def _done(outcome: object, handles: Sequence[str]) -> CompleteOutcome:
    """Return the outcome of a completion that was done; raises what is told of one that was not."""
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, CompleteOutcome), "a Complete is answered by a CompleteOutcome"
    for handle, error in zip(handles, outcome.errors, strict=True):
        if error is not None:
            raise quoting(error, handle)
    return outcome


def _sum_of_sent(message: AnySend) -> str | None:
    """Return the sum over the attributes as they were sent, which clients check; one of them is not stored."""
    attributes = message.MessageAttributes
    return attributes_md5(attributes).hex() if attributes else None

"""Outcomes that name records, answered with what the records hold: receives, peeks, and sends of duplicates."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from quaymaster.broker.replica.records.record_bodies import Body, RecordBodies
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES, PREFIX_FLAGS
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.values.commands.decided import (
    Duplicate,
    PeekedOffsets,
    SentElsewhere,
    SentOutcome,
    Taken,
    TakenOutcome,
)
from quaymaster.core.values.commands.messages import (
    Delivery,
    Elsewhere,
    PeekedMessage,
    PeekOutcome,
    ReceiveOutcome,
    SendOutcome,
    SendResult,
)
from quaymaster.core.values.errors import InternalFailure
from quaymaster.core.values.messages import message_id_of, prefix_bytes
from quaymaster.core.values.records import RecordType
from quaymaster.monitoring.logs import log_failure
from quaymaster.net.routing.broker_client import Reply

LARGE_REPLY_BYTES = 512 * 1024
"""Deliveries of more than this are replied one receive a turn."""

_MOVE = int(RecordType.MOVE)

log = logging.getLogger(__name__)


class Replies:
    """Makes replies of what one replica decided."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, replica: JournalReplica, records: RecordBodies, journal_id: int
    ) -> None:
        self._loop = loop
        self._replica = replica
        self._records = records
        self._journal_id = journal_id
        self._large: deque[tuple[Reply, ReceiveOutcome]] = deque()

    def on_sent(self, reply: Reply, sent: SentOutcome) -> None:
        """Reply to a send; of a duplicate, with the ids of the message that is stored."""
        results = sent.results
        for result in results:
            if type(result) is Duplicate:
                break
        else:
            reply(SendOutcome(results))  # type: ignore[arg-type]  # no duplicates in it
            return

        def done(found: list[SendResult | None]) -> None:
            reply(SendOutcome([result for result in found if result is not None]))

        self._resolve(reply, results, done)

    def on_sent_elsewhere(self, reply: Reply, sent: SentElsewhere) -> None:
        """Reply to a send to a sealed partition, in the same way."""
        self._resolve(reply, sent.results, lambda found: reply(Elsewhere(sent.definition, found)))

    def _resolve(
        self,
        reply: Reply,
        results: Sequence[SendResult | Duplicate | None],
        done: Callable[[list[SendResult | None]], None],
    ) -> None:
        """Have results, with those of the stored messages in place of duplicates."""

        def resolve(bodies: dict[int, Body]) -> None:
            resolved: list[SendResult | None] = []
            for result in results:
                if not isinstance(result, Duplicate):
                    resolved.append(result)
                    continue
                body = bodies.get(result.offset)
                if body is None:
                    reply(InternalFailure("The message this one duplicates cannot be read."))
                    return
                record_type, flags, sequence, payload = body
                sequence = self._replica.queues.sequence_of(result.partition_key, record_type, sequence)
                message_id = message_id_of(payload[prefix_bytes(flags & PREFIX_FLAGS) :])
                resolved.append(SendResult(sequence, message_id, duplicate=True))
            done(resolved)

        self._records.read([result.offset for result in results if isinstance(result, Duplicate)], resolve)

    def on_taken(self, reply: Reply, answer: TakenOutcome) -> None:
        """Reply to a receive that took messages."""
        epoch = answer.epoch
        deliveries: list[Delivery] = []
        payload_bytes = 0
        get = self._records.cached
        for taken in answer.taken:
            body = get(taken.offset)
            if body is None:
                break
            deliveries.append(delivery_of(taken, body))
            payload_bytes += len(body[3])
        else:
            if payload_bytes <= LARGE_REPLY_BYTES:
                reply(ReceiveOutcome(epoch, deliveries))
            else:
                self.reply_later(reply, ReceiveOutcome(epoch, deliveries))
            return

        def finish(bodies: dict[int, Body]) -> None:
            found = [
                delivery_of(taken, bodies[taken.offset]) for taken in answer.taken if taken.offset in bodies
            ]
            self.reply_later(reply, ReceiveOutcome(epoch, found))

        self._records.read([taken.offset for taken in answer.taken], finish)

    def on_peeked(self, reply: Reply, peeked: PeekedOffsets) -> None:
        """Reply to a Peek."""

        def finish(bodies: dict[int, Body]) -> None:
            messages = []
            for taken, state in zip(peeked.messages, peeked.states, strict=True):
                body = bodies.get(taken.offset)
                if body is not None:
                    delivery = delivery_of(taken, body)
                    messages.append(
                        PeekedMessage(
                            taken.sequence,
                            state,
                            taken.delivery_count,
                            taken.first_receive_ms,
                            taken.sent_ms,
                            delivery.record_type,
                            delivery.flags,
                            delivery.payload,
                        )
                    )
            reply(PeekOutcome(messages, peeked.next_sequence))

        self._records.read([taken.offset for taken in peeked.messages], finish)

    def reply_later(self, reply: Reply, outcome: ReceiveOutcome) -> None:
        """Reply in a turn of its own if it is large: ten messages of 1 MiB take long to open and to write."""
        payload_bytes = sum([len(delivery.payload) for delivery in outcome.deliveries])
        if payload_bytes <= LARGE_REPLY_BYTES:
            reply(outcome)
            return
        self._large.append((reply, outcome))
        if len(self._large) == 1:
            self._loop.call_soon(self._reply_next)

    def _reply_next(self) -> None:
        reply, outcome = self._large[0]
        try:
            reply(outcome)
        except Exception as error:  # noqa: BLE001 -- one reply must not cost the others theirs
            log_failure(log, "reply failed", error, journal=self._journal_id)
        self._large.popleft()
        if self._large:
            self._loop.call_soon(self._reply_next)


def delivery_of(taken: Taken, body: Body) -> Delivery:
    record_type, flags, _, payload = body
    if record_type == _MOVE:
        payload = payload[MOVE_HEAD_BYTES:]
    return Delivery(
        taken.sequence,
        taken.delivery_count,
        taken.first_receive_ms,
        taken.sent_ms,
        record_type,
        flags & PREFIX_FLAGS,
        payload,
    )

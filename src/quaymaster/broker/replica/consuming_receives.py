"""Receives of AtMostOnce queues: the bodies are read first, then the messages are deleted, and then they are delivered.

    set aside ──bodies read──▶ Consume ──committed──▶ answered
        ▲                         └──not decided──▶ put back, after a moment
        └─ another leader puts them back

Compaction may remove the body of a message that is deleted, so it is read before. The answer waits for the commit:
until then another leader may not know of the delivery, and make one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from quaymaster.broker.replica.records.record_bodies import Body, RecordBodies
from quaymaster.core.values.commands.decided import Consume, Consumed, Taken, TakenOutcome
from quaymaster.core.values.commands.messages import Delivery, Receive, ReceiveOutcome
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand, Outcome
from quaymaster.core.values.errors import TooFewReplicas
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.net.routing.broker_client import Reply

UNREADABLE_RETRY_S: Final = 30.0
"""A message whose record cannot be read is tried again after so long."""
REFUSED_RETRY_S: Final = 1.0
"""After so long what could not be decided is visible again, or tried to be made so once more."""

Submit = Callable[[Command | InternalCommand, Reply], object]


class ConsumingReceives:
    """Delivers the messages that receives of one replica have set aside."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        records: RecordBodies,
        *,
        submit: Submit,
        delivery_of: Callable[[Taken, Body], Delivery],
        reply_later: Callable[[Reply, ReceiveOutcome], None],
        wake: Callable[[int], None],
    ) -> None:
        """`reply_later` answers a receive, in a turn of its own if that is long.

        `wake` lets a parked receive of a partition, by its key, try again.
        """
        self._loop = loop
        self._records = records
        self._submit = submit
        self._delivery_of = delivery_of
        self._reply_later = reply_later
        self._wake = wake
        self._timers: set[asyncio.TimerHandle] = set()

    def begin(self, command: Receive, reply: Reply, answer: TakenOutcome) -> None:
        """Deliver what was set aside for a receive."""
        offsets = [taken.offset for taken in answer.taken]
        self._records.read(offsets, partial(self._propose, command, reply, answer))

    def put_back(self, command: Receive, answer: TakenOutcome) -> None:
        """They are not wanted: make them visible again."""
        self._put_back(command, [taken.sequence for taken in answer.taken])

    def close(self) -> None:
        """Put nothing back any more: the next leader does."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _propose(self, command: Receive, reply: Reply, answer: TakenOutcome, bodies: dict[int, Body]) -> None:
        deliveries: dict[int, Delivery] = {}
        unreadable: list[int] = []
        for taken in answer.taken:
            body = bodies.get(taken.offset)
            if body is None:
                unreadable.append(taken.sequence)
            else:
                deliveries[taken.sequence] = self._delivery_of(taken, body)
        if unreadable:
            self._put_back_later(UNREADABLE_RETRY_S, command, unreadable)
        if not deliveries:
            reply(ReceiveOutcome(answer.epoch, []))
            return

        def answered(outcome: Outcome | Decided | Exception) -> None:
            if isinstance(outcome, Consumed):
                found = [deliveries[sequence] for sequence in outcome.sequences]
                self._reply_later(reply, ReceiveOutcome(answer.epoch, found))
                return
            assert isinstance(outcome, Exception), f"a Consume is not answered so: {outcome}"
            self._put_back_later(REFUSED_RETRY_S, command, list(deliveries))
            reply(outcome)

        self._submit(Consume(command.queue_id, command.partition, list(deliveries)), answered)

    def _put_back_later(self, after_s: float, command: Receive, sequences: list[int]) -> None:
        def put_back() -> None:
            self._timers.discard(timer)
            self._put_back(command, sequences)

        timer = self._loop.call_later(after_s, put_back)
        self._timers.add(timer)

    def _put_back(self, command: Receive, sequences: list[int]) -> None:
        """Make messages visible again, as far as they are still set aside."""
        for sequence in sequences:
            back = MoveMessage(command.queue_id, command.partition, sequence, 0, 0, 0, None, None)

            def answered(outcome: object, sequence: int = sequence) -> None:
                # By this leader nothing is decided for now, and no other one has come that would put them back.
                if isinstance(outcome, TooFewReplicas):
                    self._put_back_later(REFUSED_RETRY_S, command, [sequence])
                else:
                    self._wake(partition_key(command.queue_id, command.partition))

            self._submit(back, answered)

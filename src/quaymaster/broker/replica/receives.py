"""What becomes of the receives and watches of one replica, once it is decided what they get.

decided ─▶ messages ─▶ answered with their bodies (replies), or first deleted (consuming_receives)
   ▲  └──▶ nothing ──▶ in line (waiters), until a message comes or its time is over: answered empty
   │          └──────▶ groups that older partitions may have: not before these have answered (held_receives)
   └── tried again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quaymaster.broker.replica.consuming_receives import ConsumingReceives, Submit
from quaymaster.broker.replica.held_receives import LOOK_S, HeldReceives, not_known
from quaymaster.broker.replica.measures import Measures
from quaymaster.broker.replica.records.record_bodies import RecordBodies
from quaymaster.broker.replica.replies import Replies, delivery_of
from quaymaster.broker.replica.waiters import Waiter, Waiters
from quaymaster.core.partition.partition import Partition
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.values.commands.decided import DeadLetter, TakenOutcome
from quaymaster.core.values.commands.messages import Elsewhere, Receive, Watch, WatchOutcome
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.net.routing.broker_client import Reply

SETTLE_MS = 2_000
"""How long a receive waits for the dead letters it met to be moved, before it is answered without what is behind."""


class Receives:
    """The receives and watches of one replica. Use within one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: JournalReplica,
        records: RecordBodies,
        replies: Replies,
        measures: Measures,
        *,
        submit: Submit,
        try_again: Callable[[Waiter], None],
        time_ms: Callable[[], int],
        on_dead_letters: Callable[[list[DeadLetter]], None],
    ) -> None:
        """`try_again` has one decided once more; `on_dead_letters` hears of messages that are to be moved."""
        self._loop = loop
        self._replica = replica
        self._replies = replies
        self._measures = measures
        self._try_again = try_again
        self._on_dead_letters = on_dead_letters
        self.waiters = Waiters(
            loop,
            try_again=try_again,
            time_ms=time_ms,
            epoch=lambda: replica.epoch,
            on_empty=self._on_empty,
        )
        self._held: HeldReceives[Waiter] = HeldReceives(
            loop,
            try_again=try_again,
            refuse=self._refuse_held,
            ask=lambda partition: replica.queues.asking.add(partition.key),
        )
        self._consuming = ConsumingReceives(
            loop,
            records,
            submit=submit,
            delivery_of=delivery_of,
            reply_later=replies.reply_later,
            wake=self._wake,
        )

    def begin(self, command: Receive | Watch, reply: Reply) -> Waiter:
        """Take a receive or watch that is to be decided."""
        if command.empty_before and self._replica.is_leading:
            self._replica.queues.count_empty_before(command, self._replica.epoch)
        return Waiter(command, reply)

    def answer(self, waiter: Waiter, answer: Decided | Exception) -> None:
        """Answer a receive or watch that was decided, or have it wait."""
        if isinstance(answer, Exception):
            if not waiter.is_done:
                waiter.finish()
                self._measures.answered(type(waiter.command), answer)
                waiter.reply(answer)
            self.pass_on(waiter)  # the queue may be gone: the others should hear it too
            return
        if isinstance(answer, WatchOutcome | Elsewhere):
            self._answer_watch(waiter, answer)
            return
        assert isinstance(answer, TakenOutcome), "a Receive is decided by a TakenOutcome"
        if answer.dead_letters:
            self._on_dead_letters(answer.dead_letters)
        if not answer.taken:
            if not waiter.is_done:
                self._park(waiter, answer)
            return
        if answer.is_to_consume:
            self._consume(waiter, answer)
            return
        # The messages are out with this consumer, whether it is still there or not.
        waiter.finish()
        self._measures.answered(Receive, answer)
        self.pass_on(waiter)
        self._replies.on_taken(waiter.reply, answer)

    def pass_on(self, waiter: Waiter) -> None:
        """A waiter that was woken needs nothing (any more): it is the turn of the next in line."""
        if waiter.was_woken and waiter.partition is not None:
            self.waiters.wake(waiter.partition)

    def on_groups_answered(self, partition: Partition, *, is_any_free: bool) -> None:
        """An older partition has said which groups of a partition it has."""
        if is_any_free and partition.watched:
            self.waiters.wake(partition)
        self._held.look_again(partition, is_any_free=is_any_free)

    def send_away(self, error: NotNow) -> None:
        """End all that wait with an error that sends them elsewhere: nothing is decided here any more."""
        self.waiters.send_away(error)
        self._held.send_away(error)

    def stop(self) -> None:
        """End all that wait: those in line empty. What is set aside stays so, for the next leader."""
        self.waiters.answer_all()
        self._held.send_away(not_known())

    def close(self) -> None:
        """End all that wait, and put nothing back any more: the next leader does."""
        self.stop()
        self._consuming.close()

    def _consume(self, waiter: Waiter, answer: TakenOutcome) -> None:
        """Deliver what is set aside for a receive, if its client is still there."""
        command = waiter.command
        assert isinstance(command, Receive), "a Watch takes nothing"
        if waiter.is_done:
            self._consuming.put_back(command, answer)
        else:
            waiter.finish()
            self._measures.answered(Receive, answer)
            self._consuming.begin(command, waiter.reply, answer)
        self.pass_on(waiter)

    def _answer_watch(self, waiter: Waiter, answer: WatchOutcome | Elsewhere) -> None:
        """Answer what has taken nothing, or park it. What a watch has found is there for the next in line, too."""
        if isinstance(answer, WatchOutcome) and not answer.has_messages:
            if not waiter.is_done:
                self._park(waiter, TakenOutcome(self._replica.epoch, [], [], False))
            return
        if not waiter.is_done:
            waiter.finish()
            self._measures.answered(type(waiter.command), answer)
            waiter.reply(answer)
        if isinstance(answer, WatchOutcome):
            self.pass_on(waiter)

    def _park(self, waiter: Waiter, answer: TakenOutcome) -> None:
        command = waiter.command
        if answer.unfinished:
            self._try_again(waiter)
            return
        partition = self._replica.queues.partitions.get(partition_key(command.queue_id, command.partition))
        wait_ms = command.wait_ms
        if answer.is_held and partition is not None and not self._is_known(waiter, partition):
            return
        if answer.dead_letters and not waiter.is_settling:
            waiter.is_settling = True
            wait_ms = max(wait_ms, SETTLE_MS)
        elif waiter.is_settling and not command.wait_ms and not answer.dead_letters:
            partition = None
        if partition is None or (wait_ms <= 0 and not waiter.is_settling):
            waiter.finish()
            if type(command) is Receive:
                self._on_empty(command)
            waiter.reply(waiter.nothing(answer.epoch))
            return
        self.waiters.park(waiter, partition, wait_ms)

    def _is_known(self, waiter: Waiter, partition: Partition) -> bool:
        """Return whether one that found held groups may be answered empty, or waits in line; else it is seen to."""
        command = waiter.command
        if type(command) is Receive and command.fails_fast:
            self._refuse_held(waiter, not_known())
            return False
        if self._held.is_known(waiter, partition) or command.wait_ms > 0:
            return True
        if not waiter.held_until_s:
            waiter.held_until_s = self._loop.time() + LOOK_S
        self._held.hold(waiter, partition, waiter.held_until_s)
        return False

    def _refuse_held(self, waiter: Waiter, error: NotNow) -> None:
        waiter.finish()
        self._measures.answered(type(waiter.command), error)
        waiter.reply(error)

    def _on_empty(self, command: Receive) -> None:
        self._measures.empty_receives += 1
        self._replica.queues.count_empty(command, self._replica.epoch)

    def _wake(self, key: int) -> None:
        partition = self._replica.queues.partitions.get(key)
        if partition is not None:
            self.waiters.wake(partition)

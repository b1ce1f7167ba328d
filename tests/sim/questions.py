"""Questions about message groups between partitions that change: the product's code, a simulated loop and network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from quaymaster.broker.replica.group_questions import GroupAnswers, GroupQuestions
from quaymaster.broker.replica.held_receives import LOOK_S, HeldReceives, not_known
from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.commands.messages import Receive
from quaymaster.core.values.commands.partitions import AskGroups
from quaymaster.core.values.errors import CallerError, NotLeader, NotNow
from quaymaster.core.values.queues.partition_keys import partition_key
from sim.moves import Carrier, MovesHost

if TYPE_CHECKING:
    from quaymaster.broker.replica.replica import ReplicaHost
    from sim.replica import Asked, Replica

CHANGED_S = 0.05
"""A question that waits looks again after so long: what changes is not followed here."""


class _Clock:
    def __init__(self, replica: Replica) -> None:
        self.time_ms = replica.time_ms


class _QuestionsHost(MovesHost):
    """As much of a `ReplicaHost` as questions need."""

    def __init__(self, replica: Replica, held: HeldReceives[Asked]) -> None:
        super().__init__(replica)
        self.clock = _Clock(replica)
        self._held = held

    def on_groups_answered(self, partition: Partition, *, is_any_free: bool) -> None:
        """No receive waits for messages in a simulated cell, but some do for this."""
        self._held.look_again(partition, is_any_free=is_any_free)

    def event_of(self, key: int) -> asyncio.Event:
        changed = asyncio.Event()
        asyncio.get_running_loop().call_later(CHANGED_S, changed.set)
        return changed


class Questions:
    """What `broker/replica/group_questions` and `broker/replica/held_receives` do for one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._held: HeldReceives[Asked] = replica.cell.bugs.variant(HeldReceives)(
            replica.host.loop,
            try_again=replica.ask,
            refuse=self._refuse,
            ask=self._ask_about,
        )
        host = cast("ReplicaHost", _QuestionsHost(replica, self._held))
        self._answers = GroupAnswers(host)
        self._questions = replica.cell.bugs.variant(GroupQuestions)(
            host, self._answers, Carrier(replica.host)
        )
        self._is_leading = False

    def look(self) -> None:
        """Ask what receives have met, while the replica leads."""
        journal, loop = self._replica.journal, self._replica.host.loop
        if journal.is_leading != self._is_leading:
            self._is_leading = journal.is_leading
            loop.call(self._questions.leads, self._is_leading)
            if not self._is_leading:
                self._held.send_away(NotLeader())
        if self._is_leading and journal.queues.asking:
            loop.call(self._questions.look)

    def is_kept(self, asked: Asked) -> bool:
        """Return whether a receive that found only held groups is not answered empty now."""
        command, loop = asked.command, self._replica.host.loop
        assert isinstance(command, Receive), "only a receive takes"
        if command.fails_fast:
            self._refuse(asked, not_known())
            return True
        partition = self._replica.journal.queues.partitions[
            partition_key(command.queue_id, command.partition)
        ]
        if self._held.is_known(asked, partition):
            return False
        asked.until_s = asked.until_s or loop.time() + LOOK_S
        self._held.hold(asked, partition, asked.until_s)
        return True

    def _ask_about(self, partition: Partition) -> None:
        self._replica.journal.queues.asking.add(partition.key)

    def _refuse(self, asked: Asked, error: NotNow) -> None:
        asked.is_done = True
        if self._replica.is_open:
            self._replica.answer(asked, error)

    def answer(self, command: AskGroups, reply: Callable[[object], None]) -> None:
        """Answer a question of another journal's leader, at once or when there is something to say."""

        async def answer() -> None:
            outcome: object
            try:
                outcome = await self._answers.answer(command)
            except (CallerError, NotNow) as error:
                outcome = error
            reply(outcome)

        self._replica.host.loop.create_task(answer())

    def close(self) -> None:
        """The replica is closed: nothing is asked any more."""
        self._replica.host.loop.call(self._questions.stop)
        self._held.send_away(NotLeader())

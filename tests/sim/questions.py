"""Questions about message groups between partitions that change: the product's code, a simulated loop and network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from quaymaster.broker.replica.group_questions import GroupAnswers, GroupQuestions
from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.commands.partitions import AskGroups
from quaymaster.core.values.errors import CallerError, NotNow
from sim.moves import Carrier, MovesHost

if TYPE_CHECKING:
    from quaymaster.broker.replica.replica import ReplicaHost
    from sim.replica import Replica

CHANGED_S = 0.05
"""A question that waits looks again after so long: what changes is not followed here."""


class _Clock:
    def __init__(self, replica: Replica) -> None:
        self.time_ms = replica.time_ms


class _Waiters:
    def wake(self, partition: Partition) -> None:
        """No receive waits in a simulated cell."""


class _QuestionsHost(MovesHost):
    """As much of a `ReplicaHost` as questions need."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self.clock = _Clock(replica)
        self.waiters = _Waiters()

    def event_of(self, key: int) -> asyncio.Event:
        changed = asyncio.Event()
        asyncio.get_running_loop().call_later(CHANGED_S, changed.set)
        return changed


class Questions:
    """What `broker/replica/group_questions` does for one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        host = cast("ReplicaHost", _QuestionsHost(replica))
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
        if self._is_leading and journal.queues.asking:
            loop.call(self._questions.look)

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

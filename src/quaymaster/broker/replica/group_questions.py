"""Questions between the partitions of a FIFO queue: which groups an older one has no message of any more.

    child: groups met by a receive ─▶ AskGroups ─▶ the parent's leader ─▶ those gone, once committed ─▶ free
                                          ▲                └─ none: it waits until messages of the parent go
                                          └── groups that are still there: asked again, and again

Which groups those are is in `core/structures/orders/held_groups`. Groups that were never asked about are asked for at
once, and so are those that a look needs; those that are there, by one question at a time that waits. A parent in the
same journal is asked in the same way: its answer waits for a commit, where a look at its state would do, but there is
one way, and one set of rules.
"""

from __future__ import annotations

import asyncio
from array import array
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, get_args

from msgspec.structs import replace

from quaymaster.broker.replica.journal_questions import JournalQuestion, JournalQuestions
from quaymaster.core.partition.partition import Partition
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.held_groups import HeldGroups, Question
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.partition_tables import entry_of
from quaymaster.core.values.queues.partition_keys import partition_key

if TYPE_CHECKING:
    from quaymaster.broker.replica.replica import ReplicaHost

GROUPS_MAX: Final = 4_096
"""So many groups are asked about at once: to look them up takes a millisecond or two."""
WAIT_MS: Final = 1_000
"""So long a question waits for groups to go. With more groups than one question has, each of several waits less."""
GROUP_S: Final = 5e-6
"""A question is decided again after so long for each group in the questions that wait: a few percent of a core.

After a question of a look the next one waits for so long, too: clients that ask and ask may begin one after the other.
"""
RETRY_S: Final = 0.005
"""A parent that cannot say anything yet is asked again after so long: it is being sealed, or looks at its messages."""
SLOW_RETRY_S: Final = 0.2
FAST_RETRIES: Final = 1_000
REFUSED_RETRY_S: Final = 1.0
UNANSWERED_RETRY_S: Final = 0.1
UNANSWERED_TOLD: Final = 25
"""After so many attempts in a row without an answer the log says so."""

_KINDS: Final[tuple[Question, ...]] = get_args(Question)


class GroupCarrier(Protocol):
    """The way to the leaders of other journals."""

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        """Ask a journal's leader; raises NotNow when it does not answer."""


class GroupAnswers:
    """Answers questions of children: those that find no group gone wait here."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self._waiting = 0
        """How many groups are in questions that wait."""

    async def answer(self, command: AskGroups) -> GroupsOutcome:
        """Return which groups are gone as soon as there is one, or its wait is over. Raises what the journal does."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + command.wait_ms / 1000
        groups = len(command.groups) // 8
        while True:
            changed = self._host.event_of(partition_key(command.queue_id, command.partition))
            asked_at = loop.time()
            outcome: object = await self._host.ask(replace(command, wait_ms=0))
            assert isinstance(outcome, GroupsOutcome), "an AskGroups is answered by a GroupsOutcome"
            if outcome.gone or not outcome.is_sealed or loop.time() >= deadline:
                return outcome
            self._waiting += groups
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
                    await asyncio.sleep(asked_at + GROUP_S * self._waiting - loop.time())
            except TimeoutError:
                return outcome
            finally:
                self._waiting -= groups


class _Pair(NamedTuple):
    """A child's key, its parent's number, and which questions."""

    child_key: int
    parent: int
    kind: Question


class _Asked(NamedTuple):
    """A question: the journal it goes to, the groups, and what holds them, after how many looks."""

    journal_id: int
    groups: list[int]
    command: AskGroups
    holds: HeldGroups
    look: int


class GroupQuestions:
    """Asks the parents of the partitions of one journal, while it is led here."""

    def __init__(self, host: ReplicaHost, answers: GroupAnswers, carrier: GroupCarrier | None) -> None:
        self._host = host
        self._answers = answers
        self._carrier = carrier
        self._questions: JournalQuestions[_Pair] = JournalQuestions(
            host.files.journal_id,
            next_question=self._next_question,
            pause_s=_pause_s,
            told_after=UNANSWERED_TOLD,
            unanswered_event="groups of an older partition not known",
            refused_event="groups not asked for",
        )

    def leads(self, is_leading: bool) -> None:
        """The replica has begun to lead, or leads no longer."""
        if is_leading:
            for key in list(self._host.replica.queues.holding):
                self._ask_about(key)
        else:
            self.stop()

    def look(self) -> None:
        """Ask about groups that receives have met."""
        asking = self._host.replica.queues.asking
        while asking:
            self._ask_about(asking.pop())

    def stop(self) -> None:
        """Ask nothing more."""
        self._questions.stop()

    async def close(self) -> None:
        """Stop, and wait until that is so."""
        await self._questions.close()

    def _ask_about(self, key: int) -> None:
        found = self._found(key)
        for parent in found[2].parents if found is not None else ():
            for kind in _KINDS:
                self._questions.begin(_Pair(key, parent, kind))

    def _found(self, key: int) -> tuple[Partition, FIFOOrder, HeldGroups] | None:
        """Return a partition of which groups are held, None if it is not led here or holds none."""
        replica = self._host.replica
        partition = replica.queues.partitions.get(key) if replica.is_leading else None
        if partition is None or not isinstance(partition.order, FIFOOrder) or partition.order.holds is None:
            return None
        return partition, partition.order, partition.order.holds

    def _next_question(self, pair: _Pair) -> JournalQuestion | None:
        question = self._question(pair)
        if question is None:
            return None
        about = {"asked_journal": question.journal_id, "queue": question.command.queue_id}
        return JournalQuestion(partial(self._ask, pair, question), about)

    async def _ask(self, pair: _Pair, question: _Asked) -> bool:
        outcome = await self._carry(question.journal_id, question.command)
        if outcome.is_sealed:
            self._take(pair, question, outcome)
            if pair.kind == "look":
                await asyncio.sleep(GROUP_S * len(question.groups))
        return outcome.is_sealed

    def _question(self, pair: _Pair) -> _Asked | None:
        """Return what is to be asked next, None if there is nothing."""
        found = self._found(pair.child_key)
        if found is None:
            return None
        partition, _, holds = found
        entry = entry_of(partition.definition, pair.parent)
        groups = holds.to_ask(pair.parent, GROUPS_MAX, pair.kind)
        if entry is None or not groups:
            return None
        wait_ms = 0
        if pair.kind == "again":
            wait_ms = max(1, WAIT_MS * len(groups) // holds.present_at(pair.parent))
        queue_id = partition.definition.queue_id
        command = AskGroups(queue_id, pair.parent, array("Q", groups).tobytes(), wait_ms)
        return _Asked(entry.journal_id, groups, command, holds, holds.looks)

    async def _carry(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        if self._carrier is None or journal_id == self._host.files.journal_id:
            return await self._answers.answer(command)
        return await self._carrier.groups_left(journal_id, command)

    def _take(self, pair: _Pair, asked: _Asked, outcome: GroupsOutcome) -> None:
        found = self._found(pair.child_key)
        if found is None:
            return
        partition, order, holds = found
        if holds is not asked.holds:
            return  # a consumer group was reset since: the parent may have what was gone
        freed = holds.answered(pair.parent, asked.groups, array("Q", outcome.gone), look=asked.look)
        order.release(freed, self._host.clock.time_ms())
        self._host.on_groups_answered(partition, is_any_free=bool(freed))
        if holds.is_waiting or (pair.kind == "first" and holds.present_at(pair.parent)):
            self._ask_about(pair.child_key)


def _pause_s(unanswered: int, why: Exception | None) -> float:
    pause_s = RETRY_S if unanswered <= FAST_RETRIES else SLOW_RETRY_S
    if why is None:
        return pause_s
    # Refused it is by a journal that does not know the partition, for now.
    return max(pause_s, UNANSWERED_RETRY_S) if isinstance(why, NotNow) else REFUSED_RETRY_S

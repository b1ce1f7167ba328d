"""A child's leader asks about the groups it holds until it knows, whatever the parent's journal answers."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from harness.replica_host import Host, message, queue
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica import group_questions
from quaymaster.broker.replica.group_questions import GroupAnswers, GroupQuestions
from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.commands.messages import Receive, Send
from quaymaster.core.values.commands.partitions import AskGroups, ForgetQueue, GroupsOutcome, SetQueue
from quaymaster.core.values.errors import InvalidAction, NotLeader
from quaymaster.core.values.partition_tables import (
    entries_to_move,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.queue_definitions import one_partition, replace_definition

STEPS, HERE, THERE = 1, 0, 7
A, B = 11, 22


class Files:
    journal_id = HERE


class Clock:
    def __init__(self, host: Host) -> None:
        self._host = host

    def time_ms(self) -> int:
        return self._host.now_ms


class Leader:
    """A `ReplicaHost` over a leader without files, of a child whose parent is in another journal."""

    def __init__(self) -> None:
        self.core = Host()
        self.replica = self.core.replica
        self.files = Files()
        self.clock = Clock(self.core)
        self.woken: list[Partition] = []
        before = replace_definition(queue(STEPS, "steps.fifo"), partitions=one_partition(THERE))
        self.definition = with_children_open(with_children(before, *entries_to_move(before), [HERE]))
        self.core.ask(SetQueue(self.definition, HERE))
        for number, group in ((1, A), (2, B)):
            self.core.ask(Send(STEPS, 1, [message(number, group=group)]))
        self.receive()

    def receive(self) -> int:
        outcome: Any = self.core.ask(Receive(STEPS, 1, 10))
        return len(outcome.taken)

    def on_groups_answered(self, partition: Partition, *, is_any_free: bool) -> None:
        if is_any_free:
            self.woken.append(partition)


class Carrier:
    def __init__(self, answer: Callable[[AskGroups], Awaitable[GroupsOutcome]]) -> None:
        self._answer = answer
        self.asked: list[tuple[list[int], int]] = []

    async def groups_left(self, journal_id: int, command: AskGroups) -> GroupsOutcome:
        assert journal_id == THERE
        self.asked.append((list(array("Q", command.groups)), command.wait_ms))
        await asyncio.sleep(0)
        return await self._answer(command)


def questions_of(leader: Leader, carrier: Carrier) -> GroupQuestions:
    host: Any = leader
    return GroupQuestions(host, GroupAnswers(host), carrier)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 -- the product has no event for it
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S", "SLOW_RETRY_S", "REFUSED_RETRY_S", "UNANSWERED_RETRY_S"):
        monkeypatch.setattr(group_questions, name, 0.0)
    monkeypatch.setattr(group_questions, "FAST_RETRIES", 2)


def test_parent_that_does_not_answer_or_cannot_say_is_asked_until_it_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_questions, "UNANSWERED_TOLD", 2)
    answers: list[GroupsOutcome | Exception] = [
        GroupsOutcome(b"", is_sealed=False),
        InvalidAction("no such thing"),
        NotLeader(),
        NotLeader(),
        GroupsOutcome(array("Q", [A]).tobytes()),
        GroupsOutcome(array("Q", [B]).tobytes()),
    ]

    async def answer(command: AskGroups) -> GroupsOutcome:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier(answer)
        questions = questions_of(leader, carrier)
        questions.look()
        questions.look()
        await until(lambda: len(leader.woken) == 2)
        await questions.close()

        assert carrier.asked == [([A, B], 0)] * 5 + [([B], group_questions.WAIT_MS)]
        assert leader.receive() == 2
        told = [record.message for record in caplog.records]
        assert told.count("groups of an older partition not known") == 1
        assert told.count("groups not asked for") == 1

    asyncio.run(scenario())


def test_a_new_leader_asks_what_its_state_holds_and_an_old_one_asks_no_more() -> None:
    async def never(command: AskGroups) -> GroupsOutcome:
        await asyncio.Event().wait()
        raise AssertionError("nobody answers")

    async def scenario() -> None:
        leader, carrier = Leader(), Carrier(never)
        questions = questions_of(leader, carrier)

        questions.leads(True)
        await until(lambda: len(carrier.asked) == 1)
        questions.leads(False)
        questions.leads(True)
        await until(lambda: len(carrier.asked) == 2)
        await questions.close()

        assert carrier.asked == [([A, B], 0)] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["drained", "deleted"])
def test_answers_that_come_too_late_change_nothing(end: str) -> None:
    async def scenario() -> None:
        may_answer = asyncio.Event()

        async def late(command: AskGroups) -> GroupsOutcome:
            await may_answer.wait()
            return GroupsOutcome(command.groups)

        leader, carrier = Leader(), Carrier(late)
        questions = questions_of(leader, carrier)
        questions.look()
        await until(lambda: len(carrier.asked) == 1)
        if end == "drained":
            leader.core.ask(SetQueue(with_state(leader.definition, 0, "drained"), HERE))
            assert leader.receive() == 2
        else:
            leader.core.ask(ForgetQueue(STEPS))
        may_answer.set()
        await until(lambda: not questions._questions)
        questions.leads(True)

        assert not questions._questions
        assert not leader.woken
        await questions.close()

    asyncio.run(scenario())

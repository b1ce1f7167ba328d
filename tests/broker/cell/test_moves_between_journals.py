"""Dead letters and redrives between journals of a cell, over loopback: whoever leads, whatever is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from harness.broker_support import arn, define, message, number_of, options, redrive_to
from harness.waiting import PATIENCE_S

from broker.cell.test_broker_service import Cell, until
from quaymaster.broker.cell.authorization_floor import COMMAND
from quaymaster.broker.cell.broker_service import BrokerService, BrokerServiceOptions
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.moves import message_moves, moves_out, queue_places
from quaymaster.coordination.cell_keys import configuration_key, decode_configuration, encode_configuration
from quaymaster.core.queues.move_tasks import RAN_TOO_LONG
from quaymaster.core.values.commands.messages import (
    CountMessages,
    NewMessage,
    Peek,
    PeekOutcome,
    QueueCounts,
    Receive,
    ReceiveOutcome,
    Send,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.commands.moves import MoveInOutcome
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.messages import decode_message, prefix_bytes
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID, PREPARE
from quaymaster.protocol.rpc.command_codec import decode_outcome, encode_command

SOURCE_JOURNAL, TARGET_JOURNAL = 7, 8
JOBS, DEAD, STEPS, STEPS_DEAD, OTHER = 1, 2, 3, 4, 5
TASK = b"task-number-one-"


class TwoJournals(Cell):
    """Queues in one journal, their dead-letter queues in the other."""

    def __init__(self, directory: Path, cell_format: CellFormat) -> None:
        super().__init__(directory)
        self.cell_format = cell_format
        self.queues: dict[str, QueueDefinition] = {}
        self.is_store_away = False

    async def find_queue(self, account_id: str, name: str) -> QueueDefinition | None:
        if self.is_store_away:
            raise NotNow
        return self.queues.get(name)

    async def start(self, name: str) -> BrokerService:
        journal = replace(options(self.directory / name), cell_format=self.cell_format)
        broker = BrokerService(
            BrokerServiceOptions(name, f"zone-{name}", "test", "127.0.0.1", 0, "127.0.0.1:0", journal),
            self.coordination,
            on_stopped=self.stopped.append,
            find_queue=self.find_queue,
        )
        await broker.start()
        self.brokers[name] = broker
        self.clients[name] = self.client(name, "frontend")
        self.managers[name] = self.client(name, "manager")
        return broker

    async def create_journal(self, number: int, *names: str) -> None:
        members = [(await self.call(name, PREPARE, JOURNAL_ID.pack(number))).decode() for name in names]
        first = JournalConfiguration(1, members[0], tuple(members), tuple(members), False)
        await self.coordination.compare_and_swap(configuration_key(number), 0, encode_configuration(first))

    async def hand_to(self, number: int, name: str) -> None:
        """Appoint another leader, as a manager does that takes the old one for dead."""
        found = await self.coordination.get(configuration_key(number))
        assert found is not None
        known = decode_configuration(found.value)
        (leader,) = [member for member in known.members if member.startswith(f"{name}@")]
        following = msgspec.structs.replace(
            known,
            epoch=known.epoch + 1,
            leader=leader,
            previous_members=known.members if known.activated else known.previous_members,
            activated=False,
        )
        await self.coordination.compare_and_swap(
            configuration_key(number), found.revision, encode_configuration(following)
        )

    def leader_of(self, number: int) -> JournalService | None:
        for broker in self.brokers.values():
            journal = broker.journals.get(number)
            if journal is not None and journal.host.replica.is_leading:
                return journal
        return None

    async def tell(self, number: int, command: Command) -> Outcome:
        """Have the leader of a journal carry out a command, whoever that is."""
        while True:
            for name in list(self.brokers):
                body = JOURNAL_ID.pack(number) + encode_command(command)
                try:
                    return decode_outcome(await self.clients[name].ask(COMMAND, body, 10_000))
                except NotNow:
                    continue
            await asyncio.sleep(0.02)

    async def add_queue(self, journal: int, definition: QueueDefinition) -> None:
        definition = msgspec.structs.replace(definition, partitions=one_partition(journal))
        self.queues[definition.name] = definition
        await self.tell(journal, SetQueue(definition))

    async def receive(self, journal: int, queue_id: int, timeout_ms: int = 0) -> ReceiveOutcome:
        outcome = await self.tell(journal, Receive(queue_id, 0, 10, timeout_ms))
        assert isinstance(outcome, ReceiveOutcome)
        return outcome

    async def visible(self, journal: int, queue_id: int) -> int:
        counts = await self.tell(journal, CountMessages(queue_id))
        assert isinstance(counts, QueueCounts)
        return counts.visible

    async def numbers(self, journal: int, queue_id: int) -> list[int]:
        """Return the numbers of all messages of a queue, in their order."""
        while True:
            counts = await self.tell(journal, CountMessages(queue_id))
            peeked = await self.tell(journal, Peek(queue_id, 0, 1, 1_000))
            assert isinstance(counts, QueueCounts)
            assert isinstance(peeked, PeekOutcome)
            if len(peeked.messages) == counts.visible + counts.in_flight:  # all is committed
                break
        return [number_of(one.flags, one.payload)[0] for one in peeked.messages]

    async def wear_out(self, queue_id: int, messages: list[NewMessage]) -> None:
        """Send messages and receive them once, so that with the next receive they are dead letters."""
        for at in range(0, len(messages), 10):
            await self.tell(SOURCE_JOURNAL, Send(queue_id, 0, messages[at : at + 10]))
        for _ in range(0, len(messages), 10):
            await self.receive(SOURCE_JOURNAL, queue_id)

    async def move_all(self, queue_id: int, target_id: int, count: int) -> None:
        """Receive until all of a queue's messages have arrived at the other one."""
        while await self.visible(TARGET_JOURNAL, target_id) < count:
            await self.receive(SOURCE_JOURNAL, queue_id)
            await asyncio.sleep(0.01)

    async def task(self) -> MoveTask:
        outcome = await self.tell(TARGET_JOURNAL, ListMoveTasks(DEAD))
        assert isinstance(outcome, MoveTasksOutcome)
        return outcome.tasks[0]

    async def redrive(self, target: str | None = None, target_id: int | None = None) -> MoveTask:
        """Move the dead letters, and return how the task ended."""
        await self.start_task(target, target_id)
        return await self.ended_task()

    async def start_task(self, target: str | None = None, target_id: int | None = None) -> None:
        target_arn = arn(target) if target is not None else None
        await self.tell(TARGET_JOURNAL, StartMoveTask(DEAD, TASK, arn("jobs-x"), target_arn, target_id, None))

    async def ended_task(self) -> MoveTask:
        while (task := await self.task()).status == "RUNNING":  # noqa: ASYNC110 -- asked as a client asks
            await asyncio.sleep(0.02)
        return task


@asynccontextmanager
async def two_journals(directory: Path, *, cell_format: int = 2) -> AsyncIterator[TwoJournals]:
    cell = TwoJournals(directory, CellFormat(cell_format))
    try:
        async with asyncio.timeout(PATIENCE_S):
            for name in ("a", "b", "c"):
                await cell.start(name)
            await cell.create_journal(SOURCE_JOURNAL, "a", "b", "c")
            await cell.create_journal(TARGET_JOURNAL, "b", "c", "a")
            await cell.add_queue(TARGET_JOURNAL, define(DEAD, "jobs-x"))
            await cell.add_queue(TARGET_JOURNAL, define(STEPS_DEAD, "steps-x.fifo"))
            for queue_id, name, dead in ((JOBS, "jobs", "jobs-x"), (STEPS, "steps.fifo", "steps-x.fifo")):
                definition = define(queue_id, name, RedrivePolicy=redrive_to(dead, 1))
                await cell.add_queue(SOURCE_JOURNAL, definition)
            yield cell
            assert cell.stopped == []
    finally:
        for name in list(cell.brokers):
            await cell.stop(name)


def messages(first: int, last: int, *, group: int = 0) -> list[NewMessage]:
    return [message(number, group=group) for number in range(first, last + 1)]


def test_dead_letters_go_to_a_queue_in_another_journal_and_are_redriven_from_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 120))
            await cell.move_all(JOBS, DEAD, 120)
            left = await cell.visible(SOURCE_JOURNAL, JOBS)
            (dead,) = (await cell.tell(TARGET_JOURNAL, Receive(DEAD, 0, 1, 0))).deliveries  # type: ignore[union-attr]
            task = await cell.redrive()

            stored = decode_message(dead.payload[prefix_bytes(dead.flags) :])
            assert left == 0
            assert dead.delivery_count == 2
            assert stored.dead_letter_source_arn == arn("jobs")
            assert (task.status, task.moved) == ("COMPLETED", 120)
            assert await cell.visible(TARGET_JOURNAL, DEAD) == 0
            assert sorted(await cell.numbers(SOURCE_JOURNAL, JOBS)) == list(range(1, 121))

    asyncio.run(scenario())


def test_messages_of_a_group_keep_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(STEPS, messages(1, 30, group=9))
            await cell.move_all(STEPS, STEPS_DEAD, 30)

            assert await cell.numbers(TARGET_JOURNAL, STEPS_DEAD) == list(range(1, 31))

    asyncio.run(scenario())


def test_nothing_is_lost_or_comes_twice_while_both_journals_change_their_leaders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 300))
            moving = asyncio.create_task(cell.move_all(JOBS, DEAD, 300))
            for number, name in (
                (SOURCE_JOURNAL, "b"),
                (TARGET_JOURNAL, "c"),
                (TARGET_JOURNAL, "a"),
                (SOURCE_JOURNAL, "c"),
            ):
                await asyncio.sleep(0.1)
                await cell.hand_to(number, name)
                await until(lambda number=number: cell.leader_of(number) is not None)  # type: ignore[misc]
            await moving
            await cell.start_task("jobs", JOBS)
            for number, name in ((TARGET_JOURNAL, "b"), (SOURCE_JOURNAL, "a")):
                await asyncio.sleep(0.1)
                await cell.hand_to(number, name)
            ended = await cell.ended_task()

            assert ended.status == "COMPLETED"
            assert ended.moved == 300
            assert await cell.numbers(TARGET_JOURNAL, DEAD) == []
            assert sorted(await cell.numbers(SOURCE_JOURNAL, JOBS)) == list(range(1, 301))

    asyncio.run(scenario())


def test_what_was_on_its_way_goes_on_when_all_brokers_start_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 20))
            for journal in (broker.journals[TARGET_JOURNAL] for broker in cell.brokers.values()):
                journal.host.stop(RuntimeError("stopped by a test"))
            cell.stopped.clear()
            for _ in range(4):
                await cell.receive(SOURCE_JOURNAL, JOBS)
            leader = cell.leader_of(SOURCE_JOURNAL)
            assert leader is not None
            partition = leader.host.replica.queues.partition(JOBS, 0)
            await until(lambda: partition.moves is not None and len(partition.moves.leaving) == 20)
            for name in ("a", "b", "c"):
                await cell.stop(name)
            for name in ("a", "b", "c"):
                await cell.start(name)
            await cell.hand_to(SOURCE_JOURNAL, "b")
            await cell.hand_to(TARGET_JOURNAL, "b")
            await cell.move_all(JOBS, DEAD, 20)

            assert sorted(await cell.numbers(TARGET_JOURNAL, DEAD)) == list(range(1, 21))
            assert await cell.visible(SOURCE_JOURNAL, JOBS) == 0

    asyncio.run(scenario())


def test_messages_whose_dead_letter_queue_was_deleted_are_handed_out_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 1))
            await cell.move_all(JOBS, DEAD, 1)
            await cell.tell(TARGET_JOURNAL, ForgetQueue(DEAD))
            del cell.queues["jobs-x"]
            await cell.wear_out(JOBS, messages(2, 3))
            found: list[int] = []
            while len(found) < 2:
                batch = await cell.receive(SOURCE_JOURNAL, JOBS, 600_000)
                found += [number_of(one.flags, one.payload)[0] for one in batch.deliveries]

            assert sorted(found) == [2, 3]

    asyncio.run(scenario())


def test_a_queue_that_was_made_anew_under_the_name_gets_the_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_places, "ABSENT_S", 0.1)

    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 1))
            await cell.move_all(JOBS, DEAD, 1)
            await cell.tell(TARGET_JOURNAL, ForgetQueue(DEAD))
            del cell.queues["jobs-x"]
            await cell.wear_out(JOBS, messages(2, 2))
            while not (await cell.receive(SOURCE_JOURNAL, JOBS)).deliveries:
                pass
            await cell.add_queue(TARGET_JOURNAL, define(OTHER, "jobs-x"))
            await cell.move_all(JOBS, OTHER, 1)

            assert await cell.numbers(TARGET_JOURNAL, OTHER) == [2]

    asyncio.run(scenario())


def test_a_task_ends_when_its_queue_is_gone_whoever_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 2))
            await cell.move_all(JOBS, DEAD, 2)
            await cell.tell(SOURCE_JOURNAL, ForgetQueue(JOBS))
            jobs = cell.queues.pop("jobs")
            monkeypatch.setattr(queue_places, "ABSENT_S", 0.0)
            gone = await cell.redrive()
            monkeypatch.setattr(queue_places, "ABSENT_S", 600.0)
            monkeypatch.setattr(queue_places, "DOUBTED_S", 0.0)
            cell.queues["jobs"] = jobs  # as if metadata had not heard of it
            again = await cell.redrive("jobs", JOBS)

            assert (gone.status, gone.failure) == ("FAILED", message_moves.NO_TARGET)
            assert (again.status, again.failure) == ("FAILED", message_moves.NO_TARGET)
            assert await cell.visible(TARGET_JOURNAL, DEAD) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["cancelled", "too long"])
def test_a_task_whose_target_cannot_be_found_ends_when_it_is_cancelled_or_ran_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(message_moves, "AWAY_RETRY_S", 0.02)

    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 2))
            await cell.move_all(JOBS, DEAD, 2)
            cell.is_store_away = True
            await cell.tell(TARGET_JOURNAL, StartMoveTask(DEAD, TASK, arn("dead"), arn("jobs"), JOBS, None))
            if end == "cancelled":
                await cell.tell(TARGET_JOURNAL, CancelMoveTask(DEAD, TASK))
            else:
                monkeypatch.setattr("quaymaster.core.queues.move_tasks.TASK_MAX_MS", 0)
            leader = cell.leader_of(TARGET_JOURNAL)
            assert leader is not None
            await until(lambda: not leader._moves._tasks)
            outcome = await cell.tell(TARGET_JOURNAL, ListMoveTasks(DEAD))
            assert isinstance(outcome, MoveTasksOutcome)

            (task,) = outcome.tasks
            ended = ("CANCELLED", None) if end == "cancelled" else ("FAILED", RAN_TOO_LONG)
            assert (task.status, task.failure, task.moved) == (*ended, 0)
            assert await cell.visible(TARGET_JOURNAL, DEAD) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["cancelled", "too long"])
def test_a_task_whose_messages_are_on_their_way_ends_when_it_is_cancelled_or_ran_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(moves_out, "LOOK_S", 0.02)
    away = asyncio.Event()

    async def silent(*_: object) -> MoveInOutcome:
        away.set()
        raise NotNow

    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            await cell.wear_out(JOBS, messages(1, 2))
            await cell.move_all(JOBS, DEAD, 2)
            leader = cell.leader_of(TARGET_JOURNAL)
            assert leader is not None
            assert leader._moves._away is not None
            monkeypatch.setattr(leader._moves._away._carrier, "move", silent)
            await cell.tell(TARGET_JOURNAL, StartMoveTask(DEAD, TASK, arn("dead"), arn("jobs"), JOBS, None))
            await away.wait()
            if end == "cancelled":
                await cell.tell(TARGET_JOURNAL, CancelMoveTask(DEAD, TASK))
            else:
                monkeypatch.setattr("quaymaster.core.queues.move_tasks.TASK_MAX_MS", 0)
            await until(lambda: not leader._moves._tasks)
            outcome = await cell.tell(TARGET_JOURNAL, ListMoveTasks(DEAD))
            assert isinstance(outcome, MoveTasksOutcome)

            assert outcome.tasks[0].status == ("CANCELLED" if end == "cancelled" else "FAILED")

    asyncio.run(scenario())


def test_dead_letters_wait_aside_while_nobody_can_say_where_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_moves, "UNREADABLE_RETRY_S", 0.1)

    async def scenario() -> None:
        async with two_journals(tmp_path) as cell:
            cell.is_store_away = True
            await cell.wear_out(JOBS, messages(1, 2))
            met = await cell.receive(SOURCE_JOURNAL, JOBS)
            await cell.tell(SOURCE_JOURNAL, Send(JOBS, 0, messages(3, 3)))
            behind = await cell.receive(SOURCE_JOURNAL, JOBS, 600_000)
            cell.is_store_away = False
            await cell.move_all(JOBS, DEAD, 2)

            assert met.deliveries == []
            assert [number_of(one.flags, one.payload)[0] for one in behind.deliveries] == [3]
            assert sorted(await cell.numbers(TARGET_JOURNAL, DEAD)) == [1, 2]

    asyncio.run(scenario())


def test_messages_stay_in_a_cell_that_writes_an_older_format_until_it_is_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=1) as cell:
            await cell.wear_out(JOBS, messages(1, 2))
            still = (await cell.receive(SOURCE_JOURNAL, JOBS)).deliveries
            cell.cell_format.raise_to(2)
            await cell.move_all(JOBS, DEAD, 2)

            assert [one.delivery_count for one in still] == [2, 2]
            assert sorted(await cell.numbers(TARGET_JOURNAL, DEAD)) == [1, 2]

    asyncio.run(scenario())

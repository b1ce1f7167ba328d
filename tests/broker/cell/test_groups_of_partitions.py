"""The order of message groups over the partitions of a FIFO queue, wherever these are led, and of what moves there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import define, message, number_of, numbers, running

from broker.cell.test_broker_service import until
from broker.cell.test_moves_between_journals import (
    SOURCE_JOURNAL,
    STEPS,
    STEPS_DEAD,
    TARGET_JOURNAL,
    TwoJournals,
    two_journals,
)
from quaymaster.broker.replica import group_questions
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.values.commands.messages import (
    Delete,
    Delivery,
    Peek,
    PeekOutcome,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
)
from quaymaster.core.values.commands.move_tasks import StartMoveTask
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome, SetQueue
from quaymaster.core.values.partition_tables import (
    entries_to_move,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import (
    KEY_MAX,
    QueueDefinition,
    one_partition,
    replace_definition,
)

ORDERS = 9
LONG_MS = 20_000


def moved(parent_journal: int, child_journal: int) -> tuple[QueueDefinition, QueueDefinition]:
    """Return a FIFO queue's definition before and after its partition was moved."""
    before = replace_definition(define(ORDERS, "orders.fifo"), partitions=one_partition(parent_journal))
    parents, ranges = entries_to_move(before)
    return before, with_children_open(with_children(before, parents, ranges, [child_journal]))


class MovedQueue:
    """A queue that was moved: its parent has messages 1 of group 1 and 2 of group 2, its child 3 and 4 of them."""

    def __init__(self, cell: TwoJournals) -> None:
        self.cell = cell
        self.journals = (SOURCE_JOURNAL, TARGET_JOURNAL)

    async def set_up(self) -> None:
        before, self.definition = moved(*self.journals)
        await self.cell.tell(SOURCE_JOURNAL, SetQueue(before, SOURCE_JOURNAL))
        await self.send(0, 1, 2)
        for journal in self.journals:
            await self.cell.tell(journal, SetQueue(self.definition, journal))
        await self.send(1, 3, 4)

    async def send(self, partition: int, *all_numbers: int) -> None:
        new = [message(number, group=2 - number % 2) for number in all_numbers]
        await self.cell.tell(self.journals[partition], Send(ORDERS, partition, new))

    async def receive(self, partition: int, *, wait_ms: int = 0) -> list[tuple[int, Receipt]]:
        command = Receive(ORDERS, partition, 10, 30_000, wait_ms)
        outcome = await self.cell.tell(self.journals[partition], command)
        assert isinstance(outcome, ReceiveOutcome)
        return [
            (number, Receipt(delivery.sequence, outcome.epoch, delivery.delivery_count))
            for number, delivery in zip(numbers(outcome.deliveries), outcome.deliveries, strict=True)
        ]

    async def delete(self, partition: int, receipt: Receipt) -> None:
        outcome: Any = await self.cell.tell(self.journals[partition], Delete(ORDERS, partition, [receipt]))
        assert outcome.errors == [None]


def test_child_gives_a_group_as_soon_as_its_parent_in_another_journal_has_none_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=7) as cell:
            queue = MovedQueue(cell)
            await queue.set_up()
            waiting = asyncio.create_task(queue.receive(1, wait_ms=LONG_MS))
            older = dict(await queue.receive(0))
            assert sorted(older) == [1, 2]
            await queue.delete(0, older[2])

            assert [number for number, _ in await waiting] == [4]

            waiting = asyncio.create_task(queue.receive(1, wait_ms=LONG_MS))
            await queue.delete(0, older[1])
            assert [number for number, _ in await waiting] == [3]

    asyncio.run(scenario())


def test_groups_known_to_be_free_are_given_while_the_parent_has_no_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=7) as cell:
            queue = MovedQueue(cell)
            await queue.set_up()
            older = dict(await queue.receive(0))
            await queue.delete(0, older[2])
            ((number, receipt),) = await queue.receive(1, wait_ms=LONG_MS)
            assert number == 4
            await queue.delete(1, receipt)
            leader = cell.leader_of(SOURCE_JOURNAL)
            assert leader is not None
            leader.host.stop(RuntimeError("a test stopped it"))

            await queue.send(1, 5, 6)

            assert [number for number, _ in await queue.receive(1, wait_ms=LONG_MS)] == [6]
            cell.stopped.clear()

    asyncio.run(scenario())


def test_leaders_that_change_ask_again_and_give_nothing_early(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=7) as cell:
            queue = MovedQueue(cell)
            await queue.set_up()
            assert await queue.receive(1) == []
            for number, name in ((SOURCE_JOURNAL, "b"), (TARGET_JOURNAL, "c")):
                await cell.hand_to(number, name)
                await until(lambda number=number, name=name: _leads(cell, number, name))  # type: ignore[misc]
            waiting = asyncio.create_task(queue.receive(1, wait_ms=LONG_MS))
            older = dict(await queue.receive(0, wait_ms=LONG_MS))
            await queue.delete(0, older[1])

            assert [number for number, _ in await waiting] == [3]

    asyncio.run(scenario())


def _leads(cell: TwoJournals, number: int, name: str) -> bool:
    return cell.leader_of(number) is cell.brokers[name].journals[number]


@pytest.fixture
def small_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_questions, "GROUPS_MAX", 2)


@pytest.mark.usefixtures("small_questions")
def test_all_groups_are_asked_about_when_one_question_cannot_hold_them(tmp_path: Path) -> None:
    """Parent and child are in one journal, and each of them has a message of twelve groups."""

    async def scenario() -> None:
        before, after = moved(0, 0)
        async with running(tmp_path) as tester:
            await tester.set_queue(before)
            for number in range(1, 13):
                await tester.send(ORDERS, message(number, group=number))
            await tester.set_queue(after)
            queues: QueueStates = tester.broker.host.replica.queues
            for number in range(1, 13):
                await tester.ask(Send(ORDERS, 1, [message(100 + number, group=number)]))
            assert (await tester.ask(Receive(ORDERS, 1, 10))).deliveries == []
            order = queues.partition(ORDERS, 1).order
            assert isinstance(order, FIFOOrder)
            await until(lambda: order.holds is not None and order.holds.present_at(0) == 12)
            older = await tester.receive(ORDERS, 10) + await tester.receive(ORDERS, 10)

            received: list[int] = []
            for delivery in reversed(older):
                waiting = asyncio.create_task(tester.ask(Receive(ORDERS, 1, 10, 30_000, LONG_MS)))
                await tester.ask(Delete(ORDERS, 0, tester.receipts([delivery])))
                received += numbers((await waiting).deliveries)

            assert received == list(range(112, 100, -1))

    asyncio.run(scenario())


def test_question_about_groups_waits_until_one_is_gone_or_its_time_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            before, after = moved(0, 0)
            await tester.set_queue(before)
            await tester.send(ORDERS, message(1, group=1), message(2, group=2))
            await tester.set_queue(after)
            delivered: list[Delivery] = await tester.receive(ORDERS)
            groups = (1).to_bytes(8, "little") + (2).to_bytes(8, "little")

            assert await tester.broker.groups_left(AskGroups(ORDERS, 0, groups, 1)) == GroupsOutcome(b"")
            waiting = asyncio.create_task(tester.broker.groups_left(AskGroups(ORDERS, 0, groups, LONG_MS)))
            await tester.ask(Delete(ORDERS, 0, tester.receipts(delivered[:1])))
            assert await waiting == GroupsOutcome(groups[:8])

    asyncio.run(scenario())


def test_move_task_waits_for_groups_that_older_partitions_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            before, after = moved(0, 0)
            await tester.set_queue(define(1, "others.fifo"))
            await tester.set_queue(before)
            await tester.send(ORDERS, message(1, group=1))
            await tester.set_queue(after)
            queues = tester.broker.host.replica.queues
            await tester.ask(Send(ORDERS, 1, [message(2, group=1)]))
            (task,) = (
                await tester.ask(StartMoveTask(ORDERS, b"task", "from", None, 1, None, partition=1))
            ).tasks
            await until(lambda: partition_key(ORDERS, 1) in queues.holding)
            for _ in range(100):
                await tester.ask(Receive(1, 0, 1))
            assert queues.partition(ORDERS, 1).tasks[0].status == task.status == "RUNNING"

            await tester.set_queue(with_state(after, 0, "drained"))

            await until(lambda: queues.partition(ORDERS, 1).tasks[0].status == "COMPLETED")
            assert queues.partition(1, 0).alive == 1

    asyncio.run(scenario())


def test_dead_letters_keep_their_order_while_the_partition_they_go_to_is_sealed(tmp_path: Path) -> None:
    """Of two groups, from a queue whose journal gets the new partition of its dead-letter queue."""

    async def scenario() -> None:
        async with two_journals(tmp_path, cell_format=7) as cell:
            before = cell.queues["steps-x.fifo"]
            after = with_children_open(
                with_children(before, before.partitions, [(0, KEY_MAX)], [SOURCE_JOURNAL])
            )
            worn = [message(number, group=2 - number % 2) for number in range(1, 31)]
            await cell.wear_out(STEPS, worn)
            await cell.move_all(STEPS, STEPS_DEAD, 5)
            await cell.tell(SOURCE_JOURNAL, SetQueue(after, SOURCE_JOURNAL))
            await cell.tell(TARGET_JOURNAL, SetQueue(after, TARGET_JOURNAL))
            cell.queues["steps-x.fifo"] = after
            first: list[int] = []
            second: list[int] = []
            while len(first) + len(second) < 30:
                await cell.receive(SOURCE_JOURNAL, STEPS)
                first = await numbers_of(cell, TARGET_JOURNAL, 0)
                second = await numbers_of(cell, SOURCE_JOURNAL, 1)

            for remainder in (0, 1):
                of_group = [number for number in first + second if number % 2 == remainder]
                assert of_group == [number for number in range(1, 31) if number % 2 == remainder]
            assert len(first) < 30

    asyncio.run(scenario())


async def numbers_of(cell: TwoJournals, journal: int, partition: int) -> list[int]:
    """Return the messages of a partition of the dead-letter queue, in their order."""
    peeked = await cell.tell(journal, Peek(STEPS_DEAD, partition, 1, 1_000))
    assert isinstance(peeked, PeekOutcome)
    return [number_of(one.flags, one.payload)[0] for one in peeked.messages]

"""A receive is answered empty only when older partitions have said, since it came, which groups they have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import BrokerTester, define, message, numbers, running
from harness.replica_host import moved

from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.values.commands.messages import (
    Delete,
    Purge,
    Receive,
    ReceiveOutcome,
    Send,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.errors import NotNow

ORDERS = 9
BEFORE = define(ORDERS, "orders.fifo")
PARENT, CHILD = 0, 1


async def set_up(tester: BrokerTester, older: list[int], newer: list[int]) -> None:
    """Each of these is a group with a message: 1 of group 1 in the parent, 101 of group 1 in the child."""
    await tester.set_queue(BEFORE)
    for number in older:
        await tester.send(ORDERS, message(number, group=number))
    await tester.set_queue(moved(BEFORE))
    for number in newer:
        await tester.ask(Send(ORDERS, CHILD, [message(100 + number, group=number)]))


async def poll(tester: BrokerTester, partition: int, *, fails_fast: bool = False) -> list[int]:
    outcome = await tester.ask(Receive(ORDERS, partition, 10, 30_000, fails_fast=fails_fast))
    assert isinstance(outcome, ReceiveOutcome)
    return numbers(outcome.deliveries)


def test_a_short_poll_gets_messages_of_groups_that_it_is_the_first_to_meet(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            await set_up(tester, [], [1, 2, 3])

            with pytest.raises(NotNow, match="have not said yet"):
                await poll(tester, CHILD, fails_fast=True)
            assert await poll(tester, CHILD) == [101, 102, 103]
            assert await poll(tester, CHILD) == []

    asyncio.run(scenario())


def test_a_short_poll_gets_what_an_acknowledged_delete_in_an_older_partition_has_freed(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            await set_up(tester, list(range(1, 11)), list(range(1, 11)))
            older = await tester.receive(ORDERS, 10)
            assert len(older) == 10
            assert await poll(tester, CHILD) == []

            for delivery in older:
                (number,) = numbers([delivery])
                await tester.ask(Delete(ORDERS, PARENT, tester.receipts([delivery])))
                assert await poll(tester, CHILD) == [100 + number]

    asyncio.run(scenario())


def test_polls_that_come_together_share_what_older_partitions_say(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            await set_up(tester, [1, 2], [1, 2])
            assert len(await tester.receive(ORDERS, 10)) == 2

            assert await poll(tester, CHILD) == []
            order = tester.broker.host.replica.queues.partition(ORDERS, CHILD).order
            assert isinstance(order, FIFOOrder)
            assert order.holds is not None
            before = order.holds.looks

            assert await asyncio.gather(*(poll(tester, CHILD) for _ in range(20))) == [[]] * 20

            assert order.holds.looks <= before + 3
            assert await tester.ask(Watch(ORDERS, CHILD, 0)) == WatchOutcome(False)
            await tester.ask(Purge(ORDERS))
            assert await poll(tester, CHILD) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("command", [Receive(ORDERS, CHILD, 10), Watch(ORDERS, CHILD, 1)])
def test_nothing_is_never_said_while_an_older_partition_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.setattr("quaymaster.broker.replica.receives.LOOK_S", 0.05)

    async def scenario() -> None:
        async with running(tmp_path) as tester:
            await set_up(tester, [], [1])
            silent = asyncio.Event()

            async def groups_left(*_: Any) -> Any:
                await silent.wait()

            monkeypatch.setattr("quaymaster.broker.replica.group_questions.GroupAnswers.answer", groups_left)

            with pytest.raises(NotNow, match="have not said yet"):
                await tester.ask(command)

    asyncio.run(scenario())


def test_polls_that_wait_for_older_partitions_end_with_the_broker_and_with_their_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.broker.replica.receives.LOOK_S", 3_600.0)

    async def scenario() -> None:
        async with running(tmp_path) as tester:
            await set_up(tester, [], [1])
            asked = asyncio.Event()

            async def groups_left(*_: Any) -> Any:
                asked.set()
                await asyncio.Event().wait()

            monkeypatch.setattr("quaymaster.broker.replica.group_questions.GroupAnswers.answer", groups_left)
            told: list[Any] = []
            gone = tester.broker.submit(Receive(ORDERS, CHILD, 10), told.append)
            staying = asyncio.create_task(poll(tester, CHILD))
            await asked.wait()
            gone.cancel()

            await tester.broker.close()

            with pytest.raises(NotNow):
                await staying
            assert told == []

    asyncio.run(scenario())

"""Watches, and how those who wait or send learn of newer partitions, as the host of a replica answers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.broker_support import BrokerTester, define, identity, message, numbers, running
from harness.replica_host import moved
from harness.waiting import PATIENCE_S

from quaymaster.core.values.commands.messages import (
    Delete,
    Elsewhere,
    Receive,
    ReceiveOutcome,
    Send,
    SendResult,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.unions import Command

WAIT_MS = 20_000


def started(tester: BrokerTester, *commands: Command) -> tuple[list[Any], list[list[Any]]]:
    """Submit commands; return what takes each back, and the list that its answers go to."""
    answers: list[list[Any]] = [[] for _ in commands]
    submitted = [
        tester.broker.submit(command, told.append) for command, told in zip(commands, answers, strict=True)
    ]
    return submitted, answers


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        await asyncio.sleep(0.001)


async def parked(tester: BrokerTester, number: int) -> None:
    await until(lambda: tester.broker.host.receives.waiters.parked == number)


def run(directory: Path, scenario: Any) -> None:
    async def whole() -> None:
        async with running(directory) as tester:
            await tester.set_queue(define(1))
            await scenario(tester)

    asyncio.run(whole())


def test_watches_are_all_told_of_a_message_that_a_receive_behind_them_then_gets(tmp_path: Path) -> None:
    async def scenario(tester: BrokerTester) -> None:
        poll = Receive(1, 0, 10, wait_ms=WAIT_MS)
        _, answers = started(tester, Watch(1, 0, WAIT_MS), Watch(1, 0, WAIT_MS), poll)
        await parked(tester, 3)

        await tester.send(1, message(5))
        await until(lambda: all(answers))

        assert answers[:2] == [[WatchOutcome(True)]] * 2
        assert numbers(answers[2][0].deliveries) == [5]
        assert await tester.ask(Watch(1, 0, 0)) == WatchOutcome(False)

    run(tmp_path, scenario)


def test_a_watch_ends_with_its_wait_and_with_the_broker(tmp_path: Path) -> None:
    async def scenario(tester: BrokerTester) -> None:
        assert await tester.ask(Watch(1, 0, 1)) == WatchOutcome(False)
        _, answers = started(tester, Watch(1, 0, WAIT_MS), Receive(1, 0, 1, wait_ms=WAIT_MS))
        await parked(tester, 2)

        await tester.broker.close()

        assert answers[0] == [WatchOutcome(False)]
        assert isinstance(answers[1][0], ReceiveOutcome)

    run(tmp_path, scenario)


def test_a_watch_is_told_when_a_message_comes_back_in_time(tmp_path: Path) -> None:
    async def scenario(tester: BrokerTester) -> None:
        await tester.send(1, message(5))
        await tester.receive(1, timeout_ms=100)

        assert await tester.ask(Watch(1, 0, WAIT_MS)) == WatchOutcome(True)
        assert numbers(await tester.receive(1)) == [5]

    run(tmp_path, scenario)


def test_a_watch_that_is_taken_back_hears_nothing(tmp_path: Path) -> None:
    async def scenario(tester: BrokerTester) -> None:
        submitted, answers = started(tester, Watch(1, 0, WAIT_MS), Watch(1, 0, WAIT_MS))
        await parked(tester, 2)

        submitted[0].cancel()
        await tester.send(1, message(5))
        await until(lambda: answers[1])

        assert answers == [[], [WatchOutcome(True)]]

    run(tmp_path, scenario)


def test_those_who_wait_and_know_an_older_table_are_told_of_a_newer_one_and_others_wait_on(
    tmp_path: Path,
) -> None:
    async def scenario(tester: BrokerTester) -> None:
        submitted, answers = started(
            tester,
            Receive(1, 0, 10, wait_ms=WAIT_MS),
            Receive(1, 0, 10, wait_ms=WAIT_MS, table_version=1),
            Watch(1, 0, WAIT_MS, 1),
            Watch(1, 0, WAIT_MS, 3),
            Receive(1, 0, 10, wait_ms=WAIT_MS, table_version=1),
            Receive(1, 0, 10, wait_ms=WAIT_MS, table_version=1),
        )
        await parked(tester, 6)
        submitted[5].cancel()

        await tester.set_queue(moved(define(1)))
        await until(lambda: answers[4])

        assert [answers[at] for at in (1, 2, 4)] == [[Elsewhere(moved(define(1)))]] * 3
        assert [answers[at] for at in (0, 3, 5)] == [[], [], []]
        await parked(tester, 2)
        await tester.ask(Send(1, 1, [message(5)]))
        assert await tester.ask(Receive(1, 0, 1, wait_ms=WAIT_MS, table_version=1)) == Elsewhere(
            moved(define(1))
        )

    run(tmp_path, scenario)


def test_a_send_to_a_sealed_partition_is_told_the_ids_of_what_is_there_and_where_to_go_with_the_rest(
    tmp_path: Path,
) -> None:
    async def scenario(tester: BrokerTester) -> None:
        (first,) = await tester.send(1, message(5, dedup=50))
        await tester.set_queue(moved(define(1)))

        outcome = await tester.ask(Send(1, 0, [message(6, dedup=60), message(7, dedup=50)]))

        assert outcome == Elsewhere(
            moved(define(1)), [None, SendResult(first.sequence, identity(5), duplicate=True)]
        )
        deliveries = await tester.receive(1)
        assert numbers(deliveries) == [5]
        await tester.ask(Delete(1, 0, tester.receipts(deliveries)))

    run(tmp_path, scenario)

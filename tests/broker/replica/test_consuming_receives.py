"""Receives of AtMostOnce queues: bodies are read, then the messages are deleted, then they are delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import BrokerTester, define, message, numbers, running
from harness.routed_cell import until

from quaymaster.broker.replica import consuming_receives
from quaymaster.core.values.commands.decided import Consume
from quaymaster.core.values.commands.messages import CountMessages, Delete, Receipt, Receive, ReceiveOutcome
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.errors import StaleEpoch, TooFewReplicas

from .test_replica import damage, offset_of


async def with_messages(tester: BrokerTester, *some: int, name: str = "jobs") -> None:
    await tester.set_queue(define(1, name, DeliveryGuarantee="AtMostOnce"))
    for number in some:
        await tester.send(1, message(number, group=1))


async def alive(tester: BrokerTester) -> int:
    counts = await tester.ask(CountMessages(1))
    total: int = counts.visible + counts.in_flight
    return total


def refuse(
    tester: BrokerTester, monkeypatch: pytest.MonkeyPatch, kind: type, errors: list[Exception]
) -> None:
    """Let the leader refuse so many commands of a kind."""
    propose = tester.broker.host.replica.propose

    def refusing(command: Any, token: Any, time_ms: int) -> None:
        if type(command) is kind and errors:
            tester.broker.host.replica._replies.append((token, errors.pop(0)))
        else:
            propose(command, token, time_ms)

    monkeypatch.setattr(tester.broker.host.replica, "propose", refusing)


@pytest.mark.parametrize("cache_bytes", [1, 1 << 20])
@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_what_is_delivered_is_gone(tmp_path: Path, name: str, cache_bytes: int) -> None:
    async def run() -> tuple[list[list[int]], int, list[Any]]:
        async with running(tmp_path, body_cache_bytes=cache_bytes) as tester:
            await with_messages(tester, 1, 2, 3, name=name)
            received = [numbers(await tester.receive(1, 2)) for _ in range(3)]
            deleted = await tester.ask(Delete(1, 0, [Receipt(1, 1, 1)]))
            return received, await alive(tester), deleted.errors

    assert asyncio.run(run()) == ([[1, 2], [3], []], 0, [None])


def test_a_waiting_receive_is_served_when_a_message_comes(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await with_messages(tester)
            waiting = asyncio.ensure_future(tester.receive(1, wait_ms=60_000))
            await until(lambda: tester.broker.host.receives.waiters.parked)
            await tester.send(1, message(1))
            return numbers(await waiting), await alive(tester)

    assert asyncio.run(run()) == ([1], 0)


def test_what_was_set_aside_for_a_client_that_has_gone_stays(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await with_messages(tester, 1)
            host = tester.broker.host
            gone = host.submit(Receive(1, 0, 1), lambda outcome: None)
            answer = host.receives.answer

            def leave(waiter: Any, decided: Any) -> None:
                gone.cancel()
                answer(waiter, decided)

            host.receives.answer = leave  # type: ignore[method-assign,assignment]
            await until(lambda: gone.waiter.is_done)  # type: ignore[union-attr]
            host.receives.answer = answer  # type: ignore[method-assign]
            return numbers(await tester.receive(1, wait_ms=60_000))

    assert asyncio.run(run()) == [1]


def test_an_unreadable_message_stays_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[list[int], list[int], int, list[int]]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await with_messages(tester, 1, 2)
            monkeypatch.setattr(consuming_receives, "UNREADABLE_RETRY_S", 0.001)
            with monkeypatch.context() as patch:
                damage(tester, patch, offset_of(tester, 1, 1))
                received = numbers(await tester.receive(1))
                nothing = numbers(await tester.receive(1, wait_ms=60_000))
                left = await alive(tester)
            return received, nothing, left, numbers(await tester.receive(1, wait_ms=60_000))

    assert asyncio.run(run()) == ([2], [], 1, [1])


def test_a_message_that_a_leader_may_not_delete_now_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await with_messages(tester, 1)
            monkeypatch.setattr(consuming_receives, "REFUSED_RETRY_S", 0.001)
            with monkeypatch.context() as patch:
                refuse(tester, patch, Consume, [TooFewReplicas()])
                with pytest.raises(TooFewReplicas):
                    await tester.receive(1)
            refused: list[Exception] = [TooFewReplicas(), TooFewReplicas()]
            refuse(tester, monkeypatch, MoveMessage, refused)
            received = numbers(await tester.receive(1, wait_ms=60_000))
            assert not refused
            return received

    assert asyncio.run(run()) == [1]


def test_a_message_whose_deletion_is_doubtful_is_delivered_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await with_messages(tester, 1)
            monkeypatch.setattr(consuming_receives, "REFUSED_RETRY_S", 0.001)
            host = tester.broker.host
            answer = host._answer

            def lose(token: Any, decided: Any) -> None:
                lost = getattr(token, "kind", None) is Consume
                answer(token, StaleEpoch() if lost else decided)

            monkeypatch.setattr(host, "_answer", lose)
            with pytest.raises(StaleEpoch):
                await tester.receive(1)
            await until(lambda: not host.receives._consuming._timers)
            return numbers(await tester.receive(1)), await alive(tester)

    assert asyncio.run(run()) == ([], 0)


def test_a_broker_that_closes_puts_nothing_back_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[int, list[int]]:
        async with running(tmp_path) as tester:
            await with_messages(tester, 1)
            refuse(tester, monkeypatch, Consume, [TooFewReplicas()])
            with pytest.raises(TooFewReplicas):
                await tester.receive(1)
            host = tester.broker.host
            waiting = len(host.receives._consuming._timers)
        assert not host.receives._consuming._timers
        async with running(tmp_path) as tester:
            outcome: ReceiveOutcome = await tester.ask(Receive(1, 0, 1))
            return waiting, numbers(outcome.deliveries)

    assert asyncio.run(run()) == (1, [1])

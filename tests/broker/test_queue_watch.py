"""Those who watch queues are told of them by who leads them: in one process, and by RPC."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.broker_support import define, message, options
from harness.waiting import PATIENCE_S

from quaymaster.broker import queue_watch
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.queue_watch_calls import CALLERS, QueueWatchCalls
from quaymaster.broker.own_journals import OwnJournals
from quaymaster.broker.queue_watch import QueueWatch
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.commands.messages import Receive, Send, Watch
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import InternalFailure, NotNow, Overloaded, Unreachable
from quaymaster.core.values.queue_metrics import (
    WATCHED_QUEUES_MAX,
    GonePartition,
    QueueMetricsPage,
    QueueMetricsRequest,
    decode_cursor,
    encode_cursor,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.net.routing.broker_client import ask
from quaymaster.net.routing.queue_metrics_client import AllLeaders, OneLeader, QueueMetricsClient
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCServer
from quaymaster.protocol.rpc.broker_calls import QUEUE_METRICS
from quaymaster.protocol.rpc.frames import Hello


def in_a_loop(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(scenario)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(scenario(*arguments, **named))

    return run


def in_journal(queue_id: int, journal: int) -> QueueDefinition:
    return msgspec.structs.replace(define(queue_id, f"queue-{queue_id}"), partitions=one_partition(journal))


@asynccontextmanager
async def leading(directory: Path, *journals: int) -> AsyncIterator[OwnJournals]:
    async def find_queue(account_id: str, name: str) -> QueueDefinition | None:
        return None

    own = OwnJournals(
        options(directory),
        journals,
        MemoryCoordination(),
        journal_of=lambda queue_id, partition: queue_id % len(journals),
        on_stopped=lambda error: None,
        find_queue=find_queue,
    )
    await own.start()
    try:
        yield own
    finally:
        await own.close()


async def read_all(client: QueueMetricsClient, leader: str, since: bytes = b"") -> list[QueueMetricsPage]:
    pages = [await client.ask(leader, QueueMetricsRequest(since))]
    while pages[-1].has_more:
        pages.append(await client.ask(leader, QueueMetricsRequest(pages[-1].cursor)))
    return pages


def queues_of(pages: list[QueueMetricsPage]) -> list[int]:
    return sorted(row.queue_id for page in pages for row in page.rows)


@in_a_loop
async def test_all_queues_are_told_of_once_and_then_those_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "PAGE_ROWS_MAX", 3)
    async with leading(tmp_path, 0, 1) as own, asyncio.timeout(PATIENCE_S):
        client = OneLeader(QueueWatch("node-a", own.all).ask)
        for queue_id in range(1, 9):
            await ask(own, SetQueue(in_journal(queue_id, queue_id % 2)))
        (here,) = client.leaders()

        first = await read_all(client, here)
        await ask(own, Send(5, 0, [message(1)]))
        await ask(own, ForgetQueue(6))
        second = await read_all(client, here, first[-1].cursor)

        assert queues_of(first) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert all(len(page.rows) <= 3 and page.leader == "node-a" for page in first)
        assert {row.journal for page in first for row in page.rows} == {0, 1}
        assert queues_of(second) == [5]
        assert [gone for page in second for gone in page.gone] == [GonePartition(6, 0, 0)]
        await client.close()


@in_a_loop
async def test_reader_that_knows_another_epoch_is_told_of_all(tmp_path: Path) -> None:
    async with leading(tmp_path, 0) as own, asyncio.timeout(PATIENCE_S):
        await ask(own, SetQueue(in_journal(1, 0)))
        watch = QueueWatch("node-a", own.all)
        told = await watch.ask(QueueMetricsRequest())
        (cursor,) = decode_cursor(told.cursor).values()
        earlier = msgspec.structs.replace(cursor, epoch=cursor.epoch - 1)

        again = await watch.ask(QueueMetricsRequest(told.cursor))
        all_there_is = await watch.ask(QueueMetricsRequest(encode_cursor({0: earlier})))

        assert queues_of([again]) == []
        assert queues_of([all_there_is]) == [1]


@in_a_loop
async def test_queues_are_asked_for_by_name(tmp_path: Path) -> None:
    async with leading(tmp_path, 0, 1) as own, asyncio.timeout(PATIENCE_S):
        for queue_id in (1, 2, 3):
            await ask(own, SetQueue(in_journal(queue_id, queue_id % 2)))
        watch = QueueWatch("node-a", own.all)

        page = await watch.ask(QueueMetricsRequest(queue_ids=(1, 2, 99)))

        assert queues_of([page]) == [1, 2]
        assert (page.cursor, page.has_more) == (b"", False)
        with pytest.raises(InternalFailure, match="At most"):
            await watch.ask(QueueMetricsRequest(queue_ids=tuple(range(WATCHED_QUEUES_MAX + 1))))


@in_a_loop
async def test_who_would_wait_too_long_for_a_page_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "WAIT_MAX_S", 0.05)
    watch = QueueWatch("node-a", list)

    answers = await asyncio.gather(
        *(watch.ask(QueueMetricsRequest()) for _ in range(3)), return_exceptions=True
    )

    assert isinstance(answers[0], QueueMetricsPage)
    assert isinstance(answers[1], Overloaded)
    assert isinstance(answers[2], Overloaded)


@asynccontextmanager
async def served(own: OwnJournals, name: str) -> AsyncIterator[tuple[str, int]]:
    """A process that leads journals, as others reach it."""

    def failed(error: Exception) -> None:
        raise error

    tasks = BrokerTasks(failed)
    calls = QueueWatchCalls(QueueWatch(name, own.all), tasks)
    server = RPCServer(calls.handlers, Hello("cell", "broker", name), callers=CALLERS)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await tasks.close()
        await server.drain(0)


@in_a_loop
async def test_each_leader_is_asked_for_what_it_leads(tmp_path: Path) -> None:
    table = LeaderTable()

    def connect(address: tuple[str, int]) -> RPCClient:
        return RPCClient(address, Hello("cell", "console", "console-1"))

    async with (
        asyncio.timeout(PATIENCE_S),
        leading(tmp_path / "a", 0) as own_a,
        leading(tmp_path / "b", 0) as own_b,
        served(own_a, "a") as address_a,
        served(own_b, "b") as address_b,
    ):
        await ask(own_a, SetQueue(in_journal(1, 0)))
        await ask(own_b, SetQueue(in_journal(2, 0)))
        client = AllLeaders(table, connect)
        for name, (host, port) in (("a", address_a), ("b", address_b), ("a-too", address_a)):
            table.set_address(name, f"{host}:{port}")

        found = [page for leader in client.leaders() for page in await read_all(client, leader)]

        assert [(page.leader, queues_of([page])) for page in found] == [("a", [1]), ("b", [2])]
        table.set_address("b", None)
        with pytest.raises(NotNow):
            await client.ask("nowhere", QueueMetricsRequest())
        assert len(client.leaders()) == 1
        with pytest.raises(Unreachable):
            await client.ask("nowhere", QueueMetricsRequest())
        await client.close()


@in_a_loop
async def test_answer_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    def answer(call: IncomingCall) -> None:
        call.reply(b"\xc1")

    server = RPCServer({QUEUE_METRICS: answer}, Hello("cell", "broker", "b1"))
    host, port = await server.start("127.0.0.1", 0)
    table = LeaderTable()
    table.set_address("b1", f"{host}:{port}")
    made: list[RPCClient] = []

    def connect(address: tuple[str, int]) -> RPCClient:
        made.append(RPCClient(address, Hello("cell", "console", "console-1")))
        return made[-1]

    client = AllLeaders(table, connect)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(InternalFailure, match="cannot read"):
            await client.ask(f"{host}:{port}", QueueMetricsRequest())
        await client.close()
        await server.drain(0)
    assert len(made) == 1


@in_a_loop
async def test_receives_that_end_without_messages_are_counted_once_however_they_wait(tmp_path: Path) -> None:
    async with leading(tmp_path, 0) as own, asyncio.timeout(PATIENCE_S):
        await ask(own, SetQueue(in_journal(1, 0)))
        for command in (
            Receive(1, 0, 1),
            Receive(1, 0, 1, wait_ms=30),
            Receive(1, 0, 1, is_part=True),
            Receive(1, 0, 1, is_part=True, empty_before=5),
            Watch(1, 0, 0, empty_before=2),
            Watch(1, 0, 30),
        ):
            await ask(own, command)
        await ask(own, Send(1, 0, [message(1)]))
        await ask(own, Receive(1, 0, 1))

        (row,) = QueueWatch("node-a", own.all).page(QueueMetricsRequest()).rows

        assert (row.empty_receives, row.received) == (9, 1)


@in_a_loop
async def test_pages_that_take_long_come_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_watch, "WAIT_MAX_S", 0.5)
    times = iter([0.0, 0.001, 1.0, 1.02])  # the first page takes a millisecond, the second twenty
    watch = QueueWatch("node-a", list, clock=lambda: next(times))

    await watch.ask(QueueMetricsRequest())
    await watch.ask(QueueMetricsRequest())

    with pytest.raises(Overloaded):
        await watch.ask(QueueMetricsRequest())

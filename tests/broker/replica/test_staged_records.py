"""Staged messages in real files: read in their order, compacted, made anew, given up, and known for duplicates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.broker_support import BrokerTester, define, identity, message, numbers, running
from harness.waiting import PATIENCE_S

import quaymaster.core.structures.orders.index as index
from quaymaster.broker.replica import replica
from quaymaster.broker.replica.maintenance import expiry
from quaymaster.broker.replica.records import recovery
from quaymaster.core.partition.work import slices
from quaymaster.core.values.commands.logs import Fetch, FetchOutcome
from quaymaster.core.values.commands.messages import Delete, NewMessage
from quaymaster.core.values.commands.transactions import (
    CommitTransaction,
    StageCount,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.errors import JournalStopped
from quaymaster.core.values.messages import message_id_of

COUNT = 120
FILLING = 300


async def stage(
    tester: BrokerTester, name: str, messages: list[NewMessage], first: int = 0, sink: str = "sink"
) -> None:
    outcome = await tester.ask(StageMessages(1, 0, sink, 1, name, first, messages))
    assert outcome == StagedOutcome(first + len(messages))


async def send_transaction(tester: BrokerTester) -> list[int]:
    """Send three stages side by side, in the order of neither; return the numbers in that of the commit."""
    for first in range(0, COUNT, 20):
        for name, base in (("a", 1_000), ("b", 2_000), ("left", 3_000)):
            some = [message(base + number, filling=b"x" * FILLING) for number in range(first, first + 20)]
            await stage(tester, name, some, first)
        await tester.send(1, message(first + 1))
    stages = [StageCount("b", COUNT), StageCount("a", COUNT)]
    await tester.ask(CommitTransaction(1, 0, "sink", 1, stages))
    sent = [first + 1 for first in range(0, COUNT, 20)]
    return [*sent, *range(2_000, 2_000 + COUNT), *range(1_000, 1_000 + COUNT)]


async def fetch_all(tester: BrokerTester, start: int = 1) -> list[int]:
    found: list[int] = []
    while True:
        outcome = await tester.ask(Fetch(1, 0, start, 1 << 40, 20_000))
        assert isinstance(outcome, FetchOutcome)
        found += [int.from_bytes(message_id_of(one), "big") for one in outcome.messages]
        if outcome.next_sequence == start:
            return found
        start = outcome.next_sequence


async def receive_all(tester: BrokerTester) -> list[int]:
    found: list[int] = []
    while deliveries := await tester.receive(1, timeout_ms=600_000):
        found += numbers(deliveries)
    return found


@pytest.fixture
def many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each turn take one slice of four messages."""
    monkeypatch.setattr(slices, "AT_ONCE_MESSAGES", 0)
    monkeypatch.setattr(slices, "SLICE_MESSAGES", 4)
    monkeypatch.setattr(replica, "SLICES_S", 0.0)


async def in_the_middle_of_a_commit(tester: BrokerTester) -> asyncio.Task[list[int]]:
    """Begin a transaction, and return when some of its messages have numbers; the task gives its messages."""
    sending = asyncio.create_task(send_transaction(tester))
    partition = tester.broker.host.replica.queues.partition(1, 0)
    async with asyncio.timeout(PATIENCE_S):
        while partition.next_sequence <= COUNT // 20 + 1:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)
    assert tester.broker.host.replica.has_more
    return sending


def hold_slices(tester: BrokerTester, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let no slice be done before the event is set."""
    event = asyncio.Event()
    do_slice = tester.broker.host.replica.do_slice
    monkeypatch.setattr(
        tester.broker.host.replica, "do_slice", lambda time_ms: not event.is_set() or do_slice(time_ms)
    )
    return event


def test_a_snapshot_waits_for_a_commit_in_slices(tmp_path: Path, many_slices: None) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            sending = await in_the_middle_of_a_commit(tester)

            await tester.broker.snapshots.write()

            expected = await sending
        async with running(tmp_path) as tester:
            assert await fetch_all(tester) == expected
            assert await receive_all(tester) == expected

    asyncio.run(run())


def test_a_snapshot_is_given_up_when_the_journal_stops_in_the_middle_of_a_commit(
    tmp_path: Path, many_slices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            sending = await in_the_middle_of_a_commit(tester)
            hold_slices(tester, monkeypatch)
            writing = asyncio.create_task(tester.broker.snapshots.write())
            while tester.broker.host.records_since_snapshot:  # noqa: ASYNC110
                await asyncio.sleep(0)

            tester.broker.host.stop(OSError("the disk is gone"))

            await writing
            assert tester.broker.snapshots.failed == 1
            with pytest.raises(JournalStopped):
                await sending

    asyncio.run(run())


def test_a_slice_that_fails_stops_the_journal(
    tmp_path: Path, many_slices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise AssertionError("the queues are not what they seem")

    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            sending = await in_the_middle_of_a_commit(tester)

            monkeypatch.setattr(tester.broker.host.replica, "do_slice", fail)

            with pytest.raises(JournalStopped, match="not what they seem"):
                await sending

    asyncio.run(run())


def test_a_queue_is_answered_behind_its_commit_and_others_meanwhile(
    tmp_path: Path, many_slices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.set_queue(define(2))
            sending = await in_the_middle_of_a_commit(tester)
            may_go = hold_slices(tester, monkeypatch)
            receiving = asyncio.create_task(tester.receive(1, wait_ms=1_000))

            await tester.send(2, message(9))
            assert numbers(await tester.receive(2)) == [9]

            assert tester.broker.host.replica.has_more
            assert not receiving.done()
            may_go.set()
            assert numbers(await receiving) == (await sending)[:10]

    asyncio.run(run())


@pytest.mark.parametrize("cache_bytes", [1, 1 << 20])
def test_stages_side_by_side_are_read_in_the_order_of_the_commit(tmp_path: Path, cache_bytes: int) -> None:
    async def run() -> None:
        async with running(tmp_path, body_cache_bytes=cache_bytes) as tester:
            await tester.set_queue(define(1))

            expected = await send_transaction(tester)

            assert await fetch_all(tester) == expected
            assert await receive_all(tester) == expected

    asyncio.run(run())


def test_an_index_of_staged_messages_is_made_anew_a_few_chunks_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "CHUNK_ENTRIES", 16)
    monkeypatch.setattr(index, "TAIL_ENTRIES_MAX", 32)
    monkeypatch.setattr(recovery, "SCATTERED_CHUNKS_MAX", 2)

    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            expected = await send_transaction(tester)
        (tmp_path / "0" / recovery.INDEX_NAME).unlink()

        async with running(tmp_path) as tester:
            assert await fetch_all(tester) == expected

    asyncio.run(run())


def test_compaction_keeps_what_of_a_transaction_is_there_and_nothing_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await stage(tester, "a", [message(5_000)], sink="other")
            expected = await send_transaction(tester)
            for _ in range(len(expected) * 3 // 40):
                deliveries = await tester.receive(1, timeout_ms=600_000)
                await tester.ask(Delete(1, 0, tester.receipts(deliveries)))
            gone = 10 * (len(expected) * 3 // 40)
            await tester.set_queue(define(2))
            for number in range(100):
                await tester.send(2, message(number, filling=b"y" * FILLING))
            for _ in range(2):
                await tester.broker.snapshots.write()

            await tester.broker.compaction.step(younger_than_ms=0)

            assert tester.broker.compaction.compacted_segments > 0
            assert await fetch_all(tester, gone + 1) == expected[gone:]
        async with running(tmp_path) as tester:
            await tester.ask(CommitTransaction(1, 0, "other", 1, [StageCount("a", 1)]))
            assert await fetch_all(tester, gone + 1) == [*expected[gone:], 5_000]

    asyncio.run(run())


def test_a_duplicate_of_a_staged_message_is_told_its_number(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(1, group=1, dedup=1))
            await stage(tester, "a", [message(number, group=1, dedup=number) for number in (2, 3)])
            await tester.ask(CommitTransaction(1, 0, "sink", 1, [StageCount("a", 2)]))

            (result,) = await tester.send(1, message(9, group=1, dedup=3))

            assert (result.sequence, result.message_id, result.duplicate) == (3, identity(3), True)

    asyncio.run(run())


def test_a_transaction_that_nobody_adds_to_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.core.partition.staged_messages.EXPIRES_MS", 50)
    monkeypatch.setattr(expiry, "EXPIRY_ROUND_S", 0.05)

    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await stage(tester, "a", [message(1)])
            staged = tester.broker.host.replica.queues.partition(1, 0).staged
            assert staged is not None
            for _ in range(6_000):
                if not staged.open:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("it stays")

    asyncio.run(run())

"""The host of a replica: turns, bodies from cache and disk, and records that cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import (
    BrokerTester,
    body_of,
    define,
    identity,
    message,
    number_of,
    numbers,
    running,
)
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica import replies
from quaymaster.broker.replica.replica import TURN_COMMANDS, TURN_WAITS_MAX
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.core.values.commands.messages import Delete, Peek, Receive, ReceiveOutcome, Send
from quaymaster.core.values.errors import InternalFailure


def damage(tester: BrokerTester, monkeypatch: pytest.MonkeyPatch, *offsets: int) -> None:
    """Make single records unreadable, as a bad sector does."""
    read_records = tester.broker.files.read_records

    def read(wanted: list[int]) -> Any:
        for offset in wanted:
            if offset in offsets:
                raise RecordUnreadable(offset, "its sector is damaged")
        return read_records(wanted)

    monkeypatch.setattr(tester.broker.files, "read_records", read)


def offset_of(tester: BrokerTester, queue_id: int, sequence: int) -> int:
    return tester.broker.host.replica.queues.partition(queue_id, 0).index.entry(sequence).offset


def test_messages_that_left_the_cache_are_read_from_the_segments(tmp_path: Path) -> None:
    fillings = {number: b"%d " % number * 100 for number in range(1, 101)}

    async def run() -> tuple[dict[int, bytes], int]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1))
            for number, filling in fillings.items():
                await tester.send(1, message(number, filling=filling))
            found: dict[int, bytes] = {}
            while deliveries := await tester.receive(1):
                found.update(number_of(delivery.flags, delivery.payload) for delivery in deliveries)
            return found, tester.broker.host.bodies.misses

    found, misses = asyncio.run(run())

    assert found == {number: body_of(number, filling=filling) for number, filling in fillings.items()}
    assert misses >= 99


def test_messages_in_the_cache_cost_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, *[message(number) for number in range(1, 11)])
            monkeypatch.setattr(tester.broker.files, "read_records", None)
            return numbers(await tester.receive(1))

    assert asyncio.run(run()) == list(range(1, 11))


def test_an_unreadable_record_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[list[int], list[int], Any]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, *[message(number) for number in range(1, 6)])
            await tester.send(1, message(6))
            damage(tester, monkeypatch, offset_of(tester, 1, 2), offset_of(tester, 1, 4))
            received = numbers(await tester.receive(1))
            peeked = await tester.ask(Peek(1, 0, 1, 10))
            seen = [number_of(each.flags, each.payload)[0] for each in peeked.messages]
            await tester.send(1, message(7))
            return received, seen, tester.broker.host.stopped

    received, seen, stopped = asyncio.run(run())

    assert received == seen == [1, 3, 5, 6]
    assert stopped is None


def test_a_disk_that_cannot_be_read_gives_an_empty_receive_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(offsets: list[int]) -> Any:
        raise OSError(5, "Input/output error")

    async def run() -> tuple[list[int], list[int]]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            await tester.send(1, message(2))
            with monkeypatch.context() as patch:
                patch.setattr(tester.broker.files, "read_records", fails)
                none = numbers(await tester.receive(1, 1, timeout_ms=0))
            return none, sorted(numbers(await tester.receive(1)))

    assert asyncio.run(run()) == ([], [1, 2])


def test_a_duplicate_is_answered_with_the_ids_of_its_original(tmp_path: Path) -> None:
    async def run() -> list[tuple[bytes, bool]]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(1, group=1, dedup=1), message(2, group=1, dedup=2))
            results = await tester.send(
                1, message(3, group=1, dedup=2), message(4, group=1, dedup=4), message(5, group=1, dedup=1)
            )
            return [(result.message_id, result.duplicate) for result in results]

    assert asyncio.run(run()) == [(identity(2), True), (identity(4), False), (identity(1), True)]


def test_a_duplicate_of_a_record_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(1, group=1, dedup=1))
            await tester.send(1, message(2, group=1, dedup=2))
            damage(tester, monkeypatch, offset_of(tester, 1, 1))
            with pytest.raises(InternalFailure):
                await tester.send(1, message(3, group=1, dedup=1))

    asyncio.run(run())


def test_commands_of_one_turn_are_decided_in_order_and_written_together(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            before = tester.broker.host.writer.counters.appended_batches
            results = await asyncio.gather(
                *[tester.ask(Send(1, 0, [message(number, group=1)])) for number in range(1, 51)]
            )
            batches = tester.broker.host.writer.counters.appended_batches - before
            return [outcome.results[0].sequence for outcome in results], batches

    sequences, batches = asyncio.run(run())

    assert sequences == list(range(1, 51))
    assert batches == 1


async def batches_of_passes(tester: BrokerTester, passes: int, each: int) -> int:
    """Send `each` messages in each of so many passes of the loop; return in how many batches they were written."""
    counters = tester.broker.host.writer.counters
    before = counters.appended_batches
    asked = []
    for _ in range(passes):
        asked += [asyncio.ensure_future(tester.ask(Send(1, 0, [message(number)]))) for number in range(each)]
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    return counters.appended_batches - before


@pytest.mark.parametrize(
    ("passes", "each", "batches"),
    [
        pytest.param(1, 1, 1, id="alone"),
        pytest.param(TURN_WAITS_MAX, 1, 1, id="as long as more come"),
        pytest.param(2, TURN_COMMANDS, 2, id="enough for a turn"),
        pytest.param(2 * TURN_WAITS_MAX, 1, 2, id="not for ever"),
    ],
)
def test_a_turn_with_few_commands_waits_while_more_come(
    tmp_path: Path, passes: int, each: int, batches: int
) -> None:
    async def run() -> int:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            return await batches_of_passes(tester, passes, each)

    assert asyncio.run(run()) == batches


def test_a_reply_never_comes_from_inside_submit(tmp_path: Path) -> None:
    async def run() -> bool:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            answered = asyncio.Event()
            tester.broker.submit(Receive(1, 0, 1), lambda _: answered.set())
            was_answered = answered.is_set()
            await asyncio.wait_for(answered.wait(), PATIENCE_S)
            return was_answered

    assert not asyncio.run(run())


def test_a_delete_during_a_cold_read_is_harmless(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], list[Exception | None]]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1))
            for number in range(1, 6):
                await tester.send(1, message(number))
            first = tester.receipts(await tester.receive(1, 5, timeout_ms=0))
            reading = asyncio.create_task(tester.receive(1))
            await asyncio.sleep(0)
            outcome = await tester.ask(Delete(1, 0, first))
            return sorted(numbers(await reading)), outcome.errors

    received, errors = asyncio.run(run())

    assert set(received) <= {1, 2, 3, 4, 5}
    assert errors == [None] * 5


def test_a_reply_that_fails_does_not_cost_the_others_theirs(tmp_path: Path) -> None:
    async def run() -> tuple[list[Any], Exception | None]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            answers: list[Any] = []

            def broken(outcome: Any) -> None:
                raise ValueError("this client cannot be answered")

            tester.broker.submit(Send(1, 0, [message(1)]), broken)
            tester.broker.submit(Send(1, 0, [message(2)]), answers.append)
            while not answers:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0)
            return answers, tester.broker.host.stopped

    answers, stopped = asyncio.run(run())

    assert answers[0].results[0].sequence == 2
    assert stopped is None


@pytest.mark.parametrize("cache_bytes", [1, 64 << 20])
def test_large_replies_go_one_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    monkeypatch.setattr(replies, "LARGE_REPLY_BYTES", 1_000)

    async def run() -> tuple[list[int], list[int]]:
        async with running(tmp_path, body_cache_bytes=cache_bytes) as tester:
            await tester.set_queue(define(1))
            await tester.set_queue(define(2))
            for _ in range(5):
                await tester.send(1, *(message(number, filling=b"x" * 300) for number in range(10)))
            await tester.send(2, *(message(number) for number in range(50)))
            large, small = await turns_of_replies(tester, 1), await turns_of_replies(tester, 2)
            return large, small

    large, small = asyncio.run(run())

    assert len(set(large)) == len(large) == 5
    assert len(small) == 5


def test_a_large_reply_that_fails_does_not_cost_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "LARGE_REPLY_BYTES", 1)

    def failing(outcome: object) -> None:
        raise RuntimeError("cannot be rendered")

    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, *(message(number) for number in range(30)))
            tester.broker.submit(Receive(1, 0, 10, -1, 0), failing)
            return await turns_of_replies(tester, 1, receives=2)

    assert len(asyncio.run(run())) == 2


async def turns_of_replies(tester: BrokerTester, queue_id: int, receives: int = 5) -> list[int]:
    """Receive several times at once; return in which turn of the loop each was answered."""
    turn = 0
    replied: list[int] = []

    def answered(outcome: object) -> None:
        assert isinstance(outcome, ReceiveOutcome)
        assert len(outcome.deliveries) == 10
        replied.append(turn)

    for _ in range(receives):
        tester.broker.submit(Receive(queue_id, 0, 10, -1, 0), answered)
    while len(replied) < receives:
        await asyncio.sleep(0)
        turn += 1
    return replied

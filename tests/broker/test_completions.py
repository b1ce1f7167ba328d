"""Completions over a journal on a disk: outputs arrive, whatever ends or is rewritten in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.broker_support import BrokerTester, arn, define, message, number_of, numbers, running
from harness.sim_disk import SimDisk
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica.moves.message_moves import MessageMoves
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, Output
from quaymaster.core.values.commands.messages import Delete, NewMessage, Peek, PeekOutcome, Receipt
from quaymaster.core.values.commands.move_tasks import (
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.commands.partitions import DataKeysOutcome, ForgetQueue, ListDataKeys
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.messages import encode_message_head, join_payload

A, B = 1, 2
KEY_OF_OUTPUTS = 55


def output(number: int, *, key_id: int = 1, queue_id: int = B, filling: bytes = b"") -> Output:
    body = encode_message_head(number.to_bytes(16, "big"), key_id, b"startid8", queue_id, number)
    flags, payload = join_payload(0, None, None, body + filling + bytes(16))
    return Output(queue_id, 0, 0, number, arn(f"queue-{queue_id}"), payload, flags)


async def complete(tester: BrokerTester, receipts: list[Receipt], *outputs: Output) -> None:
    outcome = await tester.ask(Complete(A, 0, receipts, list(outputs), 7))
    assert outcome == CompleteOutcome([None] * len(receipts))


async def begin(tester: BrokerTester, *messages: NewMessage) -> list[Receipt]:
    """Have queues A and B, and messages of A in flight."""
    await tester.set_queue(define(A))
    await tester.set_queue(define(B))
    await tester.send(A, *messages)
    return tester.receipts(await tester.receive(A, timeout_ms=100_000))


async def wait_for(tester: BrokerTester, count: int, queue_id: int = B) -> list[int]:
    """Return the messages of a queue, in their order, once there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            peeked = await tester.ask(Peek(queue_id, 0, 1, 1_000))
            assert isinstance(peeked, PeekOutcome)
            if len(peeked.messages) >= count:
                return [number_of(one.flags, one.payload)[0] for one in peeked.messages]
            await asyncio.sleep(0.005)


def under_way(tester: BrokerTester) -> int:
    return tester.broker.host.replica.queues.outputs_under_way


async def until_settled(tester: BrokerTester) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while under_way(tester):  # noqa: ASYNC110 -- the product has no event for it
            await asyncio.sleep(0.005)


def hold_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be sent until the next start, as when the process ends right after the commit."""
    monkeypatch.setattr(MessageMoves, "outputs_begun", lambda self, key, begun: None)


def test_outputs_of_a_completion_arrive_in_queues_of_the_same_journal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            receipts = await begin(tester, message(1), message(2))
            await complete(tester, receipts, *[output(number) for number in range(10, 110)])

            assert await wait_for(tester, 100) == list(range(10, 110))
            assert numbers(await tester.receive(B, 3)) == [10, 11, 12]
            await until_settled(tester)
            assert await tester.receive(A) == []

    asyncio.run(scenario())


def test_next_start_sends_outputs_that_had_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        coordination = MemoryCoordination()
        with monkeypatch.context() as patched:
            hold_outputs(patched)
            async with running(tmp_path, coordination=coordination) as tester:
                receipts = await begin(tester, message(1))
                await complete(tester, receipts, output(10), output(11))
                with pytest.raises(NotNow):
                    await tester.ask(ForgetQueue(A))
        async with running(tmp_path, coordination=coordination) as tester:
            assert await wait_for(tester, 2) == [10, 11]
            await until_settled(tester)
            await tester.ask(ForgetQueue(A))

    asyncio.run(scenario())


def test_compaction_keeps_outputs_until_they_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(tester: BrokerTester, first: int) -> None:
        for start in range(first, first + 300, 10):
            await tester.send(
                A, *[message(number, filling=b"x" * 300) for number in range(start, start + 10)]
            )
        while deliveries := await tester.receive(A, timeout_ms=100_000):
            await tester.ask(Delete(A, 0, tester.receipts(deliveries)))
        for _ in range(2):
            await tester.broker.snapshots.write()
        assert await tester.broker.compaction.step(younger_than_ms=-1_000)

    async def scenario() -> None:
        disk, coordination = SimDisk(), MemoryCoordination()
        place = Path("/journal")
        with monkeypatch.context() as patched:
            hold_outputs(patched)
            async with running(place, disk=disk, coordination=coordination) as tester:
                receipts = await begin(tester, message(1))
                await complete(tester, receipts, output(10, filling=b"y" * 300))
                await fill(tester, 100)
        async with running(place, disk=disk, coordination=coordination) as tester:
            assert await wait_for(tester, 1) == [10]
            await until_settled(tester)
            await tester.ask(Delete(B, 0, tester.receipts(await tester.receive(B))))
            start = tester.broker.files.start_offset
            await fill(tester, 1_000)
            assert tester.broker.files.start_offset > start

    asyncio.run(scenario())


def test_data_keys_of_outputs_are_listed_while_their_record_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        hold_outputs(monkeypatch)
        async with running(tmp_path) as tester:
            receipts = await begin(tester, message(1))
            await complete(tester, receipts, output(10, key_id=KEY_OF_OUTPUTS), output(11, key_id=56))

            outcome = await tester.ask(ListDataKeys(0))

            assert isinstance(outcome, DataKeysOutcome)
            assert outcome.key_ids == [1, KEY_OF_OUTPUTS, 56]

    asyncio.run(scenario())


def test_output_in_a_dead_letter_queue_is_not_redriven_to_where_it_was_completed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as tester:
            receipts = await begin(tester, message(1))
            await complete(tester, receipts, output(10))
            await wait_for(tester, 1)
            await until_settled(tester)

            await tester.ask(StartMoveTask(B, b"task-number-one-", arn("queue-2"), None, None, None))
            async with asyncio.timeout(PATIENCE_S):
                while (task := await _task(tester)).status == "RUNNING":  # noqa: ASYNC110 -- asked as a client asks
                    await asyncio.sleep(0.01)

            assert (task.status, task.failure) == ("FAILED", "CouldNotDetermineMessageSource")
            assert await wait_for(tester, 1) == [10]

    asyncio.run(scenario())


async def _task(tester: BrokerTester) -> MoveTask:
    outcome = await tester.ask(ListMoveTasks(B))
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks[0]

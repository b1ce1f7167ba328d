"""Messages on their way to another queue: dead letters, and message move tasks."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import (
    BrokerTester,
    arn,
    define,
    identity,
    message,
    number_of,
    numbers,
    redrive_to,
    running,
)
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica.moves import message_moves
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import CountMessages, Delete
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    MoveTask,
    StartMoveTask,
    TakeForMove,
    TakenForTask,
)
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import ForgetQueue
from quaymaster.core.values.errors import InvalidParameterValue, TooFewReplicas
from quaymaster.core.values.messages import decode_moved, message_id_of, split_payload
from quaymaster.monitoring.supervision import listen_for_failures

SOURCE, DEAD, OTHER, LOG = 1, 2, 3, 4
TASK = identity(77)


async def make_queues(tester: BrokerTester, suffix: str = "", receives: int = 1) -> None:
    await tester.set_queue(define(DEAD, f"dead{suffix}"))
    await tester.set_queue(
        define(SOURCE, f"source{suffix}", RedrivePolicy=redrive_to(f"dead{suffix}", receives))
    )
    await tester.set_queue(define(OTHER, f"other{suffix}"))


async def make_dead(tester: BrokerTester, *all_numbers: int, group: int = 0) -> None:
    """Send messages and let them become dead letters."""
    for number in all_numbers:
        await tester.send(SOURCE, message(number, group=group))
        await tester.receive(SOURCE, timeout_ms=0)
    dead = tester.broker.host.replica.queues.partition(DEAD, 0)
    before = dead.alive
    while dead.alive < len(all_numbers):
        await tester.receive(SOURCE, timeout_ms=0)
        assert dead.alive >= before


async def start_task(
    tester: BrokerTester, target: int | None = None, rate_per_s: int | None = None
) -> MoveTask:
    target_arn = arn("other") if target == OTHER else None
    command = StartMoveTask(DEAD, TASK, arn("dead"), target_arn, target, rate_per_s)
    outcome = await tester.ask(command)
    task: MoveTask = outcome.tasks[0]
    return task


async def task_of(tester: BrokerTester) -> MoveTask:
    outcome = await tester.ask(ListMoveTasks(DEAD))
    task: MoveTask = outcome.tasks[0]
    return task


async def ended(tester: BrokerTester) -> MoveTask:
    """Wait until the task is over."""
    deadline = time.monotonic() + PATIENCE_S
    while (task := await task_of(tester)).status == "RUNNING":
        assert time.monotonic() < deadline, "the task does not end"
        await asyncio.sleep(0.01)
    return task


async def under_way(tester: BrokerTester) -> None:
    """Wait until the task has moved something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (await task_of(tester)).moved:
        assert time.monotonic() < deadline, "the task moves nothing"
        await asyncio.sleep(0.01)


async def waiting(tester: BrokerTester, queue_id: int) -> int:
    return int((await tester.ask(CountMessages(queue_id))).visible)


# Dead letters


def test_a_message_received_too_often_goes_to_the_dead_letter_queue(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], list[int], Any]:
        async with running(tmp_path) as tester:
            await make_queues(tester, receives=2)
            await tester.send(SOURCE, message(7))
            first = numbers(await tester.receive(SOURCE, timeout_ms=0))
            first += numbers(await tester.receive(SOURCE, timeout_ms=0))
            third = numbers(await tester.receive(SOURCE, timeout_ms=0))
            (dead,) = await tester.receive(DEAD)
            return first, third, dead

    first, third, dead = asyncio.run(run())

    assert first == [7, 7]
    assert third == []
    assert number_of(dead.flags, dead.payload)[0] == 7
    assert dead.delivery_count == 3
    moved = decode_moved(split_payload(dead.flags, dead.payload)[3])
    assert (moved.source_queue_id, moved.dead_letter_source_arn) == (SOURCE, arn("source"))
    assert message_id_of(split_payload(dead.flags, dead.payload)[3]) == identity(7)


def test_a_receive_that_meets_dead_letters_is_answered_when_they_have_arrived(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.send(SOURCE, message(7))
            await tester.receive(SOURCE, timeout_ms=0)
            await tester.receive(SOURCE)
            return numbers(await tester.receive(DEAD))

    assert asyncio.run(run()) == [7]


def test_a_receive_gets_what_is_behind_dead_letters(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await make_queues(tester, ".fifo")
            await tester.send(SOURCE, message(1, group=5), message(2, group=5))
            await tester.receive(SOURCE, 1, timeout_ms=0)
            return numbers(await tester.receive(SOURCE))

    assert asyncio.run(run()) == [2]


def test_so_many_dead_letters_are_on_their_way_at_once_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_moves, "MOVES_AT_ONCE_MAX", 4)

    async def run() -> int:
        most = under_way = 0
        async with running(tmp_path) as tester:
            await make_queues(tester)
            host = tester.broker.host
            submit = host.submit

            def counting(command: Any, reply: Any) -> Any:
                nonlocal most, under_way
                if not isinstance(command, MoveMessage):
                    return submit(command, reply)
                under_way += 1
                most = max(most, under_way)

                def replied(answer: Any) -> None:
                    nonlocal under_way
                    under_way -= 1
                    reply(answer)

                return submit(command, replied)

            monkeypatch.setattr(host, "submit", counting)
            await tester.send(SOURCE, *(message(number) for number in range(40)))
            for _ in range(4):
                await tester.receive(SOURCE, count_max=10, timeout_ms=0)
            while host.replica.queues.partition(DEAD, 0).alive < 40:
                await tester.receive(SOURCE, timeout_ms=0)
            return most

    assert asyncio.run(run()) == 4


def test_dead_letters_stay_moved_over_a_restart(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], int]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await make_queues(tester)
            await make_dead(tester, 1, 2, 3)
        async with running(tmp_path) as tester:
            return sorted(numbers(await tester.receive(DEAD))), await waiting(tester, SOURCE)

    assert asyncio.run(run()) == ([1, 2, 3], 0)


def test_a_dead_letter_stays_where_it_is_when_its_target_is_gone(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.send(SOURCE, message(7))
            await tester.receive(SOURCE, timeout_ms=0)
            await tester.ask(ForgetQueue(DEAD))
            return numbers(await tester.receive(SOURCE))

    assert asyncio.run(run()) == [7]


def unreadable(tester: BrokerTester, monkeypatch: pytest.MonkeyPatch, offset: int) -> list[int]:
    """Make one record unreadable; return the list that counts the tries."""
    read_records = tester.broker.files.read_records
    tries: list[int] = []

    def read(offsets: list[int]) -> Any:
        if offset in offsets:
            tries.append(offset)
            raise RecordUnreadable(offset, "its sector is damaged")
        return read_records(offsets)

    monkeypatch.setattr(tester.broker.files, "read_records", read)
    return tries


def test_an_unreadable_dead_letter_holds_nothing_else_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[list[int], int, int]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await make_queues(tester)
            await tester.send(SOURCE, message(7))
            offset = tester.broker.host.replica.queues.partition(SOURCE, 0).index.entry(1).offset
            await tester.receive(SOURCE, timeout_ms=0)
            await tester.send(SOURCE, message(8))
            tries = unreadable(tester, monkeypatch, offset)
            found = numbers(await tester.receive(SOURCE))
            assert await tester.receive(SOURCE) == []
            return found, len(tries), await waiting(tester, SOURCE)

    found, tries, left = asyncio.run(run())

    assert (found, left) == ([8], 1)
    assert tries < 10, "the damaged record is read over and over"


def test_a_dead_letter_that_can_be_read_again_is_moved_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_moves, "UNREADABLE_RETRY_S", 0.05)

    async def run() -> list[int]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await make_queues(tester)
            await tester.send(SOURCE, message(7))
            offset = tester.broker.host.replica.queues.partition(SOURCE, 0).index.entry(1).offset
            await tester.receive(SOURCE, timeout_ms=0)
            await tester.send(OTHER, message(8))
            with monkeypatch.context() as patch:
                tries = unreadable(tester, patch, offset)
                await tester.receive(SOURCE)
                assert tries
            async with asyncio.timeout(PATIENCE_S):
                while not await waiting(tester, DEAD):
                    await tester.receive(SOURCE, timeout_ms=0)
            return numbers(await tester.receive(DEAD))

    assert asyncio.run(run()) == [7]


# Message move tasks


def test_a_task_moves_dead_letters_back_to_where_they_came_from(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, MoveTask, list[Any], int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await make_dead(tester, *range(1, 8))
            started = await start_task(tester)
            done = await ended(tester)
            return started, done, await tester.receive(SOURCE), await waiting(tester, DEAD)

    started, done, deliveries, left = asyncio.run(run())

    assert (started.status, started.to_move) == ("RUNNING", 7)
    assert (done.status, done.moved, done.failure) == ("COMPLETED", 7, None)
    assert sorted(numbers(deliveries)) == list(range(1, 8))
    assert [delivery.delivery_count for delivery in deliveries] == [1] * 7
    ids = {message_id_of(split_payload(delivery.flags, delivery.payload)[3]) for delivery in deliveries}
    assert len(ids) == 7
    assert not ids & {identity(number) for number in range(1, 8)}
    assert left == 0


def test_a_task_moves_to_the_queue_it_was_given(tmp_path: Path) -> None:
    async def run() -> tuple[str, list[int]]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await make_queues(tester)
            await tester.send(DEAD, message(1), message(2))
            await start_task(tester, OTHER)
            return (await ended(tester)).status, sorted(numbers(await tester.receive(OTHER)))

    assert asyncio.run(run()) == ("COMPLETED", [1, 2])


def test_a_task_keeps_the_order_of_groups(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await make_queues(tester, ".fifo")
            for number in range(1, 30):
                await tester.send(DEAD, message(number, group=4))
            command = StartMoveTask(DEAD, TASK, arn("dead.fifo"), arn("other.fifo"), OTHER, None)
            await tester.ask(command)
            await ended(tester)
            found: list[int] = []
            while deliveries := await tester.receive(OTHER):
                found += numbers(deliveries)
                await tester.ask(Delete(OTHER, 0, tester.receipts(deliveries)))
            return found

    assert asyncio.run(run()) == list(range(1, 30))


def test_a_task_fails_when_a_message_was_sent_to_the_queue_directly(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, list[int]]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.send(DEAD, message(1))
            await start_task(tester)
            return await ended(tester), numbers(await tester.receive(DEAD))

    task, left = asyncio.run(run())

    assert (task.status, task.failure) == ("FAILED", "CouldNotDetermineMessageSource")
    assert left == [1]


def test_a_task_fails_when_messages_would_go_into_a_log(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, list[int]]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.set_queue(define(LOG, "log", RetentionMode="Log"))
            await tester.send(DEAD, message(1))
            await start_task(tester, LOG)
            return await ended(tester), numbers(await tester.receive(DEAD))

    task, left = asyncio.run(run())

    assert (task.status, task.failure) == ("FAILED", "MessagesAreNotMovedIntoALog")
    assert left == [1]


def test_a_task_fails_when_its_target_is_deleted(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            for number in range(1, 31):
                await tester.send(DEAD, message(number))
            await start_task(tester, OTHER, rate_per_s=20)
            await under_way(tester)
            await tester.ask(ForgetQueue(OTHER))
            task = await ended(tester)
            return task, await waiting(tester, DEAD) + task.moved

    task, together = asyncio.run(run())

    assert (task.status, task.failure) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert 0 < task.moved < 30
    assert together == 30


def test_a_rate_holds_a_task_back_and_a_cancel_ends_it(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, MoveTask, int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            for start in range(1, 101, 10):
                await tester.send(DEAD, *[message(number) for number in range(start, start + 10)])
            await start_task(tester, OTHER, rate_per_s=20)
            await under_way(tester)
            outcome = await tester.ask(CancelMoveTask(DEAD, TASK))
            await asyncio.sleep(0.3)
            return outcome.tasks[0], await task_of(tester), await waiting(tester, OTHER)

    cancelled, after, moved = asyncio.run(run())

    assert cancelled.status == after.status == "CANCELLED"
    assert 0 < moved == after.moved < 60
    assert after.moved - cancelled.moved <= 2


def test_one_task_at_a_time_works_on_a_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            for number in range(1, 31):
                await tester.send(DEAD, message(number))
            await start_task(tester, OTHER, rate_per_s=10)
            with pytest.raises(InvalidParameterValue):
                await start_task(tester, OTHER)

    asyncio.run(run())


def test_a_task_goes_on_after_a_restart(tmp_path: Path) -> None:
    coordination = MemoryCoordination()

    async def run() -> tuple[int, MoveTask, list[int]]:
        async with running(tmp_path, coordination=coordination) as tester:
            await make_queues(tester)
            for start in range(1, 41, 10):
                await tester.send(DEAD, *[message(number) for number in range(start, start + 10)])
            await start_task(tester, OTHER, rate_per_s=20)
            await under_way(tester)
        async with running(tmp_path, coordination=coordination) as tester:
            before = (await task_of(tester)).moved
            task = await ended(tester)
            found: list[int] = []
            while deliveries := await tester.receive(OTHER):
                found += numbers(deliveries)
            return before, task, found

    before, task, found = asyncio.run(run())

    assert 0 < before < 40
    assert (task.status, task.moved) == ("COMPLETED", 40)
    assert sorted(found) == list(range(1, 41))


def test_a_task_leaves_an_unreadable_message_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[MoveTask, list[int], int, int]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await make_queues(tester)
            await tester.send(DEAD, message(1))
            await tester.send(DEAD, message(2))
            offset = tester.broker.host.replica.queues.partition(DEAD, 0).index.entry(1).offset
            tries = unreadable(tester, monkeypatch, offset)
            await start_task(tester, OTHER)
            task = await ended(tester)
            return task, numbers(await tester.receive(OTHER)), await waiting(tester, DEAD), len(tries)

    task, moved, left, tries = asyncio.run(run())

    assert (task.status, task.moved) == ("COMPLETED", 1)
    assert moved == [2]
    assert left == 1
    assert tries < 10


# Without a majority


def refuse(tester: BrokerTester, kind: type, times: int) -> None:
    """Answer the next commands of a kind as a leader does that hears no majority."""
    replica = tester.broker.host.replica
    propose = replica.propose
    left = times

    def refusing(command: Any, token: object, time_ms: int) -> None:
        nonlocal left
        if type(command) is kind and left:
            left -= 1
            replica._replies.append((token, TooFewReplicas()))
        else:
            propose(command, token, time_ms)

    replica.propose = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", [TakeForMove, MoveMessage, FinishMoveTask])
def test_a_task_goes_on_when_its_leader_hears_a_majority_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr(message_moves, "AWAY_RETRY_S", 0.01)

    async def run() -> tuple[MoveTask, int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await make_dead(tester, 1, 2)
            refuse(tester, kind, 3)
            await start_task(tester)
            return await ended(tester), await waiting(tester, SOURCE)

    task, count = asyncio.run(run())

    assert (task.status, task.moved, count) == ("COMPLETED", 2, 2)


def test_a_dead_letter_moves_when_its_leader_hears_a_majority_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_moves, "UNREADABLE_RETRY_S", 0.01)

    async def run() -> int:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            refuse(tester, MoveMessage, 3)
            await make_dead(tester, 1, 2)
            return await waiting(tester, DEAD)

    assert asyncio.run(run()) == 2


def test_dead_letters_wait_while_the_disk_is_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_moves, "AWAY_RETRY_S", 0.01)

    async def run() -> tuple[int, list[int]]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.send(SOURCE, message(1))
            await tester.receive(SOURCE, timeout_ms=0)
            space = tester.broker.host.files.space
            space.note_full()
            assert await tester.receive(SOURCE, timeout_ms=0) == []
            end_offset = tester.broker.host.replica.end_offset
            assert await tester.receive(SOURCE, timeout_ms=0) == []
            written = tester.broker.host.replica.end_offset - end_offset
            assert await waiting(tester, DEAD) == 0

            space.note_written()
            async with asyncio.timeout(PATIENCE_S):
                while not await waiting(tester, DEAD):
                    await tester.receive(SOURCE, timeout_ms=0)
            return written, numbers(await tester.receive(DEAD))

    assert asyncio.run(run()) == (0, [1])


def test_a_task_waits_while_the_disk_is_low_and_gives_back_what_it_has_taken_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_moves, "AWAY_RETRY_S", 0.01)

    async def run() -> tuple[str, list[int], int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await make_dead(tester, 1, 2, 3)
            tester.broker.host.files.space.note_full()
            await start_task(tester, OTHER)
            dead = tester.broker.host.replica.queues.partition(DEAD, 0)
            async with asyncio.timeout(PATIENCE_S):
                while not dead.moving:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                outcome = await tester.ask(CancelMoveTask(DEAD, TASK))
                while dead.moving:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            return (
                outcome.tasks[0].status,
                sorted(numbers(await tester.receive(DEAD))),
                await waiting(tester, OTHER),
            )

    assert asyncio.run(run()) == ("CANCELLED", [1, 2, 3], 0)


def test_what_a_task_has_taken_is_not_left_aside_when_its_leader_hears_no_majority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_moves, "AWAY_RETRY_S", 0.01)

    async def run() -> tuple[MoveTask, int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await make_dead(tester, 1, 2)
            space = tester.broker.host.files.space
            space.note_full()
            await start_task(tester, OTHER)
            dead = tester.broker.host.replica.queues.partition(DEAD, 0)
            async with asyncio.timeout(PATIENCE_S):
                while not dead.moving:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            refuse(tester, TakeForMove, 5)  # whether the task is over cannot be told now
            await asyncio.sleep(0.05)
            space.note_written()
            return await ended(tester), await waiting(tester, OTHER)

    task, count = asyncio.run(run())

    assert (task.status, task.moved, count) == ("COMPLETED", 2, 2)


async def redriven(directory: Path) -> tuple[MoveTask, int]:
    """Move two dead letters back; return how the task ended, and how many messages wait at their source."""
    async with running(directory) as tester:
        await make_queues(tester)
        await make_dead(tester, 1, 2)
        await start_task(tester)
        return await ended(tester), await waiting(tester, SOURCE)


@pytest.mark.parametrize("failure", [OSError("a disk that reads badly"), InvalidParameterValue("refused")])
def test_a_task_goes_on_after_what_journal_or_disk_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(message_moves, "UNREADABLE_RETRY_S", 0.01)
    failures = iter([failure])
    take = message_moves.MessageMoves._take

    async def failing_once(
        self: message_moves.MessageMoves, queue_id: int, task: MoveTask, count: int
    ) -> TakenForTask:
        for failure in failures:
            raise failure
        return await take(self, queue_id, task, count)

    monkeypatch.setattr(message_moves.MessageMoves, "_take", failing_once)

    task, count = asyncio.run(redriven(tmp_path))

    assert (task.status, task.moved, count) == ("COMPLETED", 2, 2)


def test_a_bug_in_a_task_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Exception] = []

    async def broken(
        self: message_moves.MessageMoves, queue_id: int, task: MoveTask, count: int
    ) -> TakenForTask:
        raise AssertionError("a bug")

    monkeypatch.setattr(message_moves.MessageMoves, "_take", broken)

    async def run() -> None:
        listen_for_failures(asyncio.get_running_loop(), ended.append)
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await make_dead(tester, 1, 2)
            await start_task(tester)
            async with asyncio.timeout(PATIENCE_S):
                while not ended:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(run())

    assert [str(error) for error in ended] == ["a bug"]


def test_a_task_that_starts_again_while_its_work_is_about_to_be_left_to_the_next_leader_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_first = iter([True])
    work_on = message_moves.MessageMoves._run

    async def run_or_leave(self: message_moves.MessageMoves, key: int, task: MoveTask) -> None:
        if next(left_first, False):
            return  # as when it was not leading a moment ago, and leads again before this is noted
        await work_on(self, key, task)

    monkeypatch.setattr(message_moves.MessageMoves, "_run", run_or_leave)

    task, count = asyncio.run(redriven(tmp_path))

    assert (task.status, task.moved, count) == ("COMPLETED", 2, 2)


# Tasks have an end


async def own_dead_letters(tester: BrokerTester, count: int) -> None:
    """Make a queue that is its own dead-letter queue, with so many dead letters of its own."""
    await tester.set_queue(define(DEAD, "dead", RedrivePolicy=redrive_to("dead", 1)))
    for first in range(1, count + 1, 10):
        await tester.send(DEAD, *(message(number) for number in range(first, first + 10)))
    dead = tester.broker.host.replica.queues.partition(DEAD, 0)
    while dead.head <= count:
        await tester.receive(DEAD, timeout_ms=0)


def test_a_task_of_a_queue_that_is_its_own_dead_letter_queue_moves_each_message_once_and_ends(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[MoveTask, int, int]:
        async with running(tmp_path) as tester:
            await own_dead_letters(tester, 30)
            before = tester.broker.host.replica.queues.partition(DEAD, 0).next_sequence
            await start_task(tester)
            task = await ended(tester)
            partition = tester.broker.host.replica.queues.partition(DEAD, 0)
            return task, partition.next_sequence - before, await waiting(tester, DEAD)

    task, stored, count = asyncio.run(run())

    assert (task.status, task.moved, stored, count) == ("COMPLETED", 30, 30, 30)


def test_tasks_of_two_queues_that_are_each_others_dead_letter_queues_end(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, MoveTask, int, int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(DEAD, "dead", RedrivePolicy=redrive_to("other", 1)))
            await tester.set_queue(define(OTHER, "other", RedrivePolicy=redrive_to("dead", 1)))
            for queue_id in (DEAD, OTHER):
                await tester.send(queue_id, *(message(number) for number in range(1, 11)))
            await tester.ask(StartMoveTask(OTHER, identity(78), arn("other"), arn("dead"), DEAD, None))
            await start_task(tester, OTHER)
            first = await ended(tester)
            while (await tester.ask(ListMoveTasks(OTHER))).tasks[0].status == "RUNNING":  # noqa: ASYNC110 -- asked as a client asks
                await asyncio.sleep(0.01)
            second = (await tester.ask(ListMoveTasks(OTHER))).tasks[0]
            return first, second, await waiting(tester, DEAD), await waiting(tester, OTHER)

    first, second, dead, other = asyncio.run(run())

    assert (first.status, second.status) == ("COMPLETED", "COMPLETED")
    # What came from the other queue before a task began was there when it started.
    assert (first.moved <= 20, second.moved <= 20, dead + other) == (True, True, 20)


def test_a_task_is_cancelled_while_it_turns_quickly(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, MoveTask, int]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            for first in range(0, 5_000, 500):
                await tester.send(DEAD, *(message(number) for number in range(first, first + 500)))
            await start_task(tester, OTHER)
            while not (await task_of(tester)).moved:  # noqa: ASYNC110 -- asked as a client asks
                await asyncio.sleep(0)
            cancelled = (await tester.ask(CancelMoveTask(DEAD, TASK))).tasks[0]
            while tester.broker._moves._tasks:  # noqa: ASYNC110 -- work that tells nobody
                await asyncio.sleep(0.01)
            return cancelled, await task_of(tester), await waiting(tester, DEAD)

    cancelled, later, left = asyncio.run(run())

    assert cancelled.status == later.status == "CANCELLED"
    assert cancelled.moved == later.moved < 5_000
    assert left == 5_000 - later.moved


def test_a_task_with_ever_new_messages_at_its_source_ends(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, bool]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.send(DEAD, *(message(number) for number in range(50)))
            await start_task(tester, OTHER)
            sending = asyncio.get_running_loop().create_task(send_for_ever(tester))
            task = await ended(tester)
            is_sending = not sending.done()
            sending.cancel()
            return task, is_sending

    async def send_for_ever(tester: BrokerTester) -> None:
        while True:
            await tester.send(DEAD, message(1))

    task, is_sending = asyncio.run(run())

    assert (task.status, task.moved, is_sending) == ("COMPLETED", 50, True)


class Watched(dict[int, Any]):
    """The partitions of a broker, which note by whom they are looked through."""

    def __init__(self, partitions: dict[int, Any]) -> None:
        super().__init__(partitions)
        self.walkers: set[str] = set()

    def __iter__(self) -> Any:
        self.walkers.add(sys._getframe(1).f_code.co_name)
        return super().__iter__()

    def values(self) -> Any:
        self.walkers.add(sys._getframe(1).f_code.co_name)
        return super().values()

    def items(self) -> Any:
        self.walkers.add(sys._getframe(1).f_code.co_name)
        return super().items()


def test_neither_a_task_nor_a_new_leader_looks_through_all_partitions(tmp_path: Path) -> None:
    async def run() -> tuple[MoveTask, set[str]]:
        async with running(tmp_path) as tester:
            await make_queues(tester)
            await tester.send(DEAD, *(message(number) for number in range(50)))
            queues = tester.broker.host.replica.queues
            watched = queues.partitions = Watched(queues.partitions)
            await start_task(tester, OTHER)
            task = await ended(tester)
            tester.broker._moves.leads(True)
            await tester.ask(CountMessages(DEAD))
            return task, set(watched.walkers)

    task, walkers = asyncio.run(run())

    assert task.status == "COMPLETED"
    # Expiry and snapshots go round in turns, each with a bound.
    assert walkers <= {"step", "_write_whole"}

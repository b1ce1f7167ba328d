"""A broker over real files: what it answers, when it answers, and what is there after a restart."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
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
    options,
    running,
)
from harness.waiting import PATIENCE_S

from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.replica import replica as replica_module
from quaymaster.broker.storage.disk import DirectoryInUse, RealDisk
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    Peek,
    Purge,
    QueueCounts,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
)
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import (
    DiskFull,
    JournalStopped,
    NotLeader,
    NotNow,
    Overloaded,
    QueueDoesNotExist,
    QueueRevisionTaken,
)


class HeldDisk(RealDisk):
    """Holds writes or fsyncs of segments back until the test lets them go."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_sync = threading.Event()
        self.may_write.set()
        self.may_sync.set()
        self.fails = False

    def write_many(self, fd: int, buffers: Any, position: int) -> None:
        assert self.may_write.wait(PATIENCE_S), "a write was held for ever"
        super().write_many(fd, buffers, position)

    def sync_data(self, fd: int) -> None:
        assert self.may_sync.wait(PATIENCE_S), "an fsync was held for ever"
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_data(fd)


def submit(tester: BrokerTester, command: Command) -> list[Any]:
    """Submit a command; return the list its answer will be in."""
    answers: list[Any] = []
    tester.broker.submit(command, answers.append)
    return answers


async def answered(answers: list[Any]) -> Any:
    """Wait for an answer and return it."""
    for _ in range(2_000):
        if answers:
            assert len(answers) == 1, "a command is answered once"
            return answers[0]
        await asyncio.sleep(0.005)
    raise AssertionError("no answer")


async def a_few_turns() -> None:
    """Give whatever could happen now the time to happen."""
    await asyncio.sleep(0.1)


# Round trips


def test_a_message_is_received_as_it_was_sent_and_gone_when_deleted(tmp_path: Path) -> None:
    async def run() -> tuple[Any, int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            (sent,) = await tester.send(1, message(7, filling=b"hello"))
            assert (sent.sequence, sent.message_id, sent.duplicate) == (1, identity(7), False)
            (delivery,) = await tester.receive(1)
            outcome = await tester.ask(Delete(1, 0, tester.receipts([delivery])))
            assert outcome.errors == [None]
            counts = await tester.ask(CountMessages(1))
            return delivery, counts.visible + counts.in_flight

    delivery, left = asyncio.run(run())

    assert number_of(delivery.flags, delivery.payload) == (7, body_of(7, filling=b"hello"))
    assert delivery.delivery_count == 1
    assert left == 0


def test_a_restart_keeps_messages_queues_and_what_is_in_flight(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], QueueCounts, int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, *[message(number, group=number) for number in range(1, 6)])
            taken = await tester.receive(1, 2, timeout_ms=3_600_000)
            await tester.ask(Delete(1, 0, tester.receipts(taken[:1])))
        async with running(tmp_path) as tester:
            counts = await tester.ask(CountMessages(1))
            again = await tester.receive(1)
            outcome = await tester.ask(Peek(1, 0, 1, 10))
            in_flight = sum(peeked.state == "in_flight" for peeked in outcome.messages)
            return numbers(again), counts, in_flight

    received, counts, in_flight = asyncio.run(run())

    assert (counts.visible, counts.in_flight) == (3, 1)
    assert received == [3, 4, 5]
    assert in_flight == 4


def test_a_receipt_of_an_earlier_start_deletes(tmp_path: Path) -> None:
    async def run() -> QueueCounts:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            receipts = tester.receipts(await tester.receive(1))
        async with running(tmp_path) as tester:
            await tester.ask(Delete(1, 0, receipts))
            counts: QueueCounts = await tester.ask(CountMessages(1))
            return counts

    counts = asyncio.run(run())

    assert counts.visible + counts.in_flight == 0


def test_deduplication_and_retries_are_remembered_over_a_restart(tmp_path: Path) -> None:
    async def run() -> list[tuple[bytes, bool]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.set_queue(define(2))
            await tester.send(1, message(1, group=1, dedup=1))
            await tester.send(2, message(2, retry=2))
        async with running(tmp_path) as tester:
            again = await tester.send(1, message(3, group=1, dedup=1))
            again += await tester.send(2, message(4, retry=2))
            return [(result.message_id, result.duplicate) for result in again]

    assert asyncio.run(run()) == [(identity(1), True), (identity(2), True)]


def test_a_purge_and_a_deleted_queue_stay_so(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            for queue_id in (1, 2):
                await tester.set_queue(define(queue_id))
                await tester.send(queue_id, message(queue_id))
            assert isinstance(await tester.ask(Purge(1)), Done)
            await tester.send(1, message(3))
            assert isinstance(await tester.ask(ForgetQueue(2)), Done)
        async with running(tmp_path) as tester:
            with pytest.raises(QueueDoesNotExist):
                await tester.receive(2)
            return numbers(await tester.receive(1))

    assert asyncio.run(run()) == [3]


def test_the_newest_revision_of_a_queue_counts_and_older_ones_are_refused(tmp_path: Path) -> None:
    async def run() -> str:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, revision=2, VisibilityTimeout=7))
            with pytest.raises(QueueRevisionTaken, match="revision 2"):
                await tester.set_queue(define(1, revision=1, VisibilityTimeout=1))
        async with running(tmp_path) as tester:
            definition = tester.broker.host.replica.queues.definitions[1]
            return definition.attributes["VisibilityTimeout"]

    assert asyncio.run(run()) == "7"


def test_every_start_leads_an_epoch_of_its_own(tmp_path: Path) -> None:
    coordination = MemoryCoordination()

    async def run() -> list[int]:
        epochs = []
        for _ in range(3):
            async with running(tmp_path, coordination=coordination) as tester:
                epochs.append(tester.broker.host.replica.epoch)
        return epochs

    assert asyncio.run(run()) == [1, 2, 3]


def test_a_directory_is_used_by_one_broker(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path):
            with pytest.raises(DirectoryInUse):
                await LoneLeader(options(tmp_path), MemoryCoordination(), on_stopped=lambda _: None).start()

    asyncio.run(run())


def test_the_status_counts_what_is_there(tmp_path: Path) -> None:
    async def run() -> dict[str, Any]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
            await tester.receive(1, 1)
            return await tester.broker.status()

    status = asyncio.run(run())

    assert (status["role"], status["queues"], status["messages"], status["in_flight"]) == ("leading", 1, 2, 1)
    assert status["commit"] <= status["end_offset"]
    assert status["stopped"] is None


# What a reply waits for


def test_a_sync_send_is_answered_by_its_fsync(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def run() -> tuple[list[Any], Any]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1))
            disk.may_sync.clear()
            answers = submit(tester, Send(1, 0, [message(1)]))
            await a_few_turns()
            before = list(answers)
            disk.may_sync.set()
            return before, await answered(answers)

    before, after = asyncio.run(run())

    assert before == []
    assert isinstance(after, SendOutcome)


def test_an_async_send_is_answered_by_its_write_and_seen_after_its_fsync(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def run() -> tuple[list[Any], Any, list[int], list[int]]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1, Durability="Async"))
            disk.may_sync.clear()
            disk.may_write.clear()
            answers = submit(tester, Send(1, 0, [message(1)]))
            await a_few_turns()
            unwritten = list(answers)
            disk.may_write.set()
            written = await answered(answers)
            too_early = numbers(await tester.receive(1))
            disk.may_sync.set()
            return unwritten, written, too_early, numbers(await tester.receive(1, wait_ms=5_000))

    unwritten, written, too_early, received = asyncio.run(run())

    assert unwritten == []
    assert isinstance(written, SendOutcome)
    assert too_early == []
    assert received == [1]


def test_a_memory_send_is_answered_at_once_and_seen_after_its_fsync(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def run() -> tuple[Any, list[int], list[int]]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1, Durability="Memory"))
            disk.may_write.clear()
            outcome = await answered(submit(tester, Send(1, 0, [message(1)])))
            too_early = numbers(await tester.receive(1))
            disk.may_write.set()
            return outcome, too_early, numbers(await tester.receive(1, wait_ms=5_000))

    outcome, too_early, received = asyncio.run(run())

    assert isinstance(outcome, SendOutcome)
    assert too_early == []
    assert received == [1]


def test_a_duplicate_is_answered_when_its_original_is_durable(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def run() -> tuple[list[Any], Any]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1, "queue.fifo", Durability="Memory"))
            disk.may_sync.clear()
            await answered(submit(tester, Send(1, 0, [message(1, group=1, dedup=1)])))
            answers = submit(tester, Send(1, 0, [message(2, group=1, dedup=1)]))
            await a_few_turns()
            before = list(answers)
            disk.may_sync.set()
            return before, await answered(answers)

    before, after = asyncio.run(run())

    assert before == []
    assert [(result.message_id, result.duplicate) for result in after.results] == [(identity(1), True)]


@pytest.mark.parametrize(("name", "waits"), [("queue", False), ("queue.fifo", True)])
def test_only_a_fifo_receive_waits_for_its_record(tmp_path: Path, name: str, waits: bool) -> None:
    disk = HeldDisk()

    async def run() -> tuple[bool, list[int]]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1, name))
            await tester.send(1, message(1, group=1))
            disk.may_sync.clear()
            answers = submit(tester, Receive(1, 0, 1))
            await a_few_turns()
            waited = not answers
            disk.may_sync.set()
            outcome = await answered(answers)
            return waited, numbers(outcome.deliveries)

    assert asyncio.run(run()) == (waits, [1])


def test_deletes_and_changes_of_visibility_wait_for_their_fsync(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def run() -> tuple[list[Any], list[Any]]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
            receipts = tester.receipts(await tester.receive(1))
            disk.may_sync.clear()
            deleted = submit(tester, Delete(1, 0, receipts[:1]))
            changed = submit(tester, ChangeVisibility(1, 0, receipts[1:], [60_000]))
            again = submit(tester, Delete(1, 0, receipts[:1]))
            await a_few_turns()
            before = [*deleted, *changed, *again]
            disk.may_sync.set()
            return before, [(await answered(each)).errors for each in (deleted, changed, again)]

    assert asyncio.run(run()) == ([], [[None], [None], [None]])


def test_an_empty_receive_and_counts_wait_for_nothing(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def run() -> tuple[Any, Any]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1))
            await tester.set_queue(define(2))
            disk.may_sync.clear()
            sent = submit(tester, Send(1, 0, [message(1)]))
            empty = await answered(submit(tester, Receive(2, 0, 1)))
            counts = await answered(submit(tester, CountMessages(2)))
            assert not sent
            disk.may_sync.set()
            await answered(sent)
            return empty, counts

    empty, counts = asyncio.run(run())

    assert isinstance(empty, ReceiveOutcome)
    assert isinstance(counts, QueueCounts)


# What goes wrong


def test_the_first_failed_fsync_stops_the_journal_for_good(tmp_path: Path) -> None:
    disk = HeldDisk()
    stopped: list[Exception] = []

    async def run() -> list[Any]:
        async with running(tmp_path, disk=disk, stopped=stopped) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            receipts = tester.receipts(await tester.receive(1))
            disk.may_sync.clear()
            waiting = [submit(tester, Send(1, 0, [message(number)])) for number in (2, 3)]
            waiting.append(submit(tester, Delete(1, 0, receipts)))
            await a_few_turns()
            disk.fails = True
            disk.may_sync.set()
            failed = [await answered(answers) for answers in waiting]
            disk.fails = False
            late = (Send(1, 0, [message(4)]), Receive(1, 0, 1), Delete(1, 0, receipts))
            failed += [await answered(submit(tester, command)) for command in late]
            return failed

    failed = asyncio.run(run())

    assert all(isinstance(answer, JournalStopped) for answer in failed[:3])
    assert all(isinstance(answer, NotLeader) for answer in failed[3:])
    assert [getattr(error, "errno", None) for error in stopped] == [errno.EIO]


def test_the_start_after_a_failed_fsync_has_what_was_acknowledged_under_a_new_identity(
    tmp_path: Path,
) -> None:
    coordination = MemoryCoordination()
    disk = HeldDisk()

    async def run() -> tuple[bool, list[int], list[int]]:
        async with running(tmp_path, coordination=coordination, disk=disk) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            storage_id = tester.broker.files.storage_id
            disk.fails = True
            assert isinstance(await answered(submit(tester, Send(1, 0, [message(2)]))), JournalStopped)
        async with running(tmp_path, coordination=coordination) as tester:
            is_new = tester.broker.files.storage_id != storage_id
            await tester.send(1, message(3))
            received = numbers(await tester.receive(1))
            return is_new, received[:1], received[-1:]

    assert asyncio.run(run()) == (True, [1], [3])


def test_parked_receives_are_answered_when_the_journal_stops(tmp_path: Path) -> None:
    async def run() -> Any:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            answers = submit(tester, Receive(1, 0, 1, -1, 20_000))
            await a_few_turns()
            tester.broker.host.stop(OSError(errno.EIO, "the disk is gone"))
            return await answered(answers)

    outcome = asyncio.run(run())

    assert isinstance(outcome, ReceiveOutcome)
    assert outcome.deliveries == []


def test_a_decision_that_fails_leaves_no_command_without_an_answer(tmp_path: Path) -> None:
    stopped: list[Exception] = []

    async def run() -> list[Any]:
        async with running(tmp_path, stopped=stopped) as tester:
            await tester.set_queue(define(1))
            queues = tester.broker.host.replica.queues
            queues._decide[Purge] = lambda *_: 1 // 0  # type: ignore[assignment]  # a broken assumption
            waiting = [
                submit(tester, Send(1, 0, [message(1)])),
                submit(tester, Purge(1)),
                submit(tester, Send(1, 0, [message(2)])),
                submit(tester, Receive(1, 0, 1, -1, 20_000)),
            ]
            return [await answered(answers) for answers in waiting]

    answers = asyncio.run(run())

    assert all(isinstance(answer, JournalStopped) for answer in answers)
    assert isinstance(stopped[0], ZeroDivisionError)


def test_a_low_disk_refuses_sends_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            space = tester.broker.files.space
            with monkeypatch.context() as patch:
                patch.setattr(space, "check", lambda: None)
                space.disk_low = True
                with pytest.raises(DiskFull):
                    await tester.send(1, message(2))
                receipts = tester.receipts(await tester.receive(1))
                await tester.ask(ChangeVisibility(1, 0, receipts, [0]))
                receipts = tester.receipts(await tester.receive(1))
                assert (await tester.ask(Delete(1, 0, receipts))).errors == [None]
                space.disk_low = False
            await tester.send(1, message(3))
            return numbers(await tester.receive(1))

    assert asyncio.run(run()) == [3]


def test_sends_are_refused_while_too_much_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "PENDING_BYTES_MAX", 10_000)
    disk = HeldDisk()

    async def run() -> tuple[list[type], bool, list[int]]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            disk.may_sync.clear()
            waiting = []
            for number in range(2, 22):
                waiting.append(submit(tester, Send(1, 0, [message(number, filling=b"x" * 1_000)])))
                await asyncio.sleep(0)
            refused = [type(answers[0]) for answers in waiting if answers]
            received = numbers((await answered(submit(tester, Receive(1, 0, 1)))).deliveries)
            disk.may_sync.set()
            outcomes = [await answered(answers) for answers in waiting]
            is_told = all(isinstance(outcome, SendOutcome | Overloaded) for outcome in outcomes)
            await tester.send(1, message(99))
            return refused, is_told, received

    refused, is_told, received = asyncio.run(run())

    assert set(refused) == {Overloaded}
    assert len(refused) >= 5
    assert is_told
    assert received == [1]


def test_a_command_before_the_journal_is_led_is_told_so(tmp_path: Path) -> None:
    async def run() -> Any:
        async with running(tmp_path) as tester:
            tester.broker.host.stop(RuntimeError("stopped"))
            return await answered(submit(tester, SetQueue(define(1))))

    assert isinstance(asyncio.run(run()), NotNow)

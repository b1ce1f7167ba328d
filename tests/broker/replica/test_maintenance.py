"""What a leader does besides answering: expiry, snapshots, compaction."""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import (
    BrokerTester,
    define,
    identity,
    message,
    numbers,
    redrive_to,
    running,
)
from harness.sim_disk import SimDisk
from harness.waiting import PATIENCE_S

import quaymaster.core.structures.orders.index as index
from quaymaster.broker.replica import journal_service, replica
from quaymaster.broker.replica.clock import QueueClock
from quaymaster.broker.replica.maintenance import compaction, snapshots, steps
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.broker.storage.snapshots import Blob, Draft
from quaymaster.broker.storage.state_store import encode_partition
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import CountMessages, Delete, Purge
from quaymaster.core.values.commands.partitions import ForgetQueue
from quaymaster.core.values.errors import InternalFailure, JournalStopped, QueueDoesNotExist

BIG = b"x" * 300


class MovableTime:
    """A wall clock and a monotonic clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms = 1_700_000_000_000
        self.monotonic_ms = 5_000_000
        self._started = time.monotonic()
        monkeypatch.setattr(journal_service, "QueueClock", self._clock)
        monkeypatch.setattr(journal_service, "read_boot", lambda: None)
        for module in (journal_service, replica):
            monkeypatch.setattr(module, "monotonic_ms", self._monotonic_ms)

    def pass_ms(self, ms: int) -> None:
        """Let time pass on both clocks."""
        self.wall_ms += ms
        self.monotonic_ms += ms

    def _clock(self, *, last_stamp_ms: int) -> QueueClock:
        return QueueClock(
            last_stamp_ms=last_stamp_ms,
            wall_ms=lambda: self.wall_ms + self._elapsed_ms(),
            monotonic_ms=self._monotonic_ms,
        )

    def _monotonic_ms(self) -> int:
        return self.monotonic_ms + self._elapsed_ms()

    def _elapsed_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovableTime:
    return MovableTime(monkeypatch)


async def delete_all(tester: BrokerTester, queue_id: int, *, keep: int = 0) -> None:
    """Receive and delete everything in a queue but one message."""
    while deliveries := await tester.receive(queue_id, timeout_ms=100_000):
        gone = [delivery for delivery in deliveries if delivery.sequence != keep]
        if gone:
            await tester.ask(Delete(queue_id, 0, tester.receipts(gone)))


async def send_many(tester: BrokerTester, queue_id: int, first: int, count: int) -> None:
    for start in range(first, first + count, 10):
        await tester.send(queue_id, *[message(number, filling=BIG) for number in range(start, start + 10)])


async def until(holds: Any, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it does not come about"
        await asyncio.sleep(0.01)


async def alive(tester: BrokerTester, queue_id: int) -> int:
    counts = await tester.ask(CountMessages(queue_id))
    return int(counts.visible + counts.in_flight + counts.delayed)


# Snapshots


def test_a_snapshot_holds_only_what_changed_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    publish = snapshots.Snapshots._publish

    def counting(self: Any, draft: Draft, base_offset: int, changed: dict[bytes, Blob], *rest: Any) -> None:
        written.append(len(changed))
        publish(self, draft, base_offset, changed, *rest)

    monkeypatch.setattr(snapshots.Snapshots, "_publish", counting)

    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            for queue_id in range(1, 6):
                await tester.set_queue(define(queue_id))
            await tester.broker.snapshots.write()
            await tester.send(3, message(1))
            await tester.broker.snapshots.write()
            await tester.broker.snapshots.write()
        async with running(tmp_path) as tester:
            return [await alive(tester, queue_id) for queue_id in range(1, 6)]

    assert asyncio.run(run()) == [0, 0, 1, 0, 0]
    assert written[:3] == [5, 1, 0]


def test_a_snapshot_of_many_partitions_holds_only_some_of_their_blobs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "BLOBS_AT_ONCE_BYTES", 1_000)
    held: list[int] = []
    add = Draft.add

    def counting(self: Draft, changed: dict[bytes, Blob]) -> None:
        held.append(
            sum(len(b"".join(blob)) if isinstance(blob, list) else len(blob) for blob in changed.values())
        )
        add(self, changed)

    monkeypatch.setattr(Draft, "add", counting)

    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            for queue_id in range(1, 101):
                await tester.set_queue(define(queue_id))
                await tester.send(queue_id, message(queue_id))
            held.clear()
            await tester.broker.snapshots.write()
            of_one = list(held)
            await tester.broker.snapshots.write()
            assert of_one
            assert max(of_one) < 2_000
            assert sum(of_one) > 5_000
        async with running(tmp_path) as tester:
            return [await alive(tester, queue_id) for queue_id in range(1, 101)]

    assert asyncio.run(run()) == [1] * 100


def test_a_snapshot_is_written_after_so_many_records(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, snapshot_interval_s=0.02, snapshot_records=5) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 10)

            await until(lambda: tester.broker.snapshots.base_offset >= 10)

    asyncio.run(run())


def test_a_deleted_queue_leaves_the_snapshots(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            await tester.broker.snapshots.write()
            await tester.ask(ForgetQueue(1))
        async with running(tmp_path) as tester:
            with pytest.raises(QueueDoesNotExist):
                await tester.receive(1)

    asyncio.run(run())


@pytest.mark.parametrize("place", ["between partitions", "before it is committed", "while it is written"])
def test_a_close_during_a_snapshot_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    reached = threading.Event()
    publish = snapshots.Snapshots._publish

    def slowly(self: Any, *arguments: Any) -> None:
        reached.set()
        time.sleep(0.1)
        publish(self, *arguments)

    async def late(self: Any, offset: int, timeout_s: float) -> None:
        reached.set()
        await asyncio.sleep(0.1)

    async def run() -> tuple[int, int]:
        async with running(tmp_path, snapshot_interval_s=0.01, snapshot_records=1) as tester:
            for queue_id in (1, 2):
                await tester.set_queue(define(queue_id))
            await until(lambda: tester.broker.snapshots.base_offset == tester.broker.host.replica.end_offset)
            with monkeypatch.context() as patch:
                if place == "while it is written":
                    patch.setattr(snapshots.Snapshots, "_publish", slowly)
                elif place == "before it is committed":
                    patch.setattr(snapshots.Snapshots, "_committed", late)
                else:
                    patch.setattr(steps, "STEP_S", -1.0)

                    def first_of_two(*arguments: Any, **named: Any) -> Iterator[bytes]:
                        reached.set()
                        return encode_partition(*arguments, **named)

                    patch.setattr(snapshots, "encode_partition", first_of_two)
                await asyncio.gather(tester.send(1, message(1)), tester.send(2, message(2)))
                await until(reached.is_set)
        async with running(tmp_path) as tester:
            return await alive(tester, 1), await alive(tester, 2)

    assert asyncio.run(run()) == (1, 1)


def test_a_journal_that_does_not_come_on_fails_a_snapshot_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[int, object]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            host = tester.broker.host
            with monkeypatch.context() as patch:
                patch.setattr(snapshots, "COMMIT_TIMEOUT_S", -1.0)
                patch.setattr(host.replica.log, "commit", 0)
                await tester.broker.snapshots.write()
            await tester.send(1, message(1))
            return tester.broker.snapshots.failed, host.stopped

    assert asyncio.run(run()) == (1, None)


def test_a_bug_in_a_snapshot_stops_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> Iterator[bytes]:
        raise AssertionError("a bug")

    async def run() -> list[Exception]:
        stopped: list[Exception] = []
        async with running(tmp_path, stopped=stopped, snapshot_interval_s=0.01, snapshot_records=1) as tester:
            await tester.set_queue(define(1))
            await until(lambda: tester.broker.snapshots.written)
            monkeypatch.setattr(snapshots, "encode_partition", broken)
            with suppress(JournalStopped):  # it may stop before it answers
                await tester.send(1, message(1))
            await until(lambda: stopped)
        return stopped

    assert [str(error) for error in asyncio.run(run())] == ["a bug"]


def test_snapshot_waits_until_the_journal_is_durable_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have committed what this disk would lose in a power cut: no snapshot is ahead of its journal."""

    async def run() -> tuple[int, int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            log = tester.broker.host.replica.log
            with monkeypatch.context() as patch:
                patch.setattr(snapshots, "COMMIT_TIMEOUT_S", -1.0)
                patch.setattr(log, "durable_end", log.commit - 1)
                await tester.broker.snapshots.write()
            failed = tester.broker.snapshots.failed
            await tester.broker.snapshots.write()
            return failed, tester.broker.snapshots.written

    assert asyncio.run(run()) == (1, 1)


def test_no_snapshot_names_index_chunks_whose_fsync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "CHUNK_ENTRIES", 16)
    monkeypatch.setattr(index, "TAIL_ENTRIES_MAX", 32)
    disk = SimDisk()
    stopped: list[Exception] = []

    async def run() -> int:
        async with running(Path("/data"), disk=disk, stopped=stopped) as tester:
            await tester.set_queue(define(1))
            await tester.broker.snapshots.write()
            await send_many(tester, 1, 1, 40)
            disk.fail_next_sync("index.chunks")
            both = await asyncio.gather(tester.broker.snapshots.write(), tester.broker.snapshots.write())
            assert both[0] == both[1]
            return both[0]

    base_offset = asyncio.run(run())
    disk.evict()

    async def again() -> int:
        async with running(Path("/data"), disk=disk) as tester:
            assert tester.broker.replayed_records > 0
            return len(await tester.receive(1))

    assert base_offset < 10
    assert len(stopped) == 1
    assert asyncio.run(again()) == 10


@pytest.mark.parametrize("file", [".blobs", ".manifest"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_fsync_of_a_snapshot_stops_the_journal_unless_there_was_no_room_and_the_last_snapshot_stays(
    file: str, code: int
) -> None:
    disk = SimDisk()
    stopped: list[Exception] = []

    async def run() -> tuple[int, int]:
        async with running(Path("/data"), disk=disk, stopped=stopped) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 10)
            last = await tester.broker.snapshots.write()
            await send_many(tester, 1, 11, 10)
            disk.fail_next_sync(file, error=code)
            failed = await tester.broker.snapshots.write()
            assert failed == last
            return last, await tester.broker.snapshots.write()

    last, next_one = asyncio.run(run())
    disk.evict()

    async def again() -> list[int]:
        async with running(Path("/data"), disk=disk) as tester:
            return sorted(numbers(await tester.receive(1))) + sorted(numbers(await tester.receive(1)))

    assert [getattr(error, "errno", None) for error in stopped] == ([code] if code == errno.EIO else [])
    assert next_one == last if code == errno.EIO else next_one > last
    assert sorted(asyncio.run(again())) == list(range(1, 21))


# Compaction


def test_deleted_messages_give_their_room_back_and_the_others_stay(tmp_path: Path) -> None:
    async def run() -> tuple[int, int, list[int], list[int]]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1))
            await tester.set_queue(define(2))
            for start in range(1, 201, 20):
                await send_many(tester, 1, start, 10)
                await tester.send(2, message(1_000 + start, filling=BIG))
            before = sum(segment.data_bytes for segment in tester.broker.files.segments())
            await delete_all(tester, 1)
            for _ in range(2):
                await tester.broker.snapshots.write()
            await tester.broker.compaction.step(younger_than_ms=0)
            after = sum(segment.data_bytes for segment in tester.broker.files.segments())
            found = sorted(numbers(await tester.receive(2, timeout_ms=0)))
        async with running(tmp_path) as tester:
            again = sorted(numbers(await tester.receive(2)))
        return before, after, found, again

    before, after, found, again = asyncio.run(run())

    assert after < before / 2
    assert found == again == [1_000 + start for start in range(1, 201, 20)]


def test_segments_without_live_messages_at_the_start_are_dropped(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 200)
            await delete_all(tester, 1)
            for _ in range(2):
                await tester.broker.snapshots.write()
            await tester.broker.compaction.step(younger_than_ms=0)
            return tester.broker.files.start_offset, tester.broker.files.segment_count

    start_offset, segments = asyncio.run(run())

    assert start_offset > 150
    assert segments <= 3


async def receive_until_segments(tester: BrokerTester, count: int) -> None:
    """Receive what comes back at once until the journal has so many segments."""
    async with asyncio.timeout(PATIENCE_S):
        while tester.broker.files.segment_count < count:
            await tester.receive(1, timeout_ms=0)


def test_receives_alone_do_not_fill_a_low_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COMPACTION_LOW_DISK_STEP_S", 0.01)

    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, *[message(number) for number in range(1, 11)])
            tester.broker.files.space.note_full()
            for _ in range(3):
                await receive_until_segments(tester, 6)
                async with asyncio.timeout(PATIENCE_S):
                    while tester.broker.files.segment_count > 5:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
            return sorted(numbers(await tester.receive(1)))

    assert asyncio.run(run()) == list(range(1, 11))


def test_a_message_between_many_receives_keeps_no_segment_of_them(tmp_path: Path) -> None:
    async def run() -> tuple[int, list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            for number in range(1, 9):  # one in each segment
                await tester.send(1, message(number))
                await receive_until_segments(tester, number + 1)
            for _ in range(2):
                await tester.broker.snapshots.write()
            before = tester.broker.files.segments()
            await tester.broker.compaction.step(younger_than_ms=0)
            after = tester.broker.files.segments()
            found = sorted(numbers(await tester.receive(1)))
            return sum(one.data_bytes for one in before) // sum(one.data_bytes for one in after), found

    times_smaller, found = asyncio.run(run())

    assert times_smaller >= 2
    assert found == list(range(1, 9))


def test_segments_that_are_gone_are_forgotten_by_who_judges_them(tmp_path: Path) -> None:
    async def run() -> tuple[set[int], set[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 40)
            compaction = tester.broker.compaction
            gone = {base_offset + 1: 9 for base_offset in range(10)}
            compaction._look_again_at |= gone
            compaction._damaged |= gone.keys()
            there = {segment.base_offset for segment in tester.broker.host.files.segments()}
            compaction._look_again_at[min(there)] = 9

            await compaction.step(younger_than_ms=0)

            return compaction._look_again_at.keys() - there, compaction._damaged - there

    assert asyncio.run(run()) == (set(), set())


def test_young_segments_stay_so_that_windows_can_point_into_them(tmp_path: Path, clock: MovableTime) -> None:
    async def run() -> tuple[int, int, bool]:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(7, group=1, dedup=7))
            await tester.set_queue(define(2))
            await send_many(tester, 2, 100, 100)
            await delete_all(tester, 1)
            await delete_all(tester, 2)
            for _ in range(2):
                await tester.broker.snapshots.write()
            young = await tester.broker.compaction.step()
            (again,) = await tester.send(1, message(8, group=1, dedup=7))
            assert again.message_id == identity(7)
            clock.pass_ms(700_000)
            return young, await tester.broker.compaction.step(), again.duplicate

    young, old, duplicate = asyncio.run(run())

    assert young == 0
    assert old > 0
    assert duplicate


def test_a_duplicate_whose_original_cannot_be_read_is_not_called_stored_anew(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, body_cache_bytes=1) as tester:
            await tester.set_queue(define(1, "queue.fifo"))
            await tester.send(1, message(7, group=1, dedup=7))
            await delete_all(tester, 1)
            await tester.set_queue(define(2))
            await send_many(tester, 2, 100, 100)
            for _ in range(2):
                await tester.broker.snapshots.write()
            await tester.broker.compaction.step(younger_than_ms=0)
            with pytest.raises(InternalFailure):
                await tester.send(1, message(8, group=1, dedup=7))
            assert await alive(tester, 1) == 0

    asyncio.run(run())


def test_a_close_during_a_compaction_drops_no_live_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 100)
            for _ in range(2):
                await tester.broker.snapshots.write()
            host = tester.broker.host
            is_live = host.replica.queues.is_live

            def closing(row: Any) -> bool:
                tester.broker.compaction._closing.set()  # as `close` does from the loop's thread
                return is_live(row) and row.sequence > 3

            with monkeypatch.context() as patch:
                patch.setattr(host.replica.queues, "is_live", closing)
                await tester.broker.compaction.step(younger_than_ms=0)
        async with running(tmp_path) as tester:
            found: list[int] = []
            while deliveries := await tester.receive(1, timeout_ms=100_000):
                found += numbers(deliveries)
            return found

    assert sorted(asyncio.run(run())) == list(range(1, 101))


def test_no_thread_is_in_the_files_once_the_broker_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began = threading.Event()
    done: list[str] = []
    compact_all = compaction.Compaction._compact_all

    def slowly(self: Any, *arguments: Any) -> int:
        began.set()
        time.sleep(0.2)
        try:
            compact_all(self, *arguments)
            raise compaction._JournalEnds
        finally:
            done.append("compaction")

    monkeypatch.setattr(compaction.Compaction, "_compact_all", slowly)

    async def run() -> list[str]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            task = asyncio.create_task(tester.broker.compaction.step(younger_than_ms=0))
            await until(began.is_set)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return list(done)

    assert asyncio.run(run()) == ["compaction"]
    gc.collect()
    assert "never retrieved" not in caplog.text


class SlowSync(RealDisk):
    """Holds every fsync of a segment while `is_open` is cleared."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()

    def sync_data(self, fd: int) -> None:
        self.is_open.wait(PATIENCE_S)
        super().sync_data(fd)


def test_a_queue_set_again_while_its_end_is_put_into_a_snapshot_starts_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = snapshots.Snapshots._publish
    may_publish = threading.Event()

    def held(self: Any, *arguments: Any) -> None:
        may_publish.wait(PATIENCE_S)
        publish(self, *arguments)

    async def run() -> tuple[int, int]:
        coordination = MemoryCoordination()
        async with running(tmp_path, coordination=coordination) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, *[message(number) for number in range(1, 6)])
            await tester.broker.snapshots.write()
            await tester.ask(ForgetQueue(1))
            monkeypatch.setattr(snapshots.Snapshots, "_publish", held)
            writing = asyncio.create_task(tester.broker.snapshots.write())
            await asyncio.sleep(0.05)
            await tester.set_queue(define(1))
            await tester.send(1, message(9))
            may_publish.set()
            await writing
            copy_of_it = tmp_path.with_name("crashed")
            shutil.copytree(tmp_path, copy_of_it)
        async with running(copy_of_it, coordination=coordination) as tester:
            counts = await tester.ask(CountMessages(1))
            return counts.visible, numbers(await tester.receive(1))[0]

    assert asyncio.run(run()) == (1, 9)


def test_a_log_that_is_cut_while_segments_are_judged_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 100)
            for _ in range(2):
                await tester.broker.snapshots.write()
            host = tester.broker.host
            replicated_log, is_live = host.replica.log, host.replica.queues.is_live
            truncations = replicated_log.truncations

            def with_deletes_that_are_cut(row: Any) -> bool:
                replicated_log.truncations = truncations + 1
                return is_live(row) and row.sequence > 3

            with monkeypatch.context() as patch:
                patch.setattr(host.replica.queues, "is_live", with_deletes_that_are_cut)
                await tester.broker.compaction.step(younger_than_ms=0)
            replicated_log.truncations = truncations
        async with running(tmp_path) as tester:
            found: list[int] = []
            while deliveries := await tester.receive(1, timeout_ms=100_000):
                found += numbers(deliveries)
            return found

    assert sorted(asyncio.run(run())) == list(range(1, 101))


def test_a_body_stays_until_its_delete_is_durable(tmp_path: Path) -> None:
    disk = SlowSync()

    async def run() -> tuple[int, int]:
        async with running(tmp_path, disk=disk) as tester:
            await tester.set_queue(define(1))
            await send_many(tester, 1, 1, 100)
            for _ in range(2):
                await tester.broker.snapshots.write()
            partition = tester.broker.host.replica.queues.partition(1, 0)
            disk.is_open.clear()
            purge = asyncio.create_task(tester.ask(Purge(1)))
            await until(lambda: not partition.alive)
            step = asyncio.create_task(tester.broker.compaction.step(younger_than_ms=0))
            await asyncio.sleep(0.1)
            held = tester.broker.files.start_offset
            disk.is_open.set()
            await purge
            await step
            return held, tester.broker.files.start_offset

    held, after = asyncio.run(run())

    assert held == 0 < after


# Expiry


def test_messages_expire_after_the_retention_period(tmp_path: Path, clock: MovableTime) -> None:
    async def run() -> tuple[int, int, list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, MessageRetentionPeriod=60))
            await tester.send(1, message(1))
            clock.pass_ms(59_000)
            await tester.send(1, message(2))
            before = await alive(tester, 1)
            clock.pass_ms(2_000)
            partition = tester.broker.host.replica.queues.partition(1, 0)
            await until(lambda: partition.alive == 1)
            return before, partition.alive, numbers(await tester.receive(1))

    assert asyncio.run(run()) == (2, 1, [2])


def test_a_dead_letter_expires_by_the_time_it_was_first_sent(tmp_path: Path, clock: MovableTime) -> None:
    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(2, "dead", MessageRetentionPeriod=120))
            await tester.set_queue(define(1, "work", RedrivePolicy=redrive_to("dead", 1)))
            await tester.send(1, message(1))
            clock.pass_ms(100_000)
            await tester.send(2, message(2))
            await tester.receive(1, timeout_ms=0)
            await tester.receive(1, wait_ms=0)
            dead = tester.broker.host.replica.queues.partition(2, 0)
            await until(lambda: dead.alive == 2)
            clock.pass_ms(30_000)
            await until(lambda: dead.alive == 1)
            return numbers(await tester.receive(2))

    assert asyncio.run(run()) == [2]


def test_nothing_expires_after_a_jump_of_the_wall_clock(tmp_path: Path, clock: MovableTime) -> None:
    async def run() -> tuple[bool, int, int]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, MessageRetentionPeriod=60))
            await tester.send(1, message(1))
            host = tester.broker.host

            clock.wall_ms += 80 * 365 * 86_400_000
            await until(lambda: host.clock.expiry_is_held)
            clock.pass_ms(61_000)
            await asyncio.sleep(0.3)
            held, kept = host.clock.expiry_is_held, await alive(tester, 1)

            clock.wall_ms -= 80 * 365 * 86_400_000
            host.clock.accept()
            partition = host.replica.queues.partition(1, 0)
            await until(lambda: partition.alive == 0)
            return held, kept, partition.alive

    assert asyncio.run(run()) == (True, 1, 0)


def test_a_start_in_the_far_future_deletes_nothing(tmp_path: Path, clock: MovableTime) -> None:
    async def run() -> tuple[bool, list[int]]:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1, MessageRetentionPeriod=60))
            await tester.send(1, message(1))
        clock.wall_ms += 80 * 365 * 86_400_000
        async with running(tmp_path) as tester:
            await asyncio.sleep(0.3)
            return tester.broker.host.clock.expiry_is_held, numbers(await tester.receive(1))

    assert asyncio.run(run()) == (True, [1])

"""The journal's writer thread: group commit and what it tells the loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from harness.batches import BatchSource, payloads_of
from harness.sim_disk import SimDisk
from harness.waiting import PATIENCE_S

from quaymaster.broker.storage.disk import RealDisk
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_recovery import Expected
from quaymaster.broker.storage.space import SPARE_BYTES, SPARES, JournalLimits
from quaymaster.broker.storage.writer import JournalWriter
from quaymaster.core.replication.messages import DiskPressure

SMALL = JournalLimits(
    segment_bytes_min=64 << 10, segment_bytes_max=128 << 10, reserve_segments=1, disk_low_bytes=0
)


class Owner:
    """Stands for the replica loop: notes what the writer says and waits for it."""

    def __init__(self, journal: JournalFiles) -> None:
        self.progress: list[tuple[int, int]] = []
        self.failures: list[Exception] = []
        self._changed = asyncio.Event()
        self.writer = JournalWriter(
            journal,
            post=asyncio.get_running_loop().call_soon_threadsafe,
            on_progress=self._note_progress,
            on_failed=self._note_failure,
        )

    def _note_progress(self, written_end: int, durable_end: int, truncations: int) -> None:
        assert truncations == 0
        self.progress.append((written_end, durable_end))
        self._changed.set()

    def _note_failure(self, error: Exception) -> None:
        self.failures.append(error)
        self._changed.set()

    async def until_durable(self, offset: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.progress or self.progress[-1][1] < offset:
                self._changed.clear()
                await self._changed.wait()

    async def until_failed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.failures:
                self._changed.clear()
                await self._changed.wait()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not happen in time")


def test_everything_given_becomes_durable_in_order(tmp_path: Path) -> None:
    journal = JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        for _ in range(200):
            owner.writer.append([source.batch([b"x" * 300] * 8), source.batch([b"y"])])
            if source.end_offset % 45 == 0:
                await asyncio.sleep(0)
        await owner.until_durable(source.end_offset)
        assert owner.writer.close()
        return owner

    owner = asyncio.run(run())

    assert owner.progress == sorted(owner.progress)
    assert all(written == durable for written, durable in owner.progress)
    assert owner.writer.pending_bytes == 0
    assert (
        owner.writer.counters.fsyncs
        == len(owner.progress)
        == sum(owner.writer.counters.fsync_durations.counts)
    )
    assert owner.writer.counters.appended_batches == 400
    assert payloads_of(journal) == source.payloads
    journal.close()


def test_batches_that_wait_together_share_one_fsync(tmp_path: Path) -> None:
    journal = JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> Owner:
        owner = Owner(journal)
        for _ in range(50):
            owner.writer.append([source.batch([b"x"])])
        owner.writer.start()
        await owner.until_durable(50)
        assert owner.writer.close()
        return owner

    owner = asyncio.run(run())

    assert owner.progress == [(50, 50)]
    assert owner.writer.counters.fsyncs == 1
    journal.close()


def test_a_written_end_is_told_before_the_fsync_when_asked_for(tmp_path: Path) -> None:
    journal = JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        owner.writer.append([source.batch([b"x"])], tell_written=True)
        await owner.until_durable(1)
        assert owner.writer.close()
        return owner

    owner = asyncio.run(run())

    assert owner.progress == [(1, 0), (1, 1)]
    journal.close()


def test_closing_writes_what_was_given(tmp_path: Path) -> None:
    journal = JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> None:
        owner = Owner(journal)
        owner.writer.start()
        for _ in range(300):
            owner.writer.append([source.batch([b"x" * 5000])])
        assert await asyncio.to_thread(owner.writer.close)

    asyncio.run(run())

    assert journal.durable_end == 300
    journal.close()


def test_a_failed_fsync_ends_the_writer_and_is_told_once() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        owner.writer.append([source.batch([b"fine"])])
        await owner.until_durable(1)
        disk.fail_next_sync(".seg")
        owner.writer.append([source.batch([b"lost"])])
        await owner.until_failed()
        owner.writer.append([source.batch([b"dropped"])])
        assert owner.writer.close()
        await asyncio.sleep(0)
        return owner

    owner = asyncio.run(run())

    assert owner.progress == [(1, 1)]
    assert len(owner.failures) == 1
    assert owner.writer.failed is owner.failures[0]
    assert disk.exists("/j/tainted")


def test_an_fsync_that_fails_for_a_promise_ends_the_writer_too() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        disk.fail_next_sync(".seg")
        with pytest.raises(OSError, match="Input/output"):
            journal.persist_promise(3)
        owner.writer.append([source.batch([b"never written"])])
        await owner.until_failed()
        assert owner.writer.close()
        return owner

    owner = asyncio.run(run())

    assert owner.progress == []
    assert journal.end_offset == 0
    assert journal.promised_epoch == 0


def test_a_full_disk_holds_batches_back_and_goes_on_by_itself_when_there_is_room() -> None:
    disk = SimDisk(capacity_bytes=600 << 10)
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        for _ in range(30):
            owner.writer.append([source.batch([b"x" * 30_000])])
        await until(lambda: owner.writer.counters.full_disk_waits > 0)
        await until(lambda: owner.writer.disk_low)
        assert owner.writer.pending_bytes > 0
        assert not disk.exists("/j/reserve")
        assert 0 < owner.progress[-1][1] < source.end_offset
        disk.capacity_bytes = 10 << 20
        await owner.until_durable(source.end_offset)
        await until(lambda: not owner.writer.disk_low)
        assert owner.writer.close()
        return owner

    owner = asyncio.run(run())

    assert owner.writer.pending_bytes == 0
    assert disk.exists("/j/reserve")
    assert payloads_of(journal) == source.payloads


def test_the_reserve_lets_deletes_through_when_nothing_else_fits() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"x" * 50_000])])
    disk.capacity_bytes = disk.capacity_bytes - disk.free_bytes("/j")

    journal.append([source.batch([b"delete" * 3000])])

    assert journal.end_offset == 2
    assert journal.space.reserve_bytes == 0
    journal.space.check()
    assert journal.space.disk_low


def test_closing_on_a_full_disk_ends_in_time() -> None:
    disk = SimDisk(capacity_bytes=300 << 10)
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)

    async def run() -> None:
        owner = Owner(journal)
        owner.writer.start()
        for _ in range(30):
            owner.writer.append([source.batch([b"x" * 30_000])])
        await until(lambda: owner.writer.counters.full_disk_waits > 0)
        assert await asyncio.to_thread(owner.writer.close, 10)

    asyncio.run(run())

    assert journal.durable_end == journal.end_offset
    assert journal.end_offset < 30


def test_low_space_is_noticed_before_the_disk_is_full() -> None:
    limits = JournalLimits(
        segment_bytes_min=64 << 10, segment_bytes_max=64 << 10, reserve_segments=1, disk_low_bytes=1 << 20
    )
    disk = SimDisk(capacity_bytes=2 << 20)
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=limits)
    seen = [journal.space.disk_low]

    for capacity_bytes in (1 << 20, 2 << 20):
        disk.capacity_bytes = capacity_bytes
        journal.space.check()
        seen.append(journal.space.disk_low)

    assert seen == [False, True, False]
    assert journal.space.reserve_bytes > 0


def fill(disk: SimDisk) -> None:
    disk.capacity_bytes -= disk.free_bytes("/j")


def steal_what_is_free(disk: SimDisk, journal: JournalFiles, epoch: int) -> None:
    journal.persist_promise(epoch)
    fill(disk)  # others take what was given up meanwhile


def test_promises_are_kept_on_a_full_disk_by_spares_and_then_the_reserve() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    fill(disk)

    for epoch in range(1, SPARES + 1):
        steal_what_is_free(disk, journal, epoch)

    assert journal.space.reserve_bytes > 0
    steal_what_is_free(disk, journal, SPARES + 1)
    assert journal.space.reserve_bytes == 0
    with pytest.raises(OSError, match="No space"):
        journal.persist_promise(SPARES + 2)
    assert (journal.promised_epoch, journal.failure) == (SPARES + 1, None)
    del journal
    assert JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL).promised_epoch == SPARES + 1


def test_spares_are_made_again_when_there_is_room() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    fill(disk)
    for epoch in range(1, SPARES + 1):
        steal_what_is_free(disk, journal, epoch)
    disk.capacity_bytes += SPARES * SPARE_BYTES

    journal.space.check()
    fill(disk)

    for epoch in range(SPARES + 1, 2 * SPARES + 1):
        steal_what_is_free(disk, journal, epoch)
    assert journal.space.reserve_bytes > 0


def test_a_promise_that_finds_no_room_waits_for_it_and_what_comes_behind_it_too() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)
    fill(disk)
    for epoch in range(1, SPARES + 2):
        steal_what_is_free(disk, journal, epoch)

    async def run() -> Owner:
        owner = Owner(journal)
        promised = asyncio.Event()
        owner.writer.start()
        owner.writer.run(lambda: journal.persist_promise(99), promised.set)
        owner.writer.append([source.batch([b"x"])])
        await until(lambda: owner.writer.counters.full_disk_waits > 1)
        assert owner.writer.held_back_s > 0
        assert journal.promised_epoch == SPARES + 1
        disk.capacity_bytes += 1 << 20
        await owner.until_durable(1)
        assert promised.is_set()
        assert owner.writer.held_back_s == 0
        assert await asyncio.to_thread(owner.writer.close)
        return owner

    owner = asyncio.run(run())

    assert owner.failures == []
    assert journal.promised_epoch == 99


def test_what_a_full_disk_let_through_of_a_batch_is_taken_away_and_another_one_comes_there() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL, expected=Expected(is_replicated=True))
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"first"])])
    journal.sync()
    other = BatchSource(end_offset=source.end_offset, chain=source.chain, epoch=2)
    disk.fill_up_in_next_write(".seg", kept_bytes=300)

    with pytest.raises(OSError, match="No space"):
        journal.append([source.batch([b"partly" * 100])])
    journal.append([other.batch([b"second"])])
    journal.sync()

    found = JournalFiles.open(
        disk.after_power_cut(Random(1)),
        "/j",
        journal_id=7,
        limits=SMALL,
        expected=Expected(is_replicated=True),
    )
    assert list(payloads_of(found).values()) == [b"first", b"second"]
    assert (found.failure, found.warnings) == (None, [])


def test_a_power_cut_after_a_batch_that_was_written_partly_leaves_nothing_of_it() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"first"])])
    journal.sync()
    disk.fill_up_in_next_write(".seg", kept_bytes=300)

    with pytest.raises(OSError, match="No space"):
        journal.append([source.batch([b"partly" * 100])])

    for seed in range(20):
        found = JournalFiles.open(disk.after_power_cut(Random(seed)), "/j", journal_id=7, limits=SMALL)
        assert (list(payloads_of(found).values()), found.warnings) == ([b"first"], [])


def test_an_fsync_that_says_the_disk_is_full_ends_the_journal() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    journal.append([BatchSource.behind(journal).batch([b"m"])])
    disk.fail_next_sync(".seg", error=errno.ENOSPC)

    with pytest.raises(OSError, match="No space"):
        journal.sync()

    assert journal.failure is not None
    assert disk.exists("/j/tainted")


def test_a_full_disk_is_no_reason_to_stop_even_when_nothing_can_be_written_aside() -> None:
    limits = JournalLimits(
        segment_bytes_min=64 << 10, segment_bytes_max=64 << 10, reserve_segments=0, disk_low_bytes=0
    )
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=limits)
    source = BatchSource.behind(journal)
    journal.space.prepare_next()
    disk.capacity_bytes = disk.capacity_bytes - disk.free_bytes("/j")

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        for _ in range(3):
            owner.writer.append([source.batch([b"x" * 30_000])])
        await owner.until_durable(3)
        await until(lambda: owner.writer.disk_low)
        assert await asyncio.to_thread(owner.writer.close)
        return owner

    owner = asyncio.run(run())

    assert owner.failures == []
    assert journal.segment_count == 2


def test_one_write_without_room_is_forgotten_when_it_went_through() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)
    assert journal.space.prepare_next()  # it is there all the time: what is cramped is not the next segment
    disk.fill_up_in_next_write(".seg", kept_bytes=300)

    async def run() -> Owner:
        owner = Owner(journal)
        owner.writer.start()
        owner.writer.append([source.batch([b"partly" * 100])])
        await until(lambda: owner.writer.counters.full_disk_waits > 0)
        await owner.until_durable(1)
        await until(lambda: not owner.writer.disk_low)
        assert await asyncio.to_thread(owner.writer.close)
        return owner

    owner = asyncio.run(run())

    assert owner.failures == []
    assert owner.writer.held_back_s == 0
    assert journal.room is DiskPressure.PLENTY


def test_a_promise_without_room_is_forgotten_when_it_was_kept() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    assert journal.space.prepare_next()
    refusals = [OSError(errno.ENOSPC, "No space left on device")] * 2

    def act() -> None:
        if refusals:
            raise refusals.pop()

    async def run() -> None:
        owner = Owner(journal)
        owner.writer.start()
        done = asyncio.Event()
        owner.writer.run(act, done.set)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
        await until(lambda: not owner.writer.disk_low)
        assert await asyncio.to_thread(owner.writer.close)

    asyncio.run(run())

    assert journal.room is DiskPressure.PLENTY


def test_power_cuts_under_the_writer_lose_nothing_that_was_told_durable() -> None:
    limits = JournalLimits(
        segment_bytes_min=16 << 10, segment_bytes_max=32 << 10, reserve_segments=1, disk_low_bytes=0
    )
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=limits)
    source = BatchSource.behind(journal)
    cuts: list[tuple[int, SimDisk]] = []

    async def run() -> None:
        owner = Owner(journal)
        owner.writer.start()
        for number in range(200):
            batch = source.batch([b"%d" % number * 100] * 3, floor=journal.durable_end)
            owner.writer.append([batch], tell_written=number % 3 == 0)
            if number % 4 == 0:
                told = owner.progress[-1][1] if owner.progress else 0
                cuts.append((told, disk.after_power_cut(Random(number))))
                await asyncio.sleep(0)
        await owner.until_durable(source.end_offset)
        assert await asyncio.to_thread(owner.writer.close)

    asyncio.run(run())

    for told, after in cuts:
        found = JournalFiles.open(after, "/j", journal_id=7, limits=limits)
        assert found.end_offset >= told
        assert payloads_of(found) == {offset: source.payloads[offset] for offset in range(found.end_offset)}

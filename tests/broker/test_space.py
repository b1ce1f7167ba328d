"""The reserve is for everything that must be written on a full disk, not only for the journal."""

from __future__ import annotations

from harness.batches import BatchSource
from harness.sim_disk import SimDisk

from quaymaster.broker.journal_files import JournalFiles
from quaymaster.broker.space import SCARCE_BYTES, JournalLimits


def open_journal(disk: SimDisk, *, disk_low_bytes: int) -> JournalFiles:
    limits = JournalLimits(
        segment_bytes_min=64 << 10,
        segment_bytes_max=64 << 10,
        reserve_segments=2,
        disk_low_bytes=disk_low_bytes,
    )
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=limits)
    journal.append([BatchSource.behind(journal).batch([b"m"])])
    journal.space.check()
    assert journal.space.reserve_bytes > 0
    return journal


def take_space(disk: SimDisk, *, leave_bytes: int) -> None:
    disk.capacity_bytes += leave_bytes - disk.free_bytes("/j")


def test_hardly_any_room_gives_the_reserve_up_for_whatever_has_to_be_written() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=2 * SCARCE_BYTES)
    take_space(disk, leave_bytes=0)

    journal.space.check()

    assert journal.space.reserve_bytes == 0
    assert disk.free_bytes("/j") >= 128 << 10
    assert journal.space.disk_low


def test_a_start_finds_the_room_that_the_reserve_kept() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=2 * SCARCE_BYTES)
    take_space(disk, leave_bytes=SCARCE_BYTES - 1)

    journal.space.release_if_scarce()

    assert disk.free_bytes("/j") > SCARCE_BYTES
    take_space(disk, leave_bytes=100 * SCARCE_BYTES)
    journal.space.check()
    assert journal.space.reserve_bytes > 0


def test_the_reserve_stays_while_there_is_room_or_the_owner_wants_the_last_byte_used() -> None:
    roomy = SimDisk()
    journal = open_journal(roomy, disk_low_bytes=2 * SCARCE_BYTES)
    take_space(roomy, leave_bytes=SCARCE_BYTES)
    journal.space.check()
    assert journal.space.reserve_bytes > 0
    assert journal.space.disk_low

    tight = SimDisk()
    journal = open_journal(tight, disk_low_bytes=0)
    take_space(tight, leave_bytes=1000)
    journal.space.check()
    assert journal.space.reserve_bytes > 0

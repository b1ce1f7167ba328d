"""The reserve is for everything that must be written on a full disk, not only for the journal."""

from __future__ import annotations

from random import Random

from harness.batches import BatchSource
from harness.sim_disk import SimDisk

from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.space import SCARCE_BYTES, SPARES, JournalLimits
from quaymaster.core.replication.messages import DiskPressure


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


def test_hardly_any_room_gives_half_of_the_reserve_up_for_whatever_has_to_be_written() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=2 * SCARCE_BYTES)
    take_space(disk, leave_bytes=0)

    journal.space.check()

    assert journal.space.reserve_bytes == 64 << 10  # one of two pieces is for the journal's own records
    assert disk.free_bytes("/j") >= 64 << 10
    assert journal.space.disk_low


def test_a_start_finds_the_room_that_the_reserve_kept() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=2 * SCARCE_BYTES)
    take_space(disk, leave_bytes=SCARCE_BYTES - 1)

    journal.space.release_if_scarce()

    assert disk.free_bytes("/j") > SCARCE_BYTES
    assert journal.space.reserve_bytes > 0
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


def test_pieces_of_the_reserve_become_segments_without_being_given_back() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=0)
    source = BatchSource.behind(journal)
    take_space(disk, leave_bytes=0)
    free: list[int] = []

    while journal.room is not DiskPressure.NONE:
        journal.append([source.batch([b"x" * 10_000])])
        if not journal.space.prepare_next():
            free.append(disk.free_bytes("/j"))

    assert max(free) < 64 << 10
    assert journal.segment_count == 3
    assert journal.space.reserve_bytes == 0
    journal.sync()
    found = JournalFiles.open(disk.after_power_cut(Random(1)), "/j", journal_id=7, limits=journal._limits)
    assert found.end_offset == source.end_offset


def test_pieces_are_smaller_than_segments_where_several_journals_share_what_one_would_hold_back() -> None:
    disk = SimDisk()
    limits = JournalLimits(
        segment_bytes_min=64 << 10,
        segment_bytes_max=64 << 10,
        reserve_segments=2,
        reserve_piece_bytes_max=16 << 10,
        disk_low_bytes=8 << 10,
    )
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=limits)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"m"])])

    journal.space.check()
    assert (journal.space.reserve_bytes, journal.space.disk_low) == (2 * (16 << 10), False)
    journal.space.prepare_next()
    take_space(disk, leave_bytes=0)
    written = 0
    while journal.space.reserve_bytes:
        journal.append([source.batch([bytes(8 << 10)])])
        written += 8 << 10

    assert written >= 2 * (64 << 10)  # all of what was there, and then pieces of the reserve


def test_room_is_told_from_plenty_to_none_and_back() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=2 * SCARCE_BYTES)
    source = BatchSource.behind(journal)
    seen = [journal.room]

    def look() -> None:
        journal.space.prepare_next()
        journal.space.check()
        if journal.room is not seen[-1]:
            seen.append(journal.room)

    look()
    take_space(disk, leave_bytes=SCARCE_BYTES)
    look()
    take_space(disk, leave_bytes=0)
    for _ in range(40):
        look()
        take_space(disk, leave_bytes=0)
        if journal.room is not DiskPressure.NONE:
            journal.append([source.batch([b"x" * 10_000])])
    take_space(disk, leave_bytes=100 * SCARCE_BYTES)
    look()

    assert seen == [
        DiskPressure.PLENTY,
        DiskPressure.LOW,
        DiskPressure.RESERVE,
        DiskPressure.NONE,
        DiskPressure.PLENTY,
    ]
    assert journal.space.reserve_bytes == 128 << 10


def test_a_reserve_that_is_found_at_a_start_counts() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=0)
    journal.close()
    take_space(disk, leave_bytes=0)

    again = JournalFiles.open(disk, "/j", journal_id=7, limits=journal._limits)

    assert again.space.reserve_bytes == 128 << 10
    for epoch in range(1, SPARES + 1):
        again.persist_promise(epoch)
        take_space(disk, leave_bytes=0)
    assert again.space.reserve_bytes == 128 << 10


def test_a_write_that_found_no_room_refuses_sends_until_it_went_through_whatever_is_prepared() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=0)
    space = journal.space
    assert space.prepare_next()
    space.check()

    space.note_full()
    space.prepare_next()
    space.check()
    held = space.disk_low, space.room
    space.note_written()
    space.prepare_next()
    space.check()

    assert held == (True, DiskPressure.LOW)
    assert (space.disk_low, space.room) == (False, DiskPressure.PLENTY)


def test_a_spare_that_finds_no_room_for_its_name_is_made_at_a_later_look() -> None:
    disk = SimDisk()
    journal = open_journal(disk, disk_low_bytes=0)
    spare = journal.space._spares.pop()
    disk.unlink(spare)
    disk.refuse_next_creation("spare-")

    journal.space.check()

    assert not disk.exists(spare)
    journal.space.check()
    assert disk.exists(spare)

"""Cutting a replicated journal's end, on the real file system and through power cuts; reading it for members behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from harness.batches import BatchSource, payloads_of
from harness.sim_disk import PowerLost, SimDisk

from quaymaster.broker.storage.disk import Disk, RealDisk
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_recovery import Expected
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.core.replication.log_tail import Position

SMALL = JournalLimits(
    segment_bytes_min=8 << 10,
    segment_bytes_max=16 << 10,
    index_every_bytes=1 << 10,
    reserve_segments=0,
    disk_low_bytes=0,
)
DIRECTORY = "/data/journal"


def open_journal(path: Path | str, disk: Disk | None = None) -> JournalFiles:
    return JournalFiles.open(
        disk or RealDisk(), path, journal_id=7, limits=SMALL, expected=Expected(is_replicated=True)
    )


def fill(journal: JournalFiles, source: BatchSource, *, batches: int, floor: int | None = None) -> None:
    for _ in range(batches):
        payloads = [(b"%d " % (source.end_offset + number)).ljust(300, b"x") for number in range(4)]
        journal.append([source.batch(payloads, floor=journal.durable_end if floor is None else floor)])
    journal.sync()


def ends(journal: JournalFiles) -> list[Position]:
    return [Position(header.next_offset, header.epoch, header.chain) for header, _ in journal.read_batches(0)]


@pytest.mark.parametrize("kept", [0, 4, 40, 120, 396, 400])
def test_what_is_behind_a_cut_is_gone_and_the_journal_goes_on_from_there(tmp_path: Path, kept: int) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    before = {offset: payload for offset, payload in source.payloads.items() if offset < kept}
    assert len(journal.segments()) > 5

    journal.truncate(kept)

    assert (journal.end_offset, journal.durable_end, journal.truncations) == (kept, kept, 1)
    assert payloads_of(journal) == before
    following = BatchSource(end_offset=kept, chain=journal.end_chain, epoch=2)
    fill(journal, following, batches=30)
    journal.close()
    again = open_journal(tmp_path / "j")
    assert payloads_of(again) == before | following.payloads
    assert (again.end_chain, again.last_epoch, again.warnings) == (following.chain, 2, [])
    again.close()


def test_a_cut_where_no_batch_ends_is_a_bug(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=3)

    with pytest.raises(AssertionError, match="no batch ends at 6"):
        journal.truncate(6)


@pytest.mark.parametrize("has_noted_floor", [False, True])
def test_cut_journal_is_whole_after_a_power_cut_at_any_moment(has_noted_floor: bool) -> None:
    """Either nothing is cut yet, or all of it; what comes behind the cut is never what was there before."""
    moments = 0
    for moment in range(1, 400):
        disk = SimDisk()
        journal = open_journal(DIRECTORY, disk)
        source = BatchSource.behind(journal)
        fill(journal, source, batches=60)
        if has_noted_floor:
            journal.persist_floor()
        chains = {position.end: position.chain for position in ends(journal)}
        disk.lose_power_after(moment)
        following = BatchSource(end_offset=80, epoch=2)
        written = 80
        try:
            journal.truncate(80)
            following.chain = journal.end_chain
            for _ in range(5):
                fill(journal, following, batches=1)
                written = journal.durable_end
            disk.lose_power_after(1_000_000)
        except PowerLost:
            moments += 1
        after = open_journal(DIRECTORY, disk.after_power_cut(Random(moment)))
        found = ends(after)
        epochs = {position.epoch for position in found if position.end > 80}
        assert len(epochs) <= 1, "what was cut does not come back behind what was written instead"
        assert after.end_offset >= written
        if epochs == {1}:
            assert after.end_offset == 240
        for position in found:
            if position.end <= 80:
                assert chains[position.end] == position.chain
        after.close()
        if moments < moment:
            break
    assert moments > 20


def test_a_journal_is_cut_on_a_full_disk_and_goes_on_from_there() -> None:
    limits = replace(SMALL, reserve_segments=1)
    disk = SimDisk()
    journal = JournalFiles.open(
        disk, DIRECTORY, journal_id=7, limits=limits, expected=Expected(is_replicated=True)
    )
    source = BatchSource.behind(journal)
    fill(journal, source, batches=60)
    before = {offset: payload for offset, payload in source.payloads.items() if offset < 200}
    disk.capacity_bytes -= disk.free_bytes(DIRECTORY)

    journal.truncate(200)
    following = BatchSource(end_offset=200, chain=journal.end_chain, epoch=2)
    fill(journal, following, batches=1)

    assert journal.failure is None
    found = JournalFiles.open(
        disk.after_power_cut(Random(1)),
        DIRECTORY,
        journal_id=7,
        limits=limits,
        expected=Expected(is_replicated=True),
    )
    assert payloads_of(found) == before | following.payloads


def test_a_cut_that_finds_no_room_for_its_mark_is_done_when_there_is_some() -> None:
    disk = SimDisk()
    journal = open_journal(DIRECTORY, disk)
    fill(journal, BatchSource.behind(journal), batches=20)
    journal.persist_floor()
    disk.capacity_bytes -= disk.free_bytes(DIRECTORY)

    with pytest.raises(OSError, match="No space"):
        journal.truncate(40)
    assert (journal.end_offset, journal.failure) == (80, None)
    disk.capacity_bytes += 1 << 20
    journal.truncate(40)

    assert (journal.end_offset, journal.truncations) == (40, 1)


def test_a_follower_that_lost_power_cuts_what_tore_whatever_its_leader_had_durable() -> None:
    """Batches carry their leader's floor. Here it says nothing: a write that was never fsynced may tear."""
    torn = 0
    for seed in range(60):
        disk = SimDisk()
        journal = open_journal(DIRECTORY, disk)
        source = BatchSource.behind(journal)
        fill(journal, source, batches=5)
        for _ in range(3):
            floor = source.end_offset
            payloads = [bytes([seed]) * 1500 for _ in range(4)]
            journal.append([source.batch(payloads, floor=floor)])
        after = open_journal(DIRECTORY, disk.after_power_cut(Random(seed)))
        assert 20 <= after.end_offset <= 32
        torn += after.end_offset < 32
        after.close()
    assert torn


def test_batches_are_read_from_any_place_where_one_ends(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=60)
    positions = [Position(0, 0, 0), *ends(journal)]
    choose = Random(1)

    for position in positions:
        bytes_max = choose.choice((1, 5_000, 1 << 20))
        found, batches = journal.read_from(position.end, bytes_max)
        assert found == position
        assert bool(batches) == (position.end < 240)
        assert [batch.base_offset for batch in batches[:1]] == [position.end][: len(batches)]
        assert sum(len(batch.data) for batch in batches[1:]) <= bytes_max
    assert journal.position_at(240) == positions[-1]
    for nowhere in (3, 241, 10_000):
        assert journal.read_from(nowhere, 1 << 20) == (None, [])
    journal.close()


def test_nothing_is_read_for_others_where_compaction_has_been(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=60)
    first = journal.segments()[0]

    journal.compact(first.base_offset, lambda row: row.offset % 2 == 0)

    assert journal.read_from(0, 1 << 20)[1] == []
    assert journal.read_from(4, 1 << 20) == (None, [])
    assert journal.read_from(first.end_offset, 1 << 20)[1] != []
    journal.close()

"""The journal's directory: append, recover, read, compact, on the real file system."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from harness.batches import BatchSource, payloads_of
from harness.sim_disk import SimDisk
from harness.waiting import PATIENCE_S

from quaymaster.broker.storage.disk import DirectoryInUse, RealDisk
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_recovery import Expected
from quaymaster.broker.storage.journal_state import JournalClosed, JournalCorrupt, lock_directory
from quaymaster.broker.storage.segments import DATA_AT, RecordGone, RecordUnreadable
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.core.replication.log_tail import LOG_START, Position
from quaymaster.core.values.records import RecordRow

SMALL = JournalLimits(
    segment_bytes_min=16 << 10,
    segment_bytes_max=32 << 10,
    index_every_bytes=1 << 10,
    reserve_segments=0,
    disk_low_bytes=0,
)


def open_journal(path: Path, **options: object) -> JournalFiles:
    return JournalFiles.open(RealDisk(), path, journal_id=7, limits=SMALL, **options)  # type: ignore[arg-type]


def fill(
    journal: JournalFiles, source: BatchSource, *, batches: int, records: int = 4, size: int = 200
) -> None:
    for _ in range(batches):
        start = source.end_offset
        payloads = [(b"%d " % (start + number)).ljust(size, b"x") for number in range(records)]
        journal.append([source.batch(payloads, floor=journal.durable_end)])
        journal.sync()


def flip(path: Path, position: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def segment_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    storage_id = journal.storage_id
    journal.close()

    again = open_journal(tmp_path / "j")

    assert (again.start_offset, again.end_offset, again.durable_end) == (0, 400, 400)
    assert (again.end_chain, again.last_epoch, again.storage_id) == (source.chain, 1, storage_id)
    assert payloads_of(again) == source.payloads
    assert again.warnings == []
    assert len(again.segments()) > 2
    again.close()


def test_an_empty_journal_can_be_closed_and_opened(tmp_path: Path) -> None:
    open_journal(tmp_path / "j").close()

    again = open_journal(tmp_path / "j")

    assert (again.end_offset, again.end_chain, again.promised_epoch) == (0, 0, 0)
    assert list(again.read_batches(0)) == []
    again.close()


def test_files_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=50)

    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "j").iterdir()}

    assert set(modes.values()) == {0o600}
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o700
    journal.close()


def test_a_fresh_data_directory_is_small(tmp_path: Path) -> None:
    journal = JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=7)

    taken = sum(path.stat().st_size for path in (tmp_path / "j").iterdir())

    assert taken <= 4 << 20
    journal.close()


def test_records_are_read_by_offset_in_the_order_asked_for(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    wanted = [399, 0, 17, 18, 250, 17]

    records = journal.read_records(wanted)

    assert [row.offset for row, _ in records] == wanted
    assert [payload for _, payload in records] == [source.payloads[offset] for offset in wanted]
    assert journal.read_payloads([123]) == [source.payloads[123]]
    journal.close()


def test_one_record_of_a_very_large_batch_is_read(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"a" * 100_000, b"b" * 100_000, b"c"]), source.batch([b"d"])])

    payloads = journal.read_payloads([1, 2, 3])

    assert payloads == [b"b" * 100_000, b"c", b"d"]
    journal.close()
    again = open_journal(tmp_path / "j")
    assert payloads_of(again) == source.payloads
    again.close()


def test_a_record_above_the_end_is_gone_not_unreadable(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=1)

    with pytest.raises(RecordGone):
        journal.read_payloads([4])

    journal.close()


def test_replay_from_the_middle_starts_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)

    offsets = list(payloads_of(journal, 202))

    assert offsets == list(range(200, 400))
    journal.close()


def test_a_batch_that_does_not_continue_the_chain_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")

    with pytest.raises(AssertionError, match="chain"):
        journal.append([BatchSource(chain=99).batch([b"a"])])
    with pytest.raises(AssertionError, match="base offset"):
        journal.append([BatchSource(end_offset=5).batch([b"a"])])

    assert journal.end_offset == 0
    journal.close()


def test_a_promise_is_kept_across_restarts(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    journal.persist_promise(5)
    journal.close()

    again = open_journal(tmp_path / "j")

    assert again.promised_epoch == 5
    with pytest.raises(AssertionError):
        again.persist_promise(4)
    again.close()


def test_a_directory_is_open_only_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")

    with pytest.raises(DirectoryInUse):
        open_journal(tmp_path / "j")

    journal.close()
    open_journal(tmp_path / "j").close()


def test_an_owner_may_take_the_lock_before_it_opens_the_journal(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    lock = lock_directory(RealDisk(), tmp_path / "j")
    with pytest.raises(DirectoryInUse):
        open_journal(tmp_path / "j")

    journal = open_journal(tmp_path / "j", lock=lock)
    del lock

    with pytest.raises(DirectoryInUse):
        lock_directory(RealDisk(), tmp_path / "j")
    journal.close()
    open_journal(tmp_path / "j").close()


def test_a_directory_of_another_journal_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path / "j").close()

    with pytest.raises(JournalCorrupt, match="journal 7, not journal 8"):
        JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=8, limits=SMALL)


def test_a_torn_write_at_the_end_is_cut(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=3)
    end = journal.segments()[-1].data_bytes + DATA_AT
    durable, chain = source.end_offset, source.chain
    journal.append([source.batch([b"never acknowledged" * 20])])
    del journal
    flip(segment_paths(tmp_path / "j")[-1], end + 200)

    again = open_journal(tmp_path / "j")

    assert (again.end_offset, again.end_chain) == (durable, chain)
    assert "never acknowledged" in again.warnings[0]
    after = BatchSource.behind(again)
    again.append([after.batch([b"next"])])
    again.close()
    assert payloads_of(open_journal(tmp_path / "j"))[durable] == b"next"


@pytest.mark.parametrize("left_bytes", [20, 64, 65, 200, 1_000])
def test_a_file_that_ends_inside_a_batch_was_cut_by_no_crash(tmp_path: Path, left_bytes: int) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=3)
    end = DATA_AT + journal.segments()[-1].data_bytes
    journal.append([source.batch([b"acknowledged" * 100])])
    del journal
    path = segment_paths(tmp_path / "j")[-1]
    os.truncate(path, end + left_bytes)

    with pytest.raises(JournalCorrupt, match="the file ends here, inside the batch at offset 12"):
        open_journal(tmp_path / "j")

    assert path.stat().st_size == end + left_bytes


def test_whole_batches_behind_a_torn_one_of_the_same_write_are_cut_with_it(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=3)
    end = journal.segments()[-1].data_bytes + DATA_AT
    floor = source.end_offset
    journal.append([source.batch([b"a" * 300], floor=floor), source.batch([b"b" * 300], floor=floor)])
    del journal
    flip(segment_paths(tmp_path / "j")[-1], end + 200)

    again = open_journal(tmp_path / "j")

    assert again.end_offset == floor
    again.close()


def test_stale_bytes_of_an_earlier_life_are_not_taken_for_the_next_batch(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=1)
    base, chain = source.end_offset, source.chain
    lost = [source.batch([b"l" * 300]), source.batch([b"m" * 300])]
    written = BatchSource(end_offset=base, chain=chain).batch([b"w" * 300])
    journal.append([written])
    position = DATA_AT + journal.segments()[-1].data_bytes
    del journal
    path = segment_paths(tmp_path / "j")[-1]
    data = bytearray(path.read_bytes())
    data[position : position + len(lost[1].data)] = lost[1].data
    path.write_bytes(data)

    again = open_journal(tmp_path / "j")

    assert (again.end_offset, again.end_chain) == (written.next_offset, written.chain)
    again.close()


def test_damage_that_a_later_batch_knew_to_be_durable_is_not_cut(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=10)
    del journal
    path = segment_paths(tmp_path / "j")[-1]
    flip(path, DATA_AT + 3 * (64 + 4 * 248) + 300)
    before = path.read_bytes()

    with pytest.raises(JournalCorrupt, match=r"offset 12 cannot be read.*Restore|restore"):
        open_journal(tmp_path / "j")

    assert path.read_bytes() == before


def test_damage_below_the_owners_durable_floor_is_not_cut(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=1)
    del journal
    flip(segment_paths(tmp_path / "j")[-1], DATA_AT + 300)

    with pytest.raises(JournalCorrupt, match="from 0 to 4 were durable"):
        open_journal(tmp_path / "j", expected=Expected(durable_floor=4))

    assert open_journal(tmp_path / "j").end_offset == 0


def test_damage_after_a_clean_close_is_never_taken_for_a_torn_write(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=1)
    journal.close()
    flip(segment_paths(tmp_path / "j")[-1], DATA_AT + 300)

    with pytest.raises(JournalCorrupt):
        open_journal(tmp_path / "j")


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_segment_is_noticed(tmp_path: Path, which: int) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=100)
    journal.close()
    segment_paths(tmp_path / "j")[which].unlink()

    with pytest.raises(JournalCorrupt):
        open_journal(tmp_path / "j")


def test_a_lost_identity_is_not_replaced_by_a_new_one(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=1)
    journal.close()
    (tmp_path / "j" / "journal.state").unlink()

    with pytest.raises(JournalCorrupt, match="identity"):
        open_journal(tmp_path / "j")


def test_a_damaged_state_file_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path / "j").close()
    flip(tmp_path / "j" / "journal.state", 40)

    with pytest.raises(JournalCorrupt, match="promised"):
        open_journal(tmp_path / "j")


def test_a_segment_of_another_copy_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        journal = open_journal(tmp_path / name)
        fill(journal, BatchSource.behind(journal), batches=100)
        journal.close()
    first = segment_paths(tmp_path / "a")[1]
    first.write_bytes((tmp_path / "b" / first.name).read_bytes())

    with pytest.raises(JournalCorrupt, match="another copy"):
        open_journal(tmp_path / "a")


def test_bit_rot_is_noticed_when_the_record_is_read(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    flip(segment_paths(tmp_path / "j")[0], DATA_AT + 64 + 4 * 48 + 250)

    with pytest.raises(RecordUnreadable) as noticed:
        journal.read_payloads([0, 1, 2])

    assert noticed.value.offset == 1
    assert not isinstance(noticed.value, RecordGone)
    assert journal.read_payloads([0, 2, 3]) == [source.payloads[offset] for offset in (0, 2, 3)]
    with pytest.raises(JournalCorrupt):
        list(journal.read_batches(0))
    journal.close()


def test_bit_rot_in_a_closed_segment_is_found_at_open_when_everything_is_verified(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=100)
    journal.close()
    flip(segment_paths(tmp_path / "j")[0], DATA_AT + 64 + 4 * 48 + 250)

    with pytest.raises(JournalCorrupt, match="record 1 does not match"):
        open_journal(tmp_path / "j", expected=Expected(verify_all=True))


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:-60] + bytes(60)])
def test_a_closed_segment_without_its_index_is_scanned_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    before = journal.segments()
    journal.close()
    for path in segment_paths(tmp_path / "j")[:-1]:
        path.write_bytes(damage(path.read_bytes()))

    again = open_journal(tmp_path / "j")

    assert again.segments() == before
    assert again.read_payloads([3, 77, 150]) == [source.payloads[offset] for offset in (3, 77, 150)]
    again.close()


def test_segments_know_their_ends_and_times(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=100)

    segments = journal.segments()

    assert [segment.end_offset for segment in segments[:-1]] == [
        segment.base_offset for segment in segments[1:]
    ]
    assert all(segment.first_time_ms == 1000 + segment.base_offset for segment in segments)
    assert all(segment.last_time_ms == 1000 + segment.end_offset - 4 for segment in segments)
    assert [segment.is_closed for segment in segments] == [True] * (len(segments) - 1) + [False]
    journal.close()


def test_compaction_keeps_what_it_is_told_to_keep_and_every_offset(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    first = journal.segments()[0]

    result = journal.compact(0, lambda row: row.offset % 10 == 3)

    live = {offset for offset in source.payloads if offset >= first.end_offset or offset % 10 == 3}
    assert (result.kept_records, result.dropped_records) == (
        len(live) - 400 + first.end_offset,
        400 - len(live),
    )
    assert result.bytes_after < result.bytes_before
    for _ in range(2):
        assert payloads_of(journal) == {offset: source.payloads[offset] for offset in live}
        assert journal.read_payloads(sorted(live)) == [source.payloads[offset] for offset in sorted(live)]
        with pytest.raises(RecordGone):
            journal.read_payloads([4])
        assert journal.segments()[0].end_offset == first.end_offset
        journal.close()
        journal = open_journal(tmp_path / "j", expected=Expected(verify_all=True))
    journal.close()


def test_dead_neighbours_are_merged_into_one_file(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=200)
    bases = [segment.base_offset for segment in journal.segments()]
    assert len(bases) > 4

    journal.compact(bases[1], lambda row: False, last_base_offset=bases[3])

    assert [segment.base_offset for segment in journal.segments()] == [bases[0], bases[1], *bases[4:]]
    assert segment_paths(tmp_path / "j")[1].stat().st_size < 8192
    journal.close()
    again = open_journal(tmp_path / "j")
    assert set(payloads_of(again)) == set(source.payloads) - set(range(bases[1], bases[4]))
    again.close()


def test_a_merge_that_a_crash_cut_short_is_finished_at_open(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=200)
    bases = [segment.base_offset for segment in journal.segments()]
    old = segment_paths(tmp_path / "j")[1]
    content = old.read_bytes()
    journal.compact(bases[0], lambda row: row.offset == 0, last_base_offset=bases[1])
    journal.close()
    old.write_bytes(content)

    again = open_journal(tmp_path / "j")

    assert not old.exists()
    assert again.segments()[0].end_offset == bases[2]
    again.close()


def test_a_damaged_record_nobody_needs_does_not_stop_compaction_but_a_needed_one_does(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    fill(journal, BatchSource.behind(journal), batches=100)
    flip(segment_paths(tmp_path / "j")[0], DATA_AT + 64 + 4 * 48 + 250)

    with pytest.raises(RecordUnreadable, match="record 1 "):
        journal.compact(0, lambda row: True)
    journal.compact(0, lambda row: row.offset != 1)

    assert 1 not in payloads_of(journal)
    assert not list((tmp_path / "j").glob("compaction*"))
    journal.close()


def test_a_reader_inside_a_compacted_segment_is_not_disturbed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    reader = journal.read_batches(0)
    next(reader)

    journal.compact(0, lambda row: False)
    journal.drop_before(journal.segments()[1].base_offset)

    assert sum(header.count for header, _ in reader) == 396
    journal.close()


def test_whole_segments_below_an_offset_are_dropped(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    bases = [segment.base_offset for segment in journal.segments()]

    journal.drop_before(bases[2] - 1)
    assert journal.start_offset == bases[1]
    journal.drop_before(10**9)

    assert journal.start_offset == bases[-1]
    with pytest.raises(RecordGone):
        journal.read_payloads([0])
    journal.close()
    again = open_journal(tmp_path / "j")
    assert again.start_offset == bases[-1]
    assert set(payloads_of(again)) == set(range(bases[-1], 400))
    again.close()


def test_a_tainted_journal_is_copied_to_fresh_files_under_a_new_storage_id(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    storage_id = journal.storage_id
    journal.fail(OSError(5, "Input/output error"))
    with pytest.raises(JournalClosed):
        journal.append([source.batch([b"too late"])])
    journal.close()
    inodes = {path.name: path.stat().st_ino for path in segment_paths(tmp_path / "j")}

    again = open_journal(tmp_path / "j")

    assert again.end_offset == 400
    assert again.storage_id != storage_id
    assert "fsync failed" in again.warnings[0]
    assert not any(inodes[path.name] == path.stat().st_ino for path in segment_paths(tmp_path / "j"))
    after = BatchSource.behind(again)
    fill(again, after, batches=20)
    again.close()
    third = open_journal(tmp_path / "j")
    assert third.warnings == []
    assert payloads_of(third).keys() == set(range(480))
    third.close()


def test_closing_ends_a_compaction_under_way_and_waits_for_it(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    source = BatchSource.behind(journal)
    fill(journal, source, batches=100)
    begun, go_on = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def keep(row: RecordRow) -> bool:
        begun.set()
        go_on.wait(PATIENCE_S)
        return False

    def compact() -> None:
        try:
            journal.compact(0, keep)
        except JournalClosed as error:
            ended.append(error)

    compaction = threading.Thread(target=compact, daemon=True)
    compaction.start()
    begun.wait(PATIENCE_S)
    closing = threading.Thread(target=journal.close, daemon=True)
    closing.start()
    with pytest.raises(DirectoryInUse):
        open_journal(tmp_path / "j")

    while not journal._closing:
        time.sleep(0.001)
    go_on.set()
    closing.join(PATIENCE_S)
    compaction.join(PATIENCE_S)

    assert len(ended) == 1
    again = open_journal(tmp_path / "j")
    assert payloads_of(again) == source.payloads
    again.close()


def test_readers_and_a_compaction_do_not_disturb_each_other(tmp_path: Path) -> None:
    limits = replace(SMALL, open_segments_max=1)
    journal = JournalFiles.open(RealDisk(), tmp_path / "j", journal_id=7, limits=limits)
    source = BatchSource.behind(journal)
    fill(journal, source, batches=200)
    kept = [offset for offset in range(800) if offset % 5 == 0]
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        rng = Random(1)
        try:
            while not done.is_set():
                wanted = rng.sample(kept, 10)
                assert journal.read_payloads(wanted) == [source.payloads[offset] for offset in wanted]
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(3):
        bases = [segment.base_offset for segment in journal.segments() if segment.is_closed]
        for base in bases[1:]:
            journal.compact(base, lambda row: row.offset % 5 == 0)
            journal.release_files()
        if len(bases) > 2:
            journal.compact(bases[0], lambda row: row.offset % 5 == 0, last_base_offset=bases[1])
    done.set()
    for reader in readers:
        reader.join(PATIENCE_S)

    assert failures == []
    journal.close()


def test_an_fsync_that_fails_while_opening_is_not_forgotten_by_the_next_open() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/data", journal_id=1)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"written, then kill -9"])])
    storage_id = journal.storage_id
    del journal
    disk.fail_next_sync(".seg")

    has_failed = False
    try:
        JournalFiles.open(disk, "/data", journal_id=1)
    except OSError:
        has_failed = True
    gc.collect()  # the error's frames hold the directory
    again = JournalFiles.open(disk, "/data", journal_id=1)

    assert has_failed
    assert again.storage_id != storage_id
    assert again.durable_end == 1
    del again
    for seed in range(10):
        after = JournalFiles.open(disk.after_power_cut(Random(seed)), "/data", journal_id=1)
        assert payloads_of(after) == source.payloads


def test_an_fsync_that_fails_while_the_disk_is_full_is_not_forgotten_by_the_next_open() -> None:
    disk = SimDisk()
    limits = replace(SMALL, reserve_segments=1)
    journal = JournalFiles.open(disk, "/data", journal_id=1, limits=limits)
    journal.space.check()
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"only in memory"])])
    storage_id = journal.storage_id
    disk.fail_next_sync(".seg")
    disk.capacity_bytes = 0

    with pytest.raises(OSError, match="Input/output error"):
        journal.sync()
    del journal
    gc.collect()
    disk.capacity_bytes = 1 << 40
    again = JournalFiles.open(disk, "/data", journal_id=1, limits=limits)

    assert again.storage_id != storage_id


def test_a_journal_on_a_full_disk_is_closed_with_all_it_has() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"kept"])])
    disk.capacity_bytes = 0

    journal.close()

    disk.capacity_bytes = 1 << 40
    again = JournalFiles.open(disk, "/j", journal_id=7, limits=SMALL)
    assert again.read_payloads([0]) == [b"kept"]
    again.close()


class ReadsSeen(SimDisk):
    """A disk that notes how much is read, and whether others could change the list of segments meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0
        self.is_locked: Callable[[], bool] = lambda: False
        self.locked_reads = 0

    def read(self, fd: int, length: int, position: int) -> bytes:
        data = super().read(fd, length, position)
        self.bytes_read += len(data)
        self.locked_reads += self.is_locked()
        return data


@pytest.mark.parametrize("unsynced", [0, 3])
def test_where_the_durable_part_ends_is_found_from_the_index_while_nobody_waits(unsynced: int) -> None:
    disk = ReadsSeen()
    limits = JournalLimits(segment_bytes_min=8 << 20, segment_bytes_max=8 << 20, reserve_segments=0)
    journal = JournalFiles.open(disk, "/j", journal_id=7, limits=limits)
    source = BatchSource.behind(journal)
    assert journal.segment_files() == (0, LOG_START, [("00000000000000000000.seg", 4096)])
    journal.append([source.batch([b"x" * 1_000]) for _ in range(3_000)])
    journal.sync()
    (durable,) = [segment.data_bytes for segment in journal.segments()]
    end = Position(journal.end_offset, journal.last_epoch, journal.end_chain)
    journal.append([source.batch([b"x" * 1_000]) for _ in range(unsynced)])
    disk.bytes_read, disk.is_locked = 0, journal._change_lock.locked

    assert journal.segment_files() == (0, end, [("00000000000000000000.seg", 4096 + durable)])
    assert disk.bytes_read < 64 << 10
    assert disk.locked_reads == 0

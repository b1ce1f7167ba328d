"""Power cuts on the real journal code: what was reported durable is there, and nothing that was never written."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from harness.batches import BatchSource, payloads_of
from harness.sim_disk import PowerLost, SimDisk

from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_recovery import Expected
from quaymaster.broker.storage.journal_state import JournalClosed, JournalCorrupt
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.broker.storage.space import JournalLimits

LIMITS = JournalLimits(
    segment_bytes_min=12 << 10,
    segment_bytes_max=24 << 10,
    index_every_bytes=1 << 10,
    reserve_segments=1,
    disk_low_bytes=0,
)
DIRECTORY = "/data/journal"


class History:
    """A journal in use and what its owner may rely on: the model is a dict and two numbers."""

    def __init__(self, disk: SimDisk, rng: Random) -> None:
        self.disk = disk
        self.rng = rng
        self.written: dict[int, bytes] = {}
        self.maybe_gone: set[int] = set()
        self.durable_end = 0
        self.promised = 0
        self.start_floor = 0
        self.counter = 0

    def use(self, steps: int) -> None:
        """Open the journal and do this many random things; PowerLost may end it at any change to the disk."""
        journal = JournalFiles.open(self.disk, DIRECTORY, journal_id=7, limits=LIMITS)
        self.check(journal)
        source = BatchSource.behind(journal)
        for _ in range(steps):
            action = self.rng.random()
            if action < 0.75:
                self.append(journal, source)
            elif action < 0.80:
                journal.persist_promise(journal.promised_epoch + 1)
                self.promised = journal.promised_epoch
                self.durable_end = max(self.durable_end, journal.end_offset)
            elif action < 0.85:
                journal.space.prepare_next()
            elif action < 0.93:
                self.compact(journal)
            elif action < 0.96:
                self.drop(journal)
            else:
                if self.rng.random() < 0.5:  # otherwise as kill -9 does
                    journal.close()
                    self.durable_end = journal.end_offset
                if self.rng.random() < 0.2:
                    raise PowerLost
                del journal
                journal = JournalFiles.open(self.disk, DIRECTORY, journal_id=7, limits=LIMITS)
                self.check(journal)

    def append(self, journal: JournalFiles, source: BatchSource) -> None:
        batches = []
        for _ in range(self.rng.randint(1, 4)):
            payloads = []
            for _ in range(self.rng.randint(1, 5)):
                self.counter += 1
                payloads.append((b"%d " % self.counter) * self.rng.randint(1, 150))
            batches.append(source.batch(payloads, floor=journal.durable_end))
        self.written.update(source.payloads)
        journal.append(batches)
        if self.rng.random() < 0.8:
            self.durable_end = max(self.durable_end, journal.sync())

    def compact(self, journal: JournalFiles) -> None:
        closed = [segment for segment in journal.segments() if segment.is_closed]
        if closed:
            first = self.rng.randrange(len(closed))
            last = min(len(closed) - 1, first + self.rng.randint(0, 2))
            dropped = set(range(closed[first].base_offset, closed[last].end_offset))
            dropped = {offset for offset in dropped if self.rng.random() < 0.7}
            self.maybe_gone |= dropped
            journal.compact(
                closed[first].base_offset,
                lambda row: row.offset not in dropped,
                last_base_offset=closed[last].base_offset,
            )

    def drop(self, journal: JournalFiles) -> None:
        segments = journal.segments()
        if len(segments) > 6:
            offset = segments[2].base_offset
            self.maybe_gone |= set(range(offset))
            journal.drop_before(offset)

    def check(self, journal: JournalFiles) -> None:
        """The recovered journal is a prefix of what was written and holds all that was durable."""
        assert journal.end_offset >= self.durable_end, "records reported durable are gone"
        assert journal.promised_epoch >= self.promised, "a promise is forgotten"
        found = payloads_of(journal)
        assert all(self.written.get(offset) == payload for offset, payload in found.items()), "invented"
        due = {offset for offset in self.written if offset < journal.end_offset} - self.maybe_gone
        assert due <= found.keys(), "records in the middle are gone"
        live = sorted(found)
        assert journal.read_payloads(live) == [found[offset] for offset in live]
        self.written = {
            offset: self.written[offset] for offset in self.written if offset < journal.end_offset
        }
        self.durable_end = journal.end_offset


def run_with_power_cuts(seed: int, *, lying: bool = False, cuts: int = 4) -> int:
    """Use a journal, cut the power, go on with what is left, several times; return how many tails were cut."""
    rng = Random(seed)
    disk = SimDisk()
    disk.is_lying = lying
    history = History(disk, rng)
    torn = 0
    for _ in range(cuts):
        history.disk.lose_power_after(int(rng.expovariate(1 / rng.choice((20, 60, 300)))))
        with suppress(PowerLost):
            history.use(120)
        survivors = [history.disk.after_power_cut(rng) for _ in range(3)]
        for survivor in survivors[1:]:
            other = History(survivor, rng)
            other.__dict__.update({**history.__dict__, "disk": survivor, "written": dict(history.written)})
            journal = JournalFiles.open(survivor, DIRECTORY, journal_id=7, limits=LIMITS)
            torn += any("never acknowledged" in warning for warning in journal.warnings)
            other.check(journal)
            journal.close()
        history.disk = survivors[0]
        history.disk.is_lying = lying
    return torn


@pytest.mark.parametrize("block", range(10))
def test_nothing_durable_is_lost_and_nothing_is_invented_by_a_power_cut(block: int) -> None:
    torn = sum(run_with_power_cuts(seed) for seed in range(block * 10, block * 10 + 10))

    assert torn > 0, "these cuts tore no write, so they showed nothing"


def test_a_disk_that_lies_about_fsync_is_caught() -> None:
    caught = 0

    for seed in range(20):
        try:
            run_with_power_cuts(seed, lying=True)
        except (AssertionError, JournalCorrupt):
            caught += 1

    assert caught >= 15


def test_what_recovery_found_is_durable_before_anyone_is_told() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"written, then kill -9 before the fsync"])])
    del journal

    again = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
    told = again.durable_end

    assert told == 1
    for seed in range(20):
        after = JournalFiles.open(disk.after_power_cut(Random(seed)), DIRECTORY, journal_id=7, limits=LIMITS)
        assert payloads_of(after) == source.payloads


def test_a_failed_fsync_is_not_retried_and_the_next_open_trusts_only_what_verifies() -> None:
    for seed in range(30):
        rng = Random(seed)
        disk = SimDisk()
        journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
        source = BatchSource.behind(journal)
        for _ in range(rng.randint(1, 30)):
            journal.append([source.batch([b"durable" * 50] * 3, floor=journal.durable_end)])
            journal.sync()
        durable = journal.durable_end
        storage_id = journal.storage_id
        disk.fail_next_sync(".seg")
        journal.append([source.batch([b"doubtful" * 400] * 3, floor=durable)])

        with pytest.raises(OSError, match="Input/output error"):
            journal.sync()
        with pytest.raises(JournalClosed):
            journal.sync()
        journal.close()
        if rng.random() < 0.5:
            disk.evict()
        again = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)

        assert again.end_offset in (durable, durable + 3)
        assert again.storage_id != storage_id
        after = JournalFiles.open(disk.after_power_cut(rng), DIRECTORY, journal_id=7, limits=LIMITS)
        assert payloads_of(after) == {offset: source.payloads[offset] for offset in range(again.end_offset)}


def test_a_power_cut_while_a_tainted_journal_is_copied_is_survived() -> None:
    for changes in range(1, 60, 2):
        rng = Random(changes)
        disk = SimDisk()
        journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
        source = BatchSource.behind(journal)
        for _ in range(20):
            journal.append([source.batch([b"durable" * 100] * 3, floor=journal.durable_end)])
            journal.sync()
        journal.fail(OSError(5, "Input/output error"))
        journal.close()
        disk.lose_power_after(changes)

        with suppress(PowerLost):
            JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
        after = JournalFiles.open(disk.after_power_cut(rng), DIRECTORY, journal_id=7, limits=LIMITS)

        assert payloads_of(after) == source.payloads


def test_every_flipped_bit_is_noticed_at_open_or_harmless() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
    source = BatchSource.behind(journal)
    for number in range(60):
        journal.append([source.batch([b"%d" % number * 100, b"", b"y" * 50], floor=journal.durable_end)])
        journal.sync()
    journal.compact(0, lambda row: row.offset % 2 == 0)
    kept = payloads_of(journal)
    journal.close()
    names = [name for name in disk.list_directory(DIRECTORY) if name.endswith((".seg", ".state"))]
    noticed = 0

    for seed in range(150):
        rng = Random(seed)
        rotten = disk.after_power_cut(rng)
        path = f"{DIRECTORY}/{rng.choice(names)}"
        fd = rotten.open(path)
        rotten.flip_bit(path, rng.randrange(rotten.size(fd) * 8))
        try:
            found = payloads_of(
                JournalFiles.open(
                    rotten, DIRECTORY, journal_id=7, limits=LIMITS, expected=Expected(verify_all=True)
                )
            )
        except JournalCorrupt:
            noticed += 1
        else:
            assert found == kept

    assert noticed > 50


def test_a_read_error_at_open_is_not_taken_for_a_torn_write() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
    source = BatchSource.behind(journal)
    journal.append([source.batch([b"a" * 100])])
    journal.sync()
    path = f"{DIRECTORY}/{0:020d}.seg"
    del journal
    disk.fail_reads(path, 4096, 8192)

    with pytest.raises(JournalCorrupt, match="cannot be read"):
        JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)


def test_a_read_error_in_service_names_the_record() -> None:
    disk = SimDisk()
    journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
    source = BatchSource.behind(journal)
    for _ in range(20):
        journal.append([source.batch([b"a" * 500])])
    disk.fail_reads(f"{DIRECTORY}/{0:020d}.seg", 4096, 4200)

    with pytest.raises(RecordUnreadable, match="record 0 "):
        journal.read_payloads([0])

    assert journal.read_payloads([19]) == [b"a" * 500]


def filled_journal(disk: SimDisk) -> tuple[JournalFiles, BatchSource]:
    journal = JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)
    source = BatchSource.behind(journal)
    for _ in range(60):
        journal.append([source.batch([b"a" * 500, b"b" * 500], floor=journal.durable_end)])
        journal.sync()
    return journal, source


def test_a_failed_fsync_of_a_compaction_stops_the_journal_and_loses_nothing() -> None:
    disk = SimDisk()
    journal, source = filled_journal(disk)
    disk.fail_next_sync("compaction")

    with pytest.raises(OSError, match="Input/output"):
        journal.compact(0, lambda row: row.offset % 2 == 0)

    assert journal.failure is not None
    assert payloads_of(journal) == source.payloads
    journal.close()
    assert payloads_of(JournalFiles.open(disk, DIRECTORY, journal_id=7, limits=LIMITS)) == source.payloads


def test_a_segment_that_cannot_be_read_is_not_compacted_and_the_journal_goes_on() -> None:
    disk = SimDisk()
    journal, source = filled_journal(disk)
    disk.fail_reads(f"{DIRECTORY}/{0:020d}.seg", 4096, 4200)

    with pytest.raises(RecordUnreadable):
        journal.compact(0, lambda row: False)

    assert journal.failure is None
    journal.append([source.batch([b"more"])])
    assert journal.sync() == source.end_offset


def test_a_full_disk_does_not_stop_the_journal_when_a_compaction_finds_no_room() -> None:
    disk = SimDisk()
    journal, source = filled_journal(disk)
    disk.capacity_bytes = disk.capacity_bytes - disk.free_bytes(DIRECTORY)

    with pytest.raises(OSError, match="No space"):
        journal.compact(0, lambda row: True)

    assert journal.failure is None
    assert payloads_of(journal) == source.payloads

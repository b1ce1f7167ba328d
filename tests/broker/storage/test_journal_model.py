"""The journal against a small model: the records as a dict, what is durable, what may have been compacted away."""

from __future__ import annotations

from random import Random

import pytest
from harness.batches import BatchSource, payloads_of
from harness.sim_disk import SimDisk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.segments import RecordGone
from quaymaster.broker.storage.space import JournalLimits

LIMITS = JournalLimits(
    segment_bytes_min=10 << 10,
    segment_bytes_max=20 << 10,
    index_every_bytes=1 << 10,
    reserve_segments=1,
    disk_low_bytes=0,
    group_bytes_max=4 << 10,
    open_segments_max=2,
)


class JournalAgainstADict(RuleBasedStateMachine):
    """One thread, every operation, restarts of three kinds."""

    @initialize()
    def format(self) -> None:
        self.disk = SimDisk()
        self.records: dict[int, bytes] = {}
        self.gone: set[int] = set()
        self.end = 0
        self.durable = 0
        self.promised = 0
        self.counter = 0
        self.open()

    def open(self) -> None:
        self.journal = JournalFiles.open(self.disk, "/j", journal_id=7, limits=LIMITS)
        self.source = BatchSource.behind(self.journal)

    @rule(batches=st.lists(st.lists(st.integers(0, 2500), min_size=1, max_size=6), min_size=1, max_size=4))
    def append(self, batches: list[list[int]]) -> None:
        made = []
        for sizes in batches:
            payloads = []
            for size in sizes:
                self.counter += 1
                payloads.append((b"%d" % self.counter).ljust(size, b"."))
            made.append(self.source.batch(payloads, floor=self.journal.durable_end))
        self.journal.append(made)
        self.records.update(self.source.payloads)
        self.end = self.source.end_offset

    @rule()
    def sync(self) -> None:
        self.durable = self.journal.sync()
        assert self.durable == self.end

    @rule(step=st.integers(0, 3))
    def promise(self, step: int) -> None:
        self.promised += step
        self.journal.persist_promise(self.promised)
        self.durable = self.end

    @rule()
    def prepare(self) -> None:
        assert self.journal.space.prepare_next()
        self.journal.space.check()
        self.journal.persist_floor_if_due()
        self.journal.release_files()

    @rule(seed=st.integers(0, 1 << 32))
    def read(self, seed: int) -> None:
        rng = Random(seed)
        live = sorted(self.records.keys() - self.gone)
        wanted = rng.choices(live, k=rng.randint(1, 20)) if live else []
        assert self.journal.read_payloads(wanted) == [self.records[offset] for offset in wanted]
        assert [row.offset for row, _ in self.journal.read_records(wanted)] == wanted

    @precondition(lambda self: self.gone)
    @rule(seed=st.integers(0, 1 << 32))
    def read_what_is_gone(self, seed: int) -> None:
        offset = Random(seed).choice(sorted(self.gone))
        with pytest.raises(RecordGone):
            self.journal.read_payloads([offset])

    @rule(seed=st.integers(0, 1 << 32))
    def compact(self, seed: int) -> None:
        rng = Random(seed)
        closed = [segment for segment in self.journal.segments() if segment.is_closed]
        if not closed:
            return
        first = rng.randrange(len(closed))
        last = min(len(closed) - 1, first + rng.randint(0, 2))
        drop = {
            offset
            for offset in range(closed[first].base_offset, closed[last].end_offset)
            if rng.random() < rng.choice((0.3, 0.9, 1.0))
        }
        result = self.journal.compact(
            closed[first].base_offset,
            lambda row: row.offset not in drop,
            last_base_offset=closed[last].base_offset,
        )
        assert result.dropped_records == len(drop - self.gone)
        self.gone |= drop

    @rule(seed=st.integers(0, 1 << 32))
    def drop(self, seed: int) -> None:
        offset = Random(seed).choice([segment.base_offset for segment in self.journal.segments()])
        self.journal.drop_before(offset)
        assert self.journal.start_offset == offset
        self.gone |= set(range(offset))

    @rule()
    def close_and_reopen(self) -> None:
        self.journal.close()
        self.open()
        self.durable = self.end

    @rule()
    def kill_and_reopen(self) -> None:
        del self.journal
        self.open()
        self.durable = self.end

    @rule(seed=st.integers(0, 1 << 32))
    def lose_power_and_reopen(self, seed: int) -> None:
        self.disk = self.disk.after_power_cut(Random(seed))
        self.open()
        assert self.durable <= self.journal.end_offset <= self.end
        self.end = self.durable = self.journal.end_offset
        self.records = {offset: data for offset, data in self.records.items() if offset < self.end}

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert self.journal.end_offset == self.end
        assert self.journal.promised_epoch == self.promised
        start = self.journal.start_offset
        found = payloads_of(self.journal, start)
        assert found == {offset: data for offset, data in self.records.items() if offset not in self.gone}
        segments = self.journal.segments()
        assert segments[0].base_offset == start
        assert segments[-1].end_offset == self.end


TestJournalAgainstADict = JournalAgainstADict.TestCase
TestJournalAgainstADict.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)

"""Where each message lies: chunks, cache and snapshot give back what was put in."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

import pytest
from harness.steps import calls_of
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.structures.orders import index as index_module
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.index import (
    CHUNK_ENTRIES,
    IndexEntry,
    IndexRebuild,
    MemoryChunks,
    NoRoomForChunk,
    ScatteredRebuild,
    SentRun,
    SequenceIndex,
)
from quaymaster.core.structures.sequences import SequenceSet

TAG = b"1/0"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "CHUNK_ENTRIES", 4)
    monkeypatch.setattr(index_module, "TAIL_ENTRIES_MAX", 8)
    monkeypatch.setattr(index_module, "CHUNKS_CACHED", 2)


class CountingChunks(MemoryChunks):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.freed: list[int] = []

    def read(self, number: int, tag: bytes) -> bytes:
        self.reads += 1
        return super().read(number, tag)

    def free(self, number: int) -> None:
        self.freed.append(number)
        super().free(number)


def filled(count: int, keeper: MemoryChunks | None = None) -> SequenceIndex:
    index = SequenceIndex(keeper or MemoryChunks(), TAG)
    for number in range(count):
        index.append(10 + number, 1_000 + number, 0, number % 3)
    return index


@pytest.mark.usefixtures("small")
def test_every_entry_is_found_in_chunks_and_tail_before_and_after_a_snapshot() -> None:
    keeper = MemoryChunks()
    index = filled(50, keeper)

    rebuilt = SequenceIndex.from_bytes(index.to_bytes(), keeper, TAG)

    for found in (index, rebuilt):
        assert found.next_sequence == 51
        for number in [*range(50), 3, 40, 7]:
            sequence = number + 1
            assert found.entry(sequence) == IndexEntry(
                10 + number, 1_000 + number, 1_000 + number, number % 3
            )
            assert found.sent_ms(sequence) == found.due_ms(sequence) == 1_000 + number
            assert found.group(sequence) == number % 3
            assert found.offset_and_sent_ms(sequence) == (10 + number, 1_000 + number)
        assert [offset for run in found.offsets(1, 51) for offset in run] == list(range(10, 60))
        assert [offset for run in found.offsets(45, 99) for offset in run] == list(range(54, 60))
    assert rebuilt.chunk_numbers() == index.chunk_numbers()
    assert rebuilt.to_bytes() == index.to_bytes()


@pytest.mark.parametrize(
    ("sent_ms", "delay_ms", "due_ms"),
    [
        (1_000, 0, 1_000),
        (1_010, 0, 1_010),
        (1_010, 1_000, 2_050),  # the queue's delay: whole slots, up to the slot's end
        (1_000, 900_000, 901_000),
        (1_010, 140, 1_150),  # a delay of its own ends at a slot's end
        (1_049, 1, 1_050),
    ],
)
def test_delay_ends_at_the_end_of_its_slot(sent_ms: int, delay_ms: int, due_ms: int) -> None:
    index = SequenceIndex(MemoryChunks(), TAG)
    index.append(0, sent_ms, delay_ms, 0)

    # 1 ms into a slot's end is below one slot: such a delay is kept by the partition's timers, not here.
    expected = sent_ms if 0 < delay_ms < 50 else due_ms
    assert index.entry(1).due_ms == index.due_ms(1) == expected


@pytest.mark.usefixtures("small")
def test_groups_may_begin_in_the_middle_of_a_chunk() -> None:
    index = SequenceIndex(MemoryChunks(), TAG)
    for group in (0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0):
        index.append(1, 1, 0, group)

    assert [index.group(sequence) for sequence in range(1, 13)] == [0, 0, 7, *[0] * 9]
    assert [index.entry(sequence).group for sequence in range(1, 13)] == [0, 0, 7, *[0] * 9]


@pytest.mark.usefixtures("small")
@given(steps=st.lists(st.one_of(st.just(0), st.integers(1, 12)), max_size=60))
def test_dropping_what_is_deleted_never_touches_what_is_not(steps: list[int]) -> None:
    keeper = CountingChunks()
    index, head, end = SequenceIndex(keeper, TAG), 1, 1

    for step in steps:
        if step:
            for _ in range(step):
                index.append(end, 1_000 + end, 0, end % 2)
                end += 1
        else:
            head = min(end, head + 5)
            index.drop_below(head)
        assert index.next_sequence == end
        for sequence in range(head, end):
            assert index.entry(sequence).offset == sequence
            assert index.group(sequence) == sequence % 2
        assert set(index.chunk_numbers()).isdisjoint(keeper.freed)
        index = SequenceIndex.from_bytes(index.to_bytes(), keeper, TAG)
    index.drop_below(end)
    assert index.chunk_numbers() == []
    assert len(index.to_bytes()) < 100


@pytest.mark.usefixtures("small")
def test_entry_of_a_message_that_was_dropped_is_a_bug() -> None:
    index = filled(20)
    index.drop_below(20)

    with pytest.raises(AssertionError, match="sequence 3 has no index entry"):
        index.entry(3)
    with pytest.raises(AssertionError, match="sequence 1 has no index entry"):
        SequenceIndex(MemoryChunks(), TAG, first=5).sent_ms(1)


@pytest.mark.usefixtures("small")
def test_first_message_sent_after_a_time_is_found() -> None:
    index = filled(30)

    assert index.first_sent_after(1, 31, 999) == 1
    assert index.first_sent_after(1, 31, 1_000) == 2
    assert index.first_sent_after(5, 31, 1_012) == 14
    assert index.first_sent_after(5, 31, 5_000) == 31
    assert index.first_sent_after(31, 31, 0) == 31


@pytest.mark.usefixtures("small")
def test_emptied_index_gives_its_chunks_back_and_goes_on() -> None:
    keeper = CountingChunks()
    index = filled(20, keeper)
    numbers = index.chunk_numbers()

    index.clear()
    index.append(5, 6, 0, 0)

    assert keeper.freed == numbers
    assert index.chunk_numbers() == []
    assert index.entry(21).offset == 5


def test_reading_along_loads_each_chunk_once() -> None:
    keeper = CountingChunks()
    index = filled(20 * CHUNK_ENTRIES, keeper)

    for sequence in range(1, 20 * CHUNK_ENTRIES):
        index.sent_ms(sequence)

    assert keeper.reads <= 20
    assert len(index._cache) == index_module.CHUNKS_CACHED


@given(
    st.lists(st.tuples(st.sampled_from([7, 8, 9]), st.integers(1, 70)), min_size=1, max_size=6),
    st.integers(0, 200),
)
def test_end_of_a_run_is_where_another_group_begins(runs: list[tuple[int, int]], start: int) -> None:
    index = SequenceIndex(MemoryChunks(), b"t")
    groups = [group for group, length in runs for _ in range(length)]
    for at, group in enumerate(groups):
        index.append(at, 1_000, 0, group)
    start = min(start, len(groups) - 1)
    group = groups[start]

    end = index.end_of_group_run(1 + start, 1 + len(groups), group) - 1

    assert start < end
    assert set(groups[start:end]) == {group}
    assert end == len(groups) or groups[end] != group
    assert index.end_of_group_run(1 + start, 1 + start, group) == 1 + start
    assert index.end_of_group_run(1 + start, 2 + start, group + 1) == 1 + start


@pytest.mark.usefixtures("small")
def test_run_ends_with_its_chunk_at_the_latest() -> None:
    index = SequenceIndex(MemoryChunks(), TAG)
    for number in range(15):
        index.append(number, 1_000, 0, 7)

    assert [index.end_of_group_run(start, 16, 7) for start in (1, 3, 5, 8, 9)] == [5, 5, 9, 9, 16]


class Lost(Exception):
    pass


class LosingChunks(CountingChunks):
    def __init__(self) -> None:
        super().__init__()
        self.lost: set[int] = set()

    def read(self, number: int, tag: bytes) -> bytes:
        if number in self.lost:
            raise Lost
        return super().read(number, tag)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("has_groups", [True, False])
def test_lost_chunk_is_made_anew_from_the_records(has_groups: bool) -> None:
    keeper = LosingChunks()
    index = SequenceIndex(keeper, TAG)
    for number in range(20):
        index.append(number, 1_010, 1_000, number if has_groups else 0)
    entries = {sequence: index.entry(sequence) for sequence in range(1, 21)}
    keeper.lost = set(index.chunk_numbers()[1:3])
    index._cache.clear()

    firsts = index.lost_chunks(Lost)
    rebuild = IndexRebuild(index, firsts)
    for sequence, entry in entries.items():
        if sequence != 6 and rebuild.wants(sequence):
            rebuild.fill(sequence, entry)
    rebuild.finish()

    assert firsts == [5, 9]
    assert index.lost_chunks(Lost) == []
    assert all(index.entry(sequence) == entries[sequence] for sequence in entries if sequence != 6)
    assert index.entry(6) == IndexEntry(0, 1_010, 1_010, 0)


class FullChunks(LosingChunks):
    is_full = False

    def write(self, tag: bytes, data: bytes) -> int | None:  # type: ignore[override]  # a keeper may be full
        return None if self.is_full else super().write(tag, data)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("has_groups", [True, False])
def test_entries_that_find_no_room_stay_in_memory_until_there_is_some(has_groups: bool) -> None:
    keeper = FullChunks()
    index = SequenceIndex(keeper, TAG)
    keeper.is_full = True
    for number in range(20):
        index.append(number, 1_010, 0, number if has_groups else 0)
    entries = {sequence: index.entry(sequence) for sequence in range(1, 21)}
    assert index.chunk_numbers() == []

    again = SequenceIndex.from_bytes(index.to_bytes(), keeper, TAG)
    keeper.is_full = False
    for number in range(20, 26):
        again.append(number, 1_010, 0, number if has_groups else 0)

    assert len(again.chunk_numbers()) >= 3
    assert {sequence: again.entry(sequence) for sequence in range(1, 21)} == entries
    assert [again.entry(sequence).offset for sequence in range(1, 27)] == list(range(26))


@pytest.mark.usefixtures("small")
def test_a_lost_chunk_that_finds_no_room_stays_lost() -> None:
    keeper = FullChunks()
    index = SequenceIndex(keeper, TAG)
    for number in range(20):
        index.append(number, 1_010, 0, 0)
    numbers = index.chunk_numbers()
    keeper.is_full = True

    with pytest.raises(NoRoomForChunk):
        IndexRebuild(index, [1]).finish()

    assert index.chunk_numbers() == numbers


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("has_groups", [True, False])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_run_of_entries_is_what_its_entries_are_one_by_one(has_groups: bool, has_room: bool) -> None:
    one_by_one, runs = SequenceIndex(MemoryChunks(), TAG), SequenceIndex(keeper := FullChunks(), TAG)
    keeper.is_full = not has_room
    for each in (one_by_one, runs):
        each.append(5, 990, 0, 7 if has_groups else 0)

    for offset, count, groups in ((10, 2, None), (20, 17, range(17)), (50, 1, None)):
        of_each = array("Q", groups) if groups is not None and has_groups else None
        runs.append_run(SentRun(offset, count, 1_010, 100, of_each))
        for number in range(count):
            one_by_one.append(offset + number, 1_010, 100, of_each[number] if of_each is not None else 0)

    assert runs.next_sequence == one_by_one.next_sequence == 22
    assert [runs.entry(at) for at in range(1, 22)] == [one_by_one.entry(at) for at in range(1, 22)]
    for start, stop in ((1, 22), (5, 6), (6, 18), (21, 22), (3, 3)):
        expected = {one_by_one.group(at) for at in range(start, stop)} - {0}
        assert runs.groups_in(start, stop) == expected
    assert bool(runs.chunk_numbers()) is has_room


@pytest.mark.usefixtures("small")
def test_lost_chunks_are_made_anew_from_records_in_any_order() -> None:
    keeper = LosingChunks()
    index = SequenceIndex(keeper, TAG)
    for number in range(20):
        index.append(100 + number, 1_010 + number, 0, number)
    entries = {sequence: index.entry(sequence) for sequence in range(1, 17)}
    keeper.lost = set(index.chunk_numbers()[1:3])
    index._cache.clear()

    rebuild = ScatteredRebuild(index, index.lost_chunks(Lost))
    wanted = [sequence for sequence in reversed(range(21)) if rebuild.wants(sequence)]
    for sequence in wanted:
        if sequence != 6:
            rebuild.fill(sequence, entries[sequence])
    rebuild.finish()

    assert wanted == list(range(12, 4, -1))
    assert index.lost_chunks(Lost) == []
    assert all(index.entry(sequence) == entries[sequence] for sequence in entries if sequence != 6)


def rebuilt_without(gone: set[int], count: int = 24, lost: Sequence[int] = (0, 1, 2, 3)) -> SequenceIndex:
    """Return an index of four-entry chunks of which some are made anew without what is gone."""
    keeper = LosingChunks()
    index = SequenceIndex(keeper, TAG)
    for sequence in range(1, count + 1):
        index.append(100 + sequence, 1_000 * sequence, 0, 0)
    keeper.lost = {index.chunk_numbers()[at] for at in lost}
    index._cache.clear()
    rebuild = IndexRebuild(index, index.lost_chunks(Lost))
    for sequence in range(1, count + 1):
        if sequence not in gone and rebuild.wants(sequence):
            rebuild.fill(sequence, IndexEntry(100 + sequence, 1_000 * sequence, 1_000 * sequence, 0))
    rebuild.finish()
    return index


@pytest.mark.usefixtures("small")
@given(gone=st.sets(st.integers(1, 24)), lost=st.sets(st.integers(0, 3), min_size=1))
def test_times_never_fall_in_chunks_made_anew_whatever_is_gone(gone: set[int], lost: set[int]) -> None:
    index = rebuilt_without(gone, lost=sorted(lost))

    times = [index.sent_ms(sequence) for sequence in range(1, 25)]
    assert times == sorted(times)
    for sequence in range(1, 25):
        chunk = (sequence - 1) // 4
        if sequence not in gone:
            assert index.offset_and_sent_ms(sequence) == (100 + sequence, 1_000 * sequence)
        elif chunk in lost:
            before = [
                other for other in range(1, sequence) if other not in gone or (other - 1) // 4 not in lost
            ]
            assert index.entry(sequence).offset == 0
            assert not before or times[sequence - 1] == 1_000 * before[-1]


@pytest.mark.usefixtures("small")
def test_what_is_gone_in_front_of_all_records_is_as_old_as_the_first_of_them() -> None:
    index = rebuilt_without({1, 2})

    assert [index.sent_ms(sequence) for sequence in range(1, 5)] == [3_000, 3_000, 3_000, 4_000]


@pytest.mark.usefixtures("small")
def test_twice_the_lost_messages_take_twice_the_steps_and_no_more_memory() -> None:
    def lost_index(count: int) -> tuple[SequenceIndex, list[int]]:
        keeper = LosingChunks()
        index = SequenceIndex(keeper, TAG)
        for sequence in range(1, count + 1):
            index.append(sequence, 1_000, 0, 1)
        keeper.lost = set(index.chunk_numbers())
        index._cache.clear()
        return index, index.lost_chunks(Lost)

    def make_anew(index: SequenceIndex, firsts: list[int], count: int) -> None:
        rebuild = IndexRebuild(index, firsts)
        for sequence in range(1, count + 1, 3):
            if rebuild.wants(sequence):
                rebuild.fill(sequence, IndexEntry(sequence, 1_000, 1_000, 1))
            assert len(rebuild._columns.offsets) <= index_module.CHUNK_ENTRIES
        rebuild.finish()

    steps = []
    for count in (400, 800, 1_600):
        index, firsts = lost_index(count)
        steps.append(calls_of(partial(make_anew, index, firsts, count)))
        assert index.lost_chunks(Lost) == []

    assert steps[1] < 2.2 * steps[0]
    assert steps[2] < 2.2 * steps[1]


@pytest.mark.usefixtures("small")
def test_a_message_without_a_record_gets_the_group_that_the_snapshot_knows_it_in() -> None:
    keeper = LosingChunks()
    index = SequenceIndex(keeper, TAG)
    for number in range(20):
        index.append(number, 1_010, 0, 0)
    order = FIFOOrder(index, 0)
    order.load_groups([(77, SequenceSet([2]).to_bytes(), []), (88, SequenceSet().to_bytes(), [3])])

    IndexRebuild(index, [1], order.known_groups()).finish()

    assert [index.group(sequence) for sequence in range(1, 5)] == [0, 77, 88, 0]

"""Offsets, limits and tasks: the arithmetic of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_quaymaster.errors import AnswerIsWrong
from pyspark_quaymaster.offsets import (
    Range,
    TaskLimits,
    parse_offsets,
    plan_tasks,
    render_offsets,
    share,
    share_bytes,
)
from pyspark_quaymaster.sizes import SAMPLES_MAX, choose_samples, fill_sizes

ROWS = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 10_000), max_size=8)


def test_offsets_come_back_as_they_were_kept_and_in_one_order() -> None:
    kept = render_offsets({"9/1": 5, "10/0": 7})

    assert list(kept) == ["version", "10/0", "9/1"]
    assert parse_offsets(kept) == {"9/1": 5, "10/0": 7}


@pytest.mark.parametrize(
    "kept", [{}, {"version": 2, "1/0": 0}, {"version": 1, "1": 0}, {"version": 1, "1/0": "7"}]
)
def test_offsets_of_a_newer_connector_or_of_another_source_are_refused(kept: dict[str, object]) -> None:
    with pytest.raises(AnswerIsWrong, match="the checkpoint has"):
        parse_offsets(kept)


@given(ROWS, st.integers(1, 20_000), st.integers(0, 100))
def test_a_share_is_the_limit_or_all_there_is(available: dict[str, int], limit: int, turn: int) -> None:
    taken = share(available, limit, turn)

    assert sum(taken.values()) == min(limit, sum(available.values()))
    assert all(0 <= taken[key] <= available[key] for key in available)


@given(ROWS, st.integers(1, 20_000))
def test_a_partition_that_gets_less_than_it_has_gets_no_less_than_any_other(
    available: dict[str, int], limit: int
) -> None:
    taken = share(available, limit)

    cut_short = [taken[key] for key in available if taken[key] < available[key]]
    if cut_short and limit >= sum(rows > 0 for rows in available.values()):
        assert min(cut_short) >= max(taken.values()) - 1


def test_everyones_turn_comes_when_there_are_fewer_rows_than_partitions() -> None:
    waiting = {"a": 1_000, "b": 1, "c": 1_000}

    order = [key for turn in range(3) for key, rows in share(waiting, 1, turn).items() if rows]

    assert sorted(order) == ["a", "b", "c"]


@given(ROWS, st.integers(1, 1_000_000), st.sampled_from([1.0, 17.5, 300.0]))
def test_bytes_are_kept_to_but_for_a_first_row(
    available: dict[str, int], limit: int, row_bytes: float
) -> None:
    taken = share_bytes(available, dict.fromkeys(available, row_bytes), limit)

    assert all(0 <= taken[key] <= available[key] for key in available)
    rows = sum(taken.values())
    assert rows * row_bytes <= limit or rows == 1
    assert rows > 0 or not any(available.values())


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5_000)), max_size=6)
SIZES = st.lists(st.floats(1, 1 << 20), min_size=6, max_size=6)


def ranges_of(pairs: list[tuple[int, int]]) -> list[Range]:
    return [Range("url", "1", number, first, first + rows) for number, (first, rows) in enumerate(pairs)]


@given(
    RANGES,
    st.none() | SIZES,
    st.integers(1, 8),
    st.integers(0, 8),
    st.integers(0, 30),
    st.none() | st.integers(1, 999),
    st.integers(1, 3_000),
    st.integers(1, 1 << 30),
)
def test_tasks_have_every_row_once_and_in_order(
    pairs: list[tuple[int, int]],
    sizes: list[float] | None,
    tasks_min: int,
    more: int,
    most: int,
    rows_max: int | None,
    rows_good: int,
    bytes_max: int,
) -> None:
    ranges = ranges_of(pairs)
    total = sum(rows for _, rows in pairs)
    row_bytes = {} if sizes is None else {one.key: sizes[one.partition] for one in ranges}
    limits = TaskLimits(tasks_min, tasks_min + more, tasks_min + more + most, rows_max, bytes_max, rows_good)

    tasks = plan_tasks(ranges, row_bytes, limits)

    planned = [(one.partition, n) for task in tasks for one in task for n in range(one.first, one.end)]
    assert planned == [(one.partition, n) for one in ranges for n in range(one.first, one.end)]
    rows = [sum(one.rows for one in task) for task in tasks]
    assert all(rows)
    assert len(tasks) >= min(tasks_min, total)
    assert len(tasks) <= limits.tasks_max + (0 if rows_max is None else total // rows_max)
    if rows_max is not None:
        assert max(rows, default=0) <= rows_max


@given(RANGES, SIZES, st.integers(1, 1 << 24))
def test_a_task_has_at_most_its_bytes_and_a_row(
    pairs: list[tuple[int, int]], sizes: list[float], bytes_max: int
) -> None:
    ranges = ranges_of(pairs)
    row_bytes = {one.key: float(int(sizes[one.partition])) for one in ranges}

    tasks = plan_tasks(ranges, row_bytes, TaskLimits(tasks_max=1 << 40, bytes_max=bytes_max))

    largest_row = max(row_bytes.values(), default=0.0)
    for task in tasks:
        assert sum(one.rows * row_bytes[one.key] for one in task) <= bytes_max + largest_row


def test_small_ranges_share_a_task_and_large_ones_are_cut() -> None:
    small = [Range("url", "1", number, 0, 10) for number in range(8)]
    large = [Range("url", "2", 0, 0, 1_000_000)]

    packed = plan_tasks(small, {}, TaskLimits(tasks_usual=4))
    cut = plan_tasks(large, {}, TaskLimits(tasks_usual=4))

    assert len(packed) == 1
    assert [task[0].rows for task in cut] == [250_000] * 4


@pytest.mark.parametrize(
    ("rows", "row_bytes", "tasks"),
    [
        (30, 100_000.0, 1),  # 3 MB: a task costs more than it saves
        (60, 100_000.0, 4),  # 6 MB: all cores, though rows are few
        (3_000, 100_000.0, 9),  # 300 MB: more tasks than cores, none of more than 32 MiB
        (10_001, 8.0, 2),  # many small rows: by their number
        (60, None, 1),  # of unknown size: by their number
    ],
)
def test_few_large_rows_are_read_by_all_cores(rows: int, row_bytes: float | None, tasks: int) -> None:
    ranges = [Range("url", "1", 0, 0, rows)]

    planned = plan_tasks(ranges, {} if row_bytes is None else {"1/0": row_bytes}, TaskLimits(tasks_usual=4))

    assert len(planned) == tasks
    sizes = [task[0].rows for task in planned]
    assert max(sizes) - min(sizes) <= 1


def test_a_partition_of_large_rows_gets_more_tasks_than_one_of_as_many_small_ones() -> None:
    ranges = [Range("url", "1", 0, 0, 1_000), Range("url", "2", 0, 0, 1_000)]

    tasks = plan_tasks(ranges, {"1/0": 9_000.0, "2/0": 1_000.0}, TaskLimits(tasks_usual=10))

    assert [[(one.queue_id, one.rows) for one in task] for task in tasks] == [
        *[[("1", rows)] for rows in (112, 111, 111, 111, 111, 111, 111, 111, 111)],
        [("2", 1_000)],
    ]


def test_as_many_tasks_as_are_asked_for_are_made_though_one_row_is_larger_than_all_others() -> None:
    ranges = [Range("url", "1", 0, 0, 1), Range("url", "2", 0, 0, 3)]

    tasks = plan_tasks(ranges, {"1/0": 1_000_000.0, "2/0": 1.0}, TaskLimits(tasks_min=4, tasks_usual=4))

    assert [sum(one.rows for one in task) for task in tasks] == [1, 1, 1, 1]


def test_samples_are_of_all_queues_and_of_the_partitions_with_most_rows() -> None:
    wide = [Range("url", "1", number, 0, 10 + number) for number in range(200)]
    others = [Range("url", "2", 0, 0, 1), Range("url", "3", 0, 5, 5)]

    chosen = choose_samples([*wide, *others])

    assert len(chosen) == SAMPLES_MAX
    assert [one.key for one in chosen[:3]] == ["1/199", "2/0", "1/198"]


def test_a_partition_that_was_not_looked_at_counts_as_the_mean_of_its_queue_or_of_all() -> None:
    ranges = [Range("url", "1", number, 0, 1) for number in range(3)] + [Range("url", "2", 0, 0, 1)]

    assert fill_sizes(ranges, {"1/0": 10.0, "1/1": 30.0}) == {"1/0": 10, "1/1": 30, "1/2": 20, "2/0": 20}
    assert fill_sizes(ranges, {}) == {}

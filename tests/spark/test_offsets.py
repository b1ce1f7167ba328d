"""Offsets, limits and tasks: the arithmetic of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_quaymaster.errors import AnswerIsWrong
from pyspark_quaymaster.offsets import Range, parse_offsets, plan_tasks, render_offsets, share, share_bytes

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


@given(RANGES, st.integers(1, 8), st.integers(0, 8), st.none() | st.integers(1, 999), st.integers(1, 3_000))
def test_tasks_have_every_row_once_and_in_order(
    pairs: list[tuple[int, int]], tasks_min: int, more: int, task_rows_max: int | None, good: int
) -> None:
    ranges = [Range("url", "1", number, first, first + rows) for number, (first, rows) in enumerate(pairs)]
    total = sum(rows for _, rows in pairs)

    tasks = plan_tasks(
        ranges,
        tasks_min=tasks_min,
        tasks_max=tasks_min + more,
        task_rows_max=task_rows_max,
        task_rows_good=good,
    )

    planned = [(one.partition, n) for task in tasks for one in task for n in range(one.first, one.end)]
    assert planned == [(one.partition, n) for one in ranges for n in range(one.first, one.end)]
    sizes = [sum(one.rows for one in task) for task in tasks]
    assert all(sizes)
    if task_rows_max is not None:
        assert max(sizes, default=0) <= task_rows_max
    else:
        assert len(tasks) <= tasks_min + more
        # Rounding up may save a task where rows are few.
        assert len(tasks) >= min(tasks_min, 2, total)


def test_small_ranges_share_a_task_and_large_ones_are_cut() -> None:
    small = [Range("url", "1", number, 0, 10) for number in range(8)]
    large = [Range("url", "2", 0, 0, 1_000_000)]

    packed = plan_tasks(small, tasks_min=1, tasks_max=4, task_rows_max=None, task_rows_good=10_000)
    cut = plan_tasks(large, tasks_min=1, tasks_max=4, task_rows_max=None, task_rows_good=10_000)

    assert len(packed) == 1
    assert [task[0].rows for task in cut] == [250_000] * 4

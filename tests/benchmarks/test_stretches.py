"""Stretches of a key: each value in one, its rows all in that one's files, whatever the files are like."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stretches import RowGroup, Stretch, cut, literal, read_row_groups

PARTS = st.lists(st.lists(st.integers(-20, 20), min_size=1, max_size=6), min_size=1, max_size=12)
"""The keys in each row group."""


def has(stretch: Stretch, value: int) -> bool:
    return (stretch.low is None or value >= stretch.low) and (stretch.high is None or value < stretch.high)


def groups_of(parts: list[list[int]]) -> list[RowGroup]:
    """Two row groups to a file."""
    return [
        RowGroup(f"{number // 2}.parquet", min(keys), max(keys), len(keys))
        for number, keys in enumerate(parts)
    ]


@given(PARTS, st.integers(1, 30))
def test_every_value_is_in_one_stretch_and_all_its_rows_in_that_ones_files(
    parts: list[list[int]], rows_min: int
) -> None:
    groups = groups_of(parts)

    stretches = cut(groups, rows_min)

    for group, keys in zip(groups, parts, strict=True):
        for value in keys:
            (owner,) = [stretch for stretch in stretches if has(stretch, value)]
            assert group.path in owner.paths


@given(PARTS, st.integers(1, 30))
def test_a_stretch_names_a_file_once_and_no_file_that_has_nothing_for_it(
    parts: list[list[int]], rows_min: int
) -> None:
    groups = groups_of(parts)

    stretches = cut(groups, rows_min)

    for stretch in stretches:
        assert len(set(stretch.paths)) == len(stretch.paths)
        for path in stretch.paths:
            spans = [(group.low, group.high) for group in groups if group.path == path]
            assert any(has(stretch, value) for low, high in spans for value in range(low, high + 1))


def test_keys_in_order_are_cut_into_stretches_of_their_own_files() -> None:
    groups = [RowGroup(f"{number // 2}", number * 10, number * 10 + 9, 10) for number in range(6)]

    stretches = cut(groups, 20)

    assert stretches == [
        Stretch(None, 20, ("0",)),
        Stretch(20, 40, ("1",)),
        Stretch(40, None, ("2",)),
    ]


def test_a_value_with_more_rows_than_a_stretch_is_not_cut() -> None:
    groups = [RowGroup(f"{number}", 7, 7, 10) for number in range(5)]

    assert cut(groups, 20) == [Stretch(None, None, ("0", "1", "2", "3", "4"))]


def test_conditions_name_only_the_bounds_that_there_are() -> None:
    assert Stretch(None, None, ()).condition("hour") == "true"
    assert Stretch(3, None, ()).condition("hour") == "hour >= 3"
    assert Stretch("a", "it's", ()).condition("id") == "id >= 'a' and id < 'it''s'"


def test_times_keep_their_zone_in_sql() -> None:
    assert literal(datetime(2026, 11, 22, 12, tzinfo=UTC)) == "timestamptz '2026-11-22 12:00:00+00:00'"


def test_footers_tell_the_bounds_of_each_row_group(tmp_path: Path) -> None:
    pq.write_table(pa.table({"other": [0] * 4, "key": [5, 3, 9, 8]}), tmp_path / "a", row_group_size=2)

    found = read_row_groups([tmp_path / "a"], "key")

    assert found == [RowGroup(str(tmp_path / "a"), 3, 5, 2), RowGroup(str(tmp_path / "a"), 8, 9, 2)]


@pytest.mark.parametrize("keys", [[1, None], [None, None]])
def test_rows_without_a_key_are_refused_for_they_are_in_no_stretch(
    tmp_path: Path, keys: list[int | None]
) -> None:
    pq.write_table(pa.table({"key": pa.array(keys, pa.int64())}), tmp_path / "a")

    with pytest.raises(ValueError, match=r"row group 0 of .* does not bound key"):
        read_row_groups([tmp_path / "a"], "key")


def test_a_footer_without_statistics_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [1, 2]}), tmp_path / "a", write_statistics=False)

    with pytest.raises(ValueError, match="does not bound key"):
        read_row_groups([tmp_path / "a"], "key")

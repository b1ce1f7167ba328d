"""Groups of front ends: what a task reads, and what it has of it in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.checks import header_groups
from quaymaster_pipeline.checks.header_groups import PartOfTable, plan_groups, read_groups
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups, write_rows
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS
from quaymaster_pipeline.warehouse.spools import GroupSpool

NAMES = ["front_end", "log_offset"]


def written(directory: Path, files: int) -> tuple[PartOfTable, list[DataFile]]:
    """Return a table of ten front ends, of each a row in each file."""
    place = TablePlace(str(directory), {})
    found = []
    for number in range(files):
        lines = [{"front_end": f"fe-{at}", "log_offset": number, "batch_id": number} for at in range(10)]
        rows = pa.Table.from_pylist(lines, schema=BLOCK_MARKS.schema)
        found += write_rows(place, BLOCK_MARKS, "marks", rows)
    return PartOfTable(BLOCK_MARKS, place, [file.path for file in found], NAMES), found


@pytest.mark.parametrize("cores", [1, 3])
def test_a_task_reads_each_file_once_however_many_groups_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    table, files = written(tmp_path, 4)
    monkeypatch.setattr(header_groups, "CHAIN_BLOCKS", 2)
    opened: list[str] = []

    def counted(place: TablePlace, spec: Any, path: str, columns: Any) -> Iterator[Any]:
        opened.append(path)
        return read_row_groups(place, spec, path, columns)

    monkeypatch.setattr(header_groups, "read_row_groups", counted)
    items = plan_groups(files, cores)
    groups = [rows for item in items for (rows,) in read_groups([table], item)]

    assert len(items) == cores
    assert len(groups) >= 40 // 2
    assert sorted(opened) == sorted([*table.paths] * cores)
    # All rows of a front end are in one group, in their order.
    places = [(name, at) for at, rows in enumerate(groups) for name in rows.column("front_end").to_pylist()]
    assert len(places) == 40
    assert len(set(places)) == 10
    assert all(
        rows.filter(pa.compute.equal(rows.column("front_end"), name)).column("log_offset").to_pylist()
        == [0, 1, 2, 3]
        for rows in groups
        for name in set(rows.column("front_end").to_pylist())
    )


@given(
    st.lists(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 99)), max_size=6), max_size=6),
    st.integers(0, 8),
)
def test_rows_of_a_group_are_read_as_they_were_added(
    added: list[list[tuple[int, int]]], rows_in_memory: int
) -> None:
    schema = pa.schema([pa.field("number", pa.int64())])
    with GroupSpool(schema, rows_in_memory) as spool:
        for part in added:
            rows = pa.table({"number": pa.array([number for _, number in part], pa.int64())})
            spool.add(rows, pa.chunked_array([pa.array([group for group, _ in part], pa.int32())]))

        read = {group: spool.read(group).column("number").to_pylist() for group in range(4)}

    assert read == {
        group: [number for part in added for mine, number in part if mine == group] for group in range(4)
    }


def test_a_spool_that_is_not_read_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = pa.table({"number": pa.array([1, 2, 3], pa.int64())})

    with GroupSpool(rows.schema, 1) as spool:
        spool.add(rows, pa.array([0, 1, 0], pa.int32()))

    assert list(tmp_path.iterdir()) == []

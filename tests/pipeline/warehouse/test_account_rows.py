"""Rows of sorted files, an account after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quaymaster_pipeline.warehouse import account_rows
from quaymaster_pipeline.warehouse.account_rows import (
    AccountFiles,
    Accounts,
    each_account,
    open_files,
    ranges_of,
)
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_batches
from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import TableSpec
from quaymaster_pipeline.warehouse.spools import Spool

SPEC = TableSpec(
    "gold.test", pa.schema([("account_id", pa.string()), ("count", pa.int64())]), bounded=("account_id",)
)


def write(place: TablePlace, *accounts: str, rows_of_group: int = 1 << 20) -> DataFile:
    """Write a row for each of these, its number as count, so many together."""
    rows = pa.table({"account_id": list(accounts), "count": list(range(len(accounts)))}, schema=SPEC.schema)
    with FileWriter(place, SPEC, "test") as writer:
        for first in range(0, len(accounts), rows_of_group):
            writer.write(rows.slice(first, rows_of_group))
            writer.end_row_group()
        file = writer.finish()
    assert file is not None
    return file


def read(stream: AccountFiles) -> list[tuple[str, list[int]]]:
    return [
        (account, [count for part in stream.take(account) for count in part.column("count").to_pylist()])
        for account in each_account([stream])
    ]


@pytest.fixture
def place(tmp_path: Path) -> TablePlace:
    return TablePlace(str(tmp_path), {})


def test_each_account_has_its_rows_of_all_files_once(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write(place, "a", "a", "a", "c", "d"), write(place, "a", "b", "c")]
    for rows in (1, 2, 1024):
        monkeypatch.setattr(account_rows, "ROWS_IN_MEMORY", rows)
        monkeypatch.setattr(account_rows, "ROWS_OF_FILE_MIN", rows)

        found = read(open_files(place, SPEC, files, SPEC.schema.names, Accounts()))

        assert found == [("a", [0, 1, 2, 0]), ("b", [1]), ("c", [3, 2]), ("d", [4])]


def test_rows_that_are_not_taken_are_passed_over(place: TablePlace) -> None:
    stream = open_files(place, SPEC, [write(place, *"aabbbcc")], SPEC.schema.names, Accounts())

    assert list(each_account([stream])) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        (Accounts("b"), "bcd"),
        (Accounts("b", "d"), "bc"),
        (Accounts(wanted=("a", "d", "e")), "ad"),
        (Accounts("b", None, ("a", "d")), "d"),
        (Accounts("a", "b", ("b",)), ""),
    ],
)
def test_only_accounts_of_a_stretch_are_read_and_of_these_the_wanted_ones(
    place: TablePlace, accounts: Accounts, expected: str
) -> None:
    file = write(place, *"aabccd")

    found = read(open_files(place, SPEC, [file], SPEC.schema.names, accounts))

    assert "".join(account for account, _ in found) == expected
    assert (accounts.chosen([file], "account_id") == [file]) == bool(expected)


def test_of_a_file_only_what_may_have_a_wanted_account_is_read(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(place, *"aabbccdd", rows_of_group=2)
    groups: list[Any] = []
    iterate = pq.ParquetFile.iter_batches

    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        groups.append(named["row_groups"])
        return iterate(self, *arguments, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    read(open_files(place, SPEC, [file], SPEC.schema.names, Accounts(wanted=("b", "d"))))

    assert groups == [[1, 3]]


def test_of_files_that_follow_one_another_one_is_open_at_a_time(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write(place, *accounts) for accounts in ("ef", "ab", "cd", "de")]
    opened: list[str] = []

    def noted(place: TablePlace, spec: TableSpec, path: str, *arguments: Any, **named: Any) -> Any:
        opened.append(path)
        return read_batches(place, spec, path, *arguments, **named)

    monkeypatch.setattr(account_rows, "read_batches", noted)
    stream = open_files(place, SPEC, files, SPEC.schema.names, Accounts())
    found = [(account, len(opened)) for account in each_account([stream])]

    assert found == [("a", 1), ("b", 1), ("c", 2), ("d", 3), ("e", 4), ("f", 4)]


def test_a_file_that_is_not_sorted_is_refused_by_name(place: TablePlace) -> None:
    file = write(place, *"aba")

    with pytest.raises(BrokenTable, match=f"{file.path} is not sorted by account: a is after b"):
        read(open_files(place, SPEC, [file], SPEC.schema.names, Accounts()))


def test_stretches_have_about_as_many_rows_and_each_account_once(
    place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_rows, "ROWS_OF_TASK_MAX", 4)
    files = [write(place, *"aaaaaaaabbccddee"), write(place, *"ae")]

    stretches = ranges_of(place, SPEC, files, cores=2)

    assert [(one.first, one.end) for one in stretches] == [("", "b"), ("b", "d"), ("d", None)]
    rows = [
        sum(len(counts) for _, counts in read(open_files(place, SPEC, files, SPEC.schema.names, one)))
        for one in stretches
    ]
    assert rows == [9, 4, 5]


@pytest.mark.parametrize("rows_in_memory", [0, 5, 100])
def test_a_spool_gives_what_was_added_as_often_as_it_is_read(rows_in_memory: int) -> None:
    schema = pa.schema([("count", pa.int64())])
    with Spool(schema, rows_in_memory) as spool:
        for first in range(0, 30, 3):
            spool.add(pa.table({"count": list(range(first, first + 3))}, schema=schema))
        for _ in range(2):
            assert [count for part in spool for count in part.column("count").to_pylist()] == list(range(30))
        assert spool.rows == 30

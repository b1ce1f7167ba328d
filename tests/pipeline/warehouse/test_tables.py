"""Tables: batches committed once, notes with them, files that others read, columns that are added."""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from quaymaster_pipeline.warehouse import tables
from quaymaster_pipeline.warehouse.data_files import FileWriter
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict
from quaymaster_pipeline.warehouse.schemas import TIME, TableSpec
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, WarehouseBusy

SPEC = TableSpec(
    "bronze.things",
    pa.schema([("number", pa.int64()), ("time", TIME), ("name", pa.string()), ("day", pa.date32())]),
    "day",
)
DAY = datetime.date(2026, 11, 22)


def rows(*numbers: int, day: datetime.date = DAY) -> pa.Table:
    time = datetime.datetime.combine(day, datetime.time(12), datetime.UTC)
    names = [f"n{number}" for number in numbers]
    return pa.table([list(numbers), [time] * len(numbers), names, [day] * len(numbers)], schema=SPEC.schema)


def numbers_in(table: Table) -> list[int]:
    return sorted(table.read(["number"]).column("number").to_pylist())


def test_a_batch_is_committed_once_whoever_asks(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    files = table.write("a", rows(1, 2))

    first = table.commit("job", 0, files)
    again = table.commit("job", 0, table.write("a", rows(1, 2)))
    after_restart = Warehouse(tmp_path).table(SPEC)
    and_again = after_restart.commit("job", 0, table.write("a", rows(1, 2)))

    assert (first, again, and_again) == (True, False, False)
    assert numbers_in(after_restart) == [1, 2]
    assert (after_restart.last_batch("job"), after_restart.last_batch("other")) == (0, NO_BATCH)


def test_files_that_nobody_committed_are_not_in_the_table(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("job", 0, table.write("a", rows(1)))
    table.write("a", rows(2))

    seen = numbers_in(Warehouse(tmp_path).table(SPEC))

    assert seen == [1]


def test_notes_of_several_jobs_are_carried_on(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("one", 0, [], note={"next": 7})
    table.commit("two", 4, [], note={"next": 9})
    table.commit("two", 5, [])

    found = Warehouse(tmp_path).table(SPEC)

    assert (found.note("one"), found.note("two"), found.note("three")) == ({"next": 7}, {"next": 9}, {})


def test_notes_outlive_vacuum(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("job", 0, table.write("a", rows(1)), note={"next": 7})
    table.write("a", rows(2))

    removed = table.vacuum(0)

    assert removed == 1
    assert Warehouse(tmp_path).table(SPEC).note("job") == {"next": 7}
    assert numbers_in(table) == [1]


CHECKPOINT_EVERY = int(tables.TABLE_PROPERTIES["delta.checkpointInterval"])


def log_of(table: Table) -> Path:
    return Path(table.place.uri) / "_delta_log"


def fill_up_to_checkpoint(root: Path) -> Table:
    """Return a table whose next commit makes a checkpoint, and whose commits so far are older than logs are kept."""
    table = Warehouse(root).table(SPEC)
    while table.version < CHECKPOINT_EVERY - 2:
        batch_id = table.last_batch("job") + 1
        table.commit("job", batch_id, table.write("a", rows(batch_id)), note={"next": batch_id + 1})
    days_ago_s = time.time() - 5 * 86_400
    for path in log_of(table).iterdir():
        os.utime(path, (days_ago_s, days_ago_s))
    return table


def commit_without_notes(table: Table, times: int) -> None:
    """Commit as other programs do that know nothing of notes."""
    for number in range(times):
        other = DeltaTable(table.place.uri)
        other.alter.set_table_properties({"other": str(number)}, raise_if_not_exists=False)
    table.refresh()


def test_notes_outlive_a_vacuum_that_makes_a_checkpoint_after_days_of_rest(tmp_path: Path) -> None:
    table = fill_up_to_checkpoint(tmp_path)
    batches = table.last_batch("job") + 1
    table.write("killed", rows(0))

    table.vacuum(0)

    assert list(log_of(table).glob("*.checkpoint.parquet"))
    assert Warehouse(tmp_path).table(SPEC).note("job") == {"next": batches}


def test_notes_outlive_any_number_of_commits_of_others_in_a_table_of_an_earlier_version_too(
    tmp_path: Path,
) -> None:
    first = Warehouse(tmp_path).table(SPEC)
    first.commit("job", 0, first.write("a", rows(0)), note={"next": 1})
    DeltaTable(first.place.uri).alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})
    table = fill_up_to_checkpoint(tmp_path)
    batches = table.last_batch("job") + 1

    commit_without_notes(table, 30)

    assert list(log_of(table).glob("*.checkpoint.parquet"))
    assert Warehouse(tmp_path).table(SPEC).note("job") == {"next": batches}
    table.commit("other job", 0, [])
    assert Warehouse(tmp_path).table(SPEC).note("job") == {"next": batches}


def test_old_commits_are_deleted_by_those_that_carry_notes(tmp_path: Path) -> None:
    table = fill_up_to_checkpoint(tmp_path)

    table.commit("job", table.last_batch("job") + 1, [], note={"next": "here"})

    assert len(list(log_of(table).glob("*.json"))) < 3
    assert Warehouse(tmp_path).table(SPEC).note("job") == {"next": "here"}
    assert numbers_in(Warehouse(tmp_path).table(SPEC)) == list(range(CHECKPOINT_EVERY - 2))


def test_a_table_that_lost_its_notes_is_refused_and_does_not_begin_again(tmp_path: Path) -> None:
    table = fill_up_to_checkpoint(tmp_path)
    commit_without_notes(table, 2)
    for number in range(table.version - 1):
        (log_of(table) / f"{number:020}.json").unlink()

    cut = Warehouse(tmp_path).table(SPEC)

    assert cut.last_batch("job") == CHECKPOINT_EVERY - 3
    with pytest.raises(BrokenTable, match=r"^the table bronze.things is broken: its log .* has no notes"):
        cut.note("job")
    with pytest.raises(BrokenTable, match="has no notes"):
        cut.commit("job", CHECKPOINT_EVERY, [])


def test_a_table_that_another_program_filled_is_refused(tmp_path: Path) -> None:
    place = Warehouse(tmp_path).place(SPEC)
    write_deltalake(place.uri, rows(1), partition_by=["day"])

    with pytest.raises(BrokenTable, match="it has rows, and no commit"):
        Warehouse(tmp_path).table(SPEC).note("job")


def test_a_table_is_mended_beside_another_commit_without_a_loss_of_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("job", 0, [], note={"next": 1})
    wider = TableSpec(SPEC.name, SPEC.schema.append(pa.field("color", pa.string())), "day")
    later = Warehouse(tmp_path).table(wider)
    said = Table._notes_alone

    def said_and_then_another_commits(mended: Table) -> Any:
        found = said(mended)
        monkeypatch.setattr(Table, "_notes_alone", said)
        table.commit("job", 1, [], note={"next": 2})
        return found

    monkeypatch.setattr(Table, "_notes_alone", said_and_then_another_commits)
    later.commit("wider", 0, [])

    assert later.note("job") == {"next": 2}
    assert "color" in {field.name for field in DeltaTable(later.place.uri).schema().fields}


def test_a_note_is_that_of_the_version_that_is_read_whatever_others_committed_since(tmp_path: Path) -> None:
    for batch_id in range(30):
        table = Warehouse(tmp_path).table(SPEC)
        table.commit("job", batch_id, table.write("x", rows(batch_id)), note={"batch": batch_id})
        if batch_id == 1:
            few = Warehouse(tmp_path).table(SPEC)
        if batch_id == 26:
            many = Warehouse(tmp_path).table(SPEC)

    assert [(table.last_batch("job"), table.note("job")) for table in (few, many)] == [
        (1, {"batch": 1}),
        (26, {"batch": 26}),
    ]


def test_a_file_of_few_rows_is_not_compressed_and_others_are(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    with FileWriter(table.place, SPEC, "a", str(DAY)) as writer:
        for numbers in (range(10), range(10, 20)):
            writer.write(rows(*numbers).select(SPEC.file_schema.names))
            writer.end_row_group()
        in_groups = writer.finish()
    assert in_groups is not None
    (few,), (many,) = (table.write("a", rows(*range(count))) for count in (20, 2000))
    table.commit("job", 0, [few, many, in_groups])

    codecs = {}
    for file in (few, many, in_groups):
        found = pq.ParquetFile(Path(table.place.uri, file.path)).metadata
        groups = [found.row_group(group) for group in range(found.num_row_groups)]
        codecs[file.path] = {
            group.column(column).compression for group in groups for column in range(found.num_columns)
        }

    assert [codecs[file.path] for file in (few, many, in_groups)] == [{"UNCOMPRESSED"}, {"ZSTD"}, {"ZSTD"}]
    assert numbers_in(table) == sorted([*range(20), *range(20), *range(2000)])
    assert polars.read_delta(table.place.uri).height == 2040


def test_rows_are_replaced_in_one_commit(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("job", 0, table.write("a", rows(1, 2)))

    table.commit("job", 1, table.write("a", rows(3)), removes=table.files())

    assert numbers_in(table) == [3]
    assert table.rows == 1


def test_a_table_has_a_file_for_each_date_with_its_bounds(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    both = pa.concat_tables([rows(1, 5), rows(7, day=datetime.date(2026, 11, 23))])

    table.commit("job", 0, table.write("a", both))

    files = sorted(Warehouse(tmp_path).table(SPEC).files(), key=lambda file: file.path)
    assert [file.partition_value for file in files] == ["2026-11-22", "2026-11-23"]
    assert [file.bounds["number"] for file in files] == [(1, 5), (7, 7)]
    assert files[0].bounds["time"] == ("2026-11-22T12:00:00.000000Z", "2026-11-22T12:00:00.000000Z")


def test_a_column_that_is_added_is_null_in_rows_of_before(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("job", 0, table.write("a", rows(1)), note={"next": 1})
    wider = TableSpec(SPEC.name, SPEC.schema.append(pa.field("color", pa.string())), "day")

    later = Warehouse(tmp_path).table(wider)
    colored = rows(2).append_column("color", pa.array(["red"]))
    later.commit("job", 1, later.write("a", colored))

    assert sorted(later.read(["number", "color"]).to_pylist(), key=str) == [
        {"number": 1, "color": None},
        {"number": 2, "color": "red"},
    ]
    assert numbers_in(Warehouse(tmp_path).table(SPEC)) == [1, 2]
    assert later.note("job") == {"next": 1}


def test_duckdb_and_polars_read_what_was_written(tmp_path: Path) -> None:
    table = Warehouse(tmp_path).table(SPEC)
    table.commit("job", 0, table.write("a", rows(1, 2, 3)))

    by_polars = polars.read_delta(table.place.uri)
    paths = [f"{table.place.uri}/{file.path}" for file in table.files()]
    query = f"select sum(number), max(day) from read_parquet({paths}, hive_partitioning=true)"
    by_duckdb = duckdb.connect().execute(query)

    assert by_polars["number"].sum() == 6
    assert by_polars["day"].to_list() == [DAY] * 3
    assert by_duckdb.fetchall() == [(6, DAY)]


def test_there_is_one_writer(tmp_path: Path) -> None:
    with Warehouse(tmp_path).ingesting(), pytest.raises(WarehouseBusy), Warehouse(tmp_path).ingesting():
        pass

    with Warehouse(tmp_path).ingesting():
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_a_file_system_has_no_locks_commits_decide_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)

    with Warehouse(tmp_path).ingesting():
        one, other = (Warehouse(tmp_path).table(SPEC) for _ in range(2))
        one.commit("job", 0, one.write("a", rows(1)))
        with pytest.raises(CommitConflict):
            other.commit("job", 0, other.write("a", rows(1)), is_alone=True)

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"file system has no locks directory={tmp_path}" in caplog.text


def test_a_lock_that_cannot_be_had_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(OSError, match="broken"), Warehouse(tmp_path).ingesting():
        pass

"""The list of tables has all that are declared, and what it says of each is so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from harness.object_store import ObjectStore, object_store
from harness.pipeline_site import Site
from harness.table_specs import all_specs
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.catalog import ALL_TABLES, ListedTable, list_tables, open_tables, view_name
from quaymaster_pipeline.warehouse.schemas import QUARANTINE, TABLES, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def listed(warehouse: Warehouse) -> dict[str, ListedTable]:
    return {one.table: one for one in list_tables(warehouse)}


def opened(one: ListedTable, **names: Any) -> DeltaTable:
    """Run the line of Python that opens a table."""
    assert one.python is not None
    table = eval(one.python, {"DeltaTable": DeltaTable, **names})
    assert isinstance(table, DeltaTable)
    return table


def test_every_table_that_is_declared_is_in_the_catalog_once() -> None:
    assert sorted(spec.name for spec in ALL_TABLES) == list(all_specs())


def test_no_two_tables_have_views_of_the_same_name() -> None:
    assert len({view_name(spec) for spec in ALL_TABLES}) == len(ALL_TABLES)


def test_the_line_of_each_table_opens_the_version_with_the_rows_that_are_listed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for rows in (100, 50):
        site.ship(FrontEnd(f"of-{rows}").block(rows))
        site.run()

    found = listed(site.warehouse)

    there = {name: opened(one) for name, one in found.items() if one.version is not None}
    now_and_then = {
        *("block_marks", "coverage", "expired_blocks", "reconciliation", "closes", "close_heads", "losses"),
    }
    always = {spec.name for spec in TABLES} - {f"ops.{name}" for name in now_and_then}
    assert always <= there.keys()
    for name, table in there.items():
        one = found[name]
        assert (table.version(), len(table.file_uris())) == (one.version, one.files)
        assert table.to_pyarrow_table().num_rows == one.rows
        assert one.bytes == sum(Path(path).stat().st_size for path in table.file_uris())
        assert one.uri == str(site.root / name.replace(".", "/"))
    assert found[USAGE_EVENTS.name].rows == 150
    assert found[QUARANTINE.name].rows == 0


def test_tables_that_have_not_been_written_have_a_place_and_no_version(tmp_path: Path) -> None:
    found = listed(Warehouse(tmp_path))

    assert {(one.version, one.rows, one.files, one.bytes, one.python) for one in found.values()} == {
        (None, 0, 0, 0, None)
    }
    assert found[USAGE_HOURLY.name].uri == str(tmp_path / "gold/usage_hourly")


def test_a_relative_directory_is_listed_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    found = listed(Warehouse("tables"))

    assert found[USAGE_HOURLY.name].uri == str(tmp_path / "tables/gold/usage_hourly")


def test_the_line_of_a_table_in_an_object_store_takes_its_options_and_shows_no_secret(
    tmp_path: Path, store: ObjectStore
) -> None:
    site, options = Site(tmp_path), store.storage_options
    site.ship(FrontEnd("a").block(10))
    warehouse = Warehouse("s3://usage/warehouse", options)
    site.pipeline(warehouse).catch_up()

    one = listed(warehouse)[USAGE_HOURLY.name]

    assert opened(one, storage_options=options).version() == one.version
    assert one.uri == "s3://usage/warehouse/gold/usage_hourly"
    assert options["AWS_SECRET_ACCESS_KEY"] not in str(one.to_json())


def rows_of(rows: Any) -> list[str]:
    """Return rows of an Arrow table as texts, in an order that depends on nothing else."""
    return sorted(str(row) for row in rows.to_pylist())


def test_open_tables_have_all_rows_and_columns_of_their_versions(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for name in ("a", "b"):
        site.ship(FrontEnd(name, step_us=600_000_000).block(100))
        site.run()

    found = open_tables(site.root)

    assert found.keys() == {view_name(spec) for spec in ALL_TABLES}
    for spec in ALL_TABLES:
        rows = found[view_name(spec)].to_table()
        assert rows.schema == spec.schema
        assert rows_of(rows) == rows_of(site.warehouse.table(spec).read())


def test_open_tables_can_be_filtered_by_columns_with_and_without_statistics(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=600_000_000)
    site.ship(one.block(100))
    site.run()
    events = open_tables(site.root)["usage_events"]
    action, day = pyarrow.dataset.field("action"), pyarrow.dataset.field("event_date")

    sends = events.count_rows(filter=action == "SendMessage")
    of_day = events.count_rows(filter=day == pa.scalar("2026-11-22").cast(pa.date32()))
    nothing = events.count_rows(filter=action.is_null())

    assert sends == sum(record.action == "SendMessage" for record in one.records) > 0
    assert of_day == 72, "from noon to midnight, every ten minutes"
    assert nothing == 0


def test_a_column_that_a_file_of_before_lacks_is_null_in_an_open_table(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(10))
    site.run()
    table = site.warehouse.table(USAGE_HOURLY)
    for file in table.files():
        path = Path(table.place.uri, file.path)
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["duplicates"]), path)

    rows = open_tables(site.root)["usage_hourly"].to_table()

    assert rows.column("duplicates").null_count == rows.num_rows > 0


def test_tables_of_an_object_store_can_be_opened_too(tmp_path: Path, store: ObjectStore) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(10))
    warehouse = Warehouse("s3://usage/warehouse", store.storage_options)
    site.pipeline(warehouse).catch_up()

    rows = open_tables("s3://usage/warehouse", store.storage_options)["usage_events"].to_table()

    assert rows_of(rows) == rows_of(warehouse.table(USAGE_EVENTS).read())

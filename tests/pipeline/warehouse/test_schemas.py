"""Tables change by new columns only: what was written before is read now, and what is written now was readable before.

`published_columns.json` has the columns of the first release. A release adds those that are new in it.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from harness.pipeline_site import InProcess, Site, expected_usage
from harness.reconciled import compare_rows
from harness.table_specs import all_specs
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs.merge import merge_sums
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.warehouse.data_files import read_file
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY, TableSpec
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published_columns.json").read_text())
SPECS = all_specs()
HOUR = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def as_published(spec: TableSpec) -> TableSpec:
    """Return a table as programs of the first release know it."""
    columns = PUBLISHED[spec.name]["columns"]
    return TableSpec(
        spec.name, pa.schema([field for field in spec.schema if field.name in columns]), spec.partition_column
    )


def test_every_table_is_published() -> None:
    assert set(PUBLISHED) == set(SPECS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_columns_keep_their_names_types_and_order(name: str) -> None:
    published = PUBLISHED[name]
    columns = {field.name: str(field.type) for field in SPECS[name].schema}

    kept = {name: kind for name, kind in columns.items() if name in published["columns"]}
    assert list(kept.items()) == list(published["columns"].items())
    assert SPECS[name].partition_column == published["partition"]


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_new_columns_may_be_null_and_none_is_a_float(spec: TableSpec) -> None:
    for field in spec.schema:
        assert field.nullable
        assert not pa.types.is_floating(field.type)


def old_hourly(warehouse: Warehouse) -> Table:
    """Write an hour as the first release did."""
    spec = as_published(USAGE_HOURLY)
    assert "duplicates" not in spec.schema.names, "a column was added since"
    table = Table(spec, warehouse.place(spec))
    row = dict.fromkeys(spec.schema.names, 0) | {
        "hour": HOUR,
        "region": "eu-west-1",
        "account_id": "000000000002",
        "queue_sk": 101,
        "queue_name": "queue-1",
        "queue_type": "standard",
        "action": "SendMessage",
        "billing_class": "standard",
        "requests": 7,
        "messages": 70,
        "bytes": 700,
        "chunks": 7,
        "first_batch": 0,
        "last_batch": 0,
        "source_rows": 7,
        "usage_date": HOUR.date(),
    }
    rows = pa.Table.from_pylist([row], schema=spec.schema)
    table.commit(gold.APP, 0, table.write("old", rows), shared_notes={gold.TOTALS: gold.control_totals(rows)})
    return table


def test_rows_of_before_are_read_and_added_to(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    before = old_hourly(warehouse)
    found = warehouse.table(USAGE_HOURLY).read()
    row = found.to_pylist()[0] | {"requests": 3, "duplicates": 2, "first_batch": 1, "last_batch": 1}
    table = warehouse.table(USAGE_HOURLY)
    added = table.write("new", pa.Table.from_pylist([row], schema=USAGE_HOURLY.schema))

    table.commit(gold.APP, 1, added)
    merge_sums(InProcess(), warehouse, HOUR + datetime.timedelta(hours=2))

    ((file,), (merged,)) = table.files(), table.read().to_pylist()
    assert found.column("duplicates").null_count == 1
    assert (merged["requests"], merged["duplicates"]) == (10, 2)
    assert (merged["first_batch"], merged["last_batch"]) == (0, 1)
    # And the program of before goes on reading.
    before.refresh()
    (as_before,) = before.read().to_pylist()
    assert as_before == {name: merged[name] for name in before.spec.schema.names}
    (day,) = gold.daily_rows(table.read(files=[file])).to_pylist()
    assert (day["requests"], day["duplicates"]) == (10, 2)


def test_other_engines_read_a_table_whose_files_have_different_columns(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    old_hourly(warehouse)
    table = warehouse.table(USAGE_HOURLY)
    row = table.read().to_pylist()[0] | {"duplicates": 5}
    rows = pa.Table.from_pylist([row], schema=USAGE_HOURLY.schema)

    table.commit("new", 0, table.write("new", rows))

    found = polars.read_delta(table.place.uri)
    assert sorted(found["duplicates"].to_list(), key=str) == [5, None]
    assert found["requests"].sum() == 14


def test_events_of_before_are_summed_up_as_they_were(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(50))
    site.run()
    table = site.warehouse.table(USAGE_EVENTS)
    old = as_published(USAGE_EVENTS)
    parts = [read_file(table.place, old, file.path) for file in table.files()]

    rows = pa.concat_tables(parts)
    missing = [field for field in USAGE_EVENTS.file_schema if field.name not in rows.schema.names]
    as_read_now = rows
    for field in missing:
        as_read_now = as_read_now.append_column(field, pa.nulls(rows.num_rows, field.type))

    usage = gold.merge_usage([gold.partial_usage(as_read_now)])
    assert gold.control_totals(usage) == silver.control_totals_of_usage(as_read_now)
    assert set(usage.column("duplicates").to_pylist()) == {0}


def test_a_warehouse_of_the_first_release_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    site.ship(one.block(100))
    site.run()
    warehouse = site.warehouse
    # What the first release would have left: the same files, without columns that were added since.
    for spec in (USAGE_EVENTS, USAGE_HOURLY, USAGE_DAILY):
        table, old = warehouse.table(spec), as_published(spec)
        (file_rows,) = [table.read(old.schema.names)]
        files = table.files()
        fresh = Table(old, table.place)
        fresh.commit("old", 0, fresh.write("old", file_rows), removes=files)
    site.ship(one.block(200))

    site.run()

    assert site.usage() == expected_usage(one)
    assert sum(one.difference for one in (*compare_rows(site.warehouse), *compare_notes(site.warehouse))) == 0

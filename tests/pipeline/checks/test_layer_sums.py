"""What `pipeline reconcile` reads in tasks: where tables differ is named, and the driver has few lines of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.built_once import built_once
from harness.pipeline_site import InProcess, Site
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks import layer_sums
from quaymaster_pipeline.checks.day_plans import plan_days
from quaymaster_pipeline.checks.layer_sums import LayerSums, hours_work
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY, TableSpec


@built_once
def two_days(directory: Path) -> Site:
    """Two days of requests of two accounts."""
    site, one = Site(directory), FrontEnd("a", step_us=-600_000_000)
    site.ship(one.block(100), one.block(60))
    site.run()
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return two_days(tmp_path)


def add(site: Site, spec: TableSpec, column: str, count: int, *, of: str | None = None) -> None:
    """Add to a column of the first row of each file, or of the first of an account, as a mistake would."""
    table = site.warehouse.table(spec)
    files = table.files()
    adds = []
    for file in files:
        rows = table.read(files=[file])
        mask = pc.equal(rows.column("account_id"), of) if of else pa.array([True] * rows.num_rows)
        first = pc.index(mask, True).as_py()
        more = pa.array([count if at == first else 0 for at in range(rows.num_rows)])
        place = rows.schema.get_field_index(column)
        adds += table.write("x", rows.set_column(place, column, pc.add(rows.column(column), more)))
    table.commit("mistake", 0, adds, removes=files)


def scopes(found: list[Any]) -> set[str]:
    return {one.scope for one in found if one.difference}


def test_hours_that_differ_are_named(site: Site) -> None:
    add(site, USAGE_HOURLY, "messages", 3)

    found = compare_rows(site.warehouse)

    files = site.warehouse.table(USAGE_HOURLY).files()
    assert {one.measure for one in found if one.difference} == {"messages"}
    assert len(scopes(found)) == 1 + len(files)
    assert all("/" not in scope for scope in scopes(found))


def test_accounts_that_differ_within_an_hour_that_agrees_are_named(site: Site) -> None:
    table = site.warehouse.table(USAGE_HOURLY)
    add(site, USAGE_HOURLY, "messages", 3, of="000000000001")
    table.refresh()
    files = site.warehouse.table(USAGE_HOURLY).files()
    adds = []
    for file in files:
        rows = site.warehouse.table(USAGE_HOURLY).read(files=[file])
        other = pc.index(pc.equal(rows.column("account_id"), "000000000002"), True).as_py()
        less = pa.array([3 if at == other else 0 for at in range(rows.num_rows)])
        place = rows.schema.get_field_index("messages")
        rows = rows.set_column(place, "messages", pc.subtract(rows.column("messages"), less))
        adds += table.write("y", rows)
    table.commit("another mistake", 0, adds, removes=files)

    found = scopes(compare_rows(site.warehouse))

    # Of an hour without the other account the hour itself differs.
    assert {scope.partition("/")[2] for scope in found} - {""} == {"000000000001", "000000000002"}


def test_days_that_are_not_the_sums_of_their_hours_are_named(site: Site) -> None:
    add(site, USAGE_DAILY, "bytes", 1, of="000000000002")

    found = compare_sums(site.warehouse)

    dates = {file.partition_value for file in site.warehouse.table(USAGE_DAILY).files()}
    assert scopes(found) == {f"{USAGE_DAILY.name} {date}/000000000002" for date in dates}


def test_of_many_places_that_differ_few_come_to_the_driver(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_sums, "LINES_OF_ITEM", 2)
    monkeypatch.setattr(layer_sums, "LINES_MAX", 3)
    add(site, USAGE_HOURLY, "messages", 3)
    tables = {spec.name: site.warehouse.table(spec) for spec in (USAGE_EVENTS, USAGE_HOURLY)}
    events, hours = (table.files() for table in tables.values())
    items = plan_days(events, hours)
    work = hours_work({name: table.place for name, table in tables.items()}, 0)

    found = LayerSums(InProcess().over(items, work))

    assert len(found.lines) == 3
    assert found.unnamed == len(tables[USAGE_HOURLY.name].files()) - 3

"""`pipeline verify` and closed days: whatever was changed in closes, closed files or the blocks behind them is told."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from harness.built_once import built_once
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import slow

from quaymaster_pipeline.checks import day_plans
from quaymaster_pipeline.checks.verification import UsageProof, verify
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.warehouse.closes import APP, DayClose, hash_of, is_closed_file
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    CLOSES,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table

THE_25TH = datetime.datetime(2026, 11, 25, 6, tzinfo=datetime.UTC)
THE_27TH = THE_25TH + datetime.timedelta(days=2)


@built_once
def closed(directory: Path) -> Site:
    """Three days of two front ends, closed one after the other, with late usage of a third."""
    site = Site(directory)
    one, two = map(slow, "ab")
    site.ship(one.block(96), two.block(96))
    site.run(now=THE_25TH)
    close_days(InProcess(), site.warehouse, THE_25TH)
    late = slow("c")
    site.ship(one.block(60), two.block(60), late.block(150))
    site.run(now=THE_27TH)
    close_days(InProcess(), site.warehouse, THE_27TH)
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return closed(tmp_path)


def check(site: Site) -> UsageProof:
    return verify(InProcess(), site.warehouse)


def reasons(site: Site) -> str:
    return "\n".join(one.text for one in check(site).breaks)


def closed_file(site: Site) -> Path:
    table = site.warehouse.table(USAGE_DAILY)
    return next(Path(table.place.uri, file.path) for file in table.files() if is_closed_file(file.path))


def test_closed_days_that_nobody_changed_have_no_break(site: Site) -> None:
    proof = check(site)

    assert [one.text for one in proof.breaks] == []
    assert proof.closes == 5


@pytest.mark.parametrize("column", [name for name in CLOSES.schema.names if name not in ("number", "day")])
def test_a_close_that_was_changed_is_told(site: Site, column: str) -> None:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[1][column] = other(rows[1][column])
        return rows

    rewrite_closes(site, change)

    assert "close 0 of 2026-11-23: it was changed" in reasons(site)


def other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case bytes():
            return bytes(32)
        case list():
            return [value[0] + type(value[0])()] * 2
        case _:
            return value + datetime.timedelta(seconds=1)


def rewrite_closes(site: Site, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    table = site.warehouse.table(CLOSES)
    rows = sorted(table.read().to_pylist(), key=lambda row: (row["number"], row["day"]))
    written = table.write("x", pa.Table.from_pylist(change(rows), schema=CLOSES.schema))
    table.commit("mistake", 0, written, removes=table.files())


@pytest.mark.parametrize("at", range(5))
def test_a_close_that_is_gone_is_told(site: Site, at: int) -> None:
    def drop(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows[:at] + rows[at + 1 :]

    rewrite_closes(site, drop)

    assert "ops.closes" in reasons(site) or "no close has the closed file" in reasons(site)


def test_a_closed_file_with_other_bytes_is_told_though_it_has_the_same_rows(site: Site) -> None:
    path = closed_file(site)
    pq.write_table(pq.read_table(path), path, compression="gzip")

    assert "its SHA-256 is another" in reasons(site)


def test_a_closed_file_that_the_table_no_longer_has_is_told(site: Site) -> None:
    table = site.warehouse.table(USAGE_DAILY)
    gone = next(file for file in table.files() if is_closed_file(file.path))
    table.commit("mistake", 0, [], removes=[gone])

    assert f"the closed file {gone.path} is not in the table" in reasons(site)


def test_a_closed_file_that_somebody_put_in_is_told(site: Site) -> None:
    table = site.warehouse.table(USAGE_DAILY)
    rows = table.read(files=[next(file for file in table.files() if is_closed_file(file.path))])
    table.commit("mistake", 0, table.write("closed", rows))

    assert "no close has the closed file" in reasons(site)


def test_blocks_that_were_cut_off_at_the_end_are_told_though_all_notes_agree(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = site.warehouse.table(BLOCKS)
    last = max(table.files(), key=lambda file: file.bounds["batch_id"])
    rows = table.read(files=[last])
    (first, *_) = sorted(rows.column("log_offset").to_pylist(), reverse=True)
    kept = rows.filter(pc.less(rows.column("log_offset"), first))
    cut = rows.filter(pc.equal(rows.column("log_offset"), first))
    note = table.note(BRONZE)
    note["next"] = {partition: end - 1 for partition, end in note["next"].items()}
    note["headers"] = {name: count - cut.column(name)[0].as_py() for name, count in note["headers"].items()}
    table.commit("x", 0, table.write("x", kept), removes=[last], shared_notes={BRONZE: note})

    assert "batches 1 to 1 have 2 blocks; there were 3 when days were closed" in reasons(site)


def test_a_close_that_only_the_days_have_is_no_break(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    table = site.warehouse.table(CLOSES)
    last = next(file for file in table.files() if file.bounds["number"] == (1, 1))
    monkeypatch.setattr(Table, "files", without(Table.files, last.path))

    assert check(site).breaks == []
    assert site.warehouse.table(USAGE_DAILY).last_batch(APP) == 1


def without(files: Callable[..., Any], path: str) -> Callable[..., Any]:
    return lambda table, lines=None: [file for file in files(table, lines) if file.path != path]


def test_the_last_close_changed_with_its_hash_is_told_by_what_usage_daily_notes(site: Site) -> None:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        last = rows[-1] | {"difference": 5, "accepted": True}
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in last.items()
        }
        return [*rows[:-1], last | {"hash": hash_of(DayClose(**fields))}]

    rewrite_closes(site, change)

    assert "gold.usage_daily notes another one" in reasons(site)


def test_a_close_that_usage_daily_never_had_is_told(site: Site) -> None:
    rewrite_closes(site, lambda rows: [*rows, rows[-1] | {"number": rows[-1]["number"] + 1}])

    assert "close 2 of 2026-11-24: it was put in" in reasons(site)


@pytest.mark.parametrize("spec", [USAGE_HOURLY, USAGE_DAILY, USAGE_EVENTS], ids=lambda spec: spec.name)
def test_a_table_that_was_deleted_is_told_by_the_others(site: Site, spec: TableSpec) -> None:
    shutil.rmtree(site.warehouse.place(spec).uri)

    assert check(site).breaks_total > 0


def test_hours_and_events_that_were_deleted_together_are_told_by_the_days(site: Site) -> None:
    for spec in (USAGE_HOURLY, USAGE_EVENTS):
        shutil.rmtree(site.warehouse.place(spec).uri)

    assert "gold.usage_hourly: it has batches up to -1; others that are made of it have 1" in reasons(site)


def test_rows_that_are_not_in_the_hours_that_the_log_says_are_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_plans, "SUM_ROWS", 3)
    table = site.warehouse.table(USAGE_HOURLY)
    first = min(table.files(), key=lambda file: file.bounds["hour"])
    (copied,) = table.write("x", table.read(files=[first]))
    at = f"{first.partition_value}T23:00:00.000000Z"
    table.commit("mistake", 0, [replace(copied, bounds={**copied.bounds, "hour": (at, at)})])

    assert f"0 rows of the file {copied.path} are in the hours that it is said to have" in reasons(site)

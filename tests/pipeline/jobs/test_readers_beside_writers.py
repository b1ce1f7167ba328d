"""Who reads by a table's log finds the same totals: while files are compacted, and beside files of killed writers."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.built_once import built_once
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.latency import KEYS as LATENCY_KEYS
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    DAY_KEYS,
    HOUR_KEYS,
    LATENCY_HOURLY,
    TABLES,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table

SUMS = {
    BLOCKS: ("messages", "bytes", "chunks"),
    USAGE_EVENTS: ("messages", "bytes", "chunks", "billed_requests"),
    USAGE_HOURLY: ("requests", "messages", "bytes", "chunks", "billed_requests"),
    USAGE_DAILY: ("requests", "messages", "bytes", "chunks", "billed_requests"),
    LATENCY_HOURLY: ("requests",),
}
"""Columns that are summed up, and rows are counted besides."""

KEYS = {USAGE_HOURLY: HOUR_KEYS, USAGE_DAILY: DAY_KEYS, LATENCY_HOURLY: LATENCY_KEYS}
"""By what rows of partial sums are grouped. Of these tables each group is read, and counted."""

Group = tuple[Any, ...]
Totals = dict[str, tuple[Group, ...]]
Reader = Callable[[Table, list[DataFile], tuple[str, ...]], tuple[Group, ...]]


def by_duckdb(table: Table, files: list[DataFile], names: tuple[str, ...]) -> tuple[Group, ...]:
    paths = [f"{table.place.uri}/{file.path}" for file in files]
    sums = ", ".join(f"sum({name})::bigint" for name in names)
    keys = KEYS.get(table.spec, ())
    shown = [f"epoch_us({name})" if name == "hour" else name for name in keys]
    counted = [] if keys else ["count(*)"]
    grouping = f"group by {', '.join(keys)} order by {', '.join(keys)}" if keys else ""
    query = f"select {', '.join([*shown, *counted])}, {sums} from read_parquet({paths}) {grouping}"
    return tuple(duckdb.execute(query).fetchall())


def by_polars(table: Table, files: list[DataFile], names: tuple[str, ...]) -> tuple[Group, ...]:
    """Read the version of the log that has these files."""
    keys = KEYS.get(table.spec, ())
    frame = polars.read_delta(table.place.uri, version=table.version, columns=[*keys, *names])
    if not keys:
        return ((frame.height, *(int(frame[name].sum()) for name in names)),)
    if "hour" in keys:
        frame = frame.with_columns(polars.col("hour").dt.epoch("us"))
    return tuple(frame.group_by(keys).agg(polars.col(*names).sum()).sort(keys).rows())


def by_us(table: Table, files: list[DataFile], names: tuple[str, ...]) -> tuple[Group, ...]:
    keys = KEYS.get(table.spec, ())
    rows = table.read([*keys, *names], files=files)
    if not keys:
        return ((rows.num_rows, *(int(sum(rows.column(name).to_pylist())) for name in names)),)
    columns = [rows.column(name) for name in keys]
    columns = [
        column.cast(pa.int64()) if name == "hour" else column
        for name, column in zip(keys, columns, strict=True)
    ]
    sums: Counter[tuple[Group, str]] = Counter()
    for name in names:
        groups = zip(*(column.to_pylist() for column in columns), strict=True)
        for group, count in zip(groups, rows.column(name).to_pylist(), strict=True):
            sums[group, name] += count
    return tuple(
        (*group, *(sums[group, name] for name in names)) for group in sorted({one for one, _ in sums})
    )


def sums_of(groups: tuple[Group, ...], count: int) -> list[int]:
    """Return the sums over all groups of their last columns."""
    return [sum(column) for column in list(zip(*groups, strict=True))[-count:]]


READERS: tuple[Reader, ...] = (by_duckdb, by_polars, by_us)


def opened(site: Site) -> list[tuple[Table, list[DataFile]]]:
    """Look at the logs of all tables as they are now."""
    warehouse = site.warehouse
    return [(table, table.files()) for table in map(warehouse.table, SUMS)]


def totals_of(tables: list[tuple[Table, list[DataFile]]], reader: Reader) -> Totals:
    return {table.spec.name: reader(table, files, SUMS[table.spec]) for table, files in tables}


@built_once
def shipped(directory: Path) -> Site:
    """Return a site of several batches, with a block that came twice."""
    site, one, two = Site(directory), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    again = one.block(100)
    for blocks in ([again, two.block(150)], [again, one.block(200)], [two.block(50)]):
        site.ship(*blocks)
        site.run()
    site.front_ends = (one, two)
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return shipped(tmp_path)


def test_all_readers_find_the_same_totals_before_and_after_each_commit_of_a_compaction(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Table.commit
    before = opened(site)
    expected = totals_of(before, by_us)
    found: list[tuple[str, Reader, Totals]] = []

    def look(when: str) -> None:
        found.extend((when, reader, totals_of(opened(site), reader)) for reader in READERS)

    def watched(table: Table, *arguments: Any, **named: Any) -> bool:
        look(f"before {table.spec.name}")
        is_new = commit(table, *arguments, **named)
        look(f"after {table.spec.name}")
        return is_new

    with monkeypatch.context() as patched, (warehouse := site.warehouse).ingesting():
        patched.setattr(Table, "commit", watched)
        done = compact(InProcess(), warehouse, NOW + datetime.timedelta(days=1))

    assert {"bronze.blocks", "silver.usage_events"} <= {one.table for one in done}
    assert {when for when, _, _ in found} == {
        f"{when} {one.table}" for one in done for when in ("before", "after")
    }
    assert [(when, reader) for when, reader, totals in found if totals != expected] == []
    # Who looked at the logs before the compaction still reads what it saw: the files are kept for a day.
    assert [files for _, files in before] != [files for _, files in opened(site)]
    assert [totals_of(before, reader) for reader in READERS] == [expected] * len(READERS)
    (usage,) = expected["silver.usage_events"]
    assert list(usage) == sums_of(expected["gold.usage_hourly"], 5)
    assert sums_of(expected["gold.usage_daily"], 5) == sums_of(expected["gold.usage_hourly"], 5)
    assert sums_of(expected["gold.latency_hourly"], 1) == [500]
    assert {"gold.usage_hourly", "gold.usage_daily", "gold.latency_hourly"} <= {one.table for one in done}


def orphan(table: Table, *, bytes_kept: int) -> Path:
    """Leave a copy of one of the table's files that ends in the middle, as a killed writer would."""
    file = table.files()[0]
    whole = Path(table.place.uri, file.path)
    torn = whole.with_name(f"killed-{bytes_kept}.parquet")
    torn.write_bytes(whole.read_bytes()[:bytes_kept])
    return torn


def test_truncated_files_of_killed_writers_disturb_nobody_who_reads_by_the_log(site: Site) -> None:
    expected = totals_of(opened(site), by_us)
    tables = list(map(site.warehouse.table, SUMS))
    torn = [orphan(table, bytes_kept=kept) for table in tables for kept in (0, 4, 1000)]
    for path in torn:
        with pytest.raises((pa.ArrowInvalid, OSError)):
            pq.read_table(path, partitioning=None)

    found = [totals_of(opened(site), reader) for reader in READERS]
    status = [*compare_rows(site.warehouse), *compare_notes(site.warehouse)]

    assert found == [expected] * len(READERS)
    assert sum(one.difference for one in status) == 0
    assert compare_sums(site.warehouse) == []


def test_batches_backfills_and_compaction_go_on_beside_truncated_files_and_compaction_deletes_them(
    site: Site,
) -> None:
    torn = [orphan(site.warehouse.table(spec), bytes_kept=1000) for spec in SUMS]
    one, two = site.front_ends
    site.ship(one.block(70), two.block(30))

    site.run()
    warehouse = site.warehouse
    with warehouse.ingesting():
        mended = backfill(InProcess(), warehouse, 0, 1 << 62)
        compact(InProcess(), warehouse, NOW)
        kept = [path.exists() for path in torn]
        compact(InProcess(), warehouse, NOW, keep_hours=0)

    assert (mended.replaced, mended.days_replaced, mended.latency_replaced) == ((), (), ())
    assert (kept, [path.exists() for path in torn]) == ([True] * len(torn), [False] * len(torn))
    assert site.usage() == expected_usage(one, two)
    assert sum(one.difference for one in compare_rows(site.warehouse)) == 0
    assert files_on_disk(site) == {
        f"{spec.name}/{file.path}" for spec in TABLES for file in files_of(site, spec)
    }


def files_of(site: Site, spec: TableSpec) -> list[DataFile]:
    return site.warehouse.table(spec).files()


def files_on_disk(site: Site) -> set[str]:
    places = {spec.name: Path(site.warehouse.place(spec).uri) for spec in TABLES}
    return {
        f"{name}/{path.relative_to(place)}"
        for name, place in places.items()
        for path in place.rglob("*.parquet")
        if "_delta_log" not in path.parts
    }

"""Layers that agree and those that do not, hours summed up anew, small files made into large ones."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.built_once import built_once
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import HOUR_US, NOON_US, FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes, write_comparisons
from quaymaster_pipeline.checks.status import pipeline_metrics, read_status
from quaymaster_pipeline.jobs import upkeep
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.merge import merge_sums
from quaymaster_pipeline.jobs.upkeep import (
    SMALL_FILES_MIN,
    compact,
    end_day,
    is_new_day,
    keep_up,
    plan_compaction,
)
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.bronze.planning import FILE_BYTES
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    LATENCY_HOURLY,
    RECONCILIATION,
    TABLES,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table

ALWAYS = (0, 1 << 62)
NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
NEXT_DAY = NOW + datetime.timedelta(days=1)
"""Then hours and days of the site have ended."""


@built_once
def shipped(directory: Path) -> Site:
    """Return a site with duplicates, a damaged block, and several batches over three hours."""
    site, one, two = Site(directory), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    blocks = [one.block(100), two.block(150)]
    site.ship(*blocks)
    site.run()
    damaged = FrontEnd("c").block(3)
    site.ship(blocks[0], damaged[:-1] + bytes([damaged[-1] ^ 1]), one.block(200))
    site.run()
    site.ship(two.block(50))
    site.run()
    site.front_ends = (one, two)
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return shipped(tmp_path)


def test_layers_agree_by_their_notes_and_by_their_rows(site: Site) -> None:
    by_notes, by_rows = compare_notes(site.warehouse), compare_rows(site.warehouse)

    assert by_notes == by_rows
    assert [one.difference for one in by_rows] == [0] * 5
    assert by_rows[0][1:] == ("rows", 600, 100, 0, 500, 500)
    assert compare_sums(site.warehouse) == []


def test_an_hour_that_is_wrong_is_found_kept_in_mind_and_mended_by_a_backfill(site: Site) -> None:
    warehouse = site.warehouse
    with warehouse.ingesting():
        hourly = warehouse.table(USAGE_HOURLY)
        file = sorted(hourly.files(), key=lambda file: file.bounds["hour"])[0]
        broken = gold.with_date(hourly.read(gold.PARTIAL_SCHEMA.names, files=[file]).slice(1))
        hourly.commit("vandal", 0, hourly.write("vandal", broken), removes=[file])

        found = compare_rows(warehouse)
        write_comparisons(warehouse, found, datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC))
        done = backfill(InProcess(), warehouse, *ALWAYS)
        again = backfill(InProcess(), warehouse, *ALWAYS)

    assert found[0].difference > 0
    assert {one.scope for one in found} == {"all", "2026-11-22T12:00:00Z"}
    assert warehouse.table(RECONCILIATION).rows == len(found)
    assert (done.hours, done.replaced) == (2, ("2026-11-22T12:00:00Z",))
    assert again.replaced == ()
    assert site.usage() == expected_usage(*site.front_ends)
    assert [one.difference for one in compare_rows(site.warehouse)] == [0] * 5
    assert compare_sums(site.warehouse) == []


def test_an_hour_that_is_wrong_in_the_file_of_its_day_is_mended_and_the_others_stay(site: Site) -> None:
    warehouse = site.warehouse
    with warehouse.ingesting():
        merge_sums(InProcess(), warehouse, NEXT_DAY)
        before = warehouse.table(USAGE_HOURLY).read().to_pylist()
        vandalise(warehouse.table(USAGE_HOURLY), lambda rows: rows.slice(1))
        other_hour = backfill(InProcess(), warehouse, NOON_US + HOUR_US, NOON_US + 2 * HOUR_US)
        done = backfill(InProcess(), warehouse, NOON_US, NOON_US + HOUR_US)

    assert (other_hour.hours, other_hour.replaced) == (1, ())
    assert (done.hours, done.replaced) == (1, ("2026-11-22T12:00:00Z",))
    assert site.warehouse.table(USAGE_HOURLY).read().to_pylist() == before
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)
    assert compare_sums(site.warehouse) == []


def test_usage_on_another_account_is_found_and_mended_though_all_sums_are_right(site: Site) -> None:
    warehouse = site.warehouse
    with warehouse.ingesting():
        hourly = warehouse.table(USAGE_HOURLY)
        file = sorted(hourly.files(), key=lambda file: file.bounds["hour"])[0]
        rows = hourly.read(gold.PARTIAL_SCHEMA.names, files=[file])
        (one, other) = sorted(set(rows.column("account_id").to_pylist()))
        swapped = [one if account == other else "" for account in rows.column("account_id").to_pylist()]
        at = rows.schema.get_field_index("account_id")
        wrong = gold.with_date(rows.set_column(at, "account_id", pa.array(swapped)))
        hourly.commit("vandal", 0, hourly.write("vandal", wrong), removes=[file])

        found = compare_rows(warehouse)
        backfill(InProcess(), warehouse, *ALWAYS)

    assert {one.scope for one in found if one.difference} == {
        f"2026-11-22T12:00:00Z/{account}" for account in ("nobody", one, other)
    }
    assert site.usage() == expected_usage(*site.front_ends)
    assert [one.difference for one in compare_rows(site.warehouse)] == [0] * 5


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_file_of_hours_that_cannot_be_read_is_made_anew_by_a_backfill(site: Site, is_merged: bool) -> None:
    warehouse = site.warehouse
    with warehouse.ingesting():
        if is_merged:
            merge_sums(InProcess(), warehouse, NOON + datetime.timedelta(hours=4))
        hourly = warehouse.table(USAGE_HOURLY)
        before = gold.merge_usage([hourly.read(gold.PARTIAL_SCHEMA.names)])
        junk, *_, gone = sorted(hourly.files(), key=lambda file: file.bounds["hour"])
        Path(hourly.place.uri, junk.path).write_bytes(b"junk")
        Path(hourly.place.uri, gone.path).unlink()

        with pytest.raises(BrokenTable, match="backfill"):
            hourly.read()
        with pytest.raises(BrokenTable, match=r"gold\.usage_hourly"):  # of hours that were not asked for
            backfill(InProcess(), warehouse, 0, NOON_US + HOUR_US)
        done = backfill(InProcess(), warehouse, *ALWAYS)

    assert (done.hours, len(done.replaced)) == (2, 2)
    assert site.usage() == expected_usage(*site.front_ends)
    assert [one.difference for one in compare_rows(site.warehouse)] == [0] * 5
    assert sum(one.difference for one in compare_notes(site.warehouse)) == 0
    assert compare_sums(site.warehouse) == []
    assert gold.merge_usage([site.warehouse.table(USAGE_HOURLY).read(gold.PARTIAL_SCHEMA.names)]) == before


def test_days_and_latencies_that_are_wrong_are_found_and_mended(site: Site) -> None:
    specs = USAGE_DAILY, LATENCY_HOURLY
    warehouse = site.warehouse
    with warehouse.ingesting():
        merge_sums(InProcess(), warehouse, NEXT_DAY)
        daily, latencies = (warehouse.table(spec) for spec in specs)
        before = [table.read().to_pylist() for table in (daily, latencies)]
        vandalise(daily, lambda rows: rows.slice(1))
        at = latencies.spec.schema.get_field_index("requests")
        vandalise(latencies, lambda rows: rows.set_column(at, "requests", pc.add(rows.column("requests"), 1)))

        found = compare_sums(warehouse)
        untouched = backfill(InProcess(), warehouse, 0, NOON_US - 24 * HOUR_US)
        done = backfill(InProcess(), warehouse, *ALWAYS)
        again = backfill(InProcess(), warehouse, *ALWAYS)

    assert {one.scope.split()[0] for one in found} == {"gold.usage_daily", "gold.latency_hourly"}
    assert "gold.latency_hourly 2026-11-22T13:00:00Z/SendMessage" in {one.scope for one in found}
    assert min(one.difference for one in found) > 0
    assert [one.difference for one in compare_rows(warehouse)] == [0] * 5
    hours = ("2026-11-22T12:00:00Z", "2026-11-22T13:00:00Z")
    assert (untouched.days_replaced, untouched.latency_replaced) == ((), ())
    assert (done.replaced, done.days_replaced, done.latency_replaced) == ((), ("2026-11-22",), hours)
    assert (again.days_replaced, again.latency_replaced) == ((), ())
    assert compare_sums(site.warehouse) == []
    assert [site.warehouse.table(spec).read().to_pylist() for spec in specs] == before


def vandalise(table: Table, change: Callable[[Any], Any]) -> None:
    """Put changed rows in place of a table's."""
    rows = change(table.read())
    table.commit("vandal", 0, table.write("vandal", rows), removes=table.files())


@pytest.mark.parametrize("spec", [USAGE_DAILY, LATENCY_HOURLY], ids=lambda spec: spec.name)
def test_a_file_of_days_or_latencies_that_cannot_be_read_is_made_anew_by_a_backfill(
    site: Site, spec: TableSpec
) -> None:
    warehouse = site.warehouse
    merge_sums(InProcess(), warehouse, NEXT_DAY)
    table = warehouse.table(spec)
    before = table.read().to_pylist()
    (file,) = table.files()
    Path(table.place.uri, file.path).unlink()
    with pytest.raises(BrokenTable, match="`quaymaster pipeline backfill` makes it anew"):
        table.read()

    with warehouse.ingesting():
        done = backfill(InProcess(), warehouse, *ALWAYS)

    assert site.warehouse.table(spec).read().to_pylist() == before
    assert compare_sums(site.warehouse) == []
    assert bool(done.days_replaced) == (spec is USAGE_DAILY)
    assert bool(done.latency_replaced) == (spec is LATENCY_HOURLY)


def test_latencies_of_hours_that_were_not_asked_for_are_not_lost_with_a_broken_file(site: Site) -> None:
    warehouse = site.warehouse
    merge_sums(InProcess(), warehouse, NEXT_DAY)
    table = warehouse.table(LATENCY_HOURLY)
    Path(table.place.uri, table.files()[0].path).write_bytes(b"junk")

    with warehouse.ingesting(), pytest.raises(BrokenTable, match=r"gold\.latency_hourly"):
        backfill(InProcess(), warehouse, 0, NOON_US + HOUR_US)


@pytest.mark.parametrize("spec", [USAGE_HOURLY, LATENCY_HOURLY, USAGE_DAILY], ids=lambda spec: spec.name)
def test_a_backfill_between_a_run_that_was_killed_and_the_next_counts_nothing_twice(
    site: Site, spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Table.commit

    class Killed(BaseException):
        pass

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is spec:
            raise Killed
        return commit(table, *arguments, **named)

    site.ship(site.front_ends[0].block(100))
    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(Killed):
            site.run()
    before = compare_sums(site.warehouse)
    warehouse = site.warehouse
    with warehouse.ingesting():
        backfill(InProcess(), warehouse, *ALWAYS)
    site.run()

    assert before == []
    assert compare_sums(site.warehouse) == []
    assert site.usage() == expected_usage(*site.front_ends)


def test_rows_say_of_which_batches_they_are_also_after_a_merge_and_a_backfill(site: Site) -> None:
    as_appended = site.warehouse.table(USAGE_HOURLY).read(["first_batch", "last_batch"])
    warehouse = site.warehouse
    with warehouse.ingesting():
        merge_sums(InProcess(), warehouse, NOW)
        merged = site.warehouse.table(USAGE_HOURLY).read().to_pylist()
        hourly = warehouse.table(USAGE_HOURLY)
        hourly.commit("vandal", 0, [], removes=hourly.files())
        backfill(InProcess(), warehouse, *ALWAYS)

    assert as_appended.column("first_batch") == as_appended.column("last_batch")
    assert site.warehouse.table(USAGE_HOURLY).read().to_pylist() == merged
    assert {row["first_batch"] for row in merged} | {row["last_batch"] for row in merged} == {0, 1, 2}
    assert any(row["first_batch"] < row["last_batch"] for row in merged)


def test_compaction_changes_files_and_no_row(site: Site) -> None:
    before = compare_rows(site.warehouse)
    warehouse = site.warehouse
    with warehouse.ingesting():
        done = {
            one.table: (one.before, one.after) for one in compact(InProcess(), warehouse, NOW, keep_hours=0)
        }

    assert done["bronze.blocks"][1] == done["silver.usage_events"][1] == 1
    assert compare_rows(site.warehouse) == before == compare_notes(site.warehouse)
    assert len(list(Path(site.warehouse.place(BLOCKS).uri).glob("*/*.parquet"))) == 1
    assert site.usage() == expected_usage(*site.front_ends)


def test_batches_go_on_after_compaction(site: Site) -> None:
    warehouse = site.warehouse
    with warehouse.ingesting():
        compact(InProcess(), warehouse, NOW, keep_hours=0)
    one, two = site.front_ends
    site.ship(two.block(77), one.block(200))

    site.run()

    assert site.usage() == expected_usage(one, two)
    assert sum(one.difference for one in compare_rows(site.warehouse)) == 0


def test_many_small_files_of_a_date_and_size_are_compacted_while_batches_are_taken(site: Site) -> None:
    warehouse = site.warehouse
    table = warehouse.table(USAGE_EVENTS)
    rows = table.read()
    large = pa.concat_tables([rows] * 20)
    at = large.schema.get_field_index("error_code")
    texts = pa.array([os.urandom(100).hex() for _ in range(large.num_rows)])  # or it would compress too well
    table.commit("larger", 0, table.write("larger", large.set_column(at, "error_code", texts)))
    small = [table.write("more", rows.slice(number, 1))[0] for number in range(SMALL_FILES_MIN)]
    table.commit("more", 0, small[:-10])
    before = table.rows
    with warehouse.ingesting():
        few = [one.table for one in keep_up(InProcess(), warehouse, NOON)]
        warehouse.table(USAGE_EVENTS).commit("more", 1, small[-10:])
        many = [one.table for one in keep_up(InProcess(), warehouse, NOON)]
        again = [one.table for one in keep_up(InProcess(), warehouse, NOON)]

    assert (few, many, again) == ([], [USAGE_EVENTS.name], [])
    table = site.warehouse.table(USAGE_EVENTS)
    assert table.rows == before + 10
    # What is larger by far is not written again for the sake of small ones.
    assert any(file.path.split("/")[-1].startswith("larger") for file in table.files())


def test_a_turn_compacts_round_by_round_until_nothing_is_left_or_its_time_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "BYTES_OF_ROUND", 1)
    monkeypatch.setattr(upkeep, "FILE_BYTES", 1 << 18)
    warehouse = site.warehouse
    table = warehouse.table(USAGE_EVENTS)
    rows = table.read()
    small = [
        table.write("more", rows.slice(number % rows.num_rows, 1))[0] for number in range(4 * SMALL_FILES_MIN)
    ]
    table.commit("more", 0, small)
    before = table.rows
    late = iter([0.0, upkeep.TURN_S])

    with warehouse.ingesting():
        first = keep_up(InProcess(), warehouse, NOON, clock=lambda: next(late))
        others = keep_up(InProcess(), warehouse, NOON, clock=lambda: 0.0)

    assert len([one for one in first if one.table == USAGE_EVENTS.name]) == 1
    assert len([one for one in others if one.table == USAGE_EVENTS.name]) > 0
    table = site.warehouse.table(USAGE_EVENTS)
    assert table.rows == before
    assert keep_up(InProcess(), warehouse, NOON) == []


def test_the_files_of_a_day_at_the_reference_load_become_fewer_than_a_thousand() -> None:
    pass_bytes, passes = 360 << 20, 1_440
    tasks = -(-pass_bytes // FILE_BYTES)
    files = [
        DataFile(f"bronze-{number:06}", pass_bytes // tasks, 10_000, "2026-11-22", {})
        for number in range(passes * tasks)
    ]

    groups = plan_compaction(files)

    assert len(files) > 8_000
    assert sum(map(len, groups)) == len(files)
    assert len(groups) < 1_000


def test_old_files_are_deleted_once_a_day_and_not_on_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    vacuumed: list[str] = []
    monkeypatch.setattr(Table, "vacuum", lambda table, hours: vacuumed.append(f"{table.spec.name} {hours}"))
    warehouse = site.warehouse
    hours = (0, 1, 24, 25, 24 * 9)
    with warehouse.ingesting():
        done = [end_day(warehouse, NOON + datetime.timedelta(hours=hour)) for hour in hours]

    assert done == [False, False, True, False, True]
    assert vacuumed == [f"{spec.name} 24" for spec in TABLES] * 2
    assert not is_new_day(site.warehouse, NOON + datetime.timedelta(hours=hours[-1]))


def test_what_is_done_once_a_day_is_done_again_after_a_clock_was_ahead(tmp_path: Path) -> None:
    warehouse = Site(tmp_path).warehouse
    end_day(warehouse, NOON + datetime.timedelta(days=365))

    assert is_new_day(warehouse, NOON)
    assert end_day(warehouse, NOON)
    assert not is_new_day(warehouse, NOON)


def test_duckdb_and_polars_read_the_same_totals(site: Site) -> None:
    table = site.warehouse.table(USAGE_EVENTS)
    paths = [f"{table.place.uri}/{file.path}" for file in table.files()]
    query = f"select count(*), sum(messages), sum(bytes), sum(chunks) from read_parquet({paths})"

    by_duckdb = duckdb.connect().execute(query).fetchall()
    hourly = polars.read_delta(site.warehouse.table(USAGE_HOURLY).place.uri)
    by_polars = hourly.select("requests", "messages", "bytes", "chunks").sum().rows()

    records = [record for front_end in site.front_ends for record in front_end.records]
    totals = (
        len(records),
        sum(record.message_count for record in records),
        sum(record.payload_bytes for record in records),
        sum(record.chunks for record in records),
    )
    assert by_duckdb == by_polars == [totals]


def test_status_says_what_is_there_and_what_is_missing(site: Site) -> None:
    one, _ = site.front_ends
    one.sequence += 10
    site.ship(one.block(5))
    site.run()

    status = read_status(site.warehouse)

    assert status["rows"] == {"bronze": 605, "silver": 505, "audit": 87, "quarantine": 0, "duplicates": 100}
    assert status["gaps"] == [{"front_end": "a", "epoch": 1, "from": 300, "to": 310}]
    assert (status["damaged_blocks"], status["difference"], status["batches"]) == (1, 0, 4)
    text = pipeline_metrics(status, lag_blocks=3, batch_seconds=0.5, now_s=1.0)
    assert 'quaymaster_pipeline_rows_total{layer="silver"} 505' in text
    assert "quaymaster_pipeline_missing_sequences 10" in text
    assert "quaymaster_pipeline_lag_blocks 3" in text

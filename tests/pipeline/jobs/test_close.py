"""Closes of days: each request is compared once, sums become final, and usage that comes late is added."""

from __future__ import annotations

import datetime
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from harness.built_once import built_once
from harness.pipeline_site import InProcess, Site, expected_usage
from harness.reconciled import compare_sums
from harness.usage_blocks import FrontEnd, slow

from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster_pipeline.jobs import merge
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.close import DayCloser, close_days, complete_closes
from quaymaster_pipeline.jobs.merge import merge_sums
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.warehouse.closes import (
    DayClose,
    hash_of,
    is_closed_file,
    last_closed_day,
    read_closes,
)
from quaymaster_pipeline.warehouse.data_files import hash_of_file
from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    CLOSE_HEADS,
    CLOSES,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

WORKERS = InProcess()
NOVEMBER_22 = datetime.date(2026, 11, 22)
DAY = datetime.timedelta(days=1)


def at(day: int, hour: int = 6) -> datetime.datetime:
    return datetime.datetime(2026, 11, day, hour, tzinfo=datetime.UTC)


@built_once
def started(tmp_path: Path) -> tuple[Site, FrontEnd, FrontEnd]:
    """Return a site with two front ends from 12:00 on the 22nd on; both are past 12:00 on the 24th."""
    site = Site(tmp_path)
    one, two = map(slow, "ab")
    for _ in range(3):
        site.ship(one.block(32), two.block(32))
        site.run(now=at(25))
    return site, one, two


THE_25TH = at(25)


def close(site: Site, now: datetime.datetime = THE_25TH, **options: Any) -> Any:
    return close_days(WORKERS, site.warehouse, now, **options)


def sums_of(front_ends: Iterable[FrontEnd], day: datetime.date) -> Counter[str]:
    """Return what the front ends recorded on a day, by hand."""
    found: Counter[str] = Counter()
    for key, sums in expected_usage(*front_ends).items():
        if key[3].startswith(day.isoformat()):
            names = ("requests", "messages", "bytes", "chunks", "errors")
            found.update(dict(zip(names, sums, strict=True)))
    return found


def sums_in(row: DayClose) -> Counter[str]:
    return Counter(
        {name: getattr(row, name) for name in ("requests", "messages", "bytes", "chunks", "errors")}
    )


def closed_files(site: Site) -> dict[str, int]:
    files = site.warehouse.table(USAGE_DAILY).files()
    return {file.path: file.rows for file in files if is_closed_file(file.path)}


def requests_by_day(site: Site) -> Counter[str]:
    rows = site.warehouse.table(USAGE_DAILY).read(["usage_date", "requests"])
    found: Counter[str] = Counter()
    for date, requests in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found[str(date)] += requests
    return found


def test_a_day_is_closed_once_every_front_end_is_past_it(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)

    closed = close(site)

    rows = read_closes(site.warehouse)
    assert closed.differences == closed.breaks == ()
    assert [(row.day, row.is_late) for row in rows] == [(NOVEMBER_22, False), (NOVEMBER_22 + DAY, False)]
    for row in rows:
        assert sums_in(row) == sums_of((one, two), row.day)
        assert [hash_of_file(site.warehouse.place(USAGE_DAILY), path) for path in row.files] == [
            *row.file_hashes
        ]
    assert sorted(closed_files(site)) == sorted(path for row in rows for path in row.files)
    assert (rows[0].first_batch, rows[0].through_batch, rows[0].blocks, rows[0].block_rows) == (0, 2, 6, 192)
    assert rows[1].previous == rows[0].hash == hash_of(rows[0])
    assert compare_sums(site.warehouse) == []
    assert last_closed_day(site.warehouse) == NOVEMBER_22 + DAY


def test_a_front_end_that_is_behind_keeps_days_open(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    three = slow("c")
    site.ship(three.block(20))  # until 22:00 on the 22nd
    site.run(now=at(25))

    assert close(site).closes == ()
    assert closed_files(site) == {}

    site.ship(three.block(20))
    site.run(now=at(25))
    assert [row.day for row in close(site).closes] == [NOVEMBER_22]


def test_a_day_that_is_not_over_stays_open_though_clocks_of_front_ends_were_ahead(tmp_path: Path) -> None:
    site, *front_ends = started(tmp_path)
    for front_end in front_ends:
        front_end.time_us += 3 * 86_400_000_000
        site.ship(front_end.block(0))
    site.run(now=at(24, 13))

    assert [row.day.day for row in close(site, at(24, 13)).closes] == [22, 23]


def test_a_second_close_adds_nothing(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    close(site)
    versions = [site.warehouse.table(spec).version for spec in (USAGE_DAILY, CLOSES)]

    assert close(site, takes_late=True).closes == ()

    assert [site.warehouse.table(spec).version for spec in (USAGE_DAILY, CLOSES)] == versions


def test_what_comes_late_gets_a_file_of_its_own_at_the_next_close(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    close(site)
    before = closed_files(site)
    late = slow("c")
    site.ship(late.block(124), one.block(48), two.block(48))
    site.run(now=at(26))

    rows = close(site, at(26)).closes

    assert [(row.day.day, row.is_late) for row in rows] == [(22, True), (23, True), (24, False)]
    assert [sums_in(row) for row in rows[:2]] == [sums_of([late], row.day) for row in rows[:2]]
    assert sums_in(rows[2]) == sums_of((one, two, late), rows[2].day)
    assert before.items() <= closed_files(site).items()
    assert compare_sums(site.warehouse) == []
    assert {row.first_batch for row in rows} == {3}


def test_late_usage_waits_for_the_next_day_unless_it_is_asked_for(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    close(site)
    late = slow("c")
    site.ship(late.block(100))  # until the 24th, so nobody holds up the 23rd
    site.run(now=at(25))

    assert close(site).closes == ()
    rows = close(site, takes_late=True).closes

    assert [(row.day.day, row.is_late) for row in rows] == [(22, True), (23, True)]
    assert last_closed_day(site.warehouse) == NOVEMBER_22 + DAY
    assert close(site, takes_late=True).closes == ()


def test_days_on_which_nothing_was_used_are_closed_too(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    close(site)
    for front_end in (one, two):
        front_end.time_us += 5 * 86_400_000_000
    site.ship(one.block(0), two.block(0))  # signs of life, on the 29th
    site.run(now=at(30))

    rows = close(site, at(30)).closes

    assert [(row.day.day, row.requests, row.files) for row in rows if not row.requests] == [(28, 0, ())]
    assert last_closed_day(site.warehouse) == datetime.date(2026, 11, 28)
    assert read_closes(site.warehouse)[-1].hash == hash_of(rows[-1])


class Killed(BaseException):
    """Ends a close where a kill would."""


def killing(monkeypatch: pytest.MonkeyPatch, commits: int, *, after: bool) -> None:
    """Let the process end at the commit after so many: before it, or right after it."""
    commit = Table.commit
    left = [commits]

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        left[0] -= 1
        if left[0] == -1:
            if after:
                commit(table, *arguments, **named)
            raise Killed
        return commit(table, *arguments, **named)

    monkeypatch.setattr(Table, "commit", killed)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_close_that_was_killed_at_a_commit_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int, after: bool
) -> None:
    site, one, two = started(tmp_path)
    with monkeypatch.context() as patch:
        killing(patch, commits, after=after)
        with pytest.raises(Killed):
            close(site)

    noted = read_closes(site.warehouse)  # also where ops.closes does not have them yet
    close(site)

    rows = read_closes(site.warehouse)
    assert noted in ([], rows)
    assert [(row.number, row.day.day) for row in rows] == [(0, 22), (0, 23)]
    assert [sums_in(row) for row in rows] == [sums_of((one, two), row.day) for row in rows]
    assert site.warehouse.table(CLOSES).rows == 2
    assert site.warehouse.table(CLOSE_HEADS).rows == rows[0].heads == 2
    assert compare_sums(site.warehouse) == []


def test_a_batch_that_commits_meanwhile_is_left_for_the_next_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = started(tmp_path)
    late = slow("c")
    site.ship(late.block(100))
    act_before_commits(monkeypatch, [lambda: site.run(now=at(25))])

    rows = close(site).closes

    assert [sums_in(row) for row in rows] == [sums_of((one, two), row.day) for row in rows]
    assert [(row.through_batch, row.is_late) for row in rows] == [(2, False)] * 2
    late_rows = close(site, takes_late=True).closes
    assert [sums_in(row) for row in late_rows] == [sums_of([late], row.day) for row in late_rows]
    assert compare_sums(site.warehouse) == []


def act_before_commits(monkeypatch: pytest.MonkeyPatch, acts: list[Any]) -> None:
    """Do each act once before the next commit; commits of acts are not counted."""
    commit = Table.commit

    def interrupted(table: Table, *arguments: Any, **named: Any) -> bool:
        if acts:
            act, waiting = acts.pop(0), acts[:]
            acts.clear()
            act()
            acts.extend(waiting)
        return commit(table, *arguments, **named)

    monkeypatch.setattr(Table, "commit", interrupted)


def test_a_close_is_planned_again_where_files_were_merged_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = started(tmp_path)
    merged: list[Any] = []
    act_before_commits(monkeypatch, [lambda: merged.extend(merge_sums(WORKERS, site.warehouse, at(25)))])

    rows = close(site).closes

    assert USAGE_DAILY.name in [one.table for one in merged]
    assert [sums_in(row) for row in rows] == [sums_of((one, two), row.day) for row in rows]
    assert compare_sums(site.warehouse) == []


def test_two_processes_that_close_at_a_time_close_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, *_ = started(tmp_path)
    act_before_commits(monkeypatch, [lambda: close(site)])

    assert close(site).closes == ()

    assert [(row.number, row.day.day) for row in read_closes(site.warehouse)] == [(0, 22), (0, 23)]
    assert compare_sums(site.warehouse) == []


def test_closed_files_are_never_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "FILES_MIN", 4)
    site, one, two = started(tmp_path)
    close(site)
    before = closed_files(site)
    late = slow("c")
    for _ in range(6):
        site.ship(late.block(17), one.block(6), two.block(6))
        site.run(now=at(27))
    expected = requests_by_day(site)

    merge_sums(WORKERS, site.warehouse, at(28), is_thorough=True)
    compact(WORKERS, site.warehouse, at(28), keep_hours=0)
    done = backfill(WORKERS, site.warehouse, 0, 1 << 62)

    assert before.items() <= closed_files(site).items()
    assert (done.replaced, done.days_replaced) == ((), ())
    assert requests_by_day(site) == expected
    close(site, at(28), takes_late=True)
    assert before.items() <= closed_files(site).items()
    assert requests_by_day(site) == expected
    assert all(is_closed_file(file.path) for file in files_until(site, last_closed_day(site.warehouse)))


def files_until(site: Site, day: datetime.date | None) -> list[Any]:
    files = site.warehouse.table(USAGE_DAILY).files()
    return [file for file in files if day is not None and str(file.partition_value) <= str(day)]


def change(site: Site, spec: TableSpec, column: str, *, date: str, rows: Any = None) -> None:
    """Add 7 to a column of a file of a date, or put other rows in its place, as a mistake would."""
    table = site.warehouse.table(spec)
    (file, *_) = [file for file in table.files() if file.partition_value == date]
    found = table.read(files=[file])
    place = found.schema.get_field_index(column)
    wrong = found.set_column(place, column, pc.add(found.column(column), 7)) if rows is None else rows(found)
    table.commit(f"mistake {spec.name}", 0, table.write("x", wrong), removes=[file])


@pytest.mark.parametrize("column", ["requests", "billed_requests", "bytes_in", "latency_us_max"])
def test_a_day_whose_sums_differ_stays_open_until_they_are_repaired(tmp_path: Path, column: str) -> None:
    site, one, two = started(tmp_path)
    change(site, USAGE_DAILY, column, date="2026-11-23")

    closed = close(site)

    assert [row.day.day for row in closed.closes] == [22]
    assert closed.open_days == ["2026-11-23"]
    backfill(WORKERS, site.warehouse, 0, 1 << 62)
    (row,) = close(site).closes
    assert (row.day.day, row.difference, row.accepted) == (23, 0, False)
    assert sums_in(row) == sums_of((one, two), row.day)


def test_hours_that_differ_from_silver_keep_their_day_open(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    change(site, USAGE_HOURLY, "bytes_out", date="2026-11-22")

    closed = close(site)

    assert closed.closes == ()
    assert closed.open_days == ["2026-11-22"]
    assert "bytes_out" in closed.breaks[0].reason
    assert files_named(site, "closed-") == []


def files_named(site: Site, prefix: str) -> list[Path]:
    return sorted((site.root / "gold" / "usage_daily").rglob(f"{prefix}*.parquet"))


@pytest.mark.parametrize("spec", [BLOCKS, USAGE_EVENTS], ids=["blocks", "events"])
def test_requests_that_a_layer_lost_keep_all_days_open(tmp_path: Path, spec: TableSpec) -> None:
    site, *_ = started(tmp_path)
    date = site.warehouse.table(spec).files()[0].partition_value
    change(site, spec, "", date=str(date), rows=lambda found: found.slice(1))

    closed = close(site)

    assert closed.closes == ()
    assert closed.open_days == ["batches from 0 on"]
    assert closed_files(site) == {}


def test_batches_that_differ_are_accepted_by_their_name_also_while_a_run_takes_more(tmp_path: Path) -> None:
    site, one, _ = started(tmp_path)
    date = site.warehouse.table(BLOCKS).files()[0].partition_value
    change(site, BLOCKS, "", date=str(date), rows=lambda found: found.slice(1))
    name = close(site).open_days
    site.ship(one.block(2))
    site.run(now=at(25))

    # Of the front end whose block is gone, days after it are not due.
    (row,) = close(site, accepted=name).closes

    assert (row.day.day, row.difference > 0, row.accepted) == (22, True, True)


def test_what_an_operator_accepts_is_closed_and_says_so(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    change(site, USAGE_DAILY, "messages", date="2026-11-22")
    assert close(site, accepted=["2026-11-21"]).closes == ()

    rows = close(site, accepted=["2026-11-22"]).closes

    assert [(row.day.day, row.difference, row.accepted) for row in rows] == [
        (22, 7 * 14, True),
        (23, 0, False),
    ]


def test_late_usage_that_differs_holds_up_all_days_until_it_is_repaired(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    close(site)
    late = slow("c")
    site.ship(late.block(124), one.block(48), two.block(48))
    site.run(now=at(26))
    table = site.warehouse.table(USAGE_DAILY)
    (file,) = [file for file in files_until(site, NOVEMBER_22) if not is_closed_file(file.path)]
    table.commit("mistake", 0, [], removes=[file])
    before = closed_files(site)

    assert close(site, at(26)).open_days == ["2026-11-22"]
    assert closed_files(site) == before
    assert backfill(WORKERS, site.warehouse, 0, 1 << 62).days_replaced == ("2026-11-22",)
    rows = close(site, at(26)).closes

    assert [(row.day.day, row.is_late, row.difference) for row in rows] == [
        (22, True, 0),
        (23, True, 0),
        (24, False, 0),
    ]
    assert sums_in(rows[0]) == sums_of([late], NOVEMBER_22)
    assert compare_sums(site.warehouse) == []


def test_where_all_front_ends_have_ended_every_day_before_today_is_closed(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    for front_end in (one, two):
        site.ship(front_end.block(0, seal=Seal(1, front_end.sequence, "stopped")))
    site.run(now=at(27))

    rows = close(site, at(27)).closes

    assert [row.day.day for row in rows] == [22, 23, 24, 26]
    assert sums_in(rows[2]) == sums_of((one, two), rows[2].day)


def test_a_run_looks_for_due_days_now_and_then(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    closer = DayCloser()

    assert len(closer.keep(WORKERS, site.warehouse, at(25)).closes) == 2
    assert closer.keep(WORKERS, site.warehouse, at(25)).closes == ()

    fresh = DayCloser()
    change(site, BLOCKS, "", date=str(site.warehouse.table(BLOCKS).files()[0].partition_value), rows=drop)
    fresh.keep(WORKERS, site.warehouse, at(25))
    assert fresh.keep(WORKERS, site.warehouse, at(25) + datetime.timedelta(minutes=5)).closes == ()


def test_days_that_a_clock_ahead_has_closed_take_late_usage_once_a_day(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    for front_end in (one, two):
        site.ship(front_end.block(0, seal=Seal(1, front_end.sequence, "stopped")))
    site.run(now=at(25))
    next_year = at(25) + datetime.timedelta(days=365)
    close(site, next_year)
    closer, again = DayCloser(), slow("c")
    site.ship(again.block(30))
    site.run(now=at(25))

    first = closer.keep(WORKERS, site.warehouse, at(25))
    site.ship(again.block(30))
    site.run(now=at(25))
    second = DayCloser().keep(WORKERS, site.warehouse, at(25, 12))
    third = closer.keep(WORKERS, site.warehouse, at(26))

    assert [(row.day.day, row.is_late) for row in first.closes] == [(22, True), (23, True)]
    assert second.closes == ()
    assert [(row.day.day, row.is_late) for row in third.closes] == [(23, True)]
    assert compare_sums(site.warehouse) == []


def test_a_run_looks_for_due_days_again_after_its_clock_was_ahead(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    behind = slow("c")
    site.ship(behind.block(20))
    site.run(now=at(25))
    closer = DayCloser()
    assert closer.keep(WORKERS, site.warehouse, at(25) + datetime.timedelta(days=365)).closes == ()
    site.ship(behind.block(100))
    site.run(now=at(25))

    assert [row.day.day for row in closer.keep(WORKERS, site.warehouse, at(25)).closes] == [22, 23]


def test_a_close_sees_what_others_have_committed_since_its_tables_were_opened(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    warehouse = site.warehouse
    close_days(WORKERS, warehouse, at(25))
    site.ship(one.block(48), two.block(48))
    site.run(now=at(26))

    rows = close_days(WORKERS, warehouse, at(26)).closes

    assert [sums_in(row) for row in rows] == [sums_of((one, two), row.day) for row in rows]
    assert [row.day.day for row in rows] == [24]


def drop(rows: Any) -> Any:
    return rows.slice(1)


def test_closes_that_are_gone_are_told(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    close(site)
    site.ship(one.block(48), two.block(48))
    site.run(now=at(26))
    close(site, at(26))
    table = site.warehouse.table(CLOSES)
    first = next(file for file in table.files() if file.bounds["number"] == (0, 0))
    table.commit("mistake", 0, [], removes=[first])

    with pytest.raises(BrokenTable, match=r"was closed 2 times, and it has 1 closes"):
        read_closes(site.warehouse)


def test_nothing_is_closed_where_days_were_made_anew_and_closes_were_not(tmp_path: Path) -> None:
    site, one, _ = started(tmp_path)
    close(site)
    shutil.rmtree(site.root / "gold" / "usage_daily")
    site.ship(one.block(2))
    site.run(now=at(25))

    with pytest.raises(BrokenTable, match=r"ops\.closes has 1 closes, and it has 0"):
        close(site)


def test_an_empty_warehouse_has_nothing_to_close(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "warehouse")

    assert close_days(WORKERS, warehouse, at(25)).closes == ()
    complete_closes(warehouse)
    assert (read_closes(warehouse), last_closed_day(warehouse)) == ([], None)

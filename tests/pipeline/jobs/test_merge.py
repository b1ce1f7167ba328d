"""Merges change files and no sum: in any order, killed anywhere, next to batches that are appended."""

from __future__ import annotations

import datetime
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.built_once import built_once
from harness.pipeline_site import InProcess, Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs import merge
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.merge import MergeGroup, merge_sums, of_one_round, plan_merges
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.gold import DAILY, HOURLY, PARTIAL_SCHEMA
from quaymaster_pipeline.usage.latency import LATENCY
from quaymaster_pipeline.usage.partial_sums import SUM_TABLES, WrittenSums, commit_batch
from quaymaster_pipeline.warehouse import sums as sums_module
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter
from quaymaster_pipeline.warehouse.errors import CommitConflict, SumsDiffer
from quaymaster_pipeline.warehouse.schemas import DAY_KEYS, HOUR_KEYS, USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.sums import MAXIMA, MINIMA, SUMS, SumTable, add_up, summed, write_sums
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
NEXT_DAY = NOON + 24 * HOUR


def partial_rows(batch_id: int, *usages: tuple[int, int, int]) -> Any:
    """Return partial sums of a batch: of an hour after noon, an account and a number each."""
    rows = [
        dict.fromkeys(PARTIAL_SCHEMA.names, "x")
        | dict.fromkeys((*SUMS, *MAXIMA), number)
        | {
            "hour": NOON + hour * HOUR,
            "account_id": f"account {account}",
            "queue_sk": account % 3,
            "first_batch": batch_id,
            "last_batch": batch_id,
        }
        for hour, account, number in usages
    ]
    return gold.merge_usage([pa.Table.from_pylist(rows, schema=PARTIAL_SCHEMA)])


def append(warehouse: Warehouse, batch_id: int, *tasks: Any) -> None:
    """Append a batch as the pipeline does: each task's partial sums in files of their own."""
    written = WrittenSums()
    for rows in tasks:
        hourly = gold.with_date(rows)
        files = {
            sums.spec.name: write_sums(warehouse.place(sums.spec), sums, f"gold-{batch_id}", of_table)
            for sums, of_table in ((HOURLY, hourly), (DAILY, gold.daily_rows(hourly)))
        }
        written += WrittenSums(files, gold.control_totals(hourly))
    last = warehouse.table(HOURLY.spec).last_batch(gold.APP)
    commit_batch(warehouse, batch_id, written, follows=last)


def hours_in(warehouse: Warehouse) -> Any:
    return gold.merge_usage([warehouse.table(USAGE_HOURLY).read(PARTIAL_SCHEMA.names)])


def days_in(warehouse: Warehouse) -> Any:
    rows = warehouse.table(USAGE_DAILY).read()
    return add_up(rows, ("usage_date", *DAY_KEYS), USAGE_DAILY.schema)


usages = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 1 << 40))
steps = st.lists(
    st.one_of(
        st.lists(
            st.lists(usages, min_size=1, max_size=6), min_size=1, max_size=3
        ),  # a batch: what its tasks have
        st.tuples(
            st.integers(-2, 30), st.booleans()
        ),  # a merge: hours after noon, and whether it is thorough
    ),
    max_size=14,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_sums_are_the_same_in_whatever_order_batches_are_split_appended_and_merged(taken: Any) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as directory:
        patched.setattr(merge, "FILES_MIN", 3)
        patched.setattr(sums_module, "ROWS_IN_MEMORY", 4)
        patched.setattr(sums_module, "ROWS_OF_FILE_MIN", 2)
        warehouse, everything, batches = Warehouse(directory), [PARTIAL_SCHEMA.empty_table()], 0
        for step in taken:
            if isinstance(step, list):
                tasks = [partial_rows(batches, *task) for task in step]
                append(warehouse, batches, *tasks)
                everything += tasks
                batches += 1
            else:
                hours, is_thorough = step
                merge_sums(InProcess(), warehouse, NOON + hours * HOUR, is_thorough=is_thorough)

        expected = gold.merge_usage(everything)
        assert hours_in(warehouse) == expected
        assert days_in(warehouse) == gold.daily_rows(gold.with_date(expected))
        totals = warehouse.table(USAGE_HOURLY).note(gold.TOTALS)
        assert Counter(totals) == Counter(gold.control_totals(expected))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(usages, max_size=12), max_size=5), st.integers(1, 5))
def test_sorted_streams_become_one_whatever_they_are_cut_into(streams: Any, cut: int) -> None:
    tables = [partial_rows(number, *stream) for number, stream in enumerate(streams)]

    def pieces(table: Any) -> Iterator[Any]:
        for at in range(0, table.num_rows, cut):
            yield table.slice(at, cut)

    found = list(summed(map(pieces, tables), HOUR_KEYS, PARTIAL_SCHEMA))

    together = pa.concat_tables([PARTIAL_SCHEMA.empty_table(), *found])
    assert together == gold.merge_usage(tables)
    assert set(MINIMA) <= set(together.column_names)


def filled(directory: Path, batches: int, *, hours: Sequence[int] = (0, 1)) -> Warehouse:
    """Return a warehouse of batches of two tasks each, which have usage of these hours after noon."""
    warehouse = Warehouse(directory)
    for batch_id in range(batches):
        task = partial_rows(batch_id, *((hour, account, 7) for hour in hours for account in range(4)))
        append(warehouse, batch_id, task, task)
    return warehouse


def files_of(warehouse: Warehouse, sums: SumTable = HOURLY) -> Counter[str]:
    """Count files by the hour that they begin with, or date, and whether they are partial, merged or final."""
    kinds = ("gold", "merged", "final", "day", "backfill")
    return Counter(
        f"{(file.bounds['hour'][0][11:13] if sums is HOURLY else file.partition_value)} {kind}"
        for file in warehouse.table(sums.spec).files()
        for kind in kinds
        if file.path.split("/")[-1].startswith(kind)
    )


def test_32_files_of_an_hour_become_one_and_all_of_them_an_hour_after_its_end(tmp_path: Path) -> None:
    warehouse = filled(tmp_path, 17)
    before = hours_in(warehouse)

    early = merge_sums(InProcess(), warehouse, NOON)
    by_32 = files_of(warehouse)
    merge_sums(InProcess(), warehouse, NOON + 2 * HOUR)
    noon_is_over = files_of(warehouse)
    again = merge_sums(InProcess(), warehouse, NOON + 2 * HOUR)

    assert {one.table for one in early} == {"gold.usage_hourly", "gold.usage_daily"}
    assert by_32 == {"12 gold": 2, "12 merged": 1, "13 gold": 2, "13 merged": 1}
    assert noon_is_over == {"12 final": 1, "13 gold": 2, "13 merged": 1}
    assert again == []
    assert files_of(warehouse, DAILY) == {"2026-11-22 gold": 2, "2026-11-22 merged": 1}
    assert hours_in(warehouse) == before


@pytest.mark.parametrize(("now", "kind"), [(NOON + 5 * HOUR, "final"), (NEXT_DAY, "day")])
def test_what_comes_late_is_merged_by_32_and_once_a_day_and_what_is_final_stays(
    tmp_path: Path, now: datetime.datetime, kind: str
) -> None:
    warehouse = filled(tmp_path, 2, hours=[0])
    merge_sums(InProcess(), warehouse, now)
    (final,) = warehouse.table(USAGE_HOURLY).files()
    append(warehouse, 2, partial_rows(2, (0, 1, 5)), partial_rows(2, (0, 2, 5)))

    usual = merge_sums(InProcess(), warehouse, now)
    thorough = merge_sums(InProcess(), warehouse, now, is_thorough=True)
    again = merge_sums(InProcess(), warehouse, now, is_thorough=True)

    assert [one.table for one in usual if one.table == USAGE_HOURLY.name] == []
    assert USAGE_HOURLY.name in {one.table for one in thorough}
    assert again == []
    assert files_of(warehouse) == {f"12 {kind}": 2}
    assert final.path in {file.path for file in warehouse.table(USAGE_HOURLY).files()}


def test_hours_of_a_day_that_is_over_are_one_file_unless_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = filled(tmp_path, 2, hours=range(3))
    before = hours_in(warehouse)
    with monkeypatch.context() as patched:
        patched.setattr(merge, "DAY_BYTES", 1)
        merge_sums(InProcess(), warehouse, NEXT_DAY)
    large = files_of(warehouse)

    merge_sums(InProcess(), warehouse, NEXT_DAY)

    assert large == {"12 final": 1, "13 final": 1, "14 final": 1}
    assert files_of(warehouse) == {"12 day": 1}
    assert hours_in(warehouse) == before
    assert warehouse.table(USAGE_HOURLY).read(PARTIAL_SCHEMA.names) == before


@pytest.mark.slow
def test_files_stay_few_over_100_batches_and_none_is_rewritten_more_than_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = Warehouse(tmp_path)
    commit, rewritten, live = Table.commit, Counter[str](), []

    def counted(table: Table, app: str, batch_id: int, adds: list[DataFile], **named: Any) -> bool:
        removed = [file.path for file in named.get("removes", ())]
        depth = max((rewritten[path] for path in removed), default=-1) + 1
        rewritten.update({file.path: depth for file in adds})
        return commit(table, app, batch_id, adds, **named)

    monkeypatch.setattr(Table, "commit", counted)
    for batch_id in range(100):
        now = NOON + batch_id * datetime.timedelta(minutes=3)  # 20 batches an hour, of two tasks: five hours
        hour = (now - NOON) // HOUR
        task = partial_rows(batch_id, (hour, 1, 3), (hour, 2, 4))
        append(warehouse, batch_id, task, task)
        merge_sums(InProcess(), warehouse, now)
        live.append(len(warehouse.table(USAGE_HOURLY).files()))
    merge_sums(InProcess(), warehouse, NOON + 6 * HOUR)

    # Two open hours of at most 31 partial files and one merged one, and a file for each hour that is over.
    assert max(live) <= 5 + 2 * 32
    assert files_of(warehouse) == {f"{12 + hour} final": 1 for hour in range(5)}
    assert max(rewritten.values()) == 2
    merge_sums(InProcess(), warehouse, NEXT_DAY)
    assert files_of(warehouse) == {"12 day": 1}
    assert sum(hours_in(warehouse).column("requests").to_pylist()) == 100 * 2 * (3 + 4)


def test_a_round_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = filled(tmp_path, 2, hours=range(5))
    plan = plan_merges(warehouse.table(USAGE_HOURLY), HOURLY, NOON + 6 * HOUR)
    sizes = [group.size for group in plan]

    def chosen(bytes_of_round: int, groups_max: int) -> list[MergeGroup]:
        monkeypatch.setattr(merge, "BYTES_OF_ROUND", bytes_of_round)
        return of_one_round(plan, groups_max)

    assert len(plan) == 5
    assert len(chosen(1 << 30, 2)) == 2
    assert len(chosen(max(sizes) * 3, 5)) in (3, 4)
    assert len(chosen(1, 5)) == 1


def test_days_and_latencies_are_merged_by_32_twice_and_then_finally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "FILES_MIN", 4)
    warehouse = Warehouse(tmp_path)
    for batch_id in range(32):
        append(warehouse, batch_id, partial_rows(batch_id, (0, 1, 3)))
        merge_sums(InProcess(), warehouse, NOON)

    merge_sums(InProcess(), warehouse, NOON)

    names = [file.path.split("/")[-1][:8] for file in warehouse.table(USAGE_DAILY).files()]
    assert sorted(names) == ["merged-2", "merged-2"]
    merge_sums(InProcess(), warehouse, NEXT_DAY)
    assert files_of(warehouse, DAILY) == {"2026-11-22 final": 1}
    assert LATENCY.merges_max == DAILY.merges_max == 2


# Killed, next to others, and wrong


class Killed(BaseException):
    """The process ends here; nothing catches it."""


@built_once
def shipped(directory: Path) -> Site:
    """Return a site of several batches."""
    site, one, two = Site(directory), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    for rows in (100, 50, 200):
        site.ship(one.block(rows), two.block(rows))
        site.run()
    site.front_ends = (one, two)
    return site


def check(site: Site) -> None:
    assert site.usage() == expected_usage(*site.front_ends)
    by_rows = compare_rows(site.warehouse)
    assert [found.difference for found in by_rows] == [0] * 5
    assert compare_notes(site.warehouse) == by_rows
    assert compare_sums(site.warehouse) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("table_name", [sums.spec.name for sums in SUM_TABLES])
def test_a_merge_that_is_killed_at_a_commit_changes_no_sum_and_the_next_one_finishes_it(
    tmp_path: Path, table_name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, commit = shipped(tmp_path), Table.commit

    def killed(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec.name == table_name and when == "before":
            raise Killed
        is_new = commit(table, *arguments, **named)
        if table.spec.name == table_name:
            raise Killed
        return is_new

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(Killed):
            merge_sums(InProcess(), site.warehouse, NEXT_DAY)
    check(site)
    site.ship(site.front_ends[0].block(70))
    site.run()
    merge_sums(InProcess(), site.warehouse, NEXT_DAY, is_thorough=True)

    check(site)
    done = backfill(InProcess(), site.warehouse, 0, 1 << 62)
    assert (done.replaced, done.days_replaced, done.latency_replaced) == ((), (), ())


def between_plan_and_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when the first merge has written its files."""
    commit = Table.commit

    def acting(table: Table, app: str, *arguments: Any, **named: Any) -> bool:
        if app == merge.APP:
            monkeypatch.setattr(Table, "commit", commit)
            act()
        return commit(table, app, *arguments, **named)

    monkeypatch.setattr(Table, "commit", acting)


def test_a_batch_that_is_appended_meanwhile_is_not_lost_by_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = shipped(tmp_path)
    site.ship(site.front_ends[1].block(90))
    between_plan_and_commit(monkeypatch, site.run)

    done = merge_sums(InProcess(), site.warehouse, NEXT_DAY)

    assert [one.table for one in done] == [sums.spec.name for sums in SUM_TABLES]
    check(site)
    done_by_backfill = backfill(InProcess(), site.warehouse, 0, 1 << 62)
    assert done_by_backfill.replaced == ()


def test_a_merge_next_to_another_is_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = shipped(tmp_path)
    between_plan_and_commit(monkeypatch, lambda: merge_sums(InProcess(), site.warehouse, NEXT_DAY))

    done = merge_sums(InProcess(), site.warehouse, NEXT_DAY)

    assert done == []
    check(site)


def test_a_merge_that_always_loses_ends_with_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = shipped(tmp_path)

    def lost(table: Table, *_: Any, **__: Any) -> bool:
        raise CommitConflict(table.spec.name)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", lost)
        with pytest.raises(CommitConflict, match=r"gold\.usage_hourly"):
            merge_sums(InProcess(), site.warehouse, NEXT_DAY)
    check(site)


def names_on_disk(site: Site) -> set[str]:
    return {path.name for path in site.root.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_a_file_with_other_sums_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = shipped(tmp_path)
    before = names_on_disk(site)

    def without_a_row(streams: Any, keys: Any, schema: Any) -> Iterator[Any]:
        rows = pa.concat_tables(list(summed(streams, keys, schema)))
        yield rows.slice(1)

    monkeypatch.setattr(merge, "summed", without_a_row)
    versions = [site.warehouse.table(sums.spec).version for sums in SUM_TABLES]

    with pytest.raises(SumsDiffer, match=r"files of gold\.usage_hourly were not merged"):
        merge_sums(InProcess(), site.warehouse, NEXT_DAY)

    assert [site.warehouse.table(sums.spec).version for sums in SUM_TABLES] == versions
    assert names_on_disk(site) == before
    check(site)


def test_a_file_that_cannot_be_read_as_it_was_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = shipped(tmp_path)
    finish = FileWriter.finish

    def damaged(writer: FileWriter) -> DataFile | None:
        file = finish(writer)
        assert file is not None, "rows were written"
        place = site.warehouse.place(USAGE_HOURLY)
        (first, *_) = site.warehouse.table(USAGE_HOURLY).files()
        Path(place.uri, file.path).write_bytes(Path(place.uri, first.path).read_bytes())
        return file

    monkeypatch.setattr(FileWriter, "finish", damaged)

    with pytest.raises(SumsDiffer):
        merge_sums(InProcess(), site.warehouse, NEXT_DAY)
    check(site)


def test_a_file_with_fewer_rows_than_its_log_says_is_not_merged(tmp_path: Path) -> None:
    site = shipped(tmp_path)
    table = site.warehouse.table(USAGE_HOURLY)
    (file, *_) = (file for file in table.files() if file.bounds["hour"][0].startswith("2026-11-22T12"))
    path = Path(table.place.uri, file.path)
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)

    with pytest.raises(SumsDiffer, match="by the table's log"):
        merge_sums(InProcess(), site.warehouse, NEXT_DAY)


def test_no_rows_of_usage_are_no_files(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ship(FrontEnd("a").block(0))
    site.run()

    assert merge_sums(InProcess(), site.warehouse, NEXT_DAY) == []
    assert site.warehouse.table(USAGE_EVENTS).last_batch("silver") == 0
    assert site.warehouse.table(USAGE_HOURLY).last_batch(gold.APP) == 0
    assert site.warehouse.table(USAGE_HOURLY).files() == []

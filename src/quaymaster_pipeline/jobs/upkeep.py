"""What is done to tables now and then: hours summed up anew, small files made into large ones, old files deleted."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage import gold, latency, silver
from quaymaster_pipeline.usage.tasks import Workers, answer_files
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import (
    LATENCY_HOURLY,
    TABLES,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.steps import Steps, Watch
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, within
from quaymaster_pipeline.warehouse.times import text_of_time, us_of_time

BACKFILL_APP = "backfill"
COMPACT_APP = "compact"
FILE_BYTES = 128 << 20
"""What compaction makes files as large as."""
KEEP_HOURS = 24
"""How long files that no table has any more are kept for those who still read them."""
HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Hours that were summed up anew, and what was wrong and was replaced: hours of usage, days, hours of latencies."""

    hours: int
    replaced: tuple[str, ...]
    days_replaced: tuple[str, ...]
    latency_replaced: tuple[str, ...]


def backfill(
    workers: Workers, warehouse: Warehouse, first_us: int, end_us: int, watch: Watch | None = None
) -> Backfilled:
    """Sum up the hours in [first_us, end_us) anew from silver, and their days; replace those that gold has otherwise.

    Files of gold that cannot be read are replaced, too. A step is a file of events.

    Raises:
        BrokenTable: such a file may have hours that were not asked for, or another table is broken.
    """
    events, hourly = warehouse.table(USAGE_EVENTS), warehouse.table(USAGE_HOURLY)
    last_batch = hourly.last_batch(gold.APP)
    _finish_gold(workers, warehouse, last_batch)
    paths = [file.path for file in events.files()]
    work = silver.usage_work(events.place, 0, last_batch, (first_us, end_us))
    steps = None if watch is None else Steps(len(paths), watch)
    answers = workers.over(paths, work, None if steps is None else steps.take)
    right = gold.merge_usage(answers.tables("usage"))
    latencies = _mend_latency(warehouse, latency.merge_latency(answers.tables("latency")), first_us, end_us)
    rows, broken = _readable(hourly, hourly.files(), gold.PARTIAL_SCHEMA)
    hourly.read(files=[file for file in broken if not _lies_in(file, first_us, end_us)])
    found = gold.merge_usage([_of_hours(rows, first_us, end_us)])
    all_hours = _hours_of(right, found)
    wrong = [hour for hour in all_hours if _of_hour(right, hour) != _of_hour(found, hour)]
    if wrong or broken:
        _replace_hours(warehouse, right, pa.array(wrong, gold.PARTIAL_SCHEMA.field("hour").type), broken)
    days = _mend_days(warehouse, first_us, end_us)
    return Backfilled(
        len(all_hours), tuple(text_of_time(hour) for hour in wrong), tuple(days), tuple(latencies)
    )


def _finish_gold(workers: Workers, warehouse: Warehouse, batch_id: int) -> None:
    """Bring a batch that a killed run left in usage_hourly alone into the tables beside it, or it would count twice."""
    had = warehouse.table(LATENCY_HOURLY).last_batch(gold.APP)
    if NO_BATCH < batch_id > had:
        sums = silver.sums_of_batches(workers, warehouse, had + 1, batch_id)
        latency.add_batch(warehouse, batch_id, sums.latency)
    gold.add_days(warehouse, batch_id)


def _mend_latency(warehouse: Warehouse, right: Any, first_us: int, end_us: int) -> list[str]:
    """Put the right counts in place of those of [first_us, end_us) that are otherwise; return the hours."""
    table = warehouse.table(LATENCY_HOURLY)
    files = [file for file in table.files() if _touches(file.partition_value, first_us, end_us)]
    rows, broken = _readable(table, files, latency.PARTIAL_SCHEMA)
    table.read(files=[file for file in broken if not _lies_in(file, first_us, end_us)])
    found = latency.merge_latency([_of_hours(rows, first_us, end_us)])
    wrong = [hour for hour in _hours_of(right, found) if _of_hour(right, hour) != _of_hour(found, hour)]
    if wrong or broken:
        hours = rows.column("hour").cast(pa.int64())
        others = rows.filter(pc.invert(within(hours, first_us, end_us)))
        batch_id = table.last_batch(BACKFILL_APP) + 1
        latency.commit_counts(
            warehouse, BACKFILL_APP, batch_id, latency.merge_latency([others, right]), files
        )
    return [text_of_time(hour) for hour in wrong]


def _mend_days(warehouse: Warehouse, first_us: int, end_us: int) -> list[str]:
    """Put the sums of their hours in place of days in [first_us, end_us) that are otherwise; return the days."""
    daily, hourly = warehouse.table(USAGE_DAILY), warehouse.table(USAGE_HOURLY)
    files, hours = (
        [file for file in table.files() if _touches(file.partition_value, first_us, end_us)]
        for table in (daily, hourly)
    )
    rows, broken = _readable(daily, files, daily.spec.schema)
    right, found = (gold.daily_rows(part) for part in (hourly.read(files=hours), rows))
    days = {str(day) for part in (right, found) for day in pc.unique(part.column("usage_date")).to_pylist()}
    wrong = {day for day in days if _of_day(right, day) != _of_day(found, day)}
    wrong |= {str(file.partition_value) for file in broken}
    if wrong:
        fresh = pa.concat_tables([right.slice(0, 0), *(_of_day(right, day) for day in sorted(wrong))])
        gold.replace_days(warehouse, BACKFILL_APP, daily.last_batch(BACKFILL_APP) + 1, fresh, wrong)
    return sorted(wrong)


def _of_day(daily: Any, day: str) -> Any:
    date = pa.scalar(datetime.date.fromisoformat(day), pa.date32())
    return daily.filter(pc.equal(daily.column("usage_date"), date))


def _touches(day: str | None, first_us: int, end_us: int) -> bool:
    """Return whether any hour of a day is in [first_us, end_us)."""
    start = datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00")
    start_us = us_of_time(start)
    return start_us < end_us and first_us < start_us + 24 * HOUR_US


def _of_hours(rows: Any, first_us: int, end_us: int) -> Any:
    return rows.filter(within(rows.column("hour").cast(pa.int64()), first_us, end_us))


def _hours_of(*tables: Any) -> list[datetime.datetime]:
    return sorted({hour for table in tables for hour in pc.unique(table.column("hour")).to_pylist()})


def _readable(table: Table, files: list[DataFile], schema: Any) -> tuple[Any, list[DataFile]]:
    """Return the rows of those files that can be read, and the files that cannot."""
    parts, broken = [schema.empty_table()], []
    for file in files:
        try:
            parts.append(table.read(schema.names, files=[file]))
        except BrokenTable:
            broken.append(file)
    return pa.concat_tables(parts), broken


def _lies_in(file: DataFile, first_us: int, end_us: int) -> bool:
    """Return whether all hours of a file are in [first_us, end_us), by the table's log."""
    low, high = (datetime.datetime.fromisoformat(text).timestamp() * 1e6 for text in file.bounds["hour"])
    return first_us <= low and high < end_us


def _replace_hours(warehouse: Warehouse, right: Any, wrong: Any, broken: list[DataFile]) -> None:
    hourly = warehouse.table(USAGE_HOURLY)
    lost = {file.path for file in broken}
    files = [file for file in gold.files_of_hours(hourly.files(), wrong) if file.path not in lost]
    before = hourly.read(gold.PARTIAL_SCHEMA.names, files=files)
    kept = before.filter(pc.invert(pc.is_in(before.column("hour"), wrong)))
    fresh = right.filter(pc.is_in(right.column("hour"), wrong))
    # The replaced rows' revision, raised.
    old = gold.raise_revision(before, wrong).group_by("hour").aggregate([("revision", "max")])
    at = pc.index_in(fresh.column("hour"), old.column("hour").combine_chunks())
    highest = max((file.bounds["revision"][1] for file in broken), default=0)
    revision = pc.fill_null(old.column("revision_max").take(at), highest + 1)
    column = fresh.schema.get_field_index("revision")
    fresh = fresh.set_column(column, gold.PARTIAL_SCHEMA.field("revision"), revision)
    merged = gold.merge_usage([kept, fresh])
    batch_id = hourly.last_batch(BACKFILL_APP) + 1
    gold.commit_hours(warehouse, BACKFILL_APP, batch_id, merged, [*files, *broken], lost)


def _of_hour(usage: Any, hour: Any) -> list[dict[str, Any]]:
    rows = usage.filter(pc.equal(usage.column("hour"), pa.scalar(hour, usage.schema.field("hour").type)))
    rows = rows.drop_columns([name for name in ("revision",) if name in rows.column_names])
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction made of a table's files."""

    table: str
    before: int
    after: int


def compact(
    workers: Workers, warehouse: Warehouse, *, keep_hours: int = KEEP_HOURS, watch: Watch | None = None
) -> list[Compacted]:
    """Make the small files of each table and date into few, and delete what no table has had for `keep_hours`.

    A step is a file that is made, or a table whose old files are deleted.
    """
    done = []
    plans = [(spec, plan_compaction(warehouse.table(spec).files())) for spec in TABLES]
    steps = None if watch is None else Steps(sum(len(groups) + 1 for _, groups in plans), watch)
    on_done = None if steps is None else steps.take
    for spec, groups in plans:
        table = warehouse.table(spec)
        if groups:
            items = [json.dumps([file.to_json() for file in group]) for group in groups]
            adds = workers.over(items, compact_work(table.place, spec), on_done).files(spec.name)
            removes = [file for group in groups for file in group]
            batch_id = table.last_batch(COMPACT_APP) + 1
            table.commit(COMPACT_APP, batch_id, adds, removes=removes, changes_data=False)
            done.append(Compacted(spec.name, len(removes), len(adds)))
        table.vacuum(keep_hours)
        if on_done is not None:
            on_done(1)
    return done


def plan_compaction(files: list[DataFile]) -> list[list[DataFile]]:
    """Return which files become one: of the same date, small, in the order of their names, up to FILE_BYTES."""
    groups: list[list[DataFile]] = []
    small = [file for file in files if file.size < FILE_BYTES // 2]
    for file in sorted(small, key=lambda file: (file.partition_value or "", file.path)):
        last = groups[-1] if groups else []
        fits = sum(other.size for other in last) + file.size <= FILE_BYTES
        if last and last[0].partition_value == file.partition_value and fits:
            last.append(file)
        else:
            groups.append([file])
    return [group for group in groups if len(group) > 1]


def compact_work(place: TablePlace, spec: TableSpec) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: make one file of several."""

    def work(item: str) -> Iterator[Any]:
        files = [DataFile.from_json(fields) for fields in json.loads(item)]
        with FileWriter(place, spec, COMPACT_APP, files[0].partition_value) as writer:
            for file in files:
                for rows in read_row_groups(place, spec, file.path):
                    writer.write(rows)
            written = writer.finish()
        yield from answer_files(spec.name, [written])

    return work

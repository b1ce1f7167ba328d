"""What is done to tables now and then: hours summed up anew, small files made into large ones, old files deleted."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.pipeline import gold, latency, silver
from quaymaster.pipeline.data_files import DataFile, FileWriter, Place, read_row_groups
from quaymaster.pipeline.errors import BrokenTable
from quaymaster.pipeline.schemas import TABLES, USAGE_EVENTS, USAGE_HOURLY, TableSpec
from quaymaster.pipeline.tables import Table, Warehouse
from quaymaster.pipeline.tasks import Workers, answer_files
from quaymaster.pipeline.times import text_of_time

BACKFILL_APP = "backfill"
COMPACT_APP = "compact"
FILE_BYTES = 128 << 20
"""What compaction makes files as large as."""
KEEP_HOURS = 24
"""How long files that no table has any more are kept for those who still read them."""
HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Hours that were summed up anew, and those among them whose rows were wrong and were replaced (ISO 8601)."""

    hours: int
    replaced: tuple[str, ...]


def backfill(workers: Workers, warehouse: Warehouse, first_us: int, end_us: int) -> Backfilled:
    """Sum up the hours in [first_us, end_us) anew from silver; replace those that gold has otherwise.

    Files of usage_hourly that cannot be read are replaced, too.

    Raises:
        BrokenTable: such a file may have hours that were not asked for, or another table is broken.
    """
    events, hourly = warehouse.table(USAGE_EVENTS), warehouse.table(USAGE_HOURLY)
    last_batch = hourly.last_batch(gold.APP)
    paths = [file.path for file in events.files()]
    work = silver.usage_work(events.place, 0, last_batch, (first_us, end_us))
    answers = workers.over(paths, work)
    right = gold.merge_usage(answers.tables("usage"))
    latency.replace_hours(
        warehouse, BACKFILL_APP, latency.merge_latency(answers.tables("latency")), first_us, end_us
    )
    rows, broken = _readable(hourly)
    hourly.read(files=[file for file in broken if not _lies_in(file, first_us, end_us)])
    hours = rows.column("hour").cast(pa.int64())
    is_asked = pc.and_(pc.greater_equal(hours, first_us), pc.less(hours, end_us))
    found = gold.merge_usage([rows.filter(is_asked)])
    all_hours = sorted({*right.column("hour").to_pylist(), *found.column("hour").to_pylist()})
    wrong = [hour for hour in all_hours if _of_hour(right, hour) != _of_hour(found, hour)]
    if wrong or broken:
        _replace_hours(warehouse, right, pa.array(wrong, gold.PARTIAL_SCHEMA.field("hour").type), broken)
    gold.add_days(warehouse, hourly.last_batch(BACKFILL_APP), app=BACKFILL_APP)
    return Backfilled(len(all_hours), tuple(text_of_time(hour) for hour in wrong))


def _readable(hourly: Table) -> tuple[Any, list[DataFile]]:
    """Return the rows of all files that can be read, and the files that cannot."""
    parts, broken = [gold.PARTIAL_SCHEMA.empty_table()], []
    for file in hourly.files():
        try:
            parts.append(hourly.read(gold.PARTIAL_SCHEMA.names, files=[file]))
        except BrokenTable:
            broken.append(file)
    return pa.concat_tables(parts), broken


def _lies_in(file: DataFile, first_us: int, end_us: int) -> bool:
    """Return whether all hours of a file of usage_hourly are in [first_us, end_us), by the table's log."""
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
    rows = rows.drop_columns(["revision"])
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction made of a table's files."""

    table: str
    before: int
    after: int


def compact(workers: Workers, warehouse: Warehouse, *, keep_hours: int = KEEP_HOURS) -> list[Compacted]:
    """Make the small files of each table and date into few, and delete what no table has had for `keep_hours`."""
    done = []
    for spec in TABLES:
        table = warehouse.table(spec)
        groups = plan_compaction(table.files())
        if groups:
            items = [json.dumps([file.to_json() for file in group]) for group in groups]
            adds = workers.over(items, compact_work(table.place, spec)).files(spec.name)
            removes = [file for group in groups for file in group]
            batch_id = table.last_batch(COMPACT_APP) + 1
            table.commit(COMPACT_APP, batch_id, adds, removes=removes, changes_data=False)
            done.append(Compacted(spec.name, len(removes), len(adds)))
        table.vacuum(keep_hours)
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


def compact_work(place: Place, spec: TableSpec) -> Callable[[str], Iterator[Any]]:
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

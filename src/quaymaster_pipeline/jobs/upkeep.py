"""What is done to tables now and then: small files made into large ones, partial sums merged, old files deleted.

`pipeline run` does what is due next to its batches, for a bounded time (`keep_up`); `compact` does all of it.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.jobs.close import complete_closes
from quaymaster_pipeline.jobs.header_expiry import complete_expiry
from quaymaster_pipeline.jobs.merge import BYTES_OF_ROUND, Merged, merge_sums
from quaymaster_pipeline.jobs.retention import KEEP_HOURS
from quaymaster_pipeline.usage.tasks import Workers, answer_files
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    CLOSE_HEADS,
    EXPIRED_BLOCKS,
    RECONCILIATION,
    SUMMED_UP,
    TABLES,
    TableSpec,
)
from quaymaster_pipeline.warehouse.steps import Steps, Watch
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, planning_again

COMPACT_APP: Final = "compact"
DAILY_APP: Final = "daily upkeep"
"""Its note, in the log of ops.reconciliation, has the day on which it was done last, as an ordinal."""
FILE_BYTES: Final = 1 << 30
"""What compaction makes files as large as. Tasks stream them: none has more in memory than is read at a time."""
SMALL_FILES_MIN: Final = 32
"""So many small files of one date and about one size are due to become one."""
SIZE_STEP_BITS: Final = 4
"""Files are of about one size within a factor of 16: so a byte is rewritten a few times, however small files come."""
TURN_S: Final = 30.0
"""A turn begins no further round of merging after this. A round is bounded in bytes, a turn in time: at 10 billion
requests a day each pass makes files of hundreds of megabytes, so a turn has as many rounds as that takes."""
_COMPACTED: Final = tuple(spec for spec in TABLES if spec not in (*SUMMED_UP, EXPIRED_BLOCKS, CLOSE_HEADS))


def compact(
    workers: Workers,
    warehouse: Warehouse,
    now: datetime.datetime,
    *,
    keep_hours: int = KEEP_HOURS,
    watch: Watch | None = None,
) -> list[Merged]:
    """Make the small files of each table and date into few, merge partial sums, and delete what is `keep_hours` old.

    What is deleted are files that no table has had for so long. A step is a file that is made, or a table whose old
    files are deleted.

    Raises: see `merge_sums`.
    """
    complete_expiry(workers, warehouse)  # or what has expired is in one file with what has not
    complete_closes(warehouse)  # or a file that a commit names is deleted before its table has it
    planned = sum(len(plan_compaction(warehouse.table(spec).files())) for spec in _COMPACTED)
    steps = None if watch is None else Steps(planned + len(TABLES), watch)
    on_done = None if steps is None else steps.take
    done = []
    for spec in _COMPACTED:
        one = _compact(workers, warehouse.table(spec), lambda table: plan_compaction(table.files()), on_done)
        done += [] if one is None else [one]
    done += merge_sums(workers, warehouse, now, is_thorough=True, groups_max=None)
    for spec in TABLES:
        warehouse.table(spec).vacuum(keep_hours)
        if on_done is not None:
            on_done(1)
    return done


def keep_up(
    workers: Workers,
    warehouse: Warehouse,
    now: datetime.datetime,
    *,
    ends_periods: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> list[Merged]:
    """Merge and compact what is due, round by round until nothing is left or TURN_S have passed by `clock`, seconds.

    `ends_periods`: see `merge_sums`.

    Raises: see `merge_sums`.
    """
    complete_expiry(workers, warehouse)
    is_thorough = ends_periods and is_new_day(warehouse, now)
    began_s, done = clock(), list[Merged]()
    while True:
        of_round = merge_sums(workers, warehouse, now, is_thorough=is_thorough, ends_periods=ends_periods)
        for spec in _COMPACTED:
            one = _compact(
                workers, warehouse.table(spec), lambda table: plan_due_compaction(table, workers.cores), None
            )
            of_round += [] if one is None else [one]
        done += of_round
        if not of_round or clock() - began_s >= TURN_S:
            return done


def is_new_day(warehouse: Warehouse, now: datetime.datetime) -> bool:
    """Return whether `end_day` was last called on another day than that of `now`: a clock may have been ahead."""
    return bool(warehouse.table(RECONCILIATION).note(DAILY_APP).get("day") != now.toordinal())


def end_day(warehouse: Warehouse, now: datetime.datetime) -> bool:
    """Delete the files that no table has had for a day, once a day. False, and nothing done, when it was done today.

    A warehouse that is looked at for the first time has none.
    """
    table = warehouse.table(RECONCILIATION)
    if not is_new_day(warehouse, now):
        return False
    is_first = table.last_batch(DAILY_APP) == NO_BATCH
    if not is_first:
        complete_closes(warehouse)  # see `compact`
        for spec in TABLES:
            warehouse.table(spec).vacuum(KEEP_HOURS)
    table.commit(DAILY_APP, None, [], note={"day": now.toordinal()})
    return not is_first


def _compact(
    workers: Workers,
    table: Table,
    plan: Callable[[Table], list[list[DataFile]]],
    on_done: Callable[[int], None] | None,
) -> Merged | None:
    """Make files into few as planned; where others replaced one of them meanwhile, plan again. None: nothing is due."""

    def compact_once() -> Merged | None:
        groups = plan(table)
        if not groups:
            return None
        items = [json.dumps([file.to_json() for file in group]) for group in groups]
        adds = workers.over(items, compact_work(table.place, table.spec), on_done).files(table.spec.name)
        removes = [file for group in groups for file in group]
        table.commit(COMPACT_APP, None, adds, removes=removes, changes_data=False)
        return Merged(table.spec.name, len(removes), len(adds))

    return planning_again(compact_once, table)


def plan_due_compaction(table: Table, cores: int) -> list[list[DataFile]]:
    """Return files that become one now: many of one date and of about one size; no more than a round may take.

    Of large files that are as many as there are cores.
    """
    lines = table.file_lines()
    if lines.num_rows < SMALL_FILES_MIN:
        return []
    lines = lines.filter(pc.less(lines.column("size_bytes"), FILE_BYTES // 2))
    step = pc.floor(pc.divide(pc.log2(pc.cast(lines.column("size_bytes"), pa.float64())), SIZE_STEP_BITS))
    lines = lines.append_column("step", step.cast(pa.int64()))
    partition = f"partition.{table.spec.partition_column}"
    keys = ["step"] if table.spec.partition_column is None else ["step", partition]
    counts = lines.group_by(keys).aggregate([("path", "count")])
    counts = counts.filter(pc.greater_equal(counts.column("path_count"), SMALL_FILES_MIN))
    groups: list[list[DataFile]] = []
    size = 0
    for row in counts.to_pylist():
        mask = pc.equal(lines.column("step"), row["step"])
        if len(keys) > 1:
            mask = pc.and_(mask, pc.equal(lines.column(partition), row[partition]))
        for group in plan_compaction(table.files(lines.filter(mask))):
            size += sum(file.size for file in group)
            if len(groups) >= cores and size > BYTES_OF_ROUND:
                return groups
            groups.append(group)
    return groups


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

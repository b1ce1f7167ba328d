"""Merges: many small files of partial sums become few large ones, and every sum stays what it was.

    a batch's files ──32 of one period──▶ merged-1 ──▶ …            while the period (an hour, a day) goes on
          └──────────────────┴──an hour after the period──▶ final    in the order of the keys, up to 1 GiB a file
                          hours of a day that is over, if small ──▶ day

Tasks read, add up and write; the driver commits lists of files. What an hour has is rewritten at most twice, and once
more where all of its day fits in a small file. What comes late to a period that is final is merged by 32 as before, and
once a day. Batches are appended meanwhile: a commit that another one came before is tried again, and planned again
where a file is gone.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.partial_sums import SUM_TABLES
from quaymaster_pipeline.usage.tasks import Workers, answer_files
from quaymaster_pipeline.warehouse.closes import CLOSED
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.sums import SumTable, read_sorted, summed, totals_of
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, planning_again
from quaymaster_pipeline.warehouse.times import DAY_US, HOUR_US, us_of_time

APP: Final = "merge"
FILES_MIN: Final = 32
"""So many files of a period become one while it goes on."""
FILES_MAX: Final = 256
FILE_BYTES: Final = 1 << 30
DAY_BYTES: Final = 128 << 20
"""Hours of a day that is over are in one file, if that is at most as large: else there would be 18,000 in 25 months."""
SETTLED_US: Final = HOUR_US
"""So long after the end of a period its files become one."""
GROUPS_OF_ROUND: Final = 64
BYTES_OF_ROUND: Final = 256 << 20
"""Bounds of what is merged before it is planned again; of a larger group, one alone."""
_FINAL: Final = 1 << 20
"""The level of files of periods that are over. That of others is how often their rows were merged."""
_DAY: Final = _FINAL + 1
_CLOSED: Final = _DAY + 1
"""Of files of closed days (`jobs/close`), which are never rewritten."""
_PREFIXES: Final = {_FINAL: "final", _DAY: "day", _CLOSED: CLOSED}


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Files of one period that become one file."""

    level: int
    """Of the file that they become."""
    files: tuple[DataFile, ...]

    @property
    def size(self) -> int:
        """How many bytes the files have."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of a table's files."""

    table: str
    before: int
    after: int


def merge_sums(
    workers: Workers,
    warehouse: Warehouse,
    now: datetime.datetime,
    *,
    is_thorough: bool = False,
    ends_periods: bool = True,
    groups_max: int | None = GROUPS_OF_ROUND,
) -> list[Merged]:
    """Merge what is due in each table of partial sums; at most so many groups a table, and of so many bytes.

    `ends_periods`: also those whose period has ended. `is_thorough`: of these also what came after they were merged.

    Raises:
        SumsDiffer: files that were made have other sums than those they are made of. Nothing is committed.
        CommitConflict: others replaced the files again and again.
    """

    def merge(table: Table, sums: SumTable) -> Merged | None:
        plan = plan_merges(table, sums, now, is_thorough=is_thorough, ends_periods=ends_periods)
        groups = plan if groups_max is None else of_one_round(plan, groups_max)
        return _merge(workers, table, sums, groups) if groups else None

    tables = [(warehouse.table(sums.spec), sums) for sums in SUM_TABLES]
    done = [planning_again(functools.partial(merge, table, sums), table) for table, sums in tables]
    return [one for one in done if one is not None]


def _merge(workers: Workers, table: Table, sums: SumTable, groups: Sequence[MergeGroup]) -> Merged:
    items = [json.dumps([group.level, [file.to_json() for file in group.files]]) for group in groups]
    adds = workers.over(items, merge_work(table.place, sums)).files(sums.spec.name)
    if len(adds) != len(groups):
        raise SumsDiffer(
            f"files of {sums.spec.name} were not merged: of {len(groups)} groups {len(adds)} became a file"
        )
    removes = [file for group in groups for file in group.files]
    table.commit(APP, None, adds, removes=removes, changes_data=False)
    return Merged(sums.spec.name, len(removes), len(adds))


def merge_work(place: TablePlace, sums: SumTable) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: make one file of several, and sum up both, the new one as it can be read.

    It raises SumsDiffer, and leaves no file, unless both have the same sums.
    """
    spec, names = sums.spec, sums.sums

    def work(item: str) -> Iterator[Any]:
        level, fields = json.loads(item)
        files = [DataFile.from_json(one) for one in fields]
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()

        def counted(file: DataFile) -> Iterator[Any]:
            rows_read = 0
            for rows in read_sorted(place, spec, file, spec.file_schema, of_files=len(files)):
                before.update(totals_of(rows, names))
                rows_read += rows.num_rows
                yield rows
            if rows_read != file.rows:
                raise SumsDiffer(
                    f"the file {file.path} of {spec.name} has {rows_read} rows, and by the table's log {file.rows}; "
                    "`quaymaster pipeline backfill` finds what is wrong"
                )

        prefix = _PREFIXES.get(level, f"merged-{level}")
        with FileWriter(place, spec, prefix, files[0].partition_value) as writer:
            for rows in summed(map(counted, files), sums.keys, spec.file_schema):
                writer.write(rows)
            written = writer.finish()
            if written is not None:
                for rows in read_sorted(place, spec, written, spec.file_schema, of_files=1):
                    after.update(totals_of(rows, names))
            if before != after:
                raise SumsDiffer(
                    f"files of {spec.name} were not merged: {dict(before)} would become {dict(after)}; "
                    f"the first of them is {files[0].path}"
                )
        yield from answer_files(spec.name, [written])

    return work


def of_one_round(plan: Sequence[MergeGroup], groups_max: int) -> list[MergeGroup]:
    """Return the groups that are merged now: those of the most files first, within the bounds of a round."""
    chosen: list[MergeGroup] = []
    size = 0
    for group in sorted(plan, key=lambda group: -len(group.files))[:groups_max]:
        if chosen and size + group.size > BYTES_OF_ROUND:
            continue
        chosen.append(group)
        size += group.size
    return chosen


def plan_merges(
    table: Table,
    sums: SumTable,
    now: datetime.datetime,
    *,
    is_thorough: bool = False,
    ends_periods: bool = True,
) -> list[MergeGroup]:
    """Return which files become one. Python sees only lines of periods in which something is due."""
    lines = table.file_lines()
    if lines.num_rows == 0:
        return []
    starts = lines.column("min.hour" if sums.period_column == "hour" else f"partition.{sums.period_column}")
    kind = pa.timestamp("us", tz=None if pa.types.is_date(starts.type) else "UTC")
    lines = lines.append_column("period", starts.cast(kind).cast(pa.int64()))
    lines = lines.append_column("level", levels_of(lines.column("path")))
    lines = lines.filter(pc.is_valid(lines.column("period")))
    ended_us = us_of_time(now) - SETTLED_US if ends_periods else 0
    groups: list[MergeGroup] = []
    if sums.period_us < DAY_US:
        groups = _plan_days(table, lines, ended_us, is_thorough=is_thorough)
        planned = pa.array([file.path for group in groups for file in group.files], pa.string())
        lines = lines.filter(pc.invert(pc.is_in(lines.column("path"), planned)))
    finished = _periods(lines.filter(pc.greater_equal(lines.column("level"), _FINAL)))
    lines = lines.filter(pc.less(lines.column("level"), _FINAL))
    counts = lines.group_by(["period", "level"]).aggregate([("path", "count")])
    counts = counts.append_column("has_final", pc.is_in(counts.column("period"), finished))
    levels: dict[int, dict[int, int]] = {}
    final: set[int] = set()
    for row in counts.to_pylist():
        levels.setdefault(row["period"], {})[row["level"]] = row["path_count"]
        if row["has_final"]:
            final.add(row["period"])
    for period, of_level in sorted(levels.items()):
        has_ended = period + sums.period_us <= ended_us
        if has_ended and (is_thorough or period not in final) and sum(of_level.values()) > 1:
            groups += _cut(_files(table, lines, period, None), _FINAL, FILES_MAX)
            continue
        for level, count in sorted(of_level.items()):
            if level < sums.merges_max and count >= FILES_MIN:
                whole = count // FILES_MIN * FILES_MIN
                groups += _cut(_files(table, lines, period, level)[:whole], level + 1, FILES_MIN)
    return groups


def _plan_days(table: Table, lines: Any, ended_us: int, *, is_thorough: bool) -> list[MergeGroup]:
    """Return the files of hours of days that are over and small, of each day that is not in one file yet."""
    days = pc.multiply(pc.divide(lines.column("period"), DAY_US), DAY_US)
    lines = lines.set_column(lines.schema.get_field_index("period"), "period", days)
    lines = lines.filter(pc.less_equal(lines.column("period"), ended_us - DAY_US))
    if not is_thorough:
        done = _periods(lines.filter(pc.equal(lines.column("level"), _DAY)))
        lines = lines.filter(pc.invert(pc.is_in(lines.column("period"), done)))
    lines = lines.filter(pc.less(lines.column("level"), _DAY))
    counts = lines.group_by("period").aggregate([("path", "count"), ("size_bytes", "sum")])
    is_due = pc.and_(
        pc.greater(counts.column("path_count"), 1), pc.less_equal(counts.column("size_bytes_sum"), DAY_BYTES)
    )
    return [
        group
        for period in sorted(counts.filter(is_due).column("period").to_pylist())
        for group in _cut(_files(table, lines, period, None), _DAY, FILES_MAX)
    ]


def _periods(lines: Any) -> Any:
    return pc.unique(lines.column("period"))


def _files(table: Table, lines: Any, period: int, level: int | None) -> list[DataFile]:
    mask = pc.equal(lines.column("period"), period)
    if level is not None:
        mask = pc.and_(mask, pc.equal(lines.column("level"), level))
    return sorted(table.files(lines.filter(mask)), key=lambda file: file.path)


def _cut(files: Sequence[DataFile], level: int, files_max: int) -> list[MergeGroup]:
    """Return files in groups of at most so many, and so many bytes; none of one file."""
    groups: list[list[DataFile]] = [[]]
    for file in files:
        last = groups[-1]
        if last and (len(last) == files_max or sum(one.size for one in last) + file.size > FILE_BYTES):
            groups.append([])
        groups[-1].append(file)
    return [MergeGroup(level, tuple(group)) for group in groups if len(group) > 1]


def levels_of(paths: Any) -> Any:
    """Return how often the rows of each of these files were merged, by its name."""
    kinds = pc.extract_regex(paths, r"(?P<kind>merged-\d+|final|day|closed)-[0-9a-f]{32}\.parquet$")
    numbers = pc.fill_null(pc.struct_field(kinds, [0]), "merged-0")
    for level, prefix in _PREFIXES.items():
        numbers = pc.replace_substring(numbers, prefix, f"merged-{level}")
    return pc.replace_substring(numbers, "merged-", "").cast(pa.int64())

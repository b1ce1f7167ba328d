"""Partial sums of a batch: a task that writes rows of usage writes their sums, too, and the driver only commits files.

    task of silver    PartialSums.add(rows of usage)…, write() ──files, control totals──▶ WrittenSums of the batch
    driver            usage_events ──commit──▶ usage_hourly ──▶ latency_hourly ──▶ usage_daily

Each commit names the batch, and each table says by itself which batches it has. What a killed run has not committed is
summed up from silver again, by tasks, into those tables that do not have it (`complete`). Its first files are garbage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.batch_rows import files_of_batches
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.gold import (
    APP,
    DAILY,
    HOURLY,
    TOTALS,
    USED,
    control_totals,
    daily_rows,
    merge_usage,
    partial_usage,
    with_date,
)
from quaymaster_pipeline.usage.latency import LATENCY, merge_latency, partial_latency
from quaymaster_pipeline.usage.latency import with_date as latency_with_date
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.tasks import Answers, Workers, answer_counts, answer_files
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS
from quaymaster_pipeline.warehouse.sums import ROWS_IN_MEMORY, SumTable, write_sums
from quaymaster_pipeline.warehouse.tables import Warehouse, within

SUM_TABLES: Final = (HOURLY, LATENCY, DAILY)
"""In the order of their commits."""
SILVER: Final = "silver"
"""The job that fills usage_events."""
_TOTALS_ANSWER: Final = "gold totals"


@dataclass(frozen=True, slots=True)
class WrittenSums:
    """Files of partial sums by the name of their table, not committed yet, and their control totals.

    `tasks` is how many Spark tasks wrote them besides those of another layer.
    """

    files: Mapping[str, list[DataFile]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    tasks: int = 0

    @property
    def rows(self) -> int:
        """How many rows of sums there are."""
        return sum(file.rows for files in self.files.values() for file in files)

    def __add__(self, other: WrittenSums) -> WrittenSums:
        names = self.files.keys() | other.files.keys()
        files = {name: [*self.files.get(name, ()), *other.files.get(name, ())] for name in names}
        totals = Counter(self.totals)
        totals.update(other.totals)
        return WrittenSums(files, totals, self.tasks + other.tasks)

    def answers(self) -> Iterator[Any]:
        """Yield what a task answers."""
        for name, files in self.files.items():
            yield from answer_files(name, files)
        if self.totals:
            yield answer_counts(_TOTALS_ANSWER, self.totals)

    @classmethod
    def of(cls, answers: Answers) -> WrittenSums:
        """Return what all tasks of a job wrote."""
        files = {sums.spec.name: answers.files(sums.spec.name) for sums in SUM_TABLES}
        return cls(files, answers.counts(_TOTALS_ANSWER))


class PartialSums:
    """What one task sums up: fed with rows of usage_events, it writes their sums at the end.

    `places` are of tables by their names; those of SUM_TABLES that are among them are written. `label` is in the names
    of the files: the batch, or what else they are of.
    """

    def __init__(self, places: Mapping[str, TablePlace], label: int | str) -> None:
        self._tables = [(sums, places[sums.spec.name]) for sums in SUM_TABLES if sums.spec.name in places]
        self._prefix = f"{APP}-{label}"
        self._usage: list[Any] = []
        self._latency: list[Any] = []
        self._waiting = 0

    def add(self, usage: Any) -> None:
        """Add rows of usage_events, with at least the columns USED."""
        self._usage.append(partial_usage(usage))
        self._latency.append(partial_latency(usage))
        self._waiting += self._usage[-1].num_rows
        if self._waiting > max(ROWS_IN_MEMORY, self._usage[0].num_rows):
            self._usage, self._latency = [merge_usage(self._usage)], [merge_latency(self._latency)]
            self._waiting = 0

    def write(self) -> WrittenSums:
        """Write what was added up, a file for each period of a table."""
        hourly = with_date(merge_usage(self._usage))
        rows = {
            HOURLY.spec.name: hourly,
            LATENCY.spec.name: latency_with_date(merge_latency(self._latency)),
            DAILY.spec.name: daily_rows(hourly),
        }
        files = {
            sums.spec.name: write_sums(place, sums, self._prefix, rows[sums.spec.name])
            for sums, place in self._tables
        }
        return WrittenSums(files, Counter(control_totals(hourly)))


def commit_batch(warehouse: Warehouse, batch_id: int, written: WrittenSums, *, follows: int) -> None:
    """Append sums to the tables that were written and do not have them: of batches after `follows` up to this one.

    Raises:
        CommitConflict: another process appended some of these batches, and not all.
    """
    for sums in SUM_TABLES:
        if sums.spec.name in written.files:
            counts = {TOTALS: written.totals} if sums is HOURLY else None
            table = warehouse.table(sums.spec)
            files = written.files[sums.spec.name]
            try:
                is_ours = table.commit(APP, batch_id, files, counts=counts, follows=follows)
            except CommitConflict:
                # A backfill completes what it finds under way, with the same sums.
                if table.last_batch(APP) < batch_id:
                    raise
            else:
                if not is_ours and table.last_batch(APP) < batch_id:
                    raise CommitConflict(
                        f"another process adds batches to {sums.spec.name} in {warehouse.root}"
                    )


def whole_coverage(warehouse: Warehouse) -> Coverage:
    """Return what the blocks cover that all layers have: usage up to its `closed_until_us` is whole in gold."""
    return coverage_of(warehouse, last_whole_batch(warehouse))


def last_whole_batch(warehouse: Warehouse) -> int:
    """Return the last batch that all layers have."""
    tables = [(warehouse.table(sums.spec), APP) for sums in SUM_TABLES]
    tables.append((warehouse.table(USAGE_EVENTS), SILVER))
    return min(table.last_batch(app) for table, app in tables)


def complete(workers: Workers, warehouse: Warehouse, through: int) -> WrittenSums | None:
    """Append the batches of silver up to `through` to the tables that lack them after a kill; None when none do."""
    events = warehouse.table(USAGE_EVENTS)
    lacking: dict[int, list[SumTable]] = {}
    for sums in SUM_TABLES:
        last = warehouse.table(sums.spec).last_batch(APP)
        if last < through:
            lacking.setdefault(last, []).append(sums)
    written = WrittenSums()
    for last, tables in sorted(lacking.items()):
        places = {sums.spec.name: warehouse.place(sums.spec) for sums in tables}
        paths = [file.path for file in files_of_batches(events, last + 1, through)]
        work = summing_work(events.place, places, through, last + 1, through)
        answers = workers.over(paths, work)
        found = WrittenSums.of(answers)
        found = WrittenSums({name: found.files[name] for name in places}, found.totals, answers.tasks)
        commit_batch(warehouse, through, found, follows=last)
        written += found
    return written if lacking else None


def summing_work(
    source: TablePlace,
    places: Mapping[str, TablePlace],
    label: int | str,
    first_batch: int,
    last_batch: int,
    hours_us: tuple[int, int] | None = None,
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does to sum up a file of usage_events: batches inclusive, hours half open."""

    def work(path: str) -> Iterator[Any]:
        sums = PartialSums(places, label)
        for rows in read_row_groups(source, USAGE_EVENTS, path, USED):
            mask = within(rows.column("batch_id"), first_batch, last_batch + 1)
            if hours_us is not None:
                mask = pc.and_(mask, within(rows.column("hour").cast(pa.int64()), *hours_us))
            sums.add(rows.filter(mask))
        yield from sums.write().answers()

    return work

"""What came so far: read from ops.coverage and the headers of later batches, and kept there now and then."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.batch_rows import in_batches, lines_of_batches
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze.coverage_rows import coverage_in, coverage_rows
from quaymaster_pipeline.usage.bronze.runs import (
    RUN_COLUMNS,
    RUN_SCHEMA,
    merged_runs,
    runs_of_rows,
    runs_of_table,
)
from quaymaster_pipeline.usage.expired import expired_blocks
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.tasks import ThisProcess, Workers, answer_table
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCKS, COVERAGE, EXPIRED_BLOCKS
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Warehouse

COVERAGE_BATCHES: Final = 64
COVERAGE_S: Final = 600
"""After so many batches, or seconds, ops.coverage is written again: a start reads the headers of what came since."""
HERE: Final = ThisProcess()
HEADERS_HERE_MAX: Final = 1_000_000
"""So many headers the driver reads itself, half a second long: what came since ops.coverage was written."""
HEADERS_OF_TASK: Final = 4_000_000
HEADERS_AT_ONCE: Final = 262_144
"""So many headers are in a task's memory; of others only the runs, which are as many as front ends."""


def coverage_of(warehouse: Warehouse, through: int | None = None, workers: Workers = HERE) -> Coverage:
    """Return what all blocks taken so far cover: as ops.coverage says, and the headers of what came since.

    Where ops.coverage is lost, what has expired is as ops.expired_blocks says, and tasks of `workers` read the headers
    of all that has not. `through`: only up to this batch, which other layers have.
    """
    warehouse.table(BLOCKS)  # looked at before what says which of them have expired
    saved = warehouse.table(COVERAGE).read()
    coverage = coverage_in(saved)
    since = pc.max(saved.column("batch_id")).as_py() if saved.num_rows else NO_BATCH
    expired_table = warehouse.table(EXPIRED_BLOCKS)
    expired_table.refresh()
    expired = expired_blocks(expired_table)
    if since < expired.through:
        coverage, since = Coverage.of_lines(expired.lines()), expired.through
    add_batches(coverage, warehouse, since + 1, through, workers)
    return coverage


def add_batches(
    coverage: Coverage,
    warehouse: Warehouse,
    first: int,
    through: int | None = None,
    workers: Workers = HERE,
) -> None:
    """Add what the headers of the blocks of these batches say: from `first` on, up to `through` or the last one.

    Where they are many, as after a loss of ops.coverage, tasks of `workers` read them.
    """
    table = warehouse.table(BLOCKS)
    last = table.last_batch(BRONZE) if through is None else through
    lines = lines_of_batches(table, first, last)
    if not lines.num_rows:
        return
    if pc.sum(lines.column("num_records")).as_py() <= HEADERS_HERE_MAX:
        workers = HERE
    answers = workers.over(plan_headers(lines), _runs_work(table.place, first, last))
    for answered in answers.tables("runs"):
        for run in runs_of_table(answered):
            coverage.add(run)


def plan_headers(lines: Any) -> list[str]:
    """Return items of work: paths of files, about HEADERS_OF_TASK headers each, in the order of their batches."""
    lines = lines.sort_by([("min.batch_id", "ascending"), ("path", "ascending")])
    paths, counts = lines.column("path").to_pylist(), lines.column("num_records").to_numpy()
    # A file is in the item in whose share its first header is.
    cuts = np.flatnonzero(np.diff((np.cumsum(counts) - counts) // HEADERS_OF_TASK)) + 1
    begins, stops = [0, *cuts.tolist()], [*cuts.tolist(), len(paths)]
    return [json.dumps(paths[begin:stop]) for begin, stop in zip(begins, stops, strict=True)]


def _runs_work(place: TablePlace, first: int, last: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with files of bronze: answer the runs of their blocks of some batches."""

    def work(item: str) -> Iterator[Any]:
        runs, waiting, count = RUN_SCHEMA.empty_table(), [], 0
        for path in json.loads(item):
            for rows in read_row_groups(place, BLOCKS, path, ["batch_id", *RUN_COLUMNS]):
                of_batches = in_batches(rows, first, last)
                waiting.append(of_batches.filter(pc.is_valid(of_batches.column("front_end"))))
                count += waiting[-1].num_rows
                if count >= HEADERS_AT_ONCE:
                    runs = merged_runs([runs, runs_of_rows(pa.concat_tables(waiting))])
                    waiting, count = [], 0
        if waiting:
            runs = merged_runs([runs, runs_of_rows(pa.concat_tables(waiting))])
        yield answer_table("runs", runs)

    return work


class CoverageKeeper:
    """Writes ops.coverage now and then."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._written_us: int | None = None

    def keep(self, coverage: Coverage, batch_id: int, now: datetime.datetime) -> None:
        """Write what `coverage` has up to a batch if it has been long, in batches or in time."""
        table = self._warehouse.table(COVERAGE)
        now_us = int(now.timestamp() * 1_000_000)
        if self._written_us is None:
            self._written_us = now_us
        is_due = now_us - self._written_us >= COVERAGE_S * 1_000_000
        before = table.last_batch(BRONZE)
        if batch_id - before < COVERAGE_BATCHES and not is_due:
            return
        adds = table.write(f"{BRONZE}-{batch_id}", coverage_rows(coverage, batch_id))
        table.commit(BRONZE, batch_id, adds, removes=table.files(), follows=before)
        self._written_us = now_us

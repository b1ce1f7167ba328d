"""How long the pipeline takes to start over a long history, which is made here without a queue and without Spark.

`ops.coverage` says what had come up to some batch; a start reads it, and the headers of later batches. Where it is
lost, a start reads ops.expired_blocks, and tasks read all headers that have not expired, and answer runs. History is
made cheaply: bronze.blocks as its log has it after compaction, files of headers without content. Old files are links to
one file, for only their number, and how many headers they have, is of interest; those of the last batches have the
headers of whole passes. Each front end restarts once a week, so both tables have a line for each of its weeks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.pipeline import NOON_US
from quaymaster_pipeline.checks.block_links import ChainHead, ExpiredChain
from quaymaster_pipeline.checks.header_groups import expired_rows
from quaymaster_pipeline.jobs import upkeep
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS, USAGE_DAYS
from quaymaster_pipeline.usage import expired, gold, silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze.coverage import CoverageKeeper
from quaymaster_pipeline.usage.bronze.planning import FILE_BYTES
from quaymaster_pipeline.usage.feed import BlockReader
from quaymaster_pipeline.usage.partial_sums import SUM_TABLES
from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, IncarnationId
from quaymaster_pipeline.usage.tasks import Answers, ThisProcess
from quaymaster_pipeline.warehouse.data_files import DataFile, write_rows
from quaymaster_pipeline.warehouse.schemas import BLOCKS, COVERAGE, EXPIRED_BLOCKS, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Warehouse

FRONT_ENDS = 1_000
PASSES_A_DAY = 1_440
PASS_BLOCKS = 60_000
BLOCK_BYTES = 6_250
"""Of 116 rows, as `bench fleet` makes them: a pass has 360 MiB."""
FILES_A_DAY = -(-PASSES_A_DAY * PASS_BLOCKS * BLOCK_BYTES // (upkeep.FILE_BYTES - FILE_BYTES // 2))
"""Of compacted files with content: about half of one of a pass is missing to the size that compaction aims at."""
EMPTIED_PART = 8
"""Once their content has expired, files become so many times fewer."""
OLD_HEADERS = 100
"""In an old file; one that was compacted would have 100,000."""
PASS_FILES = 8
RECENT_PASSES = 10
"""Since ops.coverage was written, which is at most so many minutes ago."""
ROWS = 116


class NoWorkers:
    """Runs no task: a start needs none."""

    cores = 0

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        raise AssertionError("a start runs no tasks")


class MeasuredTasks(ThisProcess):
    """Runs tasks here, and tells how long they took."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def over(
        self,
        items: Sequence[str],
        work: Callable[[str], Iterator[Any]],
        on_done: Callable[[int], None] | None = None,
    ) -> Answers:
        began_s = time.process_time()
        answers = super().over(items, work, on_done)
        self.cpu_s += time.process_time() - began_s
        return answers


class NoFeed:
    """Is not looked at by a start."""

    identity = "none"

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {}

    def reader(self) -> BlockReader:
        raise AssertionError("a start reads no blocks")

    def mark(self, positions: Mapping[int, int]) -> dict[str, Any]:
        raise AssertionError("a start takes no blocks")

    def check_mark(self, mark: Mapping[str, Any]) -> None:
        raise AssertionError("a start takes no blocks")

    def commit(self, positions: Mapping[int, int]) -> None:
        raise AssertionError("a start commits nothing")


def restart(root: str, tasks: MeasuredTasks | None = None) -> dict[str, Any]:
    """Start a pipeline over tables; return how long that took, without Spark and the imports.

    Without `tasks`, none may run.
    """
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    warehouse = Warehouse(root)
    with warehouse.ingesting():
        pipeline = Pipeline(tasks or NoWorkers(), warehouse, NoFeed())
    took_s, used_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    return {
        "batches": warehouse.table(BLOCKS).last_batch(BRONZE) + 1,
        "seconds": round(took_s, 2),
        "cpu_s": round(used_s, 2),
        "of_tasks_cpu_s": 0.0 if tasks is None else round(tasks.cpu_s, 2),
        "open_incarnations": len(pipeline.coverage.open_incarnations()),
    }


def measure(
    days: int, *, files_a_day: int = FILES_A_DAY, front_ends: int = FRONT_ENDS, pass_blocks: int = PASS_BLOCKS
) -> dict[str, Any]:
    """Return how long a start takes over so many days, with ops.coverage and without."""
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder:
        root = str(Path(folder, "warehouse"))
        write_history(root, days, files_a_day, front_ends, pass_blocks)
        with_coverage = restart(root)
        warehouse = Warehouse(root)
        began_s = time.process_time()
        files = warehouse.table(BLOCKS).files()
        listing_s = time.process_time() - began_s
        shutil.rmtree(warehouse.place(COVERAGE).uri)
        without = restart(root, MeasuredTasks())
    headers = (len(files) - RECENT_PASSES * PASS_FILES) * OLD_HEADERS + RECENT_PASSES * pass_blocks
    header_us = max(0, with_coverage["cpu_s"] - listing_s) / (RECENT_PASSES * pass_blocks) * 1e6
    return {
        "days": days,
        "incarnations": incarnations_of(days) * front_ends,
        "files": len(files),
        "listing_cpu_s": round(listing_s, 2),
        "with_coverage": with_coverage | {"headers": RECENT_PASSES * pass_blocks},
        "without_coverage": without | {"headers": headers},
        "us_a_header": round(header_us, 2),
        "all_headers_s": round(min(days, USAGE_DAYS) * PASSES_A_DAY * pass_blocks * header_us / 1e6),
        "load_average": round(os.getloadavg()[0], 1),
    }


def write_history(root: str, days: int, files_a_day: int, front_ends: int, pass_blocks: int) -> None:
    """Write bronze.blocks and ops.coverage as a pipeline would have them after so many days of passes."""
    warehouse = Warehouse(root)
    with warehouse.ingesting():
        table = warehouse.table(BLOCKS)
        weeks = incarnations_of(days)
        old = headers(0, 0, OLD_HEADERS, front_ends, weeks)
        last = days * PASSES_A_DAY - 1
        for day in range(max(0, days - USAGE_DAYS), days):
            first = day * PASSES_A_DAY
            model = write_rows(table.place, BLOCKS, f"{BRONZE}-{first}", old)[0]
            count = files_a_day if day >= days - CONTENT_DAYS else max(1, files_a_day // EMPTIED_PART)
            links = [
                _link(table.place.uri, model, number, first + number * PASSES_A_DAY // count)
                for number in range(1, count)
            ]
            table.commit(BRONZE, first + PASSES_A_DAY - 1, [model, *links], note={"taken_us": NOON_US})
        coverage = Coverage()
        had = -(-pass_blocks // front_ends) * (last + 1) * ROWS
        for number in range(front_ends):
            for week in range(1, weeks):
                owner, after = IncarnationId(_name(number), week), IncarnationId(_name(number), week + 1)
                coverage.add(BlockRange(owner, 0, had, b"", NOON_US))
                coverage.add(BlockRange(after, 0, 0, b"", NOON_US, sealed=owner, seal_end=had))
        if days > USAGE_DAYS:
            _write_expired(warehouse, coverage, (days - USAGE_DAYS) * PASSES_A_DAY - 1)
        for number in range(front_ends):
            coverage.add(BlockRange(IncarnationId(_name(number), weeks), 0, had, b"", NOON_US))
        CoverageKeeper(warehouse).keep(coverage, last, datetime.fromtimestamp(NOON_US / 1e6, UTC))
        for batch_id in range(last + 1, last + 1 + RECENT_PASSES):
            files: list[DataFile] = []
            for part in range(PASS_FILES):
                begin, count = part * pass_blocks // PASS_FILES, pass_blocks // PASS_FILES
                rows = headers(batch_id, begin, count, front_ends, weeks)
                files += write_rows(table.place, BLOCKS, f"{BRONZE}-{batch_id}", rows)
            table.commit(BRONZE, batch_id, files, note={"taken_us": NOON_US})
        # The other layers have all of it; a start looks at no row of theirs.
        warehouse.table(USAGE_EVENTS).commit(silver.APP, batch_id, [])
        for sums in SUM_TABLES:
            warehouse.table(sums.spec).commit(gold.APP, batch_id, [])


def incarnations_of(days: int) -> int:
    """Return how many times a front end has begun in so many days."""
    return max(1, days // 7)


def _write_expired(warehouse: Warehouse, coverage: Coverage, through: int) -> None:
    """Write ops.expired_blocks: a line for each incarnation that has ended, and the hash of its last block."""
    table = warehouse.table(EXPIRED_BLOCKS)
    chains = [
        ExpiredChain(
            [line],
            blocks={(owner := line.owner): 1},
            heads={os.urandom(32): ChainHead(owner, line.ranges[-1] if line.ranges else 0, False, False)},
        )
        for line in coverage.lines()
    ]
    files = table.write(expired.APP.replace(" ", "-"), expired_rows(chains, through))
    note = expired.ExpiredBlocks(table.place, through, blocks=len(chains)).to_note()
    table.commit(expired.APP, through, files, note=note)


def headers(batch_id: int, first: int, count: int, front_ends: int, incarnation: int) -> Any:
    """Return rows of bronze.blocks of a batch: from a place in it on, without content, by front end."""
    place = np.arange(first, first + count)
    front_end, turn = place % front_ends, place // front_ends
    order = np.argsort(front_end, kind="stable")
    front_end, turn = front_end[order], turn[order]
    turns = PASS_BLOCKS // FRONT_ENDS * batch_id + turn
    columns = {
        "front_end": pa.array([_name(number) for number in front_end.tolist()]),
        "epoch": np.full(count, incarnation),
        "batch_id": np.full(count, batch_id),
        "log_offset": batch_id * PASS_BLOCKS + place,
        "seq_lo": turns * ROWS,
        "seq_hi": (turns + 1) * ROWS,
        "low_watermark": NOON_US + turns * 1_000_000,
        "sha256": pa.array([os.urandom(32) for _ in range(count)], pa.binary()),
        "ingest_date": np.full(count, NOON_US // 86_400_000_000, np.int32),
    }
    return pa.table(
        [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else pa.nulls(count, field.type)
            for field in BLOCKS.schema
        ],
        schema=BLOCKS.schema,
    )


def _link(uri: str, model: DataFile, number: int, batch_id: int) -> DataFile:
    path = model.path.replace(".parquet", f"-{number}.parquet")
    os.link(Path(uri, model.path), Path(uri, path))
    return replace(model, path=path, bounds={**model.bounds, "batch_id": (batch_id, batch_id)})


def _name(number: int) -> str:
    return f"front-end-{number:04}"

"""The usage pipeline: rows a second from blocks to bronze and to gold.

    python -m bench pipeline [--rows 10000000] [--cores 2]

Blocks are made beforehand and read from files, full ones, of one front end. Everything is done twice, in one process:
cold begins with the start of the JVM, warm is the second time, into other tables. Processor time is that of all
processes together; on a busy machine it is what can be compared. `task` is the same work in one process without
Spark: what is between the two is Spark's. Beside other engines: `python -m bench engines`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.meter import Meter
from quaymaster.protocol.usage.usage_blocks import ROWS_PER_BLOCK_MAX, BlockEnd, BlockOrigin, encode_block
from quaymaster.protocol.usage.usage_records import UsageContext
from quaymaster.protocol.usage.usage_rows import UsageRows
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs.jobs import Pipeline, Summary
from quaymaster_pipeline.usage.blocks import BatchFacts
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.taking import bronze_work
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.tasks import SparkWorkers
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, OP_NAMES, USAGE_EVENTS
from quaymaster_pipeline.warehouse.session import spark_session
from quaymaster_pipeline.warehouse.tables import Warehouse

NOON_US = 1_795_348_800_000_000
HOUR_US = 3_600_000_000
ACCOUNTS, QUEUES = 1_000, 20_000
EVENTS_PER_FILE = 1_000_000
TASK_BLOCKS = 200


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    rows = options.rows // ROWS_PER_BLOCK_MAX * ROWS_PER_BLOCK_MAX
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder:
        place = Path(folder)
        make_blocks(place / "feed", rows)
        figures: dict[str, Any] = {"rows": rows, "cores": options.cores}
        starting = Meter()
        with contextlib.ExitStack() as stack:
            with starting:
                session = spark_session(f"local[{options.cores}]", directory=place / "spark")
                workers = SparkWorkers(stack.enter_context(session))
            figures["start"] = starting.figures(0)
            for name in ("cold", "warm"):
                figures[name] = measure_layers(workers, place / name, place / "feed")
        cold = figures["cold"]["bronze"]
        cpu_s, wall_s = starting.cpu_s + cold["cpu_s"], starting.wall_s + cold["wall_s"]
        figures["start_and_cold_bronze"] = {
            "rows_per_cpu_s": round(rows / cpu_s),
            "rows_per_wall_s": round(rows / wall_s),
        }
        figures["task"] = measure_task(place)
        print(json.dumps(figures, indent=2))


def make_blocks(directory: Path, count: int) -> None:
    """Write full blocks of `count` records, some sixty of them different in all but their numbers."""
    chance = random.Random(6)
    directory.mkdir()
    contexts = [
        UsageContext(
            f"{account:012}",
            f"arn:aws:iam::{account:012}:user/u",
            f"AKIA{account:016}",
            "10.1.2.3",
            "aws-sdk-java/2.30",
            "json",
            action,
            "data",
            action == "ReceiveMessage",
            queue,
            f"orders-{queue}",
            "standard",
            200,
            "",
        )
        for account in range(20)
        for queue in range(account * 20 + 1, account * 20 + 4)
        for action in ("SendMessage", "ReceiveMessage", "DeleteMessage")
    ]
    samples = [_rows(chance, contexts) for _ in range(16)]
    origin, end = BlockOrigin("front-end-1", 1, "eu-west-1"), BlockEnd()
    with (directory / "0001.blocks").open("wb") as file:
        for number in range(count // ROWS_PER_BLOCK_MAX):
            rows = samples[number % len(samples)]
            rows.event_time_us = [NOON_US + number * 200_000 + at * 48 for at in range(ROWS_PER_BLOCK_MAX)]
            data, end = encode_block(origin, end, rows, low_watermark_us=rows.event_time_us[-1])
            file.write(data)


def _rows(chance: random.Random, contexts: list[UsageContext]) -> UsageRows:
    count = ROWS_PER_BLOCK_MAX
    many = range(count)
    return UsageRows(
        contexts,
        [chance.randrange(len(contexts)) for _ in many],
        [0] * count,
        [chance.randrange(200, 20_000) for _ in many],
        [chance.randrange(200, 2_000) for _ in many],
        [chance.randrange(150, 2_000) for _ in many],
        [chance.randrange(150, 2_000) for _ in many],
        [chance.randrange(2_000) for _ in many],
        [1] * count,
        [0] * count,
        [f"{chance.getrandbits(128):032x}" for _ in many],
        [],
    )


def measure_layers(workers: SparkWorkers, place: Path, blocks: Path) -> dict[str, Any]:
    """Return figures of bronze alone, and of the layers after it."""
    warehouse = Warehouse(place)
    now = datetime(2026, 11, 22, 18, tzinfo=UTC)
    with warehouse.ingesting():
        feed = FileFeed(blocks)
        pipeline, rows = Pipeline(workers, warehouse, feed, clock=lambda: now), 0
        in_bronze, in_others = Meter(), Meter()
        while True:
            with in_bronze:
                taken = take_batch(workers, warehouse, feed, pipeline.coverage, now)
            if taken is None:
                break
            rows += taken.totals["rows"]
            with in_others:
                pipeline.refine(Summary())
        assert sum(one.difference for one in compare_notes(warehouse)) == 0
    return {"bronze": in_bronze.figures(rows), "silver_and_gold": in_others.figures(rows)}


def measure_task(place: Path) -> dict[str, float]:
    """Return figures of what a task of bronze does, in this process; the second time of two."""
    feed = FileFeed(place / "feed")
    blocks = min(feed.bounds()[0][1], TASK_BLOCKS)
    batch = BatchFacts(feed.identity, 0, NOON_US, 0)
    for number in range(2):
        warehouse = Warehouse(place / f"task-{number}")
        places = {spec.name: warehouse.place(spec) for spec in (BLOCKS, BLOCK_MARKS)}
        work = bronze_work(places, feed.reader(), batch)
        meter = Meter()
        with meter:
            for _ in work(json.dumps([(0, 0, blocks)])):
                pass
    return meter.figures(blocks * ROWS_PER_BLOCK_MAX)


def make_events(first: int, count: int) -> pa.Table:
    """Return rows of usage_events: an hour a million, 1,000 accounts, 20,000 queues (Zipf 0.9), 8 actions."""
    chance = np.random.default_rng(first)
    weights = 1 / np.arange(1, QUEUES + 1) ** 0.9
    queue = chance.choice(QUEUES, count, p=weights / weights.sum()).astype(np.int64) + 1
    account = queue % ACCOUNTS
    op = chance.integers(1, 9, count)
    hour_us = NOON_US + first // EVENTS_PER_FILE * HOUR_US
    numbers = {
        "batch_id": np.zeros(count, np.int64),
        "sequence": np.arange(first, first + count),
        "event_time": hour_us + np.sort(chance.integers(0, HOUR_US, count)),
        "hour": np.full(count, hour_us),
        "account_sk": account,
        "queue_sk": queue,
        "op": op,
        "http_status": np.full(count, 200),
        **{
            name: chance.integers(0, 100_000, count)
            for name in ("bytes", "bytes_in", "bytes_out", "latency_us")
        },
        **{name: np.ones(count, np.int64) for name in ("billed_requests", "chunks", "messages", "epoch")},
        "event_date": np.full(count, hour_us // (24 * HOUR_US)),
    }
    texts = {
        "account_id": pa.array([f"{number:012}" for number in range(ACCOUNTS)]).take(pa.array(account)),
        "queue_name": pa.array([f"queue-{number}" for number in range(QUEUES + 1)]).take(pa.array(queue)),
        "action": pa.array(OP_NAMES).take(pa.array(op)),
        **{
            name: pa.repeat(value, count)
            for name, value in (
                *(("front_end", "front-end-1"), ("region", "eu-west-1"), ("queue_type", "standard")),
                *(("billing_class", "standard"), ("error_code", "")),
            )
        },
        "empty_receive": pa.repeat(False, count),
    }
    columns = []
    for field in USAGE_EVENTS.schema:
        if field.name in numbers:
            kind = pa.int32() if field.type == pa.date32() else field.type
            integer = pa.array(numbers[field.name])
            columns.append(integer.cast(kind).cast(field.type))
        elif field.name in texts:
            columns.append(texts[field.name])
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.table(columns, schema=USAGE_EVENTS.schema)


if __name__ == "__main__":
    main()

"""The usage pipeline: rows a second from blocks to bronze and to gold, and hourly sums beside DuckDB and Polars.

    python -m bench pipeline [--rows 2000000] [--events 10000000] [--cores 2]

Blocks are made beforehand and read from files, full ones, of one front end. Hourly sums are made of the same files of
usage_events by all, grouped by the same columns, with all results materialised, and must be equal. Processor time is
that of all processes together; on a busy machine it is what can be compared. Second run of two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc

from bench.processes import cpu_s
from quaymaster.pipeline import bronze, gold, silver
from quaymaster.pipeline.feed import FileFeed
from quaymaster.pipeline.jobs import Pipeline
from quaymaster.pipeline.reconciliation import compare_notes
from quaymaster.pipeline.schemas import ACTIONS, USAGE_EVENTS
from quaymaster.pipeline.session import spark_session
from quaymaster.pipeline.tables import Warehouse
from quaymaster.pipeline.tasks import SparkWorkers
from quaymaster.protocol.usage_records import ROWS_PER_BLOCK_MAX, UsageContext, UsageRows, encode_block

NOON_US = 1_795_348_800_000_000
HOUR_US = 3_600_000_000
ACCOUNTS, QUEUES = 1_000, 20_000
EVENTS_PER_FILE = 1_000_000


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_blocks(place / "feed", options.rows)
        figures: dict[str, Any] = {"rows": options.rows, "events": options.events, "cores": options.cores}
        begun_s = time.monotonic()
        with spark_session(f"local[{options.cores}]", directory=place / "spark") as spark:
            figures["start_s"] = round(time.monotonic() - begun_s, 2)
            workers = SparkWorkers(spark)
            workers.over(["warm"], lambda item: iter(()))
            figures |= measure_layers(workers, place)
            figures["hourly"] = measure_hourly(workers, place, options.events, options.cores)
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
    previous = bytes(32)
    with (directory / "0001.blocks").open("wb") as file:
        for number in range(count // ROWS_PER_BLOCK_MAX):
            rows = samples[number % len(samples)]
            rows.event_time_us = [NOON_US + number * 200_000 + at * 48 for at in range(ROWS_PER_BLOCK_MAX)]
            encoded = encode_block(
                "front-end-1",
                1,
                number * ROWS_PER_BLOCK_MAX,
                rows,
                region="eu-west-1",
                low_watermark_us=rows.event_time_us[-1],
                previous=previous,
            )
            previous = encoded.digest
            file.write(encoded.data)


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


def measure_layers(workers: SparkWorkers, place: Path) -> dict[str, Any]:
    """Return rows a second of bronze alone, and of all layers."""
    warehouse = Warehouse(place / "warehouse")
    now = datetime(2026, 11, 22, 18, tzinfo=UTC)
    found: dict[str, Any] = {}
    with warehouse.writing():
        pipeline = Pipeline(workers, warehouse, FileFeed(place / "feed"), clock=lambda: now)
        feed, rows = FileFeed(place / "feed"), 0
        in_bronze, in_others = Stopwatch(), Stopwatch()
        while True:
            with in_bronze:
                taken = bronze.take_batch(workers, warehouse, feed, pipeline.coverage, now)
            if taken is None:
                break
            rows += taken.totals["rows"]
            with in_others:
                pipeline.finish_batch()
        found["bronze"] = in_bronze.figures(rows)
        found["silver_and_gold"] = in_others.figures(rows)
        assert sum(one.difference for one in compare_notes(warehouse)) == 0
    return found


class Stopwatch:
    """Wall and processor time, of this process and all below it, while its block runs."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic(), cpu_s(os.getpid())

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.monotonic() - self._began[0]
        self.cpu_s += cpu_s(os.getpid()) - self._began[1]

    def figures(self, rows: int) -> dict[str, float]:
        return {
            "wall_s": round(self.wall_s, 2),
            "cpu_s": round(self.cpu_s, 2),
            "rows_per_wall_s": round(rows / self.wall_s),
            "rows_per_cpu_s": round(rows / self.cpu_s),
        }


def measure_hourly(workers: SparkWorkers, place: Path, events: int, cores: int) -> dict[str, Any]:
    """Return times of hourly sums of the same files by the pipeline, DuckDB and Polars."""
    warehouse = Warehouse(place / "hourly")
    table = warehouse.table(USAGE_EVENTS)
    for part in range(0, events, EVENTS_PER_FILE):
        table.commit(
            "bench", part, table.write("bench", make_events(part, min(EVENTS_PER_FILE, events - part)))
        )
    paths = [file.path for file in table.files()]
    full = [f"{table.place.uri}/{path}" for path in paths]
    keys = ["hour", "region", "account_id", "queue_sk", "action"]
    sums = ["billed_requests", "messages", "bytes", "bytes_in", "bytes_out", "latency_us"]

    def by_pipeline() -> Any:
        work = silver.usage_work(table.place, 0, 1 << 62)
        return gold.merge_usage(workers.over(paths, work).tables("usage"))

    def by_duckdb() -> Any:
        connection = duckdb.connect(config={"threads": cores})
        columns = ", ".join(f"sum({name})" for name in sums)
        names = ", ".join(keys)
        return connection.execute(
            f"select {names}, count(*) as requests, {columns}, max(latency_us), any_value(queue_name), "
            "any_value(queue_type), any_value(billing_class), sum(empty_receive::int), "
            "sum((http_status between 400 and 499)::int), sum((http_status >= 500)::int) "
            f"from read_parquet({full}) group by {names}"
        ).to_arrow_table()

    def by_polars() -> Any:
        column = polars.col
        return (
            polars.scan_parquet(full)
            .group_by(keys)
            .agg(
                polars.len().alias("requests"),
                *(column(name).sum() for name in sums),
                column("latency_us").max().alias("latency_us_max"),
                *(column(name).first() for name in ("queue_name", "queue_type", "billing_class")),
                column("empty_receive").sum(),
                column("http_status").is_between(400, 499).sum().alias("errors_4xx"),
                (column("http_status") >= 500).sum().alias("errors_5xx"),
            )
            .collect(engine="streaming")
            .to_arrow()
        )

    found: dict[str, Any] = {}
    ways: dict[str, Callable[[], Any]] = {"pipeline": by_pipeline, "duckdb": by_duckdb, "polars": by_polars}
    for name, run in ways.items():
        for _ in range(2):
            watch = Stopwatch()
            with watch:
                result = run()
            found[name] = watch.figures(events)
        found[name]["groups"] = result.num_rows
        assert pc.sum(result.column("requests")).as_py() == events, name
    assert len({found[name]["groups"] for name in ways}) == 1, found
    return found


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
        "action": pa.array(ACTIONS).take(pa.array(op)),
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

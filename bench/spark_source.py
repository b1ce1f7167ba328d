"""Rows a second through Spark: from and to a log-retained queue, beside Parquet files of the same rows.

    python -m bench.spark_source [--rows 500000] [--rounds 3] [--memory 4g] [--only sink|built]

Spark (local[2]) and the server share the machine's cores. All columns go to Spark's `noop` sink, so that every row is
made and none is kept. Each figure is the best of the rounds, the first of which warms up the JVM;
CPU time holds on a busy machine, rows a second do not. The rows have a body
of 256 characters; the Parquet files (zstd) are written from the queue, so both have the same columns. The sink sends
them with transactions (exactly once) and without, each time to a new queue, beside Spark writing them to Parquet.
Starting a job costs some hundred milliseconds whoever reads: `--only built --rows 4000000` is what a row costs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench import machine, processes, servers
from bench.markdown import number, table
from pyspark_quaymaster.client import Client
from pyspark_quaymaster.credentials import Endpoint

CORES = 2
HEAD = ("What", "rows/s", "CPU of Spark, µs a row", "CPU of the server, µs a row")
SINK_ONCE = "sink: Parquet to a log, exactly once"
SINK_AT_LEAST_ONCE = "sink: Parquet to a log, at least once"
SPARK_SINK = "Spark: Parquet to Parquet"
TRANSACTION_ROWS = 1_000_000
"""As many as one may have."""
BLOCK_BUILD_INTERVAL_S = 1.0
BUILT_AFTER_S = 10.0
"""When no block was built for so long, all are."""


class Figure(NamedTuple):
    """The best round: rows a second, and CPU time of a row at Spark (driver, JVM, Python workers) and at the server."""

    rows_per_s: float
    spark_us: float
    server_us: float


def best_of(rounds: int, rows: int, server: servers.Running, run: Callable[[], None]) -> Figure:
    """Return the best of some runs, for each quantity: other programs only ever take time away."""
    figures = []
    for _ in range(rounds):
        server_s, all_s, began_s = (
            processes.cpu_s(server.pid),
            processes.cpu_s(os.getpid()),
            time.perf_counter(),
        )
        run()
        took_s = time.perf_counter() - began_s
        server_s, all_s = processes.cpu_s(server.pid) - server_s, processes.cpu_s(os.getpid()) - all_s
        figures.append(Figure(rows / took_s, 1e6 * (all_s - server_s) / rows, 1e6 * server_s / rows))
    return Figure(
        max(one.rows_per_s for one in figures),
        min(one.spark_us for one in figures),
        min(one.server_us for one in figures),
    )


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def stream_to_noop(frame: DataFrame) -> None:
    with tempfile.TemporaryDirectory(prefix="quaymaster-spark-") as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def session(memory: str, folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )


def start_building(interval_s: float) -> Callable[[Path, Path, int, IO[bytes]], subprocess.Popen[bytes]]:
    """Return a start of the server that looks so often for blocks to build; 0 is never."""

    def start(program: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        command: list[str | Path] = [program, "serve", "--data", folder / "data", "--admin", "127.0.0.1:0"]
        command += ["--listen", f"127.0.0.1:{port}"]
        settings = {"QUAYMASTER_BLOCK_BUILD_INTERVAL_S": str(interval_s)}
        return processes.start(command, folder=folder, environment=settings, log=log, core=None)

    return start


def wait_until_built(folder: Path) -> int:
    """Wait until no more blocks come into a log's folder, and return how many rows they have."""
    rows, since_s = 0, time.monotonic()
    while time.monotonic() - since_s < BUILT_AFTER_S:
        time.sleep(BLOCK_BUILD_INTERVAL_S)
        places = [path.stem.split("-") for path in folder.glob("*/*.qmb")]
        now = sum(int(stop) - int(first) for first, stop in places)
        if now != rows:
            rows, since_s = now, time.monotonic()
    return rows


def measure(
    spark: SparkSession, server: servers.Running, folder: Path, rows: int, rounds: int, only: str | None
) -> list[list[str]]:
    """Return a line for each figure, as HEAD says."""
    log = server.create_queue("rows", {"RetentionMode": "Log"})
    options = {
        "region": server.endpoint.region,
        "accessKeyId": server.endpoint.access_key_id,
        "secretAccessKey": server.endpoint.secret_access_key,
    }
    given, same = str(folder / "given"), str(folder / "same")
    text = F.concat(F.sha2(F.col("id").cast("string"), 512), F.sha2((-F.col("id")).cast("string"), 512))
    spark.range(rows, numPartitions=CORES).select("id", text.alias("value")).write.parquet(given)
    lines: list[list[str]] = []
    figures: dict[str, Figure] = {}

    def reach() -> dict[str, str]:
        """Return what Spark needs to reach the server, which has another port after each start."""
        return {**options, "endpointUrl": f"http://{server.endpoint.host}:{server.endpoint.port}"}

    def add(what: str, run: Callable[[], None], times: int = rounds) -> None:
        figure = best_of(times, rows, server, run)
        figures[what] = figure
        lines.append([what, *map(number, figure)])
        print(" | ".join(lines[-1]), flush=True)

    def send(queue: str, first: int = 0, stop: int = rows, /, **more: str) -> None:
        rows_given = spark.read.parquet(given).where(F.col("id").between(first, stop - 1)).select("value")
        writer = rows_given.coalesce(CORES).write.format("quaymaster").options(**reach(), queue=queue)
        writer.options(**more).mode("append").save()

    def send_anew(name: str, **more: str) -> None:
        queue = f"{name}-{uuid.uuid4().hex}"
        send(server.create_queue(queue, {"RetentionMode": "Log"}), **more)

    def copy() -> None:
        spark.read.parquet(given).select("value").write.mode("overwrite").parquet(str(folder / "copied"))

    def read(**more: str) -> DataFrame:
        return spark.read.format("quaymaster").options(**reach(), queue=log, **more).load()

    def follow(**more: str) -> DataFrame:
        reader = spark.readStream.format("quaymaster").options(
            **reach(), queue=log, startingOffsets="earliest"
        )
        return reader.options(**more).load()

    if only != "built":
        add(SINK_ONCE, lambda: send_anew("once", txnId=uuid.uuid4().hex))
        add(SINK_AT_LEAST_ONCE, lambda: send_anew("at-least-once"))
        add(SPARK_SINK, copy)
        for what in (SINK_ONCE, SINK_AT_LEAST_ONCE):
            ratio = figures[what].rows_per_s / figures[SPARK_SINK].rows_per_s
            cpu = figures[what].spark_us / figures[SPARK_SINK].spark_us
            print(
                f"{what}: {ratio:.2f} of the rows/s of Spark's Parquet writer, {cpu:.1f} of its CPU in Spark"
            )
    if only == "sink":
        return lines
    for first in range(0, rows, TRANSACTION_ROWS):
        send(log, first, min(rows, first + TRANSACTION_ROWS), txnId=f"rows-{first}")

    def add_reads(kind: str) -> None:
        add(f"source: {kind}, batch, all columns", lambda: to_noop(read()))
        add(f"source: {kind}, batch, all columns as Arrow IPC", lambda: to_noop(read(fetchFormat="arrow")))
        add(f"source: {kind}, batch, partition, offset and timestamp", lambda: to_noop(read_places()))
        add(f"source: {kind}, stream, one micro-batch", lambda: stream_to_noop(follow()))
        add(
            f"source: {kind}, stream, micro-batches of 50,000",
            lambda: stream_to_noop(follow(maxOffsetsPerTrigger="50000")),
        )

    def read_places() -> DataFrame:
        reader = spark.read.schema("partition int, offset bigint, timestamp timestamp").format("quaymaster")
        return reader.options(**reach(), queue=log).load()

    if only != "built":
        add_reads("tail")
    server.server = replace(server.server, start=start_building(BLOCK_BUILD_INTERVAL_S))
    server.restart_after_kill()
    at = server.endpoint
    key = (at.region, at.access_key_id, at.secret_access_key)
    with Client(Endpoint(reach()["endpointUrl"], *key)) as client:
        log_id = client.describe_log(log).queue_id
    built = wait_until_built(server.folder / "data" / "blocks" / log_id)
    add_reads(f"{100 * built // rows} % built")
    read().write.option("compression", "zstd").parquet(same)
    add("Spark: Parquet, batch, all columns", lambda: to_noop(spark.read.parquet(same)))
    schema = spark.read.parquet(same).schema
    add(
        "Spark: Parquet, stream, one micro-batch",
        lambda: stream_to_noop(spark.readStream.schema(schema).parquet(same)),
    )
    assert read().count() == rows
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--only", choices=("sink", "built"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as name:
        folder = Path(name)
        spark = session(given.memory, folder)
        tail_only = replace(servers.SERVERS["quaymaster"], start=start_building(0))
        with servers.Running(tail_only, folder / "server") as server:
            lines = measure(spark, server, folder, given.rows, given.rounds, given.only)
        spark.stop()
    print(f"\n{machine.describe()}; {given.rows:,} rows\n\n{table(HEAD, lines)}")


if __name__ == "__main__":
    main()

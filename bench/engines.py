"""Hourly sums and deduplication of the same Parquet files by the pipeline, Spark, DuckDB and Polars.

    python -m bench engines [--events 10000000] [--cores 2] [--only duckdb,spark] [--folder DIR] [--workers]

Every engine has a process of its own, as many threads, the same files (an hour a million events; 1,000 accounts,
20,000 queues by Zipf 0.9, 8 actions; one event in a hundred twice) and makes all of the answer. Two runs: cold is from
the start of the engine (for Spark its JVM) to the first answer, warm is the second run. Answers must be equal.

    hourly   sums by hour, region, account, queue and action, as usage_hourly has them: names, or integers for them
    dedup    each event once, by its id of 36 characters, then events and bytes by hour and action

The pipeline's hourly sums are those of `quaymaster pipeline backfill`. Spark has the settings of SPARK; it makes two
hashes of an id, groups by one, and refuses an answer where the other differs: for bills two ids must not be taken for
one. `--workers` runs Spark's queries on a standalone cluster of one and then two workers of a core each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import processes, servers
from bench.meter import Meter
from bench.pipeline import EVENTS_PER_FILE, make_events
from quaymaster.pipeline.data_files import ROW_GROUP_ROWS, Place

TWICE = 100
"""One event in so many is there twice."""
SUMS = ("billed_requests", "chunks", "messages", "bytes", "bytes_in", "bytes_out", "latency_us")
NAMES = ("hour", "region", "account_id", "queue_sk", "action")
INTEGERS = ("hour", "account_sk", "queue_sk", "op")
QUESTIONS = {"hourly": NAMES, "hourly_int": INTEGERS, "dedup": ()}
SPARK = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.executor.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.executor.memory": "2g",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "5000000",
    "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "20",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
ROWS_PER_PARTITION = 3_000_000
"""Of a shuffle: few partitions cost least (4 for ten million)."""
CLUSTER_READY_S = 120.0

Digest = Callable[[], list[int]]
"""How many rows an answer has, its requests and its bytes; looked at when nothing is measured any more."""
Run = Callable[[str], Digest]
"""Answers a question: all of the answer is made when it returns."""


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(ENGINES))
    parser.add_argument("--folder", type=Path, help="where the files are kept for the next time")
    parser.add_argument("--workers", action="store_true")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="quaymaster-bench-"))
        )
        if options.engine:
            master = options.master or f"local[{options.cores}]"
            print(json.dumps(answer_all(options.engine, folder, options.events, options.cores, master)))
            return
        write_files(folder, options.events)
        found: dict[str, Any] = {
            "events": options.events,
            "cores": options.cores,
            "file_mib": size_mib(folder),
        }
        if options.workers:
            for workers in (1, 2):
                with cluster(workers) as master:
                    found[f"spark, {workers} workers"] = in_own_process("spark", options, folder, master)
        else:
            for engine in options.only:
                found[engine] = in_own_process(engine, options, folder)
        check(found)
        print(json.dumps(found, indent=2))


def write_files(folder: Path, events: int) -> None:
    """Write the files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, events, EVENTS_PER_FILE):
        path = folder / f"{first:012}.parquet"
        count = min(EVENTS_PER_FILE, events - first)
        if path.exists() and pq.read_metadata(path).num_rows == count + -(-count // TWICE):
            continue
        rows = make_events(first, count)
        digits = np.array([f"{number:02x}" for number in range(256)])
        octets = np.random.default_rng(first + 1).integers(0, 256, (count, 10))
        # Ids begin with the time, as a UUIDv7 does, and differ in the rest.
        ids = np.char.add(f"{first:016x}", digits[octets[:, 0]])
        for at in range(1, 10):
            ids = np.char.add(ids, digits[octets[:, at]])
        rows = rows.append_column("event_id", pa.array(ids, pa.string()))
        rows = pa.concat_tables([rows, rows.take(pa.array(np.arange(0, count, TWICE)))])
        texts = [
            field.name for field in rows.schema if pa.types.is_string(field.type) and field.name != "event_id"
        ]
        part = path.with_suffix(".part")
        pq.write_table(
            rows,
            part,
            compression="zstd",
            compression_level=1,
            use_dictionary=texts,
            row_group_size=ROW_GROUP_ROWS,
        )
        part.rename(path)


def files_of(folder: Path, events: int) -> list[Path]:
    return [folder / f"{first:012}.parquet" for first in range(0, events, EVENTS_PER_FILE)]


def size_mib(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.parquet")) >> 20


def in_own_process(
    engine: str, options: argparse.Namespace, folder: Path, master: str = ""
) -> dict[str, Any]:
    """Return an engine's figures, measured in a process that does nothing else."""
    command = [sys.executable, "-m", "bench.engines", "--engine", engine, "--folder", str(folder)]
    command += ["--events", str(options.events), "--cores", str(options.cores)]
    command += ["--master", master] if master else []
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    print(engine, answer.stdout.strip(), file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def answer_all(engine: str, folder: Path, events: int, cores: int, master: str) -> dict[str, Any]:
    """Return figures and a digest of the answer for each question, run twice."""
    paths = files_of(folder, events)
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        starting = Meter()
        with starting:
            run = stack.enter_context(ENGINES[engine](paths, cores, master))
        for question in QUESTIONS:
            if engine == "pipeline" and question != "hourly":
                continue
            meters = [Meter(), Meter()]
            for meter in meters:
                with meter:
                    answer = run(question)
            cold, warm = meters
            if not found:
                cold.wall_s += starting.wall_s
                cold.cpu_s += starting.cpu_s
            found[question] = {
                "cold": cold.figures(events),
                "warm": warm.figures(events),
                "answer": answer(),
            }
    return found


def digest(answer: Any) -> list[int]:
    """Return what is to be equal of an answer in Arrow."""
    return [answer.num_rows, *(int(pc.sum(answer.column(name)).as_py()) for name in ("requests", "bytes"))]


def check(found: dict[str, Any]) -> None:
    """Raise AssertionError unless all engines gave the same."""
    for question in QUESTIONS:
        answers = {
            tuple(figures[question]["answer"])
            for figures in found.values()
            if isinstance(figures, dict) and question in figures
        }
        assert len(answers) <= 1, (question, found)


@contextlib.contextmanager
def pipeline_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """The pipeline's backfill: its tasks, its merge."""
    from quaymaster.pipeline import gold, silver
    from quaymaster.pipeline.session import spark_session
    from quaymaster.pipeline.tasks import SparkWorkers

    work = silver.usage_work(Place(str(paths[0].parent), {}), 0, 1 << 62)
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder,
        spark_session(master, directory=Path(folder)) as spark,
    ):
        workers = SparkWorkers(spark)

        def run(question: str) -> Digest:
            sums = gold.merge_usage(workers.over([path.name for path in paths], work).tables("usage"))
            return lambda: digest(sums)

        yield run


@contextlib.contextmanager
def spark_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """Spark SQL with the settings of SPARK."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("quaymaster bench")
    partitions = max(cores, -(-len(paths) * EVENTS_PER_FILE // ROWS_PER_PARTITION))
    for name, value in (SPARK | {"spark.sql.shuffle.partitions": str(partitions)}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    events = spark.read.parquet(*map(str, paths))

    def hourly(keys: tuple[str, ...]) -> Any:
        return events.groupBy(*keys).agg(
            f.count("*").alias("requests"),
            *(f.sum(name).alias(name) for name in SUMS),
            f.max("latency_us").alias("latency_us_max"),
        )

    def dedup() -> Any:
        hashes = f.xxhash64("event_id").alias("id"), f.hash("event_id").cast("long").alias("other")
        once = (
            events.select("hour", "op", "bytes", *hashes)
            .groupBy("id")
            .agg(
                *(f.max(name).alias(name) for name in ("hour", "op", "bytes")),
                (f.max("other") - f.min("other")).alias("unlike"),
            )
        )
        return once.groupBy("hour", "op").agg(
            f.count("*").alias("requests"), f.sum("bytes").alias("bytes"), f.max("unlike").alias("unlike")
        )

    def run(question: str) -> Digest:
        if question == "dedup":
            answer = dedup().toArrow()
            assert pc.max(answer.column("unlike")).as_py() == 0, "two ids have the same hash"
            return lambda: digest(answer)
        frame = hourly(QUESTIONS[question])
        # All of the answer is made, and stays with the tasks that made it, as when it is written to a table.
        frame.write.format("noop").mode("overwrite").save()
        totals = f.count("*").alias("rows"), *(f.sum(name).alias(name) for name in ("requests", "bytes"))
        return lambda: [int(number) for number in frame.agg(*totals).first() or ()]

    try:
        yield run
    finally:
        spark.stop()


@contextlib.contextmanager
def duckdb_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """DuckDB; answers are tables in memory."""
    import duckdb

    connection = duckdb.connect(config={"threads": cores})
    events = f"read_parquet({list(map(str, paths))})"

    def run(question: str) -> Digest:
        if question == "dedup":
            columns = ", ".join(f"any_value({name}) as {name}" for name in ("hour", "op", "bytes"))
            once = f"select {columns} from {events} group by event_id"
            query = (
                f"select hour, op, count(*) as requests, sum(bytes) as bytes from ({once}) group by hour, op"
            )
        else:
            names = ", ".join(QUESTIONS[question])
            sums = ", ".join(f"sum({name}) as {name}" for name in SUMS)
            query = (
                f"select {names}, count(*) as requests, {sums}, max(latency_us) as latency_us_max "
                f"from {events} group by {names}"
            )
        connection.execute(f"create or replace table answer as {query}")
        totals = "select count(*), sum(requests), sum(bytes) from answer"
        return lambda: [int(number) for number in connection.execute(totals).fetchone() or ()]

    yield run
    connection.close()


@contextlib.contextmanager
def polars_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """Polars, streaming."""
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    import polars

    column = polars.col

    def run(question: str) -> Digest:
        events = polars.scan_parquet(paths)
        if question == "dedup":
            once = events.group_by("event_id").agg(column("hour", "op", "bytes").first())
            asked = once.group_by("hour", "op").agg(polars.len().alias("requests"), column("bytes").sum())
        else:
            asked = events.group_by(QUESTIONS[question]).agg(
                polars.len().alias("requests"),
                *(column(name).sum() for name in SUMS),
                column("latency_us").max().alias("latency_us_max"),
            )
        answer = asked.collect(engine="streaming")
        return lambda: digest(answer.to_arrow())

    yield run


ENGINES = {
    "pipeline": pipeline_engine,
    "spark": spark_engine,
    "duckdb": duckdb_engine,
    "polars": polars_engine,
}


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[str]:
    """Run a standalone cluster of so many workers with a core each; gives its URL."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    names = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environment = {**os.environ, **names, "PYSPARK_PYTHON": sys.executable}
    port, page = (servers.free_port() for _ in range(2))
    url = f"spark://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder, contextlib.ExitStack() as stack:

        def start(*arguments: str) -> None:
            command = [f"{home}/bin/spark-class", *arguments]
            process = subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL)
            stack.callback(processes.stop, process)

        where = ("--host", "127.0.0.1", "--webui-port")
        start("org.apache.spark.deploy.master.Master", *where, str(page), "--port", str(port))
        for number in range(workers):
            size = ("--cores", "1", "--memory", "3g", "--work-dir", f"{folder}/{number}")
            start("org.apache.spark.deploy.worker.Worker", *where, "0", *size, url)

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                    return bool(json.load(answer)["aliveworkers"] == workers)
            except OSError:
                return False

        if not processes.wait_until(is_ready, CLUSTER_READY_S, 0.5):
            raise RuntimeError("the cluster did not come up")
        yield url


if __name__ == "__main__":
    main()

"""Hourly sums and deduplication of the same Parquet files by the pipeline, Spark, DuckDB, Polars and a hybrid.

    python -m bench engines [--events 10000000] [--cores 2] [--only duckdb,spark] [--folder DIR] [--workers]

Every engine has a process of its own, as many threads, the same files (an hour a million events; 1,000 accounts,
20,000 queues by Zipf 0.9, 8 actions; one event in a hundred twice, half of them in the next file) and makes all of the
answer. Two runs: cold is from the start of the engine (for Spark its JVM) to the first answer, warm is the second run.
Answers must be equal. Memory is the largest resident memory of all processes of the engine together, at one time.

    hourly   sums by hour, region, account, queue and action, as usage_hourly has them: names, or integers for them
    dedup    each event once, by its id of 36 characters, then events and bytes by hour and action

The pipeline's hourly sums are those of `quaymaster pipeline backfill`. Spark has the settings of SPARK; it makes two
hashes of an id, groups by one, and refuses an answer where the other differs: for bills two ids must not be taken for
one. `hybrid` is Spark with DuckDB in its tasks: each answers for a stretch of hours or of ids, which footers bound, so
that no row goes from task to task (`bench.stretches`). `--workers` runs the engines of ON_CLUSTERS on a standalone
cluster, of one worker and then of two; each worker keeps to a core of its own, and the cluster's processes count.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import processes, servers
from bench.event_files import files_of, size_mib, write_files
from bench.meter import Meter
from bench.pipeline import EVENTS_PER_FILE
from bench.stretches import cut, read_row_groups
from quaymaster_pipeline.warehouse.data_files import TablePlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
PIPELINE = {"spark.driver.memory": "1g"}
HYBRID = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "1",
}
"""Rows stay in Python: the JVM needs little memory, one collector, and not its second compiler."""
HYBRID_DUCKDB: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": "1GB",
    "preserve_insertion_order": False,
}
KINDS = {
    "hour": "timestamp",
    "region": "string",
    "account_id": "string",
    "action": "string",
    "account_sk": "long",
    "queue_sk": "long",
    "op": "short",
}
"""The types that Spark has for keys."""
ROWS_PER_STRETCH = 1_000_000
"""With half of it all tasks together cost more; with twice as many rows a task takes 100 MiB more."""
BATCH_ROWS = 65_536
ROWS_PER_PARTITION = 3_000_000
"""Of a shuffle: few partitions cost least (4 for ten million)."""
CLUSTER_READY_S = 120.0

Digest = Callable[[], list[int]]
"""How many rows an answer has, its requests and its bytes; looked at when nothing is measured any more."""
Run = Callable[[str], Digest]
"""Answers a question: all of the answer is made when it returns."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where Spark's tasks run, and the processes that are not below the one that asks for them."""

    master: str
    pids: tuple[int, ...]


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
    parser.add_argument("--pids", type=int, nargs="*", default=(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="quaymaster-bench-"))
        )
        if options.engine:
            running = Cluster(options.master or f"local[{options.cores}]", options.pids)
            print(json.dumps(answer_all(options.engine, folder, options.events, options.cores, running)))
            return
        write_files(folder, options.events)
        found: dict[str, Any] = {
            "events": options.events,
            "cores": options.cores,
            "file_mib": size_mib(files_of(folder, options.events)),
        }
        if options.workers:
            for workers in (1, 2):
                for engine in [name for name in options.only if name in ON_CLUSTERS]:
                    with cluster(workers) as running:
                        figures = in_own_process(engine, options, folder, running)
                    found[f"{engine}, workers: {workers}"] = figures
        else:
            for engine in options.only:
                found[engine] = in_own_process(engine, options, folder)
        check(found)
        print(json.dumps(found, indent=2))


def in_own_process(
    engine: str, options: argparse.Namespace, folder: Path, running: Cluster | None = None
) -> dict[str, Any]:
    """Return an engine's figures, measured in a process that does nothing else."""
    command = [sys.executable, "-m", "bench.engines", "--engine", engine, "--folder", str(folder)]
    command += ["--events", str(options.events), "--cores", str(options.cores)]
    if running:
        command += ["--master", running.master, "--pids", *map(str, running.pids)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    print(engine, answer.stdout.strip(), file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def answer_all(engine: str, folder: Path, events: int, cores: int, running: Cluster) -> dict[str, Any]:
    """Return figures and a digest of the answer for each question, run twice."""
    paths = files_of(folder, events)
    found: dict[str, Any] = {}
    heaps = heaps_of(engine, is_local=not running.pids)
    with contextlib.ExitStack() as stack:
        starting = Meter(*running.pids)
        with starting:
            run = stack.enter_context(ENGINES[engine](paths, cores, running.master))
        for question in QUESTIONS:
            if engine == "pipeline" and question != "hourly":
                continue
            meters = [Meter(*running.pids), Meter(*running.pids)]
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
    return found | heaps


def heaps_of(engine: str, *, is_local: bool) -> dict[str, str]:
    """Return how large heaps of the engine's JVMs may become; it has none without one."""
    settings = {"pipeline": PIPELINE, "spark": SPARK, "hybrid": SPARK | HYBRID}.get(engine, {})
    jvms = ("driver",) if is_local else ("driver", "executor")
    return {f"{jvm}_heap": settings[f"spark.{jvm}.memory"] for jvm in jvms if settings}


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
    from quaymaster_pipeline.usage.gold import HOURLY
    from quaymaster_pipeline.usage.partial_sums import WrittenSums, summing_work
    from quaymaster_pipeline.usage.tasks import SparkWorkers
    from quaymaster_pipeline.warehouse.schemas import HOUR_KEYS
    from quaymaster_pipeline.warehouse.session import spark_session
    from quaymaster_pipeline.warehouse.sums import add_up_files
    from quaymaster_pipeline.warehouse.tables import Warehouse

    source, name = TablePlace(str(paths[0].parent), {}), HOURLY.spec.name
    with (
        tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder,
        spark_session(master, directory=Path(folder), driver_memory=PIPELINE["spark.driver.memory"]) as spark,
    ):
        workers, table = SparkWorkers(spark), Warehouse(Path(folder, "warehouse")).table(HOURLY.spec)
        work = summing_work(source, {name: table.place}, "bench", 0, 1 << 62)

        def run(question: str) -> Digest:
            written = WrittenSums.of(workers.over([path.name for path in paths], work)).files[name]
            sums = add_up_files(table, written, HOUR_KEYS, HOURLY.spec.file_schema.names)
            return lambda: digest(sums)

        yield run


@contextlib.contextmanager
def spark_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """Spark SQL with the settings of SPARK."""
    from pyspark.sql import functions as f

    partitions = max(cores, -(-len(paths) * EVENTS_PER_FILE // ROWS_PER_PARTITION))
    spark = start_spark(master, SPARK | {"spark.sql.shuffle.partitions": str(partitions)})
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
        return written(frame)

    try:
        yield run
    finally:
        spark.stop()


def written(frame: DataFrame) -> Digest:
    """Make all of an answer; it stays with the tasks that made it, as when it is written to a table."""
    from pyspark.sql import functions as f

    frame.write.format("noop").mode("overwrite").save()
    totals = f.count("*").alias("rows"), *(f.sum(name).alias(name) for name in ("requests", "bytes"))
    return lambda: [int(number) for number in frame.agg(*totals).first() or ()]


def start_spark(master: str, settings: dict[str, str]) -> SparkSession:
    """Return a session with a JVM of its own."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("quaymaster bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def hybrid_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """Spark's tasks, in each of them a DuckDB of one thread that answers for a stretch of the keys."""
    from pyspark.sql import functions as f

    spark = start_spark(master, SPARK | HYBRID)

    def frame_of(question: str) -> DataFrame:
        queries = queries_by_stretch(paths, question)

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import duckdb

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    with duckdb.connect(config=HYBRID_DUCKDB) as connection:
                        connection.execute("set TimeZone = 'UTC'")
                        yield from connection.sql(queries[number]).to_arrow_reader(BATCH_ROWS)

        names = ("hour", "op") if question == "dedup" else QUESTIONS[question]
        numbers = ("bytes",) if question == "dedup" else (*SUMS, "latency_us_max")
        columns = {name: KINDS[name] for name in names} | dict.fromkeys(("requests", *numbers), "long")
        # A task for each: they are taken up as others end, whatever they hold.
        numbered = spark.range(0, len(queries), 1, len(queries))
        return numbered.mapInArrow(work, ", ".join(f"{name} {kind}" for name, kind in columns.items()))

    def run(question: str) -> Digest:
        frame = frame_of(question)
        if question != "dedup":
            # An hour lies in one stretch: what a task gives is the answer already.
            return written(frame)
        sums = (f.sum(name).alias(name) for name in ("requests", "bytes"))
        answer = frame.groupBy("hour", "op").agg(*sums).toArrow()
        return lambda: digest(answer)

    try:
        yield run
    finally:
        spark.stop()


def queries_by_stretch(paths: list[Path], question: str) -> list[str]:
    """Return a query for each stretch. For `dedup` their answers are to be added up."""
    key, render = ("event_id", dedup_query) if question == "dedup" else ("hour", hourly_query)
    return [
        render(f"(from read_parquet({list(one.paths)}) where {one.condition(key)})", QUESTIONS[question])
        for one in cut(read_row_groups(paths, key), ROWS_PER_STRETCH)
    ]


def hourly_query(events: str, keys: tuple[str, ...]) -> str:
    """Return DuckDB's sums. Without the casts they were of 128 bits, which Spark would take for decimals."""
    names = ", ".join(keys)
    sums = ", ".join(f"sum({name})::bigint as {name}" for name in SUMS)
    return (
        f"select {names}, count(*) as requests, {sums}, max(latency_us) as latency_us_max "
        f"from {events} group by {names}"
    )


def dedup_query(events: str, keys: tuple[str, ...]) -> str:
    """Return DuckDB's deduplication; there are no keys but the id."""
    columns = ", ".join(f"any_value({name}) as {name}" for name in ("hour", "op", "bytes"))
    once = f"select {columns} from {events} group by event_id"
    return (
        f"select hour, op, count(*) as requests, sum(bytes)::bigint as bytes from ({once}) group by hour, op"
    )


@contextlib.contextmanager
def duckdb_engine(paths: list[Path], cores: int, master: str) -> Iterator[Run]:
    """DuckDB; answers are tables in memory."""
    import duckdb

    connection = duckdb.connect(config={"threads": cores})
    events = f"read_parquet({list(map(str, paths))})"

    def run(question: str) -> Digest:
        query = (dedup_query if question == "dedup" else hourly_query)(events, QUESTIONS[question])
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
    "hybrid": hybrid_engine,
    "duckdb": duckdb_engine,
    "polars": polars_engine,
}
ON_CLUSTERS = ("spark", "hybrid")


@contextlib.contextmanager
def cluster(workers: int, *, cores: int = 1) -> Iterator[Cluster]:
    """Run a standalone cluster of so many workers; each, and all that it starts, keeps to one core.

    `cores` is how many each says that it has.
    """
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    names = {"SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environment = {**names, "PYSPARK_PYTHON": sys.executable}
    port, page = (servers.free_port() for _ in range(2))
    url = f"spark://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder, contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str, core: int | None = None) -> int:
            command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
            process = processes.start(
                [*command, *arguments], folder=Path(folder), environment=environment, core=core
            )
            stack.callback(processes.stop, process)
            return process.pid

        pids = [start("master.Master", "--webui-port", str(page), "--port", str(port))]
        for number in range(workers):
            size = ("--cores", str(cores), "--memory", "3g", "--work-dir", f"{folder}/{number}")
            pids.append(start("worker.Worker", "--webui-port", "0", *size, url, core=number))

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                    return bool(json.load(answer)["aliveworkers"] == workers)
            except OSError:
                return False

        if not processes.wait_until(is_ready, CLUSTER_READY_S, 0.5):
            raise RuntimeError("the cluster did not come up")
        yield Cluster(url, tuple(pids))


if __name__ == "__main__":
    main()

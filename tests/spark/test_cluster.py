"""On a real two-worker cluster whose processes are killed: a stream copies each message once, usage is counted once.

SPARK_FAULT_BATCHES=120 makes it long: so many batches, and faults at random as long as they last, beside one server and
beside a whole cell whose brokers die; and more moments at which the usage pipeline loses an executor or a worker.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from harness.local_cluster import LocalCluster
from harness.pipeline_site import Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.sqs import Endpoint
from harness.usage_blocks import FrontEnd

from pyspark_quaymaster import DefaultSource
from pyspark_quaymaster.client import Client
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.warehouse.schemas import BLOCKS as BLOCKS_TABLE
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS
from quaymaster_pipeline.warehouse.session import LOG_FILE

from .cluster import (
    PROC,
    Cluster,
    Driver,
    descendants,
    driver_helpers,
    kill,
    python_workers,
    running_cluster,
)
from .test_server import Server

pytestmark = pytest.mark.skipif(not PROC.exists(), reason="finds Spark's processes in /proc")

BATCH_ROWS = 60
AHEAD_BATCHES = 3
# Eight JVMs on a busy machine: a driver may need minutes to start.
PROGRESS_S = 1_500
TEST_TIMEOUT_S = 3_000
BATCHES = int(os.environ.get("SPARK_FAULT_BATCHES", "0"))
"""How many batches a long run has; otherwise there is each fault once."""

BLOCKS, BLOCK_ROWS = 60, 1_000
"""Of each of two front ends: a task writes its half for some tenths of a second, so it is seen to write."""
SUBMIT = (
    "--conf spark.executor.memory=600m "
    '--conf spark.executor.extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell'
)
USUALLY = [("executor", "worker")]
LOSSES = [*USUALLY, ("worker", "executor"), ("executor", "executor"), ("worker", "worker")]
"""What is killed while a task of the first table, and of the second, writes its file."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Cell(Server):
    """A cell of this machine in the place of one server; the broker that leads is what dies."""

    def __init__(self, processes: LocalCluster) -> None:
        self.processes = processes
        given = processes.credentials
        self.endpoint = Endpoint(
            given["endpoint_url"],
            given["region"],
            given["account_id"],
            given["access_key_id"],
            given["secret_access_key"],
        )
        self.sqs = processes.client()

    def kill(self) -> None:
        leader = self.processes.status()["journals"][0]["leader"]
        if leader is not None:
            self.processes.run("kill", leader)
            self.processes.run("restart", leader)


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    made = Server(folder / "data")
    try:
        yield made
    finally:
        made.process.stop()


@contextmanager
def running_cell(folder: Path) -> Iterator[Server]:
    with LocalCluster.started(folder / "cell", "--port", "0") as processes:
        yield Cell(processes)


def values_of(server: Server, queue: str) -> list[int]:
    """Return the bodies of a log in their order, read without Spark."""
    source = DefaultSource({**server.options, "queue": queue})
    columns = source.schema()
    reader = source.reader(columns)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = pa.Table.from_batches(found) if found else None
    return [] if rows is None else [int(value) for value in rows.column("value").to_pylist()]


class Copying:
    """A stream on the cluster that copies one log to another, and who keeps it running."""

    def __init__(self, cluster: Cluster, server: Server, folder: Path) -> None:
        self.cluster, self.server = cluster, server
        self.source, self.target = server.make_log(), server.make_log()
        self.rows = 0
        self.chance = random.Random(6)
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.driver = Driver(
            cluster,
            folder,
            {
                "source": {
                    **server.options,
                    "queue": self.source,
                    "startingOffsets": "earliest",
                    "maxOffsetsPerTrigger": str(BATCH_ROWS),
                    "minPartitions": "4",
                    "maxTasks": "4",
                    "consumerGroup": "copying",
                },
                "sink": {**server.options, "queue": self.target},
                "marks": str(self.marks),
            },
        )

    def add(self, batches: int) -> None:
        """Send so many batches more to the source."""
        rows = range(self.rows, self.rows + batches * BATCH_ROWS)
        self.server.send(self.source, *map(str, rows))
        self.rows = rows.stop

    def arrived(self) -> int:
        """Return how many messages can be seen in the target."""
        url = self.server.endpoint.queue_url(self.target)
        with Client(self.server.endpoint_of_connector) as client:
            (bounds,) = client.describe_log(url).partitions.values()
        return bounds.next - bounds.earliest

    def wait_for(self, rows: int) -> None:
        """Wait until so many messages have arrived; a driver whose query ended is started again."""
        deadline_s = time.monotonic() + PROGRESS_S
        while self.arrived() < rows:
            assert time.monotonic() < deadline_s, f"{self.arrived()} of {rows}\n{self.driver.log()}"
            if not self.driver.is_running:
                assert "AnswerIsWrong" not in self.driver.log()
                assert "DataIsLost" not in self.driver.log()
                self.driver.start()
            time.sleep(0.2)

    def faults(self) -> dict[str, Callable[[], bool]]:
        """Return what may be killed; each says whether it was there to be killed."""

        def one_of(pids: list[int]) -> bool:
            if pids:
                kill(self.chance.choice(pids))
            return bool(pids)

        def worker() -> bool:
            number = self.chance.randrange(2)
            self.cluster.kill_worker(number)
            self.cluster.start_worker(number)
            return True

        def driver() -> bool:
            self.driver.kill()
            return True

        def server() -> bool:
            self.server.kill()
            return True

        def tasks() -> list[int]:
            return [pid for executor in self.cluster.executors() for pid in python_workers(executor)]

        return {
            "executor": lambda: one_of(self.cluster.executors()),
            "python worker": lambda: one_of(tasks()),
            "worker": worker,
            "driver": driver,
            "server": server,
            "source or sink on the driver": lambda: one_of(
                driver_helpers(self.driver.pid) if self.driver.is_running else []
            ),
        }


@pytest.mark.timeout(TEST_TIMEOUT_S + 60 * BATCHES)
@pytest.mark.parametrize(
    "running",
    [
        running_server,
        pytest.param(running_cell, marks=pytest.mark.skipif(not BATCHES, reason="part of the long form")),
    ],
)
def test_each_message_arrives_once_and_in_order_whatever_is_killed(
    cluster: Cluster, tmp_path: Path, running: Callable[[Path], AbstractContextManager[Server]]
) -> None:
    with running(tmp_path) as server:
        copying = Copying(cluster, server, tmp_path)
        try:
            copy_among_faults(copying)
        finally:
            copying.driver.kill()

        assert values_of(server, copying.target) == list(range(copying.rows))
        # Tasks did run twice, and what both attempts staged is there once.
        assert list(copying.marks.iterdir())


def copy_among_faults(copying: Copying) -> None:
    """Let a stream copy all while things are killed, each kind once and then by chance."""
    faults = copying.faults()
    made: Counter[str] = Counter()
    copying.add(AHEAD_BATCHES)
    copying.wait_for(BATCH_ROWS)
    while (left := [kind for kind in faults if not made[kind]]) or copying.driver.commits < BATCHES:
        arrived = copying.arrived()
        if copying.rows - arrived < AHEAD_BATCHES * BATCH_ROWS:
            copying.add(AHEAD_BATCHES)
        kind = left[0] if left else copying.chance.choice(list(faults))
        # At any moment of a batch.
        time.sleep(copying.chance.uniform(0, 1))
        made[kind] += faults[kind]()
        copying.wait_for(arrived + BATCH_ROWS)
    copying.wait_for(copying.rows)


@contextmanager
def running_pipeline(cluster: Cluster, site: Site, data: Path) -> Iterator[subprocess.Popen[str]]:
    """`quaymaster pipeline run --once` on the cluster; gone afterwards, with all that it has started."""
    program = str(Path(sys.executable).parent / "quaymaster")
    words = ("pipeline", "run", "--once", "--files", str(site.feed), "--data", str(data), "--json")
    process = subprocess.Popen(
        [program, *words, "--master", cluster.url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment() | {"PYSPARK_SUBMIT_ARGS": SUBMIT},
    )
    try:
        yield process
    finally:
        below = descendants(process.pid)
        process.kill()
        for pid in below:
            kill(pid)
        process.communicate()


def kill_while_writing(
    cluster: Cluster, process: subprocess.Popen[str], what: Literal["executor", "worker"], folder: Path
) -> None:
    """Kill an executor, or its worker, at a moment when one of its tasks has a file below the folder open."""
    deadline_s = time.monotonic() + PROGRESS_S
    before, found = set(folder.rglob("*.parquet")), None
    while found is None:
        assert time.monotonic() < deadline_s, f"no task writes to {folder}"
        assert process.poll() is None, f"no task was seen to write to {folder}: {process.communicate()}"
        time.sleep(0.005)
        # To go through all processes all the time would take a core from Spark.
        if begun := set(folder.rglob("*.parquet")) - before:
            found = cluster.executor_that_writes(begun)
    executor, number = found
    if what == "executor":
        kill(executor)
    else:
        cluster.kill_worker(number)
        cluster.start_worker(number)


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a run that must succeed, and return what it told."""
    told, complaints = process.communicate(timeout=PROGRESS_S)
    assert process.returncode == 0, complaints
    report: dict[str, Any] = json.loads(told)
    return report


@pytest.mark.timeout(TEST_TIMEOUT_S)
@pytest.mark.parametrize(("at_bronze", "at_silver"), LOSSES if BATCHES else USUALLY)
def test_the_pipeline_counts_each_request_once_although_an_executor_and_a_worker_die_in_its_tasks(
    cluster: Cluster,
    tmp_path: Path,
    at_bronze: Literal["executor", "worker"],
    at_silver: Literal["executor", "worker"],
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=60_000), FrontEnd("b", step_us=50_000)
    again = one.block(BLOCK_ROWS)
    rest = [front_end.block(BLOCK_ROWS) for _ in range(BLOCKS) for front_end in (one, two)]
    site.ship(again, *rest)
    bronze, silver = (Path(site.warehouse.table(spec).place.uri) for spec in (BLOCKS_TABLE, USAGE_EVENTS))

    with running_pipeline(cluster, site, tmp_path) as process:
        kill_while_writing(cluster, process, at_bronze, bronze)
        kill_while_writing(cluster, process, at_silver, silver)
        report = report_of(process)
    log = (tmp_path / "spark" / LOG_FILE).read_text()
    expected, counted = expected_usage(one, two), site.usage()
    site.ship(again, two.block(BLOCK_ROWS))
    another = site.run()

    assert log.count("Lost executor") >= 2, log
    told = ("rows", "duplicates", "difference")
    assert [report[name] for name in told] == [(2 * BLOCKS + 1) * BLOCK_ROWS, 0, 0]
    assert counted == expected
    assert (another.taken, another.rows) == (1, 2 * BLOCK_ROWS)
    assert site.usage() == expected_usage(one, two)
    assert sum(one.difference for one in (*compare_rows(site.warehouse), *compare_notes(site.warehouse))) == 0
    assert compare_sums(site.warehouse) == []

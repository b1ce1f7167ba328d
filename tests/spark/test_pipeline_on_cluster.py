"""The usage pipeline on a two-worker cluster, from a real server's usage queue, while its processes are killed.

Requests are answered and recorded by the server, and each counts once in gold, whatever dies: the driver with its JVM,
an executor, a Python worker, a worker of the cluster; the server is stopped and started. SPARK_FAULT_BATCHES=120 makes
it long: so many batches of bronze, and faults by chance as long as they last.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.pipeline_site import InProcess
from harness.process import QuaymasterProcess
from harness.reconciled import compare_rows, compare_sums

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.usage import read_usage
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_DAILY
from quaymaster_pipeline.warehouse.tables import Warehouse

from .cluster import PROC, Cluster, descendants, kill, python_workers, running_cluster
from .test_cluster import SUBMIT
from .test_live_usage import make_traffic

pytestmark = pytest.mark.skipif(not PROC.exists(), reason="finds Spark's processes in /proc")

LONG = int(os.environ.get("SPARK_FAULT_BATCHES", "0"))
BATCHES = LONG or 2
USUALLY = ("executor", "driver")
"""The faults of a short run; a long one has all, each at least once."""
PROGRESS_S = 1_500
TEST_TIMEOUT_S = 3_000 + 60 * LONG
FLUSHED_S = 5
"""What a server records is durable, and shipped, within less than this."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class RunningPipeline:
    """`quaymaster pipeline run` on the cluster; whoever kills it starts it again."""

    def __init__(self, cluster: Cluster, server: QuaymasterProcess, folder: Path) -> None:
        self._cluster = cluster
        self._server = server
        self._log = folder / "pipeline.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def warehouse(self) -> Warehouse:
        """The tables as they are now."""
        return Warehouse(self._server.data / "warehouse")

    @property
    def batches(self) -> int:
        """How many batches all tables have."""
        tables = ((BLOCKS, BRONZE), (USAGE_DAILY, gold.APP))
        return 1 + min(self.warehouse.table(spec).last_batch(app) for spec, app in tables)

    def start(self, *words: str) -> None:
        program = str(Path(sys.executable).parent / "quaymaster")
        command = [
            program,
            "pipeline",
            "run",
            "--data",
            str(self._server.data),
            "--master",
            self._cluster.url,
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(words or ("--interval", "0.2"))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._cluster.environment() | {"PYSPARK_SUBMIT_ARGS": SUBMIT},
            )

    def kill(self) -> None:
        """End it and its JVM at once."""
        if self._process is not None:
            below = descendants(self._process.pid)
            self._process.kill()
            for pid in below:
                kill(pid)
            self._process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def finish(self) -> None:
        """Take all that is there, in a run of its own."""
        self.kill()
        self.start("--once")
        assert self._process is not None, "it was started"
        assert self._process.wait(PROGRESS_S) == 0, self.log()

    def wait_for(self, batches: int) -> None:
        """Wait until all tables have so many batches; a run that ended by itself is told."""
        deadline_s = time.monotonic() + PROGRESS_S
        while self.batches < batches:
            assert self.is_running(), self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.2)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-20_000:]


def faults_of(
    cluster: Cluster, pipeline: RunningPipeline, server: QuaymasterProcess, chance: random.Random
) -> dict[str, Callable[[], bool]]:
    """Return what can be done to the processes by its name; False where there was none."""

    def one_of(pids: list[int]) -> bool:
        if pids:
            kill(chance.choice(pids))
        return bool(pids)

    def driver() -> bool:
        pipeline.kill()
        pipeline.start()
        return True

    def worker() -> bool:
        number = chance.randrange(2)
        cluster.kill_worker(number)
        cluster.start_worker(number)
        return True

    def restart_server() -> bool:
        server.stop()
        server.start()
        return True

    return {
        "executor": lambda: one_of(cluster.executors()),
        "python worker": lambda: one_of(
            [pid for executor in cluster.executors() for pid in python_workers(executor)]
        ),
        "driver": driver,
        "worker": worker,
        "server": restart_server,
    }


@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_each_request_counts_once_whatever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    server.start()
    pipeline = RunningPipeline(cluster, server, tmp_path)
    chance = random.Random(14)
    faults = faults_of(cluster, pipeline, server, chance)
    kinds = list(faults) if LONG else list(USUALLY)
    made: Counter[tuple[str, str, str]] = Counter()
    done: Counter[str] = Counter()
    try:
        pipeline.start()
        while (left := [name for name in kinds if not done[name]]) or pipeline.batches < BATCHES:
            before = pipeline.batches
            made += make_traffic(server, f"queue-{sum(done.values())}")
            name = left[0] if left else chance.choice(kinds)
            time.sleep(chance.uniform(0, 2))
            done[name] += faults[name]()
            pipeline.wait_for(before + 1)
        time.sleep(FLUSHED_S)
        pipeline.finish()

        found: Counter[tuple[str, str, str]] = Counter()
        for line in read_usage(pipeline.warehouse):
            # The command asks the admin API what brokers counted, which is recorded without a queue.
            if line.queue.startswith("queue-"):
                for measure in ("requests", "messages", "bytes", "chunks", "errors"):
                    found[line.queue, line.action, measure] += getattr(line, measure)
        warehouse = pipeline.warehouse
    finally:
        pipeline.kill()
        server.kill9()

    assert +found == made
    assert sum(one.difference for one in (*compare_rows(warehouse), *compare_notes(warehouse))) == 0
    assert compare_sums(warehouse) == []
    assert [one.text for one in verify(InProcess(), warehouse).breaks] == []
    assert pipeline.batches >= BATCHES

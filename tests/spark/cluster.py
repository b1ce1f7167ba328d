"""A standalone Spark cluster on loopback from the pip package: a master and two workers, killed and started by pid."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from harness import early_worker
from harness.process import free_port
from harness.waiting import PATIENCE_S

WORKERS = 2
READY_S = 300
STOP_S = 30

PROC = Path("/proc")
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_PYTHON = b"pyspark.daemon"
_MODULE = b"\0-m\0pyspark."
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def children() -> dict[int, int]:
    """Return the parent of each process."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def command_line(pid: int) -> bytes:
    """Return how a process was started; nothing when it has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have."""
    parents = children()
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def python_workers(pid: int) -> list[int]:
    """Return the Python processes that run tasks below a process: children of Spark's daemon, which a JVM started."""
    parents = children()
    return [
        one
        for one in descendants(pid)
        if _PYTHON in command_line(one) and _PYTHON in command_line(parents.get(one, 0))
    ]


def driver_helpers(pid: int) -> list[int]:
    """Return the Python processes that a driver's JVM has started: they plan reads, hold a source, commit a sink."""
    return [one for one in descendants(pid) if _MODULE in command_line(one)]


def has_open(pid: int, paths: Collection[Path]) -> bool:
    """Return whether a process has one of these files open."""
    try:
        return any(entry.readlink() in paths for entry in (PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False  # it ended meanwhile, or closed one


def kill(pid: int) -> None:
    """End a process as a crash does; one that has ended already is no error."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Cluster:
    """The cluster's processes. A worker that was killed is started again by `start_worker`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._ui_port = free_port(), free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * WORKERS

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return what Spark's processes and drivers run with."""
        # An executor starts its workers itself: what it starts ends with it, and is what is looked for and killed.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("AWS_") and name != early_worker.FORKER
        }
        return kept | {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            # An application may lose as many executors as a long run kills.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }

    def start(self) -> None:
        """Start all, and return when the master has its workers."""
        self._master = self._start(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._ui_port)),
        )
        # A worker asks its master again only after seconds.
        self._wait(lambda state: True)
        for number in range(WORKERS):
            self.start_worker(number)
        self.wait_for_workers()

    def start_worker(self, number: int) -> None:
        # Spark runs no two attempts at a task on one host: each worker is a host of its own.
        host = f"127.0.0.{number + 1}"
        self._workers[number] = self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            *("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", str(free_port())),
            *("--work-dir", str(self.folder / f"work-{number}"), self.url),
            host=host,
        )

    def wait_for_workers(self) -> None:
        self._wait(lambda state: state["aliveworkers"] == WORKERS)

    def kill_worker(self, number: int) -> None:
        worker = self._workers[number]
        assert worker is not None, "the worker is started"
        worker.kill()
        worker.wait()

    def executors(self) -> list[int]:
        """Return the JVMs that run tasks."""
        pids: list[int] = []
        for worker in self._workers:
            if worker is not None and worker.poll() is None:
                pids += [pid for pid in descendants(worker.pid) if _EXECUTOR in command_line(pid)]
        return pids

    def executor_that_writes(self, paths: Collection[Path]) -> tuple[int, int] | None:
        """Return the executor, and its worker's number, that has a task with one of these files open.

        A task has it open for some tenths of a second: processes are gone through once, and what is asked is cheap.
        """
        parents = children()
        task = next(
            (pid for pid in parents if _PYTHON in command_line(pid) and has_open(pid, paths)),
            None,
        )
        workers = {worker.pid: number for number, worker in enumerate(self._workers) if worker is not None}
        executor, pid = None, task
        while pid is not None:
            if _EXECUTOR in command_line(pid):
                executor = pid
            if executor is not None and pid in workers:
                return executor, workers[pid]
            pid = parents.get(pid)
        return None

    def stop(self) -> None:
        """End all processes, what they have started first."""
        for process in [*self._workers, self._master]:
            if process is not None:
                started = descendants(process.pid)
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                for pid in started:
                    if _EXECUTOR in command_line(pid) or _PYTHON in command_line(pid):
                        kill(pid)

    def _start(
        self, name: str, kind: str, *arguments: str, host: str = "127.0.0.1"
    ) -> subprocess.Popen[bytes]:
        environment = self.environment() | {"SPARK_LOCAL_IP": host}
        # Replaces itself by java, so the pid stays.
        command = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class"), kind, *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
            )

    def _wait(self, is_ready: Any) -> None:
        deadline_s = time.monotonic() + READY_S
        while True:
            state = self._state()
            if state is not None and is_ready(state):
                return
            assert time.monotonic() < deadline_s, f"the cluster is not ready: {state}, see {self.folder}"
            time.sleep(0.2)

    def _state(self) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._ui_port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/json/")
            state: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        else:
            return state
        finally:
            connection.close()


class Driver:
    """A Spark application in a process of its own, `tests/spark/copying.py`, that can be killed and started again."""

    def __init__(self, cluster: Cluster, folder: Path, settings: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._log = folder / "driver.log"
        self._settings = {"master": cluster.url, "checkpoint": str(folder / "checkpoint"), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def commits(self) -> int:
        """How many batches are through, by the checkpoint."""
        folder = Path(self._settings["checkpoint"]) / "commits"
        return 1 + max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the driver was started"
        return self._process.pid

    def start(self) -> None:
        assert not self.is_running, "there is one driver at a time"
        self.starts += 1
        program = Path(__file__).with_name("copying.py")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(program), json.dumps(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._cluster.environment(),
                cwd=self._cluster.folder,
            )

    def kill(self) -> None:
        """End the Python process and its JVM at once, as when its machine is lost."""
        if self._process is None:
            return
        below = descendants(self._process.pid)
        self._process.kill()
        for pid in below:
            kill(pid)
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-20_000:] if self._log.exists() else ""


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that is up, and gone afterwards."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()

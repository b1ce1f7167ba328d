"""Log workers of a real server: they end with it, however it ends, and a killed one costs no answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess
from harness.waiting import eventually

from .support import Client, bodies
from .test_log_api import read_all

COUNT = 3_000
WORKER = b"quaymaster.frontend.logs.opening_worker"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[QuaymasterProcess]:
    """A server with a log of COUNT messages, all in its tail."""
    running = QuaymasterProcess(
        tmp_path / "data", settings={"log_workers_max": "2", "block_build_interval_s": "0"}
    )
    running.start()
    try:
        client = Client(running)
        client.create("log", RetentionMode="Log")
        client.send("log", bodies(COUNT))
        client.close()
        yield running
    finally:
        running.stop()


def workers_of(process: QuaymasterProcess) -> list[int]:
    """Return the server's children that are workers."""
    children: list[int] = []
    for listing in Path(f"/proc/{process.pid}/task").glob("*/children"):
        children += map(int, listing.read_text().split())
    return [child for child in children if is_worker(child)]


def is_worker(pid: int) -> bool:
    try:
        return WORKER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def read(process: QuaymasterProcess) -> list[int]:
    """Read the log whole, and return its server's workers."""
    expected = [(offset, body.encode()) for offset, body in enumerate(bodies(COUNT), 1)]
    assert read_all(process, 1, COUNT + 1) == expected
    return workers_of(process)


def test_workers_are_there_when_a_log_is_read_in_bulk_and_end_with_the_server(
    process: QuaymasterProcess,
) -> None:
    assert workers_of(process) == []

    workers = eventually(lambda: read(process), "a worker")
    assert read(process)
    process.stop()

    assert not any(map(is_worker, workers))
    assert "log worker failed" not in process.log()


def test_no_worker_is_left_behind_by_a_server_that_is_killed(process: QuaymasterProcess) -> None:
    workers = eventually(lambda: read(process), "a worker")

    process.kill9()

    eventually(lambda: not any(map(is_worker, workers)), "the workers end")


def test_a_log_is_read_whole_while_its_servers_workers_are_killed(process: QuaymasterProcess) -> None:
    killed = eventually(lambda: read(process), "a worker")

    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    read(process)

    others = eventually(lambda: set(read(process)) - set(killed), "another worker")
    assert others
    assert "log worker failed" in process.log()


def test_signals_to_the_whole_group_let_workers_answer_until_the_server_has_drained(
    process: QuaymasterProcess,
) -> None:
    workers = eventually(lambda: read(process), "a worker")
    eventually(lambda: all(ignores(worker, signal.SIGTERM) for worker in workers), "they have begun")

    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, signal.SIGINT)

    assert set(workers) <= set(read(process))

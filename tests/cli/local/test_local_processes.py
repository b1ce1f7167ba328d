"""Processes that outlive who started them: told apart from others, paused, stopped, never mistaken."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.cli.local.plan import ProcessId
from quaymaster.cli.local.processes import condition, send, spawn, stop, wait_until_ended

Start = Callable[[str], ProcessId]

READY = "print('ready', flush=True); "


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "process.log"


@pytest.fixture
def start(log: Path) -> Iterator[Start]:
    """`start(program)` starts a Python program and returns when it has printed READY's word."""
    started: list[ProcessId] = []

    def start_one(program: str) -> ProcessId:
        before = log.stat().st_size if log.exists() else 0
        process = spawn([sys.executable, "-c", program], log, os.environ)
        started.append(process)
        # Output comes piece by piece where it is not buffered: the first is not the word yet.
        while b"ready\n" not in log.read_bytes()[before:] and condition(process) == "running":
            os.sched_yield()
        return process

    yield start_one
    stop(started, 0.0)
    assert wait_until_ended(started, PATIENCE_S) == []


def test_a_process_runs_in_a_session_of_its_own_and_writes_to_its_log(start: Start, log: Path) -> None:
    process = start(f"import sys, time; print('out'); print('err', file=sys.stderr); {READY}time.sleep(600)")

    assert condition(process) == "running"
    assert os.getsid(process.pid) == process.pid
    assert sorted(log.read_text().split()) == ["err", "out", "ready"]


def test_a_process_that_ended_is_known_to_have_ended(start: Start) -> None:
    process = start(READY)

    assert wait_until_ended([process], PATIENCE_S) == []
    assert condition(process) == "ended"
    assert not send(process, signal.SIGTERM)


def test_a_later_process_with_the_same_number_is_another_one(start: Start) -> None:
    process = start(f"import time; {READY}time.sleep(600)")
    earlier = ProcessId(process.pid, "another time")

    assert condition(earlier) == "ended"
    assert not send(earlier, signal.SIGKILL)
    assert condition(process) == "running"


def test_a_paused_process_is_seen_as_such_and_still_hears_that_it_shall_end(start: Start, log: Path) -> None:
    process = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('ended well')))\n"
        f"{READY}time.sleep(600)"
    )

    send(process, signal.SIGSTOP)
    while condition(process) == "running":
        os.sched_yield()
    assert condition(process) == "paused"
    stop([process], PATIENCE_S)

    assert condition(process) == "ended"
    assert "ended well" in log.read_text()


def test_a_process_that_will_not_end_is_ended(start: Start) -> None:
    process = start(
        f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}time.sleep(600)"
    )

    stop([process], 0.1)

    assert wait_until_ended([process], PATIENCE_S) == []

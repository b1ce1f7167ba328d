"""Processes under measurement: pinned to a core, their CPU time and memory read from /proc with all descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SERVER_CORE = 0
LOAD_CORE = 1
STOP_TIMEOUT_S = 30.0


def pin(core: int) -> None:
    """Keep this process, and all it starts, on one core, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0) | set(range(os.cpu_count() or 1)))
        os.sched_setaffinity(0, {allowed[core % len(allowed)]})


def tree_of(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for member in found:
        for listing in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += [int(child) for child in listing.read_text().split()]
            except (OSError, ProcessLookupError):
                continue
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used: all threads, ended ones too."""
    used_s = 0.0
    for member in tree_of(pid):
        with suppress(OSError):  # it has ended
            used_s += own_cpu_s(member)
    return used_s


def own_cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used alone: all threads, without descendants. Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_bytes(pid: int, field: str = "VmHWM") -> int:
    """Return the resident memory of a process and its descendants: at its largest, or now (`VmRSS`)."""
    total = 0
    for member in tree_of(pid):
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
    return total


def start(
    command: Sequence[str | Path],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    core: int | None = SERVER_CORE,
) -> subprocess.Popen[bytes]:
    """Start a server on the core that is kept for servers, or on all of them (None)."""
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=log or subprocess.DEVNULL,
        stderr=log or subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=None if core is None else lambda: pin(core),
    )


def fork(run: Callable[[], None]) -> int:
    """Run a function in a child on the servers' core; return its process id."""
    child = os.fork()
    if not child:
        try:
            pin(SERVER_CORE)
            run()
        finally:
            os._exit(0)
    return child


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and what it started: asked first, then killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until(is_so: Callable[[], bool], timeout_s: float, interval_s: float = 0.02) -> bool:
    """Ask again and again; return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True

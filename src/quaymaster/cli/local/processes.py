"""Processes that outlive the command that starts them: started, told apart from later ones, signalled, waited for.

A pid is used again for another program some time after its process has ended. So a process is known by its pid and
the time of its start, which the kernel tells; a signal goes only to the process that was meant.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from quaymaster.cli.local.plan import HOST, ProcessId

POLL_S = 0.02
_PROC = Path("/proc")

Condition = Literal["running", "paused", "ended"]


def spawn(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ProcessId:
    """Start a process in a session of its own, so that the terminal's Ctrl-C does not reach it; output goes to `log`.

    Raises:
        OSError: the program cannot be run, or the log not be written.
    """
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(environment),
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    return ProcessId(pid, _started(pid) or "")


def condition(process: ProcessId) -> Condition:
    """Return whether a process runs; one that has only not been waited for by its parent has ended."""
    _reap(process.pid)
    status = _status(process.pid)
    if status is None or status[1] != process.started or status[0] in "ZX":
        return "ended"
    return "paused" if status[0] == "T" else "running"


def children_of(process: ProcessId) -> list[tuple[ProcessId, list[str]]]:
    """Return the processes that one has started and that run, with their commands; none where there is no /proc."""
    found: list[tuple[ProcessId, list[str]]] = []
    for listed in (_PROC / str(process.pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for pid in map(int, listed.read_text().split()):
                child = ProcessId(pid, _started(pid) or "")
                command = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if condition(child) != "ended":
                    found.append((child, command[:-1]))
    return found if condition(process) != "ended" else []


def send(process: ProcessId, number: int) -> bool:
    """Signal a process; false when it has ended."""
    if hasattr(os, "pidfd_open"):
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            # What the handle is of cannot be another process from here on.
            if condition(process) == "ended":
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True
    if condition(process) == "ended":
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def stop(processes: Iterable[ProcessId], grace_s: float) -> None:
    """Ask processes to end, and end those by force that still run after a while; paused ones go on to hear it."""
    asked = [process for process in processes if send(process, signal.SIGTERM)]
    for process in asked:
        send(process, signal.SIGCONT)
    for process in wait_until_ended(asked, grace_s):
        send(process, signal.SIGKILL)
    wait_until_ended(asked, grace_s)


def wait_until_ended(processes: Iterable[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Return the processes that still run when all have ended or the time is up."""
    left = list(processes)
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = [process for process in left if condition(process) != "ended"]
        if not left or time.monotonic() >= deadline_s:
            return left
        time.sleep(POLL_S)


def is_port_free(port: int) -> bool:
    """Whether a port of loopback can be listened on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that have ended do not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _reap(pid: int) -> None:
    """Let the kernel forget an ended child of ours."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _started(pid: int) -> str | None:
    status = _status(pid)
    return status[1] if status is not None else None


def _status(pid: int) -> tuple[str, str] | None:
    """Return the letter of a process's state and when it was started; None when there is no such process."""
    if _PROC.exists():
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # Ticks since the start of the machine, so the machine's start belongs to it.
        return fields[0], f"{_boot_id()}/{fields[19]}"
    done = subprocess.run(  # noqa: S603 -- a number
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 -- where it is differs between systems
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = done.stdout.strip().partition(" ")
    return (state[0], started.strip()) if state else None


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()

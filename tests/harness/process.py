"""Runs the real `quaymaster serve` as a child process: start, stop, kill -9, restart on the same data.

process = QuaymasterProcess(tmp_path / "data", settings={"authentication": "open"})
process.start()
try:
    ...  # process.endpoint_url, process.env()
finally:
    process.stop()
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from quaymaster.cli.local.ports import ports_of_this_process
from quaymaster.cli.shared.connection import connection_fields, read_client_file
from quaymaster.cli.shared.failures import NoServer

from .forked_programs import EXECUTABLE, Program, start_program
from .waiting import PATIENCE_S

START_TIMEOUT_S = PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S
POLL_INTERVAL_S = 0.02
LOG_TAIL_BYTES = 20_000
SOCKETS = shutil.ignore_patterns("run")
"""For `copytree`: what a killed server leaves there cannot be copied, and means nothing without its process."""

# By process: a child that was forked must not give what its parent gives.
_ports: dict[int, Iterator[int]] = {}
_ports_lock = threading.Lock()
"""Tests start servers in threads."""


class Environment(NamedTuple):
    """What `quaymaster env --json` prints: all a client needs to reach the server.

    It is read as the command reads it: as a command, it would be the dearest part of many a test.
    """

    endpoint_url: str
    region: str
    account_id: str
    access_key_id: str
    secret_access_key: str

    @classmethod
    def of(cls, data: Path) -> Environment:
        """Return what the server on a data directory wrote down.

        Raises:
            ProcessFailed: it wrote nothing.
        """
        try:
            fields = connection_fields(read_client_file(data))
        except NoServer as error:
            raise ProcessFailed(str(error)) from None
        return cls(*(str(fields[name]) for name in cls._fields))


class ProcessFailed(AssertionError):
    """The server did not start, stop or answer as it must; the message ends with its log."""


def free_port() -> int:
    """Return a loopback port that no other process is given while this one runs; see `quaymaster.cli.local.ports`."""
    with _ports_lock:
        return next(_ports.setdefault(os.getpid(), ports_of_this_process()))


class QuaymasterProcess:
    """One server process on its own ports and data directory; both stay the same over restarts."""

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, str] | None = None,
        listen_port: int | None = None,
        admin_port: int | None = None,
    ) -> None:
        self.data = data
        self.settings = dict(settings or {})
        self.listen_port = listen_port or free_port()
        self.admin_port = admin_port or free_port()
        self.log_path = data.with_name(data.name + ".log")
        self._child: Program | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.listen_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        assert self._child is not None, "the process is not started"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the process and return when it says that it serves requests.

        Raises:
            ProcessFailed: it ended, or was not ready in time (it is killed then).
        """
        assert not self.is_running, "the process is already running"
        self.data.parent.mkdir(parents=True, exist_ok=True)
        words = [
            "serve",
            "--data",
            str(self.data),
            "--listen",
            f"127.0.0.1:{self.listen_port}",
            "--admin",
            f"127.0.0.1:{self.admin_port}",
        ]
        with self.log_path.open("ab") as log:
            self._child = start_program(
                words,
                environment=self._environment(),
                out=log,
                directory=self.data.parent,
                executable=self._executable(),
            )
        self._wait_until_ready(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask the process to drain and end (SIGTERM); nothing happens if it is not running.

        Raises:
            ProcessFailed: it did not end in time (it is killed then), or not with exit code 0.
        """
        child = self._child
        if child is None:
            return
        self._child = None
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise ProcessFailed(f"still running {timeout_s:g} s after SIGTERM\n{self.log()}") from None
        if code != 0:
            raise ProcessFailed(f"ended with exit code {code}, not 0\n{self.log()}")

    def ended_with(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until the process has ended by itself, and return its exit code.

        Raises:
            ProcessFailed: it goes on.
        """
        assert self._child is not None, "the process is not started"
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"still running after {timeout_s:g} s\n{self.log()}") from None
        self._child = None
        return code

    def kill9(self) -> None:
        """End the process as a crash does: SIGKILL, nothing flushed, nothing drained."""
        assert self._child is not None, "the process is not started"
        self._child.kill()
        self._child.wait()
        self._child = None

    def restart(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Stop the process if it runs, and start it on the same data and ports."""
        self.stop()
        self.start(timeout_s)

    def env(self) -> Environment:
        """Return address and credentials as `quaymaster env --json` gives them. Raises as `Environment.of`."""
        return Environment.of(self.data)

    def log(self) -> str:
        """Return the end of what the process printed, over all its starts."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _executable(self) -> str:
        return EXECUTABLE

    def _environment(self) -> dict[str, str]:
        # Settings of the shell that runs the tests must not leak into the process under test.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("QUAYMASTER_", "AWS_"))
        }
        environment["QUAYMASTER_DRAIN_NOTICE_S"] = "0"  # there is no balancer that needs one
        environment["QUAYMASTER_CONSOLE"] = "off"  # those who look at it switch it on
        environment |= {f"QUAYMASTER_{name.upper()}": value for name, value in self.settings.items()}
        return environment

    def _wait_until_ready(self, timeout_s: float) -> None:
        assert self._child is not None
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            code = self._child.poll()
            if code is not None:
                self._child = None
                raise ProcessFailed(f"ended with exit code {code} before it was ready\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill9()
                raise ProcessFailed(f"not ready after {timeout_s:g} s\n{self.log()}")
            time.sleep(POLL_INTERVAL_S)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=2)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

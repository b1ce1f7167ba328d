"""A whole cell of real processes on loopback: etcd, brokers, managers, metadata nodes and front ends.

    with RunningCell.started(tmp_path, {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1}) as cell:
        ...  # cell["broker-1"].kill9(), cell.status(), cell.client()

Everything ends with the `with`, by process id. Ports and data of a process stay the same over restarts.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.net.rpc import RPCClient
from quaymaster.net.tls import TransportSecurity
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.manager_calls import STATUS

from .etcd import EtcdCluster
from .forked_programs import Program, run_program, start_program
from .load import Address, SQSConnection
from .process import Environment, ProcessFailed, free_port
from .waiting import PATIENCE_S
from .wall_clock import WallClock

START_TIMEOUT_S = PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S
WAIT_TIMEOUT_S = PATIENCE_S
POLL_INTERVAL_S = 0.1
LOG_TAIL_BYTES = 6_000
CELL = "test"
PREFIX = "quaymaster/test/"


class RoleProcess:
    """One process of the cell. `python_path` holds the package that the next start runs; None: the installed one.

    `clock` is its wall clock from the next start on; None: the machine's.
    """

    def __init__(self, directory: Path, name: str, role: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.role = role
        self.port = free_port()
        self.admin_port = free_port()
        self.data = directory / name
        self.log_path = directory / f"{name}.log"
        self.python_path: Path | None = None
        self.clock: WallClock | None = None
        listen = {"frontend": "listen", "push": "listen"}.get(role, f"{role}_listen")
        self.settings = {
            **settings,
            "data_directory": str(self.data),
            "node": name,
            "admin_listen": f"127.0.0.1:{self.admin_port}",
            listen: f"127.0.0.1:{self.port}",
        }
        if role == "console":
            self.settings["console_rpc_listen"] = f"127.0.0.1:{free_port()}"
        self.child: Program | None = None

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    @property
    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, f"{self.name} runs"
        with self.log_path.open("ab") as log:
            self.child = start_program(["run", self.role], environment=self.environment(), out=log)

    def environment(self) -> dict[str, str]:
        """Return what the process, and commands that are to speak for it, find in their environment."""
        # Settings of the shell that runs the tests must not leak into the process under test.
        found = {
            name: value for name, value in os.environ.items() if not name.startswith(("QUAYMASTER_", "AWS_"))
        }
        if self.python_path is not None:
            found["PYTHONPATH"] = str(self.python_path)
        if self.clock is not None:
            found |= self.clock.environment()
        found["QUAYMASTER_DRAIN_NOTICE_S"] = "0"  # there is no balancer that needs one
        return found | {f"QUAYMASTER_{name.upper()}": value for name, value in self.settings.items()}

    def wait_until_ready(self) -> None:
        """Return when the process says that it serves.

        Raises:
            ProcessFailed: it ended, or was not ready in time.
        """
        assert self.child is not None, f"{self.name} was never started"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready:
            if self.child.poll() is not None:
                raise ProcessFailed(f"{self.name} ended with {self.child.returncode}\n{self.log()}")
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} not ready after {START_TIMEOUT_S:g} s\n{self.log()}")
            time.sleep(POLL_INTERVAL_S)

    def start(self) -> None:
        """Start the process and return when it serves."""
        self.launch()
        self.wait_until_ready()

    def stop(self) -> None:
        """Ask the process to end (SIGTERM), and wait for it; nothing happens if it does not run."""
        if self.is_running:
            assert self.child is not None
            self.child.send_signal(signal.SIGTERM)
            try:
                code = self.child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill9()
                raise ProcessFailed(f"{self.name} did not end\n{self.log()}") from None
            if code != 0:
                raise ProcessFailed(f"{self.name} ended with {code}\n{self.log()}")
        self.child = None

    def kill9(self) -> None:
        """End the process as a crash does."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        self.child = None

    def ended_with(self) -> int:
        """Wait until the process has ended by itself, and return its exit code."""
        assert self.child is not None, f"{self.name} was never started"
        try:
            return self.child.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"{self.name} goes on\n{self.log()}") from None

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `quaymaster` command with the settings of this process."""
        return run_program(arguments, environment=self.environment())

    def log(self) -> str:
        """Return the end of what the process printed, over all its starts."""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


class RunningCell:
    """The processes by name: `broker-1`, `frontend-2`, ..."""

    def __init__(
        self,
        directory: Path,
        etcd: EtcdCluster,
        roles: Mapping[str, int],
        *,
        settings: Mapping[str, str] | None = None,
        tls: Callable[[str, str], Path] | None = None,
    ) -> None:
        """`tls` gives the directory of certificates of a node, by name and role."""
        self.directory = directory
        self.etcd = etcd
        self.processes: dict[str, RoleProcess] = {}
        self._tls = tls
        self._settings = {
            "coordination": "etcd",
            "etcd_endpoints": ",".join(etcd.endpoints),
            "etcd_prefix": PREFIX,
            "cell": CELL,
            "keys_directory": str(directory / "keys"),
            "segment_bytes_max": str(8 << 20),
            "disk_reserve_segments": "1",
            **(settings or {}),
        }
        for role, count in roles.items():
            for number in range(1, count + 1):
                self.add(role, f"{role}-{number}")
        nodes = [f"127.0.0.1:{process.port}" for process in self.of_role("metadata")]
        for process in self.processes.values():
            process.settings["metadata_nodes"] = ",".join(nodes)

    @classmethod
    @contextmanager
    def started(
        cls,
        directory: Path,
        roles: Mapping[str, int],
        *,
        settings: Mapping[str, str] | None = None,
        tls: Callable[[str, str], Path] | None = None,
    ) -> Iterator[Self]:
        """Give a cell that serves, and end it."""
        with EtcdCluster.started(directory) as etcd:
            cell = cls(directory, etcd, roles, settings=settings, tls=tls)
            try:
                for process in cell.processes.values():
                    process.launch()
                for process in cell.processes.values():
                    process.wait_until_ready()
                yield cell
            finally:
                for process in cell.processes.values():
                    process.kill9()

    def __getitem__(self, name: str) -> RoleProcess:
        return self.processes[name]

    def of_role(self, role: str) -> list[RoleProcess]:
        """Return the processes of a role."""
        return [process for process in self.processes.values() if process.role == role]

    def add(self, role: str, name: str, *, tls_directory: Path | None = None) -> RoleProcess:
        """Add a process that is not started yet; it has other certificates than those of its name if they are given."""
        settings = dict(self._settings)
        if role == "broker":
            settings["zone"] = f"zone-{name}"
        if tls_directory is None and self._tls is not None:
            tls_directory = self._tls(name, role)
        if tls_directory is not None:
            settings["tls_directory"] = str(tls_directory)
        process = self.processes[name] = RoleProcess(self.directory, name, role, settings)
        return process

    def environment(self, front_end: str = "frontend-1") -> Environment:
        """Return address and credentials of a front end, as it wrote them for its clients."""
        return Environment.of(self[front_end].data)

    def connection(self, front_end: str = "frontend-1") -> SQSConnection:
        """Return a connection to a front end."""
        return SQSConnection(self.environment(front_end), self[front_end].port)

    def status(self) -> dict[str, Any] | None:
        """Return what a manager says of the cell; None while none answers."""
        managers = [("127.0.0.1", manager.port) for manager in self.of_role("manager")]
        return ask_status(CELL, managers, None if self._tls is None else self._tls("operator-1", "operator"))

    def wait_until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the cell's status as soon as something holds of it."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while True:
            status = self.status()
            if status is not None and holds(status):
                return status
            assert time.monotonic() < deadline, f"{status}\n{self.logs()}"
            time.sleep(POLL_INTERVAL_S)

    def wait_until_whole(self) -> dict[str, Any]:
        """Return the status once every journal is led, and every member of it is heard and keeps up."""
        return self.wait_until(is_whole)

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"── {name}\n{process.log()}" for name, process in self.processes.items())


def ask_status(
    cell: str, managers: Iterable[Address], tls_directory: Path | None = None
) -> dict[str, Any] | None:
    """Return what the first manager that answers says of a cell; None while none does."""
    return asyncio.run(_ask_status(cell, managers, tls_directory))


async def _ask_status(
    cell: str, managers: Iterable[Address], tls_directory: Path | None
) -> dict[str, Any] | None:
    security = None if tls_directory is None else TransportSecurity(tls_directory)
    for manager in managers:
        client = RPCClient(
            manager,
            Hello(cell, "operator", "operator-1"),
            tls=None if security is None else security.client_context,
            check_peer=None if security is None else security.check_peer("manager"),
        )
        try:
            status: dict[str, Any] = msgspec.json.decode(await client.ask(STATUS, b"", 2_000))
            return status
        except (NotNow, CallerError):
            continue
        finally:
            await client.close()
    return None


def is_whole(status: dict[str, Any]) -> bool:
    """Tell whether every journal is led, and every member of it is heard and keeps up."""
    return (
        bool(status["journals"])
        and not status["problems"]
        and all(broker["is_reachable"] for broker in status["brokers"])
        and all(
            journal["leader"]
            and all(
                member["role"] in ("leading", "follower")
                and member["lag_records"] is not None
                and member["lag_records"] < 1_000
                for member in journal["members"]
            )
            for journal in status["journals"]
        )
    )

"""A whole cell of real processes, each broker its own host: etcd, brokers, metadata nodes, managers, front ends.

```
  clients ─┬─ services-1   frontend-1  metadata-1  manager-1
           ├─ services-2   frontend-2  metadata-2  manager-2
           ├─ broker-1, broker-2, broker-3      a zone and a disk (ext4, 384 MiB) each
           └─ etcd-1 (, etcd-2, etcd-3)
```

    with Cell.started(tmp_path) as cell:
        cell.member("broker-1").kill9()
        ...  # cell.addresses are those of the front ends; the calling thread is in the host `clients`

Every process has a wall clock of its own that can be set. All end with the `with`, by process id.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from harness.disks import SmallDisk, small_disk
from harness.etcd import ELECTION_MS, HEARTBEAT_MS, etcd_or_skip
from harness.forked_programs import Program
from harness.hosts import Hosts
from harness.load import Address
from harness.process import Environment, ProcessFailed
from harness.waiting import PATIENCE_S
from harness.wall_clock import WallClock

from quaymaster.cli.local.etcd import EtcdMember, etcd_command
from quaymaster.coordination.cell_keys import JOURNALS, decode_configuration, journal_of
from quaymaster.coordination.stores.row_checksum import value_of
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.journal_configuration import JournalConfiguration

Role = Literal["etcd", "broker", "metadata", "manager", "frontend", "edge"]

CELL = "nemesis"
ETCD_PREFIX = "quaymaster/nemesis/"
ETCD_PORTS = (2379, 2380)
PORTS: dict[Role, int] = {"broker": 9340, "metadata": 9330, "manager": 9350, "frontend": 9324}
ADMIN_PORTS: dict[Role, int] = {"broker": 9325, "metadata": 9326, "manager": 9327, "frontend": 9328}
LISTEN: dict[Role, str] = {
    "broker": "broker_listen",
    "metadata": "metadata_listen",
    "manager": "manager_listen",
    "frontend": "listen",
}
DISK_BYTES = 384 << 20
SETTINGS: dict[str, object] = {
    "segment_bytes_max": 2 << 20,
    "snapshot_interval_s": 5,
    "body_cache_bytes": 4 << 20,
    "disk_low_bytes": 24 << 20,
    "purge_interval_s": 0,
    "queue_name_reuse_s": 0,
    "drain_grace_s": 2,
    "drain_notice_s": 0,
    "replacement_grace_s": 5,
}
START_TIMEOUT_S = PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S
POLL_INTERVAL_S = 0.05
PROBE_TIMEOUT_S = 1.0
LOG_TAIL_BYTES = 6_000
CLIENTS = "clients"


@dataclass(frozen=True, slots=True)
class HostedEtcd(EtcdMember):
    """A member of etcd with an address of its own."""

    host: str = "127.0.0.1"

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://{self.host}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """Where the other members reach it."""
        return f"http://{self.host}:{self.peer_port}"


class Member:
    """One process of the cell; its host, files and ports stay the same over restarts."""

    def __init__(
        self,
        name: str,
        role: Role,
        host: str,
        command: Sequence[str],
        *,
        hosts: Hosts,
        probe: tuple[str, int, str],
        directory: Path,
    ) -> None:
        """`command`: etcd's, else the words for `quaymaster`. `probe`: where it says that it is ready."""
        self.name = name
        self.role = role
        self.host = host
        self.log_path = directory / f"{name}.log"
        self.clock = WallClock(directory / f"{name}.clock")
        self.is_paused = False
        self._command = list(command)
        self._hosts = hosts
        self._probe = probe
        self._child: Program | None = None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def has_failed(self) -> bool:
        """Whether the process ended though nobody ended it."""
        return self._child is not None and self._child.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None when it did not end by itself."""
        return None if self._child is None else self._child.poll()

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, f"{self.name} runs"
        with self.log_path.open("ab") as log:
            if self.role == "etcd":
                self._child = self._hosts.popen(
                    self.host, self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            else:
                self._child = self._hosts.start_program(
                    self.host,
                    self._command,
                    environment={**_environment(), **self.clock.environment()},
                    out=log,
                )

    def kill9(self) -> None:
        """End the process as a crash does; nothing happens when it does not run."""
        child, self._child, self.is_paused = self._child, None, False
        if child is not None:
            child.kill()
            child.wait()

    def wait_for_end(self) -> int:
        """Return the exit code of a process that was told to end otherwise, or will end by itself."""
        child, self._child = self._child, None
        assert child is not None, f"{self.name} is not started"
        return child.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Ask the process to end, and return its exit code; it is killed when it takes too long.

        Raises:
            ProcessFailed: it had to be killed.
        """
        child, self._child = self._child, None
        assert child is not None, f"{self.name} is not started"
        child.send_signal(signal.SIGTERM)
        try:
            return child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise ProcessFailed(
                f"{self.name} runs {STOP_TIMEOUT_S:g} s after SIGTERM\n{self.log()}"
            ) from None

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        if self._child is not None:
            self._child.send_signal(signal.SIGSTOP)
            self.is_paused = True

    def resume(self) -> None:
        """SIGCONT; nothing happens when it is not paused."""
        if self._child is not None and self.is_paused:
            self._child.send_signal(signal.SIGCONT)
        self.is_paused = False

    def is_ready(self) -> bool:
        """Whether the process says that it serves."""
        host, port, path = self._probe
        connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status == 200 and (self.role != "etcd" or b"true" in body)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log(self) -> str:
        """Return the end of what it printed, over all its starts."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
            return f"{self.name}: {log.read().decode(errors='replace')}"


class Cell:
    """All processes of a cell and their hosts; made by `started`."""

    def __init__(self, directory: Path, hosts: Hosts, etcd_members: int) -> None:
        self.hosts = hosts
        self.directory = directory
        self.disks: dict[str, SmallDisk] = {}
        """Of each broker, by its name."""
        self.clock_offsets_ms: dict[Address, int] = {}
        """Of front ends whose clocks are wrong, by their addresses."""
        self.ends: Counter[str] = Counter()
        """Processes that ended by themselves and were started again: during what, name and exit code."""
        self._etcd = [
            HostedEtcd(name, *ETCD_PORTS, directory / name, host=hosts.address(name))
            for name in _names("etcd", etcd_members)
        ]
        self.members: list[Member] = []

    @classmethod
    @contextmanager
    def started(cls, directory: Path, *, etcd_members: int = 1, brokers: int = 3) -> Iterator[Self]:
        """Give a cell that serves requests, with the calling thread in the host of its clients."""
        program = etcd_or_skip()
        names = [*_names("etcd", etcd_members), *_names("broker", brokers), *_names("services", 2), CLIENTS]
        with Hosts.made(names) as hosts, ExitStack() as stack:
            cell = cls(directory, hosts, etcd_members)
            for name in _names("broker", brokers):
                folder = directory / f"{name}-disk"
                folder.mkdir()
                cell.disks[name] = stack.enter_context(small_disk(folder, DISK_BYTES))
            cell._plan(program, brokers)
            stack.callback(cell._end)
            stack.enter_context(hosts.entered(CLIENTS))
            for member in cell.members:
                member.launch()
            cell.wait_until_ready()
            cell._wait_for_journals(brokers)
            yield cell

    @property
    def addresses(self) -> list[Address]:
        """Where the front ends serve."""
        return [self.address(member) for member in self.of_role("frontend")]

    def member(self, name: str) -> Member:
        """Return the process of this name."""
        return next(member for member in self.members if member.name == name)

    def of_role(self, role: Role) -> list[Member]:
        """Return the processes of a role."""
        return [member for member in self.members if member.role == role]

    def environment(self) -> Environment:
        """Return how the cell is reached: what a front end tells `quaymaster env`."""
        return Environment.of(self.directory / "frontend-1")

    def configurations(self) -> dict[int, JournalConfiguration]:
        """Return who has and who leads each journal, as etcd says; empty while no member of it answers."""
        key = (ETCD_PREFIX + JOURNALS).encode()
        wanted = {
            "key": base64.b64encode(key).decode(),
            "range_end": base64.b64encode(key[:-1] + bytes([key[-1] + 1])).decode(),
        }
        for member in self._etcd:
            try:
                found = _post((member.host, member.client_port), "/v3/kv/range", wanted).get("kvs", [])
            except (OSError, http.client.HTTPException, ValueError):
                continue
            return {
                journal_of(base64.b64decode(row["key"]).decode()[len(ETCD_PREFIX) :]): decode_configuration(
                    value_of(base64.b64decode(row["value"]))
                )
                for row in found
            }
        return {}

    def replicas_on(self, broker: Member) -> dict[int, str]:
        """Return what a broker has of each journal, as etcd says: its name, and that of its disk."""
        while not (found := self.configurations()):
            time.sleep(POLL_INTERVAL_S)
        return {
            journal: member
            for journal, one in found.items()
            for member in one.members
            if broker_of(member) == broker.name
        }

    def has_replaced(self, given_up: Mapping[int, str]) -> bool:
        """Whether these journals have as many members as there are brokers, and others than these."""
        found = self.configurations()
        return all(
            journal in found
            and member not in found[journal].members
            and len(found[journal].members) == len(self.disks)
            for journal, member in given_up.items()
        )

    def empty_disk(self, broker: Member) -> None:
        """Remove all that a broker, which does not run, has on its disk."""
        shutil.rmtree(self.disks[broker.name].path / "data")

    def address(self, front_end: Member) -> Address:
        """Return where a front end serves."""
        return self.hosts.address(front_end.host), PORTS["frontend"]

    def set_clock(self, member: Member, offset_s: float) -> None:
        """Set a process's wall clock so far ahead of the right one (negative: behind it)."""
        member.clock.set(offset_s)
        if member.role == "frontend":
            self.clock_offsets_ms[self.address(member)] = round(offset_s * 1000)

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when every process says that it serves.

        Raises:
            ProcessFailed: one ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        waiting = list(self.members)
        while waiting := [member for member in waiting if not member.is_ready()]:
            for member in waiting:
                if member.has_failed:
                    raise ProcessFailed(f"{member.name} ended\n{member.log()}")
            if time.monotonic() > deadline:
                names = ", ".join(member.name for member in waiting)
                logs = "\n".join(member.log() for member in waiting)
                raise ProcessFailed(f"not ready after {timeout_s:g} s: {names}\n{logs}")
            time.sleep(POLL_INTERVAL_S)

    def _wait_for_journals(self, count: int) -> None:
        """Return when all journals are led: new queues are spread over them."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(found := self.configurations()) < count or not all(one.activated for one in found.values()):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"not {count} journals that are led: {found}\n{self.logs()}")
            time.sleep(POLL_INTERVAL_S)

    def heal(self, during: str) -> None:
        """Undo every fault: what is cut, slow, full or stopped works again, who is not there is started.

        `during` says what was going on, for processes that ended by themselves.
        """
        for disk in self.disks.values():
            disk.go_on()
            disk.give_back()
        self.hosts.heal()
        for member in self.members:
            member.resume()
            self.set_clock(member, 0)
            if member.has_failed:
                self.ends[f"{during}: {member.name} ended with {member.exit_code}"] += 1
            if not member.is_running:
                member.launch()

    def logs(self) -> str:
        """Return the end of every process's log."""
        return "\n".join(member.log() for member in self.members)

    def _plan(self, program: Path, brokers: int) -> None:
        metadata = ",".join(
            f"{self.hosts.address(host)}:{PORTS['metadata']}" for host in _names("services", 2)
        )
        for etcd in self._etcd:
            command = etcd_command(
                program, etcd, self._etcd, heartbeat_ms=HEARTBEAT_MS, election_ms=ELECTION_MS
            )
            self._add(etcd.name, "etcd", etcd.name, command, (etcd.host, ETCD_PORTS[0], "/health"))
        for name in _names("broker", brokers):
            self._add_role(name, "broker", name, self.disks[name].path / "data", metadata)
        for number, host in enumerate(_names("services", 2), 1):
            for role in ("metadata", "manager", "frontend"):
                name = f"{role}-{number}"
                self._add_role(name, role, host, self.directory / name, metadata)

    def _add_role(
        self, name: str, role: Role, host: str, data: Path, metadata: str, **others: object
    ) -> None:
        """Plan a process; `others` are settings that differ from those of its like."""
        address = self.hosts.address(host)
        settings: dict[str, object] = {
            **SETTINGS,
            "cell": CELL,
            "node": name,
            "zone": host,
            "data_directory": str(data),
            LISTEN[role]: f"{address}:{PORTS[role]}",
            "admin_listen": f"{address}:{ADMIN_PORTS[role]}",
            "metadata_nodes": metadata,
            "coordination": "etcd",
            "etcd_endpoints": ",".join(member.endpoint for member in self._etcd),
            "etcd_prefix": ETCD_PREFIX,
            "keys_directory": str(self.directory / "keys"),
            "force_plaintext": True,
            **others,
        }
        path = self.directory / f"{name}.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        command = ["run", role, "--config", str(path)]
        self._add(name, role, host, command, (address, ADMIN_PORTS[role], "/health/ready"))

    def _add(
        self, name: str, role: Role, host: str, command: Sequence[str], probe: tuple[str, int, str]
    ) -> None:
        self.members.append(
            Member(name, role, host, command, hosts=self.hosts, probe=probe, directory=self.directory)
        )

    def _end(self) -> None:
        for disk in self.disks.values():
            disk.go_on()
        for member in self.members:
            member.kill9()


def _names(role: str, count: int) -> list[str]:
    return [f"{role}-{number}" for number in range(1, count + 1)]


def _environment() -> dict[str, str]:
    # Settings of the shell that runs the tests must not leak into the processes under test. And byte code is kept:
    # ten processes that each compile the program at every start would leave the machine no time for the test.
    unwanted = ("QUAYMASTER_", "AWS_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def _post(address: Address, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(*address, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(request))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()

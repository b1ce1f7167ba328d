"""What a cell on one machine consists of: its processes, their ports, files and order. Nothing is done here.

    clients ─▶ haproxy ─▶ frontend-1, -2 ─┬▶ broker-1, -2, -3 (a zone each) ─┐
                                          └▶ metadata-1, -2 ────────────────┼▶ etcd
                                             manager-1, -2 ─────────────────┘
    browsers ─▶ console-1 ─▶ the same
                   push-1 ─▶ endpoints of queues

With --workers it is one server in so many processes instead, without anything else.

Below its directory:

    cluster.json                 what is here: `ClusterRecord`
    client.json                  how to reach it, for `quaymaster env --data DIR` and every other command
    keys/                        the master keys, which all front ends share
    logs/NAME.log                what a process printed, over all its starts
    NAME/                        a process's data
    NAME.toml, haproxy.cfg       the settings it is started with
    certificates/, haproxy.pem   with --tls: the CA that clients trust, and what HAProxy shows
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from quaymaster.cli.local.etcd import EtcdMember, etcd_command
from quaymaster.cli.local.haproxy import (
    FrontEndServer,
    TLSFront,
    haproxy_command,
    haproxy_configuration,
)
from quaymaster.net.listener import NEW_SUFFIX, UNIX_PATH_BYTES_MAX
from quaymaster.settings import UNIX_PREFIX

Role = Literal["etcd", "broker", "metadata", "manager", "frontend", "haproxy", "server", "console", "push"]

HOST: Final = "127.0.0.1"
CELL: Final = "local"
ETCD_PREFIX: Final = "quaymaster/local/"
KEYS: Final = "keys"
CERTIFICATES: Final = "certificates"
HAPROXY_CERTIFICATE: Final = "haproxy.pem"
TLS: Final = "tls"
"""Among the ports: where TLS is served."""
SERVER: Final = "server"
"""The name of the only process, with workers."""
CONSOLE: Final = "console-1"
PUSH: Final = "push-1"
LOOPBACK: Final = "127.0.0.0/8,::1/128"
SOCKET: Final = "edge.sock"
"""In the directory of a front end."""
ZONES: Final = 3
REPLICAS: Final = 3
"""Of each journal, where there are so many brokers; else one."""
PORT_MAX: Final = 65_535
BLOCK: Final = "block"
"""Among the ports of a cluster: the one that holds the others, see `local_ports`."""
CONNECTIONS_MAX: Final = 20_000
"""Of HAProxy, where the limit on open files allows as many."""

START_STAGES: Final[tuple[tuple[Role, ...], ...]] = (
    ("etcd",),
    ("broker", "metadata", "manager", "frontend", "server"),
    ("haproxy", "console", "push"),
)
"""A stage is begun when all of the stage before are ready. The roles of a cell wait for each other by themselves."""
STOP_STAGES: Final[tuple[tuple[Role, ...], ...]] = (
    ("haproxy", "console", "push"),
    ("frontend", "server"),
    ("metadata", "manager"),
    ("broker",),
    ("etcd",),
)
"""No process loses what it needs; managers before brokers, so that no broker is appointed that is about to end."""

PLANNED_SETTINGS: Final = frozenset(
    {
        *(
            "cell",
            "node",
            "zone",
            "data_directory",
            "coordination",
            "etcd_endpoints",
            "etcd_prefix",
            "tls_directory",
        ),
        *("listen", "admin_listen", "broker_listen", "metadata_listen", "manager_listen", "metadata_nodes"),
        *("master_key_source", "master_key", "master_key_previous", "keys_directory", "broker_advertise"),
        *("edge_listen", "workers"),
    }
)
"""Settings that say where things are: those of a local cluster are given by its plan."""


class PlanRefused(Exception):
    """What was asked for cannot be; the message says why."""


class ClusterOptions(msgspec.Struct, frozen=True):
    """What was asked for. `port`: of the endpoint, 0 for any. `settings`: for every process, beside what is planned.

    `workers`: of one server; 0: a cell, of which the other numbers tell.
    """

    brokers: int = 3
    frontends: int = 2
    metadata: int = 2
    managers: int = 2
    port: int = 9324
    settings: dict[str, str] = {}
    tls: bool = False
    workers: int = 0
    console: bool | None = None
    """Whether there is a console; None in records of before there were any, which have none."""
    push: bool | None = None
    """Whether there is a pusher; None as of consoles."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process of this machine; `started` tells it from a later one with the same number."""

    pid: int
    started: str


class Programs(msgspec.Struct, frozen=True):
    """What is run. `quaymaster`: the words before a role's name. Without HAProxy clients go to the first front end.

    `etcd` is empty where none is needed.
    """

    quaymaster: tuple[str, ...]
    etcd: str
    haproxy: str | None
    connections_max: int = CONNECTIONS_MAX


class ClusterRecord(msgspec.Struct, frozen=True):
    """What `cluster.json` holds: what was asked for, how it was planned, and what was started by name.

    Format 1. A change that an older program would misread raises the number, and `up` says what to do.
    """

    options: ClusterOptions
    programs: Programs
    ports: dict[str, int]
    processes: dict[str, ProcessId] = {}
    format: int = 1


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """One process. `address` is where it serves, `admin_port` where it tells whether it is ready (None: elsewhere)."""

    name: str
    role: Role
    zone: str | None
    address: str
    admin_port: int | None
    command: tuple[str, ...]
    files: Mapping[Path, str] = field(default_factory=dict)
    """To be written before it starts."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All of it, in the order in which people read it."""

    directory: Path
    endpoint_url: str
    admin_url: str
    etcd: EtcdMember | None
    processes: tuple[PlannedProcess, ...]
    tls_url: str | None = None
    console_url: str | None = None
    """Where browsers find the console; None: there is none."""

    @property
    def client_directory(self) -> Path:
        """Where a process writes how it is reached."""
        return self.directory / (SERVER if self.etcd is None else "frontend-1")

    @property
    def ca_file(self) -> Path:
        """What clients trust that use TLS."""
        return self.directory / CERTIFICATES / "ca.crt"

    def process(self, name: str) -> PlannedProcess:
        """Return the process of this name, else raise PlanRefused."""
        for process in self.processes:
            if process.name == name:
                return process
        known = ", ".join(process.name for process in self.processes)
        raise PlanRefused(f"There is no process {name!r} in this cluster. There are: {known}.")

    def stages(self, order: tuple[tuple[Role, ...], ...]) -> Iterator[list[PlannedProcess]]:
        """Yield the processes of each stage that has any."""
        for roles in order:
            if stage := [process for process in self.processes if process.role in roles]:
                yield stage

    def log(self, name: str) -> Path:
        """Return where a process's output goes."""
        return self.directory / "logs" / f"{name}.log"


def check_options(options: ClusterOptions, before: ClusterOptions | None = None) -> None:
    """Raise PlanRefused for what no cluster, or not this one, can be. `before`: of what is in its directory."""
    for name, count in (
        ("brokers", options.brokers),
        ("frontends", options.frontends),
        ("metadata", options.metadata),
        ("managers", options.managers),
    ):
        if count < 1:
            raise PlanRefused(f"--{name} {count}: at least one is needed.")
    if options.tls and options.workers:
        raise PlanRefused("--tls is for cells: a server with workers has no HAProxy before it here.")
    if before is not None and bool(before.workers) is not bool(options.workers):
        is_cell = "a cell" if not before.workers else "a server with workers"
        raise PlanRefused(f"There is {is_cell} in this directory. Keep it, or begin in another directory.")
    if before is not None and options.brokers < before.brokers:
        raise PlanRefused(
            f"The cluster has {before.brokers} brokers, and with fewer the messages on the others would be lost. "
            f"Keep --brokers {before.brokers}, or begin anew in another directory."
        )
    if wrong := sorted(PLANNED_SETTINGS.intersection(options.settings)):
        raise PlanRefused(f"A local cluster gives {', '.join(wrong)} to each of its processes by itself.")


def port_names(options: ClusterOptions) -> Iterator[str]:
    """Yield a name for every port that is needed; `endpoint` and `admin` are those that clients use."""
    yield from ("endpoint", "admin")
    if options.workers:
        yield "console"
        return
    yield from ("etcd", "etcd peers")
    if options.tls:
        yield TLS
    for name in _names("frontend", options.frontends):
        yield from (name, f"{name} admin")
    for role, count in (
        ("broker", options.brokers),
        ("metadata", options.metadata),
        ("manager", options.managers),
    ):
        for name in _names(role, count):
            yield from (name, f"{name} admin")
    if options.console:
        yield from ("console", CONSOLE, f"{CONSOLE} admin")
    if options.push:
        yield f"{PUSH} admin"


def choose_ports(
    options: ClusterOptions,
    known: Mapping[str, int],
    candidates: Iterable[int],
    is_free: Callable[[int], bool],
) -> dict[str, int]:
    """Return a free port for each name: the one it had, else the next free candidate.

    Where the endpoint's port was asked for, the admin port is the one after it, if that is free.

    Raises:
        PlanRefused: the endpoint's port was asked for and is in use, or there are not enough.
    """
    ports: dict[str, int] = {}
    if options.port:
        if not is_free(options.port):
            raise PlanRefused(
                f"Port {options.port} of {HOST} is in use. Stop what uses it, or choose another with --port."
            )
        ports["endpoint"] = options.port
        if "admin" not in known and options.port < PORT_MAX and is_free(options.port + 1):
            ports["admin"] = options.port + 1
    left = iter(candidates)
    kept = {port for name, port in known.items() if is_free(port)} - {options.port}
    for name in port_names(options):
        if name in ports:
            continue
        if known.get(name) in kept:
            ports[name] = known[name]
            continue
        found = next(
            (port for port in left if port not in kept and port not in ports.values() and is_free(port)), None
        )
        if found is None:
            raise PlanRefused("There are not enough free ports for so many processes.")
        ports[name] = found
    return ports


def plan_cluster(
    directory: Path, options: ClusterOptions, ports: Mapping[str, int], programs: Programs
) -> ClusterPlan:
    """Return the processes that make the cluster, their commands and files. `directory` is absolute."""
    if options.workers:
        return _server_plan(directory, options, ports, programs)
    etcd = EtcdMember("etcd", ports["etcd"], ports["etcd peers"], directory / "etcd")
    plan = _ClusterPlanner(directory, options, dict(ports), programs, etcd)
    front_ends = [
        FrontEndServer(
            name,
            ports[name],
            ports[f"{name} admin"],
            _socket(directory / name) if options.tls else None,
        )
        for name in _names("frontend", options.frontends)
    ]
    if programs.haproxy is None:
        # The first front end stands where HAProxy would.
        front_ends[0] = FrontEndServer(front_ends[0].name, ports["endpoint"], ports["admin"])
    metadata = ",".join(f"{HOST}:{ports[name]}" for name in _names("metadata", options.metadata))
    processes = [
        PlannedProcess(
            "etcd", "etcd", None, f"{HOST}:{etcd.client_port}", None,
            tuple(etcd_command(Path(programs.etcd), etcd, [etcd])),
        ),
        *(
            plan.role("broker", number, {"broker_listen": f"{HOST}:{ports[name]}"})
            for number, name in enumerate(_names("broker", options.brokers), 1)
        ),
        *(
            plan.role("metadata", number, {"metadata_listen": f"{HOST}:{ports[name]}"})
            for number, name in enumerate(_names("metadata", options.metadata), 1)
        ),
        *(
            plan.role("manager", number, {"manager_listen": f"{HOST}:{ports[name]}"})
            for number, name in enumerate(_names("manager", options.managers), 1)
        ),
        *(
            plan.role(
                "frontend",
                number,
                {
                    "listen": f"{HOST}:{server.port}",
                    "metadata_nodes": metadata,
                    "keys_directory": str(directory / KEYS),
                    **({"edge_listen": f"{UNIX_PREFIX}{server.socket}"} if server.socket else {}),
                    **plan.console_address,
                },
                admin_port=server.admin_port,
            )
            for number, server in enumerate(front_ends, 1)
        ),
    ]  # fmt: skip
    if options.console:
        processes.append(
            plan.role(
                "console", 1, {"console_rpc_listen": f"{HOST}:{ports[CONSOLE]}", **plan.console_address}
            )
        )
    if options.push:
        processes.append(
            plan.role(
                "push",
                1,
                {
                    "metadata_nodes": metadata,
                    "keys_directory": str(directory / KEYS),
                    "outbound_networks": options.settings.get("outbound_networks", LOOPBACK),
                },
                address=f"{HOST}:{ports[f'{PUSH} admin']}",
            )
        )
    if programs.haproxy is not None:
        processes.append(
            _haproxy(directory, ports, Path(programs.haproxy), front_ends, programs.connections_max)
        )
    elif options.tls:
        raise PlanRefused("--tls needs HAProxy, which is not on this machine.")
    return ClusterPlan(
        directory,
        f"http://{HOST}:{ports['endpoint']}",
        f"http://{HOST}:{ports['admin']}",
        etcd,
        tuple(processes),
        f"https://{HOST}:{ports[TLS]}" if options.tls else None,
        plan.console_address.get("console_url"),
    )


def _server_plan(
    directory: Path, options: ClusterOptions, ports: Mapping[str, int], programs: Programs
) -> ClusterPlan:
    """Return a server with workers: one process, which looks after the others."""
    address, admin = (f"{HOST}:{ports[name]}" for name in ("endpoint", "admin"))
    settings: dict[str, object] = {
        "console_listen": f"{HOST}:{ports['console']}",
        **options.settings,
        "data_directory": str(directory / SERVER),
        "keys_directory": str(directory / KEYS),
        "listen": address,
        "admin_listen": admin,
        "workers": str(options.workers),
    }
    path = directory / f"{SERVER}.toml"
    server = PlannedProcess(
        *(SERVER, "server", None, address, ports["admin"]),
        (*programs.quaymaster, "serve", "--config", str(path)),
        {path: render_settings(settings)},
    )
    console = settings.get("console_url") or f"http://{settings['console_listen']}"
    return ClusterPlan(
        *(directory, f"http://{address}", f"http://{admin}", None, (server,)),
        console_url=str(console) if options.console else None,
    )


@dataclass(frozen=True, slots=True)
class _ClusterPlanner:
    directory: Path
    options: ClusterOptions
    ports: dict[str, int]
    programs: Programs
    etcd: EtcdMember

    @property
    def console_address(self) -> dict[str, str]:
        """What says where the pages of the console are; nothing where there is none."""
        if not self.options.console:
            return {}
        given = self.options.settings
        listen = given.get("console_listen", f"{HOST}:{self.ports['console']}")
        return {"console_listen": listen, "console_url": given.get("console_url", f"http://{listen}")}

    def role(
        self,
        role: Role,
        number: int,
        listen: Mapping[str, str],
        *,
        admin_port: int | None = None,
        address: str | None = None,
    ) -> PlannedProcess:
        """Return one process of a role. It serves at `address`; None: as the first setting in `listen` says."""
        name = f"{role}-{number}"
        zone = f"zone-{(number - 1) % ZONES + 1}"
        admin_port = admin_port or self.ports[f"{name} admin"]
        settings: dict[str, object] = {
            "replicas": REPLICAS if self.options.brokers >= REPLICAS else 1,
            # HAProxy asks twice as often.
            "drain_notice_s": 1,
            **self.options.settings,
            "cell": CELL,
            "node": name,
            "zone": zone,
            "data_directory": str(self.directory / name),
            "admin_listen": f"{HOST}:{admin_port}",
            "coordination": "etcd",
            "etcd_endpoints": self.etcd.endpoint,
            "etcd_prefix": ETCD_PREFIX,
            **listen,
        }
        path = self.directory / f"{name}.toml"
        return PlannedProcess(
            name,
            role,
            zone,
            address or next(iter(listen.values())),
            admin_port,
            (*self.programs.quaymaster, "run", role, "--config", str(path)),
            {path: render_settings(settings)},
        )


def _haproxy(
    directory: Path,
    ports: Mapping[str, int],
    program: Path,
    front_ends: Sequence[FrontEndServer],
    connections_max: int,
) -> PlannedProcess:
    path = directory / "haproxy.cfg"
    text = haproxy_configuration(
        front_ends,
        port=ports["endpoint"],
        admin_port=ports["admin"],
        connections_max=connections_max,
        tls=TLSFront(ports[TLS], directory / HAPROXY_CERTIFICATE) if TLS in ports else None,
    )
    address = f"{HOST}:{ports['endpoint']}"
    command = tuple(haproxy_command(program, path))
    return PlannedProcess("haproxy", "haproxy", None, address, None, command, {path: text})


def _socket(front_end: Path) -> Path:
    """Return the socket in a front end's directory, else raise PlanRefused."""
    path = front_end / SOCKET
    if len(os.fsencode(path)) + len(NEW_SUFFIX) > UNIX_PATH_BYTES_MAX:
        raise PlanRefused(f"--tls: the path {path} is too long for a socket. Choose a shorter directory.")
    return path


def render_settings(settings: Mapping[str, object]) -> str:
    """Return settings as a TOML file. A JSON string or number is one in TOML as well."""
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
    return "# Written by `quaymaster local up`, each time.\n" + "".join(lines)


def settings_of_environment(
    environment: Mapping[str, str], known: Sequence[str], prefix: str
) -> dict[str, str]:
    """Return the settings that the environment gives every process of the cluster: those that no plan gives."""
    return {
        name: environment[prefix + name.upper()]
        for name in known
        if name not in PLANNED_SETTINGS and prefix + name.upper() in environment
    }


def environment_without_settings(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the environment for processes whose every setting is in their file."""
    return {name: value for name, value in environment.items() if not name.startswith(prefix)}


def _names(role: str, count: int) -> list[str]:
    return [f"{role}-{number}" for number in range(1, count + 1)]

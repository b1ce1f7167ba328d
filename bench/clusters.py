"""Clusters of three on one machine: our cell, RabbitMQ and NATS JetStream; obtained, started, killed, stopped.

All nodes of a cluster are on this machine and may use all of its cores. Each has a directory and ports of its own,
and is stopped by its process id. RabbitMQ and Erlang are Debian's packages, unpacked into the cache of
`bench.servers`; NATS is built from its Go module.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench import processes, servers
from bench.requests import Endpoint, Refused, call
from bench.servers import Unavailable
from quaymaster.cli.local.etcd import EtcdMember, etcd_command, is_etcd_ready

NATS_VERSION = "v2.15.2"
RABBITMQ_PACKAGES = (
    "rabbitmq-server",
    *(
        f"erlang-{part}"
        for part in (
            *(
                "base",
                "asn1",
                "crypto",
                "eldap",
                "ftp",
                "inets",
                "mnesia",
                "os-mon",
                "parsetools",
                "public-key",
            ),
            *("runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
        )
    ),
)
NODES = 3
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
SECTOR_BYTES = 512
FSYNCS_TRACED = "fsync,fdatasync,sync_file_range,msync"


@dataclass
class Node:
    """One server process. `role` groups nodes in the figures."""

    name: str
    role: str
    command: Sequence[str | Path]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        """Return the process and its descendants; none when it is not running."""
        if self.process is None or self.process.poll() is not None:
            return []
        return processes.tree_of(self.process.pid)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"


class Cluster:
    """Nodes that belong together, started by `with` and stopped at its end, or when they do not come up.

    With `traces`, every node runs under strace, which writes each fsync into a file there and nothing else: the
    kernel stops a process only for those calls.
    """

    def __init__(self, folder: Path, nodes: Sequence[Node], traces: Path | None = None) -> None:
        self.folder = folder
        self.nodes = {node.name: node for node in nodes}
        self.traces = traces
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        """Start the nodes and wait until the cluster is of use."""
        raise NotImplementedError

    def launch(self, name: str) -> None:
        """Start a node that does not run."""
        node = self.nodes[name]
        node.folder.mkdir(parents=True, exist_ok=True)
        command = list(node.command)
        if self.traces is not None:
            command = [
                *("strace", "-f", "-qq", "--seccomp-bpf", "-e", f"trace={FSYNCS_TRACED}"),
                *("-e", "signal=none", "-o", self.traces / f"{name}.trace", *command),
            ]
        with node.log.open("ab") as log:
            node.process = processes.start(
                command, folder=node.folder, environment=node.environment, log=log, core=None
            )

    def kill(self, name: str) -> None:
        """End all processes of a node as a crash does, and wait until they are gone."""
        node = self.nodes[name]
        assert node.process is not None, f"{name} was never started"
        for pid in reversed(node.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.process.wait()

    def pause(self, name: str) -> None:
        """Have a node do nothing more, with all of its connections open, until it is killed."""
        for pid in self.nodes[name].pids:
            os.kill(pid, signal.SIGSTOP)

    def stop(self) -> None:
        """End all nodes, the last started first: asked all at once, killed when they do not listen."""
        running = [node for node in reversed(self.nodes.values()) if node.pids]
        for node in running:
            for pid in node.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for node in running:
            assert node.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.process.wait(max(0.1, deadline - time.monotonic()))
            if node.pids:
                self.kill(node.name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.process.pid, signal.SIGKILL)

    def wait_until(
        self,
        is_so: Callable[[], bool],
        what: str,
        timeout_s: float = START_TIMEOUT_S,
        interval_s: float = 0.1,
    ) -> None:
        """Wait for something about the cluster, else raise Unavailable with the ends of the logs."""
        if processes.wait_until(is_so, timeout_s, interval_s):
            return
        logs = "\n".join(
            f"--- {node.name}\n{node.log.read_text(errors='replace')[-800:]}"
            for node in self.nodes.values()
            if node.log.exists()
        )
        raise Unavailable(f"{what} did not come true in {timeout_s:g} s\n{logs}")

    def used_cpu_s(self) -> dict[str, float]:
        """Return the CPU time that each node's processes have used."""
        return {name: sum(map(_cpu_s, node.pids)) for name, node in self.nodes.items()}

    def device_bytes(self) -> int | None:
        """Return what was written to the disk with the cluster's data, by whomever, since the machine started.

        None where its data is on no disk but in memory.
        `write_bytes` of /proc/PID/io would name the process, but counts a whole folio of the page cache, which may be
        a mebibyte, for each small write into it.
        """
        device = os.stat(self.folder).st_dev
        numbers = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        return int(numbers.read_text().split()[6]) * SECTOR_BYTES if numbers.exists() else None

    def fsyncs(self) -> int:
        """Return how many fsyncs were traced until now."""
        assert self.traces is not None, "the cluster is not traced"
        return sum(path.read_bytes().count(b"sync") for path in self.traces.glob("*.trace"))


def _cpu_s(pid: int) -> float:
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return 0.0
    fields = rest.split()
    # The tracer is not the cluster's.
    return 0.0 if name.endswith("(strace") else (int(fields[11]) + int(fields[12])) / processes.TICKS_PER_S


def free_ports(count: int) -> list[int]:
    """Return ports that are this process's until it ends."""
    return [servers.free_port() for _ in range(count)]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


# Our cell


class Cell(Cluster):
    """etcd, three brokers, a manager, a metadata node and front ends, one unless told otherwise."""

    def __init__(
        self,
        folder: Path,
        traces: Path | None = None,
        *,
        front_ends: int = 1,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Plan a cell; `settings` are for all of its processes."""
        ports = iter(free_ports(2 + 2 * (NODES + 2 + front_ends)))
        self._ports: list[int] = []
        """Of the front ends."""
        etcd = servers.run_script("etcd")
        self._member = EtcdMember("default", next(ports), next(ports), folder / "etcd" / "data")
        nodes = [Node("etcd", "etcd", etcd_command(etcd, self._member, [self._member]), folder / "etcd")]
        metadata_port = next(ports)
        self._admin: dict[str, int] = {}
        for name, role, own in self._processes(ports, metadata_port, front_ends):
            self._admin[name] = next(ports)
            given = {
                "data_directory": str(folder / name),
                "admin_listen": f"127.0.0.1:{self._admin[name]}",
                "coordination": "etcd",
                "etcd_endpoints": self._member.endpoint,
                "cell": "bench",
                "node": name,
                "keys_directory": str(folder / "keys"),
                "metadata_nodes": f"127.0.0.1:{metadata_port}",
                **own,
                **(settings or {}),
            }
            (folder / "config").mkdir(parents=True, exist_ok=True)
            config = folder / "config" / f"{name}.toml"
            config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
            program = Path(sys.executable).with_name("quaymaster")
            nodes.append(Node(name, role, [program, "run", role, "--config", config], folder / "logs"))
        super().__init__(folder, nodes, traces)

    def _start(self) -> None:
        for name in self.nodes:
            self.launch(name)
            if name == "etcd":
                self.wait_until(lambda: is_etcd_ready(self._member), "etcd")
        self.wait_until(self._answers, "the cell's first answer")

    def _processes(
        self, ports: Iterator[int], metadata_port: int, front_ends: int
    ) -> Iterator[tuple[str, str, dict[str, object]]]:
        for number in range(1, NODES + 1):
            listen = f"127.0.0.1:{next(ports)}"
            yield f"broker-{number}", "broker", {"broker_listen": listen, "zone": f"zone-{number}"}
        yield "manager-1", "manager", {"manager_listen": f"127.0.0.1:{next(ports)}"}
        yield "metadata-1", "metadata", {"metadata_listen": f"127.0.0.1:{metadata_port}"}
        for number in range(1, front_ends + 1):
            self._ports.append(next(ports))
            # A deleted queue's name is taken again by the next measurement.
            own = {"listen": f"127.0.0.1:{self._ports[-1]}", "queue_name_reuse_s": 0}
            yield f"frontend-{number}", "frontend", own

    @property
    def endpoint(self) -> Endpoint:
        """The first front end."""
        return self.endpoints[0]

    @property
    def endpoints(self) -> list[Endpoint]:
        """All front ends."""
        facts = json.loads((self.folder / "frontend-1" / "client.json").read_text())
        key = facts["access_key_id"], facts["secret_access_key"], facts["region"]
        return [Endpoint("127.0.0.1", port, *key) for port in self._ports]

    def create_queue(self, name: str, **attributes: str) -> str:
        fields = {"QueueName": name, "Attributes": attributes}
        return str(call(self.endpoint, "CreateQueue", fields)["QueueUrl"])

    def _answers(self) -> bool:
        try:
            self.create_queue("probe")
            url = str(call(self.endpoint, "GetQueueUrl", {"QueueName": "probe"})["QueueUrl"])
            call(self.endpoint, "SendMessage", {"QueueUrl": url, "MessageBody": "there"})
            call(self.endpoint, "DeleteQueue", {"QueueUrl": url})
        except (OSError, Refused, ValueError):
            return False
        return True

    def sample(self, name: str, metric: str, label: str = "") -> float | None:
        """Return a metric of a node; None when the node does not answer, or does not have it.

        All samples that have `label` (`journal="3"`) are added up.
        """
        url = f"http://127.0.0.1:{self._admin[name]}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, ValueError):
            return None
        found = [
            line.rpartition(" ")[2]
            for line in lines
            if line.partition("{")[0].partition(" ")[0] == metric and label in line
        ]
        return sum(map(float, found)) if found else None

    def leader(self) -> str | None:
        """Return the broker that leads the journal with the only queue there is."""
        for name in self._brokers():
            if (self.sample(name, "quaymaster_queues") or 0) > 0:
                return name
        return None

    def leader_of(self, journal: int) -> str | None:
        """Return the broker that leads a journal."""
        for name in self._brokers():
            if self.sample(name, "quaymaster_journal_leading", f'journal="{journal}"'):
                return name
        return None

    def is_whole(self) -> bool:
        """Whether every broker is there and no replica lags far behind its leader."""
        lags = [self.sample(name, "quaymaster_replication_lag_records") for name in self._brokers()]
        return all(lag is not None and lag < 1_000 for lag in lags)

    def _brokers(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.role == "broker"]


# RabbitMQ


def obtain_rabbitmq() -> Path:
    """Return where Debian's RabbitMQ and Erlang are unpacked."""
    label = "RabbitMQ"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"{label}: its packages are Debian's, and this machine has no apt")

    def make(folder: Path) -> None:
        downloaded = folder / "packages"
        downloaded.mkdir()
        download = ("apt-get", "download", "-qq", *RABBITMQ_PACKAGES)
        try:
            servers.run_step(*download, folder=downloaded, label=label)
        except Unavailable:
            # Where the list of packages is old or was never fetched.
            servers.run_step("apt-get", "update", "-qq", folder=downloaded, label=label)
            servers.run_step(*download, folder=downloaded, label=label)
        for package in sorted(downloaded.glob("*.deb")):
            servers.run_step("dpkg-deb", "-x", package, folder, folder=folder, label=label)
        shutil.rmtree(downloaded)
        erlang = folder / "usr" / "lib" / "erlang"
        for script in (*erlang.glob("bin/*"), *erlang.glob("erts-*/bin/*")):
            # Small shell scripts name the directory that the package is made for.
            if script.is_file() and not script.is_symlink() and script.read_bytes()[:2] == b"#!":
                script.write_text(script.read_text().replace("=/usr/lib/erlang", f"={erlang}"))

    return servers.obtained("rabbitmq", "debian", make)


def rabbitmq_version() -> str:
    """Return the version of the unpacked server."""
    (home,) = (obtain_rabbitmq() / "usr" / "lib" / "rabbitmq" / "lib").iterdir()
    return home.name.rpartition("-")[2]


class RabbitMQ(Cluster):
    """Three nodes with a port mapper of their own."""

    def __init__(self, folder: Path, traces: Path | None = None) -> None:
        installed = obtain_rabbitmq()
        (home,) = (installed / "usr" / "lib" / "rabbitmq" / "lib").iterdir()
        erlang = installed / "usr" / "lib" / "erlang"
        epmd_port, *ports = free_ports(1 + 2 * NODES)
        self.ports = ports[:NODES]
        self._epmd_port = epmd_port
        names = [f"rabbit-{number}" for number in range(1, NODES + 1)]
        folder.mkdir(parents=True, exist_ok=True)
        cookie = folder / ".erlang.cookie"
        cookie.write_text("QUAYMASTERBENCH")
        cookie.chmod(0o400)
        (folder / "plugins").write_text("[].")
        (epmd,) = erlang.glob("erts-*/bin/epmd")
        nodes = [Node("epmd", "epmd", [epmd, "-port", str(epmd_port)], folder / "logs")]
        for name, port, distribution in zip(names, self.ports, ports[NODES:], strict=True):
            config = folder / f"{name}.conf"
            config.write_text(
                f"listeners.tcp.1 = 127.0.0.1:{port}\n"
                "cluster_formation.peer_discovery_backend = classic_config\n"
                + "".join(
                    f"cluster_formation.classic_config.nodes.{index} = {other}@localhost\n"
                    for index, other in enumerate(names, 1)
                )
            )
            data = folder / name
            environment = {
                "HOME": str(folder),
                "PATH": f"{erlang / 'bin'}:{os.environ['PATH']}",
                "ERL_EPMD_PORT": str(epmd_port),
                "RABBITMQ_NODENAME": f"{name}@localhost",
                "RABBITMQ_DIST_PORT": str(distribution),
                "RABBITMQ_CONFIG_FILE": str(config),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
                "RABBITMQ_LOG_BASE": str(data / "log"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                "RABBITMQ_PID_FILE": str(data / "pid"),
                # The server replaces the shell, so that a signal reaches it.
                "RABBITMQ_ALLOW_INPUT": "1",
                "RABBITMQ_SERVER_START_ARGS": "-noinput",
            }
            nodes.append(
                Node(name, "node", [home / "sbin" / "rabbitmq-server"], folder / "logs", environment)
            )
        super().__init__(folder, nodes, traces)

    def _start(self) -> None:
        for name in self.nodes:
            self.launch(name)
            if name == "epmd":
                self.wait_until(lambda: _listens(self._epmd_port), "epmd")
            elif name == "rabbit-1":
                # The others find the first there and join it.
                self.wait_until(lambda: _listens(self.ports[0]), "RabbitMQ's first node")
        self.wait_until(self.is_whole, "RabbitMQ's cluster")

    def is_whole(self) -> bool:
        """Whether all nodes take connections."""
        return all(_listens(port) for port in self.ports)

    def port_of(self, name: str) -> int:
        return self.ports[int(name.rpartition("-")[2]) - 1]


# NATS


def obtain_nats() -> Path:
    """Return the built server."""
    if shutil.which("go") is None:
        raise Unavailable("NATS: `go` is not installed")

    def make(folder: Path) -> None:
        servers.run_step(
            *("env", f"GOBIN={folder}", "GOFLAGS=-mod=mod"),
            *("go", "install", f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"),
            folder=folder,
            label="NATS",
        )

    return servers.obtained("nats", NATS_VERSION, make) / "nats-server"


class NATS(Cluster):
    """Three nodes with JetStream. `sync` is its `sync_interval`; None: the server's default of two minutes."""

    def __init__(self, folder: Path, traces: Path | None = None, *, sync: str | None = "always") -> None:
        program = obtain_nats()
        ports = free_ports(2 * NODES)
        self.ports, routes = ports[:NODES], ports[NODES:]
        urls = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        nodes = []
        folder.mkdir(parents=True, exist_ok=True)
        for number, (port, route) in enumerate(zip(self.ports, routes, strict=True), 1):
            name = f"nats-{number}"
            config = folder / f"{name}.conf"
            config.write_text(
                f'server_name: {name}\nlisten: "127.0.0.1:{port}"\n'
                f'jetstream {{ store_dir: "{folder / name}"'
                + (f", sync_interval: {sync}" if sync else "")
                + f' }}\ncluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{urls}] }}\n'
            )
            nodes.append(Node(name, "node", [program, "-c", config], folder / "logs"))
        super().__init__(folder, nodes, traces)

    def _start(self) -> None:
        for name in self.nodes:
            self.launch(name)
        self.wait_until(lambda: all(_listens(port) for port in self.ports), "NATS")

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

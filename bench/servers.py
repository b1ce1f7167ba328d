"""The servers that are measured: how each is obtained from the package registries, started and stopped.

Whatever is downloaded or built is kept in a cache directory (QUAYMASTER_BENCH_CACHE, default
~/.cache/quaymaster/bench). All take AWS JSON 1.0, so all are sent the same requests.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from bench import processes
from bench.requests import Endpoint, Refused, call
from quaymaster.cli.local.ports import ports_of_this_process

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("QUAYMASTER_BENCH_CACHE", "~/.cache/quaymaster/bench")).expanduser()
START_TIMEOUT_S = 120.0
OBTAIN_TIMEOUT_S = 900.0

ELASTICMQ_VERSION = "1.7.1"
GOAWS_VERSION = "v0.5.4"
MOTO_VERSION = "5.2.5"
# The last release that Python 3.11 can run: 4.14 has syntax of 3.12, and later ones ask for an account.
LOCALSTACK_VERSION = "4.13.1"
# What that release takes from packages that have changed since, and what it does not say it needs.
LOCALSTACK_NEEDS = ("cbor2<5.8", "pyopenssl<26", "service_identity")

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>quaymaster.bench</groupId><artifactId>elasticmq</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.elasticmq</groupId><artifactId>elasticmq-server_3</artifactId>
    <version>{ELASTICMQ_VERSION}</version>
  </dependency></dependencies>
</project>
"""


class Unavailable(Exception):
    """A server cannot be had or started here; the text says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that can be measured.

    `obtain` returns what `start` needs, from the cache if it is there; `start` is given that, a new directory and
    a free port. `warm_up_s` of mixed load come before the first figure: a JVM compiles what it runs often.
    """

    name: str
    label: str
    keeps: str
    obtain: Callable[[], Path]
    start: Callable[[Path, Path, int, IO[bytes]], subprocess.Popen[bytes]]
    version: str
    warm_up_s: float = 2.0
    is_durable: bool = False


_ports = ports_of_this_process()


def free_port() -> int:
    """Return a loopback port that is this process's until it ends."""
    return next(_ports)


class Running:
    """A started server. Ended by `stop`, or at the end of a `with`."""

    def __init__(self, server: Server, folder: Path, log: Path | None = None) -> None:
        self.server = server
        self.folder = folder
        self._what = server.obtain()
        self._log_path = log or folder / "bench.log"
        self.start_s = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._launch()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End it; what it kept on disk stays."""
        processes.stop(self._process)

    def restart_after_kill(self) -> float:
        """Kill it as a crash does, start it on the same directory; return the seconds until it answered."""
        self._process.kill()
        processes.stop(self._process)
        self._launch()
        return self.start_s

    def create_queue(self, name: str, attributes: Mapping[str, str] | None = None) -> str:
        """Create a queue and return its URL."""
        fields: dict[str, object] = {"QueueName": name}
        if attributes:
            fields["Attributes"] = dict(attributes)
        return str(call(self.endpoint, "CreateQueue", fields)["QueueUrl"])

    def delete_queue(self, queue_url: str) -> None:
        call(self.endpoint, "DeleteQueue", {"QueueUrl": queue_url})

    def _launch(self) -> None:
        port = free_port()
        started = time.monotonic()
        with self._log_path.open("ab") as log:
            self._process = self.server.start(self._what, self.folder, port, log)
        self.endpoint = Endpoint("127.0.0.1", port)
        if not processes.wait_until(self._answers, START_TIMEOUT_S):
            self._give_up("did not answer in time")
        self.start_s = time.monotonic() - started

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            self._give_up(f"ended with code {self._process.returncode}")
        facts = self.folder / "data" / "client.json"
        if facts.exists() and facts.stat().st_size:
            known = json.loads(facts.read_text())
            self.endpoint = replace(
                self.endpoint,
                access_key_id=known["access_key_id"],
                secret_access_key=known["secret_access_key"],
                region=known["region"],
            )
        try:
            if self.server.name == "bare":
                socket.create_connection((self.endpoint.host, self.endpoint.port)).close()
            else:
                call(self.endpoint, "ListQueues", {})
            return True
        except (OSError, Refused):
            return False

    def _give_up(self, what: str) -> None:
        processes.stop(self._process)
        log = self._log_path.read_text(errors="replace")[-1500:]
        raise Unavailable(f"{self.server.label} {what}: {log}")


def run_step(*command: str | Path, folder: Path, label: str) -> None:
    """Run a step of obtaining a server, in its folder."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=OBTAIN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{label}: {error}") from error
    if done.returncode:
        raise Unavailable(f"{label}: {command[0]} failed: {(done.stdout + done.stderr)[-1500:]}")


def run_script(name: str) -> Path:
    """Return the path that a script of this tree prints: of a program that it gets where there is none."""
    done = subprocess.run(
        [ROOT / "scripts" / name], capture_output=True, text=True, timeout=OBTAIN_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise Unavailable(done.stderr[-1500:])
    return Path(done.stdout.split()[-1])


def _need(*programs: str, label: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"{label}: `{program}` is not installed")


def obtained(name: str, version: str, make: Callable[[Path], None]) -> Path:
    """Return the cached folder of a server, made first if need be; a folder half made is made anew."""
    folder = CACHE / f"{name}-{version}"
    done = folder / ".complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        done.touch()
    return folder


# Quaymaster and the bare responder


def _obtain_quaymaster() -> Path:
    return Path(sys.executable).with_name("quaymaster")


def _start_quaymaster(program: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    command: list[str | Path] = [
        *(program, "serve", "--data", folder / "data", "--listen", f"127.0.0.1:{port}"),
        *("--admin", "127.0.0.1:0"),
    ]
    settings = {"QUAYMASTER_PURGE_INTERVAL_S": "0", "QUAYMASTER_QUEUE_NAME_REUSE_S": "0"}
    return processes.start(command, folder=folder, environment=settings, log=log)


def _start_bare(python: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return processes.start([python, "-m", "bench.bare", str(port)], folder=ROOT, log=log)


# Peers


def _obtain_elasticmq() -> Path:
    _need("mvn", "java", label="ElasticMQ")

    def make(folder: Path) -> None:
        (folder / "pom.xml").write_text(_POM)
        run_step(
            *("mvn", "-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime"),
            "-DoutputDirectory=lib",
            folder=folder,
            label="ElasticMQ",
        )

    return obtained("elasticmq", ELASTICMQ_VERSION, make)


def _start_elasticmq(installed: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [
        *("java", "-cp", f"{installed / 'lib'}/*"),
        *("-Drest-sqs.bind-hostname=127.0.0.1", f"-Drest-sqs.bind-port={port}"),
        *(f"-Dnode-address.port={port}", "org.elasticmq.server.Main"),
    ]
    return processes.start(command, folder=folder, log=log)


def _obtain_goaws() -> Path:
    _need("go", label="goaws")

    def make(folder: Path) -> None:
        module = f"github.com/Admiral-Piett/goaws@{GOAWS_VERSION}"
        download = subprocess.run(
            ["go", "mod", "download", "-json", module],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if download.returncode:
            raise Unavailable(f"goaws: {(download.stdout + download.stderr)[-1500:]}")
        source = folder / "source"
        shutil.copytree(json.loads(download.stdout)["Dir"], source)
        for path in [source, *source.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        run_step("go", "build", "-mod=mod", "-o", folder / "goaws", "./app/cmd", folder=source, label="goaws")

    return obtained("goaws", GOAWS_VERSION, make) / "goaws"


def _start_goaws(program: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    configuration = folder / "goaws.yaml"
    configuration.write_text(
        f'Local:\n  Host: localhost\n  Port: {port}\n  Region: us-east-1\n  AccountId: "000000000000"\n'
        "  QueueAttributeDefaults:\n    VisibilityTimeout: 30\n    MaximumMessageSize: 1048576\n"
    )
    return processes.start([program, "-config", configuration, "-loglevel", "error"], folder=folder, log=log)


def _obtain_python(name: str, version: str, label: str, *packages: str) -> Path:
    def make(folder: Path) -> None:
        uv = (ROOT / "scripts" / "bootstrap", "uv")
        run_step(*uv, "venv", "-q", "--python", sys.executable, folder / "venv", folder=ROOT, label=label)
        python = folder / "venv" / "bin" / "python"
        run_step(*uv, "pip", "install", "-q", "--python", python, *packages, folder=ROOT, label=label)

    return obtained(name, version, make) / "venv" / "bin"


def _obtain_moto() -> Path:
    return _obtain_python("moto", MOTO_VERSION, "moto", f"moto[server]=={MOTO_VERSION}")


def _start_moto(programs: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # It logs each request; that goes nowhere.
    return processes.start(
        [programs / "moto_server", "-H", "127.0.0.1", "-p", str(port)], folder=folder, log=None
    )


def _obtain_localstack() -> Path:
    package = f"localstack-core[runtime]=={LOCALSTACK_VERSION}"
    return _obtain_python("localstack", LOCALSTACK_VERSION, "LocalStack", package, *LOCALSTACK_NEEDS)


def _start_localstack(programs: Path, folder: Path, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {
        "SERVICES": "sqs",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(folder / "files"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "DNS_ADDRESS": "0",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "LS_LOG": "error",
    }
    command: list[str | Path] = [programs / "python", "-m", "localstack.runtime.main"]
    return processes.start(command, folder=folder, environment=environment, log=log)


SERVERS = {
    server.name: server
    for server in (
        Server(
            "quaymaster",
            "Quaymaster",
            "on disk, fsynced; encrypted; signatures checked",
            _obtain_quaymaster,
            _start_quaymaster,
            version="this tree",
            is_durable=True,
        ),
        Server(
            "elasticmq",
            "ElasticMQ",
            "in memory; signatures not checked",
            _obtain_elasticmq,
            _start_elasticmq,
            version=ELASTICMQ_VERSION,
            warm_up_s=20.0,
        ),
        Server(
            "goaws",
            "goaws",
            "in memory; signatures not checked",
            _obtain_goaws,
            _start_goaws,
            version=GOAWS_VERSION,
        ),
        Server(
            "moto",
            "moto server",
            "in memory; signatures not checked",
            _obtain_moto,
            _start_moto,
            version=MOTO_VERSION,
        ),
        Server(
            "localstack",
            "LocalStack",
            "in memory; signatures not checked",
            _obtain_localstack,
            _start_localstack,
            version=LOCALSTACK_VERSION,
        ),
    )
}
"""What is compared, in the order in which it is measured."""

BARE = Server(
    "bare",
    "bare responder",
    "nothing: one fixed answer (uvloop, httptools)",
    lambda: Path(sys.executable),
    _start_bare,
    version="this tree",
)

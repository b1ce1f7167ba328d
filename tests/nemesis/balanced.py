"""A cell in three zones behind two balancers with a virtual IP each: HAProxy, keepalived and dnsmasq of Debian's.

```
           ┌─ balancer-1  HAProxy, keepalived: master of VIP 1 ─┐       ┌─ zone-1  edge-1 ─▶ frontend-1, ...
  clients ─┤                                                    ├─PROXY─┼─ zone-2  edge-2 ─▶ frontend-2, ...
     │     └─ balancer-2  HAProxy, keepalived: master of VIP 2 ─┘       └─ zone-3  edge-3 ─▶ frontend-3, ...
     └─ A? ─▶ dns  dnsmasq
```

Balancers, name server and the hosts' proxies have the files that `quaymaster edge` renders.
"""

from __future__ import annotations

import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from harness.hosts import NETWORK, Hosts
from harness.programs import dnsmasq_or_skip, haproxy_or_skip, keepalived_or_skip
from harness.running_cell import ask_status, is_whole
from harness.waiting import INTERVAL_S, PATIENCE_S, eventually

from quaymaster.cli.edge.balancers import CHECK_FILE
from quaymaster.cli.edge.self_signed import CA_FILE, ensure_self_signed

from .cell import CELL, PORTS, Member, Role
from .zones import ZONES, ZonedCell

BALANCERS = ("balancer-1", "balancer-2")
DNS = "dns"
VIPS = (f"{NETWORK}.201", f"{NETWORK}.202")
NAME = "sqs.example.com"
PORT = 443
HEALTH_PORT = 9329
SETTLED_S = 4.0
"""Two checks, and as long as a balancer takes to follow a better one."""
SECRET_PLACE = "/run"
"""Where root alone can change what is in it: keepalived runs no other scripts."""


class BalancedCell(ZonedCell):
    """Front ends with proxies on their hosts, behind balancers."""

    def __init__(self, directory: Path, hosts: Hosts) -> None:
        super().__init__(directory, hosts)
        self._programs: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._commands: dict[tuple[str, str], list[str]] = {}

    @classmethod
    @contextmanager
    def balanced(cls, directory: Path, settings: Mapping[str, object]) -> Iterator[Self]:
        """Give a cell with these settings, whose virtual IPs are served, each by its own balancer."""
        for program in (haproxy_or_skip, keepalived_or_skip, dnsmasq_or_skip):
            program()
        ensure_self_signed(directory / "certificates", NAME)
        with cls.in_zones(directory, others=(*BALANCERS, DNS), settings=settings) as cell:
            eventually(cell.is_settled, "each balancer to have its own virtual IP, and to keep it")
            yield cell

    @property
    def ca_file(self) -> Path:
        """What clients trust."""
        return self.directory / "certificates" / CA_FILE

    def has(self, balancer: str, vip: str) -> bool:
        """Whether a balancer has a virtual IP."""
        # Read here: it is asked again and again, and a program for each answer would keep a core busy.
        with self.hosts.entered(balancer):
            routes = Path("/proc/thread-self/net/fib_trie").read_text()
        return re.search(rf"-- {re.escape(vip)}\n\s+/32 host LOCAL", routes) is not None

    def is_settled(self) -> bool:
        """Whether each balancer has its own virtual IP alone, and is not about to give it up."""
        owned = dict(zip(BALANCERS, VIPS, strict=True))
        until_s = time.monotonic() + SETTLED_S
        while all(self.has(one, vip) == (owned[one] == vip) for one in BALANCERS for vip in VIPS):
            if time.monotonic() > until_s and all(map(is_reached, VIPS)):
                return True
            time.sleep(INTERVAL_S)
        return False

    def restore(self) -> None:
        """Undo what tests did, and return when each balancer has its own virtual IP, and every journal all members."""
        for place, child in self._programs.items():
            if child.poll() is not None:
                self._begin(place)
        self.heal("restored")
        self.wait_until_ready()
        eventually(self.is_settled, "each balancer to have its own virtual IP again, and to keep it")
        managers = [(self.hosts.address(one.host), PORTS["manager"]) for one in self.of_role("manager")]
        eventually(lambda: (status := ask_status(CELL, managers)) is not None and is_whole(status))

    def connections(self, balancer: str, vip: str) -> int:
        """Return how many clients are connected to a virtual IP there."""
        return len(self.hosts.run(balancer, "ss", "-Htn", "state", "established", "src", vip).splitlines())

    def edge(self, number: int) -> Member:
        """Return the proxy of a host."""
        return self.member(f"edge-{number}")

    def reaches_hosts(self, balancer: str) -> bool:
        """Whether a balancer says that it has a host, as keepalived asks."""
        try:
            self.hosts.run(balancer, str(self._place / balancer / CHECK_FILE), "hosts")
        except subprocess.CalledProcessError:
            return False
        return True

    def kill_program(self, host: str, name: str) -> None:
        """End a program of a balancer as a crash does."""
        self._programs[host, name].kill()

    def command(self, number: int, *words: str) -> None:
        """Run a `quaymaster` command in a zone; it must succeed."""
        child = self.hosts.popen(
            ZONES[number - 1], [_quaymaster(), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0, said.decode()

    def _settings_of(self, role: Role, zone: str) -> Mapping[str, object]:
        if role != "frontend":
            return {}
        address = self.hosts.address(zone)
        return {
            "edge_bind": f"{address}:{PORT}",
            "edge_admin": f"{address}:{HEALTH_PORT}",
            "edge_balancers": ",".join(map(self.hosts.address, BALANCERS)),
            "edge_certificates": str(self.directory / "certificates"),
        }

    def _plan_others(self, stack: ExitStack) -> None:
        for number, zone in enumerate(ZONES, 1):
            settings = self.directory / f"frontend-{number}.toml"
            # An edge waits for its front end's, but not for as long as a busy machine takes.
            (self.directory / f"frontend-{number}").mkdir(mode=0o700)
            command = ["edge", "run", "--config", str(settings)]
            self._add(
                f"edge-{number}",
                "edge",
                zone,
                command,
                (self.hosts.address(zone), HEALTH_PORT, "/health/ready"),
            )
        self._place = place = Path(tempfile.mkdtemp(prefix="quaymaster-edge-", dir=SECRET_PLACE))
        stack.callback(shutil.rmtree, place)
        layout = self.directory / "edge.toml"
        layout.write_text(self._layout())
        for balancer in BALANCERS:
            own = place / balancer
            _render("balancer", str(layout), "--name", balancer, "--out", str(own), "--installed", str(own))
            self._launch(stack, balancer, "haproxy", [haproxy_or_skip(), "-db", "-f", own / "haproxy.cfg"])
            self._launch(stack, balancer, "keepalived", _keepalived(own))
        _render("dns", str(layout), "--out", str(place))
        files = [f"--conf-file={place / 'dnsmasq.conf'}", f"--pid-file={place / 'dnsmasq.pid'}"]
        self._launch(
            stack, DNS, "dnsmasq", [dnsmasq_or_skip(), "--keep-in-foreground", "--user=root", *files]
        )

    def _layout(self) -> str:
        lines = [f'name = "{NAME}"', ""]
        for balancer, vip in zip(BALANCERS, VIPS, strict=True):
            lines += ["[[balancer]]", f'name = "{balancer}"', f'address = "{self.hosts.address(balancer)}"']
            lines += ['interface = "eth0"', f'vip = "{vip}"', ""]
        for number, zone in enumerate(ZONES, 1):
            lines += ["[[host]]", f'name = "frontend-{number}"', f'address = "{self.hosts.address(zone)}"']
            lines += [f'zone = "{zone}"', ""]
        return "\n".join(lines)

    def _launch(self, stack: ExitStack, host: str, name: str, command: Sequence[str | Path]) -> None:
        """Start a program until the test ends, with a log of its own."""
        self._commands[host, name] = [str(word) for word in command]
        self._begin((host, name))

        def end() -> None:
            child = self._programs[host, name]
            child.terminate()
            try:
                child.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

        stack.callback(end)

    def _begin(self, place: tuple[str, str]) -> None:
        host, name = place
        with (self.directory / f"{host}-{name}.log").open("ab") as log:
            self._programs[place] = self.hosts.popen(
                host,
                self._commands[place],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def is_reached(address: str, timeout_s: float = 0.1) -> bool:
    """Whether a connection to a virtual IP is taken."""
    try:
        socket.create_connection((address, PORT), timeout_s).close()
    except OSError:
        return False
    return True


class Resolver:
    """Looks the name of the edge up as clients' systems do: in a name server, and in turns."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._turn = 0

    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of the name, each with how many seconds it is good for."""
        query_id = random.getrandbits(16)
        labels = b"".join(bytes([len(part)]) + part.encode() for part in NAME.split("."))
        query = (
            struct.pack(">HHHHHH", query_id, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.settimeout(PATIENCE_S)
            asked.sendto(query, (self._server, 53))
            answer = asked.recv(4096)
        found_id, flags, _, answers, _, _ = struct.unpack_from(">HHHHHH", answer)
        assert (found_id, flags & 0xF) == (query_id, 0), "the name server has an answer"
        found = []
        at = len(query)
        for _ in range(answers):
            # The name is a pointer to that of the question.
            kind, _, ttl_s, length = struct.unpack_from(">HHIH", answer, at + 2)
            assert (kind, length) == (1, 4)
            found.append((socket.inet_ntoa(answer[at + 12 : at + 16]), ttl_s))
            at += 16
        return found

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let this process find the name so, meanwhile."""
        asked: Callable[..., list[Any]] = socket.getaddrinfo
        known = [address for address, _ in self.addresses()]

        def look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
            if host != NAME:
                return asked(host, port, *arguments, **options)
            with self._lock:
                self._turn += 1
                turn = self._turn % len(known)
            found: list[Any] = []
            for address in known[turn:] + known[:turn]:
                found += asked(address, port, *arguments, **options)
            return found

        socket.getaddrinfo = look_up
        try:
            yield
        finally:
            socket.getaddrinfo = asked


def resolver(cell: BalancedCell) -> Resolver:
    """Return the clients' way to find the edge."""
    return Resolver(cell.hosts.address(DNS))


def _keepalived(files: Path) -> list[str | Path]:
    pids = [f"--{kind}={files / kind}.pid" for kind in ("pid", "vrrp_pid")]
    options = ["--dont-fork", "--log-console", "--vrrp", f"--use-file={files / 'keepalived.conf'}"]
    return [keepalived_or_skip(), *options, *pids]


def _render(*words: str) -> None:
    subprocess.run([_quaymaster(), "edge", "render", *words], check=True, stdout=subprocess.DEVNULL)


def _quaymaster() -> str:
    return str(Path(sys.executable).parent / "quaymaster")

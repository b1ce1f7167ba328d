"""Hosts on this machine: network namespaces on one switch, with links that can be cut one way or both, and slowed.

```
  switch ── bridge ─┬─ broker-1   10.90.0.1
                    ├─ broker-2   10.90.0.2      each a namespace of its own, with a loopback of its own
                    └─ clients    10.90.0.3
```

    with Hosts.made(["broker-1", "broker-2", "clients"]) as hosts:
        child = hosts.popen("broker-1", [...])
        with hosts.entered("clients"):
            ...  # sockets that this thread opens, and threads and processes that it starts, are in that host
        hosts.cut("broker-1", "broker-2")

The switch is a namespace, too, so nothing of the machine's own network is touched, and runs beside each other may use
the same addresses. Names of namespaces tell the process that made them; what a killed run left is removed by the next.

A cut drops packets and says nothing, as a broken network does: the receiving host routes what comes from the other into
a black hole. Neighbours are written down for ever, so that no failed ARP request tells the sender. Needs root.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

import pytest

from .forked_programs import Program, start_program
from .waiting import PATIENCE_S

PREFIX = "qm"
NETWORK = "10.90.0"
HOSTS_MAX = 250
NAMESPACES = Path("/run/netns")
TOOLS = ("ip", "tc", "nsenter")
RULE_PRIORITY_CUT = 100
"""Before the rule for addresses of the host itself, which is moved from 0 to 200."""
RULE_PRIORITY_LOCAL = 200
CLONE_NEWNET = 0x40000000

_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


class Hosts:
    """Some hosts on one switch; made by `made`, which removes them whatever happened."""

    def __init__(self, names: Sequence[str]) -> None:
        assert len(names) == len(set(names)) <= HOSTS_MAX, "each host has a name of its own"
        self.names = list(names)
        self._token = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self._cuts: set[tuple[str, str]] = set()
        self._slow: set[str] = set()
        self._without_power: set[str] = set()

    @classmethod
    @contextmanager
    def made(cls, names: Sequence[str]) -> Iterator[Self]:
        """Give the hosts; skips the test, with the reason, where they cannot be made."""
        skip_without_namespaces()
        hosts = cls(names)
        _remove_abandoned()
        try:
            hosts._make()
            yield hosts
        finally:
            hosts.remove()

    def address(self, name: str) -> str:
        """Return the host's IPv4 address."""
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def namespace(self, name: str) -> str:
        """Return the name under which `ip netns` knows the host."""
        return f"{self._token}-{name}"

    def popen(self, name: str, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in a host; the child's id is the process's own."""
        return subprocess.Popen([*self._inside(name), *map(str, command)], **options)

    def start_program(
        self, name: str, words: Sequence[str], *, environment: Mapping[str, str], out: IO[bytes]
    ) -> Program:
        """Start `quaymaster` in a host; see `harness.forked_programs`."""
        namespace = NAMESPACES / self.namespace(name)
        return start_program(words, environment=environment, out=out, namespace=namespace)

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        """Be in a host with the calling thread; threads and processes started meanwhile stay there."""
        own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        try:
            wanted = os.open(NAMESPACES / self.namespace(name), os.O_RDONLY)
            try:
                _enter(wanted)
            finally:
                os.close(wanted)
            try:
                yield
            finally:
                _enter(own)
        finally:
            os.close(own)

    # Faults

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Drop what `sender` sends to `receiver`; nobody is told. What goes the other way arrives."""
        if (sender, receiver) in self._cuts:
            return
        self._cuts.add((sender, receiver))
        self._run_in(receiver, *self._rule("add", sender))

    def heal_one_way(self, sender: str, receiver: str) -> None:
        """Undo `cut_one_way`; nothing happens where nothing is cut."""
        if (sender, receiver) not in self._cuts:
            return
        self._cuts.remove((sender, receiver))
        self._run_in(receiver, *self._rule("del", sender))

    def cut(self, one: str, other: str) -> None:
        """Drop everything between two hosts."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def slow_down(self, name: str, bytes_per_s: int) -> None:
        """Let the host send no faster than this; what waits longer than half a second is dropped."""
        # A burst is at least a packet, headers and all.
        shape = ["rate", f"{bytes_per_s * 8}bit", "burst", "4096", "latency", "500ms"]
        self._run_in(name, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *shape)
        self._slow.add(name)

    def cut_power(self, name: str) -> None:
        """Let a host vanish: all of its processes are killed, and its cable is dead."""
        self._run_in(name, "ip", "link", "set", "eth0", "down")
        _kill_processes(self.namespace(name))
        self._without_power.add(name)

    def run(self, name: str, *command: str) -> str:
        """Run a command in a host until it ends, and return what it printed."""
        return self._run_in(name, *command)

    def heal(self) -> None:
        """Undo all cuts and slow links; hosts without power have it again, and nothing runs there."""
        for name in list(self._without_power):
            self._run_in(name, "ip", "link", "set", "eth0", "up")
            self._introduce(name)  # with its cable, a host forgets who its neighbours are
            self._without_power.remove(name)
        for sender, receiver in list(self._cuts):
            self.heal_one_way(sender, receiver)
        for name in list(self._slow):
            self._run_in(name, "tc", "qdisc", "del", "dev", "eth0", "root")
            self._slow.remove(name)

    # Making and removing

    def remove(self) -> None:
        """Kill what still runs in the hosts, and remove them with their links."""
        for name in [*self.names, "switch"]:
            _remove_namespace(self.namespace(name))

    def _make(self) -> None:
        switch = self.namespace("switch")
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "name", "bridge", "type", "bridge", "forward_delay", "0")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            self._make_host(switch, f"port{number}", name)
        for name in self.names:
            self._introduce(name)

    def _make_host(self, switch: str, port: str, name: str) -> None:
        host = self.namespace(name)
        _run("ip", "netns", "add", host)
        # Both ends are made where they belong: a name in the machine's own namespace could be taken.
        _run(
            "ip",
            "-n",
            host,
            "link",
            "add",
            "name",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            switch,
        )
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", host, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        _run("ip", "-n", host, "link", "set", "lo", "up")
        _run("ip", "-n", host, "link", "set", "eth0", "up")
        # The rule of cuts must come before that of the host's own addresses, and be asked for each packet: an
        # established connection would remember its route otherwise.
        local = ("lookup", "local", "priority")
        _run("ip", "-n", host, "rule", "add", *local, str(RULE_PRIORITY_LOCAL))
        _run("ip", "-n", host, "rule", "del", *local, "0")
        for which in ("ip", "tcp", "udp"):
            self._run_in(name, "sh", "-c", f"echo 0 >/proc/sys/net/ipv4/{which}_early_demux")

    def _introduce(self, name: str) -> None:
        """Write down the hardware addresses of all others, so that none needs to be asked for."""
        for other in self.names:
            if other == name:
                continue
            shown = _run("ip", "-n", self.namespace(other), "link", "show", "eth0")
            hardware = re.search(r"link/ether (\S+)", shown)
            assert hardware is not None, shown
            neighbour = [self.address(other), "lladdr", hardware[1], "dev", "eth0", "nud", "permanent"]
            _run("ip", "-n", self.namespace(name), "neigh", "replace", *neighbour)

    def _rule(self, verb: str, sender: str) -> list[str]:
        which = ["iif", "eth0", "from", self.address(sender), "priority", str(RULE_PRIORITY_CUT)]
        return ["ip", "rule", verb, *which, "blackhole"]

    def _inside(self, name: str) -> list[str]:
        return ["nsenter", f"--net={NAMESPACES / self.namespace(name)}", "--"]

    def _run_in(self, name: str, *command: str) -> str:
        return _run(*self._inside(name), *command)


def skip_without_namespaces() -> None:
    """Skip the test, with the reason, where network namespaces cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: iproute2, util-linux)")
    probe = f"{PREFIX}{os.getpid()}-{next(_numbers)}-probe"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "-n", probe, "link", "add", "name", "one", "type", "veth", "peer", "name", "other")
        _run("ip", "-n", probe, "link", "add", "name", "third", "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces: {error.stderr.strip()}")
    finally:
        _remove_namespace(probe)


def processes_in(namespace: str) -> list[int]:
    """Return the ids of the processes in a namespace."""
    return [int(line) for line in _run("ip", "netns", "pids", namespace).split()]


def _remove_abandoned() -> None:
    """Remove the namespaces of runs whose process has ended, in one process at a time: all of them want to."""
    if not NAMESPACES.is_dir():
        return
    with _locked(NAMESPACES):
        for path in sorted(NAMESPACES.iterdir()):
            made_by = re.fullmatch(rf"{PREFIX}(\d+)-.+", path.name)
            if made_by is not None and not Path(f"/proc/{made_by[1]}").exists():
                _remove_namespace(path.name)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _remove_namespace(namespace: str) -> None:
    if not (NAMESPACES / namespace).exists():
        return
    _kill_processes(namespace)
    _run("ip", "netns", "delete", namespace)


def _kill_processes(namespace: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (left := _processes_left(namespace)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _processes_left(namespace: str) -> list[int]:
    """Return who is in a namespace but us, and but children of ours that ended: their parent knows that."""
    return [pid for pid in processes_in(namespace) if pid != os.getpid() and not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env=environment,
    )
    return done.stdout

"""The hosts themselves: what is cut is cut, silently and only that way; nothing is left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.hosts import NAMESPACES, Hosts, processes_in
from harness.waiting import PATIENCE_S

pytestmark = pytest.mark.privileged

PORT = 7000
TESTS = Path(__file__).resolve().parents[1]
SILENCE_S = 0.3


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts.made(["a", "b", "c"]) as hosts:
        yield hosts


def udp(hosts: Hosts, name: str) -> socket.socket:
    with hosts.entered(name):
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind((hosts.address(name), PORT))
    bound.settimeout(SILENCE_S)
    return bound


def arrives(hosts: Hosts, sender: str, receiver: str) -> bool:
    """Whether a datagram sent from one host to another gets there; sending never fails."""
    with udp(hosts, sender) as one, udp(hosts, receiver) as other:
        one.sendto(b"hello", (hosts.address(receiver), PORT))
        try:
            return other.recv(100) == b"hello"
        except TimeoutError:
            return False


def connected(hosts: Hosts, client: str, server: str) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with hosts.entered(server):
        listening = socket.create_server((hosts.address(server), PORT))
    with listening, hosts.entered(client):
        near = socket.create_connection((hosts.address(server), PORT), timeout=5)
        far, _ = listening.accept()
    far.settimeout(SILENCE_S)
    near.settimeout(SILENCE_S)
    return near, far


def test_hosts_reach_each_other_and_nothing_else(hosts: Hosts) -> None:
    assert arrives(hosts, "a", "b")
    assert arrives(hosts, "b", "a")
    with hosts.entered("a"), pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.1", 80), timeout=5)


def test_a_cut_one_way_drops_what_goes_that_way_only(hosts: Hosts) -> None:
    hosts.cut_one_way("a", "b")

    assert not arrives(hosts, "a", "b")
    assert arrives(hosts, "b", "a")
    assert arrives(hosts, "a", "c")
    assert arrives(hosts, "c", "b")

    hosts.heal()

    assert arrives(hosts, "a", "b")


def test_a_full_cut_drops_both_ways(hosts: Hosts) -> None:
    hosts.cut("a", "b")

    assert not arrives(hosts, "a", "b")
    assert not arrives(hosts, "b", "a")
    assert arrives(hosts, "a", "c")


@pytest.mark.parametrize(("sender", "receiver"), [("near", "far"), ("far", "near")])
def test_nobody_is_told_of_a_cut_under_an_established_connection(
    hosts: Hosts, sender: str, receiver: str
) -> None:
    near, far = connected(hosts, "a", "b")
    ends = {"near": (near, "a"), "far": (far, "b")}
    (one, one_host), (other, other_host) = ends[sender], ends[receiver]
    with near, far:
        one.sendall(b"before")
        assert other.recv(100) == b"before"

        hosts.cut_one_way(one_host, other_host)
        one.sendall(b"meanwhile")

        with pytest.raises(TimeoutError):
            other.recv(100)
        hosts.heal()
        other.settimeout(PATIENCE_S)
        assert other.recv(100) == b"meanwhile"


def test_connecting_over_a_cut_takes_time_and_is_not_refused(hosts: Hosts) -> None:
    with hosts.entered("b"):
        listening = socket.create_server((hosts.address("b"), PORT))
    with listening, hosts.entered("a"):
        for sender, receiver in (("a", "b"), ("b", "a")):
            hosts.cut_one_way(sender, receiver)

            with pytest.raises(TimeoutError):
                socket.create_connection((hosts.address("b"), PORT), timeout=SILENCE_S)

            hosts.heal()


def test_a_slow_link_takes_its_time_and_loses_nothing_of_a_connection(hosts: Hosts) -> None:
    near, far = connected(hosts, "a", "b")
    with near, far:
        hosts.slow_down("a", 100_000)
        far.settimeout(PATIENCE_S)
        began = time.monotonic()

        near.settimeout(PATIENCE_S)
        near.sendall(bytes(100_000))
        left = 100_000
        while left:
            left -= len(far.recv(65_536))

        # A lower bound: it says that the link is slow, not that the machine is quick.
        assert time.monotonic() - began > 0.5


def test_a_process_runs_in_its_host_under_the_id_of_the_child(hosts: Hosts) -> None:
    program = "import socket; socket.create_server(('127.0.0.1', 7001)); print(1, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [hosts.popen(name, [sys.executable, "-c", program], **pipes) for name in ("a", "b")]

    for name, child in zip(("a", "b"), children, strict=True):
        assert child.stdout is not None
        # The same port of the loopback in both: each host has its own.
        assert child.stdout.readline() == b"1\n"
        assert processes_in(hosts.namespace(name)) == [child.pid]

    for child in children:
        child.communicate(b"\n")


def test_a_host_without_power_runs_nothing_and_is_heard_by_nobody_until_it_has_some(hosts: Hosts) -> None:
    child = hosts.popen("a", ["sleep", "1000"])
    while child.pid not in processes_in(hosts.namespace("a")):
        time.sleep(0.01)

    hosts.cut_power("a")

    assert child.wait(PATIENCE_S) == -9
    assert hosts.run("b", "echo", "here") == "here\n"
    with pytest.raises(OSError, match="unreachable"):
        arrives(hosts, "a", "b")
    assert arrives(hosts, "b", "c")

    hosts.heal()
    assert arrives(hosts, "a", "b")
    assert arrives(hosts, "b", "a")


def test_processes_and_namespaces_end_with_the_hosts_even_when_the_test_fails() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def failing_test() -> None:
        with Hosts.made(["a", "b"]) as hosts:
            children.append(hosts.popen("a", ["sleep", "1000"]))
            while children[0].pid not in processes_in(hosts.namespace("a")):
                time.sleep(0.01)  # it is on its way there
            raise RuntimeError(hosts.namespace(""))

    with pytest.raises(RuntimeError) as failure:
        failing_test()

    assert children[0].wait(PATIENCE_S) == -9
    assert not [path for path in NAMESPACES.iterdir() if path.name.startswith(str(failure.value))]


def test_what_a_killed_run_left_is_removed_by_the_next(hosts: Hosts) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = f"qm{ended.pid}-left"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with subprocess.Popen(["nsenter", f"--net={NAMESPACES / name}", "sleep", "1000"]) as child:
        while child.pid not in processes_in(name):
            time.sleep(0.01)

        with Hosts.made(["d"]):
            assert not (NAMESPACES / name).exists()

        assert child.wait(PATIENCE_S) == -9
    assert (NAMESPACES / hosts.namespace("a")).exists()


def test_processes_that_find_the_same_leftovers_at_once_all_get_their_hosts() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = [f"qm{ended.pid}-left-{number}" for number in range(20)]
    for name in left:
        subprocess.run(["ip", "netns", "add", name], check=True)
    program = "from harness.hosts import Hosts\nwith Hosts.made(['e']): print('made')"

    others = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(6)
    ]

    for other in others:
        told, complaint = other.communicate(timeout=PATIENCE_S)
        assert told == b"made\n", complaint.decode()
    assert not [name for name in left if (NAMESPACES / name).exists()]

"""The files of balancers and name servers: exactly these, and the programs that they are for take them."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.hosts import Hosts
from harness.programs import dnsmasq_or_skip, haproxy_or_skip, keepalived_or_skip
from harness.waiting import PATIENCE_S

from quaymaster.cli.edge.balancers import balancer_files
from quaymaster.cli.edge.dns import dnsmasq_configuration
from quaymaster.cli.edge.host import HostProxy, render_host
from quaymaster.cli.edge.layout import Balancer, parse_layout
from quaymaster.settings import Address

EXPECTED = Path(__file__).parent / "expected"
LAYOUT = parse_layout((EXPECTED / "edge.toml").read_text())
PRIORITY = re.compile(r"vrrp_instance vip_(\S+) .*?priority (\d+)", re.DOTALL)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give a directory that root alone can change, whatever is above it: keepalived runs no others' scripts."""
    with tempfile.TemporaryDirectory(dir="/run") as path:
        yield Path(path)


def written(directory: Path, name: str) -> Path:
    """Write the files of a balancer."""
    for file, text in balancer_files(LAYOUT, name, str(directory)).items():
        (directory / file).write_text(text)
        (directory / file).chmod(0o755 if file == "check-balancer" else 0o644)
    return directory


def accepted(*command: str | Path) -> str:
    """Run a program's check of its file, and return what it said."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", ["balancer-1", "balancer-2"])
def test_the_files_of_a_balancer_are_these(name: str) -> None:
    files = balancer_files(LAYOUT, name, "/etc/quaymaster/edge")

    assert files == {path.name: path.read_text() for path in (EXPECTED / name).iterdir()}


def test_the_file_of_a_name_server_is_this() -> None:
    assert dnsmasq_configuration(LAYOUT) == (EXPECTED / "dnsmasq.conf").read_text()


def test_numbers_of_the_description_are_in_the_files() -> None:
    numbers = "port = 8443\nhealth_port = 9000\nrouter_id = 7\nconnections_max = 500\n"
    layout = parse_layout(numbers + (EXPECTED / "edge.toml").read_text())

    files = balancer_files(layout, "balancer-1", "/somewhere")

    assert "bind :8443\n" in files["haproxy.cfg"]
    assert "server frontend-1 10.0.0.21:8443\n" in files["haproxy.cfg"]
    assert "check port 9000 " in files["haproxy.cfg"]
    assert "maxconn 500\n" in files["haproxy.cfg"]
    assert [f"virtual_router_id {number}\n" in files["keepalived.conf"] for number in (6, 7, 8, 9)] == [
        False,
        True,
        True,
        False,
    ]
    assert 'script "/somewhere/check-balancer alive"' in files["keepalived.conf"]


def test_each_of_three_balancers_is_master_once_and_the_next_in_the_ring_stands_in_first() -> None:
    third = Balancer("balancer-3", "10.0.0.7", "eth1", "10.0.0.103")
    layout = type(LAYOUT)(LAYOUT.name, [*LAYOUT.balancers, third], LAYOUT.hosts)

    priorities = {
        one.name: PRIORITY.findall(balancer_files(layout, one.name, "/d")["keepalived.conf"])
        for one in layout.balancers
    }

    names = [f"balancer-{number}" for number in (1, 2, 3)]
    assert priorities["balancer-1"] == list(zip(names, ("200", "98", "99"), strict=True))
    assert priorities["balancer-2"] == list(zip(names, ("99", "200", "98"), strict=True))
    assert priorities["balancer-3"] == list(zip(names, ("98", "99", "200"), strict=True))


def test_haproxy_takes_the_file_of_a_balancer(tmp_path: Path) -> None:
    haproxy = haproxy_or_skip()

    said = accepted(haproxy, "-c", "-f", written(tmp_path, "balancer-1") / "haproxy.cfg")

    assert "WARNING" not in said


@pytest.mark.privileged
def test_keepalived_takes_the_file_of_a_balancer_and_would_run_its_check(directory: Path) -> None:
    keepalived = keepalived_or_skip()

    with Hosts.made(["balancer"]) as hosts:
        file = written(directory, "balancer-2") / "keepalived.conf"
        command = [str(keepalived), "--log-console", "--config-test", "--use-file", str(file)]
        child = hosts.popen("balancer", command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = child.communicate(timeout=PATIENCE_S)

    assert (child.returncode, said) == (0, b"")


def test_dnsmasq_takes_the_file_of_a_name_server(tmp_path: Path) -> None:
    dnsmasq = dnsmasq_or_skip()
    (tmp_path / "dnsmasq.conf").write_text(dnsmasq_configuration(LAYOUT))

    assert "OK" in accepted(dnsmasq, "--test", "--conf-file=" + str(tmp_path / "dnsmasq.conf"))


def test_a_host_reads_headers_of_balancers_alone_and_counts_their_clients_by_their_own_addresses() -> None:
    host = HostProxy(
        bind=Address("10.0.0.21", 443),
        front_end=Path("/data/run/edge.sock"),
        front_end_admin=Address("127.0.0.1", 9325),
        certificates=Path("/data/run/certificates"),
        admin=None,
        control=Path("/data/run/edge.ctl"),
        connections_max=100,
        balancers=("10.0.0.5/32", "10.0.1.0/24"),
    )

    lines = [line.strip() for line in render_host(host).splitlines()]
    alone = render_host(dataclasses.replace(host, balancers=()))

    first = lines.index("acl from-balancer src 10.0.0.5/32 10.0.1.0/24")
    assert lines[first + 1 : first + 8] == [
        "tcp-request connection expect-proxy layer4 if from-balancer",
        "default_backend front-end",
        "stick-table type ipv6 size 100000 expire 2m store conn_cur",
        "tcp-request connection track-sc0 src,ipmask(32,64) unless from-balancer",
        "tcp-request connection reject if { sc0_conn_cur gt 50 }",
        "tcp-request session track-sc0 src,ipmask(32,64)",
        "tcp-request session reject if { sc0_conn_cur gt 50 }",
    ]
    assert "expect-proxy" not in alone
    assert "from-balancer" not in alone
    assert "tcp-request session" not in alone

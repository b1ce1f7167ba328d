"""Virtual IPs, balancers and hosts that fail or are restarted: clients of the name notice one failed try, or nothing.

Times are printed; the machine's other work is in them.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from botocore.exceptions import ClientError
from harness.proxied import header_v2
from harness.sdk_clients import Clients
from harness.short_paths import short_directory
from harness.waiting import eventually

from quaymaster.settings import Settings

from .balanced import BALANCERS, DNS, NAME, PORT, VIPS, BalancedCell, is_reached, resolver
from .cell import CLIENTS
from .zones import ZONES

MESSAGES = 60
CHECK_INTERVAL_S = 0.5
RESTARTS = len(ZONES)
"""Each front end once."""
RESTARTS_LONG = 20

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


Serving = Callable[[], AbstractContextManager[Clients]]


@pytest.fixture(name="cell", scope="module")
def balanced_cell() -> Iterator[BalancedCell]:
    """A cell behind balancers, with front ends that drain as long as they do by default."""
    default_s = Settings.model_fields["drain_notice_s"].default
    # Sockets of the edge are in data directories.
    with (
        short_directory() as path,
        BalancedCell.balanced(path, {"drain_notice_s": default_s}) as cell,
        resolver(cell).used(),
    ):
        yield cell


@pytest.fixture
def serving(cell: BalancedCell, request: pytest.FixtureRequest) -> Serving:
    """`with serving() as clients`: clients of a whole cell, with a queue of the test's own."""

    @contextmanager
    def begin() -> Iterator[Clients]:
        cell.restore()
        queue = f"queue-{zlib.crc32(request.node.name.encode())}"
        clients = Clients(cell.environment(), f"https://{NAME}:{PORT}", cell.ca_file, queue=queue)
        clients.start()
        try:
            clients.work(MESSAGES)
            yield clients
        finally:
            clients.stop()

    return begin


def assert_one_failed_try_for_each(clients: Clients) -> None:
    """Of each connection that there was, the request under way may have failed, and no call twice."""
    assert max(clients.failed_tries) <= 1
    assert clients.failed_tries[1] <= clients.connections


@pytest.mark.timeout(600)
def test_a_balancer_that_dies_loses_its_virtual_ip_to_the_other_and_no_message(
    cell: BalancedCell, serving: Serving
) -> None:
    with serving() as clients:
        assert sorted(resolver(cell).addresses()) == [(vip, 30) for vip in VIPS]
        shares = [cell.connections(*of) for of in zip(BALANCERS, VIPS, strict=True)]

        dead_s = time.monotonic()
        cell.hosts.cut_power(BALANCERS[0])
        eventually(lambda: is_reached(VIPS[0]), "the other balancer to have the virtual IP")
        moved_s = time.monotonic() - dead_s
        clients.work(MESSAGES)

        assert cell.has(BALANCERS[1], VIPS[0])
        assert cell.has(BALANCERS[1], VIPS[1])
    print(f"shares {shares}; virtual IP moved in {moved_s:.2f} s; {clients.report()}")
    assert all(shares)
    assert clients.lost == set()
    assert clients.failures == []
    assert_one_failed_try_for_each(clients)


@pytest.mark.timeout(600)
def test_a_balancer_whose_haproxy_dies_gives_its_virtual_ip_up(cell: BalancedCell, serving: Serving) -> None:
    with serving() as clients:
        dead_s = time.monotonic()
        cell.kill_program(BALANCERS[1], "haproxy")
        eventually(lambda: cell.has(BALANCERS[0], VIPS[1]), "the other balancer to have the virtual IP")
        moved_s = time.monotonic() - dead_s
        clients.work(MESSAGES)
    print(f"virtual IP moved in {moved_s:.2f} s; {clients.report()}")
    assert clients.lost == set()
    assert clients.failures == []
    assert_one_failed_try_for_each(clients)


@pytest.mark.timeout(600)
def test_a_host_that_dies_costs_one_failed_try_and_no_message(cell: BalancedCell, serving: Serving) -> None:
    with serving() as clients:
        cell.hosts.cut_power(ZONES[2])
        clients.work(MESSAGES)
    print(clients.report())
    assert clients.lost == set()
    assert clients.failures == []
    assert_one_failed_try_for_each(clients)


@pytest.mark.timeout(600)
def test_a_balancer_without_hosts_ranks_below_one_with_some_and_keeps_its_own_when_nobody_has_any(
    cell: BalancedCell, serving: Serving
) -> None:
    with serving() as clients:
        cut_s = time.monotonic()
        for zone in ZONES:
            cell.hosts.cut(BALANCERS[0], zone)
        eventually(lambda: cell.has(BALANCERS[1], VIPS[0]), "a balancer with hosts to have the virtual IP")
        moved_s = time.monotonic() - cut_s
        clients.work(MESSAGES)
        cell.hosts.heal()
        eventually(cell.is_settled, "the balancer to have its virtual IP again")

        for number in range(1, len(ZONES) + 1):
            cell.edge(number).kill9()
        eventually(
            lambda: not any(cell.reaches_hosts(balancer) for balancer in BALANCERS),
            interval_s=CHECK_INTERVAL_S,
        )

        assert cell.is_settled()
        for number in range(1, len(ZONES) + 1):
            cell.edge(number).launch()
        cell.wait_until_ready()
        clients.work(MESSAGES)
    print(f"virtual IP moved in {moved_s:.2f} s; {clients.report()}")
    assert clients.lost == set()


@pytest.mark.timeout(600)
def test_the_address_of_a_client_comes_through_balancers_and_from_nobody_else(
    cell: BalancedCell, serving: Serving
) -> None:
    with serving() as clients:
        client = clients.client()
        statement = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:GetQueueAttributes",
            "Condition": {"NotIpAddress": {"aws:SourceIp": cell.hosts.address(CLIENTS)}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": statement})
        client.set_queue_attributes(QueueUrl=clients.queue_url, Attributes={"Policy": policy})

        def is_refused() -> bool:
            try:
                elsewhere.get_queue_attributes(QueueUrl=clients.queue_url, AttributeNames=["QueueArn"])
            except ClientError as error:
                return bool(error.response["Error"]["Code"] == "AccessDenied")
            return False

        with cell.hosts.entered(DNS):
            elsewhere = clients.client()
            eventually(is_refused, "another address to be refused")
            elsewhere.close()
        for _ in VIPS:
            client.get_queue_attributes(QueueUrl=clients.queue_url, AttributeNames=["QueueArn"])
            client.close()
        host = cell.hosts.address(ZONES[0]), PORT
        trusting = ssl.create_default_context(cafile=cell.ca_file)
        with socket.create_connection(host) as plain, trusting.wrap_socket(plain, server_hostname=NAME):
            pass
        with socket.create_connection(host) as plain:
            plain.sendall(header_v2(cell.hosts.address(CLIENTS)))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                trusting.wrap_socket(plain, server_hostname=NAME)

    assert clients.lost == set()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("restarts", [RESTARTS, pytest.param(RESTARTS_LONG, marks=pytest.mark.long)])
def test_front_ends_that_are_restarted_cost_no_error(
    cell: BalancedCell, serving: Serving, restarts: int
) -> None:
    with serving() as clients:
        crashes = 0
        for restart in range(restarts):
            number = restart % len(ZONES) + 1
            cell.command(number, "edge", "drain", "--data", str(cell.directory / f"frontend-{number}"))
            if cell.edge(number).wait_for_end() != 0:
                # Debian 12's HAProxy, 2.6.12, sometimes crashes at its end. Clients notice nothing.
                assert "exited with code 139" in cell.edge(number).log(), cell.edge(number).log()
                crashes += 1
            front_end = cell.member(f"frontend-{number}")
            assert front_end.stop() == 0, front_end.log()
            front_end.launch()
            cell.edge(number).launch()
            cell.wait_until_ready()
            clients.work(MESSAGES // 2)
    print(f"{crashes} crashes of HAProxy at its end; {clients.report()}")
    assert clients.lost == set()
    assert clients.failures == []
    # Only the request of a client that was silent for all of a notice can cross the close of its connection, once.
    assert max(clients.failed_tries) <= 1

"""What usage records say of a client: enough to see where use comes from, and no more than was asked for."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.usage.client_details import client_of, network_of, product_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("::ffff:192.0.2.77", "192.0.2.0/24"),
        ("fe80::1%eth0", "fe80::/48"),
        ("", ""),
        ("unix", ""),
        ("192.0.2.77:4711", ""),
    ],
)
def test_an_address_is_known_by_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


@given(st.ip_addresses())
def test_no_part_of_an_address_below_its_network_is_kept(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    network = ipaddress.ip_network(network_of(str(address)))

    mapped = getattr(address, "ipv4_mapped", None) or address
    assert mapped in network
    assert network.prefixlen == (24 if network.version == 4 else 48)


@pytest.mark.parametrize(
    ("agent", "product"),
    [
        ("Boto3/1.40.1 md/Botocore#1.40.1 ua/2.1 os/linux#6.1 md/arch#x86_64", "Boto3/1.40.1"),
        ("aws-sdk-java", "aws-sdk-java"),
        ("Mozilla/5.0 (X11; Linux)", "Mozilla/5.0"),
        ("(a comment only)", ""),
        ("", ""),
    ],
)
def test_an_agent_is_known_by_its_first_product(agent: str, product: str) -> None:
    assert product_of(agent) == product


def test_all_or_nothing_is_kept_where_that_was_asked_for() -> None:
    client = ("192.0.2.77", "Boto3/1.40.1 os/linux")

    assert client_of("full", *client) == client
    assert client_of("none", *client) == ("", "")
    assert client_of("network", *client) == ("192.0.2.0/24", "Boto3/1.40.1")

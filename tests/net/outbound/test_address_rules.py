"""Customers' URLs reach public addresses, the networks that operators allow, and nothing else."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.net.outbound.address_rules import AddressRules, Endpoint, endpoint_of, is_public
from quaymaster.net.outbound.own_endpoints import customer_rules
from quaymaster.settings import Address, Settings, SettingsError, load_settings

NOTHING_ALLOWED = AddressRules(())

PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "172.15.255.255",
    "172.32.0.1",
    "11.0.0.1",
    "192.167.255.255",
    "192.169.0.1",
    "2001:4860:4860::8888",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
    "64:ff9b::808:808",
]
REFUSED = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "not a public",
    "10.0.0.1": "not a public",
    "100.64.0.1": "not a public",
    "127.0.0.1": "not a public",
    "127.255.255.254": "not a public",
    "169.254.169.254": "not a public",
    "172.16.0.1": "not a public",
    "172.31.255.255": "not a public",
    "192.0.0.1": "not a public",
    "192.0.2.1": "not a public",
    "192.88.99.1": "not a public",
    "192.168.1.1": "not a public",
    "198.18.0.1": "not a public",
    "198.51.100.1": "not a public",
    "203.0.113.1": "not a public",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "not a public",
    "255.255.255.255": "broadcast",
    "::": "unspecified",
    "::1": "not a public",
    "::7f00:1": "not a public",  # IPv4-compatible 127.0.0.1
    "::ffff:127.0.0.1": "not a public",
    "::ffff:10.0.0.1": "not a public",
    "::ffff:169.254.169.254": "not a public",
    "::ffff:224.0.0.1": "multicast",
    "::ffff:0.0.0.0": "unspecified",
    "2002:7f00:1::1": "not a public",  # 6to4 of 127.0.0.1
    "2002:a00:1::1": "not a public",
    "2002:a9fe:a9fe::1": "not a public",
    "2001:0:808:808::1": "not a public",  # Teredo, whatever it carries
    "2001:0:7f00:1::1": "not a public",
    "64:ff9b::7f00:1": "not a public",  # NAT64 of 127.0.0.1
    "64:ff9b::a9fe:a9fe": "not a public",
    "64:ff9b::e000:1": "not a public",  # of 224.0.0.1
    "64:ff9b:1::808:808": "not a public",  # NAT64 of one's own network
    "100::1": "not a public",
    "2001:db8::1": "not a public",
    "3fff::1": "not a public",
    "5f00::1": "not a public",
    "fc00::1": "not a public",
    "fd12:3456::1": "not a public",
    "fe80::1": "not a public",
    "fe80::1%eth0": "not a public",
    "fec0::1": "not a public",
    "ff02::1": "multicast",
    "localhost": "not an IP address",
    "": "not an IP address",
}


@pytest.mark.parametrize("host", PUBLIC)
def test_public_addresses_are_called_by_https_and_never_in_the_clear(host: str) -> None:
    assert NOTHING_ALLOWED.why_refused(host, 443, is_encrypted=True) is None
    assert "plain http" in str(NOTHING_ALLOWED.why_refused(host, 80, is_encrypted=False))


@pytest.mark.parametrize(("host", "why"), REFUSED.items())
def test_addresses_that_are_not_public_are_refused(host: str, why: str) -> None:
    assert why in str(NOTHING_ALLOWED.why_refused(host, 443, is_encrypted=True))


@pytest.mark.parametrize(
    ("port", "is_allowed"),
    [
        (1, False),
        (22, False),
        (25, False),
        (79, False),
        (80, True),
        (81, False),
        (442, False),
        (443, True),
        (444, False),
        (1023, False),
        (1024, True),
        (8443, True),
        (65_535, True),
    ],
)
def test_ports_of_other_services_are_refused_everywhere(port: int, is_allowed: bool) -> None:
    rules = AddressRules([ip_network("10.0.0.0/8")])

    for host in ("8.8.8.8", "10.0.0.1"):
        assert (rules.why_refused(host, port, is_encrypted=True) is None) is is_allowed


def test_public_addresses_can_be_left_out() -> None:
    rules = AddressRules([ip_network("10.0.0.0/8")], only_networks=True)

    assert rules.why_refused("10.0.0.1", 443, is_encrypted=True) is None
    assert rules.why_refused("8.8.8.8", 443, is_encrypted=True) == "it is in none of outbound_networks"


def test_networks_that_operators_allow_are_called_also_in_the_clear() -> None:
    rules = AddressRules([ip_network("10.1.0.0/16"), ip_network("fd00::/8")])

    for host in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        assert rules.why_refused(host, 80, is_encrypted=False) is None
    assert "not a public" in str(rules.why_refused("10.2.0.1", 80, is_encrypted=False))
    # 6to4 would leave towards somebody else's relay.
    assert "not a public" in str(rules.why_refused("2002:a01:203::1", 443, is_encrypted=True))


def test_no_allowed_network_opens_unspecified_and_multicast_addresses() -> None:
    rules = AddressRules([ip_network("0.0.0.0/0"), ip_network("::/0")])

    for host in ("0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255"):
        assert "multicast" in str(rules.why_refused(host, 443, is_encrypted=True))
    assert rules.why_refused("127.0.0.1", 443, is_encrypted=True) is None


def test_own_listeners_are_refused_in_allowed_networks_and_by_every_notation() -> None:
    loopback = [ip_network("127.0.0.0/8"), ip_network("::1/128")]
    guarded = [endpoint_of("127.0.0.1", 9324), endpoint_of("::1", 9325), endpoint_of("::ffff:10.0.0.1", 9330)]
    rules = AddressRules([*loopback, ip_network("10.0.0.0/8")], lambda: guarded)

    for host, port in (("127.0.0.1", 9324), ("::ffff:127.0.0.1", 9324), ("::1", 9325), ("10.0.0.1", 9330)):
        assert "belongs to this service" in str(rules.why_refused(host, port, is_encrypted=False))
    assert rules.why_refused("127.0.0.1", 9325, is_encrypted=False) is None
    assert rules.why_refused("127.0.0.2", 9324, is_encrypted=False) is None


def test_listeners_on_all_interfaces_and_named_ones_guard_their_port_everywhere() -> None:
    guarded = [endpoint_of("0.0.0.0", 9324), endpoint_of("etcd.internal", 2379), endpoint_of("::", 443)]
    rules = AddressRules([ip_network("10.0.0.0/8")], lambda: guarded)

    for host, port in (("10.0.0.1", 9324), ("8.8.8.8", 9324), ("8.8.8.8", 2379), ("10.0.0.1", 443)):
        assert "belongs to this service" in str(rules.why_refused(host, port, is_encrypted=True))
    # Everybody's web servers are at that port.
    assert rules.why_refused("8.8.8.8", 443, is_encrypted=True) is None


def test_processes_that_join_later_are_guarded() -> None:
    brokers: list[Endpoint] = []
    rules = AddressRules([ip_network("10.0.0.0/8")], lambda: brokers)
    before = rules.why_refused("10.0.0.7", 9331, is_encrypted=False)

    brokers.append(endpoint_of("10.0.0.7", 9331))

    assert before is None
    assert rules.why_refused("10.0.0.7", 9331, is_encrypted=False) == "it belongs to this service"


def test_settings_give_the_networks_and_the_own_listeners() -> None:
    settings = load_settings(
        flags={"listen": "127.0.0.1:9324", "etcd_endpoints": "http://127.0.0.1:2379, https://[::1]"},
        environment={},
    )
    brokers = [Address("127.0.0.1", 9999)]
    rules = customer_rules(settings, live_processes=lambda: brokers)

    refused = [
        ("127.0.0.1", 9324),
        ("127.0.0.1", 9325),
        ("127.0.0.1", 2379),
        ("::1", 2379),
        ("127.0.0.1", 9999),
    ]
    for host, port in [*refused, ("127.0.0.1", settings.metadata_listen_address.port)]:
        assert rules.why_refused(host, port, is_encrypted=False) == "it belongs to this service"
    assert rules.why_refused("127.0.0.1", 8080, is_encrypted=False) is None


def takes_addresses(name: str) -> bool:
    """Tell whether a setting takes an address with a port: text without one is refused for that."""
    try:
        load_settings(flags={name: "no address"}, environment={})
    except SettingsError as error:
        return "is not an address" in str(error)
    return False


def test_no_setting_that_is_an_address_opens_it_to_urls_of_customers() -> None:
    names = [name for name in Settings.model_fields if takes_addresses(name)]
    flags = {name: f"127.0.0.1:{20_000 + number}" for number, name in enumerate(names)}
    rules = customer_rules(load_settings(flags={**flags, "trusted_proxies": "127.0.0.1"}, environment={}))

    refused = {
        name: rules.why_refused("127.0.0.1", 20_000 + number, is_encrypted=False)
        for number, name in enumerate(names)
    }

    assert refused == dict.fromkeys(names, "it belongs to this service")
    assert {"listen", "admin_listen", "edge_bind", "edge_admin", "edge_listen", "metadata_nodes"} <= set(
        names
    )
    # A listener by the names that they have is an address.
    assert {name for name in Settings.model_fields if name.endswith(("_listen", "_bind"))} <= set(names)


@pytest.mark.parametrize(
    ("flags", "is_allowed"),
    [
        ({"listen": "127.0.0.1:9324"}, True),
        ({"listen": "0.0.0.0:9324"}, False),
        ({"listen": "127.0.0.1:9324", "outbound_networks": ""}, False),
        ({"listen": "0.0.0.0:9324", "outbound_networks": "127.0.0.0/8, 10.0.0.0/8"}, True),
    ],
)
def test_loopback_is_called_by_default_only_where_the_server_listens_on_loopback(
    flags: dict[str, str], is_allowed: bool
) -> None:
    rules = customer_rules(load_settings(flags=flags, environment={}))

    assert (rules.why_refused("127.0.0.1", 8080, is_encrypted=False) is None) is is_allowed


IPV4 = st.integers(0, 2**32 - 1).map(IPv4Address)


@given(IPV4)
def test_wrapping_never_makes_an_address_public(address: IPv4Address) -> None:
    number = int(address)
    forms = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "NAT64": 0x64FF9B << 96 | number,
        "own NAT64": 0x64FF9B0001 << 80 | number,
        "Teredo server": 0x20010000 << 96 | number << 64,
        "Teredo client": 0x20010000 << 96 | (number ^ 0xFFFF_FFFF),
        "mapped in 6to4": 0x2002 << 112 | number << 80 | 0xFFFF << 32 | number,
    }

    public = {name for name, form in forms.items() if is_public(IPv6Address(form))}

    assert public <= ({"mapped", "6to4", "NAT64", "mapped in 6to4"} if is_public(address) else set())


@given(st.one_of(IPV4, st.integers(0, 2**128 - 1).map(IPv6Address)), st.integers(1, 65_535))
def test_what_is_dialed_is_public_encrypted_and_at_a_port_for_it(
    address: IPv4Address | IPv6Address, port: int
) -> None:
    if NOTHING_ALLOWED.why_refused(str(address), port, is_encrypted=True) is None:
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_loopback
        assert not address.is_private or address.is_global
        assert port in (80, 443) or port >= 1024
    assert NOTHING_ALLOWED.why_refused(str(address), port, is_encrypted=False) is not None


def test_public_is_the_same_for_the_text_of_an_address_and_its_number() -> None:
    for host in PUBLIC:
        assert is_public(ip_address(host))

"""Which addresses the URLs of customers may reach. Pure: no sockets, no names.

A URL of a customer makes the server connect from inside of the operator's network. So each address that is about to be
dialed is judged here, after names were resolved:

    unspecified, broadcast, multicast            refused
    own listeners, brokers, metadata, etcd       refused
    ports below 1024 but 80 and 443              refused
    in `networks`                                allowed, by http and https
    else public, and public where it leads       allowed, by https; refused with `only_networks`
    all others                                   refused

`ipaddress` calls some addresses global that lead to private ones: an IPv6 address can carry an IPv4 address (mapped,
6to4, Teredo, NAT64). Those are unwrapped, and what they carry is judged as well.

Sources: RFC 6890 and IANA's special-purpose registries; RFC 3056 (6to4); RFC 4380 (Teredo); RFC 6052 and 8215 (NAT64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

WEB_PORTS: Final = (80, 443)
PRIVILEGED_PORTS_END: Final = 1024

_BROADCAST: Final = IPv4Address("255.255.255.255")
_IPV6_UNICAST: Final = IPv6Network("2000::/3")
"""All IPv6 addresses that are given out to be reached. Unlike `is_global`, this leaves out ::/96 and fec0::/10."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SPECIAL: Final[tuple[IPNetwork, ...]] = (
    ip_network("192.88.99.0/24"),
    ip_network("2001::/23"),
    ip_network("2001:db8::/32"),
    ip_network("3fff::/20"),
)
"""Not to be reached, although `is_global` of some Python versions calls them global."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address that customers' URLs may not reach.

    Without an `address` it stands for a listener on all interfaces, or one known by name only: then the port counts at
    every address, ports 80 and 443 at private ones alone.
    """

    address: IPAddress | None
    port: int


def endpoint_of(host: str, port: int) -> Endpoint:
    """Return the endpoint that a host of the settings means: an IP address, or a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return Endpoint(None, port)
    return Endpoint(None if address.is_unspecified else _without_wrapper(address), port)


class AddressRules:
    """Judges addresses. `guarded` is asked each time: brokers come and go.

    `only_networks`: nothing else is allowed, public or not.
    """

    __slots__ = ("_guarded", "_networks", "_only_networks")

    def __init__(
        self,
        networks: Iterable[IPNetwork],
        guarded: Callable[[], Iterable[Endpoint]] = tuple,
        *,
        only_networks: bool = False,
    ) -> None:
        self._networks = tuple(networks)
        self._guarded = guarded
        self._only_networks = only_networks

    def why_refused(self, host: str, port: int, *, is_encrypted: bool) -> str | None:
        """Return why an address may not be dialed, None if it may. The text names no address: customers read it.

        `host` is an IP address as a socket takes it, perhaps with a scope: `fe80::1%eth0`.
        """
        try:
            address = _without_wrapper(ip_address(host.partition("%")[0]))
        except ValueError:
            return "it is not an IP address"
        if address.is_unspecified or address.is_multicast or address == _BROADCAST:
            return "it is an unspecified, multicast or broadcast address"
        if any(self._is_guarded(endpoint, address, port) for endpoint in self._guarded()):
            return "it belongs to this service"
        if port < PRIVILEGED_PORTS_END and port not in WEB_PORTS:
            return f"port {port} is below {PRIVILEGED_PORTS_END}, and neither 80 nor 443"
        if any(address in network for network in self._networks):
            return None
        if self._only_networks:
            return "it is in none of outbound_networks"
        if not is_public(address):
            return "it is not a public address"
        return None if is_encrypted else "plain http is allowed to the networks in outbound_networks only"

    def _is_guarded(self, endpoint: Endpoint, address: IPAddress, port: int) -> bool:
        if endpoint.port != port:
            return False
        if endpoint.address is not None:
            return endpoint.address == address
        return port not in WEB_PORTS or not is_public(address)


def is_public(address: IPAddress) -> bool:
    """Tell whether an address, and each that it carries, can be reached by everybody."""
    address = _without_wrapper(address)
    if address.is_multicast or any(address in network for network in _SPECIAL):
        return False
    if isinstance(address, IPv4Address):
        return address.is_global
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.sixtofour is not None:
        return is_public(address.sixtofour)
    # Teredo is in 2001::/23, and so refused whatever it carries.
    return address in _IPV6_UNICAST and address.is_global


def _without_wrapper(address: IPAddress) -> IPAddress:
    """Return the IPv4 address of a mapped one: the kernel dials that."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped

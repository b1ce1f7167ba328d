"""Proxies that are believed: by their addresses, and what they say of a request's client in its headers.

    X-Forwarded-For: 203.0.113.9, 192.0.2.7, 10.0.0.2        from 10.0.0.1; 10.0.0.0/24 is believed
                     written by    │             │
                     the client ◀──┘ the client  └── a proxy

The client may write the first entries at will, so the last one counts that is not a believed proxy's. All entries of
X-Forwarded-Proto must say `https`, for the same reason.

Public: `TrustedProxies` (`in`, `tell`, `client`), `NO_PROXIES`, `is_of_this_machine`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from quaymaster.net.http.message import HTTPRequest

HOPS_MAX: Final = 16
"""So many entries of X-Forwarded-For are looked at, the last ones."""
PROXIES_REMEMBERED_MAX: Final = 1_024

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """The networks of proxies that are believed."""

    def __init__(self, networks: Iterable[_Network]) -> None:
        self._networks = tuple(networks)
        self._known: dict[str, bool] = {}

    def __contains__(self, address: str) -> bool:
        """Whether the proxy of this address is believed."""
        if not self._networks:
            return False
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= PROXIES_REMEMBERED_MAX:
                self._known.clear()
            found = _parse_address(address)
            known = self._known[address] = found is not None and any(
                found in network for network in self._networks
            )
        return known

    def tell(self, request: HTTPRequest) -> None:
        """Say in a request, which a believed proxy sent, who its client is and whether that one used TLS."""
        hops: list[bytes] = []
        schemes: list[bytes] = []
        for name, value in request.headers:
            if name == b"x-forwarded-for":
                hops += value.split(b",")
            elif name == b"x-forwarded-proto":
                schemes += value.split(b",")
        request.peer = self.client(hops[-HOPS_MAX:], request.peer)
        request.is_tls = bool(schemes) and all(scheme.strip().lower() == b"https" for scheme in schemes)

    def client(self, hops: Sequence[bytes], proxy: str) -> str:
        """Return the address of the last one that is no believed proxy; where an entry is none, what came before."""
        found = proxy
        for hop in reversed(hops):
            address = _parse_address(hop.strip().decode("latin-1"))
            if address is None:
                break
            found = str(address)
            if found not in self:
                break
        return found


NO_PROXIES: Final = TrustedProxies(())


def is_of_this_machine(peer: str) -> bool:
    """Whether a client is on this machine; those of Unix sockets, which have no address, are."""
    if not peer:
        return True
    found = _parse_address(peer)
    return found is not None and found.is_loopback


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if found.version == 6 else None
    return found if mapped is None else mapped

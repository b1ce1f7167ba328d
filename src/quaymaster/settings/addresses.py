"""Addresses and networks as settings write them."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import NamedTuple

UNIX_PREFIX = "unix:"


class Address(NamedTuple):
    """A host and a TCP port to listen on; or, by `parse_endpoint`, `unix:` with a path and no port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost" or self.is_unix:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket's."""
        return self.host.startswith(UNIX_PREFIX)

    @property
    def path(self) -> str:
        """The path of a Unix socket."""
        return self.host.removeprefix(UNIX_PREFIX)

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address in `host:port`, `[v6]:port` or `:port` (all interfaces), else raise ValueError."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:9324")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not an address; put the IPv6 host in brackets, as in [::1]:9324")
    return Address(host or "0.0.0.0", int(port))  # noqa: S104 -- what an address without host means


def parse_endpoint(text: str) -> Address:
    """Return the address in what `parse_address` takes, or in `unix:PATH`; else raise ValueError."""
    return Address(text, 0) if text.startswith(UNIX_PREFIX) else parse_address(text)


def parse_addresses(text: str) -> list[Address]:
    """Return the addresses in a list separated by commas, else raise ValueError; there is at least one."""
    addresses = [parse_address(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("at least one address is needed, for example 127.0.0.1:9330")
    return addresses


def parse_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Return the networks in a list separated by commas, else raise ValueError; there may be none."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ValueError(f"{error}; write networks as 10.0.0.0/8,fd00::/8") from None


def parse_edge_listen(text: str) -> Address | Path:
    """Return the address, or the path of the Unix socket, in `host:port` or `unix:PATH`, else raise ValueError."""
    if not text.startswith(UNIX_PREFIX):
        return parse_address(text)
    path = Path(text.removeprefix(UNIX_PREFIX))
    if not path.is_absolute():
        raise ValueError(f"{text!r} names no absolute path, as in unix:/run/quaymaster/edge.sock")
    return path

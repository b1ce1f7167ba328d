"""The edge of an installation as operators describe it: one TOML file names virtual IPs, balancers and hosts.

name = "sqs.example.com"

[[balancer]]
name = "balancer-1"            each is the master of one virtual IP, and stands in for the others
address = "10.0.0.5"
interface = "eth0"
vip = "10.0.0.100"

[[host]]                       a front end with its proxy
name = "frontend-1"
address = "10.0.0.21"
zone = "a"
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

BALANCERS_MAX: Final = 8
HOSTS_MAX: Final = 250
PORT: Final = 443
HEALTH_PORT: Final = 9329
"""Where the proxy of a host shows the `/health/ready` of its front end."""
ROUTER_ID: Final = 51
ROUTER_ID_MAX: Final = 255
CONNECTIONS_MAX: Final = 20_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})+", re.IGNORECASE)


class LayoutError(ValueError):
    """The description cannot be used; the message has a line for each thing that is wrong."""


class Balancer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host of a balancer. `vip` is the virtual IP that it has while it is well; `interface` is where that is put."""

    name: str
    address: str
    interface: str
    vip: str


class EdgeHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host of a front end and its proxy. `zone` is for people: balancers use the hosts of all zones."""

    name: str
    address: str
    zone: str = "default"


class EdgeLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole edge. `name` is the one by which clients find it."""

    name: str
    balancers: list[Balancer] = msgspec.field(name="balancer")
    hosts: list[EdgeHost] = msgspec.field(name="host")
    port: int = PORT
    """Of virtual IPs and hosts."""
    health_port: int = HEALTH_PORT
    router_id: int = ROUTER_ID
    """VRRP's number of the first balancer's virtual IP; the others have the next ones."""
    connections_max: int = CONNECTIONS_MAX
    """Of each balancer."""

    def balancer(self, name: str) -> Balancer:
        """Return the balancer of a name. Raises LayoutError."""
        for balancer in self.balancers:
            if balancer.name == name:
                return balancer
        names = ", ".join(balancer.name for balancer in self.balancers)
        raise LayoutError(f"there is no balancer {name!r}; there are {names}")


def parse_layout(text: str) -> EdgeLayout:
    """Return the edge that a TOML file describes. Raises LayoutError."""
    try:
        layout = msgspec.convert(tomllib.loads(text), EdgeLayout)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise LayoutError(str(error)) from None
    if problems := list(_problems(layout)):
        raise LayoutError("\n".join(problems))
    return layout


def _problems(layout: EdgeLayout) -> Iterator[str]:
    if not _DOMAIN.fullmatch(layout.name) or len(layout.name) > 253:
        yield f"name: {layout.name!r} is not a domain name with a dot, for example sqs.example.com"
    if not 2 <= len(layout.balancers) <= BALANCERS_MAX:
        yield f"balancer: there are {len(layout.balancers)}; 2 to {BALANCERS_MAX} are needed, so that one may fail"
    if not 1 <= len(layout.hosts) <= HOSTS_MAX:
        yield f"host: there are {len(layout.hosts)}; 1 to {HOSTS_MAX} are needed"
    yield from _wrong_numbers(layout)
    for balancer in layout.balancers:
        yield from _wrong_name("balancer", balancer.name)
        if not _INTERFACE.fullmatch(balancer.interface):
            yield f"balancer {balancer.name}: {balancer.interface!r} is not a network interface, for example eth0"
    for host in layout.hosts:
        yield from _wrong_name("host", host.name)
        yield from _wrong_name(f"host {host.name}: zone", host.zone)
    yield from _twice("balancer", (balancer.name for balancer in layout.balancers))
    yield from _twice("host", (host.name for host in layout.hosts))
    yield from _wrong_addresses(layout)


def _wrong_numbers(layout: EdgeLayout) -> Iterator[str]:
    for name, port in (("port", layout.port), ("health_port", layout.health_port)):
        if not 1 <= port <= 65_535:
            yield f"{name}: {port} is not a TCP port"
    if layout.port == layout.health_port:
        yield f"health_port: {layout.port} is the port of requests already"
    router_id_max = ROUTER_ID_MAX - len(layout.balancers) + 1
    if not 1 <= layout.router_id <= router_id_max:
        yield (
            f"router_id: {layout.router_id} is not 1 to {router_id_max}; each of {len(layout.balancers)} virtual IPs "
            f"has a number up to {ROUTER_ID_MAX}"
        )
    if layout.connections_max < 1:
        yield f"connections_max: {layout.connections_max} is below 1"


def _wrong_name(where: str, name: str) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"{where}: {name!r} is not a name of letters, digits, '_', '.' and '-'"


def _twice(where: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{where}: {count} have the name {name!r}"


def _wrong_addresses(layout: EdgeLayout) -> Iterator[str]:
    places = [(f"balancer {one.name}: address", one.address) for one in layout.balancers]
    places += [(f"balancer {one.name}: vip", one.vip) for one in layout.balancers]
    places += [(f"host {one.name}: address", one.address) for one in layout.hosts]
    first: dict[str, str] = {}
    for where, text in places:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            yield f"{where}: {text!r} is not an IPv4 address, for example 10.0.0.5"
            continue
        if address.is_loopback or address.is_multicast or address.is_unspecified or address.is_reserved:
            yield f"{where}: {text} cannot be reached by other hosts"
        if text in first:
            yield f"{where}: {text} is the address of {first[text]} already"
        first.setdefault(text, where)

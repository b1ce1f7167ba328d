"""How much usage records say of the client of a data action: its network, all of it, or nothing.

Who sends and receives messages is told by the account, the key and the queue. The address and the agent are personal
data in many places, and are in every record, so by default only as much is kept as shows where use comes from. Records
of management actions are audit events, and have both in full. What is left out is left out before records are hashed.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final, Literal

ClientDetail = Literal["network", "full", "none"]

IPV4_BITS: Final = 24
IPV6_BITS: Final = 48
_PRODUCT: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")
"""RFC 9110: what the first word of a user agent is, `name/version`."""


def client_of(detail: ClientDetail, address: str, agent: str) -> tuple[str, str]:
    """Return what a record of a data action says of a client's address and agent."""
    if detail == "full":
        return address, agent
    if detail == "none":
        return "", ""
    return network_of(address), product_of(agent)


@lru_cache(maxsize=4_096)
def network_of(address: str) -> str:
    """Return the network of an address, `192.0.2.0/24` or `2001:db8:1::/48`; "" of what is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    bits = IPV4_BITS if parsed.version == 4 else IPV6_BITS
    return str(ipaddress.ip_network((parsed, bits), strict=False))


def product_of(agent: str) -> str:
    """Return the first product of a user agent, `Boto3/1.40.1`; "" where it begins with none."""
    found = _PRODUCT.match(agent)
    return "" if found is None else found[0]

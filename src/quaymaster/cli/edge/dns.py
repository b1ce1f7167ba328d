"""The file of a name server, dnsmasq: the name of the edge has an address for each virtual IP.

Clients get all of them, in turns; when one does not answer they try the next.
"""

from __future__ import annotations

from typing import Final

from quaymaster.cli.edge.layout import EdgeLayout

DNSMASQ_FILE: Final = "dnsmasq.conf"
TTL_S: Final = 30

_DNSMASQ: Final = """\
# Written by `quaymaster edge render dns`. It answers for this name only.
no-hosts
no-resolv
local=/{name}/
local-ttl={ttl_s}
{records}"""


def dnsmasq_configuration(layout: EdgeLayout) -> str:
    """Return dnsmasq's file."""
    records = "".join(f"host-record={layout.name},{balancer.vip}\n" for balancer in layout.balancers)
    return _DNSMASQ.format(name=layout.name, ttl_s=TTL_S, records=records)

"""How an operator's commands reach the processes of a cell, and where they write down what they did to it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from quaymaster.cli.failures import WrongUsage

if TYPE_CHECKING:
    from quaymaster.net.rpc import RPCClient
    from quaymaster.settings import Settings

RECOVERIES = "recoveries/"
"""Below it are the events of forced recoveries, for ever: journal, epoch, who, when, what may be lost."""


def client_of(settings: Settings, address: str, role: str) -> RPCClient:
    """Return a connection to a process of the cell, as an operator has one."""
    from quaymaster.net.rpc import RPCClient
    from quaymaster.net.tls import TransportSecurityError, security_for
    from quaymaster.protocol.rpc.frames import Hello
    from quaymaster.settings import parse_address

    try:
        place = parse_address(address)
        security = security_for(place, settings.tls_directory, force_plaintext=settings.force_plaintext)
    except (ValueError, TransportSecurityError) as error:
        raise WrongUsage(str(error)) from None
    hello = Hello(settings.cell, "operator", settings.node or socket.gethostname())
    if security is None:
        return RPCClient((place.host, place.port), hello)
    return RPCClient(
        (place.host, place.port),
        hello,
        tls=security.client_context,
        check_peer=security.check_peer(role),
    )

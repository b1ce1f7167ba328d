"""Where front ends find consoles: the one of their server behind its Unix socket, those of a cell by their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.presence import alive_key, decode_presence
from quaymaster.core.values.errors import Timeout
from quaymaster.net.routing.console_client import ConsoleClient
from quaymaster.net.rpc import RPCClient
from quaymaster.node.cell.transport import CONSOLE_ROLE, FRONT_END_ROLE, Transport
from quaymaster.node.edge.sockets import CONSOLE_SOCKET, unix_address
from quaymaster.node.node import Node
from quaymaster.settings import parse_endpoint

LOOK_S: Final = 1.0
"""So long the store is waited for; then the consoles known before are asked."""


def console_of_server(node: Node, sockets: Path) -> ConsoleClient | None:
    """Return the way to the console of this server; None where there is none. `sockets`: where its socket is."""
    if node.settings.console == "off":
        return None
    settings = node.settings.model_copy(update={"tls_directory": None})
    transport = Transport(settings, FRONT_END_ROLE, node.rpc)
    address = unix_address(sockets / CONSOLE_SOCKET)

    async def find() -> Sequence[str]:
        return (address.host,)

    def connect(_: str) -> RPCClient:
        return transport.connect((address.host, address.port), CONSOLE_ROLE)

    return _kept(node, ConsoleClient(find, connect))


def consoles_of_cell(node: Node, transport: Transport, store: Coordination) -> ConsoleClient:
    """Return the way to the consoles of a cell."""

    async def find() -> Sequence[str]:
        try:
            async with asyncio.timeout(LOOK_S):
                rows, _ = await store.list_all(alive_key(CONSOLE_ROLE))
        except TimeoutError:
            raise Timeout from None
        found = [decode_presence(row.value).address for row in rows]
        return [address for address in found if address]

    def connect(address: str) -> RPCClient:
        endpoint = parse_endpoint(address)
        return transport.connect((endpoint.host, endpoint.port), CONSOLE_ROLE)

    return _kept(node, ConsoleClient(find, connect))


def _kept(node: Node, client: ConsoleClient) -> ConsoleClient:
    node.stack.push_async_callback(client.close)
    node.metrics.add_source(client.samples)
    return client

"""The connections of a broker to the other brokers of its cell: replication messages go out, closings are told.

    journals ──envelopes──▶ PeerLinks ──notices in order──▶ the broker that the receiver lives on
                                └──closed──▶ journals, at once

Messages may get lost with a connection; replication asks again by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.values.formats import CellFormat
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import RPCClient, RPCLimits, RPCStats
from quaymaster.net.tls import TransportSecurity
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.replication_codec import REPLICATION_VERSIONS, encode_envelope

REPLICATE = "replicate"

log = logging.getLogger(__name__)


def parse_host_port(address: str) -> tuple[str, int]:
    """Return host and port of a broker's address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class PeerLinks:
    """One connection to each other broker, made when something is to be said."""

    def __init__(
        self,
        hello: Hello,
        *,
        on_closed: Callable[[str], None],
        limits: RPCLimits | None = None,
        security: TransportSecurity | None = None,
        cell_format: CellFormat | None = None,
        stats: RPCStats | None = None,
    ) -> None:
        self._stats = stats or RPCStats()
        self._cell_format = cell_format or CellFormat()
        self._hello = hello
        self._on_closed = on_closed
        self._limits = limits
        self._security = security
        self._addresses: dict[str, str] = {}
        self._clients: dict[str, RPCClient] = {}

    async def set_address(self, broker: str, address: str | None) -> None:
        """Take where a broker is now, None when it has gone; a connection to where it was is closed."""
        if self._addresses.get(broker) == address:
            return
        if address is None:
            del self._addresses[broker]
        else:
            self._addresses[broker] = address
        client = self._clients.pop(broker, None)
        if client is not None:
            await client.close()

    def send(self, journal_id: int, messages: list[Envelope]) -> None:
        """Send messages of one journal."""
        version = self._cell_format.version_of(REPLICATION_VERSIONS)
        for envelope in messages:
            client = self.client(broker_of(envelope.receiver))
            if client is not None:
                client.notify(REPLICATE, encode_envelope(journal_id, envelope, version=version))

    def client(self, broker: str) -> RPCClient | None:
        """Return the connection to a broker; None when it is not known where it is."""
        client = self._clients.get(broker)
        if client is None:
            address = self._addresses.get(broker)
            if address is None:
                return None
            client = self._clients[broker] = self.connect(
                address, on_closed=lambda reason: self._closed(broker, reason)
            )
        return client

    def connect(self, address: str, *, on_closed: Callable[[str], None] | None = None) -> RPCClient:
        """Return a connection of its own to a broker at an address; who asked for it closes it."""
        return RPCClient(
            parse_host_port(address),
            self._hello,
            limits=self._limits,
            tls=None if self._security is None else self._security.client_context,
            check_peer=None if self._security is None else self._security.check_peer("broker"),
            on_closed=on_closed,
            stats=self._stats,
        )

    async def close(self) -> None:
        """Close all connections."""
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.close()

    def _closed(self, broker: str, reason: str) -> None:
        log_event(log, logging.INFO, "peer connection closed", broker=broker, reason=reason)
        self._on_closed(broker)

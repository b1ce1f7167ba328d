"""A manager's way to one broker: what it asks, and that it hears at once when the connection ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

from quaymaster.coordination.cell_keys import BrokerRegistration
from quaymaster.core.cell.cell import BrokerReport
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.net.rpc import CheckPeer, RPCClient, RPCLimits, RPCStats
from quaymaster.protocol.rpc.broker_calls import (
    DROP,
    JOURNAL_ID,
    PREPARE,
    REPORT,
    TRANSFER,
    DropRequest,
    TransferRequest,
    decode_answer,
    decode_report,
    encode_call,
)
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.settings import parse_address

PREPARE_TIMEOUT_MS = 10_000
TRANSFER_TIMEOUT_MS = 7_000
"""A little longer than the broker tries."""
DROP_TIMEOUT_MS = 30_000


class AnswerUnreadable(NotNow):
    """A broker answers what this manager does not understand: it is of another version."""

    message = "The broker's answer cannot be read."


class BrokerLink(Protocol):
    """One broker. Every call may raise `NotNow`: `Unreachable` when nothing was sent."""

    async def report(self, timeout_ms: int) -> BrokerReport:
        """Ask how it is."""

    async def prepare(self, journal: int) -> str:
        """Let it have a replica of a journal, empty if it is new, and return the member's name."""

    async def transfer(self, journal: int, member: str) -> bool:
        """Let it hand a journal over to a member; true once it has resigned."""

    async def drop(self, journal: int, member: str, epoch: int) -> bool:
        """Let it drop a replica that the configuration of this epoch does without; false when it refuses."""

    async def close(self) -> None:
        """Let go of the connection."""


Connect = Callable[[BrokerRegistration, Callable[[], None]], BrokerLink]
"""Makes the link to a broker; the second argument is called when its connection has ended."""


class RPCBrokerLink:
    """A broker behind the RPC."""

    def __init__(self, client: RPCClient) -> None:
        self._client = client

    async def report(self, timeout_ms: int) -> BrokerReport:
        """See `BrokerLink`."""
        answer = await self._client.ask(REPORT, b"", timeout_ms)
        try:
            return decode_report(answer)
        except UNREADABLE as error:
            raise AnswerUnreadable from error

    async def prepare(self, journal: int) -> str:
        """See `BrokerLink`."""
        return (await self._client.ask(PREPARE, JOURNAL_ID.pack(journal), PREPARE_TIMEOUT_MS)).decode()

    async def transfer(self, journal: int, member: str) -> bool:
        """See `BrokerLink`."""
        body = encode_call(TransferRequest(journal, member))
        return decode_answer(await self._client.ask(TRANSFER, body, TRANSFER_TIMEOUT_MS))

    async def drop(self, journal: int, member: str, epoch: int) -> bool:
        """See `BrokerLink`."""
        body = encode_call(DropRequest(journal, member, epoch))
        return decode_answer(await self._client.ask(DROP, body, DROP_TIMEOUT_MS))

    async def close(self) -> None:
        """See `BrokerLink`."""
        await self._client.close()


def rpc_links(
    hello: Hello,
    *,
    limits: RPCLimits | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
    check_peer: CheckPeer | None = None,
    stats: RPCStats | None = None,
) -> Connect:
    """Return what connects a manager to brokers over the network.

    Another broker at a broker's address is refused: its report would say that all replicas of the first one are lost.
    """

    def connect(registration: BrokerRegistration, on_closed: Callable[[], None]) -> BrokerLink:
        address = parse_address(registration.address)

        def check(peer: Hello, transport: asyncio.BaseTransport) -> str | None:
            refusal = None if check_peer is None else check_peer(peer, transport)
            if refusal is None and peer.node != registration.name:
                refusal = f"{peer} is not the broker {registration.name}"
            return refusal

        client = RPCClient(
            (address.host, address.port),
            hello,
            limits=limits,
            on_closed=lambda reason: on_closed(),
            tls=tls,
            check_peer=check,
            stats=stats,
        )
        return RPCBrokerLink(client)

    return connect

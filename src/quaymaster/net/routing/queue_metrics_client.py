"""How processes that lead journals are asked for the metrics of their queues: all of them, each for itself.

    one process    OneLeader      asks what is in the process
    one process    OneAddress     asks another process that leads all journals, by RPC: a server without workers
    several        AllLeaders     asks each address of the LeaderTable, by RPC: a server's workers, a cell's brokers

Each leader is asked with the cursor of its own last page (`core/values/queue_metrics`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.errors import InternalFailure, Unreachable
from quaymaster.core.values.queue_metrics import (
    QueueMetricsPage,
    QueueMetricsRequest,
    decode_page,
    encode_request,
)
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import QUEUE_METRICS
from quaymaster.settings import parse_endpoint

ANSWER_MS: Final = 5_000
OWN_PROCESS: Final = "here"
"""The address of the only leader, where that is in this process."""


class QueueMetricsClient(Protocol):
    """Where metrics of queues come from."""

    def leaders(self) -> list[str]:
        """Return the addresses of the processes that may lead journals, as far as they are known now."""
        ...

    async def ask(self, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
        """Return what a leader answers; it may let its callers wait for their turn. Raises NotNow."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class OneLeader:
    """A `QueueMetricsClient` where all journals are led in this process: `ask` is what answers there."""

    def __init__(self, ask: Callable[[QueueMetricsRequest], Awaitable[QueueMetricsPage]]) -> None:
        self._ask = ask

    def leaders(self) -> list[str]:
        """See `QueueMetricsClient`."""
        return [OWN_PROCESS]

    async def ask(self, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
        """See `QueueMetricsClient`."""
        return await self._ask(request)

    async def close(self) -> None:
        """There are no connections."""


class OneAddress:
    """A `QueueMetricsClient` where all journals are led in one other process."""

    def __init__(self, client: RPCClient) -> None:
        self._client = client

    def leaders(self) -> list[str]:
        """See `QueueMetricsClient`."""
        return [self._client.address[0]]

    async def ask(self, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
        """See `QueueMetricsClient`."""
        return await _ask(self._client, leader, request)

    async def close(self) -> None:
        """See `QueueMetricsClient`."""
        await self._client.close()


class AllLeaders:
    """A `QueueMetricsClient` for several processes. `connect` makes a client for an address of a broker."""

    def __init__(self, table: LeaderTable, connect: Callable[[tuple[str, int]], RPCClient]) -> None:
        self._table = table
        self._connect = connect
        self._clients: dict[str, RPCClient] = {}

    def leaders(self) -> list[str]:
        """See `QueueMetricsClient`. Journals of one process have one address."""
        return list(dict.fromkeys(self._table.addresses))

    async def ask(self, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
        """See `QueueMetricsClient`."""
        await self._forget_others()
        client = self._clients.get(leader)
        if client is None:
            client = self._clients[leader] = self._connect(_endpoint_of(leader))
        return await _ask(client, leader, request)

    async def close(self) -> None:
        """See `QueueMetricsClient`."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for client in clients.values()))

    async def _forget_others(self) -> None:
        """Close connections to addresses that no broker has any more."""
        gone = [address for address in self._clients if not self._table.is_known(address)]
        closing = [self._clients.pop(address).close() for address in gone]
        if closing:
            await asyncio.gather(*closing)


def _endpoint_of(address: str) -> tuple[str, int]:
    try:
        return parse_endpoint(address)
    except ValueError as error:
        raise Unreachable(f"{address} is no address of a broker.") from error


async def _ask(client: RPCClient, leader: str, request: QueueMetricsRequest) -> QueueMetricsPage:
    answer = await client.ask(QUEUE_METRICS, encode_request(request), ANSWER_MS)
    try:
        return decode_page(answer)
    except UNREADABLE as error:
        raise InternalFailure(f"The broker at {leader} answers what this program cannot read.") from error

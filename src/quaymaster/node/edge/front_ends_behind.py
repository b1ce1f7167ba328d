"""Which front ends of a cell do not know of a revocation yet: each broker says how far those follow that use it.

A front end that no broker knows can serve no messages, and neither can a broker that leads no journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from quaymaster.coordination.cell_keys import BROKERS, JOURNALS, decode_configuration, decode_registration
from quaymaster.coordination.interface import Coordination, KeyValue
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import FOLLOWERS, decode_followers
from quaymaster.settings import parse_endpoint

WAIT_S: Final = 5.0
"""Brokers refuse a front end sooner that does not follow: see `broker/cell/authorization_floor`."""
ASK_MS: Final = 1_000
INTERVAL_S: Final = 0.1


class FrontEndsBehind:
    """Asks all brokers. `connect` makes a connection to a broker's address."""

    def __init__(self, store: Coordination, connect: Callable[[tuple[str, int]], RPCClient]) -> None:
        self._store = store
        self._connect = connect
        self._clients: dict[str, RPCClient] = {}

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def wait(self, revision: int) -> list[str]:
        """Return when all front ends follow a floor; the names of those that do not after WAIT_S.

        A broker that leads, and does not answer, is named, too: what front ends it knows cannot be said.
        """
        ends_s = time.monotonic() + WAIT_S
        while True:
            behind = await self._behind(revision)
            if not behind or time.monotonic() >= ends_s:
                return sorted(behind)
            await asyncio.sleep(INTERVAL_S)

    async def _behind(self, revision: int) -> set[str]:
        try:
            return await self._look(revision)
        except (NotNow, TimeoutError):
            return {"front ends that only the coordination store would tell of"}

    async def _look(self, revision: int) -> set[str]:
        brokers = [decode_registration(row.value) for row in await self._list(BROKERS)]
        for address in self._clients.keys() - {broker.address for broker in brokers}:
            client = self._clients.pop(address, None)  # a broker may have another one after each start
            if client is not None:
                await client.close()
        answers = await asyncio.gather(*(self._ask(broker.address) for broker in brokers))
        behind: set[str] = set()
        silent: list[str] = []
        for broker, followed in zip(brokers, answers, strict=True):
            if followed is None:
                silent.append(broker.name)
            else:
                behind |= {name for name, follows in followed.items() if follows < revision}
        if silent:
            leaders = {
                broker_of(decode_configuration(row.value).leader) for row in await self._list(JOURNALS)
            }
            behind |= {
                f"front ends of broker {name}, which does not answer" for name in silent if name in leaders
            }
        return behind

    async def _list(self, prefix: str) -> Sequence[KeyValue]:
        async with asyncio.timeout(ASK_MS / 1000):
            rows, _ = await self._store.list_all(prefix)
        return rows

    async def _ask(self, address: str) -> dict[str, int] | None:
        try:
            client = self._clients.get(address)
            if client is None:
                endpoint = parse_endpoint(address)
                client = self._clients[address] = self._connect((endpoint.host, endpoint.port))
            return decode_followers(await client.ask(FOLLOWERS, b"", ASK_MS))
        except (NotNow, CallerError, ValueError):
            return None

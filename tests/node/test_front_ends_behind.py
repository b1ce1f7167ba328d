"""Who does not know of a revocation yet, as all brokers tell."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    configuration_key,
    encode_configuration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import Unreachable
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.net.rpc import RPCClient
from quaymaster.node.edge import front_ends_behind
from quaymaster.node.edge.front_ends_behind import FrontEndsBehind


class FakeClient:
    """A connection to a broker that tells how far front ends follow; None: it does not answer."""

    def __init__(self, followed: dict[str, int] | None) -> None:
        self.followed = followed
        self.is_closed = False

    async def ask(self, method: str, body: bytes, deadline_ms: int, *, trace: str = "") -> bytes:
        if self.followed is None:
            raise Unreachable
        return msgspec.msgpack.encode(self.followed)

    async def close(self) -> None:
        self.is_closed = True


class Brokers:
    """Registered brokers by port, and the connections that were made to them."""

    def __init__(self) -> None:
        self.store = MemoryCoordination()
        self.followed: dict[int, dict[str, int] | None] = {}
        self.clients: dict[int, FakeClient] = {}
        self.behind = FrontEndsBehind(self.store, self.connect)

    def connect(self, address: tuple[str, int]) -> RPCClient:
        port = address[1]
        assert port not in self.clients, "a connection is kept"
        self.clients[port] = FakeClient(self.followed[port])
        return cast(RPCClient, self.clients[port])

    async def register(self, name: str, port: int, followed: dict[str, int] | None) -> None:
        self.followed[port] = followed
        row = BrokerRegistration(name, "z", f"127.0.0.1:{port}")
        await self.store.transaction([], [Put(registration_key(name), encode_registration(row))])

    async def lead(self, *names: str) -> None:
        """Have these brokers lead a journal each."""
        for number, name in enumerate(names):
            member = f"{name}@disk"
            row = encode_configuration(JournalConfiguration(1, member, (member,), (), activated=True))
            await self.store.transaction([], [Put(configuration_key(number), row)])


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends_behind, "WAIT_S", 0.05)
    monkeypatch.setattr(front_ends_behind, "INTERVAL_S", 0.01)


def test_front_ends_that_follow_less_at_any_broker_are_named_and_so_are_silent_brokers() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        await brokers.register("b1", 1, {"f1": 7, "f2": 9, "f3": 7})
        await brokers.register("b2", 2, {"f1": 6, "f2": 7})
        assert await brokers.behind.wait(6) == []
        assert await brokers.behind.wait(7) == ["f1"]
        await brokers.register("b3", 3, None)
        await brokers.lead("b1", "b2", "b3")
        assert await brokers.behind.wait(8) == [
            "f1",
            "f2",
            "f3",
            "front ends of broker b3, which does not answer",
        ]
        await brokers.behind.close()
        assert all(client.is_closed for client in brokers.clients.values())

    asyncio.run(scenario())


def test_a_broker_that_is_down_and_leads_nothing_holds_nothing_up() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        await brokers.register("b1", 1, {"f1": 7})
        await brokers.register("b2", 2, None)
        await brokers.lead("b1", "b2")
        assert await brokers.behind.wait(7) == ["front ends of broker b2, which does not answer"]

        await brokers.lead("b1", "b1")

        assert await brokers.behind.wait(7) == []
        assert await brokers.behind.wait(8) == ["f1"]

    asyncio.run(scenario())


def test_a_connection_ends_with_the_address_that_a_broker_had() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        for port in range(1, 4):
            await brokers.register("b1", port, {"f1": 7})
            assert await brokers.behind.wait(7) == []
            is_open = [number for number, client in brokers.clients.items() if not client.is_closed]
            assert is_open == [port]

    asyncio.run(scenario())

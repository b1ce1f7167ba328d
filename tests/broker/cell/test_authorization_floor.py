"""Brokers refuse front ends that do not know of the last revocation, and end their polls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from harness.skipping_loop import SkippingLoop

from quaymaster.broker.cell.authorization_floor import (
    BEHIND_MS,
    CALLERS,
    COMMAND,
    TOGETHER_MS,
    AuthorizationFloor,
)
from quaymaster.coordination.cell_keys import AUTHORIZATION_FLOOR
from quaymaster.coordination.interface import LIST_LIMIT_MAX, CoordinationUnavailable, Listing, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import CountMessages, Receive, Watch
from quaymaster.core.values.errors import NotNow
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCServer
from quaymaster.net.rpc.memory import MemoryNetwork
from quaymaster.protocol.rpc.broker_calls import (
    ENFORCED,
    FOLLOWERS,
    FOLLOWS,
    JOURNAL_ID,
    REVISION,
    decode_followers,
)
from quaymaster.protocol.rpc.command_codec import encode_command
from quaymaster.protocol.rpc.frames import Hello

ADDRESS = ("broker", 1)
DEADLINE_MS = 60_000
ASKED = JOURNAL_ID.pack(0) + encode_command(CountMessages(1))
POLLED = JOURNAL_ID.pack(0) + encode_command(Receive(1, 0, 1, wait_ms=20_000))
WATCHED = JOURNAL_ID.pack(0) + encode_command(Watch(1, 0, 20_000))
SHORT = JOURNAL_ID.pack(0) + encode_command(Receive(1, 0, 1))


class Store(MemoryCoordination):
    """A store that can be away for those who list."""

    is_away = False

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT_MAX) -> Listing:
        if self.is_away:
            raise CoordinationUnavailable("away")
        return await super().list_prefix(prefix, after=after, limit=limit)


class Broker:
    """A broker that answers commands at once, and leaves long polls parked."""

    def __init__(self) -> None:
        self.store = Store()
        self.network = MemoryNetwork()
        self.cancelled = 0
        self.floor = AuthorizationFloor(self.store, lambda: self.server.connections, retry_max_s=0.5)
        self.server = RPCServer(
            {COMMAND: self.on_command, **self.floor.handlers},
            Hello(cell="test", role="broker", node="b1"),
            callers={COMMAND: ("frontend", "metadata"), **CALLERS},
        )
        self.network.listen(ADDRESS, self.server)
        self.clients: list[RPCClient] = []

    def on_command(self, call: IncomingCall) -> None:
        self.floor.check(call)
        if call.body in (POLLED, WATCHED):
            call.on_cancel = self.on_cancel
        else:
            call.reply(b"done")

    def on_cancel(self) -> None:
        self.cancelled += 1

    async def raise_floor(self) -> int:
        return await self.store.transaction([], [Put(AUTHORIZATION_FLOOR, b"1")])

    def connect(
        self, node: str, follows: int = 0, *, role: str = "frontend", tells: bool = True
    ) -> RPCClient:
        client = RPCClient(
            ADDRESS,
            Hello(cell="test", role=role, node=node),
            connector=self.network.connector(ADDRESS),
            say_first=(lambda: (FOLLOWS, REVISION.pack(follows))) if role == "frontend" and tells else None,
        )
        self.clients.append(client)
        return client

    async def close(self) -> None:
        await self.floor.close()
        for client in self.clients:
            await client.close()


async def ask(client: RPCClient, body: bytes = ASKED) -> bytes:
    return await client.ask(COMMAND, body, DEADLINE_MS)


async def is_refused(client: RPCClient, body: bytes = ASKED) -> bool:
    try:
        await ask(client, body)
    except NotNow as error:
        return "does not know of the latest change of permissions" in str(error)
    return False


def with_broker(scenario: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        broker = Broker()
        await broker.floor.start()
        try:
            await scenario(broker)
        finally:
            await broker.close()

    loop = SkippingLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


async def pass_ms(milliseconds: int) -> None:
    await asyncio.sleep(milliseconds / 1000)


def test_a_front_end_serves_whatever_it_follows_until_something_is_revoked() -> None:
    async def scenario(broker: Broker) -> None:
        client = broker.connect("f1")
        await pass_ms(60_000)
        assert await ask(client) == b"done"

    with_broker(scenario)


def test_a_front_end_has_three_seconds_to_catch_up() -> None:
    async def scenario(broker: Broker) -> None:
        client = broker.connect("f1")
        floor = await broker.raise_floor()
        await pass_ms(BEHIND_MS - 100)
        assert await ask(client) == b"done"
        await pass_ms(200)
        assert await is_refused(client)
        assert await is_refused(client, SHORT)

        client.notify(FOLLOWS, REVISION.pack(floor))
        assert await ask(client) == b"done"

    with_broker(scenario)


@pytest.mark.parametrize("polled", [POLLED, WATCHED])
def test_the_long_polls_of_a_front_end_that_is_behind_end_and_others_stay(polled: bytes) -> None:
    async def scenario(broker: Broker) -> None:
        behind, following = broker.connect("f1"), broker.connect("f2")
        polls = [asyncio.create_task(ask(client, polled)) for client in (behind, following)]
        await pass_ms(100)
        floor = await broker.raise_floor()
        await pass_ms(100)
        following.notify(FOLLOWS, REVISION.pack(floor))
        await pass_ms(BEHIND_MS)

        assert isinstance(polls[0].exception(), NotNow)
        assert broker.cancelled == 1
        assert not polls[1].done()
        assert await is_refused(behind, polled)

    with_broker(scenario)


def test_only_connections_for_commands_are_told_of_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: Broker) -> None:
        for node, tells in (("for commands", True), ("for questions", False)):
            await broker.connect(node, tells=tells).ask(ENFORCED, b"", DEADLINE_MS)
        await broker.raise_floor()
        await pass_ms(2 * BEHIND_MS)

    with_broker(scenario)

    told = [vars(record)["fields"]["peer"] for record in caplog.records if "behind" in record.getMessage()]
    assert told == ["test/frontend/for commands"]


def test_each_connection_counts_for_itself() -> None:
    async def scenario(broker: Broker) -> None:
        floor = await broker.raise_floor()
        await pass_ms(2 * BEHIND_MS)
        resumed, successor = broker.connect("f1", floor - 1), broker.connect("f1", floor)
        assert await is_refused(resumed)
        assert await ask(successor) == b"done"

    with_broker(scenario)


def test_metadata_nodes_are_not_asked_what_they_follow() -> None:
    async def scenario(broker: Broker) -> None:
        await broker.raise_floor()
        await pass_ms(2 * BEHIND_MS)
        assert await ask(broker.connect("m1", role="metadata")) == b"done"

    with_broker(scenario)


def test_each_raise_is_enforced_at_its_own_time() -> None:
    async def scenario(broker: Broker) -> None:
        first = await broker.raise_floor()
        client = broker.connect("f1", first)
        await pass_ms(2_000)
        second = await broker.raise_floor()
        await pass_ms(2_000)
        assert await ask(client) == b"done"
        await pass_ms(1_100)
        assert await is_refused(client)
        client.notify(FOLLOWS, REVISION.pack(second))
        assert await ask(client) == b"done"

    with_broker(scenario)


def test_many_raises_at_once_take_bounded_memory_and_the_last_one_counts() -> None:
    async def scenario(broker: Broker) -> None:
        for _ in range(200):
            floor = await broker.raise_floor()
            await asyncio.sleep(0)
        await pass_ms(100)
        assert len(broker.floor._raises) <= 1 + 100 // TOGETHER_MS
        await pass_ms(BEHIND_MS)
        assert await is_refused(broker.connect("f1", floor - 1))
        assert await ask(broker.connect("f2", floor)) == b"done"

    with_broker(scenario)


def test_front_ends_have_their_time_however_often_the_floor_is_raised() -> None:
    async def scenario(broker: Broker) -> None:
        lag_ms, follows = BEHIND_MS - 2 * TOGETHER_MS, 0
        raised: deque[tuple[float, int]] = deque()
        loop = asyncio.get_running_loop()
        for _ in range(2 * BEHIND_MS // 5):
            raised.append((loop.time(), await broker.raise_floor()))
            while loop.time() - raised[0][0] > lag_ms / 1000:
                follows = raised.popleft()[1]
            await pass_ms(5)
            assert broker.floor._enforced <= follows
        assert broker.floor._enforced > 0
        assert len(broker.floor._raises) <= 2 + BEHIND_MS // TOGETHER_MS

    with_broker(scenario)


def test_front_ends_of_a_store_that_was_restored_from_before_the_first_revocation_are_served() -> None:
    async def scenario(broker: Broker) -> None:
        enforced = await broker.raise_floor()
        await pass_ms(2 * BEHIND_MS)
        assert await is_refused(broker.connect("f1"))

        await broker.raise_floor()
        await broker.store.transaction([], deletes=[AUTHORIZATION_FLOOR])
        await pass_ms(2 * BEHIND_MS)
        assert await ask(broker.connect("f2")) == b"done"

        again = await broker.raise_floor()
        await pass_ms(2 * BEHIND_MS)
        assert await is_refused(broker.connect("f3", enforced))
        assert await ask(broker.connect("f4", again)) == b"done"

    with_broker(scenario)


def test_a_restarted_broker_enforces_the_floor_that_there_is_at_once() -> None:
    async def scenario(broker: Broker) -> None:
        floor = await broker.raise_floor()
        again = AuthorizationFloor(broker.store, lambda: broker.server.connections, retry_max_s=0.5)
        await again.start()
        assert again._enforced == floor

        raised = await broker.raise_floor()
        await pass_ms(BEHIND_MS - 100)
        assert again._enforced == floor
        await pass_ms(200)
        assert again._enforced == raised
        await again.close()

    with_broker(scenario)


def test_a_start_waits_until_the_floor_was_read() -> None:
    async def scenario(broker: Broker) -> None:
        floor = await broker.raise_floor()
        broker.store.is_away = True
        again = AuthorizationFloor(broker.store, lambda: broker.server.connections, retry_max_s=0.5)
        starting = asyncio.create_task(again.start())
        await pass_ms(60_000)
        assert not starting.done()

        broker.store.is_away = False
        await starting
        assert again._enforced == floor
        await again.close()

    with_broker(scenario)


def test_who_follows_how_far_is_told_by_the_least_of_each_front_ends_connections() -> None:
    async def scenario(broker: Broker) -> None:
        clients = [broker.connect("f1", 5), broker.connect("f1", 3), broker.connect("f2", 7)]
        for client in clients:
            await ask(client)
        await ask(broker.connect("m1", role="metadata"))
        asking = broker.connect("f2", tells=False)
        assert decode_followers(await asking.ask(FOLLOWERS, b"", DEADLINE_MS)) == {"f1": 3, "f2": 7}
        await pass_ms(10)
        await broker.raise_floor()
        await pass_ms(2 * BEHIND_MS)
        assert await is_refused(asking)

    with_broker(scenario)


def test_front_ends_are_told_which_floor_is_enforced() -> None:
    async def scenario(broker: Broker) -> None:
        client = broker.connect("f1")
        assert await client.ask(ENFORCED, b"", DEADLINE_MS) == REVISION.pack(0)
        floor = await broker.raise_floor()
        await pass_ms(BEHIND_MS - 100)
        assert await client.ask(ENFORCED, b"", DEADLINE_MS) == REVISION.pack(0)
        await pass_ms(200)
        assert await client.ask(ENFORCED, b"", DEADLINE_MS) == REVISION.pack(floor)

    with_broker(scenario)


@pytest.mark.parametrize("method", [FOLLOWS, FOLLOWERS, ENFORCED])
def test_brokers_and_metadata_nodes_have_no_say_in_it(method: str) -> None:
    assert "metadata" not in CALLERS[method]
    assert "broker" not in CALLERS[method]

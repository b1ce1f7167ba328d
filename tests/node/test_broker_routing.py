"""How a process of a cell reaches its brokers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    configuration_key,
    encode_configuration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import CountMessages
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.metadata.store.authorization_floor import FollowedFloor, raised_floor
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.node.cell.broker_routing import _limits, route_to_brokers
from quaymaster.node.cell.transport import Transport
from quaymaster.settings import Settings, load_settings


@pytest.mark.parametrize(("authentication", "is_halved"), [("signed", True), ("open", False)])
def test_the_room_for_brokers_is_halved_where_there_are_several_accounts(
    authentication: str, is_halved: bool
) -> None:
    limits = _limits(Settings.model_validate({"authentication": authentication, "long_polls_max": 100}))

    for room in (limits.room(), limits.pool.room()):
        part = room.part()
        assert (part.commands_max, part.polls_max) == ((2_000, 50) if is_halved else (4_000, 100))
        assert part.bytes_max == (16 if is_halved else 32) * 1024 * 1024


async def led_from(address: str) -> MemoryCoordination:
    """Return a store by which a broker at this address leads journal 1."""
    store = MemoryCoordination()
    configuration = JournalConfiguration(1, "b", ("b",), (), activated=True)
    registration = BrokerRegistration("b", "", address)
    await store.transaction(
        [],
        [
            Put(configuration_key(1), encode_configuration(configuration)),
            Put(registration_key("b"), encode_registration(registration)),
        ],
    )
    return store


def test_what_was_judged_under_an_older_floor_and_is_unsent_when_that_moves_is_refused() -> None:
    async def scenario() -> str:
        is_connected = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            is_connected.set()
            await reader.read()  # until the caller gives up
            writer.close()

        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        store = await led_from(f"{host}:{port}")
        mirror = Mirror(store, store)
        floor = FollowedFloor(mirror)
        await mirror.start()
        async with asyncio.timeout(PATIENCE_S), server, AsyncExitStack() as stack:
            stack.push_async_callback(mirror.close)
            transport = Transport(load_settings(flags={}, environment={}), "frontend")
            router = route_to_brokers(transport, stack, store, lambda queue_id, partition: 1, floor=floor)
            answered: asyncio.Future[Outcome | Exception] = asyncio.get_running_loop().create_future()
            router.submit(CountMessages(7), answered.set_result)
            await is_connected.wait()

            await store.transaction([], raised_floor(CellFormat()))

            return str(await answered)

    assert "Permissions have changed" in asyncio.run(scenario())

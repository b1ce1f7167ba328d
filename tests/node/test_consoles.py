"""Front ends find the console of their server, and those of their cell, and ask them over real connections.

What answers is a stand-in: a server of the RPC that knows this one method.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.short_paths import short_directory

from quaymaster.coordination.presence import Presence, PresenceRow
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import NotNow, Unreachable
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.routing.console_client import KNOWN_MS
from quaymaster.net.rpc import IncomingCall, RPCMetrics, RPCServer
from quaymaster.node import consoles
from quaymaster.node.cell.transport import CONSOLE_ROLE, FRONT_END_ROLE, Transport
from quaymaster.node.consoles import console_of_server, consoles_of_cell
from quaymaster.node.edge.sockets import CONSOLE_SOCKET, unix_address
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.monitoring_calls import (
    MONITORING,
    MonitoringAnswer,
    MonitoringCall,
    decode_call,
    encode_answer,
    encode_members,
)
from quaymaster.settings import load_settings

CALL = MonitoringCall(
    *("cloudwatch", "ListMetrics", "000000000000", "arn:aws:iam::000000000000:root", "eu-test-1"),
    encode_members({}),
    "5f",
)


@asynccontextmanager
async def node_of(**flags: object) -> AsyncIterator[Any]:
    """What a front end has of its process."""
    async with AsyncExitStack() as stack:
        settings = load_settings(flags=flags, environment={})
        yield SimpleNamespace(settings=settings, stack=stack, rpc=RPCMetrics(), metrics=Metrics("0.0.0"))


@asynccontextmanager
async def console(host: str, name: str = "c1") -> AsyncIterator[tuple[str, int]]:
    """A stand-in that answers every call with its own name."""

    def answer(call: IncomingCall) -> None:
        assert decode_call(call.body) == CALL
        call.reply(encode_answer(MonitoringAnswer.of({"NextToken": name})))

    server = RPCServer({MONITORING: answer}, Hello("default", CONSOLE_ROLE, name))
    yield await server.start(host, 0)
    await server.close()


def test_the_console_of_a_server_answers_behind_its_socket() -> None:
    async def scenario(sockets: Path) -> None:
        async with node_of() as node, console(unix_address(sockets / CONSOLE_SOCKET).host):
            client = console_of_server(node, sockets)
            assert client is not None

            assert (await client.ask(CALL)).returned == {"NextToken": "c1"}
            text = await node.metrics.render_in_steps()
            assert b'quaymaster_monitoring_requests_total{code="OK",operation="ListMetrics"} 1.0' in text

    with short_directory() as directory:
        asyncio.run(scenario(directory))


def test_a_server_without_a_console_has_no_way_to_one_and_one_whose_console_is_away_does_not_reach_it() -> (
    None
):
    async def scenario(sockets: Path) -> None:
        async with node_of(console="off") as node:
            assert console_of_server(node, sockets) is None
        async with node_of() as node:
            client = console_of_server(node, sockets)
            assert client is not None
            with pytest.raises(Unreachable):
                await client.ask(CALL)

    with short_directory() as directory:
        asyncio.run(scenario(directory))


def test_consoles_of_a_cell_are_found_by_their_rows() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        async with node_of() as node, console("127.0.0.1", "c2") as (host, port):
            client = consoles_of_cell(node, Transport(node.settings, FRONT_END_ROLE, node.rpc), store)
            client._now_ms = iter(range(0, 10**9, KNOWN_MS)).__next__
            with pytest.raises(Unreachable):
                await client.ask(CALL)

            # One of an older program, whose row has no address, and one that is there.
            for name, address in (("c1", ""), ("c2", f"{host}:{port}")):
                await Presence(store, PresenceRow(CONSOLE_ROLE, name, "0.0.0", address=address)).register()
            assert (await client.ask(CALL)).returned == {"NextToken": "c2"}

    asyncio.run(scenario())


def test_a_store_that_hangs_is_waited_for_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(MemoryCoordination):
        async def list_all(self, prefix: str) -> Any:
            await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        async with node_of() as node:
            client = consoles_of_cell(node, Transport(node.settings, FRONT_END_ROLE, node.rpc), Hanging())
            with pytest.raises(NotNow):
                await client._find()

    monkeypatch.setattr(consoles, "LOOK_S", 0)
    asyncio.run(scenario())

"""Consoles of a cell: one leads, and webhooks do not reach the processes of the cell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from harness.waiting import PATIENCE_S

from quaymaster.coordination.cell_keys import BrokerRegistration, encode_registration, registration_key
from quaymaster.coordination.interface import Put
from quaymaster.coordination.presence import PresenceRow
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.node.cell.live_processes import live_processes
from quaymaster.node.console.alerts import _lead
from quaymaster.node.node import Node
from quaymaster.settings import Address


def run(scenario: Callable[[MemoryCoordination, AsyncExitStack], Awaitable[None]]) -> None:
    """Run a scenario over a store."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            await scenario(MemoryCoordination(), stack)

    asyncio.run(main())


def node_of(stack: AsyncExitStack, name: str = "console-1") -> Any:
    """Return as much of a node as is asked for."""
    node: Any = SimpleNamespace(stack=stack, settings=SimpleNamespace(node_name=name))
    node.run = partial(Node.run, node)
    return node


async def until(question: Callable[[], object]) -> None:
    """Return when the answer is truthy."""
    while not question():  # noqa: ASYNC110 -- there is no event for it
        await asyncio.sleep(0.01)


def test_addresses_of_the_cells_processes_come_and_go() -> None:
    async def scenario(store: MemoryCoordination, stack: AsyncExitStack) -> None:
        presence = PresenceRow("metadata", "metadata-1", "1", address="10.0.0.2:9340", admin="10.0.0.2:9325")
        silent = PresenceRow("manager", "manager-1", "1")
        broker = BrokerRegistration("broker-1", "a", "10.0.0.1:9330")
        rows = [Put(row.key, msgspec.msgpack.encode(row)) for row in (presence, silent)]
        await store.transaction([], [Put(registration_key("broker-1"), encode_registration(broker)), *rows])

        everywhere = {Address("10.0.0.1", 9330), Address("10.0.0.2", 9340), Address("10.0.0.2", 9325)}
        live = live_processes(node_of(stack), store)
        await until(lambda: set(live()) == everywhere)
        await store.transaction([], deletes=[presence.key])
        await until(lambda: set(live()) == {Address("10.0.0.1", 9330)})

    run(scenario)


def test_one_of_two_consoles_leads_and_the_other_one_when_it_ends() -> None:
    async def scenario(store: MemoryCoordination, stack: AsyncExitStack) -> None:
        async with AsyncExitStack() as first_stack:
            first = await _lead(node_of(first_stack, "console-1"), store)
            await until(first)
            second = await _lead(node_of(stack, "console-2"), store)
            await asyncio.sleep(0)
            assert not second()
        await until(second)
        assert not first()

    run(scenario)

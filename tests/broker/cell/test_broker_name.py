"""One process has the name of a broker: who is displaced ends, who is forgotten registers again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from broker.cell.test_broker_service import Cell, until
from quaymaster.broker.cell import broker_name
from quaymaster.broker.cell.broker_name import WHO, NameTaken
from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    decode_registration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import Put
from quaymaster.net.rpc import RPCServer
from quaymaster.protocol.rpc.frames import Hello

KEY = registration_key("b1")


@asynccontextmanager
async def cell_in(directory: Path) -> AsyncIterator[Cell]:
    cell = Cell(directory)
    try:
        yield cell
    finally:
        for name in list(cell.brokers):
            await cell.stop(name)
        await cell.coordination.close()


@asynccontextmanager
async def answering(node: str, *, knows_who: bool = True) -> AsyncIterator[str]:
    """A process that says to be a broker; gives its address."""
    handlers = {WHO: lambda call: call.reply(b"somebody else")} if knows_who else {}
    server = RPCServer(handlers, Hello(cell="test", role="broker", node=node))
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield f"{host}:{port}"
    finally:
        await server.drain(100)


async def registered(cell: Cell) -> BrokerRegistration | None:
    found = await cell.coordination.get(KEY)
    return None if found is None else decode_registration(found.value)


async def until_at(cell: Cell, address: str) -> BrokerRegistration:
    """Wait until the broker is registered at an address."""
    async with asyncio.timeout(PATIENCE_S):
        while (known := await registered(cell)) is None or known.address != address:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return known


async def put(cell: Cell, address: str, **changes: object) -> None:
    row = BrokerRegistration("b1", "zone-b1", address, **changes)  # type: ignore[arg-type]
    await cell.coordination.transaction([], [Put(KEY, encode_registration(row))])


@pytest.mark.parametrize("knows_who", [True, False])
def test_a_displaced_broker_is_not_ready_and_ends(tmp_path: Path, knows_who: bool) -> None:
    async def scenario() -> None:
        async with cell_in(tmp_path) as cell, answering("b1", knows_who=knows_who) as elsewhere:
            broker = await cell.start("b1")
            assert broker.why_not_ready() is None

            await put(cell, elsewhere)
            await until(lambda: bool(cell.stopped))

            (error,) = cell.stopped
            assert isinstance(error, NameTaken)
            assert elsewhere in str(error)
            assert elsewhere in (broker.why_not_ready() or "")
            known = await registered(cell)
            assert known is not None
            assert known.address == elsewhere

    asyncio.run(scenario())


@pytest.mark.parametrize("who", ["none", "another broker"])
def test_a_name_at_an_address_where_it_does_not_answer_is_taken_back(tmp_path: Path, who: str) -> None:
    async def scenario() -> None:
        async with cell_in(tmp_path) as cell, answering("b2") as elsewhere:
            broker = await cell.start("b1")

            await put(cell, "127.0.0.1:9" if who == "none" else elsewhere, state="draining")
            known = await until_at(cell, broker.address)
            await until(lambda: broker.why_not_ready() is None)

            assert known.state == "draining"
            assert cell.stopped == []

    asyncio.run(scenario())


def test_a_broker_that_is_registered_by_another_address_of_its_own_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cell_in(tmp_path) as cell:
            broker = await cell.start("b1")

            await put(cell, broker.address.replace("127.0.0.1", "localhost"))
            await until_at(cell, broker.address)

            assert cell.stopped == []

    asyncio.run(scenario())


def test_a_broker_that_the_store_forgot_registers_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cell_in(tmp_path) as cell:
            broker = await cell.start("b1")

            await cell.coordination.transaction([], [], [KEY])

            assert (await until_at(cell, broker.address)).state == "active"

    asyncio.run(scenario())


def test_a_drained_broker_that_was_removed_stays_out_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cell_in(tmp_path) as cell:
            broker = await cell.start("b1")
            await put(cell, broker.address, state="draining")
            await until(lambda: broker._name._is_draining)

            await cell.coordination.transaction([], [], [KEY])
            await until(lambda: "was removed from the cell" in (broker.why_not_ready() or ""))

            assert await registered(cell) is None
            assert cell.stopped == []

    asyncio.run(scenario())


def test_a_second_broker_of_a_name_does_not_start_while_the_first_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_name, "WAIT_S", 0.0)

    async def scenario() -> None:
        async with cell_in(tmp_path / "one") as cell:
            first = await cell.start("b1")
            cell.directory = tmp_path / "two"

            with pytest.raises(NameTaken, match=first.address):
                await cell.start("b1")

            known = await registered(cell)
            assert known is not None
            assert known.address == first.address
            assert first.why_not_ready() is None

    asyncio.run(scenario())


def test_a_start_waits_for_the_process_before_it_to_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cell_in(tmp_path / "one") as cell:
            first = await cell.start("b1")
            await cell.clients.pop("b1").close()
            await cell.managers.pop("b1").close()
            del cell.brokers["b1"]
            cell.directory = tmp_path / "two"
            starting = asyncio.create_task(cell.start("b1"))
            await asyncio.sleep(0.05)
            assert not starting.done()

            await first.close()
            second = await starting

            known = await registered(cell)
            assert known is not None
            assert known.address == second.address != first.address

    asyncio.run(scenario())

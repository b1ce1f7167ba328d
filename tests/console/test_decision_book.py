"""What a console keeps of the managers' decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from console.monitored import until
from quaymaster.console.decision_book import FILE, DecisionBook
from quaymaster.console.site import CellDecision
from quaymaster.core.cell import decisions
from quaymaster.core.cell.decisions import DecisionTaken, ManagerDecisions
from quaymaster.core.values.errors import Overloaded
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCServer
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.manager_calls import CALLERS, DECISIONS, encode_decisions

APPOINTED = DecisionTaken(5, decisions.CellDecision("Appoint", 3, None, "b1", 7, "b2 is gone"), "done")
SHOWN = CellDecision(5, "Appoint of journal 3: leader b1, epoch 7", "b2 is gone")


class Manager:
    """A manager that tells what tests set; None: it has too much to do."""

    def __init__(self) -> None:
        self.told: bytes | None = encode_decisions(ManagerDecisions("m1", (APPOINTED,)))
        self.address = ""
        self.asked = 0

    def on_call(self, call: IncomingCall) -> None:
        self.asked += 1
        if self.told is None:
            call.fail(Overloaded("later"))
        else:
            call.reply(self.told)


@asynccontextmanager
async def booked(directory: Path) -> AsyncIterator[tuple[Manager, DecisionBook]]:
    manager = Manager()
    async with AsyncExitStack() as stack:
        server = RPCServer({DECISIONS: manager.on_call}, Hello("c", "manager", "m1"), callers=CALLERS)
        host, port = await server.start("127.0.0.1", 0)
        stack.push_async_callback(server.close)
        manager.address = f"{host}:{port}"
        book = DecisionBook(
            directory,
            lambda: [manager.address] if manager.address else [],
            lambda address: RPCClient(address, Hello("c", "console", "c1")),
        )
        stack.push_async_callback(book.close)
        yield manager, book


def test_console_that_is_started_again_knows_what_managers_decided_before_they_were(tmp_path: Path) -> None:
    async def run() -> None:
        async with booked(tmp_path) as (manager, book):
            await book.look()
            assert book.decisions() == [SHOWN]
            manager.told = encode_decisions(ManagerDecisions("m1", ()))
            await book.look()
            assert book.decisions() == [SHOWN]
        async with booked(tmp_path) as (manager, book):
            manager.told = None
            running = asyncio.create_task(book.run())
            await until(lambda: manager.asked)
            assert book.decisions() == [SHOWN]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_manager_that_is_gone_or_says_nonsense_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with booked(tmp_path) as (manager, book):
            for told in (b"nonsense", None):
                manager.told = told
                await book.look()
            manager.address = "no address"
            await book.look()
            manager.address = ""
            await book.look()
            assert book.decisions() == []
            assert not (tmp_path / FILE).exists()

    asyncio.run(run())


@pytest.mark.parametrize("text", ["nonsense", '{"format": 2, "decisions": []}'])
def test_file_that_is_damaged_or_of_another_program_is_written_over(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)

    async def run() -> None:
        async with booked(tmp_path) as (_, book):
            running = asyncio.create_task(book.run())
            await until(book.decisions)
            await until(lambda: "Appoint" in (tmp_path / FILE).read_text())
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_decisions_that_cannot_be_written_are_shown_all_the_same_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with booked(tmp_path / "gone") as (manager, book):
            with caplog.at_level("WARNING"):
                await book.look()
                manager.told = encode_decisions(ManagerDecisions("m1", (APPOINTED, APPOINTED)))
                await book.look()
            assert len(book.decisions()) == 2

    asyncio.run(run())

    assert [record.message for record in caplog.records] == ["decisions not written"]

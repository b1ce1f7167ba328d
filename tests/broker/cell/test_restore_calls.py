"""Journals of a backup, given to a broker of a new cell by an operator: whole, or nothing of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from harness.broker_support import BrokerTester, define, message, running

from broker.cell.test_broker_service import JOURNAL, Cell, here, until
from quaymaster.broker.cell.restore_calls import (
    RESTORE_BEGIN,
    RESTORE_END,
    RESTORE_WRITE,
    RestoredPiece,
    RestoreOffer,
    encode_call,
)
from quaymaster.broker.copies.snapshot_install import CopiedFile, CopyManifest, CopySource
from quaymaster.coordination.cell_keys import configuration_key, encode_configuration
from quaymaster.core.cell.restored_cell import restored_configuration
from quaymaster.core.values.commands.messages import Receive, ReceiveOutcome
from quaymaster.core.values.errors import AccessDenied, InternalFailure
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

TIMEOUT_MS = 10_000
Files = dict[str, bytes]


async def a_copy(directory: Path) -> tuple[CopyManifest, Files]:
    """Return a journal of a server with two messages, as a backup has it."""
    async with running(directory, journal_id=JOURNAL) as tester:
        await filled(tester)
        source = CopySource(tester.broker, directory / str(JOURNAL), reader="backup", idle_s=None)
        manifest = await source.begin()
        files = {file.name: (await source.read(file.name, 0))[: file.size] for file in manifest.files}
        await source.end()
    return manifest, files


async def filled(tester: BrokerTester) -> None:
    await tester.set_queue(here(define(1)))
    await tester.send(1, message(1), message(2))


async def given(client: RPCClient, manifest: CopyManifest, files: Files) -> str:
    await client.ask(RESTORE_BEGIN, encode_call(RestoreOffer(JOURNAL, manifest)), TIMEOUT_MS)
    for name, data in files.items():
        for position in range(0, len(data), 1_000):
            piece = RestoredPiece(JOURNAL, name, position, data[position : position + 1_000])
            await client.ask(RESTORE_WRITE, encode_call(piece), TIMEOUT_MS)
    return (await client.ask(RESTORE_END, JOURNAL_ID.pack(JOURNAL), TIMEOUT_MS)).decode()


def told(tmp_path: Path, story: Callable[[Cell, RPCClient, CopyManifest, Files], Awaitable[None]]) -> None:
    """Tell a story of a broker of a new cell, an operator's connection to it, and a copy."""

    async def tell() -> None:
        manifest, files = await a_copy(tmp_path / "server")
        cell = Cell(tmp_path / "cell")
        await cell.start("z")
        operator = cell.client("z", "operator")
        try:
            await story(cell, operator, manifest, files)
            assert cell.stopped == []
        finally:
            await operator.close()
            await cell.stop("z")

    asyncio.run(tell())


def test_broker_that_was_given_a_journal_leads_it_in_a_later_epoch(tmp_path: Path) -> None:
    async def story(cell: Cell, operator: RPCClient, manifest: CopyManifest, files: Files) -> None:
        member = await given(operator, manifest, files)
        restored = cell.brokers["z"].journals[JOURNAL].files.state
        assert restored.promised_epoch == manifest.epoch
        assert member == f"z@{restored.storage_id.hex()}"
        with pytest.raises(InternalFailure, match="has a replica of journal 7 already"):
            await given(operator, manifest, files)
        configuration = restored_configuration(member, led_epoch=manifest.epoch, known=None)
        await cell.coordination.compare_and_swap(
            configuration_key(JOURNAL), 0, encode_configuration(configuration)
        )
        await cell.led_by("z")

        outcome = await cell.ask("z", Receive(1, 0, 10))

        assert isinstance(outcome, ReceiveOutcome)
        assert len(outcome.deliveries) == 2
        assert outcome.epoch == manifest.epoch + 1

    told(tmp_path, story)


def test_journal_that_the_cell_has_is_not_taken(tmp_path: Path) -> None:
    async def story(cell: Cell, operator: RPCClient, manifest: CopyManifest, files: Files) -> None:
        configuration = restored_configuration("y@1", led_epoch=1, known=None)
        await cell.coordination.compare_and_swap(
            configuration_key(JOURNAL), 0, encode_configuration(configuration)
        )
        await until(lambda: JOURNAL in cell.brokers["z"].configurations)

        with pytest.raises(InternalFailure, match="This cell has a journal 7 already"):
            await given(operator, manifest, files)
        assert not cell.brokers["z"].journals

    told(tmp_path, story)


def test_nothing_is_left_of_a_journal_that_is_damaged_or_not_whole(tmp_path: Path) -> None:
    async def story(cell: Cell, operator: RPCClient, manifest: CopyManifest, files: Files) -> None:
        (segment,) = [name for name in files if name.endswith(".seg")]
        data = files[segment]
        flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        for broken in (files | {segment: flipped}, files | {segment: data[:-100]}):
            with pytest.raises(InternalFailure, match="The copy is damaged"):
                await given(operator, manifest, broken)
            with pytest.raises(InternalFailure, match="not being restored here"):
                await operator.ask(RESTORE_END, JOURNAL_ID.pack(JOURNAL), TIMEOUT_MS)
            assert os.listdir(tmp_path / "cell" / "z") == []

        await given(operator, manifest, files)

    told(tmp_path, story)


def test_nothing_is_written_outside_the_copy(tmp_path: Path) -> None:
    async def story(cell: Cell, operator: RPCClient, manifest: CopyManifest, files: Files) -> None:
        for name in ("../escaped", "/tmp/escaped"):
            outside = msgspec.structs.replace(manifest, files=[CopiedFile(name, 1)])
            with pytest.raises(InternalFailure, match="outside its directory"):
                await given(operator, outside, {name: b"x"})
        await operator.ask(RESTORE_BEGIN, encode_call(RestoreOffer(JOURNAL, manifest)), TIMEOUT_MS)
        (segment,) = [name for name in files if name.endswith(".seg")]
        for name, position in (("../escaped", 0), (segment, len(files[segment]))):
            piece = RestoredPiece(JOURNAL, name, position, b"x")
            with pytest.raises(InternalFailure, match="has no bytes"):
                await operator.ask(RESTORE_WRITE, encode_call(piece), TIMEOUT_MS)
        assert not (tmp_path / "cell" / "escaped").exists()

    told(tmp_path, story)


@pytest.mark.parametrize("role", ["frontend", "metadata", "broker", "manager"])
def test_only_operators_give_journals(tmp_path: Path, role: str) -> None:
    async def story(cell: Cell, operator: RPCClient, manifest: CopyManifest, files: Files) -> None:
        other = cell.client("z", role)
        with pytest.raises(AccessDenied):
            await given(other, manifest, files)
        await other.close()

    told(tmp_path, story)

"""A backup of a broker that serves: one moment of the journal, metadata of a later one, nothing that is damaged."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Literal

import msgspec
import pytest
from crc32c import crc32c
from harness.broker_support import BrokerTester, define, message, numbers, running

from quaymaster.broker.copies.backup import (
    BACKUP_FORMAT,
    MANIFEST_NAME,
    BackedUpFile,
    BackupManifest,
    BackupUnusable,
    OwnJournalCut,
    ServerCut,
    backup,
    read_manifest,
    restore,
)
from quaymaster.broker.copies.snapshot_install import CopySource
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.broker.storage.journal_state import read_state, write_state
from quaymaster.broker.storage.segments import DATA_AT, segment_name
from quaymaster.core.values.errors import InternalFailure


def write(path: Path) -> None:
    path.write_bytes(b"metadata")


def manifest_of(*files: BackedUpFile, kind: Literal["server", "cell"] = "server", cell: str = "") -> bytes:
    manifest = BackupManifest(
        backup_format=BACKUP_FORMAT, created_ms=0, files=list(files), kind=kind, cell=cell
    )
    return msgspec.json.encode(msgspec.structs.replace(manifest, crc32c=manifest.checksum()))


def told_nothing(done: int, total: int) -> None:
    pass


async def backed_up(tester: BrokerTester, data: Path, to: Path) -> None:
    (data / "format").write_text("1\n")

    async def copy_metadata(path: Path) -> None:
        write(path)

    await backup(
        ServerCut({0: OwnJournalCut(tester.broker, data / "journals")}, copy_metadata, data), to, told_nothing
    )


async def received_from(data: Path) -> list[int]:
    async with running(data / "journals") as tester:
        return numbers(await tester.receive(1))


def test_metadata_is_of_a_moment_after_the_end_of_the_journal(tmp_path: Path) -> None:
    async def story() -> None:
        data, to = tmp_path / "data", tmp_path / "copy"
        async with running(data / "journals") as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            (data / "format").write_text("1\n")

            async def copy_metadata(path: Path) -> None:
                await tester.send(1, message(2))
                write(path)

            await backup(
                ServerCut({0: OwnJournalCut(tester.broker, data / "journals")}, copy_metadata, data),
                to,
                told_nothing,
            )
        restore(to, tmp_path / "new")

        assert await received_from(tmp_path / "new") == [1]

    asyncio.run(story())


def test_backup_of_format_1_is_restored(tmp_path: Path) -> None:
    """Its journal has a state file, whose identity its segments carry; its manifest says nothing of journals."""

    async def story() -> None:
        data, to = tmp_path / "data", tmp_path / "copy"
        async with running(data / "journals") as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
            await backed_up(tester, data, to)
            state = tester.broker.files.state
        end = read_manifest(to).journals["0"].end
        journal = to / "journals" / "0"
        write_state(RealDisk(), str(journal), replace(state, durable_floor=end))
        manifest = json.loads((to / MANIFEST_NAME).read_text())
        old = {
            "backup_format": 1,
            "created_ms": manifest["created_ms"],
            "snapshot_offset": 0,
            "end_offset": end,
            "files": manifest["files"],
        }
        state_bytes = (journal / "journal.state").read_bytes()
        added = {"path": "journals/0/journal.state", "bytes": len(state_bytes), "crc32c": crc32c(state_bytes)}
        old["files"].append(added)
        (to / MANIFEST_NAME).write_text(json.dumps(old))

        restore(to, tmp_path / "new")

        restored = read_state(RealDisk(), str(tmp_path / "new" / "journals" / "0"))
        assert restored.storage_id != state.storage_id
        assert await received_from(tmp_path / "new") == [1, 2]

    asyncio.run(story())


def test_journal_that_is_damaged_is_not_backed_up(tmp_path: Path) -> None:
    async def story() -> None:
        data, to = tmp_path / "data", tmp_path / "copy"
        async with running(data / "journals") as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
            with (data / "journals" / "0" / segment_name(0)).open("r+b") as file:
                file.seek(DATA_AT + 200)
                file.write(b"\xff\xff\xff\xff")

            with pytest.raises(InternalFailure, match="damaged"):
                await backed_up(tester, data, to)

        assert not to.exists()

    asyncio.run(story())


def test_nothing_is_left_of_a_backup_that_fails_and_snapshots_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        data, to = tmp_path / "data", tmp_path / "copy"
        async with running(data / "journals") as tester:

            async def copy_metadata(path: Path) -> None:
                raise OSError("no room")

            with pytest.raises(OSError, match="no room"):
                await backup(
                    ServerCut({0: OwnJournalCut(tester.broker, data / "journals")}, copy_metadata, data),
                    to,
                    told_nothing,
                )
            async with tester.broker.snapshots.held():
                pass

        assert not to.exists()

    asyncio.run(story())


def test_copy_that_a_backup_reads_lasts_until_it_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "journals") as tester:
            source = CopySource(tester.broker, tmp_path / "journals" / "0", reader="backup", idle_s=None)
            await source.begin()
            assert source._timer is None
            await source.end()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"backup_format": 2}', "is damaged"),
        (b'{"backup_format": 3}', f"reads formats 1 to {BACKUP_FORMAT}"),
        (b'{"backup_format": 2, "created_ms": 0, "files": []}', "its checksum is not that of its contents"),
        (manifest_of(BackedUpFile("../x", 0, 0)), "outside the backup"),
        (manifest_of(kind="cell", cell="eu1"), "of the cell 'eu1'"),
        (manifest_of(BackedUpFile("format", 1, 0)), "format is missing"),
    ],
)
def test_what_is_no_backup_of_a_server_is_refused_and_leaves_nothing(
    tmp_path: Path, text: bytes, why: str
) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(text)

    with pytest.raises(BackupUnusable, match=why):
        restore(tmp_path, tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_a_damaged_manifest_is_refused_in_a_sentence_or_harmless(tmp_path: Path) -> None:
    """Whichever byte of it changed: it says what it said, or a command tells its error. White space may change."""

    async def make(to: Path) -> None:
        data = tmp_path / "data"
        async with running(data / "journals") as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            await backed_up(tester, data, to)

    to = tmp_path / "copy"
    asyncio.run(make(to))
    path = to / MANIFEST_NAME
    right = read_manifest(to)
    whole = path.read_bytes()
    random = Random(1)
    damaged = [whole[:size] for size in range(0, len(whole), 200)]
    for at in random.sample(range(len(whole)), 250):
        byte = random.choice((whole[at] ^ 1 << random.randrange(8), *b'0-9"/.\\{[n\0\xff'))
        damaged.append(whole[:at] + bytes([byte]) + whole[at + 1 :])
    damaged += [
        b"null",
        b"[]",
        b"1",
        b'{"backup_format": []}',
        b'{"backup_format": "2"}',
        b"\xef\xbb\xbf" + whole,
    ]

    for number, text in enumerate(damaged):
        path.write_bytes(text)
        target = tmp_path / "new" / str(number)
        try:
            said = restore(to, target)
        except (BackupUnusable, OSError):
            assert not target.exists()
        else:
            assert said == right, text
            shutil.rmtree(target)

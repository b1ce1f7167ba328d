"""How far a server's journal was durable is noted in its store: a journal that lost its end is refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.broker_support import define, message, options, running
from harness.waiting import PATIENCE_S

from quaymaster.broker import floor_note
from quaymaster.broker.floor_note import FloorNote, read_floor
from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.storage.journal_state import JournalWentBack
from quaymaster.broker.storage.segments import segment_name
from quaymaster.coordination.cell_keys import JOURNAL_FLOORS, configuration_key
from quaymaster.coordination.interface import Compare, CoordinationUnavailable, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import CountMessages


async def noted(store: MemoryCoordination, at_least: int) -> int:
    """Return the floor of journal 0 once it is this high."""
    async with asyncio.timeout(PATIENCE_S):
        async for _ in store.watch(JOURNAL_FLOORS, 0):
            if (floor := await read_floor(store, 0)) >= at_least:
                return floor
    raise AssertionError("a watch has no end")


def flip_bit_at_end(directory: Path) -> None:
    """Damage the last batch, as a disk may."""
    path = directory / "0" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) - 40] ^= 4
    path.write_bytes(data)


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".tmp")
    return {str(path): path.read_bytes() for path in files}


def test_a_last_batch_that_was_acknowledged_and_is_damaged_is_no_torn_write(tmp_path: Path) -> None:
    async def story() -> None:
        store = MemoryCoordination()
        async with running(tmp_path / "data", coordination=store) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
            await tester.send(1, message(3))
            floor = tester.broker.files.durable_floor
            assert await noted(store, floor) == floor
            shutil.copytree(tmp_path / "data", tmp_path / "killed")
        flip_bit_at_end(tmp_path / "killed")
        before = contents(tmp_path / "killed")

        refusals = []  # what was raised keeps everything alive that it passed: the directory is free nevertheless
        for _ in range(2):
            broker = LoneLeader(options(tmp_path / "killed"), store, on_stopped=lambda error: None)
            with pytest.raises(
                JournalWentBack, match=r"were durable but cannot be read .*force-start"
            ) as refused:
                await broker.start()
            refusals.append(refused.value)
        assert contents(tmp_path / "killed") == before

        decided = LoneLeader(
            options(tmp_path / "killed"), store, on_stopped=lambda error: None, takes_any_journal=True
        )
        await decided.start()
        await decided.close()
        async with running(tmp_path / "killed", coordination=store) as tester:
            counts = await tester.ask(CountMessages(1))
            assert counts.visible == 2

    asyncio.run(story())


def test_a_journal_that_was_decided_for_is_taken_by_the_start_after_a_kill_too(tmp_path: Path) -> None:
    async def story() -> None:
        store = MemoryCoordination()
        async with running(tmp_path / "data", coordination=store) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
        assert await read_floor(store, 0) > 1

        (tmp_path / "data").rename(tmp_path / "gone")
        decided = LoneLeader(
            options(tmp_path / "data"), store, on_stopped=lambda error: None, takes_any_journal=True
        )
        await decided.start()
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
        rows, _ = await store.list_all("")
        await decided.close()

        at_the_kill = MemoryCoordination()
        await at_the_kill.transaction([], [Put(row.key, row.value) for row in rows])
        async with running(tmp_path / "killed", coordination=at_the_kill) as tester:
            await tester.set_queue(define(1))

    asyncio.run(story())


def test_an_older_copy_of_the_same_epoch_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        store = MemoryCoordination()
        async with running(tmp_path / "data", coordination=store) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1))
            shutil.copytree(tmp_path / "data", tmp_path / "older")
            await tester.send(1, message(2))

        with pytest.raises(JournalWentBack, match="an older copy was put back"):
            await LoneLeader(options(tmp_path / "older"), store, on_stopped=lambda error: None).start()

        async with running(tmp_path / "data", coordination=store) as tester:
            assert (await tester.ask(CountMessages(1))).visible == 2

    asyncio.run(story())


def test_a_journal_that_is_never_idle_is_noted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor_note, "LOOK_S", 0.001)
    monkeypatch.setattr(floor_note, "BUSY_S", 0.01)

    async def story() -> None:
        store = MemoryCoordination()
        floor = iter(range(1, 1_000_000))
        task = asyncio.create_task(FloorNote(store, 0, lambda: next(floor)).run())
        first = await noted(store, 1)
        await noted(store, first + 1)
        task.cancel()

    asyncio.run(story())


def test_a_store_that_fails_is_asked_again_and_keeps_no_process_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(floor_note, "LOOK_S", 0.001)
    monkeypatch.setattr(floor_note, "LAST_S", 0.01)

    class Store(MemoryCoordination):
        failures = 3
        hangs = False

        async def transaction(
            self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
        ) -> int:
            if self.hangs:
                await asyncio.Event().wait()
            if self.failures:
                self.failures -= 1
                raise CoordinationUnavailable
            return await super().transaction(compares, puts, deletes)

    async def story() -> None:
        store = Store()
        floor = 7
        note = FloorNote(store, 0, lambda: floor)
        task = asyncio.create_task(note.run())
        assert await noted(store, 7) == 7
        task.cancel()
        store.hangs, floor = True, 8
        await note.write_last()
        assert await read_floor(store, 0) == 7
        store.hangs = False
        await note.write_last()
        assert await read_floor(store, 0) == 8

    asyncio.run(story())


def test_metadata_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        store, older = MemoryCoordination(), MemoryCoordination()
        async with running(tmp_path, coordination=store):
            row = await store.get(configuration_key(0))
        assert row is not None
        await older.transaction([], [Put(row.key, row.value)])
        async with running(tmp_path, coordination=store):
            pass

        with pytest.raises(JournalWentBack, match="The metadata is an older copy: it knows epoch 1"):
            await LoneLeader(options(tmp_path), older, on_stopped=lambda error: None).start()

    asyncio.run(story())

"""Replicas that are exchanged for a copy: they are there all the time, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from broker.cell.test_broker_service import JOURNAL, Cell, run, until
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.core.values.errors import NotLeader


def test_replica_that_is_closed_for_an_exchange_is_not_taken_for_lost(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        broker = cell.brokers["c"]
        member = broker.journals[JOURNAL].member
        begun, may_end = threading.Event(), threading.Event()

        def exchange(_: JournalService) -> str:
            begun.set()
            assert may_end.wait(PATIENCE_S)
            return "done"

        exchanging = asyncio.create_task(broker.broker.exchange(JOURNAL, exchange))
        await until(begun.is_set)
        seen = broker.report().replicas[JOURNAL]
        assert (seen.member, seen.is_ready) == (member, False)
        may_end.set()

        assert await exchanging == "done"
        assert broker.report().replicas[JOURNAL].is_ready
        await cell.send("a", 1, 5)
        await cell.same("a", "c")

    run(tmp_path, story)


def test_replica_that_is_opened_anew_leaves_its_part_of_the_memory_to_others(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        await cell.send("a", 1, 20)
        await cell.same("a", "c")
        broker = cell.brokers["c"]
        memory = broker.broker._memory
        assert memory.bodies.used == broker.journals[JOURNAL].host.bodies.size_bytes > 0

        await broker.broker.exchange(JOURNAL, lambda _: None)

        host = broker.journals[JOURNAL].host
        assert memory.bodies.used == host.bodies.size_bytes
        assert memory.tails.used == host.replica.log.tail.size_bytes

    run(tmp_path, story)


def test_exchange_is_finished_though_the_broker_ends(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        broker = cell.brokers["c"]
        before = broker.journals[JOURNAL]
        begun, may_end = threading.Event(), threading.Event()

        def exchange(_: JournalService) -> None:
            begun.set()
            assert may_end.wait(PATIENCE_S)

        exchanging = asyncio.create_task(broker.broker.exchange(JOURNAL, exchange))
        await until(begun.is_set)
        exchanging.cancel()
        await asyncio.sleep(0)
        assert not exchanging.done()
        may_end.set()

        with pytest.raises(asyncio.CancelledError):
            await exchanging
        assert broker.journals[JOURNAL] is not before
        assert broker.journals[JOURNAL].member == before.member

    run(tmp_path, story)


def test_what_cannot_be_opened_after_an_exchange_is_put_aside_and_reported_as_lost(tmp_path: Path) -> None:
    async def story(cell: Cell) -> list[str]:
        await cell.send("a", 1, 20)
        await cell.same("a", "b", "c")
        broker = cell.brokers["c"]

        def damage(journal: JournalService) -> None:
            segment = tmp_path / "c" / str(JOURNAL) / f"{0:020d}.seg"
            data = bytearray(segment.read_bytes())
            data[20] ^= 0xFF
            segment.write_bytes(data)

        await broker.broker.exchange(JOURNAL, damage)

        assert broker.report().replicas == {}
        with pytest.raises(NotLeader):
            await broker.broker.exchange(JOURNAL, damage)
        return [path.name for path in (tmp_path / "c").iterdir() if ".damaged-" in path.name]

    assert len(run(tmp_path, story)) == 1

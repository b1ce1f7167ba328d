"""Brokers of a cell whose disks are full: they stay, promise and answer, and come back by themselves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import SMALL_LIMITS, message, number_of
from harness.full_disk import FullDisk

from broker.cell.test_broker_service import JOURNAL, Cell, cell_of, until
from quaymaster.broker.replica import replica
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.values.commands.messages import Delete, Receipt, Receive, ReceiveOutcome, Send
from quaymaster.core.values.errors import DiskFull

LIMITS = replace(SMALL_LIMITS, reserve_segments=2)
FILLING = b"f" * 3_000


def run(directory: Path, story: Callable[[Cell, dict[str, FullDisk]], Coroutine[Any, Any, Any]]) -> Any:
    """Tell a story of a cell of three whose disks can be filled; no broker ends by itself."""
    disks = {name: FullDisk() for name in ("a", "b", "c")}

    async def told() -> Any:
        async with cell_of(directory, "a", "b", "c", disks=disks, limits=LIMITS) as cell:
            result = await story(cell, disks)
            assert cell.stopped == []
            return result

    return asyncio.run(told())


def held(cell: Cell, name: str) -> JournalService:
    return cell.brokers[name].journals[JOURNAL]


async def send(cell: Cell, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await cell.ask("a", Send(1, 0, [message(number, filling=FILLING)]))


async def send_until(cell: Cell, first: int, condition: Callable[[], bool]) -> int:
    """Send until something is so; return the number of the last message."""
    number = first - 1
    while not condition():
        number += 1
        await send(cell, number, number)
        await asyncio.sleep(0.05)
    return number


def test_a_full_follower_takes_no_more_and_has_everything_when_there_is_room(tmp_path: Path) -> None:
    async def story(cell: Cell, disks: dict[str, FullDisk]) -> None:
        disks["c"].is_full = True
        last = await send_until(cell, 1, lambda: held(cell, "c").files.room is DiskPressure.RESERVE)
        kept = cell.end_of("c")

        await send(cell, last + 1, last + 10)

        report = cell.brokers["c"].report()
        assert (report.has_space, report.is_disk_low) == (False, True)
        assert cell.end_of("c") <= kept + 2
        assert held(cell, "c").files.space.reserve_bytes > 0
        assert cell.brokers["a"].report().has_space
        disks["c"].is_full = False
        await cell.same("a", "b", "c")
        await until(lambda: cell.brokers["c"].report().has_space)
        assert await cell.received("a") == set(range(1, last + 11))

    run(tmp_path, story)


def test_sends_are_refused_at_once_while_most_followers_are_full_and_deletes_go_on(tmp_path: Path) -> None:
    async def story(cell: Cell, disks: dict[str, FullDisk]) -> None:
        await send(cell, 1, 5)
        disks["b"].is_full = disks["c"].is_full = True
        leader = held(cell, "a").host.replica.log

        with pytest.raises(DiskFull, match="most replicas"):
            await send_until(cell, 6, lambda: False)

        assert leader.has_lease
        outcome = await cell.ask("a", Receive(1, 0, 10))
        assert isinstance(outcome, ReceiveOutcome)
        receipts = [Receipt(one.sequence, outcome.epoch, one.delivery_count) for one in outcome.deliveries]
        assert len(receipts) >= 5
        await cell.ask("a", Delete(1, 0, receipts))
        disks["b"].is_full = False
        await until(lambda: leader.majority_has_room)
        await send(cell, 100, 101)
        disks["c"].is_full = False
        await until(lambda: all(JOURNAL in cell.brokers[name].journals for name in ("b", "c")))
        await cell.same("a", "b", "c")

    run(tmp_path, story)


def test_a_full_follower_votes_for_a_new_leader(tmp_path: Path) -> None:
    async def story(cell: Cell, disks: dict[str, FullDisk]) -> set[int]:
        disks["c"].is_full = True
        await send_until(cell, 1, lambda: held(cell, "c").files.room is DiskPressure.RESERVE)
        await cell.stop("a")

        await cell.appoint("b")
        await cell.led_by("b")

        outcome = await cell.ask("b", Receive(1, 0, 10))
        assert isinstance(outcome, ReceiveOutcome)
        return {number_of(one.flags, one.payload)[0] for one in outcome.deliveries}

    assert run(tmp_path, story) >= {1, 2}


def test_a_follower_that_cannot_write_what_it_took_lets_go_of_it_and_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "HELD_BACK_MAX_S", 0.3)

    async def story(cell: Cell, disks: dict[str, FullDisk]) -> None:
        files = held(cell, "c").files
        monkeypatch.setattr(
            type(files), "room", DiskPressure.PLENTY
        )  # so that it takes more than it has room for
        disks["c"].is_full = True
        await send_until(cell, 1, lambda: held(cell, "c").host.writer.held_back_s > 0)
        await until(lambda: JOURNAL in cell.brokers["c"].journals and held(cell, "c").files is not files)
        monkeypatch.undo()
        await cell.stop("a")

        await cell.appoint("b")
        await until(lambda: held(cell, "c").files.promised_epoch == 2)

        disks["c"].is_full = False
        await cell.led_by("b")
        await cell.same("b", "c")

    run(tmp_path, story)


def test_a_replica_that_finds_no_room_at_the_start_is_opened_when_there_is_some(tmp_path: Path) -> None:
    async def story(cell: Cell, disks: dict[str, FullDisk]) -> None:
        await send(cell, 1, 3)
        await cell.same("a", "b", "c")
        await cell.stop("c")
        directory = tmp_path / "c" / str(JOURNAL)
        shutil.rmtree(directory)
        directory.mkdir()  # a replica that was hardly begun
        disks["c"].is_full = True

        broker = await cell.start("c")

        assert broker.journals == {}
        assert not broker.report().has_space
        assert "no room" in (broker.why_not_ready() or "")
        disks["c"].is_full = False
        await until(lambda: JOURNAL in broker.journals)
        assert broker.why_not_ready() is None

    run(tmp_path, story)

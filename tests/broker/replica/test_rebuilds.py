"""Queues of a replica made anew while its journal is cut again, or cannot be read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import PATIENCE_S

from broker.cell.test_broker_service import JOURNAL, Cell, run, until
from quaymaster.broker.replica import journal_service
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.records import recovery
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.coordination.cell_keys import configuration_key, encode_configuration


def cut(journal: JournalService) -> None:
    """Cut a follower's journal where it ends, as a new leader would that has other batches behind."""

    def event() -> None:
        replica = journal.host.replica
        replica.log._truncate(replica.end_offset)
        replica._look()

    journal.host._feed(event)


async def quiet_follower(cell: Cell) -> JournalService:
    await cell.send("a", 1, 20)
    await cell.same("a", "b", "c")
    return cell.brokers["b"].journals[JOURNAL]


async def is_whole_again(cell: Cell, journal: JournalService) -> None:
    await until(lambda: journal.host.replica.is_ready)
    await cell.send("a", 21, 30)
    await cell.same("a", "b", "c")
    await asyncio.sleep(0.1)  # for whatever would still be made anew
    assert journal.host.stopped is None


def test_two_cuts_at_once_make_the_queues_anew_once(tmp_path: Path) -> None:
    async def story(cell: Cell) -> int:
        journal = await quiet_follower(cell)
        cut(journal)
        cut(journal)
        await is_whole_again(cell, journal)
        return journal.rebuilds

    assert run(tmp_path, story) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_read_while_the_journal_was_cut_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    whole = recovery.rebuild
    reading, was_cut = threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        if reading.is_set():
            return whole(*arguments, **options)
        reading.set()
        assert was_cut.wait(PATIENCE_S)
        if fails:
            raise JournalCorrupt("cut under the reader")
        return whole(*arguments, **options)

    monkeypatch.setattr(journal_service, "rebuild", slow)

    async def story(cell: Cell) -> int:
        journal = await quiet_follower(cell)
        cut(journal)
        await until(reading.is_set)
        cut(journal)
        await until(lambda: journal.files.truncations == 2)
        was_cut.set()
        await is_whole_again(cell, journal)
        return journal.rebuilds

    assert run(tmp_path, story) == 1


def test_more_than_is_kept_while_the_queues_are_made_anew_is_applied_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recovery.rebuild
    reading, has_more = threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Any:
        recovered = whole(*arguments, **options)
        reading.set()
        assert has_more.wait(PATIENCE_S)
        return recovered

    monkeypatch.setattr(journal_service, "rebuild", slow)

    async def story(cell: Cell) -> int:
        journal = await quiet_follower(cell)
        replica = journal.host.replica
        replica._unapplied_bytes_max = 1_000
        cut(journal)
        await until(reading.is_set)
        was_cut_at = replica.end_offset
        await cell.send("a", 100, 160)
        await until(lambda: not replica.has_kept_from(was_cut_at))
        assert (journal.seen().is_ready, journal.seen().is_rebuilding) == (True, True)
        has_more.set()
        await is_whole_again(cell, journal)
        return journal.rebuilds

    assert run(tmp_path, story) == 1


def test_leader_whose_epoch_is_not_the_one_in_coordination_is_not_activated(tmp_path: Path) -> None:
    """Coordination was restored from a backup: what it holds is older, and names nobody's epoch."""

    async def story(cell: Cell) -> bool:
        journal = await quiet_follower(cell)
        known, revision = await cell.configuration()
        await cell.coordination.compare_and_swap(
            configuration_key(JOURNAL), revision, encode_configuration(known)
        )
        return await journal.activate(known.epoch + 1)

    assert run(tmp_path, story) is False

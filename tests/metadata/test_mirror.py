"""The tables in memory follow the store."""

from __future__ import annotations

import asyncio

import pytest

from quaymaster.coordination.interface import Put
from quaymaster.coordination.memory import MemoryCoordination
from quaymaster.metadata import mirror as mirror_module
from quaymaster.metadata.mirror import Mirror


def test_many_rows_are_taken_some_at_a_time_and_newer_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "LISTED_AT_A_TIME", 10)

    async def scenario() -> tuple[int, list[bytes | None]]:
        store = MemoryCoordination()
        await store.transaction([], [Put(f"/rows/{number}", b"old") for number in range(100)])
        mirror = Mirror(store, store)
        table = mirror.table("/rows/", bytes)
        turns = 0
        starting = asyncio.create_task(mirror.start())
        while not len(table):  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)
        await mirror.transact([], [Put("/rows/99", b"new")])
        while not starting.done():
            await asyncio.sleep(0)
            turns += 1
        rows = [table.get(str(number)) for number in (0, 98, 99)]
        await mirror.close()
        return turns, rows

    turns, rows = asyncio.run(scenario())

    assert turns >= 5
    assert rows == [b"old", b"old", b"new"]

"""The tables in memory follow the store."""

from __future__ import annotations

import asyncio

import pytest
from harness.steps import calls_of

from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.metadata.store import mirror as mirror_module
from quaymaster.metadata.store.mirror import Mirror, MirrorTable


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


def test_forgetting_a_deletion_takes_as_many_steps_with_100_others_as_with_10000() -> None:
    steps = []
    for count in (100, 10_000):
        table = MirrorTable("/rows/", bytes)
        table.apply("passed", None, 5)
        for number in range(count):
            table.apply(str(number), None, 10 + number)

        steps.append(calls_of(lambda table=table: table.forget_deletions(5)))  # type: ignore[misc]

        assert list(table._gone) == [str(number) for number in range(count)]
    assert steps[0] == steps[1]


def test_a_deletion_that_is_told_again_is_forgotten_when_the_later_one_has_passed() -> None:
    table = MirrorTable("/rows/", bytes)
    table.apply("a", None, 5)
    table.apply("b", None, 6)
    table.apply("a", None, 7)

    table.forget_deletions(6)

    assert table._gone == {"a": 7}
    table.forget_deletions(7)
    assert table._gone == {}


def test_rows_that_a_listing_does_not_have_go_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "LOOKED_AT_AT_A_TIME", 10)

    async def scenario() -> None:
        table = MirrorTable("/rows/", bytes)
        for number in range(100):
            table.apply(str(number), b"old", 5)

        dropping = asyncio.create_task(table.keep_only({"0"}, 7))
        await asyncio.sleep(0)
        assert len(table) == 91
        table.apply("98", b"new", 8)
        table.apply("99", None, 6)
        await dropping

        assert dict(table.items()) == {"0": b"old", "98": b"new"}

    asyncio.run(scenario())

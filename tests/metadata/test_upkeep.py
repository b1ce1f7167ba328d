"""Work in intervals: what fails is told once and tried again; it ends, and may begin anew."""

from __future__ import annotations

import asyncio

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.core.values.errors import NotNow
from quaymaster.metadata.upkeep import Upkeep


def test_work_that_fails_is_told_once_in_a_row_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = [NotNow("no store"), NotNow("no store"), None, TimeoutError(), None]
    done = asyncio.Event()

    async def work() -> None:
        outcome = outcomes.pop(0)
        if not outcomes:
            done.set()
            await asyncio.Event().wait()
        if outcome is not None:
            raise outcome

    async def scenario() -> None:
        upkeep = Upkeep()
        upkeep.repeat("cleaning", work, 1)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
        await upkeep.close()

    asyncio.run(scenario())

    assert [record.getMessage() for record in caplog.records] == [
        "cleaning failed error=no store",
        "cleaning failed error=timeout",
    ]


def test_work_that_is_not_due_waits_for_its_turn_and_ends_with_close() -> None:
    async def scenario() -> None:
        upkeep, calls = Upkeep(), 0

        async def work() -> None:
            nonlocal calls
            calls += 1

        upkeep.repeat("later", work, 3_600_000, is_due=False)
        await asyncio.sleep(0)
        assert calls == 0
        await upkeep.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

        upkeep.repeat("now", work, 3_600_000)
        await asyncio.sleep(0)
        assert calls == 1
        await upkeep.close()

    asyncio.run(scenario())

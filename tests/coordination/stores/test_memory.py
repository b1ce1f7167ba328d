"""What is particular to the store in memory."""

from __future__ import annotations

import asyncio

import pytest

from quaymaster.coordination.interface import ABSENT, WatchLost
from quaymaster.coordination.stores.memory import MemoryCoordination


def test_watch_from_before_the_kept_history_is_lost() -> None:
    async def scenario() -> None:
        store = MemoryCoordination(history_max=5)
        for number in range(10):
            await store.compare_and_swap(str(number), ABSENT, b"")

        with pytest.raises(WatchLost):
            await anext(store.watch("", 4))

        assert len(await anext(store.watch("", 5))) == 5

    asyncio.run(scenario())

"""How calls for a pushed queue go is told only of the queue as it is."""

from __future__ import annotations

import asyncio

from quaymaster.coordination.interface import Put
from quaymaster.coordination.push_rows import (
    PushStateRow,
    pushed_key,
    read_push_state,
    state_key,
    write_push_state,
)
from quaymaster.coordination.stores.memory import MemoryCoordination

ROW = PushStateRow("unreachable", 5, "no connection", "pusher-1")


def test_what_a_pusher_tells_is_read_back() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        revision = await store.transaction([], [Put(pushed_key(7), b"row")])

        assert await read_push_state(store, 7) is None
        assert await write_push_state(store, 7, revision, ROW)

        assert await read_push_state(store, 7) == ROW

    asyncio.run(scenario())


def test_a_pusher_that_comes_too_late_leaves_no_row_of_a_queue_that_is_gone() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        revision = await store.transaction([], [Put(pushed_key(7), b"row")])
        await store.transaction([], [], [pushed_key(7)])

        assert not await write_push_state(store, 7, revision, ROW)

        assert await store.get(state_key(7)) is None

    asyncio.run(scenario())

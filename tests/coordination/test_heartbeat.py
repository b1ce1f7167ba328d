"""Whether the store answers is known within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harness.managed_cell import Store

from quaymaster.coordination.heartbeat import Heartbeat

SILENT_MS = 50


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 -- it is the clock that is waited for
        await asyncio.sleep(0.001)


def test_silence_is_counted_from_the_last_question_that_was_answered() -> None:
    async def scenario() -> None:
        store = Store()
        contact = Heartbeat(store, "a-key-that-nobody-wrote", interval_s=0.001)
        asking = asyncio.create_task(contact.run())
        store.is_away = True
        await until(lambda: contact.silent_ms >= SILENT_MS)

        store.is_away = False
        await until(lambda: contact.silent_ms < SILENT_MS)

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await store.close()

    asyncio.run(scenario())


def test_a_question_without_an_answer_is_silence() -> None:
    class Deaf(Store):
        async def get(self, key: str) -> None:
            await asyncio.Event().wait()

    async def scenario() -> None:
        store = Deaf()
        contact = Heartbeat(store, "key", interval_s=0.001)
        asking = asyncio.create_task(contact.run())

        await until(lambda: contact.silent_ms >= SILENT_MS)

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await store.close()

    asyncio.run(scenario())

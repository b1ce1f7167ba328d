"""Work shared by all who ask for it at the same time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from quaymaster.coordination.interface import Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.metadata.store.coalescer import Coalescer, StoreReads


def test_who_asks_while_a_run_is_under_way_is_answered_by_the_next_one() -> None:
    async def scenario() -> None:
        runs = 0
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        async def work() -> int:
            nonlocal runs
            runs += 1
            number = runs
            has_begun.set()
            await may_end.wait()
            return number

        together = Coalescer(work, pause_s=0)
        first = [asyncio.create_task(together()) for _ in range(3)]
        await has_begun.wait()
        later = [asyncio.create_task(together()) for _ in range(3)]
        await asyncio.sleep(0)
        may_end.set()

        assert await asyncio.gather(*first, *later) == [1, 1, 1, 2, 2, 2]
        assert await together() == 3

    asyncio.run(scenario())


def test_who_gives_up_takes_nothing_from_the_others_and_a_failure_is_told_to_all_of_a_run() -> None:
    async def scenario() -> None:
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            raise RuntimeError("no")

        together = Coalescer(work)
        impatient, patient = (asyncio.create_task(together()) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        may_end.set()

        with pytest.raises(RuntimeError):
            await patient
        assert impatient.cancelled()
        may_end.clear()
        abandoned = asyncio.create_task(together())
        await asyncio.sleep(0)
        await together.close()
        with pytest.raises(asyncio.CancelledError):
            await abandoned

    asyncio.run(scenario())


def test_a_failure_of_a_run_that_nobody_waits_for_any_more_is_nobodys_matter() -> None:
    async def scenario() -> list[str]:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            raise RuntimeError("no")

        together = Coalescer(work)
        impatient = asyncio.create_task(together())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.sleep(0.01)
        await together.close()
        del together
        gc.collect()
        return told

    assert asyncio.run(scenario()) == []


def test_reads_of_all_who_ask_together_are_few_however_many_keys() -> None:
    class CountingStore(MemoryCoordination):
        reads = 0

        async def read(self, keys):  # type: ignore[no-untyped-def]
            self.reads += 1
            return await super().read(keys)

    async def scenario() -> None:
        store = CountingStore()
        await store.transaction([], [Put("k7", b"7")])
        reads = StoreReads(store)

        answers = await asyncio.gather(*(reads.read([f"k{number}"]) for number in range(200)))

        assert store.reads == 2
        assert [number for number, (rows, _) in enumerate(answers) if rows] == [7]
        assert answers[7][0]["k7"].value == b"7"
        await reads.close()

    asyncio.run(scenario())

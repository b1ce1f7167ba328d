"""Which of several processes acts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import CoordinationUnavailable
from quaymaster.coordination.leadership import Leadership
from quaymaster.coordination.stores.memory import MemoryCoordination

KEY = "managers/test"
TTL_MS = 1_000


class World:
    """A store and claims on one key, with a clock set by hand; each look is a call."""

    def __init__(self) -> None:
        self.time_ms = 1_000_000
        self.store = MemoryCoordination(now_ms=lambda: self.time_ms)

    def claim(self, name: str) -> Leadership:
        return Leadership(self.store, KEY, name, now_ms=lambda: self.time_ms, ttl_ms=TTL_MS)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await scenario(world)
        await world.store.close()

    asyncio.run(main())


def test_first_claim_holds_and_the_second_waits_for_its_end() -> None:
    async def scenario(world: World) -> None:
        first, second = world.claim("a"), world.claim("b")
        await first._step()
        await second._step()
        assert (first.is_held, second.is_held, second.holder) == (True, False, "a")

        await first.close()
        await second._step()
        assert (first.is_held, second.is_held) == (False, True)

    run(scenario)


def test_claim_that_is_not_renewed_ends_by_its_time() -> None:
    async def scenario(world: World) -> None:
        first, second = world.claim("a"), world.claim("b")
        await first._step()
        world.time_ms += TTL_MS - 1
        assert first.is_held

        world.time_ms += 1
        await second._step()
        await first._step()

        assert (first.is_held, second.is_held, first.holder) == (False, True, "b")

    run(scenario)


def test_renewal_counts_from_before_it_was_asked_for() -> None:
    async def scenario(world: World) -> None:
        claim = world.claim("a")
        await claim._step()
        world.time_ms += 600
        await claim._step()
        world.time_ms += 900
        assert claim.is_held
        world.time_ms += 100
        assert not claim.is_held

    run(scenario)


def test_who_was_restarted_takes_its_own_key_over_at_once() -> None:
    async def scenario(world: World) -> None:
        before, after = world.claim("a"), world.claim("a")
        await before._step()
        await after._step()

        assert after.is_held

    run(scenario)


def test_who_resigned_rests_and_may_end_its_rest() -> None:
    async def scenario(world: World) -> None:
        claim = world.claim("a")
        await claim._step()
        await claim.resign(10_000)
        await claim._step()
        assert not claim.is_held

        claim.end_rest()
        await claim._step()
        assert claim.is_held

    run(scenario)


def test_store_that_is_away_takes_the_claim_by_time_and_gives_it_back() -> None:
    async def scenario(world: World) -> None:
        claim = world.claim("a")
        task = asyncio.create_task(claim.run())
        try:
            await changed(claim, 1)
            enter, world.store._enter = world.store._enter, _away  # type: ignore[method-assign]
            with pytest.raises(CoordinationUnavailable):
                await world.store.get(KEY)
            world.time_ms += TTL_MS
            await changed(claim, 1, is_held=False)

            world.store._enter = enter  # type: ignore[method-assign]
            await changed(claim, 2)
            assert claim.is_held
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scenario)


async def changed(claim: Leadership, times: int, *, is_held: bool = True) -> None:
    """Wait until a claim has begun to hold so often, and has told whether it does."""
    async with asyncio.timeout(PATIENCE_S):
        while claim.changes < times or claim._was_held != is_held:  # noqa: ASYNC110 -- it tells by a number
            await asyncio.sleep(0.001)


def _away() -> None:
    raise CoordinationUnavailable

"""The counted time of a store grows as fast as time passes, and never faster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.support import START_MS, Clock, World, run
from quaymaster.coordination.counted_time import COUNTED_TIME, read_counted
from quaymaster.coordination.interface import Put
from quaymaster.coordination.number_rows import encode_number
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import is_counted


def on_one_store(store: MemoryCoordination, clock: Clock) -> tuple[CountedTime, Mirror]:
    mirror = Mirror(store, store, clock.monotonic_s)
    return CountedTime(mirror), mirror


def test_counting_is_no_change_that_a_store_must_not_lose() -> None:
    assert not is_counted(COUNTED_TIME)


def test_time_that_several_count_is_counted_once_whatever_their_wall_clocks_show(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            for step in range(100):
                world.clock.pass_s(30)
                world.clock.ms = START_MS + (-1) ** step * step * 10**9
                for service in (one, two):
                    await service.registry.counted_time.count()

            counted_ms = await read_counted(world.store)
            assert counted_ms == await one.registry.counted_time.read_ms() == 3_000_000

    run(scenario, tmp_path)


def test_a_process_that_stood_still_adds_little_and_a_time_that_begins_then_is_not_shorter(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            counted = service.registry.counted_time
            world.clock.pass_s(30 * 86_400)
            since_ms = await counted.begin_ms()

            await counted.count()

            assert counted.known_ms <= since_ms

    run(scenario, tmp_path)


def test_time_in_which_nothing_ran_is_not_counted_and_what_was_counted_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.clock.pass_s(30)
            await service.registry.counted_time.count()
        world.clock.pass_s(86_400)
        async with world.service() as service:
            world.clock.pass_s(10)
            await service.registry.counted_time.count()
            assert service.registry.counted_time.known_ms == 30_000

            world.clock.pass_s(10)
            await service.registry.counted_time.count()
            assert service.registry.counted_time.known_ms == 50_000

    run(scenario, tmp_path)


def test_store_that_has_only_counted_time_is_a_new_one(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.memory.transaction([], [Put(COUNTED_TIME, encode_number(20_000))])

        async with world.service() as service:
            assert service.master_key_id

    run(scenario, tmp_path)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.booleans(), st.floats(0, 200), st.floats(-1e9, 1e9)), max_size=40
    )
)
def test_it_never_grows_faster_than_time_passes(steps: list[tuple[int, bool, float, float]]) -> None:
    """Three processes count, stop and start again at random."""

    async def main() -> None:
        store, clock = MemoryCoordination(), Clock()
        running: dict[int, tuple[CountedTime, Mirror]] = {}
        began: list[tuple[float, int]] = []
        for number, is_start, passed_s, wall_s in steps:
            clock.pass_s(passed_s)
            clock.set_s(wall_s)
            if is_start or number not in running:
                if number in running:
                    await running.pop(number)[1].close()
                counted, mirror = on_one_store(store, clock)
                await mirror.start()
                running[number] = counted, mirror
            counted = running[number][0]
            began.append((clock.elapsed_s, await counted.begin_ms()))
            await counted.count()
            now_ms = await read_counted(store)
            assert now_ms <= clock.elapsed_s * 1000
            assert all(now_ms - since_ms <= (clock.elapsed_s - at_s) * 1000 for at_s, since_ms in began)
        for _, mirror in running.values():
            await mirror.close()

    asyncio.run(main())

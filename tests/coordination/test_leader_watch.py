"""The leader table follows coordination, and does without it when it is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from harness.skipping_loop import SkippingLoop

from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    configuration_key,
    encode_configuration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import ABSENT, CoordinationUnavailable, Event, Listing, Put, WatchLost
from quaymaster.coordination.leader_watch import LeaderWatch
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.cell.leader_table import Leader, LeaderTable
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.monitoring.supervision import listen_for_failures


class Store(MemoryCoordination):
    """A store that can be down, hang, lose watches and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.hangs = False
        self.is_deaf = False
        """Watches bring nothing."""
        self.lists = 0
        self.problem: Exception | None = None

    async def list_prefix(self, prefix: str, *, after: str = "", limit: int = 1000) -> Listing:
        self.lists += 1
        if self.is_down:
            raise CoordinationUnavailable
        if self.hangs:
            await asyncio.sleep(3_600)
        return await super().list_prefix(prefix, after=after, limit=limit)

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        async for events in super().watch(prefix, after_revision):
            if self.problem is not None:
                problem, self.problem = self.problem, None
                raise problem
            if self.is_down:
                raise CoordinationUnavailable
            if not self.is_deaf:
                yield events

    async def register(self, name: str) -> None:
        value = encode_registration(BrokerRegistration(name, "z", f"{name}:1"))
        await self.transaction([], [Put(registration_key(name), value)])

    async def lead(self, journal: int, epoch: int, leader: str, *, activated: bool = True) -> None:
        members = ("b1@s", "b2@s")
        value = encode_configuration(
            JournalConfiguration(epoch, f"{leader}@s", members, members, activated=activated)
        )
        await self.transaction([], [Put(configuration_key(journal), value)])


Scenario = Callable[[Store, LeaderTable, LeaderWatch], Awaitable[None]]


def run(scenario: Scenario) -> None:
    async def whole() -> None:
        async with asyncio.timeout(3_600):
            store, table = Store(), LeaderTable()
            await store.register("b1")
            await store.register("b2")
            await store.lead(1, 4, "b1")
            watch = LeaderWatch(store, table)
            watch.start()
            try:
                await scenario(store, table, watch)
            finally:
                await watch.close()
                await store.close()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(whole())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("what was waited for did not happen")


def test_leaders_are_known_once_everything_was_listed_and_followed_by_watch() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        await watch.wait_listed()
        assert table.leader_of(1) == Leader(4, "b1", "b1:1")

        await store.lead(1, 5, "b2", activated=False)
        await until(lambda: table.is_electing(1))
        await store.lead(1, 5, "b2")
        await until(lambda: table.leader_of(1) == Leader(5, "b2", "b2:1"))
        await store.transaction([], deletes=[configuration_key(1), registration_key("b2")])
        await until(lambda: table.leader_of(1) is None)

        assert store.lists == 2

    run(scenario)


def test_table_stays_as_it_is_while_coordination_is_down_and_goes_on_after() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        await watch.wait_listed()
        store.is_down = True
        await store.lead(1, 5, "b2")
        await store.transaction([], deletes=[registration_key("b1")])
        await asyncio.sleep(60)
        assert table.leader_of(1) == Leader(4, "b1", "b1:1")

        store.is_down = False
        await until(lambda: table.leader_of(1) == Leader(5, "b2", "b2:1"))
        await until(lambda: table.address_of("b1") is None)

    run(scenario)


def test_coordination_that_is_down_from_the_start_is_waited_for() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        store.is_down = True
        await asyncio.sleep(20)
        assert table.leader_of(1) is None
        store.is_down, store.hangs = False, True
        await asyncio.sleep(20)

        store.hangs = False
        await watch.wait_listed()
        assert table.leader_of(1) == Leader(4, "b1", "b1:1")

    run(scenario)


def test_who_must_know_soon_hears_soon_that_coordination_is_back_however_long_it_was_away() -> None:
    async def scenario(store: Store, _table: LeaderTable, _watch: LeaderWatch) -> None:
        seen: dict[str, bytes | None] = {}
        watch = WatchedPrefix(store, "journals/", seen.__setitem__, retry_max_s=0.5)
        watch.start()
        await watch.listed.wait()
        store.is_down = True
        await store.lead(1, 5, "b2")
        await asyncio.sleep(600)
        store.is_down = False
        await store.lead(2, 1, "b1")
        back_s = asyncio.get_running_loop().time()

        await until(lambda: configuration_key(2) in seen)

        assert asyncio.get_running_loop().time() - back_s <= 0.51
        await watch.close()

    run(scenario)


def test_change_that_a_watch_never_brought_is_found_by_listing_again() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        await watch.wait_listed()
        store.is_deaf = True
        await store.lead(1, 5, "b2")
        await asyncio.sleep(10)
        assert table.leader_of(1) == Leader(4, "b1", "b1:1")

        await asyncio.sleep(30)
        assert table.leader_of(1) == Leader(5, "b2", "b2:1")

    run(scenario)


def test_doubt_makes_it_list_at_once_but_not_all_the_time() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        await watch.wait_listed()
        store.is_deaf = True
        await store.lead(1, 5, "b2")
        for _ in range(100):
            watch.refresh()
            await asyncio.sleep(0.01)

        assert table.leader_of(1) == Leader(5, "b2", "b2:1")
        assert store.lists <= 2 * 6

    run(scenario)


def test_lost_watch_is_begun_again() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        await watch.wait_listed()
        store.problem = WatchLost("compacted")
        await store.lead(1, 5, "b2")
        await until(lambda: table.leader_of(1) == Leader(5, "b2", "b2:1"))

    run(scenario)


@pytest.mark.parametrize("bug", [AssertionError("a bug"), KeyError("a bug"), TypeError("a bug")])
@pytest.mark.parametrize("is_in_store", [True, False])
def test_bug_of_the_watch_or_of_who_is_told_ends_the_process(bug: Exception, is_in_store: bool) -> None:
    async def scenario(store: Store, _table: LeaderTable, _watch: LeaderWatch) -> None:
        ended: list[Exception] = []
        listen_for_failures(asyncio.get_running_loop(), ended.append)

        def on_row(key: str, value: bytes | None) -> None:
            if not is_in_store and key == configuration_key(2):
                raise bug

        watch = WatchedPrefix(store, "journals/", on_row)
        watch.start()
        await watch.listed.wait()
        store.problem = bug if is_in_store else None
        await store.lead(2, 1, "b1")

        await until(lambda: ended)
        assert ended == [bug]
        await watch.close()

    run(scenario)


def test_value_that_cannot_be_read_leaves_the_others_alone() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        await store.transaction([], [Put(registration_key("b1"), b"\xff")])
        await watch.wait_listed()

        assert table.leader_of(1) is None
        assert table.address_of("b2") == "b2:1"

    run(scenario)


def test_older_value_never_replaces_a_newer_one() -> None:
    async def scenario(store: Store, table: LeaderTable, watch: LeaderWatch) -> None:
        told: list[tuple[str, Any]] = []
        prefix = WatchedPrefix(store, "x/", lambda key, value: told.append((key, value)))
        prefix._tell("x/a", b"new", 7)
        prefix._tell("x/a", b"old", 6)
        prefix._tell("x/a", None, 8)

        assert told == [("x/a", b"new"), ("x/a", None)]
        prefix.refresh()
        await prefix.close()
        assert await store.compare_and_swap("x/a", ABSENT, b"")

    run(scenario)

"""What every store must do, run against each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.etcd import EtcdCluster
from harness.waiting import PATIENCE_S

from quaymaster.coordination.interface import (
    ABSENT,
    KEY_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Compare,
    Coordination,
    CoordinationUnavailable,
    Event,
    KeyValue,
    LeaseExpired,
    Put,
    RevisionMismatch,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination

LEASE_MS = 3_000


class Clock:
    """Time as leases see it: a number, or for etcd, which has only the real one, time that is waited for."""

    def __init__(self, *, is_real: bool = False) -> None:
        self.ms = 1_700_000_000_000
        self._is_real = is_real

    def __call__(self) -> int:
        return self.ms

    def let_pass(self, duration_ms: int) -> None:
        """Let less time pass than any lease lasts."""
        self.ms += duration_ms

    async def outlast(self, store: Coordination, key: str, ttl_ms: int) -> None:
        """Let the lease that holds a key end, however long that takes."""
        self.ms += ttl_ms
        while self._is_real and await store.get(key) is not None:  # noqa: ASYNC110 -- etcd tells nobody
            await asyncio.sleep(0.05)


Scenario = Callable[[Coordination, Clock], Awaitable[None]]
RunScenario = Callable[[Scenario], None]


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunScenario:
    """Run a scenario against a fresh store of one kind."""
    etcd: EtcdCluster | None = request.getfixturevalue("etcd") if request.param == "etcd" else None

    @asynccontextmanager
    async def open_store(clock: Clock) -> AsyncIterator[Coordination]:
        store: Coordination
        if request.param == "memory":
            store = MemoryCoordination(now_ms=clock)
        elif etcd is not None:
            store = etcd.store(f"{tmp_path.name}/")
        else:
            store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite", now_ms=clock)
        try:
            yield store
        finally:
            await store.close()

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            clock = Clock(is_real=etcd is not None)
            async with open_store(clock) as store, asyncio.timeout(PATIENCE_S):
                await scenario(store, clock)

        asyncio.run(main())

    return run_scenario


def test_keys_are_read_together_as_last_changed_and_no_older_than_the_revision_says(run: RunScenario) -> None:
    async def scenario(store: Coordination, clock: Clock) -> None:
        first = await store.transaction([], [Put("a", b"1"), Put("a/b", b"2"), Put("c", b"3")])
        last = await store.transaction([], [Put("c", b"4")], ["a"])

        rows, revision = await store.read(["c", "a", "a/b", "none"])

        assert sorted(rows, key=lambda row: row.key) == [
            KeyValue("a/b", b"2", first),
            KeyValue("c", b"4", last),
        ]
        assert revision >= last
        for number in (0, TRANSACTION_OPERATIONS_MAX + 1):
            with pytest.raises(ValueError, match="keys in one read"):
                await store.read(["x"] * number)

    run(scenario)


def test_absent_key_is_none(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        assert await store.get("a") is None

    run(scenario)


def test_key_is_read_as_it_was_written_with_its_revision(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        revision = await store.compare_and_swap("a", ABSENT, b"\x00one")

        assert await store.get("a") == KeyValue("a", b"\x00one", revision)

    run(scenario)


def test_swap_with_the_revision_read_succeeds_once(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        first = await store.compare_and_swap("a", ABSENT, b"1")

        second = await store.compare_and_swap("a", first, b"2")

        assert second > first
        with pytest.raises(RevisionMismatch) as refused:
            await store.compare_and_swap("a", first, b"3")
        assert (refused.value.key, refused.value.expected, refused.value.found) == ("a", first, second)
        assert await store.get("a") == KeyValue("a", b"2", second)

    run(scenario)


def test_key_that_must_be_absent_is_not_overwritten(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        await store.compare_and_swap("a", ABSENT, b"1")

        with pytest.raises(RevisionMismatch):
            await store.compare_and_swap("a", ABSENT, b"2")

    run(scenario)


def test_deleted_key_is_absent_and_comes_back_with_a_higher_revision(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        first = await store.compare_and_swap("a", ABSENT, b"1")

        gone = await store.compare_and_swap("a", first, None)
        assert await store.get("a") is None
        assert (await store.list_prefix("")).items == ()
        again = await store.compare_and_swap("a", ABSENT, b"2")

        assert first < gone < again

    run(scenario)


def test_of_many_who_swap_at_once_one_wins(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        results = await asyncio.gather(
            *(store.compare_and_swap("a", ABSENT, str(number).encode()) for number in range(20)),
            return_exceptions=True,
        )

        assert sum(isinstance(result, int) for result in results) == 1
        assert sum(isinstance(result, RevisionMismatch) for result in results) == 19

    run(scenario)


def test_counter_raised_by_many_loses_no_step(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        async def step() -> None:
            while True:
                row = await store.get("n")
                value, revision = (int(row.value), row.revision) if row else (0, ABSENT)
                try:
                    await store.compare_and_swap("n", revision, str(value + 1).encode())
                except RevisionMismatch:
                    continue
                return

        await asyncio.gather(*(step() for _ in range(15)))

        row = await store.get("n")
        assert row is not None
        assert row.value == b"15"

    run(scenario)


def test_transaction_does_all_of_it_at_one_revision(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        old = await store.compare_and_swap("old", ABSENT, b"x")

        revision = await store.transaction(
            [Compare("old", old), Compare("new", ABSENT)], [Put("new", b"1"), Put("also", b"2")], ["old"]
        )

        listing = await store.list_prefix("")
        assert listing.items == (KeyValue("also", b"2", revision), KeyValue("new", b"1", revision))
        assert listing.revision == revision

    run(scenario)


def test_transaction_with_one_compare_that_fails_changes_nothing(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        old = await store.compare_and_swap("old", ABSENT, b"x")

        with pytest.raises(RevisionMismatch):
            await store.transaction([Compare("old", old), Compare("b", 5)], [Put("new", b"1")], ["old"])

        assert (await store.list_prefix("")).items == (KeyValue("old", b"x", old),)

    run(scenario)


def test_deleting_an_absent_key_is_no_error(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        await store.transaction([], deletes=["nothing"])

    run(scenario)


def test_transactions_no_store_takes_are_refused(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        for puts, deletes in (
            ([], []),
            ([Put("a", b""), Put("a", b"")], []),
            ([Put("a", b"")], ["a"]),
            ([Put("", b"")], []),
            ([Put("a" * 1025, b"")], []),
            ([Put("a", b"x" * (VALUE_BYTES_MAX + 1))], []),
            ([Put(str(number), b"") for number in range(TRANSACTION_OPERATIONS_MAX + 1)], []),
            ([Put("a", b"x" * VALUE_BYTES_MAX), Put("b", b"x" * VALUE_BYTES_MAX)], []),
        ):
            with pytest.raises(ValueError):
                await store.transaction([], puts, deletes)
        with pytest.raises(ValueError):
            await store.compare_and_swap("a", ABSENT, None)
        assert (await store.list_prefix("")).items == ()

    run(scenario)


def test_the_largest_transaction_is_taken(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        key = "k" * KEY_BYTES_MAX
        value = bytes(range(256)) * (VALUE_BYTES_MAX // 256)
        rest = TRANSACTION_BYTES_MAX - VALUE_BYTES_MAX - KEY_BYTES_MAX - 1

        revision = await store.transaction([Compare(key, ABSENT)], [Put(key, value), Put("b", b"x" * rest)])

        assert await store.get(key) == KeyValue(key, value, revision)

    run(scenario)


def test_listing_pages_through_a_prefix_in_order(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        for key in ("b/2", "a/1", "b/1", "b", "c", "b/ø", "b/3"):
            await store.compare_and_swap(key, ABSENT, b"")

        first = await store.list_prefix("b/", limit=3)
        rest = await store.list_prefix("b/", after=first.items[-1].key, limit=3)

        assert [item.key for item in first.items] == ["b/1", "b/2", "b/3"]
        assert first.more
        assert [item.key for item in rest.items] == ["b/ø"]
        assert not rest.more
        with pytest.raises(ValueError):
            await store.list_prefix("b/", limit=0)

    run(scenario)


def test_everything_under_a_prefix_is_listed_over_pages(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        for start in range(0, 1200, 100):
            await store.transaction([], [Put(f"k/{number:05}", b"") for number in range(start, start + 100)])

        items, revision = await store.list_all("k/")

        assert [item.key for item in items] == [f"k/{number:05}" for number in range(1200)]
        assert revision == items[-1].revision

    run(scenario)


def test_watch_brings_changes_under_its_prefix_in_order(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        before = await store.compare_and_swap("q/old", ABSENT, b"0")
        watch = store.watch("q/", before)

        one = await store.transaction([], [Put("q/a", b"1"), Put("q/b", b"1"), Put("other", b"1")])
        two = await store.transaction([], deletes=["q/old"])

        events = await take(watch, 3)
        assert sorted(events[:2], key=lambda event: event.key) == [
            Event("q/a", b"1", one),
            Event("q/b", b"1", one),
        ]
        assert events[2] == Event("q/old", None, two)

    run(scenario)


def test_watch_that_waits_is_woken_by_a_change(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        task = asyncio.create_task(take(store.watch("q/", 0), 1))
        await asyncio.sleep(0.02)

        revision = await store.compare_and_swap("q/a", ABSENT, b"1")

        assert await task == [Event("q/a", b"1", revision)]

    run(scenario)


def test_watch_brings_many_changes_without_loss(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        task = asyncio.create_task(take(store.watch("q/", 0), 2500))
        for start in range(0, 2500, 100):
            await store.transaction([], [Put(f"q/{number}", b"") for number in range(start, start + 100)])

        events = await task

        assert {event.key for event in events} == {f"q/{number}" for number in range(2500)}
        revisions = [event.revision for event in events]
        assert revisions == sorted(revisions)

    run(scenario)


def test_key_bound_to_a_lease_vanishes_when_it_is_not_kept_alive(run: RunScenario) -> None:
    async def scenario(store: Coordination, clock: Clock) -> None:
        lease = await store.grant_lease(LEASE_MS)
        await store.compare_and_swap("leader", ABSENT, b"me", lease_id=lease)
        clock.let_pass(LEASE_MS - 1)
        await store.keep_alive(lease)
        clock.let_pass(LEASE_MS - 1)
        assert await store.get("leader") is not None

        await clock.outlast(store, "leader", 1)

        with pytest.raises(LeaseExpired):
            await store.keep_alive(lease)
        assert await store.get("leader") is None
        with pytest.raises(LeaseExpired):
            await store.compare_and_swap("leader", ABSENT, b"me", lease_id=lease)

    run(scenario)


def test_lease_ends_without_anybody_asking(run: RunScenario) -> None:
    async def scenario(store: Coordination, clock: Clock) -> None:
        watch = store.watch("leader", 0)
        lease = await store.grant_lease(20)
        await store.compare_and_swap("leader", ABSENT, b"me", lease_id=lease)
        assert (await take(watch, 1))[0].value == b"me"
        clock.let_pass(20)

        events = await take(watch, 1)

        assert events[0].key == "leader"
        assert events[0].value is None

    run(scenario)


def test_revoked_lease_takes_its_keys_with_it_and_no_others(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        one, two = await store.grant_lease(LEASE_MS), await store.grant_lease(LEASE_MS)
        await store.transaction(
            [], [Put("a", b"", one), Put("b", b"", two), Put("c", b""), Put("d", b"", one)]
        )
        row = await store.get("d")
        assert row is not None
        await store.compare_and_swap("d", row.revision, b"kept")

        await store.revoke_lease(one)
        await store.revoke_lease(one)

        assert [item.key for item in (await store.list_prefix("")).items] == ["b", "c", "d"]
        assert one != two

    run(scenario)


def test_closed_store_says_so_and_its_watches_end(run: RunScenario) -> None:
    async def scenario(store: Coordination, _: Clock) -> None:
        task = asyncio.create_task(take(store.watch("", 0), 1))
        await asyncio.sleep(0.02)

        await store.close()

        with pytest.raises(CoordinationUnavailable):
            await task
        with pytest.raises(CoordinationUnavailable):
            await store.get("a")

    run(scenario)


async def take(watch: AsyncIterator[list[Event]], count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events.extend(await anext(watch))
    return events

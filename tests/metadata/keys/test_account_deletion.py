"""Accounts that are deleted: only without queues, with their keys, and their ids are never given again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.etcd import EtcdCluster
from harness.waiting import PATIENCE_S

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, ActingStore, HeldStore, World, eventually, is_good, run
from metadata.test_several_nodes import SlowStore
from quaymaster.coordination.interface import Coordination, Put
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.values.errors import (
    CallerError,
    InvalidClientTokenId,
    InvalidParameterValue,
    NotNow,
    ResourceNotFound,
    Unreachable,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata import queue_registry
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import ACCESS_KEYS, ACCOUNTS, QUEUES, AccountRow, row_decoder
from quaymaster.protocol.rpc.metadata_messages import (
    CountedQueues,
    CountQueues,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
)

SHOP = "111122223333"
HOUR_MS = 3_600_000
decode_account = row_decoder(AccountRow)


async def keys_of(store: Coordination, prefix: str) -> list[str]:
    return [row.key for row in (await store.list_prefix(prefix)).items]


def test_account_without_queues_is_deleted_with_its_keys_and_sessions(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            accounts = service.accounts
            await accounts.create_account("shop", SHOP)
            keys = [await accounts.create_access_key(SHOP) for _ in range(70)]
            session = service.sessions.create(keys[0].access_key_id, HOUR_MS)
            await service.queues.change(CreateQueue(SHOP, "orders"))
            await service.queues.change(DeleteQueue(SHOP, "orders"))

            await accounts.delete_account(SHOP)

            assert accounts.account(SHOP) is None
            assert [account.account_id for account in accounts.list_accounts()] == [ACCOUNT]
            assert accounts.count_accounts() == 1
            assert all(service.access_key(key.access_key_id) is None for key in keys)
            assert not is_good(service, session)
            assert len(await keys_of(world.store, ACCESS_KEYS)) == 1  # the default account's

    run(scenario, tmp_path)


def test_id_of_a_deleted_account_is_never_given_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            await service.accounts.delete_account(SHOP)
        async with world.service() as service:
            accounts = service.accounts
            with pytest.raises(InvalidParameterValue, match="choose another id"):
                await accounts.create_account("other", SHOP)
            with pytest.raises(ResourceNotFound, match=f"The account {SHOP} was deleted"):
                await accounts.delete_account(SHOP)
            with pytest.raises(ResourceNotFound, match="was deleted"):
                await accounts.create_access_key(SHOP)
            for enabled in (True, False):
                with pytest.raises(ResourceNotFound, match="was deleted"):
                    await accounts.set_account_enabled(SHOP, enabled=enabled)
            with pytest.raises(InvalidClientTokenId):
                await service.queues.change(CreateQueue(SHOP, "orders"))

    run(scenario, tmp_path)


def test_deleted_accounts_are_listed_where_they_are_asked_for(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            for digit in "12345":
                await accounts.create_account(f"shop {digit}", 12 * digit)
            for digit in "24":
                await accounts.delete_account(12 * digit)

            def listed(*page: Any, deleted: bool) -> str:
                return "".join(one.account_id[0] for one in accounts.list_accounts(*page, deleted=deleted))

            assert listed(deleted=False) == "0135"
            assert listed(deleted=True) == "012345"
            assert listed("", 3, deleted=True) == "012"
            assert listed(12 * "2", 2, deleted=True) == "34"
            assert listed(12 * "2", 2, deleted=False) == "35"
            (gone,) = accounts.list_accounts(12 * "1", 1, deleted=True)
            assert (gone.state, gone.name, gone.deleted_ms) == ("deleted", "shop 2", world.clock.ms)

    run(scenario, tmp_path)


def test_account_with_queues_is_not_deleted_and_stays_as_it_was(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            accounts = service.accounts
            await accounts.create_account("shop", SHOP)
            key = await accounts.create_access_key(SHOP)
            await service.queues.change(CreateQueue(SHOP, "orders"))
            await service.queues.change(CreateQueue(SHOP, "log", {"RetentionMode": "Log"}))
            await service.queues.change(CreateGroup(SHOP, "log@readers"))

            with pytest.raises(UnsupportedOperation, match=f"{SHOP} has 2 queues and 1 consumer group; "):
                await accounts.delete_account(SHOP)
            assert service.access_key(key.access_key_id) == key
            await service.queues.change(DeleteQueue(SHOP, "log"))
            with pytest.raises(UnsupportedOperation, match="has 1 queue; "):
                await accounts.delete_account(SHOP)
            await accounts.set_account_enabled(SHOP, enabled=False)
            with pytest.raises(UnsupportedOperation, match="Delete its queues first"):
                await accounts.delete_account(SHOP)

            account = accounts.account(SHOP)
            assert account is not None
            assert account.state == "disabled"
            await service.queues.change(DeleteQueue(SHOP, "orders"))
            await accounts.delete_account(SHOP)

    run(scenario, tmp_path)


def test_queue_that_is_half_created_or_half_deleted_counts(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            world.journal.error = NotNow("It has no leader.")
            with pytest.raises(NotNow):
                await service.queues.change(CreateQueue(SHOP, "orders"))
            with pytest.raises(UnsupportedOperation, match="1 queue"):
                await service.accounts.delete_account(SHOP)
            world.journal.error = None
            await service.registry.reconcile()
            world.journal.error = NotNow("It has no leader.")
            with pytest.raises(NotNow):
                await service.queues.change(DeleteQueue(SHOP, "orders"))
            with pytest.raises(UnsupportedOperation, match="1 queue"):
                await service.accounts.delete_account(SHOP)

            world.journal.error = None
            await service.registry.reconcile()
            await service.accounts.delete_account(SHOP)

    run(scenario, tmp_path)


def test_unknown_account_is_not_deleted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(ResourceNotFound, match=f"The account {SHOP} does not exist"):
                await service.accounts.delete_account(SHOP)

    run(scenario, tmp_path)


def test_accounts_are_deleted_once_the_cell_writes_a_format_that_knows_it(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started(cell_format=CellFormat(4)) as (a, _):
            await a.accounts.create_account("shop", SHOP)
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await a.accounts.delete_account(SHOP)
            assert a.accounts.account(SHOP) is not None

    run_cell(scenario, tmp_path)


def test_upkeep_deletes_keys_that_a_crash_left_of_a_deleted_account(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            key = await service.accounts.create_access_key(SHOP)
            row = await world.store.get(ACCESS_KEYS + key.access_key_id)
            await service.accounts.delete_account(SHOP)
        assert row is not None
        await world.store.transaction([], [Put(row.key, row.value)])
        async with world.service() as service:
            assert service.access_key(key.access_key_id) is None

            await service.run_upkeep()

            assert service.accounts.list_access_keys(SHOP) == []
            assert await world.store.get(row.key) is None
            await service.run_upkeep()

    run(scenario, tmp_path)


# In a cell


def test_account_deleted_at_one_front_end_is_gone_at_the_other(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.accounts.create_account("shop", SHOP)
            key = await a.accounts.create_access_key(SHOP)
            session = a.sessions.create(key.access_key_id, HOUR_MS)
            assert await b.look_up(partial(is_good, b, session))
            await a.queues.change(CreateQueue(SHOP, "orders"))
            with pytest.raises(UnsupportedOperation, match="1 queue"):
                await a.accounts.delete_account(SHOP)
            await b.queues.change(DeleteQueue(SHOP, "orders"))

            await a.accounts.delete_account(SHOP)  # whichever node is asked knows that the queue is gone

            # It is no longer in memory, so the nodes are asked.
            await eventually(lambda: b.accounts.list_access_keys(SHOP) == [])
            assert await b.look_up(partial(b.access_key, key.access_key_id)) is None
            assert not await b.look_up(partial(is_good, b, session))
            with pytest.raises(InvalidClientTokenId):
                await b.queues.change(CreateQueue(SHOP, "refunds"))
            await eventually(lambda: b.accounts.account(SHOP) is None)
            with pytest.raises(InvalidParameterValue, match="choose another id"):
                await b.accounts.create_account("other", SHOP)

    run_cell(scenario, tmp_path)


def test_keys_left_of_a_deleted_account_are_deleted_by_any_front_end(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.accounts.create_account("shop", SHOP)
            await a.accounts.create_access_key(SHOP)
            await eventually(lambda: len(b.accounts.list_access_keys(SHOP)) == 1)

            async def crash(account_id: str) -> None:
                raise NotNow

            a.accounts._delete_keys_of = crash  # type: ignore[method-assign]
            with pytest.raises(NotNow):
                await a.accounts.delete_account(SHOP)
            await eventually(lambda: b.accounts.account(SHOP) is None)

            await b.run_upkeep()

            assert b.accounts.list_access_keys(SHOP) == []

    run_cell(scenario, tmp_path)


def test_nothing_is_deleted_while_no_node_says_how_many_queues_there_are(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started(change_ms=50) as (a, _):
            account = await a.accounts.create_account("shop", SHOP)
            await cell.kill("one")
            await cell.kill("two")

            with pytest.raises(NotNow):
                await a.accounts.delete_account(SHOP)

            assert a.accounts.account(SHOP) == account
            row = await cell.store.get(ACCOUNTS + SHOP)
            assert row is not None
            assert decode_account(row.value) == account

    run_cell(scenario, tmp_path)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_account_is_as_it_was_when_its_queues_could_not_be_counted_again(
    tmp_path: Path, was_enabled: bool
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            await accounts.create_account("shop", SHOP)
            before = await accounts.set_account_enabled(SHOP, enabled=was_enabled)
            count = accounts._count_queues

            async def fail_later(account_id: str, at_least: int) -> Any:
                if at_least:
                    raise Unreachable
                return await count(account_id, at_least)

            accounts._count_queues = fail_later
            with pytest.raises(NotNow):
                await accounts.delete_account(SHOP)

            assert accounts.account(SHOP) == before

    run(scenario, tmp_path)


# At the same moment


Make = Callable[[MetadataService, str], Awaitable[object]]


async def make_queue(metadata: MetadataService, key_id: str) -> object:
    return await metadata.queues.change(CreateQueue(SHOP, "orders"))


async def make_key(metadata: MetadataService, key_id: str) -> object:
    return await metadata.accounts.create_access_key(SHOP)


MAKERS = [make_queue, make_key]


async def begin(metadata: Sequence[MetadataService]) -> str:
    """Make an account with a key that all know, and return the key's id."""
    accounts = metadata[0].accounts
    await accounts.create_account("shop", SHOP)
    key = await accounts.create_access_key(SHOP)
    await eventually(lambda: all(each.accounts.list_access_keys(SHOP) == [key] for each in metadata))
    await eventually(lambda: all(each.accounts.account(SHOP) for each in metadata))
    return key.access_key_id


async def settled(store: Coordination, metadata: Sequence[MetadataService]) -> str:
    """Return the account's state once all have heard of it; nothing but its row may be left of a deleted one."""
    row = await store.get(ACCOUNTS + SHOP)
    assert row is not None
    account = decode_account(row.value)
    await eventually(lambda: all(each.accounts._accounts.get(SHOP) == account for each in metadata))
    for each in metadata:
        await each.run_upkeep()
    if account.state == "deleted":
        assert await keys_of(store, f"{QUEUES}{SHOP}/") == []
        assert len(await keys_of(store, ACCESS_KEYS)) == 1  # the default account's
    return account.state


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("make", MAKERS)
def test_whatever_is_made_while_its_account_is_deleted_is_not_left_over(
    tmp_path: Path, make: Make, step: int
) -> None:
    async def scenario(world: World) -> None:
        store = ActingStore()
        world.store = store
        async with world.service() as one, world.service() as two:
            key_id = await begin([one, two])
            store.act_before(step, partial(one.accounts.delete_account, SHOP))
            is_made = False
            with suppress(CallerError):
                await make(two, key_id)
                is_made = True
            if not store.has_acted:
                return  # it takes fewer transactions

            state = await settled(store, [one, two])

            assert state == ("enabled" if is_made else "deleted")

    run(scenario, tmp_path)


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("make", MAKERS)
def test_account_that_gets_something_while_it_is_deleted_is_deleted_with_it_or_kept(
    tmp_path: Path, make: Make, step: int
) -> None:
    async def scenario(world: World) -> None:
        store = ActingStore()
        world.store = store
        async with world.service() as one, world.service() as two:
            key_id = await begin([one, two])
            made: list[object] = []

            async def act() -> None:
                made.append(await make(two, key_id))

            store.act_before(step, act)
            with suppress(CallerError):
                await one.accounts.delete_account(SHOP)
            if not store.has_acted:
                return  # it takes fewer transactions

            state = await settled(store, [one, two])

            # An account that was kept works as before.
            assert state == ("enabled" if made and make is make_queue else "deleted")

    run(scenario, tmp_path)


def test_account_that_an_operator_disables_while_its_deletion_fails_stays_disabled(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            await accounts.create_account("shop", SHOP)
            counts = iter((CountedQueues(0, 0), CountedQueues(1, 0), CountedQueues(1, 0)))

            async def count(account_id: str, at_least: int) -> CountedQueues:
                if at_least:
                    await accounts.set_account_enabled(SHOP, enabled=False)
                return next(counts)

            accounts._count_queues = count
            with pytest.raises(UnsupportedOperation, match="1 queue"):
                await accounts.delete_account(SHOP)

            account = accounts.account(SHOP)
            assert account is not None
            assert account.state == "disabled"

    run(scenario, tmp_path)


@pytest.mark.parametrize("change", [CreateQueue, DeleteQueue])
def test_node_counts_queues_as_they_are_in_the_store(tmp_path: Path, change: Callable[..., Any]) -> None:
    async def scenario(cell: Cell) -> None:
        store = cell.store
        assert isinstance(store, HeldStore)
        async with cell.node("late"), cell.node("one"), cell.front_end("a", nodes=("one",)) as a:
            cell.copy_keys("a", "b")
            async with cell.front_end("b", nodes=("late",)) as b:
                await begin([a, b])
                if change is DeleteQueue:
                    await a.queues.change(CreateQueue(SHOP, "orders"))
                    await eventually(lambda: cell.nodes["late"].queues.find(SHOP, "orders") is not None)
                store.told.clear()
                await a.queues.change(change(SHOP, "orders"))

                deleting = asyncio.create_task(b.accounts.delete_account(SHOP))
                await eventually(lambda: b.links["late"].asked_for(CountQueues) > 0)
                store.told.set()

                if change is DeleteQueue:
                    await deleting
                else:
                    with pytest.raises(UnsupportedOperation, match="1 queue"):
                        await deleting
                expected = "deleted" if change is DeleteQueue else "enabled"
                assert await settled(store, [a, b]) == expected

    run_cell(scenario, tmp_path, HeldStore())


def states_of(metadata: MetadataService) -> list[str]:
    return [account.state for account in metadata.accounts.list_accounts("1") if account.account_id == SHOP]


@pytest.mark.parametrize("hears", [True, False])
def test_queue_that_another_process_has_just_created_counts_though_it_was_not_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    if not hears:
        monkeypatch.setattr(queue_registry, "CATCH_UP_MS", 10)

    async def scenario(world: World) -> None:
        store = HeldStore()
        world.store = store
        async with world.service() as one, world.service() as two:
            await begin([one, two])
            store.told.clear()
            await two.queues.change(CreateQueue(SHOP, "orders"))
            assert one.find_queue(SHOP, "orders") is None

            deleting = asyncio.create_task(one.accounts.delete_account(SHOP))
            await eventually(lambda: states_of(two) != ["enabled"] or deleting.done())
            if hears:
                store.told.set()
            with pytest.raises(UnsupportedOperation if hears else NotNow):
                await deleting

            store.told.set()
            assert await settled(store, [one, two]) == "enabled"

    run(scenario, tmp_path)


@asynccontextmanager
async def opened(kind: str, directory: Path, etcd: EtcdCluster | None) -> AsyncIterator[Coordination]:
    store: Coordination
    if kind == "memory":
        store = SlowStore(random.Random(directory.name))
    elif kind == "sqlite":
        store = await SQLiteCoordination.open(directory / "metadata.sqlite")
    else:
        assert etcd is not None
        store = etcd.store(f"{directory.name}/")
    try:
        yield store
    finally:
        await store.close()


async def race(store: Coordination, chance: random.Random, metadata: Sequence[MetadataService]) -> None:
    """Delete an account while it gets and loses queues, keys and sessions, and look at what is left."""
    key_id = await begin(metadata)

    async def work(kind: int, delay: int) -> object:
        each: Any = chance.choice(metadata)
        for _ in range(delay):
            await asyncio.sleep(0)
        if kind < 3:
            return await each.accounts.delete_account(SHOP)
        if kind < 5:
            return await each.queues.change(DeleteQueue(SHOP, "orders"))
        return await MAKERS[kind % len(MAKERS)](each, key_id)

    works = [work(kind, chance.randrange(60)) for kind in range(9)]
    made = await asyncio.gather(*works, return_exceptions=True)

    assert [each for each in made if isinstance(each, Exception) and not isinstance(each, CallerError)] == []
    assert await settled(store, metadata) in ("enabled", "deleted")


@pytest.mark.parametrize("seed", range(60))
def test_races_of_deletion_and_creation_leave_a_deleted_account_nothing(tmp_path: Path, seed: int) -> None:
    async def scenario(world: World) -> None:
        chance = random.Random(seed)
        world.store = SlowStore(chance)
        async with AsyncExitStack() as stack:
            services = [await stack.enter_async_context(world.service()) for _ in range(3)]
            await race(world.store, chance, services)

    run(scenario, tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_races_in_a_cell_leave_a_deleted_account_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await race(cell.store, chance, [a, b])

    run_cell(scenario, tmp_path, SlowStore(chance))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with EtcdCluster.started(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_races_in_real_stores_leave_a_deleted_account_nothing(
    tmp_path: Path, kind: str, seed: int, request: pytest.FixtureRequest
) -> None:
    cluster = request.getfixturevalue("etcd") if kind == "etcd" else None

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), opened(kind, tmp_path, cluster) as store:
            world = World(tmp_path, store)
            chance = random.Random(seed)
            async with AsyncExitStack() as stack:
                services = [await stack.enter_async_context(world.service()) for _ in range(2)]
                await race(store, chance, services)

    asyncio.run(main())

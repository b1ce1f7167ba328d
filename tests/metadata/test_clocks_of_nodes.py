"""What waits in metadata waits for its time, whatever the clock of a node or front end shows, and not longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from harness.etcd import EtcdCluster

from metadata.cell import Cell, FrontEnd, run_cell
from metadata.support import ACCOUNT, START_MS, Clock, World, eventually, is_good, run
from quaymaster.coordination.counted_time import COUNTED_AT_ONCE_MAX_MS
from quaymaster.coordination.interface import Coordination, Put
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.values.errors import (
    JournalStopped,
    NotNow,
    PurgeQueueInProgress,
    QueueDeletedRecently,
    UnsupportedOperation,
)
from quaymaster.metadata.keys.data_keys import RECEIPT_KEY_KEPT_MS
from quaymaster.metadata.keys.session_keys import SESSION_KEY_KEPT_MS
from quaymaster.metadata.other_front_ends import GONE_MS
from quaymaster.metadata.queues import deletion
from quaymaster.metadata.store.rows import (
    DELETED,
    PENDING,
    READERS,
    RECEIPT_KEYS,
    ROW_VERSION,
    SESSION_KEYS,
    DeletedRow,
    PendingRow,
    encode_row,
)
from quaymaster.protocol.rpc.metadata_messages import BeginPurge, CreateQueue, DeleteQueue

YEAR_S = 365 * 86_400
OFF_S = [160, 14 * 3_600, 30 * 86_400, YEAR_S, -160, -14 * 3_600, -30 * 86_400, -YEAR_S]


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_name_rests_for_a_minute_whatever_the_clock_shows_then(tmp_path: Path, off_s: int) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            world.clock.set_s(off_s)
            world.clock.pass_s(59)
            with pytest.raises(QueueDeletedRecently):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))

            world.clock.pass_s(1)

            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


@pytest.mark.parametrize("off_s", OFF_S)
def test_purges_are_a_minute_apart_whatever_the_clock_shows_then(tmp_path: Path, off_s: int) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            purge = BeginPurge(queue.account_id, queue.name, queue.queue_id)
            await service.queues.change(purge)
            world.clock.set_s(off_s)
            world.clock.pass_s(59)
            await service.registry.queues.reconcile()
            with pytest.raises(PurgeQueueInProgress):
                await service.queues.change(purge)

            world.clock.pass_s(1)

            await service.queues.change(purge)

    run(scenario, tmp_path)


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_node_whose_clock_is_wrong_drops_no_deletion_and_finishes_nothing_of_others_before_a_minute_is_over(
    tmp_path: Path, off_s: int
) -> None:
    async def scenario(cell: Cell) -> None:
        wrong = Clock()
        wrong.set_s(off_s)
        async with (
            cell.node("right"),
            cell.node("wrong", now_ms=wrong) as astray,
            cell.front_end("a", nodes=("right",)) as a,
        ):
            await a.queues.change(CreateQueue(ACCOUNT, "gone"))
            await a.queues.change(DeleteQueue(ACCOUNT, "gone"))
            cell.journal.error = JournalStopped()
            with pytest.raises(NotNow):
                await a.queues.change(CreateQueue(ACCOUNT, "half"))
            cell.journal.error = None
            await cell.pass_s(59)
            await astray.registry.run_upkeep()
            for prefix in (DELETED, PENDING):
                assert len((await cell.store.list_all(prefix))[0]) == 1

            await cell.pass_s(1)
            await astray.registry.run_upkeep()

            for prefix in (DELETED, PENDING):
                assert not (await cell.store.list_all(prefix))[0]
            assert astray.queues.queue(ACCOUNT, "half").state == "active"

    run_cell(scenario, tmp_path)


def test_deletions_and_pending_changes_that_a_store_brings_wait_for_a_minute_whatever_their_rows_say(
    tmp_path: Path,
) -> None:
    """Programs of before have written the time of their clock, and a restored store has rows of long ago."""

    async def scenario(world: World) -> None:
        async with world.service():
            pass  # which makes the first keys
        for number, at_ms in enumerate((0, START_MS, 2 * START_MS)):
            rows = ((DELETED, DeletedRow(number, at_ms)), (PENDING, PendingRow(number, at_ms)))
            for prefix, row in rows:
                await world.store.transaction([], [Put(f"{prefix}{ACCOUNT}/q{number}", encode_row(row))])
        async with world.service() as service:
            for passed_s, left in ((0, 3), (59, 3), (1, 0)):
                world.clock.pass_s(passed_s)
                await service.registry.run_upkeep()
                for prefix in (DELETED, PENDING):
                    assert len((await world.store.list_all(prefix))[0]) == left

    run(scenario, tmp_path)


@asynccontextmanager
async def store_of(kind: str, directory: Path) -> AsyncIterator[Coordination]:
    with ExitStack() as stack:
        store: Coordination
        if kind == "sqlite":
            store = await SQLiteCoordination.open(directory / "metadata.sqlite")
        else:
            store = stack.enter_context(EtcdCluster.started(directory)).store("q/")
        try:
            yield store
        finally:
            await store.close()


@pytest.mark.parametrize("off_s", [YEAR_S, -YEAR_S])
@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_names_rest_for_a_minute_in_stores_of_both_kinds(tmp_path: Path, kind: str, off_s: int) -> None:
    async def scenario(world: World) -> None:
        async with store_of(kind, tmp_path) as store:
            world.store = store
            async with world.service() as one, world.service() as two:
                await one.queues.change(CreateQueue(ACCOUNT, "orders"))
                await one.queues.change(DeleteQueue(ACCOUNT, "orders"))
                await eventually(lambda: len(two.registry.queues.deleted) == 1)
                world.clock.set_s(off_s)
                for node in (one, two):
                    with pytest.raises(QueueDeletedRecently):
                        await node.queues.change(CreateQueue(ACCOUNT, "orders"))
                    await node.registry.run_upkeep()
                assert len((await store.list_all(DELETED))[0]) == 1

                world.clock.pass_s(60)

                await two.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path / "keys")


def test_a_deletion_that_comes_while_old_ones_are_dropped_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "DROPPED_AT_ONCE", 1)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            for name in ("first", "orders"):
                await service.queues.change(CreateQueue(ACCOUNT, name))
                await service.queues.change(DeleteQueue(ACCOUNT, name))
            world.clock.pass_s(60)

            async def use_and_delete_again() -> None:
                world.journal.before = None
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))
                await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            world.journal.before = use_and_delete_again
            await service.registry.queues.reconcile()

            with pytest.raises(QueueDeletedRecently):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


def test_what_was_cut_in_half_in_the_future_is_finished(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            world.journal.error = JournalStopped()
            with pytest.raises(JournalStopped):
                await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
        world.journal.error = None
        world.clock.set_s(-YEAR_S)

        async with world.service() as service:
            assert await service.registry.queues.finish_pending() == 1

        assert created.queue_id in world.journal.deleted

    run(scenario, tmp_path)


def test_a_session_that_was_made_in_the_future_has_ended(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.default_access_key is not None
            session = service.sessions.create(service.default_access_key.access_key_id, 3_600_000)
            world.clock.set_s(-1_800)
            assert is_good(service, session)
            world.clock.set_s(-YEAR_S)

            assert not is_good(service, session)

    run(scenario, tmp_path)


@asynccontextmanager
async def right_and_astray(cell: Cell, off_s: int) -> AsyncIterator[tuple[FrontEnd, FrontEnd]]:
    """Start two front ends that know each other; the clock of the second one is wrong."""
    wrong = Clock()
    wrong.set_s(off_s)
    async with cell.node("one"), cell.front_end("right", nodes=("one",)) as right:
        cell.copy_keys("right", "wrong")
        async with cell.front_end("wrong", nodes=("one",), now_ms=wrong) as astray:
            for each in (right, astray):
                await eventually(lambda: len(each.others._readers) == 2)  # noqa: B023
            yield right, astray


async def keys_after_upkeep(cell: Cell, who: FrontEnd, prefix: str) -> list[int]:
    await who.run_upkeep()
    rows, _ = await cell.store.list_all(prefix)
    return [int(row.key.removeprefix(prefix), 16) for row in rows]


@pytest.mark.parametrize("off_s", OFF_S)
@pytest.mark.parametrize("prefix", [SESSION_KEYS, RECEIPT_KEYS])
def test_a_front_end_whose_clock_is_wrong_deletes_no_key_of_all_before_its_time_and_does_so_then(
    tmp_path: Path, off_s: int, prefix: str
) -> None:
    kept_s = (SESSION_KEY_KEPT_MS if prefix == SESSION_KEYS else RECEIPT_KEY_KEPT_MS) // 1_000

    async def scenario(cell: Cell) -> None:
        async with right_and_astray(cell, off_s) as (right, astray):
            for number, maker in ((2, right), (3, astray)):
                if prefix == SESSION_KEYS:
                    await maker.rotate_session_key()
                else:
                    await maker.rotate_receipt_key()
                assert number == max(await keys_after_upkeep(cell, astray, prefix))
            for who in (right, astray):
                assert await keys_after_upkeep(cell, who, prefix) == [1, 2, 3]
            cell.clock.pass_s(kept_s - 60)
            for who in (right, astray):
                assert await keys_after_upkeep(cell, who, prefix) == [1, 2, 3]

            cell.clock.pass_s(180)

            assert await keys_after_upkeep(cell, astray, prefix) == [3]

    run_cell(scenario, tmp_path)


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_front_end_whose_clock_is_wrong_counts_all_and_retires_no_master_key_that_another_one_needs(
    tmp_path: Path, off_s: int
) -> None:
    async def scenario(cell: Cell) -> None:
        async with right_and_astray(cell, off_s) as (right, astray):
            old = right.master_key_id
            for one, other in ((right, "wrong"), (astray, "right")):
                await one.run_upkeep()
                assert one.count_front_ends() == 2
                with pytest.raises(UnsupportedOperation, match=f"front ends {other} do not have"):
                    await one.rotate_master_key()

            assert old in await asyncio.to_thread(right.master_keys._provider.key_ids)
            assert right.master_key_id == astray.master_key_id == old

    run_cell(scenario, tmp_path)


def test_a_front_end_of_an_older_program_is_there_until_it_is_not_heard_of_for_long(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one"), cell.front_end("a", nodes=("one",)) as a:
            old = msgspec.msgpack.encode(("old", (), cell.clock() - 1_000_000_000))
            await cell.store.transaction([], [Put(READERS + "old", bytes([ROW_VERSION]) + old)])
            await eventually(lambda: a.count_front_ends() == 2)
            await a.run_upkeep()
            cell.clock.pass_s((GONE_MS + COUNTED_AT_ONCE_MAX_MS) / 1_000 - 1)
            await a.run_upkeep()
            await cell.nodes["one"].beat()
            assert a.count_front_ends() == 2

            cell.clock.pass_s(1)
            await a.run_upkeep()

            await eventually(lambda: a.count_front_ends() == 1)

    run_cell(scenario, tmp_path)

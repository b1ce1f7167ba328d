"""What a node with a clock that was ahead has written keeps no other, and not itself, waiting until that time comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from metadata.cell import Cell, FrontEnd, run_cell
from metadata.support import ACCOUNT, Clock, World, eventually, is_good, run
from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import (
    JournalStopped,
    PurgeQueueInProgress,
    QueueDeletedRecently,
    UnsupportedOperation,
)
from quaymaster.metadata.keys.data_keys import RECEIPT_KEY_KEPT_MS
from quaymaster.metadata.keys.session_keys import SESSION_KEY_KEPT_MS
from quaymaster.metadata.other_front_ends import GONE_MS
from quaymaster.metadata.store.rows import READERS, RECEIPT_KEYS, ROW_VERSION, SESSION_KEYS
from quaymaster.protocol.rpc.metadata_messages import BeginPurge, CreateQueue, DeleteQueue

YEAR_S = 365 * 86_400


def test_name_of_a_queue_that_was_deleted_in_the_future_may_be_used_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            world.clock.set_s(-YEAR_S)

            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


def test_a_name_rests_though_the_clock_that_wrote_its_end_is_a_little_ahead(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            world.clock.set_s(-30)

            with pytest.raises(QueueDeletedRecently):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


def test_queue_that_was_purged_in_the_future_may_be_purged_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            purge = BeginPurge(queue.account_id, queue.name, queue.queue_id)
            await service.queues.change(purge)
            world.clock.set_s(-YEAR_S)

            await service.queues.change(purge)

            with pytest.raises(PurgeQueueInProgress):
                await service.queues.change(purge)

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


def test_marks_that_were_written_in_the_future_are_dropped(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(CreateQueue(ACCOUNT, "gone"))
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            await service.queues.change(DeleteQueue(ACCOUNT, "gone"))
            world.clock.set_s(-YEAR_S)

            await service.registry.queues.reconcile()

            assert (await world.memory.list_prefix("/purges/")).items == ()
            assert (await world.memory.list_prefix("/deleted/")).items == ()

    run(scenario, tmp_path)


def test_a_deleted_queue_is_remembered_where_clocks_differ_by_minutes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "gone"))
            await service.queues.change(DeleteQueue(ACCOUNT, "gone"))
            world.clock.set_s(-600)

            await service.registry.queues.reconcile()

            assert len((await world.memory.list_prefix("/deleted/")).items) == 1

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


OFF_S = [160, 14 * 3_600, 30 * 86_400, YEAR_S, -160, -14 * 3_600, -30 * 86_400, -YEAR_S]


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
            cell.clock.pass_s(GONE_MS / 1_000 - 1)
            await a.run_upkeep()
            await cell.nodes["one"].beat()
            assert a.count_front_ends() == 2

            cell.clock.pass_s(1)
            await a.run_upkeep()

            await eventually(lambda: a.count_front_ends() == 1)

    run_cell(scenario, tmp_path)

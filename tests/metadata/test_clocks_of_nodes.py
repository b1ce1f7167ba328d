"""What a node with a clock that was ahead has written keeps no other, and not itself, waiting until that time comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, Clock, World, eventually, is_good, run
from quaymaster.core.values.errors import JournalStopped, PurgeQueueInProgress, QueueDeletedRecently
from quaymaster.protocol.rpc.metadata_messages import BeginPurge, CreateQueue, DeleteQueue

YEAR_S = 365 * 86_400


def test_name_of_a_queue_that_was_deleted_in_the_future_may_be_used_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            world.clock.pass_s(-YEAR_S)

            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


def test_a_name_rests_though_the_clock_that_wrote_its_end_is_a_little_ahead(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            world.clock.pass_s(-30)

            with pytest.raises(QueueDeletedRecently):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


def test_queue_that_was_purged_in_the_future_may_be_purged_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            purge = BeginPurge(queue.account_id, queue.name, queue.queue_id)
            await service.queues.change(purge)
            world.clock.pass_s(-YEAR_S)

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
        world.clock.pass_s(-YEAR_S)

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
            world.clock.pass_s(-YEAR_S)

            await service.registry.queues.reconcile()

            assert (await world.memory.list_prefix("/purges/")).items == ()
            assert (await world.memory.list_prefix("/deleted/")).items == ()

    run(scenario, tmp_path)


def test_a_deleted_queue_is_remembered_where_clocks_differ_by_minutes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "gone"))
            await service.queues.change(DeleteQueue(ACCOUNT, "gone"))
            world.clock.pass_s(-600)

            await service.registry.queues.reconcile()

            assert len((await world.memory.list_prefix("/deleted/")).items) == 1

    run(scenario, tmp_path)


def test_a_session_that_was_made_in_the_future_has_ended(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.default_access_key is not None
            session = service.sessions.create(service.default_access_key.access_key_id, 3_600_000)
            world.clock.pass_s(-1_800)
            assert is_good(service, session)
            world.clock.pass_s(-YEAR_S)

            assert not is_good(service, session)

    run(scenario, tmp_path)


@pytest.mark.parametrize("off_s", [30 * 86_400, -30 * 86_400])
def test_a_front_end_whose_clock_is_wrong_renews_and_deletes_no_session_key_while_another_one_disagrees(
    tmp_path: Path, off_s: int
) -> None:
    async def scenario(cell: Cell) -> None:
        wrong = Clock()
        wrong.pass_s(off_s)
        async with cell.node("one"), cell.front_end("right", nodes=("one",)) as right:
            cell.copy_keys("right", "wrong")
            async with cell.front_end("wrong", nodes=("one",), now_ms=wrong) as astray:
                await right.rotate_session_key()
                await right.run_upkeep()
                await eventually(lambda: len(astray.session_keys._rows) == 2)
                await eventually(lambda: len(astray.others._readers) == 2)

                await astray.run_upkeep()

                assert len(astray.session_keys._rows) == 2

    run_cell(scenario, tmp_path)

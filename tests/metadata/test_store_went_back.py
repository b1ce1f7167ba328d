"""A store that was restored from an older copy gives no id again that a journal has seen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.server_metadata import ServerMetadata

from metadata.cell import Cell
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.coordination.interface import KeyValue, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.core.values.queues.queue_marks import identity_of
from quaymaster.metadata.queues.id_guard import StoreWentBack
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.metadata.store.rows import ACCEPTED
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, Greet, SetAttributes


class RestorableStore(MemoryCoordination):
    """A store that an operator copies, and later restores from the copy. Watches notice nothing of it."""

    def copied(self) -> tuple[dict[str, KeyValue], int]:
        return dict(self._rows), self._revision

    def restore(self, copy: tuple[dict[str, KeyValue], int]) -> None:
        self._rows, self._revision = dict(copy[0]), copy[1]
        self._history.clear()


def in_restorable_store(world: World) -> RestorableStore:
    store = RestorableStore()
    world.store = store
    return store


async def create(service: ServerMetadata, *names: str) -> list[QueueDefinition]:
    own_key = {"KmsMasterKeyId": "alias/own"}
    return [await service.queues.change(CreateQueue(ACCOUNT, name, own_key, {}, None)) for name in names]


def test_ids_that_a_journal_has_seen_are_not_given_again_after_an_operator_accepted_the_store(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        store = in_restorable_store(world)
        async with world.service() as service:
            await create(service, "kept")
            copy = store.copied()
        for number in range(3):  # each start sets a block aside
            async with world.service() as service:
                made = await create(service, f"lost-{number}")
        store.restore(copy)

        async with world.service() as service:
            for _ in range(2):
                with pytest.raises(StoreWentBack, match=r"journals have seen .*quaymaster force-store"):
                    await create(service, "new")
            assert "force-store" in (service.registry.queues.id_guard.problem or "")
            await store.transaction([], [Put(ACCEPTED, b"1")])
            (new,) = await create(service, "new")

            assert new.queue_id > made[0].queue_id
            assert new.data_key_id > made[0].data_key_id
            assert not service.registry.queues.id_guard.problem
            assert await store.get(ACCEPTED) is None  # the next time it is asked again
            asked = world.journal.asked_marks
            await create(service, "more")
            assert world.journal.asked_marks == asked

    run(scenario, tmp_path)


def test_a_data_key_that_was_set_aside_before_the_store_went_back_is_not_given_after_that(
    tmp_path: Path,
) -> None:
    """A front end asked for it ahead of time, and runs on: a journal may have messages under its number."""

    async def scenario(world: World) -> None:
        store = in_restorable_store(world)
        async with world.service() as service:
            await create(service, "kept")
            copy = store.copied()
        for number in range(3):
            async with world.service() as service:
                held = await service.data_keys.new_data_key()
                await create(service, f"lost-{number}")
        store.restore(copy)

        async with world.service() as service:
            await store.transaction([], [Put(ACCEPTED, b"1")])
            own_key = {"KmsMasterKeyId": "alias/own"}
            with pytest.raises(DataKeyStale):
                await service.registry.queues.change(CreateQueue(ACCOUNT, "new", own_key, {}, held))

            assert held.key_id <= service.registry.queues.id_guard.data_key_floor
            (new,) = await create(service, "new")
            assert new.data_key_id > held.key_id

    run(scenario, tmp_path)


def test_ids_of_a_block_that_the_store_has_forgotten_are_not_given(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = in_restorable_store(world)
        async with world.service() as first:
            copy = store.copied()
            (lost,) = await create(first, "lost")
            store.restore(copy)
            of_an_older_format = CellFormat(3)  # it does not ask the journal
            async with world.service(cell_format=of_an_older_format) as second:
                (other,) = await create(second, "other")

                await store.transaction([], [Put(ACCEPTED, b"1")])
                (again,) = await create(first, "again")

                assert len({lost.queue_id, again.queue_id}) == 2
                assert again.queue_id != other.queue_id

    run(scenario, tmp_path)


def test_a_journal_that_has_another_queue_under_the_id_keeps_it_and_the_new_one_gets_another_id(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        store = in_restorable_store(world)
        copy = store.copied()
        # No journal of such a cell can be asked.
        async with world.service(cell_format=CellFormat(3)) as service:
            (lost,) = await create(service, "lost")
        store.restore(copy)
        world.clock.pass_s(100)
        async with world.service(cell_format=CellFormat(3)) as service:
            (new,) = await create(service, "new")

            assert new.queue_id != lost.queue_id
            assert identity_of(world.journal.queues[lost.queue_id]) == identity_of(lost)
            assert service.find_queue(ACCOUNT, "new") == new

    run(scenario, tmp_path)


def test_deleting_a_queue_spares_another_one_that_the_journal_has_under_its_id(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            (queue,) = await create(service, "orders")
            other = world.journal.queues[queue.queue_id] = QueueDefinition(
                queue.queue_id, ACCOUNT, "other", "active", 1, 5, 5, {}, {}, 1, queue.partitions
            )

            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            assert world.journal.queues[queue.queue_id] == other
            assert service.find_queue(ACCOUNT, "orders") is None

    run(scenario, tmp_path)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_change_of_a_queue_counts_though_the_journal_has_later_ones_that_the_store_lost(
    tmp_path: Path, lost: int
) -> None:
    async def scenario(world: World) -> None:
        store = in_restorable_store(world)
        async with world.service() as service:
            (queue,) = await create(service, "orders")
            copy = store.copied()
            for number in range(lost):
                await service.queues.change(
                    SetAttributes(ACCOUNT, "orders", {"DelaySeconds": str(number + 1)})
                )
        store.restore(copy)

        async with world.service() as service:
            await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "77"}))

            stored = service.find_queue(ACCOUNT, "orders")
            assert stored is not None
            assert stored == world.journal.queues[queue.queue_id]
            assert (stored.revision, stored.attributes["DelaySeconds"]) == (lost + 2, "77")
            (notice,) = service.registry.queues.settling.lost_attributes.notices()
            assert f"lost attributes of 1 queues that their journals had ({ACCOUNT}/orders)" in notice
            assert await service.registry.queues.finish_pending() == 0
            world.journal.queues[queue.queue_id] = replace_definition(stored, revision=9)
            await service.registry.queues.settling.tell_again(
                stored
            )  # an operator goes on with what the store has
            stored = service.find_queue(ACCOUNT, "orders")
            assert stored == world.journal.queues[queue.queue_id]
            assert stored is not None
            assert stored.revision == 10

    run(scenario, tmp_path)


def test_a_creation_is_finished_though_the_journal_has_later_changes_that_the_store_lost(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        store = in_restorable_store(world)
        copies = []

        async def copy() -> None:
            copies.append(store.copied())

        async with world.service() as service:
            world.journal.before = copy
            (queue,) = await create(service, "orders")
            world.journal.before = None
            await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))
        store.restore(copies[0])

        async with world.service() as service:
            own_key = {"KmsMasterKeyId": "alias/own"}
            again = await service.queues.change(CreateQueue(ACCOUNT, "orders", own_key, {}, None))

            assert again == world.journal.queues[queue.queue_id]
            assert (again.queue_id, again.revision) == (queue.queue_id, 3)

    run(scenario, tmp_path)


def test_a_change_that_reaches_the_journal_after_a_later_one_takes_nothing_of_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as first, world.service() as second:
            (queue,) = await create(first, "orders")

            async def overtaken() -> None:
                world.journal.before = None
                await second.registry.mirror.refresh(f"/queues/{ACCOUNT}/orders")
                await second.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "6"}))

            world.journal.before = overtaken
            await first.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))

            assert world.journal.queues[queue.queue_id].attributes["DelaySeconds"] == "6"
            assert world.journal.queues[queue.queue_id].revision == 3

    run(scenario, tmp_path)


@pytest.mark.parametrize("more", [0, 100])
def test_a_node_whose_store_goes_back_says_so_and_ends(tmp_path: Path, more: int) -> None:
    store = RestorableStore()

    async def scenario(cell: Cell) -> None:
        copy = store.copied()
        async with cell.node("one") as node:
            told: list[Exception] = []
            node._on_unusable = told.append
            await node.beat()
            store.restore(copy)
            for number in range(more):  # others write to it before the node does
                await store.transaction([], [Put("/accounts/1", str(number).encode())])

            await eventually(lambda: bool(told))

            assert "went back" in str(told[0])
            assert "went back" in (node.why_not_ready() or "")
            with pytest.raises(NotNow):
                await node.answer(Greet())

    async def main() -> None:
        await scenario(Cell(tmp_path, store))

    asyncio.run(main())

"""Several metadata nodes over one store: whatever they do at once, and wherever one dies, all end of one mind."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from harness.server_metadata import ServerMetadata

from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, SetAttributes, TagQueue

NAMES = ("orders", "refunds", "parcels")


class SlowStore(MemoryCoordination):
    """A store whose answers take a few turns of the loop, more or fewer by chance."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def transaction(self, compares, puts=(), deletes=()):  # type: ignore[no-untyped-def]
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        revision = await super().transaction(compares, puts, deletes)
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        return revision


async def rows(world: World, prefix: str) -> list[str]:
    return [item.key for item in (await world.store.list_prefix(prefix)).items]


def test_nodes_that_start_together_make_one_account_with_one_key_and_one_receipt_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store = SlowStore(random.Random(1))
        async with AsyncExitStack() as stack:
            nodes = await asyncio.gather(*(stack.enter_async_context(world.service()) for _ in range(4)))

            shown = {node.default_access_key.access_key_id for node in nodes if node.default_access_key}
            assert len(shown) == 1
            assert await rows(world, "/accounts/") == ["/accounts/" + ACCOUNT]
            assert len(await rows(world, "/access_keys/")) == 1
            assert len(await rows(world, "/receipt_keys/")) == 1
            handle = nodes[0].receipt_handles
            assert all(type(node.receipt_handles) is type(handle) for node in nodes)

    run(scenario, tmp_path)


def test_one_name_created_on_every_node_at_once_is_one_queue(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store = SlowStore(random.Random(2))
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(world.service()) for _ in range(3)]

            created = await asyncio.gather(
                *(node.queues.change(CreateQueue(ACCOUNT, "orders")) for node in nodes for _ in range(3))
            )

            assert len({queue.queue_id for queue in created}) == 1
            assert list(world.journal.queues) == [created[0].queue_id]

    run(scenario, tmp_path)


def test_changes_of_one_queue_on_every_node_at_once_all_take_effect(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store = SlowStore(random.Random(3))
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(world.service()) for _ in range(3)]
            await nodes[0].queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: all(node.find_queue(ACCOUNT, "orders") for node in nodes))

            await asyncio.gather(
                nodes[0].queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"})),
                nodes[1].queues.change(SetAttributes(ACCOUNT, "orders", {"VisibilityTimeout": "7"})),
                nodes[2].queues.change(TagQueue(ACCOUNT, "orders", {"team": "quay"})),
                nodes[0].queues.change(TagQueue(ACCOUNT, "orders", {"stage": "test"})),
            )

            await eventually(lambda: len({id(node.queue(ACCOUNT, "orders").revision) for node in nodes}) == 1)
            for node in nodes:
                queue = node.queue(ACCOUNT, "orders")
                assert queue.attributes == {"DelaySeconds": "5", "VisibilityTimeout": "7"}
                assert queue.tags == {"team": "quay", "stage": "test"}
                assert world.journal.queues[queue.queue_id].revision == queue.revision == 3

    run(scenario, tmp_path)


async def change_at_random(node: ServerMetadata, chance: random.Random) -> None:
    name = chance.choice(NAMES)
    with suppress(CallerError, NotNow):
        match chance.randrange(4):
            case 0 | 1:
                await node.queues.change(CreateQueue(ACCOUNT, name))
            case 2:
                await node.queues.change(
                    SetAttributes(ACCOUNT, name, {"DelaySeconds": str(chance.randrange(900))})
                )
            case _:
                await node.queues.change(DeleteQueue(ACCOUNT, name))


@pytest.mark.parametrize("seed", range(40))
def test_nodes_that_create_set_delete_reconcile_and_die_leave_metadata_and_journal_of_one_mind(
    tmp_path: Path, seed: int
) -> None:
    async def scenario(world: World) -> None:
        chance = random.Random(seed)
        world.store = SlowStore(chance)

        async def slow_journal() -> None:
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)

        world.journal.before = slow_journal
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(world.service(queue_name_reuse_s=chance.choice([0, 60])))
                for _ in range(3)
            ]
            for _ in range(12):
                work = [asyncio.create_task(change_at_random(chance.choice(nodes), chance)) for _ in range(4)]
                work.append(asyncio.create_task(reconcile(chance.choice(nodes))))
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                # A node that dies stops in the middle of what it does.
                for task in chance.sample(work, chance.randrange(3)):
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                world.clock.pass_s(chance.choice([0, 1, 61]))

            last = chance.choice(nodes)
            for _ in range(3):
                await last.registry.mirror.refresh_all("/")
                world.clock.pass_s(3600)
                await reconcile(last)

        async with world.service() as fresh:
            active = {queue.queue_id: queue for queue in fresh.registry.queues.active_queues()}
            assert world.journal.queues.keys() == active.keys()
            assert {id_: revision_of(queue) for id_, queue in world.journal.queues.items()} == {
                id_: revision_of(queue) for id_, queue in active.items()
            }
            assert await rows(world, "/pending/") == await rows(world, "/deleted/") == []
            assert len(await rows(world, "/queues/")) == len(active)

    run(scenario, tmp_path)


async def reconcile(node: ServerMetadata) -> None:
    with suppress(NotNow):
        await node.registry.queues.reconcile()


def revision_of(queue: QueueDefinition) -> tuple[int, dict[str, str]]:
    return queue.revision, queue.attributes


def test_creation_a_dead_node_left_is_finished_by_another(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            world.journal.before = asyncio.Event().wait
            creating = asyncio.create_task(one.queues.change(CreateQueue(ACCOUNT, "orders")))
            await eventually(lambda: world.journal.calls == 1)
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
            world.journal.before = None
            await eventually(lambda: two.registry.queues.rows.get(f"{ACCOUNT}/orders") is not None)

            assert await two.registry.queues.reconcile() == 1

            assert two.queue(ACCOUNT, "orders").queue_id in world.journal.queues
            await eventually(lambda: one.find_queue(ACCOUNT, "orders") is not None)

    run(scenario, tmp_path)


def test_set_that_comes_after_its_node_died_and_the_queue_was_deleted_does_not_stay(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            queue = await one.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") is not None)
            await two.queues.change(DeleteQueue(ACCOUNT, "orders"))
            await world.journal.set_queue(queue)  # what a dead node had sent was under way until now
            assert list(world.journal.queues) == [queue.queue_id]

            world.clock.pass_s(60)
            await two.registry.queues.reconcile()

            assert world.journal.queues == {}

    run(scenario, tmp_path)


def test_creation_slower_than_the_deletion_by_another_node_leaves_nothing_in_the_journal(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:

            async def created_and_deleted_meanwhile() -> None:
                world.journal.before = None
                await eventually(lambda: two.registry.queues.rows.get(f"{ACCOUNT}/orders") is not None)
                await two.queues.change(CreateQueue(ACCOUNT, "orders"))
                await two.queues.change(DeleteQueue(ACCOUNT, "orders"))

            world.journal.before = created_and_deleted_meanwhile
            with suppress(CallerError):
                await one.queues.change(CreateQueue(ACCOUNT, "orders"))

            assert world.journal.queues == {}

    run(scenario, tmp_path)

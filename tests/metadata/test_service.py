"""The whole service over SQLite, and what happens when the store fails it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.coordination.interface import CoordinationUnavailable, Event, Put, StoreUnusable
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.metadata.keys.key_providers import FileKeyProvider
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store import mirror
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue


def test_everything_is_there_after_the_file_was_closed_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    async def scenario(world: World) -> None:
        world.store = await SQLiteCoordination.open(path)
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))
            await service.queues.change(CreateQueue(ACCOUNT, "gone"))
            await service.queues.change(DeleteQueue(ACCOUNT, "gone"))
            key = service.data_key(created.data_key_id)
            access_key = service.default_access_key
            handle = service.receipt_handles.mint(created.queue_id, 0, 1, 1, 1)
            master_key_id = await service.rotate_master_key()
        await world.store.close()

        world.store = await SQLiteCoordination.open(path)
        async with world.service() as service:
            assert service.queue(ACCOUNT, "orders") == created
            assert service.find_queue(ACCOUNT, "gone") is None
            assert service.data_key(created.data_key_id) == key
            assert service.default_access_key == access_key
            assert service.master_key_id == master_key_id
            service.receipt_handles.parse(handle, created.queue_id)
            later = await service.queues.change(CreateQueue(ACCOUNT, "later"))
            assert later.queue_id > created.queue_id
        await world.store.close()

    run(scenario, tmp_path / "keys")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


class InterruptedStore(MemoryCoordination):
    """A store whose watch breaks once, after which a change is missed."""

    interruptions = 0

    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[list[Event]]:
        if self.interruptions:
            self.interruptions -= 1
            raise CoordinationUnavailable
        async for events in super().watch(prefix, after_revision):
            yield events
            if self.interruptions:
                raise CoordinationUnavailable


def test_interrupted_watch_is_taken_up_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = InterruptedStore()
        world.store = store
        async with world.service() as one, world.service() as two:
            store.interruptions = 2
            await one.queues.change(CreateQueue(ACCOUNT, "a"))
            await one.queues.change(CreateQueue(ACCOUNT, "b"))

            await eventually(lambda: two.find_queue(ACCOUNT, "b") is not None)

            assert store.interruptions == 0
            assert two.registry.failure is None

    run(scenario, tmp_path)


def test_row_nobody_can_read_is_told_and_not_passed_over(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await world.memory.transaction([], [Put("/accounts/000000000001", b"\xffnewer")])

            await eventually(lambda: service.registry.failure is not None)

            assert isinstance(service.registry.failure, StoreUnusable)
            assert "version of Quaymaster that wrote it" in str(service.registry.failure)

    run(scenario, tmp_path)


def test_own_deletion_is_not_undone_by_a_late_event() -> None:
    table = mirror.MirrorTable("/t/", bytes)
    table.apply("a", b"1", 5)
    table.apply("a", None, 7)

    table.apply("a", b"1", 6)

    assert table.get("a") is None
    table.forget_deletions(7)
    table.apply("a", b"2", 8)
    assert table.get("a") == b"2"
    table.apply("a", b"1", 6)
    assert table.get("a") == b"2"


def test_closed_service_leaves_no_task_behind(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        before = asyncio.all_tasks()
        async with world.service():
            assert len(asyncio.all_tasks()) > len(before)

        assert asyncio.all_tasks() == before

    run(scenario, tmp_path)


@pytest.mark.parametrize("changed", [{"account_id": "111122223333"}, {"region": "eu-west-1"}])
def test_data_of_another_account_or_region_is_refused(tmp_path: Path, changed: dict[str, str]) -> None:
    async def start(*, account_id: str = "000000000000", region: str = "us-east-1") -> None:
        store = await SQLiteCoordination.open(tmp_path / "metadata.sqlite")
        options = MetadataOptions(region, account_id)
        registry = QueueRegistry(store, options, now_ms=lambda: 1_000_000)
        keys = FileKeyProvider(tmp_path / "keys")
        metadata = MetadataService(registry, keys, options, now_ms=lambda: 1_000_000)
        try:
            await metadata.start()
            await metadata.close()
        finally:
            await store.close()

    asyncio.run(start())
    asyncio.run(start())

    with pytest.raises(StoreUnusable, match=next(iter(changed.values()))):
        asyncio.run(start(**changed))

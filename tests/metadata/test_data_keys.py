"""Data keys of queues and keys of receipt handles."""

from __future__ import annotations

from pathlib import Path

import pytest

from quaymaster.core.errors import ReceiptHandleIsInvalid
from quaymaster.protocol.metadata_messages import CreateQueue

from .support import ACCOUNT, World, eventually, run


def test_each_queue_has_a_data_key_of_its_own_that_the_store_does_not_show(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queues = [await service.queues.change(CreateQueue(ACCOUNT, name)) for name in ("a", "b")]
            keys = [service.data_key(queue.data_key_id) for queue in queues]
            items, _ = await world.memory.list_all("/")

            assert keys[0] != keys[1]
            assert not any(key in item.value for key in keys for item in items)

    run(scenario, tmp_path)


def test_data_key_that_does_not_exist_is_a_key_error(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(KeyError):
                service.data_key(12345)

            queue = await service.queues.change(CreateQueue(ACCOUNT, "a"))
            assert service.data_key(queue.data_key_id)

    run(scenario, tmp_path)


def test_handles_are_good_on_every_node_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            handle = one.receipt_handles.mint(7, 0, 5, 1, 1)
            assert two.receipt_handles.parse(handle, 7).receipt.sequence == 5
        async with world.service() as service:
            assert service.receipt_handles.parse(handle, 7).receipt.sequence == 5

    run(scenario, tmp_path)


def test_handle_outlives_the_rotation_of_its_key_by_twelve_hours(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            handles = service.receipt_handles
            old = handles.mint(7, 0, 5, 1, 1)
            world.clock.pass_s(30 * 86_400)

            assert await service.rotate_receipt_key() == 2
            new = handles.mint(7, 0, 5, 1, 1)

            assert service.receipt_handles is handles
            assert new != old
            world.clock.pass_s(12 * 3600)
            await service.run_upkeep()
            assert handles.parse(old, 7) == handles.parse(new, 7)
            world.clock.pass_s(3601)
            await service.run_upkeep()
            with pytest.raises(ReceiptHandleIsInvalid):
                handles.parse(old, 7)
            assert handles.parse(new, 7).receipt.sequence == 5

    run(scenario, tmp_path)


def test_key_rotated_by_one_node_signs_on_the_others(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            before = two.receipt_handles.mint(7, 0, 5, 1, 1)
            await one.rotate_receipt_key()

            await eventually(lambda: two.receipt_handles.mint(7, 0, 5, 1, 1) != before)

            one.receipt_handles.parse(two.receipt_handles.mint(7, 0, 5, 1, 1), 7)
            assert await two.rotate_receipt_key() == 3

    run(scenario, tmp_path)


def test_newest_receipt_key_is_kept_however_old(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.clock.pass_s(400 * 86_400)

            assert await service.data_keys.drop_old_receipt_keys() == 0

            handle = service.receipt_handles.mint(7, 0, 5, 1, 1)
            assert service.receipt_handles.parse(handle, 7)

    run(scenario, tmp_path)

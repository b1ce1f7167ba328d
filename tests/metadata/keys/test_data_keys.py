"""Data keys of queues and keys of receipt handles."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.core.values.errors import ReceiptHandleIsInvalid
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.queues import shared_data_keys
from quaymaster.metadata.store.rows import DATA_KEYS
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue

OTHER = "111111111111"


def test_data_key_is_not_shown_by_the_store(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "a"))
            key = service.data_key(queue.data_key_id)
            items, _ = await world.memory.list_all("/")

            assert not any(key in item.value for item in items)

    run(scenario, tmp_path)


def test_queues_of_an_account_share_a_data_key_until_it_has_1024_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_data_keys.QUEUES_PER_DATA_KEY == 1_024
    monkeypatch.setattr(shared_data_keys, "QUEUES_PER_DATA_KEY", 3)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = [
                (await service.queues.change(CreateQueue(account_id, f"q{number}"))).data_key_id
                for account_id in (ACCOUNT, OTHER)
                for number in range(7)
            ]
        async with world.service() as service:  # counted again after a restart
            keys.append((await service.queues.change(CreateQueue(OTHER, "q7"))).data_key_id)

        shared = [list(group) for _, group in groupby(keys)]
        assert [len(group) for group in shared] == [3, 3, 1, 3, 3, 2]
        assert len(set(keys)) == 6

    run(scenario, tmp_path)


def test_queue_that_is_deleted_and_made_again_counts_once_for_the_data_key_of_its_account(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            first = await service.queues.change(CreateQueue(ACCOUNT, "a"))
            await service.queues.change(DeleteQueue(ACCOUNT, "a"))
            second = await service.queues.change(CreateQueue(ACCOUNT, "a"))

            assert first.data_key_id == second.data_key_id
            assert service.registry.queues.queues_with_key(first.data_key_id) == 1

    run(scenario, tmp_path)


def test_queue_created_with_a_kms_key_has_a_data_key_of_its_own(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            attributes: dict[str, dict[str, str]] = {"a": {}, "b": {"KmsMasterKeyId": "alias/mine"}, "c": {}}
            keys = [
                (await service.queues.change(CreateQueue(ACCOUNT, name, given))).data_key_id
                for name, given in attributes.items()
            ]

            assert keys[0] == keys[2] != keys[1]

    run(scenario, tmp_path)


def test_queues_created_at_the_same_time_by_several_processes_share_a_key_that_all_can_read(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            made = await asyncio.gather(
                *(
                    service.queues.change(CreateQueue(ACCOUNT, f"{service is one}-{number}"))
                    for number in range(20)
                    for service in (one, two)
                )
            )
            await eventually(lambda: len(one.queues) == len(two.queues) == 40)

            assert len({queue.data_key_id for queue in made}) == 1
            assert one.data_key(made[0].data_key_id) == two.data_key(made[0].data_key_id)
            assert len((await world.memory.list_all(DATA_KEYS))[0]) == 1

    run(scenario, tmp_path)


def test_in_a_cell_of_an_older_format_each_queue_has_a_data_key_of_its_own_and_no_keyed_ids(
    tmp_path: Path,
) -> None:
    async def scenario(cell: Cell) -> None:
        old = CellFormat(3)
        async with (
            cell.node("one", cell_format=old),
            cell.front_end("a", nodes=("one",), cell_format=old) as a,
        ):
            made = [await a.queues.change(CreateQueue(ACCOUNT, name)) for name in ("a", "b")]
            old.raise_to(4)
            made += [await a.queues.change(CreateQueue(ACCOUNT, name)) for name in ("c", "d")]
            keys = [queue.data_key_id for queue in made]

            assert [queue.has_keyed_ids for queue in made] == [False, False, True, True]
            assert keys[0] != keys[1]
            assert keys[2] == keys[3] not in keys[:2]
            assert len({a.data_key(key) for key in keys}) == 3

    run_cell(scenario, tmp_path)


def test_front_end_that_gives_a_key_to_a_node_that_needs_none_uses_the_shared_one(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        behind = CellFormat(3)
        async with cell.node("one"), cell.front_end("a", nodes=("one",), cell_format=behind) as a:
            keys = [(await a.queues.change(CreateQueue(ACCOUNT, name))).data_key_id for name in ("a", "b")]

            assert keys[0] == keys[1]
            assert len((await cell.store.list_all(DATA_KEYS))[0]) == 1

    run_cell(scenario, tmp_path)


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
            await service.run_upkeep()

            assert await service.rotate_receipt_key() == 2
            new = handles.mint(7, 0, 5, 1, 1)

            assert service.receipt_handles is handles
            assert new != old
            world.clock.pass_s(12 * 3600)
            await service.run_upkeep()
            assert handles.parse(old, 7) == handles.parse(new, 7)
            world.clock.pass_s(3661)
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

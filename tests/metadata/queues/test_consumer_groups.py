"""Consumer groups in metadata: rows of queues that go with their log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import encode_queue_definition, replace_definition
from quaymaster.metadata.queues import creation
from quaymaster.metadata.queues.queues import Queues
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.protocol.rpc.metadata_messages import (
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    ListGroups,
    ListQueues,
    SetAttributes,
)

LOG = {"RetentionMode": "Log"}


def test_a_group_is_a_queue_of_its_log_that_is_made_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            log = await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))

            made = await asyncio.gather(
                *(service.queues.change(CreateGroup(ACCOUNT, "log@a", "latest")) for _ in range(3))
            )

            group = made[0]
            assert made == [group] * 3
            assert (group.group_of, group.state, group.partitions) == (log.queue_id, "active", log.partitions)
            assert group.attributes == {"GroupStart": "latest"}
            assert service.queue(ACCOUNT, "log@a") == group
            listed = await service.queues.list_page(ListQueues(ACCOUNT))
            assert [queue.name for queue in listed.queues] == ["log"]

    run(scenario, tmp_path)


def test_what_cannot_be_a_group_is_refused(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            await service.queues.change(CreateQueue(ACCOUNT, "plain"))
            await service.queues.change(CreateGroup(ACCOUNT, "log@a"))

            with pytest.raises(InvalidParameterValue, match="consumer group"):
                await service.queues.change(CreateGroup(ACCOUNT, "log@a.b"))
            with pytest.raises(InvalidParameterValue, match="earliest, latest"):
                await service.queues.change(CreateGroup(ACCOUNT, "log@b", "soon"))
            with pytest.raises(UnsupportedOperation, match="RetentionMode is not Log"):
                await service.queues.change(CreateGroup(ACCOUNT, "plain@a"))
            with pytest.raises(QueueDoesNotExist):
                await service.queues.change(CreateGroup(ACCOUNT, "none@a"))
            with pytest.raises(UnsupportedOperation, match="set them there"):
                await service.queues.change(SetAttributes(ACCOUNT, "log@a", {"DelaySeconds": "1"}))

    run(scenario, tmp_path)


def test_a_log_has_so_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "GROUPS_MAX", 2)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            for name in ("log@a", "log@b"):
                await service.queues.change(CreateGroup(ACCOUNT, name))

            with pytest.raises(OverLimit, match="2 consumer groups"):
                await service.queues.change(CreateGroup(ACCOUNT, "log@c"))

    run(scenario, tmp_path)


def test_groups_go_with_their_log_and_come_anew_with_the_next_of_its_name(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            first = await service.queues.change(CreateGroup(ACCOUNT, "log@a"))

            await service.queues.change(DeleteQueue(ACCOUNT, "log"))
            assert service.find_queue(ACCOUNT, "log@a") is None
            await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            second = await service.queues.change(CreateGroup(ACCOUNT, "log@a"))
            await service.queues.change(DeleteQueue(ACCOUNT, "log@a"))
            third = await service.queues.change(CreateGroup(ACCOUNT, "log@a"))

            assert len({first.queue_id, second.queue_id, third.queue_id}) == 3

    run(scenario, tmp_path)


def test_a_group_that_was_made_while_its_log_was_deleted_is_taken_away(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            log = await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            group = await service.queues.change(CreateGroup(ACCOUNT, "log@a"))
            await service.queues.change(DeleteQueue(ACCOUNT, "log"))
            for queue_id, name in ((901, "log@a"), (902, "log@b")):
                orphan = replace_definition(group, queue_id=queue_id, name=name, group_of=log.queue_id)
                await world.store.transaction(
                    [], [Put(f"{QUEUES}{ACCOUNT}/{name}", encode_queue_definition(orphan))]
                )
            await eventually(lambda: service.find_queue(ACCOUNT, "log@b") is not None)
            await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            made = await service.queues.change(CreateGroup(ACCOUNT, "log@a"))

            await service.registry.queues.reconcile()

            assert service.queue(ACCOUNT, "log@a") == made
            assert service.find_queue(ACCOUNT, "log@b") is None

    run(scenario, tmp_path)


def test_a_group_that_the_journal_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            world.journal.error = QueueDoesNotExist()

            with pytest.raises(QueueDoesNotExist):
                await service.queues.change(CreateGroup(ACCOUNT, "log@a"))

            assert service.registry.queues.row(ACCOUNT, "log@a") is None
            world.journal.error = None
            await service.registry.queues.reconcile()
            assert (await service.queues.change(CreateGroup(ACCOUNT, "log@a"))).state == "active"

    run(scenario, tmp_path)


def test_logs_wait_until_all_of_a_cell_know_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(2)) as service:
            assert isinstance(service.registry.queues, Queues)

            with pytest.raises(UnsupportedOperation, match="quaymaster cell upgrade"):
                await service.queues.change(CreateQueue(ACCOUNT, "log", LOG))

    run(scenario, tmp_path)


def test_groups_are_made_listed_and_gone_for_every_front_end_of_a_cell(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            log = await a.queues.change(CreateQueue(ACCOUNT, "log", LOG))
            made = await a.queues.change(CreateGroup(ACCOUNT, "log@x"))
            second = await b.queues.change(CreateGroup(ACCOUNT, "log@y"))

            assert await b.queues.change(CreateGroup(ACCOUNT, "log@x")) == made
            assert made.group_of == second.group_of == log.queue_id
            assert b.queues.journal_of(second.queue_id, 0) == log.partitions[0].journal_id
            first = await a.queues.list_page(ListGroups(ACCOUNT, "log", 1))
            rest = await a.queues.list_page(ListGroups(ACCOUNT, "log", 1, first.next_token))
            assert [*first.queues, *rest.queues] == [made, second]
            await a.queues.change(DeleteQueue(ACCOUNT, "log"))
            await eventually(lambda: len(a.queues) == len(b.queues) == 0)

    run_cell(scenario, tmp_path)

"""Queues that are created with a data key: made when it is asked for, and anew when that one is stale."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from metadata.support import ACCOUNT, World, run
from quaymaster.core.values.errors import Overloaded
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.metadata.keyed_queues import DATA_KEY_ATTEMPTS_MAX, KeyedQueues
from quaymaster.metadata.queues.shared_data_keys import DataKeyStale
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, NewDataKey, QueueChange, SetAttributes


def test_data_keys_are_made_when_they_are_needed_and_stale_ones_are_replaced(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            registry = service.registry
            given: list[NewDataKey | None] = []
            change = registry.queues.change
            stale = 2

            async def noted(request: QueueChange) -> QueueDefinition:
                assert isinstance(request, CreateQueue)
                given.append(request.data_key)
                if len(given) <= stale:
                    raise DataKeyStale
                return await change(request)

            registry.queues.change = noted  # type: ignore[method-assign]
            queues = KeyedQueues(
                *(registry.queues, service.data_keys, registry.mirror),
                *(registry.queues.options, service.push_secrets),
            )
            made = await queues.change(CreateQueue(ACCOUNT, "orders"))

            first, second, third = given
            assert first is None
            assert second is not None
            assert third is not None
            # What was set aside with the stale one is not used either.
            assert third.key_id > second.key_id + 1
            assert made.data_key_id == third.key_id

    run(scenario, tmp_path)


def test_creation_that_gets_no_data_key_that_fits_ends(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            asked = 0

            async def always_stale(request: QueueChange) -> QueueDefinition:
                nonlocal asked
                asked += 1
                raise DataKeyStale

            registry = service.registry
            registry.queues.change = always_stale  # type: ignore[method-assign]
            queues = KeyedQueues(
                *(registry.queues, service.data_keys, registry.mirror),
                *(registry.queues.options, service.push_secrets),
            )

            with pytest.raises(Overloaded):
                await queues.change(CreateQueue(ACCOUNT, "orders"))
            assert asked == DATA_KEY_ATTEMPTS_MAX

    run(scenario, tmp_path)


def test_other_changes_are_handed_on(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            changed = await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))

            assert service.find_queue(ACCOUNT, "orders") == changed
            assert len(service.queues) == 1

    run(scenario, tmp_path)


def test_queues_created_at_once_in_a_new_account_share_its_first_data_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            made = await asyncio.gather(
                *(service.queues.change(CreateQueue(ACCOUNT, f"q{number}")) for number in range(10))
            )

            assert len({queue.data_key_id for queue in made}) == 1
            assert service.registry.mirror.count("/data_keys/") == 1

    run(scenario, tmp_path)

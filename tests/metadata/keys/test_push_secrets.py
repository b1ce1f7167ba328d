"""Secrets of pushed queues: stored with the attributes, rotated, and never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.server_metadata import count_all

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, ActingStore, World, run
from quaymaster.core.push.calls import NO_SECRETS
from quaymaster.core.values.errors import (
    InvalidAttributeValue,
    QueueDoesNotExist,
    QueueNameExists,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import PUSH_SECRETS, PUSH_STATES, id_text
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, SetAttributes

URL = "https://example.com/orders"
HEADERS = {"Authorization": "Bearer s3cret"}
PUSHED = {"PushEndpoint": URL, "PushHeaders": json.dumps(HEADERS)}
DAY_S = 86_400


async def make(service: MetadataService, name: str = "orders", **attributes: str) -> QueueDefinition:
    return await service.queues.change(CreateQueue(ACCOUNT, name, attributes))


async def put(service: MetadataService, **changes: str) -> QueueDefinition:
    return await service.queues.change(SetAttributes(ACCOUNT, "orders", changes))


def headers_of(service: MetadataService, queue: QueueDefinition) -> dict[str, str]:
    return dict(service.push_secrets.of(queue).headers)


def test_a_queue_gets_a_key_and_its_headers_with_its_endpoint(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await make(service, **PUSHED)
            await make(service, "later")
            changed = await service.queues.change(SetAttributes(ACCOUNT, "later", PUSHED))

            for queue in (created, changed):
                secrets = service.push_secrets.of(queue)
                assert [len(key) for key in secrets.keys] == [32]
                assert dict(secrets.headers) == HEADERS
            assert service.push_secrets.of(created).keys != service.push_secrets.of(changed).keys

    run(scenario, tmp_path)


def test_the_store_shows_neither_key_nor_headers(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)
            (key,) = service.push_secrets.of(queue).keys
            items, _ = await world.memory.list_all("/")

            assert not [item.key for item in items if key in item.value or b"s3cret" in item.value]

    run(scenario, tmp_path)


def test_a_queue_without_an_endpoint_has_no_secrets(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, PushTimeoutSeconds="5")
            changed = await put(service, PushTimeoutSeconds="6")

            assert service.push_secrets.of(queue) == service.push_secrets.of(changed) == NO_SECRETS
            assert service.registry.mirror.count(PUSH_SECRETS) == 0
            with pytest.raises(UnsupportedOperation, match="never had a PushEndpoint"):
                await service.push_secrets.rotate(queue)

    run(scenario, tmp_path)


def test_headers_stay_change_and_go_while_the_key_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)
            (key,) = service.push_secrets.of(queue).keys

            for changes, headers in (
                ({"PushTimeoutSeconds": "5"}, HEADERS),
                ({"PushHeaders": "***"}, HEADERS),
                ({"PushEndpoint": "https://example.com/elsewhere"}, HEADERS),
                ({"PushHeaders": '{"X-Key":"b"}'}, {"X-Key": "b"}),
                ({"PushEndpoint": "https://example.org", "PushHeaders": '{"X-Key":"c"}'}, {"X-Key": "c"}),
                ({"PushHeaders": ""}, {}),
                ({"PushHeaders": '{"X-Key":"d"}'}, {"X-Key": "d"}),
                ({"PushEndpoint": ""}, {}),
                ({"PushEndpoint": URL}, {}),
            ):
                queue = await put(service, **changes)
                assert headers_of(service, queue) == headers
                assert service.push_secrets.of(queue).keys == (key,)

    run(scenario, tmp_path)


def test_what_is_refused_changes_no_secret(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)

            for changes in (
                {"PushHeaders": '{"X-Key":"b"}', "PushTimeoutSeconds": "0"},
                {"PushHeaders": "{"},
                {"PushEndpoint": "https://example.org"},
                {"PushEndpoint": "https://example.org/#", "PushHeaders": '{"X-Key":"b"}'},
                {"PushEndpoint": "", "PushHeaders": '{"X-Key":"b"}'},
            ):
                with pytest.raises(InvalidAttributeValue):
                    await put(service, **changes)
            with pytest.raises(QueueDoesNotExist):
                await service.queues.change(
                    SetAttributes(ACCOUNT, "orders", {"PushHeaders": '{"X-Key":"b"}'}, queue_id=1_000_000)
                )

            assert headers_of(service, queue) == HEADERS

    run(scenario, tmp_path)


def test_headers_are_for_no_other_host_also_where_the_rows_are_not_of_one_moment(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)

            newer = {**queue.attributes, "PushEndpoint": "https://example.org"}
            without = {"PushEndpoint": URL}

            assert headers_of(service, queue) == HEADERS
            assert headers_of(service, replace_definition(queue, attributes=newer)) == {}
            assert headers_of(service, replace_definition(queue, attributes=without)) == {}

    run(scenario, tmp_path)


def test_a_queue_that_is_created_again_with_other_headers_exists_already(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            made = await make(service, **PUSHED)

            assert await make(service, **PUSHED) == made
            with pytest.raises(QueueNameExists, match="PushHeaders"):
                await make(service, PushEndpoint=URL, PushHeaders='{"Authorization":"other"}')
            assert headers_of(service, made) == HEADERS

    run(scenario, tmp_path)


def test_both_keys_sign_for_a_day_after_a_rotation(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)
            (old,) = service.push_secrets.of(queue).keys

            new = await service.push_secrets.rotate(queue)

            assert service.push_secrets.of(queue).keys == (new, old)
            world.clock.pass_s(DAY_S)
            await service.run_upkeep()
            assert service.push_secrets.of(queue).keys == (new, old)
            world.clock.pass_s(61)
            await service.run_upkeep()
            await service.run_upkeep()
            assert service.push_secrets.of(queue).keys == (new,)
            assert headers_of(service, queue) == HEADERS

    run(scenario, tmp_path)


def test_a_clock_that_is_set_forward_takes_no_key_from_receivers(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)
            await service.push_secrets.rotate(queue)

            world.clock.set_s(10 * DAY_S)
            await service.run_upkeep()

            assert len(service.push_secrets.of(queue).keys) == 2

    run(scenario, tmp_path)


def test_a_second_rotation_takes_the_place_of_the_older_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)

            second = await service.push_secrets.rotate(queue)
            third = await service.push_secrets.rotate(queue)

            assert service.push_secrets.of(queue).keys == (third, second)

    run(scenario, tmp_path)


def test_secrets_outlive_a_rotation_of_the_master_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await make(service, **PUSHED)
            await service.push_secrets.rotate(queue)
            before = service.push_secrets.of(queue)

            await service.rotate_master_key()

            assert service.push_secrets.of(queue) == before
        async with world.service() as service:
            assert service.push_secrets.of(queue) == before

    run(scenario, tmp_path)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_master_key_that_is_rotated_in_the_middle_keeps_no_secret_from_being_stored(
    tmp_path: Path, is_new: bool
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            if not is_new:
                await make(service)
            wrapping = service.push_secrets.secret_with
            rotations = 0

            async def rotate_after(*given: object, **named: object) -> object:
                nonlocal rotations
                secret = await wrapping(*given, **named)  # type: ignore[arg-type]
                if not rotations:
                    rotations += 1
                    await service.rotate_master_key()
                return secret

            service.push_secrets.secret_with = rotate_after  # type: ignore[method-assign,assignment]
            queue = await make(service, **PUSHED) if is_new else await put(service, **PUSHED)

            assert headers_of(service, queue) == HEADERS

    run(scenario, tmp_path)


def test_headers_are_for_the_host_that_the_queue_has_when_they_are_stored(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await make(service, PushEndpoint=URL)
            wrapping = service.push_secrets.secret_with

            async def elsewhere_meanwhile(*given: object, **named: object) -> object:
                secret = await wrapping(*given, **named)  # type: ignore[arg-type]
                service.push_secrets.secret_with = wrapping  # type: ignore[method-assign]
                await put(service, PushEndpoint="https://example.org/orders")
                return secret

            service.push_secrets.secret_with = elsewhere_meanwhile  # type: ignore[method-assign,assignment]
            queue = await put(service, PushHeaders=json.dumps(HEADERS))

            assert queue.push_endpoint == "https://example.org/orders"
            assert headers_of(service, queue) == HEADERS

    run(scenario, tmp_path)


def test_secrets_go_with_their_queue(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            queue = await make(service, **PUSHED)
            await service.push_states.note(queue, "active")
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            assert await world.memory.get(PUSH_SECRETS + id_text(queue.queue_id)) is None
            assert await world.memory.get(PUSH_STATES + id_text(queue.queue_id)) is None
            again = await make(service, PushEndpoint=URL)
            assert headers_of(service, again) == {}

    run(scenario, tmp_path)


def test_metadata_nodes_never_see_headers(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (first, second):
            queue = await make(first, **PUSHED)
            new = await first.push_secrets.rotate(queue)
            await second.registry.mirror.refresh(PUSH_SECRETS + id_text(queue.queue_id))

            assert second.push_secrets.of(queue) == first.push_secrets.of(queue)
            assert second.push_secrets.of(queue).keys[0] == new
            for link in first.links.values():
                assert b"s3cret" not in link.seen
                assert new not in link.seen

    run_cell(scenario, tmp_path)


def test_a_front_end_that_is_behind_wraps_again(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (first, second):
            queue = await make(first, **PUSHED)
            await second.registry.mirror.refresh(PUSH_SECRETS + id_text(queue.queue_id))
            await first.push_secrets.rotate(queue)

            changed = await second.look_up(lambda: second.queue(ACCOUNT, "orders"))
            assert changed.queue_id == queue.queue_id
            changed = await put(second, PushHeaders='{"X-Key":"b"}')

            assert headers_of(second, changed) == {"X-Key": "b"}
            assert len(second.push_secrets.of(changed).keys) == 2

    run_cell(scenario, tmp_path)


def test_cells_of_an_older_format_store_no_secrets(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(7)) as service:
            queue = await make(service)

            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await put(service, **PUSHED)
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await service.push_secrets.rotate(queue)
            assert service.registry.mirror.count(PUSH_SECRETS) == 0

    run(scenario, tmp_path)


def test_a_key_that_is_rotated_while_the_older_one_is_dropped_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = ActingStore()
        world.store = world.memory = store
        async with world.service() as service:
            queue = await make(service, **PUSHED)
            await service.push_secrets.rotate(queue)
            world.clock.pass_s(DAY_S + 61)
            await count_all(service.registry.counted_time)

            store.act_before(0, lambda: service.push_secrets.rotate(queue))
            await service.push_secrets.drop_older_keys()

            assert store.has_acted
            assert len(service.push_secrets.of(queue).keys) == 2

    run(scenario, tmp_path)

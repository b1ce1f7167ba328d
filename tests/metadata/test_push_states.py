"""How calls to endpoints go, as all processes know it; and endpoints that can never be called."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import msgspec
import pytest

from metadata.support import ACCOUNT, World, run
from quaymaster.core.values.errors import InvalidAttributeValue
from quaymaster.metadata.push_endpoints import check_reachable
from quaymaster.metadata.store.rows import PUSH_STATES, PushStateRow, encode_row, row_decoder
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, DeleteQueue, SetAttributes

URL = "https://example.com/orders"
LOOPBACK = (ip_network("127.0.0.0/8"),)


class OldPushStateRow(msgspec.Struct, frozen=True, array_like=True):
    state: str
    endpoint_mark: str
    since_ms: int


def test_a_state_is_of_one_endpoint(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"PushEndpoint": URL}))
            assert service.push_states.of(queue) == "verifying"

            await service.push_states.note(queue, "active")
            await service.push_states.note(queue, "unreachable")
            assert service.push_states.of(queue) == "unreachable"

            moved = await service.queues.change(
                SetAttributes(ACCOUNT, "orders", {"PushEndpoint": "https://example.org"})
            )
            assert service.push_states.of(moved) == "verifying"

    run(scenario, tmp_path)


def test_what_an_endpoint_allows_a_minute_is_kept_with_its_state(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"PushEndpoint": URL}))
            assert service.push_states.calls_per_minute(queue) is None

            await service.push_states.note(queue, "active", 60)
            await service.push_states.note(queue, "active", 120)
            assert service.push_states.calls_per_minute(queue) == 120

            moved = await service.queues.change(
                SetAttributes(ACCOUNT, "orders", {"PushEndpoint": "https://example.org"})
            )
            assert service.push_states.calls_per_minute(moved) is None

    run(scenario, tmp_path)


def test_a_row_that_an_older_program_wrote_sets_no_bound() -> None:
    row = row_decoder(PushStateRow)(encode_row(OldPushStateRow("active", "mark", 5)))

    assert row == PushStateRow("active", "mark", 5, None)


def test_a_state_that_is_known_is_not_written_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"PushEndpoint": URL}))
            await service.push_states.note(queue, "active")
            _, revision = await world.memory.list_all("/")

            await service.push_states.note(queue, "active")

            assert (await world.memory.list_all("/"))[1] == revision

    run(scenario, tmp_path)


def test_a_queue_that_is_gone_has_no_state(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"PushEndpoint": URL}))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            await service.push_states.note(queue, "active")
            await service.queues.change(CreateQueue(ACCOUNT, "orders", {"PushEndpoint": URL}))
            await service.push_states.note(queue, "active")

            assert service.registry.mirror.count(PUSH_STATES) == 0

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://example.com",
        "https://10.0.0.example.com",
        "http://localhost:9999/",
        "http://127.0.0.1:9999/",
        "https://127.0.0.1/",
        "https://93.184.216.34/",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/",
    ],
)
def test_endpoints_that_may_be_called_are_taken(url: str) -> None:
    check_reachable(url, LOOPBACK)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://10.0.0.1/", "not a public address"),
        ("https://169.254.169.254/latest", "not a public address"),
        ("https://[::ffff:10.0.0.1]/", "not a public address"),
        ("http://93.184.216.34/", "plain http"),
        ("https://example.com:99999", "https URL"),
        ("https://127.0.0.1:22/", "port 22"),
        ("https://0.0.0.0/", "unspecified"),
    ],
)
def test_endpoints_that_can_never_be_called_are_refused_when_they_are_set(url: str, why: str) -> None:
    with pytest.raises(InvalidAttributeValue, match=why) as raised:
        check_reachable(url, LOOPBACK)

    assert "PushEndpoint" in raised.value.message


def test_without_networks_no_name_is_called_by_plain_http(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(InvalidAttributeValue, match="plain http"):
                await service.queues.change(
                    CreateQueue(ACCOUNT, "orders", {"PushEndpoint": "http://internal.example.com"})
                )
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            with pytest.raises(InvalidAttributeValue, match="not a public address"):
                await service.queues.change(
                    SetAttributes(ACCOUNT, "orders", {"PushEndpoint": "https://127.0.0.1"})
                )

    run(scenario, tmp_path)

"""What owners see and change of pushing over the admin API."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from standardwebhooks import Webhook

from frontend.admin.test_admin import administered, call_of, error_of
from frontend.support import ACCOUNT
from quaymaster.core.push.states import TriedEndpoint
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.admin.queues.push_admin import PushAdmin
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.protocol.admin.push import TestedPush as TriedPush
from quaymaster.protocol.admin.queues import QueueRequest
from quaymaster.protocol.webhooks.signing import public_key_text, signed_headers

URL = "https://example.com/orders?key=s3cret"


def test_a_queues_pushing_is_shown_without_secrets() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("plain")
            queue = await port.service.add_queue(
                "orders", PushEndpoint=URL, PushHeaders='{"X-Key":"s3cret"}', PushFormat="Lambda"
            )
            await port.service.metadata.push_states.note(queue, "unreachable", 60)

            shown = await port.call("GET", "queues/orders/push")
            plain = await port.call("GET", "queues/plain/push")
            none = await port.call("GET", "queues/none/push")

            assert shown.json == {
                "name": "orders",
                "endpoint": "https://example.com/orders?***",
                "state": "unreachable",
                "calls_per_minute": 60,
                "format": "Lambda",
                "batch_size": 1,
                "concurrency_max": 10,
                "timeout_ms": 30_000,
                "backoff_min_ms": 10_000,
                "backoff_max_ms": 600_000,
                "signing": "HMAC",
                "headers": ["X-Key"],
                "secrets": 1,
            }
            assert (plain.json["endpoint"], plain.json["state"], plain.json["secrets"]) == (None, None, 0)
            assert error_of(none) == (400, "AWS.SimpleQueueService.NonExistentQueue")

    asyncio.run(scenario())


def test_the_secret_that_is_shown_verifies_what_is_signed_before_and_after_a_rotation() -> None:
    async def scenario() -> None:
        async with administered() as port:
            queue = await port.service.add_queue("orders", PushEndpoint=URL)

            def signed() -> dict[str, str]:
                keys = port.service.metadata.push_secrets.of(queue).keys
                return signed_headers(keys, "id", int(time.time()), b"{}")

            first = (await port.call("GET", "queues/orders/push/secret")).json
            Webhook(first["secret"]).verify(b"{}", signed())
            rotated = (await port.call("POST", "queues/orders/push/rotate")).json
            both = (await port.call("GET", "queues/orders/push/secret")).json

            assert first["older_secret"] is None
            assert both == {
                "name": "orders",
                "secret": rotated["secret"],
                "older_secret": first["secret"],
            }
            for secret in (first["secret"], rotated["secret"]):
                Webhook(secret).verify(b"{}", signed())

    asyncio.run(scenario())


def test_with_ed25519_the_public_key_is_shown_in_place_of_the_secret() -> None:
    async def scenario() -> None:
        async with administered() as port:
            queue = await port.service.add_queue("orders", PushEndpoint=URL, PushSigning="Ed25519")
            (key,) = port.service.metadata.push_secrets.of(queue).keys

            shown = (await port.call("GET", "queues/orders/push/secret")).json
            rotated = (await port.call("POST", "queues/orders/push/rotate")).json
            both = (await port.call("GET", "queues/orders/push/secret")).json

            assert shown == {"name": "orders", "secret": public_key_text(key), "older_secret": None}
            assert both["older_secret"] == shown["secret"]
            assert both["secret"] == rotated["secret"]
            assert rotated["secret"].startswith("whpk_")

    asyncio.run(scenario())


def test_secrets_are_looked_at_and_rotated_on_the_record_and_are_not_in_it() -> None:
    async def scenario() -> None:
        usage = UsageRecorder(now_us=lambda: 1_700_000_000_000_000)
        async with administered(usage=usage) as port:
            port.admin.record_acts(usage)
            await port.service.add_queue("orders", PushEndpoint=URL)
            secret = (await port.call("GET", "queues/orders/push/secret")).json["secret"]
            rotated = (await port.call("POST", "queues/orders/push/rotate")).json["secret"]

            taken = usage.take()
            told = str(list(taken.contexts)) + str(taken.changes)
            assert "GetPushSecret" in told
            assert "RotatePushSecret" in told
            assert secret not in told
            assert rotated not in told

    asyncio.run(scenario())


def test_a_queue_that_was_never_pushed_has_nothing_to_show_rotate_or_test() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("plain")
            await port.service.add_queue("orders", PushEndpoint=URL)

            for method, path in (
                ("GET", "queues/plain/push/secret"),
                ("POST", "queues/plain/push/rotate"),
                ("POST", "queues/plain/push/test"),
                ("POST", "queues/orders/push/test"),
            ):
                answer = await port.call(method, path)
                assert error_of(answer) == (400, "AWS.SimpleQueueService.UnsupportedOperation"), path

    asyncio.run(scenario())


@pytest.mark.parametrize("outcome", ["taken", "failed", "not called"])
def test_an_endpoint_is_tested_by_who_can_call_it(outcome: Any) -> None:
    async def scenario() -> None:
        async with administered() as port:
            queue = await port.service.add_queue("orders", PushEndpoint=URL)
            tested: list[QueueDefinition] = []

            async def test(asked: QueueDefinition) -> TriedEndpoint:
                tested.append(asked)
                return TriedEndpoint("active", outcome, "it answered with status 200")

            route = PushAdmin(port.service.metadata, test).routes()["TestPush"]
            answer = await route.handler(call_of(ACCOUNT), QueueRequest(name="orders"))

            assert tested == [queue]
            assert answer == TriedPush(
                name="orders", state="active", outcome=outcome, reason="it answered with status 200"
            )
            with pytest.raises(UnsupportedOperation):
                await (
                    PushAdmin(port.service.metadata, None)
                    .routes()["TestPush"]
                    .handler(call_of(ACCOUNT), QueueRequest(name="orders"))
                )

    asyncio.run(scenario())


def test_headers_are_in_no_answer() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("orders", PushEndpoint=URL, PushHeaders='{"X-Key":"s3cret"}')

            for method, path in (
                ("GET", "queues/orders/push"),
                ("GET", "queues/orders/push/secret"),
                ("POST", "queues/orders/push/rotate"),
            ):
                answer = await port.call(method, path)
                assert answer.status == 200
                assert "s3cret" not in json.dumps(answer.json)

    asyncio.run(scenario())

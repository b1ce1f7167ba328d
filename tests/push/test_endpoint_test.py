"""One call with a message that there is not: what is sent, and what is said of it."""

from __future__ import annotations

import json

import pytest
from harness.replica_host import queue

from push.model import ModelAnswer, ModelEndpoint, answering, raising, run
from quaymaster.core.push.calls import PushSecrets
from quaymaster.core.push.states import TriedEndpoint
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.net.outbound.failures import OutboundFailed, OutboundRefused
from quaymaster.push.endpoint_test import EndpointTest
from quaymaster.push.verification import EndpointChecks

SECRETS = PushSecrets((bytes(range(32)),), (("Authorization", "Bearer a"),))
NOW_MS = 1_769_846_400_123


def pushed(name: str = "orders", **attributes: str) -> QueueDefinition:
    return replace_definition(
        queue(1, name), attributes={"PushEndpoint": "https://example.com/orders", **attributes}
    )


async def tried(
    client: ModelEndpoint, definition: QueueDefinition, origin: str | None = None
) -> TriedEndpoint:
    async def secrets(asked: QueueDefinition) -> PushSecrets:
        assert asked == definition
        return SECRETS

    checks = EndpointChecks(client, None, origin)
    test = EndpointTest(checks, secrets, region="eu-central-1", wall_ms=lambda: NOW_MS)
    return await test.call(definition)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ModelAnswer(200), TriedEndpoint("active", "taken", "it answered with status 200")),
        (ModelAnswer(422), TriedEndpoint("active", "failed", "it answered with status 422")),
        (ModelAnswer(410), TriedEndpoint("gone", "failed", "it answered with status 410")),
        (ModelAnswer(503), TriedEndpoint("unreachable", "failed", "it answered with status 503")),
        (
            ModelAnswer(200, {}, b'{"batchItemFailures": 7}'),
            TriedEndpoint(
                "active", "failed", "it answered with status 200, and said that the message failed"
            ),
        ),
    ],
)
def test_an_answer_is_judged_as_that_to_a_message(answer: ModelAnswer, expected: TriedEndpoint) -> None:
    async def scenario() -> None:
        assert await tried(answering(answer), pushed()) == expected

    run(scenario())


def test_the_call_is_signed_and_has_the_owners_headers() -> None:
    async def scenario() -> None:
        client = answering(ModelAnswer(200))

        await tried(client, pushed(PushFormat="Lambda"))
        await tried(client, pushed("orders.fifo", FifoQueue="true"))

        first, fifo = client.calls
        assert (first.method, first.url) == ("POST", "https://example.com/orders")
        assert first.headers["Authorization"] == "Bearer a"
        assert first.headers["webhook-signature"].startswith("v1,")
        (record,) = json.loads(first.body)["Records"]
        assert record["body"] == '{"test":true}'
        assert fifo.headers["ce-partitionkey"] == "test"

    run(scenario())


def test_an_endpoint_that_wants_no_calls_gets_none() -> None:
    async def scenario() -> None:
        client = answering(ModelAnswer(405))

        found = await tried(client, pushed(), origin="push.example.com")

        assert (found.state, found.outcome) == ("refused", "not called")
        assert [call.method for call in client.calls] == ["OPTIONS"]

    run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutboundFailed("no connection"), TriedEndpoint("unreachable", "failed", "no connection")),
        (OutboundRefused("not public"), TriedEndpoint("refused", "not called", "not public")),
    ],
)
def test_a_call_that_cannot_be_made_says_why(error: Exception, expected: TriedEndpoint) -> None:
    async def scenario() -> None:
        assert await tried(raising(error), pushed()) == expected

    run(scenario())

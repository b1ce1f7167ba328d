"""How queues are pushed."""

from __future__ import annotations

from harness.replica_host import queue

from quaymaster.core.push.flow import PushPlan
from quaymaster.core.push.plans import plan_of
from quaymaster.core.values.queues.attribute_rules import create_attributes
from quaymaster.core.values.queues.queue_definitions import replace_definition
from quaymaster.core.values.queues.queue_names import QueueArn

ARN = QueueArn("eu-central-1", "123456789012", "orders")


def test_a_queue_without_an_endpoint_is_not_pushed() -> None:
    assert plan_of(queue(1), str(ARN)) is None


def test_a_queue_is_pushed_as_its_attributes_say() -> None:
    plain = create_attributes(ARN, {"PushEndpoint": "https://example.com"})
    full = create_attributes(
        ARN,
        {
            "PushEndpoint": "https://example.com",
            "PushFormat": "Lambda",
            "PushBatchSize": "5",
            "PushMaxConcurrency": "7",
            "PushTimeoutSeconds": "9",
            "PushRetryPolicy": '{"minBackoffSeconds":1,"maxBackoffSeconds":2}',
        },
    )

    assert plan_of(replace_definition(queue(1), attributes=plain), str(ARN)) == PushPlan(
        "https://example.com", str(ARN), signing="HMAC"
    )
    assert plan_of(replace_definition(queue(1), attributes=full), str(ARN)) == PushPlan(
        "https://example.com", str(ARN), "Lambda", 5, 7, 9_000, 1_000, 2_000, signing="HMAC"
    )

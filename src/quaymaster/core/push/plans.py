"""How a queue is pushed, from what its attributes say."""

from __future__ import annotations

from typing import cast

from quaymaster.core.push.flow import PushFormat, PushPlan, PushSigning
from quaymaster.core.values.queues.attributes import PUSH_SIGNING
from quaymaster.core.values.queues.queue_definitions import QueueDefinition


def plan_of(definition: QueueDefinition, source_arn: str) -> PushPlan | None:
    """Return how a queue is pushed; None: it has no endpoint. `source_arn` is its ARN; of a group, its log's."""
    if not definition.push_endpoint:
        return None
    retry = definition.push_retry_policy
    return PushPlan(
        endpoint=definition.push_endpoint,
        source_arn=source_arn,
        format=cast(PushFormat, definition.push_format),
        batch_size=definition.push_batch_size,
        concurrency_max=definition.push_concurrency_max,
        timeout_ms=definition.push_timeout_ms,
        backoff_min_ms=retry.backoff_min_ms,
        backoff_max_ms=retry.backoff_max_ms,
        signing=cast(PushSigning, PUSH_SIGNING.of(definition.attributes)),
        is_fifo=definition.is_fifo,
    )

"""The request that pushes messages to an endpoint: its format, its signature, and headers of the queue's owner.

    webhook-id           the id the sender got of the message; of several, a hash of theirs
    webhook-timestamp    of this attempt
    webhook-signature    over id, timestamp and body: the body is signed, headers are protected by TLS alone

Source: the Standard Webhooks specification, 1.0.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from quaymaster.core.push.calls import PushedMessage, PushRequest, PushSecrets
from quaymaster.core.push.flow import PushPlan
from quaymaster.core.values.queues.attributes import ED25519
from quaymaster.protocol.cloudevents import (
    BATCH_TYPE_JSON,
    EVENT_TYPE_JSON,
    JSON_TYPE,
    binary_event,
    json_batch,
    json_event,
)
from quaymaster.protocol.push.lambda_events import lambda_event
from quaymaster.protocol.webhooks.signing import (
    ID_HEADER,
    TIMESTAMP_HEADER,
    asymmetric_signature,
    signature,
    signed_headers,
)

BATCH_ID_PREFIX: Final = "batch_"
_BATCH_DIGEST_BYTES: Final = 16


def build_request(
    plan: PushPlan, messages: Sequence[PushedMessage], secrets: PushSecrets, now_ms: int
) -> PushRequest:
    """Return the request for messages, from one to the plan's batch size. The same messages have the same body."""
    assert messages, "a call has messages"
    headers, body = _event(plan, messages)
    call_id = call_id_of(messages)
    signed = {ID_HEADER: call_id, TIMESTAMP_HEADER: str(now_ms // 1_000)}
    if plan.signing != "none":
        sign = asymmetric_signature if plan.signing == ED25519 else signature
        signed = signed_headers(secrets.keys, call_id, now_ms // 1_000, body, sign=sign)
    return PushRequest({**dict(secrets.headers), **headers, **signed}, body)


def call_id_of(messages: Sequence[PushedMessage]) -> str:
    """Return the idempotency key of a call: the same each time that these messages are sent together."""
    if len(messages) == 1:
        return messages[0].origin_id
    ids = "\n".join(message.origin_id for message in messages)
    return BATCH_ID_PREFIX + hashlib.blake2b(ids.encode(), digest_size=_BATCH_DIGEST_BYTES).hexdigest()


def _event(plan: PushPlan, messages: Sequence[PushedMessage]) -> tuple[dict[str, str], bytes]:
    if plan.format == "Lambda":
        return {"Content-Type": JSON_TYPE}, lambda_event(messages, plan.source_arn)
    if plan.format == "CloudEventsJson" and plan.batch_size > 1:
        return {"Content-Type": BATCH_TYPE_JSON}, json_batch(messages, plan.source_arn)
    (message,) = messages
    if plan.format == "CloudEventsJson":
        return {"Content-Type": EVENT_TYPE_JSON}, json_event(message, plan.source_arn)
    return binary_event(message, plan.source_arn)

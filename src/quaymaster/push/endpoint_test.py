"""One call to an endpoint with a message that there is not, for a person who wants to know whether it works.

It goes as the calls of a pusher go: asked first whether it is wanted, signed, with the owner's headers.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from quaymaster.core.push.calls import PushedMessage, PushSecrets
from quaymaster.core.push.flow import PushPlan
from quaymaster.core.push.plans import plan_of
from quaymaster.core.push.states import PushState, TriedEndpoint
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.protocol.sqs.checksums import md5_digest
from quaymaster.push.parts import Verified, VerifiesEndpoints
from quaymaster.push.sending import send

TEST_BODY: Final = '{"test":true}'
TIMEOUT_S_MAX: Final = 20.0
"""A person waits for the answer."""


class EndpointTest:
    """Makes such calls. `wall_ms` is since 1970."""

    def __init__(
        self,
        endpoints: VerifiesEndpoints,
        secrets: Callable[[QueueDefinition], Awaitable[PushSecrets]],
        *,
        region: str,
        wall_ms: Callable[[], int],
    ) -> None:
        self._endpoints = endpoints
        self._secrets = secrets
        self._region = region
        self._wall_ms = wall_ms

    async def call(self, queue: QueueDefinition) -> TriedEndpoint:
        """Call a queue's endpoint once. Raises NotNow."""
        plan = plan_of(queue, str(QueueArn(self._region, queue.account_id, queue.name)))
        assert plan is not None, "the queue has an endpoint"
        verified = await self._endpoints.verify(plan)
        if verified.state != "active":
            return TriedEndpoint(verified.state, "not called", verified.reason)
        return await self._send(plan, verified, await self._secrets(queue))

    async def _send(self, plan: PushPlan, verified: Verified, secrets: PushSecrets) -> TriedEndpoint:
        answered = await send(
            *(plan, [_message(plan, self._wall_ms())], verified.client, secrets),
            headers=verified.headers,
            wall_ms=self._wall_ms(),
            timeout_s=min(plan.timeout_ms / 1_000, TIMEOUT_S_MAX),
        )
        judged, reason = answered.judged, answered.reason
        if judged.verdict == "refused":
            return TriedEndpoint("refused", "not called", reason)
        states: dict[str, PushState] = {"gone": "gone", "fails": "unreachable"}
        if judged.verdict == "works" and judged.failed:
            reason += ", and said that the message failed"
        outcome: Literal["taken", "failed"] = "failed" if judged.failed else "taken"
        return TriedEndpoint(states.get(judged.verdict, "active"), outcome, reason)


def _message(plan: PushPlan, now_ms: int) -> PushedMessage:
    message_id = str(uuid.uuid4())
    return PushedMessage(
        message_id=message_id,
        origin_id=message_id,
        receipt_handle="test",
        body=TEST_BODY,
        body_md5=md5_digest(TEST_BODY.encode()).hex(),
        sent_ms=now_ms,
        delivery_count=1,
        group_id="test" if plan.is_fifo else None,
        system={"ApproximateReceiveCount": "1", "SentTimestamp": str(now_ms)},
    )

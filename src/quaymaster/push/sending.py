"""One call to an endpoint: what is sent, and what an answer or none means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quaymaster.core.push.calls import PushedMessage, PushSecrets
from quaymaster.core.push.flow import Judged, PushPlan
from quaymaster.net.outbound.failures import OutboundError, OutboundRefused
from quaymaster.protocol.push.answers import judge
from quaymaster.protocol.push.requests import build_request
from quaymaster.push.parts import MakesCalls


class Answered(NamedTuple):
    """What an endpoint says, and why, for people. `status` 0: there was no answer."""

    judged: Judged
    reason: str
    status: int
    request_bytes: int
    response_bytes: int = 0


async def send(
    plan: PushPlan,
    messages: Sequence[PushedMessage],
    client: MakesCalls,
    secrets: PushSecrets,
    *,
    headers: Mapping[str, str],
    wall_ms: int,
    timeout_s: float,
) -> Answered:
    """Call an endpoint with messages; return what it says. `wall_ms`: the time of the signature, since 1970.

    `headers`: those that each call to it has.
    """
    request = build_request(plan, messages, secrets, wall_ms)
    try:
        answer = await client.call(
            "POST",
            plan.endpoint,
            headers={**request.headers, **headers},
            body=request.body,
            timeout_s=timeout_s,
        )
    except OutboundRefused as error:
        refused = Judged("refused", frozenset(range(len(messages))))
        return Answered(refused, str(error), 0, len(request.body))
    except OutboundError as error:
        failed = judge(plan, messages, None, {}, b"")
        return Answered(failed, str(error), 0, len(request.body))
    judged = judge(plan, messages, answer.status, answer.headers, answer.body)
    reason = f"it answered with status {answer.status}"
    return Answered(judged, reason, answer.status, len(request.body), len(answer.body))

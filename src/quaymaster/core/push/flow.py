"""How a queue is pushed, and what an endpoint's answer means for its messages and for the endpoint.

A message that was not taken is hidden for a while, and then received again. The broker counts its receives; nothing
else is remembered of it:

    received, for the n-th time ──call──▶ not taken ──▶ hidden for backoff_min_ms * 2^(n-1), at most backoff_max_ms
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PushFormat = Literal["CloudEvents", "CloudEventsJson", "Lambda"]
PushSigning = Literal["HMAC", "Ed25519", "none"]
Verdict = Literal["works", "rejects", "gone", "fails", "refused"]
"""What an answer says of the endpoint:

works    it took the call: more calls may be under way at once
rejects  it answers, and does not want these messages: nothing is learned of how many calls it can take
gone     it wants no calls: it gets none for an hour
fails    it cannot take the call now: fewer calls at once, and after several in a row none but a probe
refused  its address may not be called: none but a probe from now on. No answer says that
"""
RETRY_AFTER_MS_MAX: Final = 3_600_000
"""An endpoint cannot ask for a longer pause."""
JITTER: Final = 0.2
"""Back-offs differ by so much of them to both sides: messages that failed together do not come back together."""
_DOUBLINGS_MAX: Final = 32
"""More make no difference: 1 s doubled so often is a century."""


class PushPlan(msgspec.Struct, frozen=True, gc=False):
    """What a queue's attributes say of pushing. `source_arn` is the ARN of the queue that a call's messages are from.

    `batch_size` messages at most are in a call, `concurrency_max` calls at most under way at once. A call has
    `timeout_ms` for its answer. A message that was not taken is tried again after `backoff_min_ms`, doubled each time
    up to `backoff_max_ms`.
    """

    endpoint: str
    source_arn: str
    format: PushFormat = "CloudEvents"
    batch_size: int = 1
    concurrency_max: int = 10
    timeout_ms: int = 30_000
    backoff_min_ms: int = 10_000
    backoff_max_ms: int = 600_000
    signing: PushSigning = "none"
    is_fifo: bool = False

    def __repr__(self) -> str:
        return f"PushPlan({self.source_arn})"  # the endpoint's query may hold a secret


class Judged(msgspec.Struct, frozen=True, gc=False):
    """What an answer means. `failed`: positions in the call of the messages that back off; the others are deleted.

    `retry_after_ms`: for so long the endpoint wants no calls at all; 0: it said nothing.
    """

    verdict: Verdict
    failed: frozenset[int]
    retry_after_ms: int = 0


def backoff_ms(plan: PushPlan, delivery_count: int, luck: float) -> int:
    """Return for how many ms a message is hidden that was received so often, 1 or more, and not taken.

    `luck` is between 0 and 1, any number in between as likely as another.
    """
    doublings = min(delivery_count - 1, _DOUBLINGS_MAX)
    least_ms = min(plan.backoff_min_ms << doublings, plan.backoff_max_ms)
    return min(plan.backoff_max_ms, round(least_ms * (1 + JITTER * (2 * luck - 1))))

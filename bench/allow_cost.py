"""CPU time of the step `allow` for each call: the queue found, its policy asked, its limits charged.

    python -m bench.allow_cost [--calls N]

The best of many short rounds is shown: on a shared machine a long one always meets other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

from quaymaster.core.limits.limits import BYTES_MAX, REQUESTS_MAX, Limit, LimitName, LimitTable
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.access.allow import Gate
from quaymaster.frontend.access.authorization import Authorization
from quaymaster.frontend.actions.consumer_groups import ConsumerGroups
from quaymaster.frontend.call import Call, PassTimes
from quaymaster.frontend.callers.authentication import Signed
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.standing import Standing
from quaymaster.frontend.cors import CORS
from quaymaster.frontend.front_end_metrics import FrontEndMetrics
from quaymaster.frontend.limits.admission import Admission
from quaymaster.frontend.limits.limits import Limits, monotonic_ms
from quaymaster.frontend.limits.refusals import Refusals
from quaymaster.frontend.server import RequestIds
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.http.message import CONNECTION_CLOSE, HTTPRequest
from quaymaster.protocol.actions.table import ACTIONS, UNKNOWN_ACTION
from quaymaster.protocol.sqs.shapes import SendMessageRequest

REGION = "us-east-1"
OWNER, OTHER = "000000000000", "111111111111"
CALLS_PER_ROUND = 500
ALLOW = {"Effect": "Allow", "Principal": {"AWS": OTHER}, "Action": "sqs:SendMessage", "Resource": "*"}
DENY = {"Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue"}
NETWORKS = [f"10.{number}.0.0/16" for number in range(4)]
AGENTS = ["curl/*", "*lang/java*", "*Botocore#1.4?*"]
CASES: dict[str, tuple[str, list[Any]]] = {
    "owner, no policy": (OWNER, []),
    "owner, policy without conditions": (OWNER, [ALLOW, DENY]),
    "other account, policy without conditions": (OTHER, [ALLOW, DENY]),
    "other account, SecureTransport": (
        OTHER,
        [{**ALLOW, "Condition": {"Bool": {"aws:SecureTransport": "false"}}}],
    ),
    "other account, SourceIp in 4 networks": (
        OTHER,
        [{**ALLOW, "Condition": {"IpAddress": {"aws:SourceIp": NETWORKS}}}],
    ),
    "other account, UserAgent like 3 patterns": (
        OTHER,
        [{**ALLOW, "Condition": {"StringLike": {"aws:UserAgent": AGENTS}}}],
    ),
    "owner, Deny by SourceIp in 4 networks": (
        OWNER,
        [{**DENY, "Action": "sqs:*", "Condition": {"NotIpAddress": {"aws:SourceIp": NETWORKS}}}],
    ),
}
"""Who asks, and the statements of the queue's policy."""
LIMITED: dict[str, list[LimitName]] = {
    "owner, limit on another account": [LimitName(OTHER)],
    "owner, limit on the account": [LimitName(OWNER)],
    "owner, limits on account, queue and action": [
        *(LimitName(OWNER), LimitName(OWNER, "", "SendMessage")),
        *(LimitName(OWNER, "jobs"), LimitName(OWNER, "jobs", "SendMessage")),
    ],
}
"""What has limits that are not reached, of requests and bytes. The queue has no policy."""


def call_by(account_id: str) -> Call:
    """Return a call of SendMessage as the step gets it."""
    agent = b"Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux#6.1 md/arch#x86_64 lang/python#3.11"
    headers = [(b"user-agent", agent)]
    request = HTTPRequest(b"POST", b"/", b"/", b"", headers, "10.3.2.1", 0.0, dict(headers), CONNECTION_CLOSE)
    nothing: Any = None
    call = Call(nothing, request, "", nothing, PassTimes(0.0))
    call.action = ACTIONS["SendMessage"]
    call.principal = Principal.of_root(account_id, "key", "sender")
    call.given = SendMessageRequest(f"http://127.0.0.1:9324/{OWNER}/jobs", "body")
    return call


def cost_us(account_id: str, statements: list[Any], limited: list[LimitName], calls: int) -> float:
    """Return what the step costs one call."""
    table = LimitTable()
    for name in limited:
        table.set(name, Limit(REQUESTS_MAX, BYTES_MAX))
    attributes = {"Policy": json.dumps({"Statement": statements})} if statements else {}
    queue = QueueDefinition(1, OWNER, "jobs", "active", 1, 0, 0, attributes, {}, 1, one_partition())
    queues = {(OWNER, "jobs"): queue}

    def find(owner: str, name: str) -> QueueDefinition | None:
        return queues.get((owner, name))

    async def refresh(definition: QueueDefinition) -> None:
        await asyncio.sleep(0)

    nothing: Any = None
    authorization = Authorization(region=REGION, is_full=True, now_ms=lambda: time.time_ns() // 1_000_000)
    groups = ConsumerGroups(nothing, find)
    followed = SimpleNamespace(revision=0, age_ms=0.0)
    standing = Standing(followed, SimpleNamespace(revision=0, silent_ms=0.0))
    gate = Gate(
        *(find, groups, refresh, authorization, Limits(table)),
        region=REGION,
        standing=standing,
        completed=nothing,
    )
    allow = gate.allow
    call = call_by(account_id)
    best = float("inf")
    for _ in range(max(2, calls // CALLS_PER_ROUND)):
        started = time.process_time()
        for _ in range(CALLS_PER_ROUND):
            call.debtors = ()
            allow(call)
        best = min(best, (time.process_time() - started) / CALLS_PER_ROUND * 1e6)
    return best


class Sink:
    """Stands for the connection of a client whose key is known."""

    key = "AKIAEXAMPLEEXAMPLE12"

    def reply(self, *_: object) -> None:
        """Send nothing."""

    def hold_off_if_early(self, *_: object) -> None:
        """Hold nothing."""


def refusal_us(calls: int) -> float:
    """Return what it costs to refuse a request whose account is over its limit, before its signature is looked at.

    Usage and metrics count it; reading the request and writing the answer are not in it: see `limit_fairness`.
    """
    nothing: Any = None
    table = LimitTable()
    table.set(LimitName(OWNER), Limit(1))
    limits = Limits(table)
    limits.look_in_time(OWNER, float("inf"))
    (meter,) = limits.meters()
    meter.bucket.charge(1e9, monotonic_ms())
    key = SimpleNamespace(access_key_id=Sink.key, account_id=OWNER)
    find_key: Any = {Sink.key: key}.get
    refusals = Refusals(
        Admission(delay_target_ms=1_000, delay_tolerated_ms=1_000, in_progress_max=1_000),
        Signed(find_key, nothing, nothing, region=REGION, skew_ms=1, now_ms=time.time_ns),
        limits,
        CORS("", is_open=False),
        count=Metrics("bench").action(UNKNOWN_ACTION.name).observe,
        counts=FrontEndMetrics(),
        usage=UsageRecorder(now_us=lambda: time.time_ns() // 1_000),
        next_id=RequestIds().next,
    )
    headers = [
        (b"x-amz-target", b"AmazonSQS.SendMessage"),
        (b"authorization", b"AWS4-HMAC-SHA256 Credential=%b/20260101/x" % Sink.key.encode()),
    ]
    sink: Any = Sink()
    request = HTTPRequest(b"POST", b"/", b"/", b"", headers, "10.3.2.1", 0.0, dict(headers), nothing, sink)
    best = float("inf")
    left = [request]
    for _ in range(max(2, calls // CALLS_PER_ROUND)):
        started = time.process_time()
        for _ in range(CALLS_PER_ROUND):
            request._connection = sink
            left = refusals.take([request], 0.0, 0)
        best = min(best, (time.process_time() - started) / CALLS_PER_ROUND * 1e6)
    assert not left, "it is refused"
    return best


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    given = parser.parse_args()
    for name, (account_id, statements) in CASES.items():
        print(f"{name:42} {cost_us(account_id, statements, [], given.calls):6.2f} us")
    for name, limited in LIMITED.items():
        print(f"{name:42} {cost_us(OWNER, [], limited, given.calls):6.2f} us")
    print(f"{'refused before its signature is looked at':42} {refusal_us(given.calls):6.2f} us")


if __name__ == "__main__":
    main()

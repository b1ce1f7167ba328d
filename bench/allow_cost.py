"""CPU time of the step `allow` for each call: the queue found, and its policy asked.

    python -m bench.allow_cost [--calls N]

The best of many short rounds is shown: on a shared machine a long one always meets other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from quaymaster.core.values.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.actions.consumer_groups import ConsumerGroups
from quaymaster.frontend.allow import Gate
from quaymaster.frontend.authorization import Authorization
from quaymaster.frontend.call import Call, PassTimes
from quaymaster.frontend.principal import Principal
from quaymaster.net.http.message import CONNECTION_CLOSE, HTTPRequest
from quaymaster.protocol.actions.table import ACTIONS
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


def cost_us(account_id: str, statements: list[Any], calls: int) -> float:
    """Return what the step costs one call."""
    attributes = {"Policy": json.dumps({"Statement": statements})} if statements else {}
    queue = QueueDefinition(1, OWNER, "jobs", "active", 1, 0, 0, attributes, {}, 1, one_partition())
    queues = {(OWNER, "jobs"): queue}

    def find(owner: str, name: str) -> QueueDefinition | None:
        return queues.get((owner, name))

    async def refresh(definition: QueueDefinition) -> None:
        await asyncio.sleep(0)

    nothing: Any = None
    authorization = Authorization(region=REGION, is_full=True, now_ms=lambda: time.time_ns() // 1_000_000)
    allow = Gate(find, ConsumerGroups(nothing, find), refresh, authorization, region=REGION).allow
    call = call_by(account_id)
    best = float("inf")
    for _ in range(max(2, calls // CALLS_PER_ROUND)):
        started = time.process_time()
        for _ in range(CALLS_PER_ROUND):
            allow(call)
        best = min(best, (time.process_time() - started) / CALLS_PER_ROUND * 1e6)
    return best


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    given = parser.parse_args()
    for name, (account_id, statements) in CASES.items():
        print(f"{name:42} {cost_us(account_id, statements, given.calls):6.2f} us")


if __name__ == "__main__":
    main()

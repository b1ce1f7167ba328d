from __future__ import annotations

import json
from pathlib import Path

from harness.command_line import PlayedServer, Run

CLAIM = {"ClaimId": 8, "State": "held", "Count": 10_000, "MillisecondsLeft": 299_500}
CONSUMERS = [
    {"Consumer": "etl", "Owner": "a", "Settled": 7, "Claims": [CLAIM]},
    {"Consumer": "idle", "Owner": "b", "Settled": 3, "Claims": []},
]
DESCRIBED = {
    "QueueId": "1",
    "QueueName": "orders",
    "Partitions": [{"Partition": 0, "Visible": 5, "Consumers": CONSUMERS}],
}


def test_claims_are_listed_by_consumer(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["DescribeClaims"] = DESCRIBED

    result = run("queue", "claims", "list", "orders", "--data", data)
    as_json = run("queue", "claims", "list", "orders", "--json", "--data", data)

    assert result.out == "0\tetl\t7\t8\theld\t10000\t299 s\n0\tidle\t3\t-\t-\t0\t-\n"
    assert json.loads(as_json.out) == DESCRIBED


def test_claims_are_released(run: Run, data: Path, server: PlayedServer) -> None:
    server.answers["ReleaseClaims"] = {"Released": 10}

    result = run("queue", "claims", "release", "orders", "etl", "--data", data)
    as_json = run("queue", "claims", "release", "orders", "etl", "--forget", "--json", "--data", data)

    assert result.out == "10 messages released\n"
    assert json.loads(as_json.out) == {"Released": 10}
    url = server.queue_url("orders")
    assert server.called("ReleaseClaims") == [
        {"QueueUrl": url, "Consumer": "etl", "Forget": False},
        {"QueueUrl": url, "Consumer": "etl", "Forget": True},
    ]

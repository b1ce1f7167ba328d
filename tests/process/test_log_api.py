"""Logs are read by offsets from the real server: from blocks and not, after a kill, by signed requests alone."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials
from harness.process import QuaymasterProcess
from harness.waiting import PATIENCE_S

from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block

from .support import Client, bodies

COUNT = 20_000
"""More than a block has rows."""


def call(process: QuaymasterProcess, action: str, **given: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Make a request that botocore signs."""
    env = process.env()
    fields = {"QueueUrl": f"{env.endpoint_url}/{env.account_id}/log", **given}
    request = botocore.awsrequest.AWSRequest(
        "POST",
        env.endpoint_url + "/",
        headers={"X-Amz-Target": f"Quaymaster.{action}", "Content-Type": "application/x-amz-json-1.0"},
        data=json.dumps(fields),
    )
    credentials = botocore.credentials.Credentials(env.access_key_id, env.secret_access_key)
    botocore.auth.SigV4Auth(credentials, "sqs", env.region).add_auth(request)
    prepared = request.prepare()
    connection = http.client.HTTPConnection("127.0.0.1", process.listen_port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/", prepared.body, dict(prepared.headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def read_all(process: QuaymasterProcess, start: int, stop: int) -> list[tuple[int, bytes]]:
    """Return offset and body of all messages of a range."""
    found: list[tuple[int, bytes]] = []
    while start < stop:
        status, headers, body = call(
            process,
            "FetchMessages",
            Partition=0,
            FromOffset=start,
            ToOffset=stop,
            Columns=["offset", "value"],
        )
        assert status == 200, body
        batch = to_record_batch(parse_block(body))
        found += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        start = int(headers["x-quaymaster-next-offset"])
    return found


def described(process: QuaymasterProcess, **given: Any) -> dict[str, Any]:
    status, _, body = call(process, "DescribeLog", **given)
    assert status == 200, body
    partition: dict[str, Any] = json.loads(body)["Partitions"][0]
    return partition


def blocks(process: QuaymasterProcess) -> list[Path]:
    return sorted((process.data / "blocks").glob("*/*/*.qmb"))


def wait_for_blocks(process: QuaymasterProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not blocks(process):
        assert time.monotonic() < deadline, "no block was built\n" + process.log()[-3000:]
        time.sleep(0.1)


def test_a_log_is_read_whole_while_blocks_are_built_after_a_kill_and_from_damaged_blocks(
    tmp_path: Path,
) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings={"block_build_interval_s": "1"})
    process.start()
    try:
        client = Client(process)
        client.create("log", RetentionMode="Log")
        sent = bodies(COUNT)
        client.send("log", sent)
        expected = [(offset, body.encode()) for offset, body in enumerate(sent, 1)]

        assert described(process) == {"Partition": 0, "EarliestOffset": 1, "NextOffset": COUNT + 1}
        assert read_all(process, 1, COUNT + 1) == expected
        wait_for_blocks(process)
        assert read_all(process, 1, COUNT + 1) == expected

        client.close()
        process.kill9()
        for damaged in blocks(process)[:1]:
            damaged.write_bytes(damaged.read_bytes()[:-5])
        process.start()
        assert read_all(process, 7, COUNT - 3) == expected[6 : COUNT - 4]

        url = f"{process.env().endpoint_url}/{process.env().account_id}/log@spark"
        status, _, body = call(
            process, "CommitOffsets", QueueUrl=url, Offsets=[{"Partition": 0, "Offset": 5_000}]
        )
        assert (status, body) == (200, b"")
        assert described(process, QueueUrl=url)["Committed"] == 5_000
        status, _, body = call(process, "FindOffsets", Timestamp=0)
        assert json.loads(body) == {"Offsets": [{"Partition": 0, "Offset": 1}]}

        client = Client(process)
        assert client.call("PurgeQueue", "log").status == 200
        status, _, body = call(process, "FetchMessages", Partition=0, FromOffset=1, ToOffset=9)
        assert (status, json.loads(body)["EarliestOffset"]) == (400, COUNT + 1)
        deadline = time.monotonic() + PATIENCE_S
        while blocks(process):
            assert time.monotonic() < deadline, "blocks of purged messages stay"
            time.sleep(0.1)
        client.close()
    finally:
        process.stop()

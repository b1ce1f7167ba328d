"""Limits of the real server, set by the command line and met by boto3."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from harness.forked_programs import run_program
from harness.process import Environment, QuaymasterProcess
from harness.waiting import PATIENCE_S

from .support import running

REQUESTS_PER_S = 10
"""Few: one client has to send more, on a machine with other work, too."""
SECONDS = 4.0


def quaymaster(process: QuaymasterProcess, *arguments: str) -> Any:
    """Run a command of the server's operator; return its JSON."""
    done = run_program([*arguments, "--data", str(process.data), "--json"])
    done.check_returncode()
    return json.loads(done.stdout)


def boto_client(environment: Environment, **retries: Any) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=environment.endpoint_url,
        region_name=environment.region,
        aws_access_key_id=environment.access_key_id,
        aws_secret_access_key=environment.secret_access_key,
        config=Config(retries=retries),
    )


def test_a_client_that_sends_as_fast_as_it_can_gets_its_limit_through(tmp_path: Path) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        environment = process.env()
        sqs = boto_client(environment, total_max_attempts=1)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        limit = quaymaster(
            *(process, "limit", "set", "--account", environment.account_id),
            *("--action", "SendMessage", "--requests", str(REQUESTS_PER_S)),
        )
        sent = throttled = 0
        refusal: dict[str, Any] = {}
        began_s = time.monotonic()
        while not throttled or time.monotonic() - began_s < SECONDS:
            assert time.monotonic() - began_s < PATIENCE_S, "never more than the limit was sent"
            try:
                sqs.send_message(QueueUrl=url, MessageBody="hello")
                sent += 1
            except ClientError as error:
                throttled += 1
                refusal = dict(error.response)
        took_s = time.monotonic() - began_s
        stored = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All", "EffectiveLimits"])[
            "Attributes"
        ]
        removed = quaymaster(
            process, "limit", "remove", "--account", environment.account_id, "--action", "SendMessage"
        )
        for _ in range(2 * REQUESTS_PER_S):
            sqs.send_message(QueueUrl=url, MessageBody="hello")
        process.stop()

    assert limit["requests"] == REQUESTS_PER_S
    assert removed["deleted"] is True
    assert throttled
    assert sent <= REQUESTS_PER_S * (took_s + 1)
    assert int(stored["ApproximateNumberOfMessages"]) == sent
    assert json.loads(stored["EffectiveLimits"]) == {"Account": {"SendMessage": {"Requests": REQUESTS_PER_S}}}
    assert refusal["Error"]["Code"] == "RequestThrottled"
    headers = refusal["ResponseMetadata"]["HTTPHeaders"]
    assert (
        headers["x-quaymaster-limit"]
        == f"account={environment.account_id}; action=SendMessage; requests={REQUESTS_PER_S}"
    )


def test_boto3_gets_through_a_limit_by_trying_again(tmp_path: Path) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        environment = process.env()
        sqs = boto_client(environment, total_max_attempts=10, mode="standard")
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        quaymaster(
            process,
            "limit",
            "set",
            "--account",
            environment.account_id,
            "--queue",
            "jobs",
            "--requests",
            "20",
        )

        for _ in range(40):
            sqs.send_message(QueueUrl=url, MessageBody="hello")

        process.stop()

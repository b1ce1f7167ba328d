"""Alerts end to end: a real server with its console, and what is told when a queue fills."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from harness.process import QuaymasterProcess
from harness.waiting import eventually

REGION = "us-east-1"
ACCOUNT = "000000000000"


class Receiver:
    """A web server that notes what is posted to it."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                posts.append((self.path, dict(self.headers), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def serving(data: Path, **settings: str) -> Iterator[QuaymasterProcess]:
    """Run a server with a console."""
    process = QuaymasterProcess(data, settings={"console": "on", "console_listen": "127.0.0.1:0", **settings})
    process.start()
    try:
        yield process
    finally:
        process.stop()


def clients(process: QuaymasterProcess) -> tuple[Any, Any]:
    """Return boto3's clients for SQS and CloudWatch."""
    environment = process.env()
    given = {
        "region_name": REGION,
        "endpoint_url": process.endpoint_url,
        "aws_access_key_id": environment.access_key_id,
        "aws_secret_access_key": environment.secret_access_key,
    }
    return boto3.client("sqs", **given), boto3.client("cloudwatch", **given)


def alarm(name: str, *actions: str) -> dict[str, Any]:
    """Return an alarm that fires with the first message in orders."""
    return {
        "AlarmName": name,
        "Namespace": "AWS/SQS",
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
        "Statistic": "Maximum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "AlarmActions": list(actions),
    }


@pytest.mark.slow
def test_a_queue_that_fills_is_told_to_a_queue_and_to_alertmanager(
    tmp_path: Path, receiver: Receiver
) -> None:
    with serving(tmp_path / "data", alertmanager_url=f"{receiver.url}/am") as process:
        sqs, cloudwatch = clients(process)
        orders = sqs.create_queue(QueueName="orders")["QueueUrl"]
        told = sqs.create_queue(QueueName="told")["QueueUrl"]
        cloudwatch.put_metric_alarm(**alarm("orders-wait", f"arn:aws:sqs:{REGION}:{ACCOUNT}:told"))

        sqs.send_message(QueueUrl=orders, MessageBody="hello")

        got = eventually(lambda: sqs.receive_message(QueueUrl=told, WaitTimeSeconds=5).get("Messages"))
        body = json.loads(got[0]["Body"])
        assert (body["AlarmName"], body["NewStateValue"]) == ("orders-wait", "ALARM")
        assert len(got) == 1
        [found] = cloudwatch.describe_alarms()["MetricAlarms"]
        assert found["StateValue"] == "ALARM"

        def names() -> set[str]:
            return {alert["labels"]["alertname"] for path, _, alerts in receiver.posts for alert in alerts}

        eventually(lambda: {"QuaymasterWatchdog", "orders-wait"} <= names())
        assert {path for path, _, _ in receiver.posts} == {"/am/api/v2/alerts"}

"""`quaymaster import` from other services that speak SQS's JSON protocol, as they are.

moto runs in this process. ElasticMQ and LocalStack come from their registries, as `bench/servers` gets them; where
they cannot be had or started, the test is skipped and says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.process import QuaymasterProcess, free_port
from harness.sqs import Endpoint, endpoint_of, take_messages
from harness.waiting import PATIENCE_S
from moto.server import ThreadedMotoServer

from bench.servers import SERVERS, Running, Unavailable

pytestmark = pytest.mark.timeout(900)  # the first run fetches packages

COUNT = 45


@pytest.fixture(
    params=["moto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("elasticmq", "localstack"))]
)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    """Another service."""
    if request.param == "moto":
        server = ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield Endpoint(f"http://{host}:{port}", "us-east-1", "123456789012", "any", "any")
        finally:
            server.stop()
        return
    try:
        running = Running(SERVERS[request.param], tmp_path / request.param)
    except Unavailable as error:
        pytest.skip(str(error)[-500:])
    with running:
        place = running.endpoint
        yield Endpoint(f"http://{place.host}:{place.port}", "us-east-1", "000000000000", "any", "any")


def run_import(source: Endpoint, target: QuaymasterProcess, state: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "quaymaster.cli.main", "import", "--from", source.url]
    command += ["--data", str(target.data), "--state", str(state), "--json", *arguments]
    variables = {**os.environ, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_queues_and_messages_of_another_service_are_here_once(
    other: Endpoint, tmp_path: Path, start_process: Any
) -> None:
    there = other.client()
    dead = there.create_queue(QueueName="dead")["QueueUrl"]
    arn = there.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 3}
    orders = there.create_queue(
        QueueName="orders",
        Attributes={"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "77"},
        tags={"team": "x"},
    )["QueueUrl"]
    fifo = there.create_queue(
        QueueName="first.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    )["QueueUrl"]
    colour = {"colour": {"DataType": "String", "StringValue": "rot"}}
    sent: dict[str, str] = {}
    for number in range(COUNT):
        body = f"grün-{number:03}"
        answer = there.send_message(QueueUrl=orders, MessageBody=body, MessageAttributes=colour)
        sent[answer["MessageId"]] = body
        there.send_message(QueueUrl=fifo, MessageBody=body, MessageGroupId=f"g{number % 3}")
    target = start_process()

    done = run_import(other, target, tmp_path / "state")

    assert (done["imported"], done["refused"], done["unfinished"]) == (2 * COUNT, [], [])
    here = endpoint_of(target).client()
    url = here.get_queue_url(QueueName="orders")["QueueUrl"]
    attributes = here.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["VisibilityTimeout"] == "77"
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].endswith(":000000000000:dead")
    assert here.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "x"}
    arrived = take_messages(here, url)
    assert {each["Attributes"]["OriginMessageId"]: each["Body"] for each in arrived} == sent
    assert len(arrived) == COUNT
    assert arrived[0]["MessageAttributes"] == colour
    in_order = take_messages(here, here.get_queue_url(QueueName="first.fifo")["QueueUrl"])
    for group in range(3):
        bodies = [each["Body"] for each in in_order if each["Attributes"]["MessageGroupId"] == f"g{group}"]
        assert bodies == [f"grün-{number:03}" for number in range(group, COUNT, 3)]
    assert run_import(other, target, tmp_path / "state")["imported"] == 0

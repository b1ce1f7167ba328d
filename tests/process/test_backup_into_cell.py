"""From one server to a cell: what a server's backup holds is served by a cell that it was restored into."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness.forked_programs import run_program
from harness.new_cell import new_cell, restore_into, served
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint

pytestmark = pytest.mark.slow


def received(sqs: Any, url: str, count: int) -> list[dict[str, Any]]:
    """Receive until so many messages have come; each is left in flight."""
    found: list[dict[str, Any]] = []
    for _ in range(20):
        if len(found) >= count:
            break
        answer = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=min(10, count - len(found)), WaitTimeSeconds=1
        )
        found += answer.get("Messages", [])
    return found


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A server with queues and messages, and a backup of it."""
    directory = tmp_path_factory.mktemp("server")
    server = QuaymasterProcess(directory / "data")
    server.start()
    try:
        sqs = Endpoint(*server.env()).client()
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "5"})
        orders = sqs.create_queue(
            QueueName="orders", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "600"}
        )["QueueUrl"]
        steps = sqs.create_queue(QueueName="steps.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        for number in range(20):
            sqs.send_message(QueueUrl=orders, MessageBody=f"order {number}")
        for message in received(sqs, orders, 5)[:3]:
            sqs.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])
        in_flight = received(sqs, orders, 3)[:3]
        for number in range(10):
            sqs.send_message(
                QueueUrl=steps,
                MessageBody=f"step {number}",
                MessageGroupId="g",
                MessageDeduplicationId=f"id-{number}",
            )
        environment = server.env()
        made = run_program(["backup", "copy", "--data", "data"], directory=directory)
        assert made.returncode == 0, made.stderr
    finally:
        server.stop()
    return {
        "copy": directory / "copy",
        "keys": server.data / "keys",
        "environment": environment,
        "in_flight": in_flight,
        "urls": {"orders": orders, "steps": steps},
    }


def test_server_becomes_a_cell_with_its_queues_keys_messages_and_windows(
    backed_up: dict[str, Any], tmp_path: Path
) -> None:
    with new_cell(tmp_path / "cell", 3) as cell:
        restored = restore_into(cell, backed_up["copy"], backed_up["keys"])
        assert restored.returncode == 0, restored.stderr + cell["broker-1"].log()
        again = restore_into(cell, backed_up["copy"], backed_up["keys"])
        environment = served(cell, backed_up["keys"])
        old = backed_up["environment"]
        assert (environment.access_key_id, environment.secret_access_key, environment.account_id) == (
            old.access_key_id,
            old.secret_access_key,
            old.account_id,
        )
        sqs = Endpoint(*environment).client()
        urls = {
            name: url.replace(old.endpoint_url, environment.endpoint_url)
            for name, url in backed_up["urls"].items()
        }

        assert sqs.get_queue_url(QueueName="orders")["QueueUrl"] == urls["orders"]
        # What is in flight stays so; its receipt handle of before is good.
        for message in backed_up["in_flight"]:
            sqs.delete_message(QueueUrl=urls["orders"], ReceiptHandle=message["ReceiptHandle"])
        sqs.send_message(
            QueueUrl=urls["steps"], MessageBody="again", MessageGroupId="g", MessageDeduplicationId="id-3"
        )
        steps: list[str] = []
        while len(steps) < 10:
            some = received(sqs, urls["steps"], 1)
            assert some, steps
            for message in some:
                steps.append(message["Body"])
                sqs.delete_message(QueueUrl=urls["steps"], ReceiptHandle=message["ReceiptHandle"])
        assert steps == [f"step {number}" for number in range(10)]
        left = sqs.get_queue_attributes(
            QueueUrl=urls["steps"], AttributeNames=["ApproximateNumberOfMessages"]
        )
        assert left["Attributes"]["ApproximateNumberOfMessages"] == "0"
        attributes = sqs.get_queue_attributes(QueueUrl=urls["orders"], AttributeNames=["All"])["Attributes"]
        assert attributes["VisibilityTimeout"] == "600"
        waiting = received(sqs, urls["orders"], 12)
        bodies = [message["Body"] for message in waiting]
        assert len(set(bodies)) == len(bodies) >= 12
        created = sqs.create_queue(QueueName="later")["QueueUrl"]
        sqs.send_message(QueueUrl=created, MessageBody="new")
        assert [message["Body"] for message in received(sqs, created, 1)] == ["new"]

        assert again.returncode == 1
        assert "The cell is not new" in again.stderr


def test_restore_that_cannot_be_changes_nothing(backed_up: dict[str, Any], tmp_path: Path) -> None:
    copy, keys = backed_up["copy"], backed_up["keys"]
    damaged = tmp_path / "damaged"
    shutil.copytree(copy, damaged)
    largest = max((path for path in damaged.rglob("*.seg")), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(bytes([file.read(1)[0] ^ 1]))
    missing = tmp_path / "missing"
    shutil.copytree(copy, missing)
    next(missing.rglob("*.manifest")).unlink()
    (tmp_path / "no-keys").mkdir()
    with new_cell(tmp_path / "cell", 1) as cell:
        broker = cell["broker-1"]
        for source, used, why in (
            (damaged, keys, "is not what was backed up"),
            (missing, keys, "is missing, and the backup is not whole without it"),
            (copy, tmp_path / "no-keys", ".key is not in"),
            (tmp_path / "no-keys", keys, "it is no backup"),
        ):
            refused = restore_into(cell, source, used)
            assert refused.returncode == 1, refused.stderr
            assert why in refused.stderr
        cell["metadata-1"].launch()
        cell["metadata-1"].wait_until_ready()
        with_others = restore_into(cell, copy, keys)
        cell["metadata-1"].stop()

        assert with_others.returncode == 1
        assert "is not new" in with_others.stderr or "Only brokers may run" in with_others.stderr
        assert not list((broker.data / "journals").iterdir())

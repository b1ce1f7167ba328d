"""A cell is backed up under load, while dead letters move between journals and a leader is killed, and restored.

Nothing that was acknowledged before the backup began, and not deleted, is missing; nothing is there twice; what was
deleted before stays deleted; groups keep their order.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from harness.new_cell import new_cell, restore_into, served
from harness.running_cell import RunningCell, is_whole
from harness.sqs import Endpoint

pytestmark = pytest.mark.slow

PAIRS = 3
PATIENCE_S = 240.0


class Load:
    """Sends, deletes and lets die; knows what was acknowledged."""

    def __init__(self, cell: RunningCell) -> None:
        self.endpoint = Endpoint(*cell.environment())
        self.sent: set[str] = set()
        self.deletion_began: set[str] = set()
        self.deleted: set[str] = set()
        self.numbers = itertools.count()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        sqs = self.endpoint.client()
        self.urls = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in (*names(), "kept")}
        self.urls["steps.fifo"] = sqs.create_queue(
            QueueName="steps.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        )["QueueUrl"]
        for number in range(PAIRS):
            # The dead-letter queue lies in another journal: queues are spread in the order they are made in.
            policy = {
                "deadLetterTargetArn": self.endpoint.arn(f"dead-{(number + 1) % PAIRS}"),
                "maxReceiveCount": "1",
            }
            sqs.set_queue_attributes(
                QueueUrl=self.urls[f"work-{number}"],
                Attributes={"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"},
            )

    def start(self) -> None:
        for target in (self._send_work, self._let_die, self._send_and_delete, self._send_steps):
            thread = threading.Thread(target=self._repeat, args=(target,))
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, step: Any) -> None:
        sqs = self.endpoint.client()
        while not self._stopped.is_set():
            try:
                step(sqs)
            except (ClientError, BotoCoreError):  # a leader was killed: what came of it is unknown
                time.sleep(0.1)

    def _send(self, sqs: Any, name: str, **more: str) -> str:
        body = f"{name} {next(self.numbers):08d}"
        sqs.send_message(QueueUrl=self.urls[name], MessageBody=body, **more)
        self.sent.add(body)
        return body

    def _send_work(self, sqs: Any) -> None:
        for number in range(PAIRS):
            self._send(sqs, f"work-{number}")

    def _let_die(self, sqs: Any) -> None:
        for number in range(PAIRS):
            sqs.receive_message(QueueUrl=self.urls[f"work-{number}"], MaxNumberOfMessages=10)

    def _send_and_delete(self, sqs: Any) -> None:
        self._send(sqs, "kept")
        self._send(sqs, "kept")
        for message in sqs.receive_message(QueueUrl=self.urls["kept"]).get("Messages", []):
            self.deletion_began.add(message["Body"])
            sqs.delete_message(QueueUrl=self.urls["kept"], ReceiptHandle=message["ReceiptHandle"])
            self.deleted.add(message["Body"])

    def _send_steps(self, sqs: Any) -> None:
        self._send(sqs, "steps.fifo", MessageGroupId="one")


def names() -> list[str]:
    return [f"{kind}-{number}" for kind in ("work", "dead") for number in range(PAIRS)]


def drained(endpoint: Endpoint, queues: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Receive and delete everything; return where each body was, by queue and id, in the order it came."""
    sqs = endpoint.client()
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    deadline = time.monotonic() + PATIENCE_S
    quiet = 0
    while quiet < 3:
        assert time.monotonic() < deadline, "the restored cell does not become empty"
        is_empty = True
        for name in queues:
            url = endpoint.queue_url(name)
            while messages := sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=60
            ).get("Messages"):
                is_empty = False
                for message in messages:
                    place = name, message["MessageId"]
                    if place not in found[message["Body"]]:
                        found[message["Body"]].append(place)
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            is_empty &= not any(
                int(value) for key, value in attributes.items() if key.startswith("ApproximateNumber")
            )
        quiet = quiet + 1 if is_empty else 0
        time.sleep(0.5)
    return found


@pytest.mark.timeout(900)
def test_backup_of_a_cell_under_load_has_every_message_once(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    roles = {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1}
    with RunningCell.started(tmp_path / "old", roles) as cell:
        status = cell.wait_until(lambda status: len(status["journals"]) == PAIRS and is_whole(status))
        load = Load(cell)
        load.start()
        try:
            time.sleep(5)
            leader = status["journals"][0]["leader"]
            follower = next(broker["name"] for broker in status["brokers"] if broker["name"] != leader)
            acknowledged = set(load.sent)
            deleted = set(load.deleted)
            backing_up = subprocess.Popen(
                [str(Path(sys.executable).parent / "quaymaster"), "cell", "backup", str(tmp_path / "copy")],
                env=cell["manager-1"].environment(),
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in (leader, follower):
                time.sleep(1)
                cell[name].kill9()
                time.sleep(1)
                cell[name].start()
            _, said = backing_up.communicate(timeout=PATIENCE_S)
            assert backing_up.returncode == 0, said
            deletion_began = set(load.deletion_began)
        finally:
            load.stop()
    with new_cell(tmp_path / "new", 2, settings={"replicas": "1"}) as restored:
        done = restore_into(restored, tmp_path / "copy", tmp_path / "old" / "keys")
        assert done.returncode == 0, done.stderr + restored.logs()
        endpoint = Endpoint(*served(restored, tmp_path / "old" / "keys"))
        steps = drained(endpoint, ["steps.fifo"])
        found = steps | drained(endpoint, [*names(), "kept"])

    assert not acknowledged - deletion_began - found.keys()
    assert not deleted & found.keys()
    assert {body: places for body, places in found.items() if len(places) != 1} == {}
    assert list(steps) == sorted(steps)
    dead = [body for body, places in found.items() if body.startswith("work") and places[0][0][:4] == "dead"]
    assert dead, "no dead letter was in the backup"

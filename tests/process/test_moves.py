"""Dead letters and a redrive between journals of a cell of real processes, whose leaders are killed meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness.load import Answer
from harness.running_cell import RunningCell
from harness.waiting import PATIENCE_S, eventually

from .support import CellClient, bodies, journals_of, kill_leaders, running_thread

ROLES = {"manager": 1, "metadata": 1, "broker": 3, "frontend": 1}
SOURCE, TARGET = "ash", "birch"
"""Names that do not say that the queues belong together: each goes to a journal of its own."""
COUNT = 200


class Wearer:
    """Receives messages and lets them come back at once, so that all of them become dead letters."""

    def __init__(self, client: CellClient) -> None:
        self._client = client
        self._is_over = False

    def run(self) -> None:
        while not self._is_over:
            self._client.call("ReceiveMessage", SOURCE, MaxNumberOfMessages=10, VisibilityTimeout=0)

    def stop(self) -> None:
        self._is_over = True


def ask(client: CellClient, action: str, queue: str | None = None, **fields: Any) -> Answer:
    """Ask until somebody can answer."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := client.call(action, queue, **fields)).status != 200:
        assert answer.status in (0, 500, 503), answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    return answer


def attributes(client: CellClient, queue: str) -> dict[str, str]:
    found: dict[str, str] = ask(client, "GetQueueAttributes", queue, AttributeNames=["All"]).fields[
        "Attributes"
    ]
    return found


def in_all(client: CellClient, queue: str) -> int:
    """Return how many messages a queue has, in whatever state."""
    found = attributes(client, queue)
    return sum(int(value) for name, value in found.items() if name.startswith("ApproximateNumberOf"))


@pytest.mark.timeout(400)
def test_every_message_is_moved_once_though_leaders_of_both_journals_are_killed(tmp_path: Path) -> None:
    all_bodies = bodies(COUNT)
    with RunningCell.started(tmp_path, ROLES, settings={"snapshot_interval_s": "1"}) as cell:
        cell.wait_until_whole()
        client, other = CellClient(cell), CellClient(cell)
        client.create(SOURCE)
        client.create(TARGET)
        arn = attributes(client, TARGET)["QueueArn"]
        policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
        ask(client, "SetQueueAttributes", SOURCE, Attributes={"RedrivePolicy": policy})
        sent = dict(zip(client.send(SOURCE, all_bodies), all_bodies, strict=True))
        assert len(journals_of(cell, SOURCE, TARGET)) == 2

        wearer = Wearer(other)
        with running_thread(wearer.run, wearer.stop):
            eventually(lambda: in_all(client, TARGET) > 0, "dead letters arrive")
            kill_leaders(cell)
            eventually(
                lambda: in_all(client, TARGET) == COUNT and in_all(client, SOURCE) == 0,
                "every message is in the dead-letter queue, and there alone",
            )
        ask(client, "StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=50)
        kill_leaders(cell)

        def task() -> dict[str, Any]:
            answer = ask(client, "ListMessageMoveTasks", SourceArn=arn)
            found: dict[str, Any] = answer.fields["Results"][0]
            return found

        eventually(lambda: task()["Status"] != "RUNNING", "the task ends")

        assert task()["Status"] == "COMPLETED"
        assert task()["ApproximateNumberOfMessagesMoved"] == COUNT
        assert client.take_all(TARGET) == []
        taken = client.take_all_by_origin(SOURCE)
        assert dict(taken) == sent
        assert len(taken) == COUNT
        client.close()
        other.close()

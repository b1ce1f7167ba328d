"""Completions of real clients while servers are killed: each message has one result, in every queue it was sent to."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.forked_programs import run_program
from harness.load import Answer
from harness.process import QuaymasterProcess
from harness.running_cell import RunningCell
from harness.waiting import eventually

from .support import CellClient, Client, bodies, journals_of, kill_leaders, running, running_thread

COUNT = 240
CONSUMERS = 3
GROUPS = 4
ROLES = {"manager": 1, "metadata": 1, "broker": 3, "frontend": 1}
SOURCE, TARGET, STEPS = "ash", "birch", "cedar.fifo"
"""Names that do not say that the queues belong together: in a cell each goes to a journal of its own."""
BY_GROUP = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


class Consumer:
    """Completes what it receives: by messages to two queues, or by one with the attribute. It repeats, also in vain."""

    def __init__(self, client: Client, number: int, done: Counter[str]) -> None:
        self._client = client
        self._random = random.Random(number)
        self._done = done
        self._is_over = False

    def run(self) -> None:
        while not self._is_over:
            answer = self._client.call(
                "ReceiveMessage", SOURCE, MaxNumberOfMessages=5, VisibilityTimeout=self._random.choice((1, 3))
            )
            messages = answer.fields.get("Messages") or [] if answer.status == 200 else []
            if not messages:
                time.sleep(0.05)  # as clients do that poll
            for message in messages:
                self._complete(message["Body"], message["ReceiptHandle"])

    def stop(self) -> None:
        self._is_over = True

    def _complete(self, body: str, handle: str) -> None:
        is_single = self._random.random() < 0.4
        answer = self._until_told(body, handle, is_single=is_single)
        if answer is None or answer.status != 200:
            return
        self._done[body] += 1
        if self._random.random() < 0.3:  # its answer was lost, or so it seems
            again = self._until_told(body, handle, is_single=is_single)
            assert again is None or again.fields == answer.fields

    def _until_told(self, body: str, handle: str, *, is_single: bool) -> Answer | None:
        """Ask until somebody says whether it is done; None if this is over before."""
        while not self._is_over:
            answer = self._ask(body, handle, is_single=is_single)
            if answer.status in (200, 400):
                return answer
            assert answer.status in (0, 500, 503), answer
            time.sleep(0.02)
        return None

    def _ask(self, body: str, handle: str, *, is_single: bool) -> Answer:
        if is_single:
            completes = {"DataType": "String", "StringValue": handle}
            return self._client.call(
                "SendMessage", TARGET, MessageBody=body, MessageAttributes={"Quaymaster.Completes": completes}
            )
        steps: dict[str, Any] = {"QueueUrl": STEPS, "MessageGroupId": str(hash(body) % GROUPS)}
        messages: list[dict[str, Any]] = [
            {"QueueUrl": TARGET, "MessageBody": body},
            {**steps, "MessageBody": f"{body}/1", "MessageDeduplicationId": f"{body}/1"},
            {**steps, "MessageBody": f"{body}/2", "MessageDeduplicationId": f"{body}/2"},
        ]
        return self._client.call("CompleteMessages", SOURCE, ReceiptHandles=[handle], Messages=messages)


def check_results(client: Client, done: Counter[str]) -> None:
    """Each message was completed once, and what that sent is there once, and in order."""
    results = client.take_all(TARGET)
    steps = [body for _, body in client.take_all_by_origin(STEPS)]

    assert results == sorted(bodies(COUNT))
    assert max(done.values()) == 1
    assert max(Counter(steps).values()) == 1
    for body in {step.partition("/")[0] for step in steps}:
        assert steps.index(f"{body}/1") < steps.index(f"{body}/2")
    assert client.take_all(SOURCE) == []


@pytest.mark.timeout(400)
def test_each_message_has_one_result_though_the_server_is_killed_and_a_target_is_split(
    tmp_path: Path,
) -> None:
    settings = {"snapshot_interval_s": "1", "segment_bytes_max": "1048576", "partition_closing_s": "0"}
    process = QuaymasterProcess(tmp_path / "data", settings=settings)
    done: Counter[str] = Counter()
    with running(process):
        client = Client(process)
        client.create(SOURCE)
        client.create(TARGET)
        client.create(STEPS, **BY_GROUP)
        client.send(SOURCE, bodies(COUNT))
        with ExitStack() as stack:
            for number in range(CONSUMERS):
                consumer = Consumer(Client(process), number, done)
                stack.enter_context(running_thread(consumer.run, consumer.stop))
            for round_number in range(1, 6):
                eventually(lambda n=round_number: len(done) >= n * COUNT // 6, "messages are completed")  # type: ignore[misc]
                if round_number == 3:
                    split = run_program(["queue", "split", STEPS, "--into", "2", "--data", str(process.data)])
                    assert split.returncode == 0, split.stderr
                process.kill9()
                process.start()
            eventually(lambda: len(done) == COUNT, "every message is completed")
            client.close()
            client = Client(process)
            eventually(lambda: client.counts(TARGET) == COUNT, "every result has arrived")
        check_results(client, done)
        client.close()


@pytest.mark.timeout(600)
def test_each_message_has_one_result_though_leaders_of_both_journals_are_killed(tmp_path: Path) -> None:
    done: Counter[str] = Counter()
    with RunningCell.started(tmp_path, ROLES, settings={"snapshot_interval_s": "1"}) as cell:
        cell.wait_until_whole()
        client = CellClient(cell)
        client.create(SOURCE)
        client.create(TARGET)
        client.create(STEPS, **BY_GROUP)
        assert len(journals_of(cell, SOURCE, TARGET)) == 2
        client.send(SOURCE, bodies(COUNT))
        with ExitStack() as stack:
            for number in range(CONSUMERS):
                consumer = Consumer(CellClient(cell), number, done)
                stack.enter_context(running_thread(consumer.run, consumer.stop))
            eventually(lambda: len(done) >= COUNT // 4, "messages are completed")
            kill_leaders(cell)
            eventually(lambda: len(done) == COUNT, "every message is completed")
            eventually(lambda: client.counts(TARGET) == COUNT, "every result has arrived")
        check_results(client, done)
        client.close()

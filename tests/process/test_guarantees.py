"""Guarantees of a real server, of one with workers and of a cell: processes are killed between receives and answers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from harness.load import Answer
from harness.process import QuaymasterProcess
from harness.running_cell import RunningCell
from harness.waiting import eventually

from .support import CellClient, Client, bodies, kill_leaders, running, running_thread
from .test_partitions import partitions
from .test_workers import with_workers, workers_of

COUNT = 400
KILLS = 2
CONSUMERS = 4
PAUSE_S = 0.02
"""Between requests while nobody answers."""


class Service(Protocol):
    """Something that serves queues, and whose processes can be killed."""

    def connect(self) -> Client:
        """Return a client of what serves now."""

    def kill(self) -> None:
        """Kill -9 what decides, and have it start again."""


class Server:
    """One process; it has another port after each start."""

    def __init__(self, process: QuaymasterProcess) -> None:
        self.process = process

    def connect(self) -> Client:
        return Client(self.process)

    def kill(self) -> None:
        self.process.kill9()
        self.process.start()


class Workers(Server):
    """A server in several processes, of which one is killed."""

    def kill(self) -> None:
        before = workers_of(self.process)
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: before[0] not in (now := workers_of(self.process)) and len(now) == len(before))


class Cell:
    """A cell, of which the leader of each journal is killed."""

    def __init__(self, cell: RunningCell) -> None:
        self.cell = cell

    def connect(self) -> Client:
        return CellClient(self.cell)

    def kill(self) -> None:
        kill_leaders(self.cell)
        self.cell.wait_until_whole()


@contextmanager
def serving(kind: str, directory: Path) -> Iterator[Service]:
    """Run a service of a kind."""
    settings = {"snapshot_interval_s": "1", "partition_closing_s": "0"}
    if kind == "cell":
        roles = {"manager": 1, "metadata": 1, "broker": 3, "frontend": 1}
        with RunningCell.started(directory, roles, settings=settings) as cell:
            cell.wait_until_whole()
            yield Cell(cell)
        return
    settings["journals_per_broker"] = "2"
    process = QuaymasterProcess(directory / "data", settings=settings)
    if kind == "workers":
        with_workers(process, 2)
    with running(process):
        yield Workers(process) if kind == "workers" else Server(process)


class Seen(NamedTuple):
    """A delivery that a consumer was answered."""

    message_id: str
    body: str
    receive_count: int


class Consumers:
    """Threads that receive from a queue, one message at a time, through whatever happens to the server."""

    def __init__(self, service: Service, queue: str, *, finishes: bool) -> None:
        self.seen: list[Seen] = []
        self.finished: list[Seen] = []
        self.lost_answers = 0
        """Receives of which nobody knows what they took."""
        self._service = service
        self._queue = queue
        self._finishes = finishes
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = ExitStack()

    def __enter__(self) -> Consumers:
        for _ in range(CONSUMERS):
            self._threads.enter_context(running_thread(self._run, self._is_over.set))
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.close()

    def _run(self) -> None:
        client = self._service.connect()
        while not self._is_over.is_set():
            client = self._take(client)
        client.close()

    def _take(self, client: Client) -> Client:
        answer = client.call(
            "ReceiveMessage", self._queue, WaitTimeSeconds=1, VisibilityTimeout=2, AttributeNames=["All"]
        )
        if answer.status != 200:
            if answer.was_sent:
                with self._lock:
                    self.lost_answers += 1
            return self._again(client, answer)
        for message in answer.fields.get("Messages") or []:
            count = int(message["Attributes"]["ApproximateReceiveCount"])
            seen = Seen(message["MessageId"], message["Body"], count)
            with self._lock:
                self.seen.append(seen)
            if self._finishes:
                client = self._finish(client, seen, message["ReceiptHandle"])
        return client

    def _finish(self, client: Client, seen: Seen, handle: str) -> Client:
        """Delete until somebody says whether this delivery finished the message; then ask once more."""
        told: list[bool] = []
        while len(told) < 2:
            answer = client.call("DeleteMessage", self._queue, ReceiptHandle=handle)
            if answer.status in (200, 400):
                told.append(answer.status == 200)
            else:
                client = self._again(client, answer)
        assert told[0] == told[1], f"{seen} was told {told}"
        if told[0]:
            with self._lock:
                self.finished.append(seen)
        return client

    def _again(self, client: Client, answer: Answer) -> Client:
        assert answer.status in (0, 500, 503), answer
        time.sleep(PAUSE_S)
        client.close()
        return self._service.connect()


def send(service: Service, queue: str, sent: list[str]) -> None:
    """Send messages to a queue; those of a FIFO queue are of a few groups."""
    client = service.connect()
    if not queue.endswith(".fifo"):
        client.send(queue, sent)
    else:
        for at, body in enumerate(sent):
            fields: dict[str, Any] = {"MessageGroupId": f"g{at % 16}", "MessageDeduplicationId": body}
            assert client.call("SendMessage", queue, MessageBody=body, **fields).status == 200
    client.close()


def is_empty(service: Service, queue: str) -> bool:
    """Return whether a queue says that it is empty, if anybody answers."""
    client = service.connect()
    answer = client.call("GetQueueAttributes", queue, AttributeNames=["All"])
    client.close()
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    return answer.status == 200 and all(answer.fields["Attributes"][name] == "0" for name in names)


def killed_now_and_then(service: Service, progress: Callable[[], int]) -> None:
    """Kill it, each time in the middle of the work."""
    for number in range(1, KILLS + 1):
        until = number * COUNT // (KILLS + 2)
        eventually(lambda: progress() >= until)  # noqa: B023 -- it is asked in this round only
        service.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "queue"),
    [("server", "clicks"), ("server", "clicks.fifo"), ("workers", "clicks"), ("cell", "clicks.fifo")],
)
def test_no_message_of_an_at_most_once_queue_is_in_two_answers(tmp_path: Path, kind: str, queue: str) -> None:
    sent = bodies(COUNT)
    with serving(kind, tmp_path) as service:
        extra = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
        service.connect().create(queue, DeliveryGuarantee="AtMostOnce", **extra)
        send(service, queue, sent)

        with Consumers(service, queue, finishes=False) as consumers:
            killed_now_and_then(service, lambda: len(consumers.seen))
            eventually(lambda: is_empty(service, queue))

        received = [seen.body for seen in consumers.seen]
        assert len(received) == len(set(received))
        assert set(received) <= set(sent)
        # Only an answer that was lost loses messages, and each asked for one.
        assert len(sent) - len(received) <= consumers.lost_answers


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "queue"),
    [("server", "jobs"), ("server", "jobs.fifo"), ("workers", "jobs.fifo"), ("cell", "jobs")],
)
def test_one_delivery_of_each_message_of_an_exactly_once_queue_finishes_it(
    tmp_path: Path, kind: str, queue: str
) -> None:
    sent = bodies(COUNT)
    with serving(kind, tmp_path) as service:
        extra = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
        service.connect().create(queue, DeliveryGuarantee="ExactlyOnce", **extra)
        send(service, queue, sent)

        with Consumers(service, queue, finishes=True) as consumers:
            killed_now_and_then(service, lambda: len(consumers.finished))
            eventually(lambda: is_empty(service, queue))

        deliveries = [(seen.message_id, seen.receive_count) for seen in consumers.seen]
        assert len(deliveries) == len(set(deliveries))
        assert sorted(seen.body for seen in consumers.finished) == sent


@pytest.mark.timeout(300)
def test_a_split_exactly_once_queue_stores_one_message_for_each_id_and_finishes_it_once(
    tmp_path: Path,
) -> None:
    sent = bodies(60)
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = Client(process)
        client.create("jobs", DeliveryGuarantee="ExactlyOnce", DeduplicationWindowSeconds="3600")

        def store() -> list[str]:
            ids = []
            for body in sent:
                answer = client.call("SendMessage", "jobs", MessageBody=body, MessageDeduplicationId=body)
                assert answer.status == 200, answer
                ids.append(answer.fields["MessageId"])
            return ids

        first = store()
        partitions(process, "split", "jobs", "--into", "2")
        assert store() == first
        process.kill9()
        process.start()
        client = Client(process)
        assert store() == first

        with Consumers(Server(process), "jobs", finishes=True) as consumers:
            eventually(lambda: is_empty(Server(process), "jobs"))

        assert sorted(seen.body for seen in consumers.finished) == sent
        assert store() == first

"""What the tests of this folder share: messages by hand, and what a refused start says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.load import Answer, SQSConnection
from harness.process import Environment, ProcessFailed, QuaymasterProcess
from harness.running_cell import PREFIX, RunningCell
from harness.waiting import PATIENCE_S

from quaymaster.metadata.store.rows import QueueRows

EXIT_UNUSABLE = 3


class Client:
    """Calls of one server by hand, on one connection, with one queue in mind."""

    def __init__(self, process: QuaymasterProcess, *, clock_offset_ms: int = 0) -> None:
        self.environment = process.env()
        self._use(self.environment, process.listen_port)
        self.connection.clock_offset_ms = clock_offset_ms

    def _use(self, environment: Environment, port: int) -> None:
        self.connection = SQSConnection(environment, port)
        self._base = f"{environment.endpoint_url}/{environment.account_id}/"

    def call(self, action: str, queue: str | None = None, **fields: Any) -> Answer:
        """Make a call; `queue` is the name of the queue in QueueUrl."""
        if queue is not None:
            fields["QueueUrl"] = self._base + queue
        return self.connection.call(action, fields)

    def create(self, queue: str, **attributes: str) -> None:
        """Create a queue that must be created."""
        answer = self.call("CreateQueue", QueueName=queue, Attributes=attributes)
        assert answer.status == 200, answer

    def send(self, queue: str, bodies: list[str]) -> list[str]:
        """Send messages that must be taken, ten at a time; return their ids."""
        ids: list[str] = []
        for first in range(0, len(bodies), 10):
            entries = [
                {"Id": str(index), "MessageBody": body}
                for index, body in enumerate(bodies[first : first + 10])
            ]
            answer = self.call("SendMessageBatch", queue, Entries=entries)
            assert answer.status == 200, answer
            assert not answer.fields.get("Failed"), answer
            ids += [entry["MessageId"] for entry in answer.fields["Successful"]]
        return ids

    def take_all(self, queue: str) -> list[str]:
        """Receive and delete until nothing comes; return the bodies, sorted."""
        return sorted(body for _, body in self.take_all_by_origin(queue))

    def take_all_by_origin(self, queue: str) -> list[tuple[str, str]]:
        """Receive and delete until nothing comes; return the id that its sender got, and the body, of each message."""
        taken: list[tuple[str, str]] = []
        while True:
            answer = self.call(
                "ReceiveMessage",
                queue,
                MaxNumberOfMessages=10,
                VisibilityTimeout=60,
                AttributeNames=["OriginMessageId"],
            )
            assert answer.status == 200, answer
            messages = answer.fields.get("Messages") or []
            if not messages:
                return taken
            taken += [(message["Attributes"]["OriginMessageId"], message["Body"]) for message in messages]
            entries = [
                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]}
                for index, message in enumerate(messages)
            ]
            deleted = self.call("DeleteMessageBatch", queue, Entries=entries)
            assert deleted.status == 200, deleted
            assert not deleted.fields.get("Failed"), deleted

    def counts(self, queue: str) -> int:
        """Return how many messages the queue has, in whatever state."""
        answer = self.call("GetQueueAttributes", queue, AttributeNames=["All"])
        assert answer.status == 200, answer
        attributes = answer.fields["Attributes"]
        return sum(int(value) for name, value in attributes.items() if name.startswith("ApproximateNumberOf"))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class CellClient(Client):
    """The same for a cell, through one of its front ends."""

    def __init__(self, cell: RunningCell, front_end: str = "frontend-1") -> None:
        self._use(cell.environment(front_end), cell[front_end].port)

    def create(self, queue: str, **attributes: str) -> None:
        """Create a queue, as soon as a journal of the cell takes new ones: it may just have been started."""
        self.connection.call_until_answered("CreateQueue", {"QueueName": queue, "Attributes": attributes})


def kill_leaders(cell: RunningCell) -> None:
    """Kill -9 the leader of each journal, one after the other, and start it again."""
    for at in range(len(cell.wait_until_whole()["journals"])):
        leader = cell[cell.wait_until_whole()["journals"][at]["leader"]]
        leader.kill9()
        leader.start()


def journals_of(cell: RunningCell, *queues: str) -> set[int]:
    """Return the journals of queues of one partition."""
    account_id = cell.environment("frontend-1").account_id

    async def found() -> set[int]:
        store = cell.etcd.store(PREFIX)
        try:
            rows = [await QueueRows(store).find(account_id, queue) for queue in queues]
        finally:
            await store.close()
        return {row.partitions[0].journal_id for row in rows if row is not None}

    return asyncio.run(found())


@contextmanager
def running_thread(run: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """Run something beside the block; what it raises is raised at the end."""
    failures: list[Exception] = []

    def caught() -> None:
        try:
            run()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the thread does not end"
    for failure in failures:
        raise failure


def bodies(count: int, text: str = "m") -> list[str]:
    """Return distinct bodies in sorted order."""
    return [f"{text}-{number:06}" for number in range(count)]


def refused_start(process: QuaymasterProcess) -> str:
    """Start a server that must refuse to start with EXIT_UNUSABLE; return what this start printed."""
    before = len(process.log_path.read_bytes()) if process.log_path.exists() else 0
    with pytest.raises(ProcessFailed, match=f"ended with exit code {EXIT_UNUSABLE} before it was ready"):
        process.start()
    return process.log_path.read_bytes()[before:].decode(errors="replace")


@contextmanager
def running(process: QuaymasterProcess) -> Iterator[QuaymasterProcess]:
    """Run a server; kill it at the end if the test has not stopped it."""
    process.start()
    try:
        yield process
    finally:
        if process.is_running:
            process.kill9()


def contents(directory: Path) -> Mapping[str, bytes]:
    """Return every file below a directory with its bytes, but the lock and what is made ahead of use."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock" and path.suffix != ".tmp"
    }

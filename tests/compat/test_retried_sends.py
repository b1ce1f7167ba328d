"""A send that its SDK tries again is stored once, on standard queues too."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint, endpoint_of

from .conftest import MakeQueue
from .support import bodies, counts_of, delete, receive_one


class Sender:
    """Sends as an SDK does: one invocation id, and the number of the attempt."""

    def __init__(self, server: Endpoint) -> None:
        self._server = server
        self._invocation = str(uuid.uuid4())

    def send(self, url: str, body: str = "m", *, attempt: int | None, **more: Any) -> str:
        headers = {"amz-sdk-invocation-id": self._invocation}
        if attempt is not None:
            headers["amz-sdk-request"] = f"attempt={attempt}; max=3"
        answer = self._server.json_call(
            "SendMessage", {"QueueUrl": url, "MessageBody": body, **more}, unsigned_headers=headers
        )
        assert answer.status == 200, answer.text
        message_id: str = answer.json["MessageId"]
        return message_id

    def send_batch(self, url: str, entries: list[dict[str, Any]], *, attempt: int) -> list[str]:
        headers = {
            "amz-sdk-invocation-id": self._invocation,
            "amz-sdk-request": f"attempt={attempt}; max=3",
        }
        answer = self._server.json_call(
            "SendMessageBatch", {"QueueUrl": url, "Entries": entries}, unsigned_headers=headers
        )
        assert answer.status == 200, answer.text
        return [entry["MessageId"] for entry in answer.json["Successful"]]


@pytest.fixture
def sender(server: Endpoint) -> Sender:
    return Sender(server)


def test_second_attempt_is_answered_with_the_message_of_the_first(
    sender: Sender, sqs: Any, queue: str
) -> None:
    first = sender.send(queue, attempt=1)
    second = sender.send(queue, attempt=2)
    third = sender.send(queue, attempt=3)

    assert first == second == third
    assert counts_of(sqs, queue) == (1, 0, 0)


def test_attempt_without_a_number_is_looked_up_too(sender: Sender, sqs: Any, queue: str) -> None:
    assert sender.send(queue, attempt=None) == sender.send(queue, attempt=None)
    assert counts_of(sqs, queue) == (1, 0, 0)


def test_second_attempt_whose_first_never_came_is_stored(sender: Sender, sqs: Any, queue: str) -> None:
    sender.send(queue, attempt=2)

    assert counts_of(sqs, queue) == (1, 0, 0)


def test_another_invocation_is_another_message(server: Endpoint, sqs: Any, queue: str) -> None:
    assert Sender(server).send(queue, attempt=1) != Sender(server).send(queue, attempt=2)
    assert counts_of(sqs, queue) == (2, 0, 0)


def test_another_body_or_attribute_under_a_copied_header_is_not_swallowed(
    sender: Sender, sqs: Any, queue: str
) -> None:
    blue, red = ({"colour": {"DataType": "String", "StringValue": colour}} for colour in ("blue", "red"))

    ids = {
        sender.send(queue, "one", attempt=1),
        sender.send(queue, "two", attempt=2),
        sender.send(queue, "one", attempt=2, MessageAttributes=blue),
        sender.send(queue, "one", attempt=2, MessageAttributes=red),
    }

    assert len(ids) == 4
    assert counts_of(sqs, queue) == (4, 0, 0)


def test_another_queue_under_a_copied_header_is_not_swallowed(
    sender: Sender, sqs: Any, make_queue: MakeQueue
) -> None:
    one, other = make_queue(), make_queue()

    assert sender.send(one, attempt=1) != sender.send(other, attempt=2)
    assert counts_of(sqs, one) == counts_of(sqs, other) == (1, 0, 0)


def test_second_attempt_after_the_message_was_deleted_stores_nothing(
    sender: Sender, sqs: Any, queue: str
) -> None:
    first = sender.send(queue, attempt=1)
    delete(sqs, queue, receive_one(sqs, queue))

    assert sender.send(queue, attempt=2) == first
    assert counts_of(sqs, queue) == (0, 0, 0)


def test_second_attempt_of_a_batch_stores_nothing(sender: Sender, sqs: Any, queue: str) -> None:
    # Two entries of one batch may be alike: their ids keep them apart.
    entries = [{"Id": "a", "MessageBody": "same"}, {"Id": "b", "MessageBody": "same"}]

    first = sender.send_batch(queue, entries, attempt=1)
    second = sender.send_batch(queue, entries, attempt=2)

    assert first == second
    assert len(set(first)) == 2
    assert counts_of(sqs, queue) == (2, 0, 0)


def test_second_attempt_after_a_crash_stores_nothing(start_process: Callable[..., QuaymasterProcess]) -> None:
    process = start_process()
    server = endpoint_of(process)
    sqs = server.client()
    url = sqs.create_queue(QueueName="retried")["QueueUrl"]
    sender = Sender(server)
    first = sender.send(url, attempt=1)

    process.kill9()
    process.start()

    assert sender.send(url, attempt=2) == first
    assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == ["m"]


def test_retry_of_boto3_itself_carries_the_headers_this_rests_on(sqs: Any, queue: str) -> None:
    seen: list[Any] = []

    def record(request: Any, **_: Any) -> None:
        seen.append(dict(request.headers.items()))

    sqs.meta.events.register("before-send.sqs.SendMessage", record)
    try:
        sqs.send_message(QueueUrl=queue, MessageBody="m")
    finally:
        sqs.meta.events.unregister("before-send.sqs.SendMessage", record)

    (headers,) = seen
    names = {name.lower() for name in headers}
    assert {"amz-sdk-invocation-id", "amz-sdk-request"} <= names

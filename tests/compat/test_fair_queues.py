"""Fair queues: a tenant (message group on a standard queue) with much in flight lets the others go first."""

from __future__ import annotations

import time
from typing import Any

from harness.waiting import eventually

from quaymaster.core.structures.orders.standard_order import BUSY_MIN_MS

from .conftest import MakeQueue
from .support import bodies, counts_of, receive_all, receive_one, send


def send_many(sqs: Any, url: str, tenant: str, count: int) -> None:
    for first in range(0, count, 10):
        sqs.send_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(number), "MessageBody": f"{tenant}{number}", "MessageGroupId": tenant}
                for number in range(first, min(first + 10, count))
            ],
        )


def delete_many(sqs: Any, url: str, messages: list[Any]) -> None:
    for first in range(0, len(messages), 10):
        some = messages[first : first + 10]
        answer = sqs.delete_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(some)
            ],
        )
        assert len(answer["Successful"]) == len(some)


def test_quiet_tenant_goes_before_a_noisy_one(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "noisy", 80)
    receive_all(sqs, queue, 40, VisibilityTimeout=300)

    send(sqs, queue, "quiet", MessageGroupId="quiet")

    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["quiet"]


def test_message_without_a_group_is_a_tenant_of_its_own(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "noisy", 80)
    receive_all(sqs, queue, 40, VisibilityTimeout=300)

    send(sqs, queue, "nobody's")

    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["nobody's"]


def test_noisy_tenant_is_served_when_nobody_else_waits(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "noisy", 80)

    messages = receive_all(sqs, queue, 80, VisibilityTimeout=300)

    assert len({message["MessageId"] for message in messages}) == 80
    assert counts_of(sqs, queue) == (0, 80, 0)


def test_noisy_tenant_with_fewer_in_flight_goes_first(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "a", 100)
    receive_all(sqs, queue, 90, VisibilityTimeout=300)
    send_many(sqs, queue, "b", 50)
    receive_all(sqs, queue, 40, VisibilityTimeout=300)

    message = receive_one(sqs, queue, AttributeNames=["MessageGroupId"])

    assert message["Attributes"]["MessageGroupId"] == "b"


def test_groups_of_a_standard_queue_are_not_locked(sqs: Any, queue: str) -> None:
    for body in ("1", "2", "3"):
        send(sqs, queue, body, MessageGroupId="g")

    assert {receive_one(sqs, queue)["Body"] for _ in range(3)} == {"1", "2", "3"}


def test_group_of_a_standard_message_is_returned(sqs: Any, queue: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="m", MessageGroupId="tenant-1")

    message = receive_one(sqs, queue, AttributeNames=["All"])

    assert message["Attributes"]["MessageGroupId"] == "tenant-1"
    assert "SequenceNumber" not in sent
    assert "SequenceNumber" not in message["Attributes"]


def test_tenant_is_quiet_again_when_its_messages_are_done(sqs: Any, make_queue: MakeQueue) -> None:
    def took_long_to_be_done(url: str) -> bool:
        """Let messages of a tenant be processed; return whether that may have taken so long that it stays noisy."""
        send_many(sqs, url, "noisy", 31)  # as few as make it noisy while they are in flight
        began_s = time.monotonic()
        messages = receive_all(sqs, url, 31)
        delete_many(sqs, url, messages)
        return len(messages) * (time.monotonic() - began_s) >= BUSY_MIN_MS / 1_000

    # The processing time of all messages counts, too. On a busy machine some rounds have too much of it.
    queue = eventually(lambda: "" if took_long_to_be_done(url := make_queue()) else url)

    send(sqs, queue, "first", MessageGroupId="noisy")
    send(sqs, queue, "second", MessageGroupId="quiet")

    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == ["first", "second"]

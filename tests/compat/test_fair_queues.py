"""Fair queues: a tenant (message group on a standard queue) with much in flight lets the others go first."""

from __future__ import annotations

from typing import Any

from .support import bodies, counts_of, delete, receive_all, receive_one, send


def send_many(sqs: Any, url: str, tenant: str, count: int) -> None:
    for first in range(0, count, 10):
        sqs.send_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(number), "MessageBody": f"{tenant}{number}", "MessageGroupId": tenant}
                for number in range(first, min(first + 10, count))
            ],
        )


def test_quiet_tenant_goes_before_a_noisy_one(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "noisy", 80)
    receive_all(sqs, queue, 40)

    send(sqs, queue, "quiet", MessageGroupId="quiet")

    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["quiet"]


def test_message_without_a_group_is_a_tenant_of_its_own(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "noisy", 80)
    receive_all(sqs, queue, 40)

    send(sqs, queue, "nobody's")

    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["nobody's"]


def test_noisy_tenant_is_served_when_nobody_else_waits(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "noisy", 80)

    messages = receive_all(sqs, queue, 80)

    assert len({message["MessageId"] for message in messages}) == 80
    assert counts_of(sqs, queue) == (0, 80, 0)


def test_noisy_tenant_with_fewer_in_flight_goes_first(sqs: Any, queue: str) -> None:
    send_many(sqs, queue, "a", 100)
    receive_all(sqs, queue, 90)
    send_many(sqs, queue, "b", 50)
    receive_all(sqs, queue, 40)

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


def test_tenant_is_quiet_again_when_its_messages_are_done(sqs: Any, queue: str) -> None:
    # As few as make it noisy: the time until they are deleted counts, too, from 30 s on over all of them.
    send_many(sqs, queue, "noisy", 31)
    messages = receive_all(sqs, queue, 31)
    delete(sqs, queue, *messages)

    send(sqs, queue, "first", MessageGroupId="noisy")
    send(sqs, queue, "second", MessageGroupId="quiet")

    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == ["first", "second"]

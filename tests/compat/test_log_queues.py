"""Log-retained queues through SQS clients: each consumer group is a queue to them."""

from __future__ import annotations

from typing import Any

from .conftest import MakeQueue
from .support import attributes_of, bodies, refused, send


def test_each_group_receives_and_deletes_for_itself(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(RetentionMode="Log")
    for number in range(3):
        send(sqs, url, f"m{number}")

    for group in (url, f"{url}@audit"):
        got = sqs.receive_message(QueueUrl=group, MaxNumberOfMessages=10, WaitTimeSeconds=2)
        assert bodies(got) == ["m0", "m1", "m2"]
        for message in got["Messages"]:
            sqs.delete_message(QueueUrl=group, ReceiptHandle=message["ReceiptHandle"])
    send(sqs, url, "m3")

    late = sqs.receive_message(QueueUrl=f"{url}@late", MaxNumberOfMessages=10, WaitTimeSeconds=2)
    assert bodies(late) == ["m0", "m1", "m2", "m3"]
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)) == ["m3"]
    shown = attributes_of(sqs, f"{url}@late", "ApproximateNumberOfMessagesNotVisible")
    assert shown == {"ApproximateNumberOfMessagesNotVisible": "4"}


def test_fifo_order_is_kept_for_each_group(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(RetentionMode="Log", ContentBasedDeduplication="true")
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=f"m{number}", MessageGroupId="g")

    for group in ("a", "b"):
        name = f"{url}@{group}"
        first = sqs.receive_message(QueueUrl=name, WaitTimeSeconds=2)
        assert bodies(first) == ["m0"]
        assert bodies(sqs.receive_message(QueueUrl=name)) == []
        sqs.delete_message(QueueUrl=name, ReceiptHandle=first["Messages"][0]["ReceiptHandle"])
        assert bodies(sqs.receive_message(QueueUrl=name, WaitTimeSeconds=2)) == ["m1"]


def test_messages_are_sent_to_the_queue_not_to_a_group(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(RetentionMode="Log")

    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.send_message(QueueUrl=f"{url}@a", MessageBody="x")
    with refused("InvalidAttributeValue", containing="RetentionMode"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RetentionMode": "Delete"})

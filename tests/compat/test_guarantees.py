"""Guarantees as SQS clients see them."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import MakeQueue
from .support import bodies, refused, send


@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_message_of_an_at_most_once_queue_is_gone_when_it_is_received(
    sqs: Any, make_queue: MakeQueue, make_fifo_queue: MakeQueue, is_fifo: bool
) -> None:
    make = make_fifo_queue if is_fifo else make_queue
    url = make(DeliveryGuarantee="AtMostOnce", VisibilityTimeout="0")
    extra = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if is_fifo else {}
    sqs.send_message(QueueUrl=url, MessageBody="m", **extra)

    received = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)

    assert bodies(received) == ["m"]
    assert bodies(sqs.receive_message(QueueUrl=url)) == []
    handle = received["Messages"][0]["ReceiptHandle"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    with refused("InvalidParameterValue", containing="not available for visibility timeout change"):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)


def test_an_attempt_id_brings_no_message_of_an_at_most_once_queue_again(
    sqs: Any, make_fifo_queue: MakeQueue
) -> None:
    url = make_fifo_queue(DeliveryGuarantee="AtMostOnce")
    for number in range(2):
        sqs.send_message(
            QueueUrl=url,
            MessageBody=f"m{number}",
            MessageGroupId="g",
            MessageDeduplicationId=f"d{number}",
        )

    received = [
        sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, ReceiveRequestAttemptId="again")
        for _ in range(2)
    ]

    assert [bodies(answer) for answer in received] == [["m0"], ["m1"]]


def test_consumer_groups_have_the_guarantee_of_their_log(sqs: Any, make_queue: MakeQueue) -> None:
    once = make_queue(RetentionMode="Log", DeliveryGuarantee="AtMostOnce")
    exact = make_queue(RetentionMode="Log", DeliveryGuarantee="ExactlyOnce")
    for url in (once, exact):
        send(sqs, url, "m")

    assert bodies(sqs.receive_message(QueueUrl=f"{once}@a", WaitTimeSeconds=5, VisibilityTimeout=0)) == ["m"]
    assert bodies(sqs.receive_message(QueueUrl=f"{once}@a")) == []
    assert bodies(sqs.receive_message(QueueUrl=f"{once}@b", WaitTimeSeconds=5)) == ["m"]
    (first,) = sqs.receive_message(QueueUrl=f"{exact}@a", WaitTimeSeconds=5, VisibilityTimeout=0)["Messages"]
    (second,) = sqs.receive_message(QueueUrl=f"{exact}@a", WaitTimeSeconds=5)["Messages"]
    with refused("InvalidParameterValue", containing="The receipt handle has expired"):
        sqs.delete_message(QueueUrl=f"{exact}@a", ReceiptHandle=first["ReceiptHandle"])
    sqs.delete_message(QueueUrl=f"{exact}@a", ReceiptHandle=second["ReceiptHandle"])


def test_only_the_newest_delivery_of_an_exactly_once_queue_deletes_its_message(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue(DeliveryGuarantee="ExactlyOnce")
    send(sqs, url, "m")

    (first,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["All"])["Messages"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    (second,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["All"])["Messages"]

    counts = [one["Attributes"]["ApproximateReceiveCount"] for one in (first, second)]
    assert counts == ["1", "2"]
    with refused("InvalidParameterValue", containing="The receipt handle has expired"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    for _ in range(2):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    with refused("InvalidParameterValue", containing="The receipt handle has expired"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"DeliveryGuarantee": "ExactlyOnce", "Durability": "Async"}, "Durability"),
        ({"DeliveryGuarantee": "ExactlyOnce", "ReplicationMode": "Peers"}, "DeliveryGuarantee"),
        ({"DeliveryGuarantee": "Sometimes"}, "DeliveryGuarantee"),
    ],
)
def test_what_a_guarantee_cannot_hold_with_is_refused(
    sqs: Any, make_queue: MakeQueue, given: dict[str, str], named: str
) -> None:
    with refused("InvalidAttributeValue", containing=named):
        make_queue(**given)


def test_at_most_once_is_no_change_of_a_queue(sqs: Any, queue: str) -> None:
    with refused("InvalidAttributeValue", containing="AtMostOnce is given when a queue is created"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeliveryGuarantee": "AtMostOnce"})


@pytest.mark.parametrize("window_s", ["300", "86400"])
def test_an_exactly_once_queue_stores_one_message_for_each_deduplication_id(
    sqs: Any, make_queue: MakeQueue, window_s: str
) -> None:
    url = make_queue(DeliveryGuarantee="ExactlyOnce", DeduplicationWindowSeconds=window_s)

    sent = [
        sqs.send_message(QueueUrl=url, MessageBody=f"m{number}", MessageDeduplicationId="d")
        for number in range(2)
    ]
    other = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "0", "MessageBody": "again", "MessageDeduplicationId": "d"},
            {"Id": "1", "MessageBody": "other", "MessageDeduplicationId": "e"},
        ],
    )["Successful"]

    assert {one["MessageId"] for one in (*sent, other[0])} == {sent[0]["MessageId"]}
    received: list[Any] = []
    while len(received) < 2:
        answer = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5, AttributeNames=["All"]
        )
        received += answer["Messages"]
    assert {one["Body"]: one["Attributes"]["MessageDeduplicationId"] for one in received} == {
        "m0": "d",
        "other": "e",
    }
    assert bodies(sqs.receive_message(QueueUrl=url)) == []


def test_other_standard_queues_have_no_deduplication_ids(sqs: Any, queue: str) -> None:
    with refused("InvalidParameterValue", containing="MessageDeduplicationId"):
        sqs.send_message(QueueUrl=queue, MessageBody="m", MessageDeduplicationId="d")
    with refused("InvalidAttributeName", containing="DeduplicationWindowSeconds"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeduplicationWindowSeconds": "600"})

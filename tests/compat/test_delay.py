"""Delay queues and messages with a timer of their own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .conftest import MakeQueue
from .support import bodies, counts_of, receive_all, receive_none, receive_one, refused, send


def test_message_of_a_delay_queue_comes_after_the_delay(sqs: Any, make_queue: MakeQueue) -> None:
    long, short = make_queue(DelaySeconds="900"), make_queue(DelaySeconds="1")

    send(sqs, long, "m")
    send(sqs, short, "m")

    assert counts_of(sqs, long) == (0, 0, 1)
    receive_none(sqs, long)
    assert receive_one(sqs, short)["Body"] == "m"
    assert counts_of(sqs, short) == (0, 1, 0)


def test_timer_of_a_message_goes_before_the_delay_of_the_queue(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(DelaySeconds="900")

    send(sqs, url, "now", DelaySeconds=0)
    send(sqs, url, "soon", DelaySeconds=1)
    send(sqs, url, "late")

    assert bodies(sqs.receive_message(QueueUrl=url)) == ["now"]
    assert receive_one(sqs, url)["Body"] == "soon"
    assert counts_of(sqs, url) == (0, 2, 1)


def test_delayed_message_does_not_hold_back_later_ones(sqs: Any, queue: str) -> None:
    send(sqs, queue, "late", DelaySeconds=900)
    send(sqs, queue, "now")

    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == ["now"]
    assert counts_of(sqs, queue) == (0, 1, 1)


def test_messages_of_a_batch_have_their_own_timers(sqs: Any, queue: str) -> None:
    sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "now", "MessageBody": "now"},
            {"Id": "soon", "MessageBody": "soon", "DelaySeconds": 5},
            {"Id": "late", "MessageBody": "late", "DelaySeconds": 900},
        ],
    )

    assert counts_of(sqs, queue) == (1, 0, 2)
    assert [message["Body"] for message in receive_all(sqs, queue, 2)] == ["now", "soon"]


@pytest.mark.parametrize("seconds", [-1, 901])
def test_delay_is_0_to_900_seconds(sqs: Any, queue: str, seconds: int) -> None:
    with refused(
        "InvalidParameterValue", containing=f"Value {seconds} for parameter DelaySeconds is invalid."
    ):
        sqs.send_message(QueueUrl=queue, MessageBody="m", DelaySeconds=seconds)
    sqs.send_message(QueueUrl=queue, MessageBody="m", DelaySeconds=900)

    assert counts_of(sqs, queue) == (0, 0, 1)


def test_changed_delay_of_a_standard_queue_is_for_new_messages(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(DelaySeconds="900")
    send(sqs, url, "old")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    send(sqs, url, "new")

    assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == ["new"]
    assert counts_of(sqs, url) == (0, 1, 1)


def test_changed_delay_of_a_fifo_queue_is_for_all_messages(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(DelaySeconds="900")
    send(sqs, url, "old", MessageGroupId="g", MessageDeduplicationId="old")
    receive_none(sqs, url)

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})

    assert receive_one(sqs, url)["Body"] == "old"


def test_delay_of_a_fifo_queue_keeps_the_order(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    long, short = (
        make_fifo_queue(DelaySeconds=seconds, ContentBasedDeduplication="true") for seconds in ("900", "1")
    )

    for url in (long, short):
        send(sqs, url, "1", "2", "3", MessageGroupId="g")

    receive_none(sqs, long)
    time.sleep(1.5)
    assert bodies(sqs.receive_message(QueueUrl=short, MaxNumberOfMessages=10)) == ["1", "2", "3"]


def test_sent_time_of_a_delayed_message_is_the_time_it_was_sent(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m", DelaySeconds=1)

    attributes = receive_one(sqs, queue, AttributeNames=["All"])["Attributes"]

    waited_ms = int(attributes["ApproximateFirstReceiveTimestamp"]) - int(attributes["SentTimestamp"])
    assert waited_ms >= 900

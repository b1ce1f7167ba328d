"""Long polls: what wakes them, who is served first, and what they may ask for."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from harness.sqs import JSON_TYPE, Endpoint
from harness.waiting import PATIENCE_S, eventually

from .conftest import MakeQueue, long_polls
from .support import Background, bodies, hide, in_parallel, receive_one, refused, send

# A waiting receive asks for 20 s; one that is woken is back long before this.
WOKEN_S = 18.0


def in_waiting(call: Callable[[], Any], count: int = 1) -> list[Background]:
    """Start calls that are long polls; returns when they wait at the server, or one is over already."""
    before = long_polls()
    polls = [Background(call) for _ in range(count)]
    if before is None:
        time.sleep(0.4)  # a server that was there before the tests: it does not tell them
    else:
        eventually(
            lambda: (long_polls() or 0) >= before + count or not all(poll.is_running for poll in polls)
        )
    return polls


def waiting(sqs: Any, url: str, **more: Any) -> Background:
    """Start a long poll of 20 s; returns when it waits at the server."""
    (poll,) = in_waiting(
        lambda: bodies(sqs.receive_message(**{"QueueUrl": url, "WaitTimeSeconds": 20, **more}))
    )
    return poll


def test_long_poll_is_woken_by_a_send(sqs: Any, queue: str) -> None:
    poll = waiting(sqs, queue)

    send(sqs, queue, "m")

    assert poll.result(WOKEN_S) == ["m"]


def test_long_poll_is_woken_by_a_batch(sqs: Any, queue: str) -> None:
    poll = waiting(sqs, queue, MaxNumberOfMessages=10)

    sqs.send_message_batch(
        QueueUrl=queue, Entries=[{"Id": str(number), "MessageBody": str(number)} for number in range(3)]
    )

    woken_with = poll.result(WOKEN_S)
    assert woken_with
    assert set(woken_with) <= {"0", "1", "2"}


def test_long_poll_is_woken_by_a_message_made_visible(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue, VisibilityTimeout=300)
    poll = waiting(sqs, queue)

    hide(sqs, queue, message, 0)

    assert poll.result(WOKEN_S) == ["m"]


def test_long_poll_is_woken_by_a_timeout_that_passes(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    receive_one(sqs, queue, VisibilityTimeout=1)

    assert waiting(sqs, queue).result(WOKEN_S) == ["m"]


def test_long_poll_is_woken_by_a_delay_that_passes(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m", DelaySeconds=1)

    assert waiting(sqs, queue).result(WOKEN_S) == ["m"]


def test_long_poll_of_a_fifo_queue_is_woken_when_its_group_is_free(sqs: Any, fifo_queue: str) -> None:
    for body in ("1", "2"):
        send(sqs, fifo_queue, body, MessageGroupId="g", MessageDeduplicationId=body)
    first = receive_one(sqs, fifo_queue)
    poll = waiting(sqs, fifo_queue)

    sqs.delete_message(QueueUrl=fifo_queue, ReceiptHandle=first["ReceiptHandle"])

    assert poll.result(WOKEN_S) == ["2"]


def test_long_poll_returns_at_once_what_is_there(sqs: Any, queue: str) -> None:
    send(sqs, queue, "one", "two")

    poll = Background(
        lambda: bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=20))
    )

    assert poll.result(WOKEN_S)


def test_wait_of_the_queue_holds_for_receives_that_name_none(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(ReceiveMessageWaitTimeSeconds="20")
    (poll,) = in_waiting(lambda: bodies(sqs.receive_message(QueueUrl=url)))

    send(sqs, url, "m")

    assert poll.result(WOKEN_S) == ["m"]


def test_wait_of_zero_goes_before_the_wait_of_the_queue(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(ReceiveMessageWaitTimeSeconds="20")

    poll = Background(lambda: bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)))

    assert poll.result(WOKEN_S) == []


def test_long_poll_without_messages_ends_empty(sqs: Any, queue: str) -> None:
    assert bodies(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1)) == []


@pytest.mark.parametrize("seconds", [-1, 21])
def test_wait_is_0_to_20_seconds(sqs: Any, queue: str, seconds: int) -> None:
    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message=f"Value {seconds} for parameter WaitTimeSeconds is invalid. "
        "Reason: Must be >= 0 and <= 20, if provided.",
    ):
        sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=seconds)


def test_longest_waiting_poll_is_served_first(sqs: Any, queue: str) -> None:
    polls = [waiting(sqs, queue) for _ in range(3)]

    for number, poll in enumerate(polls):
        send(sqs, queue, str(number))
        assert poll.result(WOKEN_S) == [str(number)]
        assert all(other.is_running for other in polls[number + 1 :])


def test_each_waiting_poll_gets_a_message_of_its_own(sqs: Any, queue: str) -> None:
    polls = [waiting(sqs, queue) for _ in range(5)]

    in_parallel([partial(send, sqs, queue, str(number)) for number in range(5)])

    received = [body for poll in polls for body in poll.result(WOKEN_S)]
    assert sorted(received) == ["0", "1", "2", "3", "4"]


def test_client_that_hung_up_takes_no_message(server: Endpoint, sqs: Any, queue: str) -> None:
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    headers = server.sign(
        "POST",
        "/",
        headers={"Content-Type": JSON_TYPE, "X-Amz-Target": "AmazonSQS.ReceiveMessage"},
        body=body,
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    name, _, port = server.host.partition(":")
    before = long_polls()
    with socket.create_connection((name, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if before is None:
            time.sleep(0.5)
        else:
            eventually(lambda: (long_polls() or 0) > before)
    if before is None:
        time.sleep(0.5)
    else:
        eventually(lambda: long_polls() == before)

    send(sqs, queue, "m")

    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["m"]


def test_deleting_the_queue_ends_its_long_polls(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    (poll,) = in_waiting(lambda: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20))

    sqs.delete_queue(QueueUrl=url)

    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        poll.result(WOKEN_S)


def test_many_idle_polls_hold_up_nobody(server: Endpoint, sqs: Any, make_queue: MakeQueue) -> None:
    idle, busy = make_queue(), make_queue()
    many = server.client()
    polls = in_waiting(lambda: many.receive_message(QueueUrl=idle, WaitTimeSeconds=3), 25)

    send(sqs, busy, "m")
    assert Background(lambda: receive_one(sqs, busy)["Body"]).result(WOKEN_S) == "m"

    assert [bodies(poll.result()) for poll in polls] == [[]] * 25

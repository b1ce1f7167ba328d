"""Visibility timeouts, receipt handles, and what counts as in flight."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.sqs import JSON_TYPE, endpoint_of
from harness.waiting import PATIENCE_S

from quaymaster.settings import load_settings

from .conftest import MakeQueue
from .support import (
    attributes_of,
    bodies,
    counts_of,
    delete,
    hide,
    in_parallel,
    receive_none,
    receive_one,
    refused,
    send,
    send_to_groups,
)

GONE = (
    "Value {handle} for parameter ReceiptHandle is invalid. "
    "Reason: Message does not exist or is not available for visibility timeout change."
)


# -- timeouts ---------------------------------------------------------------------------------------------


def test_message_is_visible_again_after_the_timeout_of_its_queue(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout="1")
    send(sqs, url, "m")

    first = receive_one(sqs, url)
    receive_none(sqs, url)
    second = receive_one(sqs, url)

    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]


def test_timeout_of_the_receive_goes_before_that_of_the_queue(sqs: Any, make_queue: MakeQueue) -> None:
    short, long = make_queue(VisibilityTimeout="300"), make_queue(VisibilityTimeout="0")
    send(sqs, short, "short")
    send(sqs, long, "long")

    receive_one(sqs, short, VisibilityTimeout=1)
    receive_one(sqs, long, VisibilityTimeout=300)

    assert receive_one(sqs, short)["Body"] == "short"
    receive_none(sqs, long)


def test_receive_with_timeout_zero_hides_nothing(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")

    for _ in range(3):
        receive_one(sqs, queue, VisibilityTimeout=0)

    assert counts_of(sqs, queue) == (1, 0, 0)


def test_timeout_of_the_receive_lasts_for_that_delivery_only(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")

    receive_one(sqs, queue, VisibilityTimeout=0)
    receive_one(sqs, queue)

    receive_none(sqs, queue)


@pytest.mark.parametrize("seconds", [-1, 43201])
def test_timeout_is_0_to_43200_seconds(sqs: Any, queue: str, seconds: int) -> None:
    send(sqs, queue, "m")

    with refused("InvalidParameterValue", containing=str(seconds)):
        sqs.receive_message(QueueUrl=queue, VisibilityTimeout=seconds)

    message = receive_one(sqs, queue, VisibilityTimeout=43200)
    with refused("InvalidParameterValue", containing=str(seconds)):
        hide(sqs, queue, message, seconds)


def test_returned_message_comes_before_a_newer_one(sqs: Any, queue: str) -> None:
    send(sqs, queue, "old")
    receive_one(sqs, queue, VisibilityTimeout=1)
    send(sqs, queue, "new")
    time.sleep(1.3)

    assert receive_one(sqs, queue)["Body"] == "old"


# -- changing it ------------------------------------------------------------------------------------------


def test_timeout_is_extended(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout="1")
    send(sqs, url, "m")
    message = receive_one(sqs, url)

    hide(sqs, url, message, 300)

    time.sleep(1.3)
    receive_none(sqs, url)
    assert counts_of(sqs, url) == (0, 1, 0)


def test_timeout_of_zero_makes_the_message_visible_at_once(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue)

    hide(sqs, queue, message, 0)

    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["m"]
    receive_none(sqs, queue)


def test_changed_timeout_lasts_for_that_delivery_only(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout="300")
    send(sqs, url, "m")
    hide(sqs, url, receive_one(sqs, url), 1)

    assert receive_one(sqs, url)["Body"] == "m"

    time.sleep(1.3)
    receive_none(sqs, url)


def test_timeout_can_be_changed_after_it_has_passed(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue, VisibilityTimeout=1)
    time.sleep(1.3)

    hide(sqs, queue, message, 300)

    receive_none(sqs, queue)


def test_total_of_12_hours_is_counted_from_the_receive(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue)
    time.sleep(1.3)

    with refused(
        "InvalidParameterValue",
        containing="Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
    ):
        hide(sqs, queue, message, 43200)
    hide(sqs, queue, message, 43190)


def test_batch_of_changes_answers_each_entry(sqs: Any, queue: str) -> None:
    send(sqs, queue, "a", "b", "c")
    one, two, three = (receive_one(sqs, queue) for _ in range(3))
    delete(sqs, queue, three)

    response = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "one", "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "two", "ReceiptHandle": two["ReceiptHandle"], "VisibilityTimeout": 300},
            {"Id": "gone", "ReceiptHandle": three["ReceiptHandle"], "VisibilityTimeout": 300},
            {"Id": "garbage", "ReceiptHandle": "garbage", "VisibilityTimeout": 300},
            {"Id": "long", "ReceiptHandle": two["ReceiptHandle"], "VisibilityTimeout": 43201},
        ],
    )

    assert {entry["Id"] for entry in response["Successful"]} == {"one", "two"}
    failed = {entry["Id"]: (entry["Code"], entry["SenderFault"]) for entry in response["Failed"]}
    assert failed == {
        "gone": ("InvalidParameterValue", True),
        "garbage": ("ReceiptHandleIsInvalid", True),
        "long": ("InvalidParameterValue", True),
    }
    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == [one["Body"]]


# -- receipt handles --------------------------------------------------------------------------------------


def test_deleting_twice_succeeds(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue)

    for _ in range(3):
        delete(sqs, queue, message)

    assert counts_of(sqs, queue) == (0, 0, 0)


def test_timeout_of_a_deleted_message_cannot_be_changed(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue)
    delete(sqs, queue, message)

    with refused("InvalidParameterValue", message=GONE.format(handle=message["ReceiptHandle"])):
        hide(sqs, queue, message, 42)


def test_garbage_handle_is_refused_and_quoted(sqs: Any, queue: str) -> None:
    expected: dict[str, Any] = {
        "status": 404,
        "shape": "ReceiptHandleIsInvalid",
        "message": 'The input receipt handle "garbage" is not a valid receipt handle.',
    }

    with refused("ReceiptHandleIsInvalid", **expected):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="garbage")
    with refused("ReceiptHandleIsInvalid", **expected):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle="garbage", VisibilityTimeout=1)


def test_changed_handle_is_refused(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    handle = receive_one(sqs, queue)["ReceiptHandle"]

    for position in (0, len(handle) // 2, len(handle) - 5):
        other = "A" if handle[position] != "A" else "B"
        forged = handle[:position] + other + handle[position + 1 :]
        with refused("ReceiptHandleIsInvalid", status=404):
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=forged)

    assert counts_of(sqs, queue) == (0, 1, 0)


def test_handle_works_on_its_own_queue_only(sqs: Any, make_queue: MakeQueue) -> None:
    one, other = make_queue(), make_queue()
    send(sqs, one, "m")
    send(sqs, other, "m")
    message = receive_one(sqs, one)
    receive_one(sqs, other)

    with refused("ReceiptHandleIsInvalid", status=404):
        delete(sqs, other, message)
    with refused("ReceiptHandleIsInvalid", status=404):
        hide(sqs, other, message, 0)

    assert counts_of(sqs, one) == counts_of(sqs, other) == (0, 1, 0)


def test_old_handle_still_deletes_on_a_standard_queue(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    old = receive_one(sqs, queue, VisibilityTimeout=0)
    receive_one(sqs, queue)

    delete(sqs, queue, old)

    assert counts_of(sqs, queue) == (0, 0, 0)


def test_handle_deletes_after_its_timeout_on_a_standard_queue(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue, VisibilityTimeout=1)
    time.sleep(1.3)

    delete(sqs, queue, message)

    receive_none(sqs, queue)
    assert counts_of(sqs, queue) == (0, 0, 0)


def test_batch_of_deletes_answers_each_entry(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")
    message = receive_one(sqs, queue)

    response = sqs.delete_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "good", "ReceiptHandle": message["ReceiptHandle"]},
            {"Id": "again", "ReceiptHandle": message["ReceiptHandle"]},
            {"Id": "bad", "ReceiptHandle": "garbage"},
        ],
    )

    assert {entry["Id"] for entry in response["Successful"]} == {"good", "again"}
    (failed,) = response["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "ReceiptHandleIsInvalid", True)
    assert "garbage" in failed["Message"]


def test_handle_survives_a_restart(start_process: Callable[..., QuaymasterProcess]) -> None:
    process = start_process(authentication="open")
    sqs = _open_client(process)
    url = sqs.create_queue(QueueName="restarted")["QueueUrl"]
    send(sqs, url, "first", "second")
    message = receive_one(sqs, url, AttributeNames=["All"])

    process.restart()

    other = receive_one(sqs, url, AttributeNames=["All"])
    assert {message["Body"], other["Body"]} == {"first", "second"}
    delete(sqs, url, message, other)
    assert counts_of(sqs, url) == (0, 0, 0)


# -- in flight --------------------------------------------------------------------------------------------


def test_count_in_flight_follows_receive_timeout_and_delete(sqs: Any, queue: str) -> None:
    send(sqs, queue, "a", "b", "c")
    assert counts_of(sqs, queue) == (3, 0, 0)

    first = receive_one(sqs, queue)
    second = receive_one(sqs, queue, VisibilityTimeout=300)
    assert counts_of(sqs, queue) == (1, 2, 0)

    delete(sqs, queue, first)
    assert counts_of(sqs, queue) == (1, 1, 0)

    hide(sqs, queue, second, 1)
    time.sleep(1.3)
    assert counts_of(sqs, queue) == (2, 0, 0)


def test_receive_count_grows_with_each_delivery(sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")

    counts = [
        receive_one(sqs, queue, VisibilityTimeout=0, AttributeNames=["ApproximateReceiveCount"])["Attributes"]
        for _ in range(3)
    ]

    assert [int(count["ApproximateReceiveCount"]) for count in counts] == [1, 2, 3]


def test_short_poll_is_refused_over_the_limit_in_flight_and_a_long_poll_is_empty(
    start_process: Callable[..., QuaymasterProcess],
) -> None:
    sqs = _open_client(start_process(authentication="open", in_flight_max="10"))
    url = sqs.create_queue(QueueName="busy")["QueueUrl"]
    send(sqs, url, *(str(number) for number in range(12)))
    messages = [receive_one(sqs, url) for _ in range(10)]

    with refused("OverLimit", status=403, shape="OverLimit"):
        sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)) == []

    delete(sqs, url, messages[0])
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0))
    assert load_settings(environment={}).in_flight_max == 120_000


def test_limit_in_flight_is_no_error_on_a_fifo_queue(
    start_process: Callable[..., QuaymasterProcess],
) -> None:
    sqs = _open_client(start_process(authentication="open", in_flight_max="3"))
    url = sqs.create_queue(QueueName="busy.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    send_to_groups(sqs, url, "a1", "b1", "c1", "d1")
    messages = [receive_one(sqs, url) for _ in range(3)]

    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)) == []

    delete(sqs, url, messages[0])
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)) == ["d1"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_short_poll_is_refused_over_120000_in_flight_and_a_long_poll_is_empty(
    start_process: Callable[..., QuaymasterProcess],
) -> None:
    process = start_process(authentication="open")
    sqs = _open_client(process)
    url = sqs.create_queue(QueueName="busy", Attributes={"VisibilityTimeout": "43200"})["QueueUrl"]
    batch = [{"Id": str(number), "MessageBody": "m"} for number in range(10)]
    in_parallel([lambda: _repeat(process, "SendMessageBatch", {"QueueUrl": url, "Entries": batch}, 6001)] * 2)
    in_parallel(
        [lambda: _repeat(process, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10}, 6000)] * 2,
        timeout_s=800,
    )
    assert attributes_of(sqs, url, "ApproximateNumberOfMessagesNotVisible") == {
        "ApproximateNumberOfMessagesNotVisible": "120000"
    }

    with refused("OverLimit", status=403, shape="OverLimit"):
        sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)

    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)) == []


def _open_client(process: QuaymasterProcess) -> Any:
    return endpoint_of(process).client()


def _repeat(process: QuaymasterProcess, action: str, params: dict[str, Any], times: int) -> None:
    """Send the same unsigned JSON request again and again on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", process.listen_port, timeout=PATIENCE_S)
    headers = {"Content-Type": JSON_TYPE, "X-Amz-Target": f"AmazonSQS.{action}"}
    body = json.dumps(params)
    for _ in range(times):
        connection.request("POST", "/", body, headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
    connection.close()

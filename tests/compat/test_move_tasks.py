"""Message move tasks: dead letters go back, to their sources or elsewhere."""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import Any, NamedTuple

import pytest
from harness.sqs import Endpoint
from harness.waiting import eventually

from .conftest import MakeQueue
from .support import (
    attributes_of,
    counts_of,
    receive_all,
    receive_none,
    receive_one,
    refused,
    send,
    unique,
)


class Pipe(NamedTuple):
    """A queue whose messages die after one receive, and where they go."""

    url: str
    dead: str
    dead_arn: str


@pytest.fixture
def pipe(sqs: Any, make_queue: MakeQueue) -> Pipe:
    dead = make_queue()
    arn = attributes_of(sqs, dead, "QueueArn")["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    return Pipe(make_queue(RedrivePolicy=policy), dead, arn)


def kill(sqs: Any, url: str, dead: str, *bodies: str) -> None:
    """Send messages and receive them until they are in the dead-letter queue."""
    already = counts_of(sqs, dead)[0]
    send(sqs, url, *bodies)
    for _ in range(2):
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    eventually(lambda: counts_of(sqs, dead)[0] == already + len(bodies))


def arn_of(sqs: Any, url: str) -> str:
    return attributes_of(sqs, url, "QueueArn")["QueueArn"]


def task_of(sqs: Any, arn: str) -> Any:
    return sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]


def ended_task_of(sqs: Any, arn: str) -> Any:
    def ended() -> Any:
        task = task_of(sqs, arn)
        return None if task["Status"] in {"RUNNING", "CANCELLING"} else task

    return eventually(ended)


def test_messages_go_to_the_named_destination(sqs: Any, pipe: Pipe, queue: str) -> None:
    kill(sqs, pipe.url, pipe.dead, "one", "two")

    started = sqs.start_message_move_task(SourceArn=pipe.dead_arn, DestinationArn=arn_of(sqs, queue))
    moved = receive_all(sqs, queue, 2)
    task = ended_task_of(sqs, pipe.dead_arn)

    assert started["TaskHandle"]
    assert {message["Body"] for message in moved} == {"one", "two"}
    assert task["Status"] == "COMPLETED"
    assert task["SourceArn"] == pipe.dead_arn
    assert task["DestinationArn"] == arn_of(sqs, queue)
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (2, 2)
    assert abs(task["StartedTimestamp"] / 1000 - time.time()) < 60
    for absent in ("TaskHandle", "FailureReason", "MaxNumberOfMessagesPerSecond"):
        assert absent not in task
    receive_none(sqs, pipe.dead)


def test_messages_go_back_to_where_they_died_when_no_destination_is_named(
    sqs: Any, pipe: Pipe, make_queue: MakeQueue
) -> None:
    policy = attributes_of(sqs, pipe.url, "RedrivePolicy")["RedrivePolicy"]
    other = make_queue(RedrivePolicy=policy)
    kill(sqs, pipe.url, pipe.dead, "a1", "a2")
    kill(sqs, other, pipe.dead, "b1", "b2")

    sqs.start_message_move_task(SourceArn=pipe.dead_arn)

    task = ended_task_of(sqs, pipe.dead_arn)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 4)
    assert "DestinationArn" not in task
    assert {message["Body"] for message in receive_all(sqs, pipe.url, 2)} == {"a1", "a2"}
    assert {message["Body"] for message in receive_all(sqs, other, 2)} == {"b1", "b2"}


def test_moved_message_is_new_and_may_be_received_as_often_as_any(sqs: Any, pipe: Pipe) -> None:
    sent = sqs.send_message(
        QueueUrl=pipe.url,
        MessageBody="m",
        MessageAttributes={"colour": {"DataType": "String", "StringValue": "blue"}},
    )
    receive_one(sqs, pipe.url, VisibilityTimeout=0)
    receive_none(sqs, pipe.url)
    eventually(lambda: counts_of(sqs, pipe.dead)[0] == 1)

    sqs.start_message_move_task(SourceArn=pipe.dead_arn)
    message = receive_one(sqs, pipe.url, AttributeNames=["All"], MessageAttributeNames=["All"])

    assert message["Body"] == "m"
    assert message["MessageId"] != sent["MessageId"]
    assert message["MessageAttributes"]["colour"]["StringValue"] == "blue"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]


def test_a_message_that_was_moved_twice_still_names_the_id_its_sender_got(sqs: Any, pipe: Pipe) -> None:
    sent = sqs.send_message(QueueUrl=pipe.url, MessageBody="m")["MessageId"]
    receive_one(sqs, pipe.url, VisibilityTimeout=0)
    ids = {sent}
    for number in range(2):
        receive_none(sqs, pipe.url)
        dead = receive_one(sqs, pipe.dead, VisibilityTimeout=0, AttributeNames=["OriginMessageId"])
        sqs.start_message_move_task(SourceArn=pipe.dead_arn)
        moved = receive_one(
            sqs,
            pipe.url,
            VisibilityTimeout=0,
            AttributeNames=["All"],
            MessageSystemAttributeNames=["OriginMessageId"],
        )
        ended_task_of(sqs, pipe.dead_arn)

        assert dead["Attributes"] == {"OriginMessageId": sent}
        assert moved["Attributes"]["OriginMessageId"] == sent
        ids.add(moved["MessageId"])
        assert len(ids) == number + 2


def test_rate_limits_the_move_and_a_cancelled_task_stops(sqs: Any, pipe: Pipe, queue: str) -> None:
    kill(sqs, pipe.url, pipe.dead, *(str(number) for number in range(9)))

    handle = sqs.start_message_move_task(
        SourceArn=pipe.dead_arn, DestinationArn=arn_of(sqs, queue), MaxNumberOfMessagesPerSecond=1
    )["TaskHandle"]
    receive_all(sqs, queue, 1)
    running = task_of(sqs, pipe.dead_arn)
    cancelled = sqs.cancel_message_move_task(TaskHandle=handle)
    task = ended_task_of(sqs, pipe.dead_arn)

    assert running["Status"] == "RUNNING"
    assert running["TaskHandle"] == handle
    assert running["MaxNumberOfMessagesPerSecond"] == 1
    assert running["ApproximateNumberOfMessagesToMove"] == 9
    assert 1 <= cancelled["ApproximateNumberOfMessagesMoved"] < 9
    assert task["Status"] == "CANCELLED"
    assert "TaskHandle" not in task
    moved = task["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 9
    assert counts_of(sqs, pipe.dead) == (9 - moved, 0, 0)


def test_only_one_task_runs_for_a_source(sqs: Any, pipe: Pipe, queue: str) -> None:
    kill(sqs, pipe.url, pipe.dead, *(str(number) for number in range(5)))
    task = {
        "SourceArn": pipe.dead_arn,
        "DestinationArn": arn_of(sqs, queue),
        "MaxNumberOfMessagesPerSecond": 1,
    }
    handle = sqs.start_message_move_task(**task)["TaskHandle"]

    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="There is already a task running. Only one active task is allowed for a source queue arn "
        "at a given time.",
    ):
        sqs.start_message_move_task(**task)

    sqs.cancel_message_move_task(TaskHandle=handle)
    assert ended_task_of(sqs, pipe.dead_arn)["Status"] == "CANCELLED"


def test_task_fails_when_its_destination_is_deleted(sqs: Any, pipe: Pipe, make_queue: MakeQueue) -> None:
    destination = make_queue()
    kill(sqs, pipe.url, pipe.dead, *(str(number) for number in range(8)))
    sqs.start_message_move_task(
        SourceArn=pipe.dead_arn, DestinationArn=arn_of(sqs, destination), MaxNumberOfMessagesPerSecond=2
    )

    sqs.delete_queue(QueueUrl=destination)

    task = ended_task_of(sqs, pipe.dead_arn)
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert counts_of(sqs, pipe.dead)[0] > 0


def test_tasks_are_listed_newest_first_one_unless_more_are_asked_for(
    sqs: Any, pipe: Pipe, queue: str
) -> None:
    for bodies in (["one"], ["two", "three"]):
        kill(sqs, pipe.url, pipe.dead, *bodies)
        sqs.start_message_move_task(SourceArn=pipe.dead_arn, DestinationArn=arn_of(sqs, queue))
        ended_task_of(sqs, pipe.dead_arn)
        time.sleep(0.01)

    newest = sqs.list_message_move_tasks(SourceArn=pipe.dead_arn)["Results"]
    both = sqs.list_message_move_tasks(SourceArn=pipe.dead_arn, MaxResults=10)["Results"]

    assert [task["ApproximateNumberOfMessagesMoved"] for task in newest] == [2]
    assert [task["ApproximateNumberOfMessagesMoved"] for task in both] == [2, 1]


def test_queue_that_never_had_a_task_lists_none(sqs: Any, pipe: Pipe) -> None:
    assert sqs.list_message_move_tasks(SourceArn=pipe.dead_arn).get("Results", []) == []


@pytest.mark.parametrize("count", [0, 11])
def test_at_most_10_tasks_are_listed(sqs: Any, pipe: Pipe, count: int) -> None:
    with refused("InvalidParameterValue"):
        sqs.list_message_move_tasks(SourceArn=pipe.dead_arn, MaxResults=count)


@pytest.mark.parametrize("rate", [0, 501])
def test_rate_is_1_to_500_messages_a_second(sqs: Any, pipe: Pipe, rate: int) -> None:
    with refused("InvalidParameterValue"):
        sqs.start_message_move_task(SourceArn=pipe.dead_arn, MaxNumberOfMessagesPerSecond=rate)


def test_source_must_be_a_dead_letter_queue(sqs: Any, make_queue: MakeQueue) -> None:
    source, destination = make_queue(), make_queue()

    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="Source queue must be configured as a Dead Letter Queue.",
    ):
        sqs.start_message_move_task(SourceArn=arn_of(sqs, source), DestinationArn=arn_of(sqs, destination))


def test_source_and_destination_must_exist(server: Endpoint, sqs: Any, pipe: Pipe) -> None:
    missing = server.arn(unique())

    with refused(
        "ResourceNotFoundException",
        status=404,
        message="The resource that you specified for the SourceArn parameter doesn't exist.",
    ):
        sqs.start_message_move_task(SourceArn=missing)
    with refused(
        "ResourceNotFoundException",
        status=404,
        message="The resource that you specified for the DestinationArn parameter doesn't exist.",
    ):
        sqs.start_message_move_task(SourceArn=pipe.dead_arn, DestinationArn=missing)
    with refused("ResourceNotFoundException", status=404):
        sqs.list_message_move_tasks(SourceArn=missing)


def task_handle(arn: str) -> str:
    """Return a handle of a task nobody started, in the form the service gives them."""
    content = json.dumps({"taskId": str(uuid.uuid4()), "sourceArn": arn})
    return base64.b64encode(content.encode()).decode()


def test_garbage_task_handle_is_refused(sqs: Any) -> None:
    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="Value for parameter TaskHandle is invalid.",
    ):
        sqs.cancel_message_move_task(TaskHandle="garbage")


def test_task_handle_of_a_missing_queue_is_refused(server: Endpoint, sqs: Any) -> None:
    with refused(
        "ResourceNotFoundException",
        status=404,
        message="The resource that you specified for the SourceArn parameter doesn't exist.",
    ):
        sqs.cancel_message_move_task(TaskHandle=task_handle(server.arn(unique())))


def test_task_handle_of_a_missing_task_is_refused(sqs: Any, queue: str) -> None:
    with refused("ResourceNotFoundException", status=404, message="Task does not exist."):
        sqs.cancel_message_move_task(TaskHandle=task_handle(arn_of(sqs, queue)))


def test_ended_task_cannot_be_cancelled(sqs: Any, pipe: Pipe, queue: str) -> None:
    kill(sqs, pipe.url, pipe.dead, "m")
    handle = sqs.start_message_move_task(SourceArn=pipe.dead_arn, DestinationArn=arn_of(sqs, queue))[
        "TaskHandle"
    ]
    ended_task_of(sqs, pipe.dead_arn)

    with refused(("ResourceNotFoundException", "AWS.SimpleQueueService.UnsupportedOperation"), status=None):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_messages_of_a_fifo_queue_move_in_order(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    dead = make_fifo_queue()
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    url = make_fifo_queue(RedrivePolicy=policy)
    for body in ("1", "2", "3"):
        send(sqs, url, body, MessageGroupId="g", MessageDeduplicationId=body)
    for _ in range(2):
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    eventually(lambda: counts_of(sqs, dead)[0] == 3)

    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    assert ended_task_of(sqs, arn_of(sqs, dead))["Status"] == "COMPLETED"

    messages = receive_all(sqs, url, 3, AttributeNames=["All"])
    assert [message["Body"] for message in messages] == ["1", "2", "3"]
    assert {message["Attributes"]["MessageGroupId"] for message in messages} == {"g"}

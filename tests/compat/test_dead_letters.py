"""Dead-letter queues: the redrive policy, the move, and who may use a queue for it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from harness.sqs import Endpoint

from .conftest import MakeQueue
from .support import (
    attributes_of,
    bodies,
    counts_of,
    delete,
    receive_none,
    receive_one,
    refused,
    send,
    unique,
)


def arn_of(sqs: Any, url: str) -> str:
    return attributes_of(sqs, url, "QueueArn")["QueueArn"]


def redrive_to(arn: str, count: Any = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})


# -- the move ---------------------------------------------------------------------------------------------


def test_message_moves_on_the_receive_that_exceeds_the_count(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead), 2))
    send(sqs, url, "m")

    for _ in range(2):
        receive_one(sqs, url, VisibilityTimeout=0)
        receive_none(sqs, dead)
    receive_none(sqs, url)

    assert receive_one(sqs, dead)["Body"] == "m"
    assert counts_of(sqs, url) == (0, 0, 0)


def test_moved_message_keeps_its_id_attributes_and_times(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead)))
    attributes = {"colour": {"DataType": "String", "StringValue": "blue"}}
    trace = {
        "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}
    }
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="m", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    before = receive_one(sqs, url, VisibilityTimeout=0, AttributeNames=["All"])
    time.sleep(0.05)
    receive_none(sqs, url)

    after = receive_one(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])

    assert after["MessageId"] == sent["MessageId"]
    assert after["Body"] == "m"
    assert after["MessageAttributes"] == attributes
    assert after["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert after["ReceiptHandle"] != before["ReceiptHandle"]
    assert after["Attributes"] == {
        **before["Attributes"],
        "ApproximateReceiveCount": "2",
        "DeadLetterQueueSourceArn": arn_of(sqs, url),
    }


def test_source_of_a_moved_message_is_an_attribute(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead)))
    send(sqs, url, "m")
    receive_one(sqs, url, VisibilityTimeout=0)
    receive_none(sqs, url)

    message = receive_one(sqs, dead, AttributeNames=["DeadLetterQueueSourceArn"])

    assert message["Attributes"] == {"DeadLetterQueueSourceArn": arn_of(sqs, url)}


def test_other_messages_are_received_instead_of_the_moved_one(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead)))
    send(sqs, url, "poison")
    receive_one(sqs, url, VisibilityTimeout=0)
    send(sqs, url, "good")

    assert receive_one(sqs, url)["Body"] == "good"
    receive_none(sqs, url)
    assert receive_one(sqs, dead)["Body"] == "poison"


def test_handle_from_before_the_move_leaves_the_dead_letter_alone(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead)))
    send(sqs, url, "m")
    message = receive_one(sqs, url, VisibilityTimeout=0)
    receive_none(sqs, url)

    delete(sqs, url, message)

    assert receive_one(sqs, dead)["Body"] == "m"


def test_dead_letters_of_dead_letters_count_their_own_receives(sqs: Any, make_queue: MakeQueue) -> None:
    last = make_queue()
    middle = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, last)))
    first = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, middle)))
    send(sqs, first, "m")
    receive_one(sqs, first, VisibilityTimeout=0)
    receive_none(sqs, first)

    assert receive_one(sqs, middle, VisibilityTimeout=0)["Body"] == "m"
    receive_none(sqs, middle)

    assert receive_one(sqs, last)["Body"] == "m"


def test_dead_letter_of_a_fifo_queue_keeps_its_group_and_frees_it(
    sqs: Any, make_fifo_queue: MakeQueue
) -> None:
    dead = make_fifo_queue()
    url = make_fifo_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead)))
    first, _ = (
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body)
        for body in ("poison", "good")
    )
    assert receive_one(sqs, url, VisibilityTimeout=0)["Body"] == "poison"

    assert receive_one(sqs, url)["Body"] == "good"

    message = receive_one(sqs, dead, AttributeNames=["All"])
    assert (message["Body"], message["MessageId"]) == ("poison", first["MessageId"])
    assert message["Attributes"]["MessageGroupId"] == "g"
    assert message["Attributes"]["MessageDeduplicationId"] == "poison"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)


def test_dead_letters_are_not_swallowed_by_deduplication(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    dead = make_fifo_queue(ContentBasedDeduplication="true")
    one, other = (
        make_fifo_queue(ContentBasedDeduplication="true", RedrivePolicy=redrive_to(arn_of(sqs, dead)))
        for _ in range(2)
    )
    for url in (one, other):
        send(sqs, url, "same", MessageGroupId="g")
        receive_one(sqs, url, VisibilityTimeout=0)
        receive_none(sqs, url)

    assert bodies(sqs.receive_message(QueueUrl=dead, MaxNumberOfMessages=10)) == ["same", "same"]


def test_policy_set_later_counts_earlier_receives(sqs: Any, make_queue: MakeQueue) -> None:
    dead, url = make_queue(), make_queue()
    send(sqs, url, "m")
    for _ in range(3):
        receive_one(sqs, url, VisibilityTimeout=0)

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive_to(arn_of(sqs, dead), 3)})

    receive_none(sqs, url)
    assert receive_one(sqs, dead)["Body"] == "m"


def test_removed_policy_moves_nothing(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    url = make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead)))
    send(sqs, url, "m")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})

    for _ in range(3):
        receive_one(sqs, url, VisibilityTimeout=0)
    assert "RedrivePolicy" not in attributes_of(sqs, url)
    assert counts_of(sqs, dead) == (0, 0, 0)


# -- the policy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1000, "42"])
def test_policy_is_returned_as_it_was_set(sqs: Any, make_queue: MakeQueue, count: Any) -> None:
    arn = arn_of(sqs, make_queue())

    url = make_queue(RedrivePolicy=redrive_to(arn, count))

    policy = json.loads(attributes_of(sqs, url, "RedrivePolicy")["RedrivePolicy"])
    assert policy["deadLetterTargetArn"] == arn
    assert int(policy["maxReceiveCount"]) == int(count)


@pytest.mark.parametrize("count", [0, 1001, -1, "many", 1.5, None])
def test_receive_count_of_a_policy_is_1_to_1000(sqs: Any, make_queue: MakeQueue, count: Any) -> None:
    dead, url = make_queue(), make_queue()

    with refused("InvalidParameterValue", containing="RedrivePolicy"):
        sqs.set_queue_attributes(
            QueueUrl=url, Attributes={"RedrivePolicy": redrive_to(arn_of(sqs, dead), count)}
        )


def test_policy_without_a_target_or_count_is_refused(sqs: Any, make_queue: MakeQueue) -> None:
    dead, url = make_queue(), make_queue()

    for policy in ({"deadLetterTargetArn": arn_of(sqs, dead)}, {"maxReceiveCount": 1}, {}):
        with refused("InvalidParameterValue", containing="RedrivePolicy"):
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})


@pytest.mark.parametrize("policy", ["many", "[]", '"text"', "{"])
def test_policy_that_is_no_json_object_is_refused(sqs: Any, queue: str, policy: str) -> None:
    with refused(("InvalidParameterValue", "InvalidAttributeValue"), containing="RedrivePolicy"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})


def test_target_that_is_no_arn_is_refused_before_it_is_looked_for(sqs: Any) -> None:
    policy = json.dumps({"deadLetterTargetArn": "dummy", "maxReceiveCount": 42})

    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message=f"Value {policy} for parameter RedrivePolicy is invalid. "
        "Reason: Invalid value for deadLetterTargetArn.",
    ):
        sqs.create_queue(QueueName=unique(), Attributes={"RedrivePolicy": policy})


def test_target_that_does_not_exist_is_refused(server: Endpoint, sqs: Any, queue: str) -> None:
    policy = redrive_to(server.arn(unique()))

    with refused("InvalidParameterValue", containing="RedrivePolicy"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    with refused("InvalidParameterValue", containing="RedrivePolicy"):
        sqs.create_queue(QueueName=unique(), Attributes={"RedrivePolicy": policy})


def test_target_of_another_kind_is_refused(sqs: Any, queue: str, fifo_queue: str) -> None:
    for source, target in ((queue, fifo_queue), (fifo_queue, queue)):
        with refused("InvalidParameterValue", containing="RedrivePolicy"):
            sqs.set_queue_attributes(
                QueueUrl=source, Attributes={"RedrivePolicy": redrive_to(arn_of(sqs, target))}
            )


def test_target_of_another_region_or_account_is_refused(
    server: Endpoint, sqs: Any, make_queue: MakeQueue
) -> None:
    dead, url = make_queue(), make_queue()
    arn = arn_of(sqs, dead)

    for other in (
        arn.replace(server.region, "eu-north-1"),
        arn.replace(server.account_id, "999999999999"),
        arn.replace(":sqs:", ":sns:"),
    ):
        with refused("InvalidParameterValue", containing="RedrivePolicy"):
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive_to(other)})


# -- sources and permission -------------------------------------------------------------------------------


def test_sources_of_a_dead_letter_queue_are_listed(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    make_queue()
    sources = {make_queue(RedrivePolicy=redrive_to(arn_of(sqs, dead))) for _ in range(3)}

    listed = sqs.list_dead_letter_source_queues(QueueUrl=dead)
    first = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2)
    second = sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2, NextToken=first["NextToken"])

    assert set(listed["queueUrls"]) == sources
    assert "NextToken" not in listed
    assert (len(first["queueUrls"]), len(second["queueUrls"])) == (2, 1)
    assert {*first["queueUrls"], *second["queueUrls"]} == sources
    assert "NextToken" not in second


def test_queue_without_sources_lists_none(sqs: Any, queue: str) -> None:
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == []


def test_deny_all_lets_no_queue_use_it(sqs: Any, make_queue: MakeQueue) -> None:
    dead, url = make_queue(RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"})), make_queue()

    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive_to(arn_of(sqs, dead))})


def test_by_queue_lets_the_named_queues_use_it(sqs: Any, make_queue: MakeQueue) -> None:
    named, other = make_queue(), make_queue()
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of(sqs, named)]}
    dead = make_queue(RedriveAllowPolicy=json.dumps(allow))
    policy = {"RedrivePolicy": redrive_to(arn_of(sqs, dead))}

    sqs.set_queue_attributes(QueueUrl=named, Attributes=policy)

    with refused("InvalidParameterValue"):
        sqs.set_queue_attributes(QueueUrl=other, Attributes=policy)
    stored = json.loads(attributes_of(sqs, dead, "RedriveAllowPolicy")["RedriveAllowPolicy"])
    assert stored == allow


def test_allow_all_and_an_empty_policy_let_every_queue_use_it(sqs: Any, make_queue: MakeQueue) -> None:
    dead, url = make_queue(RedriveAllowPolicy=json.dumps({"redrivePermission": "allowAll"})), make_queue()
    policy = {"RedrivePolicy": redrive_to(arn_of(sqs, dead))}

    sqs.set_queue_attributes(QueueUrl=url, Attributes=policy)
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": ""})

    assert attributes_of(sqs, dead, "RedriveAllowPolicy") == {}
    sqs.set_queue_attributes(QueueUrl=make_queue(), Attributes=policy)


@pytest.mark.parametrize(
    "policy",
    [
        "many",
        "{}",
        '{"redrivePermission": "sometimes"}',
        '{"redrivePermission": "byQueue"}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": []}',
        '{"redrivePermission": "allowAll", "sourceQueueArns": ["arn:aws:sqs:us-east-1:000000000000:q"]}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": ["dummy"]}',
        json.dumps(
            {
                "redrivePermission": "byQueue",
                "sourceQueueArns": [f"arn:aws:sqs:us-east-1:000000000000:q{number}" for number in range(11)],
            }
        ),
    ],
    ids=[
        "no json",
        "empty",
        "unknown word",
        "no list",
        "empty list",
        "list not asked for",
        "no arn",
        "11 arns",
    ],
)
def test_other_allow_policies_are_refused(sqs: Any, queue: str, policy: str) -> None:
    with refused(("InvalidParameterValue", "InvalidAttributeValue"), containing="RedriveAllowPolicy"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedriveAllowPolicy": policy})

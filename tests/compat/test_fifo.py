"""FIFO queues: order, groups, deduplication, attempt ids, sequence numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.process import QuaymasterProcess
from harness.sqs import Endpoint, endpoint_of

from .conftest import MakeQueue
from .support import (
    attributes_of,
    bodies,
    counts_of,
    delete,
    hide,
    receive_none,
    receive_one,
    refused,
    send,
    send_to_groups,
    unique,
)

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
DEDUPLICATION_MISSING = (
    "The queue should either have ContentBasedDeduplication enabled or "
    "MessageDeduplicationId provided explicitly"
)
GROUP_MISSING = "The request must contain the parameter MessageGroupId."


def take(sqs: Any, url: str, count: int = 10, **more: Any) -> list[Any]:
    """Receive up to `count` messages without waiting."""
    response = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **more)
    messages: list[Any] = response.get("Messages", [])
    return messages


def texts(messages: list[Any]) -> list[str]:
    return [message["Body"] for message in messages]


# -- order and groups -------------------------------------------------------------------------------------


def test_messages_of_a_group_come_in_order_one_at_a_time(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2", "a3")

    received = []
    for _ in range(3):
        (message,) = take(sqs, fifo_queue, 1)
        receive_none(sqs, fifo_queue)
        received.append(message["Body"])
        delete(sqs, fifo_queue, message)

    assert received == ["a1", "a2", "a3"]


def test_receive_takes_as_many_as_it_can_of_one_group_first(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "b1", "a2", "a3")

    assert texts(take(sqs, fifo_queue)) == ["a1", "a2", "a3", "b1"]


def test_group_in_flight_does_not_hold_up_another(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2", "a3", "a4", "b1", "c1")

    assert texts(take(sqs, fifo_queue, 2)) == ["a1", "a2"]
    assert texts(take(sqs, fifo_queue, 1)) == ["b1"]
    assert texts(take(sqs, fifo_queue)) == ["c1"]
    receive_none(sqs, fifo_queue)


def test_messages_come_in_order_again_after_their_timeout(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(VisibilityTimeout="1")
    send_to_groups(sqs, url, "a1", "a2", "a3")

    first = texts(take(sqs, url))
    time.sleep(1.3)

    assert first == texts(take(sqs, url)) == ["a1", "a2", "a3"]


def test_group_stays_locked_while_one_of_its_messages_is_in_flight(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "b1", "a2", "b2", "a3", "a4", "c1")
    first, _ = take(sqs, fifo_queue, 2)

    delete(sqs, fifo_queue, first)

    rest = texts(take(sqs, fifo_queue))
    assert sorted(rest) == ["b1", "b2", "c1"]
    assert rest.index("b1") < rest.index("b2")


def test_group_is_free_when_all_its_messages_in_flight_are_deleted(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "b1", "a2", "b2", "a3", "a4", "c1")
    both = take(sqs, fifo_queue, 2)
    assert texts(both) == ["a1", "a2"]

    delete(sqs, fifo_queue, *both)

    assert texts(take(sqs, fifo_queue)) in (
        ["b1", "b2", "a3", "a4", "c1"],
        ["b1", "b2", "c1", "a3", "a4"],
    )


def test_ending_the_timeout_of_the_first_message_gives_that_message_only(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2", "b1")
    first, second = take(sqs, fifo_queue, 2)
    assert texts([first, second]) == ["a1", "a2"]

    hide(sqs, fifo_queue, first, 0)

    assert texts(take(sqs, fifo_queue, 3)) == ["b1", "a1"]


def test_shortened_timeout_of_the_first_message_gives_that_message_only(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2", "b1")
    first, _ = take(sqs, fifo_queue, 2)

    hide(sqs, fifo_queue, first, 1)
    time.sleep(1.3)

    assert texts(take(sqs, fifo_queue, 3)) == ["b1", "a1"]


def test_message_behind_a_longer_hidden_one_waits_for_it(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(VisibilityTimeout="300")
    send_to_groups(sqs, url, "a1", "a2", "a3")
    first, second, third = take(sqs, url)

    hide(sqs, url, second, 1)
    hide(sqs, url, third, 1)
    time.sleep(1.3)
    receive_none(sqs, url)
    hide(sqs, url, first, 0)

    assert texts(take(sqs, url)) == ["a1", "a2", "a3"]


def test_ending_the_timeout_of_a_later_message_does_not_let_it_overtake(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2")
    _, second = take(sqs, fifo_queue, 2)

    hide(sqs, fifo_queue, second, 0)

    receive_none(sqs, fifo_queue)


def test_receive_with_timeout_zero_frees_its_groups_and_sends_them_to_the_back(
    sqs: Any, fifo_queue: str
) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "b1", "b2", "c1", "a2")

    assert texts(take(sqs, fifo_queue, 3, VisibilityTimeout=0)) == ["a1", "a2", "b1"]
    assert texts(take(sqs, fifo_queue, VisibilityTimeout=0)) == ["c1", "a1", "a2", "b1", "b2"]


def test_many_blocked_groups_hide_no_other(sqs: Any, fifo_queue: str) -> None:
    for first in range(0, 200, 10):
        sqs.send_message_batch(
            QueueUrl=fifo_queue,
            Entries=[
                {
                    "Id": str(number),
                    "MessageBody": f"blocked-{number}",
                    "MessageGroupId": "blocked",
                    "MessageDeduplicationId": f"blocked-{number}",
                }
                for number in range(first, first + 10)
            ],
        )
    take(sqs, fifo_queue, 1)

    send_to_groups(sqs, fifo_queue, "z1")

    assert texts(take(sqs, fifo_queue)) == ["z1"]


def test_counts_of_a_fifo_queue_tell_messages_not_groups(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2", "a3", "b1", "c1")
    messages = take(sqs, fifo_queue, 4)

    assert counts_of(sqs, fifo_queue) == (1, 4, 0)

    delete(sqs, fifo_queue, *messages)
    assert counts_of(sqs, fifo_queue) == (1, 0, 0)


def test_expired_handle_does_not_delete_on_a_fifo_queue(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(VisibilityTimeout="1")
    send_to_groups(sqs, url, "a1")
    (message,) = take(sqs, url)
    time.sleep(1.3)

    with refused(
        "InvalidParameterValue",
        message=f"Value {message['ReceiptHandle']} for parameter ReceiptHandle is invalid. "
        "Reason: The receipt handle has expired.",
    ):
        delete(sqs, url, message)

    assert texts(take(sqs, url)) == ["a1"]


def test_timeout_of_a_second_is_over_a_second_after_the_answer(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    """Whatever the moment within a timer's slot: each of these would see one that ends late."""
    url = make_fifo_queue(VisibilityTimeout="1")
    for round_ in range(5):
        send_to_groups(sqs, url, f"{round_}1")
        (message,) = take(sqs, url)
        time.sleep(1)

        with refused("InvalidParameterValue", containing="The receipt handle has expired."):
            delete(sqs, url, message)
        (again,) = take(sqs, url, VisibilityTimeout=30)
        delete(sqs, url, again)


def test_deleting_twice_succeeds_on_a_fifo_queue(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1")
    (message,) = take(sqs, fifo_queue)

    delete(sqs, fifo_queue, message)
    delete(sqs, fifo_queue, message)

    assert counts_of(sqs, fifo_queue) == (0, 0, 0)


def test_order_locks_and_deduplication_survive_a_restart(
    start_process: Callable[..., QuaymasterProcess],
) -> None:
    process = start_process()
    sqs = endpoint_of(process).client()
    url = sqs.create_queue(QueueName="kept.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    send_to_groups(sqs, url, "a1", "a2", "a3", "b1")
    first, _ = take(sqs, url, 2)
    delete(sqs, url, first)

    process.restart()
    send_to_groups(sqs, url, "a1", "b1")

    assert texts(take(sqs, url)) == ["b1"]
    assert counts_of(sqs, url) == (1, 2, 0)


# -- what a message must have -----------------------------------------------------------------------------


def test_message_without_a_group_is_refused(sqs: Any, fifo_queue: str) -> None:
    with refused("MissingParameter", shape="MissingRequiredParameterException", message=GROUP_MISSING):
        sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", MessageDeduplicationId="d")


def test_batch_with_an_entry_without_a_group_is_refused_whole(sqs: Any, fifo_queue: str) -> None:
    batch = [
        {"Id": "1", "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "1"},
        {"Id": "2", "MessageBody": "m", "MessageDeduplicationId": "2"},
    ]

    with refused("InvalidParameterValue", shape="InvalidParameterValueException", message=GROUP_MISSING):
        sqs.send_message_batch(QueueUrl=fifo_queue, Entries=batch)

    assert counts_of(sqs, fifo_queue) == (0, 0, 0)


def test_message_without_deduplication_is_refused(sqs: Any, fifo_queue: str) -> None:
    with refused(
        "InvalidParameterValue", shape="InvalidParameterValueException", message=DEDUPLICATION_MISSING
    ):
        sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", MessageGroupId="g")


def test_batch_with_an_entry_without_deduplication_is_refused_whole(sqs: Any, fifo_queue: str) -> None:
    batch = [
        {"Id": "1", "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "1"},
        {"Id": "2", "MessageBody": "m", "MessageGroupId": "g"},
    ]

    with refused("InvalidParameterValue", message=DEDUPLICATION_MISSING):
        sqs.send_message_batch(QueueUrl=fifo_queue, Entries=batch)

    assert counts_of(sqs, fifo_queue) == (0, 0, 0)


@pytest.mark.parametrize("value", ["x", "x" * 128, PUNCTUATION], ids=["one", "longest", "punctuation"])
def test_ids_of_group_deduplication_and_attempt_may_have_punctuation(
    sqs: Any, fifo_queue: str, value: str
) -> None:
    sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", MessageGroupId=value, MessageDeduplicationId=value)

    (message,) = take(sqs, fifo_queue, AttributeNames=["All"], ReceiveRequestAttemptId=value)

    assert message["Attributes"]["MessageGroupId"] == value
    assert message["Attributes"]["MessageDeduplicationId"] == value


@pytest.mark.parametrize("value", ["", "x" * 129, "group 123", "grüppe"])
@pytest.mark.parametrize("parameter", ["MessageGroupId", "MessageDeduplicationId"])
def test_other_ids_are_refused_by_name(loose_sqs: Any, fifo_queue: str, parameter: str, value: str) -> None:
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d", parameter: value}

    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message=f"Value {value} for parameter {parameter} is invalid. "
        f"Reason: {parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
    ):
        loose_sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", **ids)


@pytest.mark.parametrize("value", ["x" * 129, "attempt 1", "versüch"])
def test_other_attempt_ids_are_refused(sqs: Any, fifo_queue: str, value: str) -> None:
    with refused("InvalidParameterValue", containing="ReceiveRequestAttemptId"):
        sqs.receive_message(QueueUrl=fifo_queue, ReceiveRequestAttemptId=value)


def test_delay_of_a_message_is_refused_on_a_fifo_queue(server: Endpoint, sqs: Any, fifo_queue: str) -> None:
    message = (
        "Value 2 for parameter DelaySeconds is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )

    with refused("InvalidParameterValue", message=message):
        sqs.send_message(
            QueueUrl=fifo_queue,
            MessageBody="m",
            MessageGroupId="g",
            MessageDeduplicationId="d",
            DelaySeconds=2,
        )

    answer = server.query_call(
        "SendMessage",
        {
            "QueueUrl": fifo_queue,
            "MessageBody": "m",
            "MessageGroupId": "g",
            "MessageDeduplicationId": "d",
            "DelaySeconds": "2",
        },
    )
    assert (answer.status, answer.error_code, answer.error_message) == (400, "InvalidParameterValue", message)


def test_delay_of_zero_is_taken_on_a_fifo_queue(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    plain, delayed = make_fifo_queue(), make_fifo_queue(DelaySeconds="900")

    for url in (plain, delayed):
        send(sqs, url, "m", MessageGroupId="g", MessageDeduplicationId="d", DelaySeconds=0)

    assert receive_one(sqs, plain)["Body"] == "m"
    receive_none(sqs, delayed)


def test_deduplication_id_is_refused_on_a_standard_queue(sqs: Any, queue: str) -> None:
    with refused("InvalidParameterValue", containing="MessageDeduplicationId"):
        sqs.send_message(QueueUrl=queue, MessageBody="m", MessageDeduplicationId="d")


# -- deduplication ----------------------------------------------------------------------------------------


def test_duplicate_is_answered_with_the_original_and_not_stored(sqs: Any, fifo_queue: str) -> None:
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}

    first = sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", **ids)
    second = sqs.send_message(QueueUrl=fifo_queue, MessageBody="other body", **ids)

    assert second["MessageId"] == first["MessageId"]
    assert second["SequenceNumber"] == first["SequenceNumber"]
    assert texts(take(sqs, fifo_queue)) == ["m"]


def test_duplicates_inside_one_batch_are_stored_once(sqs: Any, fifo_queue: str) -> None:
    batch = [
        {"Id": name, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
        for name in ("one", "two")
    ]

    response = sqs.send_message_batch(QueueUrl=fifo_queue, Entries=batch)

    one, two = response["Successful"]
    assert one["MessageId"] == two["MessageId"]
    assert one["SequenceNumber"] == two["SequenceNumber"]
    assert texts(take(sqs, fifo_queue)) == ["m"]


def test_duplicate_is_known_after_the_original_is_deleted(sqs: Any, fifo_queue: str) -> None:
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", **ids)
    delete(sqs, fifo_queue, *take(sqs, fifo_queue))

    second = sqs.send_message(QueueUrl=fifo_queue, MessageBody="m", **ids)

    assert second["MessageId"] == first["MessageId"]
    assert counts_of(sqs, fifo_queue) == (0, 0, 0)


def test_deduplication_is_over_all_groups_of_a_queue(sqs: Any, fifo_queue: str) -> None:
    first, second = (
        sqs.send_message(
            QueueUrl=fifo_queue, MessageBody="m", MessageGroupId=group, MessageDeduplicationId="d"
        )
        for group in ("one", "two")
    )

    assert second["MessageId"] == first["MessageId"]
    assert len(take(sqs, fifo_queue)) == 1


def test_deduplication_over_one_group_is_a_setting_of_the_queue(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(DeduplicationScope="messageGroup")

    for group in ("one", "two", "one"):
        sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId=group, MessageDeduplicationId="d")

    groups = [
        message["Attributes"]["MessageGroupId"]
        for message in take(sqs, url, AttributeNames=["MessageGroupId"])
    ]
    assert groups == ["one", "two"]


def test_deduplication_is_not_over_queues(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    one, other = make_fifo_queue(), make_fifo_queue()

    for url in (one, other):
        send_to_groups(sqs, url, "a1")

    assert texts(take(sqs, one)) == texts(take(sqs, other)) == ["a1"]


def test_content_is_the_deduplication_id_when_the_queue_says_so(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(ContentBasedDeduplication="true")
    attributes = {"a": {"DataType": "String", "StringValue": "differs"}}

    first = sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="g")
    second = sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="g", MessageAttributes=attributes)
    third = sqs.send_message(QueueUrl=url, MessageBody="n", MessageGroupId="g")

    assert first["MessageId"] == second["MessageId"] != third["MessageId"]
    messages = take(sqs, url, AttributeNames=["MessageDeduplicationId"])
    assert texts(messages) == ["m", "n"]
    # The SHA-256 of the body.
    assert messages[0]["Attributes"]["MessageDeduplicationId"] == (
        "62c66a7a5dd70c3146618063c344e531e6d4b59e379808443ce962b3abd63c5a"
    )


def test_explicit_id_goes_before_the_content(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(ContentBasedDeduplication="true")

    for deduplication_id in ("one", "two"):
        sqs.send_message(
            QueueUrl=url, MessageBody="m", MessageGroupId="g", MessageDeduplicationId=deduplication_id
        )

    assert texts(take(sqs, url)) == ["m", "m"]


def test_content_based_deduplication_can_be_switched_off(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(ContentBasedDeduplication="true")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "false"})

    assert attributes_of(sqs, url, "ContentBasedDeduplication") == {"ContentBasedDeduplication": "false"}
    with refused("InvalidParameterValue", message=DEDUPLICATION_MISSING):
        sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="g")


# -- sequence numbers and attributes ----------------------------------------------------------------------


def test_sequence_numbers_begin_as_those_of_sqs_and_grow(sqs: Any, fifo_queue: str) -> None:
    sent = [
        sqs.send_message(
            QueueUrl=fifo_queue, MessageBody=str(n), MessageGroupId=str(n % 2), MessageDeduplicationId=str(n)
        )
        for n in range(4)
    ]
    batch = sqs.send_message_batch(
        QueueUrl=fifo_queue,
        Entries=[
            {"Id": str(n), "MessageBody": str(n), "MessageGroupId": "0", "MessageDeduplicationId": str(n)}
            for n in range(4, 6)
        ],
    )

    numbers = [answer["SequenceNumber"] for answer in [*sent, *batch["Successful"]]]

    assert all(len(number) == 20 and int(number) > 18849496460467696128 for number in numbers)
    assert numbers == sorted(set(numbers))
    received = {
        message["Body"]: message["Attributes"]["SequenceNumber"]
        for message in take(sqs, fifo_queue, AttributeNames=["SequenceNumber"])
    }
    assert received == {str(n): number for n, number in enumerate(numbers)}


def test_message_tells_its_group_id_and_sequence(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(VisibilityTimeout="0")
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sent = sqs.send_message(QueueUrl=url, MessageBody="m", **ids)

    first = receive_one(sqs, url, AttributeNames=["All"])["Attributes"]
    second = receive_one(sqs, url, AttributeNames=["All"])["Attributes"]

    assert first.keys() == {
        "SenderId",
        "SentTimestamp",
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
        "MessageGroupId",
        "MessageDeduplicationId",
        "SequenceNumber",
    }
    assert first["SequenceNumber"] == sent["SequenceNumber"]
    assert ids.items() <= first.items()
    assert second == {**first, "ApproximateReceiveCount": "2"}


# -- attempt ids ------------------------------------------------------------------------------------------


def test_repeated_receive_with_the_same_attempt_id_gives_the_same_messages(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2", "b1")

    first = take(sqs, fifo_queue, 2, ReceiveRequestAttemptId="attempt")
    again = take(sqs, fifo_queue, 2, ReceiveRequestAttemptId="attempt")

    assert texts(first) == texts(again) == ["a1", "a2"]
    assert [m["ReceiptHandle"] for m in again] == [m["ReceiptHandle"] for m in first]
    assert counts_of(sqs, fifo_queue) == (1, 2, 0)


def test_another_attempt_id_gives_other_messages(sqs: Any, fifo_queue: str) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "b1")

    assert texts(take(sqs, fifo_queue, 1, ReceiveRequestAttemptId="one")) == ["a1"]
    assert texts(take(sqs, fifo_queue, 1, ReceiveRequestAttemptId="two")) == ["b1"]


@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_attempt_id_is_not_good_any_more_once_a_message_of_its_receive_was_deleted_or_changed(
    sqs: Any, fifo_queue: str, how: str
) -> None:
    send_to_groups(sqs, fifo_queue, "a1", "a2")
    (first,) = take(sqs, fifo_queue, 1, ReceiveRequestAttemptId="attempt")
    if how == "deleted":
        delete(sqs, fifo_queue, first)
    else:
        sqs.change_message_visibility(
            QueueUrl=fifo_queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=600
        )

    with refused(
        "InvalidParameterValue", containing="Value attempt for parameter ReceiveRequestAttemptId is invalid"
    ):
        take(sqs, fifo_queue, 1, ReceiveRequestAttemptId="attempt")


# -- high throughput --------------------------------------------------------------------------------------


def test_throughput_per_group_needs_deduplication_per_group(sqs: Any) -> None:
    with refused("InvalidAttributeValue"):
        sqs.create_queue(
            QueueName=unique(fifo=True),
            Attributes={"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"},
        )


def test_high_throughput_is_two_attributes(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    attributes = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    url = make_fifo_queue(**attributes)
    assert attributes_of(sqs, url, *attributes) == attributes

    regular = {"FifoThroughputLimit": "perQueue", "DeduplicationScope": "queue"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=regular)
    assert attributes_of(sqs, url, *attributes) == regular

    sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
    assert attributes_of(sqs, url, *attributes) == attributes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FifoThroughputLimit", "unlimited"),
        ("DeduplicationScope", "account"),
        ("ContentBasedDeduplication", "yes"),
    ],
)
def test_other_values_of_fifo_attributes_are_refused(
    sqs: Any, fifo_queue: str, name: str, value: str
) -> None:
    with refused("InvalidAttributeValue", containing=name):
        sqs.set_queue_attributes(QueueUrl=fifo_queue, Attributes={name: value})


def test_order_holds_in_a_high_throughput_queue(sqs: Any, make_fifo_queue: MakeQueue) -> None:
    url = make_fifo_queue(FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")

    send_to_groups(sqs, url, "a1", "b1", "a2", "b2")

    assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == ["a1", "a2", "b1", "b2"]

"""Messages: sending, receiving, deleting, their attributes, sizes and batches."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from harness.sqs import Endpoint, md5_of, md5_of_attributes

from .conftest import MakeQueue
from .support import bodies, counts_of, delete, receive_all, receive_none, receive_one, refused, send

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
KILOBYTE = 1024
MAXIMUM = 1024 * KILOBYTE

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Hello": {"DataType": "String", "StringValue": "There"},
    "Help.Me": {"DataType": "String.custom", "StringValue": "Mé"},
    "General": {"DataType": "Number", "StringValue": "-12.5"},
    "Blob": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff\x1e"},
}


# -- one message ------------------------------------------------------------------------------------------


def test_message_is_received_as_it_was_sent(sqs: Any, queue: str) -> None:
    body = '{\r\n\t"text": "&quot;<ünï>&amp;🦆"}'

    sent = sqs.send_message(QueueUrl=queue, MessageBody=body)
    message = receive_one(sqs, queue)

    assert message["Body"] == body
    assert message["MessageId"] == sent["MessageId"] == str(uuid.UUID(sent["MessageId"]))
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5_of(body)
    assert message["ReceiptHandle"]
    assert "SequenceNumber" not in sent
    assert "MD5OfMessageAttributes" not in sent
    assert "MD5OfMessageSystemAttributes" not in sent
    for absent in ("Attributes", "MessageAttributes", "MD5OfMessageAttributes"):
        assert absent not in message


def test_empty_receive_has_no_messages(sqs: Any, queue: str) -> None:
    assert sqs.receive_message(QueueUrl=queue).get("Messages", []) == []


def test_messages_stay_in_their_own_queue(sqs: Any, make_queue: MakeQueue) -> None:
    one, other = make_queue(), make_queue()

    send(sqs, one, "message")

    receive_none(sqs, other)
    assert receive_one(sqs, one)["Body"] == "message"


def test_deleted_message_never_comes_back(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout="1")
    send(sqs, url, "message")

    delete(sqs, url, receive_one(sqs, url))

    assert counts_of(sqs, url) == (0, 0, 0)
    assert bodies(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)) == []


def test_receive_gives_at_most_as_many_messages_as_asked_for(sqs: Any, queue: str) -> None:
    send(sqs, queue, *"abcde")

    assert len(sqs.receive_message(QueueUrl=queue)["Messages"]) == 1
    assert len(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=3)["Messages"]) <= 3


@pytest.mark.parametrize("count", [0, 11, -1])
def test_receive_takes_1_to_10_messages(sqs: Any, queue: str, count: int) -> None:
    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message=f"Value {count} for parameter MaxNumberOfMessages is invalid. "
        "Reason: Must be between 1 and 10, if provided.",
    ):
        sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=count)


def test_message_without_a_body_is_refused(loose_sqs: Any, queue: str) -> None:
    message = "The request must contain the parameter MessageBody."

    with refused("MissingParameter", shape="MissingRequiredParameterException", message=message):
        loose_sqs.send_message(QueueUrl=queue)
    with refused("MissingParameter", message=message):
        loose_sqs.send_message(QueueUrl=queue, MessageBody="")


def test_message_of_one_character_is_the_smallest(sqs: Any, queue: str) -> None:
    send(sqs, queue, "x")

    assert receive_one(sqs, queue)["Body"] == "x"


# -- characters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    ["\x09\x0a\x0d", "\x20\x7f\x85", "\ud7ff\ue000", "\ufffd", "\U00010000\U0010ffff"],
    ids=["white space", "latin", "around the surrogates", "last of the plane", "other planes"],
)
def test_body_may_have_all_characters_of_xml(sqs: Any, queue: str, body: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body)

    message = receive_one(sqs, queue)

    assert message["Body"] == body
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5_of(body)


@pytest.mark.parametrize("character", ["\x00", "\x08", "\x0b", "\x0c", "\x1f", "\ufffe", "\uffff"])
def test_other_characters_are_refused(sqs: Any, queue: str, character: str) -> None:
    with refused("InvalidMessageContents"):
        sqs.send_message(QueueUrl=queue, MessageBody=f"bad {character}")

    assert counts_of(sqs, queue) == (0, 0, 0)


def test_lone_surrogate_is_refused(server: Endpoint, queue: str) -> None:
    body = f'{{"QueueUrl": "{queue}", "MessageBody": "bad \\ud800"}}'.encode()

    answer = server.json_call("SendMessage", body=body)

    assert answer.status == 400
    assert answer.json["__type"].rpartition("#")[2] in {"InvalidMessageContents", "SerializationException"}


# -- size -------------------------------------------------------------------------------------------------


def test_body_of_1_mib_is_taken(sqs: Any, queue: str) -> None:
    body = "x" * MAXIMUM

    sqs.send_message(QueueUrl=queue, MessageBody=body)

    assert receive_one(sqs, queue)["MD5OfBody"] == md5_of(body)


def test_larger_body_is_refused(sqs: Any, queue: str) -> None:
    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.",
    ):
        sqs.send_message(QueueUrl=queue, MessageBody="x" * (MAXIMUM + 1))


def test_size_is_counted_in_bytes_not_in_characters(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="é" * (MAXIMUM // 2))

    with refused("InvalidParameterValue", containing="Message must be shorter than 1048576 bytes."):
        sqs.send_message(QueueUrl=queue, MessageBody="é" * (MAXIMUM // 2) + "x")


def test_size_includes_name_type_and_value_of_attributes(sqs: Any, queue: str) -> None:
    attributes = {"k": {"DataType": "String", "StringValue": "x"}}
    size = len("k") + len("String") + len("x")

    sqs.send_message(QueueUrl=queue, MessageBody="x" * (MAXIMUM - size), MessageAttributes=attributes)

    with refused("InvalidParameterValue", containing="Message must be shorter than 1048576 bytes."):
        sqs.send_message(QueueUrl=queue, MessageBody="x" * (MAXIMUM - size + 1), MessageAttributes=attributes)


def test_size_does_not_include_system_attributes(sqs: Any, queue: str) -> None:
    sqs.send_message(
        QueueUrl=queue,
        MessageBody="x" * MAXIMUM,
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}},
    )

    assert counts_of(sqs, queue) == (1, 0, 0)


def test_smaller_limit_of_a_queue_is_kept(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MaximumMessageSize="1024")
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1024)

    with refused(
        "InvalidParameterValue",
        message="One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
    ):
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1025)


# -- message attributes -----------------------------------------------------------------------------------


def test_message_attributes_come_back_with_their_digest(sqs: Any, queue: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=ATTRIBUTES)

    message = receive_one(sqs, queue, MessageAttributeNames=["All"])

    assert message["MessageAttributes"] == ATTRIBUTES
    digest = md5_of_attributes(ATTRIBUTES)
    assert sent["MD5OfMessageAttributes"] == message["MD5OfMessageAttributes"] == digest


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], set()),
        (["All"], {"Hello", "Help.Me", "General", "Blob"}),
        ([".*"], {"Hello", "Help.Me", "General", "Blob"}),
        (["*"], {"Hello", "Help.Me", "General", "Blob"}),
        (["Hello", "General"], {"Hello", "General"}),
        (["Foo", "Hello"], {"Hello"}),
        (["Foo", "Help"], set()),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["Help.*"], {"Help.Me"}),
        (["AWS."], set()),
        (["..foo"], set()),
    ],
    ids=lambda names: " ".join(sorted(names)) or "none",  # the same in every process: sets have no order
)
def test_message_attributes_are_filtered_by_name_and_prefix(
    sqs: Any, queue: str, names: list[str], expected: set[str]
) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=ATTRIBUTES)

    message = receive_one(sqs, queue, MessageAttributeNames=names)

    returned = message.get("MessageAttributes", {})
    assert returned.keys() == expected
    if expected:
        assert message["MD5OfMessageAttributes"] == md5_of_attributes(returned)
    else:
        assert "MD5OfMessageAttributes" not in message


def test_message_takes_10_attributes(sqs: Any, queue: str) -> None:
    attributes = {f"a{number}": {"DataType": "String", "StringValue": "v"} for number in range(10)}
    sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=attributes)

    attributes["a10"] = {"DataType": "String", "StringValue": "v"}
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=attributes)


@pytest.mark.parametrize(
    "name", ["a", "x" * 256, "A-b_9.c", "attr.1øßä"], ids=["one", "longest", "signs", "letters"]
)
def test_attribute_names_that_are_taken(sqs: Any, queue: str, name: str) -> None:
    attributes = {name: {"DataType": "String", "StringValue": "v"}}

    sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=attributes)

    assert receive_one(sqs, queue, MessageAttributeNames=[name])["MessageAttributes"] == attributes


@pytest.mark.parametrize(
    "name",
    ["x" * 257, "AWS.x", "aWs.x", "Amazon.x", "AMAZON.x", ".x", "x.", "x..y", "a!b", "a b", "a(b", "a§b", ""],
)
def test_attribute_names_that_are_refused(sqs: Any, queue: str, name: str) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(
            QueueUrl=queue,
            MessageBody="m",
            MessageAttributes={name: {"DataType": "String", "StringValue": "v"}},
        )


@pytest.mark.parametrize(
    "attribute",
    [
        {"DataType": "Invalid", "StringValue": "v"},
        {"DataType": "Number." + "x" * 256, "StringValue": "1"},
        {"DataType": "", "StringValue": "v"},
        {"DataType": "String"},
        {"DataType": "Binary", "BinaryValue": b""},
        {"DataType": "Number", "StringValue": "many"},
        {"DataType": "Number", "StringValue": ""},
        {"DataType": "String", "StringValue": "bad \x08"},
    ],
    ids=[
        "unknown type",
        "type too long",
        "empty type",
        "no value",
        "empty binary",
        "word as number",
        "empty number",
        "bad character",
    ],
)
def test_attributes_that_are_refused(sqs: Any, queue: str, attribute: dict[str, Any]) -> None:
    with refused("InvalidParameterValue"):
        sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes={"name": attribute})


def test_attribute_with_an_empty_string_is_refused_by_name(sqs: Any, queue: str) -> None:
    with refused(
        "InvalidParameterValue",
        shape="InvalidParameterValueException",
        message="Message (user) attribute 'ErrorDetails' must contain a non-empty value of type 'String'.",
    ):
        sqs.send_message(
            QueueUrl=queue,
            MessageBody="m",
            MessageAttributes={"ErrorDetails": {"DataType": "String", "StringValue": ""}},
        )


@pytest.mark.parametrize("number", ["0", "-1", "+1", "1614717034367", "3.14", "1e10", "-2.5E-3"])
def test_numbers_are_kept_as_written(sqs: Any, queue: str, number: str) -> None:
    attributes = {"n": {"DataType": "Number.custom", "StringValue": number}}

    sqs.send_message(QueueUrl=queue, MessageBody="m", MessageAttributes=attributes)

    assert receive_one(sqs, queue, MessageAttributeNames=["n"])["MessageAttributes"] == attributes


# -- system attributes ------------------------------------------------------------------------------------


def test_system_attributes_tell_sender_times_and_count(sqs: Any, queue: str) -> None:
    before_ms = time.time() * 1000
    send(sqs, queue, "m")

    first = receive_one(sqs, queue, VisibilityTimeout=0, AttributeNames=["All"])["Attributes"]
    second = receive_one(sqs, queue, AttributeNames=["All"])["Attributes"]

    assert first.keys() == {
        "SenderId",
        "SentTimestamp",
        "ApproximateFirstReceiveTimestamp",
        "ApproximateReceiveCount",
    }
    assert abs(int(first["SentTimestamp"]) - before_ms) < 60_000
    assert int(first["ApproximateFirstReceiveTimestamp"]) >= int(first["SentTimestamp"])
    assert first["ApproximateReceiveCount"] == "1"
    assert second == {**first, "ApproximateReceiveCount": "2"}
    assert first["SenderId"] not in {"", "127.0.0.1"}


@pytest.mark.parametrize("parameter", ["AttributeNames", "MessageSystemAttributeNames"])
def test_only_the_system_attributes_asked_for_are_returned(sqs: Any, queue: str, parameter: str) -> None:
    send(sqs, queue, "m")

    names: dict[str, Any] = {parameter: ["SenderId", "SequenceNumber"]}
    message = receive_one(sqs, queue, **names)

    assert message["Attributes"].keys() == {"SenderId"}


def test_unknown_system_attribute_name_is_refused(loose_sqs: Any, queue: str) -> None:
    with refused("InvalidAttributeName", message="Unknown Attribute Fancy."):
        loose_sqs.receive_message(QueueUrl=queue, AttributeNames=["Fancy"])


def test_trace_header_attribute_is_kept_with_its_own_digest(sqs: Any, queue: str) -> None:
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}}

    sent = sqs.send_message(
        QueueUrl=queue, MessageBody="m", MessageAttributes=ATTRIBUTES, MessageSystemAttributes=system
    )
    message = receive_one(sqs, queue, AttributeNames=["AWSTraceHeader"], MessageAttributeNames=["All"])

    assert sent["MD5OfMessageSystemAttributes"] == "5ae4d5d7636402d80f4eb6d213245a88"
    assert sent["MD5OfMessageSystemAttributes"] == md5_of_attributes(system)
    assert (
        sent["MD5OfMessageAttributes"] == message["MD5OfMessageAttributes"] == md5_of_attributes(ATTRIBUTES)
    )
    assert message["Attributes"] == {"AWSTraceHeader": TRACE}


def test_trace_header_of_the_request_becomes_an_attribute_of_the_message(
    server: Endpoint, sqs: Any, queue: str
) -> None:
    server.json_call(
        "SendMessage", {"QueueUrl": queue, "MessageBody": "m"}, unsigned_headers={"X-Amzn-Trace-Id": TRACE}
    )

    message = receive_one(sqs, queue, AttributeNames=["All"])

    assert message["Attributes"]["AWSTraceHeader"] == TRACE


def test_other_system_attributes_are_refused(loose_sqs: Any, queue: str) -> None:
    with refused("InvalidParameterValue"):
        loose_sqs.send_message(
            QueueUrl=queue,
            MessageBody="m",
            MessageSystemAttributes={"SenderId": {"DataType": "String", "StringValue": "me"}},
        )
    with refused("InvalidParameterValue"):
        loose_sqs.send_message(
            QueueUrl=queue,
            MessageBody="m",
            MessageSystemAttributes={"AWSTraceHeader": {"DataType": "Number", "StringValue": "1"}},
        )


# -- batches ----------------------------------------------------------------------------------------------


def entries(*bodies: str, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": f"id{number}", "MessageBody": body, **more} for number, body in enumerate(bodies)]


def test_batch_answers_each_entry_by_its_id(sqs: Any, queue: str) -> None:
    batch = [
        {"Id": "plain", "MessageBody": "one"},
        {"Id": "with-attributes_9", "MessageBody": "two", "MessageAttributes": ATTRIBUTES},
    ]

    response = sqs.send_message_batch(QueueUrl=queue, Entries=batch)

    assert response.get("Failed", []) == []
    one, two = sorted(response["Successful"], key=lambda entry: entry["Id"])
    assert (one["Id"], one["MD5OfMessageBody"]) == ("plain", md5_of("one"))
    assert "MD5OfMessageAttributes" not in one
    assert (two["Id"], two["MD5OfMessageBody"]) == ("with-attributes_9", md5_of("two"))
    assert two["MD5OfMessageAttributes"] == md5_of_attributes(ATTRIBUTES)
    received = {message["MessageId"]: message["Body"] for message in receive_all(sqs, queue, 2)}
    assert received == {one["MessageId"]: "one", two["MessageId"]: "two"}


def test_batch_of_10_is_sent_received_and_deleted(sqs: Any, queue: str) -> None:
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries(*"0123456789"))

    messages = receive_all(sqs, queue, 10)
    deleted = sqs.delete_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": message["MessageId"], "ReceiptHandle": message["ReceiptHandle"]} for message in messages
        ],
    )

    ids = {entry["MessageId"] for entry in sent["Successful"]}
    assert {message["MessageId"] for message in messages} == ids
    assert {entry["Id"] for entry in deleted["Successful"]} == ids
    assert deleted.get("Failed", []) == []
    assert counts_of(sqs, queue) == (0, 0, 0)


def test_wrong_entry_fails_alone(sqs: Any, queue: str) -> None:
    batch = [
        *entries(*"012345678"),
        {"Id": "bad", "MessageBody": "\x01"},
    ]

    response = sqs.send_message_batch(QueueUrl=queue, Entries=batch)

    assert {entry["Id"] for entry in response["Successful"]} == {f"id{number}" for number in range(9)}
    (failed,) = response["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidMessageContents", True)
    assert {message["Body"] for message in receive_all(sqs, queue, 9)} == set("012345678")


@pytest.mark.parametrize(
    "entry",
    [
        {"DelaySeconds": 901},
        {"DelaySeconds": -1},
        {"MessageAttributes": {"a": {"DataType": "Number", "StringValue": "many"}}},
        {"MessageAttributes": {"AWS.a": {"DataType": "String", "StringValue": "v"}}},
    ],
    ids=["long delay", "negative delay", "word as number", "reserved name"],
)
def test_entry_with_a_wrong_parameter_fails_alone(sqs: Any, queue: str, entry: dict[str, Any]) -> None:
    batch = [{"Id": "good", "MessageBody": "m"}, {"Id": "bad", "MessageBody": "m", **entry}]

    response = sqs.send_message_batch(QueueUrl=queue, Entries=batch)

    assert [entry["Id"] for entry in response["Successful"]] == ["good"]
    (failed,) = response["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidParameterValue", True)
    assert failed["Message"]


def test_entry_over_the_limit_of_the_queue_fails_alone(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MaximumMessageSize="1024")

    response = sqs.send_message_batch(QueueUrl=url, Entries=entries("x" * 1024, "x" * 1025))

    assert [entry["Id"] for entry in response["Successful"]] == ["id0"]
    (failed,) = response["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("id1", "InvalidParameterValue", True)
    assert failed["Message"] == (
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    )


def test_batch_of_1_mib_in_all_is_taken(sqs: Any, queue: str) -> None:
    response = sqs.send_message_batch(QueueUrl=queue, Entries=entries("x" * (MAXIMUM - 1), "y"))

    assert len(response["Successful"]) == 2


def test_batch_over_1_mib_in_all_is_refused_whole(sqs: Any, queue: str) -> None:
    attributes = {"k": {"DataType": "String", "StringValue": "x"}}
    size = len("k") + len("String") + len("x")
    batch = [
        {"Id": "1", "MessageBody": "x" * (MAXIMUM - size), "MessageAttributes": attributes},
        {"Id": "2", "MessageBody": "y"},
    ]

    with refused(
        "AWS.SimpleQueueService.BatchRequestTooLong",
        shape="BatchRequestTooLong",
        message="Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
    ):
        sqs.send_message_batch(QueueUrl=queue, Entries=batch)

    assert counts_of(sqs, queue) == (0, 0, 0)


def test_empty_batch_is_refused(loose_sqs: Any, queue: str) -> None:
    calls = (
        loose_sqs.send_message_batch,
        loose_sqs.delete_message_batch,
        loose_sqs.change_message_visibility_batch,
    )
    for call in calls:
        with refused("AWS.SimpleQueueService.EmptyBatchRequest", shape="EmptyBatchRequest"):
            call(QueueUrl=queue, Entries=[])


@pytest.mark.parametrize("entry_id", ["", "x" * 81, "a:b", "a b", "ä"])
def test_batch_with_a_wrong_entry_id_is_refused(loose_sqs: Any, queue: str, entry_id: str) -> None:
    expected: dict[str, Any] = {
        "shape": "InvalidBatchEntryId",
        "message": "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
    }

    with refused("AWS.SimpleQueueService.InvalidBatchEntryId", **expected):
        loose_sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": entry_id, "MessageBody": "m"}])
    with refused("AWS.SimpleQueueService.InvalidBatchEntryId", **expected):
        loose_sqs.delete_message_batch(QueueUrl=queue, Entries=[{"Id": entry_id, "ReceiptHandle": "h"}])
    with refused("AWS.SimpleQueueService.InvalidBatchEntryId", **expected):
        loose_sqs.change_message_visibility_batch(
            QueueUrl=queue, Entries=[{"Id": entry_id, "ReceiptHandle": "h", "VisibilityTimeout": 1}]
        )


def test_entry_id_of_80_characters_is_the_longest(sqs: Any, queue: str) -> None:
    response = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "x" * 80, "MessageBody": "m"}])

    assert response["Successful"][0]["Id"] == "x" * 80


def test_entry_ids_must_differ(sqs: Any, queue: str) -> None:
    batch = [{"Id": "same", "MessageBody": "a"}, {"Id": "same", "MessageBody": "b"}]

    with refused(
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
        shape="BatchEntryIdsNotDistinct",
        containing="same",
    ):
        sqs.send_message_batch(QueueUrl=queue, Entries=batch)

    assert counts_of(sqs, queue) == (0, 0, 0)


def test_number_of_entries_is_checked_before_their_ids(sqs: Any, queue: str) -> None:
    expected: dict[str, Any] = {
        "shape": "TooManyEntriesInBatchRequest",
        "message": "Maximum number of entries per request are 10. You have sent 20.",
    }

    with refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", **expected):
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a:b", "MessageBody": "m"}] * 20)
    with refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", **expected):
        sqs.delete_message_batch(QueueUrl=queue, Entries=[{"Id": "a:b", "ReceiptHandle": "h"}] * 20)
    with refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", **expected):
        sqs.change_message_visibility_batch(
            QueueUrl=queue, Entries=[{"Id": "a:b", "ReceiptHandle": "h", "VisibilityTimeout": 1}] * 20
        )


# -- retention --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_message_is_gone_after_the_retention_period(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MessageRetentionPeriod="60")
    send(sqs, url, "old")

    time.sleep(61)
    send(sqs, url, "new")

    assert [message["Body"] for message in receive_all(sqs, url, 1)] == ["new"]
    receive_none(sqs, url)

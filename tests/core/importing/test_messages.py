"""Messages that another service delivers, as they are staged here."""

from __future__ import annotations

import re
from hashlib import md5
from typing import Any

import pytest

from quaymaster.core.importing.messages import (
    PART_BYTES,
    PART_MESSAGES,
    MessageIsDamaged,
    read_deliveries,
    read_delivery,
    split_batch,
    uuid_of,
)

MESSAGE_ID = "5f0c3a1e-8b1d-4a3b-9a52-0c6f2f4f1d11"


def delivery(body: str = "hello", *, system: dict[str, str] | None = None, **given: Any) -> dict[str, Any]:
    fields = {
        "MessageId": MESSAGE_ID,
        "ReceiptHandle": "handle",
        "Body": body,
        "MD5OfBody": md5(body.encode(), usedforsecurity=False).hexdigest(),
        **given,
    }
    return fields if system is None else {**fields, "Attributes": system}


def test_a_message_keeps_its_id_as_that_of_its_origin_and_is_not_delayed_again() -> None:
    read = read_delivery(delivery(), "a")

    assert read.entry == {"MessageBody": "hello", "OriginMessageId": MESSAGE_ID, "DelaySeconds": 0}
    assert (read.message_id, read.receipt_handle, read.size_bytes) == (MESSAGE_ID, "handle", 5)


def test_an_id_of_origin_that_the_source_knows_is_kept() -> None:
    origin = "00000000-0000-4000-8000-000000000001"

    read = read_delivery(delivery(system={"OriginMessageId": origin}), "a")

    assert read.entry["OriginMessageId"] == origin
    assert read.message_id == MESSAGE_ID


def test_an_id_that_is_no_uuid_becomes_one_and_always_the_same() -> None:
    made = uuid_of("m-17")

    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}", made)
    assert made == uuid_of("m-17") != uuid_of("m-18")
    assert uuid_of(MESSAGE_ID) == MESSAGE_ID
    assert uuid_of(MESSAGE_ID + "\n") != MESSAGE_ID + "\n"


def test_groups_deduplication_ids_and_traces_are_kept() -> None:
    system = {
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "AWSTraceHeader": "Root=1",
        "SequenceNumber": "1",
    }

    fifo = read_delivery(delivery(system=system), "a.fifo").entry
    standard = read_delivery(delivery(system=system), "a").entry

    assert fifo == {
        "MessageBody": "hello",
        "OriginMessageId": MESSAGE_ID,
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    }
    assert standard["MessageGroupId"] == "g"
    assert "MessageDeduplicationId" not in standard
    assert "MessageDeduplicationId" not in read_delivery(delivery(system={}), "a.fifo").entry


def test_attributes_are_sent_as_they_came_without_lists_that_no_service_takes() -> None:
    attributes = {
        "colour": {
            "DataType": "String",
            "StringValue": "red",
            "StringListValues": [],
            "BinaryListValues": [],
        },
        "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
    }

    read = read_delivery(delivery(MessageAttributes=attributes), "a")

    assert read.entry["MessageAttributes"] == {
        "colour": {"DataType": "String", "StringValue": "red"},
        "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
    }
    assert read.size_bytes == 5 + len("colourStringredrawBinaryAAE=")


def test_a_message_is_known_by_its_id_wherever_it_is() -> None:
    dead = {"DeadLetterQueueSourceArn": "arn:aws:sqs:r:1:a"}

    first = read_delivery(delivery(), "a").identity

    assert len(first) == 16
    assert read_delivery(delivery(ReceiptHandle="other"), "a").identity == first
    assert read_delivery(delivery(system=dead), "dead").identity == first


def test_an_id_that_is_no_uuid_is_one_of_its_queue() -> None:
    ids = {read_delivery(delivery(MessageId="1"), queue).identity for queue in ("a", "b")}

    assert len(ids) == 2


def test_copies_of_a_message_of_a_log_are_known_by_the_groups_they_died_in() -> None:
    arns = [f"arn:aws:sqs:r:1:log@{group}" for group in "ab"]

    ids = {read_delivery(delivery(system={"DeadLetterQueueSourceArn": arn}), "dead").identity for arn in arns}

    assert len(ids) == 2


def test_behind_a_message_that_is_not_whole_a_fifo_queue_gives_none() -> None:
    messages = [delivery("1"), delivery("2", MD5OfBody="0" * 32), delivery("3")]

    assert [each.entry["MessageBody"] for each in read_deliveries(messages, "a")] == ["1", "3"]
    assert [each.entry["MessageBody"] for each in read_deliveries(messages, "a.fifo")] == ["1"]


def test_a_batch_is_split_into_what_one_request_takes() -> None:
    def sizes(*bodies: int) -> list[list[int]]:
        messages = [read_delivery(delivery("x" * size), "a") for size in bodies]
        return [[message.size_bytes for message in part] for part in split_batch(messages)]

    assert sizes() == []
    assert sizes(PART_BYTES - 1, 1, 1) == [[PART_BYTES - 1, 1], [1]]
    assert sizes(PART_BYTES + 1, 2) == [[PART_BYTES + 1], [2]]
    assert [len(part) for part in sizes(*[1] * (PART_MESSAGES + 1))] == [PART_MESSAGES, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        delivery(MD5OfBody="0" * 32),
        {"MessageId": "m", "Body": "x"},
        delivery(Body=None),
        {**delivery(), "Body": "\ud800"},
    ],
)
def test_what_is_not_whole_is_no_message(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageIsDamaged):
        read_delivery(wrong, "a")


def test_a_service_that_sums_nothing_is_believed() -> None:
    given = delivery()
    del given["MD5OfBody"]

    assert read_delivery(given, "a").entry["MessageBody"] == "hello"

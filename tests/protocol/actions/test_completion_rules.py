"""What a completion may be, and by what it is known again."""

from __future__ import annotations

from typing import Any

import pytest
from harness.replica_host import queue

from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.protocol.actions.completion_rules import (
    COMPLETES,
    MESSAGE_BYTES_MAX,
    MESSAGES_MAX,
    RECEIPT_HANDLES_MAX,
    CompletionId,
    check_completion,
    check_output,
    check_size,
    handle_of,
    handles_in,
    without_handle,
)
from quaymaster.protocol.actions.completion_shapes import (
    CompleteMessagesRequest,
    CompleteMessagesRequestEntry,
)
from quaymaster.protocol.sqs.shapes import (
    MessageAttributeValue,
    SendMessageBatchRequest,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
)

TEXT = MessageAttributeValue("String", "a text")


def handle(value: str, data_type: str = "String") -> dict[str, MessageAttributeValue]:
    return {COMPLETES: MessageAttributeValue(data_type, value)}


def asked(handles: int, messages: int) -> CompleteMessagesRequest:
    names = [f"handle-{number}" for number in range(handles)]
    return CompleteMessagesRequest("a", names, [CompleteMessagesRequestEntry("b", "x")] * messages)


def test_an_attribute_of_a_message_names_what_it_completes_and_is_not_stored() -> None:
    message = SendMessageRequest("b", "x", MessageAttributes={"kind": TEXT, **handle("one")})

    assert handle_of(message) == "one"
    assert without_handle(message).MessageAttributes == {"kind": TEXT}
    assert (
        without_handle(SendMessageRequest("b", "x", MessageAttributes=handle("one"))).MessageAttributes
        is None
    )
    assert handle_of(SendMessageRequest("b", "x")) is None
    assert handle_of(SendMessageRequest("b", "x", MessageAttributes={"kind": TEXT})) is None


@pytest.mark.parametrize(
    "value",
    [
        MessageAttributeValue("Number", "1"),
        MessageAttributeValue("String", ""),
        MessageAttributeValue("String"),
        MessageAttributeValue("String", "one", BinaryValue=b"x"),
    ],
)
def test_it_must_be_a_receipt_handle(value: MessageAttributeValue) -> None:
    with pytest.raises(InvalidParameterValue, match="must be a receipt handle"):
        handle_of(SendMessageRequest("b", "x", MessageAttributes={COMPLETES: value}))


def test_handles_of_a_request_are_found_once_each() -> None:
    entries = [
        SendMessageBatchRequestEntry(str(number), "x", MessageAttributes=attributes)
        for number, attributes in enumerate(
            [handle("one"), None, handle("two"), handle("one"), {"kind": TEXT}, handle("")]
        )
    ]

    assert handles_in(SendMessageBatchRequest("b", entries)) == ["one", "two"]
    assert handles_in(SendMessageRequest("b", "x", MessageAttributes=handle("one"))) == ["one"]
    assert handles_in(SendMessageRequest("b", "x")) == []
    assert handles_in(asked(1, 1)) == []


def test_a_completion_has_a_bounded_number_of_handles_and_messages() -> None:
    check_completion(asked(1, 1))
    check_completion(asked(RECEIPT_HANDLES_MAX, MESSAGES_MAX))
    check_size(MESSAGE_BYTES_MAX)

    for handles, messages in ((0, 1), (1, 0), (RECEIPT_HANDLES_MAX + 1, 1), (1, MESSAGES_MAX + 1)):
        with pytest.raises(InvalidParameterValue, match="must be 1 to"):
            check_completion(asked(handles, messages))
    with pytest.raises(InvalidParameterValue, match="once"):
        check_completion(
            CompleteMessagesRequest("a", ["one", "one"], [CompleteMessagesRequestEntry("b", "x")])
        )
    with pytest.raises(InvalidParameterValue, match="at most 1048576 bytes"):
        check_size(MESSAGE_BYTES_MAX + 1)


def test_what_is_wrong_with_a_message_says_which_it_is() -> None:
    checked = check_output(3, CompleteMessagesRequestEntry("b", "x"), queue(1, "b"))

    assert checked.size_bytes == 1
    for wrong in ({"MessageBody": ""}, {"MessageAttributes": handle("one")}):
        given: dict[str, Any] = {"MessageBody": "x", **wrong}
        with pytest.raises(Exception, match=r"Messages\[3\]: "):
            check_output(3, CompleteMessagesRequestEntry("b", **given), queue(1, "b"))


def identity_of(
    handles: list[str], queue_id: int = 2, *, attributes_md5: bytes | None = None, **given: Any
) -> CompletionId:
    identity = CompletionId(handles)
    entry = CompleteMessagesRequestEntry("b", "x", **given)
    identity.add(queue_id, entry, b"md5-of-the-body-", attributes_md5)
    return identity


def test_the_same_completion_has_the_same_digest_and_message_ids() -> None:
    one, again = identity_of(["one", "two"]), identity_of(["one", "two"])

    assert one.digest() == again.digest() != 0
    assert [one.message_id(at) for at in range(3)] == [again.message_id(at) for at in range(3)]
    assert one.message_id(0) != one.message_id(1)
    assert one.message_id(0)[6] >> 4 == 4
    assert one.message_id(0)[8] >> 6 == 2


def test_another_receipt_or_content_is_another_completion() -> None:
    digests = {
        identity.digest()
        for identity in (
            identity_of(["one"]),
            identity_of(["two"]),
            identity_of(["one", "two"]),
            identity_of(["one"], 3),
            identity_of(["one"], MessageGroupId="g"),
            identity_of(["one"], MessageDeduplicationId="g"),
            identity_of(["one"], DelaySeconds=0),
            identity_of(
                ["one"], MessageSystemAttributes={"AWSTraceHeader": MessageAttributeValue("String", "Root=1")}
            ),
            identity_of(
                ["one"], MessageSystemAttributes={"AWSTraceHeader": MessageAttributeValue("String", "Root=2")}
            ),
        )
    }
    with_attributes = identity_of(["one"], attributes_md5=b"md5-of-attribute")

    assert len(digests | {with_attributes.digest()}) == 10

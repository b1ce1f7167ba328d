"""What a message may be, to the byte."""

from __future__ import annotations

import decimal
import re

import pytest
from harness.replica_host import queue
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import (
    BatchRequestTooLong,
    CallerError,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.protocol.actions.message_rules import (
    AttributeFilter,
    CheckedMessage,
    attributes_bytes,
    check_id,
    check_send,
    check_send_batch,
    has_invalid_characters,
    is_number,
)
from quaymaster.protocol.sqs.shapes import (
    MessageAttributeValue,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
)


def _queue(**attributes: str) -> QueueDefinition:
    return queue(1, "orders", attributes=attributes)


def _fifo_queue(**attributes: str) -> QueueDefinition:
    return queue(1, "orders.fifo", attributes=attributes)


_STANDARD = _queue()
_FIFO = _fifo_queue()
_BY_CONTENT = _fifo_queue(ContentBasedDeduplication="true")
_SMALL = _queue(MaximumMessageSize="1024")


def _send(body: str = "hi", **members: object) -> SendMessageRequest:
    return SendMessageRequest("q", body, **members)  # type: ignore[arg-type]


def _entry(body: str = "hi", entry_id: str = "a", **members: object) -> SendMessageBatchRequestEntry:
    return SendMessageBatchRequestEntry(entry_id, body, **members)  # type: ignore[arg-type]


def _with(
    name: str = "a", data_type: str = "String", text: str | None = "v", **members: object
) -> SendMessageRequest:
    value = MessageAttributeValue(data_type, text, **members)  # type: ignore[arg-type]
    return _send(MessageAttributes={name: value})


def _refused(message: SendMessageRequest, queue: QueueDefinition = _STANDARD) -> CallerError:
    with pytest.raises(CallerError) as raised:
        check_send(message, queue)
    return raised.value


# Bodies


def test_a_message_is_its_bytes_and_their_number() -> None:
    assert check_send(_send("häll\t\r\n"), _STANDARD) == CheckedMessage("häll\t\r\n".encode(), 8)


def test_an_empty_body_is_a_missing_one() -> None:
    error = _refused(_send(""))

    assert isinstance(error, MissingParameter)
    assert error.message == "The request must contain the parameter MessageBody."


_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\x00\x08\x0b\x1f\x7f\ufffe\uffff\ufffd")))
def test_forbidden_characters_are_exactly_those_of_the_published_set(text: str) -> None:
    assert has_invalid_characters(text, text.encode()) == (_FORBIDDEN.search(text) is not None)


@pytest.mark.parametrize("body", ["\x00", "a\x0b", "é\x1f", "\ufffe", "é\uffff"])
def test_a_body_with_a_forbidden_character_is_refused(body: str) -> None:
    assert isinstance(_refused(_send(body)), InvalidMessageContents)


def test_size_is_counted_in_bytes_with_attributes() -> None:
    attributes = {
        "é": MessageAttributeValue("String", "ß"),
        "b": MessageAttributeValue("Binary", None, b"123"),
    }

    assert attributes_bytes(attributes) == (2 + 6 + 2) + (1 + 6 + 3)
    assert check_send(_send("x" * 10, MessageAttributes={"n": attributes["b"]}), _STANDARD).size_bytes == 20


@pytest.mark.parametrize(("queue", "limit"), [(_STANDARD, 1_048_576), (_SMALL, 1_024)])
def test_a_message_may_be_as_large_as_the_queue_allows(queue: QueueDefinition, limit: int) -> None:
    assert check_send(_send("é" * (limit // 2)), queue).size_bytes == limit

    error = _refused(_send("é" * (limit // 2) + "x"), queue)
    assert isinstance(error, InvalidParameterValue)
    assert error.message == (
        f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
    )


def test_attributes_count_towards_the_size_and_system_attributes_do_not() -> None:
    trace = {"AWSTraceHeader": MessageAttributeValue("String", "Root=1")}
    body = "x" * 1_024

    assert check_send(_send(body, MessageSystemAttributes=trace), _SMALL).size_bytes == 1_024
    _refused(_send(body, MessageAttributes=trace), _SMALL)


# Attributes


@pytest.mark.parametrize(
    ("data_type", "text", "binary"),
    [
        ("String", "v", None),
        ("String.json", "{}", None),
        ("String.a.b c", "v", None),
        ("Number", "1", None),
        ("Number.int", "-5", None),
        ("Binary", None, b"\x00"),
        ("Binary.png", None, b"\x00"),
    ],
)
def test_an_attribute_may_be_of_these_types(data_type: str, text: str | None, binary: bytes | None) -> None:
    check_send(_with(data_type=data_type, text=text, BinaryValue=binary), _STANDARD)


@pytest.mark.parametrize(
    "name",
    ["a", "A-b_c.d.9", "x" * 256, "awsome", "amazons.a", "é", "attr.1øßä", "名前", "٣", "и-_.Ж", "á", "नम"],
)
def test_an_attribute_may_have_this_name(name: str) -> None:
    check_send(_with(name), _STANDARD)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".a",
            "a.",
            "a..b",
            "a b",
            "x" * 257,
            "é" * 257,
            "AWS.a",
            "aws.a",
            "Amazon.b",
            "aMaZoN.b",
            "a\n",
        ),
        *("a\u0301", "ना\u092e", "ผู้", "\u0301"),
        *("a!", "a§", "a(", "a?", "a'", 'a"', "a/", "ø!", "ø.", "ø..b", "½", "a²", "a\u2003b", "😀"),
    ],
)
def test_an_attribute_may_not_have_this_name(name: str) -> None:
    error = _refused(_with(name))

    assert isinstance(error, InvalidParameterValue)
    assert f"attribute name '{name}' is invalid" in error.message


@pytest.mark.parametrize(
    ("message", "wording"),
    [
        (
            _with("n", text=""),
            "Message (user) attribute 'n' must contain a non-empty value of type 'String'.",
        ),
        (
            _with("n", text=None),
            "Message (user) attribute 'n' must contain a non-empty value of type 'String'.",
        ),
        (
            _with("n", BinaryValue=b"x"),
            "Message (user) attribute 'n' must contain a non-empty value of type 'String'.",
        ),
        (
            _with("n", "Number", ""),
            "Message (user) attribute 'n' must contain a non-empty value of type 'Number'.",
        ),
        (
            _with("n", "Binary", None, BinaryValue=b""),
            "Message (user) attribute 'n' must contain a non-empty value of type 'Binary'.",
        ),
        (
            _with("n", "Binary", "v", BinaryValue=b"x"),
            "Message (user) attribute 'n' must contain a non-empty value of type 'Binary'.",
        ),
        (_with("n", "Number", "one"), "Can't cast the value of message (user) attribute 'n' to a number."),
        (_with("n", ""), "Message (user) attribute 'n' must contain a non-empty data type."),
    ],
)
def test_a_value_must_be_there_and_of_its_type(message: SendMessageRequest, wording: str) -> None:
    error = _refused(message)

    assert isinstance(error, InvalidParameterValue)
    assert error.message == wording


@pytest.mark.parametrize(
    "data_type", ["Text", "string", "String.", "Stringy", "String.\x00", "String." + "x" * 250]
)
def test_a_type_that_is_none_is_refused(data_type: str) -> None:
    error = _refused(_with(data_type=data_type))

    assert isinstance(error, InvalidParameterValue)
    assert f"has the invalid data type '{data_type}'" in error.message


def test_a_forbidden_character_in_an_attribute_is_an_invalid_parameter() -> None:
    error = _refused(_with(text="a\x00"))

    assert isinstance(error, InvalidParameterValue)
    assert error.message == InvalidMessageContents().message


def test_lists_are_not_supported() -> None:
    for message in (_with(StringListValues=["a"]), _with(BinaryListValues=[b"a"])):
        assert isinstance(_refused(message), UnsupportedOperation)
    check_send(_with(StringListValues=[]), _STANDARD)


def test_there_are_at_most_ten_attributes() -> None:
    attributes = {f"n{n}": MessageAttributeValue("String", "v") for n in range(11)}

    error = _refused(_send(MessageAttributes=attributes))
    assert error.message == "Number of message attributes [11] exceeds the allowed maximum [10]."
    del attributes["n0"]
    check_send(_send(MessageAttributes=attributes), _STANDARD)


@pytest.mark.parametrize(
    ("name", "value", "wording"),
    [
        (
            "Colour",
            MessageAttributeValue("String", "v"),
            "Message system attribute name 'Colour' is invalid.",
        ),
        (
            "AWSTraceHeader",
            MessageAttributeValue("Number", "1"),
            "Message system attribute 'AWSTraceHeader' must be of type 'String'.",
        ),
        (
            "AWSTraceHeader",
            MessageAttributeValue("String", ""),
            "Message system attribute 'AWSTraceHeader' must contain a non-empty value of type 'String'.",
        ),
    ],
)
def test_the_only_system_attribute_is_the_trace_header(
    name: str, value: MessageAttributeValue, wording: str
) -> None:
    check_send(
        _send(MessageSystemAttributes={"AWSTraceHeader": MessageAttributeValue("String", "Root=1")}),
        _STANDARD,
    )

    assert _refused(_send(MessageSystemAttributes={name: value})).message == wording


# Numbers


@pytest.mark.parametrize(
    "text",
    [
        *("0", "-0.0", "+1", "1.", ".5", "1e5", "1E-5", "0e999999", "007", "9" * 38, "9" * 38 + "0" * 80),
        *("1e126", "1" + "0" * 126, "-1e126", "9.9e125", "1e-128", "0." + "0" * 127 + "1", "1000e123"),
    ],
)
def test_this_is_a_number(text: str) -> None:
    assert is_number(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ".",
            "e5",
            "1e",
            "1 ",
            " 1",
            "0x1",
            "1,5",
            "NaN",
            "Infinity",
            "--1",
            "1e1.5",
            "\u0661",
            "1_0",
            "1\n",
        ),
        *("9" * 39, "1.1e126", "2e126", "1e127", "9e-129", "1e-129", "1e9999999", "0.1e-128"),
    ],
)
def test_this_is_no_number(text: str) -> None:
    assert not is_number(text)


@given(st.integers(-(10**40), 10**40), st.integers(-170, 130))
def test_numbers_have_38_digits_and_a_bounded_size(digits: int, exponent: int) -> None:
    text = f"{digits}e{exponent}"
    value = abs(decimal.Context(prec=60).create_decimal(text))
    significant = len(str(abs(digits)).strip("0"))
    smallest, largest = decimal.Decimal("1e-128"), decimal.Decimal("1e126")

    assert is_number(text) == (digits == 0 or (significant <= 38 and smallest <= value <= largest))


# Ids


@pytest.mark.parametrize("parameter", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("value", ["", "x" * 129, "group 123", "é", "a\n", "\x7f"])
def test_an_id_has_up_to_128_printable_characters(parameter: str, value: str) -> None:
    error = _refused(_send(**{parameter: value}), _STANDARD)

    assert isinstance(error, InvalidParameterValue)
    assert error.message == (
        f"Value {value} for parameter {parameter} is invalid. Reason: {parameter} can only include "
        "alphanumeric and punctuation characters. 1 to 128 in length."
    )


def test_an_id_may_hold_all_punctuation() -> None:
    check_id("MessageGroupId", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ09")
    check_id("MessageGroupId", "x" * 128)


def test_a_standard_queue_takes_groups_but_no_deduplication_ids() -> None:
    check_send(_send(MessageGroupId="tenant"), _STANDARD)

    error = _refused(_send(MessageDeduplicationId="d"))
    assert error.message == (
        "Value d for parameter MessageDeduplicationId is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )


def test_a_fifo_queue_needs_a_group() -> None:
    error = _refused(_send(MessageDeduplicationId="d"), _FIFO)

    assert isinstance(error, MissingParameter)
    assert error.message == "The request must contain the parameter MessageGroupId."


def test_a_fifo_queue_needs_a_deduplication_id_or_deduplicates_by_content() -> None:
    check_send(_send(MessageGroupId="g", MessageDeduplicationId="d"), _FIFO)
    check_send(_send(MessageGroupId="g"), _BY_CONTENT)

    error = _refused(_send(MessageGroupId="g"), _FIFO)
    assert isinstance(error, InvalidParameterValue)
    assert error.message == (
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly"
    )


# Delays


@pytest.mark.parametrize("delay_s", [None, 0, 1, 900])
def test_a_message_may_be_delayed(delay_s: int | None) -> None:
    check_send(_send(DelaySeconds=delay_s), _STANDARD)


@pytest.mark.parametrize("delay_s", [-1, 901, 2**70])
def test_a_message_may_not_be_delayed_longer(delay_s: int) -> None:
    assert _refused(_send(DelaySeconds=delay_s)).message == (
        f"Value {delay_s} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
    )


def test_on_a_fifo_queue_only_the_queue_delays() -> None:
    check_send(_send(DelaySeconds=0, MessageGroupId="g"), _BY_CONTENT)

    assert _refused(_send(DelaySeconds=2, MessageGroupId="g"), _BY_CONTENT).message == (
        "Value 2 for parameter DelaySeconds is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )


# Batches


def test_each_entry_of_a_batch_is_taken_or_refused_by_itself() -> None:
    entries = [
        _entry("good", "a"),
        _entry("\x00", "b"),
        _entry("x" * 1_025, "c"),
        _entry("late", "d", DelaySeconds=901),
        _entry("", "e"),
        _entry("fine", "f", MessageAttributes={"n": MessageAttributeValue("String", "v")}),
    ]

    results = check_send_batch(entries, _SMALL)

    assert results[0] == CheckedMessage(b"good", 4)
    assert isinstance(results[1], InvalidMessageContents)
    assert isinstance(results[2], InvalidParameterValue)
    assert results[2].message == (
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    )
    assert isinstance(results[3], InvalidParameterValue)
    assert isinstance(results[4], MissingParameter)
    assert results[5] == CheckedMessage(b"fine", 12)


def test_a_batch_may_have_one_mebibyte_together() -> None:
    half = "x" * (1_048_576 // 2)

    check_send_batch([_entry(half, "a"), _entry(half, "b")], _STANDARD)
    with pytest.raises(BatchRequestTooLong) as raised:
        check_send_batch([_entry(half, "a"), _entry(half + "y", "b")], _STANDARD)

    assert raised.value.message == (
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    )


def test_on_a_fifo_queue_a_missing_id_fails_the_whole_batch() -> None:
    with pytest.raises(InvalidParameterValue) as raised:
        check_send_batch([_entry(MessageGroupId="g", MessageDeduplicationId="d"), _entry()], _FIFO)
    assert raised.value.message == "The request must contain the parameter MessageGroupId."

    with pytest.raises(InvalidParameterValue) as raised:
        check_send_batch([_entry(MessageGroupId="g")], _FIFO)
    assert raised.value.message.startswith("The queue should either have ContentBasedDeduplication enabled")

    assert check_send_batch([_entry(MessageGroupId="g")], _BY_CONTENT) == [CheckedMessage(b"hi", 2)]


# Choosing attributes


_ATTRIBUTES = {name: MessageAttributeValue("String", name) for name in ("Hello", "Help.Me", "General")}


@pytest.mark.parametrize(
    ("names", "selected"),
    [
        (None, []),
        ([], []),
        (["All"], ["Hello", "Help.Me", "General"]),
        ([".*"], ["Hello", "Help.Me", "General"]),
        (["Hello", "General"], ["Hello", "General"]),
        (["Hello", "Nobody"], ["Hello"]),
        (["Hel.*"], ["Hello", "Help.Me"]),
        (["Help.*", "Gen.*"], ["Help.Me", "General"]),
        (["AWS.", "..foo", "not/allowed"], []),
    ],
)
def test_attributes_are_chosen_by_name_or_prefix(names: list[str] | None, selected: list[str]) -> None:
    chosen = AttributeFilter(names)

    assert list(chosen.select(_ATTRIBUTES)) == selected
    assert chosen.takes_nothing == (not names)
    assert chosen.select({}) == {}

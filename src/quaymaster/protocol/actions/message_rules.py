"""What a message may be: its characters, size, attributes, and the ids a FIFO queue asks for.

Everything here runs once per message sent, so the usual case is decided by operations on whole strings.

Source: Amazon SQS Developer Guide, message quotas and message metadata; wordings as the service sends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quaymaster.core.values.errors import (
    BATCH_BYTES_MAX,
    BatchRequestTooLong,
    CallerError,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.attributes import DELAY_S_MAX
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.protocol.actions.completion_shapes import CompleteMessagesRequestEntry
from quaymaster.protocol.actions.transaction_shapes import StagedMessageEntry
from quaymaster.protocol.sqs.shapes import (
    MessageAttributeValue,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
)

ATTRIBUTES_MAX = 10
ATTRIBUTE_NAME_CHARS_MAX = 256
TRACE_HEADER = "AWSTraceHeader"

# In UTF-8 every byte below 0x80 is a character of its own, so the control characters a message cannot have
# are found in the bytes; the two other forbidden ones, U+FFFE and U+FFFF, need a look only outside ASCII.
_ALLOWED_BYTES = bytes(b for b in range(256) if b >= 0x20 or b in b"\t\n\r")
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_RESERVED_PREFIXES = ("aws.", "amazon.")
_KINDS = frozenset({"String", "Number", "Binary"})
_ID = re.compile(r"[!-~]{1,128}")
_NUMBER = re.compile(r"[+-]?(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]{1,6}))?", re.ASCII)
_NUMBER_DIGITS_MAX = 38
_NUMBER_EXPONENT_MIN = -128
_NUMBER_EXPONENT_MAX = 126

_LISTS_UNSUPPORTED = "Message attribute list values in SendMessage operation are not supported."
_NOT_FOR_THIS_TYPE = "The request include parameter that is not valid for this queue type."

Attributes = Mapping[str, MessageAttributeValue]
AnySend = (
    SendMessageRequest | SendMessageBatchRequestEntry | StagedMessageEntry | CompleteMessagesRequestEntry
)


class CheckedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that may be stored: its body in UTF-8, and its size with attributes."""

    body: bytes
    size_bytes: int


def check_send(message: AnySend, queue: QueueDefinition) -> CheckedMessage:
    """Return `message` checked for `queue`. Raises the error the service gives for the first thing wrong."""
    body = message.MessageBody.encode()
    size_bytes = len(body)
    attributes = message.MessageAttributes
    if attributes:
        size_bytes += attributes_bytes(attributes)
    if size_bytes > queue.message_bytes_max:
        raise InvalidParameterValue(
            "One or more parameters are invalid. "
            f"Reason: Message must be shorter than {queue.message_bytes_max} bytes."
        )
    _check_content(message, body)
    _check_for_queue(message, queue)
    if queue.is_fifo:
        _check_fifo_ids(message, queue, MissingParameter("MessageGroupId"))
    return CheckedMessage(body, size_bytes)


def check_send_batch(
    entries: Sequence[SendMessageBatchRequestEntry], queue: QueueDefinition
) -> list[CheckedMessage | CallerError]:
    """Return, for each entry, what can be stored or why it cannot. Ids and number of entries are checked
    before.

    Raises what fails the whole batch: BatchRequestTooLong, and on a FIFO queue an absent group or
    deduplication id.
    """
    bodies = [entry.MessageBody.encode() for entry in entries]
    sizes = [
        len(body) + attributes_bytes(entry.MessageAttributes) if entry.MessageAttributes else len(body)
        for entry, body in zip(entries, bodies, strict=True)
    ]
    total = sum(sizes)
    if total > BATCH_BYTES_MAX:
        raise BatchRequestTooLong(total)
    if queue.is_fifo:
        missing = InvalidParameterValue("The request must contain the parameter MessageGroupId.")
        for entry in entries:
            _check_fifo_ids(entry, queue, missing)
    results: list[CheckedMessage | CallerError] = []
    for entry, body, size_bytes in zip(entries, bodies, sizes, strict=True):
        try:
            if size_bytes > queue.message_bytes_max:
                raise InvalidParameterValue(
                    "One or more parameters cannot be validated. "
                    f"Reason: Message must be shorter than {queue.message_bytes_max} bytes."
                )
            _check_content(entry, body)
            if (
                entry.MessageGroupId is not None
                or entry.MessageDeduplicationId is not None
                or entry.DelaySeconds
            ):
                _check_for_queue(entry, queue)
        except CallerError as error:
            results.append(error)
        else:
            results.append(CheckedMessage(body, size_bytes))
    return results


def telling_which(number: int, error: CallerError) -> CallerError:
    """Return the error of one of `Messages`, which then says of which."""
    error.message = f"Messages[{number}]: {error.message}"
    error.args = (error.message,)
    return error


def attributes_bytes(attributes: Attributes) -> int:
    """Return what message attributes add to the size of a message: names, types and values."""
    total = 0
    for name, attribute in attributes.items():
        total += text_bytes(name) + text_bytes(attribute.DataType)
        if attribute.StringValue is not None:
            total += text_bytes(attribute.StringValue)
        if attribute.BinaryValue is not None:
            total += len(attribute.BinaryValue)
    return total


def has_invalid_characters(text: str, encoded: bytes) -> bool:
    """Return whether `text` has a character that no message may have. `encoded` is it in UTF-8."""
    if encoded.translate(None, _ALLOWED_BYTES):
        return True
    return len(encoded) != len(text) and ("\ufffe" in text or "\uffff" in text)


def check_id(parameter: str, value: str) -> None:
    """Raise InvalidParameterValue unless `value` may be a message group, deduplication or attempt id."""
    if _ID.fullmatch(value) is None:
        raise InvalidParameterValue.of(
            parameter,
            value,
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


def text_bytes(text: str) -> int:
    """Return how long a text is in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _check_content(message: AnySend, body: bytes) -> None:
    if not body:
        raise MissingParameter("MessageBody")
    # Most bodies have nothing but allowed bytes, all of them ASCII.
    if body.translate(None, _ALLOWED_BYTES) or (
        len(body) != len(message.MessageBody) and has_invalid_characters(message.MessageBody, body)
    ):
        raise InvalidMessageContents
    if message.MessageAttributes:
        _check_attributes(message.MessageAttributes)
    if message.MessageSystemAttributes:
        _check_system_attributes(message.MessageSystemAttributes)


def _check_for_queue(message: AnySend, queue: QueueDefinition) -> None:
    group = message.MessageGroupId
    if group is not None:
        check_id("MessageGroupId", group)
    deduplication = message.MessageDeduplicationId
    if deduplication is not None:
        check_id("MessageDeduplicationId", deduplication)
        if not queue.has_dedup_ids:
            raise InvalidParameterValue.of("MessageDeduplicationId", deduplication, _NOT_FOR_THIS_TYPE)
    delay_s = message.DelaySeconds
    if delay_s:
        # Zero on a FIFO queue means the queue's own delay, like absence.
        if queue.is_fifo:
            raise InvalidParameterValue.of("DelaySeconds", delay_s, _NOT_FOR_THIS_TYPE)
        if not 0 <= delay_s <= DELAY_S_MAX:
            raise InvalidParameterValue.of(
                "DelaySeconds", delay_s, f"DelaySeconds must be >= 0 and <= {DELAY_S_MAX}."
            )


def _check_fifo_ids(message: AnySend, queue: QueueDefinition, without_group: CallerError) -> None:
    if message.MessageGroupId is None:
        raise without_group
    if message.MessageDeduplicationId is None and not queue.content_based_dedup:
        raise InvalidParameterValue(
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly"
        )


# Attributes


def _check_attributes(attributes: Attributes) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidParameterValue(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}]."
        )
    for name, attribute in attributes.items():
        if not _is_attribute_name(name):
            raise InvalidParameterValue(
                f"Message (user) attribute name '{name}' is invalid: it can have up to "
                f"{ATTRIBUTE_NAME_CHARS_MAX} alphanumeric characters, underscores, hyphens and periods, and "
                "must not start or end with a period or have periods in succession."
            )
        if name[0] in "aA" and name.lower().startswith(_RESERVED_PREFIXES):
            raise InvalidParameterValue(
                f"Message (user) attribute name '{name}' is invalid: "
                "names that start with 'AWS.' or 'Amazon.' are reserved."
            )
        _check_value("Message (user) attribute", name, attribute)


def _is_attribute_name(name: str) -> bool:
    """Return whether a name has only letters and digits of any alphabet, `_`, `-`, and single periods inside.

    SQS documents "alphanumeric characters" and takes letters such as ø. Combining marks are none: neither the vowel
    signs of Hindi nor an accent that is a character of its own. That SQS takes those is not known, and a name that it
    refuses would keep an application from moving there.
    """
    if _NAME.fullmatch(name) is None or len(name) > ATTRIBUTE_NAME_CHARS_MAX:
        return False
    # What `\w` takes besides: numbers that are no digits, such as ² and ½.
    return name.isascii() or all(c.isalpha() or c.isdecimal() or c in "_-." for c in name)


def _check_system_attributes(attributes: Attributes) -> None:
    what = "Message system attribute"
    for name, attribute in attributes.items():
        if name != TRACE_HEADER:
            raise InvalidParameterValue(f"{what} name '{name}' is invalid.")
        if attribute.DataType != "String":
            raise InvalidParameterValue(f"{what} '{name}' must be of type 'String'.")
        _check_value(what, name, attribute)


def _check_value(what: str, name: str, attribute: MessageAttributeValue) -> None:
    if attribute.StringListValues or attribute.BinaryListValues:
        raise UnsupportedOperation(_LISTS_UNSUPPORTED)
    kind = attribute.DataType
    if kind not in _KINDS:
        kind = _kind_with_label(what, name, kind)
    value = attribute.StringValue
    binary = attribute.BinaryValue
    if kind == "Binary":
        if not binary or value is not None:
            raise InvalidParameterValue(f"{what} '{name}' must contain a non-empty value of type 'Binary'.")
        return
    if not value or binary is not None:
        raise InvalidParameterValue(f"{what} '{name}' must contain a non-empty value of type '{kind}'.")
    if has_invalid_characters(value, value.encode()):
        raise InvalidParameterValue(InvalidMessageContents().message)
    if kind == "Number" and not is_number(value):
        raise InvalidParameterValue(f"Can't cast the value of message (user) attribute '{name}' to a number.")


def _kind_with_label(what: str, name: str, data_type: str) -> str:
    """Return what stands before the label of a type such as `Number.int`."""
    if not data_type:
        raise InvalidParameterValue(f"{what} '{name}' must contain a non-empty data type.")
    kind, _, label = data_type.partition(".")
    if (
        kind not in _KINDS
        or not label
        or len(data_type) > ATTRIBUTE_NAME_CHARS_MAX
        or has_invalid_characters(label, label.encode())
    ):
        raise InvalidParameterValue(
            f"{what} '{name}' has the invalid data type '{data_type}': "
            "it must be String, Number or Binary, and may have a label after a period."
        )
    return kind


def is_number(text: str) -> bool:
    """Return whether `text` is a number of at most 38 digits, zero or between 10^-128 and 10^126 in size."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return False
    whole, fraction = match[1] or "", match[2] or match[3] or ""
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return True
    # The number is 0.digits times ten to this power.
    exponent = len(digits) - len(fraction) + int(match[4] or 0)
    digits = digits.rstrip("0")
    if len(digits) > _NUMBER_DIGITS_MAX:
        return False
    if exponent - 1 == _NUMBER_EXPONENT_MAX:
        return digits == "1"
    return _NUMBER_EXPONENT_MIN <= exponent - 1 < _NUMBER_EXPONENT_MAX


class AttributeFilter:
    """Which message attributes a receive asks for: names, `All`, `*`, `.*`, or `prefix.*`."""

    __slots__ = ("_names", "_prefixes", "takes_all", "takes_nothing")

    def __init__(self, names: Iterable[str] | None) -> None:
        self._names = frozenset(names or ())
        self.takes_all = not self._names.isdisjoint(("All", "*", ".*"))
        # A prefix is taken as text: `bar.*` takes `bar.one`, and `bars` too.
        self._prefixes = tuple(name[:-2] for name in self._names if name.endswith(".*"))
        self.takes_nothing = not self._names

    def select(self, attributes: dict[str, MessageAttributeValue]) -> dict[str, MessageAttributeValue]:
        """Return those of `attributes` that are asked for; the same dict when it is all of them."""
        if self.takes_all or not attributes:
            return attributes
        names, prefixes = self._names, self._prefixes
        return {
            name: value
            for name, value in attributes.items()
            if name in names or (prefixes and name.startswith(prefixes))
        }

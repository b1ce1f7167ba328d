"""What a completion may be: its receipt handles, its messages, and the message attribute that asks for one.

    SendMessage, SendMessageBatch    a message whose attribute Quaymaster.Completes is a receipt handle is sent only
                                     together with the deletion of the message that the handle is of
    CompleteMessages                 several handles, messages to several queues

The attribute is not stored with the message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from quaymaster.core.values.errors import CallerError, InvalidParameterValue
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.protocol.actions import message_rules
from quaymaster.protocol.actions.completion_shapes import (
    CompleteMessagesRequest,
    CompleteMessagesRequestEntry,
)
from quaymaster.protocol.actions.message_rules import AnySend, CheckedMessage
from quaymaster.protocol.sqs.shapes import SendMessageBatchRequest, SendMessageRequest

COMPLETES: Final = "Quaymaster.Completes"
"""The message attribute whose value is the receipt handle of a message to delete."""
RECEIPT_HANDLES_MAX: Final = 10
MESSAGES_MAX: Final = 100
MESSAGE_BYTES_MAX: Final = 1 << 20
"""So many bytes of bodies and attributes together."""

Sent = TypeVar("Sent", bound=AnySend)


def handle_of(message: AnySend) -> str | None:
    """Return the receipt handle that a message says it completes, None without one.

    Raises InvalidParameterValue where the attribute is not of type String.
    """
    attributes = message.MessageAttributes
    if not attributes or COMPLETES not in attributes:
        return None
    value = attributes[COMPLETES]
    if value.DataType != "String" or not value.StringValue or value.BinaryValue is not None:
        raise InvalidParameterValue(
            f"Message (user) attribute '{COMPLETES}' must be a receipt handle, of type 'String'."
        )
    return value.StringValue


def without_handle(message: Sent) -> Sent:
    """Return a message without the attribute that says what it completes: so it is stored."""
    attributes = {
        name: value for name, value in (message.MessageAttributes or {}).items() if name != COMPLETES
    }
    return msgspec.structs.replace(message, MessageAttributes=attributes or None)


def handles_in(given: Any) -> list[str]:
    """Return the receipt handles that messages of a send complete, each once; malformed ones are left out."""
    match given:
        case SendMessageRequest(MessageAttributes=attributes):
            messages: Sequence[AnySend] = [given] if attributes else ()
        case SendMessageBatchRequest(Entries=entries):
            messages = entries
        case _:
            return []
    handles: dict[str, None] = {}
    for message in messages:
        if message.MessageAttributes:
            value = message.MessageAttributes.get(COMPLETES)
            if value is not None and value.StringValue:
                handles[value.StringValue] = None
    return list(handles)


def check_completion(given: CompleteMessagesRequest) -> None:
    """Raise InvalidParameterValue unless so many messages may be completed, and sent, at once."""
    _check_count("ReceiptHandles", len(given.ReceiptHandles), RECEIPT_HANDLES_MAX)
    _check_count("Messages", len(given.Messages), MESSAGES_MAX)
    if len(set(given.ReceiptHandles)) < len(given.ReceiptHandles):
        raise InvalidParameterValue("ReceiptHandles must name each delivery once.")


def check_output(
    number: int, message: CompleteMessagesRequestEntry, queue: QueueDefinition
) -> CheckedMessage:
    """Return a message that may be sent so. Raises what a SendMessage would, and says which message it is."""
    try:
        if handle_of(message) is not None:
            raise InvalidParameterValue(
                f"ReceiptHandles say what is completed, not the attribute '{COMPLETES}'."
            )
        return message_rules.check_send(message, queue)
    except CallerError as error:
        raise message_rules.telling_which(number, error) from None


def check_size(size_bytes: int) -> None:
    """Raise InvalidParameterValue for more bytes of messages than one completion may send."""
    if size_bytes > MESSAGE_BYTES_MAX:
        raise InvalidParameterValue(
            f"Messages must be at most {MESSAGE_BYTES_MAX} bytes together, not {size_bytes}."
        )


def _check_count(name: str, count: int, count_max: int) -> None:
    if not 1 <= count <= count_max:
        raise InvalidParameterValue(f"{name} must be 1 to {count_max}, not {count}.")


class CompletionId:
    """What tells one completion from others: its receipt handles, and all that it sends."""

    def __init__(self, handles: Sequence[str]) -> None:
        self._handles = "\0".join(handles).encode()
        self._content = hashlib.blake2b(self._handles, digest_size=8, person=b"qm-completion")

    def message_id(self, number: int) -> bytes:
        """Return the id of a message by its index: the same each time that the completion is asked for."""
        data = b"%d\0%b" % (number, self._handles)
        digest = bytearray(hashlib.blake2b(data, digest_size=16, person=b"qm-output-id").digest())
        digest[6] = digest[6] & 0x0F | 0x40
        digest[8] = digest[8] & 0x3F | 0x80
        return bytes(digest)

    def add(self, queue_id: int, message: AnySend, body_md5: bytes, attributes_md5: bytes | None) -> None:
        """Have one more message."""
        fields = (
            str(queue_id),
            body_md5.hex(),
            (attributes_md5 or b"").hex(),
            message.MessageGroupId or "",
            message.MessageDeduplicationId or "",
            "" if message.DelaySeconds is None else str(message.DelaySeconds),
            *(
                f"{name}={value.StringValue}"
                for name, value in sorted((message.MessageSystemAttributes or {}).items())
            ),
        )
        self._content.update(b"\1" + "\0".join(fields).encode())

    def digest(self) -> int:
        """Return a number of 64 bits, never 0."""
        return int.from_bytes(self._content.digest(), "little") or 1

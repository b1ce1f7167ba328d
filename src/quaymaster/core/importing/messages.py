"""A message as another queue service delivers it, and as it is staged here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b, md5
from typing import Any, Final

import msgspec

from quaymaster.core.values.queues.queue_names import GROUP_MARK, is_fifo_name

PART_MESSAGES: Final = 1_000
PART_BYTES: Final = 1_500_000
"""Of bodies and attributes in one StageMessages, which takes 2 MiB; a message has 1 MiB at most."""
IDENTITY_BYTES: Final = 16
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOT_SENT: Final = ("StringListValues", "BinaryListValues")


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    """A delivery. `identity` is the same for each delivery of the message, and of no other message of its service.

    It is so in a dead-letter queue, too: a message that was committed here and not yet deleted there may go there.
    `entry` is the message as StageMessages takes it. `size_bytes` is about what it takes.
    """

    identity: bytes
    message_id: str
    receipt_handle: str
    entry: dict[str, Any]
    size_bytes: int


class MessageIsDamaged(Exception):
    """What came is not what its sum says, or lacks what each message has."""


def read_deliveries(messages: Iterable[Mapping[str, Any]], queue: str) -> list[DeliveredMessage]:
    """Return the messages of a ReceiveMessage's answer that are whole; the others come again.

    Of a FIFO queue those behind one that is not whole come again, too: it may be of their group.
    """
    whole: list[DeliveredMessage] = []
    for message in messages:
        try:
            whole.append(read_delivery(message, queue))
        except MessageIsDamaged:
            if is_fifo_name(queue):
                break
    return whole


def split_batch(messages: Iterable[DeliveredMessage]) -> Iterator[list[DeliveredMessage]]:
    """Yield messages in parts that one request takes, in their order."""
    part: list[DeliveredMessage] = []
    size_bytes = 0
    for message in messages:
        if part and (len(part) >= PART_MESSAGES or size_bytes + message.size_bytes > PART_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(message)
        size_bytes += message.size_bytes
    if part:
        yield part


def read_delivery(message: Mapping[str, Any], queue: str) -> DeliveredMessage:
    """Return a message of a queue, as ReceiveMessage answers it. Raises MessageIsDamaged."""
    is_fifo = is_fifo_name(queue)
    try:
        message_id, handle, body = (message[name] for name in ("MessageId", "ReceiptHandle", "Body"))
        encoded = body.encode()
    except (KeyError, AttributeError, UnicodeEncodeError) as error:
        raise MessageIsDamaged(f"It has no body, id or receipt handle: {error}.") from None
    expected = message.get("MD5OfBody")
    if expected is not None and md5(encoded, usedforsecurity=False).hexdigest() != expected:
        raise MessageIsDamaged(f"The body of the message {message_id} is not what its MD5 says.")
    system = message.get("Attributes") or {}
    entry: dict[str, Any] = {
        "MessageBody": body,
        "OriginMessageId": uuid_of(system.get("OriginMessageId") or message_id),
    }
    size_bytes = len(encoded)
    attributes = {
        name: {key: text for key, text in value.items() if key not in _NOT_SENT}
        for name, value in (message.get("MessageAttributes") or {}).items()
    }
    if attributes:
        entry["MessageAttributes"] = attributes
        size_bytes += sum(
            len(name) + sum(len(text) for text in value.values()) for name, value in attributes.items()
        )
    if "MessageGroupId" in system:
        entry["MessageGroupId"] = system["MessageGroupId"]
    if is_fifo:
        if "MessageDeduplicationId" in system:
            entry["MessageDeduplicationId"] = system["MessageDeduplicationId"]
    else:
        entry["DelaySeconds"] = 0  # it has waited already
    if "AWSTraceHeader" in system:
        value = {"DataType": "String", "StringValue": system["AWSTraceHeader"]}
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": value}
    return DeliveredMessage(
        _identity_of(message_id, queue, system.get("DeadLetterQueueSourceArn", "")),
        message_id,
        handle,
        entry,
        size_bytes,
    )


def _identity_of(message_id: str, queue: str, died_in: str) -> bytes:
    # What is no UUID may be the id of other messages, in other queues.
    of_queue = "" if _UUID.fullmatch(message_id) is not None else queue
    # Copies of one message of a log, which died in several groups, have one id.
    of_group = died_in if GROUP_MARK in died_in else ""
    return blake2b(f"{message_id}\0{of_queue}\0{of_group}".encode(), digest_size=IDENTITY_BYTES).digest()


def uuid_of(message_id: str) -> str:
    """Return a message id as a UUID: itself if it is one, else one that is made of it."""
    if _UUID.fullmatch(message_id) is not None:
        return message_id
    digits = blake2b(message_id.encode(), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

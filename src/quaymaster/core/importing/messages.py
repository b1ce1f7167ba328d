"""A message as another queue service delivers it, and as it is staged here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b, md5
from typing import Any, Final

import msgspec

IDENTITY_BYTES: Final = 16
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOT_SENT: Final = ("StringListValues", "BinaryListValues")


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    """A delivery. `identity` is the same for each delivery of the message, and of no other of its queue.

    `entry` is the message as StageMessages takes it. `size_bytes` is about what it takes.
    """

    identity: bytes
    message_id: str
    receipt_handle: str
    entry: dict[str, Any]
    size_bytes: int


class MessageIsDamaged(Exception):
    """What came is not what its sum says, or lacks what each message has."""


def read_delivery(message: Mapping[str, Any], *, is_fifo: bool) -> DeliveredMessage:
    """Return a message of a ReceiveMessage's answer. Raises MessageIsDamaged."""
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
    # Copies of one message of a log, which died in several groups, have one id, and other sources.
    identified = f"{message_id}\0{system.get('DeadLetterQueueSourceArn', '')}"
    identity = blake2b(identified.encode(), digest_size=IDENTITY_BYTES).digest()
    return DeliveredMessage(identity, message_id, handle, entry, size_bytes)


def uuid_of(message_id: str) -> str:
    """Return a message id as a UUID: itself if it is one, else one that is made of it."""
    if _UUID.fullmatch(message_id) is not None:
        return message_id
    digits = blake2b(message_id.encode(), digest_size=16).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

"""The MD5 sums that SQS returns, so that a client sees whether its message arrived as it was sent.

Attributes are summed in the order of their names, each as

    | 4 | name | 4 | data type | 1 | 4 | value |          lengths big-endian; before the value 1: text, 2:
    binary

Source: Amazon SQS Developer Guide, "Calculating the MD5 message digest for message attributes".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from struct import Struct

from quaymaster.protocol.sqs.shapes import MessageAttributeValue

_LENGTH = Struct(">I").pack
_EMPTY_MD5 = hashlib.md5(usedforsecurity=False)
_STRING = b"\x01"
_BINARY = b"\x02"


def md5_digest(data: bytes) -> bytes:
    """Return the MD5 of a body's UTF-8 bytes."""
    summing = _EMPTY_MD5.copy()  # cheaper than a new one, which looks its algorithm up
    summing.update(data)
    return summing.digest()


def attributes_md5(attributes: Mapping[str, MessageAttributeValue]) -> bytes:
    """Return the MD5 of message (or message system) attributes. They are validated and not empty."""
    parts: list[bytes] = []
    add = parts.append
    for name in sorted(attributes) if len(attributes) > 1 else attributes:
        attribute = attributes[name]
        name_bytes = name.encode()
        type_bytes = attribute.DataType.encode()
        binary = attribute.BinaryValue
        if binary is not None:
            transport, value = _BINARY, binary
        else:
            assert attribute.StringValue is not None, "a validated attribute has a value"
            transport, value = _STRING, attribute.StringValue.encode()
        add(_LENGTH(len(name_bytes)))
        add(name_bytes)
        add(_LENGTH(len(type_bytes)))
        add(type_bytes)
        add(transport)
        add(_LENGTH(len(value)))
        add(value)
    return md5_digest(b"".join(parts))

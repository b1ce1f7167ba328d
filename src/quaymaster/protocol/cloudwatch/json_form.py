"""CloudWatch's AWS JSON 1.0: `X-Amz-Target: GraniteServiceVersion20100801.<Operation>`, an object in, an object out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.cloudwatch.kinds import read_input
from quaymaster.protocol.cloudwatch.operations import Operation

TARGET_PREFIX: Final = b"GraniteServiceVersion20100801."

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode_request(operation: Operation, body: bytes) -> dict[str, Any]:
    """Return an operation's input. Raises as `read_input`, and MalformedInput for what is no JSON."""
    try:
        value = _decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedInput("The request body is not valid JSON.") from error
    return read_input(operation.input, value)


def encode_response(operation: Operation, output: Mapping[str, Any]) -> bytes:
    """Return the body of a successful response; an operation without output answers with an empty one."""
    return b"" if operation.output is None else _encode(output)

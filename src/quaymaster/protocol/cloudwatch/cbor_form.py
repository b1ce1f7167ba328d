"""CloudWatch's Smithy RPC v2 CBOR: a map in, a map out; times are numbers with tag 1.

    POST /service/GraniteServiceVersion20100801/operation/<Operation>      smithy-protocol: rpc-v2-cbor

Every other tag is refused: decoders of such tags cost more than a request may, or run code of libraries on them.

Source: Smithy 2.0 specification, "Smithy RPC v2 CBOR protocol"; RFC 8949.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import cbor2

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.cloudwatch.kinds import (
    VALUES_MAX,
    Kind,
    ListOf,
    MapOf,
    Real,
    Structure,
    Time,
    read_input,
)
from quaymaster.protocol.cloudwatch.operations import Operation

PATH_PREFIX: Final = b"/service/GraniteServiceVersion20100801/operation/"
PROTOCOL: Final = b"rpc-v2-cbor"
DEPTH_MAX: Final = 32

ITEMS_MAX: Final = 3 * VALUES_MAX
"""Names of members, tags and ends are items as well."""
_SIZE_BITS: Final = 0b11111
_SIZE_FOLLOWS: Final = 24
_SIZES: Final = 4
_STRINGS: Final = (2, 3)
_TIME_TAG: Final = 1
# Fractions with large exponents, expressions and references are among these: cbor2 knows them, unless they are refused.
_OTHER_TAGS: Final = (
    *(0, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000, 55_799),
)


def decode_request(operation: Operation, body: bytes) -> dict[str, Any]:
    """Return an operation's input. Raises as `read_input`, and MalformedInput for what is no CBOR."""
    _check_items(body)
    try:
        value = (
            cbor2.loads(
                body,
                semantic_decoders=_DECODERS,
                tag_hook=_refuse,
                max_depth=DEPTH_MAX,
                allow_duplicate_keys=False,
            )
            if body
            else {}
        )
    except cbor2.CBORDecodeError as error:
        raise MalformedInput("The request body is not valid CBOR.") from error
    return read_input(operation.input, value)


def encode_response(operation: Operation, output: Mapping[str, Any]) -> bytes:
    """Return the body of a successful response; an operation without output answers with an empty one."""
    if operation.output is None:
        return b""
    return encode_map(_tagged(operation.output, output))


def encode_map(members: Mapping[str, Any]) -> bytes:
    """Return a map of text, numbers, maps and lists as it is."""
    return cbor2.dumps(members)


def _tagged(kind: Kind, value: Any) -> Any:
    """Return a value of an output with its times tagged; members that its structure does not have are left out."""
    match kind:
        case Structure(members):
            return {name: _tagged(members[name], given) for name, given in value.items() if name in members}
        case ListOf(item):
            return [_tagged(item, each) for each in value]
        case MapOf(item):
            return {name: _tagged(item, each) for name, each in value.items()}
        case Time():
            return cbor2.CBORTag(_TIME_TAG, float(value))
        case Real():
            return float(value)
        case _:
            return value


def _check_items(body: bytes) -> None:
    """Raise MalformedInput for more items than an input can have; whether they are well formed is not looked at.

    Only their heads are read, so this costs less than what it keeps from being made: half a million empty lists.
    """
    items = position = 0
    while position < len(body):
        items += 1
        if items > ITEMS_MAX:
            raise MalformedInput(f"A request cannot have more than {VALUES_MAX} values.")
        kind, size = body[position] >> 5, body[position] & _SIZE_BITS
        position += 1
        if _SIZE_FOLLOWS <= size < _SIZE_FOLLOWS + _SIZES:
            width = 1 << size - _SIZE_FOLLOWS
            size = int.from_bytes(body[position : position + width], "big")
            position += width
        elif size == _SIZE_BITS:  # of unknown length: its pieces, and its end, are items of their own
            size = 0
        if kind in _STRINGS:
            position += size


def _time(value: Any, _: bool) -> Any:
    return value


def _refuse(*_: Any) -> NoReturn:
    raise ValueError("CloudWatch's inputs have no such tag")


_DECODERS: Final = {_TIME_TAG: _time, **dict.fromkeys(_OTHER_TAGS, _refuse)}

"""AWS JSON 1.0: `X-Amz-Target: AmazonSQS.<Action>`, a JSON object in, a JSON object out.

The actions that SQS does not have are targets of `Quaymaster`; those of STS have no form in JSON, those of
CloudWatch one of their own (`monitoring`).

What real clients send decodes in one call to a typed decoder. Only when that refuses, the body is read again
as plain JSON and walked member by member: it then either turns out acceptable after all (a null is an absent
member, 10.0 is an integer) or gives the error the service gives, naming the member.
"""

from __future__ import annotations

import binascii
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.actions.table import ACTIONS, Action, Service
from quaymaster.protocol.sqs.shapes import Shape, missing_member

TARGET_PREFIXES: dict[Service, bytes] = {"sqs": b"AmazonSQS.", "quaymaster": b"Quaymaster."}

_ACTION_BY_TARGET: dict[bytes, Action] = {
    TARGET_PREFIXES[action.service] + action.name.encode(): action
    for action in ACTIONS.values()
    if action.service in TARGET_PREFIXES
}
_DECODE: dict[str, Callable[[bytes], Shape]] = {
    action.name: msgspec.json.Decoder(action.input).decode for action in _ACTION_BY_TARGET.values()
}
_ENCODE = msgspec.json.Encoder().encode
_DECODE_ANYTHING = msgspec.json.Decoder().decode
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def named_action(target: bytes) -> Action | None:
    """Return the action that a value of `X-Amz-Target` names, None where there is no such action."""
    return _ACTION_BY_TARGET.get(target)


def decode_request(action: Action, body: bytes) -> Shape:
    """Return the input of `action`. Unknown members are ignored.

    Raises MalformedInput, MissingParameter, or what the service says when a queue's URL or name is absent.
    """
    try:
        return _DECODE[action.name](body)
    except _NOT_JSON:
        return _decode_by_member(action, body)


def encode_response(output: Shape | None) -> bytes:
    """Return the body of a successful response; an action without output answers with an empty one."""
    return b"" if output is None else _ENCODE(output)


def _decode_by_member(action: Action, body: bytes) -> Shape:
    try:
        value = _DECODE_ANYTHING(body) if body.strip() else {}
    except _NOT_JSON as error:
        raise MalformedInput("The request body is not valid JSON.") from error
    if not isinstance(value, dict):
        raise MalformedInput("The request body must be a JSON object.")
    return _structure(action.input, value, "")


def _structure(shape: type[Shape], value: dict[str, Any], path: str) -> Shape:
    members: dict[str, Any] = {}
    for info in msgspec.structs.fields(shape):
        given = value.get(info.name)
        if given is not None:
            members[info.name] = _convert(info.type, given, info.name)
        elif info.required:
            members[info.name] = missing_member(info, path)
    return shape(**members)


def _convert(annotation: Any, value: Any, path: str) -> Any:
    """Return `value` as the type `annotation` says, or raise what is wrong with it. `value` is not None."""
    if isinstance(annotation, types.UnionType):
        # Every union in the shapes is `something | None`.
        annotation = annotation.__args__[0]
    origin = typing.get_origin(annotation)
    if origin is list:
        if not isinstance(value, list):
            raise _unexpected(value, "a List")
        (item_type,) = annotation.__args__
        name = item_type.__name__
        return [
            _convert(item_type, item, f"{name}.{n}") for n, item in enumerate(value, 1) if item is not None
        ]
    if origin is dict:
        if not isinstance(value, dict):
            raise _unexpected(value, "a Map")
        item_type = annotation.__args__[1]
        return {k: _convert(item_type, item, f"{path}.{k}") for k, item in value.items() if item is not None}
    if annotation is str:
        if not isinstance(value, str):
            raise _unexpected(value, "a String")
        return value
    if annotation is int:
        return _integer(value)
    if annotation is bytes:
        return _blob(value)
    if not isinstance(value, dict):
        raise _unexpected(value, "a Structure")
    return _structure(annotation, value, path)


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _unexpected(value, "an Integer")


def _blob(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _unexpected(value, "a Blob")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise MalformedInput("A binary value is not valid base64.") from error


def _unexpected(value: Any, wanted: str) -> MalformedInput:
    if isinstance(value, dict):
        return MalformedInput("Start of structure or map found where not expected.")
    if isinstance(value, list):
        return MalformedInput("Start of list found where not expected.")
    if isinstance(value, bool):
        found = "TRUE_VALUE" if value else "FALSE_VALUE"
    elif isinstance(value, str):
        found = "STRING_VALUE"
    else:
        found = "DECIMAL_VALUE" if isinstance(value, float) else "NUMBER_VALUE"
    return MalformedInput(f"{found} can not be converted to {wanted}")

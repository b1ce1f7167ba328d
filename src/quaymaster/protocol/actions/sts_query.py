"""STS's form of AWS Query: form parameters in, by POST or GET at `/`; XML in STS's namespace out.

    Action=AssumeRole&Version=2011-06-15&RoleArn=...        parameters
    X-Amz-Signature=...                                     of a presigned URL: not STS's
    Tags.member.1.Key=...                                   known to STS, not here: refused, never ignored

Source: AWS STS API Reference, "Making Query requests"; the public STS service model, 2011-06-15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import InvalidAction, UnknownOperation
from quaymaster.core.values.sts_errors import ValidationError
from quaymaster.protocol.actions.table import STS_ACTIONS, Action
from quaymaster.protocol.sqs.response import STS_XML_NAMESPACE
from quaymaster.protocol.sqs.shapes import Shape
from quaymaster.protocol.sqs.xml_text import escape_anything

VERSION: Final = "2011-06-15"
_COMMON: Final = frozenset({"Action", "Version"})
_OF_SIGNATURE: Final = "X-Amz-"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
_SHOWN_CHARS_MAX: Final = 64


def action_of(parameters: Mapping[str, str]) -> Action:
    """Return the action that `parameters` name. Raises UnknownOperation (none) or InvalidAction."""
    name = parameters.get("Action")
    if not name:
        raise UnknownOperation
    action = STS_ACTIONS.get(name)
    if action is None or parameters.get("Version") != VERSION:
        raise InvalidAction(name)
    return action


def decode_request(action: Action, parameters: Mapping[str, str]) -> Shape:
    """Return the input of an action; ValidationError for a parameter that is not among its own."""
    members = {info.name: info for info in msgspec.structs.fields(action.input)}
    given: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in _COMMON or name.startswith(_OF_SIGNATURE):
            continue
        if name not in members:
            raise ValidationError(
                f"The parameter {name[:_SHOWN_CHARS_MAX]} is not supported by {action.name}."
            )
        is_number = members[name].type not in (str, str | None)
        given[name] = _integer(name, value) if is_number else value
    return action.input(**given)


def _integer(name: str, value: str) -> int:
    if _INTEGER.fullmatch(value) is None:
        raise ValidationError.of(name, value[:_SHOWN_CHARS_MAX], "be a number")
    return int(value)


def encode_response(action: Action, output: Shape, request_id: str) -> bytes:
    """Return the body of a successful response."""
    name = action.name
    return (
        f'<{name}Response xmlns="{STS_XML_NAMESPACE}"><{name}Result>{_members(output)}</{name}Result>'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{name}Response>"
    ).encode()


def _members(shape: Shape) -> str:
    parts = []
    for name in shape.__struct_fields__:
        value = getattr(shape, name)
        if value is not None:
            inner = _members(value) if isinstance(value, Shape) else escape_anything(str(value))
            parts.append(f"<{name}>{inner}</{name}>")
    return "".join(parts)

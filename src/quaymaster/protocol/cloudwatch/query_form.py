"""CloudWatch's form of AWS Query: form parameters in, XML out.

    Action=DescribeAlarms&Version=2010-08-01&AlarmNames.member.1=orders-old
    MetricData.member.2.Dimensions.member.1.Name=QueueName
    Dimensions=                                                                  an empty list

Source: Amazon CloudWatch API Reference, "Making API requests"; the public service model, 2010-08-01.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.cloudwatch.kinds import (
    Flag,
    Kind,
    ListOf,
    MapOf,
    Real,
    Structure,
    Time,
    Whole,
    read_input,
)
from quaymaster.protocol.cloudwatch.operations import Operation
from quaymaster.protocol.cloudwatch.times import parse_time, render_time
from quaymaster.protocol.sqs.xml_text import escape_anything

VERSION: Final = "2010-08-01"
XML_NAMESPACE: Final = "http://monitoring.amazonaws.com/doc/2010-08-01/"
SEGMENTS_MAX: Final = 16
"""Of a parameter's name. The longest have 10."""
_MEMBER: Final = "member"
_PLACE: Final = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_REAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_FLAGS: Final = {"true": True, "false": False}

Tree = dict[str, Any]
"""Parameters by the first segment of their names: text, or a tree of what follows."""


def decode_request(operation: Operation, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return an operation's input. Raises as `read_input`, and MalformedInput for what is no number, time or flag."""
    tree: Tree = {}
    for name, text in parameters.items():
        segments = name.split(".", SEGMENTS_MAX)
        if segments[0] in operation.input.members and len(segments) <= SEGMENTS_MAX:
            _plant(tree, segments, text)
    return read_input(operation.input, _typed(operation.input, tree))


def encode_response(operation: Operation, output: Mapping[str, Any], request_id: str) -> bytes:
    """Return the body of a successful response."""
    name, result = operation.name, ""
    if operation.output is not None:
        result = f"<{name}Result>{_rendered(operation.output, output)}</{name}Result>"
    return (
        f'<{name}Response xmlns="{XML_NAMESPACE}">{result}<ResponseMetadata><RequestId>{request_id}</RequestId>'
        f"</ResponseMetadata></{name}Response>"
    ).encode()


def _plant(tree: Tree, segments: list[str], text: str) -> None:
    for segment in segments[:-1]:
        below = tree.setdefault(segment, {})
        if not isinstance(below, dict):
            raise MalformedInput(f"The parameter {segment} is both a value and a structure.")
        tree = below
    if isinstance(tree.get(segments[-1]), dict):
        raise MalformedInput(f"The parameter {segments[-1]} is both a value and a structure.")
    tree[segments[-1]] = text


def _typed(kind: Kind, given: Tree | str) -> Any:
    """Return what a tree says as a value of its kind; what cannot be one as it is, for `read_input` to refuse."""
    match kind, given:
        case Structure(members), dict():
            return {name: _typed(members[name], below) for name, below in given.items() if name in members}
        case ListOf(item), dict():
            places = given.get(_MEMBER)
            if not isinstance(places, dict) or not all(map(_PLACE.fullmatch, places)):
                return given
            return [_typed(item, places[place]) for place in sorted(places, key=int)]
        case ListOf(), "":
            return []
        case Whole(), str() if _WHOLE.fullmatch(given):
            return int(given)
        case Real(), str() if _REAL.fullmatch(given):
            return float(given)
        case Time(), str():
            return parse_time(given)
        case Flag(), str():
            return _FLAGS.get(given, given)
        case _:
            return given


def _rendered(kind: Kind, value: Any) -> str:
    match kind:
        case Structure(members):
            return "".join(
                f"<{name}>{_rendered(below, value[name])}</{name}>"
                for name, below in members.items()
                if value.get(name) is not None
            )
        case ListOf(item):
            return "".join(f"<{_MEMBER}>{_rendered(item, each)}</{_MEMBER}>" for each in value)
        case MapOf(item):
            return "".join(
                f"<entry><key>{escape_anything(name)}</key><value>{_rendered(item, each)}</value></entry>"
                for name, each in value.items()
            )
        case Time():
            return render_time(value)
        case Flag():
            return "true" if value else "false"
        case _:
            return escape_anything(str(value))

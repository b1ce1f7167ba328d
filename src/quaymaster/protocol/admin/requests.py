"""Requests of the admin API as values and as HTTP: put together by a client, taken apart by a server.

    members ──prepare──▶ method, path?query, JSON body ──▶ members_of, read_members ──▶ the operation's request, checked

Members that the path names are there; the others of a POST are its body, those of a GET or DELETE the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from msgspec import inspect

from quaymaster.core.values.errors import CallerError, InvalidParameterValue, MalformedInput, MissingParameter
from quaymaster.protocol.admin.members import AdminRequest
from quaymaster.protocol.admin.operation import API, AdminOperation

NUMBER_CHARS_MAX: Final = 20
"""More than any number of a query has; int() refuses thousands with an error that is no answer."""
_PLACE: Final = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_WORDS: Final = {
    "`str`": "text",
    "`int`": "a whole number",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "an object",
    "Expected ": "Must be ",
}


class BadMember(Exception):
    """A request lacks a member, or has one that it cannot have. `field` names it; empty where it is none alone."""

    def __init__(self, error: CallerError, field: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.field = field


class PreparedRequest(NamedTuple):
    """A request of a client, to be signed and sent. `target` is path and query."""

    method: str
    target: str
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Headers that say what its body is."""
        return {"content-type": "application/json"} if self.body else {}


def prepare(operation: AdminOperation, members: Mapping[str, Any]) -> PreparedRequest:
    """Return the request of an operation with these members; those that are None are left out."""
    given = {name: value for name, value in members.items() if value is not None}
    parts = [
        quote(str(given.pop(part[1:-1])), safe="") if part.startswith("{") else part
        for part in operation.parts
    ]
    path = API + "/".join(parts)
    if operation.method == "POST":
        return PreparedRequest("POST", path, json.dumps(given).encode() if given else b"")
    texts = {name: _text(value) for name, value in given.items()}
    return PreparedRequest(operation.method, f"{path}?{urlencode(texts)}" if texts else path, b"")


def members_of(operation: AdminOperation, query: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the members of a request besides those in its path, as they came.

    Raises:
        BadMember: they cannot be read.
    """
    if operation.method == "POST":
        if query:
            raise BadMember(InvalidParameterValue("A POST has its members in its body, not in the query."))
        return _object(body)
    kinds = _kinds(operation.request)
    return {name: _value(kinds.get(name), text) for name, text in query.items()}


def read_members(
    operation: AdminOperation, in_path: Mapping[str, str], members: Mapping[str, Any]
) -> AdminRequest:
    """Return the request of an operation with these members.

    Raises:
        BadMember: it is not what the operation takes.
    """
    for name in in_path:
        if name in members:
            raise BadMember(InvalidParameterValue(f"The path says what {name} is."), name)
    try:
        return msgspec.convert({**members, **in_path}, operation.request)
    except msgspec.ValidationError as error:
        raise _bad_member(str(error)) from None


def _object(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadMember(MalformedInput("The request body is not valid JSON.")) from None
    if not isinstance(members, dict):
        raise BadMember(MalformedInput("The request body must be a JSON object."))
    return members


def _bad_member(message: str) -> BadMember:
    """Return what is said of a request that does not convert. Values are not repeated: some are secret."""
    found = _PLACE.fullmatch(message)
    assert found is not None, "each message matches"
    why, place = found[1], found[2] or ""
    lacking = _FIELD.fullmatch(why)
    if lacking is not None:
        field = f"{place}.{lacking[2]}".lstrip(".")
        if lacking[1] == "missing required":
            return BadMember(MissingParameter(field), field)
        return BadMember(InvalidParameterValue(f"There is no parameter {field} here."), field)
    for word, plain in _WORDS.items():
        why = why.replace(word, plain)
    return BadMember(
        InvalidParameterValue(f"The value for parameter {place} is invalid. Reason: {why}."), place
    )


@cache
def _kinds(request: type[AdminRequest]) -> dict[str, type]:
    """Return what the members of a request are that are no texts: numbers, or true and false."""
    described = inspect.type_info(request)
    assert isinstance(described, inspect.StructType), "requests are structs"
    return {field.encode_name: _kind(field.type) for field in described.fields}


def _kind(described: inspect.Type) -> type:
    if isinstance(described, inspect.Metadata):
        described = described.type
    kinds = [_kind(each) for each in described.types] if isinstance(described, inspect.UnionType) else []
    if int in kinds or isinstance(described, inspect.IntType):
        return int
    return bool if isinstance(described, inspect.BoolType) else str


def _value(kind: type | None, text: str) -> Any:
    """Return the value that a text in a query means; the text itself where it means none of its kind."""
    if kind is int and text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX:
        return int(text)
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    return text


def _text(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)

"""AWS Query: form parameters in (a POST body or a URL's query), XML out, or the service's older JSON.

    Action=SendMessage&MessageBody=hi&MessageAttribute.1.Name=a&MessageAttribute.1.Value.StringValue=b

Names are paths. They are gathered in a tree, and the tree is read by the shape of the action's input; a list
or map is a member with numbered children (any numbers, in their order), a scalar a leaf. What no shape asks
for is ignored.

Source: Amazon SQS API Reference of the Query protocol, and the public service model of its time.
"""

from __future__ import annotations

import binascii
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quaymaster.core.values.errors import InvalidAction, MalformedInput, MissingParameter, UnknownOperation
from quaymaster.protocol.actions.table import QUERY_ACTIONS, Action
from quaymaster.protocol.sqs.response import XML_NAMESPACE, WireForm
from quaymaster.protocol.sqs.shapes import Shape, missing_member
from quaymaster.protocol.sqs.xml_text import escape

_DEPTH_MAX = 8
_INDEX_DIGITS_MAX = 9

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)

# What a member is called in the Query form where that is not its own name. Lists and maps are in the
# singular; a batch's entries are named after their structure.
_WIRE_NAMES = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "Attributes": "Attribute",
    "BinaryListValues": "BinaryListValue",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "ReceiptHandles": "ReceiptHandle",
    "Results": "ListMessageMoveTasksResultEntry",
    "StringListValues": "StringListValue",
    "TagKeys": "TagKey",
    "Tags": "Tag",
    "queueUrls": "QueueUrl",
    "tags": "Tag",
}
_TAG_MAPS = ("Tags", "tags")


# Reading a request


def action_of(parameters: Mapping[str, str]) -> Action:
    """Return the action that `parameters` name. Raises UnknownOperation (none) or InvalidAction."""
    name = parameters.get("Action")
    if not name:
        raise UnknownOperation
    action = QUERY_ACTIONS.get(name)
    if action is None:
        raise InvalidAction(name)
    return action


def decode_request(action: Action, parameters: Mapping[str, str], path_queue_url: str | None = None) -> Shape:
    """Return the input of `action`. `path_queue_url` is the queue's URL when the request was sent to it.

    A `QueueUrl` parameter wins over the path. Raises MalformedInput, MissingParameter, or what the service
    says when a queue's URL or name is absent.
    """
    tree = _tree(parameters)
    if path_queue_url is not None and action.has_queue_url:
        tree.setdefault("QueueUrl", path_queue_url)
    return _read_structure(action.input, tree, "")


def _tree(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return nested dicts by the dots of the names.

    Where a name is both a leaf and a path, the leaf is at "".
    """
    root: dict[str, Any] = {}
    for name, value in parameters.items():
        if "." not in name:
            _put(root, name, value)
            continue
        *path, last = name.split(".", _DEPTH_MAX)
        node = root
        for step in path:
            child = node.get(step)
            if not isinstance(child, dict):
                child = node[step] = {} if child is None else {"": child}
            node = child
        _put(node, last, value)
    return root


def _put(node: dict[str, Any], name: str, value: str) -> None:
    if isinstance(node.get(name), dict):
        node[name].setdefault("", value)
    else:
        node.setdefault(name, value)


def _read_structure(shape: type[Shape], tree: dict[str, Any], path: str) -> Shape:
    members: dict[str, Any] = {}
    for info, wire_name, kind, item in _layout(shape):
        node = tree.get(wire_name)
        if node is None and wire_name != info.name:
            node = tree.get(info.name)
        value = (
            None if node is None else _read(kind, item, node, f"{path}.{wire_name}" if path else wire_name)
        )
        if value is not None:
            members[info.name] = value
        elif info.required:
            members[info.name] = missing_member(info, path)
    return shape(**members)


def _read(kind: str, item: Any, node: Any, path: str) -> Any:
    """Return the value at `node`, or None when there is none that this kind of member can have."""
    if kind == "list":
        values = [_read_item(item, child, f"{path}.{index}") for index, child in _numbered(node)]
        return [value for value in values if value is not None] or None
    if kind == "map":
        return _read_map(item, node, path) or None
    if kind == "structure":
        return _read_structure(item, node, path) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node = node.get("")
        if not isinstance(node, str):
            return None
    return _scalar(kind, node)


def _read_item(item: Any, child: Any, path: str) -> Any:
    kind, inner = _kind(item)
    return _read(kind, inner, child, path)


def _read_map(item: Any, node: Any, path: str) -> dict[str, Any]:
    # The oldest clients send one pair without a number.
    pairs = [(0, node)] if isinstance(node, dict) and "Name" in node else _numbered(node)
    values: dict[str, Any] = {}
    for index, child in pairs:
        if not isinstance(child, dict):
            continue
        name = _leaf(child, "Name", "Key", "key")
        if name is None:
            raise MissingParameter(f"{path}.{index}.Name")
        if item is str:
            value = _leaf(child, "Value", "value")
            if value is None:
                raise MissingParameter(f"{path}.{index}.Value")
            values[name] = value
        else:
            inner = child.get("Value")
            values[name] = _read_structure(item, inner if isinstance(inner, dict) else {}, path)
    return values


def _leaf(node: dict[str, Any], *names: str) -> str | None:
    for name in names:
        value = node.get(name)
        if isinstance(value, str):
            return value
    return None


def _numbered(node: Any) -> list[tuple[int, Any]]:
    """Return the numbered children of a list or map, in the order of their numbers, which may have gaps."""
    if isinstance(node, str):
        return [(1, node)] if node else []  # botocore sends an empty list as a parameter without a value
    for wrapper in ("member", "entry"):
        if isinstance(node.get(wrapper), dict):
            node = node[wrapper]
            break
    numbered = [
        (int(name), child)
        for name, child in node.items()
        if len(name) <= _INDEX_DIGITS_MAX and name.isascii() and name.isdigit()
    ]
    numbered.sort(key=lambda pair: pair[0])
    return numbered


def _scalar(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if not text:
        return None
    if kind == "integer":
        if _INTEGER.fullmatch(text) is None:
            raise MalformedInput("STRING_VALUE can not be converted to an Integer")
        return int(text)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise MalformedInput("A binary value is not valid base64.") from error


def _kind(annotation: Any) -> tuple[str, Any]:
    """Return what a type is to the Query form, and what its items are (for a structure: itself)."""
    if isinstance(annotation, types.UnionType):
        annotation = annotation.__args__[0]
    origin = typing.get_origin(annotation)
    if origin is list:
        return "list", annotation.__args__[0]
    if origin is dict:
        return "map", annotation.__args__[1]
    if annotation is str:
        return "string", None
    if annotation is bytes:
        return "blob", None
    if annotation is int:
        return "integer", None
    if annotation is bool:
        return "boolean", None
    return "structure", annotation


_Layout = list[tuple[msgspec.structs.FieldInfo, str, str, Any]]
_LAYOUTS: dict[type[Shape], _Layout] = {}


def _layout(shape: type[Shape]) -> _Layout:
    """Return, for each member of `shape`: itself, its name in the Query form, its kind, its items' type."""
    layout = _LAYOUTS.get(shape)
    if layout is None:
        layout = _LAYOUTS[shape] = []
        for info in msgspec.structs.fields(shape):
            kind, item = _kind(info.type)
            if kind == "list" and isinstance(item, type) and issubclass(item, Shape):
                wire_name = item.__name__
            else:
                wire_name = _WIRE_NAMES.get(info.name, info.name)
            layout.append((info, wire_name, kind, item))
    return layout


# Rendering a response


def encode_response(action: Action, output: Shape | None, request_id: str, form: WireForm) -> bytes:
    """Return the body of a successful response in one of the two Query forms.

    Texts hold only XML characters.
    """
    if form is WireForm.QUERY_JSON:
        result = {} if output is None else {f"{action.name}Result": _plain(output)}
        envelope = {**result, "ResponseMetadata": {"RequestId": request_id}}
        return msgspec.json.encode({f"{action.name}Response": envelope})
    parts = [f'<?xml version="1.0"?><{action.name}Response xmlns="{XML_NAMESPACE}">']
    if output is not None:
        start = len(parts)
        _RENDERERS[type(output)](output, parts.append)
        if len(parts) == start:
            parts.append(f"<{action.name}Result/>")
        else:
            parts.insert(start, f"<{action.name}Result>")
            parts.append(f"</{action.name}Result>")
    parts.append(
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action.name}Response>"
    )
    return "".join(parts).encode()


_Write = Callable[[str], object]
_Renderer = Callable[[Any, _Write], None]
_RENDERERS: dict[type[Shape], _Renderer] = {}


def _render_text(value: str, write: _Write) -> None:
    write(escape(value))


def _render_integer(value: int, write: _Write) -> None:
    write(str(value))


def _render_boolean(value: bool, write: _Write) -> None:
    write("true" if value else "false")


def _render_blob(value: bytes, write: _Write) -> None:
    write(binascii.b2a_base64(value, newline=False).decode())


_SCALAR_RENDERERS: dict[str, _Renderer] = {
    "string": _render_text,
    "integer": _render_integer,
    "boolean": _render_boolean,
    "blob": _render_blob,
}


def _renderer(shape: type[Shape]) -> _Renderer:
    """Return the function that writes the members of `shape`, absent ones left out."""
    members = [
        (info.name, _member_renderer(info, wire, kind, item)) for info, wire, kind, item in _layout(shape)
    ]

    def render(value: Any, write: _Write) -> None:
        for name, render_member in members:
            member = getattr(value, name)
            if member is not None:
                render_member(member, write)

    _RENDERERS[shape] = render
    return render


def _member_renderer(info: msgspec.structs.FieldInfo, wire: str, kind: str, item: Any) -> _Renderer:
    before, after = f"<{wire}>", f"</{wire}>"
    if kind == "list":
        render_item = _value_renderer(item)

        def render_list(values: list[Any], write: _Write) -> None:
            for value in values:
                write(before)
                render_item(value, write)
                write(after)

        return render_list
    if kind == "map":
        return _map_renderer(info, before, after, item)
    render_value = _SCALAR_RENDERERS[kind]

    def render_scalar(value: Any, write: _Write) -> None:
        write(before)
        render_value(value, write)
        write(after)

    return render_scalar


def _map_renderer(info: msgspec.structs.FieldInfo, before: str, after: str, item: Any) -> _Renderer:
    name_tag = "Key" if info.name in _TAG_MAPS else "Name"
    render_item = _value_renderer(item)
    between = f"</{name_tag}><Value>"

    def render_map(values: dict[str, Any], write: _Write) -> None:
        for name, value in values.items():
            write(f"{before}<{name_tag}>{escape(name)}{between}")
            render_item(value, write)
            write(f"</Value>{after}")

    return render_map


def _value_renderer(item: Any) -> _Renderer:
    kind, inner = _kind(item)
    if kind == "structure":
        return _RENDERERS.get(inner) or _renderer(inner)
    return _SCALAR_RENDERERS[kind]


for _action in QUERY_ACTIONS.values():
    if _action.output is not None:
        _renderer(_action.output)


# The older JSON spells a few members its own way, writes a map as a list of pairs, and shows absent members
# as null.
_OLD_JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


def _plain(value: Any, name_key: str = "Name") -> Any:
    if isinstance(value, Shape):
        return {
            _OLD_JSON_NAMES.get(name, name): _plain(
                getattr(value, name), "Key" if name in _TAG_MAPS else "Name"
            )
            for name in value.__struct_fields__
        }
    if isinstance(value, list):
        return [_plain(item) for item in value] or None
    if isinstance(value, dict):
        return [{name_key: name, "Value": _plain(item)} for name, item in value.items()] or None
    return value

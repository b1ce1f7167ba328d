"""The public service model, and what several tests build from it: oracles and requests made at random."""

from __future__ import annotations

import copy
import functools
import types
import typing
from typing import Any

import botocore.loaders
import botocore.model
import msgspec
from hypothesis import strategies as st

from quaymaster.protocol.sqs.shapes import MessageAttributeValue, Shape

MODEL: dict[str, Any] = botocore.loaders.Loader().load_service_model("sqs", "service-2", "2012-11-05")

# How the Query protocol named things, when the public model still described it. Written down once more here,
# so that the tests don't take the code's word for it.
_MEMBER_NAMES = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
}
_ITEM_NAMES = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}


def json_service() -> botocore.model.ServiceModel:
    """Return the model as clients of today use it."""
    return botocore.model.ServiceModel(MODEL, "sqs")


def query_service() -> botocore.model.ServiceModel:
    """Return the model as clients used it when it described the Query protocol."""
    model = copy.deepcopy(MODEL)
    del (
        model["metadata"]["jsonVersion"],
        model["metadata"]["protocols"],
        model["metadata"]["awsQueryCompatible"],
    )
    model["metadata"] |= {
        "protocol": "query",
        "xmlNamespace": "http://queue.amazonaws.com/doc/2012-11-05/",
    }
    for operation in model["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = operation["output"]["shape"]
    for name, shape in model["shapes"].items():
        for member_name, member in shape.get("members", {}).items():
            if member_name in _MEMBER_NAMES:
                member["locationName"] = _MEMBER_NAMES[member_name]
            if member_name in ("StringListValues", "BinaryListValues"):
                shape["members"][member_name] = {**member, "flattened": True}
        if shape["type"] == "list":
            shape["member"]["locationName"] = _ITEM_NAMES[name]
            shape["flattened"] = True
        if shape["type"] == "map":
            shape["key"]["locationName"] = "Key" if name == "TagMap" else "Name"
            shape["value"]["locationName"] = "Value"
    return botocore.model.ServiceModel(model, "sqs")


# Characters a message may have, which are those of XML 1.0.
xml_text = st.text(
    st.characters(codec="utf-8", exclude_characters="\ufffe\uffff").filter(
        lambda c: c >= " " or c in "\t\n\r"
    ),
    max_size=12,
)
any_text = st.text(st.characters(codec="utf-8"), max_size=12)


@functools.cache
def shapes(shape: type[Shape], text: st.SearchStrategy[str] = any_text) -> st.SearchStrategy[Any]:
    """Return values of `shape`.

    Lists, maps and binary values are never empty: the Query form cannot say that.
    """
    members = {field.name: _values(field.type, text) for field in msgspec.structs.fields(shape)}
    if shape is MessageAttributeValue:
        # Empty is as good as absent here, and would not be sent.
        members["DataType"] = text.filter(bool)
    return st.builds(shape, **members)


def _values(annotation: Any, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if isinstance(annotation, types.UnionType):
        return st.none() | _values(annotation.__args__[0], text)
    origin = typing.get_origin(annotation)
    if origin is list:
        return st.lists(_values(annotation.__args__[0], text), min_size=1, max_size=3)
    if origin is dict:
        return st.dictionaries(text, _values(annotation.__args__[1], text), min_size=1, max_size=3)
    if annotation is str:
        return text
    if annotation is int:
        return st.integers(-(2**53), 2**53)
    if annotation is bool:
        return st.booleans()
    if annotation is bytes:
        return st.binary(min_size=1, max_size=8)
    return shapes(annotation, text)


def as_parameters(value: Any) -> Any:
    """Return a shape as the dict that a client would pass or get: absent members left out."""
    if isinstance(value, Shape):
        members = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: as_parameters(member) for name, member in members if member is not None}
    if isinstance(value, list):
        return [as_parameters(item) for item in value]
    if isinstance(value, dict):
        return {name: as_parameters(item) for name, item in value.items()}
    return value

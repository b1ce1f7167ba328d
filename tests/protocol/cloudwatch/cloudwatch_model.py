"""CloudWatch's public service model, with what is made of it at random: inputs, outputs, requests, answers.

botocore writes and reads them, in each of its protocols; it is taken at its word.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import botocore.loaders
import botocore.model
import botocore.parsers
import botocore.serialize
from botocore.model import ListShape, MapShape, Shape, StructureShape
from hypothesis import strategies as st

MODEL = botocore.model.ServiceModel(
    botocore.loaders.Loader().load_service_model("cloudwatch", "service-2"), "cloudwatch"
)
PROTOCOLS = ("json", "smithy-rpc-v2-cbor", "query")
NOT_HERE = {"CompositeAlarms", "LogAlarms"}
"""Members of outputs: alarms over other alarms, and over logs."""
_CHARS = st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\ufffe\uffff")
_SECONDS_MAX = 4_000_000_000


def serialized(protocol: str, operation: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the request that botocore makes of an operation's input."""
    serializer = botocore.serialize.create_serializer(protocol, include_validation=False)
    request: dict[str, Any] = serializer.serialize_to_request(given, MODEL.operation_model(operation))
    return request


def parsed(protocol: str, operation: str, body: bytes) -> dict[str, Any]:
    """Return what botocore reads in an answer, without metadata."""
    parser = botocore.parsers.create_parser(protocol)
    shape = MODEL.operation_model(operation).output_shape
    answer = dict(parser.parse({"status_code": 200, "headers": {}, "body": body}, shape))
    answer.pop("ResponseMetadata", None)
    return answer


@functools.cache
def inputs(operation: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return inputs of an operation that keep the model's constraints. Times are of UTC, in whole seconds."""
    shape = MODEL.operation_model(operation).input_shape
    assert shape is not None
    return _structures(shape, frozenset())


@functools.cache
def outputs(operation: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return outputs of an operation, without what is `NOT_HERE`."""
    shape = MODEL.operation_model(operation).output_shape
    return st.just({}) if shape is None else _structures(shape, frozenset(NOT_HERE))


def plain(value: Any) -> Any:
    """Return a value as handlers have it: times are seconds."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case datetime():
            return value.timestamp()
        case _:
            return value


def without_empty(value: Any) -> Any:
    """Return a value without structures that have no members, which Query cannot say."""
    match value:
        case dict():
            kept = {name: without_empty(item) for name, item in value.items()}
            return {name: item for name, item in kept.items() if item != {}}
        case list():
            return [without_empty(item) for item in value]
        case _:
            return value


def _values(shape: Shape) -> st.SearchStrategy[Any]:
    least, most = shape.metadata.get("min", 0), shape.metadata.get("max")
    match shape:
        case StructureShape():
            return _structures(shape, frozenset())
        case ListShape():
            return st.lists(_values(shape.member), min_size=least, max_size=min(most or 2, 2))
        case MapShape():
            return st.dictionaries(_values(shape.key), _values(shape.value), max_size=2)
    match shape.type_name:
        case "string" if shape.enum:
            return st.sampled_from(shape.enum)
        case "string":
            texts = st.text(_CHARS, min_size=least, max_size=min(most or 6, 6))
            return texts.map(lambda text: f"n{text}"[:6]) if "pattern" in shape.metadata else texts
        case "integer" | "long":
            return st.integers(least, most or 2**31 - 1)
        case "double":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "timestamp":
            return st.integers(0, _SECONDS_MAX).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
        case other:
            raise AssertionError(f"values of type {other} are made here")


def _structures(shape: StructureShape, left_out: frozenset[str]) -> st.SearchStrategy[dict[str, Any]]:
    members = {name: _values(member) for name, member in shape.members.items() if name not in left_out}
    if shape.is_tagged_union:
        return st.one_of([st.fixed_dictionaries({name: values}) for name, values in members.items()])
    # Query cannot say that a member is there and has no members.
    required = {
        name: values.filter(lambda value: value != {})
        for name in shape.required_members
        for values in [members.pop(name)]
    }
    return st.fixed_dictionaries(required, optional=members)

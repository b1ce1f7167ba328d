"""The shapes are the public service model, member by member."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
import pytest

from protocol.sqs_model import MODEL
from quaymaster.protocol.actions.table import SQS_ACTIONS
from quaymaster.protocol.sqs.shapes import MessageAttributeValue, Shape

# The model requires these; we take their absence, for the reasons that their docstrings give.
_REQUIRED_IN_MODEL_ONLY = {("MessageAttributeValue", "DataType")}


def _resolve(shape_name: str) -> dict[str, Any]:
    return typing.cast(dict[str, Any], MODEL["shapes"][shape_name])


def _assert_same(annotation: Any, shape_name: str, seen: set[tuple[Any, str]]) -> None:
    model = _resolve(shape_name)
    if isinstance(annotation, types.UnionType):
        annotation = annotation.__args__[0]
    origin = typing.get_origin(annotation)
    match model["type"]:
        case "string":
            assert annotation is str
        case "integer" | "long":
            assert annotation is int
        case "boolean":
            assert annotation is bool
        case "blob":
            assert annotation is bytes
        case "list":
            assert origin is list
            _assert_same(annotation.__args__[0], model["member"]["shape"], seen)
        case "map":
            assert origin is dict
            assert annotation.__args__[0] is str
            _assert_same(annotation.__args__[1], model["value"]["shape"], seen)
        case "structure":
            _assert_same_structure(annotation, shape_name, seen)
        case other:
            raise AssertionError(f"the model has a type no shape has yet: {other}")


def _assert_same_structure(shape: type[Shape], shape_name: str, seen: set[tuple[Any, str]]) -> None:
    if (shape, shape_name) in seen:
        return
    seen.add((shape, shape_name))
    model = _resolve(shape_name)
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    assert set(fields) == set(model["members"])
    if shape is not MessageAttributeValue:
        assert shape.__name__ == shape_name
    for name, member in model["members"].items():
        _assert_same(fields[name].type, member["shape"], seen)


def test_every_action_of_the_model_is_there_and_no_other() -> None:
    assert set(SQS_ACTIONS) == set(MODEL["operations"])


@pytest.mark.parametrize("name", sorted(SQS_ACTIONS))
def test_input_and_output_have_the_members_and_types_of_the_model(name: str) -> None:
    operation = MODEL["operations"][name]
    action = SQS_ACTIONS[name]

    _assert_same_structure(action.input, operation["input"]["shape"], set())

    if action.output is None:
        assert "output" not in operation
    else:
        _assert_same_structure(action.output, operation["output"]["shape"], set())


@pytest.mark.parametrize("name", sorted(SQS_ACTIONS))
def test_required_members_of_inputs_are_those_of_the_model(name: str) -> None:
    pending = [SQS_ACTIONS[name].input]
    model_names = [MODEL["operations"][name]["input"]["shape"]]

    while pending:
        shape, shape_name = pending.pop(), model_names.pop()
        model = _resolve(shape_name)
        required = {field.name for field in msgspec.structs.fields(shape) if field.required}
        allowed = {member for owner, member in _REQUIRED_IN_MODEL_ONLY if owner == shape_name}
        assert required == set(model.get("required", ())) - allowed
        for field in msgspec.structs.fields(shape):
            if typing.get_origin(field.type) is list and issubclass(field.type.__args__[0], Shape):
                pending.append(field.type.__args__[0])
                model_names.append(_resolve(model["members"][field.name]["shape"])["member"]["shape"])


def test_actions_on_a_queue_are_told_from_those_on_the_account() -> None:
    on_account = {name for name, action in SQS_ACTIONS.items() if not action.has_queue_url}

    assert on_account == {
        "CancelMessageMoveTask",
        "CreateQueue",
        "GetQueueUrl",
        "ListMessageMoveTasks",
        "ListQueues",
        "StartMessageMoveTask",
    }

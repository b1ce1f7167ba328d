"""The operations are those of the public service model, member by member, and name the resources they are about."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape

from protocol.cloudwatch.cloudwatch_model import MODEL, NOT_HERE
from quaymaster.protocol.cloudwatch.kinds import (
    INTEGER_MAX,
    Flag,
    Kind,
    ListOf,
    MapOf,
    Real,
    Structure,
    Text,
    Time,
    Whole,
)
from quaymaster.protocol.cloudwatch.operations import OPERATIONS, SCRAPE, Operation

OWN_LIMITS = {"DashboardNames": 100}
"""Lists that have no limit in the model, and one here."""
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=[each.name for each in OPERATIONS])
BY_NAME = {operation.name: operation for operation in OPERATIONS}


def compare(kind: Kind, shape: Shape, *, of_input: bool) -> None:
    """Fail unless a kind is what the model says; the limits of outputs are the server's own affair."""
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    match kind, shape:
        case Structure(members, required), StructureShape():
            names = {name for name in shape.members if of_input or name not in NOT_HERE}
            assert members.keys() == names
            if not of_input:
                order = [name for name in shape.metadata.get("xmlOrder", members) if name in names]
                assert list(members) == order, "XML has the members in this order"
            assert required == set(shape.required_members)
            for name, member in members.items():
                compare(member, shape.members[name], of_input=of_input)
        case ListOf(item, items_min, items_max), ListShape():
            assert (items_min, items_max) == (least or 0, most or OWN_LIMITS.get(shape.name))
            compare(item, shape.member, of_input=of_input)
        case MapOf(item), MapShape():
            compare(item, shape.value, of_input=of_input)
        case Text(chars_min, chars_max, choices, pattern), Shape(type_name="string"):
            assert set(choices) == set(shape.enum)
            if of_input:
                assert (chars_min, chars_max) == (least or 0, most)
                assert pattern == shape.metadata.get("pattern", "")
        case Whole(kind_least, kind_most), Shape(type_name="integer" | "long"):
            if of_input:
                assert (kind_least, kind_most) == (
                    -INTEGER_MAX - 1 if least is None else least,
                    INTEGER_MAX if most is None else most,
                )
        case Real(), Shape(type_name="double"):
            pass
        case Flag(), Shape(type_name="boolean"):
            pass
        case Time(), Shape(type_name="timestamp"):
            pass
        case _:
            raise AssertionError(f"{kind} is no {shape}")


@each_operation
def test_members_are_those_of_the_model(operation: Operation) -> None:
    model = MODEL.operation_model(operation.name)

    assert model.input_shape is not None
    compare(operation.input, model.input_shape, of_input=True)
    if operation.output is None:
        assert model.output_shape is None
    else:
        assert model.output_shape is not None
        compare(operation.output, model.output_shape, of_input=False)


def test_operations_take_the_permission_of_their_name_and_scrapes_that_of_reading_metrics() -> None:
    assert BY_NAME["PutDashboard"].asks_for == "PutDashboard"
    assert SCRAPE.asks_for == "GetMetricData"


def test_no_operation_is_sent_compressed() -> None:
    assert [each.name for each in OPERATIONS if MODEL.operation_model(each.name).request_compression] == []


@each_operation
def test_resources_are_named_by_a_member(operation: Operation) -> None:
    assert (operation.resource == "all") == (operation.named_by == "")
    assert operation.resource == "all" or operation.named_by in operation.input.members


@pytest.mark.parametrize(
    ("name", "given", "resources"),
    [
        ("ListMetrics", {}, ["arn:aws:cloudwatch:eu-test-1:000000000000:*"]),
        ("PutMetricAlarm", {"AlarmName": "a:b"}, ["arn:aws:cloudwatch:eu-test-1:000000000000:alarm:a:b"]),
        (
            "DeleteAlarms",
            {"AlarmNames": ["a", "b"]},
            [
                "arn:aws:cloudwatch:eu-test-1:000000000000:alarm:a",
                "arn:aws:cloudwatch:eu-test-1:000000000000:alarm:b",
            ],
        ),
        ("DescribeAlarms", {}, ["arn:aws:cloudwatch:eu-test-1:000000000000:alarm:*"]),
        ("DescribeAlarms", {"AlarmNames": []}, ["arn:aws:cloudwatch:eu-test-1:000000000000:alarm:*"]),
        ("DescribeAlarmHistory", {}, ["arn:aws:cloudwatch:eu-test-1:000000000000:alarm:*"]),
        ("GetDashboard", {"DashboardName": "d"}, ["arn:aws:cloudwatch::000000000000:dashboard/d"]),
        ("DeleteDashboards", {"DashboardNames": []}, ["arn:aws:cloudwatch::000000000000:dashboard/*"]),
        (
            "TagResource",
            {"ResourceARN": "arn:aws:cloudwatch:x:1:alarm:a"},
            ["arn:aws:cloudwatch:x:1:alarm:a"],
        ),
        ("TagResource", {"ResourceARN": "a"}, ["a"]),
    ],
)
def test_input_says_which_resources_it_is_about(
    name: str, given: dict[str, Any], resources: list[str]
) -> None:
    found = BY_NAME[name].resources(given, "eu-test-1", "000000000000")

    assert [":".join(arn) for arn in found] == resources
    assert all(len(arn) == 6 for arn in found) or name == "TagResource"

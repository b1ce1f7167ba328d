"""Inputs are refused with everything that is wrong with them, and values are of the kinds that members have."""

from __future__ import annotations

from typing import Any

import pytest

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.cloudwatch.kinds import (
    INTEGER_MAX,
    PROBLEMS_SHOWN_MAX,
    VALUES_MAX,
    Flag,
    Kind,
    ListOf,
    MapOf,
    Real,
    Structure,
    Text,
    Time,
    Whole,
    read_input,
)

DIMENSION = Structure({"Name": Text(1, 5), "Value": Text(1)}, frozenset({"Name", "Value"}))


def of(kind: Kind) -> Structure:
    return Structure({"Member": kind})


def refusal(kind: Kind, value: Any) -> CloudWatchError:
    with pytest.raises(CloudWatchError) as caught:
        read_input(of(kind), {"Member": value})
    return caught.value


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (Text(), "", ""),
        (Text(1, 3, pattern="[^:].*"), "a\n:", "a\n:"),
        (Text(choices=("OK", "ALARM")), "ALARM", "ALARM"),
        (Whole(1, 3), 3, 3),
        (Whole(1, 3), 2.0, 2),
        (Real(), 1, 1.0),
        (Real(), -0.5, -0.5),
        (Time(), 0, 0.0),
        (Time(), 1_700_000_000.25, 1_700_000_000.25),
        (Flag(), False, False),
        (ListOf(Whole(), 1, 2), [1, None, 2.0], None),
        (ListOf(Whole(), 0, 3), [1, None, 2.0], [1, 2]),
        (ListOf(Whole()), (), []),
        (MapOf(Real()), {"p99": 1}, {"p99": 1.0}),
        (DIMENSION, {"Name": "a", "Value": "b", "Later": 1}, {"Name": "a", "Value": "b"}),
    ],
)
def test_value_is_read_as_its_kind_says(kind: Kind, given: Any, read: Any) -> None:
    if read is None:
        refusal(kind, given)
        return
    found = read_input(of(kind), {"Member": given})["Member"]

    assert found == read
    assert type(found) is type(read)


def test_null_is_an_absent_member() -> None:
    assert read_input(of(Text(1)), {"Member": None}) == {}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Text(), 1),
        (Whole(), "1"),
        (Whole(), 1.5),
        (Whole(), True),
        (Whole(), float("nan")),
        (Real(), "1"),
        (Real(), True),
        (Time(), "2010-08-01"),
        (Flag(), 1),
        (ListOf(Text()), "a"),
        (ListOf(Text()), {"a": 1}),
        (MapOf(Text()), []),
        (MapOf(Text()), {1: "a"}),
        (DIMENSION, "a"),
    ],
)
def test_value_of_another_kind_is_malformed(kind: Kind, given: Any) -> None:
    with pytest.raises(MalformedInput, match=r"The value of Member must be "):
        read_input(of(kind), {"Member": given})


def test_input_that_is_no_structure_is_malformed() -> None:
    with pytest.raises(MalformedInput, match=r"The input must be a structure\."):
        read_input(DIMENSION, [])


@pytest.mark.parametrize(
    ("kind", "given", "rule"),
    [
        (Text(2), "a", "have length greater than or equal to 2"),
        (Text(0, 2), "abc", "have length less than or equal to 2"),
        (Text(choices=("OK", "ALARM")), "ok", "satisfy enum value set: [OK, ALARM]"),
        (Text(pattern="[^:].*"), ":a", "satisfy regular expression pattern: [^:].*"),
        (Whole(1), 0, "have value greater than or equal to 1"),
        (Whole(), INTEGER_MAX + 1, f"have value less than or equal to {INTEGER_MAX}"),
        (Real(), float("inf"), "be a finite number"),
        (Real(), 10**400, "be a finite number"),
        (Time(), -1, "be a time between the years 1970 and 9999"),
        (Time(), float("nan"), "be a time between the years 1970 and 9999"),
        (ListOf(Text(), 1), [], "have length greater than or equal to 1"),
        (ListOf(Text(), 0, 1), ["a", "b"], "have length less than or equal to 1"),
    ],
)
def test_broken_constraint_is_told_with_value_and_limit(kind: Kind, given: Any, rule: str) -> None:
    error = refusal(kind, given)

    assert error.code == "ValidationException"
    assert error.message == (
        f"1 validation error detected: Value '{str(given)[:64]}' at 'member' failed to satisfy constraint: "
        f"Member must {rule}"
    )


def test_all_that_is_missing_is_named_as_query_parameters_are() -> None:
    query = Structure({"Dimensions": ListOf(DIMENSION), "Id": Text()}, frozenset({"Id"}))

    with pytest.raises(CloudWatchError) as caught:
        read_input(query, {"Dimensions": [{"Name": "QueueName", "Value": "orders"}, {}]})

    assert caught.value.code == "MissingRequiredParameterException"
    assert caught.value.message == (
        "The parameter Dimensions.member.2.Name is required.\n"
        "The parameter Dimensions.member.2.Value is required.\n"
        "The parameter Id is required."
    )


def test_broken_constraints_are_told_together_but_not_more_than_can_be_read() -> None:
    error = refusal(ListOf(Text(1, 1)), ["ab"] * 100)

    assert error.message.startswith("100 validation errors detected: Value 'ab' at 'member.1.member' failed")
    assert error.message.count("failed to satisfy") == PROBLEMS_SHOWN_MAX


def test_input_with_more_values_than_any_operation_needs_is_malformed() -> None:
    read_input(of(ListOf(Text())), {"Member": ["a"] * (VALUES_MAX - 1)})

    with pytest.raises(MalformedInput, match="more than 10000 values"):
        read_input(of(ListOf(Text())), {"Member": ["a"] * VALUES_MAX})
    with pytest.raises(MalformedInput, match="more than 10000 values"):
        read_input(of(MapOf(Text())), {"Member": {str(n): "a" for n in range(VALUES_MAX)}})

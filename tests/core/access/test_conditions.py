"""When conditions hold: operators and values, keys that are there and absent, as a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quaymaster.core.access.conditions import parse_conditions
from quaymaster.core.access.documents import parse_document
from quaymaster.core.access.errors import PolicyValueIsWrong
from quaymaster.core.access.operators import OPERATORS

from .support import finder

ROLE = "arn:aws:iam::111111111111:role/app/worker"


def holds(operator: str, values: Any, *given: str, has_variables: bool = True) -> bool:
    """Tell whether a condition on aws:UserAgent holds for a request with these values of it."""
    written = parse_document(json.dumps({operator: {"aws:UserAgent": values}}))
    (condition,) = parse_conditions(written, has_variables=has_variables)
    return condition.holds(finder({"aws:UserAgent": given, "aws:username": "A*a"} if given else {}))


@pytest.mark.parametrize(
    ("operator", "values", "matching", "other"),
    [
        ("StringEquals", ["ada", "bob"], ["ada", "bob"], ["Ada", "", "ad"]),
        ("StringEquals", "a*", ["a*"], ["ada"]),
        ("StringEquals", "", [""], ["a"]),
        ("StringEquals", [7, True, 1.50], ["7", "true", "1.5"], ["7.0", "True"]),
        ("StringEqualsIgnoreCase", "ÄdA", ["äDa"], ["ada"]),
        ("StringEqualsIgnoreCase", "İ${aws:username}", ["İA*A"], ["İAbA"]),
        ("StringLike", ["a*d?", "x"], ["ad_", "abcdd", "x"], ["ad", "Adx", "bad_"]),
        ("StringLike", "*a*b*c", ["abc", "xaxbxc", "abcabc"], ["acb", "ab"]),
        ("StringLike", "a*", ["a", "abc"], ["ba"]),
        ("StringLike", "${aws:username}-?", ["A*a-x"], ["Aba-x", "A*a-", "a*a-x"]),
        ("StringLike", "${*}${?}${$}*", ["*?$x"], ["abc"]),
        ("NumericEquals", ["10", 2.5], ["10", "10.0", "2.50", "+10"], ["11", "ten", ""]),
        ("NumericLessThan", "10", ["9.99", "-1"], ["10", "x"]),
        ("NumericLessThanEquals", 10, ["10", "9"], ["10.01"]),
        ("NumericGreaterThan", "10", ["10.5"], ["10"]),
        ("NumericGreaterThanEquals", "10", ["10", "11"], ["9"]),
        ("DateEquals", "2026-01-02T03:04:05Z", ["1767323045", "2026-01-02T04:04:05+01:00"], ["2026-01-02", "x"]),
        ("DateLessThan", "2026-01-02", ["2026-01-01T23:59:59Z", "0"], ["2026-01-02T00:00:00Z", "2026-13-01"]),
        ("DateLessThanEquals", "1767323045", ["2026-01-02T03:04:05Z"], ["2026-01-02T03:04:05.001Z"]),
        ("DateGreaterThan", "2026-01-02T00:00Z", ["2026-01-02T00:00:01Z"], ["2026-01-02"]),
        ("DateGreaterThanEquals", "2026-01-02T00:00:00Z", ["2026-01-02"], ["2026-01-01"]),
        ("Bool", True, ["true", "TRUE"], ["false", "1"]),
        ("BinaryEquals", "YWRh", ["YWRh"], ["YWRi", "YWR", "%", "ä"]),
        ("IpAddress", ["10.1.2.3/8", "192.0.2.1"], ["10.200.0.1", "192.0.2.1", "::ffff:10.0.0.1"], ["11.0.0.1", "x"]),
        ("IpAddress", "2001:db8::/32", ["2001:db8::1"], ["2001:db9::1", "10.0.0.1"]),
        ("IpAddress", "::ffff:10.0.0.0/104", ["::ffff:10.0.0.1"], ["10.0.0.1"]),
        ("ArnLike", "arn:aws:iam::*:role/*", [ROLE], ["arn:aws:iam::1:2:role/x", "arn:aws:sqs::1:role/x", "x"]),
        ("ArnEquals", "arn:aws:iam::111111111111:role/?pp/w*", [ROLE], [f"{ROLE[:-6]}other"]),
        ("ArnEquals", "arn:aws:s3:::a:b", ["arn:aws:s3:::a:b"], ["arn:aws:s3:::a"]),
    ],
)  # fmt: skip
def test_an_operator_holds_for_matching_values_and_its_negation_for_others(
    operator: str, values: Any, matching: list[str], other: list[str]
) -> None:
    assert {value: holds(operator, values, value) for value in matching + other} == {
        **dict.fromkeys(matching, True),
        **dict.fromkeys(other, False),
    }

    for negated in (
        operator.replace("Equals", "NotEquals"),
        operator.replace("Like", "NotLike"),
        f"Not{operator}",
    ):
        if negated != operator and negated in OPERATORS:
            assert {value: holds(negated, values, value) for value in matching + other} == {
                **dict.fromkeys(matching, False),
                **dict.fromkeys(other, True),
            }


VALUES = {
    "Numeric": "1",
    "Date": "1",
    "Bool": "true",
    "Binary": "YQ==",
    "Ip": "::",
    "Arn": ROLE,
    "String": "a",
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_negated_operator_holds_where_its_key_is_absent_and_others_do_not(operator: str) -> None:
    values = next(value for kind, value in VALUES.items() if kind in operator)

    assert holds(operator, values) == ("Not" in operator)
    assert holds(f"{operator}IfExists", values)
    assert holds(f"ForAllValues:{operator}", values)
    assert holds(f"ForAllValues:{operator}IfExists", values)
    assert not holds(f"ForAnyValue:{operator}", values)
    assert not holds(f"ForAnyValue:{operator}IfExists", values)


@pytest.mark.parametrize(
    ("given", "holding"),
    [
        (("a", "b"), {"StringEquals", "ForAllValues:StringEquals", "ForAnyValue:StringEquals"}),
        (("a", "x"), {"StringEquals", "ForAnyValue:StringEquals", "ForAnyValue:StringNotEquals"}),
        (("x", "y"), {"StringNotEquals", "ForAllValues:StringNotEquals", "ForAnyValue:StringNotEquals"}),
    ],
)
def test_a_quantifier_says_for_how_many_values_it_must_hold(
    given: tuple[str, ...], holding: set[str]
) -> None:
    operators = [
        f"{quantifier}String{negation}Equals"
        for quantifier in ("", "ForAllValues:", "ForAnyValue:")
        for negation in ("", "Not")
    ]

    assert {operator for operator in operators if holds(operator, ["a", "b"], *given)} == holding


def test_null_asks_whether_there_is_a_value() -> None:
    assert [holds("Null", value) for value in ("true", False, ["true", "false"])] == [True, False, True]
    assert [holds("Null", value, "x") for value in (True, "False", ["true", "false"])] == [False, True, True]


def test_all_conditions_are_kept_and_keys_have_any_case() -> None:
    conditions = parse_conditions(
        {
            "StringEquals": {"AWS:SourceArn": "a", "aws:sourcearn": "b"},
            "Bool": {"aws:MultiFactorAuthPresent": "true"},
        },
        has_variables=True,
    )

    assert [each.key for each in conditions] == [
        "aws:sourcearn",
        "aws:sourcearn",
        "aws:multifactorauthpresent",
    ]


def test_a_variable_without_a_value_matches_nothing() -> None:
    (condition,) = parse_conditions({"StringLike": {"aws:UserAgent": "*${aws:username}"}}, has_variables=True)
    (negated,) = parse_conditions(
        {"StringNotLike": {"aws:UserAgent": "*${aws:username}"}}, has_variables=True
    )

    find = finder({"aws:UserAgent": "x"})

    assert (condition.holds(find), negated.holds(find)) == (False, True)


def test_the_old_version_has_no_variables() -> None:
    assert holds("StringLike", "${aws:username}", "${aws:username}", has_variables=False)
    assert holds("StringLike", "${*}", "${abc}", has_variables=False)


@pytest.mark.parametrize(
    "condition",
    [
        [],
        {"StringEquals": "x"},
        {"StringEquals": {"aws:UserAgent": []}},
        {"StringEquals": {"aws:UserAgent": None}},
        {"StringEquals": {"aws:UserAgent": [["x"]]}},
        {"StringEqual": {"aws:UserAgent": "x"}},
        {"stringequals": {"aws:UserAgent": "x"}},
        {"ForAllValues:Null": {"aws:UserAgent": "true"}},
        {"NullIfExists": {"aws:UserAgent": "true"}},
        {"ForAllValues:ForAnyValue:StringEquals": {"aws:UserAgent": "x"}},
        {"StringEqualsIfExistsIfExists": {"aws:UserAgent": "x"}},
        {"Null": {"aws:UserAgent": "maybe"}},
        {"Bool": {"aws:UserAgent": "yes"}},
        {"NumericEquals": {"aws:UserAgent": ["1", "1e3"]}},
        {"DateEquals": {"aws:UserAgent": "2026-02-30"}},
        {"DateEquals": {"aws:UserAgent": "yesterday"}},
        {"DateEquals": {"aws:UserAgent": "2026-01-02T03:04"}},
        {"BinaryEquals": {"aws:UserAgent": "a"}},
        {"IpAddress": {"aws:UserAgent": "10.0.0.0/33"}},
        {"ArnLike": {"aws:UserAgent": "*"}},
        {"ArnLike": {"aws:UserAgent": "arn:aws:sqs:*"}},
        {"StringLike": {"aws:UserAgent": "${aws:username"}},
        {"StringLike": {"aws:UserAgent": "${aws:PrincipalTag/team}"}},
        {"StringEquals": {"aws:PrincipalTag/team": "x"}},
        {"StringEquals": {"aws:ResourceTag/team": "x"}},
        {"StringEquals": {"aws:RequestTag/team": "x"}},
        {"ForAnyValue:StringEquals": {"aws:TagKeys": "x"}},
        {"StringEquals": {"sqs:Key": "x"}},
        {"StringEquals": {"aws:": "x"}},
        {"StringEquals": {"aws:" + "k" * 253: "x"}},
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_evaluated_is_refused(condition: Any) -> None:
    with pytest.raises(PolicyValueIsWrong):
        parse_conditions(condition, has_variables=True)

"""The expressions of GetMetricData."""

import pytest

from quaymaster.core.monitoring.expressions import (
    BadExpression,
    Selected,
    compute,
    is_select,
    parse_arithmetic,
    parse_select,
)

KNOWN = {"a": {0: 6.0, 60: 8.0}, "b": {60: 2.0, 120: 4.0}, "z": {0: 0.0, 60: 4.0}}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", {0: 6.0, 60: 8.0}),
        ("a + 1", {0: 7.0, 60: 9.0}),
        ("10 - a", {0: 4.0, 60: 2.0}),
        ("a - b", {60: 6.0}),
        ("a * b / 4", {60: 4.0}),
        ("a / z", {60: 2.0}),
        ("-a + 2 * (3 + .5)", {0: 1.0, 60: -1.0}),
        ("a - 2 - 1", {0: 3.0, 60: 5.0}),
        (" 12 / a ", {0: 2.0, 60: 1.5}),
    ],
)
def test_an_expression_is_computed_point_by_point(expression: str, expected: dict[int, float]) -> None:
    assert compute(parse_arithmetic(expression), KNOWN) == expected


def test_numbers_alone_are_a_number() -> None:
    assert compute(parse_arithmetic("2 * 3 - 1"), {}) == 5.0
    with pytest.raises(BadExpression, match="divides by zero"):
        compute(parse_arithmetic("1 / 0"), {})


def test_an_expression_names_what_it_needs() -> None:
    assert parse_arithmetic("(a + b) / (a - 3)").ids() == {"a", "b"}


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("a +", "ends too early"),
        ("", "ends too early"),
        ("(a", "ends too early"),
        ("(a 3", "not closed"),
        ("a b", "ends before 'b'"),
        ("a $ 2", "not understood"),
        ("SUM(METRICS())", "not understood"),
        ("a + * b", "stands where"),
        ("(" * 60 + "a" + ")" * 60, "parentheses deep"),
        ("a" * 3_000, "characters"),
    ],
)
def test_what_is_no_expression_is_told_as_such(expression: str, told: str) -> None:
    with pytest.raises(BadExpression, match=told):
        parse_arithmetic(expression)


@pytest.mark.parametrize(
    "query",
    [
        """SELECT AVG("Depth") FROM "AWS/SQS" WHERE QueueName = 'orders'""",
        """select avg(Depth) from AWS/SQS where QueueName='orders'""",
        """ SELECT AVG(Depth) FROM SCHEMA("AWS/SQS", QueueName) WHERE "QueueName" = 'orders' """,
    ],
)
def test_a_query_by_words_asks_for_a_statistic_of_a_queue(query: str) -> None:
    assert is_select(query)
    assert parse_select(query) == Selected("AWS/SQS", "Depth", "Average", "QueueName", "orders")


def test_other_queries_by_words_are_refused() -> None:
    with pytest.raises(BadExpression, match="this form"):
        parse_select("""SELECT AVG(Depth) FROM "AWS/SQS" GROUP BY QueueName""")
    with pytest.raises(BadExpression, match="schema has the dimension Other"):
        parse_select("""SELECT AVG(Depth) FROM SCHEMA("AWS/SQS", Other) WHERE QueueName = 'orders'""")
    assert not is_select("a + b")

"""The expressions of GetMetricData: arithmetic over other queries by their ids, and one query by its words.

    (sent - deleted) / 60
    SELECT AVG("ApproximateNumberOfMessagesVisible") FROM "AWS/SQS" WHERE QueueName = 'orders'

Series are computed point by point; where one has no value, or a division is by zero, the result has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

EXPRESSION_CHARACTERS_MAX: Final = 2_048
DEPTH_MAX: Final = 50

Series = dict[int, float]
"""Values by the beginnings of their periods, in seconds."""
Operand = float | Series

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)|([a-z][a-zA-Z0-9_]*)|([-+*/()]))")
_NAME = r"(?:\"([^\"]+)\"|([A-Za-z][\w/]*))"
_SELECT = re.compile(
    rf"\s*SELECT\s+(AVG|COUNT|MAX|MIN|SUM)\s*\(\s*{_NAME}\s*\)"
    rf"\s+FROM\s+(?:SCHEMA\s*\(\s*{_NAME}\s*,\s*{_NAME}\s*\)|{_NAME})"
    rf"\s+WHERE\s+{_NAME}\s*=\s*'([^']+)'\s*",
    re.IGNORECASE,
)
_FUNCTIONS: Final = {
    "AVG": "Average",
    "COUNT": "SampleCount",
    "MAX": "Maximum",
    "MIN": "Minimum",
    "SUM": "Sum",
}


class BadExpression(Exception):
    """An expression that cannot be computed; the message says why."""


class Selected(NamedTuple):
    """What a SELECT asks for: a statistic of a metric of one queue."""

    namespace: str
    metric: str
    statistic: str
    dimension: str
    queue: str


class Node(NamedTuple):
    """A part of an expression: a number, an id, or an operator between two others."""

    operator: str
    number: float = 0.0
    id: str = ""
    parts: tuple[Node, ...] = ()

    def ids(self) -> set[str]:
        """Return the ids that it needs."""
        if self.operator == "id":
            return {self.id}
        return {found for part in self.parts for found in part.ids()}


def is_select(expression: str) -> bool:
    """Tell whether an expression is a query by words."""
    return expression.lstrip()[:6].upper() == "SELECT"


def parse_select(expression: str) -> Selected:
    """Return what a query by words asks for. Raises BadExpression."""
    found = _SELECT.fullmatch(expression)
    if found is None:
        raise BadExpression(
            "Of queries there is this form, where F is AVG, COUNT, MAX, MIN or SUM: "
            'SELECT F("Metric") FROM "AWS/SQS" WHERE QueueName = \'name\'.'
        )
    function, *names, queue = found.groups()
    metric, schema, schema_dimension, namespace, dimension = (
        names[place] or names[place + 1] for place in range(0, len(names), 2)
    )
    if schema_dimension not in (None, dimension):
        raise BadExpression(
            f"The schema has the dimension {schema_dimension}, and the condition {dimension}."
        )
    return Selected(schema or namespace, metric, _FUNCTIONS[function.upper()], dimension, queue)


def parse_arithmetic(expression: str) -> Node:
    """Return an expression taken apart. Raises BadExpression."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise BadExpression(f"An expression has at most {EXPRESSION_CHARACTERS_MAX} characters.")
    tokens: list[str] = []
    at = 0
    text = expression.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadExpression(
                f"{text[at:].strip()[:40]!r} is not understood. Expressions have ids, numbers, + - * / and parentheses."
            )
        tokens.append(found[0].strip())
        at = found.end()
    return _Parser(tokens).parse()


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._sum()
        if self._at < len(self._tokens):
            raise BadExpression(f"The expression ends before {self._tokens[self._at]!r}.")
        return node

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        if not token:
            raise BadExpression("The expression ends too early.")
        self._at += 1
        return token

    def _sum(self) -> Node:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Node:
        return self._chain(("*", "/"), self._factor)

    def _chain(self, operators: tuple[str, str], part: Callable[[], Node]) -> Node:
        node = part()
        while self._next() in operators:
            operator = self._take()
            node = Node(operator, parts=(node, part()))
        return node

    def _factor(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadExpression(f"An expression is at most {DEPTH_MAX} parentheses deep.")
        node = self._read_factor()
        self._depth -= 1
        return node

    def _read_factor(self) -> Node:
        word = self._take()
        if word == "(":
            node = self._sum()
            if self._take() != ")":
                raise BadExpression("A parenthesis is not closed.")
            return node
        if word == "-":
            return Node("-", parts=(Node("number"), self._factor()))
        if word[0].isdigit() or word[0] == ".":
            return Node("number", number=float(word))
        if word[0].isalpha():
            return Node("id", id=word)
        raise BadExpression(f"{word!r} stands where an id or a number must be.")


def compute(node: Node, known: Mapping[str, Series]) -> Operand:
    """Return what an expression gives, from the series of all ids that it needs."""
    if node.operator == "number":
        return node.number
    if node.operator == "id":
        return known[node.id]
    one, other = (compute(part, known) for part in node.parts)
    if isinstance(one, float) and isinstance(other, float):
        found = _apply(node.operator, one, other)
        if found is None:
            raise BadExpression("The expression divides by zero.")
        return found
    result: Series = {}
    for at in _times(one, other):
        value = _apply(node.operator, _at(one, at), _at(other, at))
        if value is not None:
            result[at] = value
    return result


def _times(one: Operand, other: Operand) -> Iterable[int]:
    """Return the times at which both have a value; one of them is a series."""
    if isinstance(one, dict):
        return one.keys() & other.keys() if isinstance(other, dict) else one
    return other if isinstance(other, dict) else ()


def _at(operand: Operand, at: int) -> float:
    return operand[at] if isinstance(operand, dict) else operand


def _apply(operator: str, one: float, other: float) -> float | None:
    if operator == "+":
        return one + other
    if operator == "-":
        return one - other
    if operator == "*":
        return one * other
    return one / other if other else None

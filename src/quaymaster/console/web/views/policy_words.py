"""Policies in sentences: who may do what with which queue, and when. Also of policies that the server would refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_OPERATORS: Final = {
    "StringEquals": "is",
    "StringNotEquals": "is not",
    "StringLike": "is like",
    "StringNotLike": "is not like",
    "ArnEquals": "is",
    "ArnLike": "is like",
    "ArnNotEquals": "is not",
    "ArnNotLike": "is not like",
    "Bool": "is",
    "IpAddress": "is in",
    "NotIpAddress": "is not in",
    "NumericLessThan": "is below",
    "NumericGreaterThan": "is above",
    "DateLessThan": "is before",
    "DateGreaterThan": "is after",
    "Null": "is absent:",
}


class PolicySentence(NamedTuple):
    """What one statement says. `is_denial`: it forbids."""

    is_denial: bool
    text: str
    conditions: tuple[str, ...]
    is_open: bool
    """It allows any principal something, without a condition."""


def explain_policy(text: str | None) -> tuple[PolicySentence, ...]:
    """Return a sentence for each statement; none where the text is no policy."""
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return ()
    if not isinstance(document, dict):
        return ()
    statements = document.get("Statement", [])
    listed = statements if isinstance(statements, list) else [statements]
    return tuple(_explain(statement) for statement in listed if isinstance(statement, dict))


def _explain(statement: Mapping[str, Any]) -> PolicySentence:
    is_denial = statement.get("Effect") == "Deny"
    conditions = tuple(_conditions(statement.get("Condition")))
    who = _who(statement)
    what = _what(statement)
    verb = "may not" if is_denial else "may"
    text = f"{who} {verb} {what}{_where(statement)}"
    is_open = not is_denial and not conditions and "Each principal of each account" in who
    return PolicySentence(is_denial, text, conditions, is_open)


def _who(statement: Mapping[str, Any]) -> str:
    if "NotPrincipal" in statement:
        return f"Each principal except {_list(_principals(statement['NotPrincipal']))}"
    if "Principal" not in statement:
        return "This identity"
    return _list(_principals(statement["Principal"]))


def _principals(given: Any) -> list[str]:
    if given == "*":
        return ["Each principal of each account"]
    if not isinstance(given, dict):
        return [str(given)]
    named = []
    for kind, values in given.items():
        for value in _texts(values):
            if value == "*":
                named.append("Each principal of each account")
            elif value.isdigit() or value.endswith(":root"):
                account = value if value.isdigit() else value.split(":")[4]
                named.append(f"Account {account}")
            else:
                named.append(value if kind == "AWS" else f"{kind} {value}")
    return named


def _what(statement: Mapping[str, Any]) -> str:
    if "NotAction" in statement:
        return f"do everything except {_list(_actions(statement['NotAction']))}"
    return f"do {_list(_actions(statement.get('Action', [])))}"


def _actions(given: Any) -> list[str]:
    return [
        "everything" if text in ("*", "sqs:*", "SQS:*") else text.partition(":")[2] or text
        for text in _texts(given)
    ]


def _where(statement: Mapping[str, Any]) -> str:
    if "NotResource" in statement:
        return f" with all queues except {_list(_resources(statement['NotResource']))}"
    if "Resource" not in statement:
        return " with this queue"
    return f" with {_list(_resources(statement['Resource']))}"


def _resources(given: Any) -> list[str]:
    return ["all queues" if text == "*" else text.rpartition(":")[2] or text for text in _texts(given)]


def _conditions(given: Any) -> list[str]:
    if not isinstance(given, dict):
        return []
    words = []
    for operator, keys in given.items():
        base = operator.rpartition(":")[2]
        name = base.removesuffix("IfExists")
        for key, values in keys.items() if isinstance(keys, dict) else ():
            text = f"{key} {_OPERATORS.get(name, name)} {_list(_texts(values), 'or')}"
            if operator.startswith("ForAllValues:"):
                text = f"each of {text}"
            words.append(f"{text}, or absent" if base.endswith("IfExists") else text)
    return words


def _texts(given: Any) -> list[str]:
    return [
        str(one).lower() if isinstance(one, bool) else str(one)
        for one in (given if isinstance(given, list) else [given])
    ]


def _list(words: list[str], joint: str = "and") -> str:
    if len(words) < 2:
        return words[0] if words else "nothing"
    return f"{', '.join(words[:-1])} {joint} {words[-1]}"

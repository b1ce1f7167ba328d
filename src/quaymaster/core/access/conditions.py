"""The conditions of a statement: all of them must hold.

    {"StringNotEqualsIfExists": {"aws:PrincipalAccount": ["111122223333", "444455556666"]}}
      operator                     key                     values

    key is absent        plain     negated    IfExists    ForAllValues    ForAnyValue    Null
    holds                no        yes        yes         yes             no             if it asks for that

Source: IAM User Guide, "IAM JSON policy elements: Condition operators" and "Conditions with multiple context keys or
values".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from quaymaster.core.access.errors import PolicyValueIsWrong
from quaymaster.core.access.keys import parse_key
from quaymaster.core.access.kinds import PolicyKind
from quaymaster.core.access.operators import OPERATORS, Comparison
from quaymaster.core.access.patterns import FindValues

IF_EXISTS: Final = "IfExists"
NULL: Final = "Null"


class Quantifier(Enum):
    """How many of a request's values a comparison must hold for; `NONE`: it is for keys with one value."""

    NONE = ""
    ALL = "ForAllValues:"
    ANY = "ForAnyValue:"


@dataclass(frozen=True, slots=True)
class Comparing:
    """Compares the values of a key."""

    key: str
    compare: Comparison
    is_negated: bool
    if_exists: bool
    quantifier: Quantifier

    def holds(self, find: FindValues) -> bool:
        """Tell whether it holds for a request."""
        values = find(self.key)
        if not values:
            if self.quantifier is not Quantifier.NONE:
                return self.quantifier is Quantifier.ALL
            return self.is_negated or self.if_exists
        if len(values) == 1:
            return self.compare(values[0], find) is not self.is_negated
        matches = (self.compare(value, find) is not self.is_negated for value in values)
        if self.quantifier is Quantifier.ALL or (self.quantifier is Quantifier.NONE and self.is_negated):
            return all(matches)
        return any(matches)


@dataclass(frozen=True, slots=True)
class Absence:
    """Asks whether a request has a key. `holds_if_absent` and `holds_if_there`: for which it holds."""

    key: str
    holds_if_absent: bool
    holds_if_there: bool

    def holds(self, find: FindValues) -> bool:
        """Tell whether it holds for a request."""
        return self.holds_if_there if find(self.key) else self.holds_if_absent


Condition = Comparing | Absence


def parse_conditions(
    value: Any, kind: PolicyKind = PolicyKind.QUEUE, *, has_variables: bool
) -> tuple[Condition, ...]:
    """Return the conditions in an element Condition; PolicyValueIsWrong."""
    if not isinstance(value, dict):
        raise PolicyValueIsWrong("Condition", value, "it must be an object")
    conditions: list[Condition] = []
    for operator_name, keys in value.items():
        if not isinstance(keys, dict):
            raise PolicyValueIsWrong(operator_name, keys, "it must be an object of condition keys")
        for key, given in keys.items():
            conditions.append(_parse(operator_name, parse_key(key, kind), given, has_variables))
    return tuple(conditions)


def _parse(written: str, key: str, given: Any, has_variables: bool) -> Condition:
    values = _values_of(written, given)
    if written == NULL:
        flags = {value.lower() for value in values}
        if not flags <= {"true", "false"}:
            raise PolicyValueIsWrong(NULL, given, "it must be true or false")
        return Absence(key, "true" in flags, "false" in flags)
    name, quantifier = written, Quantifier.NONE
    for each in (Quantifier.ALL, Quantifier.ANY):
        if written.startswith(each.value):
            name, quantifier = written.removeprefix(each.value), each
    found = OPERATORS.get(name.removesuffix(IF_EXISTS))
    if found is None:
        raise PolicyValueIsWrong("A condition operator", written, "there is no such operator")
    return Comparing(
        key,
        found.compile(written, values, has_variables),
        found.is_negated,
        name.endswith(IF_EXISTS),
        quantifier,
    )


def _values_of(operator_name: str, given: Any) -> list[str]:
    """Return the values of a condition: texts, numbers and flags, one or a list."""
    values = given if isinstance(given, list) else [given]
    if not values:
        raise PolicyValueIsWrong(operator_name, given, "a list needs an entry")
    texts = []
    for value in values:
        match value:
            case bool():
                texts.append("true" if value else "false")
            case str():
                texts.append(str(value))
            case _:
                raise PolicyValueIsWrong(operator_name, value, "it must be a text, a number, true or false")
    return texts

"""Every way a policy can be wrong. Messages name the value and, where there is one, the limit."""

from __future__ import annotations

import json
from typing import Any, Final

_SHOWN_CHARS_MAX: Final = 100


class PolicyError(Exception):
    """A text is not a policy that can be evaluated as its author means it."""


class PolicyIsNoJSON(PolicyError):
    """The text is not a JSON object."""

    def __init__(self, why: str) -> None:
        super().__init__(f"It is not a JSON object: {why}.")


class PolicyIsTooDeep(PolicyError):
    """Arrays and objects are nested too deeply."""

    def __init__(self, depth_max: int) -> None:
        super().__init__(f"Its arrays and objects are nested more than {depth_max} deep.")


class PolicyRepeats(PolicyError):
    """Something is given twice that can be given once."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"It gives the {what} {shown(name)} twice.")


class PolicyElementIsUnknown(PolicyError):
    """An object has a member that the grammar does not have there."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(f"{where} has no element {shown(name)}.")


class PolicyLacks(PolicyError):
    """An object lacks what the grammar asks for there."""

    def __init__(self, where: str, elements: str) -> None:
        super().__init__(f"{where} needs {elements}.")


class PolicyElementsConflict(PolicyError):
    """An element and its negation are given together."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(f"{where} has both {name} and Not{name}.")


class PolicyValueIsWrong(PolicyError):
    """An element has a value that it cannot have."""

    def __init__(self, element: str, value: Any, why: str) -> None:
        super().__init__(f"{element} is {shown(value)}: {why}.")


class PolicyIsTooLarge(PolicyError):
    """There is more of something than a policy may have."""

    def __init__(self, what: str, count: int, count_max: int) -> None:
        super().__init__(f"It has {count} {what}; the limit is {count_max}.")


def shown(value: Any) -> str:
    """Return a value as messages show it: as JSON, cut off where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."

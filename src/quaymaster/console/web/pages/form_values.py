"""Values of form fields that the API takes as numbers or structures. What is none is refused at its field.

A value that can be sent is sent as it is: its limits are the API's to check.
"""

from __future__ import annotations

import math
import re
from typing import Final

from quaymaster.core.values.errors import InvalidParameterValue

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class WrongField(Exception):
    """A field of a form has a value that cannot be sent to the API; `errors` says why, as pages show it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.errors = {field: message}

    @classmethod
    def of(cls, field: str, value: str, reason: str) -> WrongField:
        """Return the error in the API's words."""
        return cls(field, InvalidParameterValue.of(field, value, reason).message)


def whole_number(field: str, text: str) -> int:
    """Return the whole number in a field; WrongField."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise WrongField.of(field, text, "Must be a whole number.")
    return int(text)


def number(field: str, text: str) -> float:
    """Return the number in a field; WrongField."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise WrongField.of(field, text, "Must be a number.")
    return value


def string_attributes(field: str, text: str) -> dict[str, dict[str, str]]:
    """Return message attributes that are written one a line, `name = value`; all are strings. WrongField."""
    attributes: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, separator, value = (part.strip() for part in line.partition("="))
        if not line.strip():
            continue
        if not separator or not name:
            raise WrongField.of(field, line.strip(), "Must be name = value, one a line.")
        if name in attributes:
            raise WrongField.of(field, line.strip(), f"The attribute {name} is there twice.")
        attributes[name] = {"DataType": "String", "StringValue": value}
    return attributes

"""A request of the admin API, taken apart, and what answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.errors import InvalidParameterValue, MissingParameter

PAGE_MAX: Final = 1_000
NUMBER_DIGITS_MAX: Final = 20
"""More than any number of a query has; int() refuses thousands with an error that is no answer."""


class AdminCall(msgspec.Struct, frozen=True):
    """A request of the admin API, taken apart."""

    name: str
    query: dict[str, str]
    fields: dict[str, Any]
    account_id: str

    def number(self, parameter: str, default: int, *, largest: int, smallest: int = 1) -> int:
        """Return a parameter of the query as a number within its limits; InvalidParameterValue otherwise."""
        text = self.query.get(parameter)
        if not text:
            return default
        is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
        if not is_number or not smallest <= int(text) <= largest:
            raise InvalidParameterValue.of(parameter, text, f"Must be between {smallest} and {largest}.")
        return int(text)

    def flag(self, parameter: str) -> bool:
        """Return whether a parameter of the query is "true"; InvalidParameterValue for any other word than "false"."""
        text = self.query.get(parameter) or "false"
        if text not in ("true", "false"):
            raise InvalidParameterValue.of(parameter, text, "Must be true or false.")
        return text == "true"

    def integer(self, field: str, default: int | None = None) -> int:
        """Return a number of the body, not below 0; MissingParameter when there is none and no default."""
        value = self.fields.get(field, default)
        if value is None:
            raise MissingParameter(field)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise InvalidParameterValue.of(field, value, "Must be a whole number, not negative.")
        return value

    def text(self, field: str, default: str | None = None) -> str:
        """Return a text of the body; MissingParameter when there is none and no default."""
        value = self.fields.get(field, default)
        if value is None:
            raise MissingParameter(field)
        if not isinstance(value, str):
            raise InvalidParameterValue.of(field, value, "Must be a text.")
        return value


Handler = Callable[[AdminCall], Awaitable[Mapping[str, Any]]]


class AdminRoute(NamedTuple):
    """What answers a request, and which act that is; "" for a look that leaves no audit event.

    Policies name it by the act, or by `looks_at` where it is none.
    """

    handler: Handler
    act: str = ""
    looks_at: Operation | None = None

    @property
    def operation(self) -> Operation:
        """What policies call it."""
        return Operation(self.act) if self.looks_at is None else self.looks_at

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

    @property
    def owner(self) -> str:
        """The account whose queues, keys, users or roles it is about: as query or body say, else the caller's own."""
        asked, told = self.query.get("account_id"), self.text("account_id", "")
        if asked and told and asked != told:
            raise InvalidParameterValue.of("account_id", told, f"The query says {asked}.")
        return asked or told or self.account_id

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

    Policies name it by the act, or by `looks_at` where it is none. `stored_name` gives the name of what it is about as
    that is stored, where the path may have it in another case.
    """

    handler: Handler
    act: str = ""
    looks_at: Operation | None = None
    stored_name: Callable[[AdminCall], str] | None = None

    @property
    def operation(self) -> Operation:
        """What policies call it."""
        return Operation(self.act) if self.looks_at is None else self.looks_at

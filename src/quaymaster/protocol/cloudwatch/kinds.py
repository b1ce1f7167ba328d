"""Kinds of values that CloudWatch's members have, and how an input is read as one of them.

    decoded JSON, CBOR or form ──▶ Structure.read ──▶ a plain map of its members
                                        │
                                        └── what is missing, and what breaks a constraint, named all at once

Members that a structure does not have are left out, and so are nulls. Times are seconds since 1970 in all forms.

Source: the public CloudWatch service model, 2010-08-01; wordings as the service sends them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quaymaster.core.values.errors import MalformedInput
from quaymaster.protocol.cloudwatch.errors import CloudWatchError

VALUES_MAX: Final = 10_000
"""Of one input, those in lists and structures counted: 500 queries of metrics have 8,000."""
PROBLEMS_SHOWN_MAX: Final = 10
VALUE_CHARS_SHOWN_MAX: Final = 64
INTEGER_MAX: Final = 2**31 - 1
TIME_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""

Path = tuple[str | int, ...]
"""Names of members, and places in lists, from 1 on."""


@dataclass(slots=True)
class Reading:
    """What is found while an input is read."""

    values: int = 0
    missing: list[Path] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def count(self) -> None:
        """Count one value more; MalformedInput for one too many."""
        self.values += 1
        if self.values > VALUES_MAX:
            raise MalformedInput(f"A request cannot have more than {VALUES_MAX} values.")

    def refuse(self, path: Path, value: object, rule: str) -> None:
        """Note that a value breaks a rule, and must do something else."""
        shown = str(value)[:VALUE_CHARS_SHOWN_MAX]
        self.broken.append(
            f"Value '{shown}' at '{constraint_path(path)}' failed to satisfy constraint: Member must {rule}"
        )

    def finish(self) -> None:
        """Raise what the input is refused with, if it is."""
        if self.missing:
            raise CloudWatchError(
                "MissingRequiredParameterException",
                "\n".join(
                    f"The parameter {parameter_path(path)} is required."
                    for path in self.missing[:PROBLEMS_SHOWN_MAX]
                ),
            )
        if self.broken:
            count = len(self.broken)
            raise CloudWatchError(
                "ValidationException",
                f"{count} validation error{'s' if count > 1 else ''} detected: "
                + "; ".join(self.broken[:PROBLEMS_SHOWN_MAX]),
            )


def parameter_path(path: Path) -> str:
    """Return a path as Query parameters have it: `Dimensions.member.1.Name`."""
    return ".".join(f"member.{part}" if isinstance(part, int) else part for part in path)


def constraint_path(path: Path) -> str:
    """Return a path as constraints are told by: `dimensions.1.member.name`."""
    return ".".join(
        f"{part}.member" if isinstance(part, int) else part[0].lower() + part[1:] for part in path
    )


@dataclass(frozen=True, slots=True)
class Text:
    """Text of so many characters, one of `choices` where there are any, and like `pattern` as a whole."""

    chars_min: int = 0
    chars_max: int | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""

    def read(self, value: Any, path: Path, reading: Reading) -> str:
        """Return the text; MalformedInput for what is none."""
        if not isinstance(value, str):
            raise _wrong(path, "text")
        if len(value) < self.chars_min:
            reading.refuse(path, value, f"have length greater than or equal to {self.chars_min}")
        elif self.chars_max is not None and len(value) > self.chars_max:
            reading.refuse(path, value, f"have length less than or equal to {self.chars_max}")
        elif self.choices and value not in self.choices:
            reading.refuse(path, value, f"satisfy enum value set: [{', '.join(self.choices)}]")
        elif self.pattern and re.fullmatch(self.pattern, value, re.DOTALL) is None:
            reading.refuse(path, value, f"satisfy regular expression pattern: {self.pattern}")
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number between two others, both included."""

    least: int = -INTEGER_MAX - 1
    most: int = INTEGER_MAX

    def read(self, value: Any, path: Path, reading: Reading) -> int:
        """Return the number; MalformedInput for what is none."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(path, "a whole number")
        if value < self.least:
            reading.refuse(path, value, f"have value greater than or equal to {self.least}")
        elif value > self.most:
            reading.refuse(path, value, f"have value less than or equal to {self.most}")
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A number. CloudWatch takes none that is infinite."""

    def read(self, value: Any, path: Path, reading: Reading) -> float:
        """Return the number; MalformedInput for what is none."""
        number = _number(value, path)
        if not math.isfinite(number):
            reading.refuse(path, value, "be a finite number")
        return number


@dataclass(frozen=True, slots=True)
class Time:
    """A time, in seconds since 1970."""

    def read(self, value: Any, path: Path, reading: Reading) -> float:
        """Return the time; MalformedInput for what is none."""
        seconds = _number(value, path)
        if not 0 <= seconds <= TIME_S_MAX:
            reading.refuse(path, value, "be a time between the years 1970 and 9999")
        return seconds


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def read(self, value: Any, path: Path, reading: Reading) -> bool:
        """Return which; MalformedInput for what is neither."""
        if not isinstance(value, bool):
            raise _wrong(path, "true or false")
        return value


@dataclass(frozen=True, slots=True)
class ListOf:
    """So many values of one kind."""

    item: Kind
    items_min: int = 0
    items_max: int | None = None

    def read(self, value: Any, path: Path, reading: Reading) -> list[Any]:
        """Return the list, without nulls; MalformedInput for what is none."""
        if not isinstance(value, list | tuple):
            raise _wrong(path, "a list")
        if len(value) < self.items_min:
            reading.refuse(path, value, f"have length greater than or equal to {self.items_min}")
        elif self.items_max is not None and len(value) > self.items_max:
            reading.refuse(path, value, f"have length less than or equal to {self.items_max}")
        items = []
        for place, item in enumerate(value, 1):
            if item is not None:
                reading.count()
                items.append(self.item.read(item, (*path, place), reading))
        return items


@dataclass(frozen=True, slots=True)
class MapOf:
    """Values of one kind by names."""

    item: Kind

    def read(self, value: Any, path: Path, reading: Reading) -> dict[str, Any]:
        """Return the map; MalformedInput for what is none."""
        if not isinstance(value, dict):
            raise _wrong(path, "a map")
        read = {}
        for name, item in value.items():
            reading.count()
            read[_NAME.read(name, path, reading)] = self.item.read(item, (*path, str(name)), reading)
        return read


@dataclass(frozen=True, slots=True)
class Structure:
    """Members by name, in the order in which XML has them."""

    members: Mapping[str, Kind]
    required: frozenset[str] = frozenset()

    def read(self, value: Any, path: Path, reading: Reading) -> dict[str, Any]:
        """Return the members that are given; MalformedInput for what is no structure."""
        if not isinstance(value, dict):
            raise _wrong(path, "a structure")
        read: dict[str, Any] = {}
        for name, kind in self.members.items():
            given = value.get(name)
            if given is not None:
                reading.count()
                read[name] = kind.read(given, (*path, name), reading)
            elif name in self.required:
                reading.missing.append((*path, name))
        return read


_NAME: Final = Text()

Kind = Text | Whole | Real | Time | Flag | ListOf | MapOf | Structure


def read_input(structure: Structure, value: Any) -> dict[str, Any]:
    """Return the members of an operation's input, as they were decoded from its wire form.

    Raises:
        MalformedInput: a value is of another kind than its member, or there are too many.
        CloudWatchError: members are missing, or values break constraints.
    """
    reading = Reading()
    read = structure.read(value, (), reading)
    reading.finish()
    return read


def _number(value: Any, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _wrong(path: Path, wanted: str) -> MalformedInput:
    where = f"The value of {parameter_path(path)}" if path else "The input"
    return MalformedInput(f"{where} must be {wanted}.")

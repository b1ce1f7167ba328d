"""The operators of conditions: how a value of a request is compared with the values in a policy.

A comparison holds if the request's value matches one of the policy's. A negated operator is the negation of that: it
holds if none matches.

Source: IAM User Guide, "IAM JSON policy elements: Condition operators".
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import operator
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from quaymaster.core.access.arns import one_matches, parse_arn_pattern, split_arn
from quaymaster.core.access.errors import PolicyValueIsWrong
from quaymaster.core.access.patterns import FindValues, Patterns, parse_pattern

Comparison = Callable[[str, FindValues], bool]
"""Tells whether a value of a request matches one of a policy's values."""

ADDRESSES_REMEMBERED_MAX: Final = 4_096
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?", re.ASCII)
_EPOCH_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", re.ASCII)
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?)?(?:Z|[+-][0-9]{2}:[0-9]{2}))?",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Operator(NamedTuple):
    """How an operator compares.

    `compile` takes the operator's name, the policy's values and whether they may have variables. It raises
    PolicyValueIsWrong. `values` and `holds_if` say in the reference what the policy's values are, and what of the
    request's value makes the condition true.
    """

    compile: Callable[[str, Sequence[str], bool], Comparison]
    values: str
    holds_if: str
    is_negated: bool = False


def _texts(*, has_wildcards: bool, folds_case: bool) -> Callable[[str, Sequence[str], bool], Comparison]:
    def compile_texts(name: str, values: Sequence[str], has_variables: bool) -> Comparison:
        patterns = [
            parse_pattern(
                value, has_wildcards=has_wildcards, has_variables=has_variables, folds_case=folds_case
            )
            for value in values
        ]
        return patterns[0].matches if len(patterns) == 1 else Patterns(patterns).match

    return compile_texts


def _arns(name: str, values: Sequence[str], has_variables: bool) -> Comparison:
    patterns = [parse_arn_pattern(name, value, has_variables=has_variables) for value in values]

    def compare(value: str, find: FindValues) -> bool:
        return one_matches(patterns, split_arn(value), find)

    return compare


def _ordered(
    read: Callable[[str], Any], what: str, compare: Callable[[Any, Any], bool]
) -> Callable[[str, Sequence[str], bool], Comparison]:
    """Return what compiles a comparison of numbers or times. A value of a request that is none matches nothing."""

    def compile_ordered(name: str, values: Sequence[str], has_variables: bool) -> Comparison:
        limits = [read(value) for value in values]
        for value, limit in zip(values, limits, strict=True):
            if limit is None:
                raise PolicyValueIsWrong(name, value, f"it is not {what}")

        def matches(value: str, find: FindValues) -> bool:
            given = read(value)
            return given is not None and any(compare(given, limit) for limit in limits)

        return matches

    return compile_ordered


def read_number(text: str) -> Decimal | None:
    """Return the number in a text, None where it is none."""
    return Decimal(text) if _NUMBER.fullmatch(text) is not None else None


def read_time(text: str) -> int | None:
    """Return the time in a text in microseconds since 1970: ISO 8601, or seconds since 1970. None where it is none."""
    if _EPOCH_SECONDS.fullmatch(text) is not None:
        return int(Decimal(text) * 1_000_000)
    if _DATE.fullmatch(text) is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _flags(name: str, values: Sequence[str], has_variables: bool) -> Comparison:
    flags = frozenset(value.lower() for value in values)
    for value in values:
        if value.lower() not in ("true", "false"):
            raise PolicyValueIsWrong(name, value, "it must be true or false")
    return lambda value, find: value.lower() in flags


def _binaries(name: str, values: Sequence[str], has_variables: bool) -> Comparison:
    binaries = []
    for value in values:
        binary = _read_binary(value)
        if binary is None:
            raise PolicyValueIsWrong(name, value, "it is not Base64")
        binaries.append(binary)
    return lambda value, find: _read_binary(value) in binaries


def _read_binary(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _networks(name: str, values: Sequence[str], has_variables: bool) -> Comparison:
    networks = []
    for value in values:
        try:
            network = ipaddress.ip_network(value, strict=False)
        except ValueError:
            raise PolicyValueIsWrong(name, value, "it is not an address or a network") from None
        networks.append((network.version, int(network.network_address), int(network.broadcast_address)))

    def compare(value: str, find: FindValues) -> bool:
        for version, address in _read_addresses(value):
            for of_version, first, last in networks:
                if version == of_version and first <= address <= last:
                    return True
        return False

    return compare


@lru_cache(maxsize=ADDRESSES_REMEMBERED_MAX)
def _read_addresses(text: str) -> tuple[tuple[int, int], ...]:
    """Return the IP version and number of an address; both addresses of an IPv4 address written as IPv6."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ()
    mapped = getattr(address, "ipv4_mapped", None)
    addresses = (address,) if mapped is None else (address, mapped)
    return tuple((each.version, int(each)) for each in addresses)


_EQUAL: Final = _texts(has_wildcards=False, folds_case=False)
_EQUAL_FOLDED: Final = _texts(has_wildcards=False, folds_case=True)
_LIKE: Final = _texts(has_wildcards=True, folds_case=False)
_TEXTS: Final = "texts"
_PATTERNS: Final = "texts with `*` and `?`"
_ADDRESSES: Final = "addresses or networks, IPv4 or IPv6"
_ARN_PATTERNS: Final = "ARNs, with `*` and `?` within each segment"
_ORDERS: Final = {
    "Equals": (operator.eq, False, "is one of them"),
    "NotEquals": (operator.eq, True, "is none of them"),
    "LessThan": (operator.lt, False, "is less than one of them"),
    "LessThanEquals": (operator.le, False, "is one of them, or less"),
    "GreaterThan": (operator.gt, False, "is greater than one of them"),
    "GreaterThanEquals": (operator.ge, False, "is one of them, or greater"),
}

OPERATORS: Final[dict[str, Operator]] = {
    "StringEquals": Operator(_EQUAL, _TEXTS, "is one of them"),
    "StringNotEquals": Operator(_EQUAL, _TEXTS, "is none of them", True),
    "StringEqualsIgnoreCase": Operator(_EQUAL_FOLDED, _TEXTS, "is one of them, in any case"),
    "StringNotEqualsIgnoreCase": Operator(_EQUAL_FOLDED, _TEXTS, "is none of them, in any case", True),
    "StringLike": Operator(_LIKE, _PATTERNS, "matches one of them"),
    "StringNotLike": Operator(_LIKE, _PATTERNS, "matches none of them", True),
    **{
        f"{kind}{order}": Operator(_ordered(read, what, compare), values, holds_if, is_negated)
        for kind, read, what, values in (
            ("Numeric", read_number, "a number", "numbers"),
            ("Date", read_time, "a time", "times: ISO 8601, or seconds since 1970"),
        )
        for order, (compare, is_negated, holds_if) in _ORDERS.items()
    },
    "Bool": Operator(_flags, "`true` or `false`", "is one of them"),
    "BinaryEquals": Operator(_binaries, "Base64", "is one of them"),
    "IpAddress": Operator(_networks, _ADDRESSES, "is in one of them"),
    "NotIpAddress": Operator(_networks, _ADDRESSES, "is in none of them", True),
    "ArnEquals": Operator(_arns, _ARN_PATTERNS, "matches one of them"),
    "ArnNotEquals": Operator(_arns, _ARN_PATTERNS, "matches none of them", True),
    "ArnLike": Operator(_arns, _ARN_PATTERNS, "matches one of them"),
    "ArnNotLike": Operator(_arns, _ARN_PATTERNS, "matches none of them", True),
}
"""All but Null, which asks only whether there is a value."""

"""The price book: what a request costs, from when to when. Pure.

A book is a list of *versions*, one after another in time; each has a monthly allowance of free requests, which all
classes share, and for each billing class its tiers. Usage is rated by day: versions begin and end at midnight in UTC.

    version 1  [2026-01-01, 2026-11-15)   1,000,000 free   standard  0: 0.40   100 B: 0.30   200 B: 0.24  per million
                                                           fifo      0: 0.50   100 B: 0.40   200 B: 0.35
    version 2  [2026-11-15, ...)          ...

A tier begins *above* a number of requests of its class in the month, the free ones counted: requests 1 to 100 B of the
month are in the first. A change of prices within a month does not begin the count again.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from quaymaster_pipeline.billing.money import as_unit_price, plain
from quaymaster_pipeline.billing.rules import BILLING_CLASSES, BillingClass
from quaymaster_pipeline.warehouse.times import text_of_time

VERSIONS_MAX: Final = 1000
TIERS_MAX: Final = 20
TEXT_LENGTH_MAX: Final = 200
QUANTITY_MAX: Final = 2**63 - 1

_NOT_IN_CENTS = """
BHD BIF CLF CLP DJF GNF IQD ISK JOD JPY KMF KRW KWD LYD OMR PYG RWF TND UGX UYI VND VUV XAF XOF XPF
"""
NOT_IN_CENTS: Final = frozenset(_NOT_IN_CENTS.split())
"""Currencies whose payable amounts do not have two decimals."""


class BadPriceBook(ValueError):
    """A price book that cannot be rated by; the message says where and why."""


class NoPrice(LookupError):
    """Usage of a time that the book has no price for."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A price per request, for requests of the month above a number."""

    above: int
    unit_price: Decimal

    def __post_init__(self) -> None:
        if not 0 <= self.above <= QUANTITY_MAX:
            raise BadPriceBook(f"a tier begins above {self.above}; it must be 0 to {QUANTITY_MAX}")
        try:
            object.__setattr__(self, "unit_price", as_unit_price(self.unit_price))
        except ValueError as error:
            raise BadPriceBook(str(error)) from None

    @property
    def per_million(self) -> str:
        """The price of a million requests, as text."""
        return plain(self.unit_price.scaleb(6))


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """The prices of one stretch of days, [valid_from, valid_to); `valid_to` None means until further notice."""

    number: int
    valid_from: datetime
    valid_to: datetime | None
    free_requests: int
    tiers: dict[BillingClass, tuple[Tier, ...]]

    def __post_init__(self) -> None:
        where = f"version {self.number}"
        if not 1 <= self.number <= 32_767:
            raise BadPriceBook(f"{where}: numbers are 1 to 32767")
        object.__setattr__(self, "valid_from", _midnight(self.valid_from, f"{where}: valid_from"))
        if self.valid_to is not None:
            object.__setattr__(self, "valid_to", _midnight(self.valid_to, f"{where}: valid_to"))
        if self.valid_to is not None and self.valid_to <= self.valid_from:
            raise BadPriceBook(f"{where}: valid_to must be after valid_from")
        if not 0 <= self.free_requests <= QUANTITY_MAX:
            raise BadPriceBook(f"{where}: free_requests must be 0 to {QUANTITY_MAX}")
        if not self.tiers.get("push"):
            # Books of before do not say what a call to an endpoint costs: as a request does.
            tiers = {**self.tiers, "push": self.tiers.get("standard", ())}
            object.__setattr__(self, "tiers", tiers)
        for billing_class in BILLING_CLASSES:
            _check_tiers(f"{where}, {billing_class}", self.tiers.get(billing_class, ()))

    def tier_number(self, billing_class: BillingClass, position: int) -> int:
        """Return which tier (0 is the first) the request after `position` others of the month is in."""
        return bisect_right(self.tiers[billing_class], position, key=lambda tier: tier.above) - 1


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All versions, in the order of their time. They do not overlap; between two there may be a gap."""

    name: str
    currency: str
    versions: tuple[PriceVersion, ...]
    issuer: str = "Quaymaster"
    """Who issues the invoices."""

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("issuer", self.issuer)):
            if not 1 <= len(text) <= TEXT_LENGTH_MAX or not text.isprintable():
                raise BadPriceBook(f"{what} must have 1 to {TEXT_LENGTH_MAX} printable characters")
        if not (len(self.currency) == 3 and self.currency.isascii() and self.currency.isupper()):
            raise BadPriceBook(f"currency {self.currency!r} must be a code of three capital letters, as USD")
        if self.currency in NOT_IN_CENTS:
            raise BadPriceBook(
                f"currency {self.currency}: payable amounts have two decimals, this currency's do not"
            )
        if not 1 <= len(self.versions) <= VERSIONS_MAX:
            raise BadPriceBook(
                f"a price book has 1 to {VERSIONS_MAX} versions, this one {len(self.versions)}"
            )
        in_order = tuple(sorted(self.versions, key=lambda version: version.valid_from))
        object.__setattr__(self, "versions", in_order)
        numbers = [version.number for version in in_order]
        if len(set(numbers)) < len(numbers):
            raise BadPriceBook(f"versions must have different numbers; these are {numbers}")
        for earlier, later in itertools.pairwise(in_order):
            if earlier.valid_to is None or earlier.valid_to > later.valid_from:
                raise BadPriceBook(
                    f"version {earlier.number} is valid until {_text(earlier.valid_to)}, "
                    f"version {later.number} from {_text(later.valid_from)} already"
                )

    def at(self, time: datetime) -> PriceVersion:
        """Return the version valid at a time. Raises NoPrice."""
        index = bisect_right(self.versions, time, key=lambda version: version.valid_from) - 1
        if index >= 0:
            version = self.versions[index]
            if version.valid_to is None or time < version.valid_to:
                return version
        raise NoPrice(f"price book {self.name!r} has no price for {_text(time)}")

    def between(self, start: datetime, end: datetime) -> tuple[PriceVersion, ...]:
        """Return the versions valid at any time in [start, end)."""
        return tuple(
            version
            for version in self.versions
            if version.valid_from < end and (version.valid_to is None or version.valid_to > start)
        )

    def prices_between(self, start: datetime, end: datetime) -> tuple[object, ...]:
        """Return what is charged in [start, end), as a value that differs when a charge could."""
        return (
            self.currency,
            *(
                (
                    max(version.valid_from, start),
                    min(version.valid_to or end, end),
                    version.number,
                    version.free_requests,
                    tuple(sorted(version.tiers.items())),
                )
                for version in self.between(start, end)
            ),
        )


def make_tiers(steps: Iterable[tuple[int, Decimal]]) -> tuple[Tier, ...]:
    """Return tiers of (above, price per million requests), sorted. Raises BadPriceBook."""
    return tuple(
        sorted(
            (Tier(above, per_million.scaleb(-6)) for above, per_million in steps), key=lambda tier: tier.above
        )
    )


def _check_tiers(where: str, tiers: Sequence[Tier]) -> None:
    if not 1 <= len(tiers) <= TIERS_MAX:
        raise BadPriceBook(f"{where}: there are 1 to {TIERS_MAX} tiers, not {len(tiers)}")
    if tiers[0].above != 0:
        raise BadPriceBook(f"{where}: the first tier must be above 0, not above {tiers[0].above}")
    for earlier, later in itertools.pairwise(tiers):
        if later.above <= earlier.above:
            raise BadPriceBook(f"{where}: two tiers begin above {later.above}")


def _midnight(time: datetime, what: str) -> datetime:
    if time.tzinfo is None:
        raise BadPriceBook(f"{what} {time.isoformat()} must say its zone, as {time.isoformat()}Z does")
    utc = time.astimezone(UTC)
    if utc != utc.replace(hour=0, minute=0, second=0, microsecond=0):
        raise BadPriceBook(f"{what} {_text(utc)} must be midnight in UTC: prices change with the day")
    return utc


def _text(time: datetime | None) -> str:
    return "further notice" if time is None else text_of_time(time)

"""Usage and price books to rate: those of SQS's public price list."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from quaymaster_pipeline.billing import rating
from quaymaster_pipeline.billing.focus import charge_lines, correction_lines, rounding_line
from quaymaster_pipeline.billing.invoices import CORRECTIONS, Invoice, InvoiceSums, corrections_of
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook, PriceVersion, make_tiers
from quaymaster_pipeline.billing.rating import Totals, add_totals, price_id, rate_month
from quaymaster_pipeline.billing.rules import BillingClass

MONTH = Month(2026, 11)
ACCOUNT = "123456789012"
MILLION = 1_000_000
BILLION = 1000 * MILLION


def sqs_version(
    number: int = 1,
    valid_from: datetime = datetime(2020, 1, 1, tzinfo=UTC),
    valid_to: datetime | None = None,
    factor: Decimal = Decimal(1),
    free_requests: int = MILLION,
) -> PriceVersion:
    def tiers(*prices: str) -> Sequence[tuple[int, Decimal]]:
        above = (0, 100 * BILLION, 200 * BILLION)
        return [(at, Decimal(price) * factor) for at, price in zip(above, prices, strict=True)]

    return PriceVersion(
        number,
        valid_from,
        valid_to,
        free_requests,
        {
            "standard": make_tiers(tiers("0.40", "0.30", "0.24")),
            "fifo": make_tiers(tiers("0.50", "0.40", "0.35")),
        },
    )


BOOK = PriceBook("SQS", "USD", (sqs_version(),))
CHANGE = datetime(2026, 11, 15, tzinfo=UTC)
CHANGED = PriceBook(
    "changed", "USD", (sqs_version(1, valid_to=CHANGE), sqs_version(2, CHANGE, factor=Decimal(2)))
)


class Usage(NamedTuple):
    """What one queue of an account was asked on one day by one action: a row of what is rated."""

    day: dt.date
    region: str
    queue_id: int
    queue_name: str
    action: str
    billing_class: BillingClass
    billed_requests: int


class Charge(NamedTuple):
    """A row of charges."""

    line_id: str
    day: dt.date
    region: str
    queue_id: int
    queue_name: str
    action: str
    billing_class: BillingClass
    price_version: int
    tier: int
    unit_price: Decimal
    quantity: int
    cost: Decimal
    rule_version: int

    @property
    def price_id(self) -> str:
        return price_id(self.billing_class, self.price_version, self.tier)


class Correction(NamedTuple):
    month: Month
    corrects: str
    charge: Charge


class Whole(NamedTuple):
    """An invoice with its lines in memory."""

    invoice: Invoice
    charges: list[Charge]
    corrections: list[Correction]

    def lines(self) -> Iterator[Any]:
        """Give the lines in the columns of FOCUS."""
        yield charge_lines(self.invoice, charge_table(self.charges))
        yield correction_lines(self.invoice, correction_table(self.corrections))
        yield rounding_line(self.invoice)

    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self.lines() for row in part.to_pylist()]

    def text(self, render: Callable[..., Iterable[bytes]]) -> bytes:
        return b"".join(render(self.invoice, self.lines))


def whole(invoice: Invoice, charges: Sequence[Charge], corrections: Sequence[Correction] = ()) -> Whole:
    """Give an invoice the sums and the digest of these lines."""
    sums = InvoiceSums(invoice)
    sums.add_charges(charge_table(charges))
    sums.add_corrections(correction_table(corrections))
    return Whole(sums.invoice(), list(charges), list(corrections))


def charge_table(charges: Iterable[Charge]) -> Any:
    return pa.Table.from_pylist([one._asdict() for one in charges], schema=rating.CHARGES)


def correction_table(corrections: Iterable[Correction]) -> Any:
    rows = [one.charge._asdict() | {"month": str(one.month), "corrects": one.corrects} for one in corrections]
    return pa.Table.from_pylist(rows, schema=CORRECTIONS)


def charges_in(tables: Iterable[Any]) -> list[Charge]:
    return [Charge(**row) for table in tables for row in table.select(Charge._fields).to_pylist()]


def corrections_in(tables: Iterable[Any]) -> list[Correction]:
    return [
        Correction(Month.parse(row.pop("month")), row.pop("corrects"), Charge(**row))
        for table in tables
        for row in table.to_pylist()
    ]


def corrected(
    month: Month,
    into: Month,
    charged: Sequence[Charge],
    before: Sequence[Correction],
    rated: Sequence[Charge],
) -> list[Correction]:
    """Return the corrections of a closed month; those of before are from any number of months."""
    streams = [[correction_table([one])] for one in before]
    found = corrections_of(
        month,
        into,
        account_id=ACCOUNT,
        charged=[charge_table(charged)],
        corrected=streams,
        rated=[charge_table(rated)],
    )
    return corrections_in(found)


def used(
    billed: int,
    *,
    hour: int = 0,
    billing_class: BillingClass = "standard",
    queue: int = 7,
    action: str = "SendMessage",
    month: Month = MONTH,
) -> Usage:
    """Usage of the day that has an hour of a month."""
    day = (month.start + timedelta(hours=hour)).date()
    return Usage(day, "us-east-1", queue, f"queue-{queue}" if queue else "", action, billing_class, billed)


def added_up(usage: Sequence[Usage]) -> list[Usage]:
    """Return usage as tables of sums have it: each key once, in the order of day, region, queue, action."""
    sums: Counter[Usage] = Counter()
    for row in usage:
        sums[row._replace(billed_requests=0)] += row.billed_requests
    return [row._replace(billed_requests=billed) for row, billed in sorted(sums.items())]


def rate(
    usage: Sequence[Usage],
    book: PriceBook = BOOK,
    month: Month = MONTH,
    *,
    account_id: str = ACCOUNT,
    rows_at_once: int = 1 << 20,
) -> list[Charge]:
    """Return the charges of usage, rated so many rows at a time."""
    rows = [row._asdict() for row in added_up(usage)]
    tables = [
        pa.Table.from_pylist(rows[first : first + rows_at_once], schema=rating.USAGE)
        for first in range(0, len(rows), rows_at_once)
    ]
    totals: Totals = {}
    for table in tables:
        add_totals(totals, table, month)
    return charges_in(rate_month(tables, totals, book, account_id=account_id))

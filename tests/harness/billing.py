"""Usage and price books to rate: those of SQS's public price list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from quaymaster.pipeline.billing.periods import Month
from quaymaster.pipeline.billing.prices import PriceBook, PriceVersion, make_tiers
from quaymaster.pipeline.billing.rating import Charge, Usage, rate_month
from quaymaster.pipeline.billing.rules import BillingClass

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
CHANGE = datetime(2026, 11, 15, 6, tzinfo=UTC)
CHANGED = PriceBook(
    "changed", "USD", (sqs_version(1, valid_to=CHANGE), sqs_version(2, CHANGE, factor=Decimal(2)))
)


def used(
    billed: int,
    *,
    hour: int = 0,
    billing_class: BillingClass = "standard",
    queue: int = 7,
    action: str = "SendMessage",
    month: Month = MONTH,
) -> Usage:
    start = month.start + timedelta(hours=hour)
    return Usage(start, "us-east-1", queue, f"queue-{queue}", action, billing_class, billed)


def rate(usage: Sequence[Usage], book: PriceBook = BOOK, month: Month = MONTH) -> list[Charge]:
    return rate_month(usage, book, month, account_id=ACCOUNT)

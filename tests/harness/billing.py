"""Usage and price books to rate: those of SQS's public price list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook, PriceVersion, make_tiers
from quaymaster_pipeline.billing.rating import Charge, Usage, rate_month
from quaymaster_pipeline.billing.rules import BillingClass
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse

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


def fill(
    warehouse: Warehouse, usage: Sequence[Usage], *, account_id: str = ACCOUNT, silver: bool = True
) -> None:
    """Add usage to silver and gold: a request a row."""
    rows = [
        {
            "event_time": row.hour,
            "hour": row.hour,
            "region": row.region,
            "account_id": account_id,
            "queue_name": row.queue_name,
            "queue_sk": row.queue_id,
            "action": row.action,
            "billing_class": row.billing_class,
            "billed_requests": row.billed_requests,
            "first_batch": 0,
            "last_batch": 0,
            "requests": 1,
            "source_rows": 1,
            "messages": 2,
            "bytes": 3,
            "batch_id": 0,
            "event_date": row.hour.date(),
            "usage_date": row.hour.date(),
        }
        for row in usage
    ]
    for spec in (USAGE_EVENTS, USAGE_HOURLY) if silver else (USAGE_HOURLY,):
        table = warehouse.table(spec)
        known = [{name: row[name] for name in spec.schema.names if name in row} for row in rows]
        files = table.write("test", pa.Table.from_pylist(known, schema=spec.schema))
        table.commit("test", table.last_batch("test") + 1, files)

"""What usage of days would cost by the price book, read without Spark: no invoice, but what invoices will come to.

    gold.usage_daily ──from the first day of the month on──▶ rating ──▶ costs by day, queue and action

A request costs by its place in the month, so a month is read from its start, whichever days are asked for.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.account_usage import as_usage
from quaymaster_pipeline.billing.money import exact_sum, plain
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.rating import Totals, add_totals, rate_month
from quaymaster_pipeline.warehouse.account_rows import Accounts, open_files
from quaymaster_pipeline.warehouse.schemas import DAY_KEYS, USAGE_DAILY
from quaymaster_pipeline.warehouse.sums import add_up
from quaymaster_pipeline.warehouse.tables import Warehouse

COUNTS: Final = ("requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")
_COLUMNS: Final = (*DAY_KEYS, "queue_name", "billing_class", "billed_requests", *COUNTS)
_SCHEMA: Final = pa.schema([USAGE_DAILY.schema.field(name) for name in _COLUMNS])
_Key = tuple[str, str, str, str]
"""Account, queue, action and day."""


class DayLine(NamedTuple):
    """What an account used of a queue by an action on a day (in UTC), and what that costs, exactly, as text.

    `cost` None: it was not asked for.
    """

    account: str
    queue: str
    action: str
    day: str
    requests: int
    messages: int
    bytes: int
    chunks: int
    errors: int
    cost: str | None = None


def read_days(
    warehouse: Warehouse, first: datetime.date, end: datetime.date, account: str | None = None
) -> Iterator[tuple[datetime.date, Any]]:
    """Yield the days from `first` up to `end` with their rows, added up, in order. `account`: of that one alone."""
    table = warehouse.table(USAGE_DAILY)
    by_day = defaultdict(list)
    for file in table.files():
        day = datetime.date.fromisoformat(file.partition_value or "")
        if first <= day < end:
            by_day[day].append(file)
    for day, files in sorted(by_day.items()):
        if account is None:
            rows = table.read(_COLUMNS, files=files)
        else:
            # Files are sorted by account: only what it may be in is read.
            found = open_files(table.place, USAGE_DAILY, files, _COLUMNS, Accounts(wanted=(account,)))
            rows = pa.concat_tables([_SCHEMA.empty_table(), *found.take(account)])
        yield day, add_up(rows, DAY_KEYS, _SCHEMA)


def usage_of_days(
    warehouse: Warehouse,
    first: datetime.date,
    end: datetime.date,
    *,
    account: str | None = None,
    queue: str | None = None,
    book: PriceBook | None = None,
) -> list[DayLine]:
    """Return lines by day, account, queue and action, with their costs by a price book where one is given.

    Raises NoPrice, BadUsage, AmountTooLarge.
    """
    read_from = first if book is None else first.replace(day=1)
    days = dict(read_days(warehouse, read_from, end, account))
    costs = {} if book is None else _costs(days, book)
    lines: dict[_Key, list[int]] = {}
    for day, rows in days.items():
        if day < first:
            continue
        for row in rows.to_pylist():
            key = (row["account_id"], row["queue_name"], row["action"], str(day))
            counts = lines.setdefault(key, [0] * len(COUNTS))
            for at, name in enumerate(COUNTS):
                counts[at] += row[name]
    found = [
        DayLine(
            *key,
            *(counts[0], counts[1], counts[2], counts[3], counts[4] + counts[5]),
            None if book is None else plain(costs.get(key, Decimal(0))),
        )
        for key, counts in lines.items()
        if queue in (None, key[1])
    ]
    return sorted(found, key=lambda line: (line.day, line.account, line.queue, line.action))


def _costs(days: dict[datetime.date, Any], book: PriceBook) -> dict[_Key, Decimal]:
    """Return what was charged, by account, queue, action and day."""
    months: dict[tuple[str, Month], list[Any]] = {}
    for day, rows in days.items():
        for account in pc.unique(rows.column("account_id")).to_pylist():
            of_account = rows.filter(pc.equal(rows.column("account_id"), account))
            usage = as_usage([of_account], [(day, of_account.num_rows)])
            months.setdefault((account, Month(day.year, day.month)), []).append(usage)
    parts: dict[_Key, list[Decimal]] = defaultdict(list)
    for (account, month), rows in months.items():
        totals: Totals = {}
        for part in rows:
            add_totals(totals, part, month)
        for charges in rate_month(rows, totals, book, account_id=account):
            for charge in charges.select(["day", "queue_name", "action", "cost"]).to_pylist():
                key = (account, charge["queue_name"], charge["action"], str(charge["day"]))
                parts[key].append(charge["cost"])
    return {key: exact_sum(amounts) for key, amounts in parts.items()}

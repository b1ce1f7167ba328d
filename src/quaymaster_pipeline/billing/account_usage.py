"""Usage of days as it is rated: an account after the other, from files of gold.usage_daily, sorted by account."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.rating import USAGE, Totals, add_totals, rate_month
from quaymaster_pipeline.warehouse.account_rows import Accounts, open_files
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY
from quaymaster_pipeline.warehouse.spools import Spool
from quaymaster_pipeline.warehouse.sums import summed

ROWS_AT_ONCE: Final = 1 << 14
_DAY_KEYS: Final = ("region", "queue_sk", "action")
_DAILY_COLUMNS: Final = ("account_id", *_DAY_KEYS, "queue_name", "billing_class", "billed_requests")
_DAILY_SCHEMA: Final = pa.schema([USAGE_DAILY.schema.field(name) for name in _DAILY_COLUMNS])
_USAGE_COLUMNS: Final = {name: name for name in USAGE.names} | {"queue_id": "queue_sk"}
_EPOCH: Final = datetime.date(1970, 1, 1)


class Days:
    """Usage of a month, by account."""

    def __init__(
        self, place: TablePlace, files: Iterable[DataFile], accounts: Accounts, *, of_files: int
    ) -> None:
        """Open files of gold.usage_daily, which share the memory for rows with others: `of_files` in all."""
        by_day: dict[str, list[DataFile]] = {}
        for file in files:
            by_day.setdefault(str(file.partition_value), []).append(file)
        self.streams = [
            (
                datetime.date.fromisoformat(day),
                open_files(
                    place,
                    USAGE_DAILY,
                    of_day,
                    _DAILY_COLUMNS,
                    accounts,
                    of_files=of_files,
                    merge=_added_up,
                ),
            )
            for day, of_day in sorted(by_day.items())
        ]

    def take(self, account: str) -> Iterator[Any]:
        """Yield rows of USAGE of an account, in the order of day, region, queue, action."""
        parts: list[Any] = []
        days: list[tuple[datetime.date, int]] = []
        rows = 0
        for day, stream in self.streams:
            for part in stream.take(account):
                parts.append(part)
                days.append((day, part.num_rows))
                rows += part.num_rows
                if rows >= ROWS_AT_ONCE:
                    yield as_usage(parts, days)
                    parts, days, rows = [], [], 0
        if parts:
            yield as_usage(parts, days)


def _added_up(streams: list[Iterator[Any]]) -> Iterator[Any]:
    return summed(streams, _DAY_KEYS, _DAILY_SCHEMA)


def as_usage(parts: list[Any], days: list[tuple[datetime.date, int]]) -> Any:
    """Return rows of USAGE of rows of gold.usage_daily; `days` says of which day how many are, in turn."""
    rows = pa.concat_tables(parts).combine_chunks()
    numbers = np.repeat([(day - _EPOCH).days for day, _ in days], [count for _, count in days])
    columns = [pa.array(numbers, pa.int32()).cast(pa.date32())]
    columns += [rows.column(_USAGE_COLUMNS[name]) for name in USAGE.names[1:]]
    return pa.table(columns, names=USAGE.names)


class Rated:
    """The usage of an account's month, read once, and its charges, which can be had once."""

    def __init__(self, days: Days, account: str, month: Month, rows: Spool) -> None:
        self._account, self._rows = account, rows
        self._totals: Totals = {}
        for part in days.take(account):
            add_totals(self._totals, part, month)
            rows.add(part)

    @property
    def billed(self) -> int:
        """Billed requests, as the rows have them."""
        return sum(count for of_day in self._totals.values() for count in of_day.values())

    def charges(self, book: PriceBook) -> Iterator[Any]:
        """Yield the charges."""
        return rate_month(self._rows, self._totals, book, account_id=self._account)

"""Daily usage, closed days and invoices of one warehouse, as each process has them that begins anew."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.billing import ACCOUNT, Charge, Correction, Usage, added_up, charges_in, corrections_in
from harness.pipeline_site import InProcess
from quaymaster_pipeline.billing.focus import charges_of
from quaymaster_pipeline.billing.invoices import Invoice
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.store import BillingStore
from quaymaster_pipeline.jobs import invoicing
from quaymaster_pipeline.jobs.invoicing import Invoiced, InvoiceRequest
from quaymaster_pipeline.usage.gold import DAILY, day_sums
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.closes import DayClose, is_closed_file, sealed
from quaymaster_pipeline.warehouse.data_files import DataFile, hash_of_file
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY
from quaymaster_pipeline.warehouse.sums import add_up_files, write_sums
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

DAY = dt.timedelta(days=1)


class Bills:
    """One warehouse. Only its closes are remembered; everything else is read from the tables each time."""

    def __init__(self, root: Path, workers: Workers | None = None) -> None:
        self.root = root
        self._workers = workers or InProcess()
        self.closes: list[DayClose] = []
        self.last_closed: dt.date | None = None
        self._batches = 0

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.root)

    @property
    def store(self) -> BillingStore:
        return BillingStore(self.warehouse)

    @property
    def daily(self) -> Table:
        return self.warehouse.table(USAGE_DAILY)

    def use(self, *usage: Usage, account_id: str = ACCOUNT) -> None:
        """Append usage as a batch does: a file a day."""
        self._batches += 1
        rows = [_daily_row(row, account_id, self._batches) for row in added_up(usage)]
        self.append(rows)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows of usage_daily, a file a day."""
        table = self.daily
        found = pa.Table.from_pylist(
            sorted(rows, key=lambda row: [row[name] for name in ("usage_date", *DAILY.keys)]),
            schema=USAGE_DAILY.schema,
        )
        table.commit("test", None, write_sums(table.place, DAILY, "gold", found))

    def close(self, last_day: dt.date) -> None:
        """Close all days up to one, and what came late to closed ones."""
        table = self.daily
        by_day: dict[str, list[DataFile]] = {}
        for file in table.files():
            if not is_closed_file(file.path) and str(file.partition_value) <= last_day.isoformat():
                by_day.setdefault(str(file.partition_value), []).append(file)
        number = len({close.number for close in self.closes})
        first_batch = max((close.through_batch for close in self.closes), default=-1) + 1
        adds = []
        for date, files in sorted(by_day.items()):
            rows = add_up_files(table, files, ("usage_date", *DAILY.keys), table.spec.schema.names)
            (file,) = write_sums(table.place, DAILY, "closed", rows)
            adds.append(file)
            digest = hash_of_file(table.place, file.path)
            day = dt.date.fromisoformat(date)
            self.closes.append(self._day_close(number, first_batch, day, day_sums(rows), file.path, digest))
        removes = [file for files in by_day.values() for file in files]
        table.commit("close", None, adds, removes=removes)
        self.last_closed = max(last_day, self.last_closed or last_day)

    def _day_close(
        self, number: int, first_batch: int, day: dt.date, sums: dict[str, Any], path: str, digest: bytes
    ) -> DayClose:
        is_late = self.last_closed is not None and day <= self.last_closed
        fields: dict[str, Any] = dict.fromkeys(("blocks", "block_rows", "difference"), 0)
        closed_time = dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) + DAY
        return DayClose(
            number=number,
            day=day,
            is_late=is_late,
            first_batch=first_batch,
            through_batch=self._batches,
            closed_time=closed_time,
            accepted=False,
            files=(path,),
            file_hashes=(digest,),
            previous=b"",
            hash=b"",
            **fields,
            **sums,
        )

    def request(self, month: Month, *accounts: str, **named: Any) -> InvoiceRequest:
        """Return a request of four days after the month, for all accounts unless some are named."""
        found = InvoiceRequest(
            month=month,
            now=month.end + 4 * DAY,
            accounts=accounts or None,
            closes=tuple(sealed(self.closes, b"")),
            last_closed=self.last_closed,
        )
        return replace(found, **named)

    def make(self, request: InvoiceRequest) -> Invoiced:
        """Make invoices as a command does that nobody else bills beside."""
        warehouse = self.warehouse
        with BillingStore(warehouse).writing():
            return invoicing.make_invoices(self._workers, warehouse, request)

    def provisional(self, month: Month, *accounts: str, **named: Any) -> list[Invoice]:
        """Make provisional invoices, and return those asked for."""
        self.make(self.request(month, *accounts, **named))
        return self.invoices(month, *accounts)

    def final(self, month: Month, *accounts: str, **named: Any) -> list[Invoice]:
        """Close the month's days, issue final invoices, and return those asked for."""
        self.close((month.end - DAY).date())
        self.make(self.request(month, *accounts, **{"is_final": True} | named))
        return self.invoices(month, *accounts)

    def invoices(self, month: Month, *accounts: str) -> list[Invoice]:
        return [head.invoice for head in self.store.heads(month, accounts or None)]

    def charges(self, month: Month, account_id: str = ACCOUNT) -> list[Charge]:
        return charges_in([self.store.charges(month, account_id)])

    def corrections(self, invoice: Invoice) -> list[Correction]:
        found = (charges_of(part) for part in self.store.lines(invoice))
        return [
            correction
            for rows in found
            for correction in corrections_in([rows.filter(pa.compute.is_valid(rows.column("month")))])
        ]

    def documents(self, invoice: Invoice, render: Any) -> bytes:
        """Return an invoice as a file, as `billing invoice` writes it."""
        store = self.store
        store.check(invoice)

        def lines() -> Iterator[Any]:
            return store.lines(invoice)

        return b"".join(render(invoice, lines))


def total_of(charges: Sequence[Charge]) -> Decimal:
    return sum((charge.cost for charge in charges), Decimal(0))


def _daily_row(row: Usage, account_id: str, batch: int) -> dict[str, Any]:
    counts = dict.fromkeys((field.name for field in USAGE_DAILY.schema if pa.types.is_int64(field.type)), 0)
    return {
        **counts,
        "region": row.region,
        "account_id": account_id,
        "queue_sk": row.queue_id,
        "queue_name": row.queue_name,
        "queue_type": "fifo" if row.billing_class == "fifo" else "standard",
        "action": row.action,
        "billing_class": row.billing_class,
        "billed_requests": row.billed_requests,
        "requests": 1,
        "source_rows": 1,
        "messages": 2,
        "bytes": 3,
        "first_batch": batch,
        "last_batch": batch,
        "usage_date": row.day,
    }

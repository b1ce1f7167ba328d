"""Billing's tables: reads usage of an account's month, keeps price book, account names, charges and invoices.

Only billing writes its tables, one process at a time: `writing`. Rows of a month are replaced in one commit a table;
the row of `gold.invoices` comes last, so lines without it are of an invoice that was not finished, and are replaced.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.pipeline.billing.focus import COLUMNS, focus_rows
from quaymaster.pipeline.billing.invoices import Correction, Invoice
from quaymaster.pipeline.billing.periods import Month
from quaymaster.pipeline.billing.price_files import each_tier, example_book
from quaymaster.pipeline.billing.prices import PriceBook, PriceVersion, Tier
from quaymaster.pipeline.billing.rating import FREE, Charge, Usage
from quaymaster.pipeline.billing.reconciliation import Comparison
from quaymaster.pipeline.billing.rules import BILLING_CLASSES
from quaymaster.pipeline.billing.tables import (
    ACCOUNTS,
    ADJUSTMENTS,
    BILLING_TABLES,
    CHARGES,
    INVOICES,
    MONTH_COLUMN,
    PRICE_BOOK,
)
from quaymaster.pipeline.schemas import USAGE_EVENTS, USAGE_HOURLY, TableSpec
from quaymaster.pipeline.tables import Warehouse

APP: Final = "billing"
LOCK_FILE: Final = "billing.lock"
_USAGE_COLUMNS: Final = (
    "hour",
    "region",
    "queue_sk",
    "queue_name",
    "action",
    "billing_class",
    "billed_requests",
)
CACHED_READS_MAX: Final = 100
"""Months of a table that are kept in memory while accounts are billed one by one."""


class InvoiceRow(NamedTuple):
    """What `gold.invoices` has of an account's month."""

    month: Month
    fields: Mapping[str, Any]

    @property
    def is_final(self) -> bool:
        """Whether the month is closed for the account."""
        return bool(self.fields["state"] == "final")


class StoreDamaged(Exception):
    """An issued invoice is no longer what it was when it was issued."""


class BillingStore:
    """The tables of one warehouse, as billing sees them."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._reads: dict[tuple[str, int, Month], Any] = {}
        # By version of the usage table: all accounts' months are read at once, since accounts are asked one by one.
        self._months: tuple[int, dict[str, set[Month]]] | None = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only one that bills while the block runs. The pipeline may run beside.

        Raises:
            WarehouseBusy: another process bills.
        """
        with self._warehouse.only_writer(LOCK_FILE, "writes invoices or prices"):
            for spec in BILLING_TABLES:
                self._warehouse.table(spec).refresh()
            yield

    def delete_old_files(self, keep_hours: int) -> int:
        """Delete files that no table of billing has had for so long; return how many. Raises WarehouseBusy."""
        with self.writing():
            return sum(self._warehouse.table(spec).vacuum(keep_hours) for spec in BILLING_TABLES)

    # Usage

    @property
    def usage_version(self) -> int:
        """The version of gold.usage_hourly that is read."""
        return self._warehouse.table(USAGE_HOURLY).version

    def accounts_with_usage(self, month: Month) -> list[str]:
        """Return the accounts that used something in a month, sorted. Usage of no account is nobody's."""
        return sorted(filter(None, pc.unique(self._usage_of(month).column("account_id")).to_pylist()))

    def months_with_usage(self, account_id: str) -> list[Month]:
        """Return the months in which an account used something, sorted."""
        table = self._warehouse.table(USAGE_HOURLY)
        if self._months is None or self._months[0] != table.version:
            months: dict[str, set[Month]] = {}
            names = ["account_id", "usage_date"]
            for row in table.read(names).group_by(names).aggregate([]).to_pylist():
                day = row["usage_date"]
                months.setdefault(row["account_id"], set()).add(Month(day.year, day.month))
            self._months = table.version, months
        return sorted(self._months[1].get(account_id, ()))

    def usage(self, month: Month, account_id: str) -> list[Usage]:
        """Return what an account used in a month, to be rated."""
        rows = self._usage_of(month)
        rows = rows.filter(pc.equal(rows.column("account_id"), account_id))
        return [
            Usage(*values)
            for values in zip(*(rows.column(name).to_pylist() for name in _USAGE_COLUMNS), strict=True)
        ]

    def layer_counts(self, month: Month, account_id: str) -> list[Comparison]:
        """Return what silver and gold count for an account's month, each by itself."""
        gold = self._usage_of(month)
        silver = self._read_month(USAGE_EVENTS, month, ["account_id", *_SILVER_SUMS])
        found = []
        for measure, (silver_name, gold_name) in _MEASURES.items():
            counts = []
            for place, rows, name in (("silver", silver, silver_name), ("gold", gold, gold_name)):
                mine = rows.filter(pc.equal(rows.column("account_id"), account_id))
                count = mine.num_rows if name is None else pc.sum(mine.column(name)).as_py() or 0
                counts.append((place, count))
            found.append(Comparison(f"{account_id} in {month}", measure, tuple(counts)))
        return found

    def _usage_of(self, month: Month) -> Any:
        names = ["account_id", *_USAGE_COLUMNS, "messages", "bytes", "source_rows"]
        return self._read_month(USAGE_HOURLY, month, names)

    def _read_month(self, spec: TableSpec, month: Month, names: Sequence[str] | None = None) -> Any:
        """Return the rows of a month of a table that is partitioned by days or months."""
        table = self._warehouse.table(spec)
        key = (spec.name, table.version, month)
        if key not in self._reads:
            if len(self._reads) >= CACHED_READS_MAX:
                self._reads.clear()
            prefix = f"{month}-"
            files = [file for file in table.files() if (file.partition_value or "").startswith(prefix)]
            self._reads[key] = table.read(names, files=files)
        return self._reads[key]

    # Prices and accounts

    def book(self) -> PriceBook:
        """Return the price book that is set, else the example that is shipped."""
        rows = self._warehouse.table(PRICE_BOOK).read().to_pylist()
        if not rows:
            return example_book()
        by_number: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            by_number.setdefault(row["number"], []).append(row)
        versions = []
        for number, of_version in by_number.items():
            first = of_version[0]
            tiers = {
                name: tuple(
                    sorted(
                        (Tier(r["above"], r["unit_price"]) for r in of_version if r["billing_class"] == name),
                        key=lambda tier: tier.above,
                    )
                )
                for name in BILLING_CLASSES
            }
            times = (first["valid_from"], first["valid_to"])
            versions.append(PriceVersion(number, *times, first["free_requests"], tiers))
        return PriceBook(rows[0]["name"], rows[0]["currency"], tuple(versions), rows[0]["issuer"])

    def set_book(self, book: PriceBook) -> None:
        """Keep a price book in place of the one before."""
        rows = [
            {
                "name": book.name,
                "currency": book.currency,
                "issuer": book.issuer,
                "number": version.number,
                "valid_from": version.valid_from,
                "valid_to": version.valid_to,
                "free_requests": version.free_requests,
                "billing_class": billing_class,
                "above": tier.above,
                "unit_price": tier.unit_price,
            }
            for version, billing_class, tier in each_tier(book)
        ]
        self._replace_all(PRICE_BOOK, rows)

    def account_names(self, at: datetime.datetime) -> dict[str, str]:
        """Return what accounts were called at a time, or, where they were not known yet, first."""
        names: dict[str, str] = {}
        rows = self._warehouse.table(ACCOUNTS).read().to_pylist()
        for row in sorted(rows, key=lambda row: row["valid_from"]):
            if row["account_id"] not in names or row["valid_from"] <= at:
                names[row["account_id"]] = row["account_name"]
        return names

    def set_account_names(self, names: Mapping[str, str], now: datetime.datetime) -> int:
        """Keep what accounts are called from now on; return how many are new or called otherwise."""
        rows = self._warehouse.table(ACCOUNTS).read().to_pylist()
        current = {row["account_id"]: row for row in rows if row["valid_to"] is None}
        changed = 0
        for account_id, name in sorted(names.items()):
            row = current.get(account_id)
            if row is not None and row["account_name"] == name:
                continue
            if row is not None:
                row["valid_to"] = now
            changed += 1
            rows.append({"account_id": account_id, "account_name": name, "valid_from": now, "valid_to": None})
        if changed:
            self._replace_all(ACCOUNTS, rows)
        return changed

    # Invoices

    def invoice_rows(self, account_id: str | None = None, month: Month | None = None) -> list[InvoiceRow]:
        """Return what is known of invoices, by month and account."""
        if month is None:
            days = {file.partition_value or "" for file in self._warehouse.table(INVOICES).files()}
            months = sorted({Month.parse(day[:7]) for day in days})
        else:
            months = [month]
        found = []
        for one in months:
            rows = self._read_month(INVOICES, one)
            if account_id is not None:
                rows = rows.filter(pc.equal(rows.column("account_id"), account_id))
            found += [InvoiceRow(one, row) for row in rows.to_pylist()]
        return sorted(found, key=lambda row: (row.month, row.fields["account_id"]))

    def load(self, row: InvoiceRow) -> Invoice:
        """Return an invoice as it was written. Raises StoreDamaged when its lines are not those it was made of."""
        fields = row.fields
        account_id = fields["account_id"]
        invoice = Invoice(
            *(account_id, fields["account_name"], row.month, fields["currency"], fields["issuer"]),
            *(fields["price_book"], fields["revision"], fields["state"]),
            None if fields["issued"] is None else fields["issued"].astimezone(datetime.UTC),
            tuple(self.charges(row.month, account_id)),
            tuple(self.corrections(row.month, account_id)),
        )
        if invoice.digest != fields["digest"]:
            raise StoreDamaged(
                f"the lines of {account_id} in {row.month} in gold.charges and gold.adjustments are not those that "
                f"gold.invoices was written for"
            )
        return invoice

    def charges(self, month: Month, account_id: str) -> list[Charge]:
        """Return the charges of an account's month as they were last written."""
        return [
            _charge(row)
            for row in self._lines(CHARGES, month, account_id)
            if row["ChargeCategory"] == "Usage"
        ]

    def corrections(self, into: Month, account_id: str) -> list[Correction]:
        """Return the corrections that an account's month has of earlier ones."""
        return [
            Correction(Month.parse(row["x_corrected_period"]), row["x_corrects_line_id"], _charge(row))
            for row in self._lines(ADJUSTMENTS, into, account_id)
        ]

    def write_invoices(self, month: Month, invoices: Sequence[tuple[Invoice, Sequence[Comparison]]]) -> None:
        """Write invoices of a month in place of what their accounts had in it."""
        accounts = [invoice.account_id for invoice, _ in invoices]
        for spec, of_table in ((CHARGES, None), (ADJUSTMENTS, "Correction")):
            rows = [
                row
                for invoice, _ in invoices
                for row in focus_rows(invoice)
                if row["ChargeClass"] == of_table
            ]
            self._replace_month(spec, month, "BillingAccountId", accounts, rows)
        heads = [_invoice_fields(invoice, compared, self.usage_version) for invoice, compared in invoices]
        self._replace_month(INVOICES, month, "account_id", accounts, heads)

    def _lines(self, spec: TableSpec, month: Month, account_id: str) -> list[dict[str, Any]]:
        """Return lines in the order in which they were written."""
        rows = self._read_month(spec, month)
        found: list[dict[str, Any]] = rows.filter(
            pc.equal(rows.column("BillingAccountId"), account_id)
        ).to_pylist()
        return found

    def _replace_month(
        self,
        spec: TableSpec,
        month: Month,
        account_column: str,
        accounts: Sequence[str],
        rows: Iterable[Mapping[str, Any]],
    ) -> None:
        table = self._warehouse.table(spec)
        first_day = month.start.date()
        files = [file for file in table.files() if file.partition_value == str(first_day)]
        before = table.read(files=files)
        others = before.filter(
            pc.invert(pc.is_in(before.column(account_column), pa.array(accounts, pa.string())))
        )
        written = pa.Table.from_pylist([{**row, MONTH_COLUMN: first_day} for row in rows], schema=spec.schema)
        if not written.num_rows and others.num_rows == before.num_rows:
            return
        together = pa.concat_tables([others, written])
        adds = table.write(APP, together)
        table.commit(APP, table.last_batch(APP) + 1, adds, removes=files)

    def _replace_all(self, spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self._warehouse.table(spec)
        files = table.files()
        adds = table.write(APP, pa.Table.from_pylist(list(rows), schema=spec.schema))
        table.commit(APP, table.last_batch(APP) + 1, adds, removes=files)


_MEASURES: Final[dict[str, tuple[str | None, str]]] = {
    "requests": (None, "source_rows"),
    "billed requests": ("billed_requests", "billed_requests"),
    "messages": ("messages", "messages"),
    "bytes": ("bytes", "bytes"),
}
"""What is compared: the columns of silver (None counts rows) and of gold."""
_SILVER_SUMS: Final = [name for name, _ in _MEASURES.values() if name is not None]


def _invoice_fields(invoice: Invoice, compared: Sequence[Comparison], usage_version: int) -> dict[str, Any]:
    return {
        "invoice_id": invoice.invoice_id,
        "state": invoice.state,
        "revision": invoice.revision,
        "issued": invoice.issued,
        "account_id": invoice.account_id,
        "account_name": invoice.account_name,
        "issuer": invoice.issuer,
        "price_book": invoice.price_book,
        "currency": invoice.currency,
        "payable": invoice.payable,
        "exact_total": invoice.exact_total,
        "rounding": invoice.rounding,
        "billed_requests": invoice.quantity,
        "lines": len(invoice.charges) + len(invoice.corrections) + 1,
        "digest": invoice.digest,
        "usage_version": usage_version,
        "reconciliation": json.dumps([comparison.as_json() for comparison in compared]),
    }


def _charge(row: Mapping[str, Any]) -> Charge:
    """Return the charge that a line was made of."""
    assert set(row) >= set(COLUMNS), "lines have all columns"
    return Charge(
        line_id=row["x_line_id"],
        day=row["ChargePeriodStart"].astimezone(datetime.UTC),
        region=row["RegionId"],
        queue_id=row["x_queue_id"] or 0,
        queue_name=row["ResourceName"] or "",
        action=row["x_action"],
        billing_class=row["x_billing_class"],
        price_version=row["x_price_version"],
        tier=FREE if row["x_tier"] == "free" else int(row["x_tier"]) - 1,
        unit_price=row["ListUnitPrice"],
        quantity=row["ConsumedQuantity"],
        cost=row["BilledCost"],
        rule_version=row["x_rule_version"],
    )

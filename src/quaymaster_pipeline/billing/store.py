"""Billing's tables: reads usage of an account's month, keeps price book, account names, charges and invoices.

Only billing writes its tables, one process at a time: `writing`. Rows of a month are replaced in one commit a table;
the row of `gold.invoices` comes last, so lines without it are of an invoice that was not finished, and are replaced.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.focus import focus_rows
from quaymaster_pipeline.billing.invoices import Correction, Invoice
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.price_files import each_tier, example_book
from quaymaster_pipeline.billing.prices import PriceBook, PriceVersion, Tier
from quaymaster_pipeline.billing.rating import FREE, Charge, Usage
from quaymaster_pipeline.billing.reconciliation import BillingComparison
from quaymaster_pipeline.billing.rules import BILLING_CLASSES
from quaymaster_pipeline.billing.tables import (
    ACCOUNTS,
    ADJUSTMENTS,
    BILLING_TABLES,
    CHARGES,
    INVOICES,
    MONTH_COLUMN,
    PRICE_BOOK,
)
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS, USAGE_HOURLY, TableSpec
from quaymaster_pipeline.warehouse.sums import add_up_files
from quaymaster_pipeline.warehouse.tables import Warehouse

Result = TypeVar("Result")

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
_LINE_COLUMNS: Final = (
    *("BillingAccountId", "ChargeCategory", "ChargePeriodStart", "RegionId", "ResourceName"),
    *("ListUnitPrice", "ConsumedQuantity", "BilledCost", "x_line_id", "x_queue_id", "x_action"),
    *("x_billing_class", "x_price_version", "x_tier", "x_rule_version"),
    *("x_corrected_period", "x_corrects_line_id"),
)
"""What an invoice's lines are made of again; a third of what they have."""
CACHED_READS_MAX: Final = 200
"""Months of a table that are kept in memory while accounts are billed one by one: those that corrections look at."""


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
        # Accounts are asked one by one; so what is read is read for all of them, once a version of its table.
        self._reads: dict[tuple[str, Month], tuple[int, _ByAccount]] = {}
        self._kept: dict[Any, tuple[tuple[int, ...], Any]] = {}

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
        return sorted(filter(None, self._usage_of(month).accounts))

    def months_with_usage(self, account_id: str) -> list[Month]:
        """Return the months in which an account used something, sorted."""

        def read() -> dict[str, set[Month]]:
            months: dict[str, set[Month]] = {}
            names = ["account_id", "usage_date"]
            rows = self._warehouse.table(USAGE_HOURLY).read(names)
            for row in rows.group_by(names).aggregate([]).to_pylist():
                day = row["usage_date"]
                months.setdefault(row["account_id"], set()).add(Month(day.year, day.month))
            return months

        return sorted(self._keep("months with usage", (USAGE_HOURLY,), read).get(account_id, ()))

    def usage(self, month: Month, account_id: str) -> list[Usage]:
        """Return what an account used in a month, to be rated."""
        rows = self._usage_of(month).rows_of(account_id)
        return [
            Usage(*values)
            for values in zip(*(rows.column(name).to_pylist() for name in _USAGE_COLUMNS), strict=True)
        ]

    def layer_counts(self, month: Month, account_id: str) -> list[BillingComparison]:
        """Return what silver and gold count for an account's month, each by itself."""

        def read(spec: TableSpec, sums: list[tuple[str, str]]) -> dict[str, dict[str, int]]:
            names = ["account_id", *(name for name, how in sums if how == "sum")]
            rows = self._rows_of(spec, month, names)
            rows = rows.group_by("account_id").aggregate([*sums, ("account_id", "count")])
            return {row["account_id"]: row for row in rows.to_pylist()}

        places = {}
        for place, spec, names in (
            ("silver", USAGE_EVENTS, _SILVER_SUMS),
            ("gold", USAGE_HOURLY, _GOLD_SUMS),
        ):
            sums = [(name, "sum") for name in names]
            counted = self._keep((place, month), (spec,), partial(read, spec, sums))
            places[place] = counted.get(account_id, {})
        return [
            BillingComparison(
                f"{account_id} in {month}",
                measure,
                (
                    ("silver", places["silver"].get(silver_name) or 0),
                    ("gold", places["gold"].get(gold_name) or 0),
                ),
            )
            for measure, (silver_name, gold_name) in _MEASURES.items()
        ]

    def _usage_of(self, month: Month) -> _ByAccount:
        def read() -> Any:
            keys = ["account_id", *(name for name in _USAGE_COLUMNS if name != "billed_requests")]
            files = self._files_of(USAGE_HOURLY, month)
            return add_up_files(
                self._warehouse.table(USAGE_HOURLY), files, keys, ["account_id", *_USAGE_COLUMNS]
            )

        return self._read_month(USAGE_HOURLY, month, "account_id", read)

    def _read_month(
        self, spec: TableSpec, month: Month, account_column: str, read: Callable[[], Any]
    ) -> _ByAccount:
        """Return what is read of a month of a table; once, as long as the table does not change."""
        version = self._warehouse.table(spec).version
        key = spec.name, month
        known = self._reads.get(key)
        if known is None or known[0] != version:
            if len(self._reads) >= CACHED_READS_MAX:
                self._reads.clear()
            known = version, _ByAccount(read(), account_column)
            self._reads[key] = known
        return known[1]

    def _rows_of(self, spec: TableSpec, month: Month, names: Sequence[str] | None) -> Any:
        return self._warehouse.table(spec).read(names, files=self._files_of(spec, month))

    def _files_of(self, spec: TableSpec, month: Month) -> list[DataFile]:
        """Return the files of a month of a table that is partitioned by days or months."""
        files = self._warehouse.table(spec).files()
        return [file for file in files if (file.partition_value or "").startswith(f"{month}-")]

    def _keep(self, what: Any, specs: Sequence[TableSpec], read: Callable[[], Result]) -> Result:
        """Return what is read of these tables; once, as long as none of them changes."""
        versions = tuple(self._warehouse.table(spec).version for spec in specs)
        if self._kept.get(what, ((), None))[0] != versions:
            self._kept[what] = versions, read()
        found: Result = self._kept[what][1]
        return found

    # Prices and accounts

    def book(self) -> PriceBook:
        """Return the price book that is set, else the example that is shipped."""
        return self._keep("book", (PRICE_BOOK,), self._read_book)

    def _read_book(self) -> PriceBook:
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

        def read() -> dict[str, str]:
            names: dict[str, str] = {}
            rows = self._warehouse.table(ACCOUNTS).read().to_pylist()
            for row in sorted(rows, key=lambda row: row["valid_from"]):
                if row["account_id"] not in names or row["valid_from"] <= at:
                    names[row["account_id"]] = row["account_name"]
            return names

        return self._keep(("names", at), (ACCOUNTS,), read)

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
        rows, by_account = self._keep("invoices", (INVOICES,), self._read_invoices)
        if account_id is not None:
            rows = by_account.get(account_id, [])
        return [row for row in rows if month in (None, row.month)]

    def _read_invoices(self) -> tuple[list[InvoiceRow], dict[str, list[InvoiceRow]]]:
        rows = []
        for fields in self._warehouse.table(INVOICES).read().to_pylist():
            day = fields[MONTH_COLUMN]
            rows.append(InvoiceRow(Month(day.year, day.month), fields))
        rows.sort(key=lambda row: (row.month, row.fields["account_id"]))
        by_account: dict[str, list[InvoiceRow]] = {}
        for row in rows:
            by_account.setdefault(row.fields["account_id"], []).append(row)
        return rows, by_account

    def load(self, row: InvoiceRow) -> Invoice:
        """Return an invoice as it was written. Raises StoreDamaged when its lines are not those it was made of."""
        fields = row.fields
        account_id = fields["account_id"]
        invoice = Invoice(
            account_id=account_id,
            account_name=fields["account_name"],
            month=row.month,
            currency=fields["currency"],
            issuer=fields["issuer"],
            price_book=fields["price_book"],
            charges=tuple(self.charges(row.month, account_id)),
            corrections=tuple(self.corrections(row.month, account_id)),
            revision=fields["revision"],
            state=fields["state"],
            issued=None if fields["issued"] is None else fields["issued"].astimezone(datetime.UTC),
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

    def write_invoices(
        self, month: Month, invoices: Sequence[tuple[Invoice, Sequence[BillingComparison]]]
    ) -> None:
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
        lines = self._read_month(
            spec, month, "BillingAccountId", partial(self._rows_of, spec, month, _LINE_COLUMNS)
        )
        found: list[dict[str, Any]] = lines.rows_of(account_id).to_pylist()
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


_SILVER_SUMS: Final = ("billed_requests", "messages", "bytes")
_GOLD_SUMS: Final = ("source_rows", *_SILVER_SUMS)
_MEASURES: Final = {
    "requests": ("account_id_count", "source_rows_sum"),
    "billed requests": ("billed_requests_sum", "billed_requests_sum"),
    "messages": ("messages_sum", "messages_sum"),
    "bytes": ("bytes_sum", "bytes_sum"),
}
"""What is compared: sums of silver, whose rows are requests, and of gold."""


class _ByAccount:
    """Rows of a table, an account's without a look at those of others; each account's in the order of the table."""

    def __init__(self, rows: Any, account_column: str) -> None:
        encoded = pc.dictionary_encode(rows.column(account_column)).combine_chunks()
        codes = encoded.indices.to_numpy()
        self._rows = rows.take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()
        accounts = encoded.dictionary.to_pylist()
        counts = np.bincount(codes, minlength=len(accounts)).tolist()
        ends = accumulate(counts)
        self._places = {
            account_id: (end - count, count)
            for account_id, end, count in zip(accounts, ends, counts, strict=True)
        }

    @property
    def accounts(self) -> Iterable[str]:
        """All accounts that have rows."""
        return self._places.keys()

    def rows_of(self, account_id: str) -> Any:
        """Return an account's rows."""
        return self._rows.slice(*self._places.get(account_id, (0, 0)))


def _invoice_fields(
    invoice: Invoice, compared: Sequence[BillingComparison], usage_version: int
) -> dict[str, Any]:
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

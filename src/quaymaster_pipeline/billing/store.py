"""Billing's tables: price book, account names, and invoices as they were written.

Only billing writes its tables, one process at a time: `writing`. Rows of a month are replaced in one commit a table;
the row of `gold.invoices` comes last, so lines without it are of an invoice that was not finished, and are replaced.
Invoices and lines are read as streams: what is in memory does not grow with them.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.focus import LINE_COLUMNS, LINES, only_charges, rounding_line
from quaymaster_pipeline.billing.invoices import Invoice
from quaymaster_pipeline.billing.issued import InvoiceCheck, sum_of_rows, why_not_issued
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.price_files import each_tier, example_book
from quaymaster_pipeline.billing.prices import PriceBook, PriceVersion, Tier
from quaymaster_pipeline.billing.rating import CHARGES as CHARGE_SCHEMA
from quaymaster_pipeline.billing.reconciliation import BillingComparison
from quaymaster_pipeline.billing.rules import BILLING_CLASSES
from quaymaster_pipeline.billing.service import StoreDamaged, refuse_other_prices
from quaymaster_pipeline.billing.tables import (
    ACCOUNT_COLUMN,
    ACCOUNTS,
    ADJUSTMENTS,
    BILLING_TABLES,
    CHARGES,
    INVOICES,
    PRICE_BOOK,
)
from quaymaster_pipeline.warehouse.account_rows import Accounts, each_account, open_files
from quaymaster_pipeline.warehouse.data_files import RESTORE, DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.row_sums import RowSum
from quaymaster_pipeline.warehouse.schemas import TableSpec
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

APP: Final = "billing"
LOCK_FILE: Final = "billing.lock"
FINAL: Final = "final"
"""The note of gold.invoices: months that have final invoices, each with the close up to which every account has one
(-1: some accounts were left out)."""
HEADS: Final = "heads"
"""The same of what the rows of a month's final invoices add up to, so that one which is changed or gone is noticed."""
ROWS: Final = "rows"
"""The note of ops.price_book and ops.dim_account: what their rows add up to."""


class Head(NamedTuple):
    """A row of gold.invoices: an invoice, and what was compared for it."""

    invoice: Invoice
    compared: list[BillingComparison]


class BillingStore:
    """The tables of one warehouse, as billing sees them."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

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

    # Prices and accounts

    def book(self) -> PriceBook:
        """Return the price book that is set, else the example that is shipped."""
        rows = self._read_all(PRICE_BOOK)
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
        """Keep a price book in place of the one before.

        Raises:
            PricesAreClosed: a closed month would have cost something else by it.
        """
        refuse_other_prices(book, self.book(), self.final_months())
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
        return names_at(self._read_all(ACCOUNTS), at)

    def set_account_names(self, names: Mapping[str, str], now: datetime.datetime) -> int:
        """Keep what accounts are called from now on; return how many are new or called otherwise."""
        rows = self._read_all(ACCOUNTS)
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

    def final_months(self) -> dict[Month, int]:
        """Return the months that have final invoices, each with the close that `FINAL` tells."""
        months = self._warehouse.table(INVOICES).note(APP).get(FINAL, {})
        return {Month.parse(text): close for text, close in sorted(months.items())}

    def heads(self, month: Month, accounts: Iterable[str] | None = None) -> Iterator[Head]:
        """Yield the invoices of a month, or those of some accounts, in the order of the accounts."""
        wanted = None if accounts is None else tuple(sorted(set(accounts)))
        found = self._open(INVOICES, month, INVOICES.file_schema.names, Accounts(wanted=wanted), "account_id")
        for account in each_account([found]):
            for part in found.take(account):
                yield from (head_of(row, month) for row in part.to_pylist())

    def count_final(self, month: Month, accounts: Iterable[str]) -> int:
        """Return how many of these accounts have a final invoice of a month."""
        wanted = Accounts(wanted=tuple(sorted(set(accounts))))
        found = self._open(INVOICES, month, ["account_id", "state"], wanted, "account_id")
        return sum(
            pc.sum(pc.equal(part.column("state"), "final")).as_py() or 0
            for account in each_account([found])
            for part in found.take(account)
        )

    def lines(self, invoice: Invoice) -> Iterator[Any]:
        """Yield the lines of an invoice in the columns of FOCUS: charges, corrections, the rounding."""
        for spec in (CHARGES, ADJUSTMENTS):
            for part in self._parts(spec, invoice):
                rows = part.filter(pc.equal(part.column("ChargeCategory"), "Usage"))
                if rows.num_rows:
                    yield rows
        yield rounding_line(invoice)

    def check(self, invoice: Invoice) -> None:
        """Raise StoreDamaged unless an invoice is what its lines come to, and these are those that it was made of."""
        check = InvoiceCheck(invoice)
        for part in self._parts(CHARGES, invoice):
            check.add_charges(part)
        for part in self._parts(ADJUSTMENTS, invoice):
            check.add_corrections(part)
        reason = check.reason()
        if reason is not None:
            raise StoreDamaged(reason)

    def check_names(self) -> None:
        """Raise StoreDamaged unless the names of accounts are those that were kept."""
        table = self._warehouse.table(ACCOUNTS)
        rows = _rows_in(table.place, ACCOUNTS, (file.path for file in table.files()))
        _refuse_other_rows(table, sum_of_rows(rows))

    def check_issued(self, month: Month) -> None:
        """Raise StoreDamaged unless the final invoices of a month are those that were issued."""
        table = self._warehouse.table(INVOICES)
        found = issued_in(table.place, (file.path for file in files_of(table, month)))
        refuse_others(month, noted_issued(table, month), found)

    def charges(self, month: Month, account_id: str) -> Any:
        """Return the charges of an account's month as they were last written, all in memory."""
        found = self._open(CHARGES, month, LINE_COLUMNS, Accounts(wanted=(account_id,)))
        parts = [only_charges(part) for part in found.take(account_id)]
        return pa.concat_tables([CHARGE_SCHEMA.empty_table(), *parts])

    def _parts(self, spec: TableSpec, invoice: Invoice) -> Iterator[Any]:
        """Yield all rows of a table that an invoice has, in the columns of FOCUS."""
        found = self._open(spec, invoice.month, LINES.names, Accounts(wanted=(invoice.account_id,)))
        yield from found.take(invoice.account_id)

    def _open(
        self,
        spec: TableSpec,
        month: Month,
        names: Sequence[str],
        accounts: Accounts,
        by: str = ACCOUNT_COLUMN,
    ) -> Any:
        table = self._warehouse.table(spec)
        return open_files(table.place, spec, files_of(table, month), names, accounts, by=by, of_files=64)

    def _read_all(self, spec: TableSpec) -> list[dict[str, Any]]:
        """Return the rows of a small table. Raises StoreDamaged if they are not those that were set."""
        table = self._warehouse.table(spec)
        rows: list[dict[str, Any]] = table.read().to_pylist()
        _refuse_other_rows(table, sum_of_rows(rows))
        return rows

    def _replace_all(self, spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self._warehouse.table(spec)
        files, written = table.files(), pa.Table.from_pylist(list(rows), schema=spec.schema)
        note = {ROWS: sum_of_rows(written.to_pylist()).to_json()}
        table.commit(APP, table.last_batch(APP) + 1, table.write(APP, written), removes=files, note=note)


def _refuse_other_rows(table: Table, found: RowSum) -> None:
    said = table.note(APP).get(ROWS)
    if said is not None and RowSum.from_json(said) != found:
        raise StoreDamaged(
            f"rows of {table.spec.name} were changed, deleted or put in since they were set; {RESTORE}"
        )


def noted_issued(table: Table, month: Month) -> RowSum | None:
    """Return what a version of gold.invoices notes of the final invoices of a month; None: nothing."""
    note = table.note(APP)
    found = note.get(HEADS, {}).get(str(month))
    if found is not None:
        return RowSum.from_json(found)
    return None if str(month) in note.get(FINAL, {}) else RowSum()


def issued_in(place: TablePlace, paths: Iterable[str]) -> RowSum:
    """Return what the final invoices in some files of gold.invoices add up to."""
    return issued_of(_rows_in(place, INVOICES, paths))


def issued_of(rows: Iterable[Mapping[str, Any]]) -> RowSum:
    """Return what the final ones of rows of gold.invoices add up to."""
    return sum_of_rows(row for row in rows if row["state"] == "final")


def _rows_in(place: TablePlace, spec: TableSpec, paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for rows in read_row_groups(place, spec, path):
            yield from rows.to_pylist()


def refuse_others(month: Month, said: RowSum | None, found: RowSum) -> None:
    """Raise StoreDamaged if the final invoices of a month are not those that were issued."""
    reason = why_not_issued(str(month), said, found)
    if reason is not None:
        raise StoreDamaged(f"{reason}; `quaymaster pipeline verify` says which, and {RESTORE}")


def files_of(table: Table, month: Month) -> tuple[DataFile, ...]:
    """Return the files of a month of a table that is partitioned by days or months."""
    return files_of_months(table, (month,))[month]


def files_of_months(table: Table, months: Iterable[Month]) -> dict[Month, tuple[DataFile, ...]]:
    """Return the files of each of these months, of such a table, whose log is read once."""
    found: dict[Month, list[DataFile]] = {month: [] for month in months}
    lines = table.file_lines()
    if lines.num_rows:
        values = lines.column(f"partition.{table.spec.partition_column}").cast(pa.string())
        wanted = pa.array([str(month) for month in found], pa.string())
        lines = lines.filter(pc.is_in(pc.utf8_slice_codeunits(values, 0, len("2026-11")), wanted))
    for file in table.files(lines):
        found[Month.of_day(file.partition_value or "")].append(file)
    return {month: tuple(files) for month, files in found.items()}


def first_day_of(table: Table) -> datetime.date | None:
    """Return the first day that a table which is partitioned by days has rows of; None without any."""
    lines = table.file_lines()
    if not lines.num_rows:
        return None
    days = lines.column(f"partition.{table.spec.partition_column}").cast(pa.date32())
    first: datetime.date | None = pc.min(days).as_py()
    return first


def names_at(rows: Iterable[Mapping[str, Any]], at: datetime.datetime) -> dict[str, str]:
    """Return what accounts were called at a time, or, not known yet, first, by rows of ops.dim_account."""
    names: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["valid_from"]):
        if row["account_id"] not in names or row["valid_from"] <= at:
            names[row["account_id"]] = row["account_name"]
    return names


def head_row(invoice: Invoice, compared: Sequence[BillingComparison], **versions: int) -> dict[str, Any]:
    """Return the row of gold.invoices of an invoice."""
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
        "lines": invoice.lines,
        "digest": invoice.digest,
        "reconciliation": json.dumps([comparison.as_json() for comparison in compared]),
        **versions,
    }


def is_row_of(row: Mapping[str, Any], invoice: Invoice) -> bool:
    """Return whether a row of gold.invoices says what an invoice says, whatever was compared and read for it."""
    expected = head_row(invoice, ())
    return all(row[name] == value for name, value in expected.items() if name != "reconciliation")


def head_of(row: Mapping[str, Any], month: Month) -> Head:
    """Return what a row of gold.invoices says."""
    invoice = Invoice(
        account_id=row["account_id"],
        account_name=row["account_name"],
        month=month,
        currency=row["currency"],
        issuer=row["issuer"],
        price_book=row["price_book"],
        quantity=row["billed_requests"],
        exact_total=row["exact_total"],
        lines=row["lines"],
        digest=row["digest"],
        revision=row["revision"],
        state=row["state"],
        issued=None if row["issued"] is None else row["issued"].astimezone(datetime.UTC),
    )
    return Head(invoice, [BillingComparison.from_json(one) for one in json.loads(row["reconciliation"])])

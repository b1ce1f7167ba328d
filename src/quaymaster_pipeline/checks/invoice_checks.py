"""Whether final invoices are those that were issued, and are of what was used: a stretch of accounts after the other.

    gold.invoices ──▶ what the commits that issued them note
    gold.charges, gold.adjustments ──made again──▶ the row of gold.invoices
    closed days of gold.usage_daily ──rated again──▶ the same digest

Provisional invoices are made again whenever they are asked for, so nothing is said of them. Next to a run that bills,
lines may be there whose invoices were looked for before: they are only named where invoices are missing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from quaymaster_pipeline.billing.account_usage import Days, Rated
from quaymaster_pipeline.billing.focus import LINES
from quaymaster_pipeline.billing.invoices import Invoice, InvoiceSums
from quaymaster_pipeline.billing.issued import InvoiceCheck, why_not_issued
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.rating import REFUSED_BY_PRICES, USAGE
from quaymaster_pipeline.billing.service import StoreDamaged
from quaymaster_pipeline.billing.store import (
    APP,
    FINAL,
    BillingStore,
    files_of_months,
    head_of,
    issued_of,
    noted_issued,
)
from quaymaster_pipeline.billing.tables import (
    ACCOUNT_COLUMN,
    ACCOUNTS,
    ADJUSTMENTS,
    CHARGES,
    INVOICES,
    PRICE_BOOK,
)
from quaymaster_pipeline.checks.usage_breaks import Findings, UsageBreak
from quaymaster_pipeline.usage.tasks import Answers, answer_counts
from quaymaster_pipeline.warehouse.account_rows import Accounts, each_account, open_files, ranges_of
from quaymaster_pipeline.warehouse.closes import DayClose
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace
from quaymaster_pipeline.warehouse.row_sums import RowSum
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY, TableSpec
from quaymaster_pipeline.warehouse.spools import Spool
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

FINAL_INVOICES: Final = "final invoices"
"""Under which name tasks count them."""
_OF_FILES: Final = 64
_LINES_ALONE: Final = "lines without an invoice"
_TABLES: Final = (INVOICES, CHARGES, ADJUSTMENTS)


@dataclass(frozen=True, slots=True)
class SeenInvoices:
    """Final invoices by month, as tasks are told of them. `wrong`: what is wrong with prices or names."""

    places: Mapping[str, TablePlace]
    files: Mapping[Month, Mapping[str, tuple[DataFile, ...]]]
    noted: Mapping[Month, RowSum | None]
    book: PriceBook | None
    wrong: tuple[UsageBreak, ...]


def look_at_invoices(warehouse: Warehouse) -> SeenInvoices:
    """Look at the tables of billing once: before the days that invoices are of, and invoices before their lines."""
    places = {spec.name: warehouse.place(spec) for spec in (*_TABLES, USAGE_DAILY)}
    invoices, charges, adjustments = (Table(spec, places[spec.name]) for spec in _TABLES)
    months = {Month.parse(text) for text in invoices.note(APP).get(FINAL, {})}
    months |= {Month.of_day(day) for day in invoices.partitions()}
    book, wrong = None, []
    store = BillingStore(warehouse.another())
    for spec, read in ((PRICE_BOOK, store.book), (ACCOUNTS, store.check_names)):
        try:
            book = read() or book
        except StoreDamaged as error:
            wrong.append(UsageBreak(spec.name, str(error)))
    files = {table.spec.name: files_of_months(table, months) for table in (invoices, charges, adjustments)}
    return SeenInvoices(
        places,
        {month: {name: of_table[month] for name, of_table in files.items()} for month in sorted(months)},
        {month: noted_issued(invoices, month) for month in months},
        book,
        tuple(wrong),
    )


def plan_invoices(seen: SeenInvoices, cores: int) -> list[str]:
    """Return items of work: a month, and a stretch of its accounts."""
    return [
        json.dumps([str(month), accounts.first, accounts.end])
        for month, files in seen.files.items()
        for accounts in ranges_of(
            seen.places[CHARGES.name], CHARGES, files[CHARGES.name], cores, by=ACCOUNT_COLUMN
        )
    ]


def judge_invoices(seen: SeenInvoices, answers: Answers, findings: Findings) -> None:
    """Add what tasks found, and which months have other final invoices than were issued."""
    findings.add_all(seen.wrong)
    findings.take(answers)
    for month, said in sorted(seen.noted.items()):
        counts = answers.counts(f"issued {month}")
        found = RowSum().plus(RowSum(counts["rows"], counts["hashes"]))
        findings.counts[FINAL_INVOICES] += found.rows
        reason = why_not_issued(str(month), said, found)
        if reason is None:
            continue
        findings.add(UsageBreak(INVOICES.name, reason))
        findings.take(answers, f"{_LINES_ALONE} {month}")


def invoice_check_work(
    seen: SeenInvoices, closes: Sequence[DayClose], daily: Sequence[DataFile]
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: check the final invoices of a stretch of accounts.

    `daily` are the closed files of gold.usage_daily, looked at after the invoices.
    """
    number_of = {path: close.number for close in closes for path in close.files}
    by_month: dict[str, list[tuple[int, DataFile]]] = defaultdict(list)
    for file in daily:
        if file.path in number_of:
            by_month[str(file.partition_value)[:7]].append((number_of[file.path], file))

    def work(item: str) -> Iterator[Any]:
        text, first, end = json.loads(item)
        yield from _MonthCheck(seen, Month.parse(text), Accounts(first, end), by_month[text]).run()

    return work


class _MonthCheck:
    """Checks the final invoices of a month of some accounts."""

    def __init__(
        self, seen: SeenInvoices, month: Month, accounts: Accounts, daily: Sequence[tuple[int, DataFile]]
    ) -> None:
        self._seen, self._month, self._accounts, self._daily = seen, month, accounts, daily
        self._heads = self._open(INVOICES, INVOICES.file_schema.names)
        self._lines = {
            spec.name: self._open(spec, LINES.names, ACCOUNT_COLUMN) for spec in (CHARGES, ADJUSTMENTS)
        }
        self._days: dict[int, Days] = {}
        """Usage by the last close of it."""
        self._findings = Findings()
        self._alone = Findings(what=f"{_LINES_ALONE} {month}")

    def run(self) -> Iterator[Any]:
        """Yield what was found, and what the final invoices add up to."""
        issued = RowSum()
        for account in each_account([self._heads, *self._lines.values()]):
            heads = [row for part in self._heads.take(account) for row in part.to_pylist()]
            final = [row for row in heads if row["state"] == "final"]
            issued = issued.plus(issued_of(final))
            # One invoice has the lines; a second row of an account is one too many in the month's sum.
            if final:
                self._check(final[0])
            else:
                self._note_lines(account)
        yield from self._findings.answers()
        yield from self._alone.answers()
        yield answer_counts(f"issued {self._month}", issued._asdict())

    def _check(self, row: Mapping[str, Any]) -> None:
        invoice = head_of(row, self._month).invoice
        check = InvoiceCheck(invoice)
        for part in self._lines[CHARGES.name].take(invoice.account_id):
            check.add_charges(part)
        of_charges = check.digest
        for part in self._lines[ADJUSTMENTS.name].take(invoice.account_id):
            check.add_corrections(part)
        reason = check.reason()
        if reason is None and self._seen.book is not None:
            reason = self._why_not_of_usage(invoice, of_charges, row["through_close"], self._seen.book)
        if reason is not None:
            self._findings.add(UsageBreak(INVOICES.name, reason, account_id=invoice.account_id))

    def _why_not_of_usage(
        self, invoice: Invoice, of_charges: str, through_close: int | None, book: PriceBook
    ) -> str | None:
        """Return why an invoice is not what the closed days come to that it was made of, or None.

        `of_charges`: the digest of its charges.
        """
        through = -1 if through_close is None else through_close
        days = self._days.get(through)
        if days is None:
            files = [file for number, file in self._daily if number <= through]
            place = self._seen.places[USAGE_DAILY.name]
            days = self._days[through] = Days(place, files, self._accounts, of_files=_OF_FILES)
        sums = InvoiceSums(invoice)
        try:
            with Spool(USAGE) as rows:
                for part in Rated(days, invoice.account_id, self._month, rows).charges(book):
                    sums.add_charges(part)
        except REFUSED_BY_PRICES as error:
            return f"its closed days cannot be rated any more: {error}"
        if sums.invoice().digest == of_charges:
            return None
        return (
            f"the charges of {invoice.account_id} in {self._month} are not what its closed days up to close {through} "
            f"come to by the price book"
        )

    def _note_lines(self, account: str) -> None:
        parts = [part for lines in self._lines.values() for part in lines.take(account)]
        if any(pc.any(pc.equal(part.column("x_state"), "final")).as_py() for part in parts):
            reason = f"the final invoice of {account} in {self._month} is not there, and its lines are"
            self._alone.add(UsageBreak(INVOICES.name, reason, account_id=account))

    def _open(self, spec: TableSpec, names: Sequence[str], by: str = "account_id") -> Any:
        place, files = self._seen.places[spec.name], self._seen.files[self._month][spec.name]
        return open_files(place, spec, files, names, self._accounts, of_files=_OF_FILES, by=by)

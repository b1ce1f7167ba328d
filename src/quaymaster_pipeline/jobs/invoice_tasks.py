"""What tasks of billing do: make the invoices of a stretch of accounts, one after the other.

    daily rows of the month ──rate──▶ charges ─┐
    closed months with late rows ──rate again──┴─▶ lines, digest, head ──▶ files of gold.charges, adjustments, invoices
    lines of accounts that are not made again ───▶ the same files

Everything is sorted by account and read as streams, so what a task holds depends on neither rows nor accounts.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.account_usage import ROWS_AT_ONCE, Days, Rated
from quaymaster_pipeline.billing.focus import (
    LINE_COLUMNS,
    charge_lines,
    charges_of,
    correction_lines,
    only_charges,
    rounding_line,
)
from quaymaster_pipeline.billing.invoices import (
    CORRECTIONS,
    Invoice,
    InvoiceSums,
    corrections_of,
    issue,
    revised,
)
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.rating import CHARGES as CHARGE_SCHEMA
from quaymaster_pipeline.billing.rating import REFUSED_BY_PRICES, USAGE
from quaymaster_pipeline.billing.reconciliation import BillingComparison, differing
from quaymaster_pipeline.billing.service import (
    NothingToBill,
    NotIssued,
    Standing,
    StoreDamaged,
    open_before,
    takes_corrections,
)
from quaymaster_pipeline.billing.store import APP, head_row, is_row_of, issued_of, names_at
from quaymaster_pipeline.billing.tables import ACCOUNT_COLUMN, ACCOUNTS, ADJUSTMENTS, CHARGES, INVOICES
from quaymaster_pipeline.usage.tasks import answer, answer_counts, answer_files
from quaymaster_pipeline.warehouse.account_rows import AccountFiles, Accounts, each_account, open_files
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY, TableSpec
from quaymaster_pipeline.warehouse.spools import Spool

REFUSALS: Final = "refusals"
LEFT_OUT: Final = "left out"
COUNTS: Final = "counts"
MADE: Final = "made"
CHANGED: Final = "changed"
ISSUED: Final = "issued"
HASHES: Final = "hashes"
"""What the rows of the final invoices that were made add up to."""
BILLED: Final = "billed"
"""Billed requests of all daily rows that were read of the month."""
NAMED_MAX: Final = 100
"""Refusals, and accounts that were left out, that are told by name."""
PARTS_AT_ONCE: Final = 256
HEADS_AT_ONCE: Final = 1_000
LINES_READ_FILES: Final = 64
"""Lines are wide: of these so few are read at a time as if there were so many files."""
_STANDING_COLUMNS: Final = (
    *("account_id", "state", "through_close", "billed_requests", "revision", "digest"),
)
REFUSED: Final = (NotIssued, NothingToBill, *REFUSED_BY_PRICES, StoreDamaged)
"""What makes an invoice impossible; the message says why."""

Files = tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoicePlan:
    """What all tasks of a call know. Files of other months are those of the months that the invoices look back at."""

    month: Month
    book: PriceBook
    issued: datetime.datetime | None
    """When final invoices are issued; None: they are provisional."""
    has_begun: bool
    versions: Mapping[str, int]
    """Columns of gold.invoices that say what was read."""
    compared: tuple[BillingComparison, ...]
    places: Mapping[str, TablePlace]
    daily: Files
    """Usage of the month."""
    replaced: Mapping[str, Files]
    """Files of the month of charges, adjustments and invoices that are made again, by table."""
    names: Files
    heads: Mapping[Month, Files]
    """Invoices of other months."""
    uninvoiced: Mapping[Month, Files]
    """Usage of earlier months of which some may have no final invoice."""
    late: Mapping[Month, tuple[tuple[int, DataFile], ...]]
    """Files that came with a later close than the invoices of their month were made through, each with its close."""
    closed: Mapping[Month, Files]
    """Closed usage of the months in `late`."""
    charges: Mapping[Month, Files]
    adjustments: Mapping[Month, Files]

    @property
    def of_files(self) -> int:
        """Among how many files of usage the memory for rows is shared."""
        files = [*self.daily, *(file for found in self.closed.values() for file in found)]
        return len(files) + len(self.uninvoiced) + len(self.heads)

    def days(self, files: Files, accounts: Accounts) -> Days:
        """Return usage of these files and accounts."""
        return Days(self.places[USAGE_DAILY.name], files, accounts, of_files=self.of_files)

    def stream(
        self, spec: TableSpec, files: Iterable[DataFile], columns: Iterable[str], accounts: Accounts
    ) -> AccountFiles:
        """Return rows of these files and accounts."""
        is_lines = ACCOUNT_COLUMN in spec.schema.names
        by = ACCOUNT_COLUMN if is_lines else "account_id"
        return open_files(
            self.places[spec.name],
            spec,
            files,
            tuple(columns),
            accounts,
            of_files=LINES_READ_FILES if is_lines else self.of_files,
            by=by,
        )


class ClosedMonths:
    """Closed months with late usage of some of the accounts: what they were charged, and what they used."""

    def __init__(self, plan: InvoicePlan, accounts: Accounts) -> None:
        self._plan = plan
        self._late = {month: _late_accounts(plan, files, accounts) for month, files in plan.late.items()}
        everyone = sorted({account for found in self._late.values() for account in found})
        self._streams = {}
        for month, found in self._late.items():
            chosen = Accounts(accounts.first, accounts.end, tuple(sorted(found)))
            charges = plan.stream(CHARGES, plan.charges[month], LINE_COLUMNS, chosen)
            self._streams[month] = plan.days(plan.closed[month], chosen), charges
        chosen = Accounts(accounts.first, accounts.end, tuple(everyone))
        self._adjustments = {
            month: plan.stream(ADJUSTMENTS, files, LINE_COLUMNS, chosen)
            for month, files in sorted(plan.adjustments.items())
        }
        self.accounts = everyone

    def late_months(self, account: str, standings: Mapping[Month, Standing]) -> list[Month]:
        """Return the closed months of an account of which usage came after its invoice."""
        return [
            month
            for month, found in sorted(self._late.items())
            if (standing := standings.get(month)) is not None
            and standing.is_final
            and found.get(account, -1) > standing.through_close
        ]

    def corrections(
        self, account: str, months: list[Month], standings: Mapping[Month, Standing]
    ) -> Iterator[Any]:
        """Yield what the months lack. Raises StoreDamaged if they have other charges than their invoices were of."""
        if not months:
            return
        with contextlib.ExitStack() as stack:
            corrected: dict[tuple[Month, Month], Spool] = {}
            for later, stream in self._adjustments.items():
                for part in stream.take(account):
                    found = charges_of(part)
                    for month in months:
                        rows = found.filter(pc.equal(found.column("month"), str(month)))
                        if rows.num_rows and later in standings and standings[later].is_final:
                            key = month, later
                            if key not in corrected:
                                corrected[key] = stack.enter_context(Spool(CORRECTIONS))
                            corrected[key].add(rows)
            for month in months:
                days, lines = self._streams[month]
                rows = stack.enter_context(Spool(USAGE))
                yield from corrections_of(
                    month,
                    self._plan.month,
                    account_id=account,
                    charged=self._charged(account, month, lines, standings[month].quantity),
                    corrected=[spool for (of, _), spool in corrected.items() if of == month],
                    rated=Rated(days, account, month, rows).charges(self._plan.book),
                )

    @staticmethod
    def _charged(account: str, month: Month, lines: AccountFiles, quantity: int) -> Iterator[Any]:
        charged = 0
        for part in lines.take(account):
            charges = only_charges(part)
            charged += pc.sum(charges.column("quantity")).as_py() or 0
            yield charges
        if charged != quantity:
            raise StoreDamaged(
                f"the lines of {account} in {month} in gold.charges are of {charged} requests, and its invoice is of "
                f"{quantity}"
            )


def _late_accounts(
    plan: InvoicePlan, files: Iterable[tuple[int, DataFile]], accounts: Accounts
) -> dict[str, int]:
    """Return the accounts of late files, each with the last close that brought it usage."""
    found: dict[str, int] = {}
    for close, file in files:
        stream = plan.stream(USAGE_DAILY, [file], (), accounts)
        for account in each_account([stream]):
            if account:
                found[account] = max(close, found.get(account, -1))
    return found


class Output:
    """The files that a task writes, each when there is something for it. An error in the block deletes them."""

    def __init__(self, plan: InvoicePlan, stack: contextlib.ExitStack) -> None:
        self._plan, self._stack = plan, stack
        self._writers: dict[str, FileWriter] = {}
        self._waiting: dict[str, list[Any]] = {spec.name: [] for spec in (CHARGES, ADJUSTMENTS, INVOICES)}
        self._heads: list[Mapping[str, Any]] = []

    def write(self, spec: TableSpec, rows: Any) -> None:
        """Write rows with the columns of a table's files."""
        waiting = self._waiting[spec.name]
        waiting.append(rows)
        if sum(part.num_rows for part in waiting) >= ROWS_AT_ONCE or len(waiting) >= PARTS_AT_ONCE:
            self._write_waiting(spec)

    def write_head(self, row: Mapping[str, Any]) -> None:
        """Write a row of gold.invoices."""
        self._heads.append(row)
        if len(self._heads) >= HEADS_AT_ONCE:
            self._write_heads()

    def finish(self) -> Iterator[Any]:
        """Close the files, and yield them as answers."""
        self._write_heads()
        for spec in (CHARGES, ADJUSTMENTS, INVOICES):
            self._write_waiting(spec)
        for name, writer in self._writers.items():
            yield from answer_files(name, [writer.finish()])

    def _write_heads(self) -> None:
        if self._heads:
            self.write(INVOICES, pa.Table.from_pylist(self._heads, schema=INVOICES.file_schema))
        self._heads = []

    def _write_waiting(self, spec: TableSpec) -> None:
        waiting, self._waiting[spec.name] = self._waiting[spec.name], []
        if not waiting:
            return
        writer = self._writers.get(spec.name)
        if writer is None:
            date = str(self._plan.month.start.date())
            writer = FileWriter(self._plan.places[spec.name], spec, APP, date)
            self._writers[spec.name] = self._stack.enter_context(writer)
        # As one piece: what is written in very many small ones takes several times as long.
        writer.write(pa.concat_tables(waiting).combine_chunks())


class InvoiceTask:
    """Makes the invoices of a stretch of accounts."""

    def __init__(self, plan: InvoicePlan, accounts: Accounts) -> None:
        self._plan, self._accounts = plan, accounts
        everyone = Accounts(accounts.first, accounts.end)
        self._days = plan.days(plan.daily, accounts)
        self._old = {
            spec.name: plan.stream(spec, plan.replaced[spec.name], spec.file_schema.names, everyone)
            for spec in (CHARGES, ADJUSTMENTS, INVOICES)
        }
        self._heads = {
            month: plan.stream(INVOICES, files, _STANDING_COLUMNS, accounts)
            for month, files in plan.heads.items()
        }
        self._uninvoiced = {
            month: plan.stream(USAGE_DAILY, files, (), accounts) for month, files in plan.uninvoiced.items()
        }
        self._closed = ClosedMonths(plan, accounts)
        self._counts: Counter[str] = Counter()
        self._refusals: list[tuple[str, str]] = []
        self._left_out: dict[str, list[str]] = {}

    def run(self) -> Iterator[Any]:
        """Make the invoices, and yield files, counts, and what was refused; nothing of that counts then."""
        missing = set(self._wanted)
        with contextlib.ExitStack() as stack:
            output = Output(self._plan, stack)
            for account in self._each_account():
                missing.discard(account)
                try:
                    self._account(account, output)
                except REFUSED as error:
                    self._refuse(error)
            yield from output.finish()
        for account in sorted(missing):
            self._refuse(self._nothing(account))
        yield answer_counts(COUNTS, self._counts)
        yield answer(REFUSALS, json.dumps(self._refusals).encode())
        yield answer(LEFT_OUT, json.dumps(self._left_out).encode())

    @property
    def _wanted(self) -> Iterable[str]:
        accounts = self._accounts
        if accounts.wanted is None:
            return ()
        return (one for one in accounts.wanted if accounts.may_lie_in(one, one))

    def _each_account(self) -> Iterator[str]:
        streams = [stream for _, stream in self._days.streams]
        streams += [*self._old.values(), *self._heads.values(), *self._uninvoiced.values()]
        return each_account(streams)

    def _refuse(self, error: Exception) -> None:
        if len(self._refusals) < NAMED_MAX:
            self._refusals.append((type(error).__name__, str(error)))

    def _nothing(self, account: str) -> NothingToBill:
        month = self._plan.month
        return NothingToBill(
            f"account {account} used nothing in {month}, and nothing is to be corrected in it"
        )

    def _account(self, account: str, output: Output) -> None:
        head = next(
            (row for part in self._old[INVOICES.name].take(account) for row in part.to_pylist()), None
        )
        standings = self._standings(account, head)
        used = [month for month, stream in self._uninvoiced.items() if _has_rows(stream, account)]
        if account:
            self._note_left_out(account, standings, used)
        is_asked = self._accounts.wanted is None or account in self._accounts.wanted
        standing = standings.pop(self._plan.month, None)
        if not account or not is_asked or (standing is not None and standing.is_final):
            self._keep(account, head, output)
            return
        with Spool(USAGE) as rows, Spool(CHARGE_SCHEMA) as charges, Spool(CORRECTIONS) as corrections:
            rated = Rated(self._days, account, self._plan.month, rows)
            self._counts[BILLED] += rated.billed
            if takes_corrections(self._plan.month, standings, used, has_begun=self._plan.has_begun):
                late = self._closed.late_months(account, standings)
                for part in self._closed.corrections(account, late, standings):
                    corrections.add(part)
            if not rows.rows and not corrections.rows and standing is None:
                if self._accounts.wanted is not None:
                    raise self._nothing(account)
                return
            invoice = self._invoice(account, rated, charges, corrections)
            if standing is not None:
                invoice = revised(invoice, (standing.revision, standing.digest))
            if self._plan.issued is not None:
                self._refuse_out_of_order(account, standings, used)
                invoice = issue(invoice, self._plan.issued)
            self._counts[MADE] += 1
            self._counts[CHANGED] += (
                head is None or not is_row_of(head, invoice) or self._differs_otherwise(head)
            )
            if not self._refusals:
                self._write(invoice, rated.billed, charges, corrections, output)

    def _differs_otherwise(self, head: Mapping[str, Any]) -> bool:
        """Return whether an invoice tells other differences than there are now."""
        told = differing(map(BillingComparison.from_json, json.loads(head["reconciliation"])))
        return told != differing(self._plan.compared)

    def _standings(self, account: str, head: Mapping[str, Any] | None) -> dict[Month, Standing]:
        found = {} if head is None else {self._plan.month: _standing(head)}
        for month, stream in self._heads.items():
            for part in stream.take(account):
                found[month] = _standing(part.to_pylist()[-1])
        return found

    def _note_left_out(self, account: str, standings: Mapping[Month, Standing], used: list[Month]) -> None:
        for month in used:
            standing = standings.get(month)
            if standing is None or not standing.is_final:
                self._counts[f"{LEFT_OUT} {month}"] += 1
                names = self._left_out.setdefault(str(month), [])
                if len(names) < NAMED_MAX:
                    names.append(account)

    def _keep(self, account: str, head: Mapping[str, Any] | None, output: Output) -> None:
        """Write what an account has once more as it is. Lines without an invoice are of one that was not finished."""
        for part in self._days.take(account):
            self._counts[BILLED] += pc.sum(part.column("billed_requests")).as_py() or 0
        if head is None or self._refusals:
            return
        for spec in (CHARGES, ADJUSTMENTS):
            for part in self._old[spec.name].take(account):
                output.write(spec, part)
        output.write_head(head)

    def _invoice(self, account: str, rated: Rated, charges: Spool, corrections: Spool) -> Invoice:
        book = self._plan.book
        sums = InvoiceSums(
            Invoice(
                account_id=account,
                account_name=self._names.get(account, ""),
                month=self._plan.month,
                currency=book.currency,
                issuer=book.issuer,
                price_book=book.name,
            )
        )
        for part in rated.charges(book):
            sums.add_charges(part)
            charges.add(part)
        for part in corrections:
            sums.add_corrections(part)
        return sums.invoice()

    def _refuse_out_of_order(
        self, account: str, standings: Mapping[Month, Standing], used: list[Month]
    ) -> None:
        earlier = open_before(self._plan.month, standings, used)
        if earlier:
            raise NotIssued(
                f"{account} has no final invoice for {earlier[0]} yet; months are closed in order"
            )

    def _write(
        self, invoice: Invoice, billed: int, charges: Spool, corrections: Spool, output: Output
    ) -> None:
        counts = ("daily rows", billed), ("charges", invoice.quantity)
        own = BillingComparison(f"{invoice.account_id} in {invoice.month}", "billed requests", counts)
        if own.difference:
            raise NotIssued(
                f"counts differ, so {invoice.account_id} is not billed for {invoice.month}: {own}"
            )
        for part in charges:
            output.write(CHARGES, charge_lines(invoice, part))
        output.write(CHARGES, rounding_line(invoice))
        for part in corrections:
            output.write(ADJUSTMENTS, correction_lines(invoice, part))
        row = head_row(invoice, (*self._plan.compared, own), **self._plan.versions)
        output.write_head(row)
        issued = issued_of([row])
        self._counts[ISSUED] += issued.rows
        self._counts[HASHES] += issued.hashes

    @cached_property
    def _names(self) -> dict[str, str]:
        """What the accounts of this stretch were called at the end of the month."""
        rows: list[dict[str, Any]] = []
        for file in self._plan.names:
            for part in read_row_groups(self._plan.places[ACCOUNTS.name], ACCOUNTS, file.path):
                rows += self._accounts.of(part, "account_id").to_pylist()
        return names_at(rows, self._plan.month.end)


def invoice_work(plan: InvoicePlan) -> Callable[[str], Iterator[Any]]:
    """Return what a task does for the accounts of an item, which `item_of` makes."""

    def work(item: str) -> Iterator[Any]:
        first, end, wanted = json.loads(item)
        accounts = Accounts(first, end, None if wanted is None else tuple(wanted))
        yield from InvoiceTask(plan, accounts).run()

    return work


def item_of(accounts: Accounts) -> str:
    """Return a stretch of accounts as an item of work."""
    wanted = accounts.wanted
    if wanted is not None:
        wanted = tuple(one for one in wanted if accounts.may_lie_in(one, one))
    return json.dumps([accounts.first, accounts.end, wanted])


def _has_rows(stream: AccountFiles, account: str) -> bool:
    rows: int = sum(part.num_rows for part in stream.take(account))
    return rows > 0


def _standing(row: Mapping[str, Any]) -> Standing:
    through = row["through_close"]
    return Standing(
        row["state"] == "final",
        -1 if through is None else through,
        row["billed_requests"],
        row["revision"],
        row["digest"],
    )

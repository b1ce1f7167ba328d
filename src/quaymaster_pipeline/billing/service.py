"""Making invoices: reads usage and prices, rates, compares, writes.

Nothing is remembered in between: an invoice that was not finished is made again, and comes out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Final

from quaymaster_pipeline.billing.invoices import Correction, Invoice, corrections_of, issue, revised
from quaymaster_pipeline.billing.periods import GRACE, Month, PeriodStage, stage_of
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.rating import rate_month
from quaymaster_pipeline.billing.reconciliation import BillingComparison, differing
from quaymaster_pipeline.billing.store import BillingStore, InvoiceRow

CORRECTED_MONTHS_MAX: Final = 24
"""How far back closed months are looked at for usage that came late."""


class NotIssued(Exception):
    """A final invoice cannot be issued now, or never; the message says why."""


class NothingToBill(LookupError):
    """An account that used nothing, and has nothing to be corrected."""


class PricesAreClosed(ValueError):
    """Another price book would change what a closed month cost."""


@dataclass(frozen=True, slots=True)
class Made:
    """An invoice, how far its month has come, and what was compared for it."""

    invoice: Invoice
    stage: PeriodStage
    compared: tuple[BillingComparison, ...]

    @property
    def differences(self) -> list[BillingComparison]:
        """What does not agree; a final invoice has none."""
        return differing(self.compared)


class Billing:
    """Billing over one warehouse at one moment.

    `closed_until` is the time below which every hour is closed, None when nobody knows. `compare_layers` compares what
    was recorded with what the tables and the brokers have, whatever the month. `why_not_final` gives another reason for
    which a month's invoices cannot be final yet, or None.
    """

    def __init__(
        self,
        store: BillingStore,
        *,
        now: datetime,
        closed_until: datetime | None,
        compare_layers: Callable[[], Sequence[BillingComparison]],
        grace: timedelta = GRACE,
        why_not_final: Callable[[Month], str | None] = lambda month: None,
    ) -> None:
        self._store = store
        self._now = now
        self._closed_until = closed_until
        self._compare_layers = cache(lambda: tuple(compare_layers()))
        self._grace = grace
        self._why_not_final = why_not_final

    def accounts(self, month: Month) -> list[str]:
        """Return the accounts that have an invoice in a month, or would have: with usage, corrections, or issued.

        Raises as `view`, since what is to be corrected is known only when closed months are rated again.
        """
        issued = [row.fields["account_id"] for row in self._store.invoice_rows(month=month)]
        known = {*issued, *self._store.accounts_with_usage(month)}
        invoiced = {row.fields["account_id"] for row in self._store.invoice_rows() if row.is_final}
        book = self._store.book()
        corrected = {one for one in invoiced - known if self._corrections(month, one, book)}
        return sorted(known | corrected)

    def left_out(self, month: Month) -> dict[Month, list[str]]:
        """Return accounts of earlier months without a final invoice although others have one: all they used came late.

        Their invoices of these months are still to be issued; nothing of it is corrected in later ones.
        """
        final: dict[Month, set[str]] = {}
        for row in self._store.invoice_rows():
            if row.is_final and row.month < month:
                final.setdefault(row.month, set()).add(row.fields["account_id"])
        found: dict[Month, list[str]] = {}
        for earlier in sorted(final)[-CORRECTED_MONTHS_MAX:]:
            late = [one for one in self._store.accounts_with_usage(earlier) if one not in final[earlier]]
            if late:
                found[earlier] = late
        return found

    def view(self, month: Month, account_id: str) -> Made:
        """Return an account's invoice: as it was issued, else as it would be now. Nothing is written.

        Raises:
            NothingToBill: there is none. NoPrice: the price book has no price for some of its hours.
            StoreDamaged: the issued one was changed since.
        """
        before = self._row(month, account_id)
        stage = self._stage(month, before)
        if before is not None and before.is_final:
            return Made(self._store.load(before), stage, ())
        return self._make(month, account_id, before, stage, self._store.book())

    def update(self, month: Month, accounts: Iterable[str]) -> list[Made]:
        """Write provisional invoices of what is not closed, where they changed, and return all. Raises as `view`."""
        made, changed = [], []
        for account_id in accounts:
            before = self._row(month, account_id)
            one = self.view(month, account_id)
            made.append(one)
            is_new = before is None or before.fields["digest"] != one.invoice.digest
            if one.stage is not PeriodStage.CLOSED and is_new:
                changed.append(one)
        self._write(month, changed)
        return made

    def close(self, month: Month, accounts: Iterable[str]) -> list[Made]:
        """Issue final invoices, and return them; those issued before are returned as they are.

        Either all that are asked for can be issued, or none is.

        Raises:
            NotIssued: the month is open or in grace, even if nobody has used anything yet; counts differ; or an
                earlier month comes first.
            NothingToBill, NoPrice, StoreDamaged: as `view`.
        """
        made, issued = [], []
        asked = list(accounts)
        if not asked:
            self._refuse_unless_over(month, self._stage(month, None))
        for account_id in asked:
            self._refuse_unless_over(month, self._stage(month, self._row(month, account_id)))
            one = self.view(month, account_id)
            if one.stage is not PeriodStage.CLOSED:
                self._refuse_unless_agreed(month, account_id, one)
                one = Made(issue(one.invoice, self._now), PeriodStage.CLOSED, one.compared)
                issued.append(one)
            made.append(one)
        self._write(month, issued)
        return made

    def set_book(self, book: PriceBook) -> None:
        """Keep a price book. Raises PricesAreClosed when a closed month would have cost something else by it."""
        current = self._store.book()
        closed = sorted({row.month for row in self._store.invoice_rows() if row.is_final})
        for month in closed:
            if book.prices_between(month.start, month.end) != current.prices_between(month.start, month.end):
                raise PricesAreClosed(
                    f"invoices of {month} were issued by price book {current.name!r}; this one has other prices, "
                    f"versions or times in that month. Prices of closed months cannot be changed"
                )
        self._store.set_book(book)

    def _make(
        self, month: Month, account_id: str, before: InvoiceRow | None, stage: PeriodStage, book: PriceBook
    ) -> Made:
        usage = self._store.usage(month, account_id)
        charges = rate_month(usage, book, month, account_id=account_id)
        corrections = self._corrections(month, account_id, book)
        if not usage and not corrections and before is None:
            raise NothingToBill(
                f"account {account_id} used nothing in {month}, and nothing is to be corrected in it"
            )
        invoice = Invoice(
            account_id=account_id,
            account_name=self._store.account_names(month.end).get(account_id, ""),
            month=month,
            currency=book.currency,
            issuer=book.issuer,
            price_book=book.name,
            charges=tuple(charges),
            corrections=tuple(corrections),
        )
        if before is not None:
            invoice = revised(invoice, (before.fields["revision"], before.fields["digest"]))
        compared = [
            comparison._replace(counts=(*comparison.counts, ("charges", invoice.quantity)))
            if comparison.measure == "billed requests"
            else comparison
            for comparison in self._store.layer_counts(month, account_id)
        ]
        return Made(invoice, stage, (*self._compare_layers(), *compared))

    def _corrections(self, month: Month, account_id: str, book: PriceBook) -> list[Correction]:
        """Return corrections of closed months, if this is the first open month after them.

        A month that has not begun takes none, or each month to come would show them; and neither does one before a
        closed month, since months are closed in order.
        """
        closed = self._closed(account_id)
        if not closed or month <= closed[-1] or self._now < month.start:
            return []
        if self._open_before(month, account_id):
            return []
        found: list[Correction] = []
        corrected = [
            correction for later in closed for correction in self._store.corrections(later, account_id)
        ]
        for closed_month in closed[-CORRECTED_MONTHS_MAX:]:
            usage = self._store.usage(closed_month, account_id)
            found += corrections_of(
                closed_month,
                month,
                account_id=account_id,
                charged=self._store.charges(closed_month, account_id),
                corrected=[correction for correction in corrected if correction.month == closed_month],
                rated=rate_month(usage, book, closed_month, account_id=account_id),
            )
        return found

    def _closed(self, account_id: str) -> list[Month]:
        """Return the months for which an account has final invoices, sorted."""
        return [row.month for row in self._store.invoice_rows(account_id) if row.is_final]

    def _open_before(self, month: Month, account_id: str) -> list[Month]:
        """Return earlier months that are still to be invoiced; months before the first invoice never were.

        They are those with usage, and those with a provisional invoice: it may have only corrections.
        """
        closed = self._closed(account_id)
        first = min(closed, default=month)
        begun = [row.month for row in self._store.invoice_rows(account_id)]
        months = sorted({*begun, *self._store.months_with_usage(account_id)})
        return [earlier for earlier in months if first <= earlier < month and earlier not in closed]

    def _refuse_unless_over(self, month: Month, stage: PeriodStage) -> None:
        if stage is PeriodStage.OPEN and self._now < month.end:
            raise NotIssued(f"{month} is open: it is not over, and ends {month.end:%Y-%m-%d %H:%M} UTC")
        if stage is PeriodStage.OPEN:
            until = (
                "no hour is"
                if self._closed_until is None
                else f"hours until {self._closed_until:%Y-%m-%d %H:%M} are"
            )
            raise NotIssued(f"{month} is open: {until} closed, and it ends {month.end:%Y-%m-%d %H:%M} UTC")
        if stage is PeriodStage.GRACE:
            raise NotIssued(
                f"{month} takes late usage until {month.end + self._grace:%Y-%m-%d %H:%M} UTC, and is provisional"
            )

    def _refuse_unless_agreed(self, month: Month, account_id: str, made: Made) -> None:
        differences = made.differences
        if differences:
            raise NotIssued(
                f"counts differ, so {account_id} is not billed for {month}: "
                + "; ".join(map(str, differences))
            )
        reason = self._why_not_final(month)
        if reason is not None:
            raise NotIssued(f"{account_id} is not billed for {month}: {reason}")
        earlier = self._open_before(month, account_id)
        if earlier:
            raise NotIssued(
                f"{account_id} has no final invoice for {earlier[0]} yet; months are closed in order"
            )

    def _row(self, month: Month, account_id: str) -> InvoiceRow | None:
        return next(iter(self._store.invoice_rows(account_id, month)), None)

    def _stage(self, month: Month, row: InvoiceRow | None) -> PeriodStage:
        is_closed = row is not None and row.is_final
        return stage_of(
            month, self._now, closed_until=self._closed_until, is_closed=is_closed, grace=self._grace
        )

    def _write(self, month: Month, made: Sequence[Made]) -> None:
        if made:
            self._store.write_invoices(month, [(one.invoice, one.compared) for one in made])

"""Invoices: charges of a month, corrections of closed months, and one rounding line. Pure.

    charges of the month ─────────────────────────────┐
    closed months, rated again, less what was charged ─┴─▶ lines ──▶ exact total ──rounding line──▶ payable

The sum of all lines' costs is the payable amount, to the last digit: the rounding line is what makes it so, and each
invoice has exactly one, even of 0. A *provisional* invoice says what would be paid if the month ended now; it has no
id, and its revision grows with each change. A *final* one never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from quaymaster_pipeline.billing.money import as_line_cost, as_payable, difference, exact_sum, plain
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.rating import Charge, line_id

State = Literal["provisional", "final"]
ROUNDING_ACTION: Final = "Rounding"
DAY: Final = timedelta(days=1)


class Correction(NamedTuple):
    """What a closed month's line should have been, less what was charged for it: quantity and cost may be negative.

    `charge` has the difference as quantity and cost, and an id of its own; `corrects` is the id of the line.
    """

    month: Month
    corrects: str
    charge: Charge


class PriceSum(NamedTuple):
    """What an invoice has at one price."""

    price_id: str
    unit_price: Decimal
    quantity: int
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """One account's month. `issued` is None while it is provisional."""

    account_id: str
    account_name: str
    month: Month
    currency: str
    issuer: str
    price_book: str
    charges: tuple[Charge, ...]
    corrections: tuple[Correction, ...]
    revision: int = 1
    state: State = "provisional"
    issued: datetime | None = None

    @property
    def invoice_id(self) -> str | None:
        """The number on the invoice; a provisional one has none."""
        return (
            f"QM-{self.month.year:04}{self.month.number:02}-{self.account_id}"
            if self.state == "final"
            else None
        )

    @property
    def quantity(self) -> int:
        """Billed requests of the month itself."""
        return sum(charge.quantity for charge in self.charges)

    @property
    def exact_total(self) -> Decimal:
        """The sum of all lines but the rounding, with 12 decimals."""
        costs = (
            charge.cost for charge in (*self.charges, *(correction.charge for correction in self.corrections))
        )
        return as_line_cost(exact_sum(costs))

    @property
    def payable(self) -> Decimal:
        """What is to be paid: the exact total, rounded half-even to 2 decimals. Negative means a credit."""
        return as_payable(self.exact_total)

    @property
    def rounding(self) -> Decimal:
        """The cost of the rounding line."""
        return as_line_cost(difference(self.payable, self.exact_total))

    @property
    def rounding_line_id(self) -> str:
        """The stable id of the rounding line."""
        return line_id(self.account_id, (self.month.start, ROUNDING_ACTION))

    @property
    def price_sums(self) -> list[PriceSum]:
        """The month's charges by price, in the order of class, version, tier."""
        return _sums(self.charges)

    @property
    def digest(self) -> str:
        """A hash of what the invoice charges, and to whom: the same for all revisions that charge the same."""
        hashed = hashlib.sha256()
        for part in (
            self.account_id,
            self.account_name,
            str(self.month),
            self.currency,
            self.issuer,
            self.price_book,
        ):
            hashed.update(part.encode() + b"\x1f")
        for charge in self.charges:
            hashed.update(_charge_text(charge).encode())
        for correction in self.corrections:
            hashed.update(
                f"{correction.month}\x1f{correction.corrects}\x1f{_charge_text(correction.charge)}".encode()
            )
        return hashed.hexdigest()


def corrections_of(
    month: Month,
    into: Month,
    *,
    account_id: str,
    charged: Iterable[Charge],
    corrected: Iterable[Correction],
    rated: Iterable[Charge],
) -> list[Correction]:
    """Return what a closed `month` lacks, as corrections in the invoice of `into`.

    `charged` are its charges as invoiced, `corrected` the corrections of it that were invoiced since, `rated` its
    charges as they are rated now. Empty when nothing has changed; so it is right to ask again and again.
    """
    assert month < into, "a period is corrected in a later one"
    lines: dict[str, Charge] = {}
    quantities: dict[str, int] = {}
    costs: dict[str, Decimal] = {}
    signed = [
        *((charge.line_id, charge, -1) for charge in charged),
        *((correction.corrects, correction.charge, -1) for correction in corrected),
        *((charge.line_id, charge, 1) for charge in rated),
    ]
    for key, charge, sign in signed:
        lines[key] = charge
        quantities[key] = quantities.get(key, 0) + sign * charge.quantity
        cost = charge.cost if sign > 0 else charge.cost.copy_negate()
        costs[key] = exact_sum((costs.get(key, Decimal(0)), cost))
    found = []
    for key, charge in lines.items():
        if quantities[key] or costs[key]:
            correction_id = line_id(account_id, ("correction", str(into), key))
            delta = charge._replace(
                line_id=correction_id, quantity=quantities[key], cost=as_line_cost(costs[key])
            )
            found.append(Correction(month, key, delta))
    return sorted(found, key=lambda correction: (*correction.charge[1:9], correction.corrects))


def revised(invoice: Invoice, before: tuple[int, str]) -> Invoice:
    """Return the invoice with its revision: that of the last one when nothing has changed, else one more.

    `before` are the last one's revision and digest.
    """
    revision, digest = before
    return replace(invoice, revision=revision if digest == invoice.digest else revision + 1)


def issue(invoice: Invoice, issued: datetime) -> Invoice:
    """Return the invoice as final."""
    return replace(invoice, state="final", issued=issued.replace(microsecond=0))


def _sums(charges: Iterable[Charge]) -> list[PriceSum]:
    sums: dict[tuple[bool, int, int], PriceSum] = {}
    for charge in charges:
        # Standard before FIFO, and the free requests (tier -1) before the first tier.
        key = (charge.billing_class != "standard", charge.price_version, charge.tier)
        before = sums.get(key)
        sums[key] = PriceSum(
            charge.price_id,
            charge.unit_price,
            charge.quantity + (before.quantity if before else 0),
            exact_sum((charge.cost, before.cost)) if before else charge.cost,
        )
    return [sums[key] for key in sorted(sums)]


def _charge_text(charge: Charge) -> str:
    return "\x1f".join(_text(part) for part in charge) + "\x1e"


def _text(part: object) -> str:
    if isinstance(part, datetime):
        return part.isoformat()
    return plain(part) if isinstance(part, Decimal) else str(part)

"""Whether invoices are those that were made: rows by what the commit notes, lines by being made again. Pure.

    rows of gold.invoices ──SHA-256 each, added up by month──▶ note of the commit that issued them
    lines ──charges──▶ lines, digest, sums ──▶ the row of gold.invoices

A final invoice never changes. If its row was changed, deleted or put in by hand, the month adds up to something else.
`focus` makes the lines of issued invoices again whenever they are checked: what it says of a charge must stay.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.focus import (
    LINES,
    charge_lines,
    charges_of,
    correction_lines,
    only_charges,
    rounding_line,
)
from quaymaster_pipeline.billing.invoices import Invoice, InvoiceSums
from quaymaster_pipeline.billing.money import plain
from quaymaster_pipeline.billing.rules import BILLING_CLASSES
from quaymaster_pipeline.warehouse.row_sums import RowSum

_NEEDED: Final = (
    *("ChargePeriodStart", "RegionId", "ListUnitPrice", "ConsumedQuantity", "BilledCost", "x_line_id"),
    *("x_action", "x_billing_class", "x_price_version", "x_tier", "x_rule_version"),
)


def sum_of_rows(rows: Iterable[Mapping[str, Any]]) -> RowSum:
    """Return what rows add up to; a column that is null counts as none, so that columns may be added."""
    return RowSum.of(map(_hash_of, rows))


def why_not_issued(month: str, said: RowSum | None, found: RowSum) -> str | None:
    """Return why the final invoices of a month are not those that were issued; None if they are, or nothing says so."""
    if said is None or said == found:
        return None
    reason = f"the final invoices of {month} in gold.invoices are not those that were issued"
    if said.rows != found.rows:
        return f"{reason}: there were {said.rows}, and {found.rows} are there"
    return f"{reason}: rows were changed"


class InvoiceCheck:
    """Compares an invoice with its lines, as they are added: all rows of gold.charges, then of gold.adjustments."""

    def __init__(self, invoice: Invoice) -> None:
        self._invoice = invoice
        self._sums = InvoiceSums(invoice)
        self._others = [LINES.empty_table()]
        self._is_right = True

    def add_charges(self, lines: Any) -> None:
        """Add rows of gold.charges, with all columns of LINES."""
        is_usage = pc.fill_null(pc.equal(lines.column("ChargeCategory"), "Usage"), False)
        self._others.append(lines.filter(pc.invert(is_usage)))
        lines = lines.filter(is_usage)
        if self._can_be_read(lines):
            charges = only_charges(lines)
            self._sums.add_charges(charges)
            self._is_right &= charge_lines(self._invoice, charges).equals(lines)

    @property
    def digest(self) -> str:
        """The digest of what was added so far."""
        return self._sums.invoice().digest

    def add_corrections(self, lines: Any) -> None:
        """Add rows of gold.adjustments, with all columns of LINES."""
        if self._can_be_read(lines):
            corrections = charges_of(lines)
            self._sums.add_corrections(corrections)
            self._is_right &= correction_lines(self._invoice, corrections).equals(lines)

    def _can_be_read(self, lines: Any) -> bool:
        """Return whether charges can be made of lines, and there are any. No lines of ours have what they lack else."""
        classes, tiers = (lines.column(name) for name in ("x_billing_class", "x_tier"))
        is_right = (
            not any(lines.column(name).null_count for name in _NEEDED)
            and pc.all(pc.is_in(classes, pa.array(BILLING_CLASSES))).as_py() is not False
            and pc.all(pc.match_substring_regex(tiers, "^(free|[0-9]{1,9})$")).as_py() is not False
        )
        self._is_right &= is_right
        return is_right and lines.num_rows > 0

    def reason(self) -> str | None:
        """Return why the invoice is not what its lines come to, or None, once all were added."""
        said, found = self._invoice, self._sums.invoice()
        of_whom = f"{said.account_id} in {said.month}"
        for name, one, other in (
            ("exact_total", plain(said.exact_total), plain(found.exact_total)),
            ("billed_requests", said.quantity, found.quantity),
            ("lines", said.lines, found.lines),
        ):
            if said.digest == found.digest and one != other:
                return f"{name} of {of_whom} in gold.invoices is {one}, and its lines come to {other}"
        others = pa.concat_tables(self._others)
        if not self._is_right or said.digest != found.digest or not others.equals(rounding_line(said)):
            return (
                f"the lines of {of_whom} in gold.charges and gold.adjustments are not those that gold.invoices was "
                f"written for"
            )
        return None


def _hash_of(row: Mapping[str, Any]) -> bytes:
    fields = {name: _text_of(value) for name, value in row.items() if value is not None}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def _text_of(value: Any) -> str | int:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    if isinstance(value, Decimal):
        return plain(value)
    assert isinstance(value, (str, int)), "rows have texts, numbers and times"
    return value

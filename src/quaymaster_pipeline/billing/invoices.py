"""Invoices: the charges of a month, corrections of closed months, and one rounding line. Pure.

    charges of the month ─────────────────────────────┐
    closed months, rated again, less what was charged ─┴─▶ lines ──▶ exact total ──rounding line──▶ payable

The sum of all lines' costs is the payable amount, to the last digit: the rounding line is what makes it so, and each
invoice has exactly one, even of 0. A *provisional* invoice says what would be paid if the month ended now; it has no
id, and its revision grows with each change. A *final* one never changes.

Lines come and go as streams of tables; what is kept of them are sums and a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.billing.money import (
    LINE_COST_DIGITS,
    as_line_cost,
    as_payable,
    difference,
    exact_sum,
    plain,
)
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.rating import CHARGE_KEYS, CHARGES, key_texts, line_id
from quaymaster_pipeline.warehouse.sums import together

State = Literal["provisional", "final"]
ROUNDING_ACTION: Final = "Rounding"
DAY: Final = timedelta(days=1)
_BETWEEN: Final = "\x1f"
_COST: Final = pa.decimal128(*LINE_COST_DIGITS)

CORRECTIONS: Final = pa.schema([*CHARGES, ("month", pa.string()), ("corrects", pa.string())])
"""What a closed month's line should have been, less what was charged for it: quantity and cost may be negative. `month`
is the closed one, `corrects` the id of the line; `line_id` is the correction's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """One account's month, without its lines. `issued` is None while it is provisional."""

    account_id: str
    account_name: str
    month: Month
    currency: str
    issuer: str
    price_book: str
    quantity: int = 0
    """Billed requests of the month itself."""
    exact_total: Decimal = Decimal(0)
    """The sum of all lines but the rounding, with 12 decimals."""
    lines: int = 1
    digest: str = ""
    """A hash of what the invoice charges, and to whom: the same for all revisions that charge the same."""
    revision: int = 1
    state: State = "provisional"
    issued: datetime | None = None

    @property
    def invoice_id(self) -> str | None:
        """The number on the invoice; a provisional one has none."""
        if self.state != "final":
            return None
        return f"QM-{self.month.year:04}{self.month.number:02}-{self.account_id}"

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
        return line_id(self.account_id, self.month.start.isoformat(), ROUNDING_ACTION)


class InvoiceSums:
    """Sums and digest of an invoice's lines, as they are added: all charges, then all corrections, each in order."""

    def __init__(self, invoice: Invoice) -> None:
        self._invoice = invoice
        self._quantity = 0
        self._total = Decimal(0)
        self._lines = 1
        self._hashed = hashlib.sha256()
        for part in (
            invoice.account_id,
            invoice.account_name,
            str(invoice.month),
            invoice.currency,
            invoice.issuer,
            invoice.price_book,
        ):
            self._hashed.update(part.encode() + _BETWEEN.encode())

    def add_charges(self, charges: Any) -> None:
        """Add rows of CHARGES."""
        self._quantity += pc.sum(charges.column("quantity")).as_py() or 0
        self._add(charges, _charge_texts(charges))

    def add_corrections(self, corrections: Any) -> None:
        """Add rows of CORRECTIONS."""
        what = (corrections.column(name).combine_chunks() for name in ("month", "corrects"))
        texts = _charge_texts(corrections)
        self._add(corrections, pc.binary_join_element_wise(*what, texts, _BETWEEN))

    def _add(self, lines: Any, texts: Any) -> None:
        self._total = exact_sum((self._total, pc.sum(lines.column("cost")).as_py() or Decimal(0)))
        self._lines += lines.num_rows
        self._hashed.update("".join(texts.to_pylist()).encode())

    def invoice(self) -> Invoice:
        """Return the invoice of the lines added so far."""
        return replace(
            self._invoice,
            quantity=self._quantity,
            exact_total=as_line_cost(self._total),
            lines=self._lines,
            digest=self._hashed.hexdigest(),
        )


def revised(invoice: Invoice, before: tuple[int, str]) -> Invoice:
    """Return the invoice with its revision: that of the last one when nothing has changed, else one more.

    `before` are the last one's revision and digest.
    """
    revision, digest = before
    return replace(invoice, revision=revision if digest == invoice.digest else revision + 1)


def issue(invoice: Invoice, issued: datetime) -> Invoice:
    """Return the invoice as final."""
    return replace(invoice, state="final", issued=issued.replace(microsecond=0))


def corrections_of(
    month: Month,
    into: Month,
    *,
    account_id: str,
    charged: Iterable[Any],
    corrected: Sequence[Iterable[Any]],
    rated: Iterable[Any],
) -> Iterator[Any]:
    """Yield what a closed `month` lacks, as rows of CORRECTIONS for the invoice of `into`, in the order of CHARGE_KEYS.

    `charged` are its charges as invoiced, `corrected` the corrections of it in each invoice since, `rated` its charges
    as they are rated now; all in that order. Nothing when nothing has changed; so it is right to ask again and again.
    """
    assert month < into, "a period is corrected in a later one"
    streams = [_signed(charged, -1), *(_signed(stream, -1) for stream in corrected), _signed(rated, 1)]
    for rows in together(streams, CHARGE_KEYS, CORRECTIONS):
        names = [*CHARGE_KEYS, "corrects"]
        sums = [("quantity", "sum"), ("cost", "sum"), ("unit_price", "max"), ("rule_version", "max")]
        found = rows.group_by(names, use_threads=False).aggregate(sums)
        differs = pc.or_(
            pc.not_equal(found.column("quantity_sum"), 0),
            pc.not_equal(found.column("cost_sum"), pa.scalar(Decimal(0), _COST)),
        )
        found = found.filter(differs)
        if found.num_rows:
            yield _corrections(month, into, account_id, found)


def _corrections(month: Month, into: Month, account_id: str, found: Any) -> Any:
    found = found.sort_by([(name, "ascending") for name in (*CHARGE_KEYS, "corrects")])
    found = found.rename_columns(
        [name.removesuffix("_sum").removesuffix("_max") for name in found.column_names]
    )
    ids = [line_id(account_id, "correction", str(into), key) for key in found.column("corrects").to_pylist()]
    months = pa.array([str(month)] * found.num_rows, pa.string())
    found = found.append_column("line_id", pa.array(ids, pa.string())).append_column("month", months)
    return found.select(CORRECTIONS.names).cast(CORRECTIONS)


def _signed(stream: Iterable[Any], sign: int) -> Iterator[Any]:
    """Yield charges or corrections as rows of CORRECTIONS, negative or not, by the line that they are about."""
    for rows in stream:
        columns = {name: rows.column(name) for name in CHARGES.names}
        key = "corrects" if "corrects" in rows.column_names else "line_id"
        columns |= {"corrects": rows.column(key), "month": pa.nulls(rows.num_rows, pa.string())}
        if sign < 0:
            columns |= {name: pc.negate(rows.column(name)) for name in ("quantity", "cost")}
        yield pa.table(columns).select(CORRECTIONS.names).cast(CORRECTIONS)


def _charge_texts(charges: Any) -> Any:
    """Return what the digest is made of, a text a line."""
    parts = [charges.column("line_id").combine_chunks(), key_texts(charges)]
    for name in ("unit_price", "quantity", "cost", "rule_version"):
        values = charges.column(name).combine_chunks()
        if pa.types.is_decimal(values.type):
            values = values.dictionary_encode()
            texts = pa.array(map(plain, values.dictionary.to_pylist()), pa.string())
            values = texts.take(values.indices)
        parts.append(values.cast(pa.string()))
    joined = pc.binary_join_element_wise(*parts, _BETWEEN)
    return pc.binary_join_element_wise(joined, pa.scalar("\x1e"), "")

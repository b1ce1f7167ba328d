"""Invoices as PDF, for people: the same bytes for the same invoice.

The built-in fonts are used, so that nothing is embedded: they have the letters of western Europe (Latin-1), and `?`
stands for others. JSON and CSV have all names as they are. The pages have sums: by price, and by queue for the dearest
ones; all single lines are in the CSV. Amounts are exact, and stand with their points below each other: all costs of an
invoice have as many decimals as the one with the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from fpdf import FPDF
from fpdf.enums import XPos, YPos

from quaymaster_pipeline.billing.documents import Lines, PriceSums
from quaymaster_pipeline.billing.focus import charges_of
from quaymaster_pipeline.billing.invoices import DAY, Invoice
from quaymaster_pipeline.billing.money import exact_sum, plain
from quaymaster_pipeline.billing.price_files import time_text
from quaymaster_pipeline.billing.rating import CHARGES, FREE

QUEUES_MAX: Final = 40
"""Queues that have a row of their own; the others are one row together."""
NAME_LENGTH_MAX: Final = 60
_LEFT, _RIGHT, _WIDTH = 18, 18, 174
_ROW_MM = 6
_CENTS = 2
"""Decimals that every amount has at least."""


class _Page(FPDF):
    def __init__(self, foot: str) -> None:
        super().__init__(format="A4")
        self._foot = foot

    def footer(self) -> None:
        self.set_y(-14)
        self.set_font("Helvetica", size=8)
        self.set_text_color(110)
        self.cell(_WIDTH / 2, 5, self._foot)
        self.cell(_WIDTH / 2, 5, f"Page {self.page_no()} of {{nb}}", align="R")
        self.set_text_color(0)


_QUEUE_KEYS: Final = ["queue_name", "region", "queue_id"]
_QUEUES_AT_ONCE: Final = 1 << 16


class _Sums:
    """What the pages say of an invoice's lines; it grows with queues, not with lines."""

    def __init__(self, lines: Iterable[Any]) -> None:
        self.places = _CENTS
        self.free = 0
        self.corrected: dict[str, tuple[int, Decimal]] = {}
        self._prices = PriceSums()
        self._queues = [CHARGES.empty_table().select([*_QUEUE_KEYS, "quantity", "cost"])]
        waiting = 0
        for part in lines:
            found = charges_of(part)
            self.places = max(self.places, _places(pc.unique(found.column("cost")).to_pylist()))
            self._add_corrections(found.filter(pc.is_valid(found.column("month"))))
            charges = found.filter(pc.is_null(found.column("month")))
            self._prices.add(charges)
            self.free += (
                pc.sum(charges.filter(pc.equal(charges.column("tier"), FREE)).column("quantity")).as_py() or 0
            )
            self._queues.append(charges.select(self._queues[0].column_names))
            waiting += charges.num_rows
            if waiting >= _QUEUES_AT_ONCE:
                self._queues, waiting = [self._by_queue()], 0
        self.prices = self._prices.all()
        self.queues = self._by_queue().to_pylist()
        self.queues.sort(
            key=lambda row: (
                row["cost"].copy_negate(),
                -row["quantity"],
                *(row[name] for name in _QUEUE_KEYS),
            )
        )

    def _add_corrections(self, found: Any) -> None:
        sums = found.group_by("month").aggregate([("quantity", "sum"), ("cost", "sum")])
        for row in sums.to_pylist():
            quantity, cost = self.corrected.get(row["month"], (0, Decimal(0)))
            self.corrected[row["month"]] = quantity + row["quantity_sum"], exact_sum((cost, row["cost_sum"]))

    def _by_queue(self) -> Any:
        rows = pa.concat_tables(self._queues)
        sums = rows.group_by(_QUEUE_KEYS, use_threads=False).aggregate([("quantity", "sum"), ("cost", "sum")])
        names = [name.removesuffix("_sum") for name in sums.column_names]
        return sums.rename_columns(names).select(rows.column_names).cast(rows.schema)


def render_pdf(invoice: Invoice, lines: Lines) -> Iterator[bytes]:
    """Yield the PDF file of an invoice."""
    title = f"Invoice {invoice.invoice_id}" if invoice.invoice_id else "Provisional invoice"
    page = _Page(_latin(f"{invoice.issuer} · {title} · revision {invoice.revision}"))
    # Time, producer and compression would make bytes differ between runs, versions and machines.
    # UTC is written as Z or as +00'00', by the kind of its zone; tables give another kind than clocks.
    page.set_creation_date((invoice.issued or datetime(1970, 1, 1, tzinfo=UTC)).astimezone(UTC))
    page.set_producer("Quaymaster")
    page.set_compression(False)
    page.set_title(_latin(f"{title}, {invoice.month}"))
    page.set_author(_latin(invoice.issuer))
    page.set_margins(_LEFT, 18, _RIGHT)
    page.set_auto_page_break(True, margin=20)
    page.add_page()
    sums = _Sums(lines())
    _head(page, invoice, title)
    _prices(page, invoice, sums)
    if sums.corrected:
        _corrections(page, invoice, sums)
    _total(page, invoice, sums.places)
    _queues(page, invoice, sums)
    _small_print(page, invoice, sums.free)
    yield bytes(page.output())


def _head(page: FPDF, invoice: Invoice, title: str) -> None:
    page.set_font("Helvetica", "B", 18)
    page.cell(_WIDTH, 10, _latin(invoice.issuer), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.set_font("Helvetica", "B", 13)
    page.cell(_WIDTH, 9, title, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    if invoice.state == "provisional":
        page.set_font("Helvetica", size=10)
        note = "Not an invoice yet: what would be paid if the month ended with the usage known so far."
        page.cell(_WIDTH, 6, note, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.ln(3)
    last_day = invoice.month.end - DAY
    facts = [
        (
            "Account",
            f"{invoice.account_name} ({invoice.account_id})" if invoice.account_name else invoice.account_id,
        ),
        ("Period", f"{invoice.month.start:%Y-%m-%d} to {last_day:%Y-%m-%d}, UTC"),
        ("Issued", time_text(invoice.issued) if invoice.issued else "not issued"),
        ("Prices", invoice.price_book),
    ]
    for name, text in facts:
        page.set_font("Helvetica", "B", 10)
        page.cell(28, _ROW_MM, name)
        page.set_font("Helvetica", size=10)
        page.multi_cell(_WIDTH - 28, _ROW_MM, _latin(text), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.ln(4)


def _prices(page: FPDF, invoice: Invoice, sums: _Sums) -> None:
    widths = (70, 34, 34, 36)
    _row(
        page,
        widths,
        ("Requests", "Quantity", "Per million", f"Cost {invoice.currency}"),
        bold=True,
        line=True,
    )
    price_places = _places(price.unit_price.scaleb(6) for price in sums.prices)
    for price in sums.prices:
        kind, version, tier = price.price_id.split("-")
        rate = {"standard": "Standard", "fifo": "FIFO", "push": "Push"}[kind]
        tier_name = "free requests" if tier == "free" else f"tier {tier.removeprefix('tier')}"
        name = f"{rate}, {tier_name} (prices {version})"
        per_million = _amount(price.unit_price.scaleb(6), price_places)
        _row(page, widths, (name, f"{price.quantity:,}", per_million, _amount(price.cost, sums.places)))
    if not sums.prices:
        _row(page, widths, ("No billed requests", "0", "", _amount(Decimal(0), sums.places)))


def _corrections(page: FPDF, invoice: Invoice, sums: _Sums) -> None:
    widths = (104, 34, 36)
    page.ln(4)
    _row(
        page,
        widths,
        ("Corrections of earlier months", "Quantity", f"Cost {invoice.currency}"),
        bold=True,
        line=True,
    )
    for month, (quantity, cost) in sorted(sums.corrected.items()):
        _row(page, widths, (month, f"{quantity:,}", _amount(cost, sums.places)))


def _total(page: FPDF, invoice: Invoice, places: int) -> None:
    page.ln(2)
    widths = (138, 36)
    _row(page, widths, ("Total before rounding", _amount(invoice.exact_total, places)))
    _row(page, widths, ("Rounding", _amount(invoice.rounding, places)))
    payable = (f"Payable ({invoice.currency})", _amount(invoice.payable, _CENTS))
    # What is paid has cents and no more; its point stands below those of the exact amounts all the same.
    _row(page, widths, payable, bold=True, line=True, places_left=places - _CENTS)


def _queues(page: FPDF, invoice: Invoice, sums: _Sums) -> None:
    if not sums.queues:
        return
    places = sums.places
    page.ln(6)
    widths = (104, 34, 36)
    _row(
        page,
        widths,
        ("By queue, before rounding", "Quantity", f"Cost {invoice.currency}"),
        bold=True,
        line=True,
    )
    for row in sums.queues[:QUEUES_MAX]:
        name, region = row["queue_name"], row["region"]
        shown = f"{_short(name)} ({region})" if name else f"without a queue ({region})"
        _row(page, widths, (shown, f"{row['quantity']:,}", _amount(row["cost"], places)))
    others = sums.queues[QUEUES_MAX:]
    if others:
        quantity = sum(row["quantity"] for row in others)
        cost = exact_sum(row["cost"] for row in others)
        _row(page, widths, (f"{len(others):,} others", f"{quantity:,}", _amount(cost, places)))


def _small_print(page: FPDF, invoice: Invoice, free: int) -> None:
    page.ln(6)
    page.set_font("Helvetica", size=8)
    counts = (
        f"Of {invoice.quantity:,} requests in this period {free:,} were free and "
        f"{invoice.quantity - free:,} are charged. "
    )
    text = (
        "A request counts once for each started 64 KiB of payload. "
        f"{counts if invoice.quantity else ''}"
        "Line costs are exact; the total is rounded once, half to even. "
        f"All lines are in the CSV of this invoice. Checksum {invoice.digest}."
    )
    page.multi_cell(_WIDTH, 4, text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)


def _row(
    page: FPDF,
    widths: Sequence[int],
    texts: Sequence[str],
    *,
    bold: bool = False,
    line: bool = False,
    places_left: int = 0,
) -> None:
    """Write a row. Room for `places_left` digits is left at the right of the last text."""
    page.set_font("Helvetica", "B" if bold else "", 9)
    for index, (width, text) in enumerate(zip(widths, texts, strict=True)):
        is_last = index + 1 == len(widths)
        # A digit is as wide as two spaces in this font, and bold ones are no wider.
        room = "  " * places_left if is_last else ""
        page.cell(
            width,
            _ROW_MM,
            _latin(text) + room,
            border="B" if line else 0,
            align="L" if index == 0 else "R",
            new_x=XPos.LMARGIN if is_last else XPos.RIGHT,
            new_y=YPos.NEXT if is_last else YPos.TOP,
        )


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH_MAX else name[: NAME_LENGTH_MAX - 3] + "..."


def _places(amounts: Iterable[Decimal]) -> int:
    """Return how many decimals the amounts of a column are shown with, so that none is cut."""
    return max([_CENTS, *(len(plain(amount).partition(".")[2]) for amount in amounts)])


def _amount(amount: Decimal, places: int) -> str:
    """Return an amount with so many decimals, which it must not have more of."""
    sign = "-" if amount < 0 else ""
    whole, _, decimals = plain(amount.copy_abs()).partition(".")
    assert len(decimals) <= places, "the column has room for all decimals"
    return f"{sign}{int(whole):,}.{decimals.ljust(places, '0')}"


def _latin(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")

"""Invoices as JSON and CSV: the same bytes for the same invoice. Pure.

Amounts and prices are texts in JSON, so that no reader makes binary floats of them; quantities are integers. Lines are
read as often as needed, and written as they come: an invoice may have more of them than fit in memory.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from quaymaster_pipeline.billing.focus import COLUMNS, UNIT, only_charges
from quaymaster_pipeline.billing.invoices import Invoice
from quaymaster_pipeline.billing.money import exact_sum, plain
from quaymaster_pipeline.billing.price_files import time_text
from quaymaster_pipeline.billing.rating import price_id
from quaymaster_pipeline.billing.rules import BILLING_CLASSES

Lines = Callable[[], Iterable[Any]]
"""The lines of an invoice, in the columns of FOCUS, as tables; from the first on whenever it is called."""
_INDENT: Final = "  "


class PriceSum(NamedTuple):
    """What an invoice has at one price."""

    price_id: str
    unit_price: Decimal
    quantity: int
    cost: Decimal


class PriceSums:
    """The charges of a month by price, as lines are added."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int, int], PriceSum] = {}

    def add(self, charges: Any) -> None:
        """Add rows of CHARGES."""
        keys = ["billing_class", "price_version", "tier", "unit_price"]
        found = charges.group_by(keys, use_threads=False).aggregate([("quantity", "sum"), ("cost", "sum")])
        for row in found.to_pylist():
            name, version, tier, unit_price = (row[key] for key in keys)
            # Standard before FIFO and push, and the free requests (tier -1) before the first tier.
            key = (BILLING_CLASSES.index(name), version, tier)
            before = self._sums.get(key)
            quantity = row["quantity_sum"] + (before.quantity if before else 0)
            cost = exact_sum((row["cost_sum"], before.cost)) if before else row["cost_sum"]
            self._sums[key] = PriceSum(price_id(name, version, tier), unit_price, quantity, cost)

    def all(self) -> list[PriceSum]:
        """Return the sums in the order of class, version, tier."""
        return [self._sums[key] for key in sorted(self._sums)]


def invoice_head(invoice: Invoice) -> dict[str, Any]:
    """Return an invoice without its lines, as JSON has it: who owes whom how much."""
    return {
        "invoice_id": invoice.invoice_id,
        "state": invoice.state,
        "revision": invoice.revision,
        "issued": time_text(invoice.issued) if invoice.issued else None,
        "month": str(invoice.month),
        "account_id": invoice.account_id,
        "account_name": invoice.account_name,
        "issuer": invoice.issuer,
        "price_book": invoice.price_book,
        "currency": invoice.currency,
        "payable": str(invoice.payable),
        "exact_total": plain(invoice.exact_total),
        "rounding": plain(invoice.rounding),
        "billed_requests": invoice.quantity,
        "digest": invoice.digest,
    }


def json_text(invoice: Invoice, lines: Lines) -> Iterator[str]:
    """Yield an invoice as JSON, in parts: who owes whom how much, sums by price, and all lines in FOCUS columns."""
    sums = PriceSums()
    for part in lines():
        sums.add(only_charges(part))
    prices = [
        {
            "price_id": price.price_id,
            "unit_price": plain(price.unit_price),
            "unit": UNIT,
            "quantity": price.quantity,
            "cost": plain(price.cost),
        }
        for price in sums.all()
    ]
    head = json_of({**invoice_head(invoice), "prices": prices})
    yield head.removesuffix("\n}") + f',\n{_INDENT}"lines": '
    rows = (
        {name: _json_value(row[name]) for name in COLUMNS} for part in lines() for row in part.to_pylist()
    )
    yield from json_list(([json_of(row)] for row in rows), _INDENT)
    yield "\n}"


def json_list(items: Iterable[Iterable[str]], indent: str = "") -> Iterator[str]:
    """Yield a list of JSON values, each given in parts, as JSON: as `json.dumps` with an indent of two writes it."""
    begin, inner = "[", f"\n{indent}{_INDENT}"
    for item in items:
        yield begin + inner
        for part in item:
            yield part.replace("\n", inner)
        begin = ","
    yield f"\n{indent}]" if begin == "," else "[]"


def csv_text(lines: Lines, *, has_header: bool = True) -> Iterator[str]:
    """Yield the lines of an invoice as CSV, in parts; what is absent is empty."""
    if has_header:
        yield _csv([COLUMNS])
    for part in lines():
        yield _csv(
            ["" if (value := _json_value(row[name])) is None else value for name in COLUMNS]
            for row in part.to_pylist()
        )


def render_json(invoice: Invoice, lines: Lines) -> Iterator[bytes]:
    """Yield the JSON file of an invoice."""
    for part in json_text(invoice, lines):
        yield part.encode()
    yield b"\n"


def render_csv(invoice: Invoice, lines: Lines) -> Iterator[bytes]:
    """Yield the CSV file of an invoice: a header, and its lines in FOCUS columns."""
    for part in csv_text(lines):
        yield part.encode()


def json_of(value: Any) -> str:
    """Return a value as JSON, as commands print it."""
    return json.dumps(value, indent=len(_INDENT), ensure_ascii=False)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _json_value(value: Any) -> str | int | None:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, Decimal):
        return plain(value)
    assert value is None or isinstance(value, (str, int)), "lines have texts, numbers and times"
    return value

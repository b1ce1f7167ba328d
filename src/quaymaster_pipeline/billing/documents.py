"""Invoices as JSON and CSV: the same bytes for the same invoice. Pure.

Amounts and prices are texts in JSON, so that no reader makes binary floats of them; quantities are integers.
"""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from decimal import Decimal
from typing import Any

from quaymaster_pipeline.billing.focus import COLUMNS, UNIT, Value, focus_rows
from quaymaster_pipeline.billing.invoices import Invoice
from quaymaster_pipeline.billing.money import plain
from quaymaster_pipeline.billing.price_files import time_text


def invoice_as_json(invoice: Invoice) -> dict[str, Any]:
    """Return an invoice as JSON has it: who owes whom how much, sums by price, and all lines in FOCUS columns."""
    return invoice_head(invoice) | {
        "prices": [
            {
                "price_id": price.price_id,
                "unit_price": plain(price.unit_price),
                "unit": UNIT,
                "quantity": price.quantity,
                "cost": plain(price.cost),
            }
            for price in invoice.price_sums
        ],
        "lines": [{name: _json_value(row[name]) for name in COLUMNS} for row in focus_rows(invoice)],
    }


def invoice_head(invoice: Invoice) -> dict[str, Any]:
    """Return an invoice without its lines."""
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


def render_json(invoice: Invoice) -> bytes:
    """Return the JSON file of an invoice."""
    return (json.dumps(invoice_as_json(invoice), indent=2, ensure_ascii=False) + "\n").encode()


def render_csv(invoice: Invoice) -> bytes:
    """Return the CSV file of an invoice: a header, and its lines in FOCUS columns; what is absent is empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in focus_rows(invoice):
        writer.writerow("" if (value := _json_value(row[name])) is None else value for name in COLUMNS)
    return text.getvalue().encode()


def _json_value(value: Value) -> str | int | None:
    if isinstance(value, datetime):
        return time_text(value)
    return plain(value) if isinstance(value, Decimal) else value

"""The tables of billing. Like all tables of the warehouse: columns are only added, at the end."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from quaymaster_pipeline.billing.focus import LINES
from quaymaster_pipeline.billing.money import LINE_COST_DIGITS, PAYABLE_DIGITS, UNIT_PRICE_DIGITS
from quaymaster_pipeline.warehouse.schemas import TIME, TableSpec

MONTH_COLUMN: Final = "billing_month"
"""The first day of the billing period."""
_COST = pa.decimal128(*LINE_COST_DIGITS)
_UNIT_PRICE = pa.decimal128(*UNIT_PRICE_DIGITS)
_PAYABLE = pa.decimal128(*PAYABLE_DIGITS)
_LINES = pa.schema([*LINES, (MONTH_COLUMN, pa.date32())])
ACCOUNT_COLUMN: Final = "BillingAccountId"

CHARGES = TableSpec("gold.charges", _LINES, MONTH_COLUMN, bounded=(ACCOUNT_COLUMN,))
"""Lines of invoices, provisional and final, but for corrections: usage, and each invoice's rounding."""

ADJUSTMENTS = TableSpec("gold.adjustments", _LINES, MONTH_COLUMN, bounded=(ACCOUNT_COLUMN,))
"""Lines that correct closed months, in the month of the invoice that has them (ChargeClass `Correction`)."""

INVOICES = TableSpec(
    "gold.invoices",
    pa.schema(
        [
            ("invoice_id", pa.string()),
            ("state", pa.string()),
            ("revision", pa.int64()),
            ("issued", TIME),
            ("account_id", pa.string()),
            ("account_name", pa.string()),
            ("issuer", pa.string()),
            ("price_book", pa.string()),
            ("currency", pa.string()),
            ("payable", _PAYABLE),
            ("exact_total", _COST),
            ("rounding", _COST),
            ("billed_requests", pa.int64()),
            ("lines", pa.int64()),
            ("digest", pa.string()),
            ("usage_version", pa.int64()),
            ("reconciliation", pa.string()),
            (MONTH_COLUMN, pa.date32()),
            ("through_batch", pa.int64()),
            ("through_close", pa.int64()),
        ]
    ),
    MONTH_COLUMN,
    bounded=("account_id", "through_close"),
)
"""One row an account and month: the last revision. Its row is written after its lines, so it says that they are whole.
`usage_version` is the version of gold.usage_daily that was rated, `reconciliation` JSON of what was compared.
`through_close` is the last close of days (`ops.closes`) whose rows it has, `through_batch` the last batch in them: rows
that closes after it bring are corrections. Files of these three tables are sorted by account."""

PRICE_BOOK = TableSpec(
    "ops.price_book",
    pa.schema(
        [
            ("name", pa.string()),
            ("currency", pa.string()),
            ("issuer", pa.string()),
            ("number", pa.int64()),
            ("valid_from", TIME),
            ("valid_to", TIME),
            ("free_requests", pa.int64()),
            ("billing_class", pa.string()),
            ("above", pa.int64()),
            ("unit_price", _UNIT_PRICE),
        ]
    ),
)
"""The price book that is set, a row a tier. Earlier books are earlier versions of the table."""

ACCOUNTS = TableSpec(
    "ops.dim_account",
    pa.schema(
        [
            ("account_id", pa.string()),
            ("account_name", pa.string()),
            ("valid_from", TIME),
            ("valid_to", TIME),
        ]
    ),
)
"""What accounts were called, and when."""

BILLING_TABLES = (CHARGES, ADJUSTMENTS, INVOICES, PRICE_BOOK, ACCOUNTS)

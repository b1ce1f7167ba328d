"""Exact decimals of billing. Pure.

    unit price   DECIMAL(38,18)
    line cost    DECIMAL(38,12)   the product, rounded half-even where it has more digits
    payable      DECIMAL(18,2)    the sum of an invoice, rounded half-even once

Only `as_line_cost` and `as_payable` round; all other arithmetic is exact, or raises. A binary float never comes in.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

UNIT_PRICE_DIGITS: Final = (38, 18)
LINE_COST_DIGITS: Final = (38, 12)
PAYABLE_DIGITS: Final = (18, 2)

_EXACT: Final = Context(
    prec=200, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Inexact, Overflow], clamp=0
)
_ROUNDED: Final = Context(prec=200, rounding=ROUND_HALF_EVEN, traps=[InvalidOperation, Overflow])


class AmountTooLarge(ValueError):
    """An amount does not fit the column that keeps it."""


def product(quantity: int, unit_price: Decimal) -> Decimal:
    """Return quantity times price, exactly."""
    return _EXACT.multiply(Decimal(quantity), unit_price)


def line_costs(quantities: Any, unit_prices: Any) -> Any:
    """Return `as_line_cost(product(...))` of arrays: of int64 and of DECIMAL(38,18), and so DECIMAL(38,12)."""
    counts = quantities.cast(pa.decimal128(19, 0)).cast(pa.decimal256(19, 0))
    exact = pc.multiply_checked(counts, unit_prices.cast(pa.decimal256(*UNIT_PRICE_DIGITS)))
    rounded = pc.round(exact, LINE_COST_DIGITS[1], "half_to_even")
    try:
        return rounded.cast(pa.decimal128(*LINE_COST_DIGITS))
    except pa.ArrowInvalid:
        _fit(max(rounded.to_pylist()), LINE_COST_DIGITS, "line cost")
        raise


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    """Return the sum, exactly."""
    total = Decimal(0)
    for amount in amounts:
        total = _EXACT.add(total, amount)
    return total


def difference(amount: Decimal, other: Decimal) -> Decimal:
    """Return `amount` less `other`, exactly."""
    return _EXACT.subtract(amount, other)


def as_line_cost(amount: Decimal) -> Decimal:
    """Return an amount with the 12 decimals of a line, rounded half-even."""
    return _fit(amount, LINE_COST_DIGITS, "line cost")


def as_payable(amount: Decimal) -> Decimal:
    """Return an amount with the 2 decimals that are paid, rounded half-even."""
    return _fit(amount, PAYABLE_DIGITS, "payable amount")


def as_unit_price(price: Decimal) -> Decimal:
    """Return a price with 18 decimals. Raises ValueError for one that is negative, too large or has more of them."""
    if not price.is_finite() or price < 0:
        raise ValueError(f"price {price} must be a number that is not negative")
    fitted = _fit(price, UNIT_PRICE_DIGITS, "price")
    if fitted != price:
        raise ValueError(f"price {price} per request has more than {UNIT_PRICE_DIGITS[1]} decimals")
    return fitted


def plain(amount: Decimal) -> str:
    """Return an amount as text without exponent and trailing zeros: `0.4`, `12`, `0`."""
    text = format(amount, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _fit(amount: Decimal, digits: tuple[int, int], what: str) -> Decimal:
    whole, decimals = digits
    rounded = _ROUNDED.quantize(amount, Decimal(1).scaleb(-decimals))
    if abs(rounded) >= Decimal(10) ** (whole - decimals):
        raise AmountTooLarge(
            f"{what} {plain(rounded)} has more than {whole - decimals} digits before the point"
        )
    return rounded if rounded else rounded.copy_abs()  # no -0.00 on an invoice

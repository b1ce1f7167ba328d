from __future__ import annotations

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.billing import money
from quaymaster_pipeline.billing.money import AmountTooLarge

UNIT_PRICES = st.decimals(min_value=0, max_value=10**19, places=18)


@pytest.mark.parametrize(
    ("exact", "payable"),
    [
        ("0.005", "0.00"),
        ("0.015", "0.02"),
        ("0.025", "0.02"),
        ("0.025000000001", "0.03"),
        ("-0.005", "0.00"),
        ("-0.015", "-0.02"),
        ("1234567.894999999999", "1234567.89"),
    ],
)
def test_payable_amounts_are_rounded_half_even(exact: str, payable: str) -> None:
    assert str(money.as_payable(Decimal(exact))) == payable


@given(st.integers(0, 2**63 - 1), st.decimals(min_value=0, max_value=1000, places=18))
def test_a_product_is_exact_whatever_the_callers_decimal_context(quantity: int, price: Decimal) -> None:
    with localcontext(prec=2):
        exact = money.product(quantity, price)
        line = money.as_line_cost(exact)

    assert exact.as_integer_ratio()[0] * 10**18 == exact.as_integer_ratio()[1] * quantity * int(
        price.scaleb(18)
    )
    with localcontext(prec=100):
        assert abs(line - exact) <= Decimal("5e-13")


@given(
    st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.decimals(min_value=0, max_value=10**6, places=18)), max_size=9
    )
)
def test_many_costs_at_once_are_those_of_one_after_the_other(parts: list[tuple[int, Decimal]]) -> None:
    costs = money.line_costs(
        pa.array([quantity for quantity, _ in parts], pa.int64()),
        pa.array([price for _, price in parts], pa.decimal128(*money.UNIT_PRICE_DIGITS)),
    )

    assert costs.to_pylist() == [money.as_line_cost(money.product(*part)) for part in parts]


def test_many_costs_at_once_are_refused_like_one_that_is_too_large() -> None:
    prices = pa.array([Decimal(10**18)], pa.decimal128(*money.UNIT_PRICE_DIGITS))

    with pytest.raises(AmountTooLarge, match="line cost 9223372036854775807000000000000000000 has more"):
        money.line_costs(pa.array([2**63 - 1], pa.int64()), prices)


@given(st.lists(st.decimals(min_value=-(10**25), max_value=10**25, places=12), max_size=20))
def test_a_sum_is_exact_in_any_order(amounts: list[Decimal]) -> None:
    assert money.exact_sum(amounts) == money.exact_sum(reversed(amounts))
    assert int(money.exact_sum(amounts).scaleb(12, money._EXACT)) == sum(
        int(amount.scaleb(12, money._EXACT)) for amount in amounts
    )


@given(UNIT_PRICES)
def test_a_unit_price_keeps_its_18_decimals(price: Decimal) -> None:
    assert money.as_unit_price(price) == price


@pytest.mark.parametrize("price", ["-0.1", "NaN", "Infinity", "0.0000000000000000001"])
def test_a_price_that_cannot_be_kept_is_refused(price: str) -> None:
    with pytest.raises(ValueError, match="price"):
        money.as_unit_price(Decimal(price))


def test_an_amount_too_large_for_its_column_is_refused() -> None:
    with pytest.raises(AmountTooLarge, match="16 digits"):
        money.as_payable(Decimal(10) ** 16)
    with pytest.raises(AmountTooLarge, match="26 digits"):
        money.as_line_cost(Decimal(10) ** 26)


@pytest.mark.parametrize(
    ("amount", "text"), [("0E-18", "0"), ("-0.00", "0"), ("0.400", "0.4"), ("1E+3", "1000"), ("100", "100")]
)
def test_amounts_are_written_without_exponents_and_needless_zeros(amount: str, text: str) -> None:
    assert money.plain(Decimal(amount)) == text

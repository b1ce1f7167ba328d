from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal

import pytest
from harness.billing import (
    BILLION,
    BOOK,
    CHANGE,
    CHANGED,
    MILLION,
    MONTH,
    Charge,
    Usage,
    added_up,
    rate,
    sqs_version,
    used,
)
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.billing.money import as_line_cost, exact_sum, product
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import NoPrice, PriceBook
from quaymaster_pipeline.billing.rating import FREE, BadUsage
from quaymaster_pipeline.billing.rules import BILLING_CLASSES, BillingClass


def total(charges: Sequence[Charge]) -> Decimal:
    return exact_sum(charge.cost for charge in charges)


HOURS = st.integers(0, 30 * 24 - 1)
BILLED = st.integers(0, 3 * MILLION) | st.integers(0, 150 * BILLION)
CLASSES: st.SearchStrategy[BillingClass] = st.sampled_from(["standard", "fifo"])
USAGE = st.builds(
    lambda billed, hour, billing_class, queue, action: used(
        billed, hour=hour, billing_class=billing_class, queue=queue, action=action
    ),
    BILLED,
    HOURS,
    CLASSES,
    st.integers(1, 3),
    st.sampled_from(["SendMessage", "ReceiveMessage"]),
)
MONTHS_USAGE = st.lists(USAGE, max_size=12)
BOOKS = st.sampled_from([BOOK, CHANGED])
MORE_FREE = PriceBook(
    "more", "USD", (sqs_version(1, valid_to=CHANGE), sqs_version(2, CHANGE, free_requests=3 * MILLION))
)


def test_the_first_million_is_free_for_all_classes_together() -> None:
    usage = [used(600_000, hour=1), used(600_000, hour=2, billing_class="fifo")]

    charges = rate(usage)

    assert [(charge.price_id, charge.quantity, charge.cost) for charge in charges] == [
        ("fifo-v1-free", 400_000, Decimal(0)),
        ("fifo-v1-tier1", 200_000, Decimal("0.1")),
        ("standard-v1-free", 600_000, Decimal(0)),
    ]


@pytest.mark.parametrize(
    ("billed", "cost"),
    [
        (1, "0"),
        (MILLION, "0"),
        (MILLION + 1, "0.0000004"),
        (2 * MILLION, "0.4"),
        (100 * BILLION, "39999.6"),
        (100 * BILLION + 1, "39999.6000003"),
        (200 * BILLION, "69999.6"),
        (200 * BILLION + 1, "69999.60000024"),
        (201 * BILLION, "70239.6"),
    ],
)
def test_tiers_and_free_requests_cost_what_the_price_list_says_at_their_edges(billed: int, cost: str) -> None:
    assert total(rate([used(billed)])) == Decimal(cost)


def test_each_class_has_tiers_of_its_own() -> None:
    usage = [used(100 * BILLION), used(100 * BILLION, hour=1, billing_class="fifo")]

    assert total(rate(usage)) == Decimal("39999.6") + Decimal(50_000)


def test_a_price_change_counts_from_its_midnight_and_leaves_tiers_and_free_requests_counted() -> None:
    before = int((CHANGE - MONTH.start).total_seconds()) // 3600 - 1
    usage = [used(3 * MILLION, hour=before), used(3 * MILLION, hour=before + 24)]

    charges = rate(usage, CHANGED)

    assert [(charge.price_id, charge.quantity, charge.unit_price) for charge in charges] == [
        ("standard-v1-free", MILLION, 0),
        ("standard-v1-tier1", 2 * MILLION, Decimal("0.0000004")),
        ("standard-v2-tier1", 3 * MILLION, Decimal("0.0000008")),
    ]


def test_a_change_of_the_allowance_within_a_month_counts_what_was_free_already() -> None:
    usage = [used(2 * MILLION), used(5 * MILLION, hour=29 * 24)]

    charges = rate(usage, MORE_FREE)

    assert [(charge.price_id, charge.quantity) for charge in charges] == [
        ("standard-v1-free", MILLION),
        ("standard-v1-tier1", MILLION),
        ("standard-v2-free", 2 * MILLION),
        ("standard-v2-tier1", 3 * MILLION),
    ]


@given(MONTHS_USAGE, BOOKS, st.randoms(use_true_random=False))
def test_the_order_of_usage_does_not_matter(usage: list[Usage], book: PriceBook, random: object) -> None:
    shuffled = list(usage)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert rate(shuffled, book) == rate(usage, book)


@given(MONTHS_USAGE, BOOKS, st.data())
def test_usage_in_any_parts_is_rated_the_same(
    usage: list[Usage], book: PriceBook, data: st.DataObject
) -> None:
    parts = []
    for row in usage:
        cut = data.draw(st.integers(0, row.billed_requests))
        parts += [row._replace(billed_requests=cut), row._replace(billed_requests=row.billed_requests - cut)]

    assert rate(parts, book) == rate(usage, book)


def one_by_one(usage: list[Usage], book: PriceBook) -> list[tuple[object, ...]]:
    """Rate by the rules, word for word: day, class, region, queue, action; each request takes its place."""
    rows = sorted(
        added_up(usage), key=lambda row: (row.day, BILLING_CLASSES.index(row.billing_class), row[1:5])
    )
    positions, free_used, found = dict.fromkeys(BILLING_CLASSES, 0), 0, []
    for row in rows:
        version = book.at(MONTH.start + (row.day - MONTH.start.date()))
        left = row.billed_requests
        while left:
            position = positions[row.billing_class]
            tiers = version.tiers[row.billing_class]
            if free_used < version.free_requests:
                tier, price, part = FREE, Decimal(0), min(left, version.free_requests - free_used)
                free_used += part
            else:
                tier = version.tier_number(row.billing_class, position)
                price = tiers[tier].unit_price
                part = left if tier + 1 == len(tiers) else min(left, tiers[tier + 1].above - position)
            cost = as_line_cost(product(part, price))
            found.append((*row[:6], version.number, tier, price, part, cost))
            positions[row.billing_class] = position + part
            left -= part
    return sorted(found)


@given(MONTHS_USAGE, st.sampled_from([BOOK, CHANGED, MORE_FREE]), st.integers(1, 5))
def test_rows_rated_any_number_at_a_time_cost_what_single_requests_do(
    usage: list[Usage], book: PriceBook, rows_at_once: int
) -> None:
    charges = rate(usage, book, rows_at_once=rows_at_once)

    assert [charge[1:12] for charge in charges] == one_by_one(usage, book)


@given(MONTHS_USAGE, BOOKS)
def test_charges_have_each_billed_request_once(usage: list[Usage], book: PriceBook) -> None:
    charges = rate(usage, book)

    assert sum(charge.quantity for charge in charges) == sum(row.billed_requests for row in usage)
    assert len({charge.line_id for charge in charges}) == len(charges)
    free = sum(charge.quantity for charge in charges if charge.tier == FREE)
    assert free == min(MILLION, sum(row.billed_requests for row in usage))


@given(MONTHS_USAGE)
def test_the_total_is_that_of_an_independent_sum_over_the_month(usage: list[Usage]) -> None:
    """With one price version, a class costs its tiers over all its requests, less what was free of it."""
    charges = rate(usage)

    cost = Decimal(0)
    for billing_class, prices in (("standard", (40, 30, 24)), ("fifo", (50, 40, 35))):
        of_class = sum(row.billed_requests for row in usage if row.billing_class == billing_class)
        free = sum(c.quantity for c in charges if c.billing_class == billing_class and c.tier == FREE)
        first = min(of_class, 100 * BILLION)
        second = min(of_class, 200 * BILLION) - first
        hundredths = (first - free) * prices[0] + second * prices[1] + (of_class - first - second) * prices[2]
        cost += Decimal(hundredths) / 100 / MILLION
    assert total(charges) == cost


@given(MONTHS_USAGE, BOOKS, USAGE)
def test_more_usage_never_costs_less(usage: list[Usage], book: PriceBook, more: Usage) -> None:
    assert total(rate([*usage, more], book)) >= total(rate(usage, book))


@given(MONTHS_USAGE, USAGE)
def test_later_usage_leaves_the_lines_of_earlier_days_as_they_are(usage: list[Usage], late: Usage) -> None:
    last = late._replace(day=(MONTH.end - timedelta(days=1)).date(), queue_id=99)

    before = {charge.line_id: charge for charge in rate(usage)}
    after = {charge.line_id: charge for charge in rate([*usage, last])}

    for line_id, charge in before.items():
        if charge.day < last.day:
            assert after[line_id] == charge


def test_lines_are_by_day_and_have_the_first_and_the_last_hour_of_a_leap_day() -> None:
    month = Month(2028, 2)
    usage = [used(1, hour=28 * 24, month=month), used(2, hour=29 * 24 - 1, month=month)]

    charges = rate(usage, month=month)

    assert [(charge.day, charge.quantity) for charge in charges] == [(date(2028, 2, 29), 3)]


def test_the_same_usage_of_another_account_has_other_line_ids() -> None:
    mine = rate([used(1)])
    theirs = rate([used(1)], account_id="210987654321")

    assert mine[0].line_id != theirs[0].line_id


def test_line_ids_stay_what_they_were_published_as() -> None:
    assert rate([used(5)])[0].line_id == "1330e9ba6e9bd3be84a08bb437682b70"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (used(-1), "-1 billed requests"),
        (used(1, hour=30 * 24), "is not of 2026-11"),
        (used(1, hour=-1), "is not of 2026-11"),
        (used(2**62), "is too many"),
        (used(1)._replace(billing_class="gold"), "billing class 'gold'"),  # type: ignore[arg-type]
    ],
)
def test_usage_that_cannot_be_rated_is_refused(row: Usage, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        rate([row, row._replace(queue_id=row.queue_id + 1)])


def test_usage_of_a_time_without_price_is_refused() -> None:
    book = PriceBook("ended", "USD", (sqs_version(valid_to=CHANGE),))

    assert rate([used(1)], book)
    with pytest.raises(NoPrice, match="2026-11-30T00:00:00Z"):
        rate([used(1), used(1, hour=29 * 24)], book)

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from harness.billing import (
    ACCOUNT,
    BILLION,
    BOOK,
    CHANGED,
    MILLION,
    MONTH,
    Charge,
    Correction,
    Usage,
    Whole,
    charge_table,
    corrected,
    rate,
    used,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.billing.documents import PriceSums, render_csv, render_json
from quaymaster_pipeline.billing.focus import COLUMNS
from quaymaster_pipeline.billing.invoice_pdf import render_pdf
from quaymaster_pipeline.billing.invoices import Invoice, issue, revised
from quaymaster_pipeline.billing.money import exact_sum, plain
from quaymaster_pipeline.billing.prices import PriceBook, PriceVersion, make_tiers

GOLDEN = Path(__file__).parent / "golden"
ISSUED = datetime(2026, 12, 4, 6, 30, tzinfo=UTC)
FOCUS_MANDATORY = {
    *("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingAccountId", "BillingAccountName"),
    *("BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"),
    *("ChargeCategory", "ChargeClass", "ChargeDescription", "InvoiceIssuerName", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}


def invoice_of(
    charges: Sequence[Charge],
    corrections: Sequence[Correction] = (),
    before: tuple[int, str] | None = None,
    name: str = "Acme Ltd",
) -> Whole:
    invoice = Invoice(
        account_id=ACCOUNT,
        account_name=name,
        month=MONTH,
        currency="USD",
        issuer="Quaymaster",
        price_book="SQS",
    )
    found = whole(invoice, charges, corrections)
    return found if before is None else found._replace(invoice=revised(found.invoice, before))


def issued(found: Whole) -> Whole:
    return found._replace(invoice=issue(found.invoice, ISSUED))


def months_usage() -> list[Usage]:
    """A month with everything in it: both classes, free requests, a price change, queues and none."""
    return [
        used(800_000, hour=3),
        used(400_003, hour=5, billing_class="fifo", queue=8),
        used(2_500_001, hour=200, action="ReceiveMessage"),
        used(123_457, hour=500, billing_class="fifo", queue=8),
        used(3, hour=719, queue=0, action="ListQueues")._replace(queue_name=""),
        used(777_777, hour=719),
    ]


def late_corrections() -> list[Correction]:
    """Late usage of the month before, and some that was there twice."""
    month = MONTH.previous
    charged = rate([used(2 * MILLION, month=month), used(5, hour=9, month=month)], month=month)
    rated = rate([used(2 * MILLION + 70_001, month=month), used(2, hour=9, month=month)], month=month)
    return corrected(month, MONTH, charged, [], rated)


def golden_invoice() -> Whole:
    return issued(invoice_of(rate(months_usage(), CHANGED), late_corrections()))


TINY = PriceBook(
    "tiny",
    "EUR",
    (
        PriceVersion(
            1,
            datetime(2020, 1, 1, tzinfo=UTC),
            None,
            3,
            {
                "standard": make_tiers([(0, Decimal("0.333333333333")), (7, Decimal("0.000000000001"))]),
                "fifo": make_tiers([(0, Decimal("12345.678901234567"))]),
            },
        ),
    ),
)
USAGE = st.lists(
    st.builds(
        lambda billed, hour, fifo, queue: used(
            billed, hour=hour, billing_class="fifo" if fifo else "standard", queue=queue
        ),
        st.integers(0, 20) | st.integers(0, 10 * BILLION),
        st.integers(0, 719),
        st.booleans(),
        st.integers(1, 3),
    ),
    max_size=8,
)
BOOKS = st.sampled_from([BOOK, CHANGED, TINY])


@given(USAGE, BOOKS)
def test_the_billed_costs_of_all_lines_are_the_payable_amount(usage: list[Usage], book: PriceBook) -> None:
    invoice = invoice_of(rate(usage, book), late_corrections())

    rows = invoice.rows()

    costs = [row["BilledCost"] for row in rows]
    assert all(isinstance(cost, Decimal) for cost in costs)
    assert exact_sum(cost for cost in costs if isinstance(cost, Decimal)) == invoice.invoice.payable
    assert [row["ChargeCategory"] for row in rows].count("Adjustment") == 1
    assert abs(invoice.invoice.rounding) <= Decimal("0.005")
    assert invoice.invoice.payable == invoice.invoice.payable.quantize(Decimal("0.01"))


@given(USAGE, BOOKS)
def test_json_and_csv_have_the_same_lines_and_no_binary_floats(usage: list[Usage], book: PriceBook) -> None:
    invoice = issued(invoice_of(rate(usage, book)))

    from_json = json.loads(invoice.text(render_json), parse_float=pytest.fail)
    from_csv = list(csv.DictReader(io.StringIO(invoice.text(render_csv).decode(), newline="")))

    as_text = [
        {name: "" if value is None else str(value) for name, value in line.items()}
        for line in from_json["lines"]
    ]
    assert as_text == from_csv
    assert sum(Decimal(row["BilledCost"]) for row in from_csv) == Decimal(from_json["payable"])
    assert from_json["billed_requests"] == sum(row.billed_requests for row in usage)
    assert sum(price["quantity"] for price in from_json["prices"]) == from_json["billed_requests"]


@given(USAGE, USAGE, USAGE)
def test_corrections_bring_a_closed_month_to_what_it_should_have_been(
    first: list[Usage], second: list[Usage], third: list[Usage]
) -> None:
    """Each of several later months finds only what the ones before it have not corrected yet."""
    charged, now, later = rate(first, CHANGED), rate(second, CHANGED), rate(third, CHANGED)

    def corrections(into_number: int, before: list[Correction], rated: list[Charge]) -> list[Correction]:
        into = MONTH
        for _ in range(into_number):
            into = into.next
        return corrected(MONTH, into, charged, before, rated)

    in_december = corrections(1, [], now)
    in_january = corrections(2, in_december, later)
    in_february = corrections(3, [*in_december, *in_january], later)

    assert in_february == []
    everything = [*charged, *(correction.charge for correction in (*in_december, *in_january))]
    assert exact_sum(line.cost for line in everything) == exact_sum(line.cost for line in later)
    assert sum(line.quantity for line in everything) == sum(line.quantity for line in later)
    assert len({line.line_id for line in everything}) == len(everything)


def test_a_closed_month_that_is_rated_as_before_needs_no_correction() -> None:
    month = MONTH.previous
    charged = rate([used(2 * MILLION, month=month)], month=month)

    found = corrected(month, MONTH, charged, [], charged)

    assert found == []


def test_a_correction_says_what_it_corrects_and_keeps_the_day_that_it_was_used() -> None:
    invoice = invoice_of([], late_corrections())

    lines = [row for row in invoice.rows() if row["ChargeClass"] == "Correction"]

    assert {row["x_corrected_period"] for row in lines} == {"2026-10"}
    assert {row["ChargePeriodStart"] for row in lines} == {MONTH.previous.start}
    assert {row["BillingPeriodStart"] for row in lines} == {MONTH.start}
    assert sum(row["ConsumedQuantity"] for row in lines if isinstance(row["ConsumedQuantity"], int)) == 69_998
    assert plain(invoice.invoice.exact_total) == "0.0279992"


def test_a_revision_grows_only_when_something_changed() -> None:
    first = invoice_of(rate([used(5)])).invoice
    same = invoice_of(rate([used(2), used(3)]), before=(first.revision, first.digest)).invoice
    more = invoice_of(rate([used(6)]), before=(same.revision, same.digest)).invoice

    assert [first.revision, same.revision, more.revision] == [1, 1, 2]


def test_a_revision_that_is_rated_again_has_the_same_bytes() -> None:
    original, replayed = golden_invoice(), golden_invoice()

    assert original.text(render_json) == replayed.text(render_json)
    assert original.text(render_csv) == replayed.text(render_csv)
    assert original.text(render_pdf) == replayed.text(render_pdf)


def test_only_a_final_invoice_has_a_number() -> None:
    provisional = invoice_of(rate([used(5)]))

    assert provisional.invoice.invoice_id is None
    assert {row["InvoiceId"] for row in provisional.rows()} == {None}
    assert issued(provisional).invoice.invoice_id == f"QM-202611-{ACCOUNT}"
    assert b"Not an invoice yet" in provisional.text(render_pdf)


def test_an_invoice_without_usage_is_of_zero_and_still_has_its_rounding_line() -> None:
    invoice = issued(invoice_of([]))

    assert str(invoice.invoice.payable) == "0.00"
    assert len(invoice.rows()) == 1
    assert b"No billed requests" in invoice.text(render_pdf)


def test_all_mandatory_columns_of_focus_are_there() -> None:
    assert set(COLUMNS) >= FOCUS_MANDATORY
    rows = golden_invoice().rows()

    assert all(tuple(row) == COLUMNS for row in rows)
    never_null = FOCUS_MANDATORY - {"ChargeClass", "PricingQuantity", "PricingUnit"}
    assert all(row[name] is not None for row in rows for name in never_null)


def test_the_periods_of_lines_lie_in_the_billing_period() -> None:
    for row in invoice_of(rate(months_usage(), CHANGED)).rows():
        start, end = row["ChargePeriodStart"], row["ChargePeriodEnd"]
        assert isinstance(start, datetime)
        assert isinstance(end, datetime)
        assert MONTH.start <= start < end <= MONTH.end
        if row["ChargeCategory"] == "Usage":
            assert end - start == timedelta(days=1)


@pytest.mark.parametrize(
    ("name", "render"),
    [("invoice.json", render_json), ("invoice.csv", render_csv), ("invoice.pdf", render_pdf)],
)
def test_a_published_invoice_stays_as_it_was(name: str, render: object) -> None:
    """QUAYMASTER_GOLDEN=write makes the files anew, after a change that is meant."""
    assert callable(render)
    content = golden_invoice().text(render)
    if os.environ.get("QUAYMASTER_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_bytes(content)

    assert content == (GOLDEN / name).read_bytes()


def test_names_that_the_pdf_has_no_letters_for_do_not_stop_it() -> None:
    invoice = invoice_of(rate([used(1)]), name="株式会社 Ünïted")

    assert b"???? \xdcn\xefted" in invoice.text(render_pdf)
    assert "株式会社 Ünïted" in invoice.text(render_json).decode()


def texts_of_pdf(content: bytes) -> list[str]:
    """The texts of an uncompressed PDF in the order in which they are written."""
    return [text.decode("latin-1") for text in re.findall(rb"\((.*?)\) Tj", content)]


def exact_amounts(content: bytes) -> list[Decimal]:
    """What stands in the cost column of a PDF; each amount must have as many decimals as the others."""
    found = [text for text in texts_of_pdf(content) if re.fullmatch(r"-?[\d,]+\.\d{3,}", text)]
    assert len({len(text.partition(".")[2]) for text in found}) == 1, found
    return [Decimal(text.replace(",", "")) for text in found]


def test_all_costs_of_a_pdf_have_the_same_decimals_and_are_exact() -> None:
    invoice = golden_invoice()

    amounts = exact_amounts(invoice.text(render_pdf))

    by_price = PriceSums()
    by_price.add(charge_table(invoice.charges))
    sums = [price.cost for price in by_price.all()]
    in_corrections = exact_sum(correction.charge.cost for correction in invoice.corrections)
    total = [invoice.invoice.exact_total, invoice.invoice.rounding]
    assert amounts[: len(sums) + 3] == [*sums, in_corrections, *total]
    assert exact_sum(amounts[len(sums) + 3 :]) == exact_sum(sums)


def test_prices_of_a_pdf_have_the_same_decimals_and_are_exact() -> None:
    invoice = invoice_of(rate([used(20, billing_class="fifo"), used(20)], TINY))

    texts = texts_of_pdf(invoice.text(render_pdf))

    for price in ("0.000000000000", "0.333333333333", "0.000000000001", "12,345.678901234567"):
        assert price in texts


def test_a_pdf_says_how_many_requests_were_free_and_how_many_are_charged() -> None:
    invoice = invoice_of(rate([used(MILLION), used(5, hour=9)]))

    content = invoice.text(render_pdf).decode("latin-1")

    assert "Of 1,000,005 requests in this period 1,000,000 were free and 5 are charged." in content
    assert "in this period" not in invoice_of([], late_corrections()).text(render_pdf).decode("latin-1")


def test_a_pdf_of_very_many_queues_sums_up_the_cheap_ones() -> None:
    charges = rate([used(MILLION + queue, queue=queue) for queue in range(1, 100)])

    content = invoice_of(charges).text(render_pdf)

    assert b"59 others" in content
    assert b"/Count 2" in content

"""What is changed by hand in the tables of billing is refused where it would be shown, and named by `verify`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from harness.billing import ACCOUNT, BOOK, CHANGED, MILLION, MONTH, used
from harness.built_once import built_once
from harness.invoicing import DAY, Bills
from harness.pipeline_site import InProcess

from quaymaster_pipeline.billing import store
from quaymaster_pipeline.billing.service import StoreDamaged
from quaymaster_pipeline.billing.tables import ACCOUNTS, ADJUSTMENTS, CHARGES, INVOICES, PRICE_BOOK
from quaymaster_pipeline.checks.invoice_checks import (
    FINAL_INVOICES,
    invoice_check_work,
    judge_invoices,
    look_at_invoices,
    plan_invoices,
)
from quaymaster_pipeline.checks.usage_breaks import BREAKS_MAX, Findings
from quaymaster_pipeline.warehouse.schemas import TableSpec
from quaymaster_pipeline.warehouse.tables import Table

OTHER = "210987654321"
DECEMBER = MONTH.next


@built_once
def issued(directory: Path) -> Bills:
    """November is issued for two accounts, and December for one, with a correction."""
    bills = Bills(directory)
    bills.store.set_book(BOOK)
    bills.store.set_account_names({ACCOUNT: "Acme", OTHER: "Other"}, MONTH.start)
    for account_id in (ACCOUNT, OTHER):
        bills.use(used(3 * MILLION), account_id=account_id)
    bills.final(MONTH)
    bills.use(used(500_000, hour=700), used(10, month=DECEMBER))
    bills.final(DECEMBER, ACCOUNT)
    return bills


def found(bills: Bills) -> tuple[int, list[str]]:
    """Return what `pipeline verify` says of invoices: how many are final, and breaks."""
    findings, seen = Findings(BREAKS_MAX), look_at_invoices(bills.warehouse)
    work = invoice_check_work(seen, bills.closes, bills.daily.files())
    judge_invoices(seen, InProcess().over(plan_invoices(seen, 2), work), findings)
    return findings.counts[FINAL_INVOICES], [one.text for one in findings.breaks]


def by_hand(bills: Bills, spec: TableSpec) -> DeltaTable:
    return DeltaTable(bills.warehouse.place(spec).uri)


def test_invoices_that_nobody_changed_have_no_break(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    bills.use(used(7, month=DECEMBER), account_id=OTHER)
    bills.provisional(DECEMBER)

    assert found(bills) == (3, [])


def test_the_log_of_a_table_is_read_once_for_the_files_of_all_months(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bills = issued(tmp_path)
    table, read = bills.warehouse.table(CHARGES), Table.file_lines
    times = 0

    def counted(read_of: Table) -> Any:
        nonlocal times
        times += 1
        return read(read_of)

    monkeypatch.setattr(Table, "file_lines", counted)
    of_months = store.files_of_months(table, [MONTH.previous, MONTH, DECEMBER])
    log_reads = times

    assert log_reads == 1
    assert of_months == {month: store.files_of(table, month) for month in (MONTH.previous, MONTH, DECEMBER)}
    assert [len(files) > 0 for files in of_months.values()] == [False, True, True]
    assert set(look_at_invoices(bills.warehouse).files) == {MONTH, DECEMBER}


OF_ACCOUNT = f"account_id = '{ACCOUNT}' and billing_month = '{MONTH}-01'"
HARMS: dict[str, tuple[Callable[[DeltaTable], Any], str]] = {
    **{
        f"{column} is changed": (
            partial(DeltaTable.update, predicate=OF_ACCOUNT, updates={column: value}),
            "rows were changed",
        )
        for column, value in (
            ("payable", "cast(77.77 as decimal(18, 2))"),
            ("exact_total", "cast(77.77 as decimal(38, 12))"),
            ("rounding", "cast(0.01 as decimal(38, 12))"),
            ("billed_requests", "7"),
            ("lines", "7"),
            ("digest", "'00'"),
            ("issued", "timestamp '2026-12-06 00:00:00Z'"),
            ("account_name", "'Acme Ltd'"),
            ("currency", "'EUR'"),
            ("through_close", "0 - 1"),
            ("reconciliation", "'[]'"),
        )
    },
    "state is changed": (
        lambda table: table.update(predicate=OF_ACCOUNT, updates={"state": "'provisional'"}),
        "there were 2, and 1 are there",
    ),
    "the row is deleted": (lambda table: table.delete(OF_ACCOUNT), "there were 2, and 1 are there"),
    "all rows are deleted": (
        lambda table: table.delete(f"billing_month = '{MONTH}-01'"),
        "there were 2, and 0 are there",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_final_invoice_that_is_changed_or_deleted_by_hand_is_neither_shown_nor_corrected(
    tmp_path: Path, harm: str
) -> None:
    bills = issued(tmp_path)
    change, message = HARMS[harm]
    change(by_hand(bills, INVOICES))
    bills.use(used(1, month=DECEMBER.next))

    for attempt in (
        lambda: bills.store.check_issued(MONTH),
        lambda: bills.final(MONTH, ACCOUNT),
        lambda: bills.final(MONTH),
        lambda: bills.provisional(DECEMBER.next),
    ):
        with pytest.raises(
            StoreDamaged, match=f"invoices of 2026-11 .* not those that were issued: {message}"
        ):
            attempt()

    bills.store.check_issued(DECEMBER)
    _, breaks = found(bills)
    assert any(message in one for one in breaks)


def test_a_final_invoice_that_is_put_in_by_hand_is_refused(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    table = bills.warehouse.table(INVOICES)
    row = table.read().to_pylist()[0]
    row |= {"account_id": "300000000000", "billing_month": DECEMBER.next.start.date()}
    table.commit("somebody", None, table.write("put-in", table.read().from_pylist([row], INVOICES.schema)))

    with pytest.raises(StoreDamaged, match=r"of 2027-01 .*: there were 0, and 1 are there"):
        bills.store.check_issued(DECEMBER.next)

    assert any("2027-01" in one for one in found(bills)[1])


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        (
            "exact_total",
            "cast(77.77 as decimal(38, 12))",
            f"exact_total of {ACCOUNT} in 2026-11 in gold.invoices is 77.77, and its lines come to 0.8",
        ),
        (
            "billed_requests",
            "7",
            f"billed_requests of {ACCOUNT} in 2026-11 in gold.invoices is 7, and its lines",
        ),
        ("lines", "7", f"lines of {ACCOUNT} in 2026-11 in gold.invoices is 7, and its lines come to 3"),
        ("account_name", "'Acme Ltd'", f"the lines of {ACCOUNT} in 2026-11 "),
        ("digest", "'00'", f"the lines of {ACCOUNT} in 2026-11 "),
    ],
)
def test_amounts_that_are_changed_by_hand_are_compared_with_the_lines(
    tmp_path: Path, column: str, value: str, reason: str
) -> None:
    bills = issued(tmp_path)
    by_hand(bills, INVOICES).update(predicate=OF_ACCOUNT, updates={column: value})
    (invoice,) = bills.invoices(MONTH, ACCOUNT)

    with pytest.raises(StoreDamaged, match=reason):
        bills.store.check(invoice)

    assert any(f"account {ACCOUNT}: {reason}" in one for one in found(bills)[1])


@pytest.mark.parametrize("spec", [CHARGES, ADJUSTMENTS], ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("BilledCost", "cast(77.77 as decimal(38, 12))"),
        ("EffectiveCost", "cast(77.77 as decimal(38, 12))"),
        ("ConsumedQuantity", "7"),
        ("PricingQuantity", "7"),
        ("ChargeDescription", "'something else'"),
        ("ResourceId", "'something else'"),
        ("InvoiceId", "'something else'"),
        ("x_state", "'provisional'"),
        ("x_tier", "'something else'"),
        ("x_billing_class", "'something else'"),
        ("x_line_id", "null"),
        ("ChargeCategory", "'Adjustment'"),
        ("ChargeCategory", "null"),
    ],
)
def test_lines_that_are_changed_by_hand_in_any_column_are_not_shown(
    tmp_path: Path, spec: TableSpec, column: str, value: str
) -> None:
    bills = issued(tmp_path)
    month = MONTH if spec is CHARGES else DECEMBER
    where = f"BillingAccountId = '{ACCOUNT}' and billing_month = '{month}-01' and ChargeCategory = 'Usage'"
    assert by_hand(bills, spec).update(predicate=where, updates={column: value})["num_updated_rows"]
    (invoice,) = bills.invoices(month, ACCOUNT)

    with pytest.raises(StoreDamaged, match=f"the lines of {ACCOUNT} in {month} "):
        bills.store.check(invoice)

    assert [f"account {ACCOUNT}: the lines of {ACCOUNT} in {month}" in one for one in found(bills)[1]] == [
        True
    ]


def test_a_rounding_line_that_is_changed_or_deleted_by_hand_is_noticed(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    by_hand(bills, CHARGES).update(
        predicate=f"{OF_LINES} and ChargeCategory = 'Adjustment'",
        updates={"BilledCost": "cast(77.77 as decimal(38, 12))"},
    )
    (invoice,) = bills.invoices(MONTH, ACCOUNT)
    with pytest.raises(StoreDamaged, match="the lines of"):
        bills.store.check(invoice)
    by_hand(bills, CHARGES).delete(f"{OF_LINES} and ChargeCategory = 'Adjustment'")
    with pytest.raises(StoreDamaged, match="the lines of"):
        bills.store.check(invoice)


OF_LINES = f"BillingAccountId = '{ACCOUNT}' and billing_month = '{MONTH}-01'"


def test_the_account_whose_final_invoice_was_deleted_is_named_by_its_lines(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    by_hand(bills, INVOICES).delete(OF_ACCOUNT)

    count, breaks = found(bills)

    assert count == 2
    assert breaks[1:] == [
        f"gold.invoices, account {ACCOUNT}: the final invoice of {ACCOUNT} in 2026-11 is not there, and its lines are"
    ]


def test_charges_that_agree_with_their_invoice_are_rated_again_from_closed_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines, sums and digest that are changed together are found by what the closed days come to."""
    bills = issued(tmp_path)
    monkeypatch.setattr(store, "refuse_other_prices", lambda *_: None)

    bills.store.set_book(CHANGED)
    dearer = found(bills)
    bills.store.set_book(replace(CHANGED, versions=CHANGED.versions[:1]))
    without_price = found(bills)

    said = f"the charges of {ACCOUNT} in 2026-12 are not what its closed days up to close 1 come to by the price book"
    assert dearer == (3, [f"gold.invoices, account {ACCOUNT}: {said}"])
    assert [" cannot be rated any more: " in one for one in without_price[1]] == [True]


def test_a_price_book_that_is_changed_by_hand_bills_nothing(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    by_hand(bills, PRICE_BOOK).update(
        predicate="above = 0", updates={"unit_price": "cast(7 as decimal(38, 18))"}
    )

    for attempt in (lambda: bills.store.book(), lambda: bills.provisional(DECEMBER, OTHER)):
        with pytest.raises(StoreDamaged, match=r"rows of ops\.price_book were changed"):
            attempt()
    assert any("ops.price_book were changed" in one for one in found(bills)[1])


def test_a_price_book_that_is_deleted_by_hand_is_not_taken_for_the_example(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    by_hand(bills, PRICE_BOOK).delete()

    with pytest.raises(StoreDamaged, match=r"rows of ops\.price_book were changed, deleted"):
        bills.store.book()


def test_names_of_accounts_that_are_changed_by_hand_bill_nothing(tmp_path: Path) -> None:
    bills = issued(tmp_path)
    by_hand(bills, ACCOUNTS).update(
        predicate=f"account_id = '{ACCOUNT}'", updates={"account_name": "'Acme Ltd'"}
    )

    with pytest.raises(StoreDamaged, match=r"rows of ops\.dim_account were changed"):
        bills.provisional(DECEMBER)
    assert any("ops.dim_account were changed" in one for one in found(bills)[1])


def test_a_difference_of_layers_that_is_accepted_by_hand_keeps_invoices_from_being_final(
    tmp_path: Path,
) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5), used(6, hour=30))
    bills.close((MONTH.end - DAY).date())
    bills.closes[1] = bills.closes[1]._replace(difference=3)
    request = bills.request(MONTH, is_final=True)
    changed = tuple(one._replace(accepted=bool(one.difference)) for one in request.closes)

    with pytest.raises(
        StoreDamaged, match=r"ops\.closes is not what was written .* it was changed: its hash"
    ):
        bills.final(MONTH, closes=changed)

    assert bills.invoices(MONTH) == []


def test_a_provisional_invoice_that_is_changed_by_hand_is_made_again(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.provisional(MONTH)
    by_hand(bills, INVOICES).update(
        predicate=OF_ACCOUNT, updates={"exact_total": "cast(77.77 as decimal(38, 12))"}
    )

    (invoice,) = bills.provisional(MONTH)

    assert (invoice.payable, invoice.revision) == (Decimal("0.80"), 1)
    bills.store.check(invoice)

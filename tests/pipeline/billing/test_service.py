from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from harness.billing import ACCOUNT, BOOK, CHANGED, MILLION, MONTH, fill, used

from quaymaster_pipeline.billing.documents import render_csv, render_json
from quaymaster_pipeline.billing.invoice_pdf import render_pdf
from quaymaster_pipeline.billing.periods import Month, PeriodStage
from quaymaster_pipeline.billing.price_files import example_book, parse_toml, render_toml
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.reconciliation import BillingComparison
from quaymaster_pipeline.billing.service import Billing, Made, NothingToBill, NotIssued, PricesAreClosed
from quaymaster_pipeline.billing.store import BillingStore, StoreDamaged
from quaymaster_pipeline.billing.tables import ADJUSTMENTS, CHARGES
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, WarehouseBusy

OTHER = "210987654321"
AGREES = (BillingComparison("all", "rows", (("bronze", 9), ("silver", 9))),)


def billing(
    root: Path,
    *,
    now: datetime = MONTH.end + timedelta(days=4),
    closed_until: datetime | None = MONTH.end,
    compared: Sequence[BillingComparison] = AGREES,
) -> Billing:
    """Billing as a new process has it, four days after the month."""
    store = BillingStore(Warehouse(root))
    return Billing(store, now=now, closed_until=closed_until, compare_layers=lambda: compared)


def after(month: Month, root: Path) -> Billing:
    """Billing when `month` is due."""
    return billing(root, now=month.end + timedelta(days=4), closed_until=month.end)


def lines_of(root: Path, month: Month = MONTH) -> list[tuple[str, int | None, Decimal]]:
    store = BillingStore(Warehouse(root))
    return [(charge.price_id, charge.quantity, charge.cost) for charge in store.charges(month, ACCOUNT)]


def test_a_provisional_invoice_shows_the_month_so_far_and_writes_nothing(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])

    made = billing(tmp_path, now=MONTH.start, closed_until=None).view(MONTH, ACCOUNT)

    assert (made.stage, str(made.invoice.payable)) == (PeriodStage.OPEN, "0.80")
    assert BillingStore(Warehouse(tmp_path)).invoice_rows() == []


def test_a_provisional_invoice_gets_a_new_revision_only_when_usage_came(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])

    revisions = [billing(tmp_path).update(MONTH, [ACCOUNT])[0].invoice.revision for _ in range(2)]
    fill(Warehouse(tmp_path), [used(1, hour=9)])
    revisions.append(billing(tmp_path).update(MONTH, [ACCOUNT])[0].invoice.revision)

    assert revisions == [1, 1, 2]
    assert lines_of(tmp_path) == [
        ("standard-v1-free", MILLION, Decimal(0)),
        ("standard-v1-tier1", 2 * MILLION + 1, Decimal("0.8000004")),
    ]


def test_a_final_invoice_is_the_same_bytes_whenever_it_is_asked_for_again(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION), used(7, hour=5, billing_class="fifo", queue=8)])
    issued = billing(tmp_path).close(MONTH, [ACCOUNT])[0].invoice

    fill(Warehouse(tmp_path), [used(MILLION, hour=8)])
    again = after(MONTH.next, tmp_path).close(MONTH, [ACCOUNT])[0].invoice
    viewed = after(MONTH.next, tmp_path).view(MONTH, ACCOUNT)

    assert issued.invoice_id == f"QM-202611-{ACCOUNT}"
    assert render_json(again) == render_json(viewed.invoice) == render_json(issued)
    assert render_csv(again) == render_csv(issued)
    assert render_pdf(again) == render_pdf(issued)
    assert viewed.stage is PeriodStage.CLOSED


@pytest.mark.parametrize(
    ("now", "closed_until", "message"),
    [
        (
            MONTH.end - timedelta(hours=1),
            MONTH.end - timedelta(hours=2),
            "is open: it is not over, and ends 2026-12-01 00:00 UTC",
        ),
        (
            MONTH.end + timedelta(days=9),
            MONTH.end - timedelta(hours=1),
            "is open: hours until 2026-11-30 23:00 are closed",
        ),
        (MONTH.end + timedelta(days=9), None, "no hour is closed"),
        (MONTH.end + timedelta(days=2), MONTH.end, "late usage until 2026-12-04 00:00"),
    ],
)
def test_an_invoice_is_not_issued_while_the_month_is_open_or_in_grace(
    tmp_path: Path, now: datetime, closed_until: datetime | None, message: str
) -> None:
    fill(Warehouse(tmp_path), [used(5)])

    with pytest.raises(NotIssued, match=message):
        billing(tmp_path, now=now, closed_until=closed_until).close(MONTH, [ACCOUNT])

    assert BillingStore(Warehouse(tmp_path)).invoice_rows() == []


@pytest.mark.parametrize("accounts", [[], [ACCOUNT]])
@pytest.mark.parametrize(
    ("now", "message"),
    [
        (MONTH.start + timedelta(days=9), "2026-11 is open: it is not over"),
        (MONTH.end + timedelta(days=2), "2026-11 takes late usage until 2026-12-04 00:00"),
    ],
)
def test_nothing_is_said_final_about_a_month_without_usage_that_is_not_over(
    tmp_path: Path, accounts: list[str], now: datetime, message: str
) -> None:
    with pytest.raises(NotIssued, match=message):
        billing(tmp_path, now=now).close(MONTH, accounts)


def test_a_month_that_is_over_and_without_usage_has_no_final_invoices(tmp_path: Path) -> None:
    assert billing(tmp_path).close(MONTH, []) == []


def test_an_invoice_is_not_issued_when_layers_differ_and_a_provisional_one_says_so(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(5)])
    compared = (BillingComparison("all", "rows", (("bronze", 9), ("silver", 8))),)

    with pytest.raises(NotIssued, match="rows of all: bronze 9, silver 8"):
        billing(tmp_path, compared=compared).close(MONTH, [ACCOUNT])

    assert [
        one.difference for one in billing(tmp_path, compared=compared).view(MONTH, ACCOUNT).differences
    ] == [1]


def test_an_invoice_is_not_issued_when_gold_has_other_counts_than_silver(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(5)])
    fill(Warehouse(tmp_path), [used(6)], silver=False)

    with pytest.raises(
        NotIssued, match=f"billed requests of {ACCOUNT} in 2026-11: silver 5, gold 11, charges 11"
    ):
        billing(tmp_path).close(MONTH, [ACCOUNT])


def test_either_all_invoices_asked_for_are_issued_or_none(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(5)])
    fill(Warehouse(tmp_path), [used(6)], account_id=OTHER, silver=False)

    with pytest.raises(NotIssued, match=OTHER):
        billing(tmp_path).close(MONTH, billing(tmp_path).accounts(MONTH))

    assert BillingStore(Warehouse(tmp_path)).invoice_rows() == []


def test_late_usage_of_a_closed_month_is_corrected_in_the_next_invoice_and_once(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    after(MONTH, tmp_path).close(MONTH, [ACCOUNT])
    fill(Warehouse(tmp_path), [used(500_000, hour=700)])
    december, january = MONTH.next, MONTH.next.next
    fill(Warehouse(tmp_path), [used(10, month=december), used(10, month=january)])

    provisional = after(december, tmp_path).view(december, ACCOUNT).invoice
    in_january_already = after(december, tmp_path).view(january, ACCOUNT).invoice
    final = after(december, tmp_path).close(december, [ACCOUNT])[0].invoice
    next_one = after(january, tmp_path).close(january, [ACCOUNT])[0].invoice

    assert [(c.month, c.charge.quantity, c.charge.cost) for c in final.corrections] == [
        (MONTH, 500_000, Decimal("0.2"))
    ]
    assert provisional.digest == final.digest
    assert in_january_already.corrections == ()
    assert next_one.corrections == ()
    assert str(final.payable) == "0.20"


def with_late_usage(root: Path) -> None:
    """November is closed for two accounts; then the same late usage of it comes for both, and no other usage."""
    for account_id in (ACCOUNT, OTHER):
        fill(Warehouse(root), [used(3 * MILLION)], account_id=account_id)
    after(MONTH, root).close(MONTH, [ACCOUNT, OTHER])
    for account_id in (ACCOUNT, OTHER):
        fill(Warehouse(root), [used(500_000, hour=700)], account_id=account_id)


def payables(made: Sequence[Made]) -> list[tuple[str, int, str]]:
    """Accounts, how many corrections their invoices have, and what is to be paid."""
    return [(one.invoice.account_id, len(one.invoice.corrections), str(one.invoice.payable)) for one in made]


def test_accounts_that_used_nothing_are_billed_what_is_to_be_corrected(tmp_path: Path) -> None:
    december = MONTH.next
    with_late_usage(tmp_path)
    expected = [(ACCOUNT, 1, "0.20"), (OTHER, 1, "0.20")]

    running = billing(tmp_path, now=december.start + timedelta(days=4))
    provisional = running.update(december, running.accounts(december))
    due = after(december, tmp_path)
    final = due.close(december, due.accounts(december))

    assert payables(provisional) == payables(final) == expected
    assert [one.invoice.state for one in final] == ["final", "final"]
    assert [one.invoice.quantity for one in final] == [0, 0]


def test_an_account_that_came_after_the_others_final_invoices_is_named_until_it_has_one(
    tmp_path: Path,
) -> None:
    december = MONTH.next
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    assert after(MONTH, tmp_path).left_out(december) == {}
    after(MONTH, tmp_path).close(MONTH, [ACCOUNT])
    fill(Warehouse(tmp_path), [used(500_000, hour=700)], account_id=OTHER)

    due = after(december, tmp_path)
    assert due.accounts(december) == []
    assert (due.left_out(MONTH), due.left_out(december)) == ({}, {MONTH: [OTHER]})
    due.close(MONTH, due.accounts(MONTH))
    assert after(december, tmp_path).left_out(december) == {}


def test_a_final_invoice_of_corrections_alone_is_issued_once_and_the_next_month_has_nothing(
    tmp_path: Path,
) -> None:
    december, january = MONTH.next, MONTH.next.next
    with_late_usage(tmp_path)

    first = after(december, tmp_path)
    issued = first.close(december, first.accounts(december))
    second = after(january, tmp_path)
    again = second.close(december, second.accounts(december))

    assert [render_json(one.invoice) for one in again] == [render_json(one.invoice) for one in issued]
    assert len(BillingStore(Warehouse(tmp_path)).invoice_rows(month=december)) == 2
    assert second.accounts(january) == []
    assert second.accounts(MONTH) == [ACCOUNT, OTHER]


def test_a_correction_waits_for_the_first_open_month_even_if_that_has_no_usage(tmp_path: Path) -> None:
    december, january = MONTH.next, MONTH.next.next
    with_late_usage(tmp_path)
    after(december, tmp_path).update(december, [ACCOUNT])
    fill(Warehouse(tmp_path), [used(10, month=january)])

    billed = after(january, tmp_path)

    assert billed.accounts(january) == [ACCOUNT, OTHER]
    assert payables(billed.update(january, [ACCOUNT])) == [(ACCOUNT, 0, "0.00")]
    with pytest.raises(NotIssued, match="no final invoice for 2026-12 yet"):
        billed.close(january, [ACCOUNT])
    billed.close(december, [ACCOUNT])
    assert payables(billed.close(january, [ACCOUNT])) == [(ACCOUNT, 0, "0.00")]


def test_a_month_that_has_not_begun_corrects_nothing(tmp_path: Path) -> None:
    december, january = MONTH.next, MONTH.next.next
    with_late_usage(tmp_path)

    in_december = billing(tmp_path, now=january.start - timedelta(hours=1))

    assert in_december.accounts(december) == [ACCOUNT, OTHER]
    assert in_december.accounts(january) == []
    with pytest.raises(NothingToBill, match="nothing is to be corrected"):
        in_december.view(january, ACCOUNT)


def test_a_month_before_a_closed_one_corrects_nothing(tmp_path: Path) -> None:
    december, january = MONTH.next, MONTH.next.next
    with_late_usage(tmp_path)
    fill(Warehouse(tmp_path), [used(10, month=january)])
    later = after(january, tmp_path)
    later.close(january, [ACCOUNT])

    fill(Warehouse(tmp_path), [used(500_000, hour=701)])

    assert later.accounts(december) == [OTHER]
    february = after(january.next, tmp_path)
    assert payables(february.close(january.next, [ACCOUNT])) == [(ACCOUNT, 1, "0.20")]


def test_usage_that_is_taken_back_becomes_a_credit(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    after(MONTH, tmp_path).close(MONTH, [ACCOUNT])
    for spec in ("silver/usage_events", "gold/usage_hourly"):
        (tmp_path / spec).rename(tmp_path / f"{spec}.before")
    fill(Warehouse(tmp_path), [used(2 * MILLION)])

    invoice = after(MONTH.next, tmp_path).close(MONTH.next, [ACCOUNT])[0].invoice

    assert str(invoice.payable) == "-0.40"


def test_months_are_closed_in_order(tmp_path: Path) -> None:
    december, january = MONTH.next, MONTH.next.next
    fill(Warehouse(tmp_path), [used(5), used(5, month=december), used(5, month=january)])
    after(MONTH, tmp_path).close(MONTH, [ACCOUNT])

    with pytest.raises(NotIssued, match="no final invoice for 2026-12 yet"):
        after(january, tmp_path).close(january, [ACCOUNT])

    after(january, tmp_path).close(december, [ACCOUNT])
    after(january, tmp_path).close(january, [ACCOUNT])


@pytest.mark.parametrize("commits", range(4))
@pytest.mark.parametrize("has_taken_effect", [False, True])
def test_an_invoice_that_was_killed_at_any_commit_is_made_again_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int, has_taken_effect: bool
) -> None:
    """In December, with a correction of November, so that all three tables are written."""
    december = MONTH.next
    fill(Warehouse(tmp_path), [used(3 * MILLION), used(3 * MILLION, month=december)])
    after(MONTH, tmp_path).close(MONTH, [ACCOUNT])
    fill(Warehouse(tmp_path), [used(500_000, hour=700)])
    expected = after(december, tmp_path).view(december, ACCOUNT).invoice
    commit, done = Table.commit, 0

    def killed(self: Table, *arguments: Any, **named: Any) -> bool:
        nonlocal done
        if done == commits and not has_taken_effect:
            raise KeyboardInterrupt
        found = commit(self, *arguments, **named)
        if done == commits:
            raise KeyboardInterrupt
        done += 1
        return found

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(Table, "commit", killed)
        after(december, tmp_path).close(december, [ACCOUNT])

    final = after(december, tmp_path).close(december, [ACCOUNT])[0].invoice
    assert final.digest == expected.digest
    assert after(december, tmp_path).view(december, ACCOUNT).invoice == final
    assert len(final.corrections) == 1
    assert [quantity for _, quantity, _ in lines_of(tmp_path, december)] == [MILLION, 2 * MILLION]
    assert after(december.next, tmp_path).view(december, ACCOUNT).stage is PeriodStage.CLOSED


def test_files_that_no_table_has_any_more_are_deleted_and_invoices_stay(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    billing(tmp_path).update(MONTH, [ACCOUNT])
    final = billing(tmp_path).close(MONTH, [ACCOUNT])[0].invoice

    deleted = BillingStore(Warehouse(tmp_path)).delete_old_files(0)

    there = {path.name for path in (tmp_path / "gold" / "charges").rglob("*.parquet")}
    assert deleted == 2
    assert there == {Path(file.path).name for file in Warehouse(tmp_path).table(CHARGES).files()}
    assert billing(tmp_path).view(MONTH, ACCOUNT).invoice == final


def test_invoices_of_several_accounts_do_not_touch_each_other(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    fill(Warehouse(tmp_path), [used(2 * MILLION)], account_id=OTHER)

    assert billing(tmp_path).accounts(MONTH) == [ACCOUNT, OTHER]
    first = billing(tmp_path).close(MONTH, [ACCOUNT])[0].invoice
    second = billing(tmp_path).close(MONTH, [OTHER])[0].invoice

    assert (str(first.payable), str(second.payable)) == ("0.80", "0.40")
    assert billing(tmp_path).view(MONTH, ACCOUNT).invoice == first
    assert billing(tmp_path).view(MONTH, OTHER).invoice == second


def test_other_engines_read_charges_that_add_up_to_the_payable_amount(tmp_path: Path) -> None:
    month = MONTH.next
    fill(Warehouse(tmp_path), [used(3 * MILLION + 7)])
    after(MONTH, tmp_path).close(MONTH, [ACCOUNT])
    fill(Warehouse(tmp_path), [used(9, hour=700), used(MILLION + 3, month=month)])
    invoice = after(month, tmp_path).close(month, [ACCOUNT])[0].invoice

    total = Decimal(0)
    with_duckdb = Decimal(0)
    for spec in (CHARGES, ADJUSTMENTS):
        root = tmp_path / spec.name.replace(".", "/")
        frame = polars.read_delta(str(root)).filter(polars.col("InvoiceId") == invoice.invoice_id)
        total += sum(frame["BilledCost"].to_list(), Decimal(0))
        files = [f"{root}/{file.path}" for file in Warehouse(tmp_path).table(spec).files()]
        query = "select sum(BilledCost) from read_parquet($files) where InvoiceId = $id"
        found = duckdb.execute(query, {"files": files, "id": invoice.invoice_id}).fetchone()
        assert found is not None
        with_duckdb += found[0]

    assert total == with_duckdb == invoice.payable


def test_an_issued_invoice_whose_lines_were_changed_is_noticed(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    billing(tmp_path).close(MONTH, [ACCOUNT])
    table = Warehouse(tmp_path).table(CHARGES)
    table.commit("somebody", 0, [], removes=table.files())

    with pytest.raises(StoreDamaged, match=r"gold\.charges"):
        billing(tmp_path).view(MONTH, ACCOUNT)


def test_an_account_that_used_nothing_has_no_invoice(tmp_path: Path) -> None:
    with pytest.raises(NothingToBill, match="used nothing in 2026-11"):
        billing(tmp_path).view(MONTH, ACCOUNT)


def test_usage_of_no_account_is_nobodys(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(0)], account_id="")

    assert billing(tmp_path).accounts(MONTH) == []


@pytest.mark.parametrize("book", [CHANGED, example_book()])
def test_a_price_book_is_kept_as_it_was_set(tmp_path: Path, book: PriceBook) -> None:
    billing(tmp_path).set_book(BOOK)
    billing(tmp_path).set_book(book)

    assert BillingStore(Warehouse(tmp_path)).book() == book


def test_until_a_price_book_is_set_the_example_counts(tmp_path: Path) -> None:
    assert BillingStore(Warehouse(tmp_path)).book() == example_book()


def test_prices_of_a_closed_month_cannot_be_changed_but_later_ones_can(tmp_path: Path) -> None:
    billing(tmp_path).set_book(BOOK)
    fill(Warehouse(tmp_path), [used(3 * MILLION)])
    billing(tmp_path).close(MONTH, [ACCOUNT])

    with pytest.raises(PricesAreClosed, match="invoices of 2026-11"):
        billing(tmp_path).set_book(CHANGED)

    later = render_toml(CHANGED).replace("2026-11-15T06", "2026-12-01T00")
    billing(tmp_path).set_book(parse_toml(later))
    fill(Warehouse(tmp_path), [used(2 * MILLION, month=MONTH.next)])
    invoice = after(MONTH.next, tmp_path).view(MONTH.next, ACCOUNT).invoice
    assert (str(invoice.payable), invoice.corrections) == ("0.80", ())


def test_an_account_is_called_what_it_was_called_at_the_end_of_the_month(tmp_path: Path) -> None:
    fill(Warehouse(tmp_path), [used(5)])
    store = BillingStore(Warehouse(tmp_path))
    changes = [
        store.set_account_names({ACCOUNT: "Acme"}, MONTH.start + timedelta(days=9)),
        store.set_account_names({ACCOUNT: "Acme"}, MONTH.start + timedelta(days=10)),
        store.set_account_names({ACCOUNT: "Acme Ltd", OTHER: "Other"}, MONTH.end + timedelta(days=1)),
    ]

    assert changes == [1, 0, 2]
    assert billing(tmp_path).view(MONTH, ACCOUNT).invoice.account_name == "Acme"
    assert store.account_names(MONTH.start) == {ACCOUNT: "Acme", OTHER: "Other"}
    assert store.account_names(MONTH.next.end) == {ACCOUNT: "Acme Ltd", OTHER: "Other"}


def test_only_one_process_bills_at_a_time(tmp_path: Path) -> None:
    with (
        BillingStore(Warehouse(tmp_path)).writing(),
        pytest.raises(WarehouseBusy, match="another process"),
        BillingStore(Warehouse(tmp_path)).writing(),
    ):
        pass


def test_the_pipeline_may_write_usage_while_billing_writes(tmp_path: Path) -> None:
    with BillingStore(Warehouse(tmp_path)).writing(), Warehouse(tmp_path).ingesting():
        fill(Warehouse(tmp_path), [used(5)])


def test_billing_that_goes_on_sees_usage_of_now(tmp_path: Path) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    warehouse = Warehouse(tmp_path)
    fill(warehouse, [used(5)])
    goes_on = Billing(BillingStore(warehouse), now=now, closed_until=None, compare_layers=lambda: ())

    before = goes_on.view(MONTH, ACCOUNT).invoice.quantity
    fill(warehouse, [used(6)])

    assert (before, goes_on.view(MONTH, ACCOUNT).invoice.quantity) == (5, 11)


def reads_for(root: Path, accounts: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often a table is read to bill accounts that used something in two months, and to look at a third."""
    later = MONTH.next
    for number in range(accounts):
        account_id = f"{number + 1:012}"
        for month in (MONTH, later):
            fill(Warehouse(root), [used(MILLION + number, month=month)], account_id=account_id)
    reads = 0
    read = Table.read

    def counted(table: Table, *arguments: Any, **named: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "read", counted)
        for month in (MONTH, later):
            made = after(month, root)
            invoices = made.close(month, made.accounts(month))
            assert [one.invoice.quantity for one in invoices] == [
                MILLION + number for number in range(accounts)
            ]
        assert after(later.next, root).accounts(later.next) == []
    return reads


def test_tables_are_read_once_for_all_accounts_whether_they_used_anything_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (reads_for(tmp_path / str(accounts), accounts, monkeypatch) for accounts in (2, 12))

    assert many == few

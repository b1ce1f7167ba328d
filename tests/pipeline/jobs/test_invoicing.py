"""Invoices made by tasks of this process, from daily usage and closed days to lines and files."""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.billing import ACCOUNT, BOOK, CHANGED, MILLION, MONTH, Usage, used
from harness.built_once import built_once
from harness.invoicing import DAY, Bills, total_of
from harness.pipeline_site import InProcess
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster_pipeline.billing import account_usage
from quaymaster_pipeline.billing.documents import render_csv, render_json
from quaymaster_pipeline.billing.invoice_pdf import render_pdf
from quaymaster_pipeline.billing.invoices import Invoice
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.price_files import example_book, parse_toml, render_toml
from quaymaster_pipeline.billing.prices import NoPrice, PriceBook
from quaymaster_pipeline.billing.reconciliation import BillingComparison
from quaymaster_pipeline.billing.service import NothingToBill, NotIssued, PricesAreClosed, StoreDamaged
from quaymaster_pipeline.billing.tables import ADJUSTMENTS, BILLING_TABLES, CHARGES, INVOICES
from quaymaster_pipeline.jobs import invoice_tasks, invoicing
from quaymaster_pipeline.warehouse import account_rows
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.spools import Spool
from quaymaster_pipeline.warehouse.tables import Table, WarehouseBusy

OTHER = "210987654321"
DECEMBER, JANUARY = MONTH.next, MONTH.next.next


def price_lines(bills: Bills, month: Month = MONTH) -> list[tuple[str, int, Decimal]]:
    return [(charge.price_id, charge.quantity, charge.cost) for charge in bills.charges(month)]


def payables(bills: Bills, invoices: list[Invoice]) -> list[tuple[str, int, str]]:
    """Accounts, how many corrections their invoices have, and what is to be paid."""
    return [(one.account_id, len(bills.corrections(one)), str(one.payable)) for one in invoices]


def test_a_provisional_invoice_shows_the_month_so_far(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))

    (invoice,) = bills.provisional(MONTH, ACCOUNT, now=MONTH.start)

    assert (invoice.state, invoice.invoice_id, str(invoice.payable)) == ("provisional", None, "0.80")


def test_a_provisional_invoice_gets_a_new_revision_only_when_usage_came(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))

    revisions = [bills.provisional(MONTH)[0].revision for _ in range(2)]
    written = bills.warehouse.table(INVOICES).version
    bills.provisional(MONTH)
    assert bills.warehouse.table(INVOICES).version == written
    bills.use(used(1, hour=9))
    revisions.append(bills.provisional(MONTH)[0].revision)

    assert revisions == [1, 1, 2]
    assert price_lines(bills) == [
        ("standard-v1-free", MILLION, Decimal(0)),
        ("standard-v1-tier1", 2 * MILLION + 1, Decimal("0.8000004")),
    ]


def test_a_provisional_invoice_tells_what_differs_now(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    told = []
    for usage in (5, 4, 5):
        brokers = BillingComparison("brokers", "messages sent", (("brokers", 5), ("usage", usage)))
        bills.provisional(MONTH, compared=(brokers,))
        (head,) = bills.store.heads(MONTH)
        told.append([one.difference for one in head.compared if one.difference])
        assert head.invoice.revision == 1

    assert told == [[], [1], []]


def test_a_final_invoice_is_the_same_bytes_whenever_it_is_asked_for_again(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION), used(7, hour=5, billing_class="fifo", queue=8))
    (issued,) = bills.final(MONTH, ACCOUNT)
    before = [bills.documents(issued, render) for render in (render_json, render_csv, render_pdf)]

    bills.use(used(MILLION, hour=8))
    (again,) = bills.final(MONTH, ACCOUNT)

    assert issued.invoice_id == f"QM-202611-{ACCOUNT}"
    assert again == issued
    assert [bills.documents(again, render) for render in (render_json, render_csv, render_pdf)] == before


@pytest.mark.parametrize(
    ("now", "closed", "message"),
    [
        (MONTH.end - timedelta(hours=1), 29, "is open: it is not over, and ends 2026-12-01 00:00 UTC"),
        (MONTH.end + 9 * DAY, 29, "is open: 2026-11-30 is not closed, as front ends may still report"),
        (MONTH.end + 9 * DAY, None, "2026-11-01 is not closed"),
        (MONTH.end + 2 * DAY, 30, "late usage until 2026-12-04 00:00"),
    ],
)
@pytest.mark.parametrize("billed", [0, 5])
def test_an_invoice_is_not_issued_while_the_month_is_open_or_in_grace(
    tmp_path: Path, now: datetime, closed: int | None, message: str, billed: int
) -> None:
    """Nor is it said of a month without usage that it is final."""
    bills = Bills(tmp_path)
    if billed:
        bills.use(used(billed))
    if closed is not None:
        bills.close(MONTH.start.date().replace(day=closed))

    with pytest.raises(NotIssued, match=message):
        bills.make(bills.request(MONTH, is_final=True, now=now))

    assert bills.invoices(MONTH) == []


def test_a_month_that_is_over_and_without_usage_has_no_final_invoices(tmp_path: Path) -> None:
    bills = Bills(tmp_path)

    assert bills.final(MONTH) == []
    bills.store.set_book(CHANGED)
    assert bills.store.final_months() == {}


def test_what_the_brokers_counted_otherwise_keeps_invoices_from_being_final(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    compared = (BillingComparison("brokers", "sends", (("brokers", 9), ("usage", 8))),)

    with pytest.raises(NotIssued, match="sends of brokers: brokers 9, usage 8"):
        bills.final(MONTH, compared=compared)
    with pytest.raises(NotIssued, match="nobody is billed for 2026-11: brokers were not asked"):
        bills.final(MONTH, why_not_final=lambda month: "brokers were not asked")
    bills.provisional(MONTH, compared=compared)

    (head,) = bills.store.heads(MONTH)
    assert [one.difference for one in head.compared] == [0, 1, 0]


def test_a_day_whose_layers_differ_keeps_invoices_from_being_final_until_somebody_accepts_it(
    tmp_path: Path,
) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5), used(6, hour=30))
    bills.close((MONTH.end - DAY).date())
    bills.closes[1] = bills.closes[1]._replace(difference=3)

    with pytest.raises(NotIssued, match="layers that differ of 2026-11-02: found 3, accepted 0"):
        bills.final(MONTH)
    bills.closes[1] = bills.closes[1]._replace(accepted=True)

    assert [one.state for one in bills.final(MONTH)] == ["final"]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damage, "closed-.* was changed"),
        (Path.unlink, "closed-.* is gone"),
    ],
)
def test_a_closed_file_that_is_not_what_it_was_is_refused_by_name(
    tmp_path: Path, harm: Any, message: str
) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5), used(6, hour=30))
    bills.close((MONTH.end - DAY).date())
    harm(tmp_path / "gold" / "usage_daily" / bills.closes[0].files[0])

    with pytest.raises(StoreDamaged, match=message):
        bills.final(MONTH)

    assert bills.invoices(MONTH) == []


def test_a_closed_file_that_the_table_lost_or_got_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5), used(6, hour=30))
    bills.close((MONTH.end - DAY).date())
    table = bills.daily
    taken = table.files()
    table.commit("somebody", None, [], removes=taken[:1])
    with pytest.raises(StoreDamaged, match=f"the closed file {taken[0].path} is not in the table"):
        bills.final(MONTH)
    table.commit("somebody", None, taken[:1])

    closes, bills.closes = bills.closes, bills.closes[:1]
    with pytest.raises(StoreDamaged, match=f"no close has the closed file {closes[1].files[0]}"):
        bills.final(MONTH)


def test_corrections_are_not_rated_from_closed_days_that_are_not_what_they_were(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.final(MONTH)
    path = tmp_path / "gold/usage_daily" / bills.closes[0].files[0]
    rows = pq.read_table(path)
    at = rows.schema.get_field_index("billed_requests")
    pq.write_table(rows.set_column(at, "billed_requests", pa.array([300 * MILLION])), path)
    bills.use(used(1, hour=8))
    bills.use(Usage(*used(2)._replace(day=DECEMBER.start.date())))

    with pytest.raises(StoreDamaged, match=r"closed days of 2026-11 .* was changed"):
        bills.final(DECEMBER)

    assert bills.invoices(DECEMBER) == []


def test_closed_days_that_add_up_to_something_else_are_not_billed(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    bills.close((MONTH.end - DAY).date())
    bills.closes[0] = bills.closes[0]._replace(billed_requests=6)

    with pytest.raises(StoreDamaged, match="billed_requests is 5; it was closed with 6"):
        bills.final(MONTH, ACCOUNT)


def test_accounts_that_tasks_passed_over_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    bills.use(used(6), account_id=OTHER)
    cut = [account_rows.Accounts(end=OTHER)]
    monkeypatch.setattr(invoicing, "ranges_of", lambda *_: cut)

    with pytest.raises(NotIssued, match="closes 11, files 11, accounts 5"):
        bills.final(MONTH)

    assert bills.invoices(MONTH) == []
    assert list((tmp_path / "gold" / "charges").rglob("*.parquet")) == []


def test_either_all_invoices_asked_for_are_issued_or_none(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    bills.use(used(5), used(6, month=DECEMBER), account_id=OTHER)
    bills.use(used(5, month=DECEMBER))
    bills.final(MONTH, ACCOUNT)
    bills.use(used(7, month=JANUARY), account_id=OTHER)
    bills.use(used(7, month=JANUARY))

    with pytest.raises(NotIssued, match=f"{ACCOUNT} has no final invoice for 2026-12 yet"):
        bills.final(JANUARY)

    assert bills.invoices(JANUARY) == []


def test_all_that_is_refused_is_told(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    third = "300000000000"

    with pytest.raises(NothingToBill) as told:
        bills.provisional(MONTH, ACCOUNT, OTHER, third)

    assert [one.split(" used")[0] for one in str(told.value).split("; ")] == [
        f"account {OTHER}",
        f"account {third}",
    ]
    assert bills.invoices(MONTH) == []


def test_late_usage_of_a_closed_month_is_corrected_in_the_next_invoice_and_once(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.final(MONTH)
    bills.use(used(500_000, hour=700))
    bills.use(used(10, month=DECEMBER), used(10, month=JANUARY))
    bills.close((DECEMBER.end - DAY).date())

    (in_january_already,) = bills.provisional(JANUARY, now=DECEMBER.end + 4 * DAY)
    (provisional,) = bills.provisional(DECEMBER)
    (final,) = bills.final(DECEMBER)
    (next_one,) = bills.final(JANUARY)

    assert [(c.month, c.charge.quantity, c.charge.cost) for c in bills.corrections(final)] == [
        (MONTH, 500_000, Decimal("0.2"))
    ]
    assert provisional.digest == final.digest
    assert bills.corrections(in_january_already) == []
    assert bills.corrections(next_one) == []
    assert str(final.payable) == "0.20"


def test_late_usage_is_corrected_as_often_as_it_comes_and_never_twice(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.final(MONTH)
    paid = [MONTH]
    for month, late in ((DECEMBER, 500_000), (JANUARY, 250_000), (JANUARY.next, 0)):
        if late:
            bills.use(used(late, hour=700), used(late, hour=5))
        bills.use(used(10, month=month))
        bills.final(month)
        paid.append(month)

    (december,), (january,), (february,) = (bills.invoices(month) for month in paid[1:])
    assert [str(one.payable) for one in (december, january, february)] == ["0.40", "0.20", "0.00"]
    assert bills.corrections(february) == []


def test_usage_that_came_in_grace_belongs_to_the_month(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.close((MONTH.end - DAY).date())
    bills.use(used(500_000))

    (final,) = bills.final(MONTH)

    assert (final.quantity, len(bills.charges(MONTH))) == (3_500_000, 2)
    bills.use(used(1, month=DECEMBER))
    (december,) = bills.final(DECEMBER)
    assert bills.corrections(december) == []


@built_once
def with_late_usage(directory: Path) -> Bills:
    """November is closed for two accounts; then the same late usage of it comes for both, and no other usage."""
    bills = Bills(directory)
    for account_id in (ACCOUNT, OTHER):
        bills.use(used(3 * MILLION), account_id=account_id)
    bills.final(MONTH)
    for account_id in (ACCOUNT, OTHER):
        bills.use(used(500_000, hour=700), account_id=account_id)
    bills.close((MONTH.end - DAY).date())
    return bills


def test_accounts_that_used_nothing_are_billed_what_is_to_be_corrected(tmp_path: Path) -> None:
    bills = with_late_usage(tmp_path)
    expected = [(ACCOUNT, 1, "0.20"), (OTHER, 1, "0.20")]

    provisional = bills.provisional(DECEMBER, now=DECEMBER.start + 4 * DAY)
    of_provisional = payables(bills, provisional)
    final = bills.final(DECEMBER)

    assert of_provisional == payables(bills, final) == expected
    assert [one.state for one in final] == ["final", "final"]
    assert [one.quantity for one in final] == [0, 0]


def test_accounts_without_late_usage_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bills = Bills(tmp_path)
    for account_id in (ACCOUNT, OTHER):
        bills.use(used(3 * MILLION), account_id=account_id)
    bills.final(MONTH)
    bills.use(used(500_000, hour=700), account_id=OTHER)
    bills.use(used(1, month=DECEMBER))
    rated = []
    read = account_usage.Rated.__init__

    def noted(self: Any, days: Any, account: str, month: Month, rows: Any) -> None:
        rated.append((account, month))
        read(self, days, account, month, rows)

    monkeypatch.setattr(account_usage.Rated, "__init__", noted)
    bills.final(DECEMBER)

    assert rated == [(ACCOUNT, DECEMBER), (OTHER, DECEMBER), (OTHER, MONTH)]


def test_an_account_that_came_after_the_others_final_invoices_is_named_until_it_has_one(
    tmp_path: Path,
) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    december = bills.request(DECEMBER)
    assert bills.make(december).left_out == {}
    bills.final(MONTH)
    bills.use(used(500_000, hour=700), account_id=OTHER)

    found = bills.make(bills.request(DECEMBER))
    assert bills.make(bills.request(MONTH)).left_out == {}
    assert bills.invoices(DECEMBER) == []
    assert {month: (one.accounts, one.count) for month, one in found.left_out.items()} == {
        MONTH: ((OTHER,), 1)
    }
    bills.final(MONTH)
    assert bills.make(bills.request(DECEMBER)).left_out == {}


def test_a_final_invoice_of_corrections_alone_is_issued_once_and_the_next_month_has_nothing(
    tmp_path: Path,
) -> None:
    bills = with_late_usage(tmp_path)

    issued = bills.final(DECEMBER)
    files = [bills.documents(one, render_json) for one in issued]
    again = bills.final(DECEMBER)

    assert [bills.documents(one, render_json) for one in again] == files
    assert len(again) == 2
    assert bills.final(JANUARY) == []
    assert [one.account_id for one in bills.final(MONTH)] == [ACCOUNT, OTHER]


def test_a_correction_waits_for_the_first_open_month_even_if_that_has_no_usage(tmp_path: Path) -> None:
    bills = with_late_usage(tmp_path)
    bills.provisional(DECEMBER, ACCOUNT)
    bills.use(used(10, month=JANUARY))

    january = bills.provisional(JANUARY)

    assert payables(bills, january) == [(ACCOUNT, 0, "0.00"), (OTHER, 1, "0.20")]
    with pytest.raises(NotIssued, match="no final invoice for 2026-12 yet"):
        bills.final(JANUARY, ACCOUNT)
    bills.final(DECEMBER, ACCOUNT)
    assert payables(bills, bills.final(JANUARY, ACCOUNT)) == [(ACCOUNT, 0, "0.00")]


def test_a_month_that_has_not_begun_corrects_nothing(tmp_path: Path) -> None:
    bills = with_late_usage(tmp_path)
    now = JANUARY.start - timedelta(hours=1)

    assert bills.provisional(JANUARY, now=now) == []
    with pytest.raises(NothingToBill, match="nothing is to be corrected"):
        bills.provisional(JANUARY, ACCOUNT, now=now)
    assert len(bills.provisional(DECEMBER, now=now)) == 2


def test_a_month_before_a_closed_one_corrects_nothing(tmp_path: Path) -> None:
    bills = with_late_usage(tmp_path)
    bills.use(used(10, month=JANUARY))
    bills.final(JANUARY, ACCOUNT)
    bills.use(used(500_000, hour=701))
    bills.close((JANUARY.end - DAY).date())

    assert [one.account_id for one in bills.provisional(DECEMBER, now=JANUARY.end + 4 * DAY)] == [OTHER]
    assert payables(bills, bills.final(JANUARY.next, ACCOUNT)) == [(ACCOUNT, 1, "0.20")]


def test_usage_that_is_taken_back_becomes_a_credit(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.final(MONTH)
    bills.use(used(-MILLION))

    (invoice,) = bills.final(DECEMBER)

    assert str(invoice.payable) == "-0.40"


def test_months_are_closed_in_order(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5), used(5, month=DECEMBER), used(5, month=JANUARY))
    bills.final(MONTH)

    with pytest.raises(NotIssued, match="no final invoice for 2026-12 yet"):
        bills.final(JANUARY, ACCOUNT)

    bills.final(DECEMBER, ACCOUNT)
    bills.final(JANUARY, ACCOUNT)


@built_once
def with_a_correction(directory: Path, has_provisional: bool) -> Bills:
    """December is closed and not billed, with a correction of November."""
    bills = Bills(directory)
    bills.use(used(3 * MILLION), used(3 * MILLION, month=DECEMBER))
    bills.final(MONTH)
    bills.use(used(500_000, hour=700))
    bills.close((DECEMBER.end - DAY).date())
    if has_provisional:
        bills.provisional(DECEMBER)
        bills.use(used(7, hour=701, queue=8))
        bills.close((DECEMBER.end - DAY).date())
    return bills


@pytest.mark.parametrize("commits", range(3))
@pytest.mark.parametrize("has_taken_effect", [False, True])
@pytest.mark.parametrize("has_provisional", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, CommitConflict])
def test_an_invoice_that_was_killed_at_any_commit_is_made_again_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commits: int,
    has_taken_effect: bool,
    has_provisional: bool,
    error: type[BaseException],
) -> None:
    """In December, with a correction of November, so that all three tables are written."""
    bills = with_a_correction(tmp_path, has_provisional)
    commit, done = Table.commit, 0

    def killed(self: Table, *arguments: Any, **named: Any) -> bool:
        nonlocal done
        if done == commits and not has_taken_effect:
            raise error
        found = commit(self, *arguments, **named)
        if done == commits:
            raise error
        done += 1
        return found

    with monkeypatch.context() as patched, contextlib.suppress(error):
        patched.setattr(Table, "commit", killed)
        bills.make(bills.request(DECEMBER, is_final=True))

    valid = [one for one in bills.invoices(DECEMBER) if one.state == "final"]
    for invoice in valid:
        bills.store.check(invoice)
    (final,) = bills.final(DECEMBER)

    bills.store.check(final)
    assert bills.store.final_months() == {MONTH: 0, DECEMBER: bills.closes[-1].number}
    assert valid in ([], [final])
    assert len(bills.corrections(final)) == (2 if has_provisional else 1)
    assert [charge.quantity for charge in bills.charges(DECEMBER)] == [MILLION, 2 * MILLION]
    bills.use(used(1, month=JANUARY))
    (january,) = bills.final(JANUARY)
    assert bills.corrections(january) == []


def test_lines_of_an_invoice_that_was_not_finished_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the lines of all accounts were written, and then only one of them is made."""
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.use(used(2 * MILLION), account_id=OTHER)
    commit = Table.commit

    def killed(self: Table, *arguments: Any, **named: Any) -> bool:
        if self.spec is INVOICES:
            raise KeyboardInterrupt
        return commit(self, *arguments, **named)

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(Table, "commit", killed)
        bills.provisional(MONTH)
    bills.provisional(MONTH, OTHER)

    assert bills.charges(MONTH) == []
    assert len(bills.charges(MONTH, OTHER)) == 2
    assert [one.account_id for one in bills.provisional(MONTH)] == [ACCOUNT, OTHER]
    assert len(bills.charges(MONTH)) == 2


def test_a_final_invoice_keeps_its_lines_whichever_files_a_killed_call_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed call put the lines of all four accounts into one file; their invoices are in two."""
    first, issued, third, last = (f"{number:012}" for number in range(1, 5))
    bills = Bills(tmp_path)
    for account_id in (first, issued, third, last):
        bills.use(used(3 * MILLION), account_id=account_id)
    bills.provisional(MONTH, issued, third)
    (final,) = bills.final(MONTH, issued)
    bills.provisional(MONTH, first, last)
    commit = Table.commit

    def killed(self: Table, *arguments: Any, **named: Any) -> bool:
        if self.spec is INVOICES:
            raise KeyboardInterrupt
        return commit(self, *arguments, **named)

    bills.use(used(1), account_id=third)
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(Table, "commit", killed)
        bills.provisional(MONTH, third)
    assert len(bills.warehouse.table(CHARGES).files()) == 1
    assert len(bills.warehouse.table(INVOICES).files()) == 2

    bills.use(used(1), account_id=first)
    bills.provisional(MONTH, first)

    bills.store.check(final)
    assert [one.account_id for one in bills.invoices(MONTH)] == [first, issued, third, last]


def test_files_that_no_table_has_any_more_are_deleted_and_invoices_stay(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.provisional(MONTH)
    (final,) = bills.final(MONTH)

    deleted = bills.store.delete_old_files(0)

    there = {path.name for path in (tmp_path / "gold" / "charges").rglob("*.parquet")}
    assert deleted == 2
    assert there == {Path(file.path).name for file in bills.warehouse.table(CHARGES).files()}
    bills.store.check(final)


def test_invoices_of_several_accounts_do_not_touch_each_other(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.use(used(2 * MILLION), account_id=OTHER)

    (first,) = bills.final(MONTH, ACCOUNT)
    (second,) = bills.final(MONTH, OTHER)

    assert (str(first.payable), str(second.payable)) == ("0.80", "0.40")
    assert bills.invoices(MONTH) == [first, second]
    for invoice in (first, second):
        bills.store.check(invoice)


def test_one_account_alone_and_then_all_are_what_all_at_once_are(tmp_path: Path) -> None:
    found = []
    for name in ("alone", "at once"):
        bills = Bills(tmp_path / name)
        for number in range(5):
            bills.use(used(MILLION + number, hour=number * 30), account_id=f"{number:012}")
        if name == "alone":
            bills.final(MONTH, "000000000003")
        invoices = bills.final(MONTH)
        found.append([bills.documents(one, render_json) for one in invoices])

    assert len(found[0]) == 5
    assert found[0] == found[1]


def test_an_account_alone_rewrites_only_files_that_may_have_it(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    for account_id in (ACCOUNT, OTHER):
        bills.use(used(3 * MILLION), account_id=account_id)
        bills.provisional(MONTH, account_id)
    paths = {file.path: file.bounds["BillingAccountId"] for file in bills.warehouse.table(CHARGES).files()}

    bills.use(used(1), account_id=OTHER)
    bills.provisional(MONTH, OTHER)

    after = {file.path for file in bills.warehouse.table(CHARGES).files()}
    kept = paths.keys() & after
    assert [paths[path] for path in kept] == [(ACCOUNT, ACCOUNT)]
    assert len(after) == 2


def test_final_lines_stay_when_others_of_their_file_are_made_anew(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.use(used(2 * MILLION), account_id=OTHER)
    bills.provisional(MONTH)
    (final,) = bills.final(MONTH, ACCOUNT)
    before = bills.documents(final, render_json)

    bills.use(used(MILLION), account_id=OTHER)
    bills.provisional(MONTH)

    assert bills.documents(bills.invoices(MONTH, ACCOUNT)[0], render_json) == before
    assert [one.quantity for one in bills.invoices(MONTH)] == [3 * MILLION, 3 * MILLION]


def test_other_engines_read_charges_that_add_up_to_the_payable_amount(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION + 7))
    bills.final(MONTH)
    bills.use(used(9, hour=700), used(MILLION + 3, month=DECEMBER))
    (invoice,) = bills.final(DECEMBER)

    total = Decimal(0)
    with_duckdb = Decimal(0)
    for spec in (CHARGES, ADJUSTMENTS):
        root = tmp_path / spec.name.replace(".", "/")
        frame = polars.read_delta(str(root)).filter(polars.col("InvoiceId") == invoice.invoice_id)
        total += sum(frame["BilledCost"].to_list(), Decimal(0))
        files = [f"{root}/{file.path}" for file in bills.warehouse.table(spec).files()]
        query = "select sum(BilledCost) from read_parquet($files) where InvoiceId = $id"
        found = duckdb.execute(query, {"files": files, "id": invoice.invoice_id}).fetchone()
        assert found is not None
        with_duckdb += found[0]

    assert total == with_duckdb == invoice.payable


def test_an_issued_invoice_whose_lines_were_changed_is_noticed(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    (invoice,) = bills.final(MONTH)
    table = bills.warehouse.table(CHARGES)
    table.commit("somebody", 0, [], removes=table.files())
    bills.use(used(1, hour=700))

    with pytest.raises(StoreDamaged, match=r"gold\.charges"):
        bills.store.check(invoice)
    with pytest.raises(StoreDamaged, match=r"gold\.charges are of 0 requests"):
        bills.final(DECEMBER)


def test_an_account_that_used_nothing_has_no_invoice(tmp_path: Path) -> None:
    with pytest.raises(NothingToBill, match="used nothing in 2026-11"):
        Bills(tmp_path).provisional(MONTH, ACCOUNT)


def test_usage_of_no_account_is_nobodys(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(0), account_id="")

    assert bills.final(MONTH) == []


def test_usage_that_was_not_billed_has_an_invoice_of_zero(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(0))

    (invoice,) = bills.final(MONTH)

    assert (str(invoice.payable), invoice.lines, bills.charges(MONTH)) == ("0.00", 1, [])


def test_a_day_without_price_is_refused(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.store.set_book(replace(CHANGED, versions=CHANGED.versions[:1]))
    bills.use(used(1), used(1, hour=29 * 24))

    with pytest.raises(NoPrice, match="2026-11-30T00:00:00Z"):
        bills.provisional(MONTH)


@pytest.mark.parametrize("book", [CHANGED, example_book()])
def test_a_price_book_is_kept_as_it_was_set(tmp_path: Path, book: PriceBook) -> None:
    bills = Bills(tmp_path)
    bills.store.set_book(BOOK)
    bills.store.set_book(book)

    assert bills.store.book() == book


def test_until_a_price_book_is_set_the_example_counts(tmp_path: Path) -> None:
    assert Bills(tmp_path).store.book() == example_book()


def test_prices_of_a_closed_month_cannot_be_changed_but_later_ones_can(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.store.set_book(BOOK)
    bills.use(used(3 * MILLION))
    bills.final(MONTH)

    with pytest.raises(PricesAreClosed, match="invoices of 2026-11"):
        bills.store.set_book(CHANGED)

    later = render_toml(CHANGED).replace("2026-11-15T00", "2026-12-01T00")
    bills.store.set_book(parse_toml(later))
    bills.use(used(2 * MILLION, month=DECEMBER))
    (invoice,) = bills.final(DECEMBER)
    assert (str(invoice.payable), bills.corrections(invoice)) == ("0.80", [])


def test_a_price_change_within_a_month_counts_from_its_midnight(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.store.set_book(CHANGED)
    bills.use(used(3 * MILLION, hour=13 * 24), used(3 * MILLION, hour=14 * 24))

    bills.final(MONTH)

    assert price_lines(bills) == [
        ("standard-v1-free", MILLION, Decimal(0)),
        ("standard-v1-tier1", 2 * MILLION, Decimal("0.8")),
        ("standard-v2-tier1", 3 * MILLION, Decimal("2.4")),
    ]


def test_an_account_is_called_what_it_was_called_at_the_end_of_the_month(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    bills.use(used(5))
    changes = [
        bills.store.set_account_names({ACCOUNT: "Acme"}, MONTH.start + 9 * DAY),
        bills.store.set_account_names({ACCOUNT: "Acme"}, MONTH.start + 10 * DAY),
        bills.store.set_account_names({ACCOUNT: "Acme Ltd", OTHER: "Other"}, MONTH.end + DAY),
    ]

    assert changes == [1, 0, 2]
    assert bills.provisional(MONTH, ACCOUNT)[0].account_name == "Acme"
    assert bills.store.account_names(MONTH.start) == {ACCOUNT: "Acme", OTHER: "Other"}
    assert bills.store.account_names(DECEMBER.end) == {ACCOUNT: "Acme Ltd", OTHER: "Other"}


def test_only_one_process_bills_at_a_time(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    with (
        bills.store.writing(),
        pytest.raises(WarehouseBusy, match="another process"),
        bills.store.writing(),
    ):
        pass


@pytest.mark.parametrize("has_provisional", [True, False])
def test_of_two_that_bill_at_a_time_where_nothing_locks_one_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_provisional: bool
) -> None:
    bills = Bills(tmp_path)
    bills.use(used(3 * MILLION))
    bills.close((MONTH.end - DAY).date())
    if has_provisional:
        bills.provisional(MONTH)
    request = bills.request(MONTH, is_final=True)
    first, second = bills.warehouse, bills.warehouse
    for spec in BILLING_TABLES:
        first.table(spec)
    over = invoicing._over

    def beside(*given: Any) -> Any:
        monkeypatch.setattr(invoicing, "_over", over)
        invoicing.make_invoices(InProcess(), second, request)
        return over(*given)

    monkeypatch.setattr(invoicing, "_over", beside)
    with pytest.raises(CommitConflict):
        invoicing.make_invoices(InProcess(), first, request)

    (invoice,) = bills.invoices(MONTH)
    bills.store.check(invoice)
    assert (invoice.state, str(invoice.payable)) == ("final", "0.80")


def test_the_pipeline_may_write_usage_while_billing_writes(tmp_path: Path) -> None:
    bills = Bills(tmp_path)
    with bills.store.writing(), bills.warehouse.ingesting():
        bills.use(used(5))


@pytest.mark.parametrize("accounts", [(), (ACCOUNT,), (ACCOUNT, OTHER)])
def test_what_is_issued_is_shown_without_tasks_until_something_comes_to_be_made(
    tmp_path: Path, accounts: tuple[str, ...]
) -> None:
    bills = Bills(tmp_path)
    for account_id in (ACCOUNT, OTHER):
        bills.use(used(5), account_id=account_id)

    def is_issued(month: Month) -> bool:
        return invoicing.is_issued(bills.store, bills.warehouse, bills.request(month, *accounts))

    assert not is_issued(MONTH)
    bills.provisional(MONTH)
    assert not is_issued(MONTH)
    bills.final(MONTH)
    assert is_issued(MONTH)
    assert not is_issued(DECEMBER)
    bills.use(used(1, hour=700), account_id="300000000000")
    bills.close((MONTH.end - DAY).date())
    assert is_issued(MONTH) == bool(accounts)


USAGE = st.builds(
    lambda billed, hour, fifo, queue: used(
        billed, hour=hour, billing_class="fifo" if fifo else "standard", queue=queue + 10 * fifo
    ),
    st.integers(0, 2 * MILLION),
    st.integers(0, 719),
    st.booleans(),
    st.integers(0, 3),
)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([ACCOUNT, OTHER, "000000000001"]), USAGE), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
def test_usage_in_any_order_and_any_files_has_the_same_invoices(
    usage: list[tuple[str, Usage]], random: Any, batches: int
) -> None:
    found = []
    for is_shuffled in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            bills = Bills(Path(directory))
            bills.store.set_book(CHANGED)
            rows = list(usage)
            if is_shuffled:
                random.shuffle(rows)
            for first in range(batches if is_shuffled else 1):
                part = rows[first::batches] if is_shuffled else rows
                for account_id in sorted({account_id for account_id, _ in part}):
                    bills.use(*(row for owner, row in part if owner == account_id), account_id=account_id)
                if is_shuffled and random.random() < 0.5:
                    bills.close(MONTH.start.date() + random.randrange(30) * DAY)
            provisional = bills.provisional(MONTH)
            final = bills.final(MONTH)
            assert [one.digest for one in provisional] == [one.digest for one in final]
            found.append([json.loads(bills.documents(one, render_json)) for one in final])

    assert found[0] == found[1]
    for account_id in {account_id for account_id, _ in usage}:
        billed = sum(row.billed_requests for owner, row in usage if owner == account_id)
        assert [one["billed_requests"] for one in found[0] if one["account_id"] == account_id] == [billed]


@built_once
def of_many_accounts(directory: Path, accounts: int) -> Bills:
    """November is closed for so many accounts."""
    bills = Bills(directory)
    for number in range(accounts):
        bills.use(
            used(700_000 + number, hour=number % 20 * 24),
            used(700_000, hour=700, billing_class="fifo", queue=8),
            account_id=f"{number:012}",
        )
    bills.close((MONTH.end - DAY).date())
    return bills


def test_stretches_of_accounts_make_the_same_invoices_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for rows in (1 << 22, 5):
        bills = of_many_accounts(tmp_path / str(rows), 20)
        monkeypatch.setattr(account_rows, "ROWS_OF_TASK_MAX", rows)
        stretches = account_rows.ranges_of(
            bills.daily.place, bills.daily.spec, bills.daily.files(), InProcess.cores
        )
        invoices = bills.final(MONTH)
        found.append([bills.documents(one, render_json) for one in invoices])
        assert len(bills.warehouse.table(CHARGES).files()) == len(stretches)
        assert (len(stretches) > 3) == (rows == 5)

    assert len(found[0]) == 20
    assert found[0] == found[1]


def test_rows_that_do_not_fit_in_memory_are_rated_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With spools of no rows, and rows read and rated two at a time."""
    rows = [
        used(90_000 * queue, hour=24 * day, queue=queue, billing_class="fifo" if queue % 2 else "standard")
        for day in range(4)
        for queue in range(1, 8)
    ]
    found = []
    for name in ("memory", "disk"):
        bills = Bills(tmp_path / name)
        bills.use(*rows)
        bills.final(MONTH)
        bills.use(*(row._replace(billed_requests=row.billed_requests + 1) for row in rows))
        if name == "disk":
            for module in (account_usage, invoice_tasks):
                monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
            monkeypatch.setattr(invoice_tasks, "Spool", lambda schema: Spool(schema, rows_in_memory=0))
            monkeypatch.setattr(account_rows, "ROWS_IN_MEMORY", 2)
            monkeypatch.setattr(account_rows, "ROWS_OF_FILE_MIN", 2)
        (invoice,) = bills.final(DECEMBER)
        assert len(bills.corrections(invoice)) >= len(rows)
        found.append(bills.documents(invoice, render_json))

    assert found[0] == found[1]
    charged = bills.charges(MONTH)
    corrected = [one.charge for one in bills.corrections(invoice)]
    assert total_of([*charged, *corrected]) == invoice.exact_total + total_of(charged)

"""Hours of months that are long closed expire; days, closes and proofs stay, and commands say what is gone."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from harness.expiring import (
    MONTHS_LATER,
    WORKERS,
    assert_all_agree,
    rewrite,
    started,
    used_in_two_months,
)
from harness.pipeline_site import Site, expected_usage
from harness.usage_blocks import slow

from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.store import BillingStore
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.jobs import invoicing
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.expiry import ExpiredRows, expire
from quaymaster_pipeline.jobs.hourly_expiry import APP, due_months
from quaymaster_pipeline.jobs.retention import Retention, first_kept_month
from quaymaster_pipeline.usage.expired import EXPIRED, EXPIRED_DAYS
from quaymaster_pipeline.warehouse.closes import last_closed_day, read_closes
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import LATENCY_HOURLY, USAGE_DAILY, USAGE_HOURLY, TableSpec
from quaymaster_pipeline.warehouse.tables import Table

NOVEMBER = "2026-11"
MONTH = Month.parse(NOVEMBER)


def expire_all(site: Site, now: datetime.datetime = MONTHS_LATER, **retention: int) -> ExpiredRows:
    return expire(WORKERS, site.warehouse, lambda: now, Retention(**retention))


def months_of(site: Site, spec: TableSpec) -> set[str]:
    return {day[:7] for day in site.warehouse.table(spec).partitions()}


def rows_of(site: Site, spec: TableSpec) -> list[Any]:
    table = site.warehouse.table(spec)
    found = table.read(files=sorted(table.files(), key=lambda file: file.path))
    return list(found.to_pylist())


def invoice_of_november(site: Site) -> list[Any]:
    """Make the final invoices of the month and return what they come to."""
    warehouse = site.warehouse
    request = invoicing.InvoiceRequest(
        month=MONTH,
        now=MONTHS_LATER,
        accounts=None,
        closes=tuple(read_closes(warehouse)),
        last_closed=last_closed_day(warehouse),
        is_final=True,
    )
    with BillingStore(warehouse).writing():
        invoicing.make_invoices(WORKERS, warehouse, request)
    heads = BillingStore(site.warehouse).heads(MONTH, None)
    return sorted((head.invoice.account_id, head.invoice.exact_total) for head in heads)


def test_hours_of_an_old_month_expire_and_its_days_and_proofs_stay(tmp_path: Path) -> None:
    site, one, two = used_in_two_months(tmp_path)
    days, closes = rows_of(site, USAGE_DAILY), read_closes(site.warehouse)

    early = expire_all(site, MONTHS_LATER - datetime.timedelta(days=3))
    expired, again = expire_all(site), expire_all(site)

    assert (early.months, expired.months, again.months) == ((), (NOVEMBER,), ())
    assert months_of(site, USAGE_HOURLY) == months_of(site, LATENCY_HOURLY) == {"2026-12"}
    assert (rows_of(site, USAGE_DAILY), read_closes(site.warehouse)) == (days, closes)
    kept = {key: sums for key, sums in expected_usage(one, two).items() if key[3] >= "2026-12"}
    assert site.usage() == kept
    proof = assert_all_agree(site)
    assert (proof.hours_from, proof.requests) == ("2026-12-01", sum(sums[0] for sums in kept.values()))


def test_an_invoice_of_an_expired_month_is_what_it_was(tmp_path: Path) -> None:
    (before, *_), (after, *_) = used_in_two_months(tmp_path / "a"), used_in_two_months(tmp_path / "b")

    expired = expire_all(after)

    assert expired.months == (NOVEMBER,)
    assert invoice_of_november(after) == invoice_of_november(before) != []


def test_months_with_single_requests_or_open_days_keep_their_hours(tmp_path: Path) -> None:
    site, *_ = used_in_two_months(tmp_path / "a")
    opened, *_ = started(tmp_path / "b")  # its last day is not closed

    kept = expire_all(site, usage_days=10_000)

    assert (kept.months, expire_all(opened).months) == ((), ())
    assert NOVEMBER in months_of(site, USAGE_HOURLY) & months_of(opened, USAGE_HOURLY)


def test_what_comes_late_to_an_expired_month_counts_and_expires_once_it_is_closed(tmp_path: Path) -> None:
    site, one, two = used_in_two_months(tmp_path)
    expire_all(site)
    late = slow("c")

    site.ship(late.block(10))
    site.run(now=MONTHS_LATER)
    before_close = expire_all(site)
    assert_all_agree(site)
    site.ship(*(front_end.block(800) for front_end in (one, two, late)))
    site.run(now=MONTHS_LATER)
    close_days(WORKERS, site.warehouse, MONTHS_LATER, takes_late=True)
    assert_all_agree(site)
    closed = expire_all(site, MONTHS_LATER + datetime.timedelta(days=40))

    assert (before_close.months, closed.months) == ((), (NOVEMBER,))
    assert NOVEMBER not in months_of(site, USAGE_HOURLY) | months_of(site, LATENCY_HOURLY)
    assert_all_agree(site)


def test_hours_that_are_not_what_their_days_were_closed_with_do_not_expire(tmp_path: Path) -> None:
    site, *_ = used_in_two_months(tmp_path)
    expire_all(site, MONTHS_LATER - datetime.timedelta(days=3))
    rows = rows_of(site, USAGE_HOURLY)
    next(row for row in rows if str(row["usage_date"]) == "2026-11-23")["messages"] += 1
    rewrite(site, USAGE_HOURLY, rows)

    refused = expire_all(site)

    assert refused.months == ()
    (refusal,) = refused.refusals
    assert "2026-11-23: messages is" in refusal
    assert NOVEMBER in months_of(site, USAGE_HOURLY)


def test_hours_that_are_deleted_as_if_they_had_expired_are_told(tmp_path: Path) -> None:
    site, *_ = used_in_two_months(tmp_path)
    expire_all(site)
    table = site.warehouse.table(USAGE_HOURLY)
    (gone, *_) = table.files()
    notes = {EXPIRED_DAYS: table.note(EXPIRED_DAYS) | {"before": "2027-01-01"}}
    counts = {EXPIRED: {"rows": gone.rows}}
    table.commit("somebody", None, [], removes=[gone], counts=counts, shared_notes=notes)

    proof = verify(WORKERS, site.warehouse)

    assert any("their days were closed with" in found.text for found in proof.breaks)


def test_an_expiry_of_hours_that_was_killed_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, *_ = used_in_two_months(tmp_path)
    commit = Table.commit

    def killed(table: Table, app: str, *arguments: Any, **named: Any) -> bool:
        if (app, table.spec) == (APP, LATENCY_HOURLY):
            raise CommitConflict("killed")
        return commit(table, app, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(CommitConflict, match="killed"):
            expire_all(site)
    assert_all_agree(site)
    left = months_of(site, LATENCY_HOURLY)
    expire_all(site)

    assert (left, months_of(site, LATENCY_HOURLY)) == ({NOVEMBER, "2026-12"}, {"2026-12"})


def test_hours_of_expired_months_are_not_summed_up_again(tmp_path: Path) -> None:
    site, *_ = used_in_two_months(tmp_path)
    expire_all(site)

    done = backfill(WORKERS, site.warehouse, 0, 1 << 62)

    assert (done.replaced, done.days_replaced, done.latency_replaced) == ((), (), ())


@pytest.mark.parametrize(
    ("now", "months", "first"),
    [
        ("2026-11-27", 25, "2024-10-01"),
        ("2026-01-01", 1, "2025-12-01"),
        ("2026-12-31", 12, "2025-12-01"),
        ("2026-11-27", 10**9, "0001-01-01"),
    ],
)
def test_whole_months_are_kept(now: str, months: int, first: str) -> None:
    found = first_kept_month(datetime.datetime.fromisoformat(f"{now}T23:59:59+00:00"), months)

    assert found.isoformat() == first


class Hours:
    """As much of the table of hours as `due_months` asks."""

    def __init__(self, *files: DataFile) -> None:
        self._files = files

    def lines_of_days(self, *, end: str) -> str:
        return end

    def files(self, end: str) -> list[DataFile]:
        return [file for file in self._files if str(file.partition_value) < end]


def hours(day: str) -> DataFile:
    return DataFile(day, 1, 1, day, {"last_batch": (1, 5)})


@pytest.mark.parametrize(
    ("with_requests", "expired_before", "due"),
    [
        ("", "2027-01-01", ["2026-11", "2026-12"]),
        ("2026-12-09", "2027-01-01", []),
        ("2026-12-09", "2026-11-01", ["2026-11"]),
    ],
)
def test_late_usage_of_months_that_have_expired_goes_together(
    with_requests: str, expired_before: str, due: list[str]
) -> None:
    table = cast("Table", Hours(hours("2026-11-03"), hours("2026-12-04")))

    months = due_months(
        table, {with_requests} - {""}, "2027-06-01", ("2029-01-01", 9), expired_before=expired_before
    )

    assert list(months) == due

"""The content of blocks expires once silver has it, and what comes after that is still told apart."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import HOUR_US, NOON_US, SECOND_US, FrontEnd

from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount, compare_brokers, write_counts
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.checks.status import pipeline_metrics, read_status
from quaymaster_pipeline.jobs.content_expiry import (
    Expired,
    ExpiredQuarantine,
    expire_content,
    expire_quarantine,
)
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS, QUARANTINE_DAYS
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.content import CONTENT_DAYS_MAX
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, QUARANTINE
from quaymaster_pipeline.warehouse.tables import Table

LATER = NOW + datetime.timedelta(days=CONTENT_DAYS + 1)


def expire(site: Site, now: datetime.datetime = LATER) -> Expired:
    return expire_content(InProcess(), site.warehouse, now)


def test_content_expires_and_headers_stay(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    blocks = [one.block(30), one.block(40)]
    site.ship(*blocks)
    site.run()
    before = site.warehouse.table(BLOCKS).read().drop_columns(["content", "content_bytes"])

    early, expired, again = (
        expire(site, NOW + datetime.timedelta(days=CONTENT_DAYS)),
        expire(site),
        expire(site),
    )

    after = site.warehouse.table(BLOCKS).read()
    assert (early, expired, again) == (Expired(0, 0), Expired(2, sum(map(len, blocks))), Expired(0, 0))
    assert after.column("content").null_count == 2
    assert after.drop_columns(["content", "content_bytes"]).equals(before)
    site.warehouse.table(BLOCKS).vacuum(0)
    kept = b"".join(path.read_bytes() for path in site.root.rglob("bronze/**/*.parquet"))
    assert not any(block[-40:] in kept for block in blocks)


def test_nothing_expires_before_silver_has_it(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(30))
    warehouse = site.warehouse
    take_batch(InProcess(), warehouse, FileFeed(site.feed), coverage_of(warehouse), NOW)

    assert expire(site) == Expired(0, 0)
    site.run()
    assert expire(site).blocks == 1
    assert site.usage() == expected_usage(one)


def test_what_comes_again_after_its_content_has_expired_counts_no_second_time(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", seed=1)
    first = one.block(30)
    longer = FrontEnd("a", seed=1).block(50)
    site.ship(first)
    site.run()
    expire(site)
    site.ship(first, longer)
    site.run(now=LATER)

    marks = site.warehouse.table(BLOCK_MARKS).read(["state"]).column("state").to_pylist()
    quarantined = site.warehouse.table(QUARANTINE).read(["rule", "reason", "sequence"]).to_pylist()
    assert sorted(marks) == ["duplicate", "overlap"]
    assert sorted(row["sequence"] for row in quarantined) == list(range(30))
    assert {row["rule"] for row in quarantined} == {"repeated"}
    assert all("has expired" in row["reason"] for row in quarantined)
    (rows, *_) = compare_notes(site.warehouse)
    assert (rows.blocks, rows.duplicates, rows.quarantine, rows.silver) == (110, 30, 30, 50)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5


def test_audit_chains_hold_when_the_content_of_blocks_has_expired(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(200))
    site.run()
    expire(site)
    site.ship(one.block(100))
    site.run(now=LATER)

    proof = verify_chains(InProcess(), site.warehouse)

    assert (proof.breaks, proof.events > 0) == ([], True)


def quarantined(directory: Path) -> tuple[Site, FrontEnd]:
    """Return a site with 40 rows in quarantine, of a clock that is wrong, and the bytes of a damaged block."""
    site, one = Site(directory), FrontEnd("a")
    damaged = FrontEnd("b").block(3)
    site.ship(one.block(30), damaged[:-1] + bytes([damaged[-1] ^ 1]))
    one.time_us += 30 * 24 * HOUR_US
    site.ship(one.block(40))
    site.run()
    return site, one


def expire_raw(site: Site, days: int) -> ExpiredQuarantine:
    return expire_quarantine(InProcess(), site.warehouse, NOW + datetime.timedelta(days))


def test_what_quarantine_recorded_expires_and_its_rows_stay(tmp_path: Path) -> None:
    site, _ = quarantined(tmp_path)
    before = site.warehouse.table(QUARANTINE).read().drop_columns(["raw", "raw_bytes"])

    early, expired, again = (expire_raw(site, CONTENT_DAYS + more) for more in (0, 1, 1))

    rows = site.warehouse.table(QUARANTINE).read()
    assert (early, expired, again) == ((0, 0), (41, 0), (0, 0))
    assert (rows.column("raw").null_count, set(rows.column("raw_bytes").to_pylist())) == (41, {0})
    assert rows.drop_columns(["raw", "raw_bytes"]).equals(before)


def test_what_expired_in_quarantine_stays_so_when_files_are_compacted(tmp_path: Path) -> None:
    site, one = quarantined(tmp_path)
    site.ship(one.block(40))
    site.run()
    expire_raw(site, CONTENT_DAYS + 1)

    compact(InProcess(), site.warehouse, LATER)

    assert len(site.warehouse.table(QUARANTINE).files()) == 1
    assert expire_raw(site, CONTENT_DAYS + 1) == (0, 0)


def test_old_rows_of_quarantine_are_deleted_and_the_layers_still_agree(tmp_path: Path) -> None:
    site, one = quarantined(tmp_path)

    kept, deleted, again = (expire_raw(site, QUARANTINE_DAYS + more) for more in (0, 1, 1))
    site.ship(one.block(20))
    site.run()

    # Six management requests stay, since the audit chain goes over them.
    assert (kept, deleted, again) == ((41, 0), (0, 35), (0, 0))
    assert site.warehouse.table(QUARANTINE).rows == 26
    (rows, *_) = compare_rows(site.warehouse)
    assert (rows.blocks, rows.quarantine, rows.silver) == (90, 60, 30)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5


def test_quarantine_expires_while_a_pipeline_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = quarantined(tmp_path)
    commit = Table.commit
    ran: list[str] = []

    def interrupted(table: Table, *arguments: object, **named: object) -> bool:
        if not ran:
            ran.append(table.spec.name)
            compact(InProcess(), site.warehouse, LATER)
            site.ship(one.block(40))
            site.run()
        return commit(table, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", interrupted)
        expired = expire_raw(site, CONTENT_DAYS + 1)

    raw = site.warehouse.table(QUARANTINE).read(["raw"]).column("raw")
    assert ran == ["silver.quarantine"]
    assert expired.contents + len(raw) - raw.null_count == 81


def test_brokers_are_compared_although_quarantine_has_expired(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", time_us=NOON_US + 30 * 24 * HOUR_US)
    site.ship(one.block(40))
    one.time_us = NOON_US + HOUR_US
    site.ship(one.block(30), one.block(0))
    site.run()
    expire_raw(site, CONTENT_DAYS + 1)
    warehouse = site.warehouse
    counted = datetime.datetime.fromtimestamp((NOON_US + HOUR_US // 2) / SECOND_US, datetime.UTC)
    # Made after usage was first recorded, so that it is compared from its beginning on.
    created_ms = (NOON_US + 2 * HOUR_US) // 1000
    count = QueueCount(101, "000000000002", "queue-1", 10_000, 0, 0, True, created_ms, "standard")
    with warehouse.ingesting():
        write_counts(warehouse, [count], counted, counted, accept=False)

    compared = compare_brokers(site.warehouse, coverage_of(site.warehouse), now=LATER)

    assert compared is not None
    # 40 requests of up to ten messages, of which 6 are no sends: they manage something.
    assert (compared.totals[0].missing, compared.totals[0].allowed) == (10_000, 340)


def test_status_and_metrics_tell_of_content_that_should_have_expired(tmp_path: Path) -> None:
    site, _ = quarantined(tmp_path)
    day = NOW.replace(hour=0)

    def told(days: int) -> tuple[str | None, bool, str]:
        now_s = (NOW + datetime.timedelta(days)).timestamp()
        status = read_status(site.warehouse, now_s=now_s)
        text = pipeline_metrics(status, lag_blocks=0, batch_seconds=0, now_s=now_s)
        (line,) = [line for line in text.splitlines() if line.startswith("quaymaster_pipeline_oldest")]
        return status["oldest_content"], status["is_content_overdue"], line.split()[1]

    in_time, overdue = told(CONTENT_DAYS_MAX), told(CONTENT_DAYS_MAX + 1)
    expire(site)
    of_quarantine = told(CONTENT_DAYS_MAX + 1)
    expire_raw(site, CONTENT_DAYS + 1)

    assert in_time == ("2026-11-22", False, str(day.timestamp()))
    assert overdue == of_quarantine == ("2026-11-22", True, str(day.timestamp()))
    assert told(CONTENT_DAYS_MAX + 1) == (
        None,
        False,
        str((NOW + datetime.timedelta(CONTENT_DAYS_MAX + 1)).timestamp()),
    )

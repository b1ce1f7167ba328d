"""The content of blocks expires once silver has it, and what comes after that is still told apart."""

from __future__ import annotations

import datetime
from pathlib import Path

from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.audit.audit import Audit
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs.expiry import Expired, expire_content
from quaymaster_pipeline.jobs.retention import CONTENT_DAYS
from quaymaster_pipeline.usage import bronze
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, QUARANTINE

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
    bronze.take_batch(InProcess(), warehouse, FileFeed(site.feed), bronze.coverage_of(warehouse), NOW)

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
    assert {row["rule"] for row in quarantined} == {"identity"}
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

    proof = Audit(site.warehouse).verify()

    assert (proof.breaks, proof.events > 0) == ([], True)

"""Tables whose requests and headers expire long after they were taken."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.built_once import built_once
from harness.pipeline_site import InProcess, Site
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd, slow
from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.checks.verification import UsageProof, verify
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.expiry import ExpiredRows, expire
from quaymaster_pipeline.jobs.retention import Retention
from quaymaster_pipeline.warehouse.schemas import TableSpec

WORKERS = InProcess()
RETENTION = Retention(content_days=35, usage_days=100)


def at(day: int, month: int = 11, hour: int = 6) -> datetime.datetime:
    return datetime.datetime(2026, month, day, hour, tzinfo=datetime.UTC)


LATER = at(25) + datetime.timedelta(days=101)


def expire_all(site: Site, now: datetime.datetime = LATER) -> ExpiredRows:
    return expire(WORKERS, site.warehouse, lambda: now, RETENTION)


def rows_of(site: Site, spec: TableSpec) -> int:
    return site.warehouse.table(spec).rows


@built_once
def started(tmp_path: Path) -> tuple[Site, FrontEnd, FrontEnd]:
    """Return a site with two front ends from 12:00 on the 22nd on, taken a day at a time, closed up to the 24th."""
    site = Site(tmp_path)
    one, two = map(slow, "ab")
    for day in (23, 24, 25):
        site.ship(one.block(32), two.block(20), two.block(12))
        site.run(now=at(day))
    close_days(WORKERS, site.warehouse, at(25))
    return site, one, two


MONTHS_LATER = datetime.datetime(2029, 1, 2, 6, tzinfo=datetime.UTC)
"""Then November 2026 is older than 25 whole months."""


@built_once
def used_in_two_months(directory: Path) -> tuple[Site, FrontEnd, FrontEnd]:
    """Return a site with two front ends from the 22nd of November to the 2nd of December, closed up to the day before.

    November is all closed; single requests of December's last day stay when all else expires.
    """
    site, one, two = started(directory)
    now = at(4, month=12)
    for _ in range(4):
        site.ship(one.block(100), two.block(100))
        site.run(now=now)
    close_days(WORKERS, site.warehouse, now)
    return site, one, two


def next_days(site: Site, *front_ends: FrontEnd, days: int = 0) -> None:
    """Take another two days of usage some days after LATER, and close what is due."""
    now = LATER + datetime.timedelta(days)
    site.ship(*(front_end.block(100) for front_end in front_ends))
    site.run(now=now)
    close_days(WORKERS, site.warehouse, now, takes_late=True)


def assert_all_agree(site: Site) -> UsageProof:
    proof = verify(WORKERS, site.warehouse)
    assert [one.text for one in proof.breaks] == []
    assert [one.difference for one in compare_notes(site.warehouse)] == [0] * 5
    assert [one.difference for one in compare_rows(site.warehouse)] == [0] * 5
    assert compare_sums(site.warehouse) == []
    assert verify_chains(WORKERS, site.warehouse).breaks == []
    return proof


def rewrite(site: Site, spec: TableSpec, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of a table as somebody would who can write it."""
    table = site.warehouse.table(spec)
    written = table.write("x", pa.Table.from_pylist(rows, schema=spec.schema))
    table.commit("somebody", None, written, removes=table.files())

"""Spool = bronze = silver + quarantine = gold = charges, whatever is killed; by other engines' readings, too."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars
import pytest
from harness import usage_blocks
from harness.pipeline_site import InProcess, hour_text
from harness.reconciled import compare_rows, compare_sums
from harness.usage_faults import BOOK, NOVEMBER, NOW, Faults, FaultySite, records_of, run_history, us

from quaymaster.protocol.usage.usage_blocks import decode_block, decode_header
from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.billing.rules import billed_requests_of
from quaymaster_pipeline.billing.tables import ADJUSTMENTS, CHARGES
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.expired import expired_blocks, expired_usage
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    EXPIRED_BLOCKS,
    QUARANTINE,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)

RUNS = int(os.environ.get("PIPELINE_FAULT_RUNS", "1"))
"""Histories by chance; `make` has a target for many."""
FIRST_SEED = int(os.environ.get("PIPELINE_FAULT_SEED", "1"))


def read(site: FaultySite, spec: TableSpec) -> polars.DataFrame:
    """Return a table as Polars reads it, by its log."""
    return polars.read_delta(site.warehouse.table(spec).place.uri)


def query(site: FaultySite, spec: TableSpec, sql: str) -> list[tuple[Any, ...]]:
    """Return what DuckDB says of the files that a table has; they are `t` in the query."""
    table = site.warehouse.table(spec)
    paths = [f"{table.place.uri}/{file.path}" for file in table.files()]
    return duckdb.connect().execute(sql.replace(" t", f" read_parquet({paths})", 1)).fetchall()


def check_tables(site: FaultySite, records: list[UsageRecord]) -> None:
    """Compare all tables with the records, counted one by one."""
    bad = [record for record in records if record.event_time_us > us(NOW)]
    good = [record for record in records if record.event_time_us <= us(NOW)]
    contents = [decode_block(content) for content in read(site, BLOCKS)["content"]]
    identities = [
        (one.front_end, one.incarnation, one.sequence) for block in contents for one in block.records()
    ]
    assert set(identities) == {(one.front_end, one.incarnation, one.sequence) for one in records}
    events = read(site, USAGE_EVENTS)
    assert Counter(events.select("front_end", "epoch", "sequence").rows()) == Counter(
        (one.front_end, one.incarnation, one.sequence) for one in good
    )
    assert read(site, QUARANTINE).height == len(bad)
    expected = [
        (
            len(good),
            sum(one.message_count for one in good),
            sum(one.payload_bytes for one in good),
            sum(one.chunks for one in good),
            sum(billed_requests_of(one.account_id, one.http_status, one.chunks) for one in good),
        )
    ]
    sums = "sum(requests), sum(messages), sum(bytes), sum(chunks), sum(billed_requests)"
    of_silver = "count(*), sum(messages), sum(bytes), sum(chunks), sum(billed_requests)"
    assert query(site, USAGE_EVENTS, f"select {of_silver} from t") == expected
    assert query(site, USAGE_HOURLY, f"select {sums} from t") == expected
    assert query(site, USAGE_DAILY, f"select {sums} from t") == expected
    assert site.usage() == {
        (*key[:3], hour_text(key[3])): (
            sums["requests"],
            sums["messages"],
            sums["bytes"],
            sums["chunks"],
            sums["errors"],
        )
        for key, sums in usage_blocks.usage_of(good).items()
    }
    assert sum(one.difference for one in (*compare_rows(site.warehouse), *compare_notes(site.warehouse))) == 0
    assert compare_sums(site.warehouse) == []
    assert verify_chains(InProcess(), site.warehouse).breaks == []


def check_charges(site: FaultySite, records: list[UsageRecord]) -> None:
    """Compare billed requests by account with the records of both months."""
    expected: Counter[str] = Counter()
    for one in records:
        if one.event_time_us < us(NOVEMBER.end):
            expected[one.account_id] += billed_requests_of(one.account_id, one.http_status, one.chunks)
    charged = read(site, CHARGES).filter(polars.col("PricingQuantity").is_not_null())
    found = charged.group_by("BillingAccountId").agg(polars.col("PricingQuantity").sum())
    assert {account: int(quantity) for account, quantity in found.rows()} == dict(+expected)
    assert site.warehouse.table(ADJUSTMENTS).rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
def test_nothing_is_lost_or_doubled_whatever_is_killed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "BATCH_BLOCKS_MAX", 12)
    site, front_ends, queue = run_history(tmp_path, seed)
    records = records_of(queue)

    invoices = site.bill()

    durable = {request_id for front_end in front_ends for request_id in front_end.durable}
    request_ids = {record.request_id for record in records}
    assert durable <= request_ids
    assert len(request_ids) == len(records)
    assert durable
    assert sum(site.faults.at.values()) == site.kills > 0
    coverage = coverage_of(site.warehouse)
    assert (coverage.gaps(), coverage.open_incarnations()) == ([], [])
    check_tables(site, records)
    check_charges(site, records)

    clean = clean_site(tmp_path, queue)
    assert clean.usage() == site.usage()
    assert clean.bill() == invoices
    assert BOOK.versions[1].number in {
        charge.price_version for lines, _ in invoices.values() for charge in lines
    }


def clean_site(directory: Path, queue: list[bytes]) -> FaultySite:
    """Return tables of the same blocks, which came in order, and nothing failed."""
    clean = FaultySite(directory / "clean", Faults(Random(0), rate=0, kills_max=0))
    headers = {data: decode_header(data) for data in queue}
    in_order = sorted(
        headers.items(), key=lambda pair: (pair[1].front_end, pair[1].incarnation, pair[1].seq_lo)
    )
    clean.ship(*(data for data, _ in in_order))
    clean.catch_up()
    return clean


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
def test_sums_and_invoices_are_the_same_if_requests_and_headers_expire_while_all_is_killed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "BATCH_BLOCKS_MAX", 12)
    site, _, queue = run_history(tmp_path, seed, expires=True)

    invoices = site.bill()
    site.expire()
    usage = site.usage()
    site.ship(*queue)  # a disk of long ago came back
    site.catch_up()

    clean = clean_site(tmp_path, queue)
    assert site.usage() == usage == clean.usage()
    assert site.bill() == invoices == clean.bill()
    assert expired_blocks(site.warehouse.table(EXPIRED_BLOCKS)).blocks > 0
    assert expired_usage(site.warehouse.table(USAGE_EVENTS)).counts["rows"] > 0
    assert [one.text for one in verify(InProcess(), site.warehouse).breaks] == []
    assert verify_chains(InProcess(), site.warehouse).breaks == []
    assert sum(one.difference for one in (*compare_rows(site.warehouse), *compare_notes(site.warehouse))) == 0
    assert compare_sums(site.warehouse) == []

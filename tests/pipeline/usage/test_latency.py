"""Latencies are counted by powers of two, once each, and add up."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import HOUR_US, FrontEnd

from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster_pipeline.jobs.backfill import APP, backfill
from quaymaster_pipeline.usage.latency import PARTIAL_SCHEMA, merge_latency, partial_latency
from quaymaster_pipeline.warehouse.schemas import LATENCY_HOURLY, USAGE_EVENTS

HOUR = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def expected(*front_ends: FrontEnd) -> Counter[tuple[int, str, str, int]]:
    """Count one by one: hour, action, kind of queue, power of two."""

    def key(record: UsageRecord) -> tuple[int, str, str, int]:
        hour = record.event_time_us // HOUR_US * HOUR_US
        return hour, record.action, record.queue_type, 1 << record.latency_us.bit_length()

    return Counter(key(record) for front_end in front_ends for record in front_end.records)


def found(site: Site) -> Counter[tuple[int, str, str, int]]:
    counts: Counter[tuple[int, str, str, int]] = Counter()
    for row in site.warehouse.table(LATENCY_HOURLY).read().to_pylist():
        hour_us = int(row["hour"].timestamp()) * 1_000_000
        counts[hour_us, row["action"], row["queue_type"], row["below_us"]] += row["requests"]
    return counts


def test_each_request_is_counted_where_it_belongs_batch_after_batch(tmp_path: Path) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=90_000_000)
    for rows in (100, 3, 500):
        block = one.block(rows)
        site.ship(block, two.block(rows), block)
        site.run()

    assert found(site) == expected(one, two)


@pytest.mark.parametrize(
    ("latency_us", "below_us"), [(0, 1), (1, 2), (2, 4), (3, 4), (1023, 1024), (1024, 2048), (2**40, 2**41)]
)
def test_the_bounds_are_powers_of_two(latency_us: int, below_us: int) -> None:
    row = {
        "hour": HOUR,
        "region": "r",
        "action": "SendMessage",
        "queue_type": "log",
        "latency_us": latency_us,
        "batch_id": 7,
    }
    schema = pa.schema([USAGE_EVENTS.schema.field(name) for name in row])

    (counted,) = partial_latency(pa.Table.from_pylist([row], schema=schema)).to_pylist()

    assert (counted["below_us"], counted["requests"]) == (below_us, 1)
    assert (counted["first_batch"], counted["last_batch"]) == (7, 7)


def test_counts_of_nothing_are_nothing() -> None:
    empty = partial_latency(USAGE_EVENTS.schema.empty_table())

    assert merge_latency([empty, empty]) == PARTIAL_SCHEMA.empty_table()


def test_a_backfill_mends_counts_and_leaves_right_ones(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    site.ship(one.block(400))
    site.run()
    warehouse = site.warehouse
    with warehouse.ingesting():
        backfill(InProcess(), warehouse, 0, 1 << 62)
        untouched = warehouse.table(LATENCY_HOURLY).last_batch(APP)
        table = warehouse.table(LATENCY_HOURLY)
        table.commit("mistake", 0, [], removes=table.files())
        backfill(InProcess(), warehouse, 0, 1 << 62)

    assert untouched == -1
    assert found(site) == expected(one)

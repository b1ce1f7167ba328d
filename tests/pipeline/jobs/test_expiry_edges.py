"""What comes over the cut where headers have expired: trimmed, damaged, late, repeated, and seen by two at a time."""

from __future__ import annotations

import datetime
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.broker_counts import count_of, done_until, keep, time_of
from harness.expiring import (
    LATER,
    RETENTION,
    WORKERS,
    assert_all_agree,
    at,
    expire_all,
    rewrite,
    started,
)
from harness.pipeline_site import InProcess, Site, expected_usage
from harness.usage_blocks import HOUR_US, FrontEnd, slow

from quaymaster.frontend.usage.incarnations import Incarnation, lost_block
from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster_pipeline.checks.brokers.broker_counts import check_brokers
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.jobs import content_expiry, expiry
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.expiry import expire
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.jobs.retention import Retention
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.feed import Message
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.schemas import EXPIRED_BLOCKS, LOSSES, TABLES, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

DAY = datetime.timedelta(days=1)
DAY_US = 24 * HOUR_US


class TrimmedFeed:
    """Blocks in memory, of which the queue has let go of the first ones."""

    identity = "trimmed"

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.first = 0

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {0: (self.first, len(self.blocks))}

    def reader(self) -> TrimmedFeed:
        return self

    def read(self, partition: int, first: int, end: int) -> Iterator[Message]:
        return (Message(offset, self.blocks[offset]) for offset in range(first, end))

    def mark(self, positions: Mapping[int, int]) -> dict[str, Any]:
        return {}

    def check_mark(self, mark: Mapping[str, Any]) -> None:
        pass

    def commit(self, positions: Mapping[int, int]) -> None:
        pass


class TrimmedSite(Site):
    """Tables of such a feed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.trimmed = TrimmedFeed()

    def ship(self, *blocks: bytes) -> None:
        self.trimmed.blocks += blocks

    def pipeline(
        self, warehouse: Warehouse, *, now: datetime.datetime = LATER, workers: Workers | None = None
    ) -> Pipeline:
        return Pipeline(workers or InProcess(), warehouse, self.trimmed, clock=lambda: now)


def test_headers_expire_before_a_stretch_that_the_queue_had_lost(tmp_path: Path) -> None:
    site, one = TrimmedSite(tmp_path), slow("a")
    for day in (23, 24):
        site.ship(one.block(48))
        site.run(now=at(day))
    site.ship(FrontEnd("x").block(0))
    site.trimmed.first = 3
    site.ship(one.block(48))
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(25))

    expired = expire_all(site, at(23) + 101 * DAY)

    assert (expired.headers, expired.refusals) == (1, ())
    assert_all_agree(site)


def test_a_damaged_block_that_has_expired_is_still_one_that_a_later_one_may_name(tmp_path: Path) -> None:
    site, one = Site(tmp_path), slow("a")
    site.ship(one.block(48))
    life = one.block(0)
    site.ship(life[:60] + bytes([life[60] ^ 0xFF]) + life[61:])
    site.run(now=at(23))
    for day in (24, 25):
        site.ship(one.block(48))
        site.run(now=at(day))
    close_days(WORKERS, site.warehouse, at(25))

    first = expire_all(site, at(23) + 101 * DAY)
    assert_all_agree(site)
    second = expire_all(site, at(24) + 101 * DAY)

    assert (first.headers, second.headers, second.refusals) == (2, 1, ())
    assert_all_agree(site)


def test_a_disk_that_was_given_up_comes_back_after_the_seal_has_expired(tmp_path: Path) -> None:
    site, one, before = Site(tmp_path), slow("a"), slow("b")
    site.ship(one.block(32), before.block(4), before.block(0, seal=Seal(1, 4, "stopped")))
    site.run(now=at(23))
    gone = slow("b", incarnation=2, previous=before.previous)
    site.ship(lost_block("b", Incarnation(3, gone.time_us, seals=2), "eu-west-1").data, one.block(32))
    site.run(now=at(24))
    site.ship(one.block(32))
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(25))
    assert expire_all(site).headers == 5

    gone.time_us += 40 * HOUR_US
    site.ship(gone.block(5), gone.block(5))
    site.run(now=LATER)

    assert site.usage() == expected_usage(one, before, gone)
    assert_all_agree(site)


def test_the_first_block_of_an_incarnation_comes_after_a_later_one_has_expired(tmp_path: Path) -> None:
    site, one, late = Site(tmp_path), slow("a"), slow("b")
    site.ship(one.block(24))
    site.run(now=at(23))
    one.time_us += 40 * HOUR_US
    site.ship(one.block(0))
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(25))
    first, second = late.block(5), late.block(5)
    site.ship(second)
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(26), takes_late=True)
    assert expire_all(site, at(28) + 101 * DAY).headers == 3

    site.ship(first)
    site.run(now=LATER)

    assert site.usage() == expected_usage(one, late)
    assert_all_agree(site)


def compared(site: Site, one: FrontEnd, *, more: int = 0) -> list[tuple[int, int]]:
    """Compare what brokers had counted an hour ago; return what was missing, and what of that nothing explains."""
    count_us = one.time_us - HOUR_US
    keep(site, count_of(done_until(count_us, one), more=more), count_us)
    found = check_brokers(site.warehouse, coverage_of(site.warehouse), now=time_of(one.time_us))
    assert found is not None
    return [(total.missing, total.difference) for total in found.totals]


def test_brokers_that_could_not_be_asked_while_requests_expired_are_compared_from_now_on(
    tmp_path: Path,
) -> None:
    site, one = Site(tmp_path), slow("a")
    site.ship(one.block(0), one.block(48))
    site.run(now=time_of(one.time_us))
    before = compared(site, one)
    for _ in range(3):
        site.ship(one.block(48))
        site.run(now=time_of(one.time_us))
    close_days(WORKERS, site.warehouse, time_of(one.time_us))
    one.time_us += 110 * DAY_US
    site.ship(one.block(0))
    site.run(now=time_of(one.time_us))
    assert expire_all(site, time_of(one.time_us)).requests > 48

    one.time_us += DAY_US // 2
    site.ship(one.block(20))
    site.run(now=time_of(one.time_us))
    after = compared(site, one)

    assert (before, after) == ([(0, 0)] * 2, [(0, 0)] * 2)


def test_a_block_that_comes_again_explains_no_messages_that_are_missing(tmp_path: Path) -> None:
    site, one = Site(tmp_path), slow("a")
    first = one.block(48)
    site.ship(FrontEnd("z").block(0, seal=Seal(1, 0, "stopped")), first)
    site.run(now=time_of(one.time_us))
    compared(site, one)
    one.time_us += 2 * DAY_US
    site.ship(one.block(2))
    site.run(now=time_of(one.time_us))
    close_days(WORKERS, site.warehouse, time_of(one.time_us))
    one.time_us += 110 * DAY_US
    site.ship(one.block(0))
    site.run(now=time_of(one.time_us))
    compared(site, one)
    assert expire_all(site, time_of(one.time_us)).headers == 2

    one.time_us += DAY_US // 2
    site.ship(one.block(20), first)
    site.run(now=time_of(one.time_us))

    assert compared(site, one, more=20)[0] == (20, 20)
    assert site.warehouse.table(LOSSES).rows == 0


def test_two_that_let_headers_expire_at_a_time_refuse_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, *_ = started(tmp_path)
    run = site.warehouse
    for spec in TABLES:
        run.table(spec)

    def after_another(workers: Workers, warehouse: Warehouse, *given: Any, **named: Any) -> Any:
        if warehouse is run:
            expire(WORKERS, site.warehouse, lambda: at(23) + 101 * DAY, RETENTION)
        return content_expiry.expire_content(workers, warehouse, *given, **named)

    monkeypatch.setattr(expiry, "expire_content", after_another)
    expired = expire(WORKERS, run, lambda: LATER, RETENTION)

    assert (expired.headers, expired.refusals) == (3, ())
    assert_all_agree(site)


@pytest.mark.parametrize("why", ["content is kept for longer", "a clock was ahead"])
def test_days_whose_requests_are_there_are_compared_and_summed_up(tmp_path: Path, why: str) -> None:
    site, one, two = Site(tmp_path), slow("a"), slow("b")
    site.ship(one.block(24), one.block(0, seal=Seal(1, 24, "stopped")))
    site.run(now=at(23))
    if why == "a clock was ahead":
        ahead = at(23).replace(year=2028)
        close_days(WORKERS, site.warehouse, ahead)
        expire(WORKERS, site.warehouse, lambda: ahead, Retention())
    two.time_us += 3 * DAY_US
    site.ship(two.block(48))
    now = at(25) + 60 * DAY
    site.run(now=now)
    close_days(WORKERS, site.warehouse, now, takes_late=True)
    if why != "a clock was ahead":
        expire(WORKERS, site.warehouse, lambda: now, Retention(content_days=35, usage_days=2))
    rows = site.warehouse.table(USAGE_HOURLY).read().to_pylist()
    (row, *_) = (row for row in rows if str(row["usage_date"]) == "2026-11-26")
    row["messages"] += 5

    rewrite(site, USAGE_HOURLY, rows)

    assert any("silver says" in found.reason for found in verify(WORKERS, site.warehouse).breaks)
    assert len(backfill(WORKERS, site.warehouse, 0, 1 << 62).replaced) == 1


def test_requests_do_not_expire_while_hours_are_not_what_they_give(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    rows = site.warehouse.table(USAGE_HOURLY).read().to_pylist()
    one = rows[0]
    other = next(row for row in rows if row["account_id"] != one["account_id"])
    one["messages"] += 5
    other["messages"] -= 5
    rewrite(site, USAGE_HOURLY, rows)

    refused = expire_all(site)
    backfill(WORKERS, site.warehouse, 0, 1 << 62)
    expired = expire_all(site)

    assert (refused.requests, refused.headers) == (0, 0)
    (refusal,) = refused.refusals
    assert "silver says" in refusal
    assert (expired.requests, expired.headers) == (144, 6)
    assert_all_agree(site)


def test_verify_tells_of_hours_put_into_an_expired_day_that_had_none(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    expire_all(site)
    site.ship(slow("c").block(10))
    site.run(now=LATER)
    rows = site.warehouse.table(USAGE_HOURLY).read().to_pylist()
    row = next(row for row in rows if str(row["usage_date"]) == "2026-11-22" and row["last_batch"] < 2)
    row["usage_date"] = datetime.date(2026, 11, 19)
    row["hour"] -= 3 * DAY

    rewrite(site, USAGE_HOURLY, rows)

    assert any("2026-11-19: requests is" in one.reason for one in verify(WORKERS, site.warehouse).breaks)


def test_what_a_killed_expiry_left_is_not_compacted_with_blocks_of_the_same_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = started(tmp_path)
    commit = Table.commit

    def killed(table: Table, *given: Any, **named: Any) -> bool:
        done = commit(table, *given, **named)
        if table.spec is EXPIRED_BLOCKS:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            expire_all(site)
    for _ in range(2):  # by a clock that is right again
        site.ship(one.block(4), two.block(4))
        site.run(now=at(25))

    compact(WORKERS, site.warehouse, at(25))

    assert assert_all_agree(site).expired_headers == 6


def test_a_sign_of_life_beyond_a_gap_comes_again_after_it_has_expired(tmp_path: Path) -> None:
    site, one, late = Site(tmp_path), slow("a"), slow("b")
    site.ship(one.block(24))
    site.run(now=at(23))
    one.time_us += 60 * HOUR_US
    site.ship(one.block(0))
    site.run(now=at(27))
    close_days(WORKERS, site.warehouse, at(27))
    first, _, life = late.block(4), late.block(4), late.block(0)
    site.ship(first, life)
    site.run(now=at(28))
    close_days(WORKERS, site.warehouse, at(28), takes_late=True)
    assert expire_all(site, at(28) + 101 * DAY).headers == 4

    site.ship(life)
    site.run(now=LATER)

    assert_all_agree(site)


def test_a_disk_that_comes_back_costs_memory_of_its_blocks_and_not_of_its_sequences(tmp_path: Path) -> None:
    site, one = Site(tmp_path), slow("a")
    first, _, last = blocks = one.block(24), one.block(0, dropped=4_000_000), one.block(24)
    site.ship(*blocks)
    site.run(now=at(23))
    one.time_us += 60 * HOUR_US
    site.ship(one.block(0))
    site.run(now=at(27))
    close_days(WORKERS, site.warehouse, at(27))
    expire_all(site, at(27) + 101 * DAY)
    site.ship(first, last)

    tracemalloc.start()
    try:
        site.run(now=LATER)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 64 << 20  # a number for each sequence would be 128 MiB
    assert_all_agree(site)

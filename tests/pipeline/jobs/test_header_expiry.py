"""Requests of closed days and headers of their blocks expire, and all that is known without them stays known."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from harness.expiring import (
    LATER,
    WORKERS,
    assert_all_agree,
    at,
    expire_all,
    next_days,
    rewrite,
    rows_of,
    started,
)
from harness.pipeline_site import Site, expected_usage
from harness.usage_blocks import FrontEnd, slow

from quaymaster.frontend.usage.incarnations import Incarnation, lost_block
from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster_pipeline.audit.verification import verify_chains
from quaymaster_pipeline.checks.brokers.broker_counts import QueueCount, check_brokers, write_counts
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.expiry import expire
from quaymaster_pipeline.jobs.retention import Retention
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.expired import expired_blocks
from quaymaster_pipeline.warehouse.errors import UsageHasExpired
from quaymaster_pipeline.warehouse.schemas import (
    BLOCK_MARKS,
    BLOCKS,
    CLOSE_HEADS,
    EXPIRED_BLOCKS,
    QUARANTINE,
    USAGE_EVENTS,
    USAGE_HOURLY,
)
from quaymaster_pipeline.warehouse.tables import Table


def test_requests_and_headers_of_closed_days_expire_and_sums_stay(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    early = expire_all(site, LATER - datetime.timedelta(days=5))
    had = rows_of(site, USAGE_EVENTS)

    expired, again = expire_all(site), expire_all(site)

    assert (early.requests, early.headers) == (0, 0)
    assert (expired.requests, expired.headers, expired.refusals) == (144, 6, ())
    assert (again.requests, again.headers) == (0, 0)
    assert rows_of(site, USAGE_EVENTS) == had - 144
    assert rows_of(site, BLOCKS) == 3
    assert site.usage() == expected_usage(one, two)
    proof = assert_all_agree(site)
    assert (proof.blocks, proof.expired_headers, proof.requests) == (3, 6, 192)


def test_days_that_are_not_closed_do_not_expire_however_old_they_are(tmp_path: Path) -> None:
    site = Site(tmp_path)
    one = slow("a")
    site.ship(one.block(32))
    site.run(now=at(23))

    expired = expire_all(site)

    assert (expired.requests, expired.headers) == (0, 0)
    assert_all_agree(site)


def test_what_comes_late_to_an_expired_day_counts_and_expires_once_it_is_closed(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    late = slow("c")
    expire_all(site)

    site.ship(late.block(10))
    site.run(now=LATER)
    before_close = expire_all(site)
    assert_all_agree(site)
    next_days(site, one, two, late)
    with_content = expire_all(site)
    after_content = expire_all(site, LATER + datetime.timedelta(days=36))

    assert (before_close.requests, with_content.requests) == (0, 0)
    assert after_content.requests >= 10
    assert site.usage() == expected_usage(one, two, late)
    assert_all_agree(site)


def test_chains_go_on_over_the_cut_and_further_days_expire(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    expire_all(site)
    for days in range(3):
        next_days(site, one, two, days=days)
    before = expired_blocks(site.warehouse.table(EXPIRED_BLOCKS))

    expired = expire_all(site, LATER + datetime.timedelta(days=200))

    after = expired_blocks(site.warehouse.table(EXPIRED_BLOCKS))
    assert expired.headers == 7
    assert (after.blocks, after.through > before.through) == (before.blocks + 7, True)
    assert rows_of(site, BLOCKS) == 2
    next_days(site, one, two, days=201)
    proof = assert_all_agree(site)
    assert (proof.blocks, proof.incarnations, proof.gaps_total) == (4, 2, 0)
    assert site.usage() == expected_usage(one, two)


def test_a_block_that_comes_again_after_its_header_has_expired_counts_no_second_time(tmp_path: Path) -> None:
    site = Site(tmp_path)
    one, copied = (slow("a", seed=1) for _ in range(2))
    first = one.block(48)
    site.ship(first)
    site.run(now=at(23))
    site.ship(one.block(48))
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(25))
    expire_all(site)
    assert rows_of(site, BLOCKS) == 1
    usage = site.usage()

    site.ship(first, first, copied.block(60))
    site.run(now=LATER)

    quarantined = site.warehouse.table(QUARANTINE).read(["rule", "reason"]).to_pylist()
    assert site.usage() == usage
    assert {row["rule"] for row in quarantined} == {"repeated"}
    # Once each for the first and for the copied one; of the second that is the first again, nothing is looked at.
    assert sum("has expired" in row["reason"] for row in quarantined) == 48 + 60
    assert_all_agree(site)


def test_a_start_without_ops_coverage_knows_what_had_come_of_blocks_that_expired(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    before = list(coverage_of(site.warehouse).lines())

    expire_all(site)

    assert list(coverage_of(site.warehouse).lines()) == before


def test_nothing_expires_that_is_broken_and_the_refusal_names_it(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    expire(WORKERS, site.warehouse, lambda: LATER, Retention(content_days=35, usage_days=1000))
    blocks = site.warehouse.table(BLOCKS)
    rows = blocks.read().to_pylist()
    (gone,) = [row for row in rows if (row["front_end"], row["seq_lo"]) == ("b", 20)]
    rewrite(site, BLOCKS, [row for row in rows if row is not gone])

    expired = expire_all(site)

    assert expired.headers == 0
    (refusal,) = expired.refusals
    assert "offset" in refusal
    assert rows_of(site, BLOCKS) == 8
    assert rows_of(site, EXPIRED_BLOCKS) == 0


CHANGES = {
    "a range of sequences": ("ranges", [0, 60]),
    "the hash that the next block names": ("head_hashes", [b"x" * 32]),
    "the number of blocks": ("blocks", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_verify_tells_what_was_changed_of_expired_blocks(tmp_path: Path, change: str) -> None:
    site, *_ = started(tmp_path)
    expire_all(site)
    column, value = CHANGES[change]
    rows = site.warehouse.table(EXPIRED_BLOCKS).read().to_pylist()
    rows[0][column] = value

    rewrite(site, EXPIRED_BLOCKS, rows)

    proof = verify(WORKERS, site.warehouse)
    assert proof.breaks
    assert {one.table for one in proof.breaks} <= {BLOCKS.name, EXPIRED_BLOCKS.name}


def test_heads_of_closes_go_with_the_last_headers_that_they_are_of(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    next_days(site, one, two)
    had = rows_of(site, CLOSE_HEADS)

    expire_all(site)
    cut = rows_of(site, CLOSE_HEADS)
    assert_all_agree(site)
    next_days(site, one, two, days=1)
    expire_all(site, LATER + datetime.timedelta(days=200))

    # The first close saw two batches that have expired then; the second a third batch, which has later requests.
    assert (had, cut) == (4, 2)
    assert rows_of(site, CLOSE_HEADS) == 2
    assert_all_agree(site)


def test_no_header_expires_whose_chain_ends_otherwise_than_a_close_recorded(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    rows = site.warehouse.table(CLOSE_HEADS).read().to_pylist()
    rewrite(site, CLOSE_HEADS, [rows[0] | {"sha256": bytes(32)}, *rows[1:]])
    next_days(site, one, two)

    expired = expire_all(site, LATER + datetime.timedelta(days=200))

    assert (expired.headers, len(expired.refusals)) == (0, 1)
    assert "the last block that close 0 had" in expired.refusals[0]


def test_verify_tells_that_the_table_of_expired_blocks_is_gone_or_reaches_too_far(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    expire_all(site)
    table = site.warehouse.table(EXPIRED_BLOCKS)
    note = table.note("expired blocks")

    table.commit("somebody", None, [], shared_notes={"expired blocks": {}})
    gone = verify(WORKERS, site.warehouse)
    table.commit("expired blocks", 2, [], note=note | {"next": {"0": 9}})
    too_far = verify(WORKERS, site.warehouse)

    assert [one.text for one in gone.breaks][:1] == [
        f"{BLOCKS.name}, partition 0, offset 0: it and all up to offset 5 are missing"
    ]
    assert any("when days were closed" in one.reason for one in too_far.breaks)


def test_verify_tells_of_hours_that_were_changed_although_their_requests_have_expired(tmp_path: Path) -> None:
    site, *_ = started(tmp_path)
    expire_all(site)
    rows = site.warehouse.table(USAGE_HOURLY).read().to_pylist()
    rows.sort(key=lambda row: row["hour"])
    # What one hour has more, another day has less: in all it is the same.
    rows[0]["messages"] += 1
    rows[-1]["messages"] -= 1
    rewrite(site, USAGE_HOURLY, rows)

    breaks = [one.text for one in verify(WORKERS, site.warehouse).breaks]

    assert any("2026-11-22: messages is" in text and "over its hours" in text for text in breaks)


def test_lost_spools_stay_known_to_the_audit_when_the_blocks_that_say_so_have_expired(tmp_path: Path) -> None:
    site = Site(tmp_path)
    lost, one = slow("a"), slow("a", incarnation=2)
    site.ship(lost.block(48))
    site.run(now=at(23))
    seal = lost_block("a", Incarnation(2, lost.time_us, seals=1), "eu-west-1").data
    one.time_us = lost.time_us
    site.ship(seal, one.block(48))
    site.run(now=at(24))
    site.ship(one.block(48))
    site.run(now=at(26))
    close_days(WORKERS, site.warehouse, at(26))
    before = verify_chains(WORKERS, site.warehouse)

    expired = expire_all(site, LATER + datetime.timedelta(days=1))

    after = verify_chains(WORKERS, site.warehouse)
    assert expired.headers == 3
    assert (before.breaks, after.breaks) == ([], [])
    rows = site.warehouse.table(EXPIRED_BLOCKS).read(["epoch", "is_lost"]).to_pylist()
    assert {row["epoch"]: row["is_lost"] for row in rows} == {1: True, 2: False}
    assert_all_agree(site)


def test_marks_of_expired_blocks_go_with_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    one = slow("a")
    first, second = one.block(48), one.block(48)
    site.ship(first, first)
    site.run(now=at(23))
    site.ship(second, second)
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(25))
    compact(WORKERS, site.warehouse, at(25))
    assert rows_of(site, BLOCK_MARKS) == 2

    expire_all(site)

    marks = site.warehouse.table(BLOCK_MARKS).read(["state", "seq_lo"]).to_pylist()
    assert marks == [{"state": "duplicate", "seq_lo": 48}]
    assert_all_agree(site)


def test_hours_of_expired_days_are_not_summed_up_again(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    expire_all(site)
    (day_us,) = {int(at(23, hour=0).timestamp()) * 1_000_000}

    with pytest.raises(UsageHasExpired, match="2026-11-24"):
        backfill(WORKERS, site.warehouse, day_us, 1 << 62)
    done = backfill(WORKERS, site.warehouse, 0, 1 << 62)

    assert (done.replaced, done.days_replaced) == ((), ())
    assert site.usage() == expected_usage(one, two)


def test_headers_expire_while_a_pipeline_takes_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = started(tmp_path)
    commit = Table.commit
    ran: list[str] = []

    def interrupted(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is EXPIRED_BLOCKS and not ran:
            ran.append(table.spec.name)
            compact(WORKERS, site.warehouse, LATER)
            site.ship(one.block(40))
            site.run(now=LATER)
        return commit(table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", interrupted)
        expired = expire_all(site)

    assert (len(ran), expired.headers) == (1, 6)
    assert site.usage() == expected_usage(one, two)
    assert_all_agree(site)


def test_an_incarnation_that_is_sealed_and_whole_stays_known(tmp_path: Path) -> None:
    site = Site(tmp_path)
    ended, one = slow("a"), slow("b")
    blocks = [ended.block(48), ended.block(0, seal=Seal(1, 48, "stopped"))]
    site.ship(*blocks, one.block(48))
    site.run(now=at(23))
    site.ship(one.block(48))
    site.run(now=at(25))
    close_days(WORKERS, site.warehouse, at(25))
    expire_all(site)
    usage = site.usage()

    site.ship(*blocks)
    site.run(now=LATER)

    assert site.usage() == usage
    assert ("a", 1) not in [tuple(owner) for owner in coverage_of(site.warehouse).open_incarnations()]
    assert_all_agree(site)


def test_brokers_are_compared_from_now_on_where_usage_that_is_needed_has_expired(tmp_path: Path) -> None:
    site, one, _ = started(tmp_path)
    expire_all(site)
    one.time_us = int(LATER.timestamp()) * 1_000_000
    site.ship(one.block(30), FrontEnd("b", sequence=96).block(0, seal=Seal(1, 96, "stopped")))
    site.run(now=LATER + datetime.timedelta(days=2))
    made, hour = at(1), datetime.timedelta(hours=1)

    def compared(sends: int, counted: datetime.datetime) -> tuple[int, int]:
        count = QueueCount(
            101, "000000000002", "queue-1", sends, 0, 0, True, int(made.timestamp() * 1000), "standard"
        )
        write_counts(site.warehouse, [count], counted, counted)
        found = check_brokers(
            site.warehouse, coverage_of(site.warehouse), now=LATER + datetime.timedelta(days=2)
        )
        assert found is not None
        return found.totals[0].missing, found.totals[0].difference

    before, after = compared(1_000_000, LATER - 2 * hour), compared(1_000_123, LATER - hour)

    assert before == (0, 0)
    assert after == (123, 123)

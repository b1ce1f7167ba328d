"""From blocks to gold: everything once, whatever comes twice, late, or damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.pipeline_site import Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import FrontEnd, context_of_no_queue

from quaymaster_pipeline.warehouse.errors import BrokenTable
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    BLOCK_MARKS,
    BLOCKS,
    QUARANTINE,
    USAGE_DAILY,
    USAGE_EVENTS,
    TableSpec,
)


def test_gold_is_what_was_recorded(tmp_path: Path) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=7_000_000), FrontEnd("b")
    site.ship(one.block(500), two.block(800), one.block(0), one.block(700))

    summary = site.run()

    assert site.usage() == expected_usage(one, two)
    assert (summary.rows, summary.blocks, summary.taken) == (2000, 4, 1)
    management = [record for record in one.records + two.records if record.category == "management"]
    assert site.warehouse.table(AUDIT_EVENTS).rows == len(management) > 0
    daily = site.warehouse.table(USAGE_DAILY).read()
    assert sum(daily.column("requests").to_pylist()) == 2000


def test_what_nobody_asked_for_is_not_on_the_account_of_zeros(tmp_path: Path) -> None:
    besides = [
        context_of_no_queue("ListQueues", account, status=status)
        for account, status in (("", 403), ("000000000000", 200))
    ]
    site, one = Site(tmp_path), FrontEnd("a", besides=tuple(besides))
    site.ship(one.block(500))

    site.run()

    usage = site.usage()
    assert usage == expected_usage(one)
    assert {key[0] for key in usage if key[2] == "ListQueues"} == {"", "000000000000"}
    assert [line.difference for line in compare_rows(site.warehouse)] == [0] * 5


def test_a_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(50))
    site.run()
    versions = [site.warehouse.table(spec).version for spec in (BLOCKS, USAGE_EVENTS, BLOCK_MARKS)]

    summary = site.run()

    assert summary.batches == []
    assert versions == [site.warehouse.table(spec).version for spec in (BLOCKS, USAGE_EVENTS, BLOCK_MARKS)]


@pytest.mark.parametrize("spec", [BLOCKS, USAGE_EVENTS], ids=["bronze", "silver"])
def test_tables_of_which_one_went_back_are_refused(tmp_path: Path, spec: TableSpec) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    for _ in range(3):
        site.ship(one.block(5))
        site.run()
    shutil.rmtree(site.warehouse.place(spec).uri)

    with pytest.raises(BrokenTable, match=rf"{spec.name} is broken: .* has 3 batches, and it has 0"):
        site.run()


def test_later_batches_are_added_to_their_hours(tmp_path: Path) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    for rows in (100, 1, 300, 77):
        site.ship(one.block(rows), two.block(rows * 2))
        site.run()

    assert site.usage() == expected_usage(one, two)


def test_blocks_that_come_again_count_once(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    blocks = [one.block(50), one.block(60), one.block(70)]
    site.ship(blocks[1], blocks[0], blocks[1])
    site.run()
    site.ship(blocks[0], blocks[2], blocks[2])
    site.run()

    assert site.usage() == expected_usage(one)
    rows = site.warehouse.table(BLOCKS).read(["rows"]).column("rows").to_pylist()
    assert sum(rows) == 50 + 60 + 70 + 60 + 50 + 70
    states = site.warehouse.table(BLOCK_MARKS).read(["state"]).column("state").to_pylist()
    assert states == ["duplicate"] * 3


def test_rows_of_overlapping_blocks_are_told_apart_one_by_one(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", seed=1)
    first = one.block(50)
    # The same records in other blocks, as after a crash that lost where a block ended; and another disk's records.
    again, other = FrontEnd("a", seed=1), FrontEnd("a", seed=2)
    longer = again.block(50)
    site.ship(first)
    site.run()
    site.ship(other.block(30), longer)
    site.run()

    quarantined = site.warehouse.table(QUARANTINE).read(["rule", "sequence"]).to_pylist()
    assert site.usage() == expected_usage(one)
    assert {row["rule"] for row in quarantined} == {"identity"}
    assert len(quarantined) == 30


def test_a_damaged_block_goes_to_quarantine_and_leaves_a_gap(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    good, bad, last = one.block(50), one.block(60), one.block(70)
    site.ship(good, bad[:-1] + bytes([bad[-1] ^ 1]), last)
    warehouse = site.warehouse
    with warehouse.ingesting():
        pipeline = site.pipeline(warehouse)
        pipeline.catch_up()

    (row,) = site.warehouse.table(QUARANTINE).read().to_pylist()
    assert row["rule"] == "block"
    assert (row["log_offset"], row["block_row"]) == (1, None)
    assert [(gap.seq_lo, gap.seq_hi) for gap in pipeline.coverage.gaps()] == [(50, 110)]
    assert site.warehouse.table(USAGE_EVENTS).rows == 120

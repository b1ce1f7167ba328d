"""Silver takes what bronze has and it has not, and commits nothing that does not add up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.forged_blocks import forged
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.usage import bronze, gold, silver
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.requests import Opened, request_rows
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import BLOCKS, QUARANTINE, USAGE_EVENTS, USAGE_HOURLY


def take_into_bronze(site: Site) -> None:
    """Take what is there into bronze alone, as a run does that is killed then."""
    warehouse = site.warehouse
    with warehouse.ingesting():
        coverage = bronze.coverage_of(warehouse)
        assert bronze.take_batch(InProcess(), warehouse, FileFeed(site.feed), coverage, NOW) is not None


def test_several_batches_of_bronze_become_one_of_silver_and_of_gold(tmp_path: Path) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a", seed=1), FrontEnd("b")
    blocks = [one.block(30), two.block(40), one.block(50)]
    again, other = FrontEnd("a", seed=1), FrontEnd("a", seed=2)
    longer = again.block(60)
    for shipped in (blocks[:1], [blocks[1], blocks[0]], [longer, other.block(20)], blocks[2:]):
        site.ship(*shipped)
        take_into_bronze(site)

    summary = site.run()

    assert [(batch.layer, batch.batch_id) for batch in summary.batches] == [("silver", 3), ("gold", 3)]
    assert site.warehouse.table(BLOCKS).last_batch(bronze.APP) == 3
    assert site.warehouse.table(USAGE_HOURLY).last_batch(gold.APP) == 3
    sequences = {(record.front_end, record.sequence) for record in one.records + two.records}
    rows = site.warehouse.table(USAGE_EVENTS).read(["front_end", "epoch", "sequence"]).to_pylist()
    assert sorted((row["front_end"], row["sequence"]) for row in rows) == sorted(sequences)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)


def test_rows_that_cannot_be_read_though_the_block_came_whole_go_to_quarantine_with_their_counts(
    tmp_path: Path,
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    good = one.block(20)
    bad = forged(one.block(30), lambda rows: setattr(rows, "latency", b"x" + rows.latency[1:]))
    site.ship(good, bad)

    site.run()

    (row,) = site.warehouse.table(QUARANTINE).read().to_pylist()
    assert (row["rule"], row["block_row"], row["raw"]) == ("block", None, bad)
    assert "cannot be read" in row["reason"]
    (rows, *_) = compare_notes(site.warehouse)
    assert (rows.blocks, rows.quarantine, rows.silver, rows.difference) == (50, 30, 20, 0)


def test_a_batch_that_does_not_add_up_is_not_committed_and_bronze_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(20))
    site.run()

    def losing_one(opened: Sequence[Opened]) -> Any:
        return request_rows(opened).slice(1)

    site.ship(one.block(30))
    with monkeypatch.context() as patched:
        patched.setattr("quaymaster_pipeline.usage.silver.request_rows", losing_one)
        with pytest.raises(SumsDiffer, match="29 rows of 30 in the blocks of this batch"):
            site.run()
        site.ship(one.block(10))
        with pytest.raises(SumsDiffer):
            site.run()
    batches = [
        table.last_batch(app)
        for table, app in (
            (site.warehouse.table(BLOCKS), bronze.APP),
            (site.warehouse.table(USAGE_EVENTS), silver.APP),
        )
    ]
    site.run()

    assert batches == [2, 0]
    assert site.usage() == expected_usage(one)


def test_a_block_that_bronze_lost_stops_silver(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(20), one.block(30))
    take_into_bronze(site)
    table = site.warehouse.table(BLOCKS)
    table.commit("somebody", 0, table.write("x", table.read().slice(1)), removes=table.files())

    with pytest.raises(SumsDiffer, match="30 of 50 in all"):
        site.run()

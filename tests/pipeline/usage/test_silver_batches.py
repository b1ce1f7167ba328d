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
from quaymaster_pipeline.usage import backlogs, gold, silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.requests import Opened, request_rows
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import BLOCKS, QUARANTINE, USAGE_EVENTS, USAGE_HOURLY


def take_into_bronze(site: Site) -> None:
    """Take what is there into bronze alone, as a run does that is killed then."""
    warehouse = site.warehouse
    with warehouse.ingesting():
        coverage = coverage_of(warehouse)
        assert take_batch(InProcess(), warehouse, FileFeed(site.feed), coverage, NOW) is not None


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
    assert site.warehouse.table(BLOCKS).last_batch(BRONZE) == 3
    assert site.warehouse.table(USAGE_HOURLY).last_batch(gold.APP) == 3
    sequences = {(record.front_end, record.sequence) for record in one.records + two.records}
    rows = site.warehouse.table(USAGE_EVENTS).read(["front_end", "epoch", "sequence"]).to_pylist()
    assert sorted((row["front_end"], row["sequence"]) for row in rows) == sorted(sequences)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)


def test_a_backlog_is_taken_in_parts_and_each_adds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "ROWS_OF_TURN", 70)
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    for rows in (30, 40, 200, 10, 20):
        site.ship(one.block(rows))
        take_into_bronze(site)

    summary = site.run()

    taken = [(batch.batch_id, batch.rows) for batch in summary.batches if batch.layer == silver.APP]
    assert taken == [(1, 70), (2, 200), (4, 30)]
    assert site.usage() == expected_usage(one)
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5


def test_a_part_of_a_backlog_that_does_not_add_up_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "ROWS_OF_TURN", 30)
    site, one = Site(tmp_path), FrontEnd("a")
    for _ in range(2):
        site.ship(one.block(30))
        take_into_bronze(site)
    table = site.warehouse.table(BLOCKS)
    (lost, *_) = sorted(table.files(), key=lambda file: file.bounds["batch_id"])
    table.commit("vandal", 0, [], removes=[lost])

    with pytest.raises(SumsDiffer, match="0 of 30 in all"):
        site.run()

    assert site.warehouse.table(USAGE_EVENTS).last_batch(silver.APP) == -1


def test_few_stops_are_noted_of_a_long_backlog_and_the_last_batch_is_one() -> None:
    stops: list[backlogs.Stop] = []
    for batch_id in range(1_000):
        stops = backlogs.stops_ahead(stops, -1, batch_id, {"rows": 10 * (batch_id + 1)})
        assert stops[-1] == {"batch": batch_id, "rows": 10 * (batch_id + 1)}
        assert len(stops) <= backlogs.AHEAD_MAX

    assert backlogs.stops_ahead(stops, 999, 1_000, {"rows": 10_010}) == [{"batch": 1_000, "rows": 10_010}]
    first = backlogs.next_stop(stops, 0, 0)
    assert first is not None
    assert first["rows"] <= backlogs.ROWS_OF_TURN


@pytest.mark.parametrize(
    ("first", "rows_before", "batch"), [(0, 0, 2), (3, 30, 3), (4, 1_000, 5), (6, 1_020, None)]
)
def test_silver_goes_as_far_as_a_turn_may_and_at_least_one_stop(
    monkeypatch: pytest.MonkeyPatch, first: int, rows_before: int, batch: int | None
) -> None:
    monkeypatch.setattr(backlogs, "ROWS_OF_TURN", 30)
    stops = [{"batch": at, "rows": rows} for at, rows in enumerate((10, 20, 30, 1_000, 1_010, 1_020))]

    stop = backlogs.next_stop(stops, first, rows_before)

    assert (None if stop is None else stop["batch"]) == batch


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
            (site.warehouse.table(BLOCKS), BRONZE),
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

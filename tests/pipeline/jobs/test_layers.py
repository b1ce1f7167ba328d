"""Layers whose jobs have tables of their own, as in threads: each continues after its own last batch."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.jobs import jobs
from quaymaster_pipeline.jobs.jobs import BronzeJob, RefineJob, Summary
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze import coverage
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.bronze.marks import commit_marks
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import (
    AUDIT_EVENTS,
    BLOCK_MARKS,
    BLOCKS,
    COVERAGE,
    QUARANTINE,
    USAGE_EVENTS,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table


class ToldFeed(FileFeed):
    """Keeps the positions that it is told."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.told: list[Any] = []

    def commit(self, positions: Any) -> None:
        self.told.append(dict(positions))


def both(site: Site) -> tuple[BronzeJob, RefineJob, ToldFeed]:
    feed = ToldFeed(site.feed)
    refining = RefineJob(InProcess(), site.warehouse, feed, clock=lambda: NOW)
    taking = BronzeJob(InProcess(), site.warehouse, feed, covered=refining.covered(), clock=lambda: NOW)
    return taking, refining, feed


def batches(site: Site) -> tuple[int, int]:
    tables = site.warehouse
    return (
        tables.table(BLOCKS).last_batch(BRONZE) + 1,
        tables.table(USAGE_EVENTS).last_batch(silver.APP) + 1,
    )


def check(site: Site, *front_ends: FrontEnd) -> None:
    assert site.usage() == expected_usage(*front_ends)
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5
    assert compare_notes(site.warehouse) == compare_rows(site.warehouse)


def test_silver_takes_as_one_what_bronze_took_meanwhile_and_then_the_feed_is_told(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    taking, refining, feed = both(site)
    for rows in (10, 20, 30):
        site.ship(one.block(rows))
        assert taking.take(Summary())
        refining.commit_positions()
    assert (batches(site), feed.told) == ((3, 0), [])
    before = refining.coverage.closed_until_us()

    summary = Summary()
    first, second = refining.refine(summary), refining.refine(summary)
    refining.commit_positions()

    assert (first, second, feed.told) == (True, False, [{0: 3}])
    assert [(batch.layer, batch.batch_id) for batch in summary.batches] == [("silver", 2), ("gold", 2)]
    assert before is None
    assert list(refining.coverage.lines()) == list(taking.coverage.lines())
    assert list(refining.coverage.lines()) == list(coverage_of(site.warehouse).lines())
    check(site, one)


def test_coverage_that_is_kept_has_no_block_that_silver_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "COVERAGE_BATCHES", 1)
    site, one = Site(tmp_path), FrontEnd("a")
    taking, refining, _ = both(site)
    refine = silver.refine_batches

    def overtaken(*arguments: Any) -> Any:
        done = refine(*arguments)
        site.ship(one.block(7))
        taking.take(Summary())
        return done

    site.ship(one.block(10))
    taking.take(Summary())
    with monkeypatch.context() as patched:
        patched.setattr(silver, "refine_batches", overtaken)
        refining.refine(Summary())

    (ranges,) = site.warehouse.table(COVERAGE).read().column("ranges").to_pylist()
    assert (batches(site), ranges) == ((2, 1), [0, 10])
    refining.refine(Summary())
    check(site, one)


def test_silver_waits_for_what_is_known_of_the_blocks_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    taking, refining, feed = both(site)
    block = one.block(10)
    site.ship(block)
    taking.take(Summary())
    refining.refine(Summary())
    site.ship(block, one.block(5))
    seen: list[bool] = []

    def overtaken(warehouse: Any) -> None:
        # Between the commit of bronze.blocks and that of ops.block_marks.
        seen.append(refining.refine(Summary()))
        refining.commit_positions()
        commit_marks(warehouse)

    monkeypatch.setattr("quaymaster_pipeline.usage.bronze.batches.commit_marks", overtaken)
    taking.take(Summary())
    after = refining.refine(Summary())

    assert (seen, after, feed.told) == ([False], True, [])
    assert site.warehouse.table(BLOCK_MARKS).rows == 1
    check(site, one)


def test_bronze_reads_the_files_that_upkeep_made_of_those_it_wrote(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    taking, refining, _ = both(site)
    blocks = [one.block(10), one.block(20)]
    for block in blocks:
        site.ship(block)
        taking.take(Summary())
    refining.refine(Summary())
    compact(InProcess(), site.warehouse, NOW, keep_hours=0)
    site.ship(blocks[0])

    taking.take(Summary())
    refining.refine(Summary())

    assert site.warehouse.table(BLOCK_MARKS).read(["state"]).column("state").to_pylist() == ["duplicate"]
    check(site, one)


def test_bronze_takes_nothing_on_top_of_a_batch_that_it_does_not_know(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    taking, _, _ = both(site)
    site.ship(one.block(10))
    site.run()
    site.ship(one.block(20))

    with pytest.raises(CommitConflict, match="another process took batch 0"):
        taking.take(Summary())

    assert batches(site) == (1, 1)


def test_bronze_takes_nothing_on_top_of_such_a_batch_that_silver_has_seen(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    pipeline = site.pipeline(site.warehouse)
    site.ship(one.block(10))
    site.run()
    site.ship(one.block(20))

    with pytest.raises(CommitConflict, match="another process takes batches"):
        pipeline.catch_up()

    assert batches(site) == (1, 1)


def test_a_layer_counts_the_processor_time_of_its_own_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_s = itertools.count()
    clocks = SimpleNamespace(monotonic=lambda: 0.0, thread_time=lambda: float(next(used_s)))
    monkeypatch.setattr(jobs, "time", clocks)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(10))

    done = site.run()

    assert {batch.layer: batch.driver_cpu_s for batch in done.batches} == {
        "bronze": 1.0,
        "silver": 1.0,
        "gold": 1.0,
    }


@pytest.mark.parametrize("last_commit", [QUARANTINE, AUDIT_EVENTS])
@pytest.mark.parametrize("has_noted", [True, False])
def test_what_silver_had_begun_is_taken_again_as_the_same_batch_whatever_bronze_took_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_commit: TableSpec, has_noted: bool
) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    taking, refining, _ = both(site)
    commit = Table.commit

    def killed_after(table: Table, app: str, *given: Any, **named: Any) -> bool:
        is_done = commit(table, app, *given, **named)
        if app == silver.APP and table.spec is last_commit:
            raise KeyboardInterrupt
        return is_done

    site.ship(one.block(40), one.block(30)[:-9] + b"damaged  ")
    assert taking.take(Summary())
    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed_after)
        with pytest.raises(KeyboardInterrupt):
            refining.refine(Summary())
    if not has_noted:
        monkeypatch.setattr("quaymaster_pipeline.usage.bronze.batches.stops_ahead", lambda *of: [])
    site.ship(one.block(50), one.block(20)[:-9] + b"damaged  ")
    assert taking.take(Summary())

    site.run()

    assert batches(site) == (2, 2)
    events = site.warehouse.table(AUDIT_EVENTS).read(["front_end", "epoch", "sequence"])
    assert events.num_rows == len(set(map(str, events.to_pylist()))) > 0
    assert site.warehouse.table(QUARANTINE).rows == 2
    assert [found.difference for found in compare_rows(site.warehouse)] == [0] * 5

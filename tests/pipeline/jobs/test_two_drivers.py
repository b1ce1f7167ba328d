"""Two drivers over one warehouse, as may be where nothing locks: of what both plan, each request counts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.jobs.jobs import BronzeJob, RefineJob, Summary
from quaymaster_pipeline.usage import gold, partial_sums, silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.tasks import Answers
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Warehouse


class Overtaken(InProcess):
    """After the tasks of its first job, and before what follows is committed, something else happens."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._acts = [act]

    def over(self, *arguments: Any) -> Answers:
        answers = super().over(*arguments)
        if self._acts:
            self._acts.pop()()
        return answers


def two_batches(site: Site, front_end: FrontEnd) -> None:
    """Take two batches into bronze that silver does not have."""
    feed = FileFeed(site.feed)
    taking = BronzeJob(InProcess(), site.warehouse, feed, clock=lambda: NOW)
    for rows in (10, 20):
        site.ship(front_end.block(rows))
        assert taking.take(Summary())


def as_of_the_first_batch(site: Site) -> Warehouse:
    """Return the tables as who planned by the first batch of bronze has them."""
    warehouse = site.warehouse.another()
    blocks = warehouse.table(BLOCKS)
    blocks._delta = DeltaTable(blocks.place.uri, version=1)
    assert blocks.last_batch(BRONZE) == 0
    return warehouse


def test_a_driver_that_planned_by_more_batches_gives_way_to_one_that_was_first_with_some_of_them(
    tmp_path: Path,
) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    two_batches(site, one)
    other = as_of_the_first_batch(site)
    overtaken = Overtaken(lambda: silver.refine_batches(InProcess(), other))
    job = RefineJob(overtaken, site.warehouse, FileFeed(site.feed), clock=lambda: NOW)

    with pytest.raises(CommitConflict):
        job.refine(Summary())

    assert site.warehouse.table(USAGE_EVENTS).rows == 10
    job.reload()
    while job.refine(Summary()):
        pass
    assert site.warehouse.table(USAGE_EVENTS).rows == 30
    assert site.usage() == expected_usage(one)


def test_a_driver_that_planned_by_fewer_batches_gives_way_to_one_that_was_first_with_more(
    tmp_path: Path,
) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    two_batches(site, one)
    behind, ahead = as_of_the_first_batch(site), site.warehouse

    with pytest.raises(CommitConflict):
        silver.refine_batches(Overtaken(lambda: silver.refine_batches(InProcess(), ahead)), behind)

    assert site.warehouse.table(USAGE_EVENTS).rows == 30


def test_hours_that_two_drivers_complete_after_a_kill_are_added_once(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=20_000_000)
    two_batches(site, one)
    # Killed after its commits to silver, twice.
    silver.refine_batches(InProcess(), as_of_the_first_batch(site))
    silver.refine_batches(InProcess(), site.warehouse)
    one_batch, both = site.warehouse, site.warehouse

    overtaken = Overtaken(lambda: partial_sums.complete(InProcess(), one_batch, 0))
    with pytest.raises(CommitConflict):
        partial_sums.complete(overtaken, both, 1)

    both.refresh()
    partial_sums.complete(InProcess(), both, 1)
    assert both.table(gold.HOURLY.spec).last_batch(gold.APP) == 1
    assert site.usage() == expected_usage(one)

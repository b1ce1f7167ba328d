"""`pipeline verify` asks the usage queue how far the tables have been: an end that was cut off with all notes shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.pipeline_site import NOW, InProcess, Site
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.queue_checks import compare_with_queue, judge_ends
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.feed import QUEUE_FEED, FileFeed

IDENTITY = f"{QUEUE_FEED}quaymaster-usage:7"


@dataclass
class ToldQueue:
    """A usage queue of one partition that has so many blocks, and was told that the tables have some of them."""

    end: int
    told: int | None
    identity: str = IDENTITY

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {0: (0, self.end)}

    def committed(self) -> dict[int, int]:
        return {} if self.told is None else {0: self.told}


class QueuedFiles(FileFeed):
    """Files that pass for the usage queue."""

    @property
    def identity(self) -> str:
        return IDENTITY


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Give tables that have three blocks of the queue."""
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(*(one.block(10) for _ in range(3)))
    warehouse = site.warehouse
    with warehouse.ingesting():
        Pipeline(InProcess(), warehouse, QueuedFiles(site.feed), clock=lambda: NOW).catch_up()
    return site


@pytest.mark.parametrize(
    ("queue", "found"),
    [
        (ToldQueue(3, 3), None),
        (ToldQueue(5, 2), None),  # a run is about to tell it
        (ToldQueue(3, None), None),
        (ToldQueue(9, 5), (3, "it and all up to offset 4 are missing: the usage queue was told")),
        (ToldQueue(2, 2), (2, "it and all up to offset 2 are not in the usage queue: they were put in")),
        (ToldQueue(9, 9, "queue:quaymaster-usage:8"), None),
    ],
)
def test_tables_end_where_the_usage_queue_says(
    site: Site, queue: ToldQueue, found: tuple[int, str] | None
) -> None:
    breaks = compare_with_queue(site.warehouse, queue)

    assert [one.log_offset for one in breaks] == ([] if found is None else [found[0]])
    assert found is None or found[1] in breaks[0].reason


def test_a_warehouse_without_blocks_is_behind_a_queue_that_was_told_of_some(tmp_path: Path) -> None:
    breaks = compare_with_queue(Site(tmp_path).warehouse, ToldQueue(9, 4))

    assert [one.text for one in breaks] == [
        "bronze.blocks, partition 0, offset 1: it and all up to offset 3 are missing: the usage queue was told that "
        "they were there"
    ]


def test_each_partition_is_compared() -> None:
    bounds = {0: (1, 5), 1: (1, 9), 2: (1, 4), 3: (1, 2)}

    breaks = judge_ends({0: 5, 1: 5, 2: 5}, {1: 7, 3: 2, 4: 1}, bounds)

    assert [(one.log_partition, one.log_offset) for one in breaks] == [(1, 5), (2, 4), (3, 1)]


def test_what_the_queue_let_go_of_before_the_tables_had_it_is_no_break() -> None:
    # Of a group that is behind what it keeps, a queue says the first offset that it keeps.
    assert list(judge_ends({0: 100}, {0: 5000, 1: 40}, {0: (5000, 5000), 1: (40, 44)})) == []

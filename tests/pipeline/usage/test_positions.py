"""What readers are told of how far the tables are: never more than all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import NOW, InProcess, Site
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.usage.feed import FeedChanged, FileFeed
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse


class ToldFeed(FileFeed):
    """Keeps what it is told, and how many batches gold had then."""

    def __init__(self, directory: Path, warehouse: Warehouse) -> None:
        super().__init__(directory)
        self._tables = warehouse
        self.told: list[tuple[int, int]] = []

    def commit(self, positions: Mapping[int, int]) -> None:
        self.told.append((positions[0], self._tables.table(USAGE_DAILY).last_batch("gold")))


def run(site: Site) -> ToldFeed:
    warehouse = site.warehouse
    feed = ToldFeed(site.feed, warehouse)
    with warehouse.ingesting():
        Pipeline(InProcess(), warehouse, feed, clock=lambda: NOW).catch_up()
    return feed


def test_the_offset_of_a_batch_is_told_when_all_tables_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "BATCH_BLOCKS_MAX", 2)
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(*(one.block(3) for _ in range(5)))

    feed = run(site)

    assert feed.told == [(2, 0), (4, 1), (5, 2)]


def test_a_run_tells_what_a_killed_one_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(3), one.block(4))
    commit = Table.commit

    def killed_at_gold(table: Table, *arguments: Any, **named: Any) -> bool:
        if table.spec is USAGE_DAILY:
            raise KeyboardInterrupt
        return commit(table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", killed_at_gold)
        with pytest.raises(KeyboardInterrupt):
            run(site)
    feed = run(site)

    assert feed.told == [(2, 0)]


def test_another_feed_is_not_told_of_this_ones_offsets(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(3))
    run(site)
    site.feed = tmp_path / "other"
    site.ship(one.block(4))
    warehouse = site.warehouse
    feed = ToldFeed(site.feed, warehouse)

    with warehouse.ingesting(), pytest.raises(FeedChanged):
        Pipeline(InProcess(), warehouse, feed, clock=lambda: NOW).catch_up()

    assert feed.told == []

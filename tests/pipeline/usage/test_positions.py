"""What readers are told of how far the tables are: never more than all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import NOW, InProcess, Site
from harness.usage_blocks import FrontEnd, write_blocks

from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.usage.feed import FeedChanged, FileFeed
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_DAILY
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


def take(site: Site) -> int:
    warehouse = site.warehouse
    with warehouse.ingesting():
        return Pipeline(InProcess(), warehouse, site.source, clock=lambda: NOW).catch_up().rows


def test_a_file_whose_name_is_before_those_taken_is_refused_by_its_name(tmp_path: Path) -> None:
    site, one, other = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    write_blocks(site.feed, "0002", one.block(3), one.block(4))
    write_blocks(site.feed, "0005", one.block(5))
    assert take(site) == 12
    write_blocks(site.feed, "0001", other.block(7))

    with pytest.raises(FeedChanged, match=r"0001\.blocks is new, and its name is before 0005\.blocks"):
        take(site)
    assert site.warehouse.table(BLOCKS).rows == 3
    (site.feed / "0001.blocks").rename(site.feed / "0006.blocks")

    assert take(site) == 7


@pytest.mark.parametrize(
    "harm", ["two are added", "one is deleted", "one has more blocks", "the last is renamed"]
)
def test_files_that_are_not_those_that_were_taken_are_refused(tmp_path: Path, harm: str) -> None:
    site, one, other = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    for name in ("0002", "0004", "0006"):
        write_blocks(site.feed, name, one.block(3))
    take(site)
    match harm:
        case "two are added":
            write_blocks(site.feed, "0001", other.block(7))
            write_blocks(site.feed, "0003", other.block(7))
        case "one is deleted":
            (site.feed / "0002.blocks").unlink()
        case "one has more blocks":
            with (site.feed / "0002.blocks").open("ab") as file:
                file.write(other.block(7))
        case _:
            (site.feed / "0006.blocks").rename(site.feed / "0007.blocks")

    with pytest.raises(
        FeedChanged, match=r"up to 0006\.blocks.* there were 2: some were added, deleted or changed"
    ):
        take(site)

    assert site.warehouse.table(BLOCKS).rows == 3


def test_a_last_file_that_lost_blocks_hides_no_block_of_the_next_one(tmp_path: Path) -> None:
    site, one, other = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    first = one.block(3)
    write_blocks(site.feed, "0002", first, one.block(4))
    take(site)
    (site.feed / "0002.blocks").unlink()
    write_blocks(site.feed, "0002", first)
    write_blocks(site.feed, "0003", other.block(7))

    with pytest.raises(FeedChanged, match=r"up to 0002\.blocks.* some were added, deleted or changed"):
        take(site)


def test_the_last_file_may_grow_and_empty_files_count_for_nothing(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    write_blocks(site.feed, "0002", one.block(3))
    take(site)
    with (site.feed / "0002.blocks").open("ab") as file:
        file.write(one.block(4))
    write_blocks(site.feed, "0001")

    assert take(site) == 4


def test_positions_that_an_earlier_program_left_count_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(3))
    with monkeypatch.context() as patched:
        patched.setattr(FileFeed, "mark", lambda *_: {})
        take(site)
    site.ship(one.block(4))

    assert take(site) == 4
    write_blocks(site.feed, "0000", one.block(1))
    with pytest.raises(FeedChanged, match=r"0000\.blocks is new"):
        take(site)


def test_a_file_that_comes_while_a_batch_is_read_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, other = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    write_blocks(site.feed, "0002", one.block(3), one.block(4))
    reader = FileFeed.reader

    def late(feed: FileFeed) -> Any:
        write_blocks(site.feed, "0001", other.block(5))
        return reader(feed)

    monkeypatch.setattr(FileFeed, "reader", late)
    warehouse = site.warehouse
    with warehouse.ingesting(), pytest.raises(FeedChanged, match=r"0001\.blocks is new"):
        Pipeline(InProcess(), warehouse, site.source, clock=lambda: NOW).catch_up()

    rows = site.warehouse.table(BLOCKS).read(["front_end"]).to_pylist()
    assert [row["front_end"] for row in rows] == ["a", "a"]

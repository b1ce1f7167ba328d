"""Histories that are made once: each copy is as if it were made there, and none sees what is done to another."""

from __future__ import annotations

from pathlib import Path

from harness.built_once import built_once
from harness.pipeline_site import Site, expected_usage
from harness.usage_blocks import FrontEnd


def test_copies_go_on_from_where_the_history_ended_and_not_from_what_is_done_to_others(
    tmp_path: Path,
) -> None:
    made: list[int] = []

    @built_once
    def shipped(directory: Path, rows: int) -> tuple[Site, FrontEnd]:
        made.append(rows)
        site, one = Site(directory), FrontEnd("a")
        site.ship(one.block(rows))
        site.run()
        site.front_ends = (one,)
        return site, one

    (first, one), (second, another) = (shipped(tmp_path / name, 20) for name in ("first", "second"))
    first.ship(one.block(5))
    first.run()
    third, _ = shipped(tmp_path / "third", 20)
    other, _ = shipped(tmp_path / "other", 30)

    assert made == [20, 30]
    assert [site.root for site in (first, second)] == [
        tmp_path / "first/warehouse",
        tmp_path / "second/warehouse",
    ]
    assert [len(front_end.records) for front_end in (one, another)] == [25, 20]
    assert second.front_ends[0] is another
    for site in (first, second, third, other):
        assert site.usage() == expected_usage(*site.front_ends)
    assert [path.stat().st_mtime_ns for path in sorted(second.root.rglob("*.parquet"))] == [
        path.stat().st_mtime_ns for path in sorted(third.root.rglob("*.parquet"))
    ]

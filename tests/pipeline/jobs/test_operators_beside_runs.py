"""What operators do while a run takes blocks: whoever is second with a commit plans again, and every sum is right."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from harness.built_once import built_once
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd

from quaymaster_pipeline.checks.reconciliation import compare_notes, write_comparisons
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.content_expiry import expire_content
from quaymaster_pipeline.jobs.merge import merge_sums
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.partial_sums import whole_coverage
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    RECONCILIATION,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

LATER = NOW + datetime.timedelta(days=60)

Act = Callable[[Warehouse], Any]


def spoil(warehouse: Warehouse) -> None:
    """Change a sum of gold, as a mistake would."""
    table = warehouse.table(USAGE_HOURLY)
    (first, *_) = table.files()
    rows = table.read(files=[first])
    at = rows.schema.get_field_index("requests")
    wrong = rows.set_column(at, "requests", pc.add(rows.column("requests"), 7))
    table.commit("mistake", 0, table.write("x", wrong), removes=[first])


ACTS: dict[str, Act] = {
    "merge": lambda warehouse: merge_sums(InProcess(), warehouse, LATER),
    "compact": lambda warehouse: compact(InProcess(), warehouse, LATER),
    "expire": lambda warehouse: expire_content(InProcess(), warehouse, LATER),
    "backfill": lambda warehouse: backfill(InProcess(), warehouse, 0, 1 << 62),
    "reconcile": lambda warehouse: write_comparisons(warehouse, compare_rows(warehouse), NOW),
}


@built_once
def started(tmp_path: Path) -> tuple[Site, FrontEnd, FrontEnd]:
    site, one, two = Site(tmp_path), FrontEnd("a", step_us=20_000_000), FrontEnd("b", step_us=9_000_000)
    for _ in range(3):
        site.ship(one.block(60), two.block(40))
        site.run()
    return site, one, two


def commit_after(commits: int, act: Callable[[], None]) -> Callable[..., bool]:
    """Return Table.commit that does `act` once, before the commit after so many; those of `act` do not count."""
    commit = Table.commit
    left = commits
    is_inside = False

    def interrupted(table: Table, *arguments: Any, **named: Any) -> bool:
        nonlocal left, is_inside
        if not is_inside:
            left -= 1
            if left == -1:
                is_inside = True
                act()
                is_inside = False
        return commit(table, *arguments, **named)

    return interrupted


def check(site: Site, *front_ends: FrontEnd) -> None:
    assert site.usage() == expected_usage(*front_ends)
    by_rows = compare_rows(site.warehouse)
    assert [found.difference for found in by_rows] == [0] * 5
    assert compare_notes(site.warehouse) == by_rows
    assert compare_sums(site.warehouse) == []


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("at", range(4))
def test_a_run_goes_on_before_each_commit_of_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    site, one, two = started(tmp_path)
    if name == "backfill":
        spoil(site.warehouse)

    def take_more() -> None:
        site.ship(one.block(30), two.block(20))
        site.run()

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", commit_after(at, take_more))
        ACTS[name](site.warehouse)

    check(site, one, two)


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("at", range(8))
def test_an_operator_is_done_before_each_commit_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    site, one, two = started(tmp_path)
    if name == "backfill":
        spoil(site.warehouse)
    site.ship(one.block(30), two.block(20), one.block(5))

    def operate() -> None:
        # Where gold waits for the batch that is under way, comparing ends so.
        try:
            ACTS[name](Warehouse(site.root))
        except CommitConflict:
            assert name == "reconcile"

    with monkeypatch.context() as patched:
        patched.setattr("quaymaster_pipeline.checks.reconciliation.SETTLE_PAUSE_S", 0)
        patched.setattr(Table, "commit", commit_after(at, operate))
        site.run()

    if name == "backfill":
        backfill(InProcess(), site.warehouse, 0, 1 << 62)
    check(site, one, two)


def test_two_operators_who_do_the_same_leave_what_one_would(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    first, second = site.warehouse, site.warehouse
    for act in ("reconcile", "merge", "compact", "expire"):
        for warehouse in (first, second):
            ACTS[act](warehouse)

    check(site, one, two)
    table = site.warehouse.table(RECONCILIATION)
    assert table.rows == 2 * 5


@pytest.mark.parametrize("spec", [USAGE_HOURLY, USAGE_DAILY], ids=["hours", "days"])
def test_of_two_backfills_one_adds_what_gold_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: TableSpec
) -> None:
    site, one, two = started(tmp_path)
    table = site.warehouse.table(spec)
    table.commit("mistake", 0, [], removes=table.files())

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", commit_after(0, lambda: ACTS["backfill"](site.warehouse)))
        ACTS["backfill"](site.warehouse)

    check(site, one, two)


def test_layers_that_have_other_batches_are_not_compared_by_their_notes(tmp_path: Path) -> None:
    site, one, two = started(tmp_path)
    site.ship(one.block(30))
    warehouse = site.warehouse
    with warehouse.ingesting():
        coverage = coverage_of(warehouse)
        take_batch(InProcess(), warehouse, site.source, coverage, NOW)

        ahead = [found.difference for found in compare_notes(site.warehouse)]
        closed = whole_coverage(site.warehouse).closed_until_us()
        silver.refine_batches(InProcess(), warehouse)
        further = [found.difference for found in compare_notes(site.warehouse)]

    assert ahead == further == [0] * 5
    assert closed is not None
    assert coverage.closed_until_us() is not None
    assert site.warehouse.table(BLOCKS).last_batch(BRONZE) == 3
    assert site.warehouse.table(USAGE_EVENTS).last_batch(silver.APP) == 3
    assert site.warehouse.table(USAGE_HOURLY).last_batch(gold.APP) == 2
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("quaymaster_pipeline.checks.reconciliation.SETTLE_PAUSE_S", 0)
        with pytest.raises(CommitConflict, match="a batch is under way"):
            compare_rows(site.warehouse)
    site.run()
    check(site, one, two)


def test_hours_are_not_closed_by_blocks_that_gold_does_not_have(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a", step_us=60_000_000)
    site.ship(one.block(60))
    site.run()
    before = whole_coverage(site.warehouse).closed_until_us()
    site.ship(one.block(60))
    warehouse = site.warehouse
    with warehouse.ingesting():
        take_batch(InProcess(), warehouse, site.source, coverage_of(warehouse), NOW)

    taken = coverage_of(site.warehouse).closed_until_us()
    whole = whole_coverage(site.warehouse).closed_until_us()

    assert before is not None
    assert taken is not None
    assert (whole, taken > before) == (before, True)

"""What came so far, as it is kept and as it is made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import FrontEnd
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.bronze.coverage_rows import coverage_in, coverage_rows
from quaymaster_pipeline.usage.expired import LINE_COLUMNS
from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, IncarnationId
from quaymaster_pipeline.usage.tasks import Answers
from quaymaster_pipeline.warehouse.schemas import BLOCKS, COVERAGE

OWNER = IncarnationId("a", 1)


PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=8)


@given(PIECES, st.booleans(), st.one_of(st.none(), st.integers(0, 60)))
def test_a_coverage_that_is_kept_is_the_same_again(
    pieces: list[tuple[int, int]], is_sealed: bool, seal_end: int | None
) -> None:
    coverage = Coverage()
    for low, count in pieces:
        coverage.add(BlockRange(OWNER, low, low + count, b"", low * 10))
    if is_sealed:
        coverage.add(BlockRange(IncarnationId("a", 2), 0, 0, b"", 5, OWNER, seal_end))

    again = Coverage.of_lines(list(coverage.lines()))

    assert list(again.lines()) == list(coverage.lines())
    assert (again.gaps(), again.closed_until_us()) == (coverage.gaps(), coverage.closed_until_us())
    assert again.open_incarnations() == coverage.open_incarnations()


@given(
    st.lists(
        st.tuples(
            *(st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 12), st.integers(0, 9)),
            *(st.booleans(), st.one_of(st.none(), st.integers(0, 20))),
        ),
        max_size=16,
    )
)
def test_rows_of_a_coverage_say_what_its_lines_say(
    blocks: list[tuple[str, int, int, int, bool, int | None]],
) -> None:
    coverage = Coverage()
    for name, number, low, count, is_seal, end in blocks:
        sealed = IncarnationId(name, number) if is_seal else None
        owner = IncarnationId(name, number + is_seal)
        coverage.add(BlockRange(owner, low, low + count, b"", low * 10, sealed, end))
    lines = list(coverage.lines())

    rows = coverage_rows(coverage, 7)
    again = coverage_in(rows)

    assert rows.drop_columns("batch_id").to_pylist() == [
        dict(zip(LINE_COLUMNS, line, strict=True)) for line in lines
    ]
    assert set(rows.column("batch_id").to_pylist()) <= {7}
    assert list(again.lines()) == lines
    assert list(again.ended.items()) == list(Coverage.of_lines(lines).ended.items())
    assert again.open_incarnations() == coverage.open_incarnations()
    assert (again.gaps(), again.closed_until_us()) == (coverage.gaps(), coverage.closed_until_us())


def test_a_start_reads_the_headers_of_what_came_since_the_coverage_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster_pipeline.usage.bronze.coverage.COVERAGE_BATCHES", 3)
    site, one, two = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    for _ in range(7):
        site.ship(one.block(3), two.block(2))
        site.run()
    whole = list(coverage_of(site.warehouse).lines())

    kept = site.warehouse.table(COVERAGE)
    blocks = site.warehouse.table(BLOCKS)
    last, files = kept.last_batch("bronze"), len(kept.files())
    # What was there before the coverage was kept is not looked at.
    old = [file for file in blocks.files() if file.bounds["batch_id"][1] <= last]
    blocks.commit("test", 0, [], removes=old)
    without = list(coverage_of(site.warehouse).lines())
    kept.commit("test", 0, [], removes=kept.files())

    assert (last, files, len(old)) == (5, 1, 6)
    assert without == whole
    assert coverage_of(site.warehouse).gaps() != []


def test_a_lost_coverage_is_made_by_tasks_which_answer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    for _ in range(6):
        site.ship(*(front_end.block(3) for _ in range(5) for front_end in (one, two)))
        site.run()
    kept = site.warehouse.table(COVERAGE)
    kept.commit("test", 0, [], removes=kept.files())
    monkeypatch.setattr("quaymaster_pipeline.usage.bronze.coverage.HEADERS_HERE_MAX", 10)
    monkeypatch.setattr("quaymaster_pipeline.usage.bronze.coverage.HEADERS_OF_TASK", 20)
    items: list[str] = []
    added: list[BlockRange] = []
    add = Coverage.add

    class Watched(InProcess):
        def over(self, given: Sequence[str], *more: Any) -> Answers:
            items.extend(given)
            return super().over(given, *more)

    def counted(self: Coverage, block: BlockRange) -> None:
        added.append(block)
        add(self, block)

    monkeypatch.setattr(Coverage, "add", counted)
    coverage = coverage_of(site.warehouse, workers=Watched())

    assert len(items) == 3
    assert len(added) == 2 * len(items)
    assert [coverage.ranges_of(IncarnationId(name, 1)) for name in "ab"] == [[(0, 90)], [(0, 90)]]

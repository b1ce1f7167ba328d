"""Which blocks may have come before, and how they are looked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import NOW, InProcess, Site
from harness.usage_blocks import FrontEnd
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.usage.bronze import stored_blocks
from quaymaster_pipeline.usage.bronze.batches import take_batch
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.usage.bronze.judging import doubtful_owners
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, IncarnationId
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_batches
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TableSpec

OWNER = IncarnationId("a", 1)


def run(low: int, high: int, owner: IncarnationId = OWNER) -> BlockRange:
    return BlockRange(owner, low, high, b"", 0)


PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=8)


@given(PIECES, PIECES)
def test_an_incarnation_is_doubtful_exactly_if_a_sequence_is_there_twice(
    before: list[tuple[int, int]], now: list[tuple[int, int]]
) -> None:
    coverage = Coverage()
    for low, count in before:
        coverage.add(run(low, low + count))
    numbers = Counter(number for low, count in now for number in range(low, low + count))
    known = {number for low, count in before for number in range(low, low + count)}

    doubtful = doubtful_owners(coverage, [run(low, low + count) for low, count in now])

    assert bool(doubtful) == (bool(known & set(numbers)) or any(count > 1 for count in numbers.values()))


def test_blocks_that_may_have_come_before_are_looked_for_once_for_all_front_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, front_ends = Site(tmp_path), [FrontEnd(name) for name in "abcdef"]
    blocks = [front_end.block(count) for count in (3, 4, 5) for front_end in front_ends]
    for at in range(0, len(blocks), 6):
        site.ship(*blocks[at : at + 6])
        site.run()
    files = len(site.warehouse.table(BLOCKS).files())
    opened: list[str] = []

    def counted(place: TablePlace, spec: TableSpec, path: str, *more: Any, **limits: Any) -> Iterator[Any]:
        opened.append(path)
        return read_batches(place, spec, path, *more, **limits)

    monkeypatch.setattr(stored_blocks, "read_batches", counted)
    # The second block of each front end comes again, and so does a part of it as another block.
    again = blocks[6:12]
    for front_end in front_ends:
        front_end.sequence = 5
    overlapping = [front_end.block(4) for front_end in front_ends]
    site.ship(*again, *overlapping)
    warehouse = site.warehouse
    taken = take_batch(InProcess(), warehouse, FileFeed(site.feed), coverage_of(warehouse), NOW)

    assert taken is not None
    assert taken.states == {"duplicate": 6, "overlap": 6}
    assert len(opened) <= InProcess.cores * (files + InProcess.cores)
    assert len(opened) < len(front_ends) * files

"""Runs of blocks cover what the blocks cover."""

from __future__ import annotations

import pyarrow as pa
from harness.usage_blocks import FrontEnd
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.usage.usage_blocks import decode_header
from quaymaster_pipeline.usage.blocks import BLOCK_RANGE_COLUMNS, block_ranges
from quaymaster_pipeline.usage.bronze.runs import merged_runs, runs_of, runs_of_rows, runs_of_table
from quaymaster_pipeline.usage.sequences import Coverage, IncarnationId
from quaymaster_pipeline.warehouse.schemas import BLOCKS


def test_blocks_that_follow_each_other_are_one_run() -> None:
    one, two = FrontEnd("a"), FrontEnd("b")
    headers = [
        decode_header(block)
        for block in (one.block(5), two.block(7), one.block(0), one.block(8), two.block(2))
    ]

    runs = runs_of(reversed(headers))

    assert [(run.owner.front_end, run.seq_lo, run.seq_hi) for run in runs] == [("a", 0, 13), ("b", 0, 9)]
    assert runs[0].low_watermark_us == max(
        header.low_watermark_us for header in headers if header.front_end == "a"
    )


def test_what_is_missing_or_comes_twice_parts_a_run() -> None:
    one = FrontEnd("a")
    first, second, third = (decode_header(one.block(5)) for _ in range(3))

    assert [(run.seq_lo, run.seq_hi) for run in runs_of([first, third])] == [(0, 5), (10, 15)]
    assert len(runs_of([first, second, second, third])) == 2


HEADERS = st.lists(
    st.tuples(
        *(st.sampled_from("ab"), st.integers(1, 2), st.integers(0, 40), st.integers(0, 9)), st.integers(0, 99)
    ),
    max_size=12,
)


@given(HEADERS, st.one_of(st.none(), st.tuples(st.integers(1, 2), st.one_of(st.none(), st.integers(0, 60)))))
def test_rows_of_bronze_cover_as_runs_what_they_cover_one_by_one(
    headers: list[tuple[str, int, int, int, int]], seal: tuple[int, int | None] | None
) -> None:
    names = ("front_end", "epoch", "seq_lo", "seq_hi", "low_watermark")
    lines = [
        dict(zip(names, (owner, number, low, low + count, low_us), strict=True))
        for owner, number, low, count, low_us in headers
    ]
    if seal is not None:
        sealing = {"seal_epoch": seal[0], "seal_end": seal[1], "seal_reason": "lost"}
        lines.append(dict(zip(names, ("a", 3, 0, 0, 7), strict=True)) | sealing)
    rows = pa.table(
        {name: [line.get(name) for line in lines] for name in BLOCK_RANGE_COLUMNS},
        schema=pa.schema([BLOCKS.schema.field(name) for name in BLOCK_RANGE_COLUMNS]),
    )
    whole, by_runs = Coverage(), Coverage()

    for block in block_ranges(rows):
        whole.add(block)
    parts = [runs_of_rows(rows.slice(at, 4)) for at in range(0, rows.num_rows, 4)]
    for one in runs_of_table(merged_runs([runs_of_rows(rows.slice(0, 0)), *parts])):
        by_runs.add(one)

    assert by_runs.gaps() == whole.gaps()
    assert by_runs.open_incarnations() == whole.open_incarnations()
    assert by_runs.closed_until_us() == whole.closed_until_us()
    for owner in {IncarnationId(*header[:2]) for header in headers}:
        assert by_runs.ranges_of(owner) == whole.ranges_of(owner)

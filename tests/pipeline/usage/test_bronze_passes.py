"""What tasks of bronze read, what they answer, and what of it may have come before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from harness.pipeline_site import Site, expected_usage
from harness.usage_blocks import FrontEnd
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.usage.usage_blocks import decode_header
from quaymaster_pipeline.usage import bronze
from quaymaster_pipeline.usage.blocks import BLOCK_RANGE_COLUMNS, ReadBlock, block_ranges, read_block
from quaymaster_pipeline.usage.bronze import (
    BATCH_BYTES_MAX,
    FILE_BYTES,
    SPLIT_BYTES,
    coverage_of,
    doubtful_owners,
    plan_batch,
    plan_tasks,
    runs_of,
    runs_of_rows,
)
from quaymaster_pipeline.usage.feed import NewerBlocks
from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, IncarnationId
from quaymaster_pipeline.warehouse.schemas import BLOCKS, COVERAGE

OWNER = IncarnationId("a", 1)
RANGES = st.dictionaries(
    st.integers(0, 3),
    st.tuples(st.integers(0, 1000), st.integers(1, 5000)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
)


@given(RANGES, st.integers(1, 1 << 20), st.integers(1, 64))
def test_tasks_read_each_block_of_a_batch_once(
    ranges: dict[int, tuple[int, int]], block_bytes: int, cores: int
) -> None:
    tasks = plan_tasks(ranges, block_bytes, cores)

    read = Counter(
        (partition, offset)
        for task in tasks
        for partition, first, end in task
        for offset in range(first, end)
    )
    assert read == Counter(
        (partition, offset) for partition, (low, high) in ranges.items() for offset in range(low, high)
    )
    assert all(tasks)


@given(st.integers(1, 100_000), st.integers(1, 1 << 20), st.integers(1, 64))
def test_all_cores_have_a_task_when_there_is_enough_and_no_task_has_more_than_a_file(
    blocks: int, block_bytes: int, cores: int
) -> None:
    tasks = plan_tasks({0: (7, 7 + blocks)}, block_bytes, cores)

    sizes = [sum(end - first for _, first, end in task) * block_bytes for task in tasks]
    if blocks * block_bytes >= SPLIT_BYTES:
        assert len(tasks) >= min(cores, blocks)
    else:
        assert len(tasks) == 1
    assert max(sizes) <= FILE_BYTES + block_bytes


@given(RANGES, st.integers(1, 1 << 24))
def test_a_batch_is_bounded_in_bytes(ranges: dict[int, tuple[int, int]], block_bytes: int) -> None:
    planned = plan_batch(ranges, {}, block_bytes)

    blocks = sum(high - low for low, high in planned.values())
    assert blocks > 0
    assert (blocks - 1) * block_bytes <= BATCH_BYTES_MAX


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
    for one in runs_of_rows(rows):
        by_runs.add(one)

    assert by_runs.gaps() == whole.gaps()
    assert by_runs.open_incarnations() == whole.open_incarnations()
    assert by_runs.closed_until_us() == whole.closed_until_us()
    for owner in {IncarnationId(*header[:2]) for header in headers}:
        assert by_runs.ranges_of(owner) == whole.ranges_of(owner)


def test_a_start_reads_the_headers_of_what_came_since_the_coverage_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bronze, "COVERAGE_BATCHES", 3)
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


def test_blocks_of_a_newer_program_stay_where_they_are(tmp_path: Path) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(5))
    site.run()
    newer = one.block(6)
    with (site.feed / "0002.blocks").open("wb") as file:
        file.write(newer)

    def of_an_older_program(partition: int, offset: int, body: bytes) -> ReadBlock:
        return read_block(partition, offset, bytes([9]) + body[1:])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("quaymaster_pipeline.usage.bronze.read_block", of_an_older_program)
        with pytest.raises(NewerBlocks, match=r"block 1 of partition 0 .* until the pipeline is upgraded"):
            site.run()
    before = site.warehouse.table(BLOCKS).rows
    site.run()

    assert before == 1
    assert site.usage() == expected_usage(one)

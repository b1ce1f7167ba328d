"""What tasks of bronze read, what they answer, and what of it may have come before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.usage_blocks import FrontEnd
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.usage.usage_blocks import decode_header
from quaymaster_pipeline.jobs.jobs import BronzeJob, Summary
from quaymaster_pipeline.usage import bronze
from quaymaster_pipeline.usage.blocks import (
    BLOCK_RANGE_COLUMNS,
    BatchFacts,
    ReadBlock,
    block_ranges,
    block_rows,
    read_block,
)
from quaymaster_pipeline.usage.bronze import (
    BATCH_BYTES_MAX,
    BLOCK_BYTES_GUESSED,
    FILE_BYTES,
    SPLIT_BYTES,
    BlockSizes,
    coverage_of,
    doubtful_owners,
    merged_runs,
    plan_batch,
    plan_tasks,
    runs_of,
    runs_of_rows,
    runs_of_table,
    take_batch,
)
from quaymaster_pipeline.usage.feed import FileFeed, NewerBlocks
from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, IncarnationId
from quaymaster_pipeline.usage.tasks import Answers
from quaymaster_pipeline.warehouse.data_files import TablePlace, read_batches
from quaymaster_pipeline.warehouse.schemas import BLOCKS, COVERAGE, TableSpec

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


@given(RANGES, st.integers(0, 300_000), st.integers(1, 1 << 24))
def test_a_batch_is_bounded_in_bytes(
    ranges: dict[int, tuple[int, int]], before: int, block_bytes: int
) -> None:
    planned = plan_batch(ranges, {}, BlockSizes(before, block_bytes))

    blocks = sum(high - low for low, high in planned.values())
    assert blocks > 0
    assert (blocks - 1) * block_bytes <= BATCH_BYTES_MAX


def test_after_few_small_blocks_a_batch_has_no_more_than_fit_if_all_are_as_large_as_they_get() -> None:
    after_an_idle_night = BlockSizes(blocks=20, block_bytes=300)

    planned = plan_batch({0: (0, 200_000)}, {}, after_an_idle_night)

    assert planned == {0: (0, BATCH_BYTES_MAX // BLOCK_BYTES_GUESSED)}


@given(RANGES, st.integers(0, 300_000))
def test_in_a_backlog_no_partition_waits_for_another(ranges: dict[int, tuple[int, int]], before: int) -> None:
    sizes = BlockSizes(before, 1 << 20)

    planned = plan_batch(ranges, {}, sizes)

    taken = {partition: high - low for partition, (low, high) in planned.items()}
    share = sizes.blocks_max // len(ranges)
    assert all(
        taken[partition] >= min(high - low, share) and planned[partition][0] == low
        for partition, (low, high) in ranges.items()
    )
    assert sum(taken.values()) == min(sizes.blocks_max, sum(high - low for low, high in ranges.values()))


def test_a_task_has_no_more_blocks_in_memory_than_a_file_has_however_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    site.ship(one.block(1))
    site.run()
    site.ship(*(front_end.block(40) for _ in range(20) for front_end in (one, two)))
    most = 20_000
    monkeypatch.setattr(bronze, "FILE_BYTES", most)
    held: list[int] = []

    def counted(found: Sequence[ReadBlock], batch: BatchFacts) -> pa.Table:
        held.append(sum(len(block.content) for block in found))
        return block_rows(found, batch)

    monkeypatch.setattr(bronze, "block_rows", counted)
    monkeypatch.setattr(bronze, "plan_tasks", lambda ranges, *_: [[(0, *ranges[0])]])
    site.run()

    files = [file for file in site.warehouse.table(BLOCKS).files() if file.bounds["batch_id"] == (1, 1)]
    assert sum(held) > 2 * most
    assert max(held) <= most
    assert sum(file.rows for file in files) == 40
    assert len(files) == len(held)
    assert site.usage() == expected_usage(one, two)


def test_after_a_failure_a_batch_is_planned_for_blocks_as_large_as_they_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one = Site(tmp_path), FrontEnd("a")
    site.ship(one.block(5))
    warehouse = site.warehouse
    job = BronzeJob(InProcess(), warehouse, FileFeed(site.feed))
    job.take(Summary())
    seen: list[BlockSizes | None] = []

    def fail(*arguments: Any) -> None:
        seen.append(arguments[5])
        raise MemoryError

    monkeypatch.setattr(bronze, "take_batch", fail)
    for _ in range(2):
        with pytest.raises(MemoryError):
            job.take(Summary())

    first, second = seen
    assert first is not None
    assert first.blocks == 1
    assert second is None


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
    parts = [runs_of_rows(rows.slice(at, 4)) for at in range(0, rows.num_rows, 4)]
    for one in runs_of_table(merged_runs([runs_of_rows(rows.slice(0, 0)), *parts])):
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


def test_a_lost_coverage_is_made_by_tasks_which_answer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, one, two = Site(tmp_path), FrontEnd("a"), FrontEnd("b")
    for _ in range(6):
        site.ship(*(front_end.block(3) for _ in range(5) for front_end in (one, two)))
        site.run()
    kept = site.warehouse.table(COVERAGE)
    kept.commit("test", 0, [], removes=kept.files())
    monkeypatch.setattr(bronze, "HEADERS_HERE_MAX", 10)
    monkeypatch.setattr(bronze, "HEADERS_OF_TASK", 20)
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

    monkeypatch.setattr(bronze, "read_batches", counted)
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

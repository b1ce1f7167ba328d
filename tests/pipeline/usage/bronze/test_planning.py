"""What a batch of bronze takes, and what of it each task reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import FrontEnd
from hypothesis import given
from hypothesis import strategies as st

from quaymaster_pipeline.jobs.jobs import BronzeJob, Summary
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.usage.bronze.planning import (
    BATCH_BYTES_MAX,
    BLOCK_BYTES_GUESSED,
    FILE_BYTES,
    SPLIT_BYTES,
    BlockSizes,
    passed_over,
    plan_batch,
    plan_tasks,
)
from quaymaster_pipeline.usage.feed import FileFeed

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

    monkeypatch.setattr("quaymaster_pipeline.jobs.jobs.take_batch", fail)
    for _ in range(2):
        with pytest.raises(MemoryError):
            job.take(Summary())

    first, second = seen
    assert first is not None
    assert first.blocks == 1
    assert second is None


def test_what_the_queue_no_longer_had_is_noted_and_the_oldest_of_very_much_becomes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "PASSED_MAX", 2)

    first = passed_over({0: (5, 9), 1: (0, 3)}, {}, {})
    second = passed_over({0: (9, 12)}, {0: 9, 1: 3}, first)
    third = passed_over({0: (15, 20), 1: (4, 6)}, {0: 12, 1: 3}, second)
    fourth = passed_over({0: (23, 30)}, {0: 20}, third)

    assert first == second == {"0": [[0, 5]]}
    assert third == {"0": [[0, 5], [12, 15]], "1": [[3, 4]]}
    assert fourth == {"0": [[0, 15], [20, 23]], "1": [[3, 4]]}

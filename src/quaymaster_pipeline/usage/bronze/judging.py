"""Judging what may have come before: of a doubtful incarnation tasks compare block by block.

A run is new, or doubtful: some of its sequences came before, or come twice in the batch. The same digest is a
duplicate, another one an overlap.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.blocks import BLOCK_RANGE_COLUMNS, BatchFacts, block_ranges
from quaymaster_pipeline.usage.bronze.marks import answer_marks
from quaymaster_pipeline.usage.bronze.stored_blocks import (
    blocks_of_all,
    paths_of_incarnations,
    shares_of,
    spans_of,
)
from quaymaster_pipeline.usage.sequences import BlockRange, Coverage, IncarnationId, State, judge_blocks
from quaymaster_pipeline.usage.tasks import Answers, Workers, answer_counts
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS
from quaymaster_pipeline.warehouse.tables import Warehouse


def judge_runs(
    workers: Workers,
    warehouse: Warehouse,
    coverage: Coverage,
    batch: BatchFacts,
    runs: Sequence[BlockRange],
    files: Sequence[DataFile],
) -> Answers:
    """Compare the blocks of incarnations of which some may have come before; tasks write what they find to files."""
    owners = sorted(doubtful_owners(coverage, runs))
    if not owners:
        return Answers()
    spans = spans_of(owners, runs)
    items = [
        json.dumps([[*owner, *spans[owner], coverage.ranges_of(owner)] for owner in share])
        for share in shares_of(owners, workers.cores)
    ]
    paths = [*paths_of_incarnations(warehouse.table(BLOCKS), owners), *(file.path for file in files)]
    work = judge_work(warehouse.place(BLOCKS), warehouse.place(BLOCK_MARKS), batch.batch_id, paths)
    return workers.over(items, work)


def doubtful_owners(coverage: Coverage, runs: Iterable[BlockRange]) -> set[IncarnationId]:
    """Return the incarnations some of whose sequences came before, or come twice in these runs."""
    by_owner: defaultdict[IncarnationId, list[BlockRange]] = defaultdict(list)
    for run in runs:
        if run.seq_lo < run.seq_hi:
            by_owner[run.owner].append(run)
    doubtful = set()
    for owner, mine in by_owner.items():
        mine.sort(key=lambda run: run.seq_lo)
        meets = any(later.seq_lo < run.seq_hi for run, later in itertools.pairwise(mine))
        if meets or any(coverage.overlaps(run) for run in mine):
            doubtful.add(owner)
    return doubtful


def judge_work(
    place: TablePlace, marks: TablePlace, batch_id: int, paths: Sequence[str]
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: judge the batch's blocks of some incarnations, in the order of the queue."""
    names = ["batch_id", "log_partition", "log_offset", *BLOCK_RANGE_COLUMNS, "damage"]

    def work(item: str) -> Iterator[Any]:
        given = {
            IncarnationId(name, number): (low, high, ranges)
            for name, number, low, high, ranges in json.loads(item)
        }
        found = blocks_of_all(place, paths, {owner: span[:2] for owner, span in given.items()}, names)
        marked, states = [], list[State]()
        for owner, blocks in found.items():
            mine, of_mine = judge(owner, given[owner][2], blocks)
            is_marked = pa.array([state != "new" for state in of_mine], pa.bool_())
            marked.append(mine.filter(is_marked))
            states += [state for state in of_mine if state != "new"]
        if states:
            yield from answer_marks(marks, batch_id, pa.concat_tables(marked), states)
        yield answer_counts("states", Counter(states))

    def judge(owner: IncarnationId, ranges: Sequence[Sequence[int]], blocks: Any) -> tuple[Any, list[State]]:
        coverage = Coverage()
        for low, high in ranges:
            coverage.add(BlockRange(owner, low, high, b"", 0))
        is_of_batch = pc.equal(blocks.column("batch_id"), batch_id)
        known = blocks.filter(pc.invert(is_of_batch)).select(["seq_lo", "sha256"]).to_pylist()
        mine = blocks.filter(is_of_batch).sort_by(
            [("log_partition", "ascending"), ("log_offset", "ascending")]
        )
        digests = [(owner, row["seq_lo"], row["sha256"]) for row in known]
        return mine, judge_blocks(coverage, block_ranges(mine), digests)

    return work

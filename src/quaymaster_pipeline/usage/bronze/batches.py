"""A batch of bronze: planned, read by tasks, judged, and committed by the driver.

The commit of bronze.blocks has the position in the queue, the running control totals and the files of ops.block_marks,
which are committed next: killed in between, the next run adds them.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quaymaster_pipeline.usage.backlogs import AHEAD, stops_ahead
from quaymaster_pipeline.usage.blocks import BRONZE, DAMAGED, MEASURES, BatchFacts
from quaymaster_pipeline.usage.bronze.judging import judge_runs
from quaymaster_pipeline.usage.bronze.marks import commit_marks
from quaymaster_pipeline.usage.bronze.planning import PASSED, BlockSizes, passed_over, plan_batch, plan_tasks
from quaymaster_pipeline.usage.bronze.runs import runs_of_table
from quaymaster_pipeline.usage.bronze.taking import bronze_work
from quaymaster_pipeline.usage.feed import BlockSource, FeedChanged, FeedIncomplete
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Warehouse

MARK: Final = "mark"
"""In the note of bronze.blocks: by what the feed knows again that it has the blocks that were taken."""


@dataclass(frozen=True, slots=True)
class BronzeBatch:
    """A batch of bronze. `totals` are sums of the headers, `states` counts of blocks."""

    batch_id: int
    blocks: int
    tasks: int
    content_bytes: int
    totals: Mapping[str, int]
    states: Mapping[str, int]


def take_batch(
    workers: Workers,
    warehouse: Warehouse,
    feed: BlockSource,
    coverage: Coverage,
    now: datetime.datetime,
    sizes: BlockSizes | None = None,
    refined: int = NO_BATCH,
) -> BronzeBatch | None:
    """Commit the next batch of blocks; None when there is none. `coverage` then has its blocks.

    `sizes` is what the last batch had, None when it is not known; `refined` the last batch that silver has.

    Raises:
        FeedChanged: this is another feed, or has other blocks than it had.
        FeedIncomplete: blocks are missing.
        NewerBlocks: a newer program wrote some of them.
        CommitConflict: another process takes batches, too.
    """
    table = warehouse.table(BLOCKS)
    note = table.note(BRONZE)
    # Asked first: a queue that was deleted and made again tells its new identity.
    bounds = feed.bounds()
    if note and note["feed"] != feed.identity:
        raise FeedChanged(f"the tables in {warehouse.root} are of {note['feed']}, not of {feed.identity}")
    feed.check_mark(note.get(MARK, {}))
    positions = positions_of(warehouse)
    sizes = sizes or BlockSizes()
    ranges = plan_batch(bounds, positions, sizes)
    if not ranges:
        return None
    last_batch = table.last_batch(BRONZE)
    table.refresh()  # upkeep makes other files of those that were there, and deletes them a day later
    if table.last_batch(BRONZE) != last_batch:
        raise CommitConflict(f"another process took batch {last_batch + 1} into {warehouse.root}")
    # A clock that was set back must not make what is taken now older than what was taken before.
    taken_us = max(int(now.timestamp() * 1_000_000), note.get("taken_us", 0))
    batch = BatchFacts(feed.identity, last_batch + 1, taken_us, coverage.closed_until_us() or 0)
    places = {spec.name: warehouse.place(spec) for spec in (BLOCKS, BLOCK_MARKS)}
    items = [json.dumps(task) for task in plan_tasks(ranges, sizes.block_bytes, workers.cores)]
    answers = workers.over(items, bronze_work(places, feed.reader(), batch))
    found = answers.counts("found")
    expected = sum(high - low for low, high in ranges.values())
    if found["blocks"] != expected:
        raise FeedIncomplete(
            f"of {expected} blocks the usage queue gave {found['blocks']}, so nothing was taken"
        )
    runs = [run for answered in answers.tables("runs") for run in runs_of_table(answered)]
    files = answers.files(BLOCKS.name)
    answers += judge_runs(workers, warehouse, coverage, batch, runs, files)
    states = answers.counts("states")
    marks = answers.files(BLOCK_MARKS.name)
    headers = Counter(note.get("headers", {}))
    headers.update({measure: found[measure] for measure in MEASURES})
    taken = positions | {partition: high for partition, (_, high) in ranges.items()}
    is_ours = table.commit(
        BRONZE,
        batch.batch_id,
        files,
        note={
            "feed": feed.identity,
            "next": {str(partition): offset for partition, offset in taken.items()},
            MARK: feed.mark(taken),
            PASSED: passed_over(ranges, positions, note.get(PASSED, {})),
            "taken_us": taken_us,
            "headers": dict(headers),
            AHEAD: stops_ahead(note.get(AHEAD, []), refined, batch.batch_id, headers),
            "marks": [file.to_json() for file in marks],
        },
    )
    if not is_ours:
        raise CommitConflict(f"another process took batch {batch.batch_id} into {warehouse.root}")
    for run in runs:
        coverage.add(run)
    commit_marks(warehouse)
    states[DAMAGED] = found[DAMAGED]
    states["new"] = found["blocks"] - sum(states.values())
    totals = {measure: found[measure] for measure in MEASURES}
    return BronzeBatch(
        batch.batch_id, found["blocks"], answers.tasks, found["content_bytes"], totals, dict(+states)
    )


def positions_of(warehouse: Warehouse) -> dict[int, int]:
    """Return the offset of the next block to take of each partition of the feed."""
    note = warehouse.table(BLOCKS).note(BRONZE)
    return {int(key): value for key, value in note.get("next", {}).items()}

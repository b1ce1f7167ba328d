"""The layers, each a job with its own position: bronze takes blocks, silver batches of bronze, gold those of silver.

    feed ──▶ bronze.blocks ──▶ silver.usage_events, audit_events, quarantine ──▶ gold.*

Each table says which batches it has, so whatever was killed, each layer goes on after its own last one. A layer that
is slow or fails does not hold up the one before it: bronze's job and that of the layers after it need only the tables,
and may run in a thread each.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from quaymaster_pipeline.usage import gold, partial_sums, silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze.batches import positions_of, take_batch
from quaymaster_pipeline.usage.bronze.coverage import CoverageKeeper, add_batches, coverage_of
from quaymaster_pipeline.usage.bronze.marks import commit_marks
from quaymaster_pipeline.usage.bronze.planning import BlockSizes
from quaymaster_pipeline.usage.feed import BlockSource
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.silver_commits import complete_batch
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.data_files import RESTORE
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict, SumsDiffer
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse

Clock = Callable[[], datetime.datetime]


def now_in_utc() -> datetime.datetime:
    """Return the time."""
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class LayerBatch:
    """What one layer did with one batch. `rows` are requests; in gold, rows of its sums.

    `driver_cpu_s` is the CPU time of the driver's thread that did it; tasks have their own.
    """

    layer: str
    batch_id: int
    tasks: int
    rows: int
    seconds: float
    driver_cpu_s: float

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


@dataclass(slots=True)
class Summary:
    """What a run did. `rows` and `totals` are those of bronze, by the headers of blocks."""

    batches: list[LayerBatch] = field(default_factory=list)
    blocks: int = 0
    rows: int = 0
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def taken(self) -> int:
        """How many batches bronze took."""
        return sum(batch.layer == BRONZE for batch in self.batches)


class _Stopwatch:
    """Measures one layer's work on one batch, in the thread that does it."""

    def __init__(self) -> None:
        self._began_s, self._began_cpu_s = time.monotonic(), time.thread_time()

    def batch(self, layer: str, batch_id: int, tasks: int, rows: int) -> LayerBatch:
        seconds, cpu_s = time.monotonic() - self._began_s, time.thread_time() - self._began_cpu_s
        return LayerBatch(layer, batch_id, tasks, rows, round(seconds, 3), round(cpu_s, 3))


class BronzeJob:
    """Takes blocks of a feed into bronze. Its owner holds `Warehouse.ingesting()` for as long as it uses this."""

    def __init__(
        self,
        workers: Workers,
        warehouse: Warehouse,
        feed: BlockSource,
        *,
        covered: tuple[Coverage, int] | None = None,
        clock: Clock = now_in_utc,
    ) -> None:
        """`covered` spares to read again what batches up to one cover.

        Raises:
            BrokenTable: see `check_order`.
        """
        self._workers = workers
        self._warehouse = warehouse
        self._feed = feed
        self._clock = clock
        self._sizes: BlockSizes | None = None
        check_order(warehouse)
        commit_marks(warehouse)
        if covered is None:
            self.coverage = coverage_of(warehouse, workers=workers)
        else:
            self.coverage, batch_id = covered
            add_batches(self.coverage, warehouse, batch_id + 1, workers=workers)
        self._covered_batch = warehouse.table(BLOCKS).last_batch(BRONZE)

    def read_from(self, feed: BlockSource) -> None:
        """Continue with a feed: the same one, perhaps at another address."""
        self._feed = feed

    def take(self, summary: Summary) -> bool:
        """Take the next batch; False when there is none.

        Raises:
            FeedChanged, FeedIncomplete, NewerBlocks, CommitConflict: see `batches.take_batch`.
        """
        if self._warehouse.table(BLOCKS).last_batch(BRONZE) != self._covered_batch:
            raise CommitConflict(f"another process takes batches into {self._warehouse.root}")
        watch, now = _Stopwatch(), self._clock()
        events = self._warehouse.table(USAGE_EVENTS)
        events.refresh()
        # After a failure nothing is known: it may have been of more than a task has memory for.
        sizes, self._sizes = self._sizes, None
        taken = take_batch(
            self._workers,
            self._warehouse,
            self._feed,
            self.coverage,
            now,
            sizes,
            events.last_batch(silver.APP),
        )
        if taken is None:
            self._sizes = sizes
            return False
        self._covered_batch = taken.batch_id
        self._sizes = BlockSizes(taken.blocks, max(1, taken.content_bytes // taken.blocks))
        summary.blocks += taken.blocks
        summary.rows += taken.totals["rows"]
        summary.totals = {name: summary.totals.get(name, 0) + count for name, count in taken.totals.items()}
        summary.batches.append(watch.batch(BRONZE, taken.batch_id, taken.tasks, taken.totals["rows"]))
        return True

    def lag_blocks(self) -> int:
        """Return how many blocks the feed has that bronze has not."""
        return lag_of(self._warehouse, self._feed)

    def is_full(self, lag_blocks: int) -> bool:
        """Return whether so many blocks are as much as a batch may take, by how large the last ones were."""
        return lag_blocks >= (self._sizes or BlockSizes()).full_batch


class RefineJob:
    """Brings what bronze has into silver and gold, and tells the feed how far all tables are.

    It looks at the tables itself, so it may run in another thread than bronze's job, with a warehouse of its own.
    `coverage` is what all layers have, and `warehouse` as it was when they had it.
    """

    def __init__(
        self, workers: Workers, warehouse: Warehouse, feed: BlockSource, *, clock: Clock = now_in_utc
    ) -> None:
        self._workers = workers
        self.warehouse = warehouse
        self._feed = feed
        self._clock = clock
        self._committed: dict[int, int] = {}
        """What the feed was told, by this process."""
        self._keeper = CoverageKeeper(warehouse)
        self.reload()

    def reload(self) -> None:
        """Look at all tables again, after another process was first with a commit."""
        self.warehouse.refresh()
        self._covered_batch = partial_sums.last_whole_batch(self.warehouse)
        self.coverage: Coverage = coverage_of(self.warehouse, self._covered_batch, self._workers)

    def covered(self) -> tuple[Coverage, int]:
        """Return a copy of the coverage, and the last batch that it has."""
        return self.coverage.copy(), self._covered_batch

    def read_from(self, feed: BlockSource) -> None:
        """Continue with a feed: the same one, perhaps at another address."""
        self._feed = feed

    def refine(self, summary: Summary) -> bool:
        """Bring the next batches that bronze has into the tables that lack them; False when none does.

        Raises:
            SumsDiffer: a layer has a mistake; it does not get the batch.
            CommitConflict: another process does the same.
        """
        self.warehouse.refresh()
        # What a killed run left: silver has all of a batch, and gold all of silver's, before silver takes more.
        self._complete_silver(summary)
        self._complete_gold(summary)
        watch = _Stopwatch()
        # Bronze's job adds them right after its commit, and asks again then.
        refined = silver.refine_batches(self._workers, self.warehouse) if self._has_marks() else None
        if refined is not None:
            rows = refined.rows.get("usage.rows", 0)
            summary.batches.append(watch.batch(silver.APP, refined.batch_id, refined.tasks, rows))
            watch = _Stopwatch()
            # Silver's tasks wrote the sums of what they wrote.
            partial_sums.commit_batch(
                self.warehouse, refined.batch_id, refined.sums, follows=refined.first_batch - 1
            )
            summary.batches.append(watch.batch(gold.APP, refined.batch_id, 0, refined.sums.rows))
        self._cover()
        return refined is not None

    def commit_positions(self) -> None:
        """Tell the feed how far all tables are, unless it turns out to be another one. Raises as `feed` does."""
        positions = positions_of(self.warehouse)
        blocks = self.warehouse.table(BLOCKS)
        note, is_whole = blocks.note(BRONZE), self._covered_batch == blocks.last_batch(BRONZE)
        if is_whole and positions != self._committed and note["feed"] == self._feed.identity:
            self._feed.commit(positions)
            self._committed = positions

    def _has_marks(self) -> bool:
        """Return whether ops.block_marks has those of the last batch of bronze."""
        blocks, marks = self.warehouse.table(BLOCKS), self.warehouse.table(BLOCK_MARKS)
        last = blocks.last_batch(BRONZE)
        return not blocks.note(BRONZE).get("marks") or marks.last_batch(BRONZE) >= last

    def _complete_silver(self, summary: Summary) -> None:
        """Add to all tables of silver the batch that one of them decided."""
        watch = _Stopwatch()
        left = complete_batch(self.warehouse)
        if left is not None:
            rows = left.counts.get("usage.rows", 0)
            summary.batches.append(watch.batch(silver.APP, left.batch_id, 0, rows))

    def _complete_gold(self, summary: Summary) -> None:
        """Add to gold what silver has and gold has not."""
        batch_id = self.warehouse.table(USAGE_EVENTS).last_batch(silver.APP)
        watch = _Stopwatch()
        completed = partial_sums.complete(self._workers, self.warehouse, batch_id)
        if completed is not None:
            summary.batches.append(watch.batch(gold.APP, batch_id, completed.tasks, completed.rows))

    def _cover(self) -> None:
        """Add to the coverage what all layers have got."""
        through = partial_sums.last_whole_batch(self.warehouse)
        if through > self._covered_batch:
            add_batches(self.coverage, self.warehouse, self._covered_batch + 1, through)
            self._covered_batch = through
            # Not before all layers have the batch: readers ask what they have.
            self._keeper.keep(self.coverage, through, self._clock())


class Pipeline:
    """All jobs over one warehouse and one feed, one after the other in the caller's thread."""

    def __init__(
        self, workers: Workers, warehouse: Warehouse, feed: BlockSource, *, clock: Clock = now_in_utc
    ) -> None:
        self._refining = RefineJob(workers, warehouse, feed, clock=clock)
        covered = self._refining.covered()
        self._bronze = BronzeJob(workers, warehouse, feed, covered=covered, clock=clock)

    @property
    def coverage(self) -> Coverage:
        """What the blocks cover that bronze has."""
        return self._bronze.coverage

    @property
    def whole_coverage(self) -> Coverage:
        """What the blocks cover that all layers have."""
        return self._refining.coverage

    def catch_up(self, on_batch: Callable[[Summary], None] = lambda summary: None) -> Summary:
        """Take every block that the feed has, batch by batch, through all layers; `on_batch` is called after each.

        Raises:
            FeedChanged, FeedIncomplete, NewerBlocks: see `batches.take_batch`.
            SumsDiffer: a layer has a mistake; bronze took what there was, first.
        """
        summary = Summary()
        # First: a process that was killed left a batch that only bronze has.
        mistake = self.refine(summary)
        while self._bronze.take(summary):
            mistake = self.refine(summary)
            if mistake is None:
                self._refining.commit_positions()
            on_batch(summary)
        if mistake is not None:
            raise mistake
        self._refining.commit_positions()
        return summary

    def lag_blocks(self) -> int:
        """Return how many blocks the feed has that bronze has not."""
        return self._bronze.lag_blocks()

    def refine(self, summary: Summary) -> SumsDiffer | None:
        """Bring what bronze has into the tables that do not have it; return what was wrong with it, if anything."""
        try:
            while self._refining.refine(summary):
                pass
        except SumsDiffer as error:
            return error
        return None


def check_order(warehouse: Warehouse) -> None:
    """Return if each layer has at most the batches of the one before it.

    Raises:
        BrokenTable: one has more, so the one before was made again, or restored: what comes would be counted wrongly.
    """
    layers = [(BLOCKS, BRONZE), (USAGE_EVENTS, silver.APP), (USAGE_HOURLY, gold.APP)]
    lasts = [(spec.name, warehouse.table(spec).last_batch(app)) for spec, app in layers]
    for (before, had), (after, has) in itertools.pairwise(lasts):
        if has > had:
            raise BrokenTable(
                f"the table {before} is broken: {after} has {has + 1} batches, and it has {had + 1}: it was made "
                f"again, restored, or the warehouse is of an earlier version; {RESTORE}, or move the warehouse away"
            )


def lag_of(warehouse: Warehouse, feed: BlockSource) -> int:
    """Return how many blocks a feed has that bronze has not."""
    positions = positions_of(warehouse)
    bounds = feed.bounds().items()
    return sum(end - max(positions.get(partition, low), low) for partition, (low, end) in bounds)

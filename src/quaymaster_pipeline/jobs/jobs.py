"""The layers, each a job with its own position: bronze takes blocks, silver batches of bronze, gold those of silver.

    feed ──▶ bronze.blocks ──▶ silver.usage_events, audit_events, quarantine ──▶ gold.*

Each table says which batches it has, so whatever was killed, each layer goes on after its own last one. A layer that
fails does not hold up the one before it.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from quaymaster_pipeline.usage import bronze, gold, partial_sums, silver
from quaymaster_pipeline.usage.bronze import CoverageKeeper
from quaymaster_pipeline.usage.feed import BlockSource
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.data_files import RESTORE
from quaymaster_pipeline.warehouse.errors import BrokenTable, SumsDiffer
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse


@dataclass(frozen=True, slots=True)
class LayerBatch:
    """What one layer did with one batch. `rows` are requests; in gold, rows of its sums.

    `driver_cpu_s` is the CPU time of the driver's Python process; tasks have their own.
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
        return sum(batch.layer == bronze.APP for batch in self.batches)

    @property
    def batch_seconds(self) -> float:
        """How long the last batch took in each layer, added up."""
        last = {batch.layer: batch.seconds for batch in self.batches}
        return sum(last.values())


class _Stopwatch:
    """Measures one layer's work on one batch."""

    def __init__(self) -> None:
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()

    def batch(self, layer: str, batch_id: int, tasks: int, rows: int) -> LayerBatch:
        seconds, cpu_s = time.monotonic() - self._began_s, time.process_time() - self._began_cpu_s
        return LayerBatch(layer, batch_id, tasks, rows, round(seconds, 3), round(cpu_s, 3))


class Pipeline:
    """The jobs over one warehouse and one feed. Its owner holds `Warehouse.ingesting()` for as long as it uses this."""

    def __init__(
        self,
        workers: Workers,
        warehouse: Warehouse,
        feed: BlockSource,
        *,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._workers = workers
        self._warehouse = warehouse
        self._feed = feed
        self._clock = clock
        self._committed: dict[int, int] = {}
        """What the feed was told, by this process."""
        self._block_bytes = bronze.BLOCK_BYTES_GUESSED
        self._keeper = CoverageKeeper(warehouse)
        check_order(warehouse)
        bronze.commit_marks(warehouse)
        self.coverage: Coverage = bronze.coverage_of(warehouse)

    def catch_up(self, on_batch: Callable[[Summary], None] = lambda summary: None) -> Summary:
        """Take every block that the feed has, batch by batch, through all layers; `on_batch` is called after each.

        Raises:
            FeedChanged, FeedIncomplete, NewerBlocks: see `bronze.take_batch`.
            SumsDiffer: a layer has a mistake; bronze took what there was, first.
        """
        summary = Summary()
        # First: whoever was killed left a batch that only bronze has.
        mistake = self.refine(summary)
        while self._take(summary):
            mistake = self.refine(summary)
            if mistake is None:
                self._commit_positions()
                # Not before silver has the batch: readers ask what all layers have.
                self._keeper.keep(self.coverage, summary.batches[-1].batch_id, self._clock())
            on_batch(summary)
        if mistake is not None:
            raise mistake
        self._commit_positions()
        return summary

    def lag_blocks(self) -> int:
        """Return how many blocks the feed has that bronze has not."""
        return lag_of(self._warehouse, self._feed)

    def _take(self, summary: Summary) -> bool:
        """Take the next batch into bronze; False when there is none."""
        watch, now = _Stopwatch(), self._clock()
        taken = bronze.take_batch(
            self._workers, self._warehouse, self._feed, self.coverage, now, self._block_bytes
        )
        if taken is None:
            return False
        self._block_bytes = max(1, taken.content_bytes // taken.blocks)
        summary.blocks += taken.blocks
        summary.rows += taken.totals["rows"]
        summary.totals = {name: summary.totals.get(name, 0) + count for name, count in taken.totals.items()}
        summary.batches.append(watch.batch(bronze.APP, taken.batch_id, taken.tasks, taken.totals["rows"]))
        return True

    def refine(self, summary: Summary) -> SumsDiffer | None:
        """Bring what bronze has into the tables that do not have it; return what was wrong with it, if anything."""
        # What a killed run left in silver alone: gold has all batches of silver before silver takes more.
        self._complete_gold(summary)
        watch = _Stopwatch()
        try:
            refined = silver.refine_batches(self._workers, self._warehouse)
        except SumsDiffer as error:
            return error
        if refined is not None:
            rows = refined.rows.get("usage.rows", 0)
            summary.batches.append(watch.batch(silver.APP, refined.batch_id, refined.tasks, rows))
            watch = _Stopwatch()
            # Silver's tasks wrote the sums of what they wrote.
            partial_sums.commit_batch(self._warehouse, refined.batch_id, refined.sums)
            summary.batches.append(watch.batch(gold.APP, refined.batch_id, 0, refined.sums.rows))
        return None

    def _complete_gold(self, summary: Summary) -> None:
        """Add to gold what silver has and gold has not."""
        batch_id = self._warehouse.table(USAGE_EVENTS).last_batch(silver.APP)
        watch = _Stopwatch()
        completed = partial_sums.complete(self._workers, self._warehouse, batch_id)
        if completed is not None:
            summary.batches.append(watch.batch(gold.APP, batch_id, completed.tasks, completed.rows))

    def _commit_positions(self) -> None:
        """Tell the feed how far all tables are. Only after a look at it: it may have turned out to be another one."""
        positions = bronze.positions_of(self._warehouse)
        if positions != self._committed:
            self._feed.commit(positions)
            self._committed = positions


def check_order(warehouse: Warehouse) -> None:
    """Return if each layer has at most the batches of the one before it.

    Raises:
        BrokenTable: one has more, so the one before was made anew, or restored: what comes would be counted wrongly.
    """
    layers = [(BLOCKS, bronze.APP), (USAGE_EVENTS, silver.APP), (USAGE_HOURLY, gold.APP)]
    lasts = [(spec.name, warehouse.table(spec).last_batch(app)) for spec, app in layers]
    for (before, had), (after, has) in itertools.pairwise(lasts):
        if has > had:
            raise BrokenTable(
                f"the table {before} is broken: {after} has {has + 1} batches, and it has {had + 1}: it was made anew, "
                f"restored, or the warehouse is of an earlier version; {RESTORE}, or move the warehouse away"
            )


def lag_of(warehouse: Warehouse, feed: BlockSource) -> int:
    """Return how many blocks a feed has that bronze has not."""
    positions = bronze.positions_of(warehouse)
    bounds = feed.bounds().items()
    return sum(end - max(positions.get(partition, low), low) for partition, (low, end) in bounds)

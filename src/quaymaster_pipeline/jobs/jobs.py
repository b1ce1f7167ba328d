"""The jobs in their order: a batch goes through bronze, silver and gold before the next one begins.

So whatever was killed, at most one batch is under way, and each table says whether it has it.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from quaymaster_pipeline.usage import bronze, gold, latency, silver
from quaymaster_pipeline.usage.feed import BlockSource
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.schemas import (
    COMMITS,
    LATENCY_HOURLY,
    REQUEST_EVENTS,
    USAGE_EVENTS,
    USAGE_HOURLY,
)
from quaymaster_pipeline.warehouse.tables import Warehouse

COMMITS_APP = "commits"


@dataclass(slots=True)
class Summary:
    """What a run did. `rows` are those of bronze."""

    batches: int = 0
    blocks: int = 0
    rows: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    batch_seconds: float = 0.0
    """The last batch's."""


class Pipeline:
    """The jobs over one warehouse and one feed. Its owner holds `Warehouse.writing()` for as long as it uses this."""

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
        bronze.commit_segments(warehouse)
        self.coverage: Coverage = bronze.coverage_of(warehouse)

    def catch_up(self, on_batch: Callable[[Summary], None] = lambda summary: None) -> Summary:
        """Take every block that the feed has, batch by batch, through all layers; `on_batch` is called after each.

        Raises:
            FeedChanged, FeedIncomplete: see `bronze.take_batch`.
        """
        summary = Summary()
        self.finish_batch()
        while True:
            started_s = time.monotonic()
            closed_until_us = self.coverage.closed_until_us() or 0
            taken = bronze.take_batch(
                self._workers, self._warehouse, self._feed, self.coverage, self._clock()
            )
            if taken is None:
                self._commit_positions()
                return summary
            self.finish_batch(started_s=started_s, closed_until_us=closed_until_us, found=taken.totals)
            self._commit_positions()
            summary.batches += 1
            summary.blocks += taken.blocks
            summary.rows += taken.totals["rows"]
            summary.totals = {
                name: summary.totals.get(name, 0) + count for name, count in taken.totals.items()
            }
            summary.batch_seconds = time.monotonic() - started_s
            on_batch(summary)

    def lag_blocks(self) -> int:
        """Return how many blocks the feed has that bronze has not."""
        return lag_of(self._warehouse, self._feed)

    def _commit_positions(self) -> None:
        """Tell the feed how far all tables are. Only after a look at it: it may have turned out to be another one."""
        positions = bronze.positions_of(self._warehouse)
        if positions != self._committed:
            self._feed.commit(positions)
            self._committed = positions

    def finish_batch(
        self,
        *,
        started_s: float | None = None,
        closed_until_us: int = 0,
        found: Mapping[str, int] | None = None,
    ) -> None:
        """Bring the last batch of bronze into the tables that do not have it."""
        warehouse = self._warehouse
        batch_id = warehouse.table(REQUEST_EVENTS).last_batch(bronze.APP)
        if batch_id < 0:
            return
        sums = None
        if warehouse.table(USAGE_EVENTS).last_batch(silver.APP) < batch_id:
            sums = silver.refine_batch(self._workers, warehouse, closed_until_us).sums
        if (
            min(warehouse.table(spec).last_batch(gold.APP) for spec in (USAGE_HOURLY, LATENCY_HOURLY))
            < batch_id
        ):
            if sums is None:
                sums = silver.sums_of_batch(self._workers, warehouse, batch_id)
            gold.add_batch(warehouse, batch_id, sums.usage)
            latency.add_batch(warehouse, batch_id, sums.latency)
        gold.add_days(warehouse, batch_id)
        self._record(batch_id, started_s, found or {})

    def _record(self, batch_id: int, started_s: float | None, found: Mapping[str, int]) -> None:
        commits = self._warehouse.table(COMMITS)
        if commits.last_batch(COMMITS_APP) >= batch_id:
            return
        now = self._clock()
        duration_ms = None if started_s is None else round((time.monotonic() - started_s) * 1000)
        lines = []
        for query, spec in (
            (bronze.APP, REQUEST_EVENTS),
            (silver.APP, USAGE_EVENTS),
            (gold.APP, USAGE_HOURLY),
        ):
            table = self._warehouse.table(spec)
            line = {"query": query, "batch_id": batch_id, "table": spec.name, "files": len(table.files())}
            lines.append(line | {"committed_time": now, "duration_ms": duration_ms})
        lines[0] |= {name: found.get(name) for name in bronze.MEASURES}
        commits.commit(COMMITS_APP, batch_id, commits.write(COMMITS_APP, _as_commits(lines)))


def lag_of(warehouse: Warehouse, feed: BlockSource) -> int:
    """Return how many blocks a feed has that bronze has not."""
    positions = bronze.positions_of(warehouse)
    bounds = feed.bounds().items()
    return sum(end - max(positions.get(partition, low), low) for partition, (low, end) in bounds)


def _as_commits(lines: Iterable[Mapping[str, Any]]) -> Any:
    names = COMMITS.schema.names
    return pa.Table.from_pylist(
        [{name: line.get(name) for name in names} for line in lines], schema=COMMITS.schema
    )

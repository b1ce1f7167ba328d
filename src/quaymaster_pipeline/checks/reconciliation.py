"""Whether the layers agree: blocks = silver + quarantine + duplicates, silver = gold, to the last request.

After each run the control totals that the commits carry along are compared. `reconcile` reads the rows themselves.
Either way a difference of anything but 0 is a mistake somewhere, and nothing is billed on it.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from quaymaster_pipeline.checks.day_plans import plan_days
from quaymaster_pipeline.checks.layer_sums import (
    LayerSums,
    days_work,
    hours_work,
    plan_rows,
    plan_sums,
    rows_work,
)
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.blocks import BRONZE, MEASURES
from quaymaster_pipeline.usage.expired import EXPIRED, expired_blocks, expired_usage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    EXPIRED_BLOCKS,
    LATENCY_HOURLY,
    QUARANTINE,
    RECONCILIATION,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.steps import Steps, Watch, unwatched
from quaymaster_pipeline.warehouse.tables import Warehouse

APP = "reconciliation"
ALL = "all"
SETTLE_TRIES = 40
SETTLE_PAUSE_S = 0.25
"""How long gold may take to have what silver has, when layers are compared while a pipeline runs."""
LOOKS = "looks"
"""The note of ops.reconciliation with what differed when a run looked last, by control totals."""


class LayerComparison(NamedTuple):
    """One measure in all layers. `difference` adds up how far each layer is from the one before it."""

    scope: str
    measure: str
    blocks: int
    duplicates: int
    quarantine: int
    silver: int
    gold: int

    @property
    def difference(self) -> int:
        """0, or the layers disagree."""
        below = self.duplicates + self.quarantine + self.silver
        return abs(self.blocks - below) + abs(self.silver - self.gold)


def compare_notes(warehouse: Warehouse) -> list[LayerComparison]:
    """Compare the control totals that commits carry along: quick, whatever the tables' size.

    A layer that has taken more batches than silver, or fewer, is not compared: a pipeline may run meanwhile.
    """
    blocks, events, hourly = (warehouse.table(spec) for spec in (BLOCKS, USAGE_EVENTS, USAGE_HOURLY))
    counted = events.note(silver.APP).get("totals", {})
    of_blocks, of_gold = (
        {measure: counted.get(f"{what}.{measure}", 0) for measure in MEASURES} for what in ("blocks", "usage")
    )
    if blocks.last_batch(BRONZE) == events.last_batch(silver.APP):
        of_blocks = blocks.note(BRONZE).get("headers", {})
    if hourly.last_batch(gold.APP) == events.last_batch(silver.APP):
        of_gold = hourly.note(gold.TOTALS)
    return _compared(of_blocks, counted, None, of_gold)


def compare_rows(workers: Workers, warehouse: Warehouse, watch: Watch = unwatched) -> list[LayerComparison]:
    """Compare sums over the rows of all tables; silver and gold besides by hour and account, where they differ.

    Tasks read. A pipeline may run next to it: tables are compared up to the last batch that all of them have. A step is
    a file of blocks or quarantine, or hours of a day.

    Raises:
        CommitConflict: gold did not get to have what silver has.
    """
    through = last_batch_of_all(warehouse, USAGE_HOURLY)
    for spec in (BLOCKS, QUARANTINE):
        warehouse.table(spec).refresh()
    tables = {spec.name: warehouse.table(spec) for spec in (BLOCKS, QUARANTINE, USAGE_EVENTS, USAGE_HOURLY)}
    places = {name: table.place for name, table in tables.items()}
    expired_table = warehouse.table(EXPIRED_BLOCKS)
    expired_table.refresh()  # after bronze.blocks: what has left that has expired
    expired, usage = expired_blocks(expired_table), expired_usage(tables[USAGE_EVENTS.name])
    files = {
        BLOCKS: expired.remaining(tables[BLOCKS.name].files()),
        QUARANTINE: tables[QUARANTINE.name].files(),
    }
    rows = plan_rows(files.items())
    hours = plan_days(tables[USAGE_EVENTS.name].files(), tables[USAGE_HOURLY.name].files(), usage)
    steps = Steps(len(rows) + len(hours), watch)
    on_done = None if watch is unwatched else steps.take
    counted = dict(tables[USAGE_EVENTS.name].note(silver.APP).get("totals", {}))
    of_rows = LayerSums(workers.over(rows, rows_work(places, through), on_done))
    of_hours = LayerSums(workers.over(hours, hours_work(places, through), on_done))
    # Of rows that have expired, the commits that took them note what they counted.
    of_blocks, of_silver = Counter(of_rows.of("blocks")), Counter(of_hours.of("silver"))
    of_blocks.update(expired.headers)
    of_silver.update(usage.counts)
    of_gold = Counter(of_hours.of("gold"))
    of_gold.update(expired_usage(tables[USAGE_HOURLY.name]).counts)
    gone = tables[QUARANTINE.name].note(EXPIRED).get("rows", 0)
    counted["quarantine.rows"] = of_rows.of("quarantine")["rows"] + gone
    compared = _compared(of_blocks, counted, of_silver, of_gold)
    return compared + _places_of(of_hours)


def last_batch_of_all(warehouse: Warehouse, *of_gold: TableSpec) -> int:
    """Look at silver and tables of gold until all have the same batches, and return the last of them.

    Raises:
        CommitConflict: gold did not get to have what silver has.
    """
    events, *summed = (warehouse.table(spec) for spec in (USAGE_EVENTS, *of_gold))
    for _ in range(SETTLE_TRIES):
        through = events.last_batch(silver.APP)
        if all(table.last_batch(gold.APP) == through for table in summed):
            return through
        time.sleep(SETTLE_PAUSE_S)
        for table in (events, *summed):
            table.refresh()
    raise CommitConflict(f"a batch is under way that {of_gold[-1].name} does not have")


def write_comparisons(
    warehouse: Warehouse,
    found: list[LayerComparison],
    now: datetime.datetime,
    *,
    shared_notes: Mapping[str, Any] | None = None,
) -> None:
    """Keep what was found in ops.reconciliation."""
    table = warehouse.table(RECONCILIATION)
    lines = [{"checked_time": now, **one._asdict(), "difference": one.difference} for one in found]
    rows = pa.Table.from_pylist(lines, schema=RECONCILIATION.schema)
    table.commit(APP, None, table.write(APP, rows), shared_notes=shared_notes)


def write_look(warehouse: Warehouse, now: datetime.datetime) -> None:
    """Compare control totals, and keep what was found in ops.reconciliation if that is not what it was last time.

    A run looks every few seconds: only when a difference begins, changes or ends there are rows.
    """
    table = warehouse.table(RECONCILIATION)
    found = compare_notes(warehouse)
    differing = {one.measure: one.difference for one in found if one.difference}
    if differing != table.note(LOOKS):
        write_comparisons(warehouse, found, now, shared_notes={LOOKS: differing})


def compare_sums(workers: Workers, warehouse: Warehouse) -> list[LayerComparison]:
    """Compare days and counts of latencies with gold.usage_hourly, and return where they differ.

    In place of silver stands what the hours say. No invoice is issued of days that differ; latencies are not billed.
    Nothing is compared while a batch is under way that not all of them have, nor of days whose hours have expired.
    """
    tables = [warehouse.table(spec) for spec in (USAGE_DAILY, USAGE_HOURLY, LATENCY_HOURLY)]
    if len({table.last_batch(gold.APP) for table in tables}) > 1:
        return []
    places = {table.spec.name: table.place for table in tables}
    expired = expired_usage(warehouse.table(USAGE_HOURLY))
    items = plan_sums(
        *([file for file in table.files() if not expired.has(file.partition_value)] for table in tables)
    )
    return _places_of(LayerSums(workers.over(items, days_work(places))))


def _places_of(sums: LayerSums) -> list[LayerComparison]:
    """Return the places that differ; the last line counts those that are not named."""
    lines = [
        LayerComparison(line.scope, line.measure, line.here, 0, 0, line.here, line.there)
        for line in sums.lines
    ]
    if sums.unnamed:
        lines.append(LayerComparison("further places", "places", sums.unnamed, 0, 0, sums.unnamed, 0))
    return lines


def _compared(
    headers: Mapping[str, int],
    counted: Mapping[str, int],
    of_silver: Mapping[str, int] | None,
    of_gold: Mapping[str, int],
) -> list[LayerComparison]:
    return [
        LayerComparison(
            ALL,
            measure,
            headers.get(measure, 0),
            counted.get(f"duplicates.{measure}", 0),
            counted.get(f"quarantine.{measure}", 0),
            counted.get(f"usage.{measure}", 0) if of_silver is None else of_silver.get(measure, 0),
            of_gold.get(measure, 0),
        )
        for measure in MEASURES
    ]

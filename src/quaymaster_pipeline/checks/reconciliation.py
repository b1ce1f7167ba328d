"""Whether the layers agree: blocks = silver + quarantine + duplicates, silver = gold, to the last request.

After each run the control totals that the commits carry along are compared. `reconcile` reads the rows themselves.
Either way a difference of anything but 0 is a mistake somewhere, and nothing is billed on it.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage import bronze, gold, silver
from quaymaster_pipeline.usage.bronze import MEASURES
from quaymaster_pipeline.warehouse.data_files import read_row_groups
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    LATENCY_HOURLY,
    QUARANTINE,
    RECONCILIATION,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.steps import Steps, Watch, unwatched
from quaymaster_pipeline.warehouse.sums import add_up_files
from quaymaster_pipeline.warehouse.tables import Warehouse
from quaymaster_pipeline.warehouse.times import text_of_time

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
    if blocks.last_batch(bronze.APP) == events.last_batch(silver.APP):
        of_blocks = blocks.note(bronze.APP).get("headers", {})
    if hourly.last_batch(gold.APP) == events.last_batch(silver.APP):
        of_gold = hourly.note(gold.TOTALS)
    return _compared(of_blocks, counted, None, of_gold)


def compare_rows(warehouse: Warehouse, watch: Watch = unwatched) -> list[LayerComparison]:
    """Compare sums over the rows of all tables; silver and gold besides by hour and account, where they differ.

    A pipeline may run beside it: blocks are compared up to the last batch that the other layers have. A step is one
    reading of a file of blocks or rows of requests; those of silver are read twice.

    Raises:
        CommitConflict: gold did not get to have what silver has.
    """
    through = _settled(warehouse)
    files_of = {spec.name: len(warehouse.table(spec).files()) for spec in (BLOCKS, USAGE_EVENTS)}
    steps = Steps(files_of[BLOCKS.name] + 2 * files_of[USAGE_EVENTS.name], watch)
    of_blocks = _sum_files(
        warehouse,
        BLOCKS,
        ["batch_id", *MEASURES],
        lambda rows: _headers_of(bronze.in_batches(rows, 0, through)),
        steps,
    )
    usage_names = ["messages", "bytes", "chunks", "http_status", "hour"]
    of_silver = _sum_files(warehouse, USAGE_EVENTS, usage_names, silver.control_totals_of_usage, steps)
    counted = warehouse.table(USAGE_EVENTS).note(silver.APP).get("totals", {})
    quarantine = bronze.in_batches(warehouse.table(QUARANTINE).read(["block_row", "batch_id"]), 0, through)
    counted = {**counted, "quarantine.rows": quarantine.num_rows - quarantine.column("block_row").null_count}
    hourly = _gold_rows(warehouse, USAGE_HOURLY, "hour", "account_id")
    compared = _compared(of_blocks, counted, of_silver, gold.control_totals(hourly))
    return compared + _hours_that_differ(warehouse, hourly, steps)


def _settled(warehouse: Warehouse) -> int:
    """Look at silver and gold until both have the same batches, and return the last of them."""
    events, hourly = warehouse.table(USAGE_EVENTS), warehouse.table(USAGE_HOURLY)
    for _ in range(SETTLE_TRIES):
        through = events.last_batch(silver.APP)
        if hourly.last_batch(gold.APP) == through:
            for spec in (BLOCKS, QUARANTINE):
                warehouse.table(spec).refresh()
            return through
        time.sleep(SETTLE_PAUSE_S)
        events.refresh()
        hourly.refresh()
    raise CommitConflict(f"a batch is under way that {USAGE_HOURLY.name} does not have")


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


def compare_sums(warehouse: Warehouse) -> list[LayerComparison]:
    """Compare days and counts of latencies with gold.usage_hourly, and return where they differ.

    In place of silver stands what the hours say. No invoice depends on these. Nothing is compared while a batch is
    under way that not all of them have.
    """
    hourly, daily, latencies = (warehouse.table(spec) for spec in (USAGE_HOURLY, USAGE_DAILY, LATENCY_HOURLY))
    if len({table.last_batch(gold.APP) for table in (hourly, daily, latencies)}) > 1:
        return []
    hours = _gold_rows(warehouse, USAGE_HOURLY, "usage_date", "account_id", "hour", "action")
    of_days, of_hours = (
        {group: Counter(gold.control_totals(rows)) for group, rows in _groups(table, "usage_date")}
        for table in (_gold_rows(warehouse, USAGE_DAILY, "usage_date", "account_id"), hours)
    )
    found = []
    for day, account in sorted(of_days.keys() | of_hours.keys()):
        scope = f"{USAGE_DAILY.name} {day}/{account or 'nobody'}"
        here, there = (groups.get((day, account), Counter()) for groups in (of_hours, of_days))
        found += _that_differ(scope, here, there)
    counted, requests = (
        _requests_by_action(table) for table in (latencies.read(["hour", "action", "requests"]), hours)
    )
    for hour, action in sorted(counted.keys() | requests.keys()):
        scope = f"{LATENCY_HOURLY.name} {text_of_time(hour)}/{action}"
        here, there = (Counter(rows=groups[hour, action]) for groups in (requests, counted))
        found += _that_differ(scope, here, there)
    return found


def _gold_rows(warehouse: Warehouse, spec: TableSpec, *keys: str) -> Any:
    """Return the rows of a table of usage, added up by these columns, with what control totals need."""
    table = warehouse.table(spec)
    sums = ("requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")
    return add_up_files(table, table.files(), keys, [*keys, *sums])


def _requests_by_action(rows: Any) -> Counter[tuple[datetime.datetime, str]]:
    summed = rows.group_by(["hour", "action"]).aggregate([("requests", "sum")])
    names = ("hour", "action", "requests_sum")
    columns = (summed.column(name).to_pylist() for name in names)
    return Counter({(hour, action): requests for hour, action, requests in zip(*columns, strict=True)})


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


def _headers_of(blocks: Any) -> dict[str, int]:
    return {measure: pc.sum(blocks.column(measure)).as_py() or 0 for measure in MEASURES}


def _sum_files(
    warehouse: Warehouse, spec: TableSpec, names: list[str], totals_of: Any, steps: Steps
) -> Counter[str]:
    totals: Counter[str] = Counter()
    table = warehouse.table(spec)
    for file in table.files():
        for rows in read_row_groups(table.place, spec, file.path, names):
            totals.update(totals_of(rows))
        steps.take()
    return totals


def _hours_that_differ(warehouse: Warehouse, hourly: Any, steps: Steps) -> list[LayerComparison]:
    """Compare silver and gold by hour, and within hours that agree by account."""
    table = warehouse.table(USAGE_EVENTS)
    names = ["hour", "account_id", "messages", "bytes", "chunks", "http_status"]
    of_silver: dict[_Group, Counter[str]] = {}
    for file in table.files():
        for rows in read_row_groups(table.place, USAGE_EVENTS, file.path, names):
            for group, mine in _groups(rows):
                of_silver.setdefault(group, Counter()).update(silver.control_totals_of_usage(mine))
        steps.take()
    of_gold = {group: Counter(gold.control_totals(mine)) for group, mine in _groups(hourly)}
    here_by_hour, there_by_hour = _by_hour(of_silver), _by_hour(of_gold)
    differing = {hour for hour in here_by_hour | there_by_hour if here_by_hour[hour] != there_by_hour[hour]}
    found = [
        line
        for hour in sorted(differing)
        for line in _that_differ(text_of_time(hour), here_by_hour[hour], there_by_hour[hour])
    ]
    for hour, account in sorted(of_silver.keys() | of_gold.keys()):
        if hour not in differing:
            group = (hour, account)
            scope = f"{text_of_time(hour)}/{account or 'nobody'}"
            found += _that_differ(scope, of_silver.get(group, Counter()), of_gold.get(group, Counter()))
    return found


_Group = tuple[Any, str]
"""An hour or day, and an account."""


def _groups(rows: Any, by: str = "hour") -> Iterator[tuple[_Group, Any]]:
    for hour in pc.unique(rows.column(by)):
        of_hour = rows.filter(pc.equal(rows.column(by), hour))
        for account in pc.unique(of_hour.column("account_id")):
            yield (
                (hour.as_py(), account.as_py()),
                of_hour.filter(pc.equal(of_hour.column("account_id"), account)),
            )


def _by_hour(groups: Mapping[_Group, Counter[str]]) -> defaultdict[datetime.datetime, Counter[str]]:
    hours: defaultdict[datetime.datetime, Counter[str]] = defaultdict(Counter)
    for (hour, _), totals in groups.items():
        hours[hour].update(totals)
    return hours


def _that_differ(scope: str, here: Counter[str], there: Counter[str]) -> list[LayerComparison]:
    return [
        LayerComparison(scope, measure, here[measure], 0, 0, here[measure], there[measure])
        for measure in MEASURES
        if here[measure] != there[measure]
    ]

"""The sums of all layers, read again by tasks: of blocks, of each hour in silver and gold, of days and of latencies.

    bronze.blocks, quarantine   a file at a time   ──counts──▶ driver
    usage_events, usage_hourly  hours of a day     ──where they differ, by hour or account──▶
    usage_hourly, usage_daily   a day              ──where they differ, by account──▶
    usage_hourly, latency       a day              ──where they differ, by action──▶

A task has the sums of some hours, or of a day, by account and action. The driver has totals, and LINES_MAX lines.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.batch_rows import in_batches
from quaymaster_pipeline.usage.blocks import MEASURES
from quaymaster_pipeline.usage.tasks import Answers, answer_counts, answer_table
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    LATENCY_HOURLY,
    QUARANTINE,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
    TableSpec,
)
from quaymaster_pipeline.warehouse.tables import within
from quaymaster_pipeline.warehouse.times import text_of_time, time_of_us

LINES_MAX: Final = 1_000
"""So many places that differ are described; whether there are more, `LayerSums.unnamed` says."""
LINES_OF_ITEM: Final = 100
_COUNTS, _LINES = "sums", "lines"
_GOLD_SUMS: Final = ("requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")
_SILVER_SUMS: Final = ("messages", "bytes", "chunks", "http_status")
_LINE: Final = pa.schema(
    [("scope", pa.string()), *((name, pa.int64()) for name in ("measure", "here", "there"))]
)

Totals = Counter[str]
"""Control totals by measure."""


class SumLine(NamedTuple):
    """A place where two tables differ in a measure."""

    scope: str
    measure: str
    here: int
    there: int


class LayerSums:
    """What tasks answered, all of them together."""

    def __init__(self, answers: Answers) -> None:
        self._counts = answers.counts(_COUNTS)
        rows = [row for table in answers.tables(_LINES) for row in table.to_pylist()]
        lines = [SumLine(row["scope"], MEASURES[row["measure"]], row["here"], row["there"]) for row in rows]
        self.lines = sorted(lines)[:LINES_MAX]
        self.unnamed = self._counts["lines"] - len(self.lines)

    def of(self, layer: str) -> dict[str, int]:
        """Return the control totals of a layer: `blocks`, `silver` or `gold`; `quarantine` has `rows` alone."""
        return {measure: self._counts[f"{layer}.{measure}"] for measure in MEASURES}


def rows_work(places: Mapping[str, TablePlace], through: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file of blocks or of quarantine: count what batches up to `through` have."""

    def work(item: str) -> Iterator[Any]:
        name, path = json.loads(item)
        counts: Totals = Counter()
        if name == BLOCKS.name:
            for rows in read_row_groups(places[name], BLOCKS, path, ["batch_id", *MEASURES]):
                mine = in_batches(rows, 0, through)
                counts.update({f"blocks.{one}": pc.sum(mine.column(one)).as_py() or 0 for one in MEASURES})
        else:
            for rows in read_row_groups(places[name], QUARANTINE, path, ["batch_id", "block_row"]):
                mine = in_batches(rows, 0, through)
                counts["quarantine.rows"] += mine.num_rows - mine.column("block_row").null_count
        yield answer_counts(_COUNTS, counts)

    return work


def plan_rows(files: Iterable[tuple[TableSpec, Iterable[DataFile]]]) -> list[str]:
    """Return items for `rows_work`."""
    return [json.dumps([spec.name, file.path]) for spec, of_table in files for file in of_table]


def hours_work(places: Mapping[str, TablePlace], through: int) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with hours of a day (`day_plans`): compare silver and gold.

    By hour, and within hours that agree by account. Days whose requests have expired are only counted.
    """

    def work(item: str) -> Iterator[Any]:
        low, high, events, hours, expired_day = json.loads(item)
        of_silver: defaultdict[tuple[int, str], Totals] = defaultdict(Counter)
        of_gold: defaultdict[tuple[int, str], Totals] = defaultdict(Counter)
        names = ["hour", "account_id", "batch_id", *_SILVER_SUMS]
        for rows in _rows(places[USAGE_EVENTS.name], USAGE_EVENTS, events, names):
            mine = in_batches(_of_hours(rows, low, high), 0, through)
            _add_groups(of_silver, mine, silver.control_totals_of_usage)
        for rows in _rows(
            places[USAGE_HOURLY.name], USAGE_HOURLY, hours, ["hour", "account_id", *_GOLD_SUMS]
        ):
            _add_groups(of_gold, _of_hours(rows, low, high), gold.control_totals)
        totals: Totals = Counter()
        for layer, groups in (("silver", of_silver), ("gold", of_gold)):
            for sums in groups.values():
                totals.update({f"{layer}.{measure}": count for measure, count in sums.items()})
        yield from _answer(totals, [] if expired_day else _lines_of_hours(of_silver, of_gold))

    return work


def days_work(places: Mapping[str, TablePlace]) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a day: compare usage_daily and latencies with the hours."""

    def work(item: str) -> Iterator[Any]:
        date, days, hours, latencies = json.loads(item)
        of_days: defaultdict[str, Totals] = defaultdict(Counter)
        of_hours: defaultdict[str, Totals] = defaultdict(Counter)
        requests: Counter[tuple[int, str]] = Counter()
        counted: Counter[tuple[int, str]] = Counter()
        for rows in _rows(places[USAGE_DAILY.name], USAGE_DAILY, days, ["account_id", *_GOLD_SUMS]):
            _add_accounts(of_days, rows)
        names = ["hour", "account_id", "action", *_GOLD_SUMS]
        for rows in _rows(places[USAGE_HOURLY.name], USAGE_HOURLY, hours, names):
            _add_accounts(of_hours, rows)
            _add_actions(requests, rows)
        for rows in _rows(
            places[LATENCY_HOURLY.name], LATENCY_HOURLY, latencies, ["hour", "action", "requests"]
        ):
            _add_actions(counted, rows)
        lines = [
            line
            for account in sorted(of_days.keys() | of_hours.keys())
            for line in _differing(
                f"{USAGE_DAILY.name} {date}/{account or 'nobody'}", of_hours[account], of_days[account]
            )
        ]
        for hour_us, action in sorted(counted.keys() | requests.keys()):
            scope = f"{LATENCY_HOURLY.name} {text_of_time(time_of_us(hour_us))}/{action}"
            here, there = (Counter(rows=found[hour_us, action]) for found in (requests, counted))
            lines += _differing(scope, here, there)
        yield from _answer(Counter(), lines)

    return work


def plan_sums(
    days: Sequence[DataFile], hours: Sequence[DataFile], latencies: Sequence[DataFile]
) -> list[str]:
    """Return items for `days_work`: days, and the files that each has."""
    dates = sorted({str(file.partition_value) for file in (*days, *hours, *latencies)})
    return [
        json.dumps(
            [
                date,
                *(
                    [file.path for file in files if file.partition_value == date]
                    for files in (days, hours, latencies)
                ),
            ]
        )
        for date in dates
    ]


def _rows(place: TablePlace, spec: TableSpec, paths: Iterable[str], names: Sequence[str]) -> Iterator[Any]:
    for path in paths:
        yield from read_row_groups(place, spec, path, names)


def _of_hours(rows: Any, low_us: int, high_us: int) -> Any:
    return rows.filter(within(rows.column("hour").cast(pa.int64()), low_us, high_us))


def _add_groups(
    groups: defaultdict[tuple[int, str], Totals], rows: Any, totals_of: Callable[[Any], Mapping[str, int]]
) -> None:
    """Add control totals by hour and account."""
    for hour in pc.unique(rows.column("hour")):
        of_hour = rows.filter(pc.equal(rows.column("hour"), hour))
        hour_us = hour.cast(pa.int64()).as_py()
        for account in pc.unique(of_hour.column("account_id")):
            mine = of_hour.filter(pc.equal(of_hour.column("account_id"), account))
            groups[hour_us, account.as_py()].update(totals_of(mine))


def _add_accounts(accounts: defaultdict[str, Totals], rows: Any) -> None:
    summed = rows.group_by("account_id").aggregate([(name, "sum") for name in _GOLD_SUMS])
    for row in summed.to_pylist():
        accounts[row["account_id"]].update(
            rows=row["requests_sum"] or 0,
            **{name: row[f"{name}_sum"] or 0 for name in ("messages", "bytes", "chunks")},
            errors=(row["errors_4xx_sum"] or 0) + (row["errors_5xx_sum"] or 0),
        )


def _add_actions(counts: Counter[tuple[int, str]], rows: Any) -> None:
    summed = rows.group_by(["hour", "action"]).aggregate([("requests", "sum")])
    hours = summed.column("hour").cast(pa.int64()).to_pylist()
    columns = (summed.column(name).to_pylist() for name in ("action", "requests_sum"))
    for hour_us, action, requests in zip(hours, *columns, strict=True):
        counts[hour_us, action] += requests or 0


def _lines_of_hours(
    of_silver: Mapping[tuple[int, str], Totals], of_gold: Mapping[tuple[int, str], Totals]
) -> list[SumLine]:
    here, there = _by_hour(of_silver), _by_hour(of_gold)
    differing = {hour_us for hour_us in here.keys() | there.keys() if here[hour_us] != there[hour_us]}
    lines = [
        line
        for hour_us in sorted(differing)
        for line in _differing(text_of_time(time_of_us(hour_us)), here[hour_us], there[hour_us])
    ]
    nothing: Totals = Counter()
    for hour_us, account in sorted(of_silver.keys() | of_gold.keys()):
        if hour_us not in differing:
            scope = f"{text_of_time(time_of_us(hour_us))}/{account or 'nobody'}"
            group = hour_us, account
            lines += _differing(scope, of_silver.get(group, nothing), of_gold.get(group, nothing))
    return lines


def _by_hour(groups: Mapping[tuple[int, str], Totals]) -> defaultdict[int, Totals]:
    hours: defaultdict[int, Totals] = defaultdict(Counter)
    for (hour_us, _), totals in groups.items():
        hours[hour_us].update(totals)
    return hours


def _differing(scope: str, here: Totals, there: Totals) -> list[SumLine]:
    return [
        SumLine(scope, measure, here[measure], there[measure])
        for measure in MEASURES
        if here[measure] != there[measure]
    ]


def _answer(totals: Totals, lines: Sequence[SumLine]) -> Iterator[Any]:
    rows = [line._asdict() | {"measure": MEASURES.index(line.measure)} for line in lines[:LINES_OF_ITEM]]
    yield answer_counts(_COUNTS, {**totals, "lines": len(lines)})
    if rows:
        yield answer_table(_LINES, pa.Table.from_pylist(rows, schema=_LINE))

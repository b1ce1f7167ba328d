"""Closes days: each request of a day is compared once in all layers, and the sums of the day become final.

    blocks, usage_events        batches since the last close: what the blocks say is what silver has
    usage_events, usage_hourly  hours of the days that are closed, key by key
    usage_hourly, usage_daily   the days, key by key; usage that is late: usage_events, usage_daily
    usage_daily                 ──one commit: a closed file in place of a day's others──▶ ops.closes, ops.close_heads

A day is due once every front end is past it, and all layers have the blocks that say so. The commit to usage_daily
decides: its note has the rows of ops.closes, and names the file with the heads of chains, which follow. A batch that
commits meanwhile is left for the next close; if another job replaced one of the files, the close is planned again. Days
that differ stay open.

Tasks read and write. The driver has lists of files, and a line for each day.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from quaymaster_pipeline.checks.close_heads import digest_of_heads, head_rows, plan_shares
from quaymaster_pipeline.checks.reconciliation import LayerComparison, last_batch_of_all
from quaymaster_pipeline.checks.usage_breaks import UsageBreak
from quaymaster_pipeline.checks.verification import compare_hours_of
from quaymaster_pipeline.jobs.close_tasks import (
    CLOSED_DAY,
    COUNTED,
    HEADERS,
    HEADS,
    USAGE,
    closing_work,
    counting_work,
)
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.batch_rows import files_of_batches
from quaymaster_pipeline.usage.blocks import MEASURES
from quaymaster_pipeline.usage.partial_sums import whole_coverage
from quaymaster_pipeline.usage.tasks import Workers
from quaymaster_pipeline.warehouse.closes import (
    APP,
    SUMS,
    DayClose,
    are_closed_files,
    closed_through,
    closes_table,
    last_closed_day,
    noted_closes,
    noted_heads,
    read_closes,
    sealed,
)
from quaymaster_pipeline.warehouse.data_files import RESTORE, DataFile, delete_files
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict
from quaymaster_pipeline.warehouse.schemas import (
    BLOCKS,
    CLOSE_HEADS,
    CLOSES,
    USAGE_DAILY,
    USAGE_EVENTS,
    USAGE_HOURLY,
)
from quaymaster_pipeline.warehouse.tables import NO_BATCH, Table, Warehouse, planning_again
from quaymaster_pipeline.warehouse.times import time_of_us, us_of_time

_DAY: Final = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Closed:
    """What a close did. `closes` are the rows of ops.closes that it added; `differences` kept some day open.

    `breaks` say where hours differ, at most a hundred.
    """

    closes: tuple[DayClose, ...] = ()
    differences: tuple[LayerComparison, ...] = ()
    breaks: tuple[UsageBreak, ...] = ()

    @property
    def open_days(self) -> list[str]:
        """What is to be named to accept the differences, in order."""
        return list(dict.fromkeys(one.scope for one in self.differences))


@dataclass(frozen=True, slots=True)
class _Day:
    """One day of a close, and the files that the task needs: what is right, and what is in usage_daily."""

    date: str
    is_late: bool
    right: tuple[DataFile, ...]
    found: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one close is about: batches after `before` up to `through`, and days up to `last_day`, in order."""

    number: int
    before: int
    through: int
    last_day: datetime.date
    last_closed: datetime.date | None
    totals: Mapping[str, int]
    """What silver has counted of all batches up to `through`."""
    totals_before: Mapping[str, int]
    days: tuple[_Day, ...]
    blocks: tuple[DataFile, ...]
    events_of_batches: tuple[DataFile, ...]
    events_of_days: tuple[DataFile, ...]
    """Of the days that are closed for the first time."""


@dataclass(frozen=True, slots=True)
class _ClosedDay:
    """What a task found of a day: its sums, the sums of what is right, and the closed file."""

    file: DataFile | None
    file_hash: bytes
    sums: Mapping[str, int]
    right: Mapping[str, int]
    is_equal: bool


def close_days(
    workers: Workers,
    warehouse: Warehouse,
    now: datetime.datetime,
    *,
    takes_late: bool = False,
    accepted: Collection[str] = (),
) -> Closed:
    """Close every day that is due, in order; nothing when none is. A second call adds nothing.

    `takes_late`: also close usage that came late to closed days when no further day is due. `accepted` are days, or
    batches, as `Closed.open_days` names them, that are closed although their layers differ.

    Raises:
        CommitConflict: others replaced the files again and again, or a batch is under way that does not end.
        BrokenTable: a table cannot be read.
    """

    def close() -> Closed:
        warehouse.refresh()
        complete_closes(warehouse)
        plan = _plan(warehouse, now, takes_late=takes_late)
        return Closed() if plan is None else _close(workers, warehouse, plan, now, frozenset(accepted))

    return planning_again(close)


def complete_closes(warehouse: Warehouse) -> None:
    """Add what belongs to a close to its tables, if a killed run left it to the commit of usage_daily alone.

    Raises:
        BrokenTable: ops.closes has more closes, so usage_daily was made again, or restored.
    """
    daily, closes = warehouse.table(USAGE_DAILY), warehouse.table(CLOSES)
    if closes.last_batch(APP) > daily.last_batch(APP):
        # Another process may have closed since it was looked at.
        daily.refresh()
    number = daily.last_batch(APP)
    if closes.last_batch(APP) > number:
        raise BrokenTable(
            f"the table {USAGE_DAILY.name} is broken: {CLOSES.name} has {closes.last_batch(APP) + 1} closes, and it "
            f"has {number + 1}: it was made again, or restored; {RESTORE}"
        )
    files, heads = noted_heads(daily), warehouse.table(CLOSE_HEADS)
    if files and heads.last_batch(APP) < number:
        heads.commit(APP, number, files)
    if closes.last_batch(APP) < number:
        closes.commit(APP, number, closes.write(APP, closes_table(noted_closes(warehouse))))


class DayCloser:
    """Closes days as they become due, looking now and then: a wait for a front end need not ask every second."""

    LOOK_US: Final = 600_000_000

    def __init__(self) -> None:
        self._next = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    def keep(self, workers: Workers, warehouse: Warehouse, now: datetime.datetime) -> Closed:
        """Close what is due, if it is time to look. After a difference that is once a day: it reads a day again.

        Late usage alone is closed once a day at most, as closed files are not merged. It is closed also when a clock
        that was ahead has closed days of the future.
        """
        last_day, noted = last_closed_day(warehouse), noted_closes(warehouse)
        is_behind = last_day is None or last_day < now.date() - _DAY
        takes_late = any(close.closed_time.date() != now.date() for close in noted)
        # A clock that was ahead, and is not any more, may have looked last.
        waits = now < self._next <= now + _DAY
        if waits or not (is_behind or takes_late):
            return Closed()
        self._next = now + datetime.timedelta(microseconds=self.LOOK_US)
        closed = close_days(workers, warehouse, now, takes_late=takes_late)
        if closed.differences:
            self._next = now + _DAY
        return closed


# Planning


def _plan(warehouse: Warehouse, now: datetime.datetime, *, takes_late: bool) -> _Plan | None:
    # First: tables that are looked at later have at least these batches.
    last_day = _last_day_due(warehouse, now)
    last_closed = last_closed_day(warehouse)
    if last_closed is not None and (last_day is None or last_day <= last_closed):
        last_day = last_closed if takes_late else None
    if last_day is None:
        return None
    through = last_batch_of_all(warehouse, USAGE_HOURLY, USAGE_DAILY)
    events, hourly, daily = (warehouse.table(spec) for spec in (USAGE_EVENTS, USAGE_HOURLY, USAGE_DAILY))
    note = daily.note(APP)
    before = closed_through(warehouse)
    days = _days(events, hourly, daily, (before + 1, through), (last_closed, last_day))
    if not days and last_closed in (None, last_day):
        return None
    blocks = warehouse.table(BLOCKS)
    blocks.refresh()
    return _Plan(
        daily.last_batch(APP) + 1,
        before,
        through,
        last_day,
        last_closed,
        events.note(silver.APP).get("totals", {}),
        note.get("totals", {}),
        tuple(days),
        tuple(files_of_batches(blocks, before + 1, through)),
        tuple(files_of_batches(events, before + 1, through)),
        tuple(events.files(events.lines_of(day.date for day in days if not day.is_late))),
    )


def _days(
    events: Table,
    hourly: Table,
    daily: Table,
    batches: tuple[int, int],
    days: tuple[datetime.date | None, datetime.date],
) -> list[_Day]:
    """Return the days of which some table has usage that is not closed; of closed ones, what these batches brought."""
    last_closed = "" if days[0] is None else days[0].isoformat()
    right: dict[str, list[DataFile]] = {}
    found: dict[str, list[DataFile]] = {}
    first_open = None if days[0] is None else (days[0] + _DAY).isoformat()
    for file in hourly.files(hourly.lines_of_days(begin=first_open)):
        right.setdefault(str(file.partition_value), []).append(file)
    for date in events.partitions():
        if last_closed < date:
            right.setdefault(date, [])
    for file in files_of_batches(events, *batches):
        if str(file.partition_value) <= last_closed:
            right.setdefault(str(file.partition_value), []).append(file)
    lines = daily.file_lines()
    if lines.num_rows:
        lines = lines.filter(pc.invert(are_closed_files(lines.column("path"))))
    for file in daily.files(lines):
        found.setdefault(str(file.partition_value), []).append(file)
    return [
        _Day(date, date <= last_closed, tuple(right.get(date, ())), tuple(found.get(date, ())))
        for date in sorted(right.keys() | found.keys())
        if date <= days[1].isoformat()
    ]


def _last_day_due(warehouse: Warehouse, now: datetime.datetime) -> datetime.date | None:
    """Return the last day that every front end is past, by blocks that all layers have; None when there is none."""
    if warehouse.table(USAGE_DAILY).last_batch(gold.APP) == NO_BATCH:
        return None
    closed_us = whole_coverage(warehouse).closed_until_us()
    # Where all front ends have ended, and all they wrote is there, every day before today is over.
    # A front end whose clock was ahead is past no day that is not over.
    until_us = us_of_time(now) if closed_us is None else min(us_of_time(now), closed_us)
    return time_of_us(until_us).date() - _DAY


# Closing


def _close(
    workers: Workers, warehouse: Warehouse, plan: _Plan, now: datetime.datetime, accepted: Collection[str]
) -> Closed:
    counted, of_batches, heads = _compare_batches(workers, warehouse, plan)
    if _refused(of_batches, accepted):
        return Closed(differences=tuple(of_batches))
    breaks = _compare_hours(workers, warehouse, plan)
    written = _write_days(workers, warehouse, plan)
    of_days = {day.date: _differences_of(day, written[day.date], breaks) for day in plan.days}
    differences = (*of_batches, *(one for found in of_days.values() for one in found))
    kept, last_day = _kept(plan, of_days, accepted)
    unkept = (written[day.date].file for day in plan.days if day not in kept)
    delete_files(warehouse.place(USAGE_DAILY), filter(None, unkept))
    of_dates = {date: sum(one.difference for one in found) for date, found in of_days.items()}
    rows = _rows_of(plan, kept, written, of_dates, last_day, now)
    if rows:
        rows[0] = rows[0]._replace(
            blocks=counted["blocks"],
            block_rows=counted[f"{HEADERS}.rows"],
            heads=heads.num_rows,
            heads_hash=digest_of_heads(heads),
            difference=rows[0].difference + sum(one.difference for one in of_batches),
        )
        rows = [row._replace(accepted=row.difference > 0) for row in rows]
        last = read_closes(warehouse)[-1:]
        rows = sealed(rows, last[0].hash if last else b"")
        _commit(warehouse, plan, kept, written, rows, last_day, heads)
    return Closed(tuple(rows), differences, tuple(breaks))


def _kept(
    plan: _Plan, of_days: Mapping[str, Sequence[LayerComparison]], accepted: Collection[str]
) -> tuple[list[_Day], datetime.date | None]:
    """Return the days that are closed, and the last day that is then: all before the first that differs.

    Where late usage differs nothing is closed: the next close would not know it from what was closed.
    """
    differing = [day for day in plan.days if _refused(of_days[day.date], accepted)]
    if any(day.is_late for day in differing):
        return [], plan.last_closed
    if not differing:
        return list(plan.days), plan.last_day
    first = differing[0].date
    before = datetime.date.fromisoformat(first) - _DAY
    if plan.last_closed is None and not any(day.date < first for day in plan.days):
        return [], None
    last_day = before if plan.last_closed is None else max(before, plan.last_closed)
    return [day for day in plan.days if day.date < first], last_day


def _commit(
    warehouse: Warehouse,
    plan: _Plan,
    kept: Sequence[_Day],
    written: Mapping[str, _ClosedDay],
    rows: Sequence[DayClose],
    last_day: datetime.date | None,
    heads: Any,
) -> None:
    adds = [file for day in kept if (file := written[day.date].file) is not None]
    removes = [file for day in kept for file in day.found]
    note = {
        "closes": [row.to_json() for row in rows],
        "totals": dict(plan.totals),
        "last_day": None if last_day is None else last_day.isoformat(),
        "heads": [file.to_json() for file in warehouse.table(CLOSE_HEADS).write(APP, heads)],
    }
    daily = warehouse.table(USAGE_DAILY)
    if not daily.commit(APP, plan.number, adds, removes=removes, note=note):
        raise CommitConflict(f"another process closed days of {USAGE_DAILY.name} meanwhile")
    complete_closes(warehouse)


def _refused(differences: Iterable[LayerComparison], accepted: Collection[str]) -> bool:
    return any(one.scope not in accepted for one in differences)


def _rows_of(
    plan: _Plan,
    kept: Sequence[_Day],
    written: Mapping[str, _ClosedDay],
    differences: Mapping[str, int],
    last_day: datetime.date | None,
    now: datetime.datetime,
) -> list[DayClose]:
    """Return the rows of ops.closes: one for each day with usage, and one for the last day that is closed now."""
    # Files of batches may have none of a closed day: that it had no late usage is nothing to note.
    of_dates = {
        day.date: (day.is_late, written[day.date])
        for day in kept
        if not day.is_late or written[day.date].file is not None or differences.get(day.date)
    }
    dates = set(of_dates)
    if last_day is not None and last_day != plan.last_closed:
        dates.add(last_day.isoformat())
    rows = []
    for date in sorted(dates):
        is_late, done = of_dates.get(date, (False, None))
        file = None if done is None else done.file
        sums: dict[str, Any] = {name: 0 if done is None else done.sums[name] for name in SUMS}
        rows.append(
            DayClose(
                number=plan.number,
                day=datetime.date.fromisoformat(date),
                is_late=is_late,
                first_batch=plan.before + 1,
                through_batch=plan.through,
                closed_time=now.replace(microsecond=0),
                **sums,
                blocks=0,
                block_rows=0,
                difference=differences.get(date, 0),
                accepted=False,
                files=() if file is None else (file.path,),
                file_hashes=() if file is None or done is None else (done.file_hash,),
                previous=b"",
                heads=0,
                heads_hash=b"",
            )
        )
    return rows


# Comparing


def _compare_batches(
    workers: Workers, warehouse: Warehouse, plan: _Plan
) -> tuple[Counter[str], list[LayerComparison], Any]:
    """Compare what the blocks since the last close say with what silver has of them, to the last request.

    Also return the last block of each incarnation among them, as rows of ops.close_heads.
    """
    items = [json.dumps([HEADERS, file.path]) for file in plan.blocks]
    items += [json.dumps([USAGE, file.path]) for file in plan.events_of_batches]
    shares = plan_shares(sum(file.rows for file in plan.blocks), workers.cores)
    items += [json.dumps([HEADS, share]) for share in shares]
    work = counting_work(
        warehouse.place(BLOCKS),
        warehouse.place(USAGE_EVENTS),
        [file.path for file in plan.blocks],
        plan.before + 1,
        plan.through,
    )
    answers = workers.over(items, work)
    counted = answers.counts(COUNTED)
    heads = head_rows(answers.tables(HEADS), plan.number, plan.through)
    since = Counter(plan.totals)
    since.subtract(plan.totals_before)
    found = []
    for measure in MEASURES:
        headers, usage = counted[f"{HEADERS}.{measure}"], counted[f"{USAGE}.{measure}"]
        noted = [since[f"{what}.{measure}"] for what in ("blocks", "duplicates", "quarantine", "usage")]
        # What silver noted is its own; both it and the rows must be what the blocks say.
        if noted[0] != headers or noted[3] != usage or headers != noted[1] + noted[2] + usage:
            # A run may take more until an operator has accepted it by this name.
            scope = f"batches from {plan.before + 1} on"
            found.append(LayerComparison(scope, measure, headers, noted[1], noted[2], usage, noted[3]))
    return counted, found, heads


def _compare_hours(workers: Workers, warehouse: Warehouse, plan: _Plan) -> list[UsageBreak]:
    """Compare the hours of days that are closed for the first time with silver, key by key."""
    hours = [file for day in plan.days if not day.is_late for file in day.right]
    tables = warehouse.table(USAGE_EVENTS), warehouse.table(USAGE_HOURLY)
    return compare_hours_of(workers, *tables, (plan.events_of_days, hours), plan.through)


def _write_days(workers: Workers, warehouse: Warehouse, plan: _Plan) -> dict[str, _ClosedDay]:
    items = [
        json.dumps(
            [day.date, day.is_late, *([one.to_json() for one in files] for files in (day.right, day.found))]
        )
        for day in plan.days
    ]
    places = (warehouse.place(spec) for spec in (USAGE_EVENTS, USAGE_HOURLY, USAGE_DAILY))
    answers = workers.over(items, closing_work(*places, first=plan.before + 1, last=plan.through))
    files = {str(file.partition_value): file for file in answers.files(USAGE_DAILY.name)}
    found = {}
    for table in answers.tables(CLOSED_DAY):
        for row in table.to_pylist():
            sums, right = ({name: row[f"{side}_{name}"] for name in SUMS} for side in ("found", "right"))
            date = row["date"]
            found[date] = _ClosedDay(files.get(date), row["file_hash"], sums, right, row["is_equal"])
    return found


def _differences_of(day: _Day, done: _ClosedDay, breaks: Iterable[UsageBreak]) -> list[LayerComparison]:
    """Return where a day's sums are not what they must be; where only single keys differ, one line says so."""
    found = [
        LayerComparison(day.date, measure, right, 0, 0, right, done.sums[name])
        for measure, name in (("rows", "requests"), *((name, name) for name in SUMS[1:]))
        if (right := done.right[name]) != done.sums[name]
    ]
    is_broken = not done.is_equal or any((one.hour or "").startswith(day.date) for one in breaks)
    if is_broken and not found:
        found = [LayerComparison(day.date, "keys", 1, 0, 0, 1, 0)]
    return found

"""Backfill: hours summed up from silver again, by tasks, and put in place of what gold has otherwise.

    files of silver ──sum up──▶ right sums, in files that no table gets
    right sums and gold's files of the same hours ──compare──▶ a file in place of gold's, where any hour differs
    files of hours ──compare──▶ the same for days

The driver sees lists of files, and which hours were wrong.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.batch_rows import files_of_batches
from quaymaster_pipeline.usage.expired import ExpiredUsage, expired_usage
from quaymaster_pipeline.usage.gold import DAILY, HOURLY
from quaymaster_pipeline.usage.latency import LATENCY
from quaymaster_pipeline.usage.partial_sums import WrittenSums, complete, summing_work
from quaymaster_pipeline.usage.tasks import Workers, answer_counts, answer_files, answer_table
from quaymaster_pipeline.warehouse.closes import closed_through, is_closed_file, last_closed_day
from quaymaster_pipeline.warehouse.data_files import DataFile, FileWriter, TablePlace, delete_files, read_file
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict, UsageHasExpired
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS, USAGE_HOURLY, TableSpec
from quaymaster_pipeline.warehouse.steps import Steps, Watch
from quaymaster_pipeline.warehouse.sums import SumTable, add_up, read_sorted, summed
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, planning_again, within
from quaymaster_pipeline.warehouse.times import (
    DAY_US,
    bound_of_time,
    text_of_time,
    time_of_us,
    us_of_date,
    us_of_time,
)

APP: Final = "backfill"
_CHECK: Final = "check"
_REPLACED: Final = "replaced"
_TOTALS: Final = "totals"
_FILES_OF_TASK: Final = 64


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Hours that were summed up, and what was wrong and was replaced: hours of usage, days, hours of latencies."""

    hours: int
    replaced: tuple[str, ...]
    days_replaced: tuple[str, ...]
    latency_replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """Files of the same hours or day: what is right, and what the table has."""

    right: tuple[DataFile, ...]
    found: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class _Compared:
    """Periods by whether they are wrong, and the items whose files are replaced by those that were written."""

    periods: Mapping[str, bool]
    removes: tuple[DataFile, ...]
    adds: tuple[DataFile, ...]

    @property
    def wrong(self) -> tuple[str, ...]:
        return tuple(sorted(period for period, is_wrong in self.periods.items() if is_wrong))


def backfill(
    workers: Workers, warehouse: Warehouse, first_us: int, end_us: int, watch: Watch | None = None
) -> Backfilled:
    """Sum up the hours in [first_us, end_us) again from silver, and their days; replace those that gold has otherwise.

    Files of gold that cannot be read are replaced, too. A step is a file of events. A pipeline may run beside it: what
    silver has at the beginning is compared, and batches that gold gets meanwhile stay as they are.

    Days whose requests have expired stay as they are.

    Raises:
        UsageHasExpired: `first_us` is of such a day.
        BrokenTable: such a file may have hours that were not asked for, or another table is broken.
        CommitConflict: others replaced the files again and again.
    """
    seen = (warehouse.table(spec) for spec in (USAGE_EVENTS, HOURLY.spec, LATENCY.spec, DAILY.spec))
    return planning_again(lambda: _backfill(workers, warehouse, (first_us, end_us), watch), *seen)


def _backfill(
    workers: Workers, warehouse: Warehouse, hours_us: tuple[int, int], watch: Watch | None
) -> Backfilled:
    events = warehouse.table(USAGE_EVENTS)
    hours_us = _of_whole_days(hours_us, expired_usage(events))
    through = events.last_batch(silver.APP)
    # What a killed run left: summed up here and appended by the next run, it would count twice.
    complete(workers, warehouse, through)
    paths = [file.path for file in events.files()]
    places = {sums.spec.name: warehouse.place(sums.spec) for sums in (HOURLY, LATENCY)}
    work = summing_work(events.place, places, APP, 0, through, hours_us)
    steps = None if watch is None else Steps(len(paths), watch)
    right = WrittenSums.of(workers.over(paths, work, None if steps is None else steps.take))
    try:
        latencies = _compare_hours(workers, warehouse, LATENCY, right, hours_us, through)
        _replace(warehouse.table(LATENCY.spec), latencies)
        hours = _compare_hours(workers, warehouse, HOURLY, right, hours_us, through)
        _replace_hours(workers, warehouse.table(HOURLY.spec), hours)
    finally:
        for name, place in places.items():
            delete_files(place, right.files.get(name, ()))
    days = _compare_days(workers, warehouse, hours_us, through)
    _replace(warehouse.table(DAILY.spec), days)
    late = _compare_late(workers, warehouse, hours_us, through)
    _replace(warehouse.table(DAILY.spec), late)
    return Backfilled(len(hours.periods), hours.wrong, (*late.wrong, *days.wrong), latencies.wrong)


def _of_whole_days(hours_us: tuple[int, int], expired: ExpiredUsage) -> tuple[int, int]:
    """Return these hours without days whose requests have expired: of those there is nothing to sum up.

    Raises:
        UsageHasExpired: some of them were asked for by name.
    """
    if not expired.before:
        return hours_us
    first_us = us_of_date(expired.before)
    first, end = hours_us
    if 0 < first < first_us:
        raise UsageHasExpired(
            f"requests of days before {expired.before} have expired, so their hours cannot be summed up again"
        )
    return max(first, first_us), max(end, first_us)


def _compare_hours(
    workers: Workers,
    warehouse: Warehouse,
    sums: SumTable,
    right: WrittenSums,
    hours_us: tuple[int, int],
    through: int,
) -> _Compared:
    table = warehouse.table(sums.spec)
    low, high = (bound_of_time(_time(time_us)) for time_us in (hours_us[0], hours_us[1] - 1))
    found = [file for file in _files_through(table, through) if file.may_have("hour", low, high)]
    items = items_of_hours(right.files.get(sums.spec.name, []), found)
    return _compared(
        workers, items, sums, comparing_work(table.place, sums, sums.spec, table.place, hours_us)
    )


def _files_through(table: Table, through: int) -> list[DataFile]:
    """Return the files of batches up to `through`; CommitConflict if one has later batches as well: it was merged."""
    found = []
    for file in table.files():
        first, last = (file.bounds.get(name, (0, 0)) for name in ("first_batch", "last_batch"))
        if first[0] <= through < last[1]:
            raise CommitConflict(f"{file.path} of {table.spec.name} has batches after {through}, too")
        if last[1] <= through:
            found.append(file)
    return found


def _compare_days(
    workers: Workers, warehouse: Warehouse, hours_us: tuple[int, int], through: int
) -> _Compared:
    """Compare open days with their hours. Closed ones stay: their files are not rewritten."""
    hourly, daily = warehouse.table(HOURLY.spec), warehouse.table(DAILY.spec)
    last_closed = last_closed_day(warehouse)
    days: dict[str, tuple[list[DataFile], list[DataFile]]] = {}
    for at, table in enumerate((hourly, daily)):
        for file in _files_through(table, through):
            if _touches(file.partition_value, hours_us) and not _is_of_closed_day(file, last_closed):
                days.setdefault(str(file.partition_value), ([], []))[at].append(file)
    items = [_Item(tuple(right), tuple(found)) for _, (right, found) in sorted(days.items())]
    return _compared(workers, items, DAILY, comparing_work(daily.place, DAILY, HOURLY.spec, hourly.place))


def _compare_late(
    workers: Workers, warehouse: Warehouse, hours_us: tuple[int, int], through: int
) -> _Compared:
    """Compare usage that came after its day was closed with silver, by its batches."""
    events, daily = warehouse.table(USAGE_EVENTS), warehouse.table(DAILY.spec)
    last_closed, first = last_closed_day(warehouse), closed_through(warehouse) + 1
    sources = [
        file.path
        for file in files_of_batches(events, first, through)
        if _touches(file.partition_value, hours_us) and _is_of_closed_day(file, last_closed)
    ]
    work = summing_work(events.place, {DAILY.spec.name: daily.place}, APP, first, through)
    right = WrittenSums.of(workers.over(sources, work)).files.get(DAILY.spec.name, [])
    days: dict[str, tuple[list[DataFile], list[DataFile]]] = {}
    found = (file for file in _files_through(daily, through) if not is_closed_file(file.path))
    for at, files in enumerate((right, found)):
        for file in files:
            if _touches(file.partition_value, hours_us) and _is_of_closed_day(file, last_closed):
                days.setdefault(str(file.partition_value), ([], []))[at].append(file)
    try:
        items = [_Item(tuple(here), tuple(there)) for _, (here, there) in sorted(days.items())]
        return _compared(workers, items, DAILY, comparing_work(daily.place, DAILY, DAILY.spec, daily.place))
    finally:
        delete_files(daily.place, right)


def _is_of_closed_day(file: DataFile, last_closed: datetime.date | None) -> bool:
    return last_closed is not None and str(file.partition_value) <= last_closed.isoformat()


def items_of_hours(right: Iterable[DataFile], found: Iterable[DataFile]) -> list[_Item]:
    """Return files by the hours that they have: no hour is in files of two items."""
    files = sorted(
        [*((file, 0) for file in right), *((file, 1) for file in found)],
        key=lambda pair: pair[0].bounds["hour"][0],
    )
    items: list[tuple[list[DataFile], list[DataFile]]] = []
    end = ""
    for file, side in files:
        low, high = file.bounds["hour"]
        if not items or low > end:
            items.append(([], []))
        items[-1][side].append(file)
        end = max(end, high)
    return [_Item(tuple(right), tuple(found)) for right, found in items]


def _compared(
    workers: Workers, items: Sequence[_Item], sums: SumTable, work: Callable[[str], Iterator[Any]]
) -> _Compared:
    texts = [
        json.dumps([at, *([file.to_json() for file in files] for files in (item.right, item.found))])
        for at, item in enumerate(items)
    ]
    answers = workers.over(texts, work)
    periods = {
        row["period"]: row["is_wrong"] for check in answers.tables(_CHECK) for row in check.to_pylist()
    }
    replaced = [row["item"] for one in answers.tables(_REPLACED) for row in one.to_pylist()]
    removes = [file for at in replaced for file in items[at].found]
    return _Compared(periods, tuple(removes), tuple(answers.files(sums.spec.name)))


def comparing_work(
    place: TablePlace,
    sums: SumTable,
    right_spec: TableSpec,
    right_place: TablePlace,
    hours_us: tuple[int, int] | None = None,
) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with one item: compare what is right with what was found, and write what must take its
    place.

    With `hours_us`, only these hours are compared, and rows of others that the same files have stay.
    """
    schema = sums.spec.file_schema

    def work(text: str) -> Iterator[Any]:
        at, *sides = json.loads(text)
        right, found = ([DataFile.from_json(fields) for fields in side] for side in sides)
        date = (found or right)[0].partition_value

        def right_rows() -> Iterator[Any]:
            streams = (sorted_rows(right_place, right_spec, file, sums, len(right)) for file in right)
            return summed(streams, sums.keys, schema)

        def found_rows(files: Sequence[DataFile], *, is_inside: bool) -> Iterator[Any]:
            streams = (read_sorted(place, sums.spec, file, schema, of_files=len(files)) for file in files)
            for rows in summed(streams, sums.keys, schema):
                yield _of_hours(rows, hours_us, is_inside=is_inside)

        readable = [file for file in found if _can_be_read(place, sums.spec, file)]
        for file in found:
            if file not in readable and hours_us is not None and not _lies_in(file, hours_us):
                read_file(place, sums.spec, file.path)
        here = digests_by_period(right_rows(), hours_us is not None)
        there = digests_by_period(found_rows(readable, is_inside=True), hours_us is not None)
        wrong = {period for period in here | there if here.get(period) != there.get(period)}
        if len(readable) < len(found) and hours_us is None:
            wrong |= {None}
        lines = [
            {
                "period": str(date) if period is None else text_of_time(_time(period)),
                "is_wrong": period in wrong,
            }
            for period in {*here, *there, *wrong}
        ]
        yield answer_table(_CHECK, pa.Table.from_pylist(lines, schema=_CHECK_SCHEMA))
        if not wrong and len(readable) == len(found):
            return
        rows = [right_rows()]
        if hours_us is not None:
            rows.append(found_rows(readable, is_inside=False))
        with FileWriter(place, sums.spec, APP, date) as writer:
            for part in summed(rows, sums.keys, schema):
                writer.write(part)
            written = writer.finish()
        yield from answer_files(sums.spec.name, [written])
        yield answer_table(_REPLACED, pa.table({"item": [at]}))

    return work


_CHECK_SCHEMA: Final = pa.schema([("period", pa.string()), ("is_wrong", pa.bool_())])


def sorted_rows(
    place: TablePlace, spec: TableSpec, file: DataFile, sums: SumTable, of_files: int
) -> Iterator[Any]:
    """Yield a file's rows in the order of the keys of `sums`, which may be of days while the file is of hours."""
    schema = sums.spec.file_schema
    if spec.name == sums.spec.name or file.bounds["hour"][0] == file.bounds["hour"][1]:
        return read_sorted(place, spec, file, schema, of_files=of_files)
    return iter([add_up(read_file(place, spec, file.path, schema.names), sums.keys, schema)])


def digests_by_period(tables: Iterable[Any], by_hour: bool) -> dict[int | None, list[bytes]]:
    """Return digests of the rows of each hour, or of all, whatever they are cut into: equal if all rows are."""
    digests: dict[int | None, list[Any] | None] = {}
    for table in tables:
        if not table.num_rows:
            continue
        parts: list[tuple[int | None, Any]] = [(None, table)]
        if by_hour:
            hours = table.column("hour").cast(pa.int64())
            parts = [
                (hour, table.filter(pc.equal(hours, hour))) for hour in sorted(pc.unique(hours).to_pylist())
            ]
        for period, rows in parts:
            digests[period] = add_to_digests(digests.get(period), rows)
    return {period: [digest.digest() for digest in of_period or ()] for period, of_period in digests.items()}


def add_to_digests(digests: list[Any] | None, rows: Any) -> list[Any]:
    """Return digests of the columns of all rows so far; None before the first."""
    columns = [part for name in rows.column_names for part in _plain_columns(rows.column(name))]
    digests = [hashlib.blake2b() for _ in columns] if digests is None else digests
    for digest, column in zip(digests, columns, strict=True):
        digest.update(column)
    return digests


def _plain_columns(column: Any) -> list[bytes]:
    """Return a column as bytes that only depend on its values: numbers, or texts and their lengths."""
    if not pa.types.is_string(column.type):
        return [pc.fill_null(column.cast(pa.int64()), 0).to_numpy().tobytes()]
    array = pa.concat_arrays([pc.fill_null(chunk, "\0") for chunk in column.chunks])
    lengths = pc.binary_length(array).to_numpy()
    _, offsets, data = array.buffers()
    first = int(np.frombuffer(offsets, np.int32)[array.offset])
    texts = b"" if data is None else bytes(memoryview(data)[first : first + int(lengths.sum())])
    return [lengths.tobytes(), texts]


def _replace(
    table: Table, compared: _Compared, counts: Mapping[str, Mapping[str, int]] | None = None
) -> None:
    """Commit what follows the version that was planned by: what is only added, another backfill may have added, too."""
    if compared.adds or compared.removes:
        number = table.last_batch(APP) + 1
        if not table.commit(APP, number, compared.adds, removes=compared.removes, counts=counts):
            raise CommitConflict(f"another backfill wrote to the table {table.spec.name} meanwhile")


def _replace_hours(workers: Workers, table: Table, compared: _Compared) -> None:
    """Put the right hours in place of wrong ones, and the control totals of all that there is then in the note.

    The totals of the wrong rows are not known, nor whether the note of before was of them. So all files are
    summed up, and by as much as the note of the same version is off, it is corrected; batches add to it meanwhile.
    """
    if not compared.adds and not compared.removes:
        return
    noted = table.note(gold.TOTALS)
    gone = {file.path for file in compared.removes}
    paths = [file.path for file in (*table.files(), *compared.adds) if file.path not in gone]
    items = [json.dumps(paths[at : at + _FILES_OF_TASK]) for at in range(0, len(paths), _FILES_OF_TASK)]
    # Also where no file is left: then each total is 0.
    totals = Counter(gold.control_totals(USAGE_HOURLY.schema.empty_table()))
    totals.update(workers.over(items, _totals_work(table.place)).counts(_TOTALS))
    off = {measure: count - noted.get(measure, 0) for measure, count in totals.items()}
    _replace(table, compared, {gold.TOTALS: off})


def _totals_work(place: TablePlace) -> Callable[[str], Iterator[Any]]:
    names = ("requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")

    def work(item: str) -> Iterator[Any]:
        totals: Counter[str] = Counter()
        for path in json.loads(item):
            totals.update(gold.control_totals(read_file(place, USAGE_HOURLY, path, names)))
        yield answer_counts(_TOTALS, totals)

    return work


def _can_be_read(place: TablePlace, spec: TableSpec, file: DataFile) -> bool:
    try:
        for _ in read_sorted(place, spec, file, spec.file_schema, of_files=1):
            pass
    except BrokenTable:
        return False
    return True


def _of_hours(rows: Any, hours_us: tuple[int, int] | None, *, is_inside: bool) -> Any:
    if hours_us is None:
        return rows
    mask = within(rows.column("hour").cast(pa.int64()), *hours_us)
    return rows.filter(mask if is_inside else pc.invert(mask))


def _touches(day: str | None, hours_us: tuple[int, int]) -> bool:
    """Return whether any hour of a day is in [first_us, end_us)."""
    start_us = us_of_date(day)
    return start_us < hours_us[1] and hours_us[0] < start_us + DAY_US


def _lies_in(file: DataFile, hours_us: tuple[int, int]) -> bool:
    """Return whether all hours of a file are in [first_us, end_us), by the table's log."""
    low, high = (us_of_time(datetime.datetime.fromisoformat(text)) for text in file.bounds["hour"])
    return hours_us[0] <= low and high < hours_us[1]


_LATEST_US: Final = us_of_time(datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.UTC))


def _time(time_us: int) -> datetime.datetime:
    return time_of_us(min(max(time_us, 0), _LATEST_US))

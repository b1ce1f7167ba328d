"""Hours expire: rows of usage_hourly and latency_hourly, of whole months. Sums by day stay, which invoices are made of.

    usage_hourly     without a month ──commit: what it had in all──▶ the month has expired     1 decides
    latency_hourly   without the same days                                                     2 follows

A month goes once all of its hours are of closed days and no request of it is left, so nothing goes that a close, a
backfill or an open invoice reads. Months go in order. Their sums are compared with what the days were closed with a
last time: nothing expires that is not what it was.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from quaymaster_pipeline.checks.close_checks import judge_expired_days
from quaymaster_pipeline.checks.gold_checks import sum_of_day
from quaymaster_pipeline.jobs.retention import HOURLY_MONTHS, first_kept_month
from quaymaster_pipeline.usage import gold
from quaymaster_pipeline.usage.expired import EXPIRED, EXPIRED_DAYS, LAST_BATCH, ExpiredUsage, expired_usage
from quaymaster_pipeline.usage.tasks import Workers, answer_counts
from quaymaster_pipeline.warehouse.closes import SUMS, closed_through, last_closed_day, read_closes
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import LATENCY_HOURLY, USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, planning_again

APP: Final = "hourly expiry"
_COUNTED: Final = ("requests", "billed_requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")
_TOTALS, _DAYS = "expired hours", "expired days"
_MONTH_LENGTH: Final = len("2026-11")


def expire_hours(
    workers: Workers, warehouse: Warehouse, now: datetime.datetime, *, months: int = HOURLY_MONTHS
) -> tuple[str, ...]:
    """Delete the hours of closed months before the last `months` whole ones; return these months, in order.

    A pipeline may run next to it.

    Raises:
        SumsDiffer: hours are not what their days were closed with; nothing has expired.
        CommitConflict: others replaced the files again and again.
    """
    hourly, latency, events, daily = (
        warehouse.table(spec) for spec in (USAGE_HOURLY, LATENCY_HOURLY, USAGE_EVENTS, USAGE_DAILY)
    )
    first_kept = first_kept_month(now, months).isoformat()

    def expire() -> tuple[str, ...]:
        last_closed, through = last_closed_day(warehouse), closed_through(warehouse)
        # After that: what these batches brought is there.
        for table in (hourly, events):
            table.refresh()
        if last_closed is None:
            return ()
        earlier = expired_usage(hourly)
        due = due_months(
            hourly,
            events.partitions(),
            first_kept,
            (str(last_closed), through),
            expired_before=earlier.before,
        )
        files = [file for of_month in due.values() for file in of_month]
        if not files:
            return ()
        before = max(earlier.before, _day_after(list(due)[-1]))
        counts = _counted_a_last_time(workers, warehouse, files, earlier, before)
        notes = {EXPIRED_DAYS: {"before": before, "through": through}}
        hourly.commit(APP, None, [], removes=files, counts={EXPIRED: counts}, shared_notes=notes)
        return tuple(due)

    found = planning_again(expire, hourly, events, daily)
    planning_again(lambda: _drop_latencies(warehouse, latency), latency, daily)
    return found


def due_months(
    hourly: Table,
    days_of_requests: set[str],
    first_kept: str,
    closed: tuple[str, int],
    *,
    expired_before: str,
) -> dict[str, list[DataFile]]:
    """Return the files of the first months that may expire: all of each month, before a day, of what is `closed`.

    That is up to a day and a batch. A month stays that has other hours, or single requests, and so do those after it.
    Late usage of months that have expired before goes all together, as one note says up to which batch it has gone.
    """
    last_closed, through = closed
    by_month: defaultdict[str, list[DataFile]] = defaultdict(list)
    for file in hourly.files(hourly.lines_of_days(end=first_kept)):
        by_month[str(file.partition_value)[:_MONTH_LENGTH]].append(file)
    of_requests = {day[:_MONTH_LENGTH] for day in days_of_requests}
    due: dict[str, list[DataFile]] = {}
    for month, mine in sorted(by_month.items()):
        is_closed = all(
            str(file.partition_value) <= last_closed
            and file.bounds.get("last_batch", (0, LAST_BATCH))[1] <= through
            for file in mine
        )
        if not is_closed or month in of_requests:
            break
        due[month] = mine
    if any(_day_after(month) <= expired_before for month in by_month.keys() - due.keys()):
        return {}
    return due


def _day_after(month: str) -> str:
    """Return the first day of the next month."""
    first = datetime.date.fromisoformat(f"{month}-01")
    return (first + datetime.timedelta(days=31)).replace(day=1).isoformat()


def _counted_a_last_time(
    workers: Workers, warehouse: Warehouse, files: Sequence[DataFile], earlier: ExpiredUsage, before: str
) -> Counter[str]:
    """Return the control totals of hours, which add up to what their days were closed with.

    Raises:
        SumsDiffer: they do not, and no operator accepted that.
    """
    work = _counting_work(
        warehouse.place(USAGE_HOURLY), {file.path: str(file.partition_value) for file in files}
    )
    answers = workers.over([file.path for file in files], work)
    closes = [close for close in read_closes(warehouse) if str(close.day) < before]
    dates = {str(file.partition_value) for file in files}
    goes = ExpiredUsage(before, {})
    for found in judge_expired_days(closes, dates, answers.counts(_DAYS), goes, (), earlier):
        raise SumsDiffer(
            f"{USAGE_HOURLY.name} is not what its days were closed with, so none of it expires: {found.text}"
        )
    return answers.counts(_TOTALS)


def _counting_work(place: TablePlace, dates: dict[str, str]) -> Callable[[str], Iterator[Any]]:
    """Return what a task does with a file of hours: count what it has, in all and of its day."""

    def work(path: str) -> Iterator[Any]:
        totals: Counter[str] = Counter()
        days: Counter[str] = Counter()
        for rows in read_row_groups(place, USAGE_HOURLY, path, _COUNTED):
            totals.update(gold.control_totals(rows))
            sums = gold.day_sums(rows)
            days.update({sum_of_day(dates[path], name): sums[name] for name in SUMS})
        yield answer_counts(_TOTALS, totals)
        yield answer_counts(_DAYS, days)

    return work


def _drop_latencies(warehouse: Warehouse, table: Table) -> None:
    """Delete the latencies of days whose hours have expired, also those that a killed run left."""
    gone = expired_usage(warehouse.table(USAGE_HOURLY))
    if not gone.before:
        return
    files = table.files(table.lines_of_days(end=gone.before))
    removes = [file for file in files if file.bounds.get("last_batch", (0, LAST_BATCH))[1] <= gone.through]
    if removes:
        table.commit(APP, None, [], removes=removes)

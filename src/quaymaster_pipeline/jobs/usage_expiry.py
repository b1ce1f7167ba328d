"""Single requests expire: rows of usage_events of closed days. Sums by hour and day stay, and what closes say of them.

Files are dropped whole: of days that are closed, with no batch that is not, or that has content in bronze. So
nothing goes that a close has yet to compare, or that can be made again and compared; what comes late to an old day
stays as long.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

import pyarrow.compute as pc

from quaymaster_pipeline.checks.verification import compare_hours_of
from quaymaster_pipeline.jobs.retention import USAGE_DAYS, first_kept
from quaymaster_pipeline.usage import gold, silver
from quaymaster_pipeline.usage.expired import EXPIRED, EXPIRED_DAYS, LAST_BATCH, expired_usage
from quaymaster_pipeline.usage.tasks import Workers, answer_counts
from quaymaster_pipeline.warehouse.closes import closed_through, last_closed_day, read_closes
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.errors import SumsDiffer
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_DAILY, USAGE_EVENTS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, lowest, planning_again

APP: Final = "usage expiry"
_COUNTED: Final = ("messages", "bytes", "chunks", "http_status")
_COUNTS: Final = "expired"


def expire_usage(
    workers: Workers, warehouse: Warehouse, now: datetime.datetime, *, days: int = USAGE_DAYS
) -> int:
    """Delete the requests of closed days more than `days` ago; return how many. Control totals are noted.

    A pipeline may run next to it.

    Raises:
        SumsDiffer: hours are not the sums of their requests; nothing has expired.
        CommitConflict: others replaced the files again and again.
    """
    table, blocks = warehouse.table(USAGE_EVENTS), warehouse.table(BLOCKS)

    def expire() -> int:
        before = _closed_before(warehouse, now, days)
        if before is None:
            return 0
        through = min(closed_through(warehouse), _first_with_content(blocks) - 1)
        files = due(table, before, through)
        if not files:
            return 0
        _compare_a_last_time(workers, warehouse, {str(file.partition_value) for file in files})
        counts = workers.over([file.path for file in files], _counting_work(table.place)).counts(_COUNTS)
        # What stays for its content, or as a clock was ahead, is of whole days: those go by what goes.
        earlier = expired_usage(table)
        last = datetime.date.fromisoformat(max(str(file.partition_value) for file in files))
        first_whole = max(str(last + datetime.timedelta(days=1)), earlier.before)
        last_batch = max(earlier.through, *(file.bounds["batch_id"][1] for file in files))
        notes = {EXPIRED_DAYS: {"before": first_whole, "through": last_batch}}
        table.commit(APP, None, [], removes=files, counts={EXPIRED: counts}, shared_notes=notes)
        return counts["rows"]

    return planning_again(expire, table, blocks, warehouse.table(USAGE_DAILY))


def _closed_before(warehouse: Warehouse, now: datetime.datetime, days: int) -> str | None:
    """Return the first day whose requests are kept, or that is not closed; None when no day is closed."""
    last_closed = last_closed_day(warehouse)
    if last_closed is None:
        return None
    return str(min(first_kept(now, days), last_closed + datetime.timedelta(days=1)))


def _compare_a_last_time(workers: Workers, warehouse: Warehouse, dates: AbstractSet[str]) -> None:
    """Compare the hours of days with their requests, unless some have expired, or an operator accepted a difference.

    Raises:
        SumsDiffer: they differ.
    """
    events, hourly = warehouse.table(USAGE_EVENTS), warehouse.table(USAGE_HOURLY)
    hourly.refresh()
    accepted = {str(close.day) for close in read_closes(warehouse) if close.difference}
    expired = expired_usage(events)
    whole = {date for date in dates if not expired.has(date)} - accepted
    requests, hours = (one.files(one.lines_of(whole)) for one in (events, hourly))
    breaks = compare_hours_of(workers, events, hourly, (requests, hours), hourly.last_batch(gold.APP))
    if breaks:
        raise SumsDiffer(
            f"{USAGE_HOURLY.name} is not what its requests give, so none of {USAGE_EVENTS.name} expires: "
            f"{breaks[0].text}"
        )


def _first_with_content(blocks: Table) -> int:
    """Return the first batch of bronze that has content."""
    lines = blocks.file_lines()
    if lines.num_rows:
        lines = lines.filter(pc.greater(lines.column("max.content_bytes"), 0))
    first = lowest(lines, "batch_id")
    return LAST_BATCH if first is None else int(first)


def due(table: Table, before: str, through: int) -> list[DataFile]:
    """Return the files of days before `before` that have no batch after `through`, the last one that may expire."""
    lines = table.lines_of_days(end=before)
    if lines.num_rows:
        lines = lines.filter(pc.less_equal(lines.column("max.batch_id"), through))
    return table.files(lines)


def _counting_work(place: TablePlace) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: count what a file has."""

    def work(path: str) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        for rows in read_row_groups(place, USAGE_EVENTS, path, _COUNTED):
            counts.update(silver.control_totals_of_usage(rows))
        yield answer_counts(_COUNTS, counts)

    return work

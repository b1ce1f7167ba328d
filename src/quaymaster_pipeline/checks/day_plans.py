"""Which hours of a day a task compares, and the files that it needs: a whole day, or parts where gold has many rows."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Sequence
from typing import Final

from quaymaster_pipeline.usage.expired import ExpiredUsage
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.times import HOUR_US, us_of_date, us_of_time

SUM_ROWS: Final = 1_000_000
"""About so many rows of gold a task has in memory; a day with more is divided by hours."""
DAY_HOURS: Final = 24
EARLIEST_US: Final = -(1 << 62)
LATEST_US: Final = 1 << 62
NOTHING_EXPIRED: Final = ExpiredUsage("", {})


def plan_days(
    events: Sequence[DataFile], hours: Sequence[DataFile], expired: ExpiredUsage = NOTHING_EXPIRED
) -> list[str]:
    """Return items of work: days, those with many rows of gold in parts, and the files that each needs.

    The last part of an item is the date where requests have expired, as then hours cannot be compared with them.
    """
    items = []
    for date in sorted({str(file.partition_value) for file in (*events, *hours)}):
        of_events, of_hours = (
            [file for file in files if file.partition_value == date] for files in (events, hours)
        )
        parts = min(DAY_HOURS, max(1, -(-sum(file.rows for file in of_hours) // SUM_ROWS)))
        begin_us = us_of_date(date)
        cuts = [begin_us + part * DAY_HOURS // parts * HOUR_US for part in range(1, parts)]
        for low, high in itertools.pairwise([EARLIEST_US, *cuts, LATEST_US]):
            paths = [
                [file.path for file in files if _meets(file, low, high)] for files in (of_events, of_hours)
            ]
            items.append(json.dumps([low, high, *paths, date if expired.has(date) else None]))
    return items


def _meets(file: DataFile, low_us: int, high_us: int) -> bool:
    bounds = file.bounds.get("hour")
    if bounds is None:
        return True
    first, last = (us_of_time(datetime.datetime.fromisoformat(text)) for text in bounds)
    return first < high_us and low_us <= last

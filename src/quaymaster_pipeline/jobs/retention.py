"""How long files and content are kept; without other modules, since commands have these as their defaults."""

from __future__ import annotations

import datetime
from typing import Final, NamedTuple

CONTENT_DAYS: Final = 35
"""How long blocks keep their content, and quarantine its `raw`: a month, and days in which it may have to be looked
at."""
USAGE_DAYS: Final = 100
"""How long single requests and headers of blocks are kept once their days are closed: longer than a month, its invoice
and the time in which somebody may ask about that. Sums by hour and day stay."""
QUARANTINE_DAYS: Final = 400
"""How long quarantine keeps its rows: why usage of a year was not billed can be asked until then."""
AUDIT_DAYS: Final = 400
"""How long audit events are kept that no hold keeps: what was done within a year can be looked up when it is over."""
HOURLY_MONTHS: Final = 25
"""How many whole months sums by hour, and latencies, are kept: two years can be compared, and the month in which that
is done. Sums by day, which invoices are made of, stay."""
KEEP_HOURS: Final = 24
"""How long files that no table has any more are kept for those who still read them, and files that were not committed:
another job may be about to."""
MONTHS_OF_YEAR: Final = 12


def first_kept(now: datetime.datetime, days: int) -> datetime.date:
    """Return the first day of which is kept what is kept for so many days: of more than there were, the first ever."""
    try:
        return now.astimezone(datetime.UTC).date() - datetime.timedelta(days)
    except OverflowError:
        return datetime.date.min


def first_kept_month(now: datetime.datetime, months: int) -> datetime.date:
    """Return the first day of the first month of which is kept what is kept for so many whole months."""
    today = now.astimezone(datetime.UTC).date()
    first = today.year * MONTHS_OF_YEAR + today.month - 1 - months
    if first < MONTHS_OF_YEAR:
        return datetime.date.min
    return datetime.date(first // MONTHS_OF_YEAR, first % MONTHS_OF_YEAR + 1, 1)


class Retention(NamedTuple):
    """For how many days content is kept, requests with the headers of their blocks, and audit events.

    `hourly_months`: for how many whole months sums by hour are.
    """

    content_days: int = CONTENT_DAYS
    usage_days: int = USAGE_DAYS
    audit_days: int = AUDIT_DAYS
    hourly_months: int = HOURLY_MONTHS

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
KEEP_HOURS: Final = 24
"""How long files that no table has any more are kept for those who still read them, and files that nobody committed:
another job may be about to."""


def first_kept(now: datetime.datetime, days: int) -> datetime.date:
    """Return the first day of which is kept what is kept for so many days: of more than there were, the first ever."""
    try:
        return now.astimezone(datetime.UTC).date() - datetime.timedelta(days)
    except OverflowError:
        return datetime.date.min


class Retention(NamedTuple):
    """For how many days content is kept, requests with the headers of their blocks, and audit events."""

    content_days: int = CONTENT_DAYS
    usage_days: int = USAGE_DAYS
    audit_days: int = AUDIT_DAYS

"""Times of the tables: microseconds since 1970, datetimes in UTC, and the texts for both."""

from __future__ import annotations

import datetime
from typing import Final

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
_BEGIN: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_US: Final = datetime.timedelta(microseconds=1)


def time_of_us(time_us: int) -> datetime.datetime:
    """Return the time that is so long after 1970 began, to the microsecond."""
    return _BEGIN + time_us * _US


def us_of_time(time: datetime.datetime) -> int:
    """Return how long after 1970 began a time is, microseconds."""
    return (time - _BEGIN) // _US


def us_of_date(date: str | None) -> int:
    """Return when a day begins, microseconds; the date is as a partition of a table has it."""
    return us_of_time(datetime.datetime.fromisoformat(f"{date}T00:00:00+00:00"))


def text_of_time(time: datetime.datetime) -> str:
    """Return a time as people and other programs are told it: ISO 8601 in UTC, to the second."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def bound_of_time(time: datetime.datetime) -> str:
    """Return a time as Delta's log has bounds of columns: these texts are in the order of the times."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

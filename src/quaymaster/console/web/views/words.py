"""Values as people read them. A value that is not known is a dash, never a zero."""

from __future__ import annotations

import datetime
from typing import Final

MISSING: Final = "–"
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS


def count(value: float | None) -> str:
    """Return a number with its thousands apart, as 12,345."""
    return MISSING if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Return events a second, as 410/s; below ten with one digit after the point."""
    if value is None:
        return MISSING
    return f"{value:.1f}/s" if 0 < value < 10 else f"{round(value):,}/s"


def age(duration_ms: float | None) -> str:
    """Return a duration by its largest unit, as 3 d or 40 s."""
    if duration_ms is None:
        return MISSING
    for unit_ms, name in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min")):
        if duration_ms >= unit_ms:
            return f"{int(duration_ms // unit_ms):,} {name}"
    return f"{max(0, int(duration_ms // _SECOND_MS))} s"


def ago(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago something was, as 3 min ago."""
    return MISSING if at_ms is None else f"{age(now_ms - at_ms)} ago"


def size(value: float | None) -> str:
    """Return bytes by their largest binary unit."""
    if value is None:
        return MISSING
    for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:.1f} {name}"
    return f"{round(value)} B"


def share(value: float | None) -> str:
    """Return a part of one in percent."""
    return MISSING if value is None else f"{round(100 * value)} %"


def sentence(text: str) -> str:
    """Return a text with its first letter as that of a sentence."""
    return text[:1].upper() + text[1:]


def measure(value: float | None, unit: str) -> str:
    """Return a value of a series by its unit, as CloudWatch names it."""
    match unit:
        case "Bytes":
            return size(value)
        case "Seconds" if value is not None and 0 < value < 1:
            return f"{value * _SECOND_MS:.2f} ms"
        case "Seconds":
            return age(None if value is None else value * _SECOND_MS)
        case "Percent":
            return share(None if value is None else value / 100)
        case "Count/Second":
            return rate(value)
        case _:
            return count(value)


def clock(at_ms: int | None) -> str:
    """Return a time of day in UTC, as 12:03:05."""
    return MISSING if at_ms is None else f"{_utc(at_ms):%H:%M:%S}"


def day(at_ms: int | None) -> str:
    """Return a date and a time in UTC, as 2026-11-27 12:03."""
    return MISSING if at_ms is None else f"{_utc(at_ms):%Y-%m-%d %H:%M}"


def _utc(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC)

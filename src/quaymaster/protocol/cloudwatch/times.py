"""Times as text: what Query requests give, and XML answers have."""

from __future__ import annotations

from datetime import UTC, datetime

from quaymaster.core.values.errors import MalformedInput

_MS: int = 1_000


def parse_time(text: str) -> float:
    """Return the seconds since 1970 of an ISO 8601 time, of UTC where it names no zone. Raises MalformedInput."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise MalformedInput("A time must be given as in 2010-08-01T12:00:00Z.") from error


def render_time(seconds: float) -> str:
    """Return a time in ISO 8601, to the millisecond where it is no whole second."""
    ms = round(seconds * _MS)
    time = datetime.fromtimestamp(ms // _MS, UTC)
    fraction = f".{ms % _MS:03}" if ms % _MS else ""
    return f"{time:%Y-%m-%dT%H:%M:%S}{fraction}Z"

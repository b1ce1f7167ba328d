"""Times as CloudWatch writes them inside of JSON."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time(at_ms: int) -> str:
    """Return a time as 2026-11-28T00:51:02.123+0000."""
    time = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}+0000"

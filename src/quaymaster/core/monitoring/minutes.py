"""A minute of a queue: its gauges at the end, and by how much its counters grew.

leaders' rows ──increase──▶ counts ──a gap──▶ spread over its minutes
                                      └─────▶ the minute in which they were told
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quaymaster.core.values.queue_metrics import QueueMetricsRow

MINUTE_MS: Final = 60_000
GAP_MINUTES_MAX: Final = 360
"""The counts of a longer gap are spread over so many of its minutes, which lie evenly in it."""
GAP_MS_MAX: Final = 2 * 86_400_000
"""Of a gap that is still longer, over its last two days."""

GAUGES: Final = ("visible", "in_flight", "delayed", "groups_in_flight", "oldest_age_s")
COUNTERS: Final = (
    *("sent", "sent_bytes", "received", "empty_receives", "deleted", "duplicate"),
    *("dead_lettered", "expired", "wait_ms"),
)
VALUES: Final = GAUGES + COUNTERS
"""What is kept of each minute, in this order."""
LIFELONG: Final = frozenset({"sent", "deleted"})
"""Counters that a new leader continues; others begin with it."""

Counts = tuple[int, ...]
"""One number for each of COUNTERS."""
NO_COUNTS: Final[Counts] = (0,) * len(COUNTERS)


class Minute(NamedTuple):
    """What is known of a queue and a minute, which began at `at_s`; None: not known. Values are as VALUES."""

    queue_id: int
    at_s: int
    values: tuple[int | None, ...]


def counters_of(row: QueueMetricsRow) -> Counts:
    """Return the counters of a partition."""
    return (
        row.sent,
        row.sent_bytes,
        row.received,
        row.empty_receives,
        row.deleted,
        row.duplicate,
        row.dead_lettered,
        row.expired,
        row.wait_ms,
    )


def increase(before: QueueMetricsRow, row: QueueMetricsRow) -> Counts:
    """Return by how much the counters of a partition grew between two rows; never negative.

    With another leader those that are not lifelong began at 0.
    """
    is_same = before.epoch == row.epoch
    return tuple(
        max(0, now - then if is_same or name in LIFELONG else now)
        for name, then, now in zip(COUNTERS, counters_of(before), counters_of(row), strict=True)
    )


def add_counts(one: Counts, other: Counts) -> Counts:
    """Return both together."""
    return tuple(map(int.__add__, one, other))


def minute_of(at_ms: int) -> int:
    """Return when the minute began that ends at this moment or after it, in seconds: 12:01:00.000 is of 12:00."""
    return (at_ms - 1) // MINUTE_MS * 60


def spread(counts: Counts, since_ms: int, until_ms: int) -> Iterator[tuple[int, Counts]]:
    """Yield the parts of counts that fall on each minute from a moment to a later one; their sum is exact.

    Minutes are given by their beginnings, in seconds.
    """
    first, last = minute_of(max(since_ms, until_ms - GAP_MS_MAX) + 1), minute_of(until_ms)
    minutes = (last - first) // 60 + 1
    parts = min(minutes, GAP_MINUTES_MAX)
    given: Sequence[int] = NO_COUNTS
    for part in range(1, parts + 1):
        reached = [count * part // parts for count in counts]
        at_s = first + (part * minutes // parts - 1) * 60
        yield at_s, tuple(now - then for now, then in zip(reached, given, strict=True))
        given = reached

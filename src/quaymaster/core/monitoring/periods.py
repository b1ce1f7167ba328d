"""How CloudWatch cuts time into periods, and which of what is kept answers for each.

    age of the start    < 15 days     < 63 days      older
    start rounded to    a minute      five minutes   an hour

Source: CloudWatch API Reference, GetMetricData and GetMetricStatistics, StartTime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from quaymaster.core.monitoring.queue_statistics import Kept

DAY_S: Final = 86_400
LEVELS: Final = (60, 300, 3_600)
"""Lengths of what is kept, in seconds."""
KEPT_DAYS: Final = {60: 15, 300: 63, 3_600: 455}
"""How long each is kept."""


class Span(NamedTuple):
    """Periods of a length, the first of which begins at `start_s`; none begins at `end_s` or later."""

    start_s: int
    end_s: int
    period_s: int

    @property
    def periods(self) -> int:
        """How many there are."""
        return max(0, -(-(self.end_s - self.start_s) // self.period_s))

    @property
    def periods_end_s(self) -> int:
        """When the last of them ends."""
        return self.start_s + self.periods * self.period_s

    def period_of(self, at_s: int) -> int:
        """Return when the period began that has this moment."""
        return at_s - (at_s - self.start_s) % self.period_s


def align(start: float, end: float, period_s: int, now_s: float) -> Span:
    """Return the periods between two moments, as CloudWatch rounds them."""
    age_s = now_s - start
    unit = next((level for level in LEVELS if age_s < KEPT_DAYS[level] * DAY_S), LEVELS[-1])
    start_s = int(start) // unit * unit
    return Span(start_s, int(-(-end // 60) * 60), period_s)


def level_for(span: Span) -> int:
    """Return the longest of LEVELS that the periods consist of."""
    return max(
        level for level in LEVELS if span.period_s % level == 0 and (span.start_s % level == 0 or level == 60)
    )


def by_period(span: Span, kept: Iterable[Kept]) -> Iterator[tuple[int, list[Kept]]]:
    """Yield each period of which something is kept, with that; `kept` is in order of time."""
    found: list[Kept] = []
    began_s, end_s = 0, span.periods_end_s
    for one in kept:
        if not span.start_s <= one.at_s < end_s:
            continue
        period_s = span.period_of(one.at_s)
        if found and period_s != began_s:
            yield began_s, found
            found = []
        began_s = period_s
        found.append(one)
    if found:
        yield began_s, found

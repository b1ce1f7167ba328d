"""How counters become minutes: what grew between two rows, and gaps."""

import pytest

from quaymaster.core.monitoring.minutes import (
    COUNTERS,
    GAP_MINUTES_MAX,
    NO_COUNTS,
    add_counts,
    increase,
    minute_of,
    spread,
)
from quaymaster.core.values.queue_metrics import QueueMetricsRow

NOON_S = 1_800_000_000 // 3_600 * 3_600
NOON_MS = NOON_S * 1000


def row(epoch: int = 1, **counters: int) -> QueueMetricsRow:
    return QueueMetricsRow(7, 0, 0, epoch, **counters)


def counts(**named: int) -> tuple[int, ...]:
    return tuple(named.get(name, 0) for name in COUNTERS)


def test_counters_grow_by_their_difference() -> None:
    assert increase(row(sent=3, received=1), row(sent=5, received=4)) == counts(sent=2, received=3)


def test_a_new_leader_makes_no_negative_rate_and_continues_what_the_journal_counts() -> None:
    grown = increase(row(1, sent=100, deleted=90, received=70), row(2, sent=103, deleted=90, received=2))

    assert grown == counts(sent=3, received=2)


def test_a_count_that_went_with_its_leader_is_no_negative_rate() -> None:
    assert increase(row(1, sent=100), row(2, sent=98)) == NO_COUNTS


@pytest.mark.parametrize(("at_ms", "minute_s"), [(0, -60), (1, 0), (59_999, 0), (60_000, 0), (60_001, 60)])
def test_the_end_of_a_minute_belongs_to_it(at_ms: int, minute_s: int) -> None:
    assert minute_of(NOON_MS + at_ms) == NOON_S + minute_s


def test_counts_of_a_gap_are_spread_over_its_minutes_and_none_is_lost() -> None:
    parts = list(spread(counts(sent=7, deleted=1), NOON_MS, NOON_MS + 180_000))

    assert [at_s for at_s, _ in parts] == [NOON_S, NOON_S + 60, NOON_S + 120]
    assert [part[0] for _, part in parts] == [2, 2, 3]
    assert add_counts(add_counts(parts[0][1], parts[1][1]), parts[2][1]) == counts(sent=7, deleted=1)


def test_what_grew_within_a_minute_is_of_that_minute() -> None:
    assert list(spread(counts(sent=2), NOON_MS + 5_000, NOON_MS + 10_000)) == [(NOON_S, counts(sent=2))]


def test_a_long_gap_gets_a_bounded_number_of_minutes_that_lie_evenly_in_it() -> None:
    day = list(spread(counts(sent=1_000), NOON_MS, NOON_MS + 86_400_000))
    week = list(spread(counts(sent=1_000), NOON_MS - 6 * 86_400_000, NOON_MS + 86_400_000))

    assert len(day) == len({at_s for at_s, _ in day}) == GAP_MINUTES_MAX
    assert sum(part[0] for _, part in day) == 1_000
    assert day[0][0] < NOON_S + 600
    assert NOON_S - 86_400 <= week[0][0] < NOON_S - 85_000
    assert sum(part[0] for _, part in week) == 1_000
    assert day[-1][0] == NOON_S + 86_400 - 60

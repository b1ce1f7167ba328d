"""Periods as CloudWatch cuts them."""

import pytest

from quaymaster.core.monitoring.periods import DAY_S, Span, align, by_period, level_for
from quaymaster.core.monitoring.queue_statistics import Kept

NOW_S = 1_800_000_000 // DAY_S * DAY_S


@pytest.mark.parametrize(
    ("age_days", "start_s"),
    [(0, 3_780), (14, 3_780), (16, 3_600), (62, 3_600), (64, 3_600), (1_000, 3_600)],
)
def test_a_start_is_rounded_down_the_more_the_older_it_is(age_days: int, start_s: int) -> None:
    day_s = NOW_S - age_days * DAY_S

    span = align(day_s + 3_785.5, day_s + 4_001, 60, NOW_S + 5_000)

    assert span == Span(day_s + start_s, day_s + 4_020, 60)


def test_periods_are_counted_and_found() -> None:
    span = Span(120, 1_000, 300)

    assert span.periods == 3
    assert [span.period_of(at_s) for at_s in (120, 419, 420)] == [120, 120, 420]
    assert Span(120, 100, 60).periods == 0


@pytest.mark.parametrize(
    ("span", "level"),
    [
        (Span(0, 600, 60), 60),
        (Span(0, 600, 300), 300),
        (Span(60, 660, 300), 60),
        (Span(300, 660, 600), 300),
        (Span(0, 86_400, 3_600), 3_600),
        (Span(300, 86_400, 7_200), 300),
        (Span(0, 86_400, 120), 60),
    ],
)
def test_the_longest_level_that_periods_consist_of_is_read(span: Span, level: int) -> None:
    assert level_for(span) == level


def test_what_is_kept_is_sorted_into_its_periods() -> None:
    rows = [Kept(at_s, ()) for at_s in (0, 60, 120, 240, 300, 420, 480)]

    found = {at_s: [one.at_s for one in kept] for at_s, kept in by_period(Span(60, 400, 120), rows)}

    assert found == {60: [60, 120], 180: [240], 300: [300]}
    assert list(by_period(Span(1_000, 2_000, 60), rows)) == []

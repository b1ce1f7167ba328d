"""A time that was written by a clock that was ahead keeps nothing waiting until that clock's time comes."""

from __future__ import annotations

import pytest

from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS, has_passed

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize(
    ("since_ms", "is_over"),
    [
        (NOW_MS - MINUTE_MS + 1, False),
        (NOW_MS - MINUTE_MS, True),
        (NOW_MS + MINUTE_MS - 1, False),
        (NOW_MS + MINUTE_MS, True),
        (NOW_MS + YEAR_MS, True),
    ],
)
def test_a_minute_is_over_a_minute_later_and_when_it_was_said_to_begin_in_the_future(
    since_ms: int, is_over: bool
) -> None:
    assert has_passed(since_ms, MINUTE_MS, NOW_MS) == is_over


def test_clocks_that_differ_a_little_do_not_cut_short_what_others_rely_on() -> None:
    def is_over(since_ms: int) -> bool:
        return has_passed(since_ms, MINUTE_MS, NOW_MS, ahead_max_ms=CLOCKS_DIFFER_MAX_MS)

    assert not is_over(NOW_MS + 2 * MINUTE_MS)
    assert is_over(NOW_MS + CLOCKS_DIFFER_MAX_MS)
    assert is_over(NOW_MS - MINUTE_MS)


def test_no_time_at_all_is_over_whatever_clock_wrote_it() -> None:
    assert all(has_passed(NOW_MS + ahead_ms, 0, NOW_MS) for ahead_ms in (-1, 0, 1, YEAR_MS))

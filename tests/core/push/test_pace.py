"""How fast an endpoint is called that says so: no minute has more calls than it allows."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.push.pace import MINUTE_MS, Pace


def paced(calls_per_minute: int | None) -> Pace:
    pace = Pace()
    pace.allow(calls_per_minute, 0)
    return pace


def call_when_it_may(pace: Pace, calls: int, now_ms: int = 0) -> list[int]:
    """Begin calls one after the other, each as soon as it may; return when they began."""
    begun: list[int] = []
    while len(begun) < calls:
        due_ms = pace.next_ms(now_ms, 0)
        if due_ms is None:
            pace.begin(now_ms)
            begun.append(now_ms)
        else:
            assert due_ms > now_ms
            now_ms = due_ms
    return begun


def most_in_a_minute(begun: list[int]) -> int:
    return max(sum(at <= other < at + MINUTE_MS for other in begun) for at in begun)


def test_an_endpoint_that_named_no_number_is_called_as_often_as_it_answers() -> None:
    pace = paced(None)

    pace.begin(0)

    assert pace.room(0, 1_000) == sys.maxsize
    assert pace.next_ms(0, 1_000) is None


@given(st.integers(1, 400))
def test_calls_that_begin_as_soon_as_they_may_are_as_many_in_a_minute_as_are_allowed(allowed: int) -> None:
    begun = call_when_it_may(paced(allowed), 2 * allowed)

    assert most_in_a_minute(begun) <= allowed
    assert begun[-1] <= 2 * MINUTE_MS * 1.05, "what is allowed can be used, but for what a full bucket needs"


@given(st.integers(1, 300), st.lists(st.integers(0, 3_000), min_size=1, max_size=200))
def test_calls_that_begin_at_any_time_are_no_more_in_a_minute_than_are_allowed(
    allowed: int, pauses_ms: list[int]
) -> None:
    pace = paced(allowed)
    begun: list[int] = []
    now_ms = 0
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        for _ in range(pace.room(now_ms, 0)):
            pace.begin(now_ms)
            begun.append(now_ms)

    assert most_in_a_minute(begun or [0]) <= allowed


def test_calls_that_are_about_to_begin_leave_so_much_less_room() -> None:
    pace = paced(120)

    assert [pace.room(0, asked) for asked in range(5)] == [3, 2, 1, 0, 0]
    assert pace.next_ms(0, 2) is None
    assert pace.next_ms(0, 3) == 509, "the time in which one comes back, above half a second"


def test_an_endpoint_that_allows_another_number_has_its_calls_of_before_counted() -> None:
    pace = paced(600)
    while pace.room(0, 0):
        pace.begin(0)

    pace.allow(60, 0)
    pace.allow(60, 0)

    assert pace.room(0, 0) == 0
    assert call_when_it_may(pace, 1) == [1_017]
    pace.allow(None, 0)
    assert pace.room(0, 0) == sys.maxsize


def test_a_long_wait_is_looked_at_again_before_it_is_over() -> None:
    begun = call_when_it_may(paced(1), 3)

    assert begun == [0, MINUTE_MS, 2 * MINUTE_MS]

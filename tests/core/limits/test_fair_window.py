"""Of many events a second some are taken, of each key its part."""

from __future__ import annotations

import pytest

from quaymaster.core.limits import fair_window
from quaymaster.core.limits.fair_window import FairWindow


def taken(window: FairWindow, key: str, now_ms: float, times: int) -> int:
    return sum(window.takes(key, now_ms) for _ in range(times))


def test_one_key_has_half_and_the_next_second_begins_again() -> None:
    window = FairWindow(10)

    assert taken(window, "a", 0, 100) == 5
    assert taken(window, "b", 999, 100) == 5
    assert taken(window, "c", 999, 100) == 0
    assert taken(window, "a", 1_000, 1) == 1


def test_keys_of_the_last_second_are_expected_again_and_those_of_earlier_ones_are_not() -> None:
    window = FairWindow(10)
    for key in "abcde":
        window.takes(key, 0)

    assert taken(window, "a", 1_000, 100) == 2
    assert [taken(window, key, 1_000, 100) for key in "bcde"] == [2, 2, 2, 2]
    assert taken(window, "a", 3_000, 100) == 5


def test_more_keys_than_events_have_one_each_until_there_is_no_room() -> None:
    window = FairWindow(3)
    for number in range(50):
        window.takes(str(number), 0)

    assert sum(taken(window, str(number), 1_000, 9) for number in range(50)) == 3


def test_keys_of_a_second_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_window, "KEYS_MAX", 2)
    window = FairWindow(10)

    assert [window.takes(key, 0) for key in "abca"] == [True, True, False, True]

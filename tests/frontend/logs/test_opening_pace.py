"""Log workers are used while their pieces take about as long as they compute, and tried again after a pause."""

from __future__ import annotations

import pytest

from quaymaster.frontend.logs.opening_pace import (
    FORGOTTEN,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    PIECES_MIN,
    SLOW_RATIO,
    OpeningPace,
)

CPU_S = 0.0025
SLOW_S = CPU_S * (SLOW_RATIO + 0.1)
FAST_S = CPU_S * (SLOW_RATIO - 0.1)


def slow_pieces(pace: OpeningPace, now_s: float, count: int = PIECES_MIN) -> list[bool]:
    return [pace.note(SLOW_S, CPU_S, now_s) for _ in range(count)]


def test_fast_pieces_never_begin_a_pause() -> None:
    pace = OpeningPace()

    assert not any(pace.note(FAST_S, CPU_S, 100.0) for _ in range(1_000))
    assert not pace.is_paused(100.0)


def test_slow_pieces_begin_a_pause_that_ends() -> None:
    pace = OpeningPace()

    assert slow_pieces(pace, 100.0) == [False] * (PIECES_MIN - 1) + [True]

    assert pace.is_paused(100.0)
    assert pace.is_paused(100.0 + PAUSE_MIN_S - 0.001)
    assert not pace.is_paused(100.0 + PAUSE_MIN_S)


def test_one_slow_piece_among_fast_ones_is_forgotten() -> None:
    pace = OpeningPace()

    for _ in range(20):
        assert not any(pace.note(CPU_S * 1.1, CPU_S, 100.0) for _ in range(20))
        assert not pace.note(CPU_S * 5, CPU_S, 100.0)


def test_what_was_fast_for_long_hides_nothing_that_is_slow_now() -> None:
    pace = OpeningPace()
    for _ in range(10_000):
        pace.note(CPU_S, CPU_S, 100.0)

    after = next(number for number in range(1, 1_000) if pace.note(3 * SLOW_S, CPU_S, 100.0))

    assert after < 3 / (1 - FORGOTTEN)


def test_pauses_grow_while_workers_stay_slow_and_begin_short_after_fast_ones() -> None:
    pace = OpeningPace()
    now_s = 100.0
    pauses = []
    for _ in range(6):
        assert slow_pieces(pace, now_s)[-1]
        began_s = now_s
        while pace.is_paused(now_s):
            now_s += 0.5
        pauses.append(now_s - began_s)

    assert pauses == pytest.approx([PAUSE_MIN_S, 10.0, 20.0, 40.0, PAUSE_MAX_S, PAUSE_MAX_S])

    for _ in range(PIECES_MIN):
        pace.note(CPU_S, CPU_S, now_s)
    while not slow_pieces(pace, now_s, 1)[0]:
        pass
    assert pace.is_paused(now_s)
    assert not pace.is_paused(now_s + PAUSE_MIN_S)


def test_answers_that_come_in_a_pause_count_for_nothing() -> None:
    pace = OpeningPace()
    slow_pieces(pace, 100.0)

    assert not any(slow_pieces(pace, 101.0, 5 * PIECES_MIN))
    assert not any(slow_pieces(pace, 100.0 + PAUSE_MIN_S, PIECES_MIN - 1)), "what was before does not count"

    assert not pace.is_paused(100.0 + PAUSE_MIN_S)

"""How far what was let through strays from a limit, in every window."""

from __future__ import annotations

import pytest

from bench.limit_shares import WINDOW_S, strays


def test_an_even_stream_at_the_limit_strays_from_it_by_one_request_at_most() -> None:
    passed_s = [number / 50 for number in range(50 * 30)]

    found = strays(passed_s, 1.0, 30.0, 50)

    assert max(map(abs, found)) <= 1.001 / (50 * WINDOW_S)
    assert len(found) > 300


def test_a_pause_and_a_burst_are_in_the_windows_that_have_them_alone() -> None:
    pause = [number / 50 for number in range(50 * 40) if not 15 <= number / 50 < 16]
    burst = [*pause, *(20 + number / 1_000 for number in range(100))]

    found = strays(sorted(burst), 1.0, 40.0, 50)

    assert min(found) == pytest.approx(-0.1, abs=0.003)
    assert max(found) == pytest.approx(0.2, abs=0.003)
    assert abs(found[0]) < 0.003
    assert abs(found[-1]) < 0.003

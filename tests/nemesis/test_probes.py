"""What counts as a gap: from the start of one success to the end of the next, where it overlaps with the fault."""

from __future__ import annotations

import pytest

from .probes import Success, longest_gap_s

SECOND = 1_000_000_000


def successes(*spans: tuple[float, float]) -> list[Success]:
    return [Success(round(start * SECOND), round(end * SECOND)) for start, end in spans]


def gap(found: list[Success], start: float = 0, end: float = 100) -> float:
    return longest_gap_s(found, round(start * SECOND), round(end * SECOND))


def test_a_gap_lasts_from_the_start_of_a_success_to_the_end_of_the_next() -> None:
    assert gap(successes((0.0, 0.1), (1.0, 1.1), (4.0, 4.5), (5.0, 5.1))) == pytest.approx(3.5)


def test_only_gaps_count_that_overlap_with_the_interval() -> None:
    found = successes((0, 1), (9, 10), (11, 12), (13, 14), (30, 31))

    assert gap(found, 11.5, 12.5) == pytest.approx(3)
    assert gap(found, 10, 12) == pytest.approx(3)
    assert gap(found, 5, 12) == pytest.approx(10)
    assert gap(found, 13.5, 14) == pytest.approx(18)


def test_without_two_successes_there_is_no_gap() -> None:
    assert gap([]) == 0
    assert gap(successes((1, 2))) == 0

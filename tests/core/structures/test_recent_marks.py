"""Marks of the last seconds: what came is known for as long as is promised, and little else."""

from __future__ import annotations

import random

import pytest

from quaymaster.core.structures.ids.recent_marks import MARKED_S, RecentMarks

NOW_MS = 1_800_000_000_000
ONE, OTHER = b"1" * 16, b"2" * 16


def test_an_id_that_did_not_come_is_not_known() -> None:
    marks = RecentMarks()

    assert not marks.mark(ONE, NOW_MS)
    assert not marks.mark(OTHER, NOW_MS)


@pytest.mark.parametrize("second", [0, 1, 254, 255, 256, 1_800_000_000])
@pytest.mark.parametrize("age_s", [0, 1, MARKED_S])
def test_an_id_is_known_for_ten_seconds_in_whatever_second_it_came(second: int, age_s: int) -> None:
    marks = RecentMarks()
    marks.mark(ONE, second * 1_000 + 999)

    assert marks.mark(ONE, (second + age_s) * 1_000)


@pytest.mark.parametrize("age_s", [MARKED_S + 1, 100, 254])
def test_an_id_is_forgotten_after_that(age_s: int) -> None:
    marks = RecentMarks()
    marks.mark(ONE, NOW_MS)

    assert not marks.mark(ONE, NOW_MS + age_s * 1_000)


def test_an_id_that_comes_again_is_known_from_then_on() -> None:
    marks = RecentMarks()
    marks.mark(ONE, NOW_MS)
    marks.mark(ONE, NOW_MS + MARKED_S * 1_000)

    assert marks.mark(ONE, NOW_MS + 2 * MARKED_S * 1_000)


def test_few_ids_are_taken_for_others_where_ten_thousand_come_in_a_second() -> None:
    marks, ids = RecentMarks(), random.Random(1)
    count = 10_000 * MARKED_S

    taken = sum(marks.mark(ids.randbytes(16), NOW_MS + number // 10) for number in range(count))

    assert taken < 0.12 * count

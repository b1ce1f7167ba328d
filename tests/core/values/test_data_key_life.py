"""A data key is deleted only after it was unused in nine sweeps in a row, and for a week."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.data_key_life import (
    IN_USE,
    RETIRING_MS,
    RETIRING_SWEEPS,
    UNUSED_SWEEPS,
    KeyLife,
    after_sweep,
)

DAY_MS = 86_400_000


def test_key_that_is_used_lives() -> None:
    assert after_sweep(KeyLife(8, 1), is_in_use=True, now_ms=1 + RETIRING_MS) == IN_USE
    assert after_sweep(IN_USE, is_in_use=True, now_ms=5) == IN_USE


def test_key_that_two_daily_sweeps_miss_is_retiring_for_seven_days_and_then_goes() -> None:
    life: KeyLife | None = IN_USE
    lives: list[KeyLife | None] = []
    for day in range(1, 10):
        assert life is not None
        life = after_sweep(life, is_in_use=False, now_ms=day * DAY_MS)
        lives.append(life)

    assert lives == [
        KeyLife(1, 0),
        *(KeyLife(count, 2 * DAY_MS) for count in range(2, 9)),
        None,
    ]


def test_use_revives_a_retiring_key_and_the_count_begins_again() -> None:
    life = after_sweep(KeyLife(8, DAY_MS), is_in_use=True, now_ms=20 * DAY_MS)
    assert life is not None

    assert after_sweep(life, is_in_use=False, now_ms=21 * DAY_MS) == KeyLife(1, 0)


def test_clock_that_jumps_ahead_deletes_no_key_before_enough_sweeps_missed_it() -> None:
    life: KeyLife | None = IN_USE
    sweeps = 0
    while life is not None:
        sweeps += 1
        life = after_sweep(life, is_in_use=False, now_ms=sweeps * 365 * DAY_MS)

    assert sweeps == UNUSED_SWEEPS + RETIRING_SWEEPS


def test_time_that_a_wall_clock_wrote_keeps_no_key_for_ever_and_deletes_none_before_enough_sweeps() -> None:
    life: KeyLife | None = KeyLife(2, 1_700_000_000_000)
    for day in range(1, RETIRING_SWEEPS):
        assert life is not None
        life = after_sweep(life, is_in_use=False, now_ms=day * DAY_MS)

    assert life is not None
    assert after_sweep(life, is_in_use=False, now_ms=7 * DAY_MS) is None


def test_key_that_retires_when_no_time_is_counted_yet_does_so() -> None:
    assert after_sweep(KeyLife(1, 0), is_in_use=False, now_ms=0) == KeyLife(2, 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * DAY_MS))))
def test_key_is_deleted_only_behind_nine_sweeps_without_a_use_over_a_week(
    sweeps: list[tuple[bool, int]],
) -> None:
    life: KeyLife | None = IN_USE
    now_ms = 1_000
    unused: list[int] = []
    for is_in_use, passed_ms in sweeps:
        now_ms += passed_ms
        unused = [] if is_in_use else [*unused, now_ms]
        assert life is not None
        life = after_sweep(life, is_in_use=is_in_use, now_ms=now_ms)
        if life is None:
            assert len(unused) >= UNUSED_SWEEPS + RETIRING_SWEEPS
            assert unused[-1] - unused[UNUSED_SWEEPS - 1] >= RETIRING_MS
            return

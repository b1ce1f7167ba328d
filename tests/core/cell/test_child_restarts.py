"""When a process that has ended is started again."""

from __future__ import annotations

from quaymaster.core.cell.child_restarts import (
    DELAY_MAX_MS,
    DELAY_MIN_MS,
    LIVED_MS,
    count_failures,
    restart_delay_ms,
)


def test_one_that_ran_for_long_is_started_again_at_once() -> None:
    assert restart_delay_ms(count_failures(3, LIVED_MS)) == 0


def test_starts_that_do_not_last_come_less_and_less_often() -> None:
    failures, delays = 0, []

    for _ in range(30):
        failures = count_failures(failures, LIVED_MS - 1)
        delays.append(restart_delay_ms(failures))

    assert delays[:3] == [DELAY_MIN_MS, 2 * DELAY_MIN_MS, 4 * DELAY_MIN_MS]
    assert delays[-1] == DELAY_MAX_MS

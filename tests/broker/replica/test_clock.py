"""A host's clocks, read for queue time: it never goes back, and mistrusts large steps of the wall clock."""

from __future__ import annotations

from quaymaster.broker.replica.clock import QueueClock, monotonic_ms, wall_ms

WALL_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Clocks:
    """A wall clock and a monotonic one, and a replica that alone leads its journal."""

    def __init__(self, *, last_stamp_ms: int = 0) -> None:
        self.wall_ms = WALL_MS
        self.monotonic_ms = 12_345
        self.queue = QueueClock(
            last_stamp_ms=last_stamp_ms, wall_ms=lambda: self.wall_ms, monotonic_ms=lambda: self.monotonic_ms
        )
        self.queue.queue_time.elected("a", ("a",), last_stamp_ms, self.monotonic_ms)
        self.queue.queue_time.activated(self.monotonic_ms)

    def pass_ms(self, ms: int) -> None:
        """Let time pass on both clocks."""
        self.wall_ms += ms
        self.monotonic_ms += ms


def test_a_new_journal_starts_at_the_wall_clock() -> None:
    clocks = Clocks()

    clocks.pass_ms(1_000)

    assert clocks.queue.time_ms() == WALL_MS + 1_000
    assert not clocks.queue.expiry_is_held


def test_time_goes_on_from_the_last_stamp_when_the_wall_clock_is_behind_it() -> None:
    clocks = Clocks(last_stamp_ms=WALL_MS + 4_000)

    clocks.pass_ms(10)
    clocks.queue.follow_wall()

    assert clocks.queue.time_ms() == WALL_MS + 4_010
    assert clocks.queue.gap_ms == -4_000
    assert not clocks.queue.expiry_is_held


def test_a_step_of_the_wall_clock_changes_nothing_by_itself() -> None:
    clocks = Clocks()

    clocks.wall_ms += 10_000
    clocks.queue.follow_wall()

    assert clocks.queue.time_ms() == WALL_MS
    assert clocks.queue.gap_ms == 10_000


def test_a_jump_holds_expiry_and_is_not_followed() -> None:
    for step_ms in (2 * HOUR_MS, -2 * HOUR_MS):
        clocks = Clocks()
        clocks.wall_ms += step_ms

        clocks.queue.follow_wall()

        assert clocks.queue.expiry_is_held
        assert clocks.queue.time_ms() == WALL_MS


def test_an_operator_can_say_that_the_wall_clock_is_right() -> None:
    clocks = Clocks()
    clocks.wall_ms += 2 * HOUR_MS

    clocks.queue.accept()
    clocks.queue.follow_wall()

    assert not clocks.queue.expiry_is_held
    assert clocks.queue.time_ms() == WALL_MS + 2 * HOUR_MS


def test_the_clocks_of_this_host_are_read_in_milliseconds() -> None:
    clock = QueueClock(last_stamp_ms=0)

    clock.follow_wall()

    assert clock.queue_time.wall_at(monotonic_ms()) <= wall_ms() + 1_000
    assert wall_ms() > WALL_MS

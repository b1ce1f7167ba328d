"""Queue time: it never goes back, follows small steps of the wall clock, and mistrusts large ones."""

from __future__ import annotations

from quaymaster.broker.clock import HOLD_MS, JUMP_MS, QueueClock

WALL_MS = 1_700_000_000_000


class Clocks:
    def __init__(self, *, last_stamp_ms: int = 0) -> None:
        self.wall_ms = WALL_MS
        self.monotonic_ms = 12_345
        self.queue = QueueClock(
            last_stamp_ms=last_stamp_ms, wall_ms=lambda: self.wall_ms, monotonic_ms=lambda: self.monotonic_ms
        )

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


def test_a_new_journal_starts_at_the_wall_clock() -> None:
    clocks = Clocks()

    clocks.pass_ms(1_000)

    assert clocks.queue.time_ms() == WALL_MS + 1_000
    assert not clocks.queue.expiry_is_held


def test_time_goes_on_from_the_last_stamp_when_the_wall_clock_is_behind_it() -> None:
    clocks = Clocks(last_stamp_ms=WALL_MS + 5_000)

    clocks.pass_ms(10)

    assert clocks.queue.time_ms() == WALL_MS + 5_010
    assert clocks.queue.ahead_of_wall_ms() == 5_000
    assert not clocks.queue.expiry_is_held


def test_a_step_of_the_wall_clock_changes_nothing_by_itself() -> None:
    clocks = Clocks()

    clocks.wall_ms += 10_000

    assert clocks.queue.time_ms() == WALL_MS


def test_a_small_step_forwards_is_taken_up() -> None:
    clocks = Clocks()
    clocks.wall_ms += 10_000

    clocks.queue.follow_wall()

    assert clocks.queue.time_ms() == WALL_MS + 10_000
    assert not clocks.queue.expiry_is_held


def test_a_small_step_backwards_never_turns_time_back() -> None:
    clocks = Clocks()
    clocks.wall_ms -= 10_000

    clocks.queue.follow_wall()

    assert clocks.queue.time_ms() == WALL_MS
    assert not clocks.queue.expiry_is_held


def test_a_jump_holds_expiry_and_is_not_followed() -> None:
    for step_ms in (JUMP_MS + 1, -JUMP_MS - 1):
        clocks = Clocks()
        clocks.wall_ms += step_ms

        clocks.queue.follow_wall()

        assert clocks.queue.expiry_is_held
        assert clocks.queue.time_ms() == WALL_MS


def test_a_start_far_from_the_last_stamp_holds_expiry() -> None:
    assert Clocks(last_stamp_ms=WALL_MS - JUMP_MS - 1).queue.expiry_is_held
    assert Clocks(last_stamp_ms=WALL_MS + JUMP_MS + 1).queue.expiry_is_held
    assert not Clocks(last_stamp_ms=WALL_MS - JUMP_MS).queue.expiry_is_held


def test_expiry_goes_on_when_both_clocks_have_agreed_for_an_hour() -> None:
    clocks = Clocks(last_stamp_ms=WALL_MS - 2 * JUMP_MS)

    clocks.pass_ms(HOLD_MS)
    clocks.queue.follow_wall()
    held = clocks.queue.expiry_is_held
    clocks.pass_ms(1)
    clocks.queue.follow_wall()

    assert held
    assert not clocks.queue.expiry_is_held


def test_the_hour_begins_anew_while_the_clocks_disagree() -> None:
    clocks = Clocks()
    clocks.wall_ms += 2 * JUMP_MS
    for _ in range(5):
        clocks.pass_ms(HOLD_MS)
        clocks.queue.follow_wall()

    assert clocks.queue.expiry_is_held


def test_an_operator_can_say_that_the_wall_clock_is_right() -> None:
    clocks = Clocks()
    clocks.wall_ms += 2 * JUMP_MS
    clocks.queue.follow_wall()

    clocks.queue.release_expiry()

    assert not clocks.queue.expiry_is_held
    assert clocks.queue.time_ms() == WALL_MS + 2 * JUMP_MS

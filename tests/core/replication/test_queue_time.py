"""Queue time is a property of the journal: it runs evenly, whatever the wall clocks of hosts say."""

from __future__ import annotations

from quaymaster.core.replication.queue_time import (
    ALONE_MAX_MS,
    CLOCKS_WAIT_MS,
    FIRST_CLOCKS_WAIT_MS,
    HEARD_MAX_MS,
    HOLD_MS,
    JUMP_MS,
    SLEW,
    STEP_MAX_MS,
    QueueTime,
    say_held,
)

WALL_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
ALONE = ("a",)
THREE = ("a", "b", "c")


def opened(*, stamp_ms: int = WALL_MS, wall_ms: int = WALL_MS, now_ms: int = 0) -> QueueTime:
    """Return the queue time of a replica that was just opened."""
    found = QueueTime(stamp_ms, now_ms)
    found.note_wall(wall_ms, now_ms)
    return found


def leading(
    members: tuple[str, ...] = ALONE, *, stamp_ms: int = WALL_MS, wall_ms: int = WALL_MS
) -> QueueTime:
    """Return that of a leader that has just been activated; the other members' clocks are right."""
    found = opened(stamp_ms=stamp_ms, wall_ms=wall_ms)
    for member in members[1:]:
        found.hear_member(member, 0, WALL_MS, 0)
    found.elected("a", members, stamp_ms, 0)
    found.activated(0)
    return found


def hear_all(found: QueueTime, now_ms: int, *walls_ms: int) -> None:
    """Let the others tell their wall clocks."""
    for member, wall_ms in zip(("b", "c"), walls_ms, strict=False):
        found.hear_member(member, 0, wall_ms, now_ms)


def test_a_follower_carries_on_what_its_leader_told_it() -> None:
    found = opened(wall_ms=WALL_MS + 20 * MINUTE_MS)

    found.hear_leader(WALL_MS + 500, 1_000)

    assert found.is_known
    assert (found.at(4_000), found.told_ms(4_000)) == (WALL_MS + 3_500, WALL_MS + 3_500)


def test_what_nobody_measured_is_told_to_nobody() -> None:
    found = opened()

    found.hear_leader(0, 1_000)

    assert found.told_ms(1_000) == 0
    assert QueueTime().wall_at(5) == 0
    assert found.wall_at(5) == WALL_MS + 5


def test_a_new_leader_with_a_clock_ahead_goes_on_at_the_speed_of_time() -> None:
    found = opened(wall_ms=WALL_MS + 400_000)
    found.hear_leader(WALL_MS, 0)

    first_ms = found.elected("a", THREE, WALL_MS - 10, 2_000)
    found.activated(2_000)
    found.follow(3_000)

    assert first_ms == WALL_MS + 2_000
    assert found.at(3_000) == WALL_MS + 3_000


def test_a_new_leader_goes_on_from_a_stamp_ahead_of_its_clock_without_standing_still() -> None:
    found = opened(stamp_ms=WALL_MS + 20 * MINUTE_MS)

    first_ms = found.elected("a", ALONE, WALL_MS + 20 * MINUTE_MS, 0)
    found.activated(0)

    assert first_ms == WALL_MS + 20 * MINUTE_MS
    assert found.at(30_000) == first_ms + 30_000


def test_a_stamp_later_than_what_the_leader_told_counts() -> None:
    found = opened()
    found.hear_leader(WALL_MS, 0)

    assert found.elected("a", THREE, WALL_MS + 70, 10) == WALL_MS + 70


def test_an_elect_that_was_restarted_goes_by_the_time_that_another_member_measured() -> None:
    found = opened(wall_ms=WALL_MS + 5 * DAY_MS)

    found.hear_member("b", WALL_MS + 8_000, WALL_MS, 100)
    found.hear_member("c", WALL_MS + 7_000, WALL_MS, 100)

    assert found.elected("a", THREE, WALL_MS, 100) == WALL_MS + 8_000


def test_after_all_were_stopped_a_majority_of_clocks_says_for_how_long() -> None:
    night_ms = 12 * 3_600_000
    for own_ms in (night_ms, 5 * DAY_MS, -YEAR_MS):
        found = opened(wall_ms=WALL_MS + own_ms)
        hear_all(found, 0, WALL_MS + night_ms, WALL_MS + night_ms + 40)

        first_ms = found.elected("a", THREE, WALL_MS, 0)

        assert abs(first_ms - WALL_MS - night_ms) <= 40


def test_a_clock_that_is_heard_before_the_activation_counts_too() -> None:
    found = opened()
    found.hear_member("b", 0, WALL_MS - YEAR_MS, 0)
    found.elected("a", THREE, WALL_MS - DAY_MS, 0)

    found.hear_member("c", 0, WALL_MS, 0)
    found.activated(0)
    found.hear_member("c", 0, WALL_MS + DAY_MS, 0)
    found.activated(0)

    assert found.at(0) == WALL_MS


def test_the_first_stamp_of_a_journal_is_what_a_majority_of_clocks_has_reached() -> None:
    found = opened(stamp_ms=0, wall_ms=WALL_MS + 5 * DAY_MS)
    hear_all(found, 0, WALL_MS + 3, WALL_MS)

    assert found.elected("a", THREE, 0, 0) == WALL_MS + 3
    assert not found.expiry_is_held


def test_a_new_journal_of_one_begins_with_its_clock_whatever_that_says() -> None:
    found = opened(stamp_ms=0, wall_ms=WALL_MS + 80 * YEAR_MS)

    assert found.elected("a", ALONE, 0, 0) == WALL_MS + 80 * YEAR_MS


def test_fewer_clocks_than_a_majority_are_not_believed() -> None:
    five = (*THREE, "d", "e")
    found = opened(wall_ms=WALL_MS + DAY_MS)
    found.hear_member("b", 0, 0, 0)
    found.hear_member("c", 0, WALL_MS + MINUTE_MS, 0)

    assert found.elected("a", five, WALL_MS, 0) == WALL_MS
    assert QueueTime(WALL_MS, 0).elected("a", THREE, WALL_MS, 0) == WALL_MS

    found.hear_member("d", 0, WALL_MS + 1_000, 0)
    assert found.elected("a", five, WALL_MS, 0) == WALL_MS + 1_000


def test_one_clock_is_not_believed_against_members_that_tell_none() -> None:
    for ahead_ms in (MINUTE_MS, YEAR_MS):
        found = opened(wall_ms=WALL_MS + ahead_ms)
        found.hear_member("b", 0, 0, 0)

        assert found.elected("a", THREE, WALL_MS, 0) == WALL_MS
        found.activated(500)
        assert found.at(500) == WALL_MS + 500


def test_one_clock_begins_a_new_journal_of_members_that_tell_none() -> None:
    assert opened(stamp_ms=0).elected("a", THREE, 0, 0) == WALL_MS


def test_a_lone_server_that_was_off_for_a_night_catches_up_and_expires_after_an_even_hour() -> None:
    found = leading(wall_ms=WALL_MS + 12 * 3_600_000)

    caught_up_ms = found.at(0)
    held = found.expiry_is_held
    found.note_wall(WALL_MS + 12 * 3_600_000 + HOLD_MS, HOLD_MS)
    found.follow(HOLD_MS)

    assert caught_up_ms == WALL_MS + 12 * 3_600_000
    assert (held, found.expiry_is_held) == (True, False)


def test_a_step_is_told_with_how_far_it_went_as_long_as_expiry_is_held_for_it() -> None:
    found = opened()
    hear_all(found, 0, WALL_MS + 21 * DAY_MS, WALL_MS + 21 * DAY_MS)
    found.elected("a", THREE, WALL_MS, 0)
    found.activated(0)

    assert found.expiry_is_held
    assert found.stepped_ms == 21 * DAY_MS
    told = say_held(7, found.gap_ms, found.stepped_ms)
    assert "nothing expires in journal 7 for an hour" in told
    assert "stepped by 30,240 min" in told
    # Doubt about the clocks of now is the newer story.
    assert "clocks are 400.0 s ahead" in say_held(7, 400_000, found.stepped_ms)
    assert "0.0 s" in say_held(7, 0, JUMP_MS)
    assert opened(stamp_ms=0).stepped_ms == 0


def test_a_lone_server_that_was_off_for_minutes_just_goes_on() -> None:
    found = leading(wall_ms=WALL_MS + JUMP_MS)

    assert found.at(0) == WALL_MS + JUMP_MS
    assert not found.expiry_is_held


def test_a_lone_server_whose_clock_came_back_an_hour_ahead_expires_nothing_for_an_hour() -> None:
    found = leading(wall_ms=WALL_MS + 3_300_000)

    assert found.expiry_is_held
    assert "stepped by 55 min" in say_held(0, found.gap_ms, found.stepped_ms)


def test_a_lone_server_that_boots_in_2099_believes_nothing_of_it() -> None:
    found = leading(wall_ms=WALL_MS + 75 * YEAR_MS)

    assert found.at(0) == WALL_MS
    assert found.expiry_is_held
    assert leading(wall_ms=WALL_MS + ALONE_MAX_MS).at(0) == WALL_MS + ALONE_MAX_MS


def test_a_step_of_the_wall_clock_in_either_direction_is_held_and_time_runs_on() -> None:
    for step_ms in (STEP_MAX_MS + 20, 400_000, 5 * DAY_MS, 80 * YEAR_MS):
        for sign in (-1, 1):
            found = leading()

            found.note_wall(WALL_MS + 1_000 + sign * step_ms, 1_000)
            found.follow(1_000)

            assert found.expiry_is_held
            assert abs(found.at(1_000) - WALL_MS - 1_000) <= 1_000 // SLEW
            assert abs(found.gap_ms - sign * step_ms) <= 1_000 // SLEW


def test_a_small_step_is_approached_by_a_hundredth_of_the_time_that_passes() -> None:
    for step_ms in (-4_000, 4_000):
        found = leading()
        for now_ms in range(100, 100_001, 100):
            found.note_wall(WALL_MS + now_ms + step_ms, now_ms)
            found.follow(now_ms)

        assert not found.expiry_is_held
        assert found.at(100_000) == WALL_MS + 100_000 + step_ms // 4
        assert found.gap_ms == 3 * step_ms // 4


def test_queue_time_meets_the_wall_clock_and_stays_with_it() -> None:
    found = leading()
    for now_ms in range(100, 30_001, 100):
        found.note_wall(WALL_MS + now_ms + 150, now_ms)
        found.follow(now_ms)

    assert found.at(30_000) == WALL_MS + 30_000 + 150
    assert found.gap_ms == 0


def test_a_clock_that_comes_back_ends_the_hold() -> None:
    found = leading()
    found.note_wall(WALL_MS + DAY_MS, 0)
    found.follow(0)
    held = found.expiry_is_held

    found.note_wall(WALL_MS + 100, 100)
    found.follow(100)

    assert (held, found.expiry_is_held) == (True, False)


def test_expiry_goes_on_after_an_even_hour_when_it_can_only_be_late() -> None:
    def follow(found: QueueTime, now_ms: int, gap_ms: int) -> bool:
        found.note_wall(WALL_MS + now_ms + gap_ms, now_ms)
        found.follow(now_ms)
        return found.expiry_is_held

    ahead, behind = leading(), leading()
    begun = [follow(ahead, 1_000, DAY_MS), follow(behind, 1_000, -DAY_MS)]
    hour_ms = 1_000 + HOLD_MS
    before = follow(ahead, hour_ms - 1, DAY_MS)
    after = [follow(ahead, hour_ms, DAY_MS), follow(behind, hour_ms, -DAY_MS)]
    again = [follow(ahead, hour_ms + 1, DAY_MS), follow(ahead, hour_ms + 2, DAY_MS + JUMP_MS)]
    less = [
        follow(ahead, hour_ms + 3, DAY_MS),
        follow(ahead, hour_ms + 4, HOLD_MS // SLEW),
        follow(ahead, hour_ms + 5, DAY_MS),
    ]

    assert begun == [True, True]
    assert before
    assert after == [False, True]
    assert again == [False, True]
    assert less == [False, False, True]


def test_the_hour_begins_again_with_each_step() -> None:
    found = leading()
    held = []
    for number in range(1, 6):
        now_ms = number * (HOLD_MS - 1_000)
        found.note_wall(WALL_MS + now_ms + number * DAY_MS, now_ms)
        found.follow(now_ms)
        held.append(found.expiry_is_held)

    assert held == [True] * 5


def test_a_leader_goes_by_the_clocks_of_a_majority_and_not_by_its_own() -> None:
    found = leading(THREE)

    found.note_wall(WALL_MS + 5 * DAY_MS, 1_000)
    hear_all(found, 1_000, WALL_MS + 1_000, WALL_MS + 1_000)
    found.follow(1_000)

    assert (found.gap_ms, found.expiry_is_held) == (0, False)


def test_a_majority_of_clocks_far_ahead_is_held_too() -> None:
    found = leading(THREE)

    hear_all(found, 1_000, WALL_MS + 5 * DAY_MS, WALL_MS + 5 * DAY_MS)
    found.follow(1_000)

    assert found.expiry_is_held
    assert found.at(1_000) <= WALL_MS + 1_010


def test_clocks_that_are_not_heard_any_more_change_nothing() -> None:
    found = leading(THREE)
    now_ms = HEARD_MAX_MS + 1

    found.note_wall(WALL_MS + 5 * DAY_MS, now_ms)
    found.follow(now_ms)

    assert (found.gap_ms, found.expiry_is_held) == (0, False)
    assert found.at(now_ms) == WALL_MS + now_ms


def test_an_operator_can_say_that_clocks_ahead_are_right() -> None:
    found = leading()
    found.note_wall(WALL_MS + 5 * DAY_MS, 0)
    found.follow(0)

    found.accept(0)
    found.follow(100)

    assert not found.expiry_is_held
    assert found.at(0) == WALL_MS + 5 * DAY_MS
    assert found.gap_ms == 0


def test_an_operator_can_say_that_clocks_behind_are_right_and_time_does_not_go_back() -> None:
    found = leading()
    found.note_wall(WALL_MS - 5 * DAY_MS, 0)
    found.follow(0)

    found.accept(0)
    for now_ms in range(100, 2_001, 100):
        found.note_wall(WALL_MS - 5 * DAY_MS + now_ms, now_ms)
        found.follow(now_ms)

    assert not found.expiry_is_held
    assert WALL_MS + 1_980 <= found.at(2_000) <= WALL_MS + 2_000


def test_an_operators_word_ends_the_hour_after_a_night_too() -> None:
    found = leading(wall_ms=WALL_MS + 12 * 3_600_000)

    found.accept(0)

    assert not found.expiry_is_held


def test_what_an_operator_said_holds_for_a_follower_that_leads_next() -> None:
    found = opened(wall_ms=WALL_MS - 5 * DAY_MS)
    found.hear_leader(WALL_MS, 0)
    found.follow(0)

    found.accept(0)
    found.elected("a", THREE, WALL_MS, 0)
    hear_all(found, 0, WALL_MS - 5 * DAY_MS, WALL_MS - 5 * DAY_MS)
    found.activated(0)

    assert found.at(0) == WALL_MS
    assert not found.expiry_is_held


def test_an_operators_word_without_any_clock_only_ends_the_hold() -> None:
    found = QueueTime(WALL_MS, 0)
    found.elected("a", ALONE, WALL_MS, 0)

    found.accept(0)

    assert (found.at(0), found.expiry_is_held) == (WALL_MS, False)


def test_only_a_leader_holds_expiry_and_a_follower_shows_its_own_gap() -> None:
    found = leading(wall_ms=WALL_MS + 75 * YEAR_MS)

    found.deposed()
    found.hear_leader(WALL_MS, 1_000)
    found.follow(1_000)

    assert not found.expiry_is_held
    assert found.gap_ms == 75 * YEAR_MS + 1_000
    assert found.at(5_000) == WALL_MS + 4_000


def test_an_elect_whose_clocks_differ_waits_for_more_of_them() -> None:
    found = opened()
    before_any = found.may_begin("a", THREE, 0, is_empty=False)
    found.hear_member("b", 0, WALL_MS - 5 * DAY_MS, 0)

    differing = found.may_begin("a", THREE, CLOCKS_WAIT_MS - 1, is_empty=False)
    waited = found.may_begin("a", THREE, CLOCKS_WAIT_MS, is_empty=False)
    first = found.may_begin("a", THREE, FIRST_CLOCKS_WAIT_MS - 1, is_empty=True)
    found.hear_member("c", 0, WALL_MS + STEP_MAX_MS, 0)
    agreed = found.may_begin("a", THREE, 0, is_empty=False)

    assert (before_any, differing, waited, first, agreed) == (True, False, True, False, True)


def test_an_elect_that_has_heard_all_clocks_waits_no_longer_though_all_differ() -> None:
    found = opened(stamp_ms=0)
    found.hear_member("b", 0, WALL_MS - 6_000, 0)
    found.hear_member("c", 0, WALL_MS + 5 * DAY_MS, 0)

    may_begin = found.may_begin("a", THREE, 0, is_empty=True)
    began_ms = found.elected("a", THREE, 0, 0)

    assert may_begin
    assert began_ms == WALL_MS


def test_an_elect_that_knows_the_time_waits_for_no_clock() -> None:
    found = opened()
    found.hear_member("b", WALL_MS, WALL_MS - 5 * DAY_MS, 0)

    assert found.may_begin("a", THREE, 0, is_empty=False)


def test_a_replica_that_was_away_goes_on_by_what_its_machine_measured() -> None:
    found = QueueTime(WALL_MS, 0)
    found.resume(WALL_MS + 5_000, 0)
    found.note_wall(WALL_MS + DAY_MS, 0)

    found.elected("a", ALONE, WALL_MS, 0)
    found.activated(0)

    assert found.is_known
    assert found.at(0) == WALL_MS + 5_000
    assert found.expiry_is_held


def test_what_a_machine_measured_never_goes_behind_the_last_stamp() -> None:
    found = QueueTime(WALL_MS, 0)

    found.resume(WALL_MS - 5_000, 0)

    assert found.at(0) == WALL_MS


def test_a_gap_that_was_accepted_before_is_held_against_nobody() -> None:
    found = QueueTime(WALL_MS, 0)
    found.settle(-DAY_MS)
    found.note_wall(WALL_MS - DAY_MS, 0)

    found.elected("a", ALONE, WALL_MS, 0)
    found.activated(0)

    assert found.settled_ms == -DAY_MS
    assert not found.expiry_is_held

"""Which message of a standard queue is next, and fair shares between tenants."""

from __future__ import annotations

import pytest

from quaymaster.core.structures.orders import standard_order
from quaymaster.core.structures.orders.index import MemoryChunks, SequenceIndex
from quaymaster.core.structures.orders.standard_order import (
    BUSY_MIN_MS,
    NOISY_IN_FLIGHT_MIN,
    NOISY_QUIET_AFTER_MS,
    RUN_LENGTH_PER_STEP,
    SCAN_MAX,
    TENANTS_MAX,
    StandardOrder,
)

NOISY, QUIET = 7, 8
ALL = 10**9


class Deferred:
    def __init__(self) -> None:
        self.due_ms: dict[int, int] = {}

    def defer(self, sequence: int, due_ms: int) -> None:
        self.due_ms[sequence] = due_ms


class Orders:
    """An order with its index; messages are sent with `send`."""

    def __init__(self) -> None:
        self.deferred = Deferred()
        self.index = SequenceIndex(MemoryChunks(), b"1/0")
        self.order = StandardOrder(self.deferred, self.index, 0)

    def send(self, count: int = 1, *, now_ms: int = 0, delay_ms: int = 0, group: int = 0) -> None:
        if delay_ms != self.order.delay_ms:
            self.order.change_delay(delay_ms)
        for _ in range(count):
            self.index.append(0, now_ms, delay_ms, group)
            if group:
                self.order.sent(group, now_ms)

    def take(self, count_max: int, *, now_ms: int = 0, stop: int = ALL, in_flight: int = 0) -> list[int]:
        return self.order.take(count_max, now_ms, min(stop, self.index.next_sequence), in_flight)


def test_fresh_messages_come_in_the_order_they_were_sent() -> None:
    orders = Orders()
    orders.send(5)

    assert orders.take(3) == [1, 2, 3]
    assert orders.take(3) == [4, 5]
    assert orders.take(3) == []
    assert not orders.order.unfinished


def test_uncommitted_message_is_not_handed_out() -> None:
    orders = Orders()
    orders.send(5)
    orders.order.surface(5)

    assert orders.take(10, stop=3) == [1, 2]
    assert orders.take(10, stop=6) == [5, 3, 4]


def test_returned_and_fresh_messages_take_turns() -> None:
    orders = Orders()
    orders.send(6)
    orders.take(3)
    for sequence in (1, 2, 3):
        orders.order.give_back(sequence, 0)

    assert orders.take(10) == [1, 4, 2, 5, 3, 6]


def test_message_returned_at_once_does_not_starve_the_rest() -> None:
    orders = Orders()
    orders.send(3)
    taken = []

    for _ in range(6):
        (sequence,) = orders.take(1)
        taken.append(sequence)
        orders.order.give_back(sequence, 0)

    assert {1, 2, 3} == set(taken)


def test_very_many_returned_messages_are_served_before_fresh_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_order, "RETURNED_MAX", 2)
    orders = Orders()
    orders.send(6)
    orders.take(4)
    for sequence in (1, 2, 3, 4):
        orders.order.give_back(sequence, 0)

    assert orders.take(10) == [1, 2, 3, 4, 5, 6]


def test_message_behind_the_queue_delay_waits_and_says_how_long() -> None:
    orders = Orders()
    orders.send(1, now_ms=1_000, delay_ms=5_000)

    assert orders.take(1, now_ms=5_999) == []
    assert orders.order.next_due_ms == 6_000
    assert orders.order.count_waiting(5_999) == 1
    assert orders.order.is_waiting(1, 5_999)
    assert orders.take(1, now_ms=6_000) == [1]
    assert not orders.order.is_waiting(1, 5_999)


def test_own_delay_does_not_hold_up_what_is_behind_it_and_is_counted_elsewhere() -> None:
    orders = Orders()
    orders.send(1)
    orders.index.append(0, 0, 900_000, 0)
    orders.order.own.add(2)
    orders.send(1)

    assert orders.take(10) == [1, 3]
    orders.order.became_due(2)
    assert orders.take(10) == [2]


def test_waiting_messages_are_counted_right_among_ones_with_other_due_times() -> None:
    orders = Orders()
    expected = 0
    for number in range(300):
        if number % 3:
            orders.send(1, now_ms=number * 100, delay_ms=10_000)
            expected += number * 100 + 10_000 > 25_000
        else:  # a delay of its own, or an older message moved here
            orders.index.append(0, number % 2 * 40_000, 0, 0)
            orders.order.own.add(number + 1)

    assert orders.order.count_waiting(25_000) == expected
    assert len(orders.order.waiting(25_000)) == expected
    assert orders.order.count_waiting(10**9) == 0
    assert orders.order.count_waiting(0) == 200


def test_lowered_delay_lets_new_messages_pass_those_that_wait() -> None:
    orders = Orders()
    orders.send(2, delay_ms=900_000)
    orders.order.change_delay(0)
    orders.send(2, delay_ms=1_000)
    orders.order.change_delay(0)
    orders.send(1)

    assert orders.order.count_waiting(0) == 4
    assert orders.order.count_waiting(1_000) == 2
    assert orders.take(10) == [5]
    assert orders.deferred.due_ms == {1: 900_000, 2: 900_000, 3: 1_000, 4: 1_000}
    assert orders.order.count_waiting(0) == 0


def test_delay_lowered_with_nothing_sent_in_between_starts_one_stretch() -> None:
    orders = Orders()
    orders.send(1, delay_ms=5_000)

    orders.order.change_delay(0)
    orders.order.change_delay(0)

    assert orders.order.stretches == [2]


def test_claims_of_a_replay_end_where_the_leader_was() -> None:
    orders = Orders()
    orders.send(1)
    orders.send(2, delay_ms=900_000)
    orders.order.change_delay(0)
    orders.send(5)
    orders.order.own.add(5)

    orders.order.claim(7, 0)
    orders.order.claim(4, 0)

    assert orders.deferred.due_ms == {2: 900_000, 3: 900_000}
    assert list(orders.order.fresh()) == [1, 6]
    assert (orders.order.cursor, len(orders.order.own)) == (8, 0)
    orders.order.became_due(5)
    assert orders.take(10) == [1, 5, 6, 8]


def test_what_a_leader_left_in_front_of_a_claim_is_given_later() -> None:
    orders = Orders()
    orders.send(4)

    orders.order.claim(3, 0)

    assert orders.take(10) == [1, 2, 4]


def test_message_deleted_out_of_turn_leaves_what_is_in_front_of_it_waiting() -> None:
    orders = Orders()
    orders.send(4, delay_ms=5_000)
    orders.order.surface(4)

    orders.order.discard(2, 0)
    orders.order.discard(4, 0)

    assert orders.take(10) == []
    assert orders.take(10, now_ms=5_000) == [1, 3]


def test_message_deleted_at_the_cursor_moves_it() -> None:
    orders = Orders()
    orders.send(3)

    orders.order.discard(1, 0)
    orders.order.give_back(orders.take(1)[0], 0)
    orders.order.discard(2, 0)

    assert orders.order.cursor == 3
    assert orders.take(10) == [3]


def test_everything_below_a_purge_is_gone() -> None:
    orders = Orders()
    orders.send(60, group=NOISY)
    for sequence in orders.take(40, in_flight=100)[:3]:
        orders.order.give_back(sequence, 0)
    orders.order.own.add(50)
    orders.order.passed.add(41)

    emptied = orders.order.discard_all()
    orders.send(1)

    assert orders.take(100) == [61]
    assert not orders.order.held
    assert orders.order.tenants[NOISY].in_flight == 0
    assert [len(list(steps)) for steps in emptied] == [1]


def test_the_oldest_expire_whether_they_came_back_or_are_held_for_a_tenant() -> None:
    orders = noisy_orders(behind=10)
    orders.take(1, in_flight=40)  # serves the noisy one after everything was passed over
    orders.order.give_back(1, 0)
    orders.order.give_back(2, 0)
    held = list(orders.order.fresh())

    orders.order.discard_below(1, max(held) + 1, lambda sequence: True, [1])

    assert list(orders.order.returned) == [2]
    assert not orders.order.held
    assert [len(list(steps)) for steps in orders.order.discard_all()] == [1]


def test_purge_keeps_what_a_tenant_holds_above_it() -> None:
    orders = noisy_orders(behind=10)
    orders.take(1, in_flight=40)  # serves the noisy one after everything was passed over

    orders.order.discard_below(1, 45, lambda sequence: True, [])

    assert list(orders.order.fresh()) == list(range(45, 51))
    assert orders.order.held == {NOISY}


# Fair queues


def noisy_orders(*, behind: int, before: int = 40) -> Orders:
    """A tenant with `before` messages in flight and `behind` more."""
    orders = Orders()
    orders.send(before + behind, group=NOISY)
    for _ in range(before):
        orders.order.claim(orders.order.cursor, 0)
    return orders


def test_quiet_tenant_goes_before_the_backlog_of_a_noisy_one() -> None:
    orders = noisy_orders(behind=500)
    orders.send(2, group=QUIET)
    orders.send(1)

    taken = orders.take(5, in_flight=40)

    assert taken == [541, 542, 543, 41, 42]
    assert orders.order.noisy_groups(0, 40) == 1


def test_tenant_below_the_limit_is_served_in_turn() -> None:
    orders = noisy_orders(behind=5, before=NOISY_IN_FLIGHT_MIN - 1)
    orders.send(1, group=QUIET)

    assert orders.take(1, in_flight=NOISY_IN_FLIGHT_MIN - 1) == [NOISY_IN_FLIGHT_MIN]


def test_tenant_with_a_small_share_of_what_is_in_flight_is_not_noisy() -> None:
    orders = noisy_orders(behind=5)

    assert orders.order.noisy_groups(0, 400) == 0
    assert orders.order.noisy_groups(0, 399) == 1


def test_quiet_tenant_is_found_at_once_behind_very_many_messages_of_a_noisy_one() -> None:
    orders = noisy_orders(behind=20 * SCAN_MAX)
    orders.send(1, group=QUIET)

    assert orders.take(2, in_flight=40) == [40 + 20 * SCAN_MAX + 1, 41]


def test_deep_backlog_of_a_noisy_tenant_does_not_stand_still() -> None:
    behind = 5 * RUN_LENGTH_PER_STEP * SCAN_MAX // 2
    orders = noisy_orders(behind=behind)
    orders.send(1, group=QUIET)

    rounds = [orders.take(1, in_flight=40) for _ in range(3)]

    assert rounds == [[41], [42], [40 + behind + 1]]


def test_run_of_a_noisy_tenant_is_looked_at_one_by_one_where_some_of_it_is_gone() -> None:
    orders = noisy_orders(behind=10)
    orders.order.discard(45, 0)
    orders.send(1, group=QUIET)

    assert orders.take(1, in_flight=40) == [51]
    assert list(orders.order.fresh()) == [41, 42, 43, 44, 46, 47, 48, 49, 50]


def test_message_of_a_noisy_tenant_that_came_back_is_held_too() -> None:
    orders = noisy_orders(behind=3)
    orders.order.give_back(7, 0)
    orders.send(1, group=QUIET)

    assert orders.take(1, in_flight=39) == [44]
    assert list(orders.order.tenants[NOISY].held) == [7, 41, 42, 43]


def test_receive_that_looked_at_very_many_says_that_there_may_be_more() -> None:
    orders = Orders()
    orders.index.append(0, 0, 0, 0)
    for _ in range(SCAN_MAX + 10):
        orders.index.append(0, 0, 0, 0)
        orders.order.own.add(orders.index.next_sequence - 1)
    orders.send(1)

    assert orders.take(10) == [1]
    assert orders.order.unfinished
    assert orders.take(10) == [SCAN_MAX + 12]
    assert not orders.order.unfinished


def test_among_noisy_tenants_the_one_with_fewest_in_flight_is_first() -> None:
    orders = Orders()
    for group, count in ((NOISY, 60), (QUIET, 50)):
        for _ in range(count):
            orders.send(1, group=group)
            orders.order.claim(orders.order.cursor, 0)
    orders.send(3, group=NOISY)
    orders.send(3, group=QUIET)

    assert orders.take(4, in_flight=110) == [114, 115, 116, 111]


def test_tenant_that_is_quiet_again_is_served_in_turn() -> None:
    orders = noisy_orders(behind=5)
    orders.take(1, in_flight=40)
    for sequence in range(1, 40):
        orders.order.settle(sequence, 0, 0)

    assert orders.take(10, in_flight=2) == [42, 43, 44, 45]


def test_tenant_that_sent_nothing_for_five_minutes_is_not_noisy() -> None:
    orders = noisy_orders(behind=5)

    assert orders.order.noisy_groups(NOISY_QUIET_AFTER_MS, 40) == 1
    assert orders.order.noisy_groups(NOISY_QUIET_AFTER_MS + 1, 40) == 0
    orders.send(1, now_ms=NOISY_QUIET_AFTER_MS, group=NOISY)
    assert orders.order.noisy_groups(NOISY_QUIET_AFTER_MS + 1, 40) == 1


def test_tenant_that_takes_the_consumers_time_is_noisy_for_a_while() -> None:
    orders = Orders()
    orders.send(1, group=NOISY)
    orders.send(2, group=QUIET)
    orders.send(1)
    orders.take(4)

    orders.order.settle(1, BUSY_MIN_MS * 20, 0)
    orders.order.settle(2, BUSY_MIN_MS * 20, BUSY_MIN_MS * 20 - 100)
    orders.order.settle(4, BUSY_MIN_MS * 20, BUSY_MIN_MS * 20 - 100)

    now_ms = BUSY_MIN_MS * 20
    orders.send(1, now_ms=now_ms, group=NOISY)
    orders.order.give_back(3, now_ms)
    assert orders.order.noisy_groups(now_ms, 0) == 1
    assert orders.take(2, now_ms=now_ms) == [3, 5]
    assert orders.order.noisy_groups(now_ms + 280_000, 0) == 0


def test_time_spent_on_messages_without_a_tenant_counts_for_the_share() -> None:
    orders = Orders()
    orders.send(1, group=NOISY)
    orders.send(1)
    orders.take(2)

    orders.order.settle(2, 1_000_000, 0)
    orders.order.settle(1, 1_000_000, 960_000)

    assert orders.order.noisy_groups(1_000_000, 0) == 0


def test_held_message_of_a_tenant_can_be_claimed_and_deleted() -> None:
    orders = noisy_orders(behind=3)
    orders.take(1, in_flight=40)

    orders.order.claim(42, 0)
    orders.order.discard(43, 0)
    orders.order.discard(43, 0)

    assert not orders.order.held
    assert orders.order.tenants[NOISY].in_flight == 42


def test_deleting_what_nobody_holds_changes_nothing() -> None:
    orders = noisy_orders(behind=3)
    orders.take(1, in_flight=40)

    orders.order.discard(5, 0)  # taken, not held
    orders.send(1, group=QUIET)
    orders.order.claim(44, 0)
    orders.order.discard(44, 0)

    assert list(orders.order.fresh()) == [42, 43]


def test_tenants_that_have_nothing_here_are_forgotten() -> None:
    orders = Orders()
    for number in range(3 * TENANTS_MAX):
        orders.send(1, now_ms=number * 1_000, group=100 + number)
        (sequence,) = orders.take(1, now_ms=number * 1_000)
        orders.order.settle(sequence, number * 1_000 + 100, number * 1_000)

    assert len(orders.order.tenants) <= TENANTS_MAX + 1


def test_tenant_that_was_forgotten_may_leave_flight() -> None:
    orders = Orders()
    orders.send(1, group=NOISY)
    orders.send(1, group=QUIET)
    orders.take(2)
    del orders.order.tenants[NOISY]

    orders.order.give_back(1, 0)

    assert orders.take(1) == [1]


def test_queue_without_tenants_looks_nobody_up() -> None:
    orders = Orders()
    orders.send(1)
    orders.take(1)

    orders.order.settle(1, 0, 0)

    assert orders.order.tenants == {}


def test_loaded_messages_in_flight_count_for_their_tenants_only() -> None:
    orders = Orders()

    orders.order.load_in_flight({NOISY: 2}, 0)

    assert {group: tenant.in_flight for group, tenant in orders.order.tenants.items()} == {NOISY: 2}

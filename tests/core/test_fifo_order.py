"""Order and exclusivity of message groups."""

from __future__ import annotations

import pytest

from quaymaster.core import fifo_order
from quaymaster.core.fifo_order import SCAN_MAX, FIFOOrder
from quaymaster.core.index import MemoryChunks, SequenceIndex
from quaymaster.core.sequences import SequenceSet

ALL = 10**9


class Orders:
    def __init__(self, groups: str = "", *, delay_ms: int = 0, index: SequenceIndex | None = None) -> None:
        self.index = index or SequenceIndex(MemoryChunks(), b"1/0")
        self.order = FIFOOrder(self.index, delay_ms)
        self.send(groups)

    def send(self, groups: str, *, now_ms: int = 0) -> None:
        """Send a message for each letter, to the group it names."""
        for letter in groups:
            self.index.append(0, now_ms, 0, ord(letter))

    def take(self, count_max: int, *, now_ms: int = 0, stop: int = ALL) -> list[int]:
        return self.order.take(count_max, now_ms, min(stop, self.index.next_sequence), 0)

    def give_back(self, *sequences: int, now_ms: int = 0) -> None:
        for sequence in sequences:
            self.order.give_back(sequence, now_ms)

    def settle(self, *sequences: int, now_ms: int = 0) -> None:
        for sequence in sequences:
            self.order.settle(sequence, now_ms, 0)


def test_messages_come_grouped_by_their_group() -> None:
    orders = Orders("abaa")

    assert orders.take(10) == [1, 3, 4, 2]


def test_group_with_messages_in_flight_gives_no_more() -> None:
    orders = Orders("aab")

    assert orders.take(1) == [1]
    assert orders.take(10) == [3]
    assert orders.take(10) == []


def test_first_message_that_is_visible_again_comes_alone() -> None:
    orders = Orders("aaa")
    orders.take(2)
    orders.give_back(1)

    assert orders.take(10) == [1]
    assert orders.take(10) == []


def test_group_stays_locked_until_all_it_gave_are_gone() -> None:
    orders = Orders("aaa")
    orders.take(2)

    orders.settle(1)
    assert orders.take(10) == []
    orders.settle(2)
    assert orders.take(10) == [3]


def test_group_whose_first_message_is_hidden_longer_gives_nothing() -> None:
    orders = Orders("aaa")
    orders.take(3)
    orders.give_back(2, 3)

    assert orders.take(10) == []
    orders.give_back(1)
    assert orders.take(10) == [1, 2, 3]


def test_group_that_was_served_goes_behind_the_others() -> None:
    orders = Orders("aabbc")
    orders.give_back(*orders.take(3))

    assert orders.take(10) == [5, 1, 2, 3, 4]


def test_group_that_is_able_again_goes_behind_those_that_waited() -> None:
    orders = Orders("aab")
    orders.take(2)
    orders.give_back(1, now_ms=10)

    assert orders.take(3, now_ms=10) == [3, 1]


def test_group_that_waits_longer_goes_before_newer_messages() -> None:
    orders = Orders("a")
    orders.give_back(*orders.take(1), now_ms=5)
    orders.send("b", now_ms=10)

    assert orders.take(2, now_ms=10) == [1, 2]


def test_uncommitted_message_is_not_handed_out() -> None:
    orders = Orders("aab")

    assert orders.take(10, stop=2) == [1]
    orders.settle(1)
    assert orders.take(10, stop=3) == [2]


def test_delay_of_the_queue_holds_messages_and_changes_for_those_that_wait() -> None:
    orders = Orders("ab", delay_ms=5_000)

    assert orders.take(10, now_ms=4_999) == []
    assert orders.order.next_due_ms == 5_000
    assert orders.order.count_waiting(4_999) == 2
    assert orders.order.is_waiting(2, 4_999)
    orders.order.change_delay(1_000)
    assert orders.take(10, now_ms=1_000) == [1, 2]
    assert not orders.order.is_waiting(2, 0)
    assert orders.order.count_waiting(1_000) == 0


def test_look_ahead_for_more_of_a_group_stops_at_what_is_not_due() -> None:
    orders = Orders(delay_ms=1_000)
    orders.send("ab")
    orders.send("a", now_ms=500)

    assert orders.take(10, now_ms=1_000) == [1, 2]


def test_blocked_group_hides_no_other_and_is_scanned_once() -> None:
    looked_at = 0

    class Counting(SequenceIndex):
        def group(self, sequence: int) -> int:
            nonlocal looked_at
            looked_at += 1
            return super().group(sequence)

    orders = Orders("a" * (3 * SCAN_MAX) + "b", index=Counting(MemoryChunks(), b"1/0"))
    assert orders.take(1) == [1]

    rounds = 0
    while not (taken := orders.take(10)):
        assert orders.order.unfinished
        rounds += 1

    assert taken == [3 * SCAN_MAX + 1]
    assert rounds <= 3
    assert looked_at <= 2 * (3 * SCAN_MAX + 10)


def test_while_many_groups_are_ready_there_is_no_looking_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "READY_GROUPS_MAX", 2)
    orders = Orders("abc")
    orders.give_back(*orders.take(3))
    orders.send("xyx", now_ms=1)

    # Two groups wait in line while the first is served: another of its messages is not looked for.
    assert orders.take(2, now_ms=1)[0] == 1
    assert orders.order.cursor == 4


def test_claims_of_a_replay_end_where_the_leader_was() -> None:
    leader, follower = Orders("abcabc"), Orders("abcabc")
    for sequence in leader.take(3):
        follower.order.claim(sequence, 0)
    leader.settle(1)
    follower.settle(1)

    assert leader.take(10) == follower.take(10)


def test_message_deleted_out_of_turn_is_never_given() -> None:
    orders = Orders("aabb")

    orders.order.discard(2, 0)
    orders.order.discard(3, 0)

    assert sorted(orders.take(10)) == [1, 4]


def test_deleting_what_is_not_known_changes_nothing() -> None:
    orders = Orders("a")
    orders.settle(*orders.take(1))

    orders.settle(1)

    assert orders.order.groups == {}


def test_purge_leaves_groups_with_what_is_above_it() -> None:
    orders = Orders("aab")
    orders.take(1)
    assert orders.take(10) == [3]  # 2 waits behind 1
    orders.order.left_flight([1])

    orders.order.discard_below(2)
    assert orders.take(10) == [2]
    orders.order.discard_below(ALL)
    assert orders.order.groups == {}


def test_group_that_was_emptied_and_came_back_stands_in_line_once() -> None:
    orders = Orders("abc")
    orders.give_back(*orders.take(3))  # a, b, c stand in line
    orders.settle(1)  # a's only message is deleted while it stands there
    orders.send("aa", now_ms=5)
    orders.give_back(*orders.take(1, now_ms=5), now_ms=5)  # b is served, and goes to the end

    assert orders.take(10, now_ms=5) == [3, 2, 4, 5]
    assert orders.order.line() == []


def test_line_survives_a_snapshot() -> None:
    orders = Orders("abc")
    orders.give_back(*orders.take(2), now_ms=3)
    orders.take(1)
    restored = FIFOOrder(orders.index, 0)
    restored.cursor = orders.order.cursor

    restored.load_waiting(
        (key, SequenceSet(group.waiting)) for key, group in orders.order.groups.items() if group.waiting
    )
    restored.load_in_flight([(3, ord("c"))], 0)
    restored.load_line(orders.order.line())

    assert restored.line() == orders.order.line()
    assert restored.take(10, 3, 4, 0) == orders.take(10, now_ms=3)


def test_group_that_can_give_but_stood_in_no_line_goes_in_front_after_a_snapshot() -> None:
    orders = Orders("abc")
    restored = FIFOOrder(orders.index, 0)
    restored.cursor = 4

    restored.load_waiting((ord(letter), SequenceSet([at])) for at, letter in ((2, "b"), (1, "a"), (3, "c")))
    restored.load_line([(5, ord("c"))])

    assert restored.line() == [(0, ord("a")), (0, ord("b")), (5, ord("c"))]


def test_fifo_queue_has_neither_tenants_nor_timers_of_single_messages() -> None:
    orders = Orders("a")

    orders.order.sent(1, 0)
    orders.order.surface(1)

    assert orders.order.noisy_groups(0, 100) == 0
    with pytest.raises(AssertionError, match="no timers"):
        orders.order.became_due(1)

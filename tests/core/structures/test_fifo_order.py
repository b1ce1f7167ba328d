"""Order and exclusivity of message groups."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from quaymaster.core.structures.orders import fifo_order
from quaymaster.core.structures.orders.fifo_order import SCAN_MAX, FIFOOrder, GroupState
from quaymaster.core.structures.orders.index import MemoryChunks, SequenceIndex
from quaymaster.core.structures.sequences import SequenceSet

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


def test_group_behind_very_many_messages_of_a_blocked_one_is_found_at_once() -> None:
    orders = Orders("a" * (20 * SCAN_MAX) + "ba")
    assert orders.take(1) == [1]

    assert orders.take(10) == [20 * SCAN_MAX + 1]

    orders.settle(1)
    assert orders.take(2) == [2, 3]
    assert len(orders.order.fresh()) == 20 * SCAN_MAX - 2


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


def line_of(order: FIFOOrder) -> list[tuple[int, int]]:
    return [entry for part in order.freeze(())[1] for entry in part]


def states_of(pages: Iterable[list[GroupState]]) -> dict[str, tuple[list[int], list[int]]]:
    """Return what waits and what is in flight of each group, by its letter."""
    return {
        chr(key): (list(SequenceSet.from_bytes(waiting)), in_flight)
        for page in pages
        for key, waiting, in_flight in page
    }


def test_groups_are_frozen_as_they_are_while_they_change() -> None:
    orders = Orders("aabbccd")
    orders.give_back(*orders.take(10))
    orders.take(1)

    frozen, _ = orders.order.freeze({5})
    orders.settle(1)
    orders.take(10)
    for sequence in (2, 3, 4):
        orders.settle(sequence)
    orders.send("e")
    orders.take(10)
    states = states_of(frozen)

    assert states == {"a": ([2], [1]), "b": ([3, 4], []), "c": ([5, 6], []), "d": ([7], [])}
    assert set(states_of(orders.order.freeze(())[0])) == {"c", "d", "e"}


def test_what_is_being_moved_waits_in_what_is_frozen() -> None:
    orders = Orders("aab")
    orders.take(10)

    states = states_of(orders.order.freeze({2, 3})[0])

    assert states == {"a": ([2], [1]), "b": ([3], [])}


def test_a_long_line_is_kept_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "LINE_PART", 2)
    orders = Orders("abcde")
    orders.give_back(*orders.take(10))
    assert orders.take(1) == [1]

    _, line = orders.order.freeze(())
    assert orders.take(2) == [2, 3]
    parts = [[chr(key) for _, key in part] for part in line]

    assert parts == [["b"], ["c", "d"], ["e"]]
    assert orders.take(10) == [4, 5]
    assert [len(list(steps)) for steps in orders.order.discard_all()] == [5, 0]


@pytest.mark.parametrize("known", [0, 100])
def test_the_oldest_expire_whether_there_are_more_groups_or_more_messages(known: int) -> None:
    orders = Orders("abab" + "".join(chr(1000 + number) for number in range(known)))
    orders.give_back(*orders.take(1_000))
    gone = {1}
    orders.settle(*gone)

    orders.order.discard_below(1, 4, lambda sequence: sequence not in gone, [])

    assert orders.take(1) == [4]
    assert orders.order.cursor == 5 + known


def test_few_messages_expire_at_a_time_where_there_are_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "EXPIRED_AT_A_TIME", 2)
    few, many = Orders("ab"), Orders("abc")
    for orders in (few, many):
        orders.take(10)

    assert few.order.expired_at_a_time is None
    assert many.order.expired_at_a_time == 2


def test_a_line_is_emptied_a_part_at_a_time() -> None:
    orders = Orders("abc")
    orders.give_back(*orders.take(10))

    groups, line = orders.order.discard_all()

    assert (len(list(groups)), len(list(line))) == (3, 1)
    assert orders.take(10) == []


def test_deleting_what_is_not_known_changes_nothing() -> None:
    orders = Orders("a")
    orders.settle(*orders.take(1))

    orders.settle(1)

    assert not len(orders.order.groups)


def test_purge_leaves_groups_with_what_is_above_it() -> None:
    orders = Orders("aab")
    orders.take(1)
    assert orders.take(10) == [3]  # 2 waits behind 1
    orders.order.left_flight([1])

    orders.order.discard_below(1, 2, lambda sequence: True, [])
    assert orders.take(10) == [2]
    emptied = orders.order.discard_all()
    assert not len(orders.order.groups)
    assert [len(list(steps)) for steps in emptied] == [2, 0]


def test_group_that_was_emptied_and_came_back_stands_in_line_once() -> None:
    orders = Orders("abc")
    orders.give_back(*orders.take(3))  # a, b, c stand in line
    orders.settle(1)  # a's only message is deleted while it stands there
    orders.send("aa", now_ms=5)
    orders.give_back(*orders.take(1, now_ms=5), now_ms=5)  # b is served, and goes to the end

    assert orders.take(10, now_ms=5) == [3, 2, 4, 5]
    assert line_of(orders.order) == []


def test_line_survives_a_snapshot() -> None:
    orders = Orders("abc")
    orders.give_back(*orders.take(2), now_ms=3)
    orders.take(1)
    restored = FIFOOrder(orders.index, 0)
    restored.cursor = orders.order.cursor

    groups, line = orders.order.freeze(())
    restored.load_groups(state for page in groups for state in page)
    restored.load_line(entry for part in line for entry in part)

    assert line_of(restored) == line_of(orders.order)
    assert restored.take(10, 3, 4, 0) == orders.take(10, now_ms=3)


def test_group_that_can_give_but_stood_in_no_line_goes_in_front_after_a_snapshot() -> None:
    orders = Orders("abc")
    restored = FIFOOrder(orders.index, 0)
    restored.cursor = 4

    restored.load_groups(
        (ord(letter), SequenceSet([at]).to_bytes(), []) for at, letter in ((2, "b"), (1, "a"), (3, "c"))
    )
    restored.load_line([(5, ord("c")), (6, ord("d"))])

    assert line_of(restored) == [(0, ord("a")), (0, ord("b")), (5, ord("c"))]


def test_fifo_queue_has_neither_tenants_nor_timers_of_single_messages() -> None:
    orders = Orders("a")

    orders.order.sent(1, 0)
    orders.order.surface(1)

    assert orders.order.noisy_groups(0, 100) == 0
    with pytest.raises(AssertionError, match="no timers"):
        orders.order.became_due(1)


def free(orders: Orders, groups: str, parent: int = 0) -> None:
    """Have a parent say that it has none of these groups left."""
    holds = orders.order.holds
    assert holds is not None
    keys = [ord(letter) for letter in groups]
    orders.order.release(holds.answered(parent, keys, keys, look=holds.looks), 0)


def test_groups_that_a_parent_may_have_are_held_and_delay_no_others() -> None:
    orders = Orders("aab")
    orders.order.hold([0], 0)

    assert orders.take(10) == []
    orders.send("cab")
    free(orders, "b")
    assert orders.take(10) == [3, 6]
    assert orders.take(10) == []
    free(orders, "ac")
    assert orders.take(10) == [1, 2, 5, 4]


def test_group_that_is_in_line_is_held_when_its_partition_gets_a_parent() -> None:
    orders = Orders("ab")
    orders.take(2)
    orders.give_back(1, 2)

    orders.order.hold([0], 0)

    assert orders.take(10) == []
    free(orders, "b")
    assert orders.take(10) == [2]


def test_held_groups_in_line_are_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "SCAN_MAX", 3)
    orders = Orders("abcde")
    for sequence in orders.take(3) + orders.take(3):
        orders.give_back(sequence)

    orders.order.hold([0], 0)

    assert orders.take(10) == []
    assert orders.order.unfinished
    assert orders.take(10) == []
    assert not orders.order.unfinished


def test_nothing_is_held_once_all_parents_are_drained() -> None:
    orders = Orders("ab")
    orders.order.hold([0, 1], 0)
    orders.take(10)

    orders.order.hold([1], 0)
    assert orders.take(10) == []
    orders.order.hold([], 0)
    assert orders.take(10) == [1, 2]
    assert orders.order.holds is None
    orders.order.hold([], 0)
    assert orders.order.holds is None


def test_held_groups_whose_messages_are_gone_are_forgotten() -> None:
    orders = Orders("ab")
    orders.order.hold([0], 0)
    orders.take(10)
    holds = orders.order.holds
    assert holds is not None

    orders.order.discard(1, 0)
    assert holds.first_held(10) == [ord("b")]
    orders.order.discard_all()
    assert orders.order.holds is not None
    assert not orders.order.holds.is_waiting
    assert set(orders.order.holds.parents) == {0}


def test_release_of_a_group_that_is_gone_does_nothing() -> None:
    orders = Orders("a")
    orders.order.hold([0], 0)

    orders.order.release([ord("x")], 0)

    assert orders.take(10) == []


def test_held_messages_are_known_by_where_they_are() -> None:
    orders = Orders("ab")
    assert not orders.order.holds_below(ALL)
    orders.order.hold([0], 0)
    orders.take(10)

    assert orders.order.holds_below(2)
    assert not orders.order.holds_below(1)
    free(orders, "a")
    assert not orders.order.holds_below(2)

"""Splits, moves and merges of partitions, by their load."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.cell.partition_plans import (
    BUSY_MS,
    CLOSED_MAX,
    COUNTED_KEYS,
    MERGE_MS,
    NARROW_KEYS,
    NEW_NUMBERS_MAX,
    PARTITION_SHARE_MIN,
    QUEUE_REST_MS,
    SETTLE_MS,
    JournalLoad,
    MergePartitions,
    MovePartition,
    PartitionSeen,
    PartitionsPlan,
    PartitionsSeen,
    QueueSeen,
    SplitPartition,
    deepest,
    halving_key,
    is_of_one_group,
    plan_partitions,
)
from quaymaster.core.values.partition_tables import LISTED_MAX
from quaymaster.core.values.queues.queue_definitions import KEY_MAX

NOW_MS = 10 * 7 * 86_400_000
LAST = KEY_MAX
MIDDLE = KEY_MAX // 2 + 1
EVEN = (5,) * 16
QUEUE = 7


def partition(number: int = 0, journal: int = 1, **changes: Any) -> PartitionSeen:
    return PartitionSeen(
        number,
        journal,
        changes.pop("state", "open"),
        changes.pop("first_key", 0),
        changes.pop("last_key", LAST),
        **{"share": 0.6, "by_key": EVEN, **changes},
    )


def queue(*partitions: PartitionSeen, **changes: Any) -> QueueSeen:
    queue_id = changes.pop("queue_id", QUEUE)
    return QueueSeen(queue_id, changes.pop("name", str(queue_id)), partitions, **changes)


HOT = JournalLoad("a", 0.8, 0.8, busy_since_ms=NOW_MS - BUSY_MS)
COOL = JournalLoad("b", 0.1, 0.2)
OTHER = JournalLoad("c", 0.1, 0.1)


def planned(*queues: QueueSeen, **journals: JournalLoad) -> PartitionsPlan:
    """Return the plan for these queues; journals `j1`, `j2`, ... are a hot one and two others unless they are given."""
    given_ones = journals or {"j1": HOT, "j2": COOL, "j3": OTHER}
    numbered = {int(name[1:]): journal for name, journal in given_ones.items()}
    return plan_partitions(PartitionsSeen(NOW_MS, numbered, queues))


NOTHING = PartitionsPlan((), ())


# Where a partition is split


def test_partition_is_split_where_its_messages_halve() -> None:
    left_heavy = (8, 8, *[0] * 14)

    assert halving_key(partition(by_key=EVEN)) == MIDDLE
    assert halving_key(partition(by_key=left_heavy)) == COUNTED_KEYS
    assert halving_key(partition(by_key=(0, 0, 4, 0, 12, *[0] * 11))) == 4 * COUNTED_KEYS + COUNTED_KEYS // 3


def test_partition_of_which_nothing_was_counted_is_split_in_the_middle() -> None:
    assert halving_key(partition(by_key=())) == MIDDLE
    assert halving_key(partition(by_key=(0,) * 16, first_key=100, last_key=199)) == 150


def test_partition_within_one_counter_is_split_in_its_middle() -> None:
    first = 3 * COUNTED_KEYS

    assert halving_key(partition(by_key=EVEN, first_key=first, last_key=first + 999)) == first + 500


@given(st.data())
def test_both_children_have_keys_and_no_more_than_a_counter_is_between_them(data: st.DataObject) -> None:
    first, last = sorted(data.draw(st.lists(st.integers(0, LAST), min_size=2, max_size=2, unique=True)))
    counts = tuple(data.draw(st.lists(st.integers(0, 50), min_size=16, max_size=16)))
    one = partition(by_key=counts, first_key=first, last_key=last)

    key = halving_key(one)

    assert first < key <= last
    inside = [counts[number] if first >> 60 <= number <= last >> 60 else 0 for number in range(16)]
    below, above = sum(inside[: key >> 60]), sum(inside[(key >> 60) + 1 :])
    largest = max(inside, default=0)
    assert abs(below - above) <= largest + 1 or not any(inside)


@pytest.mark.parametrize(
    ("keys", "counts", "is_one"),
    [
        (NARROW_KEYS, (0, 0, 9, *[0] * 13), True),
        (NARROW_KEYS + 1, (0, 0, 9, *[0] * 13), False),
        (NARROW_KEYS, (0,) * 16, False),
        (NARROW_KEYS, (), False),
    ],
)
def test_load_of_a_narrow_range_is_taken_for_that_of_one_group(
    keys: int, counts: tuple[int, ...], *, is_one: bool
) -> None:
    first = 2 * COUNTED_KEYS

    one = partition(by_key=counts, first_key=first, last_key=first + keys - 1)

    assert is_of_one_group(one) is is_one


def test_group_in_a_corner_of_a_range_is_one_when_the_rest_is_idle() -> None:
    first = 2 * COUNTED_KEYS - NARROW_KEYS
    counts = [0] * 16
    counts[1], counts[2] = 80, 20

    assert is_of_one_group(partition(by_key=tuple(counts), first_key=first))
    counts[1] = 79
    assert not is_of_one_group(partition(by_key=tuple(counts), first_key=first, last_key=LAST))


@pytest.mark.parametrize(
    ("ranges", "depth"),
    [([], 0), ([(0, 9)], 1), ([(0, 9), (5, 19), (10, 30)], 2), ([(0, 4), (21, 30)], 0), ([(0, 30)] * 3, 3)],
)
def test_depth_is_the_most_ranges_that_a_key_is_in(ranges: list[tuple[int, int]], depth: int) -> None:
    assert deepest(ranges, 5, 20) == depth


# A journal that is too busy


def test_partition_with_most_of_a_busy_journal_is_split_to_the_least_busy_journal() -> None:
    made = planned(queue(partition(0)), queue(partition(0, share=0.1), queue_id=8))

    (split,) = made.changes
    assert isinstance(split, SplitPartition)
    assert (split.queue_id, split.partition, split.key, split.journals) == (QUEUE, 0, MIDDLE, (1, 3))
    assert split.reason == "journal 1 is busy (80%), 60% of it for partition 0 of queue 7"
    assert made.problems == ()


def test_busiest_of_many_partitions_is_moved() -> None:
    queues = [queue(partition(0, share=0.2 + number / 100), queue_id=number) for number in range(1, 4)]

    made = planned(*queues)

    assert made.changes == (
        MovePartition(3, 0, 3, "journal 1 is busy (80%), 23% of it for partition 0 of queue 3"),
    )


def test_work_for_sealed_partitions_does_not_count() -> None:
    closing = queue(partition(4, share=0.45, state="closing"), partition(5, share=0.0), queue_id=9)

    made = planned(queue(partition(0, share=0.3)), closing)

    assert [type(change) for change in made.changes] == [SplitPartition]


@pytest.mark.parametrize(
    "journal",
    [
        msgspec.structs.replace(HOT, busy_since_ms=None),
        msgspec.structs.replace(HOT, busy_since_ms=NOW_MS - BUSY_MS + 1),
        msgspec.structs.replace(HOT, changed_ms=NOW_MS - SETTLE_MS + 1),
    ],
    ids=["not busy", "not for long", "changed just now"],
)
def test_journal_that_is_not_busy_for_long_gives_nothing(journal: JournalLoad) -> None:
    assert planned(queue(partition()), j1=journal, j2=COOL) == NOTHING


def test_busy_journal_whose_open_partitions_are_idle_or_unknown_is_left_alone() -> None:
    assert planned() == NOTHING
    assert planned(queue(partition(share=0.0), partition(1, state="closed"))) == NOTHING


def test_partition_with_little_of_a_busy_journal_is_not_changed() -> None:
    """The rest is work for sealed partitions, which cannot move."""
    assert planned(queue(partition(share=PARTITION_SHARE_MIN - 0.01))) == NOTHING
    assert len(planned(queue(partition(share=PARTITION_SHARE_MIN))).changes) == 1


def test_reasons_call_a_queue_by_its_name() -> None:
    (split,) = planned(queue(partition(), name="123456789012/orders")).changes

    assert split.reason.endswith("60% of it for partition 0 of queue 123456789012/orders")


def test_one_group_that_is_too_hot_is_a_problem() -> None:
    made = planned(queue(partition(first_key=0, last_key=NARROW_KEYS - 1, by_key=(9, *[0] * 15))))

    assert made == PartitionsPlan(
        (),
        (
            "journal 1 is busy (80%), 60% of it for partition 0 of queue 7, nearly all for one message group: no "
            "split divides it",
        ),
    )


def test_partition_is_moved_when_there_is_no_number_left_for_two_children() -> None:
    full = queue(partition(share=0.45), partitions_max=1)

    assert [type(change) for change in planned(full).changes] == [MovePartition]


def test_nothing_has_room_for_a_hot_partition() -> None:
    full = JournalLoad("b", 0.5, 0.55)

    made = planned(queue(partition()), j1=HOT, j2=full, j3=JournalLoad("a", 0.0, 0.8))

    assert made == PartitionsPlan(
        (),
        (
            "journal 1 is busy (80%), 60% of it for partition 0 of queue 7, and no broker has room for it, or for a "
            "part of it",
        ),
    )


def test_partition_with_a_small_part_of_the_load_is_no_problem_where_nothing_has_room() -> None:
    full = JournalLoad("b", 0.5, 0.55)

    queues = [queue(partition(share=0.3), queue_id=number) for number in (1, 2)]
    assert planned(*queues, j1=HOT, j2=full) == NOTHING


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fixed_why": "it is to have one partition"}, "it is to have one partition"),
        ({"has_sinks": True}, "a sink commits to the queue"),
    ],
)
def test_hot_queues_that_managers_leave_alone_are_a_problem(changes: dict[str, Any], why: str) -> None:
    hot, warm = (queue(partition(share=share), **changes) for share in (0.45, 0.3))
    other = queue(partition(share=0.29), queue_id=8), queue(partition(share=0.2), queue_id=9)

    name = "partition 0 of queue 7"
    assert planned(hot) == PartitionsPlan(
        (), (f"journal 1 is busy (80%), 45% of it for {name}, and stays: {why}",)
    )
    assert planned(warm, *other) == NOTHING


def test_queue_that_was_changed_just_now_is_left_alone() -> None:
    assert planned(queue(partition(), changed_ms=NOW_MS - QUEUE_REST_MS + 1)) == NOTHING


def test_queue_that_got_many_partitions_in_a_day_gets_no_more() -> None:
    assert planned(queue(partition(), new_numbers=NEW_NUMBERS_MAX)).changes == ()


def test_queue_whose_rests_are_over_is_changed() -> None:
    rested = queue(partition(), changed_ms=NOW_MS - QUEUE_REST_MS)
    settled = msgspec.structs.replace(HOT, changed_ms=NOW_MS - SETTLE_MS)

    assert len(planned(rested, j1=settled, j2=COOL).changes) == 1


@pytest.mark.parametrize("state", ["new", "closing"])
def test_queue_with_a_change_on_its_way_is_left_alone(state: Any) -> None:
    assert planned(queue(partition(0), partition(1, journal=2, state=state, share=0.0))) == NOTHING


def test_keys_with_many_closed_partitions_are_not_changed() -> None:
    closed = [partition(number, journal=2, state="closed", share=0.0) for number in range(1, 1 + CLOSED_MAX)]

    (problem,) = planned(queue(partition(0), *closed)).problems
    assert problem.endswith("and stays: consumers have not emptied its closed partitions")
    assert len(planned(queue(partition(0), *closed[1:])).changes) == 1


def test_log_is_changed_like_a_queue_until_its_keys_have_many_closed_partitions() -> None:
    closed = [partition(number, journal=2, state="closed", share=0.0) for number in range(1, 1 + CLOSED_MAX)]

    (problem,) = planned(queue(partition(0), *closed, is_log=True)).problems
    assert problem.endswith("and stays: retention has not emptied its closed partitions")
    assert [type(one) for one in planned(queue(partition(0), *closed[1:], is_log=True)).changes] == [
        SplitPartition
    ]


def test_log_with_a_bound_on_its_bytes_is_changed_once_nothing_is_left_of_what_was_sealed_before() -> None:
    bounded = {"is_log": True, "has_bytes_max": True}
    closed = partition(1, journal=2, state="closed", share=0.0)
    drained = partition(1, journal=2, state="drained", share=0.0)

    (problem,) = planned(queue(partition(0), closed, **bounded)).problems
    assert problem.endswith("and stays: retention has not emptied its closed partitions")
    assert len(planned(queue(partition(0), drained, **bounded)).changes) == 1


def test_no_queue_gets_more_partitions_than_may_be_listed() -> None:
    drained = [partition(number, journal=2, state="drained", share=0.0) for number in range(1, LISTED_MAX)]

    assert planned(queue(partition(0, share=0.45), *drained)).changes == ()
    assert [type(one) for one in planned(queue(partition(0, share=0.45), *drained[1:])).changes] == [
        MovePartition
    ]


def test_each_journal_has_one_change_and_loads_of_a_plan_add_up() -> None:
    also_hot = JournalLoad("d", 0.75, 0.75, busy_since_ms=0)
    queues = (
        queue(partition(0)),
        queue(partition(0, journal=4), queue_id=8),
        queue(partition(0, share=0.1), queue_id=9),
    )

    made = planned(*queues, j1=HOT, j2=COOL, j3=OTHER, j4=also_hot)

    assert [
        (change.queue_id, change.journals) for change in made.changes if isinstance(change, SplitPartition)
    ] == [
        (QUEUE, (1, 3)),
        (8, (4, 2)),
    ]
    assert len(made.changes) == 2


def test_queue_is_changed_once_in_a_plan() -> None:
    also_hot = JournalLoad("d", 0.75, 0.75, busy_since_ms=0)
    both = queue(partition(0, last_key=MIDDLE - 1), partition(1, journal=4, first_key=MIDDLE))

    assert len(planned(both, j1=HOT, j2=COOL, j3=OTHER, j4=also_hot).changes) == 1


# A queue with little to do


CALM = {"calm_since_ms": NOW_MS - MERGE_MS}
TWO = (
    partition(3, journal=2, last_key=MIDDLE - 1, share=0.05),
    partition(4, journal=3, first_key=MIDDLE, share=0.05),
)


def test_partitions_with_little_load_for_long_are_merged_at_the_less_busy_of_their_brokers() -> None:
    made = planned(queue(*TWO, **CALM), j2=COOL, j3=OTHER)

    assert made.changes == (
        MergePartitions(QUEUE, (3, 4), 3, "all of queue 7 is 10% of a broker's time, for 30 min"),
    )


@pytest.mark.parametrize(
    "calm",
    [
        queue(TWO[0], **CALM),
        queue(*TWO, calm_since_ms=None),
        queue(*TWO, calm_since_ms=NOW_MS - MERGE_MS + 1),
        queue(*TWO, fixed_why="it is to have one partition", **CALM),
        queue(*TWO, new_numbers=NEW_NUMBERS_MAX, **CALM),
        queue(*TWO, changed_ms=NOW_MS, **CALM),
    ],
    ids=["one partition", "load", "not for long", "fixed", "no numbers", "changed"],
)
def test_queues_that_are_not_merged(calm: QueueSeen) -> None:
    assert planned(calm, j2=COOL, j3=OTHER) == NOTHING


@pytest.mark.parametrize(("is_log", "is_merged"), [(False, True), (True, False)])
def test_log_is_merged_once_nothing_is_left_of_what_was_sealed_before(
    *, is_log: bool, is_merged: bool
) -> None:
    closed = partition(1, journal=2, state="closed", share=0.0)

    made = planned(queue(closed, *TWO, is_log=is_log, **CALM), j2=COOL, j3=OTHER)

    assert [type(change) for change in made.changes] == [MergePartitions] * is_merged
    assert len(planned(queue(*TWO, is_log=is_log, **CALM), j2=COOL, j3=OTHER).changes) == 1


def test_partitions_are_merged_only_where_there_is_room_and_a_leader() -> None:
    full = JournalLoad("b", 0.5, 0.55)

    assert planned(queue(*TWO, **CALM), j2=full) == NOTHING


def test_what_was_split_is_not_merged_while_it_has_the_load_that_it_was_split_for() -> None:
    """The bounds are apart: halves of a partition that made a journal busy are no calm queue."""
    before = partition(0, share=0.6)
    halves = (
        partition(1, last_key=MIDDLE - 1, share=before.share / 2),
        partition(2, journal=3, first_key=MIDDLE, share=before.share / 2),
    )

    journal = msgspec.structs.replace(HOT, share=0.5, busy_since_ms=None)
    rested = queue(*halves, changed_ms=NOW_MS - QUEUE_REST_MS)

    split = planned(rested, j1=journal, j3=OTHER)

    assert split == NOTHING

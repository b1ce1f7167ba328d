"""Partition tables: which partitions are asked, and that no series of changes leaves a key without a partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values import partition_tables as tables
from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.errors import InvalidParameterValue, OverLimit, UnsupportedOperation
from quaymaster.core.values.queues.queue_definitions import (
    KEY_MAX,
    PartitionPlacement,
    PartitionState,
    QueueDefinition,
    decode_queue_definition,
    encode_queue_definition,
    group_definition,
    one_partition,
    replace_definition,
)

HALF = 1 << 63
BY_GROUP = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}
LOG = {"RetentionMode": "Log"}


def definition(**attributes: str) -> QueueDefinition:
    return QueueDefinition(
        queue_id=7,
        account_id="000000000000",
        name="orders.fifo" if "FifoQueue" in attributes else "orders",
        state="active",
        revision=3,
        created_ms=1_700_000_000_000,
        modified_ms=1_700_000_000_001,
        attributes=attributes,
        tags={},
        data_key_id=9,
        partitions=one_partition(4),
    )


def split(
    queue: QueueDefinition, into: int = 2, number: int | None = None, journals: list[int] | None = None
) -> QueueDefinition:
    """Return the table with children that are new."""
    parents, ranges = tables.entries_to_split(queue, into, number)
    return tables.with_children(queue, parents, ranges, journals or [4] * into)


def finished(queue: QueueDefinition) -> QueueDefinition:
    """Return the table once a change is done, and its parents are closed."""
    queue = tables.with_children_open(queue)
    for entry in tables.in_state(queue, "closing"):
        queue = tables.with_state(queue, entry.number, "closed")
    return queue


def states(queue: QueueDefinition) -> list[tuple[int, PartitionState]]:
    return [(entry.number, entry.state) for entry in queue.partitions]


def numbers(entries: list[PartitionPlacement]) -> list[int]:
    return [entry.number for entry in entries]


# Changes


def test_a_split_opens_children_for_the_keys_of_a_partition_which_is_then_closing() -> None:
    queue = definition()
    assert tables.is_plain(queue)

    began = split(queue, journals=[4, 5])

    assert states(began) == [(0, "open"), (1, "new"), (2, "new")]
    assert numbers(tables.parents_of_new(began)) == [0]
    assert (began.table_version, began.revision, began.next_partition) == (2, 4, 3)
    first, second = began.partitions[1:]
    assert (first.first_key, first.last_key) == (0, HALF - 1)
    assert (second.first_key, second.last_key) == (HALF, KEY_MAX)
    assert {first.first_sequence, second.first_sequence} == {1 << 44}
    assert tables.journals_of(began) == (4, 5)
    assert not tables.is_plain(began)

    opened = tables.with_children_open(began)

    assert states(opened) == [(0, "closing"), (1, "open"), (2, "open")]
    assert (opened.table_version, opened.revision) == (3, 5)
    assert tables.why_broken(opened) is None


def test_children_of_children_have_sequences_above_those_of_all_before() -> None:
    queue = finished(split(definition()))

    again = finished(split(queue, number=1))
    parents, ranges = tables.entries_to_merge(again)
    merged = tables.with_children(again, parents, ranges, [4])

    assert [entry.first_sequence >> 44 for entry in merged.partitions] == [0, 1, 1, 2, 2, 3]


def test_a_move_opens_one_child_for_all_keys_of_a_partition() -> None:
    queue = definition()
    parents, ranges = tables.entries_to_move(queue)

    moved = tables.with_children_open(tables.with_children(queue, parents, ranges, [6]))

    assert states(moved) == [(0, "closing"), (1, "open")]
    assert moved.partitions[1].journal_id == 6
    assert tables.why_broken(moved) is None


def test_a_change_that_is_cancelled_leaves_no_partition_but_its_numbers_are_never_given_again() -> None:
    began = split(definition())

    cancelled = tables.with_new_dropped(began, "nobody answered")

    assert states(cancelled) == [(0, "open")]
    assert (cancelled.next_partition, cancelled.given_up) == (3, "nobody answered")
    assert not tables.is_plain(cancelled)
    assert numbers(list(split(cancelled).partitions)) == [0, 3, 4]
    assert not split(cancelled).given_up


def test_only_the_parents_of_new_partitions_are_closing() -> None:
    queue = finished(split(definition()))

    opened = tables.with_children_open(split(queue, number=2))

    assert states(opened) == [(0, "closed"), (1, "open"), (2, "closing"), (3, "open"), (4, "open")]


def test_a_drained_partition_has_its_last_counts_and_is_dropped_in_the_end() -> None:
    queue = finished(split(definition()))

    drained = tables.with_state(queue, 0, "drained", sends=10, deletions=9)

    assert (drained.partitions[0].sends, drained.partitions[0].deletions) == (10, 9)
    assert numbers(list(tables.without(drained, [0]).partitions)) == [1, 2]


@pytest.mark.parametrize("into", [0, 1, 257, 10**12])
def test_a_partition_is_split_into_two_or_more(into: int) -> None:
    with pytest.raises(InvalidParameterValue, match="2 to 256"):
        tables.entries_to_split(definition(), into)


def test_a_partition_of_few_keys_is_not_split_into_more_than_it_has() -> None:
    queue = replace_definition(
        definition(), partitions=(PartitionPlacement(0, 4, "open", 0, 2), PartitionPlacement(1, 4, "open", 3))
    )

    with pytest.raises(InvalidParameterValue):
        tables.entries_to_split(queue, 4, 0)


def test_the_partition_with_most_keys_is_split_and_of_several_the_oldest() -> None:
    queue = finished(split(definition()))

    assert numbers(tables.entries_to_split(queue, 2)[0]) == [1]
    assert numbers(tables.entries_to_split(finished(split(queue, number=1)), 2)[0]) == [2]


def test_a_partition_is_split_in_two_at_a_key() -> None:
    assert tables.entries_to_split(definition(), 2, key=7)[1] == [(0, 6), (7, KEY_MAX)]
    assert tables.entries_to_split(definition(), 2, key=KEY_MAX)[1] == [(0, KEY_MAX - 1), (KEY_MAX, KEY_MAX)]


@pytest.mark.parametrize(("into", "number", "key"), [(3, 1, 7), (2, 1, HALF), (2, 2, HALF), (2, 2, 7)])
def test_both_parts_of_a_partition_that_is_split_at_a_key_have_keys(into: int, number: int, key: int) -> None:
    queue = finished(split(definition()))

    with pytest.raises(InvalidParameterValue, match="each with keys"):
        tables.entries_to_split(queue, into, number, key)


@pytest.mark.parametrize("number", [0, 9])
def test_only_open_partitions_are_changed(number: int) -> None:
    queue = finished(split(definition()))

    with pytest.raises(InvalidParameterValue, match="no open partition"):
        tables.entries_to_split(queue, 2, number)
    with pytest.raises(InvalidParameterValue, match="no open partition"):
        tables.entries_to_merge(queue, [1, number])
    with pytest.raises(InvalidParameterValue, match="no open partition"):
        tables.entries_to_move(queue, number)


def test_which_partition_moves_is_said_where_there_are_several() -> None:
    queue = finished(split(definition()))

    with pytest.raises(InvalidParameterValue, match="2 open partitions: name one"):
        tables.entries_to_move(queue)

    assert tables.entries_to_move(queue, 2)[1] == [(HALF, KEY_MAX)]


def test_partitions_that_are_merged_are_neighbors() -> None:
    queue = finished(split(definition(), into=3))

    assert tables.entries_to_merge(queue, [3, 2])[1] == [((KEY_MAX + 1) // 3, KEY_MAX)]
    with pytest.raises(InvalidParameterValue, match="does not follow partition 1"):
        tables.entries_to_merge(queue, [3, 1])
    with pytest.raises(InvalidParameterValue, match="Two or more"):
        tables.entries_to_merge(queue, [1])


def test_a_change_begins_only_once_the_one_before_is_done() -> None:
    began = split(definition())

    for queue in (began, tables.with_children_open(began)):
        with pytest.raises(UnsupportedOperation, match="are changing"):
            split(queue)


def test_a_queue_has_no_more_open_partitions_than_its_attribute_says_but_can_always_be_merged() -> None:
    queue = definition(PartitionsMax="2")
    with pytest.raises(OverLimit, match="2 open partitions"):
        split(queue, into=3)
    queue = finished(split(queue))
    lowered = replace_definition(queue, attributes={"PartitionsMax": "1"})

    parents, ranges = tables.entries_to_merge(lowered)

    assert len(tables.in_state(finished(tables.with_children(lowered, parents, ranges, [4])), "open")) == 1


def test_a_table_lists_at_most_256_partitions() -> None:
    queue = definition()
    for _ in range(255):
        parents, ranges = tables.entries_to_move(queue)
        queue = finished(tables.with_children(queue, parents, ranges, [4]))
    parents, ranges = tables.entries_to_move(queue)

    with pytest.raises(OverLimit, match="256 partitions"):
        tables.with_children(queue, parents, ranges, [4])


def test_a_queue_is_given_no_more_numbers_than_a_number_has_bits_for() -> None:
    queue = replace_definition(definition(), next_partition=tables.NUMBERS_MAX - 1)

    with pytest.raises(OverLimit, match="65,536"):
        split(queue)


def test_a_partition_has_its_share_of_what_the_queue_has_in_all_before_its_seal_and_after() -> None:
    queue = tables.with_children_open(split(definition(**LOG)))

    assert [tables.share_of(queue, number, 9) for number in (0, 1, 2)] == [9, 5, 5]
    assert tables.share_of(queue, 77, 9) == 9
    assert tables.share_of(replace_definition(queue, partitions=queue.partitions[1:]), 1, 1_000) == 500


def test_partitions_of_a_log_are_described_unless_they_are_new() -> None:
    queue = split(definition(**LOG))

    assert [entry.number for entry in tables.described_partitions(queue)] == [0]
    opened = tables.with_state(tables.with_children_open(queue), 0, "drained", sends=7)
    assert [entry.number for entry in tables.described_partitions(opened)] == [0, 1, 2]
    assert tables.end_of_drained(opened.partitions[0]) == 8


def test_a_fifo_queue_is_split_only_where_groups_have_nothing_to_do_with_each_other() -> None:
    plain = definition(FifoQueue="true")
    assert not plain.is_split_by_group
    with pytest.raises(UnsupportedOperation, match="perMessageGroupId"):
        split(plain)

    parents, ranges = tables.entries_to_move(plain)
    assert tables.with_children(plain, parents, ranges, [5]).next_partition == 2
    assert definition(**BY_GROUP).is_split_by_group
    assert split(definition(**BY_GROUP)).next_partition == 3


# Questions


def test_the_oldest_partition_of_a_key_that_may_know_of_a_message_is_asked_first() -> None:
    queue = tables.with_children_open(split(definition()))

    assert numbers(tables.taking(queue, 5)) == [0, 1]
    assert numbers(tables.taking(queue, HALF)) == [0, 2]
    closed = tables.with_state(queue, 0, "closed")
    assert numbers(tables.taking(closed, 5)) == [1]


def test_receives_ask_those_that_may_have_messages() -> None:
    began = split(definition())
    assert numbers(tables.read_partitions(began)) == [0]
    assert [tables.is_read(entry) for entry in began.partitions] == [True, False, False]

    drained = tables.with_state(finished(began), 0, "drained")

    assert numbers(tables.read_partitions(drained)) == [1, 2]


def test_a_journal_seals_what_is_closing_or_was() -> None:
    queue = tables.with_children_open(split(definition()))

    assert [tables.is_sealed_by(entry) for entry in queue.partitions] == [True, False, False]
    closed = tables.with_state(queue, 0, "closed")
    assert tables.is_sealed_by(closed.partitions[0])
    assert tables.is_sealed_by(tables.with_state(closed, 0, "drained").partitions[0])


def test_a_partition_that_is_given_up_counts_as_drained_and_says_so() -> None:
    queue = finished(split(definition()))

    given_up = tables.with_state(queue, 0, "drained", is_given_up=True)

    assert given_up.partitions[0] == msgspec.structs.replace(
        queue.partitions[0], state="drained", is_given_up=True
    )
    assert given_up.partitions[1:] == queue.partitions[1:]
    assert given_up.table_version == queue.table_version + 1


def test_a_table_that_an_older_program_wrote_has_nothing_that_is_given_up() -> None:
    entry = msgspec.msgpack.decode(
        msgspec.msgpack.encode([1, 2, "drained", 0, 9, 1, 3, 3]), type=PartitionPlacement
    )

    assert entry == PartitionPlacement(1, 2, "drained", 0, 9, 1, 3, 3, is_given_up=False)


def test_parents_are_all_older_partitions_of_some_of_the_same_keys_that_are_not_drained() -> None:
    queue = finished(split(definition()))
    queue = finished(split(queue, number=1))

    assert numbers(tables.parents_of(queue, 3)) == [0, 1]
    assert numbers(tables.parents_of(queue, 2)) == [0]
    assert numbers(tables.parents_of(queue, 0)) == []
    assert numbers(tables.parents_of(tables.with_state(queue, 0, "drained"), 3)) == [1]
    assert tables.parents_of(queue, 9) == []
    assert tables.entry_of(queue, 9) is None


def test_journals_are_found_by_the_numbers_of_partitions_not_by_their_places() -> None:
    queue = tables.without(finished(split(definition(), journals=[5, 6])), [0])

    assert [tables.journal_of_partition(queue, number) for number in (0, 1, 2, 3)] == [None, 5, 6, None]
    assert tables.journal_of_partition(queue, ALL_PARTITIONS) == 5


def test_a_later_table_is_newer_and_so_is_another_one_of_the_same_version() -> None:
    queue = definition()
    later = split(queue)

    assert tables.is_newer_table(later, queue)
    assert not tables.is_newer_table(queue, later)
    assert not tables.is_newer_table(queue, replace_definition(queue, revision=9))
    assert tables.is_newer_table(later, split(queue, journals=[4, 5]))


def test_a_row_that_meets_a_newer_table_takes_it_over_above_both() -> None:
    row = replace_definition(definition(DelaySeconds="5"), revision=9)
    known = split(definition())

    taken = tables.with_table_of(row, known)

    assert taken.partitions == known.partitions
    assert (taken.revision, taken.table_version, taken.next_partition) == (10, 3, 3)
    assert taken.attributes == {"DelaySeconds": "5"}
    assert tables.is_newer_table(taken, known)


def test_a_new_queue_may_have_an_open_partition_in_each_of_several_journals() -> None:
    partitions = tables.spread_table([4, 5, 6])
    queue = replace_definition(definition(), partitions=partitions, next_partition=len(partitions))

    assert states(queue) == [(0, "open"), (1, "open"), (2, "open")]
    assert tables.journals_of(queue) == (4, 5, 6)
    assert {entry.first_sequence for entry in partitions} == {1}
    assert tables.why_broken(queue) is None


# Definitions


def test_a_table_is_read_as_it_was_written() -> None:
    queue = tables.with_state(finished(split(definition())), 0, "drained", sends=3, deletions=2)

    assert decode_queue_definition(encode_queue_definition(queue)) == queue


def test_a_definition_of_before_has_one_open_partition_for_all_keys() -> None:
    class OldPlacement(msgspec.Struct, array_like=True):
        number: int
        journal_id: int

    queue = definition()
    fields: list[Any] = [getattr(queue, name) for name in QueueDefinition.__struct_fields__]
    fields = fields[: QueueDefinition.__struct_fields__.index("table_version")]
    fields[QueueDefinition.__struct_fields__.index("partitions")] = [OldPlacement(0, 4)]

    read = decode_queue_definition(encode_queue_definition(queue)[:1] + msgspec.msgpack.encode(fields))

    assert read == queue
    assert tables.is_plain(read)
    assert tables.why_broken(read) is None


def test_a_consumer_group_has_the_table_of_its_log() -> None:
    log = replace_definition(
        definition(**LOG), partitions=split(definition()).partitions, table_version=2, next_partition=3
    )
    group = replace_definition(definition(), group_of=7, name="orders@all")

    told = group_definition(group, log)

    assert (told.partitions, told.table_version, told.next_partition) == (log.partitions, 2, 3)


def test_a_queue_may_have_16_open_partitions_unless_it_says_otherwise() -> None:
    assert definition().partitions_max == 16
    assert definition(PartitionsMax="64").partitions_max == 64


# Broken tables


BROKEN: dict[str, Callable[[QueueDefinition], QueueDefinition]] = {
    "a number is listed twice": lambda queue: replace_definition(
        queue, partitions=queue.partitions + queue.partitions
    ),
    "a number is listed that was not given yet": lambda queue: replace_definition(queue, next_partition=0),
    f"the open partitions hold key {KEY_MAX + 1} not once": lambda queue: replace_definition(
        queue, partitions=(*queue.partitions, PartitionPlacement(1, 4)), next_partition=2
    ),
    f"the open partitions hold key {HALF} not once": lambda queue: tables.without(
        finished(split(queue)), [2]
    ),
    "the open partitions hold key 0 not once": lambda queue: tables.with_state(queue, 0, "closed"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_table_is_described(what: str) -> None:
    assert tables.why_broken(BROKEN[what](definition())) == what


# Any series of changes


@dataclasses.dataclass
class Change:
    """One thing that happens to a table, as far as it may."""

    kind: str
    which: int
    into: int


CHANGES = st.builds(
    Change,
    st.sampled_from(["split", "merge", "move", "open", "cancel", "close", "drain", "drop"]),
    st.integers(0, 20),
    st.integers(2, 5),
)


def changed(queue: QueueDefinition, change: Change) -> QueueDefinition:
    opened = sorted(tables.in_state(queue, "open"), key=lambda entry: entry.first_key)
    one = opened[change.which % len(opened)]
    match change.kind:
        case "split" | "merge" | "move":
            if change.kind == "split":
                parents, ranges = tables.entries_to_split(queue, change.into, one.number)
            elif change.kind == "merge":
                at = change.which % len(opened)
                parents, ranges = tables.entries_to_merge(queue, numbers(opened[at : at + change.into]))
            else:
                parents, ranges = tables.entries_to_move(queue, one.number)
            return tables.with_children(queue, parents, ranges, [change.which] * len(ranges))
        case "open":
            return tables.with_children_open(queue) if tables.in_state(queue, "new") else queue
        case "cancel":
            return tables.with_new_dropped(queue, "")
    steps: dict[str, tuple[PartitionState, PartitionState | None]] = {
        "close": ("closing", "closed"),
        "drain": ("closed", "drained"),
        "drop": ("drained", None),
    }
    before, after = steps[change.kind]
    found = tables.in_state(queue, before)
    if not found:
        return queue
    number = found[change.which % len(found)].number
    return tables.without(queue, [number]) if after is None else tables.with_state(queue, number, after)


@given(st.lists(CHANGES, max_size=60), st.sampled_from([{}, BY_GROUP]))
def test_no_series_of_changes_leaves_a_key_without_a_partition_or_gives_a_number_twice(
    changes: list[Change], attributes: dict[str, str]
) -> None:
    queue = definition(**attributes)
    given_numbers = {0}
    for change in changes:
        try:
            after = changed(queue, change)
        except (InvalidParameterValue, OverLimit, UnsupportedOperation):
            continue
        children = set(numbers(list(after.partitions))) - set(numbers(list(queue.partitions)))

        assert tables.why_broken(after) is None
        assert not children & given_numbers
        assert not tables.is_newer_table(queue, after)
        for number in children:
            child = tables.entry_of(after, number)
            assert child is not None
            for parent in tables.parents_of(after, number):
                assert parent.first_sequence >> 44 < child.first_sequence >> 44
        for key in (0, 5, HALF - 1, HALF, KEY_MAX):
            asked = tables.taking(after, key)
            assert asked
            assert asked[-1].state == "open"
            assert [entry.state for entry in asked].count("open") == 1
        given_numbers |= children
        queue = after

"""What partition tables say of journals that had partitions, and of what was counted in those that are gone."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.core.values.partition_tables import (
    awaited_journals,
    check_stays_by_group,
    entries_to_split,
    final_counts,
    is_at_rest,
    journals_of,
    told_journals,
    with_children,
    with_children_open,
    with_new_dropped,
    with_state,
    with_table_of,
    with_told,
    without,
)
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    decode_queue_definition,
    encode_queue_definition,
    one_partition,
    replace_definition,
)

BY_GROUP = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


def definition(name: str = "orders", **attributes: str) -> QueueDefinition:
    return QueueDefinition(
        queue_id=7,
        account_id="000000000000",
        name=name,
        state="active",
        revision=3,
        created_ms=1_700_000_000_000,
        modified_ms=1_700_000_000_001,
        attributes=attributes,
        tags={},
        data_key_id=9,
        partitions=one_partition(4),
    )


def split(queue: QueueDefinition, *journals: int) -> QueueDefinition:
    parents, ranges = entries_to_split(queue, len(journals))
    return with_children(queue, parents, ranges, journals)


def test_a_journal_whose_last_partition_is_not_listed_any_more_is_to_be_told() -> None:
    drained = with_state(with_children_open(split(definition(), 5, 6)), 0, "drained", sends=8, deletions=5)

    removed = without(drained, [0])

    assert journals_of(removed) == (5, 6)
    assert removed.left_journals == (4,)
    assert told_journals(removed) == (5, 6, 4)
    assert not is_at_rest(removed)
    told = with_told(removed, [4])
    assert is_at_rest(told)
    assert (told.table_version, told.revision) == (removed.table_version, removed.revision)
    assert decode_queue_definition(encode_queue_definition(removed)) == removed


def test_a_journal_that_gets_a_partition_again_has_not_left() -> None:
    cancelled = with_new_dropped(split(definition(), 5, 6), "why")
    assert cancelled.left_journals == (5, 6)

    again = split(cancelled, 6, 4)

    assert again.left_journals == (5,)


def test_journals_of_drained_partitions_are_told_and_not_waited_for() -> None:
    drained = with_state(with_children_open(split(definition(), 5, 6)), 0, "drained")

    assert awaited_journals(drained) == (5, 6)
    assert told_journals(drained) == (4, 5, 6)
    assert not is_at_rest(drained)


def test_counts_of_partitions_that_are_drained_or_gone_stay() -> None:
    queue = with_state(with_children_open(split(definition(), 5, 6)), 0, "drained", sends=8, deletions=5)
    assert final_counts(queue) == (8, 5)

    removed = without(queue, [0])
    assert final_counts(removed) == (8, 5)

    more = with_state(with_children_open(split(removed, 4, 4)), 1, "drained", sends=2, deletions=1)
    assert final_counts(more) == (10, 6)
    assert final_counts(definition()) == (0, 0)


def test_a_row_that_takes_a_later_table_takes_its_counts_and_tells_the_journals_that_it_thought_of() -> None:
    known = without(
        with_state(with_children_open(split(definition(), 5, 6)), 0, "drained", sends=8, deletions=5), [0]
    )
    row = replace_definition(definition(), partitions=one_partition(9))

    taken = with_table_of(row, known)

    assert taken.partitions == known.partitions
    assert final_counts(taken) == (8, 5)
    assert taken.left_journals == (4, 9)


def test_a_queue_divided_by_groups_stays_so_while_it_has_several_partitions() -> None:
    queue = with_children_open(split(definition("orders.fifo", **BY_GROUP), 5, 6))
    check_stays_by_group(queue, BY_GROUP | {"DelaySeconds": "5"})
    check_stays_by_group(definition("orders.fifo", **BY_GROUP), {"FifoQueue": "true"})
    check_stays_by_group(with_children_open(split(definition(), 5, 6)), {})

    for lost in ("DeduplicationScope", "FifoThroughputLimit"):
        attributes = {name: value for name, value in BY_GROUP.items() if name != lost}
        with pytest.raises(UnsupportedOperation, match="3 partitions"):
            check_stays_by_group(queue, attributes)

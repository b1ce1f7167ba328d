"""Which groups a sealed partition has no message of any more."""

from __future__ import annotations

from harness.replica_host import RETRY_WINDOW_MS, queue

from quaymaster.core.partition.partition import Partition
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.groups_left import LOOKED_AT_MAX, GroupsLeft
from quaymaster.core.structures.orders.index import CHUNK_ENTRIES, TAIL_ENTRIES_MAX, MemoryChunks

A, B, C, D = 1, 2, 3, 4


def sealed(*groups: int) -> Partition:
    partition = Partition(queue(1, "steps.fifo"), 0, MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    for group in groups:
        partition.apply_send(partition.next_sequence, 0, 0, 0, False, group)
    partition.sealed_ms = 1
    partition.groups_left = GroupsLeft()
    return partition


def groups_gone(
    partition: Partition, groups: list[int], *, looked_at_max: int = LOOKED_AT_MAX
) -> list[int] | None:
    assert isinstance(partition.order, FIFOOrder)
    assert partition.groups_left is not None
    return partition.groups_left.gone(partition.order, partition.index, groups, looked_at_max=looked_at_max)


def test_group_is_there_while_a_message_of_it_waits_or_is_in_flight() -> None:
    partition = sealed(A, B, A)
    partition.apply_receive(
        [(sequence, 1) for sequence in partition.take_visible(1, 0)], 0, 30_000, 1, None, taken=True
    )

    assert groups_gone(partition, [A, B, C]) == [C]

    partition.apply_delete([1], 0)
    assert groups_gone(partition, [A, B, C]) == [C]
    partition.apply_delete([3], 0)
    assert groups_gone(partition, [A, B, C]) == [A, C]
    partition.apply_delete([2], 0)
    assert groups_gone(partition, [A, B, C]) == [A, B, C]


def test_groups_of_messages_that_were_never_received_are_found_in_the_index() -> None:
    partition = sealed(*[A] * TAIL_ENTRIES_MAX, *[B] * CHUNK_ENTRIES, C)

    assert groups_gone(partition, [A, B, C, D]) == [D]

    partition.apply_delete_below(TAIL_ENTRIES_MAX + 1)
    assert groups_gone(partition, [A, B, C, D]) == [A, D]
    partition.apply_delete_below(partition.next_sequence)
    assert groups_gone(partition, [A, B, C, D]) == [A, B, C, D]


def test_nothing_is_said_until_all_messages_were_looked_at() -> None:
    partition = sealed(A, A, B, B, C)

    assert groups_gone(partition, [A, D], looked_at_max=2) is None
    assert groups_gone(partition, [A, D], looked_at_max=2) is None
    assert groups_gone(partition, [A, D], looked_at_max=2) == [D]
    assert groups_gone(partition, [D], looked_at_max=2) == [D]


def test_messages_that_are_handed_out_meanwhile_are_not_looked_at() -> None:
    partition = sealed(A, A, B, B, C)
    assert groups_gone(partition, [A], looked_at_max=1) is None

    partition.apply_delete_below(5)

    assert groups_gone(partition, [A, B, C, D], looked_at_max=1) == [A, B, D]


def test_empty_partition_has_no_groups() -> None:
    assert groups_gone(sealed(), [A]) == [A]

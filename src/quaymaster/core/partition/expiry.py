"""Which messages of a partition have had their time: by age, and those of a log by its size and by who pins it.

Only the leader asks. It proposes their end, and what that does is `Partition.apply_delete_below` and `apply_delete`.
"""

from __future__ import annotations

from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.partition_tables import share_of
from quaymaster.core.values.queues.queue_names import split_group

EXPIRED_ROWS_MAX = 4_096
"""About so many messages that were received before expire in one step."""


def find_expired(partition: Partition, now_ms: int, count_max: int) -> tuple[int, list[int]]:
    """Return (first sequence that is kept, single expired ones above it); the caller proposes their end."""
    definition, index, head = partition.definition, partition.index, partition.head
    retention_ms = definition.retention_ms
    stop = min(partition.committed, index.next_sequence)
    if not partition.alive or head >= stop:
        return head, []
    if not partition.has_moved_in:
        expired_below = _over_size(partition)
        if partition.oldest_sent_ms + retention_ms <= now_ms:
            expired_below = max(expired_below, index.first_sent_after(head, stop, now_ms - retention_ms))
        expired_below = min(expired_below, pinned_from(partition))
        if expired_below <= head:
            return head, []
        return min(
            [
                expired_below,
                stop,
                *(_stop_of_one_step(each) for each in (partition, *partition.groups.values())),
            ]
        ), []
    # Messages moved here keep the time they were first sent: look at each, a stretch at a time.
    expired: list[int] = []
    start = max(partition.expiry_scan, head)
    end = min(stop, start + 4 * count_max)
    for sequence in range(start, end):
        if len(expired) == count_max:
            end = sequence
            break
        if sequence not in partition.deleted and index.sent_ms(sequence) + retention_ms <= now_ms:
            expired.append(sequence)
    partition.expiry_scan = end if end < stop else head
    return head, expired


def may_find_expired(partition: Partition, now_ms: int) -> bool:
    """Return whether `find_expired` may find something in a partition that has messages."""
    if pinned_from(partition) <= partition.head:
        return False
    if partition.has_moved_in or is_over_size(partition):
        return True
    return partition.oldest_sent_ms + partition.definition.retention_ms <= now_ms


def pinned_from(partition: Partition) -> int:
    """Return from which sequence number on messages of a log stay, whatever their age: where the last of the groups
    that pin it has come to.

    A group that is not there has consumed nothing. Under a legal hold all stays.
    """
    if partition.sizes is None:
        # Without a look at the definition: what it works out it keeps, which is too much for each ordinary queue.
        return partition.index.next_sequence
    if partition.definition.has_legal_hold:
        return partition.head
    pins = partition.definition.retention_pins
    if not pins:
        return partition.index.next_sequence
    heads = {split_group(group.definition.name)[1]: group.head for group in partition.groups.values()}
    return min(heads.get(name, partition.head) for name in pins)


def is_over_size(partition: Partition) -> bool:
    """Return whether a log has more bytes than it is to keep."""
    return _over_size(partition) > partition.head


def _over_size(partition: Partition) -> int:
    """Return below which sequence number a log has more than it is to keep."""
    whole = partition.definition.retention_bytes
    if partition.sizes is None or not whole:
        return 0
    bytes_max = share_of(partition.definition, partition.number, whole)
    if partition.sizes.total_bytes <= bytes_max:
        return 0
    return partition.sizes.first_within(bytes_max)


def _stop_of_one_step(partition: Partition) -> int:
    """Return below which sequence number messages may be gone in one step."""
    stops = [
        partition.in_flight.stop_after(EXPIRED_ROWS_MAX),
        partition.returned.stop_after(EXPIRED_ROWS_MAX),
    ]
    if partition.order.expired_at_a_time is not None:
        stops.append(partition.head + partition.order.expired_at_a_time)
    return min((stop for stop in stops if stop is not None), default=partition.index.next_sequence)

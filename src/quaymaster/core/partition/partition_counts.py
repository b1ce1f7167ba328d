"""What clients are told of the messages of a partition."""

from __future__ import annotations

from quaymaster.core.partition.partition import Partition
from quaymaster.core.values.commands.messages import QueueCounts


def counts_of(partition: Partition, now_ms: int) -> QueueCounts:
    """Return how many messages are visible, in flight and delayed, after `advance`; of a log, how many it has."""
    in_flight, delayed = partition.hidden(now_ms)
    return QueueCounts(
        visible=max(0, partition.alive - in_flight - delayed),
        in_flight=in_flight,
        delayed=delayed,
        oldest_sent_ms=partition.oldest_sent_ms if partition.alive else 0,
        noisy_groups=noisy_groups_of(partition, now_ms),
        sends=partition.sends,
        deletions=partition.deletions,
        counted_from=partition.counted_from,
    )


def noisy_groups_of(partition: Partition, now_ms: int) -> int:
    """Return how many tenants are held back for fairness, as receives judge it: by what is in flight to consumers."""
    return partition.order.noisy_groups(now_ms, len(partition.in_flight)) if partition.alive else 0

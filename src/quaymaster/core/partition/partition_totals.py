"""What happened to a partition's messages since its leader began: made when something does.

Counts that show, not counts that bill: they end with their leader. What a journal counts for ever, `sends` and
`deletions`, is `core/partition/partition`'s.
"""

from __future__ import annotations

from typing import Final, Protocol

WAITS_BOUNDS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(
        1_000,
        2_000,
        5_000,
        10_000,
        30_000,
        60_000,
        300_000,
        900_000,
        3_600_000,
        21_600_000,
        86_400_000,
        604_800_000,
    ),
)
"""Upper bounds of the buckets in which waits are counted."""


class PartitionTotals:
    """The counters of one partition in one leader's epoch."""

    __slots__ = (
        "dead_lettered",
        "duplicate",
        "empty_receives",
        "epoch",
        "expired",
        "received",
        "sent_bytes",
        "wait_ms",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.sent_bytes = 0
        """As senders count them, body and attributes; of messages that transactions sent, as they are stored."""
        self.received = 0
        self.empty_receives = 0
        self.duplicate = 0
        self.dead_lettered = 0
        self.expired = 0
        self.wait_ms = 0
        """How long messages waited from their sending to their first delivery, delays included."""


class HasTotals(Protocol):
    """A partition."""

    totals: PartitionTotals | None


def totals_of(partition: HasTotals, epoch: int) -> PartitionTotals:
    """Return the counters of the leader of an epoch."""
    totals = partition.totals
    if totals is None or totals.epoch != epoch:
        totals = partition.totals = PartitionTotals(epoch)
    return totals


class Waits:
    """How long messages of all partitions of a journal waited for their first delivery, by bucket.

    Who delivers counts here: `counts[bisect_left(WAITS_BOUNDS_MS, wait_ms)]`.
    """

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(WAITS_BOUNDS_MS) + 1)
        self.sum_ms = 0

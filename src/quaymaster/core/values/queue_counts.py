"""What is in several partitions together."""

from __future__ import annotations

from collections.abc import Sequence

from quaymaster.core.values.commands.messages import QueueCounts


def sum_counts(each: Sequence[QueueCounts], *, sends: int = 0, deletions: int = 0) -> QueueCounts:
    """Return the counts of a queue from those of its partitions.

    `sends` and `deletions`: of partitions that are asked no more.
    """
    return QueueCounts(
        visible=sum(counts.visible for counts in each),
        in_flight=sum(counts.in_flight for counts in each),
        delayed=sum(counts.delayed for counts in each),
        oldest_sent_ms=min((counts.oldest_sent_ms for counts in each if counts.oldest_sent_ms), default=0),
        noisy_groups=sum(counts.noisy_groups for counts in each),
        sends=sum(counts.sends for counts in each) + sends,
        deletions=sum(counts.deletions for counts in each) + deletions,
        counted_from=max((counts.counted_from for counts in each), default=0),
    )

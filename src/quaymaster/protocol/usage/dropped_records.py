"""What is known of records that are not there: which they would have been, and what they would have said in sum."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DROPPED_COUNTS_MAX: Final = 1_000
OTHERS: Final = "others"
"""Stands for accounts and actions that are too many to be told apart in a `Dropped`."""

DropReason = Literal["spool_full", "disk_failed", "too_many", "damaged"]
"""Why records are missing: no room in the spool; it could not be written; they came faster than they could be written;
they were written, and cannot be read any more."""


class DroppedCount(msgspec.Struct, array_like=True, gc=False):
    """What was dropped of one account's requests for one action."""

    account_id: str
    action: str
    requests: int = 0
    messages: int = 0
    payload_bytes: int = 0
    chunks: int = 0
    errors: int = 0


class Dropped(msgspec.Struct, array_like=True, gc=False):
    """Records that are not there: those of `from_sequence` to `to_sequence` (half open), and what they would have said.

    `counts` is empty where that is no longer known.
    """

    from_sequence: int
    to_sequence: int
    reason: DropReason
    counts: list[DroppedCount]


def merge_dropped(earlier: Dropped, later: Dropped) -> Dropped:
    """Return one line for two stretches that lie end to end; the earlier one's reason stands for both."""
    assert earlier.to_sequence == later.from_sequence, "only what lies end to end is merged"
    if not (earlier.counts and later.counts):
        counts: list[DroppedCount] = []
    else:
        totals: dict[tuple[str, str], DroppedCount] = {}
        for count in (*earlier.counts, *later.counts):
            add_dropped(totals, count)
        counts = list(totals.values())
    return Dropped(earlier.from_sequence, later.to_sequence, earlier.reason, counts)


def add_dropped(counts: dict[tuple[str, str], DroppedCount], dropped: DroppedCount) -> None:
    """Count what is dropped; what comes after DROPPED_COUNTS_MAX pairs of account and action is of OTHERS."""
    key = (dropped.account_id, dropped.action)
    count = counts.get(key)
    if count is None:
        if len(counts) >= DROPPED_COUNTS_MAX:
            key = (OTHERS, OTHERS)
        count = counts.setdefault(key, DroppedCount(*key))
    count.requests += dropped.requests
    count.messages += dropped.messages
    count.payload_bytes += dropped.payload_bytes
    count.chunks += dropped.chunks
    count.errors += dropped.errors

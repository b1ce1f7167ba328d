"""Whether a member takes a copy of the journal in place of the log it has: decided from where both of them end."""

from __future__ import annotations

from typing import Literal

from quaymaster.core.replication.log_tail import Position

CopyVerdict = Literal["take", "keep", "wait"]


def judge_copy(*, promised_epoch: int, end: Position, leader_epoch: int, copy_end: Position) -> CopyVerdict:
    """Decide what a member whose log ends at `end` does with a copy of what the leader of an epoch has durable.

    take: the copy replaces the log, even a longer one. The leader of the copy's last epoch began with everything that
    was committed before, so nothing of the log that is not in the copy was. That does not hold for a log with batches
    of a later epoch, or more of the same: it may be one of those that they are committed on.
    keep: the log has batches of that very leader, and at least as much as the copy.
    wait: the leader's disk is behind what it leads with, or another leads by now. Another copy may do.

    A higher epoch may have been promised meanwhile: what was said of the log then still holds for one that is above it
    in this order, and the rest is not counted on, for a copy is not acknowledged. So long copies are not made in vain.
    """
    if promised_epoch < leader_epoch:
        return "wait"
    if (end.epoch, end.end) < (copy_end.epoch, copy_end.end):
        return "take"
    return "keep" if end.epoch == leader_epoch else "wait"

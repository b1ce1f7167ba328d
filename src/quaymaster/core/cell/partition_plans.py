"""Which partitions should be split, moved or merged, by what is seen of their load (`partition_trends`).

    a journal above BUSY_SHARE for BUSY_MS
      its busiest open partition has most of the load ──▶ SplitPartition, where its counters halve
      it has not, or must not be split ─────────────────▶ MovePartition to the journal with the least to do
      its load is of one group ─────────────────────────▶ a problem: no change of partitions divides a group
    all open partitions of a queue together below MERGED_SHARE for MERGE_MS ──▶ MergePartitions

Sealed partitions of a log are closed for as long as it keeps messages, and consumers ask them all that time. So a log
is merged only when nothing is left of what was sealed before, and one with a bound on its bytes is changed only then:
each seal would let it keep as much again.

Leadership that moves (`load_choice`) comes first, and costs less: it is for brokers with several journals. What is left
are journals that are too much for any broker. Times are milliseconds of the manager's clock; keys have 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from quaymaster.core.cell.load import CALM_SHARE
from quaymaster.core.values.partition_tables import LISTED_MAX
from quaymaster.core.values.queues.queue_definitions import PartitionState

BUSY_MS: Final = 10_000
"""A journal that is above BUSY_SHARE for so long gives load away."""
SETTLE_MS: Final = 60_000
"""After a change its journals are left alone for so long: it shows in their load by then."""
QUEUE_REST_MS: Final = 600_000
"""After a change its queue is left alone for so long."""
MERGED_SHARE: Final = 0.2
MERGE_MS: Final = 1_800_000
CLOSED_MAX: Final = 4
"""No key is changed that has so many closed partitions."""
NEW_NUMBERS_MAX: Final = 24
"""So many new partitions a queue may get a day."""
PARTITION_SHARE_MIN: Final = 0.15
"""A partition with less is not changed: its journal is busy with something else, as sealed partitions."""
ONE_GROUP_SHARE: Final = 0.8
"""With so much of the messages in NARROW_KEYS the load is taken for that of one group."""
NARROW_KEYS: Final = 1 << 58
"""A 64th of all keys: two splits within what a counter counts did not divide the load."""
COUNTED_KEYS: Final = 1 << 60
"""Each counter counts the messages of so many keys."""


class PartitionSeen(msgspec.Struct, frozen=True):
    """A partition that the table lists, with the keys of its range, both included, and its load.

    `share`: of a loop's time, smoothed; 0 where it is not among the busiest of its broker. `by_key`: messages by their
    key's first 4 bits, over some seconds; empty when none is known.
    """

    number: int
    journal: int
    state: PartitionState
    first_key: int
    last_key: int
    share: float = 0.0
    by_key: tuple[int, ...] = ()


class QueueSeen(msgspec.Struct, frozen=True):
    """A queue with load, or with several open partitions.

    `name`: for reasons. `fixed_why`: why managers never change it; None when they may. `is_log`: it keeps what is
    consumed. `has_bytes_max`: and no more than so many bytes. `changed_ms`: when its last change was,
    None when there was none. `has_sinks`: it is FIFO, and a sink commits to it, or did within a week, or may have.
    `new_numbers`: how many partitions it got within a day. `calm_since_ms`: since when its open partitions together are
    below MERGED_SHARE; None when they are not.
    """

    queue_id: int
    name: str
    partitions: tuple[PartitionSeen, ...]
    partitions_max: int = 16
    fixed_why: str | None = None
    is_log: bool = False
    has_bytes_max: bool = False
    changed_ms: int | None = None
    has_sinks: bool = False
    new_numbers: int = 0
    calm_since_ms: int | None = None


class JournalLoad(msgspec.Struct, frozen=True):
    """A journal that is led: by whom, its own share of the leader's time, and all that the leader has to do.

    `busy_since_ms`: since when its own share is above BUSY_SHARE; None when it is not. `changed_ms`: when a partition
    there was last sealed or opened by a change; None when that was not since the manager looks.
    """

    leader: str
    share: float
    broker_share: float
    busy_since_ms: int | None = None
    changed_ms: int | None = None


class PartitionsSeen(msgspec.Struct, frozen=True):
    """All that a plan rests on."""

    now_ms: int
    journals: dict[int, JournalLoad]
    queues: tuple[QueueSeen, ...]


class SplitPartition(msgspec.Struct, frozen=True):
    """Open two children for a partition: the second begins with `key`. `journals`: where the children are."""

    queue_id: int
    partition: int
    key: int
    journals: tuple[int, int]
    reason: str


class MovePartition(msgspec.Struct, frozen=True):
    """Open one child for a partition, in another journal."""

    queue_id: int
    partition: int
    journal: int
    reason: str


class MergePartitions(msgspec.Struct, frozen=True):
    """Open one child for all open partitions of a queue."""

    queue_id: int
    partitions: tuple[int, ...]
    journal: int
    reason: str


PlannedChange = SplitPartition | MovePartition | MergePartitions


class PartitionsPlan(msgspec.Struct, frozen=True):
    """What to ask metadata nodes for, at most one change of a queue; and what an operator should know."""

    changes: tuple[PlannedChange, ...]
    problems: tuple[str, ...]


def plan_partitions(seen: PartitionsSeen) -> PartitionsPlan:
    """Return what should be changed now. The same cell gives the same plan."""
    planner = _Planner(seen)
    for number in sorted(seen.journals, key=lambda number: (-seen.journals[number].share, number)):
        planner.relieve(number)
    for queue in seen.queues:
        planner.merge(queue)
    return PartitionsPlan(tuple(planner.changes), tuple(planner.problems))


def halving_key(partition: PartitionSeen) -> int:
    """Return the key above `first_key` at which a partition's messages are in two halves.

    Within what a counter counts they are taken to be spread evenly. Where nothing was counted, it is the middle.
    """
    parts = _counted_parts(partition)
    left = sum(count for _, _, count in parts)  # each message counts for two: halves are whole numbers
    for first, keys, count in parts:
        if left < 2 * count:
            key = first + keys * left // (2 * count)
            return min(max(key, partition.first_key + 1), partition.last_key)
        left -= 2 * count
    return partition.first_key + (partition.last_key - partition.first_key + 1) // 2


def is_of_one_group(partition: PartitionSeen) -> bool:
    """Tell whether a partition's messages are most likely of one group: nearly all are of a narrow range of keys."""
    parts = _counted_parts(partition)
    total = sum(count for _, _, count in parts)
    return any(keys <= NARROW_KEYS and count >= total * ONE_GROUP_SHARE for _, keys, count in parts if total)


def _counted_parts(partition: PartitionSeen) -> list[tuple[int, int, int]]:
    """Return (first key, number of keys, messages) of each counter, as far as its keys are of the partition."""
    parts = []
    for number, count in enumerate(partition.by_key):
        first = max(partition.first_key, number * COUNTED_KEYS)
        last = min(partition.last_key, (number + 1) * COUNTED_KEYS - 1)
        if first <= last:
            parts.append((first, last - first + 1, count))
    return parts


def deepest(ranges: Iterable[tuple[int, int]], first_key: int, last_key: int) -> int:
    """Return in how many of these ranges a key of a range is, at most; first and last keys are included."""
    edges = []
    for first, last in ranges:
        if first <= last_key and last >= first_key:
            edges += [(max(first, first_key), 1), (min(last, last_key) + 1, -1)]
    depth = most = 0
    for _, change in sorted(edges):
        depth += change
        most = max(most, depth)
    return most


class _Planner:
    """One plan in the making."""

    def __init__(self, seen: PartitionsSeen) -> None:
        self.changes: list[PlannedChange] = []
        self.problems: list[str] = []
        self._now_ms = seen.now_ms
        self._journals = seen.journals
        self._touched: set[int] = set()
        """Journals of changes of this plan."""
        self._changed_queues: set[int] = set()
        self._broker_shares = {journal.leader: journal.broker_share for journal in seen.journals.values()}
        self._at: dict[int, list[tuple[QueueSeen, PartitionSeen]]] = {}
        for queue in seen.queues:
            for partition in queue.partitions:
                self._at.setdefault(partition.journal, []).append((queue, partition))

    def relieve(self, number: int) -> None:
        """Split or move the busiest open partition of a journal that is too busy, or say why that would be in vain."""
        journal = self._journals[number]
        if (
            journal.busy_since_ms is None
            or self._now_ms - journal.busy_since_ms < BUSY_MS
            or not self._is_settled(number)
        ):
            return
        # What is done for sealed partitions cannot move, and does not count.
        open_ones = [item for item in self._at.get(number, []) if item[1].state == "open"]
        total = sum(one.share for _, one in open_ones)
        if not open_ones:
            return
        queue, busiest = max(open_ones, key=lambda item: (item[1].share, -item[0].queue_id, -item[1].number))
        if busiest.share < PARTITION_SHARE_MIN:
            return
        has_most = busiest.share > total / 2
        name = f"partition {busiest.number} of queue {queue.name}"
        busy = f"journal {number} is busy ({journal.share:.0%}), {busiest.share:.0%} of it for {name}"
        if has_most and is_of_one_group(busiest):
            self.problems.append(f"{busy}, nearly all for one message group: no split divides it")
            return
        if self._is_changing(queue):
            return
        closed_max = 1 if queue.has_bytes_max else CLOSED_MAX
        if (why := self._why_left_alone(queue, [busiest], closed_max=closed_max)) is not None:
            if has_most:
                self.problems.append(f"{busy}, and stays: {why}")
            return
        if has_most and self._has_numbers(queue, 2, opened=1):
            target = self._least_busy(number, busiest.share / 2)
            if target is not None:
                split = SplitPartition(
                    queue.queue_id, busiest.number, halving_key(busiest), (number, target), busy
                )
                self._do(split, queue, (number, target), target, busiest.share / 2)
                return
        target = self._least_busy(number, busiest.share) if self._has_numbers(queue, 1, opened=0) else None
        if target is not None:
            self._do(
                MovePartition(queue.queue_id, busiest.number, target, busy),
                queue,
                (number, target),
                target,
                busiest.share,
            )
        elif has_most:
            self.problems.append(f"{busy}, and no broker has room for it, or for a part of it")

    def merge(self, queue: QueueSeen) -> None:
        """Merge the open partitions of a queue that has had little load for long."""
        open_ones = [one for one in queue.partitions if one.state == "open"]
        if (
            len(open_ones) < 2
            or queue.calm_since_ms is None
            or self._now_ms - queue.calm_since_ms < MERGE_MS
            or self._is_changing(queue)
            or self._why_left_alone(queue, open_ones, closed_max=1 if queue.is_log else CLOSED_MAX)
            is not None
            or not self._has_numbers(queue, 1, opened=0)
        ):
            return
        share = sum(one.share for one in open_ones)
        journals = [
            number
            for number in {one.journal for one in open_ones}
            if number in self._journals and self._room_at(number) >= share
        ]
        if not journals:
            return
        target = min(journals, key=lambda number: (self._journals[number].broker_share, number))
        reason = f"all of queue {queue.name} is {share:.0%} of a broker's time, for {MERGE_MS // 60_000} min"
        numbers = tuple(one.number for one in open_ones)
        merge = MergePartitions(queue.queue_id, numbers, target, reason)
        self._do(merge, queue, [one.journal for one in open_ones], target, share)

    # What may be done

    def _is_changing(self, queue: QueueSeen) -> bool:
        """Tell whether a change of a queue is on its way, or was lately."""
        return (
            queue.queue_id in self._changed_queues
            or any(one.state in ("new", "closing") for one in queue.partitions)
            or (queue.changed_ms is not None and self._now_ms - queue.changed_ms < QUEUE_REST_MS)
        )

    def _why_left_alone(
        self, queue: QueueSeen, parents: Sequence[PartitionSeen], *, closed_max: int
    ) -> str | None:
        """Return why managers do not change these partitions, whatever their load.

        `closed_max`: no key has so many closed partitions.
        """
        if queue.fixed_why is not None:
            return queue.fixed_why
        if queue.has_sinks:
            return "a sink commits to the queue"
        closed = [(one.first_key, one.last_key) for one in queue.partitions if one.state == "closed"]
        if any(deepest(closed, one.first_key, one.last_key) >= closed_max for one in parents):
            if queue.is_log:
                return "retention has not emptied its closed partitions"
            return "consumers have not emptied its closed partitions"
        return None

    def _has_numbers(self, queue: QueueSeen, new: int, *, opened: int) -> bool:
        """Tell whether a queue may have so many new partitions, and so many more that are open."""
        open_count = sum(one.state == "open" for one in queue.partitions)
        return (
            open_count + opened <= queue.partitions_max
            and len(queue.partitions) + new <= LISTED_MAX
            and queue.new_numbers + new <= NEW_NUMBERS_MAX
        )

    def _is_settled(self, number: int) -> bool:
        changed_ms = self._journals[number].changed_ms
        return number not in self._touched and (changed_ms is None or self._now_ms - changed_ms >= SETTLE_MS)

    def _room_at(self, number: int) -> float:
        return CALM_SHARE - self._broker_shares[self._journals[number].leader]

    def _least_busy(self, source: int, share: float) -> int | None:
        """Return the journal with the least to do, at another broker that stays below CALM_SHARE with so much more."""
        leader = self._journals[source].leader
        journals = [
            number
            for number, journal in self._journals.items()
            if journal.leader != leader and self._is_settled(number) and self._room_at(number) > share
        ]
        return min(
            journals,
            key=lambda number: (
                self._broker_shares[self._journals[number].leader],
                self._journals[number].share,
                number,
            ),
            default=None,
        )

    def _do(
        self,
        change: PlannedChange,
        queue: QueueSeen,
        journals: Iterable[int],
        target: int,
        share: float,
    ) -> None:
        self.changes.append(change)
        self._changed_queues.add(queue.queue_id)
        self._touched.update((*journals, target))
        self._broker_shares[self._journals[target].leader] += share

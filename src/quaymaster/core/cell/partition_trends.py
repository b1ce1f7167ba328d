"""What plans of partitions rest on: loads and tables as the acting manager has seen them, and since when they are so.

    reports of brokers ──▶ journals: busy since, changed at ──┐
                                                              ├──▶ PartitionsSeen ──▶ partition_plans
    tables of queues ────▶ queues: changed at, calm since ────┘

It begins with nothing when a manager begins to act. What it cannot know is taken for what makes plans do less: a queue
that is new to it was changed just then, and had all its numbers within a day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from quaymaster.core.cell.cell import CellSeen, broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.load import BUSIEST_MAX, BUSY_SHARE, PartitionLoad
from quaymaster.core.cell.loads import Loads
from quaymaster.core.cell.partition_plans import (
    MERGED_SHARE,
    JournalLoad,
    PartitionSeen,
    PartitionsSeen,
    QueueSeen,
)
from quaymaster.core.values.partition_tables import in_state
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition

DAY_MS: Final = 86_400_000
GAP_MS: Final = 10_000
"""After so long without a look, nothing is known to have been so meanwhile."""
COUNTER_SCALE: Final = 16
"""Smoothed counters become whole numbers; those of few messages keep their proportions."""


@dataclass(slots=True)
class _Known:
    """A queue's table, when it changed last, and how many numbers it was given when."""

    definition: QueueDefinition
    changed_ms: int
    given: list[tuple[int, int]]
    calm_since_ms: int | None = None


@dataclass(slots=True)
class _Loads:
    """Loads of one moment. `of`: by queue and partition. `hidden`: what one that a broker does not name has at most."""

    journals: dict[int, JournalLoad]
    of: dict[tuple[int, int], tuple[float, PartitionLoad]] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)


class PartitionTrends:
    """Belongs to a manager while it acts. Times are milliseconds of its clock."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._busy: dict[int, tuple[str, int]] = {}
        """Leader of each busy journal, and since when it is busy there."""
        self._changed_ms: dict[int, int] = {}
        """When a partition of a journal was last sealed, opened or dropped."""
        self._at_ms: int | None = None

    # Tables

    def wanted(self, seen: CellSeen, count_max: int) -> list[int]:
        """Return the ids of queues whose tables are to be asked for: the busiest, then others that are known."""
        loads = [load for broker in seen.brokers for load in broker.report.load.partitions]
        busiest = [load.queue_id for load in sorted(loads, key=lambda load: -load.share)]
        return list(dict.fromkeys((*busiest, *self._known)))[:count_max]

    def know(self, asked: Collection[int], found: Iterable[QueueDefinition], now_ms: int) -> None:
        """Take the tables of the queues that were asked for; others, and those that were not found, are forgotten."""
        before, self._known = self._known, {}
        for definition in found:
            # A group has the table of its log, and its load is a part of the log's.
            if definition.queue_id in asked and not definition.group_of:
                if definition.queue_id in before:
                    self._known[definition.queue_id] = before[definition.queue_id]
                self.know_one(definition, now_ms)

    def know_one(self, definition: QueueDefinition, now_ms: int) -> None:
        """Take a queue's table."""
        known = self._known.get(definition.queue_id)
        if known is None:
            oldest = min((entry.number for entry in definition.partitions), default=0)
            given = [(now_ms, definition.next_partition - 1 - oldest)]
            self._known[definition.queue_id] = _Known(definition, now_ms, given)
            return
        before, known.definition = known.definition, definition
        if before.table_version != definition.table_version:
            known.changed_ms = now_ms
            known.given.append((now_ms, max(0, definition.next_partition - before.next_partition)))
            for entry in set(before.partitions) ^ set(definition.partitions):
                self._changed_ms[entry.journal_id] = now_ms

    def rest(self, queue_id: int, now_ms: int) -> None:
        """Leave a queue alone as if it was changed now: whether it was is not known, or it was refused."""
        known = self._known.get(queue_id)
        if known is not None:
            known.changed_ms = now_ms

    def table(self, queue_id: int) -> QueueDefinition:
        """Return the table of a queue that a plan named."""
        return self._known[queue_id].definition

    # Seen

    def take(self, seen: CellSeen) -> PartitionsSeen:
        """Take what is seen now, and return what to plan with."""
        now_ms = seen.now_ms
        if self._at_ms is None or now_ms - self._at_ms > GAP_MS:
            self._busy = {}
            for known in self._known.values():
                known.calm_since_ms = None
        self._at_ms = now_ms
        loads = self._loads(seen)
        queues = tuple(self._queue(known, loads, now_ms) for known in self._known.values())
        return PartitionsSeen(now_ms, loads.journals, queues)

    def _loads(self, seen: CellSeen) -> _Loads:
        view = CellView(seen)
        shares = Loads(view)
        busy, self._busy = self._busy, {}
        loads = _Loads({})
        for number, journal in seen.journals.items():
            if view.leader_seen(number, journal) is None:
                continue
            leader, share = broker_of(journal.configuration.leader), shares.of_journal[number]
            since_ms = None
            if share > BUSY_SHARE:
                known_leader, known_ms = busy.get(number, (leader, seen.now_ms))
                since_ms = known_ms if known_leader == leader else seen.now_ms
                self._busy[number] = leader, since_ms
            loads.journals[number] = JournalLoad(
                leader, share, shares.of_broker[leader], since_ms, self._changed_ms.get(number)
            )
        for broker in seen.brokers:
            load = broker.report.load
            worked = sum(load.journals.values())
            scale = shares.of_broker[broker.name] / worked if worked else 0.0
            for one in load.partitions:
                led = loads.journals.get(one.journal)
                if led is not None and led.leader == broker.name:
                    loads.of[one.queue_id, one.partition] = one.share * scale, one
            is_full = len(load.partitions) >= BUSIEST_MAX
            loads.hidden[broker.name] = scale * min(one.share for one in load.partitions) if is_full else 0.0
        return loads

    def _queue(self, known: _Known, loads: _Loads, now_ms: int) -> QueueSeen:
        definition = known.definition
        queue_id = definition.queue_id
        open_ones = in_state(definition, "open")
        is_led = all(entry.journal_id in loads.journals for entry in open_ones)
        total = 0.0
        # A sink that nothing is known of is taken for one that commits.
        has_sinks = False
        for entry in open_ones if is_led else ():
            leader = loads.journals[entry.journal_id].leader
            share, load = loads.of.get((queue_id, entry.number), (loads.hidden[leader], None))
            total += share
            has_sinks = has_sinks or load is None or load.has_sinks
        if not is_led or total >= MERGED_SHARE:
            known.calm_since_ms = None
        elif known.calm_since_ms is None:
            known.calm_since_ms = now_ms
        known.given = [(at_ms, count) for at_ms, count in known.given if now_ms - at_ms < DAY_MS]
        return QueueSeen(
            queue_id,
            f"{definition.account_id}/{definition.name}",
            tuple(
                _partition(entry, loads.of.get((queue_id, entry.number)), is_fifo=definition.is_fifo)
                for entry in definition.partitions
            ),
            definition.partitions_max,
            fixed_why=why_fixed(definition),
            is_log=definition.is_log,
            has_bytes_max=definition.is_log and definition.retention_bytes > 0,
            changed_ms=known.changed_ms,
            has_sinks=definition.is_fifo and (has_sinks or not is_led),
            new_numbers=sum(count for _, count in known.given),
            calm_since_ms=known.calm_since_ms,
        )


def why_fixed(definition: QueueDefinition) -> str | None:
    """Return why managers never change a queue, whatever its load; None when they may."""
    if definition.has_peers:
        return "its partitions are equal (ReplicationMode)"
    if definition.partitions_max == 1:
        return "it is to have one partition (PartitionsMax)"
    if definition.is_fifo and not definition.is_split_by_group:
        return "its messages are not divided by message group (DeduplicationScope, FifoThroughputLimit)"
    if definition.is_fifo and definition.is_log:
        return "who reads this log by offsets would lose the order of its message groups"
    return None


def _partition(
    entry: PartitionPlacement, found: tuple[float, PartitionLoad] | None, *, is_fifo: bool
) -> PartitionSeen:
    share, by_key = (0.0, ()) if found is None else (found[0], found[1].by_key)
    if not is_fifo:
        by_key = ()  # brokers know groups, not keys: messages of a standard queue are spread evenly over its keys
    return PartitionSeen(
        entry.number,
        entry.journal_id,
        entry.state,
        entry.first_key,
        entry.last_key,
        share,
        tuple(round(COUNTER_SCALE * count) for count in by_key),
    )

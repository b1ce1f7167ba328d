"""Managers change partitions by load: how few changes they make, and that these come to rest, in a simulated cell."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from harness.broker_support import define
from harness.planned_cell import PlannedCell

from quaymaster.core.cell.load import BUSY_SHARE, PartitionLoad
from quaymaster.core.cell.partition_plans import (
    MERGE_MS,
    NEW_NUMBERS_MAX,
    QUEUE_REST_MS,
    MergePartitions,
    MovePartition,
    PlannedChange,
    SplitPartition,
    plan_partitions,
)
from quaymaster.core.cell.partition_trends import PartitionTrends
from quaymaster.core.values.partition_tables import (
    entries_to_merge,
    entries_to_move,
    in_state,
    with_children,
    with_children_open,
    with_state,
    without,
)
from quaymaster.core.values.queues.queue_definitions import (
    KEY_MAX,
    PartitionPlacement,
    QueueDefinition,
    replace_definition,
)

STEP_MS = 2_500
MINUTE_MS = 60_000
CLOSING_MS = 5 * MINUTE_MS
LOG = {"RetentionMode": "Log"}


class BusyCell:
    """Three brokers with a journal each, and queues whose messages are spread evenly over their keys."""

    def __init__(self, seed: int = 1) -> None:
        self.source = random.Random(seed)
        self.cell = PlannedCell("a", "b", "c")
        self.cell.run(ms=30_000)
        self.tables: dict[int, QueueDefinition] = {}
        self.demand: dict[int, float] = {}
        """What each queue takes of a loop."""
        self.noise: Callable[[], float] = lambda: 1.0
        self.emptied_ms: dict[int, int] = {}
        """How long after a change of a queue nothing is left of its sealed partitions."""
        self.changed_ms: dict[int, int] = {}
        self.changes: list[tuple[int, PlannedChange]] = []
        self.trends = PartitionTrends()

    def add(
        self,
        queue_id: int,
        journal: int,
        demand: float,
        *,
        emptied_ms: int = 2 * CLOSING_MS,
        attributes: dict[str, str] | None = None,
    ) -> None:
        """Make a queue with one partition."""
        definition = replace_definition(define(queue_id), attributes=attributes or {})
        (only,) = definition.partitions
        only = msgspec.structs.replace(only, journal_id=journal)
        self.tables[queue_id] = replace_definition(definition, partitions=(only,))
        self.demand[queue_id] = demand
        self.emptied_ms[queue_id] = emptied_ms

    def run(self, ms: int) -> list[PlannedChange]:
        """Let time pass; return what managers changed."""
        before = len(self.changes)
        for _ in range(0, ms, STEP_MS):
            self._step()
        return [change for _, change in self.changes[before:]]

    def numbers_of(self, queue_id: int) -> int:
        return self.tables[queue_id].next_partition

    def shares(self) -> list[float]:
        return [self.cell.load_of(name).cpu_share for name in "abc"]

    def _step(self) -> None:
        now_ms = self.cell.now_ms = self.cell.now_ms + STEP_MS
        loads = [
            PartitionLoad(queue_id, entry.number, entry.journal_id, self._share(queue_id, entry))
            for queue_id, definition in self.tables.items()
            for entry in in_state(definition, "open")
        ]
        self.cell.partitions = tuple(loads)
        self.cell.demand = {
            number: sum(load.share for load in loads if load.journal == number)
            for number in self.cell.journals
        }
        self._age(now_ms)
        self.trends.know(list(self.tables), self.tables.values(), now_ms)
        for change in plan_partitions(self.trends.take(self.cell.see())).changes:
            self._change(change, now_ms)

    def _share(self, queue_id: int, entry: PartitionPlacement) -> float:
        return self.demand[queue_id] * (entry.last_key - entry.first_key + 1) / (KEY_MAX + 1) * self.noise()

    def _change(self, change: PlannedChange, now_ms: int) -> None:
        table = self.tables[change.queue_id]
        last_ms = self.changed_ms.get(change.queue_id)
        assert last_ms is None or now_ms - last_ms >= QUEUE_REST_MS
        match change:
            case SplitPartition():
                (parent,) = [one for one in in_state(table, "open") if one.number == change.partition]
                parents = [parent]
                ranges = [(parent.first_key, change.key - 1), (change.key, parent.last_key)]
                journals = list(change.journals)
            case MovePartition():
                (parents, ranges), journals = entries_to_move(table, change.partition), [change.journal]
            case MergePartitions():
                (parents, ranges), journals = entries_to_merge(table, change.partitions), [change.journal]
        self.tables[change.queue_id] = with_children_open(with_children(table, parents, ranges, journals))
        self.changed_ms[change.queue_id] = now_ms
        self.changes.append((now_ms, change))

    def _age(self, now_ms: int) -> None:
        """Close sealed partitions once they have forgotten ids, and let go of those that are empty."""
        for queue_id, changed_ms in self.changed_ms.items():
            table = self.tables[queue_id]
            if now_ms - changed_ms >= CLOSING_MS:
                for entry in in_state(table, "closing"):
                    table = with_state(table, entry.number, "closed")
            if now_ms - changed_ms >= self.emptied_ms[queue_id] and in_state(table, "closed"):
                table = without(table, [entry.number for entry in in_state(table, "closed")])
            self.tables[queue_id] = table


@pytest.mark.parametrize("attributes", [{}, LOG], ids=["queue", "log"])
def test_queue_that_is_too_much_for_a_broker_is_split_once_and_stays_so(attributes: dict[str, str]) -> None:
    busy = BusyCell()
    busy.add(7, 0, 0.8, attributes=attributes)

    (change,) = busy.run(QUEUE_REST_MS + 2 * MINUTE_MS)

    assert isinstance(change, SplitPartition)
    assert busy.run(2 * 60 * MINUTE_MS) == []
    assert max(busy.shares()) < BUSY_SHARE


def test_queue_that_is_quiet_again_is_merged_once() -> None:
    busy = BusyCell()
    busy.add(7, 0, 0.8)
    busy.run(30 * MINUTE_MS)

    busy.demand[7] = 0.1
    assert busy.run(MERGE_MS) == []
    (change,) = busy.run(60 * MINUTE_MS)

    assert isinstance(change, MergePartitions)
    assert len(in_state(busy.tables[7], "open")) == 1


@pytest.mark.uncovered
@pytest.mark.parametrize("seed", range(4))
def test_changes_for_noisy_loads_are_few_and_come_to_rest(seed: int) -> None:
    busy = BusyCell(seed)
    for queue_id in range(10, 16):  # the worst case: all that is hot begins in one journal
        busy.add(queue_id, 0 if queue_id < 13 else queue_id % 3, busy.source.uniform(0.02, 0.35))
    busy.noise = lambda: busy.source.uniform(0.6, 1.4)

    settling = busy.run(90 * MINUTE_MS)
    later = busy.run(90 * MINUTE_MS)

    assert len(settling) <= 3, settling
    assert later == []


@pytest.mark.uncovered
def test_load_that_comes_and_goes_gives_a_queue_few_new_partitions() -> None:
    """Hot for a quarter of an hour and quiet for three quarters: following that would be 3 numbers an hour."""
    busy = BusyCell(5)
    busy.add(7, 0, 0.8)
    busy.noise = lambda: busy.source.uniform(0.8, 1.2)

    for _ in range(12):
        busy.demand[7] = 0.8
        busy.run(15 * MINUTE_MS)
        busy.demand[7] = 0.05
        busy.run(45 * MINUTE_MS)

    assert 3 <= busy.numbers_of(7) - 1 <= NEW_NUMBERS_MAX
    kinds = [type(change) for _, change in busy.changes]
    assert kinds == [SplitPartition, MergePartitions] * (len(kinds) // 2) + [SplitPartition] * (
        len(kinds) % 2
    )


@pytest.mark.uncovered
@pytest.mark.parametrize(
    ("retention_ms", "kinds"),
    [
        (60 * MINUTE_MS, [SplitPartition, MergePartitions] * 6),
        (24 * 60 * MINUTE_MS, [SplitPartition]),
    ],
    ids=["an hour", "a day"],
)
def test_log_whose_load_comes_and_goes_is_changed_no_faster_than_its_retention_empties_it(
    retention_ms: int, kinds: list[type[PlannedChange]]
) -> None:
    busy = BusyCell(5)
    busy.add(7, 0, 0.8, emptied_ms=retention_ms, attributes=LOG)
    busy.noise = lambda: busy.source.uniform(0.8, 1.2)

    for _ in range(12):
        busy.demand[7] = 0.8
        busy.run(15 * MINUTE_MS)
        busy.demand[7] = 0.05
        busy.run(45 * MINUTE_MS)

    assert [type(change) for _, change in busy.changes] == kinds

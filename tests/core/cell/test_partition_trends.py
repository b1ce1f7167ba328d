"""What plans of partitions rest on, as a manager sees it over time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from harness.broker_support import define
from harness.planned_cell import PlannedCell

from quaymaster.core.cell.cell import CellSeen
from quaymaster.core.cell.load import BUSIEST_MAX, BUSY_SHARE, PartitionLoad
from quaymaster.core.cell.partition_plans import PartitionsSeen, QueueSeen
from quaymaster.core.cell.partition_trends import (
    COUNTER_SCALE,
    DAY_MS,
    GAP_MS,
    PartitionTrends,
    why_fixed,
)
from quaymaster.core.values.partition_tables import (
    entries_to_split,
    in_state,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

QUEUE = 7
FIFO = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


@pytest.fixture
def cell() -> PlannedCell:
    """Three brokers that lead a journal each; nothing is left to do."""
    cell = PlannedCell("a", "b", "c")
    cell.run(ms=30_000)
    return cell


def journal_of(cell: PlannedCell, broker: str) -> int:
    (number,) = [number for number, leader in cell.leaders().items() if leader == broker]
    return number


def queue(cell: PlannedCell, **attributes: str) -> QueueDefinition:
    """Return a queue with one partition, in the journal of broker a."""
    definition = replace_definition(define(QUEUE), attributes=attributes)
    (only,) = definition.partitions
    only = msgspec.structs.replace(only, journal_id=journal_of(cell, "a"))
    return replace_definition(definition, partitions=(only,))


def split(definition: QueueDefinition, journals: list[int]) -> QueueDefinition:
    """Return the table once a split is over and its parent is closed."""
    parents, ranges = entries_to_split(definition, 2)
    changed = with_children_open(with_children(definition, parents, ranges, journals))
    return with_state(changed, parents[0].number, "closed")


def load(journal: int, share: float, number: int = 0, **more: Any) -> PartitionLoad:
    return PartitionLoad(more.pop("queue_id", QUEUE), number, journal, share, **more)


def see(cell: PlannedCell, *loads: PartitionLoad, of: str = "a") -> CellSeen:
    """Return what is seen of the cell when a broker names these partitions."""
    seen = cell.see()
    brokers = []
    for broker in seen.brokers:
        named = loads if broker.name == of else ()
        told = msgspec.structs.replace(broker.report.load, partitions=named)
        report = msgspec.structs.replace(broker.report, load=told)
        brokers.append(msgspec.structs.replace(broker, report=report))
    return msgspec.structs.replace(seen, brokers=tuple(brokers))


def taken(trends: PartitionTrends, seen: CellSeen) -> tuple[PartitionsSeen, QueueSeen]:
    found = trends.take(seen)
    (only,) = found.queues
    return found, only


def knowing(definition: QueueDefinition, now_ms: int) -> PartitionTrends:
    trends = PartitionTrends()
    trends.know([definition.queue_id], [definition], now_ms)
    return trends


# Tables


def test_tables_of_the_busiest_queues_are_asked_for_and_then_of_those_that_are_known(
    cell: PlannedCell,
) -> None:
    trends = knowing(queue(cell), 0)
    seen = see(cell, load(1, 0.1, queue_id=8), load(1, 0.3, queue_id=9), load(1, 0.05, 1, queue_id=9))

    assert trends.wanted(seen, 10) == [9, 8, QUEUE]
    assert trends.wanted(seen, 2) == [9, 8]


def test_queue_that_is_gone_or_not_asked_for_any_more_is_forgotten(cell: PlannedCell) -> None:
    trends = knowing(queue(cell), 0)

    trends.know([QUEUE], [], 1)
    assert trends.take(see(cell)).queues == ()

    trends.know([8], [queue(cell)], 1)
    assert trends.take(see(cell)).queues == ()


def test_queue_is_taken_for_changed_when_it_is_seen_first_and_when_its_table_changed(
    cell: PlannedCell,
) -> None:
    definition = queue(cell)
    trends = knowing(definition, 5)
    assert taken(trends, see(cell))[1].changed_ms == 5
    trends.know([QUEUE], [definition], 6)
    assert taken(trends, see(cell))[1].changed_ms == 5

    on_b = journal_of(cell, "b")
    trends.know([QUEUE], [split(definition, [journal_of(cell, "a"), on_b])], 7)
    found, changed = taken(trends, see(cell))

    assert changed.changed_ms == 7
    assert found.journals[journal_of(cell, "a")].changed_ms == found.journals[on_b].changed_ms == 7
    assert found.journals[journal_of(cell, "c")].changed_ms is None
    assert trends.table(QUEUE).table_version > definition.table_version


def test_queue_that_is_to_rest_is_taken_for_changed(cell: PlannedCell) -> None:
    trends = knowing(queue(cell), 5)

    trends.rest(QUEUE, 9)
    trends.rest(QUEUE + 1, 9)

    assert taken(trends, see(cell))[1].changed_ms == 9


def test_numbers_that_a_queue_had_when_it_was_seen_first_count_for_a_day(cell: PlannedCell) -> None:
    definition = split(queue(cell), [0, 1])
    now_ms = cell.now_ms
    trends = knowing(definition, now_ms)
    assert taken(trends, see(cell))[1].new_numbers == 2

    trends.know([QUEUE], [split(definition, [0, 1])], now_ms + 1_000)
    assert taken(trends, see(cell))[1].new_numbers == 4

    cell.now_ms = now_ms + DAY_MS
    assert taken(trends, see(cell))[1].new_numbers == 2
    cell.now_ms += 1_000
    assert taken(trends, see(cell))[1].new_numbers == 0


# Journals


def test_journal_is_busy_since_its_share_went_above_the_bound_at_this_leader(cell: PlannedCell) -> None:
    trends, number = PartitionTrends(), journal_of(cell, "a")

    def busy_since_ms(demand: float) -> int | None:
        cell.demand = {number: demand}
        for _ in range(200):
            cell.see()
            cell.now_ms += 250
            trends.take(cell.see())
        return trends.take(cell.see()).journals[number].busy_since_ms

    assert busy_since_ms(0.3) is None
    since_ms = busy_since_ms(0.9)
    assert since_ms is not None
    assert busy_since_ms(0.9) == since_ms
    assert busy_since_ms(0.3) is None


def test_what_was_so_before_a_gap_counts_no_more(cell: PlannedCell) -> None:
    trends, number = knowing(queue(cell), 0), journal_of(cell, "a")
    cell.demand = {number: 0.9}
    for _ in range(200):
        cell.now_ms += 250
        cell.see()
    first, calm = taken(trends, cell.see())
    assert first.journals[number].busy_since_ms == calm.calm_since_ms == cell.now_ms

    cell.now_ms += GAP_MS
    same, still_calm = taken(trends, cell.see())
    assert same.journals[number].busy_since_ms == still_calm.calm_since_ms == cell.now_ms - GAP_MS

    cell.now_ms += GAP_MS + 1
    later, calm_again = taken(trends, cell.see())
    assert later.journals[number].busy_since_ms == calm_again.calm_since_ms == cell.now_ms


def test_journal_that_is_busy_at_a_new_leader_is_so_since_then(cell: PlannedCell) -> None:
    trends, number = PartitionTrends(), journal_of(cell, "a")
    cell.demand = {number: 0.9}
    for _ in range(100):
        cell.now_ms += 250
        trends.take(cell.see())
    trends._busy[number] = ("b", 5)

    found = trends.take(cell.see()).journals[number]

    assert found.share > BUSY_SHARE
    assert (found.leader, found.busy_since_ms) == ("a", cell.now_ms)


def test_journal_without_a_leader_is_not_planned_with(cell: PlannedCell) -> None:
    trends, number = knowing(queue(cell), 0), journal_of(cell, "a")
    assert taken(trends, see(cell))[1].calm_since_ms is not None
    cell.kill("a")
    cell.now_ms += 2_000

    found, unknown = taken(trends, see(cell, load(number, 0.5)))

    assert number not in found.journals
    assert (unknown.partitions[0].share, unknown.calm_since_ms) == (0.0, None)


# Loads of partitions


def test_share_of_a_partition_is_that_of_its_leaders_time(cell: PlannedCell) -> None:
    number = journal_of(cell, "a")
    cell.demand = {number: 0.6}
    for _ in range(100):
        cell.now_ms += 250
        cell.see()
    seen = see(cell, load(number, 0.15, by_key=(0.5, 2.0)))
    (broker,) = [one for one in seen.brokers if one.name == "a"]
    # The loop's time that is known to be of journals is half of what it had a processor for.
    halves = {journal: share / 2 for journal, share in broker.report.load.journals.items()}
    told = msgspec.structs.replace(broker.report.load, journals=halves)
    report = msgspec.structs.replace(broker.report, load=told)
    brokers = [
        msgspec.structs.replace(one, report=report) if one.name == "a" else one for one in seen.brokers
    ]

    _, found = taken(knowing(queue(cell, **FIFO), 0), msgspec.structs.replace(seen, brokers=tuple(brokers)))

    assert round(found.partitions[0].share, 3) == 0.3
    assert found.partitions[0].by_key == (COUNTER_SCALE // 2, 2 * COUNTER_SCALE)


def test_messages_of_a_standard_queue_are_taken_to_be_of_all_keys(cell: PlannedCell) -> None:
    number = journal_of(cell, "a")
    named = load(number, 0.5, by_key=(9.0, *[0.0] * 15))  # as brokers count what has no group

    _, found = taken(knowing(queue(cell), 0), see(cell, named))

    assert found.partitions[0].by_key == ()


def test_only_the_leader_of_a_journal_tells_of_its_partitions(cell: PlannedCell) -> None:
    number = journal_of(cell, "a")
    cell.demand = {number: 0.6}

    _, found = taken(knowing(queue(cell), 0), see(cell, load(number, 0.5), of="b"))

    assert found.partitions[0].share == 0.0


def test_queue_is_calm_while_its_open_partitions_together_have_little_load(cell: PlannedCell) -> None:
    number = journal_of(cell, "a")
    cell.demand = {number: 0.4}
    for _ in range(200):
        cell.now_ms += 250
        cell.see()
    trends = knowing(queue(cell), 0)

    assert taken(trends, see(cell, load(number, 0.3)))[1].calm_since_ms is None
    assert taken(trends, see(cell, load(number, 0.1)))[1].calm_since_ms == cell.now_ms
    assert taken(trends, see(cell, load(number, 0.3)))[1].calm_since_ms is None


def test_partition_that_a_broker_does_not_name_may_have_as_much_as_the_last_that_it_names(
    cell: PlannedCell,
) -> None:
    number = journal_of(cell, "a")
    cell.demand = {number: 4.0}
    others = [load(number, 0.24, other) for other in range(100, 100 + BUSIEST_MAX)]
    cell.see()

    def is_calm(*named: PartitionLoad) -> bool:
        seen = see(cell, *named)
        brokers = []
        for one in seen.brokers:  # a loop that is busy all the time, all of it for one journal
            report = one.report
            if one.name == "a":
                told = msgspec.structs.replace(report.load, cpu_share=1.0, journals={number: 1.0})
                report = msgspec.structs.replace(report, load=told)
            brokers.append(msgspec.structs.replace(one, report=report))
        changed = msgspec.structs.replace(seen, brokers=tuple(brokers))
        return taken(knowing(queue(cell), 0), changed)[1].calm_since_ms is not None

    assert is_calm(*others[1:])
    assert not is_calm(*others)


# Queues that are left alone


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({}, None),
        ({"RetentionMode": "Log"}, None),
        ({"ReplicationMode": "Peers"}, "its partitions are equal (ReplicationMode)"),
        ({"PartitionsMax": "1"}, "it is to have one partition (PartitionsMax)"),
        ({"PartitionsMax": "2"}, None),
        (
            {"FifoQueue": "true"},
            "its messages are not divided by message group (DeduplicationScope, FifoThroughputLimit)",
        ),
        (FIFO, None),
        (
            {**FIFO, "RetentionMode": "Log"},
            "who reads this log by offsets would lose the order of its message groups",
        ),
    ],
)
def test_kinds_of_queues_that_managers_leave_alone(
    cell: PlannedCell, attributes: dict[str, str], why: str | None
) -> None:
    definition = queue(cell, **attributes)

    assert why_fixed(definition) == why
    assert taken(knowing(definition, 0), see(cell))[1].fixed_why == why


@pytest.mark.parametrize(
    ("attributes", "is_log", "has_bytes_max"),
    [
        ({}, False, False),
        ({"RetentionMode": "Log"}, True, False),
        ({"RetentionMode": "Log", "RetentionBytes": "5000"}, True, True),
    ],
)
def test_of_a_log_it_is_seen_that_it_is_one_and_whether_its_bytes_have_a_bound(
    cell: PlannedCell, attributes: dict[str, str], *, is_log: bool, has_bytes_max: bool
) -> None:
    _, found = taken(knowing(queue(cell, **attributes), 0), see(cell))

    assert (found.is_log, found.has_bytes_max) == (is_log, has_bytes_max)


def test_consumer_groups_are_changed_with_their_logs_and_not_by_themselves(cell: PlannedCell) -> None:
    trends = knowing(replace_definition(queue(cell), group_of=3), 0)

    assert trends.take(see(cell)).queues == ()


@pytest.mark.parametrize("has_sinks", [True, False])
def test_fifo_queue_rests_while_a_sink_commits_or_may_do_so(cell: PlannedCell, *, has_sinks: bool) -> None:
    number = journal_of(cell, "a")
    named = see(cell, load(number, 0.1, has_sinks=has_sinks))

    def is_resting(seen: CellSeen, **attributes: str) -> bool:
        return taken(knowing(queue(cell, **attributes), 0), seen)[1].has_sinks

    assert is_resting(named, **FIFO) is has_sinks
    assert is_resting(named) is False
    assert is_resting(see(cell), **FIFO) is True  # it is not named, so nothing is known of it


def test_fifo_queue_without_a_leader_rests(cell: PlannedCell) -> None:
    trends = knowing(queue(cell, **FIFO), 0)
    cell.kill("a")
    cell.now_ms += 2_000

    assert taken(trends, see(cell))[1].has_sinks is True


def test_all_of_a_table_is_seen_with_the_name_of_its_queue(cell: PlannedCell) -> None:
    a, b = journal_of(cell, "a"), journal_of(cell, "b")
    definition = split(queue(cell, PartitionsMax="5"), [a, b])

    _, found = taken(knowing(definition, 0), see(cell))

    assert [(one.number, one.journal, one.state) for one in found.partitions] == [
        (0, a, "closed"),
        (1, a, "open"),
        (2, b, "open"),
    ]
    assert [one.first_key for one in found.partitions[1:]] == [
        entry.first_key for entry in in_state(definition, "open")
    ]
    assert (found.partitions_max, found.name) == (5, f"{definition.account_id}/{definition.name}")

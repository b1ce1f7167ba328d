"""Those who watch queues are told of each partition that has changed, at the price of what changed."""

from __future__ import annotations

import msgspec
import pytest
from harness.replica_host import Host, message, queue
from harness.steps import calls_of

from quaymaster.core.partition.touched_partitions import TOUCHED_MAX, TouchedPartitions, TouchedRows
from quaymaster.core.structures.orders import standard_order
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.queue_metrics import GonePartition, QueueMetricsRow

FEW, MANY = 100, 100_000


def leader(*queue_ids: int) -> Host:
    host = Host()
    for queue_id in queue_ids:
        host.ask(SetQueue(queue(queue_id)))
    return host


def page_of(host: Host, position: int = 0, count_max: int = 1_000) -> TouchedRows:
    changes = host.states.changes
    return changes.page(position, count_max, 0, host.replica.epoch, host.now_ms)


def row_of(host: Host, queue_id: int = 1) -> QueueMetricsRow:
    (row,) = host.states.changes.rows([queue_id << 16], 0, host.replica.epoch, host.now_ms)
    return row


def test_row_says_how_many_messages_are_in_which_state() -> None:
    host = leader(1)
    host.ask(Send(1, 0, [message(1), message(2), message(3), message(4, delay_ms=60_000)]))
    host.ask(Receive(1, 0, 2, 30_000))
    host.ask(Delete(1, 0, [Receipt(1, 1, 1)]))

    row = row_of(host)

    assert (row.visible, row.in_flight, row.delayed) == (1, 1, 1)
    assert (row.sent, row.deleted, row.epoch) == (4, 1, 1)
    assert row.oldest_sent_ms == 1_000_000


def test_row_and_count_tell_of_the_same_noisy_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is noisy by what it had in flight, though nothing is now."""
    monkeypatch.setattr(standard_order, "BUSY_MIN_MS", 1_000)
    host = leader(1)
    host.ask(Send(1, 0, [message(number, group=1) for number in range(1, 11)]))
    taken = host.ask(Receive(1, 0, 5, 30_000))
    assert isinstance(taken, TakenOutcome)
    host.now_ms += 20_000
    host.ask(Delete(1, 0, [Receipt(one.sequence, 1, 1) for one in taken.taken]))

    counts = host.ask(CountMessages(1))

    assert isinstance(counts, QueueCounts)
    assert (row_of(host).in_flight, row_of(host).noisy_groups, counts.noisy_groups) == (0, 1, 1)
    host.ask(Purge(1))
    emptied = host.ask(CountMessages(1))
    assert isinstance(emptied, QueueCounts)
    assert (row_of(host).noisy_groups, emptied.noisy_groups) == (0, 0)


def test_queue_that_is_not_touched_is_told_of_once() -> None:
    host = leader(1, 2)
    first = page_of(host)
    host.ask(Send(2, 0, [message(1)]))

    second = page_of(host, first.position)

    assert [row.queue_id for row in first.rows] == [1, 2]
    assert [row.queue_id for row in second.rows] == [2]
    assert not second.has_more
    assert page_of(host, second.position).rows == []


def test_messages_that_time_makes_visible_are_told_of_without_a_command() -> None:
    host = leader(1)
    host.ask(Send(1, 0, [message(1), message(2, delay_ms=5_000)]))
    host.ask(Receive(1, 0, 1, 30_000))
    found = page_of(host)

    host.now_ms += 10_000
    delayed = page_of(host, found.position)
    host.now_ms += 30_000
    returned = page_of(host, delayed.position)

    assert [(row.visible, row.in_flight, row.delayed) for row in found.rows] == [(0, 1, 1)]
    assert [(row.visible, row.in_flight, row.delayed) for row in delayed.rows] == [(1, 1, 0)]
    assert [(row.visible, row.in_flight, row.delayed) for row in returned.rows] == [(2, 0, 0)]
    assert page_of(host, returned.position).rows == []


def test_queue_that_is_deleted_before_its_time_comes_is_told_of_as_gone() -> None:
    host = leader(1, 2)
    host.ask(Send(1, 0, [message(1)]))
    host.ask(Receive(1, 0, 1, 30_000))
    found = page_of(host)

    host.ask(ForgetQueue(1))
    host.now_ms += 60_000
    later = page_of(host, found.position)

    assert later.rows == []
    assert later.gone == [GonePartition(1, 0, 0)]


def test_partition_with_unfinished_work_is_told_of_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    host = leader(1, 2)
    changes = host.states.changes
    host.ask(Send(1, 0, [message(0)]))
    host.ask(Receive(1, 0, 1, 30_000))
    found = page_of(host)
    host.ask(Send(1, 0, [message(1)]))
    host.now_ms += 40_000
    host.states.unfinished.works[1] = None  # type: ignore[assignment]  # that there is some is enough

    meanwhile = page_of(host, found.position)
    by_name = changes.rows([1 << 16, 9 << 16], 0, 1, host.now_ms)
    host.states.unfinished.works.clear()
    later = page_of(host, meanwhile.position)

    assert (meanwhile.rows, by_name) == ([], [])
    assert [row.queue_id for row in later.rows] == [1]


def sums_of(host: Host) -> tuple[int, int, int, int, int | None]:
    changes = host.states.changes
    changes.settle(1_000, host.now_ms)
    sums = changes.sums
    return sums.visible, sums.in_flight, sums.delayed, sums.staged, sums.oldest.first()


def test_messages_of_all_queues_are_added_up_as_they_come_and_go() -> None:
    host = leader(1, 2)
    assert sums_of(host) == (0, 0, 0, 0, None)
    host.ask(Send(1, 0, [message(1), message(2), message(3, delay_ms=60_000)]))
    host.ask(Receive(1, 0, 1, 30_000))
    host.ask(Send(2, 0, [message(4)]), after_ms=5_000)
    host.ask(StageMessages(2, 0, "sink", 1, "0", 0, [message(5)]))
    assert sums_of(host) == (2, 1, 1, 1, 1_000)

    host.ask(Delete(1, 0, [Receipt(1, 1, 1)]))
    assert sums_of(host) == (2, 0, 1, 1, 1_000)

    host.ask(ForgetQueue(1))
    assert sums_of(host) == (1, 0, 0, 1, 1_005)

    host.ask(Purge(2))
    assert sums_of(host) == (0, 0, 0, 1, None)


def test_messages_of_a_log_count_in_its_groups_only() -> None:
    host = leader()
    host.ask(SetQueue(queue(1, "log", attributes={"RetentionMode": "Log"})))
    host.ask(Send(1, 0, [message(1), message(2)]))
    assert sums_of(host) == (0, 0, 0, 0, None)
    assert host.states.changes.sums.kept == 2

    host.ask(SetQueue(msgspec.structs.replace(queue(2, "log@a"), group_of=1)))
    host.ask(ResetGroup(2, "earliest"))

    assert sums_of(host) == (2, 0, 0, 0, 1_000)
    assert host.states.changes.sums.kept == 2


def test_follower_has_the_sums_of_what_it_applied() -> None:
    host = leader(1)
    host.ask(Send(1, 0, [message(1), message(2)]))
    host.ask(Receive(1, 0, 1, 30_000))

    states = host.replayed()
    states.changes.settle(1_000, host.now_ms)

    assert (states.changes.sums.visible, states.changes.sums.in_flight) == (1, 1)


def test_no_more_partitions_are_left_unsettled_than_turns_may_leave() -> None:
    host = leader(1)
    partition = host.partition(1)
    keys = range(TOUCHED_MAX + 2_500)
    changes = TouchedPartitions(dict.fromkeys(keys, partition), lambda partition: False)
    changes.touched.update(keys)

    left: list[int] = []
    while len(changes.touched) > TOUCHED_MAX:
        changes.settle_excess(host.now_ms)
        left.append(len(changes.touched))

    assert left == [TOUCHED_MAX + 1_500, TOUCHED_MAX + 500, TOUCHED_MAX]


def test_page_costs_the_same_whatever_the_number_of_queues() -> None:
    steps: list[int] = []
    for count in (FEW, MANY):
        host = leader(1)
        partition = host.partition(1)
        keys = [queue_id << 16 for queue_id in range(1, count + 1)]
        changes = TouchedPartitions(dict.fromkeys(keys, partition), lambda partition: False)
        changes.touched.update(keys)
        position, has_more = 0, True
        while has_more:
            _, _, position, has_more = changes.page(position, 1_000, 0, 1, host.now_ms)
        changes.touched.update(keys[:10])
        found: list[TouchedRows] = []

        steps.append(calls_of(lambda: found.append(changes.page(position, 1_000, 0, 1, host.now_ms))))  # noqa: B023

        assert len(found[0].rows) == 10
    assert steps[0] == steps[1]

"""What an operation costs does not grow with the backlog: index look-ups and snapshot bytes are counted, not time."""

from __future__ import annotations

import random

import pytest
from harness.replica_host import queue, snapshot_of

from quaymaster.core.partition import partition_state
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.structures.orders.index import IndexEntry, MemoryChunks, SequenceIndex
from quaymaster.core.structures.orders.standard_order import SCAN_MAX

pytestmark = pytest.mark.uncovered

NOW_MS = 1_000_000
BACKLOG = 200_000


class CountingIndex(SequenceIndex):
    """Counts how often anybody asks about a message."""

    lookups = 0

    def entry(self, sequence: int) -> IndexEntry:
        CountingIndex.lookups += 1
        return super().entry(sequence)

    def offset_and_sent_ms(self, sequence: int) -> tuple[int, int]:
        CountingIndex.lookups += 1
        return super().offset_and_sent_ms(sequence)

    def sent_ms(self, sequence: int) -> int:
        CountingIndex.lookups += 1
        return super().sent_ms(sequence)

    def due_ms(self, sequence: int) -> int:
        CountingIndex.lookups += 1
        return super().due_ms(sequence)

    def group(self, sequence: int) -> int:
        CountingIndex.lookups += 1
        return super().group(sequence)


class CountingChunks(MemoryChunks):
    reads = 0

    def read(self, number: int, tag: bytes) -> bytes:
        CountingChunks.reads += 1
        return super().read(number, tag)


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_state, "SequenceIndex", CountingIndex)
    monkeypatch.setattr(CountingIndex, "lookups", 0)
    monkeypatch.setattr(CountingChunks, "reads", 0)


def partition(name: str = "jobs", **attributes: int) -> Partition:
    return Partition(queue(1, name, attributes=attributes), 0, CountingChunks(), retry_window_ms=120_000)


def send(to: Partition, count: int, *, own_delay_ms: int = 0, group: int = 0, now_ms: int = NOW_MS) -> None:
    delay_ms = own_delay_ms or to.definition.delay_ms
    for sequence in range(to.next_sequence, to.next_sequence + count):
        to.apply_send(sequence, sequence, now_ms, delay_ms, own_delay_ms > 0, group)


def receive(of: Partition, count_max: int = 10, *, now_ms: int = NOW_MS) -> list[int]:
    of.advance(now_ms)
    taken = of.take_visible(count_max, now_ms)
    messages = [
        (sequence, row.delivery_count + 1 if (row := of.returned.get(sequence)) else 1) for sequence in taken
    ]
    if messages:
        of.apply_receive(messages, now_ms, 30_000, 1, None, taken=True)
    return taken


def lookups_of_one_round(of: Partition) -> int:
    """Receive ten, return five of them, delete five, count."""
    before = CountingIndex.lookups
    taken = receive(of)
    assert len(taken) == 10
    for sequence in taken[:5]:
        of.apply_change_visibility(sequence, NOW_MS, 0, 1, 1, changed=True)
    of.apply_delete(taken[5:], NOW_MS)
    counts_of(of, NOW_MS)
    return CountingIndex.lookups - before


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_cost_of_a_round_is_the_same_before_a_deep_backlog(name: str) -> None:
    costs = []

    for backlog in (100, BACKLOG):
        found = partition(name)
        for start in range(0, backlog, 10):
            send(found, 10, group=start // 10 + 1 if name.endswith(".fifo") else 0)
        lookups_of_one_round(found)
        costs.append(lookups_of_one_round(found))

    assert costs[1] <= costs[0] + 5


def test_blocked_group_with_a_deep_backlog_hides_no_other_and_takes_little_memory() -> None:
    found = partition("jobs.fifo")
    send(found, BACKLOG, group=7)
    send(found, 1, group=8)
    assert receive(found, 1) == [1]

    receives = 1
    while not (taken := receive(found)):
        assert found.order.unfinished
        receives += 1

    assert taken == [BACKLOG + 1]
    assert receives <= BACKLOG // SCAN_MAX + 2
    assert CountingIndex.lookups <= 4 * BACKLOG
    before = CountingIndex.lookups
    send(found, 1, group=9)
    assert receive(found) == [BACKLOG + 2]
    assert CountingIndex.lookups - before < 20  # what was passed over is never looked at again
    without_index = len(snapshot_of(found)) - len(found.index.to_bytes())
    assert without_index < 10_000


def test_million_delayed_messages_cost_little_and_are_counted_at_once() -> None:
    found = partition()
    for part in range(10):
        send(found, 100_000, own_delay_ms=60_000 + part * 60_000)

    before = CountingIndex.lookups
    assert counts_of(found, NOW_MS).delayed == 1_000_000
    assert receive(found) == []
    while found.order.unfinished:
        assert receive(found) == []
    assert CountingIndex.lookups - before < 100
    assert len(snapshot_of(found)) - len(found.index.to_bytes()) < 50_000
    assert found.next_change_ms() == NOW_MS + 60_000
    assert receive(found, now_ms=NOW_MS + 60_000) == list(range(1, 11))
    assert counts_of(found, NOW_MS + 60_000).delayed == 900_000


def test_backlog_that_waits_for_the_queues_delay_is_counted_by_looking_at_few() -> None:
    found = partition(DelaySeconds=900)
    for part in range(20):
        send(found, BACKLOG // 20, now_ms=NOW_MS + part * 1_000)

    before = CountingIndex.lookups
    assert counts_of(found, NOW_MS + 909_999).delayed == BACKLOG // 2
    found.apply_definition(queue(1, "jobs", revision=2), NOW_MS)
    send(found, 1)
    assert counts_of(found, NOW_MS + 909_999).delayed == BACKLOG // 2
    assert CountingIndex.lookups - before < 200
    assert len(snapshot_of(found)) - len(found.index.to_bytes()) < 1_000


def test_deleting_in_reverse_order_then_the_head_leaves_nothing_behind() -> None:
    found = partition()
    send(found, BACKLOG)
    while receive(found):
        pass

    for start in range(BACKLOG, 1, -10):
        found.apply_delete(range(start, max(start - 10, 1), -1), NOW_MS)
    assert (found.head, found.alive) == (1, 1)
    before = CountingIndex.lookups
    found.apply_delete([1], NOW_MS)

    assert (found.head, found.alive, len(found.deleted)) == (BACKLOG + 1, 0, 0)
    assert CountingIndex.lookups - before < 5
    assert found.index.chunk_numbers() == []


def test_one_stuck_message_before_very_many_deleted_ones_costs_next_to_nothing() -> None:
    found = partition()
    send(found, BACKLOG)
    found.apply_delete(range(2, BACKLOG - 9), NOW_MS)

    before = CountingIndex.lookups
    assert receive(found, 1) == [1]
    taken = receive(found)
    while len(taken) < 10 and found.order.unfinished:
        taken += receive(found, 10 - len(taken))
    assert taken == list(range(BACKLOG - 9, BACKLOG + 1))
    assert CountingIndex.lookups - before < 200
    assert len(snapshot_of(found)) < 150_000
    found.apply_delete([1], NOW_MS)
    assert found.head == BACKLOG - 9


def test_backlog_read_along_loads_each_chunk_once() -> None:
    found = partition()
    send(found, BACKLOG)

    while taken := receive(found):
        found.apply_delete(taken, NOW_MS)

    assert CountingChunks.reads <= BACKLOG // 4_096 + 2
    assert found.alive == 0


def test_returned_messages_all_over_a_backlog_do_not_grow_the_cost_of_others() -> None:
    found = partition()
    send(found, BACKLOG)
    taken = [sequence for _ in range(1_000) for sequence in receive(found)]
    random.Random(5).shuffle(taken)
    for sequence in taken:
        found.apply_change_visibility(sequence, NOW_MS, 0, 1, 1, changed=True)

    before = CountingIndex.lookups
    for _ in range(100):
        assert len(receive(found)) == 10

    assert CountingIndex.lookups - before <= 100 * 10 * 3

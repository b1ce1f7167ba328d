"""Leaders count what happens to the messages of each partition: for standard, FIFO, log and partitioned queues."""

from __future__ import annotations

import msgspec
from harness.replica_host import Host, arn, far_queue, identity, message, queue

from quaymaster.core.partition.partition_totals import WAITS_BOUNDS_MS, totals_of
from quaymaster.core.values.commands.decided import ExpireMessages, TakenOutcome
from quaymaster.core.values.commands.messages import Delete, NewMessage, Purge, Receipt, Receive, Send, Watch
from quaymaster.core.values.commands.moves import EndMoves, MoveBegun, MoveMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.transactions import CommitTransaction, StageCount, StageMessages
from quaymaster.core.values.queue_metrics import QueueMetricsRow

JOBS, DEAD, LOG, GROUP = 1, 2, 3, 4


def leader(**attributes: object) -> Host:
    host = Host()
    host.ask(SetQueue(queue(DEAD, "dead")))
    host.ask(SetQueue(queue(JOBS, "jobs", attributes=attributes)))
    return host


def row_of(host: Host, queue_id: int = JOBS) -> QueueMetricsRow:
    (row,) = host.states.changes.rows([queue_id << 16], 0, host.replica.epoch, host.now_ms)
    return row


def sized(number: int, size_bytes: int) -> NewMessage:
    return msgspec.structs.replace(message(number), size_bytes=size_bytes)


def test_messages_are_counted_from_their_sending_to_their_deletion() -> None:
    host = leader()
    host.ask(Send(JOBS, 0, [sized(1, 100), sized(2, 50), sized(3, 7)]))
    host.ask(Receive(JOBS, 0, 2, 30_000), after_ms=1_500)
    host.ask(Receive(JOBS, 0, 2, 30_000), after_ms=500)
    host.ask(Delete(JOBS, 0, [Receipt(1, 1, 1), Receipt(2, 1, 1)]))

    row = row_of(host)

    assert (row.sent, row.sent_bytes, row.received, row.deleted) == (3, 157, 3, 2)
    assert row.wait_ms == 1_500 + 1_500 + 2_000
    assert host.states.waits.sum_ms == row.wait_ms
    assert sum(host.states.waits.counts) == 3


def test_only_the_first_delivery_ends_the_wait_of_a_message() -> None:
    host = leader()
    host.ask(Send(JOBS, 0, [message(1)]))
    host.ask(Receive(JOBS, 0, 1, 1_000), after_ms=100)
    host.ask(Receive(JOBS, 0, 1, 1_000), after_ms=60_000)

    row = row_of(host)

    assert (row.received, row.wait_ms) == (2, 100)


def test_message_of_an_older_front_end_counts_as_it_is_stored() -> None:
    host = leader()
    host.ask(Send(JOBS, 0, [message(1)]))

    assert row_of(host).sent_bytes == len(message(1).payload)


def test_sends_that_are_stored_already_are_counted_apart() -> None:
    host = leader()
    host.ask(Send(JOBS, 0, [message(1, retry=b"r" * 16)]))
    before = host.states.changes.page(0, 10, 0, 1, host.now_ms).position

    host.ask(Send(JOBS, 0, [message(2, retry=b"r" * 16)]))
    found = host.states.changes.page(before, 10, 0, 1, host.now_ms)

    assert [(row.sent, row.duplicate) for row in found.rows] == [(1, 1)], (
        "it is told of, though nothing changed"
    )


def test_duplicates_of_a_sealed_partition_and_of_transactions_count() -> None:
    host = leader()
    partition = host.partition(JOBS)
    host.ask(Send(JOBS, 0, [message(1, retry=b"r" * 16)]))
    host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(5), message(6, dedup=b"d" * 16), message(7)]))
    host.ask(Send(JOBS, 0, [message(8, dedup=b"d" * 16)]))
    host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 3)]))

    partition.apply_seal(host.now_ms)
    host.ask(Send(JOBS, 0, [message(2, retry=b"r" * 16)]))

    row = row_of(host)
    assert (row.sent, row.duplicate) == (4, 2)
    staged_bytes = 2 * len(message(5).payload)
    sent_bytes = len(message(1, retry=b"r" * 16).payload) + len(message(8, dedup=b"d" * 16).payload)
    assert row.sent_bytes == staged_bytes + sent_bytes


def test_committed_transaction_without_duplicates_counts_its_bytes() -> None:
    host = leader()
    host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(5), message(6)]))
    host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 2)]))

    assert row_of(host).sent_bytes == 2 * len(message(5).payload)


def test_replay_of_transactions_counts_nothing() -> None:
    host = leader()
    host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(5), message(6, dedup=b"d" * 16)]))
    host.ask(Send(JOBS, 0, [message(8, dedup=b"d" * 16)]))
    host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 2)]))

    assert host.replayed().partition(JOBS, 0).totals is None


def test_dead_letters_count_where_they_died_and_redriven_messages_do_not() -> None:
    host = leader(RedrivePolicy=f'{{"deadLetterTargetArn": "{arn("dead")}", "maxReceiveCount": 1}}')
    host.ask(Send(JOBS, 0, [message(1)]))
    host.ask(Receive(JOBS, 0, 1, 1_000))
    taken = host.ask(Receive(JOBS, 0, 1, 1_000), after_ms=60_000)
    assert isinstance(taken, TakenOutcome)
    (letter,) = taken.dead_letters

    payload = message(1).payload
    host.ask(MoveMessage(JOBS, 0, letter.sequence, DEAD, 2, 0, payload, arn("jobs")))

    assert (row_of(host).dead_lettered, row_of(host, DEAD).sent) == (1, 0)
    assert row_of(host, DEAD).visible == 1


def test_dead_letters_that_arrived_in_another_journal_count() -> None:
    host = leader(RedrivePolicy=f'{{"deadLetterTargetArn": "{arn("far")}", "maxReceiveCount": 1}}')
    far = far_queue(9, "far", 7)
    source = host.partition(JOBS)
    host.ask(Send(JOBS, 0, [message(1)]))
    (sequence,) = source.take_visible(1, host.now_ms)
    source.moving[sequence] = 9

    begun = host.ask(MoveMessage(JOBS, 0, sequence, 9, 2, 0, message(1).payload, arn("jobs"), target=far))
    assert isinstance(begun, MoveBegun)
    assert row_of(host).dead_lettered == 0
    host.ask(EndMoves(JOBS, 0, begun.target_key, [begun.number], []))

    assert row_of(host).dead_lettered == 1


def test_expired_messages_count() -> None:
    host = leader(MessageRetentionPeriod=60)
    host.ask(Send(JOBS, 0, [message(1), message(2)]))
    host.ask(ExpireMessages(JOBS, 0), after_ms=90_000)

    assert row_of(host).expired == 2


def test_receives_without_messages_are_counted_but_for_parts_of_others_and_watches() -> None:
    host = leader()
    states, epoch = host.states, host.replica.epoch
    found = states.changes.page(0, 10, 0, epoch, host.now_ms)

    states.count_empty(Receive(JOBS, 0, 1), epoch)
    states.count_empty(Receive(JOBS, 0, 1, is_part=True), epoch)
    states.count_empty(Receive(99, 0, 1), epoch)
    states.count_empty_before(Watch(JOBS, 0, 0, empty_before=3), epoch)

    later = states.changes.page(found.position, 10, 0, epoch, host.now_ms)
    assert [row.empty_receives for row in later.rows] == [4]


def test_log_counts_sends_and_each_group_its_deliveries() -> None:
    host = Host()
    host.ask(SetQueue(queue(LOG, "log", attributes={"RetentionMode": "Log"})))
    host.ask(SetQueue(msgspec.structs.replace(queue(GROUP, "log@a"), group_of=LOG)))
    host.ask(Send(LOG, 0, [sized(1, 10), sized(2, 20)]))
    host.ask(Receive(GROUP, 0, 10, 30_000), after_ms=40)

    log, group = row_of(host, LOG), row_of(host, GROUP)

    assert (log.sent, log.sent_bytes, log.received) == (2, 30, 0)
    assert (group.sent, group.sent_bytes, group.received, group.wait_ms) == (0, 0, 2, 80)


def test_fifo_queue_counts_duplicates_and_groups_with_messages_in_flight() -> None:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs.fifo")))
    host.ask(
        Send(JOBS, 0, [message(number, group=number % 3 + 1, dedup=identity(number)) for number in range(6)])
    )
    host.ask(Send(JOBS, 0, [message(9, group=1, dedup=identity(0))]))
    attempt = Receive(JOBS, 0, 2, 30_000, attempt=b"a" * 16)
    host.ask(attempt, after_ms=10)
    host.ask(attempt)
    host.ask(Receive(JOBS, 0, 1, 30_000))

    row = row_of(host)

    assert (row.sent, row.duplicate) == (6, 1)
    assert (row.received, row.wait_ms) == (5, 30), (
        "a repeated attempt delivers once more, and waited for nothing"
    )
    assert row.groups_in_flight == 2
    host.ask(Purge(JOBS))
    assert row_of(host).groups_in_flight == 0


def test_counters_of_another_epoch_begin_at_0_but_those_of_the_journal() -> None:
    host = leader()
    host.ask(Send(JOBS, 0, [message(1)]))
    host.ask(Receive(JOBS, 0, 1, 30_000), after_ms=10)
    later = Host(batches=host.batches, states=host.states, epoch=2, now_ms=host.now_ms)

    row = row_of(later)

    assert (row.sent, row.received, row.wait_ms) == (1, 0, 0)
    totals = totals_of(later.partition(JOBS), 2)
    assert totals.epoch == 2
    assert totals_of(later.partition(JOBS), 2) is totals


def test_waits_are_counted_by_bucket() -> None:
    host = leader()
    for wait_ms in (0, 1, 2, 3, 1_000_000):
        host.ask(Send(JOBS, 0, [message(1)]))
        host.ask(Receive(JOBS, 0, 1, 43_200_000), after_ms=wait_ms)

    waits = host.states.waits
    assert waits.counts[:3] == [2, 1, 1]
    assert waits.counts[WAITS_BOUNDS_MS.index(3_600_000)] == 1
    assert len(waits.counts) == len(WAITS_BOUNDS_MS) + 1
    assert waits.sum_ms == 1_000_006

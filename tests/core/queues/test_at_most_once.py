"""AtMostOnce queues: a receive takes its messages out of the queue, and delivers only what it has taken out."""

from __future__ import annotations

from typing import cast

import pytest
from harness.replica_host import Host, message, queue, records_of, replay

from quaymaster.core.queues.record_payloads import BY_RECEIVE
from quaymaster.core.values.commands.decided import Consume, Consumed, TakenOutcome
from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    EntriesOutcome,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import replace_definition
from quaymaster.core.values.records import RecordType

JOBS, LOG, GROUP = 1, 2, 3


def started(name: str = "jobs", *, messages: int = 3) -> Host:
    host = Host()
    host.ask(SetQueue(queue(JOBS, name, attributes={"DeliveryGuarantee": "AtMostOnce"})))
    host.ask(Send(JOBS, 0, [message(number, group=7) for number in range(1, messages + 1)]))
    return host


def take(host: Host, count: int = 1, *, queue_id: int = JOBS) -> list[int]:
    outcome = cast(TakenOutcome, host.ask(Receive(queue_id, 0, count, takes_for_good=True)))
    assert outcome.is_to_consume or not outcome.taken
    return [taken.sequence for taken in outcome.taken]


def consume(host: Host, *sequences: int, queue_id: int = JOBS) -> list[int]:
    return cast(Consumed, host.ask(Consume(queue_id, 0, list(sequences)))).sequences


def counts(host: Host) -> QueueCounts:
    return cast(QueueCounts, host.ask(CountMessages(JOBS)))


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_what_a_receive_took_is_gone_once_it_is_consumed(name: str) -> None:
    host = started(name)

    taken = take(host, 2)
    assert host.partition(JOBS).alive == 3
    assert consume(host, *taken) == taken

    assert host.partition(JOBS).alive == 1
    assert take(host, 10) == [3]


def test_a_consumption_waits_for_its_commit_and_says_that_a_receive_made_it() -> None:
    host = started()
    (taken,) = take(host)
    host.is_slow = True

    token = host.propose(Consume(JOBS, 0, [taken]))

    assert token not in host.replies
    host.make_durable()
    assert host.replies[token] == Consumed([taken])
    (row,) = [row for row, _, _ in records_of(host.batches) if row.type == RecordType.DELETE]
    assert row.flags == BY_RECEIVE


def test_no_message_is_consumed_twice() -> None:
    host = started()
    (taken,) = take(host)

    assert consume(host, taken) == [taken]
    assert consume(host, taken) == []


def test_a_message_that_nobody_took_is_not_consumed() -> None:
    assert consume(started(), 1) == []


def test_messages_of_a_fifo_group_are_taken_in_their_order_and_one_receive_at_a_time() -> None:
    host = started("jobs.fifo")
    (first,) = take(host)

    assert take(host) == []
    consume(host, first)
    assert host.awake
    assert take(host) == [2]


def test_a_leader_that_lost_what_it_had_set_aside_gives_it_again() -> None:
    host = started()
    take(host, 2)

    later = Host(batches=host.batches, states=replay(host.batches), epoch=2, now_ms=host.now_ms)

    assert take(later, 10) == [1, 2, 3]


def test_replicas_agree_on_what_was_consumed_and_count_it_as_no_deletion() -> None:
    host = started()
    consume(host, *take(host, 2))

    followed = replay(host.batches)

    assert followed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert counts(host).deletions == followed.partition(JOBS, 0).deletions == 0
    totals = host.partition(JOBS).totals
    assert totals is not None
    assert totals.received == 2


def test_a_message_that_was_purged_meanwhile_is_not_delivered() -> None:
    host = started()
    taken = take(host, 3)
    host.ask(Purge(JOBS))

    assert consume(host, *taken) == []


def test_what_is_said_of_its_receipts_is_what_is_said_of_deleted_messages() -> None:
    host = started()
    (taken,) = take(host)
    consume(host, taken)
    receipt = Receipt(taken, 1, 1)

    deleted = cast(EntriesOutcome, host.ask(Delete(JOBS, 0, [receipt])))
    changed = cast(EntriesOutcome, host.ask(ChangeVisibility(JOBS, 0, [receipt], [0])))

    assert deleted == EntriesOutcome([None], 1)
    assert "not available for visibility timeout change" in str(changed.errors[0])


def test_a_message_that_came_from_another_queue_keeps_its_count() -> None:
    host = started(messages=0)
    host.partition(JOBS).apply_move_in(1, 5, host.now_ms, host.now_ms, 4, 77, 0)

    outcome = cast(TakenOutcome, host.ask(Receive(JOBS, 0, 1, takes_for_good=True)))

    assert [(taken.delivery_count, taken.first_receive_ms) for taken in outcome.taken] == [(5, 77)]
    assert consume(host, 1) == [1]


def test_each_consumer_group_of_a_log_takes_each_message_once() -> None:
    host = Host()
    log = queue(LOG, "log", attributes={"RetentionMode": "Log", "DeliveryGuarantee": "AtMostOnce"})
    host.ask(SetQueue(log))
    host.ask(SetQueue(replace_definition(queue(GROUP, "log@a"), group_of=LOG)))
    host.ask(Send(LOG, 0, [message(1)]))

    assert consume(host, *take(host, queue_id=GROUP), queue_id=GROUP) == [1]
    assert take(host, queue_id=GROUP) == []

    host.ask(ResetGroup(GROUP, "earliest"))
    assert take(host, queue_id=GROUP) == [1]
    assert host.states.messages_gone == 0


def test_a_queue_that_was_deleted_meanwhile_delivers_nothing() -> None:
    with pytest.raises(QueueDoesNotExist):
        started().ask(Consume(9, 0, [1]))


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_leader_that_dies_with_its_answer_loses_messages_only_if_they_are_gone(is_committed: bool) -> None:
    host = started()
    (taken,) = take(host)
    known = len(host.batches)
    consume(host, taken)
    batches = host.batches if is_committed else host.batches[:known]

    later = Host(batches=batches, states=replay(batches), epoch=2, now_ms=host.now_ms)

    assert take(later, 10) == ([2, 3] if is_committed else [1, 2, 3])
    assert consume(later, taken) == ([] if is_committed else [1])

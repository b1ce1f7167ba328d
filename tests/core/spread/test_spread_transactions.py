"""Transactions of queues of several partitions: the partition that knows a batch handles it."""

from __future__ import annotations

from quaymaster.core.spread.transactions import SpreadTransaction
from quaymaster.core.values.commands.messages import Elsewhere
from quaymaster.core.values.commands.transactions import AbortedOutcome, AbortTransaction, StageMessages
from quaymaster.core.values.errors import NotLeader, Unreachable, UnsupportedOperation

from .support import HIGH, LOW, entry, queue

ABORT = AbortTransaction(7, -2, "sink", 1)


def test_partitions_that_do_not_know_the_batch_are_passed_by_oldest_first() -> None:
    table = queue(entry(0, "drained"), entry(1, "closing"), entry(2, "new"), entry(3))
    spread = SpreadTransaction(table, ABORT)
    asked = []
    parts = spread.begin()
    while parts:
        (part,) = parts
        asked.append(part.number)
        assert part.command == AbortTransaction(7, part.number, "sink", 1)
        parts = spread.on_outcome(part, AbortedOutcome(True) if part.number == 3 else Elsewhere(table), table)

    assert asked == [0, 1, 3]
    assert spread.result == AbortedOutcome(True)


def test_a_fifo_queue_with_several_open_partitions_takes_no_new_transaction_and_answers_for_old_ones() -> (
    None
):
    """The messages of one would be in the partition of the sink, and those that are sent in that of their group."""
    table = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    stage = StageMessages(7, -2, "sink", 1, "stage", 0, [])
    spread = SpreadTransaction(table, stage)
    (asked,) = spread.begin()
    assert asked.number == 0

    assert spread.on_outcome(asked, Elsewhere(table), table) == []
    assert isinstance(spread.result, UnsupportedOperation)
    assert SpreadTransaction(queue(entry(0, "closed"), entry(3), is_fifo=True), stage).begin()
    commit = SpreadTransaction(queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True), ABORT)
    assert commit.begin()


def test_a_batch_of_a_fifo_queue_begins_once_each_of_the_partitions_that_are_merged_is_sealed() -> None:
    """Until then messages of its groups are sent there, and would be in front of it though they were sent later."""
    table = queue(
        entry(1, "closed", keys=LOW),
        entry(2, "closing", keys=LOW),
        entry(3, "closing", keys=HIGH),
        entry(4),
        is_fifo=True,
    )
    stage = StageMessages(7, -2, "sink", 1, "stage", 0, [])
    spread = SpreadTransaction(table, stage)
    asked = []
    parts = spread.begin()
    while parts:
        (part,) = parts
        asked.append(part.number)
        parts = [] if part.number == 4 else spread.on_outcome(part, Elsewhere(table), table)

    assert asked == [2, 3, 4], "the key of the sink is among the higher ones"
    (aborted,) = SpreadTransaction(table, ABORT).begin()
    assert aborted.number == 3
    (staged,) = SpreadTransaction(queue(*table.partitions), stage).begin()
    assert staged.number == 3, "a standard queue has no order to keep"


def test_an_error_is_the_answer() -> None:
    table = queue(entry(1, "closing"), entry(3))
    spread = SpreadTransaction(table, ABORT)
    (part,) = spread.begin()
    error = NotLeader()

    assert spread.on_outcome(part, error, table) == []
    assert spread.result is error


def test_a_partition_that_is_not_listed_any_more_is_passed_by() -> None:
    spread = SpreadTransaction(queue(entry(1, "closed"), entry(3)), ABORT)
    (part,) = spread.begin()

    (then,) = spread.again(part, queue(entry(3), version=8))

    assert then.number == 3


def test_where_no_partition_takes_the_batch_nothing_is_promised() -> None:
    table = queue(entry(1, "closing"))
    spread = SpreadTransaction(table, ABORT)
    (part,) = spread.begin()

    assert spread.on_outcome(part, Elsewhere(table), table) == []
    assert isinstance(spread.result, Unreachable)


def test_a_partition_that_the_newer_table_still_lists_is_asked_again() -> None:
    spread = SpreadTransaction(queue(entry(1, "closed"), entry(3)), ABORT)
    (part,) = spread.begin()

    (again,) = spread.again(part, queue(entry(1, "closed"), entry(3), version=8))

    assert again.number == 1

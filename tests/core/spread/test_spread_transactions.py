"""Transactions of queues of several partitions: the partition that knows a batch handles it."""

from __future__ import annotations

from quaymaster.core.spread.transactions import SpreadTransaction
from quaymaster.core.values.commands import AbortedOutcome, AbortTransaction, Elsewhere
from quaymaster.core.values.errors import NotLeader, Unreachable

from .support import entry, queue

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

"""A completion goes to the partition of its receipts."""

from __future__ import annotations

from quaymaster.core.queues.completions import GONE
from quaymaster.core.spread.completions import SpreadCompletion
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome
from quaymaster.core.values.commands.messages import Receipt

from .support import HIGH, LOW, entry, queue

TABLE = queue(entry(0, "drained"), entry(2, "closed"), entry(3, keys=LOW), entry(4, keys=HIGH))


def complete(number: int) -> Complete:
    return Complete(7, number, [Receipt(1, 3, 1), Receipt(2, 3, 1)], [], 9)


def test_a_drained_partition_is_asked_because_it_knows_what_it_has_done() -> None:
    for number in (0, 2, 3):
        spread = SpreadCompletion(TABLE, complete(number))
        (part,) = spread.begin()

        assert (part.number, part.command) == (number, complete(number))
        done = CompleteOutcome([None, None])
        assert spread.on_outcome(part, done, TABLE) == []
        assert spread.result == done


def test_messages_of_a_partition_that_is_not_listed_any_more_are_gone() -> None:
    spread = SpreadCompletion(TABLE, complete(1))

    assert spread.begin() == []

    assert isinstance(spread.result, CompleteOutcome)
    assert [GONE in str(error) for error in spread.result.errors] == [True, True]


def test_a_number_that_only_a_newer_table_has_is_sought_by_that() -> None:
    spread = SpreadCompletion(TABLE, complete(5))
    (unknown,) = spread.begin()
    assert unknown.number == 5

    (again,) = spread.again(unknown, queue(entry(3, keys=LOW), entry(5, keys=HIGH), version=9))

    assert again.command == complete(5)
    assert spread.result is None

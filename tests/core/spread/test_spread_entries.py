"""Deletes and changes of visibility by handles of several partitions."""

from __future__ import annotations

from quaymaster.core.spread.entries import HandledEntries, SpreadEntries, handled
from quaymaster.core.values.commands.messages import ChangeVisibility, Delete, EntriesOutcome, Receipt
from quaymaster.core.values.errors import InvalidParameterValue, NotLeader, QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import replace_definition

from .support import HIGH, LOW, entry, queue

TABLE = queue(entry(0, "drained"), entry(2, "closed"), entry(3, keys=LOW), entry(4, keys=HIGH))
RECEIPTS = [Receipt(number, 3, 1) for number in range(5)]


def test_each_entry_goes_to_its_own_partition() -> None:
    spread = SpreadEntries(TABLE, HandledEntries(7, [3, 2, 3], RECEIPTS[:3]))
    first, second = spread.begin()

    assert first.command == Delete(7, 3, [RECEIPTS[0], RECEIPTS[2]])
    assert second.command == Delete(7, 2, [RECEIPTS[1]])
    error = InvalidParameterValue("expired")
    spread.on_outcome(first, EntriesOutcome([None, error], 1), TABLE)
    assert spread.result is None
    spread.on_outcome(second, EntriesOutcome([None], 0), TABLE)
    assert spread.result == EntriesOutcome([None, None, error], 1)


def test_changes_of_visibility_take_their_timeouts_along() -> None:
    spread = SpreadEntries(TABLE, HandledEntries(7, [4, 3], RECEIPTS[:2], [10, 20]))
    first, second = spread.begin()

    assert first.command == ChangeVisibility(7, 4, [RECEIPTS[0]], [10])
    assert second.command == ChangeVisibility(7, 3, [RECEIPTS[1]], [20])


def test_a_command_to_one_partition_is_spread_as_one_to_several() -> None:
    assert handled(Delete(7, 3, RECEIPTS[:2])) == HandledEntries(7, [3, 3], RECEIPTS[:2])
    assert handled(ChangeVisibility(7, 3, RECEIPTS[:1], [10])) == HandledEntries(7, [3], RECEIPTS[:1], [10])


def test_a_message_of_a_drained_or_removed_partition_is_gone() -> None:
    deleted = SpreadEntries(TABLE, HandledEntries(7, [0, 1], RECEIPTS[:2]))
    changed = SpreadEntries(TABLE, HandledEntries(7, [0, 1], RECEIPTS[:2], [10, 20]))

    assert (deleted.begin(), changed.begin()) == ([], [])

    assert deleted.result == EntriesOutcome([None, None], 2)
    outcome = changed.result
    assert isinstance(outcome, EntriesOutcome)
    assert all("not available for visibility timeout change" in str(error) for error in outcome.errors)


def test_a_number_that_only_a_newer_table_has_is_sought_by_that() -> None:
    spread = SpreadEntries(TABLE, HandledEntries(7, [5], RECEIPTS[:1]))
    (unknown,) = spread.begin()
    assert unknown.command == Delete(7, 5, RECEIPTS[:1])

    (again,) = spread.again(unknown, queue(entry(3, keys=LOW), entry(4, keys=HIGH), version=9))
    assert again.number == 5
    (found,) = spread.again(again, queue(entry(3, "closed"), entry(4, "closed"), entry(5), version=10))
    spread.on_outcome(found, EntriesOutcome([None]), TABLE)

    assert spread.result == EntriesOutcome([None])


def test_entries_of_a_partition_without_a_leader_fail_alone() -> None:
    spread = SpreadEntries(TABLE, HandledEntries(7, [3, 4], RECEIPTS[:2]))
    first, second = spread.begin()
    error = NotLeader()

    spread.on_outcome(first, error, TABLE)
    spread.on_outcome(second, EntriesOutcome([None]), TABLE)

    assert spread.result == EntriesOutcome([error, None])


def test_a_queue_that_is_gone_is_told_as_such() -> None:
    spread = SpreadEntries(TABLE, HandledEntries(7, [3], RECEIPTS[:1]))
    (part,) = spread.begin()

    spread.on_outcome(part, QueueDoesNotExist(), TABLE)

    assert isinstance(spread.result, QueueDoesNotExist)


def test_a_partition_that_was_not_found_is_sought_again_by_the_newer_table() -> None:
    spread = SpreadEntries(TABLE, HandledEntries(7, [2, 3], RECEIPTS[:2]))
    second, third = spread.begin()

    newer = queue(entry(3, keys=LOW), entry(4, keys=HIGH), version=9)
    assert spread.again(second, newer) == []
    (again,) = spread.again(third, newer)
    spread.on_outcome(again, EntriesOutcome([None]), newer)

    assert spread.result == EntriesOutcome([None, None], 1)


def test_an_exactly_once_queue_asks_a_drained_partition_and_refuses_for_a_removed_one() -> None:
    table = replace_definition(TABLE, attributes={"DeliveryGuarantee": "ExactlyOnce"})
    deleted = SpreadEntries(table, HandledEntries(7, [0, 1], RECEIPTS[:2]))
    changed = SpreadEntries(table, HandledEntries(7, [1], RECEIPTS[:1], [10]))

    (drained,) = deleted.begin()
    assert changed.begin() == []

    assert drained.command == Delete(7, 0, [RECEIPTS[0]])
    deleted.on_outcome(drained, EntriesOutcome([None], 1), table)
    for outcome, at in ((deleted.result, 1), (changed.result, 0)):
        assert isinstance(outcome, EntriesOutcome)
        assert "The receipt handle has expired" in str(outcome.errors[at])
        assert outcome.errors[:at] == [None] * at

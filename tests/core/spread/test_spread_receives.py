"""Receives of queues of several partitions: who is asked in which order, and when the answer may be "nothing"."""

from __future__ import annotations

import msgspec
import pytest

from quaymaster.core.spread.parts import Part
from quaymaster.core.spread.receives import SpreadReceive
from quaymaster.core.values.commands.messages import Elsewhere, Receive, ReceiveOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import (
    ConnectionLost,
    InvalidParameterValue,
    InvalidSecurity,
    JournalStopped,
    NotLeader,
    NotNow,
    OverLimit,
    StaleEpoch,
    Timeout,
    Unreachable,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

from .support import HIGH, LOW, delivered, entry, queue

NOTHING = ReceiveOutcome(0, [])
ATTEMPT = bytes(16)


def receive(attempt: bytes | None = None) -> Receive:
    return Receive(7, -2, 10, wait_ms=20_000, attempt=attempt)


def asked(parts: list[Part]) -> list[int]:
    for part in parts:
        command = part.command
        assert isinstance(command, Receive)
        assert (command.partition, command.wait_ms) == (part.number, 0)
    return [part.number for part in parts]


def run(spread: SpreadReceive, table: QueueDefinition, answers: dict[int, Outcome | Exception]) -> list[int]:
    """Answer until it is done; return who was asked."""
    parts, numbers = spread.begin(), []
    while parts:
        numbers += asked(parts)
        parts = [
            more
            for part in parts
            for more in spread.on_outcome(part, answers.get(part.number, NOTHING), table)
        ]
    return numbers


@pytest.mark.parametrize(("turn", "order"), [(0, [0, 1, 2]), (1, [1, 2, 0]), (5, [2, 0, 1])])
def test_partitions_are_asked_in_turn(turn: int, order: list[int]) -> None:
    table = queue(entry(0, "closed"), entry(1, "closing"), entry(2), entry(3, "drained"), entry(4, "new"))

    spread = SpreadReceive(table, receive(), turn)

    assert run(spread, table, {}) == order
    assert spread.result == NOTHING


def test_messages_of_one_partition_are_the_answer_and_name_it() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
    spread = SpreadReceive(table, receive(), 0)

    assert run(spread, table, {2: delivered(5)}) == [1, 2]
    found = spread.result
    assert isinstance(found, ReceiveOutcome)
    assert (found.partition, found.deliveries) == (2, delivered(5).deliveries)


def test_a_partition_that_cannot_be_asked_keeps_the_answer_from_being_nothing() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
    error = NotLeader()

    spread = SpreadReceive(table, receive(), 0, is_patient=False)
    assert run(spread, table, {1: error}) == [1, 2]
    assert (spread.result, spread.unknown) == (error, {1: error})

    spread = SpreadReceive(table, receive(), 0)
    run(spread, table, {1: error, 2: delivered(5)})
    assert isinstance(spread.result, ReceiveOutcome)


def test_partitions_without_a_leader_are_waited_for_when_no_other_has_messages() -> None:
    table = queue(entry(1), entry(2), entry(3))
    spread = SpreadReceive(table, receive(), 0)

    parts, fast = spread.begin(), []
    for answer in (NotLeader(), Unreachable(), NOTHING, NOTHING, delivered(4)):
        (part,) = parts
        fast.append((part.number, part.command.fails_fast))  # type: ignore[union-attr]
        parts = spread.on_outcome(part, answer, table)

    assert fast == [(1, True), (2, True), (3, True), (1, False), (2, False)]
    assert isinstance(spread.result, ReceiveOutcome)
    assert (spread.result.partition, set(spread.unknown)) == (2, {2})


@pytest.mark.parametrize(
    ("error", "told"), [(Unreachable(), [3, 3]), (NotLeader(), [3, 3]), (NotNow(), [3, 0])]
)
def test_what_a_partition_that_was_not_reached_was_to_hear_of_is_told_to_another(
    error: NotNow, told: list[int]
) -> None:
    table = queue(entry(1), entry(2))
    spread = SpreadReceive(table, receive(), 0, empty_before=3)

    (first,) = spread.begin()
    (second,) = spread.on_outcome(first, error, table)

    assert [part.command.empty_before for part in (first, second)] == told  # type: ignore[union-attr]


def test_one_request_waits_in_vain_once() -> None:
    table = queue(entry(1), entry(2), entry(3))
    spread = SpreadReceive(table, receive(), 0)

    parts, fast = spread.begin(), []
    while parts:
        (part,) = parts
        fast.append((part.number, part.command.fails_fast))  # type: ignore[union-attr]
        parts = spread.on_outcome(part, NotNow(), table)

    assert fast == [(1, True), (2, True), (3, True), (1, False), (2, True), (3, True)]
    assert isinstance(spread.result, NotNow)


def test_a_fifo_partition_that_tells_of_a_newer_table_is_asked_once_more() -> None:
    old = queue(entry(1), is_fifo=True)
    newer = queue(entry(1, "closing"), entry(2), version=3, is_fifo=True)
    spread = SpreadReceive(old, receive(), 0)
    parts, numbers = spread.begin(), []
    for answer in (Elsewhere(newer), NotNow(), NOTHING, Elsewhere(newer)):
        (part,) = parts
        numbers.append((part.number, part.command.fails_fast))  # type: ignore[union-attr]
        parts = spread.on_outcome(part, answer, newer)

    assert numbers == [(1, True), (1, True), (2, True), (1, False)]
    assert spread.result == NOTHING


def test_a_fifo_partition_that_is_waited_for_is_waited_for_again_by_a_newer_table() -> None:
    table = queue(entry(1), is_fifo=True)
    newer = queue(entry(1, "closing"), entry(2), version=3, is_fifo=True)
    spread = SpreadReceive(table, receive(), 0)
    (first,) = spread.begin()
    (second,) = spread.on_outcome(first, NotNow(), table)

    (added,) = spread.on_outcome(second, Elsewhere(newer), newer)
    (again,) = spread.on_outcome(added, NOTHING, newer)

    assert (added.number, again.number, again.command.fails_fast) == (2, 1, False)  # type: ignore[union-attr]
    assert spread.on_outcome(again, NOTHING, newer) == []
    assert spread.result == NOTHING


def test_a_partition_that_gets_no_leader_in_time_keeps_the_answer_from_being_nothing() -> None:
    table = queue(entry(1), entry(2))
    error = NotLeader()
    spread = SpreadReceive(table, receive(), 0)

    assert run(spread, table, {1: error}) == [1, 2, 1]
    assert spread.result is error


def test_a_partition_that_turns_out_to_be_full_is_not_unknown_any_more() -> None:
    table = queue(entry(1), entry(2))
    spread = SpreadReceive(table, receive(), 0)
    (first,) = spread.begin()
    (second,) = spread.on_outcome(first, NotLeader(), table)
    (again,) = spread.on_outcome(second, NOTHING, table)

    spread.on_outcome(again, OverLimit.in_flight(120_000), table)

    assert (spread.result, spread.unknown) == (NOTHING, {})


def test_a_partition_that_is_drained_before_it_gets_a_leader_has_nothing() -> None:
    spread = SpreadReceive(queue(entry(1), entry(2), entry(3)), receive(), 0)
    newer = queue(entry(1, "closed"), entry(2, "drained"), entry(3), version=3)
    parts = spread.begin()
    for answer in (NotLeader(), NotLeader(), NOTHING):
        parts = spread.on_outcome(parts[0], answer, queue(entry(1), entry(2), entry(3)))
    (first,) = parts

    assert spread.on_outcome(first, NOTHING, newer) == []

    assert (spread.result, spread.unknown) == (NOTHING, {})


def test_a_full_partition_has_nothing_and_all_full_ones_say_so() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
    full = OverLimit.in_flight(120_000)

    one = SpreadReceive(table, receive(), 0)
    run(one, table, {1: full})
    both = SpreadReceive(table, receive(), 0)
    run(both, table, {1: full, 2: full})

    assert one.result == NOTHING
    assert both.result is full


def test_another_error_of_the_caller_ends_it() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
    error = InvalidSecurity("not over TLS")
    spread = SpreadReceive(table, receive(), 0)

    assert run(spread, table, {1: error}) == [1]
    assert spread.result is error


def test_partitions_of_a_newer_table_are_asked_too() -> None:
    old = queue(entry(0))
    new = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), version=5)
    spread = SpreadReceive(old, receive(), 0)

    (first,) = spread.begin()
    (second,) = spread.on_outcome(first, Elsewhere(new), new)
    (third,) = spread.on_outcome(second, NOTHING, new)

    assert [first.number, second.number, third.number] == [0, 1, 2]
    assert first.command.table_version == 2  # type: ignore[union-attr]
    assert third.command.table_version == 5  # type: ignore[union-attr]
    assert spread.on_outcome(third, NOTHING, new) == []
    assert spread.result == NOTHING


def test_a_partition_that_is_not_listed_any_more_has_nothing() -> None:
    old, new = queue(entry(0, "closed"), entry(1)), queue(entry(1), version=5)
    spread = SpreadReceive(old, receive(), 0)
    (first,) = spread.begin()

    (second,) = spread.again(first, new)

    assert second.number == 1
    spread.on_outcome(second, NOTHING, new)
    assert spread.result == NOTHING


def test_all_partitions_are_asked_whether_they_know_an_attempt_before_messages_are_asked_for() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    spread = SpreadReceive(table, receive(ATTEMPT), 0)

    first = spread.begin()
    assert asked(first) == [1, 2]
    assert all(part.command.only_attempt for part in first)  # type: ignore[union-attr]
    assert spread.on_outcome(first[0], NOTHING, table) == []
    (then,) = spread.on_outcome(first[1], NOTHING, table)

    assert (then.number, then.command.only_attempt) == (1, False)  # type: ignore[union-attr]
    spread.on_outcome(then, delivered(3), table)
    assert isinstance(spread.result, ReceiveOutcome)


def test_what_an_attempt_was_handed_before_is_the_answer() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    spread = SpreadReceive(table, receive(ATTEMPT), 0)
    first = spread.begin()

    assert spread.on_outcome(first[1], delivered(9), table) == []
    assert spread.on_outcome(first[0], NOTHING, table) == []

    assert isinstance(spread.result, ReceiveOutcome)
    assert spread.result.partition == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("other", [NOTHING, delivered(9)])
def test_an_attempt_that_is_not_good_any_more_is_refused_unless_a_partition_can_repeat_a_later_one(
    order: tuple[int, int], other: ReceiveOutcome
) -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    spread = SpreadReceive(table, receive(ATTEMPT), 0)
    spent = InvalidParameterValue.attempt("once")
    first, answers = spread.begin(), (spent, other)

    for at in order:
        assert spread.on_outcome(first[at], answers[at], table) == []

    if other.deliveries:
        assert isinstance(spread.result, ReceiveOutcome)
        assert spread.result.partition == 2
    else:
        assert spread.result is spent


def test_an_attempt_that_a_partition_may_know_and_cannot_tell_is_not_begun_anew() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    spread = SpreadReceive(table, receive(ATTEMPT), 0)
    first = spread.begin()
    error = Unreachable()

    assert spread.on_outcome(first[0], error, table) == []

    assert spread.result is error


def test_partitions_of_a_newer_table_are_asked_about_the_attempt_too() -> None:
    old = queue(entry(0), is_fifo=True)
    new = queue(entry(0, "closing"), entry(1), version=5, is_fifo=True)
    spread = SpreadReceive(old, receive(ATTEMPT), 0)
    (first,) = spread.begin()

    (second,) = spread.on_outcome(first, Elsewhere(new), new)
    assert (second.number, second.command.only_attempt) == (1, True)  # type: ignore[union-attr]
    (third,) = spread.on_outcome(second, OverLimit.in_flight(5), new)

    assert (third.number, third.command.only_attempt) == (0, False)  # type: ignore[union-attr]


def test_a_partition_that_is_drained_by_the_time_of_its_turn_is_not_asked() -> None:
    table = queue(entry(0, "closed"), entry(1, "closed"), entry(2))
    newer = queue(entry(0, "closed"), entry(1, "drained"), entry(2), version=3)
    spread = SpreadReceive(table, receive(), 0)
    (part,) = spread.begin()

    (other,) = spread.on_outcome(part, NOTHING, newer)

    assert other.number == 2


@pytest.mark.parametrize("attempt", [None, ATTEMPT])
def test_a_partition_that_the_newer_table_still_lists_is_asked_again_and_has_not_said_that_it_has_nothing(
    attempt: bytes | None,
) -> None:
    newer = queue(entry(1), version=3)
    spread = SpreadReceive(queue(entry(1)), receive(attempt), 0, is_patient=False)
    (first,) = spread.begin()

    (again,) = spread.again(first, newer)

    assert again.command == msgspec.structs.replace(first.command, table_version=3)
    spread.on_outcome(again, Unreachable(), newer)
    assert isinstance(spread.result, Unreachable)


def test_a_partition_that_is_drained_by_a_newer_table_has_nothing() -> None:
    newer = queue(entry(1, "drained"), entry(2), version=3)
    spread = SpreadReceive(queue(entry(1)), receive(), 0)
    (first,) = spread.begin()

    (second,) = spread.again(first, newer)

    assert second.number == 2


@pytest.mark.parametrize("error", [Timeout(), ConnectionLost(), StaleEpoch(), JournalStopped()])
def test_a_receive_that_takes_for_good_fails_with_the_answer_that_was_lost(error: Exception) -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
    lost = SpreadReceive(table, msgspec.structs.replace(receive(), takes_for_good=True), 0)
    other = SpreadReceive(table, receive(), 0)

    assert run(lost, table, {1: error, 2: delivered(5)}) == [1]
    assert run(other, table, {1: error, 2: delivered(5)}) == [1, 2]

    assert lost.result is error


def test_a_receive_that_takes_for_good_goes_on_where_nothing_was_taken() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))
    spread = SpreadReceive(table, msgspec.structs.replace(receive(), takes_for_good=True), 0)

    assert run(spread, table, {1: NotLeader(), 2: delivered(5)}) == [1, 2]

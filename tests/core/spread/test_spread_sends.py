"""Sends to queues of several partitions: who is asked about each message, and what the client is told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quaymaster.core.spread.parts import Part
from quaymaster.core.spread.sends import ATTEMPTS_MAX, PATIENCE_MS, PeerSend, SpreadSend, key_of
from quaymaster.core.values.commands.messages import Elsewhere, NewMessage, Send, SendOutcome
from quaymaster.core.values.errors import NotLeader, QueueDoesNotExist, Timeout, Unreachable
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, replace_definition

from .support import EVERY, HIGH, LOW, entry, message, queue, result


def sent(parts: list[Part]) -> dict[int, list[int]]:
    """Return which messages go to which partition."""
    for part in parts:
        assert isinstance(part.command, Send)
        assert part.command.partition == part.number
        assert len(part.command.messages) == len(part.indexes)
    return {part.number: part.indexes for part in parts}


def test_messages_of_a_fifo_queue_go_by_their_groups_each_in_order() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    low, high = message(5), message(KEY_MAX)

    spread = SpreadSend(table, [low, high, message(6), message(5, name=1)])
    parts = spread.begin()

    assert sent(parts) == {1: [0, 2, 3], 2: [1]}
    assert spread.on_outcome(parts[1], SendOutcome([result(9)]), table) == []
    assert spread.result is None
    assert spread.on_outcome(parts[0], SendOutcome([result(1), result(2), result(3)]), table) == []
    assert spread.result == SendOutcome([result(1), result(9), result(2), result(3)])


def test_messages_of_one_request_to_a_standard_queue_go_to_one_partition() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH))

    assert sent(SpreadSend(table, [message(5), message(KEY_MAX)]).begin()) == {1: [0, 1]}
    assert sent(SpreadSend(table, [message(KEY_MAX, has_retry=False), message(5)]).begin()) == {2: [0, 1]}
    assert key_of(table, message(5), message(KEY_MAX)) == KEY_MAX


def test_what_a_sealed_partition_does_not_know_goes_on_to_the_next_one_of_its_key() -> None:
    row = queue(entry(0))
    table = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), version=4, is_fifo=True)
    spread = SpreadSend(table, [message(1), message(2), message(KEY_MAX)])

    (first,) = spread.begin()
    parts = spread.on_outcome(first, Elsewhere(row, [result(8, duplicate=True), None, None]), table)

    assert (first.number, sent(parts)) == (0, {1: [1], 2: [2]})
    for part in parts:
        assert part.attempts == 2
        spread.on_outcome(part, SendOutcome([result(part.number)]), table)
    assert spread.result == SendOutcome([result(8, duplicate=True), result(1), result(2)])


def test_all_may_be_known_to_a_sealed_partition() -> None:
    table = queue(entry(0, "closing"), entry(1))
    spread = SpreadSend(table, [message(1)])
    (first,) = spread.begin()

    assert spread.on_outcome(first, Elsewhere(table, [result(8, duplicate=True)]), table) == []
    assert spread.result == SendOutcome([result(8, duplicate=True)])


def test_what_cannot_be_a_repeat_passes_partitions_that_are_known_to_be_sealed() -> None:
    table = queue(entry(0, "closing"), entry(1, "closing"), entry(2))

    def first(is_fifo: bool = False, **how: bool) -> int:
        definition = queue(*table.partitions, is_fifo=is_fifo)
        (part,) = SpreadSend(definition, [message(1, **how)], lambda number: number == 0).begin()
        return part.number

    assert first(may_be_retry=False) == 1
    assert first(has_retry=False) == 1
    assert first() == 0
    assert first(is_fifo=True, may_be_retry=False) == 0
    everywhere = SpreadSend(table, [message(1, may_be_retry=False)], lambda number: True)
    assert [part.number for part in everywhere.begin()] == [2]


def with_id(key: int, name: int) -> NewMessage:
    """Return a FIFO message; its name is its deduplication id."""
    return msgspec.structs.replace(message(key, name=name), dedup=name.to_bytes(16, "big"))


def knows(*names: int) -> Callable[[int, bytes], bool]:
    """Return a sealed partition 0 that may know only messages of these names."""
    return lambda number, dedup: number != 0 or int.from_bytes(dedup, "big") in names


def test_groups_without_ids_that_a_sealed_partition_knows_pass_it() -> None:
    table = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    messages = [with_id(1, 1), with_id(2, 2), with_id(1, 3), with_id(KEY_MAX, 4), with_id(2, 5)]
    without_id = message(3)

    def asked(*ids: int, is_sealed: bool = True) -> dict[int, list[int]]:
        all_of = [*messages, without_id]
        return sent(SpreadSend(table, all_of, lambda number: is_sealed, knows(*ids)).begin())

    assert asked() == {1: [0, 1, 2, 4], 2: [3], 0: [5]}
    # A message of a group that may be known keeps those before and behind it.
    assert asked(3) == {0: [0, 2, 5], 1: [1, 4], 2: [3]}
    assert asked(5) == {1: [0, 2], 0: [1, 4, 5], 2: [3]}
    assert asked(is_sealed=False) == {0: [0, 1, 2, 3, 4, 5]}


def test_messages_with_ids_of_an_exactly_once_queue_go_by_these_and_pass_partitions_that_do_not_know_them() -> (
    None
):
    table = replace_definition(
        queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH)),
        attributes={"DeliveryGuarantee": "ExactlyOnce"},
    )
    high = msgspec.structs.replace(message(1), dedup=b"\xff" * 16)
    messages = [with_id(9, 1), high, message(3, may_be_retry=False)]

    def asked(*ids: int, is_sealed: bool = True) -> dict[int, list[int]]:
        return sent(SpreadSend(table, messages, lambda number: is_sealed, knows(*ids)).begin())

    assert asked() == {1: [0, 2], 2: [1]}
    assert asked(1) == {0: [0], 2: [1], 1: [2]}
    assert asked(is_sealed=False) == {0: [0, 1, 2]}


def test_entries_whose_partition_has_no_leader_fail_alone() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    spread = SpreadSend(table, [message(1), message(KEY_MAX)])
    low, high = spread.begin()
    error = NotLeader()

    spread.on_outcome(low, error, table)
    spread.on_outcome(high, SendOutcome([result(4)]), table)

    outcome = spread.result
    assert isinstance(outcome, SendOutcome)
    assert outcome.errors == [error, None]
    assert outcome.results[1] == result(4)


def test_a_send_of_which_nothing_was_stored_fails_with_the_first_reason() -> None:
    table = queue(entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    spread = SpreadSend(table, [message(1), message(KEY_MAX)])
    error = Timeout()

    for part in spread.begin():
        spread.on_outcome(part, error, table)

    assert spread.result is error


def test_a_message_is_brought_to_so_many_partitions_at_most() -> None:
    numbers = range(ATTEMPTS_MAX + 2)
    table = queue(*(entry(number, "closing") for number in numbers), entry(len(numbers)))
    spread = SpreadSend(table, [message(1)])
    parts = spread.begin()
    asked = []
    while parts:
        (part,) = parts
        asked.append(part.number)
        parts = spread.on_outcome(part, Elsewhere(table, [None]), table)

    assert asked == list(range(ATTEMPTS_MAX))
    assert isinstance(spread.result, Unreachable)


def test_a_message_whose_key_no_younger_partition_takes_is_not_stored() -> None:
    table = queue(entry(0, "closing"))
    spread = SpreadSend(table, [message(1)])
    (part,) = spread.begin()

    assert spread.on_outcome(part, Elsewhere(table, [None]), table) == []
    assert isinstance(spread.result, Unreachable)


def test_a_partition_that_is_not_known_is_sought_again_by_the_newer_table() -> None:
    old, new = queue(entry(1)), queue(entry(2, keys=LOW), entry(3, keys=HIGH), version=6)
    spread = SpreadSend(old, [message(1)])
    (part,) = spread.begin()

    (again,) = spread.again(part, new)

    assert (again.number, again.attempts) == (2, 2)
    assert spread.on_outcome(again, QueueDoesNotExist(), new) == []
    assert isinstance(spread.result, QueueDoesNotExist)


def test_a_partition_that_is_sought_too_often_is_told_as_unreachable() -> None:
    table = queue(entry(1))
    spread = SpreadSend(table, [message(1)])
    (part,) = spread.begin()
    part.attempts = ATTEMPTS_MAX

    assert spread.again(part, table) == []
    assert isinstance(spread.result, Unreachable)


PEERS = queue(entry(0, keys=LOW), entry(1, keys=HIGH), entry(2, "new"))


def run_peers(spread: PeerSend, *answers: object) -> list[tuple[int, bool, int]]:
    """Answer part after part; return who was asked, whether that fails fast, and how long it is waited for."""
    parts, asked = spread.begin(), []
    for answer in answers:
        (part,) = parts
        assert isinstance(part.command, Send)
        asked.append((part.number, part.command.fails_fast, part.patience_ms))
        parts = spread.on_outcome(part, answer, PEERS)  # type: ignore[arg-type]
    assert parts == []
    return asked


def test_the_partition_of_its_key_gets_a_message_first() -> None:
    low, high = PeerSend(PEERS, [message(5)]), PeerSend(PEERS, [message(KEY_MAX)])

    assert run_peers(low, SendOutcome([result(1)])) == [(0, True, PATIENCE_MS)]
    assert run_peers(high, SendOutcome([result(1)])) == [(1, True, PATIENCE_MS)]
    assert low.result == SendOutcome([result(1)])


def test_another_peer_takes_what_one_cannot() -> None:
    spread = PeerSend(PEERS, [message(5)])

    assert run_peers(spread, Unreachable(), SendOutcome([result(1)])) == [
        (0, True, PATIENCE_MS),
        (1, True, PATIENCE_MS),
    ]
    assert spread.result == SendOutcome([result(1)])


def test_when_no_peer_can_be_asked_one_is_waited_for() -> None:
    spread = PeerSend(PEERS, [message(5)])
    error = NotLeader()

    asked = run_peers(spread, Unreachable(), Unreachable(), error)

    assert asked == [(0, True, PATIENCE_MS), (1, True, PATIENCE_MS), (0, False, 0)]
    assert spread.result is error


def test_what_a_peer_may_have_stored_is_told_as_unknown() -> None:
    spread = PeerSend(PEERS, [message(5)])

    run_peers(spread, Timeout(), Unreachable(), Unreachable())

    assert isinstance(spread.result, Timeout)


def test_an_error_of_the_caller_is_the_answer_of_all_peers() -> None:
    spread = PeerSend(PEERS, [message(5)])
    error = QueueDoesNotExist()

    run_peers(spread, error)

    assert spread.result is error


def test_peers_that_are_sealed_send_on_what_they_do_not_know() -> None:
    known, unknown = PeerSend(PEERS, [message(5)]), PeerSend(PEERS, [message(5)])

    run_peers(known, Elsewhere(PEERS, [result(3, duplicate=True)]))
    run_peers(unknown, Elsewhere(PEERS, [None]), SendOutcome([result(1)]))

    assert known.result == SendOutcome([result(3, duplicate=True)])
    assert unknown.result == SendOutcome([result(1)])


def test_a_peer_that_is_not_listed_any_more_is_passed_by() -> None:
    spread = PeerSend(PEERS, [message(5)])
    (part,) = spread.begin()

    (then,) = spread.again(part, queue(entry(1, keys=EVERY), version=5))

    assert then.number == 1
    for answer in (NotLeader(), Elsewhere(PEERS, [None])):
        (then,) = spread.on_outcome(then, answer, queue(entry(1, keys=EVERY), version=5)) or [then]
    assert isinstance(spread.result, Timeout)


def test_a_partition_that_was_asked_by_an_old_row_is_not_asked_again() -> None:
    table = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), is_fifo=True)
    known = result(7, duplicate=True)
    spread = SpreadSend(
        table, [message(1), message(2), message(KEY_MAX)], asked=(0, Elsewhere(table, [None, known, None]))
    )

    low, high = spread.begin()

    assert sent([low, high]) == {1: [0], 2: [2]}
    spread.on_outcome(low, SendOutcome([result(8)]), table)
    spread.on_outcome(high, SendOutcome([result(9)]), table)
    assert spread.result == SendOutcome([result(8), known, result(9)])


def test_messages_of_groups_that_no_partition_takes_fail_alone() -> None:
    old = queue(entry(0), is_fifo=True)
    spread = SpreadSend(old, [message(1), message(KEY_MAX)])
    (part,) = spread.begin()
    half = queue(entry(0, "closing"), entry(1, keys=LOW), version=3, is_fifo=True)

    (low,) = spread.on_outcome(part, Elsewhere(half, [None, None]), half)
    spread.on_outcome(low, SendOutcome([result(4)]), half)

    outcome = spread.result
    assert isinstance(outcome, SendOutcome)
    assert outcome.errors[0] is None
    assert isinstance(outcome.errors[1], Unreachable)

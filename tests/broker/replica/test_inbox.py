"""Which commands a replica's turn takes when more wait than it can decide."""

from __future__ import annotations

from typing import Any

from quaymaster.broker.replica.inbox import COMMAND_COST, QUANTUM, TURN_COMMANDS_MAX, Inbox, Waiting
from quaymaster.core.values.commands.messages import NewMessage, Purge, Send
from quaymaster.core.values.commands.moves import MovedMessage, MoveIn
from quaymaster.core.values.commands.partitions import ListDataKeys, SetQueue
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition

HEAVY, LIGHT, UNKNOWN = 1, 2, 9


def queue(queue_id: int) -> QueueDefinition:
    account_id = f"{queue_id}" * 12
    return QueueDefinition(queue_id, account_id, "jobs", "active", 1, 0, 0, {}, {}, 1, one_partition())


DEFINITIONS = {queue_id: queue(queue_id) for queue_id in (HEAVY, LIGHT)}


def send(queue_id: int, size: int = 10) -> Send:
    return Send(queue_id, 0, [NewMessage(bytes(16), bytes(size))])


def filled(*commands: Any) -> Inbox:
    inbox = Inbox()
    inbox.waiting += [(command, number) for number, command in enumerate(commands)]
    return inbox


def taken_until_empty(inbox: Inbox) -> list[Waiting]:
    taken = []
    while inbox:
        turn = inbox.take(DEFINITIONS)
        assert turn
        taken += turn
    return taken


def tokens(items: list[Waiting]) -> list[object]:
    return [token for _, token in items]


def numbers_of(items: list[Waiting], queue_id: int | None = None) -> list[int]:
    """Return the numbers of commands, of one queue if it is given."""
    return [
        number
        for command, number in items
        if isinstance(number, int) and queue_id in (None, getattr(command, "queue_id", 0))
    ]


def test_what_fits_in_a_turn_is_taken_as_it_came() -> None:
    inbox = filled(*[send(HEAVY), send(LIGHT)] * (TURN_COMMANDS_MAX // 2))

    assert tokens(inbox.take(DEFINITIONS)) == list(range(TURN_COMMANDS_MAX))
    assert len(inbox) == 0


def test_an_account_with_few_commands_is_in_the_first_turn_however_many_another_has() -> None:
    count = 10 * TURN_COMMANDS_MAX
    inbox = filled(*[send(HEAVY)] * count, send(LIGHT))

    first = inbox.take(DEFINITIONS)

    assert len(first) == TURN_COMMANDS_MAX
    # Behind one quantum of the other.
    assert tokens(first).index(count) == QUANTUM // (COMMAND_COST + 10)
    assert len(inbox) == count + 1 - TURN_COMMANDS_MAX


def test_each_accounts_commands_are_decided_in_their_order_and_all_once() -> None:
    commands = [send(HEAVY, number % 7 * 9_000) for number in range(3 * TURN_COMMANDS_MAX)]
    commands += [send((HEAVY, LIGHT, UNKNOWN)[number % 3]) for number in range(TURN_COMMANDS_MAX)]
    inbox = filled(*commands)

    taken = taken_until_empty(inbox)

    assert sorted(numbers_of(taken)) == list(range(len(commands)))
    for queue_id in (HEAVY, LIGHT, UNKNOWN):
        numbers = numbers_of(taken, queue_id)
        assert numbers == sorted(numbers)


def test_a_queue_that_is_made_stands_among_the_commands_of_its_account() -> None:
    inbox = filled(*[send(HEAVY)] * TURN_COMMANDS_MAX, SetQueue(DEFINITIONS[HEAVY]), Purge(HEAVY))

    assert tokens(taken_until_empty(inbox))[-2:] == [TURN_COMMANDS_MAX, TURN_COMMANDS_MAX + 1]


def test_a_turn_with_a_command_that_concerns_no_queue_takes_everything_before_and_behind_it() -> None:
    before = 3 * TURN_COMMANDS_MAX
    inbox = filled(*[send(HEAVY)] * before)
    inbox.take(DEFINITIONS)
    inbox.waiting += [(send(LIGHT), "before"), (ListDataKeys(0), "all"), (send(HEAVY), "behind")]

    taken = tokens(inbox.take(DEFINITIONS))

    assert len(inbox) == 0
    assert len(taken) == before - TURN_COMMANDS_MAX + 3
    assert taken[-2:] == ["all", "behind"]


def test_commands_that_are_decided_again_come_first() -> None:
    inbox = filled(*[send(HEAVY)] * (2 * TURN_COMMANDS_MAX))
    (first, *_) = inbox.take(DEFINITIONS)
    inbox.again.append(first)

    assert tokens(inbox.take(DEFINITIONS))[:2] == [0, TURN_COMMANDS_MAX]


def test_bytes_that_come_from_another_journal_count_as_those_that_are_sent() -> None:
    large = MoveIn(HEAVY, 0, 5, 0, [MovedMessage(1, bytes(QUANTUM)), MovedMessage(2)])
    inbox = filled(*[large] * (TURN_COMMANDS_MAX + 1), send(LIGHT))

    assert TURN_COMMANDS_MAX + 1 in tokens(inbox.take(DEFINITIONS))[:3]

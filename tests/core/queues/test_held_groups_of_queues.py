"""A FIFO queue's order over its partitions: what a child holds, and what it asks its parents."""

from __future__ import annotations

from array import array

import pytest
from harness.replica_host import Host, message, moved, queue, receipts_of

from quaymaster.core.partition.partition import Partition
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.groups_left import GroupsLeft
from quaymaster.core.structures.orders.held_groups import HeldGroups
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import (
    Delete,
    Elsewhere,
    Receipt,
    Receive,
    Send,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.move_tasks import StartMoveTask, TakeForMove, TakenForTask
from quaymaster.core.values.commands.partitions import AskGroups, ForgetQueue, GroupsOutcome, SetQueue
from quaymaster.core.values.partition_tables import (
    in_state,
    with_state,
)
from quaymaster.core.values.queues.queue_definitions import KEY_MAX

STEPS = 3
A, B = 11, 22


@pytest.fixture
def host() -> Host:
    """A queue with a parent that has messages of group A, and a child with one of A and one of B."""
    host = Host()
    definition = queue(STEPS, "steps.fifo")
    host.ask(SetQueue(definition))
    for number in (1, 2):
        host.ask(Send(STEPS, 0, [message(number, group=A)]))
    host.ask(SetQueue(moved(definition)))
    for number, group in ((3, A), (4, B)):
        host.ask(Send(STEPS, 1, [message(number, group=group)]))
    return host


def child(host: Host, number: int = 1) -> Partition:
    return host.states.partition(STEPS, number)


def holds_of(partition: Partition) -> HeldGroups | None:
    assert isinstance(partition.order, FIFOOrder)
    return partition.order.holds


def received(host: Host, number: int) -> list[Receipt]:
    return receipts_of(host.ask(Receive(STEPS, number, 10)))


def ask(host: Host, number: int, groups: list[int], parent: int = 0) -> list[int]:
    """Ask a parent what a child wants to know, and tell the child; return which groups are free now."""
    outcome = host.ask(AskGroups(STEPS, parent, array("Q", groups).tobytes()))
    assert isinstance(outcome, GroupsOutcome)
    assert outcome.is_sealed
    partition = child(host, number)
    holds = holds_of(partition)
    assert holds is not None
    assert isinstance(partition.order, FIFOOrder)
    freed = holds.answered(parent, groups, array("Q", outcome.gone), look=holds.looks)
    partition.order.release(freed, host.now_ms)
    return freed


def test_child_gives_nothing_of_a_group_until_its_parent_has_no_message_of_it(host: Host) -> None:
    assert host.states.held_groups == 0
    assert received(host, 1) == []
    assert host.states.held_groups == 2
    assert host.states.asking == {child(host).key}
    holds = holds_of(child(host))
    assert holds is not None
    assert holds.to_ask(0, 10, "first") == [A, B]

    assert ask(host, 1, [A, B]) == [B]
    assert len(received(host, 1)) == 1

    host.ask(Delete(STEPS, 0, received(host, 0)))
    assert ask(host, 1, [A]) == [A]
    assert len(received(host, 1)) == 1


def test_what_finds_only_groups_that_parents_may_have_says_so(host: Host) -> None:
    for command in (Receive(STEPS, 1, 10), Watch(STEPS, 1, 0)):
        outcome = host.ask(command)
        assert isinstance(outcome, TakenOutcome)
        assert (outcome.is_held, outcome.taken, outcome.unfinished) == (True, [], False)

    by_attempt = host.ask(Receive(STEPS, 1, 10, attempt=bytes(16), only_attempt=True))
    assert isinstance(by_attempt, TakenOutcome)
    assert not by_attempt.is_held
    assert isinstance(host.ask(Receive(STEPS, 1, 10, table_version=1)), Elsewhere)

    ask(host, 1, [A, B])
    host.ask(Delete(STEPS, 0, received(host, 0)))
    ask(host, 1, [A])
    host.ask(Delete(STEPS, 1, received(host, 1)))
    assert host.ask(Watch(STEPS, 1, 0)) == WatchOutcome(False)
    host.ask(SetQueue(queue(STEPS + 1, "other.fifo")))
    assert host.ask(Watch(STEPS + 1, 0, 0)) == WatchOutcome(False)


def test_parent_that_is_not_sealed_or_not_known_says_nothing(host: Host) -> None:
    child(host, 0).sealed_ms = 0

    for number in (0, 7):
        outcome = host.ask(AskGroups(STEPS, number, array("Q", [B]).tobytes()))
        assert outcome == GroupsOutcome(b"", is_sealed=False)


def test_parent_says_nothing_until_all_its_messages_were_looked_at(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupsLeft.gone, "__kwdefaults__", {"looked_at_max": 1})
    question = AskGroups(STEPS, 0, array("Q", [B]).tobytes())

    assert host.ask(question) == GroupsOutcome(b"", is_sealed=False)
    assert host.ask(question) == GroupsOutcome(array("Q", [B]).tobytes())


def test_parent_says_that_a_group_is_gone_when_that_is_committed(host: Host) -> None:
    receipts = received(host, 0)
    host.is_slow = True
    host.propose(Delete(STEPS, 0, receipts))

    token = host.propose(AskGroups(STEPS, 0, array("Q", [A]).tobytes()))
    assert token not in host.replies

    host.make_durable()
    assert host.replies[token] == GroupsOutcome(array("Q", [A]).tobytes())


def test_grandparent_is_asked_as_well(host: Host) -> None:
    host.ask(SetQueue(moved(with_state(host.states.definitions[STEPS], 0, "closed"))))
    host.ask(Send(STEPS, 2, [message(5, group=B)]))

    assert received(host, 2) == []
    assert ask(host, 2, [B], parent=1) == []
    assert ask(host, 2, [B], parent=0) == []
    assert received(host, 1) == []
    assert ask(host, 1, [A, B]) == [B]
    host.ask(Delete(STEPS, 1, received(host, 1)))
    assert ask(host, 2, [B], parent=1) == [B]
    assert len(received(host, 2)) == 1


def test_groups_of_a_queue_that_was_deleted_are_not_held(host: Host) -> None:
    received(host, 1)

    host.ask(ForgetQueue(STEPS))

    assert host.states.held_groups == 0


def test_nothing_waits_for_a_parent_that_is_drained(host: Host) -> None:
    received(host, 1)
    assert host.states.holding == {child(host).key}

    host.ask(SetQueue(with_state(host.states.definitions[STEPS], 0, "drained")))

    assert child(host) in host.awake
    assert len(received(host, 1)) == 2
    assert holds_of(child(host)) is None
    assert not host.states.holding


def test_move_task_takes_nothing_of_a_held_group_and_waits_for_it(host: Host) -> None:
    partitions = host.states.definitions[STEPS].partitions
    assert [entry.state for entry in partitions] == ["closing", "open"]
    assert in_state(host.states.definitions[STEPS], "open")[0].last_key == KEY_MAX
    host.ask(StartMoveTask(STEPS, b"task", "from", None, None, None, partition=1))

    outcome = host.ask(TakeForMove(STEPS, b"task", 10, partition=1))
    assert outcome == TakenForTask([], is_held=True)

    ask(host, 1, [A, B])
    outcome = host.ask(TakeForMove(STEPS, b"task", 10, partition=1))
    assert isinstance(outcome, TakenForTask)
    assert [taken.sequence for taken in outcome.taken] == [child(host).next_sequence - 1]
    assert not outcome.is_held

"""Queues with several partitions, as one journal has them: which are here, what a newer table does, what is asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from harness.replica_host import RETRY_WINDOW_MS, Host, arn, identity, message, queue, replay, snapshot_of

from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import CountMessages, Done, Purge, QueueCounts, Receive, Send
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import InvalidParameterValue, QueueDoesNotExist, ResourceNotFound
from quaymaster.core.values.partition_tables import (
    entries_to_split,
    spread_table,
    with_children,
    with_children_open,
    without,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

JOBS = 1
DEAD = 2
HERE = 0
THERE = 1
TASK = b"the-task-is-here"


def spread(*journals: int, queue_id: int = JOBS, name: str = "jobs") -> QueueDefinition:
    """Return a queue with a partition in each of these journals."""
    partitions = spread_table(journals)
    return replace_definition(queue(queue_id, name), partitions=partitions, next_partition=len(partitions))


def split(definition: QueueDefinition, *journals: int) -> QueueDefinition:
    """Return the table with the children of the partition with most keys, which are new."""
    parents, ranges = entries_to_split(definition, len(journals))
    return with_children(definition, parents, ranges, journals)


def started(*definitions: QueueDefinition, journal_id: int = HERE) -> Host:
    host = Host(states=new_states(journal_id))
    for definition in definitions:
        host.ask(SetQueue(definition))
    return host


def new_states(journal_id: int = HERE) -> QueueStates:
    return QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS, journal_id=journal_id)


def numbers(host: Host | QueueStates, queue_id: int = JOBS) -> list[int]:
    states = host.states if isinstance(host, Host) else host
    return [partition.number for partition in states.partitions_of(queue_id)]


def send(host: Host, number: int, *tokens: int, queue_id: int = JOBS) -> None:
    host.ask(Send(queue_id, number, [message(token) for token in tokens]))


def counted(host: Host, **asked: int) -> int:
    found = host.ask(CountMessages(JOBS, **asked))
    assert isinstance(found, QueueCounts)
    return found.visible


def tasks(outcome: object) -> list[MoveTask]:
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks


class Saved:
    """A snapshot of a host's partitions, each as of when it was saved."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.base = host.replica.end_offset
        self.blobs: dict[int, tuple[int, QueueDefinition, bytes]] = {}

    def save(self, *found: int) -> None:
        """Save some partitions as they are now."""
        for number in found:
            partition = self.host.states.partition(JOBS, number)
            partition.applied = self.host.replica.end_offset
            self.blobs[number] = partition.applied, partition.definition, snapshot_of(partition)

    def loaded(self, *, order: Sequence[int] = ()) -> QueueStates:
        """Return what a start makes of it and of the records that follow."""
        states = new_states(self.host.states.journal_id)
        for number in order or self.blobs:
            _, definition, data = self.blobs[number]
            partition = load_partition(
                data, definition, number, MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS
            )
            states.load(definition, [partition])
        states.attach_groups()
        return replay(self.host.batches, states=states, start=self.base)


def assert_same(host: Host, states: QueueStates) -> None:
    assert states.definitions == host.states.definitions
    assert states.unlisted == host.states.unlisted
    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


# Which partitions are here


def test_a_journal_has_the_partitions_whose_entry_names_it() -> None:
    definition = spread(HERE, THERE, HERE)

    here, there = started(definition), started(definition, journal_id=THERE)

    assert numbers(here) == [0, 2]
    assert numbers(there) == [1]
    send(there, 1, 1)
    with pytest.raises(QueueDoesNotExist):
        send(there, 0, 1)
    assert_same(here, here.replayed())


def test_a_queue_is_counted_by_one_of_its_journals() -> None:
    alone, wide = spread(HERE), spread(THERE, HERE, queue_id=DEAD, name="wide")
    here, there = started(alone, wide), started(wide, journal_id=THERE)
    assert (here.states.counted_here, there.states.counted_here) == (1, 1)

    began = split(alone, THERE, THERE)
    for host in (here, there):
        host.ask(SetQueue(began))
    assert (here.states.counted_here, there.states.counted_here) == (1, 1)
    for host in (here, there):
        host.ask(SetQueue(with_children_open(began)))
    assert (here.states.counted_here, there.states.counted_here) == (0, 2)

    for host in (here, there):
        host.ask(ForgetQueue(JOBS))
    assert (here.states.counted_here, there.states.counted_here) == (0, 1)


def test_a_journal_without_a_partition_of_a_queue_learns_nothing_of_it() -> None:
    host = started()
    before = host.replica.end_offset

    assert host.ask(SetQueue(spread(THERE, THERE))) == Done()

    assert host.replica.end_offset == before
    with pytest.raises(QueueDoesNotExist):
        host.states.partitions_of(JOBS)


def test_partitions_that_a_newer_table_adds_are_there_with_the_messages_of_the_others() -> None:
    definition = spread(HERE)
    host = started(definition)
    send(host, 0, 1, 2)

    host.ask(SetQueue(split(definition, HERE, THERE)))

    assert numbers(host) == [0, 1]
    send(host, 0, 3)
    assert [counted(host, partition=number) for number in (0, 1)] == [3, 0]
    assert_same(host, host.replayed())


# What a newer table does not list


def test_a_partition_that_was_never_used_goes_when_it_is_not_listed_any_more() -> None:
    definition = split(spread(HERE), HERE, HERE)
    host = started(definition)

    host.ask(SetQueue(without(definition, [1, 2])))

    assert numbers(host) == [0]
    assert not host.states.unlisted
    assert host.states.removed == {JOBS << 16 | 1, JOBS << 16 | 2}
    assert_same(host, host.replayed())


def test_a_partition_that_has_something_is_kept_though_it_is_not_listed_any_more() -> None:
    definition = spread(HERE, HERE)
    host = started(definition)
    send(host, 1, 1)

    shortened = without(definition, [1])
    host.ask(SetQueue(shortened))

    assert numbers(host) == [0, 1]
    assert host.states.unlisted == {JOBS: (1,)}
    assert counted(host) == 1
    assert_same(host, host.replayed())
    saved = Saved(host)
    saved.save(0, 1)
    assert_same(host, saved.loaded())

    host.ask(SetQueue(replace_definition(shortened, revision=9, attributes={"DelaySeconds": "5"})))
    assert host.states.partition(JOBS, 1).definition.delay_ms == 5_000
    host.ask(ForgetQueue(JOBS))
    assert not host.states.partitions
    assert not host.states.unlisted
    assert_same(host, host.replayed())


def test_a_partition_that_is_listed_in_another_journal_is_not_listed_here() -> None:
    host = started(spread(HERE, HERE))
    send(host, 0, 1)

    host.ask(SetQueue(replace_definition(spread(THERE, HERE), revision=2, table_version=2)))

    assert numbers(host) == [1, 0]
    assert host.states.unlisted == {JOBS: (0,)}
    assert_same(host, host.replayed())


def test_a_queue_whose_last_partition_goes_is_not_known_any_more_until_it_is_told_anew() -> None:
    definition = spread(HERE)
    host = started(definition)
    gone = replace_definition(spread(THERE), revision=2, table_version=2)

    host.ask(SetQueue(gone))
    assert JOBS not in host.states.definitions
    with pytest.raises(QueueDoesNotExist):
        counted(host)
    assert_same(host, host.replayed())

    host.ask(SetQueue(replace_definition(spread(HERE), revision=3, table_version=3)))
    assert numbers(host) == [0]
    assert_same(host, host.replayed())


# Snapshots


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_snapshot_may_have_partitions_as_of_different_tables(order: tuple[int, int]) -> None:
    first = spread(HERE, HERE)
    host = started(first)
    send(host, 0, 1)
    send(host, 1, 2)
    saved = Saved(host)
    saved.save(0)
    second = split(replace_definition(first, attributes={"DelaySeconds": "5"}), HERE, HERE)
    host.ask(SetQueue(second))
    send(host, 0, 3)
    send(host, 2, 4)
    saved.save(1)
    host.ask(SetQueue(without(second, [2, 3])))
    send(host, 1, 5)

    states = saved.loaded(order=order)

    assert numbers(states) == [0, 1, 2]
    assert states.unlisted == {JOBS: (2,)}
    assert_same(host, states)


def test_partitions_that_went_after_the_snapshot_do_not_come_back() -> None:
    first = spread(HERE, HERE)
    second = split(first, HERE, HERE)
    host = started(first)
    saved = Saved(host)
    host.ask(SetQueue(second))
    host.ask(SetQueue(without(second, [2, 3])))
    saved.save(0, 1)

    states = saved.loaded()

    assert numbers(states) == [0, 1]
    assert_same(host, states)


def test_a_partition_that_is_in_the_snapshot_though_it_went_later_goes_with_the_replay() -> None:
    first = spread(HERE, HERE)
    host = started(first)
    saved = Saved(host)
    saved.save(1)
    host.ask(SetQueue(without(first, [1])))
    saved.save(0)
    assert numbers(host) == [0]

    states = saved.loaded()

    assert numbers(states) == [0]
    assert_same(host, states)


# Commands about whole queues


def test_all_partitions_are_counted_and_purged_or_the_one_that_is_named() -> None:
    host = started(spread(HERE, HERE, THERE))
    send(host, 0, 1, 2)
    send(host, 1, 3, 4, 5)

    assert [counted(host), counted(host, partition=0), counted(host, partition=1)] == [5, 2, 3]
    with pytest.raises(QueueDoesNotExist):
        counted(host, partition=2)
    with pytest.raises(QueueDoesNotExist):
        counted(host, partition=9)

    host.ask(Purge(JOBS, partition=1))
    assert [counted(host), counted(host, partition=0)] == [2, 2]
    host.ask(Purge(JOBS))
    assert counted(host) == 0
    assert_same(host, host.replayed())


def test_a_task_runs_in_each_partition_and_ends_there() -> None:
    host = started(spread(HERE, HERE), spread(HERE, queue_id=DEAD, name="dead"))
    command = StartMoveTask(JOBS, TASK, arn("jobs"), None, DEAD, None)

    assert len(tasks(host.ask(command))) == 2
    with pytest.raises(InvalidParameterValue, match="already a task running"):
        host.ask(command)
    host.ask(FinishMoveTask(JOBS, TASK, partition=1))

    assert [task.status for task in tasks(host.ask(ListMoveTasks(JOBS)))] == ["RUNNING", "COMPLETED"]
    assert [task.status for task in tasks(host.ask(ListMoveTasks(JOBS, partition=1)))] == ["COMPLETED"]
    with pytest.raises(InvalidParameterValue, match="Only active"):
        host.ask(CancelMoveTask(JOBS, TASK, partition=1))
    assert [task.status for task in tasks(host.ask(CancelMoveTask(JOBS, TASK)))] == ["CANCELLED"]
    with pytest.raises(ResourceNotFound):
        host.ask(CancelMoveTask(JOBS, b"another-task-----"))
    assert_same(host, host.replayed())


def test_tasks_of_several_partitions_are_listed_the_newest_first() -> None:
    host = started(spread(HERE, HERE), spread(HERE, queue_id=DEAD, name="dead"))
    for at, number in enumerate((0, 1, 0)):
        host.ask(
            StartMoveTask(JOBS, identity(at), arn("jobs"), None, DEAD, None, partition=number), after_ms=1_000
        )
        host.ask(FinishMoveTask(JOBS, identity(at), partition=number))

    found = [task.task_id for task in tasks(host.ask(ListMoveTasks(JOBS)))]

    assert found == [identity(2), identity(1), identity(0)]


def test_messages_of_each_partition_are_received_there() -> None:
    host = started(with_children_open(split(spread(HERE), HERE, HERE)))
    send(host, 1, 1)

    for number, expected in ((1, 1), (2, 0)):
        outcome = host.ask(Receive(JOBS, number, 10))
        assert isinstance(outcome, TakenOutcome)
        assert len(outcome.taken) == expected

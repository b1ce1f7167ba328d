"""What a command costs does not depend on how many queues others have: its steps are counted with 100 and 100,000."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn, get_args

import msgspec
import pytest
from harness.replica_host import Host, arn, message, queue
from harness.steps import calls_of

from quaymaster.core.partition.partition import Partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.claims import Claim, DescribeClaims, ReadClaim, ReleaseClaims, Settle
from quaymaster.core.values.commands.completions import Complete, Output
from quaymaster.core.values.commands.decided import Consume, ExpireMessages, WriteBarrier
from quaymaster.core.values.commands.logs import Fetch, FindOffset, LogBounds, ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Peek,
    Purge,
    Receipt,
    Receive,
    Send,
    Watch,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    StartMoveTask,
    TakeForMove,
)
from quaymaster.core.values.commands.moves import EndMoves, MovedMessage, MoveIn, MoveMessage
from quaymaster.core.values.commands.partitions import (
    AskGroups,
    AskIds,
    AskMarks,
    AskPartition,
    ForgetQueue,
    ListDataKeys,
    SetQueue,
)
from quaymaster.core.values.commands.transactions import (
    AbortTransaction,
    CommitTransaction,
    StageCount,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command, InternalCommand
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

FEW, MANY = 100, 100_000
JOBS, DEAD, LOG, GROUP, NEW, ONCE = 1, 2, 3, 4, 5, 6
OTHERS_FROM = 1_000
TASK = b"task-number-one-"


def output(number: int) -> Output:
    sent = message(number)
    return Output(DEAD, 0, 0, int.from_bytes(sent.message_id[8:], "big"), arn("dead"), sent.payload)


# In this order each finds what it needs, and has some work to do.
STEPS: list[Command | InternalCommand] = [
    SetQueue(queue(NEW, "new")),
    Send(JOBS, 0, [message(1), message(2, dedup=b"d" * 16), message(3)]),
    Watch(JOBS, 0, 0),
    Receive(JOBS, 0, 2, 60_000),
    ChangeVisibility(JOBS, 0, [Receipt(1, 1, 1)], [30_000]),
    Delete(JOBS, 0, [Receipt(1, 1, 1)]),
    CountMessages(JOBS),
    Peek(JOBS, 0, 1, 10),
    Send(LOG, 0, [message(4)]),
    Fetch(LOG, 0, 1, 2, 1_000),
    LogBounds(LOG, 0),
    FindOffset(LOG, 0, 0),
    ResetGroup(GROUP, "earliest"),
    SetGroupOffset(GROUP, 0, 2),
    StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(5), message(6)]),
    CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 2)]),
    AbortTransaction(JOBS, 0, "sink", 2),
    Send(DEAD, 0, [message(7), message(8)]),
    StartMoveTask(DEAD, TASK, arn("dead"), None, JOBS, None),
    ListMoveTasks(DEAD),
    TakeForMove(DEAD, TASK, 10),
    MoveMessage(DEAD, 0, 1, JOBS, 0, 0, None, None, task_id=TASK),
    EndMoves(DEAD, 0, partition_key(JOBS, 0), [1], []),
    MoveIn(JOBS, 0, DEAD, 0, [MovedMessage(1)]),
    FinishMoveTask(DEAD, TASK),
    StartMoveTask(DEAD, b"task-number-two-", arn("dead"), None, JOBS, None),
    CancelMoveTask(DEAD, b"task-number-two-"),
    ExpireMessages(JOBS, 0),
    Purge(JOBS),
    ForgetQueue(NEW),
    WriteBarrier(),
    AskMarks(0),
    AskGroups(JOBS, 0, bytes(8)),
    AskPartition(JOBS, 0),
    AskIds(JOBS, 0),
    Send(JOBS, 0, [message(9), message(10)]),
    Claim(JOBS, 0, "spark", "a", 1, 10, 0, 60_000),
    ReadClaim(JOBS, 0, "spark", 1, 0, 1, 1_000),
    DescribeClaims(JOBS, 0),
    Settle(JOBS, 0, "spark", "a", 1),
    ReleaseClaims(JOBS, 0, "spark"),
    Send(ONCE, 0, [message(11)]),
    Receive(ONCE, 0, 1, 60_000),
    Consume(ONCE, 0, [1]),
    Send(JOBS, 0, [message(13)]),
    Receive(JOBS, 0, 2, 60_000),
    Complete(JOBS, 0, [Receipt(8, 1, 1)], [output(12)], 1),
]


class Unwalked(dict[int, Any]):
    """What has an entry for each queue: look-ups only."""

    def _walked(self) -> NoReturn:
        raise AssertionError("a command walked all queues")

    def __iter__(self) -> Iterator[int]:
        self._walked()

    def keys(self) -> NoReturn:
        self._walked()

    def values(self) -> NoReturn:
        self._walked()

    def items(self) -> NoReturn:
        self._walked()

    def copy(self) -> NoReturn:
        self._walked()


def with_others(count: int) -> Host:
    """Return a host with a few queues of one account, and so many of others, each with a task that is over."""
    host = Host(states=QueueStates(MemoryChunks(), retry_window_ms=120_000))
    for definition in (
        queue(JOBS, "jobs"),
        queue(DEAD, "dead"),
        queue(LOG, "log", attributes={"RetentionMode": "Log"}),
        queue(ONCE, "once", attributes={"DeliveryGuarantee": "AtMostOnce"}),
        msgspec.structs.replace(queue(GROUP, "log@a"), group_of=LOG),
    ):
        host.ask(SetQueue(definition))
    host.ask(SetQueue(queue(OTHERS_FROM, "theirs")))
    host.ask(Send(OTHERS_FROM, 0, [message(1)]))
    host.ask(StartMoveTask(OTHERS_FROM, TASK, arn("theirs"), None, JOBS, None))
    host.ask(FinishMoveTask(OTHERS_FROM, TASK))
    states = host.states
    theirs, partition = states.definitions[OTHERS_FROM], host.partition(OTHERS_FROM)
    definitions: dict[int, QueueDefinition] = Unwalked(states.definitions | {})
    partitions: dict[int, Partition] = Unwalked(states.partitions | {})
    for queue_id in range(OTHERS_FROM + 1, OTHERS_FROM + count):  # the same one, by many names
        definitions[queue_id] = theirs
        partitions[partition_key(queue_id, 0)] = partition
    states.definitions, states.partitions = definitions, partitions
    return host


@pytest.fixture(scope="module")
def steps() -> dict[str, list[int]]:
    """How many functions each command calls, with few other queues and with many."""
    found: dict[str, list[int]] = {}
    for count in (FEW, FEW, MANY):  # the first is to warm up what is made once
        host = with_others(count)
        for number, command in enumerate(STEPS):
            ask: Callable[[], object] = partial(host.ask, command, after_ms=1)
            found.setdefault(f"{number} {type(command).__name__}", []).append(calls_of(ask))
    return found


def test_each_command_is_counted() -> None:
    asked = {type(command) for command in STEPS}
    # The list of data keys is read from files, a page at a time; no command of the core.
    assert asked == {*get_args(Command), *get_args(InternalCommand)} - {ListDataKeys}


@pytest.mark.parametrize("name", [f"{at} {type(command).__name__}" for at, command in enumerate(STEPS)])
def test_a_command_takes_as_many_steps_with_100_queues_as_with_100000(
    steps: dict[str, list[int]], name: str
) -> None:
    _, few, many = steps[name]

    assert abs(many - few) <= 5


def test_what_a_new_leader_looks_through_are_sets_of_what_is_under_way() -> None:
    host = with_others(FEW)
    host.ask(Send(DEAD, 0, [message(1)]))
    host.ask(StartMoveTask(DEAD, TASK, arn("dead"), None, JOBS, None))
    host.ask(TakeForMove(DEAD, TASK, 10))

    assert list(host.states.running_tasks) == [partition_key(DEAD, 0)]
    assert [(found.key, sequence) for found, sequence in host.states.undecided()] == [
        (partition_key(DEAD, 0), 1)
    ]
    assert host.states.sending_away == set()


def test_a_leader_that_begins_to_serve_walks_through_no_partitions() -> None:
    host = Host(states=with_others(FEW).states)

    assert host.replica.is_leading
    host.ask(Send(JOBS, 0, [message(1)]))


def test_a_snapshot_looks_at_what_changed_only() -> None:
    steps: list[int] = []
    for count in (FEW, FEW, MANY):
        host = with_others(count)
        for key in host.states.dirty_keys():
            host.states.partitions[key].note_saved()
        host.ask(Send(JOBS, 0, [message(1)]))

        found: list[int] = []
        steps.append(calls_of(lambda found=found, host=host: found.extend(host.states.dirty_keys())))  # type: ignore[misc]

        assert found == [partition_key(JOBS, 0)]
    assert steps[1] == steps[2]


def test_a_walk_is_noticed() -> None:
    host = with_others(FEW)

    for walk in (
        lambda: list(host.states.partitions),
        lambda: list(host.states.partitions.values()),
        lambda: list(host.states.definitions.items()),
        lambda: list(host.states.definitions.keys()),
        lambda: host.states.partitions.copy(),
    ):
        with pytest.raises(AssertionError, match="walked all queues"):
            walk()

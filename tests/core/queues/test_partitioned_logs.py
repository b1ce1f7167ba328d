"""Logs with several partitions: each consumer group follows every partition, wherever and whenever that begins."""

from __future__ import annotations

from array import array
from itertools import permutations

import pytest
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    arn,
    far_queue,
    message,
    queue,
    receipts_of,
    replay,
    snapshot_of,
)

from core.queues.test_partitions import assert_same, new_states, numbers
from quaymaster.core.partition.expiry import find_expired, is_over_size
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures import log_sizes
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.values.commands.decided import ExpireMessages, TakenOutcome
from quaymaster.core.values.commands.logs import LogBounds, LogBoundsOutcome, ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import Delete, Purge, Receive, Send
from quaymaster.core.values.commands.moves import EndMoves, MoveBegun, MoveMessage
from quaymaster.core.values.commands.partitions import (
    AskGroups,
    AskPartition,
    ForgetQueue,
    GroupsOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import (
    SEQUENCE_SPAN,
    entries_to_split,
    with_children,
    with_children_open,
    with_state,
    without,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

LOG, A, B = 1, 2, 3
HERE, THERE = 0, 1
FIRST = SEQUENCE_SPAN
"""The first sequence number of children."""


BY_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


def log(name: str = "log", **attributes: str) -> QueueDefinition:
    by_group = BY_GROUP if name.endswith(".fifo") else {}
    return queue(LOG, name, attributes={"RetentionMode": "Log", **by_group, **attributes})


def group(queue_id: int, name: str, start: str = "") -> QueueDefinition:
    attributes = {"GroupStart": start} if start else {}
    return replace_definition(queue(queue_id, name, attributes=attributes), group_of=LOG)


def with_new(definition: QueueDefinition, *journals: int) -> QueueDefinition:
    parents, ranges = entries_to_split(definition, len(journals))
    return with_children(definition, parents, ranges, journals)


def split(host: Host, *journals: int) -> QueueDefinition:
    """Split the log's partition, and return the table in which its children are open."""
    new = with_new(host.states.definitions[LOG], *journals)
    host.ask(SetQueue(new))
    opened = with_children_open(new)
    host.ask(SetQueue(opened))
    return opened


def host_of(definition: QueueDefinition, *groups: QueueDefinition, journal_id: int = HERE) -> Host:
    host = Host(states=new_states(journal_id))
    for each in (definition, *groups):
        host.ask(SetQueue(each, journal_id))
    return host


def send(host: Host, number: int, *tokens: int, group: int = 0) -> None:
    host.ask(Send(LOG, number, [message(token, group=group) for token in tokens]))


def receive(host: Host, queue_id: int, number: int, *, timeout_ms: int = -1) -> list[int]:
    outcome = host.ask(Receive(queue_id, number, 10, timeout_ms))
    assert isinstance(outcome, TakenOutcome)
    return [taken.sequence for taken in outcome.taken]


def bounds(host: Host, queue_id: int, number: int) -> tuple[int, int]:
    outcome = host.ask(LogBounds(queue_id, number))
    assert isinstance(outcome, LogBoundsOutcome)
    return outcome.earliest, outcome.end


def is_empty(host: Host, number: int) -> bool:
    outcome = host.ask(AskPartition(LOG, number))
    assert isinstance(outcome, PartitionOutcome)
    return outcome.is_empty


Saved = tuple[QueueDefinition, int, int, bytes]
"""Definition, number and offset of a partition's snapshot, and its bytes."""


def saved(host: Host, queue_id: int, number: int) -> Saved:
    partition = host.states.partition(queue_id, number)
    partition.applied = host.replica.end_offset
    return partition.definition, number, partition.applied, snapshot_of(partition)


def restarted(host: Host, *snapshots: Saved) -> QueueStates:
    keeper = host.states._keeper
    states = QueueStates(keeper, retry_window_ms=RETRY_WINDOW_MS, journal_id=host.states.journal_id)
    for definition, number, _, data in snapshots:
        loaded = load_partition(data, definition, number, keeper, retry_window_ms=RETRY_WINDOW_MS)
        states.load(definition, [loaded])
    states.attach_groups()
    return replay(host.batches, states=states, start=min(applied for _, _, applied, _ in snapshots))


def replayed(host: Host) -> QueueStates:
    journal_id = host.states.journal_id
    states = new_states(journal_id)
    return replay(host.batches, states=states)


def test_groups_follow_the_partitions_that_their_log_is_split_into() -> None:
    host = host_of(log(), group(A, "log@a"), group(B, "log@b", "latest"))
    send(host, 0, 1, 2)
    assert receive(host, A, 0) == [1, 2]

    split(host, HERE, HERE)
    send(host, 1, 3)
    send(host, 2, 4, 5)

    for queue_id in (LOG, A, B):
        assert numbers(host.states, queue_id) == [0, 1, 2]
    assert receive(host, A, 1) == [FIRST]
    assert receive(host, B, 2) == [FIRST, FIRST + 1]
    assert bounds(host, B, 0) == (1, 3)
    assert bounds(host, B, 1) == (FIRST, FIRST + 1)
    assert host.states.partition(A, 0).is_sealed
    assert_same(host, replayed(host))


def test_a_journal_that_hears_of_a_log_when_it_is_split_has_its_groups_from_the_first_message_on() -> None:
    new = with_new(log(GroupStart="latest"), THERE, THERE)
    host = host_of(new, group(A, "log@a"), journal_id=THERE)
    host.ask(SetQueue(with_children_open(new)))
    send(host, 1, 1)
    send(host, 2, 2)

    assert receive(host, A, 1) == [FIRST]
    assert receive(host, A, 2) == [FIRST]
    assert_same(host, replayed(host))


def test_a_group_that_is_known_is_not_written_again() -> None:
    host = host_of(log(), group(A, "log@a"))
    end = host.replica.end_offset

    host.ask(SetQueue(replace_definition(group(A, "log@a"), revision=9)))

    assert host.replica.end_offset == end
    assert host.states.definitions[A].revision == 1


def test_a_partition_that_leaves_a_log_leaves_its_groups() -> None:
    host = host_of(log(), group(A, "log@a"))
    send(host, 0, 1)
    opened = split(host, HERE, HERE)
    send(host, 1, 2)

    assert not is_empty(host, 0)
    host.ask(Purge(LOG, 0))
    assert is_empty(host, 0)
    drained = with_state(with_state(opened, 0, "closed"), 0, "drained")
    host.ask(SetQueue(without(drained, [0])))

    assert numbers(host.states, LOG) == numbers(host.states, A) == [1, 2]
    assert receive(host, A, 1) == [FIRST]
    assert_same(host, replayed(host))


def test_a_journal_that_has_no_partition_of_a_log_any_more_forgets_its_groups() -> None:
    new = with_new(log(), THERE, THERE)
    host = host_of(new, group(A, "log@a"), journal_id=THERE)

    host.ask(SetQueue(without(new, [1, 2])))

    assert host.states.definitions == {}
    assert host.states.partitions == {}
    assert_same(host, replayed(host))


def test_a_group_that_is_deleted_leaves_those_beside_it() -> None:
    host = host_of(log(), group(A, "log@a"), group(B, "log@b"))

    host.ask(ForgetQueue(A))
    split(host, HERE, HERE)
    send(host, 1, 1)

    assert A not in host.states.definitions
    assert receive(host, B, 1) == [FIRST]
    assert_same(host, replayed(host))


def test_a_partition_of_a_log_is_not_empty_while_dead_letters_of_a_group_are_leaving() -> None:
    policy = f'{{"deadLetterTargetArn": "{arn("far")}", "maxReceiveCount": 1}}'
    host = host_of(log(RedrivePolicy=policy), group(A, "log@a"))
    host.states.elsewhere = QueuesElsewhere(CellFormat())
    host.states.elsewhere.places[arn("far")] = far_queue(9, "far", 5)
    send(host, 0, 1)
    receive(host, A, 0, timeout_ms=0)
    outcome = host.ask(Receive(A, 0, 10))
    assert isinstance(outcome, TakenOutcome)
    (letter,) = outcome.dead_letters
    row, payload = host.payload(letter.offset)
    begun = host.ask(
        MoveMessage(
            A, 0, letter.sequence, 9, row.type, row.flags, payload, None, target=far_queue(9, "far", 5)
        )
    )
    assert isinstance(begun, MoveBegun)
    split(host, HERE, HERE)
    host.ask(Purge(LOG, 0))

    assert not is_empty(host, 0)
    host.ask(EndMoves(A, 0, begun.target_key, [begun.number], []))

    assert is_empty(host, 0)


def test_each_partition_of_a_log_keeps_its_share_of_the_bytes_and_a_sealed_one_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sizes, "STRETCH_MESSAGES", 2)
    each = len(message(1).payload)
    host = host_of(log(RetentionBytes=str(8 * each)))
    send(host, 0, *range(1, 9))

    split(host, HERE, HERE)
    send(host, 1, *range(9, 15))
    send(host, 2, *range(15, 19))

    sealed, first, second = host.states.partitions_of(LOG)
    assert [is_over_size(partition) for partition in (sealed, first, second)] == [False, True, False]
    host.ask(ExpireMessages(LOG, 1))
    assert find_expired(sealed, host.now_ms, 100) == (1, [])
    assert bounds(host, LOG, 1) == (FIRST + 2, FIRST + 6)


@pytest.mark.parametrize("name", ["log", "log.fifo"])
def test_groups_and_logs_of_snapshots_of_different_moments_come_to_the_same(name: str) -> None:
    """A log's partition may be newer than a group's and older, not begun in the one and gone in the other."""
    moments: list[dict[tuple[int, int], Saved]] = []

    def note() -> None:
        here = [
            (queue_id, number)
            for queue_id in (LOG, A)
            for number in (numbers(host.states, queue_id) if queue_id in host.states.definitions else [])
        ]
        moments.append({place: saved(host, *place) for place in here})

    host = host_of(log(name), group(A, f"{name}@a"))
    send(host, 0, 1, 2, group=5)
    note()
    opened = split(host, HERE, HERE)
    send(host, 1, 3, 4, group=6)
    host.ask(SetGroupOffset(A, 1, FIRST + 1))
    note()
    host.ask(Purge(LOG))
    send(host, 2, 5, group=7)
    note()
    host.ask(SetQueue(without(with_state(opened, 0, "drained"), [0])))
    send(host, 1, 6, group=6)
    note()

    for of_log, of_group in permutations(range(len(moments)), 2):
        parts = [part for (queue_id, _), part in moments[of_log].items() if queue_id == LOG]
        parts += [part for (queue_id, _), part in moments[of_group].items() if queue_id == A]
        assert_same(host, restarted(host, *parts))
    assert_same(host, replayed(host))


def test_a_group_of_a_fifo_log_that_begins_anew_is_held_until_older_partitions_are_consumed_again() -> None:
    steps = 11
    host = host_of(log("log.fifo"), group(A, "log.fifo@a"))
    send(host, 0, 1, group=steps)
    split(host, HERE, HERE)
    send(host, 1, 2, group=steps)
    child = host.states.partition(A, 1)
    assert isinstance(child.order, FIFOOrder)

    def ask() -> list[int]:
        """Ask the parent what the child wants to know; return which groups are free then."""
        assert isinstance(child.order, FIFOOrder)
        assert child.order.holds is not None
        groups = child.order.holds.to_ask(0, 10, "first")
        outcome = host.ask(AskGroups(A, 0, array("Q", groups).tobytes()))
        assert isinstance(outcome, GroupsOutcome)
        assert outcome.is_sealed
        freed = child.order.holds.answered(0, groups, array("Q", outcome.gone), look=0)
        child.order.release(freed, host.now_ms)
        return freed

    assert receive(host, A, 1) == []
    host.ask(Delete(A, 0, receipts_of(host.ask(Receive(A, 0, 10)))))
    assert ask() == [steps]
    assert receive(host, A, 1) == [FIRST]

    for number in (0, 1):
        host.ask(ResetGroup(A, "earliest", number))

    assert receive(host, A, 1) == []
    assert ask() == []
    assert receive(host, A, 0) == [1]
    assert_same(host, replayed(host))

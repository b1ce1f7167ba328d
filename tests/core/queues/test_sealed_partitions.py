"""What a partition does once it is sealed, and how those learn of newer partitions who ask older ones."""

from __future__ import annotations

import msgspec
import pytest
from harness.replica_host import Host, arn, identity, message, moved, queue, receipts_of
from pyroaring import BitMap

from core.queues.test_partitions import DEAD, HERE, JOBS, TASK, Saved, assert_same, split, spread, started
from quaymaster.core.partition.partition_snapshots import (
    STATE_VERSION_WITHOUT_PARTITIONS,
    STATE_VERSION_WITHOUT_SETTLED,
    snapshot_pieces,
    state_version_min,
)
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.ids.recent_ids import top_of
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import Duplicate, SentElsewhere, SentOutcome, TakenOutcome
from quaymaster.core.values.commands.messages import (
    Delete,
    Done,
    Elsewhere,
    NewMessage,
    Receipt,
    Receive,
    Send,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.move_tasks import CancelMoveTask, StartMoveTask
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import (
    ANY_TABLE,
    AskIds,
    AskPartition,
    IdsOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StageCount,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import InvalidParameterValue, NotNow, OverLimit, QueueRevisionTaken
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import (
    SEQUENCE_SPAN,
    entries_to_merge,
    with_children,
    with_children_open,
    with_state,
    without,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition

BY_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


def fifo() -> QueueDefinition:
    return queue(JOBS, "jobs.fifo", attributes=BY_GROUP)


def send(host: Host, *messages: NewMessage, number: int = 0, after_ms: int = 0) -> Decided:
    return host.ask(Send(JOBS, number, list(messages)), after_ms=after_ms)


def received(host: Host, number: int = 0, *, table_version: int = ANY_TABLE) -> list[Receipt]:
    return receipts_of(host.ask(Receive(JOBS, number, 10, table_version=table_version)))


def state_of(host: Host, number: int = 0, after_ms: int = 0) -> PartitionOutcome:
    outcome = host.ask(AskPartition(JOBS, number), after_ms=after_ms)
    assert isinstance(outcome, PartitionOutcome)
    return outcome


def watch(host: Host, table_version: int = ANY_TABLE, *, after_ms: int = 0) -> Decided:
    return host.ask(Watch(JOBS, 0, 0, table_version), after_ms=after_ms)


# Sends


def test_a_sealed_partition_stores_nothing_and_says_where_to_go() -> None:
    host = started(spread(HERE))
    first = message(1, dedup=identity(1), retry=identity(11))
    send(host, first)
    sealed = moved(spread(HERE))
    host.ask(SetQueue(sealed))

    outcome = send(host, first, message(2), message(3, dedup=identity(3)))

    assert isinstance(outcome, SentElsewhere)
    assert outcome.definition == sealed
    (found, *others) = outcome.results
    assert isinstance(found, Duplicate)
    assert others == [None, None]
    assert host.partition(JOBS).alive == 1
    assert_same(host, host.replayed())


def test_a_sealed_partition_answers_a_send_of_duplicates_as_ever() -> None:
    host = started(spread(HERE))
    first, second = message(1, dedup=identity(1)), message(2, retry=identity(2))
    send(host, first, second)
    host.ask(SetQueue(moved(spread(HERE))))

    assert isinstance(send(host, first, second), SentOutcome)
    # What may be no retry is not looked for, and outside of the window nothing is known.
    assert isinstance(send(host, message(2, retry=identity(2), may_be_retry=False)), SentOutcome)
    assert isinstance(send(host, first, second, after_ms=300_001), SentElsewhere)


def test_a_first_attempt_is_not_looked_for_in_a_sealed_partition_to_which_no_repeat_came() -> None:
    host = started(spread(HERE))
    host.ask(SetQueue(moved(spread(HERE))))

    outcome = send(host, message(2, retry=identity(2), may_be_retry=False), after_ms=200_000)

    assert isinstance(outcome, SentElsewhere)


def test_it_is_said_where_to_go_only_once_the_seal_is_committed() -> None:
    host = Host(is_slow=True)
    host.ask(SetQueue(spread(HERE)))
    host.propose(SetQueue(moved(spread(HERE))))

    tokens = [
        host.propose(command)
        for command in (
            Send(JOBS, 0, [message(1)]),
            Receive(JOBS, 0, 1, table_version=1),
            AskPartition(JOBS, 0),
        )
    ]

    assert not any(token in host.replies for token in tokens)
    host.make_durable()
    assert [type(host.replies[token]) for token in tokens] == [SentElsewhere, Elsewhere, PartitionOutcome]


def test_a_sealed_partition_tells_which_ids_it_may_know_once_that_is_committed() -> None:
    host = Host(is_slow=True)
    host.ask(SetQueue(fifo()))
    send(host, message(1, group=1, dedup=identity(1)), message(2, group=2, dedup=identity(2)))
    assert host.ask(AskIds(JOBS, 0)) == IdsOutcome(b"", is_known=False)
    host.propose(SetQueue(moved(fifo())))

    token = host.propose(AskIds(JOBS, 0))

    assert token not in host.replies
    host.make_durable()
    outcome = host.replies[token]
    assert isinstance(outcome, IdsOutcome)
    assert outcome.is_known
    assert set(BitMap.deserialize(outcome.tops)) == {top_of(identity(1)), top_of(identity(2))}


def test_a_sealed_partition_without_ids_tells_that_it_knows_none() -> None:
    host = started(fifo())
    host.ask(SetQueue(moved(fifo())))

    assert host.ask(AskIds(JOBS, 0)) == IdsOutcome(BitMap().serialize())


def test_messages_of_a_sealed_partition_are_received_and_deleted_as_ever() -> None:
    host = started(spread(HERE))
    send(host, message(1), message(2))
    host.ask(SetQueue(moved(spread(HERE))))

    receipts = received(host)
    assert len(receipts) == 2
    host.ask(Delete(JOBS, 0, receipts))

    assert host.partition(JOBS).alive == 0
    send(host, message(3), number=1)
    assert received(host, 1)[0].sequence == SEQUENCE_SPAN
    assert_same(host, host.replayed())


# Transactions


def test_a_sealed_partition_finishes_open_transactions_and_begins_none() -> None:
    host = started(spread(HERE))
    host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(1)]))
    host.ask(StageMessages(JOBS, 0, "other", 1, "0", 0, [message(2)]))
    sealed = moved(spread(HERE))
    host.ask(SetQueue(sealed))

    assert host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 1, [message(3)])) == StagedOutcome(2)
    assert host.ask(StageMessages(JOBS, 0, "sink", 2, "0", 0, [message(4)])) == Elsewhere(sealed)
    assert host.ask(CommitTransaction(JOBS, 0, "sink", 2, [])) == Elsewhere(sealed)
    assert host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 2)])) == CommittedOutcome(2)
    assert host.ask(AbortTransaction(JOBS, 0, "other", 1)) == AbortedOutcome(is_aborted=True)
    again = host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 2)]))
    assert isinstance(again, CommittedOutcome)
    assert again.was_committed
    assert host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(1)])) == StagedOutcome(
        0, is_committed=True
    )

    assert host.partition(JOBS).alive == 2
    assert_same(host, host.replayed())


def test_a_sealed_partition_says_nothing_of_a_transaction_that_it_does_not_know_when_that_is_aborted() -> (
    None
):
    """Its child may have it, open or committed."""
    host = started(spread(HERE))
    sealed = moved(spread(HERE))
    host.ask(SetQueue(sealed))
    host.ask(StageMessages(JOBS, 1, "sink", 1, "0", 0, [message(1)]))
    host.ask(CommitTransaction(JOBS, 1, "sink", 1, [StageCount("0", 1)]))

    assert host.ask(AbortTransaction(JOBS, 0, "sink", 1)) == Elsewhere(sealed)
    assert host.ask(AbortTransaction(JOBS, 1, "sink", 1)) == AbortedOutcome(is_aborted=False)


def test_one_of_several_partitions_of_a_fifo_queue_begins_no_transaction_until_it_is_sealed() -> None:
    """It would have messages of groups that are its siblings': front ends ask it while it is merged with them."""
    host = started(fifo())
    divided = with_children_open(split(fifo(), HERE, HERE))
    host.ask(SetQueue(divided))
    stage = StageMessages(JOBS, 1, "sink", 1, "0", 0, [message(1, group=1)])

    with pytest.raises(NotNow, match="are being merged"):
        host.ask(stage)
    parents, ranges = entries_to_merge(divided, [1, 2])
    merged = with_children_open(with_children(with_state(divided, 0, "closed"), parents, ranges, [HERE]))
    host.ask(SetQueue(merged))

    assert host.ask(stage) == Elsewhere(merged)
    assert host.ask(msgspec.structs.replace(stage, partition=3)) == StagedOutcome(1)


def test_open_transactions_of_a_fifo_partition_are_dropped_with_its_seal() -> None:
    host = started(fifo())
    host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(1, group=1)]))
    sealed = moved(fifo())

    host.ask(SetQueue(sealed))

    assert state_of(host).is_empty
    assert host.states.open_stages.of_account(sealed.account_id) == 0
    assert host.ask(CommitTransaction(JOBS, 0, "sink", 1, [StageCount("0", 1)])) == Elsewhere(sealed)
    assert_same(host, host.replayed())


# The seal itself


def test_a_partition_is_sealed_once_at_the_time_of_the_record() -> None:
    host = started(spread(HERE))
    assert state_of(host).sealed_for_ms is None
    sealed = moved(spread(HERE))

    host.ask(SetQueue(sealed), after_ms=5_000)
    host.ask(SetQueue(with_state(sealed, 0, "closed")), after_ms=7_000)

    assert state_of(host, after_ms=1_000).sealed_for_ms == 8_000
    assert state_of(host, 1).sealed_for_ms is None
    assert state_of(host).table_version == 4
    assert_same(host, host.replayed())


def test_a_partition_that_begins_sealed_takes_nothing() -> None:
    host = started(moved(spread(HERE)))

    assert state_of(host).sealed_for_ms == 0
    assert isinstance(send(host, message(1)), SentElsewhere)
    assert_same(host, host.replayed())


def test_a_seal_is_replayed_to_partitions_whose_snapshot_is_older_than_the_table() -> None:
    host = started(spread(HERE, HERE))
    saved = Saved(host)
    saved.save(0)
    send(host, message(1))
    host.ask(SetQueue(with_children_open(split(spread(HERE, HERE), HERE, HERE))), after_ms=5_000)
    saved.save(1, 2)

    states = saved.loaded()

    assert states.partition(JOBS, 0).sealed_ms == host.now_ms
    assert_same(host, states)


def test_a_seal_is_in_the_snapshot() -> None:
    host = started(spread(HERE))
    host.ask(SetQueue(moved(spread(HERE))))
    host.ask(Send(JOBS, 1, [message(1)]))
    saved = Saved(host)
    saved.save(0, 1)

    assert_same(host, saved.loaded())


@pytest.mark.parametrize("number", [0, 1])
def test_a_snapshot_that_older_programs_read_says_nothing_of_partitions(number: int) -> None:
    host = started(spread(HERE))
    assert state_version_min(host.partition(JOBS)) < STATE_VERSION_WITHOUT_PARTITIONS
    host.ask(SetQueue(moved(spread(HERE))))

    partition = host.states.partition(JOBS, number)

    assert state_version_min(partition) == STATE_VERSION_WITHOUT_SETTLED
    with pytest.raises(AssertionError):
        list(snapshot_pieces(partition, STATE_VERSION_WITHOUT_PARTITIONS))


def test_a_seal_wakes_those_who_wait() -> None:
    host = started(spread(HERE))
    host.awake.clear()

    host.ask(SetQueue(moved(spread(HERE))))

    assert host.partition(JOBS) in host.awake


# Until it is drained


def test_a_partition_is_empty_when_nothing_is_left_to_do_with_it() -> None:
    host = started(spread(HERE), queue(DEAD, "dead"))
    assert state_of(host).is_empty
    send(host, message(1))
    assert not state_of(host).is_empty
    host.ask(Delete(JOBS, 0, received(host)))
    found = state_of(host)
    assert (found.is_empty, found.messages, found.sends, found.deletions) == (True, 0, 1, 1)

    host.ask(StartMoveTask(JOBS, TASK, arn("jobs"), None, DEAD, None))
    assert not state_of(host).is_empty
    host.ask(CancelMoveTask(JOBS, TASK))
    assert state_of(host).is_empty

    host.ask(StageMessages(JOBS, 0, "sink", 1, "0", 0, [message(2)]))
    assert not state_of(host).is_empty
    host.ask(AbortTransaction(JOBS, 0, "sink", 1))
    assert state_of(host).is_empty


def test_a_partition_is_not_empty_while_a_message_is_on_its_way() -> None:
    host = started(spread(HERE))
    send(host, message(1))
    partition = host.partition(JOBS)
    (sequence,) = partition.take_visible(1, host.now_ms)
    partition.moving[sequence] = 0
    row, payload = host.payload(partition.index.entry(sequence).offset)
    host.ask(
        MoveMessage(
            JOBS,
            0,
            sequence,
            99,
            row.type,
            row.flags,
            payload,
            arn("jobs"),
            target=spread(5, queue_id=99, name="far"),
        )
    )
    partition.apply_delete([sequence], host.now_ms)

    assert not partition.alive
    assert not state_of(host).is_empty


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_sealed_partition_goes_when_it_is_not_listed_and_empty(is_emptied: bool) -> None:
    host = started(spread(HERE))
    send(host, message(1))
    sealed = moved(spread(HERE))
    host.ask(SetQueue(sealed))
    if is_emptied:
        host.ask(Delete(JOBS, 0, received(host)))

    host.ask(SetQueue(without(sealed, [0])))

    assert [one.number for one in host.states.partitions_of(JOBS)] == ([1] if is_emptied else [1, 0])
    assert_same(host, host.replayed())


# Newer tables


def test_who_finds_nothing_and_knows_an_older_table_is_told_of_the_newer_one() -> None:
    host = started(spread(HERE))
    send(host, message(1))
    newer = split(spread(HERE), HERE, HERE)
    host.ask(SetQueue(newer))

    assert len(received(host, table_version=1)) == 1

    assert host.ask(Receive(JOBS, 0, 10, table_version=1)) == Elsewhere(newer)
    assert host.ask(Receive(JOBS, 0, 10, table_version=1, wait_ms=20_000)) == Elsewhere(newer)
    assert received(host, table_version=2) == []
    assert received(host, table_version=ANY_TABLE) == []
    assert watch(host, 1) == Elsewhere(newer)
    assert watch(host, 2) == watch(host) == WatchOutcome(False)


def test_who_is_at_the_limit_of_messages_in_flight_is_told_of_a_newer_table() -> None:
    host = Host(states=QueueStates(MemoryChunks(), retry_window_ms=120_000, in_flight_max=1))
    host.ask(SetQueue(spread(HERE)))
    send(host, message(1), message(2))
    received(host)
    newer = split(spread(HERE), HERE, HERE)
    host.ask(SetQueue(newer))

    assert host.ask(Receive(JOBS, 0, 10, table_version=1)) == Elsewhere(newer)
    with pytest.raises(OverLimit):
        host.ask(Receive(JOBS, 0, 10, table_version=2))
    assert watch(host, 1) == Elsewhere(newer)
    assert watch(host, 2) == WatchOutcome(False)


def test_a_receive_may_ask_for_nothing_but_what_its_attempt_has() -> None:
    host = started(fifo())
    send(host, message(1, group=1), message(2, group=2))
    newer = moved(fifo())
    attempt = identity(5)

    assert host.ask(Receive(JOBS, 0, 1, attempt=attempt, only_attempt=True)) == TakenOutcome(1, [], [], False)
    first = host.ask(Receive(JOBS, 0, 1, attempt=attempt))
    again = host.ask(Receive(JOBS, 0, 1, attempt=attempt, only_attempt=True))
    other = host.ask(Receive(JOBS, 0, 1, attempt=identity(6), only_attempt=True))

    assert isinstance(first, TakenOutcome)
    assert isinstance(again, TakenOutcome)
    assert [one.sequence for one in again.taken] == [one.sequence for one in first.taken] == [1]
    assert other == TakenOutcome(1, [], [], False)
    host.ask(SetQueue(newer))
    told = host.ask(Receive(JOBS, 0, 1, attempt=identity(6), only_attempt=True, table_version=1))
    assert told == Elsewhere(newer)


def test_a_sealed_partition_refuses_no_attempt_for_messages_that_may_be_in_its_children() -> None:
    host = started(fifo())
    send(host, message(1, group=1))
    attempt = identity(5)
    first = host.ask(Receive(JOBS, 0, 1, attempt=attempt))
    assert isinstance(first, TakenOutcome)
    host.ask(Delete(JOBS, 0, receipts_of(first)))
    again = Receive(JOBS, 0, 1, attempt=attempt, only_attempt=True, attempt_id="once")
    with pytest.raises(InvalidParameterValue):
        host.ask(again)

    host.ask(SetQueue(moved(fifo())))

    assert host.partition(JOBS).is_sealed
    assert host.ask(again) == TakenOutcome(1, [], [], False)


def test_a_journal_with_a_later_table_answers_with_it_and_changes_nothing() -> None:
    host = started(spread(HERE))
    later = split(spread(HERE), HERE, HERE)
    host.ask(SetQueue(later))
    end = host.replica.end_offset

    others = replace_definition(split(spread(HERE), HERE, 7), revision=9)
    assert host.ask(SetQueue(others)) == Elsewhere(later)
    assert host.ask(SetQueue(replace_definition(spread(HERE), revision=9))) == Elsewhere(later)

    assert host.replica.end_offset == end
    assert host.ask(SetQueue(later)) == Done()
    with pytest.raises(QueueRevisionTaken):
        host.ask(SetQueue(replace_definition(later, table_version=9, next_partition=9)))


def test_in_an_older_cell_a_table_is_not_compared_with_what_is_left_out() -> None:
    host = started(spread(HERE))
    host.states.cell_format = CellFormat(1)

    assert host.ask(SetQueue(replace_definition(spread(HERE), table_version=9))) == Done()


# Watches


def filled(name: str) -> Host:
    host = started(queue(JOBS, name))
    send(host, message(1, group=1, dedup=identity(1)), message(2, group=1, dedup=identity(2)))
    return host


@pytest.mark.parametrize("name", ["jobs", "jobs.fifo"])
def test_a_watch_tells_whether_a_receive_would_find_something_and_takes_nothing(name: str) -> None:
    host = started(queue(JOBS, name))
    assert watch(host) == WatchOutcome(False)
    send(host, message(1, group=1, dedup=identity(1)))
    before = host.states.state_hash(host.now_ms), host.replica.end_offset

    assert watch(host) == watch(host) == WatchOutcome(True)

    assert (host.states.state_hash(host.now_ms), host.replica.end_offset) == before
    assert [receipt.sequence for receipt in received(host)] == [1]
    assert watch(host) == WatchOutcome(False)
    assert watch(host, after_ms=30_050) == WatchOutcome(True)
    assert [receipt.delivery_count for receipt in received(host)] == [2]


def test_messages_of_blocked_groups_do_not_count_to_a_watch() -> None:
    host = filled("jobs.fifo")
    assert len(received(host)) == 2
    send(host, message(3, group=1, dedup=identity(3)))

    assert watch(host) == WatchOutcome(False)

    send(host, message(4, group=2, dedup=identity(4)))
    assert watch(host) == WatchOutcome(True)


def test_groups_that_a_parent_may_have_do_not_count_to_a_watch() -> None:
    host = started(fifo())
    send(host, message(1, group=1))
    host.ask(SetQueue(moved(fifo())))
    host.ask(Send(JOBS, 1, [message(2, group=1)]))

    outcome = host.ask(Watch(JOBS, 1, 0))
    assert isinstance(outcome, TakenOutcome)
    assert outcome.is_held
    assert host.states.asking == {JOBS << 16 | 1}


def test_a_watch_finds_a_group_that_waits_in_line_but_none_that_is_held_there() -> None:
    host = filled("jobs.fifo")
    receipts = received(host)
    host.ask(Delete(JOBS, 0, receipts[:1]))
    order = host.partition(JOBS).order
    host.partition(JOBS).put_back(2, host.now_ms)
    assert order.has_visible(host.now_ms, 3)

    host.partition(JOBS).order.hold([7], host.now_ms)  # type: ignore[union-attr]

    assert not order.has_visible(host.now_ms, 3)
    assert not order.has_visible(host.now_ms, 3)


def test_a_watch_sees_messages_with_delays_when_they_are_due() -> None:
    host = started(queue(JOBS, "jobs", attributes={"DelaySeconds": 5}))
    send(host, message(1))
    assert watch(host) == WatchOutcome(False)
    assert host.partition(JOBS).next_change_ms() is not None
    assert watch(host, after_ms=5_050) == WatchOutcome(True)
    assert len(received(host)) == 1

    send(host, message(2, delay_ms=0))
    assert watch(host) == WatchOutcome(True)


def test_a_watch_sees_messages_of_noisy_tenants() -> None:
    host = started(queue(JOBS, "jobs"))
    for at in range(10):
        send(host, *(message(10 * at + each, group=1) for each in range(10)))
    for _ in range(4):
        received(host)
    order = host.partition(JOBS).order
    send(host, message(1_000, group=2))
    received(host)

    assert order.held  # type: ignore[union-attr]
    assert watch(host) == WatchOutcome(True)


def test_a_watch_that_could_not_look_at_everything_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quaymaster.core.structures.orders.standard_order.SCAN_MAX", 3)
    host = started(queue(JOBS, "jobs", attributes={"DelaySeconds": 5}))
    send(host, *(message(number) for number in range(8)))
    host.ask(SetQueue(queue(JOBS, "jobs", revision=2, attributes={"DelaySeconds": 4})))

    assert watch(host) == TakenOutcome(1, [], [], True)
    outcomes = [watch(host) for _ in range(4)]
    assert outcomes[-1] == WatchOutcome(False)


def test_a_fifo_watch_that_could_not_look_at_everything_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quaymaster.core.structures.orders.fifo_order.SCAN_MAX", 3)
    host = started(queue(JOBS, "jobs.fifo", attributes={"DelaySeconds": 1}))
    for at in range(4):
        send(host, *(message(10 * at + each, group=each % 2 + 1) for each in range(4)))
    host.now_ms += 2_000
    for _ in range(2):
        host.ask(Receive(JOBS, 0, 1))

    found = [watch(host) for _ in range(8)]

    assert TakenOutcome(1, [], [], True) in found
    assert found[-1] == WatchOutcome(False)

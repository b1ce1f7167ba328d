"""Messages that were staged are sent when their transaction commits: all of them, once, or none."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest
from harness.replica_host import (
    ACCOUNT,
    RETRY_WINDOW_MS,
    Host,
    identity,
    message,
    number_in,
    queue,
    records_of,
    replay,
    snapshot_of,
)
from harness.steps import calls_of
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.partition import staged_messages
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_snapshots import (
    STATE_VERSION_WITHOUT_LOGS,
    STATE_VERSION_WITHOUT_PARTITIONS,
    load_partition,
    state_version_min,
)
from quaymaster.core.partition.staged_messages import EXPIRES_MS, RUN_KEPT_MS, SINK_KEPT_MS
from quaymaster.core.partition.work import slices
from quaymaster.core.queues import transactions
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import entry_of_record, find_message
from quaymaster.core.structures import committed_runs
from quaymaster.core.values.commands.decided import (
    Duplicate,
    ExpireMessages,
    FetchedOffsets,
    SentOutcome,
    TakenOutcome,
)
from quaymaster.core.values.commands.logs import Fetch
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    NewMessage,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StageCount,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    OverLimit,
    StageNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.core.values.records import RecordRow, RecordType

QUEUE, GROUP = 1, 2
KINDS: dict[str, dict[str, object]] = {
    "standard": {},
    "delayed": {"DelaySeconds": 7},
    "queue.fifo": {"FifoThroughputLimit": "perQueue"},
    "log": {"RetentionMode": "Log", "RetentionBytes": 1_048_576},
}


def host_of(kind: str = "standard") -> Host:
    host = Host()
    host.ask(SetQueue(queue(QUEUE, kind, attributes=KINDS[kind])))
    if kind == "log":
        host.ask(SetQueue(replace_definition(queue(GROUP, "log@a"), group_of=QUEUE)))
    return host


def consumed(kind: str) -> int:
    return GROUP if kind == "log" else QUEUE


def plain(numbers: Iterable[int]) -> list[NewMessage]:
    return [message(number) for number in numbers]


def in_group(*numbers: int) -> list[NewMessage]:
    return [message(number, group=7) for number in numbers]


def stage(
    host: Host,
    messages: list[NewMessage],
    *,
    first: int = 0,
    batch: int = 1,
    name: str = "0",
    sink: str = "sink",
) -> StagedOutcome:
    outcome = host.ask(StageMessages(QUEUE, 0, sink, batch, name, first, messages))
    assert isinstance(outcome, StagedOutcome)
    return outcome


def commit(host: Host, stages: dict[str, int], *, batch: int = 1, sink: str = "sink") -> CommittedOutcome:
    outcome = host.ask(
        CommitTransaction(QUEUE, 0, sink, batch, [StageCount(*each) for each in stages.items()])
    )
    assert isinstance(outcome, CommittedOutcome)
    return outcome


def abort(host: Host, *, batch: int = 1, sink: str = "sink") -> bool:
    outcome = host.ask(AbortTransaction(QUEUE, 0, sink, batch))
    assert isinstance(outcome, AbortedOutcome)
    return outcome.is_aborted


def receive(host: Host, queue_id: int = QUEUE) -> list[int]:
    """Return the numbers of all visible messages, ten at a time."""
    numbers: list[int] = []
    while True:
        outcome = host.ask(Receive(queue_id, 0, 10))
        assert isinstance(outcome, TakenOutcome)
        if not outcome.taken:
            return numbers
        numbers += [host.number_at(taken.offset) for taken in outcome.taken]


def copy_of(partition: Partition, states: QueueStates) -> Partition:
    return load_partition(
        snapshot_of(partition),
        partition.definition,
        0,
        states._keeper,
        retry_window_ms=RETRY_WINDOW_MS,
    )


def assert_restarts_the_same(host: Host) -> None:
    """A replay of all records, and of none behind a snapshot of now, are what the leader has."""
    expected = host.states.state_hash(host.now_ms)
    replayed = host.replayed()
    assert replayed.state_hash(host.now_ms) == expected
    assert_counts_open_stages(host.states, replayed)
    states = QueueStates(host.states._keeper, retry_window_ms=RETRY_WINDOW_MS)
    for queue_id, definition in host.states.definitions.items():
        states.load(definition, [copy_of(host.partition(queue_id), host.states)])
    states.attach_groups()
    assert states.state_hash(host.now_ms) == expected
    assert_counts_open_stages(states)


def assert_counts_open_stages(*each: QueueStates) -> None:
    """What an account has open is what its partitions have."""
    for states in each:
        staged = [partition.staged for partition in states.partitions.values()]
        expected = sum(one.open_stages for one in staged if one is not None)
        assert states.open_stages.of_account(ACCOUNT) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_staged_messages_are_sent_by_the_commit_in_the_order_of_its_stages(kind: str) -> None:
    host = host_of(kind)
    assert stage(host, in_group(1, 2)) == StagedOutcome(2)
    assert stage(host, in_group(3), name="late") == StagedOutcome(1)
    assert stage(host, in_group(4), first=2) == StagedOutcome(3)
    host.ask(Send(QUEUE, 0, in_group(5)))
    assert receive(host, consumed(kind)) == ([] if kind == "delayed" else [5])
    host.ask(Purge(consumed(kind)))

    assert commit(host, {"late": 1, "0": 3}) == CommittedOutcome(4)

    host.now_ms += 7_050
    assert receive(host, consumed(kind)) == [3, 1, 2, 4]
    index = host.partition(QUEUE).index
    assert [index.sent_ms(sequence) for sequence in range(2, 6)] == [host.now_ms - 7_050] * 4
    assert_restarts_the_same(host)


@pytest.mark.parametrize("kind", ["standard", "log"])
def test_messages_without_groups_are_sent_in_runs(kind: str) -> None:
    host = host_of(kind)
    stage(host, plain(range(100)))
    stage(host, plain(range(100, 200)), first=100)

    commit(host, {"0": 200})

    assert receive(host, consumed(kind)) == list(range(200))
    assert host.partition(QUEUE).staged is not None
    assert_restarts_the_same(host)


def test_what_was_staged_already_is_not_stored_again() -> None:
    host = host_of()
    stage(host, plain([1, 2]))
    end = host.replica.end_offset

    assert stage(host, plain([1, 2])) == StagedOutcome(2)
    assert host.replica.end_offset == end
    assert stage(host, plain([2, 3]), first=1) == StagedOutcome(3)

    commit(host, {"0": 3})
    assert receive(host) == [1, 2, 3]


def test_a_gap_in_a_stage_is_refused() -> None:
    host = host_of()
    stage(host, plain([1, 2]))

    with pytest.raises(InvalidParameterValue, match="Stage 0 has 2 messages"):
        stage(host, plain([4]), first=3)
    with pytest.raises(InvalidParameterValue, match="Stage 1 has 0 messages"):
        stage(host, plain([4]), first=1, name="1")


def test_a_batch_counts_once_however_often_it_is_sent() -> None:
    host = host_of()
    stage(host, plain([1, 2]), batch=5)
    commit(host, {"0": 2}, batch=5)

    assert commit(host, {"0": 2}, batch=5) == CommittedOutcome(2, was_committed=True)
    assert commit(host, {"0": 9}, batch=4) == CommittedOutcome(0, was_committed=True)
    assert stage(host, plain([1]), batch=5) == StagedOutcome(0, is_committed=True)
    assert not abort(host, batch=5)
    assert receive(host) == [1, 2]
    assert stage(host, plain([3]), batch=6) == StagedOutcome(1)
    assert stage(host, plain([3]), batch=5, sink="other") == StagedOutcome(1)


# A stage that is a transaction by itself


def send_at_once(
    host: Host,
    messages: list[NewMessage],
    *,
    batch: int = 1,
    first: int = 0,
    deduplicate: bool = True,
) -> StagedOutcome:
    outcome = host.ask(
        StageMessages(QUEUE, 0, "sink", batch, "0", first, messages, commit=True, deduplicate=deduplicate)
    )
    assert isinstance(outcome, StagedOutcome)
    return outcome


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_can_be_sent_with_its_last_messages(kind: str) -> None:
    host = host_of(kind)
    stage(host, in_group(9), name="another")
    stage(host, in_group(1, 2))

    sent = send_at_once(host, in_group(2, 3), first=1)

    assert sent == StagedOutcome(3, was_sent=True)
    host.now_ms += 7_050
    assert receive(host, consumed(kind)) == [1, 2, 3]
    assert host.partition(QUEUE).staged is not None
    assert_restarts_the_same(host)


def test_a_batch_that_was_sent_at_once_is_sent_once() -> None:
    host = host_of()
    send_at_once(host, plain([1, 2]), batch=5)

    assert send_at_once(host, plain([1, 2]), batch=5) == StagedOutcome(2, is_committed=True)
    assert send_at_once(host, plain([1]), batch=4) == StagedOutcome(0, is_committed=True)
    assert commit(host, {}, batch=5) == CommittedOutcome(2, was_committed=True)
    assert receive(host) == [1, 2]


def test_a_commit_of_nothing_keeps_a_batch_out_that_comes_late() -> None:
    host = host_of()

    assert commit(host, {}, batch=5) == CommittedOutcome(0)

    assert send_at_once(host, plain([1]), batch=5) == StagedOutcome(0, is_committed=True)
    assert receive(host) == []


def test_a_stage_with_more_messages_is_not_sent() -> None:
    host = host_of()
    stage(host, plain([1, 2, 3]))
    end = host.replica.end_offset

    with pytest.raises(StageNotFound, match="Stage 0 has 3 messages, not 2"):
        send_at_once(host, plain([1, 2]))

    assert host.replica.end_offset == end
    assert send_at_once(host, plain([1, 2, 3])) == StagedOutcome(3, was_sent=True)


def test_ids_that_are_not_looked_for_are_known_all_the_same() -> None:
    host = host_of("queue.fifo")
    again = [message(1, group=7, dedup=identity(1)), message(2, group=7, dedup=identity(1))]
    host.ask(Send(QUEUE, 0, [message(0, group=7, dedup=identity(1))]))

    assert send_at_once(host, again, deduplicate=False) == StagedOutcome(2, was_sent=True)
    assert send_at_once(host, again, batch=2) == StagedOutcome(2, was_sent=True, duplicates=2)

    outcome = host.ask(Send(QUEUE, 0, [message(3, group=7, dedup=identity(1))]))
    assert isinstance(outcome, SentOutcome)
    assert isinstance(outcome.results[0], Duplicate)
    assert receive(host) == [0, 1, 2]
    assert_restarts_the_same(host)


def test_a_stage_is_sent_at_once_in_slices_where_many_groups_follow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "AT_ONCE_MESSAGES", 3)
    host = host_of("log")

    assert send_at_once(host, plain([1, 2, 3])) == StagedOutcome(3, was_sent=True)

    assert receive(host, GROUP) == [1, 2, 3]


def test_a_cell_with_older_programs_sends_no_stage_at_once() -> None:
    host = host_of()
    host.states.cell_format = CellFormat(7)

    with pytest.raises(UnsupportedOperation, match="StageMessages commits once all processes"):
        send_at_once(host, plain([1]))

    assert stage(host, plain([1])) == StagedOutcome(1)


def test_an_earlier_batch_that_is_open_is_dropped_when_a_later_one_commits() -> None:
    host = host_of()
    stage(host, plain([1]), batch=1)
    stage(host, plain([2]), batch=2)
    stage(host, plain([3]), batch=3)

    commit(host, {"0": 1}, batch=2)

    staged = host.partition(QUEUE).staged
    assert staged is not None
    assert [batch for _, batch in staged.open] == [3]
    assert staged.messages == 1


def test_a_commit_of_a_stage_that_is_not_there_sends_nothing() -> None:
    host = host_of()
    stage(host, plain([1, 2]))

    for stages in ({"0": 2, "1": 1}, {"0": 1}, {"0": 3}):
        with pytest.raises(StageNotFound) as refused:
            commit(host, stages)
        assert refused.value.stage == list(stages)[-1]
    with pytest.raises(StageNotFound, match="does not exist"):
        commit(host, {"0": 2}, batch=2)

    assert receive(host) == []
    assert commit(host, {"0": 2, "empty": 0}) == CommittedOutcome(2)
    assert receive(host) == [1, 2]


def test_a_transaction_without_messages_can_be_committed() -> None:
    host = host_of()

    assert commit(host, {}) == CommittedOutcome(0)

    assert commit(host, {"0": 1}) == CommittedOutcome(0, was_committed=True)
    assert stage(host, plain([1])) == StagedOutcome(0, is_committed=True)
    assert_restarts_the_same(host)


def test_what_is_aborted_is_never_sent() -> None:
    host = host_of()
    assert abort(host)
    stage(host, plain([1]))

    assert abort(host)

    with pytest.raises(StageNotFound):
        commit(host, {"0": 1})
    assert abort(host)
    assert stage(host, plain([2])) == StagedOutcome(1)
    commit(host, {"0": 1})
    assert receive(host) == [2]
    assert_restarts_the_same(host)


def test_a_transaction_to_which_nothing_comes_for_an_hour_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "EXPIRED_PER_STEP_MAX", 1)
    host = host_of()
    host.ask(ExpireMessages(QUEUE, 0))
    stage(host, plain([1]))
    stage(host, plain([2]), batch=2)
    host.now_ms += EXPIRES_MS - 1
    stage(host, plain([3]), batch=3)
    host.ask(ExpireMessages(QUEUE, 0))
    staged = host.partition(QUEUE).staged
    assert staged is not None
    assert len(staged.open) == 3

    host.now_ms += 1
    for left in (2, 1, 1):
        host.ask(ExpireMessages(QUEUE, 0))
        assert len(staged.open) == left

    with pytest.raises(StageNotFound):
        commit(host, {"0": 1})
    commit(host, {"0": 1}, batch=3)
    assert receive(host) == [3]
    assert_restarts_the_same(host)


def test_a_transaction_to_which_nothing_comes_ends_by_elapsed_time_while_clocks_disagree() -> None:
    host = host_of()
    stage(host, plain([1]))
    host.states.expiry_is_held = True
    host.now_ms += 1_000 * EXPIRES_MS  # a step of queue time, which may be wrong
    host.ask(ExpireMessages(QUEUE, 0))
    staged = host.partition(QUEUE).staged
    assert staged is not None
    assert len(staged.open) == 1

    host.now_ms += EXPIRES_MS - 1
    host.ask(ExpireMessages(QUEUE, 0))
    assert len(staged.open) == 1
    stage(host, plain([2]), batch=2)
    host.now_ms += 1
    host.ask(ExpireMessages(QUEUE, 0))
    assert [open_.batch for open_ in staged.open.values()] == [2]

    host.states.expiry_is_held = False
    assert host.states.staged_since_ms(host.now_ms) == 0
    host.now_ms += EXPIRES_MS
    host.ask(ExpireMessages(QUEUE, 0))
    assert not staged.open
    assert_restarts_the_same(host)


def test_a_committed_batch_is_known_for_a_week() -> None:
    host = host_of()
    commit(host, {})
    host.now_ms += SINK_KEPT_MS - 1
    commit(host, {}, sink="other")
    assert commit(host, {}) == CommittedOutcome(0, was_committed=True)

    host.now_ms += 1
    commit(host, {}, sink="third")

    assert commit(host, {}) == CommittedOutcome(0)


def fifo(number: int, group: int = 1) -> NewMessage:
    return message(number, group=group, dedup=identity(number))


def test_a_duplicate_in_a_transaction_counts_as_sent_and_gets_no_number() -> None:
    host = host_of("queue.fifo")
    host.ask(Send(QUEUE, 0, [fifo(3)]))
    stage(host, [fifo(1), fifo(2), fifo(3), fifo(4), fifo(1)])
    stage(host, [fifo(2), fifo(5)], name="1")
    stage(host, [message(6, group=1)], first=2, name="1")

    assert commit(host, {"0": 5, "1": 3}) == CommittedOutcome(8, duplicates=3)

    outcome = host.ask(Receive(QUEUE, 0, 10))
    assert isinstance(outcome, TakenOutcome)
    assert [(taken.sequence, host.number_at(taken.offset)) for taken in outcome.taken] == [
        (1, 3),
        (2, 1),
        (3, 2),
        (4, 4),
        (5, 5),
        (6, 6),
    ]
    assert_restarts_the_same(host)
    kept = [host.number_at(row.offset) for row in staged_rows(host) if host.states.is_live(row)]
    assert kept == [1, 2, 4, 5, 6]


def test_ids_of_each_run_of_a_stage_are_known_after_the_commit() -> None:
    host = host_of("queue.fifo")
    stage(host, [fifo(1), fifo(2)])
    host.ask(Send(QUEUE, 0, [fifo(9)]))
    stage(host, [fifo(3)], first=2)

    assert commit(host, {"0": 3}) == CommittedOutcome(3)

    stage(host, [fifo(1), fifo(3), fifo(4)], batch=2)
    assert commit(host, {"0": 3}, batch=2) == CommittedOutcome(3, duplicates=2)
    assert_restarts_the_same(host)


def test_a_duplicate_takes_no_bytes_of_a_log() -> None:
    host = Host()
    log = {**KINDS["queue.fifo"], **KINDS["log"]}
    host.ask(SetQueue(queue(QUEUE, "log.fifo", attributes=log)))
    host.ask(Send(QUEUE, 0, [fifo(1)]))
    sizes = host.partition(QUEUE).sizes
    assert sizes is not None
    before = sizes.total_bytes
    stage(host, [fifo(1), fifo(2)])

    assert commit(host, {"0": 2}) == CommittedOutcome(2, duplicates=1)

    assert sizes.total_bytes == before + len(fifo(2).payload)
    assert_restarts_the_same(host)


def staged_rows(host: Host) -> list[RecordRow]:
    return [row for row, _, _ in records_of(host.batches) if row.type == RecordType.STAGE]


def test_a_message_that_duplicates_a_committed_one_is_told_its_number() -> None:
    host = host_of("queue.fifo")
    stage(host, [fifo(1), fifo(2)])
    commit(host, {"0": 2})
    receive(host)
    host.ask(Delete(QUEUE, 0, [Receipt(1, 1, 1), Receipt(2, 1, 1)]))
    commit(host, {}, batch=2)

    sent = host.ask(Send(QUEUE, 0, [fifo(2)]))

    assert isinstance(sent, SentOutcome)
    (duplicate,) = sent.results
    row, _ = host.payload(duplicate.offset)  # type: ignore[union-attr]
    key = duplicate.partition_key  # type: ignore[union-attr]
    assert key == partition_key(QUEUE, 0)
    assert host.states.sequence_of(key, row.type, row.sequence) == 2
    host.now_ms += RUN_KEPT_MS
    commit(host, {}, batch=3)
    assert host.states.sequence_of(key, row.type, row.sequence) == 0
    assert host.states.sequence_of(99, row.type, row.sequence) == 0
    assert host.states.sequence_of(key, RecordType.SEND, 7) == 7


@pytest.mark.parametrize("ends", ["retention", "deletion", "purge"])
def test_what_is_kept_of_a_commit_goes_with_its_messages_though_none_follows(ends: str) -> None:
    host = host_of()
    stage(host, plain([1, 2]))
    commit(host, {"0": 2})
    receive(host)
    host.now_ms += RUN_KEPT_MS - 1
    staged = host.partition(QUEUE).staged
    assert staged is not None

    if ends == "retention":
        host.now_ms += 4 * 86_400_000
        host.ask(ExpireMessages(QUEUE, 0))
    elif ends == "deletion":
        host.ask(Delete(QUEUE, 0, [Receipt(1, 1, 1)]))
        host.now_ms += 1
        assert len(staged.runs) == 1
        host.ask(Delete(QUEUE, 0, [Receipt(2, 1, 1)]))
    else:
        host.now_ms += 1
        host.ask(Purge(QUEUE))

    assert len(staged.runs) == 0
    assert staged.committed("sink", 1) is not None
    assert_restarts_the_same(host)


def test_delays_count_from_the_commit() -> None:
    host = host_of("delayed")
    stage(host, [message(1), message(2, delay_ms=0), message(3, delay_ms=3_020)])
    host.now_ms += 100_000
    commit(host, {"0": 3})

    assert receive(host) == [2]
    host.now_ms += 3_050
    assert receive(host) == [3]
    host.now_ms += 4_000
    assert receive(host) == [1]
    assert_restarts_the_same(host)


@pytest.mark.parametrize("kind", ["standard", "delayed", "log"])
@pytest.mark.parametrize("with_ids", [False, True])
def test_messages_with_delays_of_a_commit_are_visible_when_those_of_sends_are(
    kind: str, with_ids: bool
) -> None:
    rng = random.Random(kind)
    messages = [
        message(
            number,
            delay_ms=rng.choice((-1, -1, 0, 1_000, 1_030, 3_000, 8_000)),
            dedup=identity(number) if with_ids and rng.random() < 0.9 else None,
        )
        for number in range(1, 301)
    ]
    committed, sent = host_of(kind), host_of(kind)
    stage(committed, messages[:200])
    stage(committed, messages[200:], name="1")
    now_ms = committed.now_ms = sent.now_ms = max(committed.now_ms, sent.now_ms)

    commit(committed, {"0": 200, "1": 100})
    sent.ask(Send(QUEUE, 0, messages))

    for at_ms in range(now_ms, now_ms + 9_000, 500):
        committed.now_ms = sent.now_ms = at_ms
        counts = [host.ask(CountMessages(consumed(kind))) for host in (committed, sent)]
        assert counts[0].visible == counts[1].visible  # type: ignore[union-attr]
        assert sorted(receive(committed, consumed(kind))) == sorted(receive(sent, consumed(kind)))
    for host in (committed, sent):
        assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    again = sent.ask(Send(QUEUE, 0, [messages[5], messages[250]]))
    twice = committed.ask(Send(QUEUE, 0, [messages[5], messages[250]]))
    assert [type(one) for one in again.results] == [type(one) for one in twice.results]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["standard", "queue.fifo"])
def test_a_commit_of_many_takes_few_steps_a_message(kind: str) -> None:
    """Of messages with delays, and of messages of FIFO groups with deduplication ids."""
    host = host_of(kind)
    count = 20_000
    for first in range(0, count, 500):
        some = [
            message(number, delay_ms=number % 901 * 1_000)
            if kind == "standard"
            else message(number, group=number + 1, dedup=identity(number + 1))
            for number in range(first, first + 500)
        ]
        stage(host, some, first=first)

    # Each slice has up to 901 delays, and opens a timer for each.
    steps = calls_of(lambda: commit(host, {"0": count}))

    assert steps < count * (5 if kind == "standard" else 0.1)


def test_groups_of_a_log_see_delays_of_single_messages() -> None:
    host = host_of("log")
    stage(host, [message(1), message(2, delay_ms=3_020), message(3, delay_ms=0)])
    commit(host, {"0": 3})

    assert receive(host, GROUP) == [1, 3]
    host.now_ms += 3_050
    assert receive(host, GROUP) == [2]
    assert_restarts_the_same(host)


def test_a_queue_with_delays_hides_runs_until_they_are_due() -> None:
    for kind in ("delayed", "log"):
        host = host_of(kind)
        if kind == "log":
            definition = host.partition(QUEUE).definition
            attributes = {**definition.attributes, "DelaySeconds": "7"}
            host.ask(SetQueue(replace_definition(definition, attributes=attributes, revision=2)))
        stage(host, plain([1, 2]))
        commit(host, {"0": 2})

        assert receive(host, consumed(kind)) == []
        host.now_ms += 7_050
        assert receive(host, consumed(kind)) == [1, 2]
        assert_restarts_the_same(host)


def test_staged_messages_count_as_bytes_of_a_log_once_they_are_sent() -> None:
    host = host_of("log")
    stage(host, plain([1, 2]))
    sizes = host.partition(QUEUE).sizes
    assert sizes is not None
    assert sizes.total_bytes == 0

    commit(host, {"0": 2})

    assert sizes.total_bytes == 2 * len(message(1).payload)


def test_messages_are_not_seen_before_their_commit_is_durable() -> None:
    host = host_of("log")
    stage(host, plain([1]))
    host.is_slow = True

    token = host.propose(CommitTransaction(QUEUE, 0, "sink", 1, [StageCount("0", 1)]))

    assert token not in host.replies
    fetch = host.propose(Fetch(QUEUE, 0, 1, 10, 1_000))
    fetched = host.replies[fetch]
    assert isinstance(fetched, FetchedOffsets)
    assert fetched.sequences == []
    host.make_durable()
    assert host.replies[token] == CommittedOutcome(1)
    fetched = host.ask(Fetch(QUEUE, 0, 1, 10, 1_000))
    assert isinstance(fetched, FetchedOffsets)
    assert fetched.sequences == [1]


def test_compaction_keeps_what_is_staged_and_what_of_it_exists() -> None:
    host = host_of()
    stage(host, plain([1, 2]))
    stage(host, plain([3]), name="left")
    stage(host, plain([4]), batch=2)
    rows = staged_rows(host)
    assert all(host.states.is_live(row) for row in rows)
    assert not QueueStates(host.states._keeper, retry_window_ms=0).is_live(rows[0])

    commit(host, {"0": 2})
    receive(host)
    host.ask(Delete(QUEUE, 0, [Receipt(1, 1, 1)]))

    assert [host.states.is_live(row) for row in rows] == [False, True, False, True]
    host.ask(SetQueue(queue(3)))
    assert not host.partition(3).is_kept(rows[0].sequence)


def test_the_index_is_made_anew_from_staged_records_as_it_was() -> None:
    host = host_of("delayed")
    stage(host, [message(1, group=9), message(2, delay_ms=3_020), message(3, delay_ms=0)])
    host.ask(Send(QUEUE, 0, [message(4)]))
    host.now_ms += 500
    before = staged_rows(host)[0]
    assert find_message(host.partition(QUEUE), before) == (0, None)
    commit(host, {"0": 3})

    partition = host.partition(QUEUE)
    entries = {}
    for row in [row for row, _ in all_rows(host) if row.type in (RecordType.STAGE, RecordType.SEND)]:
        sequence, run = find_message(partition, row)
        entries[sequence] = entry_of_record(row, host.payload(row.offset)[1], run)

    assert sorted(entries) == [1, 2, 3, 4]
    for sequence, entry in entries.items():
        known = partition.index.entry(sequence)
        assert known[:2] == entry[:2]
        assert known.group == entry.group
        assert known.due_ms - 50 < entry.due_ms <= known.due_ms
    host.ask(SetQueue(queue(3)))
    assert find_message(host.partition(3), before) == (0, None)


def all_rows(host: Host) -> list[tuple[RecordRow, bytes]]:
    return [(row, payload) for row, payload, _ in records_of(host.batches)]


@pytest.mark.parametrize(
    ("limit", "value", "name", "names"),
    [
        ("TRANSACTION_MESSAGES_MAX", 2, "", "A transaction may have 2 messages"),
        ("OPEN_MESSAGES_MAX", 2, "", "2 messages staged"),
        ("OPEN_STAGES_MAX", 1, "1", "1 open stages"),
        ("RUNS_BYTES_MAX", 0, "", "0 bytes about committed stages"),
        ("SINKS_MAX", 0, "", "0 sinks"),
    ],
)
def test_each_limit_is_named(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, name: str, names: str
) -> None:
    host = host_of()
    stage(host, plain([1, 2]))
    monkeypatch.setattr(transactions, limit, value)

    with pytest.raises(OverLimit, match=names):
        stage(host, plain([3]), first=0 if name else 2, name=name or "0")


@pytest.mark.parametrize("kind", ["standard", "queue.fifo"])
def test_a_transaction_that_is_slow_to_commit_has_fewer_messages(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(transactions, "SLOW_TRANSACTION_MESSAGES_MAX", 2)
    host = host_of(kind)
    if kind == "standard":
        stage(host, plain([1, 2]))
        with pytest.raises(OverLimit, match="delays of their own"):
            stage(host, [message(3, delay_ms=0)], first=2)
        stage(host, plain([1, 2, 3]), name="1")
        stage(host, [message(1, delay_ms=0)], batch=2)
    else:
        stage(host, [fifo(1), message(2, group=1)], batch=2)

    with pytest.raises(OverLimit, match="FIFO queue"):
        stage(host, plain([3, 4]), batch=2, name="1")
    with pytest.raises(OverLimit, match="2 messages") if kind != "standard" else contextlib.nullcontext():
        stage(host, plain([1, 2, 3]), batch=3)


def test_the_number_of_sinks_is_limited_for_commits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_of()
    commit(host, {})
    monkeypatch.setattr(transactions, "SINKS_MAX", 1)

    commit(host, {}, batch=2)
    with pytest.raises(OverLimit, match="1 sinks"):
        commit(host, {}, sink="other")


def test_a_consumer_group_and_an_older_cell_have_no_transactions() -> None:
    host = host_of("log")
    with pytest.raises(UnsupportedOperation, match="consumer groups"):
        host.ask(StageMessages(GROUP, 0, "sink", 1, "0", 0, plain([1])))

    host.replica._cell_format = host.states.cell_format = CellFormat(2)
    for command in (
        StageMessages(QUEUE, 0, "sink", 1, "0", 0, plain([1])),
        CommitTransaction(QUEUE, 0, "sink", 1, []),
        AbortTransaction(QUEUE, 0, "sink", 1),
    ):
        with pytest.raises(UnsupportedOperation, match="cell upgrade"):
            host.ask(command)


def test_a_snapshot_of_transactions_takes_the_version_that_has_them() -> None:
    host = host_of()
    assert state_version_min(host.partition(QUEUE)) < STATE_VERSION_WITHOUT_LOGS

    stage(host, plain([1]))

    assert state_version_min(host.partition(QUEUE)) == STATE_VERSION_WITHOUT_PARTITIONS


def test_account_has_as_many_open_stages_as_it_may_over_all_its_queues() -> None:
    host = host_of()
    host.ask(SetQueue(queue(9, "other")))
    host.states._account_stages_max = 3
    stage(host, plain([1]), name="a")
    stage(host, plain([2]), name="b", batch=2)
    host.ask(StageMessages(9, 0, "sink", 1, "a", 0, plain([3])))

    for full in (
        StageMessages(QUEUE, 0, "sink", 1, "new", 0, plain([4])),
        StageMessages(QUEUE, 0, "sink", 3, "a", 0, plain([4])),
        StageMessages(9, 0, "other", 1, "a", 0, plain([4])),
    ):
        with pytest.raises(OverLimit, match=r"may have 3 open stages in a journal \(account_stages_max\)"):
            host.ask(full)
    assert stage(host, plain([5]), name="a", first=1) == StagedOutcome(2)  # one that is open takes more

    host.ask(ForgetQueue(9))
    stage(host, plain([6]), name="c")
    with pytest.raises(OverLimit):
        stage(host, plain([7]), name="d")
    abort(host, batch=1)
    stage(host, plain([8]), batch=3)
    commit(host, {"0": 1}, batch=3)
    assert_restarts_the_same(host)
    assert host.states.open_stages.of_account(ACCOUNT) == 0


def test_queue_without_stages_is_refused_the_first_one_where_the_account_is_full() -> None:
    host = host_of()
    host.states._account_stages_max = 0

    with pytest.raises(OverLimit, match="account_stages_max"):
        stage(host, plain([1]))


def test_a_deleted_queue_takes_its_transactions_along() -> None:
    host = host_of()
    stage(host, plain([1]))

    host.ask(ForgetQueue(QUEUE))

    assert_counts_open_stages(host.states)
    assert not host.states.is_live(staged_rows(host)[0])
    assert host.replayed().state_hash(host.now_ms) == {}


def test_records_of_a_queue_that_is_gone_change_nothing() -> None:
    host = host_of("log")
    stage(host, plain([1]))
    commit(host, {"0": 1})
    stage(host, plain([2]), batch=2)
    abort(host, batch=2)
    host.ask(ForgetQueue(QUEUE))

    # A snapshot from behind the deletion knows nothing of the queue.
    start = next(row.offset for row, _ in all_rows(host) if row.type == RecordType.STAGE_BEGIN)
    states = replay(host.batches, start=start)

    assert states.state_hash(host.now_ms) == {}


steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "stage",
                "stage",
                "stage",
                "commit",
                "abort",
                "send",
                "receive",
                "delete",
                "wait",
                "hour",
                "purge",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(st.sampled_from(list(KINDS)), steps, st.integers(0, 200), st.integers(0, 200))
def test_any_history_is_the_same_for_a_leader_a_replay_and_snapshots_of_any_moment(
    kind: str, steps: list[tuple[str, int, int, int]], cut: int, group_cut: int
) -> None:
    with patch.object(committed_runs, "PACKED_ROWS", 2):
        _compare_any_history(kind, steps, cut, group_cut)


def _compare_any_history(kind: str, steps: list[tuple[str, int, int, int]], cut: int, group_cut: int) -> None:
    host = host_of(kind)
    numbers = iter(range(1, 1_000_000))
    open_: dict[tuple[str, int], dict[str, list[int]]] = {}
    last: dict[str, int] = {}
    order: list[int] = []
    copies: dict[int, tuple[int, bytes, QueueDefinition]] = {}

    def new() -> NewMessage:
        number = next(numbers)
        if kind == "queue.fifo":
            return fifo(number, group=number % 2 + 1)
        return message(number, group=number % 3, delay_ms=[-1, -1, 0, 2_000][number % 4])

    def copy(queue_id: int, at: int) -> None:
        if queue_id in host.states.definitions and queue_id not in copies and len(order) + at > cut:
            partition = host.partition(queue_id)
            partition.applied = host.replica.end_offset
            copies[queue_id] = partition.applied, snapshot_of(partition), partition.definition

    for at, (step, sink_number, batch, count) in enumerate(steps):
        sink, key = f"s{sink_number}", (f"s{sink_number}", batch)
        if at >= cut % 31:
            copy(QUEUE, 1_000)
        if at >= group_cut % 31:
            copy(GROUP, 1_000)
        if step == "stage":
            name = str(count)
            done = batch <= last.get(sink, -1)
            have = open_.get(key, {}).get(name, [])
            messages = [new() for _ in range(count)]
            outcome = stage(host, messages, first=len(have), batch=batch, name=name, sink=sink)
            assert outcome == StagedOutcome(0 if done else len(have) + count, is_committed=done)
            if count and not done:
                stages = open_.setdefault(key, {})
                stages[name] = have + [int.from_bytes(each.message_id, "big") for each in messages]
        elif step == "commit":
            stages = open_.get(key, {})
            committed = commit(
                host, {name: len(found) for name, found in stages.items()}, batch=batch, sink=sink
            )
            if not committed.was_committed:
                order += [number for found in stages.values() for number in found]
                last[sink] = batch
                open_ = {each: found for each, found in open_.items() if each[0] != sink or each[1] > batch}
        elif step == "abort":
            assert abort(host, batch=batch, sink=sink) == (batch > last.get(sink, -1))
            open_.pop(key, None)
        elif step == "send":
            sent = new()
            host.ask(Send(QUEUE, 0, [sent]))
            order.append(int.from_bytes(sent.message_id, "big"))
        elif step == "receive":
            host.ask(Receive(consumed(kind), 0, 1 + count))
        elif step == "delete":
            for sequence in list(dict(host.partition(consumed(kind)).in_flight.items()))[:count]:
                held = host.partition(consumed(kind)).in_flight[sequence]
                host.ask(Delete(consumed(kind), 0, [Receipt(sequence, held.epoch, held.delivery_count)]))
        elif step == "wait":
            host.now_ms += 1_000 * count
        elif step == "hour":
            host.now_ms += EXPIRES_MS
            host.ask(ExpireMessages(QUEUE, 0))
            open_ = {}
        elif count == 3:
            host.ask(Purge(QUEUE))

    host.ask(CountMessages(QUEUE))
    partition = host.partition(QUEUE)
    assert partition.next_sequence == len(order) + 1
    for sequence in range(partition.head, partition.next_sequence):
        row, payload = host.payload(partition.index.entry(sequence).offset)
        assert number_in(row.flags, payload) == order[sequence - 1]
        assert find_message(partition, row)[0] == sequence
    live = {
        row.offset
        for row, _ in all_rows(host)
        if row.type in (RecordType.STAGE, RecordType.SEND) and host.states.is_live(row)
    }
    kept = {
        partition.index.entry(sequence).offset
        for sequence in range(partition.head, partition.next_sequence)
        if partition.is_live(sequence)
    }
    staged = partition.staged
    in_open = {
        each.offset
        for found in (staged.open.values() if staged is not None else ())
        for one in found.stages.values()
        for each in one.messages()
    }
    assert live == kept | in_open
    assert_restarts_the_same(host)
    copy(QUEUE, 1_000)
    if kind == "log":
        copy(GROUP, 1_000)
    states = QueueStates(host.states._keeper, retry_window_ms=RETRY_WINDOW_MS)
    for applied, data, definition in copies.values():
        loaded = load_partition(data, definition, 0, host.states._keeper, retry_window_ms=RETRY_WINDOW_MS)
        assert loaded.applied == applied
        states.load(definition, [loaded])
    states.attach_groups()
    replay(host.batches, states=states, start=min(applied for applied, _, _ in copies.values()))
    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_counts_say_nothing_of_what_is_staged() -> None:
    host = host_of()
    stage(host, plain([1]))

    counts: Any = host.ask(CountMessages(QUEUE))

    assert counts == QueueCounts(0, 0, 0)


def test_a_stage_number_is_not_given_twice() -> None:
    host = host_of()
    stage(host, plain([1]))
    abort(host)
    stage(host, plain([2]))

    first, second = staged_rows(host)

    assert staged_messages.stage_of(second.sequence) > staged_messages.stage_of(first.sequence)

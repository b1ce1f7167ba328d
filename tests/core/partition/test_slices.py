"""A commit in slices is a commit at once: whoever comes in between waits, and whoever stops in between begins again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness.replica_host import Host, identity, message, queue, replay
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.partition.work import slices
from quaymaster.core.queues import transactions
from quaymaster.core.values.commands.decided import ExpireMessages, WriteBarrier
from quaymaster.core.values.commands.logs import ResetGroup
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
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.transactions import (
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StageCount,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command, InternalCommand
from quaymaster.core.values.errors import JournalStopped, NotLeader, QueueDoesNotExist, StageNotFound
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.queues.queue_definitions import replace_definition

QUEUE, GROUP, OTHER = 1, 2, 3
KINDS: dict[str, dict[str, object]] = {
    "standard": {},
    "delayed": {"DelaySeconds": 7},
    "queue.fifo": {},
    "log": {"RetentionMode": "Log"},
}


@contextmanager
def sliced(size: int) -> Iterator[None]:
    """Make slices of so many messages."""
    names = ("AT_ONCE_MESSAGES", "SLICE_MESSAGES", "SLICE_SINGLE_MESSAGES")
    before = {name: vars(slices)[name] for name in names}
    seen_together = transactions.SEEN_TOGETHER_MAX
    vars(transactions)["SEEN_TOGETHER_MAX"] = size
    vars(slices).update(AT_ONCE_MESSAGES=0, SLICE_MESSAGES=size, SLICE_SINGLE_MESSAGES=max(1, size // 2))
    try:
        yield
    finally:
        vars(slices).update(before)
        vars(transactions)["SEEN_TOGETHER_MAX"] = seen_together


@pytest.fixture
def small() -> Iterator[None]:
    with sliced(2):
        yield


def host_of(kind: str = "standard") -> Host:
    host = Host()
    host.ask(SetQueue(queue(QUEUE, kind, attributes=KINDS[kind])))
    host.ask(SetQueue(queue(OTHER, "other")))
    if kind == "log":
        host.ask(SetQueue(replace_definition(queue(GROUP, "log@a"), group_of=QUEUE)))
    return host


def stage(host: Host, messages: list[NewMessage], name: str = "0", batch: int = 1) -> None:
    host.ask(StageMessages(QUEUE, 0, "sink", batch, name, 0, messages))


def commit_of(stages: dict[str, int], batch: int = 1) -> CommitTransaction:
    return CommitTransaction(QUEUE, 0, "sink", batch, [StageCount(*each) for each in stages.items()])


def begun(kind: str = "standard", count: int = 9) -> tuple[Host, int]:
    """Return a host in the middle of a commit that is recorded, and the commit's token."""
    host = host_of(kind)
    stage(host, [message(number, group=number % 3 + 1) for number in range(1, count + 1)])
    host.is_held_up = True
    token = host.propose(commit_of({"0": count}))
    for _ in range(3):
        assert host.do_slice()
    return host, token


def finish(host: Host) -> None:
    host.is_held_up = False
    while host.replica.has_more:
        host.do_slice()


def counts(host: Host, queue_id: int = QUEUE) -> QueueCounts:
    found = host.ask(CountMessages(queue_id))
    assert isinstance(found, QueueCounts)
    return found


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([-1, -1, 0, 1_000, 1_030, 8_000]),
        st.integers(0, 12),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)
BETWEEN: st.SearchStrategy[Command | InternalCommand] = st.sampled_from(
    [
        Send(QUEUE, 0, [message(500, group=1, dedup=identity(3)), message(501, group=2)]),
        Receive(QUEUE, 0, 3, 30_000),
        Receive(GROUP, 0, 3, 30_000),
        Delete(QUEUE, 0, [Receipt(1, 1, 1)]),
        Delete(GROUP, 0, [Receipt(2, 1, 1)]),
        Purge(QUEUE),
        Purge(GROUP),
        CountMessages(QUEUE),
        ExpireMessages(QUEUE, 0),
        ResetGroup(GROUP, "earliest"),
        AbortTransaction(QUEUE, 0, "sink", 1),
        StageMessages(QUEUE, 0, "sink", 2, "0", 0, [message(600, group=1), message(601, group=2)]),
        commit_of({"0": 2}, batch=2),
        ForgetQueue(GROUP),
        ForgetQueue(QUEUE),
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    parts=st.lists(MESSAGES, min_size=1, max_size=3),
    earlier=st.lists(st.integers(0, 12), max_size=3),
    size=st.integers(1, 7),
    between=st.lists(st.tuples(st.integers(0, 6), BETWEEN), max_size=4),
)
def test_a_commit_in_slices_is_a_commit_at_once(
    kind: str,
    parts: list[list[tuple[int, int, int, bool]]],
    earlier: list[int],
    size: int,
    between: list[tuple[int, Command | InternalCommand]],
) -> None:
    """Whatever others ask in between, of the same queue, is answered as if they had asked behind it."""

    def run(*, in_slices: bool) -> tuple[Host, list[Any]]:
        host = host_of(kind)
        for dedup in earlier:
            host.ask(Send(QUEUE, 0, [message(900 + dedup, group=1, dedup=identity(dedup))]))
        for name, part in enumerate(parts):
            stage(
                host,
                [
                    message(
                        100 * name + at,
                        delay_ms=-1 if kind == "queue.fifo" else delay_ms,
                        dedup=identity(dedup) if has_dedup else None,
                        group=group or int(kind == "queue.fifo"),
                    )
                    for at, (delay_ms, dedup, group, has_dedup) in enumerate(part)
                ],
                name=str(name),
            )
        host.is_held_up = in_slices
        tokens = [host.propose(commit_of({str(name): len(part) for name, part in enumerate(parts)}))]
        for steps, command in between:
            for _ in range(steps):
                if host.replica.has_more:
                    host.do_slice()
            tokens.append(host.propose(command))
        finish(host)
        host.make_durable()
        return host, [host.replies[token] for token in tokens]

    at_once, expected = run(in_slices=False)
    with sliced(size):
        host, found = run(in_slices=True)
        replayed = host.replayed()

    assert [repr(one) for one in found] == [repr(one) for one in expected]
    for now_ms in (host.now_ms, host.now_ms + 10_000):
        hashes = at_once.states.state_hash(now_ms)
        assert host.states.state_hash(now_ms) == hashes
        assert replayed.state_hash(now_ms) == hashes
        assert host.replayed().state_hash(now_ms) == hashes


def test_others_are_served_between_slices(small: None) -> None:
    host, token = begun()

    sent = host.propose(Send(OTHER, 0, [message(50)]))
    barrier = host.propose(WriteBarrier())
    held = host.propose(CountMessages(QUEUE))

    assert sent in host.replies
    assert barrier in host.replies
    assert held not in host.replies
    assert token not in host.replies
    finish(host)
    assert host.replies[token] == CommittedOutcome(9)
    found = host.replies[held]
    assert isinstance(found, QueueCounts)
    assert found.visible == 9


def test_new_attributes_of_a_queue_wait_for_its_commit(small: None) -> None:
    host, _ = begun()

    changed = host.propose(
        SetQueue(queue(QUEUE, "standard", revision=2, attributes={"VisibilityTimeout": "7"}))
    )
    other = host.propose(SetQueue(queue(OTHER, "other", revision=2)))

    assert changed not in host.replies
    assert other in host.replies
    finish(host)
    assert host.states.definitions[QUEUE].revision == 2


def test_a_commit_that_a_snapshot_has_is_skipped_by_the_log_and_its_groups() -> None:
    host = host_of("log")
    stage(host, [message(number) for number in range(1, 4)])
    host.ask(commit_of({"0": 3}))
    states = host.replayed()
    before = states.state_hash(host.now_ms)
    for partition in states.partitions.values():
        partition.applied = host.replica.end_offset

    replay(host.batches, states=states)

    assert states.state_hash(host.now_ms) == before


def test_a_little_commit_is_done_at_once() -> None:
    host = host_of()
    assert not host.do_slice()
    stage(host, [message(1), message(2)])
    host.is_held_up = True

    token = host.propose(commit_of({"0": 2}))

    assert host.replies[token] == CommittedOutcome(2)


def test_a_commit_that_is_wrong_is_refused_at_once(small: None) -> None:
    host = host_of()
    stage(host, [message(1), message(2)])

    with pytest.raises(StageNotFound):
        host.ask(commit_of({"0": 3}))

    assert not host.replica.has_more


def test_a_dead_letter_waits_for_a_commit_to_its_target(small: None) -> None:
    host = host_of()
    stage(host, [message(number) for number in range(1, 10)])
    host.ask(Send(OTHER, 0, [message(77)]))
    sequence = host.partition(OTHER).take_visible(1, host.now_ms)[0]
    host.partition(OTHER).moving[sequence] = QUEUE
    host.is_held_up = True
    host.propose(commit_of({"0": 9}))
    host.do_slice()
    row, payload = host.payload(host.partition(OTHER).index.entry(sequence).offset)

    moved = host.propose(MoveMessage(OTHER, 0, sequence, QUEUE, row.type, row.flags, payload, None))

    assert moved not in host.replies
    finish(host)
    assert moved in host.replies
    assert counts(host).visible == 10
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_messages_of_a_commit_in_slices_wait_for_its_record_to_be_durable(small: None) -> None:
    """The commit of what was sent before it does not let them go."""
    host = host_of()
    stage(host, [message(number) for number in range(1, 10)])
    host.is_slow = host.is_held_up = True
    host.propose(Send(QUEUE, 0, [message(90)]))
    host.propose(commit_of({"0": 9}))
    while host.replica.has_more:
        host.do_slice()
        host.make_durable(1)
        if host.partition(QUEUE).index.next_sequence == 2:
            assert host.partition(QUEUE).committed <= 2

    host.is_held_up = False
    fresh = host_of()
    stage(fresh, [message(number) for number in range(1, 10)])
    fresh.is_slow = True
    fresh.propose(Send(QUEUE, 0, [message(90)]))
    fresh.is_held_up = True
    fresh.propose(commit_of({"0": 9}))
    fresh.do_slice()
    fresh.make_durable(1)
    fresh.is_held_up = False
    finish(fresh)

    assert fresh.partition(QUEUE).committed == 2
    assert fresh.partition(QUEUE).take_visible(10, fresh.now_ms) == [1]
    fresh.make_durable()
    assert fresh.partition(QUEUE).committed == 11


def test_a_search_that_nothing_is_recorded_of_ends_with_the_leadership(small: None) -> None:
    host = host_of("queue.fifo")
    stage(host, [message(number, group=1, dedup=identity(number)) for number in range(1, 10)])
    host.is_held_up = True
    token = host.propose(commit_of({"0": 9}))
    assert host.do_slice()
    held = host.propose(CountMessages(QUEUE))
    end = host.replica.end_offset

    host.replica.on_configuration(JournalConfiguration(2, "b", ("a", "b"), ("a", "b"), False), 1)
    host._carry_out()

    assert isinstance(host.replies[token], NotLeader)
    assert isinstance(host.replies[held], NotLeader)
    assert host.replica.end_offset == end
    assert not host.replica.has_more
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_a_commit_that_is_recorded_is_done_to_its_end_without_the_leadership(small: None) -> None:
    host, token = begun()

    host.replica.on_configuration(JournalConfiguration(2, "b", ("a", "b"), ("a", "b"), False), 1)
    host._carry_out()

    assert isinstance(host.replies[token], Exception)
    assert host.replica.has_more
    finish(host)
    assert host.partition(QUEUE).alive == 9
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_a_journal_that_stops_answers_who_waits_for_a_commit(small: None) -> None:
    host, token = begun()
    held = host.propose(CountMessages(QUEUE))

    host.replica.stop(JournalStopped("The journal stopped."))
    host._carry_out()

    assert isinstance(host.replies[token], JournalStopped)
    assert isinstance(host.replies[held], NotLeader)


def test_a_record_that_is_applied_behind_an_unfinished_commit_finishes_it(small: None) -> None:
    host, _ = begun()
    finish(host)
    host.ask(Send(OTHER, 0, [message(50)]))

    replayed = host.replayed()

    assert not replayed.unfinished
    assert replayed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_a_queue_that_is_gone_has_a_family_of_its_own(small: None) -> None:
    host = host_of("log")

    assert host.states.family_of(GROUP) == QUEUE
    assert host.states.family_of(99) == 99
    with pytest.raises(QueueDoesNotExist):
        host.ask(CountMessages(99))
    assert not host.states.is_unfinished(host.partition(QUEUE))

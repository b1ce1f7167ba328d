"""Who may append, what is committed, and which replies may go."""

from __future__ import annotations

import pytest
from harness.replica_host import RETRY_WINDOW_MS, Host, message, queue, records_of, replay

from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication import journal as journal_module
from quaymaster.core.replication.effects import PersistPromise, Write
from quaymaster.core.replication.journal import JournalReplica, ToDo
from quaymaster.core.replication.log_tail import LOG_START
from quaymaster.core.replication.messages import Appended, Promise, Tail
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import Duplicate, SentOutcome, TakenOutcome
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    EntriesOutcome,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.errors import JournalStopped, NotLeader, QueueDoesNotExist
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import Batch, Record, RecordType, check_batch, decode_header, encode_batch

JOBS, STEPS, QUICK, LAZY = 1, 2, 3, 4


def replica(*, promised_epoch: int = 0, node: str = "a") -> JournalReplica:
    log = LogReplica(node, promised_epoch=promised_epoch, start=LOG_START, positions=(), now_ms=0)
    return JournalReplica(log, QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS), last_time_ms=0)


def configuration(
    epoch: int, *, leader: str = "a", members: tuple[str, ...] = ("a",), previous: tuple[str, ...] = ()
) -> JournalConfiguration:
    return JournalConfiguration(epoch, leader, members, previous, False)


def needs_written(todo: ToDo) -> bool:
    (write,) = todo.operations
    assert isinstance(write, Write)
    return write.tell_written


@pytest.fixture
def host() -> Host:
    host = Host()
    host.ask(SetQueue(queue(JOBS, "jobs")))
    host.ask(SetQueue(queue(STEPS, "steps.fifo")))
    host.ask(SetQueue(queue(QUICK, "quick", attributes={"Durability": "Memory"})))
    host.ask(SetQueue(queue(LAZY, "lazy", attributes={"Durability": "Async"})))
    host.is_slow = True
    return host


# Becoming the leader


def test_leader_is_made_step_by_step_and_each_waits_for_the_one_before() -> None:
    found = replica()

    found.on_configuration(configuration(3), 0)
    assert (found.role, found.take().operations) == ("preparing", [PersistPromise(3)])
    found.on_activated(3)
    found.on_durable(0)
    assert found.role == "preparing"
    found.on_promise_durable(3)
    todo = found.take(1_000)
    (row, _, epoch), *rest = records_of(todo.batches)
    assert (row.type, row.time_ms, epoch, rest) == (RecordType.BARRIER, 1_000, 3, [])
    assert (todo.activate, found.role) == (None, "activating")
    found.on_durable(1)
    assert found.take().activate == 3
    assert found.commit == 0
    found.on_activated(3)
    assert (found.role, found.commit, found.is_leading) == ("leading", 1, True)


def test_nothing_is_decided_before_the_journal_is_activated() -> None:
    found = replica()
    found.on_configuration(configuration(1), 0)
    found.on_promise_durable(1)
    found.take()
    found.on_durable(1)

    found.propose(CountMessages(1), "token", 1_000)

    ((token, answer),) = found.take().replies
    assert token == "token"
    assert isinstance(answer, NotLeader)


def test_epoch_is_never_led_twice() -> None:
    found = replica(promised_epoch=5)

    for wrong in (configuration(4), configuration(5), configuration(6, leader="b")):
        found.on_configuration(wrong, 0)
        assert (found.role, found.log.promised_epoch) == ("follower", 5)
    found.on_configuration(configuration(7), 0)
    assert (found.role, found.log.promised_epoch) == ("preparing", 7)


def test_higher_epoch_takes_the_place_of_one_that_was_not_led_yet() -> None:
    found = replica()
    found.on_configuration(configuration(1), 0)
    found.on_promise_durable(1)
    found.take()
    found.on_durable(1)

    found.on_configuration(configuration(2), 0)
    found.on_promise_durable(1)
    found.on_activated(1)
    assert found.role == "preparing"
    found.take()
    found.on_promise_durable(2)
    (batch,) = found.take().batches
    assert (batch.epoch, batch.base_offset) == (2, 1)
    found.on_durable(1)  # the barrier of epoch 1 does not count
    assert found.take().activate is None
    found.on_durable(2)
    assert found.take().activate == 2


def test_leader_that_is_appointed_again_keeps_those_who_wait(host: Host) -> None:
    waiting = host.propose(Send(JOBS, 0, [message(1)]))

    host.replica.on_configuration(configuration(2, previous=("a",)), 0)
    refused = host.propose(Send(JOBS, 0, [message(2)]))
    assert isinstance(host.replies[refused], NotLeader)
    assert waiting not in host.replies
    host.replica.on_promise_durable(2)
    host.propose(CountMessages(JOBS))
    host.make_durable()

    assert isinstance(host.replies[waiting], SentOutcome)
    assert host.replica.epoch == 2
    assert isinstance(host.ask(Send(JOBS, 0, [message(3)])), SentOutcome)


def test_replica_that_stopped_is_not_appointed(host: Host) -> None:
    host.replica.stop(JournalStopped("enough"))

    host.replica.on_configuration(configuration(2), 0)

    assert host.replica.role == "stopped"


def test_new_leader_gives_what_was_durable_when_it_began(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(1)]))
    host.make_durable()
    host.propose(Send(JOBS, 0, [message(2)]))
    batches = host.durable_batches()

    after = Host(batches=batches, states=replay(batches), epoch=2, now_ms=host.now_ms)

    taken = after.ask(Receive(JOBS, 0, 10))
    assert isinstance(taken, TakenOutcome)
    assert (taken.epoch, [found.sequence for found in taken.taken]) == (2, [1])


# What is committed


def test_only_what_is_durable_is_committed_and_only_whole_decisions_are_given(host: Host) -> None:
    before = host.replica.commit
    host.propose(Send(JOBS, 0, [message(1)]))
    host.propose(Send(JOBS, 0, [message(2)]))

    assert host.replica.commit == before
    host.make_durable(1)
    assert host.replica.commit == before + 1
    assert host.partition(JOBS).committed == 2
    host.replica.on_durable(0)  # an old report changes nothing
    assert host.replica.commit == before + 1


def test_many_records_are_written_as_several_batches_and_answered_together(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RECORDS_PER_BATCH_MAX", 2)
    start = host.replica.end_offset

    token = host.propose(Send(JOBS, 0, [message(number) for number in range(5)]))

    behind = [batch for batch in host.batches if batch.base_offset >= start]
    assert [batch.next_offset - batch.base_offset for batch in behind] == [2, 2, 1]
    host.make_durable(2)
    assert token not in host.replies
    assert host.replica.commit == start + 4
    host.make_durable(1)
    assert token in host.replies
    for batch in host.batches:
        check_batch(batch.data, decode_header(batch.data))
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_large_records_are_written_as_several_batches(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "BATCH_BYTES_MAX", 100)
    start = host.replica.end_offset

    host.propose(Send(JOBS, 0, [message(number) for number in range(4)]))

    behind = [batch for batch in host.batches if batch.base_offset >= start]
    assert [batch.next_offset - batch.base_offset for batch in behind] == [2, 2]


def test_batches_follow_one_another_by_offset_and_chain(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(1)]))
    host.propose(Send(JOBS, 0, [message(2)]))

    headers = [decode_header(batch.data) for batch in host.batches]
    assert [header.base_offset for header in headers] == [0, *(h.next_offset for h in headers[:-1])]
    assert len({header.chain for header in headers}) == len(headers)
    assert headers[-1].floor == host.replica.durable_end


def test_queue_time_never_goes_back(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(1)]))
    host.now_ms -= 5_000
    host.propose(Send(JOBS, 0, [message(2)]))

    times = [row.time_ms for row, _, _ in records_of(host.batches)]
    assert times == sorted(times)
    assert host.replica.last_time_ms == host.now_ms + 5_000


# Which replies wait


def test_every_promise_waits_for_the_commit(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(number) for number in range(3)]))
    host.propose(Send(STEPS, 0, [message(9, group=1)]))
    host.make_durable()
    host.replies.clear()
    promises = [
        host.propose(command)
        for command in (
            Send(JOBS, 0, [message(5)]),
            Receive(STEPS, 0, 1),
            ChangeVisibility(STEPS, 0, [Receipt(1, 1, 1)], [5_000]),
            Delete(JOBS, 0, [Receipt(1, 1, 1)]),
            SetQueue(queue(JOBS, "jobs", revision=2)),
            Purge(JOBS),
        )
    ]

    assert host.replies == {}
    for token in promises:
        host.make_durable(1)
        assert token in host.replies
        assert host.rests_on[token] <= host.replica.commit


def test_receive_of_a_standard_queue_and_every_question_wait_for_nothing(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(1)]))
    host.make_durable()
    host.propose(Send(JOBS, 0, [message(2)]))

    taken = host.replies[host.propose(Receive(JOBS, 0, 1))]
    assert isinstance(taken, TakenOutcome)
    assert len(taken.taken) == 1
    assert isinstance(host.replies[host.propose(CountMessages(JOBS))], QueueCounts)
    assert isinstance(host.replies[host.propose(CountMessages(99))], QueueDoesNotExist)
    assert host.replica.durable_end < host.replica.end_offset


@pytest.mark.parametrize(("commit", "durable_end"), [(7, 5), (5, 7)])
def test_what_others_have_committed_counts_here_when_it_is_durable_here(
    commit: int, durable_end: int
) -> None:
    found = replica()
    found.log.commit, found.log.durable_end = commit, durable_end

    assert found.durable_commit == 5


def test_empty_receive_waits_for_nothing_and_writes_nothing(host: Host) -> None:
    host.propose(Send(STEPS, 0, [message(1, group=1)]))
    end = host.replica.end_offset

    answer = host.replies[host.propose(Receive(STEPS, 0, 1))]

    assert answer == TakenOutcome(1, [], [], False)
    assert host.replica.end_offset == end


def test_duplicate_waits_for_the_commit_of_the_original(host: Host) -> None:
    original = host.propose(Send(STEPS, 0, [message(1, group=1, dedup=b"d" * 16)]))
    duplicate = host.propose(Send(STEPS, 0, [message(2, group=1, dedup=b"d" * 16)]))

    assert {original, duplicate}.isdisjoint(host.replies)
    host.make_durable(1)
    assert {original, duplicate} <= host.replies.keys()
    again = host.propose(Send(STEPS, 0, [message(3, group=1, dedup=b"d" * 16)]))
    found = host.replies[again]  # all it rests on is committed
    assert isinstance(found, SentOutcome)
    assert isinstance(found.results[0], Duplicate)


def test_delete_of_what_is_deleted_waits_for_the_commit_of_the_first(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(1)]))
    host.make_durable()
    first = host.propose(Delete(JOBS, 0, [Receipt(1, 1, 1)]))
    again = host.propose(Delete(JOBS, 0, [Receipt(1, 1, 1)]))

    assert {first, again}.isdisjoint(host.replies)
    host.make_durable(1)
    assert host.replies[again] == EntriesOutcome([None], gone=1)


def test_memory_is_answered_at_once_and_still_not_received_before_its_commit(host: Host) -> None:
    sent = host.propose(Send(QUICK, 0, [message(1)]))

    assert isinstance(host.replies[sent], SentOutcome)
    assert host.replies[host.propose(Receive(QUICK, 0, 1))] == TakenOutcome(1, [], [], False)
    host.make_durable()
    taken = host.replies[host.propose(Receive(QUICK, 0, 1))]
    assert isinstance(taken, TakenOutcome)
    assert len(taken.taken) == 1


def test_duplicate_waits_for_the_commit_whatever_the_durability(host: Host) -> None:
    for queue_id in (QUICK, LAZY):
        host.propose(Send(queue_id, 0, [message(1, retry=b"r" * 16)]))
        duplicate = host.propose(Send(queue_id, 0, [message(2, retry=b"r" * 16)]))

        host.replica.on_written(host.replica.end_offset)
        assert duplicate not in host.replies
        host.make_durable()
        assert duplicate in host.replies


def test_async_is_answered_when_it_is_written() -> None:
    found = Host()
    found.ask(SetQueue(queue(LAZY, "lazy", attributes={"Durability": "Async"})))
    replica = found.replica
    replica.propose(Send(LAZY, 0, [message(1)]), 1, found.now_ms)
    first = replica.take()
    replica.propose(Send(LAZY, 0, [message(2)]), 2, found.now_ms)
    second = replica.take()

    assert ([needs_written(todo) for todo in (first, second)], first.replies) == ([True, True], [])
    replica.on_written(first.batches[0].next_offset)
    assert [token for token, _ in replica.take().replies] == [1]
    replica.on_written(second.batches[0].next_offset)
    replica.on_written(second.batches[0].next_offset)
    assert [token for token, _ in replica.take().replies] == [2]
    replica.on_durable(replica.end_offset)
    assert replica.take().replies == []


def test_async_is_answered_by_the_fsync_when_nobody_told_of_the_write(host: Host) -> None:
    sent = host.propose(Send(LAZY, 0, [message(1)]))

    assert sent not in host.replies
    host.make_durable()
    assert sent in host.replies


def test_send_of_nothing_is_answered_like_any_other(host: Host) -> None:
    for queue_id in (JOBS, LAZY):
        empty = host.propose(Send(queue_id, 0, []))
        assert host.replies.pop(empty) == SentOutcome([])
    host.propose(Send(JOBS, 0, [message(1)]))

    behind = [host.propose(Send(queue_id, 0, [])) for queue_id in (JOBS, LAZY)]

    assert set(behind).isdisjoint(host.replies)
    host.make_durable()
    assert set(behind) <= host.replies.keys()


def test_sync_send_does_not_ask_to_hear_of_the_write(host: Host) -> None:
    host.replica.propose(Send(JOBS, 0, [message(1)]), 99, host.now_ms)

    assert not needs_written(host.replica.take())


# Who is woken


def test_waiters_are_woken_by_the_commit_of_a_message_not_by_its_proposal(host: Host) -> None:
    host.partition(JOBS).watched = True
    host.awake.clear()

    host.propose(Send(JOBS, 0, [message(1)]))
    assert host.awake == []
    host.make_durable()
    assert host.awake == [host.partition(JOBS)]


def test_nobody_is_woken_where_nobody_waits(host: Host) -> None:
    host.propose(Send(JOBS, 0, [message(1)]))
    host.make_durable()

    assert host.partition(JOBS) not in host.awake[2:]
    assert not host.partition(JOBS).watched


# Stopping


def test_whoever_waits_when_it_stops_learns_that_the_outcome_is_unknown(host: Host) -> None:
    waiting = [host.propose(Send(queue_id, 0, [message(1)])) for queue_id in (JOBS, LAZY)]
    host.replica.propose(Send(JOBS, 0, [message(2)]), 98, host.now_ms)
    host.replica.propose(Send(LAZY, 0, [message(2)]), 99, host.now_ms)
    end = host.replica.end_offset
    reason = JournalStopped("The disk failed.")

    host.replica.stop(reason)

    todo = host.replica.take()
    assert dict(todo.replies) == dict.fromkeys([*waiting, 98, 99], reason)
    assert todo.batches == []
    host.replica.on_durable(end)
    host.replica.on_promise_durable(1)
    host.replica.propose(CountMessages(JOBS), 100, host.now_ms)
    ((token, answer),) = host.replica.take().replies
    assert (token, type(answer)) == (100, NotLeader)


def test_decision_that_was_taken_is_durable_when_it_is_answered(host: Host) -> None:
    token = host.propose(Purge(JOBS))
    host.make_durable()

    assert host.replies[token] == Done()
    assert [row.type for row, _, _ in records_of(host.durable_batches())][-1] == RecordType.PURGE


def test_leader_that_leads_again_gives_what_it_had_sent_before() -> None:
    """It resigned before that was committed, and another leader committed it."""
    host = Host(is_slow=True)
    host.ask(SetQueue(queue(JOBS, "jobs")))
    host.propose(Send(JOBS, 0, [message(1)]))
    host.propose(Send(JOBS, 0, [message(2)]))
    host.make_durable(1)
    partition = host.partition(JOBS)
    assert (partition.committed, partition.next_sequence) == (2, 3)

    host.replica.on_configuration(configuration(2, leader="b", members=("a", "b")), 0)
    host.replica.take()
    assert not host.replica.is_leading
    assert partition.committed == 3

    host.replica.on_configuration(configuration(3, members=("a",), previous=("a",)), 0)
    host.replica.take()
    host.replica.on_promise_durable(3)
    host._carry_out()
    host.make_durable()

    taken = host.ask(Receive(JOBS, 0, 10))
    assert isinstance(taken, TakenOutcome)
    assert [found.sequence for found in taken.taken] == [1, 2]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_leader_that_missed_an_epoch_in_between_gives_what_was_sent_in_it(is_waiting: bool) -> None:
    """It led, somebody else did for a moment, and it leads again without having heard of that.

    `is_waiting`: what it had sent itself was not committed before.
    """
    members = ("a", "b", "c")
    log = LogReplica("a", promised_epoch=0, start=LOG_START, positions=(), now_ms=0)
    found = JournalReplica(log, QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS), last_time_ms=0)

    def lead(epoch: int, last_epoch: int, end: int, tail: list[Batch]) -> None:
        found.on_configuration(configuration(epoch, members=members, previous=members), epoch * 10_000)
        found.take()
        found.on_promise_durable(epoch)
        start = found.end_offset
        found.on_message("b", Promise(epoch, last_epoch, end), epoch * 10_000)
        if tail:
            found.on_message("b", Tail(epoch, start, tail), epoch * 10_000)
        found.take(1_000)
        found.on_durable(found.end_offset)
        found.on_message("b", Appended(epoch, found.end_offset, found.end_offset, 0), epoch * 10_000)
        assert found.take().activate == epoch
        found.on_activated(epoch)
        assert found.is_leading

    lead(1, 0, 0, [])
    found.propose(SetQueue(queue(JOBS, "jobs")), 1, 1_000)
    found.propose(Send(JOBS, 0, [message(1)]), 2, 1_000)
    found.take()
    if not is_waiting:
        found.on_durable(found.end_offset)
        found.on_message("b", Appended(1, found.end_offset, found.end_offset, 0), 10_000)
    records = [
        Record(RecordType.BARRIER, 0, 0, 0, 0, 1_000, 0, b""),
        Record(RecordType.SEND, message(2).flags, JOBS, 0, 2, 1_000, 0, message(2).payload),
    ]
    end = found.log.end
    sent_by_b = encode_batch(
        records, epoch=2, base_offset=end.end, time_ms=1_000, floor=0, previous_chain=end.chain
    )

    lead(3, 2, sent_by_b.next_offset, [sent_by_b])

    partition = found.queues.partition(JOBS, 0)
    assert partition.committed == partition.next_sequence == 3

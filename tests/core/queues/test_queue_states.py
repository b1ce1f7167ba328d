"""What is decided on each command, and that a replay of the records gives the same."""

from __future__ import annotations

from typing import Any

import pytest
from harness.replica_host import (
    ACCOUNT,
    Host,
    arn,
    identity,
    message,
    queue,
    receipts_of,
    replay,
    snapshot_of,
)

from quaymaster.core.partition.partition import IN_FLIGHT_MAX
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues import consumed_queues
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES, entry_of_record
from quaymaster.core.structures.ids.recent_marks import MARKED_S
from quaymaster.core.structures.orders import fifo_order
from quaymaster.core.structures.orders.index import IndexEntry, MemoryChunks
from quaymaster.core.values.commands.decided import (
    DeadLetter,
    Duplicate,
    ExpireMessages,
    PeekedOffsets,
    SentOutcome,
    TakenOutcome,
)
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    EntriesOutcome,
    NewMessage,
    Peek,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
    SendResult,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
    TakeForMove,
    TakenForTask,
)
from quaymaster.core.values.commands.moves import MoveMessage
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueDoesNotExist,
    QueueRevisionTaken,
    ResourceNotFound,
)
from quaymaster.core.values.messages import decode_message, prefix_bytes
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.core.values.records import RecordType

JOBS, DEAD, STEPS, STEPS_DEAD = 1, 2, 3, 4
UNMARKED_MS = (MARKED_S + 1) * 1_000
"""After so long a first attempt is not known from the last seconds."""
ATTEMPT = b"attempt-one-----"
TASK = b"task-number-one-"


@pytest.fixture
def host() -> Host:
    return started()


def started(*, in_flight_max: int = IN_FLIGHT_MAX, **attributes: object) -> Host:
    """Return a host with a standard and a FIFO queue (with `attributes`), and a dead-letter queue for each."""
    host = Host(states=QueueStates(MemoryChunks(), retry_window_ms=120_000, in_flight_max=in_flight_max))
    for definition in (
        queue(JOBS, "jobs", attributes=attributes),
        queue(DEAD, "jobs-dead"),
        queue(STEPS, "steps.fifo", attributes=attributes),
        queue(STEPS_DEAD, "steps-dead.fifo"),
    ):
        host.ask(SetQueue(definition))
    return host


def redrive(name: str, count: int = 1) -> dict[str, Any]:
    return {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn(name)}","maxReceiveCount":{count}}}'}


def change(host: Host, queue_id: int, **attributes: object) -> None:
    known = host.states.definitions[queue_id]
    host.ask(SetQueue(queue(queue_id, known.name, revision=known.revision + 1, attributes=attributes)))


def send(host: Host, queue_id: int, *messages: NewMessage, after_ms: int = 0) -> list[SendResult | Duplicate]:
    outcome = host.ask(Send(queue_id, 0, list(messages)), after_ms=after_ms)
    assert isinstance(outcome, SentOutcome)
    return outcome.results


def receive(
    host: Host,
    queue_id: int,
    count_max: int = 10,
    *,
    after_ms: int = 0,
    timeout_ms: int = -1,
    attempt: bytes | None = None,
    wait_ms: int = 0,
) -> TakenOutcome:
    command = Receive(queue_id, 0, count_max, timeout_ms, wait_ms, attempt)
    outcome = host.ask(command, after_ms=after_ms)
    assert isinstance(outcome, TakenOutcome)
    return outcome


def sequences(outcome: Decided) -> list[int]:
    assert isinstance(outcome, TakenOutcome)
    return [taken.sequence for taken in outcome.taken]


def errors(outcome: Decided) -> list[Exception | None]:
    assert isinstance(outcome, EntriesOutcome)
    return outcome.errors


def delete(host: Host, queue_id: int, *given: Receipt, after_ms: int = 0) -> list[Exception | None]:
    return errors(host.ask(Delete(queue_id, 0, list(given)), after_ms=after_ms))


def hide(
    host: Host, queue_id: int, receipt: Receipt, timeout_ms: int, *, after_ms: int = 0
) -> Exception | None:
    (error,) = errors(host.ask(ChangeVisibility(queue_id, 0, [receipt], [timeout_ms]), after_ms=after_ms))
    return error


def counts(host: Host, queue_id: int, *, after_ms: int = 0) -> tuple[int, int, int]:
    found = host.ask(CountMessages(queue_id), after_ms=after_ms)
    assert isinstance(found, QueueCounts)
    return found.visible, found.in_flight, found.delayed


def move(
    host: Host, letter: DeadLetter, *, new_id: bytes | None = None, task_id: bytes | None = None
) -> None:
    row, payload = host.payload(letter.offset)
    source_arn = None if new_id else arn("source")
    host.ask(
        MoveMessage(
            letter.queue_id,
            0,
            letter.sequence,
            letter.target_queue_id,
            row.type,
            row.flags,
            payload,
            source_arn,
            new_id,
            task_id,
        )
    )


def take_for_task(host: Host, queue_id: int, to: int, count_max: int = 10) -> list[DeadLetter]:
    """Take messages for the task that runs, or for one that is started for it."""
    if not any(task.status == "RUNNING" for task in tasks_of(host, queue_id)):
        host.ask(StartMoveTask(queue_id, identity(999), "arn", None, to, None))
    outcome = host.ask(TakeForMove(queue_id, tasks_of(host, queue_id)[0].task_id, count_max))
    assert isinstance(outcome, TakenForTask)
    return [DeadLetter(queue_id, 0, taken.sequence, taken.offset, to) for taken in outcome.taken]


def same_after_replay(host: Host) -> None:
    replayed = host.replayed()
    assert replayed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert replayed.definitions == host.states.definitions


def tasks_of(host: Host, queue_id: int) -> list[MoveTask]:
    outcome = host.ask(ListMoveTasks(queue_id))
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks


# Sending


def test_sent_messages_get_dense_sequence_numbers(host: Host) -> None:
    results = send(host, JOBS, message(1), message(2))

    assert results == [SendResult(1, identity(1)), SendResult(2, identity(2))]
    assert counts(host, JOBS) == (2, 0, 0)
    same_after_replay(host)


def test_unknown_queue_is_refused_whatever_is_asked(host: Host) -> None:
    for command in (
        Send(99, 0, [message(1)]),
        Receive(99, 0, 1),
        CountMessages(99),
        Purge(99),
        StartMoveTask(99, TASK, "arn", None, None, None),
    ):
        with pytest.raises(QueueDoesNotExist):
            host.ask(command)


@pytest.mark.parametrize(
    ("delay_ms", "queue_delay_s", "due_after_ms"),
    [(-1, 0, 0), (0, 0, 0), (-1, 5, 5_000), (0, 5, 0), (2_000, 5, 2_000), (2_000, 0, 2_000)],
)
def test_message_is_delayed_by_its_own_delay_or_else_by_the_queues(
    delay_ms: int, queue_delay_s: int, due_after_ms: int
) -> None:
    host = started(DelaySeconds=queue_delay_s)
    send(host, JOBS, message(1, delay_ms=delay_ms))

    if due_after_ms:
        assert counts(host, JOBS) == (0, 0, 1)
        assert sequences(receive(host, JOBS, after_ms=due_after_ms - 1)) == []
        host.now_ms += 1
    assert sequences(receive(host, JOBS)) == [1]
    same_after_replay(host)


def test_fifo_message_has_the_queues_delay_only() -> None:
    host = started(DelaySeconds=5)
    send(host, STEPS, message(1, group=1, delay_ms=1_000))

    assert sequences(receive(host, STEPS, after_ms=4_999)) == []
    assert sequences(receive(host, STEPS, after_ms=1)) == [1]


def test_deduplication_id_is_stored_once_within_five_minutes(host: Host) -> None:
    (first,) = send(host, STEPS, message(1, group=1, dedup=b"d" * 16))
    assert isinstance(first, SendResult)
    delete(host, STEPS, *receipts_of(receive(host, STEPS)))

    (again,) = send(host, STEPS, message(2, group=1, dedup=b"d" * 16), after_ms=299_999)
    assert isinstance(again, Duplicate)
    assert host.number_at(again.offset) == 1
    (later,) = send(host, STEPS, message(3, group=1, dedup=b"d" * 16), after_ms=1)
    assert later == SendResult(2, identity(3))
    same_after_replay(host)


def test_duplicate_within_one_batch_is_found(host: Host) -> None:
    dedup = b"d" * 16
    results = send(host, STEPS, message(1, group=1, dedup=dedup), message(2, group=1, dedup=dedup))

    assert isinstance(results[1], Duplicate)
    assert host.number_at(results[1].offset) == 1


def test_retried_send_is_stored_once_on_a_standard_queue(host: Host) -> None:
    send(host, JOBS, message(1, retry=b"r" * 16, may_be_retry=False))

    (again,) = send(host, JOBS, message(2, retry=b"r" * 16), after_ms=119_999)
    assert isinstance(again, Duplicate)
    (later,) = send(host, JOBS, message(3, retry=b"r" * 16), after_ms=1)
    assert later == SendResult(2, identity(3))
    same_after_replay(host)


def test_a_first_attempt_that_arrives_after_its_repeat_is_found_to_be_stored(host: Host) -> None:
    host.now_ms += 120_000  # no earlier leader can have stored a repeat
    send(host, JOBS, message(1, retry=b"r" * 16))

    (late,) = send(host, JOBS, message(1, retry=b"r" * 16, may_be_retry=False), after_ms=119_999)

    assert isinstance(late, Duplicate)
    same_after_replay(host)


def test_a_first_attempt_is_looked_for_under_the_next_leader_too(host: Host) -> None:
    send(host, JOBS, message(1, retry=b"r" * 16))
    after = Host(batches=host.batches, states=host.replayed(), epoch=2, now_ms=host.now_ms + 119_999)

    (late,) = send(after, JOBS, message(1, retry=b"r" * 16, may_be_retry=False))

    assert isinstance(late, Duplicate)


def test_a_first_attempt_is_not_looked_for_where_an_earlier_leader_stored_nothing(host: Host) -> None:
    after = Host(batches=host.batches, states=host.replayed(), epoch=2, now_ms=host.now_ms + 1_000)
    send(after, JOBS, message(1, retry=b"r" * 16, may_be_retry=False))

    (first,) = send(after, JOBS, message(2, retry=b"r" * 16, may_be_retry=False), after_ms=UNMARKED_MS)

    assert isinstance(first, SendResult)


def test_a_first_attempt_is_not_looked_for_where_no_repeat_can_have_come_before_it(host: Host) -> None:
    host.now_ms += 120_000
    send(host, JOBS, message(1, retry=b"r" * 16, may_be_retry=False))

    (first,) = send(host, JOBS, message(2, retry=b"r" * 16, may_be_retry=False), after_ms=UNMARKED_MS)

    assert isinstance(first, SendResult)


@pytest.mark.parametrize("after_ms", [0, 999, MARKED_S * 1_000])
def test_a_first_attempt_that_is_sent_again_within_seconds_is_stored_once(host: Host, after_ms: int) -> None:
    host.now_ms += 120_000
    send(host, JOBS, message(1, retry=b"r" * 16, may_be_retry=False))

    (again,) = send(host, JOBS, message(2, retry=b"r" * 16, may_be_retry=False), after_ms=after_ms)

    assert isinstance(again, Duplicate)
    assert host.number_at(again.offset) == 1
    same_after_replay(host)


def test_first_attempts_of_one_request_with_the_same_id_are_stored_once(host: Host) -> None:
    twins = [message(number, retry=b"r" * 16, may_be_retry=False) for number in (1, 2)]

    results = send(host, JOBS, *twins)

    assert [type(result) for result in results] == [SendResult, Duplicate]


def test_retry_is_found_when_the_deduplication_id_is_new(host: Host) -> None:
    send(host, STEPS, message(1, group=1, dedup=b"a" * 16, retry=b"r" * 16))

    (again,) = send(host, STEPS, message(2, group=1, dedup=b"b" * 16, retry=b"r" * 16))

    assert isinstance(again, Duplicate)


# Receiving


def test_receive_says_counts_and_times(host: Host) -> None:
    send(host, JOBS, message(1))
    host.now_ms += 500

    first = receive(host, JOBS, timeout_ms=1_000)
    again = receive(host, JOBS, after_ms=1_050)

    sent_ms = host.now_ms - 1_550
    assert [(t.delivery_count, t.first_receive_ms, t.sent_ms) for t in first.taken] == [
        (1, sent_ms + 500, sent_ms)
    ]
    assert [(t.delivery_count, t.first_receive_ms) for t in again.taken] == [(2, sent_ms + 500)]
    same_after_replay(host)


def test_queues_own_visibility_timeout_is_the_default() -> None:
    host = started(VisibilityTimeout=7)
    send(host, JOBS, message(1))

    receive(host, JOBS)

    assert counts(host, JOBS, after_ms=6_999) == (0, 1, 0)
    assert counts(host, JOBS, after_ms=1) == (1, 0, 0)


def test_uncommitted_message_is_not_received() -> None:
    host = started()
    host.is_slow = True
    host.propose(Send(JOBS, 0, [message(1)]))
    assert host.replies[host.propose(Receive(JOBS, 0, 1))] == TakenOutcome(1, [], [], False)

    host.make_durable()

    assert sequences(receive(host, JOBS)) == [1]


def test_standard_queue_is_over_its_limit_on_a_short_poll_only() -> None:
    host = started(in_flight_max=2)
    send(host, JOBS, *(message(number) for number in range(4)))
    first = receive(host, JOBS)

    assert sequences(first) == [1, 2]
    with pytest.raises(OverLimit, match="2"):
        receive(host, JOBS)
    assert sequences(receive(host, JOBS, wait_ms=1_000)) == []
    assert isinstance(hide(host, JOBS, Receipt(3, 1, 1), 5_000), OverLimit)
    assert hide(host, JOBS, Receipt(3, 1, 1), 0) is None


def test_fifo_queue_at_its_limit_gives_nothing_and_no_error() -> None:
    host = started(in_flight_max=1)
    send(host, STEPS, message(1, group=1), message(2, group=2))
    receive(host, STEPS)

    assert sequences(receive(host, STEPS)) == []


def test_repeated_attempt_gives_the_same_messages_hidden_anew(host: Host) -> None:
    send(host, STEPS, *(message(number, group=number % 2 + 1) for number in range(4)))
    first = receive(host, STEPS, 2, attempt=ATTEMPT, timeout_ms=10_000)

    again = receive(host, STEPS, 2, attempt=ATTEMPT, timeout_ms=10_000, after_ms=8_000)

    assert [(t.sequence, t.delivery_count, t.first_receive_ms) for t in again.taken] == [
        (t.sequence, t.delivery_count, t.first_receive_ms) for t in first.taken
    ]
    assert counts(host, STEPS, after_ms=9_950) == (2, 2, 0)
    assert delete(host, STEPS, *receipts_of(first)) == [None, None]
    same_after_replay(host)


def test_repeated_attempt_that_asks_for_fewer_messages_gets_the_first_of_them(host: Host) -> None:
    send(host, STEPS, *(message(number, group=1) for number in range(4)))
    first = receive(host, STEPS, 4, attempt=ATTEMPT)

    again = receive(host, STEPS, 2, attempt=ATTEMPT, after_ms=1_000)

    assert receipts_of(again) == receipts_of(first)[:2]
    assert counts(host, STEPS) == (0, 4, 0)
    same_after_replay(host)


@pytest.mark.parametrize("how", ["deleted", "changed"])
@pytest.mark.parametrize("only_attempt", [False, True])
def test_attempt_is_refused_while_one_of_its_messages_is_gone_or_hidden_for_another_time(
    host: Host, how: str, only_attempt: bool
) -> None:
    send(host, STEPS, *(message(number, group=number // 2) for number in range(2, 6)))
    first = receive(host, STEPS, 2, attempt=ATTEMPT, timeout_ms=400_000)
    command = Receive(STEPS, 0, 2, 30_000, 0, ATTEMPT, only_attempt=only_attempt, attempt_id="once")
    end = host.replica.end_offset

    if how == "deleted":
        delete(host, STEPS, receipts_of(first)[1])
    else:
        hide(host, STEPS, receipts_of(first)[1], 390_000)

    for after_ms in (0, 299_990):
        with pytest.raises(InvalidParameterValue, match=r"^Value once for .* is not retryable\.$"):
            host.ask(command, after_ms=after_ms)
    assert host.replica.end_offset == end + 1
    assert sequences(receive(host, STEPS, 2, attempt=b"attempt-two-----")) == [3, 4]
    assert sequences(receive(host, STEPS, 2, attempt=ATTEMPT, after_ms=10)) == []
    same_after_replay(host)


def test_attempt_whose_messages_were_made_visible_is_a_receive_like_any_other(host: Host) -> None:
    send(host, STEPS, message(1, group=1))
    first = receive(host, STEPS, 2, attempt=ATTEMPT, timeout_ms=400_000)
    hide(host, STEPS, receipts_of(first)[0], 0)

    assert [taken.delivery_count for taken in receive(host, STEPS, 2, attempt=ATTEMPT).taken] == [2]


@pytest.mark.parametrize("how", ["expired", "window"])
def test_attempt_is_not_repeated_once_its_messages_are_visible_or_it_is_old(host: Host, how: str) -> None:
    send(host, STEPS, *(message(number, group=1) for number in range(4)))
    receive(host, STEPS, 2, attempt=ATTEMPT, timeout_ms=400_000)
    after_ms = 400_000 if how == "expired" else 300_000

    again = receive(host, STEPS, 2, attempt=ATTEMPT, after_ms=after_ms)
    assert sequences(again) == ([1, 2] if how == "expired" else [])
    if how == "expired":
        assert [taken.delivery_count for taken in again.taken] == [2, 2]


def test_attempt_id_of_an_empty_receive_is_not_remembered(host: Host) -> None:
    assert sequences(receive(host, STEPS, attempt=ATTEMPT)) == []

    send(host, STEPS, message(1, group=1))

    assert sequences(receive(host, STEPS, attempt=ATTEMPT)) == [1]


def test_attempt_id_means_nothing_on_a_standard_queue(host: Host) -> None:
    send(host, JOBS, message(1))
    receive(host, JOBS, attempt=ATTEMPT)

    assert sequences(receive(host, JOBS, attempt=ATTEMPT)) == []


def test_fifo_receive_behaves_as_the_service_does(host: Host) -> None:
    send(host, STEPS, *(message(number, group=group) for number, group in enumerate((1, 2, 1, 1))))

    first = receive(host, STEPS)
    assert sequences(first) == [1, 3, 4, 2]
    hide(host, STEPS, receipts_of(first)[0], 0)
    again = receive(host, STEPS)
    assert sequences(again) == [1]  # alone: the others are in flight
    delete(host, STEPS, *receipts_of(again))
    send(host, STEPS, message(9, group=1))
    assert sequences(receive(host, STEPS)) == []
    delete(host, STEPS, *receipts_of(first)[1:])
    assert sequences(receive(host, STEPS)) == [5]
    same_after_replay(host)


# Deleting and hiding


def test_delete_is_idempotent_and_old_receipts_delete_on_a_standard_queue(host: Host) -> None:
    send(host, JOBS, message(1))
    old = receipts_of(receive(host, JOBS, timeout_ms=1_000))[0]
    receive(host, JOBS, after_ms=1_000)

    assert delete(host, JOBS, old, old) == [None, None]
    assert delete(host, JOBS, old) == [None]
    assert counts(host, JOBS) == (0, 0, 0)
    assert host.states.messages_gone == 1
    same_after_replay(host)


@pytest.mark.parametrize("way", ["received", "hidden"])
def test_timeout_of_a_fifo_queue_is_over_to_the_millisecond(host: Host, way: str) -> None:
    host.now_ms = host.now_ms // 50 * 50 + 1
    send(host, STEPS, message(1, group=1))
    receipt = receipts_of(receive(host, STEPS, timeout_ms=1_000 if way == "received" else 30_000))[0]
    if way == "hidden":
        assert hide(host, STEPS, receipt, 1_000) is None

    assert counts(host, STEPS, after_ms=999) == (0, 1, 0)
    (error,) = delete(host, STEPS, receipt, after_ms=1)
    assert isinstance(error, InvalidParameterValue)
    assert counts(host, STEPS) == (1, 0, 0)
    same_after_replay(host)


def test_expired_receipt_does_not_delete_on_a_fifo_queue(host: Host) -> None:
    send(host, STEPS, message(1, group=1))
    old = receipts_of(receive(host, STEPS, timeout_ms=1_000))[0]

    (error,) = delete(host, STEPS, old, after_ms=1_000)
    assert isinstance(error, InvalidParameterValue)
    assert "The receipt handle has expired." in error.message
    new = receipts_of(receive(host, STEPS))[0]
    found = delete(host, STEPS, old, new, old)
    assert [type(error) for error in found] == [InvalidParameterValue, type(None), InvalidParameterValue]
    assert delete(host, STEPS, new) == [None]


def test_receipt_of_another_epoch_is_not_the_holder_on_a_fifo_queue(host: Host) -> None:
    send(host, STEPS, message(1, group=1))
    receive(host, STEPS)

    assert isinstance(hide(host, STEPS, Receipt(1, 7, 1), 5_000), InvalidParameterValue)
    assert isinstance(delete(host, STEPS, Receipt(1, 1, 2))[0], InvalidParameterValue)


def test_visibility_is_changed_by_old_receipts_on_a_standard_queue(host: Host) -> None:
    send(host, JOBS, message(1))
    old = receipts_of(receive(host, JOBS, timeout_ms=1_000))[0]

    assert hide(host, JOBS, old, 5_000, after_ms=2_000) is None
    assert counts(host, JOBS) == (0, 1, 0)
    receive(host, JOBS, after_ms=5_000)
    assert hide(host, JOBS, old, 0) is None
    assert counts(host, JOBS) == (1, 0, 0)
    same_after_replay(host)


def test_visibility_of_a_deleted_message_cannot_be_changed(host: Host) -> None:
    send(host, JOBS, message(1))
    receipt = receipts_of(receive(host, JOBS))[0]
    delete(host, JOBS, receipt)

    error = hide(host, JOBS, receipt, 5_000)

    assert isinstance(error, InvalidParameterValue)
    assert "does not exist or is not available" in error.message


def test_message_is_hidden_for_twelve_hours_at_most(host: Host) -> None:
    send(host, JOBS, message(1))
    receipt = receipts_of(receive(host, JOBS))[0]

    assert hide(host, JOBS, receipt, 43_200_000, after_ms=999) is None
    error = hide(host, JOBS, receipt, 43_200_000, after_ms=1)
    assert isinstance(error, InvalidParameterValue)
    assert "beyond the limit [43200 seconds]" in error.message
    assert hide(host, JOBS, receipt, 0) is None


def test_one_batch_may_hide_some_and_fail_for_others(host: Host) -> None:
    send(host, JOBS, message(1))
    receipt = receipts_of(receive(host, JOBS))[0]

    outcome = host.ask(ChangeVisibility(JOBS, 0, [receipt, Receipt(9, 1, 1)], [5_000, 5_000]))

    assert [type(error) for error in errors(outcome)] == [type(None), InvalidParameterValue]


# Dead letters


def dead_letter_host(queue_id: int = JOBS, count: int = 1) -> Host:
    return started(**redrive("jobs-dead" if queue_id == JOBS else "steps-dead.fifo", count))


def test_message_received_too_often_moves_and_goes_on_counting() -> None:
    host = dead_letter_host(count=2)
    send(host, JOBS, message(1))
    sent_ms = host.now_ms
    for _ in range(2):
        assert sequences(receive(host, JOBS, timeout_ms=0)) == [1]

    outcome = receive(host, JOBS, after_ms=5)
    assert outcome.taken == []
    (letter,) = outcome.dead_letters
    assert (letter.queue_id, letter.sequence, letter.target_queue_id) == (JOBS, 1, DEAD)
    assert sequences(receive(host, JOBS)) == []
    move(host, letter)

    assert counts(host, JOBS) == (0, 0, 0)
    (dead,) = receive(host, DEAD, after_ms=5).taken
    assert (dead.delivery_count, dead.first_receive_ms, dead.sent_ms) == (3, sent_ms, sent_ms)
    row, payload = host.payload(dead.offset)
    stored = decode_message(payload[MOVE_HEAD_BYTES:])
    assert (row.type, stored.message_id) == (RecordType.MOVE, identity(1))
    assert (stored.source_queue_id, stored.dead_letter_source_arn) == (JOBS, arn("source"))
    same_after_replay(host)


def test_dead_letter_queue_counts_only_its_own_receives_for_its_own_policy() -> None:
    host = dead_letter_host(count=1)
    host.ask(SetQueue(queue(9, "last")))
    change(host, DEAD, **redrive("last"))
    send(host, JOBS, message(1))
    receive(host, JOBS, timeout_ms=0)
    move(host, receive(host, JOBS).dead_letters[0])

    assert [taken.delivery_count for taken in receive(host, DEAD, timeout_ms=0).taken] == [2]
    (letter,) = receive(host, DEAD).dead_letters
    move(host, letter)

    assert [taken.delivery_count for taken in receive(host, 9).taken] == [3]
    same_after_replay(host)


def test_fifo_dead_letter_frees_its_group_and_keeps_no_age() -> None:
    host = dead_letter_host(STEPS)
    send(host, STEPS, message(1, group=5), message(2, group=5))
    receive(host, STEPS, 1, timeout_ms=0)

    outcome = receive(host, STEPS, after_ms=1_000)
    assert sequences(outcome) == [2]
    move(host, outcome.dead_letters[0])
    (dead,) = receive(host, STEPS_DEAD).taken

    assert (dead.delivery_count, dead.sent_ms) == (2, host.now_ms)
    assert host.partition(STEPS_DEAD).index.group(1) == 5
    same_after_replay(host)


def test_senders_id_does_not_swallow_a_dead_letter() -> None:
    host = dead_letter_host(STEPS)
    send(host, STEPS, message(1, group=5, dedup=b"d" * 16))
    send(host, STEPS_DEAD, message(2, group=5, dedup=b"d" * 16))
    receive(host, STEPS, timeout_ms=0)

    move(host, receive(host, STEPS).dead_letters[0])

    assert counts(host, STEPS_DEAD) == (2, 0, 0)
    same_after_replay(host)


def test_message_whose_dead_letter_queue_is_not_there_is_received_again() -> None:
    host = dead_letter_host()
    host.ask(ForgetQueue(DEAD))
    send(host, JOBS, message(1))
    receive(host, JOBS, timeout_ms=0)

    assert [taken.delivery_count for taken in receive(host, JOBS).taken] == [2]


def test_dead_letter_goes_back_when_it_cannot_be_moved() -> None:
    for is_readable in (True, False):
        host = dead_letter_host()
        send(host, JOBS, message(1))
        receive(host, JOBS, timeout_ms=0)
        (letter,) = receive(host, JOBS).dead_letters
        row, _ = host.payload(letter.offset)

        if is_readable:
            host.ask(ForgetQueue(DEAD))
            move(host, letter)
        else:
            host.ask(MoveMessage(JOBS, 0, 1, DEAD, row.type, row.flags, None, None))

        assert counts(host, JOBS) == (1, 0, 0)
        same_after_replay(host)


def test_dead_letter_that_was_deleted_meanwhile_is_not_moved() -> None:
    host = dead_letter_host()
    send(host, JOBS, message(1))
    receipt = receipts_of(receive(host, JOBS, timeout_ms=0))[0]
    (letter,) = receive(host, JOBS).dead_letters

    assert isinstance(hide(host, JOBS, receipt, 5_000), InvalidParameterValue)
    delete(host, JOBS, receipt)
    move(host, letter)
    host.ask(ForgetQueue(JOBS))
    move(host, letter)

    assert counts(host, DEAD) == (0, 0, 0)


def test_receive_that_met_very_many_dead_letters_says_it_is_not_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumed_queues, "DEAD_LETTERS_PER_RECEIVE_MAX", 2)
    host = dead_letter_host()
    send(host, JOBS, *(message(number) for number in range(4)))
    receive(host, JOBS, timeout_ms=0)

    outcome = receive(host, JOBS, 2)

    assert len(outcome.dead_letters) == 2
    assert outcome.unfinished


def test_move_wakes_those_who_wait_for_the_queue_it_goes_to() -> None:
    host = dead_letter_host(STEPS)
    host.partition(STEPS_DEAD).watched = True
    send(host, STEPS, message(1, group=5))
    receive(host, STEPS, timeout_ms=0)
    host.awake.clear()

    move(host, receive(host, STEPS).dead_letters[0])

    assert host.awake == [host.partition(STEPS_DEAD)]
    assert host.states.messages_moved == 1


def test_twice_moved_message_keeps_its_id_and_first_body() -> None:
    host = dead_letter_host()
    send(host, JOBS, message(1, group=4, retry=b"r" * 16))
    receive(host, JOBS, timeout_ms=0)
    move(host, receive(host, JOBS).dead_letters[0])

    start_task(host)
    (taken,) = take_for_task(host, DEAD, JOBS)
    move(host, taken, new_id=identity(50), task_id=TASK)

    (back,) = receive(host, JOBS).taken
    row, payload = host.payload(back.offset)
    stored = decode_message(payload[MOVE_HEAD_BYTES + prefix_bytes(row.flags) :])
    assert (stored.message_id, stored.origin_message_id) == (identity(50), identity(1))
    assert (back.delivery_count, back.sent_ms) == (1, host.now_ms)
    assert stored.dead_letter_source_arn is None
    same_after_replay(host)


# Move tasks


def start_task(host: Host, task_id: bytes = TASK) -> MoveTask:
    outcome = host.ask(StartMoveTask(DEAD, task_id, arn("jobs-dead"), None, JOBS, None))
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks[0]


def test_move_task_moves_and_counts_and_completes(host: Host) -> None:
    send(host, DEAD, *(message(number) for number in range(3)))
    task = start_task(host)

    for at, taken in enumerate(take_for_task(host, DEAD, JOBS)):
        move(host, taken, new_id=identity(100 + at), task_id=TASK)
    host.ask(FinishMoveTask(DEAD, TASK))

    (done,) = tasks_of(host, DEAD)
    assert (task.status, task.moved, task.to_move) == ("RUNNING", 0, 3)
    assert (done.status, done.moved, done.failure) == ("COMPLETED", 3, None)
    assert (counts(host, DEAD), counts(host, JOBS)) == ((0, 0, 0), (3, 0, 0))
    same_after_replay(host)


def test_one_move_task_runs_at_a_time_and_the_newest_is_listed_first(host: Host) -> None:
    start_task(host)
    with pytest.raises(InvalidParameterValue, match="already a task running"):
        start_task(host, b"2")

    host.ask(FinishMoveTask(DEAD, TASK, "the queue is gone"))
    host.ask(FinishMoveTask(DEAD, TASK))
    host.ask(FinishMoveTask(DEAD, b"unknown"))
    host.now_ms += 5
    start_task(host, b"2")

    newest, oldest = tasks_of(host, DEAD)
    assert (newest.status, oldest.status, oldest.failure) == ("RUNNING", "FAILED", "the queue is gone")


def test_moves_are_counted_for_the_running_task_alone(host: Host) -> None:
    send(host, DEAD, message(1))
    start_task(host)
    host.ask(FinishMoveTask(DEAD, TASK))
    host.now_ms += 5
    start_task(host, b"2")

    (taken,) = take_for_task(host, DEAD, JOBS)
    move(host, taken, new_id=identity(10), task_id=b"2")

    newest, oldest = tasks_of(host, DEAD)
    assert (newest.moved, oldest.moved) == (1, 0)
    same_after_replay(host)


def test_an_account_has_at_most_100_active_move_tasks(host: Host) -> None:
    for queue_id in range(100, 201):
        host.ask(SetQueue(queue(queue_id, f"dead-{queue_id}")))
    for queue_id in range(100, 200):
        host.ask(StartMoveTask(queue_id, identity(queue_id), "arn", None, None, None))

    with pytest.raises(OverLimit, match="100 active message move tasks"):
        host.ask(StartMoveTask(200, identity(200), "arn", None, None, None))
    host.ask(FinishMoveTask(100, identity(100)))

    host.ask(StartMoveTask(200, identity(200), "arn", None, None, None))


def test_cancelled_move_task_moves_nothing_more(host: Host) -> None:
    send(host, DEAD, message(1), message(2))
    start_task(host)
    first, second = take_for_task(host, DEAD, JOBS)
    move(host, first, new_id=identity(10), task_id=TASK)

    outcome = host.ask(CancelMoveTask(DEAD, TASK))
    assert isinstance(outcome, MoveTasksOutcome)
    move(host, second, new_id=identity(11), task_id=TASK)

    assert (outcome.tasks[0].status, outcome.tasks[0].moved) == ("CANCELLED", 1)
    assert tasks_of(host, DEAD)[0].moved == 1
    assert (counts(host, DEAD), counts(host, JOBS)) == ((1, 0, 0), (1, 0, 0))
    with pytest.raises(InvalidParameterValue, match="Only active tasks"):
        host.ask(CancelMoveTask(DEAD, TASK))
    with pytest.raises(ResourceNotFound):
        host.ask(CancelMoveTask(DEAD, b"unknown"))
    same_after_replay(host)


def test_move_task_does_not_revive_what_has_expired() -> None:
    host = started()
    change(host, DEAD, MessageRetentionPeriod=60)
    send(host, DEAD, message(1))
    send(host, DEAD, message(2), after_ms=30_000)
    start_task(host)
    host.now_ms += 30_000

    assert [taken.sequence for taken in take_for_task(host, DEAD, JOBS)] == [2]
    host.now_ms += 60_000
    outcome = host.ask(TakeForMove(DEAD, TASK, 10))
    assert isinstance(outcome, TakenForTask)
    assert not outcome.unfinished
    assert host.partition(DEAD).alive == 1  # only the one that is on its way
    same_after_replay(host)


def test_move_within_one_queue_is_applied_once_behind_a_snapshot() -> None:
    host = started()
    send(host, DEAD, message(1))
    start_task(host)
    (taken,) = take_for_task(host, DEAD, DEAD)
    move(host, taken, new_id=identity(10))
    found = host.partition(DEAD)
    found.applied = host.replica.end_offset
    states = QueueStates(MemoryChunks(), retry_window_ms=120_000)
    states.load(
        found.definition,
        [load_partition(snapshot_of(found), found.definition, 0, MemoryChunks(), retry_window_ms=120_000)],
    )

    replay(host.batches, states=states)

    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


# Purging, expiry


def test_purge_deletes_what_was_sent_before_and_forgets_ids(host: Host) -> None:
    send(host, STEPS, message(1, group=1, dedup=b"d" * 16), message(2, group=2))
    receive(host, STEPS, 1)

    host.ask(Purge(STEPS))

    assert counts(host, STEPS) == (0, 0, 0)
    assert isinstance(send(host, STEPS, message(3, group=1, dedup=b"d" * 16))[0], SendResult)
    assert host.states.messages_gone == 2
    assert sequences(receive(host, STEPS)) == [3]
    same_after_replay(host)


def test_message_past_its_retention_is_not_received() -> None:
    host = started(MessageRetentionPeriod=60)
    for queue_id in (JOBS, STEPS):
        send(host, queue_id, message(1, group=1))
    host.now_ms += 30_000
    for queue_id in (JOBS, STEPS):
        send(host, queue_id, message(2, group=1))

        assert sequences(receive(host, queue_id, after_ms=30_000 if queue_id == JOBS else 0)) == [2]
        assert host.partition(queue_id).alive == 1
    assert host.states.messages_expired == 2
    same_after_replay(host)


def test_message_behind_an_expired_one_of_its_group_is_received_at_once() -> None:
    host = started(MessageRetentionPeriod=60)
    send(host, STEPS, message(1, group=1))
    receive(host, STEPS, timeout_ms=0)
    send(host, STEPS, message(2, group=1), after_ms=60_000)

    assert sequences(receive(host, STEPS, 1)) == [2]
    same_after_replay(host)


def test_sweep_deletes_expired_messages_in_flight_too_and_their_delete_succeeds() -> None:
    host = started(MessageRetentionPeriod=60)
    host.partition(STEPS).watched = True
    send(host, STEPS, message(1, group=1))
    receipt = receipts_of(receive(host, STEPS, timeout_ms=600_000))[0]
    send(host, STEPS, message(2, group=1), after_ms=60_000)
    host.awake.clear()

    host.ask(ExpireMessages(STEPS, 0))
    host.ask(ExpireMessages(STEPS, 0))

    assert host.partition(STEPS) in host.awake
    assert sequences(receive(host, STEPS)) == [2]
    assert delete(host, STEPS, receipt) == [None]
    same_after_replay(host)


def test_dead_letter_keeps_the_age_it_had() -> None:
    host = dead_letter_host()
    change(host, DEAD, MessageRetentionPeriod=60)
    send(host, JOBS, message(1), message(2, delay_ms=40_000))
    receive(host, JOBS, timeout_ms=0, after_ms=40_000)
    for letter in receive(host, JOBS).dead_letters:
        move(host, letter)
    send(host, DEAD, message(3))

    host.now_ms += 20_000
    host.ask(ExpireMessages(DEAD, 0))

    assert sequences(receive(host, DEAD)) == [3]
    same_after_replay(host)


def test_a_receive_drops_dead_letters_that_expired() -> None:
    host = dead_letter_host()
    change(host, DEAD, MessageRetentionPeriod=60)
    send(host, JOBS, message(1))
    receive(host, JOBS, timeout_ms=0)
    for letter in receive(host, JOBS, after_ms=1_000).dead_letters:
        move(host, letter)

    outcome = receive(host, DEAD, after_ms=60_000)

    assert (outcome.taken, outcome.unfinished) == ([], False)
    assert host.partition(DEAD).alive == 0
    same_after_replay(host)


def test_nothing_expires_while_the_clock_may_be_wrong() -> None:
    host = started(MessageRetentionPeriod=60)
    send(host, JOBS, message(1))
    host.states.expiry_is_held = True
    host.now_ms += 10**9

    host.ask(ExpireMessages(JOBS, 0))

    assert sequences(receive(host, JOBS)) == [1]


def test_a_receive_drops_all_that_expired_in_front_with_one_record() -> None:
    host = started(MessageRetentionPeriod=60)
    send(host, JOBS, *(message(number) for number in range(500)))
    send(host, JOBS, message(500), after_ms=30_000)
    before = host.replica.end_offset

    outcome = receive(host, JOBS, 2, after_ms=30_000)

    assert sequences(outcome) == [501]
    assert host.replica.end_offset == before + 2  # what expired, what was received
    assert host.states.messages_expired == 500
    same_after_replay(host)


def test_very_many_expired_messages_that_were_moved_are_dropped_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumed_queues, "EXPIRED_PER_SWEEP_MAX", 2)
    host = dead_letter_host()
    change(host, DEAD, MessageRetentionPeriod=60)
    send(host, JOBS, *(message(number) for number in range(5)))
    receive(host, JOBS, timeout_ms=0)
    for letter in receive(host, JOBS, after_ms=1_000).dead_letters:
        move(host, letter)

    outcome = receive(host, DEAD, 2, after_ms=60_000)

    assert (outcome.taken, outcome.unfinished) == ([], True)
    assert host.partition(DEAD).alive == 3


# Counting and peeking


def test_counts_are_right_in_every_state(host: Host) -> None:
    send(host, JOBS, message(1), message(2), message(3, delay_ms=5_000))
    receive(host, JOBS, 1)

    assert counts(host, JOBS) == (1, 1, 1)
    found = host.ask(CountMessages(JOBS))
    assert isinstance(found, QueueCounts)
    assert (found.oldest_sent_ms, found.noisy_groups) == (host.now_ms, 0)
    empty = host.ask(CountMessages(DEAD))
    assert isinstance(empty, QueueCounts)
    assert empty.oldest_sent_ms == 0


def test_messages_behind_a_locked_group_count_as_visible(host: Host) -> None:
    send(host, STEPS, *(message(number, group=1) for number in range(5)))
    receive(host, STEPS, 4)

    assert counts(host, STEPS) == (1, 4, 0)


def peek(host: Host, start: int, count_max: int) -> tuple[list[tuple[int, str, int]], int]:
    outcome = host.ask(Peek(JOBS, 0, start, count_max))
    assert isinstance(outcome, PeekedOffsets)
    shown = [
        (found.sequence, state, found.delivery_count)
        for found, state in zip(outcome.messages, outcome.states, strict=True)
    ]
    return shown, outcome.next_sequence


def test_peek_shows_every_state_and_changes_nothing(host: Host) -> None:
    send(host, JOBS, *(message(number) for number in range(4)), message(5, delay_ms=5_000))
    delete(host, JOBS, receipts_of(receive(host, JOBS, 2))[0])
    receive(host, JOBS, 1, timeout_ms=0)
    before = host.states.state_hash(host.now_ms)

    assert peek(host, 0, 3) == ([(2, "in_flight", 1), (3, "visible", 1), (4, "visible", 0)], 5)
    assert peek(host, 5, 3) == ([(5, "delayed", 0)], 0)
    assert host.states.state_hash(host.now_ms) == before


def test_peek_through_a_long_stretch_of_deleted_messages_says_where_to_go_on(host: Host) -> None:
    for _ in range(21):
        send(host, JOBS, *(message(number) for number in range(10)))
    host.partition(JOBS).apply_delete(range(2, 205), host.now_ms)

    assert peek(host, 0, 1) == ([(1, "visible", 0)], 2)
    assert peek(host, 2, 1) == ([], 102)
    assert peek(host, 102, 1) == ([], 202)
    assert peek(host, 202, 1) == ([(205, "visible", 0)], 206)


def test_delay_of_a_fifo_queue_shows_in_a_peek_as_it_is_now(host: Host) -> None:
    send(host, STEPS, message(1, group=1))
    change(host, STEPS, DelaySeconds=10)

    outcome = host.ask(Peek(STEPS, 0, 0, 10))

    assert isinstance(outcome, PeekedOffsets)
    assert outcome.states == ["delayed"]


# Queues


def test_older_revision_of_a_queue_is_refused_and_changes_nothing(host: Host) -> None:
    change(host, JOBS, VisibilityTimeout=5)

    with pytest.raises(QueueRevisionTaken, match="revision 2"):
        host.ask(SetQueue(queue(JOBS, "jobs", attributes={"VisibilityTimeout": 9})))

    assert host.states.definitions[JOBS].visibility_timeout_ms == 5_000
    same_after_replay(host)


def test_queue_made_again_under_its_name_is_another_queue(host: Host) -> None:
    send(host, JOBS, message(1))
    host.ask(SetQueue(queue(9, "jobs")))
    assert host.states.queue_of_arn(QueueArn("local", ACCOUNT, "jobs")) == 9

    host.ask(ForgetQueue(JOBS))
    host.ask(ForgetQueue(JOBS))

    assert host.states.queue_of_arn(QueueArn("local", ACCOUNT, "jobs")) == 9
    assert counts(host, 9) == (0, 0, 0)
    assert host.states.messages_gone == 1
    assert host.states.removed == {partition_key(JOBS, 0)}
    same_after_replay(host)


def test_new_attributes_and_deletion_wake_those_who_wait(host: Host) -> None:
    found = host.partition(JOBS)
    host.awake.clear()

    change(host, JOBS, DelaySeconds=1)
    assert found in host.awake
    host.awake.clear()
    host.ask(ForgetQueue(JOBS))
    assert found in host.awake


def test_only_records_with_a_message_somebody_may_ask_for_are_live(host: Host) -> None:
    send(host, JOBS, message(1), message(2))
    send(host, DEAD, message(3))
    delete(host, JOBS, receipts_of(receive(host, JOBS, 1))[0])
    (taken,) = take_for_task(host, DEAD, JOBS)
    move(host, taken, new_id=identity(9))
    host.ask(ForgetQueue(STEPS))

    rows = [host.payload(offset)[0] for offset in range(host.replica.end_offset)]

    live = [(row.type, row.queue_id, row.sequence) for row in rows if host.states.is_live(row)]
    assert live == [(RecordType.SEND, JOBS, 2), (RecordType.MOVE, JOBS, 3)]


def test_index_entry_of_a_record_is_what_the_index_has(host: Host) -> None:
    send(host, STEPS_DEAD, message(1, group=5))
    send(host, JOBS, message(2, delay_ms=5_000))
    (taken,) = take_for_task(host, STEPS_DEAD, STEPS)
    move(host, taken, new_id=identity(9))

    for queue_id in (JOBS, STEPS):
        entry = host.partition(queue_id).index.entry(1)
        assert entry_of_record(*host.payload(entry.offset)) == entry
    assert entry.group == 5
    assert isinstance(entry, IndexEntry)


def test_dirty_partitions_are_those_that_changed(host: Host) -> None:
    for key in host.states.dirty_keys():
        host.states.partitions[key].note_saved()
    assert host.states.dirty_keys() == []

    send(host, JOBS, message(1))

    assert host.states.dirty_keys() == [partition_key(JOBS, 0)]


def test_a_queue_that_is_deleted_is_not_dirty(host: Host) -> None:
    gone = host.partition(JOBS)

    host.ask(ForgetQueue(JOBS))
    gone.note_change()

    assert partition_key(JOBS, 0) not in host.states.dirty_keys()


def test_receive_that_finds_timeouts_passed_wakes_those_who_wait(host: Host) -> None:
    send(host, JOBS, message(1), message(2))
    receive(host, JOBS, timeout_ms=1_000)
    host.partition(JOBS).watched = True
    host.awake.clear()

    receive(host, JOBS, 1, after_ms=1_000)

    assert host.awake == [host.partition(JOBS)]


@pytest.mark.parametrize("queue_id", [JOBS, STEPS])
def test_hiding_and_deleting_wake_those_who_may_get_something(host: Host, queue_id: int) -> None:
    send(host, queue_id, message(1, group=1), message(2, group=1))
    first = receive(host, queue_id, 1)
    host.partition(queue_id).watched = True
    host.awake.clear()

    hide(host, queue_id, receipts_of(first)[0], 0)
    assert host.awake == [host.partition(queue_id)]
    again = receive(host, queue_id, 1)
    host.awake.clear()
    delete(host, queue_id, *receipts_of(again))
    assert bool(host.awake) == (queue_id == STEPS)


# Replay


def test_records_for_queues_that_are_gone_are_skipped(host: Host) -> None:
    send(host, JOBS, message(1))
    send(host, DEAD, message(2))
    first = receipts_of(receive(host, JOBS))[0]
    hide(host, JOBS, first, 5_000)
    delete(host, JOBS, first)
    (taken,) = take_for_task(host, DEAD, JOBS)
    move(host, taken, new_id=identity(9))
    host.ask(StartMoveTask(JOBS, TASK, "arn", None, None, None))
    host.ask(Purge(JOBS))
    send(host, JOBS, message(4), after_ms=1)
    change(host, JOBS, MessageRetentionPeriod=60)
    host.now_ms += 60_000
    host.ask(ExpireMessages(JOBS, 0))
    host.ask(ForgetQueue(JOBS))

    without = QueueStates(MemoryChunks(), retry_window_ms=120_000)
    for row, payload in (host.payload(offset) for offset in range(host.replica.end_offset)):
        if row.type != RecordType.QUEUE_SET or row.queue_id != JOBS:
            without.apply(row, payload, 1)

    assert without.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_replay_of_what_was_applied_changes_nothing(host: Host) -> None:
    send(host, JOBS, message(1))
    send(host, STEPS, message(1, group=1))
    delete(host, JOBS, receipts_of(receive(host, JOBS))[0])
    receive(host, STEPS, attempt=ATTEMPT)
    states = host.replayed()

    replay(host.batches, states=states)

    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_scan_that_stops_at_its_bound_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo_order, "SCAN_MAX", 3)
    monkeypatch.setattr(fifo_order, "RUN_LENGTH_PER_STEP", 1)
    host = started()
    send(host, STEPS, *(message(number, group=1) for number in range(8)), message(9, group=2))
    receive(host, STEPS, 1)

    outcome = receive(host, STEPS)
    assert (outcome.taken, outcome.unfinished) == ([], True)
    while outcome.unfinished:
        outcome = receive(host, STEPS)
    assert sequences(outcome) == [9]


def test_definition_of_a_deleted_queue_can_be_known_again(host: Host) -> None:
    definition: QueueDefinition = host.states.definitions[JOBS]
    host.ask(ForgetQueue(JOBS))
    host.ask(SetQueue(definition))

    assert counts(host, JOBS) == (0, 0, 0)
    same_after_replay(host)


def test_change_of_a_queue_that_the_snapshot_does_not_have_any_more_is_skipped(host: Host) -> None:
    send(host, JOBS, message(1))
    start = host.replica.end_offset
    change(host, JOBS, DelaySeconds=1)
    send(host, JOBS, message(2))
    host.ask(ForgetQueue(JOBS))

    states = replay(host.batches, start=start)  # as behind a snapshot taken at the end, that began at `start`

    assert states.definitions == {}
    assert states.partitions == {}


def test_name_of_a_queue_in_a_snapshot_outlives_the_replay_of_an_older_queue_of_that_name() -> None:
    host = Host()
    host.ask(SetQueue(queue(8, "again")))
    host.ask(ForgetQueue(8))
    host.ask(SetQueue(queue(9, "again")))
    found = host.partition(9)
    found.applied = host.replica.end_offset
    keeper = MemoryChunks()
    states = QueueStates(keeper, retry_window_ms=120_000)
    loaded = load_partition(snapshot_of(found), found.definition, 0, keeper, retry_window_ms=120_000)
    states.load(found.definition, [loaded])

    replay(host.batches, states=states)

    assert states.queue_of_arn(QueueArn("local", ACCOUNT, "again")) == 9
    assert set(states.definitions) == {9}


def test_what_was_kept_of_messages_that_are_gone_is_freed_in_steps(host: Host) -> None:
    send(host, JOBS, *(message(number) for number in range(2_000)))
    while receive(host, JOBS).taken:
        pass
    send(host, STEPS, *(message(number, group=number) for number in range(1, 11)))
    receive(host, STEPS)
    host.ask(Purge(JOBS))
    host.ask(ForgetQueue(STEPS))

    first = host.states.empty_some(2)
    steps = [host.states.empty_some(1) for _ in range(50)]

    assert first
    assert not host.states.empty_some(0)
    assert 10 < steps.index(False) < 30

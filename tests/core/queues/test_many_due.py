"""Many messages that are due at one time are worked off in small steps, and nothing shows of it but that."""

from __future__ import annotations

import pytest
from harness.replica_host import Host, message, queue

from quaymaster.core.queues import consumed_queues
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.structures.timers import TimerWheel, WorkLeft
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    EntriesOutcome,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.move_tasks import StartMoveTask, TakeForMove, TakenForTask
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import OverLimit

JOBS, STEPS, OTHER = 1, 2, 3
SHARE = 10
MANY = 100
ATTEMPT = b"attempt-one-----"


@pytest.fixture(autouse=True)
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumed_queues, "DUE_PER_MS_MAX", SHARE)


def with_many(
    queue_id: int, *, in_flight: int = MANY, delay_ms: int = -1, in_flight_max: int = 1_000
) -> Host:
    """Return a host whose queue has `MANY` messages, so many of them in flight for 30 s."""
    states = QueueStates(MemoryChunks(), retry_window_ms=120_000, in_flight_max=in_flight_max)
    host = Host(states=states)
    host.ask(SetQueue(queue(JOBS, "jobs")))
    host.ask(SetQueue(queue(STEPS, "steps.fifo")))
    group = queue_id == STEPS
    host.ask(
        Send(
            queue_id,
            0,
            [message(number, group=number * group, delay_ms=delay_ms) for number in range(1, MANY + 1)],
        )
    )
    for _ in range(in_flight // 10):
        host.ask(Receive(queue_id, 0, 10, 30_000, 0, None))
    return host


def receive(host: Host, queue_id: int, *, after_ms: int = 0, wait_ms: int = 0) -> TakenOutcome:
    outcome = host.ask(Receive(queue_id, 0, 10, 30_000, wait_ms, None), after_ms=after_ms)
    assert isinstance(outcome, TakenOutcome)
    return outcome


def count(host: Host, queue_id: int, *, after_ms: int = 0) -> QueueCounts:
    counted = host.ask(CountMessages(queue_id), after_ms=after_ms)
    assert isinstance(counted, QueueCounts)
    return counted


def first_error(outcome: Decided) -> Exception | None:
    assert isinstance(outcome, EntriesOutcome)
    return outcome.errors[0]


def same_after_replay(host: Host) -> None:
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_a_wheel_gives_no_more_than_is_left() -> None:
    wheel, left = TimerWheel(), WorkLeft(5)
    for sequence in range(1, 4):
        wheel.add(sequence, 100)
    for sequence in range(4, 8):
        wheel.add(sequence, 200)

    given = []
    while (due := wheel.take_some_due(200, left)) is not None:
        given.append((due[0], list(due[1])))

    assert given == [(100, [1, 2, 3]), (200, [4, 5])]
    assert wheel.is_due(200)
    assert wheel.next_due_ms() == 200
    assert wheel.take_some_due(199, WorkLeft(5)) is None
    rest = wheel.take_some_due(200, None)
    assert rest is not None
    assert list(rest[1]) == [6, 7]
    assert not wheel.is_due(200)


@pytest.mark.parametrize("queue_id", [JOBS, STEPS])
def test_messages_that_come_back_at_once_come_back_some_at_a_time(queue_id: int) -> None:
    host = with_many(queue_id)

    first = count(host, queue_id, after_ms=60_000)
    same_time = count(host, queue_id)
    later = [count(host, queue_id, after_ms=1).visible for _ in range(MANY // SHARE)]

    assert (first.visible, first.in_flight) == (SHARE, MANY - SHARE)
    assert same_time == first
    assert later == [*range(2 * SHARE, MANY + 1, SHARE), MANY]
    same_after_replay(host)


def test_delayed_messages_that_come_due_at_once_come_some_at_a_time() -> None:
    host = with_many(JOBS, in_flight=0, delay_ms=10_000)

    visible = [count(host, JOBS, after_ms=after_ms).visible for after_ms in (10_050, 0, 1, 1)]

    assert visible == [SHARE, SHARE, 2 * SHARE, 3 * SHARE]


@pytest.mark.parametrize("queue_id", [JOBS, STEPS])
def test_a_receive_that_finds_nothing_yet_is_to_be_asked_again(queue_id: int) -> None:
    host = with_many(queue_id)

    first = receive(host, queue_id, after_ms=60_000)
    none_left = receive(host, queue_id)
    again = receive(host, queue_id, after_ms=1)

    assert len(first.taken) == 10
    assert (none_left.taken, none_left.unfinished) == ([], True)
    assert len(again.taken) == 10
    same_after_replay(host)


def test_a_move_task_that_finds_nothing_yet_is_to_ask_again() -> None:
    host = with_many(JOBS)
    receive(host, JOBS, after_ms=60_000)

    host.ask(StartMoveTask(JOBS, b"task", "arn", None, None, None))

    taken = host.ask(TakeForMove(JOBS, b"task", 10))

    assert isinstance(taken, TakenForTask)
    assert (taken.taken, taken.unfinished) == ([], True)


def test_the_limit_in_flight_is_not_told_of_messages_that_are_coming_back() -> None:
    host = with_many(JOBS, in_flight_max=MANY)
    with pytest.raises(OverLimit):
        receive(host, JOBS)
    others = [message(number) for number in range(1, SHARE + 1)]
    host.ask(SetQueue(queue(OTHER, "other")))
    host.ask(Send(OTHER, 0, others))
    host.ask(Receive(OTHER, 0, 10, 30_000, 0, None))

    others_back = count(host, OTHER, after_ms=60_000)
    behind = receive(host, JOBS)
    later = receive(host, JOBS, after_ms=1)

    assert others_back.visible == SHARE
    assert (behind.taken, behind.unfinished) == ([], True)
    assert len(later.taken) == 10


def test_a_fifo_receipt_ends_with_its_timeout_though_the_message_is_not_back_yet() -> None:
    host = with_many(STEPS)
    count(host, STEPS, after_ms=60_000)
    receipt = Receipt(MANY, 1, 1)

    deleted = first_error(host.ask(Delete(STEPS, 0, [receipt])))
    hidden = first_error(host.ask(ChangeVisibility(STEPS, 0, [receipt], [10_000])))

    assert "expired" in str(deleted)
    assert "not available" in str(hidden)


def test_an_attempt_is_not_repeated_once_its_messages_are_due() -> None:
    host = with_many(STEPS, in_flight=MANY - 10)
    host.ask(Receive(STEPS, 0, 10, 60_000, 0, ATTEMPT), after_ms=1)
    partition = host.states.partition(STEPS, 0)

    assert partition.attempts.find(ATTEMPT, partition.in_flight, host.now_ms + 59_000) is not None
    assert partition.attempts.find(ATTEMPT, partition.in_flight, host.now_ms + 61_000) is None


def test_a_message_that_is_not_back_yet_is_hidden_as_one_that_is() -> None:
    host = with_many(JOBS)
    count(host, JOBS, after_ms=60_000)

    hidden = first_error(host.ask(ChangeVisibility(JOBS, 0, [Receipt(MANY, 1, 1)], [43_200_000])))

    assert hidden is None
    assert host.states.partition(JOBS, 0).in_flight[MANY].received_ms == host.now_ms
    same_after_replay(host)


def test_a_message_that_is_not_back_yet_can_be_deleted() -> None:
    host = with_many(JOBS)
    count(host, JOBS, after_ms=60_000)

    deleted = first_error(host.ask(Delete(JOBS, 0, [Receipt(MANY, 1, 1)])))

    assert deleted is None
    assert host.states.partition(JOBS, 0).alive == MANY - 1
    same_after_replay(host)

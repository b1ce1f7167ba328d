"""Each message move task has an end: it moves what was there when it started, and runs for 36 hours at most."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from harness.replica_host import Host, arn, identity, message, queue, snapshot_of

from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.partition.running_tasks import RunningTasks
from quaymaster.core.queues.move_tasks import RAN_TOO_LONG, TASK_MAX_MS, looks_in_vain_max
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import encode_task
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import Taken, TakenOutcome
from quaymaster.core.values.commands.messages import Delete, Receipt, Receive, Send
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
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.partition_keys import partition_key

WORK, DEAD = 1, 2
TASK = identity(7)


@dataclass(frozen=True)
class OldMoveTask:
    """What stands in records and snapshots of cells of formats 1 to 3: ten fields."""

    fields: tuple[object, ...] = (TASK, "arn", None, None, None, "RUNNING", 1_000, 2, 3, None)

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self.fields)


def started(suffix: str = "") -> Host:
    host = Host(states=QueueStates(MemoryChunks(), retry_window_ms=120_000))
    host.ask(SetQueue(queue(WORK, f"work{suffix}")))
    host.ask(SetQueue(queue(DEAD, f"dead{suffix}")))
    return host


def send(host: Host, queue_id: int, *numbers: int, group: int = 0, delay_ms: int = -1) -> None:
    messages = [message(number, group=group, delay_ms=delay_ms) for number in numbers]
    host.ask(Send(queue_id, 0, messages))


def start(host: Host, queue_id: int = DEAD, to: int = DEAD, task_id: bytes = TASK) -> MoveTask:
    outcome = host.ask(StartMoveTask(queue_id, task_id, arn("dead"), None, to, None))
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks[0]


def look(host: Host, queue_id: int = DEAD, count_max: int = 10, task_id: bytes = TASK) -> TakenForTask:
    outcome = host.ask(TakeForMove(queue_id, task_id, count_max))
    assert isinstance(outcome, TakenForTask)
    return outcome


def move(host: Host, queue_id: int, to: int, taken: list[Taken], task_id: bytes = TASK) -> None:
    for one in taken:
        row, payload = host.payload(one.offset)
        new_id = identity(1_000 + one.sequence)
        host.ask(
            MoveMessage(
                queue_id, 0, one.sequence, to, row.type, row.flags, payload, None, new_id, task_id=task_id
            )
        )


def task_of(host: Host, queue_id: int = DEAD) -> MoveTask:
    outcome = host.ask(ListMoveTasks(queue_id))
    assert isinstance(outcome, MoveTasksOutcome)
    return outcome.tasks[0]


def sequences(taken: list[Taken]) -> list[int]:
    return [one.sequence for one in taken]


def same_after_replay(host: Host) -> None:
    replayed = host.replayed()
    assert replayed.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert list(replayed.running_tasks) == list(host.states.running_tasks)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_task_of_a_queue_that_is_its_own_dead_letter_queue_moves_each_message_once(suffix: str) -> None:
    host = started(suffix)
    for number in range(1, 26):
        send(host, DEAD, number, group=number % 3 + 1 if suffix else 0)
    start(host)
    moved: list[int] = []

    while taken := look(host).taken:
        moved += sequences(taken)
        move(host, DEAD, DEAD, taken)

    assert sorted(moved) == list(range(1, 26))
    assert (task_of(host).moved, host.partition(DEAD).alive) == (25, 25)
    same_after_replay(host)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_two_queues_that_are_each_others_dead_letter_queues_give_their_messages_once(suffix: str) -> None:
    host = started(suffix)
    other = identity(8)
    for queue_id in (WORK, DEAD):
        for number in range(1, 13):
            send(host, queue_id, number, group=number % 3 + 1 if suffix else 0)
    start(host, DEAD, WORK)
    start(host, WORK, DEAD, other)

    for _ in range(20):
        move(host, DEAD, WORK, look(host, DEAD, 5).taken)
        move(host, WORK, DEAD, look(host, WORK, 5, other).taken, other)

    assert (task_of(host, DEAD).moved, task_of(host, WORK).moved) == (12, 12)
    assert (look(host, DEAD).taken, look(host, WORK, task_id=other).taken) == ([], [])
    same_after_replay(host)


def test_what_comes_back_from_a_failing_consumer_is_not_moved_again() -> None:
    host = started()
    policy = f'{{"deadLetterTargetArn":"{arn("dead")}","maxReceiveCount":1}}'
    host.ask(SetQueue(queue(WORK, "work", revision=2, attributes={"RedrivePolicy": policy})))
    send(host, DEAD, *range(1, 11))
    start(host, DEAD, WORK)
    rounds = 0

    while taken := look(host, count_max=4).taken:
        rounds += 1
        move(host, DEAD, WORK, taken)
        host.ask(Receive(WORK, 0, 10, 0))
        again = host.ask(Receive(WORK, 0, 10, 0))
        assert isinstance(again, TakenOutcome)
        for letter in again.dead_letters:
            row, payload = host.payload(letter.offset)
            command = MoveMessage(WORK, 0, letter.sequence, DEAD, row.type, row.flags, payload, arn("work"))
            host.ask(command)

    assert (rounds, task_of(host).moved) == (3, 10)
    assert (host.partition(WORK).alive, host.partition(DEAD).alive) == (0, 10)


def test_messages_that_come_back_to_their_own_queue_wait_for_those_who_may_have_them() -> None:
    """A consumer of the dead-letter queue has returned messages of before and after the start of the task."""
    host = started()
    send(host, DEAD, 1, 2, 3)
    start(host, DEAD, WORK)
    send(host, DEAD, 4, 5, 6)
    host.ask(Receive(DEAD, 0, 6, 0))

    found = look(host)

    assert sorted(sequences(found.taken)) == [1, 2, 3]
    assert not found.unfinished
    received = host.ask(Receive(DEAD, 0, 10, 0))
    assert isinstance(received, TakenOutcome)
    assert sorted(sequences(received.taken)) == [4, 5, 6]


def test_a_look_that_meets_very_many_messages_of_later_says_that_it_is_not_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quaymaster.core.structures.orders.standard_order.SCAN_MAX", 10)
    host = started()
    send(host, DEAD, 1)
    start(host, DEAD, WORK)
    send(host, DEAD, *range(2, 32))
    host.ask(Receive(DEAD, 0, 1, 60_000))
    for _ in range(3):
        host.ask(Receive(DEAD, 0, 10, 0))
    host.now_ms += 60_000  # the first one comes back behind all others

    looks = [look(host)]
    while not looks[-1].taken:
        looks.append(look(host))

    assert sequences(looks[-1].taken) == [1]
    assert all(found.unfinished for found in looks[:-1])
    assert len(looks) > 2


def test_noisy_tenants_messages_of_later_stay_held() -> None:
    host = started()
    for number in range(1, 121):
        send(host, DEAD, number, group=1)
    send(host, DEAD, 121, group=2)
    start(host, DEAD, WORK)
    for number in range(122, 140):
        send(host, DEAD, number, group=1)
    for _ in range(4):
        host.ask(Receive(DEAD, 0, 10, 60_000))  # the first tenant is noisy from now on, its messages held

    taken: list[int] = []
    while found := look(host).taken:
        taken += sequences(found)

    assert sorted(taken) == list(range(40, 121))
    received = host.ask(Receive(DEAD, 0, 10, 0))
    assert isinstance(received, TakenOutcome)
    assert min(sequences(received.taken)) == 122


def test_a_quiet_tenants_held_messages_of_later_stay_held() -> None:
    host = started()
    for number in range(1, 61):
        send(host, DEAD, number, group=1)
    start(host, DEAD, WORK)
    for number in range(61, 81):
        send(host, DEAD, number, group=1)
    for _ in range(4):
        host.ask(Receive(DEAD, 0, 10, 1_000))
    host.now_ms += 400_000  # what was out is back, and nobody is noisy any more
    host.ask(Receive(DEAD, 0, 0, 0))

    taken: list[int] = []
    while found := look(host).taken:
        taken += sequences(found)

    assert sorted(taken) == list(range(1, 61))


def test_fifo_groups_with_messages_of_later_only_stay_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    host = started(".fifo")
    send(host, DEAD, 1, group=1)
    start(host, DEAD, WORK)
    send(host, DEAD, 2, group=1)
    for number in range(3, 43):
        send(host, DEAD, number, group=number)
    first = host.ask(Receive(DEAD, 0, 1, 0))
    assert isinstance(first, TakenOutcome)
    host.ask(Receive(DEAD, 0, 42, 0))
    monkeypatch.setattr("quaymaster.core.structures.orders.fifo_order.SCAN_MAX", 10)

    looks = [look(host) for _ in range(6)]

    assert [sequences(found.taken) for found in looks if found.taken] == [[1]]
    assert any(found.unfinished for found in looks)
    host.ask(Delete(DEAD, 0, [Receipt(1, first.epoch, first.taken[0].delivery_count)]))
    again: set[int] = set()
    for _ in range(10):
        received = host.ask(Receive(DEAD, 0, 10, 60_000))
        assert isinstance(received, TakenOutcome)
        again.update(sequences(received.taken))
    assert again >= set(range(3, 43))


def test_a_message_that_waits_for_its_delay_wakes_receives_whatever_a_task_looks_at() -> None:
    host = started()
    host.ask(SetQueue(queue(DEAD, "dead", revision=2, attributes={"DelaySeconds": "5"})))
    start(host, DEAD, WORK)
    send(host, DEAD, 1)
    host.ask(Receive(DEAD, 0, 10, 0))
    due_ms = host.partition(DEAD).next_change_ms()

    assert look(host).taken == []

    assert due_ms is not None
    assert host.partition(DEAD).next_change_ms() == due_ms


def test_what_waits_for_its_delay_below_the_stop_of_a_task_is_noted() -> None:
    host = started()
    host.ask(SetQueue(queue(DEAD, "dead", revision=2, attributes={"DelaySeconds": "5"})))
    send(host, DEAD, 1)
    start(host, DEAD, WORK)
    send(host, DEAD, 2)

    assert look(host).taken == []

    assert host.partition(DEAD).next_change_ms() is not None


def test_a_task_fails_that_runs_for_more_than_36_hours() -> None:
    host = started()
    send(host, DEAD, 1, 2)
    start(host, DEAD, WORK)
    host.now_ms += TASK_MAX_MS - 1
    (first,) = look(host, count_max=1).taken
    host.now_ms += 1

    found = look(host)
    move(host, DEAD, WORK, [first])

    assert (found.taken, found.is_over) == ([], True)
    task = task_of(host)
    assert (task.status, task.failure, task.moved) == ("FAILED", RAN_TOO_LONG, 0)
    assert counts_of(host.partition(DEAD), host.now_ms).visible == 2
    assert list(host.states.running_tasks) == []
    same_after_replay(host)


def test_a_task_that_was_cancelled_or_is_not_known_takes_nothing() -> None:
    host = started()
    send(host, DEAD, 1)
    start(host)
    host.ask(CancelMoveTask(DEAD, TASK))

    assert look(host) == TakenForTask([], is_over=True)
    assert look(host, task_id=identity(99)) == TakenForTask([], is_over=True)
    assert host.partition(DEAD).moving == {}


def test_a_look_for_nothing_only_tells_whether_the_task_is_over() -> None:
    host = started()
    send(host, DEAD, 1)
    start(host)

    assert look(host, count_max=0) == TakenForTask([])
    assert host.partition(DEAD).moving == {}


def test_a_task_that_an_older_program_started_moves_no_more_than_there_was() -> None:
    host = started()
    send(host, DEAD, 1, 2, 3, 4)
    partition = host.partition(DEAD)
    task = msgspec.msgpack.decode(OldMoveTask().encoded(), type=MoveTask)
    partition.apply_task(task)
    host.states.running_tasks.note(partition.key, partition)

    first = look(host).taken
    move(host, DEAD, DEAD, first)

    assert (task.moved, task.to_move, task.stop, len(first)) == (3, 3, 0, 1)
    assert look(host) == TakenForTask([])


def test_cells_of_older_formats_say_no_stop_and_older_programs_read_what_is_appended() -> None:
    old, new = started(), started()
    old.states.cell_format = CellFormat(3)
    send(old, DEAD, 1)
    send(new, DEAD, 1)

    assert (start(old).stop, start(new).stop) == (0, 2)
    # An older program drops what it does not know; the first ten fields are what they were.
    fields = msgspec.msgpack.decode(encode_task(task_of(new)))
    assert fields[:10] == msgspec.msgpack.decode(encode_task(task_of(old)))[:10]
    assert fields[10:] == [2]


def test_running_tasks_are_counted_by_account_as_they_come_and_go() -> None:
    host = started()
    running = host.states.running_tasks
    account = host.states.definitions[DEAD].account_id
    start(host, DEAD, WORK)
    start(host, WORK, DEAD, identity(8))

    assert (sorted(running), running.of_account(account)) == (
        [partition_key(WORK, 0), partition_key(DEAD, 0)],
        2,
    )
    host.ask(FinishMoveTask(WORK, identity(8)))
    assert (list(running), running.of_account(account)) == ([partition_key(DEAD, 0)], 1)
    loaded = load_partition(
        snapshot_of(host.partition(DEAD)),
        host.states.definitions[DEAD],
        0,
        MemoryChunks(),
        retry_window_ms=120_000,
    )
    states = QueueStates(MemoryChunks(), retry_window_ms=120_000)
    states.load(loaded.definition, [loaded])
    assert list(states.running_tasks) == [partition_key(DEAD, 0)]
    host.ask(ForgetQueue(DEAD))
    assert (list(running), running.of_account(account)) == ([], 0)


def test_a_partition_without_a_task_is_forgotten_as_often_as_one_likes() -> None:
    running = RunningTasks()

    running.forget(1)
    running.forget(1)

    assert list(running) == []


def test_messages_taken_for_a_move_are_undecided_until_they_have_moved_or_gone() -> None:
    host = started()
    send(host, DEAD, 1, 2)
    send(host, WORK, 3)
    start(host, DEAD, WORK)
    taken = look(host).taken
    start(host, WORK, DEAD, identity(8))
    look(host, WORK, task_id=identity(8))

    undecided = sorted((partition.key, sequence) for partition, sequence in host.states.undecided())
    move(host, DEAD, WORK, taken)
    host.ask(ForgetQueue(WORK))

    dead, work = partition_key(DEAD, 0), partition_key(WORK, 0)
    assert undecided == [(work, 1), (dead, 1), (dead, 2)]
    assert host.states.undecided() == []


def test_everything_was_looked_at_after_so_many_looks_in_vain() -> None:
    host = started()
    assert looks_in_vain_max(host.partition(DEAD)) == 1

    host.ask(Send(DEAD, 0, [message(number) for number in range(2_500)]))

    assert looks_in_vain_max(host.partition(DEAD)) == 3

"""Messages that move between journals: what each end decides, and that both remember it."""

from __future__ import annotations

import pytest
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    arn,
    far_queue,
    identity,
    message,
    queue,
    records_of,
    snapshot_of,
)

from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.partition.partition_snapshots import (
    STATE_VERSION_WITHOUT_MOVES,
    load_partition,
    snapshot_pieces,
)
from quaymaster.core.partition.state_hash import partition_hash
from quaymaster.core.queues import consumed_queues, queue_states
from quaymaster.core.queues.moved_messages import message_to_move
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import DeadLetter, ExpireMessages, PeekedOffsets, TakenOutcome
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    EntriesOutcome,
    Peek,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTasksOutcome,
    StartMoveTask,
    TakeForMove,
    TakenForTask,
)
from quaymaster.core.values.commands.moves import (
    EndMoves,
    MoveBegun,
    MovedMessage,
    MoveIn,
    MoveInOutcome,
    MoveMessage,
)
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.messages import decode_message, prefix_bytes
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.records import RecordType

JOBS, DEAD, STEPS, STEPS_DEAD = 1, 2, 3, 4
HERE, THERE = 0, 7
TASK = b"task-number-one-"
FAR = {
    JOBS: far_queue(JOBS, "jobs", THERE),
    DEAD: far_queue(DEAD, "jobs-dead", THERE),
    STEPS_DEAD: far_queue(STEPS_DEAD, "steps-dead.fifo", THERE),
}
DEAD_KEY, JOBS_KEY = partition_key(DEAD, 0), partition_key(JOBS, 0)


def source_host(*, epoch: int = 1, cell_format: int = 2, **attributes: object) -> Host:
    """Return the leader of a journal whose queues have their dead-letter queues in another one."""
    host = Host(epoch=epoch)
    host.states.elsewhere = QueuesElsewhere(CellFormat(cell_format))
    for queue_id, name, dead in ((JOBS, "jobs", "jobs-dead"), (STEPS, "steps.fifo", "steps-dead.fifo")):
        policy = f'{{"deadLetterTargetArn":"{arn(dead)}","maxReceiveCount":1}}'
        host.ask(SetQueue(queue(queue_id, name, attributes={"RedrivePolicy": policy, **attributes})))
    host.states.elsewhere.places[arn("jobs-dead")] = FAR[DEAD]
    host.states.elsewhere.places[arn("steps-dead.fifo")] = FAR[STEPS_DEAD]
    return host


def target_host() -> Host:
    host = Host()
    for queue_id, name in ((DEAD, "jobs-dead"), (STEPS_DEAD, "steps-dead.fifo")):
        host.ask(SetQueue(queue(queue_id, name)))
    return host


def receive(host: Host, queue_id: int, *, timeout_ms: int = 0) -> TakenOutcome:
    outcome = host.ask(Receive(queue_id, 0, 10, timeout_ms))
    assert isinstance(outcome, TakenOutcome)
    return outcome


def send(host: Host, queue_id: int, *numbers: int, group: int = 0) -> None:
    host.ask(Send(queue_id, 0, [message(number, group=group, dedup=identity(number)) for number in numbers]))


def dead_letters(host: Host, queue_id: int, *numbers: int, group: int = 0) -> list[DeadLetter]:
    """Send messages and receive them until they are to be moved."""
    send(host, queue_id, *numbers, group=group)
    receive(host, queue_id)
    return receive(host, queue_id).dead_letters


def leave(host: Host, letter: DeadLetter, *, task_id: bytes | None = None) -> MoveBegun:
    """Let a message leave for the other journal."""
    row, payload = host.payload(letter.offset)
    outcome = host.ask(
        MoveMessage(
            letter.queue_id,
            0,
            letter.sequence,
            letter.target_queue_id,
            row.type,
            row.flags,
            payload,
            None,
            new_message_id=None if task_id is None else identity(99),
            task_id=task_id,
            target=FAR[letter.target_queue_id],
        )
    )
    assert isinstance(outcome, MoveBegun)
    return outcome


def to_send(host: Host, queue_id: int, target_key: int, *, unreadable: tuple[int, ...] = ()) -> MoveIn:
    """Return all that is not settled, as it is sent; what is `unreadable` or gone is withdrawn."""
    partition = host.partition(queue_id)
    assert partition.moves is not None
    messages = []
    for number, move in partition.moves.to_send(target_key, 1 << 63, 100):
        if number in unreadable or not partition.is_live(move.sequence):
            messages.append(MovedMessage(number))
            continue
        row, payload = host.payload(partition.index.entry(move.sequence).offset)
        messages.append(
            message_to_move(
                partition,
                move.sequence,
                (row.type, row.flags, payload),
                source_arn=None if move.is_redrive else arn("source"),
                new_message_id=identity(99) if move.is_redrive else None,
                number=number,
            )
        )
    return MoveIn(target_key >> 16, target_key & 0xFFFF, queue_id, 0, messages)


def take_in(host: Host, command: MoveIn) -> MoveInOutcome:
    outcome = host.ask(command)
    assert isinstance(outcome, MoveInOutcome)
    return outcome


def settle(host: Host, sent: MoveIn, outcome: MoveInOutcome) -> None:
    numbers = [one.number for one in sent.messages]
    taken = [number for number in numbers if number not in outcome.withdrawn and not outcome.is_gone]
    withdrawn = [number for number in numbers if number not in taken]
    target_key = partition_key(sent.queue_id, sent.partition)
    host.ask(EndMoves(sent.source_queue_id, sent.source_partition, target_key, taken, withdrawn))


def counts(host: Host, queue_id: int) -> tuple[int, int]:
    found = host.ask(CountMessages(queue_id))
    assert isinstance(found, QueueCounts)
    return found.visible, found.in_flight


def ids_in(host: Host, queue_id: int) -> list[int]:
    """Return the numbers of the messages of a queue, in their order."""
    partition = host.partition(queue_id)
    found = []
    for sequence in range(partition.head, partition.next_sequence):
        if partition.is_live(sequence):
            row, payload = host.payload(partition.index.entry(sequence).offset)
            start = MOVE_HEAD_BYTES if row.type == RecordType.MOVE else 0
            stored = decode_message(payload[start + prefix_bytes(row.flags) :])
            found.append(int.from_bytes(stored.message_id, "big"))
    return found


def same_after_replay_and_from_a_snapshot(host: Host) -> None:
    expected = host.states.state_hash(host.now_ms)
    assert host.replayed().state_hash(host.now_ms) == expected
    for key, partition in host.states.partitions.items():
        loaded = load_partition(
            snapshot_of(partition),
            partition.definition,
            partition.number,
            partition.index._keeper,
            retry_window_ms=RETRY_WINDOW_MS,
        )
        assert partition_hash(loaded, host.now_ms) == expected[key]
        assert snapshot_of(loaded) == snapshot_of(partition)


@pytest.mark.parametrize(("queue_id", "target"), [(JOBS, DEAD), (STEPS, STEPS_DEAD)])
def test_a_dead_letter_leaves_arrives_and_is_gone(queue_id: int, target: int) -> None:
    source, there = source_host(), target_host()
    letters = dead_letters(source, queue_id, 5, 6, group=8)
    sent_ms = source.now_ms
    source.now_ms += 1_000
    there.now_ms = source.now_ms

    for letter in letters:
        assert letter.target_queue_id == target
        leave(source, letter)
    sent = to_send(source, queue_id, partition_key(target, 0))
    before = counts(source, queue_id)
    same_after_replay_and_from_a_snapshot(source)
    outcome = take_in(there, sent)
    settle(source, sent, outcome)

    assert before == (0, 2)
    assert counts(source, queue_id) == (0, 0)
    assert counts(there, target) == (2, 0)
    assert ids_in(there, target) == [5, 6]
    assert (source.states.messages_gone, source.states.messages_moved) == (2, 2)
    taken = receive(there, target).taken[0]
    assert taken.delivery_count == 2
    assert taken.first_receive_ms == sent_ms
    assert taken.sent_ms == (sent_ms if target == DEAD else there.now_ms)
    same_after_replay_and_from_a_snapshot(source)
    same_after_replay_and_from_a_snapshot(there)


def test_records_of_moves_are_skipped_by_partitions_that_are_ahead_or_gone() -> None:
    source, there = source_host(), target_host()
    for letter in dead_letters(source, JOBS, 5, 6):
        leave(source, letter)
    sent = to_send(source, JOBS, DEAD_KEY, unreadable=((1 << 32) + 1,))
    settle(source, sent, take_in(there, sent))

    for host in (source, there):
        before = host.states.state_hash(host.now_ms)
        for partition in host.states.partitions.values():
            partition.applied = host.replica.end_offset
        for row, payload, epoch in records_of(host.batches):
            if row.type > RecordType.MOVE_TASK:
                host.states.apply(row, payload, epoch)
        assert host.states.state_hash(host.now_ms) == before


def test_a_senders_deduplication_id_does_not_swallow_a_dead_letter() -> None:
    source, there = source_host(), target_host()
    send(there, STEPS_DEAD, 5, group=8)
    (letter,) = dead_letters(source, STEPS, 5, group=8)

    leave(source, letter)
    take_in(there, to_send(source, STEPS, partition_key(STEPS_DEAD, 0)))
    send(there, STEPS_DEAD, 5, group=8)

    assert ids_in(there, STEPS_DEAD) == [5, 5]


def test_a_message_that_is_sent_again_is_taken_once_also_after_a_restart_of_its_target() -> None:
    source, there = source_host(), target_host()
    for letter in dead_letters(source, JOBS, 5, 6):
        leave(source, letter)
    sent = to_send(source, JOBS, DEAD_KEY)

    first = take_in(there, sent)
    again = take_in(there, sent)
    there = Host(batches=there.batches, states=there.replayed(), epoch=2)
    restarted = take_in(there, sent)

    assert first == again == restarted == MoveInOutcome([])
    assert ids_in(there, DEAD) == [5, 6]


def test_the_answer_to_a_repeat_waits_until_what_it_repeats_is_durable() -> None:
    source, there = source_host(), target_host()
    (letter,) = dead_letters(source, JOBS, 5)
    leave(source, letter)
    sent = to_send(source, JOBS, DEAD_KEY)
    there.is_slow = True

    first, again = there.propose(sent), there.propose(sent)

    assert not there.replies
    there.make_durable()
    assert there.replies == {first: MoveInOutcome([]), again: MoveInOutcome([])}


def test_a_message_whose_leaving_was_not_durable_is_visible_at_the_next_leader() -> None:
    source = source_host()
    (letter,) = dead_letters(source, JOBS, 5)
    source.is_slow = True
    row, payload = source.payload(letter.offset)
    source.propose(
        MoveMessage(JOBS, 0, letter.sequence, DEAD, row.type, row.flags, payload, None, target=FAR[DEAD])
    )

    source = Host(batches=source.durable_batches(), epoch=2, states=replayed_durable(source))

    assert counts(source, JOBS) == (1, 0)


def replayed_durable(host: Host) -> queue_states.QueueStates:
    states = queue_states.QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    for row, payload, epoch in records_of(host.durable_batches()):
        states.apply(row, payload, epoch)
    return states


def test_numbers_of_a_new_epoch_are_above_all_before() -> None:
    source = source_host()
    (letter,) = dead_letters(source, JOBS, 5)
    first = leave(source, letter).number
    elsewhere = source.states.elsewhere
    source = Host(batches=source.batches, states=source.replayed(), epoch=2)
    source.states.elsewhere = elsewhere

    (letter,) = dead_letters(source, JOBS, 6)
    (other,) = dead_letters(source, STEPS, 6, group=8)

    assert first == (1 << 32) + 1
    assert leave(source, letter).number == (2 << 32) + 1
    assert leave(source, other) == MoveBegun(partition_key(STEPS_DEAD, 0), (2 << 32) + 1)
    assert [one.number for one in to_send(source, JOBS, DEAD_KEY).messages] == [first, (2 << 32) + 1]


def test_a_message_that_cannot_be_read_goes_back_and_holds_nobody_up() -> None:
    source, there = source_host(), target_host()
    for letter in dead_letters(source, JOBS, 5, 6, 7):
        leave(source, letter)
    second = (1 << 32) + 2
    sent = to_send(source, JOBS, DEAD_KEY, unreadable=(second,))

    outcome = take_in(there, sent)
    again = take_in(there, to_send(source, JOBS, DEAD_KEY))
    settle(source, sent, outcome)

    assert outcome == again == MoveInOutcome([second])
    assert ids_in(there, DEAD) == [5, 7]
    assert counts(source, JOBS) == (1, 0)
    assert ids_in(source, JOBS) == [6]
    same_after_replay_and_from_a_snapshot(source)
    same_after_replay_and_from_a_snapshot(there)


def test_what_was_withdrawn_is_remembered_only_until_its_source_has_noted_it() -> None:
    source, there = source_host(), target_host()
    first = (1 << 32) + 1
    for number in (5, 6):
        (letter,) = dead_letters(source, JOBS, number)
        leave(source, letter)
        sent = to_send(source, JOBS, DEAD_KEY, unreadable=(first, first + 1))
        settle(source, sent, take_in(there, sent))
        source.ask(Purge(JOBS))

    moves = there.partition(DEAD).moves
    assert moves is not None
    assert moves.into[JOBS_KEY].withdrawn == [first + 1]
    assert moves.into[JOBS_KEY].last == first + 1


def test_a_message_that_had_arrived_cannot_be_withdrawn_any_more() -> None:
    source, there = source_host(), target_host()
    (letter,) = dead_letters(source, JOBS, 5)
    number = leave(source, letter).number
    take_in(there, to_send(source, JOBS, DEAD_KEY))

    sent = to_send(source, JOBS, DEAD_KEY, unreadable=(number,))
    settle(source, sent, take_in(there, sent))

    assert ids_in(there, DEAD) == [5]
    assert ids_in(source, JOBS) == []


def test_messages_go_back_when_their_target_was_deleted() -> None:
    source, there = source_host(), target_host()
    for queue_id, target in ((JOBS, DEAD), (STEPS, STEPS_DEAD)):
        for letter in dead_letters(source, queue_id, 5, 6, group=8):
            leave(source, letter)
        there.ask(ForgetQueue(target))
        sent = to_send(source, queue_id, partition_key(target, 0))
        outcome = take_in(there, sent)
        settle(source, sent, outcome)

        assert outcome == MoveInOutcome([], is_gone=True)
        assert counts(source, queue_id) == (2, 0)
    elsewhere = source.states.elsewhere
    assert elsewhere is not None
    elsewhere.places[arn("jobs-dead")] = None
    assert [taken.delivery_count for taken in receive(source, JOBS).taken] == [2, 2]
    same_after_replay_and_from_a_snapshot(source)


def test_nothing_is_left_to_settle_of_a_queue_that_was_deleted() -> None:
    source, there = source_host(), target_host()
    (letter,) = dead_letters(source, JOBS, 5)
    leave(source, letter)
    sent = to_send(source, JOBS, DEAD_KEY)
    outcome = take_in(there, sent)

    source.ask(ForgetQueue(JOBS))
    settle(source, sent, outcome)
    settle(source, MoveIn(DEAD, 0, STEPS, 0, sent.messages), outcome)

    assert ids_in(there, DEAD) == [5]


def test_a_move_is_settled_once() -> None:
    source, there = source_host(), target_host()
    (letter,) = dead_letters(source, JOBS, 5)
    leave(source, letter)
    sent = to_send(source, JOBS, DEAD_KEY)
    outcome = take_in(there, sent)

    settle(source, sent, outcome)
    records = source.replica.end_offset
    settle(source, sent, outcome)

    assert source.replica.end_offset == records
    assert source.states.messages_moved == 1


@pytest.mark.parametrize(
    ("how", "queue_id"),
    [
        *((how, queue_id) for how in ("purge", "expire", "expire some") for queue_id in (JOBS, STEPS)),
        ("delete", JOBS),  # a receipt of a FIFO queue is good only as long as its delivery
    ],
)
def test_a_message_that_goes_while_it_leaves_is_withdrawn_unless_it_has_arrived(
    how: str, queue_id: int
) -> None:
    source, there = source_host(MessageRetentionPeriod=60), target_host()
    target = DEAD if queue_id == JOBS else STEPS_DEAD
    for letter in dead_letters(source, queue_id, 5, 6, group=8):
        leave(source, letter)
    target_key = partition_key(target, 0)
    if how.endswith("some"):
        source.now_ms += 30_000
        send(source, queue_id, 7, group=9)
    if how == "purge":
        source.ask(Purge(queue_id))
    elif how.startswith("expire"):
        source.now_ms += 31_000
        source.now_ms += 0 if how.endswith("some") else 30_000
        source.ask(ExpireMessages(queue_id, 0))
    else:
        source.ask(Delete(queue_id, 0, [Receipt(1, 1, 1), Receipt(2, 1, 1)]))
    sent = to_send(source, queue_id, target_key)

    same_after_replay_and_from_a_snapshot(source)
    settle(source, sent, take_in(there, sent))

    assert [one.payload for one in sent.messages] == [None, None]
    assert ids_in(there, target) == []
    assert ids_in(source, queue_id) == ([7] if how == "expire some" else [])
    assert source.partition(queue_id).moves_to(target_key).open == {}  # type: ignore[union-attr]
    same_after_replay_and_from_a_snapshot(source)


def test_what_is_leaving_cannot_be_hidden_and_is_shown_in_flight() -> None:
    source = source_host()
    (letter,) = dead_letters(source, JOBS, 5)
    leave(source, letter)

    outcome = source.ask(ChangeVisibility(JOBS, 0, [Receipt(letter.sequence, 1, 1)], [1_000]))
    peeked = source.ask(Peek(JOBS, 0, 1, 10))

    assert isinstance(outcome, EntriesOutcome)
    assert "not available for visibility timeout change" in str(outcome.errors[0])
    assert isinstance(peeked, PeekedOffsets)
    assert peeked.states == ["in_flight"]


def test_a_message_that_cannot_be_read_does_not_begin_to_leave() -> None:
    source = source_host()
    (letter,) = dead_letters(source, JOBS, 5)

    source.ask(MoveMessage(JOBS, 0, letter.sequence, DEAD, 0, 0, None, None, target=FAR[DEAD]))

    assert counts(source, JOBS) == (1, 0)


def test_where_dead_letters_go_is_found_out_first() -> None:
    source = source_host()
    elsewhere = source.states.elsewhere
    assert elsewhere is not None
    elsewhere.places.clear()

    (letter,) = dead_letters(source, JOBS, 5)

    assert letter.target_queue_id == 0


def test_dead_letters_stay_while_a_process_of_the_cell_does_not_know_how_they_move() -> None:
    source = source_host(cell_format=1)

    letters = dead_letters(source, JOBS, 5)

    assert letters == []
    assert receive(source, JOBS).taken[0].delivery_count == 3


def test_dead_letters_stay_while_too_many_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumed_queues, "AWAY_MAX", 2)
    source = source_host()
    letters = dead_letters(source, JOBS, 5, 6)
    leave(source, letters[0])

    more = dead_letters(source, JOBS, 7)

    assert more == []
    assert counts(source, JOBS) == (2, 1)


def test_a_redrive_gives_a_new_id_and_counts_what_has_arrived() -> None:
    """The dead-letter queue is the source here."""
    source, there = target_host(), source_host()
    send(source, DEAD, 5, 6)
    receive(source, DEAD)
    source.now_ms += 1_000
    there.now_ms = source.now_ms
    source.ask(StartMoveTask(DEAD, TASK, arn("jobs-dead"), arn("jobs"), JOBS, None))
    taken = source.ask(TakeForMove(DEAD, TASK, 10))
    assert isinstance(taken, TakenForTask)
    for one in taken.taken:
        leave(source, DeadLetter(DEAD, 0, one.sequence, one.offset, JOBS), task_id=TASK)
    sent = to_send(source, DEAD, JOBS_KEY)
    source.ask(CancelMoveTask(DEAD, TASK))

    settle(source, sent, take_in(there, sent))

    assert ids_in(there, JOBS) == [99, 99]
    arrived = receive(there, JOBS).taken[0]
    assert (arrived.delivery_count, arrived.sent_ms) == (1, there.now_ms)
    tasks = source.ask(ListMoveTasks(DEAD))
    assert isinstance(tasks, MoveTasksOutcome)
    assert [(task.status, task.moved) for task in tasks.tasks] == [("CANCELLED", 2)]
    same_after_replay_and_from_a_snapshot(source)
    same_after_replay_and_from_a_snapshot(there)


def test_a_task_to_another_journal_is_refused_until_all_processes_know_how() -> None:
    source = source_host(cell_format=1)

    with pytest.raises(UnsupportedOperation, match="quaymaster cell upgrade"):
        source.ask(StartMoveTask(JOBS, TASK, arn("jobs"), arn("other"), 77, None))

    source = source_host(cell_format=2)
    started = source.ask(StartMoveTask(JOBS, TASK, arn("jobs"), arn("other"), 77, None))
    assert isinstance(started, MoveTasksOutcome)


def test_a_snapshot_without_moves_is_what_the_first_cells_wrote() -> None:
    source = source_host()
    send(source, JOBS, 5)
    partition = source.partition(JOBS)
    data = b"".join(snapshot_pieces(partition, STATE_VERSION_WITHOUT_MOVES))

    loaded = load_partition(
        data, partition.definition, 0, partition.index._keeper, retry_window_ms=RETRY_WINDOW_MS
    )

    assert data[0] == 3
    assert loaded.moves is None
    assert partition_hash(loaded, source.now_ms) == partition_hash(partition, source.now_ms)

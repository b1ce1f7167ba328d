"""Completions: messages deleted and others sent as one act, and how what was sent arrives."""

from __future__ import annotations

import pytest
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    arn,
    identity,
    message,
    queue,
    receipts_of,
    records_of,
    replay,
    snapshot_of,
)

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OpenMove, PartitionMoves
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.partition.receipts import EXPIRED
from quaymaster.core.partition.state_hash import partition_hash
from quaymaster.core.partition.work.completion_records import messages_of, outputs_of
from quaymaster.core.queues import completions
from quaymaster.core.queues.completions import GONE, output_to_move
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.ids.id_limits import IdLimits
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, CompletionDecided, Output
from quaymaster.core.values.commands.decided import SentOutcome, TakenOutcome
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    Done,
    EntriesOutcome,
    NewMessage,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
    SendResult,
)
from quaymaster.core.values.commands.moves import EndMoves, MovedMessage, MoveIn, MoveInOutcome, MovesGoOn
from quaymaster.core.values.commands.partitions import AskPartition, ForgetQueue, PartitionOutcome, SetQueue
from quaymaster.core.values.errors import InvalidParameterValue, NotNow, Overloaded, UnsupportedOperation
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.messages import message_id_of
from quaymaster.core.values.partition_tables import split_ranges, with_children, with_children_open
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import (
    KEY_MAX,
    QueueDefinition,
    one_partition,
    replace_definition,
)
from quaymaster.core.values.records import HOLDING_TYPES, RecordType

A, B, STEPS, LOG, GROUP = 1, 2, 3, 4, 5
HERE, THERE, FAR = 0, 7, 8
LOW = 5
DIGEST = 77
NAMES = {A: "a", B: "b", STEPS: "steps.fifo", LOG: "log", GROUP: "log@readers"}


def host_with(*queues: QueueDefinition) -> Host:
    host = Host()
    for definition in queues:
        host.ask(SetQueue(definition))
    return host


def received(host: Host, queue_id: int, count: int = 1, timeout_ms: int = 30_000) -> list[Receipt]:
    return receipts_of(host.ask(Receive(queue_id, 0, count, timeout_ms)))


def output(new: NewMessage, queue_id: int = B, partition: int = 0, journal: int = HERE) -> Output:
    return Output(
        queue_id,
        partition,
        journal,
        new.group or int.from_bytes(new.message_id[8:], "big"),
        arn(NAMES.get(queue_id, "other")),
        new.payload,
        new.flags,
        new.delay_ms,
    )


def decided(
    host: Host, receipts: list[Receipt], *outputs: Output, digest: int = DIGEST, queue_id: int = A
) -> CompletionDecided:
    outcome = host.ask(Complete(queue_id, 0, receipts, list(outputs), digest))
    assert isinstance(outcome, CompletionDecided)
    return outcome


def sent_for(source: Host, target_key: int, queue_id: int = A) -> MoveIn:
    """Return all outputs that are on their way to a partition, as they are sent."""
    partition = source.partition(queue_id)
    assert partition.moves is not None
    messages: list[MovedMessage] = []
    for number, move in partition.moves.to_send(target_key, 1 << 62, 200):
        assert move.is_output
        outputs = list(outputs_of(source.payload(move.offset)[1]))
        messages.append(output_to_move(partition, number, outputs[move.at]))
    return MoveIn(target_key >> 16, target_key & 0xFFFF, queue_id, 0, messages)


def take(target: Host, command: MoveIn) -> MoveInOutcome:
    outcome = target.ask(command)
    assert isinstance(outcome, MoveInOutcome)
    return outcome


def carry(source: Host, target: Host, target_key: int, queue_id: int = A) -> MoveInOutcome:
    """Bring all outputs for a partition there, and let the source know."""
    command = sent_for(source, target_key, queue_id)
    outcome = take(target, command)
    numbers = [one.number for one in command.messages]
    withdrawn = numbers if outcome.is_gone else outcome.withdrawn
    taken = [number for number in numbers if number not in withdrawn]
    source.ask(EndMoves(queue_id, 0, target_key, taken, withdrawn, outcome.definition))
    return outcome


def numbers_in(host: Host, queue_id: int, number: int = 0) -> list[int]:
    """Return which messages a partition has, in their order."""
    partition: Partition = host.states.partition(queue_id, number)
    return [
        host.number_at(partition.index.offset_and_sent_ms(sequence)[0])
        for sequence in range(partition.head, partition.next_sequence)
        if partition.is_live(sequence)
    ]


def under_way(host: Host) -> int:
    moves = host.partition(A).moves
    assert (moves is None or not moves.outputs_under_way) or host.states.outputs_under_way
    return moves.outputs_under_way if moves is not None else 0


def reason_of(error: Exception | None) -> str:
    assert isinstance(error, InvalidParameterValue)
    return error.message


KEY_B = partition_key(B, 0)


def test_completion_deletes_a_message_and_its_output_arrives() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    receipts = received(host, A)

    answer = decided(host, receipts, output(message(2)))

    assert answer.outcome == CompleteOutcome([None])
    assert [begun.target_key for begun in answer.begun] == [KEY_B]
    assert numbers_in(host, A) == []
    assert numbers_in(host, B) == []
    assert under_way(host) == 1
    assert carry(host, host, KEY_B) == MoveInOutcome([])
    assert numbers_in(host, B) == [2]
    assert under_way(host) == 0


def test_output_is_received_as_any_message_that_was_sent() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2)))
    host.now_ms += 60_000
    carry(host, host, KEY_B)

    outcome = host.ask(Receive(B, 0, 10, 30_000))

    assert isinstance(outcome, TakenOutcome)
    (taken,) = outcome.taken
    assert (taken.delivery_count, taken.sent_ms) == (1, host.now_ms)


def test_sums_have_the_output_as_moved_and_not_the_deletion() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2)))
    carry(host, host, KEY_B)

    of_a, of_b = host.ask(CountMessages(A)), host.ask(CountMessages(B))

    assert isinstance(of_a, QueueCounts)
    assert isinstance(of_b, QueueCounts)
    assert (of_a.sends, of_a.deletions, of_b.sends, of_b.visible) == (1, 0, 0, 1)
    assert host.partition(B).moved_in == 1


def test_the_first_completion_of_a_message_wins() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    first = received(host, A, timeout_ms=0)
    second = received(host, A)

    assert decided(host, first, output(message(2))).outcome == CompleteOutcome([None])
    answer = decided(host, second, output(message(3)), digest=DIGEST + 1)

    assert GONE in reason_of(answer.outcome.errors[0])
    assert answer.begun == []
    assert under_way(host) == 1


def test_the_same_completion_again_is_answered_as_the_first_time() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1), message(2)]))
    receipts = received(host, A, 2)
    decided(host, receipts, output(message(3)))

    again = decided(host, receipts, output(message(3)))
    other = decided(host, receipts, output(message(4)), digest=DIGEST + 1)
    host.now_ms += 300_001
    late = decided(host, receipts, output(message(3)))

    assert again == CompletionDecided(CompleteOutcome([None, None], was_done=True))
    assert all(GONE in reason_of(error) for error in other.outcome.errors)
    assert all(GONE in reason_of(error) for error in late.outcome.errors)
    assert under_way(host) == 1


def test_nothing_is_done_when_one_receipt_is_not_good() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1), message(2)]))
    receipts = received(host, A, 2)
    host.ask(Delete(A, 0, receipts[:1]))

    answer = decided(host, receipts, output(message(3)))

    assert GONE in reason_of(answer.outcome.errors[0])
    assert answer.outcome.errors[1] is None
    assert numbers_in(host, A) == [2]
    assert under_way(host) == 0


def test_message_on_its_way_to_the_dead_letter_queue_is_not_completed() -> None:
    policy = f'{{"deadLetterTargetArn":"{arn("b")}","maxReceiveCount":1}}'
    host = host_with(queue(B, "b"), queue(A, "a", attributes={"RedrivePolicy": policy}))
    host.ask(Send(A, 0, [message(1)]))
    receipts = received(host, A, timeout_ms=0)
    host.ask(Receive(A, 0, 1, 0))

    answer = decided(host, receipts, output(message(2)))

    assert GONE in reason_of(answer.outcome.errors[0])


@pytest.mark.parametrize("attributes", [{}, {"DeliveryGuarantee": "ExactlyOnce"}])
def test_only_the_delivery_that_holds_the_message_completes_it(attributes: dict[str, object]) -> None:
    queue_id, name = (A, "a") if attributes else (STEPS, "steps.fifo")
    host = host_with(queue(queue_id, name, attributes=attributes), queue(B, "b"))
    group = 0 if attributes else LOW
    host.ask(Send(queue_id, 0, [message(1, group=group, dedup=identity(1) if group else None)]))
    first = received(host, queue_id, timeout_ms=1_000)
    host.now_ms += 2_000
    second = received(host, queue_id)

    late = decided(host, first, output(message(2)), queue_id=queue_id)
    held = decided(host, second, output(message(3)), digest=2, queue_id=queue_id)

    assert EXPIRED in reason_of(late.outcome.errors[0])
    assert held.outcome == CompleteOutcome([None])


def test_messages_of_a_group_are_free_once_the_one_before_is_completed() -> None:
    host = host_with(queue(STEPS, "steps.fifo"), queue(B, "b"))
    host.ask(Send(STEPS, 0, [message(number, group=LOW, dedup=identity(number)) for number in (1, 2)]))
    (receipt,) = received(host, STEPS)

    assert received(host, STEPS) == []
    decided(host, [receipt], output(message(3)), queue_id=STEPS)

    assert [receipt.sequence for receipt in received(host, STEPS)] == [2]
    assert host.awake


def test_outputs_keep_the_order_of_completions() -> None:
    host = host_with(queue(A, "a"), queue(STEPS, "steps.fifo"))
    host.ask(Send(A, 0, [message(number) for number in (1, 2)]))
    receipts = received(host, A, 2)
    for number, receipt in enumerate(receipts):
        first = 10 + 10 * number
        outputs = [
            output(message(first + at, group=LOW, dedup=identity(first + at)), STEPS) for at in range(3)
        ]
        decided(host, [receipt], *outputs, digest=first)

    carry(host, host, partition_key(STEPS, 0))

    assert numbers_in(host, STEPS) == [10, 11, 12, 20, 21, 22]


def test_output_that_comes_twice_is_stored_once() -> None:
    source, target = host_with(queue(A, "a")), host_with(queue(B, "b"))
    source.ask(Send(A, 0, [message(1)]))
    decided(source, received(source, A), output(message(2), journal=THERE))
    command = sent_for(source, KEY_B)

    assert take(target, command) == take(target, command) == MoveInOutcome([])
    assert numbers_in(target, B) == [2]


def test_output_with_the_deduplication_id_of_a_stored_message_is_passed_over() -> None:
    host = host_with(queue(A, "a"), queue(STEPS, "steps.fifo"))
    host.ask(Send(A, 0, [message(1)]))
    host.ask(Send(STEPS, 0, [message(9, group=LOW, dedup=identity(2))]))
    same = output(message(2, group=LOW, dedup=identity(2)), STEPS)
    other = output(message(3, group=LOW, dedup=identity(3)), STEPS)
    decided(host, received(host, A), same, other, same)
    key = partition_key(STEPS, 0)
    command = sent_for(host, key)

    outcome = take(host, command)
    end = host.replica.end_offset

    assert outcome.duplicates == [command.messages[0].number, command.messages[2].number]
    assert outcome.withdrawn == []
    assert take(host, command) == MoveInOutcome([])
    assert host.replica.end_offset == end
    carry(host, host, key)
    assert numbers_in(host, STEPS) == [9, 3]
    assert under_way(host) == 0
    totals = host.partition(STEPS).totals
    assert totals is not None
    assert totals.duplicate == 2


def test_later_send_finds_an_output_by_its_deduplication_id() -> None:
    host = host_with(queue(A, "a"), queue(STEPS, "steps.fifo"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2, group=LOW, dedup=identity(2)), STEPS))
    carry(host, host, partition_key(STEPS, 0))

    host.ask(Send(STEPS, 0, [message(3, group=LOW, dedup=identity(2))]))

    assert numbers_in(host, STEPS) == [2]


def with_a_long_window(dedup_ids_max: int) -> Host:
    limits = IdLimits(dedup_ids_max=dedup_ids_max)
    host = Host(states=QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS, id_limits=limits))
    host.ask(SetQueue(queue(A, "a")))
    host.ask(SetQueue(queue(STEPS, "steps.fifo", attributes={"DeduplicationWindowSeconds": "3600"})))
    host.ask(Send(A, 0, [message(number) for number in (1, 2)]))
    return host


def test_output_is_known_for_the_whole_window_of_its_queue() -> None:
    host = with_a_long_window(100)
    decided(host, received(host, A), output(message(3), B), to_steps(2, HERE))
    carry(host, host, partition_key(STEPS, 0))
    restored = replay(host.batches)
    assert restored.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    host.now_ms += 3_000_000

    again = host.ask(Send(STEPS, 0, [message(3, group=LOW, dedup=identity(2))]))

    assert isinstance(again, SentOutcome)
    assert again.results == [SendResult(1, message(2).message_id, duplicate=True)]
    assert numbers_in(host, STEPS) == [2]


def test_outputs_wait_while_their_queue_keeps_as_many_ids_as_it_may() -> None:
    host = with_a_long_window(1)
    host.ask(Send(STEPS, 0, [message(9, group=LOW, dedup=identity(9))]))
    decided(host, received(host, A), to_steps(9, HERE), to_steps(2, HERE))
    command = sent_for(host, partition_key(STEPS, 0))
    end = host.replica.end_offset

    with pytest.raises(Overloaded, match="as many deduplication ids"):
        take(host, command)
    assert host.replica.end_offset == end
    host.now_ms += 3_700_000
    carry(host, host, partition_key(STEPS, 0))

    assert under_way(host) == 0
    assert host.partition(STEPS).ids.find(identity(2), None, host.now_ms) is not None


@pytest.mark.parametrize(
    ("queue_delay_s", "delay_ms", "is_delayed"),
    [(0, -1, False), (0, 0, False), (0, 5_000, True), (9, -1, True), (9, 0, False), (9, 5_000, True)],
)
def test_output_waits_as_a_message_that_is_sent(queue_delay_s: int, delay_ms: int, is_delayed: bool) -> None:
    host = host_with(queue(A, "a"), queue(B, "b", attributes={"DelaySeconds": queue_delay_s}))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2, delay_ms=delay_ms)))
    carry(host, host, KEY_B)

    counts = host.ask(CountMessages(B))

    assert isinstance(counts, QueueCounts)
    assert (counts.visible, counts.delayed) == ((0, 1) if is_delayed else (1, 0))
    assert replay(host.batches).state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    host.now_ms += 20_000
    assert len(received(host, B)) == 1


def test_groups_of_a_log_get_outputs() -> None:
    log = queue(LOG, "log", attributes={"RetentionMode": "Log"})
    group = replace_definition(queue(GROUP, "log@readers"), group_of=LOG)
    host = host_with(queue(A, "a"), log, group)
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2, delay_ms=3_000), LOG))

    carry(host, host, partition_key(LOG, 0))

    assert received(host, GROUP) == []
    host.now_ms += 5_000
    assert len(received(host, GROUP)) == 1
    assert numbers_in(host, LOG) == [2]
    assert replay(host.batches).state_hash(host.now_ms) == host.states.state_hash(host.now_ms)


def test_messages_of_a_consumer_group_are_completed_and_stay_in_the_log() -> None:
    log = queue(LOG, "log", attributes={"RetentionMode": "Log"})
    group = replace_definition(queue(GROUP, "log@readers"), group_of=LOG)
    host = host_with(queue(B, "b"), log, group)
    host.ask(Send(LOG, 0, [message(1)]))
    gone = host.states.messages_gone

    answer = decided(host, received(host, GROUP), output(message(2)), queue_id=GROUP)

    assert answer.outcome == CompleteOutcome([None])
    assert host.states.messages_gone == gone
    assert numbers_in(host, LOG) == [1]
    with pytest.raises(NotNow, match="have not arrived yet"):
        host.ask(ForgetQueue(LOG))
    carry(host, host, KEY_B, GROUP)
    assert numbers_in(host, B) == [2]
    assert host.ask(ForgetQueue(LOG)) == Done()
    with pytest.raises(UnsupportedOperation):
        decided(host_with(log), [Receipt(1, 1, 1)], output(message(2)), queue_id=LOG)


def test_replay_and_snapshot_have_the_state_that_the_leader_has() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"), queue(STEPS, "steps.fifo"))
    host.ask(Send(A, 0, [message(number) for number in range(1, 5)]))
    receipts = received(host, A, 4)
    decided(host, receipts[:2], output(message(10)), output(message(11, group=LOW, dedup=identity(1)), STEPS))
    decided(host, receipts[2:3], output(message(12), journal=THERE, queue_id=9), digest=2)
    carry(host, host, partition_key(STEPS, 0))

    states = replay(host.batches)
    source = host.partition(A)
    source.applied = host.replica.end_offset
    loaded = load_partition(
        snapshot_of(source), source.definition, 0, MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS
    )

    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert states.sending_away == host.states.sending_away == {partition_key(A, 0)}
    assert source.moves is not None
    for moves in (states.partition(A, 0).moves, loaded.moves):
        assert moves is not None
        assert moves.outputs == source.moves.outputs
        assert moves.outputs_under_way == 2
        assert moves.last_of_group == source.moves.last_of_group
    assert partition_hash(loaded, host.now_ms) == partition_hash(source, host.now_ms)
    # A second time it changes nothing.
    before = states.state_hash(host.now_ms)
    assert replay(host.batches, states=states).state_hash(host.now_ms) == before


def test_record_lives_until_all_of_its_outputs_are_settled() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"), queue(STEPS, "steps.fifo"))
    host.ask(Send(A, 0, [message(1)]))
    decided(
        host, received(host, A), output(message(2)), output(message(3, group=LOW, dedup=identity(3)), STEPS)
    )
    (row,) = [row for row, _, _ in records_of(host.batches) if row.type == RecordType.COMPLETE]

    assert host.states.is_live(row)
    carry(host, host, KEY_B)
    assert host.states.is_live(row)
    gone = host.states.messages_gone
    carry(host, host, partition_key(STEPS, 0))
    assert not host.states.is_live(row)
    assert host.states.messages_gone > gone


def test_replay_skips_what_is_of_queues_that_were_deleted_further_on() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2)))
    carry(host, host, KEY_B)
    rows = [(row, payload) for row, payload, _ in records_of(host.batches) if row.type in HOLDING_TYPES]
    states = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)

    for row, payload in rows:
        states.apply(row, payload, 1)

    assert states.partitions == {}
    assert not any(states.is_live(row) for row, _ in rows)
    assert states.outputs_under_way == 0


def test_record_names_each_message_it_holds() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2)), output(message(3)))
    (payload,) = [p for row, p, _ in records_of(host.batches) if row.type == RecordType.COMPLETE]

    assert [int.from_bytes(message_id_of(one), "big") for one in messages_of(payload)] == [2, 3]


def test_outputs_of_a_queue_that_is_gone_are_dropped() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2)))
    host.ask(ForgetQueue(B))

    assert carry(host, host, KEY_B).is_gone

    assert under_way(host) == 0
    assert numbers_in(host, A) == []
    assert host.ask(ForgetQueue(A)) == Done()


def test_queue_is_not_forgotten_and_partition_not_empty_while_outputs_are_under_way() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    decided(host, received(host, A), output(message(2)))

    with pytest.raises(NotNow, match="1 messages that completions sent"):
        host.ask(ForgetQueue(A))
    state = host.ask(AskPartition(A, 0))

    assert isinstance(state, PartitionOutcome)
    assert (state.messages, state.is_empty, state.outputs) == (0, False, 1)


def test_purge_leaves_outputs_alone() -> None:
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1), message(5)]))
    decided(host, received(host, A), output(message(2)))

    host.ask(Purge(A))
    carry(host, host, KEY_B)

    assert numbers_in(host, B) == [2]


def test_nothing_is_completed_with_too_many_outputs_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "OUTPUTS_MAX", 3)
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1), message(2)]))
    receipts = received(host, A, 2)
    decided(host, receipts[:1], output(message(3)), output(message(4)))

    with pytest.raises(NotNow, match="the limit is 3"):
        decided(host, receipts[1:], output(message(5)), output(message(6)))

    assert numbers_in(host, A) == [2]
    carry(host, host, KEY_B)
    assert decided(host, receipts[1:], output(message(5)), output(message(6))).outcome == CompleteOutcome(
        [None]
    )


def test_older_cells_and_queues_with_at_most_once_refuse_completions() -> None:
    host = host_with(queue(A, "a"), queue(B, "b", attributes={"DeliveryGuarantee": "AtMostOnce"}))
    host.ask(Send(A, 0, [message(1)]))
    receipts = received(host, A)

    with pytest.raises(UnsupportedOperation, match="AtMostOnce"):
        decided(host, receipts, output(message(2)), queue_id=B)
    host.states.cell_format = CellFormat(7)
    with pytest.raises(UnsupportedOperation, match="cell upgrade"):
        decided(host, receipts, output(message(2)))


# Targets with several partitions


def steps(journal: int, *children: int) -> QueueDefinition:
    attributes = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    made = replace_definition(
        queue(STEPS, "steps.fifo", attributes=attributes), partitions=one_partition(journal)
    )
    if not children:
        return made
    return with_children_open(
        with_children(made, made.partitions, split_ranges(0, KEY_MAX, len(children)), children)
    )


def to_steps(number: int, journal: int, partition: int = 0) -> Output:
    return output(message(number, group=LOW, dedup=identity(number)), STEPS, partition, journal)


def test_outputs_for_a_sealed_partition_go_on_in_their_order() -> None:
    source, there, far = host_with(queue(A, "a")), host_with(steps(HERE)), Host()
    source.ask(Send(A, 0, [message(number) for number in range(1, 4)]))
    receipts = received(source, A, 3)
    for number, receipt in enumerate(receipts[:2]):
        decided(source, [receipt], to_steps(10 + number, THERE), digest=number + 1)
    after = steps(HERE, FAR)
    there.ask(SetQueue(after))
    command = sent_for(source, partition_key(STEPS, 0))
    outcome = take(there, command)
    assert outcome.is_sealed
    assert outcome.definition is not None
    numbers = [one.number for one in command.messages]

    begun = source.ask(EndMoves(A, 0, partition_key(STEPS, 0), [], numbers, steps(THERE, FAR)))
    # The one who asks knows of the child by now.
    decided(source, receipts[2:], to_steps(12, FAR, 1), digest=9)

    child = partition_key(STEPS, 1)
    assert isinstance(begun, MovesGoOn)
    assert [one.target_key for one in begun.begun] == [child]
    assert [one.number for one in sent_for(source, child).messages] == sorted(
        one.number for one in sent_for(source, child).messages
    )
    assert len(sent_for(source, child).messages) == 3
    assert replay(source.batches).state_hash(source.now_ms) == source.states.state_hash(source.now_ms)
    far.ask(SetQueue(replace_definition(steps(THERE, HERE))))
    carry(source, far, child)
    assert numbers_in(far, STEPS, 1) == [10, 11, 12]
    assert under_way(source) == 0


def test_output_follows_the_one_of_its_group_that_is_on_its_way_to_an_older_partition() -> None:
    source = host_with(queue(A, "a"))
    source.ask(Send(A, 0, [message(number) for number in range(1, 4)]))
    receipts = received(source, A, 3)
    decided(source, receipts[:1], to_steps(10, THERE), digest=1)

    following = decided(source, receipts[1:2], to_steps(11, FAR, 1), digest=2)
    source.ask(
        EndMoves(
            A,
            0,
            partition_key(STEPS, 0),
            [one.number for one in sent_for(source, partition_key(STEPS, 0)).messages],
            [],
        )
    )
    later = decided(source, receipts[2:], to_steps(12, FAR, 1), digest=3)

    assert [one.target_key for one in following.begun] == [partition_key(STEPS, 0)]
    assert [one.target_key for one in later.begun] == [partition_key(STEPS, 1)]


def test_sealed_partition_passes_over_outputs_that_it_has_and_the_others_go_on() -> None:
    source, there = host_with(queue(A, "a")), host_with(steps(HERE))
    there.ask(Send(STEPS, 0, [message(9, group=LOW, dedup=identity(10))]))
    there.ask(SetQueue(steps(HERE, FAR)))
    source.ask(Send(A, 0, [message(1)]))
    decided(source, received(source, A), to_steps(10, THERE), to_steps(11, THERE))
    command = sent_for(source, partition_key(STEPS, 0))

    outcome = take(there, command)

    assert outcome.is_sealed
    assert outcome.duplicates == [command.messages[0].number]
    assert outcome.withdrawn == [command.messages[1].number]
    source.ask(
        EndMoves(A, 0, partition_key(STEPS, 0), outcome.duplicates, outcome.withdrawn, steps(THERE, FAR))
    )
    assert under_way(source) == 1
    assert len(sent_for(source, partition_key(STEPS, 1)).messages) == 1


def test_outputs_that_a_sealed_partition_was_not_asked_about_do_not_go_on_without_it() -> None:
    source, there = host_with(queue(A, "a")), host_with(steps(HERE))
    there.ask(Send(STEPS, 0, [message(9, group=LOW, dedup=identity(11))]))
    there.ask(SetQueue(steps(HERE, FAR)))
    source.ask(Send(A, 0, [message(1)]))
    decided(source, received(source, A), to_steps(10, THERE), to_steps(11, THERE))
    first, second = sent_for(source, partition_key(STEPS, 0)).messages
    asked = MoveIn(STEPS, 0, A, 0, [first])
    assert take(there, asked).withdrawn == [first.number]

    source.ask(EndMoves(A, 0, partition_key(STEPS, 0), [], [first.number], steps(THERE, FAR)))

    assert sent_for(source, partition_key(STEPS, 0)).messages == [second]
    assert take(there, MoveIn(STEPS, 0, A, 0, [second])).duplicates == [second.number]


def test_output_follows_the_last_of_its_group_also_when_an_earlier_one_has_gone_on() -> None:
    source = host_with(queue(A, "a"))
    source.ask(Send(A, 0, [message(1), message(2)]))
    receipts = received(source, A, 2)
    decided(source, receipts[:1], to_steps(10, THERE), to_steps(11, THERE), digest=1)
    first, _ = sent_for(source, partition_key(STEPS, 0)).messages
    source.ask(EndMoves(A, 0, partition_key(STEPS, 0), [], [first.number], steps(THERE, FAR)))

    # The one who asks does not ask the parent any more.
    following = decided(source, receipts[1:], to_steps(12, FAR, 1), digest=2)

    assert [one.target_key for one in following.begun] == [partition_key(STEPS, 0)]
    states = replay(source.batches)
    assert states.state_hash(source.now_ms) == source.states.state_hash(source.now_ms)
    moves, leading = states.partition(A, 0).moves, source.partition(A).moves
    assert moves is not None
    assert leading is not None
    assert moves.last_of_group == leading.last_of_group


def test_partition_with_nothing_but_duplicates_is_not_told_to_be_sealed() -> None:
    there = host_with(steps(HERE))
    there.ask(Send(STEPS, 0, [message(9, group=LOW, dedup=identity(10))]))
    there.ask(SetQueue(steps(HERE, FAR)))
    source = host_with(queue(A, "a"))
    source.ask(Send(A, 0, [message(1)]))
    decided(source, received(source, A), to_steps(10, THERE))

    outcome = take(there, sent_for(source, partition_key(STEPS, 0)))

    assert not outcome.is_sealed
    assert len(outcome.duplicates) == 1


def test_snapshot_of_moves_without_outputs_is_as_it_was() -> None:
    moves = PartitionMoves()
    moves.begin(KEY_B, THERE, 5, OpenMove(3, False))

    assert moves.to_bytes() == bytes.fromhex("929194ce00020000070581059203c290")


def test_deletion_by_a_completion_is_one_for_its_delivery_only() -> None:
    """A receipt of another delivery of the same message is told that the message is gone, as always."""
    host = host_with(queue(A, "a"), queue(B, "b"))
    host.ask(Send(A, 0, [message(1)]))
    receipts = received(host, A)
    decided(host, receipts, output(message(2)))

    outcome = host.ask(Delete(A, 0, receipts))

    assert isinstance(outcome, EntriesOutcome)
    assert (outcome.errors, outcome.gone) == ([None], 1)

"""Messages that move into a queue with several partitions: to which one, and what a seal does to those on their way."""

from __future__ import annotations

import pytest
from harness.replica_host import Host, arn, identity, message, queue, records_of

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.queues import moved_messages
from quaymaster.core.queues.moved_messages import message_to_move
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES, PREFIX_FLAGS
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.values.commands.decided import DeadLetter, TakenOutcome
from quaymaster.core.values.commands.messages import Done, Purge, Receive, Send
from quaymaster.core.values.commands.moves import (
    EndMoves,
    MoveBegun,
    MovedMessage,
    MoveIn,
    MoveInOutcome,
    MoveMessage,
    MovesGoOn,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.messages import decode_message, prefix_bytes
from quaymaster.core.values.partition_tables import (
    entries_to_split,
    split_ranges,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import (
    KEY_MAX,
    QueueDefinition,
    one_partition,
    replace_definition,
)

JOBS, DEAD, STEPS, STEPS_DEAD = 1, 2, 3, 4
HERE, THERE, FAR = 0, 7, 8
LOW, HIGH = 5, KEY_MAX - 5
"""Two groups, one in each half of the keys."""
NAMES = {DEAD: "dead", STEPS_DEAD: "steps-dead.fifo"}


def table(queue_id: int, journal: int, *children: int) -> QueueDefinition:
    """Return a queue that was in one journal, and was split into others."""
    attributes = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    made = queue(queue_id, NAMES[queue_id], attributes=attributes if queue_id == STEPS_DEAD else {})
    made = replace_definition(made, partitions=one_partition(journal))
    if not children:
        return made
    if len(children) == 1:
        split = with_children(made, made.partitions, split_ranges(0, KEY_MAX, 1), children)
    else:
        split = with_children(made, *entries_to_split(made, len(children)), children)
    return with_children_open(split)


def source_host(*targets: QueueDefinition) -> Host:
    """Return the leader of a journal with two queues, whose dead-letter queues are known from elsewhere."""
    host = Host()
    host.states.elsewhere = QueuesElsewhere(CellFormat())
    for queue_id, name, dead in ((JOBS, "jobs", DEAD), (STEPS, "steps.fifo", STEPS_DEAD)):
        policy = f'{{"deadLetterTargetArn":"{arn(NAMES[dead])}","maxReceiveCount":1}}'
        host.ask(SetQueue(queue(queue_id, name, attributes={"RedrivePolicy": policy})))
    for target in targets:
        host.states.elsewhere.places[arn(target.name)] = target
    return host


def send(host: Host, queue_id: int, *numbers: int, group: int = 0, partition: int = 0) -> None:
    for number in numbers:
        new = message(number, group=group, dedup=identity(number) if group else None)
        host.ask(Send(queue_id, partition, [new]))


def dead_letters(host: Host, queue_id: int) -> list[DeadLetter]:
    """Receive all messages until they are to be moved."""
    letters: list[DeadLetter] = []
    for _ in range(2):
        outcome = host.ask(Receive(queue_id, 0, 10, 0))
        assert isinstance(outcome, TakenOutcome)
        letters += outcome.dead_letters
    return letters


def move(host: Host, letter: DeadLetter, target: QueueDefinition | None) -> Decided:
    row, payload = host.payload(letter.offset)
    queue_id = letter.target_queue_id or (target.queue_id if target else 0)
    command = MoveMessage(
        letter.queue_id,
        letter.partition,
        letter.sequence,
        queue_id,
        row.type,
        row.flags,
        payload,
        None,
        target=target,
    )
    return host.ask(command)


def begin(host: Host, letter: DeadLetter, target: QueueDefinition) -> MoveBegun:
    outcome = move(host, letter, target)
    assert isinstance(outcome, MoveBegun)
    return outcome


def sent_for(host: Host, queue_id: int, target: QueueDefinition, number: int) -> MoveIn:
    """Return all that is on its way from a queue to a partition, as it is sent."""
    key = partition_key(target.queue_id, number)
    source = host.partition(queue_id)
    assert source.moves is not None
    messages: list[MovedMessage] = []
    for move_number, each in source.moves.to_send(key, 1 << 62, 100):
        row, payload = host.payload(source.index.offset_and_sent_ms(each.sequence)[0])
        messages.append(
            message_to_move(
                source,
                each.sequence,
                (row.type, row.flags, payload),
                source_arn=None,
                new_message_id=None,
                number=move_number,
            )
        )
    return MoveIn(target.queue_id, number, queue_id, 0, messages)


def take(host: Host, command: MoveIn) -> MoveInOutcome:
    outcome = host.ask(command)
    assert isinstance(outcome, MoveInOutcome)
    return outcome


def numbers_in(host: Host, queue_id: int, number: int) -> list[int]:
    """Return the messages of a partition, in their order."""
    partition: Partition = host.states.partition(queue_id, number)
    found: list[int] = []
    for sequence in range(partition.head, partition.next_sequence):
        offset = partition.index.offset_and_sent_ms(sequence)[0]
        row, payload = host.payload(offset)
        assert decode_message(payload[MOVE_HEAD_BYTES + prefix_bytes(row.flags & PREFIX_FLAGS) :]) is not None
        found.append(host.number_at(offset))
    return found


def open_moves(host: Host, queue_id: int) -> dict[int, list[int]]:
    """Return the sequence numbers of what is on its way, by the number of the partition that it is for."""
    moves = host.partition(queue_id).moves
    assert moves is not None
    return {key & 0xFFFF: [move.sequence for move in pair.open.values()] for key, pair in moves.out.items()}


def test_message_of_a_group_goes_to_the_partition_of_its_group() -> None:
    target = with_state(table(STEPS_DEAD, THERE, FAR, FAR), 0, "closed")
    host = source_host(target)
    send(host, STEPS, 1, 2, group=LOW)
    send(host, STEPS, 3, group=HIGH)

    for letter in dead_letters(host, STEPS):
        begin(host, letter, target)

    assert open_moves(host, STEPS) == {1: [1, 2], 2: [3]}


def test_messages_of_a_standard_queue_are_spread_over_its_partitions() -> None:
    target = with_state(table(DEAD, THERE, FAR, FAR, FAR, FAR), 0, "drained")
    host = source_host(target)
    for number in range(1, 41):
        send(host, JOBS, number)

    letters = [letter for _ in range(8) for letter in dead_letters(host, JOBS)]
    for letter in letters:
        begin(host, letter, target)

    assert all(5 <= len(moved) <= 15 for moved in open_moves(host, JOBS).values())
    assert len(open_moves(host, JOBS)) == 4


def test_partition_that_is_closing_is_asked_first() -> None:
    target = table(STEPS_DEAD, THERE, FAR, FAR)
    host = source_host(target)
    send(host, STEPS, 1, group=HIGH)

    (letter,) = dead_letters(host, STEPS)

    assert begin(host, letter, target).target_key == partition_key(STEPS_DEAD, 0)


def test_sealed_partition_answers_old_moves_and_takes_no_new_ones() -> None:
    before, after = table(STEPS_DEAD, HERE), table(STEPS_DEAD, HERE, FAR, FAR)
    source, there = source_host(before), Host()
    there.ask(SetQueue(before))
    send(source, STEPS, 1, 2, 3, group=LOW)
    letters = dead_letters(source, STEPS)
    far = table(STEPS_DEAD, THERE)
    begin(source, letters[0], far)
    sent = sent_for(source, STEPS, far, 0)
    assert take(there, sent) == MoveInOutcome([])
    for letter in letters[1:]:
        begin(source, letter, far)
    there.ask(SetQueue(after))
    end = there.replica.end_offset

    everything = sent_for(source, STEPS, far, 0)
    outcome = take(there, everything)

    assert outcome.is_sealed
    assert outcome.definition is not None
    assert outcome.definition.table_version == after.table_version
    assert outcome.withdrawn == [one.number for one in everything.messages[1:]]
    assert take(there, everything) == outcome
    assert take(there, sent) == MoveInOutcome([])
    assert there.replica.end_offset == end
    assert numbers_in(there, STEPS_DEAD, 0) == [1]


def test_all_moves_to_a_sealed_partition_go_on_in_their_order() -> None:
    before = table(STEPS_DEAD, THERE)
    after = table(STEPS_DEAD, THERE, FAR, FAR)
    host = source_host(before)
    send(host, STEPS, 1, 2, group=LOW)
    send(host, STEPS, 3, group=HIGH)
    send(host, STEPS, 4, group=LOW)
    letters = dead_letters(host, STEPS)
    begun = [begin(host, letter, before) for letter in letters]
    key = partition_key(STEPS_DEAD, 0)

    outcome = host.ask(EndMoves(STEPS, 0, key, [begun[0].number], [begun[1].number], after))

    assert isinstance(outcome, MovesGoOn)
    first, *others = (letter.sequence for letter in letters)
    assert open_moves(host, STEPS) == {
        0: [],
        1: [sequence for sequence in others if sequence != 3],
        2: [3],
    }
    assert first == 1
    assert sorted(each.target_key & 0xFFFF for each in outcome.begun) == [1, 2]
    states = host.replayed()
    assert states.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    assert states.sending_away == {partition_key(STEPS, 0)}


def test_moves_whose_message_is_gone_do_not_go_on() -> None:
    before, after = table(DEAD, THERE), table(DEAD, THERE, FAR)
    host = source_host(before)
    send(host, JOBS, 1, 2)
    begun = [begin(host, letter, before) for letter in dead_letters(host, JOBS)]
    host.ask(Purge(JOBS))

    outcome = host.ask(EndMoves(JOBS, 0, begun[0].target_key, [], [begun[0].number], after))

    assert outcome == Done()
    assert open_moves(host, JOBS) == {0: []}
    assert not host.states.sending_away


def test_moves_do_not_go_on_by_a_table_without_other_partitions() -> None:
    before = table(DEAD, THERE)
    host = source_host(before)
    send(host, JOBS, 1)
    (letter,) = dead_letters(host, JOBS)
    begun = begin(host, letter, before)

    with pytest.raises(NotNow):
        host.ask(EndMoves(JOBS, 0, begun.target_key, [], [begun.number], before))

    assert open_moves(host, JOBS) == {0: [1]}


@pytest.mark.parametrize("noted_max", [1, 100])
def test_message_of_a_group_follows_those_that_were_taken_with_it(
    monkeypatch: pytest.MonkeyPatch, noted_max: int
) -> None:
    """Also where the table has become another one: two ways would not keep their order."""
    monkeypatch.setattr(moved_messages, "GROUPS_NOTED_MAX", noted_max)
    before = table(STEPS_DEAD, THERE)
    after = with_state(table(STEPS_DEAD, THERE, FAR), 0, "closed")
    host = source_host(before)
    send(host, STEPS, 1, 2, group=LOW)
    send(host, STEPS, 3, group=HIGH)
    first, *others = dead_letters(host, STEPS)
    begun = begin(host, first, before)

    for letter in others:
        begin(host, letter, after)
    assert open_moves(host, STEPS) == {0: [1, 2], 1: [3]}

    # Settled, they are followed no more; then the order is kept by the partitions themselves.
    host.ask(EndMoves(STEPS, 0, begun.target_key, moves_to(host, 0), []))
    send(host, STEPS, 4, group=LOW)
    (letter,) = dead_letters(host, STEPS)
    begin(host, letter, after)
    assert open_moves(host, STEPS) == {0: [], 1: [3, 4]}


def moves_to(host: Host, number: int) -> list[int]:
    pair = host.partition(STEPS).moves_to(partition_key(STEPS_DEAD, number))
    assert pair is not None
    return list(pair.open)


def test_groups_that_follow_nothing_are_forgotten_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moved_messages, "GROUPS_NOTED_MAX", 1)
    target = table(STEPS_DEAD, THERE)
    host = source_host(target)
    for number, group in ((1, LOW), (2, HIGH)):
        send(host, STEPS, number, group=group)
        (letter,) = dead_letters(host, STEPS)
        begin(host, letter, target)
        host.ask(EndMoves(STEPS, 0, partition_key(STEPS_DEAD, 0), moves_to(host, 0), []))

    moves = host.partition(STEPS).moves
    assert moves is not None
    assert list(moves.last_of_group) == [(STEPS_DEAD, HIGH)]


def test_messages_are_not_moved_into_a_sealed_partition_of_the_same_journal() -> None:
    before, after = table(STEPS_DEAD, HERE), table(STEPS_DEAD, HERE, HERE, THERE)
    host = source_host()
    host.ask(SetQueue(before))
    send(host, STEPS, 1, group=LOW)
    (letter,) = dead_letters(host, STEPS)
    assert move(host, letter, None) == Done()
    host.ask(SetQueue(after))
    send(host, STEPS, 2, group=LOW)
    send(host, STEPS, 3, group=HIGH)

    for letter in dead_letters(host, STEPS):
        move(host, letter, before)

    assert numbers_in(host, STEPS_DEAD, 0) == [1]
    assert numbers_in(host, STEPS_DEAD, 1) == [2]
    assert open_moves(host, STEPS) == {2: [3]}


def test_partition_that_its_journal_does_not_know_yet_is_waited_for() -> None:
    target = replace_definition(table(DEAD, HERE), queue_id=DEAD)
    host = source_host(target)
    send(host, JOBS, 1)
    (letter,) = dead_letters(host, JOBS)

    with pytest.raises(NotNow):
        move(host, letter, target)
    with pytest.raises(NotNow):
        host.ask(MoveIn(99, 0, JOBS, 0, [MovedMessage(1)]))

    host.ask(SetQueue(target))
    assert move(host, letter, target) == Done()
    assert numbers_in(host, DEAD, 0) == [1]


def test_message_does_not_leave_before_an_earlier_one_of_its_group() -> None:
    target = table(STEPS_DEAD, THERE)
    host = source_host(target)
    send(host, STEPS, 1, 2, 3, group=LOW)
    first, second, third = dead_letters(host, STEPS)

    assert move(host, second, target) == Done()  # the first one is not decided
    host.ask(MoveMessage(STEPS, 0, first.sequence, 0, 0, 0, None, None))
    assert move(host, third, target) == Done()  # the first one is visible again

    order = host.partition(STEPS).order
    assert isinstance(order, FIFOOrder)
    assert not host.partition(STEPS).moving
    assert [letter.sequence for letter in dead_letters(host, STEPS)] == [1, 2, 3]


def test_records_of_moves_that_go_on_are_taken_once() -> None:
    before, after = table(DEAD, THERE), table(DEAD, THERE, FAR)
    host = source_host(before)
    send(host, JOBS, 1, 2)
    begun = [begin(host, letter, before) for letter in dead_letters(host, JOBS)]
    host.ask(EndMoves(JOBS, 0, begun[0].target_key, [], [begun[0].number], after))
    state = host.states.state_hash(host.now_ms)
    for partition in host.states.partitions.values():
        partition.applied = host.replica.end_offset

    for row, payload, epoch in records_of(host.batches):
        host.states.apply(row, payload, epoch)

    assert host.states.state_hash(host.now_ms) == state


def test_message_that_goes_on_to_its_own_journal_is_there_until_its_move_ends_on_each_replica() -> None:
    before, after = table(DEAD, THERE), table(DEAD, THERE, HERE)
    host = source_host(before)
    send(host, JOBS, 1, 2)
    begun = [begin(host, letter, before) for letter in dead_letters(host, JOBS)]
    host.ask(SetQueue(after))
    numbers = [each.number for each in begun]
    going = host.ask(EndMoves(JOBS, 0, begun[0].target_key, [], numbers, after))
    assert isinstance(going, MovesGoOn)

    take(host, sent_for(host, JOBS, after, 1))
    on_another = host.replayed()

    assert (host.partition(JOBS).alive, on_another.partitions[partition_key(JOBS, 0)].alive) == (2, 2)
    assert on_another.state_hash(host.now_ms) == host.states.state_hash(host.now_ms)
    (last,) = going.begun
    host.ask(EndMoves(JOBS, 0, last.target_key, [last.number - 1, last.number], []))
    assert host.partition(JOBS).alive == 0
    assert numbers_in(host, DEAD, 1) == [1, 2]
    assert host.replayed().state_hash(host.now_ms) == host.states.state_hash(host.now_ms)

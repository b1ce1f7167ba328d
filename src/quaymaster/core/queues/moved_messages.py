"""How a message goes from one partition to another: as what it leaves, and what stores it there.

    in one journal          `message_to_move` ──▶ `store_moved`: one record does both ends
    to another journal      `begin_move`; the host carries `message_to_move` there ──▶ `take_in` ──▶ END of the move
    of a completion         as to another journal, wherever it goes (`core/queues/completions`)

What each end remembers of moves between journals is in `core/partition/partition_moves`.

Which partition of a queue a message goes to is chosen here, by the table (`core/values/partition_tables`): the oldest
one that takes messages of its key, but none that is known to be sealed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection
from typing import Final

from quaymaster.core.partition.consumer_groups import follow_send
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import AWAY_MAX, MovesOut, OpenMove
from quaymaster.core.partition.partition_totals import totals_of
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.partition.work.applied_moves import apply_move_out, apply_move_withdrawn, opened_moves
from quaymaster.core.queues.completions import record_of_output
from quaymaster.core.queues.record_payloads import (
    GOES_ON,
    GONE_ON,
    IS_DUPLICATE,
    MOVE_HEAD,
    MOVE_HEAD_BYTES,
    MOVE_OUT,
    OTHER_END,
    OWN_DELAY,
    PREFIX_FLAGS,
    SETTLED_BELOW,
)
from quaymaster.core.structures.ids.kept_ids import KeptMessage
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.values.commands.moves import MoveBegun, MovedMessage, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.errors import NotNow, Overloaded
from quaymaster.core.values.messages import encode_moved, message_id_of, prefix_bytes, split_prefix
from quaymaster.core.values.partition_tables import taking
from quaymaster.core.values.queues.partition_keys import partition_key, parts_of_key
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, PartitionPlacement, QueueDefinition
from quaymaster.core.values.records import Record, RecordType

SPREAD: Final = 0x9E37_79B9_7F4A_7C15
"""Multiples of it are spread evenly over the keys."""
GROUPS_NOTED_MAX: Final = 2 * AWAY_MAX
"""Of so many groups it is noted where their last message went, settled or not."""


def message_to_move(
    source: Partition,
    sequence: int,
    record: tuple[int, int, bytes],
    *,
    source_arn: str | None,
    new_message_id: bytes | None,
    number: int = 0,
) -> MovedMessage:
    """Return a message as another queue takes it; `record`: type, flags and payload of the one it is in here.

    `source_arn`: that of the queue it died in. With `new_message_id` it starts afresh.
    """
    record_type, flags, payload = record
    if record_type == RecordType.MOVE:
        payload = payload[MOVE_HEAD_BYTES:]
    flags &= PREFIX_FLAGS
    cut = prefix_bytes(flags)
    wrapped = encode_moved(
        source.definition.queue_id,
        source.number,
        sequence,
        new_message_id,
        source_arn,
        payload[cut:],
        number,
    )
    is_redrive = new_message_id is not None
    row = source.returned.get(sequence) if not is_redrive else None
    return MovedMessage(
        number,
        payload[:cut] + wrapped,
        flags,
        sent_ms=source.index.sent_ms(sequence),
        delivery_count=row.delivery_count if row else 0,
        first_receive_ms=row.first_receive_ms if row else 0,
        is_redrive=is_redrive,
    )


def store_moved(
    target: Partition, message: MovedMessage, now_ms: int, proposal: Proposal, *, is_of_task: bool
) -> None:
    """Put a message that came from another queue into its new one."""
    assert message.payload is not None, "what was withdrawn is not stored"
    keeps_age = not message.is_redrive and not target.definition.is_fifo
    sent_ms = message.sent_ms if keeps_age else now_ms
    count, first_ms = message.delivery_count, message.first_receive_ms
    sequence, offset = target.next_sequence, proposal.next_offset
    proposal.records.append(
        Record(
            RecordType.MOVE,
            message.flags,
            target.definition.queue_id,
            target.number,
            sequence,
            now_ms,
            0,
            MOVE_HEAD.pack(sent_ms, first_ms, count, is_of_task) + message.payload,
        )
    )
    group = split_prefix(message.flags, message.payload)[0]
    target.apply_move_in(sequence, offset, now_ms, sent_ms, count, first_ms, group)
    proposal.note_sent(target, sequence, target.next_sequence)


def find_place(
    source: Partition,
    sequence: int,
    queue: QueueDefinition,
    takes_moves: Callable[[PartitionPlacement], bool],
) -> PartitionPlacement | None:
    """Return which partition of a queue a message goes to; None: there is none.

    A message of a FIFO queue goes by its group. Others are spread by where they come from: that is the same whenever
    it is asked, and needs no look at the message.
    """
    return _find_by_key(queue, _key_of(source, sequence, queue), takes_moves, after=-1)


def _key_of(source: Partition, sequence: int, queue: QueueDefinition) -> int:
    if queue.is_fifo:
        return source.index.group(sequence)
    return (source.key + sequence * SPREAD) & KEY_MAX


def _find_by_key(
    queue: QueueDefinition, key: int, takes_moves: Callable[[PartitionPlacement], bool], *, after: int
) -> PartitionPlacement | None:
    for entry in taking(queue, key):
        if entry.number > after and takes_moves(entry):
            return entry
    return None


def followed_move(source: Partition, sequence: int, queue_id: int) -> tuple[int, int] | None:
    """Return key and journal of the partition that the message of a group left for before, if that is not settled.

    Until then the group gives no more: so all of them were taken at once, by this leader.
    """
    moves = source.moves
    if moves is None or not source.definition.is_fifo:
        return None
    last = moves.last_of_group.get((queue_id, source.index.group(sequence)))
    if last is None or last[1] not in moves.out[last[0]].open:
        return None
    return last[0], moves.out[last[0]].journal_id


def _note_last_of_group(source: Partition, sequence: int, target_key: int, number: int) -> None:
    if not source.definition.is_fifo:
        return
    moves = opened_moves(source)
    if len(moves.last_of_group) >= GROUPS_NOTED_MAX:
        moves.forget_settled_groups()
    moves.last_of_group[parts_of_key(target_key)[0], source.index.group(sequence)] = target_key, number


def is_overtaking(source: Partition, sequence: int) -> bool:
    """Return whether an earlier message of the group stays, or is not decided upon: this one must not go before it.

    This one was taken for a move: so long as that is not decided upon, messages are in flight in their groups.
    """
    order = source.order
    if not isinstance(order, FIFOOrder):
        return False
    group = order.groups.get(source.index.group(sequence))
    assert group is not None, "a message that was taken is in flight in its group"
    if group.waiting and group.waiting.first() < sequence:
        return True
    return any(other < sequence and other in source.moving for other in group.in_flight)


def begin_move(
    source: Partition,
    command: MoveMessage,
    target_key: int,
    journal_id: int,
    now_ms: int,
    proposal: Proposal,
) -> MoveBegun:
    """Let a message leave for another journal."""
    move = OpenMove(command.sequence, command.task_id is not None)
    number = opened_moves(source).next_number(target_key, proposal.epoch)
    payload = MOVE_OUT.pack(*parts_of_key(target_key), journal_id, number, move.is_redrive)
    proposal.add(RecordType.MOVE_OUT, source, now_ms, sequence=command.sequence, payload=payload)
    apply_move_out(source, target_key, journal_id, number, move, now_ms, taken=True)
    _note_last_of_group(source, command.sequence, target_key, number)
    return MoveBegun(target_key, number)


def go_on(
    source: Partition,
    pair: MovesOut,
    queue: QueueDefinition,
    takes_moves: Callable[[PartitionPlacement], bool],
    now_ms: int,
    proposal: Proposal,
    *,
    settled: Collection[int],
    withdrawn: Collection[int],
) -> list[MoveBegun]:
    """Let all moves to a sealed partition but `settled` ones go on to others, in their order.

    Those whose message is gone are left.

    All of them, also those that began since it was asked: left behind, they would be overtaken by what follows them.
    But of outputs only those `withdrawn` by it: it has to say of each whether it has that already, and what follows
    them goes to it first, too.
    Raises NotNow if the table has no partition for one of them.
    """
    moves = opened_moves(source)
    queue_id, before = parts_of_key(pair.target_key)
    going: list[tuple[int, OpenMove, PartitionPlacement]] = []
    for number, move in pair.open.items():
        if (
            number in withdrawn
            if move.is_output
            else move.sequence in moves.leaving and number not in settled
        ):
            move_key = move.key if move.is_output else _key_of(source, move.sequence, queue)
            entry = _find_by_key(queue, move_key, takes_moves, after=before)
            if entry is None:
                raise NotNow("The partitions that follow a sealed one are not known yet.")
            going.append((number, move, entry))
    last: dict[int, int] = {}
    for number, move, entry in going:
        key = partition_key(queue_id, entry.number)
        new_number = last[key] = moves.next_number(key, proposal.epoch)
        payload = MOVE_OUT.pack(queue_id, entry.number, entry.journal_id, new_number, move.is_redrive)
        payload += GONE_ON.pack(before, number)
        proposal.add(
            RecordType.MOVE_OUT, source, now_ms, sequence=move.sequence, flags=GOES_ON, payload=payload
        )
        moves.go_on(pair.target_key, number, (key, entry.journal_id, new_number))
        if not move.is_output:
            _note_last_of_group(source, move.sequence, key, new_number)
    return [MoveBegun(key, number) for key, number in last.items()]


def take_in(target: Partition, command: MoveIn, now_ms: int, proposal: Proposal) -> MoveInOutcome:
    """Take what is new of the messages that leave a partition; its answer rests on all that was decided.

    A sealed partition takes none of them. That it does not needs no record: it never will. An output that is stored
    already is passed over, also there. Raises Overloaded, and takes nothing, where deduplication ids of outputs would
    be more than may be kept: outputs wait until there is room for them.
    """
    source_key = partition_key(command.source_queue_id, command.source_partition)
    known = target.moves.into.get(source_key) if target.moves is not None else None
    last = known.last if known is not None else 0
    _check_room_for_ids(target, command, last, now_ms)
    withdrawn: list[int] = []
    duplicates: list[int] = []
    is_sealed = False
    for message in command.messages:
        number = message.number
        if number <= last:
            if known is not None and number in known.withdrawn:
                withdrawn.append(number)
            continue
        is_duplicate = message.is_output and _is_stored(target, message, now_ms)
        if is_duplicate:
            duplicates.append(number)
            totals_of(target, proposal.epoch).duplicate += 1
            target.note_touch()
        if target.is_sealed:
            if is_duplicate:
                continue
            withdrawn.append(number)
            is_sealed = True
            continue
        last = number
        if is_duplicate:
            _withdraw(target, command, number, now_ms, proposal, are_duplicates=True)
        elif message.payload is None:
            withdrawn.append(number)
            _withdraw(target, command, number, now_ms, proposal)
        elif message.is_output:
            _store_output(target, message, now_ms, proposal)
            opened_moves(target).came(source_key).last = number
        else:
            store_moved(target, message, now_ms, proposal, is_of_task=message.is_redrive)
            opened_moves(target).came(source_key).last = number
    return MoveInOutcome(withdrawn, is_sealed=is_sealed, duplicates=duplicates)


def _check_room_for_ids(target: Partition, command: MoveIn, last: int, now_ms: int) -> None:
    """Raise Overloaded if there is no room for one id; where there is, all outputs that came together have it."""
    if target.is_sealed or not target.ids.keeps_messages:
        return
    for message in command.messages:
        dedup = _dedup_of(message) if message.is_output and message.number > last else None
        if dedup is not None and not target.ids.has_room([dedup], now_ms):
            raise Overloaded("Outputs wait: their queue keeps as many deduplication ids as it may.")


def _dedup_of(output: MovedMessage) -> bytes | None:
    return split_prefix(output.flags, output.payload or b"")[1]


def _is_stored(target: Partition, message: MovedMessage, now_ms: int) -> bool:
    """Return whether an output has the deduplication id of a message that is stored."""
    dedup = _dedup_of(message)
    return dedup is not None and target.ids.find(dedup, None, now_ms) is not None


def _store_output(target: Partition, message: MovedMessage, now_ms: int, proposal: Proposal) -> None:
    """Store an output as a Send would have stored it."""
    record = record_of_output(target, message, now_ms)
    offset = proposal.next_offset
    proposal.records.append(record)
    payload = record.payload[MOVE_HEAD_BYTES:]
    group, dedup, _ = split_prefix(record.flags, payload)
    own_delay = bool(record.flags & OWN_DELAY)
    sequence, delay_ms = record.sequence, record.due_after_ms
    target.apply_send(sequence, offset, now_ms, delay_ms, own_delay, group)
    target.moved_in += 1
    if dedup is not None and target.ids.keeps_messages:
        message_id = message_id_of(payload[prefix_bytes(record.flags & PREFIX_FLAGS) :])
        target.ids.keep(dedup, KeptMessage(sequence, message_id), now_ms)
    elif dedup is not None:
        target.ids.note(dedup, None, offset, now_ms)
    if target.sizes is not None:
        target.sizes.add(sequence, len(payload))
    for follower in target.groups.values():
        follow_send(follower, sequence, offset, now_ms, delay_ms, own_delay, group)
    for partition in (target, *target.groups.values()):
        proposal.note_sent(partition, sequence, partition.next_sequence)


def _withdraw(
    target: Partition,
    command: MoveIn,
    number: int,
    now_ms: int,
    proposal: Proposal,
    *,
    are_duplicates: bool = False,
) -> None:
    settled_below = command.messages[0].number
    other_end = OTHER_END.pack(command.source_queue_id, command.source_partition)
    payload = other_end + SETTLED_BELOW.pack(settled_below) + array("Q", [number]).tobytes()
    flags = IS_DUPLICATE if are_duplicates else 0
    proposal.add(RecordType.MOVE_WITHDRAWN, target, now_ms, flags=flags, payload=payload)
    source_key = partition_key(command.source_queue_id, command.source_partition)
    apply_move_withdrawn(target, source_key, settled_below, [number], are_duplicates=are_duplicates)

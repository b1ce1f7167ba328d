"""How a message goes from one partition to another: as what it leaves, and what stores it there.

    in one journal          `message_to_move` ──▶ `store_moved`: one record does both ends
    to another journal      `begin_move`; the host carries `message_to_move` there ──▶ `take_in` ──▶ END of the move

What each end remembers of moves between journals is in `core/partition/partition_moves`.
"""

from __future__ import annotations

from array import array

from quaymaster.core.partition.applied_moves import apply_move_out, apply_move_withdrawn, opened_moves
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OpenMove
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.queues.applied_queues import (
    MOVE_HEAD,
    MOVE_HEAD_BYTES,
    MOVE_OUT,
    OTHER_END,
    PREFIX_FLAGS,
    SETTLED_BELOW,
    partition_key,
)
from quaymaster.core.values.commands import MoveBegun, MovedMessage, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.messages import encode_moved, prefix_bytes, split_prefix
from quaymaster.core.values.records import Record, RecordType


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


def begin_move(source: Partition, command: MoveMessage, now_ms: int, proposal: Proposal) -> MoveBegun:
    """Let a message leave for another journal."""
    target_key = partition_key(command.target_queue_id, 0)
    journal_id = command.target_journal_id
    assert journal_id is not None, "who leaves the journal goes to another one"
    move = OpenMove(command.sequence, command.task_id is not None)
    number = opened_moves(source).next_number(target_key, proposal.epoch)
    payload = MOVE_OUT.pack(command.target_queue_id, 0, journal_id, number, move.is_redrive)
    proposal.add(RecordType.MOVE_OUT, source, now_ms, sequence=command.sequence, payload=payload)
    apply_move_out(source, target_key, journal_id, number, move, now_ms, taken=True)
    return MoveBegun(target_key, number)


def take_in(target: Partition, command: MoveIn, now_ms: int, proposal: Proposal) -> MoveInOutcome:
    """Take what is new of the messages that another journal sends; its answer rests on all that was decided."""
    source_key = partition_key(command.source_queue_id, command.source_partition)
    known = target.moves.into.get(source_key) if target.moves is not None else None
    last = known.last if known is not None else 0
    withdrawn: list[int] = []
    for message in command.messages:
        number = message.number
        if number <= last:
            if known is not None and number in known.withdrawn:
                withdrawn.append(number)
            continue
        last = number
        if message.payload is None:
            withdrawn.append(number)
            _withdraw(target, command, number, now_ms, proposal)
        else:
            store_moved(target, message, now_ms, proposal, is_of_task=message.is_redrive)
            opened_moves(target).came(source_key).last = number
    return MoveInOutcome(withdrawn)


def _withdraw(target: Partition, command: MoveIn, number: int, now_ms: int, proposal: Proposal) -> None:
    settled_below = command.messages[0].number
    other_end = OTHER_END.pack(command.source_queue_id, command.source_partition)
    payload = other_end + SETTLED_BELOW.pack(settled_below) + array("Q", [number]).tobytes()
    proposal.add(RecordType.MOVE_WITHDRAWN, target, now_ms, payload=payload)
    source_key = partition_key(command.source_queue_id, command.source_partition)
    apply_move_withdrawn(target, source_key, settled_below, [number])

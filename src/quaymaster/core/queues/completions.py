"""Completions: messages are deleted and others sent as one act, also where those go to other journals.

    COMPLETE: gone, outputs numbered ──▶ under way ──MoveIn, until the target's leader answers; MOVE_END──▶ settled

One record decides both. Its outputs then leave as numbered moves (`core/partition/partition_moves`), each once; those
for one partition keep the order of their completions. The act is atomic, not isolated: outputs appear one by one.

Which deliveries may complete: of a FIFO queue, and of one with DeliveryGuarantee=ExactlyOnce, only those that still
hold their messages; of others any, as long as the message is there. So the first completion wins.
"""

from __future__ import annotations

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OUTPUTS_MAX
from quaymaster.core.partition.partition_state import RESETS_SHIFT
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.partition.receipts import EXPIRED, holds, receipt_invalid
from quaymaster.core.partition.work.applied_moves import opened_moves
from quaymaster.core.partition.work.completion_records import (
    Completed,
    OutputPlace,
    RecordedOutput,
    apply_completed,
    begin_output,
    join_completion,
)
from quaymaster.core.partition.work.partition_transactions import own_delay
from quaymaster.core.queues.record_payloads import IS_OUTPUT, MOVE_HEAD, OWN_DELAY
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, CompletionDecided, Output
from quaymaster.core.values.commands.messages import Receipt
from quaymaster.core.values.commands.moves import MoveBegun, MovedMessage
from quaymaster.core.values.errors import Overloaded
from quaymaster.core.values.messages import encode_moved, prefix_bytes
from quaymaster.core.values.queues.partition_keys import partition_key, parts_of_key
from quaymaster.core.values.records import Record, RecordType

GONE = "The message was deleted or completed before, or has expired: nothing was sent."


def complete(partition: Partition, command: Complete, now_ms: int, proposal: Proposal) -> CompletionDecided:
    """Delete messages and let outputs leave, or find that it was done before, or why it cannot be done.

    Raises Overloaded with too many outputs under way.
    """
    deletions = [_completed(receipt) for receipt in command.receipts]
    if was_done(partition, deletions, command.digest, now_ms):
        return CompletionDecided(CompleteOutcome([None] * len(deletions), was_done=True))
    errors = [_why_not(partition, receipt, now_ms) for receipt in command.receipts]
    if any(errors):
        return CompletionDecided(CompleteOutcome(errors))
    moves = opened_moves(partition)
    if moves.outputs_under_way + len(command.outputs) > OUTPUTS_MAX:
        raise Overloaded(
            f"{moves.outputs_under_way} messages that completions sent have not arrived yet; "
            f"the limit is {OUTPUTS_MAX}."
        )
    offset = proposal.next_offset
    rows: list[tuple[OutputPlace, int, int, str, bytes]] = []
    last: dict[int, int] = {}
    for at, output in enumerate(command.outputs):
        target_key, journal_id = _place_of(partition, output)
        number = moves.next_number(target_key, proposal.epoch)
        place = OutputPlace(*parts_of_key(target_key), journal_id, number, output.key)
        begin_output(partition, place, offset, at)
        rows.append((place, output.delay_ms, output.flags, output.arn, output.payload))
        last[target_key] = number
    payload = join_completion(command.digest, deletions, rows)
    proposal.add(RecordType.COMPLETE, partition, now_ms, payload=payload)
    apply_completed(partition, command.digest, deletions, now_ms)
    begun = [MoveBegun(target_key, number) for target_key, number in last.items()]
    return CompletionDecided(CompleteOutcome(list(errors)), begun)


def was_done(partition: Partition, deletions: list[Completed], digest: int, now_ms: int) -> bool:
    """Return whether these deliveries finished their messages lately, by a completion with this digest."""
    settled = partition.settled
    return settled is not None and all(
        settled.find(deletion.sequence, deletion.delivery_count, deletion.resets, now_ms) == digest
        for deletion in deletions
    )


def _completed(receipt: Receipt) -> Completed:
    return Completed(receipt.sequence, receipt.delivery_count, receipt.epoch >> RESETS_SHIFT)


def _why_not(partition: Partition, receipt: Receipt, now_ms: int) -> Exception | None:
    """Return why a delivery cannot complete its message, None if it can."""
    sequence = receipt.sequence
    definition = partition.definition
    if not partition.is_live(sequence):
        return receipt_invalid(GONE)
    if definition.is_fifo or definition.is_exactly_once:
        return None if holds(partition, receipt, now_ms) else receipt_invalid(EXPIRED)
    # What is on its way to another queue may be there already.
    is_moving = sequence in partition.moving or partition.is_leaving(sequence)
    return receipt_invalid(GONE) if is_moving else None


def _place_of(source: Partition, output: Output) -> tuple[int, int]:
    """Return key and journal of the partition that an output goes to.

    That is the one which the table of who asked has for it. But while an earlier output of its key is on its way to an
    older partition, the table may be newer than that one's: then it must go there, too, and not arrive before it.
    """
    moves = source.moves
    chosen = partition_key(output.queue_id, output.partition), output.journal_id
    last = moves.last_of_group.get((output.queue_id, output.key)) if moves is not None else None
    if moves is None or last is None or last[0] >= chosen[0] or last[1] not in moves.out[last[0]].open:
        return chosen
    return last[0], moves.out[last[0]].journal_id


def output_to_move(source: Partition, number: int, output: RecordedOutput) -> MovedMessage:
    """Return an output as its target takes it, by the number it leaves with now."""
    cut = prefix_bytes(output.flags)
    payload = bytes(output.payload)
    wrapped = encode_moved(source.definition.queue_id, source.number, 0, None, None, payload[cut:], number)
    return MovedMessage(
        number, payload[:cut] + wrapped, output.flags, is_output=True, delay_ms=output.delay_ms
    )


def record_of_output(target: Partition, message: MovedMessage, now_ms: int) -> Record:
    """Return the record by which an output arrives: with the delay that a Send would have."""
    assert message.payload is not None, "an output is never withdrawn by its source"
    definition = target.definition
    asked = None if definition.is_fifo else own_delay(message.delay_ms, definition.delay_ms, now_ms)
    delay_ms = definition.delay_ms if asked is None else asked
    flags = message.flags | IS_OUTPUT | (0 if asked is None else OWN_DELAY)
    return Record(
        RecordType.MOVE,
        flags,
        definition.queue_id,
        target.number,
        target.next_sequence,
        now_ms,
        delay_ms,
        MOVE_HEAD.pack(now_ms, 0, 0, False) + message.payload,
    )

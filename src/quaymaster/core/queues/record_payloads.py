"""What records of queues have as payload, and what their flags mean. `core/queues/applied_queues` applies them.

All integers are little-endian:

    SEND               prefix · message (core/values/messages); flags HAS_* and OWN_DELAY; due_after: the delay
    MOVE               sent u64 · first receive u64 · delivery count u32 · task u8, then prefix · wrapper · message;
                       queue, partition and sequence are the target's, the source's are in the wrapper;
                       with IS_OUTPUT it arrived as a SEND does, with OWN_DELAY and due_after as there
    RECEIVE            [attempt 16 bytes, with HAS_ATTEMPT], then (sequence u64 · delivery count u32) each;
                       due_after: the visibility timeout, up to the slot's end
    CHANGE_VISIBILITY  delivery count u32 · receipt's epoch u64; due_after as in RECEIVE
    DELETE             sequence u64 each; flag BY_RECEIVE: a receive took them (AtMostOnce)
    EXPIRE             the same, for single ones; `sequence`: every message below it has expired
    PURGE              nothing; `sequence`: every message below it is gone
    QUEUE_SET          the definition (core/values/queues/queue_definitions), by whose table partitions begin
                       and are sealed;
                       flag IS_NEW: the journal did not have the queue;
                       with HAS_STARTS before it: count u16, then (partition u16 · start u64 · end u64) each
    QUEUE_DELETE       nothing
    MOVE_TASK          the task, MessagePack
    MOVE_OUT           target queue u64 · partition u16 · journal u64 · number u64 · task u8; with GOES_ON: its move to
                       another partition of the queue is over: partition u16 · number u64
    MOVE_WITHDRAWN     source queue u64 · partition u16 · settled below u64, then number u64 each;
                       with IS_DUPLICATE: outputs that are here already
    MOVE_END           target queue u64 · partition u16, then (number u64 · taken u8) each
    GROUP_RESET        nothing; `sequence`: all below is consumed, nothing from there on
    STAGE_BEGIN, STAGE, TRANSACTION_COMMIT, TRANSACTION_ABORT: see core/partition/work/partition_transactions
    CLAIM              see core/partition/work/applied_claims
    COMPLETE           see core/partition/work/completion_records

A message that came by a numbered move is a MOVE too, whose wrapper has the number (`core/partition/partition_moves`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.work.partition_transactions import entry_of_staged
from quaymaster.core.structures.committed_runs import Run
from quaymaster.core.structures.orders.index import IndexEntry
from quaymaster.core.values.commands.move_tasks import MoveTask
from quaymaster.core.values.messages import split_prefix
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    decode_queue_definition,
    encode_queue_definition,
)
from quaymaster.core.values.records import RecordRow, RecordType

OWN_DELAY = 8
"""Flag of a SEND whose delay is the message's own, not the queue's. The lower bits are `core/values/messages`'s."""
HAS_ATTEMPT = 1
"""Flag of a RECEIVE that was asked for with a ReceiveRequestAttemptId."""
IS_NEW = 1
"""Flag of a QUEUE_SET that brought a queue into the journal; without it, one that is there was changed."""
HAS_STARTS = 2
"""Flag of a QUEUE_SET of a new consumer group: it says where the group starts."""
BY_RECEIVE = 1
"""Flag of a DELETE by which a receive of a queue with AtMostOnce took its messages: no consumer deleted them."""
IS_DUPLICATE = 1
"""Flag of a MOVE_WITHDRAWN of messages that the target has already, by their deduplication ids."""
GOES_ON = 1
"""Flag of a MOVE_OUT of a message that was leaving already, for a partition that was sealed."""
IS_OUTPUT = 16
"""Flag of a MOVE of an output of a completion; the lower ones are those of a SEND."""
PREFIX_FLAGS = 7
PAIR = struct.Struct("<QI")
"""Sequence and delivery count, in a RECEIVE."""
CHANGE = struct.Struct("<IQ")
"""Delivery count and receipt's epoch, in a CHANGE_VISIBILITY."""
MOVE_HEAD = struct.Struct("<QQIB")
"""Sent, first receive, delivery count and whether a task moved it, in a MOVE."""
MOVE_HEAD_BYTES = MOVE_HEAD.size
MOVE_OUT = struct.Struct("<QHQQB")
"""Target's queue, partition and journal, number and whether a task moved it, in a MOVE_OUT."""
GONE_ON = struct.Struct("<HQ")
"""Partition and number of the move that is over, in a MOVE_OUT with GOES_ON."""
OTHER_END = struct.Struct("<QH")
"""Queue and partition of the other end, in a MOVE_WITHDRAWN or MOVE_END."""
SETTLED_BELOW = struct.Struct("<Q")
STARTS_COUNT = struct.Struct("<H")
START = struct.Struct("<HQQ")
"""Partition, first message that is not consumed, and end of those there are, in a QUEUE_SET."""
ENDED = struct.Struct("<QB")
"""Number and whether the target has taken the message, in a MOVE_END."""
_task_encoder = msgspec.msgpack.Encoder()
_task_decoder = msgspec.msgpack.Decoder(MoveTask)


def encode_task(task: MoveTask) -> bytes:
    """Return the payload of a MOVE_TASK record."""
    return _task_encoder.encode(task)


def decode_task(payload: bytes | memoryview) -> MoveTask:
    """Return the task of a MOVE_TASK record."""
    return _task_decoder.decode(payload)


def join_queue_set(definition: QueueDefinition, starts: Mapping[int, tuple[int, int]]) -> bytes:
    """Return the payload of a QUEUE_SET; with `starts` it has the flag HAS_STARTS."""
    encoded = encode_queue_definition(definition)
    if not starts:
        return encoded
    each = [START.pack(number, start, end) for number, (start, end) in starts.items()]
    return b"".join((STARTS_COUNT.pack(len(each)), *each, encoded))


def split_queue_set(
    flags: int, payload: bytes | memoryview
) -> tuple[dict[int, tuple[int, int]], QueueDefinition]:
    """Return starts and definition of a QUEUE_SET."""
    starts: dict[int, tuple[int, int]] = {}
    at = 0
    if flags & HAS_STARTS:
        (count,) = STARTS_COUNT.unpack_from(payload)
        at = STARTS_COUNT.size
        for _ in range(count):
            number, start, end = START.unpack_from(payload, at)
            starts[number] = start, end
            at += START.size
    return starts, decode_queue_definition(payload[at:])


def find_message(partition: Partition, row: RecordRow) -> tuple[int, Run | None]:
    """Return the sequence number of the message in a record, and its run if it was staged; 0: it has none."""
    if row.type != RecordType.STAGE:
        return row.sequence, None
    run = partition.staged.runs.find(row.sequence) if partition.staged is not None else None
    return (run.sequence, run) if run is not None else (0, None)


def entry_of_record(row: RecordRow, payload: bytes | memoryview, run: Run | None = None) -> IndexEntry:
    """Return what the index says of a record's message. `due_ms` is `sent_ms` plus the delay.

    `run`: that of a message that was staged.
    """
    if run is not None:
        own_delay_ms = row.due_after_ms if row.flags & OWN_DELAY else None
        return entry_of_staged(run, row.offset, split_prefix(row.flags, payload)[0], own_delay_ms)
    if row.type == RecordType.MOVE:
        sent_ms = int(MOVE_HEAD.unpack_from(payload)[0])
        group = split_prefix(row.flags, payload[MOVE_HEAD_BYTES:])[0]
        return IndexEntry(row.offset, sent_ms, sent_ms + row.due_after_ms, group)
    group = split_prefix(row.flags, payload)[0]
    return IndexEntry(row.offset, row.time_ms, row.time_ms + row.due_after_ms, group)

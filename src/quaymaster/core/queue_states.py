"""All queues of one journal: what is decided on a command, and how a record changes the state.

`decide` is the leader's: it judges a command, appends records to the proposal and applies them at once, so the
state runs ahead to the journal's end. `apply` is everybody's: it makes the same changes from a committed record,
in a replay or on a follower. Both end in the same `Partition.apply_*` methods.

Records and what their payloads hold, all integers little-endian:

    SEND               prefix · message (core/messages); flags HAS_* and OWN_DELAY; due_after: the delay
    MOVE               sent u64 · first receive u64 · delivery count u32 · task u8, then prefix · wrapper · message;
                       queue, partition and sequence are the target's, the source's are in the wrapper
    RECEIVE            [attempt 16 bytes, with HAS_ATTEMPT], then (sequence u64 · delivery count u32) each;
                       due_after: the visibility timeout, up to the slot's end
    CHANGE_VISIBILITY  delivery count u32 · receipt's epoch u64; due_after as in RECEIVE
    DELETE             sequence u64 each
    EXPIRE             the same, for single ones; `sequence`: every message below it has expired
    PURGE              nothing; `sequence`: every message below it is gone
    QUEUE_SET          the definition (core/queue_definitions); flag IS_NEW: the journal did not have the queue
    QUEUE_DELETE       nothing
    MOVE_TASK          the task, MessagePack
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import msgspec

from quaymaster.core.commands import (
    RECEIPT_HANDLE_PLACEHOLDER,
    CancelMoveTask,
    ChangeVisibility,
    Command,
    CountMessages,
    DeadLetter,
    Decided,
    Delete,
    DeleteQueue,
    Done,
    Duplicate,
    EntriesOutcome,
    ExpireMessages,
    FinishMoveTask,
    InternalCommand,
    ListMoveTasks,
    MoveMessage,
    MoveTask,
    MoveTasksOutcome,
    Peek,
    PeekedOffsets,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
    SendResult,
    SentOutcome,
    SetQueue,
    StartMoveTask,
    TakeForMove,
    Taken,
    TakenOutcome,
)
from quaymaster.core.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueDoesNotExist,
    ResourceNotFound,
)
from quaymaster.core.index import ChunkKeeper, IndexEntry
from quaymaster.core.messages import decode_moved, encode_moved, prefix_bytes, split_payload
from quaymaster.core.partition import (
    IN_FLIGHT_MAX,
    VISIBILITY_TIMEOUT_MAX_MS,
    Partition,
)
from quaymaster.core.queue_definitions import (
    Durability,
    QueueDefinition,
    decode_queue_definition,
    encode_queue_definition,
    parse_queue_arn,
)
from quaymaster.core.records import Record, RecordType, Row
from quaymaster.core.timers import round_up_to_slot_ms

OWN_DELAY = 8
"""Flag of a SEND whose delay is the message's own, not the queue's. The lower bits are `core/messages`'s."""

HAS_ATTEMPT = 1
"""Flag of a RECEIVE that was asked for with a ReceiveRequestAttemptId."""

IS_NEW = 1
"""Flag of a QUEUE_SET that brought a queue into the journal; without it, one that is there was changed."""

PREFIX_FLAGS = 7
DEAD_LETTERS_PER_RECEIVE_MAX = 100
EXPIRED_PER_SWEEP_MAX = 1_000
ACTIVE_TASKS_MAX = 100

_PAIR = struct.Struct("<QI")
_CHANGE = struct.Struct("<IQ")
_MOVE_HEAD = struct.Struct("<QQIB")
MOVE_HEAD_BYTES = _MOVE_HEAD.size

_SEND = int(RecordType.SEND)
_RECEIVE = int(RecordType.RECEIVE)

_task_encoder = msgspec.msgpack.Encoder()
_task_decoder = msgspec.msgpack.Decoder(MoveTask)


class Wait(IntEnum):
    """What a reply waits for: nothing, `write()` on a majority, or commit (fsync on a majority)."""

    NOTHING = 0
    RECEIVED = 1
    COMMIT = 2


_WAIT_OF_DURABILITY = {
    Durability.MEMORY: Wait.NOTHING,
    Durability.ASYNC: Wait.RECEIVED,
    Durability.SYNC: Wait.COMMIT,
}


class Proposal:
    """The batch being formed: its records, and which partitions they give messages to."""

    __slots__ = ("awake", "base_offset", "epoch", "records", "sent_to")

    def __init__(self, base_offset: int, epoch: int) -> None:
        self.base_offset = base_offset
        self.epoch = epoch
        self.records: list[Record] = []
        self.sent_to: dict[Partition, int] = {}
        self.awake: set[Partition] = set()

    @property
    def next_offset(self) -> int:
        """The offset the next record gets."""
        return self.base_offset + len(self.records)


def partition_key(queue_id: int, number: int) -> int:
    """Return the key of a partition among those of a journal."""
    return queue_id << 16 | number


class QueueStates:
    """The queues of one journal and their partitions."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        retry_ids_max: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self._keeper = keeper
        self.retry_window_ms = retry_window_ms
        self.retry_ids_max = retry_ids_max
        self._in_flight_max = in_flight_max
        self.definitions: dict[int, QueueDefinition] = {}
        self.partitions: dict[int, Partition] = {}
        self._ids_by_name: dict[tuple[str, str], int] = {}
        self.removed: set[int] = set()
        self.messages_gone = 0
        """How many messages were deleted, expired or moved away since this was made; only grows."""
        self.messages_moved = 0
        self.messages_expired = 0
        self.expiry_is_held = False
        """Set while the clock may be wrong: no message expires."""
        self._decide: dict[type, Callable[[Any, int, Proposal], tuple[Decided, Wait]]] = {
            Send: self._send,
            Receive: self._receive,
            Delete: self._delete,
            ChangeVisibility: self._change_visibility,
            Purge: self._purge,
            SetQueue: self._set_queue,
            DeleteQueue: self._delete_queue,
            CountMessages: self._count,
            Peek: self._peek,
            StartMoveTask: self._start_task,
            CancelMoveTask: self._cancel_task,
            ListMoveTasks: self._list_tasks,
            ExpireMessages: self._expire,
            MoveMessage: self._move,
            TakeForMove: self._take_for_move,
            FinishMoveTask: self._finish_task,
        }
        self._apply: dict[int, Callable[[Row, bytes, int], None]] = {
            RecordType.BARRIER: self._apply_nothing,
            RecordType.SEND: self._apply_send,
            RecordType.RECEIVE: self._apply_receive,
            RecordType.DELETE: self._apply_delete,
            RecordType.CHANGE_VISIBILITY: self._apply_change_visibility,
            RecordType.MOVE: self._apply_move,
            RecordType.PURGE: self._apply_purge,
            RecordType.EXPIRE: self._apply_expire,
            RecordType.QUEUE_SET: self._apply_queue_set,
            RecordType.QUEUE_DELETE: self._apply_queue_delete,
            RecordType.MOVE_TASK: self._apply_task,
        }

    # For everybody

    def partition(self, queue_id: int, number: int) -> Partition:
        """Return a partition, or raise QueueDoesNotExist."""
        found = self.partitions.get(queue_id << 16 | number)
        if found is None:
            raise QueueDoesNotExist()
        return found

    def partitions_of(self, queue_id: int) -> list[Partition]:
        """Return the partitions of a queue, or raise QueueDoesNotExist."""
        definition = self.definitions.get(queue_id)
        if definition is None:
            raise QueueDoesNotExist()
        return [self.partition(queue_id, slice_.number) for slice_ in definition.partitions]

    def queue_of_arn(self, arn: str) -> int | None:
        """Return the id of the queue with this ARN, None when the journal has none."""
        parsed = parse_queue_arn(arn)
        return self._ids_by_name.get((parsed[1], parsed[2])) if parsed else None

    def is_live(self, row: Row) -> bool:
        """Return whether a record still has a message that somebody may ask for. Compaction keeps these."""
        if row.type != RecordType.SEND and row.type != RecordType.MOVE:
            return False
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        return partition is not None and partition.is_live(row.sequence)

    def commit_all(self) -> None:
        """Take every message there is as committed (a leader that begins to serve)."""
        for partition in self.partitions.values():
            partition.committed = partition.next_sequence

    def state_hash(self, now_ms: int) -> dict[int, int]:
        """Return a hash of each partition's state as of `now_ms`."""
        return {key: partition.state_hash(now_ms) for key, partition in self.partitions.items()}

    # Deciding

    def decide(
        self, command: Command | InternalCommand, now_ms: int, proposal: Proposal
    ) -> tuple[Decided, Wait]:
        """Judge a command: append its records to the proposal, apply them, return outcome and what it waits for.

        Raises a `CallerError` when it is the caller's mistake; nothing is changed then.
        """
        return self._decide[type(command)](command, now_ms, proposal)

    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        queue_id, number = command.queue_id, command.partition
        partition = self.partition(queue_id, number)
        definition = partition.definition
        queue_delay_ms = definition.delay_ms
        is_fifo = definition.is_fifo
        results: list[SendResult | Duplicate] = []
        records = proposal.records
        offset = proposal.base_offset + len(records)
        stored = False
        duplicate = False
        for message in command.messages:
            dedup, retry = message.dedup, message.retry
            if dedup is not None or (retry is not None and message.may_be_retry):
                found = partition.find_duplicate(dedup, retry if message.may_be_retry else None, now_ms)
                if found is not None:
                    results.append(Duplicate(found))
                    duplicate = True
                    continue
            delay_ms = message.delay_ms
            flags = message.flags
            own_delay = False
            if delay_ms < 0 or is_fifo:
                delay_ms = queue_delay_ms
            elif delay_ms or queue_delay_ms:
                own_delay = True
                flags |= OWN_DELAY
                delay_ms = round_up_to_slot_ms(now_ms + delay_ms) - now_ms if delay_ms else 0
            sequence = partition.index.next_sequence
            records.append(
                Record(_SEND, flags, queue_id, number, sequence, now_ms, delay_ms, message.payload)
            )
            partition.apply_send(sequence, offset, now_ms, delay_ms, own_delay, message.group, dedup, retry)
            offset += 1
            stored = True
            results.append(SendResult(sequence, message.message_id))
        if stored:
            proposal.sent_to[partition] = partition.index.next_sequence
        # What a duplicate was told is stored must be so, whatever this queue's durability.
        wait = Wait.COMMIT if duplicate else _WAIT_OF_DURABILITY[definition.durability]
        return SentOutcome(results), wait

    def _receive(self, command: Receive, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        definition = partition.definition
        is_fifo = definition.is_fifo
        if partition.advance(now_ms):
            proposal.awake.add(partition)
        timeout_ms = command.visibility_timeout_ms
        if timeout_ms < 0:
            timeout_ms = definition.visibility_timeout_ms
        if command.attempt is not None and is_fifo:
            earlier = partition.find_attempt(command.attempt, now_ms)
            if earlier is not None:
                proposal.awake.add(
                    partition
                )  # the messages may come back sooner than a parked receive expects
                return self._hand_out(
                    partition, earlier.messages, [], now_ms, timeout_ms, command.attempt, proposal, False
                )
        room = self._in_flight_max - len(partition.in_flight)
        if room <= 0:
            if not is_fifo and not command.wait_ms:
                raise OverLimit.in_flight(self._in_flight_max)
            return TakenOutcome(proposal.epoch, [], [], False), Wait.NOTHING
        count_max = min(command.count_max, room)
        taken, dead_letters, unfinished = self._take(partition, count_max, now_ms, proposal)
        if not taken:
            return TakenOutcome(proposal.epoch, [], dead_letters, unfinished), Wait.NOTHING
        attempt = command.attempt if is_fifo else None
        return self._hand_out(
            partition, taken, dead_letters, now_ms, timeout_ms, attempt, proposal, unfinished
        )

    def _take(
        self, partition: Partition, count_max: int, now_ms: int, proposal: Proposal
    ) -> tuple[list[tuple[int, int]], list[DeadLetter], bool]:
        """Take visible messages; set expired ones and dead letters aside."""
        taken: list[tuple[int, int]] = []
        expired: list[int] = []
        dead_letters: list[DeadLetter] = []
        returned = partition.returned
        definition = partition.definition
        policy = definition.redrive_policy
        target_id = self.queue_of_arn(policy.target_arn) if policy else None
        oldest_ms = self._oldest_ms(partition, now_ms)
        index = partition.index
        may_have_expired = partition.may_have_expired(oldest_ms)
        dropped = 0
        is_bounded = False
        while len(taken) < count_max:
            found = partition.take_visible(count_max - len(taken), now_ms)
            if not found:
                if not expired:
                    break
                # What expired may be all that kept its FIFO group from giving more.
                dropped += len(expired)
                self._drop_expired(partition, expired, now_ms, proposal)
                expired = []
                continue
            for sequence in found:
                if may_have_expired and index.sent_ms(sequence) <= oldest_ms:
                    partition.moving[sequence] = 0
                    expired.append(sequence)
                    continue
                before = returned.get(sequence)
                if before is None:
                    taken.append((sequence, 1))
                    continue
                if (
                    policy is not None
                    and target_id is not None
                    and before.delivery_count - before.arrived_count >= policy.max_receive_count
                ):
                    partition.moving[sequence] = target_id
                    dead_letters.append(
                        DeadLetter(
                            definition.queue_id,
                            partition.number,
                            sequence,
                            index.offset_and_sent_ms(sequence)[0],
                            target_id,
                        )
                    )
                    continue
                taken.append((sequence, before.delivery_count + 1))
            if (
                len(dead_letters) >= DEAD_LETTERS_PER_RECEIVE_MAX
                or dropped + len(expired) >= EXPIRED_PER_SWEEP_MAX
            ):
                is_bounded = True
                break
        unfinished = len(taken) < count_max and (partition.order.unfinished or is_bounded)
        self._drop_expired(partition, expired, now_ms, proposal)
        return taken, dead_letters, unfinished

    def _oldest_ms(self, partition: Partition, now_ms: int) -> int:
        """Return the send time at or before which a message has expired."""
        return -1 if self.expiry_is_held else now_ms - partition.definition.retention_ms

    def _drop_expired(
        self, partition: Partition, expired: list[int], now_ms: int, proposal: Proposal
    ) -> None:
        if expired:
            payload = array("Q", expired).tobytes()
            self._propose(proposal, RecordType.EXPIRE, partition, now_ms, payload=payload)
            partition.apply_delete(expired, now_ms)
            self.messages_gone += len(expired)
            self.messages_expired += len(expired)

    def _hand_out(
        self,
        partition: Partition,
        messages: list[tuple[int, int]],
        dead_letters: list[DeadLetter],
        now_ms: int,
        timeout_ms: int,
        attempt: bytes | None,
        proposal: Proposal,
        unfinished: bool,
    ) -> tuple[Decided, Wait]:
        if timeout_ms:
            timeout_ms = round_up_to_slot_ms(now_ms + timeout_ms) - now_ms
        pack = _PAIR.pack
        payload = b"".join([pack(sequence, count) for sequence, count in messages])
        flags = 0
        if attempt is not None:
            flags, payload = HAS_ATTEMPT, attempt + payload
        definition = partition.definition
        proposal.records.append(
            Record(_RECEIVE, flags, definition.queue_id, partition.number, 0, now_ms, timeout_ms, payload)
        )
        returned, in_flight, find = (
            partition.returned,
            partition.in_flight,
            partition.index.offset_and_sent_ms,
        )
        taken: list[Taken] = []
        for sequence, count in messages:
            offset, sent_ms = find(sequence)
            # In flight already: the receive of an attempt is repeated.
            before = returned.get(sequence) or in_flight.get(sequence)
            first_ms = before.first_receive_ms or now_ms if before else now_ms
            taken.append(Taken(sequence, count, first_ms, sent_ms, offset))
        partition.apply_receive(messages, now_ms, timeout_ms, proposal.epoch, attempt, taken=True)
        wait = Wait.COMMIT if definition.is_fifo else Wait.NOTHING
        return TakenOutcome(proposal.epoch, taken, dead_letters, unfinished), wait

    def _delete(self, command: Delete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        is_fifo = partition.definition.is_fifo
        if is_fifo:
            partition.advance(now_ms)
        errors: list[Exception | None] = []
        sequences: list[int] = []
        for receipt in command.receipts:
            sequence = receipt.sequence
            error: Exception | None = None
            if partition.is_live(sequence):
                if is_fifo and not _holds(partition, receipt):
                    error = _receipt_invalid("The receipt handle has expired.")
                elif sequence not in sequences:
                    sequences.append(sequence)
            errors.append(error)
        if sequences:
            self._propose(
                proposal, RecordType.DELETE, partition, now_ms, payload=array("Q", sequences).tobytes()
            )
            was_full = len(partition.in_flight) >= self._in_flight_max
            partition.apply_delete(sequences, now_ms)
            self.messages_gone += len(sequences)
            if is_fifo or was_full:
                proposal.awake.add(partition)
        return EntriesOutcome(errors), Wait.COMMIT

    def _change_visibility(
        self, command: ChangeVisibility, now_ms: int, proposal: Proposal
    ) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        partition.advance(now_ms)
        errors: list[Exception | None] = []
        for receipt, timeout_ms in zip(command.receipts, command.visibility_timeouts_ms, strict=True):
            error = self._visibility_error(partition, receipt, timeout_ms, now_ms)
            errors.append(error)
            if error is not None:
                continue
            if timeout_ms:
                timeout_ms = round_up_to_slot_ms(now_ms + timeout_ms) - now_ms
            self._propose(
                proposal,
                RecordType.CHANGE_VISIBILITY,
                partition,
                now_ms,
                sequence=receipt.sequence,
                due_after_ms=timeout_ms,
                payload=_CHANGE.pack(receipt.delivery_count, receipt.epoch),
            )
            partition.apply_change_visibility(
                receipt.sequence, now_ms, timeout_ms, receipt.delivery_count, receipt.epoch, changed=True
            )
        proposal.awake.add(partition)
        return EntriesOutcome(errors), Wait.COMMIT

    def _visibility_error(
        self, partition: Partition, receipt: Receipt, timeout_ms: int, now_ms: int
    ) -> Exception | None:
        sequence = receipt.sequence
        if (
            not partition.is_live(sequence)
            or sequence in partition.moving
            or (partition.definition.is_fifo and not _holds(partition, receipt))
        ):
            return _receipt_invalid(
                "Message does not exist or is not available for visibility timeout change."
            )
        row = partition.in_flight.get(sequence)
        if row is None:
            if len(partition.in_flight) >= self._in_flight_max and timeout_ms:
                return OverLimit.in_flight(self._in_flight_max)
            return None
        elapsed_ms = (now_ms - row.received_ms) // 1000 * 1000
        if timeout_ms and elapsed_ms + timeout_ms > VISIBILITY_TIMEOUT_MAX_MS:
            return InvalidParameterValue(
                f"Value {timeout_ms // 1000} for parameter VisibilityTimeout is invalid. Reason: Total "
                f"VisibilityTimeout for the message is beyond the limit [{VISIBILITY_TIMEOUT_MAX_MS // 1000} seconds]"
            )
        return None

    def _purge(self, command: Purge, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        for partition in self.partitions_of(command.queue_id):
            stop = partition.next_sequence
            self._propose(proposal, RecordType.PURGE, partition, now_ms, sequence=stop)
            self.messages_gone += partition.alive
            partition.apply_purge(stop)
        return Done(), Wait.COMMIT

    def _expire(self, command: ExpireMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        if self.expiry_is_held:
            return Done(), Wait.NOTHING
        stop, singles = partition.find_expired(now_ms, EXPIRED_PER_SWEEP_MAX)
        if stop > partition.head or singles:
            payload = array("Q", singles).tobytes()
            self._propose(proposal, RecordType.EXPIRE, partition, now_ms, sequence=stop, payload=payload)
            before = partition.alive
            partition.apply_delete_below(stop)
            partition.apply_delete(singles, now_ms)
            self.messages_gone += before - partition.alive
            self.messages_expired += before - partition.alive
            proposal.awake.add(partition)
        return Done(), Wait.NOTHING

    def _set_queue(self, command: SetQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        definition = command.definition
        known = self.definitions.get(definition.queue_id)
        if known is None or known.revision < definition.revision:
            proposal.records.append(
                Record(
                    RecordType.QUEUE_SET,
                    IS_NEW if known is None else 0,
                    definition.queue_id,
                    0,
                    0,
                    now_ms,
                    0,
                    encode_queue_definition(definition),
                )
            )
            self._know(definition, now_ms, proposal.next_offset)
            proposal.awake.update(self.partitions_of(definition.queue_id))
        return Done(), Wait.COMMIT

    def _delete_queue(self, command: DeleteQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        if command.queue_id in self.definitions:
            proposal.records.append(
                Record(RecordType.QUEUE_DELETE, 0, command.queue_id, 0, 0, now_ms, 0, b"")
            )
            proposal.awake.update(self.partitions_of(command.queue_id))
            self._forget(command.queue_id)
        return Done(), Wait.COMMIT

    def _count(self, command: CountMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        each = [partition.counts(now_ms) for partition in self.partitions_of(command.queue_id)]
        total = QueueCounts(
            visible=sum(counts.visible for counts in each),
            in_flight=sum(counts.in_flight for counts in each),
            delayed=sum(counts.delayed for counts in each),
            oldest_sent_ms=min(
                (counts.oldest_sent_ms for counts in each if counts.oldest_sent_ms), default=0
            ),
            noisy_groups=sum(counts.noisy_groups for counts in each),
        )
        return total, Wait.NOTHING

    def _peek(self, command: Peek, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        partition.advance(now_ms)
        messages: list[Taken] = []
        states: list[str] = []
        sequence = max(command.from_sequence, partition.head)
        stop = min(partition.committed, sequence + 100 * command.count_max)
        while sequence < stop and len(messages) < command.count_max:
            if partition.is_live(sequence):
                entry = partition.index.entry(sequence)
                row = partition.in_flight.get(sequence) or partition.returned.get(sequence)
                messages.append(
                    Taken(
                        sequence,
                        row.delivery_count if row else 0,
                        row.first_receive_ms if row else 0,
                        entry.sent_ms,
                        entry.offset,
                    )
                )
                states.append(partition.state_of(sequence, now_ms))
            sequence += 1
        return PeekedOffsets(
            messages, states, sequence if sequence < partition.committed else 0
        ), Wait.NOTHING

    # Moves

    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        source = self.partitions.get(partition_key(command.queue_id, command.partition))
        sequence = command.sequence
        if source is None or sequence not in source.moving:
            return Done(), Wait.NOTHING
        target = self.partitions.get(partition_key(command.target_queue_id, 0))
        is_over = command.task_id is not None and not any(
            task.task_id == command.task_id and task.status == "RUNNING" for task in source.tasks
        )
        if target is None or command.payload is None or is_over:
            source.put_back(sequence, now_ms)
            return Done(), Wait.NOTHING
        payload = command.payload
        if command.record_type == RecordType.MOVE:
            payload = payload[MOVE_HEAD_BYTES:]
        prefix_flags = command.flags & PREFIX_FLAGS
        cut = prefix_bytes(prefix_flags)
        group = split_payload(prefix_flags, payload)[0]
        wrapped = encode_moved(
            command.queue_id,
            command.partition,
            sequence,
            command.new_message_id,
            command.source_arn,
            payload[cut:],
        )
        row = source.returned.get(sequence)
        is_new = command.new_message_id is not None
        keeps_age = not is_new and not target.definition.is_fifo
        sent_ms = source.index.sent_ms(sequence) if keeps_age else now_ms
        count = row.delivery_count if row and not is_new else 0
        first_ms = row.first_receive_ms if row and not is_new else 0
        head = _MOVE_HEAD.pack(sent_ms, first_ms, count, command.task_id is not None)
        target_sequence = target.next_sequence
        proposal.records.append(
            Record(
                RecordType.MOVE,
                prefix_flags,
                command.target_queue_id,
                target.number,
                target_sequence,
                now_ms,
                0,
                b"".join((head, payload[:cut], wrapped)),
            )
        )
        offset = proposal.next_offset - 1
        source.apply_delete((sequence,), now_ms)
        target.apply_move_in(target_sequence, offset, now_ms, sent_ms, count, first_ms, group)
        self.messages_gone += 1
        self.messages_moved += 1
        if command.task_id is not None:
            self._count_moved(source)
        proposal.sent_to[target] = target.next_sequence
        return Done(), Wait.COMMIT

    def _take_for_move(self, command: TakeForMove, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partitions_of(command.queue_id)[0]
        partition.advance(now_ms)
        oldest_ms = self._oldest_ms(partition, now_ms)
        taken: list[Taken] = []
        expired: list[int] = []
        for sequence in partition.take_visible(command.count_max, now_ms):
            partition.moving[sequence] = 0
            offset, sent_ms = partition.index.offset_and_sent_ms(sequence)
            if sent_ms <= oldest_ms:
                expired.append(sequence)
            else:
                taken.append(Taken(sequence, 0, 0, sent_ms, offset))
        self._drop_expired(partition, expired, now_ms, proposal)
        unfinished = not taken and (bool(expired) or partition.order.unfinished)
        return TakenOutcome(proposal.epoch, taken, [], unfinished), Wait.NOTHING

    def _start_task(self, command: StartMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partitions_of(command.queue_id)[0]
        if any(task.status in ("RUNNING", "CANCELLING") for task in partition.tasks):
            raise InvalidParameterValue(
                "There is already a task running. Only one active task is allowed for a source queue "
                "arn at a given time."
            )
        account_id = partition.definition.account_id
        if self._running_tasks(account_id) >= ACTIVE_TASKS_MAX:
            raise OverLimit(f"An account may have {ACTIVE_TASKS_MAX} active message move tasks.")
        counts = partition.counts(now_ms)
        task = MoveTask(
            task_id=command.task_id,
            source_arn=command.source_arn,
            target_arn=command.target_arn,
            target_queue_id=command.target_queue_id,
            rate_per_s=command.rate_per_s,
            status="RUNNING",
            started_ms=now_ms,
            to_move=counts.visible,
        )
        self._propose_task(proposal, partition, task, now_ms)
        return MoveTasksOutcome([msgspec.structs.replace(task)]), Wait.COMMIT

    def _running_tasks(self, account_id: str) -> int:
        return sum(
            any(task.status == "RUNNING" for task in partition.tasks)
            for partition in self.partitions.values()
            if partition.tasks and partition.definition.account_id == account_id
        )

    def _cancel_task(self, command: CancelMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partitions_of(command.queue_id)[0]
        for task in partition.tasks:
            if task.task_id == command.task_id:
                if task.status != "RUNNING":
                    raise InvalidParameterValue("Only active tasks can be cancelled.")
                cancelled = msgspec.structs.replace(task, status="CANCELLED")
                self._propose_task(proposal, partition, cancelled, now_ms)
                return MoveTasksOutcome([cancelled]), Wait.COMMIT
        raise ResourceNotFound("Task does not exist.")

    def _finish_task(self, command: FinishMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partitions_of(command.queue_id)[0]
        for task in partition.tasks:
            if task.task_id == command.task_id and task.status == "RUNNING":
                status = "COMPLETED" if command.failure is None else "FAILED"
                ended = msgspec.structs.replace(task, status=status, failure=command.failure)
                self._propose_task(proposal, partition, ended, now_ms)
        return Done(), Wait.COMMIT

    def _list_tasks(self, command: ListMoveTasks, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partitions_of(command.queue_id)[0]
        return MoveTasksOutcome(
            [msgspec.structs.replace(task) for task in reversed(partition.tasks)]
        ), Wait.NOTHING

    def _propose_task(self, proposal: Proposal, partition: Partition, task: MoveTask, now_ms: int) -> None:
        self._propose(proposal, RecordType.MOVE_TASK, partition, now_ms, payload=_task_encoder.encode(task))
        partition.apply_task(task)

    @staticmethod
    def _count_moved(source: Partition) -> None:
        for task in source.tasks:
            if task.status == "RUNNING":
                task.moved += 1

    # Applying

    def apply(self, row: Row, payload: bytes, epoch: int) -> None:
        """Change the state by one committed record. Idempotent: what a partition has applied it skips."""
        self._apply[row.type](row, payload, epoch)

    def _to_apply(self, row: Row) -> Partition | None:
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        if partition is None or row.offset < partition.applied:
            return None
        partition.applied = row.offset + 1
        partition.advance(row.time_ms)
        return partition

    def _apply_nothing(self, row: Row, payload: bytes, epoch: int) -> None:
        pass

    def _apply_send(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            group, dedup, retry, _ = split_payload(row.flags, payload)
            partition.apply_send(
                row.sequence,
                row.offset,
                row.time_ms,
                row.due_after_ms,
                bool(row.flags & OWN_DELAY),
                group,
                dedup,
                retry,
            )

    def _apply_receive(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            attempt = payload[:16] if row.flags & HAS_ATTEMPT else None
            messages = list(_PAIR.iter_unpack(payload[16:] if attempt is not None else payload))
            partition.apply_receive(messages, row.time_ms, row.due_after_ms, epoch, attempt, taken=False)

    def _apply_delete(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            partition.apply_delete(array("Q", payload), row.time_ms)

    def _apply_change_visibility(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            delivery_count, receipt_epoch = _CHANGE.unpack(payload)
            partition.apply_change_visibility(
                row.sequence, row.time_ms, row.due_after_ms, delivery_count, receipt_epoch, changed=True
            )

    def _apply_move(self, row: Row, payload: bytes, epoch: int) -> None:
        sent_ms, first_ms, count, is_task = _MOVE_HEAD.unpack_from(payload)
        group, _, _, wrapped = split_payload(row.flags, payload[MOVE_HEAD_BYTES:])
        moved = decode_moved(wrapped)
        source = self.partitions.get(partition_key(moved.source_queue_id, moved.source_partition))
        target = self.partitions.get(row.queue_id << 16 | row.partition)
        # Either may be in its snapshot already, or gone; both may be the same.
        is_new_to_source = source is not None and row.offset >= source.applied
        is_new_to_target = target is not None and row.offset >= target.applied
        if source is not None and is_new_to_source:
            source.applied = row.offset + 1
            source.advance(row.time_ms)
            source.apply_delete((moved.source_sequence,), row.time_ms)
            if is_task:
                self._count_moved(source)
        if target is not None and is_new_to_target:
            target.applied = row.offset + 1
            target.advance(row.time_ms)
            target.apply_move_in(row.sequence, row.offset, row.time_ms, sent_ms, count, first_ms, group)

    def _apply_purge(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            partition.apply_purge(row.sequence)

    def _apply_expire(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            partition.apply_delete_below(row.sequence)
            partition.apply_delete(array("Q", payload), row.time_ms)

    def _apply_queue_set(self, row: Row, payload: bytes, epoch: int) -> None:
        definition = decode_queue_definition(payload)
        known = self.definitions.get(definition.queue_id)
        # Not new and not known: it was deleted further on, and the snapshot is of then. Nor are its messages known.
        if row.flags & IS_NEW if known is None else known.revision < definition.revision:
            self._know(definition, row.time_ms, row.offset + 1)
        elif known is not None:
            # A snapshot may be ahead of the replay, which has just seen an older queue of this name come and go.
            self._ids_by_name[known.account_id, known.name] = known.queue_id

    def _apply_queue_delete(self, row: Row, payload: bytes, epoch: int) -> None:
        if row.queue_id in self.definitions:
            self._forget(row.queue_id)

    def _apply_task(self, row: Row, payload: bytes, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            partition.apply_task(_task_decoder.decode(payload))

    # Queues

    def load(self, definition: QueueDefinition, partitions: list[Partition]) -> None:
        """Take a queue from a snapshot."""
        self.definitions[definition.queue_id] = definition
        self._ids_by_name[definition.account_id, definition.name] = definition.queue_id
        for partition in partitions:
            self.partitions[partition_key(definition.queue_id, partition.number)] = partition

    def _know(self, definition: QueueDefinition, time_ms: int, applied: int) -> None:
        queue_id = definition.queue_id
        self.definitions[queue_id] = definition
        self._ids_by_name[definition.account_id, definition.name] = queue_id
        for slice_ in definition.partitions:
            key = partition_key(queue_id, slice_.number)
            partition = self.partitions.get(key)
            if partition is None:
                partition = self.partitions[key] = Partition(
                    definition,
                    slice_.number,
                    self._keeper,
                    retry_window_ms=self.retry_window_ms,
                    retry_ids_max=self.retry_ids_max,
                )
                partition.applied = applied
            else:
                partition.apply_definition(definition, time_ms)

    def _forget(self, queue_id: int) -> None:
        definition = self.definitions.pop(queue_id)
        name = definition.account_id, definition.name
        if self._ids_by_name.get(name) == queue_id:
            del self._ids_by_name[name]
        for slice_ in definition.partitions:
            key = partition_key(queue_id, slice_.number)
            partition = self.partitions.pop(key)
            self.messages_gone += partition.alive
            partition.index.clear()
            self.removed.add(key)

    # Helpers

    @staticmethod
    def _propose(
        proposal: Proposal,
        record_type: RecordType,
        partition: Partition,
        now_ms: int,
        *,
        sequence: int = 0,
        due_after_ms: int = 0,
        payload: bytes = b"",
    ) -> None:
        proposal.records.append(
            Record(
                record_type,
                0,
                partition.definition.queue_id,
                partition.number,
                sequence,
                now_ms,
                due_after_ms,
                payload,
            )
        )

    def dirty_partitions(self) -> Iterator[tuple[int, Partition]]:
        """Yield key and partition of each that changed since it was last put into a snapshot."""
        for key, partition in list(self.partitions.items()):
            if partition.dirty:
                yield key, partition


def entry_of_record(row: Row, payload: bytes) -> IndexEntry:
    """Return what the index says of a SEND or MOVE record. `due_ms` is `sent_ms` plus the delay."""
    if row.type == RecordType.MOVE:
        sent_ms = int(_MOVE_HEAD.unpack_from(payload)[0])
        group = split_payload(row.flags & PREFIX_FLAGS, payload[MOVE_HEAD_BYTES:])[0]
        return IndexEntry(row.offset, sent_ms, sent_ms, group)
    group = split_payload(row.flags & PREFIX_FLAGS, payload)[0]
    return IndexEntry(row.offset, row.time_ms, row.time_ms + row.due_after_ms, group)


def _holds(partition: Partition, receipt: Receipt) -> bool:
    row = partition.in_flight.get(receipt.sequence)
    return row is not None and row.epoch == receipt.epoch and row.delivery_count == receipt.delivery_count


def _receipt_invalid(reason: str) -> InvalidParameterValue:
    return InvalidParameterValue(
        f"Value {RECEIPT_HANDLE_PLACEHOLDER} for parameter ReceiptHandle is invalid. Reason: {reason}"
    )

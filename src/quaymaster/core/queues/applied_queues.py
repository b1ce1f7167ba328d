"""All queues of one journal, as its records make them: what a replay, a follower and a leader have in common.

Records and what their payloads hold, all integers little-endian:

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

What a SEND, commit, EXPIRE or PURGE does to a log-retained queue, its consumer groups follow
(`core/partition/partition`). A new group starts where the leader said, and has the messages up to an end: others it is
told of. A QUEUE_SET of the log is one of its groups, too; a QUEUE_DELETE takes them along.

A message that came by a numbered move is a MOVE too, whose wrapper has the number (`core/partition/partition_moves`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from quaymaster.core.partition.consumer_groups import begin_group, follow, follow_send, reset_group
from quaymaster.core.partition.open_stages import OpenStages
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OpenMove
from quaymaster.core.partition.running_tasks import RunningTasks
from quaymaster.core.partition.state_hash import partition_hash
from quaymaster.core.partition.touched_partitions import TouchedPartitions
from quaymaster.core.partition.work.applied_claims import (
    ClaimStep,
    apply_broken,
    apply_forgotten,
    apply_grown,
    apply_held,
    apply_settled,
    opened_consumer,
    split_claim,
)
from quaymaster.core.partition.work.applied_moves import (
    apply_move_end,
    apply_move_out,
    apply_move_withdrawn,
    opened_moves,
)
from quaymaster.core.partition.work.completion_records import apply_completion, split_completion
from quaymaster.core.partition.work.partition_transactions import (
    ONE_DELAY,
    Committed,
    apply_commit,
    apply_stage_begin,
    follow_commit,
    opened_staged,
    split_commit,
    split_transaction,
)
from quaymaster.core.partition.work.slices import Slices, UnfinishedWork, Work
from quaymaster.core.queues.record_payloads import (
    BY_RECEIVE,
    CHANGE,
    ENDED,
    GOES_ON,
    GONE_ON,
    HAS_ATTEMPT,
    IS_DUPLICATE,
    IS_NEW,
    IS_OUTPUT,
    MOVE_HEAD,
    MOVE_HEAD_BYTES,
    MOVE_OUT,
    OTHER_END,
    OWN_DELAY,
    PAIR,
    PREFIX_FLAGS,
    SETTLED_BELOW,
    decode_task,
    split_queue_set,
)
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.ids.kept_ids import KeptMessage
from quaymaster.core.structures.orders.claims import OpenClaim
from quaymaster.core.structures.orders.index import ChunkKeeper
from quaymaster.core.values.commands.messages import ALL_PARTITIONS
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.messages import (
    decode_moved,
    message_id_of,
    prefix_bytes,
    split_payload,
    split_prefix,
)
from quaymaster.core.values.partition_tables import is_sealed_by
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    group_definition,
)
from quaymaster.core.values.queues.queue_marks import QueueMarks
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.core.values.records import HOLDING_TYPES, RecordRow, RecordType

NO_STARTS: Mapping[int, tuple[int, int]] = {}


def partition_key(queue_id: int, number: int) -> int:
    """Return the key of a partition among those of a journal."""
    return queue_id << 16 | number


def parts_of_key(key: int) -> tuple[int, int]:
    """Return queue id and number of a partition from `partition_key`."""
    return key >> 16, key & 0xFFFF


def count_moved(source: Partition) -> None:
    """A message of the running task was moved."""
    for task in source.tasks:
        if task.status == "RUNNING":
            task.moved += 1


def count_arrived(source: Partition) -> None:
    """A message that a task took has arrived in another journal; the task may have ended meanwhile."""
    source.tasks[-1].moved += 1


class UnknownRecordType(UnknownFormat):
    """A record of a type that this program does not know; a newer one wrote it."""


class _ByType(dict[int, Callable[[RecordRow, bytes | memoryview, int], None]]):
    def __missing__(self, record_type: int) -> Callable[[RecordRow, bytes | memoryview, int], None]:
        raise UnknownRecordType(
            f"the journal has a record of type {record_type}; this program knows types up to {max(RecordType)}. "
            "Start the version of Quaymaster that wrote it"
        )


class AppliedQueues:
    """The queues of one journal and their partitions, and how a committed record changes them."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        id_limits: IdLimits = ID_LIMITS,
        journal_id: int = 0,
    ) -> None:
        self._keeper = keeper
        self.journal_id = journal_id
        """Only partitions whose entry names it are here."""
        self.retry_window_ms = retry_window_ms
        self.id_limits = id_limits
        self.definitions: dict[int, QueueDefinition] = {}
        self.counted_here = 0
        """How many of the queues are counted here: each is in the journal of its first open partition."""
        self.partitions: dict[int, Partition] = {}
        self.unlisted: dict[int, tuple[int, ...]] = {}
        """The numbers of partitions that a newer table does not list, but that still have something, by queue id."""
        self._dirty_keys: set[int] = set()
        self.changes = TouchedPartitions(self.partitions, self.is_unfinished)
        self._ids_by_name: dict[tuple[str, str], int] = {}
        self._group_ids: dict[int, dict[int, None]] = {}
        """The ids of consumer groups, by that of their log."""
        self.marks = QueueMarks()
        """The highest ids there ever were."""
        self.removed: set[int] = set()
        self.running_tasks = RunningTasks()
        self.open_stages = OpenStages()
        self.sending_away: set[int] = set()
        """The partitions with messages on their way to other journals."""
        self.claiming: set[int] = set()
        """The partitions with consumers of claims."""
        self.messages_gone = 0
        """How many messages were deleted, expired or moved away since this was made; only grows."""
        self.unfinished = UnfinishedWork()
        """Work in slices. Until it is done, no command or record may look at its queues or change them."""
        self._to_empty: deque[Iterator[None]] = deque()
        self._apply = _ByType(
            {
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
                RecordType.MOVE_OUT: self._apply_move_out,
                RecordType.MOVE_WITHDRAWN: self._apply_move_withdrawn,
                RecordType.MOVE_END: self._apply_move_end,
                RecordType.GROUP_RESET: self._apply_group_reset,
                RecordType.STAGE_BEGIN: self._apply_stage_begin,
                RecordType.STAGE: self._apply_stage,
                RecordType.TRANSACTION_COMMIT: self._apply_commit,
                RecordType.TRANSACTION_ABORT: self._apply_abort,
                RecordType.CLAIM: self._apply_claim,
                RecordType.COMPLETE: self._apply_complete,
            }
        )

    def partition(self, queue_id: int, number: int) -> Partition:
        """Return a partition, or raise QueueDoesNotExist."""
        found = self.partitions.get(queue_id << 16 | number)
        if found is None:
            raise QueueDoesNotExist()
        return found

    def partitions_of(self, queue_id: int) -> list[Partition]:
        """Return the partitions of a queue that are in this journal, or raise QueueDoesNotExist."""
        if queue_id not in self.definitions:
            raise QueueDoesNotExist()
        return self._here(queue_id)

    def partitions_asked(self, queue_id: int, number: int) -> list[Partition]:
        """Return one partition, or with ALL_PARTITIONS all in this journal, or raise QueueDoesNotExist."""
        return (
            self.partitions_of(queue_id) if number == ALL_PARTITIONS else [self.partition(queue_id, number)]
        )

    def _here(self, queue_id: int) -> list[Partition]:
        definition = self.definitions.get(queue_id)
        if definition is None:
            return []
        numbers = [*self._listed(definition), *self.unlisted.get(queue_id, ())]
        found = [self.partitions.get(partition_key(queue_id, number)) for number in numbers]
        # A snapshot may have a newer table than partitions: the replay brings the others.
        return [partition for partition in found if partition is not None]

    def _listed(self, definition: QueueDefinition) -> dict[int, PartitionPlacement]:
        """Return the partitions that are in this journal by a table, by number, the oldest first."""
        return {entry.number: entry for entry in definition.partitions if entry.journal_id == self.journal_id}

    def queue_of_arn(self, arn: QueueArn) -> int | None:
        """Return the id of the queue with this ARN, None when the journal has none."""
        return self._ids_by_name.get((arn.account_id, arn.name))

    def sequence_of(self, key: int, row_type: int, row_sequence: int) -> int:
        """Return the number of a message by its record's row, in the partition with this key; 0: it is not known."""
        if row_type != RecordType.STAGE:
            return row_sequence
        partition = self.partitions.get(key)
        staged = partition.staged if partition is not None else None
        run = staged.runs.find(row_sequence) if staged is not None else None
        return run.sequence if run is not None else 0

    def is_live(self, row: RecordRow) -> bool:
        """Return whether a record still has a message that somebody may ask for. Compaction keeps these.

        A COMPLETE is needed until each of its outputs is settled.
        """
        if row.type not in HOLDING_TYPES:
            return False
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        if partition is None:
            return False
        if row.type == RecordType.COMPLETE:
            return partition.moves is not None and row.offset in partition.moves.outputs
        if row.type == RecordType.STAGE:
            return partition.is_kept(row.sequence)
        return partition.is_live(row.sequence)

    def family_of(self, queue_id: int) -> int:
        """Return the log of a consumer group, any other queue itself: what is done to a log is done to its groups."""
        definition = self.definitions.get(queue_id)
        return definition.group_of or queue_id if definition is not None else queue_id

    def is_unfinished(self, partition: Partition) -> bool:
        """Return whether a partition is between two states, and says nothing."""
        return bool(self.unfinished) and self.family_of(partition.definition.queue_id) in self.unfinished

    def state_hash(self, now_ms: int) -> dict[int, int]:
        """Return a hash of each partition's state as of `now_ms`."""
        self.unfinished.finish()
        return {key: partition_hash(partition, now_ms) for key, partition in self.partitions.items()}

    def dirty_keys(self) -> list[int]:
        """Return the keys of the partitions that changed since they were last put into a snapshot."""
        return list(self._dirty_keys)

    def _keep(self, partition: Partition) -> None:
        """Have one more partition, and know from now on whether it is dirty."""
        self.partitions[partition.key] = partition
        self.changes.take(partition)
        partition.dirty_keys = self._dirty_keys
        if partition.dirty:
            self._dirty_keys.add(partition.key)

    def empty_later(self, emptied: list[Iterator[None]]) -> None:
        """Take what is left of messages that are gone, to be freed by `empty_some`."""
        self._to_empty.extend(emptied)

    def digest_later(self, partition: Partition) -> None:
        """Have `empty_some` sort what a commit has brought to a partition, too, some with each step."""
        if partition.ids.dedup is not None:
            self._to_empty.append(partition.ids.dedup.digesting())

    def empty_some(self, steps: int) -> bool:
        """Free as much of what is gone as `steps` steps do; return whether there is more."""
        while steps > 0 and self._to_empty:
            steps -= sum(1 for _ in islice(self._to_empty[0], steps))
            if steps > 0:
                self._to_empty.popleft()
        return bool(self._to_empty)

    @property
    def outputs_under_way(self) -> int:
        """How many outputs of completions are not settled."""
        partitions = [self.partitions.get(key) for key in self.sending_away]
        return sum(partition.outputs_under_way for partition in partitions if partition is not None)

    # Applying

    def apply(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        """Change the state by one committed record. Idempotent: what a partition has applied it skips.

        What takes long is left unfinished. It is finished here before the next record, at the latest.
        """
        if self.unfinished.works:
            self.unfinished.finish()
        self._apply[row.type](row, payload, epoch)

    def _to_apply(self, row: RecordRow) -> Partition | None:
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        if partition is None or row.offset < partition.applied:
            return None
        return _brought_up(partition, row)

    def _following(self, row: RecordRow) -> list[Partition]:
        """Return the consumer groups that are to follow what the record does to their log."""
        log = self.partitions.get(row.queue_id << 16 | row.partition)
        if log is None or not log.groups:
            return []
        return [_brought_up(group, row) for group in log.groups.values() if row.offset >= group.applied]

    def _apply_nothing(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        pass

    def _apply_send(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            group, dedup, retry = split_prefix(row.flags, payload)
            is_own = bool(row.flags & OWN_DELAY)
            partition.apply_send(row.sequence, row.offset, row.time_ms, row.due_after_ms, is_own, group)
            if dedup is not None and partition.ids.keeps_messages:
                message_id = message_id_of(payload[prefix_bytes(row.flags & PREFIX_FLAGS) :])
                partition.ids.keep(dedup, KeptMessage(row.sequence, message_id), row.time_ms)
                dedup = None
            if dedup is not None or retry is not None:
                partition.ids.note(dedup, retry, row.offset, row.time_ms)
            if partition.sizes is not None:
                partition.sizes.add(row.sequence, len(payload))
        for follower in self._following(row):
            group = split_prefix(row.flags, payload)[0]
            own_delay = bool(row.flags & OWN_DELAY)
            follow_send(follower, row.sequence, row.offset, row.time_ms, row.due_after_ms, own_delay, group)

    def _apply_receive(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            attempt = bytes(payload[:16]) if row.flags & HAS_ATTEMPT else None
            messages = list(PAIR.iter_unpack(payload[16:] if attempt is not None else payload))
            partition.apply_receive(messages, row.time_ms, row.due_after_ms, epoch, attempt, taken=False)

    def _apply_delete(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            if row.flags & BY_RECEIVE:
                partition.apply_delete(array("Q", bytes(payload)), row.time_ms)
            else:
                partition.apply_deletion(array("Q", bytes(payload)), row.time_ms)

    def _apply_change_visibility(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            delivery_count, receipt_epoch = CHANGE.unpack(payload)
            partition.apply_change_visibility(
                row.sequence, row.time_ms, row.due_after_ms, delivery_count, receipt_epoch, changed=True
            )

    def _apply_complete(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            apply_completion(partition, split_completion(payload), row.offset, row.time_ms)
            self.sending_away.add(partition.key)

    def _apply_output(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        sent = payload[MOVE_HEAD_BYTES:]
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        if partition is not None and row.offset >= partition.applied:
            moved = decode_moved(split_payload(row.flags, sent)[3])
            source_key = partition_key(moved.source_queue_id, moved.source_partition)
            opened_moves(partition).came(source_key).last = moved.number
            partition.moved_in += 1
        self._apply_send(row, sent, epoch)

    def _apply_move(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        if row.flags & IS_OUTPUT:
            self._apply_output(row, payload, epoch)
            return
        sent_ms, first_ms, count, is_task = MOVE_HEAD.unpack_from(payload)
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
                count_moved(source)
        if target is not None and is_new_to_target:
            target.applied = row.offset + 1
            target.advance(row.time_ms)
            if moved.number:
                source_key = partition_key(moved.source_queue_id, moved.source_partition)
                opened_moves(target).came(source_key).last = moved.number
            target.apply_move_in(row.sequence, row.offset, row.time_ms, sent_ms, count, first_ms, group)

    def _apply_move_out(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            queue_id, target_partition, journal_id, number, is_redrive = MOVE_OUT.unpack_from(payload)
            move = OpenMove(row.sequence, bool(is_redrive))
            target_key = partition_key(queue_id, target_partition)
            moves = opened_moves(partition)
            if row.flags & GOES_ON:
                before, number_before = GONE_ON.unpack_from(payload, MOVE_OUT.size)
                to = target_key, journal_id, number
                moves.go_on(partition_key(queue_id, before), number_before, to)
            else:
                apply_move_out(partition, target_key, journal_id, number, move, row.time_ms, taken=False)
            self.sending_away.add(partition.key)

    def _apply_move_withdrawn(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            queue_id, source_partition = OTHER_END.unpack_from(payload)
            (settled_below,) = SETTLED_BELOW.unpack_from(payload, OTHER_END.size)
            numbers = array("Q", bytes(payload[OTHER_END.size + SETTLED_BELOW.size :]))
            source_key = partition_key(queue_id, source_partition)
            apply_move_withdrawn(
                partition,
                source_key,
                settled_below,
                numbers,
                are_duplicates=bool(row.flags & IS_DUPLICATE),
            )

    def _apply_move_end(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            queue_id, target_partition = OTHER_END.unpack_from(payload)
            self._end_moves_of(
                partition,
                partition_key(queue_id, target_partition),
                list(ENDED.iter_unpack(payload[OTHER_END.size :])),
                row.time_ms,
            )

    def _end_moves_of(
        self, partition: Partition, target_key: int, ended: list[tuple[int, int]], now_ms: int
    ) -> int:
        """Settle moves, as (number, whether it was taken); return how many messages have moved, but for outputs."""
        arrived = 0
        for number, taken in ended:
            move = apply_move_end(partition, target_key, number, now_ms, taken=bool(taken))
            if move is not None and taken and not move.is_output:
                arrived += 1
                if move.is_redrive:
                    count_arrived(partition)
        if not partition.is_sending_away:
            self.sending_away.discard(partition.key)
        return arrived

    def _apply_purge(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        for follower in self._following(row):  # first: they look at what the log drops from the index
            self.empty_later(follower.apply_purge(row.sequence, row.time_ms))
        partition = self._to_apply(row)
        if partition is not None:
            self.empty_later(partition.apply_purge(row.sequence, row.time_ms))

    def _apply_expire(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        for follower in self._following(row):
            self.empty_later(follower.apply_delete_below(row.sequence))
        partition = self._to_apply(row)
        if partition is not None:
            self.empty_later(partition.apply_delete_below(row.sequence))
            partition.apply_delete(array("Q", bytes(payload)), row.time_ms)

    def _apply_queue_set(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        starts, definition = split_queue_set(row.flags, payload)
        self.marks.note(definition)
        if definition.group_of and definition.group_of not in self.definitions:
            return  # the log was deleted further on, and the snapshot is of then
        groups = [self.definitions[group_id] for group_id in self._groups_of(definition.queue_id)]
        # Not new and not known: it was deleted further on, and the snapshot is of then. Nor are its messages known.
        if row.flags & IS_NEW or definition.queue_id in self.definitions:
            self._know(definition, row.time_ms, row.offset + 1, starts)
        for group in groups:  # behind it: their partitions follow its own
            if group.queue_id in self.definitions:
                self._know(group_definition(group, definition), row.time_ms, row.offset + 1)

    def _apply_queue_delete(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        self.marks.raise_to(row.queue_id)
        if row.queue_id in self.definitions:
            self._forget(row.queue_id)

    def _apply_group_reset(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            self.empty_later(reset_group(partition, row.sequence, row.time_ms))

    def _apply_stage_begin(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            sink, batch, name = split_transaction(payload)
            apply_stage_begin(partition, sink, batch, row.sequence, name.decode(), row.time_ms)
            self.open_stages.note(partition)

    def _apply_stage(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            group, dedup, _ = split_prefix(row.flags, payload)
            opened_staged(partition).add(
                row.sequence,
                row.offset,
                row.time_ms,
                group=group,
                dedup=dedup,
                delay_ms=row.due_after_ms if row.flags & OWN_DELAY else -1,
                payload_bytes=len(payload),
            )

    def _apply_commit(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        log = self.partitions.get(row.queue_id << 16 | row.partition)
        if log is None:
            return
        committed = split_commit(payload)
        partition = self._to_apply(row)
        groups = self._following(row)
        messages = committed.messages * ((partition is not None) + len(groups))
        slices = self._commit_slices(partition, log, groups, committed, row)
        self.unfinished.begin(Work(self.family_of(row.queue_id), slices, is_decided=True), messages)

    def _commit_slices(
        self,
        partition: Partition | None,
        log: Partition,
        groups: list[Partition],
        committed: Committed,
        row: RecordRow,
    ) -> Slices:
        if partition is not None:
            steps = apply_commit(partition, committed, row.sequence, row.due_after_ms, row.time_ms)
            yield from self._committed(partition, _decided(steps))
        count = committed.messages - len(committed.duplicates)
        one_delay = bool(row.flags & ONE_DELAY)
        for group in groups:
            yield from _decided(
                follow_commit(
                    group, log, row.sequence, count, row.due_after_ms, row.time_ms, one_delay=one_delay
                )
            )
        return None

    def _committed(self, partition: Partition, slices: Slices) -> Slices:
        """Do the slices of a commit, and what follows from it."""
        outcome = yield from slices
        self.digest_later(partition)
        self.open_stages.note(partition)
        return outcome

    def _apply_abort(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            sink, batch, _ = split_transaction(payload)
            opened_staged(partition).drop(sink, batch)
            self.open_stages.note(partition)

    def _apply_claim(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is None:
            return
        name, owner, messages = split_claim(payload)
        consumer = opened_consumer(partition, name, owner)
        claim = consumer.open.get(row.sequence)
        count = 0
        steps: Iterator[object] = iter(())
        step = ClaimStep(row.flags)
        if step is ClaimStep.GREW:
            claim = consumer.open.setdefault(row.sequence, OpenClaim(row.sequence))
            apply_grown(partition, claim, messages, row.time_ms, row.due_after_ms, epoch, taken=False)
        elif step is ClaimStep.HELD:
            assert claim is not None, "a claim that is held is open"
            count = len(claim)
            steps = apply_held(partition, claim, row.time_ms, row.due_after_ms, epoch)
        elif step is ClaimStep.BROKEN:
            assert claim is not None, "a claim that is broken is open"
            apply_broken(partition, claim, row.time_ms)
        elif step is ClaimStep.SETTLED:
            count = consumer.count_up_to(row.sequence)
            steps = apply_settled(partition, consumer, row.sequence, row.time_ms)
        else:
            count = consumer.count_up_to()
            steps = apply_forgotten(partition, name, row.time_ms)
        work = Work(
            self.family_of(row.queue_id), self.claims_changed(partition, _decided(steps)), is_decided=True
        )
        self.unfinished.begin(work, count)

    def claims_changed(self, partition: Partition, slices: Slices) -> Slices:
        """Do the slices of what is done to claims, and note whether the partition still has consumers of claims."""
        outcome = yield from slices
        self.note_claiming(partition)
        return outcome

    def note_claiming(self, partition: Partition) -> None:
        """A partition has consumers of claims, or none any more."""
        if partition.claims is not None:
            self.claiming.add(partition.key)
        else:
            self.claiming.discard(partition.key)

    def _apply_task(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            partition.apply_task(decode_task(payload))
            self.running_tasks.note(partition.key, partition)

    # Queues

    def load(self, definition: QueueDefinition, partitions: list[Partition]) -> None:
        """Take partitions of a queue from a snapshot, which may have others as of another definition."""
        queue_id = definition.queue_id
        self.marks.note(definition)
        before = self._here(queue_id)
        known = self.definitions.get(queue_id)
        if known is None or known.revision < definition.revision:
            self._define(definition)
        for partition in partitions:
            self._keep(partition)
            self.running_tasks.note(partition.key, partition)
            self.open_stages.note(partition)
            if partition.is_sending_away:
                self.sending_away.add(partition.key)
            self.note_claiming(partition)
        self._note_unlisted(queue_id, [*before, *partitions])

    def attach_groups(self) -> None:
        """Let consumer groups that came from a snapshot follow their logs, before anything is applied.

        One without its log was deleted with it, further on than the snapshot of the log is. A partition without the
        log's is gone as well, or the replay begins both.
        """
        for definition in list(self.definitions.values()):
            if definition.group_of and definition.group_of not in self.definitions:
                self._forget(definition.queue_id)
            elif definition.group_of:
                for group in self._here(definition.queue_id):
                    log = self.partitions.get(partition_key(definition.group_of, group.number))
                    if log is None:
                        self._let_go(group)
                    else:
                        follow(group, log)

    def _groups_of(self, queue_id: int) -> list[int]:
        """Return the ids of a log's consumer groups."""
        return list(self._group_ids.get(queue_id, ()))

    def _define(self, definition: QueueDefinition) -> None:
        """Have a definition as the newest of a queue."""
        queue_id = definition.queue_id
        before = self.definitions.get(queue_id)
        self.counted_here += self._counts(definition) - (before is not None and self._counts(before))
        self.definitions[queue_id] = definition
        self._ids_by_name[definition.account_id, definition.name] = queue_id
        if definition.group_of:
            self._group_ids.setdefault(definition.group_of, {})[queue_id] = None

    def _counts(self, definition: QueueDefinition) -> bool:
        """Return whether this is the one journal of a queue's that counts it."""
        first = next((entry for entry in definition.partitions if entry.state == "open"), None)
        return first is not None and first.journal_id == self.journal_id

    def _know(
        self,
        definition: QueueDefinition,
        time_ms: int,
        applied: int,
        starts: Mapping[int, tuple[int, int]] = NO_STARTS,
    ) -> None:
        """Follow a definition as far as it was not followed yet, each partition for itself.

        A replay may meet it again: a snapshot's definition may be newer than its partitions. `applied`: the offset
        behind the record; `starts`: of a new consumer group, for each partition where it starts and what end it has. In
        a partition that its log gets later it starts with the first message.
        """
        queue_id = definition.queue_id
        self.marks.note(definition)
        before = self._here(queue_id)
        known = self.definitions.get(queue_id)
        newest = definition if known is None or known.revision < definition.revision else known
        # Again: a snapshot may be ahead of the replay, which has just seen an older queue of this name come and go.
        self._define(newest)
        listed = self._listed(definition)
        still_listed = listed if newest is definition else self._listed(newest)
        for number, entry in listed.items():
            partition = self.partitions.get(partition_key(queue_id, number))
            if partition is not None:
                self._follow_definition(partition, definition, entry, time_ms, applied)
            elif number in still_listed:
                self._begin(definition, entry, time_ms, applied, starts)
        for partition in before:
            if partition.applied < applied and partition.number not in listed:
                if not partition.is_used or (partition.is_sealed and partition.is_empty):
                    self._let_go(partition)
                else:
                    self._follow_definition(partition, definition, None, time_ms, applied)
        self._note_unlisted(queue_id, self._here(queue_id) + before)
        # A group may have no partition here before the replay has come to where its log has.
        if not self._here(definition.group_of or queue_id):
            self._forget(queue_id)

    def _begin(
        self,
        definition: QueueDefinition,
        entry: PartitionPlacement,
        time_ms: int,
        applied: int,
        starts: Mapping[int, tuple[int, int]],
    ) -> None:
        log: Partition | None = None
        if definition.group_of:
            log = self.partitions.get(partition_key(definition.group_of, entry.number))
            if log is None:
                return  # the log's was dropped further on, and its snapshot is of then
        partition = Partition(
            definition,
            entry.number,
            self._keeper,
            retry_window_ms=self.retry_window_ms,
            id_limits=self.id_limits,
            first_sequence=entry.first_sequence,
        )
        self._keep(partition)
        partition.applied = applied
        if is_sealed_by(entry):
            partition.apply_seal(time_ms)
        if log is not None:
            first = entry.first_sequence
            begin_group(partition, log, *starts.get(entry.number, (first, first)), time_ms)

    def _follow_definition(
        self,
        partition: Partition,
        definition: QueueDefinition,
        entry: PartitionPlacement | None,
        time_ms: int,
        applied: int,
    ) -> None:
        if partition.applied >= applied or partition.definition.revision >= definition.revision:
            return
        partition.apply_definition(definition, time_ms)
        partition.applied = applied
        if entry is not None and is_sealed_by(entry):
            partition.apply_seal(time_ms)
            self.open_stages.note(partition)

    def _note_unlisted(self, queue_id: int, partitions: list[Partition]) -> None:
        numbers = {partition.number for partition in partitions if partition.key in self.partitions}
        numbers.difference_update(self._listed(self.definitions[queue_id]))
        if numbers:
            self.unlisted[queue_id] = tuple(sorted(numbers))
        else:
            self.unlisted.pop(queue_id, None)

    def _forget(self, queue_id: int) -> None:
        for group_id in self._groups_of(queue_id):
            self._forget(group_id)
        for partition in self._here(queue_id):
            self._let_go(partition)
        self.unlisted.pop(queue_id, None)
        definition = self.definitions.pop(queue_id)
        self.counted_here -= self._counts(definition)
        if definition.group_of:
            groups = self._group_ids[definition.group_of]
            del groups[queue_id]
            if not groups:
                del self._group_ids[definition.group_of]
        name = definition.account_id, definition.name
        if self._ids_by_name.get(name) == queue_id:
            del self._ids_by_name[name]

    def _let_go(self, partition: Partition) -> None:
        """A partition is gone, with all that it has, and with those of consumer groups that follow it."""
        for group in list(partition.groups.values()):
            self._let_go(group)
        key = partition.key
        del self.partitions[key]
        self.changes.drop(partition)
        partition.dirty_keys = None
        self._dirty_keys.discard(key)
        if partition.log is not None:
            del partition.log.groups[partition.definition.queue_id]
        else:
            self.messages_gone += partition.alive
        self.empty_later(partition.emptied())
        self.running_tasks.forget(key)
        self.open_stages.forget(key)
        self.sending_away.discard(key)
        self.claiming.discard(key)
        self.removed.add(key)


def _decided(steps: Iterator[object]) -> Slices:
    """Return steps as slices of what a record says."""
    for _ in steps:
        yield True
    return None


def _brought_up(partition: Partition, row: RecordRow) -> Partition:
    partition.applied = row.offset + 1
    if partition.is_behind(row.time_ms):
        partition.advance(row.time_ms)
    return partition

"""What committed records make of the queues of a journal: what a replay, a follower and a leader have in common.

What records hold is in `core/queues/record_payloads`. Consumer groups follow what a SEND, commit, EXPIRE or PURGE does
to their log (`core/partition/consumer_groups`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from quaymaster.core.partition.consumer_groups import follow_send, reset_group
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import OpenMove
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
    count_arrived,
    count_moved,
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
from quaymaster.core.partition.work.slices import Slices, Work
from quaymaster.core.queues.journal_queues import JournalQueues
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
from quaymaster.core.values.formats import UnknownFormat
from quaymaster.core.values.messages import (
    decode_moved,
    message_id_of,
    prefix_bytes,
    split_payload,
    split_prefix,
)
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import group_definition
from quaymaster.core.values.records import RecordRow, RecordType


class UnknownRecordType(UnknownFormat):
    """A record of a type that this program does not know; a newer one wrote it."""


class _ByType(dict[int, Callable[[RecordRow, bytes | memoryview, int], None]]):
    def __missing__(self, record_type: int) -> Callable[[RecordRow, bytes | memoryview, int], None]:
        raise UnknownRecordType(
            f"the journal has a record of type {record_type}; this program knows types up to {max(RecordType)}. "
            "Start the version of Quaymaster that wrote it"
        )


class AppliedQueues(JournalQueues):
    """The queues of one journal, and how a committed record changes them."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        id_limits: IdLimits = ID_LIMITS,
        journal_id: int = 0,
    ) -> None:
        super().__init__(keeper, retry_window_ms=retry_window_ms, id_limits=id_limits, journal_id=journal_id)
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
        # Either may be in its snapshot already, or gone; both may be the same. What came by a number is in its source
        # until the move ends there, also where that is in this journal: it left for another one first.
        is_new_to_source = source is not None and not moved.number and row.offset >= source.applied
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

    def _apply_task(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            partition.apply_task(decode_task(payload))
            self.running_tasks.note(partition.key, partition)


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

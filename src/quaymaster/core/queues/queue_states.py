"""What the leader of a journal decides: a command is judged, its records proposed and applied at once.

So the state runs ahead to the journal's end. What a record does, for whoever applies it, is in
`core/queues/applied_queues`; both end in the same `Partition.apply_*` methods.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from quaymaster.core.partition.expiry import find_expired
from quaymaster.core.partition.group_starts import check_start, find_start
from quaymaster.core.partition.log_reads import bounds_of, find_messages, find_offset
from quaymaster.core.partition.open_stages import ACCOUNT_STAGES_MAX
from quaymaster.core.partition.partition import (
    IN_FLIGHT_MAX,
    Partition,
)
from quaymaster.core.partition.partition_moves import AWAY_MAX, QueuesElsewhere
from quaymaster.core.partition.proposals import WAIT_OF_DURABILITY, Proposal, Wait
from quaymaster.core.partition.receipts import holds, receipt_invalid, visibility_error
from quaymaster.core.partition.slices import Work
from quaymaster.core.queues.applied_queues import (
    CHANGE,
    ENDED,
    HAS_ATTEMPT,
    HAS_STARTS,
    IS_NEW,
    OTHER_END,
    OWN_DELAY,
    PAIR,
    AppliedQueues,
    count_moved,
    join_queue_set,
    partition_key,
    parts_of_key,
)
from quaymaster.core.queues.move_tasks import (
    cancel_task,
    check_may_have_task,
    finish_task,
    list_tasks,
    may_take,
    running_task,
    start_task,
)
from quaymaster.core.queues.moved_messages import begin_move, message_to_move, store_moved, take_in
from quaymaster.core.queues.transactions import (
    abort_transaction,
    check_begins_no_stage,
    check_has_transactions,
    commit_transaction,
    committed_before,
    expire_transactions,
    stage_messages,
    stages_to_commit,
)
from quaymaster.core.structures.index import ChunkKeeper
from quaymaster.core.structures.timers import WorkLeft, round_up_to_slot_ms
from quaymaster.core.values.attributes import EARLIEST, GROUP_START
from quaymaster.core.values.commands import (
    AbortTransaction,
    AskMarks,
    CancelMoveTask,
    ChangeVisibility,
    Command,
    CommitTransaction,
    CountMessages,
    DeadLetter,
    Decided,
    Delete,
    Done,
    Duplicate,
    EndMoves,
    EntriesOutcome,
    ExpireMessages,
    Fetch,
    FindOffset,
    FinishMoveTask,
    ForgetQueue,
    InternalCommand,
    ListDataKeys,
    ListMoveTasks,
    LogBounds,
    MarksOutcome,
    MoveIn,
    MoveInOutcome,
    MoveMessage,
    Peek,
    PeekedOffsets,
    Purge,
    QueueCounts,
    Receive,
    ResetGroup,
    Send,
    SendResult,
    SentOutcome,
    SetGroupOffset,
    SetQueue,
    StageMessages,
    StartMoveTask,
    TakeForMove,
    Taken,
    TakenForTask,
    TakenOutcome,
    WriteBarrier,
)
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueDoesNotExist,
    QueueIdTaken,
    QueueRevisionTaken,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import REVISIONS_COMPARED, CellFormat
from quaymaster.core.values.queue_definitions import QueueDefinition, group_definition
from quaymaster.core.values.queue_marks import QueueIdentity, identity_of
from quaymaster.core.values.queue_names import QueueArn, split_group
from quaymaster.core.values.records import Record, RecordType

DEAD_LETTERS_PER_RECEIVE_MAX = 100
EXPIRED_PER_SWEEP_MAX = 1_000
ACTIVE_TASKS_MAX = 100
GROUPS_MAX = 100
"""Consumer groups of one log-retained queue: each is told of every message."""
DUE_PER_MS_MAX = 1_000
"""How many timeouts and delays that are over are worked off at one time, of all partitions together."""

_SEND = int(RecordType.SEND)
_RECEIVE = int(RecordType.RECEIVE)


class QueueStates(AppliedQueues):
    """The queues of one journal where it is led. Followers need only what it is made from."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        retry_ids_max: int | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        account_stages_max: int = ACCOUNT_STAGES_MAX,
    ) -> None:
        super().__init__(keeper, retry_window_ms=retry_window_ms, retry_ids_max=retry_ids_max)
        self._in_flight_max = in_flight_max
        self._account_stages_max = account_stages_max
        self.messages_moved = 0
        self.messages_expired = 0
        self._due_left = WorkLeft(DUE_PER_MS_MAX)
        self._due_at_ms = 0
        self.repeats_until_ms = 0
        """Repeats may have been stored under an earlier leader: until then first attempts are looked for, too."""
        self.repeats_below = 0
        """Such repeats have offsets below this: who has none noted there need not look."""
        self.expiry_is_held = False
        self._held_since_ms: int | None = None
        """Set while the clock may be wrong: no message expires."""
        self.cell_format = CellFormat()
        """What the cell reads."""
        self.elsewhere: QueuesElsewhere | None = None
        """Where queues of other journals are; None: there are no other journals."""
        self._undecided: set[int] = set()
        """The partitions of which messages were taken for a move."""
        self._decide: dict[type, Callable[[Any, int, Proposal], tuple[Decided | Work, Wait]]] = {
            Send: self._send,
            Receive: self._receive,
            Delete: self._delete,
            ChangeVisibility: self._change_visibility,
            Purge: self._purge,
            SetQueue: self._set_queue,
            ForgetQueue: self._delete_queue,
            CountMessages: self._count,
            Peek: self._peek,
            Fetch: self._fetch,
            LogBounds: self._bounds,
            FindOffset: self._find_offset,
            StartMoveTask: self._start_task,
            CancelMoveTask: self._cancel_task,
            ListMoveTasks: self._list_tasks,
            ResetGroup: self._reset_group,
            SetGroupOffset: self._set_group_offset,
            ExpireMessages: self._expire,
            MoveMessage: self._move,
            MoveIn: self._move_in,
            EndMoves: self._end_moves,
            WriteBarrier: self._write_barrier,
            TakeForMove: self._take_for_move,
            FinishMoveTask: self._finish_task,
            StageMessages: self._stage,
            CommitTransaction: self._commit,
            AbortTransaction: self._abort,
            AskMarks: self._ask_marks,
        }

    def decide(
        self, command: Command | InternalCommand, now_ms: int, proposal: Proposal
    ) -> tuple[Decided | Work, Wait]:
        """Judge a command: append its records to the proposal, apply them, return outcome and what it waits for.

        Instead of an outcome it may return work that has begun, and has the outcome when it is done. Raises a
        `CallerError` when it is the caller's mistake; nothing is changed then.
        """
        return self._decide[type(command)](command, now_ms, proposal)

    def is_held(self, command: Command | InternalCommand) -> bool:
        """Return whether a command concerns queues with unfinished work, and so has to wait for that."""
        unfinished = self.unfinished
        return any(self.family_of(queue_id) in unfinished for queue_id in _queues_of(command))

    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        queue_id, number = command.queue_id, command.partition
        partition = self.partition(queue_id, number)
        definition = partition.definition
        if partition.log is not None:
            raise UnsupportedOperation("Messages are sent to the queue, not to one of its consumer groups.")
        queue_delay_ms = definition.delay_ms
        is_fifo = definition.is_fifo
        results: list[SendResult | Duplicate] = []
        records = proposal.records
        offset = proposal.base_offset + len(records)
        stored = False
        duplicate = False
        first = partition.index.next_sequence
        # A first attempt may arrive after its repeat: a connection that was cut delivers late what was sent by it.
        may_be_late = now_ms < partition.repeats_until_ms or (
            now_ms < self.repeats_until_ms
            and partition.retries is not None
            and partition.retries.may_know_below(self.repeats_below)
        )
        for message in command.messages:
            dedup, retry = message.dedup, message.retry
            is_sought = message.may_be_retry or may_be_late
            if dedup is not None or (retry is not None and is_sought):
                found = partition.find_duplicate(dedup, retry if is_sought else None, now_ms)
                if found is not None:
                    results.append(Duplicate(found, partition_key(queue_id, number)))
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
            if partition.sizes is not None:
                partition.sizes.add(sequence, len(message.payload))
                for group in partition.groups.values():
                    group.follow_send(sequence, offset, now_ms, delay_ms, own_delay, message.group)
            offset += 1
            stored = True
            if retry is not None and message.may_be_retry:
                partition.repeats_until_ms = now_ms + self.retry_window_ms
            results.append(SendResult(sequence, message.message_id))
        if stored:
            proposal.note_sent(partition, first, partition.next_sequence)
            for group in partition.groups.values():
                proposal.note_sent(group, first, group.next_sequence)
        # What a duplicate was told is stored must be so, whatever this queue's durability.
        wait = Wait.COMMIT if duplicate else WAIT_OF_DURABILITY[definition.durability]
        return SentOutcome(results), wait

    def _receive(self, command: Receive, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._consumed(command.queue_id, command.partition)
        definition = partition.definition
        is_fifo = definition.is_fifo
        if self._advance(partition, now_ms):
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
                again = earlier.messages[: command.count_max]
                return self._hand_out(
                    partition, again, [], now_ms, timeout_ms, command.attempt, proposal, False
                )
        room = self._in_flight_max - len(partition.in_flight)
        if room <= 0:
            is_behind = partition.is_behind(now_ms)
            if not is_fifo and not command.wait_ms and not is_behind:
                raise OverLimit.in_flight(self._in_flight_max)
            return TakenOutcome(proposal.epoch, [], [], is_behind), Wait.NOTHING
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
        has_returned = bool(returned)
        definition = partition.definition
        policy = definition.redrive_policy
        target_id = self._dead_letter_target(partition, policy.target) if policy else None
        oldest_ms = self._oldest_ms(partition, now_ms)
        index = partition.index
        may_have_expired = partition.may_have_expired(oldest_ms)
        if may_have_expired and not self.expiry_is_held and not partition.has_moved_in:
            # All in front at once: one by one, a hundred receives would meet a thousand each in one turn.
            self._expire_some(partition, now_ms, proposal)
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
                before = returned.get(sequence) if has_returned else None
                if before is None:
                    taken.append((sequence, 1))
                    continue
                if (
                    policy is not None
                    and target_id is not None
                    and before.delivery_count - before.arrived_count >= policy.receive_count_max
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
        unfinished = len(taken) < count_max and (
            partition.order.unfinished or is_bounded or partition.is_behind(now_ms)
        )
        self._drop_expired(partition, expired, now_ms, proposal)
        if dead_letters:
            self._undecided.add(partition.key)
        return taken, dead_letters, unfinished

    def _dead_letter_target(self, partition: Partition, arn: QueueArn) -> int | None:
        """Return where dead letters go: a queue's id, 0 if that must be found out, None if they stay."""
        target_id = self.queue_of_arn(arn)
        if target_id is not None and self.definitions[target_id].keeps_all:
            return None
        if target_id is not None or self.elsewhere is None:
            return target_id
        place = self.elsewhere.find(str(arn))
        leaving = len(partition.moves.leaving) if partition.moves is not None else 0
        if place is None or len(partition.moving) + leaving >= AWAY_MAX:
            return None
        return place.queue_id

    def _oldest_ms(self, partition: Partition, now_ms: int) -> int:
        """Return the send time at or before which a message has expired.

        Of a log that is pinned none has for its groups, as long as the log has it.
        """
        definition = partition.definition
        is_pinned = partition.log is not None and (definition.retention_pins or definition.has_legal_hold)
        return -1 if self.expiry_is_held or is_pinned else now_ms - definition.retention_ms

    def _drop_expired(
        self, partition: Partition, expired: list[int], now_ms: int, proposal: Proposal
    ) -> None:
        if expired:
            payload = array("Q", expired).tobytes()
            proposal.add(RecordType.EXPIRE, partition, now_ms, payload=payload)
            partition.apply_delete(expired, now_ms)
            if partition.log is None:
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
        timeout_ms = _stored_timeout_ms(partition.definition, now_ms, timeout_ms)
        pack = PAIR.pack
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
            first_ms = now_ms
            if count > 1 or attempt is not None:
                # In flight already: the receive of an attempt is repeated.
                before = returned.get(sequence) or in_flight.get(sequence)
                first_ms = before.first_receive_ms or now_ms if before else now_ms
            taken.append(Taken(sequence, count, first_ms, sent_ms, offset))
        partition.apply_receive(messages, now_ms, timeout_ms, proposal.epoch, attempt, taken=True)
        wait = Wait.COMMIT if definition.is_fifo else Wait.NOTHING
        return TakenOutcome(proposal.epoch, taken, dead_letters, unfinished), wait

    def _delete(self, command: Delete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._consumed(command.queue_id, command.partition)
        is_fifo = partition.definition.is_fifo
        if is_fifo:
            self._advance(partition, now_ms)
        errors: list[Exception | None] = []
        sequences: list[int] = []
        gone = 0
        for receipt in command.receipts:
            sequence = receipt.sequence
            error: Exception | None = None
            if not partition.is_live(sequence):
                gone += 1
            elif is_fifo and not holds(partition, receipt, now_ms):
                error = receipt_invalid("The receipt handle has expired.")
            elif sequence in sequences:
                gone += 1
            else:
                sequences.append(sequence)
            errors.append(error)
        if sequences:
            proposal.add(RecordType.DELETE, partition, now_ms, payload=array("Q", sequences).tobytes())
            was_full = len(partition.in_flight) >= self._in_flight_max
            partition.apply_deletion(sequences, now_ms)
            if partition.log is None:
                self.messages_gone += len(sequences)
            if is_fifo or was_full:
                proposal.awake.add(partition)
        return EntriesOutcome(errors, gone), Wait.COMMIT

    def _change_visibility(
        self, command: ChangeVisibility, now_ms: int, proposal: Proposal
    ) -> tuple[Decided, Wait]:
        partition = self._consumed(command.queue_id, command.partition)
        self._advance(partition, now_ms)
        errors: list[Exception | None] = []
        for receipt, timeout_ms in zip(command.receipts, command.visibility_timeouts_ms, strict=True):
            partition.return_if_due(receipt.sequence, now_ms)
            error = visibility_error(partition, receipt, timeout_ms, now_ms, self._in_flight_max)
            errors.append(error)
            if error is not None:
                continue
            timeout_ms = _stored_timeout_ms(partition.definition, now_ms, timeout_ms)
            proposal.add(
                RecordType.CHANGE_VISIBILITY,
                partition,
                now_ms,
                sequence=receipt.sequence,
                due_after_ms=timeout_ms,
                payload=CHANGE.pack(receipt.delivery_count, receipt.epoch),
            )
            partition.apply_change_visibility(
                receipt.sequence, now_ms, timeout_ms, receipt.delivery_count, receipt.epoch, changed=True
            )
        proposal.awake.add(partition)
        return EntriesOutcome(errors), Wait.COMMIT

    def _purge(self, command: Purge, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        for partition in self.partitions_of(command.queue_id):
            stop = partition.next_sequence
            proposal.add(RecordType.PURGE, partition, now_ms, sequence=stop)
            if partition.log is None:
                self.messages_gone += partition.alive
            for each in (*partition.groups.values(), partition):
                self.empty_later(each.apply_purge(stop, now_ms))
        return Done(), Wait.COMMIT

    def _expire(self, command: ExpireMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        if not self.expiry_is_held:
            self._expire_some(partition, now_ms, proposal)
        expire_transactions(partition, now_ms, proposal, since_ms=self.staged_since_ms(now_ms))
        self.open_stages.note(partition)
        return Done(), Wait.NOTHING

    def staged_since_ms(self, now_ms: int) -> int:
        """Return from when on the idle time of open transactions counts where this replica leads.

        They end by elapsed time, also while clocks disagree: then it counts from when this replica first saw that, so
        that a step of queue time before ends none.
        """
        if not self.expiry_is_held:
            self._held_since_ms = None
        elif self._held_since_ms is None:
            self._held_since_ms = now_ms
        return self._held_since_ms or 0

    def _expire_some(self, partition: Partition, now_ms: int, proposal: Proposal) -> None:
        """Drop the oldest messages, as many as one step may; those of a log, for all of its groups."""
        partition = partition.log or partition
        stop, singles = find_expired(partition, now_ms, EXPIRED_PER_SWEEP_MAX)
        if stop > partition.head or singles:
            payload = array("Q", singles).tobytes()
            proposal.add(RecordType.EXPIRE, partition, now_ms, sequence=stop, payload=payload)
            before = partition.alive
            for group in partition.groups.values():
                self.empty_later(group.apply_delete_below(stop))
                proposal.awake.add(group)
            self.empty_later(partition.apply_delete_below(stop))
            partition.apply_delete(singles, now_ms)
            self.messages_gone += before - partition.alive
            self.messages_expired += before - partition.alive
            proposal.awake.add(partition)

    def _set_queue(self, command: SetQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        definition = command.definition
        known = self.definitions.get(definition.queue_id)
        self._check_identity(known, identity_of(definition))
        if known is not None and self.cell_format.version_of(REVISIONS_COMPARED):
            self._check_revision(known, definition)
        if known is None or known.revision < definition.revision:
            starts: dict[int, tuple[int, int]] = {}
            if definition.group_of:
                definition, starts = self._new_group(definition)
            flags = (IS_NEW if known is None else 0) | (HAS_STARTS if starts else 0)
            payload = join_queue_set(definition, starts)
            proposal.records.append(
                Record(RecordType.QUEUE_SET, flags, definition.queue_id, 0, 0, now_ms, 0, payload)
            )
            queue_ids = [definition.queue_id, *self._groups_of(definition.queue_id)]
            self._know(definition, now_ms, proposal.next_offset, starts)
            for group_id in queue_ids[1:]:
                group = group_definition(self.definitions[group_id], definition)
                self._know(group, now_ms, proposal.next_offset)
            for queue_id in queue_ids:
                proposal.awake.update(self.partitions_of(queue_id))
            for partition in self.partitions_of(definition.queue_id) if starts else ():
                proposal.sent_to[partition] = partition.next_sequence
                partition.uncommitted_from = (
                    partition.log.uncommitted_from if partition.log is not None else 0
                )
        return Done(), Wait.COMMIT

    @staticmethod
    def _check_identity(known: QueueDefinition | None, identity: QueueIdentity) -> None:
        if known is not None and identity_of(known) != identity:
            raise QueueIdTaken(
                f"The journal has the queue {known.name} under the id {known.queue_id}, and was told that it is "
                f"{identity[1]}: the metadata is older than the journal."
            )

    @staticmethod
    def _check_revision(known: QueueDefinition, definition: QueueDefinition) -> None:
        """Refuse what would be left out though its caller was told that it counts; a group has its log's revisions."""
        is_same = known.revision == definition.revision and known.attributes == definition.attributes
        if known.revision >= definition.revision and not is_same and not definition.group_of:
            raise QueueRevisionTaken(known.revision)

    def _ask_marks(self, command: AskMarks, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        # A leader that was deposed and does not know it has older marks. It can commit nothing, so it never answers.
        proposal.records.append(Record(RecordType.BARRIER, 0, 0, 0, 0, now_ms, 0, b""))
        return MarksOutcome(msgspec.structs.replace(self.marks)), Wait.COMMIT

    def _new_group(self, group: QueueDefinition) -> tuple[QueueDefinition, dict[int, tuple[int, int]]]:
        """Return a new consumer group as its log says, and where it starts in each partition."""
        log = self.definitions.get(group.group_of)
        if log is None or not log.is_log:
            raise QueueDoesNotExist
        if len(self._groups_of(log.queue_id)) >= GROUPS_MAX:
            raise OverLimit(f"A log-retained queue may have {GROUPS_MAX} consumer groups.")
        start = group.attributes.get(GROUP_START.name)
        if start is None and split_group(group.name)[1] not in log.retention_pins:
            # One that pins the log begins with all that was kept for it.
            start = log.group_start
        start = start or EARLIEST
        check_start(start)
        starts = {
            partition.number: (find_start(start, partition), partition.next_sequence)
            for partition in self.partitions_of(log.queue_id)
        }
        return group_definition(group, log), starts

    def _reset_group(self, command: ResetGroup, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        check_start(command.start)
        for partition in self.partitions_of(command.queue_id):
            start = find_start(command.start, _log_of(partition))
            proposal.add(RecordType.GROUP_RESET, partition, now_ms, sequence=start)
            self.empty_later(partition.apply_reset(start, now_ms))
            proposal.awake.add(partition)
        return Done(), Wait.COMMIT

    def _set_group_offset(
        self, command: SetGroupOffset, now_ms: int, proposal: Proposal
    ) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        _log_of(partition)
        if command.sequence > partition.committed:
            raise InvalidParameterValue.of(
                "Offset",
                command.sequence,
                f"The end of partition {partition.number} is {partition.committed}.",
            )
        if command.sequence > partition.head:
            proposal.add(RecordType.EXPIRE, partition, now_ms, sequence=command.sequence)
            self.empty_later(partition.apply_delete_below(command.sequence))
            proposal.awake.add(partition)
        return Done(), Wait.COMMIT

    def _delete_queue(self, command: ForgetQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        known = self.definitions.get(command.queue_id)
        if command.identity is not None:
            self._check_identity(known, command.identity)
        if known is not None:
            proposal.records.append(
                Record(RecordType.QUEUE_DELETE, 0, command.queue_id, 0, 0, now_ms, 0, b"")
            )
            for queue_id in (command.queue_id, *self._groups_of(command.queue_id)):
                proposal.awake.update(self.partitions_of(queue_id))
            self._forget(command.queue_id)
        return Done(), Wait.COMMIT

    def _count(self, command: CountMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partitions = self.partitions_of(command.queue_id)
        for partition in partitions:
            self._advance(partition, now_ms)
        each = [partition.counts(now_ms) for partition in partitions]
        total = QueueCounts(
            visible=sum(counts.visible for counts in each),
            in_flight=sum(counts.in_flight for counts in each),
            delayed=sum(counts.delayed for counts in each),
            oldest_sent_ms=min(
                (counts.oldest_sent_ms for counts in each if counts.oldest_sent_ms), default=0
            ),
            noisy_groups=sum(counts.noisy_groups for counts in each),
            sends=sum(counts.sends for counts in each),
            deletions=sum(counts.deletions for counts in each),
            counted_from=max(counts.counted_from for counts in each),
        )
        return total, Wait.NOTHING

    def _peek(self, command: Peek, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        self._advance(partition, now_ms)
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

    def _fetch(self, command: Fetch, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return find_messages(self.partition(command.queue_id, command.partition), command), Wait.NOTHING

    def _bounds(self, command: LogBounds, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return bounds_of(self.partition(command.queue_id, command.partition)), Wait.NOTHING

    def _find_offset(self, command: FindOffset, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return find_offset(self.partition(command.queue_id, command.partition), command), Wait.NOTHING

    # Transactions

    def _stage(self, command: StageMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        check_has_transactions(partition, self.cell_format)
        if self.open_stages.of_account(partition.definition.account_id) >= self._account_stages_max:
            check_begins_no_stage(partition, command, self._account_stages_max)
        outcome = stage_messages(partition, command, now_ms, proposal)
        self.open_stages.note(partition)
        return outcome, Wait.COMMIT

    def _commit(
        self, command: CommitTransaction, now_ms: int, proposal: Proposal
    ) -> tuple[Decided | Work, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        check_has_transactions(partition, self.cell_format)
        before = committed_before(partition, command)
        if before is not None:
            return before, Wait.COMMIT
        stages = stages_to_commit(partition, command)
        work = Work(
            self.family_of(command.queue_id),
            self._committed(partition, commit_transaction(partition, command, stages)),
            is_decided=False,
        )
        messages = sum(stage.count for stage in stages)
        self.unfinished.begin(work, messages * (1 + len(partition.groups)), (now_ms, proposal))
        return work.outcome or work, Wait.COMMIT

    def _abort(self, command: AbortTransaction, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        check_has_transactions(partition, self.cell_format)
        outcome = abort_transaction(partition, command, now_ms, proposal)
        self.open_stages.note(partition)
        return outcome, Wait.COMMIT

    # Moves

    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        source = self.partitions.get(partition_key(command.queue_id, command.partition))
        sequence = command.sequence
        if source is None or sequence not in source.moving:
            return Done(), Wait.NOTHING
        if len(source.moving) == 1:
            self._undecided.discard(source.key)
        target = self.partitions.get(partition_key(command.target_queue_id, 0))
        is_over = command.task_id is not None and not any(
            task.task_id == command.task_id and task.status == "RUNNING" for task in source.tasks
        )
        is_elsewhere = command.target_journal_id is not None
        if (target is None and not is_elsewhere) or command.payload is None or is_over:
            source.put_back(sequence, now_ms)
            return Done(), Wait.NOTHING
        if target is None:
            self.sending_away.add(source.key)
            return begin_move(source, command, now_ms, proposal), Wait.COMMIT
        message = message_to_move(
            source,
            sequence,
            (command.record_type, command.flags, command.payload),
            source_arn=command.source_arn,
            new_message_id=command.new_message_id,
        )
        # One record does both ends.
        source.apply_delete((sequence,), now_ms)
        store_moved(target, message, now_ms, proposal, is_of_task=command.task_id is not None)
        if source.log is None:
            self.messages_gone += 1
        self.messages_moved += 1
        if command.task_id is not None:
            count_moved(source)
        return Done(), Wait.COMMIT

    def _move_in(self, command: MoveIn, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        target = self.partitions.get(partition_key(command.queue_id, command.partition))
        if target is None:
            return MoveInOutcome([], is_gone=True), Wait.COMMIT
        return take_in(target, command, now_ms, proposal), Wait.COMMIT

    def _end_moves(self, command: EndMoves, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        source = self.partitions.get(partition_key(command.queue_id, command.partition))
        pair = source.moves_to(command.target_key) if source is not None else None
        if source is None or pair is None:
            return Done(), Wait.NOTHING  # the queue was deleted
        ended = [(number, 1) for number in command.taken if number in pair.open]
        ended += [(number, 0) for number in command.withdrawn if number in pair.open]
        if ended:
            other_end = OTHER_END.pack(*parts_of_key(command.target_key))
            payload = b"".join((other_end, *(ENDED.pack(number, taken) for number, taken in ended)))
            proposal.add(RecordType.MOVE_END, source, now_ms, payload=payload)
            arrived = self._end_moves_of(source, command.target_key, ended, now_ms)
            if source.log is None:
                self.messages_gone += arrived
            self.messages_moved += arrived
            proposal.awake.add(source)
        return Done(), Wait.COMMIT

    def _write_barrier(self, command: WriteBarrier, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        proposal.records.append(Record(RecordType.BARRIER, 0, 0, 0, 0, now_ms, 0, b""))
        return Done(), Wait.COMMIT

    def _take_for_move(self, command: TakeForMove, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._source_of_tasks(command)
        task = running_task(partition, command.task_id, now_ms, proposal)
        if task is None:
            self.running_tasks.note(partition.key, partition)
            return TakenForTask([], is_over=True), Wait.COMMIT
        count_max = may_take(task, command.count_max)
        if not count_max:
            return TakenForTask([]), Wait.NOTHING
        self._advance(partition, now_ms)
        oldest_ms = self._oldest_ms(partition, now_ms)
        taken: list[Taken] = []
        expired: list[int] = []
        for sequence in partition.take_visible(count_max, now_ms, task.stop or None):
            partition.moving[sequence] = 0
            offset, sent_ms = partition.index.offset_and_sent_ms(sequence)
            if sent_ms <= oldest_ms:
                expired.append(sequence)
            else:
                taken.append(Taken(sequence, 0, 0, sent_ms, offset))
        self._drop_expired(partition, expired, now_ms, proposal)
        if taken:
            self._undecided.add(partition.key)
        unfinished = not taken and (
            bool(expired) or partition.order.unfinished or partition.is_behind(now_ms)
        )
        return TakenForTask(taken, unfinished), Wait.NOTHING

    def undecided(self) -> list[tuple[Partition, int]]:
        """Return the messages that were taken for a move and not decided upon, by partition and sequence number."""
        found = [(key, self.partitions.get(key)) for key in self._undecided]
        self._undecided = {key for key, partition in found if partition is not None and partition.moving}
        return [
            (partition, sequence)
            for _, partition in found
            if partition is not None
            for sequence in partition.moving
        ]

    # Message move tasks

    def _start_task(self, command: StartMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._source_of_tasks(command)
        check_may_have_task(partition)
        if self.running_tasks.of_account(partition.definition.account_id) >= ACTIVE_TASKS_MAX:
            raise OverLimit(f"An account may have {ACTIVE_TASKS_MAX} active message move tasks.")
        target_id = command.target_queue_id
        if target_id is not None and target_id not in self.definitions and not self._may_reach_others():
            raise UnsupportedOperation(
                "The queues are in different journals of this cell, between which messages move once all its "
                "processes run this version: `quaymaster cell upgrade`."
            )
        self._advance(partition, now_ms)
        outcome = start_task(partition, command, now_ms, proposal, self.cell_format)
        self.running_tasks.note(partition.key, partition)
        return outcome, Wait.COMMIT

    def _may_reach_others(self) -> bool:
        return self.elsewhere is None or self.elsewhere.is_reachable

    def _cancel_task(self, command: CancelMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._source_of_tasks(command)
        outcome = cancel_task(partition, command, now_ms, proposal)
        self.running_tasks.note(partition.key, partition)
        return outcome, Wait.COMMIT

    def _finish_task(self, command: FinishMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._source_of_tasks(command)
        finish_task(partition, command, now_ms, proposal)
        self.running_tasks.note(partition.key, partition)
        return Done(), Wait.COMMIT

    def _list_tasks(self, command: ListMoveTasks, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return list_tasks(self._source_of_tasks(command)), Wait.NOTHING

    def _source_of_tasks(
        self, command: StartMoveTask | CancelMoveTask | FinishMoveTask | ListMoveTasks | TakeForMove
    ) -> Partition:
        return self.partitions_of(command.queue_id)[0]

    # Helpers

    def _consumed(self, queue_id: int, number: int) -> Partition:
        """Return a partition whose messages are received and deleted; of a log those of its groups are."""
        partition = self.partition(queue_id, number)
        if partition.sizes is not None:
            raise UnsupportedOperation("A log-retained queue is read by its consumer groups.")
        return partition

    def _advance(self, partition: Partition, now_ms: int) -> bool:
        """Bring a partition up to `now_ms`, as far as this millisecond's share of that work goes.

        Whoever then finds nothing asks again; so many messages that are due at once hold nobody else up.
        """
        if not partition.is_behind(now_ms):
            return False
        if now_ms != self._due_at_ms:
            self._due_at_ms = now_ms
            self._due_left.entries = DUE_PER_MS_MAX
        return partition.advance(now_ms, self._due_left)


def _stored_timeout_ms(definition: QueueDefinition, now_ms: int, timeout_ms: int) -> int:
    """Return the visibility timeout that is decided: to the slot's end, of a FIFO queue exactly.

    There a receipt is refused once it is over, so a client sees when that is.
    """
    if not timeout_ms or definition.is_fifo:
        return timeout_ms
    return round_up_to_slot_ms(now_ms + timeout_ms) - now_ms


def _queues_of(command: Command | InternalCommand) -> tuple[int, ...]:
    """Return the ids of the queues whose messages or definitions a command looks at or changes."""
    match command:
        case SetQueue(definition=definition):
            return (definition.group_of or definition.queue_id,)
        case MoveMessage(queue_id=queue_id, target_queue_id=target_id):
            return queue_id, target_id
        case WriteBarrier() | AskMarks() | ListDataKeys():
            return ()
    return (command.queue_id,)


def _log_of(group: Partition) -> Partition:
    if group.log is None:
        raise UnsupportedOperation(
            f"The queue {group.definition.name} is no consumer group of a log-retained queue."
        )
    return group.log

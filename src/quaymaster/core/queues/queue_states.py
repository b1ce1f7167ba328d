"""What the leader of a journal decides: a command is judged, its records proposed and applied at once.

So the state runs ahead to the journal's end. What a record does, on every replica, is in
`core/queues/applied_queues`; both end in the same `Partition.apply_*` methods.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from quaymaster.core.partition.consumer_groups import follow_send
from quaymaster.core.partition.log_reads import bounds_of, find_messages, find_offset
from quaymaster.core.partition.open_stages import ACCOUNT_STAGES_MAX
from quaymaster.core.partition.partition import IN_FLIGHT_MAX, Partition
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.partition_totals import totals_of
from quaymaster.core.partition.proposals import WAIT_OF_DURABILITY, Proposal, Wait
from quaymaster.core.partition.staged_messages import Stage
from quaymaster.core.partition.work.applied_moves import count_moved
from quaymaster.core.partition.work.slices import Slices, Turn, Work
from quaymaster.core.queues.claimed_queues import ClaimedQueues
from quaymaster.core.queues.completions import complete
from quaymaster.core.queues.defined_queues import DefinedQueues
from quaymaster.core.queues.move_tasks import (
    cancel_task,
    check_may_have_task,
    finish_task,
    list_tasks,
    may_take,
    partitions_running,
    running_task,
    start_task,
)
from quaymaster.core.queues.moved_messages import (
    begin_move,
    find_place,
    followed_move,
    go_on,
    is_overtaking,
    message_to_move,
    store_moved,
    take_in,
)
from quaymaster.core.queues.record_payloads import ENDED, OTHER_END, OWN_DELAY
from quaymaster.core.queues.transactions import (
    abort_transaction,
    check_begins_no_stage,
    check_has_all_groups,
    check_has_transactions,
    check_sends_stages,
    commit_transaction,
    committed_before,
    is_new_to,
    send_stage,
    stage_messages,
    stage_to_send,
    stages_to_commit,
)
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.ids.kept_ids import KeptMessage
from quaymaster.core.structures.ids.recent_marks import RecentMarks
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.index import ChunkKeeper
from quaymaster.core.structures.timers import round_up_to_slot_ms
from quaymaster.core.values.commands.claims import Claim, DescribeClaims, ReadClaim, ReleaseClaims, Settle
from quaymaster.core.values.commands.completions import Complete
from quaymaster.core.values.commands.decided import (
    Consume,
    Duplicate,
    ExpireMessages,
    PeekedOffsets,
    SentElsewhere,
    SentOutcome,
    Taken,
    WriteBarrier,
)
from quaymaster.core.values.commands.logs import Fetch, FindOffset, LogBounds, ResetGroup, SetGroupOffset
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    Elsewhere,
    Peek,
    Purge,
    Receive,
    Send,
    SendResult,
    Watch,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
    TakeForMove,
    TakenForTask,
)
from quaymaster.core.values.commands.moves import (
    EndMoves,
    MoveBegun,
    MoveIn,
    MoveInOutcome,
    MoveMessage,
    MovesGoOn,
)
from quaymaster.core.values.commands.partitions import (
    AskGroups,
    AskIds,
    AskMarks,
    AskPartition,
    ForgetQueue,
    ListDataKeys,
    SetQueue,
)
from quaymaster.core.values.commands.transactions import AbortTransaction, CommitTransaction, StageMessages
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.errors import NotNow, OverLimit, UnsupportedOperation
from quaymaster.core.values.formats import DELIVERY, CellFormat
from quaymaster.core.values.queue_counts import sum_counts
from quaymaster.core.values.queues.partition_keys import partition_key, parts_of_key
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.core.values.records import Record, RecordType

ACTIVE_TASKS_MAX = 100

_SEND = int(RecordType.SEND)


class QueueStates(DefinedQueues, ClaimedQueues):
    """The queues of one journal where it is led. Followers need only what it is made from."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        id_limits: IdLimits = ID_LIMITS,
        in_flight_max: int = IN_FLIGHT_MAX,
        account_stages_max: int = ACCOUNT_STAGES_MAX,
        journal_id: int = 0,
    ) -> None:
        super().__init__(
            keeper,
            retry_window_ms=retry_window_ms,
            id_limits=id_limits,
            in_flight_max=in_flight_max,
            journal_id=journal_id,
        )
        self.cell_format = CellFormat()
        self._account_stages_max = account_stages_max
        self.messages_moved = 0
        self.repeats_until_ms = 0
        """Repeats may have been stored under an earlier leader: until then first attempts are looked for, too."""
        self.repeats_below = 0
        """Such repeats have offsets below this: who has none noted there need not look."""
        self._recent_retries = RecentMarks()
        """Retry hashes of what came lately: first attempts among them are looked for as well."""
        self._decide: dict[type, Callable[[Any, int, Proposal], tuple[Decided | Work, Wait]]] = {
            Send: self._send,
            Receive: self._receive,
            Watch: self._watch,
            Consume: self._consume,
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
            AskPartition: self._ask_partition,
            AskIds: self._ask_ids,
            AskGroups: self._ask_groups,
            Claim: self._claim,
            ReadClaim: self._read_claim,
            Settle: self._settle,
            DescribeClaims: self._describe_claims,
            ReleaseClaims: self._release_claims,
            Complete: self._complete,
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
        stored = 0
        duplicates = 0
        stored_bytes = 0
        first = partition.index.next_sequence
        # A first attempt may arrive after its repeat: a connection that was cut delivers late what was sent by it.
        may_be_late = now_ms < partition.repeats_until_ms or (
            now_ms < self.repeats_until_ms
            and partition.ids.retries is not None
            and partition.ids.retries.may_know_below(self.repeats_below)
        )
        if partition.sealed_ms:
            return self._send_to_sealed(partition, command, now_ms, proposal.epoch, may_be_late=may_be_late)
        keeps = partition.ids.keeps_messages
        if keeps:
            self._check_room_for_ids(partition, command, now_ms)
        for message in command.messages:
            dedup, retry = message.dedup, message.retry
            is_sought = message.may_be_retry or may_be_late
            # Who records a request and sends it again at once says that it is a first attempt, as the request did.
            if retry is not None and self._recent_retries.mark(retry, now_ms):
                is_sought = True
            if dedup is not None or (retry is not None and is_sought):
                found = partition.ids.find(dedup, retry if is_sought else None, now_ms)
                if found is not None:
                    results.append(_duplicate(found, partition))
                    duplicates += 1
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
            partition.apply_send(sequence, offset, now_ms, delay_ms, own_delay, message.group)
            if dedup is not None and keeps:
                partition.ids.keep(dedup, KeptMessage(sequence, message.message_id), now_ms)
                dedup = None
            if dedup is not None or retry is not None:
                partition.ids.note(dedup, retry, offset, now_ms)
            if partition.sizes is not None:
                partition.sizes.add(sequence, len(message.payload))
                for group in partition.groups.values():
                    follow_send(group, sequence, offset, now_ms, delay_ms, own_delay, message.group)
            offset += 1
            stored += 1
            stored_bytes += message.size_bytes or len(message.payload)
            if retry is not None and message.may_be_retry:
                partition.repeats_until_ms = now_ms + self.retry_window_ms
            results.append(SendResult(sequence, message.message_id))
        totals = totals_of(partition, proposal.epoch)
        totals.sent_bytes += stored_bytes
        if duplicates:
            totals.duplicate += duplicates
            partition.note_touch()
        if stored:
            proposal.note_sent(partition, first, partition.next_sequence)
            for group in partition.groups.values():
                proposal.note_sent(group, first, group.next_sequence)
        # What a duplicate was told is stored must be so, whatever this queue's durability.
        wait = Wait.COMMIT if duplicates else WAIT_OF_DURABILITY[definition.durability]
        return SentOutcome(results), wait

    def _check_room_for_ids(self, partition: Partition, command: Send, now_ms: int) -> None:
        """Raise OverLimit where deduplication ids of a long window would be more than may be kept."""
        dedups = [message.dedup for message in command.messages if message.dedup is not None]
        if not partition.ids.has_room(dedups, now_ms):
            raise OverLimit(
                f"Of the messages of the last {partition.definition.dedup_window_ms // 1000} seconds, as many "
                f"deduplication ids are kept as may be: {self.id_limits.dedup_ids_max}."
            )

    def _send_to_sealed(
        self, partition: Partition, command: Send, now_ms: int, epoch: int, *, may_be_late: bool
    ) -> tuple[Decided, Wait]:
        """Find what is stored already; the others go elsewhere, which is so for good once the seal is committed."""
        results: list[SendResult | Duplicate | None] = []
        for message in command.messages:
            is_sought = message.may_be_retry or may_be_late
            found = partition.ids.find(message.dedup, message.retry if is_sought else None, now_ms)
            results.append(None if found is None else _duplicate(found, partition))
        duplicates = [result for result in results if result is not None]
        if duplicates:
            totals_of(partition, epoch).duplicate += len(duplicates)
            partition.note_touch()
        if len(duplicates) == len(results):
            return SentOutcome([*duplicates]), Wait.COMMIT
        return SentElsewhere(self.definitions[command.queue_id], results), Wait.COMMIT

    def _purge(self, command: Purge, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        for partition in self.partitions_asked(command.queue_id, command.partition):
            stop = partition.next_sequence
            proposal.add(RecordType.PURGE, partition, now_ms, sequence=stop)
            if partition.log is None:
                self.messages_gone += partition.alive
            for each in (*partition.groups.values(), partition):
                self.empty_later(each.apply_purge(stop, now_ms))
        return Done(), Wait.COMMIT

    def _count(self, command: CountMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partitions = self.partitions_asked(command.queue_id, command.partition)
        for partition in partitions:
            self._advance(partition, now_ms)
        return sum_counts([counts_of(partition, now_ms) for partition in partitions]), Wait.NOTHING

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

    def _stage(self, command: StageMessages, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        check_has_transactions(partition, self.cell_format)
        check_sends_stages(command, self.cell_format)
        if self.open_stages.of_account(partition.definition.account_id) >= self._account_stages_max:
            check_begins_no_stage(partition, command, self._account_stages_max)
        if is_new_to(partition, command.sink, command.batch):
            if partition.is_sealed:
                return Elsewhere(self.definitions[command.queue_id]), Wait.COMMIT
            check_has_all_groups(partition)
        outcome = stage_messages(partition, command, now_ms, proposal)
        self.open_stages.note(partition)
        if not command.commit or outcome.is_committed:
            return outcome, Wait.COMMIT
        stages = stage_to_send(partition, command)
        return self._begin_commit(
            partition, send_stage(partition, command, stages), stages, (now_ms, proposal)
        )

    def _commit(
        self, command: CommitTransaction, now_ms: int, proposal: Proposal
    ) -> tuple[Decided | Work, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        check_has_transactions(partition, self.cell_format)
        before = committed_before(partition, command)
        if before is not None:
            return before, Wait.COMMIT
        if partition.is_sealed and is_new_to(partition, command.sink, command.batch):
            return Elsewhere(self.definitions[command.queue_id]), Wait.COMMIT
        stages = stages_to_commit(partition, command)
        slices = commit_transaction(partition, command, stages)
        return self._begin_commit(partition, slices, stages, (now_ms, proposal))

    def _begin_commit(
        self, partition: Partition, slices: Slices, stages: list[Stage], turn: Turn
    ) -> tuple[Decided | Work, Wait]:
        messages = sum(stage.count for stage in stages) * (1 + len(partition.groups))
        return self._begin_work(partition, self._committed(partition, slices), messages, turn)

    def _abort(self, command: AbortTransaction, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        check_has_transactions(partition, self.cell_format)
        if partition.is_sealed and is_new_to(partition, command.sink, command.batch):
            return Elsewhere(self.definitions[command.queue_id]), Wait.COMMIT
        outcome = abort_transaction(partition, command, now_ms, proposal)
        self.open_stages.note(partition)
        return outcome, Wait.COMMIT

    # Completions

    def _complete(self, command: Complete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._consumed(command.queue_id, command.partition)
        self.cell_format.require(DELIVERY, "Messages can be completed")
        if partition.definition.is_at_most_once:
            raise UnsupportedOperation(
                "A receive takes messages out of a queue with DeliveryGuarantee=AtMostOnce: "
                "there is nothing to complete."
            )
        if partition.definition.is_fifo or partition.definition.is_exactly_once:
            self._advance(partition, now_ms)
        was_full = len(partition.in_flight) >= self._in_flight_max
        before = partition.alive
        decided = complete(partition, command, now_ms, proposal)
        if decided.begun:
            self.sending_away.add(partition.key)
        if partition.log is None:
            self.messages_gone += before - partition.alive
        if partition.definition.is_fifo or was_full:
            proposal.awake.add(partition)
        return decided, Wait.COMMIT

    # Moves

    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        source = self.partitions.get(partition_key(command.queue_id, command.partition))
        sequence = command.sequence
        if source is None or sequence not in source.moving:
            return Done(), Wait.NOTHING
        if len(source.moving) == 1:
            self._undecided.discard(source.key)
        queue = self._newest(command.target_queue_id, command.target)
        is_over = command.task_id is not None and not any(
            task.task_id == command.task_id and task.status == "RUNNING" for task in source.tasks
        )
        if queue is None or command.payload is None or is_over or is_overtaking(source, sequence):
            source.put_back(sequence, now_ms)
            return Done(), Wait.NOTHING
        target_key, journal_id = self._place_of(source, sequence, queue)
        if journal_id is not None:
            self.sending_away.add(source.key)
            return begin_move(source, command, target_key, journal_id, now_ms, proposal), Wait.COMMIT
        target = self.partitions[target_key]
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
        else:
            totals_of(source, proposal.epoch).dead_lettered += 1
        return Done(), Wait.COMMIT

    def _newest(self, queue_id: int, other: QueueDefinition | None) -> QueueDefinition | None:
        """Return a queue as the journal knows it, or as `other` says if that has a newer table."""
        known = self.definitions.get(queue_id)
        if known is None or (other is not None and other.table_version > known.table_version):
            return other
        return known

    def _place_of(self, source: Partition, sequence: int, queue: QueueDefinition) -> tuple[int, int | None]:
        """Return the key of the partition that a message goes to, and its journal, None if it is this one.

        Raises NotNow if it is here, and the journal does not know it yet.
        """
        followed = followed_move(source, sequence, queue.queue_id)
        if followed is not None:
            return followed
        entry = find_place(source, sequence, queue, partial(self._takes_moves, queue.queue_id))
        key = partition_key(queue.queue_id, entry.number) if entry is not None else 0
        if entry is not None and entry.journal_id != self.journal_id:
            return key, entry.journal_id
        if key not in self.partitions:
            raise NotNow("The journal does not know the partition yet that the message goes to.")
        return key, None

    def _takes_moves(self, queue_id: int, entry: PartitionPlacement) -> bool:
        """Return whether messages may be moved to a partition, as far as is known here."""
        target = self.partitions.get(partition_key(queue_id, entry.number))
        return entry.journal_id != self.journal_id or target is None or not target.is_sealed

    def _move_in(self, command: MoveIn, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        target = self.partitions.get(partition_key(command.queue_id, command.partition))
        if target is None:
            if command.queue_id > self.marks.queue_id:
                raise NotNow("The journal does not know the queue yet.")
            return MoveInOutcome([], is_gone=True), Wait.COMMIT
        outcome = take_in(target, command, now_ms, proposal)
        if outcome.is_sealed:
            outcome.definition = self._newest(command.queue_id, target.definition)
        return outcome, Wait.COMMIT

    def _end_moves(self, command: EndMoves, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        source = self.partitions.get(partition_key(command.queue_id, command.partition))
        pair = source.moves_to(command.target_key) if source is not None else None
        if source is None or pair is None:
            return Done(), Wait.NOTHING  # the queue was deleted
        begun: list[MoveBegun] = []
        withdrawn = command.withdrawn
        if command.elsewhere is not None:
            queue_id, _ = parts_of_key(command.target_key)
            queue = self._newest(queue_id, command.elsewhere) or command.elsewhere
            takes_moves = partial(self._takes_moves, queue_id)
            begun = go_on(
                *(source, pair, queue, takes_moves, now_ms, proposal),
                settled=command.taken,
                withdrawn=command.withdrawn,
            )
            withdrawn = [
                number
                for number, move in pair.open.items()
                if number not in command.taken and not move.is_output
            ]
        ended = [(number, 1) for number in command.taken if number in pair.open]
        ended += [(number, 0) for number in withdrawn if number in pair.open]
        if ended:
            other_end = OTHER_END.pack(*parts_of_key(command.target_key))
            payload = b"".join((other_end, *(ENDED.pack(number, taken) for number, taken in ended)))
            proposal.add(RecordType.MOVE_END, source, now_ms, payload=payload)
            moves = [(pair.open[number], taken) for number, taken in ended]
            dead = sum(taken and not (move.is_redrive or move.is_output) for move, taken in moves)
            totals_of(source, proposal.epoch).dead_lettered += dead
            arrived = self._end_moves_of(source, command.target_key, ended, now_ms)
            # Compaction looks again: records of outputs may be needed no more.
            self.messages_gone += sum(move.is_output for move, _ in moves)
            if source.log is None:
                self.messages_gone += arrived
            self.messages_moved += arrived
            proposal.awake.add(source)
        return MovesGoOn(begun) if begun else Done(), Wait.COMMIT

    def _write_barrier(self, command: WriteBarrier, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        proposal.records.append(Record(RecordType.BARRIER, 0, 0, 0, 0, now_ms, 0, b""))
        return Done(), Wait.COMMIT

    def _take_for_move(self, command: TakeForMove, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
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
        for sequence in self._take_visible(partition, count_max, now_ms, task.stop or None):
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
        order = partition.order
        is_held = (
            not taken
            and isinstance(order, FIFOOrder)
            and order.holds_below(task.stop or partition.next_sequence)
        )
        return TakenForTask(taken, unfinished, is_held=is_held), Wait.NOTHING

    # Message move tasks

    def _start_task(self, command: StartMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partitions = self.partitions_asked(command.queue_id, command.partition)
        for partition in partitions:
            check_may_have_task(partition)
            if self.running_tasks.of_account(partition.definition.account_id) >= ACTIVE_TASKS_MAX:
                raise OverLimit(f"An account may have {ACTIVE_TASKS_MAX} active message move tasks.")
        target_id = command.target_queue_id
        if target_id is not None and target_id not in self.definitions and not self._may_reach_others():
            raise UnsupportedOperation(
                "The queues are in different journals of this cell, between which messages move once all its "
                "processes run this version: `quaymaster cell upgrade`."
            )
        started: list[MoveTask] = []
        for partition in partitions:
            self._advance(partition, now_ms)
            started += start_task(partition, command, now_ms, proposal, self.cell_format).tasks
            self.running_tasks.note(partition.key, partition)
        return MoveTasksOutcome(started), Wait.COMMIT

    def _may_reach_others(self) -> bool:
        return self.elsewhere is None or self.elsewhere.is_reachable

    def _cancel_task(self, command: CancelMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        cancelled: list[MoveTask] = []
        partitions = self.partitions_asked(command.queue_id, command.partition)
        for partition in partitions_running(partitions, command.task_id):
            cancelled += cancel_task(partition, command, now_ms, proposal).tasks
            self.running_tasks.note(partition.key, partition)
        return MoveTasksOutcome(cancelled), Wait.COMMIT

    def _finish_task(self, command: FinishMoveTask, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        finish_task(partition, command, now_ms, proposal)
        self.running_tasks.note(partition.key, partition)
        return Done(), Wait.COMMIT

    def _list_tasks(self, command: ListMoveTasks, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return list_tasks(self.partitions_asked(command.queue_id, command.partition)), Wait.NOTHING


def _duplicate(found: int | KeptMessage, partition: Partition) -> SendResult | Duplicate:
    """Return what is said of a message that was stored before."""
    if isinstance(found, KeptMessage):
        return SendResult(found.sequence, found.message_id, duplicate=True)
    return Duplicate(found, partition.key)


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

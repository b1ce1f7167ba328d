"""What a leader decides of messages on their way out: receives, visibility, deletes, and what time does to them.

Dead letters and messages of move tasks are set aside here, and wait for the decision that moves them
(`core/queues/queue_states`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from quaymaster.core.partition.expiry import find_expired
from quaymaster.core.partition.partition import IN_FLIGHT_MAX, Partition
from quaymaster.core.partition.partition_moves import AWAY_MAX, QueuesElsewhere
from quaymaster.core.partition.partition_totals import WAITS_BOUNDS_MS, Waits, totals_of
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.partition.receipts import (
    EXPIRED,
    holds,
    receipt_invalid,
    visibility_error,
    was_finished_by,
)
from quaymaster.core.partition.work.slices import Slices, Turn, Work
from quaymaster.core.queues.applied_queues import AppliedQueues
from quaymaster.core.queues.record_payloads import BY_RECEIVE, CHANGE, HAS_ATTEMPT, PAIR
from quaymaster.core.queues.transactions import expire_transactions
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.groups_left import GroupsLeft
from quaymaster.core.structures.orders.index import ChunkKeeper
from quaymaster.core.structures.timers import WorkLeft, round_up_to_slot_ms
from quaymaster.core.values.commands.decided import (
    Consume,
    Consumed,
    DeadLetter,
    ExpireMessages,
    Taken,
    TakenOutcome,
)
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    Delete,
    Done,
    Elsewhere,
    EntriesOutcome,
    Receive,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.partitions import ANY_TABLE, AskGroups, GroupsOutcome
from quaymaster.core.values.commands.unions import Decided
from quaymaster.core.values.errors import InvalidParameterValue, OverLimit, UnsupportedOperation
from quaymaster.core.values.partition_tables import parents_of
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.records import Record, RecordType

DEAD_LETTERS_PER_RECEIVE_MAX = 100
EXPIRED_PER_SWEEP_MAX = 1_000
DUE_PER_MS_MAX = 1_000
"""How many timeouts and delays that are over are worked off at one time, of all partitions together."""

_RECEIVE = int(RecordType.RECEIVE)


class ConsumedQueues(AppliedQueues):
    """The queues of one journal, as consumers and time empty them where it is led."""

    def __init__(
        self,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        id_limits: IdLimits = ID_LIMITS,
        in_flight_max: int = IN_FLIGHT_MAX,
        journal_id: int = 0,
    ) -> None:
        super().__init__(keeper, retry_window_ms=retry_window_ms, id_limits=id_limits, journal_id=journal_id)
        self._in_flight_max = in_flight_max
        self.messages_expired = 0
        self.waits = Waits()
        self._due_left = WorkLeft(DUE_PER_MS_MAX)
        self._due_at_ms = 0
        self.expiry_is_held = False
        """Set while the clock may be wrong: no message expires."""
        self._held_since_ms: int | None = None
        self.elsewhere: QueuesElsewhere | None = None
        """Where queues of other journals are; None: there are no other journals."""
        self._undecided: set[int] = set()
        """The partitions of which messages were taken for a move."""
        self.holding: set[int] = set()
        """The partitions that hold groups their parents may have, by key."""
        self.asking: set[int] = set()
        """Those of them that met such groups since the host looked."""

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
            earlier = partition.attempts.find(command.attempt, partition.in_flight, now_ms)
            if earlier is not None:
                # The messages may come back sooner than a parked receive expects.
                proposal.awake.add(partition)
                again = earlier.messages[: command.count_max]
                found = self._hand_out(partition, again, now_ms, timeout_ms, command.attempt, proposal)
                return TakenOutcome(partition.receipt_epoch(proposal.epoch), found, [], False), Wait.COMMIT
            # What is gone from a sealed partition may be in one of its children.
            if not partition.is_sealed and partition.attempts.is_spent(
                command.attempt, partition.in_flight, partition.is_live, now_ms
            ):
                raise InvalidParameterValue.attempt(command.attempt_id)
        if command.only_attempt:
            return self._nothing(command, proposal)
        room = self._in_flight_max - len(partition.in_flight)
        if room <= 0:
            is_behind = partition.is_behind(now_ms)
            if not is_behind and self._has_newer_table(command):
                return self._nothing(command, proposal)
            if not is_fifo and not command.wait_ms and not is_behind:
                raise OverLimit.in_flight(self._in_flight_max)
            return TakenOutcome(proposal.epoch, [], [], is_behind), Wait.NOTHING
        count_max = min(command.count_max, room)
        taken, dead_letters, unfinished = self._take(partition, count_max, now_ms, proposal)
        if not taken:
            if not dead_letters and not unfinished:
                return self._nothing(command, proposal)
            return TakenOutcome(proposal.epoch, [], dead_letters, unfinished), Wait.NOTHING
        if definition.is_at_most_once:
            found = self._set_aside(partition, taken, now_ms)
            return TakenOutcome(proposal.epoch, found, [], unfinished, is_to_consume=True), Wait.NOTHING
        attempt = command.attempt if is_fifo else None
        found = self._hand_out(partition, taken, now_ms, timeout_ms, attempt, proposal)
        outcome = TakenOutcome(partition.receipt_epoch(proposal.epoch), found, dead_letters, unfinished)
        # Else a later leader, which does not know of it, gives another delivery the same number.
        return outcome, Wait.COMMIT if is_fifo or definition.is_exactly_once else Wait.NOTHING

    def _begin_work(
        self, partition: Partition, slices: Slices, messages: int, turn: Turn
    ) -> tuple[Decided | Work, Wait]:
        """Begin what takes turns with so many messages; what is done at once has its outcome."""
        work = Work(self.family_of(partition.definition.queue_id), slices, is_decided=False)
        self.unfinished.begin(work, messages, turn)
        return work.outcome or work, Wait.COMMIT

    def _set_aside(self, partition: Partition, messages: list[tuple[int, int]], now_ms: int) -> list[Taken]:
        """Have messages, as (sequence, delivery count), wait for the decision that takes them out of the queue."""
        self._undecided.add(partition.key)
        found: list[Taken] = []
        for sequence, count in messages:
            partition.moving[sequence] = 0
            offset, sent_ms = partition.index.offset_and_sent_ms(sequence)
            before = partition.returned.get(sequence)
            first_ms = before.first_receive_ms or now_ms if before is not None else now_ms
            found.append(Taken(sequence, count, first_ms, sent_ms, offset))
        return found

    def _consume(self, command: Consume, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        # What was put back meanwhile is for the receive that takes it next, or has taken it.
        sequences = [sequence for sequence in command.sequences if sequence in partition.moving]
        if sequences:
            waits = [
                now_ms - partition.index.sent_ms(sequence)
                for sequence in sequences
                if sequence not in partition.returned
            ]
            for wait_ms in waits:
                self.waits.counts[bisect_left(WAITS_BOUNDS_MS, wait_ms)] += 1
            self.waits.sum_ms += sum(waits)
            totals = totals_of(partition, proposal.epoch)
            totals.received += len(sequences)
            totals.wait_ms += sum(waits)
            payload = array("Q", sequences).tobytes()
            proposal.add(RecordType.DELETE, partition, now_ms, flags=BY_RECEIVE, payload=payload)
            partition.apply_delete(sequences, now_ms)
            if partition.log is None:
                self.messages_gone += len(sequences)
            proposal.awake.add(partition)
        return Consumed(sequences), Wait.COMMIT

    def _watch(self, command: Watch, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        """Look whether a Receive would find something. A TakenOutcome, which is unfinished, says: look again."""
        partition = self._consumed(command.queue_id, command.partition)
        if self._advance(partition, now_ms):
            proposal.awake.add(partition)
        is_full = len(partition.in_flight) >= self._in_flight_max
        if not is_full and self._has_visible(partition, now_ms):
            return WatchOutcome(True), Wait.NOTHING
        if partition.is_behind(now_ms) or (not is_full and partition.order.unfinished):
            return TakenOutcome(proposal.epoch, [], [], True), Wait.NOTHING
        return self._nothing(command, proposal)

    def _nothing(self, command: Receive | Watch, proposal: Proposal) -> tuple[Decided, Wait]:
        """Return what one that finds nothing is answered: where else to look, if its table is an older one.

        That waits for commit: a table that is not committed may still be discarded.
        """
        if self._has_newer_table(command):
            return Elsewhere(self.definitions[command.queue_id]), Wait.COMMIT
        if self.holding and not getattr(command, "only_attempt", False) and self._holds_messages(command):
            return TakenOutcome(proposal.epoch, [], [], False, is_held=True), Wait.NOTHING
        if type(command) is Watch:
            return WatchOutcome(False), Wait.NOTHING
        return TakenOutcome(proposal.epoch, [], [], False), Wait.NOTHING

    def _holds_messages(self, command: Receive | Watch) -> bool:
        """Return whether a partition has messages of groups that its parents may have."""
        order = self.partitions[partition_key(command.queue_id, command.partition)].order
        return isinstance(order, FIFOOrder) and order.holds is not None and order.holds.count > 0

    def _has_newer_table(self, command: Receive | Watch) -> bool:
        return ANY_TABLE < command.table_version < self.definitions[command.queue_id].table_version

    def _take(
        self, partition: Partition, count_max: int, now_ms: int, proposal: Proposal
    ) -> tuple[list[tuple[int, int]], list[DeadLetter], bool]:
        """Take visible messages, with the delivery count of each; set expired ones and dead letters aside.

        The last value says whether a further look may find more.
        """
        taken: list[tuple[int, int]] = []
        expired: list[int] = []
        dead_letters: list[DeadLetter] = []
        has_returned = bool(partition.returned)
        target_id = self._dead_letter_target(partition)
        oldest_ms = self._oldest_ms(partition, now_ms)
        may_have_expired = partition.may_have_expired(oldest_ms)
        if may_have_expired and not self.expiry_is_held and not partition.has_moved_in:
            # All in front at once: one by one, a hundred receives would meet a thousand each in one turn.
            self._expire_some(partition, now_ms, proposal)
            may_have_expired = partition.may_have_expired(oldest_ms)
        dropped = 0
        is_bounded = False
        while len(taken) < count_max and not is_bounded:
            found = self._take_visible(partition, count_max - len(taken), now_ms)
            if not found:
                if not expired:
                    break
                # What expired may be all that kept its FIFO group from giving more.
                dropped += len(expired)
                self._drop_expired(partition, expired, now_ms, proposal)
                expired = []
                continue
            if may_have_expired:
                found = _without_expired(partition, found, oldest_ms, expired)
            if has_returned:
                taken += _without_dead_letters(partition, found, target_id, dead_letters)
            else:
                taken += [(sequence, 1) for sequence in found]
            is_bounded = (
                len(dead_letters) >= DEAD_LETTERS_PER_RECEIVE_MAX
                or dropped + len(expired) >= EXPIRED_PER_SWEEP_MAX
            )
        unfinished = len(taken) < count_max and (
            partition.order.unfinished or is_bounded or partition.is_behind(now_ms)
        )
        self._drop_expired(partition, expired, now_ms, proposal)
        if dead_letters:
            self._undecided.add(partition.key)
        return taken, dead_letters, unfinished

    def _take_visible(
        self, partition: Partition, count_max: int, now_ms: int, stop: int | None = None
    ) -> list[int]:
        """As `Partition.take_visible`; nothing of groups that an older partition may have messages of."""
        order = partition.order
        if not isinstance(order, FIFOOrder):
            return partition.take_visible(count_max, now_ms, stop)
        self._follow_parents(partition, order, now_ms)
        found = partition.take_visible(count_max, now_ms, stop)
        self._note_held(partition, order)
        return found

    def _has_visible(self, partition: Partition, now_ms: int) -> bool:
        """As `Partition.has_visible`; groups that an older partition may have messages of do not count."""
        order = partition.order
        if not isinstance(order, FIFOOrder):
            return partition.has_visible(now_ms)
        self._follow_parents(partition, order, now_ms)
        found = partition.has_visible(now_ms)
        self._note_held(partition, order)
        return found

    def _follow_parents(self, partition: Partition, order: FIFOOrder, now_ms: int) -> None:
        """Hold what the parents of now may have, if the table has changed."""
        if order.held_by is not partition.definition:
            order.held_by = partition.definition
            parents = parents_of(partition.definition, partition.number)
            order.hold([entry.number for entry in parents], now_ms)
            if parents:
                self.holding.add(partition.key)
            else:
                self.holding.discard(partition.key)

    def _note_held(self, partition: Partition, order: FIFOOrder) -> None:
        if order.holds is not None and order.holds.is_waiting:
            self.asking.add(partition.key)

    def _ask_groups(self, command: AskGroups, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partitions.get(partition_key(command.queue_id, command.partition))
        order = partition.order if partition is not None else None
        if partition is None or not partition.is_sealed or not isinstance(order, FIFOOrder):
            return GroupsOutcome(b"", is_sealed=False), Wait.NOTHING
        left = partition.groups_left = partition.groups_left or GroupsLeft()
        gone = left.gone(order, partition.index, array("Q", command.groups))
        if gone is None:
            return GroupsOutcome(b"", is_sealed=False), Wait.NOTHING
        # What is gone must be so for every later leader: else a message of the child is followed by an older one.
        return GroupsOutcome(array("Q", gone).tobytes()), Wait.COMMIT if gone else Wait.NOTHING

    @property
    def held_groups(self) -> int:
        """How many groups wait for older partitions, as receives have met them."""
        partitions = [self.partitions.get(key) for key in self.holding]
        orders = [partition.order for partition in partitions if partition is not None]
        return sum(
            order.holds.count for order in orders if isinstance(order, FIFOOrder) and order.holds is not None
        )

    def _dead_letter_target(self, partition: Partition) -> int | None:
        """Return where dead letters go: a queue's id, 0 if that must be found out, None if they stay."""
        policy = partition.definition.redrive_policy
        if policy is None:
            return None
        target_id = self.queue_of_arn(policy.target)
        queue = self.definitions[target_id] if target_id is not None else None
        if queue is None:
            queue = self.elsewhere.find(str(policy.target)) if self.elsewhere is not None else None
        if queue is None or queue.keeps_all:
            return None
        if any(entry.journal_id != self.journal_id for entry in queue.partitions) or not queue.queue_id:
            leaving = len(partition.moves.leaving) if partition.moves is not None else 0
            if len(partition.moving) + leaving >= AWAY_MAX:
                return None
        return queue.queue_id

    def _hand_out(
        self,
        partition: Partition,
        messages: list[tuple[int, int]],
        now_ms: int,
        timeout_ms: int,
        attempt: bytes | None,
        proposal: Proposal,
    ) -> list[Taken]:
        """Have messages, as (sequence, delivery count), be out until the timeout passes."""
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
        waited_ms = 0
        wait_counts = self.waits.counts
        for sequence, count in messages:
            offset, sent_ms = find(sequence)
            first_ms = now_ms
            before = None
            if count > 1 or attempt is not None:
                # In flight already: the receive of an attempt is repeated.
                before = returned.get(sequence) or in_flight.get(sequence)
                first_ms = before.first_receive_ms or now_ms if before else now_ms
            if before is None:
                wait_ms = now_ms - sent_ms
                waited_ms += wait_ms
                wait_counts[bisect_left(WAITS_BOUNDS_MS, wait_ms)] += 1
            taken.append(Taken(sequence, count, first_ms, sent_ms, offset))
        partition.apply_receive(messages, now_ms, timeout_ms, proposal.epoch, attempt, taken=True)
        totals = totals_of(partition, proposal.epoch)
        totals.received += len(messages)
        totals.wait_ms += waited_ms
        self.waits.sum_ms += waited_ms
        return taken

    def count_empty(self, command: Receive, epoch: int) -> None:
        """A receive is answered without messages by the leader of an epoch; a part of another says nothing."""
        self._count_empty(command, epoch, 0 if command.is_part else 1)

    def count_empty_before(self, command: Receive | Watch, epoch: int) -> None:
        """A front end says with a command that receives of several partitions have ended without messages."""
        self._count_empty(command, epoch, command.empty_before)

    def _count_empty(self, command: Receive | Watch, epoch: int, number: int) -> None:
        partition = self.partitions.get(partition_key(command.queue_id, command.partition))
        if partition is not None and number:
            totals_of(partition, epoch).empty_receives += number
            partition.note_touch()

    def _delete(self, command: Delete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self._consumed(command.queue_id, command.partition)
        is_fifo, is_exactly_once = partition.definition.is_fifo, partition.definition.is_exactly_once
        if is_fifo:
            self._advance(partition, now_ms)
        errors: list[Exception | None] = []
        sequences: list[int] = []
        gone = 0
        for receipt in command.receipts:
            sequence = receipt.sequence
            error: Exception | None = None
            if is_exactly_once and not holds(partition, receipt, now_ms):
                if was_finished_by(partition, receipt, now_ms):
                    gone += 1
                else:
                    error = receipt_invalid(EXPIRED)
            elif not partition.is_live(sequence):
                gone += 1
            elif is_fifo and not holds(partition, receipt, now_ms):
                error = receipt_invalid(EXPIRED)
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

    def _consumed(self, queue_id: int, number: int) -> Partition:
        """Return a partition whose messages are received and deleted; of a log those of its groups are."""
        partition = self.partition(queue_id, number)
        if partition.sizes is not None:
            raise UnsupportedOperation("A log-retained queue is read by its consumer groups.")
        return partition

    # Time

    def _expire(self, command: ExpireMessages, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        if not self.expiry_is_held:
            self._expire_some(partition, now_ms, proposal)
        expire_transactions(partition, now_ms, proposal, since_ms=self.staged_since_ms(now_ms))
        self.open_stages.note(partition)
        return Done(), Wait.NOTHING

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
            totals_of(partition, proposal.epoch).expired += before - partition.alive
            proposal.awake.add(partition)

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
            totals_of(partition, proposal.epoch).expired += len(expired)

    def _oldest_ms(self, partition: Partition, now_ms: int) -> int:
        """Return the send time at or before which a message has expired.

        Of a log that is pinned none has for its groups, as long as the log has it.
        """
        definition = partition.definition
        is_pinned = partition.log is not None and (definition.retention_pins or definition.has_legal_hold)
        return -1 if self.expiry_is_held or is_pinned else now_ms - definition.retention_ms

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

    def _advance(self, partition: Partition, now_ms: int) -> bool:
        """Bring a partition up to `now_ms`, as far as this millisecond's share of that work goes.

        A receive that then finds nothing asks again; so many messages that are due at once do not hold up others.
        """
        if not partition.is_behind(now_ms):
            return False
        if now_ms != self._due_at_ms:
            self._due_at_ms = now_ms
            self._due_left.entries = DUE_PER_MS_MAX
        return partition.advance(now_ms, self._due_left)


def _without_expired(partition: Partition, found: list[int], oldest_ms: int, expired: list[int]) -> list[int]:
    """Return the messages that were sent after `oldest_ms`; the others are set aside, and added to `expired`."""
    sent_ms = partition.index.sent_ms
    fresh: list[int] = []
    for sequence in found:
        if sent_ms(sequence) <= oldest_ms:
            partition.moving[sequence] = 0
            expired.append(sequence)
        else:
            fresh.append(sequence)
    return fresh


def _without_dead_letters(
    partition: Partition, found: list[int], target_id: int | None, dead_letters: list[DeadLetter]
) -> list[tuple[int, int]]:
    """Return messages with the counts of these deliveries; those that had too many are set aside for `target_id`."""
    definition = partition.definition
    receives_max = definition.redrive_policy.receive_count_max if definition.redrive_policy else 0
    counted: list[tuple[int, int]] = []
    for sequence in found:
        before = partition.returned.get(sequence)
        if before is None:
            counted.append((sequence, 1))
        elif target_id is None or before.delivery_count - before.arrived_count < receives_max:
            counted.append((sequence, before.delivery_count + 1))
        else:
            partition.moving[sequence] = target_id
            offset, _ = partition.index.offset_and_sent_ms(sequence)
            dead_letters.append(
                DeadLetter(definition.queue_id, partition.number, sequence, offset, target_id)
            )
    return counted


def _stored_timeout_ms(definition: QueueDefinition, now_ms: int, timeout_ms: int) -> int:
    """Return the visibility timeout that is decided: to the slot's end, of a FIFO queue exactly.

    There a receipt is refused once it is over, so a client sees when that is.
    """
    if not timeout_ms or definition.is_fifo:
        return timeout_ms
    return round_up_to_slot_ms(now_ms + timeout_ms) - now_ms

"""One partition of a queue: every message's state, as a pure function of the journal's records.

    Send ──▶ delayed ──time──▶ visible ──Receive──▶ in flight ──Delete──▶ gone
                                  ▲                     │
                                  └──── timeout ────────┘

What is kept is only what cannot be derived: `head` (below it everything is deleted), a bitmap of deleted messages
above it, a row for each message in flight, the delivery count of each that came back, timers of single delays,
recent ids. Bodies, groups and send times stay in the journal and its index.

The leader decides with `take_visible` and the questions below; leader and follower then change state by the same
`apply_*` methods, which take a record's values. `advance` brings timeouts up to a time; how often it is called
changes nothing, because due times are slot ends (`core/structures/timers`) and nothing else happens in between.

Nothing is consumed of a log-retained queue's partition: it has the index, and a head that retention and purges move.
Each of its consumer groups is a partition like any other, but that it reads the log's index and is told what comes and
goes there (`core/partition/consumer_groups`). A snapshot may have a group as of another moment than its log. As of an
earlier one, the log may have dropped what the group still had: that is gone for it, too, and `consumer_groups.follow`
makes it so before the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyroaring import BitMap64

from quaymaster.core.partition.partition_moves import MovesOut, PartitionMoves
from quaymaster.core.partition.partition_totals import PartitionTotals
from quaymaster.core.partition.staged_messages import StagedMessages
from quaymaster.core.structures.deliveries import CLAIMED_MS, RETURNED_PACKING, Attempts, InFlight, Returned
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.ids.sent_ids import SentIds
from quaymaster.core.structures.ids.settled_deliveries import BY_DELETE, SettledDeliveries
from quaymaster.core.structures.log_sizes import LogSizes
from quaymaster.core.structures.message_sums import NO_SHARE
from quaymaster.core.structures.orders.claims import Claims, OpenClaim
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.groups_left import GroupsLeft
from quaymaster.core.structures.orders.index import ChunkKeeper, GroupIndex, SentRun, SequenceIndex
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.structures.rows import RowTable
from quaymaster.core.structures.sequences import SequenceSet, end_of_run
from quaymaster.core.structures.timers import TimerWheel, WorkLeft, round_up_to_slot_ms
from quaymaster.core.values.commands.move_tasks import MoveTask
from quaymaster.core.values.queues.queue_definitions import FIRST_SEQUENCE, QueueDefinition

VISIBILITY_TIMEOUT_MAX_MS = 43_200_000
IN_FLIGHT_MAX = 120_000
DELAY_MAX_MS = 900_000
RESETS_SHIFT = 48
"""The epoch field of receipts has the number of resets from this bit on: counts that began again name others."""
RESETS_MAX = 0xFFFF
FAR_DEADLINE_MS = 60_000
"""A deleted message's entry in the wheel is taken out when it would stay there for longer than this."""


class Partition:
    """The state of one partition. Times are queue time in ms; sequences are the partition's own."""

    __slots__ = (
        "_oldest",
        "_settled_ids_max",
        "alive",
        "applied",
        "attempts",
        "claims",
        "counted_from",
        "definition",
        "deleted",
        "deletions",
        "dirty",
        "dirty_keys",
        "expiry_scan",
        "first_sequence",
        "groups",
        "groups_left",
        "has_moved_in",
        "head",
        "ids",
        "in_flight",
        "index",
        "is_touched",
        "log",
        "moved_in",
        "moves",
        "moving",
        "number",
        "order",
        "repeats_until_ms",
        "resets",
        "returned",
        "sealed_ms",
        "sent_until",
        "settled",
        "share",
        "sizes",
        "staged",
        "tasks",
        "timed",
        "timers",
        "totals",
        "touched_keys",
        "uncommitted_from",
        "watched",
        "wheel",
    )

    def __init__(
        self,
        definition: QueueDefinition,
        number: int,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        id_limits: IdLimits = ID_LIMITS,
        first_sequence: int = FIRST_SEQUENCE,
    ) -> None:
        self.definition = definition
        self.number = number
        self.first_sequence = first_sequence
        """What its first message has, or had."""
        self.index: SequenceIndex = (
            GroupIndex()
            if definition.group_of
            else SequenceIndex(keeper, b"%d/%d" % (definition.queue_id, number), first_sequence)
        )
        self.sizes = LogSizes() if definition.is_log else None
        """Of a log-retained queue's own partition, and only there."""
        self.groups: dict[int, Partition] = {}
        """The same partition of each consumer group of a log, by queue id."""
        self.log: Partition | None = None
        """The partition that a consumer group follows."""
        self.applied = 0
        self.head = first_sequence
        self.alive = 0
        self.deleted: BitMap64 = BitMap64()
        self.in_flight: RowTable[InFlight] = RowTable()
        self.returned: RowTable[Returned] = RowTable(RETURNED_PACKING)
        self.timed = SequenceSet()
        self.timers = TimerWheel()
        self.wheel = TimerWheel()
        self.ids = SentIds(retry_window_ms, id_limits, definition.dedup_window_ms)
        self.attempts = Attempts()
        self._settled_ids_max = id_limits.settled_ids_max
        self.claims: Claims | None = None
        self.settled: SettledDeliveries | None = None
        """Which deliveries finished their messages lately, and by what; there are none before the first."""
        self.resets = 0
        """How often delivery counts began again while the queue was ExactlyOnce: receipts say so with the epoch."""
        self.tasks: list[MoveTask] = []
        self.has_moved_in = False
        self.moved_in = 0
        """How many messages came from other queues, ever."""
        self.deletions = 0
        """How many messages consumers deleted, ever."""
        self.counted_from = 0
        """The offset from which on these two were counted: not 0 where a program before did not count them."""
        self.moves: PartitionMoves | None = None
        self.staged: StagedMessages | None = None
        self.sealed_ms = 0
        """When it was sealed, in queue time; 0: it is not. A sealed partition takes no message any more."""
        # Only the leader's: what is not committed, what is on its way to another queue, who waits for messages.
        self.uncommitted_from = 0
        """The first of those that this leader decided to send and that are not committed; 0: all are."""
        self.sent_until = 0
        """Behind the last of those that this leader decided to send: a commit in slices comes up to it later."""
        self.repeats_until_ms = 0
        """A message that may repeat another was stored: until then its first attempt may still arrive."""
        self.moving: dict[int, int] = {}
        self.watched = False
        self.groups_left: GroupsLeft | None = None
        """What was found for children that ask which groups are left."""
        self.expiry_scan = first_sequence
        """Where the next look for single messages that have expired begins."""
        self.dirty = True
        """Whether it changed since it was last put into a snapshot."""
        self.dirty_keys: set[int] | None = None
        """Where its key is while that is so: a set of the partitions of its journal."""
        self.is_touched = False
        """Whether there is news of it for those who watch queues (`core/partition/touched_partitions`)."""
        self.touched_keys: set[int] | None = None
        """Where its key is while that is so."""
        self.share = NO_SHARE
        """What it adds to the sums of its journal."""
        self.totals: PartitionTotals | None = None
        """What a leader counts, of its own epoch; None, or of an earlier one: nothing yet."""
        self._oldest = (0, 0)
        self.order: StandardOrder | FIFOOrder = self._new_order()

    @property
    def next_sequence(self) -> int:
        """The sequence number the next message gets."""
        return self.index.next_sequence

    @property
    def committed(self) -> int:
        """The sequence number behind the last committed message, as the leader knows it."""
        return self.uncommitted_from or self.index.next_sequence

    def note_commit(self, next_sequence: int) -> None:
        """Messages below `next_sequence` are committed."""
        end = max(self.sent_until, self.index.next_sequence)
        self.uncommitted_from = next_sequence if next_sequence < end else 0

    @property
    def oldest_sent_ms(self) -> int:
        """When the message at the head was sent; there is one. It is looked up once for each head."""
        if self._oldest[0] != self.head:
            self._oldest = self.head, self.index.sent_ms(self.head)
        return self._oldest[1]

    def note_change(self) -> None:
        """It is no longer what the last snapshot has of it, nor what those who watch queues were told."""
        if self.dirty and self.is_touched:
            return
        self.note_touch()
        if self.dirty:
            return
        self.dirty = True
        if self.dirty_keys is not None:
            self.dirty_keys.add(self.key)

    def note_touch(self) -> None:
        """There is news of it for those who watch queues."""
        if not self.is_touched and self.touched_keys is not None:
            self.is_touched = True
            self.touched_keys.add(self.key)

    def note_saved(self) -> None:
        """It is put into a snapshot as it is now."""
        self.dirty = False
        if self.dirty_keys is not None:
            self.dirty_keys.discard(self.key)

    # Questions

    @property
    def sends(self) -> int:
        """How many messages producers have stored here, ever: each took a number, and so did those moved here."""
        if self.definition.group_of:
            return 0
        return self.index.next_sequence - self.first_sequence - self.moved_in

    @property
    def is_sealed(self) -> bool:
        """Whether it takes no message any more."""
        return self.sealed_ms > 0

    def is_live(self, sequence: int) -> bool:
        """Return whether the message exists: sent, and neither deleted nor expired nor moved away."""
        return self.head <= sequence < self.index.next_sequence and sequence not in self.deleted

    def is_leaving(self, sequence: int) -> bool:
        """Return whether the message is on its way to another journal, and has a number."""
        return self.moves is not None and sequence in self.moves.leaving

    @property
    def key(self) -> int:
        """Its key among the partitions of its journal."""
        return self.definition.queue_id << 16 | self.number

    @property
    def is_sending_away(self) -> bool:
        """Whether moves to other journals are not settled."""
        return self.moves is not None and any(pair.open for pair in self.moves.out.values())

    @property
    def outputs_under_way(self) -> int:
        """How many outputs of completions of its messages are not settled."""
        return self.moves.outputs_under_way if self.moves is not None else 0

    def moves_to(self, target_key: int) -> MovesOut | None:
        """Return the moves to a partition of another journal, None if there never was one."""
        return self.moves.out.get(target_key) if self.moves is not None else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to do: it has no message, none leaving, no open transaction and no running task.

        Of a log that is so only once it is so of its groups: their dead letters leave by themselves.
        """
        return (
            not self.alive
            and not self.is_sending_away
            and not (self.staged is not None and self.staged.open)
            and not any(task.status in ("RUNNING", "CANCELLING") for task in self.tasks)
            and all(group.is_empty for group in self.groups.values())
        )

    @property
    def is_used(self) -> bool:
        """Whether it ever had anything."""
        return (
            self.index.next_sequence > self.first_sequence
            or self.moves is not None
            or self.staged is not None
            or self.claims is not None
            or bool(self.tasks)
        )

    def hidden(self, now_ms: int) -> tuple[int, int]:
        """Return how many messages are in flight and delayed; in a log none is."""
        if self.sizes is not None:
            return 0, 0
        # What is leaving may be visible at its target already: it is in flight here until that is settled.
        leaving = len(self.moves.leaving) if self.moves is not None else 0
        return len(self.in_flight) + leaving, len(self.timed) + self.order.count_waiting(now_ms)

    def receipt_epoch(self, epoch: int) -> int:
        """Return what receipts of deliveries in an epoch have for it."""
        return epoch | self.resets << RESETS_SHIFT

    def next_change_ms(self) -> int | None:
        """Return when, by time alone, a message may become visible next; None: never."""
        claims_ms = self.claims.due_ms if self.claims is not None else None
        times = (self.wheel.next_due_ms(), self.timers.next_due_ms(), self.order.next_due_ms, claims_ms)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def state_of(self, sequence: int, now_ms: int) -> str:
        """Return visible, in_flight or delayed for a live message, after `advance`; visible for all of a log."""
        if self.sizes is not None:
            return "visible"
        if sequence in self.in_flight or self.is_leaving(sequence):
            return "in_flight"
        is_delayed = sequence in self.timed or self.order.is_waiting(sequence, now_ms)
        return "delayed" if is_delayed else "visible"

    def may_have_expired(self, oldest_ms: int) -> bool:
        """Return whether a message may be from `oldest_ms` or before: the head is the oldest, but for moved ones."""
        return self.has_moved_in or (self.alive > 0 and self.oldest_sent_ms <= oldest_ms)

    def restore(self, index: SequenceIndex, head: int, deleted: BitMap64) -> None:
        """Have the messages of an index from `head` on but for the deleted ones, all committed, and none handed out."""
        self.index = index
        self.head = self.expiry_scan = head
        self.deleted = deleted
        self.alive = index.next_sequence - head - len(deleted)
        self.order = self._new_order()

    # Time

    def is_behind(self, now_ms: int) -> bool:
        """Return whether `advance` has something to do."""
        claims = self.claims
        return (
            self.wheel.is_due(now_ms)
            or self.timers.is_due(now_ms)
            or (claims is not None and claims.is_due(now_ms))
        )

    def advance(self, now_ms: int, left: WorkLeft | None = None) -> bool:
        """Bring timeouts and delays up to `now_ms`; return whether a message became visible.

        With `left`, go no further than that much work; `is_behind` says whether there is more. A message that
        is due meanwhile stays in flight for a moment longer, but its receipt is no longer good.
        """
        changed = False
        wheel, in_flight = self.wheel, self.in_flight
        while (due := wheel.take_some_due(now_ms, left)) is not None:
            due_ms, slot = due
            for sequence in slot:
                row = in_flight.get(sequence)
                # A timeout that was changed has its own entry: messages come back in the order of their times.
                if row is not None and row.deadline_ms == due_ms:
                    self._return(sequence, row, due_ms)
                    changed = True
        while (due := self.timers.take_some_due(now_ms, left)) is not None:
            for sequence in due[1]:
                if self.timed.discard(sequence):
                    self.order.became_due(sequence)
                    changed = True
        if self.claims is not None and self.claims.is_due(now_ms):
            for claim in self.claims.due(now_ms):
                changed |= self.give_back_claim(claim, claim.deadline_ms, left)
            self.claims.note_due()
        if changed:
            self.note_touch()
        return changed

    def give_back_claim(self, claim: OpenClaim, time_ms: int, left: WorkLeft | None) -> bool:
        """Let messages of a claim come back, all or as many as are left of that work; return whether one did."""
        changed = False
        in_flight = self.in_flight
        while claim.is_out and (left is None or left.entries > 0):
            sequence, count = claim.sequences[claim.returned], claim.counts[claim.returned]
            claim.returned += 1
            if left is not None:
                left.entries -= 1
            row = in_flight.get(sequence)
            if row is not None and row.deadline_ms == CLAIMED_MS and row.delivery_count == count:
                self._return(sequence, row, time_ms)
                changed = True
        return changed

    def return_if_due(self, sequence: int, now_ms: int) -> None:
        """Bring one message up to `now_ms`, where `advance` has not come to it yet."""
        row = self.in_flight.get(sequence)
        if row is not None and row.deadline_ms <= now_ms:
            self._return(sequence, row, row.deadline_ms)

    def defer(self, sequence: int, due_ms: int) -> None:
        """Give a message a timer of its own."""
        self.timed.add(sequence)
        self.timers.add(sequence, due_ms)

    def is_kept(self, place: int) -> bool:
        """Return whether somebody may still ask for a message that was staged at this place."""
        staged = self.staged
        if staged is None:
            return False
        if staged.is_open(place):
            return True  # first: what is committed meanwhile has a run by then
        run = staged.runs.find(place)
        return run is not None and self.is_live(run.sequence)

    # Deciding (leader)

    def take_visible(self, count_max: int, now_ms: int, stop: int | None = None) -> list[int]:
        """Remove up to `count_max` visible, committed messages from the order; each must be decided upon.

        With `stop`, none at or above it. What receives wait for is not forgotten by such a look.
        """
        order = self.order
        if stop is None or stop >= self.committed:
            return order.take(count_max, now_ms, self.committed, len(self.in_flight))
        due_ms = order.next_due_ms
        found = order.take(count_max, now_ms, stop, len(self.in_flight))
        if order.next_due_ms is None:
            order.next_due_ms = due_ms
        return found

    def has_visible(self, now_ms: int) -> bool:
        """Return whether `take_visible` would find something, after `advance`; `order.unfinished`: not all was seen."""
        return self.order.has_visible(now_ms, self.committed)

    def put_back(self, sequence: int, now_ms: int) -> None:
        """Undo `take_visible` for a message that is not handed out after all."""
        self.moving.pop(sequence, None)
        self.order.give_back(sequence, now_ms)

    # Applying records

    def apply_send(
        self,
        sequence: int,
        offset: int,
        time_ms: int,
        delay_ms: int,
        own_delay: bool,
        group: int,
    ) -> None:
        """A message was stored. `own_delay`: its delay is its own, not the queue's. Its ids are noted apart."""
        index = self.index
        assert sequence == index.next_sequence, (
            f"sequence {sequence} stored where {index.next_sequence} is next (queue {self.definition.queue_id})"
        )
        index.append(offset, time_ms, delay_ms, group)
        self.alive += 1
        self.note_change()
        if self.sizes is not None:
            if delay_ms:
                self.sizes.last_due_ms = max(self.sizes.last_due_ms, round_up_to_slot_ms(time_ms + delay_ms))
        elif own_delay:
            assert isinstance(self.order, StandardOrder), "a FIFO queue has no delays of single messages"
            if delay_ms:
                self.order.own.add(sequence)
                self.defer(sequence, round_up_to_slot_ms(time_ms + delay_ms))
            else:
                self.order.surface(sequence)
        if group:
            self.order.sent(group, time_ms)

    def apply_send_run(self, run: SentRun) -> None:
        """Messages were stored at once. Groups, ids and delays of their own are noted apart."""
        self.index.append_run(run)
        self.alive += run.length
        self.note_change()
        if self.sizes is not None and run.delay_ms:
            due_ms = round_up_to_slot_ms(run.sent_ms + run.delay_ms)
            self.sizes.last_due_ms = max(self.sizes.last_due_ms, due_ms)

    def defer_run(self, by_due_ms: dict[int, list[int]], surfaced: list[int]) -> None:
        """The newest messages have delays of their own: by when they are due, and those that are visible at once."""
        if self.sizes is not None:
            self.sizes.last_due_ms = max(self.sizes.last_due_ms, *by_due_ms, 0)
            return
        assert isinstance(self.order, StandardOrder), "a FIFO queue has no delays of single messages"
        delayed = BitMap64()
        for due_ms, sequences in by_due_ms.items():
            sequences.sort()
            delayed.update(sequences)
            self.timers.add_all(sequences, due_ms)
        self.timed.update(delayed)
        self.order.stored_apart(delayed, BitMap64(surfaced))

    def apply_move_in(
        self,
        sequence: int,
        offset: int,
        time_ms: int,
        sent_ms: int,
        delivery_count: int,
        first_receive_ms: int,
        group: int,
    ) -> None:
        """A message came from another queue. It keeps its count and, if `sent_ms` is older, its age.

        Neither deduplication nor the window of retried sends hears of it: a sender's id must not swallow a dead
        letter.
        """
        self.apply_send(sequence, offset, sent_ms, 0, False, group)
        self.moved_in += 1
        if delivery_count:
            self.returned[sequence] = Returned(delivery_count, first_receive_ms, delivery_count)
        if self.definition.delay_ms:
            self.order.surface(sequence)
        if sent_ms < time_ms:
            self.has_moved_in = True

    def apply_receive(
        self,
        messages: Sequence[tuple[int, int]],
        time_ms: int,
        timeout_ms: int,
        epoch: int,
        attempt: bytes | None,
        *,
        taken: bool,
    ) -> None:
        """Messages, as (sequence, delivery count), are out until `time_ms + timeout_ms`.

        `taken`: they were taken from the order already (the leader), else they are claimed now (replay).
        """
        deadline_ms = time_ms + timeout_ms
        if self.resets:
            epoch = self.receipt_epoch(epoch)
        in_flight, returned, order = self.in_flight, self.returned, self.order
        self.note_change()
        for sequence, delivery_count in messages:
            if sequence < self.head:
                continue  # gone since, as the log of this group knows: see `consumer_groups.follow`
            before = row = None
            if delivery_count > 1 or attempt is not None or not taken:
                before = returned.take(sequence)
                row = in_flight.get(sequence)
            if before is not None:
                first_ms, arrived = before.first_receive_ms or time_ms, before.arrived_count
            elif row is not None:
                first_ms, arrived = row.first_receive_ms, row.arrived_count
            else:
                first_ms, arrived = time_ms, 0
            if not taken and row is None:
                self.timed.discard(sequence)
                self.moving.pop(sequence, None)
                order.claim(sequence, time_ms)
            row = InFlight(deadline_ms, delivery_count, first_ms, time_ms, epoch, arrived)
            in_flight[sequence] = row
            if timeout_ms:
                self.wheel.add(sequence, deadline_ms)
            else:
                self._return(sequence, row, time_ms)
        if attempt is not None:
            self.attempts.note(attempt, messages, time_ms)

    def apply_change_visibility(
        self, sequence: int, time_ms: int, timeout_ms: int, delivery_count: int, epoch: int, *, changed: bool
    ) -> None:
        """A message is hidden until `time_ms + timeout_ms`, or with 0 visible now, whoever holds it."""
        row = self.in_flight.get(sequence)
        self.note_change()
        if row is None:
            if not timeout_ms or sequence < self.head:
                return
            before = self.returned.take(sequence)
            self.timed.discard(sequence)
            self.moving.pop(sequence, None)
            self.order.claim(sequence, time_ms)
            if before is not None:
                # A receipt of a receive that was lost may know of more deliveries than the journal does.
                count = max(before.delivery_count, delivery_count)
                row = InFlight(
                    0, count, before.first_receive_ms or time_ms, time_ms, epoch, before.arrived_count
                )
            else:
                row = InFlight(0, delivery_count, time_ms, time_ms, epoch, 0)
        row = InFlight(
            time_ms + timeout_ms,
            row.delivery_count,
            row.first_receive_ms,
            row.received_ms,
            row.epoch,
            row.arrived_count,
            changed,
        )
        self.in_flight[sequence] = row
        if timeout_ms:
            self.wheel.add(sequence, row.deadline_ms)
        else:
            self._return(sequence, row, time_ms)

    def apply_deletion(self, sequences: Sequence[int], time_ms: int) -> None:
        """Consumers deleted messages, each of which was there."""
        self.deletions += len(sequences)
        if self.definition.is_exactly_once:
            rows = [(sequence, self.in_flight.get(sequence)) for sequence in sequences]
            deliveries = [
                (sequence, row.delivery_count, row.epoch >> RESETS_SHIFT)
                for sequence, row in rows
                if row is not None
            ]
            self.note_finished(deliveries, time_ms)
        self.apply_delete(sequences, time_ms)

    def note_finished(
        self, deliveries: Iterable[tuple[int, int, int]], time_ms: int, *, by: int = BY_DELETE
    ) -> None:
        """Deliveries, as (sequence, delivery count, resets), finished their messages; `by` says by what."""
        if self.settled is None:
            self.settled = SettledDeliveries(self._settled_ids_max)
        for delivery in deliveries:
            self.settled.note(*delivery, time_ms, by=by)

    def count_reset(self) -> None:
        """From now on delivery counts name other deliveries than before."""
        self.resets = self.resets + 1 & RESETS_MAX

    def apply_delete(self, sequences: Sequence[int], time_ms: int) -> None:
        """Messages are gone: deleted, expired or moved away. Ones that are gone already are skipped."""
        self.note_change()
        next_sequence = self.index.next_sequence
        for sequence in sequences:
            if not self.head <= sequence < next_sequence or sequence in self.deleted:
                continue
            row = self.in_flight.take(sequence)
            if row is not None:
                if row.deadline_ms - time_ms > FAR_DEADLINE_MS:
                    self.wheel.discard(sequence, row.deadline_ms)
                self.order.settle(sequence, time_ms, row.received_ms)
            elif self.moving.pop(sequence, None) is not None or self._stop_leaving(sequence):
                self.order.settle(sequence, time_ms, time_ms)
                self.returned.take(sequence)
            else:
                self.returned.take(sequence)
                self.timed.discard(sequence)
                self.order.discard(sequence, time_ms)
            self.alive -= 1
            if sequence == self.head:
                self.head += 1
            else:
                self.deleted.add(sequence)
        self._move_head()
        self._forget_staged(time_ms)

    def apply_delete_below(self, stop: int) -> list[Iterator[None]]:
        """Every message below is gone (purge, expiry of the oldest).

        What was kept of them may take a while to free: whoever has no time for that takes the steps one by one.
        """
        if stop <= self.head:
            return []
        self.note_change()
        if stop >= self.index.next_sequence:
            return self.discard_all()
        gone = self.in_flight.take_below(stop)
        gone += [sequence for sequence in self.moving if sequence < stop]
        if self.moves is not None:
            gone += self.moves.leave_below(stop)
        self.order.left_flight(gone)
        for sequence in gone:
            self.moving.pop(sequence, None)
        self.order.discard_below(self.head, stop, self.is_live, self.returned.take_below(stop))
        self.set_head(stop)
        return []

    def set_head(self, stop: int) -> None:
        """Nothing is left below; what else was kept of it is gone already."""
        self.note_change()
        self.timed.discard_below(stop)
        self.deleted.remove_range(0, stop)
        self.head = stop
        self.alive = self.index.next_sequence - stop - len(self.deleted)
        self._move_head()
        if self.sizes is not None:
            self.sizes.drop_below(self.head)

    def apply_purge(self, stop: int, time_ms: int) -> list[Iterator[None]]:
        """The queue was purged: messages below are gone, and so is what deduplication remembers."""
        emptied = self.apply_delete_below(stop)
        self._forget_staged(time_ms)
        self.ids.forget()
        self.attempts.clear()
        self.note_change()
        return emptied

    def emptied(self) -> list[Iterator[None]]:
        """Return what empties a partition that is gone, in steps."""
        self.index.clear()
        emptied = self.discard_all()
        # A standard order refers to its partition: without that circle both are freed as soon as they are let go.
        self.order = FIFOOrder(self.index, 0)
        return emptied

    def discard_all(self) -> list[Iterator[None]]:
        """Have no messages any more. Returns what `apply_delete_below` does."""
        emptied = [self.in_flight.emptied(), self.returned.emptied(), *self.order.discard_all()]
        self.in_flight, self.returned, self.moving = RowTable(), RowTable(RETURNED_PACKING), {}
        if self.moves is not None:
            self.moves.leaving = {}
        self.timed = SequenceSet()
        self.timers, self.wheel = TimerWheel(), TimerWheel()
        self.deleted = BitMap64()
        self.has_moved_in = False
        self.head = self.index.next_sequence
        self.alive = 0
        self.index.drop_below(self.head)
        if self.sizes is not None:
            self.sizes.clear()
        return emptied

    def apply_definition(self, definition: QueueDefinition, time_ms: int) -> None:
        """The queue has new attributes."""
        if definition.is_exactly_once and not self.definition.is_exactly_once:
            self.count_reset()  # counts of before may have been given twice
        self.definition = definition
        self.ids.set_window(definition.dedup_window_ms)
        self.note_change()
        self.order.change_delay(definition.delay_ms)

    def apply_seal(self, time_ms: int) -> None:
        """It takes no message from now on, but for open transactions; of a FIFO queue these are dropped."""
        if self.sealed_ms:
            return
        self.note_change()
        self.sealed_ms = max(1, time_ms)
        if self.staged is not None and self.definition.is_fifo:
            for sink, batch in list(self.staged.open):
                self.staged.drop(sink, batch)

    def apply_task(self, task: MoveTask) -> None:
        """A move task began or changed its status."""
        self.note_change()
        for at, known in enumerate(self.tasks):
            if known.task_id == task.task_id:
                self.tasks[at] = task
                return
        self.tasks.append(task)
        del self.tasks[:-10]

    # Helpers

    def _new_order(self) -> StandardOrder | FIFOOrder:
        if self.definition.is_fifo:
            return FIFOOrder(self.index, self.definition.delay_ms)
        return StandardOrder(self, self.index, self.definition.delay_ms)

    def _stop_leaving(self, sequence: int) -> bool:
        """Forget that a message is leaving; return whether it was."""
        return self.moves is not None and self.moves.leaving.pop(sequence, None) is not None

    def _return(self, sequence: int, row: InFlight, time_ms: int) -> None:
        del self.in_flight[sequence]
        self.returned[sequence] = Returned(row.delivery_count, row.first_receive_ms, row.arrived_count)
        self.order.give_back(sequence, time_ms)

    def _move_head(self) -> None:
        deleted = self.deleted
        if deleted and self.head in deleted:
            stop = end_of_run(deleted, self.head)
            deleted.remove_range(self.head, stop)
            self.head = stop
        self.index.drop_below(self.head)

    def _forget_staged(self, time_ms: int) -> None:
        """Let go what was kept of messages below the head, also where no further transaction ever comes."""
        if self.staged is not None:
            self.staged.forget_runs(self.head, time_ms)

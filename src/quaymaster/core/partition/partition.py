"""One partition of a queue: how time and the journal's records change it, as a pure function of them.

    Send ──▶ delayed ──time──▶ visible ──Receive──▶ in flight ──Delete──▶ gone
                                  ▲                     │
                                  └──── timeout ────────┘

The leader decides with `take_visible` and the questions of `core/partition/partition_state`; leader and follower then
change state by the same `apply_*` methods, which take a record's values. `advance` brings timeouts up to a time; how
often it is called changes nothing, because due times are slot ends (`core/structures/timers`) and nothing else happens
in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyroaring import BitMap64

from quaymaster.core.partition.partition_state import RESETS_SHIFT, PartitionState
from quaymaster.core.structures.deliveries import CLAIMED_MS, RETURNED_PACKING, InFlight, Returned
from quaymaster.core.structures.ids.settled_deliveries import BY_DELETE, SettledDeliveries
from quaymaster.core.structures.orders.claims import OpenClaim
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.index import SentRun
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.structures.rows import RowTable
from quaymaster.core.structures.sequences import SequenceSet, end_of_run
from quaymaster.core.structures.timers import TimerWheel, WorkLeft, round_up_to_slot_ms
from quaymaster.core.values.commands.move_tasks import MoveTask
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

VISIBILITY_TIMEOUT_MAX_MS = 43_200_000
IN_FLIGHT_MAX = 120_000
DELAY_MAX_MS = 900_000
RESETS_MAX = 0xFFFF
FAR_DEADLINE_MS = 60_000
"""A deleted message's entry in the wheel is taken out when it would stay there for longer than this."""


class Partition(PartitionState):
    """One partition. Times are queue time in ms; sequences are the partition's own."""

    __slots__ = ()

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
        """A message is hidden until `time_ms + timeout_ms`, or with 0 visible now, no matter who holds it."""
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

        What was kept of them may take a while to free: callers without time for that take the steps one by one.
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

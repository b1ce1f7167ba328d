"""One partition of a queue: every message's state, as a pure function of the journal's records.

    Send ──▶ delayed ──time──▶ visible ──Receive──▶ in flight ──Delete──▶ gone
                                  ▲                     │
                                  └──── timeout ────────┘

What is kept is only what cannot be derived: `head` (below it everything is deleted), a bitmap of deleted messages
above it, a row for each message in flight, the delivery count of each that came back, timers of single delays,
recent ids. Bodies, groups and send times stay in the journal and its index.

The leader decides with `take_visible` and the questions below; leader and follower then change state by the same
`apply_*` methods, which take a record's values. `advance` brings timeouts up to a time; how often it is called
changes nothing, because due times are slot ends (`core/timers`) and nothing else happens in between.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash
from pyroaring import BitMap64

from quaymaster.core.commands import MoveTask, QueueCounts
from quaymaster.core.fifo_order import FIFOOrder
from quaymaster.core.index import ChunkKeeper, SequenceIndex
from quaymaster.core.queue_definitions import QueueDefinition
from quaymaster.core.recent_ids import RecentIds
from quaymaster.core.sequences import SequenceSet, end_of_run
from quaymaster.core.standard_order import StandardOrder
from quaymaster.core.timers import TimerWheel, WorkLeft, round_up_to_slot_ms

STATE_VERSION = 2
DEDUP_WINDOW_MS = 300_000
ATTEMPT_WINDOW_MS = 300_000
ATTEMPTS_MAX = 100_000
VISIBILITY_TIMEOUT_MAX_MS = 43_200_000
IN_FLIGHT_MAX = 120_000
FAR_DEADLINE_MS = 60_000
"""A deleted message's entry in the wheel is taken out when it would stay there for longer than this."""


class InFlight(msgspec.Struct, array_like=True, gc=False):
    """A message that is out with a consumer. `epoch` and `delivery_count` name the delivery that holds it.

    `arrived_count` is the delivery count it had when it came into this queue (0 unless moved here): the redrive
    policy counts from there. `changed` says that its visibility was changed since it was received.
    """

    deadline_ms: int
    delivery_count: int
    first_receive_ms: int
    received_ms: int
    epoch: int
    arrived_count: int
    changed: bool = False


class Returned(msgspec.Struct, array_like=True, gc=False):
    """What is remembered of a message that was handed out before and is visible again."""

    delivery_count: int
    first_receive_ms: int
    arrived_count: int


class Attempt(msgspec.Struct, array_like=True, gc=False):
    """What a receive with a ReceiveRequestAttemptId handed out."""

    time_ms: int
    messages: list[tuple[int, int]]


class _State(msgspec.Struct, array_like=True):
    """What a snapshot says, but for recent ids. The tables are the partition's own: nothing is made for each row.

    So the order of the fields of this and of the rows' classes is a format: it changes with STATE_VERSION.
    """

    applied: int
    head: int
    deleted: bytes
    cursor: int
    stretches: list[int]
    passed: bytes
    own: bytes
    returned_order: list[int]
    groups: list[tuple[int, bytes]]
    line: list[tuple[int, int]]
    in_flight: dict[int, InFlight]
    in_flight_groups: dict[int, int]
    """FIFO: the group of each message in flight. Standard: how many each tenant has in flight."""
    returned: dict[int, Returned]
    timers: list[tuple[int, bytes]]
    attempts: dict[bytes, Attempt]
    tasks: list[MoveTask]
    has_moved_in: bool
    index: bytes


class Partition:
    """The state of one partition. Times are queue time in ms; sequences are the partition's own."""

    __slots__ = (
        "_expiry_scan",
        "_retry_ids_max",
        "_retry_window_ms",
        "alive",
        "applied",
        "attempts",
        "committed",
        "dedup",
        "definition",
        "deleted",
        "dirty",
        "has_moved_in",
        "head",
        "in_flight",
        "index",
        "moving",
        "number",
        "order",
        "retries",
        "returned",
        "tasks",
        "timed",
        "timers",
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
        retry_ids_max: int | None = None,
    ) -> None:
        self.definition = definition
        self.number = number
        self.index = SequenceIndex(keeper, b"%d/%d" % (definition.queue_id, number))
        self.applied = 0
        self.head = 1
        self.alive = 0
        self.deleted: BitMap64 = BitMap64()
        self.in_flight: dict[int, InFlight] = {}
        self.returned: dict[int, Returned] = {}
        self.timed = SequenceSet()
        self.timers = TimerWheel()
        self.wheel = TimerWheel()
        self.dedup: RecentIds | None = None
        self.retries: RecentIds | None = None
        self.attempts: dict[bytes, Attempt] = {}
        self.tasks: list[MoveTask] = []
        self.has_moved_in = False
        # Only the leader's: what is committed, what is on its way to another queue, who waits for messages.
        self.committed = 1
        self.moving: dict[int, int] = {}
        self.watched = False
        self.dirty = True
        self._retry_window_ms = retry_window_ms
        self._retry_ids_max = retry_ids_max
        self._expiry_scan = 1
        self.order: StandardOrder | FIFOOrder = self._new_order()

    @property
    def next_sequence(self) -> int:
        """The sequence number the next message gets."""
        return self.index.next_sequence

    # Questions

    def is_live(self, sequence: int) -> bool:
        """Return whether the message exists: sent, and neither deleted nor expired nor moved away."""
        return self.head <= sequence < self.index.next_sequence and sequence not in self.deleted

    def counts(self, now_ms: int) -> QueueCounts:
        """Return how many messages are visible, in flight and delayed, after `advance`."""
        in_flight = len(self.in_flight)
        delayed = len(self.timed) + self.order.count_waiting(now_ms)
        oldest = self.index.sent_ms(self.head) if self.alive else 0
        return QueueCounts(
            visible=max(0, self.alive - in_flight - delayed),
            in_flight=in_flight,
            delayed=delayed,
            oldest_sent_ms=oldest,
            noisy_groups=self.order.noisy_groups(now_ms, in_flight),
        )

    def next_change_ms(self) -> int | None:
        """Return when, by time alone, a message may become visible next; None: never."""
        times = (self.wheel.next_due_ms(), self.timers.next_due_ms(), self.order.next_due_ms)
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def state_of(self, sequence: int, now_ms: int) -> str:
        """Return visible, in_flight or delayed for a live message, after `advance`."""
        if sequence in self.in_flight:
            return "in_flight"
        is_delayed = sequence in self.timed or self.order.is_waiting(sequence, now_ms)
        return "delayed" if is_delayed else "visible"

    def may_have_expired(self, oldest_ms: int) -> bool:
        """Return whether a message may be from `oldest_ms` or before: the head is the oldest, but for moved ones."""
        return self.has_moved_in or (self.alive > 0 and self.index.sent_ms(self.head) <= oldest_ms)

    def find_expired(self, now_ms: int, count_max: int) -> tuple[int, list[int]]:
        """Return (first sequence that is kept, single expired ones above it); the caller proposes their end."""
        retention_ms = self.definition.retention_ms
        stop = min(self.committed, self.index.next_sequence)
        if not self.alive or self.head >= stop:
            return self.head, []
        if not self.has_moved_in:
            if self.index.sent_ms(self.head) + retention_ms > now_ms:
                return self.head, []
            return self.index.first_sent_after(self.head, stop, now_ms - retention_ms), []
        # Messages moved here keep the time they were first sent: look at each, a stretch at a time.
        expired: list[int] = []
        start = max(self._expiry_scan, self.head)
        end = min(stop, start + 4 * count_max)
        for sequence in range(start, end):
            if len(expired) == count_max:
                end = sequence
                break
            if sequence not in self.deleted and self.index.sent_ms(sequence) + retention_ms <= now_ms:
                expired.append(sequence)
        self._expiry_scan = end if end < stop else self.head
        return self.head, expired

    def find_duplicate(self, dedup: bytes | None, retry: bytes | None, now_ms: int) -> int | None:
        """Return the offset of the record that stored the same message within the window, or None."""
        if dedup is not None and self.dedup is not None:
            offset = self.dedup.find(dedup, now_ms)
            if offset is not None:
                return offset
        if retry is not None and self.retries is not None:
            return self.retries.find(retry, now_ms)
        return None

    def find_attempt(self, attempt: bytes, now_ms: int) -> Attempt | None:
        """Return an earlier receive of this attempt id whose messages are all still out, untouched; or None."""
        found = self.attempts.get(attempt)
        if found is None or found.time_ms + ATTEMPT_WINDOW_MS <= now_ms:
            return None
        for sequence, delivery_count in found.messages:
            row = self.in_flight.get(sequence)
            if (
                row is None
                or row.delivery_count != delivery_count
                or row.changed
                or row.deadline_ms <= now_ms
            ):
                return None
        return found

    # Time

    def is_behind(self, now_ms: int) -> bool:
        """Return whether `advance` has something to do."""
        return self.wheel.is_due(now_ms) or self.timers.is_due(now_ms)

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

    # Deciding (leader)

    def take_visible(self, count_max: int, now_ms: int) -> list[int]:
        """Remove up to `count_max` visible, committed messages from the order; each must be decided upon."""
        return self.order.take(count_max, now_ms, self.committed, len(self.in_flight))

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
        dedup: bytes | None,
        retry: bytes | None,
    ) -> None:
        """A message was stored. `own_delay`: its delay is its own, not the queue's."""
        index = self.index
        assert sequence == index.next_sequence, (
            f"sequence {sequence} stored where {index.next_sequence} is next (queue {self.definition.queue_id})"
        )
        index.append(offset, time_ms, delay_ms, group)
        self.alive += 1
        self.dirty = True
        if own_delay:
            assert isinstance(self.order, StandardOrder), "a FIFO queue has no delays of single messages"
            if delay_ms:
                self.order.own.add(sequence)
                self.defer(sequence, round_up_to_slot_ms(time_ms + delay_ms))
            else:
                self.order.surface(sequence)
        if group:
            self.order.sent(group, time_ms)
        if dedup is not None:
            if self.dedup is None:
                self.dedup = RecentIds(DEDUP_WINDOW_MS)
            self.dedup.add(dedup, offset, time_ms)
        if retry is not None:
            if self.retries is None:
                self.retries = RecentIds(self._retry_window_ms, self._retry_ids_max)
            self.retries.add(retry, offset, time_ms)

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
        self.apply_send(sequence, offset, sent_ms, 0, False, group, None, None)
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
        in_flight, returned, order = self.in_flight, self.returned, self.order
        self.dirty = True
        for sequence, delivery_count in messages:
            before = returned.pop(sequence, None)
            row = in_flight.get(sequence)
            if before is not None:
                first_ms, arrived = before.first_receive_ms or time_ms, before.arrived_count
            elif row is not None:
                first_ms, arrived = row.first_receive_ms, row.arrived_count
            else:
                first_ms, arrived = time_ms, 0
            if not taken and row is None:
                self.timed.discard(sequence)
                order.claim(sequence, time_ms)
            row = InFlight(deadline_ms, delivery_count, first_ms, time_ms, epoch, arrived)
            in_flight[sequence] = row
            if timeout_ms:
                self.wheel.add(sequence, deadline_ms)
            else:
                self._return(sequence, row, time_ms)
        if attempt is not None:
            self.attempts.pop(attempt, None)
            self.attempts[attempt] = Attempt(time_ms, list(messages))
            self._forget_attempts(time_ms)

    def apply_change_visibility(
        self, sequence: int, time_ms: int, timeout_ms: int, delivery_count: int, epoch: int, *, changed: bool
    ) -> None:
        """A message is hidden until `time_ms + timeout_ms`, or with 0 visible now, whoever holds it."""
        row = self.in_flight.get(sequence)
        self.dirty = True
        if row is None:
            if not timeout_ms:
                return
            before = self.returned.pop(sequence, None)
            self.timed.discard(sequence)
            self.order.claim(sequence, time_ms)
            if before is not None:
                # A receipt of a receive that was lost may know of more deliveries than the journal does.
                count = max(before.delivery_count, delivery_count)
                row = InFlight(
                    0, count, before.first_receive_ms or time_ms, time_ms, epoch, before.arrived_count
                )
            else:
                row = InFlight(0, delivery_count, time_ms, time_ms, epoch, 0)
            self.in_flight[sequence] = row
        row.changed = changed
        row.deadline_ms = time_ms + timeout_ms
        if timeout_ms:
            self.wheel.add(sequence, row.deadline_ms)
        else:
            self._return(sequence, row, time_ms)

    def apply_delete(self, sequences: Sequence[int], time_ms: int) -> None:
        """Messages are gone: deleted, expired or moved away. Ones that are gone already are skipped."""
        self.dirty = True
        next_sequence = self.index.next_sequence
        for sequence in sequences:
            if not self.head <= sequence < next_sequence or sequence in self.deleted:
                continue
            row = self.in_flight.pop(sequence, None)
            if row is not None:
                if row.deadline_ms - time_ms > FAR_DEADLINE_MS:
                    self.wheel.discard(sequence, row.deadline_ms)
                self.order.settle(sequence, time_ms, row.received_ms)
            elif self.moving.pop(sequence, None) is not None:
                self.order.settle(sequence, time_ms, time_ms)
                self.returned.pop(sequence, None)
            else:
                self.returned.pop(sequence, None)
                self.timed.discard(sequence)
                self.order.discard(sequence, time_ms)
            self.alive -= 1
            if sequence == self.head:
                self.head += 1
            else:
                self.deleted.add(sequence)
        self._move_head()

    def apply_delete_below(self, stop: int) -> None:
        """Every message below is gone (purge, expiry of the oldest)."""
        if stop <= self.head:
            return
        self.dirty = True
        for table in (self.in_flight, self.returned, self.moving):
            gone = [sequence for sequence in table if sequence < stop]
            if table is not self.returned:
                self.order.left_flight(gone)
            for sequence in gone:
                del table[sequence]
        self.timed.discard_below(stop)
        self.deleted.remove_range(0, stop)
        self.head = stop
        self.alive = self.index.next_sequence - stop - len(self.deleted)
        self.order.discard_below(stop)
        self._move_head()

    def apply_purge(self, stop: int) -> None:
        """The queue was purged: messages below are gone, and so is what deduplication remembers."""
        self.apply_delete_below(stop)
        self.dedup = None
        self.retries = None
        self.attempts.clear()
        self.dirty = True

    def apply_definition(self, definition: QueueDefinition, time_ms: int) -> None:
        """The queue has new attributes."""
        self.definition = definition
        self.dirty = True
        self.order.change_delay(definition.delay_ms)

    def apply_task(self, task: MoveTask) -> None:
        """A move task began or changed its status."""
        self.dirty = True
        for at, known in enumerate(self.tasks):
            if known.task_id == task.task_id:
                self.tasks[at] = task
                return
        self.tasks.append(task)
        del self.tasks[:-10]

    # Snapshots

    def pieces(self) -> list[bytes]:
        """Return the whole state, for a snapshot, as bytes to be joined; `applied` says which records are in it.

        A moment of a large partition's time: what is large either never changes and is not copied, or is encoded
        without an object for each row.
        """
        order = self.order
        groups: list[tuple[int, bytes]] = []
        line: list[tuple[int, int]] = []
        returned_order: list[int] = []
        stretches: list[int] = []
        passed = own = b""
        in_flight = self.in_flight
        in_flight_groups: dict[int, int]
        if isinstance(order, FIFOOrder):
            waiting = {key: group.waiting for key, group in order.groups.items() if group.waiting}
            # What was taken for a move is not decided yet: to whoever loads this it is visible.
            for sequence in self.moving:
                key = self.index.group(sequence)
                waiting[key] = SequenceSet(waiting.get(key, ()))
                waiting[key].add(sequence)
            groups = [(key, numbers.to_bytes()) for key, numbers in waiting.items()]
            line = order.line()
            in_flight_groups = {
                sequence: key
                for key, group in order.groups.items()
                for sequence in group.in_flight
                if sequence in in_flight
            }
        else:
            passed = order.fresh().to_bytes()
            own = order.own.to_bytes()
            stretches = order.stretches
            returned_order = [*self.moving, *order.returned]
            in_flight_groups = {
                key: tenant.in_flight for key, tenant in order.tenants.items() if tenant.in_flight
            }
            for sequence in self.moving if in_flight_groups else ():
                key = self.index.group(sequence)
                if in_flight_groups.get(key):
                    in_flight_groups[key] -= 1
        deleted = self.deleted
        deleted.run_optimize()
        state = _State(
            applied=self.applied,
            head=self.head,
            deleted=deleted.serialize() if deleted else b"",
            cursor=order.cursor,
            stretches=stretches,
            passed=passed,
            own=own,
            returned_order=returned_order,
            groups=groups,
            line=line,
            in_flight=in_flight,
            in_flight_groups=in_flight_groups,
            returned=self.returned,
            timers=[(due_ms, slot.to_bytes()) for due_ms, slot in self.timers.slots()],
            attempts=self.attempts,
            tasks=self.tasks,
            has_moved_in=self.has_moved_in,
            index=self.index.to_bytes(),
        )
        main = _encoder.encode(state)
        dedup = self.dedup.pieces() if self.dedup else []
        retries = self.retries.pieces() if self.retries else []
        sizes = len(main), sum(map(len, dedup)), sum(map(len, retries))
        return [_STATE_HEAD.pack(STATE_VERSION, *sizes), main, *dedup, *retries]

    def to_bytes(self) -> bytes:
        """Return `pieces` joined."""
        return b"".join(self.pieces())

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        definition: QueueDefinition,
        number: int,
        keeper: ChunkKeeper,
        *,
        retry_window_ms: int,
        retry_ids_max: int | None = None,
    ) -> Partition:
        """Rebuild the state from `to_bytes`. Index chunks are not read: the keeper may not be open yet.

        Raises ValueError when the bytes are not whole, msgspec.MsgspecError when they say something else.
        """
        if len(data) < _STATE_HEAD.size:
            raise ValueError("the partition's state is cut off")
        version, main_bytes, dedup_bytes, retries_bytes = _STATE_HEAD.unpack_from(data)
        assert version == STATE_VERSION, f"partition state version {version} is not known"
        dedup_at = _STATE_HEAD.size + main_bytes
        retries_at = dedup_at + dedup_bytes
        if retries_at + retries_bytes != len(data):
            raise ValueError("the partition's state is cut off")
        state = _decoder.decode(memoryview(data)[_STATE_HEAD.size : dedup_at])
        partition = cls(
            definition, number, keeper, retry_window_ms=retry_window_ms, retry_ids_max=retry_ids_max
        )
        partition.index = SequenceIndex.from_bytes(
            state.index, keeper, b"%d/%d" % (definition.queue_id, number)
        )
        partition.applied = state.applied
        partition.head = partition._expiry_scan = state.head
        partition.deleted = BitMap64.deserialize(state.deleted) if state.deleted else BitMap64()
        partition.alive = partition.index.next_sequence - state.head - len(partition.deleted)
        partition.committed = partition.index.next_sequence
        partition.in_flight = state.in_flight
        last_ms = 0
        for sequence, row in state.in_flight.items():
            partition.wheel.add(sequence, row.deadline_ms)
            last_ms = max(last_ms, row.received_ms)
        partition.returned = state.returned
        slots = [(due_ms, SequenceSet.from_bytes(numbers)) for due_ms, numbers in state.timers]
        partition.timers.load(slots)
        for _, numbers in slots:
            for sequence in numbers:
                if partition.is_live(sequence):
                    partition.timed.add(sequence)
        if dedup_bytes:
            partition.dedup = RecentIds.from_bytes(data[dedup_at:retries_at], DEDUP_WINDOW_MS)
        if retries_bytes:
            partition.retries = RecentIds.from_bytes(data[retries_at:], retry_window_ms, retry_ids_max)
        partition.attempts = state.attempts
        partition.tasks = state.tasks
        partition.has_moved_in = state.has_moved_in
        order = partition.order = partition._new_order()
        order.cursor = state.cursor
        if isinstance(order, FIFOOrder):
            order.load_waiting((key, SequenceSet.from_bytes(numbers)) for key, numbers in state.groups)
            order.load_in_flight(list(state.in_flight_groups.items()), last_ms)
            order.load_line(state.line)
        else:
            order.passed = SequenceSet.from_bytes(state.passed)
            order.own = SequenceSet.from_bytes(state.own)
            order.load_stretches(state.stretches)
            order.returned.update(dict.fromkeys(state.returned_order))
            counts = state.in_flight_groups.items()
            order.load_in_flight([(0, group) for group, count in counts for _ in range(count)], last_ms)
        partition.dirty = False
        return partition

    def state_hash(self, now_ms: int) -> int:
        """Return a hash of the state as of `now_ms`: equal on all replicas that applied the same records."""
        self.advance(now_ms)
        order = self.order
        # On a FIFO queue, whether a raised delay hides a message depends on how far the scan has come.
        delayed = self.timed.bitmap()
        if isinstance(order, StandardOrder):
            delayed |= order.waiting(now_ms)
        visible = BitMap64()
        visible.add_range(order.cursor, self.index.next_sequence)
        if isinstance(order, StandardOrder):
            order.own.remove_from(visible)
            visible |= BitMap64(order.returned)
        visible |= order.fresh().bitmap()
        visible |= BitMap64(self.moving)
        visible -= delayed
        content: list[Any] = [
            self.head,
            self.index.next_sequence,
            self.alive,
            list(self.deleted),
            list(visible),
            sorted((sequence, msgspec.structs.astuple(row)) for sequence, row in self.in_flight.items()),
            sorted((sequence, msgspec.structs.astuple(row)) for sequence, row in self.returned.items()),
            list(delayed),
            self.dedup.entries(now_ms) if self.dedup else [],
            self.retries.entries(now_ms) if self.retries else [],
            sorted(
                (key, attempt.time_ms, attempt.messages)
                for key, attempt in self.attempts.items()
                if attempt.time_ms + ATTEMPT_WINDOW_MS > now_ms
            ),
            self.tasks,
        ]
        return xxhash.xxh3_64_intdigest(_encoder.encode(content))

    # Helpers

    def _new_order(self) -> StandardOrder | FIFOOrder:
        if self.definition.is_fifo:
            return FIFOOrder(self.index, self.definition.delay_ms)
        return StandardOrder(self, self.index, self.definition.delay_ms)

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

    def _forget_attempts(self, now_ms: int) -> None:
        attempts = self.attempts
        while True:
            oldest = next(iter(attempts))  # there is one: the newest was just added
            if attempts[oldest].time_ms + ATTEMPT_WINDOW_MS > now_ms and len(attempts) <= ATTEMPTS_MAX:
                return
            del attempts[oldest]


_STATE_HEAD = struct.Struct("<QQQQ")
"""Version, then bytes of the MessagePack, of the deduplication ids and of the retried sends' ids, which follow."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)

"""What is kept of one partition of a queue, and what can be asked of it.

Only what cannot be derived is kept: `head` (below it everything is deleted), a bitmap of deleted messages above it, a
row for each message in flight, the delivery count of each that came back, timers of single delays, recent ids. Bodies,
groups and send times stay in the journal and its index.

Nothing is consumed of a log-retained queue's partition: it has the index, and a head that retention and purges move.
Each of its consumer groups is a partition like any other, but that it reads the log's index and is told what comes and
goes there (`core/partition/consumer_groups`). A snapshot may have a group as of another moment than its log. As of an
earlier one, the log may have dropped what the group still had: that is gone for it, too, and `consumer_groups.follow`
makes it so before the replay.

How time and records change it: `core/partition/partition`.
"""

from __future__ import annotations

from typing import Self

from pyroaring import BitMap64

from quaymaster.core.partition.partition_moves import MovesOut, PartitionMoves
from quaymaster.core.partition.partition_totals import PartitionTotals
from quaymaster.core.partition.staged_messages import StagedMessages
from quaymaster.core.structures.deliveries import RETURNED_PACKING, Attempts, InFlight, Returned
from quaymaster.core.structures.ids.id_limits import ID_LIMITS, IdLimits
from quaymaster.core.structures.ids.sent_ids import SentIds
from quaymaster.core.structures.ids.settled_deliveries import SettledDeliveries
from quaymaster.core.structures.log_sizes import LogSizes
from quaymaster.core.structures.message_sums import NO_SHARE
from quaymaster.core.structures.orders.claims import Claims
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.groups_left import GroupsLeft
from quaymaster.core.structures.orders.index import ChunkKeeper, GroupIndex, SequenceIndex
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.structures.rows import RowTable
from quaymaster.core.structures.sequences import SequenceSet
from quaymaster.core.structures.timers import TimerWheel
from quaymaster.core.values.commands.move_tasks import MoveTask
from quaymaster.core.values.queues.queue_definitions import FIRST_SEQUENCE, QueueDefinition

RESETS_SHIFT = 48
"""The epoch field of receipts has the number of resets from this bit on: counts that began again name others."""


class PartitionState:
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
        self.groups: dict[int, Self] = {}
        """The same partition of each consumer group of a log, by queue id."""
        self.log: Self | None = None
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

    def is_kept(self, place: int) -> bool:
        """Return whether somebody may still ask for a message that was staged at this place."""
        staged = self.staged
        if staged is None:
            return False
        if staged.is_open(place):
            return True  # first: what is committed meanwhile has a run by then
        run = staged.runs.find(place)
        return run is not None and self.is_live(run.sequence)

    def restore(self, index: SequenceIndex, head: int, deleted: BitMap64) -> None:
        """Have the messages of an index from `head` on but for the deleted ones, all committed, and none handed out."""
        self.index = index
        self.head = self.expiry_scan = head
        self.deleted = deleted
        self.alive = index.next_sequence - head - len(deleted)
        self.order = self._new_order()

    def defer(self, sequence: int, due_ms: int) -> None:
        """Give a message a timer of its own."""
        self.timed.add(sequence)
        self.timers.add(sequence, due_ms)

    def _new_order(self) -> StandardOrder | FIFOOrder:
        if self.definition.is_fifo:
            return FIFOOrder(self.index, self.definition.delay_ms)
        return StandardOrder(self, self.index, self.definition.delay_ms)

"""Judges what clients see: nothing acknowledged is lost, nothing is invented, order and exclusivity hold (I15-I22).

Clients say what they ask and what they are told; the checker knows no server. What was asked and not answered may
have happened, and counts as neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.kernel import Violation

RETENTION_SHORT_MS = 60_000


@dataclass(frozen=True, slots=True)
class QueueKind:
    """What the checker must know of a queue."""

    queue_id: int
    name: str
    journal: int = 0
    """Which of the cell's journals, if it has so many."""
    is_fifo: bool = False
    delay_ms: int = 0
    visibility_timeout_ms: int = 5_000
    is_durable: bool = True
    """Whether what is acknowledged survives any minority of failures."""
    retention_ms: int = 345_600_000
    is_purged: bool = False
    """Whether somebody purges it now and then."""
    dead_letters: int | None = None
    """The queue that gets what was received too often."""
    receive_count_max: int = 0
    is_log: bool = False
    """Whether it keeps what is consumed: its groups have a checker each, to which what is sent to it is theirs."""
    group_of: int = 0
    guarantee: str = ""
    """Its DeliveryGuarantee, if it is another than AtLeastOnce."""
    dedup_window_s: int = 0
    """How long its deduplication ids are known, if that was set."""

    @property
    def has_dedup_ids(self) -> bool:
        """Whether its messages have deduplication ids."""
        return self.is_fifo or self.guarantee == "ExactlyOnce"


class Delivery(NamedTuple):
    """One message as a receive gave it. Times are queue time, stamped by the leader."""

    sequence: int
    number: int
    delivery_count: int
    epoch: int
    received_ms: int
    deadline_ms: int


@dataclass(slots=True)
class _Message:
    number: int
    queue_id: int
    group: int
    dedup: int
    delay_ms: int
    invoked_us: int
    floor: int
    """The highest sequence that was acknowledged before this send began."""
    acked_us: int | None = None
    sent_ms: int | None = None
    """Queue time of the send, where it is known."""
    places: dict[int, int] = field(default_factory=dict)
    """Sequence by queue, as far as it was seen."""
    deliveries: int = 0
    moved_us: int | None = None
    """When a receive from the queue of dead letters was answered with it."""
    last: Delivery | None = None
    last_queue: int = 0
    deletes_asked: int = 0
    deleted_us: dict[int, int] = field(default_factory=dict)
    """When a delete in a queue was acknowledged. One that came too late does not reach the dead letter."""
    is_hidden_by_any: bool = False
    """Somebody asked to change its visibility: on a standard queue that may still come, whoever holds it by then."""


@dataclass(slots=True)
class _Hold:
    """When a leader let nothing expire, in queue time. `until_ms` is None while it does."""

    since_ms: int
    until_ms: int | None = None

    def has(self, time_ms: int) -> bool:
        return self.since_ms <= time_ms and (self.until_ms is None or time_ms <= self.until_ms)


class QueueChecker:
    """One for a run. Message numbers are unique over all queues."""

    def __init__(self, queues: list[QueueKind]) -> None:
        self.queues = {queue.queue_id: queue for queue in queues}
        self.acked_sends = 0
        self.deliveries = 0
        self.redeliveries = 0
        self.acked_deletes = 0
        self._messages: dict[int, _Message] = {}
        self._at: dict[tuple[int, int], int] = {}
        self._dedup: dict[tuple[int, int], tuple[int, int]] = {}
        self._groups: dict[tuple[int, int], set[int]] = {}
        """Sequences of a FIFO group that are known to be in the queue and that nobody asked to delete."""
        self._floors: dict[int, int] = {}
        self._handed: set[tuple[int, int, int, int]] = set()
        self.journal_of: Callable[[QueueKind], int] = lambda queue: queue.journal
        """Which journal a queue is in: cells may have fewer than the queues name."""
        self._holds: dict[tuple[int, int], list[_Hold]] = {}
        """By journal and epoch: when its leader let nothing expire."""

    # What leaders do

    def look_at_hold(self, journal: int, epoch: int, *, is_held: bool, before_ms: int, now_ms: int) -> None:
        """A leader looked at its clocks, before that at `before_ms` of the queue time."""
        holds = self._holds.setdefault((journal, epoch), [])
        if holds and holds[-1].until_ms is None:
            if not is_held:
                holds[-1].until_ms = now_ms
        elif is_held:
            holds.append(_Hold(before_ms))

    # What clients say

    def send_asked(
        self, queue_id: int, number: int, *, group: int, dedup: int, delay_ms: int, now_us: int
    ) -> None:
        """A send begins."""
        floor = self._floors.get(queue_id, 0)
        self._messages[number] = _Message(number, queue_id, group, dedup, delay_ms, now_us, floor)

    def send_acked(self, number: int, sequence: int, original: int, now_us: int, sent_ms: int | None) -> None:
        """A send is acknowledged: it is at `sequence`, where message `original` is (another, for a duplicate).

        `sent_ms` is the queue time of the send; None for what is called a duplicate.
        """
        message = self._messages[number]
        if sent_ms is not None:
            message.sent_ms = sent_ms
        queue = self.queues[message.queue_id]
        if original != number:
            first = self._messages.get(original)
            if first is None or first.queue_id != message.queue_id or not message.dedup:
                raise Violation("I19", f"message {number} is called a duplicate of {original}")
            if first.dedup != message.dedup:
                raise Violation("I19", f"messages {number} and {original} have other deduplication ids")
        self.acked_sends += 1
        stored = self._messages[original]
        if queue.is_durable:
            stored.acked_us = stored.acked_us or now_us
            message.acked_us = message.acked_us or now_us
        if not queue.is_durable:
            return  # it may be lost, and another message get its place
        self._place(stored, message.queue_id, sequence)
        if original == number and sequence <= message.floor:
            raise Violation(
                "I18",
                f"message {number} got sequence {sequence}, but {message.floor} was acknowledged before",
            )
        self._floors[message.queue_id] = max(self._floors.get(message.queue_id, 0), sequence)

    def transaction_acked(self, numbers: list[int], now_us: int) -> None:
        """A transaction is committed: all of these are sent, and nobody says at which places."""
        for number in numbers:
            message = self._messages[number]
            message.acked_us = message.acked_us or now_us
            self.acked_sends += 1

    def place_of(self, number: int, queue_id: int) -> int | None:
        """Return where a message was seen to be in a queue."""
        return self._messages[number].places.get(queue_id)

    def delivered(self, queue_id: int, found: list[Delivery], *, asked_us: int, now_us: int) -> None:
        """A receive was answered."""
        queue = self.queues[queue_id]
        earlier: list[Delivery] = []
        for delivery in found:
            self._check_delivery(queue, delivery, earlier, asked_us)
            earlier.append(delivery)
            message = self._messages[delivery.number]
            if queue.queue_id != message.queue_id and message.moved_us is None:
                message.moved_us = now_us

    def claimed(self, queue_id: int, rows: list[tuple[int, int]], *, asked_us: int) -> None:
        """A claim was read, as (sequence, number): each of these is delivered, and may be read again."""
        for sequence, number in rows:
            message = self._messages.get(number)
            if message is None or message.queue_id != queue_id:
                raise Violation(
                    "I16", f"message {number} was not sent to queue {queue_id}, and is claimed there"
                )
            self._place(message, queue_id, sequence)
            if message.deleted_us.get(queue_id, asked_us) < asked_us:
                raise Violation(
                    "I17", f"message {number} was claimed by a request that began after it was deleted"
                )
            self.deliveries += 1
            message.deliveries += 1

    def settled(self, queue_id: int, numbers: list[int], *, now_us: int) -> None:
        """A settlement was acknowledged that deleted all of these."""
        for number in numbers:
            self.acked_deletes += 1
            self._messages[number].deleted_us.setdefault(queue_id, now_us)

    def visibility_asked(self, number: int) -> None:
        """A change of visibility begins: when the message is visible again is not known any more."""
        message = self._messages[number]
        message.is_hidden_by_any = True
        if message.last is not None:
            message.last = message.last._replace(deadline_ms=0)

    def delete_asked(self, numbers: list[int]) -> None:
        """A delete begins: from now on these may be gone."""
        for number in numbers:
            message = self._messages[number]
            message.deletes_asked += 1
            sequence = message.places.get(message.queue_id)
            if sequence is not None and message.group:
                self._groups[message.queue_id, message.group].discard(sequence)

    def delete_answered(self, queue_id: int, delivery: Delivery, *, is_done: bool, now_us: int) -> None:
        """A delete of what was delivered was acknowledged, or refused (then it changed nothing)."""
        message = self._messages[delivery.number]
        if is_done:
            self.acked_deletes += 1
            # Where a purge came between, its retry may have stored it once more: that one is not deleted.
            if message.places.get(queue_id) == delivery.sequence:
                message.deleted_us.setdefault(queue_id, now_us)
            return
        message.deletes_asked -= 1
        sequence = message.places.get(message.queue_id)
        if not message.deletes_asked and sequence is not None and message.group:
            self._groups[message.queue_id, message.group].add(sequence)

    def purge_asked(self, queue_id: int) -> list[int]:
        """A purge begins: from now on what was ever sent may be gone. Return what was acknowledged before."""
        acknowledged = []
        for message in self._messages.values():
            if message.queue_id == queue_id:
                message.deletes_asked += 1
                if message.acked_us is not None:
                    acknowledged.append(message.number)
        return acknowledged

    def purge_answered(self, queue_id: int, acknowledged: list[int], now_us: int) -> None:
        """A purge was acknowledged: what was acknowledged before it began is gone. What else was sent may be."""
        for message in self._messages.values():
            if message.queue_id == queue_id and message.invoked_us <= now_us:
                message.deletes_asked += 1
        for number in acknowledged:
            self._messages[number].deleted_us.setdefault(queue_id, now_us)

    def check_drained(self) -> None:
        """All queues say they are empty: what was acknowledged must have been delivered."""
        for message in self._messages.values():
            if self.queues[message.queue_id].retention_ms < RETENTION_SHORT_MS:
                continue  # it may have expired before anybody came for it
            if message.deletes_asked and self.queues[message.queue_id].is_purged:
                continue
            if message.acked_us is not None and not message.deliveries:
                duplicate_of = self._dedup.get((message.queue_id, message.dedup)) if message.dedup else None
                if duplicate_of is not None and duplicate_of[1] != message.number:
                    continue
                raise Violation(
                    "I15",
                    f"message {message.number} of queue {message.queue_id} (sequence "
                    f"{message.places.get(message.queue_id)}) was acknowledged and never delivered",
                )
            if message.acked_us is not None and not message.deletes_asked:
                if not message.deliveries:
                    continue
                raise Violation(
                    "I15",
                    f"message {message.number} of queue {message.queue_id} is gone, and nobody deleted it",
                )

    # Inside

    def _place(self, message: _Message, queue_id: int, sequence: int) -> None:
        """Note where a message is: one place in each queue, and one message at each place."""
        number = message.number
        there = self._at.setdefault((queue_id, sequence), number)
        if there != number:
            raise Violation(
                "I2", f"sequence {sequence} of queue {queue_id} is message {there} and message {number}"
            )
        known = message.places.setdefault(queue_id, sequence)
        if known != sequence and self.queues[queue_id].is_purged:
            # A purge came before its retry, and forgot that it was sent: this is another one.
            message.places[queue_id] = sequence
            message.deleted_us.pop(queue_id, None)
        elif known != sequence:
            raise Violation(
                "I19", f"message {number} of queue {queue_id} is stored twice, at {known} and {sequence}"
            )
        if message.dedup and queue_id == message.queue_id:
            first = self._dedup.setdefault((queue_id, message.dedup), (sequence, number))
            if first[0] != sequence:
                raise Violation(
                    "I19", f"messages {first[1]} and {number} have one deduplication id and are both stored"
                )
        if message.group and queue_id == message.queue_id and not message.deletes_asked:
            self._groups.setdefault((queue_id, message.group), set()).add(sequence)

    def _check_delivery(
        self, queue: QueueKind, delivery: Delivery, earlier: list[Delivery], asked_us: int
    ) -> None:
        number = delivery.number
        message = self._messages.get(number)
        if message is None:
            raise Violation("I16", f"message {number} was never sent")
        origin = self.queues[message.queue_id]
        if queue.queue_id not in (origin.queue_id, origin.dead_letters):
            raise Violation("I16", f"message {number} was sent to {origin.name} and came from {queue.name}")
        self.deliveries += 1
        if message.deliveries:
            self.redeliveries += 1
        self._place(message, queue.queue_id, delivery.sequence)
        if message.deleted_us.get(queue.queue_id, asked_us) < asked_us:
            raise Violation(
                "I17",
                f"message {number} was received by a request that began after its delete was acknowledged",
            )
        if queue.queue_id == message.queue_id and (message.moved_us or asked_us) < asked_us:
            raise Violation(
                "I19", f"message {number} is in {queue.name}, though it came as a dead letter before"
            )
        handed = queue.queue_id, delivery.sequence, delivery.delivery_count, delivery.epoch
        if handed in self._handed:
            raise Violation(
                "I22", f"message {number} was handed out twice with receive count {delivery.delivery_count}"
            )
        self._handed.add(handed)
        if queue.queue_id == message.queue_id and message.sent_ms is not None:
            self._check_age(queue, message, delivery)
        last = message.last if message.last_queue == queue.queue_id else None
        if (
            last is not None and last.sequence == delivery.sequence
        ):  # a purge, and its retry stored it once more
            self._check_again(queue, message, last, delivery)
        if last is None or delivery.received_ms >= last.received_ms:
            message.last, message.last_queue = delivery, queue.queue_id
        message.deliveries += 1
        if queue.is_fifo and message.group and queue.queue_id == message.queue_id:
            self._check_order(queue, message, delivery, earlier)
        if (
            queue.dead_letters is not None
            and delivery.delivery_count > queue.receive_count_max
            and (queue.is_fifo or delivery.delivery_count > queue.receive_count_max + 1)
        ):
            raise Violation(
                "I22", f"message {number} was received {delivery.delivery_count} times and is no dead letter"
            )

    def _check_age(self, queue: QueueKind, message: _Message, delivery: Delivery) -> None:
        """Nothing comes before its delay has passed, or after its retention period."""
        assert message.sent_ms is not None, "it is known when it was sent"
        age_ms = delivery.received_ms - message.sent_ms
        if age_ms < message.delay_ms:
            raise Violation(
                "I21",
                f"message {message.number} was received {age_ms} ms after it was sent; its delay is "
                f"{message.delay_ms} ms",
            )
        if age_ms > queue.retention_ms and not any(
            hold.has(delivery.received_ms)
            for hold in self._holds.get((self.journal_of(queue), delivery.epoch), ())
        ):
            raise Violation(
                "I21", f"message {message.number} was received {age_ms} ms after it was sent and had expired"
            )

    def _check_again(self, queue: QueueKind, message: _Message, last: Delivery, delivery: Delivery) -> None:
        """A message that was received before: hidden for its timeout, and counted."""
        is_strict = queue.is_fifo or delivery.epoch == last.epoch
        if not is_strict:
            return
        earlier, later = (last, delivery) if last.received_ms <= delivery.received_ms else (delivery, last)
        if earlier.received_ms == later.received_ms:
            earlier, later = (
                (earlier, later) if earlier.delivery_count < later.delivery_count else (later, earlier)
            )
        may_be_shown = message.is_hidden_by_any and not queue.is_fifo
        if later.received_ms < earlier.deadline_ms and not may_be_shown:
            raise Violation(
                "I20",
                f"message {message.number} is hidden until {earlier.deadline_ms} and was received again at "
                f"{later.received_ms}, in epochs {earlier.epoch} and {later.epoch}",
            )
        if later.delivery_count <= earlier.delivery_count:
            raise Violation(
                "I22",
                f"message {message.number} was received {earlier.delivery_count} times, then "
                f"{later.delivery_count} times",
            )

    def _check_order(
        self, queue: QueueKind, message: _Message, delivery: Delivery, earlier: list[Delivery]
    ) -> None:
        """On a FIFO queue a message comes only when every earlier one of its group is gone, or just before it."""
        together = {found.sequence for found in earlier}
        for sequence in self._groups.get((queue.queue_id, message.group), ()):
            if sequence < delivery.sequence and sequence not in together:
                other = self._messages[self._at[queue.queue_id, sequence]]
                if queue.dead_letters is not None:
                    continue  # it may have gone there, unseen
                raise Violation(
                    "I18",
                    f"message {message.number} (sequence {delivery.sequence}, group {message.group}) was "
                    f"received while {other.number} (sequence {sequence}) of its group is still there",
                )

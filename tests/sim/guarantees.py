"""Queues with other guarantees than AtLeastOnce in a simulated cell, and the judge of what their consumers see.

    once, once.fifo      AtMostOnce: D1, no message is in two answers; a group's messages are answered in their order
    exact, exact.fifo    ExactlyOnce: D2, each answered delivery has a number of its own; D3, one delivery of a message
    exact-log, @a        is told that it finished it, again and again, no other one is, and none is answered after
                         that; D6, one deduplication id is one message

`exact` has a window that is longer than records are kept, so its ids are stored with their messages. The group is reset
now and then, and then counts begin again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quaymaster.broker.replica.consuming_receives import ConsumingReceives
from quaymaster.core.partition.partition_state import RESETS_SHIFT
from quaymaster.core.values.commands.decided import Taken, TakenOutcome
from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    Delete,
    Delivery,
    EntriesOutcome,
    Receive,
    ReceiveOutcome,
)
from quaymaster.core.values.commands.unions import Command, InternalCommand, Outcome
from sim import queue_checker
from sim.clients import produce, receipts_of
from sim.kernel import MS, SECOND, Violation
from sim.messages import Received
from sim.moves import Records
from sim.queue_checker import QueueKind

if TYPE_CHECKING:
    from quaymaster.broker.replica.records.record_bodies import Body, RecordBodies
    from sim.cell import Cell
    from sim.clients import Client, Script
    from sim.replica import Asked, Replica

COLD_READS = 0.2
"""So many bodies are read from a disk, which takes up to so long."""
COLD_READ_S = 0.5
AGAIN_MAX_US = 20 * SECOND
"""A consumer may say once more that it is done, so much later."""
ONCE = "AtMostOnce"
EXACTLY = "ExactlyOnce"

GUARANTEED = 60
EXACT_LOG = GUARANTEED + 4
GUARANTEED_QUEUES = [
    QueueKind(GUARANTEED, "once", guarantee=ONCE),
    QueueKind(GUARANTEED + 1, "once.fifo", journal=1, is_fifo=True, guarantee=ONCE),
    QueueKind(
        GUARANTEED + 2,
        "exact",
        journal=2,
        visibility_timeout_ms=2_000,
        guarantee=EXACTLY,
        dedup_window_s=3_600,
    ),
    QueueKind(GUARANTEED + 3, "exact.fifo", is_fifo=True, visibility_timeout_ms=2_000, guarantee=EXACTLY),
    QueueKind(EXACT_LOG, "exact-log", journal=1, is_log=True, guarantee=EXACTLY),
    QueueKind(
        EXACT_LOG + 1,
        "exact-log@a",
        journal=1,
        group_of=EXACT_LOG,
        visibility_timeout_ms=2_000,
        guarantee=EXACTLY,
    ),
]


def is_judged_here_alone(kind: QueueKind) -> bool:
    """Tell whether what is lost, or comes again after it was deleted, is no mistake of a queue."""
    return kind.guarantee == ONCE or bool(kind.guarantee and (kind.is_log or kind.group_of))


class GuaranteeChecker:
    """One for a run. It hears of each answer as it leaves, and of what consumers are told."""

    def __init__(self, queues: list[QueueKind], *, has_true_time: bool) -> None:
        """`has_true_time`: queue time does not run ahead, so that what is known for minutes is known."""
        self.queues = {queue.queue_id: queue for queue in queues}
        self._has_true_time = has_true_time
        self._groups: dict[int, int] = {}
        self._answered: set[int] = set()
        self._last: dict[tuple[int, int], int] = {}
        self._deliveries: set[tuple[int, int, int, int]] = set()
        self._finished: dict[tuple[int, int, int], tuple[int, int]] = {}
        """By queue, sequence and resets: the count that was told to have finished the message, and when."""

    # As a `QueueChecker` hears of sends

    def send_asked(
        self, queue_id: int, number: int, *, group: int, dedup: int, delay_ms: int, now_us: int
    ) -> None:
        """A send begins."""
        self._groups[number] = group

    def send_acked(self, number: int, sequence: int, original: int, now_us: int, sent_ms: int | None) -> None:
        """A send is acknowledged. What becomes of it nobody promises."""

    # Answers

    def on_answer(self, command: object, outcome: object) -> None:
        """A replica answers a client."""
        if not isinstance(command, Receive) or not isinstance(outcome, Received):
            return
        queue = self.queues.get(command.queue_id)
        if queue is None:
            return
        for delivery in outcome.deliveries:
            if queue.guarantee == ONCE:
                self._check_once(queue, delivery)
            else:
                self._check_number(queue, delivery)

    def _check_once(self, queue: QueueKind, delivery: queue_checker.Delivery) -> None:
        number = delivery.number
        if number in self._answered:
            raise Violation("D1", f"message {number} of queue {queue.name} is in two answers")
        self._answered.add(number)
        group = queue.queue_id, self._groups[number]
        if queue.is_fifo and delivery.sequence < self._last.get(group, 0):
            raise Violation(
                "D1", f"message {number} of queue {queue.name} comes after later ones of its group"
            )
        self._last[group] = delivery.sequence

    def _check_number(self, queue: QueueKind, delivery: queue_checker.Delivery) -> None:
        resets = delivery.epoch >> RESETS_SHIFT
        key = queue.queue_id, delivery.sequence, delivery.delivery_count, resets
        if key in self._deliveries:
            raise Violation(
                "D2", f"two deliveries of message {delivery.number} have the count {delivery.delivery_count}"
            )
        self._deliveries.add(key)

    # What consumers see

    def delivered(self, queue_id: int, found: list[queue_checker.Delivery], *, asked_us: int) -> None:
        """A receive of an ExactlyOnce queue was answered, which had begun then."""
        for delivery in found:
            finished = self._finished.get(_message_of(queue_id, delivery))
            if finished is not None and finished[1] < asked_us:
                raise Violation("D3", f"message {delivery.number} was finished, and is delivered after that")

    def finished(
        self, queue_id: int, delivery: queue_checker.Delivery, *, is_told: bool, now_us: int
    ) -> None:
        """A consumer asked whether its delivery finishes its message, and was told so or not."""
        key = _message_of(queue_id, delivery)
        finished = self._finished.get(key)
        if not is_told:
            is_own = finished is not None and finished[0] == delivery.delivery_count
            if is_own and self._has_true_time:
                raise Violation(
                    "D3", f"a delivery of message {delivery.number} finished it, and is refused then"
                )
            return
        if finished is None:
            self._finished[key] = delivery.delivery_count, now_us
        elif finished[0] != delivery.delivery_count:
            raise Violation(
                "D3",
                f"deliveries {finished[0]} and {delivery.delivery_count} of message {delivery.number} are both "
                "told that they finished it",
            )


def _message_of(queue_id: int, delivery: queue_checker.Delivery) -> tuple[int, int, int]:
    return queue_id, delivery.sequence, delivery.epoch >> RESETS_SHIFT


# What clients do


def take(client: Client, queue: QueueKind) -> Script:
    """Receive from an AtMostOnce queue."""
    cell, random = client.cell, client.random
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        outcome = yield Receive(queue.queue_id, 0, random.choice((1, 3, 10)), takes_for_good=True)
        if isinstance(outcome, Received) and outcome.deliveries:
            yield random.randint(0, 20 * MS)
        else:
            yield random.randint(50 * MS, 300 * MS)


def finish(client: Client, queue: QueueKind, *, carelessness: float) -> Script:
    """Receive, work, and ask whether this delivery finishes the message: in time or too late, once or again."""
    cell, random = client.cell, client.random
    checker = cell.guarantee_checker
    judge = None if is_judged_here_alone(queue) else cell.queue_checker
    queue_id = queue.queue_id
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        asked_us = cell.kernel.now_us
        outcome = yield Receive(queue_id, 0, random.choice((1, 3, 10)))
        found = outcome.deliveries if isinstance(outcome, Received) else []
        checker.delivered(queue_id, found, asked_us=asked_us)
        if judge is not None:
            judge.delivered(queue_id, found, asked_us=asked_us, now_us=cell.kernel.now_us)
        if not found:
            yield random.randint(50 * MS, 300 * MS)
            continue
        is_careless = cell.is_sending and random.random() < carelessness
        if is_careless and random.random() < 0.3:
            if judge is not None:
                for delivery in found:
                    judge.visibility_asked(delivery.number)
            yield ChangeVisibility(queue_id, 0, receipts_of(found), [random.choice((0, 1_000))] * len(found))
        if is_careless and random.random() < 0.3:
            continue
        yield random.randint(0, 2 * queue.visibility_timeout_ms * MS if is_careless else 50 * MS)
        if judge is not None:
            judge.delete_asked([delivery.number for delivery in found])
        told = yield Delete(queue_id, 0, receipts_of(found))
        if isinstance(told, EntriesOutcome):
            _note(client, queue, found, told)
            if random.random() < 0.3:
                yield random.randint(0, AGAIN_MAX_US if cell.is_sending and random.random() < 0.2 else SECOND)
                again = yield Delete(queue_id, 0, receipts_of(found))
                if isinstance(again, EntriesOutcome):
                    for delivery, error in zip(found, again.errors, strict=True):
                        checker.finished(queue_id, delivery, is_told=error is None, now_us=cell.kernel.now_us)


def _note(
    client: Client, queue: QueueKind, found: list[queue_checker.Delivery], told: EntriesOutcome
) -> None:
    cell, now_us = client.cell, client.cell.kernel.now_us
    for delivery, error in zip(found, told.errors, strict=True):
        cell.guarantee_checker.finished(queue.queue_id, delivery, is_told=error is None, now_us=now_us)
        if not is_judged_here_alone(queue):
            cell.queue_checker.delete_answered(queue.queue_id, delivery, is_done=error is None, now_us=now_us)


def reset(client: Client, group: QueueKind) -> Script:
    """Let the group begin anew now and then."""
    cell, random = client.cell, client.random
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending:
        yield random.randint(SECOND, 6 * SECOND)
        yield ResetGroup(group.queue_id, "earliest")


def start_clients(cell: Cell) -> None:
    """Start who sends to these queues, and who receives from them."""
    profile = cell.faults
    for kind in GUARANTEED_QUEUES:
        if not kind.group_of:
            cell.producers_left += 1
            client = cell.client(f"p {kind.name}")
            client.run(produce(client, kind, gap_us=2 * profile.gap_us, groups=profile.groups))
        for number in range(0 if kind.is_log else 2):
            client = cell.client(f"c {kind.name} {number}")
            if kind.guarantee == ONCE:
                client.run(take(client, kind))
            else:
                client.run(finish(client, kind, carelessness=max(profile.carelessness, 0.3)))
        if kind.group_of:
            client = cell.client(f"resets {kind.name}")
            client.run(reset(client, kind))


# Receives of AtMostOnce queues, as the product makes them


class _BodiesRead(Records):
    """As much of `RecordBodies` as these receives need: some are read from a disk, and much may happen until then."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._random = replica.cell.kernel.random_for(f"bodies of {replica.member}")

    def read(self, offsets: list[int], finish: Callable[[dict[int, Body]], None]) -> None:
        is_cold = self._random.random() < COLD_READS
        wait_s = self._random.uniform(0, COLD_READ_S) if is_cold else 0.0
        self._replica.host.loop.call_later(wait_s, lambda: finish(self.found(offsets)))


class GivenOnce:
    """Delivers what receives of a replica have set aside."""

    def __init__(self, replica: Replica, number_of: Callable[..., int]) -> None:
        self._replica = replica
        self._number_of = number_of
        self._receives = replica.cell.bugs.variant(ConsumingReceives)(
            replica.host.loop,
            cast("RecordBodies", _BodiesRead(replica)),
            submit=self._submit,
            delivery_of=self._delivery_of,
            reply_later=lambda reply, outcome: reply(outcome),
            wake=lambda key: None,
        )

    def begin(self, asked: Asked, taken: TakenOutcome) -> None:
        """Deliver what was set aside for a receive."""
        assert isinstance(asked.command, Receive), "only a receive takes"
        self._receives.begin(asked.command, partial(self._answer, asked, taken), taken)

    def close(self) -> None:
        """The replica is not open any more."""
        self._receives.close()

    def _submit(self, command: Command | InternalCommand, reply: Callable[[Any], None]) -> None:
        self._replica.propose_inside(command, reply)

    def _delivery_of(self, taken: Taken, body: Body) -> Delivery:
        number = self._number_of(*body)
        found = queue_checker.Delivery(taken.sequence, number, taken.delivery_count, 0, 0, 0)
        return cast(Delivery, found)

    def _answer(self, asked: Asked, taken: TakenOutcome, outcome: Outcome | Exception) -> None:
        replica = self._replica
        if not replica.is_open:
            return
        if isinstance(outcome, ReceiveOutcome):
            deliveries = cast(list[queue_checker.Delivery], outcome.deliveries)
            sequences = {delivery.sequence for delivery in deliveries}
            for one in taken.taken:
                if one.sequence in sequences:
                    replica.checker.on_handed_out(replica, one.offset)
            replica.answer(asked, Received(deliveries))
            if len(deliveries) < len(taken.taken):
                self._check_bodies(asked, taken)
        else:
            replica.answer(asked, outcome)

    def _check_bodies(self, asked: Asked, taken: TakenOutcome) -> None:
        """What is still there can be read."""
        command = asked.command
        assert isinstance(command, Receive), "only a receive takes"
        partition = self._replica.journal.queues.partitions.get(command.queue_id << 16 | command.partition)
        for one in taken.taken:
            if (
                partition is not None
                and partition.is_live(one.sequence)
                and self._replica.find_record(one.offset) is None
            ):
                raise Violation("I13", f"{self._replica.member} lacks a message, at {one.offset}", one.offset)

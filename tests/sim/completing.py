"""Completions in a simulated cell: what consumers of two queues send in the place of messages, and what comes of it.

    orders (journal 0) ──┬──▶ bills (journal 1)        held.fifo: only the delivery that holds a message completes it
    held.fifo (journal 2)┴──▶ parts.fifo (journal 0)

D4: all outputs of a completion that was done arrive, each once; none of any other; a message is completed once. D5:
what was told before another was asked for arrives before it in the same queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.replica_host import arn, identity, message

from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, Output
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    NewMessage,
    QueueCounts,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from sim.clients import receipts_of
from sim.kernel import MS, Violation
from sim.messages import Received, Sent
from sim.queue_checker import Delivery, QueueKind

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.clients import Client, Script

ORDERS, HELD, BILLS, PARTS = 90, 91, 92, 93
ORDERS_QUEUE = QueueKind(ORDERS, "orders", visibility_timeout_ms=1_000)
HELD_QUEUE = QueueKind(HELD, "held.fifo", journal=2, is_fifo=True, visibility_timeout_ms=1_000)
BILLS_QUEUE = QueueKind(BILLS, "bills", journal=1, visibility_timeout_ms=1_000)
PARTS_QUEUE = QueueKind(PARTS, "parts.fifo", is_fifo=True, visibility_timeout_ms=1_000)
SOURCES = [ORDERS_QUEUE, HELD_QUEUE]
TARGETS = [BILLS_QUEUE, PARTS_QUEUE]
COMPLETION_QUEUES = [*SOURCES, *TARGETS]
MESSAGES_MAX = 80
"""So many messages a queue gets."""
CONSUMERS = 4
"""Of each queue: so many that two of them hold the same message now and then."""
GROUPS = 8
GROUP = 9
"""Of all that is sent to the FIFO target: so that it is all in one line."""


@dataclass(slots=True)
class _Attempt:
    """A completion that was asked for. `is_done`: what was told, None while nothing was."""

    queue_id: int
    number: int
    outputs: list[tuple[int, int]]
    """Target queue and number of each."""
    asked_us: int
    answered_us: int = 0
    is_done: bool | None = None


@dataclass(slots=True)
class _Source:
    """A message to be completed, and its deliveries: epoch, count, and when they were answered."""

    is_acked: bool = False
    deliveries: list[tuple[int, int, int]] = field(default_factory=list)
    attempts: list[_Attempt] = field(default_factory=list)


class CompletionChecker:
    """Judges completions by what clients ask and are told. Numbers of messages are unique over all queues."""

    def __init__(self) -> None:
        self.is_drained = True
        self._sources: dict[int, _Source] = {}
        self._attempt_of: dict[int, _Attempt] = {}
        self._places: dict[int, tuple[int, int]] = {}

    def send_asked(self, number: int) -> None:
        """A message that is to be completed is sent."""
        self._sources[number] = _Source()

    def send_acked(self, number: int) -> None:
        """It is acknowledged."""
        self._sources[number].is_acked = True

    def received(self, found: list[Delivery], now_us: int) -> None:
        """Messages to be completed were received."""
        for delivery in found:
            source = self._sources.get(delivery.number)
            if source is None:
                raise Violation("I16", f"message {delivery.number} was never sent")
            source.deliveries.append((delivery.epoch, delivery.delivery_count, now_us))

    def asked(
        self, queue: QueueKind, delivery: Delivery, outputs: list[tuple[int, int]], now_us: int
    ) -> _Attempt:
        """A completion begins."""
        attempt = _Attempt(queue.queue_id, delivery.number, outputs, now_us)
        self._sources[delivery.number].attempts.append(attempt)
        self._attempt_of.update((number, attempt) for _, number in outputs)
        return attempt

    def done(self, queue: QueueKind, delivery: Delivery, attempt: _Attempt, now_us: int) -> None:
        """A completion is told to be done."""
        attempt.is_done, attempt.answered_us = True, now_us
        for epoch, count, answered_us in self._sources[delivery.number].deliveries:
            is_newer = (epoch, count) > (delivery.epoch, delivery.delivery_count)
            if queue.is_fifo and is_newer and answered_us < attempt.asked_us:
                raise Violation("D4", f"message {delivery.number} was completed, and another delivery had it")
        self._check_once(attempt)

    def refused(self, attempt: _Attempt, now_us: int) -> None:
        """A completion is told not to be done."""
        attempt.is_done, attempt.answered_us = False, now_us
        seen = [number for _, number in attempt.outputs if number in self._places]
        if seen:
            raise Violation(
                "D4", f"a completion of {attempt.number} is refused, and its outputs {seen} are there"
            )

    def arrived(self, queue: QueueKind, found: list[Delivery]) -> None:
        """Outputs were received."""
        for delivery in found:
            attempt = self._attempt_of.get(delivery.number)
            place = queue.queue_id, delivery.sequence
            if attempt is None or attempt.is_done is False:
                raise Violation(
                    "D4", f"output {delivery.number} is at {place}, and its completion is not done"
                )
            if self._places.setdefault(delivery.number, place) != place:
                raise Violation("D4", f"output {delivery.number} is at {place}, and elsewhere")
            self._check_once(attempt)

    def _check_once(self, attempt: _Attempt) -> None:
        for other in self._sources[attempt.number].attempts:
            if other is not attempt and self._is_done(other):
                raise Violation("D4", f"message {attempt.number} was completed twice")

    def _is_done(self, attempt: _Attempt) -> bool:
        return attempt.is_done is True or any(number in self._places for _, number in attempt.outputs)

    def check_drained(self) -> None:
        """All queues are empty, and nothing is under way."""
        attempts = [attempt for source in self._sources.values() for attempt in source.attempts]
        done = [attempt for attempt in attempts if self._is_done(attempt)]
        for attempt in done:
            lost = [number for _, number in attempt.outputs if number not in self._places]
            if lost:
                raise Violation(
                    "D4", f"message {attempt.number} was completed, and outputs {lost} are nowhere"
                )
        completed = {attempt.number for attempt in done}
        for number, source in self._sources.items():
            if source.is_acked and number not in completed:
                raise Violation("D4", f"message {number} is gone, and nobody completed it")
        for queue in SOURCES:
            self._check_order([attempt for attempt in done if attempt.queue_id == queue.queue_id])

    def _check_order(self, attempts: list[_Attempt]) -> None:
        for target in TARGETS:
            answered: list[tuple[int, int]] = []
            """When completions were told, and the last place that they have in the target."""
            for attempt in sorted(attempts, key=lambda attempt: attempt.asked_us):
                places = [
                    self._places[number][1]
                    for queue_id, number in attempt.outputs
                    if queue_id == target.queue_id
                ]
                if not places:
                    continue
                before = max((last for told_us, last in answered if told_us < attempt.asked_us), default=0)
                if places != sorted(places) or before > places[0]:
                    raise Violation("D5", f"outputs of message {attempt.number} are out of order")
                if attempt.is_done:
                    answered.append((attempt.answered_us, places[-1]))


# What clients do


def start_clients(cell: Cell) -> None:
    """Start all clients of these queues."""
    cell.completion_checker.is_drained = False
    for kind in SOURCES:
        cell.producers_left += 1
        client = cell.client(f"p {kind.name}")
        client.run(send_some(client, kind, gap_us=cell.faults.gap_us))
        for number in range(CONSUMERS):
            client = cell.client(f"completes {kind.name} {number}")
            client.run(complete(client, kind, carelessness=cell.faults.carelessness))
    for kind in TARGETS:
        client = cell.client(f"c {kind.name}")
        client.run(take(client, kind))
    client = cell.client("outputs")
    client.run(watch_outputs(client))


def send_some(client: Client, queue: QueueKind, *, gap_us: int) -> Script:
    """Send a queue its messages."""
    cell, random, checker = client.cell, client.random, client.cell.completion_checker
    left = MESSAGES_MAX
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending and left:
        left -= 1
        number = cell.next_number()
        checker.send_asked(number)
        group = random.randint(1, GROUPS) if queue.is_fifo else 0
        dedup = identity(number) if group else None
        new = message(number, group=group, dedup=dedup, retry=identity(number))
        outcome = yield Send(queue.queue_id, 0, [new])
        if isinstance(outcome, Sent):
            checker.send_acked(number)
        yield random.randint(0, 4 * gap_us)
    cell.producers_left -= 1


def complete(client: Client, queue: QueueKind, *, carelessness: float) -> Script:
    """Receive, work for a while, and complete; or too late, or never."""
    cell, random, checker = client.cell, client.random, client.cell.completion_checker
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        outcome = yield Receive(queue.queue_id, 0, random.choice((1, 2)))
        if not isinstance(outcome, Received) or not outcome.deliveries:
            yield random.randint(50 * MS, 300 * MS)
            continue
        checker.received(outcome.deliveries, cell.kernel.now_us)
        for delivery in outcome.deliveries:
            if cell.is_sending and random.random() < 0.3 + carelessness:
                yield random.randint(0, 2_000 * MS)
                if random.random() < 0.3:
                    continue
            targets = [random.choice(TARGETS) for _ in range(random.randint(1, 3))]
            outputs = [(target.queue_id, cell.next_number()) for target in targets]
            attempt = checker.asked(queue, delivery, outputs, cell.kernel.now_us)
            sent = [
                _output(cell, target, number) for target, (_, number) in zip(targets, outputs, strict=True)
            ]
            answer = yield Complete(queue.queue_id, 0, receipts_of([delivery]), sent, outputs[0][1])
            if not isinstance(answer, CompleteOutcome):
                continue
            if answer.errors == [None]:
                checker.done(queue, delivery, attempt, cell.kernel.now_us)
            elif client.attempts == 1:  # else a window may have passed since the first attempt
                checker.refused(attempt, cell.kernel.now_us)


def _output(cell: Cell, target: QueueKind, number: int) -> Output:
    new: NewMessage = message(number)
    if target.is_fifo:
        new = message(number, group=GROUP, dedup=identity(number))
    journal = cell.journal_of(target.queue_id)
    return Output(target.queue_id, 0, journal, new.group or number, arn(target.name), new.payload, new.flags)


def take(client: Client, queue: QueueKind) -> Script:
    """Receive outputs, and delete them."""
    cell, random, checker = client.cell, client.random, client.cell.completion_checker
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        outcome = yield Receive(queue.queue_id, 0, random.choice((1, 5, 10)))
        if not isinstance(outcome, Received) or not outcome.deliveries:
            yield random.randint(50 * MS, 300 * MS)
            continue
        found = outcome.deliveries
        checker.arrived(queue, found)
        yield Delete(queue.queue_id, 0, receipts_of(found))


def watch_outputs(client: Client) -> Script:
    """After sending has stopped: wait until nothing is left of any queue, the sources and what is under way first."""
    cell = client.cell
    while cell.producers_left:
        yield 100 * MS
    for queue in (*SOURCES, *TARGETS):
        while True:
            is_source = queue in SOURCES
            outcome = yield AskPartition(queue.queue_id, 0) if is_source else CountMessages(queue.queue_id)
            if isinstance(outcome, PartitionOutcome) and not outcome.messages + outcome.outputs:
                break
            if isinstance(outcome, QueueCounts) and not (
                outcome.visible + outcome.in_flight + outcome.delayed
            ):
                break
            yield 200 * MS
    cell.completion_checker.is_drained = True

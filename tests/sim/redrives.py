"""Message move tasks in a simulated cell: queues whose dead letters come back to them, and what may come of it.

    loop ⟲                ping ⇄ pong (in two journals)                failing ⇄ failed
    its own dead-letter   each the other's                             consumers of `failing` do not delete, tasks
    queue                                                              bring back what was received too often

Tasks are started and cancelled all the time while consumers fail. When nobody sends any more, no task is started, but
consumers fail on until every task has ended (L7); then they delete what is there. A task moves at most what was there
when it started (I25); no message is lost (I15) or is in two places (I19).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from harness.replica_host import arn, identity, message

from quaymaster.core.values.commands.messages import ChangeVisibility, Delete, EntriesOutcome, Receive, Send
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.errors import NotNow
from sim.clients import receipts_of
from sim.kernel import MS, SECOND, Violation
from sim.messages import Received, Sent
from sim.queue_checker import Delivery, QueueKind

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.clients import Client, Script, Wish

LOOP, PING, PONG, FAILING, FAILED = 40, 41, 42, 43, 44
LOOP_QUEUE = QueueKind(LOOP, "loop", dead_letters=LOOP, receive_count_max=2, visibility_timeout_ms=1_000)
PING_QUEUE = QueueKind(
    PING, "ping", journal=1, dead_letters=PONG, receive_count_max=1, visibility_timeout_ms=1_000
)
PONG_QUEUE = QueueKind(
    PONG, "pong", journal=2, dead_letters=PING, receive_count_max=1, visibility_timeout_ms=1_000
)
FAILING_QUEUE = QueueKind(
    FAILING, "failing", journal=2, dead_letters=FAILED, receive_count_max=1, visibility_timeout_ms=1_000
)
FAILED_QUEUE = QueueKind(FAILED, "failed", journal=2)
REDRIVE_QUEUES = [LOOP_QUEUE, PING_QUEUE, PONG_QUEUE, FAILING_QUEUE, FAILED_QUEUE]
REDRIVES = [
    (LOOP_QUEUE, LOOP_QUEUE),
    (PONG_QUEUE, PING_QUEUE),
    (PING_QUEUE, PONG_QUEUE),
    (FAILED_QUEUE, FAILING_QUEUE),
]
"""From which queue to which other one tasks move messages."""
FAMILY = {LOOP: LOOP, PING: PING, PONG: PING, FAILING: FAILING, FAILED: FAILING}
"""The queues between which a message may be, by one of them."""
MESSAGES_MAX = 30
"""So many messages a queue gets: they stay until the end, and each is received again and again."""


class _Sighting(NamedTuple):
    """A message was given out at a place, by a receive that took from one time to the other."""

    place: tuple[int, int]
    asked_us: int
    answered_us: int


@dataclass(slots=True)
class _Message:
    queue_id: int
    is_acked: bool = False
    deletes_asked: int = 0
    sightings: list[_Sighting] = field(default_factory=list)


class RedriveChecker:
    """Judges what becomes of messages that tasks move about. Their numbers are unique over all queues."""

    def __init__(self) -> None:
        self._messages: dict[int, _Message] = {}
        self._at: dict[tuple[int, int], int] = {}
        self._deleted_us: dict[tuple[int, int], int] = {}
        self._sent: dict[int, int] = dict.fromkeys(FAMILY.values(), 0)
        self._bounds: dict[tuple[bytes, int], int] = {}

    def send_asked(self, queue_id: int, number: int) -> None:
        """A send begins."""
        self._messages[number] = _Message(queue_id)
        self._sent[FAMILY[queue_id]] += 1

    def send_acked(self, number: int) -> None:
        """A send is acknowledged."""
        self._messages[number].is_acked = True

    def delivered(self, queue_id: int, found: list[Delivery], *, asked_us: int, now_us: int) -> None:
        """A receive was answered."""
        for delivery in found:
            number = delivery.number
            known = self._messages.get(number)
            if known is None or FAMILY[known.queue_id] != FAMILY[queue_id]:
                raise Violation(
                    "I16", f"message {number} was never sent to where it may come from {queue_id}"
                )
            place = queue_id, delivery.sequence
            there = self._at.setdefault(place, number)
            if there != number:
                raise Violation("I2", f"place {place} is that of message {there} and of message {number}")
            if self._deleted_us.get(place, asked_us) < asked_us:
                raise Violation("I17", f"message {number} was received at {place}, where it was deleted")
            sighting = _Sighting(place, asked_us, now_us)
            self._check_one_place(number, known.sightings, sighting)
            known.sightings.append(sighting)

    def _check_one_place(self, number: int, earlier: list[_Sighting], sighting: _Sighting) -> None:
        """A message does not come back to a place: it was there, then elsewhere, and is there again: it is twice."""
        since_us = min(
            (seen.answered_us for seen in earlier if seen.place == sighting.place),
            default=sighting.answered_us,
        )
        for seen in earlier:
            if (
                seen.place != sighting.place
                and seen.asked_us > since_us
                and seen.answered_us < sighting.asked_us
            ):
                raise Violation("I19", f"message {number} is at {sighting.place}, and at {seen.place}")

    def delete_asked(self, numbers: list[int]) -> None:
        """A delete begins: from now on these may be gone."""
        for number in numbers:
            self._messages[number].deletes_asked += 1

    def delete_answered(self, queue_id: int, delivery: Delivery, *, is_done: bool, now_us: int) -> None:
        """A delete was acknowledged, or refused (then it changed nothing)."""
        if is_done:
            self._deleted_us.setdefault((queue_id, delivery.sequence), now_us)
        else:
            self._messages[delivery.number].deletes_asked -= 1

    def tasks_listed(self, queue_id: int, tasks: list[MoveTask]) -> None:
        """What a queue's tasks have moved so far is told."""
        for task in tasks:
            # A task is listed soon after its start: no more can have been there than was sent by then.
            bound = self._bounds.setdefault((task.task_id, task.started_ms), self._sent[FAMILY[queue_id]])
            if task.moved > bound:
                raise Violation(
                    "I25",
                    f"a task of queue {queue_id} has moved {task.moved} messages; at its start there were "
                    f"{bound} at most",
                )

    def check_drained(self) -> None:
        """All queues say that they are empty: what was acknowledged was deleted by somebody."""
        for number, known in self._messages.items():
            if known.is_acked and not known.deletes_asked:
                raise Violation(
                    "I15",
                    f"message {number} of queue {known.queue_id} is gone, and nobody deleted it; it was seen at "
                    f"{[seen.place for seen in known.sightings[-3:]]}",
                )


# What clients do


def start_clients(cell: Cell) -> None:
    """Start all clients of these queues."""
    for kind in REDRIVE_QUEUES:
        client = cell.client(f"fails at {kind.name}")
        client.run(fail(client, kind))
        if kind is not FAILED_QUEUE:
            cell.producers_left += 1
            client = cell.client(f"p {kind.name}")
            client.run(send_some(client, kind, gap_us=cell.faults.gap_us))
    cell.redrivers_left = len(REDRIVES)
    for source, target in REDRIVES:
        client = cell.client(f"redrives {source.name}")
        client.run(redrive(client, source, target))


def send_some(client: Client, queue: QueueKind, *, gap_us: int) -> Script:
    """Send a queue its messages."""
    cell, random, checker = client.cell, client.random, client.cell.redrive_checker
    left = MESSAGES_MAX
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending and left:
        numbers = [cell.next_number() for _ in range(random.randint(1, 5))]
        left -= min(left, len(numbers))
        for number in numbers:
            checker.send_asked(queue.queue_id, number)
        new = [message(number, retry=identity(number)) for number in numbers]
        outcome = yield Send(queue.queue_id, 0, new)
        if isinstance(outcome, Sent):
            for number in numbers:
                checker.send_acked(number)
        yield random.randint(0, 2 * gap_us)
    cell.producers_left -= 1


def fail(client: Client, queue: QueueKind) -> Script:
    """Receive and, most of the time, do not delete; once all tasks have ended, delete all that is there."""
    cell, random, checker = client.cell, client.random, client.cell.redrive_checker
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        asked_us = cell.kernel.now_us
        outcome = yield Receive(queue.queue_id, 0, random.choice((1, 5, 10)))
        if not isinstance(outcome, Received) or not outcome.deliveries:
            yield random.randint(50 * MS, 400 * MS)
            continue
        found = outcome.deliveries
        checker.delivered(queue.queue_id, found, asked_us=asked_us, now_us=cell.kernel.now_us)
        receipts = receipts_of(found)
        if cell.redrivers_left and random.random() < 0.97:
            if random.random() < 0.4:
                yield ChangeVisibility(queue.queue_id, 0, receipts, [0] * len(found))
            yield random.randint(0, 200 * MS)
            continue
        checker.delete_asked([each.number for each in found])
        outcome = yield Delete(queue.queue_id, 0, receipts)
        if isinstance(outcome, EntriesOutcome):
            for each, error in zip(found, outcome.errors, strict=True):
                if error is None or client.attempts == 1:
                    checker.delete_answered(
                        queue.queue_id, each, is_done=error is None, now_us=cell.kernel.now_us
                    )


def redrive(client: Client, source: QueueKind, target: QueueKind) -> Script:
    """Start and cancel tasks from one queue to another, and look at them; in the end wait until none runs."""
    cell, random = client.cell, client.random
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending:
        yield random.randint(0, 3 * SECOND)
        task_id = identity(random.getrandbits(128))
        goes_back = random.random() < 0.2
        target_arn, target_id = (None, None) if goes_back else (arn(target.name), target.queue_id)
        rate = random.choice((None, None, 20))
        yield StartMoveTask(source.queue_id, task_id, arn(source.name), target_arn, target_id, rate)
        yield from _look_at_tasks(client, source)
        yield random.randint(0, 2 * SECOND)
        if random.random() < 0.3:
            yield CancelMoveTask(source.queue_id, task_id)
        yield from _look_at_tasks(client, source)
    while (yield from _look_at_tasks(client, source)):
        yield 100 * MS
    cell.redrivers_left -= 1


def _look_at_tasks(client: Client, source: QueueKind) -> Generator[Wish, object, bool]:
    """Have the checker look at a queue's tasks; return whether one runs, as far as anybody knows."""
    outcome = yield ListMoveTasks(source.queue_id)
    if isinstance(outcome, NotNow):
        return True
    assert isinstance(outcome, MoveTasksOutcome), f"tasks were not listed: {outcome}"
    client.cell.redrive_checker.tasks_listed(source.queue_id, outcome.tasks)
    return any(task.status == "RUNNING" for task in outcome.tasks)

"""Consumers of a simulated cell that claim what they read, as Spark's source does; their drivers replace each other.

    settle what is done ─▶ claim the next ─▶ note it, as Spark's log does ─▶ hold it ─▶ read it ─▶ note that it is done
          ▲                                                                                            │
          └────────────────────────────────────────────────────────────────────────────────────────────┘

What is noted outlives drivers: a new one begins where the last one was, takes the consumer over, and holds what is not
done. Others receive from the same queues, and some drivers are away for so long that claims lapse.

C1: a claim reads identically whenever it is read whole, or it is broken for good; what was settled never comes again,
and nothing else is deleted by it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimOutcome,
    ReadClaim,
    ReleaseClaims,
    Settle,
    SettledOutcome,
)
from quaymaster.core.values.commands.decided import ClaimedOutcome, PeekedOffsets
from quaymaster.core.values.commands.messages import Delete, Peek, Receive
from quaymaster.core.values.errors import ClaimIsSettled, ClaimTakenOver, NotNow
from sim.clients import Client, Script, Wish, receipts_of
from sim.kernel import MS, SECOND, Violation
from sim.messages import Received
from sim.queue_checker import QueueKind

if TYPE_CHECKING:
    from sim.cell import Cell

HELD_MS = 3_000
ROWS_MAX = 8
"""So many messages are claimed at once; a claim of several goes in slices."""
AWAY_US = (SECOND, 8 * SECOND)
"""How long a driver is away that is started again: often for longer than its claims are held."""


class ClaimRows(NamedTuple):
    """What came of a ReadClaim: sequence and message number of each, and the next place."""

    rows: list[tuple[int, int]]
    next_place: int


@dataclass(slots=True)
class Consumer:
    """What the drivers of one consumer share: their log of claims, and what each claim was when it was read."""

    name: str
    queue: QueueKind
    logged: int = 0
    done: int = 0
    drivers: int = 0
    readings: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)

    def next_owner(self) -> str:
        """Return the name of a driver that was not there yet."""
        self.drivers += 1
        return f"driver-{self.drivers}"


def drive(client: Client, consumer: Consumer, *, gap_us: int) -> Script:
    """Claim, read and settle, until all queues are empty; be replaced now and then."""
    cell, random = client.cell, client.random
    while not cell.is_set_up:
        yield 50 * MS
    while not cell.is_drained:
        yield from _run_driver(client, consumer, consumer.next_owner(), gap_us)
        yield random.randint(*AWAY_US) if cell.is_sending and random.random() < 0.5 else 100 * MS


def _run_driver(client: Client, consumer: Consumer, owner: str, gap_us: int) -> Script:
    """Be one driver, until it is killed or replaced."""
    cell, random, queue = client.cell, client.random, consumer.queue
    takes = True
    while not cell.is_drained:
        if cell.is_sending and random.random() < 0.05:
            return
        if consumer.logged == consumer.done:
            start = consumer.done
            numbers = _ask_to_settle(cell, consumer, start)
            outcome = yield Settle(queue.queue_id, 0, consumer.name, owner, start, takes)
            if isinstance(outcome, ClaimTakenOver):
                return
            if not isinstance(outcome, SettledOutcome):
                assert isinstance(outcome, NotNow), f"a settlement was refused: {outcome}"
                continue
            takes = False
            _note_settled(cell, consumer, start, numbers, outcome, is_first=client.attempts == 1)
            known = 0
            for _ in range(random.randint(1, 3)):
                rows = random.randint(1, ROWS_MAX)
                claim = Claim(queue.queue_id, 0, consumer.name, owner, start + 1, rows, known, HELD_MS)
                outcome = yield claim
                if isinstance(outcome, ClaimTakenOver | ClaimIsSettled):
                    return
                if isinstance(outcome, ClaimOutcome):
                    known = outcome.count
            if cell.is_sending and random.random() < 0.1:
                return  # before the claim is noted: the next driver must use it as it is
            if not known:
                yield random.randint(100 * MS, 600 * MS)
                continue
            consumer.logged = max(consumer.logged, start + 1)
        if not (yield from _batch(client, consumer, owner, takes, gap_us)):
            return
        takes = False


def _batch(
    client: Client, consumer: Consumer, owner: str, takes: bool, gap_us: int
) -> Generator[Wish, object, bool]:
    """Hold and read the claim that was noted last; return whether this driver continues."""
    cell, random, queue, claim_id = client.cell, client.random, consumer.queue, consumer.logged
    known_broken = claim_id in consumer.broken
    outcome = yield Claim(queue.queue_id, 0, consumer.name, owner, claim_id, 0, 0, HELD_MS, takes)
    if not isinstance(outcome, ClaimOutcome):
        return False
    if known_broken and outcome.state == "held":
        raise Violation("C1", f"claim {claim_id} of {consumer.name} was broken and is held again")
    if outcome.state == "none" and consumer.done < claim_id:
        raise Violation("C1", f"claim {claim_id} of {consumer.name} was made, and is not there")
    if outcome.state != "held":
        consumer.broken.add(claim_id)
        consumer.done = max(consumer.done, claim_id)
        return True
    count = outcome.count
    rows: list[tuple[int, int]] = []
    while len(rows) < count:
        asked_us = cell.kernel.now_us
        known_broken = claim_id in consumer.broken
        stop = len(rows) + random.randint(1, 2 * ROWS_MAX)
        outcome = yield ReadClaim(queue.queue_id, 0, consumer.name, claim_id, len(rows), stop, 1 << 20)
        if isinstance(outcome, ClaimOutcome):
            consumer.broken.add(claim_id)
            return False
        if not isinstance(outcome, ClaimRows):
            return False
        if known_broken:
            raise Violation("C1", f"claim {claim_id} of {consumer.name} is broken and was read")
        assert outcome.next_place == len(rows) + len(outcome.rows) > len(rows), "a read brings rows"
        cell.queue_checker.claimed(queue.queue_id, outcome.rows, asked_us=asked_us)
        rows += outcome.rows
    before = consumer.readings.setdefault(claim_id, rows)
    if before != rows:
        raise Violation(
            "C1", f"claim {claim_id} of {consumer.name} reads {before} and then {rows}", rows[0][0]
        )
    is_slow = cell.is_sending and random.random() < 0.3
    yield random.randint(HELD_MS * MS, 3 * HELD_MS * MS) if is_slow else random.randint(0, gap_us)
    if cell.is_sending and random.random() < 0.1:
        return False  # before it is noted that the batch is done: the next driver must read the same
    consumer.done = max(consumer.done, claim_id)
    return True


def _ask_to_settle(cell: Cell, consumer: Consumer, claim_id: int) -> list[int]:
    """From now on the messages of a claim may be gone, if it is not broken; return them."""
    if claim_id in consumer.broken:
        return []
    numbers = [number for _, number in consumer.readings.get(claim_id, [])]
    cell.queue_checker.delete_asked(numbers)
    return numbers


def _note_settled(
    cell: Cell,
    consumer: Consumer,
    claim_id: int,
    numbers: list[int],
    outcome: SettledOutcome,
    *,
    is_first: bool,
) -> None:
    """A claim is settled: where as many were deleted as it had, all of them are gone."""
    if outcome.settled < claim_id:
        raise Violation(
            "C1", f"claim {claim_id} of {consumer.name} was settled, and {outcome.settled} is said"
        )
    if numbers and is_first and outcome.deleted == len(numbers):
        cell.queue_checker.settled(consumer.queue.queue_id, numbers, now_us=cell.kernel.now_us)
    if claim_id in consumer.broken and outcome.deleted:
        raise Violation("C1", f"claim {claim_id} of {consumer.name} is broken, and settling it deleted")


def release(client: Client, queue: QueueKind, consumers: list[Consumer]) -> Script:
    """Release what consumers hold now and then, as operators do; what is read meanwhile is broken."""
    cell, random = client.cell, client.random
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending:
        yield random.randint(2 * SECOND, 10 * SECOND)
        consumer = random.choice(consumers)
        yield ReleaseClaims(queue.queue_id, 0, consumer.name)


def rival(client: Client, queue: QueueKind) -> Script:
    """Receive from a FIFO queue now and then, and look whether what was received stays until it is deleted here.

    No other client receives from this queue, and its receives wait for commit: what is gone meanwhile was deleted by
    the settlement of a claim that had lost it. That can be said where queue time is as right as it is here.
    """
    cell, random = client.cell, client.random
    is_sure = not (cell.faults.wrong_clocks or cell.faults.restarts) and cell.faults.clock_skew_ms <= 200
    is_sure &= "clock jump" not in cell.faults.intervals_us
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        yield random.randint(50 * MS, 500 * MS)
        asked_us = cell.kernel.now_us
        outcome = yield Receive(queue.queue_id, 0, random.choice((1, 3)))
        if not isinstance(outcome, Received) or not outcome.deliveries:
            continue
        found = outcome.deliveries
        cell.queue_checker.delivered(queue.queue_id, found, asked_us=asked_us, now_us=cell.kernel.now_us)
        yield random.randint(0, queue.visibility_timeout_ms * MS // 2)
        for delivery in found:
            peeked = yield Peek(queue.queue_id, 0, delivery.sequence, 1)
            if (
                isinstance(peeked, PeekedOffsets)
                and is_sure
                and cell.kernel.now_us - asked_us < queue.visibility_timeout_ms * MS * 4 // 5
                and [one.sequence for one in peeked.messages] != [delivery.sequence]
            ):
                raise Violation(
                    "C1", f"message {delivery.number} was received by another, and a settlement deleted it"
                )
        if cell.is_sending and random.random() < 0.5:
            continue  # it comes back, and its claim is broken
        cell.queue_checker.delete_asked([delivery.number for delivery in found])
        yield Delete(queue.queue_id, 0, receipts_of(found))


def answer_of(decided: ClaimedOutcome) -> ClaimOutcome:
    """Return what a client is told of a claim."""
    assert not decided.dead_letters, "these queues have no dead letters"
    return decided.outcome

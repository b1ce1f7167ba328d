"""Sinks of a simulated cell: they send batches in transactions, again and again, and judge what came of it.

Each batch is a list of messages with numbers of their own. A driver stages them in parts, each part under a name that
no other attempt has, and commits; when it does not know what became of that, it begins the batch anew. Another driver
of the same sink may do so at any time, too. Doomed batches are never committed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from harness.replica_host import message

from quaymaster.core.values.commands.messages import NewMessage
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StageCount,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.errors import InvalidParameterValue, NotNow, StageNotFound
from sim.clients import Client, Script, Wish
from sim.kernel import MS, Violation
from sim.queue_checker import QueueKind

if TYPE_CHECKING:
    from sim.cell import Cell

TransactionCommand = StageMessages | CommitTransaction | AbortTransaction
PARTS_MAX = 3
MESSAGES_MAX = 12
TRANSACTION_EXPIRES_MS = 10_000
"""In place of an hour."""
SLICES = {"AT_ONCE_MESSAGES": 8, "SLICE_MESSAGES": 5, "SLICE_SINGLE_MESSAGES": 3}
"""Most commits take several slices, in place of those of thousands of messages."""
BEHIND_BYTES_MAX = 10_000
"""So much may wait behind them, in place of megabytes."""
PACKED_RUNS = 2
"""So many runs are packed together, in place of thousands."""


@dataclass(slots=True)
class Batch:
    """The messages of a batch, by part, each with its group; and what is known of it."""

    number: int
    parts: list[list[tuple[int, int]]]
    is_doomed: bool
    is_asked: bool = False
    is_committed: bool = False

    @property
    def numbers(self) -> list[int]:
        """Its messages, in the order that a commit gives them."""
        return [number for part in self.parts for number, _ in part]


@dataclass(slots=True)
class Sink:
    """The batches of one sink, to a queue of one partition: its drivers share nothing else."""

    name: str
    queue: QueueKind
    groups: int
    has_doomed: bool
    batches: list[Batch] = field(default_factory=list)
    attempts: int = 0

    @property
    def has_open(self) -> bool:
        """Whether the last batch is to be seen through."""
        return bool(self.batches) and not (self.batches[-1].is_committed or self.batches[-1].is_doomed)

    def begin(self, cell: Cell, random: Random) -> Batch:
        """Return the first batch that is not done, or a new one."""
        if self.has_open:
            return self.batches[-1]
        parts = [
            [self.new_message(cell, random) for _ in range(random.randint(0 if at else 1, MESSAGES_MAX))]
            for at in range(random.randint(1, PARTS_MAX))
        ]
        batch = Batch(len(self.batches), parts, is_doomed=self.has_doomed and random.random() < 0.3)
        self.batches.append(batch)
        return batch

    def new_message(self, cell: Cell, random: Random) -> tuple[int, int]:
        """Return the number of a new message, and its group."""
        return cell.next_number(), random.randint(1, self.groups) if self.queue.is_fifo else 0

    def ask(self, client: Client, command: TransactionCommand) -> Generator[Wish, object, object]:
        """Ask the leader, and return what it answers."""
        return (yield command)

    def begin_commit(self, cell: Cell, batch: Batch) -> None:
        """From now on a batch may be there."""
        if batch.is_asked:
            return
        batch.is_asked = True
        for part in batch.parts:
            for number, group in part:
                self.send_asked(cell, number, group)

    def send_asked(self, cell: Cell, number: int, group: int) -> None:
        """Tell judges that a message may be there."""
        for checker, queue_id in cell.judges_of(self.queue):
            checker.send_asked(queue_id, number, group=group, dedup=0, delay_ms=0, now_us=cell.kernel.now_us)

    def note_commit(self, cell: Cell, batch: Batch) -> None:
        """Somebody was told that a batch is committed."""
        if not batch.is_committed:
            batch.is_committed = True
            self.acked(cell, batch.numbers)

    def acked(self, cell: Cell, numbers: list[int]) -> None:
        """Tell judges that messages were sent."""
        for checker, _ in cell.judges_of(self.queue):
            checker.transaction_acked(numbers, cell.kernel.now_us)

    def check_batches(self, cell: Cell) -> None:
        """All queues are empty: every batch is there whole, in its order and side by side, or not at all (I23)."""
        for checker, queue_id in cell.judges_of(self.queue):
            for batch in self.batches:
                self.check_batch(
                    batch,
                    [checker.place_of(number, queue_id) for number in batch.numbers]
                    if batch.is_asked
                    else [],
                    queue_id,
                )

    def check_batch(self, batch: Batch, places: list[int | None], queue_id: int) -> None:
        """Judge a batch by the sequence numbers that its messages were seen at."""
        first = places[0] if places else None
        expected = [None] * len(places) if first is None else list(range(first, first + len(places)))
        if places != expected or (batch.is_committed and first is None and places):
            raise Violation(
                "I23", f"batch {batch.number} of {self.name} is not whole in queue {queue_id}: {places}"
            )


def drive(client: Client, sink: Sink, *, gap_us: int) -> Script:
    """Send batch after batch, until no more is sent; then see the last one through."""
    cell, random = client.cell, client.random
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending or sink.has_open:
        batch = sink.begin(cell, random)
        if random.random() < 0.2 and sink.batches[0].is_committed and not batch.is_doomed:
            batch = next(one for one in reversed(sink.batches) if one.is_committed)
        yield from _try_batch(client, sink, batch)
        yield random.randint(0, 2 * gap_us)
    cell.producers_left -= 1


def _try_batch(client: Client, sink: Sink, batch: Batch) -> Script:
    cell, random, queue = client.cell, client.random, sink.queue
    sink.attempts += 1
    if len(batch.parts) == 1 and not batch.is_doomed and sink.attempts % 2:
        yield from _try_at_once(client, sink, batch)
        return
    stages: list[StageCount] = []
    for at, part in enumerate(batch.parts):
        name = f"{at}/{sink.attempts}"
        if random.random() < 0.2:  # a task that fails: its part is there under another name
            yield from sink.ask(
                client, _stage(queue, sink, batch, f"{name}/failed", 0, part[: random.randint(0, len(part))])
            )
        first = 0
        while first < len(part):
            some = part[first : first + random.randint(1, MESSAGES_MAX)]
            outcome = yield from sink.ask(client, _stage(queue, sink, batch, name, first, some))
            if isinstance(outcome, StagedOutcome) and outcome.is_committed:
                if not batch.is_asked:
                    raise Violation("I23", f"batch {batch.number} of {sink.name} is committed unasked")
                sink.note_commit(cell, batch)
                return
            if isinstance(outcome, InvalidParameterValue):
                return  # what came before is gone: it has expired
            assert isinstance(outcome, StagedOutcome | NotNow), f"staging was refused: {outcome}"
            first += len(some)
        stages.append(StageCount(name, len(part)))
    if batch.is_doomed:
        if random.random() < 0.7:
            outcome = yield from sink.ask(
                client, AbortTransaction(queue.queue_id, 0, sink.name, batch.number)
            )
            if isinstance(outcome, AbortedOutcome) and not outcome.is_aborted:
                raise Violation("I23", f"batch {batch.number} of {sink.name} is committed unasked")
        return
    sink.begin_commit(cell, batch)
    outcome = yield from sink.ask(
        client, CommitTransaction(queue.queue_id, 0, sink.name, batch.number, stages)
    )
    if isinstance(outcome, CommittedOutcome):
        if batch is sink.batches[-1] and outcome.messages != len(batch.numbers):
            raise Violation(
                "I23", f"batch {batch.number} of {sink.name} was committed with {outcome.messages} messages"
            )
        sink.note_commit(cell, batch)
        outcome = yield from sink.ask(client, AbortTransaction(queue.queue_id, 0, sink.name, batch.number))
        if isinstance(outcome, AbortedOutcome) and outcome.is_aborted:
            raise Violation("I23", f"batch {batch.number} of {sink.name} was committed and then aborted")
        return
    assert isinstance(outcome, StageNotFound | NotNow), f"a commit was refused: {outcome}"


def _try_at_once(client: Client, sink: Sink, batch: Batch) -> Script:
    """Stage the only part of a batch and commit it with the same command; twice, which must change nothing."""
    cell, queue = client.cell, sink.queue
    sink.begin_commit(cell, batch)
    (part,) = batch.parts
    command = _stage(queue, sink, batch, f"0/{sink.attempts}", 0, part)
    command.commit = True
    for _ in range(2):
        outcome = yield from sink.ask(client, command)
        if isinstance(outcome, NotNow):
            return
        assert isinstance(outcome, StagedOutcome), f"a commit was refused: {outcome}"
        if not (outcome.was_sent or outcome.is_committed):
            raise Violation("I23", f"batch {batch.number} of {sink.name} was staged and not committed")
        if batch is sink.batches[-1] and outcome.count != len(part):
            raise Violation(
                "I23", f"batch {batch.number} of {sink.name} was sent with {outcome.count} messages"
            )
        sink.note_commit(cell, batch)


def _stage(
    queue: QueueKind, sink: Sink, batch: Batch, name: str, first: int, some: list[tuple[int, int]]
) -> StageMessages:
    messages: list[NewMessage] = [message(number, group=group) for number, group in some]
    return StageMessages(queue.queue_id, 0, sink.name, batch.number, name, first, messages)

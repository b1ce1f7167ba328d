"""A log whose partitions are split, merged and moved in a simulated cell: its sinks, a reader by offsets, a janitor.

The log is the queue of `sim.changing_partitions`, which changes its table and sends to it; its two consumer groups
receive as queues of their own there. Here sinks send to it in transactions, as Spark's sink does, in a FIFO log as far
as that has one open partition. A reader reads each partition from its first offset on, by tables that may be old. What
everybody has of a closed partition the janitor purges, so that it is drained.

I23   a batch is there once and whole, side by side, in one partition
L8    a reader by offsets finds each sequence number that is kept once, and always the same message; what was
      acknowledged is among them; the end that the table says of a drained partition is the one that it had
P7    healed, all that is sealed is drained in the end
P8    a log keeps its bytes, and each partition those of its share of the keys, whatever is sealed
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING

from quaymaster.core.partition.partition import Partition
from quaymaster.core.spread.transactions import SpreadTransaction
from quaymaster.core.values.commands.logs import Fetch, LogBounds, LogBoundsOutcome
from quaymaster.core.values.commands.messages import Elsewhere, Purge
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from quaymaster.core.values.errors import (
    NotNow,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.core.values.partition_tables import described_partitions, end_of_drained, entry_of, in_state
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, QueueDefinition
from sim.changing_partitions import ATTEMPTS_MAX, CHANGING, LOG_BYTES, PartitionChecker, group_of
from sim.claims import ClaimRows
from sim.kernel import MS, SECOND, Violation
from sim.queue_checker import QueueKind
from sim.transactions import Batch, Sink, TransactionCommand, drive

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.clients import Client, Script, Wish

SINKS = ("one", "two")
SINK_GAP_US = 150 * MS
READ_MAX = 40
STRETCH_MESSAGES = 8
"""A log forgets so many messages at a time, in place of thousands."""


class LogReader:
    """What was read by offsets, and the judge of that."""

    def __init__(self, checker: PartitionChecker) -> None:
        self._checker = checker
        self.positions: dict[int, int] = {}
        """Of each partition how far it was read."""
        self.ends: dict[int, int] = {}
        """Of each drained partition the end that it had when it was sealed."""
        self.trimmed = 0
        """How often a partition had dropped something by size."""
        self.read = 0
        self._skipped: dict[int, list[range]] = {}
        """What was gone before it was read."""
        self._found: set[int] = set()

    def skip_to(self, partition: int, start: int, earliest: int) -> int:
        """A partition keeps what is from `earliest` on. Return where to read on."""
        if earliest > start:
            self._skipped.setdefault(partition, []).append(range(start, earliest))
        self.positions[partition] = max(start, earliest)
        return self.positions[partition]

    def found(self, partition: int, start: int, rows: list[tuple[int, int]], following: int) -> None:
        """[start, following) was read: (sequence, number of the message) each."""
        sequences = [sequence for sequence, _ in rows]
        if sequences != list(range(start, following)):
            raise Violation(
                "L8", f"partition {partition} was read from {start} to {following}, and has {sequences}"
            )
        for sequence, number in rows:
            for judge in self._checker.judges.values():
                judge.read(number, (partition, sequence))
        self._found.update(number for _, number in rows)
        self.read += len(rows)
        self.positions[partition] = max(following, self.positions.get(partition, 0))

    def check_end(self, table: QueueDefinition) -> None:
        """A drained partition ended where its messages did."""
        for entry in in_state(table, "drained"):
            end = self.ends.get(entry.number)
            if end is not None and end != end_of_drained(entry):
                raise Violation(
                    "L8",
                    f"partition {entry.number} ended at {end}, and {end_of_drained(entry)} by the table",
                )

    def kept(self, partition: Partition, table: QueueDefinition) -> None:
        """A leader has dropped the oldest messages of a partition, for their size."""
        self.trimmed += 1
        entry = entry_of(table, partition.number)
        assert entry is not None, "a partition that has something is listed"
        assert partition.sizes is not None, "a log knows its size"
        share = LOG_BYTES * (entry.last_key - entry.first_key + 1) // (KEY_MAX + 1)
        if partition.sizes.total_bytes < share:
            raise Violation(
                "P8", f"partition {partition.number} keeps {partition.sizes.total_bytes} bytes of {share}"
            )

    def check_drained(self) -> None:
        """All is over: what was acknowledged was read, but for what was gone before."""
        for judge in self._checker.judges.values():
            for number in judge.acknowledged():
                place = judge.place_of(number)
                assert place is not None, "what was acknowledged was received"
                partition, sequence = place
                was_gone = any(sequence in skipped for skipped in self._skipped.get(partition, ()))
                if number not in self._found and not was_gone:
                    raise Violation("L8", f"message {number} at {place} was never there to be read")


class LogSink(Sink):
    """A sink whose batches are in one partition each, and its drivers do not know in which."""

    def new_message(self, cell: Cell, random: Random) -> tuple[int, int]:
        number = cell.next_number()
        return number, group_of(number) if self.queue.is_fifo else 0

    def ask(self, client: Client, command: TransactionCommand) -> Generator[Wish, object, object]:
        """Ask as front ends do (`core/spread/transactions`), by tables that may be old."""
        cell, checker = client.cell, client.cell.partition_checker
        known = checker.old_table(client.random)
        spread = cell.bugs.variant(SpreadTransaction)(known, command)
        parts = spread.begin()
        for _ in range(ATTEMPTS_MAX):
            if not parts:
                break
            (part,) = parts
            outcome = yield part.command
            if isinstance(outcome, Elsewhere):
                known = max(known, outcome.definition, key=lambda table: table.table_version)
                parts = spread.on_outcome(part, outcome, known)
            elif isinstance(outcome, QueueDoesNotExist):
                known = checker.table
                yield 20 * MS
                parts = spread.again(part, known)
            else:
                return outcome
        # A FIFO log has several open partitions, or the tables are changing.
        assert spread.result is None or isinstance(spread.result, UnsupportedOperation | NotNow), (
            spread.result
        )
        return NotNow()

    def send_asked(self, cell: Cell, number: int, group: int) -> None:
        for judge in cell.partition_checker.judges.values():
            judge.send_asked(number, cell.kernel.now_us)

    def acked(self, cell: Cell, numbers: list[int]) -> None:
        for judge in cell.partition_checker.judges.values():
            judge.transaction_acked(numbers, cell.kernel.now_us)

    def check_batches(self, cell: Cell) -> None:
        for queue_id, judge in cell.partition_checker.judges.items():
            for batch in self.batches:
                self._check(batch, judge, queue_id)

    def _check(self, batch: Batch, judge: PartitionChecker, queue_id: int) -> None:
        places = [judge.place_of(number) for number in batch.numbers] if batch.is_asked else []
        partitions = {place[0] for place in places if place is not None}
        if len(partitions) > 1:
            raise Violation(
                "I23", f"batch {batch.number} of {self.name} is in partitions {sorted(partitions)}"
            )
        self.check_batch(batch, [None if place is None else place[1] for place in places], queue_id)


def start_clients(cell: Cell) -> None:
    """Start those who send in transactions, read by offsets and purge."""
    kind = QueueKind(CHANGING, "changing", is_fifo=cell.faults.changes_fifo, is_log=True)
    for name in SINKS:
        # One gives batches up; the other's two drivers get in each other's way.
        sink = LogSink(f"changing-{name}", kind, 0, has_doomed=name == "one")
        cell.sinks.append(sink)
        for number in range(1 if sink.has_doomed else 2):
            cell.producers_left += 1
            client = cell.client(f"{sink.name}-{number}")
            client.run(drive(client, sink, gap_us=SINK_GAP_US))
    client = cell.client("reads changing")
    client.run(read_by_offsets(client))
    client = cell.client("purges changing")
    client.run(let_go(client))


def read_by_offsets(client: Client) -> Script:
    """Read each partition from its first message on, as far as it goes, and again what was read, now and then."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    reader = cell.log_reader
    while checker.row is None:
        yield 50 * MS
    known = checker.table
    while True:
        yield random.randint(10 * MS, 200 * MS)
        if random.random() < 0.2:
            known = checker.table
        reader.check_end(known)
        for entry in described_partitions(known):
            if entry.state != "drained":
                yield from _read_some(client, entry.number, entry.first_sequence)


def _read_some(client: Client, number: int, first: int) -> Script:
    random, reader = client.random, client.cell.log_reader
    bounds = yield LogBounds(CHANGING, number)
    if not isinstance(bounds, LogBoundsOutcome):
        return
    start = reader.skip_to(number, reader.positions.get(number, first), bounds.earliest)
    if random.random() < 0.1:
        start = random.randint(bounds.earliest, start)
    rows = yield Fetch(CHANGING, number, start, start + random.randint(1, READ_MAX), 1 << 20)
    if isinstance(rows, ClaimRows):
        reader.found(number, start, rows.rows, rows.next_place)


def let_go(client: Client) -> Script:
    """Purge closed partitions whose messages were read, and received by both groups."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    reader = cell.log_reader
    while checker.row is None:
        yield 50 * MS
    while not checker.is_ended:
        yield random.randint(100 * MS, 2 * SECOND)
        for entry in in_state(checker.table, "closed"):
            outcome = yield AskPartition(CHANGING, entry.number)
            if not isinstance(outcome, PartitionOutcome) or outcome.is_empty:
                continue
            end = entry.first_sequence + outcome.sends
            reader.ends[entry.number] = end
            is_read = reader.positions.get(entry.number, 0) >= end
            if is_read and all(
                judge.finished_in(entry.number) == outcome.sends for judge in checker.judges.values()
            ):
                yield Purge(CHANGING, entry.number)

"""What a journal's records make: partitions with their messages, ids, moves and transactions."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from .tables import KEYS, Table

S = -1
"""The number of the one partition of the queue that does not change."""
S_JOURNAL = 0
WINDOW_MS = 300_000
"""How long a partition knows ids, in the queue time of its journal."""
LOG_MESSAGES = 40
"""What a log keeps, over all partitions. Messages are of one size."""

Batch = int


class Message(NamedTuple):
    """`identity` is what a repeated send is known by; messages of a group keep their order."""

    token: int
    identity: int
    key: int
    group: int | None


class Cause(NamedTuple):
    """Why a message was added: `source` and `number` of a move, or the number of a batch."""

    kind: str
    number: int = 0
    source: int = 0


class Move(NamedTuple):
    """A message that is on its way to another journal's partition."""

    sequence: int
    message: Message
    target: int


# Records


class TableSet(NamedTuple):
    table: Table


class Added(NamedTuple):
    partition: int
    sequence: int
    message: Message
    cause: Cause


class Given(NamedTuple):
    partition: int
    sequence: int
    receipt: int


class Freed(NamedTuple):
    """A visibility timeout has ended."""

    partition: int
    sequence: int


class Removed(NamedTuple):
    """Deleted, or moved within the journal."""

    partition: int
    sequence: int
    is_deleted: bool


class Begun(NamedTuple):
    """A message leaves for another journal."""

    partition: int
    sequence: int
    move: int
    target: int


class Redirected(NamedTuple):
    """The target was sealed: the move goes on under a new number, to another one."""

    partition: int
    move: int
    new_move: int
    target: int


class Settled(NamedTuple):
    """The target has the message."""

    partition: int
    move: int


class Staged(NamedTuple):
    partition: int
    batch: Batch
    messages: tuple[Message, ...]


class StageDropped(NamedTuple):
    """Nobody committed the batch for too long."""

    partition: int
    batch: Batch


class BatchDone(NamedTuple):
    partition: int
    batch: Batch


class Trimmed(NamedTuple):
    """The oldest message of a log goes."""

    partition: int
    sequence: int


Change = (
    Added
    | Given
    | Freed
    | Removed
    | Begun
    | Redirected
    | Settled
    | Staged
    | StageDropped
    | BatchDone
    | Trimmed
)
Record = TableSet | Change


class Partition:
    """One partition. What its dictionaries hold is never changed in place, so that a copy is cheap."""

    def __init__(self, number: int, first: int, last: int, first_sequence: int, applied: int) -> None:
        self.number = number
        self.first = first
        self.last = last
        self.next_sequence = first_sequence
        self.applied = applied
        self.is_sealed = False
        self.sealed_ms = 0
        self.live: dict[int, Message] = {}
        self.in_flight: dict[int, int] = {}
        self.identities: dict[int, tuple[int, int]] = {}
        self.moving: dict[int, Move] = {}
        self.next_move = 1
        self.taken: dict[tuple[int, int], None] = {}
        self.staged: dict[Batch, tuple[Message, ...]] = {}
        self.done: dict[Batch, None] = {}

    def copy(self) -> Partition:
        copy = Partition.__new__(Partition)
        for name, value in self.__dict__.items():
            copy.__dict__[name] = dict(value) if isinstance(value, dict) else value
        return copy

    @property
    def is_used(self) -> bool:
        return bool(self.live or self.moving or self.staged or self.done or self.identities or self.taken)

    def is_empty(self, bugs: Collection[str]) -> bool:
        return not (self.live or self.staged or (self.moving and "drained-with-moves" not in bugs))

    @property
    def share(self) -> float:
        return (self.last - self.first + 1) / KEYS

    def knows(self, identity: int, now_ms: int) -> bool:
        known = self.identities.get(identity)
        return known is not None and now_ms - known[0] < WINDOW_MS

    def apply(self, record: Change, now_ms: int, *, is_fifo: bool) -> None:
        """Follow a record of this partition."""
        match record:
            case Added(_, sequence, message, cause):
                self.live[sequence] = message
                self.next_sequence = sequence + 1
                if cause.kind == "send":
                    self.identities[message.identity] = (now_ms, sequence)
                elif cause.kind == "move":
                    self.taken[cause.source, cause.number] = None
            case Given(_, sequence, receipt):
                self.in_flight[sequence] = receipt
            case Freed(_, sequence):
                self.in_flight.pop(sequence, None)
            case Removed(_, sequence) | Trimmed(_, sequence):
                self.in_flight.pop(sequence, None)
                del self.live[sequence]
            case Begun(_, sequence, move, target):
                self.moving[move] = Move(sequence, self.live.pop(sequence), target)
                self.next_move = move + 1
            case Redirected(_, move, new_move, target):
                self.moving[new_move] = self.moving.pop(move)._replace(target=target)
                self.next_move = new_move + 1
            case Settled(_, move):
                del self.moving[move]
            case Staged(_, batch, messages):
                self.staged[batch] = messages
            case StageDropped(_, batch):
                self.staged.pop(batch, None)
            case BatchDone(_, batch):
                self.staged.pop(batch, None)
                self.done[batch] = None

    def seal(self, now_ms: int, *, is_fifo: bool) -> None:
        self.is_sealed = True
        self.sealed_ms = now_ms
        if is_fifo:
            self.staged = {}


class JournalState:
    """All partitions of one journal."""

    def __init__(self, journal: int, *, is_fifo: bool, bugs: Collection[str]) -> None:
        self.journal = journal
        self.is_fifo = is_fifo
        self.bugs = bugs
        self.table: Table | None = None
        self.partitions: dict[int, Partition] = {}
        self.applied = 0
        self.now_ms = 0
        if journal == S_JOURNAL:
            self.partitions[S] = Partition(S, 0, KEYS - 1, 1, 0)

    def copy(self) -> JournalState:
        copy = JournalState(self.journal, is_fifo=self.is_fifo, bugs=self.bugs)
        copy.table = self.table
        copy.partitions = {number: partition.copy() for number, partition in self.partitions.items()}
        copy.applied = self.applied
        copy.now_ms = self.now_ms
        return copy

    def apply(self, record: Record, offset: int, now_ms: int) -> None:
        """Follow a record; a partition that has it already, from its part of a snapshot, does not take it again."""
        self.applied = offset
        self.now_ms = max(self.now_ms, now_ms)
        if isinstance(record, TableSet):
            self._set_table(record.table, offset, now_ms)
            return
        partition = self.partitions.get(record.partition)
        if partition is not None and partition.applied < offset:
            partition.apply(record, now_ms, is_fifo=self.is_fifo)
            partition.applied = offset

    def _set_table(self, table: Table, offset: int, now_ms: int) -> None:
        is_newer = self.table is None or table.version > self.table.version
        if is_newer:
            self.table = table
        elif "seal-not-replayed" in self.bugs:
            return
        for entry in table.entries:
            if entry.journal != self.journal:
                continue
            partition = self.partitions.get(entry.number)
            if partition is None:
                if not entry.must_be_sealed:
                    self.partitions[entry.number] = Partition(
                        entry.number, entry.first, entry.last, entry.first_sequence, offset
                    )
            elif partition.applied < offset:
                if entry.must_be_sealed and not partition.is_sealed:
                    partition.seal(now_ms, is_fifo=self.is_fifo)
                partition.applied = offset
        for partition in list(self.partitions.values()):
            if partition.number == S or partition.applied > offset:
                continue
            listed = table.entry(partition.number)
            if listed is not None and listed.journal == self.journal:
                continue
            if not partition.is_used or (partition.is_sealed and partition.is_empty(self.bugs)):
                del self.partitions[partition.number]

"""A journal: decides commands, answers once the records are committed, and may lose its leader and what was not.

    command ──decide──▶ records ──commit──▶ answer
                          └── the leader is lost: discarded, nobody hears anything

How records are replicated is not modelled: some prefix of what was decided is committed, the rest never was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from random import Random
from typing import Final, NamedTuple

from .state import (
    LOG_MESSAGES,
    Added,
    Batch,
    BatchDone,
    Begun,
    Cause,
    Freed,
    Given,
    JournalState,
    Message,
    Partition,
    Record,
    Redirected,
    Removed,
    S,
    Settled,
    Staged,
    StageDropped,
    TableSet,
    Trimmed,
)
from .tables import Entry, Table

PAGE_GROUPS = 2


class Lost:
    """No answer came; nobody knows what became of the request."""


LOST: Final = Lost()

# Commands. `version`: of the newest table that the sender has met.


class Send(NamedTuple):
    partition: int
    version: int
    message: Message


class Receive(NamedTuple):
    partition: int
    version: int


class Watch(NamedTuple):
    """Would a receive find something?"""

    partition: int
    version: int


class Delete(NamedTuple):
    partition: int
    version: int
    sequence: int
    receipt: int


class SetTable(NamedTuple):
    table: Table


class AskState(NamedTuple):
    partition: int


class AskGroups(NamedTuple):
    """Which groups a sealed partition still has, from the first after `after` on."""

    partition: int
    after: int


class MoveIn(NamedTuple):
    """Moves of one partition to one target, in their order."""

    partition: int
    source: int
    moves: tuple[tuple[int, Message], ...]


class Stage(NamedTuple):
    partition: int
    version: int
    batch: Batch
    messages: tuple[Message, ...]


class Commit(NamedTuple):
    partition: int
    version: int
    batch: Batch


class AskBatch(NamedTuple):
    partition: int
    version: int
    batch: Batch


class SetAside(NamedTuple):
    """The oldest messages of a partition leave for the other queue. `tables`: that of the leader, and newer ones."""

    partition: int
    most: int
    tables: tuple[Table, ...]


class Redirect(NamedTuple):
    """The target is sealed, and did not take this move, nor any after it: all of them go elsewhere, in their order.

    Also those that began since it was asked: left behind, they would be overtaken by what follows their group.
    """

    partition: int
    target: int
    moves: tuple[int, ...]
    tables: tuple[Table, ...]


class Settle(NamedTuple):
    partition: int
    moves: tuple[int, ...]


class Free(NamedTuple):
    partition: int
    sequence: int


class DropStage(NamedTuple):
    partition: int
    batch: Batch


class Trim(NamedTuple):
    partition: int


Command = (
    Send | Receive | Watch | Delete | SetTable | AskState | AskGroups | MoveIn | Stage | Commit | AskBatch
    | SetAside | Redirect | Settle | Free | DropStage | Trim
)  # fmt: skip

# Outcomes


class Stored(NamedTuple):
    sequence: int
    is_duplicate: bool = False


class Elsewhere(NamedTuple):
    """The partition is sealed, or its journal has a newer table than the command: this one."""

    table: Table


class Unknown(NamedTuple):
    """The journal has no such partition."""

    table: Table | None


class Found(NamedTuple):
    sequence: int
    receipt: int
    message: Message


class Nothing(NamedTuple):
    pass


class Something(NamedTuple):
    pass


class Done(NamedTuple):
    pass


class Refused(NamedTuple):
    """A receipt that is not the newest one."""


class Definition(NamedTuple):
    """The journal's own table knows better."""

    table: Table


class PartitionState(NamedTuple):
    is_sealed: bool
    sealed_ms: int
    now_ms: int
    is_empty: bool


class Groups(NamedTuple):
    groups: tuple[int, ...]
    is_last: bool


class NotSealed(NamedTuple):
    pass


class Taken(NamedTuple):
    """Moves that are there now, and those that a sealed partition did not take."""

    moves: tuple[int, ...]
    withdrawn: tuple[int, ...]


class Batches(NamedTuple):
    is_staged: bool
    is_done: bool


class NotStaged(NamedTuple):
    pass


Outcome = (
    Stored | Elsewhere | Unknown | Found | Nothing | Something | Done | Refused | Definition | PartitionState | Groups
    | NotSealed | Taken | Batches | NotStaged
)  # fmt: skip
Answer = Outcome | Lost
AT_ONCE = (Unknown, Nothing, Something, Refused, Definition, NotSealed, NotStaged)
"""Outcomes that nothing is waited for, as what they say is no promise."""


class GroupList:
    """What a leader knows of a parent's groups. Never stored: another leader asks anew."""

    def __init__(self) -> None:
        self.groups: set[int] = set()
        self.is_complete = False


class _Waiting(NamedTuple):
    records: list[Record]
    outcome: Outcome
    reply: Callable[[Answer], None] | None
    now_ms: int


class Journal:
    """One journal and its leader, if it has one."""

    def __init__(
        self, journal: int, random: Random, *, is_fifo: bool, offset_ms: int, bugs: Collection[str]
    ) -> None:
        self.journal = journal
        self.random = random
        self.is_fifo = is_fifo
        self.bugs = bugs
        self.offset_ms = offset_ms
        self.committed = JournalState(journal, is_fifo=is_fifo, bugs=bugs)
        self.decided = self.committed.copy()
        self.waiting: list[_Waiting] = []
        self.records: list[tuple[int, Record, int]] = []
        self.is_led = True
        self.epoch = 1
        self.receipts = count(journal + 1, 10)
        self.lists: dict[tuple[int, int], GroupList] = {}
        """Of each child here and each of its parents."""
        self.places: Table | None = None
        """The table by which the leader moves messages to the queue that changes: as old as it was read."""
        self.told: set[int] = set()
        """Receipts that receives were answered with."""
        self.on_decided: Callable[[Record], None] | None = None
        self._begun: JournalState | None = None
        self._snapshot: JournalState | None = None

    # Replication

    def propose(self, command: Command, now_ms: int, reply: Callable[[Answer], None] | None) -> None:
        """Decide a command; the answer follows when its records are committed. Needs a leader."""
        at_ms = max(self.decided.now_ms, now_ms + self.offset_ms)
        records, outcome = self._decide(command, at_ms)
        for record in records:
            if self.on_decided is not None:
                self.on_decided(record)
            self.decided.apply(record, self.decided.applied + 1, at_ms)
        if isinstance(outcome, Found):
            self.told.add(outcome.receipt)
        is_early = isinstance(outcome, AT_ONCE) or self._answers_early(outcome)
        if is_early and reply is not None:
            reply(outcome)
            reply = None
        if records or reply is not None:
            self.waiting.append(_Waiting(records, outcome, reply, at_ms))

    def _answers_early(self, outcome: Outcome) -> bool:
        return (isinstance(outcome, Elsewhere) and "elsewhere-early" in self.bugs) or (
            isinstance(outcome, Groups) and "gone-uncommitted" in self.bugs
        )

    def commit(self, number: int, on_record: Callable[[Record], None]) -> None:
        """Commit what was decided first. `on_record` hears each record before it is applied."""
        ready, self.waiting = self.waiting[:number], self.waiting[number:]
        for waiting in ready:
            for record in waiting.records:
                on_record(record)
                offset = self.committed.applied + 1
                self.committed.apply(record, offset, waiting.now_ms)
                self.records.append((offset, record, waiting.now_ms))
            if waiting.reply is not None:
                waiting.reply(waiting.outcome)

    def lose_leader(self) -> None:
        """What was not committed is gone, with all that only the leader knew."""
        self.is_led = False
        for waiting in self.waiting:
            if waiting.reply is not None:
                waiting.reply(LOST)
        self.waiting = []
        self.decided = self.committed.copy()
        self.places = None
        self.lists = {}

    def lead(self) -> None:
        self.is_led = True
        self.epoch += 1

    def begin_snapshot(self) -> None:
        """The partitions as they are now: what the snapshot is finished with may be newer."""
        self._begun = self.committed.copy()

    def finish_snapshot(self) -> None:
        """The table of now, with the partitions of the begin, and those that came since."""
        if self._begun is None:
            return
        snapshot = self.committed.copy()
        for number, partition in self._begun.partitions.items():
            if number in snapshot.partitions:
                snapshot.partitions[number] = partition
        self._snapshot, self._begun = snapshot, None

    def restart_from_snapshot(self) -> JournalState | None:
        """Make the state from the last snapshot and the records after it; needs no leader. None without a snapshot."""
        if self._snapshot is None:
            return None
        state = self._snapshot.copy()
        start = min((partition.applied for partition in state.partitions.values()), default=state.applied)
        for offset, record, now_ms in self.records:
            if offset > start:
                state.apply(record, offset, now_ms)
        self.committed = state
        self.decided = state.copy()
        return state

    # Deciding

    def _decide(self, command: Command, now_ms: int) -> tuple[list[Record], Outcome]:
        state = self.decided
        if isinstance(command, SetTable):
            return self._set_table(command.table)
        partition = state.partitions.get(command.partition)
        if partition is None:
            return [], Unknown(state.table)
        match command:
            case Send():
                return self._send(partition, command, now_ms)
            case Receive() | Watch():
                return self._receive(partition, command)
            case Delete():
                if partition.in_flight.get(command.sequence) == command.receipt:
                    return [Removed(partition.number, command.sequence, True)], Done()
                return [], Refused() if command.sequence in partition.live else Done()
            case AskState():
                is_empty = partition.is_empty(self.bugs)
                return [], PartitionState(partition.is_sealed, partition.sealed_ms, now_ms, is_empty)
            case AskGroups():
                return [], self._groups(partition, command.after)
            case MoveIn():
                return self._move_in(partition, command)
            case SetAside():
                return self._set_aside(partition, command)
            case Redirect():
                return self._redirect(partition, command), Done()
            case Settle():
                moves = [move for move in command.moves if move in partition.moving]
                return [Settled(partition.number, move) for move in moves], Done()
            case Free():
                if command.sequence in partition.in_flight:
                    return [Freed(partition.number, command.sequence)], Done()
                return [], Done()
            case DropStage():
                is_staged = command.batch in partition.staged
                return [StageDropped(partition.number, command.batch)] if is_staged else [], Done()
            case Trim():
                return self._trim(partition), Done()
            case Stage() | Commit() | AskBatch():
                return self._batch(partition, command)

    def _set_table(self, table: Table) -> tuple[list[Record], Outcome]:
        known = self.decided.table
        if known is not None and known.knows_better_than(table) and "number-reused" not in self.bugs:
            return [], Definition(known)
        if known is not None and known.version >= table.version:
            return [], Done()
        return [TableSet(table)], Done()

    def _elsewhere(self) -> Elsewhere:
        table = self.decided.table
        assert table is not None, "a table sealed the partition"
        return Elsewhere(table)

    def _send(self, partition: Partition, command: Send, now_ms: int) -> tuple[list[Record], Outcome]:
        message = command.message
        if partition.knows(message.identity, now_ms):
            return [], Stored(partition.identities[message.identity][1], is_duplicate=True)
        if partition.is_sealed:
            return [], self._elsewhere()
        sequence = partition.next_sequence
        return [Added(partition.number, sequence, message, Cause("send"))], Stored(sequence)

    def _receive(self, partition: Partition, command: Receive | Watch) -> tuple[list[Record], Outcome]:
        sequence = self._next(partition)
        if sequence is None:
            table = self.decided.table
            is_behind = partition.number != S and table is not None and table.version > command.version
            if is_behind and "sealed-parks" not in self.bugs:
                return [], self._elsewhere()
            return [], Nothing()
        given = Given(partition.number, sequence, next(self.receipts))
        if isinstance(command, Watch):
            return [given] if "watch-takes" in self.bugs else [], Something()
        return [given], Found(sequence, given.receipt, partition.live[sequence])

    def _next(self, partition: Partition) -> int | None:
        passed: set[int] = set()
        for sequence in sorted(partition.live):
            group = partition.live[sequence].group
            if group is None:
                if sequence not in partition.in_flight:
                    return sequence
            elif group not in passed:
                passed.add(group)
                if sequence not in partition.in_flight and self._may_give(partition, group):
                    return sequence
        return None

    def parents(self, partition: Partition) -> list[Entry]:
        """Older partitions of the same keys that may still have messages."""
        table = self.decided.table
        if table is None or partition.number == S:
            return []
        known = table.entry(partition.number)
        parents = [
            entry
            for entry in table.entries
            if entry.number < partition.number
            and entry.state != "drained"
            and entry.first <= partition.last
            and partition.first <= entry.last
        ]
        if "grandparent-forgotten" in self.bugs and known is not None:
            parents = [entry for entry in parents if entry.number in known.parents]
        return parents[:1] if "one-parent-of-two" in self.bugs else parents

    def _may_give(self, partition: Partition, group: int) -> bool:
        if "fresh-group-given" in self.bugs:
            return True
        for parent in self.parents(partition):
            known = self.lists.get((partition.number, parent.number))
            if known is None or not (known.is_complete or ("list-half" in self.bugs and known.groups)):
                return False
            if group in known.groups:
                return False
        return True

    def _groups(self, partition: Partition, after: int) -> Outcome:
        if not partition.is_sealed:
            return NotSealed()
        alive = sorted({message.group for message in partition.live.values() if message.group is not None})
        rest = [group for group in alive if group > after]
        return Groups(tuple(rest[:PAGE_GROUPS]), is_last=len(rest) <= PAGE_GROUPS)

    # Moves

    def _move_in(self, partition: Partition, command: MoveIn) -> tuple[list[Record], Outcome]:
        records: list[Record] = []
        taken, withdrawn = [], []
        sequence = partition.next_sequence
        for move, message in command.moves:
            if (command.source, move) in partition.taken:
                taken.append(move)
            elif partition.is_sealed and "sealed-takes-moves" not in self.bugs:
                withdrawn.append(move)
            else:
                cause = Cause("move", move, command.source)
                records.append(Added(partition.number, sequence, message, cause))
                sequence += 1
                taken.append(move)
        return records, Taken(tuple(taken), tuple(withdrawn))

    def _target(self, message: Message, tables: tuple[Table, ...], after: int = S) -> int | None:
        """Where a message of `S` goes, if `after` is sealed: past it. All of a command goes by one table."""
        table = self.random.choice(tables) if "tables-mixed" in self.bugs else tables[0]
        return next((entry.number for entry in table.taking(message.key) if entry.number > after), None)

    def _is_sealed_here(self, number: int) -> bool:
        partition = self.decided.partitions.get(number)
        return partition is not None and partition.is_sealed and "sealed-takes-local-moves" not in self.bugs

    def _set_aside(self, partition: Partition, command: SetAside) -> tuple[list[Record], Outcome]:
        records: list[Record] = []
        move = partition.next_move
        next_sequences: dict[int, int] = {}
        places: dict[int | None, int] = {
            moving.message.group: moving.target
            for _, moving in sorted(partition.moving.items())
            if moving.message.group is not None
        }
        stopped: set[int | None] = set()
        chosen = 0
        for sequence in sorted(partition.live):
            message = partition.live[sequence]
            if chosen == command.most:
                break
            if message.group in stopped:
                continue
            if sequence in partition.in_flight or (
                message.group and not self._may_give(partition, message.group)
            ):
                if message.group is not None:
                    stopped.add(message.group)
                continue
            chosen += 1
            is_following = message.group in places and "tables-mixed" not in self.bugs
            target: int | None = S
            if is_following:
                target = places[message.group]
            elif partition.number == S:
                target = self._target(message, command.tables)
                while target is not None and self._is_sealed_here(target):
                    target = self._target(message, command.tables, target)
            if target is None:
                break
            here = self.decided.partitions.get(target)
            if here is not None and not is_following:
                new_sequence = next_sequences.get(target, here.next_sequence)
                next_sequences[target] = new_sequence + 1
                records.append(Removed(partition.number, sequence, False))
                cause = Cause("move", -sequence, partition.number)
                records.append(Added(target, new_sequence, message, cause))
                continue
            records.append(Begun(partition.number, sequence, move, target))
            if message.group is not None:
                places[message.group] = target
            move += 1
        return records, Done()

    def _redirect(self, partition: Partition, command: Redirect) -> list[Record]:
        records: list[Record] = []
        new_move = partition.next_move
        for move, moving in sorted(partition.moving.items()):
            is_withdrawn = (
                move in command.moves if "withdrawn-alone" in self.bugs else move >= command.moves[0]
            )
            if moving.target != command.target or not is_withdrawn:
                continue
            target = self._target(moving.message, command.tables, moving.target)
            if target is None:
                break
            records.append(Redirected(partition.number, move, new_move, target))
            new_move += 1
        return records

    # Transactions and logs

    def _batch(
        self, partition: Partition, command: Stage | Commit | AskBatch
    ) -> tuple[list[Record], Outcome]:
        number = partition.number
        staged = partition.staged.get(command.batch)
        is_done = command.batch in partition.done
        if isinstance(command, AskBatch):
            return [], Batches(staged is not None, is_done)
        if is_done:
            return [], Stored(0, is_duplicate=True)
        if isinstance(command, Stage):
            if partition.is_sealed and (staged is None or self.is_fifo):
                return [], self._elsewhere()
            return [Staged(number, command.batch, command.messages)], Done()
        if staged is None:
            return [], NotStaged()
        sequence = partition.next_sequence
        records: list[Record] = [
            Added(number, sequence + at, message, Cause("batch", command.batch))
            for at, message in enumerate(staged)
        ]
        return [*records, BatchDone(number, command.batch)], Stored(sequence)

    def _trim(self, partition: Partition) -> list[Record]:
        table = self.decided.table
        if "retention-by-count" in self.bugs and table is not None:
            kept = LOG_MESSAGES / max(1, len(table.in_state("open", "closing", "closed")))
        else:
            kept = LOG_MESSAGES * partition.share
        if len(partition.live) - 1 < kept:
            return []
        return [Trimmed(partition.number, min(partition.live))]

"""One replica of a journal on a simulated host: from when it is opened until its process ends or it is dropped.

It is to the product's `JournalReplica` what `broker/replica/replica` is: it feeds it, carries out what it asks for,
gives the bodies to what was taken, makes snapshots and copies of the journal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from quaymaster.broker.replica.maintenance.expiry import EXPIRY_ROUND_S
from quaymaster.broker.replica.records.time_file import LOOK_S, TimeFile
from quaymaster.broker.replica.replica import TICK_LATE_MS
from quaymaster.broker.storage.state_store import encode_key, encode_partition, load_partitions
from quaymaster.core.cell.cell import ReplicaSeen, broker_of
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES, PREFIX_FLAGS
from quaymaster.core.replication.copy_verdicts import judge_copy
from quaymaster.core.replication.effects import ReadLog, Truncate, Write
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.replication.queue_time import QueueTime
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.structures.ids.sent_ids import DEDUP_WINDOW_MS
from quaymaster.core.structures.orders.held_groups import Look
from quaymaster.core.values.commands.completions import Complete, CompletionDecided
from quaymaster.core.values.commands.decided import (
    ClaimedOutcome,
    DeadLetter,
    Duplicate,
    ExpireMessages,
    FetchedOffsets,
    SentElsewhere,
    SentOutcome,
    TakenOutcome,
)
from quaymaster.core.values.commands.messages import Elsewhere, Receive, Send, Watch, WatchOutcome
from quaymaster.core.values.commands.move_tasks import StartMoveTask
from quaymaster.core.values.commands.moves import MoveBegun, MoveMessage
from quaymaster.core.values.commands.partitions import AskGroups
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.commands.unions import Command, InternalCommand
from quaymaster.core.values.errors import DiskFull, NotLeader, NotNow, Overloaded
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.messages import decode_moved, message_id_of, prefix_bytes
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.records import (
    Batch,
    RecordRow,
    RecordType,
    decode_header,
    iterate_rows,
    record_at,
)
from sim.changing_partitions import CHANGING
from sim.claims import ClaimRows, answer_of
from sim.guarantees import GivenOnce
from sim.kernel import MS, SECOND, Violation
from sim.log_disk import LogDisk, LogWriter, Snapshot
from sim.messages import Answer, Copied, Copy, Received, Sent
from sim.moves import Inside, Moves, TaskMoves
from sim.questions import Questions
from sim.queue_checker import Delivery
from sim.store import STORE, Get, Swap

if TYPE_CHECKING:
    from sim.host import Host

TICK_US = 100 * MS
LOOK_US = int(LOOK_S * SECOND)
TURN_US = 100
SLICE_US_MAX = 20 * MS
"""So long the next slice of a commit may take to come."""
SLICES_LATE = 0.1
LATE_SLICE_US = 2 * SECOND
"""So long some of them take: elections fall between slices, too."""
RETENTION_SHORT_MS = 60_000
"""Messages of queues that keep them for less are looked after; the others outlive any run."""
READ_BATCHES_MAX = 16
HASH_EVERY = 64
RETRY_WINDOW_MS = 120_000
UNAPPLIED_BYTES_MAX = 1_000
"""A few batches: the rest of what comes during a rebuild is read from the disk."""
COPY_AGAIN_US = SECOND
MOVE_AGAIN_US = 200 * MS


class Asked:
    """A command of a client, and when it was decided."""

    __slots__ = ("command", "decided_ms", "is_done", "look", "number", "sender", "until_s")

    def __init__(self, sender: str, number: int, command: Command) -> None:
        self.sender = sender
        self.number = number
        self.command = command
        self.decided_ms = 0
        self.look: Look | None = None
        self.is_done = False
        self.until_s = 0.0
        """See `HeldReceives`."""


class Replica:
    """An opened replica; `member` is its host's name with that of its storage."""

    def __init__(self, host: Host, journal_id: int, disk: LogDisk) -> None:
        """Take up what is on the disk, all of which is durable."""
        self.host = host
        self.cell = cell = host.cell
        self.name = host.name
        self.journal_id = journal_id
        self.disk = disk
        self.clock = host.clock
        self.member = f"{host.name}@{disk.storage_id}"
        self.is_open = True
        self.checker = cell.checker_of(journal_id)
        self._kernel = cell.kernel
        self._network = cell.network
        self._random = host.random
        snapshot = disk.snapshot
        self.batches: list[Batch] = list(disk.batches)
        self.ends: list[int] = list(disk.ends)
        base = snapshot.base_offset if snapshot else 0
        start = Position(base, snapshot.epoch, snapshot.chain) if snapshot else Position(0, 0, 0)
        positions = [
            Position(batch.next_offset, batch.epoch, batch.chain)
            for batch in self.batches
            if batch.next_offset > base
        ]
        queues, _, last_time_ms = self._replayed()
        self.queue_time = cell.bugs.variant(QueueTime)(last_time_ms, self.clock.monotonic_ms())
        self._time_file = self._open_time_file()
        self._time_file_due_us = self._kernel.now_us + LOOK_US
        self._ticked_ms = 0
        self._expiry_due_us = self._kernel.now_us
        self._look_at_clock()
        self._looked_ms = 0
        """The queue time at the last tick."""
        log = cell.bugs.variant(LogReplica)(
            self.member,
            promised_epoch=disk.promised,
            start=start,
            positions=positions,
            now_ms=self.clock.monotonic_ms(),
            time=self.queue_time,
        )
        log.room = host.room
        self.journal = cell.bugs.variant(JournalReplica)(
            log, queues, last_time_ms=last_time_ms, unapplied_bytes_max=UNAPPLIED_BYTES_MAX
        )
        self.writer = cell.bugs.variant(LogWriter)(
            self._kernel,
            disk,
            cell.faults.disk,
            on_progress=self._on_progress,
            on_promised=self._on_promised,
            on_failed=self._on_disk_failed,
        )
        self.store_revision = 0
        self.configuration: JournalConfiguration | None = None
        self.commit = base
        self._activating = 0
        self._is_turn_due = False
        self._is_slicing = False
        self._inbox: list[Asked] = []
        self._copying: dict[str, int] = {}
        self._hashed_end = base
        self._snapshot_at = base
        self._snapshot_wanted: Snapshot | None = None
        self._snapshot_end = 0
        """Up to where what is in it must be committed."""
        self._is_compacting = False
        self._was_leading = False
        has_tasks = cell.faults.has_redrives or cell.faults.feeds_partitions
        self._tasks = TaskMoves(self) if has_tasks else None
        self._given_once = GivenOnce(self, number_of) if cell.faults.has_guarantees else None
        has_moves = cell.faults.has_moves or cell.faults.has_completions
        self._moves = Moves(self) if has_moves and self._tasks is None else None
        self._questions = Questions(self) if cell.faults.has_changing_partitions else None

    @property
    def log(self) -> LogReplica:
        """The replica of the log below its queues."""
        return self.journal.log

    def close(self) -> None:
        """Nothing that is under way here happens any more."""
        self.is_open = False
        self.cell.manager_checker.on_tick(self.journal_id, self.member, 0, hears=False)
        if self._moves is not None and self._was_leading:
            self._moves.leads(False)
        if self._tasks is not None:
            self._tasks.close()
        if self._questions is not None:
            self._questions.close()
        if self._given_once is not None:
            self._given_once.close()
        self.writer.stop()

    def _on_disk_failed(self) -> None:
        self.tell("its disk failed an fsync: it is tainted")
        self.disk.is_tainted = True
        self.host.end(is_power_cut=True)
        self.cell.on_disk_lost(self.host, self.journal_id)

    def tell(self, what: str, offsets: tuple[int, int] | None = None) -> None:
        """Note in the story what happens to this replica."""
        if self._kernel.story is not None:
            self._kernel.tell(f"{self.name}/{self.journal_id}", what, offsets)

    def log_state(self) -> str:
        """Return where the log stands, for the story."""
        log = self.log
        return (
            f"{log.role} in epoch {log.epoch}, promised {log.promised_epoch}, end {log.end.end}, "
            f"durable {self.disk.fsynced_end}, commit {log.commit}"
        )

    # Events

    def on_message(self, envelope: Envelope) -> None:
        """Another replica says something."""
        if self._kernel.story is not None:
            self.cell.tell_message(self, envelope)
        self.journal.on_message(envelope.sender, envelope.message, self.clock.monotonic_ms())
        self._settle()

    def ask(self, asked: Asked) -> None:
        """A client asks something: it is decided in a moment, with what comes till then."""
        self._inbox.append(asked)
        if not self._is_turn_due:
            self._is_turn_due = True
            self._kernel.after(TURN_US, self._turn)

    def on_connection_closed(self, member: str) -> None:
        """The process of a member is gone."""
        self.journal.on_connection_closed(member)
        self._settle()

    def on_copied(self, member: str) -> None:
        """A member has the copy that it needed."""
        self._copying.pop(member, None)
        self.log.on_copied(member)
        self._settle()

    def transfer(self, member: str) -> bool:
        """Begin to hand over to a member; false when that cannot be."""
        is_begun = self.log.transfer(member)
        if is_begun:
            self.tell(f"hands over to {member}")
        self._settle()
        return is_begun

    def end_transfer(self) -> None:
        """Give a hand-over up."""
        self.log.end_transfer()
        self._settle()

    def tick(self) -> None:
        """A tenth of a second has passed."""
        now_us = self._kernel.now_us
        for member, sent_us in self._copying.items():
            if now_us - sent_us > COPY_AGAIN_US:
                self._send_copy(member)
        self.on_tick()
        self._look_at_clock()
        self.queue_time.follow(self.clock.monotonic_ms())
        self.journal.queues.expiry_is_held = self.queue_time.expiry_is_held
        self._tell_hold()
        if now_us >= self._time_file_due_us:
            self._time_file_due_us = now_us + LOOK_US
            if self._time_file.is_due(self.queue_time):
                self._time_file.write(self.queue_time, self.clock.monotonic_ms)
        self._ticked_ms = self.clock.monotonic_ms()
        self.journal.on_tick(self._ticked_ms)
        self._maintain()
        self.cell.manager_checker.on_tick(
            self.journal_id, self.member, self.log.epoch, hears=self.hears_leader()
        )
        self._settle()

    def _tick_if_late(self) -> None:
        """As the broker does before it decides: who was paused knows first how long, and has lost its lease."""
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._ticked_ms > TICK_LATE_MS:
            self._ticked_ms = now_ms
            self.journal.on_tick(now_ms)

    def _tell_hold(self) -> None:
        """Tell the checker whether this leader lets messages expire now."""
        log = self.log
        looked_ms, self._looked_ms = self._looked_ms, self.time_ms()
        if log.role == "leading":
            self.cell.queue_checker.look_at_hold(
                self.journal_id,
                log.epoch,
                is_held=self.queue_time.expiry_is_held,
                before_ms=looked_ms,
                now_ms=self._looked_ms,
            )

    def _open_time_file(self) -> TimeFile:
        """Carry queue time on from what an earlier process wrote down."""
        machine, storage_id = self.host.machine, self.disk.storage_id
        machine.disk.make_directory(f"/{storage_id}")
        time_file = self.cell.bugs.variant(TimeFile)(
            machine.disk, f"/{storage_id}", storage_id.encode().ljust(16), boot=machine.boot
        )
        time_file.resume(self.queue_time, self.clock.monotonic_ms)
        return time_file

    def _look_at_clock(self) -> None:
        self.queue_time.note_wall(self.clock.wall_ms(), self.clock.monotonic_ms())

    def time_ms(self) -> int:
        """Return the journal's time, as far as it is known here."""
        return self.queue_time.at(self.clock.monotonic_ms())

    def hears_leader(self) -> bool:
        """Tell whether it hears its leader; a leader, whether a majority answered it."""
        log = self.log
        return log.has_lease if log.role == "leading" else log.hears_leader(self.clock.monotonic_ms())

    def on_tick(self) -> None:
        """Time has passed."""

    def seen(self) -> ReplicaSeen:
        """Return how it is, as a manager wants to know it."""
        journal, log = self.journal, self.log
        return ReplicaSeen(
            self.member,
            log.role,
            log.epoch,
            log.promised_epoch,
            log.end.epoch,
            log.end.end,
            log.hears_leader(self.clock.monotonic_ms()),
            is_rebuilding=not journal.is_ready,
            lag=log.lag_of() if log.role == "leading" else {},
        )

    def on_store(self, configuration: JournalConfiguration, revision: int) -> None:
        """The journal's key was read."""
        if revision < self.store_revision:
            return
        self.store_revision = revision
        self.configuration = configuration
        self.journal.on_configuration(configuration, self.clock.monotonic_ms())
        if (
            self.log.role == "activating"
            and configuration.epoch == self.log.epoch
            and configuration.activated
        ):
            self._activated(configuration.epoch)
        if self._activating == self.log.epoch:
            self._ask_to_activate(self._activating)
        self._settle()

    def _on_progress(self, written: int, durable: int, truncations: int) -> None:
        if self.host.is_paused:
            self.host.deferred.append((self._late_report, (self._on_progress, written, durable, truncations)))
            return
        self.journal.on_written(written, truncations=truncations)
        self.journal.on_durable(durable, truncations=truncations)
        self._settle()

    def _on_promised(self, epoch: int) -> None:
        if self.host.is_paused:
            self.host.deferred.append((self._late_report, (self._on_promised, epoch)))
            return
        self.journal.on_promise_durable(epoch)
        self._settle()

    def _late_report(self, act: Callable[..., None], *arguments: int) -> None:
        if self.is_open:
            act(*arguments)

    # What the replica asks for

    def _settle(self) -> None:
        """Carry out what the replica asks for, as long as that brings about more."""
        while self._carry_out():
            pass

    def _carry_out(self) -> bool:
        """Carry out one `ToDo`; return whether commands were proposed that come of it."""
        log = self.log
        checker = self.checker
        todo = self.journal.take(self.time_ms())
        if todo.operations:
            self._follow(todo.operations)
            self.writer.carry_out(todo.operations)
        send = self._network.send
        for envelope in todo.messages:
            checker.on_send(self, envelope)
            send(self.name, broker_of(envelope.receiver), envelope)
        for read in todo.reads:
            self._kernel.after(self._random.randint(100, 2 * MS), self._read, read)
        for member in todo.copies:
            self._copying[member] = 0
            self._send_copy(member)
        if todo.activate is not None:
            checker.on_barrier_durable(self, todo.activate)
            self._activating = todo.activate
            self._ask_to_activate(todo.activate)
        if todo.rebuild:
            self._snapshot_wanted = None
            self._kernel.after(self._random.randint(MS, 20 * MS), self._rebuild)
        if log.commit > self.commit:
            checker.on_commit(self, self.commit, log.commit)
            self.commit = log.commit
            self._publish_if_committed()
        letters: list[DeadLetter] = []
        for token, answer in todo.replies:
            if isinstance(token, Asked):
                self._reply(token, answer, letters)
            elif isinstance(token, Inside):
                token.on_answer(answer)
            elif isinstance(token, DeadLetter) and isinstance(answer, MoveBegun):
                assert self._moves is not None, "messages leave only where there are other journals"
                self._moves.begun(partition_key(token.queue_id, token.partition), answer)
            elif isinstance(token, DeadLetter) and isinstance(answer, Exception):
                self._kernel.after(MOVE_AGAIN_US, self._move, token)
        if (
            log.end.end - self._hashed_end >= HASH_EVERY
            and self.journal.is_ready
            and not self.journal.has_more
        ):
            self._hashed_end = log.end.end - log.end.end % HASH_EVERY
            checker.on_applied(self)
        if log.end.end - self._snapshot_at >= self.cell.faults.snapshot_records and self.may_take_snapshot():
            self._take_snapshot()
        is_put_back = False
        is_followed = self._moves is not None or (self._given_once is not None and self._tasks is None)
        if is_followed and self.journal.is_leading != self._was_leading:
            self._was_leading = self.journal.is_leading
            if self._moves is not None:
                # Before anything is decided: who begins to lead sends all that is leaving, for that is committed.
                self._moves.leads(self._was_leading)
            is_put_back = self._was_leading and self._put_back_undecided()
        if self._questions is not None:
            self._questions.look()
        if self._tasks is not None:
            self._have_moved(self._tasks, letters)
            letters = []
        for letter in letters:
            self._propose_move(letter)
        for command, token in todo.again:
            if isinstance(token, Asked):
                self.ask(token)
            else:
                self.journal.propose(command, token, self.time_ms())
        if self.journal.has_more and not self._is_slicing:
            self._is_slicing = True
            is_late = self._random.random() < SLICES_LATE
            self._kernel.after(
                self._random.randint(0, LATE_SLICE_US if is_late else SLICE_US_MAX), self._do_slice
            )
        return is_put_back or bool(letters) or bool(todo.again)

    def _do_slice(self) -> None:
        """Do a slice of a commit that takes several."""
        if not self.is_open:
            return
        if self.host.is_paused:
            self.host.deferred.append((self._do_slice, ()))
            return
        self._is_slicing = False
        self.journal.do_slice(self.time_ms())
        self._settle()

    def may_take_snapshot(self) -> bool:
        """Tell whether the queues are what the log says, all of them."""
        return self.journal.is_ready and not self.journal.has_more

    def _have_moved(self, tasks: TaskMoves, letters: list[DeadLetter]) -> None:
        """Have the product move dead letters, and tell it who leads."""
        if letters:
            tasks.move_dead_letters(letters)
        if self.journal.is_leading != self._was_leading:
            self._was_leading = self.journal.is_leading
            tasks.leads(self._was_leading)

    def _put_back_undecided(self) -> bool:
        """Make visible again what was taken for a move in an earlier epoch; return whether there is such a thing."""
        is_any = False
        for partition in self.journal.queues.partitions.values():
            for sequence in list(partition.moving):
                is_any = True
                put_back = MoveMessage(
                    partition.definition.queue_id, partition.number, sequence, 0, 0, 0, None, None
                )
                self.journal.propose(put_back, None, self.time_ms())
        return is_any

    def answer_about_groups(self, command: AskGroups, reply: Callable[[object], None]) -> None:
        """Answer which groups of a partition are gone."""
        assert self._questions is not None, "only partitions that change are asked"
        self._questions.answer(command, reply)

    def propose_inside(self, command: Command | InternalCommand, on_answer: Callable[[object], None]) -> None:
        """Have a command decided that a broker asks of itself, or another one of it."""
        self._kernel.after(0, self._decide_inside, command, Inside(on_answer))

    def _decide_inside(self, command: Command | InternalCommand, token: Inside) -> None:
        if not self.is_open:
            return
        if self.host.is_paused:
            self.host.deferred.append((self._decide_inside, (command, token)))
            return
        self._tick_if_late()
        self.journal.propose(command, token, self.time_ms())
        self._settle()

    def _follow(self, operations: list[Any]) -> None:
        """Keep the batches that the log has."""
        checker = self.checker
        for operation in operations:
            if isinstance(operation, Write):
                self.batches += operation.batches
                self.ends += [batch.next_offset for batch in operation.batches]
                if operation.batches[0].epoch == self.log.epoch and self.log.leader == self.member:
                    for batch in operation.batches:
                        checker.on_append(self, batch)
            elif isinstance(operation, Truncate):
                checker.on_truncate(self, operation.end)
                keep = bisect_right(self.ends, operation.end)
                del self.batches[keep:], self.ends[keep:]
                self._hashed_end = min(self._hashed_end, operation.end)
                self._snapshot_at = min(self._snapshot_at, operation.end)
                self._snapshot_wanted = None

    def _read(self, read: ReadLog) -> None:
        if not self.is_open:
            return
        if self.host.is_paused:
            self.host.deferred.append((self._read, (read,)))
            return
        disk = self.disk
        found = disk.read(read.start, READ_BATCHES_MAX)
        previous = disk.chain_at(read.start) if found is not None else None
        self.log.on_read(
            read.member,
            read.start,
            previous,
            found or [],
            is_gone=found is None,
            truncations=self.writer.truncations,
        )
        self._settle()

    def _ask_to_activate(self, epoch: int) -> None:
        """Swap, as often as it takes: an answer that did not come says nothing, so the key is read first."""
        configuration = self.configuration
        if self.log.role != "activating":
            return
        if configuration is None or configuration.epoch != epoch or configuration.activated:
            self._network.send(self.name, STORE, Get())
            return
        activated = msgspec.structs.replace(
            configuration, activated=True, previous_members=configuration.members
        )
        self._network.send(self.name, STORE, Swap(self.journal_id, self.store_revision, activated))

    def _activated(self, epoch: int) -> None:
        self.checker.on_activated(self, epoch)
        self.tell(f"activates epoch {epoch}: {self.log_state()}")
        self.journal.on_activated(epoch)
        self._looked_ms = self.time_ms()
        self._tell_hold()

    # Copies of the journal

    def _send_copy(self, member: str) -> None:
        snapshot = self.disk.snapshot
        if snapshot is None or self.log.role not in ("activating", "leading") or not self.has_cut():
            return
        self._copying[member] = self._kernel.now_us
        base = snapshot.base_offset
        copy = Copy(
            member,
            self.journal_id,
            self.log.epoch,
            snapshot,
            dict(self.disk.kept_below(base)),
            self.disk.durable_behind(base),
        )
        self.tell(f"sends {member} a copy at {base}, up to {copy.end.end}")
        self._network.send(self.name, broker_of(member), copy)

    def on_copy(self, sender: str, copy: Copy) -> None:
        """Take a copy in place of the log, if the replica says so."""
        if copy.member != self.member:
            return
        log = self.log
        verdict = judge_copy(
            promised_epoch=log.promised_epoch, end=log.end, leader_epoch=copy.epoch, copy_end=copy.end
        )
        if verdict == "wait":
            return
        if verdict == "take":
            self.tell(f"takes a copy up to {copy.end.end} in place of its log: {self.log_state()}")
            self.install(copy)
        self._network.send(self.name, sender, Copied(copy.member, self.journal_id))

    def install(self, copy: Copy) -> None:
        """Put a copy in place of the log; another replica goes on with it."""
        self.close()
        self.disk.install(copy.snapshot, copy.kept, copy.batches)
        self.host.open(self.journal_id)

    def chain_at(self, end: int) -> int | None:
        """Return the chain value where a batch ends, None when none of this log ends there."""
        index = bisect_right(self.ends, end) - 1
        if index >= 0 and self.ends[index] == end:
            return self.batches[index].chain
        return self.disk.start_chain if end == self.disk.start_offset else None

    def batch_before(self, offset: int) -> Batch | None:
        """Return the batch that ends there, None when it is not in the log (any more)."""
        index = bisect_right(self.ends, offset) - 1
        return self.batches[index] if index >= 0 and self.ends[index] == offset else None

    # Queues

    def _replayed(self) -> tuple[QueueStates, int, int]:
        """Make the queues from what is on the disk; return them, up to where, and the last stamp."""
        disk = self.disk
        keeper = self.cell.chunks
        queues = self.cell.bugs.variant(QueueStates)(
            keeper, retry_window_ms=RETRY_WINDOW_MS, journal_id=self.journal_id
        )
        applied = last_time_ms = 0
        if disk.snapshot is not None:
            load_partitions(queues, disk.snapshot.blobs, keeper)
            queues.attach_groups()
            applied, last_time_ms = disk.snapshot.base_offset, disk.snapshot.last_time_ms
        for batch in disk.batches[self.first_behind(bisect_right(disk.ends, applied)) :]:
            data = batch.data
            header = decode_header(data)
            for row in iterate_rows(data, header):
                queues.apply(row, data[row.position : row.position + row.length], header.epoch)
            last_time_ms = max(last_time_ms, header.time_ms)
        queues.unfinished.finish()
        return queues, disk.end, last_time_ms

    def first_behind(self, index: int) -> int:
        """Return the index of the first batch to be applied, given that of the first behind the snapshot."""
        return index

    def _rebuild(self) -> None:
        """Make the queues anew, when the disk has what the log has had cut."""
        if not self.is_open or self.journal.is_ready:
            return
        if self.host.is_paused:
            self.host.deferred.append((self._rebuild, ()))
            return
        if not self.has_cut():
            self._kernel.after(MS, self._rebuild)
            return
        queues, applied, last_time_ms = self._replayed()
        if not self.journal.has_kept_from(applied):
            self._kernel.after(MS, self._rebuild)
            return
        if took_us := self.cell.faults.rebuild_us:
            took_us = self._random.randrange(took_us)
            self._kernel.after(took_us, self._rebuilt, queues, applied, last_time_ms, self.writer.truncations)
        else:
            self._rebuilt(queues, applied, last_time_ms, self.writer.truncations)

    def _rebuilt(self, queues: QueueStates, applied: int, last_time_ms: int, truncations: int) -> None:
        """The queues were made of what the disk had; in some runs the log is longer by now, or was cut."""
        if not self.is_open or self.journal.is_ready:
            return
        if self.host.is_paused:
            self.host.deferred.append((self._rebuilt, (queues, applied, last_time_ms, truncations)))
            return
        if truncations == self.log.truncations and not self.journal.has_kept_from(applied):
            self._kernel.after(MS, self._rebuild)
            return
        self.tell(f"has made its queues anew up to {applied}")
        self.journal.on_rebuilt(queues, applied, last_time_ms, truncations)
        self._settle()

    def has_cut(self) -> bool:
        """Tell whether the disk has carried out every truncation so far."""
        return self.writer.truncations == self.log.truncations

    def _take_snapshot(self) -> None:
        """Encode the queues as they are, which is ahead; it is published when all in it is committed."""
        end = self.log.end
        self._snapshot_at = end.end
        keys = list(self.journal.queues.partitions)
        slow_us = self.cell.faults.snapshot_us
        now = self._random.randint(0, len(keys)) if slow_us else len(keys)
        blobs = self._encoded(keys[:now])
        snapshot = Snapshot(end.end, end.chain, end.epoch, self.journal.last_time_ms, blobs)
        if now == len(keys):
            self._snapshot_taken(snapshot)
        else:
            self._kernel.after(
                self._random.randint(MS, slow_us), self._go_on, snapshot, keys[now:], self.log.truncations
            )

    def _go_on(self, snapshot: Snapshot, keys: list[int], truncations: int) -> None:
        """Add partitions as they are by now: those that went since are in what is replayed, as are those that began."""
        if not self.is_open or truncations != self.log.truncations or not self.may_take_snapshot():
            return
        there = [key for key in keys if key in self.journal.queues.partitions]
        blobs = [*snapshot.blobs, *self._encoded(there)]
        self._snapshot_taken(replace(snapshot, blobs=blobs, last_time_ms=self.journal.last_time_ms))

    def _encoded(self, keys: list[int]) -> list[tuple[bytes, bytes]]:
        partitions, end = self.journal.queues.partitions, self.log.end.end
        return [(encode_key(key), b"".join(encode_partition(partitions[key], end))) for key in keys]

    def _snapshot_taken(self, snapshot: Snapshot) -> None:
        self._snapshot_wanted = snapshot
        self._snapshot_end = self.log.end.end
        self._publish_if_committed()

    def _publish_if_committed(self) -> None:
        wanted = self._snapshot_wanted
        if wanted is not None and self._snapshot_end <= self.commit:
            self._snapshot_wanted = None
            self._kernel.after(self._random.randint(MS, 20 * MS), self._publish, wanted, self._snapshot_end)

    def _publish(self, snapshot: Snapshot, end: int = 0) -> None:
        if not self.is_open or self.writer.is_stopped:
            return
        disk = self.disk
        older = disk.snapshot
        if max(snapshot.base_offset, end) > disk.fsynced_end or (
            older and older.base_offset >= snapshot.base_offset
        ):
            return
        disk.snapshot = snapshot
        if older is not None:
            disk.drop_below(older.base_offset)

    # Serving

    def _turn(self) -> None:
        if not self.is_open:
            return
        if self.host.is_paused:
            self.host.deferred.append((self._turn, ()))
            return
        self._is_turn_due = False
        inbox, self._inbox = self._inbox, []
        self._tick_if_late()
        journal = self.journal
        time_ms = self.time_ms()
        for asked in inbox:
            is_storing = isinstance(asked.command, Send | StageMessages | Complete)
            if journal.log.refuses_sends and is_storing and journal.is_leading:
                self.answer(asked, DiskFull("The disk is full."))
                continue
            held = self._held_by_receives(asked.command)
            journal.propose(asked.command, asked, time_ms)
            if held is not None and (self._held_by_receives(asked.command) or 0) > held:
                raise Violation("P9", f"{self.member} takes messages for a watch")
            asked.decided_ms = journal.last_time_ms
        self._settle()

    def _held_by_receives(self, command: Command) -> int | None:
        """Return how many messages are in flight where a watch looks, None for other commands."""
        if not isinstance(command, Watch):
            return None
        key = partition_key(command.queue_id, command.partition)
        partition = self.journal.queues.partitions.get(key)
        return None if partition is None else len(partition.in_flight)

    def _reply(self, asked: Asked, answer: object, letters: list[DeadLetter]) -> None:
        if isinstance(answer, TakenOutcome) and isinstance(asked.command, Watch):
            answer = WatchOutcome(False)  # as far as it looked
        elif isinstance(answer, TakenOutcome):
            if answer.is_to_consume:
                assert self._given_once is not None, "there are queues of this kind"
                self._given_once.begin(asked, answer)
                return
            if answer.is_held and self._questions is not None and self._questions.is_kept(asked):
                return
            letters += answer.dead_letters
            answer = self._bodies(asked, answer)
        elif isinstance(answer, ClaimedOutcome):
            answer = answer_of(answer)
        elif isinstance(answer, FetchedOffsets):
            rows = [
                (sequence, number_of(*self.record(offset)))
                for sequence, offset in zip(answer.sequences, answer.offsets, strict=True)
            ]
            answer = ClaimRows(rows, answer.next_sequence)
        elif isinstance(answer, SentOutcome):
            answer = self._places(asked, answer)
        elif isinstance(answer, SentElsewhere):
            assert not any(answer.results), "a send of one message is found, or goes elsewhere"
            answer = Elsewhere(answer.definition, [None] * len(answer.results))
        elif isinstance(answer, CompletionDecided):
            moves = self._moves or self._tasks
            assert moves is not None, "outputs leave only where something carries them"
            source_key = partition_key(asked.command.queue_id, 0)  # type: ignore[union-attr]  # a Complete
            moves.outputs_begun(source_key, answer.begun)
            answer = answer.outcome
        elif isinstance(answer, NotLeader) and self.configuration is not None:
            answer = NotLeader(self.configuration.leader)
        self.answer(asked, answer)
        command = asked.command
        if (
            isinstance(command, StartMoveTask)
            and not isinstance(answer, Exception)
            and self._tasks is not None
        ):
            self._tasks.start_tasks_of(command.queue_id)

    def answer(self, asked: Asked, outcome: object) -> None:
        """Answer a client."""
        self.cell.guarantee_checker.on_answer(asked.command, outcome)
        self.checker.on_reply(self, asked.command, outcome)
        self._network.send(self.name, asked.sender, Answer(asked.number, outcome))

    def _bodies(self, asked: Asked, taken: TakenOutcome) -> Received:
        """Read what was taken, as a receive gives it."""
        command = asked.command
        assert isinstance(command, Receive), "only a receive takes"
        self.checker.on_received(self, command.queue_id, taken)
        timeout_ms = command.visibility_timeout_ms
        if timeout_ms < 0:
            timeout_ms = self.journal.queues.definitions[command.queue_id].visibility_timeout_ms
        decided_ms = asked.decided_ms
        deliveries: list[Delivery] = []
        for one in taken.taken:
            self.checker.on_handed_out(self, one.offset)
            number = number_of(*self.record(one.offset))
            deliveries.append(
                Delivery(
                    one.sequence,
                    number,
                    one.delivery_count,
                    taken.epoch,
                    decided_ms,
                    decided_ms + timeout_ms,
                )
            )
        return Received(deliveries)

    def _places(self, asked: Asked, sent: SentOutcome) -> Sent | NotNow:
        places: list[tuple[int, int]] = []
        duplicates = set()
        for result in sent.results:
            if isinstance(result, Duplicate):
                record = self.find_record(result.offset)
                queues = self.journal.queues
                definition = queues.partitions[result.partition_key].definition
                if record is None and definition.dedup_window_ms > DEDUP_WINDOW_MS:
                    raise Violation(
                        "D6", "an id is known whose message is not, in a window that needs no records"
                    )
                if record is None:
                    return Overloaded(
                        "The original was compacted away."
                    )  # only disks that are short of space do it
                duplicates.add(len(places))
                places.append((record[2], number_of(*record)))
            else:
                if result.duplicate:
                    duplicates.add(len(places))
                places.append((result.sequence, int.from_bytes(result.message_id, "big")))
        return Sent(places, asked.decided_ms, frozenset(duplicates))

    def _propose_move(self, letter: DeadLetter) -> None:
        record = self.find_record(letter.offset)
        if record is None:
            partition = self.journal.queues.partition(letter.queue_id, letter.partition)
            if partition.is_live(letter.sequence):
                raise Violation(
                    "I13", f"{self.member} lacks a dead letter, at {letter.offset}", letter.offset
                )
            return  # somebody deleted it before it went
        record_type, flags, _, payload = record
        move = MoveMessage(
            letter.queue_id,
            letter.partition,
            letter.sequence,
            letter.target_queue_id,
            record_type,
            flags,
            payload,
            None,
            target=self.cell.definition_of(self.cell.kinds[letter.target_queue_id]),
        )
        self.journal.propose(move, letter, self.time_ms())

    def _move(self, letter: DeadLetter) -> None:
        """Try once more to move a dead letter."""
        if self.is_open and not self.host.is_paused and self.journal.is_leading:
            self._propose_move(letter)
            self._settle()

    def record(self, offset: int) -> tuple[int, int, int, bytes]:
        """Return type, flags, sequence and payload of a record that somebody needs."""
        found = self.find_record(offset)
        if found is None:
            raise Violation("I13", f"{self.member} lacks the record of a message, at {offset}", offset)
        return found

    def find_record(self, offset: int) -> tuple[int, int, int, bytes] | None:
        """Return a record of the log, or kept from below it; None when it was compacted away."""
        index = bisect_right(self.ends, offset)
        batch = self.batches[index] if index < len(self.batches) else None
        if batch is not None and batch.base_offset <= offset:
            return record_at(batch.data, offset - batch.base_offset)
        kept = self.disk.kept.get(offset)
        return None if kept is None else (kept.row.type, kept.row.flags, kept.row.sequence, kept.payload)

    # Compaction and expiry

    def _maintain(self) -> None:
        """Do now and then what `broker/replica/maintenance` does."""
        every_us = self.cell.faults.compaction_us
        if every_us and self._random.random() < TICK_US / every_us:
            self._compact()
        if (self.cell.faults.has_transactions or self.cell.faults.changes_log) and self.journal.is_leading:
            now_ms = self.time_ms()
            for partition in list(self.journal.queues.partitions.values()):
                if partition.staged is not None and partition.staged.expired(now_ms):
                    expire = ExpireMessages(partition.definition.queue_id, partition.number)
                    self.journal.propose(expire, None, now_ms)
        is_expiring = self.cell.faults.has_more_queues or self.cell.faults.changes_log
        if is_expiring and self.journal.is_leading and self._is_expiry_due():
            if self.cell.faults.changes_log:
                self._expire_logs()
            for partition in list(self.journal.queues.partitions.values()):
                if partition.alive and partition.definition.retention_ms < RETENTION_SHORT_MS:
                    expire = ExpireMessages(partition.definition.queue_id, partition.number)
                    self.journal.propose(expire, None, self.time_ms())

    def _expire_logs(self) -> None:
        """Let logs whose partitions change drop what is too much for them."""
        for partition in list(self.journal.queues.partitions.values()):
            if partition.definition.queue_id == CHANGING and partition.alive:
                head = partition.head
                expire = ExpireMessages(CHANGING, partition.number)
                self.journal.propose(expire, None, self.time_ms())
                if partition.head > head:
                    self.cell.log_reader.kept(partition, self.journal.queues.definitions[CHANGING])

    def _is_expiry_due(self) -> bool:
        now_us = self._kernel.now_us
        if now_us < self._expiry_due_us:
            return False
        self._expiry_due_us = now_us + int(EXPIRY_ROUND_S * SECOND)
        return True

    def _compact(self) -> None:
        """Judge what is kept below the log: what is dead goes once all that it was judged by is committed."""
        if self.journal.is_ready and not self._is_compacting and self.disk.kept:
            dead = [offset for offset, kept in self.disk.kept.items() if self.is_dead(kept.row)]
            self._is_compacting = True
            self._rewrite(dead, self.log.end, self.log.truncations)

    def is_dead(self, row: RecordRow) -> bool:
        """Tell whether nobody may ask for a message any more."""
        return not self.journal.queues.is_live(row)

    def may_rewrite(self, end: int, truncations: int) -> bool | None:
        """Tell whether what was judged at this end of the log may go; None when it never may, for the log was cut."""
        if self.log.commit < end:
            return False
        return True if self.log.truncations == truncations else None

    def _rewrite(self, dead: list[int], end: Position, truncations: int) -> None:
        if not self.is_open:
            return
        may_rewrite = self.may_rewrite(end.end, truncations)
        if may_rewrite is False:
            self._kernel.after(2 * MS, self._rewrite, dead, end, truncations)
            return
        self._is_compacting = False
        if may_rewrite and dead:
            self.checker.on_given_up(self, end)
            self.tell(f"gives up {len(dead)} records of {len(self.disk.kept)}")
            for offset in dead:
                del self.disk.kept[offset]


def number_of(record_type: int, flags: int, sequence: int, payload: bytes) -> int:
    """Return the number of the message that a record holds."""
    start = MOVE_HEAD_BYTES if record_type == RecordType.MOVE else 0
    message = payload[start + prefix_bytes(flags & PREFIX_FLAGS) :]
    if record_type == RecordType.MOVE:
        message = bytes(decode_moved(message).message)  # it may go by another id since
    return int.from_bytes(message_id_of(message), "big")

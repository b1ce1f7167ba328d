"""One host of a simulated cell: a process that is started and ends, over a disk that stays.

It is to the product's `JournalReplica` what `broker/replica` is: it feeds it, carries out what it asks for, gives the
bodies to what was taken, makes snapshots and copies of the journal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from quaymaster.broker.state_store import encode_key, encode_partition, load_partitions
from quaymaster.core.applied_queues import MOVE_HEAD_BYTES, PREFIX_FLAGS
from quaymaster.core.commands import (
    Command,
    DeadLetter,
    Duplicate,
    MoveMessage,
    Receive,
    Send,
    SentOutcome,
    TakenOutcome,
)
from quaymaster.core.errors import DiskFull, NotLeader
from quaymaster.core.index import MemoryChunks
from quaymaster.core.journal import JournalReplica
from quaymaster.core.log_tail import Position
from quaymaster.core.messages import message_id_of, prefix_bytes
from quaymaster.core.queue_states import QueueStates
from quaymaster.core.records import Batch, RecordType, decode_header, iterate_rows, record_at
from quaymaster.core.replication import (
    JournalConfiguration,
    LogReplica,
    ReadLog,
    Truncate,
    Write,
    judge_copy,
)
from quaymaster.core.replication_messages import Envelope, Room
from sim.kernel import MS, SECOND, Clock
from sim.log_disk import LogDisk, LogWriter, Snapshot
from sim.messages import Answer, ConnectionClosed, Copied, Copy, Received, Report, Request, Sent, TransferTo
from sim.queue_checker import Delivery
from sim.store import STORE, Changed, Get, Got, Swap, Swapped

if TYPE_CHECKING:
    from sim.cell import Cell

TICK_US = 100 * MS
REPORT_TICKS = 3
POLL_TICKS = 10
TURN_US = 100
READ_BATCHES_MAX = 16
HASH_EVERY = 64
RETRY_WINDOW_MS = 120_000
UNAPPLIED_BYTES_MAX = 1_000
"""A few batches: the rest of what comes during a rebuild is read from the disk."""
COPY_AGAIN_US = SECOND
MOVE_AGAIN_US = 200 * MS


class Asked:
    """A command of a client, and when it was decided."""

    __slots__ = ("command", "decided_ms", "number", "sender")

    def __init__(self, sender: str, number: int, command: Command) -> None:
        self.sender = sender
        self.number = number
        self.command = command
        self.decided_ms = 0


class Node:
    """A host; `member` is its name with that of its storage."""

    def __init__(self, cell: Cell, name: str, disk: LogDisk, clock: Clock) -> None:
        self.cell = cell
        self.name = name
        self.disk = disk
        self.clock = clock
        self.is_up = False
        self.is_paused = False
        self.room = Room.PLENTY
        self.starts = 0
        self._kernel = cell.kernel
        self._network = cell.network
        self._random = cell.kernel.random_for(f"node {name}")
        cell.network.connect(name, self.receive)

    @property
    def member(self) -> str:
        """The name it has among the members of the journal."""
        return f"{self.name}@{self.disk.storage_id}"

    # Life

    def start(self) -> None:
        """Start a process: recover what is on the disk, and make it durable."""
        assert not self.is_up, "a host has one process"
        disk = self.disk
        self.is_up = True
        self.starts += 1
        self.is_paused = False
        disk.recover()
        self._begin(disk.promised)
        self._kernel.tell(self.name, f"starts as {self.member}: {self.log_state()}")
        self._kernel.after(self._random.randrange(TICK_US), self._tick, self.starts)

    def _begin(self, promised: int) -> None:
        disk, cell = self.disk, self.cell
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
        log = cell.bugs.variant(LogReplica)(
            self.member,
            promised_epoch=promised,
            start=start,
            positions=positions,
            now_ms=self.clock.monotonic_ms(),
        )
        log.room = self.room
        queues, _, last_time_ms = self._replayed()
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
        self._inbox: list[Asked] = []
        self._copying: dict[str, int] = {}
        self._ticks = 0
        self._hashed_end = base
        self._snapshot_at = base
        self._snapshot_wanted: Snapshot | None = None

    @property
    def log(self) -> LogReplica:
        """The replica of the log below its queues."""
        return self.journal.log

    def have_room(self, room: Room) -> None:
        """Let the disk have room for so much; it holds for processes to come, too."""
        self.room = room
        if self.is_up:
            self.log.room = room

    def pause(self, took_us: int) -> None:
        """Stop the process for a while, as SIGSTOP does; whatever happens to it meanwhile waits, in order."""
        if self.is_up and not self.is_paused:
            self.is_paused = True
            self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
            self._kernel.after(took_us, self._resume, self.starts)

    def _resume(self, start: int) -> None:
        if start == self.starts and self.is_up:
            self.resume()

    def resume(self) -> None:
        """Go on."""
        if self.is_paused:
            self.is_paused = False
            for act, arguments in self._deferred:
                if not self.is_up:
                    return
                act(*arguments)

    def end(self, *, is_power_cut: bool) -> None:
        """The process ends; with a power cut, part of what is not durable goes with it."""
        if not self.is_up:
            return
        self._kernel.tell(self.name, f"{'loses power' if is_power_cut else 'is killed'}: {self.log_state()}")
        self.is_up = False
        self.writer.stop()
        if is_power_cut:
            self.disk.crash(has_stale=self.cell.faults.disk.has_stale)
        for other in self.cell.nodes.values():
            if other is not self and self._network.reaches(self.name, other.name):
                self._network.send(self.name, other.name, ConnectionClosed(self.member))
        self.cell.on_node_ended(self)

    def _on_disk_failed(self) -> None:
        self._kernel.tell(self.name, "its disk failed an fsync: it is tainted")
        self.disk.is_tainted = True
        self.end(is_power_cut=True)
        self.cell.on_disk_lost(self)

    def replace_disk(self, disk: LogDisk) -> None:
        """Put an empty disk in place of one that is lost or tainted."""
        self.disk = disk

    def log_state(self) -> str:
        """Return where the log stands, for the story."""
        log = self.log
        return (
            f"{log.role} in epoch {log.epoch}, promised {log.promised_epoch}, end {log.end.end}, "
            f"durable {self.disk.fsynced_end}, commit {log.commit}"
        )

    # Events

    def receive(self, sender: str, message: object) -> None:
        """Something arrived from the network."""
        if not self.is_up:
            if isinstance(message, Request):
                self._network.send(self.name, sender, Answer(message.number, NotLeader()))
            return
        if self.is_paused:
            self._deferred.append((self.receive, (sender, message)))
            return
        if isinstance(message, Envelope):
            if message.receiver != self.member:
                return
            story = self._kernel.story
            if story is not None:
                self.cell.tell_message(self, message)
            self.journal.on_message(message.sender, message.message, self.clock.monotonic_ms())
        elif isinstance(message, Request):
            self._inbox.append(Asked(sender, message.number, message.command))
            if not self._is_turn_due:
                self._is_turn_due = True
                self._kernel.after(TURN_US, self._turn, self.starts)
            return
        elif isinstance(message, Changed | Got | Swapped):
            self._on_store(message.configuration, message.revision)
            if isinstance(message, Got) and self._activating == self.log.epoch:
                self._ask_to_activate(self._activating)
        elif isinstance(message, ConnectionClosed):
            self.journal.on_connection_closed(message.member)
        elif isinstance(message, TransferTo):
            if self.log.transfer(message.member):
                self._kernel.tell(self.name, f"hands over to {message.member}")
                self._kernel.after(2 * SECOND, self._end_transfer, self.starts)
        elif isinstance(message, Copy):
            self._on_copy(sender, message)
        elif isinstance(message, Copied):
            self._copying.pop(message.member, None)
            self.log.on_copied(message.member)
        self._settle()

    def _tick(self, start: int) -> None:
        if start != self.starts or not self.is_up:
            return
        self._kernel.after(TICK_US, self._tick, start)
        if self.is_paused:
            return
        self._ticks += 1
        if self._ticks % POLL_TICKS == 1 or self.log.role == "activating":
            self._network.send(self.name, STORE, Get(0))
        if self._ticks % REPORT_TICKS == 0:
            self._report()
        now_us = self._kernel.now_us
        for member, sent_us in self._copying.items():
            if now_us - sent_us > COPY_AGAIN_US:
                self._send_copy(member)
        self.on_tick()
        self.journal.on_tick(self.clock.monotonic_ms())
        self._settle()

    def on_tick(self) -> None:
        """Time has passed."""

    def _report(self) -> None:
        log = self.log
        report = Report(
            self.name,
            self.member,
            log.epoch,
            log.end.epoch,
            log.end.end,
            log.hears_leader(self.clock.monotonic_ms()),
            log.role == "leading",
            log.promised_epoch if log.role == "follower" else 0,
            log.lag_of() if log.role == "leading" else {},
        )
        for manager in self.cell.managers:
            self._network.send(self.name, manager.name, report)

    def _end_transfer(self, start: int) -> None:
        if start == self.starts and self.is_up:
            self.log.end_transfer()
            self._settle()

    def _on_store(self, configuration: JournalConfiguration, revision: int) -> None:
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

    def _on_progress(self, written: int, durable: int, truncations: int) -> None:
        if self.is_paused:
            self._deferred.append(
                (self._late_report, (self.writer, self._on_progress, written, durable, truncations))
            )
            return
        self.journal.on_written(written, truncations=truncations)
        self.journal.on_durable(durable, truncations=truncations)
        self._settle()

    def _on_promised(self, epoch: int) -> None:
        if self.is_paused:
            self._deferred.append((self._late_report, (self.writer, self._on_promised, epoch)))
            return
        self.journal.on_promise_durable(epoch)
        self._settle()

    def _late_report(self, writer: LogWriter, act: Callable[..., None], *arguments: int) -> None:
        if writer is self.writer:
            act(*arguments)

    # What the replica asks for

    def _settle(self) -> None:
        """Carry out what the replica asks for, as long as that brings about more."""
        while self._carry_out():
            pass

    def _carry_out(self) -> bool:
        """Carry out one `ToDo`; return whether commands were proposed that come of it."""
        log = self.log
        checker = self.cell.checker
        todo = self.journal.take(self.clock.wall_ms())
        if todo.operations:
            self._follow(todo.operations)
            self.writer.carry_out(todo.operations)
        send = self._network.send
        for envelope in todo.messages:
            checker.on_send(self, envelope)
            send(self.name, envelope.receiver.partition("@")[0], envelope)
        for read in todo.reads:
            self._kernel.after(self._random.randint(100, 2 * MS), self._read, self.starts, read)
        for member in todo.copies:
            self._copying[member] = 0
            self._send_copy(member)
        if todo.activate is not None:
            checker.on_barrier_durable(self, todo.activate)
            self._activating = todo.activate
            self._ask_to_activate(todo.activate)
        if todo.rebuild:
            self._snapshot_wanted = None
            self._kernel.after(self._random.randint(MS, 20 * MS), self._rebuild, self.starts)
        if log.commit > self.commit:
            checker.on_commit(self, self.commit, log.commit)
            self.commit = log.commit
            self._publish_if_committed()
        letters: list[DeadLetter] = []
        for token, answer in todo.replies:
            if isinstance(token, Asked):
                self._reply(token, answer, letters)
            elif isinstance(answer, Exception):
                assert isinstance(token, DeadLetter), "a dead letter is moved"
                self._kernel.after(MOVE_AGAIN_US, self._move, self.starts, token)
        if log.end.end - self._hashed_end >= HASH_EVERY and self.journal.is_ready:
            self._hashed_end = log.end.end - log.end.end % HASH_EVERY
            checker.on_applied(self)
        if log.end.end - self._snapshot_at >= self.cell.faults.snapshot_records and self.journal.is_ready:
            self._take_snapshot()
        for letter in letters:
            self._propose_move(letter)
        return bool(letters)

    def _follow(self, operations: list[Any]) -> None:
        """Keep the batches that the log has."""
        checker = self.cell.checker
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

    def _read(self, start: int, read: ReadLog) -> None:
        if start != self.starts or not self.is_up:
            return
        if self.is_paused:
            self._deferred.append((self._read, (start, read)))
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
            self._network.send(self.name, STORE, Get(0))
            return
        activated = msgspec.structs.replace(
            configuration, activated=True, previous_members=configuration.members
        )
        self._network.send(self.name, STORE, Swap(0, self.store_revision, activated))

    def _activated(self, epoch: int) -> None:
        self.cell.checker.on_activated(self, epoch)
        self._kernel.tell(self.name, f"activates epoch {epoch}: {self.log_state()}")
        self.journal.on_activated(epoch)

    # Copies of the journal

    def _send_copy(self, member: str) -> None:
        snapshot = self.disk.snapshot
        if snapshot is None or self.log.role not in ("activating", "leading") or not self.has_cut():
            return
        self._copying[member] = self._kernel.now_us
        base = snapshot.base_offset
        copy = Copy(
            member,
            self.log.epoch,
            snapshot,
            dict(self.disk.kept_below(base)),
            self.disk.durable_behind(base),
        )
        self._kernel.tell(self.name, f"sends {member} a copy at {base}, up to {copy.end.end}")
        self._network.send(self.name, member.partition("@")[0], copy)

    def _on_copy(self, sender: str, copy: Copy) -> None:
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
            self._kernel.tell(
                self.name, f"takes a copy up to {copy.end.end} in place of its log: {self.log_state()}"
            )
            self.install(copy)
        self._network.send(self.name, sender, Copied(self.member))

    def install(self, copy: Copy) -> None:
        """Put a copy in place of the log, and go on with it."""
        self.writer.stop()
        self.disk.install(copy.snapshot, copy.kept, copy.batches)
        self._begin(self.disk.promised)

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
        keeper = MemoryChunks()
        queues = self.cell.bugs.variant(QueueStates)(keeper, retry_window_ms=RETRY_WINDOW_MS)
        applied = last_time_ms = 0
        if disk.snapshot is not None:
            load_partitions(queues, disk.snapshot.blobs, keeper)
            applied, last_time_ms = disk.snapshot.base_offset, disk.snapshot.last_time_ms
        for batch in disk.batches[self.first_behind(bisect_right(disk.ends, applied)) :]:
            data = batch.data
            header = decode_header(data)
            for row in iterate_rows(data, header):
                queues.apply(row, data[row.position : row.position + row.length], header.epoch)
            last_time_ms = max(last_time_ms, header.time_ms)
        return queues, disk.end, last_time_ms

    def first_behind(self, index: int) -> int:
        """Return the index of the first batch to be applied, given that of the first behind the snapshot."""
        return index

    def _rebuild(self, start: int) -> None:
        """Make the queues anew, when the disk has what the log has had cut."""
        if start != self.starts or not self.is_up or self.journal.is_ready:
            return
        if self.is_paused:
            self._deferred.append((self._rebuild, (start,)))
            return
        if not self.has_cut():
            self._kernel.after(MS, self._rebuild, start)
            return
        queues, applied, last_time_ms = self._replayed()
        if not self.journal.has_kept_from(applied):
            self._kernel.after(MS, self._rebuild, start)
            return
        self._kernel.tell(self.name, f"has made its queues anew up to {applied}")
        self.journal.on_rebuilt(queues, applied, last_time_ms, self.writer.truncations)
        self._settle()

    def has_cut(self) -> bool:
        """Tell whether the disk has carried out every truncation so far."""
        return self.writer.truncations == self.log.truncations

    def _take_snapshot(self) -> None:
        """Encode the queues as they are, which is ahead; it is published when all in it is committed."""
        end = self.log.end
        self._snapshot_at = end.end
        blobs = [
            (encode_key(key), b"".join(encode_partition(partition, end.end)))
            for key, partition in self.journal.queues.partitions.items()
        ]
        self._snapshot_wanted = Snapshot(end.end, end.chain, end.epoch, self.journal.last_time_ms, blobs)
        self._publish_if_committed()

    def _publish_if_committed(self) -> None:
        wanted = self._snapshot_wanted
        if wanted is not None and wanted.base_offset <= self.commit:
            self._snapshot_wanted = None
            self._kernel.after(self._random.randint(MS, 20 * MS), self._publish, self.starts, wanted)

    def _publish(self, start: int, snapshot: Snapshot) -> None:
        if start != self.starts or not self.is_up or self.writer.is_stopped:
            return
        disk = self.disk
        older = disk.snapshot
        if snapshot.base_offset > disk.fsynced_end or (older and older.base_offset >= snapshot.base_offset):
            return
        disk.snapshot = snapshot
        if older is not None:
            disk.drop_below(older.base_offset)

    # Serving

    def _turn(self, start: int) -> None:
        if start != self.starts or not self.is_up:
            return
        if self.is_paused:
            self._deferred.append((self._turn, (start,)))
            return
        self._is_turn_due = False
        inbox, self._inbox = self._inbox, []
        journal = self.journal
        time_ms = self.clock.wall_ms()
        for asked in inbox:
            if journal.log.refuses_sends and isinstance(asked.command, Send) and journal.is_leading:
                self._answer(asked, DiskFull("The disk is full."))
                continue
            journal.propose(asked.command, asked, time_ms)
            asked.decided_ms = journal.last_time_ms
        self._settle()

    def _reply(self, asked: Asked, answer: object, letters: list[DeadLetter]) -> None:
        if isinstance(answer, TakenOutcome):
            letters += answer.dead_letters
            answer = self._bodies(asked, answer)
        elif isinstance(answer, SentOutcome):
            answer = self._places(answer)
        elif isinstance(answer, NotLeader) and self.configuration is not None:
            answer = NotLeader(self.configuration.leader)
        self._answer(asked, answer)

    def _answer(self, asked: Asked, outcome: object) -> None:
        self.cell.checker.on_reply(self, asked.command, outcome)
        self._network.send(self.name, asked.sender, Answer(asked.number, outcome))

    def _bodies(self, asked: Asked, taken: TakenOutcome) -> Received:
        """Read what was taken, as a receive gives it."""
        command = asked.command
        assert isinstance(command, Receive), "only a receive takes"
        timeout_ms = command.visibility_timeout_ms
        if timeout_ms < 0:
            timeout_ms = self.journal.queues.definitions[command.queue_id].visibility_timeout_ms
        decided_ms = asked.decided_ms
        deliveries: list[Delivery] = []
        for one in taken.taken:
            self.cell.checker.on_handed_out(self, one.offset)
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

    def _places(self, sent: SentOutcome) -> Sent:
        places: list[tuple[int, int]] = []
        for result in sent.results:
            if isinstance(result, Duplicate):
                record = self.record(result.offset)
                places.append((record[2], number_of(*record)))
            else:
                places.append((result.sequence, int.from_bytes(result.message_id, "big")))
        return Sent(places)

    def _propose_move(self, letter: DeadLetter) -> None:
        record_type, flags, _, payload = self.record(letter.offset)
        move = MoveMessage(
            letter.queue_id,
            letter.partition,
            letter.sequence,
            letter.target_queue_id,
            record_type,
            flags,
            payload,
            None,
        )
        self.journal.propose(move, letter, self.clock.wall_ms())

    def _move(self, start: int, letter: DeadLetter) -> None:
        """Try once more to move a dead letter."""
        if start == self.starts and self.is_up and not self.is_paused and self.journal.is_leading:
            self._propose_move(letter)
            self._settle()

    def record(self, offset: int) -> tuple[int, int, int, bytes]:
        """Return type, flags, sequence and payload of a record of the log, or kept from below it."""
        index = bisect_right(self.ends, offset)
        batch = self.batches[index] if index < len(self.batches) else None
        if batch is not None and batch.base_offset <= offset:
            return record_at(batch.data, offset - batch.base_offset)
        return self.disk.kept[offset]


def number_of(record_type: int, flags: int, sequence: int, payload: bytes) -> int:
    """Return the number of the message that a record holds."""
    start = MOVE_HEAD_BYTES if record_type == RecordType.MOVE else 0
    message = payload[start + prefix_bytes(flags & PREFIX_FLAGS) :]
    return int.from_bytes(message_id_of(message), "big")

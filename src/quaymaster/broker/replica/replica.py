"""The host of one journal replica: commands in, records to the writer, bodies read back, replies out.

    submit ─▶ inbox ─▶ replica.propose ×n ─▶ take ─▶ writer (write, fsync) ─▶ on_progress ─▶ take ─▶ replies
                                                ├──▶ messages to the other replicas ─▶ receive ─▶ take ─▶ …
                                                └──▶ replies that wait for nothing

One turn of the event loop decides what has come in, up to a number of commands (`inbox`), and hands the writer one
batch; a request costs no task and no future. A turn with few commands waits for those that the next passes of the loop
bring. Receives get their bodies from the cache, or from the segments on a reader thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from quaymaster.broker.replica.clock import QueueClock, monotonic_ms
from quaymaster.broker.replica.elections import Elections
from quaymaster.broker.replica.fetches import Fetches
from quaymaster.broker.replica.inbox import Inbox, stores
from quaymaster.broker.replica.measures import Measures
from quaymaster.broker.replica.partition_loads import PartitionLoads
from quaymaster.broker.replica.receives import Receives
from quaymaster.broker.replica.records.record_bodies import Body, RecordBodies
from quaymaster.broker.replica.replies import Replies
from quaymaster.broker.replica.waiters import Waiter, Waiters
from quaymaster.broker.storage.bodies import BodyCache
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.broker.storage.writer import JournalWriter
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.touched_partitions import TOUCHED_MAX
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication.effects import PersistPromise, ReadLog, Truncate, Write
from quaymaster.core.replication.journal import JournalReplica, ToDo
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.commands.decided import (
    ClaimedOutcome,
    DeadLetter,
    FetchedOffsets,
    PeekedOffsets,
    SentElsewhere,
    SentOutcome,
)
from quaymaster.core.values.commands.messages import Receive, Watch
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand, Outcome
from quaymaster.core.values.errors import DiskFull, JournalStopped, NotLeader, NotNow, Overloaded
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.net.routing.broker_client import NotTakenBack, Reply

TURN_COMMANDS = 32
"""So many commands are worth a commit of their own. It costs the same for one, a quarter of a millisecond."""

TURN_WAITS_MAX = 4
"""With fewer a turn waits for the next pass of the loop, for as long as each brings more, but not for more passes."""

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Above this much not yet durable, sends are refused until the disk has caught up."""

SLICES_S = 0.004
"""So long a turn takes up slices of long work. The last one may take some milliseconds more."""

TICK_MS = 50
"""How often a replica with others hears that time passes."""
TICK_LATE_MS = 200
"""After so long without, the process may have been stopped: the replica hears of it before it decides anything."""
HELD_BACK_MAX_S = 1.0
"""A replica that does not lead and could not write for so long is opened again, without what it could not write."""
DAMAGED_RETRY_S = 10.0
READ_BYTES_MAX = 1 << 20
"""So much of the log is read from disk at once for a member that is behind."""

log = logging.getLogger(__name__)


class _Sent(NotTakenBack):
    __slots__ = ("kind", "reply")

    def __init__(self, kind: type, reply: Reply) -> None:
        self.kind = kind
        self.reply = reply


class _Parked:
    __slots__ = ("waiter", "waiters")

    def __init__(self, waiters: Waiters, waiter: Waiter) -> None:
        self.waiters = waiters
        self.waiter = waiter

    def cancel(self) -> None:
        """The client has gone."""
        self.waiters.cancel(self.waiter)

    def withdraw(self) -> bool:
        """It is the broker's."""
        return False


class ReplicaLinks(Protocol):
    """What a replica's host asks of the one who put it there. All on the loop's thread."""

    async def activate(self, epoch: int) -> bool:
        """Return true when coordination holds `activated` for the epoch, false when it can no longer."""

    def send(self, messages: list[Envelope]) -> None:
        """Send messages to other replicas; they may get lost."""

    def copy_needed(self, members: list[str]) -> None:
        """These members lack what is no longer kept as it was written; `on_copied` when they have a copy."""

    async def repaired(self, offsets: list[int]) -> dict[int, Body]:
        """Return these records, which are damaged here, as other replicas have them, where they do."""

    def rebuild(self) -> None:
        """The queues are worthless: rebuild them from the files, then call `rebuilt`."""

    def stuck(self) -> None:
        """The disk is full, and what this replica took from a leader cannot be written: open the journal again."""

    def leads(self, is_leading: bool) -> None:
        """This replica has begun to lead, or leads no longer."""

    def dead_letters(self, letters: list[DeadLetter]) -> None:
        """A receive met messages that are to be moved to their dead-letter queues."""

    def groups_met(self) -> None:
        """A receive met groups that older partitions may have."""

    def stopped(self, error: Exception) -> None:
        """The replica stopped for good."""


class ReplicaHost:
    """Runs one `JournalReplica`. Everything happens on the loop's thread, but writing and cold reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: JournalReplica,
        files: JournalFiles,
        clock: QueueClock,
        *,
        body_memory: SharedBytes,
        links: ReplicaLinks,
        loads: PartitionLoads | None = None,
    ) -> None:
        """Make a host. `loads` counts what partitions are asked; where no manager will want to know, there is none."""
        self.replica = replica
        self.files = files
        self.clock = clock
        self.bodies = BodyCache(body_memory)
        self.readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="journal-reader")
        self._tasks: set[asyncio.Future[Any]] = set()
        self.records = RecordBodies(
            loop,
            files,
            self.bodies,
            self.readers,
            repaired=links.repaired,
            tasks=self._tasks,
            spawn=self._spawn,
        )
        self._replies = Replies(loop, replica, self.records, files.journal_id)
        self.measures = Measures()
        self.receives = Receives(
            loop,
            replica,
            self.records,
            self._replies,
            self.measures,
            submit=self.submit,
            try_again=self._try_again,
            time_ms=clock.time_ms,
            on_dead_letters=links.dead_letters,
        )
        self._fetches = Fetches(files, self.bodies, self.readers, mend=self.records.of, spawn=self._spawn)
        self.writer = JournalWriter(
            files,
            post=loop.call_soon_threadsafe,
            on_progress=self._on_progress,
            on_failed=self.stop,
        )
        self.stopped: Exception | None = None
        self.loads = loads
        self.worked_s = 0.0
        """How much of its time the loop spent here, on turns, messages and progress."""
        self.records_since_snapshot = 0
        self._loop = loop
        self._links = links
        self._inbox = Inbox()
        self._is_scheduled = False
        self._is_slicing = False
        self._is_leading = False
        self.elections = Elections()
        self._changes: dict[int, asyncio.Event] = {}
        """Of partitions that children wait for, by key: set when messages may have gone."""
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked_ms = 0
        self._is_stuck = False
        self._others_full = DiskFull(
            "The disks of most replicas are almost full: messages can be received and deleted, not sent."
        )
        self._disk_full = DiskFull("The disk is almost full: messages can be received and deleted, not sent.")
        self._overloaded = Overloaded("Too much waits to be written to disk.")

    # Commands

    def submit(self, command: Command | InternalCommand, reply: Reply) -> _Sent | _Parked:
        """Take a command for the next turn; `reply` is called once, from a later one."""
        submitted: _Sent | _Parked
        if type(command) is Receive or type(command) is Watch:
            waiter = self.receives.begin(command, reply)
            self._inbox.waiting.append((command, waiter))
            submitted = _Parked(self.receives.waiters, waiter)
        else:
            submitted = _Sent(type(command), reply)
            self._inbox.waiting.append((command, submitted))
        if not self._is_scheduled:
            self._schedule_turn()
        return submitted

    async def ask(self, command: Command | InternalCommand) -> Outcome:
        """Submit a command and wait for its outcome; raises the error it is answered with."""
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def reply(outcome: Outcome | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(command, reply)
        return await future

    def event_of(self, key: int) -> asyncio.Event:
        """Return what is set when messages of a partition may have gone from now on, or it is no longer led here."""
        return self._changes.setdefault(key, asyncio.Event())

    def on_groups_answered(self, partition: Partition, *, is_any_free: bool) -> None:
        """An older partition has said which groups of a partition it has."""
        self.receives.on_groups_answered(partition, is_any_free=is_any_free)

    def _note_changes(self, awake: set[Partition]) -> None:
        for partition in awake:
            event = self._changes.pop(partition.key, None)
            if event is not None:
                event.set()

    def _end_changes(self) -> None:
        changes, self._changes = self._changes, {}
        for event in changes.values():
            event.set()

    def _try_again(self, waiter: Waiter) -> None:
        self._inbox.waiting.append((waiter.command, waiter))
        if not self._is_scheduled:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._begin_turn, 0, TURN_WAITS_MAX)

    def _do_slices(self) -> None:
        """Do slices of work that is too long for one turn, for as long as a turn may take."""
        self._is_slicing = False
        if self.stopped is not None:
            return
        started = time.perf_counter()
        until = started + SLICES_S
        try:
            while self.replica.do_slice(self.clock.time_ms()) and time.perf_counter() < until:
                pass
        except Exception as error:  # noqa: BLE001 -- it stops the journal
            self._fail("slice failed", error)
        else:
            self.carry_out()
        self.worked_s += time.perf_counter() - started

    def _begin_turn(self, seen: int, waits_left: int) -> None:
        """Take a turn, but wait while few commands have come and each pass of the loop brings more.

        Clients that were answered together ask again one after the other: the first would have a commit for
        themselves, and all others the next.
        """
        waiting = len(self._inbox)
        if seen < waiting < TURN_COMMANDS and waits_left:
            self._loop.call_soon(self._begin_turn, waiting, waits_left - 1)
        else:
            self._turn()

    def _turn(self) -> None:
        started = time.perf_counter()
        self._is_scheduled = False
        inbox = self._inbox.take(self.replica.queues.definitions)
        if self._inbox:  # soon, so that other work has its turn in between
            self._is_scheduled = True
            self._loop.call_soon(self._turn)
        undecided = iter(inbox)
        try:
            self._decide(undecided)
        except Exception as error:  # noqa: BLE001 -- it stops the journal
            # A broken assumption, or a damaged index. What is undecided is answered as unknown.
            self._fail("decision failed", error)
            for _, token in undecided:
                self._answer(token, JournalStopped(f"The journal stopped: {error}"))
        took_s = time.perf_counter() - started
        self.worked_s += took_s
        self.measures.turns.observe(took_s)

    def _decide(self, inbox: Iterator[tuple[Command | InternalCommand, object]]) -> None:
        replica = self.replica
        if self._ticker is not None and (late_ms := monotonic_ms()) - self._ticked_ms > TICK_LATE_MS:
            self._ticked_ms = late_ms
            replica.on_tick(late_ms)
        now_ms = self.clock.time_ms()
        replica.log.room = self.files.room
        refused = self._sends_refused()
        loads = self.loads
        if loads is not None:
            loads.begin()
        for command, token in inbox:
            if refused is not None and stores(command, self.files.journal_id):
                self._answer(token, refused)
            elif type(token) is Waiter and token.is_done:
                self.receives.pass_on(token)
            else:
                try:
                    replica.propose(command, token, now_ms)
                except Exception as error:
                    self._answer(token, JournalStopped(f"The journal stopped: {error}"))
                    raise
                if loads is not None:
                    loads.note(command)
        self._carry_out(replica.take(now_ms))

    def _sends_refused(self) -> NotNow | None:
        if self.writer.disk_low:
            return self._disk_full
        if self.writer.pending_bytes > PENDING_BYTES_MAX:
            return self._overloaded
        if not self.replica.log.majority_has_room:
            return self._others_full
        return None

    # Doing

    def start(self) -> None:
        """Start the writer; then tell the replica its configuration (`on_configuration`)."""
        self.writer.start()

    def tick(self) -> None:
        """Tell the replica that time passes, from now on: it has others to talk to."""
        self._ticked_ms = monotonic_ms()
        self._ticker = self._loop.call_later(TICK_MS / 1000, self.tick)
        self._look_at_room()
        self._feed(self.replica.on_tick, self._ticked_ms)

    def _look_at_room(self) -> None:
        self.replica.log.room = self.files.room
        is_held_back = self.writer.held_back_s > HELD_BACK_MAX_S
        if is_held_back and not self._is_stuck and self.replica.role not in ("activating", "leading"):
            # Promises wait behind what cannot be written. A leader's followers have it; it is not in the way of theirs.
            self._is_stuck = True
            self._links.stuck()

    def on_configuration(self, configuration: JournalConfiguration) -> None:
        """The journal's key was read from coordination."""
        self._feed(self.replica.on_configuration, configuration, monotonic_ms())

    def on_connection_closed(self, member: str) -> None:
        """A connection to the process of another replica closed."""
        self._feed(self.replica.on_connection_closed, member)

    def receive(self, envelopes: list[Envelope]) -> None:
        """Take what other replicas of this journal said to this one."""
        started = time.perf_counter()
        now_ms = monotonic_ms()
        self.replica.log.room = self.files.room
        for envelope in envelopes:
            is_ours = envelope.receiver == self.replica.node  # not that of a disk we had before
            if is_ours and not self._tell(self.replica.on_message, envelope.sender, envelope.message, now_ms):
                return
        self.carry_out()
        self.worked_s += time.perf_counter() - started

    def on_copied(self, member: str) -> None:
        """A member that lacked a part of the log has a copy of the journal."""
        self._feed(self.replica.log.on_copied, member)

    def transfer(self, member: str) -> bool:
        """Begin to hand the leadership to a member; false when that cannot be."""
        begun = self.replica.log.transfer(member)
        self.carry_out()
        return begun

    def end_transfer(self) -> None:
        """Give up a transfer that did not come about."""
        self._feed(self.replica.log.end_transfer)

    def rebuilt(self, queues: QueueStates, applied_end: int, last_time_ms: int, truncations: int) -> None:
        """The queues were rebuilt."""
        self._feed(self.replica.on_rebuilt, queues, applied_end, last_time_ms, truncations)

    def after_writes(self, done: Callable[[], None]) -> None:
        """Call `done` when everything given to the writer so far is written."""
        self.writer.run(_nothing, done)

    def carry_out(self) -> None:
        """Do what the replica asks for now."""
        self._carry_out(self.replica.take(self.clock.time_ms()))

    def _feed(self, event: Callable[..., object], *arguments: object) -> None:
        started = time.perf_counter()
        if self._tell(event, *arguments):
            self.carry_out()
        self.worked_s += time.perf_counter() - started

    def _tell(self, event: Callable[..., object], *arguments: object) -> bool:
        """Feed an event; false when it broke an assumption, and the replica has stopped."""
        if self.stopped is not None:
            return False
        try:
            event(*arguments)
        except Exception as error:  # noqa: BLE001 -- it stops the journal
            self._fail("replica failed", error)
            return False
        return True

    def _fail(self, event: str, error: Exception) -> None:
        log_failure(log, event, error, journal=self.files.journal_id, epoch=self.replica.epoch)
        self.stop(error)

    def _carry_out(self, todo: ToDo) -> None:
        for operation in todo.operations:
            if type(operation) is Write:
                for batch in operation.batches:
                    self.bodies.add(batch)
                    self.records_since_snapshot += batch.next_offset - batch.base_offset
                self.writer.append(operation.batches, tell_written=operation.tell_written)
                if self._is_leading:
                    self.measures.wrote(operation.batches[-1].next_offset)
            elif type(operation) is PersistPromise:
                epoch = operation.epoch
                self.writer.run(
                    partial(self.files.persist_promise, epoch),
                    partial(self._feed, self.replica.on_promise_durable, epoch),
                )
            elif type(operation) is Truncate:
                self.bodies.cut(operation.end)
                self.writer.run(partial(self.files.truncate, operation.end), self._on_cut)
        if todo.messages:
            self._links.send(todo.messages)
        for read in todo.reads:
            self._spawn(self._read_log(read))
        if todo.copies:
            self._links.copy_needed(todo.copies)
        if todo.activate is not None:
            self._spawn(self._activate(todo.activate))
        self.measures.committed(self.replica.commit)
        for token, answer in todo.replies:
            try:
                self._answer(token, answer)
            except Exception as error:  # noqa: BLE001 -- one reply must not cost the others theirs
                log_failure(log, "reply failed", error, journal=self.files.journal_id)
        for partition in todo.awake:
            self.receives.waiters.wake(partition)
        if self._changes and todo.awake:
            self._note_changes(todo.awake)
        queues = self.replica.queues
        if queues.asking:
            self._links.groups_met()
        if len(queues.changes.touched) > TOUCHED_MAX:
            queues.changes.settle_excess(self.clock.time_ms())
        if todo.again:
            self._inbox.again += todo.again
            if not self._is_scheduled:
                self._schedule_turn()
        if self.replica.has_more and not self._is_slicing:
            self._is_slicing = True
            self._loop.call_soon(self._do_slices)
        if todo.rebuild:
            self._links.rebuild()
        role = self.replica.log.role
        if role != self.elections.role:
            self.elections.on_role(role, monotonic_ms() / 1000)
        if self.replica.is_leading != self._is_leading:
            self._is_leading = not self._is_leading
            if not self._is_leading:
                self.measures.deposed()
                self.receives.send_away(NotLeader())
                self._end_changes()
            self._links.leads(self._is_leading)

    def _on_progress(self, written_end: int, durable_end: int, truncations: int) -> None:
        started = time.perf_counter()
        try:
            self.replica.on_written(written_end, truncations=truncations)
            self.replica.on_durable(durable_end, truncations=truncations)
        except Exception as error:  # noqa: BLE001 -- it stops the journal
            self._fail("replica failed", error)
        else:
            self._carry_out(self.replica.take(self.replica.last_time_ms))
        self.worked_s += time.perf_counter() - started

    def _on_cut(self) -> None:
        log_event(
            log,
            logging.WARNING,
            "journal cut",
            journal=self.files.journal_id,
            epoch=self.replica.epoch,
            end_offset=self.files.end_offset,
        )
        self._on_progress(self.files.end_offset, self.files.durable_end, self.files.truncations)

    async def _read_log(self, read: ReadLog) -> None:
        while True:
            truncations = self.files.truncations
            try:
                position, batches = await self._loop.run_in_executor(
                    self.readers, self.files.read_from, read.start, READ_BYTES_MAX
                )
                break
            except JournalCorrupt as error:
                if self.replica.log.truncations != truncations:  # cut while it was read: asked for again
                    position, batches = None, []
                    break
                # Here, far behind what is in use, it must not cost the leader.
                log_failure(log, "log not read for a member", error, journal=self.files.journal_id)
                await asyncio.sleep(DAMAGED_RETRY_S)
        is_gone = position is None or (not batches and read.start < self.files.end_offset)
        chain = None if position is None else position.chain
        self._feed(
            partial(self.replica.log.on_read, is_gone=is_gone, truncations=truncations),
            read.member,
            read.start,
            chain,
            batches,
        )

    async def _activate(self, epoch: int) -> None:
        if await self._links.activate(epoch):
            self._feed(self.replica.on_activated, epoch)

    def stop(self, error: Exception) -> None:
        """Stop for good: nothing more is decided, and all that wait are told that the outcome is unknown."""
        if self.stopped is not None:
            return
        self.stopped = error
        self.records.stop()
        log_event(
            log,
            logging.ERROR,
            "journal stopped",
            journal=self.files.journal_id,
            epoch=self.replica.epoch,
            durable_end=self.replica.durable_end,
            error=str(error),
        )
        self.replica.stop(JournalStopped(f"The journal stopped: {error}"))
        self.receives.stop()
        self._carry_out(self.replica.take())
        self._links.stopped(error)

    async def close(self) -> None:
        """Answer parked receives, write what was decided, stop all threads."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.receives.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self.writer.close)
        await asyncio.sleep(0)
        self.readers.shutdown(wait=True)
        self.bodies.close()
        self.replica.log.tail.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error if isinstance(error, Exception) else RuntimeError(str(error)))

    # Answering

    def _answer(self, token: object, answer: Decided | Exception) -> None:
        kind = type(answer)
        if type(token) is Waiter:
            self.receives.answer(token, answer)
            return
        assert type(token) is _Sent, "a token is what submit made"
        reply = token.reply
        self.measures.answered(token.kind, answer)
        if kind is SentOutcome:
            self._replies.on_sent(reply, answer)  # type: ignore[arg-type]  # by its kind
        elif kind is SentElsewhere:
            self._replies.on_sent_elsewhere(reply, answer)  # type: ignore[arg-type]
        elif kind is PeekedOffsets:
            self._replies.on_peeked(reply, answer)  # type: ignore[arg-type]
        elif kind is FetchedOffsets:
            self._fetches.answer(answer, reply)  # type: ignore[arg-type]
        elif kind is ClaimedOutcome:
            if answer.dead_letters:  # type: ignore[union-attr]
                self._links.dead_letters(answer.dead_letters)  # type: ignore[union-attr]
            reply(answer.outcome)  # type: ignore[union-attr]
        else:
            reply(answer)  # type: ignore[arg-type]


def _nothing() -> None:
    """Only its turn counts."""

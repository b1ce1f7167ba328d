"""A replica of a journal: the queues on top of the replicated log, and which replies may go. No I/O, no clock.

    leader:    propose ─▶ decided, applied ─▶ batch ─▶ log (core/replication/replication) ─▶ commit ─▶ replies
    follower:  batches taken from the leader ─▶ applied as they are taken

The host (`broker/replica/replica`) feeds events by method and then carries out the `ToDo` that `take` returns. The
rules:

- The leader decides when it proposes, so its queues run ahead to the journal's end. A follower's do too: an
  elected one has nothing left to apply. When the log is cut, because a new leader has other batches there, queues that
  had applied what was cut are worthless: the host rebuilds them from snapshot and journal (`rebuild`, `on_rebuilt`),
  while the log goes on.
- Every reply that promises something waits for the commit of all it rests on: everything before the journal's
  end at the time of the decision.
- Who leads no longer says to all who wait that the outcome is unknown. Who is appointed again, for a change of
  members, keeps them waiting: what it wrote stays.

With one member, a majority is this replica's own fsync; the steps are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.partition.work.slices import Work
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication.effects import LogOperation, ReadLog, Write
from quaymaster.core.replication.messages import Envelope, Message
from quaymaster.core.replication.replication import LogReplica, Role
from quaymaster.core.values.commands.messages import CountMessages, Peek
from quaymaster.core.values.commands.move_tasks import ListMoveTasks
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.errors import CallerError, NotLeader, NotNow, StaleEpoch, TooFewReplicas
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import (
    BATCH_VERSIONS,
    Batch,
    Record,
    RecordRow,
    RecordType,
    decode_header,
    encode_batch,
    iterate_rows,
)

QUESTIONS: Final = (CountMessages, ListMoveTasks, Peek)
"""What a leader answers that no majority hears any more: it may be out of date, and promises nothing."""

Token = object
Answer = Decided | Exception

RECORDS_PER_BATCH_MAX = 4_096
"""More records than this are written as several batches."""

UNAPPLIED_BYTES_MAX = 2 << 20
"""So much of what comes while the queues are rebuilt is kept, to be applied at once; the rest is on the disk."""

BEHIND_BYTES_MAX = 8 << 20
"""So much of what a leader sent may wait for work on a queue."""

BATCH_BYTES_MAX = 1 << 20
"""A batch that has so many bytes of payloads takes no further record."""


class ToDo(msgspec.Struct):
    """What the host must carry out: the log's `operations` in their order, the rest in any.

    `activate`: the epoch whose configuration is to be marked activated. `reads` and `copies`: members who lack a part
    of the log. `rebuild`: the queues are to be rebuilt, once the operations are carried out. `replies`: answers
    that may go now. `again`: commands that waited for work on their queues, to be proposed once more. `awake`:
    partitions whose parked receives are worth another try.
    """

    operations: list[LogOperation]
    messages: list[Envelope]
    reads: list[ReadLog]
    copies: list[str]
    activate: int | None
    rebuild: bool
    replies: list[tuple[Token, Answer]]
    again: list[tuple[Command | InternalCommand, Token]]
    awake: set[Partition]

    @property
    def batches(self) -> list[Batch]:
        """All batches to be written."""
        return [
            batch for operation in self.operations if type(operation) is Write for batch in operation.batches
        ]


class _Pending:
    """The replies and commits that wait for the end of one batch."""

    __slots__ = ("end", "on_commit", "on_received", "sent_to")

    def __init__(
        self,
        end: int,
        on_commit: list[tuple[Token, Answer]],
        on_received: list[tuple[Token, Answer]],
        sent_to: dict[Partition, int],
    ) -> None:
        self.end = end
        self.on_commit = on_commit
        self.on_received = on_received
        self.sent_to = sent_to


class _Batches:
    """Batches to be applied in their order, and how far they are."""

    __slots__ = ("_batches", "_epoch", "_rows", "next_offset", "size_bytes")

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._rows: Iterator[RecordRow] | None = None
        """The records of the first one that are left; None: it is not begun."""
        self._epoch = 0
        self.next_offset = 0
        """The record that is applied next, when there is one."""
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def base_offset(self) -> int:
        """Where the first one begins."""
        return self._batches[0].base_offset

    def add(self, batch: Batch) -> None:
        """A batch follows those that are there."""
        if not self._batches:
            self.next_offset = batch.base_offset
        self._batches.append(batch)
        self.size_bytes += len(batch.data)

    def apply_to(self, queues: QueueStates) -> None:
        """Apply the rest of the first batch, or up to a record that begins work in slices."""
        batch = self._batches[0]
        data = batch.data
        if self._rows is None:
            header = decode_header(data)
            self._epoch, self._rows = header.epoch, iterate_rows(data, header)
        works = queues.unfinished.works
        for row in self._rows:
            queues.apply(row, data[row.position : row.position + row.length], self._epoch)
            if works:
                self.next_offset = row.offset + 1
                return
        self._rows = None
        self.next_offset = batch.next_offset
        self.size_bytes -= len(data)
        self._batches.popleft()


class JournalReplica:
    """One replica. Offsets are the journal's; `now_ms` is a clock that does not jump, `time_ms` is queue time."""

    def __init__(
        self,
        log: LogReplica,
        queues: QueueStates,
        *,
        last_time_ms: int,
        cell_format: CellFormat | None = None,
        unapplied_bytes_max: int = UNAPPLIED_BYTES_MAX,
    ) -> None:
        self.log = log
        self._cell_format = cell_format or CellFormat()
        self.queues = queues
        queues.cell_format = self._cell_format
        self.last_time_ms = last_time_ms
        self.is_ready = True
        """Whether the queues are what the log says."""
        self._unapplied: list[Batch] = []
        """What was taken from a leader while the queues were rebuilt: the newest of it."""
        self._unapplied_bytes = 0
        self._unapplied_bytes_max = unapplied_bytes_max
        self._behind = _Batches()
        """What was taken and is not applied, because work on a queue is unfinished."""
        self._held: list[tuple[Command | InternalCommand, Token]] = []
        """Commands for queues with unfinished work."""
        self._again: list[tuple[Command | InternalCommand, Token]] = []
        self._forgotten_end = 0
        """Below it not everything was kept."""
        self._rebuild_due = False
        self._was_leading = False
        self._led_epoch = 0
        """The last epoch that it led, as far as its queues know."""
        self._committed = log.commit
        self._proposal = Proposal(log.end.end, 0)
        self._on_commit: list[tuple[Token, Answer]] = []
        self._on_received: list[tuple[Token, Answer]] = []
        self._pending: deque[_Pending] = deque()
        self._replies: list[tuple[Token, Answer]] = []
        self._awake: set[Partition] = set()

    @property
    def node(self) -> str:
        """Its member name."""
        return self.log.node

    @property
    def role(self) -> Role:
        """What it is in the replication of the log."""
        return self.log.role

    @property
    def epoch(self) -> int:
        """The epoch it leads, wants to lead, or follows."""
        return self.log.epoch

    @property
    def end_offset(self) -> int:
        """Where the log ends, written or about to be."""
        return self.log.end.end

    @property
    def durable_end(self) -> int:
        """Everything below it is durable here."""
        return self.log.durable_end

    @property
    def commit(self) -> int:
        """Everything below it is durable on a majority, for ever."""
        return self.log.commit

    @property
    def durable_commit(self) -> int:
        """Everything below it is committed, and durable here: others may have committed what this disk could lose."""
        return min(self.log.commit, self.log.durable_end)

    @property
    def is_leading(self) -> bool:
        """Whether commands are decided here."""
        return self._was_leading and self.log.is_leading and self.is_ready

    @property
    def is_caught_up(self) -> bool:
        """Whether all that was taken from leaders is applied."""
        return not self._behind and (self._was_leading or not self.queues.unfinished)

    @property
    def applied_end(self) -> int:
        """Up to which record the queues are what the log says, but for those with unfinished work."""
        return self._behind.next_offset if self._behind else self.log.end.end

    @property
    def applied_base(self) -> int:
        """The last end of a batch that is not behind `applied_end`."""
        return self._behind.base_offset if self._behind else self.log.end.end

    @property
    def has_more(self) -> bool:
        """Whether `do_slice` has something to do."""
        return bool(self.queues.unfinished or self._behind)

    # Events

    def on_configuration(self, configuration: JournalConfiguration, now_ms: int) -> None:
        """The journal's key was read from coordination."""
        self.log.on_configuration(configuration, now_ms)
        self._look()

    def on_activated(self, epoch: int) -> None:
        """Coordination holds `activated` for this epoch."""
        self.log.on_activated(epoch)
        self._look()

    def on_promise_durable(self, epoch: int) -> None:
        """A promise, and all that was written before it, is durable."""
        self.log.on_promise_durable(epoch)

    def on_written(self, written_end: int, *, truncations: int = 0) -> None:
        """`write()` has returned for everything below `written_end`: what waits for that may go."""
        self.log.on_written(written_end, truncations=truncations)
        self._let_received_go()

    def on_durable(self, durable_end: int, *, truncations: int = 0) -> None:
        """This replica has fsynced everything below `durable_end`."""
        self.log.on_durable(durable_end, truncations=truncations)
        self._look()

    def on_message(self, sender: str, message: Message, now_ms: int) -> None:
        """Another replica said something."""
        self.log.on_message(sender, message, now_ms)
        self._look()
        self._let_received_go()

    def on_connection_closed(self, member: str) -> None:
        """A connection to a member closed."""
        self.log.on_connection_closed(member)
        self._look()

    def on_tick(self, now_ms: int) -> None:
        """Time has passed."""
        self.log.on_tick(now_ms)
        self._look()

    def has_kept_from(self, offset: int) -> bool:
        """Tell whether all that came since is kept from an offset on; if not, the journal on the disk has it."""
        return offset >= self._forgotten_end

    def on_rebuilt(self, queues: QueueStates, applied_end: int, last_time_ms: int, truncations: int) -> None:
        """The queues were rebuilt from the log up to `applied_end`, as it was after so many truncations."""
        assert not self.is_ready, "queues are made anew when they are worthless"
        if truncations != self.log.truncations:
            return  # each cut asks for a rebuild of its own
        assert self.has_kept_from(applied_end), (
            f"queues as of {applied_end} lack what is forgotten up to {self._forgotten_end}"
        )
        self.queues = queues
        queues.cell_format = self._cell_format
        self.last_time_ms = max(self.last_time_ms, last_time_ms)
        self.is_ready = True
        unapplied = self._unapplied
        self._unapplied, self._unapplied_bytes, self._forgotten_end = [], 0, 0
        self._apply([batch for batch in unapplied if batch.base_offset >= applied_end])
        if self._was_leading:
            queues.expiry_is_held = self.log.time.expiry_is_held
            self._look_for_late_first_attempts()

    def _look_for_late_first_attempts(self) -> None:
        """Which sends so far were repeats is not known: for the retry window their first attempts may still come."""
        self.queues.repeats_until_ms = self.last_time_ms + self.queues.retry_window_ms
        self.queues.repeats_below = self.log.end.end

    def stop(self, reason: NotNow) -> None:
        """Take part no longer, for good; all who wait learn that the outcome is unknown."""
        self.log.stop()
        self._was_leading = False
        self._fail_waiting(reason)

    # In service

    def propose(self, command: Command | InternalCommand, token: Token, time_ms: int) -> None:
        """Decide a command now; its answer comes in a later (or the next) `ToDo` with the token."""
        if not self.is_leading:
            self._replies.append((token, NotLeader()))
            return
        if not self.log.has_lease and type(command) not in QUESTIONS:
            self._replies.append((token, TooFewReplicas()))
            return
        if self.queues.unfinished.works and self.queues.is_held(command):
            self._held.append((command, token))
            return
        proposal = self._proposal
        try:
            outcome, wait = self.queues.decide(command, self._stamp(time_ms), proposal)
        except (CallerError, NotNow) as error:
            self._replies.append((token, error))
            return
        if isinstance(outcome, Work):
            outcome.token, outcome.wait = token, wait
        else:
            self._answer(token, outcome, wait)

    def _answer(self, token: Token, outcome: Decided, wait: Wait) -> None:
        if wait is Wait.NOTHING:
            self._replies.append((token, outcome))
        elif wait is Wait.COMMIT:
            self._on_commit.append((token, outcome))
        else:
            self._on_received.append((token, outcome))

    def do_slice(self, time_ms: int) -> bool:
        """Do one slice of what is unfinished, or catch up; return whether there is more. Then `take`."""
        queues = self.queues
        is_leading = self.is_leading
        if not is_leading:
            self._give_up_undecided()
        if queues.unfinished:
            work = queues.unfinished.step(
                (self._stamp(time_ms) if is_leading else self.last_time_ms, self._proposal)
            )
            if work.is_done:
                self._again += self._held
                self._held = []
                if work.wait is not None and work.outcome is not None:
                    self._answer(work.token, work.outcome, work.wait)
        self._catch_up()
        self._look()
        return self.has_more

    def take(self, time_ms: int = 0) -> ToDo:
        """Return what is to be done now, and forget it here.

        A new epoch's first record is stamped `time_ms`, or later: queue time continues from the log's last stamp.
        """
        log = self.log
        if log.wants_barrier:
            time_ms = max(time_ms, log.carry_time_on(self.last_time_ms))
            self._proposal = Proposal(log.end.end, log.epoch)
            self._proposal.records.append(
                Record(RecordType.BARRIER, 0, 0, 0, 0, self._stamp(time_ms), 0, b"")
            )
        self._close_batches()
        effects = log.take()
        rebuild, self._rebuild_due = self._rebuild_due, False
        todo = ToDo(
            effects.operations,
            effects.messages,
            effects.reads,
            effects.copies,
            effects.activate,
            rebuild,
            self._replies,
            self._again,
            self._awake,
        )
        self._replies = []
        self._again = []
        self._awake = set()
        return todo

    # Helpers

    def _look(self) -> None:
        """Follow what the log has come to: cut, longer, committed, led by another."""
        log = self.log
        if log.truncated_to is not None or log.accepted:
            self._follow_log()
        # It may have led another one just before. A follower serves once it has applied what it took.
        begins = (
            log.role == "leading"
            and log.epoch != self._led_epoch
            and (self._was_leading or self.is_caught_up)
        )
        # Of an earlier epoch of its own, and committed by now: it may never have heard that somebody led in between.
        earlier = [partition for pending in self._pending for partition in pending.sent_to] if begins else []
        if log.commit > self._committed:
            self._advance_commit()  # first: who resigns has just committed what others wait for
        if begins:
            self._led_epoch = log.epoch
            self._was_leading = True
            self._proposal = Proposal(log.end.end, log.epoch)
            self.queues.expiry_is_held = log.time.expiry_is_held
            self._look_for_late_first_attempts()
            _leave_to_others(earlier)
        elif self._was_leading and log.role == "follower":
            self._was_leading = False
            self._fail_waiting(StaleEpoch())

    def _follow_log(self) -> None:
        log = self.log
        cut_to, log.truncated_to = log.truncated_to, None
        if cut_to is not None:
            self._fail_waiting(StaleEpoch())
            self.queues.unfinished.works.clear()
            self._behind = _Batches()
            self._unapplied = [batch for batch in self._unapplied if batch.next_offset <= cut_to]
            self._unapplied_bytes = sum([len(batch.data) for batch in self._unapplied])
            self._forgotten_end = min(self._forgotten_end, cut_to)
            self.is_ready = False
            self._rebuild_due = True
        accepted, log.accepted = log.accepted, []
        if self.is_ready:
            self._apply(accepted)
        else:
            self._keep(accepted)

    def _keep(self, batches: list[Batch]) -> None:
        """Keep batches for when the queues are there, and forget the oldest beyond the limit."""
        unapplied = self._unapplied
        unapplied += batches
        for (
            batch
        ) in batches:  # who is elected before the queues are there continues from the log's last stamp, too
            self.last_time_ms = max(self.last_time_ms, decode_header(batch.data).time_ms)
        size = self._unapplied_bytes + sum([len(batch.data) for batch in batches])
        count = 0
        while size > self._unapplied_bytes_max:
            size -= len(unapplied[count].data)
            self._forgotten_end = unapplied[count].next_offset
            count += 1
        del unapplied[:count]
        self._unapplied_bytes = size

    def _apply(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.last_time_ms = max(self.last_time_ms, decode_header(batch.data).time_ms)
            self._behind.add(batch)
        self._catch_up()

    def _catch_up(self) -> None:
        """Apply what was taken, as far as no work is unfinished. Of too much, the work is finished here and now."""
        queues, behind = self.queues, self._behind
        while behind and (not queues.unfinished.works or behind.size_bytes > BEHIND_BYTES_MAX):
            behind.apply_to(queues)

    def _give_up_undecided(self) -> None:
        """Commands of which nothing was decided are for another leader."""
        for work in self.queues.unfinished.give_up_undecided():
            self._replies.append((work.token, NotLeader()))
        self._replies += [(token, NotLeader()) for _, token in self._held]
        self._held = []

    def _fail_waiting(self, reason: NotNow) -> None:
        self._give_up_undecided()
        waiting = [*self._on_commit, *self._on_received]
        for pending in self._pending:
            waiting += pending.on_commit
            waiting += pending.on_received
            _leave_to_others(pending.sent_to)
        _leave_to_others(self._proposal.sent_to)
        self._pending.clear()
        self._on_commit, self._on_received = [], []
        self._proposal = Proposal(self.log.end.end, self.log.epoch)
        self._replies += [(token, reason) for token, _ in waiting]
        for work in self.queues.unfinished.works.values():
            if work.wait is not None:
                work.wait = None
                self._replies.append((work.token, reason))

    def _stamp(self, time_ms: int) -> int:
        """Queue time never goes back."""
        if time_ms < self.last_time_ms:
            return self.last_time_ms
        self.last_time_ms = time_ms
        return time_ms

    def _close_batches(self) -> None:
        proposal = self._proposal
        if proposal.awake:
            self._awake |= proposal.awake
            proposal.awake = set()
        records = proposal.records
        if not records:
            self._let_waiting_go()
            return
        log = self.log
        tell_received = bool(self._on_received)
        version = self._cell_format.version_of(BATCH_VERSIONS)
        for some in _in_batches(records):
            end = log.end
            log.append(
                encode_batch(
                    some,
                    epoch=log.epoch,
                    base_offset=end.end,
                    time_ms=self.last_time_ms,
                    floor=log.durable_end,
                    previous_chain=end.chain,
                    version=version,
                ),
                tell_received=tell_received,
            )
        end_offset = log.end.end
        self._pending.append(_Pending(end_offset, self._on_commit, self._on_received, proposal.sent_to))
        self._on_commit, self._on_received = [], []
        self._proposal = Proposal(end_offset, log.epoch)

    def _let_waiting_go(self) -> None:
        """Nothing new is written: replies rest on what is on its way already, or on nothing."""
        if not self._on_commit and not self._on_received:
            return
        if self._pending:
            self._pending[-1].on_commit += self._on_commit
            self._pending[-1].on_commit += self._on_received
        else:
            self._replies += self._on_commit
            self._replies += self._on_received
        self._on_commit, self._on_received = [], []

    def _let_received_go(self) -> None:
        pending = self._pending
        if not pending or not any(some.on_received for some in pending):
            return
        received_end = self.log.received_on_majority
        for some in pending:
            if some.end > received_end:
                break
            if some.on_received:
                self._replies += some.on_received
                some.on_received = []

    def _advance_commit(self) -> None:
        end = self._committed = self.log.commit
        pending = self._pending
        replies = self._replies
        awake = self._awake
        while pending and pending[0].end <= end:
            done = pending.popleft()
            replies += done.on_commit
            if done.on_received:
                replies += done.on_received
            for partition, next_sequence in done.sent_to.items():
                partition.note_commit(next_sequence)
                if partition.watched:
                    awake.add(partition)


def _leave_to_others(sent_to: Iterable[Partition]) -> None:
    """What was sent here and is not committed is up to those who lead later: all that they know is committed."""
    for partition in sent_to:
        partition.uncommitted_from = 0


def _in_batches(records: list[Record]) -> list[list[Record]]:
    """Cut records into batches of at most so many, that end when they have so many bytes."""
    if (
        len(records) <= RECORDS_PER_BATCH_MAX
        and sum([len(record.payload) for record in records]) <= BATCH_BYTES_MAX
    ):
        return [records]
    batches: list[list[Record]] = [[]]
    size = 0
    for record in records:
        if size >= BATCH_BYTES_MAX or len(batches[-1]) >= RECORDS_PER_BATCH_MAX:
            batches.append([])
            size = 0
        batches[-1].append(record)
        size += len(record.payload)
    return batches

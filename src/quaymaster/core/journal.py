"""A replica of a journal: who may append, what is committed, which replies may go. No I/O, no clock.

    follower ──appoint(epoch)──▶ elect ──own promise durable──▶ barrier ──durable on a majority──▶ activating
        ▲                                                                                             │
        └──────────────── a higher epoch, or a failure ─────────────── leading ◀── activated=true ────┘

The host (`broker/replica`) feeds events by method and then carries out the `ToDo` that `take` returns, in its order:
persist the promise, write the batches, ask coordination to activate, send the replies. The rules, from the
protocol's executable model:

- A replica leads an epoch only if it never promised it before: an epoch is never led twice.
- What is committed is durable on a majority of the members, and its batch has the leader's own epoch.
- Nothing is committed, announced or answered before coordination says `activated`.
- The leader decides when it proposes, so its queues run ahead to the journal's end; a replica that is deposed
  throws them away and is rebuilt from its journal.
- Every reply that promises something waits for the commit of all it rests on: everything before the journal's
  end at the time of the decision.

With one member, a majority is this replica's own fsync; the steps are the same.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from quaymaster.core.commands import Command, Decided, InternalCommand
from quaymaster.core.errors import CallerError, NotLeader, NotNow
from quaymaster.core.partition import Partition
from quaymaster.core.queue_states import Proposal, QueueStates, Wait
from quaymaster.core.records import Batch, Record, RecordType, encode_batch
from quaymaster.core.replication import JournalConfiguration

Role = Literal["follower", "elect", "activating", "leading", "stopped"]
Token = object
Answer = Decided | Exception

RECORDS_PER_BATCH_MAX = 4_096
"""More records than this are written as several batches."""

BATCH_BYTES_MAX = 1 << 20
"""A batch that has so many bytes of payloads takes no further record."""


class ToDo(msgspec.Struct):
    """What the host must carry out, in the order of the fields.

    `promise`: an epoch to make durable before anything else, or None. `batches`: to be written and fsynced.
    `needs_written`: somebody waits for `write()` alone. `activate`: the epoch whose configuration is to be marked
    activated. `replies`: answers that may go now. `awake`: partitions whose parked receives are worth another try.
    """

    promise: int | None
    batches: list[Batch]
    needs_written: bool
    activate: int | None
    replies: list[tuple[Token, Answer]]
    awake: set[Partition]


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


class JournalReplica:
    """One replica. `node` names it among the members. Offsets are the journal's."""

    def __init__(
        self,
        node: str,
        queues: QueueStates,
        *,
        promised_epoch: int,
        end_offset: int,
        end_chain: int,
        last_time_ms: int,
    ) -> None:
        self.node = node
        self.queues = queues
        self.role: Role = "follower"
        self.epoch = 0
        self.promised_epoch = promised_epoch
        self.end_offset = end_offset
        self.durable_end = end_offset
        self.commit = 0
        self.last_time_ms = last_time_ms
        self._end_chain = end_chain
        self._configuration: JournalConfiguration | None = None
        self._durable_of: dict[str, int] = {}
        self._barrier_end = 0
        self._proposal = Proposal(end_offset, 0)
        self._on_commit: list[tuple[Token, Answer]] = []
        self._on_received: list[tuple[Token, Answer]] = []
        self._pending: deque[_Pending] = deque()
        self._promise: int | None = None
        self._activate: int | None = None
        self._replies: list[tuple[Token, Answer]] = []
        self._awake: set[Partition] = set()

    @property
    def is_leading(self) -> bool:
        """Whether commands are decided here."""
        return self.role == "leading"

    # Becoming the leader

    def appoint(self, configuration: JournalConfiguration) -> bool:
        """This replica is to lead an epoch; false when it promised that epoch, or a higher one, before.

        Also false once it led: its queues may have run ahead of the journal, so it is made anew first.
        """
        if configuration.epoch <= self.promised_epoch or configuration.leader != self.node:
            return False
        if self.role == "leading" or self.role == "stopped":
            return False
        self._configuration = configuration
        self.epoch = configuration.epoch
        self.promised_epoch = configuration.epoch
        self.role = "elect"
        self._durable_of = dict.fromkeys(configuration.members, 0)
        self._promise = configuration.epoch
        return True

    def on_promised(self, epoch: int, now_ms: int) -> None:
        """The own promise of `epoch` is durable. With one member that is a majority: write the barrier."""
        if self.role != "elect" or epoch != self.epoch:
            return
        assert self._configuration is not None, "an elected replica has a configuration"
        assert self._is_majority({self.node}), "promises of other members are needed (more than one replica)"
        self.role = "activating"
        self._proposal = Proposal(self.end_offset, self.epoch)
        self._proposal.records.append(Record(RecordType.BARRIER, 0, 0, 0, 0, self._stamp(now_ms), 0, b""))
        self._barrier_end = self.end_offset + 1

    def on_activated(self, epoch: int) -> None:
        """Coordination holds `activated` for this epoch: commit, and serve."""
        if self.role != "activating" or epoch != self.epoch:
            return
        self.role = "leading"
        self.queues.commit_all()
        self._advance_commit()

    def stop(self, reason: NotNow) -> None:
        """Lead no longer, for good; whoever waits learns that the outcome is unknown."""
        self.role = "stopped"
        waiting = [*self._on_commit, *self._on_received]
        for pending in self._pending:
            waiting += pending.on_commit
            waiting += pending.on_received
        self._pending.clear()
        self._on_commit, self._on_received = [], []
        self._proposal = Proposal(self.end_offset, self.epoch)
        self._replies += [(token, reason) for token, _ in waiting]

    # In service

    def propose(self, command: Command | InternalCommand, token: Token, now_ms: int) -> None:
        """Decide a command now; its answer comes in a later (or the next) `ToDo` with the token."""
        if self.role != "leading":
            self._replies.append((token, NotLeader()))
            return
        proposal = self._proposal
        now_ms = self._stamp(now_ms)
        try:
            outcome, wait = self.queues.decide(command, now_ms, proposal)
        except (CallerError, NotNow) as error:
            self._replies.append((token, error))
            return
        if wait is Wait.NOTHING:
            self._replies.append((token, outcome))
        elif wait is Wait.COMMIT:
            self._on_commit.append((token, outcome))
        else:
            self._on_received.append((token, outcome))

    def on_written(self, written_end: int) -> None:
        """`write()` has returned for everything below `written_end`: what waits for that may go."""
        for pending in self._pending:
            if pending.end > written_end:
                break
            if pending.on_received:
                self._replies += pending.on_received
                pending.on_received = []

    def on_durable(self, durable_end: int) -> None:
        """This replica has fsynced everything below `durable_end`."""
        self.durable_end = max(self.durable_end, durable_end)
        self._durable_of[self.node] = self.durable_end
        if self.role == "activating" and self._durable_on_majority() >= self._barrier_end:
            self._activate = self.epoch
        elif self.role == "leading":
            self._advance_commit()

    def take(self) -> ToDo:
        """Return what is to be done now, and forget it here."""
        batches = self._close_batches()
        todo = ToDo(
            self._promise,
            batches,
            bool(batches) and bool(self._pending[-1].on_received),
            self._activate,
            self._replies,
            self._awake,
        )
        self._promise = self._activate = None
        self._replies = []
        self._awake = set()
        return todo

    # Helpers

    def _stamp(self, now_ms: int) -> int:
        """Queue time never goes back."""
        if now_ms < self.last_time_ms:
            return self.last_time_ms
        self.last_time_ms = now_ms
        return now_ms

    def _close_batches(self) -> list[Batch]:
        proposal = self._proposal
        if proposal.awake:
            self._awake |= proposal.awake
            proposal.awake = set()
        records = proposal.records
        if not records:
            self._let_waiting_go()
            return []
        batches: list[Batch] = []
        for some in _in_batches(records):
            batch = encode_batch(
                some,
                epoch=self.epoch,
                base_offset=self.end_offset,
                time_ms=self.last_time_ms,
                floor=self.durable_end,
                previous_chain=self._end_chain,
            )
            self.end_offset = batch.next_offset
            self._end_chain = batch.chain
            batches.append(batch)
        self._pending.append(_Pending(self.end_offset, self._on_commit, self._on_received, proposal.sent_to))
        self._on_commit, self._on_received = [], []
        self._proposal = Proposal(self.end_offset, self.epoch)
        return batches

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

    def _is_majority(self, nodes: set[str]) -> bool:
        configuration = self._configuration
        assert configuration is not None, "votes are counted in a configuration"
        return all(
            2 * len(nodes & set(members)) > len(members)
            for members in (configuration.members, configuration.previous_members or configuration.members)
        )

    def _durable_on_majority(self) -> int:
        """Return the offset below which a majority of the members has fsynced."""
        ends = sorted(self._durable_of.values(), reverse=True)
        return ends[len(ends) // 2]

    def _advance_commit(self) -> None:
        end = self._durable_on_majority()
        if end < self._barrier_end or end <= self.commit:
            return
        self.commit = end
        pending = self._pending
        replies = self._replies
        awake = self._awake
        while pending and pending[0].end <= end:
            done = pending.popleft()
            replies += done.on_commit
            if done.on_received:
                replies += done.on_received
            for partition, next_sequence in done.sent_to.items():
                partition.committed = next_sequence
                if partition.watched:
                    awake.add(partition)


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

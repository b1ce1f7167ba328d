"""Bugs that are planted on purpose, by name: each takes away a rule, in the simulator only.

A bug is a subclass of one of the classes a cell is made of, the product's or the simulator's, which stands in for its
host. `Planted.variant` puts it in the class's place; without bugs it returns the class itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec
from crc32c import crc32c
from harness.replica_host import identity

from quaymaster.core.applied_queues import HAS_ATTEMPT, OWN_DELAY, PAIR
from quaymaster.core.commands import (
    Command,
    Decided,
    Delete,
    Done,
    Duplicate,
    InternalCommand,
    MoveMessage,
    Receive,
    Send,
    SentOutcome,
)
from quaymaster.core.errors import NotNow
from quaymaster.core.journal import JournalReplica
from quaymaster.core.messages import split_payload
from quaymaster.core.queue_states import Proposal, QueueStates, Wait
from quaymaster.core.records import HEADER_BYTES, Batch, RecordType, Row
from quaymaster.core.replication import LEASE_MS, JournalConfiguration, LogReplica
from quaymaster.core.replication_messages import Append, Mismatch
from sim.clients import Client
from sim.kernel import MS
from sim.log_disk import LogDisk, LogWriter, Snapshot
from sim.manager import Manager
from sim.messages import Copied, Copy
from sim.node import Node
from sim.store import Store, Swap

Kind = TypeVar("Kind")


@dataclass(slots=True)
class Bug:
    """A planted bug: what is wrong, in which profile it is hunted, and the classes that have it."""

    what: str
    profile: str
    variants: dict[type[Any], type[Any]] = field(default_factory=dict)


BUGS: dict[str, Bug] = {}


def plant(name: str, what: str, profile: str = "elections") -> Callable[[type[Kind]], type[Kind]]:
    """Register a subclass as the bug `name`."""

    def register(variant: type[Kind]) -> type[Kind]:
        bug = BUGS.setdefault(name, Bug(what, profile))
        bug.variants[variant.__mro__[1]] = variant
        return variant

    return register


class Planted:
    """The bugs of a run."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self._variants: dict[type[Any], type[Any]] = {}

    def variant(self, base: type[Kind]) -> type[Kind]:
        """Return the class to be used in place of `base`."""
        if not self.names:
            return base
        if base not in self._variants:
            found = [BUGS[name].variants[base] for name in self.names if base in BUGS[name].variants]
            self._variants[base] = type(base.__name__, (*found, base), {}) if found else base
        return cast("type[Kind]", self._variants[base])


# The protocol: what a replica of the log must do


@plant("earlyack", "a replica takes for durable what is only written")
class _EarlyAck(LogReplica):
    def on_written(self, end: int, *, truncations: int = 0) -> None:
        super().on_written(end, truncations=truncations)
        self.on_durable(end, truncations=truncations)


@plant("softpromise", "a promise is persisted before the log below it is durable")
class _SoftPromise(LogWriter):
    def carry_out(self, operations: list[Any]) -> None:
        for operation in operations:
            epoch = getattr(operation, "epoch", None)
            if epoch is not None:
                self.disk.promise(epoch)
                self._on_promised(epoch)
        super().carry_out([operation for operation in operations if not hasattr(operation, "epoch")])


@plant("reuse", "a restarted leader goes on in the epoch it led before")
class _Reuse(LogReplica):
    def on_configuration(self, configuration: JournalConfiguration, now_ms: int) -> None:
        if (
            self.epoch == 0
            and configuration.leader == self.node
            and configuration.epoch == self.promised_epoch
        ):
            self.promised_epoch -= 1
            self._heard_ms = now_ms - LEASE_MS
        super().on_configuration(configuration, now_ms)


@plant("noprev", "only the new members are asked for promises", "swaps")
class _NoPrevious(LogReplica):
    def on_configuration(self, configuration: JournalConfiguration, now_ms: int) -> None:
        blind = msgspec.structs.replace(configuration, previous_members=configuration.members)
        super().on_configuration(blind, now_ms)


@plant("nofetch", "an elect leads with its own log, though another promised a longer one")
class _NoFetch(LogReplica):
    def _look_at_promises(self) -> None:
        super()._look_at_promises()
        if self.role == "fetching":
            self._be_elected()


@plant("tail-not-compared", "an elect takes a tail behind its own log, whether they agree there or not")
class _TailNotCompared(LogReplica):
    def _continues(self, start: int, batch: Batch) -> bool:
        return True


@plant("noactivate", "a leader serves before the store says that it is activated", "swaps")
class _NoActivate(Node):
    def _ask_to_activate(self, epoch: int) -> None:
        super()._ask_to_activate(epoch)
        if self.log.role == "activating":
            self._activated(epoch)


@plant("fig8", "batches of an earlier epoch are committed by counting copies")
class _Figure8(LogReplica):
    def append(self, batch: Batch, *, tell_received: bool = False) -> None:
        super().append(batch, tell_received=tell_received)
        self._barrier_end = 0
        self._is_activated = True


@plant("volpromise", "a promise is forgotten in a crash")
class _VolatilePromise(LogDisk):
    def crash(self, *, has_stale: bool) -> None:
        super().crash(has_stale=has_stale)
        self.promised = 0


@plant("nochain", "nothing binds a batch to the one before it", "stale")
class _NoChainOnDisk(LogDisk):
    checks_chain = False


@plant("nochain", "")
class _NoChainInMemory(LogReplica):
    def append(self, batch: Batch, *, tell_received: bool = False) -> None:
        alone = crc32c(batch.data[HEADER_BYTES:]) << 20 | batch.epoch
        super().append(msgspec.structs.replace(batch, chain=alone), tell_received=tell_received)

    def _continues(self, start: int, batch: Batch) -> bool:
        return True


@plant("noprevcheck", "a follower does not compare what is before an append")
class _NoPreviousCheck(LogReplica):
    def _on_append(self, sender: str, message: Append) -> None:
        position = self.tail.position_at(message.previous_end)
        if position is not None:
            message = msgspec.structs.replace(message, previous_chain=position.chain)
        super()._on_append(sender, message)


@plant("longack", "a follower acknowledges all it has, not what it compared")
class _LongAck(LogReplica):
    def _on_append(self, sender: str, message: Append) -> None:
        super()._on_append(sender, message)
        if self.role == "follower" and self.leader == sender:
            self._verified_end = self.end.end
            self._tell_leader(always=True)

    def _truncate(self, end: int) -> None:
        self._verified_end = min(self._verified_end, end)
        super()._truncate(end)


# More of the log


@plant("nofence", "a replica takes batches of a leader older than one it promised to")
class _NoFence(LogReplica):
    def _on_append(self, sender: str, message: Append) -> None:
        if message.epoch < self.promised_epoch and self.role == "follower":
            self.promised_epoch = self._durable_promise = self.epoch = message.epoch
        super()._on_append(sender, message)


@plant("commit-unverified", "a follower commits what the leader says, up to its own end, compared or not")
class _CommitUnverified(LogReplica):
    def _on_append(self, sender: str, message: Append) -> None:
        super()._on_append(sender, message)
        if self.role == "follower" and self.leader == sender and message.epoch == self.epoch:
            commit = min(message.commit, self.end.end)
            if commit > self.commit and self.tail.position_at(commit) is not None:
                self.commit = commit


@plant("learner-votes", "a learner counts as a member for the commit index", "learning")
class _LearnerVotes(LogReplica):
    def _advance_commit(self) -> None:
        members = self._members
        self._members = tuple(dict.fromkeys((*members, *self._followers)))
        learners = len(self._members) - len(members)
        self._members = self._members[learners:] if learners else members
        super()._advance_commit()
        self._members = members


@plant("mismatch-ignored", "a leader does not look for where a follower's log agrees", "laggards")
class _MismatchIgnored(LogReplica):
    def _on_mismatch(self, sender: str, message: Mismatch) -> None:
        pass


@plant("lost-append", "a leader takes for received what it sent", "laggards")
class _LostAppend(LogReplica):
    def _on_mismatch(self, sender: str, message: Mismatch) -> None:
        super()._on_mismatch(sender, message)
        follower = self._followers.get(sender)
        if follower is not None:
            follower.next_end = self.end.end


@plant("eternal-lease", "a withheld promise is never given", "elections")
class _EternalLease(LogReplica):
    def _waits_for_leader(self) -> bool:
        return self.role == "follower" and self.promised_epoch > 0


@plant("unsynced-recovery", "a start takes what it finds for durable", "power")
class _UnsyncedRecovery(LogDisk):
    def recover(self) -> None:
        pass

    def fsync(self, end: int) -> None:
        self.fsynced_end = max(self.fsynced_end, min(end, self.end))


@plant("fsync-retried", "a failed fsync is taken for a short delay", "disks")
class _FsyncRetried(LogWriter):
    def _fsync(self, end: int, promise: int | None) -> None:
        if self.fails_next_fsync and not self.is_stopped:
            self.fails_next_fsync = False
            self._on_progress(self.disk.end, self.disk.end, self.truncations)
            end = self.disk.fsynced_end
        super()._fsync(end, promise)


@plant("disk-keeps-name", "a disk that was replaced votes under the name of the old one", "disks")
class _DiskKeepsName(Node):
    def replace_disk(self, disk: LogDisk) -> None:
        disk.storage_id = self.disk.storage_id
        super().replace_disk(disk)


@plant("half-is-enough", "half of the followers and no majority commit a batch")
class _HalfIsEnough(LogReplica):
    def _advance_commit(self) -> None:
        own, self.durable_end = self.durable_end, self.end.end
        super()._advance_commit()
        self.durable_end = own


# Activation, managers, the store


@plant(
    "probably-activated", "a leader that gets no answer from the store takes itself for activated", "swaps"
)
class _ProbablyActivated(Node):
    def _ask_to_activate(self, epoch: int) -> None:
        super()._ask_to_activate(epoch)
        self._kernel.after(300 * MS, self._take_for_granted, self.starts, epoch)

    def _take_for_granted(self, start: int, epoch: int) -> None:
        if start == self.starts and self.is_up and self.log.role == "activating" and self.log.epoch == epoch:
            self._activated(epoch)
            self._settle()


@plant("activated-again", "an activation is put over whatever the store holds by then")
class _ActivatedAgain(Store):
    def _serve(self, sender: str, message: object) -> None:
        if isinstance(message, Swap) and message.configuration.activated:
            message = message._replace(revision=self.revision)
        super()._serve(sender, message)


@plant("wrong-previous", "a manager copies the members of a configuration that was never activated", "swaps")
class _WrongPrevious(Manager):
    def _appoint(
        self, configuration: JournalConfiguration, members: tuple[str, ...]
    ) -> JournalConfiguration | None:
        appointed = super()._appoint(configuration, members)
        if appointed is not None:
            appointed = msgspec.structs.replace(appointed, previous_members=configuration.members)
        return appointed


@plant("swap-in-epoch", "a manager swaps a member without a new epoch", "swaps")
class _SwapInEpoch(Manager):
    def _appoint(
        self, configuration: JournalConfiguration, members: tuple[str, ...]
    ) -> JournalConfiguration | None:
        if members != configuration.members and configuration.leader in members:
            return msgspec.structs.replace(configuration, members=members)
        return super()._appoint(configuration, members)


@plant("blind-put", "the store takes a manager's write whatever revision it compared")
class _BlindPut(Store):
    def _serve(self, sender: str, message: object) -> None:
        if isinstance(message, Swap) and sender.startswith("m"):
            message = message._replace(revision=self.revision)
        super()._serve(sender, message)


@plant("deaf-manager", "a manager does not notice a leader that is gone")
class _DeafManager(Manager):
    def _is_leader_lost(self, configuration: JournalConfiguration) -> bool:
        return False


# Snapshots and copies


@plant("early-snapshot", "a leader's snapshot is published before what is in it is committed", "snapshots")
class _EarlySnapshot(Node):
    def _take_snapshot(self) -> None:
        super()._take_snapshot()
        if self._snapshot_wanted is not None:
            self._kernel.after(20 * MS, self._publish, self.starts, self._snapshot_wanted)


@plant("stale-snapshot", "a start skips the first batch behind its snapshot", "snapshots")
class _StaleSnapshot(Node):
    def first_behind(self, index: int) -> int:
        return index + 1 if self.disk.snapshot is not None else index


@plant("log-cut-early", "the log moves up to the new snapshot before that is durable", "snapshots")
class _LogCutEarly(Node):
    def _publish(self, start: int, snapshot: Snapshot) -> None:
        older = self.disk.snapshot
        super()._publish(start, snapshot)
        if self.disk.snapshot is not older:
            self.disk.drop_below(snapshot.base_offset)
            self.disk.snapshot = older


@plant("copy-over-longer-log", "a copy takes the place of a log that reaches further", "laggards")
class _CopyOverLongerLog(Node):
    def _on_copy(self, sender: str, copy: Copy) -> None:
        if copy.member == self.member and copy.epoch >= self.log.promised_epoch:
            self.install(copy)
            self._network.send(self.name, sender, Copied(self.member))

    def on_tick(self) -> None:
        if self.journal.is_leading and self.disk.snapshot is not None and self._random.random() < 0.1:
            for member in self.log.lag_of():
                self._send_copy(member)


@plant("copy-without-bodies", "a copy leaves out the records that the queues still need", "laggards")
class _CopyWithoutBodies(LogDisk):
    def kept_below(self, offset: int) -> dict[int, tuple[int, int, int, bytes]]:
        return {}


@plant("copy-forgotten", "a leader never learns that a copy has arrived", "laggards")
class _CopyForgotten(LogReplica):
    def on_copied(self, member: str) -> None:
        pass


# Leading and following of queues


@plant("cut-not-noticed", "queues that applied what was cut from the log are kept")
class _CutNotNoticed(JournalReplica):
    def _follow_log(self) -> None:
        super()._follow_log()
        if not self.is_ready:
            self.is_ready = True
            self._rebuild_due = False
            unapplied, self._unapplied, self._unapplied_bytes = self._unapplied, [], 0
            self._apply(unapplied)


@plant("gap-after-rebuild", "what came while queues were made anew is not applied to them", "slow disks")
class _GapAfterRebuild(JournalReplica):
    def on_rebuilt(self, queues: QueueStates, applied_end: int, last_time_ms: int, truncations: int) -> None:
        self._unapplied = []
        self._forgotten_end = 0
        super().on_rebuilt(queues, applied_end, last_time_ms, truncations)


@plant("stale-rebuild", "queues made anew from a log that was cut again meanwhile are taken", "slow disks")
class _StaleRebuild(JournalReplica):
    def on_rebuilt(self, queues: QueueStates, applied_end: int, last_time_ms: int, truncations: int) -> None:
        super().on_rebuilt(queues, applied_end, last_time_ms, self.log.truncations)


@plant("stale-rebuild", "")
class _RebuildAtOnce(Node):
    def has_cut(self) -> bool:
        return True


@plant("serves-early", "an elect decides commands before it is activated")
class _ServesEarly(JournalReplica):
    @property
    def is_leading(self) -> bool:
        return self.log.role in ("activating", "leading") and self.is_ready

    def propose(self, command: Command | InternalCommand, token: object, time_ms: int) -> None:
        if self.log.role == "activating":
            self.queues.commit_all()
        super().propose(command, token, time_ms)


@plant("unknown-is-done", "who waits for a leader that is deposed is told that it is done")
class _UnknownIsDone(JournalReplica):
    def _fail_waiting(self, reason: NotNow) -> None:
        for pending in self._pending:
            self._replies += pending.on_commit
            self._replies += pending.on_received
            pending.on_commit, pending.on_received = [], []
        super()._fail_waiting(reason)


@plant("no-lease", "a leader hands out messages though it hears nobody", "leases")
class _NoLease(JournalReplica):
    def propose(self, command: Command | InternalCommand, token: object, time_ms: int) -> None:
        self.log.has_lease = True
        super().propose(command, token, time_ms)


@plant(
    "answer-rests-on-nothing", "an answer that writes nothing does not wait for what it rests on", "queues"
)
class _RestsOnNothing(JournalReplica):
    def _let_waiting_go(self) -> None:
        self._replies += self._on_commit
        self._replies += self._on_received
        self._on_commit, self._on_received = [], []


# Queue decisions


@plant("fifo-receive-uncommitted", "a FIFO receive is answered before it is committed", "queues")
class _FifoReceiveUncommitted(QueueStates):
    def _receive(self, command: Receive, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, _ = super()._receive(command, now_ms, proposal)
        return outcome, Wait.NOTHING


@plant("duplicate-uncommitted", "who sends a duplicate is told so before the original is committed", "queues")
class _DuplicateUncommitted(QueueStates):
    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, wait = super()._send(command, now_ms, proposal)
        assert isinstance(outcome, SentOutcome)
        is_duplicate = any(isinstance(result, Duplicate) for result in outcome.results)
        return outcome, Wait.NOTHING if is_duplicate else wait


@plant("delete-uncommitted", "a delete is answered before it is committed", "queues")
class _DeleteUncommitted(QueueStates):
    def _delete(self, command: Delete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, _ = super()._delete(command, now_ms, proposal)
        return outcome, Wait.NOTHING


@plant("send-on-received", "a durable send is answered when a majority has written it", "power")
class _SendOnReceived(QueueStates):
    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, wait = super()._send(command, now_ms, proposal)
        return outcome, min(wait, Wait.RECEIVED)


@plant("hands-out-uncommitted", "a message is handed out before its send is committed", "queues")
class _HandsOutUncommitted(QueueStates):
    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided = super()._send(command, now_ms, proposal)
        partition = self.partition(command.queue_id, command.partition)
        partition.committed = partition.next_sequence
        return decided


@plant("dedup-forgotten", "a follower does not note the ids of what was sent", "queues")
class _DedupForgotten(QueueStates):
    def _apply_send(self, row: Row, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            is_own = bool(row.flags & OWN_DELAY)
            group = split_payload(row.flags, payload)[0]
            partition.apply_send(
                row.sequence, row.offset, row.time_ms, row.due_after_ms, is_own, group, None, None
            )


@plant("group-forgotten", "a follower puts every message into one group", "queues")
class _GroupForgotten(QueueStates):
    def _apply_send(self, row: Row, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            is_own = bool(row.flags & OWN_DELAY)
            group, dedup, retry, _ = split_payload(row.flags, payload)
            partition.apply_send(
                row.sequence, row.offset, row.time_ms, row.due_after_ms, is_own, min(group, 1), dedup, retry
            )


@plant("delay-forgotten", "a follower does not note the delay of what was sent", "queues")
class _DelayForgotten(QueueStates):
    def _apply_send(self, row: Row, payload: bytes | memoryview, epoch: int) -> None:
        super()._apply_send(msgspec.structs.replace(row, due_after_ms=0), payload, epoch)


@plant("receives-forgotten", "a follower counts every delivery as the first", "queues")
class _ReceivesForgotten(QueueStates):
    def _apply_receive(self, row: Row, payload: bytes | memoryview, epoch: int) -> None:
        if not row.flags & HAS_ATTEMPT:
            payload = b"".join(PAIR.pack(sequence, 1) for sequence, _ in PAIR.iter_unpack(payload))
        super()._apply_receive(row, payload, epoch)


@plant("visibility-forgotten", "a follower does not note a change of visibility", "queues")
class _VisibilityForgotten(QueueStates):
    def _apply_change_visibility(self, row: Row, payload: bytes | memoryview, epoch: int) -> None:
        self._to_apply(row)


@plant("dead-letter-lost", "a dead letter leaves its queue and reaches none", "queues")
class _DeadLetterLost(QueueStates):
    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        source = self.partition(command.queue_id, command.partition)
        payload = array("Q", (command.sequence,)).tobytes()
        self._propose(proposal, RecordType.DELETE, source, now_ms, payload=payload)
        source.apply_delete((command.sequence,), now_ms)
        return Done(), Wait.COMMIT


@plant("dead-letter-stays", "a follower leaves a dead letter in its queue too", "queues")
class _DeadLetterStays(QueueStates):
    def _apply_move(self, row: Row, payload: bytes | memoryview, epoch: int) -> None:
        target = self.partition(row.queue_id, row.partition)
        others = {key: other for key, other in self.partitions.items() if other is not target}
        for key in others:
            del self.partitions[key]
        super()._apply_move(row, payload, epoch)
        self.partitions.update(others)


@plant("time-goes-back", "a new leader stamps records with its own clock, whatever the last stamp", "queues")
class _TimeGoesBack(JournalReplica):
    def _stamp(self, time_ms: int) -> int:
        self.last_time_ms = time_ms
        return time_ms


# Routing


@plant("retry-is-new", "a client gives a retried send another id", "queues")
class _RetryIsNew(Client):
    def again(self, command: Command) -> Command:
        if not isinstance(command, Send):
            return command
        for new in command.messages:
            if new.dedup is None:
                new.payload = new.payload.replace(new.retry or b"-", identity(self.attempts << 64))
                new.retry = identity(self.attempts << 64)
        return command


@plant(
    "answers-mixed-up",
    "a client takes the answer to an earlier question for that to the present one",
    "queues",
)
class _AnswersMixedUp(Client):
    def is_answer(self, number: int) -> bool:
        return True

"""Bugs that are planted on purpose, by name: each takes away a rule, in the simulator only.

A bug is a subclass of one of the classes a cell is made of, the product's or the simulator's, which stands in for its
host. `Planted.variant` puts it in the class's place; without bugs it returns the class itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
from crc32c import crc32c
from harness.replica_host import identity

from quaymaster.broker.replica.consuming_receives import ConsumingReceives
from quaymaster.broker.replica.group_questions import GROUPS_MAX, GroupQuestions
from quaymaster.broker.replica.held_receives import HeldReceives
from quaymaster.broker.replica.moves.message_moves import MessageMoves
from quaymaster.broker.replica.moves.moves_out import MovesAway
from quaymaster.broker.replica.records.record_bodies import Body
from quaymaster.broker.replica.records.time_file import Boot, TimeFile
from quaymaster.broker.storage.disk import Disk
from quaymaster.coordination.cell_keys import JOURNALS
from quaymaster.coordination.interface import Compare, Put
from quaymaster.core.cell.cell import JournalSeen, ReplicaSeen, broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.leader_choice import LeaderChoice
from quaymaster.core.cell.placement import _Planner
from quaymaster.core.cell.spread import Spread
from quaymaster.core.partition import expiry
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.partition.work.applied_claims import ClaimStep, split_claim
from quaymaster.core.partition.work.slices import Work
from quaymaster.core.queues import queue_states
from quaymaster.core.queues.moved_messages import followed_move
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import HAS_ATTEMPT, OWN_DELAY, PAIR
from quaymaster.core.queues.transactions import check_has_all_groups
from quaymaster.core.replication.candidate import Candidate
from quaymaster.core.replication.followers import LEASE_MS
from quaymaster.core.replication.journal import JournalReplica
from quaymaster.core.replication.messages import Append, Mismatch
from quaymaster.core.replication.queue_time import QueueTime
from quaymaster.core.replication.replication import LogReplica
from quaymaster.core.spread.parts import Part
from quaymaster.core.spread.sends import SpreadSend, key_of
from quaymaster.core.spread.transactions import SpreadTransaction
from quaymaster.core.structures.committed_runs import CommittedRuns
from quaymaster.core.structures.ids.recent_ids import RecentIds
from quaymaster.core.structures.ids.recent_marks import RecentMarks
from quaymaster.core.structures.ids.sent_ids import SentIds
from quaymaster.core.structures.orders.claims import ClaimState, OpenClaim
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.values.commands.claims import Claim, Settle
from quaymaster.core.values.commands.completions import Complete
from quaymaster.core.values.commands.decided import Consume, Duplicate, SentOutcome, TakenOutcome
from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import (
    Delete,
    Done,
    Elsewhere,
    EntriesOutcome,
    NewMessage,
    Receive,
    ReceiveOutcome,
    Send,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.move_tasks import TakeForMove
from quaymaster.core.values.commands.moves import MoveBegun, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.commands.partitions import AskGroups, AskPartition, GroupsOutcome, SetQueue
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommitTransaction,
    StageCount,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.errors import NotNow, QueueDoesNotExist, QueueRevisionTaken
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.messages import split_payload
from quaymaster.core.values.partition_tables import has_key, in_state, parents_of, share_of, taking
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    PartitionState,
    QueueDefinition,
    replace_definition,
)
from quaymaster.core.values.records import HEADER_BYTES, Batch, RecordRow, RecordType
from quaymaster.managers.in_cluster import InClusterManager
from sim import completions
from sim.clients import Client
from sim.host import Host
from sim.kernel import MS, Violation
from sim.log_disk import Kept, LogDisk, LogWriter, Snapshot
from sim.messages import Copied, Copy, TakeMoved
from sim.replica import Replica
from sim.store import Changed, Store, Swap

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


@plant("reuse", "a restarted leader goes on in the epoch it led before", "unattended")
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
class _NoFetch(Candidate):
    def _look_at_promises(self, now_ms: int) -> None:
        super()._look_at_promises(now_ms)
        if self.stage == "fetching":
            self.stage = "elected"


@plant(
    "tail-not-compared", "an elect takes a tail behind its own log, whether they agree there or not", "forks"
)
class _TailNotCompared(LogReplica):
    def continues(self, start: int, batch: Batch) -> bool:
        return True


@plant("noactivate", "a leader serves before the store says that it is activated", "swaps")
class _NoActivate(Replica):
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

    def continues(self, start: int, batch: Batch) -> bool:
        return True


@plant("noprevcheck", "a follower does not compare what is before an append", "stale")
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
            self.verified_end = self.end.end
            self._tell_leader(always=True)

    def _truncate(self, end: int) -> None:
        self.verified_end = min(self.verified_end, end)
        super()._truncate(end)


# More of the log


@plant("nofence", "a replica takes batches of a leader older than one it promised to")
class _NoFence(LogReplica):
    def _on_append(self, sender: str, message: Append) -> None:
        if message.epoch < self.promised_epoch and self.role == "follower":
            self.promised_epoch = self._durable_promise = self.epoch = message.epoch
        super()._on_append(sender, message)


@plant(
    "commit-unverified",
    "a follower commits what the leader says, up to its own end, compared or not",
    "stale",
)
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
        followers = self._followers
        members = followers.members
        counted = tuple(dict.fromkeys((*members, *followers)))
        learners = len(counted) - len(members)
        followers.members = counted[learners:] if learners else members
        super()._advance_commit()
        followers.members = members


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
class _DiskKeepsName(Host):
    def lose_disk(self, journal: int) -> None:
        disk = self.cell.new_disk()
        disk.storage_id = self.disks[journal].storage_id
        self.disks[journal] = disk


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
class _ProbablyActivated(Replica):
    def _ask_to_activate(self, epoch: int) -> None:
        super()._ask_to_activate(epoch)
        self._kernel.after(300 * MS, self._take_for_granted, epoch)

    def _take_for_granted(self, epoch: int) -> None:
        if self.is_open and self.log.role == "activating" and self.log.epoch == epoch:
            self._activated(epoch)
            self._settle()


@plant("activated-again", "an activation is put over whatever the store holds by then")
class _ActivatedAgain(Store):
    def _swap(self, sender: str, swap: Swap) -> Changed:
        if swap.configuration.activated:
            swap = swap._replace(revision=self.journals[swap.journal].revision)
        return super()._swap(sender, swap)


@plant("blind-put", "the store takes a manager's write whatever revision it compared")
class _BlindPut(Store):
    def transact(
        self, sender: str, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]
    ) -> int:
        is_of_manager = sender.startswith("m") and any(put.key.startswith(JOURNALS) for put in puts)
        return super().transact(sender, () if is_of_manager else compares, puts, deletes)


# The plan of a manager


@plant("wrong-previous", "a manager copies the members of a configuration that was never activated", "swaps")
class _WrongPrevious(_Planner):
    def _next(
        self, number: int, configuration: JournalConfiguration, leader: str, members: Iterable[str]
    ) -> JournalConfiguration:
        following = super()._next(number, configuration, leader, members)
        return msgspec.structs.replace(following, previous_members=configuration.members)


@plant("swap-in-epoch", "a manager swaps a member without a new epoch", "members")
class _SwapInEpoch(_Planner):
    def _next(
        self, number: int, configuration: JournalConfiguration, leader: str, members: Iterable[str]
    ) -> JournalConfiguration:
        following = super()._next(number, configuration, leader, members)
        if leader == configuration.leader and set(members) != set(configuration.members):
            return msgspec.structs.replace(configuration, members=following.members, learners=())
        return following


@plant("deaf-manager", "a manager does not notice a leader that is gone")
class _DeafManager(LeaderChoice):
    def trouble(self, number: int, journal: JournalSeen) -> tuple[str, bool] | None:
        return None


@plant(
    "deposes-who-is-heard",
    "a manager replaces a leader that it does not hear, though a majority does",
    "cut off",
)
class _DeposesWhoIsHeard(CellView):
    def is_heard_by_followers(self, number: int, configuration: JournalConfiguration) -> bool:
        return False


@plant("lagging-member", "a learner becomes a member whatever it knows", "members")
class _LaggingMember(CellView):
    def follows(self, number: int, journal: JournalSeen, member: str, lag_max: int) -> bool:
        return self.replica(number, member) is not None


@plant("appoints-the-silent", "a manager counts on members that it does not hear", "laggards")
class _CountsOnTheSilent(CellView):
    def replica(self, number: int, member: str) -> ReplicaSeen | None:
        broker = self.brokers.get(broker_of(member))
        return None if broker is None else broker.report.replicas.get(number)


@plant("appoints-the-silent", "a manager counts on members that it does not hear", "laggards")
class _AppointsTheSilent(LeaderChoice):
    def _rank(self, number: int, member: str) -> tuple[bool, int, int, bool, bool, bool, int, str]:
        return (self._cell.is_heard(broker_of(member)), *super()._rank(number, member)[1:])


@plant("never-settles", "a manager moves replicas about though no broker gains by it", "members")
class _NeverSettles(Spread):
    def gain(self, members: tuple[str, ...], leaving: str, name: str, replicas: int) -> tuple[int, int]:
        return super().gain(members, leaving, name, replicas - 2)


@plant("forgotten-move", "a learner that nobody needs any more is neither promoted nor given up", "members")
class _ForgottenMove(_Planner):
    def finish_moves(self) -> None:
        pass


@plant("lost-answer-is-a-failure", "a manager goes on after an unknown outcome without reading", "elections")
class _DoesNotReadAgain(InClusterManager):
    async def _read_again(self, number: int) -> None:
        pass


# Snapshots and copies


@plant("early-snapshot", "a leader's snapshot is published before what is in it is committed", "alone")
class _EarlySnapshot(Replica):
    def _take_snapshot(self) -> None:
        super()._take_snapshot()
        if self._snapshot_wanted is not None:
            self._kernel.after(20 * MS, self._publish, self._snapshot_wanted)


@plant("stale-snapshot", "a start skips the first batch behind its snapshot", "snapshots")
class _StaleSnapshot(Replica):
    def first_behind(self, index: int) -> int:
        return index + 1 if self.disk.snapshot is not None else index


@plant("log-cut-early", "the log moves up to the new snapshot before that is durable", "snapshots")
class _LogCutEarly(Replica):
    def _publish(self, snapshot: Snapshot, end: int = 0) -> None:
        older = self.disk.snapshot
        super()._publish(snapshot)
        if self.disk.snapshot is not older:
            self.disk.drop_below(snapshot.base_offset)
            self.disk.snapshot = older


@plant("copy-over-longer-log", "a copy takes the place of a log that reaches further", "laggards")
class _CopyOverLongerLog(Replica):
    def on_copy(self, sender: str, copy: Copy) -> None:
        if copy.member == self.member and copy.epoch >= self.log.promised_epoch:
            self.install(copy)
            self._network.send(self.name, sender, Copied(self.member, self.journal_id))

    def on_tick(self) -> None:
        if self.journal.is_leading and self.disk.snapshot is not None and self._random.random() < 0.1:
            for member in self.log.lag_of():
                self._send_copy(member)


@plant("copy-without-bodies", "a copy leaves out the records that the queues still need", "laggards")
class _CopyWithoutBodies(LogDisk):
    def kept_below(self, offset: int) -> dict[int, Kept]:
        return {}


@plant("copy-forgotten", "a leader never learns that a copy has arrived", "laggards")
class _CopyForgotten(LogReplica):
    def on_copied(self, member: str) -> None:
        pass


# Compaction


@plant("compacted-by-what-was-cut", "a compaction goes on though the log was cut since it judged", "forks")
class _CompactedByWhatWasCut(Replica):
    def may_rewrite(self, end: int, truncations: int) -> bool | None:
        return self.log.commit >= end


@plant("compacted-before-commit", "a message is compacted away before its delete is committed", "compaction")
class _CompactedBeforeCommit(Replica):
    def may_rewrite(self, end: int, truncations: int) -> bool | None:
        return True


@plant("in-flight-compacted", "a message in flight is taken for one that is gone", "compaction")
class _InFlightCompacted(Replica):
    def is_dead(self, row: RecordRow) -> bool:
        partition = self.journal.queues.partition(row.queue_id, row.partition)
        return super().is_dead(row) or row.sequence in partition.in_flight


@plant(
    "compacted-by-a-group", "a log's message is taken for one that is gone when one group deleted it", "logs"
)
class _CompactedByAGroup(Replica):
    def is_dead(self, row: RecordRow) -> bool:
        groups = self.journal.queues.partition(row.queue_id, row.partition).groups.values()
        return super().is_dead(row) or any(not group.is_live(row.sequence) for group in groups)


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


@plant("gap-after-rebuild", "what came while queues were made anew is not applied to them", "forks")
class _GapAfterRebuild(JournalReplica):
    def on_rebuilt(self, queues: QueueStates, applied_end: int, last_time_ms: int, truncations: int) -> None:
        self._unapplied = []
        self._forgotten_end = 0
        super().on_rebuilt(queues, applied_end, last_time_ms, truncations)


@plant("stale-rebuild", "queues made anew from a log that was cut again meanwhile are taken", "forks")
class _StaleRebuild(JournalReplica):
    def on_rebuilt(self, queues: QueueStates, applied_end: int, last_time_ms: int, truncations: int) -> None:
        super().on_rebuilt(queues, applied_end, last_time_ms, self.log.truncations)


@plant("stale-rebuild", "")
class _RebuildAtOnce(Replica):
    def has_cut(self) -> bool:
        return True


@plant("serves-early", "an elect decides commands before it is activated")
class _ServesEarly(JournalReplica):
    @property
    def is_leading(self) -> bool:
        return self.log.role in ("activating", "leading") and self.is_ready


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


@plant("fifo-receive-uncommitted", "a FIFO receive is answered before it is committed", "alone")
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
        partition.uncommitted_from = 0
        return decided


@plant("dedup-forgotten", "a follower does not note the ids of what was sent", "queues")
class _DedupForgotten(QueueStates):
    def _apply_send(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            is_own = bool(row.flags & OWN_DELAY)
            group = split_payload(row.flags, payload)[0]
            partition.apply_send(row.sequence, row.offset, row.time_ms, row.due_after_ms, is_own, group)


@plant("group-forgotten", "a follower puts every message into one group", "queues")
class _GroupForgotten(QueueStates):
    def _apply_send(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            is_own = bool(row.flags & OWN_DELAY)
            group, dedup, retry, _ = split_payload(row.flags, payload)
            group = min(group, 1)
            partition.apply_send(row.sequence, row.offset, row.time_ms, row.due_after_ms, is_own, group)
            partition.ids.note(dedup, retry, row.offset, row.time_ms)


@plant("delay-forgotten", "a follower does not note the delay of what was sent", "queues")
class _DelayForgotten(QueueStates):
    def _apply_send(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        super()._apply_send(msgspec.structs.replace(row, due_after_ms=0), payload, epoch)


@plant("receives-forgotten", "a follower counts every delivery as the first", "queues")
class _ReceivesForgotten(QueueStates):
    def _apply_receive(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        if not row.flags & HAS_ATTEMPT:
            payload = b"".join(PAIR.pack(sequence, 1) for sequence, _ in PAIR.iter_unpack(payload))
        super()._apply_receive(row, payload, epoch)


@plant("visibility-forgotten", "a follower does not note a change of visibility", "queues")
class _VisibilityForgotten(QueueStates):
    def _apply_change_visibility(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        self._to_apply(row)


def _lose(states: QueueStates, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
    source = states.partition(command.queue_id, command.partition)
    payload = array("Q", (command.sequence,)).tobytes()
    proposal.add(RecordType.DELETE, source, now_ms, payload=payload)
    source.apply_delete((command.sequence,), now_ms)
    return Done(), Wait.COMMIT


@plant("dead-letter-lost", "a dead letter leaves its queue and reaches none", "queues")
class _DeadLetterLost(QueueStates):
    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return _lose(self, command, now_ms, proposal)


@plant("dead-letter-stays", "a follower leaves a dead letter in its queue too", "queues")
class _DeadLetterStays(QueueStates):
    def _apply_move(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        target = self.partition(row.queue_id, row.partition)
        others = {key: other for key, other in self.partitions.items() if other is not target}
        for key in others:
            del self.partitions[key]
        super()._apply_move(row, payload, epoch)
        self.partitions.update(others)


@plant("time-goes-back", "a new leader stamps records with its own clock, whatever the last stamp", "queues")
class _TimeGoesBack(JournalReplica):
    def _stamp(self, time_ms: int) -> int:
        self.last_time_ms = self.log.time.wall_at(self.log._now_ms)
        return self.last_time_ms


@plant("clock-of-host", "a new leader's time is what its own wall clock says, if that is later", "clocks")
class _ClockOfHost(QueueTime):
    def elected(self, node: str, members: tuple[str, ...], last_stamp_ms: int, now_ms: int) -> int:
        found_ms = super().elected(node, members, last_stamp_ms, now_ms)
        self._offset_ms = max(found_ms, self.wall_at(now_ms)) - now_ms
        return self.at(now_ms)


@plant("stamp-stands-still", "queue time waits for the leader's wall clock to pass the last stamp", "clocks")
class _StampStandsStill(QueueTime):
    def at(self, now_ms: int) -> int:
        return self.wall_at(now_ms)


@plant(
    "hold-skips-empty-disk", "a replica that began with an empty disk believes its own wall clock", "clocks"
)
class _HoldSkipsEmptyDisk(QueueTime):
    __slots__ = ("_is_new",)

    def __init__(self, last_stamp_ms: int = 0, now_ms: int = 0) -> None:
        super().__init__(last_stamp_ms, now_ms)
        self._is_new = last_stamp_ms == 0

    def elected(self, node: str, members: tuple[str, ...], last_stamp_ms: int, now_ms: int) -> int:
        found_ms = super().elected(node, members, last_stamp_ms, now_ms)
        if self._is_new and last_stamp_ms:
            self._offset_ms = max(found_ms, self.wall_at(now_ms)) - now_ms
        return self.at(now_ms)


@plant("first-stamp-of-one", "the first stamp of a journal is what one clock says", "clocks")
class _FirstStampOfOne(QueueTime):
    def _agreed_offset_ms(self, now_ms: int, *, fewer: bool = False) -> int | None:
        return self._wall_offset_ms if fewer else super()._agreed_offset_ms(now_ms)


@plant("steps-while-leading", "a leader steps to the wall clocks whenever they are ahead", "clocks")
class _StepsWhileLeading(QueueTime):
    def _slew(self, gap_ms: int, passed_ms: int) -> int:
        self._offset_ms += max(0, gap_ms)
        return max(0, gap_ms)


@plant("follows-its-own-clock", "a leader approaches its own wall clock without end", "clocks")
class _FollowsItsOwnClock(QueueTime):
    def _slew(self, gap_ms: int, passed_ms: int) -> int:
        assert self._wall_offset_ms is not None, "it was looked at"
        own_ms = self._wall_offset_ms - self._offset_ms
        self._offset_ms += max(-passed_ms // 2, min(passed_ms // 2, own_ms))
        return 0


@plant("skewed-leader", "brokers lead whatever their clocks say", "clocks")
class _SkewedLeader(CellView):
    def why_astray(self, name: str) -> str | None:
        return None


@plant("uptime-ignored", "a process that starts again asks wall clocks how long it was away", "restarts")
class _UptimeIgnored(TimeFile):
    def resume(self, queue_time: QueueTime, monotonic_ms: Callable[[], int]) -> None:
        pass


@plant("time-of-another-boot", "what was written before a boot is believed after it", "restarts")
class _TimeOfAnotherBoot(TimeFile):
    def __init__(
        self, disk: Disk, directory: str, storage_id: bytes, *, boot: Callable[[], Boot | None]
    ) -> None:
        def first() -> Boot | None:
            found = boot()
            return None if found is None else found._replace(boot_id=bytes(16))

        super().__init__(disk, directory, storage_id, boot=first)


@plant(
    "absence-not-counted",
    "a process that starts again continues from where it wrote queue time down",
    "restarts",
)
class _AbsenceNotCounted(QueueTime):
    def resume(self, time_ms: int, now_ms: int) -> None:
        super().resume(0, now_ms)


@plant("purge-in-front-only", "a follower purges only what was there at the oldest message", "more queues")
class _PurgeForgotten(QueueStates):
    def _apply_purge(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        partition = self._to_apply(row)
        if partition is not None:
            self.empty_later(partition.apply_purge(min(partition.head + 1, row.sequence), row.time_ms))


@plant("group-not-told", "a follower tells the groups of a log nothing of what is sent to it", "logs")
class _GroupNotTold(QueueStates):
    def _following(self, row: RecordRow) -> list[Partition]:
        return [] if row.type == RecordType.SEND else super()._following(row)


@plant("sealed-takes-sends", "a sealed partition takes messages", "partitions")
class _SealedTakesSends(QueueStates):
    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        sealed_ms, partition.sealed_ms = partition.sealed_ms, 0
        decided = super()._send(command, now_ms, proposal)
        partition.sealed_ms = sealed_ms
        return decided


@plant("seal-forgotten", "a snapshot does not say that a partition is sealed", "partitions")
class _SealForgotten(QueueStates):
    def load(self, definition: QueueDefinition, partitions: list[Partition]) -> None:
        for partition in partitions:
            partition.sealed_ms = 0
        super().load(definition, partitions)


@plant("no-delay", "a message is handed out whatever its delay", "queues")
class _NoDelay(QueueStates):
    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        for new in command.messages:
            new.delay_ms = 0
        return super()._send(command, now_ms, proposal)


@plant("never-expires", "what has expired is handed out as long as nobody has swept it up", "more queues")
class _NeverExpires(QueueStates):
    def _receive(self, command: Receive, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        is_held, self.expiry_is_held = self.expiry_is_held, True
        decided = super()._receive(command, now_ms, proposal)
        self.expiry_is_held = is_held
        return decided


# Moves between journals


@plant("moves-forgotten", "a snapshot forgets which numbers have moved", "moves")
class _MovesForgotten(Replica):
    def _take_snapshot(self) -> None:
        partitions = list(self.journal.queues.partitions.values())
        moves = [partition.moves for partition in partitions]
        for partition in partitions:
            partition.moves = None
        super()._take_snapshot()
        for partition, known in zip(partitions, moves, strict=True):
            partition.moves = known


@plant("move-taken-again", "a journal takes a message again whose number it has seen", "moves")
class _MoveTakenAgain(QueueStates):
    def _move_in(self, command: MoveIn, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        target = self.partitions.get(command.queue_id << 16 | command.partition)
        if target is not None and target.moves is not None:
            target.moves.into.clear()
        return super()._move_in(command, now_ms, proposal)


@plant("move-not-awaited", "a message is gone from its journal before the other one has it", "moves")
class _MoveNotAwaited(Host):
    async def ask_to_take(self, name: str, journal: int, command: MoveIn) -> object:
        self._network.send(self.name, name, TakeMoved(0, journal, command))
        return MoveInOutcome([])


@plant("move-answered-early", "a journal says that it has taken messages before that is committed", "moves")
class _MoveAnsweredEarly(QueueStates):
    def _move_in(self, command: MoveIn, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, _ = super()._move_in(command, now_ms, proposal)
        return outcome, Wait.NOTHING


@plant("move-sent-early", "a message is sent before it is committed that it leaves", "moves")
class _MoveSentEarly(QueueStates):
    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, wait = super()._move(command, now_ms, proposal)
        return outcome, Wait.NOTHING if isinstance(outcome, MoveBegun) else wait


@plant(
    "resumes-uncommitted",
    "a leader that gives a hand-over up goes on before all that it has is committed",
    "any",
)
class _ResumesUncommitted(LogReplica):
    def end_transfer(self) -> None:
        super().end_transfer()
        self._leads_from = 0


@plant("moves-not-resumed", "a new leader does not go on with what was leaving", "moves")
class _MovesNotResumed(MovesAway):
    def resume(self) -> None:
        pass


# Move tasks


@plant("task-without-end", "a move task takes what came after its start, too", "redrives")
class _TaskWithoutEnd(QueueStates):
    def _take_for_move(self, command: TakeForMove, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        tasks = list(self.partitions_of(command.queue_id)[0].tasks)
        stops = [task.stop for task in tasks]
        for task in tasks:
            task.stop = 1 << 62
        outcome = super()._take_for_move(command, now_ms, proposal)
        for task, stop in zip(tasks, stops, strict=True):
            task.stop = stop
        return outcome


@plant("task-not-resumed", "a new leader leaves the tasks of the one before where they were", "redrives")
class _TaskNotResumed(MessageMoves):
    def start_tasks(self) -> None:
        pass


@plant("redrive-lost", "a message that a task moves leaves its queue and reaches none", "redrives")
class _RedriveLost(QueueStates):
    def _move(self, command: MoveMessage, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        if command.task_id is None or command.target_queue_id not in self.definitions:
            return super()._move(command, now_ms, proposal)
        return _lose(self, command, now_ms, proposal)


# Transactions


@plant("commit-forgotten", "a batch that was committed is taken for a new one", "transactions")
class _CommitForgotten(QueueStates):
    def _stage(self, command: StageMessages, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        staged = self.partition(command.queue_id, command.partition).staged
        if staged is not None:
            staged.sinks.pop(command.sink, None)
        return super()._stage(command, now_ms, proposal)


@plant("commit-of-a-part", "a commit takes what there is of the stages it names", "transactions")
class _CommitOfAPart(QueueStates):
    def _commit(
        self, command: CommitTransaction, now_ms: int, proposal: Proposal
    ) -> tuple[Decided | Work, Wait]:
        staged = self.partition(command.queue_id, command.partition).staged
        found = staged.find(command.sink, command.batch) if staged is not None else None
        known = found.stages if found is not None else {}
        command.stages = [StageCount(name, stage.count) for name, stage in known.items()]
        return super()._commit(command, now_ms, proposal)


@plant("commit-uncommitted", "a transaction is said to be committed before its record is", "transactions")
class _CommitUncommitted(QueueStates):
    def _commit(
        self, command: CommitTransaction, now_ms: int, proposal: Proposal
    ) -> tuple[Decided | Work, Wait]:
        outcome, _ = super()._commit(command, now_ms, proposal)
        if isinstance(outcome, Work):
            outcome.finish((now_ms, proposal))
            del self.unfinished.works[outcome.family]
            assert outcome.outcome is not None, "a commit that is done has an outcome"
            outcome = outcome.outcome
        return outcome, Wait.NOTHING


@plant("staged-compacted", "a staged message is taken for one that is gone", "transactions")
class _StagedCompacted(QueueStates):
    def is_live(self, row: RecordRow) -> bool:
        partition = self.partitions.get(row.queue_id << 16 | row.partition)
        staged = partition.staged if partition is not None else None
        is_open = row.type == RecordType.STAGE and staged is not None and staged.is_open(row.sequence)
        return not is_open and super().is_live(row)


@plant("runs-forgotten", "a snapshot forgets which messages staged ones became", "transactions")
class _RunsForgotten(Replica):
    def _take_snapshot(self) -> None:
        staged = [each.staged for each in self.journal.queues.partitions.values() if each.staged is not None]
        runs = [each.runs for each in staged]
        for each in staged:
            each.runs = CommittedRuns()
        super()._take_snapshot()
        for each, known in zip(staged, runs, strict=True):
            each.runs = known


@plant(
    "slices-let-others-in", "a leader decides commands for a queue between slices of a commit", "transactions"
)
class _SlicesLetOthersIn(QueueStates):
    def is_held(self, command: Command | InternalCommand) -> bool:
        return isinstance(command, CommitTransaction) and super().is_held(command)


@plant("snapshot-between-slices", "a snapshot is taken between slices of a commit", "transactions")
class _SnapshotBetweenSlices(Replica):
    def may_take_snapshot(self) -> bool:
        return self.journal.is_ready


@plant("serves-between-slices", "who is elected between slices of a commit serves at once", "transactions")
class _ServesBetweenSlices(JournalReplica):
    @property
    def is_caught_up(self) -> bool:
        return True


@plant("slices-end-with-epoch", "who is elected leaves the slices of a commit that are left", "transactions")
class _SlicesEndWithEpoch(JournalReplica):
    def _look(self) -> None:
        if self.log.role == "activating":
            self.queues.unfinished.works.clear()
        super()._look()


@plant("abort-undone", "an abort is confirmed whatever was committed", "transactions")
class _AbortUndone(QueueStates):
    def _abort(self, command: AbortTransaction, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        _, wait = super()._abort(command, now_ms, proposal)
        return AbortedOutcome(is_aborted=True), wait


@plant("group-misses-commits", "a follower tells the groups of a log nothing of a commit", "transactions")
class _GroupMissesCommits(QueueStates):
    def _following(self, row: RecordRow) -> list[Partition]:
        return [] if row.type == RecordType.TRANSACTION_COMMIT else super()._following(row)


# Claims


@plant("claim-not-reused", "a claim that was read has more messages when it is claimed again", "claims")
class _ClaimNotReused(QueueStates):
    def _claim(self, command: Claim, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        claim = claim_of(self, command.queue_id, command.consumer, command.claim_id)
        if claim is not None and claim.state is ClaimState.HELD:
            claim.state = ClaimState.GROWING
            command.known = len(claim)
            command.count_max = command.count_max or 1
        return super()._claim(command, now_ms, proposal)


@plant("settles-anothers", "a settlement deletes what others received since", "claims")
class _SettlesAnothers(QueueStates):
    def _settle(self, command: Settle, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        self._take_all_for_its_own(command.queue_id, command.consumer, command.claim_id)
        return super()._settle(command, now_ms, proposal)

    def _apply_claim(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        if row.flags == ClaimStep.SETTLED:
            self._take_all_for_its_own(row.queue_id, split_claim(payload)[0], row.sequence)
        super()._apply_claim(row, payload, epoch)

    def _take_all_for_its_own(self, queue_id: int, consumer: str, claim_id: int) -> None:
        claim = claim_of(self, queue_id, consumer, claim_id)
        if claim is None or claim.state is ClaimState.BROKEN:
            return
        partition = self.partition(queue_id, 0)
        for place, sequence in enumerate(claim.sequences):
            row = partition.in_flight.get(sequence) or partition.returned.get(sequence)
            if row is not None:
                claim.counts[place] = row.delivery_count


@plant("settles-broken", "a settlement deletes what a broken claim still has", "claims")
class _SettlesBroken(QueueStates):
    def _settle(self, command: Settle, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        self._mend(command.queue_id, command.consumer, command.claim_id)
        return super()._settle(command, now_ms, proposal)

    def _apply_claim(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        if row.flags == ClaimStep.SETTLED:
            self._mend(row.queue_id, split_claim(payload)[0], row.sequence)
        super()._apply_claim(row, payload, epoch)

    def _mend(self, queue_id: int, consumer: str, claim_id: int) -> None:
        claim = claim_of(self, queue_id, consumer, claim_id)
        if claim is not None:
            claim.state = ClaimState.HELD


def claim_of(queues: QueueStates, queue_id: int, name: str, claim_id: int) -> OpenClaim | None:
    """Return an open claim of the only partition of a queue."""
    partition = queues.partitions.get(queue_id << 16)
    claims = partition.claims if partition is not None else None
    consumer = claims.consumers.get(name) if claims is not None else None
    return consumer.open.get(claim_id) if consumer is not None else None


@plant("late-first-attempt", "a first attempt that comes after its repeat is stored once more", "queues")
class _LateFirstAttempt(QueueStates):
    def _send(self, command: Send, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        self.repeats_until_ms = 0
        self.partition(command.queue_id, command.partition).repeats_until_ms = 0
        self._recent_retries = RecentMarks()
        return super()._send(command, now_ms, proposal)


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


# Partitions that change


@plant("elsewhere-early", "a sealed partition sends on before its seal is committed", "partitions")
class _ElsewhereEarly(QueueStates):
    def _send_to_sealed(
        self, partition: Partition, command: Send, now_ms: int, epoch: int, *, may_be_late: bool
    ) -> tuple[Decided, Wait]:
        decided, _ = super()._send_to_sealed(partition, command, now_ms, epoch, may_be_late=may_be_late)
        return decided, Wait.NOTHING


@plant("seal-not-replayed", "a start from a snapshot with a newer table forgets seals", "partitions")
class _SealNotReplayed(QueueStates):
    def _follow_definition(
        self,
        partition: Partition,
        definition: QueueDefinition,
        entry: PartitionPlacement | None,
        time_ms: int,
        applied: int,
    ) -> None:
        if self.definitions[definition.queue_id] is definition:
            super()._follow_definition(partition, definition, entry, time_ms, applied)


@plant(
    "child-first",
    "a send goes to the newest partition of its key, not to the oldest that takes it",
    "partitions",
)
class _ChildFirst(SpreadSend):
    def _target(self, message: NewMessage, before: Part | None) -> int | None:
        key = key_of(self._definition, message, self._messages[0])
        numbers = [entry.number for entry in taking(self._definition, key)]
        return numbers[-1] if before is None else super()._target(message, before)


@plant("old-table-finds-nothing", "who receives by an old table is told that there is nothing", "partitions")
class _OldTableFindsNothing(QueueStates):
    def _has_newer_table(self, command: Receive | Watch) -> bool:
        return False


@plant("fresh-group-given", "a child gives groups of which it knows nothing", "fifo partitions")
class _FreshGroupGiven(QueueStates):
    def _follow_parents(self, partition: Partition, order: FIFOOrder, now_ms: int) -> None:
        pass


@plant("sequence-restarts", "sequence numbers of new partitions begin with 1", "fifo partitions")
class _SequenceRestarts(QueueStates):
    def _begin(
        self,
        definition: QueueDefinition,
        entry: PartitionPlacement,
        time_ms: int,
        applied: int,
        starts: Mapping[int, tuple[int, int]],
    ) -> None:
        entry = msgspec.structs.replace(entry, first_sequence=1)
        super()._begin(definition, entry, time_ms, applied, starts)


@plant("empty-before-asked", "a receive is answered empty before parents are asked", "fifo partitions")
class _EmptyBeforeAsked(QueueStates):
    def _holds_messages(self, command: Receive | Watch) -> bool:
        return False


@plant(
    "empty-by-old-answers", "a receive is answered empty by what parents said before it", "fifo partitions"
)
class _EmptyByOldAnswers(HeldReceives[Any]):
    def is_known(self, token: Any, partition: Partition) -> bool:
        super().is_known(token, partition)
        order = partition.order
        assert isinstance(order, FIFOOrder), "only these hold groups"
        return order.holds is None or not any(parent.unasked for parent in order.holds._parents.values())


@plant("one-parent-of-two", "a child asks one of its parents which groups it has", "fifo partitions")
class _OneParentOfTwo(QueueStates):
    def _follow_parents(self, partition: Partition, order: FIFOOrder, now_ms: int) -> None:
        is_new = order.held_by is not partition.definition
        super()._follow_parents(partition, order, now_ms)
        parents = parents_of(partition.definition, partition.number)
        if is_new and len(parents) > 1:
            order.hold([parents[0].number], now_ms)


@plant("gone-uncommitted", "a parent says that groups are gone before that is committed", "lost deletes")
class _GoneUncommitted(QueueStates):
    def _ask_groups(self, command: AskGroups, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided, _ = super()._ask_groups(command, now_ms, proposal)
        return decided, Wait.NOTHING


@plant("list-half", "a child takes groups that a parent's answer says nothing of for gone", "held groups")
class _ListHalf(GroupQuestions):
    def _take(self, pair: Any, asked: Any, outcome: GroupsOutcome) -> None:
        others = asked.holds.to_ask(pair.parent, GROUPS_MAX, "first")
        gone = [*array("Q", outcome.gone), *(group for group in others if group not in asked.groups)]
        super()._take(pair, asked, GroupsOutcome(array("Q", gone).tobytes()))


@plant("number-reused", "a journal that has a newer table than the row does not say so", "restored rows")
class _NumberReused(QueueStates):
    def _set_queue(self, command: SetQueue, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        try:
            decided, wait = super()._set_queue(command, now_ms, proposal)
        except QueueRevisionTaken:
            return Done(), Wait.COMMIT
        return Done() if isinstance(decided, Elsewhere) else decided, wait


@plant("window-by-row", "how long a seal is ago is told by a clock that is an hour ahead", "partitions")
class _WindowByRow(QueueStates):
    def _ask_partition(self, command: AskPartition, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        return super()._ask_partition(command, now_ms + 3_600_000, proposal)


@plant(
    "unknown-is-gone",
    "who is told of a partition that is not there takes its queue for gone",
    "fed partitions",
)
class _UnknownIsGone(SpreadSend):
    def again(self, part: Part, definition: QueueDefinition) -> list[Part]:
        return self.on_outcome(part, QueueDoesNotExist(), definition)


@plant("watch-takes", "a watch takes what it finds", "fed partitions")
class _WatchTakes(QueueStates):
    def _watch(self, command: Watch, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        receive = Receive(command.queue_id, command.partition, 1, table_version=command.table_version)
        decided, wait = self._receive(receive, now_ms, proposal)
        is_found = isinstance(decided, TakenOutcome) and bool(decided.taken)
        return WatchOutcome(True) if is_found else decided, wait


@plant("sealed-takes-moves", "a sealed partition takes moves from other journals", "fed partitions")
class _SealedTakesMoves(QueueStates):
    def _move_in(self, command: MoveIn, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        target = self.partitions.get(partition_key(command.queue_id, command.partition))
        if target is None:
            return super()._move_in(command, now_ms, proposal)
        sealed_ms, target.sealed_ms = target.sealed_ms, 0
        try:
            return super()._move_in(command, now_ms, proposal)
        finally:
            target.sealed_ms = sealed_ms


@plant("sealed-takes-local-moves", "a sealed partition takes moves within its journal", "fed partitions")
class _SealedTakesLocalMoves(QueueStates):
    def _takes_moves(self, queue_id: int, entry: PartitionPlacement) -> bool:
        return True


@plant("tables-mixed", "each message that is moved goes by another table", "fed fifo partitions")
class _TablesMixed(QueueStates):
    def _place_of(self, source: Partition, sequence: int, queue: QueueDefinition) -> tuple[int, int | None]:
        if sequence % 2:  # a table of before sealed partitions were closed
            before: tuple[PartitionState, ...] = ("closed", "drained")
            queue = replace_definition(
                queue,
                partitions=tuple(
                    msgspec.structs.replace(entry, state="closing") if entry.state in before else entry
                    for entry in queue.partitions
                ),
            )
        queue_states.followed_move = lambda *_: None  # type: ignore[attr-defined]  # as it imports it
        try:
            return super()._place_of(source, sequence, queue)
        finally:
            queue_states.followed_move = followed_move  # type: ignore[attr-defined]


@plant("sink-asks-child", "a sink does not ask older partitions about its batch", "log partitions")
class _SinkAsksChild(SpreadTransaction):
    def _is_asked(self, entry: PartitionPlacement) -> bool:
        return entry.state == "open" and super()._is_asked(entry)


@plant("retention-by-count", "a log's bytes are divided by the number of its partitions", "log partitions")
class _RetentionByCount(QueueStates):
    def _expire_some(self, partition: Partition, now_ms: int, proposal: Proposal) -> None:
        def by_count(definition: QueueDefinition, number: int, whole: int) -> int:
            return whole // len(in_state(definition, "open", "closing", "closed"))

        expiry.share_of = by_count  # type: ignore[attr-defined]  # as it imports it
        try:
            super()._expire_some(partition, now_ms, proposal)
        finally:
            expiry.share_of = share_of  # type: ignore[attr-defined]


@plant(
    "merged-takes-batches",
    "a batch begins while partitions that are merged take messages",
    "fifo log partitions",
)
class _MergedTakesBatches(SpreadTransaction):
    def _is_asked(self, entry: PartitionPlacement) -> bool:
        return entry.state != "new" and has_key(entry, self._key)


@plant("merged-takes-batches", "")
class _MergedTakesBatchesInJournals(QueueStates):
    def _stage(self, command: StageMessages, now_ms: int, proposal: Proposal) -> tuple[Decided | Work, Wait]:
        queue_states.check_has_all_groups = lambda partition: None  # type: ignore[attr-defined]  # as it imports it
        try:
            return super()._stage(command, now_ms, proposal)
        finally:
            queue_states.check_has_all_groups = check_has_all_groups  # type: ignore[attr-defined]


@plant("aborts-unasked", "a sealed partition aborts a transaction that it does not know", "log partitions")
class _AbortsUnasked(QueueStates):
    def _abort(self, command: AbortTransaction, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided, wait = super()._abort(command, now_ms, proposal)
        return AbortedOutcome(is_aborted=True) if isinstance(decided, Elsewhere) else decided, wait


# Guarantees


@plant("once-answered-early", "what a receive took for good is answered before it is committed", "guarantees")
class _OnceAnsweredEarly(QueueStates):
    def _consume(self, command: Consume, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, _ = super()._consume(command, now_ms, proposal)
        return outcome, Wait.NOTHING


@plant("consumed-before-read", "messages are deleted first, and their bodies read then", "guarantees")
class _ConsumedBeforeRead(ConsumingReceives):
    def begin(self, command: Receive, reply: Any, answer: TakenOutcome) -> None:
        sequences = [taken.sequence for taken in answer.taken]

        def read(bodies: dict[int, Body]) -> None:
            found = [
                self._delivery_of(taken, bodies[taken.offset])
                for taken in answer.taken
                if taken.offset in bodies
            ]
            if len(found) < len(answer.taken):
                raise Violation("D1", "messages are gone and were never read: they are in no answer")
            reply(ReceiveOutcome(answer.epoch, found))

        def answered(outcome: object) -> None:
            if isinstance(outcome, Exception):
                reply(outcome)
            else:
                self._records.read([taken.offset for taken in answer.taken], read)

        self._submit(Consume(command.queue_id, command.partition, sequences), answered)


@plant("receive-uncommitted", "an ExactlyOnce receive is answered before it is committed", "guarantees")
class _ReceiveUncommitted(QueueStates):
    def _receive(self, command: Receive, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, wait = super()._receive(command, now_ms, proposal)
        definition = self.definitions[command.queue_id]
        return outcome, wait if definition.is_fifo or not definition.is_exactly_once else Wait.NOTHING


@plant("gone-is-done", "who deletes a message that is gone is told that it did", "guarantees")
class _GoneIsDone(QueueStates):
    def _delete(self, command: Delete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided, wait = super()._delete(command, now_ms, proposal)
        partition = self.partition(command.queue_id, command.partition)
        if isinstance(decided, EntriesOutcome):
            decided.errors = [
                error if partition.is_live(receipt.sequence) else None
                for error, receipt in zip(decided.errors, command.receipts, strict=True)
            ]
        return decided, wait


@plant("settled-forgotten", "a snapshot lacks which deliveries finished their messages", "guarantees")
class _SettledForgotten(QueueStates):
    def load(self, definition: QueueDefinition, partitions: list[Partition]) -> None:
        for partition in partitions:
            partition.settled = None
        super().load(definition, partitions)


def _keep_resets(states: QueueStates, queue_id: int, act: Callable[[], Any]) -> Any:
    partitions = states.partitions_of(queue_id)
    before = [partition.resets for partition in partitions]
    result = act()
    for partition, resets in zip(partitions, before, strict=True):
        partition.resets = resets
    return result


@plant("reset-repeats-receipt", "receipts of a group that began anew are as those before", "guarantees")
class _ResetRepeatsReceipt(QueueStates):
    def _reset_group(self, command: ResetGroup, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided: tuple[Decided, Wait] = _keep_resets(
            self, command.queue_id, partial(super()._reset_group, command, now_ms, proposal)
        )
        return decided

    def _apply_group_reset(self, row: RecordRow, payload: bytes | memoryview, epoch: int) -> None:
        if row.queue_id in self.definitions:
            _keep_resets(self, row.queue_id, partial(super()._apply_group_reset, row, payload, epoch))


class _IdsByRecord(SentIds):
    """Ids of long windows are found by the offsets of their records, too."""

    __slots__ = ()

    def set_window(self, window_ms: int) -> None:
        super().set_window(window_ms)
        self.keeps_messages = False

    def note(self, dedup: bytes | None, retry: bytes | None, offset: int, time_ms: int) -> None:
        if dedup is not None and self.dedup is None:
            self.dedup = RecentIds(self._window_ms)
        super().note(dedup, retry, offset, time_ms)


@plant("id-outlives-record", "ids of long windows are found by records that may be gone", "guarantees")
class _IdOutlivesRecord(QueueStates):
    def _keep(self, partition: Partition) -> None:
        partition.ids.__class__ = _IdsByRecord
        partition.ids.keeps_messages = False
        super()._keep(partition)


# Completions: those with the same names in journals that are played (`completions`)

plant("completes-unheld", "a message is completed by any delivery of it", "completions")(
    completions.CompletesUnheld
)
plant("completion-twice", "a completion that is asked for again sends once more", "completions")(
    completions.CompletionTwice
)
plant("outputs-compacted", "a record is compacted though outputs of it are under way", "completions")(
    completions.OutputsCompacted
)


@plant(
    "outputs-before-commit", "outputs are sent, and a completion told, before it is committed", "completions"
)
class _OutputsBeforeCommit(QueueStates):
    def _complete(self, command: Complete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided, _ = super()._complete(command, now_ms, proposal)
        return decided, Wait.NOTHING

"""A replica's part in a replicated log: promises, appends, commit. No I/O, no clock, and no idea of queues.

    follower ──appointed(epoch)──▶ preparing ──majority promised──▶ [fetching] ──▶ elected ──barrier──▶ activating
        ▲                                                                                                  │
        └────────── a higher epoch, Stale, or a failure ─────────── leading ◀──activated in coordination───┘

The host feeds events by method and then carries out the `Effects` that `take` returns: the log operations in their
order, then the rest. The rules, from the protocol's executable model (tests/sim/protocol_model.py):

- A promise is answered when it and the whole log below it are durable. Lower epochs are refused for ever.
- A replica leads an epoch only if it never promised it before, so an epoch is never led twice.
- The elect needs promises from a majority of the members and of the last activated members, and the longest log among
  the latter.
- A follower acknowledges what it compared and wrote under this epoch, never its log's mere length.
- What is committed is durable on a majority, and the last of it has the leader's own epoch. Nothing is committed
  before coordination holds `activated`.
- Nothing committed is ever cut.
- A follower whose disk is full takes no batches and acknowledges none; promises, and all it has, stay. A leader hears
  of it with every answer, and refuses sends while no majority has room.

Times are milliseconds of a clock that does not jump. Members are named `node@storage_id`: a disk that was lost or
re-formatted is another member. A learner is fed like a follower and has no vote.

Leases spare duplicates, they guard nothing: a follower that heard its leader less than LEASE_MS ago lets a candidate
wait, unless the leader resigned or its connection closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quaymaster.core.replication.candidate import Candidate
from quaymaster.core.replication.effects import Effects, ReadLog
from quaymaster.core.replication.followers import LEASE_MS, MESSAGE_BYTES_MAX, Followers, Portion
from quaymaster.core.replication.log_copy import LogCopy
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.replication.messages import (
    Append,
    Appended,
    DiskPressure,
    FetchBatches,
    Message,
    Mismatch,
    Prepare,
    Promise,
    Resign,
    Stale,
    Tail,
)
from quaymaster.core.replication.queue_time import QueueTime
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.records import Batch

TAIL_BYTES_MAX = 16 << 20
"""The newest batches are kept for the other replicas, up to so much."""

Role = Literal["follower", "preparing", "fetching", "elected", "activating", "leading", "stopped"]


class LogReplica(LogCopy):
    """One replica of one log. `node` is its member name."""

    def __init__(
        self,
        node: str,
        *,
        promised_epoch: int,
        start: Position,
        positions: Iterable[Position],
        now_ms: int,
        tail_memory: SharedBytes | None = None,
        time: QueueTime | None = None,
    ) -> None:
        """Take up a log as it was recovered: `start` is a committed position, `positions` the batches behind it.

        All of it is durable. Its newest batches are kept in `tail_memory`. `time` is told what other replicas say of
        queue time and of their clocks.
        """
        super().__init__(
            node,
            promised_epoch=promised_epoch,
            start=start,
            positions=positions,
            now_ms=now_ms,
            tail_memory=tail_memory or SharedBytes(TAIL_BYTES_MAX),
            time=time,
        )
        self.role: Role = "follower"
        self.epoch = 0
        """The epoch it leads, wants to lead, or follows."""
        self.leader: str | None = None
        """Whom it follows in that epoch, once it was heard."""
        self.has_lease = False
        """As a leader: whether a majority heard it lately, when it last looked."""
        self.configuration: JournalConfiguration | None = None
        """The newest that was seen."""
        self.room = DiskPressure.PLENTY
        """What the own disk has room for; the host says it."""
        self._durable_promise = promised_epoch
        self._heard_ms = now_ms if promised_epoch else now_ms - LEASE_MS
        """When the leader was last heard; after a start it may just have been."""
        self._withheld: tuple[str, Prepare] | None = None
        # As follower
        self._told: tuple[int, int] = (0, 0)
        self._owes_promise: str | None = None
        self._heartbeat_ms = 0
        self._tell_received_end = 0
        # As elect and leader
        self._candidate: Candidate | None = None
        """Of the epoch that it wants to lead."""
        self._elected_ms = 0
        self._barrier_end = 0
        self._is_activated = False
        self._asked_to_activate = False
        self._transfer_to: str | None = None
        self._leads_from = 0
        """Where the log ended when a transfer was given up: it leads again once that is committed."""
        self._is_feed_due = False
        self._tell_received = False
        self._followers = self._no_followers()

    # What the owner asks

    @property
    def is_leading(self) -> bool:
        """Whether it leads an activated epoch and takes new batches: when that begins, its whole log is committed."""
        return self.role == "leading" and self._transfer_to is None and self.commit >= self._leads_from

    @property
    def wants_barrier(self) -> bool:
        """Whether it was elected and can tell the queue time: the owner appends the epoch's first batch now."""
        return self.role == "elected" and self.time.may_begin(
            self.node,
            self._followers.members,
            self._now_ms - self._elected_ms,
            is_empty=self.end.end == 0,
        )

    def hears_leader(self, now_ms: int) -> bool:
        """Tell whether its leader was heard lately; a leader hears itself while a majority answers it."""
        if self.role == "leading":
            return self._followers.lease_until_ms() > now_ms
        return now_ms - self._heard_ms < LEASE_MS

    @property
    def majority_has_room(self) -> bool:
        """Whether a majority of the members can take sends: a leader that takes them itself, and whom it hears."""
        return self._followers.majority_has_room(self._now_ms)

    @property
    def refuses_sends(self) -> bool:
        """Whether a leader's own disk is low, or those of so many others that no majority has room."""
        return self.room is not DiskPressure.PLENTY or not self.majority_has_room

    def lag_of(self) -> dict[str, int]:
        """Return for each follower and learner how many records of the log it has not made durable."""
        return self._followers.lag_of()

    # Events: coordination

    def on_configuration(self, configuration: JournalConfiguration, now_ms: int) -> None:
        """The journal's key was read. Old news is ignored."""
        known = self.configuration
        if self.role == "stopped" or (known is not None and configuration.epoch < known.epoch):
            return
        self._now_ms = max(self._now_ms, now_ms)
        self.configuration = configuration
        if configuration.epoch == self.epoch and self._leads_or_wants():
            self._set_learners(configuration.learners)
        elif (
            configuration.epoch > self.epoch and self._leads_or_wants() and configuration.leader != self.node
        ):
            self._step_down()
        self._consider_appointment()

    def on_activated(self, epoch: int) -> None:
        """Coordination holds `activated` for this epoch: what is durable on a majority is committed."""
        if self.role != "activating" or epoch != self.epoch:
            return
        self.role = "leading"
        self._is_activated = True
        self.has_lease = True
        self.time.activated(self._now_ms)
        self._advance_commit()
        self._is_feed_due = True

    # Events: disk

    def on_promise_durable(self, epoch: int) -> None:
        """A promise, and all that was written before it, is durable."""
        self._durable_promise = max(self._durable_promise, epoch)
        if self.role == "preparing" and epoch == self.epoch:
            self._hear_promise(self.node, self.promise(epoch))
        elif self._owes_promise is not None and epoch == self.promised_epoch:
            self.say(self._owes_promise, self.promise(epoch))
            self._owes_promise = None
        self._tell_leader()

    def on_written(self, end: int, *, truncations: int = 0) -> None:
        """`write()` has returned for everything below `end`, after so many Truncates were carried out."""
        if truncations != self.truncations:
            return
        self.written_end = max(self.written_end, end)
        if self._tell_received_end and self.written_end >= self._tell_received_end:
            self._tell_received_end = 0
            self._tell_leader()

    def on_durable(self, end: int, *, truncations: int = 0) -> None:
        """Everything below `end` is durable here, after so many Truncates were carried out."""
        if truncations != self.truncations:
            return  # it speaks of a log that was cut since, and has other batches there now
        self.durable_end = max(self.durable_end, end)
        self.written_end = max(self.written_end, end)
        if self.role == "activating" or self.role == "leading":
            self._advance_commit()
            self._is_feed_due = True
        else:
            self._tell_leader()

    def on_read(
        self,
        member: str,
        start: int,
        previous_chain: int | None,
        batches: list[Batch],
        *,
        is_gone: bool,
        truncations: int,
    ) -> None:
        """The log was read for a member, after so many Truncates were carried out.

        `previous_chain` is that at `start`, None when no batch ends there.
        """
        if truncations != self.truncations:
            self._followers.on_read_in_vain(member)
        elif not self._owes_tail(member, start, batches, is_gone):
            now_ms = self._now_ms
            portion = self._followers.on_read(member, start, previous_chain, batches, now_ms, is_gone=is_gone)
            if portion is not None:
                self._send([portion])

    def on_copied(self, member: str) -> None:
        """A member that needed a copy has one, and will be asked where it ends."""
        self._followers.on_copied(member)

    # Events: others

    def on_connection_closed(self, member: str) -> None:
        """A connection to a member closed: if that was the leader, it is not waited for."""
        if member == self.leader:
            self._lift_lease()

    def on_message(self, sender: str, message: Message, now_ms: int) -> None:
        """A message from another replica of this log."""
        if self.role == "stopped":
            return
        self._now_ms = max(self._now_ms, now_ms)
        match message:
            case Append():
                self._on_append(sender, message)
            case Appended():
                self._on_appended(sender, message)
            case Prepare():
                self._on_prepare(sender, message)
            case Promise():
                self._on_promise(sender, message)
            case FetchBatches():
                self._on_fetch(sender, message)
            case Tail():
                self._on_tail(sender, message)
            case Mismatch():
                self._on_mismatch(sender, message)
            case Stale():
                self._on_stale(message)
            case _:  # a Resign
                if sender == self.leader and message.epoch == self.epoch:
                    self._lift_lease()

    def on_tick(self, now_ms: int) -> None:
        """Time has passed: heartbeats, questions asked again, leases that ended."""
        if self.role == "stopped":
            return
        self._now_ms = max(self._now_ms, now_ms)
        now_ms = self._now_ms
        if self.role == "follower":
            self._consider_appointment()
            self._answer_withheld()
        elif self._candidate is not None:
            self._tell_candidate_time(self._candidate)
        else:
            self.has_lease = self._followers.lease_until_ms() > now_ms
            self._is_feed_due = True

    # Commands of the owner

    def carry_time_on(self, last_stamp_ms: int) -> int:
        """As the elected replica of a log with this last stamp, return the queue time of the epoch's first record."""
        return self.time.elected(self.node, self._followers.members, last_stamp_ms, self._now_ms)

    def append(self, batch: Batch, *, tell_received: bool = False) -> None:
        """Append a batch of the own epoch: as elected replica its barrier, then whatever is proposed."""
        assert batch.epoch == self.epoch, f"a batch of epoch {batch.epoch} in epoch {self.epoch}"
        if self.role == "elected":
            self._candidate = None
            self.role = "activating"
            self._barrier_end = batch.next_offset
        assert self.role in ("activating", "leading"), f"a {self.role} replica appends nothing"
        self.write(batch, tell_written=tell_received)
        self._tell_received = self._tell_received or tell_received
        self._is_feed_due = True

    def transfer(self, member: str) -> bool:
        """Take no more batches, and resign as soon as `member` has everything; false when that cannot begin."""
        if self.role != "leading" or member == self.node or member not in self._followers.members:
            return False
        self._transfer_to = member
        self._resign_if_done()
        return True

    def end_transfer(self) -> None:
        """Give a transfer up, if it has not happened, and take batches again once all that are there are committed.

        Who begins to lead goes on with what is in its log, and tells other journals of it. After an election all of
        that is committed; after a transfer that failed, for want of a majority perhaps, it may still get lost.
        """
        if self._transfer_to is not None:
            self._transfer_to = None
            self._leads_from = self.end.end

    def stop(self) -> None:
        """Take part no longer, for good."""
        self.role = "stopped"
        self._effects.messages.clear()

    def take(self) -> Effects:
        """Return what is to be done now, and forget it here."""
        if self._is_feed_due:
            self._is_feed_due = False
            self._feed_followers()
        effects = self._effects
        taken = Effects(effects.operations, effects.messages, effects.reads, effects.activate, effects.copies)
        effects.operations = []
        effects.messages = []
        effects.reads = []
        effects.activate = None
        effects.copies = []
        return taken

    @property
    def received_on_majority(self) -> int:
        """Return the offset below which a majority of the members has written, durable or not."""
        if self.role not in ("activating", "leading"):
            return self.commit
        return self._followers.received_on_majority(self.written_end)

    # Promising

    def _on_prepare(self, sender: str, message: Prepare) -> None:
        epoch = message.epoch
        if epoch < self.promised_epoch:
            self.say(sender, Stale(self.promised_epoch))
            return
        if epoch > self.promised_epoch:
            if self._waits_for_leader() and sender != self.leader:
                self._withheld = (sender, message)
                return
            self._follow(epoch, None)
        elif self._leads_or_wants() or (self.leader is not None and self.leader != sender):
            return  # the epoch has its one leader already
        self._owes_promise = sender
        if self._durable_promise >= epoch and self.durable_end == self.end.end:
            self.on_promise_durable(epoch)

    def _waits_for_leader(self) -> bool:
        if self.role == "leading":
            return self._followers.lease_until_ms() > self._now_ms
        return self._now_ms - self._heard_ms < LEASE_MS

    def _lift_lease(self) -> None:
        self._heard_ms = self._now_ms - LEASE_MS
        self._answer_withheld()
        self._consider_appointment()

    def _answer_withheld(self) -> None:
        if self._withheld is not None and not self._waits_for_leader():
            sender, message = self._withheld
            self._withheld = None
            self._on_prepare(sender, message)

    def _follow(self, epoch: int, leader: str | None) -> None:
        """Promise a higher epoch: what was led or followed before is over."""
        if self._leads_or_wants():
            self._step_down()
        self.promised_epoch = epoch
        self.epoch = epoch
        self.leader = leader
        self.verified_end = 0
        self._told = (0, 0)
        self._owes_promise = None
        self._tell_received_end = 0
        self.persist_promise(epoch)

    def _leads_or_wants(self) -> bool:
        return self.role not in ("follower", "stopped")

    def _step_down(self) -> None:
        self.role = "follower"
        self.leader = None
        self._is_activated = False
        self._transfer_to = None
        self._leads_from = 0
        self._followers = self._no_followers()
        self._candidate = None
        self._effects.activate = None
        self.time.deposed()

    # Becoming the leader

    def _consider_appointment(self) -> None:
        configuration = self.configuration
        if (
            configuration is None
            or configuration.leader != self.node
            or configuration.epoch <= self.promised_epoch
            or (self.role != "leading" and self._waits_for_leader() and not self._is_alone(configuration))
        ):
            return
        if self._leads_or_wants():
            self._step_down()
        self.role = "preparing"
        self.epoch = self.promised_epoch = configuration.epoch
        self.leader = self.node
        self._owes_promise = None
        self.verified_end = 0
        self._asked_to_activate = False
        self._candidate = Candidate(self, configuration, self._now_ms)

    def _is_alone(self, configuration: JournalConfiguration) -> bool:
        return set(configuration.members) | set(configuration.previous_members) == {self.node}

    def _on_promise(self, sender: str, message: Promise) -> None:
        if message.epoch == self.epoch and self._leads_or_wants():
            is_serving = self.role in ("activating", "leading")
            self.time.hear_member(sender, 0 if is_serving else message.time_ms, message.wall_ms, self._now_ms)
            if self.role == "preparing":
                self._hear_promise(sender, message)

    def _hear_promise(self, member: str, promise: Promise) -> None:
        assert self._candidate is not None, "a preparing replica is a candidate"
        self._candidate.on_promise(member, promise, self._now_ms)
        self._note_stage(self._candidate)

    def _tell_candidate_time(self, candidate: Candidate) -> None:
        now_ms = self._now_ms
        if self.role == "fetching":
            candidate.fetch_again(now_ms)
            self._note_stage(candidate)
        elif candidate.is_question_due(now_ms):
            if self.role == "preparing" and self._durable_promise >= self.epoch:
                candidate.ask_for_promises(now_ms)
            elif self.role == "elected" and not self.wants_barrier:
                # The clocks that were heard differ: ask all again, and so who was not heard.
                candidate.ask_all_again(now_ms)

    def _note_stage(self, candidate: Candidate) -> None:
        """Be what the candidate has become by what it was told."""
        self.role = candidate.stage
        if candidate.stage == "elected":
            self._be_elected(candidate)

    def _on_fetch(self, sender: str, message: FetchBatches) -> None:
        if message.epoch != self.promised_epoch or self._leads_or_wants():
            return
        batches = None
        if self.tail.position_at(message.start) is not None:
            batches = self.tail.read(message.start, MESSAGE_BYTES_MAX)
        if batches is None:
            self._effects.reads.append(ReadLog(sender, message.start))
        else:
            self.say(sender, Tail(message.epoch, message.start, batches))

    def _owes_tail(self, member: str, start: int, batches: list[Batch], is_gone: bool) -> bool:
        """Answer a Fetch with what was read from disk; false when the read was not for one."""
        if self._leads_or_wants():
            return False
        self.say(member, Tail(self.promised_epoch, start, batches, is_gone))
        return True

    def _on_tail(self, sender: str, message: Tail) -> None:
        candidate = self._candidate
        if self.role != "fetching" or message.epoch != self.epoch or candidate is None:
            return
        if candidate.on_tail(sender, message, self._now_ms):
            self._note_stage(candidate)
        else:
            self._step_down()

    def _be_elected(self, candidate: Candidate) -> None:
        self._elected_ms = self._now_ms
        self.verified_end = 0
        self._is_activated = False
        configuration = self.configuration
        learners = (
            configuration.learners if configuration is not None and configuration.epoch == self.epoch else ()
        )
        self._followers = Followers(
            self.node, self.tail, self._effects, members=candidate.members, learners=learners
        )

    def _set_learners(self, learners: tuple[str, ...]) -> None:
        if self.role in ("preparing", "fetching"):
            return  # taken from the configuration once it is elected
        if self._followers.set_learners(learners):
            self._is_feed_due = True

    # Following

    def _on_append(self, sender: str, message: Append) -> None:
        if message.epoch < self.promised_epoch:
            self.say(sender, Stale(self.promised_epoch))
            return
        if message.epoch > self.promised_epoch:
            self._follow(message.epoch, sender)
        elif self._leads_or_wants():
            return  # of the own epoch: it has one leader, so this is an echo of its own
        self.leader = sender
        self.epoch = message.epoch
        self._withheld = None
        self._owes_promise = None  # who asked was elected without it, and the log may grow from here
        self.time.hear_leader(message.time_ms, self._now_ms)
        if message.has_lease:
            self._heard_ms = self._now_ms
        self._heartbeat_ms = message.sent_ms
        previous = message.previous_end
        if message.batches and self._is_out_of_room(message):
            self._tell_leader(always=True)
            return
        if previous > self.commit:
            position = self.tail.position_at(previous)
            if position is None or position.chain != message.previous_chain:
                self._say_mismatch(sender, message)
                return
        elif previous < self.commit and not message.batches:
            # A heartbeat below what is known to be committed: nothing to compare, and nothing to acknowledge.
            self._say_mismatch(sender, message)
            return
        end = self.take_in(message.batches) if message.batches else previous
        self.verified_end = max(self.verified_end, end, min(previous, self.commit))
        commit = min(message.commit, self.verified_end)
        if commit > self.commit and self.tail.position_at(commit) is not None:
            self.commit = commit
            self.tail.trim(commit)
        if message.tell_received:
            self._tell_received_end = end
        self._tell_leader(always=not message.batches)

    def _is_out_of_room(self, message: Append) -> bool:
        return self.room is DiskPressure.NONE or (
            self.room is DiskPressure.RESERVE and not message.sends_refused
        )

    def _say_mismatch(self, leader: str, message: Append) -> None:
        if self._is_out_of_room(message):
            self._tell_leader(always=True)  # it could not take what it lacks
        elif self._durable_promise >= message.epoch:
            self.say(leader, Mismatch(message.epoch, self.end.end, self.end.chain, self.commit))

    def _tell_leader(self, *, always: bool = False) -> None:
        """Acknowledge what is durable and was compared under this epoch."""
        if self.role != "follower" or self.leader is None or self._durable_promise < self.epoch:
            return
        told = (min(self.written_end, self.verified_end), min(self.durable_end, self.verified_end))
        if always or told > self._told:
            self._told = told
            wall_ms = self.time.wall_at(self._now_ms)
            self.say(self.leader, Appended(self.epoch, *told, self._heartbeat_ms, self.room, wall_ms))

    # Leading

    def _on_appended(self, sender: str, message: Appended) -> None:
        follower = self._followers.get(sender)
        if message.epoch != self.epoch or follower is None:
            return
        follower.hear(message)
        self.time.hear_member(sender, 0, message.wall_ms, self._now_ms)
        if follower.room is DiskPressure.NONE or (
            follower.room is DiskPressure.RESERVE and not self.refuses_sends
        ):
            follower.ask_from(self.end.end)  # it takes nothing: until it has room, only where its log ends
        if not follower.is_copying:
            self._is_feed_due = True
        if message.durable_end > follower.durable_end:
            follower.durable_end = message.durable_end
            if sender in self._followers.members:
                self._advance_commit()
            self._resign_if_done()

    def _advance_commit(self) -> None:
        end = self._followers.durable_on_majority(self.durable_end)
        if end < self._barrier_end:
            return
        if not self._is_activated:
            if not self._asked_to_activate:
                self._asked_to_activate = True
                self._effects.activate = self.epoch
            return
        if end > self.commit:
            self.commit = end
            self.tail.trim(end)
            self._resign_if_done()

    def _on_mismatch(self, sender: str, message: Mismatch) -> None:
        if message.epoch == self.epoch and self._followers.on_mismatch(sender, message, self._now_ms):
            self._is_feed_due = True

    def _on_stale(self, message: Stale) -> None:
        if self._leads_or_wants() and message.epoch > self.epoch:
            self._step_down()

    def _feed_followers(self) -> None:
        if self.role in ("activating", "leading") and self._followers:
            portions = self._followers.portions(self._now_ms, self.written_end)
            if portions:
                self._send(portions)
            self._tell_received = False

    def _send(self, portions: list[Portion]) -> None:
        now_ms = self._now_ms
        commit = self.commit if self._is_activated else 0
        refuses_sends = self.refuses_sends
        time_ms = self.time.told_ms(now_ms)
        # A leader that only speaks must not keep its followers from another one.
        is_answered = now_ms < max(self._followers.lease_until_ms(), self._elected_ms + LEASE_MS)
        for member, previous_end, previous_chain, batches, is_heartbeat in portions:
            message = Append(
                self.epoch,
                previous_end,
                previous_chain,
                batches,
                commit,
                now_ms,
                self._tell_received and not is_heartbeat,
                refuses_sends,
                is_answered,
                time_ms,
            )
            self.say(member, message)

    def _no_followers(self) -> Followers:
        return Followers(self.node, self.tail, self._effects)

    def _resign_if_done(self) -> None:
        target = self._transfer_to
        if target is None or self.commit < self.end.end or self._followers[target].durable_end < self.end.end:
            return
        for member in self._followers:
            self.say(member, Resign(self.epoch))
        self._step_down()
        self._lift_lease()

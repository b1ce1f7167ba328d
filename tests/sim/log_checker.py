"""Judges the replicas of the log, with knowledge no replica has: what is committed, what every disk holds (I1-I11).

What is committed is one list for a journal's whole run: the first replica to commit a batch writes it, all others
must agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from quaymaster.core.partition.work.partition_transactions import split_commit
from quaymaster.core.queues.record_payloads import HAS_ATTEMPT, MOVE_HEAD_BYTES, MOVE_OUT, PAIR
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.replication.messages import Appended, Envelope, Promise
from quaymaster.core.replication.queue_time import SLEW
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.commands.moves import MoveIn
from quaymaster.core.values.commands.transactions import CommittedOutcome, CommitTransaction
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.messages import decode_moved, split_payload
from quaymaster.core.values.queues.attributes import Durability
from quaymaster.core.values.records import Batch, RecordRow, RecordType, decode_header, iterate_rows
from sim.kernel import MS, START_MS, Kernel, Violation
from sim.messages import Sent
from sim.store import JournalKey

if TYPE_CHECKING:
    from sim.replica import Replica


STAMP_SLACK_MS = 500
"""What is decided in a turn is stamped with when the turn began."""


DEPOSED_US = 200 * MS
"""A leader that was replaced has noticed it after so long, or is in the middle of what waited while it was stopped."""


def _is_commit_of(command: CommitTransaction) -> Callable[[RecordRow, bytes], bool]:
    def is_of(row: RecordRow, payload: bytes) -> bool:
        if row.type != RecordType.TRANSACTION_COMMIT or row.queue_id != command.queue_id:
            return False
        committed = split_commit(payload)
        return (committed.sink, committed.batch) == (command.sink, command.batch)

    return is_of


class LogChecker:
    """One for each journal of a run."""

    def __init__(
        self,
        kernel: Kernel,
        key: JournalKey,
        *,
        clock_error_ms: int | None,
        clock_drift: float,
        is_measured: bool,
    ) -> None:
        """`clock_error_ms`: how far the clocks of any majority may be ahead of real time, None if there is no telling;
        `clock_drift`: how much faster or slower than real time a monotonic clock may run; `is_measured`: nothing keeps
        queue time from being right, so it may not be behind either."""
        self.kernel = kernel
        self.key = key
        self.ends: list[int] = []
        self.chains: list[int] = []
        self.hashes: dict[tuple[int, int], tuple[str, dict[int, int]]] = {}
        self.hashes_compared = 0
        self.activations = 0
        self._clock_error_ms = clock_error_ms
        self._pace_error = clock_drift + 1 / SLEW
        self._is_measured = is_measured
        self._stamped: tuple[int, int, int] = (0, 0, 0)
        """Epoch, real time and queue time of the newest batch but for barriers."""
        self._barriers: dict[int, str] = {}
        self._appended: dict[tuple[int, int], int] = {}

    @property
    def commit(self) -> int:
        """How much is committed, as far as anybody knows."""
        return self.ends[-1] if self.ends else 0

    def forget_clocks(self) -> None:
        """Wall clocks step before a majority knows the queue time: there is no telling what it will be."""
        self._clock_error_ms = None

    def on_append(self, node: Replica, batch: Batch) -> None:
        """A leader appends: one leader in an epoch, and one batch at each place of it."""
        stored = self.key.by_epoch.get(batch.epoch)
        if stored is None or stored.leader != node.member:
            raise Violation(
                "I1",
                f"{node.member} writes in epoch {batch.epoch}, which it does not lead",
                batch.base_offset,
            )
        known = self._appended.setdefault((batch.epoch, batch.base_offset), batch.chain)
        if known != batch.chain:
            raise Violation(
                "I1", f"epoch {batch.epoch} has two batches at {batch.base_offset}", batch.base_offset
            )
        before = node.batch_before(batch.base_offset)
        if before is not None and decode_header(batch.data).time_ms < decode_header(before.data).time_ms:
            raise Violation("I20", f"queue time goes back at {batch.base_offset}", batch.base_offset)
        self._check_time(batch)
        if self.kernel.story is not None:
            node.tell(
                f"appends {batch.base_offset}-{batch.next_offset} in epoch {batch.epoch}",
                (batch.base_offset, batch.next_offset),
            )

    def _check_time(self, batch: Batch) -> None:
        """I24: queue time passes as real time does, and never is what a minority's clocks claim."""
        header = decode_header(batch.data)
        stamp_ms, now_ms = header.time_ms, self.kernel.now_us // MS
        if self._clock_error_ms is not None:
            ahead_ms = stamp_ms - START_MS - now_ms
            error_ms = self._clock_error_ms + self._pace_error * now_ms + STAMP_SLACK_MS
            if ahead_ms > error_ms or (self._is_measured and ahead_ms < -error_ms):
                raise Violation(
                    "I24", f"queue time is {ahead_ms} ms ahead at {batch.base_offset}", batch.base_offset
                )
        if next(iterate_rows(batch.data, header)).type == RecordType.BARRIER:
            return
        epoch, before_ms, before_stamp_ms = self._stamped
        self._stamped = batch.epoch, now_ms, stamp_ms
        passed_ms = now_ms - before_ms
        if (
            epoch == batch.epoch
            and abs(stamp_ms - before_stamp_ms - passed_ms) > self._pace_error * passed_ms + STAMP_SLACK_MS
        ):
            raise Violation(
                "I24",
                f"in {passed_ms} ms of real time, {stamp_ms - before_stamp_ms} ms of queue time "
                f"pass up to {batch.base_offset}",
                batch.base_offset,
            )

    def on_commit(self, node: Replica, before: int, commit: int) -> None:
        """A replica's commit index moves: what is below is what everybody else has there, for ever."""
        ends, chains = self.ends, self.chains
        own_ends = node.ends
        index = bisect_right(own_ends, before)
        while index < len(own_ends) and own_ends[index] <= commit:
            end, chain = own_ends[index], node.batches[index].chain
            place = bisect_right(ends, end) - 1
            if place == len(ends) - 1 and (not ends or end > ends[-1]):
                if node.batches[index].base_offset != self.commit:
                    raise Violation(
                        "I2", f"{node.member} commits past {self.commit} up to {end}", self.commit
                    )
                ends.append(end)
                chains.append(chain)
            elif place < 0 or ends[place] != end or chains[place] != chain:
                raise Violation(
                    "I2",
                    f"{node.member} commits another batch that ends at {end}",
                    node.batches[index].base_offset,
                )
            index += 1
        if index == 0 or own_ends[index - 1] != commit:
            raise Violation("I2", f"{node.member} commits {commit}, where no batch of its log ends", commit)
        if self.kernel.story is not None:
            node.tell(f"commits up to {commit}", (before, commit))

    def on_truncate(self, node: Replica, end: int) -> None:
        """A replica cuts its log: never below what it knows to be committed."""
        if end < node.commit:
            raise Violation(
                "I5", f"{node.member} cuts its log at {end}, below its commit index {node.commit}", end
            )
        node.tell(f"cuts its log at {end}", (end, node.ends[-1] if node.ends else end))

    def on_barrier_durable(self, node: Replica, epoch: int) -> None:
        """A leader asks to be activated: it must hold everything that is committed."""
        self._check_complete(node, epoch)

    def on_activated(self, node: Replica, epoch: int) -> None:
        """A leader was activated."""
        self.activations += 1
        if epoch not in self.key.activated_epochs:
            raise Violation("I1", f"{node.member} serves in epoch {epoch}, which the store has not activated")
        if self.key.by_epoch[epoch].leader != node.member:
            raise Violation("I1", f"{node.member} is activated in epoch {epoch}, which it does not lead")
        self._check_complete(node, epoch)

    def _check_complete(self, node: Replica, epoch: int) -> None:
        if self.key.configuration.epoch > epoch:
            return  # it is out of date, and will be told
        if self.ends and node.chain_at(self.ends[-1]) != self.chains[-1]:
            first = self._first_missing(node)
            raise Violation(
                "I3", f"{node.member} leads epoch {epoch} and lacks the committed batch at {first}", first
            )

    def _first_missing(self, node: Replica) -> int:
        base = 0
        for end, chain in zip(self.ends, self.chains, strict=True):
            if end > node.disk.start_offset and node.chain_at(end) != chain:
                return base
            base = end
        return base

    def on_send(self, node: Replica, envelope: Envelope) -> None:
        """A replica speaks: never for an epoch below one it promised, and never as a tainted disk."""
        message = envelope.message
        if not isinstance(message, Promise | Appended):
            return
        disk = node.disk
        if message.epoch < disk.most_promised:
            raise Violation(
                "I6", f"{node.member} answers in epoch {message.epoch}, but promised {disk.most_promised}"
            )
        if disk.is_tainted:
            raise Violation("I10", f"{node.member} votes with a tainted disk")
        if isinstance(message, Promise):
            if message.epoch > disk.promised:
                raise Violation(
                    "I6", f"{node.member} answers a promise of {message.epoch} that is not durable"
                )
            end = message.end
        else:
            end = message.durable_end
        if end > disk.fsynced_end:
            raise Violation(
                "I7",
                f"{node.member} says {end} is durable, but a power cut may leave {disk.fsynced_end}",
                end - 1,
            )
        if node.chain_at(end) != disk.chain_at(end):
            raise Violation(
                "I7", f"{node.member} says {end} is durable, but has another batch on its disk", end - 1
            )

    def on_handed_out(self, node: Replica, offset: int) -> None:
        """A leader hands out a message: that it was sent is committed."""
        if offset >= node.log.commit:
            raise Violation("I2", f"{node.member} hands out what is not committed, at {offset}", offset)

    def on_received(self, node: Replica, queue_id: int, outcome: TakenOutcome) -> None:
        """A leader answers a receive, with messages or without: not once another has led for a while.

        One that leads several epochs in succession may answer what it decided in the first: nobody else decided since.
        And whoever waited for the record of a receive may hear late that it is committed: all later leaders know of it.
        """
        key, epoch = self.key, outcome.epoch
        if not key.configuration.activated:
            return
        others = [
            later
            for later in key.activated_epochs
            if later > epoch and key.by_epoch[later].leader != node.member
        ]
        since_us = self.kernel.now_us - max(key.changed_us, node.host.resumed_us)
        if not others or since_us <= DEPOSED_US:
            return
        taken = {one.sequence for one in outcome.taken}
        if not taken or not taken <= self._received(node, queue_id, epoch):
            raise Violation(
                "I27",
                f"{node.member} answers a receive in epoch {epoch}, long after epoch {min(others)} began",
            )

    def _received(self, node: Replica, queue_id: int, epoch: int) -> set[int]:
        """Return the messages that were received in an epoch, by committed records that a replica has."""
        found: set[int] = set()
        for batch in node.batches:
            if batch.epoch != epoch or batch.next_offset > self.commit:
                continue
            for row in iterate_rows(batch.data, decode_header(batch.data)):
                if row.type == RecordType.RECEIVE and row.queue_id == queue_id:
                    start = row.position + (16 if row.flags & HAS_ATTEMPT else 0)
                    pairs = batch.data[start : row.position + row.length]
                    found.update(sequence for sequence, _ in PAIR.iter_unpack(pairs))
        return found

    def on_reply(self, node: Replica, command: Command, outcome: object) -> None:
        """A client is answered: an acknowledged send is on a majority of disks, and stays there without power."""
        if isinstance(outcome, CommittedOutcome) and isinstance(command, CommitTransaction):
            self._check_committed(node, "commits a transaction", _is_commit_of(command))
        if not isinstance(outcome, Sent) or not isinstance(command, Send):
            return
        definition = node.journal.queues.definitions.get(command.queue_id)
        if definition is None or definition.durability != Durability.SYNC:
            return
        partition = node.journal.queues.partition(command.queue_id, command.partition)
        for sequence, _ in outcome.places:
            if partition.is_live(sequence):
                offset = partition.index.offset_and_sent_ms(sequence)[0]
                if offset >= node.log.commit:
                    raise Violation(
                        "I7", f"a send is acknowledged at {offset}, which is not committed", offset
                    )
        end = node.commit
        members = self.key.by_epoch[node.log.epoch].members
        chain = node.chain_at(end)
        have = [
            name
            for name in members
            if (disk := node.cell.disk_of(node.journal_id, name)) is not None
            and disk.fsynced_end >= end
            and (disk.start_offset > end or disk.chain_at(end) == chain)
        ]
        lost = [name for name in members if name in node.cell.lost_members]
        if 2 * (len(have) + len(lost)) <= len(members):
            raise Violation(
                "I7", f"a send is acknowledged at {end}, but durable on {have} of {members} only", end - 1
            )

    def on_taken(self, node: Replica, command: MoveIn) -> None:
        """Another journal is told that messages have come: that is committed."""

        def is_of(row: RecordRow, payload: bytes) -> bool:
            place = row.queue_id, row.partition
            if row.type != RecordType.MOVE or place != (command.queue_id, command.partition):
                return False
            moved = decode_moved(split_payload(row.flags, payload[MOVE_HEAD_BYTES:])[3])
            return moved.source_queue_id == command.source_queue_id and moved.number in numbers

        numbers = {message.number for message in command.messages}
        self._check_committed(node, "takes messages", is_of)

    def on_sent_away(self, node: Replica, command: MoveIn) -> None:
        """Messages are sent to another journal: that they leave is committed."""

        def is_of(row: RecordRow, payload: bytes) -> bool:
            if row.type != RecordType.MOVE_OUT or row.queue_id != command.source_queue_id:
                return False
            target_queue_id, partition, _, number, _ = MOVE_OUT.unpack_from(payload)
            return (target_queue_id, partition) == (command.queue_id, command.partition) and number in numbers

        numbers = {message.number for message in command.messages}
        self._check_committed(node, "sends messages away", is_of)

    def _check_committed(self, node: Replica, what: str, is_of: Callable[[RecordRow, bytes], bool]) -> None:
        """I7: no record that an answer rests on is among those that nobody has committed."""
        for batch in reversed(node.batches):
            if batch.next_offset <= self.commit:
                return
            data = batch.data
            for row in iterate_rows(data, decode_header(data)):
                if is_of(row, data[row.position : row.position + row.length]):
                    raise Violation(
                        "I7", f"{node.member} {what}, which is not committed, at {row.offset}", row.offset
                    )

    def on_given_up(self, node: Replica, end: Position) -> None:
        """Records are given up that are dead as of this end of a log: all up to there is committed."""
        place = bisect_right(self.ends, end.end) - 1
        if place < 0 or self.ends[place] != end.end or self.chains[place] != end.chain:
            raise Violation(
                "I13", f"{node.member} gives up records by what is not committed, at {end.end}", end.end - 1
            )

    def on_applied(self, node: Replica) -> None:
        """A replica's queues are as of its log's end: they are those of everybody else with that log.

        A leader's may be as of a later time than its last batch's, and cannot be compared then. Of all batches one in
        four is looked at, the same for everybody: what differs goes on to differ, and hashes are dear.
        """
        last = node.batches[-1] if node.batches else None
        if (
            last is not None
            and not last.chain & 3
            and decode_header(last.data).time_ms == node.journal.last_time_ms
        ):
            self._compare(node, node.journal.last_time_ms)

    def _compare(self, node: Replica, time_ms: int) -> None:
        journal = node.journal
        end = journal.log.end
        found = journal.queues.state_hash(time_ms)
        who, known = self.hashes.setdefault((end.chain, time_ms), (node.member, found))
        self.hashes_compared += who != node.member
        if known != found:
            differing = [key for key in known.keys() | found.keys() if known.get(key) != found.get(key)]
            raise Violation(
                "I11",
                f"at {end.end} the queues of {node.member} are not those of {who}, "
                f"in partitions {[f'{key >> 16}/{key & 0xFFFF}' for key in differing]}",
                end.end - 1,
            )

    def check_converged(self, nodes: list[Replica]) -> None:
        """L2: every member has what is committed, and the same queues."""
        for node in nodes:
            if node.commit != self.commit:
                raise Violation("L2", f"{node.member} is at {node.commit}, the others at {self.commit}")
        time_ms = max(node.journal.last_time_ms for node in nodes)
        for node in nodes:
            self._compare(node, time_ms)

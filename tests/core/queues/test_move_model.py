"""Two journals, messages that move from one to the other and back, and everything between them that can go wrong.

Each journal has a leader that crashes and loses what is not durable, and starts from a snapshot or from nothing but
its records. What is sent between them is lost, comes twice, late, and in any order. At the end each message is in one
place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    arn,
    far_queue,
    identity,
    message,
    queue,
    replay,
    snapshot_of,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.queues.moved_messages import message_to_move
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import Delete, Purge, Receipt, Receive, Send
from quaymaster.core.values.commands.move_tasks import StartMoveTask, TakeForMove, TakenForTask
from quaymaster.core.values.commands.moves import EndMoves, MovedMessage, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.messages import decode_message, prefix_bytes
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.records import RecordType

pytestmark = pytest.mark.uncovered

IS_LONG = os.environ.get("QUAYMASTER_HYPOTHESIS") == "long"

TASK = b"task-number-one-"
BATCH_MAX = 3
Snapshot = tuple[int, list[tuple[QueueDefinition, bytes]]]

_wire = msgspec.msgpack.Decoder(MoveIn).decode


@dataclass
class Call:
    """What one leader sent; its answer counts while it waits for no later one."""

    incarnation: int
    command: bytes
    answer: MoveInOutcome | None = None


@dataclass
class Journal:
    """One journal with one queue, and the sender of what leaves it, as `broker/replica/moves/moves_out` does it."""

    journal_id: int
    definition: QueueDefinition
    other: QueueDefinition
    host: Host
    incarnation: int = 0
    committed: int = 0
    waiting: Call | None = None
    ending: int | None = None
    begun: dict[int, None] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    keeper: MemoryChunks = field(default_factory=MemoryChunks)

    @property
    def partition(self) -> Partition:
        return self.host.partition(self.definition.queue_id)

    @property
    def target_key(self) -> int:
        return partition_key(self.other.queue_id, 0)

    def reach(self, other_name: str) -> None:
        elsewhere = QueuesElsewhere(CellFormat(2))
        elsewhere.places[arn(other_name)] = self.other
        self.host.states.elsewhere = elsewhere

    def note_replies(self) -> None:
        """Learn what has become durable."""
        for token in list(self.begun):
            reply = self.host.replies.pop(token, None)
            if reply is not None:
                del self.begun[token]
                self.committed = max(self.committed, getattr(reply, "number", 0))
        if self.ending is not None and self.host.replies.pop(self.ending, None) is not None:
            self.ending = None

    def next_call(self) -> Call | None:
        """Return what is to be sent; nothing while the last settlement is not durable."""
        self.note_replies()
        moves = self.partition.moves
        if self.ending is not None or moves is None:
            return None
        messages = [self._message(*one) for one in moves.to_send(self.target_key, self.committed, BATCH_MAX)]
        if not messages:
            return None
        command = MoveIn(self.other.queue_id, 0, self.definition.queue_id, 0, messages)
        self.waiting = Call(self.incarnation, msgspec.msgpack.encode(command))
        return self.waiting

    def _message(self, number: int, move: Any) -> MovedMessage:
        partition = self.partition
        # Every other message cannot be read by every other leader.
        if not partition.is_live(move.sequence) or (move.sequence % 2 == 0 and self.incarnation % 2):
            return MovedMessage(number)
        row, payload = self.host.payload(partition.index.entry(move.sequence).offset)
        return message_to_move(
            partition,
            move.sequence,
            (row.type, row.flags, payload),
            source_arn=None,
            new_message_id=None,
            number=number,
        )

    def on_answer(self, call: Call) -> None:
        if call is not self.waiting or call.answer is None:
            return
        self.waiting = None
        numbers = [one.number for one in _wire(call.command).messages]
        withdrawn = call.answer.withdrawn
        taken = [number for number in numbers if number not in withdrawn]
        command = EndMoves(self.definition.queue_id, 0, self.target_key, taken, withdrawn)
        self.ending = self.host.propose(command)

    def leave(self, sequence: int, task_id: bytes | None = None) -> None:
        offset = self.partition.index.entry(sequence).offset
        row, payload = self.host.payload(offset)
        token = self.host.propose(
            MoveMessage(
                self.definition.queue_id,
                0,
                sequence,
                self.other.queue_id,
                row.type,
                row.flags,
                payload,
                None,
                new_message_id=identity(9) if task_id else None,
                task_id=task_id,
                target=self.other,
            )
        )
        self.begun[token] = None

    def take_snapshot(self) -> None:
        """Keep a snapshot of what is durable: all of it."""
        self.host.make_durable()
        self.partition.applied = self.host.replica.end_offset
        self.snapshot = self.host.replica.end_offset, [(self.definition, snapshot_of(self.partition))]

    def crash(self, *, uses_snapshot: bool) -> None:
        batches = self.host.durable_batches()
        elsewhere = self.host.states.elsewhere
        states = QueueStates(self.keeper, retry_window_ms=RETRY_WINDOW_MS)
        if uses_snapshot and self.snapshot is not None:
            start, blobs = self.snapshot
            for definition, data in blobs:
                loaded = load_partition(data, definition, 0, self.keeper, retry_window_ms=RETRY_WINDOW_MS)
                states.load(definition, [loaded])
            replay(batches, states=states, start=start)
        else:
            replay(batches, states=states)
        epoch = self.host.replica.epoch + 1
        now_ms = self.host.now_ms
        self.host = Host(batches=batches, states=states, epoch=epoch, now_ms=now_ms, is_slow=True)
        self.host.states.elsewhere = elsewhere
        self.incarnation += 1
        self.waiting = self.ending = None
        self.begun = {}
        moves = self.partition.moves
        pair = moves.out.get(self.target_key) if moves is not None else None
        self.committed = pair.last if pair is not None else 0

    def ids(self) -> Iterator[tuple[int, str]]:
        """Yield each message that exists here, and how it is."""
        partition = self.partition
        for sequence in range(partition.head, partition.next_sequence):
            if not partition.is_live(sequence):
                continue
            row, payload = self.host.payload(partition.index.entry(sequence).offset)
            start = MOVE_HEAD_BYTES if row.type == RecordType.MOVE else 0
            stored = decode_message(payload[start + prefix_bytes(row.flags) :])
            origin = int.from_bytes(stored.origin_message_id, "big")
            yield origin, "leaving" if partition.is_leaving(sequence) else "here"


class Moves(RuleBasedStateMachine):
    """`source` has dead letters for `target`; a move task brings them back."""

    suffix = ""

    @initialize()
    def start(self) -> None:
        source, dead = f"jobs{self.suffix}", f"dead{self.suffix}"
        policy = {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn(dead)}","maxReceiveCount":1}}'}
        self.source = Journal(
            1, queue(1, source, attributes=policy), far_queue(2, dead, 2), Host(is_slow=True)
        )
        self.target = Journal(2, queue(2, dead), far_queue(1, source, 1), Host(is_slow=True))
        self.both = self.source, self.target
        for journal, other in ((self.source, dead), (self.target, source)):
            journal.host.ask(SetQueue(journal.definition))
            journal.reach(other)
        self.calls: list[tuple[Journal, Call]] = []
        self.sent = 0
        self.may_be_gone: set[int] = set()

    def _other(self, journal: Journal) -> Journal:
        return self.target if journal is self.source else self.source

    @rule(count=st.integers(1, 3), group=st.integers(0, 2))
    def send(self, count: int, group: int) -> None:
        numbers = range(self.sent + 1, self.sent + 1 + count)
        key = group + 1 if self.suffix else group
        messages = [message(number, group=key, dedup=identity(number)) for number in numbers]
        self.source.host.ask(Send(1, 0, messages))
        self.sent += count

    @rule(count=st.integers(1, 3), is_durable=st.booleans())
    def die(self, count: int, is_durable: bool) -> None:
        """New messages leave at once."""
        self.send(count, self.sent % 3)
        self.receive(0)
        self.receive(0)
        if is_durable:
            self.source.host.make_durable()

    @rule(timeout_ms=st.sampled_from([0, 0, 60_000]))
    def receive(self, timeout_ms: int) -> None:
        """Messages come back at once, or stay out; those that came back often leave."""
        token = self.source.host.propose(Receive(1, 0, 4, timeout_ms))
        self.source.host.make_durable()
        outcome = self.source.host.replies.pop(token)
        assert isinstance(outcome, TakenOutcome)
        for letter in outcome.dead_letters:
            self.source.leave(letter.sequence)

    @rule(count=st.integers(1, 4))
    def redrive(self, count: int) -> None:
        target = self.target
        if not any(task.status == "RUNNING" for task in target.partition.tasks):
            target.host.ask(StartMoveTask(2, TASK, arn("dead"), None, 1, None))
        outcome = target.host.ask(TakeForMove(2, TASK, count))
        assert isinstance(outcome, TakenForTask)
        for taken in outcome.taken:
            target.leave(taken.sequence, TASK)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """A late receipt of a standard queue deletes whatever the message does now."""
        partition = self.source.partition
        if self.suffix or partition.head == partition.next_sequence:
            return
        sequence = data.draw(st.integers(partition.head, partition.next_sequence - 1))
        if partition.is_live(sequence):
            self._note_gone(self.source, sequence)
            self.source.host.ask(Delete(1, 0, [Receipt(sequence, 1, 1)]))

    @rule(which=st.integers(0, 19))
    def purge(self, which: int) -> None:
        if which > 1:
            return  # now and then
        journal = self.both[which]
        for number, _ in journal.ids():
            self.may_be_gone.add(number)
        journal.host.ask(Purge(journal.definition.queue_id))

    def _note_gone(self, journal: Journal, sequence: int) -> None:
        row, payload = journal.host.payload(journal.partition.index.entry(sequence).offset)
        start = MOVE_HEAD_BYTES if row.type == RecordType.MOVE else 0
        stored = decode_message(payload[start + prefix_bytes(row.flags) :])
        self.may_be_gone.add(int.from_bytes(stored.origin_message_id, "big"))

    @rule(which=st.integers(0, 1))
    def make_durable(self, which: int) -> None:
        self.both[which].host.make_durable(1)

    @rule(
        which=st.integers(0, 1),
        how_far=st.sampled_from(["on its way", "there", "answered"]),
        crashes=st.sampled_from([None, None, 0, 1]),
    )
    def dispatch(self, which: int, how_far: str, crashes: int | None) -> None:
        journal = self.both[which]
        call = journal.next_call()
        if call is None:
            return
        self.calls.append((journal, call))
        if how_far != "on its way":
            self._deliver(journal, call)
        if how_far == "answered":
            journal.on_answer(call)
        if crashes is not None:
            self.both[crashes].crash(uses_snapshot=False)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), is_kept=st.booleans())
    def deliver(self, data: st.DataObject, is_kept: bool) -> None:
        """Any call arrives now; `is_kept`: and once more."""
        at = data.draw(st.integers(0, len(self.calls) - 1))
        self._deliver(*(self.calls[at] if is_kept else self.calls.pop(at)))

    def _deliver(self, journal: Journal, call: Call) -> None:
        other = self._other(journal)
        token = other.host.propose(_wire(call.command))
        other.host.make_durable()
        answer = other.host.replies.pop(token)
        assert isinstance(answer, MoveInOutcome)
        call.answer = answer

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        journal, call = data.draw(st.sampled_from(self.calls))
        journal.on_answer(call)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.calls:
            self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))

    @rule(which=st.integers(0, 1))
    def snapshot(self, which: int) -> None:
        self.both[which].take_snapshot()

    @rule(which=st.integers(0, 1), uses_snapshot=st.booleans())
    def crash(self, which: int, uses_snapshot: bool) -> None:
        self.both[which].crash(uses_snapshot=uses_snapshot)

    @invariant()
    def no_message_is_visible_in_both(self) -> None:
        visible = [number for journal in self.both for number, how in journal.ids() if how == "here"]
        assert len(visible) == len(set(visible)), visible

    def teardown(self) -> None:
        if not hasattr(self, "both"):
            return
        for journal in self.both:  # the last ones cannot read everything
            journal.incarnation += journal.incarnation % 2
        for _ in range(3 * self.sent + 10):
            for journal in self.both:
                journal.host.make_durable()
                call = journal.next_call()
                if call is not None:
                    self._deliver(journal, call)
                    journal.on_answer(call)
        found = sorted(number for journal in self.both for number, _ in journal.ids())
        states = {how for journal in self.both for _, how in journal.ids()}
        assert states <= {"here"}, "every move is settled"
        assert len(found) == len(set(found)), found
        assert set(range(1, self.sent + 1)) - set(found) <= self.may_be_gone
        for journal in self.both:
            now_ms = journal.host.now_ms
            for _ in range(2):
                journal.host.make_durable()
            waiting = dict(journal.partition.moving)
            assert journal.host.replayed().state_hash(now_ms) == journal.host.states.state_hash(now_ms), (
                waiting
            )


class FIFOMoves(Moves):
    suffix = ".fifo"


TestMoves = Moves.TestCase
TestFIFOMoves = FIFOMoves.TestCase
TestMoves.settings = TestFIFOMoves.settings = settings(
    max_examples=20_000 if IS_LONG else 60,
    stateful_step_count=120 if IS_LONG else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)

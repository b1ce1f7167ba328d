"""Completions while leaders crash, answers are lost, and targets are split or deleted.

The queues decide as they do in the product; calls between journals and what a leader does besides are played here.

    A (journal 0) ──COMPLETE──▶ outputs under way ──▶ B (journal 0)
                                                  └─▶ C, FIFO (journal 1), later its children (journals 1 and 2)

D4   an output exists once if, and only if, the journal has the completion that sent it; healed, none is under way.
     One with the deduplication id of a message that is stored is nowhere; one whose queue was deleted may be.
D5   from one partition to another outputs keep the order of their completions; those of a group do, over partitions
     that follow each other, too.

Only deliveries that hold their message complete it, where A is ExactlyOnce; each message is completed once; who is told
that a completion was done can rely on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import msgspec
from harness.replica_host import (
    RETRY_WINDOW_MS,
    Host,
    arn,
    identity,
    message,
    number_in,
    queue,
    records_of,
    replay,
    snapshot_of,
)

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_snapshots import load_partition
from quaymaster.core.partition.proposals import Proposal, Wait
from quaymaster.core.partition.work.completion_records import outputs_of, split_completion
from quaymaster.core.queues.completions import complete, output_to_move
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.completions import Complete, CompletionDecided, Output
from quaymaster.core.values.commands.decided import TakenOutcome
from quaymaster.core.values.commands.messages import Done, Purge, Receipt, Receive, Send
from quaymaster.core.values.commands.moves import EndMoves, MovedMessage, MoveIn, MoveInOutcome, MovesGoOn
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.messages import split_prefix
from quaymaster.core.values.partition_tables import (
    split_ranges,
    taking,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.partition_keys import parts_of_key
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, one_partition, replace_definition
from quaymaster.core.values.records import RecordRow, RecordType
from sim.kernel import Violation

A, B, C = 1, 2, 3
NAMES = {A: "a", B: "b", C: "c.fifo"}
GROUPS = (7, KEY_MAX // 3, KEY_MAX - 7)
JOURNALS = 3
STEPS = 500
HEAL_ROUNDS = 2_000
TIMEOUT_MS = 4_000
Answer = Decided | Exception
BUGS: dict[str, type[QueueStates] | None] = {
    "outputs-before-commit": None,
    "outputs-not-resumed": None,
}
"""Planted bugs: the queues that have them, None where what plays a leader has."""


def plant(name: str) -> Callable[[type[QueueStates]], type[QueueStates]]:
    """Register queues as having a bug."""

    def register(variant: type[QueueStates]) -> type[QueueStates]:
        BUGS[name] = variant
        return variant

    return register


@plant("completes-unheld")
class CompletesUnheld(QueueStates):
    """A message that is there is completed by any delivery of it."""

    def _complete(self, command: Complete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        partition = self.partition(command.queue_id, command.partition)
        rows = [(receipt, partition.in_flight.get(receipt.sequence)) for receipt in command.receipts]
        receipts = [
            receipt if row is None else Receipt(receipt.sequence, row.epoch, row.delivery_count)
            for receipt, row in rows
        ]
        return super()._complete(msgspec.structs.replace(command, receipts=receipts), now_ms, proposal)


@plant("completion-twice")
class CompletionTwice(QueueStates):
    """A completion that is asked for again sends once more."""

    def _complete(self, command: Complete, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        decided, wait = super()._complete(command, now_ms, proposal)
        assert isinstance(decided, CompletionDecided)
        if decided.outcome.was_done:
            partition = self.partition(command.queue_id, command.partition)
            settled, partition.settled = partition.settled, None
            again = complete(partition, msgspec.structs.replace(command, receipts=[]), now_ms, proposal)
            partition.settled = settled
            self.sending_away.add(partition.key)
            decided.begun += again.begun
        return decided, wait


@plant("outputs-compacted")
class OutputsCompacted(QueueStates):
    """A record is taken for one that nobody needs though outputs of it are under way."""

    def is_live(self, row: RecordRow) -> bool:
        return row.type != RecordType.COMPLETE and super().is_live(row)


@plant("duplicate-rerouted")
class DuplicateRerouted(QueueStates):
    """A sealed partition sends on what it has already."""

    def _move_in(self, command: MoveIn, now_ms: int, proposal: Proposal) -> tuple[Decided, Wait]:
        outcome, wait = super()._move_in(command, now_ms, proposal)
        target = self.partitions.get(command.queue_id << 16 | command.partition)
        if (
            isinstance(outcome, MoveInOutcome)
            and target is not None
            and target.is_sealed
            and outcome.duplicates
        ):
            outcome.withdrawn = sorted([*outcome.withdrawn, *outcome.duplicates])
            outcome.is_sealed, outcome.definition = True, self._newest(command.queue_id, target.definition)
        return outcome, wait


@plant("deleted-with-outputs")
class DeletedWithOutputs(QueueStates):
    """A queue is deleted while outputs of it are under way."""

    def _check_has_no_outputs(self, queue_id: int) -> None:
        pass


@dataclass
class Journal:
    """One journal and its leader; `incarnation` counts leaders, whose knowledge goes with them."""

    number: int
    host: Host
    incarnation: int = 0
    waiting: dict[int, Callable[[Answer], None]] = field(default_factory=dict)
    compacted: set[int] = field(default_factory=set)
    """Offsets of records that are no longer there."""

    def ask(self, command: Command | InternalCommand, then: Callable[[Answer], None]) -> None:
        self.waiting[self.host.propose(command)] = then

    def answer(self) -> None:
        """Hear what may be told by now."""
        for token in [token for token in self.waiting if token in self.host.replies]:
            self.waiting.pop(token)(self.host.replies.pop(token))

    @property
    def is_durable(self) -> bool:
        return self.host.batches[-1].next_offset <= self.host.replica.durable_end


class Place(NamedTuple):
    """A message as it lies in B or C."""

    queue_id: int
    partition: int
    number: int
    group: int
    dedup: bytes | None


class CompletionsWorld:
    """Journals, what was received and completed, and what became of it."""

    def __init__(self, seed: int, bug: str | None = None) -> None:
        self.random = Random(seed)
        self.bug = bug
        self.kind = (BUGS[bug] if bug is not None else None) or QueueStates
        self.keepers = [MemoryChunks() for _ in range(JOURNALS)]
        self.journals = [
            Journal(number, Host(states=self._states(number), is_slow=True)) for number in range(JOURNALS)
        ]
        self.is_held = self.random.random() < 0.5
        guarantee = {"DeliveryGuarantee": "ExactlyOnce"} if self.is_held else {}
        scope = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
        self.a = queue(A, NAMES[A], attributes=guarantee)
        self.b = queue(B, NAMES[B])
        self.tables = [replace_definition(queue(C, NAMES[C], attributes=scope), partitions=one_partition(1))]
        self.sent = 0
        self.numbers = 1_000
        self.deliveries: list[tuple[int, Receipt]] = []
        """What consumers hold: the message's sequence number, and the receipt."""
        self.newest: dict[int, tuple[int, int]] = {}
        """The newest delivery of each message that was answered: epoch and count."""
        self.asked: list[tuple[Complete, bool]] = []
        """Completions, and whether the receipt was the newest one when it was asked for."""
        self.done: set[int] = set()
        """The digests of completions that somebody was told are done."""
        self.dedup_ids: list[tuple[int, int]] = []
        """Group and deduplication id of what was sent to C."""
        self.begun: set[int] = set()
        """The targets that this leader sends to."""
        self.carried: set[int] = set()
        self.is_b_deleted = self.is_a_deleted = False
        self.snapshot: bytes | None = None
        for journal, definition in ((0, self.a), (0, self.b), (1, self.tables[0])):
            self.journals[journal].host.ask(SetQueue(definition))

    def _states(self, number: int) -> QueueStates:
        return self.kind(self.keepers[number], retry_window_ms=RETRY_WINDOW_MS, journal_id=number)

    @property
    def source(self) -> Journal:
        return self.journals[0]

    @property
    def partition(self) -> Partition | None:
        """A's only partition, None once it is deleted."""
        return self.source.host.states.partitions.get(A << 16)

    def run(self) -> None:
        """Do steps, heal, and judge. Raises Violation."""
        for _ in range(STEPS):
            self.step()
        self.heal()
        self.judge()

    def step(self) -> None:
        """Do one thing."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (6, self.send), (8, self.receive), (8, self.complete), (4, self.repeat), (16, self.carry), (14, self.sync),
            (2, self.send_to_target), (2, self.crash), (3, self.take_snapshot), (4, self.compact), (1, self.change),
            (1, self.purge), (1, self.delete),
        ]  # fmt: skip
        (chosen,) = self.random.choices([step for _, step in steps], weights=[weight for weight, _ in steps])
        chosen()
        for journal in self.journals:
            journal.answer()

    # What clients do

    def send(self) -> None:
        if self.partition is not None and self.sent < 80:
            self.sent += 1
            self.source.host.ask(Send(A, 0, [message(self.sent)]))

    def receive(self) -> None:
        if self.partition is None:
            return
        self.source.host.now_ms += 700
        timeout_ms = self.random.choice((0, TIMEOUT_MS, TIMEOUT_MS))

        def received(answer: Answer) -> None:
            if isinstance(answer, TakenOutcome):
                for taken in answer.taken:
                    receipt = Receipt(taken.sequence, answer.epoch, taken.delivery_count)
                    self.deliveries.append((taken.sequence, receipt))
                    number = receipt.epoch, receipt.delivery_count
                    self.newest[taken.sequence] = max(self.newest.get(taken.sequence, (0, 0)), number)

        self.source.ask(Receive(A, 0, self.random.randint(1, 3), timeout_ms), received)

    def complete(self) -> None:
        """Complete some message that was received, maybe long ago, and maybe by somebody else, too."""
        if not self.deliveries or self.partition is None:
            return
        sequence, receipt = self.random.choice(self.deliveries[-8:])
        outputs = [self._output() for _ in range(self.random.randint(1, 4))]
        self.numbers += 1
        command = Complete(A, 0, [receipt], outputs, self.numbers)
        is_newest = (receipt.epoch, receipt.delivery_count) >= self.newest[sequence]
        self.asked.append((command, is_newest))
        self._ask(command, is_newest=is_newest)

    def repeat(self) -> None:
        """Ask for a completion again, as an SDK does that had no answer, or a late one."""
        if self.asked and self.partition is not None:
            command, is_newest = self.random.choice(self.asked[-6:])
            self._ask(command, is_newest=is_newest)

    def _ask(self, command: Complete, *, is_newest: bool) -> None:
        def answered(answer: Answer) -> None:
            if not isinstance(answer, CompletionDecided):
                return
            self.begun.update(begun.target_key for begun in answer.begun)
            if answer.outcome.errors == [None]:
                if self.is_held and not is_newest and not answer.outcome.was_done:
                    raise Violation("D4", f"{command.receipts} completed a message that another delivery has")
                self.done.add(command.digest)

        self.source.ask(command, answered)
        if self.bug == "outputs-before-commit" and self.partition is not None:
            moves = self.partition.moves
            self.begun.update(moves.out if moves is not None else ())

    def _output(self) -> Output:
        self.numbers += 1
        if self.random.random() < 0.4:
            new = message(self.numbers)
            return Output(B, 0, 0, self.numbers, arn(NAMES[B]), new.payload, new.flags)
        group = self.random.choice(GROUPS)
        dedup = self.numbers
        if self.dedup_ids and self.random.random() < 0.3:
            group, dedup = self.random.choice(self.dedup_ids)
        self.dedup_ids.append((group, dedup))
        new = message(self.numbers, group=group, dedup=identity(dedup))
        table = self.random.choice(self.tables)
        if dedup == self.numbers and len(self.tables) > 1 and self.random.random() < 0.4:
            # Who asks knows that the ids of the parent are too old to count.
            table = with_state(self.tables[-1], 0, "closed")
        entry = taking(table, group)[0]
        return Output(C, entry.number, entry.journal_id, group, arn(NAMES[C]), new.payload, new.flags)

    def send_to_target(self) -> None:
        """Somebody else sends to C: outputs may have that deduplication id."""
        self.numbers += 1
        group = self.random.choice(GROUPS)
        entry = taking(self.tables[-1], group)[0]
        self.dedup_ids.append((group, self.numbers))
        new = message(self.numbers, group=group, dedup=identity(self.numbers))
        self.journals[entry.journal_id].ask(Send(C, entry.number, [new]), lambda answer: None)

    def purge(self) -> None:
        if self.partition is not None:
            self.source.ask(Purge(A), lambda answer: None)

    def change(self) -> None:
        """C gets a partition, or two, in another journal."""
        if len(self.tables) > 1:
            return
        before = self.tables[0]
        ranges = split_ranges(0, KEY_MAX, self.random.choice((1, 2)))
        journals = [2, 1][: len(ranges)]
        self.tables.append(with_children_open(with_children(before, before.partitions, ranges, journals)))
        for journal in (2, 1):
            self.journals[journal].host.ask(SetQueue(self.tables[-1], journal))

    def delete(self) -> None:
        """B is deleted, or A: that must wait until nothing of it is under way."""
        if self.random.random() < 0.7:
            return
        if not self.is_b_deleted and self.random.random() < 0.3:
            self.is_b_deleted = True
            self.source.host.ask(ForgetQueue(B))
            return

        def deleted(answer: Answer) -> None:
            self.is_a_deleted = self.is_a_deleted or answer == Done()

        if self.partition is not None and len(self.asked) > 20:
            self.source.ask(ForgetQueue(A), deleted)

    # What leaders do

    def carry(self) -> None:
        """Send the first outputs for some partition that are committed; both ends may lose what they are told."""
        partition = self.partition
        is_early = self.bug == "outputs-before-commit"
        if partition is None or partition.moves is None or not (self.source.is_durable or is_early):
            return
        pairs = [
            pair
            for pair in partition.moves.out.values()
            if pair.open and pair.target_key not in self.carried and pair.target_key in self.begun
        ]
        if not pairs:
            return
        pair = self.random.choice(pairs)
        messages = [
            self._message(partition, number, move)
            for number, move in partition.moves.to_send(pair.target_key, 1 << 62, self.random.randint(1, 5))
        ]
        queue_id, number_there = parts_of_key(pair.target_key)
        command = MoveIn(queue_id, number_there, A, 0, messages)
        incarnation, target_key = self.source.incarnation, pair.target_key
        self.carried.add(target_key)

        def settled(answer: Answer) -> None:
            if self.source.incarnation == incarnation:
                self.carried.discard(target_key)
            is_lost = self.random.random() < 0.15
            if not isinstance(answer, MoveInOutcome) or self.source.incarnation != incarnation or is_lost:
                return
            numbers = [one.number for one in messages]
            withdrawn = numbers if answer.is_gone else answer.withdrawn
            taken = [number for number in numbers if number not in withdrawn]
            elsewhere = answer.definition if answer.is_sealed else None
            self.carried.add(target_key)

            def ended(answer: Answer) -> None:
                self.carried.discard(target_key)
                if isinstance(answer, MovesGoOn):
                    self.begun.update(begun.target_key for begun in answer.begun)

            self.source.ask(EndMoves(A, 0, target_key, taken, withdrawn, elsewhere), ended)

        self.journals[pair.journal_id].ask(command, settled)

    def _message(self, partition: Partition, number: int, move: Any) -> MovedMessage:
        if move.offset in self.source.compacted:
            raise Violation("D4", f"the output at {move.offset} is under way, and its record is not there")
        outputs = list(outputs_of(self.source.host.payload(move.offset)[1]))
        return output_to_move(partition, number, outputs[move.at])

    def sync(self) -> None:
        journal = self.random.choice(self.journals)
        journal.host.make_durable(self.random.choice((1, 3, None)))

    def take_snapshot(self) -> None:
        if self.partition is not None:
            self.source.host.make_durable()
            self.partition.applied = self.source.host.replica.end_offset
            self.snapshot = snapshot_of(self.partition)

    def compact(self) -> None:
        """Records that nobody needs any more are gone from the disk."""
        if self.source.is_durable:
            states = self.source.host.states
            rows = [
                row for row, _, _ in records_of(self.source.host.batches) if row.type == RecordType.COMPLETE
            ]
            self.source.compacted.update(row.offset for row in rows if not states.is_live(row))

    def crash(self) -> None:
        """A leader is lost with what was not durable; another one begins with the rest."""
        journal = self.random.choice(self.journals)
        batches, now_ms = journal.host.durable_batches(), journal.host.now_ms
        states = self._states(journal.number)
        states = replay(batches, states=states)
        if journal is self.source and self.snapshot is not None and A << 16 in states.partitions:
            # A's partition is as its snapshot and the records since have it.
            states = self._from_snapshot(batches)
        journal.incarnation += 1
        journal.waiting.clear()
        journal.host = Host(
            batches=batches, states=states, epoch=journal.incarnation + 1, now_ms=now_ms, is_slow=True
        )
        if journal is self.source:
            self.carried.clear()
            self.begun.clear()
            moves = self.partition.moves if self.partition is not None else None
            if moves is not None and self.bug != "outputs-not-resumed":
                self.begun.update(moves.out)
        else:  # nobody answers: it is sent again
            self.carried -= {key for key in self.carried if self._journal_of(key) == journal.number}

    def _from_snapshot(self, batches: list[Any]) -> QueueStates:
        assert self.snapshot is not None
        data = self.snapshot
        states = self._states(0)
        loaded = load_partition(data, self.a, 0, self.keepers[0], retry_window_ms=RETRY_WINDOW_MS)
        states.load(self.a, [loaded])
        return replay(batches, states=states, start=0)

    def _journal_of(self, target_key: int) -> int:
        queue_id, number = parts_of_key(target_key)
        if queue_id == B:
            return 0
        return next(entry.journal_id for entry in self.tables[-1].partitions if entry.number == number)

    # Judging

    def heal(self) -> None:
        """Let everything arrive."""
        for _ in range(HEAL_ROUNDS):
            for journal in self.journals:
                journal.host.make_durable()
                journal.answer()
            if not self.source.host.states.outputs_under_way:
                return
            self.carry()
        raise Violation("D4", f"{self.source.host.states.outputs_under_way} outputs are under way for ever")

    def places(self) -> Iterator[Place]:
        """Yield the messages of B and C, in their order."""
        for journal in self.journals:
            for key, partition in journal.host.states.partitions.items():
                if key >> 16 == A:
                    continue
                for sequence in range(partition.head, partition.next_sequence):
                    row, payload = journal.host.payload(partition.index.offset_and_sent_ms(sequence)[0])
                    sent = payload[MOVE_HEAD_BYTES:] if row.type == RecordType.MOVE else payload
                    number = number_in(row.flags, sent)
                    group, dedup, _ = split_prefix(row.flags, sent)
                    yield Place(key >> 16, partition.number, number, group, dedup)

    def judge(self) -> None:
        """Compare what there is with the completions that A's journal has."""
        there = list(self.places())
        counts = Counter(place.number for place in there)
        ids = Counter((place.queue_id, place.dedup) for place in there if place.dedup is not None)
        expected: dict[int, tuple[int, int]] = {}
        digests: Counter[int] = Counter()
        sequences: Counter[int] = Counter()
        for row, payload, _ in records_of(self.source.host.batches):
            if row.type != RecordType.COMPLETE:
                continue
            head = split_completion(payload)
            digests[head.digest] += 1
            sequences.update(deletion.sequence for deletion in head.deletions)
            for at, output in enumerate(outputs_of(payload)):
                sent = output.payload
                number = number_in(output.flags, sent)
                expected[number] = row.offset, at
                dedup = split_prefix(output.flags, sent)[1]
                is_dropped = output.place.queue_id == B and self.is_b_deleted
                is_duplicate = dedup is not None and ids[C, dedup] == 1
                if not counts[number] and not is_dropped and not is_duplicate:
                    raise Violation("D4", f"output {number} was sent and is nowhere")
        if any(count > 1 for count in (*counts.values(), *ids.values(), *sequences.values())):
            raise Violation("D4", "an output is twice, a deduplication id, or a message that was completed")
        if any(count > 1 for count in digests.values()) or self.done - digests.keys():
            raise Violation("D4", "a completion was done twice, or not at all though somebody was told so")
        outputs = {number for command, _ in self.asked for number in _numbers_of(command)}
        if any(number in outputs and number not in expected for number in counts):
            raise Violation("D4", "an output exists whose completion does not")
        self._judge_order(there, expected)

    def _judge_order(self, there: list[Place], expected: dict[int, tuple[int, int]]) -> None:
        """In partitions that follow no other, and for each group over all: a child gets late what a parent refused."""
        last: dict[tuple[int, str, int], tuple[int, int]] = {}
        for place in sorted(there, key=lambda place: place.partition):
            sent = expected.get(place.number)
            if sent is None:
                continue
            lines = [(place.queue_id, "group", place.group)] if place.group else []
            lines += [(place.queue_id, "partition", 0)] if not place.partition else []
            for line in lines:
                if sent < last.get(line, (0, 0)):
                    raise Violation("D5", f"output {place.number} arrived after one of a later completion")
                last[line] = sent


def _numbers_of(command: Complete) -> Iterator[int]:
    for output in command.outputs:
        yield number_in(output.flags, output.payload)

"""A FIFO queue whose partitions are split while dead letters come to it, leaders crash, and answers are lost.

The queues decide as they do in the product; calls between journals and what a leader does besides are played here.
Whatever happens, each message arrives once, and no message of a group is handed out while another partition has an
older one.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import get_args

import pytest
from harness.replica_host import RETRY_WINDOW_MS, Host, arn, identity, message, queue, replay

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.queues.moved_messages import message_to_move
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.fifo_order import FIFOOrder
from quaymaster.core.structures.orders.held_groups import Question
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import DeadLetter, TakenOutcome
from quaymaster.core.values.commands.messages import Delete, Receipt, Receive, Send
from quaymaster.core.values.commands.moves import EndMoves, MovedMessage, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.commands.partitions import AskGroups, GroupsOutcome, SetQueue
from quaymaster.core.values.commands.unions import Command, Decided, InternalCommand
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import (
    entries_to_split,
    entry_of,
    in_state,
    parents_of_new,
    with_children,
    with_children_open,
    with_state,
)
from quaymaster.core.values.queues.partition_keys import parts_of_key
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, one_partition, replace_definition

pytestmark = pytest.mark.uncovered

IS_LONG = os.environ.get("QUAYMASTER_HYPOTHESIS") == "long"

SOURCE, DEAD = 1, 2
JOURNALS = 3
GROUPS = [7, KEY_MAX // 3, KEY_MAX // 2 + 1, KEY_MAX - 7]
STEPS = 900
Answer = Decided | Exception


@dataclass
class Journal:
    """One journal and its leader; `incarnation` counts leaders, whose knowledge goes with them."""

    number: int
    host: Host
    incarnation: int = 0
    waiting: dict[int, Callable[[Answer], None]] = field(default_factory=dict)

    def ask(self, command: Command | InternalCommand, then: Callable[[Answer], None]) -> None:
        self.waiting[self.host.propose(command)] = then

    def answer(self) -> None:
        """Hear what may be told by now."""
        for token in [token for token in self.waiting if token in self.host.replies]:
            self.waiting.pop(token)(self.host.replies.pop(token))


class World:
    """Journals, the tables of the dead-letter queue so far, and who received what."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.keepers = [MemoryChunks() for _ in range(JOURNALS)]
        self.journals = [
            Journal(number, Host(states=self._states(number), is_slow=True)) for number in range(JOURNALS)
        ]
        attributes = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
        dead = replace_definition(
            queue(DEAD, "dead.fifo", attributes=attributes), partitions=one_partition(1)
        )
        policy = {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn(dead.name)}","maxReceiveCount":1}}'}
        self.tables = [dead]
        self.told: dict[int, int] = {}
        self.letters: list[tuple[int, DeadLetter]] = []
        self.sent = 0
        self.group_of: dict[int, int] = {}
        self.delivered: dict[int, int] = {}
        """The partition that each message was handed out by."""
        self.carried: set[int] = set()
        """The partitions that moves are being sent to."""
        self.source_host.states.elsewhere = self.elsewhere()
        self.source_host.ask(SetQueue(queue(SOURCE, "steps.fifo", attributes=policy)))
        self.tell(1)
        self.journals[1].host.make_durable()

    def _states(self, number: int) -> QueueStates:
        return QueueStates(self.keepers[number], retry_window_ms=RETRY_WINDOW_MS, journal_id=number)

    @property
    def source_host(self) -> Host:
        return self.journals[0].host

    def elsewhere(self) -> QueuesElsewhere:
        elsewhere = QueuesElsewhere(CellFormat())
        elsewhere.places[arn("dead.fifo")] = self.tables[0]
        return elsewhere

    def tell(self, journal: int, *, at_once: bool = False) -> None:
        """Tell a journal the newest table."""
        host = self.journals[journal].host
        host.propose(SetQueue(self.tables[-1], journal))
        if at_once:
            host.make_durable()

    # Steps

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (6, self.send), (6, self.wear_out), (10, self.decide_letter), (8, self.carry), (6, self.ask_groups),
            (8, self.receive), (14, self.sync), (1, self.crash), (1, self.change),
        ]  # fmt: skip
        (chosen,) = self.random.choices([step for _, step in steps], weights=[weight for weight, _ in steps])
        chosen()
        for journal in self.journals:
            journal.answer()

    def send(self) -> None:
        if self.sent < 120:
            self.sent += 1
            group = self.random.choice(GROUPS)
            self.group_of[self.sent] = group
            new = message(self.sent, group=group, dedup=identity(self.sent))
            self.source_host.ask(Send(SOURCE, 0, [new]))

    def wear_out(self) -> None:
        journal = self.journals[0]

        def met(answer: Answer) -> None:
            if isinstance(answer, TakenOutcome):
                self.letters += [(journal.incarnation, letter) for letter in answer.dead_letters]

        journal.ask(Receive(SOURCE, 0, self.random.randint(1, 10), 0), met)

    def decide_letter(self) -> None:
        """Decide on the oldest dead letter, by some table: a leader may have looked long ago."""
        if not self.letters:
            return
        incarnation, letter = self.letters.pop(0)
        journal = self.journals[0]
        if incarnation != journal.incarnation:
            return
        row, payload = journal.host.payload(letter.offset)
        table = self.random.choice(self.tables)
        command = MoveMessage(
            SOURCE, 0, letter.sequence, DEAD, row.type, row.flags, payload, None, target=table
        )
        journal.ask(command, lambda answer: None)

    def carry(self) -> None:
        """Send the first moves of some pair that are committed; both ends may lose what they are told."""
        journal = self.journals[0]
        source = journal.host.partition(SOURCE)
        pairs = [
            pair
            for pair in (source.moves.out.values() if source.moves is not None else ())
            if pair.open and pair.target_key not in self.carried
        ]
        if not pairs or journal.host.batches[-1].next_offset > journal.host.replica.durable_end:
            return
        pair = self.random.choice(pairs)
        assert source.moves is not None
        messages: list[MovedMessage] = []
        for number, move in source.moves.to_send(pair.target_key, 1 << 62, self.random.randint(1, 4)):
            row, payload = journal.host.payload(source.index.offset_and_sent_ms(move.sequence)[0])
            record = row.type, row.flags, payload
            messages.append(
                message_to_move(
                    source, move.sequence, record, source_arn=None, new_message_id=None, number=number
                )
            )
        _, number_there = parts_of_key(pair.target_key)
        command = MoveIn(DEAD, number_there, SOURCE, 0, messages)
        incarnation, target_key = journal.incarnation, pair.target_key
        self.carried.add(target_key)

        def settled(answer: Answer) -> None:
            self.carried.discard(target_key)
            if (
                not isinstance(answer, MoveInOutcome)
                or journal.incarnation != incarnation
                or self.random.random() < 0.1
            ):
                return
            assert not answer.is_gone
            numbers = [one.number for one in messages]
            taken = [number for number in numbers if number not in answer.withdrawn]
            elsewhere = answer.definition if answer.is_sealed else None
            ended = EndMoves(SOURCE, 0, target_key, taken, answer.withdrawn, elsewhere)
            journal.ask(ended, lambda answer: None)

        self.journals[pair.journal_id].ask(command, settled)

    def children(self) -> list[tuple[Journal, Partition, FIFOOrder]]:
        found: list[tuple[Journal, Partition, FIFOOrder]] = []
        for journal in self.journals:
            for key in journal.host.states.holding:
                partition = journal.host.states.partitions.get(key)
                if partition is not None and isinstance(partition.order, FIFOOrder):
                    found.append((journal, partition, partition.order))
        return found

    def ask_groups(self) -> None:
        children = self.children()
        if not children:
            return
        journal, partition, order = self.random.choice(children)
        assert order.holds is not None
        parent = self.random.choice(list(order.holds.parents))
        if self.random.random() < 0.2:
            order.holds.want_look()
        asked = order.holds.to_ask(parent, 3, self.random.choice(get_args(Question)))
        look = order.holds.looks
        entry = entry_of(partition.definition, parent)
        if not asked or entry is None:
            return
        incarnation = journal.incarnation

        def answered(answer: Answer) -> None:
            is_heard = journal.incarnation == incarnation and self.random.random() < 0.9
            if (
                isinstance(answer, GroupsOutcome)
                and answer.is_sealed
                and is_heard
                and order.holds is not None
            ):
                freed = order.holds.answered(parent, asked, array("Q", answer.gone), look=look)
                order.release(freed, journal.host.now_ms)

        self.journals[entry.journal_id].ask(AskGroups(DEAD, parent, array("Q", asked).tobytes()), answered)

    def receive(self) -> None:
        entry = self.random.choice(self.tables[-1].partitions)
        journal = self.journals[entry.journal_id]
        incarnation = journal.incarnation

        def received(answer: Answer) -> None:
            if not isinstance(answer, TakenOutcome):
                return
            for taken in answer.taken:
                number = journal.host.number_at(taken.offset)
                self._check(number, entry.number)
                if journal.incarnation != incarnation or self.random.random() < 0.1:
                    continue  # the consumer forgets it until its time is over
                receipt = Receipt(taken.sequence, answer.epoch, taken.delivery_count)
                journal.ask(Delete(DEAD, entry.number, [receipt]), lambda answer: None)

        journal.host.now_ms += 1_000
        journal.ask(Receive(DEAD, entry.number, self.random.randint(1, 3), 5_000), received)

    def _check(self, number: int, partition: int) -> None:
        """No other partition has an older message of the group, nor is one on its way, nor was a newer one given."""
        before = self.delivered.setdefault(number, partition)
        assert before == partition, f"{number} was in partition {before}, and is in {partition}"
        places = self.places()
        for other, group in self.group_of.items():
            if group != self.group_of[number] or other == number:
                continue
            if other < number:
                where = places.get(other, partition)
                assert where == partition, f"{number} of {partition} overtook {other} of {where}"
            else:
                where = self.delivered.get(other, partition)
                assert where == partition, f"{other} of {where} overtook {number} of {partition}"

    def places(self) -> dict[int, int]:
        """Return the partition that has each message now, -1 for the source."""
        found: dict[int, int] = {}
        for journal in self.journals:
            for key, partition in journal.host.states.partitions.items():
                for sequence in range(partition.head, partition.next_sequence):
                    if partition.is_live(sequence):
                        offset = partition.index.offset_and_sent_ms(sequence)[0]
                        number = journal.host.number_at(offset)
                        where = partition.number if key >> 16 == DEAD else -1
                        # On its way it is in both.
                        found[number] = max(found.get(number, -1), where)
        return found

    def sync(self) -> None:
        journal = self.random.choice(self.journals)
        journal.host.make_durable(self.random.choice((1, 3, None)))

    def crash(self) -> None:
        """A leader is lost with what was not durable; another one begins with the rest."""
        journal = self.random.choice(self.journals)
        batches = journal.host.durable_batches()
        now_ms = journal.host.now_ms
        states = replay(batches, states=self._states(journal.number))
        journal.incarnation += 1
        journal.waiting.clear()
        self.carried.clear()
        journal.host = Host(
            batches=batches, states=states, epoch=journal.incarnation + 1, now_ms=now_ms, is_slow=True
        )
        if journal.number == 0:
            states.elsewhere = self.elsewhere()
            self.letters = []
        journal.host.make_durable()

    def change(self) -> None:
        """Split an open partition: first the journals of the children know, then those of the parents."""
        table = self.tables[-1]
        if table.next_partition > 7:
            return
        for entry in in_state(table, "closing"):
            table = with_state(table, entry.number, "closed")
        number = self.random.choice([entry.number for entry in in_state(table, "open")])
        parents, ranges = entries_to_split(table, 2, number)
        journals = [self.random.randrange(JOURNALS) for _ in ranges]
        new = with_children(table, parents, ranges, journals)
        self.tables.append(new)
        for journal in set(journals):
            self.tell(journal, at_once=True)
        sealed = {entry.journal_id for entry in parents_of_new(new)}
        self.tables.append(with_children_open(new))
        for journal in sealed:
            self.tell(journal, at_once=True)
        for journal in set(range(JOURNALS)) - sealed:
            if self.random.random() < 0.5 or journal in journals:
                self.tell(journal, at_once=True)

    def heal(self) -> None:
        """Go on without faults until everything was received and deleted."""
        for number in range(JOURNALS):
            self.tell(number, at_once=True)
        for _ in range(6_000):
            for journal in self.journals:
                journal.host.make_durable()
                journal.answer()
            partitions = [
                partition
                for journal in self.journals
                for partition in journal.host.states.partitions.values()
            ]
            if not any(partition.alive for partition in partitions):
                assert sum(partition.moved_in for partition in partitions) == self.sent
                return
            self.random.choice(
                (self.wear_out, self.decide_letter, self.carry, self.ask_groups, self.receive)
            )()
        raise AssertionError(f"still there: {self.places()}")


@pytest.mark.parametrize("seed", range(200 if IS_LONG else 12))
def test_groups_keep_their_order_while_partitions_are_split(seed: int) -> None:
    world = World(seed)

    for _ in range(STEPS):
        world.step()
    world.heal()

    assert len(world.tables) > 1

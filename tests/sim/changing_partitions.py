"""A queue whose partitions are split, merged and moved in a simulated cell, those who use it, and who judges it.

One client changes the table, as metadata does: children's journals are told first, then parents are closing, and their
journals told. Others send by tables that may be old, go on where they are told to, and receive from all partitions.

The queue is a standard one, or a FIFO one with few groups, whose leaders ask each other by the product's own
`broker/replica/group_questions` (`sim.questions`). Or it is a log, standard or FIFO, whose consumer groups are judged
as queues of their own (`sim.changing_logs`). In some runs the row goes back to an older one, as in a restored store.

P1    after a committed seal nothing new is stored in a partition
P2    no message of a group is given while an older one of it is there, in whatever partition, nor after a younger one
P3    one send is one message, over all partitions
P4    sequence numbers of a group grow with acknowledgements
P5    what was acknowledged is received from a partition that the table lists; no place is given to two messages
P6    a receive that every partition answered with nothing had nothing to find; what receives hide whose answers were
      lost is looked up where it is led, and so is what blocks a group. Those of FIFO queues are short polls
P7    healed, changes end
I17   what was deleted does not come back
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from harness.replica_host import identity, message, queue

from quaymaster.core.queues.repeats import as_repeat
from quaymaster.core.spread.receives import SpreadReceive
from quaymaster.core.spread.sends import SpreadSend
from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    Done,
    Elsewhere,
    EntriesOutcome,
    QueueCounts,
    Receive,
    ReceiveOutcome,
    Send,
    Watch,
)
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome, SetQueue
from quaymaster.core.values.errors import (
    CallerError,
    InvalidParameterValue,
    NotNow,
    OverLimit,
    QueueDoesNotExist,
    UnsupportedOperation,
)
from quaymaster.core.values.partition_tables import (
    entries_to_merge,
    entries_to_move,
    entries_to_split,
    in_state,
    journals_of,
    parents_of_new,
    read_partitions,
    with_children,
    with_children_open,
    with_new_dropped,
    with_state,
    with_table_of,
    without,
)
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    group_definition,
    one_partition,
    replace_definition,
)
from sim.clients import receipts_of
from sim.kernel import MS, SECOND, Violation
from sim.messages import Received, Sent
from sim.queue_checker import Delivery

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.clients import Client, Script, Wish
    from sim.replica import Replica

CHANGING = 70
GROUP_IDS = (71, 72)
"""Consumer groups of the queue, where it is a log."""
FEEDER = 73
"""The queue whose dead letters go to it, where there is one (`sim.feeding`)."""
LOG_BYTES = 12_000
LOG: dict[str, object] = {"RetentionMode": "Log", "RetentionBytes": LOG_BYTES, "RetentionPins": "a,b"}
"""Messages that both groups have consumed go by size: the log then has no fewer bytes than that."""
WINDOW_MS = 20_000
"""Nobody here sends anything again after so long."""
ATTEMPTS_MAX = 6
PRODUCERS = 3
CONSUMERS = 3
KINDS = ("split", "split", "merge", "move")
KINDS_OF_FIFO_LOG = ("split", "merge all", "merge all", "move", "move")
"""Sinks wait there while several partitions are open."""
GOLDEN = 0x9E3779B97F4A7C15F39CC0605CEDC835
REPEATED_US = 3 * SECOND
"""So late some sends are repeated: a change may have come between."""
DELETED_US = 15 * SECOND
"""A delete that is not answered may be carried out so late: clients try for half as long."""
REPEATED = 0.2
"""So many of those that were answered are repeated."""
BY_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
GROUPS = [number * GOLDEN % (1 << 64) for number in range(1, 7)]

Place = tuple[int, int]
"""Partition and sequence."""


@dataclass(slots=True)
class _Message:
    asked_us: int
    floor: int = 0
    """The highest sequence of its group that was acknowledged before it was sent."""
    is_fed: bool = False
    """Whether it was sent to another queue, whose dead letters come here."""
    place: Place | None = None
    is_acked: bool = False
    acked_us: int = 0
    deliveries: int = 0
    deletes_asked: int = 0
    delete_asked_us: int = 0
    deleted_us: int | None = None

    def may_be_deleted_since(self, us: int) -> bool:
        """Return whether it may have gone since a time."""
        if not self.deletes_asked:
            return False
        if self.deleted_us is None:
            return self.delete_asked_us > us - DELETED_US
        return self.deleted_us >= us


class PartitionChecker:
    """Judges what clients of the queue see, and has the row that decides on its table."""

    def __init__(self) -> None:
        self.row: QueueDefinition | None = None
        self.is_drained = True
        """Or not used."""
        self.sealed_us: dict[int, int] = {}
        """When it was known of each partition that its seal is committed."""
        self.journals: dict[int, int] = {}
        """Of each partition there ever was."""
        self.changes = 0
        self.restores = 0
        self.is_fifo = False
        self.has_feeder = False
        """Whether the queue is there whose dead letters come here."""
        self.groups: list[QueueDefinition] = []
        """Of a log: the rows of its consumer groups."""
        self.judges: dict[int, PartitionChecker] = {CHANGING: self}
        """By what is received from: the queue, or of a log each of its groups."""
        self.is_ended = True
        """Whether the last change is done; of a log, whether all that was sealed is drained."""
        self._copies: list[QueueDefinition] = []
        """Rows that the store may go back to."""
        self._messages: dict[int, _Message] = {}
        self._at: dict[Place, int] = {}
        self._live: dict[int, set[int]] = {group: set() for group in GROUPS}
        """Of each group the acknowledged messages that nobody wanted to delete yet."""
        self._highest: dict[int, int] = dict.fromkeys(GROUPS, 0)
        self._gone_below: dict[int, list[tuple[int, int]]] = {group: [] for group in GROUPS}
        """Of each group the sequences that came first in a receive, and when: what is older was gone by then."""
        self._left: dict[int, int] = {}
        """How many messages a sealed partition had when it was asked last."""
        self.fed_deliveries = 0
        """How often a dead letter of another queue was received."""
        self.judged_empty = 0
        """How many empty answers were judged."""

    def begin(
        self, journal_id: int, *, is_fifo: bool = False, has_ids: bool = False, is_log: bool = False
    ) -> QueueDefinition:
        """The queue is made in a journal. `has_ids`: its messages, of a standard queue, have deduplication ids."""
        self.is_fifo = is_fifo
        attributes: dict[str, object] = {"VisibilityTimeout": 2, "PartitionsMax": 4}
        if is_fifo:
            attributes |= BY_GROUP
        elif has_ids:
            attributes |= {"DeliveryGuarantee": "ExactlyOnce", "DeduplicationWindowSeconds": 3_600}
        name = "changing.fifo" if is_fifo else "changing"
        if is_log:
            attributes |= LOG
            self._begin_groups(name)
        definition = queue(CHANGING, name, attributes=attributes)
        self.set_row(replace_definition(definition, partitions=one_partition(journal_id)))
        return self.table

    def _begin_groups(self, log_name: str) -> None:
        """Two groups consume the log, and to each judge it is a queue of its own."""
        self.judges = {}
        for queue_id, name in zip(GROUP_IDS, ("a", "b"), strict=True):
            row = replace_definition(queue(queue_id, f"{log_name}@{name}"), group_of=CHANGING)
            self.groups.append(row)
            judge = self.judges[queue_id] = PartitionChecker()
            judge.is_fifo, judge.sealed_us = self.is_fifo, self.sealed_us

    @property
    def table(self) -> QueueDefinition:
        """The row."""
        assert self.row is not None, "the queue is made before it is used"
        return self.row

    def table_of(self, queue_id: int) -> QueueDefinition:
        """Return the row of the queue, or of a group of it, as that says."""
        group = next((row for row in self.groups if row.queue_id == queue_id), None)
        return self.table if group is None else group_definition(group, self.table)

    def old_table(self, random: Random) -> QueueDefinition:
        """Return the row, or a recent one before it."""
        return self.table if random.random() < 0.7 else random.choice(self._copies[-3:] or [self.table])

    def set_row(self, definition: QueueDefinition) -> None:
        """The row is another one: by compare-and-swap, so there is one at a time."""
        self.row = definition
        self._copies.append(definition)
        self.journals.update((entry.number, entry.journal_id) for entry in definition.partitions)

    def forget_copies(self) -> None:
        """Partitions are not listed any more: days have passed since, and no copy is so old."""
        self._copies = []

    def go_back(self, random: Random) -> None:
        """The store is restored from an older copy."""
        if self._copies:
            self.restores += 1
            # Not only the last change is to be lost; of a log, many have to end before the next one begins.
            copies = self._copies if self.groups else self._copies[: len(self._copies) // 2 + 1]
            self.row = random.choice(copies)

    def sent_elsewhere(self, partition: int, now_us: int) -> None:
        """A partition says that it does not take a message: it never takes any again."""
        self.sealed_us.setdefault(partition, now_us)

    def on_state(self, partition: int, told: PartitionOutcome) -> None:
        """A journal tells of a partition. Of a log, whose open transactions end there, a sealed one may still grow."""
        if told.sealed_for_ms is None or self.groups:
            return
        if told.messages > self._left.get(partition, told.messages):
            raise Violation(
                "P1",
                f"partition {partition} has {told.messages} messages, sealed, and had {self._left[partition]}",
            )
        self._left[partition] = told.messages

    def send_asked(self, number: int, now_us: int, *, is_fed: bool = False) -> None:
        """A send begins; `is_fed`: to the queue whose dead letters come here."""
        self._messages[number] = _Message(now_us, self._highest[group_of(number)], is_fed)

    def send_acked(
        self,
        number: int,
        partition: int,
        place: tuple[int, int],
        asked_us: int,
        *,
        is_new: bool,
        now_us: int = 0,
    ) -> None:
        """A partition acknowledges a message, that is there at (sequence, which message that is)."""
        sequence, original = place
        if original != number:
            raise Violation("P3", f"message {number} is called a duplicate of {original}")
        if is_new and self.sealed_us.get(partition, asked_us) < asked_us:
            raise Violation(
                "P1", f"message {number} was stored in partition {partition}, which was sealed before"
            )
        known, group = self._messages[number], group_of(number)
        if is_new and self.is_fifo and sequence <= known.floor:
            raise Violation(
                "P4", f"message {number} is at {sequence}, an older one of its group at {known.floor}"
            )
        if not known.is_acked:
            known.is_acked, known.acked_us = True, now_us
            self._highest[group] = max(self._highest[group], sequence)
            if not known.deletes_asked:
                self._live[group].add(number)
        self._place(number, (partition, sequence))

    def transaction_acked(self, numbers: list[int], now_us: int) -> None:
        """A transaction is committed: all of these are sent, and nobody says at which places."""
        for number in numbers:
            known = self._messages[number]
            if not known.is_acked:
                known.is_acked, known.acked_us = True, now_us
                if not known.deletes_asked:
                    self._live[group_of(number)].add(number)

    def place_of(self, number: int) -> Place | None:
        """Return where a message was seen to be."""
        return self._messages[number].place

    def read(self, number: int, place: Place) -> None:
        """A message was read by its offset."""
        if number not in self._messages:
            raise Violation("I16", f"message {number} was never sent")
        self._place(number, place)

    def finished_in(self, partition: int) -> int:
        """Return how many messages of a partition were received, and are to be deleted."""
        return sum(
            known.place is not None and known.place[0] == partition and known.deletes_asked > 0
            for known in self._messages.values()
        )

    def acknowledged(self) -> list[int]:
        """Return the messages that were acknowledged."""
        return [number for number, known in self._messages.items() if known.is_acked]

    def delivered(self, partition: int, found: list[Delivery], asked_us: int, now_us: int = 0) -> None:
        """A receive was answered."""
        for delivery in found:
            known = self._messages.get(delivery.number)
            if known is None:
                raise Violation("I16", f"message {delivery.number} was never sent")
            if known.deleted_us is not None and known.deleted_us < asked_us:
                raise Violation(
                    "I17", f"message {delivery.number} was received after its delete was acknowledged"
                )
            self._place(delivery.number, (partition, delivery.sequence))
            known.deliveries += 1
            self.fed_deliveries += known.is_fed
            if self.is_fifo:
                self._check_order(delivery, {one.number for one in found}, asked_us)
        if self.is_fifo:
            self._note_first_ones(found, now_us)

    def _note_first_ones(self, found: list[Delivery], now_us: int) -> None:
        """Where a message of a group is given, all that are older and do not come with it are gone for good."""
        firsts: dict[int, int] = {}
        for delivery in found:
            firsts.setdefault(group_of(delivery.number), delivery.sequence)
        for group, sequence in firsts.items():
            self._gone_below[group].append((sequence, now_us))

    def _check_order(self, delivery: Delivery, together: set[int], asked_us: int) -> None:
        """What is older in the group was deleted, or comes with it; nothing younger was given without it."""
        group = group_of(delivery.number)
        younger = [at for at, given_us in self._gone_below[group] if given_us < asked_us]
        if delivery.sequence < max(younger, default=0):
            raise Violation(
                "P2",
                f"message {delivery.number} at {delivery.sequence} is given after a younger one of its group, at "
                f"{max(younger)}",
            )
        for number in self._live[group]:
            other = self._messages[number]
            if other.place is None:
                continue  # it came in a transaction, and was not seen yet
            is_older = other.place[1] < delivery.sequence and other.acked_us < asked_us
            if is_older and number not in together:
                raise Violation(
                    "P2",
                    f"message {delivery.number} at {delivery.sequence} was given while {number} of its group was "
                    f"there, at {other.place}",
                )

    def found_nothing(
        self,
        asked_us: int,
        is_untaken: Callable[[int, int], bool],
        is_blocked: Callable[[int], bool] = lambda group: False,
    ) -> None:
        """A receive was answered with nothing by each partition, at some moment since it began.

        `is_untaken(partition, sequence)`: whether a leader has a message that no receive ever took.
        `is_blocked(group)`: whether a message of a group is out, or was, and is not deleted.
        """
        self.judged_empty += 1
        for number, known in self._messages.items():
            was_there = known.place is not None and known.is_acked and known.acked_us < asked_us
            if was_there and not known.deliveries and not known.deletes_asked:
                assert known.place is not None, "as was just seen"
                if self._was_blocked(number, asked_us, is_blocked):
                    continue
                if is_untaken(*known.place):
                    raise Violation(
                        "P6", f"message {number}, acknowledged at {known.place}, was there: not empty"
                    )

    def _was_blocked(self, number: int, asked_us: int, is_blocked: Callable[[int], bool]) -> bool:
        """Return whether another message of its group may have been out since a receive began."""
        if not self.is_fifo:
            return False
        group = group_of(number)
        others = (known for other, known in self._messages.items() if group_of(other) == group)
        return any(known.may_be_deleted_since(asked_us) for known in others) or is_blocked(group)

    def delete_asked(self, number: int, now_us: int = 0) -> None:
        """A delete begins."""
        self._messages[number].deletes_asked += 1
        self._messages[number].delete_asked_us = now_us
        self._live[group_of(number)].discard(number)

    def deleted(self, number: int, now_us: int) -> None:
        """A delete is acknowledged."""
        known = self._messages[number]
        known.deleted_us = known.deleted_us or now_us

    def check_drained(self) -> None:
        """All partitions that are listed are empty: what was acknowledged was received, and deleted by somebody."""
        for number, known in self._messages.items():
            if known.is_acked and not known.deletes_asked:
                what = "gone, and nobody deleted it" if known.deliveries else "never received"
                raise Violation("P5", f"message {number}, acknowledged at {known.place}, is {what}")
        if self.is_fifo:
            for group in GROUPS:
                for is_fed in (False, True):
                    self._check_sent_in_order(group, is_fed=is_fed)

    def _check_sent_in_order(self, group: int, *, is_fed: bool) -> None:
        """P4, also for what was sent in transactions, and for dead letters, whose places are seen later."""
        placed = [
            (number, known, known.place[1])
            for number, known in self._messages.items()
            if known.place is not None
            and known.is_acked
            and known.is_fed == is_fed
            and group_of(number) == group
        ]
        acked = sorted(placed, key=lambda one: one[1].acked_us)
        highest, highest_number, at = 0, 0, 0
        for number, known, sequence in sorted(placed, key=lambda one: one[1].asked_us):
            while at < len(acked) and acked[at][1].acked_us < known.asked_us:
                if acked[at][2] > highest:
                    highest_number, highest = acked[at][0], acked[at][2]
                at += 1
            if sequence < highest:
                raise Violation(
                    "P4",
                    f"message {number} is at {known.place}, and {highest_number} of its group, which was acknowledged "
                    f"before it was sent, at {highest}",
                )

    def _place(self, number: int, place: Place) -> None:
        there = self._at.setdefault(place, number)
        if there != number:
            raise Violation("P5", f"the place {place} is given to messages {there} and {number}")
        known = self._messages[number]
        known.place = known.place or place
        if known.place != place:
            raise Violation("P3", f"message {number} is stored twice, at {known.place} and {place}")


def group_of(number: int) -> int:
    """Return the message group of a message: a few hashes that are spread over all keys."""
    return GROUPS[number % len(GROUPS)]


def start_clients(cell: Cell) -> None:
    """Start all clients of the queue."""
    cell.partition_checker.is_drained = False
    cell.partition_checker.is_ended = False
    client = cell.client("changes tables")
    client.run(change_tables(client))
    for number in range(PRODUCERS):
        cell.producers_left += 1
        client = cell.client(f"p changing-{number}")
        client.run(send_some(client, gap_us=cell.faults.gap_us))
    queue_ids = GROUP_IDS if cell.faults.changes_log else (CHANGING,)
    for queue_id in queue_ids:
        for number in range(CONSUMERS):
            client = cell.client(f"c changing-{queue_id - CHANGING}{number}")
            client.run(receive_some(client, queue_id))
    client = cell.client("counts changing")
    client.run(watch_empty(client, queue_ids))


# Who changes the table


def change_tables(client: Client) -> Script:
    """Split, merge and move partitions, one change after the other; close, drain and drop what was there before."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    while not cell.used_journals:
        yield 50 * MS
    faults = cell.faults
    begun = checker.begin(
        random.choice(cell.used_journals),
        is_fifo=faults.changes_fifo,
        has_ids=faults.has_changing_ids,
        is_log=faults.changes_log,
    )
    yield from _tell(client, begun, [begun.partitions[0].journal_id])
    yield from _tell_of_groups(client, [begun.partitions[0].journal_id])
    while cell.is_sending:
        yield random.randint(0, 2 * SECOND)
        if faults.restores_rows:
            yield from _settle(client)
        row = checker.table
        # A change that the row went back to is continued.
        kinds = KINDS_OF_FIFO_LOG if faults.changes_log and faults.changes_fifo else KINDS
        began = row if in_state(row, "new") else _begun(random, row, cell.used_journals, kinds)
        if began is not None:
            yield from _change(client, began)
        yield from _clean_up(client)
    checker.is_ended = not faults.changes_log
    while not checker.is_ended:
        yield SECOND
        if faults.changes_fifo and cell.producers_left:
            began = _begun(random, checker.table, cell.used_journals, ("merge all",))
            if began is not None:
                yield from _change(client, began)
        yield from _clean_up(client)
        checker.is_ended = not cell.producers_left and not in_state(checker.table, "closing", "closed")


def _settle(client: Client) -> Script:
    """Now and then the row goes back to an older one. Before it is changed, open journals are told of it as it is."""
    checker, random = client.cell.partition_checker, client.random
    if random.random() < (0.2 if checker.groups else 0.5):
        checker.go_back(random)
        yield random.randint(0, 3 * SECOND)
    while True:
        row = checker.table
        yield from _tell(client, row, sorted({entry.journal_id for entry in in_state(row, "open")}))
        if checker.row is row:
            return


def _tell_of_groups(client: Client, journals: Collection[int]) -> Script:
    """Journals with new partitions of a log are told of its groups, before those open."""
    checker = client.cell.partition_checker
    for journal_id in journals:
        for row in checker.groups:
            command = SetQueue(checker.table_of(row.queue_id), journal_id=journal_id)
            while not isinstance((yield command), Done):
                pass


def _begun(
    random: Random, row: QueueDefinition, journals: list[int], kinds: tuple[str, ...] = KINDS
) -> QueueDefinition | None:
    opened = sorted(in_state(row, "open"), key=lambda entry: entry.first_key)
    at = random.randrange(len(opened))
    try:
        match random.choice(kinds):
            case "split":
                parents, ranges = entries_to_split(row, random.choice((2, 3)), opened[at].number)
            case "merge":
                parents, ranges = entries_to_merge(row, [entry.number for entry in opened[at : at + 2]])
            case "merge all":
                parents, ranges = entries_to_merge(row)
            case _:
                parents, ranges = entries_to_move(row, opened[at].number)
        return with_children(row, parents, ranges, [random.choice(journals) for _ in ranges])
    except (InvalidParameterValue, OverLimit, UnsupportedOperation):
        return None


def _change(client: Client, began: QueueDefinition) -> Script:
    checker, random = client.cell.partition_checker, client.random
    checker.set_row(began)
    parents = [entry.number for entry in parents_of_new(began)]
    new_journals = sorted({entry.journal_id for entry in in_state(began, "new")})
    yield from _tell(client, began, new_journals)
    if checker.row is not began:
        return  # it had gone back, and is as a journal says
    yield from _tell_of_groups(client, new_journals)
    if random.random() < 0.1:
        checker.set_row(with_new_dropped(began, "the runner says so"))
        yield from _tell(client, checker.table, new_journals)
        return
    opened = with_children_open(began)
    checker.set_row(opened)
    checker.changes += 1
    yield random.randint(0, 200 * MS)
    yield from _tell(client, opened, sorted({checker.journals[number] for number in parents}))
    if checker.row is not opened:
        return
    for number in parents:
        checker.sealed_us[number] = client.cell.kernel.now_us
    if random.random() < 0.5:
        yield from _tell(client, checker.table, list(journals_of(checker.table)))
    left = list(parents)
    while left:
        outcome = yield AskPartition(CHANGING, left[-1])
        if isinstance(outcome, PartitionOutcome):
            checker.on_state(left[-1], outcome)
            if outcome.sealed_for_ms is None:
                raise Violation("P1", f"partition {left[-1]} is not sealed, though its journal was told to")
            if outcome.sealed_for_ms > WINDOW_MS:
                checker.set_row(with_state(checker.table, left.pop(), "closed"))
                continue
        yield SECOND


def _clean_up(client: Client) -> Script:
    """Close what is sealed for long enough, drain what is empty, and drop what is drained."""
    checker = client.cell.partition_checker
    for entry in in_state(checker.table, "closing", "closed"):
        outcome = yield AskPartition(CHANGING, entry.number)
        if not isinstance(outcome, PartitionOutcome):
            continue
        checker.on_state(entry.number, outcome)
        if entry.state == "closing" and (outcome.sealed_for_ms or 0) > WINDOW_MS:
            checker.set_row(with_state(checker.table, entry.number, "closed"))
        elif entry.state == "closed" and outcome.is_empty:
            checker.set_row(with_state(checker.table, entry.number, "drained", sends=outcome.sends))
    journals = list(journals_of(checker.table))
    # A sink's batches are asked for longer than that, in a log.
    # Copies of the row that have what is not listed any more are too old: where it goes back, they are to be there.
    if not checker.groups and client.random.random() < (0.05 if client.cell.faults.restores_rows else 0.3):
        drained = [entry.number for entry in in_state(checker.table, "drained")]
        checker.set_row(without(checker.table, drained))
        checker.forget_copies()
    yield from _tell(client, checker.table, journals)


def _tell(client: Client, definition: QueueDefinition, journals: list[int]) -> Script:
    """Tell journals of the row; where one has a newer table, the row becomes that, and the others are not told."""
    checker = client.cell.partition_checker
    for journal_id in journals:
        while not isinstance((outcome := (yield SetQueue(definition, journal_id=journal_id))), Done):
            if isinstance(outcome, Elsewhere) and not client.cell.faults.restores_rows:
                raise Violation("P5", f"journal {journal_id} has a table that no row had")
            if isinstance(outcome, Elsewhere):
                checker.set_row(with_table_of(checker.table, outcome.definition))
                return


# Who uses the queue


def send_some(client: Client, *, gap_us: int) -> Script:
    """Send messages of random keys, each once as far as it knows."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    while checker.row is None or not cell.is_set_up:
        yield 50 * MS
    known = checker.table
    while cell.is_sending:
        if random.random() < 0.2:
            known = checker.table
        known = yield from send_one(client, known)
        yield random.randint(0, 2 * gap_us)
    cell.producers_left -= 1


def send_one(client: Client, known: QueueDefinition) -> Generator[Wish, object, QueueDefinition]:
    """Send a message by a table, and some of them again; return the newest table."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    number = cell.next_number()
    for judge in checker.judges.values():
        judge.send_asked(number, cell.kernel.now_us)
    may_be_retry = random.random() < 0.5
    own_id = _spread_identity(number)
    if checker.is_fifo:
        new = message(number, group=group_of(number), dedup=identity(number))
    elif cell.faults.has_changing_ids:
        new = message(number, dedup=own_id, may_be_retry=may_be_retry)
    else:
        new = message(number, retry=own_id, may_be_retry=may_be_retry)
    outcome, known = yield from _sent(client, known, Send(CHANGING, 0, [new]))
    # An SDK repeats what it has no answer of, also where the answer was lost on its way.
    if random.random() < (0.5 if isinstance(outcome, NotNow) else REPEATED):
        yield random.randint(0, REPEATED_US)
        repeat = as_repeat(Send(CHANGING, 0, [new]))
        assert isinstance(repeat, Send), "a repeated send is one"
        _, known = yield from _sent(client, checker.table, repeat)
    return known


def _spread_identity(number: int) -> bytes:
    """Return 16 bytes that stand for a number, and whose first ones, the message's key, are anywhere."""
    return identity(number * GOLDEN % (1 << 128))


def _sent(
    client: Client, known: QueueDefinition, command: Send
) -> Generator[Wish, object, tuple[object, QueueDefinition]]:
    """Send as front ends do (`core/spread/sends`); return the last outcome and the newest table."""
    cell, checker = client.cell, client.cell.partition_checker
    number = int.from_bytes(command.messages[0].message_id, "big")
    outcome: object = NotNow()
    spread = cell.bugs.variant(SpreadSend)(known, command.messages)
    parts = spread.begin()
    for _ in range(ATTEMPTS_MAX):
        if not parts:
            break
        (part,) = parts
        asked_us = cell.kernel.now_us
        outcome = yield part.command
        if isinstance(outcome, Sent):
            is_new = not outcome.duplicates
            for judge in checker.judges.values():
                judge.send_acked(
                    *(number, part.number, outcome.places[0], asked_us),
                    is_new=is_new,
                    now_us=cell.kernel.now_us,
                )
            break
        if isinstance(outcome, Elsewhere):
            checker.sent_elsewhere(part.number, cell.kernel.now_us)
            known = max(known, outcome.definition, key=lambda table: table.table_version)
            parts = spread.on_outcome(part, outcome, known)
        elif isinstance(outcome, CallerError):  # the partition is not there yet, or no more
            known = checker.table
            yield 20 * MS
            parts = spread.again(part, known)
        else:
            break
    if isinstance(spread.result, QueueDoesNotExist):
        raise Violation("P5", f"who sends message {number} is told that the queue is gone")
    return outcome, known


def receive_some(client: Client, queue_id: int) -> Script:
    """Receive from all partitions that a table lists, which may be an old one; delete most of what comes."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    while checker.row is None or not cell.is_set_up:
        yield 50 * MS
    judge = checker.judges[queue_id]
    known = checker.table_of(queue_id)
    turn = 0
    while True:
        turn += 1
        if cell.faults.feeds_partitions and random.random() < 0.2:
            number = random.choice(read_partitions(known)).number
            yield Watch(queue_id, number, 0, known.table_version)
        asked_us, leaders = cell.kernel.now_us, _leaders(cell)
        place, found, known = yield from _received(client, known, turn)
        # What an earlier leader had not committed may have hidden something that nobody knows of any more.
        # Groups of a log, and tables that went back, are not looked through for that.
        is_sure = leaders == _leaders(cell) and not checker.groups and not checker.restores
        if found == [] and (not checker.is_fifo or is_sure):
            judge.found_nothing(
                asked_us, partial(_is_untaken, cell, queue_id), partial(_is_blocked, cell, queue_id)
            )
        if found and (not cell.is_sending or random.random() < 0.8):
            if cell.faults.partition_work_us:
                yield random.randint(0, cell.faults.partition_work_us)
            yield from _deleted(client, queue_id, place, found)
        if random.random() < 0.05:
            known = checker.table_of(queue_id)
        yield random.randint(10 * MS, 200 * MS)


def _received(
    client: Client, known: QueueDefinition, turn: int
) -> Generator[Wish, object, tuple[int, list[Delivery] | None, QueueDefinition]]:
    """Receive as front ends do (`core/spread/receives`); return from which partition what came, and the newest table.

    None came where not all partitions could be asked.
    """
    cell, checker, queue_id = client.cell, client.cell.partition_checker, known.queue_id
    spread = cell.bugs.variant(SpreadReceive)(
        known, Receive(queue_id, 0, 10), turn, is_patient=checker.is_fifo
    )
    parts = spread.begin()
    while parts:
        (part,) = parts
        asked_us = cell.kernel.now_us
        outcome = yield part.command
        if isinstance(outcome, Received) and outcome.deliveries:
            judge = checker.judges[queue_id]
            judge.delivered(part.number, outcome.deliveries, asked_us, cell.kernel.now_us)
            return part.number, outcome.deliveries, known
        if isinstance(outcome, Received):
            parts = spread.on_outcome(part, ReceiveOutcome(0, []), known)
        elif isinstance(outcome, Elsewhere):
            known = max(known, outcome.definition, key=lambda table: table.table_version)
            parts = spread.on_outcome(part, outcome, known)
        elif isinstance(outcome, QueueDoesNotExist) and checker.table.table_version > known.table_version:
            known = checker.table_of(queue_id)
            parts = spread.again(part, known)
        else:
            assert isinstance(outcome, Exception), f"a Receive is not answered so: {outcome}"
            parts = spread.on_outcome(part, outcome, known)
    return 0, [] if isinstance(spread.result, ReceiveOutcome) else None, known


def _led(cell: Cell) -> Iterator[tuple[int, Replica]]:
    """Yield the journals that are led, with their leaders: of several, the one that others appointed last."""
    newest: dict[int, Replica] = {}
    for host in cell.hosts.values():
        for journal_id, replica in host.replicas.items():
            known = newest.get(journal_id)
            if replica.journal.is_leading and (known is None or known.log.epoch < replica.log.epoch):
                newest[journal_id] = replica
    yield from newest.items()


def _leaders(cell: Cell) -> dict[int, tuple[str, int]]:
    return {journal_id: (replica.member, replica.journal.epoch) for journal_id, replica in _led(cell)}


def _is_untaken(cell: Cell, queue_id: int, number: int, sequence: int) -> bool:
    """Return whether a leader has a message that no receive ever took, whether its answer was lost or not."""
    for journal_id, replica in _led(cell):
        if journal_id == cell.partition_checker.journals[number]:
            found = replica.journal.queues.partitions.get(partition_key(queue_id, number))
            return (
                found is not None
                and found.is_live(sequence)
                and sequence < found.committed
                and sequence not in found.in_flight
                and sequence not in found.returned
            )
    return False


def _is_blocked(cell: Cell, queue_id: int, group: int) -> bool:
    """Return whether a message of a group is in flight anywhere, or was; so it is where nobody leads."""
    leaders = dict(_led(cell))
    for entry in read_partitions(cell.partition_checker.table):
        replica = leaders.get(entry.journal_id)
        partition = (
            replica.journal.queues.partitions.get(partition_key(queue_id, entry.number))
            if replica is not None
            else None
        )
        if partition is None:
            return True
        if any(
            partition.index.group(sequence) == group
            for sequence in [*partition.in_flight, *partition.returned]
        ):
            return True
    return False


def _deleted(client: Client, queue_id: int, partition: int, found: list[Delivery]) -> Script:
    judge = client.cell.partition_checker.judges[queue_id]
    for delivery in found:
        judge.delete_asked(delivery.number, client.cell.kernel.now_us)
    outcome = yield Delete(queue_id, partition, receipts_of(found))
    if isinstance(outcome, EntriesOutcome):
        for delivery, error in zip(found, outcome.errors, strict=True):
            if error is None:
                judge.deleted(delivery.number, client.cell.kernel.now_us)


def watch_empty(client: Client, queue_ids: Collection[int]) -> Script:
    """After sending has stopped: ask until each partition says that it is empty."""
    cell, checker = client.cell, client.cell.partition_checker
    while cell.producers_left:
        yield 100 * MS
    left = [(queue_id, entry.number) for queue_id in queue_ids for entry in read_partitions(checker.table)]
    if cell.faults.feeds_partitions:  # first, and again: it may have counted a message that has just moved
        left = 2 * [*left, (FEEDER, 0)]
    while left:
        counts = yield CountMessages(*left[-1])
        if isinstance(counts, CallerError):  # it was drained meanwhile, and dropped
            left.pop()
            continue
        if isinstance(counts, QueueCounts):
            cell.last_counts = f"queue and partition {left[-1]}: {counts}"
            if not counts.visible + counts.in_flight + counts.delayed:
                left.pop()
                continue
        yield 200 * MS
    checker.is_drained = True

"""What happens next, drawn from a seed, and the judge of what came of it (the invariants are named in `__init__`)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Literal, NamedTuple

from sim.model_runs import Model, Violation

from .front_end import REQUEST_LIFE_MS, FrontEnd, Receipt, Script, run_transaction, send_until_known
from .journal import LOST, Answer, Command, DropStage, Free, Journal, SetAside, SetTable, Stored, Trim
from .metadata import Store, ask_parents, carry_moves, work_on_table
from .state import (
    LOG_MESSAGES,
    Added,
    Begun,
    Freed,
    Given,
    JournalState,
    Message,
    Record,
    Removed,
    S,
    TableSet,
    Trimmed,
)
from .tables import KEYS, SPAN, Entry, Table

BUGS = {
    "elsewhere-early": "a sealed partition sends on before its seal is committed",
    "sealed-takes-moves": "a sealed partition takes moves from other journals",
    "sealed-takes-local-moves": "a sealed partition takes moves within its journal",
    "child-first": "a send goes to the newest partition of its key, not to the oldest that takes it",
    "window-by-row": "the id window of a sealed partition ends by the store's clock",
    "list-half": "a child trusts the first page of its parent's groups",
    "gone-uncommitted": "a parent says that groups are gone before the deletes are committed",
    "one-parent-of-two": "a child asks one of its parents",
    "grandparent-forgotten": "a child asks its direct parents only",
    "fresh-group-given": "a child gives out groups that it has not seen before without asking",
    "sequence-restarts": "a child's sequences begin where its parent's began",
    "number-reused": "a change does not ask the journals whether they know better than the row",
    "sealed-parks": "a partition says that it has nothing although its journal has a newer table",
    "watch-takes": "a watch takes what it finds",
    "drained-with-moves": "a partition is drained while messages are on their way out of it",
    "tables-mixed": "each message that is moved goes by another table",
    "withdrawn-alone": "of the moves to a sealed partition those go elsewhere that it was asked about, not all",
    "sink-asks-child": "a sink does not ask older partitions about its batch",
    "seal-not-replayed": "a start from a snapshot with a newer table forgets seals",
    "retention-by-count": "a log's retention is divided by the number of its partitions",
    "unknown-is-gone": "a front end takes an unknown partition for a deleted queue",
}
"""The planted bugs: each takes one rule away, and must be caught."""

JOURNALS = 3
STEPS = 4_000
HEALED_STEPS_MAX = 40_000
STORY_EVENTS = 80
GROUPS = 4
HOUR_MS = 3_600_000
RETRY_MS = 120_000
TASKS_MAX = 12
COPIES_MAX = 8

Kind = Literal["standard", "fifo", "log"]


class _Task:
    """A script, and the request that it waits for. An answer to an earlier request says nothing to it."""

    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self.script = script
        self.request_number = 0
        self.is_waiting = False
        self.answer: Answer = LOST


class _Sent(NamedTuple):
    """A request in the network."""

    task: _Task
    request_number: int
    journal: int
    command: Command
    sent_ms: int


class World:
    """The queue, everything that works on it, and what is known of each message."""

    def __init__(
        self, seed: int, bugs: Iterable[str] = (), *, steps: int = STEPS, has_story: bool = False
    ) -> None:
        self.random = random = Random(seed)
        self.bugs = frozenset(bugs)
        assert self.bugs <= BUGS.keys(), f"no such bug: {self.bugs - BUGS.keys()}"
        self.steps = steps
        self.story: deque[str] | None = deque(maxlen=STORY_EVENTS) if has_story else None
        self.kind: Kind = random.choice(("standard", "fifo", "fifo", "log"))
        self.events = 0
        self.restored = 0
        self.now_ms = 10 * HOUR_MS
        self.change_chance = random.choice((0.02, 0.3, 1.0))
        self.row_chance = random.choice((0.02, 0.2, 1.0))
        """How soon front ends hear of the row. What they meet in answers, they have at once."""
        self.commit_chance = random.choice((0.1, 0.4, 1.0))
        """How soon what is decided is committed."""
        self.send_chance = random.choice((0.1, 0.2, 0.4))
        """Of what clients begin. With few sends partitions are drained before the end."""
        self.journals = [
            Journal(
                number,
                random,
                is_fifo=self.kind == "fifo",
                offset_ms=random.choice((-HOUR_MS, 0, HOUR_MS)),
                bugs=self.bugs,
            )
            for number in range(JOURNALS)
        ]
        first = Table(1, 1, (Entry(0, random.randrange(JOURNALS), "open", 0, KEYS - 1, SPAN),))
        self.store = Store(first)
        self.front_ends = [FrontEnd(self), FrontEnd(self)]
        self.tasks: list[_Task] = []
        self.network: list[_Sent] = []
        self.receipts: list[Receipt] = []
        self.is_healed = False
        self.tokens = 0
        self.issued: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        """Tokens of sends and batches that were answered, with the event of their first answer."""
        self.newest_of_group: dict[int, int] = defaultdict(int)
        """The highest sequence that an acknowledged send of a group has."""
        self.sequence_bound: dict[int, int] = {}
        self.stored: set[int] = set()
        self.moved: set[int] = set()
        self.moves_taken: set[tuple[int, int, int]] = set()
        self.leaving: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Of each source and group, the tokens on their way, in order."""
        self.deleted: set[int] = set()
        self.visible_since: dict[int, int] = {}
        for journal in self.journals:
            journal.on_decided = partial(self._on_decided, journal)
            journal.propose(SetTable(first), self.now_ms, None)
            self._commit(journal, 1)

    # What scripts ask and tell

    def violate(self, what: str) -> None:
        raise Violation(what)

    def may_retry(self, first_ms: int) -> bool:
        return self.now_ms - first_ms <= RETRY_MS

    def may_change(self) -> bool:
        """Whether somebody wants a change of the partitions now."""
        return not self.is_healed and self.random.random() < self.change_chance

    def on_acknowledged(self, message: Message, stored: Stored) -> None:
        self.acknowledged.setdefault(message.token, self.events)
        if message.group is not None:
            self.newest_of_group[message.group] = max(self.newest_of_group[message.group], stored.sequence)

    def on_batch(self, batch: int, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self.acknowledged.setdefault(message.token, self.events)

    def on_delivered(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)

    def on_deleted(self, receipt: Receipt) -> None:
        """A client was told that its delete is done, or that the message is gone anyway."""
        for journal in self.journals:
            partition = journal.committed.partitions.get(receipt.partition)
            if partition is None:
                continue
            message = partition.live.get(receipt.sequence)
            if message is not None and message.token == receipt.token:
                raise Violation(f"message {receipt.token} lives on after its delete was answered")

    def on_empty(self, began_ms: int) -> None:
        """P6: a receive was answered empty."""
        if self.kind == "standard":
            for token, since_ms in self.visible_since.items():
                if since_ms < began_ms:
                    raise Violation(
                        f"P6: a receive found nothing, while message {token} was there all the time"
                    )

    # The judge

    def _on_decided(self, journal: Journal, record: Record) -> None:
        """A leader has decided it: what it gives out now, others do not find any more."""
        match record:
            case Given() | Removed() | Begun() | Trimmed():
                message = _message(journal.decided, record.partition, record.sequence)
                if message is not None:
                    self.visible_since.pop(message.token, None)

    def _on_record(self, journal: Journal, record: Record) -> None:
        """A record is committed; it is not applied yet."""
        self._note(f"journal {journal.journal} commits {record}")
        match record:
            case TableSet(table):
                self._check_ranges(journal, table)
            case Added():
                self._check_added(journal, record)
            case Given(number, sequence, receipt):
                message = _message(journal.committed, number, sequence)
                assert message is not None, "what is given is there"
                if receipt not in journal.told:
                    raise Violation(f"message {message.token} was taken by what gives it to nobody")
                if message.token in self.deleted:
                    raise Violation(f"message {message.token} came back after its delete")
                if message.group is not None and number != S:
                    self._check_order(message, number)
            case Freed(number, sequence):
                message = _message(journal.committed, number, sequence)
                if message is not None:
                    self._has_become_visible(journal, number, sequence, message)
            case Removed(number, sequence, is_deleted):
                message = _message(journal.committed, number, sequence)
                assert message is not None, "what is removed was there"
                if is_deleted:
                    self.deleted.add(message.token)
            case Begun(number, sequence):
                message = _message(journal.committed, number, sequence)
                assert message is not None, "what leaves was there"
                if message.group is not None:
                    self.leaving[number, message.group].append(message.token)
            case Trimmed(number):
                partition = journal.committed.partitions[number]
                if len(partition.live) - 1 < LOG_MESSAGES * partition.share:
                    raise Violation(f"P8: partition {number} keeps less than its share of the log")

    def _check_ranges(self, journal: Journal, table: Table) -> None:
        for entry in table.entries:
            partition = journal.committed.partitions.get(entry.number)
            if entry.journal != journal.journal or partition is None:
                continue
            if (partition.first, partition.last) != (entry.first, entry.last):
                raise Violation(f"P5: number {entry.number} was given to two partitions")

    def _check_added(self, journal: Journal, record: Added) -> None:
        number, sequence, message, cause = record
        token = message.token
        partition = journal.committed.partitions[number]
        if partition.is_sealed and not (cause.kind == "batch" and cause.number in partition.staged):
            raise Violation(f"P1: partition {number} is sealed, and takes message {token}")
        if cause.kind == "move":
            self._check_moved(record)
        else:
            if token in self.stored:
                raise Violation(f"P3: message {token} is stored twice, now in partition {number}")
            self.stored.add(token)
            if cause.kind == "send" and sequence <= self.sequence_bound.get(token, 0):
                raise Violation(
                    f"P4: message {token} gets sequence {sequence}, below an older one of its group"
                )
        self._has_become_visible(journal, number, sequence, message)

    def _has_become_visible(self, journal: Journal, number: int, sequence: int, message: Message) -> None:
        """Unless the leader has given it out meanwhile, or it is in the other queue."""
        partition = journal.decided.partitions.get(number)
        if number == S or partition is None:
            return
        if sequence in partition.live and sequence not in partition.in_flight:
            self.visible_since[message.token] = self.now_ms

    def _check_moved(self, record: Added) -> None:
        message, cause = record.message, record.cause
        token, group = message.token, message.group
        key = (cause.source, cause.number, token)
        if key in self.moves_taken:
            raise Violation(f"P3: move {cause.number} of partition {cause.source} is taken twice")
        self.moves_taken.add(key)
        self.moved.add(token)
        if group is None:
            return
        leaving = self.leaving[cause.source, group]
        if (token in leaving and leaving[0] != token) or (token not in leaving and leaving):
            raise Violation(f"message {token} of group {group} overtakes message {leaving[0]} on its way")
        if token in leaving:
            leaving.remove(token)

    def _check_order(self, message: Message, number: int) -> None:
        """P2, and that a group is handed out in the order of its sends."""
        for journal in self.journals:
            for partition in journal.committed.partitions.values():
                if partition.number == S:
                    continue
                for other in partition.live.values():
                    if other.group != message.group or other.token == message.token:
                        continue
                    if partition.number < number:
                        raise Violation(
                            f"P2: partition {number} gives message {message.token} of group {message.group}, while "
                            f"partition {partition.number} has message {other.token}"
                        )
                    if self.moved.isdisjoint((message.token, other.token)) and (
                        self.acknowledged.get(other.token, self.events) < self.issued[message.token]
                    ):
                        raise Violation(
                            f"message {message.token} is given before {other.token}, which is older"
                        )

    # Steps

    def _commit(self, journal: Journal, number: int) -> None:
        journal.commit(number, lambda record: self._on_record(journal, record))

    def _start(self, name: str, script: Script) -> None:
        self.tasks.append(_Task(name, script))

    def _resume(self, task: _Task) -> None:
        answer, task.answer = task.answer, LOST
        try:
            request = task.script.send(None if task.request_number == 0 else answer)  # type: ignore[arg-type]
        except StopIteration:
            self.tasks.remove(task)
            return
        task.request_number += 1
        if request is not None:
            task.is_waiting = True
            self.network.append(
                _Sent(task, task.request_number, request.journal, request.command, self.now_ms)
            )
            self._note(f"{task.name} asks journal {request.journal}: {request.command}")

    def _answer(self, sent: _Sent, answer: Answer) -> None:
        if sent.task.is_waiting and sent.task.request_number == sent.request_number:
            sent.task.is_waiting = False
            sent.task.answer = answer
            self._note(f"{sent.task.name} hears {'nothing' if answer is LOST else answer}")

    def _deliver(self) -> None:
        """One request arrives, in any order; some arrive twice, and some answers are lost."""
        random = self.random
        if not self.network:
            return
        at = random.randrange(len(self.network))
        sent = self.network[at]
        journal = self.journals[sent.journal]
        luck = random.random()
        if self.is_healed or luck >= 0.06:  # else it arrives once more
            self.network[at] = self.network[-1]
            self.network.pop()
        if not journal.is_led:
            self._answer(sent, LOST)
            return
        if not self.is_healed and luck > 0.94:
            journal.propose(sent.command, self.now_ms, None)
            self._answer(sent, LOST)
            return
        journal.propose(sent.command, self.now_ms, lambda answer: self._answer(sent, answer))

    def _time_out(self) -> None:
        """Somebody gives up waiting; the request may arrive yet."""
        waiting = [task for task in self.tasks if task.is_waiting]
        if waiting:
            task = self.random.choice(waiting)
            task.is_waiting = False
            task.answer = LOST
            task.request_number += 1

    def _let_pass(self, ms: int) -> None:
        """Time passes. What is in the network then is too old, as requests are refused after a while."""
        self.now_ms += ms
        for sent in self.network:
            if self.now_ms - sent.sent_ms > REQUEST_LIFE_MS:
                self._answer(sent, LOST)
        self.network = [sent for sent in self.network if self.now_ms - sent.sent_ms <= REQUEST_LIFE_MS]

    def _new_message(self, group: int | None) -> Message:
        self.tokens += 1
        token = self.tokens
        self.issued[token] = self.events
        key = self.random.randrange(KEYS) if group is None else group * 5 % KEYS
        if group is not None:
            self.sequence_bound[token] = self.newest_of_group[group]
        return Message(token, token, key, group)

    def _client(self) -> None:
        """A client begins something."""
        random = self.random
        if len(self.tasks) > TASKS_MAX:
            return
        group = random.randrange(GROUPS) if self.kind == "fifo" else None
        front_end = random.choice(self.front_ends)
        chance = random.random()
        if chance < self.send_chance and not self.is_healed:
            message = self._new_message(group)
            self._start(f"send {message.token}", send_until_known(self, message))
        elif chance < self.send_chance + 0.06 and not self.is_healed:
            first = self._new_message(group)
            messages = [first, *(self._new_message(group) for _ in range(random.randrange(2)))]
            messages = [message._replace(key=first.key) for message in messages]
            for message in messages:
                self.sequence_bound.pop(message.token, None)
            self._start(f"batch {first.token}", run_transaction(self, first.token, tuple(messages)))
        elif self.kind == "log":
            return
        elif chance < 0.72:
            self._start("receive", front_end.receive())
        elif chance < 0.77:
            self._start("receive of S", front_end.receive_of_s())
        elif self.receipts:
            receipt = self.receipts.pop(-1 if self.is_healed else random.randrange(len(self.receipts)))
            self._start(f"delete {receipt.token}", front_end.delete(receipt))

    def _leader(self) -> None:
        """A leader does something by itself."""
        random = self.random
        led = [journal for journal in self.journals if journal.is_led]
        if not led:
            return
        journal = random.choice(led)
        partitions = list(journal.decided.partitions.values())
        if not partitions:
            return
        partition = random.choice(partitions)
        chance = random.random()
        if self.kind == "log":
            if partition.number != S:
                journal.propose(Trim(partition.number), self.now_ms, None)
        elif partition.staged and chance < 0.05:
            batch = random.choice(sorted(partition.staged))
            journal.propose(DropStage(partition.number, batch), self.now_ms, None)
        elif chance < 0.25:
            if partition.in_flight:
                sequence = random.choice(sorted(partition.in_flight))
                journal.propose(Free(partition.number, sequence), self.now_ms, None)
        elif chance < 0.40:
            if not self.is_healed:
                newest = self.store.table
                if journal.places is None:
                    journal.places = newest
                tables = (journal.places, newest)
                command = SetAside(partition.number, random.randint(1, 3), tables)
                journal.propose(command, self.now_ms, None)
        elif chance < 0.70:
            self._start(f"carrier {journal.journal}", carry_moves(self, journal))
        elif self.kind == "fifo":
            self._start(f"leader {journal.journal}", ask_parents(self, journal))

    def _fault(self) -> None:
        random = self.random
        journal = random.choice(self.journals)
        chance = random.random()
        if chance < 0.30:
            self._note(f"journal {journal.journal} loses its leader")
            if journal.is_led:
                self._commit(journal, random.randint(0, len(journal.waiting)))
                self._lose_leader(journal)
        elif chance < 0.45:
            journal.begin_snapshot()
        elif chance < 0.60:
            journal.finish_snapshot()
        elif chance < 0.70:
            self._restart(journal)
        elif chance < 0.80:
            nodes = [task for task in self.tasks if task.name == "metadata"]
            if nodes:
                self._note("a metadata node stops")
                self.tasks.remove(random.choice(nodes))
        elif chance < 0.84:
            self.store.copies = [*self.store.copies, (self.now_ms, self.store.table)][-COPIES_MAX:]
        elif chance < 0.87:
            self._restore()
        elif chance < 0.97:
            self._let_pass(random.choice((5_000, 60_000, 200_000, 400_000, 400_000)))
        else:
            self._weeks()

    def _lose_leader(self, journal: Journal) -> None:
        journal.lose_leader()
        for partition in journal.committed.partitions.values():
            if partition.number == S:
                continue
            for sequence, message in partition.live.items():
                if sequence in partition.in_flight:
                    self.visible_since.pop(message.token, None)
                else:
                    self.visible_since[message.token] = self.now_ms

    def _restart(self, journal: Journal) -> None:
        """The leader is lost, and all replicas start from the snapshot."""
        self._lose_leader(journal)
        before = journal.committed
        after = journal.restart_from_snapshot()
        if after is None:
            return
        self._note(f"journal {journal.journal} starts from its snapshot")
        for number, partition in before.partitions.items():
            again = after.partitions.get(number)
            if again is None or again.live != partition.live or again.is_sealed != partition.is_sealed:
                raise Violation(f"P1: partition {number} is another one after a start from a snapshot")

    def _restore(self) -> None:
        """The store is restored from a copy, at most days old."""
        copies = [table for taken_ms, table in self.store.copies if self.now_ms - taken_ms < 24 * HOUR_MS]
        if copies:
            table = self.random.choice(copies)
            self._note(f"the store is restored: {table}")
            self.store.restore(table)
            self.restored += 1

    def _weeks(self) -> None:
        """Weeks pass while nothing is on its way, as moves, sinks and clients do not wait that long."""
        if all(
            journal.is_led
            and not journal.waiting
            and not any(p.moving for p in journal.decided.partitions.values())
            for journal in self.journals
        ):
            self._note("weeks pass")
            self.tasks = [task for task in self.tasks if task.name == "metadata"]
            self._let_pass(16 * 24 * HOUR_MS)

    def step(self) -> None:
        """Let one thing happen."""
        self.events += 1
        random = self.random
        self.now_ms += random.choice((0, 0, 50, 200))
        chance = random.random()
        if chance < 0.30:
            ready = [task for task in self.tasks if not task.is_waiting]
            if ready:
                self._resume(random.choice(ready))
        elif chance < 0.53:
            self._deliver()
        elif chance < 0.68:
            led = [journal for journal in self.journals if journal.waiting]
            if led and (self.is_healed or random.random() < self.commit_chance):
                journal = random.choice(led)
                self._commit(journal, random.randint(1, len(journal.waiting)))
        elif chance < 0.79:
            self._client()
        elif chance < 0.86:
            self._leader()
        elif chance < 0.91:
            if sum(task.name == "metadata" for task in self.tasks) < 2:
                self._start("metadata", work_on_table(self))
        elif chance < 0.92:
            if random.random() < self.row_chance:
                random.choice(self.front_ends).read_row()
        elif chance < 0.95:
            for journal in self.journals:
                if not journal.is_led and random.random() < 0.7:
                    journal.lead()
        elif not self.is_healed:
            if chance < 0.985:
                self._fault()
            else:
                self._time_out()

    def run(self) -> World:
        """Safety under fire first; then all is healed, and everything must come to its end."""
        for _ in range(self.steps):
            self.step()
        self.is_healed = True
        self._note("all is healed")
        for journal in self.journals:
            if not journal.is_led:
                journal.lead()
        for number in range(HEALED_STEPS_MAX):
            self.step()
            if number % 1_000 == 999:
                self._let_pass(400_000)
                if self._is_at_rest():
                    break
        else:
            raise Violation(f"P7: healed, and not at rest: {self._unrest()}")
        lost = self.acknowledged.keys() - self.deleted
        if lost and self.kind != "log":
            raise Violation(f"P5: acknowledged messages are lost: {sorted(lost)}")
        return self

    def _unrest(self) -> list[str]:
        table = self.store.table
        found = [f"partition {entry.number} is {entry.state}" for entry in table.in_state("new", "closing")]
        if self.kind == "log":
            return found
        found += [f"partition {entry.number} is closed" for entry in table.in_state("closed")]
        for journal in self.journals:
            for partition in journal.committed.partitions.values():
                tokens = [message.token for message in partition.live.values()]
                tokens += [move.message.token for move in partition.moving.values()]
                if tokens:
                    found.append(f"journal {journal.journal}, partition {partition.number} has {tokens}")
            known = journal.committed.table
            has_open = any(entry.journal == journal.journal for entry in table.in_state("open"))
            if has_open and (known is None or known.version != table.version):
                found.append(f"journal {journal.journal} has another table than the row")
        return found

    def _is_at_rest(self) -> bool:
        return not self._unrest()

    def counts(self) -> dict[str, int]:
        """What this run did."""
        table = self.store.table
        return {
            "partitions made": table.next_number,
            "partitions removed": table.next_number - len(table.entries),
            "stores restored": self.restored,
            "acknowledged messages": len(self.acknowledged),
            "deleted messages": len(self.deleted),
        }

    def _note(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.events:6d}  {what}")


def _message(state: JournalState, number: int, sequence: int) -> Message | None:
    partition = state.partitions.get(number)
    return None if partition is None else partition.live.get(sequence)


MODEL = Model("sim.partitions", World, BUGS)

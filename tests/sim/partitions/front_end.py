"""What front ends do for clients: sends, receives, deletes, and the transactions of a sink. Each is a generator that
yields requests and is sent their answers; None lets some time pass."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from .journal import (
    LOST,
    Answer,
    AskBatch,
    Batches,
    Command,
    Commit,
    Delete,
    Done,
    Elsewhere,
    Found,
    Nothing,
    NotStaged,
    Receive,
    Send,
    Something,
    Stage,
    Stored,
    Unknown,
    Watch,
)
from .state import S_JOURNAL, Message, S
from .tables import Entry, Table, newer

if TYPE_CHECKING:
    from .world import World

HOPS_MAX = 4
TRIES_MAX = 6
REQUEST_LIFE_MS = 20_000
"""Requests are refused, and tries given up, when they are older."""


class Request(NamedTuple):
    """A command for the leader of a journal."""

    journal: int
    command: Command


Script = Generator[Request | None, Answer, None]


class Receipt(NamedTuple):
    partition: int
    journal: int
    sequence: int
    receipt: int
    token: int


class _Failed(NamedTuple):
    """503: the client may try again."""


class _Gone(NamedTuple):
    """The queue is said to be gone."""


FAILED: Final = _Failed()
GONE: Final = _Gone()


class FrontEnd:
    """One front end: the newest table that it has met, and which partitions are known to be sealed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bugs = world.bugs
        self.table: Table = world.store.table

    def meet(self, table: Table) -> None:
        """Use a table from an answer if it is newer; metadata hears of it when it next tells the journals."""
        self.table = newer(self.table, table)

    def read_row(self) -> None:
        """The store's row has come, or was asked for."""
        self.meet(self.world.store.table)

    def _is_known_to_be_sealed(self, entry: Entry) -> bool:
        return entry.is_sealed

    # Sends

    def send(
        self, message: Message, *, is_retry: bool
    ) -> Generator[Request | None, Answer, Answer | _Failed | _Gone]:
        """Send to the oldest partition that takes the key, and on from those that are sealed."""
        after = S
        began_ms = self.world.now_ms
        for _ in range(HOPS_MAX):
            taking = [entry for entry in self.table.taking(message.key) if entry.number > after]
            if not taking or self.world.now_ms - began_ms > REQUEST_LIFE_MS:
                return FAILED
            if "child-first" in self.bugs:
                entry = taking[-1]
            else:
                entry = taking[0]
                is_simple = message.group is None and not is_retry
                if is_simple and self._is_known_to_be_sealed(entry) and len(taking) > 1:
                    entry = taking[1]
            answer = yield Request(entry.journal, Send(entry.number, self.table.version, message))
            if isinstance(answer, Elsewhere):
                self.meet(answer.table)
                after = entry.number
            elif isinstance(answer, Unknown):
                return self._not_known(answer)
            else:
                return answer
        return FAILED

    def _not_known(self, answer: Unknown) -> _Failed | _Gone:
        if "unknown-is-gone" in self.bugs:
            return GONE
        if answer.table is not None:
            self.meet(answer.table)
        self.read_row()
        return FAILED

    # Receives

    def receive(self) -> Script:
        """Ask one partition after the other, until one has a message or each had nothing since the begin."""
        world = self.world
        began = world.now_ms
        asked: set[int] = set()
        is_long = world.random.random() < 0.3
        while left := [entry for entry in self.table.entries if entry.is_read and entry.number not in asked]:
            entry = world.random.choice(left)
            if is_long:
                answer = yield Request(entry.journal, Watch(entry.number, self.table.version))
            if not is_long or isinstance(answer, Something):
                answer = yield Request(entry.journal, Receive(entry.number, self.table.version))
            match answer:
                case Found(sequence, receipt, message):
                    world.on_delivered(Receipt(entry.number, entry.journal, sequence, receipt, message.token))
                    return
                case Elsewhere(table):
                    self.meet(table)
                case Nothing():
                    asked.add(entry.number)
                case Unknown():
                    if self._not_known(answer) is GONE:
                        world.violate("a client was told that the queue is gone")
                    newest = self.table.entry(entry.number)
                    if newest is not None and newest.is_read:
                        return
                case _:
                    return
        world.on_empty(began)

    def receive_of_s(self) -> Script:
        answer = yield Request(S_JOURNAL, Receive(S, 0))
        if isinstance(answer, Found):
            self.world.on_delivered(
                Receipt(S, S_JOURNAL, answer.sequence, answer.receipt, answer.message.token)
            )

    def delete(self, receipt: Receipt) -> Script:
        """Delete by a receipt, which names a partition."""
        entry = self.table.entry(receipt.partition)
        if receipt.partition == S:
            journal = S_JOURNAL
        elif entry is None:
            if receipt.partition < self.table.next_number:
                self.world.on_deleted(receipt)
            else:
                self.read_row()
            return
        elif entry.state == "drained":
            self.world.on_deleted(receipt)
            return
        else:
            journal = entry.journal
        command = Delete(receipt.partition, self.table.version, receipt.sequence, receipt.receipt)
        answer = yield Request(journal, command)
        if isinstance(answer, Done):
            self.world.on_deleted(receipt)
        elif isinstance(answer, Unknown):
            self._not_known(answer)


def send_until_known(world: World, message: Message) -> Script:
    """A client that sends one message, again after a try that failed or of which it knows nothing, for two minutes."""
    first_ms = world.now_ms
    is_retry = False
    for _ in range(TRIES_MAX):
        front_end = world.random.choice(world.front_ends)
        answer = yield from front_end.send(message, is_retry=is_retry)
        match answer:
            case Stored():
                world.on_acknowledged(message, answer)
                # Some clients repeat what was answered: the answer came too late for them.
                if world.random.random() < 0.9:
                    return
            case _Gone():
                world.violate("a client was told that the queue is gone")
        is_retry = True
        for _ in range(world.random.choice((1, 1, 20))):
            yield None
        if not world.may_retry(first_ms):
            return


def run_transaction(world: World, batch: int, messages: tuple[Message, ...]) -> Script:
    """A sink's batch: staged, committed, and committed again, soon or a day later, until it knows."""
    key = messages[0].key
    for _ in range(TRIES_MAX):
        answer = yield from _commit_batch(world.random.choice(world.front_ends), key, batch, messages)
        if isinstance(answer, Stored):
            world.on_batch(batch, messages)
            if world.random.random() < 0.5:
                return
            # The driver is started again later, and does not know that it was answered.
            for _ in range(world.random.randint(1, 40)):
                yield None


def _commit_batch(
    front_end: FrontEnd, key: int, batch: int, messages: tuple[Message, ...]
) -> Generator[Request | None, Answer, Answer | _Failed]:
    """Whoever knows the batch, committed or open, handles it; if none does, the oldest that takes its key."""
    version = front_end.table.version
    after = S
    chosen: Entry | None = None
    if "sink-asks-child" not in front_end.bugs:
        for entry in front_end.table.holding(key):
            answer = yield Request(entry.journal, AskBatch(entry.number, version, batch))
            if not isinstance(answer, Batches):
                if isinstance(answer, Unknown) and answer.table is not None:
                    front_end.meet(answer.table)
                front_end.read_row()
                return FAILED
            if answer.is_done or answer.is_staged:
                chosen = entry
                break
    for _ in range(HOPS_MAX):
        if chosen is None:
            taking = [entry for entry in front_end.table.taking(key) if entry.number > after]
            if not taking:
                return FAILED
            chosen = taking[0]
        answer = yield Request(chosen.journal, Stage(chosen.number, version, batch, messages))
        if isinstance(answer, Elsewhere):
            front_end.meet(answer.table)
            after, chosen = chosen.number, None
            continue
        if isinstance(answer, Stored):
            return answer
        if not isinstance(answer, Done):
            return FAILED
        answer = yield Request(chosen.journal, Commit(chosen.number, version, batch))
        return FAILED if isinstance(answer, NotStaged | Unknown) or answer is LOST else answer
    return FAILED

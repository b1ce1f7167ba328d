"""Producers and consumers of a simulated cell: they follow the leader by hints, try again, and tell the checker.

A client is a generator: it yields a command to call, or microseconds to sleep, and gets the outcome back.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING

from harness.replica_host import identity, message

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.queues.repeats import as_repeat
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    EntriesOutcome,
    NewMessage,
    Purge,
    QueueCounts,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import CallerError, NotLeader, NotNow, Timeout
from quaymaster.core.values.journal_configuration import JournalConfiguration
from sim.kernel import MS, SECOND
from sim.messages import Answer, Received, Request, Sent
from sim.queue_checker import Delivery, QueueKind
from sim.store import STORE, Get, Got

if TYPE_CHECKING:
    from sim.cell import Cell

CALL_TIMEOUT_US = 800 * MS
GIVE_UP_US = 8 * SECOND
BACKOFF_US = (20 * MS, 120 * MS)

Wish = Command | int
Script = Generator[Wish, object, None]


class Client:
    """One caller, with its own idea of who leads."""

    def __init__(self, cell: Cell, name: str) -> None:
        self.cell = cell
        self.name = name
        self.calls = 0
        self.attempts = 0
        self._kernel = cell.kernel
        self._network = cell.network
        self.random = cell.kernel.random_for(name)
        self._script: Script | None = None
        self._command: Command | None = None
        self._began_us = 0
        self._number = 0
        self._configurations: dict[int, JournalConfiguration] = {}
        self._leaders: dict[int, str] = {}
        cell.network.connect(name, self.receive)

    def run(self, script: Script) -> None:
        """Begin."""
        self._script = script
        self._kernel.after(self.random.randrange(10 * MS), self._resume, None)

    def _resume(self, outcome: object) -> None:
        assert self._script is not None, "a client runs a script"
        try:
            wish = self._script.send(outcome)
        except StopIteration:
            return
        if isinstance(wish, int):
            self._kernel.after(wish, self._resume, None)
            return
        self._command = wish
        self._began_us = self._kernel.now_us
        self.calls += 1
        self.attempts = 0
        self._try()

    def _try(self) -> None:
        command = self._command
        assert command is not None, "there is a command to try"
        if self.attempts:
            self._command = command = self.again(command)
        self._number += 1
        self.attempts += 1
        journal = self.cell.journal_for(command)
        self._network.send(self.name, self._host(journal), Request(self._number, journal, command))
        self._kernel.after(CALL_TIMEOUT_US, self._timed_out, self._number)

    def again(self, command: Command) -> Command:
        """Return what is sent when a command is tried again: the same, so that it is known for the same."""
        return as_repeat(command)

    def is_answer(self, number: int) -> bool:
        """Tell whether an answer is to the question that was asked last."""
        return number == self._number

    def _host(self, journal: int) -> str:
        leader = self._leaders.get(journal)
        if leader in self.cell.hosts and self.random.random() < 0.97:
            return leader
        return self.random.choice(self.cell.names)

    def _forget_leader(self) -> None:
        command = self._command
        assert command is not None, "somebody was asked something"
        self._leaders.pop(self.cell.journal_for(command), None)

    def _timed_out(self, number: int) -> None:
        if number == self._number and self._command is not None:
            self._forget_leader()
            self._again()

    def _again(self) -> None:
        """Ask who leads, and try the same once more, unless it has been long enough."""
        if self._kernel.now_us - self._began_us > GIVE_UP_US:
            self._command = None
            self._number += 1
            self._resume(Timeout())
            return
        self._network.send(self.name, STORE, Get())
        self._number += 1
        self._kernel.after(self.random.randint(*BACKOFF_US), self._try_again, self._number)

    def _try_again(self, number: int) -> None:
        if number == self._number and self._command is not None:
            self._try()

    def receive(self, sender: str, message: object) -> None:
        """Something arrived from the network."""
        if isinstance(message, Got):
            for journal, (configuration, _) in message.journals.items():
                known = self._configurations.get(journal)
                if configuration.activated and (known is None or configuration.epoch >= known.epoch):
                    self._configurations[journal] = configuration
                    self._leaders[journal] = broker_of(configuration.leader)
            return
        assert isinstance(message, Answer), f"a client does not know {message}"
        if self._command is None or not self.is_answer(message.number):
            return
        outcome = message.outcome
        if isinstance(outcome, NotNow) and not isinstance(self._command, Receive):
            if isinstance(outcome, NotLeader) and outcome.leader_hint:
                journal = self.cell.journal_for(self._command)
                self._leaders[journal] = broker_of(outcome.leader_hint)
            self._again()
            return
        if isinstance(outcome, NotNow) and type(outcome) is not NotNow:  # that is a leader who cannot say yet
            self._forget_leader()
            self._network.send(self.name, STORE, Get())
        self._command = None
        self._number += 1
        self._resume(outcome)


# What they do


def set_up(client: Client, queues: list[QueueKind]) -> Script:
    """Make the queues, once their journals are known; tried until it is done."""
    while not client.cell.choose_journals():
        yield 50 * MS
    for kind in queues:
        command = SetQueue(client.cell.definition_of(kind))
        while isinstance((yield command), NotNow):
            pass
    client.cell.is_set_up = True


def produce(client: Client, queue: QueueKind, *, gap_us: int, groups: int) -> Script:
    """Send to a queue, one to three messages at a time."""
    cell, random = client.cell, client.random
    judges = cell.hearers_of(queue)
    while not cell.is_set_up:
        yield 50 * MS
    earlier: list[int] = []
    while cell.is_sending:
        numbers = [cell.next_number() for _ in range(random.choice((1, 1, 2, 3)))]
        messages = [_new_message(random, queue, number, groups, earlier) for number in numbers]
        if queue.dedup_window_s:
            earlier += numbers
        for number, (group, dedup, delay_ms, _) in zip(numbers, messages, strict=True):
            for checker, queue_id in judges:
                checker.send_asked(
                    queue_id, number, group=group, dedup=dedup, delay_ms=delay_ms, now_us=cell.kernel.now_us
                )
        outcome = yield Send(queue.queue_id, 0, [new for *_, new in messages])
        if isinstance(outcome, Sent):
            for at, (sequence, original) in enumerate(outcome.places):
                sent_ms = None if at in outcome.duplicates else outcome.decided_ms
                for checker, _ in judges:
                    checker.send_acked(numbers[at], sequence, original, cell.kernel.now_us, sent_ms)
        elif isinstance(outcome, CallerError):
            raise AssertionError(f"a send was refused: {outcome}")
        yield random.randint(0, 2 * gap_us)
    cell.producers_left -= 1


def _new_message(
    random: Random, queue: QueueKind, number: int, groups: int, earlier: list[int]
) -> tuple[int, int, int, NewMessage]:
    """Return group, deduplication id, delay and message. Some ids were used a moment ago, or by one of `earlier`.

    Half of the messages are said to be sent for the first time, as SDKs do that number their attempts.
    """
    group = dedup = 0
    delay_ms = -1
    if queue.is_fifo:
        group = random.randint(1, groups)
    if queue.has_dedup_ids:
        dedup = number - random.randint(1, 20) if number > 50 and random.random() < 0.1 else number
        if earlier and random.random() < 0.3:
            dedup = random.choice(earlier)
    if not queue.is_fifo and random.random() < 0.1:
        delay_ms = random.choice((0, 500, 3_000))
    new = message(
        number,
        group=group,
        dedup=identity(dedup) if dedup else None,
        retry=identity(number),
        delay_ms=delay_ms,
        may_be_retry=number % 2 == 0,
    )
    return group, dedup, queue.delay_ms if delay_ms < 0 else delay_ms, new


def consume(client: Client, queue: QueueKind, *, gap_us: int, carelessness: float) -> Script:
    """Receive, work for a while, delete; or too late, or never, or change the visibility first."""
    cell, random = client.cell, client.random
    checker = cell.judge_of(queue.queue_id)
    while not cell.is_set_up:
        yield 50 * MS
    while True:
        asked_us = cell.kernel.now_us
        outcome = yield Receive(queue.queue_id, 0, random.choice((1, 3, 10)))
        if not isinstance(outcome, Received):
            yield random.randint(10 * MS, 100 * MS)
            continue
        found = outcome.deliveries
        checker.delivered(queue.queue_id, found, asked_us=asked_us, now_us=cell.kernel.now_us)
        if not found:
            yield random.randint(100 * MS, 600 * MS)
            continue
        is_careless = cell.is_sending and random.random() < carelessness
        if is_careless and random.random() < 0.3:
            continue
        if is_careless and random.random() < 0.4:
            timeout_ms = random.choice((0, 1_000, 8_000))
            for delivery in found:
                checker.visibility_asked(delivery.number)
            yield ChangeVisibility(queue.queue_id, 0, receipts_of(found), [timeout_ms] * len(found))
            for delivery in found:
                checker.visibility_asked(delivery.number)
            if timeout_ms == 0:
                continue
        yield random.randint(0, 2 * queue.visibility_timeout_ms * MS if is_careless else gap_us)
        if is_careless and random.random() < 0.3:
            found = random.sample(found, random.randint(1, len(found)))
        checker.delete_asked([delivery.number for delivery in found])
        outcome = yield Delete(queue.queue_id, 0, receipts_of(found))
        if isinstance(outcome, EntriesOutcome):
            for delivery, error in zip(found, outcome.errors, strict=True):
                if error is None or client.attempts == 1:
                    checker.delete_answered(
                        queue.queue_id, delivery, is_done=error is None, now_us=cell.kernel.now_us
                    )


def receipts_of(found: list[Delivery]) -> list[Receipt]:
    """Return the receipts of what was delivered."""
    return [Receipt(delivery.sequence, delivery.epoch, delivery.delivery_count) for delivery in found]


def purge(client: Client, queue: QueueKind) -> Script:
    """Purge a queue now and then, while others send to it."""
    cell, random = client.cell, client.random
    checker = cell.queue_checker
    while not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending:
        yield random.randint(SECOND, 8 * SECOND)
        acknowledged = checker.purge_asked(queue.queue_id)
        outcome = yield Purge(queue.queue_id)
        if isinstance(outcome, Done):
            checker.purge_answered(queue.queue_id, acknowledged, cell.kernel.now_us)


def watch_empty(client: Client, queues: list[QueueKind]) -> Script:
    """After sending has stopped: ask until every queue says that it is empty, one after the other and twice.

    In the first round a message may have moved from a queue that was not asked yet to one that was.
    """
    cell = client.cell
    while cell.producers_left:
        yield 100 * MS
    left = 2 * queues
    while left:
        counts = yield CountMessages(left[-1].queue_id)
        if isinstance(counts, QueueCounts):
            client.cell.last_counts = f"{left[-1].name}: {counts}"
            if not counts.visible + counts.in_flight + counts.delayed:
                left.pop()
                continue
            left = 2 * queues
        yield 200 * MS
    cell.is_drained = True

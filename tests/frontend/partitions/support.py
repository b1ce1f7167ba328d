"""Brokers that answer when a test says so, and tables that a test has metadata show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from core.spread.support import HIGH, LOW, entry, queue
from harness.skipping_loop import SkippingLoop

from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.partition_tables import journal_of_partition
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.partitioned_broker import PartitionedBroker
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.net.routing.broker_client import Reply

PLAIN = queue(entry(0), version=1)
HALVES = queue(entry(1, keys=LOW), entry(2, keys=HIGH), version=2)
SPLIT = queue(entry(0, "closing"), entry(1, keys=LOW), entry(2, keys=HIGH), version=2)
"""PLAIN after a split."""

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run on a loop whose clock skips what nothing happens in."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(work)


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Asked:
    """A command that a broker was asked."""

    def __init__(self, command: Command, reply: Reply) -> None:
        self.command = command
        self.is_cancelled = False
        self._reply: Reply | None = reply

    @property
    def partition(self) -> int:
        return getattr(self.command, "partition", 0)

    def withdraw(self) -> bool:
        """A broker may have it."""
        return False

    def cancel(self) -> None:
        self.is_cancelled = True

    def answer(self, outcome: Outcome | Exception) -> None:
        """Answer it, as brokers do with what is not parked also when it was cancelled."""
        reply, self._reply = self._reply, None
        assert reply is not None, "it was answered before"
        reply(outcome)

    def __repr__(self) -> str:
        return f"{self.command}{' cancelled' if self.is_cancelled else ''}"


class ScriptedBroker:
    """A `BrokerClient`: the test takes what was asked, and answers it. With `answers` it is answered at once."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: Callable[[Any], Outcome | Exception] | None = None
        self.log: list[Command] = []

    def submit(self, command: Command, reply: Reply) -> Asked:
        asked = Asked(command, reply)
        self.log.append(command)
        if self.answers is not None:
            asyncio.get_running_loop().call_soon(self._answer, asked)
        else:
            self.asked.append(asked)
        return asked

    def _answer(self, asked: Asked) -> None:
        assert self.answers is not None
        if not asked.is_cancelled:
            asked.answer(self.answers(asked.command))

    def take(self, *kinds: type) -> list[Asked]:
        """Return what was asked since the last time, of these kinds or all."""
        taken = [asked for asked in self.asked if not kinds or isinstance(asked.command, kinds)]
        self.asked = [asked for asked in self.asked if asked not in taken]
        return taken

    def one(self, kind: type, partition: int | None = None) -> Asked:
        """Return the one such command that was asked, and not taken before."""
        found = [
            asked
            for asked in self.asked
            if isinstance(asked.command, kind) and partition in (None, asked.partition)
        ]
        assert len(found) == 1, f"{len(found)} such: {self.asked}"
        self.asked.remove(found[0])
        return found[0]


class Rows:
    """What metadata shows of the queue; `stored` comes with the next refresh."""

    def __init__(self, shown: QueueDefinition | None = PLAIN) -> None:
        self.shown = shown
        self.stored = shown
        self.refreshes = self.checks = 0
        self.in_journals: QueueDefinition | None = None
        """What a journal has that metadata asks; None: what the row has."""
        self.refusal: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.tables = PartitionTables(self.find, self.journal_of, self.refresh)

    def find(self, queue_id: int) -> QueueDefinition | None:
        return self.shown if self.shown is not None and self.shown.queue_id == queue_id else None

    def journal_of(self, queue_id: int, partition: int) -> int | None:
        row = self.find(queue_id)
        return None if row is None else journal_of_partition(row, partition)

    async def refresh(self, definition: QueueDefinition) -> None:
        self.refreshes += 1
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.shown = self.stored

    async def check(self, definition: QueueDefinition) -> None:
        self.checks += 1
        await asyncio.sleep(0)
        if self.in_journals is not None:
            self.show(self.in_journals)

    def show(self, definition: QueueDefinition | None) -> None:
        """Have memory and store show this."""
        self.shown = self.stored = definition


class Bench:
    """A front end's broker in front of a scripted one, and the answers that it gave."""

    def __init__(self, shown: QueueDefinition | None = PLAIN) -> None:
        self.rows = Rows(shown)
        self.tables = self.rows.tables
        self.broker = ScriptedBroker()
        self.front = PartitionedBroker(self.broker, self.tables, self.rows.check)


class Answer:
    """Takes the reply to one request, once."""

    def __init__(self) -> None:
        self.outcome: Outcome | Exception | None = None
        self.is_submitting = True
        self.at_s = 0.0

    @property
    def is_there(self) -> bool:
        return self.outcome is not None

    def __call__(self, outcome: Outcome | Exception) -> None:
        assert not self.is_submitting, "a reply came from inside of submit"
        assert self.outcome is None, f"a second reply: {outcome}"
        self.outcome = outcome
        self.at_s = now_s()


def submitted(bench: Bench, command: Any) -> tuple[Answer, Any]:
    """Submit a command; return what takes its answer, and what can be cancelled."""
    answer = Answer()
    on_its_way = bench.front.submit(command, answer)
    answer.is_submitting = False
    return answer, on_its_way

"""What a front end submits commands to: those for queues of several partitions are spread, the rest go on as they are.

A queue that is split while a command is on its way answers it with `Elsewhere`, or does not know the partition any
more; `go_on` then takes it further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from quaymaster.core.spread.completions import SpreadCompletion
from quaymaster.core.spread.entries import HandledEntries, SpreadEntries, handled
from quaymaster.core.spread.parts import SEVERAL, Spread
from quaymaster.core.spread.receives import SpreadReceive
from quaymaster.core.spread.sends import PeerSend, SpreadSend
from quaymaster.core.spread.transactions import SpreadTransaction
from quaymaster.core.values.commands.completions import Complete
from quaymaster.core.values.commands.messages import ChangeVisibility, Delete, Elsewhere, Receive, Send, Watch
from quaymaster.core.values.commands.partitions import AskIds, IdsOutcome
from quaymaster.core.values.commands.transactions import AbortTransaction, CommitTransaction, StageMessages
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist
from quaymaster.core.values.partition_tables import entry_of, is_plain, read_partitions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.empty_receives import EmptyReceives
from quaymaster.frontend.partitions.long_polls import LongPolls
from quaymaster.frontend.partitions.spread_call import SpreadCall
from quaymaster.frontend.partitions.tables import PartitionTables, Refresh
from quaymaster.frontend.partitions.whole_queues import WHOLE_COMMANDS, WholeCommand, WholeQueues
from quaymaster.monitoring.metrics import HistogramSample
from quaymaster.net.routing.broker_client import BrokerClient, Reply, Submitted, ask

IDS_AGAIN_S: Final = 10.0
"""A sealed partition that could not tell its ids is asked again after so long, at the earliest."""
IDS_LOOK_S: Final = 30.0
"""How often it is looked whether they are still needed."""


class SeveralCommands(msgspec.Struct, gc=False):
    """Commands of one request, each answered by itself; only front ends know it."""

    commands: list[Command]
    partition: int = SEVERAL


class SeveralOutcomes(msgspec.Struct, gc=False):
    """What came of each of them, in their order: an outcome, or a CallerError or NotNow."""

    outcomes: list[Outcome | Exception]


SubmittedCommand = Command | HandledEntries | SeveralCommands
_SPREAD: Final = (Send, Receive, HandledEntries, StageMessages, CommitTransaction, AbortTransaction)
GOES_ON: Final = (*_SPREAD, Delete, ChangeVisibility, Complete, *WHOLE_COMMANDS)
"""Commands that may go on when the partition they went to sends them elsewhere, or is not known there."""


class PartitionedBroker:
    """A `BrokerClient` that also takes commands whose partition is SEVERAL, and HandledEntries."""

    def __init__(self, broker: BrokerClient, tables: PartitionTables, check: Refresh) -> None:
        """`check` lets metadata ask the journals of a queue for later tables."""
        self._check = check
        self._broker = broker
        self._tables = tables
        self._empty = EmptyReceives(self._tell_empty)
        self._polls = LongPolls(broker, tables, self._empty)
        self._whole = WholeQueues(broker, tables)
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: set[int] = set()
        self._asked_ids: set[tuple[int, int]] = set()
        """Partitions whose ids are known, being asked for, or to be asked for later."""
        tables.on_newer = self._report
        tables.on_sealed = self._learn_ids

    def histograms(self) -> Iterator[HistogramSample]:
        """Give what changes of partitions cost: a source for `Metrics`."""
        yield HistogramSample("quaymaster_partition_pause_seconds", self._tables.pauses, ())

    def submit(self, command: SubmittedCommand, reply: Reply) -> Submitted:
        """See `BrokerClient`."""
        # Nearly all queues have one partition: nothing more is done for them.
        if getattr(command, "partition", 0) < 0 or self._tables.met:
            return self._submit_spread(command, reply)
        return self._broker.submit(command, reply)  # type: ignore[arg-type]  # HandledEntries have no one partition

    def go_on(
        self, command: SubmittedCommand, outcome: Elsewhere | QueueDoesNotExist, reply: Reply
    ) -> Submitted:
        """A command to a queue's only partition was answered so: go on by the newest table, if there is the queue."""
        if isinstance(outcome, Elsewhere):
            self._tables.meet(outcome.definition)
        definition = self._tables.find(command.queue_id)  # type: ignore[union-attr]  # see GOES_ON
        if definition is None:
            return self._answer_later(reply, QueueDoesNotExist())
        if isinstance(command, Send) and isinstance(outcome, Elsewhere):
            self._tables.note_sealed(command.queue_id, command.partition)
            return self._spread(definition, command, reply, has_met_change=True, answer=outcome)
        return self._spread(definition, command, reply, has_met_change=isinstance(command, Send))

    async def ask(self, command: SubmittedCommand) -> Outcome:
        """Submit a command, and return its outcome. Raises as `net/routing/broker_client.ask` does."""
        told: Elsewhere | QueueDoesNotExist
        try:
            outcome = await ask(self, command)  # type: ignore[arg-type]  # `submit` takes both
            if not isinstance(outcome, Elsewhere):
                return outcome
            told = outcome
        except QueueDoesNotExist as error:
            if not isinstance(command, GOES_ON):
                raise
            told = error
        return await ask(_GoingOn(self, told), command)  # type: ignore[arg-type]  # as above

    def _submit_spread(self, command: SubmittedCommand, reply: Reply) -> Submitted:
        if isinstance(command, SeveralCommands):
            return self._run(self._ask_several(command.commands, reply))
        queue_id: int | None = getattr(command, "queue_id", None)
        number: int = getattr(command, "partition", 0)
        definition = None if queue_id is None else self._tables.find(queue_id)
        if number == SEVERAL and definition is None:
            return self._answer_later(reply, QueueDoesNotExist())
        is_spread = isinstance(command, _SPREAD) or (number < 0 and isinstance(command, WHOLE_COMMANDS))
        if is_spread and definition is not None and (number == SEVERAL or not is_plain(definition)):
            return self._spread(definition, command, reply)
        return self._broker.submit(command, reply)  # type: ignore[arg-type]  # HandledEntries are spread

    def _spread(
        self,
        definition: QueueDefinition,
        command: SubmittedCommand,
        reply: Reply,
        *,
        has_met_change: bool = False,
        answer: Elsewhere | None = None,
    ) -> Submitted:
        """`answer`: what the partition that a Send was for has said."""
        if isinstance(command, WHOLE_COMMANDS):
            return self._run(self._whole_answer(definition, command, reply))
        self._turn += 1
        spread: Spread
        match command:
            case Send() if definition.has_peers:
                spread = PeerSend(definition, command.messages)
            case Send():
                tables, queue_id = self._tables, definition.queue_id
                spread = SpreadSend(
                    definition,
                    command.messages,
                    partial(tables.is_known_sealed, queue_id),
                    partial(tables.may_know, queue_id),
                    None if answer is None else (command.partition, answer),
                )
            case Receive() if command.wait_ms > 0:
                return self._polls.begin(definition, command, reply, self._turn)
            case Receive():
                queue_id = definition.queue_id
                spread = SpreadReceive(
                    definition, command, self._turn, empty_before=self._empty.take(queue_id)
                )
                reply = self._empty.counted(queue_id, reply)
            case Complete():
                spread = SpreadCompletion(definition, command)
            case HandledEntries():
                spread = SpreadEntries(definition, command)
            case Delete() | ChangeVisibility():
                spread = SpreadEntries(definition, handled(command))
            case StageMessages() | CommitTransaction() | AbortTransaction():
                spread = SpreadTransaction(definition, command)
            case _:
                raise AssertionError(f"{type(command).__name__} is not spread")
        call = SpreadCall(
            *(self._broker, self._tables, definition, spread, reply), has_met_change=has_met_change
        )
        call.start()
        return call

    async def _ask_several(self, commands: list[Command], reply: Reply) -> None:
        asked = await asyncio.gather(*(self._outcome_of(command) for command in commands))
        reply(SeveralOutcomes(asked))  # type: ignore[arg-type]  # who submits them knows it

    async def _outcome_of(self, command: Command) -> Outcome | Exception:
        try:
            return await self.ask(command)
        except (CallerError, NotNow) as error:
            return error

    async def _whole_answer(self, definition: QueueDefinition, command: WholeCommand, reply: Reply) -> None:
        outcome: Outcome | Exception
        try:
            outcome = await self._whole.ask(definition, command)
        except (CallerError, NotNow) as error:
            outcome = error
        reply(outcome)

    def _answer_later(self, reply: Reply, error: Exception) -> Submitted:
        return _Scheduled(asyncio.get_running_loop().call_soon(reply, error))

    def _run(self, work: Coroutine[Any, Any, None]) -> Submitted:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _Scheduled(task)

    def _report(self, definition: QueueDefinition) -> None:
        """A broker has a newer table than the row says: look at the row, once at a time for each queue."""
        if definition.queue_id not in self._refreshing:
            self._refreshing.add(definition.queue_id)
            self._run(self._look_at_row(definition))

    async def _look_at_row(self, definition: QueueDefinition) -> None:
        try:
            await self._tables.look(definition)
            if definition.queue_id in self._tables.met:
                # The store is older than the journal: it was restored.
                await self._check(definition)
        except (CallerError, NotNow):
            pass  # the row comes by itself, later
        finally:
            self._refreshing.discard(definition.queue_id)

    def _tell_empty(self, queue_id: int) -> None:
        """Tell of receives that have ended without messages, where no other command does so."""
        definition = self._tables.find(queue_id)
        number = self._empty.take(queue_id)
        if definition is not None:
            oldest = read_partitions(definition)[0].number
            watch = Watch(queue_id, oldest, 0, definition.table_version, empty_before=number)
            self._broker.submit(watch, _ignore)

    # Which ids sealed partitions know: what has another one is not brought there first

    def _learn_ids(self, queue_id: int, number: int) -> None:
        definition = self._tables.find(queue_id)
        if definition is not None and definition.has_dedup_ids and (queue_id, number) not in self._asked_ids:
            self._asked_ids.add((queue_id, number))
            self._run(self._ask_ids(queue_id, number))

    async def _ask_ids(self, queue_id: int, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            outcome = await ask(self._broker, AskIds(queue_id, number))
        except (CallerError, NotNow):  # also a broker of an older version, which does not know the question
            outcome = IdsOutcome(b"", is_known=False)
        if isinstance(outcome, IdsOutcome) and outcome.is_known:
            self._tables.note_ids(queue_id, number, outcome.tops)
            loop.call_later(IDS_LOOK_S, self._look_at_ids, queue_id, number)
        else:
            loop.call_later(IDS_AGAIN_S, self._asked_ids.discard, (queue_id, number))

    def _look_at_ids(self, queue_id: int, number: int) -> None:
        definition = self._tables.find(queue_id)
        entry = None if definition is None else entry_of(definition, number)
        if entry is not None and entry.state == "closing":
            asyncio.get_running_loop().call_later(IDS_LOOK_S, self._look_at_ids, queue_id, number)
        else:
            self._tables.forget_ids(queue_id, number)
            self._asked_ids.discard((queue_id, number))


def _ignore(outcome: Outcome | Exception) -> None:
    """It was told where it could be."""


class _GoingOn:
    """A `BrokerClient` for a command that was sent elsewhere."""

    def __init__(self, broker: PartitionedBroker, outcome: Elsewhere | QueueDoesNotExist) -> None:
        self._broker = broker
        self._outcome = outcome

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """Go on."""
        return self._broker.go_on(command, self._outcome, reply)


class _Scheduled:
    """Something that a reply waits for."""

    def __init__(self, work: asyncio.Handle | asyncio.Task[None]) -> None:
        self._work = work

    def cancel(self) -> None:
        self._work.cancel()

    def withdraw(self) -> bool:
        """It may have been carried out."""
        return False

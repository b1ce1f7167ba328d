"""What is asked of a whole queue, where that has several partitions: counts, purges, resets, message move tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from quaymaster.core.spread.parts import partitions_are_changing
from quaymaster.core.values.commands.logs import ResetGroup
from quaymaster.core.values.commands.messages import CountMessages, Done, Purge, QueueCounts
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.commands.partitions import AskPartition, PartitionOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist, UnsupportedOperation
from quaymaster.core.values.partition_tables import final_counts, read_partitions
from quaymaster.core.values.queue_counts import sum_counts
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.net.routing.broker_client import BrokerClient, ask

WholeCommand = CountMessages | Purge | ResetGroup | StartMoveTask | CancelMoveTask | ListMoveTasks
WHOLE_COMMANDS: Final = (CountMessages, Purge, ResetGroup, StartMoveTask, CancelMoveTask, ListMoveTasks)
TABLES_MAX: Final = 4
"""Newer tables that a question may meet on its way."""
_UNFINISHED: Final = ("RUNNING", "CANCELLING")
_STATUSES: Final = ("RUNNING", "CANCELLING", "FAILED", "CANCELLED", "COMPLETED")
"""Of a task's parts the first of these that one has is the task's."""

_Outcome = TypeVar("_Outcome", bound=Outcome)


class WholeQueues:
    """Asks all partitions of a queue, and puts their answers together. Raises what a partition answers with."""

    def __init__(self, broker: BrokerClient, tables: PartitionTables) -> None:
        self._broker = broker
        self._tables = tables

    async def ask(self, definition: QueueDefinition, command: WholeCommand) -> Outcome:
        """Carry out a command about a queue of several partitions. Those that are not known may be of an old table."""
        for _ in range(TABLES_MAX):
            try:
                return await self._ask(definition, command)
            except QueueDoesNotExist:
                newer = await self._newest(definition)
                if newer.table_version <= definition.table_version:
                    break
                definition = newer
        raise partitions_are_changing()

    async def _ask(self, definition: QueueDefinition, command: WholeCommand) -> Outcome:
        match command:
            case CountMessages():
                return await self._count(definition)
            case Purge():
                return await self._purge(definition)
            case ResetGroup():
                return await self._reset(definition, command)
            case StartMoveTask():
                return await self._start(definition, command)
            case CancelMoveTask():
                return await self._cancel(definition, command)
            case ListMoveTasks():
                return MoveTasksOutcome(await self._tasks(definition))

    async def _count(self, definition: QueueDefinition) -> QueueCounts:
        queue_id = definition.queue_id
        each = await asyncio.gather(
            *(
                self._ask_one(CountMessages(queue_id, entry.number), QueueCounts)
                for entry in read_partitions(definition)
            )
        )
        # A consumer group has the table of its log, whose counts those are.
        ended_sends, ended_deletions = (0, 0) if definition.group_of else final_counts(definition)
        return sum_counts(each, sends=ended_sends, deletions=ended_deletions)

    async def _purge(self, definition: QueueDefinition) -> Done:
        """Purge older partitions first: what is sent meanwhile is in one that a newer table has, and stays or goes."""
        purged: set[int] = set()
        while True:
            left = [entry for entry in read_partitions(definition) if entry.number not in purged]
            if not left:
                return Done()
            for entry in left:
                await self._ask_one(Purge(definition.queue_id, entry.number), Done)
                purged.add(entry.number)
            # A partition that was sealed since has children that were sent messages before this began.
            version = max(
                [
                    (
                        await self._ask_one(AskPartition(definition.queue_id, entry.number), PartitionOutcome)
                    ).table_version
                    for entry in left
                ]
            )
            if version > definition.table_version:
                definition = await self._newest(definition)
                if version > definition.table_version:
                    raise partitions_are_changing()

    async def _reset(self, definition: QueueDefinition, command: ResetGroup) -> Done:
        """Let a consumer group begin again in older partitions first: younger ones then ask those what they have."""
        for entry in read_partitions(definition):
            part = msgspec.structs.replace(command, partition=entry.number)
            await self._ask_one(part, Done)
        return Done()

    async def _newest(self, definition: QueueDefinition) -> QueueDefinition:
        found = await self._tables.look(definition)
        if found is None:
            raise QueueDoesNotExist
        return found

    # Message move tasks: a part in each partition, all with the task's id

    async def _start(self, definition: QueueDefinition, command: StartMoveTask) -> Outcome:
        """Start a task's parts, the oldest first: it says no where another task runs, so one runs at a time."""
        entries = read_partitions(definition)
        if any(task.status in _UNFINISHED for task in await self._tasks(definition)):
            raise UnsupportedOperation("There is already a task running. Only one active task is allowed.")
        rates = divide_rate(command.rate_per_s, len(entries))
        asked: list[int] = []
        outcome: Outcome = Done()
        try:
            for entry, rate_per_s in zip(entries, rates, strict=True):
                part = msgspec.structs.replace(command, partition=entry.number, rate_per_s=rate_per_s)
                asked.append(entry.number)
                outcome = await ask(self._broker, part)
        except (CallerError, NotNow) as error:
            # The last one, too: it may have started its part without being able to say so.
            cancels = [CancelMoveTask(definition.queue_id, command.task_id, number) for number in asked]
            await asyncio.gather(*(ask(self._broker, cancel) for cancel in cancels), return_exceptions=True)
            if isinstance(
                error, QueueDoesNotExist
            ):  # a partition is not known there; parts do not start twice
                raise partitions_are_changing() from error
            raise
        return outcome

    async def _cancel(self, definition: QueueDefinition, command: CancelMoveTask) -> MoveTasksOutcome:
        refused: CallerError | None = None
        is_cancelled = False
        for entry in read_partitions(definition):
            part = msgspec.structs.replace(command, partition=entry.number)
            try:
                await ask(self._broker, part)
                is_cancelled = True
            except QueueDoesNotExist:
                raise
            except CallerError as error:  # this part has ended already
                refused = error
        if refused is not None and not is_cancelled:
            raise refused
        tasks = await self._tasks(definition)
        return MoveTasksOutcome([task for task in tasks if task.task_id == command.task_id])

    async def _tasks(self, definition: QueueDefinition) -> list[MoveTask]:
        outcomes = await asyncio.gather(
            *(
                self._ask_one(ListMoveTasks(definition.queue_id, entry.number), MoveTasksOutcome)
                for entry in read_partitions(definition)
            )
        )
        return join_tasks([outcome.tasks for outcome in outcomes])

    async def _ask_one(
        self,
        command: CountMessages | Purge | ResetGroup | AskPartition | ListMoveTasks,
        kind: Callable[..., _Outcome],
    ) -> _Outcome:
        outcome = await ask(self._broker, command)
        assert type(outcome) is kind, f"{type(command).__name__} is not answered so: {outcome}"
        return outcome  # type: ignore[return-value]  # as the assertion says


def divide_rate(rate_per_s: int | None, parts: int) -> list[int | None]:
    """Return the rates of a task's parts: together what was asked for, but at least 1 a second each."""
    if rate_per_s is None:
        return [None] * parts
    whole, rest = divmod(rate_per_s, parts)
    return [max(1, whole + (at < rest)) for at in range(parts)]


def join_tasks(parts: Sequence[Sequence[MoveTask]]) -> list[MoveTask]:
    """Return tasks from the parts that partitions have of them, the newest first."""
    by_id: dict[bytes, list[MoveTask]] = {}
    for tasks in parts:
        for task in tasks:
            by_id.setdefault(task.task_id, []).append(task)
    joined = [_join(tasks) for tasks in by_id.values()]
    return sorted(joined, key=lambda task: task.started_ms, reverse=True)


def _join(parts: Sequence[MoveTask]) -> MoveTask:
    first = min(parts, key=lambda task: task.started_ms)
    rates = [task.rate_per_s for task in parts if task.rate_per_s is not None]
    return msgspec.structs.replace(
        first,
        status=min((task.status for task in parts), key=_STATUSES.index),
        moved=sum(task.moved for task in parts),
        to_move=sum(task.to_move for task in parts),
        rate_per_s=sum(rates) if rates else None,
        failure=next((task.failure for task in parts if task.failure is not None), None),
    )

"""Message move tasks: starting, listing and cancelling a redrive of a dead-letter queue.

The broker owns a task and its progress.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Final

from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    ListMoveTasks,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.errors import InvalidParameterValue, ResourceNotFound, UnsupportedOperation
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.addresses import Addresses
from quaymaster.frontend.call import Call
from quaymaster.protocol.actions import validation
from quaymaster.protocol.sqs import shapes
from quaymaster.protocol.sqs.task_handles import render_task_handle

RUNNING: Final = "RUNNING"
FAILED: Final = "FAILED"

SOURCES_MAX: Final = 10_000
"""Sources that are judged to start a task without a destination: a few µs each, in pages."""

DeadLetterSources = Callable[[QueueDefinition], AsyncIterator[list[QueueDefinition]]]
"""Gives the queues whose redrive policy names this one, some at a time."""


class MoveActions:
    """The handlers of the actions on message move tasks."""

    def __init__(
        self,
        addresses: Addresses,
        dead_letter_sources: DeadLetterSources,
        authorize_destination: Callable[[Call, QueueDefinition], None],
    ) -> None:
        """`authorize_destination` raises AccessDenied unless a call may move messages to a queue."""
        self._addresses = addresses
        self._dead_letter_sources = dead_letter_sources
        self._authorize_destination = authorize_destination

    async def start_message_move_task(
        self, call: Call, given: shapes.StartMessageMoveTaskRequest
    ) -> shapes.StartMessageMoveTaskResult:
        """Begin to move a dead-letter queue's messages, to a queue or to where each came from."""
        source, target = call.resolved, call.others[0] if call.others else None
        if target is not None:
            if target.queue_id == source.queue_id:
                raise InvalidParameterValue("Source queue arn and destination queue arn cannot be the same.")
            if target.keeps_all:
                raise UnsupportedOperation(
                    "Messages are not moved into a log-retained queue: send them anew."
                )
            if target.is_fifo != source.is_fifo:
                raise InvalidParameterValue("Source and destination queue must be of the same type.")
        await self._check_sources(call, source, has_target=target is not None)
        task_id = uuid.uuid4().bytes
        source_arn = self._addresses.arn(source)
        target_arn = None if target is None else self._addresses.arn(target)
        target_id = None if target is None else target.queue_id
        rate_per_s = given.MaxNumberOfMessagesPerSecond
        await call.calls.ask(
            StartMoveTask(source.queue_id, task_id, source_arn, target_arn, target_id, rate_per_s)
        )
        return shapes.StartMessageMoveTaskResult(render_task_handle(task_id, source_arn))

    async def _check_sources(self, call: Call, source: QueueDefinition, *, has_target: bool) -> None:
        """Raise unless dead letters come here; without a target, unless the call may move messages to every source."""
        count = 0
        log_name = ""
        takes_some = has_target
        async for sources in self._dead_letter_sources(source):
            count += len(sources)
            if has_target:
                break
            if count > SOURCES_MAX:
                raise UnsupportedOperation(
                    f"More than {SOURCES_MAX} queues have {source.name} as their dead-letter queue: name a "
                    "DestinationArn."
                )
            for one in sources:
                self._authorize_destination(call, one)
                if one.keeps_all:
                    log_name = log_name or one.name
                else:
                    takes_some = True
        if not count:
            raise InvalidParameterValue("Source queue must be configured as a Dead Letter Queue.")
        if not takes_some:
            # Where other queues have dead letters here, too, the task finds out message by message.
            raise UnsupportedOperation(
                f"The messages come from consumer groups of the log-retained queue {log_name}, which still has "
                "them: name a DestinationArn, or reset the group to before the message."
            )

    async def cancel_message_move_task(
        self, call: Call, given: shapes.CancelMessageMoveTaskRequest
    ) -> shapes.CancelMessageMoveTaskResult:
        """Stop a task that runs; what it moved stays moved."""
        asked: validation.Move = call.meant
        source, task_id = call.resolved, asked.task_id
        task = next((task for task in await self._tasks(call, source) if task.task_id == task_id), None)
        if task is None:
            raise ResourceNotFound.task()
        if task.status != RUNNING:
            raise UnsupportedOperation(
                f"A message move task can only be cancelled while it is {RUNNING}; it is {task.status}."
            )
        outcome = await call.calls.ask(CancelMoveTask(source.queue_id, task_id))
        if isinstance(outcome, MoveTasksOutcome) and outcome.tasks:
            task = outcome.tasks[0]
        return shapes.CancelMessageMoveTaskResult(task.moved)

    async def list_message_move_tasks(
        self, call: Call, given: shapes.ListMessageMoveTasksRequest
    ) -> shapes.ListMessageMoveTasksResult:
        """List the newest tasks of a queue."""
        asked: validation.Move = call.meant
        tasks = await self._tasks(call, call.resolved)
        return shapes.ListMessageMoveTasksResult([_render_task(task) for task in tasks[: asked.tasks_max]])

    async def _tasks(self, call: Call, source: QueueDefinition) -> list[MoveTask]:
        outcome = await call.calls.ask(ListMoveTasks(source.queue_id))
        assert isinstance(outcome, MoveTasksOutcome), "a ListMoveTasks is answered by a MoveTasksOutcome"
        return outcome.tasks


def _render_task(task: MoveTask) -> shapes.ListMessageMoveTasksResultEntry:
    return shapes.ListMessageMoveTasksResultEntry(
        TaskHandle=render_task_handle(task.task_id, task.source_arn) if task.status == RUNNING else None,
        Status=task.status,
        SourceArn=task.source_arn,
        DestinationArn=task.target_arn,
        MaxNumberOfMessagesPerSecond=task.rate_per_s,
        ApproximateNumberOfMessagesMoved=task.moved,
        ApproximateNumberOfMessagesToMove=task.to_move,
        FailureReason=task.failure if task.status == FAILED else None,
        StartedTimestamp=task.started_ms,
    )

"""What the leader decides about message move tasks: the redrives that people ask for, of one partition's messages.

A partition knows its last tasks, of which one may be running. Who carries a task out takes messages, moves them, and
says when it is done.

Each task has an end. It moves what was there when it started: messages below `stop`, the next sequence number of that
moment. What comes later gets a higher one, also what the task itself moves into its own source, and what consumers send
back while it runs. A task that runs for longer than SQS lets one run has failed. Source of the limits: Amazon SQS
Developer Guide, "Configuring dead-letter queue redrive": 36 hours, 100 active tasks of an account.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_counts import counts_of
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.queues.record_payloads import encode_task
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.values.errors import InvalidParameterValue, ResourceNotFound, UnsupportedOperation
from quaymaster.core.values.formats import CellFormat, Versions
from quaymaster.core.values.records import RecordType

TASK_MAX_MS = 36 * 3_600_000
"""How long a task may run."""

RAN_TOO_LONG = "TheTaskRanForMoreThan36Hours"
"""Why a task has failed that did not end before."""

LOOKED_AT_MIN = 1_000
"""A look that stopped at its bound has looked at so many messages, or timeouts, at least."""

TASK_STOPS: Versions = {1: 0, 4: 1}
"""Since which cell format a task says where it stops. 0: one that does not ends when it has moved as many messages as
there were."""


def check_may_have_task(partition: Partition) -> None:
    """Raise UnsupportedOperation where messages stay, InvalidParameterValue where they are being moved already."""
    if partition.definition.keeps_all:
        raise UnsupportedOperation(
            "Messages of a log-retained queue stay in it: they are not moved. Reset a consumer group instead."
        )
    if any(task.status in ("RUNNING", "CANCELLING") for task in partition.tasks):
        raise InvalidParameterValue(
            "There is already a task running. Only one active task is allowed for a source queue "
            "arn at a given time."
        )


def start_task(
    partition: Partition,
    command: StartMoveTask,
    now_ms: int,
    proposal: Proposal,
    cell_format: CellFormat,
) -> MoveTasksOutcome:
    """Begin to move what is there; it was checked that it may, and the partition is up to `now_ms`."""
    counts = counts_of(partition, now_ms)
    task = MoveTask(
        task_id=command.task_id,
        source_arn=command.source_arn,
        target_arn=command.target_arn,
        target_queue_id=command.target_queue_id,
        rate_per_s=command.rate_per_s,
        status="RUNNING",
        started_ms=now_ms,
        to_move=counts.visible,
        stop=partition.next_sequence if cell_format.version_of(TASK_STOPS) else 0,
    )
    _propose(partition, task, now_ms, proposal)
    return MoveTasksOutcome([msgspec.structs.replace(task)])


def cancel_task(
    partition: Partition, command: CancelMoveTask, now_ms: int, proposal: Proposal
) -> MoveTasksOutcome:
    """End a task that runs in a partition."""
    task = next(task for task in partition.tasks if task.task_id == command.task_id)
    cancelled = msgspec.structs.replace(task, status="CANCELLED")
    _propose(partition, cancelled, now_ms, proposal)
    return MoveTasksOutcome([cancelled])


def finish_task(partition: Partition, command: FinishMoveTask, now_ms: int, proposal: Proposal) -> None:
    """Note that a task is done or has failed, if it is still running."""
    for task in partition.tasks:
        if task.task_id == command.task_id and task.status == "RUNNING":
            status = "COMPLETED" if command.failure is None else "FAILED"
            ended = msgspec.structs.replace(task, status=status, failure=command.failure)
            _propose(partition, ended, now_ms, proposal)


def running_task(partition: Partition, task_id: bytes, now_ms: int, proposal: Proposal) -> MoveTask | None:
    """Return a task that may take messages; one that has run for too long is ended."""
    task = next((task for task in partition.tasks if task.task_id == task_id), None)
    if task is None or task.status != "RUNNING":
        return None
    if now_ms - task.started_ms < TASK_MAX_MS:
        return task
    _propose(
        partition, msgspec.structs.replace(task, status="FAILED", failure=RAN_TOO_LONG), now_ms, proposal
    )
    return None


def may_take(task: MoveTask, count_max: int) -> int:
    """Return how many messages a task may take now, of those that it asks for."""
    return count_max if task.stop else max(0, min(count_max, task.to_move - task.moved))


def looks_in_vain_max(partition: Partition) -> int:
    """Return after how many looks that stopped at their bound and found nothing everything has been looked at."""
    return partition.alive // LOOKED_AT_MIN + 1


def partitions_running(partitions: Sequence[Partition], task_id: bytes) -> list[Partition]:
    """Return the partitions in which a task runs; ResourceNotFound, InvalidParameterValue when it is over in all."""
    status_of = {
        partition: task.status
        for partition in partitions
        for task in partition.tasks
        if task.task_id == task_id
    }
    if not status_of:
        raise ResourceNotFound("Task does not exist.")
    running = [partition for partition, status in status_of.items() if status == "RUNNING"]
    if not running:
        raise InvalidParameterValue("Only active tasks can be cancelled.")
    return running


def list_tasks(partitions: Sequence[Partition]) -> MoveTasksOutcome:
    """Return the last tasks of partitions, the newest first."""
    tasks = [msgspec.structs.replace(task) for partition in partitions for task in reversed(partition.tasks)]
    if len(partitions) > 1:
        tasks.sort(key=lambda task: -task.started_ms)
    return MoveTasksOutcome(tasks)


def _propose(partition: Partition, task: MoveTask, now_ms: int, proposal: Proposal) -> None:
    proposal.add(RecordType.MOVE_TASK, partition, now_ms, payload=encode_task(task))
    partition.apply_task(task)

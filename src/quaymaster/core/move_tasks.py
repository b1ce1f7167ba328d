"""What the leader decides about message move tasks: the redrives that people ask for, of one partition's messages.

A partition knows its last tasks, of which one may be running. Who carries a task out takes messages, moves them, and
says when it is done.
"""

from __future__ import annotations

import msgspec

from quaymaster.core.applied_queues import encode_task
from quaymaster.core.commands import (
    CancelMoveTask,
    FinishMoveTask,
    MoveTask,
    MoveTasksOutcome,
    StartMoveTask,
)
from quaymaster.core.errors import InvalidParameterValue, ResourceNotFound, UnsupportedOperation
from quaymaster.core.partition import Partition
from quaymaster.core.proposals import Proposal
from quaymaster.core.records import RecordType


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
    partition: Partition, command: StartMoveTask, now_ms: int, proposal: Proposal
) -> MoveTasksOutcome:
    """Begin to move what is visible; it was checked that it may, and the partition is up to `now_ms`."""
    counts = partition.counts(now_ms)
    task = MoveTask(
        task_id=command.task_id,
        source_arn=command.source_arn,
        target_arn=command.target_arn,
        target_queue_id=command.target_queue_id,
        rate_per_s=command.rate_per_s,
        status="RUNNING",
        started_ms=now_ms,
        to_move=counts.visible,
    )
    _propose(partition, task, now_ms, proposal)
    return MoveTasksOutcome([msgspec.structs.replace(task)])


def cancel_task(
    partition: Partition, command: CancelMoveTask, now_ms: int, proposal: Proposal
) -> MoveTasksOutcome:
    """End a running task; ResourceNotFound, InvalidParameterValue when it is over."""
    for task in partition.tasks:
        if task.task_id == command.task_id:
            if task.status != "RUNNING":
                raise InvalidParameterValue("Only active tasks can be cancelled.")
            cancelled = msgspec.structs.replace(task, status="CANCELLED")
            _propose(partition, cancelled, now_ms, proposal)
            return MoveTasksOutcome([cancelled])
    raise ResourceNotFound("Task does not exist.")


def finish_task(partition: Partition, command: FinishMoveTask, now_ms: int, proposal: Proposal) -> None:
    """Note that a task is done or has failed, if it is still running."""
    for task in partition.tasks:
        if task.task_id == command.task_id and task.status == "RUNNING":
            status = "COMPLETED" if command.failure is None else "FAILED"
            ended = msgspec.structs.replace(task, status=status, failure=command.failure)
            _propose(partition, ended, now_ms, proposal)


def list_tasks(partition: Partition) -> MoveTasksOutcome:
    """Return the last tasks, the newest first."""
    return MoveTasksOutcome([msgspec.structs.replace(task) for task in reversed(partition.tasks)])


def _propose(partition: Partition, task: MoveTask, now_ms: int, proposal: Proposal) -> None:
    proposal.add(RecordType.MOVE_TASK, partition, now_ms, payload=encode_task(task))
    partition.apply_task(task)

"""Commands on message move tasks, and what a leader decides for them."""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.decided import Taken
from quaymaster.core.values.commands.messages import ALL_PARTITIONS


class StartMoveTask(msgspec.Struct, gc=False, array_like=True, tag=10):
    """Start moving the visible messages of a dead-letter queue to `target_queue_id`, or (None) whence they came.

    `rate_per_s` bounds messages per second; None: as fast as it goes.
    """

    queue_id: int
    task_id: bytes
    source_arn: str
    target_arn: str | None
    target_queue_id: int | None
    rate_per_s: int | None
    partition: int = ALL_PARTITIONS


class CancelMoveTask(msgspec.Struct, gc=False, array_like=True, tag=11):
    """Stop a running move task; what was moved stays moved."""

    queue_id: int
    task_id: bytes
    partition: int = ALL_PARTITIONS


class ListMoveTasks(msgspec.Struct, gc=False, array_like=True, tag=12):
    """Ask for the move tasks of a source queue, newest first."""

    queue_id: int
    partition: int = ALL_PARTITIONS


class MoveTask(msgspec.Struct, gc=False, array_like=True):
    """A message move task: RUNNING, CANCELLING, CANCELLED, COMPLETED or FAILED.

    It moves messages below the sequence number `stop` only: what was there when it started. 0: it was started by a
    program that set none.
    """

    task_id: bytes
    source_arn: str
    target_arn: str | None
    target_queue_id: int | None
    rate_per_s: int | None
    status: str
    started_ms: int
    moved: int = 0
    to_move: int = 0
    failure: str | None = None
    stop: int = 0


class MoveTasksOutcome(msgspec.Struct, gc=False, array_like=True, tag=7):
    """The tasks asked for."""

    tasks: list[MoveTask]


class TakeForMove(msgspec.Struct, gc=False):
    """Take up to `count_max` visible messages for a move task; with 0, only see whether it is over.

    The broker asks this of itself.
    """

    queue_id: int
    task_id: bytes
    count_max: int
    partition: int = 0


class FinishMoveTask(msgspec.Struct, gc=False):
    """A move task has ended by itself, or (with `failure`) could not go on."""

    queue_id: int
    task_id: bytes
    failure: str | None = None
    partition: int = 0


class TakenForTask(msgspec.Struct, gc=False):
    """What a TakeForMove took. `unfinished` as in TakenOutcome; `is_over`: the task takes nothing more.

    `is_held`: it took nothing, and messages of the task wait for older partitions of the queue.
    """

    taken: list[Taken]
    unfinished: bool = False
    is_over: bool = False
    is_held: bool = False

"""Messages on their way to another queue: dead letters, and message move tasks.

The core takes a message out of its order and says so; here its body is read and a MoveMessage proposed, which is
one atomic record within the journal. A crash before that record leaves the message where it was.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from quaymaster.core.applied_queues import MOVE_HEAD_BYTES, PREFIX_FLAGS, partition_key
from quaymaster.core.commands import (
    DeadLetter,
    FinishMoveTask,
    MoveMessage,
    MoveTask,
    Outcome,
    TakeForMove,
    Taken,
    TakenOutcome,
)
from quaymaster.core.errors import QueueDoesNotExist
from quaymaster.core.messages import decode_moved, split_payload
from quaymaster.core.queue_definitions import queue_arn
from quaymaster.core.records import RecordType
from quaymaster.monitoring.logs import log_event

if TYPE_CHECKING:
    from quaymaster.broker.replica import Body, ReplicaHost

TAKE_MAX = 100
"""How many messages a move task takes at a time."""

TASKS_AT_ONCE_MAX = 2
"""How many move tasks take and move messages at one time; the others wait for their turn."""

MOVES_AT_ONCE_MAX = 200
"""How many dead letters are on their way at once: one turn of the event loop may have to decide them all."""

IDLE_ROUNDS = 3
"""A move task is complete when this many looks, a moment apart, found nothing visible."""
IDLE_S = 0.05

UNREADABLE_RETRY_S = 30.0
"""A dead letter whose record cannot be read is left alone for so long before it is tried again."""

NO_SOURCE = "CouldNotDetermineMessageSource"
NO_TARGET = "AWS.SimpleQueueService.NonExistentQueue"

log = logging.getLogger(__name__)


class Moves:
    """Carries messages from queue to queue for one journal's leader."""

    def __init__(self, host: ReplicaHost, region: str) -> None:
        self._host = host
        self._region = region
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._put_back_later: set[asyncio.TimerHandle] = set()
        self._letters: deque[DeadLetter] = deque()
        self._in_progress = 0
        self._task_turns = asyncio.Semaphore(TASKS_AT_ONCE_MAX)

    def move_dead_letters(self, letters: list[DeadLetter]) -> None:
        """Read the bodies of dead letters and propose their moves, so many at a time."""
        self._letters.extend(letters)
        self._move_some()

    def _move_some(self) -> None:
        while self._letters and self._in_progress < MOVES_AT_ONCE_MAX:
            count = min(len(self._letters), MOVES_AT_ONCE_MAX - self._in_progress)
            some = [self._letters.popleft() for _ in range(count)]
            self._in_progress += count
            self._host.read_bodies(
                [letter.offset for letter in some], partial(self._propose_dead_letters, some)
            )

    def _propose_dead_letters(self, letters: list[DeadLetter], bodies: dict[int, Body]) -> None:
        for letter in letters:
            body = bodies.get(letter.offset)
            if body is None:
                self._leave_alone(letter)
                self._progressed()
            else:
                self._propose_dead_letter(letter, body, self._progressed)

    def _progressed(self) -> None:
        self._in_progress -= 1
        if self._letters and self._in_progress <= MOVES_AT_ONCE_MAX // 2:
            self._move_some()

    def start_tasks(self) -> None:
        """Go on with every task that the state says is running and that nobody works on."""
        for partition in list(self._host.replica.queues.partitions.values()):
            for task in partition.tasks:
                if task.status == "RUNNING" and task.task_id not in self._tasks:
                    work = asyncio.get_running_loop().create_task(
                        self._run(partition.definition.queue_id, partition.number, task)
                    )
                    self._tasks[task.task_id] = work
                    work.add_done_callback(partial(self._forget, task.task_id))

    async def close(self) -> None:
        """Stop working on tasks; they go on at the next start."""
        for handle in self._put_back_later:
            handle.cancel()
        self._put_back_later.clear()
        running = list(self._tasks.values())
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _leave_alone(self, letter: DeadLetter) -> None:
        """Keep a message that cannot be read aside, and let receives that met it see what is behind it."""

        def put_back() -> None:
            self._put_back_later.discard(handle)
            self._propose_dead_letter(letter, None, _nothing)

        handle = asyncio.get_running_loop().call_later(UNREADABLE_RETRY_S, put_back)
        self._put_back_later.add(handle)
        self._moved(letter.queue_id, letter.partition, None)

    def _propose_dead_letter(self, letter: DeadLetter, body: Body | None, done: Callable[[], None]) -> None:
        definition = self._host.replica.queues.definitions.get(letter.queue_id)
        if definition is None:
            done()
            return

        def moved(answer: object) -> None:
            done()
            self._moved(letter.queue_id, letter.partition, answer)

        arn = queue_arn(region=self._region, account_id=definition.account_id, name=definition.name)
        record_type, flags, _, payload = body or (0, 0, 0, None)
        command = MoveMessage(
            letter.queue_id,
            letter.partition,
            letter.sequence,
            letter.target_queue_id,
            record_type,
            flags,
            payload,
            arn,
        )
        self._host.submit(command, moved)

    def _forget(self, task_id: bytes, work: asyncio.Task[None]) -> None:
        self._tasks.pop(task_id, None)

    def _moved(self, queue_id: int, number: int, answer: object) -> None:
        """A move is durable (or was given up): receives that met the message may see what is behind it."""
        source = self._host.replica.queues.partitions.get(partition_key(queue_id, number))
        if source is not None and source.watched:
            self._host.waiters.wake(source)

    async def _run(self, queue_id: int, number: int, task: MoveTask) -> None:
        """Work on one task until its source has no more visible messages, or it cannot go on."""
        log_event(log, logging.INFO, "move task started", source=task.source_arn, target=task.target_arn)
        failure: str | None = None
        idle = 0
        try:
            while failure is None and idle < IDLE_ROUNDS:
                partition = self._host.replica.queues.partitions.get(partition_key(queue_id, number))
                if partition is None or not any(
                    known.task_id == task.task_id and known.status == "RUNNING" for known in partition.tasks
                ):
                    return
                count = min(TAKE_MAX, task.rate_per_s) if task.rate_per_s else TAKE_MAX
                if task.rate_per_s:
                    count = max(1, count // 10)  # ten small steps a second rather than one large one
                async with self._task_turns:
                    found = await self._take(queue_id, count)
                    taken = found.taken
                    bodies = await self._read(taken)
                    failure = await self._move_taken(queue_id, number, task, taken, bodies)
                if not taken:
                    idle += not found.unfinished
                    await asyncio.sleep(0 if found.unfinished else IDLE_S)
                    continue
                if not bodies:
                    # What cannot be read was put back, and is visible: as if nothing were there.
                    idle += 1
                    await asyncio.sleep(IDLE_S)
                    continue
                idle = 0
                if task.rate_per_s:
                    await asyncio.sleep(len(taken) / task.rate_per_s)
            await self._host.ask(FinishMoveTask(queue_id, task.task_id, failure))
        except QueueDoesNotExist:
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log_event(log, logging.ERROR, "move task stopped", source=task.source_arn, error=str(error))
            return
        log_event(log, logging.INFO, "move task ended", source=task.source_arn, failure=failure)

    async def _take(self, queue_id: int, count: int) -> TakenOutcome:
        outcome: asyncio.Future[TakenOutcome] = asyncio.get_running_loop().create_future()

        def reply(answer: object) -> None:
            if outcome.cancelled():
                return
            if isinstance(answer, Exception):
                outcome.set_exception(answer)
            else:
                outcome.set_result(answer)  # type: ignore[arg-type]  # a TakenOutcome

        self._host.submit(TakeForMove(queue_id, count), reply)
        return await outcome

    async def _read(self, taken: list[Taken]) -> dict[int, Body]:
        read: asyncio.Future[dict[int, Body]] = asyncio.get_running_loop().create_future()

        def finish(bodies: dict[int, Body]) -> None:
            if not read.done():
                read.set_result(bodies)

        self._host.read_bodies([message.offset for message in taken], finish)
        return await read

    async def _move_taken(
        self, queue_id: int, number: int, task: MoveTask, taken: list[Taken], bodies: dict[int, Body]
    ) -> str | None:
        """Move each message, or put it back; return why the task cannot go on, or None."""
        loop = asyncio.get_running_loop()
        failure: str | None = None
        waiting: list[asyncio.Task[Outcome]] = []
        queues = self._host.replica.queues
        for message in taken:
            body = bodies.get(message.offset)
            target_id = task.target_queue_id
            if target_id is None and body is not None:
                target_id = _queue_it_came_from(body)
                if target_id is None:
                    failure = failure or NO_SOURCE
            if target_id is not None and target_id not in queues.definitions:
                failure = failure or NO_TARGET
            record_type, flags, _, payload = body or (0, 0, 0, None)
            command = MoveMessage(
                queue_id,
                number,
                message.sequence,
                target_id or 0,
                record_type,
                flags,
                payload if failure is None else None,
                None,
                new_message_id=uuid.uuid4().bytes,
                task_id=task.task_id,
            )
            waiting.append(loop.create_task(self._host.ask(command)))
        await asyncio.gather(*waiting)
        self._moved(queue_id, number, None)
        return failure


def _nothing() -> None:
    """Nobody waits for it."""


def _queue_it_came_from(body: Body) -> int | None:
    """Return the id of the queue a dead letter was moved from, None when it was sent here directly."""
    record_type, flags, _, payload = body
    if record_type != RecordType.MOVE:
        return None
    wrapped = split_payload(flags & PREFIX_FLAGS, payload[MOVE_HEAD_BYTES:])[3]
    return decode_moved(wrapped).source_queue_id

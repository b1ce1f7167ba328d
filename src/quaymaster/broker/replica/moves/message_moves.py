"""Messages on their way to another queue: dead letters, and message move tasks.

The core takes a message out of its order and says so; here its body is read and a MoveMessage proposed, which is
one atomic record within the journal. A crash before that record leaves the message where it was.

A queue of another journal is looked for by its ARN (`queue_places`); messages then begin to leave for it (`moves_out`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from quaymaster.broker.replica.moves.moves_out import MovesAway
from quaymaster.core.partition.partition_moves import UNKNOWN
from quaymaster.core.queues.move_tasks import looks_in_vain_max
from quaymaster.core.queues.record_payloads import IS_OUTPUT, MOVE_HEAD_BYTES, PREFIX_FLAGS
from quaymaster.core.values.commands.decided import DeadLetter, Taken
from quaymaster.core.values.commands.move_tasks import FinishMoveTask, MoveTask, TakeForMove, TakenForTask
from quaymaster.core.values.commands.moves import MoveBegun, MoveIn, MoveInOutcome, MoveMessage
from quaymaster.core.values.errors import CallerError, NotNow, QueueDoesNotExist
from quaymaster.core.values.messages import decode_moved, split_payload
from quaymaster.core.values.queues.partition_keys import partition_key, parts_of_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.core.values.records import RecordType
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.supervision import supervise

if TYPE_CHECKING:
    from quaymaster.broker.replica.moves.moves_out import MoveCarrier
    from quaymaster.broker.replica.moves.queue_places import QueuePlaces
    from quaymaster.broker.replica.records.record_bodies import Body
    from quaymaster.broker.replica.replica import ReplicaHost

TAKE_MAX = 100
"""How many messages a move task takes at a time."""

TASKS_AT_ONCE_MAX = 2
"""How many move tasks take and move messages at one time; the others wait for their turn."""

MOVES_AT_ONCE_MAX = 200
"""How many dead letters are on their way at once: one turn of the event loop may have to decide them all."""

IDLE_ROUNDS = 3
"""A move task is complete when this many looks, a moment apart, found nothing visible."""
IDLE_S = 0.05

LOOK_ON_S = 0.001
"""After a look that stopped at its bound the next one is in another millisecond, with a bound of its own."""

UNREADABLE_RETRY_S = 30.0
"""A dead letter whose record cannot be read is left alone for so long before it is tried again."""

AWAY_RETRY_S = 1.0
"""So long passes before it is asked again where a queue is, or proposed again what was refused."""

NO_SOURCE = "CouldNotDetermineMessageSource"
INTO_A_LOG = "MessagesAreNotMovedIntoALog"
"""Dead letters of a consumer group are copies: what they were copied from is in the log, and consumed."""
NOT_FOUND_IN_TIME = "TheDestinationWasNotFoundInTime"
"""Only seen where the task is over anyway."""
NO_TARGET = "AWS.SimpleQueueService.NonExistentQueue"

log = logging.getLogger(__name__)


class MessageMoves:
    """Carries messages from queue to queue for one journal's leader; to other journals, if there are any."""

    def __init__(
        self,
        host: ReplicaHost,
        region: str,
        *,
        places: QueuePlaces | None = None,
        carrier: MoveCarrier | None = None,
    ) -> None:
        self._host = host
        self._places = places
        self._away = MovesAway(
            host,
            region,
            carrier if carrier is not None else _WithinJournal(host),
            targets=places if places is not None else _NoOthers(),
            on_settled=self._wake,
        )
        self._unlocated: dict[str, list[tuple[DeadLetter, Body]]] = {}
        self._locating: set[asyncio.Task[None]] = set()
        self._region = region
        self._tasks: dict[tuple[int, bytes], asyncio.Task[None]] = {}
        """By partition and task: a task runs in each partition of its source."""
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
            self._host.records.read(
                [letter.offset for letter in some], partial(self._propose_dead_letters, some)
            )

    def _propose_dead_letters(self, letters: list[DeadLetter], bodies: dict[int, Body]) -> None:
        for letter in letters:
            body = bodies.get(letter.offset)
            if body is None:
                self._leave_alone(letter, UNREADABLE_RETRY_S)
                self._progressed()
            elif self._places is None:
                self._propose_dead_letter(letter, body, self._progressed)
            else:
                self._propose_to_leave(letter, body, self._places)

    def _propose_to_leave(self, letter: DeadLetter, body: Body, places: QueuePlaces) -> None:
        """Find out where a dead letter goes, and propose that; those for one queue keep their order."""
        definition = self._host.replica.queues.definitions.get(letter.queue_id)
        policy = definition.redrive_policy if definition is not None else None
        arn = str(policy.target) if policy is not None else ""
        waiting = self._unlocated.get(arn)
        place = places.elsewhere.find(arn)
        if letter.target_queue_id in self._host.replica.queues.definitions:
            is_same = place is not None and place.queue_id == letter.target_queue_id
            self._propose_dead_letter(letter, body, self._progressed, place if is_same else None)
        elif waiting is not None:
            waiting.append((letter, body))
        elif place is UNKNOWN:
            self._unlocated[arn] = [(letter, body)]
            task = asyncio.get_running_loop().create_task(self._locate(arn, places))
            self._locating.add(task)
            task.add_done_callback(self._locating.discard)
        else:
            self._propose_dead_letter(letter, body, self._progressed, place)

    async def _locate(self, arn: str, places: QueuePlaces) -> None:
        """Find out where a queue is, and go on with the dead letters for it."""
        try:
            place = await places.locate(arn)
        except NotNow as error:
            log_event(log, logging.WARNING, "dead-letter queue not looked for", queue=arn, reason=str(error))
            for letter, _ in self._unlocated.pop(arn):
                self._leave_alone(letter, AWAY_RETRY_S)
                self._progressed()
            return
        for letter, body in self._unlocated.pop(arn):
            self._propose_dead_letter(letter, body if place is not None else None, self._progressed, place)

    def _progressed(self) -> None:
        self._in_progress -= 1
        if self._letters and self._in_progress <= MOVES_AT_ONCE_MAX // 2:
            self._move_some()

    def leads(self, is_leading: bool) -> None:
        """The replica has begun to lead, or leads no longer."""
        if is_leading:
            self._put_back_undecided()
            if self._places is not None:
                self._host.replica.queues.elsewhere = self._places.elsewhere
            self._away.resume()
            self.start_tasks()
        else:
            self._away.stop()

    def outputs_begun(self, source_key: int, begun: list[MoveBegun]) -> None:
        """A completion is committed: what it sent may leave."""
        for each in begun:
            self._away.begun(source_key, each)

    def _put_back_undecided(self) -> None:
        """Make visible again what was taken for a move in an earlier epoch, and not decided upon."""
        for partition, sequence in self._host.replica.queues.undecided():
            queue_id, number = partition.definition.queue_id, partition.number
            self._host.submit(MoveMessage(queue_id, number, sequence, 0, 0, 0, None, None), _ignored)

    def start_tasks(self) -> None:
        """Go on with every task that the state says is running and that nobody works on."""
        for key in self._host.replica.queues.running_tasks:
            self.start_tasks_of(key)

    def start_tasks_of(self, key: int) -> None:
        """The same for the tasks of one partition, by its key."""
        partition = self._host.replica.queues.partitions.get(key)
        for task in partition.tasks if partition is not None else ():
            if task.status == "RUNNING" and (key, task.task_id) not in self._tasks:
                work = supervise(asyncio.get_running_loop().create_task(self._run(key, task)))
                self._tasks[key, task.task_id] = work
                work.add_done_callback(partial(self._forget, key, task.task_id))

    async def close(self) -> None:
        """Stop working on tasks; they go on at the next start."""
        for handle in self._put_back_later:
            handle.cancel()
        self._put_back_later.clear()
        await self._away.close()
        running = [*self._tasks.values(), *self._locating]
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _leave_alone(self, letter: DeadLetter, retry_s: float) -> None:
        """Keep a message that cannot be moved now aside, and let receives that met it see what is behind it."""

        def put_back() -> None:
            self._put_back_later.discard(handle)
            self._propose_dead_letter(letter, None, _nothing)

        handle = asyncio.get_running_loop().call_later(retry_s, put_back)
        self._put_back_later.add(handle)
        self._wake(partition_key(letter.queue_id, letter.partition))

    def _propose_dead_letter(
        self,
        letter: DeadLetter,
        body: Body | None,
        done: Callable[[], None],
        target: QueueDefinition | None = None,
    ) -> None:
        """Propose that a message moves, to `target` as far as that is known; without `body`: back."""
        definition = self._host.replica.queues.definitions.get(letter.queue_id)
        if definition is None:
            done()
            return

        def moved(answer: object) -> None:
            done()
            if isinstance(answer, MoveBegun):
                self._away.begun(partition_key(letter.queue_id, letter.partition), answer)
            if isinstance(answer, NotNow) and self._host.replica.is_leading:
                self._leave_alone(letter, AWAY_RETRY_S)
                return
            self._wake(partition_key(letter.queue_id, letter.partition))

        arn = str(QueueArn(self._region, definition.account_id, definition.name))
        record_type, flags, _, payload = body or (0, 0, 0, None)
        command = MoveMessage(
            letter.queue_id,
            letter.partition,
            letter.sequence,
            letter.target_queue_id if target is None else target.queue_id,
            record_type,
            flags,
            payload,
            arn,
            target=target,
        )
        self._host.submit(command, moved)

    def _forget(self, key: int, task_id: bytes, work: asyncio.Task[None]) -> None:
        if work.cancelled() or work.exception() is not None:
            return  # it ends, or the process does
        self._tasks.pop((key, task_id), None)
        if self._host.replica.is_leading:
            # It may have been started again while this work was about to end, or to be left to the next leader.
            self.start_tasks_of(key)

    def _wake(self, source_key: int) -> None:
        """A move is durable (or was given up): receives that met the message may see what is behind it."""
        source = self._host.replica.queues.partitions.get(source_key)
        if source is not None and source.watched:
            self._host.receives.waiters.wake(source)

    async def _run(self, key: int, task: MoveTask) -> None:
        """Work on one task until it is over, or another replica leads and goes on with it."""
        log_event(log, logging.INFO, "move task started", source=task.source_arn, target=task.target_arn)
        while True:
            try:
                await self._work(key, task)
                return
            except QueueDoesNotExist:
                return
            except NotNow:
                if not self._host.replica.is_leading:
                    log_event(log, logging.INFO, "move task left to the next leader", source=task.source_arn)
                    return
                await asyncio.sleep(AWAY_RETRY_S)  # a majority is missing for now
            except (CallerError, OSError) as error:  # what the journal or its disk refuses now
                log_failure(log, "move task failed", error, source=task.source_arn)
                await asyncio.sleep(UNREADABLE_RETRY_S)

    async def _work(self, key: int, task: MoveTask) -> None:
        """Move messages until none of the task's is visible, or the task cannot go on, and end it."""
        queue_id, number = parts_of_key(key)
        failure: str | None = None
        idle = in_vain = 0
        while failure is None and idle < IDLE_ROUNDS:
            if not await self._redriven(key, task):
                break
            count = min(TAKE_MAX, task.rate_per_s) if task.rate_per_s else TAKE_MAX
            if task.rate_per_s:
                count = max(1, count // 10)  # ten small steps a second rather than one large one
            async with self._task_turns:
                found = await self._take(key, task, count)
                taken = found.taken
                bodies = await self._host.records.of([message.offset for message in taken])
                failure = await self._move_taken(key, task, taken, bodies)
            if found.is_over:
                break
            if found.is_held:  # not idle: they come when an older partition has none of their groups
                await asyncio.sleep(IDLE_S)
                continue
            if not taken:
                in_vain = in_vain + 1 if found.unfinished else 0
                if found.unfinished and in_vain <= self._looks_in_vain_max(key):
                    await asyncio.sleep(LOOK_ON_S)
                    continue
                in_vain = 0
                idle += 1
                await asyncio.sleep(IDLE_S)
                continue
            in_vain = 0
            if not bodies:
                # What cannot be read was put back, and is visible: as if nothing were there.
                idle += 1
                await asyncio.sleep(IDLE_S)
                continue
            idle = 0
            if task.rate_per_s:
                await asyncio.sleep(len(taken) / task.rate_per_s)
        await self._redriven(key, task)
        await self._host.ask(FinishMoveTask(queue_id, task.task_id, failure, number))
        log_event(log, logging.INFO, "move task ended", source=task.source_arn, failure=failure)

    def _looks_in_vain_max(self, key: int) -> int:
        partition = self._host.replica.queues.partitions.get(key)
        return looks_in_vain_max(partition) if partition is not None else 0

    async def _redriven(self, key: int, task: MoveTask) -> bool:
        """Return when what tasks took from here has arrived in other journals; false if the task is over before."""
        while self._away.has_redrives(key):
            await self._away.something_settled()
            if await self._is_over(key, task):
                return False
        return True

    async def _is_over(self, key: int, task: MoveTask) -> bool:
        """Return whether a task may move nothing more: cancelled, or running for too long."""
        try:
            return (await self._take(key, task, 0)).is_over
        except NotNow:
            if not self._host.replica.is_leading:
                raise
            return False  # it is asked again: what it has taken must be moved, or put back

    async def _take(self, key: int, task: MoveTask, count: int) -> TakenForTask:
        queue_id, number = parts_of_key(key)
        outcome: object = await self._host.ask(TakeForMove(queue_id, task.task_id, count, number))
        assert isinstance(outcome, TakenForTask), "a TakeForMove is answered by a TakenForTask"
        return outcome

    async def _move_taken(
        self, key: int, task: MoveTask, taken: list[Taken], bodies: dict[int, Body]
    ) -> str | None:
        """Move each message, or put it back; return why the task cannot go on, or None."""
        queue_id, number = parts_of_key(key)
        loop = asyncio.get_running_loop()
        failure: str | None = None
        commands: list[MoveMessage] = []
        for message in taken:
            body = bodies.get(message.offset)
            target: QueueDefinition | None = None
            if body is not None and failure is None:
                found = await self._target_of(key, task, body)
                if isinstance(found, str):
                    failure = found
                else:
                    target = found
            record_type, flags, _, payload = body or (0, 0, 0, None)
            commands.append(
                MoveMessage(
                    queue_id,
                    number,
                    message.sequence,
                    target.queue_id if target is not None else 0,
                    record_type,
                    flags,
                    payload if failure is None else None,
                    None,
                    new_message_id=uuid.uuid4().bytes,
                    task_id=task.task_id,
                    target=target,
                )
            )
        await asyncio.gather(*(loop.create_task(self._move_one(key, task, command)) for command in commands))
        self._wake(key)
        return failure

    async def _move_one(self, key: int, task: MoveTask, command: MoveMessage) -> None:
        """Propose that a message moves until that is decided, as long as this replica leads.

        What cannot be decided now, on a disk that is low for example, is put back when the task is over meanwhile.
        """
        while True:
            try:
                outcome: object = await self._host.ask(command)
            except NotNow:
                if not self._host.replica.is_leading:
                    raise
                await asyncio.sleep(AWAY_RETRY_S)
                if await self._is_over(key, task):
                    command = replace(command, payload=None)
                continue
            if isinstance(outcome, MoveBegun):
                self._away.begun(partition_key(command.queue_id, command.partition), outcome)
            return

    async def _target_of(self, key: int, task: MoveTask, body: Body) -> QueueDefinition | str:
        """Return the queue that a task moves a message to, or why it cannot go on."""
        target_id, arn = task.target_queue_id, task.target_arn
        if target_id is None:
            origin = _queue_it_came_from(body)
            if origin is None:
                return NO_SOURCE
            target_id, arn = origin
        known = self._host.replica.queues.definitions.get(target_id)
        if known is not None:
            return INTO_A_LOG if known.keeps_all else known
        if self._places is None:
            return NO_TARGET
        if arn is None:
            return NO_SOURCE
        while True:
            try:
                place = await self._places.locate(arn)
                break
            except NotNow:
                if not self._host.replica.is_leading:
                    raise
                await asyncio.sleep(AWAY_RETRY_S)
                if await self._is_over(key, task):
                    return NOT_FOUND_IN_TIME
        return place if place is not None and place.queue_id == target_id else NO_TARGET


class _WithinJournal:
    """The way to other journals where there are none: outputs of completions go to queues of this one."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host

    async def move(self, journal_id: int, command: MoveIn) -> MoveInOutcome:
        """See `MoveCarrier`."""
        outcome: object = await self._host.ask(command)
        assert isinstance(outcome, MoveInOutcome), "a MoveIn is answered by a MoveInOutcome"
        return outcome


class _NoOthers:
    """What is known of queues of other journals where there are none: what this journal says of its own is so."""

    def note(self, queue: QueueDefinition) -> None:
        """See `QueuePlaces`."""

    async def is_gone(self, target_key: int, journal_id: int, arns: list[str]) -> bool:
        """See `QueuePlaces`."""
        return True

    async def table_without(self, target_key: int, journal_id: int, arn: str) -> QueueDefinition | None:
        """See `QueuePlaces`."""
        return None

    async def table_of_lost(
        self, target_key: int, arns: list[str], *, are_certain: bool
    ) -> QueueDefinition | None:
        """See `QueuePlaces`."""
        raise NotNow("This journal is not lost.")


def _nothing() -> None:
    """Nobody waits for it."""


def _ignored(answer: object) -> None:
    """Nobody waits for it."""


def _queue_it_came_from(body: Body) -> tuple[int, str | None] | None:
    """Return id and ARN of the queue a dead letter was moved from, None when it was sent here directly."""
    record_type, flags, _, payload = body
    if record_type != RecordType.MOVE:
        return None
    if flags & IS_OUTPUT:
        return None  # it was sent here, by a completion
    moved = decode_moved(split_payload(flags & PREFIX_FLAGS, payload[MOVE_HEAD_BYTES:])[3])
    return moved.source_queue_id, moved.dead_letter_source_arn

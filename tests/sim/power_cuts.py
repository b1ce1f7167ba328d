"""Power cuts of the whole broker: a random workload, a cut at a random change to the disk, and what must be left.

    PYTHONPATH=tests python -m sim.power_cuts 17            one run, by its seed
    PYTHONPATH=tests python -m sim.power_cuts 0 5000        a range of them

The model knows what was acknowledged. What was asked and not answered is in doubt until the next start shows it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from harness.broker_support import arn, define, identity, number_of, redrive_to
from harness.sim_disk import SimDisk

import quaymaster.core.replication.journal as journal
import quaymaster.core.structures.ids.recent_ids as recent_ids
import quaymaster.core.structures.orders.fifo_order as fifo_order
import quaymaster.core.structures.orders.index as index
import quaymaster.core.structures.orders.standard_order as standard_order
from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.replica.journal_service import JournalOptions
from quaymaster.broker.replica.maintenance import compaction, expiry
from quaymaster.broker.replica.moves import message_moves
from quaymaster.broker.replica.records.recovery import INDEX_NAME, recover
from quaymaster.broker.storage import snapshots
from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_state import JournalCorrupt, JournalWentBack, NotActivated
from quaymaster.broker.storage.snapshots import SnapshotsDamaged
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    NewMessage,
    Peek,
    Purge,
    Receipt,
    Receive,
    Send,
)
from quaymaster.core.values.commands.move_tasks import CancelMoveTask, ListMoveTasks, StartMoveTask
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import CallerError, DiskFull, InternalFailure, NotNow, QueueDoesNotExist
from quaymaster.core.values.messages import encode_message_head, join_payload, split_payload
from quaymaster.core.values.queues.attributes import Durability
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.core.values.records import iterate_rows
from sim.world import WatchedDisk, World, after_kill

DIRECTORY = Path("/data/journals")
INDEX_DATA_AT = 4096
CAPACITY_BYTES = 1 << 40
JOURNAL_ID = 0
TASKS_CHECKED_S = 1.0
ROOM_NOTICED_S = 3.0
"""The keeper looks every second, and the simulated threads are late."""
DEDUP_WINDOW_MS = 300_000
RETRY_WINDOW_MS = 120_000
VISIBILITY_MS = 5_000
LEAP_MS = 700_000
SHORT_RETENTION_MS = 60_000
DELAY_MS = 2_000
LIMITS = JournalLimits(
    segment_bytes_min=8 << 10,
    segment_bytes_max=16 << 10,
    index_every_bytes=1 << 10,
    reserve_segments=1,
    disk_low_bytes=0,
    group_bytes_max=8 << 10,
)

SMALL = {
    (index, "CHUNK_ENTRIES"): (4, 16),
    (recent_ids, "SLOT_ENTRIES"): (8, 32),
    (standard_order, "SCAN_MAX"): (5, 50),
    (standard_order, "RETURNED_MAX"): (4, 50),
    (standard_order, "TENANTS_MAX"): (2, 10),
    (standard_order, "NOISY_IN_FLIGHT_MIN"): (2, 10),
    (standard_order, "BUSY_MIN_MS"): (50, 30_000),
    (fifo_order, "SCAN_MAX"): (5, 50),
    (fifo_order, "READY_GROUPS_MAX"): (1, 5),
    (journal, "RECORDS_PER_BATCH_MAX"): (3, 50),
    (snapshots, "BLOB_FILE_BYTES_MAX"): (2_000, 100_000),
    (snapshots, "REWRITE_BYTES_MIN"): (500, 100_000),
    (message_moves, "TAKE_MAX"): (2, 20),
    (expiry, "EXPIRY_STEP_S"): (1, 3),
}
"""Limits that are made small, so that short runs go beyond them: module and name, least and most."""

QUICK = {
    (compaction, "COMPACTION_STEP_S"): (0.05, 5.0),
    (compaction, "COMPACTION_LOW_DISK_STEP_S"): (0.05, 1.0),
}
"""Seconds between two looks, made few in the same way."""

PLAIN, ORDERS, WORK, WORK_DEAD, STEPS, STEPS_DEAD, LATER, ASYNC, MEMORY, SHORT = range(1, 11)
FAMILIES = {WORK: (WORK, WORK_DEAD), WORK_DEAD: (WORK, WORK_DEAD)}
FAMILIES |= {STEPS: (STEPS, STEPS_DEAD), STEPS_DEAD: (STEPS, STEPS_DEAD)}
FIRST_TEMPORARY = 20


def _definitions(*, has_circles: bool) -> list[QueueDefinition]:
    hidden = {"VisibilityTimeout": VISIBILITY_MS // 1000}
    itself: dict[str, Any] = {"RedrivePolicy": redrive_to("work-dead", 2)} if has_circles else {}
    return [
        define(PLAIN, "plain", **hidden),
        define(ORDERS, "orders.fifo", **hidden),
        define(WORK, "work", RedrivePolicy=redrive_to("work-dead", 2), **hidden),
        define(WORK_DEAD, "work-dead", **itself, **hidden),
        define(STEPS, "steps.fifo", RedrivePolicy=redrive_to("steps-dead.fifo", 2), **hidden),
        define(STEPS_DEAD, "steps-dead.fifo", **hidden),
        define(LATER, "later", DelaySeconds=DELAY_MS // 1000, **hidden),
        define(ASYNC, "async", Durability="Async", **hidden),
        define(MEMORY, "memory", Durability="Memory", **hidden),
        define(SHORT, "short", MessageRetentionPeriod=SHORT_RETENTION_MS // 1000, **hidden),
    ]


class Violation(AssertionError):
    """A promise was broken."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass(eq=False)
class Message:
    """What is known of one message. `is_stored`: it was acknowledged or seen; `doubts`: deletes under way."""

    number: int
    queue_id: int
    group: int
    body: bytes
    sent_after_ms: int
    due_after_ms: int
    sent_before_ms: int = 0
    sequence: int = 0
    is_stored: bool = False
    gone_at: int = 0
    doubts: int = 0

    @property
    def is_gone(self) -> bool:
        return self.gone_at > 0


@dataclass
class Place:
    """What is known of one sequence number of one queue since the last start, and over starts where it is durable."""

    deleted_at: int | None = None
    count: int = 0
    hidden_until_ms: int = 0
    hidden_at: int = 0
    changed_at: int = 0
    is_hidden_durably: bool = False


@dataclass
class Remembered:
    """A deduplication or retry id: the message it stands for, and when that was stored."""

    number: int
    after_ms: int
    before_ms: int


@dataclass
class Model:
    """What was asked and what was answered, over all lives of the broker."""

    messages: dict[int, Message] = field(default_factory=dict)
    places: dict[tuple[int, int], Place] = field(default_factory=lambda: defaultdict(Place))
    owner: dict[tuple[int, int], int] = field(default_factory=dict)
    remembered: dict[tuple[int, bytes], Remembered] = field(default_factory=dict)
    definitions: dict[int, QueueDefinition] = field(default_factory=dict)
    revisions: dict[int, int] = field(default_factory=dict)
    deleted_queues: set[int] = field(default_factory=set)
    doubtful_queues: set[int] = field(default_factory=set)
    receipts: list[tuple[int, Receipt, int]] = field(default_factory=list)
    purged_at: dict[int, int] = field(default_factory=dict)
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock


class Life:
    """One start of the broker, until its power is cut, it is killed, or it is closed."""

    def __init__(self, run: Run, world: World, disk: SimDisk) -> None:
        self.run = run
        self.model = run.model
        self.rng = run.rng
        self.world = world
        self.disk = disk
        self.waiting = 0
        self.is_over = False
        self.is_failing = False
        """Something will stop the journal in this life: from then on outcomes are unknown."""
        self.roomy_since_s: float | None = None
        """Since when the disk has had room again, after it had none."""
        self.hiccups = Random(f"{run.seed}-{run.lives}-hiccups")  # its own: other draws stay what they were
        self.circles = Random(f"{run.seed}-{run.lives}-circles")
        self.broker = LoneLeader(
            JournalOptions(
                directory=DIRECTORY,
                region="local",
                journal_id=JOURNAL_ID,
                limits=LIMITS,
                body_cache_bytes=run.rng.choice((2_000, 20_000, 1 << 20)),
                snapshot_interval_s=run.rng.choice((0.05, 0.5, 60.0)),
                snapshot_records=run.rng.choice((20, 200, 200_000)),
                compaction_live_ratio=run.rng.choice((0.2, 0.9)),
                retry_window_ms=RETRY_WINDOW_MS,
            ),
            run.coordination,
            on_stopped=lambda error: run.on_stopped(error),
            disk=cast(Disk, WatchedDisk(world, disk)),
        )

    # Asking

    def submit(self, command: Command, answered: Callable[[Any], None]) -> Any:
        """Submit a command; `answered` is called with its outcome unless the process is dead by then."""
        self.waiting += 1

        def reply(outcome: Any) -> None:
            self.waiting -= 1
            if self.world.is_dead or self.is_over or (self.is_failing and isinstance(outcome, NotNow)):
                return
            try:
                answered(outcome)
            except Exception as error:
                self.world.errors.append(error)
                self.world.loop.stop()

        return self.broker.submit(command, reply)

    async def ask(self, command: Command) -> Any:
        """Submit a command and return its outcome or its error."""
        future: asyncio.Future[Any] = self.world.loop.create_future()
        self.submit(command, future.set_result)
        return await future

    async def start(self) -> None:
        """Start the broker and check what it recovered before a move task goes on."""
        self.world.may_move = False
        await self.broker.start()
        await self.check_recovered()
        self.world.may_move = True
        self.broker.journal._moves.start_tasks()

    # The workload

    async def work(self, steps: int) -> None:
        """Start, check what was recovered, and do random things."""
        await self.start()
        actions: list[tuple[Callable[[], Any], float]] = [
            (self.send, 30),
            (self.receive, 25),
            (self.delete, 15),
            (self.change_visibility, 6),
            (self.pause, 30),
            (self.purge, 0.6),
            (self.set_queue, 2),
            (self.delete_queue, 1),
            (self.snapshot, 3),
            (self.move_task, 1.5),
            (self.leap, 1),
            (self.settle, 2),
            (self.fill_disk, 0.5),
        ]
        rng = self.rng
        # Each run likes some actions more than others.
        weights = [weight * self.run.taste[at] for at, (_, weight) in enumerate(actions)]
        for _ in range(steps):
            action = rng.choices(actions, weights)[0][0]
            result = action()
            if result is not None:
                await result
        if self.run.is_checking_replay:
            await self.settle()
            await self.check_live_is_replayed()

    def queue_ids(self) -> list[int]:
        return [queue_id for queue_id in self.model.definitions if queue_id not in self.model.deleted_queues]

    def send(self) -> None:
        rng, model = self.rng, self.model
        queue_id = rng.choice(self.queue_ids())
        definition = model.definitions[queue_id]
        is_fifo = definition.is_fifo
        now_ms = self.world.time_ms()
        new: list[NewMessage] = []
        sent: list[Message] = []
        keys: list[bytes | None] = []
        expected: list[Remembered | None] = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            number = len(model.messages) + 1
            group = rng.randint(1, 4) if is_fifo or rng.random() < 0.3 else 0
            key = b"id%06d" % number + bytes(8) if rng.random() < 0.7 else None
            known = [entry for entry in model.remembered if entry[0] == queue_id]
            if known and rng.random() < 0.2:
                key = rng.choice(known)[1]
                if key in keys:
                    key = None
            delay_ms = rng.choice((0, 500, 3_000)) if not is_fifo and rng.random() < 0.15 else -1
            body = encode_message_head(identity(number), 1, b"startid8", queue_id, number)
            body += b"%d " % number * rng.choice((2, 10, 100, 400)) + bytes(16)
            flags, payload = join_payload(group, key if is_fifo else None, None if is_fifo else key, body)
            new.append(
                NewMessage(
                    identity(number),
                    payload,
                    flags,
                    delay_ms=delay_ms,
                    group=group,
                    dedup=key if is_fifo else None,
                    retry=None if is_fifo else key,
                )
            )
            least_delay_ms = delay_ms if delay_ms >= 0 else DELAY_MS if queue_id == LATER else 0
            message = Message(number, queue_id, group, body, now_ms, now_ms + least_delay_ms)
            model.messages[number] = message
            sent.append(message)
            keys.append(key)
            expected.append(model.remembered.pop((queue_id, key), None) if key is not None else None)
        began = model.tick()

        def answered(outcome: Any) -> None:
            if isinstance(outcome, InternalFailure):
                # A full disk let go of what a duplicate's ids were in; the others of this send may be stored.
                require(self.run.has_been_full, f"send: {outcome!r}")
                return
            if isinstance(outcome, Exception):
                require(isinstance(outcome, QueueDoesNotExist | DiskFull), f"send: {outcome!r}")
                for message in sent:
                    message.gone_at = self.model.tick()
                return
            is_purged = model.purged_at.get(queue_id, 0) > began
            self.note_sent(sent, keys, expected, outcome.results, definition.durability, now_ms, is_purged)

        self.submit(Send(queue_id, 0, new), answered)

    def note_sent(
        self,
        sent: list[Message],
        keys: list[bytes | None],
        expected: list[Remembered | None],
        results: list[Any],
        durability: int,
        asked_ms: int,
        is_purged: bool,
    ) -> None:
        model, now_ms = self.model, self.world.time_ms()
        for message, key, before, result in zip(sent, keys, expected, results, strict=True):
            queue_id = message.queue_id
            window_ms = DEDUP_WINDOW_MS if model.definitions[queue_id].is_fifo else RETRY_WINDOW_MS
            if result.duplicate:
                require(key is not None, f"message {message.number} without an id was taken for a duplicate")
                number = int.from_bytes(result.message_id, "big")
                original = model.messages[number]
                require(original.queue_id == queue_id, f"{message.number} is no duplicate of {number}")
                if before is not None:
                    require(before.number == number, f"duplicate of {number}, not of {before.number}")
                    require(asked_ms < before.before_ms + window_ms, f"{number} is remembered for too long")
                    if not is_purged:
                        model.remembered[queue_id, cast(bytes, key)] = before
                message.gone_at = self.model.tick()
                original.is_stored = True
                continue
            if before is not None and now_ms < before.after_ms + window_ms:
                raise Violation(
                    f"message {before.number} was forgotten: {message.number} is no duplicate of it"
                )
            message.sequence = result.sequence
            message.sent_before_ms = now_ms
            place = (queue_id, result.sequence)
            if durability == Durability.SYNC:
                message.is_stored = True
                owner = model.owner.setdefault(place, message.number)
                require(owner == message.number, f"{place} was given to {owner} and {message.number}")
                if key is not None and not is_purged:
                    model.remembered[queue_id, key] = Remembered(message.number, asked_ms, now_ms)

    def receive(self) -> Any:
        rng, model = self.rng, self.model
        queue_id = rng.choice(self.queue_ids())
        definition = model.definitions[queue_id]
        timeout_ms = rng.choice((-1, -1, 0, 1_000, 30_000))
        attempt = identity(rng.randint(1, 5)) if definition.is_fifo and rng.random() < 0.1 else None
        wait_ms = rng.choice((0, 0, 500, 3_000))
        began, asked_ms = model.tick(), self.world.time_ms()
        hidden_ms = VISIBILITY_MS if timeout_ms < 0 else timeout_ms

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                require(isinstance(outcome, CallerError), f"receive: {outcome!r}")
                return
            self.note_received(
                queue_id, definition, outcome, began, asked_ms, hidden_ms, is_repeatable=attempt is not None
            )

        command = Receive(queue_id, 0, rng.randint(1, 10), timeout_ms, wait_ms, attempt)
        parked = self.submit(command, answered)
        if wait_ms and rng.random() < 0.2:
            return self.hang_up(parked)
        return None

    async def hang_up(self, parked: Any) -> None:
        await asyncio.sleep(self.rng.random())
        parked.cancel()
        self.waiting = 0  # whether it was answered before is not known; `settle` waits by time then

    def note_received(
        self,
        queue_id: int,
        definition: QueueDefinition,
        outcome: Any,
        began: int,
        asked_ms: int,
        hidden_ms: int,
        *,
        is_repeatable: bool,
    ) -> None:
        model, now_ms = self.model, self.world.time_ms()
        numbers: set[int] = set()
        for delivery in outcome.deliveries:
            number, body = number_of(delivery.flags, delivery.payload)
            message = model.messages.get(number)
            if message is None or message.body != body:
                raise Violation(f"queue {queue_id} gave a message nobody sent: {number}")
            require(
                queue_id in FAMILIES.get(message.queue_id, (message.queue_id,)), f"{number} in {queue_id}"
            )
            where = (queue_id, delivery.sequence)
            place = model.places[where]
            require(
                place.deleted_at is None or place.deleted_at > began,
                f"{where}, message {number}, was deleted and is given",
            )
            is_gone = 0 < message.gone_at < began and place.deleted_at is None
            require(not is_gone, f"message {number} is gone and is given")
            owner = model.owner.setdefault(where, number)
            require(owner == number, f"{where} is {number} and was {owner}")
            require(message.due_after_ms <= now_ms, f"message {number} is given before its time")
            if not is_repeatable:
                is_early = place.hidden_until_ms > now_ms and place.hidden_at < began
                require(not is_early, f"{where}, message {number}, is given while it is in flight")
                floor = place.count if place.hidden_at < began else 0
                require(
                    delivery.delivery_count > floor, f"{where}: {delivery.delivery_count} after {place.count}"
                )
            message.is_stored = True
            numbers.add(number)
            place.count = max(place.count, delivery.delivery_count)
            is_hidden = hidden_ms and not is_repeatable and place.changed_at < began
            place.hidden_until_ms = asked_ms + hidden_ms if is_hidden else 0
            place.hidden_at = model.tick()
            place.is_hidden_durably = definition.is_fifo
            model.receipts.append(
                (queue_id, Receipt(delivery.sequence, outcome.epoch, delivery.delivery_count), number)
            )
        del model.receipts[:-60]
        if queue_id == ORDERS and not is_repeatable:
            for number in numbers:
                self.check_nothing_in_front(model.messages[number], numbers, now_ms)

    def check_nothing_in_front(self, message: Message, given: set[int], now_ms: int) -> None:
        """Within a group, no message is given while an older one is there and not given with it."""
        for other in self.model.messages.values():
            if (
                other.queue_id == message.queue_id
                and other.group == message.group
                and other.is_stored
                and not other.is_gone
                and not other.doubts
                and 0 < other.sequence < message.sequence
                and other.number not in given
            ):
                place = self.model.places[other.queue_id, other.sequence]
                require(
                    place.deleted_at is not None or place.hidden_until_ms <= now_ms,
                    f"message {message.number} is given while {other.number} of its group is in flight",
                )

    def delete(self) -> None:
        model, rng = self.model, self.rng
        if not model.receipts:
            return
        queue_id, receipt, number = rng.choice(model.receipts)
        message = model.messages[number]
        message.doubts += 1

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                require(isinstance(outcome, CallerError), f"delete: {outcome!r}")
                message.doubts -= 1
                return
            if outcome.errors[0] is None:
                model.places[queue_id, receipt.sequence].deleted_at = model.tick()
                if message.queue_id not in FAMILIES:
                    message.gone_at = self.model.tick()
                    message.doubts -= 1
            else:
                message.doubts -= 1

        self.submit(Delete(queue_id, 0, [receipt]), answered)

    def change_visibility(self) -> None:
        model, rng = self.model, self.rng
        if not model.receipts:
            return
        queue_id, receipt, _ = rng.choice(model.receipts)
        timeout_ms = rng.choice((0, 1_000, 20_000))
        place = model.places[queue_id, receipt.sequence]
        place.hidden_until_ms = 0
        asked_ms, began = self.world.time_ms(), model.tick()
        place.hidden_at = place.changed_at = began

        def answered(outcome: Any) -> None:
            require(
                not isinstance(outcome, Exception) or isinstance(outcome, CallerError), f"change: {outcome!r}"
            )
            is_done = not isinstance(outcome, Exception) and outcome.errors[0] is None
            if is_done and timeout_ms and place.hidden_at == began:
                place.hidden_until_ms = asked_ms + timeout_ms
                place.hidden_at = model.tick()
                place.is_hidden_durably = True

        self.submit(ChangeVisibility(queue_id, 0, [receipt], [timeout_ms]), answered)

    def pause(self) -> Any:
        return asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.01, 0.3, 2.0)))

    def affected(self, queue_id: int) -> list[Message]:
        family = FAMILIES.get(queue_id, (queue_id,))
        return [
            message
            for message in self.model.messages.values()
            if message.queue_id in family and not message.is_gone
        ]

    def purge(self) -> None:
        queue_id = self.rng.choice(self.queue_ids())
        affected = self.affected(queue_id)
        self.forget_ids(queue_id)
        for message in affected:
            message.doubts += 1

        def answered(outcome: Any) -> None:
            for message in affected:
                if isinstance(outcome, Exception):
                    message.doubts -= 1
                elif queue_id not in FAMILIES:
                    message.gone_at = self.model.tick()
                    self.model.places[queue_id, message.sequence].deleted_at = self.model.tick()

        self.submit(Purge(queue_id), answered)

    def forget_ids(self, queue_id: int) -> None:
        self.model.purged_at[queue_id] = self.model.tick()
        for key in [key for key in self.model.remembered if key[0] == queue_id]:
            del self.model.remembered[key]

    def set_queue(self) -> None:
        rng, model = self.rng, self.model
        if rng.random() < 0.3:
            queue_id = max(FIRST_TEMPORARY, max(model.definitions, default=0) + 1)
            suffix = rng.choice(("", ".fifo"))
            self.put_queue(define(queue_id, f"temporary-{queue_id}{suffix}", VisibilityTimeout=5))
            return
        queue_id = rng.choice(self.queue_ids())
        known = model.definitions[queue_id]
        attributes = {**known.attributes, "MaximumMessageSize": str(rng.randint(1024, 4096))}
        if queue_id in (PLAIN, ORDERS):
            attributes["DelaySeconds"] = rng.choice(("0", "1", "3"))
        self.put_queue(replace_definition(known, attributes=attributes, revision=known.revision + 1))

    def put_queue(self, definition: QueueDefinition) -> None:
        model = self.model
        model.definitions[definition.queue_id] = definition

        def answered(outcome: Any) -> None:
            require(not isinstance(outcome, Exception), f"set queue: {outcome!r}")
            revisions = model.revisions
            revisions[definition.queue_id] = max(revisions.get(definition.queue_id, 0), definition.revision)

        self.submit(SetQueue(definition), answered)

    def delete_queue(self) -> None:
        model = self.model
        temporary = [queue_id for queue_id in self.queue_ids() if queue_id >= FIRST_TEMPORARY]
        if not temporary:
            return
        queue_id = self.rng.choice(temporary)
        model.deleted_queues.add(queue_id)
        model.doubtful_queues.add(queue_id)
        self.forget_ids(queue_id)
        affected = self.affected(queue_id)
        for message in affected:
            message.doubts += 1

        def answered(outcome: Any) -> None:
            require(not isinstance(outcome, Exception), f"delete queue: {outcome!r}")
            model.doubtful_queues.discard(queue_id)
            for message in affected:
                message.gone_at = self.model.tick()

        self.submit(ForgetQueue(queue_id), answered)

    def snapshot(self) -> None:
        task = self.world.loop.create_task(self.broker.journal.snapshots.write())
        self.run.tasks.append(task)

    async def move_task(self) -> None:
        rng = self.rng
        if self.run.has_circles and self.circles.random() < 0.7:
            # From a queue that is its own dead-letter queue to itself: it finds what it moves.
            task_id = self.circles.getrandbits(128).to_bytes(16, "big")
            itself = arn("work-dead")
            task = StartMoveTask(WORK_DEAD, task_id, itself, itself, WORK_DEAD, None)
            self.submit(task, lambda outcome: None)
            return
        queue_id, source_id = rng.choice(((WORK_DEAD, WORK), (STEPS_DEAD, STEPS)))
        if rng.random() < 0.3:
            listed = await self.ask(ListMoveTasks(queue_id))
            if not isinstance(listed, Exception) and listed.tasks:
                await self.ask(CancelMoveTask(queue_id, listed.tasks[0].task_id))
            return
        target_id = rng.choice((None, source_id))
        rate = rng.choice((None, None, 20))
        target = arn("any") if target_id else None
        task_id = rng.getrandbits(128).to_bytes(16, "big")
        self.submit(
            StartMoveTask(queue_id, task_id, arn("any"), target, target_id, rate), lambda outcome: None
        )

    async def leap(self) -> None:
        """Let ten minutes pass at once (the machine slept); in some runs give the compaction time."""
        self.world.skew_ms += LEAP_MS
        if self.rng.random() < 0.5:
            await asyncio.sleep(6.0)

    def fill_disk(self) -> None:
        """Leave almost no room on the disk for some seconds."""
        self.run.has_been_full = True
        self.roomy_since_s = None
        self.disk.capacity_bytes = self.disk._used_bytes + self.rng.choice((0, 3_000, 20_000))
        self.world.loop.call_later(self.rng.choice((0.1, 3.0)), self.free_disk)

    def free_disk(self) -> None:
        self.disk.capacity_bytes = CAPACITY_BYTES
        self.roomy_since_s = self.world.loop.now_s
        self.world.loop.call_later(ROOM_NOTICED_S, self.check_room)

    def refuse_one_write(self) -> None:
        """Let one write find no room, on a disk that has some."""
        if self.disk.capacity_bytes == CAPACITY_BYTES:
            self.run.has_been_full = True
            self.disk.fill_up_in_next_write(".seg", kept_bytes=self.hiccups.randrange(2_000))
            self.note_refused()

    def note_refused(self) -> None:
        """Once a write was refused, the disk has room again."""
        if self.disk.is_to_refuse:
            self.world.loop.call_later(0.1, self.note_refused)
        else:
            self.free_disk()

    def check_room(self) -> None:
        """Sends are not refused any more once the disk has had room for a while."""
        since_s, host = self.roomy_since_s, self.broker.journal.host
        is_up = not (self.is_over or self.world.is_dead or self.is_failing) and host.stopped is None
        if is_up and since_s is not None and self.world.loop.now_s - since_s >= ROOM_NOTICED_S:
            try:
                require(not host.writer.disk_low, "sends are refused though the disk has room again")
            except Violation as violation:
                self.world.errors.append(violation)
                self.world.loop.stop()

    def check_tasks(self) -> None:
        """No move task has moved more than what was there when it started."""
        if self.is_over or self.world.is_dead:
            return
        try:
            for queue_id in (WORK_DEAD, STEPS_DEAD):
                partition = self.broker.journal.host.replica.queues.partitions.get(queue_id << 16)
                for task in partition.tasks if partition is not None else ():
                    where = f"a task of queue {queue_id} moved {task.moved} messages"
                    require(task.moved < task.stop, f"{where}, of at most {task.stop - 1} that were there")
        except Violation as violation:
            self.world.errors.append(violation)
            self.world.loop.stop()
            return
        self.world.loop.call_later(TASKS_CHECKED_S, self.check_tasks)

    async def settle(self) -> None:
        """Wait until every command is answered."""
        await asyncio.sleep(4.0)

    # Checks

    async def check_recovered(self) -> None:
        """Compare what the broker holds after its start with the model, and resolve what was in doubt."""
        model = self.model
        now_ms = self.world.time_ms()
        known = self.broker.journal.host.replica.queues.definitions
        missing = self.check_definitions(known)
        model.receipts = [entry for entry in model.receipts if entry[0] in known]
        found: dict[int, tuple[int, int]] = {}
        for queue_id in known:
            sequences: dict[int, int] = {}
            for peeked in await self.peek_all(queue_id):
                number, body = number_of(peeked.flags, peeked.payload)
                message = model.messages.get(number)
                if message is None or message.body != body:
                    raise Violation(f"queue {queue_id} holds a message nobody sent: {number}")
                where = (queue_id, peeked.sequence)
                require(number not in found, f"message {number} is at {found.get(number)} and at {where}")
                found[number] = where
                self.check_place(message, where, peeked)
                if message.group and queue_id == message.queue_id and model.definitions[queue_id].is_fifo:
                    previous = sequences.get(message.group, 0)
                    if queue_id not in FAMILIES:
                        require(number > previous, f"messages {previous} and {number} changed places")
                    sequences[message.group] = number
        for message in model.messages.values():
            if message.number in found:
                require(not message.is_gone, f"message {message.number} is gone and is back")
                message.is_stored = True
            else:
                is_due_here = message.is_stored and not message.is_gone and not message.doubts
                if is_due_here and self.may_have_expired(message, now_ms):
                    is_due_here = False
                require(not is_due_here, f"message {message.number} was acknowledged and is lost")
                message.gone_at = self.model.tick()
            message.doubts = 0
        for entry, remembered in list(model.remembered.items()):
            if not model.messages[remembered.number].is_stored:
                del model.remembered[entry]
        self.check_full_replay()
        for definition in missing:
            self.put_queue(definition)

    def check_definitions(self, known: dict[int, QueueDefinition]) -> list[QueueDefinition]:
        """Compare the queues; return those whose making a cut undid, as metadata still wants them."""
        model = self.model
        for queue_id, definition in known.items():
            require(queue_id in model.definitions, f"queue {queue_id} was never made")
            is_deleted = queue_id in model.deleted_queues and queue_id not in model.doubtful_queues
            require(not is_deleted, f"queue {queue_id} was deleted and is back")
            least = model.revisions.get(queue_id, 0)
            require(
                definition.revision >= least, f"queue {queue_id}: revision {definition.revision}, not {least}"
            )
            if queue_id in model.doubtful_queues:
                model.deleted_queues.discard(queue_id)
                for message in self.affected(queue_id):
                    message.doubts = 0
            model.definitions[queue_id] = definition
            model.revisions[queue_id] = definition.revision
        missing: list[QueueDefinition] = []
        for queue_id in list(model.definitions):
            if queue_id in known or queue_id in model.deleted_queues:
                continue
            require(queue_id not in model.revisions, f"queue {queue_id} was made and is lost")
            for message in self.affected(queue_id):
                require(not message.is_stored, f"message {message.number} had a queue that is lost")
            missing.append(model.definitions[queue_id])
        model.doubtful_queues.clear()
        return missing

    def check_place(self, message: Message, where: tuple[int, int], peeked: Any) -> None:
        model = self.model
        queue_id, sequence = where
        number = message.number
        require(queue_id in FAMILIES.get(message.queue_id, (message.queue_id,)), f"{number} is in {queue_id}")
        place = model.places[where]
        require(place.deleted_at is None, f"{where}, message {number}, was deleted and is back")
        if message.sequence and message.is_stored and queue_id == message.queue_id not in FAMILIES:
            require(
                sequence == message.sequence, f"message {number} was {message.sequence} and is {sequence}"
            )
        if model.definitions[queue_id].is_fifo:
            require(
                peeked.delivery_count >= place.count,
                f"{where} was received {place.count} times, now {peeked.delivery_count}",
            )
        # The state was looked at before now: cold reads came in between.
        if place.is_hidden_durably and place.hidden_until_ms > self.world.time_ms():
            require(peeked.state == "in_flight", f"{where}, message {number}, is no longer in flight")
        else:
            place.hidden_until_ms = 0
        place.count = peeked.delivery_count
        message.sequence = sequence if queue_id == message.queue_id else 0
        model.owner[where] = number

    def may_have_expired(self, message: Message, now_ms: int) -> bool:
        definition = self.model.definitions[message.queue_id]
        return message.sent_after_ms + definition.retention_ms <= now_ms

    async def peek_all(self, queue_id: int) -> list[Any]:
        messages: list[Any] = []
        start = 1
        while start:
            page = await self.ask(Peek(queue_id, 0, start, 20))
            if isinstance(page, Exception):
                raise Violation(f"peek: {page!r}")
            messages += page.messages
            start = page.next_sequence
        partition = self.broker.journal.host.replica.queues.partition(queue_id, 0)
        require(
            len(messages) == partition.alive, f"{len(messages)} of {partition.alive} messages can be read"
        )
        return messages

    def check_full_replay(self) -> None:
        """What was recovered is what a replay of the whole journal gives, where it is still whole."""
        files = self.broker.journal.files
        if files.start_offset or any(segment.is_compacted for segment in files.segments()):
            return
        replayed = replay_all(files)
        time_ms = self.world.time_ms()
        recovered = self.broker.journal.host.replica.queues.state_hash(time_ms)
        require(recovered == replayed.state_hash(time_ms), "snapshot and tail differ from a full replay")
        self.run.full_replays += 1

    async def check_live_is_replayed(self) -> None:
        """A recovery of a copy gives the state that is live here."""
        host = self.broker.journal.host
        deadline = 2_000
        while host.replica.commit < host.replica.end_offset or any(
            partition.moving for partition in host.replica.queues.partitions.values()
        ):
            await asyncio.sleep(0.01)
            deadline -= 1
            require(deadline > 0, "the broker does not come to rest")
        time_ms = self.world.time_ms()
        live = host.replica.queues.state_hash(time_ms)
        copied = after_kill(self.disk)
        make_queues = partial(QueueStates, retry_window_ms=RETRY_WINDOW_MS)
        again = recover(copied, str(DIRECTORY), journal_id=JOURNAL_ID, limits=LIMITS, make_queues=make_queues)
        require(again.queues.state_hash(time_ms) == live, "a replay differs from the live state")
        self.run.live_replays += 1

    async def drain(self) -> None:
        """Receive and delete until nothing is left: every message comes once, each group in its order."""
        model = self.model
        await self.start()
        expected = {number for number, message in model.messages.items() if not message.is_gone}
        drained: set[int] = set()
        last: dict[tuple[int, int], int] = defaultdict(int)
        host = self.broker.journal.host
        for _ in range(400):
            self.world.skew_ms += 1_000
            await asyncio.sleep(0.3)
            for queue_id in list(host.replica.queues.definitions):
                outcome = await self.ask(Receive(queue_id, 0, 10, 20_000))
                if isinstance(outcome, Exception):
                    raise Violation(f"drain: {outcome!r}")
                for delivery in outcome.deliveries:
                    number, _ = number_of(delivery.flags, delivery.payload)
                    group = split_payload(delivery.flags, delivery.payload)[0]
                    require(number not in drained, f"message {number} came twice")
                    drained.add(number)
                    if model.definitions[queue_id].is_fifo:
                        require(
                            delivery.sequence > last[queue_id, group], f"group {group} of {queue_id}: order"
                        )
                        last[queue_id, group] = delivery.sequence
                    receipt = Receipt(delivery.sequence, outcome.epoch, delivery.delivery_count)
                    done = await self.ask(Delete(queue_id, 0, [receipt]))
                    require(not isinstance(done, Exception) and done.errors == [None], f"drain: {done!r}")
            if not any(partition.alive for partition in host.replica.queues.partitions.values()):
                break
        else:
            raise Violation("the queues do not become empty")
        missing = {number for number in expected - drained if model.messages[number].queue_id != SHORT}
        require(not missing, f"messages {sorted(missing)} never came")
        require(drained <= expected, f"messages {sorted(drained - expected)} came from nowhere")
        for queue_id in host.replica.queues.definitions:
            counts = await self.ask(CountMessages(queue_id))
            require(counts.visible + counts.in_flight + counts.delayed == 0, f"queue {queue_id}: {counts}")
        await self.broker.close()


def replay_all(files: JournalFiles) -> QueueStates:
    """Apply every record of a journal to an empty state."""
    states = QueueStates(MemoryChunks(), retry_window_ms=RETRY_WINDOW_MS)
    for header, data in files.read_batches(0):
        for row in iterate_rows(data, header):
            states.apply(row, bytes(data[row.position : row.position + row.length]), header.epoch)
    return states


class Run:
    """One seed: several lives of one broker on one disk."""

    def __init__(
        self, seed: int, *, lying: bool = False, has_hiccups: bool = False, has_circles: bool = False
    ) -> None:
        self.seed = seed
        self.has_hiccups = has_hiccups
        self.has_circles = has_circles
        self.rng = Random(seed)
        self.lying = lying
        self.model = Model()
        self.coordination = MemoryCoordination()
        self.taste = [self.rng.choice((0.2, 1.0, 1.0, 3.0)) for _ in range(13)]
        self.tasks: list[asyncio.Task[Any]] = []
        self.stopped: list[Exception] = []
        self.on_stopped: Callable[[Exception], None] = self.stopped.append
        self.is_checking_replay = False
        self.has_been_full = False
        self.lives = 0
        self.power_cuts = 0
        self.boots = 1
        self.full_replays = 0
        self.live_replays = 0
        self._now_s = 0.0
        self._skew_ms = 0

    def go(self, lives: int = 4) -> None:
        """Live and die several times, then drain. Raises Violation, or whatever else went wrong."""
        rng = self.rng
        disk = SimDisk()
        disk.is_lying = self.lying
        with small_limits(rng), quiet_logs():
            for _ in range(lives):
                end = rng.choices(("power", "kill", "close", "fsync", "index"), (6, 2, 1, 1, 1))[0]
                disk = self.live(disk, end)
            self.live(disk, "drain")

    def live(self, disk: SimDisk, end: str) -> SimDisk:
        """Run the broker once and return the disk it leaves behind."""
        rng = self.rng
        self.stopped = []
        disk.capacity_bytes = CAPACITY_BYTES
        now_s = self._now_s + rng.random() * 10
        world = World(rng, now_s=now_s, skew_ms=self._skew_ms, boots=self.boots)
        self.is_checking_replay = end != "power" and rng.random() < 0.5
        if end == "power":
            disk.lose_power_after(int(rng.expovariate(1 / rng.choice((15, 60, 250)))))
        with world.installed():
            self.lives += 1
            life = Life(self, world, disk)
            if self.has_circles:
                world.loop.call_later(TASKS_CHECKED_S, life.check_tasks)
            if self.has_hiccups:
                world.loop.call_later(life.hiccups.random() * 2, life.refuse_one_write)
            if end == "index":
                life.is_failing = self.damage_index(disk)
            elif end == "fsync":
                life.is_failing = True
                part = rng.choice((".seg", ".seg", "index", "snapshots", "compaction", ""))
                world.loop.call_later(rng.random() * 10, disk.fail_next_sync, part)
            try:
                self.run_life(world, life, end)
            finally:
                # What is undone now happens to nobody.
                before = after_kill(disk)
                life.is_over = True
                world.bury()
        if world.errors:
            raise world.errors[0]
        self._now_s, self._skew_ms = world.loop.now_s, world.skew_ms
        if end == "fsync" and rng.random() < 0.5:
            before.evict()
        if end == "power" or (end == "fsync" and rng.random() < 0.3):
            self.power_cuts += 1
            self.boots += 1
            after = (disk if end == "power" else before).after_power_cut(rng)
            after.is_lying = self.lying
            return after
        return before

    def damage_index(self, disk: SimDisk) -> bool:
        """Lose the file of index chunks, or bits of it; return whether the broker may stop over it."""
        path = f"{DIRECTORY}/{JOURNAL_ID}/{INDEX_NAME}"
        if not disk.exists(path):
            return False
        if self.rng.random() < 0.5:
            disk.unlink(path)
            disk.sync_directory(f"{DIRECTORY}/{JOURNAL_ID}")
            return False
        fd = disk.open(path)
        size = disk.size(fd)
        disk.close(fd)
        for _ in range(self.rng.randint(1, 20) if size > INDEX_DATA_AT else 0):
            # Most of a page is padding: its first bytes are of the chunk.
            page = self.rng.randrange(INDEX_DATA_AT, size, INDEX_DATA_AT)
            disk.flip_bit(path, (page + self.rng.randrange(min(200, size - page))) * 8)
        return True

    def run_life(self, world: World, life: Life, end: str) -> None:
        async def main() -> None:
            if end == "drain":
                await life.drain()
                return
            if not self.model.definitions:
                await life.broker.start()
                for definition in _definitions(has_circles=self.has_circles):
                    life.put_queue(definition)
                await life.settle()
                life.broker.journal.host.stopped = None
                await life.broker.close()
                life.broker = Life(self, world, life.disk).broker
            await life.work(self.rng.choice((40, 120, 250)))
            if end == "close":
                await life.broker.close()

        def stop_soon(error: Exception) -> None:
            self.stopped.append(error)
            if life.is_failing:
                world.loop.call_later(self.rng.random(), world.loop.stop)

        self.on_stopped = stop_soon
        task = world.loop.create_task(main())
        task.add_done_callback(lambda _: world.loop.stop())
        world.loop.run_forever()
        if world.errors:
            raise world.errors[0]
        if task.done() and not world.is_dead:
            try:
                task.result()
            except (OSError, NotActivated):
                # An fsync that fails while the broker starts: the start says so, and the next one goes on.
                if not life.is_failing:
                    raise
            if self.stopped and not life.is_failing:
                raise self.stopped[0]


@contextmanager
def small_limits(rng: Random) -> Iterator[None]:
    """Make limits small while the block runs; how small, the seed says."""
    before = {(module, name): getattr(module, name) for module, name in [*SMALL, *QUICK]}
    tail = index.TAIL_ENTRIES_MAX
    try:
        for (module, name), (least, most) in SMALL.items():
            setattr(module, name, rng.randint(least, most))
        for (module, name), (shortest, longest) in QUICK.items():
            setattr(module, name, rng.choice((shortest, longest)))
        index.TAIL_ENTRIES_MAX = 2 * index.CHUNK_ENTRIES
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)
        index.TAIL_ENTRIES_MAX = tail


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Say nothing of the warnings that every run brings about."""
    logger = logging.getLogger("quaymaster")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


FOUND = (Violation, JournalCorrupt, JournalWentBack, SnapshotsDamaged, AssertionError)
"""What a broken promise looks like."""


def main(arguments: list[str]) -> int:
    """Run one seed, or a range of seeds; say what was found."""
    first = int(arguments[0]) if arguments else 0
    last = int(arguments[1]) if len(arguments) > 1 else first + 1
    began = time.monotonic()
    failed: list[int] = []
    cuts = full = live = messages = 0
    for seed in range(first, last):
        run = Run(seed, lying="--lying" in arguments)
        try:
            run.go()
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if last == first + 1:
                raise
        cuts += run.power_cuts
        full += run.full_replays
        live += run.live_replays
        messages += len(run.model.messages)
    print(
        f"{last - first} runs, {cuts} power cuts, {messages} messages, {full} full and {live} live replays compared, "
        f"{len(failed)} runs failed, {time.monotonic() - began:.1f} s"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The power of a broker is cut at each change to its disk while messages are completed: D4 holds afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from harness.broker_support import arn, define, message, number_of, options
from harness.sim_disk import SimDisk

from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.storage.disk import Disk
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, Output
from quaymaster.core.values.commands.messages import (
    Peek,
    PeekOutcome,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.net.routing.broker_client import ask
from sim.kernel import Violation
from sim.power_cuts import quiet_logs
from sim.world import WatchedDisk, World, after_kill

A, B, C = 1, 2, 3
MESSAGES = 4
OUTPUTS = 3
DIRECTORY = Path("/data/journals")
Work = Callable[[LoneLeader, "Known"], Coroutine[Any, Any, None]]


@dataclass
class Known:
    """What clients were told: messages that are stored, and those that are completed."""

    sent: int = 0
    completed: set[int] = field(default_factory=set)
    outputs: Counter[int] = field(default_factory=Counter)
    left: list[int] = field(default_factory=list)


def cut_at(change: int) -> bool:
    """Cut the power at a change to the disk, start again, and judge; return whether there was such a change."""
    random, coordination, known = Random(change), MemoryCoordination(), Known()
    with quiet_logs():
        disk = SimDisk()
        disk.lose_power_after(change)
        is_cut = not _live(disk, coordination, work, known, random, boots=1)
        after = disk.after_power_cut(random) if is_cut else after_kill(disk)
        if not _live(after, coordination, look, known, random, boots=2):
            raise Violation("D4", "the broker does not start")
    judge(known)
    return is_cut


def _live(
    disk: SimDisk, coordination: MemoryCoordination, work: Work, known: Known, random: Random, *, boots: int
) -> bool:
    """Let a broker live; return whether it did all of its work."""
    world = World(random, now_s=1_000.0 * boots, boots=boots)
    with world.installed():
        broker = LoneLeader(
            options(DIRECTORY, snapshot_interval_s=0.05, snapshot_records=5),
            coordination,
            on_stopped=world.errors.append,
            disk=cast(Disk, WatchedDisk(world, disk)),
        )
        task = world.loop.create_task(work(broker, known))
        task.add_done_callback(lambda _: world.loop.stop())
        try:
            world.loop.run_forever()
            is_whole = task.done() and not world.is_dead
            if is_whole:
                task.result()
        finally:
            world.bury()
    if world.errors and not world.is_dead:
        raise world.errors[0]
    return is_whole


async def work(broker: LoneLeader, known: Known) -> None:
    """Send messages, and complete each by messages to two queues; the last two by one act."""
    await broker.start()
    for queue_id in (A, B, C):
        await ask(broker, SetQueue(define(queue_id)))
    for number in range(MESSAGES):
        outcome = await ask(broker, Send(A, 0, [message(number)]))
        assert isinstance(outcome, SendOutcome)
        known.sent = number + 1
    received = await ask(broker, Receive(A, 0, MESSAGES, 3_600_000))
    assert isinstance(received, ReceiveOutcome)
    found = [(number_of(one.flags, one.payload)[0], one) for one in received.deliveries]
    receipts = [(number, Receipt(one.sequence, received.epoch, one.delivery_count)) for number, one in found]
    for some in ([receipts[0]], [receipts[1]], receipts[2:]):
        numbers = [number for number, _ in some]
        outputs = [output(number, at) for number in numbers for at in range(OUTPUTS)]
        done = await ask(broker, Complete(A, 0, [receipt for _, receipt in some], outputs, 1 + numbers[0]))
        assert done == CompleteOutcome([None] * len(some))
        known.completed.update(numbers)
    await until_settled(broker)


async def until_settled(broker: LoneLeader) -> None:
    """Return when nothing is under way any more."""
    while broker.journal.host.replica.queues.outputs_under_way:  # noqa: ASYNC110 -- time passes at once
        await asyncio.sleep(0.1)


def output(number: int, at: int) -> Output:
    """Return an output of a message."""
    new = message(100 * (number + 1) + at)
    queue_id = (B, C)[at % 2]
    return Output(queue_id, 0, 0, number, arn(f"queue-{queue_id}"), new.payload, new.flags)


async def look(broker: LoneLeader, known: Known) -> None:
    """Wait until nothing is under way, and note what there is."""
    await broker.start()
    for queue_id in (A, B, C):  # the first life may have ended before
        await ask(broker, SetQueue(define(queue_id)))
    await until_settled(broker)
    for queue_id in (A, B, C):
        peeked = await ask(broker, Peek(queue_id, 0, 1, 1_000))
        assert isinstance(peeked, PeekOutcome)
        numbers = [number_of(one.flags, one.payload)[0] for one in peeked.messages]
        if queue_id == A:
            known.left = numbers
        else:
            known.outputs.update(numbers)


def judge(known: Known) -> None:
    """Each message is there, or all that completed it is, once; what was told counts."""
    if any(count > 1 for count in known.outputs.values()):
        raise Violation("D4", f"an output is there twice: {known.outputs}")
    for number in range(MESSAGES):
        there = sum(known.outputs[100 * (number + 1) + at] for at in range(OUTPUTS))
        if there not in (0, OUTPUTS):
            raise Violation("D4", f"{there} of {OUTPUTS} outputs of message {number} are there")
        is_left = number in known.left
        if is_left == bool(there) and (there or number < known.sent):
            raise Violation("D4", f"message {number} is left: {is_left}; its outputs: {there}")
        if number in known.completed and not there:
            raise Violation("D4", f"message {number} was completed, and there is nothing of it")

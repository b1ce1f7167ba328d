"""What a deep backlog costs the broker alone, without HTTP, signatures and encryption: filled several times as fast.

    python -m bench broker_depth [--messages 10000000] [--cases many_groups,expiry,...] [--json FILE]

    plain         a standard queue
    delayed       all delayed for fifteen minutes
    own_delays    each with a delay of its own, drawn at random
    noisy         fair: one tenant's, but for one in a thousand
    blocked       FIFO: half of them in front are of one group whose first message is in flight
    many_groups   FIFO: a tenth as many groups as messages
    expiry        the retention is lowered: all messages expire at once

Each is received and deleted when it is shallow and when it is deep, but for delayed ones. Processor time is that of the
whole process, which makes the commands too; the pauses are those of its event loop, as a server counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.watched import Figures, report
from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.replica.journal_service import JournalOptions
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.structures.ids.id_limits import IdLimits
from quaymaster.core.values.commands.messages import Delete, NewMessage, Receipt, Receive, Send
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.messages import encode_message_head, hash_dedup, hash_group, join_payload
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
from quaymaster.monitoring.loop_watch import LoopWatch
from quaymaster.node.garbage import LOOK_INTERVAL_S, GarbageCollection

BATCH = 10
IN_PROGRESS = 32
SHALLOW = 50_000
DELAY_MAX_MS = 900_000
ENCRYPTED = bytes(300)
"""Stands for 256 bytes of body with what the front end puts around them, encrypted."""

MakeMessage = Callable[[int], NewMessage]


class BrokerAlone:
    """A broker on a directory of its own, and the load, in one event loop."""

    def __init__(self, broker: LoneLeader, watch: LoopWatch) -> None:
        self._broker = broker
        self._watch = watch
        self.cases: list[Figures] = []

    async def ask(self, command: Command) -> Any:
        """Return a command's outcome."""
        answered = asyncio.get_running_loop().create_future()
        self._broker.submit(command, answered.set_result)
        return await answered

    async def ask_all(self, commands: Iterator[Command]) -> None:
        """Have so many commands in progress until there are no more."""

        async def work() -> None:
            for command in commands:
                outcome = await self.ask(command)
                assert not isinstance(outcome, Exception), outcome

        await asyncio.gather(*(work() for _ in range(IN_PROGRESS)))

    async def set_queue(self, queue_id: int, attributes: dict[str, str], *, revision: int = 1) -> None:
        """Make a queue, or change it."""
        name = f"queue-{queue_id}" + (".fifo" if "FifoQueue" in attributes else "")
        await self.ask(
            SetQueue(
                QueueDefinition(
                    queue_id, "0" * 12, name, "active", revision, 0, 0, attributes, {}, 1, one_partition(0)
                )
            )
        )

    async def fill(self, queue_id: int, messages: int, make: MakeMessage, start: int = 0) -> None:
        """Send so many messages."""
        await self.ask_all(
            Send(queue_id, 0, [make(number) for number in range(first, first + BATCH)])
            for first in range(start, start + messages, BATCH)
        )

    async def receive(self, queue_id: int, messages: int) -> int:
        """Receive and delete so many messages; return how many there were."""
        got = 0
        empty = 0

        async def work() -> None:
            nonlocal got, empty
            while got < messages and empty < 10 * IN_PROGRESS:
                outcome = await self.ask(Receive(queue_id, 0, BATCH))
                receipts = [
                    Receipt(found.sequence, outcome.epoch, found.delivery_count)
                    for found in outcome.deliveries
                ]
                got += len(receipts)
                empty += not receipts
                if receipts:
                    await self.ask(Delete(queue_id, 0, receipts))

        await asyncio.gather(*(work() for _ in range(IN_PROGRESS)))
        return got

    def alive(self, queue_id: int) -> int:
        """Return how many messages a queue has."""
        return self._broker.journal.host.replica.queues.partition(queue_id, 0).alive

    @asynccontextmanager
    async def case(self, name: str) -> AsyncIterator[Figures]:
        """Measure what happens in the block; it may add figures of its own."""
        figures: Figures = {"case": name}
        await asyncio.sleep(1.1)
        began, cpu_s = time.monotonic(), time.process_time()
        pauses = [(0.0, 0.0, 0.0)]

        def note() -> None:
            found = [pause for pause in self._watch.longest() if pause.at_s > began]
            pauses.extend((pause.own_s, pause.wall_s, pause.cpu_s) for pause in found)

        async def watch() -> None:
            while True:
                await asyncio.sleep(30)
                note()

        watching = asyncio.create_task(watch())
        yield figures
        figures["seconds"] = round(time.monotonic() - began, 2)
        figures["cpu_s"] = round(time.process_time() - cpu_s, 2)
        figures["rss_mib"] = memory_mib()
        watching.cancel()
        note()
        longest = max(pauses)
        figures["pause_cpu_ms"] = round(max(cpu for _, _, cpu in pauses) * 1000, 1)
        figures["pause_own_ms"], figures["pause_wall_ms"] = (round(part * 1000, 1) for part in longest[:2])
        self.cases.append(figures)
        print("  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)


def memory_mib() -> int:
    """Return this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) >> 10


def stored(number: int, *, group: str = "", dedup: str = "", delay_ms: int = -1) -> NewMessage:
    """Return a message that can be told by its number."""
    message_id = number.to_bytes(16, "big")
    group_hash = hash_group(group) if group else 0
    dedup_hash = hash_dedup(dedup) if dedup else None
    retry = None if dedup else random.randbytes(16)
    body = encode_message_head(message_id, 1, b"startid8", 1, number) + ENCRYPTED
    flags, payload = join_payload(group_hash, dedup_hash, retry, body)
    return NewMessage(message_id, payload, flags, delay_ms, group_hash, dedup_hash, retry, may_be_retry=False)


async def measure(alone: BrokerAlone, name: str, messages: int) -> None:
    """Measure one kind of backlog."""
    attributes, make = KINDS[name](messages)
    is_delayed = name in ("delayed", "own_delays")
    shallow = min(SHALLOW, messages)
    if not is_delayed:
        await alone.set_queue(1, attributes)
        await alone.fill(1, shallow, lambda number: make(messages + number))
        async with alone.case(f"{name}: receive and delete, {shallow:,} deep") as figures:
            figures["messages"] = await alone.receive(1, shallow)
        figures["us_each"] = round(figures["cpu_s"] / max(1, figures["messages"]) * 1e6, 1)
    await alone.set_queue(2, attributes)
    async with alone.case(f"{name}: send {messages:,}") as figures:
        before_mib, first = memory_mib(), messages // 10
        await alone.fill(2, first, make)
        first_mib = memory_mib()
        await alone.fill(2, messages - first, make, first)
        figures["rss_growth_mib"] = memory_mib() - before_mib
        figures["of_the_last_nine_tenths"] = memory_mib() - first_mib
    if name == "expiry":
        await asyncio.sleep(61)
        async with alone.case(f"expire {messages:,}") as figures:
            await alone.set_queue(2, {"MessageRetentionPeriod": "60"}, revision=2)
            while alone.alive(2):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
    elif not is_delayed:
        if name == "blocked":
            await alone.ask(Receive(2, 0, 1, 43_200_000))
        some = min(200_000, messages // 4)
        async with alone.case(f"{name}: receive and delete, {messages:,} deep") as figures:
            figures["messages"] = await alone.receive(2, some)
        figures["us_each"] = round(figures["cpu_s"] / max(1, figures["messages"]) * 1e6, 1)


Kind = tuple[dict[str, str], MakeMessage]


def blocked(messages: int) -> Kind:
    def make(number: int) -> NewMessage:
        group = "blocked" if number < messages // 2 else f"group-{number % 1_000}"
        return stored(number, group=group, dedup=str(number))

    return {"FifoQueue": "true"}, make


def many_groups(messages: int) -> Kind:
    groups = messages // 10
    return {"FifoQueue": "true"}, lambda number: stored(
        number, group=f"group-{number % groups}", dedup=str(number)
    )


def noisy(messages: int) -> Kind:
    return {}, lambda number: stored(
        number, group="noisy" if number % 1_000 else f"tenant-{number // 1_000 % 1_000}"
    )


def own_delays(messages: int) -> Kind:
    dice = random.Random(7)
    return {}, lambda number: stored(number, delay_ms=dice.randrange(DELAY_MAX_MS // 2, DELAY_MAX_MS, 1_000))


KINDS: dict[str, Callable[[int], Kind]] = {
    "plain": lambda messages: ({}, stored),
    "delayed": lambda messages: ({"DelaySeconds": str(DELAY_MAX_MS // 1_000)}, stored),
    "own_delays": own_delays,
    "noisy": noisy,
    "blocked": blocked,
    "many_groups": many_groups,
    "expiry": lambda messages: ({}, stored),
}


async def run(name: str, messages: int) -> list[Figures]:
    """Measure one kind of backlog in a broker of its own."""
    directory = Path(tempfile.mkdtemp(prefix="quaymaster-bench-"))
    garbage = GarbageCollection()
    garbage.pause()
    watch = LoopWatch(0.001)
    broker = LoneLeader(
        JournalOptions(
            directory=directory,
            region="local",
            journal_id=0,
            limits=JournalLimits(),
            body_cache_bytes=64 << 20,
            snapshot_interval_s=60,
            snapshot_records=200_000,
            compaction_live_ratio=0.5,
            retry_window_ms=120_000,
            id_limits=IdLimits(retry_ids_max=1_000_000),
        ),
        MemoryCoordination(),
        on_stopped=lambda error: print(f"stopped: {error}", flush=True),
    )
    try:
        await broker.start()
        watch.start()
        garbage.resume()
        looking = asyncio.create_task(look_at(garbage))
        alone = BrokerAlone(broker, watch)
        await measure(alone, name, messages)
        looking.cancel()
        watch.stop()
        await broker.close()
        return alone.cases
    finally:
        garbage.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def look_at(garbage: GarbageCollection) -> None:
    """Collect as a server does."""
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        garbage.look()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--cases", default=",".join(KINDS))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    cases: list[Figures] = []
    for name in arguments.cases.split(","):
        print(f"== {name}", flush=True)
        cases += uvloop.run(run(name, arguments.messages))
    report("broker_depth", cases, arguments.json)


if __name__ == "__main__":
    main()

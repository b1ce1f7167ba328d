"""What a completion costs a broker, next to a send and a delete: without HTTP, signatures and encryption.

    python -m bench completions [--messages 20000] [--rounds 3] [--json FILE]

    send and delete      a message is sent to one queue, and one of another queue is deleted: two commands
    completed            both as one command; until what was sent has arrived, in the same journal

Each message alone (`1`), and ten with one command (`10`). Messages have 1 KiB. The best of several rounds counts. The
receives before are not measured. Processor time is that of the whole process, which makes the commands, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.broker_depth import BrokerAlone
from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.replica.journal_service import JournalOptions
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.completions import Complete, Output
from quaymaster.core.values.commands.messages import Delete, NewMessage, Receipt, Receive, Send
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.messages import encode_message_head, join_payload
from quaymaster.monitoring.loop_watch import LoopWatch

A, B = 1, 2
BODY = bytes(1024 + 100)
"""1 KiB of body with what the front end puts around it, encrypted."""
HIDDEN_MS = 3_600_000
ARN = "arn:aws:sqs:local:000000000000:queue-2"


def stored(number: int) -> NewMessage:
    """Return a message of 1 KiB."""
    message_id = number.to_bytes(16, "big")
    flags, payload = join_payload(
        0, None, None, encode_message_head(message_id, 1, b"startid8", 1, number) + BODY
    )
    return NewMessage(message_id, payload, flags)


def separate(receipts: list[Receipt], size: int) -> Iterator[Command]:
    """Give sends and deletes, of so many messages each."""
    for first in range(0, len(receipts), size):
        yield Send(B, 0, [stored(number) for number in range(first, first + size)])
        yield Delete(A, 0, receipts[first : first + size])


def completed(receipts: list[Receipt], size: int) -> Iterator[Command]:
    """Give completions of so many messages each."""
    for first in range(0, len(receipts), size):
        outputs = [
            Output(B, 0, 0, number, ARN, stored(number).payload) for number in range(first, first + size)
        ]
        yield Complete(A, 0, receipts[first : first + size], outputs, first + 1)


KINDS = {"send and delete": separate, "completed": completed}


async def cost_us(alone: BrokerAlone, name: str, size: int, messages: int) -> float:
    """Return the processor time of each message, in microseconds."""
    await alone.fill(A, messages, stored)
    receipts: list[Receipt] = []
    while len(receipts) < messages:
        outcome = await alone.ask(Receive(A, 0, 10, HIDDEN_MS))
        receipts += [
            Receipt(found.sequence, outcome.epoch, found.delivery_count) for found in outcome.deliveries
        ]
    before = alone.alive(B)
    began = time.process_time()
    await alone.ask_all(KINDS[name](receipts, size))
    while alone.alive(B) < before + messages:  # noqa: ASYNC110 -- nothing tells
        await asyncio.sleep(0.01)
    return (time.process_time() - began) / messages * 1e6


async def measure(directory: Path, messages: int, rounds: int) -> list[dict[str, Any]]:
    """Measure both ways, in turns."""
    figures: list[dict[str, Any]] = []
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
        ),
        MemoryCoordination(),
        on_stopped=lambda error: print(f"stopped: {error}", flush=True),
    )
    await broker.start()
    alone = BrokerAlone(broker, LoopWatch(1.0))
    for queue_id in (A, B):
        await alone.set_queue(queue_id, {})
    for size in (1, 10):
        best = dict.fromkeys(KINDS, float("inf"))
        for _ in range(rounds):
            for name in KINDS:
                best[name] = min(best[name], await cost_us(alone, name, size, messages))
        row = {"at_once": size, "ratio": round(best["completed"] / best["send and delete"], 2)}
        row.update({f"{name} us": round(us, 1) for name, us in best.items()})
        figures.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    await broker.close()
    return figures


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="bench completions")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="quaymaster-bench-"))
    try:
        figures = uvloop.run(measure(directory, options.messages, options.rounds))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))

"""Blocks of usage records as front ends would have made them, from a seed; and their totals, counted one by one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from quaymaster.protocol.usage.dropped_records import Dropped
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, Seal, decode_block, encode_block
from quaymaster.protocol.usage.usage_records import NO_HASH, Change, UsageContext, UsageRecord
from quaymaster.protocol.usage.usage_rows import UsageRows

NOON_US = 1_795_348_800_000_000
"""2026-11-22T12:00:00Z."""
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
ACTIONS = ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "CreateQueue")


@dataclass
class FrontEnd:
    """Makes blocks of one front end, one after the other."""

    name: str
    seed: int = 0
    incarnation: int = 1
    sequence: int = 0
    time_us: int = NOON_US
    step_us: int = SECOND_US
    previous: bytes = NO_HASH
    audit_hash: bytes = NO_HASH
    records: list[UsageRecord] = field(default_factory=list)
    besides: tuple[UsageContext, ...] = ()
    """Contexts of requests that are made beside the usual ones."""
    bunched_us: int = 0
    """Requests of a block come together, at multiples of this: tables have fewer hours then, and cost less."""

    def block(self, rows: int, *, dropped: int = 0, seal: Seal | None = None) -> bytes:
        """Return the next block."""
        chance = random.Random(f"{self.seed} {self.name} {self.incarnation} {self.sequence}")
        contexts = [context_of(action, queue) for action in ACTIONS for queue in range(3)]
        contexts += [context_of("ReceiveMessage", 1, status=403), *self.besides]
        of = [chance.randrange(len(contexts)) for _ in range(rows)]
        times = [self.time_us + self.step_us * at for at in range(rows)]
        if self.bunched_us:
            times = [max(self.time_us, time_us - time_us % self.bunched_us) for time_us in times]
        self.time_us += self.step_us * rows
        lost = Dropped(self.sequence, self.sequence + dropped, "spool_full", []) if dropped else None
        encoded = encode_block(
            BlockOrigin(self.name, self.incarnation, "eu-west-1"),
            BlockEnd(self.sequence, self.previous, self.audit_hash),
            UsageRows(
                contexts,
                of,
                times,
                [chance.randrange(1_000_000) for _ in of],
                [200] * rows,
                [300] * rows,
                [400] * rows,
                [chance.choice((0, 1, 1000, 65536, 65537, 262144)) for _ in of],
                [chance.randrange(11) for _ in of],
                [0] * rows,
                [f"{chance.getrandbits(64):016x}" for _ in of],
                [
                    Change(row, '{"QueueName":"q"}', "")
                    for row, at in enumerate(of)
                    if contexts[at].category == "management"
                ],
            ),
            low_watermark_us=self.time_us,
            dropped=lost,
            seal=seal,
        )
        self.sequence, self.previous, self.audit_hash = encoded.end
        self.records += decode_block(encoded.data).records()
        return encoded.data


def slow(name: str, **given: Any) -> FrontEnd:
    """Return a front end that answers two requests an hour on average: all of four hours together."""
    return FrontEnd(name, step_us=HOUR_US // 2, bunched_us=4 * HOUR_US, **given)


def context_of_no_queue(action: str, account_id: str, *, status: int = 200) -> UsageContext:
    given = msgspec.structs.asdict(context_of(action, 0, status=status))
    return UsageContext(
        **given | {"account_id": account_id, "queue_id": 0, "queue_name": "", "queue_type": ""}
    )


def context_of(action: str, queue: int, *, status: int = 200) -> UsageContext:
    kind = "fifo" if queue == 2 else "standard"
    return UsageContext(
        f"{queue % 2 + 1:012}",
        "arn:aws:iam::1:user/u",
        "AKIA1",
        "10.0.0.1",
        "boto3",
        "json",
        action,
        "management" if action == "CreateQueue" else "data",
        action != "CreateQueue",
        queue + 100,
        f"queue-{queue}",
        kind,
        status,
        "" if status < 400 else "AccessDenied",
    )


def write_blocks(directory: Path, name: str, *blocks: bytes) -> None:
    """Add a file of blocks, whole at once."""
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f"{name}.part"
    part.write_bytes(b"".join(blocks))
    part.rename(directory / f"{name}.blocks")


Key = tuple[str, str, str, int]


def usage_of(records: list[UsageRecord]) -> dict[Key, Counter[str]]:
    """Return sums by account, queue, action and hour (microseconds), counted one by one."""
    found: dict[Key, Counter[str]] = {}
    for record in records:
        hour = record.event_time_us // HOUR_US * HOUR_US
        sums = found.setdefault((record.account_id, record.queue_name, record.action, hour), Counter())
        sums["requests"] += 1
        sums["messages"] += record.message_count
        sums["bytes"] += record.payload_bytes
        sums["chunks"] += record.chunks
        sums["errors"] += record.http_status >= 400
    return found

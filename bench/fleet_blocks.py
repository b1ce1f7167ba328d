"""Blocks of a simulated fleet, as its front ends would have made them; kept in a file, made once.

    second 0: front end 0, 1, 2 … · second 1: front end 0, 1, 2 … · …      each: length u32, block

Each front end answers about `rows` requests a second, and makes a block of them: queues by Zipf, a thousand accounts,
one request in a thousand manages something. A run of fewer blocks takes the first ones.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.pipeline import ACCOUNTS, NOON_US
from quaymaster.frontend.server import RequestIds
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, encode_block
from quaymaster.protocol.usage.usage_records import Change, UsageContext
from quaymaster.protocol.usage.usage_rows import UsageRows

SECOND_US = 1_000_000
BEGIN_US = NOON_US - 300 * 86_400 * SECOND_US
"""In the past whatever the clock says, or rows would go to quarantine."""
ZIPF = 0.9
FIRST_QUEUE_ID = 1_000_000
"""No queue of the server has such an id: its brokers' counts say nothing about them."""
MANAGED_SHARE = 0.001
REFUSED_SHARE = 0.01
ACTIONS = ("SendMessage", "SendMessageBatch", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility")
SHARES = (0.35, 0.05, 0.35, 0.24, 0.01)
SIZES = (200, 1_000, 4_000, 70_000)
LATENCY_MEDIAN_US, LATENCY_SPREAD = 4_000, 0.8
_LENGTH = struct.Struct("<I")


class Fleet(NamedTuple):
    """How large it is. `rows` are those of a block, on average."""

    front_ends: int = 1_000
    rows: int = 116
    queues: int = 20_000

    @property
    def file_name(self) -> str:
        """What its blocks are kept under."""
        return f"{self.front_ends}-{self.rows}-{self.queues}.fleet"


def prepare(folder: Path, fleet: Fleet, blocks: int) -> Path:
    """Return a file with at least so many blocks; made if it is not there, or has fewer."""
    path = folder / fleet.file_name
    count = path.with_suffix(".count")
    if path.exists() and count.exists() and int(count.read_text()) >= blocks:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    count.unlink(missing_ok=True)
    with path.open("wb") as file:
        for _, data in zip(range(blocks), make_blocks(fleet), strict=False):
            file.write(_LENGTH.pack(len(data)) + data)
    count.write_text(str(blocks))
    return path


class KeptBlocks:
    """Blocks of a prepared file, by their number."""

    def __init__(self, path: Path, blocks: int) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._places: list[tuple[int, int]] = []
        at = 0
        for _ in range(blocks):
            (length,) = _LENGTH.unpack_from(self._data, at)
            self._places.append((at + _LENGTH.size, length))
            at += _LENGTH.size + length

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> bytes:
        at, length = self._places[number]
        return self._data[at : at + length]


def make_blocks(fleet: Fleet) -> Iterator[bytes]:
    """Yield blocks, a second of the whole fleet after the other, for ever."""
    chance = np.random.default_rng(67)
    weights = np.cumsum(1 / np.arange(1, fleet.queues + 1) ** ZIPF)
    members = [_Member(number) for number in range(fleet.front_ends)]
    second = 0
    while True:
        for member in members:
            count = max(1, int(chance.poisson(fleet.rows)))
            queues = np.searchsorted(weights, chance.random(count) * weights[-1])
            yield member.block(chance, queues, BEGIN_US + second * SECOND_US)
        second += 1


class _Member:
    """One front end."""

    def __init__(self, number: int) -> None:
        self._origin = BlockOrigin(f"front-end-{number:04}", 1, "eu-west-1")
        self._end = BlockEnd()
        self._ids = RequestIds()

    def block(self, chance: np.random.Generator, queues: np.ndarray, begin_us: int) -> bytes:
        """Return the next block: requests for these queues within a second."""
        count = len(queues)
        actions = chance.choice(len(ACTIONS), count, p=SHARES).tolist()
        fates = chance.random(count).tolist()
        contexts: dict[UsageContext, int] = {}
        context, changes = [], []
        for row, (queue, action, fate) in enumerate(zip(queues.tolist(), actions, fates, strict=True)):
            is_managed, is_refused = fate < MANAGED_SHARE, fate > 1 - REFUSED_SHARE
            found = _context(queue, "TagQueue" if is_managed else ACTIONS[action], is_refused=is_refused)
            context.append(contexts.setdefault(found, len(contexts)))
            if is_managed:
                changes.append(Change(row, f'{{"QueueName":"{found.queue_name}","Tags":{{"team":"a"}}}}', ""))
        latency = chance.lognormal(np.log(LATENCY_MEDIAN_US), LATENCY_SPREAD, count).astype(np.int64) + 200
        sizes = chance.choice(SIZES, count, p=(0.6, 0.3, 0.09, 0.01)) + chance.integers(0, 100, count)
        rows = UsageRows(
            list(contexts),
            context,
            (begin_us + np.sort(chance.integers(0, SECOND_US, count))).tolist(),
            latency.tolist(),
            (latency // 2).tolist(),
            (sizes + 300).tolist(),
            chance.integers(150, 600, count).tolist(),
            sizes.tolist(),
            chance.integers(0, 11, count).tolist(),
            [0] * count,
            [self._ids.next() for _ in range(count)],
            changes,
        )
        data, self._end = encode_block(self._origin, self._end, rows, low_watermark_us=begin_us + SECOND_US)
        return data


@cache
def _context(queue: int, action: str, *, is_refused: bool) -> UsageContext:
    account = queue % ACCOUNTS + 1
    return UsageContext(
        f"{account:012}",
        f"arn:aws:iam::{account:012}:user/worker-{queue % 7}",
        f"AKIA{account:012}{queue % 7:04}",
        f"10.{account % 250}.{queue % 250}.{queue % 7 + 1}",
        "aws-sdk-java/2.30.11 md/io#sync md/http#Apache ua/2.1 os/Linux#6.1 lang/java#21.0.5",
        "json",
        action,
        "management" if action == "TagQueue" else "data",
        action == "ReceiveMessage",
        FIRST_QUEUE_ID + queue,
        f"orders-{queue}",
        "standard",
        400 if is_refused else 200,
        "InvalidParameterValue" if is_refused else "",
    )

"""What the next batch of bronze takes of the usage queue, and which task reads what of it. Pure.

bounds of the feed, positions ──plan_batch──▶ a range of offsets by partition ──plan_tasks──▶ stretches of tasks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PASSED: Final = "passed"
"""In the note of bronze.blocks: stretches of offsets, by partition, that the queue no longer had."""
PASSED_MAX: Final = 1_000
"""So many stretches of a partition that the queue no longer had are told apart; the oldest become one."""
BATCH_BLOCKS_MAX = 200_000
BATCH_BYTES_MAX: Final = 1 << 30
"""A batch takes no more; a killed run repeats at most a batch."""
FILE_BYTES: Final = 64 << 20
"""About how large the files of bronze are; a task has one in memory."""
SPLIT_BYTES: Final = 4 << 20
"""From here on a batch is worth all cores."""
BLOCK_BYTES_GUESSED: Final = 256 << 10
"""How large a block is, before any was seen: as large as they get, so that no batch has too many."""
BLOCKS_UNSEEN_MAX: Final = BATCH_BYTES_MAX // BLOCK_BYTES_GUESSED
BATCH_GROWTH: Final = 16
"""A batch has at most so many blocks, or so many times as many as the last one: how large blocks are is known of as
many as were seen."""
Stretch = tuple[int, int, int]
"""A partition and a half-open range of its offsets."""


class BlockSizes(NamedTuple):
    """What is known of blocks when the next batch is planned: how many the last one had, and how large they were."""

    blocks: int = 0
    block_bytes: int = BLOCK_BYTES_GUESSED

    @property
    def blocks_max(self) -> int:
        """How many blocks the next batch may have."""
        return min(self.full_batch, max(BLOCKS_UNSEEN_MAX, BATCH_GROWTH * self.blocks))

    @property
    def full_batch(self) -> int:
        """How many blocks of this size are as much as any batch may have."""
        return max(1, min(BATCH_BLOCKS_MAX, BATCH_BYTES_MAX // max(1, self.block_bytes)))


def plan_batch(
    bounds: Mapping[int, tuple[int, int]], positions: Mapping[int, int], sizes: BlockSizes
) -> dict[int, tuple[int, int]]:
    """Return what the next batch takes of each partition; nothing when all was taken.

    Partitions have equal shares, and those that need less leave it to the others: in a backlog each one goes forward,
    and with them the time until which usage is whole. What the queue no longer has is passed over. It is not forgotten:
    its sequences stay missing.
    """
    lows = {
        partition: max(positions.get(partition, earliest), earliest)
        for partition, (earliest, _) in bounds.items()
    }
    waiting = sorted(
        (end - lows[partition], partition) for partition, (_, end) in bounds.items() if end > lows[partition]
    )
    left, taken = sizes.blocks_max, {}
    for at, (blocks, partition) in enumerate(waiting):
        taken[partition] = min(blocks, -(-left // (len(waiting) - at)))
        left -= taken[partition]
    return {
        partition: (lows[partition], lows[partition] + count)
        for partition, count in sorted(taken.items())
        if count
    }


def passed_over(
    ranges: Mapping[int, tuple[int, int]],
    positions: Mapping[int, int],
    before: Mapping[str, list[list[int]]],
) -> dict[str, list[list[int]]]:
    """Return the offsets that are not in the table because the queue no longer had them: half open, by partition.

    All others below the position are rows, so a row that somebody deleted is told apart.
    """
    passed = {partition: list(stretches) for partition, stretches in before.items()}
    for partition, (low, _) in ranges.items():
        position = positions.get(partition, 0)
        if position < low:
            stretches = passed.setdefault(str(partition), [])
            stretches.append([position, low])
            if len(stretches) > PASSED_MAX:
                stretches[:2] = [[stretches[0][0], stretches[1][1]]]
    return passed


def passed_in(note: Mapping[str, Any]) -> dict[int, list[list[int]]]:
    """Return the stretches of offsets that the queue no longer had, by partition, by the note of bronze.blocks."""
    return {int(partition): stretches for partition, stretches in note.get(PASSED, {}).items()}


def plan_tasks(ranges: Mapping[int, tuple[int, int]], block_bytes: int, cores: int) -> list[list[Stretch]]:
    """Return the stretches that each task reads: as many tasks as files, and all cores if there is enough to do."""
    blocks = sum(high - low for low, high in ranges.values())
    size = blocks * block_bytes
    tasks = min(blocks, max(-(-size // FILE_BYTES), cores if size >= SPLIT_BYTES else 1))
    planned: list[list[Stretch]] = [[] for _ in range(tasks)]
    # Task i has the blocks from i * blocks // tasks on, over all partitions one after the other.
    begin = 0
    for partition, (low, high) in ranges.items():
        end = begin + high - low
        for task, stretches in enumerate(planned):
            first = max(begin, task * blocks // tasks)
            last = min(end, (task + 1) * blocks // tasks)
            if first < last:
                stretches.append((partition, low + first - begin, low + last - begin))
        begin = end
    return planned

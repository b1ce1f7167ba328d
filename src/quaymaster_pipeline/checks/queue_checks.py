"""Whether the usage queue knows of blocks that the tables do not have, or the tables of blocks that it never had.

A run tells the queue how far the tables are, by the offset of its consumer group, which goes no way back. So tables
whose end was cut off, with the notes of all commits or by an older copy, are behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from quaymaster_pipeline.checks.usage_breaks import UsageBreak
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.warehouse.schemas import BLOCKS
from quaymaster_pipeline.warehouse.tables import Warehouse

FIRST_OFFSET: Final = 1
"""Where a partition begins of which the tables have nothing yet; its group may have been told so."""


class AskedQueue(Protocol):
    """A usage queue that can be asked; `usage.feed.QueueFeed` is one."""

    @property
    def identity(self) -> str:
        """Which queue it is."""

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first kept offset and the next one to be written of each partition."""

    def committed(self) -> dict[int, int]:
        """Return up to which offset of each partition it was told that the tables are."""


def compare_with_queue(warehouse: Warehouse, queue: AskedQueue) -> list[UsageBreak]:
    """Return where the tables end before or behind what the usage queue says; nothing if they are of another queue.

    A run may take blocks meanwhile: it tells the queue what the tables have, and they have what the queue had.

    Raises: as `queue` does.
    """
    table = warehouse.table(BLOCKS)
    committed = queue.committed()
    table.refresh()
    note = table.note(BRONZE)
    if note and note["feed"] != queue.identity:
        return []
    positions = {int(partition): end for partition, end in note.get("next", {}).items()}
    return list(judge_ends(positions, committed, queue.bounds()))


def judge_ends(
    positions: Mapping[int, int], committed: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]
) -> Iterator[UsageBreak]:
    """Yield partitions of which tables have less than the queue was told, or more than it has ever had.

    `bounds`: the first kept offset and the next one. A queue says that it was told of all that it keeps no more.
    """
    for partition in sorted(positions.keys() | committed.keys()):
        has, told = (offsets.get(partition, FIRST_OFFSET) for offsets in (positions, committed))
        first, end = bounds.get(partition, (FIRST_OFFSET, FIRST_OFFSET))
        if has < told and told > first:
            reason = f"it and all up to offset {told - 1} are missing: the usage queue was told that they were there"
            yield UsageBreak(BLOCKS.name, reason, log_partition=partition, log_offset=has)
        elif has > end:
            reason = (
                f"it and all up to offset {has - 1} are not in the usage queue: they were put in, or the queue is of "
                "an older copy"
            )
            yield UsageBreak(BLOCKS.name, reason, log_partition=partition, log_offset=end)

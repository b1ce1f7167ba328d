"""The newest partition tables that a front end knows: those of its rows, and newer ones that brokers told it of.

A journal has a new table before the row of its queue says so everywhere, and keeps it when the store is restored from
an older copy. What a broker tells is believed until the row has it, or the queue is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from pyroaring import BitMap

from quaymaster.core.structures.ids.recent_ids import top_of
from quaymaster.core.values.partition_tables import is_newer_table, journal_of_partition
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.monitoring.metrics import Histogram

Refresh = Callable[[QueueDefinition], Coroutine[Any, Any, None]]
"""Has memory show a queue as it is now, if that can be learned."""

MET_MAX: Final = 10_000
"""Queues with tables newer than their rows; of more, the one that was met first is forgotten, and met again."""
SEALED_MAX: Final = 100_000
IDS_BYTES_MAX: Final = 32 * 1024 * 1024
"""What is known of ids of sealed partitions; of more, what was learned first is forgotten. 2 to 8 bytes are an id."""


class PartitionTables:
    """Tables by queue id. `find_row` answers from memory; None: the queue is not known there.

    `on_newer` hears of each table that is newer than its row: somebody has to look at the row. `on_sealed` hears of
    each partition by which a message was passed on.
    """

    def __init__(
        self,
        find_row: Callable[[int], QueueDefinition | None],
        journal_of_row: Callable[[int, int], int | None],
        refresh: Refresh,
    ) -> None:
        self.on_newer: Callable[[QueueDefinition], None] = lambda definition: None
        self.pauses = Histogram()
        """How much longer sends took that met a change of partitions."""
        self.on_sealed: Callable[[int, int], None] = lambda queue_id, number: None
        self.met: dict[int, QueueDefinition] = {}
        self._find_row = find_row
        self._journal_of_row = journal_of_row
        self._refresh = refresh
        self._sealed: dict[tuple[int, int], None] = {}
        self._ids: dict[tuple[int, int], tuple[BitMap, int]] = {}
        self._ids_bytes = 0

    def find(self, queue_id: int) -> QueueDefinition | None:
        """Return a queue with its newest table, None when it is not known."""
        row = self._find_row(queue_id)
        met = self.met.get(queue_id)
        if met is None:
            return row
        if row is None or not is_newer_table(met, row):
            del self.met[queue_id]
            return row
        return met

    async def look(self, definition: QueueDefinition) -> QueueDefinition | None:
        """Look at the row of a queue, and return what `find` does then.

        Raises CallerError or NotNow when the row cannot be seen; `find` tells what is known all the same.
        """
        await self._refresh(definition)
        return self.find(definition.queue_id)

    def meet(self, definition: QueueDefinition) -> None:
        """A broker has this table."""
        known = self.find(definition.queue_id)
        if known is None or not is_newer_table(definition, known):
            return
        self.met[definition.queue_id] = definition
        if len(self.met) > MET_MAX:
            del self.met[next(iter(self.met))]
        self.on_newer(definition)

    def journal_of(self, queue_id: int, partition: int) -> int | None:
        """Return which journal has a partition, None when that is not known; of ALL_PARTITIONS, that of the oldest."""
        met = self.met.get(queue_id)
        found = None if met is None else journal_of_partition(met, partition)
        return self._journal_of_row(queue_id, partition) if found is None else found

    def note_sealed(self, queue_id: int, number: int) -> None:
        """A partition takes no messages, and that is committed."""
        self._sealed[queue_id, number] = None
        if len(self._sealed) > SEALED_MAX:
            del self._sealed[next(iter(self._sealed))]
        self.on_sealed(queue_id, number)

    def is_known_sealed(self, queue_id: int, number: int) -> bool:
        """Return whether a partition was heard to be sealed."""
        return (queue_id, number) in self._sealed

    def note_ids(self, queue_id: int, number: int, tops: bytes) -> None:
        """A sealed partition knows only ids that begin like this (`IdsOutcome`), and that is committed."""
        self.forget_ids(queue_id, number)
        self._ids[queue_id, number] = BitMap.deserialize(tops), len(tops)
        self._ids_bytes += len(tops)
        while self._ids_bytes > IDS_BYTES_MAX:
            self.forget_ids(*next(iter(self._ids)))

    def forget_ids(self, queue_id: int, number: int) -> None:
        """A partition is not asked about messages any more, or will be asked about all."""
        _, size = self._ids.pop((queue_id, number), (None, 0))
        self._ids_bytes -= size

    def may_know(self, queue_id: int, number: int, dedup: bytes) -> bool:
        """Return whether a sealed partition may know a deduplication id."""
        ids = self._ids.get((queue_id, number))
        return ids is None or top_of(dedup) in ids[0]

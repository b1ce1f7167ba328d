"""Several journals as metadata sees them: each keeps what it is told, seals partitions, and may be without a leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable

from metadata.support import Clock, FakeJournal
from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.errors import QueueDoesNotExist, TooFewReplicas
from quaymaster.core.values.partition_tables import entry_of, is_sealed_by
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, QueueMarks

Place = tuple[int, int]
"""A queue's id and the number of a partition."""


class FakeJournals:
    """`clock` is the time of all journals; `before` is called before anything is done."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.of: defaultdict[int, FakeJournal] = defaultdict(FakeJournal)
        self.without_leader: set[int] = set()
        self.messages: defaultdict[Place, int] = defaultdict(int)
        self.sends: defaultdict[Place, int] = defaultdict(int)
        self.sealed_s: dict[Place, float] = {}
        self.before: Callable[[int], Awaitable[None]] | None = None
        self.error: Exception | None = None
        """What each call ends with after it was carried out."""

    def known(self, queue_id: int, journal_id: int) -> QueueDefinition | None:
        """Return what a journal knows of a queue."""
        return self.of[journal_id].queues.get(queue_id)

    async def set_queue(self, definition: QueueDefinition, journal_id: int) -> QueueDefinition | None:
        await self._enter(journal_id)
        journal = self.of[journal_id]
        taken = await journal.set_queue(definition)
        for entry in journal.queues[definition.queue_id].partitions:
            if entry.journal_id == journal_id and is_sealed_by(entry):
                self.sealed_s.setdefault((definition.queue_id, entry.number), self.clock.elapsed_s)
        self._leave()
        return taken

    async def delete_queue(
        self, queue_id: int, identity: QueueIdentity | None = None, journal_id: int | None = None
    ) -> None:
        assert journal_id is not None, "metadata says which journal"
        await self._enter(journal_id)
        await self.of[journal_id].delete_queue(queue_id, identity)
        self._leave()

    async def partition(self, queue_id: int, number: int) -> PartitionOutcome:
        for journal_id, journal in list(self.of.items()):
            known = journal.queues.get(queue_id)
            entry = None if known is None else entry_of(known, number)
            if known is None or entry is None or entry.journal_id != journal_id:
                continue
            await self._enter(journal_id)
            place = queue_id, number
            sealed_s = self.sealed_s.get(place)
            sealed_for_ms = None if sealed_s is None else int((self.clock.elapsed_s - sealed_s) * 1000)
            count, sends = self.messages[place], self.sends[place]
            return PartitionOutcome(
                sealed_for_ms, not count, count, sends, sends - count, known.table_version
            )
        raise QueueDoesNotExist

    async def marks(self, journal_id: int) -> QueueMarks:
        return await self.of[journal_id].marks(journal_id)

    async def data_keys(self, journal_id: int) -> set[int]:
        return await self.of[journal_id].data_keys(journal_id)

    async def _enter(self, journal_id: int) -> None:
        if self.before is not None:
            await self.before(journal_id)
        if journal_id in self.without_leader:
            raise TooFewReplicas

    def _leave(self) -> None:
        if self.error is not None:
            raise self.error

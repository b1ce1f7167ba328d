"""Queues whose rows can be changed: what every change needs, whatever part of a queue's life it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from quaymaster.coordination.interface import TRANSACTION_OPERATIONS_MAX, Compare, Put, RevisionMismatch
from quaymaster.coordination.push_rows import put_pushed
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, encode_queue_definition
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queues.known_queues import KnownQueues
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import PENDING, QUEUES, PendingRow, encode_row, row_decoder

log = logging.getLogger(__name__)

Item = TypeVar("Item")

ATTEMPTS_MAX: Final = 16
DROPPED_AT_ONCE: Final = TRANSACTION_OPERATIONS_MAX // 2
"""Each row that is dropped takes two operations of a transaction."""


class StoredQueues(KnownQueues):
    """`KnownQueues`, the store that has their rows, and the rows of those whose journal is still to be told."""

    def __init__(self, mirror: Mirror, options: MetadataOptions, now_ms: Callable[[], int]) -> None:
        super().__init__(mirror, region=options.region, quotas=options.quotas)
        self.mirror = mirror
        self.options = options
        self.now_ms = now_ms
        self.pending: MirrorTable[PendingRow] = mirror.table(PENDING, row_decoder(PendingRow), is_timed=True)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def only_one(self, suffix: str) -> AsyncIterator[None]:
        """Let one change of a queue at a time through, so that the journal hears of them in order."""
        lock = self._locks.get(suffix)
        if lock is None:
            lock = self._locks[suffix] = asyncio.Lock()
        async with lock:
            yield

    async def queue_meant(self, account_id: str, name: str, queue_id: int) -> QueueDefinition:
        """Return the active queue of a name and id, or of the name alone (`queue_id` 0), as it is in memory now.

        QueueDoesNotExist also where another queue has the name: it was deleted, and created again. What the caller may
        do to the one says nothing of the other.
        """
        queue = self.queue(account_id, name)
        if queue_id not in (0, queue.queue_id):
            await self.mirror.refresh(f"{QUEUES}{account_id}/{name}")  # this node may be the one behind
            queue = self.queue(account_id, name)
            if queue_id != queue.queue_id:
                raise QueueDoesNotExist
        return queue

    async def drop(self, compares: Sequence[Compare]) -> None:
        """Drop rows that are as they were; one that is not keeps no other from going."""
        while compares:
            try:
                await self.mirror.transact(compares, deletes=[compare.key for compare in compares])
            except (
                RevisionMismatch
            ) as mismatch:  # the name was used, or the queue purged, again, or it is gone
                compares = [compare for compare in compares if compare.key != mismatch.key]
            else:
                return


async def attempts(suffix: str) -> AsyncIterator[int]:
    """Count tries of a change that others may get in the way of, a little apart."""
    for attempt in range(ATTEMPTS_MAX):
        yield attempt
        await asyncio.sleep(0.001 * attempt)
    log.warning("queue change gave up queue=%s attempts=%d", suffix, ATTEMPTS_MAX)


def suffix_of(definition: QueueDefinition) -> str:
    """Return what the keys of a queue's rows end with."""
    return f"{definition.account_id}/{definition.name}"


def put_pending(definition: QueueDefinition, now_ms: int) -> list[Put]:
    """Return what stores a queue in a state that its journal is still to be told of."""
    suffix = suffix_of(definition)
    return [
        Put(QUEUES + suffix, encode_queue_definition(definition)),
        Put(PENDING + suffix, encode_row(PendingRow(definition.queue_id, now_ms))),
        *put_pushed(definition),
    ]


def batched(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Return a sequence in stretches of so many items."""
    return [items[at : at + count] for at in range(0, len(items), count)]

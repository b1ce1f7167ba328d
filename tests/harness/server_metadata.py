"""The metadata of a server: its registry is that of its own store."""

from __future__ import annotations

from contextlib import suppress

from quaymaster.coordination.counted_time import COUNTED_TIME
from quaymaster.coordination.interface import Put, RevisionMismatch
from quaymaster.coordination.number_rows import encode_number
from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.counted_time import CountedTime


async def count_all(counted_time: CountedTime) -> None:
    """Count all the time that has passed, as if it had been counted while it passed."""
    passed_ms = int((counted_time._mirror.monotonic_s() - counted_time._unchanged_since_s) * 1000)
    if passed_ms:
        put = Put(COUNTED_TIME, encode_number(counted_time.known_ms + passed_ms))
        with suppress(RevisionMismatch):  # another one has done so
            await counted_time._mirror.transact([counted_time._row.compare("")], [put])


class ServerMetadata(MetadataService):
    """A test reaches through it to the queues and rows behind."""

    registry: QueueRegistry

    async def run_upkeep(self) -> None:
        """Do what is due, once the registry has counted the time, as it does beside this."""
        await count_all(self.registry.counted_time)
        await super().run_upkeep()

"""Snapshots of the queues of a replica: what changed since the last one, written while requests are answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from quaymaster.broker.replica.maintenance.steps import Step
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.broker.storage.chunk_store import ChunkStore
from quaymaster.broker.storage.disk import is_full
from quaymaster.broker.storage.snapshots import MANIFEST_VERSIONS, Blob, Draft, SnapshotStore
from quaymaster.broker.storage.state_store import (
    BLOB_VERSIONS,
    SnapshotMeta,
    encode_key,
    encode_meta,
    encode_partition,
)
from quaymaster.core.partition.partition import Partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.ids.recent_ids import DIGESTED_AT_ONCE
from quaymaster.core.values.formats import CellFormat
from quaymaster.monitoring.logs import log_event

BLOBS_AT_ONCE_BYTES = 8 << 20
"""So many bytes of a snapshot's blobs are held before they are written; a single large one is held whole."""
JOINED_PIECES_MAX = 24
"""A blob of no more pieces is small."""
COMMIT_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class Snapshots:
    """Writes a snapshot after so much time or so many records, and lets the journal's start follow."""

    def __init__(
        self,
        host: ReplicaHost,
        store: SnapshotStore,
        chunks: ChunkStore,
        *,
        interval_s: float,
        records_max: int,
        cell_format: CellFormat | None = None,
    ) -> None:
        self._host = host
        self._cell_format = cell_format or CellFormat()
        self._store = store
        self._chunks = chunks
        self._interval_s = interval_s
        self._records_max = records_max
        self._lock = asyncio.Lock()
        self.base_offset = store.newest_base_offset or 0
        self.written = 0
        self.written_s = time.monotonic()
        """When the last one was written, or nothing was to be written."""
        self.failed = 0

    async def run(self) -> None:
        """Write snapshots for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._interval_s))
            host = self._host
            if not host.replica.is_ready or not host.records_since_snapshot:
                self.written_s = time.monotonic()
                continue
            if (
                time.monotonic() - last >= self._interval_s
                or host.records_since_snapshot >= self._records_max
            ):
                last = time.monotonic()
                await self.write()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[int]:
        """Write a snapshot and keep its files as they are until the end of the block; gives its base offset.

        An elect keeps the one it has: nothing new is committed before it leads.
        """
        async with self._lock:
            yield self.base_offset if self._host.replica.role == "activating" else await self._write()

    @asynccontextmanager
    async def replaced(self) -> AsyncIterator[Callable[[SnapshotStore, ChunkStore], None]]:
        """Write no snapshot until the end of the block, and go on with the store and chunks that are given."""

        def replace(store: SnapshotStore, chunks: ChunkStore) -> None:
            self._store = store
            self._chunks = chunks
            self.base_offset = store.newest_base_offset or 0

        async with self._lock:
            yield replace

    async def write(self, commit_timeout_s: float | None = None) -> int:
        """Write one snapshot now; return its base offset. What could not be written stays dirty.

        It waits so long for what is in it to be committed.
        """
        async with self._lock:
            return await self._write(commit_timeout_s)

    async def _write(self, commit_timeout_s: float | None = None) -> int:
        """Write one snapshot to its end, also when the task that waits for it is cancelled; the caller holds the lock.

        What is in a snapshot is noted as clean. One that was left half done, at shutdown, would let the next one
        publish without it, past the records that it needs.
        """
        work = asyncio.get_running_loop().create_task(
            self._write_whole(COMMIT_TIMEOUT_S if commit_timeout_s is None else commit_timeout_s)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            raise

    async def _write_whole(self, commit_timeout_s: float) -> int:
        host = self._host
        if host.stopped is not None or not host.replica.is_ready:
            return self.base_offset
        truncations = host.replica.log.truncations
        queues = host.replica.queues
        base_offset = host.replica.applied_base
        host.records_since_snapshot = 0
        removed, queues.removed = queues.removed, set()
        self._chunks.snapshot_begun()
        partitions: dict[int, Partition] = {}
        loop = asyncio.get_running_loop()
        try:
            draft = await loop.run_in_executor(None, self._store.begin)
            changed = await self._encode_dirty(queues, draft, partitions)
            await self._committed(host.replica.end_offset, commit_timeout_s)
            if host.replica.log.truncations != truncations:
                raise _NotCommitted("what was to be in the snapshot was cut")
            meta = encode_meta(SnapshotMeta(host.replica.last_time_ms, host.replica.queues.marks))
            gone = [encode_key(key) for key in removed if key not in partitions]
            await loop.run_in_executor(
                None, self._publish, draft, base_offset, changed, gone, meta, host.replica.durable_commit
            )
        except BaseException as error:
            for found in partitions.values():
                found.note_change()
            queues.removed |= removed
            host.records_since_snapshot += 1
            self.failed += 1
            if not isinstance(error, _NotCommitted | OSError):
                raise  # a chunk that is lost, or a bug: the journal stops
            log_event(log, logging.WARNING, "snapshot not written", error=str(error))
            if isinstance(error, OSError) and not is_full(error):
                host.stop(error)
            return self.base_offset
        self.base_offset = base_offset
        self.written += 1
        self.written_s = time.monotonic()
        return base_offset

    async def _encode_dirty(
        self, queues: QueueStates, draft: Draft, partitions: dict[int, Partition]
    ) -> dict[bytes, Blob]:
        """Encode what has changed, noted in `partitions`; return what was not added to the draft at once."""
        version = self._cell_format.version_of(BLOB_VERSIONS)
        changed: dict[bytes, Blob] = {}
        changed_bytes = 0
        step = Step()
        for key in queues.dirty_keys():
            found = queues.partitions.get(key)
            if found is None or not found.dirty:
                continue
            await self._settled(queues, found, step)
            partitions[key] = found
            pieces: list[bytes] = []
            for piece in encode_partition(found, self._host.replica.applied_end, version=version):
                pieces.append(piece)
                if step.is_over():
                    await step.pause()
            changed[encode_key(key)] = b"".join(pieces) if len(pieces) <= JOINED_PIECES_MAX else pieces
            changed_bytes += sum(map(len, pieces))
            if changed_bytes >= BLOBS_AT_ONCE_BYTES:
                await asyncio.get_running_loop().run_in_executor(None, self._add, draft, changed)
                changed_bytes = 0
                step = Step()
        return changed

    async def _settled(self, queues: QueueStates, found: Partition, step: Step) -> None:
        """Return once nothing in a partition is unfinished, and its ids are digested."""
        while (is_unfinished := queues.is_unfinished(found)) or (
            found.ids.dedup is not None and found.ids.dedup.digest(DIGESTED_AT_ONCE)
        ):
            if is_unfinished and self._host.stopped is not None:
                raise _NotCommitted("the journal stopped in the middle of a commit")
            if is_unfinished or step.is_over():
                await step.pause()

    @staticmethod
    def _add(draft: Draft, changed: dict[bytes, Blob]) -> None:
        draft.add(changed)
        # Freed here, one by one: on the event loop, all at once would take a tenth of a second.
        while changed:
            changed.popitem()

    def _publish(
        self,
        draft: Draft,
        base_offset: int,
        changed: dict[bytes, Blob],
        removed: list[bytes],
        meta: bytes,
        durable_floor: int,
    ) -> None:
        self._add(draft, changed)
        self._chunks.sync()
        self._store.publish(
            draft,
            base_offset,
            removed,
            meta,
            durable_floor=durable_floor,
            version=self._cell_format.version_of(MANIFEST_VERSIONS),
        )
        self._chunks.snapshot_published()

    @property
    def oldest_base_offset(self) -> int:
        """Below this no snapshot that may be loaded needs a record: what is dead there may go."""
        return self._store.oldest_base_offset or 0

    async def _committed(self, offset: int, timeout_s: float) -> None:
        """Wait until everything below `offset` is committed, and durable here."""
        deadline = time.monotonic() + timeout_s
        while self._host.replica.durable_commit < offset:
            if self._host.stopped is not None or time.monotonic() > deadline:
                raise _NotCommitted(f"offset {offset} was not committed in {timeout_s} s")
            await asyncio.sleep(0.002)


class _NotCommitted(Exception):
    """The journal does not come on now (a full disk): a later snapshot may. No OSError: the files are sound."""

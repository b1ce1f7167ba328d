"""What a leader does besides answering: expiry, snapshots, compaction. Each in small steps between requests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from quaymaster.broker.chunk_store import ChunkStore
from quaymaster.broker.disk import is_full
from quaymaster.broker.journal_files import JournalCorrupt, SegmentInfo
from quaymaster.broker.replica import ReplicaHost
from quaymaster.broker.segments import RecordUnreadable
from quaymaster.broker.snapshots import SnapshotStore
from quaymaster.broker.state_store import SnapshotMeta, encode_key, encode_meta, encode_partition
from quaymaster.core.commands import ExpireMessages
from quaymaster.core.partition import Partition
from quaymaster.core.records import RecordType, iterate_rows
from quaymaster.monitoring.logs import log_event

STEP_S = 0.004
"""How long a background step may hold the event loop."""

EXPIRY_STEP_S = 0.1
EXPIRY_PARTITIONS_PER_STEP = 2_000
COMMIT_TIMEOUT_S = 30.0
COMPACT_AFTER_MS = 600_000
"""Younger segments stay whole: the windows of deduplication and attempts point into them."""

MESSAGE_TYPES = frozenset({int(RecordType.SEND), int(RecordType.MOVE)})

log = logging.getLogger(__name__)


def _ignore(answer: object) -> None:
    """Whether anything expired shows in the queues."""


class Expiry:
    """Looks at every partition's oldest messages in turn."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self._keys: list[int] = []

    async def run(self) -> None:
        """Go round for ever."""
        while True:
            await asyncio.sleep(EXPIRY_STEP_S)
            self._host.clock.follow_wall()
            queues = self._host.replica.queues
            queues.expiry_is_held = self._host.clock.expiry_is_held
            if self._host.replica.is_leading and not queues.expiry_is_held:
                self.step()

    def step(self) -> None:
        """Look at the next few partitions, and propose an end to what has expired."""
        queues = self._host.replica.queues
        if not self._keys:
            self._keys = list(queues.partitions)
        now_ms = self._host.clock.time_ms()
        for key in self._keys[-EXPIRY_PARTITIONS_PER_STEP:]:
            found = queues.partitions.get(key)
            if found is None or not found.alive:
                continue
            oldest_ms = found.index.sent_ms(found.head)
            if found.has_moved_in or oldest_ms + found.definition.retention_ms <= now_ms:
                self._host.submit(ExpireMessages(found.definition.queue_id, found.number), _ignore)
        del self._keys[-EXPIRY_PARTITIONS_PER_STEP:]


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
    ) -> None:
        self._host = host
        self._store = store
        self._chunks = chunks
        self._interval_s = interval_s
        self._records_max = records_max
        self._lock = asyncio.Lock()
        self.base_offset = store.newest_base_offset or 0
        self.written = 0
        self.failed = 0

    async def run(self) -> None:
        """Write snapshots for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._interval_s))
            host = self._host
            if not host.replica.is_leading or not host.records_since_snapshot:
                continue
            if (
                time.monotonic() - last >= self._interval_s
                or host.records_since_snapshot >= self._records_max
            ):
                last = time.monotonic()
                await self.write()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[int]:
        """Write a snapshot and keep its files as they are until the end of the block; gives its base offset."""
        async with self._lock:
            yield await self._write()

    async def write(self) -> int:
        """Write one snapshot now; return its base offset. What could not be written stays dirty."""
        async with self._lock:
            return await self._write()

    async def _write(self) -> int:
        host = self._host
        queues = host.replica.queues
        base_offset = host.replica.end_offset
        host.records_since_snapshot = 0
        removed, queues.removed = queues.removed, set()
        self._chunks.snapshot_begun()
        partitions: dict[int, Partition] = {}
        changed: dict[bytes, bytes] = {}
        until = time.perf_counter() + STEP_S
        for key, found in queues.dirty_partitions():
            if queues.partitions.get(key) is not found:
                continue
            changed[encode_key(key)] = encode_partition(found, host.replica.end_offset)
            partitions[key] = found
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + STEP_S
        try:
            await self._committed(host.replica.end_offset)
            meta = encode_meta(SnapshotMeta(host.replica.last_time_ms))
            gone = [encode_key(key) for key in removed if key not in queues.partitions]
            await asyncio.get_running_loop().run_in_executor(
                None, self._publish, base_offset, changed, gone, meta, host.replica.commit
            )
        except Exception as error:
            for found in partitions.values():
                found.dirty = True
            queues.removed |= removed
            host.records_since_snapshot += 1
            self.failed += 1
            log_event(log, logging.WARNING, "snapshot not written", error=str(error))
            if isinstance(error, OSError) and not is_full(error):
                host.stop(error)
            return self.base_offset
        self.base_offset = base_offset
        self.written += 1
        return base_offset

    def _publish(
        self,
        base_offset: int,
        changed: dict[bytes, bytes],
        removed: list[bytes],
        meta: bytes,
        durable_floor: int,
    ) -> None:
        self._chunks.sync()
        self._store.write(base_offset, changed, removed, meta, durable_floor=durable_floor)
        self._chunks.snapshot_published()

    @property
    def oldest_base_offset(self) -> int:
        """Below this no snapshot that may be loaded needs a record: what is dead there may go."""
        return self._store.oldest_base_offset or 0

    async def _committed(self, offset: int) -> None:
        """Wait until everything below `offset` is committed."""
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        while self._host.replica.commit < offset:
            if self._host.stopped is not None or time.monotonic() > deadline:
                raise TimeoutError(f"offset {offset} was not committed in {COMMIT_TIMEOUT_S} s")
            await asyncio.sleep(0.002)


class _JournalEnds(Exception):
    """The journal stops or is closed: what was begun is left."""


class Compaction:
    """Gives back the room of deleted messages: rewrites sealed segments that are mostly dead."""

    def __init__(
        self,
        host: ReplicaHost,
        snapshots: Snapshots,
        *,
        live_ratio: float,
        age_min_ms: int = COMPACT_AFTER_MS,
    ) -> None:
        self._host = host
        self._snapshots = snapshots
        self._live_ratio = live_ratio
        self._age_min_ms = age_min_ms
        self._look_again_at: dict[int, int] = {}
        self._closing = threading.Event()
        self.compacted_segments = 0
        self.freed_bytes = 0

    async def run(self) -> None:
        """Look for segments to rewrite for ever."""
        while True:
            await asyncio.sleep(5.0)
            if self._host.replica.is_leading and self._host.stopped is None:
                await self.step()

    def close(self) -> None:
        """Let a step that is under way end soon."""
        self._closing.set()

    async def step(self, *, younger_than_ms: int | None = None) -> int:
        """Judge each segment that is old enough and may have changed since; return how many were rewritten."""
        files = self._host.files
        loop = asyncio.get_running_loop()
        before_ms = self._host.clock.time_ms() - (
            self._age_min_ms if younger_than_ms is None else younger_than_ms
        )
        rewritten = 0
        for segment in files.segments():
            if (
                not segment.is_sealed
                or segment.end_offset > self._snapshots.oldest_base_offset
                or segment.last_time_ms > before_ms
            ):
                break
            gone = self._host.replica.queues.messages_gone
            if gone < self._look_again_at.get(segment.base_offset, 0):
                continue
            try:
                rewritten += await loop.run_in_executor(
                    None, partial(self._consider, segment, self._deletes_committed())
                )
            except _JournalEnds:
                return rewritten
            except (RecordUnreadable, JournalCorrupt) as error:
                log_event(log, logging.ERROR, "segment not compacted", error=str(error))
                self._look_again_at[segment.base_offset] = gone + 1_000_000
            except OSError as error:
                if not is_full(error):
                    self._host.stop(error)
                    return rewritten
                return rewritten
        return rewritten

    def _deletes_committed(self) -> Callable[[], None]:
        """Return what waits, on another thread, until every delete decided by then is durable.

        A message must not leave the disk before its delete is on it: a crash in between would bring back a
        message without a body.
        """
        host = self._host

        def wait() -> None:
            offset = host.replica.end_offset
            while host.replica.commit < offset:
                if host.stopped is not None or self._closing.wait(0.002):
                    raise _JournalEnds

        return wait

    def _consider(self, segment: SegmentInfo, wait_for_deletes: Callable[[], None]) -> int:
        """Count what lives in one segment and rewrite it when that is little. On a background thread."""
        files, queues = self._host.files, self._host.replica.queues
        live: set[int] = set()
        messages = 0
        for header, data in files.read_batches(segment.base_offset):
            if header.base_offset >= segment.end_offset or self._closing.is_set():
                break
            for row in iterate_rows(data, header):
                if row.type in MESSAGE_TYPES:
                    messages += 1
                    if queues.is_live(row):
                        live.add(row.offset)
        gone = queues.messages_gone
        if len(live) > self._live_ratio * max(1, messages):
            self._look_again_at[segment.base_offset] = gone + len(live) - int(self._live_ratio * messages)
            return 0
        if segment.is_compacted and len(live) * 2 > messages:
            self._look_again_at[segment.base_offset] = gone + max(1, len(live) // 2)
            return 0
        wait_for_deletes()
        self._look_again_at.pop(segment.base_offset, None)
        if not live and files.start_offset == segment.base_offset:
            files.drop_before(segment.end_offset)
            self.freed_bytes += segment.data_bytes
        else:
            result = files.compact(segment.base_offset, lambda row: row.offset in live)
            self.freed_bytes += result.bytes_before - result.bytes_after
            self._look_again_at[segment.base_offset] = gone + max(1, len(live) // 2)
        self.compacted_segments += 1
        log_event(
            log,
            logging.INFO,
            "segment compacted",
            journal=files.journal_id,
            offset=segment.base_offset,
            live_records=len(live),
        )
        return 1

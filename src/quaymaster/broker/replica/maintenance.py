"""What a leader does besides answering: expiry, snapshots, compaction. Each in small steps between requests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.broker.storage.chunk_store import ChunkStore
from quaymaster.broker.storage.disk import is_full
from quaymaster.broker.storage.journal_reading import SegmentInfo
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.broker.storage.snapshots import MANIFEST_VERSIONS, Blob, Draft, SnapshotStore
from quaymaster.broker.storage.state_store import (
    BLOB_VERSIONS,
    SnapshotMeta,
    encode_key,
    encode_meta,
    encode_partition,
)
from quaymaster.core.partition.expiry import may_find_expired
from quaymaster.core.partition.partition import Partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.recent_ids import DIGESTED_AT_ONCE
from quaymaster.core.values.commands import ExpireMessages
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.records import MESSAGE_TYPES, iterate_rows
from quaymaster.monitoring.logs import log_event

STEP_S = 0.004
"""How long a background step may hold the event loop."""

BLOBS_AT_ONCE_BYTES = 8 << 20
"""So many bytes of a snapshot's blobs are held before they are written; a single large one is held whole."""

JOINED_PIECES_MAX = 24
"""A blob of no more pieces is small."""

EXPIRY_STEP_S = 0.1
EXPIRY_ROUND_S = 1.0
"""One look at every partition takes at least so long."""
EXPIRY_PARTITIONS_PER_STEP = 1_000
"""So 100,000 partitions are looked at in ten seconds, for two hundredths of a core. Receives look for themselves."""
EMPTIED_PER_STEP = 16
"""Of what is gone (a purged queue of a million messages in flight) so much is freed in one step: pages of rows."""
COMMIT_TIMEOUT_S = 30.0
COMPACT_AFTER_MS = 600_000
"""Younger segments stay whole: the windows of deduplication and attempts point into them."""

COMPACTION_STEP_S = 5.0
COMPACTION_LOW_DISK_STEP_S = 1.0
SNAPSHOTS_TO_CATCH_UP = 2
"""Two are kept, and records below the older one may go."""
SCRAP_BYTES = 4 << 20
"""A rewritten segment smaller than this joins its neighbours when they are rewritten."""
SCRAPS_TO_MERGE = 8
"""So many scraps side by side are merged even when nothing in them is dead."""
MERGED_BYTES_MAX = 1 << 30
"""So many bytes of segments, before the rewrite, become one file at most."""
LOOK_AGAIN_AFTER_DAMAGE = 1_000_000

log = logging.getLogger(__name__)


class MessageExpiry:
    """Looks at every partition's oldest messages in turn."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        # A tuple, which collections of garbage look at only once; a list of 100,000 takes them milliseconds each time.
        self._keys: tuple[int, ...] = ()
        self._next = 0
        self._round_began = -EXPIRY_ROUND_S
        self._is_held = False

    async def run(self) -> None:
        """Go round for ever."""
        while True:
            await asyncio.sleep(EXPIRY_STEP_S)
            self._host.clock.follow_wall()
            queues = self._host.replica.queues
            self._tell_if_held(self._host.clock.expiry_is_held)
            queues.expiry_is_held = self._is_held
            queues.empty_some(EMPTIED_PER_STEP)
            if self._host.replica.is_leading:
                self.step()

    def _tell_if_held(self, is_held: bool) -> None:
        if is_held == self._is_held:
            return
        self._is_held = is_held
        clock = self._host.clock
        log_event(
            log,
            logging.WARNING if is_held else logging.INFO,
            "expiry held" if is_held else "expiry goes on",
            journal=self._host.files.journal_id,
            queue_time=clock.time_ms(),
            clocks_ahead_ms=clock.gap_ms,
            stepped_ms=clock.stepped_ms,
        )

    def step(self) -> None:
        """Look at the next few partitions, and propose an end to what has expired."""
        queues = self._host.replica.queues
        if self._next == len(self._keys):
            if time.monotonic() - self._round_began < EXPIRY_ROUND_S:
                return
            self._round_began = time.monotonic()
            self._keys, self._next = tuple(queues.partitions), 0
        now_ms = self._host.clock.time_ms()
        since_ms = queues.staged_since_ms(now_ms)
        until = time.perf_counter() + STEP_S
        for key in self._keys[self._next : self._next + EXPIRY_PARTITIONS_PER_STEP]:
            self._next += 1
            found = queues.partitions.get(key)
            if found is None or found.log is not None:  # a group's expire with their log's
                continue
            has_expired = found.staged is not None and bool(found.staged.expired(now_ms, since_ms))
            may_expire = found.alive > 0 and not queues.expiry_is_held
            if has_expired or (may_expire and may_find_expired(found, now_ms)):
                self._expire(found)
            if time.perf_counter() > until:  # heads had to be looked up in chunks on the disk
                break

    def _expire(self, found: Partition) -> None:
        """Propose an end to what has expired; where that was a part of it only, again and again."""
        before = found.head

        def answered(answer: object) -> None:
            if found.alive and found.head > before and not isinstance(answer, Exception):
                now_ms = self._host.clock.time_ms()
                if not found.has_moved_in and may_find_expired(found, now_ms):
                    self._expire(found)

        self._host.submit(ExpireMessages(found.definition.queue_id, found.number), answered)


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
        self.failed = 0

    async def run(self) -> None:
        """Write snapshots for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._interval_s))
            host = self._host
            if not host.replica.is_ready or not host.records_since_snapshot:
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
        """Write one snapshot to its end, also when whoever waits for it is cancelled; the caller holds the lock.

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
                None, self._publish, draft, base_offset, changed, gone, meta, self._sure_end
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
        return base_offset

    async def _encode_dirty(
        self, queues: QueueStates, draft: Draft, partitions: dict[int, Partition]
    ) -> dict[bytes, Blob]:
        """Encode what has changed, noted in `partitions`; return what was not added to the draft at once."""
        version = self._cell_format.version_of(BLOB_VERSIONS)
        changed: dict[bytes, Blob] = {}
        changed_bytes = 0
        step = _Step()
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
                step = _Step()
        return changed

    async def _settled(self, queues: QueueStates, found: Partition, step: _Step) -> None:
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

    @property
    def _sure_end(self) -> int:
        """Below it all is committed and durable here: others may have committed what this disk could still lose."""
        return min(self._host.replica.commit, self._host.replica.durable_end)

    async def _committed(self, offset: int, timeout_s: float) -> None:
        """Wait until everything below `offset` is committed, and durable here."""
        deadline = time.monotonic() + timeout_s
        while self._sure_end < offset:
            if self._host.stopped is not None or time.monotonic() > deadline:
                raise _NotCommitted(f"offset {offset} was not committed in {timeout_s} s")
            await asyncio.sleep(0.002)


class _Step:
    """A stretch of work on the event loop; others have their turn when it is over."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + STEP_S

    def is_over(self) -> bool:
        return time.perf_counter() > self._until

    async def pause(self) -> None:
        """Give others their turn, and begin the next step."""
        await asyncio.sleep(0)
        self._until = time.perf_counter() + STEP_S


class _NotCommitted(Exception):
    """The journal does not come on now (a full disk): a later snapshot may. No OSError: the files are sound."""


class _LogCut(Exception):
    """The log was cut since segments were judged: deletes that they were judged by may be gone."""


class _JournalEnds(Exception):
    """The journal stops or is closed: what was begun is left."""


class _Judged(NamedTuple):
    """What a look at one segment found: the offsets of live messages, and how many messages it holds at all."""

    segment: SegmentInfo
    live: set[int]
    messages: int


class Compaction:
    """Gives back the room of deleted messages: rewrites closed segments that are mostly dead.

    Neighbours that are rewritten become one file, and small files left by earlier rewrites join them, so a stuck
    message costs about its own bytes, not a file for every segment that came after it. A segment is looked at
    again only when so many messages are gone that it may have become mostly dead. Receives and other records that
    are no messages are dead once a snapshot has what they did.
    """

    def __init__(
        self,
        host: ReplicaHost,
        snapshots: Snapshots,
        *,
        live_ratio: float,
        age_min_ms: int = COMPACT_AFTER_MS,
        mend: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._host = host
        self._snapshots = snapshots
        self._mend = mend
        self._live_ratio = live_ratio
        self._age_min_ms = age_min_ms
        self._look_again_at: dict[int, int] = {}
        self._damaged: set[int] = set()
        """Segments, by their first offset, in which something could not be read."""
        self._closing = threading.Event()
        self._working: asyncio.Future[int] | None = None
        self.compacted_segments = 0
        self.freed_bytes = 0

    async def run(self) -> None:
        """Look for segments to rewrite for ever; at once, and at young ones too, while the disk is low."""
        looked_at = time.monotonic()
        room_made_for = (-1, -1)
        while True:
            await asyncio.sleep(COMPACTION_LOW_DISK_STEP_S)
            if not self._host.replica.is_ready or self._host.stopped is not None:
                continue
            if self._host.writer.disk_low and (may_be_dead := self._may_be_dead()) != room_made_for:
                room_made_for = may_be_dead
                await self.make_room()
            elif time.monotonic() - looked_at >= COMPACTION_STEP_S:
                looked_at = time.monotonic()
                await self.step()
            if self._damaged and self._mend is not None:
                await self._mend_what_is_damaged(self._mend)

    async def _mend_what_is_damaged(self, mend: Callable[[], Awaitable[bool]]) -> None:
        """Have other replicas' records put in the place of what cannot be read, and look at it once more then."""
        damaged, self._damaged = self._damaged, set()
        if await mend():
            for base_offset in damaged:
                self._look_again_at.pop(base_offset, None)

    def _may_be_dead(self) -> tuple[int, int]:
        """Return what changes when there may be more to give back: how many messages are gone, and up to where
        segments are closed. Receives alone fill segments, too, which have no message at all.
        """
        closed = [segment.end_offset for segment in self._host.files.segments() if segment.is_closed]
        return self._gone(), max(closed, default=0)

    async def make_room(self) -> int:
        """Give back all that can be: snapshots so that old records are not needed, then segments of any age.

        What a deduplication window points at may go with it: a retried send whose message was deleted already is
        then answered with an error instead of the ids it had. It is never stored twice.
        """
        for _ in range(SNAPSHOTS_TO_CATCH_UP):
            await self._snapshots.write()
        return await self.step(younger_than_ms=0)

    async def close(self) -> None:
        """Tell a rewrite that is under way to give up, and wait until it has: it must not outlive the lock."""
        self._closing.set()
        if self._working is not None:
            await asyncio.wait([self._working])
            if not self._working.cancelled():
                self._working.exception()  # nothing else looks at it once its step was cancelled

    async def step(self, *, younger_than_ms: int | None = None) -> int:
        """Judge each segment that is old enough and may have changed since; return how many were rewritten."""
        host = self._host
        self._forget_segments_that_are_gone()
        before_ms = host.clock.time_ms() - (self._age_min_ms if younger_than_ms is None else younger_than_ms)
        eligible = [
            segment
            for segment in host.files.segments()
            if segment.is_closed
            and segment.end_offset <= self._snapshots.oldest_base_offset
            and segment.last_time_ms <= before_ms
        ]
        self._working = asyncio.get_running_loop().run_in_executor(None, self._compact_all, eligible)
        try:
            return await asyncio.shield(self._working)
        except (_JournalEnds, _LogCut):
            return 0
        except OSError as error:
            if not is_full(error):
                host.stop(error)
            return 0

    def _forget_segments_that_are_gone(self) -> None:
        if self._look_again_at or self._damaged:
            there = {segment.base_offset for segment in self._host.files.segments()}
            self._look_again_at = {at: gone for at, gone in self._look_again_at.items() if at in there}
            self._damaged &= there

    # On a background thread.

    def _compact_all(self, segments: list[SegmentInfo]) -> int:
        rewritten = 0
        truncations = self._host.replica.log.truncations
        together: list[_Judged] = []
        for segment in segments:
            try:
                judged = self._judge(segment)
            except (RecordUnreadable, JournalCorrupt) as error:
                log_event(log, logging.ERROR, "segment not compacted", error=str(error))
                self._look_again_at[segment.base_offset] = self._gone() + LOOK_AGAIN_AFTER_DAMAGE
                self._damaged.add(segment.base_offset)
                judged = None
            is_neighbour = not together or together[-1].segment.end_offset == segment.base_offset
            if judged is not None and is_neighbour and _bytes_of([*together, judged]) <= MERGED_BYTES_MAX:
                together.append(judged)
                continue
            rewritten += self._rewrite(together, truncations)
            together = [judged] if judged is not None else []
        return rewritten + self._rewrite(together, truncations)

    def _gone(self) -> int:
        return self._host.replica.queues.messages_gone

    def _judge(self, segment: SegmentInfo) -> _Judged | None:
        """Return what a segment holds when that is little enough to rewrite it, else None."""
        is_scrap = segment.is_compacted and segment.data_bytes < SCRAP_BYTES
        gone = self._gone()
        if gone < self._look_again_at.get(segment.base_offset, 0) and not is_scrap:
            return None
        files, queues = self._host.files, self._host.replica.queues
        live: set[int] = set()
        messages = live_bytes = 0
        for header, data in files.read_batches(segment.base_offset):
            if self._closing.is_set():
                raise _JournalEnds
            if header.base_offset >= segment.end_offset:
                break
            for row in iterate_rows(data, header):
                if row.type in MESSAGE_TYPES:
                    messages += 1
                    if queues.is_live(row):
                        live.add(row.offset)
                        live_bytes += row.length
        enough = int(self._live_ratio * messages)
        # A few messages that live between many receives are little, too.
        is_little = len(live) <= enough or live_bytes <= self._live_ratio * segment.data_bytes
        if not is_little and not is_scrap:
            self._look_again_at[segment.base_offset] = gone + len(live) - enough
            return None
        return _Judged(segment, live, messages)

    def _rewrite(self, together: list[_Judged], truncations: int) -> int:
        """Make one file of neighbours, or none at all; return how many segments that took the place of.

        `truncations`: how often the log had been cut when they were judged.
        """
        if not together:
            return 0
        files = self._host.files
        first, last = together[0].segment, together[-1].segment
        live = set[int]().union(*(judged.live for judged in together))
        is_at_start = files.start_offset == first.base_offset
        fresh = [judged for judged in together if not judged.segment.is_compacted]
        if not fresh and not (not live and is_at_start) and len(together) < SCRAPS_TO_MERGE:
            dead = sum(judged.messages for judged in together) - len(live)
            if dead <= len(live):
                return 0  # scraps that are still mostly alive: nothing to win
        self._wait_for_deletes(truncations)
        if not live and is_at_start:
            files.drop_before(last.end_offset)
            self.freed_bytes += _bytes_of(together)
        else:
            result = files.compact(
                first.base_offset, lambda row: row.offset in live, last_base_offset=last.base_offset
            )
            self.freed_bytes += result.bytes_before - result.bytes_after
            self._look_again_at[first.base_offset] = self._gone() + max(1, len(live) // 2)
        self.compacted_segments += len(together)
        log_event(
            log,
            logging.INFO,
            "segments compacted",
            journal=files.journal_id,
            offset=first.base_offset,
            segments=len(together),
            live_records=len(live),
        )
        return len(together)

    def _wait_for_deletes(self, truncations: int) -> None:
        """Wait until every delete decided by now is durable.

        A message must not leave the disk before its delete is on it: a crash in between would bring back a
        message without a body. So would a new leader that has no such delete: once the log is cut, what was judged
        by queues that ran ahead of it counts for nothing.
        """
        host = self._host
        offset = host.replica.end_offset
        while host.replica.commit < offset:
            if host.stopped is not None or self._closing.wait(0.002):
                raise _JournalEnds
        if host.replica.log.truncations != truncations:
            raise _LogCut


def _bytes_of(together: list[_Judged]) -> int:
    return sum(judged.segment.data_bytes for judged in together)

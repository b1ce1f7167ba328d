"""Segments in which little is alive are rewritten without the rest."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from quaymaster.broker.replica.maintenance.snapshots import Snapshots
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.broker.storage.disk import is_full
from quaymaster.broker.storage.journal_reading import SegmentInfo
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.broker.storage.segments import RecordUnreadable
from quaymaster.core.values.records import HOLDING_TYPES, iterate_rows
from quaymaster.monitoring.logs import log_event

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
                if row.type in HOLDING_TYPES:
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

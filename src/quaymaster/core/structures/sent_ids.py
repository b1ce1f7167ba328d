"""The ids by which a partition finds messages that were sent to it before: of deduplication, and of retried sends."""

from __future__ import annotations

from pyroaring import BitMap

from quaymaster.core.structures.id_limits import IdLimits
from quaymaster.core.structures.recent_ids import RecentIds

DEDUP_WINDOW_MS = 300_000


class SentIds:
    """Ids of messages that were stored lately, with the offsets of their records. There are none before the first."""

    __slots__ = ("_limits", "_retry_window_ms", "dedup", "retries")

    def __init__(self, retry_window_ms: int, limits: IdLimits) -> None:
        self._retry_window_ms = retry_window_ms
        self._limits = limits
        self.dedup: RecentIds | None = None
        self.retries: RecentIds | None = None

    def find(self, dedup: bytes | None, retry: bytes | None, now_ms: int) -> int | None:
        """Return the offset of the record that stored the same message within the window, or None."""
        if dedup is not None and self.dedup is not None:
            offset = self.dedup.find(dedup, now_ms)
            if offset is not None:
                return offset
        if retry is not None and self.retries is not None:
            return self.retries.find(retry, now_ms)
        return None

    def note(self, dedup: bytes | None, retry: bytes | None, offset: int, time_ms: int) -> None:
        """A message was stored."""
        if dedup is not None:
            if self.dedup is None:
                self.dedup = RecentIds(DEDUP_WINDOW_MS)
            self.dedup.add(dedup, offset, time_ms)
        if retry is not None:
            if self.retries is None:
                self.retries = RecentIds(self._retry_window_ms, self._limits.retry_ids_max)
            self.retries.add(retry, offset, time_ms)

    def note_run(self, dedups: bytes, offset: int, time_ms: int) -> None:
        """Messages with deduplication ids were stored at consecutive offsets."""
        if self.dedup is None:
            self.dedup = RecentIds(DEDUP_WINDOW_MS)
        self.dedup.add_run(dedups, offset, time_ms)

    def dedup_tops(self) -> BitMap | None:
        """Return the first bits of all deduplication ids that may be known, None while they are not in order yet."""
        return BitMap() if self.dedup is None else self.dedup.tops()

    def forget(self) -> None:
        """What was sent before is no longer known."""
        self.dedup = None
        self.retries = None

    def load_dedup(self, data: bytes) -> None:
        """Take the deduplication ids of a snapshot."""
        self.dedup = RecentIds.from_bytes(data, DEDUP_WINDOW_MS)

    def load_retries(self, data: bytes) -> None:
        """Take the ids of retried sends of a snapshot."""
        self.retries = RecentIds.from_bytes(data, self._retry_window_ms, self._limits.retry_ids_max)

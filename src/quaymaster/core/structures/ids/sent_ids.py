"""The ids by which a partition finds messages that were sent to it before: of deduplication, and of retried sends.

Ids of short windows are found by the offsets of their records, which are kept for longer than that. Ids of longer ones
are stored with their messages (`core/structures/ids/kept_ids`). A queue whose window was changed may have both for a
while: those of a short one are known for that, the others for the window of now.
"""

from __future__ import annotations

from pyroaring import BitMap

from quaymaster.core.structures.ids.id_limits import IdLimits
from quaymaster.core.structures.ids.kept_ids import KeptIds, KeptMessage
from quaymaster.core.structures.ids.recent_ids import RecentIds

DEDUP_WINDOW_MS = 300_000
"""For so long records are sure to be there: windows that are not longer need nothing else."""


class SentIds:
    """Ids of messages that were stored lately. There are none before the first."""

    __slots__ = ("_limits", "_retry_window_ms", "_window_ms", "dedup", "keeps_messages", "kept", "retries")

    def __init__(self, retry_window_ms: int, limits: IdLimits, window_ms: int = DEDUP_WINDOW_MS) -> None:
        self._retry_window_ms = retry_window_ms
        self._limits = limits
        self._window_ms = window_ms
        self.keeps_messages = window_ms > DEDUP_WINDOW_MS
        """Whether deduplication ids are stored with their messages now: by `keep`, not by `note`."""
        self.dedup: RecentIds | None = None
        self.kept: KeptIds | None = None
        self.retries: RecentIds | None = None

    def set_window(self, window_ms: int) -> None:
        """The queue's window is so long from now on."""
        self._window_ms = window_ms
        self.keeps_messages = window_ms > DEDUP_WINDOW_MS
        if self.kept is not None:
            self.kept.set_window(window_ms)

    def find(self, dedup: bytes | None, retry: bytes | None, now_ms: int) -> int | KeptMessage | None:
        """Return what stored the same message within the window, its record's offset or itself; or None."""
        if dedup is not None:
            if self.kept is not None:
                kept = self.kept.find(dedup, now_ms)
                if kept is not None:
                    return kept
            if self.dedup is not None:
                offset = self.dedup.find(dedup, now_ms)
                if offset is not None:
                    return offset
        if retry is not None and self.retries is not None:
            return self.retries.find(retry, now_ms)
        return None

    def has_room(self, dedups: list[bytes], now_ms: int) -> bool:
        """Return whether so many of these ids as are new may be kept."""
        if self.kept is None:
            return len(dedups) <= self._limits.dedup_ids_max
        room = self._limits.dedup_ids_max - self.kept.live(now_ms)
        return len(dedups) <= room or sum(self.find(dedup, None, now_ms) is None for dedup in dedups) <= room

    def note(self, dedup: bytes | None, retry: bytes | None, offset: int, time_ms: int) -> None:
        """A message was stored."""
        if dedup is not None:
            if self.dedup is None:
                self.dedup = RecentIds(DEDUP_WINDOW_MS)
            self.dedup.add(dedup, offset, time_ms)
            if self.kept is not None and not self.kept.live(time_ms):
                self.kept = None  # the window was longer once
        if retry is not None:
            if self.retries is None:
                self.retries = RecentIds(self._retry_window_ms, self._limits.retry_ids_max)
            self.retries.add(retry, offset, time_ms)

    def keep(self, dedup: bytes, message: KeptMessage, time_ms: int) -> None:
        """A message was stored while the window is long."""
        if self.kept is None:
            self.kept = KeptIds(self._window_ms)
        self.kept.add(dedup, message, time_ms)

    def note_run(self, dedups: bytes, offset: int, time_ms: int) -> None:
        """Messages with deduplication ids were stored at consecutive offsets."""
        if self.dedup is None:
            self.dedup = RecentIds(DEDUP_WINDOW_MS)
        self.dedup.add_run(dedups, offset, time_ms)

    def dedup_tops(self) -> BitMap | None:
        """Return the first bits of all deduplication ids that may be known, None while they are not in order yet."""
        kept = BitMap() if self.kept is None else self.kept.tops()
        if self.dedup is None:
            return kept
        tops = self.dedup.tops()
        return None if tops is None else kept | tops

    def forget(self) -> None:
        """What was sent before is no longer known."""
        self.dedup = None
        self.kept = None
        self.retries = None

    def load_dedup(self, data: bytes) -> None:
        """Take the deduplication ids of a snapshot."""
        self.dedup = RecentIds.from_bytes(data, DEDUP_WINDOW_MS)

    def load_kept(self, ids: bytes, messages: bytes) -> None:
        """Take those of a snapshot that are stored with their messages."""
        self.kept = KeptIds.from_bytes(ids, messages, self._window_ms)

    def load_retries(self, data: bytes) -> None:
        """Take the ids of retried sends of a snapshot."""
        self.retries = RecentIds.from_bytes(data, self._retry_window_ms, self._limits.retry_ids_max)

"""The body cache: the newest batches as they were written, up to a budget of bytes.

A message in it costs nothing but its place in its batch, and nothing is copied when it is sent. What was evicted
is read back from the segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from quaymaster.core.records import Batch, record_at

TRIM_BATCHES = 1_024


class BodyCache:
    """Recent batches by base offset."""

    __slots__ = ("_base_offsets", "_batches", "_first", "bytes_max", "hits", "misses", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._base_offsets: list[int] = []
        self._batches: list[bytes] = []
        self._first = 0

    def add(self, batch: Batch) -> None:
        """Keep a batch that was just handed to the writer; the oldest ones make room for it."""
        self._base_offsets.append(batch.base_offset)
        self._batches.append(batch.data)
        self.size_bytes += len(batch.data)
        while self.size_bytes > self.bytes_max and self._first < len(self._batches) - 1:
            self.size_bytes -= len(self._batches[self._first])
            self._batches[self._first] = b""
            self._first += 1
        if self._first >= TRIM_BATCHES and 2 * self._first > len(self._batches):
            del self._base_offsets[: self._first]
            del self._batches[: self._first]
            self._first = 0

    def get(self, offset: int) -> tuple[int, int, int, bytes] | None:
        """Return (record type, flags, sequence, payload) of a record, None when it is no longer here."""
        base_offsets = self._base_offsets
        at = bisect_right(base_offsets, offset) - 1
        if at < self._first:
            self.misses += 1
            return None
        self.hits += 1
        return record_at(self._batches[at], offset - base_offsets[at])

    def cut(self, end: int) -> None:
        """Forget the batches that begin at `end` or behind it: the journal was cut there."""
        at = bisect_left(self._base_offsets, end)
        self.size_bytes -= sum([len(data) for data in self._batches[at:]])
        del self._base_offsets[at:], self._batches[at:]
        self._first = min(self._first, at)

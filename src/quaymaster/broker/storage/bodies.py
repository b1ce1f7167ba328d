"""The body cache: the newest batches as they were written, up to a bound on bytes that all journals share.

A message in it costs nothing but its place in its batch, and nothing is copied when it is sent. What was evicted
is read back from the segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress, count, islice
from operator import gt
from typing import TypeVar

from quaymaster.core.queues.record_payloads import MOVE_HEAD_BYTES
from quaymaster.core.structures.shared_bytes import SharedBytes
from quaymaster.core.values.messages import prefix_bytes
from quaymaster.core.values.records import Batch, RecordType, payload_places, record_at

TRIM_BATCHES = 1_024

Bytes = TypeVar("Bytes", bytes, memoryview)


class BodyCache:
    """Recent batches by base offset; the newest one is always kept."""

    __slots__ = ("_base_offsets", "_batches", "_first", "_memory", "hits", "misses", "size_bytes")

    def __init__(self, memory: SharedBytes) -> None:
        self._memory = memory
        memory.join(self)
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
        self._memory.add(self, len(batch.data))
        if self._first >= TRIM_BATCHES and 2 * self._first > len(self._batches):
            del self._base_offsets[: self._first]
            del self._batches[: self._first]
            self._first = 0

    def forget_oldest(self) -> bool:
        """See `Keeper`."""
        if self._first >= len(self._batches) - 1:
            return False
        size = len(self._batches[self._first])
        self.size_bytes -= size
        self._batches[self._first] = b""
        self._first += 1
        self._memory.drop(size)
        return True

    def close(self) -> None:
        """Leave the memory to the other journals; what still comes is not kept."""
        self._memory = self._memory.without(self)

    def get(self, offset: int) -> tuple[int, int, int, bytes] | None:
        """Return (record type, flags, sequence, payload) of a record, None when it is no longer here."""
        base_offsets = self._base_offsets
        at = bisect_right(base_offsets, offset) - 1
        if at < self._first:
            self.misses += 1
            return None
        self.hits += 1
        return record_at(self._batches[at], offset - base_offsets[at])

    def take_run(self, offsets: Sequence[int], messages: list[bytes], bytes_max: int) -> int:
        """Append the messages of `offsets` behind those that are in `messages` already, while they are here.

        A message that would go beyond `bytes_max` ends it, but there is at least one. Returns how much of `bytes_max`
        is left; 0 when it ended so.
        """
        for stop in (*_falls(offsets), len(offsets)):
            if stop > len(messages):
                bytes_max = self._take_ascending(offsets, stop, messages, bytes_max)
                if len(messages) < stop:
                    break
        return bytes_max

    def _take_ascending(
        self, offsets: Sequence[int], stop: int, messages: list[bytes], bytes_max: int
    ) -> int:
        """Do so up to an index; until there the offsets ascend."""
        at = len(messages)
        bases = self._base_offsets
        while at < stop:
            number = bisect_right(bases, offsets[at]) - 1
            if number < self._first:
                break
            base, data = bases[number], self._batches[number]
            last = bisect_left(offsets, bases[number + 1], at, stop) if number + 1 < len(bases) else stop
            rows = [offset - base for offset in offsets[at:last]]
            for record_type, flags, start, end in payload_places(data, rows):
                start += _SKIPPED[record_type == _MOVE][flags & 7]
                bytes_max -= end - start
                if bytes_max < 0 and messages:
                    return 0
                messages.append(data[start:end])
            at = last
        return max(bytes_max, 0)

    def cut(self, end: int) -> None:
        """Forget the batches that begin at `end` or behind it: the journal was cut there."""
        at = bisect_left(self._base_offsets, end)
        size = sum([len(data) for data in self._batches[at:]])
        self.size_bytes -= size
        self._memory.drop(size)
        del self._base_offsets[at:], self._batches[at:]
        self._first = min(self._first, at)


def _falls(offsets: Sequence[int]) -> list[int]:
    """Return the indexes at which an offset is below the one before: there another stretch that was staged begins."""
    return list(compress(count(1), map(gt, offsets, islice(offsets, 1, None))))


_MOVE = int(RecordType.MOVE)
_PREFIXES = tuple(prefix_bytes(flags) for flags in range(8))
_SKIPPED = (_PREFIXES, tuple(MOVE_HEAD_BYTES + size for size in _PREFIXES))


def message_in(record_type: int, flags: int, payload: Bytes) -> Bytes:
    """Return the message that a SEND or MOVE record holds, in its move wrapper if it has one."""
    return payload[_SKIPPED[record_type == _MOVE][flags & 7] :]

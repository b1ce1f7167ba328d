"""How many bytes a log-retained partition holds, by stretches of messages: what retention by size goes by.

A stretch ends when it has so many messages, or so many bytes. Where stretches begin follows from the journal's records,
so that it is the same on all replicas. Of a log of a thousand million messages this takes four megabytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate

import msgspec

STRETCH_MESSAGES = 4_096
STRETCH_BYTES = 8 << 20
RUN_MESSAGES = 256
"""So many are added up at once: few against a stretch, so that large messages are not added up over and over."""


class LogState(msgspec.Struct, array_like=True):
    """What a snapshot says of a log besides. The order of the fields is a format."""

    firsts: bytes
    sizes: bytes
    last_due_ms: int


class LogSizes:
    """The stretches of one partition, and when the last delay of a message in it ends."""

    __slots__ = ("_firsts", "_sizes", "last_due_ms", "total_bytes")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._sizes = array("Q")
        self.total_bytes = 0
        self.last_due_ms = 0
        """Behind it no message is delayed."""

    def add(self, sequence: int, payload_bytes: int) -> None:
        """A message was stored."""
        self._begin_where_full(sequence)
        self._sizes[-1] += payload_bytes
        self.total_bytes += payload_bytes

    def add_run(self, sequence: int, payload_bytes: array[int]) -> None:
        """Messages were stored, from this number on. It is what `add` makes of each, hundreds at a time."""
        done, count = 0, len(payload_bytes)
        while done < count:
            self._begin_where_full(sequence + done)
            room = STRETCH_MESSAGES - (sequence + done - self._firsts[-1])
            some = payload_bytes[done : done + min(room, RUN_MESSAGES)]
            added, wanted = sum(some), STRETCH_BYTES - self._sizes[-1]
            if added >= wanted:  # the stretch ends with the message that fills it
                some = some[: bisect_left(list(accumulate(some)), wanted) + 1]
                added = sum(some)
            self._sizes[-1] += added
            self.total_bytes += added
            done += len(some)

    def _begin_where_full(self, sequence: int) -> None:
        firsts, sizes = self._firsts, self._sizes
        if not firsts or sizes[-1] >= STRETCH_BYTES or sequence - firsts[-1] >= STRETCH_MESSAGES:
            firsts.append(sequence)
            sizes.append(0)

    def drop_below(self, sequence: int) -> None:
        """Messages below are gone; a stretch counts whole until its last message is."""
        firsts = self._firsts
        gone = 0
        while gone + 1 < len(firsts) and firsts[gone + 1] <= sequence:
            gone += 1
        self._drop(gone)

    def clear(self) -> None:
        """All messages are gone."""
        self._drop(len(self._firsts))

    def first_within(self, bytes_max: int) -> int:
        """Return below which sequence number whole stretches may go so that no fewer than `bytes_max` bytes stay.

        0: none may. The newest stretch always stays.
        """
        kept = self.total_bytes
        first = 0
        for at in range(len(self._firsts) - 1):
            kept -= self._sizes[at]
            if kept < bytes_max:
                break
            first = self._firsts[at + 1]
        return first

    def state(self) -> LogState:
        """Return everything as it is now, for a snapshot."""
        return LogState(self._firsts.tobytes(), self._sizes.tobytes(), self.last_due_ms)

    @classmethod
    def of_state(cls, state: LogState) -> LogSizes:
        """Rebuild from `state`."""
        sizes = cls()
        sizes._firsts.frombytes(state.firsts)
        sizes._sizes.frombytes(state.sizes)
        sizes.total_bytes = sum(sizes._sizes)
        sizes.last_due_ms = state.last_due_ms
        return sizes

    def content(self) -> list[object]:
        """Return what a hash of the state is taken of."""
        return [list(self._firsts), list(self._sizes), self.last_due_ms]

    def _drop(self, count: int) -> None:
        self.total_bytes -= sum(self._sizes[:count])
        del self._firsts[:count], self._sizes[:count]

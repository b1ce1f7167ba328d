"""Which partitions the commands of a leader's turns concern, and what they cost: counted for one window at a time.

    turn begins ─▶ begin ─▶ note(command) for each, as it was decided ─▶ … ─▶ take, by who reports the load

Only partitions of the window have counters, so their number is bounded by what was asked in it, and by COUNTED_MAX.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

from quaymaster.core.partition.partition_counters import PartitionCounters
from quaymaster.core.values.commands.messages import ALL_PARTITIONS, Send
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.commands.unions import Command, InternalCommand

COUNTED_MAX: Final = 10_000
"""With more partitions in a window the counts start again: then none of them is a large part of the load."""


class PartitionLoads:
    """The counters of one journal's partitions, by queue id and number as `partition_key` has them."""

    __slots__ = ("_clock", "_counters", "_since")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._counters: dict[int, PartitionCounters] = {}
        self._since = 0.0

    def begin(self) -> None:
        """A turn begins to decide commands."""
        self._since = self._clock()

    def note(self, command: Command | InternalCommand) -> None:
        """A command was decided, and took all the time since the one before it."""
        now = self._clock()
        seconds, self._since = now - self._since, now
        partition = getattr(command, "partition", ALL_PARTITIONS)
        if partition == ALL_PARTITIONS:
            return  # of a whole queue, or of none
        key = command.queue_id << 16 | partition  # type: ignore[union-attr]  # what has a partition has a queue
        counters = self._counters.get(key)
        if counters is None:
            if len(self._counters) >= COUNTED_MAX:
                self._counters.clear()
            counters = self._counters[key] = PartitionCounters()
        if type(command) is Send or type(command) is StageMessages:
            # Messages come without their keys. Those of one command are of one partition; a group's all have one key.
            messages = command.messages
            counters.note(seconds, messages, messages[0].group if messages else 0)
        else:
            counters.note(seconds)

    def take(self) -> dict[int, PartitionCounters]:
        """Return what was counted since the last time, and start again."""
        counted, self._counters = self._counters, {}
        return counted

"""Messages of all partitions of a journal, added up: a partition that has changed replaces its share of the sums."""

from __future__ import annotations

from typing import Final, NamedTuple

from quaymaster.core.structures.oldest_time import OldestTime


class Share(NamedTuple):
    """What a partition adds to the sums of its journal."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    staged: int = 0
    oldest_s: int = 0
    """When its oldest message was sent; 0: it has none."""
    kept: int = 0
    """Messages whose records it keeps; those of a consumer group are its log's."""


NO_SHARE: Final = Share()


class MessageSums:
    """Messages of all partitions of a journal, each as it was last settled; those of a log count in its groups."""

    __slots__ = ("delayed", "in_flight", "kept", "oldest", "staged", "visible")

    def __init__(self) -> None:
        self.visible = 0
        self.in_flight = 0
        self.delayed = 0
        self.kept = 0
        """Messages whose records are kept, those of logs included."""
        self.staged = 0
        """Messages that transactions have staged and not committed."""
        self.oldest = OldestTime()
        """When the oldest message of each partition was sent, in seconds of queue time."""

    def replace(self, before: Share, after: Share) -> None:
        """A partition's part is another one now."""
        self.visible += after.visible - before.visible
        self.in_flight += after.in_flight - before.in_flight
        self.delayed += after.delayed - before.delayed
        self.staged += after.staged - before.staged
        self.kept += after.kept - before.kept
        if after.oldest_s != before.oldest_s:
            if after.oldest_s:
                self.oldest.add(after.oldest_s)
            if before.oldest_s:
                self.oldest.remove(before.oldest_s)

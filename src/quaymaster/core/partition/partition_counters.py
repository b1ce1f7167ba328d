"""What a partition was asked in a stretch of time, as far as its load goes: made when it is first used.

Counts that show, not counts that bill: they are of one leader's one stretch, and nothing depends on them but where load
goes (`core/cell/load_choice`, `core/cell/partition_plans`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quaymaster.core.values.commands.messages import NewMessage

KEY_COUNTERS: Final = 16
_KEY_SHIFT: Final = 60
"""What is left of a key's 64 bits tells its counter: the first 4."""


class PartitionCounters:
    """Commands, the messages and bytes that they stored, the time for deciding them, and messages by their key."""

    __slots__ = ("by_key", "bytes", "commands", "messages", "seconds")

    def __init__(self) -> None:
        self.commands = 0
        self.messages = 0
        self.bytes = 0
        self.seconds = 0.0
        self.by_key = [0] * KEY_COUNTERS
        """Stored messages by the first 4 bits of their key."""

    def note(self, seconds: float, stored: Sequence[NewMessage] = (), key: int = 0) -> None:
        """Count a command that took so long, and the messages that it stores, all of the 64-bit `key`."""
        self.commands += 1
        self.seconds += seconds
        if stored:
            self.messages += len(stored)
            self.bytes += sum([len(message.payload) for message in stored])
            self.by_key[key >> _KEY_SHIFT & 15] += len(stored)

    def add(self, other: PartitionCounters) -> None:
        """Count what others counted as well: a consumer group's work is its log's."""
        self.commands += other.commands
        self.messages += other.messages
        self.bytes += other.bytes
        self.seconds += other.seconds
        self.by_key = [one + more for one, more in zip(self.by_key, other.by_key, strict=True)]

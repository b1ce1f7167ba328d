"""What a broker has to do, as it tells the managers of its cell."""

from __future__ import annotations

from typing import Final

import msgspec

BUSIEST_MAX: Final = 16
"""A broker tells of so many partitions."""


class PartitionLoad(msgspec.Struct, frozen=True):
    """One of the partitions with the most work on a broker, as its journal's leader there counted it.

    `share`: of the loop's time; its part of the journal's, by what deciding its commands took. The rates are of
    commands, and of the messages and bytes that they stored. `by_key`: the messages of the window by their key's first
    4 bits.
    """

    queue_id: int
    partition: int
    journal: int
    share: float
    commands_per_s: float = 0.0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    by_key: tuple[int, ...] = ()


class BrokerLoad(msgspec.Struct, frozen=True):
    """What a broker has to do, over a window of a quarter of a second or more.

    `cpu_share`: how much of the time (0..1) the event loop's thread had a processor. `records_per_s`: that all journals
    took. `journals`: how much of the time (0..1) the event loop worked for each replica, led or followed, by journal;
    what it did before it knew for which journal, as reading calls, is in none of them. `partitions`: the busiest ones
    of the journals that it leads, the busiest first. `log_bytes` and `long_polls` are as of now.
    """

    cpu_share: float = 0.0
    records_per_s: float = 0.0
    log_bytes: int = 0
    long_polls: int = 0
    journals: dict[int, float] = {}
    partitions: tuple[PartitionLoad, ...] = ()

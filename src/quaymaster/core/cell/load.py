"""What a broker has to do, as it tells the managers of its cell, and as they see it over time."""

from __future__ import annotations

from heapq import nlargest
from math import exp
from typing import Final

import msgspec

BUSIEST_MAX: Final = 16
"""A broker tells of so many partitions."""
BUSY_SHARE: Final = 0.7
"""A broker above this gives a journal away, once it has been for `busy_ms`."""
CALM_SHARE: Final = 0.6
"""A broker that takes one for it stays below this."""
SMOOTHING_MS: Final = 5_000
"""A load of so long ago counts for a third."""
FORGOTTEN_SHARE: Final = 0.001
"""A partition that is not among the busiest any more is left out once its smoothed share is below."""


class PartitionLoad(msgspec.Struct, frozen=True):
    """One of the partitions with the most work on a broker, as its journal's leader there counted it.

    `share`: of the loop's time; its part of the journal's, by what deciding its commands took. A log's partition has
    the commands of its consumer groups, too; older brokers name those by themselves. The rates are of commands, and of
    the messages and bytes that they stored. `by_key`: the messages of the window by their key's first
    4 bits. `has_sinks`: whether a sink committed to the partition within the time that it remembers them; older brokers
    do not tell.
    """

    queue_id: int
    partition: int
    journal: int
    share: float
    commands_per_s: float = 0.0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    by_key: tuple[float, ...] = ()
    has_sinks: bool = True


class BrokerLoad(msgspec.Struct, frozen=True):
    """What a broker has to do, over a window of a quarter of a second or more.

    `cpu_share`: how much of the time (0..1) the event loop's thread had a processor. `records_per_s`: that all journals
    took. `journals`: how much of the time (0..1) the event loop worked for each replica, led or followed, by journal;
    what it did before it knew for which journal, as reading calls, is in none of them. `partitions`: the busiest
    open ones of the journals that it leads, the busiest first. `log_bytes` and `long_polls` are as of now.
    """

    cpu_share: float = 0.0
    records_per_s: float = 0.0
    log_bytes: int = 0
    long_polls: int = 0
    journals: dict[int, float] = {}
    partitions: tuple[PartitionLoad, ...] = ()


class LoadTrend:
    """What a broker's reports say together: its load smoothed over some seconds, and since when it is busy.

    It starts again when the broker leads other journals than before: what it had to do then tells nothing.
    """

    __slots__ = ("_at_ms", "_led", "_smooth", "busy_since_ms")

    def __init__(self) -> None:
        self.busy_since_ms: int | None = None
        """Since when the smoothed load is above BUSY_SHARE; None while it is not."""
        self._smooth: BrokerLoad | None = None
        self._at_ms = 0
        self._led: frozenset[int] = frozenset()

    def take(self, load: BrokerLoad, led: frozenset[int], at_ms: int) -> BrokerLoad:
        """Take the load that was reported at a time with the journals led then; return it smoothed."""
        if led != self._led:
            self._smooth, self.busy_since_ms, self._led = None, None, led
        known = self._smooth
        weight = 1.0 if known is None else 1.0 - exp(-max(0, at_ms - self._at_ms) / SMOOTHING_MS)
        if known is not None:
            load = msgspec.structs.replace(
                load,
                cpu_share=_between(known.cpu_share, load.cpu_share, weight),
                journals={
                    number: _between(known.journals.get(number, share), share, weight)
                    for number, share in load.journals.items()
                },
                partitions=_smooth_partitions(known.partitions, load.partitions, weight),
            )
        self._smooth, self._at_ms = load, at_ms
        if load.cpu_share <= BUSY_SHARE:
            self.busy_since_ms = None
        elif self.busy_since_ms is None:
            self.busy_since_ms = at_ms
        return load


def _between(before: float, now: float, weight: float) -> float:
    return before + (now - before) * weight


def _smooth_partitions(
    before: tuple[PartitionLoad, ...], now: tuple[PartitionLoad, ...], weight: float
) -> tuple[PartitionLoad, ...]:
    """Return the busiest partitions with shares and counters smoothed; one that is not named did nothing."""
    known = {(load.queue_id, load.partition): load for load in before}
    named = {(load.queue_id, load.partition): load for load in now}
    smooth = []
    for key in known | named:
        last = known.get(key) or _without_work(named[key])
        load = named.get(key) or _without_work(last)
        share = _between(last.share, load.share, weight)
        by_key = tuple(_between(old, new, weight) for old, new in zip(last.by_key, load.by_key, strict=False))
        smooth.append(msgspec.structs.replace(load, share=share, by_key=by_key))
    lasting = [load for load in smooth if load.share >= FORGOTTEN_SHARE]
    return tuple(nlargest(BUSIEST_MAX, lasting, key=lambda load: load.share))


def _without_work(load: PartitionLoad) -> PartitionLoad:
    return PartitionLoad(
        *(load.queue_id, load.partition, load.journal, 0.0),
        by_key=(0.0,) * len(load.by_key),
        has_sinks=load.has_sinks,
    )

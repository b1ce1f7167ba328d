"""How busy a broker is, measured: the loop's time for each replica, and the partitions with the most of it.

Several managers ask four times a second each. A window ends when the first one asks after WINDOW_S; until then, all are
told the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Final

from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.core.cell.load import BUSIEST_MAX, BrokerLoad, PartitionLoad
from quaymaster.core.partition.partition import Partition
from quaymaster.core.partition.partition_counters import PartitionCounters
from quaymaster.core.values.partition_tables import entry_of
from quaymaster.core.values.queues.partition_keys import partition_key, parts_of_key
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

WINDOW_S: Final = 0.25
LOOKED_AT_MAX: Final = 4 * BUSIEST_MAX
"""Among so many of a journal's busiest partitions open ones are looked for."""


class LoadMeter:
    """Belongs to the event loop's thread, whose time it measures."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._since = clock()
        self._cpu_since = cpu_clock()
        self._replicas: dict[int, tuple[ReplicaHost, float, int]] = {}
        """The hosts as the window began, with their work and the end of their log."""
        self._last = BrokerLoad()

    def measure(self, journals: Mapping[int, JournalService]) -> BrokerLoad:
        """Return the load over the last window; it ends now, if it is long enough."""
        now = self._clock()
        seconds = now - self._since
        if seconds < WINDOW_S:
            return self._last
        cpu = self._cpu_clock()
        shares: dict[int, float] = {}
        partitions: list[PartitionLoad] = []
        records = 0
        before, self._replicas = self._replicas, {}
        for number, journal in journals.items():
            host = journal.host
            end = host.files.end_offset
            known, worked_s, known_end = before.get(number, (host, 0.0, end))
            if known is not host:  # it was opened again
                worked_s, known_end = 0.0, end
            self._replicas[number] = host, host.worked_s, end
            shares[number] = (host.worked_s - worked_s) / seconds
            records += max(0, end - known_end)  # a log may be cut
            partitions += _partition_loads(number, host, shares[number], seconds)
        self._last = BrokerLoad(
            cpu_share=(cpu - self._cpu_since) / seconds,
            records_per_s=records / seconds,
            journals=shares,
            partitions=tuple(nlargest(BUSIEST_MAX, partitions, key=lambda load: load.share)),
        )
        self._since, self._cpu_since = now, cpu
        return self._last


def _partition_loads(number: int, host: ReplicaHost, share: float, seconds: float) -> list[PartitionLoad]:
    """Return what the busiest open partitions of a journal have of its share."""
    if host.loads is None:
        return []
    definitions = host.replica.queues.definitions
    counted = _with_groups(host.loads.take(), definitions)
    decided_s = sum(counters.seconds for counters in counted.values()) or 1.0
    loads = []
    for key, counters in nlargest(LOOKED_AT_MAX, counted.items(), key=lambda item: item[1].seconds):
        queue_id, partition = parts_of_key(key)
        if not _is_open(definitions.get(queue_id), partition):
            continue
        loads.append(
            PartitionLoad(
                queue_id,
                partition,
                number,
                share * counters.seconds / decided_s,
                counters.commands / seconds,
                counters.messages / seconds,
                counters.bytes / seconds,
                tuple(counters.by_key),
                has_sinks=_has_sinks(host.replica.queues.partitions.get(key)),
            )
        )
    return loads


def _with_groups(
    counted: dict[int, PartitionCounters], definitions: Mapping[int, QueueDefinition]
) -> dict[int, PartitionCounters]:
    """Return the counters with those of consumer groups among their logs': a change moves a log with its groups."""
    for key in list(counted):
        queue_id, number = parts_of_key(key)
        definition = definitions.get(queue_id)
        if definition is not None and definition.group_of:
            log_key = partition_key(definition.group_of, number)
            counters = counted.pop(key)
            counted.setdefault(log_key, PartitionCounters()).add(counters)
    return counted


def _is_open(definition: QueueDefinition | None, number: int) -> bool:
    """Tell whether a partition is open; what no table lists, as of a queue that is gone, is not."""
    entry = None if definition is None else entry_of(definition, number)
    return entry is not None and entry.state == "open"


def _has_sinks(partition: Partition | None) -> bool:
    """Tell whether a partition remembers commits of sinks."""
    staged = None if partition is None else partition.staged
    return staged is not None and bool(staged.sinks)

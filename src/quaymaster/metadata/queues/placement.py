"""Which journals take new queues: those of the cell that have, or had, a leader in service; which one takes a queue.

A queue and its dead-letter queue are best in one journal, where a message moves by one record. Which queues will belong
together is not known when they are made, but their names often tell: `related_names`.

A partition stays in its journal for life (`PartitionPlacement.journal_id`); the journal moves between brokers, and the
partition with it. So what is known may be some seconds old; but the first queues of a cell wait until it has its
journals, for else all of them would stay in the first one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heapreplace
from typing import Final

from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    decode_configuration,
    decode_registration,
    journal_of,
)
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.values.errors import Overloaded
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.partition_tables import in_state, spread_table
from quaymaster.core.values.queues.attributes import REDRIVE_POLICY, REPLICATION_MODE
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement, QueueDefinition
from quaymaster.core.values.queues.queue_names import FIFO_SUFFIX, is_fifo_name
from quaymaster.metadata.queues.known_queues import KnownQueues

DEAD_LETTER_MARKS: Final = (
    *("-dlq", "_dlq", "-dead-letter", "_dead_letter", "-deadletter", "-dead-letter-queue", "-dead-letters"),
    *("-dead", "_dead", "-failed", "_failed", "-failures", "-errors", "-error", "_error", "DLQ", "Dlq"),
)
"""What the name of a dead-letter queue usually ends with, behind the name of its source."""

PEERS_MAX: Final = 4
"""Partitions of a new queue with ReplicationMode=Peers, in as many journals, where the cell has so many."""

RETRY_S: Final = 0.5
FORMING_S: Final = 5.0
"""After its first journal was known, a cell is given so long to have one for each of its brokers."""


class CellJournals:
    """The cell's journals, as coordination tells of them. Call it for those that take new queues."""

    def __init__(self, store: Coordination, *, forming_s: float = FORMING_S) -> None:
        self._forming_s = forming_s
        self._led: set[int] = set()
        self._brokers: set[str] = set()
        self._first_led_s: float | None = None
        self._is_formed = False
        self._journal_watch = WatchedPrefix(store, JOURNALS, self._on_journal, retry_max_s=RETRY_S)
        self._broker_watch = WatchedPrefix(store, BROKERS, self._on_broker, retry_max_s=RETRY_S)

    def __call__(self) -> Sequence[int]:
        self._is_formed = self._is_formed or self._has_formed()
        return sorted(self._led) if self._is_formed else ()

    def start(self) -> None:
        """Begin to follow them."""
        self._journal_watch.start()
        self._broker_watch.start()

    async def close(self) -> None:
        """Stop."""
        await asyncio.gather(self._journal_watch.close(), self._broker_watch.close())

    def _has_formed(self) -> bool:
        """Whether the cell has as many journals as it has brokers, or had the time to make them."""
        if self._first_led_s is None:
            return False
        is_complete = self._broker_watch.listed.is_set() and len(self._led) >= len(self._brokers)
        return is_complete or time.monotonic() - self._first_led_s >= self._forming_s

    def _on_journal(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._led.discard(journal_of(key))
        elif _was_led(decode_configuration(value)):
            self._led.add(journal_of(key))
            self._first_led_s = time.monotonic() if self._first_led_s is None else self._first_led_s

    def _on_broker(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(BROKERS)
        if value is not None and decode_registration(value).state == "active":
            self._brokers.add(name)
        else:
            self._brokers.discard(name)


def choose_journal(
    queues: KnownQueues, journals: Sequence[int], account_id: str, name: str, attributes: Mapping[str, str]
) -> int:
    """Return a journal for a new queue: that of its dead-letter queue or source, if there seems to be one.

    Otherwise the one with the fewest partitions of those that take new queues. Overloaded, if none does.
    """
    if not journals:
        raise Overloaded("No journal takes new queues now.")
    policy = REDRIVE_POLICY.of(attributes)
    if policy is not None:
        target = queues.find(policy.target.account_id, policy.target.name)
        if target is not None:
            return _present_journal(target)
    for related in related_names(name):
        found = queues.find(account_id, related)
        if found is not None and _present_journal(found) in journals:
            return _present_journal(found)
    return min(journals, key=partial(_fill, queues))


def choose_partitions(
    queues: KnownQueues, journals: Sequence[int], account_id: str, name: str, attributes: Mapping[str, str]
) -> tuple[PartitionPlacement, ...]:
    """Return the partitions of a new queue. Overloaded, if no journal takes any.

    It has one, in the journal of `choose_journal`; with ReplicationMode=Peers one in each of several journals.
    """
    chosen = [choose_journal(queues, journals, account_id, name, attributes)]
    if REPLICATION_MODE.of(attributes):
        others = [journal_id for journal_id in journals if journal_id != chosen[0]]
        chosen += sorted(others, key=partial(_fill, queues))[: PEERS_MAX - 1]
    return spread_table(chosen)


def choose_journals(
    queues: KnownQueues,
    journals: Sequence[int],
    children: int,
    *,
    staying: Iterable[int] = (),
    avoided: Collection[int] = (),
) -> list[int]:
    """Return a journal for each new partition of a queue: each in another one, as far as there are so many.

    Journals with the fewest open partitions of the queue come first, of these the ones with the fewest partitions.
    `staying`: the journal of each partition that stays open. `avoided` ones are chosen only if no other takes new
    queues. Overloaded, if none does.
    """
    taking = [journal_id for journal_id in journals if journal_id not in avoided] or list(journals)
    if not taking:
        raise Overloaded("No journal takes new partitions now.")
    own = Counter(staying)
    loads = [(own[journal_id], *_fill(queues, journal_id)) for journal_id in taking]
    heapify(loads)
    chosen = []
    for _ in range(children):
        of_queue, load, journal_id = loads[0]
        chosen.append(journal_id)
        heapreplace(loads, (of_queue + 1, load + 1, journal_id))
    return chosen


def _fill(queues: KnownQueues, journal_id: int) -> tuple[int, int]:
    """Return what journals are chosen by: the one with the fewest partitions, of several the first."""
    return queues.partitions_in(journal_id), journal_id


def _present_journal(queue: QueueDefinition) -> int:
    """Return where a queue's new messages go, some of them at least."""
    return in_state(queue, "open")[0].journal_id


def related_names(name: str) -> list[str]:
    """Return the names of queues that a new queue probably shares messages with: source or dead-letter queue."""
    fifo = FIFO_SUFFIX if is_fifo_name(name) else ""
    stem = name.removesuffix(FIFO_SUFFIX)
    sources = [stem.removesuffix(mark) for mark in DEAD_LETTER_MARKS if stem.endswith(mark)]
    return [related + fifo for related in (*sources, *(stem + mark for mark in DEAD_LETTER_MARKS)) if related]


def _was_led(configuration: JournalConfiguration) -> bool:
    # Appointed again and not activated yet: it has been, and will be again.
    return configuration.activated or bool(configuration.previous_members)

"""The broker's metrics as samples: read when somebody scrapes, never counted twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from quaymaster.broker.broker import Broker
from quaymaster.broker.replica.clock import QueueClock
from quaymaster.broker.replica.elections import PHASES
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.partition.partition import Partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.replication.queue_time import say_held
from quaymaster.monitoring.metrics import Histogram, HistogramSample, Sample

QUEUES_AT_A_TIME = 1_000


def journal_samples(
    journals: Collection[JournalService], data: Path, *, per_queue: bool
) -> Iterable[Sample | None]:
    """Yield samples of the journals that a server leads here, caches, disk and queues, and None between many queues.

    States are as of each queue's last request.
    """
    hosts = [journal.host for journal in journals]
    segments = [segment for journal in journals for segment in journal.files.segments()]
    counters = [host.writer.counters for host in hosts]
    queues = [host.replica.queues for host in hosts]
    # One process leads its journals from its start (which waits for the activation) to its end.
    yield Sample("quaymaster_journal_leader_changes_total", len(hosts))
    are_durable = all(host.stopped is None and host.replica.is_leading for host in hosts)
    yield Sample("quaymaster_journal_durable_replicas", int(are_durable))
    yield from _of_clocks([host.clock for host in hosts])
    yield Sample("quaymaster_log_append_bytes_total", sum(one.appended_bytes for one in counters))
    yield Sample("quaymaster_log_append_records_total", sum(journal.records_appended for journal in journals))
    yield Sample("quaymaster_log_segments", len(segments))
    yield Sample("quaymaster_log_bytes", sum(segment.data_bytes for segment in segments))
    yield Sample("quaymaster_log_end_offset", sum(host.replica.end_offset for host in hosts))
    yield Sample("quaymaster_body_cache_bytes", sum(host.bodies.size_bytes for host in hosts))
    yield Sample("quaymaster_queues", sum(len(one.definitions) for one in queues))
    yield Sample("quaymaster_held_groups", sum(one.held_groups for one in queues))
    yield Sample("quaymaster_messages_redriven_total", sum(one.messages_moved for one in queues))
    yield Sample("quaymaster_messages_expired_total", sum(one.messages_expired for one in queues))
    disk = os.statvfs(data)
    yield Sample("quaymaster_disk_free_bytes", disk.f_bavail * disk.f_frsize)
    staged = 0
    if per_queue:
        for now_ms, partition in _partitions_of(hosts):
            if partition is None:
                yield None
                continue
            staged += _staged(partition)
            definition = partition.definition
            here = [one for one in queues if definition.queue_id in one.definitions]
            same_queue = [each for one in here for each in one.partitions_of(definition.queue_id)]
            if partition is not same_queue[0]:
                continue  # counted with the first
            labels = definition.account_id, definition.name
            states = [_states(each) for each in same_queue]
            for state in states[0]:
                yield Sample(
                    "quaymaster_queue_messages", sum(each[state] for each in states), (*labels, state)
                )
            oldest_s = max(_oldest_age_s(each, now_ms) for each in same_queue)
            yield Sample("quaymaster_queue_oldest_message_age_seconds", oldest_s, labels)
        yield Sample("quaymaster_staged_messages", staged)
        return
    totals = dict.fromkeys(("visible", "in_flight", "delayed"), 0)
    oldest_s = 0.0
    for now_ms, partition in _partitions_of(hosts):
        if partition is None:
            yield None
            continue
        staged += _staged(partition)
        if partition.alive and not partition.definition.is_log:  # its groups have what waits
            for state, number in _states(partition).items():
                totals[state] += number
            oldest_s = max(oldest_s, _oldest_age_s(partition, now_ms))
    for state, number in totals.items():
        yield Sample("quaymaster_queue_messages", number, (state,))
    yield Sample("quaymaster_queue_oldest_message_age_seconds", oldest_s)
    yield Sample("quaymaster_staged_messages", staged)


def broker_samples(broker: Broker, data: Path) -> Iterable[Sample | None]:
    """Yield samples of all journals of a broker together; of queues, those of the journals that it leads."""
    journals = list(broker.journals.values())
    led = [journal for journal in journals if journal.host.replica.is_leading]
    segments = [segment for journal in journals for segment in journal.files.segments()]
    yield Sample("quaymaster_journals", len(journals) - len(led), ("follower",))
    yield Sample("quaymaster_journals", len(led), ("leader",))
    rooms = Counter(journal.files.room for journal in journals)
    for room in DiskPressure:
        yield Sample("quaymaster_journals_by_room", rooms[room], (room.name.lower(),))
    yield Sample("quaymaster_journal_leader_changes_total", sum(journal.leaderships for journal in journals))
    yield Sample(
        "quaymaster_replication_lag_records",
        max((lag for journal in led for lag in journal.host.replica.log.lag_of().values()), default=0),
    )
    yield from _of_each_journal(journals)
    yield from _of_clocks([journal.host.clock for journal in led])
    counters = [journal.host.writer.counters for journal in journals]
    yield Sample("quaymaster_log_append_bytes_total", sum(one.appended_bytes for one in counters))
    yield Sample("quaymaster_log_append_records_total", sum(journal.records_appended for journal in journals))
    yield Sample("quaymaster_log_segments", len(segments))
    yield Sample("quaymaster_log_bytes", sum(segment.data_bytes for segment in segments))
    yield Sample("quaymaster_body_cache_bytes", sum(journal.host.bodies.size_bytes for journal in journals))
    yield Sample("quaymaster_queues", sum(len(journal.host.replica.queues.definitions) for journal in led))
    yield Sample("quaymaster_held_groups", sum(journal.host.replica.queues.held_groups for journal in led))
    disk = os.statvfs(data)
    yield Sample("quaymaster_disk_free_bytes", disk.f_bavail * disk.f_frsize)
    totals = dict.fromkeys(("visible", "in_flight", "delayed"), 0)
    staged = 0
    for journal in led:
        for partition in _some_at_a_time(journal.host.replica.queues.partitions):
            if partition is None:
                yield None
                continue
            staged += _staged(partition)
            if partition.alive and not partition.definition.is_log:  # its groups have what waits
                for state, number in _states(partition).items():
                    totals[state] += number
    for state, number in totals.items():
        yield Sample("quaymaster_queue_messages", number, (state,))
    yield Sample("quaymaster_staged_messages", staged)


def held_expiry(clocks: Mapping[int, QueueClock]) -> list[str]:
    """Return what an operator should know of journals, by number, in which nothing expires."""
    return [
        say_held(journal, clock.gap_ms, clock.stepped_ms)
        for journal, clock in sorted(clocks.items())
        if clock.expiry_is_held
    ]


def unlisted_partitions(journals: Mapping[int, QueueStates]) -> list[str]:
    """Return what an operator should know of partitions, in journals by number, that their queues do not list."""
    return [
        f"Journal {journal} has partition {number} of the queue {queues.definitions[queue_id].name}, which the queue "
        "does not list any more; it is kept, because it was used"
        for journal, queues in sorted(journals.items())
        for queue_id, numbers in sorted(queues.unlisted.items())
        for number in numbers
    ]


def _of_clocks(clocks: Iterable[QueueClock]) -> Iterator[Sample]:
    gaps_ms = [clock.gap_ms for clock in clocks]
    yield Sample("quaymaster_expiry_held_journals", sum(clock.expiry_is_held for clock in clocks))
    yield Sample("quaymaster_clock_ahead_seconds", max(gaps_ms, key=abs, default=0) / 1000)


def _of_each_journal(journals: Iterable[JournalService]) -> Iterator[Sample]:
    elections = 0
    for journal in journals:
        replicated_log = journal.host.replica.log
        label = (str(journal.journal_id),)
        is_leading = replicated_log.is_leading
        elections += journal.host.elections.begun
        yield Sample("quaymaster_journal_epoch", replicated_log.epoch, label)
        yield Sample("quaymaster_journal_leading", int(is_leading), label)
        yield Sample("quaymaster_journal_commit_offset", replicated_log.commit, label)
        yield Sample("quaymaster_journal_durable_offset", replicated_log.durable_end, label)
        if is_leading:
            for member, lag in replicated_log.lag_of().items():
                yield Sample("quaymaster_journal_lag_records", lag, (*label, broker_of(member)))
    yield Sample("quaymaster_journal_elections_total", elections)


def broker_histograms(broker: Broker) -> Iterator[HistogramSample]:
    """Yield how long the phases of elections took, on all journals of a broker together."""
    for phase in dict.fromkeys(PHASES.values()):
        durations = [journal.host.elections.durations[phase] for journal in broker.journals.values()]
        yield HistogramSample(
            "quaymaster_journal_election_duration_seconds", Histogram.sum_of(durations), (phase,)
        )


def _partitions_of(hosts: Iterable[ReplicaHost]) -> Iterator[tuple[int, Partition | None]]:
    """Yield the partitions of all journals, each with its journal's time, and None after each so many."""
    for host in hosts:
        now_ms = host.clock.time_ms()
        for partition in _some_at_a_time(host.replica.queues.partitions):
            yield now_ms, partition


def _some_at_a_time(partitions: Mapping[int, Partition]) -> Iterator[Partition | None]:
    """Yield the partitions there are, and None after each so many."""
    for number, partition in enumerate(list(partitions.values()), 1):
        yield partition
        if not number % QUEUES_AT_A_TIME:
            yield None


def _states(partition: Partition) -> dict[str, int]:
    in_flight, delayed = len(partition.in_flight), len(partition.timed)
    return {
        "visible": max(0, partition.alive - in_flight - delayed),
        "in_flight": in_flight,
        "delayed": delayed,
    }


def _staged(partition: Partition) -> int:
    return partition.staged.messages if partition.staged is not None else 0


def _oldest_age_s(partition: Partition, now_ms: int) -> float:
    return (now_ms - partition.oldest_sent_ms) / 1000 if partition.alive else 0.0

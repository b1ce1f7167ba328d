"""The broker's metrics as samples: read when somebody scrapes, never counted twice."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from quaymaster.broker.broker import Broker
from quaymaster.broker.replica.clock import QueueClock
from quaymaster.broker.replica.elections import PHASES
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.partition.partition_totals import WAITS_BOUNDS_MS
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.replication.queue_time import say_held
from quaymaster.monitoring.metrics import Histogram, HistogramSample, Sample

SETTLED_AT_A_TIME = 1_000
WAITS_BOUNDS_S = tuple(bound_ms / 1_000 for bound_ms in WAITS_BOUNDS_MS)


def journal_samples(journals: Collection[JournalService], data: Path) -> Iterable[Sample | None]:
    """Yield samples of the journals here, their caches, disk and queues, and None where others may have a turn.

    They cost the same at any number of queues: turns keep the sums. States are as of each queue's last change, of the
    journals that are led here.
    """
    segments = [segment for journal in journals for segment in journal.files.segments()]
    hosts = [journal.host for journal in journals]
    led = [host for host in hosts if host.replica.is_leading]
    counters = [host.writer.counters for host in hosts]
    yield Sample("quaymaster_journal_leader_changes_total", sum(journal.leaderships for journal in journals))
    stopped = [host for host in hosts if host.stopped is not None]
    if led or stopped:
        durable = 0 if stopped else min(_durable_replicas(host) for host in led)
        yield Sample("quaymaster_journal_durable_replicas", durable)
    yield from _of_clocks([host.clock for host in led])
    yield Sample("quaymaster_log_append_bytes_total", sum(one.appended_bytes for one in counters))
    yield Sample("quaymaster_log_append_records_total", sum(journal.records_appended for journal in journals))
    yield Sample("quaymaster_log_segments", len(segments))
    yield Sample("quaymaster_log_bytes", sum(segment.data_bytes for segment in segments))
    yield Sample("quaymaster_log_end_offset", sum(host.replica.end_offset for host in hosts))
    yield Sample("quaymaster_log_pending_bytes", sum(host.writer.pending_bytes for host in hosts))
    now_s = time.monotonic()
    yield Sample(
        "quaymaster_snapshot_age_seconds",
        max((now_s - journal.snapshots.written_s for journal in journals), default=0.0),
    )
    yield Sample("quaymaster_body_cache_bytes", sum(host.bodies.size_bytes for host in hosts))
    yield Sample("quaymaster_body_cache_requests_total", sum(host.bodies.hits for host in hosts), ("hit",))
    yield Sample("quaymaster_body_cache_requests_total", sum(host.bodies.misses for host in hosts), ("miss",))
    commands: Counter[tuple[str, str]] = Counter()
    for host in hosts:
        commands.update({(name, result): number for name, result, number in host.measures.commands()})
    for labels, number in commands.items():
        yield Sample("quaymaster_broker_commands_total", number, labels)
    disk = os.statvfs(data)
    yield Sample("quaymaster_disk_free_bytes", disk.f_bavail * disk.f_frsize)
    yield from _of_queues(hosts, led)


def _of_queues(hosts: Iterable[ReplicaHost], led: Collection[ReplicaHost]) -> Iterator[Sample | None]:
    """Yield the sums of the queues that are led here. What was counted under former leaders here counts on."""
    for host in led:
        while host.replica.queues.changes.settle(SETTLED_AT_A_TIME, host.clock.time_ms()):
            yield None
    queues = [host.replica.queues for host in led]
    yield Sample("quaymaster_queues", sum(one.counted_here for one in queues))
    yield Sample("quaymaster_held_groups", sum(one.held_groups for one in queues))
    yield Sample("quaymaster_claims", sum(one.open_claims for one in queues))
    yield Sample("quaymaster_outputs", sum(one.outputs_under_way for one in queues))
    sums = [one.changes.sums for one in queues]
    for state, number in (
        ("visible", sum(one.visible for one in sums)),
        ("in_flight", sum(one.in_flight for one in sums)),
        ("delayed", sum(one.delayed for one in sums)),
    ):
        yield Sample("quaymaster_queue_messages", number, (state,))
    records = sum(host.replica.end_offset - host.files.start_offset for host in led)
    yield Sample("quaymaster_log_live_ratio", sum(one.kept for one in sums) / records if records else 1.0)
    yield Sample("quaymaster_staged_messages", sum(one.staged for one in sums))
    yield Sample("quaymaster_queue_oldest_message_age_seconds", max(map(_oldest_age_s, led), default=0.0))
    counted = [host.replica.queues for host in hosts]
    yield Sample("quaymaster_messages_redriven_total", sum(one.messages_moved for one in counted))
    yield Sample("quaymaster_messages_expired_total", sum(one.messages_expired for one in counted))


def replica_samples(broker: Broker) -> Iterable[Sample]:
    """Yield samples of the replicas of a cell's broker as such."""
    journals = list(broker.journals.values())
    led = [journal for journal in journals if journal.host.replica.is_leading]
    yield Sample("quaymaster_journals", len(journals) - len(led), ("follower",))
    yield Sample("quaymaster_journals", len(led), ("leader",))
    rooms = Counter(journal.files.room for journal in journals)
    for room in DiskPressure:
        yield Sample("quaymaster_journals_by_room", rooms[room], (room.name.lower(),))
    yield Sample(
        "quaymaster_replication_lag_records",
        max((lag for journal in led for lag in journal.host.replica.log.lag_of().values()), default=0),
    )
    yield from _of_each_journal(journals)


def journal_histograms(journals: Iterable[JournalService]) -> Iterator[HistogramSample]:
    """Yield how long fsyncs, commits and turns took, and how long messages waited, of all journals here together."""
    hosts = [journal.host for journal in journals]
    for name, each in (
        ("log_fsync", [host.writer.counters.fsync_durations for host in hosts]),
        ("journal_commit", [host.measures.commits for host in hosts]),
        ("broker_turn", [host.measures.turns for host in hosts]),
    ):
        yield HistogramSample(f"quaymaster_{name}_duration_seconds", Histogram.sum_of(each), ())
    waits = Histogram(WAITS_BOUNDS_S)
    for host in hosts:
        waits.add(host.replica.queues.waits.counts, host.replica.queues.waits.sum_ms / 1_000)
    yield HistogramSample("quaymaster_message_wait_duration_seconds", waits, ())


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


def _durable_replicas(host: ReplicaHost) -> int:
    """Return how many replicas have made durable all that is committed in a journal that is led here."""
    replica = host.replica
    ends = [replica.end_offset - lag for lag in replica.log.lag_of().values()]
    return sum(end >= replica.commit for end in (replica.durable_end, *ends))


def _oldest_age_s(host: ReplicaHost) -> float:
    oldest_s = host.replica.queues.changes.sums.oldest.first()
    return 0.0 if oldest_s is None else max(0.0, host.clock.time_ms() / 1_000 - oldest_s)

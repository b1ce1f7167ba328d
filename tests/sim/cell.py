"""Whole cells: hosts, managers, a store and clients over a simulated network, under faults and then healed.

    under fire ──────▶ all faults end ──▶ all is led (L1) ──▶ queues drain (L3) ──▶ managers rest (L5)
       checked at every event:                                                           all have the same (L2)
         I1-I12 (log_checker), I15-I22 (queue_checker), M1-M3 (manager_checker)

One thread, one heap of events, one seed: a seed that found something finds it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from harness.replica_host import arn, queue

from quaymaster.broker.replica.moves import message_moves
from quaymaster.broker.replica.moves.moves_out import MovesAway
from quaymaster.coordination import watched_prefix
from quaymaster.core.cell import placement
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.leader_choice import LeaderChoice
from quaymaster.core.cell.spread import Spread
from quaymaster.core.partition import staged_messages
from quaymaster.core.partition.partition_moves import QueuesElsewhere
from quaymaster.core.partition.work import slices
from quaymaster.core.replication import journal as core_journal
from quaymaster.core.replication import replication
from quaymaster.core.replication.candidate import Candidate
from quaymaster.core.replication.messages import Envelope
from quaymaster.core.structures import committed_runs, log_sizes
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.decided import WriteBarrier
from quaymaster.core.values.commands.partitions import ListDataKeys, SetQueue
from quaymaster.core.values.commands.unions import Command, InternalCommand
from quaymaster.core.values.errors import Timeout
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from sim import changing_logs, changing_partitions, claims, completing, feeding, guarantees
from sim.bugs import Planted
from sim.changing_logs import STRETCH_MESSAGES, LogReader
from sim.changing_partitions import CHANGING, FEEDER, GROUP_IDS, PartitionChecker
from sim.clients import Client, consume, produce, purge, set_up, watch_empty
from sim.completing import COMPLETION_QUEUES, CompletionChecker
from sim.guarantees import GUARANTEED_QUEUES, GuaranteeChecker, is_judged_here_alone
from sim.host import Host
from sim.kernel import MS, SECOND, Clock, Kernel, Story, Violation
from sim.log_checker import LogChecker
from sim.log_disk import LogDisk
from sim.manager import Manager, StoryHandler
from sim.manager_checker import ManagerChecker
from sim.messages import sent_again
from sim.nemesis import Nemesis
from sim.network import Network
from sim.profiles import Profile, draw
from sim.queue_checker import RETENTION_SHORT_MS, QueueChecker, QueueKind
from sim.redrives import REDRIVE_QUEUES, RedriveChecker, start_clients
from sim.replica import Replica
from sim.store import Store
from sim.transactions import (
    BEHIND_BYTES_MAX,
    PACKED_RUNS,
    SLICES,
    TRANSACTION_EXPIRES_MS,
    Sink,
    drive,
)

ACTIVATION_LIMIT_US = 15 * SECOND
DRAIN_LIMIT_US = 240 * SECOND
"""Where clocks were found wrong nothing expires, and a queue of which most would has to be received to its end."""
TASKS_LIMIT_US = 60 * SECOND
SET_UP_US = 10 * SECOND
"""What goes wrong begins when the queues are there, or after so long."""
REST_LIMIT_US = 600 * SECOND
REST_CHANGES_MAX = 100
"""So many configurations may be put until managers come to rest."""
SETTLE_US = 2 * SECOND
STAGED_GRACE_MS = 3_000
TAKEN_AT_ONCE = 3
"""So many messages a move task takes at a time, in place of a hundred."""
MANAGERS = ("m1", "m2")
STANDARD, FIFO, WORK, DEAD, LOOSE, PURGED, SHORT, SOURCE, TARGET = 1, 2, 3, 4, 5, 6, 7, 8, 9

QUEUES = [
    QueueKind(STANDARD, "standard"),
    QueueKind(FIFO, "ordered.fifo", journal=1, is_fifo=True),
    QueueKind(WORK, "work", journal=2, dead_letters=DEAD, receive_count_max=2, visibility_timeout_ms=2_000),
    QueueKind(DEAD, "dead", journal=2),
    QueueKind(LOOSE, "loose", is_durable=False, delay_ms=1_000),
]
MORE_QUEUES = [
    QueueKind(PURGED, "purged", is_purged=True),
    QueueKind(SHORT, "short", journal=1, retention_ms=4_000, visibility_timeout_ms=1_000),
]
"""These are only in some runs."""
FAR_QUEUES = [
    QueueKind(SOURCE, "source", dead_letters=TARGET, receive_count_max=1, visibility_timeout_ms=1_000),
    QueueKind(TARGET, "target", journal=1),
]
"""These, too: dead letters of the one move to the other, in another journal."""
LOG, STEPS = 10, 20
LOG_QUEUES = [
    QueueKind(LOG, "log", is_log=True),
    QueueKind(LOG + 1, "log@a", group_of=LOG),
    QueueKind(LOG + 2, "log@b", group_of=LOG),
    QueueKind(STEPS, "steps.fifo", journal=1, is_fifo=True, is_log=True),
    QueueKind(STEPS + 1, "steps.fifo@a", journal=1, is_fifo=True, group_of=STEPS),
    QueueKind(STEPS + 2, "steps.fifo@b", journal=1, is_fifo=True, group_of=STEPS),
]
"""And these: logs that are read by two groups each."""
BULK = 30
BULK_QUEUES = [
    QueueKind(BULK, "bulk"),
    QueueKind(BULK + 1, "bulk.fifo", journal=1, is_fifo=True),
    QueueKind(BULK + 2, "bulk-log", journal=2, is_log=True),
    QueueKind(BULK + 3, "bulk-log@a", journal=2, group_of=BULK + 2),
]
"""And these: sinks send to them in transactions."""
CLAIMED = 80
CLAIMED_QUEUES = [
    QueueKind(CLAIMED, "claimed"),
    QueueKind(CLAIMED + 1, "claimed.fifo", journal=1, is_fifo=True),
]
"""And these: what is sent to them is claimed by consumers, and received by others."""


def definition_of(kind: QueueKind) -> QueueDefinition:
    """Return a queue's definition."""
    if kind.group_of:
        return replace_definition(queue(kind.queue_id, kind.name), group_of=kind.group_of)
    attributes: dict[str, object] = {
        "VisibilityTimeout": kind.visibility_timeout_ms // 1000,
        "DelaySeconds": kind.delay_ms // 1000,
    }
    if kind.dead_letters is not None:
        target = next(
            other for other in (*QUEUES, *FAR_QUEUES, *REDRIVE_QUEUES) if other.queue_id == kind.dead_letters
        )
        attributes["RedrivePolicy"] = (
            f'{{"deadLetterTargetArn": "{arn(target.name)}", "maxReceiveCount": {kind.receive_count_max}}}'
        )
    if kind.retention_ms < RETENTION_SHORT_MS:
        attributes["MessageRetentionPeriod"] = kind.retention_ms // 1000
    if kind.is_log:
        attributes["RetentionMode"] = "Log"
    if not kind.is_durable:
        attributes["Durability"] = "Async"
    if kind.guarantee:
        attributes["DeliveryGuarantee"] = kind.guarantee
    if kind.dedup_window_s:
        attributes["DeduplicationWindowSeconds"] = kind.dedup_window_s
    return queue(kind.queue_id, kind.name, attributes=attributes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    seed: int
    events: int
    simulated_us: int
    acked_sends: int
    deliveries: int
    epochs: int
    violation: Violation | None


class Cell:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        profile: Profile | None = None,
        bugs: Iterable[str] = (),
        story: Story | None = None,
    ) -> None:
        self.seed = seed
        self.faults = profile = profile or draw(seed)
        self.kernel = kernel = Kernel(seed, story=story)
        self.bugs = Planted(bugs)
        self.network = Network(kernel, profile.network, sent_again)
        self.chunks = MemoryChunks()
        """Chunks of the indexes of all replicas. They outlive restarts and copies, as files that are rebuilt do."""
        self.is_set_up = False
        self.is_sending = True
        self.is_drained = False
        self.producers_left = profile.producers
        self.last_counts = ""
        self.lost_members: set[str] = set()
        self._configurations_max = 0
        self._numbers = 0
        self._storages = 0
        self._random = kernel.random_for("cell")
        self._places_random = kernel.random_for("places")
        self.names = [f"n{number + 1}" for number in range(profile.hosts)]
        self.journals = min(3, profile.hosts - profile.late_hosts)
        """How many journals the queues are spread over; there may be more."""
        self.used_journals: list[int] = []
        """Which ones."""
        self.hosts: dict[str, Host] = {}
        for number, name in enumerate(self.names):
            zone = f"z{number % profile.zones}"
            self.hosts[name] = self.bugs.variant(Host)(self, name, zone, self._clock())
        self.store = self.bugs.variant(Store)(kernel, self.network, profile.store)
        self.checkers: dict[int, LogChecker] = {}
        self.queues = [*QUEUES, *(MORE_QUEUES if profile.has_more_queues else ())]
        if profile.has_moves:
            self.queues += FAR_QUEUES
        if profile.has_logs:
            self.queues += LOG_QUEUES
        if profile.has_transactions:
            self.queues += BULK_QUEUES
        if profile.has_claims:
            self.queues += CLAIMED_QUEUES
        if profile.has_redrives:
            self.queues += REDRIVE_QUEUES
        if profile.has_guarantees:
            self.queues += GUARANTEED_QUEUES
        self.guarantee_checker = GuaranteeChecker(
            GUARANTEED_QUEUES,
            has_true_time=not (profile.wrong_clocks or profile.restarts)
            and "clock jump" not in profile.intervals_us,
        )
        if profile.has_completions:
            self.queues += COMPLETION_QUEUES
        self.completion_checker = CompletionChecker()
        self.redrivers_left = 0
        """Who starts move tasks, or waits for them to end."""
        self.redrive_checker = RedriveChecker()
        self.partition_checker = PartitionChecker()
        self.log_reader = LogReader(self.partition_checker)
        self.sinks: list[Sink] = []
        self.kinds: dict[int, QueueKind] = {kind.queue_id: kind for kind in self.queues}
        self.kinds[FEEDER] = feeding.feeder_kind(is_fifo=profile.changes_fifo)
        self.elsewhere = QueuesElsewhere(CellFormat())
        self.queue_checker = QueueChecker(
            [
                kind
                for kind in self.queues
                if not kind.is_log
                and not kind.group_of
                and kind not in REDRIVE_QUEUES
                and not is_judged_here_alone(kind)
                and kind not in COMPLETION_QUEUES
            ]
        )
        self.queue_checker.journal_of = lambda kind: self.journal_of(kind.queue_id)
        self.group_checkers = {
            kind.queue_id: QueueChecker([kind])
            for kind in self.queues
            if kind.group_of and not is_judged_here_alone(kind)
        }
        """Of each consumer group one: to it, the log is a queue of its own."""
        self.managers = [Manager(self, name, self._clock()) for name in MANAGERS[: profile.managers]]
        self.manager_checker = ManagerChecker(self)
        self.store.on_write_of_manager = self.manager_checker.on_write
        self.nemesis = Nemesis(self)
        self.clients: list[Client] = []

    def _clock(self) -> Clock:
        skew, drift = self.faults.clock_skew_ms, self.faults.clock_drift
        return Clock(
            self.kernel,
            offset_ms=self._random.randint(-skew, skew),
            rate=1 + self._random.uniform(-drift, drift),
        )

    def new_disk(self) -> LogDisk:
        """Return an empty disk, which no other is taken for."""
        self._storages += 1
        storage_id = f"s{self._storages}"
        return self.bugs.variant(LogDisk)(storage_id, self.kernel.random_for(f"disk {storage_id}"))

    def disk_of(self, journal: int, member: str) -> LogDisk | None:
        """Return a member's disk, None if it is lost or dropped."""
        name, _, storage_id = member.partition("@")
        host = self.hosts.get(name)
        disk = None if host is None else host.disks.get(journal)
        return disk if disk is not None and disk.storage_id == storage_id else None

    def checker_of(self, journal: int) -> LogChecker:
        """Return the judge of a journal."""
        if journal not in self.checkers:
            self.checkers[journal] = LogChecker(
                self.kernel,
                self.store.key_of(journal),
                clock_error_ms=self._clock_error_ms(),
                clock_drift=self.faults.clock_drift,
                is_measured=self.faults.restarts is not None,
            )
        return self.checkers[journal]

    def journal_for(self, command: Command | InternalCommand) -> int:
        """Return which journal a command goes to: all of a queue is in one, but for the one whose partitions change."""
        assert not isinstance(command, ListDataKeys | WriteBarrier), "they are of a journal, not of a queue"
        if isinstance(command, SetQueue) and command.journal_id is not None:
            return command.journal_id
        queue_id = command.definition.queue_id if isinstance(command, SetQueue) else command.queue_id
        if queue_id in (CHANGING, *GROUP_IDS):
            return self.partition_checker.journals[getattr(command, "partition", 0)]
        return self.journal_of(queue_id)

    def journal_of(self, queue_id: int) -> int:
        """Return which journal a queue is in."""
        return self.used_journals[self.kinds[queue_id].journal % self.journals]

    def definition_of(self, kind: QueueKind) -> QueueDefinition:
        """Return a queue's definition, in its journal."""
        partitions = one_partition(self.journal_of(kind.queue_id))
        return replace_definition(definition_of(kind), partitions=partitions)

    def judge_of(self, queue_id: int) -> QueueChecker:
        """Return who judges what is received from a queue."""
        return self.group_checkers.get(queue_id, self.queue_checker)

    def hearers_of(self, kind: QueueKind) -> Sequence[tuple[QueueChecker | GuaranteeChecker, int]]:
        """Return who hears of what is sent to a queue, each with the queue it is received from."""
        if is_judged_here_alone(kind):
            return [(self.guarantee_checker, kind.queue_id)]
        return self.judges_of(kind)

    def judges_of(self, kind: QueueKind) -> list[tuple[QueueChecker, int]]:
        """Return who judges what is sent to a queue, each with the queue it is received from."""
        if not kind.is_log:
            return [(self.queue_checker, kind.queue_id)]
        groups = [group for group in self.queues if group.group_of == kind.queue_id]
        return [(self.judge_of(group.queue_id), group.queue_id) for group in groups]

    def choose_journals(self) -> bool:
        """Choose which journals the queues are in, as soon as there are enough."""
        if not self.used_journals and len(self.store.journals) >= self.journals:
            self.used_journals = sorted(self.store.journals)[: self.journals]
            self.elsewhere.places = (
                {arn(kind.name): self.definition_of(kind) for kind in FAR_QUEUES}
                if self.faults.has_moves
                else {}
            )
        return bool(self.used_journals)

    async def find_queue(self, account_id: str, name: str) -> QueueDefinition | None:
        """See `queue_places.FindQueue`: what metadata would say, which now and then does not answer."""
        await asyncio.sleep(0.005)
        if not self.used_journals or self._places_random.random() < 0.1:
            raise Timeout
        for kind in self.queues:
            if kind.name == name:
                return self.definition_of(kind)
        row = self.partition_checker.row
        return row if row is not None and row.name == name else None

    def next_number(self) -> int:
        """Return a number for a new message."""
        self._numbers += 1
        return self._numbers

    # What happens to hosts

    def on_clocks_step(self) -> None:
        """Wall clocks of any number of hosts begin to step."""
        for number, checker in self.checkers.items():
            key = self.store.journals.get(number)
            members = () if key is None else key.configuration.members
            if not members or not all(self.hosts[broker_of(each)].knows_time(each) for each in members):
                checker.forget_clocks()

    def on_host_ended(self, host: Host) -> None:
        """A process ended: it is started again some time, by whoever watches over processes."""
        delay_us = int(self._random.choice((100 * MS, SECOND, 5 * SECOND)) * self._random.random())
        self.kernel.after(delay_us + 10 * MS, self.restart, host)

    def on_disk_lost(self, host: Host, journal: int) -> None:
        """What is on the disk of a journal is gone, or not to be trusted."""
        self.lost_members.add(f"{host.name}@{host.disks[journal].storage_id}")
        host.lose_disk(journal)

    def restart(self, host: Host) -> None:
        """Start a host's process if there is none and nothing keeps it from starting."""
        if not host.is_up and self.kernel.now_us >= self.nemesis.absent_until_us.get(host.name, 0):
            host.start()

    def tell_message(self, replica: Replica, envelope: Envelope) -> None:
        """Note in the story what a replica is told."""
        message = envelope.message
        batches = getattr(message, "batches", None)
        fields = {
            name: getattr(message, name)
            for name in message.__struct_fields__
            if name not in ("batches", "sent_ms")
        }
        what = ", ".join(
            f"{name} {value & 0xFFFF:04x}" if "chain" in name else f"{name} {value}"
            for name, value in fields.items()
        )
        offsets = None
        if batches:
            offsets = batches[0].base_offset, batches[-1].next_offset
            what += f", batches {offsets[0]}-{offsets[1]}"
        replica.tell(
            f"gets {type(message).__name__} of {envelope.sender}: {what} ({replica.log_state()})", offsets
        )

    # A run

    def run(self) -> Cell:
        """Go through both phases; raises the `Violation` it finds."""
        with self._installed():
            try:
                self._run()
            finally:
                for manager in self.managers:
                    manager.end()
        return self

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Let managers plan as the planted bugs have it, and log into the story."""
        logger = logging.getLogger("quaymaster")
        level, propagates = logger.level, logger.propagate
        handler = StoryHandler(self)
        variant = self.bugs.variant
        # Limits that are made small, so that short runs go beyond them; and subclasses in the places of classes.
        changed: list[tuple[ModuleType, str, object]] = [
            (staged_messages, "EXPIRES_MS", TRANSACTION_EXPIRES_MS),
            (committed_runs, "PACKED_ROWS", PACKED_RUNS),
            (core_journal, "BEHIND_BYTES_MAX", BEHIND_BYTES_MAX),
            *((slices, name, size) for name, size in SLICES.items()),
            (message_moves, "TAKE_MAX", TAKEN_AT_ONCE),
            (watched_prefix, "random", self.kernel.random_for("watches")),
            *([(log_sizes, "STRETCH_MESSAGES", STRETCH_MESSAGES)] if self.faults.changes_log else []),
            (placement, "_Planner", variant(placement._Planner)),
            (placement, "CellView", variant(CellView)),
            (placement, "LeaderChoice", variant(LeaderChoice)),
            (placement, "Spread", variant(Spread)),
            (replication, "Candidate", variant(Candidate)),
            (message_moves, "MovesAway", variant(MovesAway)),
        ]
        before = [(module, name, vars(module)[name]) for module, name, _ in changed]
        for module, name, value in changed:
            setattr(module, name, value)
        logger.setLevel(logging.INFO if self.kernel.story is not None else logging.CRITICAL)
        logger.propagate = False
        logger.addHandler(handler)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates

    def _clock_error_ms(self) -> int | None:
        """Return how far the clocks of a majority may be ahead of real time, None if there is no telling."""
        profile = self.faults
        if "clock jump" in profile.intervals_us or (profile.wrong_clocks and profile.wrong_clocks.all_ms):
            return None
        if self.nemesis.has_stepped_clocks:
            return None
        return profile.clock_skew_ms

    def _run(self) -> None:
        kernel, profile = self.kernel, self.faults
        hosts = list(self.hosts.values())
        self.nemesis.set_clocks_wrong()
        for host in hosts[: profile.hosts - profile.late_hosts]:
            host.start()
        for host in hosts[profile.hosts - profile.late_hosts :]:
            kernel.at(self._random.randrange(profile.fire_us), self.restart, host)
        for manager in self.managers:
            manager.start()
        self._start_clients()
        self.store.watchers += self.names
        kernel.run_until(SET_UP_US, lambda: self.is_set_up)
        self.nemesis.begin()
        kernel.run_until(kernel.now_us + profile.fire_us)
        self.nemesis.heal()
        kernel.tell("nemesis", "heals everything")
        if not kernel.run_until(kernel.now_us + ACTIVATION_LIMIT_US, self._is_served):
            raise Violation("L1", f"not every journal is led though all is healed: {self._states()}")
        self.is_sending = False
        kernel.tell("clients", "send no more")
        if not kernel.run_until(kernel.now_us + TASKS_LIMIT_US, lambda: self.redrivers_left == 0):
            raise Violation("L7", f"move tasks do not end: {self._states()}")
        if not kernel.run_until(
            kernel.now_us + DRAIN_LIMIT_US,
            lambda: (
                self.is_drained
                and self.partition_checker.is_drained
                and self.partition_checker.is_ended
                and self.completion_checker.is_drained
            ),
        ):
            raise Violation(
                "L3", f"the queues do not drain: {self.last_counts or 'no counts'}; {self._states()}"
            )
        for checker in (self.queue_checker, *self.group_checkers.values()):
            checker.check_drained()
        self.redrive_checker.check_drained()
        for judge in self.partition_checker.judges.values():
            judge.check_drained()
        if self.faults.changes_log:
            self.log_reader.check_drained()
        self.completion_checker.check_drained()
        for sink in self.sinks:
            sink.check_batches(self)
        self._configurations_max = self.store.configurations + REST_CHANGES_MAX
        if not kernel.run_until(kernel.now_us + REST_LIMIT_US, self._is_at_rest):
            raise Violation("L5", f"the managers do not come to rest: {self._states()}")
        kernel.run_until(kernel.now_us + SETTLE_US)
        kernel.run_until(kernel.now_us + SETTLE_US, self._all_agree)  # a leader may just have gone home
        if not kernel.run_until(kernel.now_us + REST_LIMIT_US, self._all_have_applied):
            raise Violation("L2", f"slices of commits are left: {self._states()}")
        for number, key in self.store.journals.items():
            leader = broker_of(key.configuration.leader)
            if self.nemesis.is_astray(leader):
                raise Violation("L6", f"journal {number} is led by {leader}, whose clock is off")
            members = key.configuration.members
            if len(members) != profile.placement.replicas or key.configuration.learners:
                raise Violation(
                    "L5", f"journal {number} has not the members it should have: {self._states()}"
                )
            replicas = self._replicas_of(number, members)
            self.checker_of(number).check_converged(replicas)
            is_held = any(replica.queue_time.expiry_is_held for replica in replicas)
            for replica in replicas:
                _check_memory(replica, may_keep_staged=is_held)

    def _all_agree(self) -> bool:
        """Whether every member knows all that is committed."""
        return all(
            replica.commit == self.checker_of(number).commit
            for number, key in self.store.journals.items()
            for replica in self._replicas_of(number, key.configuration.members)
        )

    def _all_have_applied(self) -> bool:
        """Whether no member has slices of a commit left, or records behind one."""
        return not any(
            replica.journal.has_more
            for number, key in self.store.journals.items()
            for replica in self._replicas_of(number, key.configuration.members)
        )

    def _replicas_of(self, number: int, members: tuple[str, ...]) -> list[Replica]:
        return [
            replica
            for host in self.hosts.values()
            if (replica := host.replicas.get(number)) is not None and replica.member in members
        ]

    def _start_clients(self) -> None:
        profile = self.faults
        client = self.client("setup")
        client.run(set_up(client, self.queues))
        senders = [kind for kind in QUEUES if kind.queue_id != DEAD]
        for number in range(profile.producers):
            kind = senders[number] if number < len(senders) else self._random.choice(senders)
            client = self.client(f"p{number + 1}")
            client.run(produce(client, kind, gap_us=profile.gap_us, groups=profile.groups))
        for number in range(max(profile.consumers, len(QUEUES))):
            kind = QUEUES[number] if number < len(QUEUES) else self._random.choice(QUEUES)
            client = self.client(f"c{number + 1}")
            client.run(consume(client, kind, gap_us=profile.gap_us, carelessness=profile.carelessness))
        if profile.has_more_queues:
            self._start_more_clients()
        if profile.has_moves:
            self.producers_left += 1
            client = self.client("p source")
            client.run(produce(client, FAR_QUEUES[0], gap_us=profile.gap_us, groups=1))
            for kind, carelessness in zip(FAR_QUEUES, (0.9, 0.1), strict=True):
                client = self.client(f"c {kind.name}")
                client.run(consume(client, kind, gap_us=profile.gap_us, carelessness=carelessness))
        if profile.has_logs:
            self._start_clients_of_logs()
        if profile.has_transactions:
            self._start_sinks()
        if profile.has_claims:
            self._start_claiming()
        if profile.has_redrives:
            start_clients(self)
        if profile.has_completions:
            completing.start_clients(self)
        if profile.has_changing_partitions:
            changing_partitions.start_clients(self)
            if profile.changes_log:
                changing_logs.start_clients(self)
            if profile.feeds_partitions:
                feeding.start_clients(self)
        if profile.has_guarantees:
            guarantees.start_clients(self)
        client = self.client("counts")
        client.run(watch_empty(client, [kind for kind in self.queues if not kind.is_log]))

    def _start_more_clients(self) -> None:
        profile = self.faults
        self.producers_left += len(MORE_QUEUES)
        for kind in MORE_QUEUES:
            client = self.client(f"p {kind.name}")
            client.run(produce(client, kind, gap_us=2 * profile.gap_us, groups=1))
            client = self.client(f"c {kind.name}")
            client.run(consume(client, kind, gap_us=SECOND, carelessness=0.5))
            if kind.is_purged:
                client = self.client("purger")
                client.run(purge(client, kind))

    def _start_clients_of_logs(self) -> None:
        profile = self.faults
        for kind in LOG_QUEUES:
            client = self.client(f"of {kind.name}")
            if kind.is_log:
                self.producers_left += 1
                client.run(produce(client, kind, gap_us=2 * profile.gap_us, groups=profile.groups))
            else:
                client.run(consume(client, kind, gap_us=profile.gap_us, carelessness=profile.carelessness))

    def _start_claiming(self) -> None:
        profile = self.faults
        for kind in CLAIMED_QUEUES:
            self.producers_left += 1
            client = self.client(f"p {kind.name}")
            client.run(produce(client, kind, gap_us=profile.gap_us, groups=profile.groups))
            client = self.client(f"c {kind.name}")
            client.run(
                claims.rival(client, kind)
                if kind.is_fifo
                else consume(client, kind, gap_us=4 * profile.gap_us, carelessness=0.5)
            )
            consumers = [claims.Consumer(f"{kind.name}-{name}", kind) for name in ("alone", "shared")]
            client = self.client(f"operator of {kind.name}")
            client.run(claims.release(client, kind, consumers))
            # One driver by itself, and two that replace each other again and again.
            for consumer, drivers in zip(consumers, (1, 2), strict=True):
                for number in range(drivers):
                    client = self.client(f"{consumer.name}-{number}")
                    client.run(claims.drive(client, consumer, gap_us=profile.gap_us))

    def _start_sinks(self) -> None:
        profile = self.faults
        for kind in BULK_QUEUES:
            if not kind.is_log:
                client = self.client(f"of {kind.name}")
                client.run(consume(client, kind, gap_us=profile.gap_us, carelessness=profile.carelessness))
            if kind.group_of:
                continue
            # One driver by itself, which gives batches up; and two that get in each other's way.
            for name, drivers in (("alone", 1), ("shared", 2)):
                sink = Sink(f"{kind.name}-{name}", kind, profile.groups, has_doomed=drivers == 1)
                self.sinks.append(sink)
                for number in range(drivers):
                    self.producers_left += 1
                    client = self.client(f"{sink.name}-{number}")
                    client.run(drive(client, sink, gap_us=4 * profile.gap_us))

    def client(self, name: str) -> Client:
        """Return a new caller."""
        client = self.bugs.variant(Client)(self, name)
        self.clients.append(client)
        return client

    def _is_served(self) -> bool:
        """Tell whether there are as many journals as there should be, each with a leader that is one."""
        keys = self.store.journals
        return len(keys) >= self.journals and all(self._is_led(number) for number in keys)

    def _is_led(self, number: int) -> bool:
        return self.is_led_by(number, self.store.journals[number].configuration)

    def is_led_by(self, number: int, configuration: JournalConfiguration) -> bool:
        """Tell whether the leader of a configuration leads, and in its epoch."""
        leader = self.hosts[broker_of(configuration.leader)].replicas.get(number)
        return (
            configuration.activated
            and leader is not None
            and leader.member == configuration.leader
            and leader.journal.is_leading
            and leader.log.epoch == configuration.epoch
        )

    def _is_at_rest(self) -> bool:
        """Tell whether no configuration has changed for longer than managers wait for anything to settle."""
        if self.store.configurations > self._configurations_max:
            raise Violation("L5", f"the managers change configurations without end: {self._states()}")
        changed_us = max(key.changed_us for key in self.store.journals.values())
        rest_us = self.faults.placement.settle_ms * MS + 5 * SECOND
        if self.kernel.now_us - changed_us <= rest_us or not self._is_served():
            return False
        return not any(_is_busy(manager) for manager in self.managers if manager.is_up)

    def _states(self) -> str:
        states = []
        for number, key in self.store.journals.items():
            if key.changed_us + 20 * SECOND > self.kernel.now_us or not self._is_led(number):
                states.append(f"journal {number}: {key.configuration}")
                states += [
                    f"{host.name}: {replica.member} {replica.log_state()}"
                    for host in self.hosts.values()
                    if (replica := host.replicas.get(number)) is not None
                ]
        for manager in self.managers:
            if manager.is_up and manager.product.leadership.is_held:
                states += [f"{manager.name} says: {problem}" for problem in manager.product.status().problems]
        return "; ".join(states) or "all is well"

    def outcome(self, violation: Violation | None = None) -> Outcome:
        """Return what the run did so far."""
        return Outcome(
            self.seed,
            self.kernel.count,
            self.kernel.now_us,
            self.queue_checker.acked_sends,
            self.queue_checker.deliveries,
            sum(key.configuration.epoch for key in self.store.journals.values()),
            violation,
        )


def _check_memory(replica: Replica, *, may_keep_staged: bool) -> None:
    """I14, L4: what is kept of messages is gone with them. A log keeps them, and nothing else.

    `may_keep_staged`: expiry is held, also that of batches which nobody ended.
    """
    for key, partition in replica.journal.queues.partitions.items():
        left = {
            "messages": partition.alive,
            "in flight": len(partition.in_flight),
            "returned": len(partition.returned),
            "deleted": len(partition.deleted),
            "delayed": len(partition.timed),
            "moving": len(partition.moving),
            "leaving": sum(len(pair.open) for pair in partition.moves.out.values()) if partition.moves else 0,
            "behind the head": partition.next_sequence - partition.head,
        }
        if partition.definition.is_log:
            del left["messages"], left["behind the head"]
        if partition.staged is not None and not may_keep_staged:
            left["staged"] = len(partition.staged.expired(replica.journal.last_time_ms - STAGED_GRACE_MS))
        if any(left.values()):
            raise Violation("L4", f"{replica.member} drained partition {key >> 16} and still has {left}")


def _is_busy(manager: Manager) -> bool:
    """Tell whether a manager acts, waits before it tries again, drops or gives a broker anything, or would act."""
    seen = manager.product._seen()
    has_left_over = any(
        number in seen.journals and replica.member not in seen.journals[number].configuration.members
        for broker in seen.brokers
        for number, replica in broker.report.replicas.items()
    )
    settled_ms = seen.now_ms - seen.settings.settle_ms
    is_waiting = seen.acting or seen.asking or seen.resting
    is_settled = all(broker.connected_ms < settled_ms for broker in seen.brokers)
    return bool(is_waiting or has_left_over or not is_settled or placement.plan(seen).actions)


def run_seed(seed: int, *, profile: Profile | None = None, bugs: Iterable[str] = ()) -> Outcome:
    """Run one seed to its end, or to what it found."""
    cell = Cell(seed, profile=profile, bugs=bugs)
    try:
        cell.run()
    except Violation as violation:
        return cell.outcome(violation)
    except Exception as error:
        # The product noticed by itself: an assertion of its own, or a crash.
        return cell.outcome(_as_violation(error))
    return cell.outcome()


def tell(seed: int, *, profile: Profile | None = None, bugs: Iterable[str] = (), last: int = 80) -> str:
    """Run a seed once more and return its story: the last events, and all that concern the offset in question."""
    story = Story()
    cell = Cell(seed, profile=profile, bugs=bugs, story=story)
    try:
        cell.run()
    except Violation as violation:
        return f"{story.render(last, violation.offset)}\nVIOLATION {violation}"
    except Exception as error:
        return f"{story.render(last, None)}\nVIOLATION {_as_violation(error)}"
    return f"{story.render(last, None)}\nnothing was found"


def _as_violation(error: Exception) -> Violation:
    trace = error.__traceback__
    where = ""
    while trace is not None:
        where = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
        trace = trace.tb_next
    return Violation("assertion", f"{type(error).__name__} in {where}: {error}")

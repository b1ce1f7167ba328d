"""A cell that carries out plans as a good one would: replicas without logs, elections without messages.

Time is a number; `see()` gives what a manager sees, `run()` lets plans and replicas work until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from quaymaster.core.cell.cell import (
    Action,
    Appoint,
    BrokerReport,
    BrokerSeen,
    BrokerState,
    CellSeen,
    CreateJournal,
    DropReplica,
    JournalSeen,
    PlacementSettings,
    Plan,
    Promote,
    RemoveBroker,
    ReplaceMember,
    ReplicaSeen,
    SetLearners,
    Transfer,
    broker_of,
    first_configuration,
    home_of,
    is_majority,
    with_learner,
)
from quaymaster.core.cell.load import BrokerLoad, LoadTrend, PartitionLoad
from quaymaster.core.cell.placement import plan
from quaymaster.core.values.journal_configuration import JournalConfiguration

POLL_MS = 250
OUT_OF_REACH_MS = 60_000
FOLLOWING = 0.2
"""What a follower has to do for a journal, as a share of what its leader has."""
QUIET_MS = 4_000
"""How far the clock goes ahead while nothing happens."""


@dataclass
class Host:
    """A broker as it is."""

    name: str
    zone: str
    state: BrokerState = "active"
    is_alive: bool = True
    is_disk_low: bool = False
    has_space: bool = True
    reaches_coordination: bool = True
    revision: int = 1
    since_ms: int = 0
    connected_ms: int = 0
    heard_ms: int | None = None
    storage: int = 1
    clock_ahead_ms: int | None = None
    replicas: dict[int, ReplicaSeen] = field(default_factory=dict)
    trend: LoadTrend = field(default_factory=LoadTrend)

    def report(self) -> BrokerReport:
        """Return what it says of itself."""
        return BrokerReport(
            dict(self.replicas),
            is_disk_low=self.is_disk_low,
            has_space=self.has_space,
            coordination_silent_ms=0 if self.reaches_coordination else OUT_OF_REACH_MS,
        )


class PlannedCell:
    """Brokers, journals, and a clock."""

    def __init__(self, *names: str, settings: PlacementSettings | None = None) -> None:
        """Make brokers; `a/1` is broker a in zone 1, `a` one in a zone of its own."""
        self.settings = settings or PlacementSettings()
        self.now_ms = 1_000_000
        self.hosts: dict[str, Host] = {}
        self.journals: dict[int, JournalSeen] = {}
        self.unseen: set[str] = set()
        """Brokers that live and serve, and that the manager cannot reach."""
        self.stuck: dict[str, int] = {}
        """Brokers that get nothing from leaders, and since when."""
        self.demand: dict[int, float] = {}
        """How much of a loop's time each journal takes of its leader."""
        self.partitions: tuple[PartitionLoad, ...] = ()
        """What leaders tell of partitions of their journals."""
        self.noise: Callable[[], float] = lambda: 1.0
        """By how much a report is more, or less, than that."""
        self.revision = 0
        self.history: list[Action] = []
        for name in names:
            self.join(name)

    # What happens to it

    def join(self, name: str) -> None:
        """Register a broker with nothing on it."""
        name, _, zone = name.partition("/")
        self.hosts[name] = Host(name, zone or name, since_ms=self.now_ms, connected_ms=self.now_ms)

    def kill(self, name: str) -> None:
        self.hosts[name].is_alive = False

    def start(self, name: str) -> None:
        """Start a killed broker with what is on its disks."""
        host = self.hosts[name]
        host.is_alive = True
        host.connected_ms = self.now_ms
        for number, replica in host.replicas.items():
            host.replicas[number] = msgspec.structs.replace(replica, role="follower", epoch=0, lag={})

    def wipe(self, name: str) -> None:
        """Take a broker's disks away."""
        self.hosts[name].replicas = {}

    # What a manager sees and does

    def see(self) -> CellSeen:
        brokers = []
        for host in self.hosts.values():
            is_seen = host.is_alive and host.name not in self.unseen
            if is_seen:
                host.heard_ms = self.now_ms
            else:
                host.connected_ms = self.now_ms
            report = host.report()
            load = host.trend.take(self.load_of(host.name), self.led_by(host.name), self.now_ms)
            brokers.append(
                BrokerSeen(
                    host.name,
                    host.zone,
                    host.state,
                    host.revision,
                    is_reachable=is_seen,
                    since_ms=host.since_ms,
                    heard_ms=host.heard_ms,
                    connected_ms=host.connected_ms,
                    report=msgspec.structs.replace(report, load=load),
                    clock_ms=None
                    if host.clock_ahead_ms is None
                    else (host.clock_ahead_ms - 20, host.clock_ahead_ms + 20),
                    busy_since_ms=host.trend.busy_since_ms,
                )
            )
        return CellSeen(self.now_ms, tuple(brokers), dict(self.journals), self.settings)

    def plan(self) -> Plan:
        """Return what a manager would do now."""
        return plan(self.see())

    def step(self) -> Plan:
        """Plan, carry the plan out, and let the replicas work for a poll's time."""
        made = self.plan()
        for action in made.actions:
            self.carry_out(action)
        self.history += made.actions
        self.now_ms += POLL_MS
        for number in self.journals:
            self.elect(number)
            self.replicate(number)
        return made

    def run(self, *, ms: int = 0, steps_max: int = 2_000) -> list[Action]:
        """Step for so long, and on until nothing more is planned; return what was done."""
        until_ms = self.now_ms + ms
        done: list[Action] = []
        quiet = 0
        for _ in range(steps_max):
            actions = self.step().actions
            done += actions
            quiet = 0 if actions else quiet + 1
            if quiet >= 3:
                if self.now_ms >= until_ms:
                    return done
                self.now_ms = min(until_ms, self.now_ms + QUIET_MS)
        raise AssertionError(f"there is always something more to do: {done[-6:]}")

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateJournal():
                members = tuple(self.prepare(name, action.journal) for name in action.brokers)
                self._write(action.journal, 0, first_configuration(members))
            case Transfer():
                leader = self.replica(action.journal, action.source)
                if leader is not None and leader.role == "leading":
                    self.set(action.journal, action.source, role="follower", lag={})
                    self._write(action.journal, action.revision, action.configuration)
            case Appoint() | SetLearners() | Promote():
                self._write(action.journal, action.revision, action.configuration)
            case ReplaceMember():
                member = self.prepare(action.broker, action.journal)
                self._write(action.journal, action.revision, with_learner(action.configuration, member))
            case DropReplica():
                del self.hosts[action.broker].replicas[action.journal]
            case RemoveBroker():
                del self.hosts[action.broker]

    # How it is

    def configuration(self, number: int) -> JournalConfiguration:
        return self.journals[number].configuration

    def leaders(self) -> dict[int, str]:
        """Return the broker that leads each journal; a journal without an activated leader is left out."""
        leaders = {}
        for number in self.journals:
            configuration = self.configuration(number)
            replica = self.replica(number, configuration.leader)
            if configuration.activated and replica is not None and replica.role == "leading":
                leaders[number] = broker_of(configuration.leader)
        return leaders

    def led_by(self, name: str) -> frozenset[int]:
        """Return the journals that a broker says it leads."""
        replicas = self.hosts[name].replicas
        return frozenset(number for number, replica in replicas.items() if replica.role == "leading")

    def load_of(self, name: str) -> BrokerLoad:
        """Return what a broker has to do, as it tells it."""
        led = self.led_by(name)
        shares = {
            number: self.demand.get(number, 0.0) * (1.0 if number in led else FOLLOWING) * self.noise()
            for number in self.hosts[name].replicas
        }
        named = tuple(load for load in self.partitions if load.journal in led)
        return BrokerLoad(cpu_share=min(1.0, sum(shares.values())), journals=shares, partitions=named)

    def members(self, number: int) -> set[str]:
        """Return the brokers of a journal's members."""
        return {broker_of(member) for member in self.configuration(number).members}

    def append(self, number: int, count: int = 100) -> None:
        """Let the log of every member that follows grow."""
        for member in self.configuration(number).members:
            replica = self.replica(number, member)
            if replica is not None and replica.role in ("leading", "follower"):
                self.set(number, member, end=replica.end + count)

    # What replicas do

    def prepare(self, name: str, number: int) -> str:
        """Make a replica, if there is none, and return the member's name."""
        host = self.hosts[name]
        known = host.replicas.get(number)
        if known is None or known.is_tainted:
            host.storage += 1
            known = ReplicaSeen(f"{name}@{host.storage}", "follower", 0, 0, 0, 0, hears_leader=False)
            host.replicas[number] = known
        return known.member

    def _write(self, number: int, revision: int, configuration: JournalConfiguration) -> None:
        known = self.journals.get(number)
        assert revision == (known.revision if known else 0), "planned for what was seen"
        since_ms = (
            known.since_ms
            if known is not None and known.configuration.epoch == configuration.epoch
            else self.now_ms
        )
        self.revision += 1
        homed_ms = None if known is None else known.homed_ms
        if known is not None and home_of(known.configuration) != home_of(configuration):
            homed_ms = self.now_ms
        self.journals[number] = JournalSeen(configuration, self.revision, since_ms, self.now_ms, homed_ms)

    def replica(self, number: int, member: str) -> ReplicaSeen | None:
        """Return a member's replica if it lives."""
        host = self.hosts.get(broker_of(member))
        if host is None or not host.is_alive:
            return None
        replica = host.replicas.get(number)
        usable = replica is not None and replica.member == member and not replica.is_tainted
        return replica if usable else None

    def set(self, number: int, member: str, **changes: object) -> None:
        """Let a replica report something else."""
        replicas = self.hosts[broker_of(member)].replicas
        replicas[number] = msgspec.structs.replace(replicas[number], **changes)

    def elect(self, number: int) -> None:
        """Let the appointed leader take over, if majorities live."""
        journal = self.journals[number]
        configuration = journal.configuration
        previous = configuration.previous_members or configuration.members
        everybody = dict.fromkeys((*configuration.members, *previous))
        alive = {member for member in everybody if self.replica(number, member) is not None}
        leader = self.replica(number, configuration.leader)
        host = self.hosts.get(broker_of(configuration.leader))
        if (
            leader is None
            or host is None
            or not host.has_space
            or not host.reaches_coordination
            or leader.promised_epoch >= configuration.epoch
            or not is_majority(alive, configuration.members)
            or not is_majority(alive, previous)
        ):
            return
        replicas = [replica for member in previous if (replica := self.replica(number, member))]
        end = max(replica.end for replica in replicas) + 1
        epoch = configuration.epoch
        for member in alive:
            role = "leading" if member == configuration.leader else "follower"
            self.set(number, member, role=role, epoch=epoch, promised_epoch=epoch, hears_leader=True)
        self.set(number, configuration.leader, last_epoch=epoch, end=end)
        self._write(
            number,
            journal.revision,
            msgspec.structs.replace(configuration, activated=True, previous_members=configuration.members),
        )

    def replicate(self, number: int) -> None:
        """Let everybody have what the leader has, and hear it."""
        configuration = self.configuration(number)
        leader = self.replica(number, configuration.leader)
        is_led = leader is not None and leader.role == "leading" and leader.epoch == configuration.epoch
        lag = {}
        for member in (*configuration.members, *configuration.learners):
            replica = self.replica(number, member)
            if replica is None or broker_of(member) in self.stuck:
                lag[member] = 1 << 40
            elif not is_led or leader is None:
                self.set(number, member, hears_leader=False)
            elif member != configuration.leader:
                epoch = configuration.epoch
                self.set(
                    number,
                    member,
                    role="follower",
                    hears_leader=True,
                    epoch=epoch,
                    promised_epoch=epoch,
                    last_epoch=leader.last_epoch,
                    end=leader.end,
                )
                lag[member] = 0
        if is_led:
            answered = set(configuration.members) - {member for member, records in lag.items() if records}
            self.set(
                number,
                configuration.leader,
                lag=lag,
                stuck_ms={
                    member: self.now_ms - self.stuck[broker_of(member)]
                    for member in lag
                    if broker_of(member) in self.stuck
                },
                hears_leader=is_majority(answered, configuration.members),
            )

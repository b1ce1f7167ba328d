"""What a manager sees of a cell, and what it may do about it: values only. `placement` decides between the two.

Brokers report their replicas; coordination holds one configuration for each journal. Times are milliseconds of the
manager's clock, which does not jump. A journal's *home* is the broker of its first member: it leads the journal while
it can.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quaymaster.core.cell.load import BrokerLoad
from quaymaster.core.replication.replication import Role
from quaymaster.core.values.journal_configuration import JournalConfiguration

BrokerState = Literal["active", "draining", "stopping"]
"""`draining`: its replicas go elsewhere, then it leaves. `stopping`: it will be back, and leads nothing till then."""


class ReplicaSeen(msgspec.Struct, frozen=True):
    """What a broker says of one of its replicas.

    `last_epoch` and `end` are where its log ends. `lag`: of each follower and learner, in records, told by a leader,
    activated or about to be. `is_ready`: it is recovered and takes part. `is_tainted`: its disk failed, and nothing
    on it counts any more. `is_rebuilding`: its queues are being rebuilt; it promises and stores, and cannot serve
    yet. `expiry_held`: it leads, and nothing expires because wall clocks are, or were, `clock_ahead_ms` ahead of the
    journal's time (negative: behind). `time_stepped_ms`: how far that stepped when it was elected. `unheard_ms`:
    for how long it has told that it hears no leader (a leader: no majority); the manager's own count.
    `copied_bytes`: how much of a copy each broker has got that copies from here. `stuck_ms`: for how long a
    follower or learner that is behind has got no more, by what its leader told; the manager's own count as well.
    """

    member: str
    role: Role
    epoch: int
    promised_epoch: int
    last_epoch: int
    end: int
    hears_leader: bool
    is_ready: bool = True
    is_tainted: bool = False
    is_rebuilding: bool = False
    lag: dict[str, int] = {}
    unheard_ms: int = 0
    copied_bytes: dict[str, int] = {}
    stuck_ms: dict[str, int] = {}
    expiry_held: bool = False
    clock_ahead_ms: int = 0
    time_stepped_ms: int = 0


class BrokerReport(msgspec.Struct, frozen=True):
    """What a broker answers when asked how it is: every replica on its disks, opened or not, by journal.

    `is_disk_low`: it refuses sends, the rest goes on. `has_space`: false when there is no room to write at all.
    `coordination_silent_ms`: for how long coordination has not answered it; till it does, it can activate nothing.
    `wall_ms`: its wall clock, 0 when it does not tell.
    """

    replicas: dict[int, ReplicaSeen]
    disk_free_bytes: int = 0
    is_disk_low: bool = False
    load: BrokerLoad = BrokerLoad()
    has_space: bool = True
    coordination_silent_ms: int = 0
    wall_ms: int = 0


class BrokerSeen(msgspec.Struct, frozen=True):
    """A registered broker and what was last heard from it.

    `is_reachable`: its connection is open, or not yet known to be impossible. `since_ms`: when the manager began to
    look for it. `heard_ms`: when the question was sent that it answered last, None if there is none; so the report is
    no older. `connected_ms`: since when it has answered without a break. `clock_ms`: how far its wall clock is ahead of
    the manager's clock, at least and at most, for the answer was on its way for some time; None when it does not tell.
    The load in the report is smoothed, and `busy_since_ms` tells since when it is above BUSY_SHARE (`load.LoadTrend`).
    """

    name: str
    zone: str
    state: BrokerState
    revision: int
    is_reachable: bool
    since_ms: int
    heard_ms: int | None = None
    connected_ms: int = 0
    report: BrokerReport = BrokerReport({})
    clock_ms: tuple[int, int] | None = None
    busy_since_ms: int | None = None

    @property
    def silent_since_ms(self) -> int:
        """Since when nothing was heard of it; if nothing ever was, since it is known."""
        return self.since_ms if self.heard_ms is None else self.heard_ms


class JournalSeen(msgspec.Struct, frozen=True):
    """A journal's key in coordination; since when its epoch, and this revision of it, is known.

    `homed_ms`: when its home became another; None where that was not since this manager looks.
    """

    configuration: JournalConfiguration
    revision: int
    since_ms: int
    revised_ms: int
    homed_ms: int | None = None


class PlacementSettings(msgspec.Struct, frozen=True):
    """How patient and how careful a manager is."""

    replicas: int = 3
    suspicion_ms: int = 1_500
    """A broker that is silent for so long is suspected; one that cannot be reached is at once."""
    replacement_grace_ms: int = 300_000
    """A member whose broker is silent for so long is replaced."""
    election_ms: int = 5_000
    """A leader that found no majority for so long is given up; one that is further, after four times that."""
    unheard_ms: int = 3_000
    """A leader that no majority answers for so long is given up."""
    settle_ms: int = 10_000
    """A broker is given replicas and leadership for balance's sake after being heard for so long."""
    learner_lag_max: int = 1_000
    """Records that a learner may be behind when it becomes a member."""
    transfer_lag_max: int = 10_000
    """Records that a member may be behind when leadership is handed to it."""
    learner_patience_ms: int = 30_000
    """A learner whose broker is silent for so long is given up."""
    learner_stuck_ms: int = 120_000
    """A learner that got nothing for so long, though it is behind, is given up."""
    drop_grace_ms: int = 60_000
    """A replica that no configuration names is dropped after so long."""
    coordination_patience_ms: int = 3_000
    """A broker that coordination has not answered for so long is to lead nothing new while another one can."""
    clock_skew_max_ms: int = 500
    """A broker whose wall clock is further from the others' leads nothing while another one can."""
    moves_max: int = 2
    """Journals of a cell that change members or hand over leadership at once."""
    journals_per_broker: int = 1
    """So many journals are at home at each broker, on average; more are created, none is taken away."""
    busy_ms: int = 10_000
    """A broker that is above BUSY_SHARE for so long gives a journal away. Loads are trusted after so long, too."""
    load_rest_ms: int = 600_000
    """A journal with load whose home became another stays there for so long, as far as load goes."""


class CellSeen(msgspec.Struct, frozen=True):
    """All that a plan rests on.

    `acting`: journals on which an action is being carried out; nothing is planned for them. `asking`: journals of which
    a broker is asked to make or drop a replica, which may take long; they are given leaders meanwhile, and nothing else
    is done. `resting`: journals for which a move failed lately; they are given leaders, and no moves.
    """

    now_ms: int
    brokers: tuple[BrokerSeen, ...]
    journals: dict[int, JournalSeen]
    settings: PlacementSettings = PlacementSettings()
    acting: frozenset[int] = frozenset()
    asking: frozenset[int] = frozenset()
    resting: frozenset[int] = frozenset()


class CreateJournal(msgspec.Struct, frozen=True):
    """Prepare a replica on each broker, then write `first_configuration`; the first broker is the journal's home."""

    journal: int
    brokers: tuple[str, ...]


class Appoint(msgspec.Struct, frozen=True):
    """Write a configuration with another leader, or the same one for a new epoch, over this revision."""

    journal: int
    configuration: JournalConfiguration
    revision: int
    reason: str


class SetLearners(msgspec.Struct, frozen=True):
    """Write the same configuration with other learners over this revision."""

    journal: int
    configuration: JournalConfiguration
    revision: int
    reason: str


class Promote(msgspec.Struct, frozen=True):
    """Write a configuration with other members and the same leader over this revision."""

    journal: int
    configuration: JournalConfiguration
    revision: int
    reason: str


class Transfer(msgspec.Struct, frozen=True):
    """Let the leader `source` hand over to `target`; once it has resigned, write the configuration."""

    journal: int
    source: str
    target: str
    configuration: JournalConfiguration
    revision: int
    reason: str


class ReplaceMember(msgspec.Struct, frozen=True):
    """Prepare a replica on a broker, then write the configuration `with_learner` over this revision.

    `leaving`: whose place it will take once it knows everything, None when the journal has too few members. That is
    decided again when the time has come.
    """

    journal: int
    leaving: str | None
    broker: str
    configuration: JournalConfiguration
    revision: int
    reason: str


class DropReplica(msgspec.Struct, frozen=True):
    """Let a broker drop a replica that the configuration of this epoch, and every later one, does without.

    The broker refuses when it knows of a configuration that names the member.
    """

    journal: int
    broker: str
    member: str
    epoch: int


class RemoveBroker(msgspec.Struct, frozen=True):
    """Delete the registration of a drained broker, if it is still at this revision."""

    broker: str
    revision: int


JournalAction = CreateJournal | Appoint | SetLearners | Promote | Transfer | ReplaceMember | DropReplica
Action = JournalAction | RemoveBroker


class Plan(msgspec.Struct, frozen=True):
    """What to do now, most urgent first, at most one action for a journal; and what an operator should know."""

    actions: tuple[Action, ...]
    problems: tuple[str, ...]


def broker_of(member: str) -> str:
    """Return the broker of a member `broker@storage_id`."""
    return member.partition("@")[0]


def home_of(configuration: JournalConfiguration) -> str:
    """Return the broker that is a journal's home."""
    return broker_of(configuration.members[0])


def is_majority(voters: set[str], members: tuple[str, ...]) -> bool:
    """Tell whether more than half of the members are among the voters."""
    return 2 * len(voters.intersection(members)) > len(members)


def first_configuration(members: tuple[str, ...]) -> JournalConfiguration:
    """Return the configuration of a new journal, whose replicas are all empty."""
    return JournalConfiguration(1, members[0], members, members, activated=False)


def with_learner(configuration: JournalConfiguration, member: str) -> JournalConfiguration:
    """Return the same epoch's configuration with one more learner."""
    learners = (*(known for known in configuration.learners if known != member), member)
    return msgspec.structs.replace(configuration, learners=learners)

"""Which faults a run has, how often and how bad: drawn from its seed, most kinds on in some runs and off in others."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from quaymaster.core.cell.cell import PlacementSettings
from sim.kernel import MS, SECOND
from sim.log_disk import DiskFaults
from sim.network import NetworkFaults
from sim.store import StoreFaults

FAULTS = (
    "appointment",
    "blackout",
    "clock jump",
    "disk fails",
    "disk full",
    "disk lost",
    "drain",
    "isolation",
    "kill",
    "leader cut off",
    "long absence",
    "manager away",
    "manager cut off",
    "pause",
    "power cut",
    "rolling restart",
    "slow disk",
    "split",
    "store away",
    "swap",
    "transfer",
)
"""What the nemesis does, by name. A leader alone with its clients is drawn apart."""


SHIFTS_MS = (3_000, 60_000, 400_000, 1_200_000, 18_000_000, 432_000_000, 94_608_000_000, 1_261_440_000_000)
"""How far wall clocks are wrong, ahead and behind: seconds, minutes, hours, days, years, forty years."""
SHIFTS_OF_ALL_MS = (-60_000, -60_000, 60_000, 400_000, 1_200_000, 18_000_000)
"""How far all are wrong together. Where they are behind, and all stop after they were set right, they are believed:
windows of deduplication, five minutes long, must outlast that."""


CLOCK_SKEW_MAX_MS = PlacementSettings().clock_skew_max_ms
CLOCK_SKEW_UNLIMITED_MS = 1 << 50
"""Where clocks jump about by seconds, leadership does not follow them."""


@dataclass(frozen=True, slots=True)
class WrongClocks:
    """Wall clocks that are far off, from before the first message on: those of a minority, whose members change them
    every `interval_us`. `all_ms`: or all are off by the same until, in the middle of the run, somebody sets them
    right."""

    interval_us: int
    shifts_ms: tuple[int, ...]
    all_ms: int = 0


@dataclass(frozen=True, slots=True)
class Restarts:
    """About every `interval_us` all processes end, and start after up to `away_us`. `shifts_ms`: how far wall clocks
    step, while their machines stay up; if it is empty, the machines lose power, and wall clocks are right."""

    interval_us: int
    away_us: int
    shifts_ms: tuple[int, ...]


@dataclass(slots=True)
class Profile:
    """A run: its cell, its load, its faults. `intervals_us`: how far apart the faults of each kind are on average."""

    hosts: int = 4
    late_hosts: int = 0
    """So many of them join while the others are under fire."""
    zones: int = 9
    managers: int = 2
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    fire_us: int = 40 * SECOND
    intervals_us: dict[str, int] = field(default_factory=dict)
    network: NetworkFaults = field(default_factory=NetworkFaults)
    disk: DiskFaults = field(default_factory=DiskFaults)
    store: StoreFaults = field(default_factory=StoreFaults)
    clock_skew_ms: int = 0
    clock_drift: float = 0.0
    wrong_clocks: WrongClocks | None = None
    has_uptime: bool = False
    """Whether processes that start again know how long they were away, as long as their machine stayed up."""
    restarts: Restarts | None = None
    producers: int = 3
    consumers: int = 4
    gap_us: int = 100 * MS
    groups: int = 4
    carelessness: float = 0.2
    snapshot_records: int = 400
    snapshot_us: int = 0
    """So long at most a snapshot takes, in which partitions that come later have newer definitions; 0: no time."""
    compaction_us: int = 0
    """How far apart the compactions of a replica are on average; 0: there are none."""
    rebuild_us: int = 0
    """So long at most a replica makes its queues anew, while its log goes on; 0: the log stands still meanwhile."""
    has_moves: bool = False
    """Whether dead letters of one queue move to another in another journal."""
    has_more_queues: bool = False
    """Whether there is a queue that is purged, and one whose messages expire."""
    has_logs: bool = False
    """Whether there are log-retained queues with two consumer groups each."""
    has_transactions: bool = False
    """Whether there are queues to which sinks send in transactions."""
    has_claims: bool = False
    """Whether there are queues whose messages are claimed, and received by others as well."""
    has_redrives: bool = False
    """Whether there are queues whose dead letters come back to them, by move tasks or by themselves."""
    has_completions: bool = False
    """Whether there are queues whose messages are completed, by messages to others."""
    has_changing_partitions: bool = False
    """Whether there is a queue whose partitions are split, merged and moved."""
    has_changing_ids: bool = False
    """Whether that one is ExactlyOnce, and knows messages by their deduplication ids alone."""
    changes_fifo: bool = False
    """Whether that is a FIFO queue."""
    changes_log: bool = False
    """Whether that is a log with two consumer groups."""
    feeds_partitions: bool = False
    """Whether dead letters of another queue go to it; no log takes any."""
    partition_work_us: int = 0
    """How long its consumers work at most before they delete."""
    restores_rows: bool = False
    """Whether its row goes back to an older one, as in a restored store."""
    has_guarantees: bool = False
    """Whether there are queues with other guarantees than AtLeastOnce."""


def draw(seed: int) -> Profile:
    """Draw the profile of a seed."""
    random = Random(f"{seed}/profile")
    members = random.choice((1, 3, 3, 3, 3, 3, 3, 5))
    late_hosts = random.choice((0, 0, 1))
    profile = Profile(
        hosts=members + max(late_hosts, random.choice((0, 1))),
        late_hosts=late_hosts,
        zones=random.choice((2, 3, 9)),
        placement=PlacementSettings(
            replicas=members,
            replacement_grace_ms=random.choice((4_000, 15_000, 300_000)),
            settle_ms=random.choice((1_000, 10_000)),
            learner_lag_max=random.choice((50, 1_000)),
            drop_grace_ms=random.choice((3_000, 60_000)),
            clock_skew_max_ms=CLOCK_SKEW_UNLIMITED_MS,
        ),
        fire_us=random.choice((20, 40, 60)) * SECOND,
        producers=random.randint(2, 4),
        consumers=random.randint(3, 6),
        gap_us=random.choice((20, 60, 200)) * MS,
        groups=random.choice((1, 3, 10)),
        carelessness=random.choice((0.0, 0.2, 0.5)),
        snapshot_records=random.choice((60, 400)),
    )
    mood = random.choice((0.2, 0.4, 0.7))
    for fault in FAULTS:
        if random.random() < mood:
            profile.intervals_us[fault] = random.choice((3, 8, 20)) * SECOND
    if not {"manager away", "manager cut off"} & profile.intervals_us.keys():
        profile.managers = random.choice((1, 1, 2))
    for rare in ("blackout", "disk lost", "disk fails", "long absence", "drain"):
        if rare in profile.intervals_us:
            profile.intervals_us[rare] *= 2
    network, disk, store = profile.network, profile.disk, profile.store
    if random.random() < mood:
        network.loss = random.choice((0.001, 0.02, 0.1))
    if random.random() < mood:
        network.duplication = random.choice((0.01, 0.1))
    if random.random() < mood:
        network.reordering = random.choice((0.05, 0.5))
    if random.random() < mood:
        network.slow = random.choice((0.005, 0.05))
        network.slow_us = random.choice((50 * MS, 500 * MS, 3 * SECOND))
    if random.random() < 0.3:
        network.delay_us = (500, 20 * MS)
    if random.random() < mood:
        disk.slow = random.choice((0.01, 0.1))
        disk.slow_us = random.choice((50 * MS, SECOND))
    if random.random() < 0.3:
        disk.fsync_us = (2 * MS, 15 * MS)
    if random.random() < mood:
        store.lost_answers = random.choice((0.05, 0.3))
    if random.random() < mood:
        store.lost_watches = random.choice((0.1, 1.0))
    if random.random() < mood:
        profile.clock_skew_ms = random.choice((5, 200, 3_000))
    if random.random() < mood:
        profile.clock_drift = random.choice((0.0001, 0.01))
    if random.random() < 0.5:
        profile.compaction_us = random.choice((500 * MS, 5 * SECOND))
    profile.has_more_queues = random.random() < 0.3
    profile.has_moves = random.random() < 0.4
    profile.has_logs = random.random() < 0.2
    profile.has_transactions = random.random() < 0.2
    profile.has_redrives = random.random() < 0.1
    set_clocks(profile, draw_wrong_clocks(seed, members, chance=0.35))
    set_restarts(profile, draw_restarts(seed, members, chance=0.2))
    if (leaders := Random(f"{seed}/leader alone")).random() < 0.3:
        profile.intervals_us["leader alone"] = leaders.choice((5, 15)) * SECOND
    profile.rebuild_us = Random(f"{seed}/rebuild").choice((0, 50 * MS, 2 * SECOND))
    profile.has_uptime |= Random(f"{seed}/uptime").random() < 0.5
    profile.has_changing_partitions = Random(f"{seed}/partitions").random() < 0.1
    profile.changes_fifo = Random(f"{seed}/fifo partitions").random() < 0.5
    profile.changes_log = profile.has_changing_partitions and Random(f"{seed}/log partitions").random() < 0.3
    profile.restores_rows = Random(f"{seed}/restored rows").random() < 0.5
    changes_no_log = profile.has_changing_partitions and not profile.changes_log
    profile.feeds_partitions = changes_no_log and Random(f"{seed}/fed partitions").random() < 0.5
    if Random(f"{seed}/partition work").random() < 0.3:
        profile.partition_work_us = SECOND
    guarantees = Random(f"{seed}/guarantees")
    profile.has_guarantees = guarantees.random() < 0.2
    profile.has_changing_ids = guarantees.random() < 0.5
    profile.has_claims = Random(f"{seed}/claims").random() < 0.15
    profile.has_completions = Random(f"{seed}/completions").random() < 0.1
    return profile


def set_clocks(profile: Profile, wrong_clocks: WrongClocks | None) -> None:
    """Let these clocks be wrong in a run, or none but those that jump about."""
    profile.wrong_clocks = wrong_clocks
    limit_ms = CLOCK_SKEW_UNLIMITED_MS
    if wrong_clocks is not None:
        profile.intervals_us.pop("clock jump", None)  # which spares no majority
        profile.clock_skew_ms = min(profile.clock_skew_ms, CLOCK_SKEW_MAX_MS // 3)
        profile.clock_drift = min(profile.clock_drift, 0.0001)  # or the others drift apart, too
        limit_ms = CLOCK_SKEW_MAX_MS
    profile.placement = msgspec.structs.replace(profile.placement, clock_skew_max_ms=limit_ms)


def draw_wrong_clocks(seed: int, members: int, *, chance: float) -> WrongClocks | None:
    """Draw what is wrong with the clocks: in so many of the runs in which a majority can be right."""
    random = Random(f"{seed}/wrong clocks")
    if members < 3 or random.random() >= chance:
        return None
    interval_us = random.choice((3, 10, 1_000)) * SECOND
    shifts_ms = tuple(random.sample(SHIFTS_MS, 3))
    all_ms = random.choice((0, 0, 1)) * random.choice(SHIFTS_OF_ALL_MS)
    return WrongClocks(interval_us, shifts_ms, all_ms)


UNMEASURED = (
    "clock jump",
    "disk fails",
    "disk lost",
    "pause",
    "power cut",
    "blackout",
    "swap",
    "appointment",
    "drain",
)
"""Faults after which queue time may be a little or more behind: a replica hears late what the time was, is booted, or
never knew it."""


def draw_restarts(seed: int, members: int, *, chance: float) -> Restarts | None:
    """Draw how all processes start again together, in so many of the runs in which some replica knows the time."""
    random = Random(f"{seed}/restarts")
    if members < 3 or random.random() >= chance:
        return None
    shifts_ms = tuple(random.sample(SHIFTS_MS, 3)) if random.random() < 0.6 else ()
    return Restarts(random.choice((8, 15)) * SECOND, random.choice((5, 20)) * SECOND, shifts_ms)


def set_restarts(profile: Profile, restarts: Restarts | None) -> None:
    """Let all processes start again together, in a run in which queue time has to be right all the time."""
    profile.restarts, profile.has_uptime = restarts, restarts is not None
    if restarts is None:
        return
    set_clocks(profile, None)
    profile.hosts -= profile.late_hosts
    profile.late_hosts = 0
    for fault in UNMEASURED:
        profile.intervals_us.pop(fault, None)
    profile.network.slow = profile.network.reordering = 0.0
    profile.clock_skew_ms = min(profile.clock_skew_ms, 200)
    profile.clock_drift = min(profile.clock_drift, 0.0001)


HUNTS: dict[str, dict[str, int]] = {
    "any": {},
    "stale": {"leader alone": 3, "power cut": 2, "appointment": 4},
    "forks": {"leader alone": 3, "appointment": 4, "slow disk": 2},
    "learning": {"swap": 2, "slow disk": 4, "transfer": 6},
    "leases": {"leader alone": 4, "pause": 3},
    "alone": {"leader alone": 3, "power cut": 4},
    "elections": {"appointment": 2, "kill": 3, "power cut": 2, "isolation": 4, "leader cut off": 4},
    "unattended": {"manager away": 2, "power cut": 1, "kill": 3},
    "members": {"drain": 6, "disk lost": 8, "kill": 8},
    "cut off": {"manager cut off": 3},
    "swaps": {"appointment": 1, "swap": 3, "kill": 5, "power cut": 5, "isolation": 2, "store away": 6},
    "power": {"power cut": 2, "blackout": 6, "kill": 2},
    "disks": {"disk fails": 3, "disk lost": 3, "kill": 5, "power cut": 5, "isolation": 4, "slow disk": 3},
    "laggards": {"long absence": 4, "power cut": 4, "kill": 6, "isolation": 6, "appointment": 4},
    "snapshots": {"kill": 2, "power cut": 3, "blackout": 8, "appointment": 3},
    "compaction": {"appointment": 2, "power cut": 2, "kill": 4, "leader cut off": 3},
    "moves": {"kill": 2, "leader cut off": 3, "power cut": 3, "transfer": 6},
    "redrives": {"kill": 3, "leader cut off": 4, "power cut": 4, "transfer": 6, "clock jump": 5},
    "more queues": {"kill": 5, "leader cut off": 5},
    "logs": {"kill": 2, "power cut": 3, "leader cut off": 4, "transfer": 6},
    "completions": {"kill": 2, "power cut": 3, "leader cut off": 3, "transfer": 6},
    "partitions": {"kill": 2, "power cut": 3, "leader cut off": 3, "transfer": 6},
    "fifo partitions": {"kill": 2, "power cut": 3, "leader cut off": 3, "transfer": 6},
    "fed partitions": {"kill": 3, "power cut": 4, "leader cut off": 4, "transfer": 6},
    "fed fifo partitions": {"kill": 3, "power cut": 4, "leader cut off": 4, "transfer": 6},
    "restored rows": {"kill": 4, "leader cut off": 4, "transfer": 6},
    "held groups": {"split": 2, "leader cut off": 6, "transfer": 6},
    "lost deletes": {"blackout": 3, "transfer": 6},
    "log partitions": {"kill": 3, "power cut": 4, "leader cut off": 4, "transfer": 6},
    "fifo log partitions": {"kill": 3, "power cut": 4, "leader cut off": 4, "transfer": 6},
    "transactions": {"kill": 2, "power cut": 3, "leader cut off": 4, "transfer": 6},
    "guarantees": {"kill": 4, "leader alone": 4, "transfer": 6, "power cut": 5},
    "claims": {"kill": 3, "power cut": 4, "leader cut off": 5, "transfer": 6},
    "queues": {"kill": 3, "leader cut off": 5, "transfer": 8, "power cut": 6},
    "restarts": {"kill": 4, "leader cut off": 4, "transfer": 8},
    "clocks": {"kill": 4, "leader cut off": 4, "disk lost": 8, "power cut": 6, "blackout": 12, "transfer": 8},
}
"""Profiles in which one kind of bug shows soonest: the mean distance in seconds of each fault they add."""


def draw_for(hunt: str, seed: int) -> Profile:
    """Draw the profile of a seed, with what a hunt wants."""
    profile = draw(seed)
    if hunt == "any":
        return profile
    profile.hosts, profile.late_hosts = 4, 0
    profile.placement = msgspec.structs.replace(profile.placement, replicas=3)
    profile.fire_us = 20 * SECOND
    profile.gap_us = min(profile.gap_us, 60 * MS)
    profile.intervals_us.pop("leader alone", None)
    profile.intervals_us.update({name: seconds * SECOND for name, seconds in HUNTS[hunt].items()})
    if hunt == "cut off":
        profile.managers = 2
    if hunt == "unattended":
        profile.managers = 1
    set_clocks(profile, draw_wrong_clocks(seed, 3, chance=1.0) if hunt == "clocks" else None)
    set_restarts(profile, draw_restarts(seed, 3, chance=1.0) if hunt == "restarts" else None)
    if hunt == "clocks":
        profile.late_hosts = seed % 2
    profile.rebuild_us = 2 * SECOND if hunt == "forks" else 0
    profile.has_more_queues = hunt == "more queues"
    profile.has_moves = hunt == "moves"
    profile.has_logs = hunt == "logs"
    profile.has_transactions = hunt == "transactions"
    profile.has_redrives = hunt == "redrives"
    profile.has_claims = hunt == "claims"
    logs = ("log partitions", "fifo log partitions")
    fed = ("fed partitions", "fed fifo partitions")
    held = ("held groups", "lost deletes")
    changes = ("partitions", "fifo partitions", "restored rows", *held, *fed, *logs)
    profile.has_changing_partitions = hunt in changes
    fifo = ("fifo partitions", *held, "fed fifo partitions", "fifo log partitions")
    profile.changes_fifo = hunt in fifo
    profile.feeds_partitions = hunt in fed
    profile.changes_log = hunt in logs
    profile.restores_rows = hunt in ("restored rows", *logs)
    profile.partition_work_us = SECOND if hunt in held else 0
    profile.has_guarantees = hunt == "guarantees"
    profile.has_changing_ids = False
    profile.has_completions = hunt == "completions"
    compacts = ("compaction", "forks", "guarantees", "logs", "transactions", "claims")
    profile.compaction_us = 300 * MS if hunt in compacts else 0
    if hunt in (*compacts, "laggards", "snapshots", *changes):
        profile.snapshot_records = 60
        profile.gap_us = 20 * MS
    if hunt in (
        "alone",
        "forks",
        "guarantees",
        "leases",
        "stale",
    ):  # a leader that is alone has to be replaced
        for fault in ("store away", "manager away", "manager cut off", "disk fails"):
            profile.intervals_us.pop(fault, None)
    if hunt == "claims":  # what others hold is only known where queue time is right
        profile.intervals_us.pop("clock jump", None)
        profile.clock_skew_ms = min(profile.clock_skew_ms, 200)
    if hunt in changes:  # each change takes as long as ids are known
        profile.fire_us = 80 * SECOND
        profile.snapshot_us = SECOND
    if hunt in logs:  # much is going on besides: less will do
        profile.gap_us = 60 * MS
    if hunt in held:  # what is decided waits for its commit, and is lost with its leader
        profile.disk.slow = 0.5 if hunt == "lost deletes" else 0.3
        profile.disk.slow_us = SECOND if hunt == "lost deletes" else 500 * MS
    if hunt == "guarantees":
        profile.disk.fsync_us = (2 * MS, 15 * MS)
        profile.intervals_us.pop("clock jump", None)
    if hunt == "stale":
        profile.gap_us = 200 * MS
        profile.disk.has_stale = True
    if hunt == "forks":
        profile.disk.slow = 0.3
        profile.disk.slow_us = 500 * MS
    if hunt == "leases":
        profile.carelessness = 0.9
        profile.consumers = 8
    if hunt == "alone":  # much that no majority ever has: in snapshots, and handed out of many groups
        profile.snapshot_records = 5
        profile.carelessness = 0.1
        profile.consumers = 8
        profile.groups = 10
    if hunt == "completions":
        profile.compaction_us = 300 * MS
        profile.carelessness = 0.5
    if hunt in ("moves", "completions"):
        profile.snapshot_records = 60
        profile.gap_us = 20 * MS
        profile.network.delay_us = (500, 20 * MS)
        profile.network.loss = max(profile.network.loss, 0.02)
    if hunt == "queues":
        profile.carelessness = 0.5
        profile.clock_skew_ms = 3_000
        profile.gap_us = 20 * MS
        profile.network.delay_us = (500, 20 * MS)
        profile.disk.fsync_us = (2 * MS, 15 * MS)
        profile.network.loss = max(profile.network.loss, 0.02)
    if hunt == "elections":
        profile.store.lost_answers = 0.3
        profile.network.delay_us = (100, 20 * MS)
    return profile

"""Which faults a run has, how often and how bad: drawn from its seed, most kinds on in some runs and off in others."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

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
    "isolation",
    "kill",
    "leader cut off",
    "long absence",
    "manager away",
    "pause",
    "power cut",
    "slow disk",
    "split",
    "store away",
    "swap",
    "transfer",
)
"""What the nemesis does, by name."""


@dataclass(slots=True)
class Profile:
    """A run: its cell, its load, its faults. `intervals_us`: how far apart the faults of each kind are on average."""

    hosts: int = 5
    members: int = 3
    fire_us: int = 40 * SECOND
    intervals_us: dict[str, int] = field(default_factory=dict)
    network: NetworkFaults = field(default_factory=NetworkFaults)
    disk: DiskFaults = field(default_factory=DiskFaults)
    store: StoreFaults = field(default_factory=StoreFaults)
    clock_skew_ms: int = 0
    clock_drift: float = 0.0
    producers: int = 3
    consumers: int = 4
    gap_us: int = 100 * MS
    groups: int = 4
    carelessness: float = 0.2
    snapshot_records: int = 400


def draw(seed: int) -> Profile:
    """Draw the profile of a seed."""
    random = Random(f"{seed}/profile")
    members = random.choice((1, 3, 3, 3, 3, 5))
    profile = Profile(
        hosts=members + random.choice((0, 1, 2)),
        members=members,
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
    for rare in ("blackout", "disk lost", "disk fails", "long absence"):
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
    return profile


HUNTS: dict[str, dict[str, int]] = {
    "any": {},
    "stale": {"leader cut off": 2, "power cut": 1, "appointment": 3},
    "slow disks": {"leader cut off": 2, "appointment": 2, "slow disk": 1},
    "learning": {"swap": 2, "slow disk": 4, "transfer": 6},
    "leases": {"leader cut off": 2, "isolation": 3, "pause": 3, "swap": 8},
    "elections": {"appointment": 2, "kill": 3, "power cut": 2, "isolation": 4, "leader cut off": 4},
    "swaps": {"appointment": 1, "swap": 3, "kill": 5, "power cut": 5, "isolation": 2, "store away": 6},
    "power": {"power cut": 2, "blackout": 6, "kill": 2},
    "disks": {"disk fails": 3, "disk lost": 3, "kill": 5, "power cut": 5, "isolation": 4, "slow disk": 3},
    "laggards": {"long absence": 4, "power cut": 4, "kill": 6, "isolation": 6, "appointment": 4},
    "snapshots": {"kill": 2, "power cut": 3, "blackout": 8, "appointment": 3},
    "queues": {"kill": 3, "leader cut off": 5, "transfer": 8, "power cut": 6},
}
"""Profiles in which one kind of bug shows soonest: the mean distance in seconds of each fault they add."""


def draw_for(hunt: str, seed: int) -> Profile:
    """Draw the profile of a seed, with what a hunt wants."""
    profile = draw(seed)
    if hunt == "any":
        return profile
    profile.members = 3
    profile.hosts = 5
    profile.fire_us = 20 * SECOND
    profile.gap_us = min(profile.gap_us, 60 * MS)
    profile.intervals_us.update({name: seconds * SECOND for name, seconds in HUNTS[hunt].items()})
    if hunt in ("laggards", "snapshots"):
        profile.snapshot_records = 60
        profile.gap_us = 20 * MS
    if hunt == "stale":
        profile.gap_us = 200 * MS
        profile.disk.has_stale = True
    if hunt == "slow disks":
        profile.disk.slow = 0.3
        profile.disk.slow_us = 500 * MS
    if hunt == "leases":
        profile.carelessness = 0.0
        profile.consumers = 8
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

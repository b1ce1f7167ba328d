"""A registered broker as a manager watches it: the link to it, its last report, and how long things have been so.

report ──▶ replicas that hear no leader ──▶ unheard_ms
      ├──▶ followers and learners whose leader says that they got no more ──▶ stuck_ms
      └──▶ load ──▶ smoothed, busy_since_ms
"""

from __future__ import annotations

import asyncio

import msgspec

from quaymaster.coordination.cell_keys import BrokerRegistration
from quaymaster.core.cell.cell import BrokerReport, BrokerSeen, ReplicaSeen, broker_of
from quaymaster.core.cell.load import LoadTrend
from quaymaster.managers.broker_link import BrokerLink


class WatchedBroker:
    """Whoever makes one gives it its link and its task."""

    def __init__(self, registration: BrokerRegistration, revision: int, since_ms: int) -> None:
        self.registration = registration
        self.revision = revision
        self.since_ms = since_ms
        self.link: BrokerLink
        self.task: asyncio.Task[None]
        self.poll_now = asyncio.Event()
        self.is_reachable = True
        self.heard_ms: int | None = None
        self.connected_ms = since_ms
        self.report = BrokerReport({})
        self._clock_ms: tuple[int, int] | None = None
        self._trend = LoadTrend()
        self._condition: object = None
        """What of its last report a plan must hear of at once."""
        self._unheard_since_ms: dict[int, int] = {}
        """Since when its replicas tell that they hear no leader."""
        self._progress: dict[tuple[int, str], tuple[tuple[int, int], int]] = {}
        """How far the followers of what it leads are, and since when: records, and bytes of a copy."""

    def take(self, report: BrokerReport, asked_ms: int, answered_ms: int) -> bool:
        """Take over a report: how it was when it was asked for, or later, until it was answered.

        Return whether it says something else than the one before, but for what changes all the time: how far logs are,
        load and clocks.
        """
        self.heard_ms = asked_ms
        self._clock_ms = (report.wall_ms - answered_ms, report.wall_ms - asked_ms) if report.wall_ms else None
        self._progress = {
            (number, member): self._progress_of(number, replica, member, asked_ms)
            for number, replica in report.replicas.items()
            for member in replica.lag
        }
        replicas = {
            number: msgspec.structs.replace(
                replica,
                unheard_ms=self._unheard_ms(number, replica, asked_ms),
                stuck_ms={member: asked_ms - self._progress[number, member][1] for member in replica.lag},
            )
            for number, replica in report.replicas.items()
        }
        led = frozenset(number for number, replica in replicas.items() if replica.role == "leading")
        load = self._trend.take(report.load, led, asked_ms)
        self.report = msgspec.structs.replace(report, replicas=replicas, load=load)
        before, self._condition = self._condition, _condition_of(report)
        return before != self._condition

    def seen(self) -> BrokerSeen:
        """Return what a plan needs to know."""
        return BrokerSeen(
            self.registration.name,
            self.registration.zone,
            self.registration.state,
            self.revision,
            self.is_reachable,
            self.since_ms,
            self.heard_ms,
            self.connected_ms,
            self.report,
            self._clock_ms,
            self._trend.busy_since_ms,
        )

    def _unheard_ms(self, number: int, replica: ReplicaSeen, asked_ms: int) -> int:
        if replica.hears_leader:
            self._unheard_since_ms.pop(number, None)
            return 0
        return asked_ms - self._unheard_since_ms.setdefault(number, asked_ms)

    def _progress_of(
        self, number: int, replica: ReplicaSeen, member: str, asked_ms: int
    ) -> tuple[tuple[int, int], int]:
        """Return the most that a follower ever had, and since when it has had that.

        A copy that fails again and again at the same place is no progress.
        """
        lag = replica.lag[member]
        now = replica.end - lag, replica.copied_bytes.get(broker_of(member), 0)
        most, since_ms = self._progress.get((number, member), (now, asked_ms))
        return (most, since_ms) if now <= most and lag else (max(now, most), asked_ms)


def _condition_of(report: BrokerReport) -> object:
    """Return what of a report is for long as it is when all is well."""
    replicas = {
        number: (
            *(replica.member, replica.role, replica.epoch, replica.promised_epoch, replica.hears_leader),
            *(replica.is_ready, replica.is_tainted, replica.is_rebuilding, replica.expiry_held),
        )
        for number, replica in report.replicas.items()
    }
    return replicas, report.is_disk_low, report.has_space

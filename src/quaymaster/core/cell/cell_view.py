"""Questions about what a manager sees of a cell: who is heard, who takes part, who follows whom how closely.

What is seen may be old or wrong. Of a broker that is not heard nothing counts that it said before. A leader serves when
it says so itself, of the very configuration that coordination holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quaymaster.core.cell.cell import BrokerSeen, CellSeen, JournalSeen, ReplicaSeen, broker_of, is_majority
from quaymaster.core.values.journal_configuration import JournalConfiguration

CLOCKS_MIN: Final = 3
"""With fewer wall clocks that differ, it is unknown which is wrong."""


class CellView:
    """A cell as it was seen at one moment: brokers by name, journals by number, in that order."""

    def __init__(self, seen: CellSeen) -> None:
        self.now_ms = seen.now_ms
        self.brokers = {broker.name: broker for broker in sorted(seen.brokers, key=lambda seen: seen.name)}
        self.journals = dict(sorted(seen.journals.items()))
        self.settings = seen.settings
        self._clocks_ms = {
            name: broker.clock_ms
            for name, broker in self.brokers.items()
            if broker.clock_ms is not None and self.is_heard(name)
        }
        self.skews_ms = self._skews_ms()
        """How far the wall clocks of brokers are ahead of the others', where that is known."""
        self.leads_ms = {} if self.skews_ms else self._leads_ms()
        """Where no majority of the clocks agrees: how far each is ahead of the last one, at least."""

    # Brokers

    def silent_ms(self, broker: BrokerSeen) -> int:
        """Return for how long a broker was not heard; if it never was, since it is known."""
        return self.now_ms - broker.silent_since_ms

    def is_heard(self, name: str) -> bool:
        """Tell whether what a broker said last can be taken for how it is."""
        broker = self.brokers.get(name)
        return broker is not None and broker.heard_ms is not None and not self.is_suspect(name)

    def is_suspect(self, name: str) -> bool:
        """Tell whether a broker is not there, cannot be reached, or was not heard for too long."""
        broker = self.brokers.get(name)
        return (
            broker is None or not broker.is_reachable or self.silent_ms(broker) >= self.settings.suspicion_ms
        )

    def is_settled(self, name: str) -> bool:
        """Tell whether a broker is connected for so long that things may be moved for its sake."""
        return self.now_ms - self.brokers[name].connected_ms >= self.settings.settle_ms

    def is_home(self, name: str) -> bool:
        """Whether a broker may be a journal's home: it is not leaving for good and not dead."""
        broker = self.brokers.get(name)
        return (
            broker is not None
            and broker.state != "draining"
            and self.silent_ms(broker) < self.settings.replacement_grace_ms
        )

    def is_host(self, name: str) -> bool:
        """Whether a broker can be given a replica now."""
        broker = self.brokers[name]
        return (
            self.is_heard(name)
            and broker.state == "active"
            and not broker.report.is_disk_low
            and self.why_unfit(name) is None
        )

    def why_unfit(self, name: str) -> str | None:
        """Return why a broker that is heard could not be activated now; None when nothing is known against it.

        A leader that serves already goes on without coordination, and commits what the others store.
        """
        report = self.brokers[name].report
        if not report.has_space:
            return f"broker {name} has no disk space"
        if report.coordination_silent_ms >= self.settings.coordination_patience_ms:
            return f"broker {name} does not reach coordination"
        return None

    def why_astray(self, name: str) -> str | None:
        """Return how a broker's clock is off so far that it should lead nothing while another one can."""
        skew_ms = self.skews_ms.get(name, 0)
        if abs(skew_ms) <= self.settings.clock_skew_max_ms:
            return None
        direction = "ahead of" if skew_ms > 0 else "behind"
        return f"the clock of broker {name} is {abs(skew_ms) / 1000:.1f} s {direction} the others"

    def why_unsure(self) -> str | None:
        """Return how wall clocks differ where no majority tells which is right; None where they agree, or one does."""
        far = [name for name, lead_ms in self.leads_ms.items() if lead_ms > self.settings.clock_skew_max_ms]
        if not far:
            return None
        near = [name for name in self.leads_ms if name not in far]
        ahead = ", ".join(f"that of {name} is {self.leads_ms[name] / 1000:.1f} s" for name in far)
        return (
            f"clocks of brokers differ, and no majority tells which is right: {ahead} ahead of that of "
            f"{' and '.join(near)}; any of them may lead"
        )

    def why_not_lead(self, name: str) -> str | None:
        """Return why a broker that is heard should get no leadership while another one can have it."""
        return self.why_unfit(name) or self.why_astray(name)

    def _skews_ms(self) -> dict[str, int]:
        """Return how far the wall clock of each broker that is heard is ahead of the median, at least.

        Where no majority of them agrees, there is no telling who is wrong.
        """
        spans = self._clocks_ms
        if len(spans) < CLOCKS_MIN:
            return {}
        median_ms = sorted(sum(span) // 2 for span in spans.values())[(len(spans) - 1) // 2]
        skews = {name: _outside(median_ms, low, high) for name, (low, high) in spans.items()}
        near = sum(abs(skew_ms) <= self.settings.clock_skew_max_ms for skew_ms in skews.values())
        return skews if 2 * near > len(skews) else {}

    def _leads_ms(self) -> dict[str, int]:
        """Return how far the wall clock of each broker that is heard is ahead of the last one, at least."""
        last_ms = min((high for _, high in self._clocks_ms.values()), default=0)
        return {name: max(0, low - last_ms) for name, (low, _) in self._clocks_ms.items()}

    def usable_count(self) -> int:
        """Return how many brokers may have journals for good."""
        return sum(self.is_home(name) for name in self.brokers)

    def may_hold(self, broker: BrokerSeen) -> bool:
        """Whether a broker may still have replicas: known only when it is heard, or never again."""
        if self.is_heard(broker.name):
            return bool(broker.report.replicas)
        return self.silent_ms(broker) < self.settings.replacement_grace_ms

    def is_draining(self, member: str) -> bool:
        """Tell whether a member's broker gives all away."""
        broker = self.brokers.get(broker_of(member))
        return broker is not None and broker.state == "draining"

    def broker_with(self, member: str) -> BrokerSeen:
        """Return the broker that has a member's replica; it is registered."""
        return self.brokers[broker_of(member)]

    def zone(self, name: str) -> str:
        """Return a broker's zone; that of one which is not registered is empty."""
        broker = self.brokers.get(name)
        return broker.zone if broker is not None else ""

    def zones(self, members: Iterable[str]) -> int:
        """Return how many zones the brokers of members are in."""
        return len({self.zone(broker_of(member)) for member in members})

    # Replicas

    def replica(self, number: int, member: str) -> ReplicaSeen | None:
        """Return a member's replica as it was reported just now, None when it was not or has another name."""
        name = broker_of(member)
        if not self.is_heard(name):
            return None
        replica = self.brokers[name].report.replicas.get(number)
        return replica if replica is not None and replica.member == member else None

    def is_lost(self, number: int, journal: JournalSeen, member: str) -> bool:
        """Tell whether a member's or learner's storage is gone: its broker does not list it.

        A report from before the member was named says nothing of it: members are those of the epoch, learners change.
        """
        name = broker_of(member)
        named_ms = journal.since_ms if member in journal.configuration.members else journal.revised_ms
        if not self.is_heard(name) or (self.brokers[name].heard_ms or 0) <= named_ms:
            return False
        replica = self.replica(number, member)
        return replica is None or replica.is_tainted

    def voters(self, number: int, members: Iterable[str]) -> set[str]:
        """Return the members that can be counted on to promise and to store."""
        voters = set()
        for member in members:
            replica = self.replica(number, member)
            if replica is not None and takes_part(replica):
                voters.add(member)
        return voters

    def follows(self, number: int, journal: JournalSeen, member: str, lag_max: int) -> bool:
        """Tell whether a member or learner follows the leader closely, as both of them say."""
        leader = self.leader_seen(number, journal)
        replica = self.replica(number, member)
        return (
            leader is not None
            and replica is not None
            and takes_part(replica)
            and not replica.is_rebuilding
            and replica.hears_leader
            and replica.epoch == journal.configuration.epoch
            and leader.lag.get(member, lag_max + 1) <= lag_max
        )

    def in_sync(self, number: int, journal: JournalSeen, members: Iterable[str]) -> set[str]:
        """Return the leader, and the members and learners that are close behind it."""
        return {
            member
            for member in members
            if member == journal.configuration.leader
            or self.follows(number, journal, member, self.settings.transfer_lag_max)
        }

    def log_end(self, number: int, member: str) -> tuple[int, int]:
        """Return the epoch and the end of a member's log: of two the greater one is as good or better."""
        replica = self.replica(number, member)
        return (replica.last_epoch, replica.end) if replica is not None else (0, 0)

    # Leaders

    def leader_seen(self, number: int, journal: JournalSeen) -> ReplicaSeen | None:
        """Return the leader's replica if it serves this activated configuration."""
        configuration = journal.configuration
        replica = self.replica(number, configuration.leader)
        if (
            replica is None
            or not configuration.activated
            or replica.role != "leading"
            or replica.epoch != configuration.epoch
            or not replica.hears_leader
        ):
            return None
        return replica

    def is_deaf(self, number: int, journal: JournalSeen) -> bool:
        """Tell whether a leader that is kept hears no majority: there is none to appoint another one with."""
        configuration = journal.configuration
        replica = self.replica(number, configuration.leader)
        return (
            replica is not None
            and replica.role == "leading"
            and replica.epoch == configuration.epoch
            and not replica.hears_leader
            and replica.unheard_ms >= self.settings.unheard_ms
        )

    def is_copied_from(self, replica: ReplicaSeen) -> bool:
        """Tell whether somebody gets on with a copy from an elect: it may need that one for its majority."""
        return any(
            broker_of(member) in replica.copied_bytes and stuck_ms < self.settings.learner_stuck_ms
            for member, stuck_ms in replica.stuck_ms.items()
        )

    def is_heard_by_followers(self, number: int, configuration: JournalConfiguration) -> bool:
        """Tell whether a leader that the manager does not hear serves: it says so while a majority answers it."""
        return any(
            (replica := self.replica(number, member)) is not None
            and replica.role == "follower"
            and replica.epoch == configuration.epoch
            and replica.hears_leader
            for member in configuration.members
        )

    def was_cut_off(self, number: int, configuration: JournalConfiguration) -> bool:
        """Tell whether it may be the manager that heard no broker till just now, or that hears none from now on.

        In the first case the leader may be heard next; in the second the others fall silent with it, and what they
        said last is old.
        """
        lost = self.brokers.get(broker_of(configuration.leader))
        lost_ms = 0 if lost is None or lost.heard_ms is None else lost.heard_ms
        voters = self.voters(number, configuration.members)
        brokers = [self.brokers[broker_of(member)] for member in voters]
        first_ms = min((broker.connected_ms for broker in brokers), default=0)
        if lost_ms < first_ms and self.now_ms - first_ms < self.settings.suspicion_ms:
            return True
        if lost is None or not lost.is_reachable:
            return False  # its connection was closed: that says more than silence
        heard_since = {
            member
            for member, broker in zip(voters, brokers, strict=True)
            if (broker.heard_ms or 0) >= lost_ms + self.settings.suspicion_ms // 2
        }
        return not is_majority(heard_since, configuration.members)


def is_quiet(seen: CellSeen) -> bool:
    """Tell whether nothing is on its way: all brokers active and heard, all journals led, with no learner.

    Then what is another thing in each report, as ends and lags, changes no plan. What time alone brings about may wait
    a second, but for a broker that falls silent.
    """
    if not seen.journals or seen.acting or seen.asking or seen.resting:
        return False
    view = CellView(seen)
    return all(
        broker.state == "active" and view.is_heard(name) for name, broker in view.brokers.items()
    ) and all(
        view.leader_seen(number, journal) is not None and not journal.configuration.learners
        for number, journal in view.journals.items()
    )


def _outside(value: int, low: int, high: int) -> int:
    """Return how far a stretch lies above a value (negative: below), 0 when the value is in it."""
    return max(0, low - value) + min(0, high - value)


def takes_part(replica: ReplicaSeen) -> bool:
    """Return whether a replica can be counted on to promise and to store."""
    return replica.is_ready and not replica.is_tainted and replica.role != "stopped"

"""Whether a journal needs another leader, and which of its members could be that."""

from __future__ import annotations

from quaymaster.core.cell.cell import JournalSeen, PlacementSettings, ReplicaSeen, broker_of, is_majority
from quaymaster.core.cell.cell_view import CellView, takes_part
from quaymaster.core.cell.spread import Spread
from quaymaster.core.values.journal_configuration import JournalConfiguration, activated_members

ELECTED_PATIENCE = 4
"""An elect that fetches or activates has so many times the time of one that asks for promises."""


class LeaderChoice:
    """Judges leaders, and ranks those who could take their place."""

    def __init__(self, cell: CellView, spread: Spread, settings: PlacementSettings) -> None:
        self._cell = cell
        self._spread = spread
        self._settings = settings

    def trouble(self, number: int, journal: JournalSeen) -> tuple[str, bool] | None:
        """Return why a journal needs another leader, and whether that is for slowness; None if it does not."""
        configuration = journal.configuration
        leader = configuration.leader
        name = broker_of(leader)
        if self._cell.is_suspect(name):
            age_ms = self._cell.now_ms - journal.since_ms
            is_patient = configuration.activated or age_ms < self._settings.election_ms
            if is_patient and (
                self._cell.is_heard_by_followers(number, configuration)
                or self._cell.was_cut_off(number, configuration)
            ):
                return None
            return f"broker {name} cannot be reached", False
        if not self._cell.is_heard(name):
            return None
        why_unfit = None if configuration.activated else self._cell.why_unfit(name)
        if why_unfit is not None and self.fit_candidates(number, configuration):
            return why_unfit, False
        replica = self._cell.replica(number, leader)
        if replica is None:
            lost = self._cell.is_lost(number, journal, leader)
            return (f"broker {name} has lost its replica", False) if lost else None
        return self._trouble_of(replica, number, journal)

    def _trouble_of(self, replica: ReplicaSeen, number: int, journal: JournalSeen) -> tuple[str, bool] | None:
        """Return the same of a leader whose broker is heard, and has its replica."""
        configuration = journal.configuration
        name = broker_of(configuration.leader)
        age_ms = self._cell.now_ms - journal.since_ms
        election_ms = self._settings.election_ms
        if not takes_part(replica):
            return f"the replica of broker {name} takes no part", False
        if replica.is_rebuilding and self._others_could_serve(number, configuration):
            return f"broker {name} makes its queues anew", False
        if replica.role == "leading" and replica.epoch == configuration.epoch:
            if not self._cell.is_deaf(number, journal):
                return None
            others = self._cell.voters(number, configuration.members) - {configuration.leader}
            if not is_majority(others, configuration.members):
                return None
            return f"no majority answers broker {name}", True
        if _has_given_up(replica, configuration):
            return f"broker {name} has given it up", False
        if replica.role in ("follower", "preparing") or replica.epoch < configuration.epoch:
            return (f"broker {name} found no majority", True) if age_ms >= election_ms else None
        if age_ms >= election_ms * ELECTED_PATIENCE and not self._cell.is_copied_from(replica):
            return f"broker {name} was not activated", True
        return None

    def electorate(self, number: int, configuration: JournalConfiguration) -> tuple[str, ...]:
        """Return the members of the next epoch: these, or the last activated ones when these cannot lead on.

        Members that were never activated may lack a majority, or the log: an elect has to have what a majority of
        the activated ones has, and cannot fetch what was compacted there. So one of these has to be among those with
        the longest log that nothing speaks against, if there are any.
        """
        members, activated = configuration.members, activated_members(configuration)
        if set(members) == set(activated):
            return members
        knowing = {
            member: self._cell.log_end(number, member) for member in self._cell.voters(number, activated)
        }
        longest = max(knowing.values(), default=(0, 0))
        able = [member for member, end in knowing.items() if end == longest]
        able = [member for member in able if self._cell.why_not_lead(broker_of(member)) is None] or able
        leads_on = not set(able).isdisjoint(members)
        if leads_on and is_majority(self._cell.voters(number, members), members):
            return members
        return activated

    def candidates(self, number: int, configuration: JournalConfiguration) -> list[str]:
        """Return the members that could be appointed, the best first: they take part, and know the log."""
        voters = self._cell.voters(number, self.electorate(number, configuration))
        return sorted(
            voters.intersection(activated_members(configuration)),
            key=lambda member: self._rank(number, member),
        )

    def fit_candidates(self, number: int, configuration: JournalConfiguration) -> list[str]:
        """Return those candidates that nothing speaks against.

        Those with a right clock that have not just given up what they were appointed for, if there are any.
        """
        candidates = [
            member
            for member in self.candidates(number, configuration)
            if self._cell.why_unfit(broker_of(member)) is None
        ]
        return [
            member
            for member in candidates
            if self._cell.why_not_lead(broker_of(member)) is None
            and not (member == configuration.leader and self._needs_copy(number, configuration))
        ] or candidates

    def _needs_copy(self, number: int, configuration: JournalConfiguration) -> bool:
        """Tell whether the elect found that it cannot fetch what it lacks: another one has to lead, and gives it."""
        elect = self._cell.replica(number, configuration.leader)
        return elect is not None and not configuration.activated and _has_given_up(elect, configuration)

    def _others_could_serve(self, number: int, configuration: JournalConfiguration) -> bool:
        """Tell whether another than the leader could be appointed and has its queues."""
        replicas = [
            self._cell.replica(number, member)
            for member in self.fit_candidates(number, configuration)
            if member != configuration.leader
        ]
        return any(replica is not None and not replica.is_rebuilding for replica in replicas)

    def _rank(self, number: int, member: str) -> tuple[bool, int, int, bool, bool, bool, int, str]:
        """Order candidates: who has its queues, and of those the longest log; among equals who can best lead."""
        replica = self._cell.replica(number, member)
        assert replica is not None, "candidates take part"
        broker = self._cell.broker_with(member)
        return (
            replica.is_rebuilding,
            -replica.last_epoch,
            -replica.end,
            broker.report.is_disk_low,
            broker.state != "active",
            self._spread.home[number] != broker.name,
            self._spread.led[broker.name],
            member,
        )


def _has_given_up(leader: ReplicaSeen, configuration: JournalConfiguration) -> bool:
    return leader.role == "follower" and leader.promised_epoch >= configuration.epoch

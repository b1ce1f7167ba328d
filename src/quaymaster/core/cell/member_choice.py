"""How many members a journal should have, who of them must or may leave, and which learners are worth waiting for."""

from __future__ import annotations

from quaymaster.core.cell.cell import JournalSeen, PlacementSettings, broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.spread import Spread
from quaymaster.core.values.journal_configuration import JournalConfiguration


class MemberChoice:
    """Judges members and learners."""

    def __init__(self, cell: CellView, spread: Spread, settings: PlacementSettings) -> None:
        self._cell = cell
        self._spread = spread
        self._settings = settings

    def why_leaving(self, number: int, journal: JournalSeen, member: str) -> tuple[int, str] | None:
        """Return how urgently and why a member is to be replaced, None when it may stay."""
        name = broker_of(member)
        broker = self._cell.brokers.get(name)
        if broker is None:
            return 0, f"broker {name} is not registered"
        if self._cell.is_lost(number, journal, member):
            return 0, f"broker {name} has lost its replica"
        if self._cell.silent_ms(broker) >= self._settings.replacement_grace_ms:
            return 1, f"broker {name} is dead"
        if broker.state == "draining":
            return 2, f"broker {name} is draining"
        return None

    def is_useful(self, number: int, journal: JournalSeen, learner: str) -> bool:
        """Tell whether a learner may become a member: there is one to be, and it comes on."""
        broker = self._cell.brokers.get(broker_of(learner))
        if broker is None or broker.state != "active" or learner in journal.configuration.members:
            return False
        if self._cell.is_lost(number, journal, learner) or not broker.report.has_space:
            return False
        leader = self._cell.leader_seen(number, journal)
        if leader is not None and leader.stuck_ms.get(learner, 0) >= self._settings.learner_stuck_ms:
            return False
        return self._cell.silent_ms(broker) < self._settings.learner_patience_ms

    def with_learners(
        self, number: int, journal: JournalSeen, learners: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        """Return the members once these learners are; None when no member is to be replaced."""
        configuration = journal.configuration
        members = [*configuration.members, *learners]
        wanted = self.wanted(configuration)
        while len(members) > wanted:
            leaving = self._next_to_leave(number, journal, members, learners)
            if leaving is None:
                return None
            members.remove(leaving)
        return tuple(members)

    def _next_to_leave(
        self,
        number: int,
        journal: JournalSeen,
        members: list[str],
        learners: tuple[str, ...],
    ) -> str | None:
        """Choose who leaves: who has to first, else whose leaving makes the cell most even. The leader stays."""
        configuration = journal.configuration
        candidates = [
            member for member in members if member not in learners and member != configuration.leader
        ]
        renewed = {broker_of(learner) for learner in learners}
        having_to = [
            (broker_of(member) not in renewed, why, member)
            for member in candidates
            if (why := self.why_leaving(number, journal, member)) is not None
        ]
        if having_to:
            return min(having_to)[2]
        if len(configuration.members) > self.wanted(configuration):
            in_sync = self._cell.in_sync(number, journal, members)
            return max(
                candidates,
                key=lambda member: (
                    member not in in_sync,
                    self._cell.zones([other for other in members if other != member]),
                    self._spread.replicas.get(broker_of(member), 0),
                    member,
                ),
                default=None,
            )
        gains = [
            (self._spread.gain(configuration.members, member, name, self._spread.replicas[name] - 1), member)
            for member in candidates
            for name in map(broker_of, learners)
        ]
        best = max(gains, default=((0, 0), None))
        return best[1] if best[0] > (0, 0) else None

    def wanted(self, configuration: JournalConfiguration) -> int:
        """Return how many members a journal should have: more only as brokers allow, and an odd number of them."""
        odd = self._cell.usable_count() - (self._cell.usable_count() + 1) % 2
        wanted = min(self._settings.replicas, max(len(configuration.members), odd))
        if wanted == 1 and self._cell.is_draining(configuration.leader):
            return 2  # until the other one leads
        return wanted

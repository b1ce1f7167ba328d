"""How leaderships and replicas are spread over the brokers of a cell, as far as a plan has come."""

from __future__ import annotations

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.journal_homes import choose_homes
from quaymaster.core.cell.loads import Loads
from quaymaster.core.values.journal_configuration import named_members


class Spread:
    """What each broker has of a cell's journals, and what would be more even."""

    def __init__(self, cell: CellView) -> None:
        self._cell = cell
        self.led: dict[str, int] = dict.fromkeys(cell.brokers, 0)
        """How many journals each broker leads."""
        self.replicas: dict[str, int] = dict.fromkeys(cell.brokers, 0)
        """How many replicas each broker has, learners among them."""
        for journal in cell.journals.values():
            configuration = journal.configuration
            _count(self.led, broker_of(configuration.leader))
            for member in (*configuration.members, *configuration.learners):
                _count(self.replicas, broker_of(member))
        self.loads = Loads(cell)
        self.home = choose_homes(cell, self.loads)
        """Where each journal should be led."""

    def move_leader(self, leader: str, target: str) -> None:
        """Another member is to lead a journal."""
        _count(self.led, broker_of(leader), -1)
        _count(self.led, broker_of(target))

    def gain(self, members: tuple[str, ...], leaving: str, name: str, replicas: int) -> tuple[int, int]:
        """Return how many zones and how much evenness are won when a broker takes a member's place.

        `replicas`: how many the broker has without this one. Nothing is won by moving a difference of one around.
        """
        others = [member for member in members if member != leaving]
        zones = self._cell.zones([*others, name]) - self._cell.zones(members)
        evenness = self.replicas.get(broker_of(leaving), 0) - replicas - 1
        if zones < 0 or (zones == 0 and evenness <= 0):
            return 0, 0
        return zones, evenness

    def spares(self, number: int, members: tuple[str, ...]) -> list[str]:
        """Return brokers that could have a replica beside these members, the best first.

        Those with a left-over replica are the last: it may be of a learner that was given up a moment ago.
        """
        taken = {broker_of(member) for member in members}
        zones = {self._cell.zone(name) for name in taken}
        spares = [name for name in self._cell.brokers if name not in taken and self._cell.is_host(name)]
        spares.sort(
            key=lambda name: (
                self.has_left_over(number, name),
                self._cell.zone(name) in zones,
                self.replicas[name],
                name,
            )
        )
        return spares

    def has_left_over(self, number: int, name: str) -> bool:
        """Tell whether a broker that is heard has a replica that the journal's configuration does not name."""
        replica = self._cell.brokers[name].report.replicas.get(number)
        return replica is not None and replica.member not in named_members(
            self._cell.journals[number].configuration
        )

    def count_homes(self, hosts: list[str]) -> dict[str, int]:
        """Return of how many journals each of these brokers is the home."""
        counts = dict.fromkeys(hosts, 0)
        for home in self.home.values():
            _count(counts, home)
        return counts

    def choose_hosts(self, home: str, hosts: list[str], replicas: int) -> tuple[str, ...]:
        """Return the brokers of a new journal: zones apart, few replicas, and the next ones in the ring."""
        chosen = [home]
        at = hosts.index(home)
        ring = hosts[at + 1 :] + hosts[:at]
        while len(chosen) < replicas:
            zones = {self._cell.zone(name) for name in chosen}
            best = min(ring, key=lambda name: (self._cell.zone(name) in zones, self.replicas[name]))
            ring.remove(best)
            chosen.append(best)
        return tuple(chosen)


def _count(counts: dict[str, int], name: str | None, by: int = 1) -> None:
    if name is not None and name in counts:
        counts[name] += by

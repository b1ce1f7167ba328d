"""Judges what managers write, with knowledge they do not have: who leads, who is there, who knows how much (M1-M3).

No record depends on it. It is what the plan promises beside safety: service is not interrupted without need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.journal_configuration import JournalConfiguration
from sim.kernel import SECOND, Violation

if TYPE_CHECKING:
    from sim.cell import Cell

HEARD_US = 4 * SECOND
"""A leader that a majority has heard for so long without a break is not replaced, unless it resigned."""
SILENT_US = 4 * SECOND
"""Who has been away for so long is not appointed."""
LAG_SLACK = 400
"""Records that may come between a report and what is written because of it."""


class ManagerChecker:
    """One for a run; asked before a manager's write is done."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._heard_since: dict[tuple[int, str], tuple[int, int]] = {}
        """Epoch, and since when each member hears its leader without a break (a leader: a majority), by its ticks."""

    def on_tick(self, journal: int, member: str, epoch: int, *, hears: bool) -> None:
        """A replica looked whether it hears its leader; a leader, whether a majority answers."""
        place = journal, member
        if not hears:
            self._heard_since.pop(place, None)
        elif (known := self._heard_since.get(place)) is None or known[0] != epoch:
            self._heard_since[place] = epoch, self._cell.kernel.now_us

    def _hears(self, journal: int, member: str, epoch: int) -> bool:
        known = self._heard_since.get((journal, member))
        replica = self._cell.hosts[broker_of(member)].replicas.get(journal)
        return (
            known is not None
            and known[0] == epoch
            and self._cell.kernel.now_us - known[1] > HEARD_US
            and replica is not None
            and replica.hears_leader()
        )

    def on_write(self, journal: int, old: JournalConfiguration, new: JournalConfiguration) -> None:
        """A manager puts another configuration of a journal."""
        if new.epoch == old.epoch:
            return
        if new.leader != old.leader:
            self._check_leader(journal, old, new)
        joining = set(new.members) - set(old.members) - set(new.previous_members)
        for member in sorted(joining):
            self._check_joining(journal, old, member)

    def _check_leader(self, journal: int, old: JournalConfiguration, new: JournalConfiguration) -> None:
        cell = self._cell
        now_us = cell.kernel.now_us
        host = cell.hosts[broker_of(old.leader)]
        hearing = [member for member in old.members if self._hears(journal, member, old.epoch)]
        if (
            cell.is_led_by(journal, old)
            and not host.is_paused
            and old.leader in hearing
            and 2 * len(hearing) > len(old.members)
        ):
            raise Violation(
                "M1", f"{new.leader} is appointed to journal {journal}, but {old.leader} leads and is heard"
            )
        chosen = cell.hosts[broker_of(new.leader)]
        if not chosen.is_up and now_us - chosen.ended_us > SILENT_US:
            raise Violation(
                "M2",
                f"{new.leader} is appointed to journal {journal}, but is away "
                f"for {(now_us - chosen.ended_us) / SECOND:.1f} s",
            )

    def _check_joining(self, journal: int, old: JournalConfiguration, member: str) -> None:
        cell = self._cell
        leader = cell.hosts[broker_of(old.leader)].replicas.get(journal)
        disk = cell.disk_of(journal, member)
        if leader is None or disk is None:
            return  # they end any moment
        lag = leader.log.end.end - disk.end
        if lag > cell.faults.placement.learner_lag_max + LAG_SLACK:
            raise Violation("M3", f"{member} becomes a member of journal {journal} and lacks {lag} records")

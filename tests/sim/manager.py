"""A manager of little wisdom: it believes reports, suspects silence, and appoints by compare-and-swap.

silent, gone or unheard leader, no majority that hears one ──▶ the longest log leads the next epoch
silent member, for longer ──▶ a spare learns, and takes its place once it has almost everything
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from quaymaster.core.replication import JournalConfiguration
from sim.kernel import MS, SECOND
from sim.messages import Report, TransferTo
from sim.store import STORE, Changed, Get, Got, Swap, Swapped

if TYPE_CHECKING:
    from sim.cell import Cell

LOOK_US = 200 * MS
SUSPECT_US = 1_500 * MS
GRACE_US = 4 * SECOND
ELECTION_US = 3 * SECOND
"""An appointed leader that is not activated after so long is given up."""
LAG_MAX = 200


class Manager:
    """One of two; a duplicate does no harm."""

    def __init__(self, cell: Cell, name: str) -> None:
        self.cell = cell
        self.name = name
        self.is_active = True
        self.reports: dict[str, tuple[int, Report]] = {}
        self.configuration: JournalConfiguration | None = None
        self.revision = 0
        self._since_us = 0
        self._kernel = cell.kernel
        self._network = cell.network
        self._random = cell.kernel.random_for(name)
        self._looks = 0
        cell.network.connect(name, self._receive)
        self._kernel.after(self._random.randrange(LOOK_US), self._look)

    def _receive(self, sender: str, message: object) -> None:
        if not self.is_active:
            return
        if isinstance(message, Report):
            self.reports[message.member] = self._kernel.now_us, message
        elif isinstance(message, Changed | Got | Swapped) and message.revision > self.revision:
            old = self.configuration
            if old is None or old.epoch != message.configuration.epoch:
                self._since_us = self._kernel.now_us
            self.revision, self.configuration = message.revision, message.configuration

    def _look(self) -> None:
        self._kernel.after(LOOK_US, self._look)
        if not self.is_active:
            return
        self._looks += 1
        if self._looks % 5 == 1:
            self._network.send(self.name, STORE, Get(0))
        if self.configuration is not None:
            wanted = self._plan(self.configuration)
            if wanted is not None:
                self._network.send(self.name, STORE, Swap(0, self.revision, wanted))

    def _is_silent(self, member: str, limit_us: int) -> bool:
        found = self.reports.get(member)
        return found is None or self._kernel.now_us - found[0] > limit_us

    def _plan(self, configuration: JournalConfiguration) -> JournalConfiguration | None:
        """Return the configuration that is wanted next, None when this one is well."""
        now_us = self._kernel.now_us
        if now_us < SUSPECT_US:
            return None
        leader = configuration.leader
        if self._is_leader_lost(configuration):
            members = configuration.members
            if not configuration.activated and self._random.random() < 0.5:
                members = configuration.previous_members  # the new ones may never get there
            return self._appoint(configuration, members)
        if not configuration.activated or self._is_silent(leader, SUSPECT_US):
            return None
        silent = [member for member in configuration.members if self._is_silent(member, GRACE_US)]
        lag = self.reports[leader][1].lag
        if silent and not configuration.learners:
            spare = self._spare(configuration)
            if spare is not None:
                return msgspec.structs.replace(configuration, learners=(spare,))
        if configuration.learners:
            learner = configuration.learners[0]
            if self._is_silent(learner, GRACE_US):
                return msgspec.structs.replace(configuration, learners=())
            leaving = silent[0] if silent else None
            if leaving is None and self.cell.swaps_members:
                leaving = self._random.choice(
                    [member for member in configuration.members if member != leader] or [leader]
                )
            if lag.get(learner, 1 << 60) <= LAG_MAX and leaving is not None and leaving != leader:
                members = tuple(learner if member == leaving else member for member in configuration.members)
                return self._appoint(configuration, members)
        return None

    def _is_leader_lost(self, configuration: JournalConfiguration) -> bool:
        now_us = self._kernel.now_us
        if now_us - self._since_us < SUSPECT_US:
            return False
        found = self.reports.get(configuration.leader)
        if not configuration.activated:
            has_given_up = found is not None and found[1].gave_up >= configuration.epoch
            return has_given_up or now_us - self._since_us > ELECTION_US
        leads = (
            found is not None
            and now_us - found[0] <= SUSPECT_US
            and found[1].is_leading
            and found[1].epoch == configuration.epoch
            and found[1].hears_leader
        )
        if leads:
            return False
        hearing = [
            member
            for member in configuration.members
            if not self._is_silent(member, SUSPECT_US) and self.reports[member][1].hears_leader
        ]
        return 2 * len(hearing) <= len(configuration.members)

    def _spare(self, configuration: JournalConfiguration) -> str | None:
        """Return a member that could learn, of another host than the members that are heard."""
        hosts = {
            member.partition("@")[0]
            for member in configuration.members
            if not self._is_silent(member, GRACE_US)
        }
        spares = [
            member
            for member, (_, report) in self.reports.items()
            if not self._is_silent(member, SUSPECT_US)
            and member not in configuration.members
            and report.node not in hosts
        ]
        return self._random.choice(spares) if spares else None

    def _appoint(
        self, configuration: JournalConfiguration, members: tuple[str, ...]
    ) -> JournalConfiguration | None:
        heard = [member for member in members if not self._is_silent(member, SUSPECT_US)]
        if not heard:
            return None
        leader = max(
            heard,
            key=lambda member: (
                self.reports[member][1].last_epoch,
                self.reports[member][1].end,
                member == configuration.leader,
            ),
        )
        if self._random.random() < 0.1:
            leader = self._random.choice(heard)
        return JournalConfiguration(
            configuration.epoch + 1,
            leader,
            members,
            configuration.members if configuration.activated else configuration.previous_members,
            activated=False,
        )

    def transfer(self) -> None:
        """Let leadership move as an operator would have it."""
        configuration = self.configuration
        if configuration is None or not configuration.activated:
            return
        others = [
            member
            for member in configuration.members
            if member != configuration.leader and not self._is_silent(member, SUSPECT_US)
        ]
        if others:
            host = configuration.leader.partition("@")[0]
            self._network.send(self.name, host, TransferTo(self._random.choice(others)))

    def begin_swap(self) -> None:
        """Let a spare learn, to take a member's place though all are well."""
        configuration = self.configuration
        if configuration is None or not configuration.activated or configuration.learners:
            return
        spare = self._spare(configuration)
        if spare is not None:
            learning = msgspec.structs.replace(configuration, learners=(spare,))
            self._network.send(self.name, STORE, Swap(0, self.revision, learning))

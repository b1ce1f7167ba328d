"""Who leads and who holds which journal of a cell: `plan` decides it from what is seen, and remembers nothing.

    leader lost, followers agree ──────────────▶ Appoint the longest log, one epoch up
    member lost, dead or draining; too few ────▶ ReplaceMember ──▶ learner catches up ──▶ Promote ──▶ DropReplica
    leader draining, stopping, not at home ────▶ Transfer
    broker without its home journals ──────────▶ CreateJournal, or the home of a journal of which others have many
    broker busy ───────────────────────────────▶ Transfer to one with less to do
    broker drained ────────────────────────────▶ RemoveBroker

Everything seen may be old or wrong, and another manager may plan at the same time: each action that matters is a
compare-and-swap on the revision it was planned for, and no record depends on a plan being right
(core/replication/replication). What depends on it is service. So:

- While a leader and a majority hear each other, no other is appointed, whether the manager hears it or not.
- An epoch that is appointed is higher than every epoch that was promised, as far as was seen.
- Members change in one step, by a learner that has almost everything, and their number never falls by a plan except
  to `replicas`.
- A journal is moved only while it is led, one move at a time, and few journals of the cell at once.
- A move for the sake of balance makes the cell more even by itself, so moves come to an end.
- A move for the sake of load leaves its new leader below a bound that is well below the one that began it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quaymaster.core.cell.cell import (
    Action,
    Appoint,
    CellSeen,
    CreateJournal,
    DropReplica,
    JournalSeen,
    Plan,
    Promote,
    RemoveBroker,
    ReplaceMember,
    SetLearners,
    Transfer,
    broker_of,
    is_majority,
)
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.leader_choice import LeaderChoice
from quaymaster.core.cell.load_choice import LoadChoice
from quaymaster.core.cell.member_choice import MemberChoice
from quaymaster.core.cell.spread import Spread
from quaymaster.core.replication.queue_time import say_held
from quaymaster.core.values.journal_configuration import (
    JournalConfiguration,
    activated_members,
    named_members,
)

LEARNING_MS = 600_000
"""A learner that is not ready after so long is told of."""


def plan(seen: CellSeen) -> Plan:
    """Return what to do now. The same cell gives the same plan."""
    planner = _Planner(seen)
    planner.look_at_brokers()
    planner.appoint_leaders()
    planner.finish_moves()
    planner.hand_over_from_leaving_brokers()
    planner.replace_members()
    planner.create_journals()
    planner.balance()
    planner.clear_up()
    return Plan(tuple(planner.actions), tuple(planner.problems))


class _Planner:
    """One plan in the making."""

    def __init__(self, seen: CellSeen) -> None:
        self.actions: list[Action] = []
        self.problems: list[str] = []
        self._cell = CellView(seen)
        self._now_ms = seen.now_ms
        self._settings = seen.settings
        self._brokers = self._cell.brokers
        self._journals = self._cell.journals
        self._acting = seen.acting
        self._asking = seen.asking
        self._resting = seen.resting
        self._touched: set[int] = set(seen.acting)
        self._spread = Spread(self._cell)
        self._leaders = LeaderChoice(self._cell, self._spread, seen.settings)
        self._members = MemberChoice(self._cell, self._spread, seen.settings)
        moving = {number for number, journal in self._journals.items() if journal.configuration.learners}
        self._moves_left = seen.settings.moves_max - len(moving | seen.acting | seen.asking)

    # The steps of a plan

    def look_at_brokers(self) -> None:
        """Say what is wrong with brokers."""
        for broker in self._brokers.values():
            if self._cell.is_suspect(broker.name):
                self.problems.append(f"broker {broker.name} cannot be reached")
            elif (why := self._cell.why_not_lead(broker.name)) is not None:
                self.problems.append(why)
            elif broker.report.is_disk_low:
                self.problems.append(f"broker {broker.name} is short of disk space")
        if (why := self._cell.why_unsure()) is not None:
            self.problems.append(why)
        usable = self._cell.usable_count()
        if usable < self._settings.replicas:
            self.problems.append(
                f"{usable} of the {self._settings.replicas} brokers that replicas={self._settings.replicas} "
                "needs are there"
            )

    def appoint_leaders(self) -> None:
        """Appoint a leader where there is none."""
        for number, journal in self._untouched():
            trouble = self._leaders.trouble(number, journal)
            if trouble is not None:
                reason, is_slow = trouble
                self._appoint(number, journal, reason, is_slow=is_slow)
            elif self._cell.is_deaf(number, journal):
                members = journal.configuration.members
                self.problems.append(
                    f"journal {number} cannot be written: {len(self._cell.voters(number, members))} of its "
                    f"{len(members)} members take part"
                )
            else:
                self._tell_if_held(number, journal)
        self._touched |= self._asking  # nothing else is done there

    def _tell_if_held(self, number: int, journal: JournalSeen) -> None:
        leader = self._cell.leader_seen(number, journal)
        if leader is not None and leader.expiry_held:
            self.problems.append(say_held(number, leader.clock_ahead_ms, leader.time_stepped_ms))

    def finish_moves(self) -> None:
        """Promote learners that are ready; give up those that are of no use."""
        for number, journal in self._untouched():
            configuration = journal.configuration
            if not configuration.learners or not configuration.activated:
                continue
            useful = tuple(
                learner
                for learner in configuration.learners
                if self._members.is_useful(number, journal, learner)
            )
            members = self._members.with_learners(number, journal, useful)
            if members is None or useful != configuration.learners:
                reason = "a learner is of no use any more"
                self._set_learners(number, journal, () if members is None else useful, reason)
            else:
                self._promote(number, journal, members, "its learners know everything")
                if number not in self._touched and self._now_ms - journal.revised_ms >= LEARNING_MS:
                    self.problems.append(f"journal {number} waits long for its learners {', '.join(useful)}")

    def hand_over_from_leaving_brokers(self) -> None:
        """Transfer leadership away from brokers that drain, stop, or cannot store anything."""
        for number, journal in self._movable():
            leader = self._cell.broker_with(journal.configuration.leader)
            if leader.state != "active":
                self._transfer_to_any(number, journal, f"broker {leader.name} is {leader.state}")
            elif leader.report.is_disk_low or not leader.report.has_space:
                self._transfer_to_any(number, journal, f"broker {leader.name} is short of disk space")
            elif (why := self._cell.why_astray(leader.name)) is not None:
                self._transfer_to_any(number, journal, why)

    def replace_members(self) -> None:
        """Look for successors of members that are lost, dead or leaving, and for members that are missing."""
        for number, journal in self._untouched():
            configuration = journal.configuration
            if self._cell.leader_seen(number, journal) is None:
                continue
            missing = (
                self._members.wanted(configuration) - len(configuration.members) - len(configuration.learners)
            )
            leaving = [
                (why, member)
                for member in configuration.members
                if member != configuration.leader  # it is handed over first, or was
                and (why := self._members.why_leaving(number, journal, member)) is not None
            ]
            if missing > 0:
                self._add_members(number, journal, missing)
            elif missing < 0 and not configuration.learners:
                self._shrink(number, journal)
            elif leaving and not configuration.learners:
                (_, reason), member = min(leaving)
                self._replace(number, journal, member, reason)

    def create_journals(self) -> None:
        """Give every broker its home journals."""
        strays = sorted(
            {
                number
                for broker in self._brokers.values()
                for number, replica in broker.report.replicas.items()
                if number not in self._journals and (replica.end or replica.promised_epoch)
            }
        )
        for number in strays:
            self.problems.append(f"journal {number} has replicas, but coordination does not know it")
        hosts = [name for name in self._brokers if self._cell.is_host(name)]
        creating = self._acting - self._journals.keys()
        if strays or creating or len(hosts) < self._settings.replicas:
            return
        homes = self._spread.count_homes(hosts)
        number = max(self._journals, default=-1) + 1
        for _ in range(len(hosts) * self._settings.journals_per_broker - len(self._journals)):
            home = min(hosts, key=lambda name: (homes[name], name))
            homes[home] += 1
            brokers = self._spread.choose_hosts(home, hosts, self._settings.replicas)
            for name in brokers:
                self._spread.replicas[name] += 1
            self._do(number, CreateJournal(number, brokers))
            number += 1

    def balance(self) -> None:
        """Bring leadership home, journals to brokers with less to do, and replicas to those that have fewer."""
        for number, journal in self._movable():
            self._bring_home(number, journal)
        self._relieve_busy_brokers()
        for number, journal in self._movable():
            self._even_out(number, journal)

    def clear_up(self) -> None:
        """Drop replicas that are not needed, and let drained brokers go."""
        for broker in self._brokers.values():
            if not self._cell.is_heard(broker.name):
                continue
            for number, replica in sorted(broker.report.replicas.items()):
                journal = self._journals.get(number)
                if (
                    journal is not None
                    and number not in self._touched
                    and replica.member not in named_members(journal.configuration)
                    and self._now_ms - journal.revised_ms >= self._settings.drop_grace_ms
                    and self._cell.leader_seen(number, journal) is not None
                ):
                    epoch = journal.configuration.epoch
                    self._do(number, DropReplica(number, broker.name, replica.member, epoch))
        named = {
            broker_of(member)
            for journal in self._journals.values()
            for member in named_members(journal.configuration)
        }
        for broker in self._brokers.values():
            if broker.state == "draining" and broker.name not in named and not self._cell.may_hold(broker):
                self.actions.append(RemoveBroker(broker.name, broker.revision))

    # Leaders

    def _appoint(self, number: int, journal: JournalSeen, reason: str, *, is_slow: bool) -> None:
        """Appoint the longest log; after a leader that was too slow, the next one in the order."""
        configuration = journal.configuration
        previous = activated_members(configuration)
        members = self._leaders.electorate(number, configuration)
        voters = self._cell.voters(number, members)
        if not is_majority(voters, members) or not is_majority(self._cell.voters(number, previous), previous):
            self.problems.append(
                f"journal {number} has no leader: {len(voters)} of its {len(members)} members take part"
            )
            return
        candidates = self._leaders.fit_candidates(number, configuration) or self._leaders.candidates(
            number, configuration
        )
        chosen = candidates[0]
        if is_slow and configuration.leader in candidates:
            chosen = candidates[(candidates.index(configuration.leader) + 1) % len(candidates)]
            if chosen == configuration.leader:
                self.problems.append(f"journal {number} has no leader: {reason}, and nobody else could lead")
                return
        self._spread.move_leader(configuration.leader, chosen)
        new = self._next(number, configuration, chosen, members)
        self._do(number, Appoint(number, new, journal.revision, reason))

    def _next(
        self, number: int, configuration: JournalConfiguration, leader: str, members: Iterable[str]
    ) -> JournalConfiguration:
        """Return the configuration of the next epoch, higher than all that were promised."""
        promised = [
            broker.report.replicas[number].promised_epoch
            for broker in self._brokers.values()
            if number in broker.report.replicas
        ]
        home = self._spread.home[number]
        ordered = tuple(sorted(members, key=lambda member: broker_of(member) != home))
        return JournalConfiguration(
            max(configuration.epoch, *promised, 0) + 1,
            leader,
            ordered,
            activated_members(configuration),
            activated=False,
            learners=tuple(learner for learner in configuration.learners if learner not in ordered),
        )

    # Leadership that is handed over

    def _transfer_to_any(self, number: int, journal: JournalSeen, reason: str) -> None:
        targets = [
            member for member in journal.configuration.members if self._can_take_over(number, journal, member)
        ]
        if not targets:
            self.problems.append(f"journal {number} stays where it is: {reason}, and no member can take over")
        else:
            target = min(
                targets,
                key=lambda member: (
                    self._spread.home[number] != broker_of(member),
                    self._spread.led[broker_of(member)],
                    member,
                ),
            )
            self._transfer(number, journal, target, reason)

    def _bring_home(self, number: int, journal: JournalSeen) -> None:
        home = self._spread.home[number]
        if home is None or home == broker_of(journal.configuration.leader) or not self._cell.is_settled(home):
            return
        for member in journal.configuration.members:
            if broker_of(member) == home and self._can_take_over(number, journal, member):
                self._transfer(number, journal, member, f"broker {home} is its home")

    def _relieve_busy_brokers(self) -> None:
        """Transfer journals of busy brokers to others, which are their homes from then on."""
        if all(broker.busy_since_ms is None for broker in self._brokers.values()):
            return
        choice = LoadChoice(self._cell, self._spread.loads, self._touched)
        movable = [(number, journal) for number, journal in self._movable() if number not in self._resting]
        moves = choice.choose(movable, self._can_take_over)
        while self._moves_left > 0 and (move := next(moves, None)) is not None:
            number, journal, member, reason = move
            self._spread.home[number] = broker_of(member)
            self._transfer(number, journal, member, reason)

    def _can_take_over(self, number: int, journal: JournalSeen, member: str) -> bool:
        broker = self._brokers.get(broker_of(member))
        return (
            member != journal.configuration.leader
            and broker is not None
            and broker.state == "active"
            and not broker.report.is_disk_low
            and self._cell.why_not_lead(broker.name) is None
            and self._cell.follows(number, journal, member, self._settings.transfer_lag_max)
        )

    def _transfer(self, number: int, journal: JournalSeen, target: str, reason: str) -> None:
        if not self._take_move(number):
            return
        configuration = journal.configuration
        self._spread.move_leader(configuration.leader, target)
        new = self._next(number, configuration, target, configuration.members)
        self._do(number, Transfer(number, configuration.leader, target, new, journal.revision, reason))

    # Members that change

    def _replace(self, number: int, journal: JournalSeen, leaving: str, reason: str) -> None:
        configuration = journal.configuration
        others = tuple(member for member in configuration.members if member != leaving)
        spares = self._spread.spares(number, others)
        name = broker_of(leaving)
        if not spares:
            self.problems.append(f"journal {number} keeps a member in vain: {reason}, and no broker is free")
            return
        # A new disk in the same broker keeps the placement as it was.
        is_renewed = name in spares and not self._spread.has_left_over(number, name)
        self._start_move(number, journal, leaving, name if is_renewed else spares[0], reason)

    def _add_members(self, number: int, journal: JournalSeen, missing: int) -> None:
        configuration = journal.configuration
        spares = self._spread.spares(number, (*configuration.members, *configuration.learners))
        if len(spares) >= missing:
            reason = f"it has {len(configuration.members)} members of {self._members.wanted(configuration)}"
            self._start_move(number, journal, None, spares[0], reason)

    def _shrink(self, number: int, journal: JournalSeen) -> None:
        members = self._members.with_learners(number, journal, ())
        if members is not None and self._take_move(number):
            self._promote(number, journal, members, f"replicas={self._settings.replicas}")

    def _even_out(self, number: int, journal: JournalSeen) -> None:
        """Replace a member when the cell is more even without it; only while all members are well.

        Not while a broker is asked for a replica: that is not counted yet, and another might go there in vain.
        """
        configuration = journal.configuration
        members = configuration.members
        if self._asking or configuration.learners or len(self._cell.voters(number, members)) < len(members):
            return
        spares = [
            name
            for name in self._spread.spares(number, members)
            if self._cell.is_settled(name) and not self._spread.has_left_over(number, name)
        ]
        moves = [
            (gain, leaving, name)
            for name in spares
            for leaving in members
            if leaving != configuration.leader
            and (gain := self._spread.gain(members, leaving, name, self._spread.replicas[name])) > (0, 0)
        ]
        if moves:
            best = max(moves)
            self._start_move(number, journal, best[1], best[2], "the cell is more even with it")

    def _start_move(
        self, number: int, journal: JournalSeen, leaving: str | None, name: str, reason: str
    ) -> None:
        # Another learner beside one that is there belongs to the move that is already counted.
        if number in self._resting or (not journal.configuration.learners and not self._take_move(number)):
            return
        self._spread.replicas[name] += 1
        self._do(
            number,
            ReplaceMember(number, leaving, name, journal.configuration, journal.revision, reason),
        )

    def _promote(self, number: int, journal: JournalSeen, members: tuple[str, ...], reason: str) -> None:
        """Write other members once all of the new ones know almost everything, and majorities can agree to it.

        A majority of the new members has to be close behind the leader: what is committed waits for it.
        """
        configuration = journal.configuration
        if (
            self._cell.leader_seen(number, journal) is None
            or len(members) < self._members.wanted(configuration)
            or not all(
                self._cell.follows(number, journal, learner, self._settings.learner_lag_max)
                for learner in configuration.learners
            )
            or not is_majority(self._cell.in_sync(number, journal, members), members)
            or not is_majority(self._cell.voters(number, configuration.members), configuration.members)
        ):
            return
        new = self._next(number, configuration, configuration.leader, members)
        self._do(number, Promote(number, new, journal.revision, reason))

    def _set_learners(
        self, number: int, journal: JournalSeen, learners: tuple[str, ...], reason: str
    ) -> None:
        new = msgspec.structs.replace(journal.configuration, learners=learners)
        self._do(number, SetLearners(number, new, journal.revision, reason))

    # The plan

    def _untouched(self) -> list[tuple[int, JournalSeen]]:
        return [
            (number, journal) for number, journal in self._journals.items() if number not in self._touched
        ]

    def _movable(self) -> list[tuple[int, JournalSeen]]:
        """Return journals that are led, with no learner on its way: a move can begin."""
        return [
            (number, journal)
            for number, journal in self._untouched()
            if self._cell.leader_seen(number, journal) is not None and not journal.configuration.learners
        ]

    def _take_move(self, number: int) -> bool:
        if number in self._resting or self._moves_left <= 0:
            return False
        self._moves_left -= 1
        return True

    def _do(self, number: int, action: Action) -> None:
        assert number not in self._touched, f"two actions for journal {number} in one plan"
        self._touched.add(number)
        self.actions.append(action)

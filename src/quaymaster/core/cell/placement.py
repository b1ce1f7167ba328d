"""Who leads and who holds which journal of a cell: `plan` decides it from what is seen, and remembers nothing.

    leader lost, followers agree ──────────────▶ Appoint the longest log, one epoch up
    member lost, dead or draining; too few ────▶ ReplaceMember ──▶ learner catches up ──▶ Promote ──▶ DropReplica
    leader draining, stopping, not at home ────▶ Transfer
    broker without a home journal ─────────────▶ CreateJournal, or the home of a journal of which others have two
    broker drained ────────────────────────────▶ RemoveBroker

Everything seen may be old or wrong, and another manager may plan at the same time: each action that matters is a
compare-and-swap on the revision it was planned for, and no record depends on a plan being right
(core/replication/replication). What depends on it is service. So:

- While a leader and a majority hear each other, nobody else is appointed, whether the manager hears it or not.
- An epoch that is appointed is higher than every epoch that was promised, as far as was seen.
- Members change in one step, by a learner that has almost everything, and their number never falls by a plan except
  to `replicas`.
- A journal is moved only while it is led, one move at a time, and few journals of the cell at once.
- A move for the sake of balance makes the cell more even by itself, so moves come to an end.
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
from quaymaster.core.cell.cell_view import CellView, takes_part
from quaymaster.core.cell.journal_homes import choose_homes
from quaymaster.core.replication.queue_time import say_held
from quaymaster.core.values.journal_configuration import (
    JournalConfiguration,
    activated_members,
    named_members,
)

LEARNING_MS = 600_000
"""A learner that is not ready after so long is told of."""
ELECTED_PATIENCE = 4
"""An elect that fetches or activates has so many times the time of one that asks for promises."""


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
        self._led: dict[str, int] = dict.fromkeys(self._brokers, 0)
        self._replicas: dict[str, int] = dict.fromkeys(self._brokers, 0)
        for journal in self._journals.values():
            configuration = journal.configuration
            self._count(self._led, broker_of(configuration.leader))
            for member in (*configuration.members, *configuration.learners):
                self._count(self._replicas, broker_of(member))
        self._home = choose_homes(self._cell)
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
            trouble = self._trouble(number, journal)
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
                learner for learner in configuration.learners if self._is_useful(number, journal, learner)
            )
            members = self._members_with(number, journal, useful)
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
            missing = self._wanted(configuration) - len(configuration.members) - len(configuration.learners)
            leaving = [
                (why, member)
                for member in configuration.members
                if member != configuration.leader  # it is handed over first, or was
                and (why := self._why_leaving(number, journal, member)) is not None
            ]
            if missing > 0:
                self._add_members(number, journal, missing)
            elif missing < 0 and not configuration.learners:
                self._shrink(number, journal)
            elif leaving and not configuration.learners:
                (_, reason), member = min(leaving)
                self._replace(number, journal, member, reason)

    def create_journals(self) -> None:
        """Give every broker a home journal."""
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
        homes = self._count_homes(hosts)
        number = max(self._journals, default=-1) + 1
        for _ in range(len(hosts) - len(self._journals)):
            home = min(hosts, key=lambda name: (homes[name], name))
            homes[home] += 1
            brokers = self._choose_hosts(home, hosts)
            for name in brokers:
                self._replicas[name] += 1
            self._do(number, CreateJournal(number, brokers))
            number += 1

    def balance(self) -> None:
        """Bring leadership home, and replicas to brokers and zones that have fewer."""
        for number, journal in self._movable():
            self._bring_home(number, journal)
        for number, journal in self._movable():
            self._even_out(number, journal)

    def clear_up(self) -> None:
        """Drop replicas that nobody needs, and let drained brokers go."""
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

    def _trouble(self, number: int, journal: JournalSeen) -> tuple[str, bool] | None:
        """Return why a journal needs another leader, and whether that is for slowness; None if it does not."""
        configuration = journal.configuration
        leader = configuration.leader
        name = broker_of(leader)
        age_ms = self._now_ms - journal.since_ms
        election_ms = self._settings.election_ms
        if self._cell.is_suspect(name):
            is_patient = configuration.activated or age_ms < election_ms
            if is_patient and (
                self._cell.is_heard_by_followers(number, configuration)
                or self._cell.was_cut_off(number, configuration)
            ):
                return None
            return f"broker {name} cannot be reached", False
        if not self._cell.is_heard(name):
            return None
        why_unfit = None if configuration.activated else self._cell.why_unfit(name)
        if why_unfit is not None and self._fit_candidates(number, configuration):
            return why_unfit, False
        replica = self._cell.replica(number, leader)
        if replica is None:
            lost = self._cell.is_lost(number, journal, leader)
            return (f"broker {name} has lost its replica", False) if lost else None
        if not takes_part(replica):
            return f"the replica of broker {name} takes no part", False
        if replica.is_rebuilding and self._others_could_serve(number, configuration):
            return f"broker {name} makes its queues anew", False
        if replica.role == "leading" and replica.epoch == configuration.epoch:
            if not self._cell.is_deaf(number, journal):
                return None
            others = self._cell.voters(number, configuration.members) - {leader}
            if not is_majority(others, configuration.members):
                return None
            return f"no majority answers broker {name}", True
        if replica.role == "follower" and replica.promised_epoch >= configuration.epoch:
            return f"broker {name} has given it up", False
        if replica.role in ("follower", "preparing") or replica.epoch < configuration.epoch:
            return (f"broker {name} found no majority", True) if age_ms >= election_ms else None
        if age_ms >= election_ms * ELECTED_PATIENCE and not self._cell.is_copied_from(replica):
            return f"broker {name} was not activated", True
        return None

    def _appoint(self, number: int, journal: JournalSeen, reason: str, *, is_slow: bool) -> None:
        """Appoint the longest log; after a leader that was too slow, the next one in the order."""
        configuration = journal.configuration
        previous = activated_members(configuration)
        members = self._electorate(number, configuration)
        voters = self._cell.voters(number, members)
        if not is_majority(voters, members) or not is_majority(self._cell.voters(number, previous), previous):
            self.problems.append(
                f"journal {number} has no leader: {len(voters)} of its {len(members)} members take part"
            )
            return
        candidates = self._fit_candidates(number, configuration) or self._candidates(number, configuration)
        chosen = candidates[0]
        if is_slow and configuration.leader in candidates:
            chosen = candidates[(candidates.index(configuration.leader) + 1) % len(candidates)]
            if chosen == configuration.leader:
                self.problems.append(f"journal {number} has no leader: {reason}, and nobody else could lead")
                return
        self._count(self._led, broker_of(configuration.leader), -1)
        self._count(self._led, broker_of(chosen))
        new = self._next(number, configuration, chosen, members)
        self._do(number, Appoint(number, new, journal.revision, reason))

    def _electorate(self, number: int, configuration: JournalConfiguration) -> tuple[str, ...]:
        """Return the members of the next epoch: these, or the last activated ones when these cannot lead on.

        Members that were never activated may lack a majority, or the log: an elect has to have what a majority of
        the activated ones has, and cannot fetch what was compacted there.
        """
        members, activated = configuration.members, activated_members(configuration)
        if set(members) == set(activated):
            return members
        knowing = {
            member: self._cell.log_end(number, member) for member in self._cell.voters(number, activated)
        }
        longest = max(knowing.values(), default=(0, 0))
        leads_on = any(knowing.get(member) == longest for member in members)
        if leads_on and is_majority(self._cell.voters(number, members), members):
            return members
        return activated

    def _candidates(self, number: int, configuration: JournalConfiguration) -> list[str]:
        """Return the members that could be appointed, the best first: they take part, and know the log."""
        voters = self._cell.voters(number, self._electorate(number, configuration))
        return sorted(
            voters.intersection(activated_members(configuration)),
            key=lambda member: self._rank(number, member),
        )

    def _fit_candidates(self, number: int, configuration: JournalConfiguration) -> list[str]:
        """Return those candidates that nothing speaks against: those with a right clock, if there are any."""
        candidates = [
            member
            for member in self._candidates(number, configuration)
            if self._cell.why_unfit(broker_of(member)) is None
        ]
        return [
            member for member in candidates if self._cell.why_not_lead(broker_of(member)) is None
        ] or candidates

    def _others_could_serve(self, number: int, configuration: JournalConfiguration) -> bool:
        """Tell whether another than the leader could be appointed and has its queues."""
        replicas = [
            self._cell.replica(number, member)
            for member in self._fit_candidates(number, configuration)
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
            self._home[number] != broker.name,
            self._led[broker.name],
            member,
        )

    def _next(
        self, number: int, configuration: JournalConfiguration, leader: str, members: Iterable[str]
    ) -> JournalConfiguration:
        """Return the configuration of the next epoch, higher than all that were promised."""
        promised = [
            broker.report.replicas[number].promised_epoch
            for broker in self._brokers.values()
            if number in broker.report.replicas
        ]
        home = self._home[number]
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
                    self._home[number] != broker_of(member),
                    self._led[broker_of(member)],
                    member,
                ),
            )
            self._transfer(number, journal, target, reason)

    def _bring_home(self, number: int, journal: JournalSeen) -> None:
        home = self._home[number]
        if home is None or home == broker_of(journal.configuration.leader) or not self._cell.is_settled(home):
            return
        for member in journal.configuration.members:
            if broker_of(member) == home and self._can_take_over(number, journal, member):
                self._transfer(number, journal, member, f"broker {home} is its home")

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
        self._count(self._led, broker_of(configuration.leader), -1)
        self._count(self._led, broker_of(target))
        new = self._next(number, configuration, target, configuration.members)
        self._do(number, Transfer(number, configuration.leader, target, new, journal.revision, reason))

    # Members that change

    def _why_leaving(self, number: int, journal: JournalSeen, member: str) -> tuple[int, str] | None:
        """Return how urgently and why a member is to be replaced, None when it may stay."""
        name = broker_of(member)
        broker = self._brokers.get(name)
        if broker is None:
            return 0, f"broker {name} is not registered"
        if self._cell.is_lost(number, journal, member):
            return 0, f"broker {name} has lost its replica"
        if self._cell.silent_ms(broker) >= self._settings.replacement_grace_ms:
            return 1, f"broker {name} is dead"
        if broker.state == "draining":
            return 2, f"broker {name} is draining"
        return None

    def _replace(self, number: int, journal: JournalSeen, leaving: str, reason: str) -> None:
        configuration = journal.configuration
        others = tuple(member for member in configuration.members if member != leaving)
        spares = self._spares(number, others)
        name = broker_of(leaving)
        if not spares:
            self.problems.append(f"journal {number} keeps a member in vain: {reason}, and no broker is free")
            return
        # A new disk in the same broker keeps the placement as it was.
        is_renewed = name in spares and not self._has_left_over(number, name)
        self._start_move(number, journal, leaving, name if is_renewed else spares[0], reason)

    def _add_members(self, number: int, journal: JournalSeen, missing: int) -> None:
        configuration = journal.configuration
        spares = self._spares(number, (*configuration.members, *configuration.learners))
        if len(spares) >= missing:
            reason = f"it has {len(configuration.members)} members of {self._wanted(configuration)}"
            self._start_move(number, journal, None, spares[0], reason)

    def _shrink(self, number: int, journal: JournalSeen) -> None:
        members = self._members_with(number, journal, ())
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
            for name in self._spares(number, members)
            if self._cell.is_settled(name) and not self._has_left_over(number, name)
        ]
        moves = [
            (gain, leaving, name)
            for name in spares
            for leaving in members
            if leaving != configuration.leader
            and (gain := self._gain(members, leaving, name, self._replicas[name])) > (0, 0)
        ]
        if moves:
            best = max(moves)
            self._start_move(number, journal, best[1], best[2], "the cell is more even with it")

    def _gain(self, members: tuple[str, ...], leaving: str, name: str, replicas: int) -> tuple[int, int]:
        """Return how many zones and how much evenness are won when a broker takes a member's place.

        `replicas`: how many the broker has without this one. Nothing is won by moving a difference of one around.
        """
        others = [member for member in members if member != leaving]
        zones = self._cell.zones([*others, name]) - self._cell.zones(members)
        evenness = self._replicas.get(broker_of(leaving), 0) - replicas - 1
        if zones < 0 or (zones == 0 and evenness <= 0):
            return 0, 0
        return zones, evenness

    def _start_move(
        self, number: int, journal: JournalSeen, leaving: str | None, name: str, reason: str
    ) -> None:
        # Another learner beside one that is there belongs to the move that is already counted.
        if number in self._resting or (not journal.configuration.learners and not self._take_move(number)):
            return
        self._count(self._replicas, name)
        self._do(
            number,
            ReplaceMember(number, leaving, name, journal.configuration, journal.revision, reason),
        )

    def _spares(self, number: int, members: tuple[str, ...]) -> list[str]:
        """Return brokers that could have a replica beside these members, the best first.

        Those with a left-over replica are the last: it may be of a learner that was given up a moment ago.
        """
        taken = {broker_of(member) for member in members}
        zones = {self._cell.zone(name) for name in taken}
        spares = [name for name in self._brokers if name not in taken and self._cell.is_host(name)]
        spares.sort(
            key=lambda name: (
                self._has_left_over(number, name),
                self._cell.zone(name) in zones,
                self._replicas[name],
                name,
            )
        )
        return spares

    def _has_left_over(self, number: int, name: str) -> bool:
        """Tell whether a broker that is heard has a replica that the journal's configuration does not name."""
        replica = self._brokers[name].report.replicas.get(number)
        return replica is not None and replica.member not in named_members(
            self._journals[number].configuration
        )

    def _is_useful(self, number: int, journal: JournalSeen, learner: str) -> bool:
        broker = self._brokers.get(broker_of(learner))
        if broker is None or broker.state != "active" or learner in journal.configuration.members:
            return False
        if self._cell.is_lost(number, journal, learner) or not broker.report.has_space:
            return False
        leader = self._cell.leader_seen(number, journal)
        if leader is not None and leader.stuck_ms.get(learner, 0) >= self._settings.learner_stuck_ms:
            return False
        return self._cell.silent_ms(broker) < self._settings.learner_patience_ms

    def _members_with(
        self, number: int, journal: JournalSeen, learners: tuple[str, ...]
    ) -> tuple[str, ...] | None:
        """Return the members once these learners are; None when nobody's place is to be taken."""
        configuration = journal.configuration
        members = [*configuration.members, *learners]
        wanted = self._wanted(configuration)
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
            if (why := self._why_leaving(number, journal, member)) is not None
        ]
        if having_to:
            return min(having_to)[2]
        if len(configuration.members) > self._wanted(configuration):
            in_sync = self._cell.in_sync(number, journal, members)
            return max(
                candidates,
                key=lambda member: (
                    member not in in_sync,
                    self._cell.zones([other for other in members if other != member]),
                    self._replicas.get(broker_of(member), 0),
                    member,
                ),
                default=None,
            )
        gains = [
            (self._gain(configuration.members, member, name, self._replicas[name] - 1), member)
            for member in candidates
            for name in map(broker_of, learners)
        ]
        best = max(gains, default=((0, 0), None))
        return best[1] if best[0] > (0, 0) else None

    def _promote(self, number: int, journal: JournalSeen, members: tuple[str, ...], reason: str) -> None:
        """Write other members once all of the new ones know almost everything, and majorities can agree to it.

        A majority of the new members has to be close behind the leader: what is committed waits for it.
        """
        configuration = journal.configuration
        if (
            self._cell.leader_seen(number, journal) is None
            or len(members) < self._wanted(configuration)
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

    def _wanted(self, configuration: JournalConfiguration) -> int:
        """Return how many members a journal should have: more only as brokers allow, and an odd number of them."""
        odd = self._cell.usable_count() - (self._cell.usable_count() + 1) % 2
        wanted = min(self._settings.replicas, max(len(configuration.members), odd))
        if wanted == 1 and self._cell.is_draining(configuration.leader):
            return 2  # until the other one leads
        return wanted

    # Where journals are at home

    def _count_homes(self, hosts: list[str]) -> dict[str, int]:
        counts = dict.fromkeys(hosts, 0)
        for home in self._home.values():
            self._count(counts, home)
        return counts

    def _choose_hosts(self, home: str, hosts: list[str]) -> tuple[str, ...]:
        """Return the brokers of a new journal: zones apart, few replicas, and the next ones in the ring."""
        chosen = [home]
        at = hosts.index(home)
        ring = hosts[at + 1 :] + hosts[:at]
        while len(chosen) < self._settings.replicas:
            zones = {self._cell.zone(name) for name in chosen}
            best = min(ring, key=lambda name: (self._cell.zone(name) in zones, self._replicas[name]))
            ring.remove(best)
            chosen.append(best)
        return tuple(chosen)

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

    def _count(self, counts: dict[str, int], name: str | None, by: int = 1) -> None:
        if name is not None and name in counts:
            counts[name] += by

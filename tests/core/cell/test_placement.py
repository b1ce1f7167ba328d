"""Who leads and who holds which journal: plans for cells in every condition."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import msgspec
import pytest
from harness.plan_rules import check_plan
from harness.planned_cell import POLL_MS, PlannedCell
from hypothesis import given, settings
from hypothesis import strategies as st

from quaymaster.core.cell.cell import (
    Action,
    Appoint,
    BrokerReport,
    BrokerSeen,
    CellSeen,
    CreateJournal,
    DropReplica,
    JournalSeen,
    PlacementSettings,
    Promote,
    RemoveBroker,
    ReplaceMember,
    ReplicaSeen,
    SetLearners,
    Transfer,
    broker_of,
)
from quaymaster.core.cell.placement import LEARNING_MS, plan
from quaymaster.core.values.journal_configuration import JournalConfiguration

GRACE_MS = PlacementSettings().replacement_grace_ms
ELECTION_MS = PlacementSettings().election_ms
SETTLE_MS = PlacementSettings().settle_ms
DROP_MS = PlacementSettings().drop_grace_ms
STUCK_MS = PlacementSettings().learner_stuck_ms


def running(*names: str, replicas: int = 3) -> PlannedCell:
    """Return a cell in which nothing is left to do."""
    cell = PlannedCell(*names, settings=PlacementSettings(replicas=replicas))
    cell.run(ms=SETTLE_MS)
    return cell


@pytest.fixture
def cell() -> PlannedCell:
    """Three brokers, each leading its home journal."""
    return running("a", "b", "c")


Kind = TypeVar("Kind", bound=Action)


def of(actions: Iterable[Action], kind: type[Kind]) -> list[Kind]:
    """Return the actions of a kind."""
    return [action for action in actions if isinstance(action, kind)]


def on(number: int, actions: Iterable[Action]) -> list[Action]:
    """Return the actions on a journal."""
    return [action for action in actions if not isinstance(action, RemoveBroker) and action.journal == number]


def journal_led_by(cell: PlannedCell, name: str) -> int:
    return next(number for number, leader in cell.leaders().items() if leader == name)


def change(cell: PlannedCell, number: int, name: str, **changes: object) -> None:
    """Let a broker report something else of its replica."""
    replicas = cell.hosts[name].replicas
    replicas[number] = msgspec.structs.replace(replicas[number], **changes)


def until_learning(cell: PlannedCell, number: int) -> None:
    """Let the grace time of a dead member pass, until another one learns."""
    cell.run(ms=GRACE_MS - 5_000)
    while not cell.configuration(number).learners:
        cell.step()


# The first start


def test_three_brokers_get_a_home_journal_each() -> None:
    cell = PlannedCell("a", "b", "c")

    first = cell.plan()
    cell.run()

    assert [action.brokers[0] for action in of(first.actions, CreateJournal)] == [
        "a",
        "b",
        "c",
    ]
    assert cell.leaders() == {0: "a", 1: "b", 2: "c"}
    assert all(cell.members(number) == {"a", "b", "c"} for number in cell.journals)


def test_nothing_is_started_with_fewer_brokers_than_replicas_wanted() -> None:
    cell = PlannedCell("a", "b")

    made = cell.plan()

    assert made.actions == ()
    assert made.problems == ("2 of the 3 brokers that replicas=3 needs are there",)


def test_one_broker_is_a_cell_when_one_replica_is_wanted() -> None:
    cell = running("a", replicas=1)

    assert cell.leaders() == {0: "a"}
    assert cell.plan().problems == ()


def test_a_journal_that_is_being_created_is_not_created_twice() -> None:
    seen = PlannedCell("a", "b", "c").see()

    made = plan(msgspec.structs.replace(seen, acting=frozenset({0, 2})))

    assert made.actions == ()


def test_nothing_is_created_beside_replicas_of_a_journal_that_coordination_has_lost() -> None:
    cell = running("a", "b", "c")
    del cell.journals[1]

    made = cell.plan()

    assert made.actions == ()
    assert "journal 1 has replicas, but coordination does not know it" in made.problems


def test_five_replicas_are_on_five_brokers() -> None:
    cell = running("a", "b", "c", "d", "e", replicas=5)

    assert Counter(cell.leaders().values()) == Counter("abcde")
    assert all(len(cell.members(number)) == 5 for number in cell.journals)


def test_members_of_a_journal_are_in_different_zones() -> None:
    cell = running("a/1", "b/1", "c/2", "d/2", "e/3", "f/3")

    for number in cell.journals:
        assert len({cell.hosts[name].zone for name in cell.members(number)}) == 3
    assert Counter(cell.leaders().values()) == Counter("abcdef")
    assert set(Counter(name for number in cell.journals for name in cell.members(number)).values()) == {3}


# Leaders that are lost


def test_journal_of_a_dead_leader_is_led_by_the_longest_log(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    change(cell, number, "b", hears_leader=False, end=50)
    change(cell, number, "c", hears_leader=False, end=51)
    promised = cell.hosts["b"].replicas[number].promised_epoch

    (action,) = of(cell.plan().actions, Appoint)

    assert broker_of(action.configuration.leader) == "c"
    assert action.configuration.epoch > promised
    assert not action.configuration.activated
    assert action.configuration.previous_members == action.configuration.members


def test_last_epoch_of_a_log_counts_more_than_its_length(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    change(cell, number, "b", hears_leader=False, last_epoch=9, end=50)
    change(cell, number, "c", hears_leader=False, last_epoch=8, end=51)

    (action,) = of(cell.plan().actions, Appoint)

    assert broker_of(action.configuration.leader) == "b"


def test_replica_that_makes_its_queues_anew_votes_and_leads_only_if_nobody_else_can(
    cell: PlannedCell,
) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    change(cell, number, "b", hears_leader=False, end=50)
    change(cell, number, "c", hears_leader=False, end=51, is_rebuilding=True)

    (action,) = of(cell.plan().actions, Appoint)

    assert broker_of(action.configuration.leader) == "b"
    change(cell, number, "b", is_rebuilding=True)
    (action,) = of(cell.plan().actions, Appoint)
    assert broker_of(action.configuration.leader) == "c"


def test_leader_that_makes_its_queues_anew_gives_way_to_who_has_them(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    change(cell, number, "a", is_rebuilding=True)

    (action,) = on(number, cell.plan().actions)

    assert isinstance(action, Appoint)
    assert action.reason == "broker a makes its queues anew"
    assert broker_of(action.configuration.leader) != "a"
    for name in "bc":
        change(cell, number, name, is_rebuilding=True)
    assert on(number, cell.plan().actions) == []


def test_dead_leaders_journals_are_spread_over_the_others() -> None:
    cell = running("a", "b", "c", "d", "e", replicas=5)
    cell.kill("a")
    for number in cell.journals:
        for name in "bcde":
            change(cell, number, name, hears_leader=False, end=7, last_epoch=1)
    cell.kill("b")

    made = cell.plan()

    leaders = [broker_of(action.configuration.leader) for action in of(made.actions, Appoint)]
    assert len(leaders) == len(set(leaders)) == 2


def test_leader_cut_only_from_the_manager_stays(cell: PlannedCell) -> None:
    cell.unseen.add("a")

    made = cell.plan()

    assert made.actions == ()
    assert made.problems == ("broker a cannot be reached",)


def test_manager_that_was_cut_off_itself_gives_the_leader_time_to_be_heard(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.unseen.update("abc")
    cell.see()
    cell.now_ms += 10_000
    cell.see()
    for name in "bc":
        change(cell, number, name, hears_leader=False)
    cell.unseen.difference_update("bc")
    cell.now_ms += POLL_MS
    at_once = of(cell.plan().actions, Appoint)
    cell.now_ms += PlacementSettings().suspicion_ms

    assert at_once == []
    assert [action.journal for action in of(cell.plan().actions, Appoint)] == [number]


def test_manager_that_is_being_cut_off_itself_appoints_nobody(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    for name in "bc":
        change(cell, number, name, hears_leader=False)
    seen = cell.see()
    suspicion_ms = PlacementSettings().suspicion_ms

    def appointed(heard_later_ms: int, *, is_reachable: bool = True) -> bool:
        """Plan when the leader is suspected, and the others were heard so much later than it."""
        brokers = tuple(
            msgspec.structs.replace(broker, is_reachable=is_reachable)
            if broker.name == "a"
            else msgspec.structs.replace(broker, heard_ms=seen.now_ms + heard_later_ms)
            for broker in seen.brokers
        )
        made = plan(msgspec.structs.replace(seen, now_ms=seen.now_ms + suspicion_ms, brokers=brokers))
        return number in [action.journal for action in of(made.actions, Appoint)]

    assert not appointed(100)
    assert appointed(100, is_reachable=False)
    assert appointed(suspicion_ms // 2)


def test_journal_is_given_a_leader_while_a_broker_is_slow_to_drop_its_replica(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    for name in "bc":
        change(cell, number, name, hears_leader=False)

    asking = plan(msgspec.structs.replace(cell.see(), asking=frozenset({number})))
    acting = plan(msgspec.structs.replace(cell.see(), acting=frozenset({number})))

    assert [action.journal for action in of(asking.actions, Appoint)] == [number]
    assert acting.actions == ()


@pytest.mark.parametrize("hearing", ["b", ""])
def test_leader_that_one_follower_hears_has_a_majority_and_is_kept(hearing: str) -> None:
    cell = running("a", "b", "c", "d", "e", replicas=5)
    number = journal_led_by(cell, "a")
    cell.kill("a")
    for other in cell.journals:
        for name in "bcde":
            change(cell, other, name, hears_leader=other != number or name in hearing)

    made = cell.plan()

    assert [action.journal for action in of(made.actions, Appoint)] == ([] if hearing else [number])


def test_leader_whose_others_lost_their_disks_is_told_of(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    for name in "bc":
        cell.wipe(name)
    change(cell, number, "a", hears_leader=False, unheard_ms=PlacementSettings().unheard_ms)

    made = cell.plan()

    assert not on(number, made.actions)
    assert f"journal {number} cannot be written: 1 of its 3 members take part" in made.problems


def test_silence_counts_after_a_second_and_a_half(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    for name in "bc":
        change(cell, number, name, hears_leader=False)
    seen = cell.see()

    def appointed(silent_ms: int) -> bool:
        later = seen.now_ms + silent_ms
        brokers = tuple(
            broker if broker.name == "a" else msgspec.structs.replace(broker, heard_ms=later)
            for broker in seen.brokers
        )
        made = plan(msgspec.structs.replace(seen, now_ms=later, brokers=brokers))
        return bool(of(made.actions, Appoint))

    assert not appointed(1_499)
    assert appointed(1_500)


def test_broker_never_heard_is_not_suspected_before_it_had_time_to_answer(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    for name in "bc":
        change(cell, number, name, hears_leader=False)
    seen = cell.see()
    brokers = tuple(
        msgspec.structs.replace(broker, heard_ms=None, since_ms=seen.now_ms - 100, report=BrokerReport({}))
        if broker.name == "a"
        else broker
        for broker in seen.brokers
    )

    made = plan(msgspec.structs.replace(seen, brokers=brokers))

    assert made.actions == ()


def test_leader_that_restarted_gets_a_new_epoch_or_a_successor(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    epoch = cell.configuration(number).epoch
    cell.start("a")

    done = cell.run()

    assert of(done, Appoint)
    assert cell.configuration(number).epoch > epoch
    assert cell.leaders()[number] == "a"


def test_nobody_is_appointed_without_a_majority(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    cell.kill("b")
    change(cell, number, "c", hears_leader=False)

    made = cell.plan()

    assert not on(number, made.actions)
    assert f"journal {number} has no leader: 1 of its 3 members take part" in made.problems


def test_two_managers_that_race_plan_for_the_same_revision(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    for name in "bc":
        change(cell, number, name, hears_leader=False)

    first, second = cell.plan(), cell.plan()
    cell.carry_out(first.actions[0])

    assert first == second
    with pytest.raises(AssertionError, match="planned for what was seen"):
        cell.carry_out(second.actions[0])


def test_elect_that_finds_no_majority_is_given_up_for_the_next(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    for name, end in (("b", 90), ("c", 80)):
        change(cell, number, name, hears_leader=False, end=end, last_epoch=1)
    (appoint,) = of(cell.plan().actions, Appoint)
    cell.carry_out(appoint)
    cell.start("a")
    change(cell, number, "a", end=70, last_epoch=1)
    change(cell, number, "b", role="preparing", promised_epoch=cell.configuration(number).epoch)

    cell.now_ms += ELECTION_MS - 1
    before = [
        action for action in cell.plan().actions if isinstance(action, Appoint) and action.journal == number
    ]
    cell.now_ms += 1
    after = [
        action for action in cell.plan().actions if isinstance(action, Appoint) and action.journal == number
    ]

    assert before == []
    assert [broker_of(action.configuration.leader) for action in after] == ["c"]
    assert after[0].reason == "broker b found no majority"


def test_elect_that_got_further_has_more_time(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.carry_out(
        Appoint(
            number,
            msgspec.structs.replace(cell.configuration(number), epoch=9, activated=False),
            cell.journals[number].revision,
            "",
        )
    )
    change(cell, number, "a", role="fetching", epoch=9, promised_epoch=9)

    cell.now_ms += ELECTION_MS * 4 - 1
    before = cell.plan()
    cell.now_ms += 1
    after = cell.plan()

    assert not of(before.actions, Appoint)
    assert [action.reason for action in of(after.actions, Appoint)] == ["broker a was not activated"]


def test_elect_that_gives_a_copy_has_time_while_the_copy_gets_on(cell: PlannedCell) -> None:
    """Without the member that needs the copy there is no majority for its first batch."""
    number = journal_led_by(cell, "a")
    cell.kill("a")
    for name in "bc":
        change(cell, number, name, hears_leader=False)
    (appoint,) = [action for action in of(cell.plan().actions, Appoint) if action.journal == number]
    cell.carry_out(appoint)
    leader, other = sorted("bc", key=lambda name: broker_of(appoint.configuration.leader) != name)
    (member,) = [one for one in appoint.configuration.members if broker_of(one) == other]
    epoch = cell.configuration(number).epoch
    change(cell, number, leader, role="activating", epoch=epoch, promised_epoch=epoch)
    cell.now_ms += 100 * ELECTION_MS

    change(cell, number, leader, copied_bytes={other: 4711}, stuck_ms={member: STUCK_MS - 1})
    assert on(number, cell.plan().actions) == []
    change(cell, number, leader, stuck_ms={member: STUCK_MS})
    (action,) = on(number, cell.plan().actions)
    assert isinstance(action, Appoint)
    assert action.reason == f"broker {leader} was not activated"


def test_slow_elect_without_alternative_is_only_told_of() -> None:
    cell = running("a", replicas=1)
    cell.carry_out(
        Appoint(
            0,
            msgspec.structs.replace(cell.configuration(0), epoch=9, activated=False),
            cell.journals[0].revision,
            "",
        )
    )
    cell.now_ms += ELECTION_MS

    made = cell.plan()

    assert made.actions == ()
    assert made.problems == (
        "journal 0 has no leader: broker a found no majority, and nobody else could lead",
    )


def test_leader_that_no_majority_answers_is_replaced_after_a_while(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    change(cell, number, "a", hears_leader=False, unheard_ms=2_999)
    before = cell.plan()
    change(cell, number, "a", hears_leader=False, unheard_ms=3_000)
    after = cell.plan()

    assert before.actions == ()
    (action,) = after.actions
    assert isinstance(action, Appoint)
    assert broker_of(action.configuration.leader) != "a"


def test_leader_that_no_majority_answers_stays_while_there_is_no_other_majority(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    change(cell, number, "a", hears_leader=False, unheard_ms=3_000)
    change(cell, number, "b", is_ready=False)

    made = cell.plan()

    assert not on(number, made.actions)


def test_replica_that_stopped_leads_no_more(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    change(cell, number, "a", role="stopped")

    (action,) = cell.plan().actions

    assert isinstance(action, Appoint)
    assert action.reason == "the replica of broker a takes no part"


# Brokers that nothing can be activated on


UNFIT = pytest.mark.parametrize(
    ("is_wrong", "told"),
    [("has_space", "has no disk space"), ("reaches_coordination", "does not reach coordination")],
)


def until_appointed(cell: PlannedCell, number: int, name: str) -> None:
    """Kill a journal's leader, and have it appoint this broker, whose log is the longest."""
    killed = cell.leaders()[number]
    cell.kill(killed)
    for other in cell.members(number) - {killed}:
        change(cell, number, other, hears_leader=False, last_epoch=1, end=90 if other == name else 80)
    (appoint,) = [action for action in of(cell.plan().actions, Appoint) if action.journal == number]
    assert broker_of(appoint.configuration.leader) == name
    cell.carry_out(appoint)


@UNFIT
def test_unfit_broker_is_not_appointed_even_for_the_longest_log(
    cell: PlannedCell, is_wrong: str, told: str
) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    change(cell, number, "b", hears_leader=False, end=90)
    change(cell, number, "c", hears_leader=False, end=50)
    setattr(cell.hosts["b"], is_wrong, False)

    made = cell.plan()
    cell.run()

    assert f"broker b {told}" in made.problems
    assert cell.leaders()[number] == "c"


@UNFIT
def test_broker_that_becomes_unfit_before_it_is_activated_is_given_up_at_once(
    cell: PlannedCell, is_wrong: str, told: str
) -> None:
    number = journal_led_by(cell, "a")
    until_appointed(cell, number, "b")
    setattr(cell.hosts["b"], is_wrong, False)

    (action,) = [action for action in of(cell.plan().actions, Appoint) if action.journal == number]

    assert broker_of(action.configuration.leader) == "c"
    assert action.reason == f"broker b {told}"


def test_elect_that_lost_coordination_keeps_its_time_when_all_have(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    until_appointed(cell, number, "b")
    for host in cell.hosts.values():
        host.reaches_coordination = False

    before = on(number, cell.plan().actions)
    cell.now_ms += ELECTION_MS
    after = of(on(number, cell.plan().actions), Appoint)

    assert before == []
    assert [action.reason for action in after] == ["broker b found no majority"]


def test_leader_that_serves_stays_when_it_loses_coordination(cell: PlannedCell) -> None:
    cell.hosts["a"].reaches_coordination = False

    made = cell.plan()

    assert made.actions == ()
    assert made.problems == ("broker a does not reach coordination",)


def test_nothing_changes_when_nobody_reaches_coordination(cell: PlannedCell) -> None:
    for host in cell.hosts.values():
        host.reaches_coordination = False

    assert cell.run(ms=2 * GRACE_MS) == []
    assert set(cell.leaders().values()) == set("abc")


def test_broker_is_given_nothing_before_it_reaches_coordination(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.kill("a")
    cell.run()
    cell.start("a")
    cell.hosts["a"].reaches_coordination = False
    cell.join("d")
    cell.hosts["d"].reaches_coordination = False

    assert cell.run(ms=3 * SETTLE_MS) == []
    for host in cell.hosts.values():
        host.reaches_coordination = True
    cell.run(ms=3 * SETTLE_MS)

    assert cell.leaders()[number] == "a"
    assert "d" in cell.leaders().values()


def test_leader_with_a_full_disk_hands_over_to_a_member_with_space(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.hosts["a"].has_space = False
    cell.hosts["b"].has_space = False

    done = cell.run(ms=2 * SETTLE_MS)
    assert {type(action) for action in done} == {Transfer}
    assert set(cell.leaders().values()) == {"c"}
    cell.hosts["a"].has_space = cell.hosts["b"].has_space = True
    cell.run(ms=SETTLE_MS)

    assert cell.leaders()[number] == "a"


def test_broker_with_a_full_disk_gets_no_replica_and_its_learners_go_elsewhere() -> None:
    cell = running("a", "b", "c", "d", "e")
    number = next(number for number in cell.journals if not {"d", "e"} & cell.members(number))
    leaver = next(name for name in cell.members(number) if name != cell.leaders()[number])
    cell.kill(leaver)
    until_learning(cell, number)
    learner = broker_of(cell.configuration(number).learners[0])
    cell.hosts[learner].has_space = False

    cell.run(ms=DROP_MS)

    assert cell.configuration(number).learners == ()
    assert not {leaver, learner} & cell.members(number)


def test_configuration_that_cannot_be_activated_gives_way_to_the_last_one(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    old = cell.configuration(number)
    strangers = ("x@1", "y@1", "z@1")
    swapped = msgspec.structs.replace(
        old, epoch=9, members=(old.leader, "x@1", "y@1"), previous_members=old.members, activated=False
    )
    cell.carry_out(Appoint(number, swapped, cell.journals[number].revision, ""))
    change(cell, number, "a", role="follower", promised_epoch=9)

    (action,) = of(cell.plan().actions, Appoint)

    assert set(action.configuration.members) == set(old.members)
    assert not set(action.configuration.members) & set(strangers)


def test_members_that_know_nothing_of_the_last_activated_ones_give_way_to_them(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    old = cell.configuration(number)
    other = tuple(f"{name}@9" for name in "def")
    for name in "def":
        cell.join(name)
        cell.hosts[name].replicas[number] = ReplicaSeen(
            f"{name}@9", "follower", 0, 9, 0, 0, hears_leader=False
        )
    swapped = JournalConfiguration(9, "d@9", other, old.members, activated=False)
    cell.carry_out(Appoint(number, swapped, cell.journals[number].revision, ""))

    (action,) = [action for action in of(cell.plan().actions, Appoint) if action.journal == number]

    assert set(action.configuration.members) == set(action.configuration.previous_members) == set(old.members)
    assert action.configuration.leader in old.members


@pytest.mark.parametrize("is_longest_kept", [True, False])
def test_members_that_were_never_activated_stay_if_they_have_all_of_the_log(
    cell: PlannedCell, is_longest_kept: bool
) -> None:
    number = journal_led_by(cell, "a")
    old = cell.configuration(number)
    leaver = next(member for member in old.members if member.startswith("c"))
    cell.join("d")
    cell.hosts["d"].replicas[number] = ReplicaSeen("d@9", "follower", 0, 9, 1, 4, hears_leader=False)
    members = (*tuple(member for member in old.members if member != leaver), "d@9")
    swapped = JournalConfiguration(9, "d@9", members, old.members, activated=False)
    cell.carry_out(Appoint(number, swapped, cell.journals[number].revision, ""))
    for name, end in (("a", 7), ("b", 8 if is_longest_kept else 6), ("c", 8)):
        change(cell, number, name, role="follower", promised_epoch=9, last_epoch=1, end=end)

    (action,) = [action for action in of(cell.plan().actions, Appoint) if action.journal == number]

    expected = members if is_longest_kept else old.members
    leader = "b" if is_longest_kept else "c"
    assert set(action.configuration.members) == set(expected)
    assert action.configuration.leader.startswith(leader)


def test_report_older_than_the_configuration_says_nothing_of_its_members(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.wipe("a")
    seen = cell.see()
    journal = msgspec.structs.replace(cell.journals[number], since_ms=seen.now_ms)
    seen.journals[number] = journal

    made = plan(seen)

    assert not on(number, made.actions)


# Members that are lost


def test_member_dead_for_the_grace_time_is_replaced_by_a_learner_first() -> None:
    cell = running("a", "b", "c", "d")
    number = next(number for number in cell.journals if "d" not in cell.members(number))
    leaver = next(name for name in cell.members(number) if name != cell.leaders()[number])
    cell.kill(leaver)

    cell.run(ms=GRACE_MS - 2_000)
    assert leaver in cell.members(number)
    done = on(number, cell.run(ms=10_000))

    assert [type(action) for action in done] == [ReplaceMember, Promote]
    assert cell.members(number) == {"a", "b", "c", "d"} - {leaver}
    assert cell.configuration(number).learners == ()


def test_member_that_returns_in_time_keeps_its_place(cell: PlannedCell) -> None:
    before = {number: cell.members(number) for number in cell.journals}
    cell.kill("b")
    cell.run(ms=GRACE_MS - 10_000)

    cell.start("b")
    cell.run(ms=2 * SETTLE_MS)

    assert {number: cell.members(number) for number in cell.journals} == before
    assert Counter(cell.leaders().values()) == Counter("abc")


def test_dead_member_stays_when_there_is_no_other_broker(cell: PlannedCell) -> None:
    cell.kill("c")

    cell.run(ms=2 * GRACE_MS)

    assert all(cell.members(number) == {"a", "b", "c"} for number in cell.journals)
    assert any("no broker is free" in problem for problem in cell.plan().problems)


def test_learner_is_given_up_when_the_dead_member_returns() -> None:
    cell = running("a", "b", "c", "d")
    number = next(number for number in cell.journals if "d" not in cell.members(number))
    leaver = next(name for name in cell.members(number) if name != cell.leaders()[number])
    before = cell.members(number)
    cell.kill(leaver)
    until_learning(cell, number)
    cell.start(leaver)

    done = on(number, cell.run(ms=DROP_MS + 1_000))

    assert isinstance(done[0], SetLearners)
    assert any(isinstance(action, DropReplica) and action.broker == "d" for action in done)
    assert cell.members(number) == before


def test_learner_whose_broker_dies_is_given_up_after_some_patience() -> None:
    cell = running("a", "b", "c", "d", "e")
    number = next(number for number in cell.journals if not {"d", "e"} & cell.members(number))
    leaver = next(name for name in cell.members(number) if name != cell.leaders()[number])
    cell.kill(leaver)
    until_learning(cell, number)
    learner = broker_of(cell.configuration(number).learners[0])
    cell.kill(learner)

    cell.run(ms=120_000)

    assert cell.members(number) <= {"a", "b", "c", "d", "e"} - {leaver, learner}


def test_learner_that_gets_nothing_is_given_up_for_another_broker() -> None:
    cell = running("a", "b", "c", "d", "e")
    number = next(number for number in cell.journals if not {"d", "e"} & cell.members(number))
    leaver = next(name for name in cell.members(number) if name != cell.leaders()[number])
    cell.kill(leaver)
    cell.stuck = dict.fromkeys("de", cell.now_ms + GRACE_MS)
    until_learning(cell, number)
    learner = broker_of(cell.configuration(number).learners[0])
    cell.stuck = {learner: cell.now_ms}
    for _ in range(STUCK_MS // POLL_MS):
        assert broker_of(cell.configuration(number).learners[0]) == learner
        cell.step()

    cell.run()

    assert cell.configuration(number).learners == ()
    assert cell.members(number) == {"a", "b", "c", "d", "e"} - {leaver, learner}


def test_learner_that_gets_nothing_is_tried_again_when_there_is_no_other_broker() -> None:
    cell = running("a", "b", "c")
    number = journal_led_by(cell, "b")
    cell.wipe("c")
    cell.stuck["c"] = cell.now_ms
    for _ in range(2 * STUCK_MS // POLL_MS):
        cell.step()
    given_up = [action for action in on(number, cell.history) if isinstance(action, SetLearners)]

    del cell.stuck["c"]
    cell.run()

    assert given_up
    assert cell.members(number) == {"a", "b", "c"}
    assert cell.plan().problems == ()


def test_new_disk_that_does_not_fill_gives_way_to_another_broker() -> None:
    cell = running("a", "b", "c", "d")
    number = next(number for number in cell.journals if "d" not in cell.members(number))
    name = next(name for name in cell.members(number) if name != cell.leaders()[number])
    cell.wipe(name)
    cell.stuck[name] = cell.now_ms
    for _ in range(STUCK_MS // POLL_MS):
        cell.step()

    cell.run()

    assert cell.members(number) == {"a", "b", "c", "d"} - {name}


def test_learner_is_not_given_up_for_a_report_from_before_it_was_one() -> None:
    cell = running("a", "b", "c")
    number = journal_led_by(cell, "b")
    cell.wipe("c")
    cell.now_ms += 1
    seen = cell.see()
    (action,) = on(number, plan(seen).actions)
    assert isinstance(action, ReplaceMember)

    cell.carry_out(action)
    made = plan(msgspec.structs.replace(seen, journals=dict(cell.journals)))

    assert on(number, made.actions) == []


def test_learner_that_lost_its_disk_begins_again() -> None:
    cell = running("a", "b", "c", "d")
    number = next(number for number in cell.journals if "d" not in cell.members(number))
    cell.kill(next(name for name in cell.members(number) if name != cell.leaders()[number]))
    until_learning(cell, number)
    (learner,) = cell.configuration(number).learners
    cell.wipe("d")
    cell.now_ms += 1

    (given_up,) = on(number, cell.plan().actions)
    cell.run()

    assert isinstance(given_up, SetLearners)
    assert given_up.configuration.learners == ()
    assert "d" in cell.members(number)
    assert learner not in cell.configuration(number).members


def test_learner_far_behind_is_waited_for_and_told_of() -> None:
    cell = running("a", "b", "c", "d")
    number = next(number for number in cell.journals if "d" not in cell.members(number))
    cell.kill(next(name for name in cell.members(number) if name != cell.leaders()[number]))
    until_learning(cell, number)
    learner = cell.configuration(number).learners[0]
    leader = cell.leaders()[number]
    change(cell, number, leader, lag={learner: 1_001})
    at_first = cell.plan()
    cell.now_ms += LEARNING_MS
    later = cell.plan()

    promoted = of((*at_first.actions, *later.actions), Promote)
    assert number not in [action.journal for action in promoted]
    assert not [problem for problem in at_first.problems if "waits long" in problem]
    assert f"journal {number} waits long for its learners {learner}" in later.problems


def test_lost_disk_is_replaced_at_once_in_the_same_broker(cell: PlannedCell) -> None:
    old = {number: cell.configuration(number).members for number in cell.journals}
    cell.wipe("c")

    cell.run(ms=SETTLE_MS)

    for number in cell.journals:
        assert cell.members(number) == {"a", "b", "c"}
        renewed = next(member for member in cell.configuration(number).members if broker_of(member) == "c")
        assert renewed not in old[number]
    assert Counter(cell.leaders().values()) == Counter("abc")


def test_tainted_replica_neither_votes_nor_stays(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "b")
    old = cell.configuration(number).members
    change(cell, number, "c", is_tainted=True)

    (action,) = on(number, cell.plan().actions)
    cell.run()

    assert isinstance(action, ReplaceMember)
    assert broker_of(action.leaving or "") == action.broker == "c"
    assert len(set(cell.configuration(number).members) & set(old)) == 2


def test_member_of_a_broker_that_is_not_registered_is_replaced_at_once() -> None:
    cell = running("a", "b", "c", "d")
    gone = next(name for name in "abcd" if any(name in cell.members(number) for number in cell.journals))
    del cell.hosts[gone]

    cell.run(ms=SETTLE_MS)

    assert all(gone not in cell.members(number) for number in cell.journals)
    assert set(cell.leaders()) == set(cell.journals)


def test_few_journals_move_at_once() -> None:
    cell = running("a", "b", "c", "d", "e", "f", "g")
    cell.kill("a")
    cell.run(ms=GRACE_MS - 5_000)

    while True:
        cell.step()
        moving = sum(bool(cell.configuration(number).learners) for number in cell.journals)
        assert moving <= cell.settings.moves_max
        if moving == 0 and cell.now_ms > 1_000_000 + GRACE_MS + 60_000:
            break

    assert all("a" not in cell.members(number) for number in cell.journals)


def test_resting_journal_gets_leaders_and_no_moves(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "b")
    change(cell, number, "c", is_tainted=True)
    resting = msgspec.structs.replace(cell.see(), resting=frozenset(cell.journals))

    made = plan(resting)

    assert made.actions == ()


# Brokers that join and leave


def test_broker_that_joins_gets_its_share(cell: PlannedCell) -> None:
    cell.join("d")

    done = cell.run(ms=2 * SETTLE_MS)

    assert of(done, CreateJournal)
    assert Counter(cell.leaders().values()) == Counter("abcd")
    held = Counter(name for number in cell.journals for name in cell.members(number))
    assert set(held.values()) == {3}


def test_broker_in_a_zone_of_its_own_gets_a_member_of_each_journal() -> None:
    cell = running("a/1", "b/1", "c/2")
    cell.join("d/3")

    cell.run(ms=3 * SETTLE_MS)

    for number in cell.journals:
        assert len({cell.hosts[name].zone for name in cell.members(number)}) == 3


def test_broker_without_home_takes_one_over_from_a_broker_with_two() -> None:
    cell = running("a", "b", "c", "d")
    cell.kill("d")
    cell.run(ms=GRACE_MS + 30_000)
    assert sorted(Counter(cell.leaders().values()).values()) == [1, 1, 2]

    cell.wipe("d")
    cell.start("d")
    cell.run(ms=DROP_MS + 5 * SETTLE_MS)

    assert len(cell.journals) == 4
    assert Counter(cell.leaders().values()) == Counter("abcd")


def test_broker_that_flaps_gets_nothing_for_balances_sake(cell: PlannedCell) -> None:
    cell.kill("a")
    for _ in range(5):
        cell.step()
    cell.start("a")

    done = cell.run(ms=SETTLE_MS - 2_000)

    assert not of(done, Transfer)
    assert of(cell.run(ms=SETTLE_MS), Transfer)


def test_draining_broker_hands_over_is_replaced_and_goes() -> None:
    cell = running("a", "b", "c", "d")
    cell.hosts["a"].state = "draining"

    done = cell.run(ms=DROP_MS + 20_000)

    assert {type(action) for action in done} == {Transfer, ReplaceMember, Promote, DropReplica, RemoveBroker}
    assert isinstance(done[-1], RemoveBroker)
    assert "a" not in cell.hosts
    assert all(cell.members(number) == {"b", "c", "d"} for number in cell.journals)
    assert not of(done, Appoint)


def test_drained_broker_that_died_is_forgotten_after_the_grace_time() -> None:
    cell = running("a", "b", "c", "d")
    cell.hosts["a"].state = "draining"
    while "a" in {name for number in cell.journals for name in cell.members(number)}:
        cell.step()
    cell.kill("a")

    cell.run(ms=GRACE_MS - 5_000)
    assert "a" in cell.hosts
    cell.run(ms=10_000)

    assert "a" not in cell.hosts


def test_broker_cannot_drain_when_no_other_could_take_its_place(cell: PlannedCell) -> None:
    cell.hosts["a"].state = "draining"

    cell.run(ms=60_000)

    assert "a" not in cell.leaders().values()
    assert all("a" in cell.members(number) for number in cell.journals)
    assert any("broker a is draining, and no broker is free" in problem for problem in cell.plan().problems)


def test_only_replica_moves_by_way_of_two() -> None:
    cell = running("a", replicas=1)
    cell.join("b")
    cell.run(ms=SETTLE_MS)
    cell.hosts["a"].state = "draining"

    cell.run(ms=DROP_MS + 20_000)

    assert list(cell.hosts) == ["b"]
    assert cell.leaders() == {0: "b", 1: "b"}
    assert all(len(cell.configuration(number).members) == 1 for number in cell.journals)


def test_stopping_broker_hands_over_keeps_its_replicas_and_gets_its_home_back(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.hosts["a"].state = "stopping"
    cell.run()
    assert cell.leaders()[number] != "a"
    cell.kill("a")
    done = cell.run(ms=30_000)
    assert done == []

    cell.start("a")
    cell.hosts["a"].state = "active"
    cell.run(ms=2 * SETTLE_MS)

    assert cell.leaders()[number] == "a"


def test_leader_without_members_to_hand_over_to_stays(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.hosts["a"].state = "stopping"
    for name in "bc":
        change(cell, number, name, is_ready=False)

    made = cell.plan()

    assert not on(number, made.actions)
    assert (
        f"journal {number} stays where it is: broker a is stopping, and no member can take over"
        in made.problems
    )


def test_broker_short_of_disk_space_leads_nothing_while_another_can(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    cell.hosts["a"].is_disk_low = True

    done = cell.run(ms=2 * SETTLE_MS)
    assert len(of(done, Transfer)) == 1
    assert cell.leaders()[number] != "a"
    cell.hosts["a"].is_disk_low = False
    cell.run(ms=SETTLE_MS)

    assert cell.leaders()[number] == "a"


def test_transfer_names_the_epoch_after_and_the_same_members(cell: PlannedCell) -> None:
    number = journal_led_by(cell, "a")
    before = cell.configuration(number)
    cell.hosts["a"].state = "draining"

    (action,) = of(cell.plan().actions, Transfer)

    assert action.source == before.leader
    assert action.configuration.leader == action.target
    assert action.configuration.epoch == before.epoch + 1
    assert (
        set(action.configuration.members) == set(before.members) == set(action.configuration.previous_members)
    )


# Other numbers of replicas


def test_lone_journal_grows_to_three_members_in_one_step() -> None:
    cell = running("a", replicas=1)
    cell.settings = PlacementSettings(replicas=3)
    cell.join("b")
    cell.run()
    cell.join("c")
    cell.hosts["c"].is_disk_low = True
    cell.run()
    assert len(cell.members(0)) == 1
    cell.hosts["c"].is_disk_low = False

    done = on(0, cell.run())

    assert [type(action) for action in done] == [ReplaceMember, ReplaceMember, Promote]
    assert cell.members(0) == {"a", "b", "c"}


def test_journals_with_more_members_than_wanted_lose_the_ones_they_can_spare() -> None:
    cell = running("a", "b", "c", "d", "e", replicas=5)
    cell.settings = PlacementSettings(replicas=3)

    cell.run()

    held = Counter(name for number in cell.journals for name in cell.members(number))
    assert all(len(cell.members(number)) == 3 for number in cell.journals)
    assert max(held.values()) - min(held.values()) <= 1


def test_members_that_are_behind_are_the_first_to_be_spared() -> None:
    cell = running("a", "b", "c", "d", "e", replicas=5)
    number = journal_led_by(cell, "c")
    cell.settings = PlacementSettings(replicas=3)
    cell.stuck = dict.fromkeys("ab", cell.now_ms)
    cell.step()

    cell.run()

    assert cell.members(number) == {"c", "d", "e"}


def test_no_member_goes_while_those_that_stay_are_behind() -> None:
    cell = running("a", "b", "c", "d", "e", replicas=5)
    number = journal_led_by(cell, "c")
    cell.settings = PlacementSettings(replicas=3)
    cell.stuck = dict.fromkeys("abde", cell.now_ms)
    for other in cell.journals:
        cell.replicate(other)

    assert cell.run() == []
    cell.stuck = {}
    cell.run()

    assert len(cell.members(number)) == 3


# Whatever happens


members = st.builds("{}@{}".format, st.sampled_from("abcde"), st.integers(1, 2))
member_sets = st.lists(members, min_size=1, max_size=5, unique=True).map(tuple)
times = st.sampled_from([0, 100, 1_600, 12_000, 70_000, 400_000])


@st.composite
def cells(draw: st.DrawFn) -> CellSeen:
    """Anything that could be seen, possible or not."""
    now_ms = 1_000_000
    journals = {}
    for number in range(draw(st.integers(0, 3))):
        known = draw(member_sets)
        configuration = JournalConfiguration(
            draw(st.integers(1, 4)),
            draw(st.sampled_from(known)),
            known,
            draw(st.one_of(st.just(()), member_sets)),
            draw(st.booleans()),
            draw(st.lists(members, max_size=2, unique=True).map(tuple)),
        )
        since_ms = now_ms - draw(times)
        journals[number] = JournalSeen(configuration, draw(st.integers(1, 9)), since_ms, since_ms)
    brokers = []
    for name in draw(st.lists(st.sampled_from("abcde"), unique=True)):
        replicas = {}
        for number in range(4):
            if draw(st.integers(0, 4)):
                replicas[number] = ReplicaSeen(
                    f"{name}@{draw(st.integers(1, 2))}",
                    draw(st.sampled_from(["leading", "leading", "follower", "preparing", "stopped"])),
                    draw(st.integers(0, 4)),
                    draw(st.integers(0, 6)),
                    draw(st.integers(0, 4)),
                    draw(st.integers(0, 100)),
                    draw(st.booleans()),
                    is_ready=draw(st.integers(0, 5)) > 0,
                    is_tainted=draw(st.integers(0, 5)) == 0,
                    lag=draw(st.dictionaries(members, st.integers(0, 20_000), max_size=4)),
                    unheard_ms=draw(times),
                )
        brokers.append(
            BrokerSeen(
                name,
                draw(st.sampled_from("12")),
                draw(st.sampled_from(["active", "active", "draining", "stopping"])),
                draw(st.integers(1, 9)),
                is_reachable=draw(st.integers(0, 4)) > 0,
                since_ms=now_ms - draw(times),
                heard_ms=draw(st.one_of(st.none(), times.map(lambda ago_ms: now_ms - ago_ms))),
                connected_ms=now_ms - draw(times),
                report=BrokerReport(
                    replicas,
                    is_disk_low=draw(st.integers(0, 5)) == 0,
                    has_space=draw(st.integers(0, 5)) > 0,
                    coordination_silent_ms=draw(times),
                ),
            )
        )
    return CellSeen(
        now_ms,
        tuple(brokers),
        journals,
        PlacementSettings(replicas=draw(st.sampled_from([1, 3, 5]))),
        acting=frozenset(draw(st.sets(st.integers(0, 4), max_size=1))),
        asking=frozenset(draw(st.sets(st.integers(0, 4), max_size=1))),
        resting=frozenset(draw(st.sets(st.integers(0, 3), max_size=1))),
    )


@settings(max_examples=150)
@given(cells())
def test_plans_keep_the_rules_whatever_is_seen(seen: CellSeen) -> None:
    check_plan(seen)


@settings(max_examples=15)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 3, 3, 3, 5]))
@pytest.mark.uncovered
def test_a_cell_that_is_left_alone_becomes_even_and_quiet(seed: int, replicas: int) -> None:
    chance = random.Random(seed)
    zones = chance.randint(1, 4)
    names = [f"{name}/{chance.randint(1, zones)}" for name in "abcdefg"]
    cell = PlannedCell(*names[: max(replicas, 3)], settings=PlacementSettings(replicas=replicas))
    joining = names[max(replicas, 3) :]

    for _ in range(chance.randint(5, 60)):
        name = chance.choice(list(cell.hosts))
        host = cell.hosts[name]
        down = sum(not other.is_alive for other in cell.hosts.values())
        match chance.randint(0, 9):
            case 0 if down == 0:
                cell.kill(name)
            case 1 | 2 if not host.is_alive:
                cell.start(name)
            case 3 if down == 0 and replicas > 1 and _are_whole(cell):
                cell.wipe(name)
            case 4 if joining:
                cell.join(joining.pop())
            case 5 if len(cell.hosts) - 1 > max(replicas, 3):
                host.state = "draining"
            case 6:
                host.is_disk_low = not host.is_disk_low
            case 7:
                match chance.randint(0, 2):
                    case 0:
                        cell.unseen ^= {name}
                    case 1:
                        host.has_space = not host.has_space
                    case 2:
                        host.reaches_coordination = not host.reaches_coordination
            case _:
                for _ in range(chance.choice([1, 4, 20])):
                    check_plan(cell.see())
                    cell.step()
                    for number in cell.leaders():
                        cell.append(number, chance.randint(0, 5))
    cell.unseen.clear()
    for name, host in cell.hosts.items():
        host.state = "active"
        host.is_disk_low = False
        host.has_space = host.reaches_coordination = True
        if not host.is_alive:
            cell.start(name)
    cell.run(ms=GRACE_MS + DROP_MS)

    assert set(cell.leaders()) == set(cell.journals)
    assert cell.plan().problems == ()
    led = Counter(cell.leaders().values())
    if replicas > 1:
        assert max(led.values()) <= -(-len(cell.journals) // len(cell.hosts))
    for number in cell.journals:
        assert len(cell.configuration(number).members) == replicas
        in_zones = {cell.hosts[name].zone for name in cell.members(number)}
        if replicas > 1:
            assert len(in_zones) >= min(replicas, len({host.zone for host in cell.hosts.values()}))


def _are_whole(cell: PlannedCell) -> bool:
    """Whether every member of every journal has its replica: one disk may be lost."""
    return all(
        cell.configuration(number).activated
        and all(
            (replica := cell.hosts[broker_of(member)].replicas.get(number)) is not None
            and replica.member == member
            and replica.end == cell.hosts[cell.leaders()[number]].replicas[number].end
            for member in cell.configuration(number).members
            if broker_of(member) in cell.hosts
        )
        and not cell.configuration(number).learners
        for number in cell.journals
        if number in cell.leaders()
    ) and set(cell.leaders()) == set(cell.journals)


def test_replicas_are_not_evened_out_while_a_broker_is_asked_for_one(cell: PlannedCell) -> None:
    cell.run()
    cell.join("d")
    cell.now_ms += PlacementSettings().settle_ms + POLL_MS
    seen = cell.see()
    free, busy = plan(seen), plan(msgspec.structs.replace(seen, asking=frozenset({0})))

    assert [action.broker for action in of(free.actions, ReplaceMember)] == ["d", "d"]
    assert of(busy.actions, ReplaceMember) == []

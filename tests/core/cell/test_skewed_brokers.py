"""A broker whose clock is far from the others' leads nothing while another one can."""

from __future__ import annotations

import msgspec
import pytest
from harness.planned_cell import PlannedCell

from quaymaster.core.cell.cell import Appoint, PlacementSettings, ReplicaSeen, Transfer, broker_of
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.values.journal_configuration import JournalConfiguration

SETTLE_MS = PlacementSettings().settle_ms
SKEW_MAX_MS = PlacementSettings().clock_skew_max_ms
WALL_MS = 1_700_000_000_000


def running(*names: str, replicas: int = 3) -> PlannedCell:
    """Return a cell in which nothing is left to do; its brokers tell their clocks."""
    cell = PlannedCell(*names, settings=PlacementSettings(replicas=replicas))
    for host in cell.hosts.values():
        host.clock_ahead_ms = WALL_MS
    cell.run(ms=SETTLE_MS)
    return cell


def shift(cell: PlannedCell, name: str, ms: int) -> None:
    """Put a broker's clock wrong."""
    cell.hosts[name].clock_ahead_ms = WALL_MS + ms


@pytest.mark.parametrize(
    ("ms", "told"),
    [
        (5_000, "the clock of broker a is 5.0 s ahead of the others"),
        (-86_400_000, "the clock of broker a is 86400.0 s behind the others"),
    ],
)
def test_leadership_is_handed_over_and_does_not_come_back_until_the_clock_is_right(
    ms: int, told: str
) -> None:
    cell = running("a", "b", "c")
    number = next(number for number, name in cell.leaders().items() if name == "a")
    shift(cell, "a", ms)

    made = cell.plan()
    cell.run(ms=2 * SETTLE_MS)
    led, problems = set(cell.leaders().values()), cell.plan().problems
    shift(cell, "a", 0)
    cell.run(ms=2 * SETTLE_MS)

    assert any(isinstance(action, Transfer) for action in made.actions)
    assert led == {"b", "c"}
    assert told in problems
    assert cell.leaders()[number] == "a"


def test_of_two_clocks_that_differ_nobody_can_tell_which_is_wrong() -> None:
    cell = running("a", "b", "c")
    shift(cell, "b", 60_000)
    cell.kill("a")
    cell.run()

    assert CellView(cell.see()).skews_ms == {}
    assert set(cell.leaders().values()) == {"b", "c"}
    assert _unsure(cell) == [
        "clocks of brokers differ, and no majority tells which is right: that of b is 60.0 s ahead of that of c; "
        "any of them may lead"
    ]


def test_two_clocks_that_agree_are_no_problem() -> None:
    cell = running("a", "b", "c")
    shift(cell, "b", SKEW_MAX_MS)
    cell.kill("a")
    cell.run()

    assert _unsure(cell) == []


def test_one_clock_alone_disagrees_with_none() -> None:
    cell = running("a", "b", "c")
    for name in ("a", "b"):
        cell.hosts[name].clock_ahead_ms = None

    assert _unsure(cell) == []


def test_where_a_majority_agrees_only_the_broker_that_is_off_is_told_of() -> None:
    cell = running("a", "b", "c")
    shift(cell, "b", 60_000)

    assert cell.plan().problems == ("the clock of broker b is 60.0 s ahead of the others",)


def test_of_four_brokers_the_skewed_one_is_passed_over() -> None:
    cell = running("a", "b", "c", "d")
    number = next(
        number for number, name in cell.leaders().items() if name == "a" and "b" in _brokers(cell, number)
    )
    shift(cell, "b", 60_000)
    cell.kill("a")
    for name in _brokers(cell, number) - {"a"}:
        replica = cell.hosts[name].replicas[number]
        end = 90 if name == "b" else 50
        cell.hosts[name].replicas[number] = msgspec.structs.replace(replica, hears_leader=False, end=end)

    cell.run()

    assert cell.leaders()[number] in _brokers(cell, number) - {"a", "b"}


def test_a_skewed_broker_leads_when_nobody_else_can() -> None:
    cell = running("a", "b", "c", "d", "e", replicas=1)
    number = next(number for number, name in cell.leaders().items() if name == "a")
    shift(cell, "a", 60_000)

    made = cell.plan()

    assert cell.leaders()[number] == "a"
    assert any(f"journal {number} stays where it is" in problem for problem in made.problems)


def test_small_skews_and_slow_answers_accuse_nobody() -> None:
    cell = running("a", "b", "c")

    shift(cell, "a", SKEW_MAX_MS)

    assert not cell.plan().actions
    assert not cell.plan().problems


def test_where_no_majority_of_clocks_agrees_nobody_is_accused() -> None:
    cell = running("a", "b", "c")
    for number, name in enumerate(("a", "b", "c")):
        shift(cell, name, number * 10_000)

    assert CellView(cell.see()).skews_ms == {}
    assert not cell.plan().actions
    assert _unsure(cell) == [
        "clocks of brokers differ, and no majority tells which is right: that of b is 10.0 s, that of c is 20.0 s "
        "ahead of that of a; any of them may lead"
    ]


def test_brokers_that_tell_no_clock_are_not_judged_by_it() -> None:
    cell = running("a", "b", "c")
    shift(cell, "a", 60_000)
    cell.hosts["b"].clock_ahead_ms = None

    assert CellView(cell.see()).skews_ms == {}


def test_a_journal_in_which_nothing_expires_is_told_of() -> None:
    cell = running("a", "b", "c")
    number = next(number for number, name in cell.leaders().items() if name == "a")
    told: list[str] = []
    for ahead_ms in (7_000, -7_000):
        replica = cell.hosts["a"].replicas[number]
        cell.hosts["a"].replicas[number] = msgspec.structs.replace(
            replica, expiry_held=True, clock_ahead_ms=ahead_ms
        )
        told += cell.plan().problems

    assert told == [
        f"nothing expires in journal {number}: clocks are 7.0 s ahead of its time, or were lately",
        f"nothing expires in journal {number}: clocks are 7.0 s behind its time, or were lately",
    ]


def _unsure(cell: PlannedCell) -> list[str]:
    return [problem for problem in cell.plan().problems if "no majority" in problem]


def _brokers(cell: PlannedCell, number: int) -> set[str]:
    return {member.partition("@")[0] for member in cell.members(number)}


def _exchange_with_an_empty_leader(cell: PlannedCell, number: int, *, leaver: str) -> None:
    """A member is exchanged; the elect lost its log and has given it up, the other one that stays is skewed."""
    members = cell.configuration(number).members
    skewed, empty = (member for member in members if broker_of(member) != leaver)
    shift(cell, broker_of(skewed), 60_000)
    cell.join("new")
    cell.hosts["new"].clock_ahead_ms = WALL_MS
    cell.hosts["new"].replicas[number] = ReplicaSeen("new@9", "follower", 0, 9, 1, 30, hears_leader=False)
    following = JournalConfiguration(9, empty, ("new@9", skewed, empty), members, activated=False)
    cell.carry_out(Appoint(number, following, cell.journals[number].revision, ""))
    for member in members:
        end = 0 if member == empty else 90
        epoch = 0 if member == empty else 1
        cell.set(
            number, member, role="follower", promised_epoch=9, last_epoch=epoch, end=end, hears_leader=False
        )


def test_a_member_that_is_exchanged_leads_when_those_that_stay_have_no_log_or_no_right_clock() -> None:
    cell = running("a", "b", "c", "d", "e")
    number = next(iter(cell.journals))
    leaver = cell.leaders()[number]
    members = cell.configuration(number).members
    _exchange_with_an_empty_leader(cell, number, leaver=leaver)

    (action,) = (one for one in cell.plan().actions if isinstance(one, Appoint) and one.journal == number)

    assert broker_of(action.configuration.leader) == leaver
    assert set(action.configuration.members) == set(members)


def test_one_that_lacks_the_log_does_not_lead_in_turn_with_itself_where_only_a_skewed_one_has_it() -> None:
    cell = running("a", "b", "c", "d", "e")
    number = next(iter(cell.journals))
    leaver = cell.leaders()[number]
    _exchange_with_an_empty_leader(cell, number, leaver=leaver)
    skewed = cell.configuration(number).members[1]
    cell.kill(leaver)

    (action,) = (one for one in cell.plan().actions if isinstance(one, Appoint) and one.journal == number)

    assert action.configuration.leader == skewed

"""Busy brokers give journals away: which, to whom, and never to and fro."""

from __future__ import annotations

import random
import re
from collections import Counter

import msgspec
import pytest
from harness.plan_rules import check_plan
from harness.planned_cell import FOLLOWING, POLL_MS, PlannedCell

from quaymaster.core.cell.cell import PlacementSettings, Plan, Transfer, broker_of, home_of
from quaymaster.core.cell.load import BUSY_SHARE, CALM_SHARE
from quaymaster.core.cell.placement import plan

SETTINGS = PlacementSettings(journals_per_broker=4, moves_max=1)
BUSY_MS = SETTINGS.busy_ms
REST_MS = SETTINGS.load_rest_ms


def running(*names: str, settings: PlacementSettings = SETTINGS) -> PlannedCell:
    """Return a cell in which nothing is left to do."""
    cell = PlannedCell(*names, settings=settings)
    cell.run(ms=2 * BUSY_MS)
    return cell


@pytest.fixture
def cell() -> PlannedCell:
    """Three brokers, each leading four journals."""
    return running("a", "b", "c")


def led_by(cell: PlannedCell, name: str) -> list[int]:
    return sorted(number for number, leader in cell.leaders().items() if leader == name)


def watch(cell: PlannedCell, ms: int, *, step_ms: int = POLL_MS) -> list[Transfer]:
    """Let time pass in small steps; return the transfers that were planned."""
    until_ms = cell.now_ms + ms
    done: list[Transfer] = []
    while cell.now_ms < until_ms:
        done += [action for action in cell.step().actions if isinstance(action, Transfer)]
        cell.now_ms += step_ms - POLL_MS
    return done


def places(transfers: list[Transfer]) -> list[tuple[int, str, str]]:
    return [(one.journal, broker_of(one.source), broker_of(one.target)) for one in transfers]


def load(cell: PlannedCell, name: str) -> float:
    return cell.load_of(name).cpu_share


# Creation


def test_each_broker_gets_so_many_home_journals(cell: PlannedCell) -> None:
    homes = Counter(home_of(journal.configuration) for journal in cell.journals.values())

    assert homes == Counter(cell.leaders().values()) == {"a": 4, "b": 4, "c": 4}


def test_cell_keeps_its_journals_and_gets_more_when_each_broker_is_to_have_more() -> None:
    cell = running("a", "b", "c", settings=PlacementSettings())
    before = {number: cell.configuration(number) for number in cell.journals}

    cell.settings = SETTINGS
    cell.run(ms=BUSY_MS)

    assert {number: cell.configuration(number) for number in before} == before
    assert Counter(cell.leaders().values()) == {"a": 4, "b": 4, "c": 4}


def test_journals_stay_when_each_broker_is_to_have_fewer(cell: PlannedCell) -> None:
    before = cell.leaders()

    cell.settings = PlacementSettings()
    done = cell.run(ms=REST_MS)

    assert (done, cell.leaders()) == ([], before)


# Which journal, and to whom


def test_busy_broker_gives_the_largest_journal_that_fits_to_the_least_busy_one(cell: PlannedCell) -> None:
    hot, warm, *_ = led_by(cell, "a")
    cell.demand = {hot: 0.5, warm: 0.3, led_by(cell, "b")[0]: 0.25}

    done = watch(cell, 3 * BUSY_MS)

    # b and c follow what a leads; the hot one would leave neither below the bound.
    assert places(done) == [(warm, "a", "c")]
    assert re.match(r"broker a is busy \(8\d%\): with \d\d% of it broker c will be at 5\d%", done[0].reason)
    assert home_of(cell.configuration(warm)) == "c"
    assert load(cell, "c") < CALM_SHARE


def test_load_of_a_moment_moves_nothing(cell: PlannedCell) -> None:
    first, second, *_ = led_by(cell, "a")
    cell.demand = {first: 0.45, second: 0.35}

    assert watch(cell, BUSY_MS - 2_000) == []
    cell.demand = {first: 0.3, second: 0.3}

    assert watch(cell, 2 * REST_MS, step_ms=5_000) == []


def test_broker_that_is_only_just_not_busy_keeps_all(cell: PlannedCell) -> None:
    first, second, *_ = led_by(cell, "a")
    cell.demand = {first: BUSY_SHARE / 2, second: BUSY_SHARE / 2}

    assert watch(cell, REST_MS, step_ms=5_000) == []


def test_nothing_moves_where_no_broker_has_room(cell: PlannedCell) -> None:
    cell.demand = dict.fromkeys(cell.journals, 0.13)  # 0.73 everywhere, what is followed included

    assert watch(cell, REST_MS, step_ms=5_000) == []


def test_one_journal_that_is_too_hot_for_any_stays(cell: PlannedCell) -> None:
    cell.demand = {led_by(cell, "a")[0]: 0.9}

    assert watch(cell, REST_MS, step_ms=5_000) == []


def test_journals_with_next_to_no_load_are_not_moved_for_load(cell: PlannedCell) -> None:
    hot, *others = led_by(cell, "a")
    cell.demand = {hot: 0.8, **dict.fromkeys(others, 0.01)}

    assert watch(cell, REST_MS, step_ms=5_000) == []


def test_journal_that_came_for_its_load_stays_for_ten_minutes(cell: PlannedCell) -> None:
    first, second, *_ = led_by(cell, "a")
    cell.demand = {first: 0.45, second: 0.35}
    ((number, _, new),) = places(watch(cell, 3 * BUSY_MS))
    moved_ms = cell.now_ms

    # There it is the largest one soon, and others would have room.
    cell.demand = {number: 0.5, led_by(cell, new)[0]: 0.28, led_by(cell, new)[1]: 0.02}
    cell.demand |= {number: 0.55}
    others = places(watch(cell, 6 * BUSY_MS))
    later = places(watch(cell, REST_MS + BUSY_MS - (cell.now_ms - moved_ms), step_ms=1_000))

    assert number not in [moved for moved, *_ in others]
    assert number not in [moved for moved, *_ in later]


def test_moves_for_load_are_as_few_at_once_as_all_moves() -> None:
    cell = running("a", "b", "c", "d", "e", settings=msgspec.structs.replace(SETTINGS, moves_max=2))
    for name in "abc":
        first, second, *_ = led_by(cell, name)
        cell.demand |= {first: 0.4, second: 0.4}

    most = 0
    until_ms = cell.now_ms + 3 * BUSY_MS
    while cell.now_ms < until_ms:
        most = max(most, len([one for one in cell.step().actions if isinstance(one, Transfer)]))

    assert 1 <= most <= 2


def test_nothing_moves_for_load_while_a_leader_is_new(cell: PlannedCell) -> None:
    first, second, *_ = led_by(cell, "a")
    cell.demand = {first: 0.45, second: 0.35}
    watch(cell, BUSY_MS - 1_000)
    seen = cell.see()
    busy = [
        msgspec.structs.replace(one, busy_since_ms=0 if one.name == "a" else None) for one in seen.brokers
    ]
    seen = msgspec.structs.replace(seen, brokers=tuple(busy))
    assert any(isinstance(action, Transfer) for action in plan(seen).actions)

    number = led_by(cell, "b")[0]
    fresh = msgspec.structs.replace(seen.journals[number], since_ms=seen.now_ms - BUSY_MS + 1)

    assert plan(msgspec.structs.replace(seen, journals={**seen.journals, number: fresh})).actions == ()
    assert plan(msgspec.structs.replace(seen, acting=frozenset({number}))).actions == ()


def test_broker_that_is_not_heard_or_cannot_take_over_gets_nothing(cell: PlannedCell) -> None:
    first, second, *_ = led_by(cell, "a")
    cell.demand = {first: 0.45, second: 0.35}
    cell.hosts["b"].is_disk_low = True
    cell.hosts["c"].state = "stopping"

    done = watch(cell, 3 * BUSY_MS)

    assert [one for one in places(done) if one[1] == "a"] == []


def test_homes_are_not_evened_out_by_giving_a_busy_broker_more(cell: PlannedCell) -> None:
    # d is new to a cell of four journals a broker, and follows so much that it has no time for more.
    cell.join("d")
    cell.run(ms=2 * BUSY_MS)
    assert len(led_by(cell, "d")) == 4

    lost = led_by(cell, "d")
    for number in lost[:3]:
        made = cell.configuration(number)
        members = tuple(sorted(made.members, key=lambda member: broker_of(member) == "d"))
        cell._write(number, cell.journals[number].revision, msgspec.structs.replace(made, members=members))
    cell.demand = {lost[3]: 0.65}
    for _ in range(100):
        cell.see()
        cell.now_ms += POLL_MS

    assert {
        home_of(action.configuration) for action in cell.plan().actions if isinstance(action, Transfer)
    } <= {
        "a",
        "b",
        "c",
    }


# Damping


def hot_spots(cell: PlannedCell, source: random.Random) -> dict[int, float]:
    """Return a demand of which most is on a few journals, and that three loops can carry."""
    demand = {number: source.uniform(0.0, 0.05) for number in cell.journals}
    for number in source.sample(sorted(cell.journals), 4):
        demand[number] = source.uniform(0.15, 0.3)
    return demand


@pytest.mark.uncovered
@pytest.mark.parametrize("seed", range(6))
def test_noisy_loads_come_to_rest_and_nothing_goes_to_and_fro(seed: int) -> None:
    source = random.Random(seed)
    cell = running("a", "b", "c")
    cell.demand = hot_spots(cell, source)
    on_a = sorted(cell.demand, key=lambda number: -cell.demand[number])[:4]
    for at, number in enumerate(led_by(cell, "a")):  # the worst case: all hot ones begin at one broker
        cell.demand[number], cell.demand[on_a[at]] = cell.demand[on_a[at]], cell.demand[number]
    begun = list(cell.leaders().items())
    cell.noise = lambda: source.uniform(0.6, 1.4)

    settling = places(watch(cell, 10 * 60_000, step_ms=1_000))
    later = places(watch(cell, 50 * 60_000, step_ms=2_000))

    visited = begun + [(number, to) for number, _, to in settling + later]
    assert len(visited) == len(set(visited)), f"to and fro: {settling + later}"
    assert len(settling) + len(later) <= 6
    cell.noise = lambda: 1.0
    assert max(load(cell, name) for name in cell.hosts) < BUSY_SHARE + 0.05


@pytest.mark.uncovered
def test_load_that_swings_moves_few_journals() -> None:
    """Each minute another broker's journals are hot: following that would move two journals a minute."""
    source = random.Random(7)
    cell = running("a", "b", "c")
    of = {name: led_by(cell, name) for name in cell.hosts}
    moved: list[tuple[int, str, str]] = []
    for minute in range(60):
        hot = "abc"[minute % 3]
        cell.demand = {number: 0.2 if number in of[hot] else 0.02 for number in cell.journals}
        cell.noise = lambda: source.uniform(0.8, 1.2)
        moved += places(watch(cell, 60_000, step_ms=1_000))
        check_plan(cell.see())

    assert (
        max(Counter(number for number, *_ in moved).values(), default=0) <= 6
    )  # once in ten minutes at most
    assert len(moved) <= 30


def test_plans_for_load_keep_what_every_plan_keeps(cell: PlannedCell) -> None:
    first, second, *_ = led_by(cell, "a")
    cell.demand = {first: 0.45, second: 0.35}
    made = Plan((), ())
    for _ in range(3 * BUSY_MS // POLL_MS):
        check_plan(cell.see())
        made = cell.step()
        if made.actions:
            break

    assert [type(action) for action in made.actions] == [Transfer]
    assert load(cell, "a") < 0.8 - 0.35 + FOLLOWING

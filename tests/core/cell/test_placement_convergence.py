"""Where plans lead: from any placement that could be there, a healthy cell becomes even, and then nothing moves."""

from __future__ import annotations

from collections import Counter

import pytest
from harness.plan_rules import check_plan
from harness.planned_cell import POLL_MS, PlannedCell
from hypothesis import given, note, settings
from hypothesis import strategies as st

from quaymaster.core.cell.cell import (
    Action,
    JournalSeen,
    PlacementSettings,
    ReplicaSeen,
    broker_of,
)
from quaymaster.core.replication.replication import Role
from quaymaster.core.values.journal_configuration import JournalConfiguration

pytestmark = pytest.mark.uncovered

SETTLED_MS = PlacementSettings().settle_ms + 1_000
DROP_MS = PlacementSettings().drop_grace_ms
STEPS_FOR_A_MOVE = 5
"""A learner, its promotion, a transfer, and the steps in which replicas catch up and elect."""
END = 1_000


def put_journal(
    cell: PlannedCell, number: int, brokers: list[str], leader: str, learner: str | None = None
) -> None:
    """Let there be a journal that these brokers have, led and followed."""
    members = tuple(f"{name}@1" for name in brokers)
    learners = () if learner is None else (f"{learner}@1",)
    configuration = JournalConfiguration(
        1, f"{leader}@1", members, members, activated=True, learners=learners
    )
    cell.revision += 1
    cell.journals[number] = JournalSeen(configuration, cell.revision, 0, 0)
    for member in (*members, *learners):
        role: Role = "leading" if member == configuration.leader else "follower"
        cell.hosts[broker_of(member)].replicas[number] = ReplicaSeen(
            member, role, 1, 1, 1, END, hears_leader=True
        )
    cell.replicate(number)


@st.composite
def healthy_cells(draw: st.DrawFn) -> PlannedCell:
    """Brokers that are all well, in zones of any sizes, and journals that lie anyhow on them."""
    wanted = draw(st.sampled_from([3, 3, 5]))
    zones = draw(st.integers(1, 4))
    count = draw(st.integers(max(wanted, 3), 7))
    names = "abcdefg"[:count]
    cell = PlannedCell(
        *(f"{name}/{draw(st.integers(1, zones))}" for name in names),
        settings=PlacementSettings(replicas=wanted),
    )
    for number in range(draw(st.integers(0, 9))):
        size = draw(st.sampled_from([wanted, wanted, wanted, 1, 3]))
        brokers = draw(st.permutations(names))[:size]
        spare = draw(st.sampled_from([None, None, *sorted(set(names) - set(brokers))]))
        put_journal(cell, number, brokers, draw(st.sampled_from(brokers)), spare)
    cell.now_ms += SETTLED_MS
    return cell


class Watcher:
    """Steps a cell, and sees that nothing is done that must not be, and nothing again and again."""

    def __init__(self, cell: PlannedCell) -> None:
        self.cell = cell
        self.steps = 0
        self.places: dict[int, list[tuple[frozenset[str], str]]] = {}

    def until_quiet(self) -> list[Action]:
        """Step until nothing is planned for a drop's time."""
        quiet_ms = 0
        done: list[Action] = []
        while quiet_ms <= DROP_MS + SETTLED_MS:
            actions = self.step()
            done += actions
            quiet_ms = 0 if actions else quiet_ms + POLL_MS
            if not actions:
                self.cell.now_ms += 2_000
                quiet_ms += 2_000
            assert self.steps < self.steps_max, f"there is always something more to do: {done[-8:]}"
        return done

    @property
    def steps_max(self) -> int:
        journals = len(self.cell.journals) + len(self.cell.hosts)
        return 100 + journals * self.cell.settings.replicas * STEPS_FOR_A_MOVE * 2

    def step(self) -> tuple[Action, ...]:
        self.steps += 1
        check_plan(self.cell.see())
        made = self.cell.step()
        for number in self.cell.journals:
            configuration = self.cell.configuration(number)
            place = self.cell.members(number), broker_of(configuration.leader)
            seen = self.places.setdefault(number, [])
            now = frozenset(place[0]), place[1]
            if not seen or seen[-1] != now:
                # Once, for members that moved meanwhile may have evened the homes out another way.
                assert seen.count(now) < 2, f"journal {number} goes to and fro: {[*seen, now]}"
                seen.append(now)
        return made.actions


def assert_even(cell: PlannedCell) -> None:
    """Assert that every journal has its members, apart from each other, and every broker its share of leaders.

    Leaders differ by one, or by half of what the broker with the most has: less is not worth a transfer.
    """
    hosts = [host for host in cell.hosts.values() if host.state == "active"]
    zones = {host.zone for host in hosts}
    assert set(cell.leaders()) == set(cell.journals)
    for number in cell.journals:
        configuration = cell.configuration(number)
        names = cell.members(number)
        assert configuration.learners == ()
        assert len(names) == len(configuration.members) == cell.settings.replicas
        assert len({cell.hosts[name].zone for name in names}) == min(len(names), len(zones))
    led = Counter(dict.fromkeys((host.name for host in hosts), 0))
    led.update(cell.leaders().values())
    assert max(led.values()) - min(led.values()) <= max(1, max(led.values()) // 2), led
    if len(zones) in (1, len(hosts)):
        held = Counter(dict.fromkeys((host.name for host in hosts), 0))
        held.update(name for number in cell.journals for name in cell.members(number))
        assert max(held.values()) - min(held.values()) <= 1, held


@settings(max_examples=25)
@given(healthy_cells())
def test_any_placement_becomes_even_and_stays_so(cell: PlannedCell) -> None:

    Watcher(cell).until_quiet()

    assert_even(cell)
    assert cell.plan().problems == ()


@settings(max_examples=15)
@given(healthy_cells(), st.data())
def test_draining_broker_is_empty_in_the_end_and_the_others_are_even(
    cell: PlannedCell, data: st.DataObject
) -> None:
    note(
        {
            n: (cell.members(n), cell.configuration(n).leader, cell.configuration(n).learners)
            for n in cell.journals
        }
    )
    note([(h.name, h.zone) for h in cell.hosts.values()])
    leaving = data.draw(st.sampled_from(sorted(cell.hosts)))
    is_spared = len(cell.hosts) > cell.settings.replicas
    cell.hosts[leaving].state = "draining"

    Watcher(cell).until_quiet()

    assert leaving not in cell.leaders().values()
    if is_spared:
        assert leaving not in cell.hosts
        assert_even(cell)


@settings(max_examples=15)
@given(healthy_cells(), st.data())
def test_lost_brokers_come_back_to_an_even_cell(cell: PlannedCell, data: st.DataObject) -> None:
    Watcher(cell).until_quiet()
    names = data.draw(st.lists(st.sampled_from(sorted(cell.hosts)), min_size=1, max_size=1))
    for name in names:
        cell.kill(name)
    for _ in range(data.draw(st.sampled_from([1, 8, 60]))):
        cell.step()
        cell.now_ms += data.draw(st.sampled_from([0, 10_000]))
    for name in names:
        cell.start(name)
    cell.now_ms += SETTLED_MS
    cell.see()

    Watcher(cell).until_quiet()

    assert_even(cell)

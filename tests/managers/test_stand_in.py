"""A manager that stands by appoints what is overdue, and nothing else."""

from __future__ import annotations

import msgspec
import pytest
from harness.planned_cell import PlannedCell

from quaymaster.core.cell.cell import Appoint, BrokerSeen, CellSeen
from quaymaster.managers.stand_in import PATIENCE_MS, StandIn


def lost(*names: str) -> tuple[CellSeen, tuple[Appoint, ...]]:
    """Return a cell of three that lost brokers, as it is seen, and what is planned for it."""
    cell = PlannedCell("a", "b", "c")
    for _ in range(20):
        cell.step()
    for name in names:
        cell.kill(name)
    for number in cell.journals:
        cell.replicate(number)
    appointed = tuple(action for action in cell.plan().actions if isinstance(action, Appoint))
    return cell.see(), appointed


def later(seen: CellSeen, ms: int, brokers: tuple[BrokerSeen, ...] | None = None) -> CellSeen:
    return CellSeen(
        seen.now_ms + ms,
        brokers or seen.brokers,
        seen.journals,
        seen.settings,
        seen.acting,
        seen.asking,
        seen.resting,
    )


def test_what_nobody_did_for_the_whole_patience_is_overdue() -> None:
    seen, planned = lost("a")
    stand_in = StandIn()
    assert len(planned) == 1

    assert stand_in.choose(seen, planned, {"a"}) == []
    assert stand_in.choose(later(seen, PATIENCE_MS - 1), planned, {"a"}) == []
    assert stand_in.choose(later(seen, PATIENCE_MS), planned, {"a"}) == list(planned)


def test_the_patience_begins_anew_when_it_was_not_wanted_for_a_while() -> None:
    seen, planned = lost("a")
    stand_in = StandIn()
    stand_in.choose(seen, planned, {"a"})

    stand_in.choose(later(seen, 100), (), {"a"})

    assert stand_in.choose(later(seen, PATIENCE_MS), planned, {"a"}) == []


def test_leaders_that_are_heard_are_left_to_the_acting_manager() -> None:
    seen, planned = lost("a")
    stand_in = StandIn(0)

    assert stand_in.choose(seen, planned, {"b"}) == []


def test_a_manager_that_hears_no_majority_stands_in_for_nobody() -> None:
    seen, planned = lost("a")
    stand_in = StandIn(0)

    assert stand_in.choose(seen, planned, {"a", "b"}) == []
    assert stand_in.choose(seen, planned, {"a"}) == list(planned)


def test_nothing_is_waited_for_when_all_brokers_of_the_acting_managers_zone_are_lost() -> None:
    seen, planned = lost("a")  # each broker is in a zone of its name

    assert StandIn().choose(seen, planned, {"a"}, acting_zone="a") == list(planned)


@pytest.mark.parametrize("acting_zone", ["b", "elsewhere", ""])
def test_a_manager_that_acts_in_another_zone_is_waited_for(acting_zone: str) -> None:
    seen, planned = lost("a")

    assert StandIn().choose(seen, planned, {"a"}, acting_zone) == []


def test_a_manager_that_acts_in_a_zone_of_which_a_broker_is_heard_is_waited_for() -> None:
    seen, planned = lost("a")
    neighbors = tuple(msgspec.structs.replace(broker, zone="a") for broker in seen.brokers)
    seen = later(seen, 0, neighbors)

    assert StandIn().choose(seen, planned, {"a"}, acting_zone="a") == []

"""Whether anything is about to change in a cell."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from harness.planned_cell import PlannedCell

from quaymaster.core.cell.cell import CellSeen, PlacementSettings, with_learner
from quaymaster.core.cell.cell_view import is_quiet


@pytest.fixture
def cell() -> PlannedCell:
    cell = PlannedCell("a", "b", "c")
    cell.run(ms=PlacementSettings().settle_ms)
    return cell


def test_cell_in_which_all_is_led_and_heard_is_quiet(cell: PlannedCell) -> None:
    assert is_quiet(cell.see())


def test_cell_without_journals_is_not_quiet() -> None:
    assert not is_quiet(PlannedCell("a", "b", "c").see())


def _with_learner(cell: PlannedCell) -> None:
    journal = cell.journals[0]
    cell.journals[0] = msgspec.structs.replace(
        journal, configuration=with_learner(journal.configuration, "d@9")
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda cell: cell.kill("a"),
        lambda cell: setattr(cell.hosts["a"], "state", "draining"),
        lambda cell: cell.set(0, cell.configuration(0).leader, hears_leader=False),
        _with_learner,
    ],
    ids=["a broker is lost", "a broker drains", "a leader hears nobody", "a learner"],
)
def test_cell_in_which_something_is_wrong_or_on_its_way_is_not_quiet(
    cell: PlannedCell, change: Callable[[PlannedCell], None]
) -> None:
    change(cell)

    assert not is_quiet(cell.see())


@pytest.mark.parametrize("name", ["acting", "asking", "resting"])
def test_cell_in_which_a_manager_does_something_is_not_quiet(cell: PlannedCell, name: str) -> None:
    seen: CellSeen = msgspec.structs.replace(cell.see(), **{name: frozenset({1})})

    assert not is_quiet(seen)

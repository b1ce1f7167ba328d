"""The last decisions of a manager."""

from __future__ import annotations

from itertools import count

from quaymaster.core.cell.cell import DropReplica, RemoveBroker
from quaymaster.managers.decision_log import ERROR_CHARACTERS_MAX, KEPT_MAX, DecisionLog


def decision_log() -> DecisionLog:
    """Return a log whose clock goes on by a second with each decision."""
    clock = count(1_000, 1_000)
    return DecisionLog(lambda: next(clock))


def test_decisions_are_told_with_their_time_and_what_came_of_them() -> None:
    decisions = decision_log()

    decisions.note(RemoveBroker("a", 1), "done", None)
    decisions.note(DropReplica(2, "b", "b@1", 5), "failed", "no" * ERROR_CHARACTERS_MAX)

    told = decisions.told_by("m1")
    first, second = told.decisions
    assert told.manager == "m1"
    assert (first.at_ms, first.decision.broker, first.result, first.error) == (1_000, "a", "done", None)
    assert (second.at_ms, second.decision.journal, second.result) == (2_000, 2, "failed")
    assert len(second.error or "") == ERROR_CHARACTERS_MAX


def test_decision_that_is_made_again_and_again_takes_one_place() -> None:
    decisions = decision_log()

    for _ in range(3):
        decisions.note(RemoveBroker("a", 1), "failed", "away")
    decisions.note(RemoveBroker("a", 1), "done", None)
    decisions.note(RemoveBroker("a", 1), "failed", "away")

    told = decisions.told_by("m1").decisions
    assert [(one.result, one.times, one.at_ms) for one in told] == [
        ("failed", 3, 3_000),
        ("done", 1, 4_000),
        ("failed", 1, 5_000),
    ]


def test_only_the_last_thousand_are_kept() -> None:
    decisions = decision_log()

    for number in range(KEPT_MAX + 10):
        decisions.note(DropReplica(number, "a", "a@1", 1), "done", None)

    told = decisions.told_by("m1").decisions
    assert [told[0].decision.journal, told[-1].decision.journal, len(told)] == [10, KEPT_MAX + 9, KEPT_MAX]

"""What all managers decided, put together."""

from __future__ import annotations

import pytest

from quaymaster.core.cell.decision_history import (
    KEPT_MAX,
    KeptDecision,
    merge_decisions,
    say_decision,
    why_decided,
)
from quaymaster.core.cell.decisions import CellDecision, DecisionTaken, ManagerDecisions


def taken(at_ms: int, action: str = "Appoint", *, result: str = "done", times: int = 1) -> DecisionTaken:
    return DecisionTaken(at_ms, CellDecision(action, 3, None, "b1", 7, "why"), result, None, times)


def told(manager: str, *decisions: DecisionTaken) -> ManagerDecisions:
    return ManagerDecisions(manager, decisions)


def test_decisions_of_all_managers_are_in_their_order() -> None:
    merged = merge_decisions([], [told("m1", taken(1), taken(9)), told("m2", taken(5))])

    assert [(one.manager, one.taken.at_ms) for one in merged] == [("m1", 1), ("m2", 5), ("m1", 9)]
    assert merge_decisions(merged, [told("m1", taken(1), taken(9))]) == merged


def test_what_a_manager_has_forgotten_stays() -> None:
    kept = merge_decisions([], [told("m1", taken(1)), told("m2", taken(2))])

    assert merge_decisions(kept, [told("m1"), told("m2")]) == kept
    started_again = merge_decisions(kept, [told("m1", taken(10))])
    assert [one.taken.at_ms for one in started_again] == [1, 2, 10]


def test_decision_that_was_repeated_since_is_one() -> None:
    kept = merge_decisions([], [told("m1", taken(1, result="failed", times=3))])

    merged = merge_decisions(kept, [told("m1", taken(8, result="failed", times=5), taken(9))])

    assert [(one.taken.at_ms, one.taken.times) for one in merged] == [(8, 5), (9, 1)]
    other = merge_decisions(kept, [told("m1", taken(8, "Transfer", result="failed", times=5))])
    assert len(other) == 2


def test_the_last_thousand_are_kept() -> None:
    kept = [KeptDecision("m1", taken(at)) for at in range(KEPT_MAX)]

    merged = merge_decisions(kept, [told("m2", taken(KEPT_MAX))])

    assert [one.taken.at_ms for one in merged] == list(range(1, KEPT_MAX + 1))


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (CellDecision("Transfer", 3, None, "b1", 18, "w"), "Transfer of journal 3: leader b1, epoch 18"),
        (
            CellDecision("DropReplica", 3, "b2", "b1", 1, "w"),
            "DropReplica of journal 3: broker b2, leader b1, epoch 1",
        ),
        (CellDecision("RemoveBroker", None, "b2", None, None, "w"), "RemoveBroker: broker b2"),
        (CellDecision("MovePartition", 4, None, None, None, "w"), "MovePartition of journal 4"),
    ],
    ids=lambda value: value.action if isinstance(value, CellDecision) else "",
)
def test_decision_is_told_in_words(decision: CellDecision, text: str) -> None:
    assert say_decision(DecisionTaken(1, decision, "done")) == text
    assert say_decision(DecisionTaken(1, decision, "failed", "no", 3)) == f"{text} – failed, 3 times"
    assert why_decided(DecisionTaken(1, decision, "done")) == "w"
    assert why_decided(DecisionTaken(1, decision, "failed", "no room")) == "w; no room"

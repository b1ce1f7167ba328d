"""Decisions in words that people can look up."""

from __future__ import annotations

import pytest

from quaymaster.core.cell.cell import (
    Action,
    Appoint,
    CreateJournal,
    DropReplica,
    RemoveBroker,
    ReplaceMember,
    Transfer,
)
from quaymaster.core.cell.decisions import CellDecision, decision_of
from quaymaster.core.cell.partition_plans import (
    MergePartitions,
    MovePartition,
    PlannedChange,
    SplitPartition,
)
from quaymaster.core.values.journal_configuration import JournalConfiguration

NEXT = JournalConfiguration(7, "b@2", ("b@2", "a@1"), ("a@1", "b@2"), activated=False)
WHY = "because it is so"


@pytest.mark.parametrize(
    ("action", "decision"),
    [
        (Appoint(3, NEXT, 9, WHY), CellDecision("Appoint", 3, None, "b", 7, WHY)),
        (Transfer(3, "a@1", "b@2", NEXT, 9, WHY), CellDecision("Transfer", 3, None, "b", 7, WHY)),
        (ReplaceMember(3, "a@1", "c", NEXT, 9, WHY), CellDecision("ReplaceMember", 3, "c", "b", 7, WHY)),
        (
            CreateJournal(3, ("a", "b")),
            CellDecision(
                "CreateJournal",
                3,
                "a",
                None,
                None,
                "there are fewer journals than journals_per_broker for each broker",
            ),
        ),
        (
            DropReplica(3, "a", "a@1", 6),
            CellDecision("DropReplica", 3, "a", None, None, "no configuration since epoch 6 names it"),
        ),
        (
            RemoveBroker("a", 4),
            CellDecision("RemoveBroker", None, "a", None, None, "it drained, and has nothing any more"),
        ),
        (SplitPartition(7, 0, 9, (3, 4), WHY), CellDecision("SplitPartition", 4, None, None, None, WHY)),
        (MovePartition(7, 0, 4, WHY), CellDecision("MovePartition", 4, None, None, None, WHY)),
        (MergePartitions(7, (1, 2), 4, WHY), CellDecision("MergePartitions", 4, None, None, None, WHY)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_action_has_a_reason_and_what_it_is_about(
    action: Action | PlannedChange, decision: CellDecision
) -> None:
    assert decision_of(action) == decision

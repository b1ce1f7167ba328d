"""What becomes of sealed partitions: each step follows from what their journals say, and from that alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from quaymaster.core.values.commands.partitions import PartitionOutcome
from quaymaster.core.values.partition_life import (
    LOOK_MAX_MS,
    LOOK_MIN_MS,
    REMOVAL_LOOK_MS,
    REMOVED_MS,
    aged,
    next_look_ms,
    unsealed,
)
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    PartitionState,
    QueueDefinition,
)

WINDOW_MS = 300_000


def table(*states: PartitionState) -> QueueDefinition:
    return QueueDefinition(
        queue_id=7,
        account_id="000000000000",
        name="orders",
        state="active",
        revision=3,
        created_ms=1,
        modified_ms=1,
        attributes={},
        tags={},
        data_key_id=9,
        partitions=tuple(PartitionPlacement(number, 4, state) for number, state in enumerate(states)),
        next_partition=len(states),
    )


def said(sealed_for_ms: int | None, messages: int = 0) -> PartitionOutcome:
    return PartitionOutcome(sealed_for_ms, not messages, messages, 20, 13, 1)


def states(definition: QueueDefinition) -> list[str]:
    return [entry.state for entry in definition.partitions]


@dataclass(frozen=True)
class Case:
    state: PartitionState
    answer: PartitionOutcome | None
    then: list[str]


@pytest.mark.parametrize(
    "case",
    [
        Case("open", None, ["open"]),
        Case("open", said(None), ["open"]),
        Case("closing", None, ["closing"]),
        Case("closing", said(None), ["closing"]),
        Case("closing", said(WINDOW_MS), ["closing"]),
        Case("closing", said(WINDOW_MS + 1, 5), ["closed"]),
        Case("closing", said(WINDOW_MS + 1), ["drained"]),
        Case("closed", said(WINDOW_MS + 1, 5), ["closed"]),
        Case("closed", said(WINDOW_MS + 1), ["drained"]),
        Case("closed", None, ["closed"]),
        Case("drained", said(REMOVED_MS), ["drained"]),
        Case("drained", said(REMOVED_MS + 1), []),
        Case("drained", None, ["drained"]),
    ],
)
def test_a_partition_goes_on_once_its_journal_says_so(case: Case) -> None:
    before = table(case.state)

    after = aged(before, {} if case.answer is None else {0: case.answer}, WINDOW_MS)

    assert states(after) == case.then
    assert (after is before) == (case.then == [case.state])
    if after is not before:
        assert (after.table_version, after.revision) == (before.table_version + 1, before.revision + 1)


def test_counts_of_a_drained_partition_are_kept_and_outlive_it() -> None:
    drained = aged(table("closed", "open"), {0: said(WINDOW_MS + 1)}, WINDOW_MS)
    assert (drained.partitions[0].sends, drained.partitions[0].deletions) == (20, 13)

    removed = aged(drained, {0: said(REMOVED_MS + 1)}, WINDOW_MS)

    assert (removed.removed_sends, removed.removed_deletions) == (20, 13)
    assert [entry.number for entry in removed.partitions] == [1]


def test_partitions_go_on_each_by_itself() -> None:
    answers = {0: said(WINDOW_MS + 1, 2), 1: said(3), 2: said(REMOVED_MS + 1)}

    after = aged(table("closing", "closing", "drained", "open"), answers, WINDOW_MS)

    assert states(after) == ["closed", "closing", "open"]


def test_closing_partitions_whose_journals_did_not_seal_them_are_named() -> None:
    definition = table("closing", "closing", "closing", "closed")

    found = unsealed(definition, {0: said(None), 1: said(4), 3: said(None)})

    assert [entry.number for entry in found] == [0]


@pytest.mark.parametrize(
    ("state", "answer", "looks", "expected_ms"),
    [
        ("open", None, 1, REMOVAL_LOOK_MS),
        ("closing", None, 1, 2 * LOOK_MIN_MS),
        ("closing", said(None), 99, LOOK_MAX_MS),
        ("closing", said(WINDOW_MS - 5_000), 9, 5_001),
        ("closing", said(0), 9, LOOK_MAX_MS),
        ("closing", said(WINDOW_MS), 9, LOOK_MIN_MS),
        ("closed", said(WINDOW_MS, 3), 0, LOOK_MIN_MS),
        ("closed", None, 99, LOOK_MAX_MS),
        ("drained", None, 1, REMOVAL_LOOK_MS),
        ("drained", said(REMOVED_MS - 9_000), 1, 9_001),
        ("drained", said(WINDOW_MS), 1, REMOVAL_LOOK_MS),
        ("new", None, 1, REMOVAL_LOOK_MS),
    ],
)
def test_a_table_is_looked_at_when_it_may_have_to_change(
    state: PartitionState, answer: PartitionOutcome | None, looks: int, expected_ms: int
) -> None:
    definition = table("open", state)
    answers = {} if answer is None else {1: answer}

    assert next_look_ms(definition, answers, WINDOW_MS, looks) == expected_ms

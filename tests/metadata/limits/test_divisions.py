"""What a metadata node grants, and to whom."""

from __future__ import annotations

import math

import pytest

from quaymaster.core.limits.limits import Limit, LimitName, LimitTable
from quaymaster.core.values.errors import Overloaded
from quaymaster.metadata.limits.divisions import LOOKS, NO_LIMIT, REPORTS_MAX, YOUNG_MS, Divisions
from quaymaster.protocol.rpc.metadata_messages import BucketGrant, BucketReport, ReportShares

NAME = LimitName("111122223333")


class Node:
    """A node with a limit of 100 requests and no bytes, on a clock of its own."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.table = LimitTable()
        self.table.set(NAME, Limit(100))
        self.divisions = Divisions("md1", self.table, lambda: self.ms)

    def ask(
        self, demand: float = 1_000.0, unused: float = 0.0, *, is_bytes: bool = False, was_owner: bool = True
    ) -> BucketGrant:
        report = BucketReport(NAME.text(), is_bytes, demand, unused, was_owner)
        answer = self.divisions.answer(ReportShares("fe1", [report]))
        assert answer.node == "md1"
        (grant,) = answer.grants
        return grant


def test_a_node_that_just_began_or_just_became_the_owner_grants_no_burst() -> None:
    node = Node()
    assert node.ask().tokens == 0
    node = Node()
    node.ms = YOUNG_MS
    assert node.ask(was_owner=False).tokens == 0
    node = Node()
    node.ms = YOUNG_MS
    assert node.ask().tokens == 51


def test_limits_that_a_node_does_not_know_are_answered_as_such() -> None:
    node = Node()

    assert node.ask(is_bytes=True) == NO_LIMIT
    node.table.set(NAME, None)
    assert node.ask() == NO_LIMIT


def test_a_limit_that_was_changed_is_divided_by_its_new_rate() -> None:
    node = Node()
    node.ask()
    node.table.set(NAME, Limit(10))

    assert node.ask().rate == 10


def test_divisions_of_idle_accounts_are_dropped_some_with_each_message() -> None:
    node = Node()
    names = [LimitName(f"{number:012}") for number in range(2 * LOOKS)]
    for name in names:
        node.table.set(name, Limit(5))
    reports = [BucketReport(name.text(), False, 5.0, 0.0, True) for name in names]
    node.divisions.answer(ReportShares("fe1", reports))
    assert len(node.divisions) == 2 * LOOKS

    node.ms = 5_000
    node.divisions.answer(ReportShares("fe1", []))
    assert len(node.divisions) == LOOKS
    node.ask()
    assert len(node.divisions) == 1


@pytest.mark.parametrize(("demand", "unused"), [(math.inf, 0.0), (-5.0, -math.inf), (1.0, math.inf)])
def test_numbers_that_cannot_be_make_no_tokens(demand: float, unused: float) -> None:
    node = Node()
    granted = 0.0
    for at in range(20):
        node.ms = at * 250.0
        granted += node.ask(demand, unused).tokens
        assert math.isfinite(granted)

    assert granted <= 100 * 5 + 101


def test_a_message_has_a_bounded_number_of_reports() -> None:
    report = BucketReport(NAME.text(), False, 1.0, 0.0, True)

    with pytest.raises(Overloaded):
        Node().divisions.answer(ReportShares("fe1", [report] * (REPORTS_MAX + 1)))

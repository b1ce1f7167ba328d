"""Names and majorities of a cell."""

from __future__ import annotations

import pytest

from quaymaster.core.cell.cell import broker_of, first_configuration, is_majority, with_learner


def test_first_member_leads_a_new_journal_that_nobody_led_before() -> None:
    first = first_configuration(("a@1", "b@2", "c@3"))

    assert (first.epoch, first.leader, first.activated) == (1, "a@1", False)
    assert first.previous_members == first.members == ("a@1", "b@2", "c@3")


def test_learner_is_named_once_and_nothing_else_changes() -> None:
    first = first_configuration(("a@1", "b@2", "c@3"))

    learning = with_learner(with_learner(with_learner(first, "d@4"), "e@5"), "d@4")

    assert learning.learners == ("e@5", "d@4")
    assert (learning.epoch, learning.members) == (first.epoch, first.members)


@pytest.mark.parametrize(
    ("voters", "members", "is_enough"),
    [
        ("a", "a", True),
        ("", "a", False),
        ("a", "ab", False),
        ("ab", "abc", True),
        ("a", "abc", False),
        ("axy", "abc", False),
        ("ab", "abcd", False),
        ("abc", "abcde", True),
    ],
)
def test_majority_is_more_than_half_of_the_members_whoever_else_is_there(
    voters: str, members: str, is_enough: bool
) -> None:
    assert is_majority(set(voters), tuple(members)) is is_enough


def test_member_is_a_disk_of_a_broker() -> None:
    assert broker_of("b1@0123") == "b1"

"""Which groups wait for older partitions, and what these are asked."""

from __future__ import annotations

from quaymaster.core.structures.orders.held_groups import HeldGroups, Look

A, B, C = 1, 2, 3


def test_group_is_held_until_every_parent_has_none_of_it_left() -> None:
    held = HeldGroups([0, 7])

    assert not held.is_free(A)
    assert held.answered(7, [A], [A], look=0) == []
    assert held.is_held(A)
    assert not held.is_free(A)
    assert held.answered(0, [A], [A], look=0) == [A]
    assert held.is_free(A)
    assert not held.is_waiting


def test_parent_is_asked_about_groups_it_was_not_asked_about_apart_from_those_it_has() -> None:
    held = HeldGroups([0])
    for group in (A, B):
        held.is_free(group)

    assert held.to_ask(0, 10, "first") == [A, B]
    assert held.answered(0, [A, B], [], look=0) == []
    held.is_free(C)

    assert held.to_ask(0, 10, "first") == [C]
    assert held.to_ask(0, 1, "again") == [A]
    assert held.to_ask(0, 2, "again") == [B, A]
    assert held.answered(0, [B, A], [B], look=0) == [B]
    assert held.to_ask(0, 2, "again") == [A]
    assert held.present_at(0) == 1
    assert held.present_at(7) == 0


def test_question_that_was_not_answered_is_asked_again() -> None:
    held = HeldGroups([0])
    held.is_free(A)

    assert held.to_ask(0, 10, "first") == [A]
    assert held.to_ask(0, 10, "first") == [A]


def test_groups_wait_no_longer_for_a_parent_that_is_drained() -> None:
    held = HeldGroups([0, 7])
    for group in (A, B, C):
        held.is_free(group)
    held.answered(7, [A, B], [B], look=0)

    assert held.keep([7]) == [B]
    assert set(held.parents) == {7}
    assert held.answered(0, [A], [A], look=0) == []
    assert held.to_ask(0, 10, "first") == []
    assert held.to_ask(7, 10, "again") == [A]
    assert sorted(held.keep([])) == [A, C]


def test_everything_is_asked_again_when_there_is_another_parent() -> None:
    held = HeldGroups([7])
    held.is_free(A)
    held.answered(7, [A], [A], look=0)
    held.is_free(B)

    assert held.keep([0, 7]) == [B]
    assert not held.is_held(B)
    assert not held.is_free(A)


def test_group_without_messages_is_not_asked_about() -> None:
    held = HeldGroups([0])
    for group in (A, B):
        held.is_free(group)
    held.answered(0, [A], [], look=0)

    held.forget(A)
    held.forget(B)
    held.forget(C)

    assert held.to_ask(0, 10, "first") == held.to_ask(0, 10, "again") == []
    assert held.answered(0, [A, B], [A, B], look=0) == []


def test_only_so_many_groups_are_remembered_as_free() -> None:
    held = HeldGroups([0], free_max=2)
    for group in (A, B, C):
        held.is_free(group)

    assert held.answered(0, [A, B, C], [A, B, C], look=0) == [A, B, C]

    assert held.is_free(C)
    assert not held.is_free(A)
    assert held.first_held(10) == [A]


def held_and_present(*groups: int) -> HeldGroups:
    """Return groups that the parent 0 had when it was asked."""
    held = HeldGroups([0])
    for group in groups:
        held.is_free(group)
    held.answered(0, groups, [], look=0)
    return held


def test_what_parents_have_is_known_once_each_has_said_so_since_a_look_began() -> None:
    held = held_and_present(A, B)

    look = held.want_look()
    assert held.to_ask(0, 10, "look") == [A, B]
    assert held.to_ask(0, 1, "look") == [A]
    assert held.answered(0, [A], [], look=held.looks) == []
    assert not held.is_known(look)
    assert held.to_ask(0, 10, "look") == [B]
    assert held.answered(0, [B], [B], look=held.looks) == [B]

    assert held.is_known(look)
    assert not held.is_waiting
    assert held.to_ask(0, 10, "again") == [A]


def test_an_answer_to_a_question_from_before_a_look_is_none_of_it() -> None:
    held = held_and_present(A)
    held.is_free(B)
    before = held.looks
    look = held.want_look()

    assert held.answered(0, [A, B], [], look=before) == []

    assert not held.is_known(look)
    assert sorted(held.to_ask(0, 10, "look")) == [A, B]
    assert held.to_ask(0, 10, "again") == held.to_ask(0, 10, "look")
    assert held.present_at(0) == 2
    held.answered(0, [A, B], [], look=held.looks)
    assert held.is_known(look)


def test_what_comes_during_a_look_waits_for_the_next_one() -> None:
    held = held_and_present(A)
    first = held.want_look()

    second = held.want_look()
    assert (held.want_look(), second) == (second, first + 1)
    assert held.looks == first
    held.answered(0, [A], [], look=held.looks)

    assert held.looks == second
    assert held.is_known(first)
    assert not held.is_known(second)
    assert held.to_ask(0, 10, "look") == [A]
    held.answered(0, [A], [], look=held.looks)
    assert held.is_known(second)


def test_a_group_that_was_never_asked_about_is_not_known() -> None:
    held = HeldGroups([0, 7])
    held.is_free(A)
    look = held.want_look()

    assert not held.is_known(look)
    held.answered(0, [A], [], look=held.looks)
    assert not held.is_known(look)
    held.answered(7, [A], [], look=held.looks)
    assert held.is_known(look)


def test_a_look_ends_with_the_parents_and_the_groups_it_is_about() -> None:
    held = held_and_present(A, B)
    look = held.want_look()
    held.forget(A)
    assert not held.is_known(look)
    held.forget(B)
    assert held.is_known(look)

    held = held_and_present(A)
    look = held.want_look()
    assert held.keep([]) == [A]
    assert Look(held, look).is_known

"""Which groups wait for older partitions, and what these are asked."""

from __future__ import annotations

from quaymaster.core.structures.orders.held_groups import HeldGroups

A, B, C = 1, 2, 3


def test_group_is_held_until_every_parent_has_none_of_it_left() -> None:
    held = HeldGroups([0, 7])

    assert not held.is_free(A)
    assert held.answered(7, [A], [A]) == []
    assert held.is_held(A)
    assert not held.is_free(A)
    assert held.answered(0, [A], [A]) == [A]
    assert held.is_free(A)
    assert not held.is_waiting


def test_parent_is_asked_about_groups_it_was_not_asked_about_apart_from_those_it_has() -> None:
    held = HeldGroups([0])
    for group in (A, B):
        held.is_free(group)

    assert held.to_ask(0, 10, again=False) == [A, B]
    assert held.answered(0, [A, B], []) == []
    held.is_free(C)

    assert held.to_ask(0, 10, again=False) == [C]
    assert held.to_ask(0, 1, again=True) == [A]
    assert held.to_ask(0, 2, again=True) == [B, A]
    assert held.answered(0, [B, A], [B]) == [B]
    assert held.to_ask(0, 2, again=True) == [A]
    assert held.present_at(0) == 1
    assert held.present_at(7) == 0


def test_question_that_was_not_answered_is_asked_again() -> None:
    held = HeldGroups([0])
    held.is_free(A)

    assert held.to_ask(0, 10, again=False) == [A]
    assert held.to_ask(0, 10, again=False) == [A]


def test_groups_wait_no_longer_for_a_parent_that_is_drained() -> None:
    held = HeldGroups([0, 7])
    for group in (A, B, C):
        held.is_free(group)
    held.answered(7, [A, B], [B])

    assert held.keep([7]) == [B]
    assert set(held.parents) == {7}
    assert held.answered(0, [A], [A]) == []
    assert held.to_ask(0, 10, again=False) == []
    assert held.to_ask(7, 10, again=True) == [A]
    assert sorted(held.keep([])) == [A, C]


def test_everything_is_asked_again_when_there_is_another_parent() -> None:
    held = HeldGroups([7])
    held.is_free(A)
    held.answered(7, [A], [A])
    held.is_free(B)

    assert held.keep([0, 7]) == [B]
    assert not held.is_held(B)
    assert not held.is_free(A)


def test_group_without_messages_is_not_asked_about() -> None:
    held = HeldGroups([0])
    for group in (A, B):
        held.is_free(group)
    held.answered(0, [A], [])

    held.forget(A)
    held.forget(B)
    held.forget(C)

    assert held.to_ask(0, 10, again=False) == held.to_ask(0, 10, again=True) == []
    assert held.answered(0, [A, B], [A, B]) == []


def test_only_so_many_groups_are_remembered_as_free() -> None:
    held = HeldGroups([0], free_max=2)
    for group in (A, B, C):
        held.is_free(group)

    assert held.answered(0, [A, B, C], [A, B, C]) == [A, B, C]

    assert held.is_free(C)
    assert not held.is_free(A)
    assert held.first_held(10) == [A]

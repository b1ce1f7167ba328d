"""Turns of flows that have more work than fits in one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.structures.fair_turns import FairTurns

QUANTUM = 100


def turns_of(*items: tuple[str, int]) -> FairTurns[tuple[str, int]]:
    """Return turns with these items: their flow, and what they cost."""
    turns: FairTurns[tuple[str, int]] = FairTurns(QUANTUM)
    for item in items:
        turns.add(*item, item)
    return turns


def test_a_flow_with_little_does_not_wait_behind_one_with_much() -> None:
    turns = turns_of(*[("heavy", 50)] * 1_000, ("light", 50))

    assert turns.take(10, 10**6).index(("light", 50)) == 2
    assert len(turns) == 991


def test_flows_get_as_many_bytes_as_each_other_whatever_the_size_of_their_items() -> None:
    turns = turns_of(*[("large", 250)] * 1_000, *[("small", 10)] * 10_000)

    bytes_of: Counter[str] = Counter()
    for flow, cost in turns.take(10_000, 20_000):
        bytes_of[flow] += cost

    assert abs(bytes_of["large"] - bytes_of["small"]) <= 250 + QUANTUM


def test_an_item_larger_than_a_turn_is_taken_when_its_flow_has_waited_for_it() -> None:
    turns = turns_of(("large", 10_000))

    assert turns.take(5, 50) == [("large", 10_000)]
    assert turns.take(5, 50) == []


def test_a_flow_that_had_nothing_to_do_has_saved_nothing_up() -> None:
    turns = turns_of(("a", 1))
    turns.take(1, 1)
    for _ in range(10):
        turns.add("a", 60, ("a", 60))
        turns.add("b", 60, ("b", 60))

    assert [flow for flow, _ in turns.take(4, 10**6)] == ["a", "b", "a", "a"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400))),
    st.integers(1, 7),
    st.integers(1, 500),
)
def test_everything_is_taken_once_and_each_flow_in_its_order(
    items: list[tuple[str, int]], count_max: int, cost_max: int
) -> None:
    turns: FairTurns[tuple[int, str]] = FairTurns(QUANTUM)
    for number, (flow, cost) in enumerate(items):
        turns.add(flow, cost, (number, flow))

    taken: list[tuple[int, str]] = []
    while turns:
        turn = turns.take(count_max, cost_max)
        assert 1 <= len(turn) <= count_max
        taken += turn

    assert sorted(taken) == [(number, flow) for number, (flow, _) in enumerate(items)]
    for flow in "abc":
        numbers = [number for number, of in taken if of == flow]
        assert numbers == sorted(numbers)

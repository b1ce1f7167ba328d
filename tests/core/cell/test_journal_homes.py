"""Homes of journals are even over brokers first, and over zones second."""

from __future__ import annotations

from collections import Counter

from harness.planned_cell import PlannedCell
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.cell.cell import broker_of, first_configuration
from quaymaster.core.cell.cell_view import CellView
from quaymaster.core.cell.journal_homes import choose_homes
from quaymaster.core.cell.loads import Loads

SETTLED_MS = 60_000


def homes_of(brokers: str, *journals: str) -> list[str | None]:
    """Return the homes of journals; `brokers` are like `a/1 b/2`, a journal is its members, the leader first."""
    view = view_of(brokers, *journals)
    return list(choose_homes(view, Loads(view)).values())


def view_of(brokers: str, *journals: str) -> CellView:
    cell = PlannedCell(*brokers.split())
    cell.now_ms += SETTLED_MS
    for number, members in enumerate(journals):
        cell._write(number, 0, first_configuration(tuple(f"{name}@1" for name in members.split())))
    return CellView(cell.see())


def test_a_zone_with_two_more_gives_one_away() -> None:
    assert homes_of("a/1 b/1 c/2 d/2", "a c", "b d") == ["c", "b"]


def test_a_chain_over_a_broker_that_keeps_its_share_evens_zones_out() -> None:
    # a and c are in no journal together; b takes one and gives one.
    assert homes_of("a/1 b/1 c/2", "a b", "b c") == ["b", "c"]


def test_a_zone_with_more_brokers_keeps_more() -> None:
    assert homes_of("a/1 b/1 c/1 d/2", "a d", "b d", "c d") == ["d", "b", "c"]
    assert homes_of("a/1 b/1 c/1 d/2", "a d", "b d", "c d", "d a") == ["a", "b", "c", "d"]


def test_brokers_come_before_zones() -> None:
    # Zone 1 would have two more, but b has as many as c already.
    assert homes_of("a/1 b/1 c/2", "a b c", "b c a", "c a b") == ["a", "b", "c"]


def test_homes_stay_where_a_broker_or_zone_has_no_more_than_twice_as_many_as_another() -> None:
    four, two = ["a b c"] * 4, ["b a c"] * 2
    assert homes_of("a/1 b/2 c/3", *four, *two, *["c a b"] * 2) == [*"aaaa", *"bb", *"cc"]
    zones = "a/1 b/1 c/1 d/1 e/2 f/2 g/2"
    assert homes_of(zones, "a g", "b g", "c g", "d g", "e a", "f a") == [*"abcdef"]
    assert homes_of(zones, "a g", "b g", "c g", "d g", "e a") == [*"gbcde"]


def test_a_broker_with_less_than_half_gets_one() -> None:
    assert homes_of("a/1 b/2 c/3", *["a b c"] * 4, "b a c", *["c a b"] * 3) == [*"baaa", "b", *"ccc"]


def test_what_no_member_allows_stays() -> None:
    assert homes_of("a/1 b/1 c/2 d/2", "a b", "b a") == ["a", "b"]


def test_a_cell_without_brokers_has_no_homes() -> None:
    assert homes_of("") == []


@given(st.data())
def test_homes_are_even_over_brokers_and_are_left_alone_once_chosen(data: st.DataObject) -> None:
    names = "abcdef"[: data.draw(st.integers(3, 6))]
    brokers = " ".join(f"{name}/{data.draw(st.integers(1, 3))}" for name in names)
    journals = [
        " ".join(data.draw(st.permutations(names))[:3]) for _ in range(data.draw(st.integers(0, len(names))))
    ]

    view = view_of(brokers, *journals)
    homes = choose_homes(view, Loads(view))

    for number, home in homes.items():
        members = [broker_of(member) for member in view.journals[number].configuration.members]
        assert home in members
        journals[number] = " ".join(sorted(members, key=lambda name: name != home))
    chosen = view_of(brokers, *journals)
    assert choose_homes(chosen, Loads(chosen)) == homes
    led = Counter(dict.fromkeys(names, 0))
    led.update(home for home in homes.values() if home is not None)
    # A chain of journals can lack a member to go on with, so not every draw can be even.
    if len(journals) == len(names) == 3:
        assert set(led.values()) == {1}

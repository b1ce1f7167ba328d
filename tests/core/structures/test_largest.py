"""What has most of many things, against a count of all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.structures.largest import Largest


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"))))
def test_what_has_most_is_known_after_each_change(steps: list[tuple[bool, str]]) -> None:
    largest: Largest[str] = Largest()
    numbers: Counter[str] = Counter()
    for grows, thing in steps:
        before = numbers[thing]
        if not grows and not before:
            continue
        numbers[thing] += 1 if grows else -1

        largest.count(thing, before, numbers[thing])

        found = largest.find()
        most = max(numbers.values())
        assert (found is None) == (most == 0)
        assert found is None or numbers[found] == most


def test_of_several_that_have_as_many_the_first_is_found() -> None:
    largest: Largest[str] = Largest()
    for thing in "abc":
        largest.count(thing, 0, 1)

    assert largest.find() == "a"


def test_numbers_change_by_one() -> None:
    with pytest.raises(AssertionError):
        Largest[str]().count("a", 0, 2)

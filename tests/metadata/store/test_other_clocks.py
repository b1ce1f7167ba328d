"""Other front ends are alive while their rows change, whatever times these have."""

from __future__ import annotations

from quaymaster.metadata.store.other_clocks import UNCHANGED_LOOKS_MAX, OtherClocks


def test_the_latest_time_of_those_that_are_alive_is_told() -> None:
    clocks = OtherClocks()

    assert clocks.look({}) is None
    assert clocks.look({"a": 100, "b": 90}) == 100
    assert clocks.look({"a": 110, "b": 120}) == 120


def test_one_that_writes_no_more_is_gone_after_some_looks() -> None:
    clocks = OtherClocks()
    clocks.look({"gone": 1 << 50, "alive": 1})

    told = [clocks.look({"gone": 1 << 50, "alive": at}) for at in range(2, 2 + UNCHANGED_LOOKS_MAX)]

    assert told == [1 << 50] * (UNCHANGED_LOOKS_MAX - 1) + [1 + UNCHANGED_LOOKS_MAX]


def test_one_whose_clock_was_set_back_is_alive() -> None:
    clocks = OtherClocks()
    for at in range(UNCHANGED_LOOKS_MAX + 1):
        clocks.look({"a": 100 - at})

    assert clocks.look({"a": 50}) == 50


def test_one_that_is_back_counts_again() -> None:
    clocks = OtherClocks()
    for _ in range(UNCHANGED_LOOKS_MAX + 1):
        told = clocks.look({"a": 100})
    assert told is None

    assert clocks.look({"a": 130}) == 130

"""Completions in simulated journals: nothing is wrong without a bug, and each planted one shows within a few seeds."""

from __future__ import annotations

import os

import pytest

from sim.completions import BUGS, CompletionsWorld
from sim.completions_cut import cut_at
from sim.kernel import Violation

IS_LONG = os.environ.get("QUAYMASTER_HYPOTHESIS") == "long"
SEEDS = 4_000 if IS_LONG else 40
SEEDS_OF_A_BUG = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_outputs_exist_once_if_and_only_if_they_were_sent(first: int) -> None:
    for seed in range(first, first + 10):
        CompletionsWorld(seed).run()


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bug_is_found(bug: str) -> None:
    for seed in range(SEEDS_OF_A_BUG):
        try:
            CompletionsWorld(seed, bug).run()
        except Violation:
            return
    raise AssertionError(f"no seed below {SEEDS_OF_A_BUG} shows {bug}")


def test_power_may_be_cut_at_any_change_to_the_disk() -> None:
    changes = 0
    while cut_at(changes):
        changes += 1

    assert changes > 50

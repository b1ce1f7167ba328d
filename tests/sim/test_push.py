"""Pushers under faults: each message is called, in order, and planted bugs are noticed."""

from __future__ import annotations

import os

import pytest

from sim.kernel import Violation
from sim.push import BUGS, run_seed

RUNS = int(os.environ.get("SOAK_RUNS", "15"))
SEEDS_TRIED = 30
"""Another draw anywhere makes another run of every seed."""


def test_pushers_keep_their_rules_under_faults() -> None:
    calls = kills = 0

    for seed in range(RUNS):
        try:
            world = run_seed(seed)
        except Exception as error:
            error.add_note(f"to see it again: PYTHONPATH=tests python -m sim.push {seed} {seed + 1}")
            raise
        calls, kills = calls + world.calls, kills + world.kills

    assert calls > 10 * RUNS
    assert kills > 0


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught_within_few_seeds(bug: str) -> None:
    for seed in range(SEEDS_TRIED):
        try:
            run_seed(seed, bug)
        except Violation:
            return
    pytest.fail(f"{bug} was not noticed")

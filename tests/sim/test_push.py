"""Pushers under faults: each message is called, in order, and planted bugs are noticed."""

from __future__ import annotations

import os

import pytest

from sim.kernel import Violation
from sim.push import CAUGHT_BY, run_seed

RUNS = int(os.environ.get("SOAK_RUNS", "15"))


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


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_a_planted_bug_is_caught_by_its_seed(bug: str) -> None:
    with pytest.raises(Violation):
        run_seed(CAUGHT_BY[bug], bug)

    run_seed(CAUGHT_BY[bug])

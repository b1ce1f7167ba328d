"""Stores that go back: no process believes one that lost changes of keys, and planted bugs are noticed."""

from __future__ import annotations

import os

import pytest

from sim.kernel import Violation
from sim.restored_keys import CAUGHT_BY, run_seed

RUNS = int(os.environ.get("SOAK_RUNS", "40"))


def test_no_process_believes_a_store_that_lost_changes_of_keys() -> None:
    restores = refused = 0

    for seed in range(RUNS):
        try:
            world = run_seed(seed)
        except Exception as error:
            error.add_note(f"to see it again: PYTHONPATH=tests python -m sim.restored_keys {seed} {seed + 1}")
            raise
        restores, refused = restores + world.restores, refused + world.refused

    assert restores > 0
    assert refused > 0, "no store had lost anything"


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_a_planted_bug_is_caught_by_its_seed(bug: str) -> None:
    with pytest.raises(Violation):
        run_seed(CAUGHT_BY[bug], bug)

    run_seed(CAUGHT_BY[bug])

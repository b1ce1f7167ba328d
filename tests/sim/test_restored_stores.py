"""Stores that go back: no queue gets what belongs to another one, and planted bugs are noticed."""

from __future__ import annotations

import os

import pytest

from sim.kernel import Violation
from sim.restored_stores import CAUGHT_BY, run_seed

BLOCKS = 4
RUNS = int(os.environ.get("SOAK_RUNS", "96"))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_queue_has_what_belongs_to_another_however_the_store_goes_back(block: int) -> None:
    restores = refused = 0

    for seed in range(block, RUNS, BLOCKS):
        try:
            world = run_seed(seed)
        except Exception as error:
            error.add_note(
                f"to see it again: PYTHONPATH=tests python -m sim.restored_stores {seed} {seed + 1}"
            )
            raise
        restores, refused = restores + world.restores, refused + world.refused

    assert restores > 0
    assert refused > 0, "no store was behind its journals"


@pytest.mark.parametrize("bug", CAUGHT_BY)
def test_a_planted_bug_is_caught_by_its_seed(bug: str) -> None:
    with pytest.raises(Violation):
        run_seed(CAUGHT_BY[bug], bug)

    run_seed(CAUGHT_BY[bug])

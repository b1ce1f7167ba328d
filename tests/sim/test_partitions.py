"""The model of partitions holds, and each of its rules is needed."""

from __future__ import annotations

import os

import pytest

from sim.model_runs import Violation
from sim.partitions.world import BUGS, MODEL, World

SEEDS = int(os.environ.get("SOAK_RUNS", "100"))
CAUGHT_BY = {
    "child-first": 0,
    "drained-with-moves": 128,
    "elsewhere-early": 8,
    "fresh-group-given": 3,
    "gone-uncommitted": 290,
    "grandparent-forgotten": 107,
    "list-half": 7,
    "number-reused": 1,
    "one-parent-of-two": 13,
    "retention-by-count": 0,
    "seal-not-replayed": 1,
    "sealed-parks": 31,
    "sealed-takes-local-moves": 4,
    "sealed-takes-moves": 1,
    "sequence-restarts": 3,
    "sink-asks-child": 1,
    "tables-mixed": 30,
    "unknown-is-gone": 15,
    "watch-takes": 1,
    "window-by-row": 371,
    "withdrawn-alone": 304,
}
"""For each planted bug a seed that catches it."""


def test_partitions_keep_their_rules_in_every_run() -> None:
    for seed in range(SEEDS):
        _, violation = MODEL.run_seed(seed)

        assert violation is None, (
            f"PYTHONPATH=tests python -m sim.partitions --seed {seed} --story: {violation}"
        )


def test_runs_change_partitions_until_they_are_gone() -> None:
    worlds = [MODEL.run_seed(seed)[0] for seed in range(20)]

    assert sum(world.counts()["partitions made"] for world in worlds) > 40
    assert sum(world.counts()["partitions removed"] for world in worlds) > 0
    assert sum(world.counts()["stores restored"] for world in worlds) > 0


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_partitions_without_one_of_their_rules_are_caught(bug: str) -> None:
    with pytest.raises(Violation):
        World(CAUGHT_BY[bug], [bug]).run()


@pytest.mark.parametrize("seed", sorted(set(CAUGHT_BY.values())))
def test_the_seeds_that_catch_bugs_find_nothing_without_one(seed: int) -> None:
    World(seed).run()

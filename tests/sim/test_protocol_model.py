"""The protocol's executable specification holds, and each of its rules is needed."""

from __future__ import annotations

import os

import pytest

from sim.model_runs import Violation
from sim.protocol_model import BUGS, MODEL, World

SEEDS = 4 * int(os.environ.get("SOAK_RUNS", "100"))
CAUGHT_BY = {
    "earlyack": 5,
    "fig8": 17,
    "longack": 822,
    "noactivate": 17,
    "nochain": 179,
    "nofetch": 0,
    "noprev": 3,
    "noprevcheck": 10,
    "reuse": 13,
    "softpromise": 2039,
    "volpromise": 13,
}
"""For each planted bug a seed that catches it."""


def test_the_protocol_keeps_its_rules_in_every_run() -> None:
    for seed in range(SEEDS):
        _, violation = MODEL.run_seed(seed)

        assert violation is None, (
            f"PYTHONPATH=tests python -m sim.protocol_model --seed {seed} --story: {violation}"
        )


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_protocol_without_one_of_its_rules_is_caught(bug: str) -> None:
    with pytest.raises(Violation):
        World(CAUGHT_BY[bug], [bug]).run()


@pytest.mark.parametrize("seed", sorted(set(CAUGHT_BY.values())))
def test_the_seeds_that_catch_bugs_find_nothing_without_one(seed: int) -> None:
    World(seed).run()


def test_a_seed_tells_the_same_story_again() -> None:
    assert MODEL.tell(17, ["fig8"]) == MODEL.tell(17, ["fig8"])


def test_a_story_ends_with_what_was_broken() -> None:
    assert "VIOLATION: two records are committed at 29" in MODEL.tell(17, ["fig8"]).splitlines()[-1]


def test_the_command_says_which_seed_found_a_planted_bug(capsys: pytest.CaptureFixture[str]) -> None:
    found = MODEL.main(["--seed", "17", "--bug", "fig8", "--story"])

    assert found == 1
    assert "fig8: seed 17, after 1 seeds" in capsys.readouterr().out


def test_the_command_counts_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    found = MODEL.main(["--seed", "3"])

    assert found == 0
    assert "nothing found in 1 seeds" in capsys.readouterr().out

"""Hunts the planted bugs with fresh seeds, each in the profile that suits it, and prints what it took.

PYTHONPATH=tests python -m sim.mutants                 all of them
PYTHONPATH=tests python -m sim.mutants reuse nochain   these
PYTHONPATH=tests python -m sim.mutants --seed0 4711    from another seed on
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool

from sim.bugs import BUGS
from sim.cell import Outcome, run_seed
from sim.profiles import draw_for

SEEDS_MAX = 5_000


def hunt_seed(seed: int, *, bug: str, profile: str) -> Outcome:
    """Run one seed with a bug, in a profile."""
    return run_seed(seed, profile=draw_for(profile, seed), bugs=[bug])


def _outcomes(bug: str, seeds: range, jobs: int) -> Iterator[Outcome]:
    run = partial(hunt_seed, bug=bug, profile=BUGS[bug].profile)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap(run, seeds)


def hunt(bug: str, *, seed0: int, seeds_max: int, jobs: int) -> tuple[Outcome | None, int, float]:
    """Return what caught a bug (None: nothing did), after how many seeds, and in how many seconds."""
    started = time.monotonic()
    seeds = 0
    for outcome in _outcomes(bug, range(seed0, seed0 + seeds_max), jobs):
        seeds += 1
        if outcome.violation is not None:
            return outcome, seeds, time.monotonic() - started
    return None, seeds, time.monotonic() - started


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return how many bugs nothing caught."""
    assert __doc__ is not None, "this module says how it is used"
    parser = argparse.ArgumentParser(
        prog="python -m sim.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="all when none is named")
    parser.add_argument("--seed0", type=int, default=0)
    parser.add_argument("--seeds-max", type=int, default=SEEDS_MAX)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    missed = 0
    print(f"{'bug':<26} {'profile':<10} {'seeds':>6} {'seconds':>8}  caught by")
    for bug in options.bugs or BUGS:
        outcome, seeds, took_s = hunt(
            bug, seed0=options.seed0, seeds_max=options.seeds_max, jobs=options.jobs
        )
        caught = "MISSED"
        if outcome is None:
            missed += 1
        else:
            caught = f"{str(outcome.violation)[:110]} (seed {outcome.seed})"
        print(f"{bug:<26} {BUGS[bug].profile:<10} {seeds:>6} {took_s:>8.1f}  {caught}", flush=True)
    print(f"{len(options.bugs or BUGS) - missed} caught, {missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(), 1))

"""Runs simulated cells until so many simulated hours are done, or tells the story of one seed.

PYTHONPATH=tests python -m sim --hours 10 --jobs 2         fresh seeds; what they find is printed at once
PYTHONPATH=tests python -m sim --seed 17 --story           one run, as a story
PYTHONPATH=tests python -m sim --minutes 2 --seed0 5000    for so long by the clock
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import Pool

from sim.bugs import BUGS
from sim.cell import Outcome, run_seed, tell
from sim.kernel import SECOND

HOUR_US = 3_600 * SECOND


def outcomes(seeds: Iterable[int], bugs: Iterable[str], jobs: int) -> Iterator[Outcome]:
    """Run seeds, several at a time with `jobs` above 1."""
    if jobs == 1:
        yield from (run_seed(seed, bugs=bugs) for seed in seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(run_seed, bugs=bugs), seeds)
    pool.join()


def _until_interrupted(found: Iterator[Outcome]) -> Generator[Outcome, None, None]:
    """What was done until somebody pressed control-C is counted too."""
    with suppress(KeyboardInterrupt):
        yield from found


def _processor_s() -> float:
    """Processor seconds of this process and of those it waited for."""
    return sum(os.times()[:4])


def main(arguments: list[str] | None = None) -> int:
    """Return how many seeds found something."""
    assert __doc__ is not None, "this module says how it is used"
    parser = argparse.ArgumentParser(
        prog="python -m sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=0.1, help="simulated hours to do")
    parser.add_argument("--minutes", type=float, help="stop after so long by the clock, whatever is done")
    parser.add_argument("--seed0", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--bug", action="append", default=[], choices=sorted(BUGS), metavar="NAME")
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--last", type=int, default=80, help="how many events the story's end has")
    options = parser.parse_args(arguments)
    if options.seed is not None and options.story:
        print(tell(options.seed, bugs=options.bug, last=options.last))
        return 0
    seeds = itertools.count(options.seed0) if options.seed is None else [options.seed]
    started, began_s = time.monotonic(), _processor_s()
    runs = found = events = simulated_us = sends = deliveries = epochs = 0
    going = _until_interrupted(outcomes(seeds, options.bug, options.jobs))
    for outcome in going:
        runs += 1
        events += outcome.events
        simulated_us += outcome.simulated_us
        sends += outcome.acked_sends
        deliveries += outcome.deliveries
        epochs += outcome.epochs
        if outcome.violation is not None:
            found += 1
            at_s = outcome.simulated_us / SECOND
            print(f"seed {outcome.seed} after {at_s:.1f} simulated s: {outcome.violation}", flush=True)
            print(f"    PYTHONPATH=tests python -m sim --seed {outcome.seed} --story", flush=True)
        is_late = options.minutes is not None and time.monotonic() - started > 60 * options.minutes
        if is_late or simulated_us >= options.hours * HOUR_US:
            break
    going.close()
    took_s = max(_processor_s() - began_s, 0.01)
    print(
        f"{runs:,} seeds, {simulated_us / HOUR_US:.2f} simulated hours, {found} found something; "
        f"{events:,} events, {events / took_s:,.0f}/s, {simulated_us / HOUR_US / took_s * 3600:,.0f} simulated hours "
        f"per core-hour; {epochs:,} epochs, {sends:,} acknowledged sends, {deliveries:,} deliveries"
    )
    return found


if __name__ == "__main__":
    sys.exit(min(main(), 1))

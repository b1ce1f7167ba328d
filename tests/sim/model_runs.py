"""Runs a model with one seed after the other, and tells what was found: what the models' commands have in common."""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Violation(AssertionError):
    """A rule of the model was broken in this run."""


class ModelWorld(Protocol):
    """One run of a model."""

    events: int
    story: deque[str] | None

    def run(self) -> object:
        """Run to the end; raises `Violation` for what is found."""
        ...

    def counts(self) -> Mapping[str, int]:
        """What this run did, to be summed up over runs."""
        ...


class MakesWorld(Protocol):
    """Makes the world of a seed, with these bugs planted."""

    def __call__(self, seed: int, bugs: Iterable[str] = (), *, has_story: bool = False) -> ModelWorld: ...


@dataclass(frozen=True)
class Model:
    """A model, and the bugs that can be planted in it."""

    program: str
    make: MakesWorld
    bugs: Mapping[str, str]

    def run_seed(self, seed: int, bugs: Iterable[str] = ()) -> tuple[ModelWorld, Violation | None]:
        """Run one seed to its end, or to what it found."""
        world = self.make(seed, bugs)
        try:
            world.run()
        except Violation as violation:
            return world, violation
        return world, None

    def tell(self, seed: int, bugs: Iterable[str] = ()) -> str:
        """Return the last events of a run, and what was found."""
        world = self.make(seed, bugs, has_story=True)
        assert world.story is not None, "this world has a story"
        try:
            world.run()
            world.story.append("nothing was found")
        except Violation as violation:
            world.story.append(f"{world.events:6d}  VIOLATION: {violation}")
        return "\n".join(world.story)

    def main(self, arguments: list[str] | None = None) -> int:
        """Run seeds until the time is up or something is found; 1 when it was."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.program}")
        parser.add_argument("--seconds", type=float, default=10.0)
        parser.add_argument("--seed0", type=int, default=0, help="the first seed")
        parser.add_argument("--seed", type=int, help="run this one only")
        parser.add_argument("--bug", action="append", default=[], choices=sorted(self.bugs))
        parser.add_argument("--story", action="store_true", help="tell the last events of what was found")
        options = parser.parse_args(arguments)
        name = ", ".join(options.bug) or "no bug planted"
        started = time.monotonic()
        seed: int = options.seed0 if options.seed is None else options.seed
        counts: Counter[str] = Counter()
        while options.seed is None or counts["seeds"] == 0:
            world, violation = self.run_seed(seed, options.bug)
            counts.update({"seeds": 1, "events": world.events, **world.counts()})
            if violation is not None or (options.seed is not None and options.story):
                if options.story:
                    print(self.tell(seed, options.bug))
                took_s = time.monotonic() - started
                found = violation or "nothing found"
                print(f"{name}: seed {seed}, after {counts['seeds']} seeds and {took_s:.1f} s: {found}")
                return 1 if violation else 0
            seed += 1
            if time.monotonic() - started > options.seconds:
                break
        took_s = time.monotonic() - started
        did = ", ".join(f"{number:,} {what}" for what, number in counts.items() if what != "seeds")
        print(
            f"{name}: nothing found in {counts['seeds']} seeds ({counts['events'] / took_s:,.0f} events/s): {did}"
        )
        return 0

"""Power cuts, kills and stops of the whole broker on a simulated disk: every promise is kept, and only then."""

from __future__ import annotations

import os

import pytest

from quaymaster.broker.storage.space import SpaceKeeper
from quaymaster.core.partition.partition import Partition
from sim.power_cuts import FOUND, Run, Violation

BLOCKS = 8
RUNS = int(os.environ.get("SOAK_RUNS", "96"))
CUTS_PER_RUN = 1.5
"""At least so many on average (it is 2.3): a run has five lives, and not all end with a power cut."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_was_acknowledged_is_there_after_power_cuts_and_nothing_else_is(block: int) -> None:
    runs = [Run(seed) for seed in range(block, RUNS, BLOCKS)]

    for run in runs:
        try:
            run.go()
        except Exception as error:
            error.add_note(f"to see it again: PYTHONPATH=tests python -m sim.power_cuts {run.seed}")
            raise

    assert sum(run.power_cuts for run in runs) >= CUTS_PER_RUN * len(runs)
    assert sum(run.full_replays for run in runs) > 0, "no start was compared with a full replay"
    assert sum(run.live_replays for run in runs) > 0, "no live state was compared with a replay"


def test_a_disk_that_lies_about_fsync_is_caught() -> None:
    caught = 0

    for seed in range(12):
        try:
            Run(seed, lying=True).go()
        except FOUND:
            caught += 1

    assert caught >= 9


def test_sends_are_taken_again_after_a_write_that_found_no_room() -> None:
    for seed in range(300, 312):
        Run(seed, has_hiccups=True).go(lives=1)


def test_a_broker_that_stays_cramped_for_good_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpaceKeeper, "note_written", lambda keeper: None)
    caught = 0

    for seed in range(300, 312):
        try:
            Run(seed, has_hiccups=True).go(lives=1)
        except FOUND:
            caught += 1

    assert caught >= 4


TASK_WITHOUT_END = 402
"""A seed with a task that, without its stop, finds what it has moved itself."""


@pytest.mark.parametrize("seed", range(400, 412))
def test_tasks_of_a_queue_that_is_its_own_dead_letter_queue_have_an_end(seed: int) -> None:
    Run(seed, has_circles=True).go(lives=2)


def test_a_task_without_an_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take_visible = Partition.take_visible

    def without_stop(self: Partition, count_max: int, now_ms: int, stop: int | None = None) -> list[int]:
        return take_visible(self, count_max, now_ms)

    monkeypatch.setattr(Partition, "take_visible", without_stop)

    with pytest.raises(Violation, match="a task of queue 4 moved"):
        Run(TASK_WITHOUT_END, has_circles=True).go(lives=2)


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = Run(5), Run(5)

    first.go()
    second.go()

    assert first.model.messages.keys() == second.model.messages.keys()
    assert first.model.places == second.model.places
    assert first.rng.random() == second.rng.random()

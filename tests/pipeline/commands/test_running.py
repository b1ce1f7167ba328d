"""`quaymaster pipeline run` that goes on: layers and upkeep in threads of their own, none of which waits for others."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.command_line import Result, Run
from harness.pipeline_site import NOW, InProcess, Site, expected_usage
from harness.reconciled import compare_rows, compare_sums
from harness.usage_blocks import FrontEnd
from harness.waiting import PATIENCE_S, eventually

from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.commands import pipeline, spark
from quaymaster_pipeline.commands.upkeep import Upkeep
from quaymaster_pipeline.jobs import merge as merging
from quaymaster_pipeline.jobs import turns, upkeep
from quaymaster_pipeline.jobs.jobs import BronzeJob, RefineJob
from quaymaster_pipeline.jobs.merge import Merged, merge_sums
from quaymaster_pipeline.jobs.turns import Background
from quaymaster_pipeline.usage import backlogs, gold, silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.warehouse.errors import BrokenTable, CommitConflict, SumsDiffer, WarehouseFull
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TABLES, USAGE_EVENTS, USAGE_HOURLY

Act = Callable[[], Any]


class Gate:
    """Lets nobody through until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)


class Running:
    """A site, and `pipeline run` over it in this thread and its own ones."""

    def __init__(self, site: Site, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.front_end = FrontEnd("a", step_us=20_000_000)
        self._run = run
        self._monkeypatch = monkeypatch

    def ship(self, rows: int = 10) -> None:
        self.site.ship(self.front_end.block(rows))

    def until_interrupted(self, *acts: Act) -> Result:
        """Run, and do one of these each time that the run waits for more; after the last, Ctrl-C."""
        left = list(acts)

        def pause(*_: object) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        with self._monkeypatch.context() as patched:
            patched.setattr(Background, "pause", pause)
            return self.start("--interval", "0")

    def start(self, *words: str) -> Result:
        site = self.site
        return self._run("pipeline", "run", "--data", site.root.parent, "--files", site.feed, *words)

    def is_in_gold(self) -> bool:
        return self.site.usage() == expected_usage(self.front_end)

    def batches(self) -> tuple[int, int, int]:
        """Return how many batches bronze, silver and gold have."""
        layers = ((BLOCKS, BRONZE), (USAGE_EVENTS, silver.APP), (USAGE_HOURLY, gold.APP))
        first, second, third = (self.site.warehouse.table(spec).last_batch(app) + 1 for spec, app in layers)
        return first, second, third

    def check(self) -> None:
        warehouse = self.site.warehouse
        assert self.is_in_gold()
        by_rows = compare_rows(warehouse)
        assert [one.difference for one in by_rows] == [0] * 5
        assert compare_notes(warehouse) == by_rows
        assert compare_sums(warehouse) == []


@pytest.fixture
def running(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Running:
    @contextlib.contextmanager
    def no_spark(*_: object, **__: object) -> Iterator[InProcess]:
        yield InProcess()

    monkeypatch.setattr(spark, "spark_workers", no_spark)
    monkeypatch.setattr(pipeline, "_now", lambda: NOW)
    return Running(Site(tmp_path), run, monkeypatch)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_upkeep_that_does_not_end_holds_up_no_batch(
    running: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Upkeep, "turn", lambda _: gate.pass_through())
    running.ship()

    def ship_more() -> None:
        eventually(running.is_in_gold)
        assert gate.reached.wait(PATIENCE_S)
        running.ship()

    done = running.until_interrupted(
        ship_more, ship_more, lambda: eventually(running.is_in_gold), gate.opened.set
    )

    assert (done.code, running.batches()) == (130, (3, 3, 3))


def test_silver_that_does_not_end_holds_up_no_block(
    running: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    refine = silver.refine_batches

    def held_up(*arguments: Any) -> Any:
        gate.pass_through()
        return refine(*arguments)

    monkeypatch.setattr(silver, "refine_batches", held_up)
    running.ship()
    seen: list[tuple[int, int, int]] = []

    def ship_more() -> None:
        seen.append(running.batches())
        running.ship()

    def go_on() -> None:
        ship_more()
        gate.opened.set()

    running.until_interrupted(ship_more, go_on, lambda: eventually(running.is_in_gold))

    assert seen == [(1, 0, 0), (2, 0, 0)]
    running.check()


def test_silver_that_finds_a_mistake_is_tried_again_and_holds_up_no_block(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    refine = silver.refine_batches
    found: list[SumsDiffer] = []

    def mistaken(*arguments: Any) -> Any:
        if len(found) < 2:
            found.append(SumsDiffer("silver would have 9 rows of 10"))
            raise found[-1]
        return refine(*arguments)

    monkeypatch.setattr(silver, "refine_batches", mistaken)
    monkeypatch.setattr("quaymaster_pipeline.commands.running.AWAY_S", 0.0)
    running.ship()

    def ship_more() -> None:
        running.ship()

    done = running.until_interrupted(
        lambda: eventually(lambda: found), ship_more, ship_more, lambda: eventually(running.is_in_gold)
    )

    assert done.err.count("silver would have 9 rows of 10. Blocks are taken all the same") == 2
    running.check()


def test_a_batch_that_a_killed_run_left_to_silver_is_refined_without_a_new_block(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.ship()
    with monkeypatch.context() as patched:
        patched.setattr(silver, "refine_batches", lambda *_: None)
        running.until_interrupted()
    assert running.batches() == (1, 0, 0)

    running.until_interrupted(lambda: eventually(running.is_in_gold))

    running.check()


@pytest.mark.parametrize("words", [(), ("--once",)], ids=["on", "once"])
def test_an_error_of_upkeep_ends_the_run_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise WarehouseFull("no more can be written to gold/usage_hourly")

    monkeypatch.setattr(upkeep, "merge_sums", broken)
    running.ship()

    # It would wait far longer than a test may take.
    done = running.start("--interval", "100000", *words)

    assert done.code == 1
    assert "no more can be written to gold/usage_hourly" in done.err
    assert running.is_in_gold() or not words


def test_an_error_of_silver_ends_the_run_at_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenTable("a file of silver.usage_events is gone")

    monkeypatch.setattr(silver, "refine_batches", broken)
    running.ship()

    done = running.start("--interval", "100000")

    assert done.code == 1
    assert "a file of silver.usage_events is gone" in done.err


@pytest.mark.parametrize("kind", [BrokenTable, CommitConflict, SumsDiffer])
def test_upkeep_that_gives_way_is_tried_again_without_a_new_batch(
    running: Running, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    calls = 0

    def lost(*_: object, **__: object) -> list[Merged]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise kind("another process was first")
        return []

    monkeypatch.setattr(upkeep, "merge_sums", lost)
    running.ship()

    done = running.until_interrupted(
        lambda: eventually(lambda: calls == 1), lambda: eventually(lambda: calls == 2)
    )

    assert done.err.count("another process was first. Its files stay as they are until the next time.") == 1


@pytest.fixture
def upkeep_turn(monkeypatch: pytest.MonkeyPatch) -> Act:
    """Waits for the end of one more turn of upkeep."""
    done, turn = threading.Semaphore(0), Upkeep.turn

    def watched(keeping_up: Upkeep) -> None:
        turn(keeping_up)
        done.release()

    def wait() -> None:
        assert done.acquire(timeout=PATIENCE_S)

    monkeypatch.setattr(Upkeep, "turn", watched)
    return wait


def test_a_run_with_nothing_to_do_writes_nothing_and_merges_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch, upkeep_turn: Act
) -> None:
    merges = 0

    def counted(*arguments: Any, **named: Any) -> list[Merged]:
        nonlocal merges
        merges += 1
        return merge_sums(*arguments, **named)

    monkeypatch.setattr(upkeep, "merge_sums", counted)
    running.ship()
    versions: list[list[int]] = []

    def look() -> None:
        upkeep_turn()
        warehouse = running.site.warehouse
        versions.append([warehouse.table(spec).version for spec in TABLES])

    running.until_interrupted(lambda: eventually(running.is_in_gold), *[look] * 6)

    assert merges <= 2  # at the start, and after the batch
    assert versions[4:] == [versions[3]] * 2


def test_hours_that_end_are_merged_without_a_new_batch(
    running: Running, monkeypatch: pytest.MonkeyPatch, upkeep_turn: Act
) -> None:
    now = NOW.replace(hour=12, minute=30)  # what is recorded is of this hour
    monkeypatch.setattr(pipeline, "_now", lambda: now)
    running.ship()
    running.until_interrupted(lambda: eventually(running.is_in_gold))
    running.ship()

    def files() -> int:
        return len(running.site.warehouse.table(USAGE_HOURLY).files())

    def end_hours() -> None:
        nonlocal now
        assert files() == 2
        now += datetime.timedelta(hours=2)

    settled = (lambda: eventually(running.is_in_gold), *[upkeep_turn] * 5)
    running.until_interrupted(*settled, end_hours, lambda: eventually(lambda: files() == 1))

    running.check()


def test_turns_that_do_not_end_delay_the_end_of_a_run_no_longer_than_they_may(
    running: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "STOP_S", 0.01)
    monkeypatch.setattr(Upkeep, "turn", lambda _: gate.pass_through())
    running.ship()

    done = running.until_interrupted(lambda: gate.reached.wait(PATIENCE_S))

    assert done.code == 130
    assert not gate.opened.is_set()


def few_batches_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 8 batches be as much as 32 are."""
    monkeypatch.setattr(merging, "FILES_MIN", 8)
    monkeypatch.setattr("quaymaster_pipeline.commands.running.UPKEEP_EVERY_BATCHES", 4)


def test_a_backlog_is_merged_while_it_is_taken(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "BATCH_BLOCKS_MAX", 1)
    few_batches_are_many(monkeypatch)
    taken, merged = 0, threading.Event()
    merge, take = merge_sums, BronzeJob.take

    def watched(*arguments: Any, **named: Any) -> list[Merged]:
        done = merge(*arguments, **named)
        if not named["ends_periods"] and any(one.table == USAGE_HOURLY.name for one in done):
            merged.set()
        return done

    def waiting(job: BronzeJob, *arguments: Any) -> bool:
        nonlocal taken
        taken += 1
        # Its hours have ended by the clock, and get more batches all the same.
        assert taken <= 12 or merged.wait(PATIENCE_S)
        return take(job, *arguments)

    monkeypatch.setattr(upkeep, "merge_sums", watched)
    monkeypatch.setattr(BronzeJob, "take", waiting)
    for _ in range(15):
        running.ship(2)

    done = running.start("--once")

    assert (done.code, running.batches()) == (0, (15, 15, 15))
    running.check()


def test_a_backlog_of_silver_is_merged_while_it_is_taken(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "BATCH_BLOCKS_MAX", 1)
    few_batches_are_many(monkeypatch)
    monkeypatch.setattr(backlogs, "ROWS_OF_TURN", 1)
    refined, merged = 0, threading.Event()
    refine = RefineJob.refine

    def watched(*arguments: Any, **named: Any) -> list[Merged]:
        done = merge_sums(*arguments, **named)
        if not named["ends_periods"] and any(one.table == USAGE_HOURLY.name for one in done):
            merged.set()
        return done

    def waiting(job: RefineJob, *arguments: Any) -> bool:
        nonlocal refined
        refined += 1
        eventually(lambda: refined > 1 or running.batches()[0] == 15)
        assert refined <= 12 or merged.wait(PATIENCE_S)
        return refine(job, *arguments)

    monkeypatch.setattr(upkeep, "merge_sums", watched)
    monkeypatch.setattr(RefineJob, "refine", waiting)
    for _ in range(15):
        running.ship(2)

    running.until_interrupted(lambda: eventually(running.is_in_gold))

    assert merged.is_set()
    running.check()


def test_a_conflict_of_silver_is_tried_again_and_the_third_in_a_row_ends_the_run(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    refine = RefineJob.refine
    conflicts = 2

    def lost(job: RefineJob, *arguments: Any) -> bool:
        nonlocal conflicts
        if conflicts:
            conflicts -= 1
            raise CommitConflict("another process refines batches, too")
        return refine(job, *arguments)

    monkeypatch.setattr(RefineJob, "refine", lost)
    running.ship()
    twice = running.until_interrupted(lambda: eventually(running.is_in_gold))
    conflicts = 3
    thrice = running.start("--interval", "100000")

    assert twice.err.count("What was not committed is refined again") == 2
    assert thrice.code == 1
    assert "another process refines batches, too" in thrice.err

"""How `pipeline run` runs: what each of its threads does, and what ends them.

    main thread   bronze: takes blocks, on its own trigger
    refine        silver and gold: what bronze has and they lack, on its own trigger; status and metrics
    upkeep        brokers, merges, compaction, what is due once a day

None waits for another. Each has its own tables and its own pool of Spark; the tables are all that they share. With
`--once` the layers follow each other in the main thread, batch by batch, and the last turn of upkeep is waited for.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from quaymaster.cli.shared.failures import CommandRefused, NoServer, as_sentence
from quaymaster.cli.shared.output import note, progress_bar
from quaymaster_pipeline.commands.upkeep import Upkeep
from quaymaster_pipeline.commands.warehouse import write_metrics_of
from quaymaster_pipeline.jobs.turns import Background, Turns
from quaymaster_pipeline.warehouse.errors import CommitConflict, SumsDiffer

if TYPE_CHECKING:
    from quaymaster_pipeline.jobs.jobs import BronzeJob, RefineJob, Summary
    from quaymaster_pipeline.usage.feed import BlockSource
    from quaymaster_pipeline.usage.sequences import Coverage
    from quaymaster_pipeline.usage.tasks import SparkWorkers
    from quaymaster_pipeline.warehouse.tables import Warehouse

PAUSE_MIN_S, PAUSE_MAX_S = 5.0, 60.0
PAUSE_OF_BATCH = 4
"""Batches begin so many times as long apart as the last took, within these bounds: few and large ones under load."""
LOOK_S = 1.0
"""How often an idle run asks whether there is more, and after IDLE_S it looks at everything, also if there is not."""
IDLE_S = 15.0
AWAY_S = 15.0
"""How often a server that is away is asked again."""
UPKEEP_EVERY_BATCHES = 16
"""How often files are merged while there is more to take: a backlog may be of days."""
LOSSES_MAX = 3
"""So often in a row another process may be first with a commit; then two of them take the same queue."""


@dataclass
class Shown:
    """What metrics tell and the tables do not. The threads keep it up to date."""

    lag_blocks: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """How long the last batch took, by layer."""

    def keep(self, summary: Summary) -> None:
        """Take what a job did."""
        self.seconds.update({batch.layer: batch.seconds for batch in summary.batches})


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all threads of a run have in common."""

    workers: SparkWorkers
    tables: Warehouse
    """Those of the main thread."""
    directory: Path
    feed: BlockSource
    reopen_feed: Callable[[], BlockSource]
    interval_s: float | None
    quiet: bool
    now: Callable[[], datetime.datetime]
    shown: Shown = field(default_factory=Shown)

    @property
    def away_s(self) -> float:
        """How long until what failed is tried again."""
        return AWAY_S if self.interval_s is None else self.interval_s

    def rest_s(self, took_s: float) -> float:
        """Return how long the next batch waits after one that took so long."""
        if self.interval_s is not None:
            return self.interval_s
        return max(0.0, min(PAUSE_MAX_S, max(PAUSE_MIN_S, PAUSE_OF_BATCH * took_s)) - took_s)

    def report(self, tables: Warehouse, coverage: Coverage) -> dict[str, Any]:
        """Compare the layers by their control totals, write the metrics, and return the status."""
        from quaymaster_pipeline.checks.reconciliation import write_look
        from quaymaster_pipeline.checks.status import METRICS_FILE, pipeline_metrics, read_status

        write_look(tables, self.now())
        found = read_status(tables, coverage)
        batch_seconds = sum(self.shown.seconds.values())
        text = pipeline_metrics(
            found, lag_blocks=self.shown.lag_blocks, batch_seconds=batch_seconds, now_s=time.time()
        )
        write_metrics_of(tables, self.directory, METRICS_FILE, text)
        return found


class IngestStopped(CommandRefused):
    """The feed has what cannot be taken yet, and nothing is lost. The rest of a run goes on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(as_sentence(error))
        self.kind = type(error)


class _IngestState:
    """Says once when blocks cannot be taken, and once when they can again; kept in the tables for who asks there."""

    def __init__(self, tables: Warehouse) -> None:
        self._tables = tables
        self._kind: type[Exception] | None = None
        self._is_kept = False

    def stop(self, error: IngestStopped) -> None:
        """Tell why nothing is taken, unless it was told."""
        if self._kind is not error.kind:
            note(f"{error} Layers and upkeep go on; blocks are tried again.")
            self.keep(str(error))
        self._kind = error.kind

    def go_on(self) -> None:
        """Tell that blocks are taken."""
        if self._kind is not None:
            note("Blocks are taken again.")
        if self._kind is not None or not self._is_kept:
            self.keep(None)
        self._kind = None

    def keep(self, stopped: str | None) -> None:
        """Note why nothing is taken, or None; without telling it."""
        from quaymaster_pipeline.usage.ingest_state import keep_ingest_state

        keep_ingest_state(self._tables, stopped)
        self._is_kept = True


class _Losses:
    """How often in a row another process was first with a commit."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, error: CommitConflict, then: str) -> None:
        """Tell of one more, and what becomes of the batch; raise the conflict if it is one too many."""
        self._count += 1
        if self._count == LOSSES_MAX:
            raise error
        note(f"{error}. What was not committed is {then}.")

    def end(self) -> None:
        """Begin again from 0: a commit came through."""
        self._count = 0


def run_once(run: Run, upkeep: Upkeep) -> dict[str, Any]:
    """Take all that is there through all layers, keep the tables up, and return what was done.

    Raises:
        IngestStopped: some of it cannot be taken yet; all else was done.
        CommitConflict: another process was first again and again.
        SumsDiffer: a layer has a mistake; bronze has what there was.
    """
    losses, state = _Losses(), _IngestState(run.tables.another())
    with Background() as background:
        turns = background.start("upkeep", upkeep.turn)
        while True:
            try:
                return _catch_up(run, upkeep, turns, state)
            except CommitConflict as error:
                losses.add(error, "taken again")
                run.tables.refresh()


def _catch_up(run: Run, upkeep: Upkeep, turns: Turns, state: _IngestState) -> dict[str, Any]:
    from quaymaster_pipeline.checks.brokers.broker_counts import last_comparison
    from quaymaster_pipeline.jobs.jobs import Pipeline, Summary

    def on_batch(done: Summary) -> None:
        bar.update(done.blocks)
        turns.check()
        if done.taken % UPKEEP_EVERY_BATCHES == 0:
            upkeep.is_behind = True
            turns.ask()

    began_s = time.monotonic()
    summary, stopped = Summary(), None
    with reading():
        pipeline = Pipeline(run.workers, run.tables, run.feed)
        run.shown.lag_blocks = pipeline.lag_blocks()
    try:
        with reading(), progress_bar("blocks", total=run.shown.lag_blocks, quiet=run.quiet) as bar:
            summary = pipeline.catch_up(on_batch)
        state.go_on()
    except IngestStopped as error:
        stopped = error
        state.keep(str(error))
    with reading():
        run.shown.lag_blocks = pipeline.lag_blocks()
    run.shown.keep(summary)
    upkeep.is_behind, upkeep.closed_until_us = False, pipeline.whole_coverage.closed_until_us()
    seconds = time.monotonic() - began_s
    tables = run.tables.another()
    run.report(tables, pipeline.whole_coverage)
    turns.finish()
    tables.refresh()
    found = run.report(tables, pipeline.whole_coverage)
    if stopped is not None:
        raise stopped
    return {
        "batches": [batch.as_json() for batch in summary.batches],
        "blocks": summary.blocks,
        "rows": summary.rows,
        "totals": summary.totals,
        "seconds": round(seconds, 3),
        "lag_blocks": run.shown.lag_blocks,
        "closed_until": found["closed_until"],
        "gaps": found["gaps"],
        "quarantine": found["rows"]["quarantine"],
        "duplicates": found["rows"]["duplicates"],
        "difference": found["difference"],
        "broker_difference": sum(one.difference for one in last_comparison(tables)),
    }


def run_on(run: Run, upkeep: Upkeep) -> NoReturn:
    """Take what comes into bronze, while other threads bring it further and keep the tables up; does not return.

    Raises:
        CommitConflict: another process was first again and again.
    """
    from quaymaster_pipeline.jobs.jobs import BronzeJob, RefineJob

    feed = run.feed
    refining = RefineJob(run.workers.in_pool("refine"), run.tables.another(), feed)
    covered = refining.covered()
    workers = run.workers.in_pool("bronze")
    bronze, losses = BronzeJob(workers, run.tables, feed, covered=covered), _Losses()
    state = _IngestState(run.tables.another())
    with Background() as background:
        keeping_up = background.start("upkeep", upkeep.turn)
        layers = background.start("refine", Refining(run, refining, upkeep, keeping_up).turn)
        # A process that was killed left a batch that only bronze has.
        layers.ask()
        while True:
            began_s = time.monotonic()
            try:
                _take_all(run, bronze, background, layers)
            except NoServer as error:
                note(f"{error} Trying again until it answers.")
                background.pause(run.away_s)
                # It may be back at another address.
                feed = run.reopen_feed()
                bronze.read_from(feed)
                refining.read_from(feed)
                continue
            except IngestStopped as error:
                state.stop(error)
                layers.ask()
                # Each try reads a batch.
                background.pause(max(run.away_s, PAUSE_OF_BATCH * (time.monotonic() - began_s)))
                continue
            except CommitConflict as error:
                losses.add(error, "taken again")
                run.tables.refresh()
                bronze = BronzeJob(workers, run.tables, feed)
                continue
            losses.end()
            state.go_on()
            layers.ask()
            _wait_for_more(run, bronze, background, time.monotonic() - began_s)


def _take_all(run: Run, job: BronzeJob, background: Background, layers: Turns) -> None:
    """Take into bronze all that is there."""
    from quaymaster_pipeline.jobs.jobs import Summary

    summary, began_s = Summary(), time.monotonic()
    with reading():
        run.shown.lag_blocks = job.lag_blocks()
        with progress_bar("blocks", total=run.shown.lag_blocks, quiet=run.quiet) as bar:
            while job.take(summary):
                bar.update(summary.blocks)
                run.shown.keep(summary)
                layers.ask()
                background.check()
        run.shown.lag_blocks = job.lag_blocks()
    if summary.taken:
        seconds, lag = time.monotonic() - began_s, run.shown.lag_blocks
        note(f"{summary.rows} requests in {seconds:.1f} s; {lag} blocks behind")


def _wait_for_more(run: Run, job: BronzeJob, background: Background, took_s: float) -> None:
    """Wait until the next batch is due and there is something to take, or it is time to look at everything again.

    Until it is due, only a full batch is something.
    """
    from pyspark_quaymaster.errors import QuaymasterError

    rest_s = run.rest_s(took_s)
    if run.interval_s is not None:
        background.pause(rest_s)
        return
    waited_s = 0.0
    while waited_s < max(rest_s, IDLE_S):
        step_s = min(LOOK_S, rest_s - waited_s) if waited_s < rest_s else LOOK_S
        background.pause(step_s)
        waited_s += step_s
        try:
            lag_blocks = job.lag_blocks()
        except QuaymasterError:
            # The next look at everything tells.
            background.pause(max(0.0, rest_s - waited_s))
            return
        if job.is_full(lag_blocks) or (lag_blocks and waited_s >= rest_s):
            return


class Refining:
    """What the thread does that brings batches of bronze into silver and gold."""

    def __init__(self, run: Run, job: RefineJob, upkeep: Upkeep, keeping_up: Turns) -> None:
        self._run = run
        self._job = job
        self._upkeep = upkeep
        self._keeping_up = keeping_up

    def turn(self) -> float:
        """Refine all that bronze has, tell how far the tables are, and return how long the next turn has to wait.

        Raises:
            CommitConflict: another process was first again and again.
        """
        began_s = time.monotonic()
        pause_s = 0.0
        try:
            if self._refine_all():
                pause_s = self._run.rest_s(time.monotonic() - began_s)
        except SumsDiffer as error:
            # Blocks are in bronze, so the queue may let go of them; nothing is billed until this is repaired.
            note(f"{error}. Blocks are taken all the same; trying again.")
            pause_s = self._run.away_s
        self._run.report(self._job.warehouse, self._job.coverage)
        self._upkeep.is_behind = False
        self._upkeep.closed_until_us = self._job.coverage.closed_until_us()
        self._keeping_up.ask()
        return pause_s

    def _refine_all(self) -> bool:
        """Bring all that bronze has into silver and gold; return whether there was anything."""
        from pyspark_quaymaster.errors import QuaymasterError
        from quaymaster_pipeline.jobs.jobs import Summary

        batches, losses = 0, _Losses()
        while True:
            summary = Summary()
            try:
                is_more = self._job.refine(summary)
            except CommitConflict as error:
                losses.add(error, "refined again")
                self._job.reload()
                continue
            self._run.shown.keep(summary)
            if not is_more:
                break
            batches += 1
            losses.end()
            if batches % UPKEEP_EVERY_BATCHES == 0:
                self._upkeep.is_behind = True
                self._keeping_up.ask()
        try:
            self._job.commit_positions()
        except QuaymasterError as error:
            note(f"The server was not told how far the tables are: {error}")
        return batches > 0


@contextlib.contextmanager
def ended_by_sigterm(*, is_end: bool) -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does. `is_end`: the command is done then; else it was interrupted."""
    is_asked = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        interrupted = signal.getsignal(signal.SIGINT)
        if callable(interrupted):
            # Spark's ends its jobs first. It may come in the middle of a call to the JVM, or find that gone.
            with contextlib.suppress(RuntimeError, OSError):
                interrupted(signal.SIGINT, frame)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if not (is_asked and is_end):
            raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """What goes wrong with the feed is told by a sentence: it ends the command, unless it waits until that is over.

    Raises:
        CommandRefused: it is another feed.
        IngestStopped: it has what cannot be taken yet.
        NoServer: it does not answer.
    """
    from pyspark_quaymaster.errors import QuaymasterError
    from quaymaster_pipeline.usage.feed import FeedChanged, FeedIncomplete, NewerBlocks

    try:
        yield
    except FeedChanged as error:
        raise CommandRefused(as_sentence(error)) from None
    except (FeedIncomplete, NewerBlocks) as error:
        raise IngestStopped(error) from None
    except QuaymasterError as error:
        raise NoServer(as_sentence(f"The usage queue cannot be read: {error}")) from None

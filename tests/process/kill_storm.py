"""Kills a loaded server again and again, and judges what its clients saw: the long run behind `test_kill`.

    python -m process.kill_storm --kills 200 [--seed N] [--keep DIR]      (with tests/ on the path)

A kill comes at a random moment, while the server starts or ends, while it writes a snapshot or opens a segment.
Segments, snapshots and the body cache are small, so that all of these happen all the time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from harness.checker import Verdict, check
from harness.history import ServerEnded
from harness.load import Load
from harness.process import ProcessFailed, QuaymasterProcess

SETTINGS = {
    "segment_bytes_max": str(1 << 20),
    "snapshot_interval_s": "1",
    "snapshot_records": "2000",
    "body_cache_bytes": str(256 << 10),
    "disk_low_bytes": str(64 << 20),
    "purge_interval_s": "0",
    "queue_name_reuse_s": "0",
    "slow_request_ms": "0",
}
DRAIN_TIMEOUT_S = 600.0
WATCH_S = 3.0
LOGGED = ("segment compacted", "move task ended", "queue created", "queue deleted", " warning ", " error ")
RECOVERY = re.compile(r"broker started .* recovery_ms=(\d+)")


class StormResult(NamedTuple):
    """What came of a storm. Restart times are from the start of the process until it is ready, in seconds."""

    verdict: Verdict
    kills: Counter[str]
    restarts_s: list[float]
    calls: int
    load_s: float
    drain_s: float
    events: Counter[str]
    """How often the server's log says that something happened."""
    recoveries_ms: list[int]
    """How long each start took from opening the journal to the end of its replay."""

    def report(self) -> str:
        """Return figures and violations as lines of text."""
        times = sorted(self.restarts_s)
        recoveries = sorted(self.recoveries_ms)
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kills.most_common())
        return "\n".join(
            (
                f"kills {self.kills.total()} ({kinds}); {self.calls} calls in {self.load_s:.0f} s, "
                f"drained in {self.drain_s:.0f} s",
                ", ".join(f"{what}: {count}" for what, count in self.events.items()),
                f"restarts {len(times)}: median {statistics.median(times):.2f} s, max {times[-1]:.2f} s; "
                f"of that recovery: median {statistics.median(recoveries):.0f} ms, max {recoveries[-1]} ms",
                self.verdict.report(),
            )
        )


class Storm:
    """One server, one load, many kills."""

    def __init__(self, directory: Path, *, seed: int, workers: int = 6, pause_s: float = 0.004) -> None:
        self._random = Random(seed)
        self._process = QuaymasterProcess(directory / "data", settings=SETTINGS)
        self._journal = directory / "data" / "journals" / "0"
        self._kills: Counter[str] = Counter()
        self._restarts_s: list[float] = []
        self._process.start()
        try:
            self.load = Load(
                self._process.env(), self._process.listen_port, workers=workers, seed=seed, pause_s=pause_s
            )
            self.load.create_queues()
        except BaseException:
            self._process.kill9()
            raise

    def run(self, kills: int, *, say: Callable[[str], None] = lambda text: None) -> StormResult:
        """Kill the server so many times under load, then drain it and judge. The server is stopped at the end.

        Raises:
            ProcessFailed: the server did not start again, or did not end with 0.
        """
        started = time.monotonic()
        load = self.load
        try:
            load.start()
            while self._kills.total() < kills:
                self._let_it_work()
                self._kill_and_restart()
                load.raise_errors()
                if self._kills.total() % 10 == 0:
                    say(
                        f"{self._kills.total()} kills, {load.figures.calls} calls, {time.monotonic() - started:.0f} s"
                    )
            load.work_until(60 * kills)
            load.stop()
            load_s = time.monotonic() - started
            started = time.monotonic()
            load.drain(DRAIN_TIMEOUT_S)
            drain_s = time.monotonic() - started
            self._process.stop()
        finally:
            if self._process.is_running:
                self._process.kill9()
        verdict = check(load.history)
        events, recoveries_ms = self._logged()
        return StormResult(
            verdict, self._kills, self._restarts_s, load.figures.calls, load_s, drain_s, events, recoveries_ms
        )

    def _logged(self) -> tuple[Counter[str], list[int]]:
        found: Counter[str] = Counter(dict.fromkeys(LOGGED, 0))
        recoveries_ms: list[int] = []
        with self._process.log_path.open(encoding="utf-8", errors="replace") as log:
            for line in log:
                found.update(what for what in LOGGED if what in line)
                if (match := RECOVERY.search(line)) is not None:
                    recoveries_ms.append(int(match[1]))
        return found, recoveries_ms

    def _let_it_work(self) -> None:
        """Wait until the moment of the next kill."""
        choice = self._random.random()
        if choice < 0.25:
            self._wait_for_file("snapshots", "snapshot")
        elif choice < 0.4:
            self._wait_for_file(".", "segment")
        else:
            # Compaction looks every five seconds, so now and then a server lives longer.
            time.sleep(self._random.uniform(6, 9) if choice > 0.93 else self._random.uniform(0.1, 2.5))
            self._kind = "any time"

    def _wait_for_file(self, folder: str, kind: str) -> None:
        """Wait until a file appears in a folder of the journal, and a moment longer."""
        path = self._journal / folder
        self._kind = kind
        deadline = time.monotonic() + WATCH_S
        before = _names(path)
        while time.monotonic() < deadline:
            time.sleep(0.002)
            if _names(path) - before:
                time.sleep(self._random.uniform(0, 0.02))
                return

    def _kill_and_restart(self) -> None:
        process = self._process
        if self._random.random() < 0.1:
            self._kill_while_it_ends()
        else:
            self._kill(process.kill9, self._kind)
        is_counted = self._random.random() < 0.5
        if is_counted:
            self.load.pause()
        while self._restarts_s and self._random.random() < 0.2:
            moment_s = self._random.uniform(0.2, 1.1) * statistics.median(self._restarts_s)
            self._kill_while_it_starts(moment_s)
        if not process.is_running:
            started = time.monotonic()
            process.start(timeout_s=120)
            self._restarts_s.append(time.monotonic() - started)
        if is_counted:
            self.load.note_counts()
            self.load.resume()

    def _kill_while_it_starts(self, moment_s: float) -> None:
        """Start the server and kill it after a moment, unless it serves by then."""
        process = self._process
        if process.is_running:
            return
        invoked_ns = time.monotonic_ns()
        try:
            process.start(timeout_s=moment_s)
        except ProcessFailed as error:
            if "not ready after" not in str(error):
                raise
            self._note_end(invoked_ns, "start")

    def _kill_while_it_ends(self) -> None:
        """Ask the server to end and kill it a moment later, unless it has ended by then."""
        invoked_ns = time.monotonic_ns()
        try:
            self._process.stop(timeout_s=self._random.uniform(0, 0.4))
        except ProcessFailed as error:
            if "still running" not in str(error):
                raise
        self._note_end(invoked_ns, "end")

    def _kill(self, kill: Callable[[], None], kind: str) -> None:
        invoked_ns = time.monotonic_ns()
        kill()
        self._note_end(invoked_ns, kind)

    def _note_end(self, invoked_ns: int, kind: str) -> None:
        self.load.add(ServerEnded(invoked_ns, time.monotonic_ns(), f"kill -9: {kind}"))
        self._kills[kind] += 1


def _names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()


def put_away(directory: Path, keep: Path | None, load: Load | None) -> None:
    """Remove a run's directory, or keep it with the history of its load."""
    if keep is None:
        shutil.rmtree(directory)
        return
    if load is not None:
        load.history.save(directory / "history.jsonl")
    shutil.move(directory, keep)
    print(f"kept in {keep}", flush=True)


def main() -> int:
    """Run a storm from the command line; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--pause-ms", type=float, default=4.0, help="a worker's rest between operations")
    parser.add_argument("--keep", type=Path, help="where data and history of a run with violations go")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="kill-storm-"))
    storm = Storm(directory, seed=given.seed, workers=given.workers, pause_s=given.pause_ms / 1000)
    is_kept = True
    try:
        result = storm.run(given.kills, say=lambda text: print(text, flush=True))
        print(result.report(), flush=True)
        is_kept = bool(result.verdict.violations)
    finally:
        put_away(directory, given.keep if is_kept else None, storm.load)
    return int(is_kept)


if __name__ == "__main__":
    sys.exit(main())

"""Runs the server for long under mixed traffic, kills and restarts it, and judges what its clients saw.

    python -m process.soak --minutes 60 [--seed N] [--json FILE] [--keep DIR]      (with tests/ on the path)

```
    fill kept ──▶ stretch 1 ──▶ stretch 2 ──▶ ... ──▶ stretch n ──▶ drain kept, judge it ──▶ report
                     │
                     └─ load, ended by kill -9 and SIGTERM ──▶ drain ──▶ at rest: RAM, disk ──▶ judge ──▶ forget
```

A history of an hour is not kept: each stretch has its own, which is judged when its queues are drained. So the
figures at the end of stretches are comparable as well: the server then holds the same, the messages of two queues
that were sent before the first stretch and are received after the last. The middle third has no end of a process in
it, so that one lives long enough to show what it collects.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
from harness.checker import Verdict, check
from harness.history import ServerEnded
from harness.load import Load, kept_queues
from harness.process import QuaymasterProcess

from process.kill_storm import put_away

SETTINGS = {
    "segment_bytes_max": str(4 << 20),
    "snapshot_interval_s": "20",
    "body_cache_bytes": str(8 << 20),
    "disk_low_bytes": str(64 << 20),
    "purge_interval_s": "0",
    "queue_name_reuse_s": "0",
    "slow_request_ms": "0",
}
ACKNOWLEDGED_PER_S_MIN = 20
DRAIN_TIMEOUT_S = 900.0
START_TIMEOUT_S = 120.0
REST_S = 2.0
"""How long the server is left alone before its figures at rest are taken."""
SAMPLES_MAX = 2_000
CLEAN_EVERY = 5
"""Of so many ends of the process one is a SIGTERM, the others are kill -9."""
ORDER_RULES = ("I18",)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOGGED_MAX = 50
RECOVERY = re.compile(r"broker started .* recovery_ms=(\d+)")

Say = Callable[[str], None]


class Sample(msgspec.Struct, frozen=True):
    """What the server took at a moment. `process_age_s` is since the last start of its process."""

    time_s: float
    process_age_s: float
    rss_bytes: int
    disk_bytes: int
    file_descriptors: int
    threads: int
    cpu_s: float
    """Of this process since its start."""


class Stretch(msgspec.Struct):
    """One part of the run: what was done and found in it, and what the server took."""

    number: int
    load_s: float = 0.0
    drain_s: float = 0.0
    calls: int = 0
    broken: int = 0
    """Calls without an answer: the server was killed, or not there yet."""
    kills: int = 0
    clean_ends: int = 0
    acknowledged: int = 0
    unknown: int = 0
    delivered: int = 0
    deleted: int = 0
    moved: int = 0
    lost: int = 0
    invented: int = 0
    disordered: int = 0
    other_violations: int = 0
    rss_bytes_max: int = 0
    disk_bytes_max: int = 0
    at_rest: Sample | None = None

    def take(self, verdict: Verdict) -> None:
        """Add what the checker found."""
        self.acknowledged += verdict.acknowledged
        self.unknown += verdict.unknown
        self.delivered += verdict.delivered
        self.deleted += verdict.deleted
        self.moved += verdict.moved
        self.lost += verdict.lost
        self.invented += verdict.invented
        disordered = sum(verdict.counts_by_rule[rule] for rule in ORDER_RULES)
        self.disordered += disordered
        self.other_violations += (
            sum(verdict.counts_by_rule.values()) - verdict.lost - verdict.invented - disordered
        )


class SoakResult(msgspec.Struct):
    """What came of a soak. The last stretch is the messages that were kept from the first moment to the last."""

    seed: int
    seconds: float
    before: Sample
    """At rest, before the first stretch."""
    after: Sample
    """At rest, after the last one; the same messages are kept as before it."""
    stretches: list[Stretch]
    kept: Stretch
    samples: list[Sample]
    violations: list[str]
    restarts_s: list[float]
    recoveries_ms: list[int]
    warnings: list[str]
    errors: list[str]
    """Lines of the server's log, at most LOGGED_MAX."""
    checker_rss_bytes_max: int

    def total(self, name: str) -> int:
        """Return the sum of a figure over everything."""
        return sum(getattr(stretch, name) for stretch in (*self.stretches, self.kept))

    def report(self) -> str:
        """Return the run as a table in Markdown, and its violations."""
        columns = (
            *("Stretch", "Calls", "Acknowledged", "Delivered", "kill -9", "SIGTERM"),
            *("Lost", "Invented", "Out of order", "Other"),
            *("RAM max", "RAM at rest", "Disk max", "Disk at rest", "FDs", "Threads", "Process age"),
        )
        lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        lines.append(_row("before", None, self.before))
        lines += [_row(str(one.number), one, one.at_rest) for one in self.stretches]
        lines.append(_row("kept", self.kept, self.kept.at_rest))
        restarts = sorted(self.restarts_s) or [0.0]
        recoveries = sorted(self.recoveries_ms) or [0]
        lines += [
            "",
            f"{self.seconds / 60:.1f} minutes, seed {self.seed}: {self.total('calls')} calls, "
            f"{self.total('kills')} kill -9, {self.total('clean_ends')} SIGTERM; "
            f"{self.total('acknowledged')} messages acknowledged, {self.total('delivered')} deliveries: "
            f"lost {self.total('lost')}, invented {self.total('invented')}, "
            f"out of order {self.total('disordered')}, other violations {self.total('other_violations')}",
            f"restarts: median {restarts[len(restarts) // 2]:.2f} s, max {restarts[-1]:.2f} s; of that recovery: "
            f"median {recoveries[len(recoveries) // 2]} ms, max {recoveries[-1]} ms; "
            f"warnings logged {len(self.warnings)}, errors {len(self.errors)}; "
            f"RAM of load and checker at most {_mib(self.checker_rss_bytes_max)}",
        ]
        return "\n".join([*lines, *self.warnings, *self.errors, *self.violations])


def _row(name: str, stretch: Stretch | None, rest: Sample | None) -> str:
    done: list[object] = [""] * 9
    highest: tuple[str, str] = ("", "")
    if stretch is not None:
        done = [stretch.calls, stretch.acknowledged, stretch.delivered, stretch.kills, stretch.clean_ends]
        done += [stretch.lost, stretch.invented, stretch.disordered, stretch.other_violations]
        highest = (_mib(stretch.rss_bytes_max), _mib(stretch.disk_bytes_max))
    took: list[object] = [highest[0], "", highest[1], "", "", "", ""]
    if rest is not None:
        took = [highest[0], _mib(rest.rss_bytes), highest[1], _mib(rest.disk_bytes), rest.file_descriptors]
        took += [rest.threads, f"{rest.process_age_s:.0f} s"]
    return "| " + " | ".join(str(cell) for cell in (name, *done, *took)) + " |"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


class Sampler:
    """Looks at the server's process and directory now and then, from a thread of its own."""

    def __init__(self, process: QuaymasterProcess, interval_s: float) -> None:
        self.samples: list[Sample] = []
        self._process = process
        self._interval_s = interval_s
        self._began = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def look(self) -> Sample | None:
        """Return what the server takes now; None when it does not run."""
        try:
            return self._look(self._process.pid)
        except (OSError, AssertionError, ValueError, LookupError):  # it ended while we looked
            return None

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            if len(self.samples) < SAMPLES_MAX and (sample := self.look()) is not None:
                self.samples.append(sample)

    def _look(self, pid: int) -> Sample:
        facts = Path(f"/proc/{pid}")
        status = dict(
            line.split(":", 1) for line in (facts / "status").read_text().splitlines() if ":" in line
        )
        fields = (facts / "stat").read_text().rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        return Sample(
            time_s=round(time.monotonic() - self._began, 1),
            process_age_s=round(uptime_s - int(fields[19]) / TICKS_PER_S, 1),
            rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
            disk_bytes=disk_use(self._process.data),
            file_descriptors=len(os.listdir(facts / "fd")),
            threads=int(status["Threads"]),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        )


def disk_use(directory: Path) -> int:
    """Return the bytes of disk that the files below a directory take."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total


class Soak:
    """One server, one load after the other, for as long as is wanted."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        stretches: int = 12,
        stretch_s: float = 300.0,
        life_s: float = 60.0,
        kept_messages: int = 20_000,
        workers: int = 4,
        pause_s: float = 0.02,
        sample_s: float = 5.0,
    ) -> None:
        """Prepare a soak of so many stretches.

        `life_s` is how long a process lives on average, `kept_messages` how many wait in each of the kept queues
        from the start to the end, `pause_s` how long a worker rests between operations.
        """
        self.load: Load | None = None
        """That of the present stretch; with violations, that which showed them first."""
        self._random = Random(seed)
        self._seed = seed
        self._stretches = stretches
        self._stretch_s = stretch_s
        self._life_s = life_s
        self._kept_messages = kept_messages
        self._workers = workers
        self._pause_s = pause_s
        self._sample_s = sample_s
        self._process = QuaymasterProcess(directory / "data", settings=SETTINGS)
        self._kept: Load
        self._restarts_s: list[float] = []
        self._violations: list[str] = []

    def run(self, *, say: Say = lambda text: None) -> SoakResult:
        """Do it all; the server is stopped at the end.

        Raises:
            ProcessFailed: the server did not start again, or did not end with 0.
        """
        began = time.monotonic()
        process = self._process
        process.start()
        sampler = Sampler(process, self._sample_s)
        try:
            self._kept = Load(process.env(), process.listen_port, queues=kept_queues(), workers=0, run=999)
            self._kept.create_queues()
            self._kept.fill(self._kept_messages)
            before = self._at_rest(sampler)
            done: list[Stretch] = []
            for number in range(1, self._stretches + 1):
                done.append(self._run_stretch(number, sampler))
                say(_row(str(number), done[-1], done[-1].at_rest))
            kept = self._take_kept(sampler)
            process.stop()
        finally:
            sampler.stop()
            if process.is_running:
                process.kill9()
        log = process.log_path.read_text(encoding="utf-8", errors="replace")
        after = done[-1].at_rest
        assert after is not None, "a server at rest can be looked at"
        return SoakResult(
            seed=self._seed,
            seconds=round(time.monotonic() - began, 1),
            before=before,
            after=after,
            stretches=done,
            kept=kept,
            samples=sampler.samples,
            violations=self._violations,
            restarts_s=[round(one, 3) for one in self._restarts_s],
            recoveries_ms=[int(match[1]) for match in RECOVERY.finditer(log)],
            warnings=_lines_of(log, "warning"),
            errors=_lines_of(log, "error"),
            checker_rss_bytes_max=_own_rss_bytes_max(),
        )

    def _run_stretch(self, number: int, sampler: Sampler) -> Stretch:
        stretch = Stretch(number)
        process = self._process
        load = Load(
            process.env(),
            process.listen_port,
            workers=self._workers,
            seed=self._seed + number,
            pause_s=self._pause_s,
            run=number,
        )
        if not self._violations:
            self.load = load
        load.create_queues()
        seen = len(sampler.samples)
        began = time.monotonic()
        load.start()
        until = began + self._stretch_s
        # However slow the machine is, processes end and the load does something.
        owes_an_end = not self._is_quiet(number)
        while (left_s := until - time.monotonic()) > 0 or owes_an_end:
            life_s = self._life_s * self._random.uniform(0.5, 1.5)
            if owes_an_end or not (self._is_quiet(number) or life_s > left_s):
                time.sleep(life_s)
                self._end_and_restart(load, stretch)
                owes_an_end = False
            else:
                time.sleep(left_s)
            load.raise_errors()
        load.work_until(round(ACKNOWLEDGED_PER_S_MIN * self._stretch_s))
        load.stop()
        stretch.load_s = round(time.monotonic() - began, 1)
        began = time.monotonic()
        load.drain(DRAIN_TIMEOUT_S)
        stretch.drain_s = round(time.monotonic() - began, 1)
        stretch.at_rest = self._at_rest(sampler)
        _note_highest(stretch, [*sampler.samples[seen:], stretch.at_rest])
        self._judge(load, stretch)
        return stretch

    def _is_quiet(self, number: int) -> bool:
        """Tell whether no process ends in this stretch: it is in the middle third, or near it."""
        return self._stretches // 3 < number <= self._stretches - self._stretches // 3 and self._stretches > 2

    def _end_and_restart(self, load: Load, stretch: Stretch) -> None:
        process = self._process
        is_clean = len(self._restarts_s) % CLEAN_EVERY == 1
        invoked_ns = time.monotonic_ns()
        if is_clean:
            process.stop()
            stretch.clean_ends += 1
        else:
            process.kill9()
            stretch.kills += 1
        ended = ServerEnded(invoked_ns, time.monotonic_ns(), "SIGTERM" if is_clean else "kill -9")
        load.add(ended)
        self._kept.add(ended)
        is_counted = self._random.random() < 0.5
        if is_counted:
            load.pause()
        started = time.monotonic()
        process.start(timeout_s=START_TIMEOUT_S)
        self._restarts_s.append(time.monotonic() - started)
        if is_counted:
            load.note_counts()
            load.resume()

    def _take_kept(self, sampler: Sampler) -> Stretch:
        """Receive what was sent before everything else."""
        stretch = Stretch(0)
        seen = len(sampler.samples)
        began = time.monotonic()
        self._kept.note_counts()
        self._kept.drain(DRAIN_TIMEOUT_S)
        stretch.drain_s = round(time.monotonic() - began, 1)
        stretch.at_rest = self._at_rest(sampler)
        _note_highest(stretch, [*sampler.samples[seen:], stretch.at_rest])
        self._judge(self._kept, stretch)
        return stretch

    def _judge(self, load: Load, stretch: Stretch) -> None:
        stretch.calls = load.figures.calls
        stretch.broken = load.figures.broken
        verdict = check(load.history)
        stretch.take(verdict)
        if verdict.violations and not self._violations:
            self.load = load
        self._violations += [
            f"stretch {stretch.number}: {found.rule} {found.queue}: {found.text}"
            for found in verdict.violations
        ]

    @staticmethod
    def _at_rest(sampler: Sampler) -> Sample:
        time.sleep(REST_S)
        sample = sampler.look()
        assert sample is not None, "a server at rest can be looked at"
        return sample


def _lines_of(log: str, level: str) -> list[str]:
    found = re.findall(rf"^\S+ {level} .*$", log, re.MULTILINE)
    return [str(line)[:1_000] for line in found[:LOGGED_MAX]]


def _note_highest(stretch: Stretch, samples: list[Sample]) -> None:
    stretch.rss_bytes_max = max(sample.rss_bytes for sample in samples)
    stretch.disk_bytes_max = max(sample.disk_bytes for sample in samples)


def _own_rss_bytes_max() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> int:
    """Run a soak from the command line; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of load; draining and judging come on top"
    )
    parser.add_argument("--stretch-minutes", type=float, default=5.0, help="what is judged at once")
    parser.add_argument("--life-s", type=float, default=45.0, help="how long a process lives on average")
    parser.add_argument(
        "--kept", type=int, default=20_000, help="messages that wait in each of two queues all the time"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=30.0, help="a worker's rest between operations")
    parser.add_argument("--json", type=Path, help="where the result goes, with all samples")
    parser.add_argument("--keep", type=Path, help="where data and history of a run with violations go")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    stretches = max(1, round(given.minutes / given.stretch_minutes))
    soak = Soak(
        directory,
        seed=given.seed,
        stretches=stretches,
        stretch_s=given.minutes * 60 / stretches,
        life_s=given.life_s,
        kept_messages=given.kept,
        workers=given.workers,
        pause_s=given.pause_ms / 1000,
    )
    is_kept = True
    try:
        result = soak.run(say=lambda text: print(text, flush=True))
        print(result.report(), flush=True)
        if given.json is not None:
            given.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        is_kept = bool(result.violations)
    finally:
        put_away(directory, given.keep if is_kept else None, soak.load)
    return int(is_kept)


if __name__ == "__main__":
    sys.exit(main())

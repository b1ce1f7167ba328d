"""Does everything bad to a cell of real processes while clients use it, and judges what they saw.

    python -m nemesis.nemesis --minutes 60 [--seed N] [--json FILE] [--keep DIR]      (with tests/ on the path)

```
    cell up ──▶ stretch 1 ──▶ stretch 2 ──▶ ... ──▶ stretch n ──▶ cell down ──▶ report
                   │
                   └─ load, with one fault after the other ──▶ all healed ──▶ drain ──▶ judge ──▶ forget
```

Clients speak by hand and through boto3. Each stretch has a history of its own: sends that were acknowledged, from its
first moment to its last, must come out when it is drained, unaltered, once if they are FIFO, and in order.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
from harness.boto import BotoClient
from harness.checker import Verdict, check
from harness.load import Load, LoadQueue, mixed_queues
from harness.process import ProcessFailed
from process.kill_storm import put_away

from .cell import Cell
from .faults import (
    CLOCK_SET,
    DISK_LOST,
    FRONT_END_CLOCKS,
    METADATA_CLOCKS,
    TOO_FAR_OFF,
    Fault,
    Nemesis,
)
from .partition_changes import PartitionChanges, wait_for_changes
from .probes import INTERVAL_S, Probes

DRAIN_TIMEOUT_S = 600.0
CALL_TIMEOUT_S = 8.0
"""How long a client waits for an answer before it goes to the other front end: long polls here are a second at most."""
ACKNOWLEDGED_MIN = 30
"""For each fault."""
CHANGES_MIN = 4
"""Of partitions, in each stretch."""
PAUSE_S = 0.03
"""Between the operations of a worker; longer by as much as faults are shorter, which leave the cell more to do."""
LEFT_OUT = frozenset({"memory", "short", "emptied", "remade-1", "remade-2"})
"""Queues whose messages may go without a delete: they would hide a loss."""
SHORT_FAULTS = (
    *("leader killed", "broker paused", "broker cut off", "pause, kill, resume, restart", "disk full"),
    *("broker cut off one way", "etcd killed", "disk slow", "manager killed", "front end killed"),
    *(CLOCK_SET, DISK_LOST, *FRONT_END_CLOCKS, *METADATA_CLOCKS),
)

Say = Callable[[str], None]


def cell_queues(arn_prefix: str) -> list[LoadQueue]:
    """Return the queues of the load: all kinds from which nothing goes by itself."""
    return [queue for queue in mixed_queues(arn_prefix) if queue.facts.name not in LEFT_OUT]


class Totals(msgspec.Struct):
    """What the clients saw, over all stretches."""

    calls: int = 0
    unavailable: int = 0
    """Calls answered with 5xx."""
    broken: int = 0
    """Calls without an answer."""
    acknowledged: int = 0
    unknown: int = 0
    delivered: int = 0
    redelivered: int = 0
    deleted: int = 0
    lost: int = 0
    invented: int = 0
    disordered: int = 0
    duplicated: int = 0
    """Sends stored twice: allowed in a standard queue, when a client tries again while an answer is lost."""
    other_violations: int = 0

    def take(self, verdict: Verdict, load: Load) -> None:
        """Add what came of a stretch."""
        self.calls += load.figures.calls
        self.unavailable += load.figures.unavailable
        self.broken += load.figures.broken
        self.acknowledged += verdict.acknowledged
        self.unknown += verdict.unknown
        self.delivered += verdict.delivered
        self.redelivered += verdict.redelivered
        self.deleted += verdict.deleted
        self.duplicated += verdict.stored_again
        self.lost += verdict.lost
        self.invented += verdict.invented
        self.disordered += verdict.counts_by_rule["I18"]
        self.other_violations += sum(verdict.counts_by_rule.values()) - sum(
            verdict.counts_by_rule[rule] for rule in ("I15", "I16", "I18")
        )


class NemesisResult(msgspec.Struct):
    """What came of a run."""

    seed: int
    seconds: float
    totals: Totals
    faults: list[Fault]
    ends: dict[str, int]
    """Processes that ended by themselves."""
    refused: dict[str, int]
    """What calls were refused with, 4xx."""
    violations: list[str]
    errors: list[str]
    """Lines of the processes' logs."""

    @property
    def longest_unavailability_s(self) -> float:
        """Return the longest time in which no queue at all took a message."""
        return max((fault.service_gap_s for fault in self.faults), default=0.0)

    def gaps_s(self, kind: str) -> list[float]:
        """Return how long a queue took no message, at most, for each fault of a kind; in order of length."""
        return sorted(fault.queue_gap_s for fault in self.faults if fault.kind == kind)

    def report(self) -> str:
        """Return the run as a table in Markdown, and its violations."""
        by_kind: dict[str, list[Fault]] = defaultdict(list)
        for fault in self.faults:
            by_kind[fault.kind].append(fault)
        lines = [
            "| Fault | Times | Queue gap median | max | Service gap max | Recovered max |",
            "|---|---|---|---|---|---|",
        ]
        for kind, faults in sorted(by_kind.items()):
            gaps = self.gaps_s(kind)
            service = max(fault.service_gap_s for fault in faults)
            settled = max(fault.settled_ns - fault.healed_ns for fault in faults) / 1e9
            lines.append(
                f"| {kind} | {len(faults)} | {statistics.median(gaps):.2f} s | {gaps[-1]:.2f} s "
                f"| {service:.2f} s | {settled:.1f} s |"
            )
        totals = self.totals
        violations = totals.disordered + totals.other_violations
        lines += [
            "",
            f"{self.seconds / 60:.1f} minutes, seed {self.seed}: {len(self.faults)} faults; {totals.calls} calls "
            f"({totals.unavailable} answered 5xx, {totals.broken} not at all)",
            f"messages acknowledged {totals.acknowledged}, unknown {totals.unknown}, delivered {totals.delivered} "
            f"(again {totals.redelivered}), deleted {totals.deleted}: lost {totals.lost}, invented "
            f"{totals.invented}, stored twice {totals.duplicated}, out of order {totals.disordered}, "
            f"violations of other rules {violations - totals.disordered}",
            f"longest unavailability of the service {self.longest_unavailability_s:.2f} s",
        ]
        if gaps := self.gaps_s("leader killed"):
            lines.append(
                f"gap after a killed leader: median {statistics.median(gaps):.2f} s, max {gaps[-1]:.2f} s ({len(gaps)})"
            )
        lines += [f"{what}: {times}" for what, times in self.ends.items()]
        return "\n".join([*lines, *self.errors[:20], *self.violations])


class Storm:
    """One cell, one load after the other, faults all the time."""

    def __init__(
        self, cell: Cell, *, seed: int, shorter: float = 1.0, changes_partitions: bool = False
    ) -> None:
        """`changes_partitions`: the load's queues are split, merged and moved all the time."""
        self.changes: list[PartitionChanges] = []
        """Of each stretch."""
        self._changes_partitions = changes_partitions
        self.load: Load | None = None
        """That of the present stretch; with violations, that which showed them first."""
        self._cell = cell
        self._shorter = shorter
        self._seed = seed
        self._random = Random(seed)
        self._probes = Probes(
            cell.environment(),
            cell.addresses,
            interval_s=INTERVAL_S * shorter,
            clock_offsets_ms=cell.clock_offsets_ms,
        )
        self._nemesis = Nemesis(cell, self._probes, self._random, shorter=shorter)
        self._totals = Totals()
        self._violations: list[str] = []
        self._refused: Counter[str] = Counter()

    def run_for(self, minutes: float, stretch_minutes: float, *, say: Say = print) -> NemesisResult:
        """Do faults by chance for so long."""
        began = time.monotonic()
        self._probes.start()
        try:
            number = 0
            while (left_s := began + minutes * 60 - time.monotonic()) > 0:
                number += 1
                until = time.monotonic() + min(left_s, stretch_minutes * 60)
                self._run_stretch(number, lambda until=until: time.monotonic() < until, None, say)  # type: ignore[misc]
        finally:
            self._probes.stop()
        return self._result(began)

    def run_faults(self, kinds: Sequence[str], *, say: Say = print) -> NemesisResult:
        """Do these faults in one stretch."""
        began = time.monotonic()
        self._probes.start()
        try:
            self._run_stretch(1, lambda: True, list(kinds), say)
        finally:
            self._probes.stop()
        return self._result(began)

    def _run_stretch(
        self, number: int, may_go_on: Callable[[], bool], kinds: list[str] | None, say: Say
    ) -> None:
        load = self._new_load(number)
        if not self._violations:
            self.load = load
        load.create_queues()
        load.start()
        changes = None
        if self._changes_partitions:
            changes = PartitionChanges(self._cell, [queue.facts.name for queue in load.queues], self._random)
            self.changes.append(changes)
            changes.start()
        faults = 0
        try:
            while may_go_on() and (kinds is None or kinds):
                fault = self._nemesis.do(kinds.pop(0) if kinds else self._nemesis.choose())
                faults += 1
                load.add(fault.disturbance())
                load.raise_errors()
                say(
                    f"{fault.kind}: {fault.detail}; gap of a queue {fault.queue_gap_s:.2f} s, "
                    f"of the service {fault.service_gap_s:.2f} s"
                )
            # A slow machine takes longer for what means something.
            load.work_until(ACKNOWLEDGED_MIN * faults)
            if changes is not None:
                wait_for_changes(changes, CHANGES_MIN)
        finally:
            if changes is not None:
                changes.stop()
            load.stop()
        if changes is not None:
            changes.settle()
        began = time.monotonic()
        load.drain(DRAIN_TIMEOUT_S)
        verdict = check(load.history)
        self._totals.take(verdict, load)
        self._refused.update(load.figures.refused)
        self._violations += [
            f"stretch {number}: {found.rule} {found.queue}: {found.text}" for found in verdict.violations
        ]
        say(f"stretch {number}, drained in {time.monotonic() - began:.0f} s: {verdict.report()}")

    def _new_load(self, number: int) -> Load:
        environment, addresses = self._cell.environment(), self._cell.addresses
        prefix = f"arn:aws:sqs:{environment.region}:{environment.account_id}:"
        return Load(
            environment,
            addresses,
            queues=cell_queues(prefix),
            workers=4,
            seed=self._seed + number,
            pause_s=PAUSE_S * self._shorter,
            large_share=0.001,
            run=number,
            timeout_s=CALL_TIMEOUT_S,
            clock_offsets_ms=self._cell.clock_offsets_ms,
            clients=[
                BotoClient(environment, addresses, timeout_s=CALL_TIMEOUT_S, first=first)
                for first in range(2)
            ],
        )

    def _check_refusals(self) -> None:
        """Requests are refused for their time only where the clock of a front end was wrong."""
        refused = sum(count for what, count in self._refused.items() if TOO_FAR_OFF.search(what))
        if refused and not any(fault.kind in FRONT_END_CLOCKS for fault in self._nemesis.faults):
            self._violations.append(
                f"{refused} requests refused for their time, and no front end's clock was wrong"
            )

    def _result(self, began: float) -> NemesisResult:
        self._check_refusals()
        errors = [
            f"{member.name}: {line[:400]}"
            for member in self._cell.members
            if member.role != "etcd"
            for line in member.log_path.read_text(errors="replace").splitlines()
            if " error " in line
        ]
        return NemesisResult(
            seed=self._seed,
            seconds=round(time.monotonic() - began, 1),
            totals=self._totals,
            faults=self._nemesis.faults,
            ends=dict(self._cell.ends),
            refused=dict(self._refused),
            violations=self._violations,
            errors=errors,
        )


def main() -> int:
    """Run the nemesis from the command line; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of load; draining comes on top")
    parser.add_argument("--stretch-minutes", type=float, default=5.0, help="what is judged at once")
    parser.add_argument("--faults", help="only these, once each: names separated by semicolons")
    parser.add_argument("--etcd", type=int, default=3, choices=(1, 3), help="members of etcd")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--keep", type=Path, help="where logs and history go")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="nemesis-"))
    storm: Storm | None = None
    is_broken = True

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    try:
        with Cell.started(directory, etcd_members=given.etcd) as cell:
            storm = Storm(cell, seed=given.seed)
            if given.faults:
                result = storm.run_faults([name.strip() for name in given.faults.split(";")], say=say)
            else:
                result = storm.run_for(given.minutes, given.stretch_minutes, say=say)
        print(result.report(), flush=True)
        if given.json is not None:
            given.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        is_broken = bool(result.violations)
    except ProcessFailed as error:
        print(error, flush=True)
    finally:
        put_away(directory, given.keep, storm.load if storm else None)
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main())

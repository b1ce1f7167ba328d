"""What the usage pipeline costs on a laptop: memory, idle processor time, bytes a day, seconds from a request to gold.

    python -m bench laptop [--idle 120] [--used 240] [--rate 2] [--samples 12]

A server and `quaymaster pipeline run` are started as `make run` and `make run-pipeline` do, with their own intervals.
First no request comes (`--idle` seconds). Then `--rate` come a second for `--used` seconds, and samples as those of
`freshness`.

    goals         1.2 GiB of memory, 3 % of a core when idle, 50 MB a day, request to gold 6 s (p50) and 9 s (p95)
    peak_mib      the largest sum of the resident memory of the pipeline's processes; shared pages count in each
    idle, used    `cores` of the pipeline; `others_cores` of all else on the machine, as the server and this program;
                  `mb_a_day`: by how much the files of the warehouse grew, as if a day were like this

Simulated: one client at an even rate, and a day, which is extrapolated from minutes. So closes of days, and what is
deleted once a day, are not among the figures, and a laptop that sleeps is not either.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import freshness, machine, processes, servers
from bench.freshness import Waiter, figures_of
from bench.meter import busy_s
from bench.requests import call

GOALS: Final = {"peak_mib": 1229, "idle_cores": 0.03, "mb_a_day": 50, "p50_s": 6, "p95_s": 9}
SIMULATED: Final = (
    "one client at an even rate",
    "a day is extrapolated from minutes: no closes of days, and nothing that is deleted once a day",
)
DAY_S: Final = 86_400
_SAMPLE_S: Final = GOALS["p50_s"]
"""About how long a sample takes itself."""
MEMORY_EVERY_S: Final = 0.5


class Plan(NamedTuple):
    """How long nothing is asked for and how long something is (seconds), how often a second, and how many samples."""

    idle_s: float = 120.0
    used_s: float = 240.0
    rate: float = 2.0
    samples: int = 12


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=float, default=Plan().idle_s)
    parser.add_argument("--used", type=float, default=Plan().used_s)
    parser.add_argument("--rate", type=float, default=Plan().rate)
    parser.add_argument("--samples", type=int, default=Plan().samples)
    given = parser.parse_args()
    plan = Plan(given.idle, given.used, given.rate, given.samples)
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as folder:
        print(json.dumps(measure(Path(folder), plan), indent=2))


def measure(folder: Path, plan: Plan) -> dict[str, Any]:
    """Return the figures of one run."""
    with (
        servers.Running(servers.SERVERS["quaymaster"], folder / "server") as server,
        freshness.running_pipeline(folder) as pipeline,
    ):
        warehouse = folder / "server" / "data" / "warehouse"
        waiter = Waiter(server, warehouse, folder / "pipeline.log", pipeline)
        with Peak(pipeline.pid) as peak:
            for name in ("first", "second"):  # the JVM's first jobs
                waiter.seconds(name)
            phase = Phase(pipeline.pid, warehouse)
            time.sleep(plan.idle_s)
            idle = phase.end()
            phase = Phase(pipeline.pid, warehouse)
            with Load(server, plan.rate) as load:
                samples = take_samples(plan, lambda number: waiter.seconds(f"sample-{number}"))
            used = phase.end()
    found = dict(
        zip(("in_all", "until_looked", "in_batch"), map(figures_of, zip(*samples, strict=True)), strict=True)
    )
    return {
        "machine": machine.describe(),
        "goals": GOALS,
        "simulated": SIMULATED,
        "peak_mib": round(peak.bytes / (1 << 20)),
        "requests": load.requests,
        "idle": idle,
        "used": used,
        **found,
    }


def take_samples(
    plan: Plan, take: Callable[[int], tuple[float, float, float]]
) -> list[tuple[float, float, float]]:
    """Return samples at random moments of about `plan.used_s` seconds, and go on until these are over."""
    began_s, found = time.monotonic(), []
    for number in range(plan.samples):
        left_s = plan.used_s - (time.monotonic() - began_s)
        pause_s = min(left_s, random.random() * 2 * left_s / (plan.samples - number))
        time.sleep(max(0.0, pause_s - _SAMPLE_S))
        found.append(take(number))
    time.sleep(max(0.0, plan.used_s - (time.monotonic() - began_s)))
    return found


class Phase:
    """A time of a run: what its pipeline used, and by how much its warehouse grew."""

    def __init__(self, pid: int, warehouse: Path) -> None:
        self._pid = pid
        self._warehouse = warehouse
        self._began = self._now()

    def _now(self) -> tuple[float, float, float, int]:
        return time.monotonic(), processes.cpu_s(self._pid), busy_s(), size_of(self._warehouse)

    def end(self) -> dict[str, float]:
        """Return the figures until now."""
        took_s, cpu_s, all_s, size = (
            now - began for now, began in zip(self._now(), self._began, strict=True)
        )
        return figures_of_phase(took_s, cpu_s, all_s, int(size))


def figures_of_phase(took_s: float, cpu_s: float, all_cpu_s: float, grown_bytes: int) -> dict[str, float]:
    """Return what is said of a time: processor time of the pipeline, of all else, and bytes for a whole day."""
    return {
        "seconds": round(took_s, 1),
        "cores": round(cpu_s / took_s, 3),
        "others_cores": round(max(0.0, all_cpu_s - cpu_s) / took_s, 2),
        "mb_a_day": round(grown_bytes * DAY_S / took_s / 1e6, 1),
    }


def size_of(folder: Path) -> int:
    """Return how many bytes the files in a folder have. The pipeline deletes none within minutes."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # a file under another name since
    return size


class Peak:
    """The largest sum of the resident memory of a process and all below it, while its block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, processes.memory_bytes(self._pid, "VmRSS"))
            if self._ended.wait(MEMORY_EVERY_S):
                return


class Load:
    """A client that sends one message at a time, so many a second, while its block runs."""

    def __init__(self, server: servers.Running, rate: float) -> None:
        self._server = server
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.requests = 0

    def __enter__(self) -> Load:
        self._url = self._server.create_queue("load")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        began_s = time.monotonic()
        while not self._ended.wait(max(0.0, began_s + self.requests / self._rate - time.monotonic())):
            call(self._server.endpoint, "SendMessage", {"QueueUrl": self._url, "MessageBody": "load"})
            self.requests += 1


if __name__ == "__main__":
    main()

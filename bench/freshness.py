"""Seconds from a request to its line in gold, with a server and `quaymaster pipeline run` on this machine.

    python -m bench freshness [--samples 40] [--every 10]

Without `--every` the pipeline looks as often as it does by itself. Goals on a quiet laptop: 6 s for half of the samples
(p50), 9 s for 95 of 100 (p95). Each sample is one SendMessage to a queue of its own, at a random moment; it is over
when `quaymaster usage` would show it. `until_looked` is the time until the batch began that has it: `usage_sync_ms`
(1 s) in the front end's memory, the way into the usage queue, and the wait for the pipeline's next look. `in_batch` is
the rest: bronze, silver and gold, each with its fsyncs and its commit. JVM and Python workers are warm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import machine, processes, servers
from bench.meter import busy_s
from bench.requests import call
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.usage import read_usage
from quaymaster_pipeline.warehouse.schemas import BLOCKS
from quaymaster_pipeline.warehouse.tables import Warehouse

POLL_S = 0.25
SPREAD_S = 10.0
"""Samples begin up to so long after the last one ended: longer than the pipeline waits by itself."""
PATIENCE_S = 600.0


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--every", type=float, help="seconds between two looks of the pipeline")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as folder:
        print(json.dumps(measure(Path(folder), options.samples, options.every), indent=2))


def measure(folder: Path, samples: int, every_s: float | None) -> dict[str, Any]:
    """Return the figures of so many samples; without `every_s` the pipeline has its own intervals."""
    interval = () if every_s is None else ("--interval", str(every_s))
    with (
        servers.Running(servers.SERVERS["quaymaster"], folder / "server") as server,
        running_pipeline(folder, "--master", "local[2]", *interval) as pipeline,
    ):
        warehouse = folder / "server" / "data" / "warehouse"
        waiter = Waiter(server, warehouse, folder / "pipeline.log", pipeline)
        for name in ("first", "second"):  # the JVM's first jobs
            waiter.seconds(name)
        began_s, busy = time.monotonic(), busy_s()
        used_s = processes.cpu_s(pipeline.pid)
        found = []
        for number in range(samples):
            time.sleep(random.random() * (SPREAD_S if every_s is None else every_s))
            found.append(waiter.seconds(f"sample-{number}"))
        took_s = time.monotonic() - began_s
        used_s = processes.cpu_s(pipeline.pid) - used_s
    return {
        "machine": machine.describe(),
        "every_s": every_s,
        **{
            name: figures_of(values)
            for name, values in zip(
                ("in_all", "until_looked", "in_batch"), zip(*found, strict=True), strict=True
            )
        },
        "pipeline_cores": round(used_s / took_s, 2),
        "all_cores": round((busy_s() - busy) / took_s, 2),
    }


@contextlib.contextmanager
def running_pipeline(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `quaymaster pipeline run` with options for the server in `folder` / "server" while the block runs."""
    data = folder / "server" / "data"
    command = [str(servers.SERVERS["quaymaster"].obtain()), "pipeline", "run", "--data", str(data), *options]
    with (folder / "pipeline.log").open("wb") as log:
        pipeline = processes.start(command, folder=folder, log=log, core=None)
    try:
        yield pipeline
    finally:
        processes.stop(pipeline)


def figures_of(values: Sequence[float]) -> dict[str, float]:
    """Return what half of these times, and 95 of 100, are at most, and the longest; seconds."""
    found = {"p50_s": statistics.median(values), "p95_s": percentile(values, 95), "max_s": max(values)}
    return {name: round(value, 2) for name, value in found.items()}


def percentile(values: Sequence[float], part: int) -> float:
    """Return the least of these values that at least `part` of 100 of them do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * part // 100) - 1]


class Waiter:
    """Sends single messages, and waits until gold has them."""

    def __init__(self, server: servers.Running, warehouse: Path, log: Path, pipeline: Any) -> None:
        self._server = server
        self._warehouse = warehouse
        self._log = log
        self._pipeline = pipeline

    def seconds(self, name: str) -> tuple[float, float, float]:
        """Return how long a message to a new queue took to gold; until its batch began; and from there on."""
        url = self._server.create_queue(name)
        sent_s = time.time()
        call(self._server.endpoint, "SendMessage", {"QueueUrl": url, "MessageBody": "sample"})
        while not self._is_in_gold(name):
            if self._pipeline.poll() is not None or time.time() - sent_s > PATIENCE_S:
                raise RuntimeError(f"{name} did not come into gold: {self._log.read_text()[-2000:]}")
            time.sleep(POLL_S)
        seen_s = time.time()
        looked_s = self._tables().table(BLOCKS).note(BRONZE)["taken_us"] / 1e6
        return seen_s - sent_s, looked_s - sent_s, seen_s - looked_s

    def _tables(self) -> Warehouse:
        # A new one: it remembers the version of a table that it saw first.
        return Warehouse(str(self._warehouse))

    def _is_in_gold(self, name: str) -> bool:
        lines = read_usage(self._tables(), queue=name)
        return any(line.action == "SendMessage" for line in lines)


if __name__ == "__main__":
    main()

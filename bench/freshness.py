"""Seconds from a request to its line in gold, with a server and `quaymaster pipeline run` on this machine.

    python -m bench freshness [--samples 12] [--every 10]

Each sample is one SendMessage to a queue of its own, at a random moment between two looks of the pipeline; it is over
when `quaymaster usage` would show it. `until_looked` is the time until the batch began that has it: `usage_sync_ms`
(1 s) in the front end's memory, the way into the usage queue, and the wait for the pipeline's next look. `in_batch` is
the rest: bronze, silver and gold, each with its fsyncs and its commit. JVM and Python workers are warm.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import machine, processes, servers
from bench.meter import busy_s
from bench.requests import call
from quaymaster_pipeline.usage import bronze
from quaymaster_pipeline.usage.usage import read_usage
from quaymaster_pipeline.warehouse.schemas import BLOCKS
from quaymaster_pipeline.warehouse.tables import Warehouse

POLL_S = 0.25
PATIENCE_S = 600.0


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--every", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as folder:
        print(json.dumps(measure(Path(folder), options.samples, options.every), indent=2))


def measure(folder: Path, samples: int, every_s: float) -> dict[str, Any]:
    """Return the figures of so many samples."""
    with servers.Running(servers.SERVERS["quaymaster"], folder / "server") as server:
        data = folder / "server" / "data"
        command: list[str | Path] = [
            servers.SERVERS["quaymaster"].obtain(),
            "pipeline",
            "run",
            "--data",
            data,
        ]
        command += ["--interval", str(every_s), "--master", "local[2]"]
        with (folder / "pipeline.log").open("wb") as log:
            pipeline = processes.start(command, folder=folder, log=log, core=None)
        try:
            waiter = Waiter(server, data / "warehouse", folder / "pipeline.log", pipeline)
            for name in ("first", "second"):  # the JVM's first jobs
                waiter.seconds(name)
            began_s, busy = time.monotonic(), busy_s()
            used_s = processes.cpu_s(pipeline.pid)
            found = []
            for number in range(samples):
                time.sleep(random.random() * every_s)
                found.append(waiter.seconds(f"sample-{number}"))
            took_s = time.monotonic() - began_s
            used_s = processes.cpu_s(pipeline.pid) - used_s
        finally:
            processes.stop(pipeline)
    return {
        "machine": machine.describe(),
        "every_s": every_s,
        **{
            name: {"median_s": round(statistics.median(values), 2), "max_s": round(max(values), 2)}
            for name, values in zip(
                ("in_all", "until_looked", "in_batch"), zip(*found, strict=True), strict=True
            )
        },
        "pipeline_cores": round(used_s / took_s, 2),
        "all_cores": round((busy_s() - busy) / took_s, 2),
    }


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
        looked_s = self._tables().table(BLOCKS).note(bronze.APP)["taken_us"] / 1e6
        return seen_s - sent_s, looked_s - sent_s, seen_s - looked_s

    def _tables(self) -> Warehouse:
        # A new one: it remembers the version of a table that it saw first.
        return Warehouse(str(self._warehouse))

    def _is_in_gold(self, name: str) -> bool:
        lines = read_usage(self._tables(), queue=name)
        return any(line.action == "SendMessage" for line in lines)


if __name__ == "__main__":
    main()

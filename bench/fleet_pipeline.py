"""`quaymaster pipeline run`, which notes after each pass what processor time each kind of process has used.

    python -m bench.fleet_pipeline --notes FILE [--pass-blocks 60000] [--cluster PID,...] [--profile FILE] -- OPTIONS

`--pass-blocks`: a pass takes no more, as if no more had come since the one before. Nothing else is changed.

    driver           the command's own Python process
    driver_jvm       Spark's JVM below it; with a local master its tasks run there, too
    executor_jvms    JVMs of a cluster's executors
    python_workers   Python processes that run tasks
    daemons          master and workers of a cluster
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from bench.processes import TICKS_PER_S, tree_of
from quaymaster.cli.main import main as run_command
from quaymaster_pipeline.jobs.jobs import Pipeline, Summary
from quaymaster_pipeline.usage.bronze import planning

_EXECUTOR = b"CoarseGrainedExecutorBackend"
_DAEMON = b"org.apache.spark.deploy."
_WORKER = b"pyspark.daemon"


def main() -> None:
    """Run the command; its report goes to the output, as it would."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--pass-blocks", type=int, default=planning.BATCH_BLOCKS_MAX)
    parser.add_argument("--cluster", default="")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    pids = [os.getpid(), *(int(pid) for pid in options.cluster.split(",") if pid)]
    profile = cProfile.Profile(time.thread_time) if options.profile else None
    catch_up = Pipeline.catch_up

    def noting(pipeline: Pipeline, on_batch: Callable[[Summary], None] = lambda summary: None) -> Summary:
        def noted(summary: Summary) -> None:
            with options.notes.open("a") as file:
                file.write(json.dumps(_note(pids, summary.blocks, summary.rows)) + "\n")
            on_batch(summary)

        noted(Summary())
        with profile or contextlib.nullcontext():
            return catch_up(pipeline, noted)

    sys.argv = ["quaymaster", "pipeline", "run", *options.command]
    planning.BATCH_BLOCKS_MAX = options.pass_blocks
    try:
        with mock.patch.object(Pipeline, "catch_up", noting):
            run_command()
    finally:
        if profile is not None:
            profile.dump_stats(options.profile)


def _note(pids: list[int], blocks: int, rows: int) -> dict[str, Any]:
    """Return the time, and what each kind of process and each Python worker has used so far."""
    kinds: defaultdict[str, float] = defaultdict(float)
    workers: dict[str, float] = {}
    for pid in {member for one in pids for member in tree_of(one)}:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        kind = _kind_of(pid, line)
        own_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        kinds[kind] += own_s
        if kind == "python_workers":
            # Workers that ended count for the daemon that had started them.
            kinds[kind] += (int(fields[13]) + int(fields[14])) / TICKS_PER_S
            workers[str(pid)] = own_s
    return {
        "time_s": time.monotonic(),
        "blocks": blocks,
        "rows": rows,
        "cpu_s": kinds,
        "workers": workers,
        "driver_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "load_average": round(os.getloadavg()[0], 1),
    }


def _kind_of(pid: int, line: bytes) -> str:
    if pid == os.getpid():
        return "driver"
    if _WORKER in line:
        return "python_workers"
    if _EXECUTOR in line:
        return "executor_jvms"
    if _DAEMON in line and b"SparkSubmit" not in line:
        return "daemons"
    return "driver_jvm"


if __name__ == "__main__":
    main()

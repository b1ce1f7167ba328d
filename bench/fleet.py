"""The usage pipeline through the real queue: what a fleet of front ends ships, from the usage queue to gold.

    python -m bench fleet [--front-ends 1000] [--blocks 20000] [--rows 116] [--pass-blocks 5000]
    python -m bench fleet --cluster                  # also with a standalone master and one, then two workers
    python -m bench fleet --restart-days 365         # only a start over so many days of history, made without a queue

`bench.fleet_blocks` makes the blocks (once; they are kept), `bench.fleet_server` ships them into the usage queue of a
server, then `quaymaster serve` runs on that directory, and `quaymaster pipeline run --once` reads it, in passes of
`--pass-blocks`. Simulated is only the recording in front ends, with their spools: encoding of blocks, shipper, queue,
reading and all of the pipeline are what is delivered. Processor time is by kind of process (`bench.fleet_pipeline`).
Figures of a pass are means of those after the first, which starts JVM and Python workers; `a_day` is 1,440 of them.
JSON goes to stdout, a table to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import engines, fleet_blocks, fleet_restart, machine, markdown, processes, servers
from bench.fleet_blocks import Fleet
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.batch_rows import files_of_batches
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TABLES, USAGE_EVENTS, TableSpec
from quaymaster_pipeline.warehouse.tables import Warehouse

PASSES_A_DAY = 1_440
PASSES = 4
"""Of a run, unless it says how large they are."""
PROFILED = 20

Note = dict[str, Any]


def main() -> None:
    """Measure, and print one JSON object."""
    given = parse_options(sys.argv[1:])
    if given.restart_days:
        print(json.dumps(fleet_restart.measure(given.restart_days), indent=2))
        return
    figures = measure(given)
    print(json.dumps(figures, indent=2))
    print(table_of(figures), file=sys.stderr)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--front-ends", type=int, default=1_000)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=116, help="of a block, on average")
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--pass-blocks", type=int, help=f"default: a run has {PASSES} passes")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--cluster", action="store_true", help="also on one worker, and on two")
    parser.add_argument("--worker-cores", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="say where the driver's time goes")
    parser.add_argument("--restart-days", type=int)
    given = parser.parse_args(arguments)
    given.pass_blocks = given.pass_blocks or -(-given.blocks // PASSES)
    return given


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Ship a fleet's blocks, and take them into tables of their own with each master."""
    fleet = Fleet(given.front_ends, given.rows, given.queues)
    prepared = fleet_blocks.prepare(servers.CACHE / "fleet", fleet, given.blocks)
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        figures: dict[str, Any] = {
            "machine": machine.describe(),
            "fleet": fleet._asdict(),
            "pass_blocks": given.pass_blocks,
            "shipped": ship(folder / "server", prepared, given.blocks, fleet),
            "runs": {},
        }
        with servers.Running(servers.SERVERS["quaymaster"], folder / "server") as server:
            for label, master, pids in masters(given):
                with master as url:
                    run = Run(label, url, pids, folder, given.pass_blocks, has_profile=given.profile)
                    figures["runs"][label] = run.measure(server)
    return figures


def masters(
    given: argparse.Namespace,
) -> Iterator[tuple[str, contextlib.AbstractContextManager[str], list[int]]]:
    """Yield names of masters, their URLs while they run, and the processes that are there with them."""
    yield given.master, contextlib.nullcontext(given.master), []
    for workers in (1, 2) if given.cluster else ():
        with engines.cluster(workers, cores=given.worker_cores) as running:
            label = f"{workers} worker{'s' * (workers > 1)}"
            yield label, contextlib.nullcontext(running.master), list(running.pids)


def ship(place: Path, prepared: Path, blocks: int, fleet: Fleet) -> dict[str, Any]:
    """Ship blocks into the usage queue of a server in `place`."""
    place.mkdir(parents=True)
    command: list[str | Path] = [sys.executable, "-m", "bench.fleet_server", "--data", place / "data"]
    command += ["--blocks", prepared, "--count", str(blocks), "--front-ends", str(fleet.front_ends)]
    with (place / "shipping.log").open("wb") as log:
        done = subprocess.run(
            [str(part) for part in command], cwd=servers.ROOT, stdout=subprocess.PIPE, stderr=log, check=False
        )
    if done.returncode:
        raise RuntimeError(f"not shipped: {(place / 'shipping.log').read_text()[-2000:]}")
    shipped: dict[str, Any] = json.loads(done.stdout)
    return shipped


@dataclass(frozen=True, slots=True)
class Run:
    """`quaymaster pipeline run --once` over all that the queue has."""

    label: str
    master: str
    pids: Sequence[int]
    folder: Path
    pass_blocks: int
    has_profile: bool = False

    def measure(self, server: servers.Running) -> dict[str, Any]:
        """Return the figures of the run."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        began_s, served_s = time.monotonic(), processes.cpu_s(server.pid)
        report = self._run(server, place)
        took_s, served_s = time.monotonic() - began_s, processes.cpu_s(server.pid) - served_s
        notes = [json.loads(line) for line in (place / "notes").read_text().splitlines()]
        passes = passes_of(report["batches"], notes)
        warm = [one for one in passes[1:] if one["blocks"] == self.pass_blocks] or passes[-1:]
        warehouse = Warehouse(place / "warehouse")
        batches = [one["batch_id"] for one in warm]
        figures = {
            "passes": len(passes),
            "seconds": round(took_s, 1),
            "difference": report["difference"],
            "gaps": len(report["gaps"]),
            "rows": report["rows"],
            "server_cpu_s": round(served_s, 2),
            "driver_peak_mib": notes[-1]["driver_peak_mib"],
            "first_pass": figures_of(passes[:1]),
            "pass": figures_of(warm) | shares_of(warehouse, batches[-1]),
            "tables": tables_of(warehouse, batches),
            "restart": fleet_restart.restart(warehouse.root),
            "load_average": round(os.getloadavg()[0], 1),
        }
        if self.has_profile:
            figures["driver_profile"] = profile_of(place / "profile")
        return figures

    def _run(self, server: servers.Running, place: Path) -> dict[str, Any]:
        command: list[str | Path] = [sys.executable, "-m", "bench.fleet_pipeline", "--notes", place / "notes"]
        command += ["--pass-blocks", str(self.pass_blocks), "--cluster", ",".join(map(str, self.pids))]
        command += ["--profile", place / "profile"] if self.has_profile else []
        command += ["--", "--once", "--json", "--master", self.master, "--warehouse", place / "warehouse"]
        command += ["--data", server.folder / "data"]
        with (place / "log").open("wb") as log:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=servers.ROOT,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=subprocess.PIPE,
                stderr=log,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"the pipeline ended: {(place / 'log').read_text()[-2000:]}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report


def passes_of(batches: Sequence[Mapping[str, Any]], notes: Sequence[Note]) -> list[dict[str, Any]]:
    """Return what each pass did, from the batches of the report and what was noted before and after it."""
    by_layer: dict[str, list[Mapping[str, Any]]] = {}
    for batch in batches:
        by_layer.setdefault(batch["layer"], []).append(batch)
    found = []
    for at, (before, after) in enumerate(itertools.pairwise(notes)):
        layers = {layer: rows[at] for layer, rows in by_layer.items() if at < len(rows)}
        used, workers = (_growth(before[name], after[name]) for name in ("cpu_s", "workers"))
        found.append(
            {
                "batch_id": layers[BRONZE]["batch_id"],
                "blocks": after["blocks"] - before["blocks"],
                "rows": after["rows"] - before["rows"],
                "seconds": after["time_s"] - before["time_s"],
                "tasks": {layer: batch["tasks"] for layer, batch in layers.items()},
                "layer_seconds": {layer: batch["seconds"] for layer, batch in layers.items()},
                "driver_cpu_s": {layer: batch["driver_cpu_s"] for layer, batch in layers.items()},
                "cpu_s": used,
                "workers_cpu_s": sorted(workers.values(), reverse=True),
                "load_average": after["load_average"],
            }
        )
    return found


def figures_of(passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over passes. `rows_per_core_s`: of tasks, which are all processes but the driver's and daemons.

    With a local master tasks run in the driver's JVM as well, so all of it counts for them.
    """
    count = len(passes)
    used = _means([one["cpu_s"] for one in passes])
    is_local = "executor_jvms" not in used
    of_tasks = used.get("python_workers", 0) + used.get("driver_jvm" if is_local else "executor_jvms", 0)
    of_driver = used["driver"] + (0 if is_local else used.get("driver_jvm", 0))
    rows, seconds = (sum(one[name] for one in passes) for name in ("rows", "seconds"))
    return {
        "passes": count,
        "blocks": round(sum(one["blocks"] for one in passes) / count),
        "rows": round(rows / count),
        "seconds": round(seconds / count, 2),
        "tasks": {layer: tasks for one in passes for layer, tasks in one["tasks"].items()},
        "layer_seconds": _means([one["layer_seconds"] for one in passes]),
        "layer_driver_cpu_s": _means([one["driver_cpu_s"] for one in passes]),
        "cpu_s": used,
        "driver_cpu_s": round(of_driver, 2),
        "driver_share": round(of_driver / max(of_driver + of_tasks, 0.01), 3),
        "rows_per_core_s": round(rows / count / max(of_tasks, 0.01)),
        "rows_per_s": round(rows / seconds),
        "workers_cpu_s": [round(used_s, 2) for used_s in passes[-1]["workers_cpu_s"] if used_s >= 0.01],
        "load_average": passes[-1]["load_average"],
    }


def _growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for one in found for name in one})
    return {name: round(sum(one.get(name, 0) for one in found) / len(found), 3) for name in names}


def shares_of(warehouse: Warehouse, batch_id: int) -> dict[str, Any]:
    """Return how a pass was divided: what each file of bronze and silver has of it, which are a task's each."""

    def rows_of(spec: TableSpec) -> list[int]:
        files = files_of_batches(warehouse.table(spec), batch_id, batch_id)
        return sorted(file.rows for file in files)

    return {"blocks_by_task": rows_of(BLOCKS), "rows_by_task": rows_of(USAGE_EVENTS)}


def tables_of(warehouse: Warehouse, batches: Sequence[int]) -> dict[str, Any]:
    """Return what these passes made of files and log, and what a day of such passes would."""
    made: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    log_bytes: Counter[str] = Counter()
    for spec in TABLES:
        for path in Path(warehouse.place(spec).uri, "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            if any(one["txn"]["version"] in batches for one in actions if "txn" in one):
                made[spec.name] += sum("add" in one for one in actions)
                gone[spec.name] += sum("remove" in one for one in actions)
                log_bytes[spec.name] += path.stat().st_size
    count = len(batches)
    by_table = {
        name: {
            "made": made[name] / count,
            "live": len(warehouse.table(spec).files()),
            "log_bytes": round(log_bytes[name] / count),
        }
        for spec in TABLES
        if log_bytes[name := spec.name]
    }
    a_day = PASSES_A_DAY / count
    return {
        "a_pass": by_table,
        "a_day": {
            "files_made": round(made.total() * a_day),
            "files_more": round((made.total() - gone.total()) * a_day),
            "log_mb": round(log_bytes.total() * a_day / 1e6),
        },
    }


def profile_of(path: Path) -> list[dict[str, Any]]:
    """Return the functions of the pipeline in which most of the driver's processor time was, with what they called."""
    found = []
    for (file, _, name), (calls, _, own_s, all_s, _) in pstats.Stats(str(path)).stats.items():  # type: ignore[attr-defined]
        if "quaymaster_pipeline" in file:
            where = file.rpartition("quaymaster_pipeline/")[2]
            found.append({"name": f"{where}:{name}", "calls": calls, "own_s": own_s, "all_s": all_s})
    found.sort(key=lambda one: -one["all_s"])
    return [
        one | {"own_s": round(one["own_s"], 3), "all_s": round(one["all_s"], 3)} for one in found[:PROFILED]
    ]


def table_of(figures: Mapping[str, Any]) -> str:
    """Return the figures that goals are about, a line a master."""
    head = (
        *("master", "tasks of bronze, silver", "rows/s a core of tasks", "rows/s"),
        *("driver s a pass", "its share", "driver MiB", "restart s", "load"),
    )
    lines = []
    for label, run in figures["runs"].items():
        one = run["pass"]
        tasks = ", ".join(str(one["tasks"][layer]) for layer in (BRONZE, silver.APP))
        lines.append(
            [
                *(label, tasks, markdown.number(one["rows_per_core_s"]), markdown.number(one["rows_per_s"])),
                *(f"{one['driver_cpu_s']:.2f}", f"{one['driver_share']:.0%}", str(run["driver_peak_mib"])),
                *(f"{run['restart']['seconds']:.2f}", str(one["load_average"])),
            ]
        )
    return markdown.table(head, lines)


if __name__ == "__main__":
    main()

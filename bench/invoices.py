"""What final invoices of a month cost in memory and time, for two numbers of daily rows in turns.

    python -m bench invoices [--rows 500000] [--times 10] [--accounts 1000] [--turns 2] [--cores 2]

Invoices are made by the tasks of `quaymaster billing invoice --final` on Spark's local master, each turn in a process
of its own. Simulated are the closed days and their rows in ops.closes: 30 days, each one file of rows with 20 billed
requests on average, 8 actions a queue, every fifth queue FIFO; accounts have rows as by Zipf, so the largest has a
seventh of them (of 1,000). Nothing was recorded for them. `driver` is the command's Python process, `task` the largest
of Spark's Python workers; `heap_peak` what the JVM's heap had at most, garbage included, of a limit of 1 GiB.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.meter import SAMPLE_S, Meter
from bench.processes import tree_of
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.store import BillingStore
from quaymaster_pipeline.billing.tables import CHARGES
from quaymaster_pipeline.jobs.invoicing import InvoiceRequest, make_invoices
from quaymaster_pipeline.usage.gold import day_sums
from quaymaster_pipeline.usage.tasks import SparkWorkers
from quaymaster_pipeline.warehouse.closes import CLOSED, DayClose
from quaymaster_pipeline.warehouse.data_files import FileWriter, hash_of_file
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY
from quaymaster_pipeline.warehouse.session import spark_session
from quaymaster_pipeline.warehouse.tables import Warehouse

MONTH = Month(2026, 11)
DAYS = 30
ACTIONS = (
    *("ChangeMessageVisibility", "DeleteMessage", "DeleteMessageBatch", "GetQueueAttributes"),
    *("ListQueues", "ReceiveMessage", "SendMessage", "SendMessageBatch"),
)
BILLED_MAX = 40
FIFO_EVERY = 5
ROWS_AT_ONCE = 1 << 17
MIB = 1 << 20
ROUND = 1_000_000


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help="of the smaller month")
    parser.add_argument("--times", type=int, default=10, help="so many times as many has the larger one")
    parser.add_argument("--accounts", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.place is not None:
        print(json.dumps(one_turn(options.place, options.rows, options.cores)))
        return
    sizes = (options.rows, options.rows * options.times)
    found: dict[int, list[dict[str, Any]]] = {rows: [] for rows in sizes}
    for _ in range(options.turns):
        for rows in sizes:
            with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder:
                make_days(Path(folder), rows, options.accounts)
                words = ("--place", folder, "--rows", str(rows), "--cores", str(options.cores))
                command = [sys.executable, "-m", "bench", "invoices", *words]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[rows].append(json.loads(done.stdout))
    least = {rows: {name: min(one[name] for one in of) for name in of[0]} for rows, of in found.items()}
    small, large = (least[rows] for rows in sizes)
    names = ("driver_mib", "task_mib", "heap_peak_mib", "rows_per_core_s")
    ratios = {name: round(large[name] / small[name], 2) for name in names}
    print(json.dumps({"accounts": options.accounts, "turns": found, "larger_to_smaller": ratios}, indent=2))


def make_days(place: Path, rows: int, accounts: int) -> None:
    """Write the closed days of a month, and the closes beside them."""
    warehouse = Warehouse(place / "warehouse")
    table = warehouse.table(USAGE_DAILY)
    chance = np.random.default_rng(1)
    weights = 1 / np.arange(1, accounts + 1)
    sizes = np.maximum(1, np.round(weights / weights.sum() * rows / DAYS)).astype(np.int64)
    closes, files = [], []
    for number in range(DAYS):
        day = (MONTH.start + datetime.timedelta(days=number)).date()
        sums: dict[str, int] = {}
        with FileWriter(table.place, USAGE_DAILY, CLOSED, str(day)) as writer:
            for first in range(0, int(sizes.sum()), ROWS_AT_ONCE):
                part = _rows(sizes, first, min(ROWS_AT_ONCE, int(sizes.sum()) - first), chance)
                writer.write(part)
                sums = {name: sums.get(name, 0) + count for name, count in day_sums(part).items()}
            file = writer.finish()
        assert file is not None, "each day has rows"
        files.append(file)
        closes.append((day.isoformat(), sums, file.path, hash_of_file(table.place, file.path).hex()))
    table.commit("bench", 0, files)
    (place / "closes.json").write_text(json.dumps(closes))


def _rows(sizes: Any, first: int, count: int, chance: np.random.Generator) -> Any:
    """Return rows of a day, of accounts that have so many each, from the first on."""
    at = np.arange(first, first + count)
    ends = np.cumsum(sizes)
    account = np.searchsorted(ends, at, side="right")
    in_account = at - (ends - sizes)[account]
    queue, action = in_account // len(ACTIONS), in_account % len(ACTIONS)
    kind = pa.array(["standard", "fifo"]).take(pa.array((queue % FIFO_EVERY == 0).astype(np.int64)))
    queues = pa.array(queue + 1)
    one = np.ones(count, np.int64)
    columns: dict[str, Any] = {
        "region": pa.repeat("us-east-1", count),
        "account_id": pa.array([f"{number:012}" for number in range(len(sizes))]).take(pa.array(account)),
        "queue_sk": queues,
        "queue_name": pa.compute.binary_join_element_wise("queue", queues.cast(pa.string()), "-"),
        "queue_type": kind,
        "action": pa.array(ACTIONS).take(pa.array(action)),
        "billing_class": kind,
        "billed_requests": chance.integers(1, BILLED_MAX, count),
    }
    columns |= {name: one for name in USAGE_DAILY.file_schema.names if name not in columns}
    return pa.table(columns).select(USAGE_DAILY.file_schema.names).cast(USAGE_DAILY.file_schema)


def read_closes(place: Path) -> list[DayClose]:
    """Return the closes that `make_days` made."""
    found = []
    for number, (day, sums, path, digest) in enumerate(json.loads((place / "closes.json").read_text())):
        date = datetime.date.fromisoformat(day)
        close = DayClose(
            number=number,
            day=date,
            is_late=False,
            first_batch=number,
            through_batch=number,
            closed_time=MONTH.end,
            blocks=0,
            block_rows=0,
            difference=0,
            accepted=False,
            files=(path,),
            file_hashes=(bytes.fromhex(digest),),
            previous=b"",
            **sums,
        )
        found.append(close)
    return found


def one_turn(place: Path, rows: int, cores: int) -> dict[str, Any]:
    """Make all invoices of the month in this process and Spark's, and return what that took."""
    closes = read_closes(place)
    warehouse = Warehouse(place / "warehouse")
    request = InvoiceRequest(
        month=MONTH,
        now=MONTH.end + datetime.timedelta(days=4),
        is_final=True,
        closes=closes,
        last_closed=closes[-1].day,
    )
    with spark_session(f"local[{cores}]", directory=place / "spark") as spark, _Workers() as workers:
        tasks, meter = SparkWorkers(spark), Meter()
        with BillingStore(warehouse).writing(), meter:
            made = make_invoices(tasks, warehouse, request)
        jvm: Any = spark.sparkContext._jvm
        pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        heap = sum(pool.getPeakUsage().getUsed() for pool in pools if pool.getType().name() == "HEAP")
    billed = sum(close.billed_requests for close in closes)
    charged = sum(head.invoice.quantity for head in BillingStore(warehouse).heads(MONTH))
    assert charged == billed, f"{billed} requests were billed, and {charged} are on invoices"
    return {
        "rows": sum(close.requests for close in closes),
        "requests_millions": round(billed / ROUND, 1),
        "invoices": made.made,
        "lines": warehouse.table(CHARGES).rows,
        "driver_mib": round(resident_peak(os.getpid()) / MIB),
        "task_mib": round(workers.bytes_peak / MIB),
        "heap_peak_mib": round(heap / MIB),
        "wall_s": round(meter.wall_s, 1),
        "cpu_s": round(meter.cpu_s, 1),
        "rows_per_core_s": round(rows / meter.cpu_s),
    }


class _Workers:
    """Watches the largest of Spark's Python workers while its block runs."""

    def __init__(self) -> None:
        self.bytes_peak = 0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Workers:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for pid in tree_of(os.getpid())[1:]:
                if "java" not in _command(pid):
                    self.bytes_peak = max(self.bytes_peak, resident_peak(pid))


def resident_peak(pid: int) -> int:
    """Return the most resident memory that one process had, without those below it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
    except OSError:
        return ""


if __name__ == "__main__":
    main()

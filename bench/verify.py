"""What `quaymaster pipeline verify` costs: processor time for each row of usage, over all that it looks at.

    python -m bench verify [--rows 4000000] [--cores 2]

Tables are made beforehand of full blocks of one front end, in batches of at most a million rows. They are checked twice
in the session of Spark that made them. Processor time is that of all processes together. `task` is the same work in
one process without Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.meter import Meter
from bench.pipeline import make_blocks
from quaymaster.protocol.usage.usage_blocks import ROWS_PER_BLOCK_MAX
from quaymaster_pipeline.checks.verification import verify
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.tasks import SparkWorkers, ThisProcess, Workers
from quaymaster_pipeline.warehouse.session import spark_session
from quaymaster_pipeline.warehouse.tables import Warehouse

NOW = datetime(2026, 11, 22, 18, tzinfo=UTC)
BATCH_ROWS = 1_000_000


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    rows = options.rows // ROWS_PER_BLOCK_MAX * ROWS_PER_BLOCK_MAX
    planning.BATCH_BLOCKS_MAX = BATCH_ROWS // ROWS_PER_BLOCK_MAX
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder:
        place = Path(folder)
        make_blocks(place / "feed", rows)
        figures: dict[str, Any] = {"rows": rows, "cores": options.cores}
        with contextlib.ExitStack() as stack:
            session = spark_session(f"local[{options.cores}]", directory=place / "spark")
            workers = SparkWorkers(stack.enter_context(session))
            warehouse = Warehouse(place / "warehouse")
            with warehouse.ingesting():
                Pipeline(workers, warehouse, FileFeed(place / "feed"), clock=lambda: NOW).catch_up()
            for name in ("first", "second"):
                figures[name] = measure(workers, place, rows)
        figures["task"] = measure(ThisProcess(), place, rows)
        print(json.dumps(figures, indent=2))


def measure(workers: Workers, place: Path, rows: int) -> dict[str, float]:
    """Return figures of one check of all tables; none of them may be broken."""
    meter = Meter()
    with meter:
        proof = verify(workers, Warehouse(place / "warehouse"))
    assert proof.breaks_total == 0, f"nobody touched the tables: {proof.breaks[0].text}"
    assert proof.rows == proof.requests == rows, "all rows were looked at"
    return meter.figures(rows) | {"cpu_us_per_row": round(meter.cpu_s * 1e6 / rows, 2)}


if __name__ == "__main__":
    main()

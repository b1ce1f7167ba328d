"""What it costs to close a day, and to let it expire: processor time for each request, and memory.

    python -m bench close [--rows 2000000,8000000] [--cores 2]

Tables are made first, of full blocks of one front end, in batches of at most a million rows, and small files are merged
as `pipeline run` does. Then the front end ends, and Spark's tasks close its day: they compare blocks, events, hours and
the day, and write the closed file. Long after that its requests and headers expire. Memory is that of all processes,
with the driver and its JVM.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.meter import Meter
from bench.pipeline import NOON_US, make_blocks
from bench.verify import BATCH_ROWS
from quaymaster.protocol.usage.usage_blocks import (
    ROWS_PER_BLOCK_MAX,
    BlockEnd,
    BlockOrigin,
    Seal,
    encode_block,
)
from quaymaster.protocol.usage.usage_rows import UsageRows
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.content_expiry import expire_content
from quaymaster_pipeline.jobs.header_expiry import expire_headers
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.jobs.merge import merge_sums
from quaymaster_pipeline.jobs.usage_expiry import expire_usage
from quaymaster_pipeline.usage.bronze import planning
from quaymaster_pipeline.usage.feed import FileFeed
from quaymaster_pipeline.usage.tasks import SparkWorkers, Workers
from quaymaster_pipeline.warehouse.session import spark_session
from quaymaster_pipeline.warehouse.tables import Warehouse

NOW = datetime(2026, 11, 22, 18, tzinfo=UTC)
LATER = datetime(2026, 11, 23, 6, tzinfo=UTC)
LONG_AFTER = datetime(2027, 6, 1, tzinfo=UTC)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", default="2000000,8000000", help="how many requests the day has, one after the other"
    )
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    planning.BATCH_BLOCKS_MAX = BATCH_ROWS // ROWS_PER_BLOCK_MAX
    figures: dict[str, Any] = {"cores": options.cores}
    for text in options.rows.split(","):
        rows = int(text) // ROWS_PER_BLOCK_MAX * ROWS_PER_BLOCK_MAX
        with (
            tempfile.TemporaryDirectory(prefix="quaymaster-bench-") as folder,
            spark_session(f"local[{options.cores}]", directory=Path(folder, "spark")) as spark,
        ):
            figures[str(rows)] = measure(SparkWorkers(spark), Path(folder), rows)
    print(json.dumps(figures, indent=2))


def measure(workers: Workers, place: Path, rows: int) -> dict[str, dict[str, float]]:
    """Return figures of the close of a day of so many requests, and of its expiry."""
    make_blocks(place / "feed", rows)
    warehouse = Warehouse(place / "warehouse")
    with warehouse.ingesting():
        pipeline = Pipeline(workers, warehouse, FileFeed(place / "feed"), clock=lambda: NOW)
        pipeline.catch_up()
        end_front_end(place / "feed", rows)
        pipeline.catch_up()
    merge_sums(workers, warehouse, NOW)
    assert not close_days(workers, warehouse, NOW).closes, "the day is not over yet"
    meter = Meter()
    with meter:
        (close,) = close_days(workers, warehouse, LATER).closes
    assert (close.requests, close.difference) == (rows, 0), "all requests are in the day"
    closing = meter.figures(rows) | {"cpu_us_per_row": round(meter.cpu_s * 1e6 / rows, 2)}
    expire_content(workers, warehouse, LONG_AFTER)
    meter = Meter()
    with meter:
        requests = expire_usage(workers, warehouse, LONG_AFTER)
    expiring = meter.figures(rows) | {"cpu_us_per_row": round(meter.cpu_s * 1e6 / rows, 2)}
    meter = Meter()
    with meter:
        headers = expire_headers(workers, warehouse, LONG_AFTER)
    assert (requests, headers) == (rows, rows // ROWS_PER_BLOCK_MAX + 1), "all of the day has expired"
    of_headers = meter.figures(headers) | {"cpu_us_per_header": round(meter.cpu_s * 1e6 / headers, 2)}
    return {"close": closing, "expire_requests": expiring, "expire_headers": of_headers}


def end_front_end(feed: Path, rows: int) -> None:
    """Write the seal of the front end that made all rows."""
    nothing = UsageRows([], [], [], [], [], [], [], [], [], [], [], [])
    blocks = FileFeed(feed)
    ((partition, (_, count)),) = blocks.bounds().items()
    ((_, last),) = blocks.reader().read(partition, count - 1, count)
    origin, end = BlockOrigin("front-end-1", 1, "eu-west-1"), BlockEnd(rows, sha256(last).digest())
    seal = Seal(1, rows, "stopped")
    block = encode_block(origin, end, nothing, low_watermark_us=NOON_US, seal=seal)
    (feed / "0002.blocks").write_bytes(block.data)


if __name__ == "__main__":
    main()

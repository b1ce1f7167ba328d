"""How far the pipeline is, for programs and as metrics for Prometheus. Read from the tables, without Spark."""

from __future__ import annotations

import datetime
import time
from typing import Any

from quaymaster_pipeline.checks.brokers.broker_counts import last_comparison
from quaymaster_pipeline.checks.brokers.losses import MEASURES
from quaymaster_pipeline.checks.reconciliation import compare_notes
from quaymaster_pipeline.usage import silver
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.content import content_span
from quaymaster_pipeline.usage.ingest_state import stopped_ingest
from quaymaster_pipeline.usage.partial_sums import whole_coverage
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.warehouse.metrics_file import Labelled, render_metrics
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TABLES, USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Warehouse
from quaymaster_pipeline.warehouse.times import text_of_time, time_of_us

METRICS_FILE = "metrics.prom"
METRICS = {
    "quaymaster_pipeline_lag_blocks": "Blocks of the usage queue that are not yet in the tables.",
    "quaymaster_pipeline_ingest_stopped": "1 while blocks that are missing, or of a newer program, stop ingest.",
    "quaymaster_pipeline_batch_seconds": "How long the last batch of each layer took, added up.",
    "quaymaster_pipeline_last_run_timestamp_seconds": "When this was written.",
    "quaymaster_pipeline_reconciliation_difference": "How far the layers are from each other; 0, or alarm.",
    "quaymaster_pipeline_broker_difference": "How far usage is from what brokers counted, beyond bounds; 0, or alarm.",
    "quaymaster_pipeline_broker_missing_messages": "Messages that the brokers counted and usage lacks, by measure.",
    "quaymaster_pipeline_broker_allowed_messages": "How many of those are booked to a cause that is known.",
    "quaymaster_pipeline_brokers_compared_timestamp_seconds": "Of what time the brokers' counts were compared last.",
    "quaymaster_pipeline_lag_seconds": "How old the newest usage is that is whole; 0 when all front ends ended.",
    "quaymaster_pipeline_open_epochs": "Incarnations of front ends of which more may come.",
    "quaymaster_pipeline_missing_sequences": "Records of front ends that are missing in between.",
    "quaymaster_pipeline_damaged_blocks": "Blocks that could not be read.",
    "quaymaster_pipeline_oldest_content_timestamp_seconds": "The day of the oldest content, with addresses and agents.",
    "quaymaster_pipeline_rows_total": "Rows by what became of them: bronze, silver, audit, quarantine, duplicates.",
}


def read_status(
    warehouse: Warehouse, coverage: Coverage | None = None, *, now_s: float | None = None
) -> dict[str, Any]:
    """Return what the tables have. Times are ISO 8601, None where there is none.

    `lag_seconds` is how long ago everything was there that front ends recorded; None when all of them have ended.
    `oldest_content` is the day on which the oldest block came that still has its content; `is_content_overdue` tells
    that this should have expired.
    """
    now_s = time.time() if now_s is None else now_s
    coverage = whole_coverage(warehouse) if coverage is None else coverage
    events = warehouse.table(BLOCKS)
    note = events.note(BRONZE)
    counted = warehouse.table(USAGE_EVENTS).note(silver.APP).get("totals", {})
    closed_us = coverage.closed_until_us()
    content = content_span(warehouse)
    now = time_of_us(int(now_s * 1e6))
    return {
        "warehouse": warehouse.root,
        "feed": note.get("feed"),
        "next": note.get("next", {}),
        "ingest_stopped": stopped_ingest(warehouse),
        "batches": events.last_batch(BRONZE) + 1,
        "rows": {
            "bronze": note.get("headers", {}).get("rows", 0),
            "silver": counted.get("usage.rows", 0),
            "audit": counted.get("audit.rows", 0),
            "quarantine": counted.get("quarantine.rows", 0),
            "duplicates": counted.get("duplicates.rows", 0),
        },
        "damaged_blocks": counted.get("damaged", 0),
        "oldest_content": None if content is None else content.oldest.isoformat(),
        "is_content_overdue": content is not None and content.is_overdue(now),
        "closed_until": None if closed_us is None else text_of_time(time_of_us(closed_us)),
        "lag_seconds": None if closed_us is None else max(0, int(now_s - closed_us / 1e6)),
        "open_epochs": [list(owner) for owner in coverage.open_incarnations()],
        "gaps": [
            {
                "front_end": gap.owner.front_end,
                "epoch": gap.owner.number,
                "from": gap.seq_lo,
                "to": gap.seq_hi,
            }
            for gap in coverage.gaps()
        ],
        "difference": sum(one.difference for one in compare_notes(warehouse)),
        "brokers": [
            one._asdict() | {"counted_time": text_of_time(one.counted_time), "difference": one.difference}
            for one in last_comparison(warehouse)
        ],
        "tables": {
            spec.name: {
                "version": table.version,
                **table.size._asdict(),
            }
            for spec in TABLES
            for table in [warehouse.table(spec)]
        },
    }


def pipeline_metrics(status: dict[str, Any], *, lag_blocks: int, batch_seconds: float, now_s: float) -> str:
    """Return the text of the metrics file."""
    values: dict[str, float | Labelled] = {
        "quaymaster_pipeline_lag_blocks": lag_blocks,
        "quaymaster_pipeline_ingest_stopped": int(status["ingest_stopped"] is not None),
        "quaymaster_pipeline_batch_seconds": batch_seconds,
        "quaymaster_pipeline_last_run_timestamp_seconds": now_s,
        "quaymaster_pipeline_reconciliation_difference": status["difference"],
        "quaymaster_pipeline_broker_difference": sum(one["difference"] for one in status["brokers"]),
        "quaymaster_pipeline_broker_allowed_messages": max(
            (one["allowed"] for one in status["brokers"]), default=0
        ),
        "quaymaster_pipeline_brokers_compared_timestamp_seconds": max(
            (datetime.datetime.fromisoformat(one["counted_time"]).timestamp() for one in status["brokers"]),
            default=0,
        ),
        "quaymaster_pipeline_lag_seconds": status["lag_seconds"] or 0,
        "quaymaster_pipeline_open_epochs": len(status["open_epochs"]),
        "quaymaster_pipeline_missing_sequences": sum(gap["to"] - gap["from"] for gap in status["gaps"]),
        "quaymaster_pipeline_damaged_blocks": status["damaged_blocks"],
        # Where there is no content, none is old.
        "quaymaster_pipeline_oldest_content_timestamp_seconds": now_s
        if status["oldest_content"] is None
        else datetime.datetime.fromisoformat(f"{status['oldest_content']}T00:00:00+00:00").timestamp(),
        "quaymaster_pipeline_rows_total": ("layer", status["rows"]),
        "quaymaster_pipeline_broker_missing_messages": (
            "measure",
            dict.fromkeys(MEASURES, 0) | {one["measure"]: one["missing"] for one in status["brokers"]},
        ),
    }
    return render_metrics(METRICS, values)

"""How far the archive is, as metrics for Prometheus's node exporter, in a file of its own."""

from __future__ import annotations

from typing import Final

from quaymaster_pipeline.archive.ledger import IN_TABLE, Ledger
from quaymaster_pipeline.warehouse.metrics_file import Labelled, render_metrics

METRICS_FILE: Final = "archive.prom"
METRICS: Final = {
    "quaymaster_archive_last_run_timestamp_seconds": "When the archive job last got through.",
    "quaymaster_archive_behind_messages": "Messages of archived logs that are in no verified file yet.",
    "quaymaster_archive_lost_messages_total": "Messages that went from their logs before they were archived.",
    "quaymaster_archive_file_bytes": "Size of the archive's files.",
    "quaymaster_archive_files": "Stretches of logs by state.",
}


def archive_metrics(ledger: Ledger, *, behind: int, now_s: float) -> str:
    """Return the text of the file."""
    stretches = ledger.stretches()
    states = ("closed", "archived", "expiring", "deleted", "erased", "lost")
    values: dict[str, float | Labelled] = {
        "quaymaster_archive_last_run_timestamp_seconds": now_s,
        "quaymaster_archive_behind_messages": behind,
        "quaymaster_archive_lost_messages_total": sum(
            one.end - one.first for one in stretches if one.state == "lost"
        ),
        "quaymaster_archive_file_bytes": sum(one.file_bytes for one in stretches if one.state in IN_TABLE),
        "quaymaster_archive_files": (
            "state",
            {state: sum(one.state == state for one in stretches) for state in states},
        ),
    }
    return render_metrics(METRICS, values)

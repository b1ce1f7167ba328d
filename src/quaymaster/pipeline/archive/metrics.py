"""How far the archive is, as metrics for Prometheus's node exporter, in `archive.prom` of the warehouse."""

from __future__ import annotations

from typing import Final

from quaymaster.pipeline.archive.ledger import IN_TABLE, Ledger

METRICS_FILE: Final = "archive.prom"
METRICS: Final = {
    "quaymaster_archive_last_run_timestamp_seconds": "When the archive job last got through.",
    "quaymaster_archive_behind_messages": "Messages of archived logs that are in no verified file yet.",
    "quaymaster_archive_lost_messages_total": "Messages that went from their logs before they were archived.",
    "quaymaster_archive_file_bytes": "Size of the archive's files.",
    "quaymaster_archive_files": "Stretches of logs by state.",
}


def render_metrics(ledger: Ledger, *, behind: int, now_s: float) -> str:
    """Return the text of the file."""
    stretches = ledger.stretches()
    values = {
        "quaymaster_archive_last_run_timestamp_seconds": now_s,
        "quaymaster_archive_behind_messages": behind,
        "quaymaster_archive_lost_messages_total": sum(
            one.end - one.first for one in stretches if one.state == "lost"
        ),
        "quaymaster_archive_file_bytes": sum(one.file_bytes for one in stretches if one.state in IN_TABLE),
    }
    lines = []
    for name, text in METRICS.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        if name in values:
            lines.append(f"{name} {values[name]}")
        else:
            states = ("sealed", "archived", "expiring", "deleted", "erased", "lost")
            lines += [
                f'{name}{{state="{state}"}} {sum(one.state == state for one in stretches)}'
                for state in states
            ]
    return "\n".join(lines) + "\n"

"""Usage as people and programs ask for it: lines of gold, added up, read without Spark."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from quaymaster_pipeline.warehouse.schemas import HOUR_KEYS, USAGE_HOURLY
from quaymaster_pipeline.warehouse.sums import add_up_files
from quaymaster_pipeline.warehouse.tables import Warehouse
from quaymaster_pipeline.warehouse.times import text_of_time


class UsageLine(NamedTuple):
    """What an account used of a queue by an action in an hour. `hour` is its start, ISO 8601 in UTC."""

    account: str
    queue: str
    action: str
    hour: str
    requests: int
    messages: int
    bytes: int
    chunks: int
    errors: int


def read_usage(
    warehouse: Warehouse,
    *,
    account: str | None = None,
    queue: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> list[UsageLine]:
    """Return lines by hour, account, queue and action. `since` and `until` are hours as in the lines, half open."""
    table = warehouse.table(USAGE_HOURLY)
    # ISO 8601 is in the order of the times, whatever follows the seconds.
    files = [
        file
        for file in table.files()
        if (since is None or file.bounds["hour"][1] >= since.rstrip("Z"))
        and (until is None or file.bounds["hour"][0] < until)
    ]
    rows = add_up_files(table, files, HOUR_KEYS, [*HOUR_KEYS, "queue_name", *_SUMS])
    lines = []
    for row in rows.to_pylist():
        line = _line(row)
        wanted = (
            account in (None, line.account)
            and queue in (None, line.queue)
            and (since is None or line.hour >= since)
            and (until is None or line.hour < until)
        )
        if wanted:
            lines.append(line)
    return sorted(lines, key=lambda line: (line.hour, line.account, line.queue, line.action))


_SUMS: Final = ("requests", "messages", "bytes", "chunks", "errors_4xx", "errors_5xx")


def _line(row: dict[str, Any]) -> UsageLine:
    return UsageLine(
        row["account_id"],
        row["queue_name"],
        row["action"],
        text_of_time(row["hour"]),
        row["requests"],
        row["messages"],
        row["bytes"],
        row["chunks"],
        row["errors_4xx"] + row["errors_5xx"],
    )

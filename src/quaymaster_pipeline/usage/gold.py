"""Gold: what was used in each hour and day, by account, queue and action, as partial sums that readers add up.

Tasks of silver sum up the rows that they write (`partial_sums`); a batch only appends. Integers only: sums do not
depend on the order. A backfill sums the hours up from silver again, and must find the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.rules import NOBODY_KEY
from quaymaster_pipeline.warehouse.schemas import DAY_KEYS, HOUR_KEYS, USAGE_DAILY, USAGE_HOURLY
from quaymaster_pipeline.warehouse.sums import SumTable, add_up
from quaymaster_pipeline.warehouse.times import DAY_US, HOUR_US

APP: Final = "gold"
TOTALS: Final = "totals"
"""The note of usage_hourly with the control totals of all its rows: each batch adds its own, and merges leave it."""
ALONG: Final = ("queue_name", "queue_type", "billing_class")
HOURLY: Final = SumTable(USAGE_HOURLY, HOUR_KEYS, "hour", HOUR_US, merges_max=1)
DAILY: Final = SumTable(USAGE_DAILY, DAY_KEYS, "usage_date", DAY_US, merges_max=2)
_SHORT_KEYS: Final = ("hour", "region", "account_sk", "queue_sk", "op")
"""Integers that stand for HOUR_KEYS."""
USED: Final = (
    *_SHORT_KEYS,
    *(
        "account_id",
        "action",
        *ALONG,
        "billed_requests",
        "chunks",
        "messages",
        "bytes",
        "bytes_in",
        "bytes_out",
    ),
    *("duplicates", "empty_receive", "http_status", "latency_us", "batch_id"),
)
"""The columns of usage_events that sums are made of."""
PARTIAL_SCHEMA: Final = USAGE_HOURLY.file_schema


def partial_usage(usage: Any) -> Any:
    """Return rows of usage_events, summed up by hour, account, queue and action.

    They are grouped by integers, one of each for an account, a queue and an action; their names go along.
    """
    if usage.num_rows == 0:
        return PARTIAL_SCHEMA.empty_table()
    status = usage.column("http_status")
    one = pa.repeat(pa.scalar(1, pa.int64()), usage.num_rows)
    rows = pa.table(
        {
            **{name: usage.column(name) for name in (*_SHORT_KEYS, "account_id", "action", *ALONG)},
            # Rows of rule version 2 and before have the number of account 000000000000 for nobody.
            "account_sk": pc.if_else(
                pc.equal(usage.column("account_id"), ""), NOBODY_KEY, usage.column("account_sk")
            ),
            **{
                name: usage.column(name)
                for name in ("billed_requests", "chunks", "messages", "bytes", "bytes_in", "bytes_out")
            },
            # Rows that were written before there was this column have none.
            "duplicates": usage.column("duplicates"),
            "requests": one,
            "source_rows": one,
            "empty_receives": usage.column("empty_receive").cast(pa.int64()),
            "errors_4xx": pc.and_(pc.greater_equal(status, 400), pc.less(status, 500)).cast(pa.int64()),
            "errors_5xx": pc.greater_equal(status, 500).cast(pa.int64()),
            "latency_us_sum": usage.column("latency_us"),
            "latency_us_max": usage.column("latency_us"),
            "first_batch": usage.column("batch_id"),
            "last_batch": usage.column("batch_id"),
        }
    )
    return add_up(rows, _SHORT_KEYS, PARTIAL_SCHEMA)


def merge_usage(parts: Iterable[Any]) -> Any:
    """Return partial sums, added up and in the order of their keys."""
    return add_up(pa.concat_tables([PARTIAL_SCHEMA.empty_table(), *parts]), HOUR_KEYS, PARTIAL_SCHEMA)


def daily_rows(hourly: Any) -> Any:
    """Return rows of usage_hourly with their date, summed up by day."""
    return add_up(hourly, ("usage_date", *DAY_KEYS), USAGE_DAILY.schema)


def control_totals(rows: Any) -> dict[str, int]:
    """Return the control totals of rows of usage_hourly or usage_daily, by the names that all layers have."""
    names = {"rows": "requests", "messages": "messages", "bytes": "bytes", "chunks": "chunks"}
    found = {measure: pc.sum(rows.column(name)).as_py() or 0 for measure, name in names.items()}
    errors = (pc.sum(rows.column(name)).as_py() or 0 for name in ("errors_4xx", "errors_5xx"))
    return found | {"errors": sum(errors)}


def day_sums(rows: Any) -> dict[str, int]:
    """Return the sums of rows of usage_daily that ops.closes has."""
    totals = control_totals(rows)
    return {
        "requests": totals["rows"],
        "billed_requests": pc.sum(rows.column("billed_requests")).as_py() or 0,
        **{name: totals[name] for name in ("messages", "bytes", "chunks", "errors")},
    }


def with_date(hourly: Any) -> Any:
    """Return rows of usage_hourly with the partition column."""
    dates = hourly.column("hour").cast(pa.date32())
    return (
        hourly.append_column("usage_date", dates).select(USAGE_HOURLY.schema.names).cast(USAGE_HOURLY.schema)
    )

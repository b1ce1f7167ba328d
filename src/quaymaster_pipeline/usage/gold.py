"""Gold: what was used in each hour and day, by account, queue and action.

A batch of silver is added to the hours that it touches: their rows are read, summed with the batch's, and replaced in
one commit that names the batch, so it counts once whatever is killed. Integers only: sums do not depend on the order.
A backfill sums the hours up anew from silver, and must find the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.usage.rules import NOBODY_KEY
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import USAGE_DAILY, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse
from quaymaster_pipeline.warehouse.times import bound_of_time

APP = "gold"
TOTALS = "totals"
"""The note of usage_hourly with the control totals of all its rows."""
HOUR_KEYS = ("hour", "region", "account_id", "queue_sk", "action")
"""What tells rows of usage_hourly apart; the columns in ALONG go with them."""
ALONG = ("queue_name", "queue_type", "billing_class")
SUMS = (
    *(
        "requests",
        "billed_requests",
        "chunks",
        "messages",
        "bytes",
        "empty_receives",
        "errors_4xx",
        "errors_5xx",
    ),
    *("bytes_in", "bytes_out", "latency_us_sum", "source_rows", "duplicates"),
)
MAXIMA = ("latency_us_max", "revision")
_SHORT_KEYS = ("hour", "region", "account_sk", "queue_sk", "op")
"""Integers that stand for HOUR_KEYS."""
USED = (
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
    *("duplicates", "empty_receive", "http_status", "latency_us"),
)
"""The columns of usage_events that sums are made of."""
_CODE_MAX = 1 << 62
_SPAN_MAX = 1 << 20
"""Integers that lie so near to each other are taken as they are."""
_HOURLY = USAGE_HOURLY.schema
PARTIAL_SCHEMA = pa.schema([_HOURLY.field(name) for name in (*HOUR_KEYS, *ALONG, *SUMS, *MAXIMA)])


def partial_usage(usage: Any) -> Any:
    """Return rows of usage_events, summed up by hour, account, queue and action. `revision` is 0.

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
            "revision": pa.repeat(pa.scalar(0, pa.int64()), usage.num_rows),
        }
    )
    return _add_up(rows, _SHORT_KEYS, PARTIAL_SCHEMA)


def merge_usage(parts: Iterable[Any]) -> Any:
    """Return partial sums, added up and in the order of their keys."""
    table = pa.concat_tables([PARTIAL_SCHEMA.empty_table(), *parts])
    return _add_up(table, HOUR_KEYS, PARTIAL_SCHEMA)


def add_batch(warehouse: Warehouse, batch_id: int, usage: Any) -> bool:
    """Add a batch's sums to the hours that it touches. False, and nothing done, when gold has the batch."""
    hourly = warehouse.table(USAGE_HOURLY)
    if hourly.last_batch(APP) >= batch_id:
        return False
    touched = pc.unique(usage.column("hour"))
    files = files_of_hours(hourly.files(), touched)
    merged = merge_usage([hourly.read(PARTIAL_SCHEMA.names, files=files), usage])
    commit_hours(warehouse, APP, batch_id, raise_revision(merged, touched), files)
    return True


def commit_hours(
    warehouse: Warehouse,
    app: str,
    batch_id: int,
    usage: Any,
    replaced: list[DataFile],
    broken: Collection[str] = (),
) -> None:
    """Replace files of usage_hourly by these rows, a file an hour. `broken` are paths that cannot be read."""
    hourly = warehouse.table(USAGE_HOURLY)
    rows = with_date(usage)
    adds: list[DataFile] = []
    for hour in pc.unique(rows.column("hour")):
        adds += hourly.write(f"{app}-{batch_id}", rows.filter(pc.equal(rows.column("hour"), hour)))
    dates = sorted({str(file.partition_value) for file in (*adds, *replaced)})
    if broken:  # nobody knows what they counted for: what stays is counted
        gone = {file.path for file in replaced}
        left = [file for file in hourly.files() if file.path not in gone]
        totals = Counter(control_totals(hourly.read(files=left)))
    else:
        totals = Counter(hourly.note(TOTALS))
        totals.subtract(control_totals(hourly.read(files=replaced)))
    totals.update(control_totals(rows))
    hourly.commit(
        app,
        batch_id,
        adds,
        removes=replaced,
        note={"dates": dates},
        shared_notes={TOTALS: dict(totals)},
        is_alone=True,  # or the totals would be without what others added meanwhile
    )


def control_totals(rows: Any) -> dict[str, int]:
    """Return the control totals of rows of usage_hourly or usage_daily, by the names that all layers have."""
    names = {"rows": "requests", "messages": "messages", "bytes": "bytes", "chunks": "chunks"}
    found = {measure: pc.sum(rows.column(name)).as_py() or 0 for measure, name in names.items()}
    errors = (pc.sum(rows.column(name)).as_py() or 0 for name in ("errors_4xx", "errors_5xx"))
    return found | {"errors": sum(errors)}


def add_days(warehouse: Warehouse, batch_id: int) -> None:
    """Sum up anew the days that the batch of usage_hourly touched; once a batch."""
    daily, hourly = warehouse.table(USAGE_DAILY), warehouse.table(USAGE_HOURLY)
    if daily.last_batch(APP) >= batch_id or hourly.last_batch(APP) < batch_id:
        return
    dates = hourly.note(APP)["dates"]
    files = [file for file in hourly.files() if file.partition_value in dates]
    replace_days(warehouse, APP, batch_id, daily_rows(hourly.read(files=files)), dates)


def replace_days(
    warehouse: Warehouse, app: str, batch_id: int, rows: Any, dates: Collection[str | None]
) -> None:
    """Put rows in place of those that usage_daily has of these dates."""
    daily = warehouse.table(USAGE_DAILY)
    removes = [file for file in daily.files() if file.partition_value in dates]
    daily.commit(app, batch_id, daily.write(f"{app}-{batch_id}", rows), removes=removes)


def daily_rows(hourly: Any) -> Any:
    """Return rows of usage_hourly, summed up by day."""
    return _add_up(hourly, ("usage_date", "region", "account_id", "queue_sk", "action"), USAGE_DAILY.schema)


def _add_up(table: Any, keys: Sequence[str], schema: Any) -> Any:
    """Return rows with the same keys as one, in the order of the keys, with the columns of `schema`.

    Whatever is in neither SUMS nor MAXIMA must be the same in rows with the same keys.
    """
    if table.num_rows == 0:
        return schema.empty_table()
    codes = _codes(table, keys)
    # Sorted as one number, keys of any kind cost what one column of integers does: half of a hash table of all of them.
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    representatives = pa.array(order[firsts])
    columns = []
    for field in schema:
        column = table.column(field.name)
        if field.name in SUMS or field.name in MAXIMA:
            values = pc.fill_null(column, 0).to_numpy()[order]
            reduce = np.add if field.name in SUMS else np.maximum
            columns.append(pa.array(reduce.reduceat(values, firsts)).cast(field.type))
        else:
            columns.append(column.take(representatives).cast(field.type))
    return pa.table(columns, schema=schema)


def _codes(table: Any, keys: Sequence[str]) -> Any:
    """Return an int64 for each row, equal where the keys are, and in their order."""
    codes, size = np.zeros(table.num_rows, np.int64), 1
    for name in keys:
        values, ranks = _ranks(table.column(name))
        if size * values > _CODE_MAX:
            kept, codes = np.unique(codes, return_inverse=True)
            size = len(kept)
        codes, size = codes * values + ranks, size * values
    return codes


def _ranks(column: Any) -> tuple[int, Any]:
    """Return how many numbers are needed for a column's values, and one for each row, in the order of the values."""
    kind = column.type
    is_number = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind)
    if is_number and not column.null_count:
        numbers = (column.cast(pa.int32()) if pa.types.is_date(kind) else column).cast(pa.int64()).to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < _SPAN_MAX:
            return high - low + 1, numbers - low
        found, ranks = np.unique(numbers, return_inverse=True)
        return len(found), ranks
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    found = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(found), np.int64)
    ranks[found] = np.arange(len(found))
    return len(found), ranks[encoded.indices.to_numpy()]


def raise_revision(usage: Any, hours: Any) -> Any:
    """Return rows with the revision of the given hours raised, so that each row of an hour has the same."""
    revisions = usage.group_by("hour").aggregate([("revision", "max")])
    is_raised = pc.is_in(revisions.column("hour"), hours)
    raised = pc.add(revisions.column("revision_max"), is_raised.cast(pa.int64()))
    at = pc.index_in(usage.column("hour"), revisions.column("hour").combine_chunks())
    column = usage.schema.get_field_index("revision")
    return usage.set_column(column, PARTIAL_SCHEMA.field("revision"), raised.take(at))


def files_of_hours(files: Iterable[DataFile], hours: Any) -> list[DataFile]:
    """Return the files of usage_hourly that may have rows of these hours."""
    wanted = [bound_of_time(hour) for hour in hours.to_pylist()]
    return [
        file
        for file in files
        if any(file.bounds["hour"][0] <= hour <= file.bounds["hour"][1] for hour in wanted)
    ]


def with_date(usage: Any) -> Any:
    """Return rows of usage_hourly with their partition column."""
    dates = usage.column("hour").cast(pa.date32())
    return usage.append_column("usage_date", dates).select(_HOURLY.names).cast(_HOURLY)

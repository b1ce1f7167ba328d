"""How long requests took: counts by powers of two, which add up over hours, front ends and actions.

A row counts the requests of an hour, region, action and kind of queue that took less than `below_us`, and at least half
of that (0 where `below_us` is 1). So a percentile is known to a factor of two, from a few hundred rows an hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import LATENCY_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse

APP: Final = "gold"
KEYS: Final = ("hour", "region", "action", "queue_type", "below_us")
PARTIAL_SCHEMA: Final = pa.schema([LATENCY_HOURLY.schema.field(name) for name in (*KEYS, "requests")])


def partial_latency(usage: Any) -> Any:
    """Return rows of usage_events, counted by hour, region, action, kind of queue and power of two."""
    columns = {name: usage.column(name) for name in KEYS[:-1]}
    latency_us = pc.fill_null(usage.column("latency_us"), 0).to_numpy()
    # The exponent e of frexp is the number of bits: 2 ** (e - 1) <= n < 2 ** e.
    bits = np.frexp(latency_us.astype(np.float64))[1].astype(np.int64)
    columns["below_us"] = pa.array(np.left_shift(np.int64(1), bits))
    columns["requests"] = pa.repeat(pa.scalar(1, pa.int64()), usage.num_rows)
    return merge_latency([pa.table(columns).cast(PARTIAL_SCHEMA)])


def merge_latency(parts: Iterable[Any]) -> Any:
    """Return counts, added up and in the order of their keys."""
    table = pa.concat_tables([PARTIAL_SCHEMA.empty_table(), *parts])
    summed = table.group_by(list(KEYS)).aggregate([("requests", "sum")])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.select(PARTIAL_SCHEMA.names).sort_by([(name, "ascending") for name in KEYS])


def add_batch(warehouse: Warehouse, batch_id: int, counts: Any) -> bool:
    """Add a batch's counts to the days that it touches. False, and nothing done, when the table has the batch."""
    table = warehouse.table(LATENCY_HOURLY)
    if table.last_batch(APP) >= batch_id:
        return False
    dates = {str(date) for date in pc.unique(counts.column("hour").cast(pa.date32())).to_pylist()}
    files = [file for file in table.files() if file.partition_value in dates]
    merged = merge_latency([table.read(PARTIAL_SCHEMA.names, files=files), counts])
    commit_counts(warehouse, APP, batch_id, merged, files)
    return True


def commit_counts(
    warehouse: Warehouse, app: str, batch_id: int, counts: Any, replaced: list[DataFile]
) -> None:
    """Put counts in place of files."""
    table = warehouse.table(LATENCY_HOURLY)
    dates = counts.column("hour").cast(pa.date32())
    rows = counts.append_column("usage_date", dates).select(LATENCY_HOURLY.schema.names)
    table.commit(app, batch_id, table.write(f"{app}-{batch_id}", rows), removes=replaced)

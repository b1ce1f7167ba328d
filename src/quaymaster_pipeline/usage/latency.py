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

from quaymaster_pipeline.warehouse.schemas import LATENCY_HOURLY
from quaymaster_pipeline.warehouse.sums import SumTable, add_up
from quaymaster_pipeline.warehouse.times import DAY_US

KEYS: Final = ("hour", "region", "action", "queue_type", "below_us")
LATENCY: Final = SumTable(LATENCY_HOURLY, KEYS, "usage_date", DAY_US, merges_max=2)
PARTIAL_SCHEMA: Final = LATENCY_HOURLY.file_schema


def partial_latency(usage: Any) -> Any:
    """Return rows of usage_events, counted by hour, region, action, kind of queue and power of two."""
    columns = {name: usage.column(name) for name in KEYS[:-1]}
    latency_us = pc.fill_null(usage.column("latency_us"), 0).to_numpy()
    # The exponent e of frexp is the number of bits: 2 ** (e - 1) <= n < 2 ** e.
    bits = np.frexp(latency_us.astype(np.float64))[1].astype(np.int64)
    columns["below_us"] = pa.array(np.left_shift(np.int64(1), bits))
    columns["requests"] = pa.repeat(pa.scalar(1, pa.int64()), usage.num_rows)
    columns["first_batch"] = columns["last_batch"] = usage.column("batch_id")
    return merge_latency([pa.table(columns).cast(PARTIAL_SCHEMA)])


def merge_latency(parts: Iterable[Any]) -> Any:
    """Return counts, added up and in the order of their keys."""
    return add_up(pa.concat_tables([PARTIAL_SCHEMA.empty_table(), *parts]), KEYS, PARTIAL_SCHEMA)


def with_date(counts: Any) -> Any:
    """Return counts with the partition column."""
    return counts.append_column("usage_date", counts.column("hour").cast(pa.date32()))

"""Whether rows of usage_hourly are the sums of usage_events: by hour, region, account, queue and action.

Rows of gold with the same keys are added up first, so partial sums are as good as whole ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from quaymaster_pipeline.checks.usage_breaks import UsageBreak, shown
from quaymaster_pipeline.usage.gold import ALONG, HOUR_KEYS, HOURLY
from quaymaster_pipeline.warehouse.schemas import USAGE_HOURLY
from quaymaster_pipeline.warehouse.sums import add_up
from quaymaster_pipeline.warehouse.times import text_of_time

MAXIMUM: Final = "latency_us_max"
SUMS: Final = HOURLY.sums
COMPARED: Final = (*HOUR_KEYS, *ALONG, *SUMS, MAXIMUM)
"""The columns of usage_hourly that are compared."""
_KEYS: Final = (*HOUR_KEYS, *ALONG)
_SCHEMA: Final = pa.schema([USAGE_HOURLY.schema.field(name) for name in COMPARED])


def added_up(parts: Iterable[Any]) -> Any:
    """Return sums, a row for each key, in the order of the keys. They can be added up further."""
    table = pa.concat_tables(part.select(COMPARED).cast(_SCHEMA) for part in [_SCHEMA.empty_table(), *parts])
    return add_up(table, _KEYS, _SCHEMA)


def compare_hours(of_silver: Any, of_gold: Any) -> Iterator[UsageBreak]:
    """Yield keys whose sums differ. Both are as `added_up` gives them."""
    if of_gold.equals(of_silver):
        return
    expected = {_key(row): row for row in of_silver.to_pylist()}
    for row in of_gold.to_pylist():
        right = expected.pop(_key(row), None)
        if right is None:
            yield _at(row, "silver has no such requests")
        elif row != right:
            name = next(name for name in COMPARED if row[name] != right[name])
            yield _at(row, f"{name} is {shown(row[name])}; silver says {shown(right[name])}", name)
    for row in expected.values():
        yield _at(row, "it is missing; silver has such requests")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in HOUR_KEYS)


def _at(row: dict[str, Any], reason: str, column: str | None = None) -> UsageBreak:
    hour = "none" if row["hour"] is None else text_of_time(row["hour"])
    of = f"{row['action']} on queue {row['queue_name'] or row['queue_sk']} in {row['region']}: {reason}"
    return UsageBreak(USAGE_HOURLY.name, of, column=column, hour=hour, account_id=row["account_id"])

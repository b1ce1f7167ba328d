"""Whether rows of usage_hourly are the sums of usage_events: by hour, region, account, queue and action.

Rows of gold with the same keys are added up first, so partial sums are as good as whole ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from quaymaster_pipeline.checks.usage_breaks import UsageBreak, shown
from quaymaster_pipeline.usage.gold import ALONG, HOURLY
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.schemas import HOUR_KEYS, USAGE_HOURLY
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


def rows_of_file(path: str) -> str:
    """Return under which name tasks count the rows that they added up of a file."""
    return f"rows of {path}"


def sum_of_day(date: str, name: str) -> str:
    """Return under which name tasks answer a sum over the hours of a day whose requests have expired."""
    return f"{name} of {date}"


def judge_files(files: Iterable[DataFile], counts: Mapping[str, int]) -> Iterator[UsageBreak]:
    """Yield files of gold of which not every row was added up, or more than the table's log says they have.

    Tasks are given the files of some hours, by the log's statistics. Where these lie, rows are in no task's hours.
    """
    for file in files:
        found = counts.get(rows_of_file(file.path), 0)
        if found != file.rows:
            hour = file.bounds.get("hour", (None, None))[0]
            has = f"the table's log says that it has {file.rows}"
            reason = f"{found} rows of the file {file.path} are in the hours that it is said to have; {has}"
            yield UsageBreak(USAGE_HOURLY.name, reason, hour=None if hour is None else f"{hour[:19]}Z")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in HOUR_KEYS)


def _at(row: dict[str, Any], reason: str, column: str | None = None) -> UsageBreak:
    hour = "none" if row["hour"] is None else text_of_time(row["hour"])
    of = f"{row['action']} on queue {row['queue_name'] or row['queue_sk']} in {row['region']}: {reason}"
    return UsageBreak(USAGE_HOURLY.name, of, column=column, hour=hour, account_id=row["account_id"])

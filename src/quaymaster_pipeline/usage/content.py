"""Of which days tables have what was recorded of clients: by the bounds of their files alone, no row is read."""

from __future__ import annotations

import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.schemas import BLOCKS, QUARANTINE
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

CONTENT_DAYS_MAX: Final = 60
"""Content older than so many days has outlived its retention: nothing lets it expire, or something fails to."""
_SIZES: Final = ((BLOCKS, "content_bytes"), (QUARANTINE, "raw_bytes"))


class ContentSpan(NamedTuple):
    """The days on which the oldest and the newest content was taken that blocks and quarantine have."""

    oldest: datetime.date
    newest: datetime.date

    def is_overdue(self, now: datetime.datetime) -> bool:
        """Return whether the oldest content is too old."""
        return now.astimezone(datetime.UTC).date() - self.oldest > datetime.timedelta(CONTENT_DAYS_MAX)


def content_span(warehouse: Warehouse) -> ContentSpan | None:
    """Return of which days there is content; None where there is none."""
    days = pa.chunked_array([_days_of(warehouse.table(spec), size) for spec, size in _SIZES], pa.date32())
    found = pc.min_max(days).as_py()
    return None if found["min"] is None else ContentSpan(found["min"], found["max"])


def _days_of(table: Table, size: str) -> Any:
    """Return the dates of the files that have content."""
    lines = table.file_lines()
    if f"max.{size}" not in lines.column_names:
        return pa.array([], pa.date32())
    lines = lines.filter(pc.greater(lines.column(f"max.{size}"), 0))
    return lines.column(f"partition.{table.spec.partition_column}").combine_chunks()

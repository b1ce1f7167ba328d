"""Rows and files of some batches, of any table whose rows say which batch they are of."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.tables import Table, within


def in_batches(rows: Any, first: int, last: int) -> Any:
    """Return the rows of these batches, both included."""
    return rows.filter(within(rows.column("batch_id"), first, last + 1))


def files_of_batches(table: Table, first: int, last: int) -> list[DataFile]:
    """Return the files that may have rows of these batches, both included."""
    return table.files(lines_of_batches(table, first, last))


def lines_of_batches(table: Table, first: int, last: int) -> Any:
    """Return the `file_lines` of the files that may have rows of these batches, both included."""
    lines = table.file_lines()
    if not lines.num_rows:
        return lines
    lines = lines.filter(pc.greater_equal(lines.column("max.batch_id"), first))
    return lines.filter(pc.less_equal(lines.column("min.batch_id"), last))

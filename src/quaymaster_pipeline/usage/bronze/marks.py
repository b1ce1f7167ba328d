"""Marks of blocks that came twice, overlap others or are damaged: ops.block_marks, which follows bronze.blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.tasks import answer_files
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, write_rows
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS
from quaymaster_pipeline.warehouse.tables import Warehouse


def answer_marks(place: TablePlace, batch_id: int, blocks: Any, states: Sequence[str]) -> Iterator[Any]:
    """Write the marks of these blocks, a state each, and yield the answers of their files. In a task."""
    columns = {
        "batch_id": pa.repeat(pa.scalar(batch_id, pa.int64()), len(states)),
        "state": pa.array(states, pa.string()),
    }
    names = BLOCK_MARKS.schema.names
    rows = pa.table(
        [columns[name] if name in columns else blocks.column(name) for name in names],
        schema=BLOCK_MARKS.schema,
    )
    yield from answer_files(BLOCK_MARKS.name, write_rows(place, BLOCK_MARKS, f"{BRONZE}-{batch_id}", rows))


def commit_marks(warehouse: Warehouse) -> None:
    """Add the marks of the last batch to ops.block_marks, unless they are there or there are none."""
    blocks = warehouse.table(BLOCKS)
    files = [DataFile.of_note(fields) for fields in blocks.note(BRONZE).get("marks", [])]
    if files:
        warehouse.table(BLOCK_MARKS).commit(BRONZE, blocks.last_batch(BRONZE), files)

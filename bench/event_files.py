"""Parquet files of made-up usage events with ids, some of which come twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.pipeline import EVENTS_PER_FILE, make_events
from quaymaster_pipeline.warehouse.data_files import ROW_GROUP_ROWS

TWICE = 100
"""One event in so many is there twice."""


def write_files(folder: Path, events: int) -> None:
    """Write the files, unless they are there.

    Of the events that come twice every other one does so in the file after its own, as what was sent again does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before: pa.Table | None = None
    for path, first in zip(files_of(folder, events), range(0, events, EVENTS_PER_FILE), strict=True):
        count = min(EVENTS_PER_FILE, events - first)
        late = EVENTS_PER_FILE // TWICE // 2 if first else 0
        if (
            path.exists()
            and pq.read_metadata(path).num_rows == count + len(range(0, count, 2 * TWICE)) + late
        ):
            before = None
            continue
        rows = with_ids(make_events(first, count), first)
        if first and before is None:
            before = with_ids(make_events(first - EVENTS_PER_FILE, EVENTS_PER_FILE), first - EVENTS_PER_FILE)
        again = [rows.take(pa.array(np.arange(0, count, 2 * TWICE)))]
        if before is not None:
            again.append(before.take(pa.array(np.arange(TWICE, EVENTS_PER_FILE, 2 * TWICE))))
        before = rows
        texts = [
            field.name for field in rows.schema if pa.types.is_string(field.type) and field.name != "event_id"
        ]
        part = path.with_suffix(".part")
        pq.write_table(
            pa.concat_tables([rows, *again]),
            part,
            compression="zstd",
            compression_level=1,
            use_dictionary=texts,
            row_group_size=ROW_GROUP_ROWS,
        )
        part.rename(path)


def with_ids(rows: pa.Table, seed: int) -> pa.Table:
    """Return rows with ids that begin with the millisecond, as a UUIDv7 does, and differ in the rest."""
    time_ms = rows.column("event_time").cast(pa.int64()).to_numpy() // 1000
    octets = np.concatenate(
        (
            time_ms.astype(">i8").view(np.uint8).reshape(-1, 8),
            np.random.default_rng(seed + 1).integers(0, 256, (rows.num_rows, 10), np.uint8),
        ),
        axis=1,
    )
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    texts = digits[np.stack((octets >> 4, octets & 15), axis=2)].reshape(-1)
    offsets = np.arange(rows.num_rows + 1, dtype=np.int32) * 36
    ids = pa.StringArray.from_buffers(rows.num_rows, pa.py_buffer(offsets), pa.py_buffer(texts))
    return rows.append_column("event_id", ids)


def files_of(folder: Path, events: int) -> list[Path]:
    return [folder / f"events-{first:012}.parquet" for first in range(0, events, EVENTS_PER_FILE)]


def size_mib(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths) >> 20

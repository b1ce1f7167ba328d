"""One stretch as one Parquet file: written, and compared row by row with the log it is from.

    queue-<queue id>/date=2026-11-22/p0-00000000000000000001-00000000000001048577.parquet

The name follows from the stretch, so that writing it again after a crash replaces what was begun.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, sync_file
from quaymaster_pipeline.warehouse.errors import telling_full_disk
from quaymaster_pipeline.warehouse.times import bound_of_time, time_of_us

GROUP_ROWS_MAX: Final = 65_536
GROUP_BYTES_MAX: Final = 32 << 20
"""A row group ends with so many rows or bytes: as much is held in memory."""
READ_BYTES: Final = 4 << 20
COLUMNS: Final = MESSAGES.file_schema.names
_NAME: Final = re.compile(r"p(\d+)-(\d{20})-\d{20}(?:-r\d+)?\.parquet")
_REPEATING: Final = ["queue", "queue_id", "key", "sender_id"]


class NotAsArchived(Exception):
    """A file is not what the log has, or not what it was when it was verified."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a file has that was compared. Times in ms since 1970."""

    rows: int
    value_bytes: int
    file_bytes: int
    sha256: str
    first_ms: int
    last_ms: int


def path_of(queue_id: str, partition: int, first: int, end: int, first_ms: int, revision: int = 0) -> str:
    """Return the file of a stretch; `revision` counts how often rows were erased from it."""
    suffix = f"-r{revision}" if revision else ""
    name = f"p{partition}-{first:020d}-{end:020d}{suffix}.parquet"
    return f"queue-{queue_id}/date={date_of(first_ms)}/{name}"


def parse_name(name: str) -> tuple[int, int] | None:
    """Return partition and first offset of a file of the archive by its name; None when it is none."""
    found = _NAME.match(name)
    return None if found is None else (int(found[1]), int(found[2]))


def date_of(time_ms: int) -> datetime.date:
    """Return the day of a time, in UTC."""
    return time_of_us(time_ms * 1_000).date()


def write_file(place: TablePlace, path: str, queue_id: str, batches: Iterable[Any]) -> None:
    """Write messages, `pyarrow.RecordBatch`es with the columns of the log API, as one file; durable on return.

    What was begun and not finished is not there under this name; in an object store nothing is there before its end.
    """
    with telling_full_disk(place.uri):
        try:
            _write(place, path, queue_id, batches)
        except Exception:
            # Where the disk is full, what was begun takes no room.
            if place.is_local:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(place.uri, f"{path}.tmp"))
            raise


def verify_file(place: TablePlace, path: str, first: int, end: int, batches: Iterable[Any]) -> Verified:
    """Return what a file has, after each of its rows was compared with the log's `batches`, and each body with its MD5.

    Raises:
        NotAsArchived: a row differs, is missing or is too many.
    """
    groups = _rows_of(place, path)
    rest: Any = None
    at, value_bytes = first, 0
    first_ms = last_ms = None
    for batch in batches:
        while rest is None or rest.num_rows < batch.num_rows:
            more = next(groups, None)
            if more is None:
                raise NotAsArchived(f"{path} ends before {end}")
            rest = more if rest is None else pa.concat_tables([rest, more])
        rows, rest = rest.slice(0, batch.num_rows), rest.slice(batch.num_rows)
        expected = pa.Table.from_batches([batch]).select(MESSAGES.file_schema.names[:-1])
        if not rows.select(expected.column_names).combine_chunks().equals(expected.combine_chunks()):
            raise NotAsArchived(f"{path} differs from the log between {at} and {at + batch.num_rows}")
        if not np.array_equal(rows.column("offset").to_numpy(), np.arange(at, at + batch.num_rows)):
            raise NotAsArchived(f"{path} has no dense offsets from {at} on")
        value_bytes += _check_bodies(path, at, rows)
        if first_ms is None:
            first_ms = _ms_at(rows, 0)
        last_ms = _ms_at(rows, -1)
        at += batch.num_rows
    if at != end or first_ms is None or last_ms is None:
        raise NotAsArchived(f"{path}: the log gave messages up to {at}, not {end}")
    if (rest is not None and rest.num_rows) or next(groups, None) is not None:
        raise NotAsArchived(f"{path} has more messages than {first} to {end}")
    size, digest = digest_of(place, path)
    return Verified(at - first, value_bytes, size, digest, first_ms, last_ms)


def digest_of(place: TablePlace, path: str) -> tuple[int, str]:
    """Return size and SHA-256 of a file. OSError when it is not there."""
    digest, size = hashlib.sha256(), 0
    with place.filesystem().open_input_stream(path) as source:
        while data := source.read(READ_BYTES):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def data_file(path: str, queue_id: str, partition: int, first: int, end: int, verified: Verified) -> DataFile:
    """Return what the table's log says of a file: which stretch it has can be told from that alone."""
    times = tuple(
        bound_of_time(time_of_us(time_ms * 1_000)) for time_ms in (verified.first_ms, verified.last_ms)
    )
    bounds = {
        "queue_id": (queue_id, queue_id),
        "partition": (partition, partition),
        "offset": (first, end - 1),
        "timestamp": (times[0], times[1]),
    }
    return DataFile(
        path,
        verified.file_bytes,
        verified.rows,
        str(date_of(verified.first_ms)),
        bounds,
        dict.fromkeys(bounds, 0),
    )


def _write(place: TablePlace, path: str, queue_id: str, batches: Iterable[Any]) -> None:
    filesystem = place.filesystem()
    filesystem.create_dir(os.path.dirname(path), recursive=True)
    target = f"{path}.tmp" if place.is_local else path
    with (
        filesystem.open_output_stream(target) as sink,
        pq.ParquetWriter(
            sink, MESSAGES.file_schema, compression="zstd", compression_level=3, use_dictionary=_REPEATING
        ) as writer,
    ):
        waiting: list[Any] = []
        for batch in batches:
            waiting.append(_with_queue_id(batch, queue_id))
            if (
                sum(one.num_rows for one in waiting) >= GROUP_ROWS_MAX
                or sum(one.nbytes for one in waiting) >= GROUP_BYTES_MAX
            ):
                _write_group(writer, waiting)
        if waiting:
            _write_group(writer, waiting)
    if place.is_local:
        full = os.path.join(place.uri, path)
        sync_file(f"{full}.tmp")
        os.replace(f"{full}.tmp", full)
        sync_file(full)


def _with_queue_id(batch: Any, queue_id: str) -> Any:
    ids = pa.array([queue_id], pa.string()).take(pa.array([0] * batch.num_rows, pa.int32()))
    arrays = [ids if name == "queue_id" else batch.column(name) for name in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES.file_schema)


def _write_group(writer: Any, waiting: list[Any]) -> None:
    table = pa.Table.from_batches(waiting)
    writer.write_table(table, row_group_size=max(1, table.num_rows))
    waiting.clear()


def _rows_of(place: TablePlace, path: str) -> Iterator[Any]:
    with place.filesystem().open_input_file(path) as source:
        file = pq.ParquetFile(source)
        for number in range(file.num_row_groups):
            yield file.read_row_group(number).select(COLUMNS).cast(MESSAGES.file_schema)


def _check_bodies(path: str, at: int, rows: Any) -> int:
    """Compare each body with the MD5 that its sender was told, and return how many bytes they have."""
    values, sums = rows.column("value").to_pylist(), rows.column("md5_body").to_pylist()
    for number, (value, md5) in enumerate(zip(values, sums, strict=True)):
        if value is None and md5 is None:
            continue  # it was erased
        if value is None or hashlib.md5(value, usedforsecurity=False).hexdigest() != md5:
            raise NotAsArchived(f"{path}: the body at {at + number} is not the one that was sent")
    return int(pc.sum(pc.binary_length(rows.column("value"))).as_py() or 0)


def _ms_at(rows: Any, number: int) -> int:
    return int(rows.column("timestamp").cast(pa.int64())[number].as_py()) // 1_000

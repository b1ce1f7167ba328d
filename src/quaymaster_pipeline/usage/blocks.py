"""Blocks of usage records as Arrow tables: what a message of the usage queue becomes in bronze.

Rows are taken column by column, numbers as they lie in the block; what a block has once for many rows (its contexts) is
looked up by index. So a row costs no Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_blocks import (
    BlockHeader,
    UnknownBlockVersion,
    UsageBlock,
    check_sums,
    parse_block_text,
    split_block,
)
from quaymaster.protocol.usage.usage_records import (
    CHUNK_BYTES,
    SCHEMA_VERSION,
    UsageContext,
    event_id,
    event_seed,
)
from quaymaster.protocol.usage.usage_rows import CorruptBlock, UsageRows, check_rows
from quaymaster_pipeline.usage.sequences import BlockRange, IncarnationId
from quaymaster_pipeline.warehouse.schemas import REQUEST_COLUMNS, REQUEST_EVENTS, SEGMENTS
from quaymaster_pipeline.warehouse.times import time_of_us

DAMAGED = "damaged"
_CONTEXT_COLUMNS = UsageContext.__struct_fields__
_KINDS = {field.name: field.type for field in REQUEST_COLUMNS}
_FILE_SCHEMA = REQUEST_EVENTS.file_schema
_COLUMNS = [name for name in UsageRows.__struct_fields__ if name not in ("contexts", "changes")]
_NUMBER_KINDS = {b"B": "<u1", b"H": "<u2", b"I": "<u4", b"Q": "<u8"}
LARGEST = (1 << 63) - 1
"""Of the numbers that tables hold."""
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_UUID_DIGITS = [at for at in range(36) if at not in (8, 13, 18, 23)]


class Origin(NamedTuple):
    """The place of a message in the usage queue, and the batch that took it."""

    log_partition: int
    log_offset: int
    batch_id: int


def open_block(body: bytes) -> UsageBlock:
    """Return the block in a message's body, which is base64 or, in a file, the block itself.

    It is what `decode_block` gives, checked in the same way, but for its columns: arrays of numpy and of Arrow.

    Raises:
        CorruptBlock: it cannot be read.
        UnknownBlockVersion: a newer program wrote it.
    """
    header, packed, digest = split_block(body if body[1:4] == b"QMU" else parse_block_text(body))
    if packed is None:
        check_sums(header, 0, 0, 0)
        return UsageBlock(header, UsageRows([], [], [], [], [], [], [], [], [], [], [], []), digest)
    rows = UsageRows(
        packed.contexts,
        _numbers(packed.context),
        _numbers(packed.event_time) + header.time_min_us,
        _numbers(packed.latency),
        _numbers(packed.server),
        _numbers(packed.request_bytes),
        _numbers(packed.response_bytes),
        _numbers(packed.payload_bytes),
        _numbers(packed.message_count),
        _numbers(packed.duplicate_count),
        pc.split_pattern(pa.array([packed.request_ids], pa.string()), "\n").values,
        packed.changes,
    )
    columns = [getattr(rows, name) for name in _COLUMNS]
    check_rows(map(len, columns), int(np.max(rows.context, initial=0)), len(rows.contexts), rows.changes)
    check_sums(header, len(rows), int(np.sum(rows.message_count)), int(np.sum(rows.payload_bytes)))
    return UsageBlock(header, rows, digest)


def _numbers(packed: bytes) -> Any:
    """Return a packed column of numbers as int64."""
    try:
        found = np.frombuffer(packed, _NUMBER_KINDS[packed[:1]], offset=1).astype(np.int64)
    except (KeyError, ValueError) as error:
        raise CorruptBlock(f"a block's rows cannot be read: {error}") from None
    if found.size and found.min() < 0:
        raise CorruptBlock(f"a block's rows have a number above {LARGEST}")
    return found


def bronze_rows(block: UsageBlock, origin: Origin) -> Any:
    """Return a block's rows as a `pyarrow.Table` with the columns of a file of bronze.request_events."""
    header, rows = block.header, block.rows
    count = header.rows
    context = pa.array(rows.context, pa.int32())
    event_us = pa.array(rows.event_time_us, pa.int64())
    latency_us = pa.array(rows.latency_us, pa.int64())
    messages = pa.array(rows.message_count, pa.int64())
    payload = pa.array(rows.payload_bytes, pa.int64())
    first = header.first_row_sequence
    columns: dict[str, Any] = {
        name: pa.array([getattr(value, name) for value in rows.contexts], _KINDS[name]).take(context)
        for name in _CONTEXT_COLUMNS
    }
    is_receive = pa.array(
        [value.action == "ReceiveMessage" and value.http_status == 200 for value in rows.contexts], pa.bool_()
    )
    columns |= {
        "front_end": _repeated(header.front_end, count, pa.string()),
        "epoch": _repeated(header.incarnation, count, pa.int64()),
        "sequence": pa.array(range(first, first + count), pa.int64()),
        "event_id": _event_ids(header, rows.event_time_us),
        "schema_version": _repeated(SCHEMA_VERSION, count, pa.int16()),
        "event_time": event_us.cast(_KINDS["event_time"]),
        "received_time": pc.subtract(event_us, latency_us).cast(_KINDS["received_time"]),
        "region": _repeated(header.region, count, pa.string()),
        "request_id": rows.request_id
        if isinstance(rows.request_id, pa.Array)
        else pa.array(rows.request_id, pa.string()),
        "latency_us": latency_us,
        "server_us": pa.array(rows.server_us, pa.int64()),
        "request_bytes": pa.array(rows.request_bytes, pa.int64()),
        "response_bytes": pa.array(rows.response_bytes, pa.int64()),
        "payload_bytes": payload,
        "message_count": messages,
        # As `chunks_of`: whole chunks, rounded up, and at least one.
        "chunks": pc.max_element_wise(
            pc.divide(pc.add(payload, CHUNK_BYTES - 1), CHUNK_BYTES), pa.scalar(1, pa.int64())
        ),
        "empty_receive": pc.and_(is_receive.take(context), pc.equal(messages, 0)),
        "duplicate_count": pa.array(rows.duplicate_count, pa.int64()),
        **_changes(block),
        "log_partition": _repeated(origin.log_partition, count, pa.int32()),
        "log_offset": _repeated(origin.log_offset, count, pa.int64()),
        "block_row": pa.array(range(count), pa.int32()),
        "batch_id": _repeated(origin.batch_id, count, pa.int64()),
        "extra": pa.nulls(count, _FILE_SCHEMA.field("extra").type),
    }
    return pa.table([columns[name] for name in _FILE_SCHEMA.names], schema=_FILE_SCHEMA)


def segment_row(block: UsageBlock, origin: Origin) -> dict[str, Any]:
    """Return what ops.segments has of a block that could be read, but for its state."""
    header = block.header
    dropped, seal = header.dropped, header.seal
    return {
        **origin._asdict(),
        "front_end": header.front_end,
        "epoch": header.incarnation,
        "seq_lo": header.seq_lo,
        "seq_hi": header.seq_hi,
        "rows": header.rows,
        "messages": header.messages,
        "bytes": header.payload_bytes,
        "chunks": header.chunks,
        "errors": header.errors,
        "min_time": time_of_us(header.time_min_us) if header.rows else None,
        "max_time": time_of_us(header.time_max_us) if header.rows else None,
        "low_watermark": time_of_us(header.low_watermark_us),
        "sha256": block.digest,
        "previous": header.previous,
        "dropped": 0 if dropped is None else dropped.to_sequence - dropped.from_sequence,
        "dropped_reason": None if dropped is None else dropped.reason,
        "seal_epoch": None if seal is None else seal.incarnation,
        "seal_end": None if seal is None else seal.end_sequence,
        "seal_reason": None if seal is None else seal.reason,
    }


def damaged_segment_row(body: bytes, origin: Origin, damage: Exception) -> dict[str, Any]:
    """Return what ops.segments has of a block that could not be read."""
    return {**origin._asdict(), "state": DAMAGED, "rows": 0, "damage": str(damage), "raw": body}


def read_block(body: bytes, origin: Origin) -> tuple[dict[str, Any], Any | None]:
    """Return a message's line of ops.segments, and its rows for bronze if it has any."""
    try:
        block = open_block(body)
    except (CorruptBlock, UnknownBlockVersion) as error:
        return damaged_segment_row(body, origin, error), None
    return segment_row(block, origin), bronze_rows(block, origin) if block.header.rows else None


def segment_table(lines: Iterable[dict[str, Any]]) -> Any:
    """Return lines of ops.segments as a `pyarrow.Table`, in the order of the queue."""
    ordered = sorted(lines, key=lambda line: (line["log_partition"], line["log_offset"]))
    return pa.Table.from_pylist(ordered, schema=SEGMENTS.schema)


def block_ranges(segments: Any) -> list[BlockRange]:
    """Return the ranges of lines of ops.segments; none of them may be of a damaged block."""
    names = ("front_end", "epoch", "seq_lo", "seq_hi", "sha256", "seal_epoch", "seal_end", "seal_reason")
    columns = [segments.column(name).to_pylist() for name in names]
    columns.append(segments.column("low_watermark").cast(pa.int64()).to_pylist())
    return [
        BlockRange(
            IncarnationId(front_end, incarnation),
            seq_lo,
            seq_hi,
            sha256,
            low_us,
            None if seal_reason is None else IncarnationId(front_end, seal_incarnation),
            seal_end,
        )
        for front_end, incarnation, seq_lo, seq_hi, sha256, seal_incarnation, seal_end, seal_reason, low_us in zip(
            *columns, strict=True
        )
    ]


def _changes(block: UsageBlock) -> dict[str, Any]:
    """Return the columns that only management actions have."""
    count = block.header.rows
    texts: dict[str, list[str]] = {"request_params": [""] * count, "response_elements": [""] * count}
    hashes: dict[str, list[bytes]] = {"prev_hash": [b""] * count, "record_hash": [b""] * count}
    for change in block.rows.changes:
        for name, values in (*texts.items(), *hashes.items()):
            values[change.row] = getattr(change, name)  # type: ignore[index]
    return {name: pa.array(values, _KINDS[name]) for name, values in (*texts.items(), *hashes.items())}


def _event_ids(header: BlockHeader, times_us: Sequence[int]) -> Any:
    """Return what `event_id` gives for each row: only the time and the sequence differ from row to row."""
    base = int(event_id(event_seed(header.front_end, header.incarnation), 0, 0).replace("-", ""), 16)
    count = len(times_us)
    sequences = np.arange(header.first_row_sequence, header.first_row_sequence + count, dtype=np.uint64)
    halves = np.empty((count, 2), dtype=">u8")
    halves[:, 0] = (np.array(times_us, dtype=np.uint64) // 1000) << 16 | base >> 64
    halves[:, 1] = sequences | base & (1 << 64) - 1
    octets = halves.view(np.uint8)
    texts = np.full((count, 36), ord("-"), dtype=np.uint8)
    texts[:, _UUID_DIGITS] = _HEX_DIGITS[np.stack((octets >> 4, octets & 15), axis=2).reshape(count, 32)]
    offsets = np.arange(0, 36 * count + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))


def _repeated(value: Any, count: int, kind: Any) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)

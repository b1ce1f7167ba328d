"""Columns of a log (`log_columns`) as Apache Arrow's arrays, without copying.

It needs pyarrow: import it where it is wanted.

The schema is exact, because Spark takes no other: `string`, not `large_string`, timestamps in microseconds, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from quaymaster.protocol.logs.log_columns import BYTES_BUFFERS, Block, Buffers

_ATTRIBUTE: Final = pa.struct(
    [("type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())]
)
TYPES: Final[dict[str, Any]] = {
    "queue": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.string(),
    "value": pa.binary(),
    "message_id": pa.string(),
    "dedup_id": pa.string(),
    "sender_id": pa.string(),
    "attributes": pa.map_(pa.string(), _ATTRIBUTE),
    "system_attributes": pa.map_(pa.string(), pa.string()),
    "md5_body": pa.string(),
}
"""The type of each column."""


def arrow_schema(names: Iterable[str]) -> Any:
    """Return the schema of these columns."""
    return pa.schema([(name, TYPES[name]) for name in names])


def to_record_batch(block: Block) -> Any:
    """Return a block as a record batch; its arrays share the block's memory."""
    names = list(block.columns)
    arrays = [_array(TYPES[name], block.rows, block.columns[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def to_ipc_stream(block: Block) -> Any:
    """Return a block as an Arrow IPC stream of one record batch, in an object that bytes can be read from."""
    batch = to_record_batch(block)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _array(kind: Any, rows: int, buffers: Buffers) -> Any:
    if not pa.types.is_map(kind):
        validity, *others = buffers if len(buffers) > 1 else (b"", *buffers)
        shared = [pa.py_buffer(buffer) for buffer in others]
        return pa.Array.from_buffers(kind, rows, [pa.py_buffer(validity) if len(validity) else None, *shared])
    entries = int.from_bytes(buffers[0][-4:], "little")
    fields = [buffers[at : at + BYTES_BUFFERS] for at in range(1, len(buffers), BYTES_BUFFERS)]
    keys = _array(kind.key_type, entries, fields[0])
    items = (
        _array(kind.item_type, entries, fields[1]) if len(fields) == 2 else _structs(kind, entries, fields)
    )
    pairs = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(buffers[0])], children=[pairs])


def _structs(kind: Any, entries: int, fields: list[Buffers]) -> Any:
    parts = list(kind.item_type)
    arrays = [_array(part.type, entries, field) for part, field in zip(parts, fields[1:], strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=parts)

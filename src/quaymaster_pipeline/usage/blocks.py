"""Blocks of usage records as rows of bronze.blocks: what a message of the usage queue becomes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quaymaster.protocol.usage.usage_blocks import (
    BLOCK_MAGIC,
    BlockHeader,
    block_digest,
    decode_header,
    parse_block_text,
)
from quaymaster.protocol.usage.usage_rows import CorruptBlock
from quaymaster_pipeline.usage.sequences import BlockRange, IncarnationId
from quaymaster_pipeline.warehouse.schemas import BLOCKS, TIME

BRONZE: Final = "bronze"
"""The job that fills bronze.blocks."""
MEASURES: Final = ("rows", "messages", "bytes", "chunks", "errors")
"""The control totals of a layer."""
DAMAGED: Final = "damaged"
"""The state of a block that cannot be read."""
_BLOCKS = BLOCKS.file_schema


class BatchFacts(NamedTuple):
    """What all blocks of a batch have in common. Times are microseconds since 1970."""

    feed: str
    batch_id: int
    taken_us: int
    closed_until_us: int


class ReadBlock(NamedTuple):
    """A message of the usage queue: its place there, its bytes, and its header, or why that cannot be read."""

    log_partition: int
    log_offset: int
    content: bytes
    sha256: bytes | None
    header: BlockHeader | None
    damage: str | None


def read_block(log_partition: int, log_offset: int, body: bytes) -> ReadBlock:
    """Return the block in a message's body, which is base64 or, in a file, the block itself. Its CRC is checked.

    Raises:
        UnknownBlockVersion: a newer program wrote it.
    """
    content = body
    try:
        if body[1:4] != BLOCK_MAGIC:
            content = parse_block_text(body)
        header = decode_header(content)
    except CorruptBlock as error:
        return ReadBlock(log_partition, log_offset, content, None, None, str(error))
    digest = block_digest(content)
    return ReadBlock(log_partition, log_offset, content, digest, header, None)


def block_rows(found: Sequence[ReadBlock], batch: BatchFacts) -> Any:
    """Return blocks as rows of bronze.blocks, as a data file has them."""
    headers = [one.header for one in found]
    count = len(found)

    def of_headers(name: str, of_header: Callable[[BlockHeader], Any]) -> Any:
        values = [None if header is None else of_header(header) for header in headers]
        return pa.array(values, pa.int64()).cast(_BLOCKS.field(name).type)

    def texts(of_header: Callable[[BlockHeader], str | None]) -> Any:
        return pa.array([None if one is None else of_header(one) for one in headers], pa.string())

    columns = {
        "feed": _repeated(batch.feed, count, pa.string()),
        "log_partition": pa.array([one.log_partition for one in found], pa.int32()),
        "log_offset": pa.array([one.log_offset for one in found], pa.int64()),
        "batch_id": _repeated(batch.batch_id, count, pa.int64()),
        "taken_time": _repeated(batch.taken_us, count, pa.int64()).cast(TIME),
        "closed_until": _repeated(batch.closed_until_us, count, pa.int64()).cast(TIME),
        "front_end": texts(lambda header: header.front_end),
        "epoch": of_headers("epoch", lambda header: header.incarnation),
        "seq_lo": of_headers("seq_lo", lambda header: header.seq_lo),
        "seq_hi": of_headers("seq_hi", lambda header: header.seq_hi),
        "rows": of_headers("rows", lambda header: header.rows),
        "messages": of_headers("messages", lambda header: header.messages),
        "bytes": of_headers("bytes", lambda header: header.payload_bytes),
        "chunks": of_headers("chunks", lambda header: header.chunks),
        "errors": of_headers("errors", lambda header: header.errors),
        "min_time": of_headers("min_time", lambda header: header.time_min_us if header.rows else None),
        "max_time": of_headers("max_time", lambda header: header.time_max_us if header.rows else None),
        "low_watermark": of_headers("low_watermark", lambda header: header.low_watermark_us),
        "sha256": pa.array([one.sha256 for one in found], pa.binary()),
        "previous": pa.array([None if one is None else one.previous for one in headers], pa.binary()),
        "dropped": of_headers("dropped", _dropped_of),
        "dropped_reason": texts(lambda header: header.dropped.reason if header.dropped else None),
        "seal_epoch": of_headers(
            "seal_epoch", lambda header: header.seal.incarnation if header.seal else None
        ),
        "seal_end": of_headers("seal_end", lambda header: header.seal.end_sequence if header.seal else None),
        "seal_reason": texts(lambda header: header.seal.reason if header.seal else None),
        "damage": pa.array([one.damage for one in found], pa.string()),
        "content": pa.array([one.content for one in found], pa.binary()),
        "content_bytes": pa.array([len(one.content) for one in found], pa.int64()),
    }
    return pa.table([columns[name] for name in _BLOCKS.names], schema=_BLOCKS)


def _dropped_of(header: BlockHeader) -> int:
    dropped = header.dropped
    return 0 if dropped is None else dropped.to_sequence - dropped.from_sequence


BLOCK_RANGE_COLUMNS: Final = (
    *("front_end", "epoch", "seq_lo", "seq_hi", "sha256"),
    *("seal_epoch", "seal_end", "seal_reason", "low_watermark"),
)
"""The columns of bronze.blocks that `block_ranges` looks at."""


def block_ranges(blocks: Any) -> list[BlockRange]:
    """Return the ranges of rows of bronze.blocks; none of them may be of a damaged block."""
    columns = [blocks.column(name).to_pylist() for name in BLOCK_RANGE_COLUMNS[:-1]]
    columns.append(blocks.column("low_watermark").cast(pa.int64()).to_pylist())
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


def _repeated(value: Any, count: int, kind: Any) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)

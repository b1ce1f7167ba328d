"""Requests of blocks as Arrow tables, many blocks at a time.

Rows are taken column by column, numbers as they lie in the blocks; what a block has once for many rows (its contexts)
is looked up by index, and decoded once for all blocks. A small block has a context for nearly each of its rows, and
most of them are those of other blocks, too. So a row costs no Python object but its request id, and a block few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.usage.usage_blocks import UsageBlock, check_sums, inflate_block, split_block
from quaymaster.protocol.usage.usage_records import (
    CHUNK_BYTES,
    SCHEMA_VERSION,
    UsageContext,
    event_id,
    event_seed,
)
from quaymaster.protocol.usage.usage_rows import CorruptBlock, PackedRows, UsageRows, check_rows
from quaymaster_pipeline.warehouse.schemas import REQUEST_COLUMNS, REQUEST_SCHEMA

_CONTEXT_COLUMNS = UsageContext.__struct_fields__
_KINDS = {field.name: field.type for field in REQUEST_COLUMNS}
_COLUMNS = [name for name in UsageRows.__struct_fields__ if name not in ("contexts", "changes")]
_CHANGED = ("request_params", "response_elements", "prev_hash", "record_hash")
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


class Opened(NamedTuple):
    """A block with its rows, and where it came from."""

    block: UsageBlock
    origin: Origin


class _RawRows(PackedRows, array_like=True):
    """The rows of a block with their contexts as bytes."""

    contexts: list[msgspec.Raw]  # type: ignore[assignment]


_raw_rows = msgspec.msgpack.Decoder(_RawRows)
_context = msgspec.msgpack.Decoder(UsageContext)


class Contexts:
    """Contexts that were decoded: the same bytes are one object."""

    def __init__(self) -> None:
        self._known: dict[bytes, UsageContext] = {}

    def of(self, found: Sequence[msgspec.Raw]) -> list[UsageContext]:
        """Return contexts. Raises MsgspecError."""
        known, contexts = self._known, []
        for data in map(bytes, found):
            context = known.get(data)
            if context is None:
                context = known[data] = _context.decode(data)
            contexts.append(context)
        return contexts


class Unreadable(NamedTuple):
    """A block whose rows cannot be read, though its bytes are those that came: the how manyth it was, and why."""

    at: int
    reason: str


def open_blocks(blocks: Any) -> tuple[list[Opened], list[Unreadable]]:
    """Return the blocks of rows of bronze.blocks that have requests, and those of which they cannot be read.

    Blocks whose content has expired are in neither.
    """
    opened: list[Opened] = []
    unreadable: list[Unreadable] = []
    names = ("log_partition", "log_offset", "batch_id", "rows", "content")
    columns = (blocks.column(name).to_pylist() for name in names)
    contexts = Contexts()
    for at, (*origin, rows, content) in enumerate(zip(*columns, strict=True)):
        if rows and content is not None:
            try:
                opened.append(Opened(open_block(content, contexts), Origin(*origin)))
            except CorruptBlock as error:
                unreadable.append(Unreadable(at, str(error)))
    return opened, unreadable


def changes_of(blocks: Any) -> Iterator[Any]:
    """Yield the management actions among the requests of rows of bronze.blocks. Those that cannot be read have none."""
    for at, content in enumerate(blocks.column("content").to_pylist()):
        if content is None:  # it has expired
            continue
        try:
            _, packed, _ = split_block(content)
        except CorruptBlock:
            continue
        if packed is not None and packed.changes:
            rows = request_rows(open_blocks(blocks.slice(at, 1))[0])
            yield rows.filter(pc.equal(rows.column("category"), "management"))


def open_block(data: bytes, known: Contexts | None = None) -> UsageBlock:
    """Return a block with its rows. Contexts that are `known` are the same objects.

    It is what `decode_block` gives, checked in the same way, but for its columns of numbers: arrays of numpy.

    Raises:
        CorruptBlock: it cannot be read.
        UnknownBlockVersion: a newer program wrote it.
    """
    header, body, digest = inflate_block(data)
    if body is None:
        check_sums(header, 0, 0, 0)
        return UsageBlock(header, UsageRows([], [], [], [], [], [], [], [], [], [], [], []), digest)
    try:
        packed = _raw_rows.decode(body)
        contexts = (known or Contexts()).of(packed.contexts)
    except msgspec.MsgspecError as error:
        raise CorruptBlock(f"a block's rows cannot be read: {error}") from None
    rows = UsageRows(
        contexts,
        _numbers(packed.context),
        _numbers(packed.event_time) + header.time_min_us,
        _numbers(packed.latency),
        _numbers(packed.server),
        _numbers(packed.request_bytes),
        _numbers(packed.response_bytes),
        _numbers(packed.payload_bytes),
        _numbers(packed.message_count),
        _numbers(packed.duplicate_count),
        packed.request_ids.split("\n"),
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
    if packed[:1] == b"Q" and found.size and found.min() < 0:
        raise CorruptBlock(f"a block's rows have a number above {LARGEST}")
    return found


def request_rows(opened: Sequence[Opened]) -> Any:
    """Return the rows of blocks, one block after the other, as a `pyarrow.Table` of REQUEST_SCHEMA."""
    if not opened:
        return REQUEST_SCHEMA.empty_table()
    blocks = _Blocks(opened)
    contexts, context = blocks.contexts()
    # A column at a time: tuples, a context each, would cost the garbage collector twice what all else here does.
    of_contexts = {
        name: pa.array(list(map(attrgetter(name), contexts)), _KINDS[name]) for name in _CONTEXT_COLUMNS
    }
    is_receive = pc.and_(
        pc.equal(of_contexts["action"], "ReceiveMessage"), pc.equal(of_contexts["http_status"], 200)
    )
    event_us, latency_us = blocks.numbers("event_time_us"), blocks.numbers("latency_us")
    messages, payload = blocks.numbers("message_count"), blocks.numbers("payload_bytes")
    columns: dict[str, Any] = {name: column.take(context) for name, column in of_contexts.items()}
    columns |= {
        "front_end": blocks.repeated([one.block.header.front_end for one in opened], pa.string()),
        "epoch": blocks.repeated([one.block.header.incarnation for one in opened], pa.int64()),
        "sequence": pa.array(blocks.sequences),
        "event_id": _event_ids(blocks, event_us),
        "schema_version": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int16()), blocks.rows),
        "event_time": pa.array(event_us).cast(_KINDS["event_time"]),
        "received_time": pa.array(event_us - latency_us).cast(_KINDS["received_time"]),
        "region": blocks.repeated([one.block.header.region for one in opened], pa.string()),
        "request_id": pa.array([text for one in opened for text in one.block.rows.request_id], pa.string()),
        "latency_us": pa.array(latency_us),
        "server_us": pa.array(blocks.numbers("server_us")),
        "request_bytes": pa.array(blocks.numbers("request_bytes")),
        "response_bytes": pa.array(blocks.numbers("response_bytes")),
        "payload_bytes": pa.array(payload),
        "message_count": pa.array(messages),
        # As `chunks_of`: whole chunks, rounded up, and at least one.
        "chunks": pa.array(np.maximum(-(-payload // CHUNK_BYTES), 1)),
        "empty_receive": pc.and_(is_receive.take(context), pa.array(messages == 0)),
        "duplicate_count": pa.array(blocks.numbers("duplicate_count")),
        **_changes(blocks),
        "log_partition": blocks.repeated([one.origin.log_partition for one in opened], pa.int32()),
        "log_offset": blocks.repeated([one.origin.log_offset for one in opened], pa.int64()),
        "block_row": pa.array(blocks.numbers_in_block.astype(np.int32)),
        "batch_id": blocks.repeated([one.origin.batch_id for one in opened], pa.int64()),
    }
    return pa.table([columns[name] for name in REQUEST_SCHEMA.names], schema=REQUEST_SCHEMA)


class _Blocks:
    """Blocks laid end to end: a number for each row, of its block and within it."""

    def __init__(self, opened: Sequence[Opened]) -> None:
        self.opened = opened
        self.counts = np.array([one.block.header.rows for one in opened])
        self.begins = np.cumsum(self.counts) - self.counts
        self.rows = int(self.counts.sum())
        self.block_of = np.repeat(np.arange(len(opened)), self.counts)
        self._taken = pa.array(self.block_of)
        self.numbers_in_block = np.arange(self.rows) - np.repeat(self.begins, self.counts)
        firsts = np.array([one.block.header.first_row_sequence for one in opened], np.int64)
        self.sequences = np.repeat(firsts, self.counts) + self.numbers_in_block

    def numbers(self, name: str) -> Any:
        """Return a column of numbers."""
        return np.concatenate([np.asarray(getattr(one.block.rows, name), np.int64) for one in self.opened])

    def repeated(self, values: Sequence[Any], kind: Any) -> Any:
        """Return a column with a block's value in each of its rows."""
        return pa.array(values, kind).take(self._taken)

    def contexts(self) -> tuple[list[UsageContext], Any]:
        """Return the different contexts of all blocks, and the number among them of each row's."""
        places: dict[int, int] = {}
        contexts: list[UsageContext] = []
        numbers = []
        for one in self.opened:
            mine = []
            for context in one.block.rows.contexts:
                at = places.setdefault(id(context), len(contexts))
                if at == len(contexts):
                    contexts.append(context)
                mine.append(at)
            numbers.append(np.array(mine, np.int64)[np.asarray(one.block.rows.context)])
        return contexts, pa.array(np.concatenate(numbers))


def _changes(blocks: _Blocks) -> dict[str, Any]:
    """Return the columns that only management actions have."""
    changes = [
        (int(begin) + change.row, change)
        for begin, one in zip(blocks.begins, blocks.opened, strict=True)
        for change in one.block.rows.changes
    ]
    # Value 0 is that of all other rows.
    places = np.zeros(blocks.rows, np.int64)
    places[[row for row, _ in changes]] = np.arange(1, len(changes) + 1)
    taken = pa.array(places)
    columns = {}
    for name in _CHANGED:
        nothing: str | bytes = b"" if pa.types.is_binary(_KINDS[name]) else ""
        values = [nothing, *(getattr(change, name) for _, change in changes)]
        columns[name] = pa.array(values, _KINDS[name]).take(taken)
    return columns


def _event_ids(blocks: _Blocks, event_us: Any) -> Any:
    """Return what `event_id` gives for each row: only the time and the sequence differ within an incarnation."""
    owners = [(one.block.header.front_end, one.block.header.incarnation) for one in blocks.opened]
    known = {
        owner: int(event_id(event_seed(*owner), 0, 0).replace("-", ""), 16) for owner in dict.fromkeys(owners)
    }
    bases = [known[owner] for owner in owners]
    high, low = (
        np.array([base >> shift & (1 << 64) - 1 for base in bases], np.uint64)[blocks.block_of]
        for shift in (64, 0)
    )
    halves = np.empty((blocks.rows, 2), dtype=">u8")
    halves[:, 0] = (event_us.astype(np.uint64) // 1000) << 16 | high
    halves[:, 1] = blocks.sequences.astype(np.uint64) | low
    octets = halves.view(np.uint8)
    texts = np.full((blocks.rows, 36), ord("-"), dtype=np.uint8)
    texts[:, _UUID_DIGITS] = _HEX_DIGITS[
        np.stack((octets >> 4, octets & 15), axis=2).reshape(blocks.rows, 32)
    ]
    offsets = np.arange(0, 36 * blocks.rows + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(blocks.rows, pa.py_buffer(offsets), pa.py_buffer(texts))

"""Messages of a log in columns, in the buffers of Apache Arrow's memory layout, so that a reader copies nothing.

    version u8 (1) · magic "QMC" · rows u32 · columns u32 · head bytes u32
    for each column: id u8 · buffers u8 · reserved u16, then for each buffer: start u64 · length u64
    the buffers, each at a multiple of 64 bytes from the start

All little-endian; the head includes the places of the buffers. A column's kind says which buffers it has, in order:

    FIXED    data
    BYTES    validity bitmap (of no length when no value is null) · offsets i32[rows + 1] · data
    MAP      offsets i32[rows + 1] · the buffers of its entries' fields, each BYTES

To change the format: a new column takes an id that was never used, and readers leave out those they do not know; what
cannot be done so takes a new version byte, which a client asks for by another name in `Format`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from quaymaster.core.messages import MessageContent

COLUMNS_VERSION: Final = 1
COLUMNS_MAGIC: Final = b"QMC"
ALIGNMENT: Final = 64
BYTES_BUFFERS: Final = 3

_HEAD = struct.Struct("<B3sIII")
_COLUMN = struct.Struct("<BBH")
_PLACE = struct.Struct("<QQ")

Buffer = bytes | memoryview
Buffers = list[Buffer]


class Column(NamedTuple):
    """A column: its number in the format, the `width` of a FIXED one, how many fields the entries of a MAP have.

    `needs_content`: its values are in what is encrypted.
    """

    column_id: int
    width: int = 0
    fields: int = 0
    needs_content: bool = True

    @property
    def buffers(self) -> int:
        """How many buffers it has."""
        if self.width:
            return 1
        return 1 + BYTES_BUFFERS * self.fields if self.fields else BYTES_BUFFERS


COLUMNS: Final[Mapping[str, Column]] = {
    "queue": Column(1, needs_content=False),
    "partition": Column(2, width=4, needs_content=False),
    "offset": Column(3, width=8, needs_content=False),
    "timestamp": Column(4, width=8, needs_content=False),
    "key": Column(5),
    "value": Column(6),
    "message_id": Column(7, needs_content=False),
    "dedup_id": Column(8),
    "sender_id": Column(9),
    "attributes": Column(10, fields=4),
    "system_attributes": Column(11, fields=2),
    "md5_body": Column(12),
}
"""In the order of the schema that readers see. Timestamps are microseconds since 1970.

The fields of `attributes`: name, type, string value, bytes; of `system_attributes`: name, value.
"""

_NAMES = {column.column_id: name for name, column in COLUMNS.items()}


class Rows(msgspec.Struct, gc=False):
    """Messages of one partition: for each an entry in each list. `contents` is empty when no column needs it.

    `dead_letter_sources` are the ARNs of the queues they died in, None for others.
    """

    queue: str
    partition: int
    offsets: list[int]
    sent_ms: list[int]
    message_ids: list[bytes]
    dead_letter_sources: list[str | None]
    contents: list[MessageContent]


class Block(msgspec.Struct):
    """Rows in columns: the buffers of each, by its name."""

    rows: int
    columns: dict[str, Buffers]


class NotColumns(Exception):
    """The bytes are not columns this program can read."""


def columns_of(rows: Rows, names: Iterable[str]) -> Block:
    """Return messages in the columns asked for."""
    return Block(len(rows.offsets), {name: column_of(rows, name) for name in names})


def column_of(rows: Rows, name: str) -> Buffers:
    """Return one column of messages."""
    buffers: Buffers = _MAKE[name](rows)
    return buffers


def render_block(block: Block) -> list[Buffer]:
    """Return the parts of the bytes that `parse_block` reads; joined they are the format above."""
    head_bytes = _HEAD.size + sum(
        _COLUMN.size + _PLACE.size * len(buffers) for buffers in block.columns.values()
    )
    head = bytearray(_HEAD.pack(COLUMNS_VERSION, COLUMNS_MAGIC, block.rows, len(block.columns), head_bytes))
    at = _aligned(head_bytes)
    parts: list[Buffer] = [b""]
    filled = head_bytes
    for name, buffers in block.columns.items():
        head += _COLUMN.pack(COLUMNS[name].column_id, len(buffers), 0)
        for buffer in buffers:
            size = len(buffer)
            head += _PLACE.pack(at if size else 0, size)
            if size:
                parts += [bytes(at - filled), buffer]
                filled = at + size
            at = _aligned(at + size)
    parts[0] = bytes(head)
    return parts


def parse_block(data: Buffer) -> Block:
    """Return the columns in `data`, without copying: the buffers are views of it. NotColumns when there are none."""
    view = memoryview(data)
    try:
        version, magic, rows, count, head_bytes = _HEAD.unpack_from(view)
        if (version, magic) != (COLUMNS_VERSION, COLUMNS_MAGIC):
            raise NotColumns(f"columns of version {version} are not known, or it is something else")
        columns: dict[str, Buffers] = {}
        at = _HEAD.size
        for _ in range(count):
            column_id, buffer_count, _ = _COLUMN.unpack_from(view, at)
            at += _COLUMN.size
            places = [_PLACE.unpack_from(view, at + number * _PLACE.size) for number in range(buffer_count)]
            at += buffer_count * _PLACE.size
            if any(start + size > len(view) for start, size in places):
                raise NotColumns("the columns are cut short")
            name = _NAMES.get(column_id)
            if name is not None:
                columns[name] = [view[start : start + size] for start, size in places]
    except struct.error:
        raise NotColumns("the columns' head is cut short") from None
    if at != head_bytes or any(len(columns[name]) != COLUMNS[name].buffers for name in columns):
        raise NotColumns("the columns' head contradicts itself")
    return Block(rows, columns)


def slice_block(block: Block, start: int, stop: int) -> Block:
    """Return the rows [start, stop) of a block; offsets begin at 0 again."""
    if start == 0 and stop == block.rows:
        return block
    return Block(
        stop - start,
        {name: _slice_column(COLUMNS[name], buffers, start, stop) for name, buffers in block.columns.items()},
    )


def constant_text(value: str, count: int) -> Buffers:
    """Return the buffers of a BYTES column with one value throughout."""
    data = value.encode()
    return [
        b"",
        _offsets(range(0, len(data) * count + 1, len(data))) if data else bytes(4 * count + 4),
        data * count,
    ]


def constant_number(value: int, count: int) -> Buffers:
    """Return the buffers of a 4-byte FIXED column with one value throughout."""
    return [array("i", [value]).tobytes() * count]


def numbers(values: Iterable[int]) -> Buffers:
    """Return the buffers of an 8-byte FIXED column."""
    return [array("q", values).tobytes()]


# Making columns


def _texts(values: Sequence[str | None]) -> Buffers:
    nulls = values.count(None)
    count = len(values)
    if count and not nulls and values.count(values[0]) == count:
        return constant_text(str(values[0]), count)
    if nulls == count:
        return [bytes(-(-count // 8)), bytes(4 * count + 4), b""]
    present: Sequence[str] = [value or "" for value in values] if nulls else values  # type: ignore[assignment]
    joined = "".join(present)
    if joined.isascii():
        return [_validity(values, nulls), _offsets(accumulate(map(len, present), initial=0)), joined.encode()]
    encoded = [value.encode() for value in present]
    return [_validity(values, nulls), _offsets(accumulate(map(len, encoded), initial=0)), b"".join(encoded)]


def _blobs(values: Sequence[bytes | None]) -> Buffers:
    nulls = values.count(None)
    present = [value or b"" for value in values]
    return [_validity(values, nulls), _offsets(accumulate(map(len, present), initial=0)), b"".join(present)]


def _validity(values: Sequence[Any], nulls: int) -> bytes:
    """Return a bit for each value, the first one lowest; nothing when none is null."""
    if not nulls:
        return b""
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return int(bits, 2).to_bytes(-(-len(values) // 8), "little")


def _offsets(values: Iterable[int]) -> bytes:
    return array("i", values).tobytes()


def _uuids(ids: Sequence[bytes]) -> Buffers:
    """Return 16-byte ids as text in the form of a UUID: digit by digit, of all at once."""
    count = len(ids)
    digits = b"".join(ids).hex().encode()
    text = bytearray(36 * count)
    for at, digit in enumerate(_UUID_DIGITS):
        text[at::36] = b"-" * count if digit < 0 else digits[digit::32]
    return [b"", _offsets(range(0, 36 * count + 1, 36)), bytes(text)]


_UUID_DIGITS = (*range(8), -1, *range(8, 12), -1, *range(12, 16), -1, *range(16, 20), -1, *range(20, 32))
"""Which digit stands where; -1 is a hyphen."""


def _md5s(contents: Sequence[MessageContent]) -> Buffers:
    data = b"".join([content.body_md5 for content in contents]).hex().encode()
    return [b"", _offsets(range(0, 32 * len(contents) + 1, 32)), data]


def _attributes(rows: Rows) -> Buffers:
    each = [content.attributes for content in rows.contents]
    if not any(each):
        return _no_entries(rows, COLUMNS["attributes"])
    every = [attribute for attributes in each for attribute in attributes]
    texts = [value if isinstance(value, str) else None for _, _, value in every]
    blobs = [None if isinstance(value, str) else value for _, _, value in every]
    return [
        _offsets(accumulate(map(len, each), initial=0)),
        *_texts([name for name, _, _ in every]),
        *_texts([data_type for _, data_type, _ in every]),
        *_texts(texts),
        *_blobs(blobs),
    ]


def _no_entries(rows: Rows, column: Column) -> Buffers:
    """Return a MAP without entries, which most messages' are."""
    return [bytes(4 * len(rows.contents) + 4), *([b"", bytes(4), b""] * column.fields)]


def _system_attributes(rows: Rows) -> Buffers:
    if not any(content.trace_header for content in rows.contents) and not any(rows.dead_letter_sources):
        return _no_entries(rows, COLUMNS["system_attributes"])
    each: list[list[tuple[str, str]]] = []
    for content, source in zip(rows.contents, rows.dead_letter_sources, strict=True):
        entries = []
        if content.trace_header:
            entries.append(("AWSTraceHeader", content.trace_header))
        if source:
            entries.append(("DeadLetterQueueSourceArn", source))
        each.append(entries)
    every = [entry for entries in each for entry in entries]
    return [
        _offsets(accumulate(map(len, each), initial=0)),
        *_texts([name for name, _ in every]),
        *_texts([value for _, value in every]),
    ]


_MAKE: Final[Mapping[str, Any]] = {
    "queue": lambda rows: constant_text(rows.queue, len(rows.offsets)),
    "partition": lambda rows: constant_number(rows.partition, len(rows.offsets)),
    "offset": lambda rows: numbers(rows.offsets),
    "timestamp": lambda rows: numbers([1_000 * sent_ms for sent_ms in rows.sent_ms]),
    "key": lambda rows: _texts([content.group_id for content in rows.contents]),
    "value": lambda rows: _texts([content.body for content in rows.contents]),
    "message_id": lambda rows: _uuids(rows.message_ids),
    "dedup_id": lambda rows: _texts([content.dedup_id for content in rows.contents]),
    "sender_id": lambda rows: _texts([content.sender_id for content in rows.contents]),
    "attributes": _attributes,
    "system_attributes": _system_attributes,
    "md5_body": lambda rows: _md5s(rows.contents),
}


# Slicing


def _slice_column(column: Column, buffers: Buffers, start: int, stop: int) -> Buffers:
    if column.width:
        return [buffers[0][start * column.width : stop * column.width]]
    if not column.fields:
        return _slice_bytes(buffers, start, stop)
    offsets, first, last = _slice_offsets(buffers[0], start, stop)
    sliced: Buffers = [offsets]
    for at in range(1, len(buffers), BYTES_BUFFERS):
        sliced += _slice_bytes(buffers[at : at + BYTES_BUFFERS], first, last)
    return sliced


def _slice_bytes(buffers: Buffers, start: int, stop: int) -> Buffers:
    validity, offsets, data = buffers
    sliced, first, last = _slice_offsets(offsets, start, stop)
    if len(validity):
        bits = int.from_bytes(validity, "little") >> start & (1 << (stop - start)) - 1
        validity = bits.to_bytes(-(-(stop - start) // 8), "little")
    return [validity, sliced, data[first:last]]


def _slice_offsets(offsets: Buffer, start: int, stop: int) -> tuple[bytes, int, int]:
    """Return the offsets of [start, stop] counted from their first, which is returned with the last."""
    values = array("i")
    values.frombytes(offsets[4 * start : 4 * stop + 4])
    first = values[0]
    if first:
        values = array("i", [value - first for value in values])
    return values.tobytes(), first, first + values[-1]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

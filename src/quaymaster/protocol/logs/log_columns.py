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
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

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


class Block(msgspec.Struct):
    """Rows in columns: the buffers of each, by its name."""

    rows: int
    columns: dict[str, Buffers]


class NotColumns(Exception):
    """The bytes are not columns this program can read."""


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

"""An open stage as bytes for a snapshot: as it is at one moment, copied a part at a time while it grows on.

    Stage ──freeze──▶ how much of each column there is ──▶ size ──▶ part, part, …      each a moment's work

Columns are only added to, and a stage that is committed or given up is dropped whole. So what there was at that moment
is still there when its turn comes. Only the length of the last run of offsets changes; it is copied at once.

The parts joined are what msgspec encodes of `EncodedStage`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import msgspec

PART_BYTES: Final = 256 << 10
"""So many bytes make a part, or up to twice as many: some tens of microseconds."""
_SCALARS: Final = 6
_COLUMNS: Final = 6
_BIN_32: Final = b"\xc6"


class SnapshotStage(Protocol):
    """The part of a stage that a snapshot has."""

    number: int
    name: str
    count: int
    offsets: array[int]
    counts: array[int]
    groups: array[int]
    dedups: bytearray
    delays: array[int]
    sizes: array[int]


class EncodedStage(msgspec.Struct, array_like=True, tag=2):
    """An open stage, and whose it is."""

    sink: str
    batch: int
    number: int
    name: str
    count: int
    offsets: bytes
    counts: bytes
    groups: bytes
    dedups: bytes
    delays: bytes
    sizes: bytes


class Parts(NamedTuple):
    """Bytes that come in parts, and how many they are together."""

    size: int
    parts: Iterator[bytes]


class _Column(NamedTuple):
    """A column as long as it was, and what stood behind that."""

    rows: array[int] | bytearray
    length: int
    tail: bytes = b""

    @property
    def size(self) -> int:
        return self.length * memoryview(self.rows).itemsize + len(self.tail)

    def parts(self) -> Iterator[bytes]:
        yield _BIN_32 + self.size.to_bytes(4, "big")
        step = PART_BYTES // memoryview(self.rows).itemsize
        for at in range(0, self.length, step):
            yield bytes(memoryview(self.rows)[at : min(at + step, self.length)])
        yield self.tail


def freeze(sink: str, batch: int, stage: SnapshotStage) -> Parts:
    """Return the bytes of a stage as it is now; nothing that is large is copied yet."""
    fields = [EncodedStage.__struct_config__.tag, sink, batch, stage.number, stage.name, stage.count]
    scalars = msgspec.msgpack.encode(fields)
    assert scalars[0] == 0x90 | _SCALARS, "the head of an array of so many values"
    head = bytes([0x90 | _SCALARS + _COLUMNS]) + scalars[1:]
    columns = (
        _Column(stage.offsets, len(stage.offsets)),
        _Column(stage.counts, max(0, len(stage.counts) - 1), stage.counts[-1:].tobytes()),
        _Column(stage.groups, len(stage.groups)),
        _Column(stage.dedups, len(stage.dedups)),
        _Column(stage.delays, len(stage.delays)),
        _Column(stage.sizes, len(stage.sizes)),
    )
    size = len(head) + sum(len(_BIN_32) + 4 + column.size for column in columns)
    return Parts(size, _gathered(_parts(head, columns)))


def _parts(head: bytes, columns: Iterable[_Column]) -> Iterator[bytes]:
    yield head
    for column in columns:
        yield from column.parts()


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts."""
    held: list[bytes] = []
    held_bytes = 0
    for part in parts:
        held.append(part)
        held_bytes += len(part)
        if held_bytes >= PART_BYTES:
            yield b"".join(held)
            held, held_bytes = [], 0
    yield b"".join(held)

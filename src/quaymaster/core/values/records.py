"""The journal's record and batch formats: what is on disk, on the wire to followers, and in a replay.

A record is a *decision*, not a request: it names the sequence number that was given, the messages that were
taken, their deadlines and delivery counts. A batch is what one group commit writes:

    ┌──────────────────────── header, 64 bytes ───────────────────────┐
    │ version u8 · magic "QMB" · length u32 · epoch u64 · base_offset │
    │ u64 · count u32 · flags u32 · time u64 · floor u64 · chain u64  │
    │ crc u32 · span u32                                              │
    ├──────────────────────── record table ───────────────────────────┤
    │ count rows of 48 bytes:                                         │
    │   type u8 · flags u8 · delta u16 · crc u32 · queue u64          │
    │   sequence u64 · time u64 · due_after u32 · position u32        │
    │   length u32 · partition u16 · reserved u16                     │
    ├──────────────────────── payloads ───────────────────────────────┤
    │ one after another, each at `position` from the batch's start    │
    └─────────────────────────────────────────────────────────────────┘

All integers are little-endian; times are milliseconds since 1970. `length` counts the whole batch. A record's
offset is `base_offset + delta`. `span` is how many offsets the batch covered when it was first written, so the
next batch starts at `base_offset + span`; `count` is how many rows are still in it (fewer after compaction).
`floor` is the durable end the writer knew when it wrote the batch: below it a break is corruption, not a torn
tail. `crc` is the CRC32C of header (with crc = 0) and table; each row has the CRC32C of its payload, so every
byte is covered once and one payload can be checked alone. `chain` binds a batch to all before it, as first
written; a batch that was compacted (`FLAG_COMPACTED`) keeps the chain value it had.

Record types from MOVE_OUT on are in journals of cells of format 2 and later, those from GROUP_RESET on in those of
format 3, those from COMPLETE on in those of format 8.

To change the format: add a version to BATCH_VERSIONS, by the recipe in `core/values/formats`. A batch keeps its version
when it is compacted, copied or sent to other replicas: every program in the cell reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec
import xxhash
from crc32c import crc32c

from quaymaster.core.values.formats import FORMAT_MAX, Versions, version_in

BATCH_VERSIONS: Final[Versions] = {1: 1}
_VERSIONS_READ = frozenset(BATCH_VERSIONS.values())
BATCH_VERSION = version_in(BATCH_VERSIONS, FORMAT_MAX)
BATCH_MAGIC = b"QMB"
FLAG_COMPACTED = 1

_HEADER = struct.Struct("<B3sIQQIIQQQII")
_ROW = struct.Struct("<BBHIQQQIIIHH")
_PLACE = struct.Struct("<BB34xII4x")
"""What a row says of its payload, and nothing else: type, flags, position, length."""
_CHECKED_PLACE = struct.Struct("<BB2xI28xII4x")
"""The same, with the payload's CRC."""
_CHAIN = struct.Struct("<QQQII")
_CHAIN_AT = _HEADER.size - 16
_NO_CHAIN_NO_CRC = bytes(12)
"""What the CRC is taken over in their place."""

HEADER_BYTES = _HEADER.size
ROW_BYTES = _ROW.size
RECORDS_PER_BATCH_MAX = 0xFFFF
DUE_AFTER_MAX_MS = 0xFFFF_FFFF

assert HEADER_BYTES == 64, "the batch header is 64 bytes on disk"
assert ROW_BYTES == _PLACE.size == _CHECKED_PLACE.size == 48, "a record row is 48 bytes on disk"


class RecordType(IntEnum):
    """What a record decided. The numbers are on disk: never reuse one."""

    BARRIER = 1
    SEND = 2
    RECEIVE = 3
    DELETE = 4
    CHANGE_VISIBILITY = 5
    MOVE = 6
    PURGE = 7
    EXPIRE = 8
    QUEUE_SET = 9
    QUEUE_DELETE = 10
    MOVE_TASK = 11
    MOVE_OUT = 12
    MOVE_WITHDRAWN = 13
    MOVE_END = 14
    GROUP_RESET = 15
    STAGE_BEGIN = 16
    STAGE = 17
    TRANSACTION_COMMIT = 18
    TRANSACTION_ABORT = 19
    COMPLETE = 20
    CLAIM = 21


MESSAGE_TYPES = frozenset({int(RecordType.SEND), int(RecordType.MOVE), int(RecordType.STAGE)})
"""Records that hold a message, which has its own number."""
HOLDING_TYPES = MESSAGE_TYPES | {int(RecordType.COMPLETE)}
"""Those and records that hold outputs of a completion: what compaction keeps as long as it is needed."""


class Record(msgspec.Struct, gc=False):
    """One decision, before it has an offset.

    `due_after_ms` is relative to `time_ms`: the delay of a SEND, the visibility timeout of a RECEIVE or
    CHANGE_VISIBILITY. `sequence` is the message the record is about, or the first one not reached by a PURGE.
    """

    type: int
    flags: int
    queue_id: int
    partition: int
    sequence: int
    time_ms: int
    due_after_ms: int
    payload: bytes


class RecordRow(msgspec.Struct, frozen=True, gc=False):
    """One row of a record table, with the record's journal offset worked out.

    A restart makes hundreds of thousands: a named tuple takes three times as long to make.
    """

    offset: int
    type: int
    flags: int
    crc: int
    queue_id: int
    partition: int
    sequence: int
    time_ms: int
    due_after_ms: int
    position: int
    length: int


class BatchHeader(NamedTuple):
    """A batch's header, decoded."""

    length: int
    epoch: int
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants of a header
    flags: int
    time_ms: int
    floor: int
    chain: int
    crc: int
    span: int

    @property
    def next_offset(self) -> int:
        """The offset of the first record after this batch."""
        return self.base_offset + self.span

    @property
    def is_compacted(self) -> bool:
        """Whether records may be missing from it."""
        return bool(self.flags & FLAG_COMPACTED)


class Batch(msgspec.Struct, gc=False):
    """An encoded batch and what the writer and the replica need to know of it without decoding."""

    data: bytes
    epoch: int
    base_offset: int
    next_offset: int
    chain: int


class CorruptBatch(Exception):
    """The bytes at this place are not a whole, intact batch."""


def chain_after(previous_chain: int, epoch: int, base_offset: int, span: int, crc: int) -> int:
    """Return the chain value after a batch, from the value before it and the batch's identity."""
    return xxhash.xxh3_64_intdigest(_CHAIN.pack(previous_chain, epoch, base_offset, span, crc))


def encode_batch(
    records: Sequence[Record],
    *,
    epoch: int,
    base_offset: int,
    time_ms: int,
    floor: int,
    previous_chain: int,
    version: int = BATCH_VERSION,
) -> Batch:
    """Encode records as they are first written: offsets are dense from `base_offset`."""
    count = len(records)
    assert 0 < count <= RECORDS_PER_BATCH_MAX, (
        f"a batch holds 1..{RECORDS_PER_BATCH_MAX} records, not {count}"
    )
    position = HEADER_BYTES + count * ROW_BYTES
    pack_row = _ROW.pack
    parts: list[bytes] = [b""]
    payloads: list[bytes] = []
    for delta, record in enumerate(records):
        payload = record.payload
        length = len(payload)
        parts.append(
            pack_row(
                record.type,
                record.flags,
                delta,
                crc32c(payload),
                record.queue_id,
                record.sequence,
                record.time_ms,
                record.due_after_ms,
                position,
                length,
                record.partition,
                0,
            )
        )
        payloads.append(payload)
        position += length
    table = b"".join(parts)
    header = _HEADER.pack(
        version, BATCH_MAGIC, position, epoch, base_offset, count, 0, time_ms, floor, 0, 0, count
    )
    crc = crc32c(table, crc32c(header))
    chain = chain_after(previous_chain, epoch, base_offset, count, crc)
    parts[0] = _HEADER.pack(
        version, BATCH_MAGIC, position, epoch, base_offset, count, 0, time_ms, floor, chain, crc, count
    )
    parts.extend(payloads)
    return Batch(b"".join(parts), epoch, base_offset, base_offset + count, chain)


def follows_chain(batch: Batch, previous_chain: int) -> bool:
    """Tell whether a batch was written behind the log that has this chain value."""
    header = decode_header(batch.data)
    chain = chain_after(previous_chain, header.epoch, header.base_offset, header.span, header.crc)
    return batch.chain == chain


def decode_header(data: bytes | memoryview, at: int = 0) -> BatchHeader:
    """Decode the header at `at`; CorruptBatch when it cannot be one. The CRC is not checked here."""
    if len(data) - at < HEADER_BYTES:
        raise CorruptBatch(f"{len(data) - at} bytes are too few for a batch header")
    version, magic, *rest = _HEADER.unpack_from(data, at)
    if magic != BATCH_MAGIC:
        raise CorruptBatch("no batch starts here")
    if version not in _VERSIONS_READ:
        raise CorruptBatch(
            f"batch version {version} is not known; this program reads up to version {BATCH_VERSION}"
        )
    header = BatchHeader(*rest)
    if not (
        0 < header.span <= RECORDS_PER_BATCH_MAX
        and header.count <= header.span
        and header.length >= HEADER_BYTES + header.count * ROW_BYTES
    ):
        raise CorruptBatch("the batch header contradicts itself")
    return header


def check_table(data: bytes | memoryview, header: BatchHeader, at: int = 0) -> None:
    """Check the CRC over header and table of the batch at `at`; CorruptBatch when it does not hold."""
    table_end = at + HEADER_BYTES + header.count * ROW_BYTES
    if len(data) < table_end:
        raise CorruptBatch("the batch ends inside its record table")
    view = memoryview(data)
    crc = crc32c(view[at : at + _CHAIN_AT])
    crc = crc32c(_NO_CHAIN_NO_CRC, crc)
    if crc32c(view[at + _CHAIN_AT + len(_NO_CHAIN_NO_CRC) : table_end], crc) != header.crc:
        raise CorruptBatch("the CRC of header and record table does not hold")


def check_batch(data: bytes | memoryview, header: BatchHeader, at: int = 0) -> None:
    """Check table and every payload of the batch at `at`; CorruptBatch at the first that does not hold."""
    if len(data) - at < header.length:
        raise CorruptBatch("the batch is cut short")
    check_table(data, header, at)
    view = memoryview(data)
    table = view[at + HEADER_BYTES : at + HEADER_BYTES + header.count * ROW_BYTES]
    length = header.length
    for _, _, delta, crc, _, _, _, _, position, size, _, _ in _ROW.iter_unpack(table):
        start = at + position
        if position + size > length or crc32c(view[start : start + size]) != crc:
            raise CorruptBatch(f"the payload of record {header.base_offset + delta} does not match its CRC")


def iterate_rows(data: bytes | memoryview, header: BatchHeader, at: int = 0) -> Iterator[RecordRow]:
    """Yield the rows of the batch at `at` in offset order, without touching payloads."""
    table = data[at + HEADER_BYTES : at + HEADER_BYTES + header.count * ROW_BYTES]
    base = header.base_offset
    for (
        type_,
        flags,
        delta,
        crc,
        queue,
        sequence,
        time_ms,
        due,
        position,
        length,
        partition,
        _,
    ) in _ROW.iter_unpack(table):
        yield RecordRow(
            base + delta, type_, flags, crc, queue, partition, sequence, time_ms, due, position, length
        )


def row_at(data: bytes | memoryview, header: BatchHeader, number: int, at: int = 0) -> RecordRow:
    """Return one row of the batch at `at`, without touching payloads."""
    type_, flags, delta, crc, queue, sequence, time_ms, due, position, length, partition, _ = (
        _ROW.unpack_from(data, at + HEADER_BYTES + number * ROW_BYTES)
    )
    base = header.base_offset
    return RecordRow(
        base + delta, type_, flags, crc, queue, partition, sequence, time_ms, due, position, length
    )


def record_at(data: bytes, at: int) -> tuple[int, int, int, bytes]:
    """Return (type, flags, sequence, payload) of row `at` of a batch as it was first written."""
    row = _ROW.unpack_from(data, HEADER_BYTES + at * ROW_BYTES)
    position = row[8]
    return row[0], row[1], row[5], data[position : position + row[9]]


def payload_places(data: bytes, rows: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (type, flags, start, end) of rows of a batch as it was first written; neighbours are read together."""
    at = 0
    while at < len(rows):
        first = rows[at]
        last = len(rows) - 1
        if rows[last] - first != last - at:  # not one run
            last = at
            while last + 1 < len(rows) and rows[last + 1] == rows[last] + 1:
                last += 1
        start = HEADER_BYTES + first * ROW_BYTES
        table = memoryview(data)[start : start + (last + 1 - at) * ROW_BYTES]
        for record_type, flags, start, size in _PLACE.iter_unpack(table):
            yield record_type, flags, start, start + size
        at = last + 1


def message_places(data: memoryview, header: BatchHeader) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (row number, type, flags, crc, start, end) of the records of a batch that hold messages or outputs."""
    table = data[HEADER_BYTES : HEADER_BYTES + header.count * ROW_BYTES]
    for number, (record_type, flags, crc, start, size) in enumerate(_CHECKED_PLACE.iter_unpack(table)):
        if record_type in HOLDING_TYPES:
            yield number, record_type, flags, crc, start, start + size


def rewrite_batch(
    data: bytes | memoryview, header: BatchHeader, keep: Sequence[RecordRow], at: int = 0
) -> bytes:
    """Return the batch at `at` with only the rows in `keep`, unchanged but for their payload positions.

    Offsets, span, epoch and chain stay as they were first written; the batch is marked compacted. `keep` may be
    empty: the header alone then still says which offsets it covered.
    """
    position = HEADER_BYTES + len(keep) * ROW_BYTES
    rows: list[bytes] = []
    payloads: list[bytes] = []
    for row in keep:
        payloads.append(bytes(data[at + row.position : at + row.position + row.length]))
        rows.append(
            _ROW.pack(
                row.type,
                row.flags,
                row.offset - header.base_offset,
                row.crc,
                row.queue_id,
                row.sequence,
                row.time_ms,
                row.due_after_ms,
                position,
                row.length,
                row.partition,
                0,
            )
        )
        position += row.length
    table = b"".join(rows)
    fields = (
        position,
        header.epoch,
        header.base_offset,
        len(keep),
        header.flags | FLAG_COMPACTED,
        header.time_ms,
        header.floor,
    )
    version = data[at]
    bare = _HEADER.pack(version, BATCH_MAGIC, *fields, 0, 0, header.span)
    crc = crc32c(table, crc32c(bare))
    head = _HEADER.pack(version, BATCH_MAGIC, *fields, header.chain, crc, header.span)
    return b"".join((head, table, *payloads))

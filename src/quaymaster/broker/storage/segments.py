"""One segment: a file of the journal, named by its base offset, and what is known of it in memory.

    ┌── header, one page of 4096 bytes ──┬─ batches, one after another ─┬─ footer or zeros ─┐
    │ version u8 · magic "QMS"           │ as core.records draws them   │ closed: the index │
    │ flags u32 · journal u64            │                              │ active: zeros up  │
    │ storage id 16 · base offset u64    │                              │ to the capacity   │
    │ start chain u64 · start epoch u64  │                              │                   │
    │ end offset u64 · end chain u64     │                              │                   │
    │ end epoch u64 · data end u64       │                              │                   │
    │ crc u32                            │                              │                   │
    └────────────────────────────────────┴──────────────────────────────┴───────────────────┘

Start chain and start epoch are those of the batch before the segment, so a segment can be checked without its
neighbours. The `end` fields are 0 until the segment is compacted; then they are the truth about where it
ends, because batches inside it may be missing. The header is durable before the file has its name, so a
damaged header is never a torn write.

The footer of a closed segment holds its sparse index (one entry about every 16 KiB) and is derived: where it
is missing or damaged, the segment is scanned again. From cell format 4 on it lists the data keys that the segment's
messages are encrypted with, once somebody has asked for them (`data_key_lists`).

    footer:  version u8 · magic "QMF" · entries u32 · data end u64 · end offset u64 · end chain u64
             end epoch u64 · first time u64 · last time u64
             entries x (offset u64) · entries x (position u32) · [data key ids, each u64: version 2]
    trailer: footer bytes u32 · crc u32 of the footer · magic "QMFT"

To change the format: raise SEGMENT_VERSION, keep reading the old one until a release has rewritten it, and
add a test that reads a segment written by the old code.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk, FileHandle
from quaymaster.core.values.records import (
    BATCH_MAGIC,
    FLAG_COMPACTED,
    HEADER_BYTES,
    ROW_BYTES,
    BatchHeader,
    CorruptBatch,
    RecordRow,
    chain_after,
    check_batch,
    check_table,
    decode_header,
    row_at,
)

SEGMENT_VERSION = 1
SEGMENT_MAGIC = b"QMS"
SEGMENT_COMPACTED = 1
SEGMENT_SUFFIX = ".seg"
DATA_AT = 4096

FOOTER_VERSION = 1
FOOTER_VERSION_WITH_KEYS = 2
FOOTER_MAGIC = b"QMF"
TRAILER_MAGIC = b"QMFT"

READ_BYTES = 1 << 20
"""How much a sequential read asks for at once."""

POINT_READ_BYTES_MAX = 128 << 10
"""A longer stretch of the index is read header first, so that one record of a large batch stays cheap."""

_HEADER = struct.Struct("<B3sIQ16sQQQQQQQ")
_FOOTER = struct.Struct("<B3sIQQQQQQ")
_TRAILER = struct.Struct("<II4s")
_CRC = struct.Struct("<I")


class SegmentDamaged(Exception):
    """What is in a segment file cannot be what was written; `position` is the first byte in doubt."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(f"{path} at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why


class RecordUnreadable(Exception):
    """A record that should be in the journal could not be read whole; its neighbours may still be fine."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"record {offset} is unreadable: {why}")
        self.offset = offset
        self.why = why


class RecordGone(RecordUnreadable):
    """The record is no longer kept: it was compacted away, dropped, or never written."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment file's first page, decoded."""

    flags: int
    journal_id: int
    storage_id: bytes
    base_offset: int
    start_chain: int
    start_epoch: int
    end_offset: int
    end_chain: int
    end_epoch: int
    data_end: int

    @property
    def is_compacted(self) -> bool:
        """Whether batches inside may be missing, and the `end` fields say where the segment ends."""
        return bool(self.flags & SEGMENT_COMPACTED)


def segment_name(base_offset: int) -> str:
    """Return the file name of the segment that starts at an offset."""
    return f"{base_offset:020d}{SEGMENT_SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """Return the base offset a segment's file name says, or None when it is not a segment's name."""
    digits = name.removesuffix(SEGMENT_SUFFIX)
    if digits == name or len(digits) != 20 or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def render_header(header: SegmentHeader) -> bytes:
    """Return the first page of a segment file."""
    bare = _HEADER.pack(
        SEGMENT_VERSION,
        SEGMENT_MAGIC,
        header.flags,
        header.journal_id,
        header.storage_id,
        header.base_offset,
        header.start_chain,
        header.start_epoch,
        header.end_offset,
        header.end_chain,
        header.end_epoch,
        header.data_end,
    )
    return (bare + _CRC.pack(crc32c(bare))).ljust(DATA_AT, b"\0")


def parse_header(path: str, page: bytes) -> SegmentHeader:
    """Decode a segment file's first page; SegmentDamaged when it does not hold."""
    if len(page) < DATA_AT:
        raise SegmentDamaged(path, 0, f"the file has only {len(page)} bytes, too few for a segment header")
    version, magic, *fields = _HEADER.unpack_from(page)
    (crc,) = _CRC.unpack_from(page, _HEADER.size)
    if magic != SEGMENT_MAGIC or crc != crc32c(page[: _HEADER.size]):
        raise SegmentDamaged(path, 0, "the segment header is damaged")
    if version != SEGMENT_VERSION:
        raise SegmentDamaged(
            path, 0, f"segment version {version} is not known; this program reads version {SEGMENT_VERSION}"
        )
    return SegmentHeader(*fields)


class Segment:
    """What is known of one segment. Grows while it is the active one; afterwards it only changes its file."""

    __slots__ = (
        "_handle",
        "capacity",
        "data_end",
        "data_key_ids",
        "end_chain",
        "end_epoch",
        "end_offset",
        "first_time_ms",
        "header",
        "index_offsets",
        "index_positions",
        "is_closed",
        "last_time_ms",
        "path",
    )

    def __init__(self, path: str, header: SegmentHeader, capacity: int) -> None:
        self.path = path
        self.header = header
        self.capacity = capacity
        self.data_end = DATA_AT
        self.end_offset = header.end_offset if header.is_compacted else header.base_offset
        self.end_chain = header.end_chain if header.is_compacted else header.start_chain
        self.end_epoch = header.end_epoch if header.is_compacted else header.start_epoch
        self.first_time_ms = 0
        self.last_time_ms = 0
        self.is_closed = False
        self.index_offsets = array("Q")
        self.index_positions = array("I")
        self.data_key_ids: array[int] | None = None
        """The data keys of its messages, in order; None: not looked at. Only of a closed segment."""
        self._handle: FileHandle | None = None

    @property
    def base_offset(self) -> int:
        """The offset of the first record this segment was made for."""
        return self.header.base_offset

    def open_file(self, disk: Disk) -> FileHandle:
        """Return the open file; hold on to the handle for as long as its number is used."""
        handle = self._handle
        if handle is None:
            handle = self._handle = FileHandle(disk, disk.open(self.path))
        return handle

    def hold_file(self, handle: FileHandle) -> None:
        """Use this open file from now on."""
        self._handle = handle

    def release_file(self) -> None:
        """Let go of the open file; it closes when the last reader is done and opens again when needed."""
        self._handle = None

    def is_open(self) -> bool:
        """Whether the segment keeps a file open."""
        return self._handle is not None

    def note_batch(self, header: BatchHeader, position: int, index_every_bytes: int) -> None:
        """Take a batch that was written or found at `position` into index, times and end."""
        positions = self.index_positions
        if not positions or position - positions[-1] >= index_every_bytes:
            positions.append(position)  # before the offset: a reader looks at the offsets first
            self.index_offsets.append(header.base_offset)
        if not self.first_time_ms or header.time_ms < self.first_time_ms:
            self.first_time_ms = header.time_ms
        if header.time_ms > self.last_time_ms:
            self.last_time_ms = header.time_ms
        self.data_end = position + header.length
        if not self.header.is_compacted:
            self.end_offset = header.base_offset + header.span
            self.end_chain = header.chain
            self.end_epoch = header.epoch


def render_footer(segment: Segment) -> bytes:
    """Return footer and trailer of a closed segment."""
    offsets, positions = segment.index_offsets, segment.index_positions
    key_ids = segment.data_key_ids
    footer = b"".join(
        (
            _FOOTER.pack(
                FOOTER_VERSION if key_ids is None else FOOTER_VERSION_WITH_KEYS,
                FOOTER_MAGIC,
                len(offsets),
                segment.data_end,
                segment.end_offset,
                segment.end_chain,
                segment.end_epoch,
                segment.first_time_ms,
                segment.last_time_ms,
            ),
            _little_endian(offsets),
            _little_endian(positions),
            b"" if key_ids is None else _little_endian(key_ids),
        )
    )
    return footer + _TRAILER.pack(len(footer), crc32c(footer), TRAILER_MAGIC)


def load_footer(disk: Disk, segment: Segment) -> bool:
    """Fill a closed segment's index from its footer; False when there is none that holds."""
    fd = segment.open_file(disk).fd
    size = disk.size(fd)
    if size < DATA_AT + _FOOTER.size + _TRAILER.size:
        return False
    footer_bytes, crc, magic = _TRAILER.unpack(disk.read(fd, _TRAILER.size, size - _TRAILER.size))
    start = size - _TRAILER.size - footer_bytes
    if magic != TRAILER_MAGIC or start < DATA_AT or footer_bytes < _FOOTER.size:
        return False
    footer = disk.read(fd, footer_bytes, start)
    if len(footer) != footer_bytes or crc32c(footer) != crc:
        return False
    version, magic, entries, data_end, end_offset, end_chain, end_epoch, first, last = _FOOTER.unpack_from(
        footer
    )
    if magic != FOOTER_MAGIC or data_end != start:
        return False
    index_end = _FOOTER.size + entries * 12
    key_bytes = footer_bytes - index_end
    if version == FOOTER_VERSION:
        if key_bytes:
            return False
    elif version != FOOTER_VERSION_WITH_KEYS or key_bytes < 0 or key_bytes % 8:
        return False
    if segment.header.is_compacted and data_end != segment.header.data_end:
        return False
    split = _FOOTER.size + entries * 8
    segment.index_offsets = _from_little_endian("Q", footer[_FOOTER.size : split])
    segment.index_positions = _from_little_endian("I", footer[split:index_end])
    if version == FOOTER_VERSION_WITH_KEYS:
        segment.data_key_ids = _from_little_endian("Q", footer[index_end:])
    segment.data_end = data_end
    segment.end_offset, segment.end_chain, segment.end_epoch = end_offset, end_chain, end_epoch
    segment.first_time_ms, segment.last_time_ms = first, last
    segment.capacity = size
    return True


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _from_little_endian(typecode: str, data: bytes) -> array[int]:
    values = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def iterate_batches(
    disk: Disk, segment: Segment, start: int, end: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of each batch between two byte positions, verified.

    SegmentDamaged at the first batch that is not whole and intact, or does not continue the chain; the chain
    is followed from the second batch on where `start` is not the first byte of data. OSError when the disk
    cannot read. Reads are large; the bytes stay valid for as long as they are referenced.
    """
    handle = segment.open_file(disk)
    compacted = segment.header.is_compacted
    first = start == DATA_AT
    offset = segment.base_offset
    chain = segment.header.start_chain
    buffer = b""
    view = memoryview(buffer)
    at = 0
    position = start
    while position < end:
        if len(buffer) - at < HEADER_BYTES:
            buffer = disk.read(handle.fd, min(READ_BYTES, end - position), position)
            view, at = memoryview(buffer), 0
        try:
            header = decode_header(buffer, at)
            if header.length > end - position:
                raise CorruptBatch(f"a batch of {header.length} bytes where {end - position} are left")
            if len(buffer) - at < header.length:
                buffer = disk.read(handle.fd, max(header.length, min(READ_BYTES, end - position)), position)
                view, at = memoryview(buffer), 0
            check_batch(buffer, header, at)
        except CorruptBatch as error:
            raise SegmentDamaged(segment.path, position, str(error)) from None
        if first and header.base_offset != offset and (not compacted or header.base_offset < offset):
            raise SegmentDamaged(
                segment.path,
                position,
                f"a batch with base offset {header.base_offset} where {offset} was due",
            )
        if first and not compacted:
            if header.flags & FLAG_COMPACTED:
                raise SegmentDamaged(segment.path, position, "a compacted batch in a segment that is not")
            if header.chain != chain_after(chain, header.epoch, header.base_offset, header.span, header.crc):
                raise SegmentDamaged(
                    segment.path, position, "the batch does not continue the chain before it"
                )
        yield position, header, view[at : at + header.length]
        first = True
        offset = header.next_offset
        chain = header.chain
        at += header.length
        position += header.length


def find_batch_behind(
    disk: Disk, segment: Segment, start: int, *, offset: int
) -> tuple[int, BatchHeader] | None:
    """Look behind a break for an intact batch that says records at or above `offset` were already durable.

    Such a batch was written after the broken one had been fsynced, so the break is damage and not a torn
    write. Batches of the same unfinished write may well be there too: their floor is not above the break. A
    message body might imitate a batch, so its offset must fit its distance from the break.
    """
    fd = segment.open_file(disk).fd
    end = disk.size(fd)
    position = start
    while position < end:
        data = disk.read(fd, READ_BYTES, position)
        at = data.find(BATCH_MAGIC, 1) - 1  # the version is before it
        while at >= 0:
            header = _read_table(disk, fd, position + at, end)
            if (
                header is not None
                and offset < header.floor <= header.base_offset
                and header.base_offset - offset <= (position + at - start) // ROW_BYTES + 1
            ):
                return position + at, header
            at = data.find(BATCH_MAGIC, at + 2) - 1
        if len(data) < READ_BYTES:
            return None
        position += READ_BYTES - len(BATCH_MAGIC)
    return None


def ends_inside_batch(disk: Disk, segment: Segment) -> bool:
    """Return whether the file ends within the batch that follows the last whole one.

    The room for a batch is there, and durable, before it is written. So no crash makes a file end early.
    """
    fd = segment.open_file(disk).fd
    size = disk.size(fd)
    head = disk.read(fd, min(HEADER_BYTES, size - segment.data_end), segment.data_end)
    if len(head) < HEADER_BYTES:
        return bool(head.strip(b"\0"))
    try:
        header = decode_header(head)
    except CorruptBatch:
        return False
    continues = header.base_offset == segment.end_offset and header.chain == chain_after(
        segment.end_chain, header.epoch, header.base_offset, header.span, header.crc
    )
    return continues and header.length > size - segment.data_end


def _read_table(disk: Disk, fd: int, position: int, end: int) -> BatchHeader | None:
    try:
        header = decode_header(disk.read(fd, HEADER_BYTES, position))
        if header.length > end - position:
            return None
        check_table(disk.read(fd, HEADER_BYTES + header.count * ROW_BYTES, position), header)
    except CorruptBatch:
        return None
    return header


def zero_tail(disk: Disk, segment: Segment, start: int) -> bool:
    """Make everything from `start` to the end of the file zero; True when something else was there."""
    fd = segment.open_file(disk).fd
    end = disk.size(fd)
    found = False
    zeros = bytes(READ_BYTES)
    for position in range(start, end, READ_BYTES):
        data = disk.read(fd, min(READ_BYTES, end - position), position)
        if data != zeros[: len(data)]:
            disk.fill_zeros(fd, position, position + len(data))
            found = True
    return found


def read_records(disk: Disk, segment: Segment, offsets: Sequence[int]) -> list[tuple[RecordRow, bytes]]:
    """Return row and payload of each offset, in ascending order; all must lie in this segment.

    Neighbours share one read. RecordUnreadable when a record cannot be read whole, RecordGone when the
    segment no longer has it.
    """
    try:
        handle = segment.open_file(disk)
    except FileNotFoundError:
        raise RecordGone(offsets[0], "its segment was dropped") from None
    compacted = segment.header.is_compacted
    found: list[tuple[RecordRow, bytes]] = []
    first = 0
    while first < len(offsets):
        entries = segment.index_offsets
        entry = bisect_right(entries, offsets[first]) - 1
        if entry < 0:
            raise RecordGone(offsets[first], "compacted away")
        data_end = segment.data_end  # before the index: it only grows
        start = segment.index_positions[entry]
        last = len(offsets)
        stop = data_end
        if entry + 1 < len(entries):
            stop = segment.index_positions[entry + 1]
            last = first
            while last < len(offsets) and offsets[last] < entries[entry + 1]:
                last += 1
        wanted = offsets[first:last]
        try:
            if stop - start <= POINT_READ_BYTES_MAX:
                data = disk.read(handle.fd, stop - start, start)
                _pick_from_stretch(data, wanted, found, check_all=compacted)
            else:
                _pick_by_position(disk, handle.fd, start, stop, wanted, found)
        except RecordGone as error:
            if compacted or error.offset >= segment.end_offset:
                raise
            raise RecordUnreadable(error.offset, f"{segment.path}: the batch headers are damaged") from None
        except OSError as error:
            raise RecordUnreadable(wanted[0], f"{segment.path}: {error.strerror}") from error
        first = last
    return found


def locate_record(disk: Disk, segment: Segment, offset: int) -> tuple[int, RecordRow]:
    """Return where in the file a record's payload is, and its row, whether the payload can be read or not.

    RecordUnreadable when the row itself cannot, RecordGone when the segment no longer has it.
    """
    handle = segment.open_file(disk)
    data_end = segment.data_end
    entry = bisect_right(segment.index_offsets, offset) - 1
    position = segment.index_positions[entry] if entry >= 0 else data_end
    try:
        while position < data_end:
            header = decode_header(disk.read(handle.fd, HEADER_BYTES, position))
            if offset < header.next_offset:
                table = disk.read(handle.fd, HEADER_BYTES + header.count * ROW_BYTES, position)
                check_table(table, header)
                (row,) = _find_rows(table, header, 0, [offset])
                return position + row.position, row
            position += header.length
    except (CorruptBatch, OSError) as error:
        raise RecordUnreadable(offset, f"{segment.path}: {error}") from error
    raise RecordGone(offset, "not in its segment")


def _pick_from_stretch(
    data: bytes, wanted: Sequence[int], found: list[tuple[RecordRow, bytes]], *, check_all: bool
) -> None:
    """`check_all` also checks batches that are only passed over: where batches may be missing, a damaged one
    must not make a record look as if it had been compacted away."""
    at = 0
    index = 0
    while index < len(wanted):
        offset = wanted[index]
        if at >= len(data):
            raise RecordGone(offset, "not in its segment")
        try:
            header = decode_header(data, at)
            if check_all or header.next_offset > offset:
                check_table(data, header, at)
        except CorruptBatch as error:
            raise RecordUnreadable(offset, str(error)) from None
        below = header.next_offset
        if offset < below:
            last = index
            while last < len(wanted) and wanted[last] < below:
                last += 1
            for row in _find_rows(data, header, at, wanted[index:last]):
                payload = data[at + row.position : at + row.position + row.length]
                _check_payload(row, payload)
                found.append((row, payload))
            index = last
        at += header.length


def _pick_by_position(
    disk: Disk, fd: int, position: int, stop: int, wanted: Sequence[int], found: list[tuple[RecordRow, bytes]]
) -> None:
    index = 0
    while index < len(wanted):
        offset = wanted[index]
        if position >= stop:
            raise RecordGone(offset, "not in its segment")
        try:
            header = decode_header(disk.read(fd, HEADER_BYTES, position))
            below = header.next_offset
            if offset < below:
                table = disk.read(fd, HEADER_BYTES + header.count * ROW_BYTES, position)
                check_table(table, header)
        except CorruptBatch as error:
            raise RecordUnreadable(offset, str(error)) from None
        if offset < below:
            last = index
            while last < len(wanted) and wanted[last] < below:
                last += 1
            for row in _find_rows(table, header, 0, wanted[index:last]):
                payload = disk.read(fd, row.length, position + row.position)
                _check_payload(row, payload)
                found.append((row, payload))
            index = last
        position += header.length


def _find_rows(data: bytes, header: BatchHeader, at: int, wanted: Sequence[int]) -> Iterator[RecordRow]:
    """Yield the rows of `wanted` without decoding those between: a batch may hold thousands."""
    low = 0
    for offset in wanted:
        if header.count == header.span:
            low = offset - header.base_offset
        else:
            high = header.count
            while low < high:
                middle = (low + high) // 2
                if row_at(data, header, middle, at).offset < offset:
                    low = middle + 1
                else:
                    high = middle
        row = row_at(data, header, low, at) if 0 <= low < header.count else None
        if row is None or row.offset != offset:
            raise RecordGone(offset, "compacted away")
        yield row


def _check_payload(row: RecordRow, payload: bytes) -> None:
    if len(payload) != row.length or crc32c(payload) != row.crc:
        raise RecordUnreadable(row.offset, "the payload does not match its CRC")

"""Rewriting closed segments with the records that are kept: offsets stay, batches without any of them go.

Damage is met here as well, record by record: what is not needed may be damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.segments import DATA_AT, READ_BYTES, RecordUnreadable, Segment
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.core.values.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    RecordRow,
    check_table,
    decode_header,
    iterate_rows,
    rewrite_batch,
)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did: record counts, and the bytes of batches before and after."""

    kept_records: int
    dropped_records: int
    bytes_before: int
    bytes_after: int


def copy_kept(
    disk: Disk,
    segments: Sequence[Segment],
    keep: Callable[[RecordRow], bool],
    target: Segment,
    *,
    limits: JournalLimits,
    go_on: Callable[[], None],
    write: Callable[[list[bytes], int], None],
) -> tuple[int, int]:
    """Write the batches of segments with the rows to keep at their positions; return how many rows stay and go.

    `go_on()`, before each batch, and `write(buffers, position)` may raise to end it. RecordUnreadable when a record
    to keep is damaged.
    """
    kept = dropped = 0
    position = DATA_AT
    pending: list[bytes] = []
    pending_bytes = 0
    for segment in segments:
        for header, data in read_loosely(disk, segment):
            go_on()
            rows = list(iterate_rows(data, header))
            wanted = [row for row in rows if keep(row)]
            kept += len(wanted)
            dropped += len(rows) - len(wanted)
            if not wanted:
                continue
            _check_payloads(segment, data, wanted)
            whole = bytes(data) if len(wanted) == len(rows) else rewrite_batch(data, header, wanted)
            target.note_batch(decode_header(whole), position, limits.index_every_bytes)
            position += len(whole)
            pending.append(whole)
            pending_bytes += len(whole)
            if pending_bytes >= limits.group_bytes_max:
                write(pending, position - pending_bytes)
                pending, pending_bytes = [], 0
    write(pending, position - pending_bytes)
    return kept, dropped


def damaged_records(disk: Disk, segment: Segment) -> list[int]:
    """Return the records of a segment whose payload does not match its CRC.

    RecordUnreadable where a batch's table is damaged: what is behind it in the segment was not looked at.
    """
    return [
        row.offset
        for header, data in read_loosely(disk, segment)
        for row in iterate_rows(data, header)
        if crc32c(data[row.position : row.position + row.length]) != row.crc
    ]


def _check_payloads(segment: Segment, data: memoryview, rows: Sequence[RecordRow]) -> None:
    for row in rows:
        payload = data[row.position : row.position + row.length]
        if len(payload) != row.length or crc32c(payload) != row.crc:
            raise RecordUnreadable(row.offset, f"{segment.path}: the payload does not match its CRC")


def read_loosely(disk: Disk, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a closed segment with their tables checked but not their payloads.

    A record that is not needed may be damaged; compaction then takes the damage away.
    """
    handle = segment.open_file(disk)
    offset = segment.base_offset
    position = DATA_AT
    at = 0
    buffer = b""
    while position < segment.data_end:
        left = segment.data_end - position
        try:
            if len(buffer) - at < HEADER_BYTES:
                buffer, at = disk.read(handle.fd, min(READ_BYTES, left), position), 0
            header = decode_header(buffer, at)
            if len(buffer) - at < header.length:
                buffer, at = disk.read(handle.fd, min(max(header.length, READ_BYTES), left), position), 0
            check_table(buffer, header, at)
        except (CorruptBatch, OSError) as error:
            raise RecordUnreadable(offset, f"{segment.path} at byte {position}: {error}") from error
        yield header, memoryview(buffer)[at : at + header.length]
        offset = header.next_offset
        at += header.length
        position += header.length

"""The file of one segment from its beginning to its end: made of a prepared file, closed, cut."""

from __future__ import annotations

from contextlib import suppress

from quaymaster.broker.storage.disk import Disk, FileHandle
from quaymaster.broker.storage.segments import (
    DATA_AT,
    Segment,
    SegmentDamaged,
    SegmentHeader,
    iterate_batches,
    parse_header,
    render_footer,
    render_header,
    segment_name,
)
from quaymaster.broker.storage.space import JournalLimits, SpaceKeeper


def make_segment(
    disk: Disk,
    directory: str,
    space: SpaceKeeper,
    header: SegmentHeader,
    needed_bytes: int,
    *,
    first: bool = False,
) -> Segment:
    """Turn a prepared file into a segment: first its header durable, then its name, then batches."""
    temporary, handle, length = space.take(needed_bytes, first=first)
    path = f"{directory}/{segment_name(header.base_offset)}"
    disk.write(handle.fd, render_header(header), 0)
    disk.sync_data(handle.fd)
    disk.rename(temporary, path)
    disk.sync_directory(directory)
    segment = Segment(path, header, length)
    segment.hold_file(handle)
    return segment


def close_segment(disk: Disk, segment: Segment) -> None:
    """Write the index of a segment that is full behind its data and give its unused room back.

    Not fsynced and allowed to fail: the index is derived, and the next open scans where it is missing.
    """
    segment.is_closed = True
    footer = render_footer(segment)
    with suppress(OSError):
        fd = segment.open_file(disk).fd
        disk.write(fd, footer, segment.data_end)
        disk.truncate(fd, segment.data_end + len(footer))
        segment.capacity = segment.data_end + len(footer)


def cut_files(disk: Disk, directory: str, bases: list[int], end: int) -> list[int]:
    """Delete the segments behind `end`, and what the last of the others has behind it; may be done again."""
    kept = [base for base in bases if base <= end]
    for base in reversed(bases[len(kept) :]):
        disk.unlink(f"{directory}/{segment_name(base)}")
        disk.sync_directory(directory)
    path = f"{directory}/{segment_name(kept[-1])}"
    handle = FileHandle(disk, disk.open(path))
    size = disk.size(handle.fd)
    header = parse_header(path, disk.read(handle.fd, DATA_AT, 0))
    assert not header.is_compacted, "what was compacted is committed, and never cut"
    position = DATA_AT
    try:
        for at, batch, _ in iterate_batches(disk, Segment(path, header, size), DATA_AT, size):
            if batch.next_offset > end:
                break
            position = at + batch.length
    except SegmentDamaged:
        pass  # behind the last batch there is a footer, or what an earlier try has left
    disk.fill_zeros(handle.fd, position, max(size, position + 1))  # in place: a full disk gives nothing new
    disk.sync(handle.fd)
    return kept


def scan_to_end(disk: Disk, segment: Segment, limits: JournalLimits) -> None:
    """Fill in what is known of a segment from its batches."""
    with suppress(SegmentDamaged):
        for position, header, _ in iterate_batches(disk, segment, DATA_AT, segment.capacity):
            segment.note_batch(header, position, limits.index_every_bytes)

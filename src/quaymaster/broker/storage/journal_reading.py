"""Reading a journal: batches in order, records by offset, from any thread, while it is written and compacted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.journal_state import JournalCorrupt, damage_story
from quaymaster.broker.storage.segments import (
    DATA_AT,
    RecordGone,
    RecordUnreadable,
    Segment,
    SegmentDamaged,
    iterate_batches,
    locate_record,
    read_records,
)
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.values.records import Batch, BatchHeader, RecordRow


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment as its owner sees it. Times are those of its batches, in ms since 1970; 0 when empty."""

    base_offset: int
    end_offset: int
    data_bytes: int
    first_time_ms: int
    last_time_ms: int
    is_closed: bool
    is_compacted: bool


class JournalReader:
    """What can be read of a journal's segments; their writer puts another list in the place of the old one."""

    def __init__(self, disk: Disk, segments: tuple[Segment, ...]) -> None:
        self._disk = disk
        self._set_segments(segments)
        self.end_offset = segments[-1].end_offset

    @property
    def start_offset(self) -> int:
        """The first offset still kept (compaction may have taken records above it)."""
        return self._view[1][0]

    @property
    def segment_count(self) -> int:
        """How many segments there are, the active one included."""
        return len(self._segments)

    def read_batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield header and bytes of every batch that reaches above `from_offset`, verified, in order.

        Ends where the journal ended when it was called. Raises JournalCorrupt at the first that does not
        verify.
        """
        segments, end_offset = self._segments, self.end_offset
        ends = [segment.data_end for segment in segments]
        first = max(0, bisect_right([segment.base_offset for segment in segments], from_offset) - 1)
        for segment, data_end in zip(segments[first:], ends[first:], strict=True):
            start = DATA_AT
            if segment.base_offset < from_offset and segment.index_offsets:
                entry = bisect_right(segment.index_offsets, from_offset) - 1
                start = segment.index_positions[entry] if entry >= 0 else DATA_AT
            try:
                for _, header, data in iterate_batches(self._disk, segment, start, data_end):
                    if header.base_offset >= end_offset:
                        return
                    if header.next_offset > from_offset:
                        yield header, data
            except (SegmentDamaged, OSError) as error:
                raise JournalCorrupt(damage_story(error)) from error

    def position_at(self, end: int) -> Position | None:
        """Return the position of the batch that ends at an offset; None when none does, or it is not known."""
        return self.read_from(end, 0)[0]

    def read_from(self, start: int, bytes_max: int) -> tuple[Position | None, list[Batch]]:
        """Return the position at `start`, where a batch ends, and whole batches from there on, as first written.

        At least one batch, if there is one, and up to so many bytes of them; none where compaction has been. No
        position when no batch ends there, or it is no longer kept. Raises JournalCorrupt.
        """
        segments, bases = self._view
        number = bisect_right(bases, start) - 1
        if number < 0 or start > self.end_offset:
            return None, []
        segment = segments[number]
        if start == segment.base_offset:
            found = Position(start, segment.header.start_epoch, segment.header.start_chain)
        elif segment.header.is_compacted:
            return None, []
        else:
            scanned = self._find_position(segment, start)
            if scanned is None:
                return None, []
            found = scanned
        batches: list[Batch] = []
        size = 0
        if bytes_max:
            for header, data in self.read_batches(start):
                if header.is_compacted or (batches and size + len(data) > bytes_max):
                    break
                size += len(data)
                batches.append(
                    Batch(bytes(data), header.epoch, header.base_offset, header.next_offset, header.chain)
                )
            if batches and batches[0].base_offset != start:
                return found, []  # the first of them were compacted away
        return found, batches

    def _find_position(self, segment: Segment, end: int) -> Position | None:
        entry = bisect_left(segment.index_offsets, end) - 1
        start = segment.index_positions[entry] if entry >= 0 else DATA_AT
        try:
            for _, header, _ in iterate_batches(self._disk, segment, start, segment.data_end):
                if header.next_offset >= end:
                    return Position(end, header.epoch, header.chain) if header.next_offset == end else None
        except (SegmentDamaged, OSError) as error:
            raise JournalCorrupt(damage_story(error)) from error
        return None

    def read_payloads(self, offsets: Sequence[int]) -> list[bytes]:
        """Return the payload of each record, in the order asked for; see `read_records`."""
        return [payload for _, payload in self.read_records(offsets)]

    def read_records(self, offsets: Sequence[int]) -> list[tuple[RecordRow, bytes]]:
        """Return row and payload of each record, in the order asked for. Blocks; neighbours share one read.

        Raises RecordUnreadable with the offset of the first record that cannot be read whole, RecordGone (a
        RecordUnreadable) when it is no longer kept. The others can then be asked for without it.
        """
        if len(offsets) == 1:
            return self._read_sorted(offsets)
        ascending = sorted(set(offsets))
        found = {entry[0].offset: entry for entry in self._read_sorted(ascending)}
        return [found[offset] for offset in offsets]

    def _read_sorted(self, offsets: Sequence[int]) -> list[tuple[RecordRow, bytes]]:
        segments, bases = self._view
        found: list[tuple[RecordRow, bytes]] = []
        first = 0
        while first < len(offsets):
            offset = offsets[first]
            number = bisect_right(bases, offset) - 1
            if number < 0:
                raise RecordGone(offset, f"the journal starts at {bases[0]}")
            segment = segments[number]
            if offset >= segment.end_offset:
                raise RecordGone(offset, f"the journal ends at {self.end_offset}")
            last = first + 1
            while last < len(offsets) and offsets[last] < segment.end_offset:
                last += 1
            try:
                found.extend(read_records(self._disk, segment, offsets[first:last]))
            except RecordUnreadable:
                if segment in self._segments:
                    raise
                segments, bases = self._view  # compacted or dropped under us: look again
                continue
            first = last
        return found

    def row_of(self, offset: int) -> RecordRow:
        """Return a record's row, whether its payload can be read or not; see `read_records` for errors."""
        return self._locate(offset)[2]

    def _locate(self, offset: int) -> tuple[Segment, int, RecordRow]:
        segments, bases = self._view
        number = bisect_right(bases, offset) - 1
        if number < 0 or offset >= segments[number].end_offset:
            raise RecordGone(offset, f"the journal has {bases[0]} to {self.end_offset}")
        return segments[number], *locate_record(self._disk, segments[number], offset)

    def stretch_of(self, offset: int) -> tuple[int, int]:
        """Return between which offsets the batches lie that share an index entry with a record: a repair's least part.

        RecordUnreadable when they are no longer as they were first written, or not there.
        """
        segment, entry = self._entry_of(offset)
        offsets = segment.index_offsets
        return offsets[entry], offsets[entry + 1] if entry + 1 < len(offsets) else segment.end_offset

    def _entry_of(self, offset: int) -> tuple[Segment, int]:
        segments, bases = self._view
        number = bisect_right(bases, offset) - 1
        if number < 0 or offset >= segments[number].end_offset:
            raise RecordGone(offset, f"the journal has {bases[0]} to {self.end_offset}")
        segment = segments[number]
        if segment.header.is_compacted:
            raise RecordUnreadable(offset, "its segment was compacted, here")
        return segment, bisect_right(segment.index_offsets, offset) - 1

    def segments(self) -> list[SegmentInfo]:
        """Return what is known of each segment, oldest first; the last one is active."""
        return [
            SegmentInfo(
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                data_bytes=segment.data_end - DATA_AT,
                first_time_ms=segment.first_time_ms,
                last_time_ms=segment.last_time_ms,
                is_closed=segment.is_closed,
                is_compacted=segment.header.is_compacted,
            )
            for segment in self._segments
        ]

    @property
    def segments_held(self) -> tuple[Segment, ...]:
        """The segments themselves, oldest first; what replaces one is another."""
        return self._segments

    @property
    def _segments(self) -> tuple[Segment, ...]:
        return self._view[0]

    def _set_segments(self, segments: tuple[Segment, ...]) -> None:
        # And their base offsets; replaced whole.
        self._view = (segments, tuple(segment.base_offset for segment in segments))

"""One journal's directory: segments, identity and promise, recovery, reading, compaction.

    <directory>/lock                      held while the journal is open
                journal.state             identity, promised epoch, start, durable floor; replaced whole
                00000000000000000000.seg  segments, named by base offset; the last one is active
                next-segment-1.tmp        prepared ahead of need; deleted at open, like every *.tmp
                reserve, spare-0          room kept for a full disk (broker/space)
                tainted                   an fsync failed: the next open copies what verifies to fresh files
                cut                       the journal is being cut at an offset: the next open goes on with that

What recovery decides at the first byte that does not verify ("the break"):

    break at            offset below the durable floor        ─▶ JournalCorrupt
                        a segment that is not the last        ─▶ JournalCorrupt
    behind the break    a batch that says it was durable      ─▶ JournalCorrupt
    otherwise           a torn write nobody was told of       ─▶ cut there, zero the rest, go on

The durable floor is the highest one any batch header, the state file or the owner's snapshots name. A whole
batch behind a break is not yet damage: a power cut keeps any part of the last unfinished write. It is damage
when that batch was written after the broken one had been fsynced, which its own floor says.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from uuid import uuid4

from crc32c import crc32c

from quaymaster.broker.disk import Disk, FileHandle, is_full, read_file, write_file_durably
from quaymaster.broker.segments import (
    DATA_AT,
    READ_BYTES,
    SEGMENT_COMPACTED,
    RecordGone,
    RecordUnreadable,
    Segment,
    SegmentDamaged,
    SegmentHeader,
    base_offset_of,
    find_batch_behind,
    iterate_batches,
    load_footer,
    locate_record,
    parse_header,
    read_records,
    render_footer,
    render_header,
    segment_name,
    zero_tail,
)
from quaymaster.broker.space import JournalLimits, SpaceKeeper
from quaymaster.core.log_tail import Position
from quaymaster.core.records import (
    HEADER_BYTES,
    Batch,
    BatchHeader,
    CorruptBatch,
    Row,
    chain_after,
    check_table,
    decode_header,
    iterate_rows,
    rewrite_batch,
)
from quaymaster.core.replication_messages import Room

STATE_VERSION = 1
STATE_MAGIC = b"QMJ"
STATE_NAME = "journal.state"
LOCK_NAME = "lock"
TAINTED_NAME = "tainted"
CUT_NAME = "cut"
ACTIVE_LEFT_SHARE = 4
"""The last quarter of the active segment is not counted on: what is on its way when the disk is full goes there."""

_STATE = struct.Struct("<B3sQ16s16sQQQ")
_CRC = struct.Struct("<I")
_NO_ID = bytes(16)


class JournalCorrupt(Exception):
    """The files are damaged where acknowledged records may be; the message says where and what to do."""


class JournalClosed(Exception):
    """An earlier write or fsync failed, or the journal was closed; nothing more is written."""


def lock_directory(disk: Disk, directory: str | os.PathLike[str]) -> FileHandle:
    """Take a journal's directory for this process, for as long as the handle lives; DirectoryInUse otherwise.

    Snapshots and index chunks lie in it too, and loading them removes what they do not need: nobody may do that
    while another process uses the journal.
    """
    return FileHandle(disk, disk.lock(f"{os.fspath(directory).rstrip('/')}/{LOCK_NAME}"))


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment as its owner sees it. Times are those of its batches, in ms since 1970; 0 when empty."""

    base_offset: int
    end_offset: int
    data_bytes: int
    first_time_ms: int
    last_time_ms: int
    is_sealed: bool
    is_compacted: bool


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did: record counts, and the bytes of batches before and after."""

    kept_records: int
    dropped_records: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class _State:
    journal_id: int
    storage_id: bytes
    previous_storage_id: bytes
    promised_epoch: int
    start_offset: int
    durable_floor: int


def _render_state(state: _State) -> bytes:
    bare = _STATE.pack(
        STATE_VERSION,
        STATE_MAGIC,
        state.journal_id,
        state.storage_id,
        state.previous_storage_id,
        state.promised_epoch,
        state.start_offset,
        state.durable_floor,
    )
    return bare + _CRC.pack(crc32c(bare))


def _parse_state(path: str, data: bytes) -> _State:
    if len(data) != _STATE.size + _CRC.size or _CRC.unpack_from(data, _STATE.size)[0] != crc32c(
        data[: _STATE.size]
    ):
        raise JournalCorrupt(
            f"{path} is damaged. It holds this journal's identity and the epochs it "
            "promised to refuse; guessing them could lose acknowledged messages. "
            "Restore the directory from a backup."
        )
    version, magic, *fields = _STATE.unpack_from(data)
    if magic != STATE_MAGIC or version != STATE_VERSION:
        raise JournalCorrupt(
            f"{path} has format version {version}; this program reads version {STATE_VERSION}. "
            "Start the version of Quaymaster that wrote it."
        )
    return _State(*fields)


class JournalFiles:
    """A journal's files. One thread appends, any thread reads; opened with `open`, never built directly.

    `end_offset` and `end_chain` cover what was written, `durable_end` what was fsynced. After the first
    failed write or fsync `failure` is set and every further write raises JournalClosed.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        limits: JournalLimits,
        state: _State,
        space: SpaceKeeper,
        lock: FileHandle,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._limits = limits
        self._state = state
        self._lock: FileHandle | None = lock
        self._view: tuple[tuple[Segment, ...], tuple[int, ...]] = ((), ())  # and base offsets; replaced whole
        self._change_lock = threading.Lock()  # the list of segments
        self._state_lock = threading.Lock()  # the state file
        self._sync_lock = threading.Lock()  # so that no thread misses an fsync error another was told of
        self._maintenance_lock = threading.Lock()  # compaction and dropping; close waits for them
        self._closing = False
        self._closed = False
        self.space = space
        self.warnings: list[str] = []
        self.failure: OSError | None = None
        self.end_offset = 0
        self.end_chain = 0
        self.last_epoch = 0
        self.durable_end = 0
        self.durable_floor = state.durable_floor
        self.truncations = 0
        """How often the journal was cut since it was opened."""
        self.is_replicated = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str | os.PathLike[str],
        *,
        journal_id: int,
        limits: JournalLimits | None = None,
        durable_floor: int = 0,
        verify_all: bool = False,
        lock: FileHandle | None = None,
        is_replicated: bool = False,
    ) -> JournalFiles:
        """Open or format the journal in a directory: lock it, recover it, and make all of it durable.

        An owner with other files in the directory takes the lock first (`lock_directory`) and hands it over.

        `durable_floor` is what the owner knows to have been durable, from its snapshot. `verify_all` checks
        every batch instead of those of the last segment; read_batches checks what it reads anyway. Afterwards
        `warnings` says what an operator should be told.

        `is_replicated`: batches came from other replicas too. Their floors are what *those* had durable, so only
        the floor that was written down here counts.

        Raises JournalCorrupt, DirectoryInUse, OSError. Nothing is changed when it raises JournalCorrupt.
        """
        path = os.fspath(directory).rstrip("/")
        limits = limits or JournalLimits()
        disk.make_directory(path)
        lock = lock or lock_directory(disk, path)
        return _recover(cls, disk, path, journal_id, limits, durable_floor, verify_all, lock, is_replicated)

    @property
    def storage_id(self) -> bytes:
        """The 16 bytes that name this copy; new when it is formatted, and after an fsync error."""
        return self._state.storage_id

    @property
    def journal_id(self) -> int:
        """Which journal this is a copy of."""
        return self._state.journal_id

    @property
    def promised_epoch(self) -> int:
        """The highest epoch promised; lower ones are refused, across restarts."""
        return self._state.promised_epoch

    @property
    def start_offset(self) -> int:
        """The first offset still kept (compaction may have taken records above it)."""
        return self._view[1][0]

    @property
    def room(self) -> Room:
        """How much room there is for batches, as of the last look."""
        room = self.space.room
        if room is Room.NONE:
            active = self._segments[-1]
            if active.capacity - active.data_end > active.capacity // ACTIVE_LEFT_SHARE:
                return Room.RESERVE
        return room

    @property
    def group_bytes_max(self) -> int:
        """How many bytes one group commit should not go beyond."""
        return self._limits.group_bytes_max

    @property
    def segment_count(self) -> int:
        """How many segments there are, the active one included."""
        return len(self._segments)

    # Writing: one thread.

    def append(self, batches: Sequence[Batch]) -> None:
        """Write batches at the journal's end; they are readable at once and durable after `sync`.

        Raises OSError (is_full) when there is no room for another segment: `end_offset` then says which
        batches were written, and the rest may be given again later. Any other failure stops the journal for
        good.
        """
        self._check_running()
        segment = self._segments[-1]
        position = segment.data_end
        buffers: list[bytes] = []
        headers: list[BatchHeader] = []
        offset, chain = self.end_offset, self.end_chain
        for batch in batches:
            data = batch.data
            header = decode_header(data)
            assert len(data) == header.length, "a batch is as long as its header says"
            assert header.base_offset == offset, (
                f"a batch with base offset {header.base_offset} was given where {offset} is due"
            )
            assert header.chain == chain_after(chain, header.epoch, offset, header.span, header.crc), (
                f"the batch at {offset} does not continue the journal's chain"
            )
            if position + len(data) > segment.capacity:
                self._write(segment, buffers, headers)
                segment = self._roll(DATA_AT + len(data))
                buffers, headers = [], []
                position = segment.data_end
            buffers.append(data)
            headers.append(header)
            position += len(data)
            offset, chain = header.next_offset, header.chain
        self._write(segment, buffers, headers)

    def sync(self) -> int:
        """Make everything written so far durable and return the durable end.

        The first failure stops the journal for good and marks its directory tainted: after a failed fsync the
        system may have forgotten which pages never reached the disk, so no later success means anything.
        """
        self._check_running()
        end = self.end_offset
        if end > self.durable_end:
            self._sync_segment(self._segments[-1])
            self.durable_end = end
            self.durable_floor = end
        return self.durable_end

    def persist_promise(self, epoch: int) -> None:
        """Promise to refuse epochs below `epoch`; returns when that, and the whole log, is durable."""
        assert epoch >= self.promised_epoch, f"epoch {epoch} is below the promised {self.promised_epoch}"
        end = self.end_offset
        self._check_running()
        self._sync_segment(self._segments[-1])  # what a promise says of the log must survive a power cut
        with self._state_lock:
            self._write_state(
                replace(
                    self._state,
                    promised_epoch=max(epoch, self._state.promised_epoch),
                    durable_floor=max(end, self._state.durable_floor),
                )
            )

    def truncate(self, end: int) -> None:
        """Cut everything behind the batch that ends at `end`; what is left is durable when it returns.

        Only what is not committed is ever cut, so never what was compacted. The mark is durable first: a crash in
        the middle finds it, and the next open goes on.
        """
        self._check_running()
        assert end <= self.end_offset, f"the journal ends at {self.end_offset}, before {end}"
        with self._change_lock, self._state_lock:
            # The floor first: what is cut must not be missed when a crash comes before the end.
            self._write_state(replace(self._state, durable_floor=min(end, self._state.durable_floor)))
            with self._stop_on_failure():
                self.space.put(CUT_NAME, b"%d\n" % end)
            self._cut(end)

    def _cut(self, end: int) -> None:
        with self._sync_lock, self._stop_on_failure(full_too=True):
            bases = [segment.base_offset for segment in self._segments]
            kept = len(_cut_files(self._disk, self._directory, bases, end))
            last = self._segments[kept - 1]
            fresh = Segment(last.path, last.header, self._disk.size(last.open_file(self._disk).fd))
            fresh.hold_file(last.open_file(self._disk))
            _scan_to_end(self._disk, fresh, self._limits)
            self._set_segments((*self._segments[: kept - 1], fresh))
            assert fresh.end_offset == end, (
                f"no batch ends at {end}; the journal was cut at {fresh.end_offset}"
            )
            self._disk.unlink(f"{self._directory}/{CUT_NAME}")
            self._disk.sync_directory(self._directory)
            self.end_offset, self.end_chain, self.last_epoch = end, fresh.end_chain, fresh.end_epoch
            self.durable_end = end
            self.durable_floor = min(end, self.durable_floor)
            self.truncations += 1

    def persist_floor(self) -> None:
        """Write down how far the journal is durable, so that damage below is never taken for a torn write.

        OSError (is_full) on a full disk: a note is worth no spare.
        """
        with self._state_lock:
            if self.durable_floor > self._state.durable_floor:
                self._check_running()
                state = replace(self._state, durable_floor=self.durable_floor)
                with self._stop_on_failure():
                    write_file_durably(self._disk, self._directory, STATE_NAME, _render_state(state))
                self._state = state

    def persist_floor_if_due(self) -> None:
        """Write down the durable floor once for each new segment, so that a lost last segment is noticed.

        Where batches come from other replicas, whose floors say nothing of this disk, each time.
        """
        if self.is_replicated or self._segments[-1].base_offset > self._state.durable_floor:
            self.persist_floor()

    def close(self) -> None:
        """Make everything durable, note it, and let go of the directory. A failed journal only lets go."""
        self._closing = True  # a compaction gives up at its next batch
        with self._maintenance_lock:
            if self._closed:
                return
            try:
                if self.failure is None:
                    self.sync()
                    self._note_floor()
            finally:
                self._closed = True
                self.space.close()
                for segment in self._segments:
                    segment.release_file()
                self._lock = None

    def _note_floor(self) -> None:
        try:
            self.persist_floor()
        except (
            OSError
        ) as error:  # all is durable, and the floor is only a note of it: a full disk may lack it
            if not is_full(error):
                raise

    def fail(self, error: OSError) -> None:
        """Stop for good after a failed write or fsync, and mark the directory for the next open."""
        if self.failure is None:
            self.failure = error
            with suppress(OSError):
                write_file_durably(self._disk, self._directory, TAINTED_NAME, f"{error}\n".encode())

    # Reading: any thread.

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
                raise JournalCorrupt(_story(error)) from error

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
            raise JournalCorrupt(_story(error)) from error
        return None

    def read_payloads(self, offsets: Sequence[int]) -> list[bytes]:
        """Return the payload of each record, in the order asked for; see `read_records`."""
        return [payload for _, payload in self.read_records(offsets)]

    def read_records(self, offsets: Sequence[int]) -> list[tuple[Row, bytes]]:
        """Return row and payload of each record, in the order asked for. Blocks; neighbours share one read.

        Raises RecordUnreadable with the offset of the first record that cannot be read whole, RecordGone (a
        RecordUnreadable) when it is no longer kept. The others can then be asked for without it.
        """
        if len(offsets) == 1:
            return self._read_sorted(offsets)
        ascending = sorted(set(offsets))
        found = {entry[0].offset: entry for entry in self._read_sorted(ascending)}
        return [found[offset] for offset in offsets]

    def _read_sorted(self, offsets: Sequence[int]) -> list[tuple[Row, bytes]]:
        segments, bases = self._view
        found: list[tuple[Row, bytes]] = []
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

    def row_of(self, offset: int) -> Row:
        """Return a record's row, whether its payload can be read or not; see `read_records` for errors."""
        return self._locate(offset)[2]

    def repair_record(self, offset: int, payload: bytes) -> None:
        """Write a record's payload, as another replica has it, over what is damaged here, durably.

        The record's own row says what it must be. Raises RecordUnreadable when it is not that, or there is no row.
        """
        with self._maintenance_lock:  # the segment is not rewritten meanwhile
            self._check_running()
            segment, position, row = self._locate(offset)
            if len(payload) != row.length or crc32c(payload) != row.crc:
                raise RecordUnreadable(offset, "what another replica has is not what was written here")
            self._disk.write(segment.open_file(self._disk).fd, payload, position)
            self._sync_segment(segment)

    def _locate(self, offset: int) -> tuple[Segment, int, Row]:
        segments, bases = self._view
        number = bisect_right(bases, offset) - 1
        if number < 0 or offset >= segments[number].end_offset:
            raise RecordGone(offset, f"the journal has {bases[0]} to {self.end_offset}")
        return segments[number], *locate_record(self._disk, segments[number], offset)

    def segments(self) -> list[SegmentInfo]:
        """Return what is known of each segment, oldest first; the last one is active."""
        return [
            SegmentInfo(
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                data_bytes=segment.data_end - DATA_AT,
                first_time_ms=segment.first_time_ms,
                last_time_ms=segment.last_time_ms,
                is_sealed=segment.is_sealed,
                is_compacted=segment.header.is_compacted,
            )
            for segment in self._segments
        ]

    # Making room: one background thread.

    def compact(
        self, base_offset: int, keep: Callable[[Row], bool], *, last_base_offset: int | None = None
    ) -> CompactionResult:
        """Rewrite a sealed segment so that only records stay for which `keep` says so.

        Offsets and the chain at both ends stay. With `last_base_offset` the neighbours up to that segment are
        merged into the same file (a fully dead segment thus disappears into its neighbour). Only for segments
        below snapshot and commit. Readers inside the old files are not disturbed.

        Raises RecordUnreadable when a record to keep is damaged or the disk cannot read it, and OSError
        (is_full) on a full disk, and JournalClosed when the journal is being closed; nothing has changed
        then. Any other OSError has stopped the journal for good.
        """
        with self._maintenance_lock:
            self._check_running()
            return self._compact(
                base_offset, keep, base_offset if last_base_offset is None else last_base_offset
            )

    def _compact(
        self, base_offset: int, keep: Callable[[Row], bool], last_base_offset: int
    ) -> CompactionResult:
        segments = self._segments_between(base_offset, last_base_offset)
        temporary = f"{self._directory}/compaction.tmp"
        first, last = segments[0], segments[-1]
        compacted = Segment(
            first.path,
            replace(
                first.header,
                flags=first.header.flags | SEGMENT_COMPACTED,
                storage_id=self.storage_id,
                end_offset=last.end_offset,
                end_chain=last.end_chain,
                end_epoch=last.end_epoch,
            ),
            0,
        )
        handle = FileHandle(self._disk, self._disk.open(temporary, create=True))
        try:
            kept, dropped = self._copy_kept(segments, keep, compacted, handle)
            footer = render_footer(compacted)
            compacted.header = replace(compacted.header, data_end=compacted.data_end)
            with self._stop_on_failure():
                self._disk.write(handle.fd, footer, compacted.data_end)
                self._disk.write(handle.fd, render_header(compacted.header), 0)
                self._disk.sync(handle.fd)
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise
        compacted.capacity = compacted.data_end + len(footer)
        compacted.is_sealed = True
        compacted.hold_file(handle)
        with self._change_lock, self._stop_on_failure():
            for segment in segments:  # a reader inside the old file must not open the new one under its name
                segment.open_file(self._disk)
            self._disk.rename(temporary, first.path)
            number = self._segments.index(first)
            rest = self._segments[number + len(segments) :]
            self._set_segments((*self._segments[:number], compacted, *rest))
        with self._stop_on_failure():
            self._disk.sync_directory(self._directory)  # before anything the new file replaces goes
            for segment in segments[1:]:
                self._disk.unlink(segment.path)
            if len(segments) > 1:
                self._disk.sync_directory(self._directory)
        before = sum(segment.data_end - DATA_AT for segment in segments)
        return CompactionResult(kept, dropped, before, compacted.data_end - DATA_AT)

    def drop_before(self, offset: int) -> None:
        """Delete whole segments below `offset`; only called past a snapshot durable on this replica."""
        with self._maintenance_lock, self._change_lock:
            self._check_running()
            number = 0
            while number < len(self._segments) - 1 and self._segments[number].end_offset <= offset:
                number += 1
            dropped = self._segments[:number]
            if not dropped:
                return
            with self._state_lock:  # first: segments missing below the start are fine, above it damage
                self._write_state(replace(self._state, start_offset=self._segments[number].base_offset))
            for segment in dropped:
                self._disk.unlink(segment.path)
            self._set_segments(self._segments[number:])
        self._disk.sync_directory(self._directory)

    def copy_to(self, directory: str, told: Callable[[int], None]) -> int:
        """Copy the journal, up to what is durable now, into an empty directory; return the offset it ends at.

        `told` hears how many bytes were copied, now and then. Appends and compactions go on meanwhile: sealed
        segments are read through the files that were theirs at the beginning. The copy has this journal's
        identity; `renew_identity` gives it one of its own before it is opened.
        """
        with self._change_lock:
            segments = self._segments
            for segment in segments:
                segment.open_file(self._disk)
        # After the view: what a compaction left out was deleted durably by then. A segment begun since is not in
        # the copy, so the copy must not claim to reach into it.
        end = min(self.durable_end, segments[-1].end_offset)
        for segment in segments:
            path = f"{directory}/{segment_name(segment.base_offset)}"
            handle = FileHandle(self._disk, self._disk.open(path, create=True))
            header = replace(segment.header, storage_id=self.storage_id)
            self._disk.write(handle.fd, render_header(header), 0)
            position = DATA_AT
            for position, chunk in self._copied_bytes(segment, end):
                self._disk.write(handle.fd, chunk, position)
                told(len(chunk))
                position += len(chunk)
            if not segment.is_sealed:  # room for a tail that does not look torn
                self._disk.truncate(handle.fd, position + self._limits.index_every_bytes)
            self._disk.sync(handle.fd)
        with self._state_lock:
            state = replace(self._state, durable_floor=end, start_offset=segments[0].base_offset)
        write_file_durably(self._disk, directory, STATE_NAME, _render_state(state))
        return end

    def _copied_bytes(self, segment: Segment, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of a segment's data: all of a sealed one, whole batches of the active one."""
        if segment.is_sealed:
            handle = segment.open_file(self._disk)
            for position in range(DATA_AT, segment.data_end, READ_BYTES):
                length = min(READ_BYTES, segment.data_end - position)
                yield position, self._disk.read(handle.fd, length, position)
            return
        for position, header, data in iterate_batches(self._disk, segment, DATA_AT, segment.data_end):
            if header.next_offset > end:
                return
            yield position, bytes(data)

    def segment_files(self) -> tuple[int, Position, list[tuple[str, int]]]:
        """Return the journal's start, where what is durable ends, and name and bytes of each file up to there."""
        with self._change_lock:
            segments = self._segments
            end = min(self.durable_end, segments[-1].end_offset)
            found = [
                (segment_name(segment.base_offset), self._disk.size(segment.open_file(self._disk).fd))
                for segment in segments[:-1]
            ]
        # Without the lock: nobody waits for what is read, and what is durable stays as it is.
        data_end, last = self._last_batch_below(segments[-1], end)
        found.append((segment_name(segments[-1].base_offset), data_end))
        return segments[0].base_offset, last, found

    def _last_batch_below(self, segment: Segment, end: int) -> tuple[int, Position]:
        """Return where in a segment, and in the journal, the last batch ends that reaches no further than an offset."""
        data_end = DATA_AT
        last = Position(segment.base_offset, segment.header.start_epoch, segment.header.start_chain)
        entry = bisect_right(segment.index_offsets, end - 1) - 1
        if entry < 0 or end == segment.base_offset:
            return data_end, last
        start = segment.index_positions[entry]
        for position, header, _ in iterate_batches(self._disk, segment, start, segment.data_end):
            if header.next_offset > end:
                break
            data_end = position + header.length
            last = Position(header.next_offset, header.epoch, header.chain)
        assert last.end == end, f"the journal is durable up to {end}, where a batch ends"
        return data_end, last

    def release_files(self) -> None:
        """Close segment files above the limit of open ones, oldest first; they open again when read."""
        with self._change_lock:
            opened = [segment for segment in self._segments[:-1] if segment.is_open()]
            for segment in opened[: max(0, len(opened) - self._limits.open_segments_max)]:
                segment.release_file()

    # Inside.

    @property
    def _segments(self) -> tuple[Segment, ...]:
        return self._view[0]

    def _check_running(self) -> None:
        if self.failure is not None:
            raise JournalClosed(f"the journal stopped at the first failure: {self.failure}") from self.failure
        if self._closed:
            raise JournalClosed("the journal is closed")

    def _write(self, segment: Segment, buffers: list[bytes], headers: list[BatchHeader]) -> None:
        if not buffers:
            return
        position = segment.data_end
        try:
            with self._stop_on_failure():
                self._disk.write_many(segment.open_file(self._disk).fd, buffers, position)
        except OSError as error:
            if is_full(error):
                self._clear(segment, position, sum(map(len, buffers)))
            raise
        every = self._limits.index_every_bytes
        for header in headers:
            segment.note_batch(header, position, every)
            position += header.length
        last = headers[-1]
        self.end_chain = last.chain
        self.last_epoch = last.epoch
        self.end_offset = last.next_offset

    def _clear(self, segment: Segment, position: int, length: int) -> None:
        """Take away what a full disk has let through of a write: another batch may come in its place."""
        fd = segment.open_file(self._disk).fd
        try:
            with self._stop_on_failure():
                self._disk.fill_zeros(fd, position, min(position + length, segment.capacity))
        except OSError as error:
            if not is_full(error):
                raise
            return  # a file system that writes nothing in place; the chain tells what is there from what comes
        self._sync_segment(segment)

    def _sync_segment(self, segment: Segment) -> None:
        with self._sync_lock:
            self._check_running()
            with self._stop_on_failure(full_too=True):
                self._disk.sync_data(segment.open_file(self._disk).fd)

    @contextmanager
    def _stop_on_failure(self, *, full_too: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if full_too or not is_full(error):
                self.fail(error)
            raise

    def _roll(self, needed_bytes: int) -> Segment:
        """Seal the active segment, make the next one active, and return it."""
        sealed = self._segments[-1]
        if self.end_offset > self.durable_end:
            self.sync()  # so a break can only ever be torn in the last segment
        with self._stop_on_failure():
            header = _header_at(self._state, self.end_offset, self.end_chain, self.last_epoch)
            segment = _make_segment(self._disk, self._directory, self.space, header, needed_bytes)
        is_empty = sealed.end_offset == sealed.base_offset  # too small for this batch; its file was replaced
        with self._change_lock:
            self._set_segments((*(self._segments[:-1] if is_empty else self._segments), segment))
        if not is_empty:
            _seal(self._disk, sealed)
        return segment

    def _set_segments(self, segments: tuple[Segment, ...]) -> None:
        self._view = (segments, tuple(segment.base_offset for segment in segments))

    def _segments_between(self, first_base: int, last_base: int) -> list[Segment]:
        segments = [segment for segment in self._segments if first_base <= segment.base_offset <= last_base]
        assert len(segments) > 0, f"no segment starts at {first_base}"
        assert (segments[0].base_offset, segments[-1].base_offset) == (first_base, last_base), (
            f"no segments start at {first_base} and {last_base}"
        )
        assert segments[-1].is_sealed, "the active segment is not compacted"
        return segments

    def _copy_kept(
        self, segments: list[Segment], keep: Callable[[Row], bool], target: Segment, handle: FileHandle
    ) -> tuple[int, int]:
        kept = dropped = 0
        position = DATA_AT
        pending: list[bytes] = []
        pending_bytes = 0
        for segment in segments:
            for header, data in _read_loosely(self._disk, segment):
                if self._closing:
                    raise JournalClosed("the journal is being closed")
                rows = list(iterate_rows(data, header))
                wanted = [row for row in rows if keep(row)]
                kept += len(wanted)
                dropped += len(rows) - len(wanted)
                if not wanted:
                    continue
                _check_payloads(segment, data, wanted)
                whole = bytes(data) if len(wanted) == len(rows) else rewrite_batch(data, header, wanted)
                target.note_batch(decode_header(whole), position, self._limits.index_every_bytes)
                position += len(whole)
                pending.append(whole)
                pending_bytes += len(whole)
                if pending_bytes >= self._limits.group_bytes_max:
                    with self._stop_on_failure():
                        self._disk.write_many(handle.fd, pending, position - pending_bytes)
                    pending, pending_bytes = [], 0
        with self._stop_on_failure():
            self._disk.write_many(handle.fd, pending, position - pending_bytes)
        return kept, dropped

    def _write_state(self, state: _State) -> None:
        """Replace the state file, on a full disk too; the caller holds its lock."""
        self._check_running()
        with self._stop_on_failure():
            self.space.put(STATE_NAME, _render_state(state))
        self._state = state


def _header_at(state: _State, offset: int, chain: int, epoch: int) -> SegmentHeader:
    return SegmentHeader(0, state.journal_id, state.storage_id, offset, chain, epoch, 0, 0, 0, 0)


def _check_payloads(segment: Segment, data: memoryview, rows: Sequence[Row]) -> None:
    for row in rows:
        payload = data[row.position : row.position + row.length]
        if len(payload) != row.length or crc32c(payload) != row.crc:
            raise RecordUnreadable(row.offset, f"{segment.path}: the payload does not match its CRC")


def _read_loosely(disk: Disk, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a sealed segment with their tables checked but not their payloads.

    A record nobody needs may be damaged; compaction then takes the damage away.
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


def _make_segment(
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


def _seal(disk: Disk, segment: Segment) -> None:
    """Write the index of a segment that is full behind its data and give its unused room back.

    Not fsynced and allowed to fail: the index is derived, and the next open scans where it is missing.
    """
    segment.is_sealed = True
    footer = render_footer(segment)
    with suppress(OSError):
        fd = segment.open_file(disk).fd
        disk.write(fd, footer, segment.data_end)
        disk.truncate(fd, segment.data_end + len(footer))
        segment.capacity = segment.data_end + len(footer)


def renew_identity(disk: Disk, directory: str) -> None:
    """Give a copied journal a storage id of its own, so that it is never taken for what it was copied from."""
    path = f"{directory}/{STATE_NAME}"
    state = _parse_state(path, read_file(disk, path))
    renewed = replace(state, storage_id=uuid4().bytes, previous_storage_id=state.storage_id)
    write_file_durably(disk, directory, STATE_NAME, _render_state(renewed))


def adopt_copy(disk: Disk, directory: str, files: JournalFiles, *, start_offset: int, end: int) -> None:
    """Give a copied journal the identity and the promises of the one it takes the place of."""
    bases = sorted(
        base for name in disk.list_directory(directory) if (base := base_offset_of(name)) is not None
    )
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        handle = FileHandle(disk, disk.open(path))
        header = parse_header(path, disk.read(handle.fd, DATA_AT, 0))
        disk.write(handle.fd, render_header(replace(header, storage_id=files.storage_id)), 0)
        if base == bases[-1]:  # room for a tail that does not look torn
            size = disk.size(handle.fd)
            disk.fill_zeros(handle.fd, size, size + DATA_AT)
        disk.sync(handle.fd)
    state = replace(files._state, start_offset=start_offset, durable_floor=end)
    write_file_durably(disk, directory, STATE_NAME, _render_state(state))


# Recovery.


def _recover(
    cls: type[JournalFiles],
    disk: Disk,
    directory: str,
    journal_id: int,
    limits: JournalLimits,
    durable_floor: int,
    verify_all: bool,
    lock: FileHandle,
    is_replicated: bool,
) -> JournalFiles:
    names = disk.list_directory(directory)
    bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
    state = _read_state(disk, directory, names)
    for name in names:
        if name.endswith(".tmp"):
            disk.unlink(f"{directory}/{name}")
    space = SpaceKeeper(disk, directory, limits)
    if state is None:
        _check_only_half_formatted(disk, directory, bases)
        state = _format(disk, directory, journal_id, space)
        bases = [0]
    if state.journal_id != journal_id:
        raise JournalCorrupt(
            f"{directory} holds journal {state.journal_id}, not journal {journal_id}. "
            "The directory was moved or the settings name another one."
        )
    if CUT_NAME in names:
        bases = _finish_cut(disk, directory, bases)
    journal = cls(disk, directory, limits, state, space, lock)
    journal.is_replicated = is_replicated
    tainted = TAINTED_NAME in names
    segments = _load_segments(disk, directory, state, bases, verify_all or tainted, limits)
    _recover_tail(
        journal, segments[-1], max(durable_floor, state.durable_floor), trusts_headers=not is_replicated
    )
    journal._set_segments(tuple(segments))
    journal.end_offset, journal.end_chain = segments[-1].end_offset, segments[-1].end_chain
    journal.last_epoch = segments[-1].end_epoch
    if tainted:
        _copy_to_fresh_files(journal)
    try:
        disk.sync(segments[-1].open_file(disk).fd)  # after kill -9 the last writes may be in memory only
        disk.sync_directory(directory)
    except OSError as error:
        journal.fail(error)  # the next open must not take what it reads for what is on the disk
        raise
    journal.durable_end = journal.durable_floor = journal.end_offset
    space.note_segment(min(segments[-1].capacity, limits.segment_bytes_max))
    space.check()
    return journal


def _read_state(disk: Disk, directory: str, names: list[str]) -> _State | None:
    if STATE_NAME not in names:
        return None
    path = f"{directory}/{STATE_NAME}"
    return _parse_state(path, read_file(disk, path))


def _check_only_half_formatted(disk: Disk, directory: str, bases: list[int]) -> None:
    """Without a state file only the empty first segment may be there: a crash cut the format short."""
    if not bases:
        return
    if bases == [0]:
        handle = FileHandle(disk, disk.open(f"{directory}/{segment_name(0)}"))
        if not disk.read(handle.fd, 64 << 10, DATA_AT).strip(b"\0"):
            return
    raise JournalCorrupt(
        f"{directory} has segments but no {STATE_NAME}, so the identity and the promises of this "
        "journal are lost. Nothing was changed. Restore the directory from a backup."
    )


def _format(disk: Disk, directory: str, journal_id: int, space: SpaceKeeper) -> _State:
    """Make the first segment, then the state file: with the state file the journal exists."""
    state = _State(journal_id, uuid4().bytes, _NO_ID, 0, 0, 0)
    _make_segment(disk, directory, space, _header_at(state, 0, 0, 0), 0, first=True)
    write_file_durably(disk, directory, STATE_NAME, _render_state(state))
    return state


def _load_segments(
    disk: Disk, directory: str, state: _State, bases: list[int], verify_all: bool, limits: JournalLimits
) -> list[Segment]:
    """Read every header, fill in the sealed segments, check that each begins where the one before ended."""
    segments: list[Segment] = []
    leftovers: list[str] = []
    unsealed: list[Segment] = []
    ids = {state.storage_id, state.previous_storage_id}
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        if base < state.start_offset:
            leftovers.append(path)  # dropped, but a crash came before the unlink was durable
            continue
        if segments and segments[-1].header.is_compacted and base < segments[-1].end_offset:
            leftovers.append(path)  # merged into the one before, the same
            continue
        segment = _open_segment(disk, path, state, ids, base)
        segments.append(segment)
    if not segments or segments[0].base_offset != state.start_offset:
        found = f"the first one found starts at {segments[0].base_offset}" if segments else "none was found"
        raise JournalCorrupt(
            f"{directory} should have a segment that starts at offset {state.start_offset}; {found}. "
            "Nothing was changed. Restore the missing files from a backup."
        )
    for segment, following in pairwise(segments):
        segment.is_sealed = True
        try:
            if not load_footer(disk, segment) or not _meets(segment, following):
                _rebuild(disk, segment, limits, following)
                unsealed.append(segment)
            elif verify_all:
                for _ in iterate_batches(disk, segment, DATA_AT, segment.data_end):
                    pass
        except (SegmentDamaged, OSError) as error:
            raise JournalCorrupt(_story(error)) from error
    for path in leftovers:
        disk.unlink(path)
    for segment in unsealed:
        _seal(disk, segment)
    return segments


def _open_segment(disk: Disk, path: str, state: _State, ids: set[bytes], base: int) -> Segment:
    fd = disk.open(path)
    handle = FileHandle(disk, fd)
    try:
        header = parse_header(path, disk.read(fd, DATA_AT, 0))
        if header.base_offset != base:
            raise SegmentDamaged(path, 0, f"the header says it starts at offset {header.base_offset}")
        if header.journal_id != state.journal_id or header.storage_id not in ids:
            raise SegmentDamaged(path, 0, "it belongs to another journal or another copy of this one")
    except (SegmentDamaged, OSError) as error:
        raise JournalCorrupt(_story(error)) from error
    segment = Segment(path, header, disk.size(fd))
    segment.hold_file(handle)
    return segment


def _meets(segment: Segment, following: Segment) -> bool:
    return segment.end_offset == following.base_offset and segment.end_chain == following.header.start_chain


def _rebuild(disk: Disk, segment: Segment, limits: JournalLimits, following: Segment) -> None:
    """Scan a sealed segment whose footer is missing; it ends where the following one begins."""
    handle = segment.open_file(disk)
    fresh = Segment(segment.path, segment.header, segment.capacity)
    fresh.hold_file(handle)
    end = segment.header.data_end if segment.header.is_compacted else disk.size(handle.fd)
    for position, header, _ in iterate_batches(disk, fresh, DATA_AT, end):
        fresh.note_batch(header, position, limits.index_every_bytes)
        if not segment.header.is_compacted and fresh.end_offset >= following.base_offset:
            break
    if not _meets(fresh, following):
        raise SegmentDamaged(
            segment.path,
            fresh.data_end,
            f"it ends at {fresh.end_offset}, the next begins at {following.base_offset}",
        )
    segment.index_offsets, segment.index_positions = fresh.index_offsets, fresh.index_positions
    segment.data_end = fresh.data_end
    segment.end_offset, segment.end_chain, segment.end_epoch = (
        fresh.end_offset,
        fresh.end_chain,
        fresh.end_epoch,
    )
    segment.first_time_ms, segment.last_time_ms = fresh.first_time_ms, fresh.last_time_ms


def _recover_tail(journal: JournalFiles, segment: Segment, floor: int, *, trusts_headers: bool) -> None:
    """Find where the active segment ends and cut a torn write behind it."""
    disk, limits = journal._disk, journal._limits
    try:
        why = "it is whole"
        size = disk.size(segment.open_file(disk).fd)
        if segment.header.is_compacted or load_footer(disk, segment):
            raise SegmentDamaged(segment.path, size, "it was sealed, but the segment after it is missing")
        try:
            for position, header, _ in iterate_batches(disk, segment, DATA_AT, size):
                segment.note_batch(header, position, limits.index_every_bytes)
                if trusts_headers:
                    floor = max(floor, header.floor)
        except SegmentDamaged as broken:
            why = broken.why
        if segment.end_offset < floor:
            raise SegmentDamaged(
                segment.path,
                segment.data_end,
                f"records from {segment.end_offset} to {floor} were durable but cannot be read ({why})",
            )
        behind = (
            find_batch_behind(disk, segment, segment.data_end, offset=segment.end_offset)
            if trusts_headers
            else None
        )
        if behind is not None:
            raise SegmentDamaged(
                segment.path,
                segment.data_end,
                f"the batch at offset {segment.end_offset} cannot be read ({why}), but the batch at "
                f"byte {behind[0]} was written after it was durable",
            )
        if zero_tail(disk, segment, segment.data_end):
            journal.warnings.append(
                f"a write that was never acknowledged was cut from {segment.path} at byte "
                f"{segment.data_end}, offset {segment.end_offset}"
            )
    except (SegmentDamaged, OSError) as error:
        raise JournalCorrupt(_story(error)) from error


def _finish_cut(disk: Disk, directory: str, bases: list[int]) -> list[int]:
    """Go on with a cut that a crash ended; return the segments that are left."""
    text = read_file(disk, f"{directory}/{CUT_NAME}")
    bases = _cut_files(disk, directory, bases, int(text))
    disk.unlink(f"{directory}/{CUT_NAME}")
    disk.sync_directory(directory)
    return bases


def _cut_files(disk: Disk, directory: str, bases: list[int], end: int) -> list[int]:
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


def _scan_to_end(disk: Disk, segment: Segment, limits: JournalLimits) -> None:
    """Fill in what is known of a segment from its batches."""
    with suppress(SegmentDamaged):
        for position, header, _ in iterate_batches(disk, segment, DATA_AT, segment.capacity):
            segment.note_batch(header, position, limits.index_every_bytes)


def _copy_to_fresh_files(journal: JournalFiles) -> None:
    """Rewrite every segment after an fsync error: what was read may be only in memory, never on the disk.

    The copy gets a new storage id, because a copy that lost writes must not vote under its old name. A crash
    in between finds the marker still there and goes on: segments of the old and of the new id are both
    accepted.
    """
    disk, state = journal._disk, journal._state
    segments = journal._segments
    if all(segment.header.storage_id == state.storage_id for segment in segments):
        state = replace(state, storage_id=uuid4().bytes, previous_storage_id=state.storage_id)
        write_file_durably(disk, journal._directory, STATE_NAME, _render_state(state))
        journal._state = state
    for segment in segments:
        temporary = f"{segment.path}.tmp"
        old = segment.open_file(disk)
        handle = FileHandle(disk, disk.open(temporary, create=True))
        segment.header = replace(segment.header, storage_id=state.storage_id)
        disk.write(handle.fd, render_header(segment.header), 0)
        for position in range(DATA_AT, segment.data_end, READ_BYTES):
            length = min(READ_BYTES, segment.data_end - position)
            disk.write(handle.fd, disk.read(old.fd, length, position), position)
        if segment.is_sealed:
            disk.write(handle.fd, render_footer(segment), segment.data_end)
        else:
            disk.fill_zeros(handle.fd, segment.data_end, segment.capacity)
        disk.sync(handle.fd)
        disk.rename(temporary, segment.path)
        segment.hold_file(handle)
    disk.sync_directory(journal._directory)
    disk.unlink(f"{journal._directory}/{TAINTED_NAME}")
    disk.sync_directory(journal._directory)
    journal.warnings.append(
        f"an fsync failed when this journal was last used; everything that verified, up to offset "
        f"{journal.end_offset}, was copied to fresh files. Check the disk under {journal._directory}."
    )


def _story(error: SegmentDamaged | OSError) -> str:
    if isinstance(error, SegmentDamaged):
        what = str(error)
    else:
        what = f"{error.filename or 'a segment'} cannot be read: {error.strerror}"
    return (
        f"{what}. This is damage, not a write cut short by a crash: acknowledged messages may be in it. "
        "Nothing was changed. Check the disk, then restore this directory from a backup or another replica."
    )
